//! The disk: a logical unit that stands on a [`Volume`].
//!
//! A command is planned by the device server of `proto`, which knows no I/O, and carried out here with the
//! verbs of the volume. Reading and writing takes no lock: the switches of the mode pages are one atomic
//! byte, and another atomic tells whether any initiator has a unit attention to be told.

mod atomic;
mod background;
mod copy;
mod medium;
mod power;
mod removal;
mod reserved;
mod sanitize;
mod third_party;

use background::Background;
use copy::Copies;
use removal::Preventing;
use reserved::{Aftermath, Reserved};
pub use reserved::{KeepError, Kept};
use sanitize::Progress;
use third_party::ThirdParty;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bytes::Bytes;
use futures_util::future::{FutureExt as _, join, join_all};
use proto::scsi::attention::{Attentions, Manner};
use proto::scsi::cdb::Form;
use proto::scsi::inquiry::Identity;
use proto::scsi::mode::Switches;
use proto::scsi::ports::Ports;
use proto::scsi::readiness::Readiness;
use proto::scsi::sense::{Additional, Format, Key};
use proto::scsi::transport::Transports;
use proto::scsi::unit::{self, Medium, Step, Unit, UnitOp};
use proto::scsi::{Blocks, Capacity, Cdb, Parsed, Sense, Status};
use tracing::field::display;
use tracing::{debug, warn};
use volume::{Blame, CryptoErase, Durability, Shape, Span, Volume};

use super::answer::Abort;
use super::exclusive::Exclusive;
use super::fault::Fault;
use super::medium_lock::MediumLock;
use super::{
    Answer, Command, Initiator, LogicalUnit, Nexus, Response, TRANSFER_MAX, Waiting, data,
};
use crate::log_limiter::{LineLimiter, Permit};

/// What may be chosen for a disk.
#[derive(Clone)]
pub struct Options {
    /// T10 VENDOR IDENTIFICATION, if not the product's own.
    pub vendor: Option<String>,
    /// PRODUCT IDENTIFICATION, likewise.
    pub product: Option<String>,
    /// PRODUCT REVISION LEVEL, likewise.
    pub revision: Option<String>,
    /// The serial number, if not the one that follows from the name of the target and the unit.
    pub serial: Option<String>,
    /// The medium can be taken out.
    pub removable: bool,
    /// The unit in which initiators should write, in bytes, if not the volume's own; one that is smaller
    /// than a block is not used.
    pub physical_block_size: Option<u32>,
    /// Nothing of the volume outlives the process, so that no crash can leave a part of a write behind.
    pub vanishes: bool,
    /// Writes are refused, even if the volume would take them.
    pub read_only: bool,
    /// Space may be given back, if the volume can.
    pub thin: bool,
    /// How many bytes a second a SANITIZE overwrites at most; as many as the volume takes if `None`.
    pub sanitize_rate: Option<u64>,
    /// What destroys the key that the volume is enciphered with, where an initiator may have that done.
    pub key: Option<Arc<dyn CryptoErase>>,
    /// The reservations that were kept through the last loss of power, and what keeps them; without it
    /// they end with the process.
    pub kept: Option<Kept>,
    /// The protocols by which initiators come, for the names of their ports in reservation commands.
    pub transports: Transports,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            vendor: None,
            product: None,
            revision: None,
            serial: None,
            removable: false,
            physical_block_size: None,
            vanishes: false,
            read_only: false,
            thin: true,
            sanitize_rate: None,
            key: None,
            kept: None,
            transports: Transports::default(),
        }
    }
}

/// A disk.
pub struct Disk {
    core: Arc<Core>,
}

/// What the commands in flight share: one face of the disk.
struct Core {
    volume: Arc<dyn Volume>,
    unit: Unit,
    /// The disks its initiators meet beside it, itself among them, as they meet them: what REPORT LUNS lists
    /// and EXTENDED COPY reaches.
    peers: OnceLock<Arc<[Weak<Self>]>>,
    state: Arc<State>,
}

/// What all faces of a disk share.
struct State {
    /// The target it is a unit of, for the log.
    target: String,
    /// [`Switches`] in their byte; changed under the lock of `attentions`.
    switches: AtomicU8,
    /// Whether anything is pending in `attentions`.
    attention: AtomicBool,
    attentions: Mutex<Attentions<Nexus>>,
    exclusive: Exclusive,
    /// Held shared by commands that touch the medium.
    lock: MediumLock,
    progress: Progress,
    sanitize_rate: Option<u64>,
    key: Option<Arc<dyn CryptoErase>>,
    copies: Copies,
    third_party: Arc<ThirdParty>,
    reserved: Reserved,
    preventing: Preventing,
    /// Held by the one START STOP UNIT that is stopping the unit.
    stopping: Arc<tokio::sync::Mutex<()>>,
    /// For what any initiator can have logged as often as it likes.
    log_limiter: LineLimiter,
    background_flushes: Background,
    background_stops: Background,
    /// No command touches the volume any more.
    retired: AtomicBool,
    /// Its number.
    lun: u16,
}

impl Disk {
    /// Unit `lun` of `target`.
    #[must_use]
    pub fn new(volume: Arc<dyn Volume>, target: &str, lun: u16, mut options: Options) -> Self {
        let medium = medium(volume.shape(), &options);
        let (sanitize_rate, key) = (options.sanitize_rate, options.key.take());
        let reserved = Reserved::new(options.kept.take(), options.transports);
        let unit = Unit::new(identity(target, lun, options), medium);
        let switches = AtomicU8::new(unit.defaults().to_bits());
        let state = State {
            target: target.to_owned(),
            switches,
            attention: AtomicBool::new(false),
            attentions: Mutex::default(),
            exclusive: Exclusive::default(),
            lock: MediumLock::default(),
            progress: Progress::default(),
            sanitize_rate,
            key,
            copies: Copies::default(),
            third_party: Arc::default(),
            reserved,
            preventing: Preventing::default(),
            stopping: Arc::default(),
            log_limiter: LineLimiter::default(),
            background_flushes: Background::default(),
            background_stops: Background::default(),
            retired: AtomicBool::new(false),
            lun,
        };
        Self {
            core: Arc::new(Core { volume, unit, peers: OnceLock::new(), state: Arc::new(state) }),
        }
    }

    /// The same disk for an initiator that may only read it.
    #[must_use]
    pub fn guarded(&self) -> Self {
        self.face(Arc::clone(&self.core.volume), self.core.unit.for_reader())
    }

    /// Whether it is as initiators see it that may only read it.
    pub(super) fn is_guarded(&self) -> bool {
        self.core.unit.is_for_reader()
    }

    /// The same disk for an initiator that comes by one of `ports`.
    #[must_use]
    pub fn by(&self, ports: Ports) -> Self {
        self.face(Arc::clone(&self.core.volume), self.core.unit.by(ports))
    }

    /// The same disk on `volume`, which is its own but may have grown.
    #[must_use]
    pub fn grown(&self, volume: Arc<dyn Volume>) -> Self {
        let old = self.core.unit.medium();
        let blocks = volume.shape().size / u64::from(old.capacity.block_size);
        let medium = Medium { capacity: Capacity { blocks, ..old.capacity }, ..*old };
        self.face(volume, self.core.unit.on(medium))
    }

    /// Whether `other` is a face of the same disk.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core.state, &other.core.state)
    }

    fn face(&self, volume: Arc<dyn Volume>, unit: Unit) -> Self {
        let state = Arc::clone(&self.core.state);
        Self { core: Arc::new(Core { volume, unit, peers: OnceLock::new(), state }) }
    }

    /// The same disk, which can be introduced to others.
    #[must_use]
    pub fn again(&self) -> Self {
        self.face(Arc::clone(&self.core.volume), self.core.unit.clone())
    }

    /// Its ports, as seen by the one its initiators come by.
    #[must_use]
    pub fn ports(&self) -> &Ports {
        self.core.unit.ports()
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

    /// Lets no command touch the volume or its reservations any more: returns when none does, nor a SANITIZE, which ends
    /// where it is. The disk is on its way out.
    pub async fn retire(&self) {
        self.core.state.retired.store(true, Ordering::Release);
        self.core.state.progress.wake();
        self.core.state.lock.recheck();
        drop(self.core.state.lock.exclusive().await);
        self.core.state.reserved.retire().await;
    }

    /// Tells disks of one another that an initiator meets in one session. It is said once of each.
    pub fn introduce<'a>(disks: impl Iterator<Item = &'a Self> + Clone) {
        let peers: Arc<[_]> = disks.clone().map(|disk| Arc::downgrade(&disk.core)).collect();
        for disk in disks {
            let said = disk.core.peers.set(Arc::clone(&peers));
            debug_assert!(said.is_ok(), "a disk belongs to one device");
        }
    }
}

fn identity(target: &str, lun: u16, options: Options) -> Identity {
    let own = Identity::new(target, lun);
    Identity {
        vendor: options.vendor.unwrap_or(own.vendor),
        product: options.product.unwrap_or(own.product),
        revision: options.revision.unwrap_or(own.revision),
        serial: options.serial.unwrap_or(own.serial),
        ..own
    }
}

fn medium(shape: &Shape, options: &Options) -> Medium {
    let Shape { size, block_size, physical_block_size, .. } = *shape;
    let physical_block_size =
        options.physical_block_size.unwrap_or(physical_block_size).max(block_size);
    let discard = shape.discard.filter(|_| options.thin);
    Medium {
        capacity: Capacity {
            blocks: size / u64::from(block_size),
            block_size,
            physical_exponent: (physical_block_size / block_size).ilog2() as u8,
            provisioning_managed: discard.is_some(),
            reads_zeroes: discard.is_some_and(|discard| discard.reads_zeroes),
            protected: false,
        },
        removable: options.removable,
        read_only: shape.read_only || options.read_only,
        write_cache: shape.write_cache,
        unmap_granularity: discard.map(|discard| (discard.granularity / block_size).max(1)),
        transfer_max: TRANSFER_MAX / block_size,
        // A volume promises that a block is written whole or not at all, and no more than that.
        atomic_max: if options.vanishes { TRANSFER_MAX / block_size } else { 1 },
        crypto_erase: options.key.is_some(),
    }
}

impl LogicalUnit for Disk {
    fn data_out_len(&self, command: &Parsed) -> u32 {
        self.core.unit.data_out(command, self.core.switches())
    }

    fn data_in_len(&self, command: &Parsed) -> u32 {
        match command.cdb {
            Ok(Cdb::Read(access))
                if access.blocks.count <= TRANSFER_MAX / self.core.unit.block_size() =>
            {
                access.blocks.count * self.core.unit.block_size()
            }
            // Refused, or answered with a few bytes.
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
        self.core.attend(|attentions| attentions.attach(nexus));
    }

    fn detach(&self, nexus: Nexus) {
        self.core.state.reserved.detach(nexus);
        self.core.state.preventing.set(nexus, false);
        self.core.state.copies.forget(nexus);
        self.core.attend(|attentions| attentions.detach(nexus));
    }

    fn reset(&self) {
        self.core.state.reserved.reset();
        self.core.state.preventing.clear();
        self.core.state.copies.clear();
        self.core.attend(|attentions| {
            // A reset brings no medium back, and ends no sanitize. It starts a unit that is stopped, which
            // SPC-4, 5.12.3 allows: who resets it wants it back.
            let readiness = match self.core.switches().readiness {
                Readiness::Stopped => Readiness::Ready,
                other => other,
            };
            self.core.switch(Switches { readiness, ..self.core.unit.defaults() });
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

impl Core {
    async fn run(self: Arc<Self>, nexus: Nexus, command: Command, abort: Abort) -> Response {
        match self.outcome(nexus, command, &abort).await {
            Ok(data) => Response { status: Status::Good, data, sense: Bytes::new() },
            Err(fault) => fault.response(self.sense_format()),
        }
    }

    async fn outcome(
        self: &Arc<Self>,
        nexus: Nexus,
        command: Command,
        abort: &Abort,
    ) -> Result<Vec<Bytes>, Fault> {
        let parsed = &command.parsed;
        // SAM-5, 5.3.3: a reservation conflict takes precedence over a unit attention.
        if parsed.cdb.is_ok() {
            self.state.reserved.check(nexus, parsed.traits.class)?;
        }
        if let Some(attention) = self.reported(nexus, parsed) {
            return Err(attention.into());
        }
        let cdb = parsed.cdb?;
        let switches = self.switches();
        let step = self.unit.plan(parsed, switches)?;
        let needed = cdb.data_out(self.unit.block_size()).unwrap_or(0);
        check_data_out(&cdb, &command, needed, self.unit.block_size())?;
        let data = command.data;
        let answer = match step {
            Step::Reply(data) => return Ok(vec![data.into()]),
            Step::Copy => self.copy(nexus, data, abort).await?,
            Step::Unit(op) => return self.manage(nexus, op, data, needed, abort).await,
            Step::Medium(op) => self.touch(op, data, abort).await?,
        };
        self.flush_if_uncached(switches).await.map(|()| answer)
    }

    /// Does what a command asks for with the state of the unit.
    async fn manage(
        self: &Arc<Self>,
        nexus: Nexus,
        op: UnitOp,
        data: Vec<Bytes>,
        needed: u32,
        abort: &Abort,
    ) -> Result<Vec<Bytes>, Fault> {
        match op {
            UnitOp::RequestSense { format, allocation } => {
                let sense = self.request_sense(nexus).emit(format);
                return Ok(vec![unit::truncate(sense, allocation).into()]);
            }
            UnitOp::ReportLuns { select, allocation } => {
                return self.report_luns(nexus, select, allocation);
            }
            UnitOp::PersistentIn { action, allocation } => {
                let report = self.state.reserved.report(nexus, action)?;
                return Ok(vec![unit::truncate(report, allocation).into()]);
            }
            UnitOp::Select(form) => {
                let list = data::joined(data, needed as usize);
                self.select(nexus, form, &list).await?;
            }
            UnitOp::PersistentOut(out) => {
                let list = data::joined(data, needed as usize);
                let aftermath = self.state.reserved.change(nexus, out, &list, &self.unit).await?;
                // What it waits for may be a command that waits for it: aborted, it does not wait.
                abort.unless(self.settle(aftermath)).await.map(drop)?;
            }
            UnitOp::Reserve => self.state.reserved.reserve(nexus).await?,
            UnitOp::Release => self.state.reserved.release(nexus).await?,
            UnitOp::Prevent(prevent) => self.state.preventing.set(nexus, prevent),
            UnitOp::Eject { flush } => return self.eject(flush).await,
            UnitOp::Load => return self.load(nexus),
            UnitOp::Stop { flush, immediate: true } => self.stop_in_background(nexus, flush),
            UnitOp::Stop { flush, immediate: false } => self.stop(flush, abort).await?,
            UnitOp::Start => return self.start(),
            UnitOp::FlushLater => self.flush_in_background(nexus),
            UnitOp::Sanitize { method, immediate, unrestricted } => {
                return self.sanitize(method, immediate, unrestricted, data, abort).await;
            }
            UnitOp::SanitizeExit => return self.exit_failure(),
            UnitOp::CopyStatus { id, allocation } => {
                return self.copy_status(nexus, id, allocation);
            }
        }
        Ok(Vec::new())
    }

    fn report_luns(&self, nexus: Nexus, select: u8, allocation: u32) -> Result<Vec<Bytes>, Fault> {
        let peers: Vec<_> = self.peers().collect();
        let luns: Vec<_> = peers.iter().map(|peer| peer.state.lun).collect();
        let list = unit::luns(select, allocation, &luns)?;
        // SPC-4, 6.33: who reads the list need not be told, by any unit, that it has changed.
        peers.into_iter().for_each(|core| Disk { core }.listed(nexus));
        Ok(vec![list.into()])
    }

    /// Makes stable what a command wrote that was planned with `planned`, if the cache has been switched off since:
    /// the flush of the MODE SELECT may have come before the write, and without a cache GOOD means stable.
    async fn flush_if_uncached(&self, planned: Switches) -> Result<(), Fault> {
        if !planned.write_cache {
            return Ok(());
        }
        // Either this sees the switch, or the flush behind the switch sees the write.
        fence(Ordering::SeqCst);
        if self.switches().write_cache { Ok(()) } else { self.flush().await }
    }

    fn peers(&self) -> impl Iterator<Item = Arc<Self>> {
        let peers = self.peers.get().map_or(&[][..], |peers| peers);
        peers.iter().filter_map(Weak::upgrade)
    }

    /// Tells others what a change of the reservations did to them, at once. What is returned waits until the
    /// tasks that it ends are dead: none of them can touch the medium any more (SPC-4, 5.13.11.2.6).
    fn settle(
        &self,
        Aftermath { attentions: told, abort }: Aftermath,
    ) -> impl Future<Output = ()> + use<> {
        if !told.is_empty() {
            self.attend(|attentions| {
                told.into_iter().for_each(|(nexus, condition)| attentions.tell(nexus, condition));
            });
        }
        // SPC-4, 5.13.11.2.6: nor does one that is gone keep the medium in.
        abort.iter().for_each(|(nexus, _)| self.state.preventing.set(*nexus, false));
        let copies = self.state.third_party.end(&|of| abort.iter().any(|(nexus, _)| *nexus == of));
        let dying = abort.iter().map(|(_, initiator)| initiator.abort_tasks(self.state.lun));
        join(copies, join_all(dying)).map(drop)
    }

    /// The unit attention that `nexus` is told instead of running the command.
    fn reported(&self, nexus: Nexus, command: &Parsed) -> Option<Sense> {
        let pending = self.state.attention.load(Ordering::Acquire);
        // One that cannot be read reports it too: the condition comes before the fault.
        let reports = command.cdb.is_err() || command.traits.attention == Manner::Reports;
        if !pending || !reports {
            return None;
        }
        self.attend(|attentions| attentions.take(nexus))
    }

    /// What REQUEST SENSE returns (SPC-4, 6.39): a pending unit attention, or else how the unit is.
    fn request_sense(&self, nexus: Nexus) -> Sense {
        if let Some(attention) = self.attend(|attentions| attentions.take(nexus)) {
            return attention;
        }
        if let Some(inaccessible) = self.unit.ports().own().access.sense() {
            return inaccessible;
        }
        let readiness = self.switches().readiness;
        let ready = Sense::new(Key::NoSense, Additional::NONE);
        let sense = readiness.sense().unwrap_or(ready);
        if readiness == Readiness::Sanitizing { self.state.progress.add_to(sense) } else { sense }
    }

    /// Puts the switches of a MODE SELECT in force and tells the other initiators.
    async fn select(&self, nexus: Nexus, form: Form, list: &[u8]) -> Result<(), Fault> {
        let (old, new) = self.attend(|attentions| {
            let old = self.switches();
            let new = self.unit.select(form, list, old)?;
            if new != old {
                self.switch(new);
                attentions.establish(Additional::MODE_PARAMETERS_CHANGED, Some(nexus));
            }
            Ok::<_, Sense>((old, new))
        })?;
        if old.write_cache && !new.write_cache {
            // SBC-3, 6.5.5: what the cache holds becomes stable when it is switched off. Writes from
            // here on are stable by themselves, and those under way see to it when they end.
            fence(Ordering::SeqCst);
            self.flush().await?;
        }
        Ok(())
    }

    /// Keeps for `nexuses` how something failed that they have GOOD for already.
    fn defer(&self, nexuses: &BTreeSet<Nexus>, outcome: Result<(), Fault>) {
        let sense = match outcome {
            Ok(()) => return,
            Err(Fault::Check(sense)) => sense,
            // A status has no deferred form; what failed was not done all the same.
            Err(Fault::Status(_)) => {
                Sense::new(Key::HardwareError, Additional::INTERNAL_TARGET_FAILURE)
            }
        };
        self.attend(|attentions| {
            nexuses.iter().for_each(|nexus| attentions.defer(*nexus, sense));
        });
    }

    /// How a request failed that began at block `lba`. Where nobody but the store is to blame, the log says so.
    fn fault(&self, error: &volume::Error, lba: Option<u64>) -> Fault {
        let (target, lun) = (&self.state.target, self.state.lun);
        let why = std::error::Error::source(error).map(display);
        match error.kind.blame() {
            Blame::Store | Blame::Peer => {
                if let Some((Permit { suppressed }, last)) = self.state.log_limiter.permit() {
                    warn!(target, lun, lba, %error, why, suppressed, "the volume failed");
                    if last {
                        warn!(
                            target,
                            lun, "too many lines about it: more are held back for a minute"
                        );
                    }
                }
            }
            Blame::Caller | Blame::Circumstance => debug!(target, lun, lba, %error, why),
        }
        Fault::of_volume(error, lba)
    }

    async fn flush(&self) -> Result<(), Fault> {
        self.volume.flush().await.map_err(|error| self.fault(&error, None))
    }

    /// Works on the attentions, then sets the flag that saves other commands the lock.
    fn attend<T>(&self, work: impl FnOnce(&mut Attentions<Nexus>) -> T) -> T {
        let mut attentions: MutexGuard<'_, _> =
            self.state.attentions.lock().unwrap_or_else(PoisonError::into_inner);
        let done = work(&mut attentions);
        self.state.attention.store(attentions.any(), Ordering::Release);
        done
    }

    fn switches(&self) -> Switches {
        Switches::from_bits(self.state.switches.load(Ordering::Acquire))
    }

    fn switch(&self, switches: Switches) {
        self.state.switches.store(switches.to_bits(), Ordering::Release);
        if switches.readiness != Readiness::Ready {
            self.state.lock.recheck();
        }
    }

    fn sense_format(&self) -> Format {
        if self.switches().descriptor_sense { Format::Descriptor } else { Format::Fixed }
    }

    fn span(&self, blocks: Blocks) -> Span {
        let block = u64::from(self.unit.block_size());
        Span::new(blocks.lba * block, u64::from(blocks.count) * block)
    }
}

/// Refuses data-out that are not what the command block asks for, before anything is touched.
///
/// Where the length says what the data mean, the announced one must be it. A write of which less was
/// announced is carried out as far as whole blocks came, and the transport reports the rest as a residual
/// overflow (RFC 7143, 11.4.5.1); other commands would mean something else then.
fn check_data_out(cdb: &Cdb, command: &Command, needed: u32, block_size: u32) -> Result<(), Sense> {
    let count = match cdb {
        Cdb::WriteSame { access, .. } | Cdb::CompareAndWrite(access) => Some(access.count_at),
        _ => None,
    };
    if let Some(at) = count.filter(|_| command.announced != needed) {
        return Err(Sense::invalid_cdb(at.into(), None));
    }
    let came = data::length(&command.data);
    let whole = came.is_multiple_of(block_size as usize)
        && matches!(cdb, Cdb::Write(_) | Cdb::WriteVerify(..));
    if came < needed as usize && !whole {
        return Err(Sense::illegal(Additional::INVALID_FIELD_IN_INFORMATION_UNIT));
    }
    Ok(())
}

const fn durability(durable: bool) -> Durability {
    if durable { Durability::Durable } else { Durability::Volatile }
}

#[cfg(test)]
mod tests;
