//! The disk, the optical drive, the tape drive and the media changer: a logical unit that stands on a [`Volume`]. That of a
//! drive is the disc or the tape in it, and may be exchanged; that of a changer has no blocks.
//!
//! [`execute`] carries commands out, with the verbs of the volume; [`conditions`] is what commands read without a
//! lock; the other modules hold one matter each: reservations, copies, removal, power, SANITIZE, the tape.

mod administration;
mod atomic;
mod background;
mod changer;
mod conditions;
mod copy;
mod disc;
mod exchange;
mod execute;
mod medium;
mod options;
mod pass_through;
mod power;
mod removal;
mod reserved;
mod sanitize;
mod shared;
mod tape;
mod third_party;
mod unaware;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use proto::scsi::cdb::{OpticalCdb, TapeCdb};
use proto::scsi::mode::Switches;
use proto::scsi::ports::Ports;
use proto::scsi::readiness::Readiness;
use proto::scsi::sense::Additional;
use proto::scsi::unit::optical::events::MediaEvents;
use proto::scsi::unit::{Medium, Unit};
use proto::scsi::{Blocks, Capacity, Cdb, DeviceType, Parsed, Sequence};
use volume::layer::range_lock::RangeLock;
use volume::{CryptoErase, Volume};

pub use self::administration::Administration;
use self::background::Background;
pub use self::changer::ElementsChanged;
use self::conditions::Conditions;
use self::copy::Copies;
use self::disc::LoadedDisc;
pub use self::exchange::ExchangeError;
use self::medium::CHUNK;
pub use self::options::{Options, PassedThrough, Shared};
use self::pass_through::PassThroughDevice;
use self::removal::RemovalPrevention;
use self::reserved::Reserved;
pub use self::reserved::{LoadError, StoredReservations};
use self::sanitize::Progress;
use self::tape::LoadedTape;
use self::third_party::ThirdParty;
use self::unaware::Unaware;
use super::medium_lock::MediumLock;
use super::{
    Answer, Command, Initiator, LogicalUnit, MediaChanger, MediumPermit, Nexus, TRANSFER_MAX,
    Waiting,
};
use crate::file_space::FileSpace;
use crate::log_limiter::LineLimiter;

/// A disk.
pub struct Disk {
    core: Arc<Core>,
}

/// What the commands in flight share: one view of the disk.
struct Core {
    volume: Arc<dyn Volume>,
    unit: Unit,
    /// The disks its initiators meet beside it, itself among them, as they meet them: what REPORT LUNS lists
    /// and EXTENDED COPY reaches.
    peers: OnceLock<Arc<[Weak<Self>]>>,
    /// Of which medium this is a view: see [`State::generation`].
    generation: u64,
    /// What is in a tape drive: all views of the medium share the place of the head.
    tape: Option<Arc<LoadedTape>>,
    /// What is in an optical drive, if it can be written: likewise.
    disc: Option<Arc<LoadedDisc>>,
    /// By which its initiator administers the server, if it may.
    administration: Option<Arc<Administration>>,
    state: Arc<State>,
}

/// What all views of a medium share.
struct LoadedMedium {
    generation: u64,
    tape: Option<Arc<LoadedTape>>,
    disc: Option<Arc<LoadedDisc>>,
}

/// What all views of a disk share.
struct State {
    /// The target it is a unit of, for the log.
    target: String,
    conditions: Conditions,
    /// Held by commands that read, decide and write.
    exclusive: RangeLock,
    /// Held shared by commands that touch the medium.
    lock: MediumLock,
    progress: Progress,
    sanitize_rate: Option<u64>,
    key: Option<Arc<dyn CryptoErase>>,
    copies: Copies,
    third_party: Arc<ThirdParty>,
    reserved: Reserved,
    /// Whether the medium may be used here, where other gateways have it too.
    permit: Option<Arc<MediumPermit>>,
    /// What tells how much the file system of the volume has free.
    space: Option<Arc<dyn FileSpace>>,
    /// What moves cartridges, if it is a media changer.
    changer: Option<Arc<dyn MediaChanger>>,
    /// The device, if one is passed through.
    passed: Option<Arc<PassThroughDevice>>,
    preventing: RemovalPrevention,
    /// Who has not looked at the drive since the medium was exchanged.
    unaware: Unaware,
    /// What GET EVENT STATUS NOTIFICATION tells of the medium of an optical drive.
    media_events: Mutex<MediaEvents<Nexus>>,
    /// Counts the media that have been in the drive. Views of an earlier one are out of date.
    generation: AtomicU64,
    /// Held by the one START STOP UNIT that is stopping the unit.
    stopping: Arc<tokio::sync::Mutex<()>>,
    /// For what any initiator can have logged as often as it likes.
    log_limiter: LineLimiter,
    background_flushes: Background,
    background_stops: Background,
    /// No command touches the volume any more.
    retired: AtomicBool,
    /// Its last volume, if it has grown, and the unit on that.
    grown: Mutex<Option<(Arc<dyn Volume>, Unit)>>,
    /// Its number.
    lun: u16,
}

impl Disk {
    /// Unit `lun` of `target`.
    #[must_use]
    pub fn new(volume: Arc<dyn Volume>, target: &str, lun: u16, mut options: Options) -> Self {
        let medium = options.medium(volume.shape());
        let disc = options.recorded.take().map(LoadedDisc::new);
        let (sanitize_rate, key) = (options.sanitize_rate, options.key.take());
        let (changer, space) = (options.changer.take(), options.space.take());
        let passed = options.passed.take().map(|passed| Arc::new(PassThroughDevice::new(passed)));
        let elements = changer.as_ref().map(|changer| changer.inventory().layout());
        let (reservations, permit) =
            options.shared.take().map(|shared| (shared.reservations, shared.permit)).unzip();
        let reserved = Reserved::new(options.kept.take(), reservations, options.transports);
        let unit = Unit::new(options.identity(target, lun), medium);
        let unit = unit.with_elements(elements.unwrap_or_default());
        let state = State {
            target: target.to_owned(),
            conditions: Conditions::new(unit.defaults()),
            exclusive: RangeLock::default(),
            lock: MediumLock::default(),
            progress: Progress::default(),
            sanitize_rate,
            key,
            copies: Copies::default(),
            third_party: Arc::default(),
            reserved,
            permit,
            space,
            changer,
            passed,
            preventing: RemovalPrevention::default(),
            unaware: Unaware::default(),
            media_events: Mutex::default(),
            generation: AtomicU64::new(0),
            stopping: Arc::default(),
            log_limiter: LineLimiter::default(),
            background_flushes: Background::default(),
            background_stops: Background::default(),
            retired: AtomicBool::new(false),
            grown: Mutex::default(),
            lun,
        };
        Self {
            core: Arc::new(Core {
                volume,
                tape: LoadedTape::of(unit.medium().device),
                disc,
                unit,
                peers: OnceLock::new(),
                generation: 0,
                administration: None,
                state: Arc::new(state),
            }),
        }
    }

    /// The same disk for an initiator that may only read it.
    #[must_use]
    pub fn for_readers(&self) -> Self {
        self.view(Arc::clone(&self.core.volume), self.core.unit.for_reader())
    }

    /// Whether it is as initiators see it that may only read it.
    pub(super) fn is_for_readers(&self) -> bool {
        self.core.unit.is_for_reader()
    }

    /// The same disk for an initiator that comes by one of `ports`.
    #[must_use]
    pub fn by(&self, ports: Ports) -> Self {
        self.view(Arc::clone(&self.core.volume), self.core.unit.by(ports))
    }

    /// The same disk on `volume`, which is its own but may have grown.
    #[must_use]
    pub fn grown(&self, volume: Arc<dyn Volume>) -> Self {
        let old = self.core.unit.medium();
        let blocks = volume.shape().size / u64::from(old.capacity.block_size);
        let medium = Medium { capacity: Capacity { blocks, ..old.capacity }, ..*old };
        let unit = self.core.unit.on(medium);
        let grown = (Arc::clone(&volume), unit.clone());
        *self.core.state.grown.lock().unwrap_or_else(PoisonError::into_inner) = Some(grown);
        self.view(volume, unit)
    }

    /// Whether `other` is a view of the same disk.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core.state, &other.core.state)
    }

    fn view(&self, volume: Arc<dyn Volume>, unit: Unit) -> Self {
        let Core { generation, tape, disc, .. } = &*self.core;
        self.view_of(
            volume,
            unit,
            LoadedMedium { generation: *generation, tape: tape.clone(), disc: disc.clone() },
        )
    }

    fn view_of(
        &self,
        volume: Arc<dyn Volume>,
        unit: Unit,
        LoadedMedium { generation, tape, disc }: LoadedMedium,
    ) -> Self {
        let (state, peers) = (Arc::clone(&self.core.state), OnceLock::new());
        let administration = self.core.administration.clone();
        let core = Core { volume, unit, peers, generation, tape, disc, administration, state };
        Self { core: Arc::new(core) }
    }

    /// The same disk, which can be introduced to others.
    #[must_use]
    pub fn again(&self) -> Self {
        self.view(Arc::clone(&self.core.volume), self.core.unit.clone())
    }

    /// Its ports, as seen by the one its initiators come by.
    #[must_use]
    pub fn ports(&self) -> &Ports {
        self.core.unit.ports()
    }

    /// Whether `other` is a view of the same medium, which may have grown.
    pub(super) fn is_same_medium(&self, other: &Self) -> bool {
        self.core.generation == other.core.generation
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.core.unit.blocks() * u64::from(self.core.unit.block_size())
    }

    /// `nexus` has seen the list of units, or is about to.
    pub(super) fn listed(&self, nexus: Nexus) {
        self.core
            .attend(|attentions| attentions.withdraw(nexus, Additional::REPORTED_LUNS_CHANGED));
    }

    /// The blocks that a READ of a tape returns, or one that a WRITE puts together.
    fn tape_memory(&self, cdb: TapeCdb) -> u32 {
        let length = self.core.switches().block_length;
        match cdb {
            TapeCdb::Read { fixed: true, count, .. } => {
                count.saturating_mul(length).min(TRANSFER_MAX)
            }
            TapeCdb::Read { count, .. } => count.min(TRANSFER_MAX),
            TapeCdb::Write { fixed: true, .. } => length,
            TapeCdb::Write { count, .. } => count.min(TRANSFER_MAX),
            _ => 0,
        }
    }

    /// Lets no command touch the volume or its reservations any more: returns when none does, nor a SANITIZE, which ends
    /// where it is. The disk is on its way out.
    pub async fn retire(&self) {
        self.core.state.retired.store(true, Ordering::Release);
        self.core.state.progress.wake();
        self.core.state.lock.recheck();
        drop(self.core.state.lock.exclusive().await);
        if let Err(error) = self.core.settle_before_removal().await {
            // Nobody is left to be told but who reads the log.
            let (target, lun) = (&self.core.state.target, self.core.state.lun);
            tracing::error!(target, lun, %error, "what was written to the medium last could not be made stable");
        }
        self.core.state.reserved.retire().await;
    }

    /// Tells disks of one another that an initiator meets in one session. It is said once of each.
    pub fn connect_peers<'a>(disks: impl Iterator<Item = &'a Self> + Clone) {
        let peers: Arc<[_]> = disks.clone().map(|disk| Arc::downgrade(&disk.core)).collect();
        for disk in disks {
            let said = disk.core.peers.set(Arc::clone(&peers));
            debug_assert!(said.is_ok(), "a disk belongs to one device");
        }
    }
}

impl LogicalUnit for Disk {
    fn device_type(&self) -> DeviceType {
        self.core.unit.medium().device
    }

    fn sequence(&self) -> Option<Sequence> {
        match &self.core.state.passed {
            Some(passed) => passed.sequence(),
            None => (self.device_type() == DeviceType::Tape).then_some(Sequence::Ended),
        }
    }

    fn data_out_len(&self, command: &Parsed) -> u32 {
        if let Some(passed) = &self.core.state.passed {
            return self.core.passed_data_out(passed, command);
        }
        self.core.unit.data_out(command, self.core.switches())
    }

    fn working_memory(&self, command: &Parsed) -> u32 {
        if let Some(passed) = &self.core.state.passed {
            return self.core.passed_data_in(passed, command);
        }
        let bytes = |blocks: Blocks| blocks.count.saturating_mul(self.core.unit.block_size());
        match command.cdb {
            Ok(Cdb::Read(access) | Cdb::Optical(OpticalCdb::ReadCd { access, .. }))
                if bytes(access.blocks) <= TRANSFER_MAX =>
            {
                bytes(access.blocks)
            }
            Ok(Cdb::Tape(cdb)) => self.tape_memory(cdb),
            // No blocks may be all to the end of the medium.
            Ok(Cdb::WriteSame { access, .. }) if access.blocks.count == 0 => CHUNK,
            Ok(
                Cdb::WriteSame { access, .. }
                | Cdb::Verify(access, _)
                | Cdb::WriteVerify(access, _),
            ) => bytes(access.blocks).min(CHUNK),
            // Refused, or answered with a few bytes; of EXTENDED COPY one runs at a time.
            _ => 0,
        }
    }

    fn execute(&self, nexus: Nexus, command: Command) -> Answer {
        let core = Arc::clone(&self.core);
        Answer::abortable(|abort| core.run(nexus, command, abort))
    }

    fn attach(&self, nexus: Nexus, initiator: Arc<dyn Initiator>) {
        if !self.core.unit.is_for_reader() {
            self.core.state.reserved.adopt(initiator.id());
        }
        self.core.state.reserved.attach(nexus, initiator);
        self.core.attach_to_device(nexus);
        self.core.media_events().attach(nexus);
        self.core.attend(|attentions| attentions.attach(nexus));
    }

    fn detach(&self, nexus: Nexus) {
        self.core.state.reserved.detach(nexus);
        self.core.detach_from_device(nexus);
        self.core.prevent(nexus, false);
        self.core.follow_prevention();
        self.core.tape.iter().for_each(|tape| tape.forget(nexus));
        self.core.state.unaware.forget(nexus);
        self.core.media_events().detach(nexus);
        self.core.state.copies.forget(nexus);
        self.core.attend(|attentions| attentions.detach(nexus));
    }

    fn reset(&self) {
        self.core.reset_passed();
        self.core.state.reserved.reset();
        self.core.allow_all();
        self.core.state.copies.clear();
        self.core.change(|attentions, switches| {
            // A reset brings no medium back, and ends no sanitize. It starts a unit that is stopped, which
            // SPC-4, 5.12.3 allows: who resets it wants it back.
            let readiness = match switches.readiness {
                Readiness::Stopped => Readiness::Ready,
                other => other,
            };
            let locked = switches.locked;
            *switches = Switches { readiness, locked, ..self.core.unit.defaults() };
            attentions.establish(Additional::BUS_DEVICE_RESET, None);
        });
    }

    fn end_copies(&self) -> Waiting<()> {
        Box::pin(self.core.state.third_party.end(&|_| true))
    }

    fn tell(&self, nexus: Nexus, condition: Additional) {
        self.core.attend(|attentions| attentions.tell(nexus, condition));
    }

    fn tasks_cleared(&self, by: Nexus) {
        self.core.attend(|attentions| {
            attentions.establish(Additional::COMMANDS_CLEARED, Some(by));
        });
    }
}

#[cfg(test)]
mod tests;
