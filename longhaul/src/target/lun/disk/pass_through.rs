//! A unit that is a real device: its commands go on to it, as far as the table in `proto` allows.
//!
//! All clients reach the device by one initiator port. So what a device keeps for each initiator port is kept here for each
//! client: reservations, unit attentions, and who prevents the removal of the medium.

mod clients;
mod prevention;
mod sending;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use clients::Clients;
use proto::scsi::attention::AttentionHandling::Reports;
use proto::scsi::cdb::MinimumAccess;
use proto::scsi::inquiry::page;
use proto::scsi::pass_through::{
    self, DeviceClass, Geometry, Handling, Plan, Rights, Transfer, identity, opcodes, permits,
};
use proto::scsi::reservation::Class;
use proto::scsi::sense::{Additional, Format};
use proto::scsi::unit::{Step, truncate};
use proto::scsi::{Parsed, Residual, Sense, Sequence, Status};
use sending::Caller;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::super::answer::Abort;
use super::super::fault::{Fault, INTERNAL};
use super::super::{Command, Nexus, Response, data};
use super::execute::check_data_out;
use super::{Core, PassedThrough};
use crate::scsi_device::{DeviceData, DeviceRequest, Order, Place, ScsiDevice, block_length};

/// A device that is passed through, and what is known of it.
pub(super) struct PassThroughDevice {
    device: Arc<dyn ScsiDevice>,
    class: DeviceClass,
    maintenance: bool,
    /// The bytes of a block; zero if not known.
    block_length: AtomicU32,
    /// The block length may be another one by now.
    is_stale: AtomicBool,
    /// Held while the device is asked for it.
    asking: Mutex<()>,
    clients: Clients,
    /// Whether the device has been told to keep its medium in.
    is_locked: AtomicBool,
    /// Held while it is told that.
    locking: Mutex<()>,
    /// How many resets are under way: commands wait for their end.
    resets: watch::Sender<usize>,
    /// The device has been reset by us. Its clients have been told, and need not be told by the device again.
    was_reset: AtomicBool,
}

/// For as long a command waits for the length of blocks: the device may be busy for hours with that of another client.
const GEOMETRY_WAIT: Duration = Duration::from_secs(10);

/// The room for a list of all operation codes: there are devices that refuse more than 16 bits can say.
const OPCODES_ROOM: u32 = 0xFFFF;

/// A command of a client that waits for its turn, and what is to be done with it.
struct Queued {
    nexus: Nexus,
    place: Place,
    plan: Plan,
}

impl PassThroughDevice {
    pub(super) fn new(PassedThrough { device, maintenance }: PassedThrough) -> Self {
        Self {
            class: DeviceClass::of(device.peripheral()),
            block_length: AtomicU32::new(device.block_length()),
            is_stale: AtomicBool::new(device.block_length() == 0),
            device,
            maintenance,
            asking: Mutex::default(),
            clients: Clients::default(),
            is_locked: AtomicBool::new(false),
            locking: Mutex::default(),
            resets: watch::Sender::new(0),
            was_reset: AtomicBool::new(false),
        }
    }

    /// How commands of a client follow one another.
    pub(super) fn sequence(&self) -> Option<Sequence> {
        match (self.class, self.device.order()) {
            (DeviceClass::Tape | DeviceClass::Optical, Order::Kept) => Some(Sequence::Started),
            (DeviceClass::Tape, _) => Some(Sequence::Ended),
            _ => None,
        }
    }

    fn geometry(&self) -> Geometry {
        let block_length = self.block_length.load(Ordering::Acquire);
        Geometry { block_length, transfer_max: self.device.transfer_max() }
    }
}

impl Core {
    /// How many bytes of data-out a command needs.
    pub(super) fn passed_data_out(&self, passed: &PassThroughDevice, command: &Parsed) -> u32 {
        match self.plan_for_device(passed, command) {
            Ok(Plan { handling: Handling::Target | Handling::Administration, .. }) => {
                self.unit.data_out(command, self.switches())
            }
            Ok(plan) => plan.transfer.out_max().min(passed.device.transfer_max()),
            Err(_) => 0,
        }
    }

    /// The most bytes of data-in of a command.
    pub(super) fn passed_data_in(&self, passed: &PassThroughDevice, command: &Parsed) -> u32 {
        self.plan_for_device(passed, command).map_or(0, |plan| plan.transfer.in_max())
    }

    fn passed_rights(&self, passed: &PassThroughDevice) -> Rights {
        Rights {
            read_only: self.unit.is_for_reader() || self.volume.shape().read_only,
            maintenance: passed.maintenance,
            administrator: self.administration.is_some(),
        }
    }

    fn plan_for_device(&self, passed: &PassThroughDevice, command: &Parsed) -> Result<Plan, Sense> {
        let rights = self.passed_rights(passed);
        pass_through::plan(&command.block, passed.class, rights, passed.geometry())
    }

    pub(super) async fn run_on_device(
        self: Arc<Self>,
        passed: Arc<PassThroughDevice>,
        nexus: Nexus,
        command: Command,
        abort: Abort,
    ) -> Response {
        match self.device_outcome(&passed, nexus, command, &abort).await {
            Ok(response) => response,
            Err(fault) => fault.response(Format::Fixed),
        }
    }

    async fn device_outcome(
        self: &Arc<Self>,
        passed: &Arc<PassThroughDevice>,
        nexus: Nexus,
        command: Command,
        abort: &Abort,
    ) -> Result<Response, Fault> {
        if self.state.retired.load(Ordering::Acquire) {
            return Err(Sense::illegal(Additional::LOGICAL_UNIT_NOT_SUPPORTED).into());
        }
        let parsed = &command.parsed;
        // Before anything is waited for: commands have their turn as they came.
        let place = pass_through::has_turn(&parsed.block, passed.class)
            .then(|| passed.device.turns().enter());
        // One that is not ready does not tell: it is asked behind each command, and not before as well.
        if passed.block_length.load(Ordering::Acquire) != 0 {
            self.follow_geometry(passed, abort).await?;
        }
        let planned = self.plan_for_device(passed, parsed);
        if let Ok(plan) = &planned {
            // SAM-5, 5.3.3: a reservation conflict takes precedence over a unit attention.
            self.state.reserved.check(nexus, plan.class)?;
        }
        let is_told = planned.as_ref().map_or(true, |plan| plan.attention == Reports);
        if let Some(told) = self.told_first(passed, Caller { nexus: Some(nexus), is_told })? {
            return Ok(told);
        }
        let plan = planned?;
        self.check_tape_motion(passed, &plan)?;
        if matches!(plan.handling, Handling::Target | Handling::Administration) {
            return self.answer_itself(nexus, command, abort).await;
        }
        let Some(place) = place else {
            self.unit.ports().own().access.check(MinimumAccess::Active)?;
            return self.prevent_on_device(passed, nexus, parsed.block, abort).await;
        };
        let queued = Queued { nexus, place, plan };
        if plan.handling != Handling::Inquiry {
            self.unit.ports().own().access.check(MinimumAccess::Active)?;
        }
        self.in_turn(passed, queued, command, abort).await
    }

    /// What the device carries out when the turn of the command comes.
    async fn in_turn(
        self: &Arc<Self>,
        passed: &Arc<PassThroughDevice>,
        queued: Queued,
        command: Command,
        abort: &Abort,
    ) -> Result<Response, Fault> {
        let nexus = queued.nexus;
        match queued.plan.handling {
            Handling::Inquiry => self.inquire(passed, queued, &command, abort).await,
            Handling::RequestSense => self.sense_of_device(passed, queued, command, abort).await,
            Handling::Opcodes => self.opcodes_of_device(passed, queued, command, abort).await,
            Handling::Settings(condition) => {
                let response = self.forward(passed, queued, command, abort).await?;
                if response.status == Status::Good {
                    // The device has told other initiator ports, and all clients share one.
                    self.attend(|attentions| attentions.establish(condition, Some(nexus)));
                    passed.is_stale.store(true, Ordering::Release);
                    self.follow_geometry(passed, abort).await?;
                }
                Ok(response)
            }
            _ => self.forward(passed, queued, command, abort).await,
        }
    }

    /// A drive has one head: who may only read does not move it under one who writes.
    fn check_tape_motion(&self, passed: &PassThroughDevice, plan: &Plan) -> Result<(), Fault> {
        let moves = passed.class == DeviceClass::Tape && plan.class == Class::Writes;
        if moves && self.passed_rights(passed).read_only && passed.clients.any_may_write() {
            return Err(Sense::illegal(Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS).into());
        }
        Ok(())
    }

    /// What is about the target, or what it keeps for each client.
    async fn answer_itself(
        self: &Arc<Self>,
        nexus: Nexus,
        command: Command,
        abort: &Abort,
    ) -> Result<Response, Fault> {
        let cdb = command.parsed.cdb?;
        let step = self.unit.plan(&command.parsed, self.switches())?;
        let needed = cdb.data_out(self.unit.block_size()).unwrap_or(0);
        check_data_out(&cdb, &command, needed, self.unit.block_size())?;
        match step {
            Step::Reply(data) => Ok(good(data)),
            Step::Unit(op) => {
                let data = self.manage(nexus, op, command.data, needed, abort).await?;
                Ok(Response {
                    status: Status::Good,
                    data,
                    sense: Bytes::new(),
                    residual: Residual::None,
                })
            }
            _ => Err(INTERNAL.into()),
        }
    }

    /// Has the device carry a command out. A unit attention that it tells instead is told to every client.
    async fn forward(
        self: &Arc<Self>,
        passed: &Arc<PassThroughDevice>,
        Queued { nexus, place, plan }: Queued,
        command: Command,
        abort: &Abort,
    ) -> Result<Response, Fault> {
        let data = outgoing(plan.transfer, command.data, command.announced)?;
        let block = command.parsed.block;
        let request = DeviceRequest { block, data, timeout: plan.timeout };
        let caller = Caller { nexus: Some(nexus), is_told: plan.attention == Reports };
        let answer = self.send(passed, (caller, place), request, abort).await?;
        self.follow_geometry(passed, abort).await?;
        Ok(answer)
    }

    /// Finds out how long blocks are, if that may have changed.
    async fn follow_geometry(
        self: &Arc<Self>,
        passed: &Arc<PassThroughDevice>,
        abort: &Abort,
    ) -> Result<(), Fault> {
        if passed.is_stale.load(Ordering::Acquire) {
            let (core, device) = (Arc::clone(self), Arc::clone(passed));
            // It counts also if nobody waits for it any more.
            let found = tokio::spawn(async move { core.ask_geometry(&device).await });
            let _: Result<_, _> = abort.unless(timeout(GEOMETRY_WAIT, found)).await?;
        }
        Ok(())
    }

    async fn ask_geometry(self: &Arc<Self>, passed: &PassThroughDevice) {
        let _asking = passed.asking.lock().await;
        if !passed.is_stale.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut told = |sense: Sense| {
            self.note_sense(passed, Caller::OURS, &sense.emit(Format::Fixed).into());
        };
        let length = block_length(&*passed.device, &mut told).await;
        passed.block_length.store(length, Ordering::Release);
        if length == 0 && passed.class == DeviceClass::Disk {
            // It is not ready: it is asked again. An optical drive has blocks of 2048 bytes until it says otherwise.
            passed.is_stale.store(true, Ordering::Release);
        }
        self.follow_prevention();
    }

    /// INQUIRY: the device as it is, but the unit is this target's.
    async fn inquire(
        self: &Arc<Self>,
        passed: &Arc<PassThroughDevice>,
        queued: Queued,
        command: &Command,
        abort: &Abort,
    ) -> Result<Response, Fault> {
        let parsed = &command.parsed;
        let [_, flags, code, high, low, ..] = parsed.block;
        let is_vital = flags & 0x01 != 0;
        let room = u32::from(u16::from_be_bytes([high, low]));
        let ours = || match self.unit.plan(parsed, self.switches()) {
            Ok(Step::Reply(data)) => Ok(data),
            Ok(_) => Err(INTERNAL),
            Err(refused) => Err(refused),
        };
        if is_vital && identity::is_ours(code) {
            let mut data = ours()?;
            if let Some(byte) = data.first_mut() {
                *byte = *byte & 0xE0 | passed.device.peripheral();
            }
            return Ok(good(data));
        }
        if is_vital && code == page::SUPPORTED {
            return self.pages_of_device(passed, queued, room, abort).await;
        }
        let mut response = self.forward(passed, queued, command.clone(), abort).await?;
        if response.status != Status::Good {
            return Ok(response);
        }
        let data = response.data.concat();
        let data = match (is_vital, code) {
            (false, _) => identity::standard(data, &ours()?),
            (true, page::BLOCK_LIMITS) if passed.class == DeviceClass::Disk => {
                let Geometry { block_length, transfer_max } = passed.geometry();
                identity::block_limits(data, transfer_max / block_length.max(512))
            }
            _ => data,
        };
        response.data = vec![data.into()];
        Ok(response)
    }

    /// The pages of vital product data there are. A device may have no such list.
    async fn pages_of_device(
        self: &Arc<Self>,
        passed: &Arc<PassThroughDevice>,
        Queued { nexus, place, .. }: Queued,
        room: u32,
        abort: &Abort,
    ) -> Result<Response, Fault> {
        let mut block = [0; 16];
        [block[0], block[1], block[4]] = [0x12, 0x01, 0xFF];
        let timeout = pass_through::Pace::Query.timeout(passed.class);
        let request = DeviceRequest { block, data: DeviceData::In(0xFF), timeout };
        let caller = Caller { nexus: Some(nexus), is_told: false };
        let answer = self.send(passed, (caller, place), request, abort).await?;
        let listed = match answer.status {
            Status::Good => answer.data.concat(),
            _ => Vec::new(),
        };
        let pages = identity::supported(passed.device.peripheral(), &listed);
        Ok(good(truncate(pages, room)))
    }

    async fn sense_of_device(
        self: &Arc<Self>,
        passed: &Arc<PassThroughDevice>,
        queued: Queued,
        command: Command,
        abort: &Abort,
    ) -> Result<Response, Fault> {
        let nexus = queued.nexus;
        let [_, flags, _, _, room, ..] = command.parsed.block;
        match self.attend(|attentions| attentions.take(nexus)) {
            Some(attention) => {
                let format = if flags & 0x01 == 0 { Format::Fixed } else { Format::Descriptor };
                Ok(good(truncate(attention.emit(format), room.into())))
            }
            None => {
                let response = self.forward(passed, queued, command, abort).await?;
                // What the device tells here it tells nobody else.
                let caller = Caller { nexus: Some(nexus), is_told: false };
                self.note_sense(passed, caller, &response.data.concat().into());
                Ok(response)
            }
        }
    }

    /// The operation codes that the device has and this client may send.
    async fn opcodes_of_device(
        self: &Arc<Self>,
        passed: &Arc<PassThroughDevice>,
        mut queued: Queued,
        mut command: Command,
        abort: &Abort,
    ) -> Result<Response, Fault> {
        let rights = self.passed_rights(passed);
        let permitted = |opcode, action| permits(opcode, action, passed.class, rights);
        let [_, _, _, _, _, _, room @ .., _, _, _, _, _, _] = command.parsed.block;
        let room = u32::from_be_bytes(room);
        if let Some((opcode, action)) = opcodes::asked(&command.parsed.block) {
            if !permitted(opcode, action) {
                return Ok(good(truncate(opcodes::NOT_SUPPORTED.to_vec(), room)));
            }
            return self.forward(passed, queued, command, abort).await;
        }
        // What is cut off could not be told from what is refused.
        command.parsed.block[6..10].copy_from_slice(&OPCODES_ROOM.to_be_bytes());
        queued.plan.transfer = Transfer::In(OPCODES_ROOM);
        let mut response = self.forward(passed, queued, command, abort).await?;
        if response.status == Status::Good {
            let list = opcodes::permitted(&response.data.concat(), permitted);
            response.data = vec![truncate(list, room).into()];
        }
        Ok(response)
    }

    /// A client comes, or goes.
    pub(super) fn attach_to_device(&self, nexus: Nexus) {
        if let Some(passed) = &self.state.passed {
            passed.clients.attach(nexus, !self.passed_rights(passed).read_only);
        }
    }

    pub(super) fn detach_from_device(&self, nexus: Nexus) {
        if let Some(passed) = &self.state.passed {
            passed.clients.detach(nexus);
        }
    }

    /// LOGICAL UNIT RESET goes on to the device. Commands that come meanwhile wait.
    pub(super) fn reset_passed(&self) {
        let Some(passed) = self.state.passed.clone() else { return };
        passed.resets.send_modify(|under_way| *under_way += 1);
        passed.was_reset.store(true, Ordering::Release);
        self.all_must_look(&passed);
        tokio::spawn(async move {
            passed.device.reset().await;
            // SPC-4, 6.14: nothing prevents the removal after that.
            passed.is_locked.store(false, Ordering::Release);
            passed.is_stale.store(true, Ordering::Release);
            passed.resets.send_modify(|under_way| *under_way -= 1);
        });
    }
}

/// What goes to the device, if it is what the device waits for.
fn outgoing(transfer: Transfer, came: Vec<Bytes>, announced: u32) -> Result<DeviceData, Sense> {
    let short = Sense::illegal(Additional::INVALID_FIELD_IN_INFORMATION_UNIT);
    let length = match transfer {
        Transfer::None => return Ok(DeviceData::None),
        Transfer::In(room) => return Ok(DeviceData::In(room)),
        Transfer::Announced(room) if announced == 0 => return Ok(DeviceData::In(room)),
        _ if !transfer.is_complete(announced) => return Err(short),
        Transfer::Out(length) => length,
        Transfer::Announced(_) | Transfer::Sectors { .. } => announced,
    };
    if data::length(&came) < length as usize {
        return Err(short);
    }
    Ok(DeviceData::Out(data::joined(came, length as usize)))
}

fn good(data: Vec<u8>) -> Response {
    Response {
        status: Status::Good,
        data: vec![data.into()],
        sense: Bytes::new(),
        residual: Residual::None,
    }
}

#[cfg(test)]
mod tests;
