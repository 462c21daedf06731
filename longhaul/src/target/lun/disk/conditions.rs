//! The condition of a unit: the switches of its mode pages, whether it is ready, and what initiators are to be
//! told of it.
//!
//! Commands read it without a lock: the switches are one atomic word, and another atomic tells whether any
//! initiator has a unit attention to be told. All changes are made under one lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use proto::scsi::attention::Attentions;
use proto::scsi::mode::Switches;

use super::super::Nexus;

/// See the module.
pub(super) struct Conditions {
    /// [`Switches`] in their word.
    switches: AtomicU64,
    /// Whether anything is pending in `attentions`.
    pending: AtomicBool,
    attentions: Mutex<Attentions<Nexus>>,
}

impl Conditions {
    pub(super) fn new(switches: Switches) -> Self {
        Self {
            switches: AtomicU64::new(switches.to_bits()),
            pending: AtomicBool::new(false),
            attentions: Mutex::default(),
        }
    }

    pub(super) fn switches(&self) -> Switches {
        Switches::from_bits(self.switches.load(Ordering::Acquire))
    }

    /// Whether an initiator has something to be told.
    pub(super) fn has_attention(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Changes attentions and switches together.
    pub(super) fn change<T>(
        &self,
        work: impl FnOnce(&mut Attentions<Nexus>, &mut Switches) -> T,
    ) -> T {
        let mut attentions = self.attentions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut switches = self.switches();
        let done = work(&mut attentions, &mut switches);
        self.switches.store(switches.to_bits(), Ordering::Release);
        self.pending.store(attentions.any(), Ordering::Release);
        done
    }
}

#[cfg(test)]
mod tests {
    use proto::scsi::readiness::Readiness;
    use proto::scsi::sense::Additional;

    use super::*;

    #[test]
    fn change_is_seen_without_the_lock() {
        let conditions = Conditions::new(Switches::from_bits(0));
        let stopped = Switches { readiness: Readiness::Stopped, ..conditions.switches() };
        conditions.change(|attentions, switches| {
            attentions.attach(Nexus(1));
            *switches = stopped;
        });
        assert!(conditions.has_attention() && conditions.switches() == stopped);
        let told = conditions.change(|attentions, _| attentions.take(Nexus(1)));
        assert_eq!(told.unwrap().additional, Additional::POWER_ON_OR_RESET);
        assert!(!conditions.has_attention() && conditions.switches() == stopped);
    }
}
