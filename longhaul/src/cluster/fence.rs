//! The program that sees to it that another gateway touches nothing any more: it ends it, or cuts it off.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use proto::cluster::GatewayName;
use tokio::process::Command;
use tokio::time::timeout;

use crate::printable::Shown as _;

/// How long it may take: power switches are slow.
const FENCED_WITHIN: Duration = Duration::from_secs(60);

/// Runs `program` with the name of the gateway; whether it says that it is done.
pub(super) async fn fence(program: &Path, gateway: &GatewayName) -> bool {
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
        assert!(!fence(&path, &gateway).await, "there is none");
        for (body, done) in [("echo told; test \"$1\" = b", true), ("exit 3", false)] {
            fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(fence(&path, &gateway).await, done, "{body}");
        }
    }
}
