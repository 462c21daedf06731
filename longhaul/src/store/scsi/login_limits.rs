//! How long a portal may take to log us in again, where the target has others: one of a machine that hangs takes
//! connections and answers nothing, while another portal may work.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::session::Transport;

/// What a portal has at first: a login by a link of half a second takes that long.
const FIRST: Duration = Duration::from_secs(3);

/// The portals that were silent for as long as they had, and how often since they answered last.
#[derive(Debug)]
pub(super) struct LoginLimits<P> {
    /// How long a login may take at most.
    longest: Duration,
    silent: Mutex<Vec<(P, u32)>>,
}

impl<P: Clone + PartialEq> LoginLimits<P> {
    pub(super) const fn new(longest: Duration) -> Self {
        Self { longest, silent: Mutex::new(Vec::new()) }
    }

    /// Logs in at one of the portals of a target. The first link of all has the whole time: nobody tries again.
    pub(super) async fn log_in<T: Transport<Portal = P>>(
        &self,
        transport: &T,
        portal: &P,
        uncertain: Option<&T::Session>,
        is_again: bool,
    ) -> Result<T::Session, T::Error> {
        let has_others = transport.portals().len() > 1;
        let within = if is_again && has_others { self.limit(portal) } else { self.longest };
        let session = transport.log_in(portal, uncertain, within).await;
        self.note(portal, session.as_ref().is_err_and(T::is_silent));
        session
    }

    /// It doubles with each attempt, so that a login by a slow link succeeds too.
    fn limit(&self, portal: &P) -> Duration {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        let times = silent.iter().find(|(one, _)| one == portal).map_or(0, |(_, times)| *times);
        FIRST.saturating_mul(2_u32.saturating_pow(times)).min(self.longest)
    }

    fn note(&self, portal: &P, is_silent: bool) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        match silent.iter_mut().find(|(one, _)| one == portal) {
            _ if !is_silent => silent.retain(|(one, _)| one != portal),
            Some((_, times)) => *times = times.saturating_add(1),
            None => silent.push((portal.clone(), 1)),
        }
    }
}

#[cfg(test)]
mod tests;
