//! GET CONFIGURATION (MMC-6, 6.5): the features of the drive, and which of them the disc in it has.

use super::super::super::Sense;
use super::{BLOCK_SIZE, Disc, DiscType};

const CD_ROM: u16 = 0x0008;
const DVD_ROM: u16 = 0x0010;

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
pub(super) fn features(disc: Option<Disc>, requested: u8, from: u16) -> Result<Vec<u8>, Sense> {
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
    let kind = disc.map(Disc::kind);
    let mut list = vec![0, 0];
    list.extend(profile(kind).to_be_bytes());
    all(kind).iter().filter(|feature| is_wanted(feature)).for_each(|it| it.emit(&mut list));
    let mut bytes = (list.len() as u32).to_be_bytes().to_vec();
    bytes.extend(list);
    Ok(bytes)
}

/// Current Profile; none without a disc (MMC-6, 5.3).
const fn profile(kind: Option<DiscType>) -> u16 {
    match kind {
        None => 0,
        Some(DiscType::Cd) => CD_ROM,
        Some(DiscType::Dvd) => DVD_ROM,
    }
}

/// All of them, by their numbers (MMC-6, 5.2.3). The data follow the figure of each.
fn all(kind: Option<DiscType>) -> Vec<Feature> {
    let (cd, dvd) = (kind == Some(DiscType::Cd), kind == Some(DiscType::Dvd));
    let mut profiles = Vec::new();
    for (profile, current) in [(DVD_ROM, dvd), (CD_ROM, cd)] {
        profiles.extend(profile.to_be_bytes());
        profiles.extend([u8::from(current), 0]);
    }
    // Blocking: of a DVD the 16 sectors of an ECC block are read at once.
    let mut readable = BLOCK_SIZE.to_be_bytes().to_vec();
    readable.extend([0, if dvd { 16 } else { 1 }, 0, 0]);
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
        Feature::of_disc(0x0010, 0, cd || dvd, readable),
        // CD Read: without C2 flags and CD-Text.
        Feature::of_disc(0x001E, 2, cd, vec![0, 0, 0, 0]),
        // DVD Read.
        Feature::of_disc(0x001F, 0, dvd, Vec::new()),
        // Power Management.
        Feature::persistent(0x0100, 0, Vec::new()),
        // Timeout.
        Feature::persistent(0x0105, 0, Vec::new()),
    ]
}
