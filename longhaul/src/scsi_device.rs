//! A SCSI device that is not ours, to which command blocks go on: what a target passes through, whatever is between.

mod jobs;
mod turns;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::scsi::cdb::Block;
use proto::scsi::inquiry;
use proto::scsi::pass_through::DeviceClass;
use proto::scsi::sense::Key;
use proto::scsi::{Residual, Sense, Status};

pub use jobs::{CommandQueue, Ended, Job};
pub use turns::{COMMANDS_MAX, Concurrency, Place, Turn, Turns};

/// What comes of a command. When it is dropped, a command that has not begun never does; one that has begun is aborted where
/// that is possible, or goes on, and commands that come later wait for its end.
pub type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How many commands a device has at a time, and what becomes of their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It has one at a time.
    Single,
    /// It has several, which may overtake one another, or be carried out though one before them was told of a reset or of
    /// another medium.
    Lost,
    /// It has several, and carries them out in the order in which they were sent, or not at all.
    Kept,
}

/// A device.
pub trait ScsiDevice: Send + Sync {
    /// PERIPHERAL DEVICE TYPE.
    fn peripheral(&self) -> u8;

    /// The most bytes that go with one command.
    fn transfer_max(&self) -> u32;

    /// The bytes of its blocks when it was opened; zero if it has none, or did not tell.
    fn block_length(&self) -> u32;

    /// Its serial number when it was opened, if it tells one.
    fn serial(&self) -> Option<&str>;

    /// What it does with several commands.
    fn order(&self) -> Order;

    /// Whose turn it is.
    fn turns(&self) -> &Turns;

    /// Has a command carried out whose turn it is, once. It is on its way when this is polled first.
    fn execute(&self, turn: Turn, request: DeviceRequest) -> Pending<Ended>;

    /// What it has told to commands that were aborted, and so to nobody: see [`DeviceFailure::NotBegun`].
    fn take_unheard(&self) -> Vec<Bytes>;

    /// Resets the device, which ends what it is doing.
    fn reset(&self) -> Pending<()>;

    /// Whether it tells of each reset and lost connection itself, by a unit attention.
    fn tells_of_losses(&self) -> bool;

    /// How the connection to it is, if it is the unit of a server.
    fn connection(&self) -> Option<Connection>;
}

/// How the connection to a unit of a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// There is one.
    Connected,
    /// There is none since then.
    Lost {
        /// Since when.
        since: Instant,
        /// How often it was tried to connect again.
        attempts: u64,
        /// Why the last attempt failed, or why there is none.
        why: String,
    },
    /// Another unit answers in its place since then.
    Refused {
        /// Since when.
        since: Instant,
        /// What tells that.
        why: String,
    },
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("connected"),
            Self::Lost { since, attempts, why } => {
                let lasted = since.elapsed().as_secs();
                write!(f, "reconnecting for {lasted} s, {attempts} attempts: {why}")
            }
            Self::Refused { since, why } => {
                let lasted = since.elapsed().as_secs();
                write!(
                    f,
                    "refused for {lasted} s: {why}. A restart of `serve` passes on the unit that is there now"
                )
            }
        }
    }
}

/// A command for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// The command block.
    pub block: Block,
    /// What travels.
    pub data: DeviceData,
    /// How long it may take.
    pub timeout: Duration,
}

/// What travels with a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceData {
    /// Nothing.
    None,
    /// At most so many bytes from the device.
    In(u32),
    /// These to the device.
    Out(Bytes),
}

/// How a device has ended a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAnswer {
    /// The status.
    pub status: Status,
    /// What came from the device: as much as it sent.
    pub data: Bytes,
    /// Sense data, as they came.
    pub sense: Bytes,
    /// Of what was sent to it, the bytes that it did not take; or what it had beyond what travelled.
    pub residual: Residual,
}

/// Why a device has not ended a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceFailure {
    /// It is not there.
    #[error("the device is gone")]
    Gone,
    /// Another device is in its place.
    #[error("another device is in the place of the one that was passed through")]
    Replaced,
    /// It did not end in time.
    #[error("the device did not end a command in time")]
    TimedOut,
    /// It was not begun: a command before it has failed, or the device has told an aborted one what others have to hear before.
    #[error("something is to be told before the command begins")]
    NotBegun,
    /// It was not begun, and can be tried again.
    #[error("the device cannot take a command now")]
    Busy,
    /// Whether it was carried out, and how far, is not known.
    #[error("the connection to the device was lost while it had a command")]
    Lost,
    /// The system refuses to hand it on.
    #[error("the system does not hand the command on")]
    Refused,
    /// Something on the way does not work.
    #[error("the command did not get through to the device")]
    Broken,
}

/// The most sense data (SPC-4, 4.5.1).
pub const SENSE_MAX: usize = 252;

/// How often a device is asked again that has a unit attention to tell first.
const ASKED_MAX: usize = 8;

/// How long it may take to tell how it is.
const QUERY: Duration = Duration::from_secs(60);

/// Asks a device something that changes nothing. Unit attentions and deferred errors that it tells instead are for
/// `on_attention`: nobody else is told of them.
pub async fn ask(
    device: &dyn ScsiDevice,
    block: &[u8],
    room: u32,
    on_attention: &mut (dyn FnMut(Sense) + Send),
) -> Result<DeviceAnswer, DeviceFailure> {
    let mut padded = [0; 16];
    padded.iter_mut().zip(block).for_each(|(to, from)| *to = *from);
    let mut asked = 0;
    loop {
        let data = if room == 0 { DeviceData::None } else { DeviceData::In(room) };
        let request = DeviceRequest { block: padded, data, timeout: QUERY };
        asked += 1;
        let turn = device.turns().enter_first().turn(Concurrency::Alone).await;
        // It is kept until what the device tells is noted.
        let answer = match device.execute(turn.clone(), request).await {
            Err(DeviceFailure::NotBegun) if asked < ASKED_MAX => {
                device
                    .take_unheard()
                    .iter()
                    .filter_map(|told| Sense::parse(told))
                    .for_each(&mut *on_attention);
                continue;
            }
            answer => answer?,
        };
        match Sense::parse(&answer.sense) {
            Some(sense)
                if (sense.key == Key::UnitAttention || sense.deferred) && asked < ASKED_MAX =>
            {
                on_attention(sense);
            }
            _ => return Ok(answer),
        }
    }
}

/// The serial number of a device (SPC-4, 7.8.15), if it tells one.
pub async fn serial_number(
    device: &dyn ScsiDevice,
    on_attention: &mut (dyn FnMut(Sense) + Send),
) -> Option<String> {
    let answer = ask(device, &SERIAL, SERIAL_ROOM, on_attention).await.ok()?;
    let page = Some(answer.data).filter(|_| answer.status == Status::Good)?;
    inquiry::serial(&page).filter(|serial| !serial.is_empty())
}

/// The room for the page: four bytes before the serial number, whose length is one byte in most.
const SERIAL_ROOM: u32 = 255;
const SERIAL: [u8; 6] = [0x12, 0x01, inquiry::page::SERIAL, 0, SERIAL_ROOM as u8, 0];

/// The length of the blocks of a device; zero if it has none, or does not tell now.
pub async fn block_length(
    device: &dyn ScsiDevice,
    on_attention: &mut (dyn FnMut(Sense) + Send),
) -> u32 {
    for (block, at, bytes) in questions(DeviceClass::of(device.peripheral())) {
        let answer = ask(device, block, 32, on_attention).await;
        if let Some(answer) = answer.ok().filter(|answer| answer.status == Status::Good) {
            let field = answer.data.get(*at..at + bytes).unwrap_or_default();
            return field.iter().fold(0, |value, byte| value << 8 | u32::from(*byte));
        }
    }
    0
}

/// What a device is asked for the length of its blocks until it answers, and where that stands in the answer.
const fn questions(class: DeviceClass) -> &'static [(&'static [u8], usize, usize)] {
    match class {
        // The second is for a device of before SBC-2.
        DeviceClass::Disk => &[(&READ_CAPACITY_16, 8, 4), (&READ_CAPACITY_10, 4, 4)],
        DeviceClass::Optical => &[(&READ_CAPACITY_10, 4, 4)],
        // The block descriptor behind the header (SPC-4, 7.5.5; SSC-4, 8.3). Not every drive has a page 00h.
        DeviceClass::Tape => &[(&MODE_SENSE_6, 9, 3), (&MODE_SENSE_6_ALL, 9, 3)],
        DeviceClass::Changer | DeviceClass::Other => &[],
    }
}

const READ_CAPACITY_10: [u8; 10] = [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const READ_CAPACITY_16: [u8; 16] = [0x9E, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
const MODE_SENSE_6: [u8; 6] = [0x1A, 0, 0, 0, 32, 0];
/// Page code 3Fh: all pages.
const MODE_SENSE_6_ALL: [u8; 6] = [0x1A, 0, 0x3F, 0, 32, 0];
