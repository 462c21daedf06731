//! Mode pages (SPC-4, 7.5; SBC-3, 6.5; MMC-6, 7; SSC-4, 8.3): what MODE SENSE shows of a unit and MODE SELECT may
//! change.

mod changer;
mod optical;
pub mod tape;

use super::cdb::{Form, PageControl};
use super::elements::Layout;
use super::readiness::Readiness;
use super::sense::Additional;
use super::{Capacity, DeviceType, Sense};
use crate::reader::{Reader, Truncated};

/// What can be switched while a disk runs. The switches are shared by all initiators and fit 64 bits,
/// so that a device can keep them in an atomic and read them on every command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// D_SENSE: sense data come as descriptors.
    pub descriptor_sense: bool,
    /// SWP: the initiators asked for write protection.
    pub write_protect: bool,
    /// WCE: writes may be volatile until a flush.
    pub write_cache: bool,
    /// Whether the medium can be used.
    pub readiness: Readiness,
    /// An initiator forbids the removal of the medium.
    pub locked: bool,
    /// Of a tape, BUFFERED MODE is zero: a command that writes ends when all is stable.
    pub unbuffered: bool,
    /// Of a disc that is written, Multi-session of the write parameters: a session that is closed is not the last.
    pub multi_session: bool,
    /// Of a CD that is written, Write Type is session at once.
    pub session_at_once: bool,
    /// Of a tape, LOGICAL BLOCK LENGTH in 24 bits: that of commands that count blocks; zero if there is none.
    pub block_length: u32,
}

impl Switches {
    /// The switches in a word.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        u64::from(self.descriptor_sense)
            | u64::from(self.write_protect) << 1
            | u64::from(self.write_cache) << 2
            | u64::from(self.readiness.to_bits()) << 3
            | u64::from(self.locked) << 6
            | u64::from(self.unbuffered) << 7
            | u64::from(self.multi_session) << 8
            | u64::from(self.session_at_once) << 9
            | u64::from(self.block_length) << 10
    }

    /// The switches of a word that [`to_bits`](Self::to_bits) made.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self {
            descriptor_sense: bits & 1 != 0,
            write_protect: bits & 2 != 0,
            write_cache: bits & 4 != 0,
            readiness: Readiness::from_bits((bits >> 3 & 0x07) as u8),
            locked: bits & 64 != 0,
            unbuffered: bits & 128 != 0,
            multi_session: bits & 256 != 0,
            session_at_once: bits & 512 != 0,
            block_length: (bits >> 10) as u32,
        }
    }
}

/// The mode pages of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// What it is.
    pub device: DeviceType,
    /// The switches after power on.
    pub defaults: Switches,
    /// The medium takes no writes, whatever the switches say.
    pub read_only: bool,
    /// What is on the medium is not written over.
    pub write_once: bool,
    /// For the block descriptors.
    pub capacity: Capacity,
    /// The elements of a media changer.
    pub elements: Layout,
}

/// MODE SENSE, as far as it concerns the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// The length of the command block, which decides the header's.
    pub form: Form,
    /// LLBAA.
    pub long: bool,
    /// DBD.
    pub bare: bool,
    /// PC.
    pub control: PageControl,
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
}

const ERROR_RECOVERY: u8 = 0x01;
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0A;
const INFORMATIONAL_EXCEPTIONS: u8 = 0x1C;
const PAGES: [u8; 4] = [ERROR_RECOVERY, CACHING, CONTROL, INFORMATIONAL_EXCEPTIONS];
const PAGES_OF_DRIVE: [u8; 6] = [
    ERROR_RECOVERY,
    optical::WRITE_PARAMETERS,
    CONTROL,
    optical::AUDIO,
    INFORMATIONAL_EXCEPTIONS,
    optical::CAPABILITIES,
];
const DATA_COMPRESSION: u8 = 0x0F;
const DEVICE_CONFIGURATION: u8 = 0x10;
const MEDIUM_CONFIGURATION: u8 = 0x1D;
const PAGES_OF_TAPE: [u8; 6] = [
    ERROR_RECOVERY,
    CONTROL,
    DATA_COMPRESSION,
    DEVICE_CONFIGURATION,
    INFORMATIONAL_EXCEPTIONS,
    MEDIUM_CONFIGURATION,
];
const PAGES_OF_CHANGER: [u8; 5] = [
    CONTROL,
    INFORMATIONAL_EXCEPTIONS,
    changer::ADDRESSES,
    changer::GEOMETRY,
    changer::CAPABILITIES,
];
const ALL_PAGES: u8 = 0x3F;
const ALL_SUBPAGES: u8 = 0xFF;

const WCE: u8 = 0x04;
const D_SENSE: u8 = 0x04;
const UNRESTRICTED_REORDERING: u8 = 0x10;
const SWP: u8 = 0x08;

/// WP and DPOFUA of the device-specific parameter (SBC-3, 6.5.1).
const WRITE_PROTECTED: u8 = 0x80;
const DPO_FUA: u8 = 0x10;
const SHORT_DESCRIPTOR: usize = 8;
const LONG_DESCRIPTOR: usize = 16;

impl Pages {
    /// MODE SENSE data, before they are cut to the allocation length.
    pub fn sense(&self, query: Query, current: Switches) -> Result<Vec<u8>, Sense> {
        let pages = self.wanted(query, current)?;
        // MMC-6, 7.2.2 and SMC-3, 7.3.1: these have no block descriptor, and the parameter is reserved.
        let is_bare = matches!(self.device, DeviceType::Optical | DeviceType::Changer);
        let descriptor = match self.device {
            _ if query.bare || is_bare => Vec::new(),
            DeviceType::Tape => tape::descriptor(current).to_vec(),
            _ => self.descriptor(query),
        };
        let protected = self.read_only || current.write_protect;
        let specific = match self.device {
            DeviceType::Disk => DPO_FUA | if protected { WRITE_PROTECTED } else { 0 },
            DeviceType::Optical | DeviceType::Changer => 0,
            DeviceType::Tape => tape::specific(protected, current),
        };
        let rest = descriptor.len() + pages.len();
        let mut bytes = match query.form {
            Form::Six => vec![(rest + 3) as u8, 0, specific, descriptor.len() as u8],
            _ => {
                let [high, low] = ((rest + 6) as u16).to_be_bytes();
                let long = u8::from(descriptor.len() == LONG_DESCRIPTOR);
                vec![high, low, 0, specific, long, 0, 0, descriptor.len() as u8]
            }
        };
        bytes.extend(descriptor);
        bytes.extend(pages);
        Ok(bytes)
    }

    fn wanted(&self, query: Query, current: Switches) -> Result<Vec<u8>, Sense> {
        if !matches!(query.subpage, 0 | ALL_SUBPAGES) {
            return Err(Sense::invalid_cdb(3, None));
        }
        if query.page != ALL_PAGES && !self.codes().contains(&query.page) {
            return Err(Sense::invalid_cdb(2, Some(5)));
        }
        let switches = match query.control {
            // SPC-4, 6.13.1.
            PageControl::Saved => {
                return Err(Sense::illegal(Additional::SAVING_PARAMETERS_NOT_SUPPORTED));
            }
            PageControl::Default => self.defaults,
            PageControl::Current | PageControl::Changeable => current,
        };
        let mut bytes = Vec::new();
        let wanted = self.codes().iter().filter(|code| [**code, ALL_PAGES].contains(&query.page));
        for code in wanted.copied() {
            let body = match query.control {
                PageControl::Changeable => self.changeable(code),
                _ => self.body(code, switches),
            };
            bytes.extend([code, body.len() as u8]);
            bytes.extend(body);
        }
        Ok(bytes)
    }

    const fn codes(&self) -> &'static [u8] {
        match self.device {
            DeviceType::Disk => &PAGES,
            DeviceType::Optical => &PAGES_OF_DRIVE,
            DeviceType::Tape => &PAGES_OF_TAPE,
            DeviceType::Changer => &PAGES_OF_CHANGER,
        }
    }

    /// A block descriptor (SBC-3, 6.5.2): what does not fit the short one is all ones.
    fn descriptor(&self, query: Query) -> Vec<u8> {
        let Capacity { blocks, block_size, .. } = self.capacity;
        if query.long && query.form == Form::Ten {
            return [&blocks.to_be_bytes()[..], &[0; 4], &block_size.to_be_bytes()].concat();
        }
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        [blocks.to_be_bytes(), block_size.to_be_bytes()].concat()
    }

    /// The body of a page, after its code and length.
    fn body(&self, code: u8, switches: Switches) -> Vec<u8> {
        let own = match self.device {
            DeviceType::Changer => changer::body(code, self.elements),
            DeviceType::Optical => optical::body(code, switches),
            DeviceType::Disk | DeviceType::Tape => None,
        };
        let mut page = own.unwrap_or_else(|| body(code, switches));
        if (code, self.device) == (CONTROL, DeviceType::Tape) {
            // QUEUE ALGORITHM MODIFIER: each command begins where the one before has ended.
            page[1] &= !UNRESTRICTED_REORDERING;
        }
        // A changer has another page of this code.
        if (code, self.device) == (MEDIUM_CONFIGURATION, DeviceType::Tape) {
            return tape::medium_configuration(self.write_once);
        }
        page
    }

    /// The body of a page with a one for each bit that MODE SELECT may change.
    fn changeable(&self, code: u8) -> Vec<u8> {
        let all = Switches {
            descriptor_sense: true,
            write_protect: true,
            // A medium without a cache cannot be given one.
            write_cache: self.defaults.write_cache,
            ..Switches::default()
        };
        let (ones, zeroes) = (self.body(code, all), self.body(code, Switches::default()));
        ones.iter().zip(&zeroes).map(|(one, zero)| one ^ zero).collect()
    }

    /// The switches after MODE SELECT with this parameter list. Nothing changes unless all of it is
    /// valid (SPC-4, 6.11): every field that cannot be changed must have its current value.
    pub fn select(&self, form: Form, list: &[u8], current: Switches) -> Result<Switches, Sense> {
        if list.is_empty() {
            return Ok(current);
        }
        let whole = list.len();
        let mut reader = Reader::new(list);
        let mut switches = match self.device {
            DeviceType::Tape => tape::select_header(form, &mut reader, current),
            _ => self.select_header(form, &mut reader, whole).map(|said| said.map(|()| current)),
        }
        .map_err(too_short)??;
        while !reader.rest().is_empty() {
            let at = whole - reader.rest().len();
            switches = self.select_page(at as u16, &mut reader, switches).map_err(too_short)??;
        }
        Ok(switches)
    }

    /// The header and block descriptor, which may only say what is so.
    fn select_header(
        &self,
        form: Form,
        reader: &mut Reader<'_>,
        whole: usize,
    ) -> Result<Result<(), Sense>, Truncated> {
        // The mode data length is reserved here, and so are WP and DPOFUA (SPC-4, 7.5.5; SBC-3, 6.5.1):
        // initiators send back what MODE SENSE gave them.
        let (medium, long, length, length_at) = match form {
            Form::Six => {
                let [_, medium, _, length] = reader.array()?;
                (medium, 0, usize::from(length), 3)
            }
            _ => {
                let [_, _, medium, _, long, _] = reader.array()?;
                (medium, long & 1, usize::from(reader.u16()?), 6)
            }
        };
        if medium != 0 {
            return Ok(Err(Sense::invalid_parameter(length_at - 2, None)));
        }
        let at = (whole - reader.rest().len()) as u16;
        let (blocks, all_ones, block_size) = match (length, long) {
            (0, _) => return Ok(Ok(())),
            (SHORT_DESCRIPTOR, 0) => {
                let blocks = u64::from(reader.u32()?);
                (blocks, u64::from(u32::MAX), reader.u32()? & 0xFF_FFFF)
            }
            (LONG_DESCRIPTOR, 1) => {
                let blocks = reader.u64()?;
                reader.u32()?;
                (blocks, u64::MAX, reader.u32()?)
            }
            _ => return Ok(Err(Sense::invalid_parameter(length_at, None))),
        };
        // SBC-3, 6.5.2: zero blocks keep the capacity, all ones ask for all there is.
        if blocks != 0 && blocks != all_ones && blocks != self.capacity.blocks {
            return Ok(Err(Sense::invalid_parameter(at, None)));
        }
        if block_size != self.capacity.block_size {
            let size_at = if long == 0 { at + 5 } else { at + 12 };
            return Ok(Err(Sense::invalid_parameter(size_at, None)));
        }
        Ok(Ok(()))
    }

    fn select_page(
        &self,
        at: u16,
        reader: &mut Reader<'_>,
        current: Switches,
    ) -> Result<Result<Switches, Sense>, Truncated> {
        let [code, length] = reader.array()?;
        // PS and SPF are zero in what is selected; a page that is not here is refused with them.
        if !self.codes().contains(&code) {
            return Ok(Err(Sense::invalid_parameter(at, None)));
        }
        let old = self.body(code, current);
        if usize::from(length) != old.len() {
            return Ok(Err(Sense::invalid_parameter(at + 1, None)));
        }
        let new = reader.take(old.len())?;
        if (code, self.device) == (optical::WRITE_PARAMETERS, DeviceType::Optical) {
            return Ok(optical::select(at + 2, new, current));
        }
        for (offset, ((old, new), mask)) in
            (2u16..).zip(old.iter().zip(new).zip(self.changeable(code)))
        {
            let wrong = (old ^ new) & !mask;
            if wrong != 0 {
                let bit = wrong.ilog2() as u8;
                return Ok(Err(Sense::invalid_parameter(at + offset, Some(bit))));
            }
        }
        Ok(Ok(with_body(code, new, current)))
    }
}

fn too_short(_: Truncated) -> Sense {
    Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR)
}

/// The body of a page of most devices, after its code and length.
fn body(code: u8, switches: Switches) -> Vec<u8> {
    let flag = |set, bit| if set { bit } else { 0 };
    match code {
        CACHING => {
            let mut page = vec![0; 18];
            page[0] = flag(switches.write_cache, WCE);
            page
        }
        CONTROL => {
            const GLTSD: u8 = 0x02;
            let mut page = vec![0; 10];
            page[0] = GLTSD | flag(switches.descriptor_sense, D_SENSE);
            page[1] = UNRESTRICTED_REORDERING;
            page[2] = flag(switches.write_protect, SWP);
            page
        }
        INFORMATIONAL_EXCEPTIONS => {
            const DEXCPT: u8 = 0x08; // There are none to report.
            let mut page = vec![0; 10];
            page[0] = DEXCPT;
            page
        }
        DATA_COMPRESSION => vec![0; 14],
        DEVICE_CONFIGURATION => tape::configuration(),
        _ => vec![0; 10],
    }
}

/// The switches after `body` of page `code`, of which the fixed bits have been compared.
fn with_body(code: u8, body: &[u8], mut switches: Switches) -> Switches {
    let mut reader = Reader::new(body);
    match (code, reader.array()) {
        (CACHING, Ok([flags, _, _])) => switches.write_cache = flags & WCE != 0,
        (CONTROL, Ok([format, _, protection])) => {
            switches.descriptor_sense = format & D_SENSE != 0;
            switches.write_protect = protection & SWP != 0;
        }
        _ => {}
    }
    switches
}

#[cfg(test)]
mod tests {
    use super::super::command::Mode;
    use super::*;
    use proptest::prelude::*;

    fn pages(write_cache: bool) -> Pages {
        Pages {
            device: DeviceType::Disk,
            defaults: Switches { write_cache, ..Switches::default() },
            read_only: false,
            write_once: false,
            capacity: Capacity {
                blocks: 0x1_0000_0000,
                block_size: 512,
                physical_exponent: 3,
                provisioning_managed: true,
                reads_zeroes: true,
                protected: false,
            },
            elements: Layout::default(),
        }
    }

    const fn query(form: Form, page: u8) -> Query {
        Query { form, long: false, bare: false, control: PageControl::Current, page, subpage: 0 }
    }

    #[test]
    fn switches_survive_their_byte() {
        for bits in 0..128 {
            assert_eq!(Switches::from_bits(bits).to_bits(), bits);
        }
    }

    #[test]
    fn the_initiator_reads_what_the_device_shows() {
        for write_cache in [false, true] {
            let pages = pages(write_cache);
            let expected =
                Mode { write_protected: false, fua: true, write_cache: Some(write_cache) };
            for page in [CACHING, ALL_PAGES] {
                let six = pages.sense(query(Form::Six, page), pages.defaults).unwrap();
                assert_eq!(Mode::parse_6(&six), Ok(expected));
                assert_eq!(usize::from(six[0]), six.len() - 1);
                let mut wanted = query(Form::Ten, page);
                wanted.long = true;
                let ten = pages.sense(wanted, pages.defaults).unwrap();
                assert_eq!(Mode::parse_10(&ten), Ok(expected));
                assert_eq!(usize::from(ten[1]), ten.len() - 2);
                assert_eq!(ten[8..24], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
            }
        }
    }

    #[test]
    fn sensed_mode_pages_can_be_selected() {
        let pages = pages(true);
        for (form, header) in [(Form::Six, 4), (Form::Ten, 8)] {
            let mut list = pages.sense(query(form, ALL_PAGES), pages.defaults).unwrap();
            list[0] = 0;
            let control = list.windows(2).position(|pair| pair == [CONTROL, 10]).unwrap();
            assert!(control > header);
            list[control + 2] |= D_SENSE;
            list[control + 4] |= SWP;
            let caching = list.windows(2).position(|pair| pair == [CACHING, 18]).unwrap();
            list[caching + 2] &= !WCE;
            let expected = Switches {
                descriptor_sense: true,
                write_protect: true,
                write_cache: false,
                ..Switches::default()
            };
            assert_eq!(pages.select(form, &list, pages.defaults), Ok(expected));
            list.pop();
            assert_eq!(
                pages.select(form, &list, pages.defaults),
                Err(Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR))
            );
        }
    }

    #[test]
    fn only_what_is_changeable_changes() {
        let pages = pages(false);
        let mut changeable = query(Form::Six, CACHING);
        changeable.control = PageControl::Changeable;
        changeable.bare = true;
        let mask = pages.sense(changeable, pages.defaults).unwrap();
        assert!(mask[6..].iter().all(|byte| *byte == 0));
        let mut list = vec![0, 0, 0, 0, CACHING, 18, WCE];
        list.resize(24, 0);
        let refused = pages.select(Form::Six, &list, pages.defaults);
        assert_eq!(refused, Err(Sense::invalid_parameter(6, Some(2))));
    }

    #[test]
    fn another_block_size_is_refused() {
        let list = [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0x10, 0];
        let refused = pages(true).select(Form::Six, &list, Switches::default());
        assert_eq!(refused, Err(Sense::invalid_parameter(9, None)));
    }

    #[test]
    fn unknown_pages_and_saved_values_are_refused() {
        let pages = pages(true);
        let sense = |query| pages.sense(query, pages.defaults).unwrap_err();
        assert_eq!(sense(query(Form::Six, 0x02)), Sense::invalid_cdb(2, Some(5)));
        let subpage = Query { subpage: 1, ..query(Form::Six, CONTROL) };
        assert_eq!(sense(subpage), Sense::invalid_cdb(3, None));
        let saved = Query { control: PageControl::Saved, ..query(Form::Six, CONTROL) };
        assert_eq!(sense(saved), Sense::illegal(Additional::SAVING_PARAMETERS_NOT_SUPPORTED));
    }

    proptest! {
        #[test]
        fn hostile_lists_change_only_what_may_change(
            list in proptest::collection::vec(any::<u8>(), 0..64), ten: bool,
        ) {
            let pages = pages(false);
            let form = if ten { Form::Ten } else { Form::Six };
            if let Ok(switches) = pages.select(form, &list, pages.defaults) {
                prop_assert!(!switches.write_cache && switches.readiness == Readiness::Ready);
            }
        }
    }
}
