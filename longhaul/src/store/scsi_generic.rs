//! A SCSI device of this machine, by the kernel's generic interface (SG_IO of version 4).
//!
//! The kernel's request blocks its thread until the device has ended the command, which may be hours for a tape. So each
//! device has a thread of its own, and carries out one command at a time.

use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;

use bytes::Bytes;
use host::scsi_generic::{Data, Device, Outcome};
use proto::scsi::pass_through::block_length;
use proto::scsi::{Residual, Status};

use crate::scsi_device::{
    self, CommandQueue, Connection, DeviceAnswer, DeviceData, DeviceFailure, DeviceRequest, Ended,
    Job, Order, Pending, SENSE_MAX, ScsiDevice, Turn, Turns, ask,
};

/// Why a device cannot be passed through.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ScsiGenericError {
    #[error(transparent)]
    Open(io::Error),
    #[error("another program uses it")]
    InUse,
    #[error("its thread cannot be started: {0}")]
    Thread(#[source] io::Error),
    #[error("it does not tell what it is: {0}")]
    Silent(#[from] DeviceFailure),
    #[error("its INQUIRY data are no such")]
    Inquiry,
}

/// The most bytes that go with a command, whatever the device takes: the memory of a command is that of its session.
const TRANSFER_MAX: usize = volume::TRANSFER_MAX as usize;

/// A device and the thread that works for it.
pub struct ScsiGeneric {
    device: Arc<Device>,
    commands: CommandQueue,
    jobs: mpsc::Sender<Job>,
    peripheral: u8,
    transfer_max: u32,
    block_length: u32,
    serial: Option<String>,
}

/// Opens the device that a node is of, and asks what it is. What it has to tell of the time before is dropped: each client
/// is told of a power on.
pub async fn open(path: &Path) -> Result<ScsiGeneric, ScsiGenericError> {
    let device = Device::open(path).map_err(|why| match why.kind() {
        io::ErrorKind::ResourceBusy => ScsiGenericError::InUse,
        _ => ScsiGenericError::Open(why),
    })?;
    let most = device.transfer_max().map_err(ScsiGenericError::Open)?;
    let device = Arc::new(device);
    let (jobs, queue) = mpsc::channel();
    let mut opened = ScsiGeneric {
        device: Arc::clone(&device),
        commands: CommandQueue::default(),
        jobs,
        peripheral: 0x1F,
        transfer_max: most.min(TRANSFER_MAX) as u32,
        block_length: 0,
        serial: None,
    };
    let work = move || work(&device, &queue);
    thread::Builder::new().name("scsi".into()).spawn(work).map_err(ScsiGenericError::Thread)?;
    ask(&opened, &TEST_UNIT_READY, 0, &mut |_| ()).await?;
    let inquiry = ask(&opened, &INQUIRY, 36, &mut |_| ()).await?;
    match (inquiry.status, inquiry.data.first()) {
        // PERIPHERAL QUALIFIER: a device is connected.
        (Status::Good, Some(peripheral)) if peripheral >> 5 == 0 => {
            opened.peripheral = peripheral & 0x1F;
            opened.block_length = scsi_device::block_length(&opened, &mut |_| ()).await;
            opened.serial = scsi_device::serial_number(&opened, &mut |_| ()).await;
            Ok(opened)
        }
        _ => Err(ScsiGenericError::Inquiry),
    }
}

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 36, 0];

impl ScsiDevice for ScsiGeneric {
    fn peripheral(&self) -> u8 {
        self.peripheral
    }

    fn transfer_max(&self) -> u32 {
        self.transfer_max
    }

    fn block_length(&self) -> u32 {
        self.block_length
    }

    fn serial(&self) -> Option<&str> {
        self.serial.as_deref()
    }

    /// Its thread carries out one after the other, and requests of several threads have no order in the kernel.
    fn order(&self) -> Order {
        Order::Single
    }

    fn turns(&self) -> &Turns {
        self.commands.turns()
    }

    fn execute(&self, turn: Turn, request: DeviceRequest) -> Pending<Ended> {
        let jobs = self.jobs.clone();
        let hand_on = move |job| jobs.send(job).map_err(|_| DeviceFailure::Broken);
        self.commands.execute(turn, request, hand_on)
    }

    fn take_unheard(&self) -> Vec<Bytes> {
        self.commands.take_unheard()
    }

    fn reset(&self) -> Pending<()> {
        let device = Arc::clone(&self.device);
        Box::pin(async move {
            let reset = tokio::task::spawn_blocking(move || device.reset()).await;
            if let Ok(Err(why)) = reset {
                tracing::warn!(%why, "a SCSI device was not reset");
            }
        })
    }

    /// The kernel may reset it unasked, and hear alone that it did.
    fn tells_of_losses(&self) -> bool {
        false
    }

    fn connection(&self) -> Option<Connection> {
        None
    }
}

/// Carries out what comes, until nobody can ask for anything any more.
fn work(device: &Device, queue: &mpsc::Receiver<Job>) {
    for job in queue {
        if !job.is_aborted() {
            let done = carry_out(device, job.request.clone());
            job.end(done);
        }
    }
}

fn carry_out(device: &Device, request: DeviceRequest) -> Result<DeviceAnswer, DeviceFailure> {
    let DeviceRequest { block, data, timeout } = request;
    let block = &block[..block_length(block[0])];
    let mut sense = vec![0; SENSE_MAX];
    let mut input = match data {
        DeviceData::In(room) => vec![0; room as usize],
        _ => Vec::new(),
    };
    let sent = match &data {
        DeviceData::Out(data) => data.len(),
        _ => 0,
    };
    let travels = match &data {
        DeviceData::None => Data::None,
        DeviceData::In(_) => Data::In(&mut input),
        DeviceData::Out(data) => Data::Out(data),
    };
    let outcome = device.execute(block, travels, &mut sense, timeout);
    let outcome = outcome.map_err(|why| failure_of_system(&why))?;
    sense.truncate(outcome.sense);
    input.truncate(input.len().saturating_sub(outcome.residual));
    let residual = Residual::of(sent as u32, sent.saturating_sub(outcome.residual) as u32);
    answer(outcome, input.into(), sense.into()).map(|answer| DeviceAnswer { residual, ..answer })
}

fn failure_of_system(why: &io::Error) -> DeviceFailure {
    match why.kind() {
        io::ErrorKind::PermissionDenied => DeviceFailure::Refused,
        io::ErrorKind::OutOfMemory | io::ErrorKind::ResourceBusy => DeviceFailure::Busy,
        // ENODEV and ENXIO: it was unplugged.
        _ if matches!(why.raw_os_error(), Some(6 | 19)) => DeviceFailure::Gone,
        _ => {
            tracing::warn!(%why, "SG_IO failed");
            DeviceFailure::Broken
        }
    }
}

/// By DID_... of include/scsi/scsi_status.h.
fn answer(outcome: Outcome, data: Bytes, sense: Bytes) -> Result<DeviceAnswer, DeviceFailure> {
    match outcome.host {
        0x00 => {}
        // DID_NO_CONNECT, DID_BAD_TARGET
        0x01 | 0x04 => return Err(DeviceFailure::Gone),
        // DID_BUS_BUSY, DID_IMM_RETRY, DID_REQUEUE: it was not begun.
        0x02 | 0x0C | 0x0D => return Err(DeviceFailure::Busy),
        // DID_TIME_OUT
        0x03 => return Err(DeviceFailure::TimedOut),
        // DID_ABORT, DID_RESET, DID_SOFT_ERROR and those of lost transports.
        0x05 | 0x08 | 0x0B | 0x0E | 0x0F => return Err(DeviceFailure::Lost),
        _ => return Err(DeviceFailure::Broken),
    }
    match Status::from_byte(outcome.status & 0x7E) {
        Some(status) => Ok(DeviceAnswer { status, data, sense, residual: Residual::None }),
        None => Err(DeviceFailure::Broken),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: Outcome = Outcome { status: 0, host: 0, sense: 0, residual: 0 };

    #[test]
    fn failure_of_the_way_comes_before_the_status() {
        let of = |host, status| {
            answer(Outcome { status, host, ..DONE }, Bytes::new(), Bytes::new())
                .map(|answer| answer.status)
        };
        assert_eq!(of(0, 0x00), Ok(Status::Good));
        assert_eq!(of(0, 0x02), Ok(Status::CheckCondition));
        assert_eq!(of(0, 0x18), Ok(Status::ReservationConflict));
        assert_eq!(of(0, 0x22), Err(DeviceFailure::Broken));
        for (host, failure) in [
            (0x01, DeviceFailure::Gone),
            (0x02, DeviceFailure::Busy),
            (0x03, DeviceFailure::TimedOut),
            (0x07, DeviceFailure::Broken),
            (0x08, DeviceFailure::Lost),
        ] {
            assert_eq!(of(host, 0x00), Err(failure), "{host:#x}");
        }
    }

    #[tokio::test]
    async fn other_file_is_not_opened() {
        let refused = open(Path::new("/dev/null")).await.err().unwrap();
        assert!(refused.to_string().contains("no SCSI device"), "{refused}");
    }
}
