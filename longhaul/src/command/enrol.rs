//! An invitation in the place of a volume: this machine becomes a client of the server, and remembers the volume.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::path::PathBuf;

use proto::iscsi::invitation::{Invitation, PREFIX};
use zeroize::Zeroizing;

use super::options::LoginArgs;
use super::say;
use crate::chain::{self, Enrolment};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;
use crate::remembered::Remembered;
use crate::sealing;
use crate::uri::{Host, IscsiUri, Uri};

/// The commands that take an invitation.
const COMMANDS: [&str; 2] = ["mount", "attach"];

/// What is said of an invitation that was not what let this machine in.
const KNOWN_BEFORE: &str = "the invitation has enrolled nobody now: it was used, has expired or was revoked; the server knows the key of \
    this machine from before, with the rights that it had";

/// The longest invitation, with what may stand around it.
const TEXT_MAX: u64 = 8192;

/// An invitation on the command line.
pub(crate) struct GivenInvitation {
    invitation: Invitation,
    /// Which of the arguments it is.
    at: usize,
}

impl GivenInvitation {
    /// The first argument that is one, or that says that one comes by standard input (`-`).
    pub(crate) fn find(arguments: &[OsString]) -> Outcome<Option<Self>> {
        let is_command = |word: &OsString| COMMANDS.iter().any(|command| word == command);
        let Some(command) = arguments.iter().skip(1).position(is_command) else { return Ok(None) };
        let mut words = arguments.iter().enumerate().skip(command + 2);
        let is_given = |at: usize, word: &OsStr| {
            // Elsewhere it could be the value of an option.
            (word == "-" && at == command + 2)
                || word.to_str().is_some_and(|word| word.starts_with(PREFIX))
        };
        let Some((at, word)) = words.find(|(at, word)| is_given(*at, word)) else {
            return Ok(None);
        };
        let text = match word.to_str() {
            Some("-") => standard_input()?,
            text => Zeroizing::new(text.unwrap_or_default().to_owned()),
        };
        let what = || "cannot use the invitation".to_owned();
        // `serve` and `invite` print whom it is for, before it.
        let text = text.find(PREFIX).map_or(&**text, |at| &text[at..]);
        let invitation = text.parse().map_err(|why| Failure::usage(what()).because(why))?;
        let given = Self { invitation, at };
        given.portals()?;
        Ok(Some(given))
    }

    /// The command line with the volume in the place of the invitation, as one that is read before the invitation is used
    /// has to be right.
    pub(crate) fn replaced(&self, arguments: &[OsString]) -> Outcome<Vec<OsString>> {
        let first = self.portals()?.into_iter().next();
        let uri = first.map(|portal| self.uri(portal));
        Ok(self.with(arguments, uri.map(|uri| uri.to_string()).unwrap_or_default()))
    }

    fn with(&self, arguments: &[OsString], uri: String) -> Vec<OsString> {
        let mut replaced = arguments.to_vec();
        if let Some(word) = replaced.get_mut(self.at) {
            *word = uri.into();
        }
        replaced
    }

    fn portals(&self) -> Outcome<Vec<Host>> {
        let portals = self.invitation.addresses.iter().map(|address| address.parse::<Host>());
        portals.collect::<Result<_, _>>().map_err(|why| {
            Failure::usage("cannot use the addresses of the invitation").because(why)
        })
    }

    fn uri(&self, host: Host) -> Uri {
        let Invitation { target, lun, server, .. } = &self.invitation;
        Uri::from(IscsiUri { host, target: target.clone(), lun: *lun, pin: Some(*server) })
    }

    /// Uses the invitation: after that the server lists this machine, and the volume is remembered, with the directory that
    /// it is to be mounted at. Gives the command line with the volume in its place.
    pub(super) async fn enrol(
        &self,
        arguments: &[OsString],
        login: &LoginArgs,
        dir: Option<PathBuf>,
    ) -> Outcome<Vec<OsString>> {
        let login = login.login().await?;
        let identity = login.seal.identity.clone().map_or_else(sealing::default_path, Ok)?;
        if !identity.exists() {
            let made = sealing::create(&identity)?;
            say(&format!(
                "made the identity of this machine, {} in {}",
                made.public(),
                identity.shown()
            ))?;
        }
        let Invitation { server, secret, target, name: who, .. } = &self.invitation;
        let enrolment = chain::enrol(&self.portals()?, &login, (*server, secret), target).await?;
        let (portal, told) = match enrolment {
            Enrolment::Taken(portal) => (portal, format!("the server knows this machine as {who}")),
            Enrolment::KnownBefore(portal) => (portal, KNOWN_BEFORE.to_owned()),
        };
        let uri = self.uri(portal);
        let options = login.seal.identity.is_some().then(|| {
            let identity = std::path::absolute(&identity).unwrap_or(identity);
            vec!["--identity".to_owned(), identity.to_string_lossy().into_owned()]
        });
        let name = Remembered::of(&uri, dir, options.unwrap_or_default()).keep_if_new(&uri)?;
        say(&format!("{told}; the volume is remembered as {name}"))?;
        Ok(self.with(arguments, uri.to_string()))
    }
}

fn standard_input() -> Outcome<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::with_capacity(TEXT_MAX as usize));
    let read = std::io::stdin().lock().take(TEXT_MAX).read_to_string(&mut text);
    read.or_fail(|| "cannot read the invitation from standard input".to_owned())?;
    Ok(text)
}
