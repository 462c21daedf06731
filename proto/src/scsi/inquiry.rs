//! INQUIRY data: the standard page and the vital product data (SPC-4, 6.6 and 7.8; SBC-3, 6.6), as the
//! device lays them out and as an initiator reads them.

use sha2::{Digest, Sha256};

use super::{DeviceType, Malformed};
use crate::reader::Reader;

/// Page codes of vital product data.
pub mod page {
    /// Supported VPD pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Unit serial number.
    pub const SERIAL: u8 = 0x80;
    /// Device identification.
    pub const IDENTIFICATION: u8 = 0x83;
    /// Extended INQUIRY data.
    pub const EXTENDED: u8 = 0x86;
    /// Mode page policy.
    pub const MODE_POLICY: u8 = 0x87;
    /// SCSI ports.
    pub const PORTS: u8 = 0x88;
    /// Third-party copy.
    pub const THIRD_PARTY_COPY: u8 = 0x8F;
    /// Block limits.
    pub const BLOCK_LIMITS: u8 = 0xB0;
    /// Block device characteristics.
    pub const CHARACTERISTICS: u8 = 0xB1;
    /// Logical block provisioning.
    pub const PROVISIONING: u8 = 0xB2;
    /// Vendor specific (SPC-4, 7.8.1): the identity of a Longhaul volume.
    pub const VOLUME: u8 = 0xC0;
}

/// A direct access block device that is connected: qualifier 0, type 0.
pub const DISK: u8 = 0x00;
/// PERIPHERAL QUALIFIER 1: the device is not connected, as it cannot be reached by this port (SPC-4, 5.16).
pub const UNREACHABLE: u8 = 0x20;
/// No device can be at this logical unit: qualifier 3, type 1Fh (SPC-4, 6.6.2).
pub const ABSENT: u8 = 0x7F;

const RMB: u8 = 0x80;
const MULTIP: u8 = 0x10;
/// TPGS: implicit asymmetric access.
const IMPLICIT_ACCESS: u8 = 0x10;
/// 3PC.
const THIRD_PARTY_COPY: u8 = 0x08;
const VERSION_SPC_4: u8 = 0x06;
/// SAM-5, SPC-4 and iSCSI, each without a version claimed (SPC-4, 6.6.2). The command set comes between.
const SAM_5: u16 = 0x00A0;
const SPC_4: u16 = 0x0460;
const ISCSI: u16 = 0x0960;

/// Standard INQUIRY data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standard {
    /// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE.
    pub peripheral: u8,
    /// RMB: the medium can be taken out.
    pub removable: bool,
    /// MULTIP: it has several target ports.
    pub multi_port: bool,
    /// 3PC: it has EXTENDED COPY.
    pub third_party_copy: bool,
    /// The third version descriptor: its command set.
    pub command_set: u16,
    /// The version of SPC the device claims.
    pub version: u8,
    /// T10 VENDOR IDENTIFICATION.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION.
    pub product: String,
    /// PRODUCT REVISION LEVEL.
    pub revision: String,
}

impl Standard {
    const LENGTH: usize = 96;

    /// Lays it out; texts are cut or padded to their fields.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        // HISUP with response data format 2, and CMDQUE: the task set is managed.
        let removable = if self.removable { RMB } else { 0 };
        let ports = if self.multi_port { MULTIP } else { 0 };
        let copies = if self.third_party_copy { THIRD_PARTY_COPY } else { 0 };
        let flags = IMPLICIT_ACCESS | copies;
        let mut bytes =
            vec![self.peripheral, removable, VERSION_SPC_4, 0x12, 0, flags, ports, 0x02];
        bytes.extend(padded::<8>(&self.vendor));
        bytes.extend(padded::<16>(&self.product));
        bytes.extend(padded::<4>(&self.revision));
        bytes.resize(58, 0);
        let versions = [SAM_5, SPC_4, self.command_set, ISCSI];
        bytes.extend(versions.iter().flat_map(|version| version.to_be_bytes()));
        bytes.resize(Self::LENGTH, 0);
        bytes[4] = (Self::LENGTH - 5) as u8; // ADDITIONAL LENGTH
        bytes
    }

    /// Reads it; at least its first 36 bytes must be there, as SPC-4, 6.6.2 demands of every device.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let [peripheral, flags, version, _, _, copies, ports, _] = reader.array()?;
        let (vendor, product) = (text(reader.take(8)?), text(reader.take(16)?));
        let revision = text(reader.take(4)?);
        // SPC-2 and what is older have none; the third is what this product claims there.
        let command_set = reader.take(26).and_then(|_| reader.u16()).unwrap_or(0);
        Ok(Self {
            peripheral,
            removable: flags & RMB != 0,
            multi_port: ports & MULTIP != 0,
            third_party_copy: copies & THIRD_PARTY_COPY != 0,
            command_set,
            version,
            vendor,
            product,
            revision,
        })
    }

    /// The peripheral device type.
    #[must_use]
    pub const fn device_type(&self) -> u8 {
        self.peripheral & 0x1F
    }

    /// The peripheral qualifier: 0 where a device is connected.
    #[must_use]
    pub const fn qualifier(&self) -> u8 {
        self.peripheral >> 5
    }
}

/// Who a logical unit is: the same wherever and whenever it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Eight characters of T10 VENDOR IDENTIFICATION.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION, 16 characters.
    pub product: String,
    /// PRODUCT REVISION LEVEL, four characters.
    pub revision: String,
    /// PRODUCT SERIAL NUMBER.
    pub serial: String,
    /// What no other volume has, also where a serial number is given to another one.
    pub volume: String,
    /// The name of the target device, an iSCSI name.
    pub target: String,
    /// The number of the unit in the target.
    pub lun: u16,
}

/// By what the page is known from those that other vendors have under its code.
const VOLUME_PAGE: &[u8] = b"LONGHAUL";

/// The longest serial number that leaves room for its designator's one-byte length.
pub const SERIAL_MAX: usize = 200;

impl Identity {
    /// The identity of unit `lun` of `target`: the serial number follows from both, so that it
    /// survives a restart and differs between units.
    #[must_use]
    pub fn new(target: impl Into<String>, lun: u16) -> Self {
        let target = target.into();
        let serial = serial_text(digest(&target, lun, "serial"));
        Self {
            vendor: "LONGHAUL".into(),
            product: DeviceType::Disk.product().into(),
            revision: "0001".into(),
            volume: serial.clone(),
            serial,
            target,
            lun,
        }
    }

    /// The serial number of unit `lun` of `target` that hands another unit on, which tells `source` of itself. Both may
    /// have the same names, and clients would take units with one serial number for two paths to one.
    #[must_use]
    pub fn serial_behind(target: &str, lun: u16, source: &str) -> String {
        serial_text(digest(target, lun, &format!("serial behind {source}")))
    }

    /// The standard page of this unit.
    #[must_use]
    pub fn standard(&self, peripheral: u8) -> Standard {
        Standard {
            peripheral,
            removable: false,
            multi_port: false,
            third_party_copy: true,
            command_set: DeviceType::Disk.command_set(),
            version: VERSION_SPC_4,
            vendor: self.vendor.clone(),
            product: self.product.clone(),
            revision: self.revision.clone(),
        }
    }

    /// The body of the unit serial number page.
    #[must_use]
    pub fn serial_page(&self) -> Vec<u8> {
        ascii(&self.serial).take(SERIAL_MAX).collect()
    }

    /// The body of the page that tells the volume from all others; [`volume`] reads it.
    #[must_use]
    pub fn volume_page(&self) -> Vec<u8> {
        let volume = self.volume.bytes().take(SERIAL_MAX);
        VOLUME_PAGE.iter().copied().chain(volume).collect()
    }

    /// The body of the device identification page, for who asks by target port `port`, which is alone in its
    /// group. The unit has no SCSI name string (SPC-4, 7.8.6): Linux would prefer that name to the two others,
    /// though it stays where the volume is exchanged, and multipathd cannot call a disk by a name with commas.
    #[must_use]
    pub fn identification_page(&self, port: u16) -> Vec<u8> {
        let mut page = Vec::new();
        designator(&mut page, Designator::Vendor, &self.vendor_designator());
        designator(&mut page, Designator::Naa, &self.naa());
        let [high, low] = port.to_be_bytes();
        designator(&mut page, Designator::RelativePort, &[0, 0, high, low]);
        designator(&mut page, Designator::PortGroup, &[0, 0, high, low]);
        designator(&mut page, Designator::PortName, &name_string(&self.port_name(port)));
        designator(&mut page, Designator::TargetName, &name_string(&self.target));
        page
    }

    /// The body of the SCSI ports page: the ports by which the unit can be reached (SPC-4, 7.8.14).
    #[must_use]
    pub fn ports_page(&self, ports: impl Iterator<Item = u16>) -> Vec<u8> {
        let mut page = Vec::new();
        for port in ports {
            let mut name = Vec::new();
            designator(&mut name, Designator::PortName, &name_string(&self.port_name(port)));
            page.extend([0, 0]);
            page.extend(port.to_be_bytes());
            // No TransportID: it is not a port of an initiator.
            page.extend([0; 6]);
            page.extend((name.len() as u16).to_be_bytes());
            page.extend(name);
        }
        page
    }

    /// The name of a target port (RFC 7143, 4.4.2).
    fn port_name(&self, port: u16) -> String {
        format!("{},t,0x{port:04x}", self.target)
    }

    /// Its first designator, with code set, type and length: by what a media changer names a drive (SMC-3, 6.11.5).
    #[must_use]
    pub fn designator(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        designator(&mut bytes, Designator::Vendor, &self.vendor_designator());
        bytes
    }

    /// Whether a designator, with its code set and its association and type, is this unit's; one that fits
    /// twenty bytes, as EXTENDED COPY wants it.
    #[must_use]
    pub fn is_designated(&self, header: [u8; 2], value: &[u8]) -> bool {
        let own = [
            (Designator::Naa, self.naa().to_vec()),
            (Designator::Vendor, self.vendor_designator()),
        ];
        own.iter().any(|(kind, own)| kind.header() == header && own == value)
    }

    fn vendor_designator(&self) -> Vec<u8> {
        let mut bytes = padded::<8>(&self.vendor).to_vec();
        bytes.extend(self.serial_page());
        bytes
    }

    /// An NAA name of the locally assigned format (SPC-4, 7.8.6): no IEEE company identifier is
    /// claimed. Its 60 bits follow from the serial number too, so that a unit given another one is
    /// another unit.
    fn naa(&self) -> [u8; 8] {
        const LOCALLY_ASSIGNED: u8 = 0x30;
        let digest = digest(&self.target, self.lun, &self.serial);
        let mut name = [0; 8];
        name.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
        name[0] = LOCALLY_ASSIGNED | (name[0] & 0x0F);
        name
    }
}

fn serial_text(digest: [u8; 32]) -> String {
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn digest(target: &str, lun: u16, purpose: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(target.as_bytes());
    hash.update([0]); // No iSCSI name holds a NUL, so that no two triples run together.
    hash.update(lun.to_be_bytes());
    hash.update(purpose.as_bytes());
    hash.finalize().into()
}

#[derive(Clone, Copy)]
enum Designator {
    Vendor,
    Naa,
    RelativePort,
    PortGroup,
    PortName,
    TargetName,
}

impl Designator {
    /// Code set, and association with designator type (SPC-4, 7.8.6); iSCSI is protocol 5.
    const fn header(self) -> [u8; 2] {
        match self {
            Self::Vendor => [0x02, 0x01],
            Self::Naa => [0x01, 0x03],
            // PIV, with the association to the target port.
            Self::RelativePort => [0x51, 0x94],
            Self::PortGroup => [0x51, 0x95],
            Self::PortName => [0x53, 0x98],
            // PIV, with the association to the target device.
            Self::TargetName => [0x53, 0xA8],
        }
    }
}

fn designator(page: &mut Vec<u8>, kind: Designator, value: &[u8]) {
    let value = value.get(..usize::from(u8::MAX)).unwrap_or(value);
    page.extend(kind.header());
    page.extend([0, value.len() as u8]);
    page.extend(value);
}

/// A SCSI name string ends in NUL and is padded to a multiple of four (SPC-4, 7.8.6).
fn name_string(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize((bytes.len() + 1).next_multiple_of(4), 0);
    bytes
}

/// SPC-4, 4.4.1: graphic ASCII, left-aligned, padded with spaces.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    field.iter_mut().zip(ascii(text)).for_each(|(to, from)| *to = from);
    field
}

fn ascii(text: &str) -> impl Iterator<Item = u8> + '_ {
    text.bytes().map(|byte| if (0x20..0x7F).contains(&byte) { byte } else { b' ' })
}

fn text(field: &[u8]) -> String {
    let clean: String = field
        .iter()
        .map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { ' ' })
        .collect();
    clean.trim_end().to_owned()
}

/// A vital product data page: its header before `body`.
#[must_use]
pub fn vital(peripheral: u8, page: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![peripheral, page];
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// The body of a vital product data page, as far as it came.
pub fn body(page: u8, bytes: &[u8]) -> Result<&[u8], Malformed> {
    let mut reader = Reader::new(bytes);
    let [_, code] = reader.array()?;
    if code != page {
        return Err(Malformed::Field("PAGE CODE"));
    }
    let length = usize::from(reader.u16()?);
    Ok(reader.up_to(length).rest())
}

/// The identity of a Longhaul volume, from a whole page.
#[must_use]
pub fn volume(bytes: &[u8]) -> Option<String> {
    let identity = body(page::VOLUME, bytes).ok()?.strip_prefix(VOLUME_PAGE)?;
    Some(String::from_utf8_lossy(identity).into_owned())
}

/// The serial number of a unit, from a whole page. The Linux kernel's target ends it with a zero.
#[must_use]
pub fn serial(bytes: &[u8]) -> Option<String> {
    let body = body(page::SERIAL, bytes).ok()?;
    let padding = |c: char| c == '\0' || c.is_whitespace();
    Some(String::from_utf8_lossy(body).trim_matches(padding).to_owned())
}

/// The body of the extended INQUIRY data page (SPC-4, 7.8): simple, ordered and head-of-queue tasks,
/// and whether there is a volatile cache.
#[must_use]
pub fn extended(volatile_cache: bool) -> Vec<u8> {
    let mut page = vec![0; 60];
    page[1] = 0x07; // HEADSUP, ORDSUP, SIMPSUP
    page[2] = u8::from(volatile_cache); // V_SUP
    page
}

/// The body of the mode page policy page (SPC-4, 7.8): every page is shared.
pub const MODE_POLICY: [u8; 4] = [0x3F, 0xFF, 0x00, 0x00];

/// The body of the block device characteristics page: a medium that does not rotate, and on which blocks can
/// be read again after a block erase and a crypto erase, if there are any.
#[must_use]
pub fn characteristics(block_erase: bool, crypto_erase: bool) -> Vec<u8> {
    const WABEREQ_READABLE: u8 = 0x40;
    const WACEREQ_READABLE: u8 = 0x10;
    let mut page = vec![0; 60];
    page[1] = 0x01;
    page[3] = if block_erase { WABEREQ_READABLE } else { 0 }
        | if crypto_erase { WACEREQ_READABLE } else { 0 };
    page
}

/// The block limits page. Lengths are in logical blocks; zero means that no limit is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// WSNZ: WRITE SAME of zero blocks is refused.
    pub write_same_non_zero: bool,
    /// MAXIMUM COMPARE AND WRITE LENGTH; zero where the command is not supported.
    pub compare_and_write_max: u8,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY.
    pub transfer_granularity: u16,
    /// MAXIMUM TRANSFER LENGTH.
    pub transfer_max: u32,
    /// OPTIMAL TRANSFER LENGTH.
    pub transfer_optimal: u32,
    /// MAXIMUM PREFETCH LENGTH.
    pub prefetch_max: u32,
    /// MAXIMUM UNMAP LBA COUNT; all ones for no limit, zero where UNMAP is not supported.
    pub unmap_blocks_max: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT; likewise.
    pub unmap_descriptors_max: u32,
    /// OPTIMAL UNMAP GRANULARITY.
    pub unmap_granularity: u32,
    /// UNMAP GRANULARITY ALIGNMENT, where it is reported.
    pub unmap_alignment: Option<u32>,
    /// MAXIMUM WRITE SAME LENGTH.
    pub write_same_max: u64,
    /// MAXIMUM ATOMIC TRANSFER LENGTH; zero where atomic writes are not supported.
    pub atomic_max: u32,
    /// ATOMIC ALIGNMENT: of what their first address is a multiple; zero for any.
    pub atomic_alignment: u32,
    /// ATOMIC TRANSFER LENGTH GRANULARITY: of what their length is a multiple; likewise.
    pub atomic_granularity: u32,
}

impl BlockLimits {
    const ALIGNMENT_VALID: u32 = 1 << 31;

    /// The body of the page.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let alignment = self.unmap_alignment.map_or(0, |at| at | Self::ALIGNMENT_VALID);
        let mut page = vec![u8::from(self.write_same_non_zero), self.compare_and_write_max];
        page.extend(self.transfer_granularity.to_be_bytes());
        for field in [
            self.transfer_max,
            self.transfer_optimal,
            self.prefetch_max,
            self.unmap_blocks_max,
            self.unmap_descriptors_max,
            self.unmap_granularity,
            alignment,
        ] {
            page.extend(field.to_be_bytes());
        }
        page.extend(self.write_same_max.to_be_bytes());
        for field in [self.atomic_max, self.atomic_alignment, self.atomic_granularity] {
            page.extend(field.to_be_bytes());
        }
        page.resize(60, 0);
        page
    }

    /// Reads a whole page; what an older standard does not have (SBC-2 ends after the third length) is
    /// zero.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body(page::BLOCK_LIMITS, bytes)?);
        let [flags, compare_and_write_max] = reader.array()?;
        let mut limits = Self {
            write_same_non_zero: flags & 1 != 0,
            compare_and_write_max,
            transfer_granularity: reader.u16()?,
            transfer_max: reader.u32()?,
            transfer_optimal: reader.u32()?,
            ..Self::default()
        };
        limits.prefetch_max = reader.u32().unwrap_or(0);
        limits.unmap_blocks_max = reader.u32().unwrap_or(0);
        limits.unmap_descriptors_max = reader.u32().unwrap_or(0);
        limits.unmap_granularity = reader.u32().unwrap_or(0);
        limits.unmap_alignment = reader
            .u32()
            .ok()
            .filter(|at| at & Self::ALIGNMENT_VALID != 0)
            .map(|at| at & !Self::ALIGNMENT_VALID);
        limits.write_same_max = reader.u64().unwrap_or(0);
        limits.atomic_max = reader.u32().unwrap_or(0);
        limits.atomic_alignment = reader.u32().unwrap_or(0);
        limits.atomic_granularity = reader.u32().unwrap_or(0);
        Ok(limits)
    }
}

/// The logical block provisioning page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provisioning {
    /// LBPU: UNMAP is supported.
    pub unmap: bool,
    /// LBPWS: so is WRITE SAME (16) with UNMAP.
    pub write_same_16: bool,
    /// LBPWS10: so is WRITE SAME (10) with UNMAP.
    pub write_same_10: bool,
    /// LBPRZ: unmapped blocks read as zeroes.
    pub reads_zeroes: bool,
    /// ANC_SUP: blocks can be anchored.
    pub anchors: bool,
    /// PROVISIONING TYPE 2: thin.
    pub thin: bool,
}

impl Provisioning {
    const THIN: u8 = 2;

    /// The body of the page.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let flags = [
            (self.unmap, 0x80),
            (self.write_same_16, 0x40),
            (self.write_same_10, 0x20),
            (self.reads_zeroes, 0x04),
            (self.anchors, 0x02),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, bit)| all | bit);
        vec![0, flags, if self.thin { Self::THIN } else { 0 }, 0]
    }

    /// Reads a whole page.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let [_, flags, kind] = Reader::new(body(page::PROVISIONING, bytes)?).array()?;
        Ok(Self {
            unmap: flags & 0x80 != 0,
            write_same_16: flags & 0x40 != 0,
            write_same_10: flags & 0x20 != 0,
            // SBC-4 made LBPRZ three bits; of those only xx1b promises zeroes.
            reads_zeroes: flags & 0x04 != 0,
            anchors: flags & 0x02 != 0,
            thin: kind & 0x07 == Self::THIN,
        })
    }
}

/// The page codes a device lists as supported.
pub fn supported(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    body(page::SUPPORTED, bytes).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::super::ports;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_standard_page_reads_back() {
        let page = Identity::new("iqn.2026-11.dev.longhaul:a", 0).standard(DISK);
        let page = Standard { removable: true, multi_port: true, ..page };
        let bytes = page.emit();
        assert_eq!(bytes.len(), 96);
        assert_eq!(usize::from(bytes[4]), bytes.len() - 5);
        assert_eq!(Standard::parse(&bytes), Ok(page));
        assert!(Standard::parse(&bytes[..35]).is_err());
    }

    #[test]
    fn texts_are_cut_padded_and_clean() {
        let mut identity = Identity::new("iqn.x", 0);
        identity.vendor = "A\u{e9}".into();
        identity.product = "much longer than the field".into();
        let bytes = identity.standard(DISK).emit();
        assert_eq!(&bytes[8..16], b"A       ");
        assert_eq!(&bytes[16..32], b"much longer than");
    }

    #[test]
    fn identities_are_stable_and_differ() {
        let pages = ["iqn.x:a", "iqn.x:b"]
            .map(|target| [0, 1].map(|lun| Identity::new(target, lun).identification_page(1)));
        let all: std::collections::HashSet<_> = pages.iter().flatten().collect();
        assert_eq!(all.len(), 4);
        assert_eq!(pages[0][0], Identity::new("iqn.x:a", 0).identification_page(1));
    }

    #[test]
    fn serial_number_of_a_unit_that_hands_another_on_is_its_own() {
        let mut serials = vec![Identity::new("iqn.x:a", 0).serial];
        // Each is behind the one before, under the same name.
        for _ in 0..3 {
            let next = Identity::serial_behind("iqn.x:a", 0, serials.last().unwrap());
            assert!(next.len() == 16 && !serials.contains(&next), "{next} {serials:?}");
            serials.push(next);
        }
        let again = Identity::serial_behind("iqn.x:a", 0, &serials[0]);
        assert_eq!(again, serials[1], "it is the same after a restart");
        assert_ne!(Identity::serial_behind("iqn.x:a", 1, &serials[0]), again);
    }

    #[test]
    fn a_serial_number_is_told_from_its_padding() {
        for text in [b"ab12\0".as_slice(), b"  ab12", b"ab12 \0\0"] {
            let page = [&[0, page::SERIAL, 0, text.len() as u8], text].concat();
            assert_eq!(serial(&page).as_deref(), Some("ab12"));
        }
    }

    #[test]
    fn the_ports_page_names_each_port_as_its_identification_page_does() {
        let identity = Identity::new("iqn.2026-11.dev.longhaul:backup", 3);
        let page = identity.ports_page([1, 255].into_iter());
        let mut reader = Reader::new(&page);
        for port in [1, 255] {
            let [_, _, high, low, rest @ ..] = reader.array::<10>().unwrap();
            assert_eq!((u16::from_be_bytes([high, low]), rest), (port, [0; 6]));
            let length = reader.u16().unwrap();
            let name = reader.take(length.into()).unwrap();
            let text = format!("iqn.2026-11.dev.longhaul:backup,t,0x{port:04x}");
            assert_eq!(name[4..4 + text.len()], *text.as_bytes());
            let identification = identity.identification_page(port);
            assert!(identification.windows(name.len()).any(|part| part == name));
            let group = [0x51, 0x95, 0, 4, 0, 0, high, low];
            assert!(identification.windows(group.len()).any(|part| part == group));
        }
        assert!(reader.rest().is_empty());
    }

    #[test]
    fn as_many_ports_as_there_may_be_fit_their_page() {
        let identity = Identity::new("x".repeat(223), 0);
        assert!(identity.ports_page(1..=ports::PORT_MAX).len() <= usize::from(u16::MAX));
    }

    #[test]
    fn designators_fill_their_page() {
        let page = Identity::new("iqn.2026-11.dev.longhaul:backup", 3).identification_page(1);
        let mut reader = Reader::new(&page);
        let mut kinds = Vec::new();
        while let Ok([_, kind, _, length]) = reader.array() {
            let value = reader.take(length.into()).unwrap();
            if kind & 0x0F == 8 {
                assert_eq!(value.len() % 4, 0);
                assert_eq!(value.last(), Some(&0));
            }
            kinds.push(kind);
        }
        assert!(reader.rest().is_empty());
        assert_eq!(kinds, [0x01, 0x03, 0x94, 0x95, 0x98, 0xA8]);
    }

    #[test]
    fn the_volume_is_told_by_a_page_of_ours() {
        let identity = Identity { volume: "0123456789abcdef".into(), ..Identity::new("iqn.x", 0) };
        let bytes = vital(DISK, page::VOLUME, &identity.volume_page());
        assert_eq!(volume(&bytes).as_deref(), Some("0123456789abcdef"));
        let of_another_vendor = vital(DISK, page::VOLUME, b"ACME0123456789abcdef");
        assert_eq!(volume(&of_another_vendor), None);
        assert_eq!(volume(&vital(DISK, page::SERIAL, &identity.volume_page())), None);
    }

    #[test]
    fn an_old_block_limits_page_has_no_unmap() {
        let mut bytes = vital(DISK, page::BLOCK_LIMITS, &[0; 12]);
        bytes[11] = 9;
        let limits = BlockLimits::parse(&bytes).unwrap();
        assert_eq!(limits, BlockLimits { transfer_max: 9, ..BlockLimits::default() });
    }

    proptest! {
        #[test]
        fn block_limits_round_trip(
            write_same_non_zero: bool, compare_and_write_max: u8, transfer_granularity: u16,
            lengths: [u32; 9], alignment in proptest::option::of(0..u32::MAX >> 1),
            write_same_max: u64,
        ) {
            let limits = BlockLimits {
                write_same_non_zero, compare_and_write_max, transfer_granularity,
                transfer_max: lengths[0], transfer_optimal: lengths[1], prefetch_max: lengths[2],
                unmap_blocks_max: lengths[3], unmap_descriptors_max: lengths[4],
                unmap_granularity: lengths[5], unmap_alignment: alignment, write_same_max,
                atomic_max: lengths[6], atomic_alignment: lengths[7], atomic_granularity: lengths[8],
            };
            let bytes = vital(DISK, page::BLOCK_LIMITS, &limits.emit());
            prop_assert_eq!(bytes.len(), 64);
            prop_assert_eq!(BlockLimits::parse(&bytes), Ok(limits));
        }

        #[test]
        fn provisioning_round_trips(bits: [bool; 6]) {
            let [unmap, write_same_16, write_same_10, reads_zeroes, anchors, thin] = bits;
            let page = Provisioning {
                unmap, write_same_16, write_same_10, reads_zeroes, anchors, thin,
            };
            let bytes = vital(DISK, page::PROVISIONING, &page.emit());
            prop_assert_eq!(Provisioning::parse(&bytes), Ok(page));
        }

        #[test]
        fn hostile_pages_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _ = Standard::parse(&bytes);
            let _ = BlockLimits::parse(&bytes);
            let _ = Provisioning::parse(&bytes);
            let _ = supported(&bytes);
            let _ = volume(&bytes);
        }
    }
}
