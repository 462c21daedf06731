//! The volume on one session: verbs become commands, within the limits of the device and of the session.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use futures_util::stream;
use proto::scsi::command::{Command, statuses};
use proto::scsi::provisioning::Status as LbaStatus;
use proto::scsi::writer::{self, NotHeld, Registrants};
use proto::scsi::{Blocks, Status};
use volume::{Discard, Durability, Extent, Kind, Shape, Space, Span, TRANSFER_MAX, complete_all};

use super::change::{Change, usize_of, within};
use super::device::{self, Device, DeviceError};
use super::group_order::GroupOrder;
use super::session::{Session, TransferLimits};
use super::unit::{Unit, UnitError};

/// The most one command carries. It fits our FirstBurstLength, so that a write travels with its
/// command, and does not keep what comes behind it waiting for long.
const COMMAND_MAX: u64 = 8 << 20;

/// Writes are not cut smaller than this to save a round trip: below it commands cost more than the
/// wait.
const WRITE_MIN: u64 = 64 << 10;

/// The most bytes one command without data (UNMAP, WRITE SAME) concerns where the device states no
/// limit: it should not hold the device for long.
const REACH_MAX: u64 = 256 << 20;

/// The most blocks of a unit that READ (10) and WRITE (10) can address as a whole.
const SHORT_COMMANDS_BLOCKS: u64 = 1 << 32;

/// How many commands without data are in flight for one request.
const REACHES_IN_FLIGHT: usize = 16;

/// How many runs one GET LBA STATUS asks for; 4 KiB of answer.
const RUNS: u16 = 255;

/// A logical unit, by way of one session.
#[derive(Debug)]
pub(in crate::store) struct Link<S> {
    unit: Unit<S>,
    device: Device,
    shape: Shape,
    sizes: Sizes,
    /// The volume was offered as one without a write cache, so that nobody flushes it: what is answered is durable, also
    /// while somebody else has switched the cache on.
    through: bool,
    /// The unit has shown that it knows READ (10) and WRITE (10) only.
    short_commands: AtomicBool,
    /// It has been told that the unit cannot be asked to empty a cache.
    no_sync: AtomicBool,
    /// The first failure on this session that may have cost what the unit had taken before. On the next session
    /// all of that is written again.
    failed: OnceLock<UnitError>,
    /// The order of groups.
    pub(super) group_order: GroupOrder,
    /// What was found, before any group was carried out, where groups have their checkpoints.
    pub(super) checkpoint: Option<Bytes>,
}

/// Why a unit is treated like one whose connection was lost.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum UnitEvent {
    #[error("the unit was reset")]
    Reset,
    #[error("commands were ended by another initiator or by the unit itself")]
    Cleared,
    #[error("the unit may hold another volume now")]
    Replaced,
    #[error("another initiator has changed the mode parameters of the unit")]
    Mode,
}

/// The largest span of each kind of command, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    read: u64,
    pub(super) write: u64,
    /// The longest write all commands of which take their data along.
    unsolicited: u64,
    zeroes: u64,
    pub(super) unmap: u64,
}

impl<S: Session> Link<S> {
    /// Opens logical unit `lun` of a session.
    pub(super) async fn open(session: S, lun: u16, read_only: bool) -> Result<Self, DeviceError> {
        let unit = Unit::new(session, lun);
        let device = Device::learn(&unit).await?;
        // What it told until now is of the time before: what may be lost is written again anyway.
        unit.session().announced().forget();
        let shape = shape(&device, read_only);
        let sizes = Sizes::new(&device, unit.session().limits());
        tracing::debug!(?shape, ?sizes, "opened");
        let (short_commands, no_sync) = (AtomicBool::new(false), AtomicBool::new(false));
        let (through, failed, group_order) =
            (!shape.write_cache, OnceLock::new(), GroupOrder::default());
        Ok(Self {
            unit,
            device,
            shape,
            sizes,
            through,
            short_commands,
            no_sync,
            failed,
            group_order,
            checkpoint: None,
        })
    }

    /// Keeps what was promised of the unit when it was there `before`, and looks there for the checkpoint of a group.
    pub(super) async fn match_first_link(
        &mut self,
        before: &Device,
        checkpoint: Option<&Span>,
    ) -> Result<(), UnitError> {
        if let Some(place) = checkpoint {
            self.checkpoint = self.checkpoint_at(*place).await?;
        }
        self.through = !before.has_write_cache();
        if self.through && self.shape.write_cache {
            tracing::warn!(
                "the unit has a write cache where it had none: each write is made durable"
            );
            // What was answered after the cache was switched on and before that was known.
            self.sync().await?;
        }
        Ok(())
    }

    /// What is found there; nothing where the disk has lost it: then all groups that were not answered are sent again.
    async fn checkpoint_at(&self, place: Span) -> Result<Option<Bytes>, UnitError> {
        match self.read(place).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(why) if matches!(why.kind(), Kind::Medium | Kind::Integrity) => {
                tracing::warn!(%why, "the checkpoint of a journal cannot be read");
                Ok(None)
            }
            Err(why) => Err(why),
        }
    }

    pub(in crate::store) const fn session(&self) -> &S {
        self.unit.session()
    }

    pub(super) const fn unit(&self) -> &Unit<S> {
        &self.unit
    }

    pub(super) const fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(in crate::store) const fn device(&self) -> &Device {
        &self.device
    }

    /// The longest write that takes one round trip; the target asks for the data of longer ones.
    pub(super) const fn unsolicited(&self) -> u64 {
        self.sizes.unsolicited
    }

    /// What has happened to the unit since it was opened that may have cost what was not durable or was under way, may
    /// have put another volume in its place, or may have switched its cache on.
    pub(super) fn unit_event(&self) -> Option<UnitEvent> {
        let announced = self.session().announced();
        let events = [
            (announced.was_reset(), UnitEvent::Reset),
            (announced.was_cleared(), UnitEvent::Cleared),
            (announced.was_replaced(), UnitEvent::Replaced),
            (self.through && announced.mode_changed(), UnitEvent::Mode),
        ];
        events.into_iter().find_map(|(happened, event)| happened.then_some(event))
    }

    /// Whether the unit cannot be used now, and may be later. A Longhaul that is cut off from the volume it passes on says
    /// LOGICAL UNIT COMMUNICATION FAILURE; others say that of any block that cannot be read.
    pub(super) fn is_outage(&self, error: &UnitError) -> bool {
        error.is_outage() || (error.is_out_of_reach() && self.device.is_longhaul())
    }

    /// Who has reserved the unit so that nobody else writes to it, if the unit tells.
    pub(super) async fn writer(&self) -> Option<Registrants> {
        match writer::may_write(&self.unit).await {
            Err(NotHeld::By(registrants)) => Some(registrants),
            _ => None,
        }
    }

    /// Whether the unit said that it may be another's, or refused what only the holder may do.
    pub(super) fn is_in_question(&self, failure: Option<&UnitError>) -> bool {
        self.session().announced().was_preempted()
            || matches!(failure, Some(UnitError::Status(Status::ReservationConflict)))
    }

    pub(super) async fn change(&self, change: &Change) -> Result<(), UnitError> {
        let durability = change.durability();
        // A group asks that for itself, once those before it are on their way.
        if durability == Durability::Durable && !matches!(change, Change::Group(_)) {
            self.still_whole()?;
        }
        let ended = match change {
            Change::Write { at, data, .. } => self.write(*at, data.clone(), durability).await,
            Change::Zero { span, space, .. } => self.zero(*span, durability, *space).await,
            Change::Discard(span) => self.run_each(self.discards(*span)).await,
            Change::Group(group) => return self.group(group).await,
        };
        ended.inspect_err(|error| self.note(error, durability))
    }

    /// Remembers a failure that may have cost what the unit had taken before.
    pub(super) fn note(&self, error: &UnitError, durability: Durability) {
        let lost = match error {
            // What follows is another session, on which all that was not flushed is written again.
            UnitError::Lost(_) => false,
            error => error.kind().loses(durability),
        };
        if lost {
            self.failed.get_or_init(|| error.clone());
        }
    }

    /// Fails if what the unit had taken may be lost: one command was told so, or an earlier one has failed since it
    /// ended with GOOD.
    pub(super) fn still_whole(&self) -> Result<(), UnitError> {
        if let Some(sense) = self.session().announced().deferred() {
            return Err(UnitError::Sense(sense));
        }
        self.failed.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    pub(super) const fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    pub(super) fn blocks(&self, span: Span) -> Blocks {
        let block = u64::from(self.shape.block_size);
        let count = u32::try_from(span.len / block).expect("pieces are bounded");
        Blocks { lba: span.at / block, count }
    }

    pub(super) async fn read(&self, span: Span) -> Result<Bytes, UnitError> {
        let one = |piece| self.read_blocks(self.blocks(piece));
        if span.len <= self.sizes.read {
            return one(span).await;
        }
        let pieces = join_all(span.pieces(self.sizes.read).map(one)).await;
        let mut whole = BytesMut::with_capacity(usize_of(span.len));
        for piece in pieces {
            whole.extend_from_slice(&piece?);
        }
        Ok(whole.freeze())
    }

    async fn read_blocks(&self, blocks: Blocks) -> Result<Bytes, UnitError> {
        let block = self.shape.block_size;
        let short = || Command::read_10(blocks, block);
        self.execute_either(Command::read(blocks, block), short, Bytes::new()).await
    }

    async fn write_blocks(&self, blocks: Blocks, data: Bytes, fua: bool) -> Result<(), UnitError> {
        let block = self.shape.block_size;
        let short = || Command::write_10(blocks, block, fua);
        self.execute_either(Command::write(blocks, block, fua), short, data).await.map(drop)
    }

    /// Carries out a command of 16 bytes. SBC-2 does not demand these of a unit that the short ones can address as a
    /// whole: where it does not know them it gets those.
    async fn execute_either(
        &self,
        long: Command,
        short: impl Fn() -> Option<Command>,
        data: Bytes,
    ) -> Result<Bytes, UnitError> {
        if self.short_commands.load(Ordering::Relaxed)
            && let Some(short) = short()
        {
            return self.unit.execute(short, data).await;
        }
        let refused = match self.unit.execute(long, data.clone()).await {
            Err(error) if error.may_be_unknown_operation() => error,
            ended => return ended,
        };
        let Some(short) = short().filter(|_| self.is_short()) else { return Err(refused) };
        match self.unit.execute(short, data).await {
            // The first reason counts where the second is that it does not know this one either.
            Err(error) if error.may_be_unknown_operation() => Err(refused),
            ended => {
                if ended.is_ok() && !self.short_commands.swap(true, Ordering::Relaxed) {
                    tracing::info!(%refused, "the unit gets READ (10) and WRITE (10)");
                }
                ended
            }
        }
    }

    const fn is_short(&self) -> bool {
        self.device.capacity.blocks <= SHORT_COMMANDS_BLOCKS
    }

    /// How large the unit is now, in bytes. One of which blocks could not be addressed on this link is as large as it was.
    pub(super) async fn ask_size(&self) -> Result<u64, DeviceError> {
        let capacity = device::capacity(&self.unit).await?;
        let is_same = capacity.block_size == self.device.capacity.block_size;
        let is_addressed = !self.is_short() || capacity.blocks <= SHORT_COMMANDS_BLOCKS;
        Ok(if is_same && is_addressed { device::size(&capacity) } else { self.device.size() })
    }

    async fn write(&self, at: u64, data: Bytes, durability: Durability) -> Result<(), UnitError> {
        let span = Span::new(at, data.len() as u64);
        // FUA is asked for without a cache too: there may be one before anybody is told.
        let fua = self.device.mode.fua && (durability == Durability::Durable || self.through);
        let write = |piece: Span| {
            self.write_blocks(self.blocks(piece), data.slice(within(span, piece)), fua)
        };
        if span.len <= self.sizes.write {
            write(span).await?;
        } else {
            // All of them at once: a transfer is bounded, and so is what the session has under way.
            let writes = stream::iter(span.pieces(self.sizes.write).map(write));
            // It is large: a write of one piece does not move it about.
            Box::pin(complete_all(usize::MAX, writes, drop)).await?;
        }
        if fua { Ok(()) } else { self.sync_if(durability).await }
    }

    async fn zero(
        &self,
        span: Span,
        durability: Durability,
        space: Space,
    ) -> Result<(), UnitError> {
        if !self.shape.fast_zeroes {
            return self.write_zero_data(span, durability).await;
        }
        match self.run_each(self.write_sames(span, space)).await {
            // It says in its pages that it knows it.
            Err(error) if error.may_be_unknown_operation() => {
                return self.write_zero_data(span, durability).await;
            }
            written => written?,
        }
        self.sync_if(durability).await
    }

    /// WRITE SAME with zeroes, for a span of any length.
    pub(super) fn write_sames(
        &self,
        span: Span,
        space: Space,
    ) -> impl Iterator<Item = (Command, Bytes)> {
        let how = &self.device.provisioning;
        // Only where unmapped blocks read as zeroes may zeroes be written by unmapping.
        let unmap = space == Space::Release && how.write_same_16 && how.reads_zeroes;
        let block = self.shape.block_size;
        let zero = Bytes::from(vec![0; block as usize]);
        let write =
            move |piece| (Command::write_same(self.blocks(piece), block, unmap), zero.clone());
        span.pieces(self.sizes.zeroes).map(write)
    }

    /// Zeroes as data, a bounded number of bytes in flight.
    async fn write_zero_data(&self, span: Span, durability: Durability) -> Result<(), UnitError> {
        let piece = self.sizes.write.min(WRITE_MIN);
        let zeroes = Bytes::from(vec![0; usize_of(span.len.min(piece))]);
        let writes = span.pieces(piece).map(|piece| {
            let zeroes = zeroes.slice(..usize_of(piece.len));
            self.write_blocks(self.blocks(piece), zeroes, false)
        });
        complete_all(REACHES_IN_FLIGHT, stream::iter(writes), drop).await?;
        self.sync_if(durability).await
    }

    /// UNMAP, or WRITE SAME where the unit has none, for a span of any length.
    pub(super) fn discards(&self, span: Span) -> impl Iterator<Item = (Command, Bytes)> {
        let has_unmap = self.device.provisioning.unmap;
        let unmap = |piece| {
            let (command, list) = Command::unmap(&[self.blocks(piece)]);
            (command, list.into())
        };
        let unmaps = has_unmap.then(|| span.pieces(self.sizes.unmap).map(unmap));
        let zeroes = (!has_unmap).then(|| self.write_sames(span, Space::Release));
        unmaps.into_iter().flatten().chain(zeroes.into_iter().flatten())
    }

    /// Runs commands that each reach over many blocks, a few at a time.
    async fn run_each(
        &self,
        commands: impl Iterator<Item = (Command, Bytes)>,
    ) -> Result<(), UnitError> {
        let commands = commands.map(|(command, data)| self.unit.execute(command, data));
        complete_all(REACHES_IN_FLIGHT, stream::iter(commands), drop).await
    }

    /// Ends a change that was made without FUA.
    async fn sync_if(&self, durability: Durability) -> Result<(), UnitError> {
        let is_cached = self.through && self.shape.write_cache;
        if durability == Durability::Durable || is_cached { self.sync().await } else { Ok(()) }
    }

    /// SYNCHRONIZE CACHE, by somebody who may have written: it is refused to those whom a reservation keeps from writing
    /// (SBC-3, table 13). It is sent where there was no cache too: somebody may have switched it on.
    pub(super) async fn sync(&self) -> Result<(), UnitError> {
        self.still_whole()?;
        if !self.shape.read_only {
            match self.unit.ask(Command::synchronize_cache()).await {
                Err(error) if self.needs_no_sync(&error) => {}
                synced => {
                    synced.inspect_err(|error| self.note(error, Durability::Durable))?;
                }
            }
            self.session().settle().await.map_err(UnitError::Lost)?;
        }
        // Meanwhile another command may have been told of a write that is lost.
        self.still_whole()
    }

    /// SBC-3, 5.22: a unit that has no cache need not know SYNCHRONIZE CACHE. One that says nothing of a cache and does not
    /// know the command has no way to empty it: others take it to have none too.
    fn needs_no_sync(&self, refused: &UnitError) -> bool {
        if !self.shape.write_cache {
            return refused.is_unknown_command();
        }
        let says_nothing = self.device.mode.write_cache.is_none() && !self.device.is_withheld;
        let needs_none = says_nothing && refused.may_be_unknown_operation();
        if needs_none && !self.no_sync.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the target neither says whether it has a write cache nor knows SYNCHRONIZE CACHE: what it has answered \
                 is taken to be safe at its end"
            );
        }
        needs_none
    }

    pub(super) async fn runs(&self, span: Span) -> Result<Vec<Extent>, UnitError> {
        let block = u64::from(self.shape.block_size);
        let command = Command::get_lba_status(span.at / block, RUNS);
        let answer = self.unit.ask(command).await?;
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = span.at;
        for run in statuses(&answer).unwrap_or_default() {
            let start = run.blocks.lba.saturating_mul(block);
            let end = start.saturating_add(u64::from(run.blocks.count) * block).min(span.end());
            // Runs that leave a gap or go back say nothing that can be relied on.
            if start > at || end <= at {
                break;
            }
            let mapped = run.status == LbaStatus::Mapped;
            extents.push(Extent {
                span: Span::new(at, end - at),
                hole: run.status == LbaStatus::Deallocated,
                zero: !mapped && self.device.capacity.reads_zeroes,
            });
            at = end;
        }
        if extents.is_empty() {
            extents.push(Extent { span, hole: false, zero: false });
        }
        Ok(extents)
    }
}

fn shape(device: &Device, read_only: bool) -> Shape {
    let Device { capacity, mode, provisioning, limits, .. } = device;
    let block_size = capacity.block_size;
    let discards = provisioning.unmap || (provisioning.write_same_16 && provisioning.reads_zeroes);
    let granularity = block_size.saturating_mul(limits.unmap_granularity.max(1));
    Shape {
        size: capacity.blocks * u64::from(block_size),
        block_size,
        physical_block_size: block_size << capacity.physical_exponent.min(7),
        read_only: read_only || mode.write_protected,
        write_cache: device.has_write_cache(),
        // UNMAP is a hint: a device that reads unmapped blocks as zeroes may still keep some mapped
        // (SBC-3, 4.7.3). Zeroes are asked for as such.
        discard: discards.then_some(Discard { granularity, reads_zeroes: false }),
        fast_zeroes: provisioning.write_same_16 || limits.write_same_max > 0,
    }
}

impl Sizes {
    fn new(device: &Device, limits: TransferLimits) -> Self {
        let block = u64::from(device.capacity.block_size);
        let limit = |blocks: u64, otherwise: u64| match blocks {
            0 => otherwise,
            blocks => blocks.saturating_mul(block).min(otherwise),
        };
        let whole = |bytes: u64| (bytes / block * block).max(block);
        let transfer =
            limit(device.limits.transfer_max.into(), COMMAND_MAX.min(TRANSFER_MAX.into()));
        // Where a write can travel with its command it is cut so that it does: one round trip. Where
        // it cannot, it is cut so that the target can ask for all of it at once: two.
        let TransferLimits { unsolicited: free, solicited, data_in } = limits;
        let in_one = free >= WRITE_MIN;
        let write = if in_one { free } else { solicited.max(WRITE_MIN) };
        Self {
            read: whole(transfer.min(data_in)),
            write: whole(transfer.min(write)),
            unsolicited: if in_one { u64::MAX } else { free },
            zeroes: whole(limit(device.limits.write_same_max, REACH_MAX)),
            unmap: whole(limit(device.limits.unmap_blocks_max.into(), REACH_MAX)),
        }
    }
}
