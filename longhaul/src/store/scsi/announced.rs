//! What answers tell of the unit, besides how their commands went.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use proto::scsi::Status;
use proto::scsi::sense::{Additional, Key, Sense};

/// What the unit of a session has told. It is noted before the command that was told of it ends, so that everything
/// answered later finds it noted.
#[derive(Debug, Default)]
pub struct Announced {
    reset: AtomicBool,
    cleared: AtomicBool,
    replaced: AtomicBool,
    preempted: AtomicBool,
    mode_changed: AtomicBool,
    /// The first error of an earlier command.
    deferred: Mutex<Option<Sense>>,
}

impl Announced {
    /// A command has ended so.
    pub(in crate::store) fn note(&self, status: Status, sense: &[u8]) {
        let Some(sense) = Sense::parse(sense).filter(|_| status == Status::CheckCondition) else {
            return;
        };
        if sense.deferred {
            return self.note_deferred(sense);
        }
        if is_reset(&sense) {
            self.reset.store(true, Ordering::Release);
        }
        if is_cleared(&sense) {
            self.cleared.store(true, Ordering::Release);
        }
        if is_replaced(&sense) {
            self.replaced.store(true, Ordering::Release);
        }
        if is_preempted(&sense) {
            self.preempted.store(true, Ordering::Release);
        }
        if sense.key == Key::UnitAttention
            && sense.additional == Additional::MODE_PARAMETERS_CHANGED
        {
            self.mode_changed.store(true, Ordering::Release);
        }
    }

    /// An earlier command has failed, which had ended with GOOD (SPC-4, 4.5.7). One of these keys says that it was
    /// carried out all the same.
    fn note_deferred(&self, sense: Sense) {
        if !matches!(sense.key, Key::NoSense | Key::RecoveredError | Key::Completed) {
            let mut deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
            deferred.get_or_insert(sense);
        }
    }

    /// Whether a unit said that it was reset.
    pub(super) fn was_reset(&self) -> bool {
        self.reset.load(Ordering::Acquire)
    }

    /// Whether a unit said that commands were ended without an answer.
    pub(super) fn was_cleared(&self) -> bool {
        self.cleared.load(Ordering::Acquire)
    }

    /// Whether a unit said that it may hold something else now, or be another one.
    pub(super) fn was_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Whether a unit said that a reservation or a registration of this initiator port was taken away.
    pub(super) fn was_preempted(&self) -> bool {
        self.preempted.load(Ordering::Acquire)
    }

    /// Whether a unit said that another initiator has changed its mode parameters, as by switching the cache.
    pub(super) fn mode_changed(&self) -> bool {
        self.mode_changed.load(Ordering::Acquire)
    }

    /// The first failure of a command that had ended with GOOD.
    pub(super) fn deferred(&self) -> Option<Sense> {
        *self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only events and deferred errors that come from now on count.
    pub(super) fn forget(&self) {
        self.reset.store(false, Ordering::Release);
        self.cleared.store(false, Ordering::Release);
        self.replaced.store(false, Ordering::Release);
        self.mode_changed.store(false, Ordering::Release);
        *self.deferred.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A unit attention that tells of a reset which may have cost the unit what it had not made durable:
/// all of 29h but the loss of the nexus and the changes of transceivers (SPC-4, table for 29h).
fn is_reset(sense: &Sense) -> bool {
    let additional = sense.additional;
    sense.key == Key::UnitAttention && additional.code == 0x29 && additional.qualifier <= 4
}

/// A unit attention that tells of commands which were ended by others, and have no answer where TAS is zero (SAM-5, 5.3.1):
/// all COMMANDS CLEARED, and the loss of the nexus.
fn is_cleared(sense: &Sense) -> bool {
    let Additional { code, qualifier } = sense.additional;
    sense.key == Key::UnitAttention
        && (matches!((code, qualifier), (0x29, 7) | (0x2F, _))
            || sense.additional == Additional::SOME_COMMANDS_CLEARED)
}

/// A unit attention that tells of another medium or unit behind the same number: NOT READY TO READY CHANGE, MEDIUM MAY
/// HAVE CHANGED; INQUIRY DATA HAS CHANGED; REPORTED LUNS DATA HAS CHANGED.
fn is_replaced(sense: &Sense) -> bool {
    let Additional { code, qualifier } = sense.additional;
    sense.key == Key::UnitAttention && matches!((code, qualifier), (0x28, 0) | (0x3F, 0x03 | 0x0E))
}

/// A unit attention that tells of the end of reservations or registrations: RESERVATIONS PREEMPTED and RELEASED,
/// REGISTRATIONS PREEMPTED (SPC-4, 5.13.11).
fn is_preempted(sense: &Sense) -> bool {
    let additional = sense.additional;
    sense.key == Key::UnitAttention
        && additional.code == 0x2a
        && (3..=5).contains(&additional.qualifier)
}

#[cfg(test)]
mod tests {
    use proto::scsi::sense::Format;

    use super::*;

    fn told(key: Key, (code, qualifier): (u8, u8), deferred: bool) -> Announced {
        let sense = Sense { deferred, ..Sense::new(key, Additional { code, qualifier }) };
        let announced = Announced::default();
        announced.note(Status::CheckCondition, &sense.emit(Format::Fixed));
        announced
    }

    /// A deferred unit attention, or abort, is of an earlier command too.
    #[test]
    fn deferred_error_is_a_failed_command_unless_that_was_carried_out() {
        for (key, failed) in [
            (Key::MediumError, true),
            (Key::AbortedCommand, true),
            (Key::UnitAttention, true),
            (Key::NotReady, true),
            (Key::RecoveredError, false),
            (Key::NoSense, false),
        ] {
            let announced = told(key, (0x0C, 0), true);
            assert_eq!(announced.deferred().is_some(), failed, "{key:?}");
            announced.forget();
            assert_eq!(announced.deferred(), None);
            assert_eq!(told(key, (0x0C, 0), false).deferred(), None, "it is of the command itself");
        }
    }

    #[test]
    fn commands_that_were_cleared_and_what_was_exchanged_are_told() {
        for (code, cleared, replaced) in [
            ((0x29, 7), true, false),
            ((0x2F, 0), true, false),
            ((0x2F, 1), true, false),
            ((0x2F, 2), true, false),
            ((0x47, 0x7F), true, false),
            ((0x28, 0), false, true),
            ((0x28, 1), false, false),
            ((0x3F, 0x03), false, true),
            ((0x3F, 0x0E), false, true),
            ((0x3F, 0x01), false, false),
            ((0x29, 0), false, false),
            ((0x2A, 9), false, false),
        ] {
            let announced = told(Key::UnitAttention, code, false);
            let found = (announced.was_cleared(), announced.was_replaced());
            assert_eq!(found, (cleared, replaced), "{code:02x?}");
            announced.forget();
            assert_eq!((announced.was_cleared(), announced.was_replaced()), (false, false));
            let aborted = told(Key::AbortedCommand, code, false);
            assert!(!aborted.was_cleared() && !aborted.was_replaced());
        }
    }

    #[test]
    fn reset_is_what_may_have_emptied_the_cache() {
        for (code, reset, preempted) in [
            ((0x29, 0), true, false),
            ((0x29, 4), true, false),
            ((0x29, 7), false, false),
            ((0x2a, 1), false, false),
            ((0x2a, 3), false, true),
            ((0x2a, 5), false, true),
        ] {
            let announced = told(Key::UnitAttention, code, false);
            assert_eq!((announced.was_reset(), announced.was_preempted()), (reset, preempted));
            assert_eq!(announced.mode_changed(), code == (0x2a, 1));
        }
    }
}
