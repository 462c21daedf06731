//! 3DES (NIST SP 800-67) in CBC mode (SP 800-38A), without padding, through AWS-LC. Nothing new should be
//! enciphered with it; it is here to be compared with.

use aws_lc_rs::cipher::{
    DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;

/// Bytes of a key: three DES keys.
pub(crate) const KEY_LEN: usize = 24;

/// Bytes of a block, and of an initialization vector.
pub(crate) const BLOCK_LEN: usize = 8;

/// 3DES under one key, set up once.
#[derive(Debug)]
pub(crate) struct TripleDes {
    encrypt: EncryptingKey,
    decrypt: DecryptingKey,
}

impl TripleDes {
    /// Expands `key`.
    ///
    /// # Panics
    ///
    /// If a part of the key is weak (SP 800-67) or like another.
    pub(crate) fn new(key: &[u8; KEY_LEN]) -> Self {
        #[expect(deprecated, reason = "it is what the papers had")]
        let algorithm = &aws_lc_rs::cipher::DES_EDE3_FOR_LEGACY_USE_ONLY;
        let key = || UnboundCipherKey::new(algorithm, key).expect("the key has its length");
        Self {
            encrypt: EncryptingKey::cbc(key()).expect("the key is not weak"),
            decrypt: DecryptingKey::cbc(key()).expect("the key is not weak"),
        }
    }

    /// Enciphers whole blocks in place.
    ///
    /// # Panics
    ///
    /// If `text` is not a whole number of blocks.
    pub(crate) fn encrypt(&self, iv: &[u8; BLOCK_LEN], text: &mut [u8]) {
        let context = EncryptionContext::Iv64(FixedLength::from(iv));
        self.encrypt.less_safe_encrypt(text, context).expect("the text has whole blocks");
    }

    /// Deciphers whole blocks in place; everything else is as for [`encrypt`](Self::encrypt).
    pub(crate) fn decrypt(&self, iv: &[u8; BLOCK_LEN], text: &mut [u8]) {
        let context = DecryptionContext::Iv64(FixedLength::from(iv));
        self.decrypt.decrypt(text, context).expect("the text has whole blocks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of NIST's examples.
    const KEY: [u64; 3] = [0x0123_4567_89ab_cdef, 0x2345_6789_abcd_ef01, 0x4567_89ab_cdef_0123];

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn both_ways(key: &[u64; 3], iv: u64, plain: &[u8], sealed: &[u8]) {
        let cipher = TripleDes::new(bytes(key)[..].try_into().unwrap());
        // Again, because no text may leave anything behind for the next.
        for _ in 0..2 {
            let mut text = plain.to_vec();
            cipher.encrypt(&iv.to_be_bytes(), &mut text);
            assert!(text == sealed, "{text:02x?}");
            cipher.decrypt(&iv.to_be_bytes(), &mut text);
            assert!(text == plain, "{text:02x?}");
        }
    }

    /// SP 800-67, B.1: the blocks each by themselves, which is what this mode is without a vector.
    #[test]
    fn sp_800_67_blocks() {
        let sealed = [0xa826_fd8c_e53b_855f, 0xcce2_1c81_1225_6fe6, 0x68d5_c05d_d9b6_b900];
        for (plain, sealed) in b"The qufck brown fox jump".chunks(BLOCK_LEN).zip(sealed) {
            both_ways(&KEY, 0, plain, &bytes(&[sealed]));
        }
    }

    /// NIST's examples for SP 800-38A, TDES in CBC mode.
    #[test]
    fn sp_800_38a_chain() {
        let plain = [
            0x6bc1_bee2_2e40_9f96,
            0xe93d_7e11_7393_172a,
            0xae2d_8a57_1e03_ac9c,
            0x9eb7_6fac_45af_8e51,
        ];
        let sealed = [
            0x2079_c3d5_3aa7_63e1,
            0x93b7_9e25_69ab_5262,
            0x5165_7048_1f25_b50f,
            0x73c0_bda8_5c8e_0da7,
        ];
        both_ways(&KEY, 0xf69f_2445_df4f_9b17, &bytes(&plain), &bytes(&sealed));
    }

    #[test]
    #[should_panic(expected = "whole blocks")]
    fn part_of_a_block_is_refused() {
        TripleDes::new(bytes(&KEY)[..].try_into().unwrap()).encrypt(&[0; BLOCK_LEN], &mut [0; 12]);
    }
}
