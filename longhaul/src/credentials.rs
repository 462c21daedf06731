//! How this machine proves itself with CHAP, and what it wants proven: names, and where the secrets
//! come from.

use std::path::PathBuf;

use clap::Args;
use proto::iscsi::chap::{Account, Algorithm, Credentials, Secret};

use crate::failure::{Failure, OrFail, Outcome};
use crate::option_table::{
    NAME, PATH, Place, SWITCH, Standard, VARIABLE, option, options, path, switch, text,
};
use crate::secret::{Source, keep, refuse_shared};

options! {
    /// Names and secrets for CHAP, in the table of a client or of a volume of another target.
    pub(crate) struct ChapOptions in pub(crate) CHAP {
        chap_user: Option<String> = text => {
            kind: NAME,
            default: Standard::Words("the name of the table"),
            place: Place::Both,
            help: "The name that the initiator proves",
            manual: "On the command line CHAP begins with it",
        }
        chap_secret_file: Option<PathBuf> = path => {
            kind: PATH,
            default: Standard::Words("the terminal is asked"),
            place: Place::Both,
            help: "File whose first line is the secret of the initiator",
            manual: "In the file one of the two is required",
        }
        chap_secret_env: Option<String> = text => {
            kind: VARIABLE,
            default: Standard::Words(""),
            place: Place::Both,
            help: "Variable that holds the secret of the initiator, instead",
            manual: "",
        }
        chap_mutual_user: Option<String> = text => {
            kind: NAME,
            default: Standard::Words("one-way CHAP"),
            place: Place::Both,
            help: "The name that the target proves in turn",
            manual: "",
        }
        chap_mutual_secret_file: Option<PathBuf> = path => {
            kind: PATH,
            default: Standard::Words(""),
            place: Place::Both,
            help: "File whose first line is the secret of the target",
            manual: "",
        }
        chap_mutual_secret_env: Option<String> = text => {
            kind: VARIABLE,
            default: Standard::Words(""),
            place: Place::Both,
            help: "Variable that holds the secret of the target, instead",
            manual: "",
        }
    }
}

options! {
    /// Which algorithms CHAP may use.
    pub(crate) struct WeakOptions in pub(crate) WEAK {
        chap_weak: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::Both,
            help: "Allow CHAP with SHA-1 and MD5 too, for peers that know nothing better",
            manual: "Of the server it holds for all clients; in the table of a volume, for its own target. See [CHAP with MD5](sessions.md#chap-with-md5)",
        }
    }
}

/// The heading of these options. Each names it: one of the whole struct would hold for the options behind it too.
const HEADING: &str = "Authentication (CHAP)";

/// The CHAP options of every command that logs in to a target, or lets others log in.
#[derive(Args, Clone, Debug, Default)]
pub struct ChapArgs {
    #[arg(help_heading = HEADING, long, value_name = "NAME", help = const { option(CHAP, "chap_user").help })]
    chap_user: Option<String>,
    #[arg(help_heading = HEADING, long, value_name = "PATH", help = const { option(CHAP, "chap_secret_file").help })]
    #[arg(requires = "chap_user")]
    chap_secret_file: Option<PathBuf>,
    #[arg(help_heading = HEADING, long, value_name = "VAR", help = const { option(CHAP, "chap_secret_env").help })]
    #[arg(requires = "chap_user", conflicts_with = "chap_secret_file")]
    chap_secret_env: Option<String>,
    #[arg(help_heading = HEADING, long, value_name = "NAME", help = const { option(CHAP, "chap_mutual_user").help })]
    #[arg(requires = "chap_user")]
    chap_mutual_user: Option<String>,
    #[arg(help_heading = HEADING, long, value_name = "PATH", help = const { option(CHAP, "chap_mutual_secret_file").help })]
    #[arg(requires = "chap_mutual_user")]
    chap_mutual_secret_file: Option<PathBuf>,
    #[arg(help_heading = HEADING, long, value_name = "VAR", help = const { option(CHAP, "chap_mutual_secret_env").help })]
    #[arg(requires = "chap_mutual_user", conflicts_with = "chap_mutual_secret_file")]
    chap_mutual_secret_env: Option<String>,
    #[arg(help_heading = HEADING, long, help = const { option(WEAK, "chap_weak").help })]
    chap_weak: bool,
}

impl ChapArgs {
    /// What they say, if they say anything.
    #[must_use]
    pub fn chap(&self) -> Option<Chap> {
        let mutual = self.chap_mutual_user.clone().map(|name| Login {
            name,
            secret: source(&self.chap_mutual_secret_file, &self.chap_mutual_secret_env),
        });
        let name = self.chap_user.clone()?;
        let secret = source(&self.chap_secret_file, &self.chap_secret_env);
        Some(Chap { initiator: Login { name, secret }, target: mutual })
    }

    /// Whether weak algorithms are allowed.
    #[must_use]
    pub const fn is_weak(&self) -> bool {
        self.chap_weak
    }
}

/// The algorithms that may be used, best first; the weak ones only where someone says so.
#[must_use]
pub fn algorithms(weak: bool) -> Vec<Algorithm> {
    if weak { Algorithm::ALL.to_vec() } else { Algorithm::STRONG.to_vec() }
}

fn source(file: &Option<PathBuf>, env: &Option<String>) -> Source {
    match (file, env) {
        (Some(path), _) => Source::File(path.clone()),
        (_, Some(name)) => Source::Env(name.clone()),
        (None, None) => Source::Prompt,
    }
}

/// Who proves what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chap {
    /// What the initiator proves.
    pub initiator: Login,
    /// What the target proves in turn, if it must.
    pub target: Option<Login>,
}

/// A name, and where its secret comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The name, which is sent.
    pub name: String,
    /// The secret, which is not.
    pub secret: Source,
}

impl Chap {
    /// Reads the secrets. It blocks, and may ask at the terminal.
    pub fn account(&self) -> Outcome<Account> {
        let initiator = self.initiator.read("")?;
        match &self.target {
            None => Ok(Account::one_way(initiator)),
            Some(target) => Account::mutual(initiator, target.read("mutual-")?)
                .or_fail(|| format!("cannot use the secrets of {}", self.initiator.name)),
        }
    }
}

impl Login {
    fn read(&self, option: &str) -> Outcome<Credentials> {
        let what = format!("CHAP secret of {}", self.name);
        if let Source::File(path) = &self.secret
            && let Ok(found) = path.metadata()
        {
            refuse_shared(&found, path).map_err(|failure| failure.within(&what))?;
        }
        let read = self.secret.read(&what).map_err(|failure| match self.secret {
            Source::Prompt => failure.hint(format!(
                "give it with --chap-{option}secret-file or --chap-{option}secret-env instead"
            )),
            _ => failure,
        })?;
        let secret = Secret::new(read.expose()).map_err(|why| {
            Failure::new(format!("cannot use the {what}"))
                .because(why)
                .hint("`(umask 077; openssl rand -hex 16 > FILE)` makes a good one")
        })?;
        secret.keep_with(keep);
        Ok(Credentials { name: self.name.clone(), secret })
    }
}
