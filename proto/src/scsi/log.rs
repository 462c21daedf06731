//! Log pages (SPC-4, 7.3), and the clock of a device (SPC-4, 6.38): what a unit tells of its server, both ways.

use super::Malformed;
use super::sense::Sense;
use crate::reader::Reader;

/// The page that tells of [`FreeSpace`]: the first that is vendor specific (SPC-4, 7.3).
pub const FREE_SPACE: u8 = 0x30;

/// Bytes of that page.
pub const FREE_SPACE_LENGTH: usize = 4 + 2 * PARAMETER;

/// Bytes of the answer to REPORT TIMESTAMP.
pub const TIMESTAMP_LENGTH: usize = 12;

const SUPPORTED: u8 = 0x00;
const ALL_SUBPAGES: u8 = 0xFF;
const SUBPAGE_FORMAT: u8 = 0x40;

/// Bytes of a parameter, all of which are numbers of eight bytes.
const PARAMETER: usize = 12;

/// FORMAT AND LINKING: a list of parameters in binary.
const BINARY_LIST: u8 = 0x03;

/// PARAMETER CODE of the bytes that the file system has, and of those that the file may still take of it.
const CODES: [u16; 2] = [0, 1];

/// TIMESTAMP ORIGIN: set by other means than SET TIMESTAMP.
const OTHER_MEANS: u8 = 0x03;

/// What the file system has that the file of a volume is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes that it has for the server.
    pub available: u64,
    /// Bytes that the file takes of it once all of the volume is written to.
    pub unallocated: u64,
}

/// A log page, before it is cut to the allocation length: the list of those there are, which may have that of a file, or that one,
/// if it is known what `space` there is.
pub fn sense(
    (page, subpage): (u8, u8),
    has_file: bool,
    space: Option<FreeSpace>,
) -> Result<Vec<u8>, Sense> {
    match (page, subpage, space) {
        (SUPPORTED, 0, _) if has_file => Ok(vec![SUPPORTED, 0, 0, 2, SUPPORTED, FREE_SPACE]),
        (SUPPORTED, 0, _) => Ok(vec![SUPPORTED, 0, 0, 1, SUPPORTED]),
        (SUPPORTED, ALL_SUBPAGES, _) => {
            let mut pages = vec![SUPPORTED, 0, SUPPORTED, ALL_SUBPAGES];
            pages.extend(has_file.then_some([FREE_SPACE, 0]).into_iter().flatten());
            let mut list = vec![SUBPAGE_FORMAT, ALL_SUBPAGES, 0, pages.len() as u8];
            list.extend(pages);
            Ok(list)
        }
        (FREE_SPACE, 0, Some(space)) => Ok(emit_free_space(space)),
        (SUPPORTED, ..) | (FREE_SPACE, _, Some(_)) => Err(Sense::invalid_cdb(3, None)),
        _ => Err(Sense::invalid_cdb(2, Some(5))),
    }
}

fn emit_free_space(space: FreeSpace) -> Vec<u8> {
    let mut page = vec![FREE_SPACE, 0, 0, 2 * PARAMETER as u8];
    for (code, bytes) in CODES.into_iter().zip([space.available, space.unallocated]) {
        page.extend(code.to_be_bytes());
        page.extend([BINARY_LIST, 8]);
        page.extend(bytes.to_be_bytes());
    }
    page
}

/// Reads the page.
pub fn parse_free_space(bytes: &[u8]) -> Result<FreeSpace, Malformed> {
    let mut reader = Reader::new(bytes);
    let [page, subpage] = reader.array()?;
    reader.u16()?;
    if (page, subpage) != (FREE_SPACE, 0) {
        return Err(Malformed::Field("PAGE CODE"));
    }
    let mut values = [0; 2];
    for (code, value) in CODES.into_iter().zip(&mut values) {
        let found = reader.u16()?;
        let [_, length] = reader.array()?;
        if (found, length) != (code, 8) {
            return Err(Malformed::Field("PARAMETER CODE"));
        }
        *value = reader.u64()?;
    }
    let [available, unallocated] = values;
    Ok(FreeSpace { available, unallocated })
}

/// The answer to REPORT TIMESTAMP: milliseconds since the beginning of 1970 UTC, of which 48 bits are told.
#[must_use]
pub fn emit_timestamp(millis: u64) -> Vec<u8> {
    let [_, _, millis @ ..] = millis.to_be_bytes();
    let mut bytes = vec![0, 10, OTHER_MEANS, 0];
    bytes.extend(millis);
    bytes.extend([0; 2]);
    bytes
}

/// Reads it. `None` if the device has no clock that was set.
pub fn parse_timestamp(bytes: &[u8]) -> Result<Option<u64>, Malformed> {
    let mut reader = Reader::new(bytes);
    reader.u16()?;
    let [origin, _] = reader.array()?;
    let [a, b, c, d, e, f] = reader.array()?;
    let millis = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    Ok((origin & 0x07 != 0).then_some(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Option<FreeSpace> = Some(FreeSpace { available: 1 << 40, unallocated: 7 });

    #[test]
    fn pages_that_are_listed_are_those_there_are() {
        for (space, pages) in [(None, &[SUPPORTED][..]), (SOME, &[SUPPORTED, FREE_SPACE])] {
            let sense = |page, subpage| sense((page, subpage), space.is_some(), space);
            let list = sense(SUPPORTED, 0).unwrap();
            assert_eq!(usize::from(list[3]), list.len() - 4);
            assert_eq!(&list[4..], pages);
            let all = sense(SUPPORTED, ALL_SUBPAGES).unwrap();
            assert_eq!(usize::from(all[3]), all.len() - 4);
            let listed = all[4..].chunks(2).filter(|pair| pair[1] == 0).map(|pair| pair[0]);
            assert_eq!(listed.collect::<Vec<_>>(), pages);
            for page in 0..0x40 {
                assert_eq!(sense(page, 0).is_ok(), pages.contains(&page), "{page:#x}");
            }
        }
        assert_eq!(sense((FREE_SPACE, 0), false, None), Err(Sense::invalid_cdb(2, Some(5))));
        assert_eq!(sense((FREE_SPACE, 1), true, SOME), Err(Sense::invalid_cdb(3, None)));
        assert_eq!(sense((SUPPORTED, 1), true, SOME), Err(Sense::invalid_cdb(3, None)));
    }

    #[test]
    fn space_is_read_as_it_was_told_and_not_when_cut() {
        let page = sense((FREE_SPACE, 0), true, SOME).unwrap();
        assert_eq!(page.len(), FREE_SPACE_LENGTH);
        assert_eq!(parse_free_space(&page).ok(), SOME);
        for length in 0..page.len() {
            assert!(parse_free_space(&page[..length]).is_err(), "{length}");
        }
        // Another's page by this number.
        for at in [0, 1, 5, 7, 17, 19] {
            let mut other = page.clone();
            other[at] ^= 1;
            assert!(parse_free_space(&other).is_err(), "{at}");
        }
    }

    #[test]
    fn clock_is_read_as_it_was_told_unless_nobody_has_set_it() {
        let answer = emit_timestamp(0x0123_4567_89AB);
        assert_eq!(answer.len(), TIMESTAMP_LENGTH);
        assert_eq!(&answer[..2], [0, 10]);
        assert_eq!(&answer[4..10], [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB]);
        assert_eq!(parse_timestamp(&answer).unwrap(), Some(0x0123_4567_89AB));
        let mut unset = answer.clone();
        unset[2] = 0;
        assert_eq!(parse_timestamp(&unset).unwrap(), None);
        assert!(parse_timestamp(&answer[..9]).is_err());
    }
}
