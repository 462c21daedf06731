//! The option that says which running server is asked.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::chain::Administered;
use crate::control;
use crate::failure::{Failure, Outcome};
use crate::printable::Shown as _;

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
            None => only_one(control::servers())?,
        };
        let answer = control::ask(&path, request, patience).await;
        answer.map_err(|why| why.into_failure(&path))
    }
}

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
    fn server_that_is_meant_is_the_only_one_or_has_to_be_named() {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(only_one(paths(&[])).unwrap(), Path::new(control::DEFAULT));
        assert_eq!(only_one(paths(&["/a"])).unwrap(), Path::new("/a"));
        let why = only_one(paths(&["/a", "/b"])).unwrap_err().to_string();
        assert!(why.contains("/a, /b") && why.contains("--control"), "{why}");
    }
}
