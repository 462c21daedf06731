//! `longhaul doctor`: what is wrong with this machine, or with the way to a server, and what to do about it.

mod machine;
mod server;

use proto::identity::PublicKey;
use serde::Serialize;

use super::named;
use super::options::LoginArgs;
use super::{say, say_json};
use crate::failure::{Failure, Outcome};
use crate::printable::OneLine;
use crate::uri::{Host, Location, ScsiPlace, Uri};

/// Find what is wrong with this machine, or with the way to a server, and say what to do
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A volume, by its URI or the name that `mount` remembers it by, or a server: the way there is looked at too
    #[arg(value_name = "URI|HOST")]
    place: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    login: LoginArgs,
}

const EXAMPLES: &str = "\
Examples:
  longhaul doctor
  longhaul doctor server
  longhaul doctor iscsi://server/iqn.2026-11.dev.longhaul:backup --chap-user laptop --chap-secret-file laptop.secret

Nothing is changed, and no volume is opened. Exit code 1 if something is broken.";

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Good,
    /// Slower or less than it could be, or not needed by everybody.
    Note,
    /// It does not work.
    Broken,
}

/// All of it.
#[derive(Debug, Serialize)]
struct Report<'f> {
    /// The server that was looked at, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    /// How many findings are broken.
    broken: usize,
    findings: &'f [Finding],
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    state: State,
    /// What was looked at, and how it is.
    what: String,
    /// Why that matters, or why it is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    todo: Option<String>,
}

impl Finding {
    fn good(what: impl Into<String>) -> Self {
        Self { state: State::Good, what: what.into(), why: None, todo: None }
    }

    fn note(what: impl Into<String>, why: impl Into<String>, todo: impl Into<String>) -> Self {
        let (why, todo) = (Some(why.into()), Some(todo.into()));
        Self { state: State::Note, what: what.into(), why, todo }
    }

    fn broken(what: impl Into<String>, why: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { state: State::Broken, ..Self::note(what, why, todo) }
    }

    /// What a command would say.
    fn failure(failure: &Failure) -> Self {
        let text = failure.to_string();
        let (what, todo) = match text.split_once('\n') {
            Some((what, todo)) => (what.to_owned(), Some(todo.trim().to_owned())),
            None => (text, None),
        };
        Self { state: State::Broken, what, why: None, todo }
    }

    fn text(&self) -> String {
        let mark = match self.state {
            State::Good => "ok    ",
            State::Note => "note  ",
            State::Broken => "BROKEN",
        };
        let mut text = format!("{mark}  {}", OneLine(&self.what));
        for line in [&self.why, &self.todo].into_iter().flatten() {
            text += &format!("\n        {}", OneLine(line));
        }
        text
    }
}

/// Looks, and tells.
pub async fn run(args: Args) -> Outcome {
    let mut findings = machine::look();
    let place = args.place.as_deref().map(place_of).transpose()?;
    let server = place.as_ref().map(|place| place.host.to_string());
    if let Some(place) = place {
        findings.extend(server::look(&place, &args.login).await);
    }
    let broken = findings.iter().filter(|finding| finding.state == State::Broken).count();
    if args.json {
        say_json(&Report { server, broken, findings: &findings })?;
    } else {
        findings.iter().try_for_each(|finding| say(&finding.text()))?;
    }
    match broken {
        0 => Ok(()),
        _ => Err(Failure::already_printed(false)),
    }
}

/// What is looked at.
struct Place {
    host: Host,
    /// The key that the server must have.
    pin: Option<PublicKey>,
    /// The unit that is meant, if one is.
    unit: Option<Uri>,
}

fn place_of(place: &str) -> Outcome<Place> {
    let what = || Failure::usage(format!("cannot look at {place}"));
    let uri = match place.parse::<Uri>() {
        Ok(uri) => uri,
        Err(why) if place.contains("://") => return Err(what().because(why)),
        // A port stands behind a colon too.
        Err(_) => match named::named(place).map_err(|why| what().because(why))? {
            Some(uri) => uri,
            None => {
                let host = place.parse().map_err(|why| what().because(why))?;
                return Ok(Place { host, pin: None, unit: None });
            }
        },
    };
    match uri.location() {
        Location::Unit(unit) | Location::Passed(ScsiPlace::Unit(unit)) => {
            let (host, pin) = (unit.host.clone(), unit.pin);
            Ok(Place { host, pin, unit: Some(uri) })
        }
        Location::Served(_) | Location::Passed(ScsiPlace::Served(_)) => Err(what().because("it is of a HyperSCSI server").hint(
            "only iSCSI servers can be looked at: `longhaul info` says whether this one answers",
        )),
        Location::Several(_) => Err(what()
            .because("it is made of several volumes")
            .hint("name those that are on servers one by one")),
        Location::Image(_) => {
            Err(what().because("it is in a Ceph cluster").hint("`ceph -s` says how that is"))
        }
        Location::Process(_)
        | Location::File(_)
        | Location::Device(_)
        | Location::Drive(_)
        | Location::Tape(_)
        | Location::Changer(_)
        | Location::Passed(ScsiPlace::Device(_)) => {
            Err(what().because("it is on this machine").hint("leave it out"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_says_what_is_wrong_why_and_what_to_do() {
        let told = Finding::broken("a port is closed", "nobody listens", "start it").text();
        assert_eq!(told, "BROKEN  a port is closed\n        nobody listens\n        start it");
        let failure = Failure::new("it fails").because("so").hint("do this");
        let found = Finding::failure(&failure);
        assert_eq!((found.what.as_str(), found.todo.as_deref()), ("it fails: so", Some("do this")));
    }

    #[test]
    fn server_is_named_by_a_host_or_a_uri() {
        assert_eq!(place_of("server").unwrap().host.port, 3260);
        let uri = "iscsi://[2001:db8::1]:3261/iqn.2026-11.dev.longhaul:a";
        assert_eq!(place_of(uri).unwrap().host.port, 3261);
        let why = |place| place_of(place).map(|_| ()).unwrap_err().to_string();
        assert!(why("file:/a").contains("on this machine"));
        assert!(why("hyperscsi://server/a").contains("HyperSCSI"));
    }
}
