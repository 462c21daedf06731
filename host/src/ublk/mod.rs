//! ublk: block devices whose requests are answered by this process (include/uapi/linux/ublk_cmd.h). The kernel is told what to do
//! by commands over io_uring: of a device by [`Control`], of its requests by [`Queue`].
//!
//! A request's data are copied by reads and writes of the character device (UBLK_F_USER_COPY, Linux 6.5): so the kernel holds
//! no address of ours, and a queue can end at any time.

mod control;
mod queue;

pub use control::{Control, Parameters};
pub use queue::{Answers, Handler, Queue};

/// Requests under way at a time; with [`IO_MAX`] it bounds the memory that they take.
pub const DEPTH: u16 = 128;

/// The most bytes that one request reads or writes.
pub const IO_MAX: u32 = 512 << 10;

/// The unit of the kernel's lengths and places.
const SECTOR: u64 = 512;

/// What is asked of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// UBLK_IO_OP_READ.
    Read,
    /// UBLK_IO_OP_WRITE; stable before it is answered, if it is so marked (UBLK_IO_F_FUA).
    Write {
        /// It is.
        fua: bool,
    },
    /// UBLK_IO_OP_FLUSH.
    Flush,
    /// UBLK_IO_OP_DISCARD.
    Discard,
    /// UBLK_IO_OP_WRITE_ZEROES.
    WriteZeroes {
        /// It is to be stable before it is answered.
        fua: bool,
        /// The space is to be kept (UBLK_IO_F_NOUNMAP).
        keeps_space: bool,
    },
}

/// A request, by which the answer is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// By which the kernel knows it.
    pub tag: u16,
    /// What is asked.
    pub operation: Operation,
    /// Where it begins, in bytes.
    pub at: u64,
    /// How many bytes.
    pub len: u64,
}

/// `struct ublksrv_io_desc`: operation and flags, sectors, the first sector, and an address that is not used.
type Descriptor = [u64; 3];

impl Request {
    /// The request that is described so; `None` if nobody knows what is asked.
    fn of(tag: u16, [first, start, _]: Descriptor) -> Option<Self> {
        const FUA: u32 = 1 << 13;
        const NO_UNMAP: u32 = 1 << 15;
        // Two fields of 32 bits.
        let bytes = first.to_ne_bytes();
        let half = |at: usize| bytes[at..at + 4].try_into().map(u32::from_ne_bytes);
        let (flags, sectors) = (half(0).ok()?, half(4).ok()?);
        let fua = flags & FUA != 0;
        let operation = match flags & 0xFF {
            0 => Operation::Read,
            1 => Operation::Write { fua },
            2 => Operation::Flush,
            3 => Operation::Discard,
            5 => Operation::WriteZeroes { fua, keeps_space: flags & NO_UNMAP != 0 },
            _ => return None,
        };
        // A flush is nowhere: the kernel says that it begins at the last of all sectors.
        let (start, sectors) =
            if operation == Operation::Flush { (0, 0) } else { (start, sectors) };
        let at = start.checked_mul(SECTOR)?;
        Some(Self { tag, operation, at, len: u64::from(sectors) * SECTOR })
    }
}

/// The number of a command of ublk: `_IOWR` or, of those that only read, `_IOR`, with 'u' and the size of its structure.
const fn command(reads_only: bool, number: u32, size: usize) -> u32 {
    let direction = if reads_only { 2 } else { 3 };
    (direction << 30) | ((size as u32) << 16) | ((b'u' as u32) << 8) | number
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(flags: u32, sectors: u32, start: u64) -> Descriptor {
        let (flags, sectors) = (flags.to_ne_bytes(), sectors.to_ne_bytes());
        let first: Vec<u8> = [flags, sectors].concat();
        [u64::from_ne_bytes(first.try_into().unwrap()), start, 0]
    }

    #[test]
    fn request_is_read_from_its_descriptor() {
        let write = Request::of(3, described(1 | 1 << 13, 8, 16)).unwrap();
        let expected = Operation::Write { fua: true };
        assert_eq!(write, Request { tag: 3, operation: expected, at: 8192, len: 4096 });
        let zeroes = Request::of(0, described(5 | 1 << 15, 1, 0)).unwrap().operation;
        assert_eq!(zeroes, Operation::WriteZeroes { fua: false, keeps_space: true });
        let known = [(0, Operation::Read), (2, Operation::Flush), (3, Operation::Discard)];
        for (number, operation) in known {
            // Other flags, as that of a failfast request, change nothing.
            assert_eq!(
                Request::of(1, described(number | 1 << 8, 1, 1)).unwrap().operation,
                operation
            );
        }
    }

    #[test]
    fn flush_is_of_all_wherever_it_is_said_to_begin() {
        let flush = Request::of(0, described(2, 0, u64::MAX)).unwrap();
        assert_eq!(flush, Request { tag: 0, operation: Operation::Flush, at: 0, len: 0 });
    }

    #[test]
    fn unknown_request_and_one_beyond_all_volumes_are_none() {
        for unknown in [4, 6, 15, 0xFF] {
            assert_eq!(Request::of(0, described(unknown, 1, 0)), None);
        }
        assert_eq!(Request::of(0, described(0, 1, u64::MAX)), None);
    }

    #[test]
    fn numbers_of_commands_are_those_of_the_header() {
        assert_eq!(command(false, 4, 32), 0xC020_7504, "UBLK_U_CMD_ADD_DEV");
        assert_eq!(command(true, 0x13, 32), 0x8020_7513, "UBLK_U_CMD_GET_FEATURES");
        assert_eq!(command(false, 0x21, 16), 0xC010_7521, "UBLK_U_IO_COMMIT_AND_FETCH_REQ");
    }
}
