//! A medium that can be taken out: who forbids it, taking it out, and putting it in again. The volume stays
//! open all the while; an ejected medium is one that nobody is let near.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use proto::scsi::Sense;
use proto::scsi::readiness::Readiness;
use proto::scsi::sense::Additional;
use proto::scsi::unit::optical::events::MediaEvent;

use super::super::Nexus;
use super::super::fault::Fault;
use super::Core;

/// Who forbids the removal of the medium (SBC-3, 5.10): it may be taken out when nobody does.
#[derive(Debug, Default)]
pub(super) struct RemovalPrevention(Mutex<BTreeSet<Nexus>>);

impl RemovalPrevention {
    pub(super) fn all(&self) -> MutexGuard<'_, BTreeSet<Nexus>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// Forbids the removal for a nexus, or allows it.
    pub(super) fn prevent(&self, nexus: Nexus, prevent: bool) {
        self.change_prevention(|all| {
            if prevent {
                all.insert(nexus)
            } else {
                all.remove(&nexus)
            };
        });
    }

    /// A reset ends what was forbidden.
    pub(super) fn allow_all(&self) {
        self.change_prevention(BTreeSet::clear);
    }

    /// Changes who forbids it, and what the mode pages say of that.
    fn change_prevention(&self, change: impl FnOnce(&mut BTreeSet<Nexus>)) {
        let mut preventing = self.state.preventing.all();
        let before = preventing.is_empty();
        change(&mut preventing);
        if preventing.is_empty() != before {
            self.change(|_, switches| switches.locked = before);
        }
    }

    /// Takes the medium out. Commands under way still reach it; none that comes after the answer does.
    pub(super) async fn eject(&self, flush: bool) -> Result<Vec<Bytes>, Fault> {
        if flush {
            self.flush().await?;
        }
        self.unless_prevented(|core| {
            if !core.switches().readiness.lacks_medium() {
                core.media_events().establish(MediaEvent::MediaRemoval);
            }
            core.ready(core.unit.medium().readiness_ejected());
        })
    }

    /// Puts the medium in, which every other initiator must be told of: it cannot know that it is the same.
    pub(super) fn load(&self, nexus: Nexus) -> Result<Vec<Bytes>, Fault> {
        self.unless_prevented(|core| {
            let readiness = core.unit.medium().readiness();
            if core.switches().readiness == readiness {
                return;
            }
            core.ready(readiness);
            if readiness.lacks_medium() {
                return;
            }
            core.media_events().establish(MediaEvent::NewMedia);
            core.attend(|attentions| {
                attentions.establish(Additional::MEDIUM_MAY_HAVE_CHANGED, Some(nexus));
            });
        })
    }

    /// Does `change` unless an initiator forbids it; none can begin to while it is done.
    fn unless_prevented(&self, change: impl FnOnce(&Self)) -> Result<Vec<Bytes>, Fault> {
        let preventing = self.state.preventing.all();
        if !preventing.is_empty() {
            return Err(Sense::illegal(Additional::MEDIUM_REMOVAL_PREVENTED).into());
        }
        change(self);
        Ok(Vec::new())
    }

    fn ready(&self, readiness: Readiness) {
        self.change(|_, switches| switches.readiness = readiness);
    }
}

#[cfg(test)]
mod tests {
    use proto::scsi::sense::Key;
    use volume::store::memory::Memory;

    use super::super::super::LogicalUnit as _;
    use super::super::super::test_initiator::TestInitiator;
    use super::super::tests::*;
    use super::super::{Disk, Options};
    use super::*;

    const EJECT: [u8; 6] = [0x1B, 0, 0, 0, 2, 0];
    const LOAD: [u8; 6] = [0x1B, 0, 0, 0, 3, 0];
    const PREVENT: [u8; 6] = [0x1E, 0, 0, 0, 1, 0];
    const ALLOW: [u8; 6] = [0x1E, 0, 0, 0, 0, 0];
    const PREVENTED: Sense = Sense::illegal(Additional::MEDIUM_REMOVAL_PREVENTED);
    const ABSENT: Sense = Sense::new(Key::NotReady, Additional::MEDIUM_NOT_PRESENT);

    /// A removable disk and two initiators that have been told of the power on.
    fn removable() -> Disk {
        let options = Options { removable: true, ..Options::default() };
        let disk = disk(Memory::new(SIZE, BLOCK), options);
        for (n, nexus) in [(1, ME), (2, OTHER)] {
            disk.attach(nexus, TestInitiator::new(n));
            assert_eq!(run_as(&disk, nexus, TEST_UNIT_READY, vec![]).data.len(), 0);
        }
        disk
    }

    fn outcome(disk: &Disk, nexus: Nexus, cdb: &[u8]) -> Result<(), Sense> {
        let response = run_as(disk, nexus, block(cdb), vec![]);
        if response.sense.is_empty() { Ok(()) } else { Err(sense(&response)) }
    }

    #[test]
    fn ejected_medium_is_there_again_when_it_is_loaded() {
        let disk = removable();
        good(write(&disk, 0, pattern(1, 7)));
        assert_eq!(outcome(&disk, ME, &EJECT), Ok(()));
        assert_eq!(outcome(&disk, ME, &EJECT), Ok(()), "there is nothing left to take out");
        for nexus in [ME, OTHER] {
            assert_eq!(outcome(&disk, nexus, &TEST_UNIT_READY), Err(ABSENT));
        }
        let asked = Sense::parse(&good(run_block(&disk, block(&[3, 0, 0, 0, 252]), vec![])));
        assert_eq!(asked, Some(ABSENT));
        disk.reset();
        let reset = Sense::new(Key::UnitAttention, Additional::BUS_DEVICE_RESET);
        for nexus in [ME, OTHER] {
            assert_eq!(outcome(&disk, nexus, &TEST_UNIT_READY), Err(reset));
            assert_eq!(outcome(&disk, nexus, &TEST_UNIT_READY), Err(ABSENT));
        }
        assert_eq!(outcome(&disk, ME, &LOAD), Ok(()));
        assert_eq!(outcome(&disk, ME, &LOAD), Ok(()));
        let changed = Sense::new(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED);
        assert_eq!(outcome(&disk, OTHER, &TEST_UNIT_READY), Err(changed));
        assert_eq!(outcome(&disk, OTHER, &TEST_UNIT_READY), Ok(()));
        assert_eq!(read(&disk, 0, 1), pattern(1, 7));
    }

    #[test]
    fn each_initiator_can_keep_the_medium_in_while_it_is_there() {
        for (name, end) in [
            ("allow", (|disk| assert_eq!(outcome(disk, OTHER, &ALLOW), Ok(()))) as fn(&Disk)),
            ("nexus loss", |disk| disk.detach(OTHER)),
            ("reset", |disk| {
                disk.reset();
                assert!(outcome(disk, ME, &TEST_UNIT_READY).is_err());
            }),
        ] {
            let disk = removable();
            assert_eq!(outcome(&disk, OTHER, &PREVENT), Ok(()));
            assert_eq!(outcome(&disk, ME, &EJECT), Err(PREVENTED), "{name}");
            assert_eq!(outcome(&disk, ME, &ALLOW), Ok(()), "not for the other");
            assert_eq!(outcome(&disk, ME, &EJECT), Err(PREVENTED), "{name}");
            assert_eq!(outcome(&disk, ME, &TEST_UNIT_READY), Ok(()));
            end(&disk);
            assert_eq!(outcome(&disk, ME, &EJECT), Ok(()), "{name}");
            assert_eq!(outcome(&disk, ME, &PREVENT), Ok(()), "an empty drive can be kept empty");
            assert_eq!(outcome(&disk, ME, &LOAD), Err(PREVENTED));
        }
    }
}
