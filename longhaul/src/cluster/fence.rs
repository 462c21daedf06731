//! What sees to it that another gateway touches nothing any more: a program that ends it, or cuts it off, and the storage that
//! takes nothing from it.

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use proto::cluster::{GatewayName, PreviousHolder};
use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::store::Blocklist;
use crate::printable::Shown as _;

/// How long it may take: power switches are slow.
const FENCED_WITHIN: Duration = Duration::from_secs(60);

/// What a gateway has for that.
#[derive(Clone, Debug)]
pub(super) struct Fences {
    /// Who it is: nobody runs the program for himself.
    pub(super) me: GatewayName,
    pub(super) program: Option<PathBuf>,
    pub(super) blocklist: Option<Arc<dyn Blocklist>>,
}

impl Fences {
    /// Whether `former` can touch nothing any more.
    pub(super) async fn fence(self, former: PreviousHolder) -> bool {
        let PreviousHolder { gateway, address, .. } = former;
        if let Some(program) = self.program.filter(|_| gateway != self.me)
            && !run(&program, &gateway).await
        {
            return false;
        }
        match (self.blocklist, address) {
            (Some(blocklist), Some(address)) => shut_out(blocklist, &gateway, address).await,
            _ => true,
        }
    }
}

/// Has the storage take nothing more from `address`; whether it says that it does so.
async fn shut_out(blocklist: Arc<dyn Blocklist>, gateway: &GatewayName, address: String) -> bool {
    let of = address.clone();
    let asked = timeout(FENCED_WITHIN, spawn_blocking(move || blocklist.shut_out(&of))).await;
    let done = asked.map_err(io::Error::from).and_then(|done| done.map_err(io::Error::other));
    match done.flatten() {
        Ok(()) => {
            tracing::warn!(%gateway, address, "the storage takes nothing from the gateway any more: it gave no sign of life");
            true
        }
        Err(why) => {
            tracing::error!(%gateway, address, %why, "the gateway is not fenced: its volumes are not taken over");
            false
        }
    }
}

/// Runs `program` with the name of the gateway; whether it says that it is done.
async fn run(program: &Path, gateway: &GatewayName) -> bool {
    let mut command = Command::new(program);
    command.arg(gateway.as_str()).stdin(Stdio::null()).stdout(log()).kill_on_drop(true);
    let program = program.shown();
    match timeout(FENCED_WITHIN, command.status()).await {
        Ok(Ok(status)) if status.success() => {
            tracing::warn!(%gateway, "the gateway is fenced: it gave no sign of life");
            true
        }
        Ok(Ok(status)) => {
            tracing::error!(%gateway, %program, %status, "the gateway is not fenced: its volumes are not taken over");
            false
        }
        Ok(Err(why)) => {
            tracing::error!(%gateway, %program, %why, "the program that fences cannot be run");
            false
        }
        Err(_) => {
            tracing::error!(%gateway, %program, "fencing takes too long: the program was ended");
            false
        }
    }
}

/// What it prints goes where the log goes. Whoever reads what the server prints may be gone, and the program must not end by
/// that.
fn log() -> Stdio {
    let log = io::stderr().as_fd().try_clone_to_owned();
    log.map_or_else(|_| Stdio::null(), Stdio::from)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn fence_is_done_only_if_the_program_says_so() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("fence");
        let gateway: GatewayName = "b".parse().unwrap();
        assert!(!run(&path, &gateway).await, "there is none");
        for (body, done) in [("echo told; test \"$1\" = b", true), ("exit 3", false)] {
            fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(run(&path, &gateway).await, done, "{body}");
        }
    }
}
