//! EXTENDED COPY: a disk copies between itself and the other units of its target.
//!
//! A copy does nothing of its own: it reads and writes with READ (16) and WRITE (16), as the initiator that
//! asked for it, in its session. So it reaches exactly the units that initiator reaches, and each of them
//! checks reservations, write protection, readiness and range as ever.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use proto::scsi::copy::{self, List, Progress, SEGMENT_BYTES_MAX, Segment, Target};
use proto::scsi::sense::{Additional, Key};
use proto::scsi::unit::Step;
use proto::scsi::unit::truncate;
use proto::scsi::{Blocks, DeviceType, Parsed, Sense, command};
use tokio::task::yield_now;

use super::super::answer::Abort;
use super::super::fault::Fault;
use super::super::{Nexus, data};
use super::Core;
use super::third_party::CopyHandle;

/// How much is copied at a time.
const CHUNK: u32 = 1 << 20;

/// Outcomes that are kept for one initiator to ask for, at most: it asks for one at a time.
const KEPT_MAX: usize = 8;

/// What a disk needs to copy.
#[derive(Default)]
pub(super) struct Copies {
    kept: Mutex<BTreeMap<(Nexus, u8), Progress>>,
    /// One copy at a time, as the operating parameters say.
    turn: tokio::sync::Mutex<()>,
}

impl Copies {
    /// The outcomes kept for a nexus end with it.
    pub(super) fn forget(&self, nexus: Nexus) {
        self.kept().retain(|(of, _), _| *of != nexus);
    }

    pub(super) fn clear(&self) {
        self.kept().clear();
    }

    fn keep(&self, nexus: Nexus, id: u8, progress: Progress) {
        let mut kept = self.kept();
        let of_nexus: Vec<_> =
            kept.range((nexus, 0)..=(nexus, u8::MAX)).map(|(key, _)| *key).collect();
        if of_nexus.len() >= KEPT_MAX
            && let Some(first) = of_nexus.first()
        {
            kept.remove(first);
        }
        kept.insert((nexus, id), progress);
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<(Nexus, u8), Progress>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// EXTENDED COPY.
    pub(super) async fn copy(
        &self,
        nexus: Nexus,
        list: Vec<Bytes>,
        abort: &Abort,
    ) -> Result<Vec<Bytes>, Fault> {
        let length = data::length(&list);
        let list = List::parse(&data::joined(list, length))?;
        let mut progress = Progress::default();
        // Before it waits for its turn: what ends the tasks of a unit from here on ends this there, too.
        let ends = self.ends(nexus, &list);
        let _turn = abort.unless(self.state.copies.turn.lock()).await?;
        let outcome = copy_all(&ends, &list, &mut progress, abort).await;
        progress.failed = outcome.is_err();
        if let Some(id) = list.keep {
            self.state.copies.keep(nexus, id, progress);
        }
        outcome.map(|()| Vec::new()).map_err(Fault::from)
    }

    /// RECEIVE COPY STATUS: what was kept is told once (SPC-4, 6.25).
    pub(super) fn copy_status(
        &self,
        nexus: Nexus,
        id: u8,
        allocation: u32,
    ) -> Result<Vec<Bytes>, Fault> {
        let progress = self.state.copies.kept().remove(&(nexus, id));
        let progress = progress.ok_or(Sense::invalid_cdb(2, None))?;
        Ok(vec![truncate(copy::status(progress), allocation).into()])
    }

    /// The units that the descriptors of a list name, or why there is none.
    fn ends(&self, nexus: Nexus, list: &List) -> Vec<Result<CopyEnd, Sense>> {
        let end = |target| {
            let unit = self.find(target)?;
            Ok(CopyEnd { handle: unit.state.third_party.begin(nexus), unit, nexus })
        };
        list.targets.iter().map(end).collect()
    }

    /// The unit of this target that a descriptor names.
    fn find(&self, target: &Target) -> Result<Arc<Self>, Sense> {
        let unit = self
            .peers()
            .find(|peer| peer.unit.identity().is_designated(target.header, &target.designator))
            .ok_or(copy::unreachable())?;
        // What may be written to a disc or a tape depends on what is on it.
        if unit.unit.medium().device != DeviceType::Disk || unit.state.passed.is_some() {
            return Err(INCORRECT_DEVICE_TYPE);
        }
        if target.block_size != 0 && target.block_size != unit.unit.block_size() {
            return Err(Sense::illegal(Additional::INVALID_FIELD_IN_PARAMETER_LIST));
        }
        Ok(unit)
    }
}

/// A unit that a copy of `nexus` reads or writes.
struct CopyEnd {
    unit: Arc<Core>,
    nexus: Nexus,
    handle: CopyHandle,
}

async fn copy_all(
    ends: &[Result<CopyEnd, Sense>],
    list: &List,
    progress: &mut Progress,
    abort: &Abort,
) -> Result<(), Sense> {
    for segment in &list.segments {
        let end = |index: u16| match ends.get(usize::from(index)) {
            Some(end) => end.as_ref().map_err(|why| *why),
            None => Err(copy::unreachable()),
        };
        let (source, destination) = (end(segment.source)?, end(segment.destination)?);
        copy_segment(source, destination, *segment, progress, abort).await?;
        progress.segments += 1;
    }
    Ok(())
}

async fn copy_segment(
    source: &CopyEnd,
    destination: &CopyEnd,
    Segment { from, to, .. }: Segment,
    progress: &mut Progress,
    abort: &Abort,
) -> Result<(), Sense> {
    let (from_size, to_size) = (source.unit.unit.block_size(), destination.unit.unit.block_size());
    let bytes = from.bytes(from_size).filter(|bytes| *bytes <= SEGMENT_BYTES_MAX);
    let bytes = bytes.ok_or(aborted())?;
    if !bytes.is_multiple_of(to_size) {
        return Err(NOT_WHOLE_BLOCKS);
    }
    // Both ends must be inside before the first byte is copied.
    source.unit.unit.within(from).map_err(|_| aborted())?;
    let whole = Blocks { lba: to, count: bytes / to_size };
    destination.unit.unit.within(whole).map_err(|_| aborted())?;
    for at in (0..bytes).step_by(CHUNK as usize) {
        abort.check().map_err(|_| aborted())?;
        let len = CHUNK.min(bytes - at);
        let part =
            |lba: u64, size: u32| Blocks { lba: lba + u64::from(at / size), count: len / size };
        let read = command::Command::read(part(from.lba, from_size), from_size);
        let data = source.perform(read.cdb, Vec::new(), abort).await.map_err(third_party)?;
        let write = command::Command::write(part(to, to_size), to_size, false);
        destination.perform(write.cdb, data, abort).await.map_err(third_party)?;
        progress.bytes += len;
        yield_now().await;
    }
    Ok(())
}

impl CopyEnd {
    /// Runs a command as the nexus, whose unit attention stays for its own next command.
    /// It ends early if the copy is aborted, or ended at this unit.
    async fn perform(
        &self,
        cdb: [u8; 16],
        data: Vec<Bytes>,
        abort: &Abort,
    ) -> Result<Vec<Bytes>, Fault> {
        let _inside = self.handle.enter()?;
        let (command, unit) = (Parsed::of(&cdb, DeviceType::Disk), &self.unit);
        unit.state.reserved.check(self.nexus, command.traits.class)?;
        // The copy reads and writes.
        let switches = unit.switches();
        let Step::Medium(op) = unit.unit.plan(&command, switches)? else {
            return Err(aborted().into());
        };
        let data = unit.access_medium(op, data, &abort.and(&self.handle.abort)).await?;
        unit.flush_if_uncached(switches).await.map(|()| data)
    }
}

/// A copy is from disk to disk.
const INCORRECT_DEVICE_TYPE: Sense =
    Sense::new(Key::CopyAborted, Additional::INCORRECT_COPY_TARGET_DEVICE_TYPE);

/// SPC-4, 7.8.17.10: DATA SEGMENT GRANULARITY, here that of the unit that is written.
const NOT_WHOLE_BLOCKS: Sense =
    Sense::new(Key::CopyAborted, Additional::COPY_SEGMENT_GRANULARITY_VIOLATION);

const fn aborted() -> Sense {
    Sense::new(Key::CopyAborted, Additional::NONE)
}

/// A unit refused what the copy asked of it, or failed at it.
fn third_party(fault: Fault) -> Sense {
    tracing::debug!(?fault, "a copy was refused");
    Sense::new(Key::CopyAborted, Additional::THIRD_PARTY_DEVICE_FAILURE)
}

#[cfg(test)]
mod tests;
