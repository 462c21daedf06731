//! The option that says which running server is asked.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use crate::chain::Administered;
use crate::control::{self, AskError};
use crate::failure::{Failure, Outcome};
use crate::printable::{Quoted as _, Shown as _};

/// Which running server is asked.
#[derive(Debug, clap::Args)]
pub(super) struct ServerSocket {
    /// The control socket of the server; not needed where only one runs
    #[arg(long, value_name = "PATH", global = true)]
    control: Option<PathBuf>,
    /// It is elsewhere, and asked in a session.
    #[arg(skip)]
    elsewhere: Option<Arc<Administered>>,
}

impl ServerSocket {
    /// The server of a session is meant.
    pub(super) fn set_elsewhere(&mut self, session: Arc<Administered>) -> Outcome {
        if self.control.is_some() {
            return Err(Failure::usage(
                "--control names a server of this machine, and `admin` asks another",
            ));
        }
        self.elsewhere = Some(session);
        Ok(())
    }

    /// What the server answers.
    pub(super) async fn ask(&self, request: &str, patience: Duration) -> Outcome<String> {
        if let Some(session) = &self.elsewhere {
            let answer = timeout(patience, session.ask(request)).await;
            return answer.unwrap_or_else(|_| Err(Failure::new(SILENT)));
        }
        let path = match &self.control {
            Some(path) => path.clone(),
            None => only_one(servers().await)?,
        };
        let answer = control::ask(&path, request, patience).await;
        answer.map_err(|why| match why {
            AskError::Refused(why) => Failure::new(self.naming_it(&why)),
            why => why.into_failure(&path),
        })
    }

    /// What is said of this server, with the option that names it in the commands that are advised, where the user has given
    /// it: without it they would ask another server.
    pub(super) fn naming_it(&self, said: &str) -> String {
        let Some(path) = &self.control else { return said.to_owned() };
        let part = |(number, part): (usize, &str)| match number % 2 == 1 && asks_a_server(part) {
            true => format!("{part} --control {}", path.quoted()),
            false => part.to_owned(),
        };
        // Commands stand between backquotes.
        let parts: Vec<_> = said.split('`').enumerate().map(part).collect();
        parts.join("`")
    }
}

/// Whether it is a command that asks a running server.
fn asks_a_server(command: &str) -> bool {
    const THESE: [&str; 8] =
        ["clients", "cluster", "config", "invite", "media", "reload", "revoke", "status"];
    let mut words = command.split(' ');
    words.next() == Some("longhaul") && words.next().is_some_and(|word| THESE.contains(&word))
}

/// The servers that run here. Where there are several sockets some may be those of other programs, such as NBD servers.
async fn servers() -> Vec<PathBuf> {
    let found = control::servers();
    if found.len() < 2 {
        return found;
    }
    let asked = found.iter().map(|path| control::ask(path, "status", KNOWN_WITHIN));
    let answers = join_all(asked).await;
    let known = found.into_iter().zip(answers);
    let known = known.filter(|(_, answer)| !matches!(answer, Err(AskError::Foreign)));
    known.map(|(path, _)| path).collect()
}

/// How long it may take to learn whether a socket is that of a server. One that does not answer may be one.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

const SILENT: &str =
    "the server does not answer, and whether it has done what it was asked for is not known";

/// The server there is. Of none it is where one would be, which says that there is nobody.
fn only_one(servers: Vec<PathBuf>) -> Outcome<PathBuf> {
    match &servers[..] {
        [] => Ok(Path::new(control::DEFAULT).to_owned()),
        [one] => Ok(one.clone()),
        several => {
            let names: Vec<_> = several.iter().map(|path| path.shown().to_string()).collect();
            Err(Failure::usage("several servers run here, and it is not said which one is meant")
                .because(names.join(", "))
                .hint("--control PATH names one; `longhaul status --control PATH` shows what it serves"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_are_advised_name_the_server_that_was_named() {
        let server = |control: Option<&str>| ServerSocket {
            control: control.map(PathBuf::from),
            elsewhere: None,
        };
        let said = "it is in `a`: `longhaul media eject a` takes it out; `longhaul ls a`";
        assert_eq!(server(None).naming_it(said), said);
        assert_eq!(
            server(Some("run/my server.sock")).naming_it(said),
            "it is in `a`: `longhaul media eject a --control 'run/my server.sock'` takes it out; `longhaul ls a`"
        );
    }

    #[test]
    fn server_that_is_meant_is_the_only_one_or_has_to_be_named() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(only_one(paths(&[])).unwrap(), Path::new(control::DEFAULT));
        assert_eq!(only_one(paths(&["/a"])).unwrap(), Path::new("/a"));
        let why = only_one(paths(&["/a", "/b"])).unwrap_err().to_string();
        assert!(why.contains("/a, /b") && why.contains("--control"), "{why}");
    }
}
