//! What holds whatever a store says a header is, as a function a fuzzer can drive.

use sha2::{Digest, Sha256};

use super::header::{CHECKSUM_AT, HEADER_SIZES, Header, Place};

/// Reads `bytes` as a header: as they are; and behind a binary part that is right, checksum included, as JSON, the
/// first two bytes saying how large the header and the volume are. For any bytes: no panic, and what is
/// accepted lies inside the volume and inside what a header may be.
pub fn any_header(bytes: &[u8]) {
    let Some((&[size, volume], json)) = bytes.split_first_chunk() else { return };
    let volume_size = u64::from(volume) << 20;
    accept(bytes, volume_size);
    // Small ones mostly: the larger ones differ in their zeroes only.
    let size = HEADER_SIZES[usize::from(size) % 3];
    for place in [Place::First, Place::Second] {
        accept(&signed(json, size, place), volume_size);
    }
}

fn accept(bytes: &[u8], volume_size: u64) {
    let Ok((_, header)) = Header::newest(bytes) else { return };
    assert!(HEADER_SIZES.contains(&header.size));
    let Ok(payload) = header.validate(volume_size) else { return };
    assert!(header.area() <= payload.span.at, "data in the header");
    assert!(payload.span.len > 0 && payload.span.end() <= volume_size, "data beyond the end");
    for area in header.slot_areas() {
        assert!(area.at >= 2 * header.size && area.end() <= header.area(), "{area} is no slot");
    }
}

/// A header of `size` bytes that holds `json`, alone in its place.
fn signed(json: &[u8], size: u64, place: Place) -> Vec<u8> {
    let (magic, at) = match place {
        Place::First => (*b"LUKS\xba\xbe", 0),
        Place::Second => (*b"SKUL\xba\xbe", size as usize),
    };
    let mut copy = magic.to_vec();
    copy.extend(2u16.to_be_bytes());
    copy.extend(size.to_be_bytes());
    copy.resize(72, 0);
    copy.extend(b"sha256");
    copy.resize(256, 0);
    copy.extend((at as u64).to_be_bytes());
    copy.resize(4096, 0);
    copy.extend(&json[..json.len().min(size as usize - 4096)]);
    copy.resize(size as usize, 0);
    let sum = Sha256::digest(&copy);
    copy[CHECKSUM_AT..CHECKSUM_AT + sum.len()].copy_from_slice(&sum);
    let mut bytes = vec![0; at];
    bytes.append(&mut copy);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As libcryptsetup writes it, without what is not looked at.
    const JSON: &[u8] = br#"{"keyslots":{"0":{"type":"luks2","key_size":64,"area":{"offset":"32768",
"size":"258048","encryption":"aes-xts-plain64"},"kdf":null}},"segments":{"0":{"type":"crypt","offset":"1048576",
"size":"dynamic","iv_tweak":"0","encryption":"aes-xts-plain64","sector_size":4096}},
"config":{"keyslots_size":"1015808"}}"#;

    #[test]
    fn a_right_header_is_accepted_in_either_place() {
        for place in [Place::First, Place::Second] {
            let (found, header) = Header::newest(&signed(JSON, 16 << 10, place)).unwrap();
            assert_eq!(found, place);
            assert_eq!(header.validate(2 << 20).unwrap().span.len, 1 << 20);
        }
        any_header(&[&[0, 2], JSON].concat());
    }

    proptest! {
        // Each has headers of up to 64 KiB summed; the fuzzer tries more of them.
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn any_header_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            any_header(&bytes);
        }
    }
}
