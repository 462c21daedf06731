//! What is done to a device as a whole: commands to /dev/ublk-control.

use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::mem;
use std::os::fd::AsRawFd as _;

use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;

use super::{DEPTH, IO_MAX, SECTOR, command};

const PATH: &str = "/dev/ublk-control";

// The numbers of commands, and the flags of a device.
const ADD_DEV: u32 = 0x04;
const START_DEV: u32 = 0x06;
const STOP_DEV: u32 = 0x07;
const SET_PARAMS: u32 = 0x08;
const START_USER_RECOVERY: u32 = 0x10;
const END_USER_RECOVERY: u32 = 0x11;
const GET_FEATURES: u32 = 0x13;
const DEL_DEV_ASYNC: u32 = 0x14;
const F_USER_RECOVERY: u64 = 1 << 3;
const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
const F_IOCTL_ENCODE: u64 = 1 << 6;
const F_USER_COPY: u64 = 1 << 7;

/// What a device here needs.
const NEEDED: u64 = F_USER_RECOVERY | F_USER_RECOVERY_REISSUE | F_IOCTL_ENCODE | F_USER_COPY;

/// For a device whose number is the kernel's choice, and a command that is for no queue.
const ANY: u32 = u32::MAX;
const NO_QUEUE: u16 = u16::MAX;

/// The length of `struct ublksrv_ctrl_cmd`.
const COMMAND_LEN: usize = 32;

/// What a command reads or writes, in words: the longest is `struct ublksrv_ctrl_dev_info`, and that of the parameters here.
type Argument = [u64; 8];

/// The most sectors of a discard or of zeroes: 2 GiB.
const RANGE_MAX: u32 = 1 << 22;

/// What a device is like.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// Its size, in bytes.
    pub size: u64,
    /// The smallest unit that it takes: a power of two up to a page.
    pub block_size: u32,
    /// The unit in which it works best.
    pub physical_block_size: u32,
    /// It takes no writes.
    pub read_only: bool,
    /// It takes discards, of multiples of so many bytes.
    pub discard: Option<u32>,
    /// It writes zeroes without being sent them.
    pub writes_zeroes: bool,
}

impl Parameters {
    /// `struct ublk_params` as far as it is needed: its head, `ublk_param_basic`, and `ublk_param_discard`.
    fn words(self) -> Argument {
        const READ_ONLY: u32 = 1;
        const VOLATILE_CACHE: u32 = 4;
        const FUA: u32 = 8;
        const TYPES: u32 = 1 | 2;
        let read_only = if self.read_only { READ_ONLY } else { 0 };
        let attributes = read_only | VOLATILE_CACHE | FUA;
        let physical = self.physical_block_size.max(self.block_size).trailing_zeros();
        let shifts = [self.block_size.trailing_zeros(), physical, physical, physical];
        let shifts = u32::from_ne_bytes(shifts.map(|shift| shift as u8));
        let discards = if self.discard.is_some() { RANGE_MAX } else { 0 };
        let zeroes = if self.writes_zeroes { RANGE_MAX } else { 0 };
        let granularity = self.discard.unwrap_or(0).max(self.block_size);
        // A range at a time.
        let segments = u32::from_ne_bytes({
            let [low, high] = 1_u16.to_ne_bytes();
            [low, high, 0, 0]
        });
        [
            pair(size_of::<Argument>() as u32, TYPES),
            pair(attributes, shifts),
            pair(IO_MAX / SECTOR as u32, 0),
            self.size / SECTOR,
            0,
            pair(0, granularity),
            pair(discards, zeroes),
            pair(segments, 0),
        ]
    }
}

/// Two fields of 32 bits beside one another.
fn pair(first: u32, second: u32) -> u64 {
    let (first, second) = (first.to_ne_bytes(), second.to_ne_bytes());
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first);
    bytes[4..].copy_from_slice(&second);
    u64::from_ne_bytes(bytes)
}

/// The way to the driver. Each command waits for its end.
pub struct Control {
    // Dropped before the argument that it may speak of.
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    file: File,
    argument: Box<Argument>,
}

impl Control {
    /// Opens it; an error of kind `NotFound` where the driver is not there.
    pub fn open() -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(PATH)?;
        // Commands are longer than the usual entries (IORING_SETUP_SQE128).
        let ring = IoUring::builder().build(4)?;
        Ok(Self { ring, file, argument: Box::default() })
    }

    /// Whether the driver can all that is needed. It makes no device.
    pub fn can_serve(&mut self) -> Result<bool> {
        let asked = self.run(true, GET_FEATURES, ANY, Some(8), 0);
        match asked {
            Ok(_) => Ok(self.argument[0] & NEEDED == NEEDED),
            // The command came with the last of them.
            Err(why) if is(&why, &[Errno::INVAL, Errno::OPNOTSUPP, Errno::NODEV]) => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// Makes a device, which cannot be used yet; its number.
    pub fn add(&mut self, parameters: Parameters) -> Result<u32> {
        let queues = [1_u16, DEPTH, 0, 0].map(u16::to_ne_bytes).concat();
        let queues = queues.try_into().map_or(0, u64::from_ne_bytes);
        // `struct ublksrv_ctrl_dev_info`: queues and their depth, the longest request, the number, a process, flags.
        *self.argument = [queues, pair(IO_MAX, ANY), 0, NEEDED, 0, 0, 0, 0];
        self.run(false, ADD_DEV, ANY, Some(size_of::<Argument>()), 0)?;
        let number = self.argument[1].to_ne_bytes();
        let number = number[4..].try_into().map_or(ANY, u32::from_ne_bytes);
        *self.argument = parameters.words();
        let set = self.run(false, SET_PARAMS, number, Some(size_of::<Argument>()), 0);
        if let Err(why) = set {
            let _ = self.delete(number);
            return Err(why);
        }
        Ok(number)
    }

    /// Has the block device appear, once its queue is open. Requests come before this returns.
    pub fn start(&mut self, number: u32) -> Result<()> {
        self.run(false, START_DEV, number, None, std::process::id().into()).map(drop)
    }

    /// Ends the block device: whoever uses it gets errors. One that is not there is no error.
    pub fn stop(&mut self, number: u32) -> Result<()> {
        missing_is_fine(self.run(false, STOP_DEV, number, None, 0))
    }

    /// Gives its number back, as soon as nobody has its queue open; that is not waited for, since it may be this process.
    pub fn delete(&mut self, number: u32) -> Result<()> {
        missing_is_fine(self.run(true, DEL_DEV_ASYNC, number, None, 0))
    }

    /// Begins to go on with a device whose process has ended; `None` as long as the kernel has not noticed that.
    pub fn begin_recovery(&mut self, number: u32) -> Result<Option<()>> {
        match self.run(false, START_USER_RECOVERY, number, None, 0) {
            Ok(_) => Ok(Some(())),
            Err(why) if is(&why, &[Errno::BUSY]) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Has requests come again, once the queue is open: those first that were not answered.
    pub fn end_recovery(&mut self, number: u32) -> Result<()> {
        self.run(false, END_USER_RECOVERY, number, None, std::process::id().into()).map(drop)
    }

    /// Has the driver carry out a command, with the argument, if it has one of `len` bytes; waits for its end.
    fn run(
        &mut self,
        reads_only: bool,
        number: u32,
        device: u32,
        len: Option<usize>,
        data: u64,
    ) -> Result<i32> {
        let address = match len {
            Some(_) => self.argument.as_mut_ptr().addr() as u64,
            None => 0,
        };
        let mut bytes = [0; 80];
        // `struct ublksrv_ctrl_cmd`.
        bytes[..4].copy_from_slice(&device.to_ne_bytes());
        bytes[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(len.unwrap_or(0) as u16).to_ne_bytes());
        bytes[8..16].copy_from_slice(&address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&data.to_ne_bytes());
        let number = command(reads_only, number, COMMAND_LEN);
        let call = opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), number).cmd(bytes).build();
        // SAFETY: the file is open as long as the ring. The argument belongs to this value, is as long as `len` at least, and
        // is not touched before the answer; where that cannot be waited for it is never freed.
        if unsafe { self.ring.submission().push(&call) }.is_err() {
            return Err(Error::other("the queue of commands is full"));
        }
        let answer = self.answer().inspect_err(|_| mem::forget(mem::take(&mut self.argument)))?;
        match answer {
            0.. => Ok(answer),
            _ => Err(Error::from_raw_os_error(answer.saturating_neg())),
        }
    }

    fn answer(&mut self) -> Result<i32> {
        loop {
            if let Some(answer) = self.ring.completion().next() {
                return Ok(answer.result());
            }
            match self.ring.submit_and_wait(1) {
                Err(why) if !is(&why, &[Errno::INTR, Errno::AGAIN]) => return Err(why),
                _ => {}
            }
        }
    }
}

fn is(why: &Error, any: &[Errno]) -> bool {
    Errno::from_io_error(why).is_some_and(|why| any.contains(&why))
}

fn missing_is_fine(done: Result<i32>) -> Result<()> {
    match done {
        Err(why) if is(&why, &[Errno::NODEV]) => Ok(()),
        done => done.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_lie_where_the_kernel_looks_for_them() {
        let parameters = Parameters {
            size: 1 << 20,
            block_size: 512,
            physical_block_size: 4096,
            read_only: true,
            discard: Some(4096),
            writes_zeroes: false,
        };
        let bytes = parameters.words().map(u64::to_ne_bytes).concat();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4)), (64, 3), "the length, and which are there");
        assert_eq!(word(8), 1 | 4 | 8, "attrs");
        assert_eq!(bytes[12..16], [9, 12, 12, 12], "shifts of block sizes");
        assert_eq!(word(16), 1024, "max_sectors");
        assert_eq!(bytes[24..32], 2048_u64.to_ne_bytes(), "dev_sectors");
        assert_eq!((word(44), word(48), word(52)), (4096, RANGE_MAX, 0), "discard");
        assert_eq!(bytes[56..58], 1_u16.to_ne_bytes(), "max_discard_segments");
    }
}
