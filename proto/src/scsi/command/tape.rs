//! Command blocks for a tape drive (SSC-4), and readers for what it answers.

use super::{Block, Command, Transfer, block};
use crate::reader::Reader;
use crate::scsi::Malformed;

/// The longest block that READ (6) and WRITE (6) can name.
pub const BLOCK_MAX: u32 = 0x00FF_FFFF;

/// READ POSITION data in the short and in the long form.
const POSITION_SHORT: u32 = 20;
const POSITION_LONG: u32 = 32;
/// READ BLOCK LIMITS data.
const BLOCK_LIMITS: u32 = 6;
/// MODE SENSE (6) data without pages, with one block descriptor.
const MODE: u32 = 12;
/// The parameter list of MODE SELECT (6), the same.
const MODE_SELECT: u32 = 12;

/// How the blocks of a command are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// One block of so many bytes.
    Variable(u32),
    /// So many blocks of the length that MODE SELECT has set.
    Fixed {
        /// How many.
        count: u32,
        /// How long each is.
        block: u32,
    },
}

impl Length {
    /// How many bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Variable(bytes) => bytes,
            Self::Fixed { count, block } => count.saturating_mul(block),
        }
    }

    /// How many blocks.
    #[must_use]
    pub const fn blocks(self) -> u32 {
        match self {
            Self::Variable(_) => 1,
            Self::Fixed { count, .. } => count,
        }
    }

    fn block(self, opcode: u8) -> Block {
        let (fixed, length) = match self {
            Self::Variable(bytes) => (0, bytes),
            Self::Fixed { count, .. } => (1, count),
        };
        let [_, a, b, c] = length.to_be_bytes();
        block([opcode, fixed, a, b, c, 0])
    }
}

/// What SPACE (6) moves over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// So many file marks, fewer than 2^23.
    Filemarks(u32),
    /// A file mark towards the beginning: the head is before it then, or at the beginning if there is none.
    FilemarkBack,
    /// All there is.
    ToEndOfData,
}

impl Command {
    /// REWIND.
    #[must_use]
    pub fn rewind() -> Self {
        Self::without_data(block([0x01]))
    }

    /// LOAD UNLOAD: unloads the tape.
    #[must_use]
    pub fn unload() -> Self {
        Self::without_data(block([0x1B]))
    }

    /// READ (6). A block of another length than that is told.
    #[must_use]
    pub fn read_tape(length: Length) -> Self {
        Self::asking(length.block(0x08), length.bytes())
    }

    /// WRITE (6).
    #[must_use]
    pub fn write_tape(length: Length) -> Self {
        Self { cdb: length.block(0x0A), transfer: Transfer::Out(length.bytes()) }
    }

    /// WRITE FILEMARKS (6) without IMMED: when it ends, all that was written before is on the medium, and so many marks
    /// behind it. None is a way to make it so.
    #[must_use]
    pub fn write_filemarks(count: u32) -> Self {
        let [_, a, b, c] = count.to_be_bytes();
        Self::without_data(block([0x10, 0, a, b, c]))
    }

    /// SPACE (6).
    #[must_use]
    pub fn space(space: Space) -> Self {
        let (code, count) = match space {
            Space::Filemarks(count) => (1, count),
            // A negative number of 24 bits.
            Space::FilemarkBack => (1, u32::MAX),
            Space::ToEndOfData => (3, 0),
        };
        let [_, a, b, c] = count.to_be_bytes();
        Self::without_data(block([0x11, code, a, b, c]))
    }

    /// LOCATE to before the object of this number: by the command of 10 bytes, which more drives know, where that can name it.
    #[must_use]
    pub fn locate(object: u64) -> Self {
        Self::without_data(match u32::try_from(object) {
            Ok(object) => {
                let [a, b, c, d] = object.to_be_bytes();
                block([0x2B, 0, 0, a, b, c, d])
            }
            Err(_) => {
                let [a, b, c, d, e, f, g, h] = object.to_be_bytes();
                block([0x92, 0, 0, 0, a, b, c, d, e, f, g, h])
            }
        })
    }

    /// READ POSITION in the long form; read the answer with [`Position::parse_long`].
    #[must_use]
    pub fn read_position() -> Self {
        Self::asking(block([0x34, 0x06]), POSITION_LONG)
    }

    /// The same in the short form, which every drive has; read the answer with [`Position::parse_short`].
    #[must_use]
    pub fn read_position_short() -> Self {
        Self::asking(block([0x34]), POSITION_SHORT)
    }

    /// READ BLOCK LIMITS; read the answer with [`BlockLimits::parse`].
    #[must_use]
    pub fn read_block_limits() -> Self {
        Self::asking(block([0x05]), BLOCK_LIMITS)
    }

    /// MODE SENSE (6) for the header and the block descriptor, which come before the pages, of all there are; read the answer with
    /// [`TapeMode::parse`].
    #[must_use]
    pub fn tape_mode() -> Self {
        Self::asking(block([0x1A, 0, 0x3F, 0, MODE as u8]), MODE)
    }

    /// MODE SENSE (6) with DBD for the page of medium configuration; read the answer with [`is_write_once`].
    #[must_use]
    pub fn medium_configuration() -> Self {
        Self::asking(block([0x1A, 0x08, MEDIUM_CONFIGURATION, 0, 64]), 64)
    }

    /// MODE SELECT (6) with PF: everything as it is, and blocks of this length; 0 for blocks of any. With its parameter list.
    #[must_use]
    pub fn select_block_length(mode: &TapeMode, length: u32) -> (Self, Vec<u8>) {
        let [_, a, b, c] = length.to_be_bytes();
        // WP is reserved here.
        let specific = mode.specific & 0x7F;
        let list = vec![0, 0, specific, 8, mode.density, 0, 0, 0, 0, a, b, c];
        let cdb = block([0x15, 0x10, 0, 0, MODE_SELECT as u8]);
        (Self { cdb, transfer: Transfer::Out(MODE_SELECT) }, list)
    }
}

/// The medium configuration page (SSC-4, 8.3.7).
const MEDIUM_CONFIGURATION: u8 = 0x1D;

/// WORMM: whether what is on the tape is not written over, from MODE SENSE (6) data with the page of medium configuration.
pub fn is_write_once(bytes: &[u8]) -> Result<bool, Malformed> {
    let mut reader = Reader::new(bytes);
    let [_, _, _, descriptors] = reader.array()?;
    reader.take(descriptors.into())?;
    let [code, _, flags] = reader.array()?;
    Ok(code & 0x3F == MEDIUM_CONFIGURATION && flags & 0x01 != 0)
}

/// Where the head is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// How many blocks and file marks lie before it.
    pub object: u64,
    /// How many file marks; `None` if the drive does not say.
    pub file: Option<u64>,
    /// EOP: it is behind the early warning.
    pub near_end: bool,
}

const END_OF_PARTITION: u8 = 0x40;

impl Position {
    /// Reads READ POSITION data in the long form; `None` if the drive does not know where it is.
    pub fn parse_long(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        const NO_OBJECT: u8 = 0x04; // LONU
        const NO_FILE: u8 = 0x08; // MPU
        let mut reader = Reader::new(bytes);
        let [flags, ..] = reader.array::<8>()?;
        let (object, file) = (reader.u64()?, reader.u64()?);
        let near_end = flags & END_OF_PARTITION != 0;
        let file = (flags & NO_FILE == 0).then_some(file);
        Ok((flags & NO_OBJECT == 0).then_some(Self { object, file, near_end }))
    }

    /// The same of the short form.
    pub fn parse_short(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        const UNKNOWN: u8 = 0x04;
        let mut reader = Reader::new(bytes);
        let [flags, ..] = reader.array::<4>()?;
        let object = reader.u32()?.into();
        let near_end = flags & END_OF_PARTITION != 0;
        Ok((flags & UNKNOWN == 0).then_some(Self { object, file: None, near_end }))
    }
}

/// READ BLOCK LIMITS data: how long a block may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLimits {
    /// At least.
    pub least: u32,
    /// At most; 0 if the drive sets no limit.
    pub most: u32,
}

impl BlockLimits {
    /// Reads it.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let _granularity = reader.u8()?;
        Ok(Self { most: reader.u24()?, least: reader.u16()?.into() })
    }
}

/// What the header and the block descriptor of MODE SENSE data say of a tape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapeMode {
    /// MEDIUM TYPE.
    pub medium_type: u8,
    specific: u8,
    /// DENSITY CODE.
    pub density: u8,
    /// The length of blocks that are counted; 0 if there is none.
    pub block_length: u32,
}

impl TapeMode {
    /// Reads MODE SENSE (6) data.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let [_length, medium_type, specific, descriptors] = reader.array()?;
        let mut mode = Self { medium_type, specific, ..Self::default() };
        if descriptors >= 8 {
            let [density, _, _, _, _] = reader.array()?;
            (mode.density, mode.block_length) = (density, reader.u24()?);
        }
        Ok(mode)
    }

    /// WP: the tape takes no writes.
    #[must_use]
    pub const fn is_write_protected(&self) -> bool {
        self.specific & 0x80 != 0
    }

    /// BUFFERED MODE: what was written may be in a buffer.
    #[must_use]
    pub const fn is_buffered(&self) -> bool {
        self.specific & 0x70 != 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn command_blocks_as_the_standard_draws_them() {
        let start = |command: Command| command.cdb[..12].to_vec();
        assert_eq!(
            start(Command::write_tape(Length::Variable(0x01_0203))),
            [0x0A, 0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0]
        );
        let fixed = Command::read_tape(Length::Fixed { count: 4, block: 512 });
        assert_eq!(fixed.transfer, Transfer::In(2048));
        assert_eq!(start(fixed), [0x08, 1, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(start(Command::locate(0x0102_0304))[..8], [0x2B, 0, 0, 1, 2, 3, 4, 0]);
        assert_eq!(start(Command::locate(0x01_0203_0405)), [0x92, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5]);
        assert_eq!(start(Command::space(Space::Filemarks(2)))[..5], [0x11, 1, 0, 0, 2]);
        let (select, list) = Command::select_block_length(&TapeMode::default(), 512);
        assert_eq!(select.transfer, Transfer::Out(list.len() as u32));
        assert_eq!(list[9..], [0, 2, 0]);
    }

    #[test]
    fn drive_that_does_not_know_where_it_is_has_no_position() {
        let mut long = [0; 32];
        (long[15], long[23]) = (7, 2);
        let known = Position { object: 7, file: Some(2), near_end: false };
        assert_eq!(Position::parse_long(&long), Ok(Some(known)));
        long[0] = 0x48;
        let unknown_file = Position { file: None, near_end: true, ..known };
        assert_eq!(Position::parse_long(&long), Ok(Some(unknown_file)));
        long[0] = 0x04;
        assert_eq!(Position::parse_long(&long), Ok(None));
        let mut short = [0; 20];
        short[7] = 7;
        assert_eq!(Position::parse_short(&short), Ok(Some(Position { file: None, ..known })));
        short[0] = 0x04;
        assert_eq!(Position::parse_short(&short), Ok(None));
    }

    proptest! {
        #[test]
        fn hostile_answers_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Position::parse_long(&bytes);
            let _ = Position::parse_short(&bytes);
            let _ = BlockLimits::parse(&bytes);
            let _ = TapeMode::parse(&bytes);
        }
    }
}
