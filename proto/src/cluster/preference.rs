//! Whether a gateway asks for the lease because it has more weight than the holder: once in its life, and not against somebody
//! who has moved the lease.

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
    /// Whoever holds the lease is the right one, until it fails.
    Satisfied,
    /// It asks.
    Asking,
}

impl Preference {
    pub(super) const fn new(weight: u16, now: Time) -> Self {
        if weight > 0 { Self::Settling(now) } else { Self::None }
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

    /// Whether the others must be known that run: it takes a while until that is seen.
    pub(super) fn is_due_soon(self, now: Time, lease: Duration) -> bool {
        matches!(self, Self::Settling(since) if now - since >= lease * (SETTLED_LEASES - 1))
    }

    /// If it is time: asks from now on, unless the holder is the right one, or somebody else is to ask.
    pub(super) fn consider(&mut self, now: Time, lease: Duration, is_right: bool) {
        if let Self::Settling(since) = *self
            && now - since >= lease * SETTLED_LEASES
        {
            *self = if is_right { Self::Satisfied } else { Self::Asking };
        }
    }
}
