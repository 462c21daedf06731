//! The format against the vectors of its specification, and against whoever changes what is on a tape.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::iscsi::sealed::soft::new_aes_256_gcm;

const KEY: [u8; KEY_LEN] = [3; KEY_LEN];
const COST: Cost = Cost { memory_kib: 32, passes: 4, lanes: 1 };

fn secrets(number: u8) -> FileSecrets {
    FileSecrets { salt: [number; SALT_LEN], file_key: Zeroizing::new([number + 1; KEY_LEN]) }
}

/// The blocks of a file, the first of which is its header.
fn written(data: &[u8], fills: bool, secrets: &FileSecrets) -> Vec<Bytes> {
    let key = Zeroizing::new(KEY);
    let (writer, header) =
        FileWriter::new(256, fills, COST, secrets, &key, new_aes_256_gcm).unwrap();
    [vec![header], records(writer, data)].concat()
}

fn records(mut writer: FileWriter, mut data: &[u8]) -> Vec<Bytes> {
    let mut blocks = Vec::new();
    while data.len() > writer.data_len() {
        let (block, rest) = data.split_at(writer.data_len());
        blocks.push(writer.block(block, false));
        data = rest;
    }
    blocks.push(writer.block(data, true));
    blocks
}

/// What is read of these blocks, and what ended that.
fn read(blocks: &[Bytes]) -> (Vec<u8>, Result<(), RecordError>) {
    let header = Header::parse(&blocks[0]).unwrap();
    read_with(&header, &Zeroizing::new(KEY), &blocks[1..])
}

fn read_with(
    header: &Header,
    key: &PassphraseKey,
    blocks: &[Bytes],
) -> (Vec<u8>, Result<(), RecordError>) {
    let mut reader = FileReader::new(header, key, new_aes_256_gcm).unwrap();
    let mut out = Vec::new();
    let taken = blocks.iter().try_for_each(|block| reader.take(block.clone(), &mut out));
    let ended = taken.and_then(|()| reader.finish(&mut out));
    if ended.is_err() {
        assert_eq!(reader.take(Bytes::from_static(b"more"), &mut out), ended, "it stays so");
        assert_eq!(reader.finish(&mut out), ended);
    }
    (out, ended)
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31) >> 2) as u8).collect()
}

fn bytes(value: &Value) -> Vec<u8> {
    let digits: Vec<u8> =
        value.as_str().unwrap().chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn array<const N: usize>(value: &Value) -> [u8; N] {
    bytes(value).try_into().unwrap()
}

fn number(value: &Value) -> u32 {
    value.as_u64().unwrap() as u32
}

#[test]
fn vectors_of_the_specification_are_written_and_read() {
    let text = include_str!("../../../docs/spec/vectors/tape-encryption.json");
    let vectors: Vec<Value> = serde_json::from_str(text).unwrap();
    for vector in &vectors {
        let name = &vector["name"];
        let cost = Cost {
            memory_kib: number(&vector["memory"]),
            passes: number(&vector["passes"]),
            lanes: number(&vector["lanes"]),
        };
        let secrets = FileSecrets {
            salt: array(&vector["salt"]),
            file_key: Zeroizing::new(array(&vector["file_key"])),
        };
        let (record_key, _) = derived(&secrets.salt, &secrets.file_key);
        assert_eq!(*record_key, array(&vector["record_key"]), "{name}");
        let key = Zeroizing::new(array(&vector["passphrase_key"]));
        let (block, fills) = (number(&vector["block"]), vector["fill"].as_bool().unwrap());
        let begun = FileWriter::new(block, fills, cost, &secrets, &key, new_aes_256_gcm);
        let (writer, header) = begun.unwrap();
        let plain = bytes(&vector["data"]);
        let ours = [vec![header], records(writer, &plain)].concat();
        let theirs: Vec<Bytes> =
            vector["blocks"].as_array().unwrap().iter().map(|block| bytes(block).into()).collect();
        assert_eq!(ours, theirs, "{name}");
        let header = Header::parse(&theirs[0]).unwrap();
        assert_eq!((header.block, header.cost, header.salt), (block, cost, secrets.salt));
        assert_eq!(read_with(&header, &key, &theirs[1..]), (plain, Ok(())), "{name}");
    }
}

#[test]
fn file_of_any_length_comes_back() {
    for fills in [false, true] {
        for len in [0, 1, 235, 236, 237, 471, 472, 473, 5000] {
            let plain = data(len);
            let blocks = written(&plain, fills, &secrets(1));
            assert!(blocks[..blocks.len() - 1].iter().all(|block| block.len() == 256));
            assert!(!fills || blocks.last().unwrap().len() == 256);
            assert_eq!(blocks.len(), 1 + len.div_ceil(236).max(1));
            assert_eq!(read(&blocks), (plain.clone(), Ok(())), "{len}");
            // As a drive hands over blocks that it counts.
            let all = Bytes::from(blocks[1..].concat());
            assert_eq!(read(&[blocks[0].clone(), all]), (plain, Ok(())), "{len}");
        }
    }
}

#[test]
fn each_tampering_is_noticed_and_only_what_came_before_is_given_out() {
    let plain = data(236 * 4 + 100);
    let blocks = written(&plain, false, &secrets(1));
    let other = written(&plain, false, &secrets(7));
    let with = |change: &dyn Fn(&mut Vec<Bytes>)| {
        let mut changed = blocks.clone();
        change(&mut changed);
        let (out, ended) = read(&changed);
        assert_eq!(out.len() % 236, 0, "whole blocks");
        assert!(plain.starts_with(&out));
        (out.len() / 236, ended.unwrap_err())
    };
    use RecordError::{Continued, CutOff, Forged, Length};
    assert_eq!(with(&|all| all.swap(2, 3)), (1, Forged(2)), "exchanged");
    assert_eq!(with(&|all| all[3] = other[3].clone()), (2, Forged(3)), "of another file");
    assert_eq!(with(&|all| drop(all.remove(2))), (1, Forged(2)), "removed");
    assert_eq!(with(&|all| all.insert(2, all[1].clone())), (1, Forged(2)), "repeated");
    assert_eq!(with(&|all| all.truncate(4)), (2, CutOff(3)), "cut off between blocks");
    assert_eq!(with(&|all| all.truncate(1)), (0, CutOff(0)), "cut off behind the header");
    assert_eq!(with(&|all| all.push(all[1].clone())), (4, Continued(5)), "appended");
    assert_eq!(with(&|all| all.push(Bytes::from_static(b"x"))), (4, Continued(5)));
    let cut = |all: &mut Vec<Bytes>| all[5] = all[5].slice(..50);
    assert_eq!(with(&cut), (4, Forged(5)), "the last one shortened");
    let short = Length { block: 2, found: 40, expected: 256 };
    assert_eq!(with(&|all| all[2] = all[2].slice(..40)), (1, short));
    for at in [0, 3, 4, 200, 239, 240, 255] {
        let flip = |all: &mut Vec<Bytes>| {
            let mut block = all[2].to_vec();
            block[at] ^= 0x20;
            all[2] = block.into();
        };
        assert_eq!(with(&flip), (1, Forged(2)), "byte {at}");
    }
    // The last one counts as such only at its place.
    let last_first = |all: &mut Vec<Bytes>| all[1] = all[5].clone();
    assert!(matches!(with(&last_first), (0, Length { block: 1, .. })));
}

#[test]
fn full_last_block_is_told_from_one_that_is_not() {
    let plain = data(236 * 2);
    let blocks = written(&plain, false, &secrets(1));
    assert_eq!(blocks.len(), 3);
    let (out, ended) = read(&blocks[..2]);
    assert_eq!((out.len(), ended), (0, Err(RecordError::CutOff(1))));
    let appended = [blocks.clone(), vec![blocks[1].clone()]].concat();
    assert_eq!(read(&appended), (plain[..236].to_vec(), Err(RecordError::Continued(2))));
}

#[test]
fn header_opens_with_its_pass_phrase_alone_and_unchanged() {
    let blocks = written(b"data", false, &secrets(1));
    let header = Header::parse(&blocks[0]).unwrap();
    let opens = |header: &Header, key: [u8; KEY_LEN]| {
        FileReader::new(header, &Zeroizing::new(key), new_aes_256_gcm).is_ok()
    };
    assert!(opens(&header, KEY) && !opens(&header, [4; KEY_LEN]));
    for at in 0..256 {
        let mut changed = blocks[0].to_vec();
        changed[at] ^= 1;
        let opened = Header::parse(&changed).is_ok_and(|header| opens(&header, KEY));
        assert!(!opened, "byte {at}");
    }
    // The header of another file with the same pass-phrase is whole, and opens no record of this one.
    let other = Header::parse(&written(b"data", false, &secrets(9))[0]).unwrap();
    let read = read_with(&other, &Zeroizing::new(KEY), &blocks[1..]);
    assert_eq!(read, (vec![], Err(RecordError::Forged(1))));
}

#[test]
fn header_beyond_the_limits_is_refused() {
    let good = written(b"", false, &secrets(1))[0].to_vec();
    let refused = |at: usize, number: u32| {
        let mut changed = good.clone();
        changed[at..at + 4].copy_from_slice(&number.to_be_bytes());
        Header::parse(&changed).unwrap_err()
    };
    assert_eq!(refused(8, 2), HeaderError::Version(2));
    assert_eq!(refused(12, 255), HeaderError::BlockLength(255));
    assert_eq!(refused(12, (8 << 20) + 1), HeaderError::BlockLength((8 << 20) + 1));
    assert_eq!(refused(12, 257), HeaderError::OtherLength { found: 256, told: 257 });
    for (at, number) in [
        (16, 0),
        (16, 31),
        (16, (4 << 20) + 1),
        (16, u32::MAX),
        (20, 0),
        (20, 1_000_001),
        (24, 0),
        // 32 KiB are too little for them.
        (24, 5),
        (24, 17),
        (24, u32::MAX),
    ] {
        assert!(matches!(refused(at, number), HeaderError::Cost(_)), "{at}: {number}");
    }
    assert_eq!(refused(28, 1), HeaderError::NotZero);
    assert_eq!(refused(144, 1), HeaderError::NotZero);
    assert_eq!(refused(252, 1), HeaderError::NotZero);
    assert_eq!(refused(0, 0), HeaderError::Absent);
    for len in [0, 8, 15, 16, 143, 255] {
        assert!(Header::parse(&good[..len]).is_err(), "{len}");
    }
    assert!(is_encrypted(&good) && !is_encrypted(b"LHTCRY\r") && !is_encrypted(&[0; 256]));
    let begun = |block, cost| {
        FileWriter::new(block, false, cost, &secrets(1), &Zeroizing::new(KEY), new_aes_256_gcm)
            .is_ok()
    };
    assert!(begun(256, COST) && begun(8 << 20, COST));
    assert!(!begun(255, COST) && !begun((8 << 20) + 1, COST));
    assert!(!begun(256, Cost { passes: 0, ..COST }));
}

proptest! {
    #[test]
    fn invariants_hold(script in prop::collection::vec(any::<u8>(), 0..60)) {
        invariants::holds(new_aes_256_gcm, &script);
        invariants::any_header(&script);
    }

    #[test]
    fn header_that_is_read_is_written_as_it_was(at in 0_usize..256, byte: u8) {
        let mut header = written(b"", false, &secrets(1))[0].to_vec();
        header[at] = byte;
        invariants::any_header(&header);
    }
}
