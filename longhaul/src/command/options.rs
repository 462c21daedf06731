//! Options that several commands share.

use std::path::{Path, PathBuf};

use clap::Args;
use proto::iscsi::name::IscsiName;
use volume::layer::pipeline::Settings;

use crate::chain::{Contents, Login, Unlock};
use crate::config::{UNLOCK, UPSTREAM};
use crate::credentials::{self, ChapArgs};
use crate::failure::{Failure, OrFail, Outcome};
use crate::luks;
use crate::option_table::option;
use crate::printable::{Quoted as _, Shown as _};
use crate::reconnect_limit::ReconnectLimit;
use crate::replay_log;
use crate::sealing::SealingArgs;
use crate::secret::{SecretArgs, Source};
use crate::state_dir::state_dir;
use crate::store::iscsi::{Connections, Writers};
use crate::uri::{Location, ScsiPlace, Uri};

/// Headings that each option names: one of a whole struct would hold for the options behind it too.
const CONNECTION: &str = "Connection";
pub(super) const OTHER_WRITERS: &str = "Other writers";

/// How to log in to a target.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct LoginArgs {
    #[arg(long, value_name = "IQN", help = const { option(UPSTREAM, "initiator").help })]
    #[arg(help_heading = "Authentication (CHAP)")]
    initiator: Option<IscsiName>,
    #[command(flatten)]
    chap: ChapArgs,
    #[command(flatten)]
    sealing: SealingArgs,
    #[arg(long, value_name = "N|auto", help = const { option(UPSTREAM, "connections").help })]
    #[arg(default_value = const { option(UPSTREAM, "connections").default_value() })]
    #[arg(help_heading = CONNECTION)]
    connections: Connections,
}

impl LoginArgs {
    /// How to log in to these volumes. What was asked of sessions is refused where there are none.
    pub(super) async fn login_to(&self, volumes: &[&Uri]) -> Outcome<Login> {
        // An account may be remembered with a volume.
        let initiator = (self.initiator.is_some(), "--initiator");
        let mut options = self.sealing.given().into_iter().chain([initiator]);
        if let Some((_, option)) = options.find(|(is_given, _)| *is_given)
            && !volumes.iter().any(|uri| has_sessions(uri))
        {
            let names: Vec<_> = volumes.iter().map(ToString::to_string).collect();
            let names = names.join(" and ");
            let what = format!("{option} is for iSCSI and HyperSCSI, not {names}: leave it out");
            return Err(Failure::usage(what));
        }
        self.login().await
    }

    /// Reads the secrets, which may mean to ask for them.
    pub(super) async fn login(&self) -> Outcome<Login> {
        let account = match self.chap.chap() {
            Some(chap) => Some(blocking(move || chap.account()).await?),
            None => None,
        };
        let initiator = self.initiator.clone();
        Ok(Login {
            initiator,
            account,
            algorithms: credentials::algorithms(self.chap.is_weak()),
            seal: self.sealing.seal(),
            connections: self.connections,
        })
    }
}

/// Whether some of a volume is reached by sessions, of iSCSI or HyperSCSI.
fn has_sessions(uri: &Uri) -> bool {
    let is_passed = |leaf: &Uri| {
        matches!(leaf.location(), Location::Passed(ScsiPlace::Unit(_) | ScsiPlace::Served(_)))
    };
    uri.leaves().iter().any(|(leaf, _)| leaf.is_remote() || is_passed(leaf))
}

/// How a lost connection is met.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(super) struct OutageArgs {
    /// Wait so long for a lost connection before requests fail: 90s, 5m, 2h, forever; 0s for not at all. The first login has
    /// as long, from 5s to 30s
    #[arg(help_heading = CONNECTION, long, value_name = "DURATION|forever")]
    reconnect_for: Option<ReconnectLimit>,
}

impl OutageArgs {
    /// What was asked for, if anything was.
    pub(super) const fn reconnect_limit(self) -> Option<ReconnectLimit> {
        self.reconnect_for
    }
}

/// Who else may write to a volume behind a target.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(super) struct WriterArgs {
    /// Take the volume over from another writer, which can write nothing more
    #[arg(help_heading = OTHER_WRITERS, long, conflicts_with = "shared")]
    take_over: bool,
    /// Others may write at the same time: a cluster file system coordinates them
    #[arg(help_heading = OTHER_WRITERS, long)]
    shared: bool,
}

impl WriterArgs {
    /// Where others write, what was read ahead may be old when it is asked for.
    pub(super) fn pipeline(self, settings: Option<Settings>) -> Option<Settings> {
        settings.map(|settings| Settings {
            read_ahead: if self.shared { Some(0) } else { settings.read_ahead },
            ..settings
        })
    }

    /// What they say.
    pub(super) const fn writers(self) -> Writers {
        match (self.take_over, self.shared) {
            (true, _) => Writers::TakeOver,
            (_, true) => Writers::Shared,
            _ => Writers::One,
        }
    }
}

/// Where acknowledged writes go that a volume behind a network could not be given any more.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct ReplayLogArgs {
    /// Keep what was acknowledged or under way, and not flushed, in a file in this directory if the volume has to be given up, for
    /// `longhaul replay` [default: /var/lib/longhaul; for users ~/.local/state/longhaul]
    #[arg(help_heading = CONNECTION, long, value_name = "DIR")]
    replay_log: Option<PathBuf>,
    /// The state directory of a server, for a user without one.
    #[arg(skip)]
    of_server: Option<PathBuf>,
}

impl ReplayLogArgs {
    /// Those of a server that keeps its state in `state`.
    pub(super) fn of_server(state: Option<&Path>) -> Self {
        Self { of_server: state.map(PathBuf::from), ..Self::default() }
    }

    /// The directory, whether it can be used or not.
    pub(super) fn place(&self) -> Option<PathBuf> {
        let dir = self.replay_log.clone().or_else(state_dir).or_else(|| self.of_server.clone())?;
        Some(std::path::absolute(&dir).unwrap_or(dir))
    }

    /// Whether a directory was named.
    pub(super) const fn is_given(&self) -> bool {
        self.replay_log.is_some()
    }

    /// The directory. One that cannot be used is refused if it was named; else it is warned about as long as nothing is
    /// lost by it.
    pub(super) fn dir(&self) -> Outcome<Option<PathBuf>> {
        let Some(dir) = self.place() else {
            tracing::warn!(
                "replay log: no directory for it: acknowledged writes are lost if a volume is given up; --replay-log names one"
            );
            return Ok(None);
        };
        if self.is_given() && !dir.exists() {
            let what = format!("cannot keep replay logs in {} (--replay-log)", dir.shown());
            return Err(Failure::usage(what).because("there is no such directory").hint(format!(
                "nothing was opened; mount its disk, or make it: `mkdir {}`",
                dir.quoted()
            )));
        }
        match replay_log::check_dir(&dir) {
            Err(why) if self.is_given() => {
                let what = format!("cannot keep replay logs in {} (--replay-log)", dir.shown());
                return Err(Failure::usage(what).because(why).hint(
                    "nothing was opened; name a directory in which this user can make files",
                ));
            }
            Err(why) => {
                tracing::warn!(dir = %dir.shown(), %why, "replay log: no file can be made: acknowledged writes are lost if a volume is given up; --replay-log names another directory");
            }
            Ok(()) => {}
        }
        // It may be there by the time that it is needed.
        Ok(Some(dir))
    }
}

/// How an encrypted volume is opened. That it is encrypted is seen from its header.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Encrypted volumes")]
pub(super) struct EncryptionArgs {
    #[command(flatten)]
    secret: SecretArgs,
    /// Refuse the volume if it is not encrypted; a pass-phrase given by an option says so too
    #[arg(long)]
    encrypted: bool,
    /// Take the volume as it is stored: if it is encrypted, its header and ciphertext
    #[arg(long, conflicts_with_all = [
        "encrypted", "allow_discards", "passphrase_file", "passphrase_env", "key_file",
    ])]
    raw: bool,
    /// With --raw: write to an encrypted volume as it is stored; with `tune --overwrite`: over a file system
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    discards: DiscardArgs,
}

/// Whether discards may leave this machine.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Encrypted volumes")]
pub(super) struct DiscardArgs {
    #[arg(long, help = const { option(UNLOCK, "allow_discards").help })]
    allow_discards: bool,
}

impl DiscardArgs {
    pub(super) const fn is_given(self) -> bool {
        self.allow_discards
    }

    pub(super) const fn options(self) -> luks::Options {
        luks::Options { allow_discards: self.allow_discards }
    }
}

impl EncryptionArgs {
    /// Refuses --force where nothing but --raw needs it.
    pub(super) fn refuse_idle_force(&self) -> Outcome {
        match self.force && !self.raw {
            true => Err(Failure::usage("--force has no use without --raw here")
                .hint("it allows an encrypted volume to be written over as it is stored")),
            false => Ok(()),
        }
    }

    /// Whether the volume is taken as it is stored.
    pub(super) const fn is_raw(&self) -> bool {
        self.raw
    }

    /// Where the pass-phrase comes from.
    pub(super) fn source(&self) -> Source {
        self.secret.source()
    }

    /// What is chosen of an encrypted volume.
    pub(super) const fn discards(&self) -> luks::Options {
        self.discards.options()
    }

    /// Whether --force is given.
    pub(super) const fn is_forced(&self) -> bool {
        self.force
    }

    /// What of the volume `what` is wanted.
    pub(super) fn contents(&self, what: &str) -> Contents {
        if self.raw {
            return Contents::Raw { overwrite: self.force };
        }
        let demanded = self.encrypted || self.secret.is_given() || self.discards.allow_discards;
        contents(&self.secret, self.discards, demanded, what)
    }
}

/// The plain text of `what`, opened with `secret`.
pub(super) fn contents(
    secret: &SecretArgs,
    discards: DiscardArgs,
    demanded: bool,
    what: &str,
) -> Contents {
    let key = luks::Key::asked(secret.source(), format!("pass-phrase of {what}"));
    Contents::Plain(Unlock { key, with: discards.options(), erasable: false, demanded })
}

/// Asking blocks, for as long as a person thinks.
pub(super) async fn blocking<T: Send + 'static>(
    ask: impl FnOnce() -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    tokio::task::spawn_blocking(ask).await.or_fail(|| "cannot ask for a secret".to_owned())?
}
