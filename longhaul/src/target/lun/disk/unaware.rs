//! Initiators that have been told of another medium, or of a reset, and have not looked at the drive since.
//!
//! Many commands may be under way when a medium is exchanged. A unit attention fails the first of them; those behind it were
//! sent before their initiator could know of it, and would write to a medium that they were not meant for. So they are
//! refused until the initiator has asked how the drive is.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use proto::scsi::Sense;
use proto::scsi::pass_through::{DeviceClass, MediumUse};
use proto::scsi::sense::{Additional, Key};

use super::super::Nexus;

/// See the module.
#[derive(Default)]
pub(super) struct Unaware {
    any: AtomicBool,
    who: Mutex<BTreeSet<Nexus>>,
}

impl Unaware {
    /// `nexus` was told this, in answer to a command of a drive of that class.
    pub(super) fn told(&self, nexus: Nexus, class: DeviceClass, opcode: u8, attention: &Sense) {
        // Who asks how the drive is waits for the answer.
        if is_news(class, attention) && MediumUse::of(class, opcode) != MediumUse::Finds {
            self.add(nexus);
        }
    }

    /// `nexus` has to look at the drive.
    pub(super) fn add(&self, nexus: Nexus) {
        self.who().insert(nexus);
        self.any.store(true, Ordering::Release);
    }

    /// Whether `nexus` may have this done to the medium in a drive of that class.
    pub(super) fn check(&self, nexus: Nexus, class: DeviceClass, opcode: u8) -> Result<(), Sense> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        match MediumUse::of(class, opcode) {
            MediumUse::Finds => self.forget(nexus),
            MediumUse::Relies if self.who().contains(&nexus) => {
                let additional = match class {
                    DeviceClass::Tape => Additional::SEQUENTIAL_POSITIONING_ERROR,
                    _ => Additional::MEDIUM_MAY_HAVE_CHANGED,
                };
                return Err(Sense::new(Key::AbortedCommand, additional));
            }
            MediumUse::Relies | MediumUse::None => {}
        }
        Ok(())
    }

    /// `nexus` knows, or is gone.
    pub(super) fn forget(&self, nexus: Nexus) {
        let mut who = self.who();
        who.remove(&nexus);
        self.any.store(!who.is_empty(), Ordering::Release);
    }

    fn who(&self) -> MutexGuard<'_, BTreeSet<Nexus>> {
        self.who.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a unit attention says that the medium in a drive of that type, or the place of its head, may be another one than
/// an initiator believes that has commands under way.
fn is_news(class: DeviceClass, attention: &Sense) -> bool {
    let Sense { key, additional, .. } = *attention;
    let of_any = [Additional::MEDIUM_MAY_HAVE_CHANGED.code];
    let of_tape = [Additional::POWER_ON_OR_RESET.code, Additional::COMMANDS_CLEARED.code];
    // A new session has nothing under way.
    let is_login = additional == Additional::POWER_ON_OR_RESET;
    let is_of_tape = class == DeviceClass::Tape && of_tape.contains(&additional.code) && !is_login;
    key == Key::UnitAttention && (is_of_tape || of_any.contains(&additional.code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_refused_until_the_initiator_has_looked() {
        let (me, other) = (Nexus(1), Nexus(2));
        for class in [DeviceClass::Tape, DeviceClass::Optical] {
            let write = if class == DeviceClass::Tape { 0x0A } else { 0x2A };
            let unaware = Unaware::default();
            let check = |nexus, opcode| unaware.check(nexus, class, opcode).is_ok();
            let told_by = |opcode, additional| {
                let news = Sense::new(Key::UnitAttention, additional);
                unaware.told(me, class, opcode, &news);
            };
            let told = |additional| told_by(write, additional);
            told(Additional::POWER_ON_OR_RESET);
            told(Additional::MODE_PARAMETERS_CHANGED);
            assert!(check(me, write));
            let of_tape = [Additional::BUS_DEVICE_RESET, Additional::COMMANDS_CLEARED];
            let of_tape = of_tape.into_iter().filter(|_| class == DeviceClass::Tape);
            for news in [Additional::MEDIUM_MAY_HAVE_CHANGED].into_iter().chain(of_tape) {
                told(news);
                assert!(!check(me, write) && !check(me, write) && check(other, write));
                assert!(
                    check(me, 0x03) && !check(me, write),
                    "REQUEST SENSE asks of something else"
                );
                assert!(check(me, 0x00) && check(me, write));
            }
            told_by(0x00, Additional::MEDIUM_MAY_HAVE_CHANGED);
            assert!(check(me, write), "it has asked");
            told(Additional::MEDIUM_MAY_HAVE_CHANGED);
            assert!(!check(me, write));
            unaware.forget(me);
            assert!(check(me, write));
        }
        let (unaware, disk) = (Unaware::default(), DeviceClass::Disk);
        let news = Sense::new(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED);
        unaware.told(me, disk, 0x2A, &news);
        assert!(unaware.check(me, disk, 0x2A).is_ok());
    }
}
