//! Logical units: what a SCSI transport addresses. Disks and drives stand on a `Volume`.

mod answer;
mod data;
mod disk;
mod fault;
mod medium_lock;
mod medium_permit;
mod target;
#[cfg(test)]
mod test_initiator;

pub use answer::Answer;
pub use disk::{
    Administration, Disk, ElementsChanged, ExchangeError, LoadError, Options, PassedThrough,
    Shared, StoredReservations,
};
pub use medium_permit::{MediumPermit, since_boot};
pub use proto::scsi::reservation::check_shared as check_shared_reservations;
pub use proto::scsi::reservation::is_anybody_registered;
pub use target::TargetDevice;

use bytes::Bytes;
use proto::client::ClientId;
use proto::scsi::elements::Inventory;
use proto::scsi::reservation::NexusId;
use proto::scsi::sense::Additional;
use proto::scsi::unit::changer::Movement;
use proto::scsi::{DeviceType, Parsed, Residual, Sense, Sequence, Status};
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

/// One initiator port as one target port sees it (an I_T nexus of SAM-5). The transport gives each
/// session its own number and never uses one twice while the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nexus(pub u64);

/// Most bytes of data one command moves: as much as a volume takes at a time.
pub const TRANSFER_MAX: u32 = volume::TRANSFER_MAX;

/// What a unit may ask of a nexus.
pub trait Initiator: Send + Sync {
    /// Its name, which stays the same when it logs in again.
    fn id(&self) -> &NexusId;

    /// Ends the tasks it has on unit `lun`, without an answer; done when none of them runs any more.
    fn abort_tasks(&self, lun: u16) -> Waiting<()>;
}

/// Keeps the reservations of one unit through a loss of power.
pub trait ReservationStorage: fmt::Debug + Send + Sync {
    /// What was kept last, if anything ever was.
    fn load(&self) -> io::Result<Option<Vec<u8>>>;

    /// Keeps `image` in place of what was kept before: all of it or, if that fails, nothing. Stable when
    /// done.
    fn save(&self, image: Vec<u8>) -> Waiting<io::Result<()>>;
}

/// What device servers of one unit on several machines share: its reservations.
pub trait SharedReservations: fmt::Debug + Send + Sync {
    /// Sees to it that what is kept is in force here, by [`Disk::adopt_reservations`].
    fn refresh(&self) -> Waiting<io::Result<()>>;

    /// Returns when no device server that had the medium before can carry out a task any more.
    fn settled(&self) -> Waiting<io::Result<()>>;

    /// Keeps `image` in place of `base`; `false` if that is not what is kept any more. When done it is in force at all
    /// device servers.
    fn replace(&self, base: Option<Vec<u8>>, image: Vec<u8>) -> Waiting<io::Result<bool>>;
}

/// What moves the cartridges of a media changer, and knows where they are.
pub trait MediaChanger: Send + Sync {
    /// What is where.
    fn inventory(&self) -> Inventory;

    /// Moves cartridges; done when they are there, also for a process that begins after this one was killed. A movement that
    /// fails has changed nothing.
    fn perform(&self, movement: Movement) -> Waiting<Result<(), MoveError>>;
}

/// What carries out requests to the server that a unit is of.
pub trait Administrator: Send + Sync {
    /// Carries out a request of `client`, who may administer the server; gives the answer, or why it was refused. Who stops
    /// waiting for it has taken a request back that was not begun, and no other.
    fn carry_out(&self, client: &ClientId, request: String) -> Waiting<Result<String, String>>;
}

/// Why cartridges are where they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveError {
    /// It cannot be done.
    Refused(Sense),
    /// The server is occupied with a change of its configuration: it can be tried again.
    Busy,
}

/// Something still to come; it owns all it needs.
pub type Waiting<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A command with all its data-out, ready to run.
#[derive(Clone, Debug)]
pub struct Command {
    /// The command block.
    pub parsed: Parsed,
    /// Data-out in order; together at least what [`LogicalUnit::data_out_len`] asked for, unless the
    /// initiator announced less.
    pub data: Vec<Bytes>,
    /// How much data-out the initiator announced (the expected data transfer length of a write), which
    /// may be more or less than the command block asks for: some commands must refuse that.
    pub announced: u32,
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status.
    pub status: Status,
    /// Data-in, in order; not yet cut to what the initiator expects.
    pub data: Vec<Bytes>,
    /// Sense data, empty unless the status is CHECK CONDITION.
    pub sense: Bytes,
    /// Of the data-out that the command block asks for, the bytes that were not taken; or what there was beyond what was
    /// moved.
    pub residual: Residual,
}

/// A device that executes command blocks (a logical unit of SAM-5).
pub trait LogicalUnit: Send + Sync {
    /// What it is, which says what its command blocks mean.
    fn device_type(&self) -> DeviceType;

    /// How its commands of one nexus follow one another, if it depends on their order.
    fn sequence(&self) -> Option<Sequence>;

    /// How many bytes of data-out this command needs before it can run: the transport fetches at most
    /// that, and less if the initiator announced less. Zero for a command that will be refused.
    fn data_out_len(&self, command: &Parsed) -> u32;

    /// How many bytes the unit may have in hand beside the data-out to carry out this command, if it moves blocks: what is
    /// to be read, which may be more than the initiator has room for, or what is copied, compared or written at a time.
    /// Zero for other commands.
    fn working_memory(&self, command: &Parsed) -> u32;

    /// Runs a command. What it does is ordered only by what it awaits.
    fn execute(&self, nexus: Nexus, command: Command) -> Answer;

    /// A nexus came into being: it owes this unit's power-on unit attention.
    fn attach(&self, nexus: Nexus, initiator: Arc<dyn Initiator>);

    /// A nexus is gone: its unit attentions, reservations that end with it, and mode pages go too.
    fn detach(&self, nexus: Nexus);

    /// LOGICAL UNIT RESET (SAM-5 7.7): state falls back, and every nexus gets the unit attention, the one
    /// that asked for it too. The transport has already aborted the tasks.
    fn reset(&self);

    /// Ends what copies that are tasks of other units do to this one, as the tasks of this unit are ended; done when
    /// nothing of that is under way.
    fn end_copies(&self) -> Waiting<()>;

    /// A nexus has something to be told: a unit attention.
    fn tell(&self, nexus: Nexus, condition: Additional);

    /// CLEAR TASK SET by `by`: every other nexus gets COMMANDS CLEARED BY ANOTHER INITIATOR.
    fn tasks_cleared(&self, by: Nexus);
}
