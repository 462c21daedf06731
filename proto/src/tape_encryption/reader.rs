//! Decrypts a file, block by block.

use bytes::Bytes;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::{Header, KEY_LEN, NewCipher, PassphraseKey, WRAPPING_NONCE, derived, nonce};
use crate::cipher::{Cipher, Forged, TAG_LEN};
use crate::reader::Reader;

/// The key does not open the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pass-phrase is wrong, or the header of the file was changed")]
pub struct WrongKey;

/// Why a file is not what was written. Blocks are counted from that of the header, 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The tag of a block does not match.
    #[error(
        "block {0} of the file is not the one that was written there: it was changed or exchanged, or blocks before it are missing"
    )]
    Forged(u64),
    /// A block has another length than all have.
    #[error("block {block} of the file has {found} bytes, and its blocks have {expected}")]
    Length {
        /// Which.
        block: u64,
        /// Its length.
        found: usize,
        /// The length of the blocks.
        expected: u32,
    },
    /// The end was cut off.
    #[error(
        "the file has no last block: it ends with block {0}, and was cut off behind that, or not written to its end"
    )]
    CutOff(u64),
    /// Something was appended.
    #[error("block {0} of the file is its last one, and others follow: they were appended")]
    Continued(u64),
    /// A block was written by a program that does not know how.
    #[error("block {0} of the file was not written as the format says")]
    Malformed(u64),
}

/// Opens the blocks of one file, in their order. The data of a block are given out when the next one has come, or the end: only then
/// it is known whether it is the last.
#[derive(Debug)]
pub struct FileReader {
    cipher: Box<dyn Cipher>,
    block: u32,
    /// How many records were opened.
    records: u64,
    /// The one that is opened next.
    held: Option<Bytes>,
    failed: Option<RecordError>,
}

impl FileReader {
    /// Opens the file with this header.
    pub fn new(
        header: &Header,
        key: &PassphraseKey,
        new_cipher: NewCipher,
    ) -> Result<Self, WrongKey> {
        let mut file_key = Zeroizing::new([0; KEY_LEN]);
        let Some((text, tag)) = header.wrapped.split_last_chunk::<TAG_LEN>() else {
            return Err(WrongKey);
        };
        file_key.copy_from_slice(text);
        let opened = new_cipher(key).open(&WRAPPING_NONCE, &header.clear(), &mut *file_key, tag);
        opened.map_err(|Forged| WrongKey)?;
        let (record_key, confirmation) = derived(&header.salt, &file_key);
        if !bool::from(confirmation.ct_eq(&header.confirmation)) {
            return Err(WrongKey);
        }
        let cipher = new_cipher(&record_key);
        Ok(Self { cipher, block: header.block, records: 0, held: None, failed: None })
    }

    /// Takes the next blocks, whole, and appends to `out` the data of those that are known by now.
    /// What was appended is what was written, also where that fails.
    pub fn take(&mut self, mut blocks: Bytes, out: &mut Vec<u8>) -> Result<(), RecordError> {
        if let Some(why) = self.failed {
            return Err(why);
        }
        while !blocks.is_empty() {
            let block = blocks.split_to(blocks.len().min(self.block as usize));
            if let Some(before) = self.held.replace(block) {
                let opened = self.open(&before, false, out);
                self.keep(opened)?;
            }
        }
        Ok(())
    }

    /// The file ends here. Its last data are appended to `out` if it does.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), RecordError> {
        if let Some(why) = self.failed {
            return Err(why);
        }
        let opened = match self.held.take() {
            Some(last) => self.open(&last, true, out),
            None => Err(RecordError::CutOff(0)),
        };
        self.keep(opened)
    }

    fn keep(&mut self, opened: Result<(), RecordError>) -> Result<(), RecordError> {
        self.failed = opened.err();
        opened
    }

    fn open(&mut self, block: &Bytes, is_last: bool, out: &mut Vec<u8>) -> Result<(), RecordError> {
        // The header is block 0.
        let number = self.records + 1;
        if !is_last && block.len() != self.block as usize {
            return Err(match self.text(block, true) {
                Ok(_) => RecordError::Continued(number),
                Err(Forged) => {
                    let (found, expected) = (block.len(), self.block);
                    RecordError::Length { block: number, found, expected }
                }
            });
        }
        let text = self.text(block, is_last).map_err(|Forged| {
            match (self.text(block, !is_last), is_last) {
                (Ok(_), true) => RecordError::CutOff(number),
                (Ok(_), false) => RecordError::Continued(number),
                (Err(Forged), _) => RecordError::Forged(number),
            }
        })?;
        let data = data_in(&text, is_last).ok_or(RecordError::Malformed(number))?;
        out.extend_from_slice(data);
        self.records += 1;
        Ok(())
    }

    /// What a record holds if its tag is that of this place.
    fn text(&self, block: &Bytes, is_last: bool) -> Result<Zeroizing<Vec<u8>>, Forged> {
        let (text, tag) = block.split_last_chunk::<TAG_LEN>().ok_or(Forged)?;
        let mut text = Zeroizing::new(text.to_vec());
        self.cipher.open(&nonce(self.records, is_last), &[], &mut text, tag)?;
        Ok(text)
    }
}

/// The data of a record: behind their length, and before nothing but zeroes.
fn data_in(text: &[u8], is_last: bool) -> Option<&[u8]> {
    let mut reader = Reader::new(text);
    let len = reader.u32().ok()?;
    let data = reader.take(len as usize).ok()?;
    let is_filled = !reader.rest().is_empty();
    let holds = !is_filled || is_last && reader.rest().iter().all(|byte| *byte == 0);
    holds.then_some(data)
}
