use aes::cipher::KeyInit;
use aes::{Aes128, Aes256};
use xts_mode::Xts128;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// The key of IEEE 1619-2007, annex B, vectors 10 to 14.
fn annex_b_key() -> Vec<u8> {
    hex("2718281828459045235360287471352662497757247093699959574966967627\
         3141592653589793238462643383279502884197169399375105820974944592")
}

/// The plaintext of those vectors: 0, 1, .. 255, twice.
fn annex_b_plaintext() -> Vec<u8> {
    (0..=255).chain(0..=255).collect()
}

/// Another implementation, sector by sector.
fn by_rustcrypto(key: &[u8], tweak: u64, sector_size: usize, data: &mut [u8]) {
    let (data_key, tweak_key) = key.split_at(key.len() / 2);
    for (index, sector) in (0..).zip(data.chunks_mut(sector_size)) {
        let tweak = u128::from(tweak + index * (sector_size / 512) as u64).to_le_bytes().into();
        if key.len() == 64 {
            let aes = |key| Aes256::new_from_slice(key).unwrap();
            Xts128::new(aes(data_key), aes(tweak_key)).encrypt_sector(sector, tweak);
        } else {
            let aes = |key| Aes128::new_from_slice(key).unwrap();
            Xts128::new(aes(data_key), aes(tweak_key)).encrypt_sector(sector, tweak);
        }
    }
}

#[test]
fn ieee_1619_vectors() {
    let xts = Xts::new(&annex_b_key()).unwrap();
    for (tweak, start) in [
        (0xff, "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b"),
        (0xffff, "77a31251618a15e6b92d1d66dffe7b50b50bad552305ba0217a610688eff7e11"),
        (0xff_ffff, "e387aaa58ba483afa7e8eb469778317ecf4cf573aa9d4eac23f2cdf914e4e200"),
    ] {
        let mut data = annex_b_plaintext();
        xts.encrypt(tweak, 512, &mut data);
        assert_eq!(data[..32], hex(start), "tweak {tweak:x}");
        xts.decrypt(tweak, 512, &mut data);
        assert_eq!(data, annex_b_plaintext());
    }
}

/// IEEE 1619-2007, annex B, vectors 4 and 2: AES-128, and the latter shorter than a sector.
#[test]
fn ieee_1619_vectors_for_aes_128() {
    let key = hex("2718281828459045235360287471352631415926535897932384626433832795");
    let mut data = annex_b_plaintext();
    Xts::new(&key).unwrap().encrypt(0, 512, &mut data);
    assert_eq!(data[..16], hex("27a7479befa1d476489f308cd4cfa6e2"));
    let key = [[0x11; 16], [0x22; 16]].concat();
    let mut data = vec![0x44; 512];
    Xts::new(&key).unwrap().encrypt(0x33_3333_3333, 512, &mut data);
    assert_eq!(data[..16], hex("c454185e6a16936e39334038acef838b"));
}

#[test]
fn agrees_with_another_implementation_at_every_sector_size() {
    let key: Vec<u8> = (0..64).map(|byte: u8| byte.wrapping_mul(41) ^ 0x5c).collect();
    for key in [&key[..], &key[..32]] {
        let xts = Xts::new(key).unwrap();
        for sector_size in [512, 1024, 2048, 4096] {
            for tweak in [0, 8, u64::from(u32::MAX) - 3, 1 << 40] {
                let plain: Vec<u8> = (0..16_384_u32).map(|at| ((at * 7) >> 3) as u8).collect();
                let (mut ours, mut theirs) = (plain.clone(), plain.clone());
                xts.encrypt(tweak, sector_size, &mut ours);
                by_rustcrypto(key, tweak, sector_size, &mut theirs);
                assert!(ours == theirs, "sectors of {sector_size} from tweak {tweak}");
                xts.decrypt(tweak, sector_size, &mut ours);
                assert!(ours == plain);
            }
        }
    }
}

/// The seal layer writes pieces of a sector by themselves; that stands on this.
#[test]
fn a_block_of_512_bytes_depends_on_nothing_beside_it() {
    let xts = Xts::new(&annex_b_key()).unwrap();
    let (mut one, mut other) = (vec![1; 4096], vec![2; 4096]);
    other[1024..1536].fill(1);
    xts.encrypt(80, 4096, &mut one);
    xts.encrypt(80, 4096, &mut other);
    assert_eq!(one[1024..1536], other[1024..1536]);
    assert_ne!(one[..16], other[..16]);
}

#[test]
fn bad_keys_are_refused() {
    assert_eq!(Xts::new(&[1; 48]).err(), Some(KeyError::Size(384)));
    assert_eq!(Xts::new(&[1; 32]).err(), Some(KeyError::Halves));
    assert_eq!(Xts::new(&[1; 64]).err(), Some(KeyError::Halves));
}

#[test]
fn one_key_serves_many_threads() {
    let xts = Xts::new(&annex_b_key()).unwrap();
    let mut expected = vec![9; 65_536];
    xts.encrypt(0, 4096, &mut expected);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let mut data = vec![9; 65_536];
                    xts.encrypt(0, 4096, &mut data);
                    assert!(data == expected);
                }
            });
        }
    });
}
