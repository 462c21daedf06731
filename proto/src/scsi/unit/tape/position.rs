//! READ POSITION (SSC-4, 7.7).

use super::super::super::cdb::PositionForm;

/// Where the head is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// How many logical objects lie before it.
    pub object: u64,
    /// How many of these are file marks.
    pub file: u64,
    /// It is in the zone of the early warning.
    pub near_end: bool,
}

/// BOP and EOP.
const BEGINNING: u8 = 0x80;
const NEAR_END: u8 = 0x40;
/// LOLU: the numbers are too large for the short form.
const UNKNOWN: u8 = 0x04;

impl Position {
    /// READ POSITION data, before they are cut to the allocation length. Nothing is ever in a buffer of the drive.
    #[must_use]
    pub fn emit(&self, form: PositionForm) -> Vec<u8> {
        let flags =
            if self.object == 0 { BEGINNING } else { 0 } | if self.near_end { NEAR_END } else { 0 };
        match form {
            PositionForm::Short => {
                let object = u32::try_from(self.object);
                let unknown = if object.is_err() { UNKNOWN } else { 0 };
                let object = object.unwrap_or(0).to_be_bytes();
                [&[flags | unknown, 0, 0, 0][..], &object, &object, &[0; 8]].concat()
            }
            PositionForm::Long => {
                let (object, file) = (self.object.to_be_bytes(), self.file.to_be_bytes());
                [&[flags, 0, 0, 0, 0, 0, 0, 0][..], &object, &file, &[0; 8]].concat()
            }
            PositionForm::Extended => {
                let object = self.object.to_be_bytes();
                [&[flags, 0, 0, 0x1C, 0, 0, 0, 0][..], &object, &object, &[0; 8]].concat()
            }
        }
    }
}
