//! GET CONFIGURATION (MMC-6, 6.5): the features of the drive, and which of them the disc in it has.

use super::super::super::Sense;
use super::{BLOCK_SIZE, DiscType};

/// A feature descriptor (MMC-6, 5.2.2).
struct Feature {
    code: u16,
    version: u8,
    /// It is always current.
    persistent: bool,
    /// It is current now.
    current: bool,
    data: Vec<u8>,
}

impl Feature {
    const fn persistent(code: u16, version: u8, data: Vec<u8>) -> Self {
        Self { code, version, persistent: true, current: true, data }
    }

    const fn of_disc(code: u16, version: u8, current: bool, data: Vec<u8>) -> Self {
        Self { code, version, persistent: false, current, data }
    }

    fn emit(&self, list: &mut Vec<u8>) {
        list.extend(self.code.to_be_bytes());
        let flags = u8::from(self.persistent) << 1 | u8::from(self.current);
        list.extend([self.version << 2 | flags, self.data.len() as u8]);
        list.extend(&self.data);
    }
}

/// The features from number `from` on that `requested` (RT) asks for.
pub(super) fn features(disc: Option<DiscType>, requested: u8, from: u16) -> Result<Vec<u8>, Sense> {
    const ALL: u8 = 0b00;
    const CURRENT: u8 = 0b01;
    const ONE: u8 = 0b10;
    let is_wanted = |feature: &Feature| match requested {
        CURRENT => feature.code >= from && feature.current,
        ONE => feature.code == from,
        _ => feature.code >= from,
    };
    if !matches!(requested, ALL | CURRENT | ONE) {
        return Err(Sense::invalid_cdb(1, Some(1)));
    }
    let mut list = vec![0, 0];
    // Current Profile; none without a disc (MMC-6, 5.3).
    list.extend(disc.map_or(0, profile).to_be_bytes());
    all(disc).iter().filter(|feature| is_wanted(feature)).for_each(|it| it.emit(&mut list));
    let mut bytes = (list.len() as u32).to_be_bytes().to_vec();
    bytes.extend(list);
    Ok(bytes)
}

/// The number of its profile (MMC-6, 5.3).
const fn profile(disc: DiscType) -> u16 {
    match disc {
        DiscType::Cd => 0x0008,
        DiscType::CdR => 0x0009,
        DiscType::Dvd => 0x0010,
        DiscType::DvdPlusRw => 0x001A,
        DiscType::BdR => 0x0041,
    }
}

/// All of them, by their numbers (MMC-6, 5.2.3). The data follow the figure of each.
fn all(disc: Option<DiscType>) -> Vec<Feature> {
    use DiscType::{BdR, Cd, CdR, Dvd, DvdPlusRw};
    let is = |any: &[DiscType]| disc.is_some_and(|disc| any.contains(&disc));
    let (cd, dvd) = (is(&[Cd, CdR]), is(&[Dvd, DvdPlusRw]));
    let mut profiles = Vec::new();
    for listed in [BdR, DvdPlusRw, Dvd, CdR, Cd] {
        profiles.extend(profile(listed).to_be_bytes());
        profiles.extend([u8::from(is(&[listed])), 0]);
    }
    // Blocking: of a DVD the 16 sectors of an ECC block are read at once, of a Blu-ray disc the 32 of a cluster.
    let blocking = if dvd { 16 } else { 1 };
    let mut readable = BLOCK_SIZE.to_be_bytes().to_vec();
    readable.extend([0, if is(&[BdR]) { 32 } else { blocking }, 0, 0]);
    let mut writable = (DvdPlusRw.blocks() - 1).to_be_bytes().to_vec();
    writable.extend(BLOCK_SIZE.to_be_bytes());
    writable.extend([0, 16, 0, 0]);
    vec![
        // Profile List.
        Feature::persistent(0x0000, 0, profiles),
        // Core: the physical interface is that of the SCSI family, and there are no events of a busy drive.
        Feature::persistent(0x0001, 1, vec![0, 0, 0, 1, 0, 0, 0, 0]),
        // Morphing: operational changes are told by events.
        Feature::persistent(0x0002, 1, vec![0x02, 0, 0, 0]),
        // Removable Medium: a tray that loads, ejects and can be locked, without a jumper.
        Feature::persistent(0x0003, 2, vec![0x39, 0, 0, 0]),
        // Random Readable.
        Feature::of_disc(0x0010, 0, disc.is_some(), readable),
        // CD Read: without C2 flags and CD-Text.
        Feature::of_disc(0x001E, 2, cd, vec![0, 0, 0, 0]),
        // DVD Read.
        Feature::of_disc(0x001F, 0, dvd, Vec::new()),
        // Random Writable: in ECC blocks.
        Feature::of_disc(0x0020, 1, is(&[DvdPlusRw]), writable),
        // Incremental Streaming Writable: blocks of type 8, in any number.
        Feature::of_disc(0x0021, 1, is(&[CdR, BdR]), vec![0x01, 0x00, 0, 0]),
        // Formattable.
        Feature::of_disc(0x0023, 0, is(&[DvdPlusRw]), vec![0, 0, 0, 0]),
        // DVD+RW: it is written, and formatted by being so.
        Feature::of_disc(0x002A, 0, is(&[DvdPlusRw]), vec![0x01, 0x02, 0, 0]),
        // CD Track at Once: without test write, sub-channels or rewritable discs; blocks of type 8.
        Feature::of_disc(0x002D, 2, is(&[CdR]), vec![0x40, 0, 0x01, 0x00]),
        // CD Mastering: session at once, without test write.
        Feature::of_disc(0x002E, 0, is(&[CdR]), vec![0x60, 0, 0x01, 0x00]),
        // BD Read: BD-R, of class 0 in each version.
        Feature::of_disc(0x0040, 0, is(&[BdR]), bd_classes()),
        // BD Write: likewise.
        Feature::of_disc(0x0041, 0, is(&[BdR]), bd_classes()),
        // Power Management.
        Feature::persistent(0x0100, 0, Vec::new()),
        // Timeout.
        Feature::persistent(0x0105, 0, Vec::new()),
    ]
}

/// Of BD-RE none, of BD-R versions of the first class.
fn bd_classes() -> Vec<u8> {
    let mut classes = vec![0; 28];
    // The bit map of class 0 of BD-R.
    classes[12..14].copy_from_slice(&0x0002_u16.to_be_bytes());
    classes
}
