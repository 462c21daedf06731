//! Logical unit numbers (SAM-5, 4.7) and the list REPORT LUNS returns (SPC-4, 6.33).

use super::Malformed;
use crate::reader::Reader;

/// The most units a target may have here: flat space addressing has 14 bits.
pub const COUNT_MAX: usize = 1 << 14;

/// The first number that needs flat space addressing (SAM-5, 4.7.7.1).
const FLAT_FROM: u16 = 256;

/// The unit that an eight-byte LUN field addresses, if it is a single level on bus zero: by peripheral
/// device or by flat space addressing. The two forms of a small number mean the same unit.
#[must_use]
pub const fn decode(field: [u8; 8]) -> Option<u16> {
    let [high, low, 0, 0, 0, 0, 0, 0] = field else { return None };
    match high >> 6 {
        // Peripheral device addressing: the rest of the byte is a bus, and only zero is this device.
        0b00 if high == 0 => Some(low as u16),
        0b01 => Some(u16::from_be_bytes([high & 0x3F, low])),
        _ => None,
    }
}

/// Whether two LUN fields address the same unit, be it in different forms.
#[must_use]
pub fn is_same(one: u64, other: u64) -> bool {
    let unit = |field: u64| decode(field.to_be_bytes());
    one == other || unit(one).is_some_and(|lun| unit(other) == Some(lun))
}

/// The eight-byte LUN field of a unit: the peripheral form below 256, as initiators expect, and the
/// flat form above. The upper two bits of `lun` are not part of any number and are dropped.
#[must_use]
pub const fn encode(lun: u16) -> [u8; 8] {
    let [high, low] = lun.to_be_bytes();
    let method = if lun < FLAT_FROM { 0 } else { 0x40 };
    [method | (high & 0x3F), low, 0, 0, 0, 0, 0, 0]
}

/// REPORT LUNS data, before they are cut to the allocation length.
#[must_use]
pub fn emit_list(luns: &[u16]) -> Vec<u8> {
    let mut bytes = ((luns.len() * 8) as u32).to_be_bytes().to_vec();
    bytes.extend([0; 4]);
    luns.iter().for_each(|lun| bytes.extend(encode(*lun)));
    bytes
}

/// The units of a REPORT LUNS answer that can be addressed by a number, as far as they came.
pub fn parse_list(bytes: &[u8]) -> Result<Vec<u16>, Malformed> {
    let mut reader = Reader::new(bytes);
    let length = reader.u32()? as usize;
    let [_, _, _, _] = reader.array()?;
    let (fields, _) = reader.up_to(length).rest().as_chunks::<8>();
    Ok(fields.iter().take(COUNT_MAX).filter_map(|field| decode(*field)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_round_trip(luns in proptest::collection::vec(0..1u16 << 14, 0..40)) {
            prop_assert!(luns.iter().all(|lun| decode(encode(*lun)) == Some(*lun)));
            let list = emit_list(&luns);
            prop_assert_eq!(parse_list(&list), Ok(luns));
        }

        #[test]
        fn hostile_lists_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse_list(&bytes);
        }
    }

    #[test]
    fn both_forms_of_a_small_number_are_one_unit() {
        assert_eq!(decode([0, 5, 0, 0, 0, 0, 0, 0]), Some(5));
        assert_eq!(decode([0x40, 5, 0, 0, 0, 0, 0, 0]), Some(5));
        let [short, flat] = [0x0005 << 48, 0x4005 << 48];
        assert!(is_same(short, flat) && is_same(flat, flat) && !is_same(short, 0x0006 << 48));
        assert_eq!(encode(300), [0x41, 0x2C, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn other_forms_address_nothing_here() {
        assert_eq!(decode([0x01, 5, 0, 0, 0, 0, 0, 0]), None, "another bus");
        assert_eq!(decode([0xC1, 0x01, 0, 0, 0, 0, 0, 0]), None, "well known");
        assert_eq!(decode([0, 5, 0, 1, 0, 0, 0, 0]), None, "a second level");
        assert!(is_same(0x0005_0001 << 32, 0x0005_0001 << 32));
        assert!(!is_same(0x0005_0001 << 32, 0x0005_0002 << 32), "two that are not known here");
    }
}
