use super::super::super::DeviceType;
use super::super::super::cdb::Parsed;
use super::super::super::sense::Key;
use super::super::{Medium, Unit};
use super::tests::unit;
use super::*;

/// A drive with a disc that can be written.
struct Burner {
    unit: Unit,
    disc: Disc,
}

impl Burner {
    fn new(disc: DiscType, blocks: u32) -> Self {
        let pressed = unit(blocks.into());
        let medium = Medium { read_only: false, recordable: Some(disc), ..*pressed.medium() };
        let unit = pressed.on(medium);
        Self { unit, disc: Disc::blank(disc, blocks) }
    }

    fn parsed(bytes: &[u8]) -> Parsed {
        let mut block = [0; 16];
        block[..bytes.len()].copy_from_slice(bytes);
        Parsed::of(&block, DeviceType::Optical)
    }

    fn plan(&self, bytes: &[u8]) -> Result<Step, Sense> {
        self.unit.plan_on_disc(&Self::parsed(bytes), self.unit.defaults(), &self.disc)
    }

    fn reply(&self, bytes: &[u8]) -> Vec<u8> {
        match self.plan(bytes) {
            Ok(Step::Reply(data)) => data,
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, lba: u8, count: u8) -> Result<(), Additional> {
        let step = self.plan(&[0x2A, 0, 0, 0, 0, lba, 0, 0, count, 0]);
        match step.map_err(|sense| sense.additional)? {
            Step::Medium(MediumOp::Write { blocks, .. }) => self.disc.written(blocks),
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    fn disc_information(&self) -> Vec<u8> {
        self.reply(&[0x51, 0, 0, 0, 0, 0, 0, 0, 255])
    }

    /// READ TRACK INFORMATION by this number.
    fn track(&self, number: u8) -> Vec<u8> {
        self.reply(&[0x52, 1, 0, 0, 0, number, 0, 0, 48])
    }

    fn profile(&self) -> u8 {
        self.reply(&[0x46, 0, 0, 0, 0, 0, 0, 0, 8])[7]
    }
}

const TOC: [u8; 9] = [0x43, 0, 0, 0, 0, 0, 0, 1, 0];
const CAPACITY: [u8; 1] = [0x25];

#[test]
fn blank_cd_r_says_what_may_be_written() {
    let burner = Burner::new(DiscType::CdR, 359_849);
    assert_eq!(burner.profile(), 9);
    let disc = burner.disc_information();
    // Empty, with one session of one track to come.
    assert_eq!(disc[2..8], [0, 1, 1, 1, 1, 0x20]);
    // The last lead-out is at 79:59:74.
    assert_eq!(disc[20..24], [0, 79, 59, 74]);
    for number in [1, 0xFF] {
        let track = burner.track(number);
        assert_eq!(track[2..8], [1, 1, 0, 4, 0x41, 1]);
        assert_eq!(track[8..16], [0; 8]);
        assert_eq!(track[16..20], 359_849_u32.to_be_bytes());
    }
    assert_eq!(burner.plan(&TOC), Err(Sense::illegal(Additional::INCOMPATIBLE_FORMAT)));
    let atip = burner.reply(&[0x43, 2, 4, 0, 0, 0, 0, 0, 28]);
    assert_eq!(
        (atip.len(), &atip[8..11], &atip[12..15]),
        (28, &[97, 26, 60][..], &[79, 59, 74][..])
    );
    let read = burner.plan(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(read.unwrap_err().additional, Additional::LBA_OUT_OF_RANGE);
}

#[test]
fn track_grows_as_it_is_written_and_is_read_while_open() {
    let mut burner = Burner::new(DiscType::CdR, 1000);
    assert_eq!(burner.write(5, 1), Err(Additional::INVALID_ADDRESS_FOR_WRITE));
    assert_eq!(burner.write(0, 100), Ok(()));
    let track = burner.track(0xFF);
    assert_eq!(track[2..8], [1, 1, 0, 4, 1, 1]);
    assert_eq!((&track[12..16], &track[16..20]), (&[0, 0, 0, 100][..], &[0, 0, 3, 132][..]));
    assert_eq!(track[24..28], 1000_u32.to_be_bytes());
    assert_eq!(burner.reply(&CAPACITY), [0, 0, 0, 99, 0, 0, 8, 0]);
    assert!(burner.plan(&[0x28, 0, 0, 0, 0, 99, 0, 0, 1, 0]).is_ok());
    assert!(burner.plan(&[0xBE, 0, 0, 0, 0, 99, 0, 0, 2, 0x10, 0, 0]).is_err());
    assert_eq!(burner.disc_information()[2], 0b0101, "appendable, with an incomplete session");
}

#[test]
fn closing_is_asked_for_by_its_function() {
    let mut burner = Burner::new(DiscType::CdR, 20_000);
    burner.write(0, 100).unwrap();
    for (function, closes) in
        [(1, CloseFunction::Track), (2, CloseFunction::Session), (6, CloseFunction::Finalize)]
    {
        assert_eq!(burner.plan(&[0x5B, 1, function, 0, 0, 1]), Ok(Step::Close(closes)));
    }
    assert_eq!(burner.plan(&[0x5B, 0, 0]), Ok(DONE));
    assert_eq!(burner.plan(&[0x5B, 0, 3]), Err(Sense::invalid_cdb(2, Some(2))));
    burner.disc.close_session(false);
    let disc = burner.disc_information();
    // Two sessions, of which the second is empty, with a second track to come.
    assert_eq!(disc[2..7], [0b0001, 1, 2, 2, 2]);
    assert_eq!(burner.track(0xFF)[2..4], [2, 2]);
    assert_eq!(burner.reply(&TOC)[..12], [0, 18, 1, 1, 0, 0x14, 1, 0, 0, 0, 0, 0]);
    burner.disc.written(Blocks { lba: 11_500, count: 10 });
    burner.disc.close_session(true);
    let sessions = burner.reply(&[0x43, 0, 1, 0, 0, 0, 0, 0, 12]);
    assert_eq!(sessions, [0, 10, 1, 2, 0, 0x14, 2, 0, 0, 0, 0x2C, 0xEC]);
    let full = burner.reply(&[0x43, 2, 2, 0, 0, 0, 1, 1, 0]);
    assert_eq!((full.len(), &full[..4]), (4 + 8 * 11, &[0, 90, 1, 2][..]));
    assert_eq!(full[48..59], [2, 0x14, 0, 0xA0, 0, 0, 0, 0, 2, 0, 0]);
    assert_eq!(burner.disc_information()[2..7], [0x0E, 1, 2, 2, 2]);
    assert_eq!(burner.write(0, 1), Err(Additional::WRITE_PROTECTED));
    assert!(burner.plan(&[0x52, 1, 0, 0, 0, 0xFF, 0, 0, 48]).is_err(), "no track is open");
}

#[test]
fn dvd_plus_rw_is_formatted_and_written_anywhere() {
    let mut burner = Burner::new(DiscType::DvdPlusRw, 200);
    assert_eq!(burner.profile(), 0x1A);
    let disc = burner.disc_information();
    assert_eq!((disc[2], disc[7]), (0x1E, 0x23));
    assert_eq!(burner.reply(&CAPACITY), [0, 0, 0, 199, 0, 0, 8, 0]);
    assert_eq!(burner.write(100, 100), Ok(()));
    assert_eq!(burner.write(101, 100), Err(Additional::LBA_OUT_OF_RANGE));
    let capacities = burner.reply(&[0x23, 0, 0, 0, 0, 0, 0, 0, 255]);
    assert_eq!(capacities[..12], [0, 0, 0, 16, 0, 0, 0, 200, 2, 0, 8, 0]);
    assert_eq!(capacities[16], 0x98);
    let format = [0x04, 0x11];
    assert_eq!(burner.plan(&format), Ok(DONE));
    let needed = burner.unit.data_out(&Burner::parsed(&format), burner.unit.defaults());
    assert_eq!(needed, 12);
    // A BD-R that is blank can be, and is the same afterwards.
    let mut once = Burner::new(DiscType::BdR, 200);
    assert_eq!(once.reply(&[0x23, 0, 0, 0, 0, 0, 0, 0, 255])[3], 24);
    assert_eq!(once.plan(&format), Ok(DONE));
    once.write(0, 1).unwrap();
    assert_eq!(once.plan(&format), Err(Sense::illegal(Additional::CANNOT_FORMAT_MEDIUM)));
    let structure = burner.reply(&[0xAD, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0]);
    assert_eq!(structure[4], 0x92);
}

#[test]
fn client_that_may_only_read_writes_no_disc() {
    let mut burner = Burner::new(DiscType::BdR, 200);
    burner.write(0, 64).unwrap();
    assert_eq!(burner.profile(), 0x41);
    burner.unit = burner.unit.for_reader();
    for command in
        [&[0x2A, 0, 0, 0, 0, 64, 0, 0, 1, 0][..], &[0x5B, 0, 1], &[0x54, 1], &[0x04, 0x11]]
    {
        assert_eq!(burner.plan(command).unwrap_err().key, Key::DataProtect, "{command:x?}");
    }
    assert!(burner.plan(&[0x28, 0, 0, 0, 0, 63, 0, 0, 1, 0]).is_ok());
    // What makes stable what others wrote changes nothing.
    assert!(burner.plan(&[0x35]).is_ok());
}
