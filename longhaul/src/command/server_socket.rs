//! The option that says which running server is asked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::control;
use crate::failure::{Failure, Outcome};
use crate::printable::Shown as _;

/// Which running server is asked.
#[derive(Debug, clap::Args)]
pub(super) struct ServerSocket {
    /// The control socket of the server; not needed where only one runs
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

impl ServerSocket {
    /// What the server answers.
    pub(super) async fn ask(&self, request: &str, patience: Duration) -> Outcome<String> {
        let path = match &self.control {
            Some(path) => path.clone(),
            None => only_one(control::servers())?,
        };
        let answer = control::ask(&path, request, patience).await;
        answer.map_err(|why| why.into_failure(&path))
    }
}

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
