//! Whether a gateway asks for the lease because it is to be active here rather than elsewhere: once in its life, and not
//! against somebody who has moved the lease.

use std::time::Duration;

use super::record::{GatewayName, Record};
use crate::time::Time;

/// For how many leases a gateway has run, and another one held the lease, when it asks.
const SETTLED_LEASES: u32 = 3;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preference {
    /// There is none, or it has had its turn.
    None,
    /// Nothing has changed hands since then.
    Settling(Time),
    /// It asks.
    Asking,
}

impl Preference {
    pub(super) const fn new(is_preferred: bool, now: Time) -> Self {
        if is_preferred { Self::Settling(now) } else { Self::None }
    }

    pub(super) fn is_asking(self) -> bool {
        self == Self::Asking
    }

    /// The record was read, for the first time or after the record `before`. A lease that changes hands while its holder
    /// gives signs of life is given: somebody has moved it, and is not to be overruled.
    pub(super) fn see(
        &mut self,
        now: Time,
        me: &GatewayName,
        (before, found): (&Record, &Record),
        was_silent: bool,
    ) {
        let is_wanted = found.wanted_by.as_ref().is_some_and(|wanted_by| wanted_by != me);
        let has_changed = before.epoch != found.epoch;
        let is_moved = has_changed && before.epoch > 0 && !was_silent;
        if is_wanted || is_moved {
            *self = Self::None;
        } else if has_changed && *self != Self::None {
            *self = Self::Settling(now);
        }
    }

    /// Asks from now on, if it is time.
    pub(super) fn consider(&mut self, now: Time, lease: Duration) {
        if let Self::Settling(since) = *self
            && now - since >= lease * SETTLED_LEASES
        {
            *self = Self::Asking;
        }
    }
}
