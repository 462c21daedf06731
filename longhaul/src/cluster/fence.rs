//! The program that sees to it that another gateway touches nothing any more: it ends it, or cuts it off.

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
    command.arg(gateway.as_str()).stdin(Stdio::null()).kill_on_drop(true);
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
