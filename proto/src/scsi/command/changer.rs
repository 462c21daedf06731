//! Command blocks for a media changer (SMC-3), and readers for what it answers.

use super::{Command, block};
use crate::reader::Reader;
use crate::scsi::Malformed;

/// Room for the elements of a large library.
const ALLOCATION: u32 = 1 << 20;

/// VOLUME IDENTIFICATION.
const TAG: usize = 32;

/// What an element status descriptor says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementState {
    /// ELEMENT TYPE CODE.
    pub code: u8,
    /// ELEMENT ADDRESS.
    pub address: u16,
    /// FULL.
    pub is_full: bool,
    /// The barcode of its cartridge, if it is known.
    pub tag: Option<String>,
}

impl Command {
    /// READ ELEMENT STATUS of all elements with their volume tags, without moving anything; read the answer with
    /// [`element_states`].
    #[must_use]
    pub fn read_element_status() -> Self {
        const VOLTAG: u8 = 0x10;
        const CURDATA: u8 = 0x02;
        let [_, a, b, c] = ALLOCATION.to_be_bytes();
        Self::asking(block([0xB8, VOLTAG, 0, 0, 0xFF, 0xFF, CURDATA, a, b, c]), ALLOCATION)
    }
}

/// Reads READ ELEMENT STATUS data (SMC-3, 6.11), as far as they came.
pub fn element_states(bytes: &[u8]) -> Result<Vec<ElementState>, Malformed> {
    let mut reader = Reader::new(bytes);
    let [_, _, _, _, _] = reader.array()?;
    let length = reader.u24()? as usize;
    let mut pages = reader.up_to(length);
    let mut found = Vec::new();
    while let Ok([code, flags]) = pages.array() {
        let each = usize::from(pages.u16()?);
        let _reserved = pages.u8()?;
        let length = pages.u24()? as usize;
        if each < 4 {
            return Err(Malformed::Field("ELEMENT DESCRIPTOR LENGTH"));
        }
        let mut descriptors = pages.up_to(length);
        while let Ok(descriptor) = descriptors.take(each) {
            found.push(element(code, flags, Reader::new(descriptor))?);
        }
    }
    Ok(found)
}

fn element(code: u8, page: u8, mut reader: Reader<'_>) -> Result<ElementState, Malformed> {
    const PVOLTAG: u8 = 0x80;
    const FULL: u8 = 0x01;
    let address = reader.u16()?;
    let flags = reader.u8()?;
    let tag = (page & PVOLTAG != 0).then(|| reader.take(9).and_then(|_| reader.take(TAG)));
    let tag = tag.and_then(Result::ok).map(|tag| String::from_utf8_lossy(tag).trim().to_owned());
    let tag = tag.map(|tag| tag.trim_matches('\0').to_owned()).filter(|tag| !tag.is_empty());
    Ok(ElementState { code, address, is_full: flags & FULL != 0, tag })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn elements_are_told_with_their_tags() {
        let mut slot = vec![4, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        slot.extend(format!("{:32}", "A00001").bytes());
        slot.extend([0; 4]);
        let page = [&[2, 0x80, 0, slot.len() as u8, 0, 0, 0, slot.len() as u8][..], &slot].concat();
        let header = [4, 0, 0, 1, 0, 0, 0, page.len() as u8];
        let found = element_states(&[&header[..], &page].concat()).unwrap();
        let tag = Some("A00001".to_owned());
        assert_eq!(found, [ElementState { code: 2, address: 0x400, is_full: true, tag }]);
    }

    proptest! {
        #[test]
        fn hostile_answers_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = element_states(&bytes);
        }
    }
}
