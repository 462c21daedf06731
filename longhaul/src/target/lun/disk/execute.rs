//! How a command is carried out: planned by the device server of `proto`, which knows no I/O, then done with
//! the state of the unit or with the medium.

use std::collections::BTreeSet;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::future::{FutureExt as _, join, join_all};
use proto::scsi::attention::{AttentionHandling, Attentions};
use proto::scsi::cdb::Form;
use proto::scsi::log;
use proto::scsi::mode::Switches;
use proto::scsi::pass_through::DeviceClass;
use proto::scsi::readiness::Readiness;
use proto::scsi::sense::{Additional, Format, Key};
use proto::scsi::unit::{self, Step, UnitOp};
use proto::scsi::{Blocks, Cdb, Parsed, Residual, Sense, Status};
use tracing::field::display;
use tracing::{debug, warn};
use volume::{Blame, Durability, Span, Work};

use super::super::answer::Abort;
use super::super::fault::{Fault, INTERNAL};
use super::super::{Command, Nexus, Response, data};
use super::reserved::ReservationEffects;
use super::tape::TapeOutcome;
use super::{Core, Disk};
use crate::log_limiter::Permit;

impl Core {
    pub(super) async fn run(
        self: Arc<Self>,
        nexus: Nexus,
        command: Command,
        abort: Abort,
    ) -> Response {
        if let Some(passed) = self.state.passed.clone() {
            return Box::pin(self.run_on_device(passed, nexus, command, abort)).await;
        }
        // A copy: what is borrowed here would have a second place in the room for a command.
        if matches!(command.parsed.cdb, Ok(Cdb::Tape(_))) || self.is_about_disc(command.parsed) {
            // As below: the room for it is made for drives only.
            return Box::pin(self.run_on_drive(nexus, command, abort)).await;
        }
        match self.outcome(nexus, command, &abort).await {
            Ok(data) => Response {
                status: Status::Good,
                data,
                sense: Bytes::new(),
                residual: Residual::None,
            },
            Err(fault) => fault.response(self.sense_format()),
        }
    }

    /// The same for a command about the tape or disc in a drive.
    async fn run_on_drive(
        self: Arc<Self>,
        nexus: Nexus,
        command: Command,
        abort: Abort,
    ) -> Response {
        match self.disc.is_some() {
            true => self.run_on_disc(nexus, command, abort).await,
            false => self.run_on_tape(nexus, command, abort).await,
        }
    }

    async fn outcome(
        self: &Arc<Self>,
        nexus: Nexus,
        command: Command,
        abort: &Abort,
    ) -> Result<Vec<Bytes>, Fault> {
        let parsed = &command.parsed;
        self.admit(nexus, parsed)?;
        let switches = self.switches();
        let step = self.unit.plan(parsed, switches)?;
        let cdb = parsed.cdb?;
        let needed = cdb.data_out(self.unit.block_size()).unwrap_or(0);
        check_data_out(&cdb, &command, needed, self.unit.block_size())?;
        let data = command.data;
        let answer = match step {
            Step::Reply(data) => return Ok(vec![data.into()]),
            // What is rare is in a box of its own: the room for it is not made for each read and write.
            Step::Copy => Box::pin(self.copy(nexus, data, abort)).await?,
            Step::Unit(op) => return Box::pin(self.manage(nexus, op, data, needed, abort)).await,
            Step::Medium(op) => self.access_medium(op, data, abort).await?,
            Step::Changer(op) => return Box::pin(self.work_on_elements(op, abort)).await,
            Step::Tape(_) | Step::Close(_) | Step::ReserveTrack(_) | Step::CueSheet => {
                return Err(INTERNAL.into());
            }
        };
        self.flush_if_uncached(switches).await?;
        // What was done too late is not answered: another gateway may have changed the medium since.
        self.refuse_without_permit().map(|()| answer)
    }

    /// Whether `nexus` may run a command now.
    pub(super) fn admit(&self, nexus: Nexus, parsed: &Parsed) -> Result<(), Fault> {
        self.refuse_outdated()?;
        // SAM-5, 5.3.3: a reservation conflict takes precedence over a unit attention.
        if parsed.cdb.is_ok() {
            self.state.reserved.check(nexus, parsed.traits.class)?;
        }
        let unaware = &self.state.unaware;
        let class = DeviceClass::of(self.unit.medium().device.code());
        match self.reported(nexus, parsed) {
            None => Ok(unaware.check(nexus, class, parsed.opcode)?),
            Some(attention) => {
                unaware.told(nexus, class, parsed.opcode, &attention);
                Err(attention.into())
            }
        }
    }

    /// The same for a command that only tapes have: it may end with data and sense.
    async fn run_on_tape(
        self: Arc<Self>,
        nexus: Nexus,
        command: Command,
        abort: Abort,
    ) -> Response {
        match self.tape_outcome(nexus, command, &abort).await {
            Ok(outcome) => outcome.response(&self),
            Err(fault) => fault.response(self.sense_format()),
        }
    }

    async fn tape_outcome(
        self: &Arc<Self>,
        nexus: Nexus,
        command: Command,
        abort: &Abort,
    ) -> Result<TapeOutcome, Fault> {
        let parsed = &command.parsed;
        // The length of blocks before the unit attention that tells of another one: with it nothing is written.
        let switches = self.switches();
        self.admit(nexus, parsed)?;
        let (step, cdb) = (self.unit.plan(parsed, switches)?, parsed.cdb?);
        let needed = self.unit.needs(&cdb, switches).unwrap_or(u32::MAX);
        if data::length(&command.data) < needed as usize {
            return Err(Sense::illegal(Additional::INVALID_FIELD_IN_INFORMATION_UNIT).into());
        }
        match step {
            Step::Tape(op) => {
                let outcome = self.work_on_tape(nexus, op, command.data, abort).await?;
                self.refuse_without_permit().map(|()| outcome)
            }
            Step::Reply(data) => Ok(TapeOutcome::replying(data)),
            Step::Unit(_)
            | Step::Medium(_)
            | Step::Changer(_)
            | Step::Close(_)
            | Step::ReserveTrack(_)
            | Step::CueSheet
            | Step::Copy => Err(INTERNAL.into()),
        }
    }

    /// Does what a command asks for with the state of the unit.
    pub(super) async fn manage(
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
            UnitOp::LogSense { page, subpage, allocation } => {
                let page = self.log_page(page, subpage).await?;
                return Ok(vec![unit::truncate(page, allocation).into()]);
            }
            UnitOp::ReportTimestamp { allocation } => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let now = log::emit_timestamp(now.as_millis() as u64);
                return Ok(vec![unit::truncate(now, allocation).into()]);
            }
            UnitOp::PersistentIn { action, allocation } => {
                let report = self.state.reserved.report(nexus, action).await?;
                return Ok(vec![unit::truncate(report, allocation).into()]);
            }
            UnitOp::Select(form) => {
                let list = data::joined(data, needed as usize);
                self.select(nexus, form, &list).await?;
            }
            UnitOp::PersistentOut(out) => {
                let list = data::joined(data, needed as usize);
                let effects = self.state.reserved.change(nexus, out, &list, &self.unit).await?;
                // What it waits for may be a command that waits for it: aborted, it does not wait.
                abort.unless(self.settle(effects)).await?;
                abort.unless(self.state.reserved.settled(out.action)).await??;
            }
            UnitOp::Reserve => self.state.reserved.reserve(nexus).await?,
            UnitOp::Release => self.state.reserved.release(nexus).await?,
            UnitOp::Prevent(prevent) => self.prevent(nexus, prevent),
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
            // A request may end this very session, which waits for its commands.
            UnitOp::CarryOut => abort.unless(self.carry_out(data, needed)).await?,
            UnitOp::ReturnAnswer { allocation } => return Ok(self.answer_of_server(allocation)),
            UnitOp::EventStatus { classes, allocation } => {
                let readiness = self.switches().readiness;
                let report = self.media_events().report(nexus, classes, allocation, readiness);
                return Ok(vec![report.into()]);
            }
            UnitOp::CopyStatus { id, allocation } => {
                return self.copy_status(nexus, id, allocation);
            }
        }
        Ok(Vec::new())
    }

    /// A log page; the file system is asked for the one that tells of it alone.
    async fn log_page(&self, page: u8, subpage: u8) -> Result<Vec<u8>, Sense> {
        let space = self.state.space.as_ref().filter(|space| space.is_open());
        let found = match space {
            Some(space) if page == log::FREE_SPACE => space.free_space().await,
            _ => None,
        };
        log::sense((page, subpage), space.is_some(), found)
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
    pub(super) async fn flush_if_uncached(&self, planned: Switches) -> Result<(), Fault> {
        if !planned.write_cache {
            return Ok(());
        }
        // Either this sees the switch, or the flush behind the switch sees the write.
        fence(Ordering::SeqCst);
        if self.switches().write_cache { Ok(()) } else { self.flush().await }
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = Arc<Self>> {
        let peers = self.peers.get().map_or(&[][..], |peers| peers);
        peers.iter().filter_map(Weak::upgrade)
    }

    /// Tells others what a change of the reservations did to them, at once. What is returned waits until the
    /// tasks that it ends are dead: none of them can touch the medium any more (SPC-4, 5.13.11.2.6).
    pub(super) fn settle(
        self: &Arc<Self>,
        ReservationEffects { attentions: told, abort }: ReservationEffects,
    ) -> impl Future<Output = ()> + use<> {
        if !told.is_empty() {
            self.attend(|attentions| {
                told.into_iter().for_each(|(nexus, condition)| attentions.tell(nexus, condition));
            });
        }
        // SPC-4, 5.13.11.2.6: nor does one that is gone keep the medium in.
        abort.iter().for_each(|(nexus, _)| self.prevent(*nexus, false));
        self.follow_prevention();
        let copies = self.state.third_party.end(&|of| abort.iter().any(|(nexus, _)| *nexus == of));
        let dying = abort.iter().map(|(_, initiator)| initiator.abort_tasks(self.state.lun));
        join(copies, join_all(dying)).map(drop)
    }

    /// The unit attention that `nexus` is told instead of running the command.
    fn reported(&self, nexus: Nexus, command: &Parsed) -> Option<Sense> {
        let pending = self.state.conditions.has_attention();
        // One that cannot be read reports it too: the condition comes before the fault.
        let reports =
            command.cdb.is_err() || command.traits.attention == AttentionHandling::Reports;
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
        let (old, new) = self.change(|attentions, switches| {
            let old = *switches;
            let new = self.unit.select(form, list, old)?;
            if new != old {
                *switches = new;
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
    pub(super) fn defer(&self, nexuses: &BTreeSet<Nexus>, outcome: Result<(), Fault>) {
        let sense = match outcome {
            Ok(()) => return,
            Err(Fault::Check(sense)) => sense,
            // A status has no deferred form; what failed was not done all the same.
            Err(Fault::Status(_)) => INTERNAL,
        };
        self.attend(|attentions| {
            nexuses.iter().for_each(|nexus| attentions.defer(*nexus, sense));
        });
    }

    /// How a request failed that began at block `lba`. Where nobody but the store is to blame, the log says so.
    pub(super) fn fault(&self, error: &volume::Error, lba: Option<u64>) -> Fault {
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

    /// Makes stable what was written, of a disc with what is known of it.
    fn stable(&self) -> Work<'_, ()> {
        match &self.disc {
            Some(disc) => Box::pin(disc.settle(&*self.volume)),
            None => self.volume.flush(),
        }
    }

    pub(super) async fn flush(&self) -> Result<(), Fault> {
        self.stable().await.map_err(|error| self.fault(&error, None))
    }

    /// Works on what initiators are to be told.
    pub(super) fn attend<T>(&self, work: impl FnOnce(&mut Attentions<Nexus>) -> T) -> T {
        self.state.conditions.change(|attentions, _| work(attentions))
    }

    /// The same, together with the switches.
    pub(super) fn change<T>(
        &self,
        work: impl FnOnce(&mut Attentions<Nexus>, &mut Switches) -> T,
    ) -> T {
        let done = self.state.conditions.change(work);
        if self.switches().readiness != Readiness::Ready {
            // Commands that wait for the medium are refused now.
            self.state.lock.recheck();
        }
        done
    }

    pub(super) fn switches(&self) -> Switches {
        self.state.conditions.switches()
    }

    pub(super) fn sense_format(&self) -> Format {
        if self.switches().descriptor_sense { Format::Descriptor } else { Format::Fixed }
    }

    pub(super) fn span(&self, blocks: Blocks) -> Span {
        let block = u64::from(self.unit.block_size());
        Span::new(blocks.lba * block, u64::from(blocks.count) * block)
    }
}

/// Refuses data-out that are not what the command block asks for, before anything is touched.
///
/// Where the length says what the data mean, the announced one must be it. A write of which less was
/// announced is carried out as far as whole blocks came, and the transport reports the rest as a residual
/// overflow (RFC 7143, 11.4.5.1); other commands would mean something else then.
pub(super) fn check_data_out(
    cdb: &Cdb,
    command: &Command,
    needed: u32,
    block_size: u32,
) -> Result<(), Sense> {
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

pub(super) const fn durability(durable: bool) -> Durability {
    if durable { Durability::Durable } else { Durability::Volatile }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How large a future is that `work` makes.
    const fn size<A, B, C, D, F>(_: &impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// Each command allocates its own. The C library has larger pieces than this at hand only after a search.
    #[test]
    fn command_under_way_is_small() {
        const AT_HAND: usize = 1032;
        let size = size(&Core::run);
        assert!(size <= AT_HAND, "{size} bytes");
    }
}
