//! The tape in a tape drive: what commands do with it, one after the other, and how they say where that ended.

use std::collections::BTreeMap;
use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use proto::scsi::cdb::{Destination, PositionForm, SpaceCode};
use proto::scsi::sense::{Additional, Key};
use proto::scsi::unit::tape::{self, Position, TapeOp, Transfer};
use proto::scsi::unit::truncate;
use proto::scsi::{DeviceType, Residual, Sense, Status};
use tokio::task::yield_now;
use tracing::warn;
use volume::tape::{Moved, OpenError, Place, Read, Tape, TapeError};

use super::super::answer::Abort;
use super::super::fault::{Fault, INTERNAL};
use super::super::{Nexus, Response, data};
use super::{Core, Disk};
use crate::log_limiter::Permit;

/// A block up to this length is copied out of the record it was read with: each that is not keeps all of that, and a place
/// in a list.
const COPIED_MAX: usize = 16 << 10;

/// How much of such blocks is put together.
const PIECE: usize = 64 << 10;

/// The tape in a drive. It is opened by the first command that needs it, and serves one at a time: each begins where the one
/// before has ended.
#[derive(Default)]
pub(super) struct LoadedTape {
    tape: tokio::sync::Mutex<Option<Opened>>,
    /// Where those are who may only read: their commands must not move the head under one who writes.
    readers: Mutex<BTreeMap<Nexus, Place>>,
    /// A block did not fit. A shorter one that was sent behind that must not take its place.
    is_full: AtomicBool,
    /// The log was told that its store is full: each of the commands that follow would tell the same.
    is_full_told: AtomicBool,
}

struct Opened {
    tape: Tape,
    /// An initiator was told that what was written could not be made stable.
    is_told: bool,
}

impl Disk {
    /// Whether the last that was written to a tape had no room in its store.
    #[must_use]
    pub fn is_store_full(&self) -> bool {
        self.core.tape.as_ref().is_some_and(|tape| tape.is_full_told.load(Ordering::Relaxed))
    }
}

impl LoadedTape {
    /// That of a unit of this type, if it has one.
    pub(super) fn of(device: DeviceType) -> Option<Arc<Self>> {
        (device == DeviceType::Tape).then(Arc::default)
    }

    /// Makes stable what was written, unless its initiator knows that this has failed.
    pub(super) async fn settle(&self) -> Result<(), TapeError> {
        match &mut *self.tape.lock().await {
            Some(Opened { tape, is_told: false }) => tape.sync().await,
            _ => Ok(()),
        }
    }

    /// Whether a store that is full is news.
    fn is_full_now(&self) -> bool {
        !self.is_full_told.swap(true, Ordering::Relaxed)
    }

    /// `nexus` is gone.
    pub(super) fn forget(&self, nexus: Nexus) {
        self.readers().remove(&nexus);
    }

    /// Those whose place is not on the tape any more, as it was ended at `end`; they are at its beginning then.
    fn cut(&self, end: Place) -> Vec<Nexus> {
        let mut readers = self.readers();
        let gone = readers.iter().filter(|(_, place)| place.at > end.at).map(|(nexus, _)| *nexus);
        let gone: Vec<_> = gone.collect();
        readers.retain(|_, place| place.at <= end.at);
        gone
    }

    fn readers(&self) -> MutexGuard<'_, BTreeMap<Nexus, Place>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a command on a tape ends: with data, and with what it has to tell beside them.
#[derive(Default)]
pub(super) struct TapeOutcome {
    data: Vec<Bytes>,
    sense: Option<Sense>,
}

impl TapeOutcome {
    pub(super) fn replying(data: Vec<u8>) -> Self {
        Self { data: vec![data.into()], sense: None }
    }

    const fn telling(sense: Sense) -> Self {
        Self { data: Vec::new(), sense: Some(sense) }
    }

    pub(super) fn response(self, core: &Core) -> Response {
        let Self { data, sense } = self;
        let (status, sense) = match sense {
            Some(sense) => (Status::CheckCondition, sense.emit(core.sense_format()).into()),
            None => (Status::Good, Bytes::new()),
        };
        Response { status, data, sense, residual: Residual::None }
    }
}

impl Core {
    /// Does what a command asks for with the tape. A command that waits for another one can be aborted; what it has begun
    /// is done to the end, so that the head is where its blocks are.
    pub(super) async fn work_on_tape(
        self: &Arc<Self>,
        nexus: Nexus,
        op: TapeOp,
        came: Vec<Bytes>,
        abort: &Abort,
    ) -> Result<TapeOutcome, Fault> {
        let loaded = self.tape.as_ref().ok_or(NO_TAPE)?;
        if op == TapeOp::Load {
            return self.load_tape(nexus, loaded, abort).await;
        }
        let _inside = self.enter(abort).await?;
        let mut opened = abort.unless(loaded.tape.lock()).await?;
        let Opened { tape, is_told } = match &mut *opened {
            Some(opened) => opened,
            empty => empty.insert(Opened { tape: self.open_tape().await?, is_told: false }),
        };
        if self.unit.is_for_reader() {
            return self.do_for_reader(nexus, (loaded, tape), op, abort).await;
        }
        match op {
            TapeOp::Write(transfer) if loaded.is_full.load(Ordering::Relaxed) => {
                return Err(tape::overflow(transfer.left(0)).into());
            }
            TapeOp::Write(_) | TapeOp::WriteFilemarks { .. } | TapeOp::ReadPosition { .. } => {}
            // The head is elsewhere then.
            _ => loaded.is_full.store(false, Ordering::Relaxed),
        }
        let outcome = match self.settle_before(op, tape, *is_told).await {
            Ok(()) => self.do_for_writer((loaded, tape), op, came, abort).await,
            Err(fault) => Err(fault),
        };
        *is_told |= matches!(outcome, Err(Fault::Check(_))) && tape.has_failed();
        if op == TapeOp::Unload && outcome.is_ok() {
            // It is loaded at its beginning.
            *opened = None;
            loaded.readers().clear();
        }
        outcome
    }

    /// Does what an initiator asks for that may only read: from where it is.
    async fn do_for_reader(
        self: &Arc<Self>,
        nexus: Nexus,
        (loaded, tape): (&LoadedTape, &mut Tape),
        op: TapeOp,
        abort: &Abort,
    ) -> Result<TapeOutcome, Fault> {
        let place = loaded.readers().get(&nexus).copied();
        let at = AtPlace::new(tape, place.unwrap_or(Place::BEGINNING));
        let outcome = self.do_with_tape(&mut *at.tape, op, Vec::new(), abort).await;
        loaded.readers().insert(nexus, at.tape.place());
        outcome
    }

    /// The same of one that may write. Where it ends the tape before the place of one that reads, that one is told.
    async fn do_for_writer(
        self: &Arc<Self>,
        (loaded, tape): (&LoadedTape, &mut Tape),
        op: TapeOp,
        came: Vec<Bytes>,
        abort: &Abort,
    ) -> Result<TapeOutcome, Fault> {
        let (head, end) = (tape.place(), tape.end());
        let outcome = self.do_with_tape(tape, op, came, abort).await;
        if head != end && tape.end() != end {
            let gone = loaded.cut(head);
            let changed = Additional::MEDIUM_MAY_HAVE_CHANGED;
            self.attend(|attentions| {
                gone.iter().for_each(|nexus| attentions.tell(*nexus, changed));
            });
        }
        outcome
    }

    async fn do_with_tape(
        self: &Arc<Self>,
        tape: &mut Tape,
        op: TapeOp,
        came: Vec<Bytes>,
        abort: &Abort,
    ) -> Result<TapeOutcome, Fault> {
        match op {
            TapeOp::Read(transfer) => self.read_blocks(tape, transfer, abort).await,
            TapeOp::Write(transfer) => self.write_blocks(tape, transfer, came, abort).await,
            TapeOp::WriteFilemarks { count, durable } => {
                self.write_marks(tape, count, durable, abort).await
            }
            TapeOp::ReadPosition { form, allocation } => Ok(position(tape, form, allocation)),
            TapeOp::Unload => self.eject(false).await.map(|_| TapeOutcome::default()),
            TapeOp::Erase { all } => {
                tape.erase(all).await.map_err(|why| self.tape_fault(&why, 0))?;
                Ok(TapeOutcome::default())
            }
            TapeOp::Space { .. } | TapeOp::Locate(_) | TapeOp::Rewind | TapeOp::Load => {
                let moved = move_head(tape, op).await.map_err(|why| self.tape_fault(&why, 0))?;
                Ok(moved.map_or_else(TapeOutcome::default, TapeOutcome::telling))
            }
        }
    }

    async fn load_tape(
        self: &Arc<Self>,
        nexus: Nexus,
        loaded: &LoadedTape,
        abort: &Abort,
    ) -> Result<TapeOutcome, Fault> {
        // It must not be exchanged meanwhile: what this loads is what is in the drive.
        let _inside = abort.unless(self.state.lock.shared()).await?;
        let mut opened = abort.unless(loaded.tape.lock()).await?;
        self.refuse_outdated()?;
        if self.unit.medium().readiness().lacks_medium() {
            return Err(NO_TAPE.into());
        }
        loaded.is_full.store(false, Ordering::Relaxed);
        if let Some(Opened { tape, is_told }) = &mut *opened {
            let settled = self.settle_before(TapeOp::Load, tape, *is_told).await;
            *is_told |= settled.is_err() && tape.has_failed();
            settled?;
            tape.rewind();
        }
        // One that is in the drive already stays there, and need not be allowed out.
        if self.switches().readiness.lacks_medium() {
            self.load(nexus)?;
        }
        Ok(TapeOutcome::default())
    }

    async fn open_tape(&self) -> Result<Tape, Fault> {
        let Ok(new_id) = getrandom::u64() else {
            return Err(INTERNAL.into());
        };
        let opened = Tape::open(Arc::clone(&self.volume), new_id).await;
        opened.map_err(|why| match why {
            OpenError::Volume(error) => self.fault(&error, None),
            why => {
                self.tell_of_tape(&why, "the tape failed");
                Sense::new(Key::MediumError, Additional::INCOMPATIBLE_FORMAT).into()
            }
        })
    }

    /// Makes stable what was written before the head is moved. What fails then are commands that have ended (SSC-4, 4.2.10):
    /// it is told as a deferred error, and the command is not begun.
    /// It is told once: what is there can be read then.
    async fn settle_before(&self, op: TapeOp, tape: &mut Tape, is_told: bool) -> Result<(), Fault> {
        let moves = matches!(
            op,
            TapeOp::Space { .. }
                | TapeOp::Locate(_)
                | TapeOp::Rewind
                | TapeOp::Load
                | TapeOp::Unload
        );
        if !moves || is_told {
            return Ok(());
        }
        tape.sync().await.map_err(|why| match self.tape_fault(&why, 0) {
            Fault::Check(sense) => Sense { deferred: true, information: None, ..sense }.into(),
            status @ Fault::Status(_) => status,
        })
    }

    async fn read_blocks(
        &self,
        tape: &mut Tape,
        transfer: Transfer,
        abort: &Abort,
    ) -> Result<TapeOutcome, Fault> {
        let mut data = Gathered::default();
        let blocks = match transfer.fixed {
            _ if transfer.count == 0 => 0,
            Some(_) => transfer.count,
            None => 1,
        };
        let wanted = transfer.fixed.unwrap_or(transfer.count);
        for done in 0..blocks {
            take_turns(done, abort).await?;
            let sense = match tape.read(wanted).await {
                Ok(Read::Block(block)) if block.len() == wanted as usize => {
                    data.push(block);
                    None
                }
                Ok(Read::Block(block)) => {
                    let sense = transfer.other_length(done, block.len() as u32);
                    if transfer.fixed.is_none() {
                        data.push_part(&block, wanted as usize);
                    }
                    sense
                }
                Ok(Read::Mark) => Some(tape::filemark(transfer.left(done))),
                Ok(Read::EndOfData) => Some(tape::end_of_data(transfer.left(done))),
                Err(why) => match self.tape_fault(&why, transfer.left(done)) {
                    Fault::Check(sense) => Some(sense),
                    status @ Fault::Status(_) => return Err(status),
                },
            };
            if sense.is_some() {
                return Ok(TapeOutcome { data: data.finish(), sense });
            }
        }
        Ok(TapeOutcome { data: data.finish(), sense: None })
    }

    async fn write_blocks(
        &self,
        tape: &mut Tape,
        transfer: Transfer,
        came: Vec<Bytes>,
        abort: &Abort,
    ) -> Result<TapeOutcome, Fault> {
        let mut done = 0;
        for block in blocks(transfer, came) {
            take_turns(done, abort).await?;
            let written = tape.write(&block).await;
            written.map_err(|why| {
                if let (TapeError::Full, Some(loaded)) = (&why, &self.tape) {
                    loaded.is_full.store(true, Ordering::Relaxed);
                }
                self.tape_fault(&why, transfer.left(done))
            })?;
            done += if transfer.fixed.is_some() { 1 } else { transfer.count };
        }
        if transfer.durable {
            tape.sync().await.map_err(|why| self.tape_fault(&why, transfer.left(0)))?;
        }
        if let (Some(loaded), 1..) = (&self.tape, done) {
            loaded.is_full_told.store(false, Ordering::Relaxed);
        }
        Ok(warned(tape, done > 0))
    }

    async fn write_marks(
        &self,
        tape: &mut Tape,
        count: u32,
        durable: bool,
        abort: &Abort,
    ) -> Result<TapeOutcome, Fault> {
        for done in 0..count {
            take_turns(done, abort).await?;
            let left = u64::from(count - done);
            tape.write_mark().await.map_err(|why| self.tape_fault(&why, left))?;
        }
        if durable {
            tape.sync().await.map_err(|why| self.tape_fault(&why, 0))?;
        }
        Ok(warned(tape, count > 0))
    }

    /// What is told of a failure with so much left to do.
    fn tape_fault(&self, error: &TapeError, left: u64) -> Fault {
        let sense = match error {
            TapeError::Full => tape::overflow(left),
            TapeError::Volume(error) if error.kind == volume::Kind::NoSpace => {
                if self.tape.as_ref().is_none_or(|loaded| loaded.is_full_now()) {
                    self.tell_of_tape(error, "the store of the tape is full, and the tape is not");
                }
                tape::store_full(left)
            }
            TapeError::Volume(error) => return self.fault(error, None),
            TapeError::Damaged { .. } => {
                self.tell_of_tape(error, "the tape failed");
                let sense = Sense::new(Key::MediumError, Additional::UNRECOVERED_READ_ERROR);
                sense.with_information(left)
            }
            TapeError::WriteOnce => {
                let sense = Sense::new(Key::DataProtect, Additional::WORM_OVERWRITE_ATTEMPTED);
                sense.with_information(left)
            }
            TapeError::Failed => Sense::new(Key::MediumError, Additional::WRITE_ERROR),
            TapeError::Long => Sense::invalid_cdb(2, None),
        };
        sense.into()
    }

    fn tell_of_tape(&self, error: &dyn std::error::Error, event: &str) {
        let (target, lun) = (&self.state.target, self.state.lun);
        if let Some((Permit { suppressed }, _)) = self.state.log_limiter.permit() {
            warn!(target, lun, %error, suppressed, "{event}");
        }
    }
}

/// A drive whose tape is not there is not ready.
const NO_TAPE: Sense = Sense::new(Key::NotReady, Additional::MEDIUM_NOT_PRESENT);

/// Whether a command that has done so much of what it counts may go on. It lets others run now and then: its blocks may be
/// many, and all at hand.
async fn take_turns(done: u32, abort: &Abort) -> Result<(), Fault> {
    const AT_ONCE: u32 = 2048;
    if done > 0 && done.is_multiple_of(AT_ONCE) {
        yield_now().await;
    }
    abort.check()
}

/// The early warning, if something was written there.
fn warned(tape: &Tape, has_written: bool) -> TapeOutcome {
    match has_written && tape.is_in_early_warning() {
        true => TapeOutcome::telling(tape::early_warning()),
        false => TapeOutcome::default(),
    }
}

/// The data-out of each block. There may be as many as bytes: they are cut one by one.
fn blocks(transfer: Transfer, came: Vec<Bytes>) -> Box<dyn Iterator<Item = Vec<Bytes>> + Send> {
    match transfer.fixed {
        _ if transfer.count == 0 => Box::new(iter::empty()),
        None => {
            let mut left = transfer.count as usize;
            let cut = |mut piece: Bytes| {
                piece.truncate(left);
                left -= piece.len();
                piece
            };
            Box::new(iter::once(came.into_iter().map(cut).collect()))
        }
        Some(length) => {
            let length = length as usize;
            let whole = data::whole_blocks(came, transfer.count as usize * length, length);
            Box::new(whole.into_iter().flat_map(move |piece| {
                let starts = (0..piece.len()).step_by(length);
                starts.map(move |at| vec![piece.slice(at..at + length)])
            }))
        }
    }
}

/// A tape at the place of one that only reads. However that ends, the writer's head is put back: what it wrote next at another
/// place would be the end of the tape.
struct AtPlace<'t> {
    tape: &'t mut Tape,
    head: Place,
}

impl<'t> AtPlace<'t> {
    const fn new(tape: &'t mut Tape, place: Place) -> Self {
        let head = tape.exchange_place(place);
        Self { tape, head }
    }
}

impl Drop for AtPlace<'_> {
    fn drop(&mut self) {
        self.tape.exchange_place(self.head);
    }
}

/// The blocks that a READ returns, one after the other.
#[derive(Default)]
struct Gathered {
    pieces: Vec<Bytes>,
    short: BytesMut,
}

impl Gathered {
    fn push(&mut self, block: Bytes) {
        if block.len() > COPIED_MAX {
            self.end_short();
            return self.pieces.push(block);
        }
        if self.short.len() + block.len() > PIECE {
            self.end_short();
        }
        self.short.extend_from_slice(&block);
    }

    /// The first bytes of a block, at most so many: the rest is not kept for them.
    fn push_part(&mut self, block: &Bytes, len: usize) {
        match block.get(..len) {
            Some(part) => self.push(Bytes::copy_from_slice(part)),
            None => self.push(block.clone()),
        }
    }

    fn end_short(&mut self) {
        if !self.short.is_empty() {
            self.pieces.push(self.short.split().freeze());
        }
    }

    fn finish(mut self) -> Vec<Bytes> {
        self.end_short();
        self.pieces
    }
}

fn position(tape: &Tape, form: PositionForm, allocation: u32) -> TapeOutcome {
    let place = tape.place();
    let near_end = tape.is_in_early_warning();
    let data = Position { object: place.object, file: place.marks, near_end }.emit(form);
    let data = match form {
        PositionForm::Extended => truncate(data, allocation),
        PositionForm::Short | PositionForm::Long => data,
    };
    TapeOutcome::replying(data)
}

/// Moves the head, and says where it came to rest if it is not where it was sent.
async fn move_head(tape: &mut Tape, op: TapeOp) -> Result<Option<Sense>, TapeError> {
    let moved = match op {
        TapeOp::Space { code: SpaceCode::EndOfData, .. }
        | TapeOp::Locate(Destination::EndOfData) => {
            tape.go_to_end();
            Moved::There
        }
        TapeOp::Space { code: SpaceCode::Blocks, count: count @ 0.. } => {
            tape.space_blocks(count.unsigned_abs()).await?
        }
        TapeOp::Space { code: SpaceCode::Blocks, count } => {
            tape.space_blocks_back(count.unsigned_abs()).await?
        }
        TapeOp::Space { code: SpaceCode::Filemarks, count: count @ 0.. } => {
            tape.space_marks(count.unsigned_abs()).await?
        }
        TapeOp::Space { code: SpaceCode::Filemarks, count } => {
            tape.space_marks_back(count.unsigned_abs()).await?
        }
        TapeOp::Locate(Destination::Object(object)) => tape.locate(object).await?,
        TapeOp::Locate(Destination::File(file)) => tape.locate_file(file).await?,
        _ => {
            tape.rewind();
            Moved::There
        }
    };
    Ok(match moved {
        Moved::There => None,
        Moved::Mark(left) => Some(tape::filemark(left)),
        Moved::EndOfData(left) => Some(tape::end_of_data(left)),
        Moved::Beginning(left) => Some(tape::beginning(left)),
    })
}

#[cfg(test)]
mod tests;
