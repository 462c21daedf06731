//! The initiator's side: command blocks for a disk and what all units have, and readers for what devices answer. A device may
//! answer anything; nothing here trusts it.

pub mod changer;
pub mod optical;
pub mod tape;

use super::provisioning::{self, LbaStatus};
use super::reservation::{ReserveInAction, ReserveOutAction};
use super::{Blocks, Malformed, administration, inquiry, log, lun};
use crate::reader::Reader;

pub use super::capacity::Capacity;
pub use super::inquiry::{BlockLimits, Provisioning, Standard};

/// A command block of at most 16 bytes, zero-padded.
pub type Block = [u8; 16];

/// What travels with a command, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Nothing.
    None,
    /// At most that much from the device.
    In(u32),
    /// That much to the device.
    Out(u32),
}

/// A command to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its block.
    pub cdb: Block,
    /// Its data.
    pub transfer: Transfer,
}

/// How much an initiator asks for where it wants all there is: small pages fit it, and one byte holds
/// its length, which old devices need.
const PAGE_ALLOCATION: u8 = 252;
/// READ CAPACITY (16) data.
const CAPACITY_16: u32 = 32;
/// READ CAPACITY (10) data.
const CAPACITY_10: u32 = 8;

fn block<const N: usize>(fields: [u8; N]) -> Block {
    let mut block = [0; 16];
    block.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
    block
}

/// The layout that READ (10) and WRITE (10) share, if it can name these blocks.
fn block_10(opcode: u8, flags: u8, blocks: Blocks) -> Option<Block> {
    let [a, b, c, d] = u32::try_from(blocks.lba).ok()?.to_be_bytes();
    let [high, low] = u16::try_from(blocks.count).ok()?.to_be_bytes();
    Some(block([opcode, flags, a, b, c, d, 0, high, low]))
}

/// The layout that all 16-byte commands on blocks share.
fn block_16(opcode: u8, flags: u8, lba: u64, length: u32) -> Block {
    let [a, b, c, d, e, f, g, h] = lba.to_be_bytes();
    let [i, j, k, l] = length.to_be_bytes();
    [opcode, flags, a, b, c, d, e, f, g, h, i, j, k, l, 0, 0]
}

/// The layout that both MANAGEMENT PROTOCOL commands share.
fn management(opcode: u8, length: u32) -> Block {
    let [a, b, c, d] = length.to_be_bytes();
    block([opcode, 0x10, administration::PROTOCOL, 0, 0, 0, a, b, c, d])
}

impl Command {
    const fn without_data(cdb: Block) -> Self {
        Self { cdb, transfer: Transfer::None }
    }

    const fn asking(cdb: Block, allocation: u32) -> Self {
        Self { cdb, transfer: Transfer::In(allocation) }
    }

    /// TEST UNIT READY.
    #[must_use]
    pub fn test_unit_ready() -> Self {
        Self::without_data([0; 16])
    }

    /// PREVENT ALLOW MEDIUM REMOVAL.
    #[must_use]
    pub fn prevent_removal(prevent: bool) -> Self {
        Self::without_data(block([0x1E, 0, 0, 0, u8::from(prevent)]))
    }

    /// INQUIRY for the standard page; read the answer with [`Standard::parse`].
    #[must_use]
    pub fn inquiry() -> Self {
        Self::asking(block([0x12, 0, 0, 0, PAGE_ALLOCATION]), PAGE_ALLOCATION.into())
    }

    /// INQUIRY for a page of vital product data.
    #[must_use]
    pub fn vital(page: u8) -> Self {
        Self::asking(block([0x12, 1, page, 0, PAGE_ALLOCATION]), PAGE_ALLOCATION.into())
    }

    /// READ CAPACITY (16); read the answer with [`Capacity::parse_16`].
    #[must_use]
    pub fn read_capacity_16() -> Self {
        Self::asking(block_16(0x9E, 0x10, 0, CAPACITY_16), CAPACITY_16)
    }

    /// READ CAPACITY (10), for devices that know no other; read the answer with [`Capacity::parse_10`].
    #[must_use]
    pub fn read_capacity_10() -> Self {
        Self::asking(block([0x25]), CAPACITY_10)
    }

    /// MODE SENSE (10) for the current values of the caching page, without block descriptors; read the
    /// answer with [`Mode::parse_10`].
    #[must_use]
    pub fn mode_sense_10() -> Self {
        let cdb = block([0x5A, 0x08, 0x08, 0, 0, 0, 0, 0, PAGE_ALLOCATION]);
        Self::asking(cdb, PAGE_ALLOCATION.into())
    }

    /// MODE SENSE (6) likewise, for devices that know no other; read it with [`Mode::parse_6`].
    #[must_use]
    pub fn mode_sense_6() -> Self {
        Self::asking(block([0x1A, 0x08, 0x08, 0, PAGE_ALLOCATION]), PAGE_ALLOCATION.into())
    }

    /// REPORT LUNS, with room for `units`; read the answer with [`lun::parse_list`].
    #[must_use]
    pub fn report_luns(units: u16) -> Self {
        // SPC-4, 6.33: an allocation length below 16 is an error.
        let allocation = 8 + 8 * u32::from(units.max(1));
        let [a, b, c, d] = allocation.to_be_bytes();
        Self::asking(block([0xA0, 0, 0, 0, 0, 0, a, b, c, d]), allocation)
    }

    /// REPORT TIMESTAMP; read the answer with [`log::parse_timestamp`].
    #[must_use]
    pub fn report_timestamp() -> Self {
        let allocation = log::TIMESTAMP_LENGTH as u8;
        let cdb = block([0xA3, 0x0F, 0, 0, 0, 0, 0, 0, 0, allocation]);
        Self::asking(cdb, allocation.into())
    }

    /// LOG SENSE for the page that tells what the file system of the volume has free; read the answer with [`log::parse_free_space`].
    #[must_use]
    pub fn log_sense_free_space() -> Self {
        // PC: cumulative values (SPC-4, 6.8).
        let (page, allocation) = (0x40 | log::FREE_SPACE, log::FREE_SPACE_LENGTH as u8);
        Self::asking(block([0x4D, 0, page, 0, 0, 0, 0, 0, allocation]), allocation.into())
    }

    /// MANAGEMENT PROTOCOL OUT with a request of so many bytes to the server of the unit.
    #[must_use]
    pub fn management_out(length: u32) -> Self {
        Self { cdb: management(0xA4, length), transfer: Transfer::Out(length) }
    }

    /// MANAGEMENT PROTOCOL IN; read the answer with [`administration::parse`].
    #[must_use]
    pub fn management_in(allocation: u32) -> Self {
        Self::asking(management(0xA3, allocation), allocation)
    }

    /// READ (16).
    ///
    /// # Panics
    ///
    /// If the bytes do not fit 32 bits.
    #[must_use]
    pub fn read(blocks: Blocks, block_size: u32) -> Self {
        let bytes =
            blocks.bytes(block_size).expect("the caller splits what a command cannot carry");
        Self::asking(block_16(0x88, 0, blocks.lba, blocks.count), bytes)
    }

    /// WRITE (16); with `fua` it completes when the data are on stable storage.
    ///
    /// # Panics
    ///
    /// If the bytes do not fit 32 bits.
    #[must_use]
    pub fn write(blocks: Blocks, block_size: u32, fua: bool) -> Self {
        let bytes =
            blocks.bytes(block_size).expect("the caller splits what a command cannot carry");
        let cdb = block_16(0x8A, if fua { 0x08 } else { 0 }, blocks.lba, blocks.count);
        Self { cdb, transfer: Transfer::Out(bytes) }
    }

    /// READ (10), for devices that know no other; `None` if it cannot name the blocks.
    #[must_use]
    pub fn read_10(blocks: Blocks, block_size: u32) -> Option<Self> {
        Some(Self::asking(block_10(0x28, 0, blocks)?, blocks.bytes(block_size)?))
    }

    /// WRITE (10) likewise.
    #[must_use]
    pub fn write_10(blocks: Blocks, block_size: u32, fua: bool) -> Option<Self> {
        let cdb = block_10(0x2A, if fua { 0x08 } else { 0 }, blocks)?;
        Some(Self { cdb, transfer: Transfer::Out(blocks.bytes(block_size)?) })
    }

    /// WRITE SAME (16) of one block of data-out; with `unmap` the device may give the space back, if
    /// the block is all zeroes and the device reads unmapped blocks so.
    #[must_use]
    pub fn write_same(blocks: Blocks, block_size: u32, unmap: bool) -> Self {
        let cdb = block_16(0x93, if unmap { 0x08 } else { 0 }, blocks.lba, blocks.count);
        Self { cdb, transfer: Transfer::Out(block_size) }
    }

    /// UNMAP with its parameter list; `ranges` are within the limits the device reports.
    ///
    /// # Panics
    ///
    /// If there are more than 4,094 ranges, which the list cannot hold.
    #[must_use]
    pub fn unmap(ranges: &[Blocks]) -> (Self, Vec<u8>) {
        let list = provisioning::emit_unmap(ranges);
        let length =
            u16::try_from(list.len()).expect("the caller keeps to the limits of the device");
        let [high, low] = length.to_be_bytes();
        let cdb = block([0x42, 0, 0, 0, 0, 0, 0, high, low]);
        (Self { cdb, transfer: Transfer::Out(length.into()) }, list)
    }

    /// SYNCHRONIZE CACHE (10) of the whole medium, the form every device with a cache knows; it
    /// completes when all is on stable storage.
    #[must_use]
    pub fn synchronize_cache() -> Self {
        Self::without_data(block([0x35]))
    }

    /// PERSISTENT RESERVE IN.
    #[must_use]
    pub fn persistent_reserve_in(action: ReserveInAction, allocation: u16) -> Self {
        let [high, low] = allocation.to_be_bytes();
        Self::asking(block([0x5E, action.code(), 0, 0, 0, 0, 0, high, low]), allocation.into())
    }

    /// PERSISTENT RESERVE OUT of the whole unit, with a parameter list of `length` bytes.
    #[must_use]
    pub fn persistent_reserve_out(action: ReserveOutAction, kind: u8, length: u32) -> Self {
        let [a, b, c, d] = length.to_be_bytes();
        let cdb = block([0x5F, action.code(), kind, 0, 0, a, b, c, d]);
        Self { cdb, transfer: Transfer::Out(length) }
    }

    /// GET LBA STATUS from `lba` on, with room for `runs`; read the answer with
    /// [`parse_status`](provisioning::parse_status).
    #[must_use]
    pub fn get_lba_status(lba: u64, runs: u16) -> Self {
        let allocation =
            (provisioning::HEADER + provisioning::DESCRIPTOR * usize::from(runs)) as u32;
        Self::asking(block_16(0x9E, 0x12, lba, allocation), allocation)
    }
}

/// What an initiator wants to know from MODE SENSE of the caching page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// WP: the medium takes no writes.
    pub write_protected: bool,
    /// DPOFUA: FUA is honoured.
    pub fua: bool,
    /// WCE: writes may be volatile; `None` if the device did not send the page.
    pub write_cache: Option<bool>,
}

impl Mode {
    const CACHING: u8 = 0x08;

    /// Reads MODE SENSE (10) data.
    pub fn parse_10(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let length = usize::from(reader.u16()?);
        let mut reader = reader.up_to(length);
        let [_, specific, _, _] = reader.array()?;
        let descriptors = reader.u16()?;
        reader.take(descriptors.into())?;
        Ok(Self::with_pages(specific, reader))
    }

    /// Reads MODE SENSE (6) data.
    pub fn parse_6(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let length = usize::from(reader.u8()?);
        let mut reader = reader.up_to(length);
        let [_, specific, descriptors] = reader.array()?;
        reader.take(descriptors.into())?;
        Ok(Self::with_pages(specific, reader))
    }

    fn with_pages(specific: u8, mut reader: Reader<'_>) -> Self {
        const SUBPAGE: u8 = 0x40;
        let mut mode = Self {
            write_protected: specific & 0x80 != 0,
            fua: specific & 0x10 != 0,
            write_cache: None,
        };
        while let Ok(code) = reader.u8() {
            let length = if code & SUBPAGE != 0 {
                reader.u8().and_then(|_subpage| reader.u16()).map(usize::from)
            } else {
                reader.u8().map(usize::from)
            };
            let Ok(length) = length else { break };
            // A page cut off by the allocation length still tells what came of it.
            let mut page = reader.up_to(length);
            if code & (SUBPAGE | 0x3F) == Self::CACHING {
                mode.write_cache = page.u8().ok().map(|flags| flags & 0x04 != 0);
                break;
            }
        }
        mode
    }
}

/// The units in a REPORT LUNS answer.
pub fn luns(bytes: &[u8]) -> Result<Vec<u16>, Malformed> {
    lun::parse_list(bytes)
}

/// The runs in a GET LBA STATUS answer.
pub fn statuses(bytes: &[u8]) -> Result<Vec<LbaStatus>, Malformed> {
    provisioning::parse_status(bytes)
}

/// The page codes in a supported VPD pages answer.
pub fn vital_pages(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    inquiry::supported(bytes)
}

/// The vendor in a device identification page whose first designator is of a vendor (SPC-4, 7.8.6): that of the target, also where the
/// unit is a device of another one that it passes through.
#[must_use]
pub fn designated_vendor(page: &[u8]) -> Option<&[u8; 8]> {
    let mut reader = Reader::new(page);
    let [_, _, _, _, code_set, kind, _, _] = reader.array().ok()?;
    let is_of_vendor = code_set & 0x0F == 0x02 && kind & 0x3F == 0x01;
    page.get(8..)?.first_chunk().filter(|_| is_of_vendor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::DeviceType;
    use crate::scsi::cdb::{DataKind, traits_of};

    #[test]
    fn first_designator_tells_whose_target_it_is() {
        let body = inquiry::Identity::new("iqn.2026-11.dev.longhaul:t", 0).identification_page(1);
        let page = [&[0, 0x83, 0, body.len() as u8][..], &body].concat();
        assert_eq!(designated_vendor(&page), Some(b"LONGHAUL"));
        assert_eq!(designated_vendor(&page[..12]), None, "cut off");
        let naa = [&[0, 0x83, 0, 12, 0x01, 0x03, 0, 8][..], b"LONGHAUL"].concat();
        assert_eq!(designated_vendor(&naa), None);
    }

    #[test]
    fn only_data_of_the_medium_do_not_tell_their_length() {
        let data = |command: &Command| traits_of(&command.cdb, DeviceType::Disk).data;
        let blocks = Blocks { lba: 1, count: 1 };
        for told in [
            Command::inquiry(),
            Command::vital(0xB0),
            Command::read_capacity_10(),
            Command::read_capacity_16(),
            Command::mode_sense_6(),
            Command::mode_sense_10(),
            Command::report_luns(4),
        ] {
            assert_eq!(data(&told), DataKind::Parameters, "{told:?}");
        }
        for not in [Command::read(blocks, 512), Command::get_lba_status(0, 1)] {
            assert_eq!(data(&not), DataKind::Medium, "{not:?}");
        }
        assert_eq!(data(&Command::write(blocks, 512, false)), DataKind::Stored);
        assert_eq!(data(&Command::write_same(blocks, 512, false)), DataKind::Stored);
        assert_ne!(data(&Command::unmap(&[blocks]).0), DataKind::Stored);
    }
    use proptest::prelude::*;

    #[test]
    fn command_blocks_as_the_standard_draws_them() {
        let blocks = Blocks { lba: 0x0102_0304_0506_0708, count: 0x10 };
        let write = Command::write(blocks, 512, true);
        assert_eq!(write.cdb, [0x8A, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0x10, 0, 0]);
        assert_eq!(write.transfer, Transfer::Out(0x2000));
        let luns = Command::report_luns(2);
        assert_eq!(luns.cdb[6..10], [0, 0, 0, 24]);
        assert_eq!(luns.transfer, Transfer::In(24));
        let (unmap, list) = Command::unmap(&[blocks]);
        assert_eq!(unmap.transfer, Transfer::Out(list.len() as u32));
        assert_eq!(unmap.cdb[7..9], [0, 24]);
    }

    #[test]
    fn the_caching_page_is_found_behind_others() {
        let mut pages = vec![0x01, 2, 0, 0];
        pages.extend([0x4A, 1, 0, 2, 9, 9]);
        pages.extend([0x88, 18, 0x04]);
        let mut ten = vec![0, 6 + 8 + pages.len() as u8, 0, 0x90, 0, 0, 0, 8];
        ten.extend([0; 8]);
        ten.extend(&pages);
        let expected = Mode { write_protected: true, fua: true, write_cache: Some(true) };
        assert_eq!(Mode::parse_10(&ten), Ok(expected));
        let mut six = vec![3 + pages.len() as u8, 0, 0x90, 0];
        six.extend(&pages);
        assert_eq!(Mode::parse_6(&six), Ok(expected));
        six.truncate(4);
        assert_eq!(Mode::parse_6(&six), Ok(Mode { write_cache: None, ..expected }));
    }

    proptest! {
        #[test]
        fn hostile_mode_data_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Mode::parse_10(&bytes);
            let _ = Mode::parse_6(&bytes);
        }
    }
}
