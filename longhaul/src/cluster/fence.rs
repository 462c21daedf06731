//! What sees to it that another gateway touches nothing any more: a program that ends it, or cuts it off, and the storage that
//! takes nothing from it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proto::cluster::{GatewayName, PreviousHolder};
use proto::time::Time;
use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::now;
use super::store::Blocklist;
use crate::config::ClusterOptions;
use crate::printable::Shown as _;

/// How long it may take: power switches are slow.
const FENCED_WITHIN: Duration = Duration::from_secs(60);

/// What a gateway has for that. The program ends whole gateways, the storage shuts out the address of one group.
#[derive(Clone, Debug)]
pub(super) struct Fences {
    /// Who it is: nobody runs the program for himself.
    me: GatewayName,
    lease: Duration,
    program: Option<PathBuf>,
    ended: Arc<Mutex<BTreeMap<GatewayName, LastEnd>>>,
    blocklist: Option<Arc<dyn Blocklist>>,
}

/// The life of a gateway that was ended last, and when that was done; locked while it is being ended.
type LastEnd = Arc<tokio::sync::Mutex<Option<(u64, Time)>>>;

impl Fences {
    pub(super) fn new(options: &ClusterOptions) -> Self {
        let (me, program) = (options.gateway.clone(), options.fence.clone());
        Self { me, lease: options.lease, program, ended: Arc::default(), blocklist: None }
    }

    /// The same for a group of volumes.
    pub(super) fn with(&self, blocklist: Option<Arc<dyn Blocklist>>) -> Self {
        Self { blocklist, ..self.clone() }
    }

    pub(super) fn blocklist(&self) -> Option<Arc<dyn Blocklist>> {
        self.blocklist.clone()
    }

    /// Whether `former` can touch nothing any more.
    pub(super) async fn fence(self, former: PreviousHolder) -> bool {
        if let Some(program) = self.program.clone().filter(|_| former.gateway != self.me)
            && !self.end(&program, &former).await
        {
            return false;
        }
        let PreviousHolder { gateway, address, .. } = former;
        match (self.blocklist, address) {
            (Some(blocklist), Some(address)) => shut_out(blocklist, &gateway, address).await,
            _ => true,
        }
    }

    /// Has a gateway ended, unless that was done for another group: it may run again by now, as a new life of it, which is not
    /// the one that held the lease.
    async fn end(&self, program: &Path, former: &PreviousHolder) -> bool {
        let gateway = &former.gateway;
        let last = {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(ended.entry(gateway.clone()).or_default())
        };
        let mut last = last.lock().await;
        // A sign of life that was read within a lease after the end was given before it. One that is read later says that
        // the gateway was cut off, and is back.
        let is_it = |(incarnation, done): &(u64, Time)| {
            *incarnation == former.incarnation && former.seen < *done + self.lease
        };
        if last.as_ref().is_some_and(is_it) {
            return true;
        }
        let is_ended = run(program, gateway).await;
        if is_ended {
            *last = Some((former.incarnation, now()));
        }
        is_ended
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

    /// The fence of one group ends a gateway with all of its groups; another life of it may be there when the lease of another
    /// group is over.
    #[tokio::test]
    async fn life_of_a_gateway_is_ended_once_for_all_groups() {
        let home = tempfile::tempdir().unwrap();
        let (path, told) = (home.path().join("fence"), home.path().join("told"));
        fs::write(&path, format!("#!/bin/sh\necho $1 >>{}\n", told.display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let fences = Fences {
            me: "a".parse().unwrap(),
            lease: Duration::from_secs(5),
            program: Some(path),
            ended: Arc::default(),
            blocklist: None,
        };
        let former = |incarnation, seen| PreviousHolder {
            gateway: "b".parse().unwrap(),
            incarnation,
            address: None,
            seen,
        };
        let times = || fs::read_to_string(&told).unwrap().lines().count();
        let before = now();
        // Two groups of one life, at once; then one whose last sign of life was read late.
        let both = [former(1, before), former(1, before)].map(|it| fences.with(None).fence(it));
        assert_eq!(futures_util::future::join_all(both).await, [true, true]);
        assert!(fences.with(None).fence(former(1, now())).await);
        assert_eq!(times(), 1);
        // It was cut off, and is back; then another life of it.
        assert!(fences.with(None).fence(former(1, now() + 2 * fences.lease)).await);
        assert_eq!(times(), 2);
        assert!(fences.with(None).fence(former(2, before)).await);
        assert_eq!(times(), 3);
    }

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
