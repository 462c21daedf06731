use proptest::prelude::*;

use super::*;

const SALT: [u8; 32] = [7; 32];

fn superblock() -> Superblock {
    let volume = Identity { name: [3; 32], size: 1 << 40, block_size: 4096 };
    let [_, one] = Superblock::new([1; 16], SALT, volume, RING_START + 64 * PAGE).unwrap();
    Superblock {
        state: SuperblockState::Frozen,
        epoch: 5,
        token: 0x5d1c_33e8_0f6a_9b27,
        tail: LogPoint { position: 77 * PAGE, seq: 9, chain: [8; 32] },
        drained_group: 4,
        durable_seq: 10,
        ..one
    }
}

fn frame() -> Frame {
    let change = |at, len, change| Descriptor { span: Span::new(at, len), change };
    Frame {
        point: LogPoint { position: 5 * PAGE, seq: 3, chain: [2; 32] },
        epoch: 1,
        group: 2,
        length: 3 * PAGE,
        durable_seq: 2,
        superblock: 6,
        changes: vec![
            change(0, 4608, Change::Write { crc: 1 }),
            change(4096, 1 << 40, Change::Zero(Space::Keep)),
            change(0, 512, Change::Zero(Space::Release)),
            change(1024, 512, Change::Discard),
        ],
    }
}

#[test]
fn encoded_frame_is_decoded() {
    let bytes = superblock().encode();
    assert_eq!(bytes.len() as u64, PAGE);
    assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
    let (bytes, sum) = frame().encode(&SALT);
    assert_eq!(bytes.len() as u64, PAGE);
    assert_eq!(Frame::decode(&bytes, &SALT), Ok((frame(), sum)));
}

/// The bytes are a format: a change of them is another version.
#[test]
fn fields_stand_where_the_specification_says() {
    let bytes = superblock().encode();
    assert_eq!(bytes[..16], *b"LHJOURNL\x01\0\0\0\x02\0\0\0");
    assert_eq!(bytes[16..24], 1_u64.to_le_bytes());
    assert_eq!(bytes[24..104], [[1; 16].as_slice(), &SALT, &[3; 32]].concat());
    assert_eq!(
        bytes[104..116],
        [&(1_u64 << 40).to_le_bytes()[..], &4096_u32.to_le_bytes()].concat()
    );
    let words = [64 * PAGE, 5, 0x5d1c_33e8_0f6a_9b27, 77 * PAGE, 9].map(u64::to_le_bytes);
    assert_eq!(bytes[120..160], words.concat());
    assert_eq!(
        bytes[160..208],
        [[8; 32].as_slice(), &[4, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0]].concat()
    );
    assert_eq!(bytes[480..512], Sum::from(Sha256::digest(&bytes[..480])));
    let (bytes, sum) = frame().encode(&SALT);
    assert_eq!(bytes[..16], *b"LHJFRAME\x01\0\0\0\x04\0\0\0");
    let words = [5 * PAGE, 3, 1, 2, 3 * PAGE, 2, 6].map(u64::to_le_bytes);
    assert_eq!(bytes[16..72], words.concat());
    assert_eq!(bytes[72..108], [[2; 32].as_slice(), &[1, 0, 0, 0]].concat());
    assert_eq!(bytes[4064..], sum);
    let summed = [&SALT, &bytes[..104 + 4 * 24]].concat();
    assert_eq!(sum, Sum::from(Sha256::digest(summed)));
    assert_eq!(crc32c(b"123456789"), 0xe306_9283, "RFC 3720, B.4 names the polynomial");
}

#[test]
fn every_flipped_bit_of_what_is_used_is_seen() {
    let bytes = superblock().encode();
    for bit in 0..512 * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::decode(&flipped).is_err(), "bit {bit}");
    }
    let (bytes, _) = frame().encode(&SALT);
    let used = FRAME_HEADER + 4 * DESCRIPTOR;
    for bit in (0..used * 8).chain(FRAME_SUM * 8..PAGE as usize * 8) {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Frame::decode(&flipped, &SALT).is_err(), "bit {bit}");
    }
}

#[test]
fn a_frame_of_another_salt_is_none() {
    let (bytes, _) = frame().encode(&SALT);
    assert_eq!(Frame::decode(&bytes, &[8; 32]), Err(Invalid::Checksum));
}

#[test]
fn impossible_image_with_a_valid_checksum_is_refused() {
    let refused = |change: fn(&mut Frame)| {
        let mut wrong = frame();
        change(&mut wrong);
        Frame::decode(&wrong.encode(&SALT).0, &SALT).unwrap_err()
    };
    assert_eq!(refused(|frame| frame.length = 2 * PAGE), Invalid::Field("length"));
    assert_eq!(refused(|frame| frame.length += 1), Invalid::Field("length"));
    assert_eq!(refused(|frame| frame.changes[1].span.at = u64::MAX), Invalid::Field("span"));
    assert_eq!(refused(|frame| frame.changes[1].span.len = 0), Invalid::Field("span"));
    assert_eq!(
        refused(|frame| frame.changes[0].span.len = PAYLOAD_MAX + 1),
        Invalid::Field("descriptor")
    );
    let refused = |change: fn(&mut Superblock)| {
        let mut wrong = superblock();
        change(&mut wrong);
        Superblock::decode(&wrong.encode()).unwrap_err()
    };
    assert_eq!(refused(|it| it.ring_len = PAGE), Invalid::Field("length of the ring"));
    assert_eq!(
        refused(|it| it.volume.block_size = 128 << 10),
        Invalid::Field("length of the ring")
    );
    assert_eq!(refused(|it| it.tail.seq = 0), Invalid::Field("tail"));
    assert_eq!(refused(|it| it.tail.position += 512), Invalid::Field("tail"));
    assert_eq!(refused(|it| it.epoch = u64::MAX), Invalid::Field("counts"));
}

#[test]
fn another_version_is_named() {
    let mut bytes = superblock().encode();
    bytes[8] = 2;
    let sum: Sum = Sha256::digest(&bytes[..480]).into();
    bytes[480..512].copy_from_slice(&sum);
    assert_eq!(Superblock::decode(&bytes), Err(Invalid::Version(2)));
}

#[test]
fn a_file_without_room_for_a_ring_is_refused() {
    let volume = superblock().volume;
    Superblock::new([0; 16], SALT, volume, RING_START + 15 * PAGE).unwrap_err();
    let [zero, one] = Superblock::new([0; 16], SALT, volume, RING_START + 17 * PAGE - 1).unwrap();
    assert_eq!((zero.number, one.number, zero.ring_len), (0, 1, 16 * PAGE));
}

proptest! {
    /// Whatever stands in the file, whatever the sums say.
    #[test]
    fn no_bytes_make_a_reader_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..600),
        count in any::<u32>(),
        is_frame in any::<bool>(),
    ) {
        bytes.resize(if bytes.len() < 300 { bytes.len() } else { PAGE as usize }, 0);
        if bytes.len() == PAGE as usize {
            if is_frame {
                bytes[..8].copy_from_slice(FRAME_MAGIC);
                bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
                let count = count % 170;
                bytes[12..16].copy_from_slice(&count.to_le_bytes());
                let used = (FRAME_HEADER + count as usize * DESCRIPTOR).min(FRAME_SUM);
                let sum = salted(&SALT, &bytes[..used]);
                bytes[FRAME_SUM..].copy_from_slice(&sum);
            } else {
                bytes[..8].copy_from_slice(SUPERBLOCK_MAGIC);
                bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
                bytes[12..16].copy_from_slice(&(count % 4).to_le_bytes());
                let sum: Sum = Sha256::digest(&bytes[..480]).into();
                bytes[480..512].copy_from_slice(&sum);
            }
        }
        if let Ok((frame, sum)) = Frame::decode(&bytes, &SALT) {
            prop_assert_eq!(frame.encode(&SALT).1, sum);
        }
        let _ = Superblock::decode(&bytes);
    }
}
