//! Encrypts a file, block by block.

use bytes::Bytes;
use zeroize::Zeroizing;

use super::{
    Cost, Header, HeaderError, KEY_LEN, LENGTH_LEN, NewCipher, PassphraseKey, RECORD_OVERHEAD,
    SALT_LEN, WRAPPING_NONCE, derived, nonce,
};
use crate::cipher::Cipher;

/// What is drawn at random for one file, and for no other.
#[derive(Debug)]
pub struct FileSecrets {
    /// With which the key of the pass-phrase was derived.
    pub salt: [u8; SALT_LEN],
    /// The key of the file.
    pub file_key: Zeroizing<[u8; KEY_LEN]>,
}

/// Makes the blocks of one file, in their order. Each is made once: a block that has to be sent again is kept.
#[derive(Debug)]
pub struct FileWriter {
    cipher: Box<dyn Cipher>,
    block: u32,
    /// The last block is filled up.
    fills: bool,
    records: u64,
    is_ended: bool,
}

impl FileWriter {
    /// Begins a file with blocks of `block` bytes; the first of them. With `fills` the last one is as long as the others.
    pub fn new(
        block: u32,
        fills: bool,
        cost: Cost,
        secrets: &FileSecrets,
        key: &PassphraseKey,
        new_cipher: NewCipher,
    ) -> Result<(Self, Bytes), HeaderError> {
        let (record_key, confirmation) = derived(&secrets.salt, &secrets.file_key);
        let mut header = Header::unwrapped(block, cost, secrets.salt, confirmation)?;
        let mut wrapped = Vec::with_capacity(header.wrapped.len());
        let clear = header.clear();
        new_cipher(key).seal(&WRAPPING_NONCE, &clear, &*secrets.file_key, &mut wrapped);
        header.wrapped.copy_from_slice(&wrapped);
        let cipher = new_cipher(&record_key);
        let writer = Self { cipher, block, fills, records: 0, is_ended: false };
        Ok((writer, header.emit().into()))
    }

    /// How many bytes of data a block has that is not the last.
    #[must_use]
    pub const fn data_len(&self) -> usize {
        self.block as usize - RECORD_OVERHEAD
    }

    /// The next block. One that is not the last has [`data_len`](Self::data_len) bytes of data, and the last no more.
    pub fn block(&mut self, data: &[u8], is_last: bool) -> Bytes {
        assert!(!self.is_ended, "nothing follows on the last block");
        let fits =
            if is_last { data.len() <= self.data_len() } else { data.len() == self.data_len() };
        assert!(fits, "{} bytes do not fit a block of {}", data.len(), self.block);
        let mut text = Zeroizing::new(Vec::with_capacity(self.block as usize));
        text.extend_from_slice(&(data.len() as u32).to_be_bytes());
        text.extend_from_slice(data);
        if self.fills {
            text.resize(LENGTH_LEN + self.data_len(), 0);
        }
        let mut block = Vec::with_capacity(self.block as usize);
        self.cipher.seal(&nonce(self.records, is_last), &[], &text, &mut block);
        self.records += 1;
        self.is_ended = is_last;
        block.into()
    }
}
