//! The service manager that started this program, if one did: systemd, or one that speaks like it
//! (sd_notify(3)). It is told how the service is, and asks for a sign of life if it is to watch it.

use sd_notify::NotifyState::{self, MonotonicUsec, Ready, Reloading, Status, Stopping, Watchdog};

use crate::front::iscsi::AcceptProbe;

/// It can be used, or can be again; `status` is for people.
pub fn ready(status: &str) {
    tell(&[Ready, Status(status)]);
}

/// The file is being read again. The manager wants to know since when, to tell this from an earlier time.
pub fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
    tell(&[Reloading, MonotonicUsec(micros)]);
}

/// It is ending.
pub fn stopping() {
    tell(&[Stopping, Status("Waiting for initiators to log out")]);
}

/// Gives signs of life, twice as often as the manager wants to have one, as long as those who take new
/// connections do. Returns at once if nobody watches.
pub async fn watchdog(accept_probe: AcceptProbe) {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else {
        return;
    };
    while accept_probe.is_accepting().await {
        tell(&[Watchdog]);
        tokio::time::sleep(limit / 2).await;
    }
}

/// That nobody listens is no failure of the service.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(why) = sd_notify::notify(states) {
        tracing::warn!(%why, "cannot tell the service manager");
    }
}
