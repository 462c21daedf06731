//! What holds of any header, and of an encrypted file whatever is done to it, as functions that a fuzzer can drive.

use bytes::Bytes;
use zeroize::Zeroizing;

use super::{
    BLOCK_MIN, Cost, FileReader, FileSecrets, FileWriter, Header, KEY_LEN, NewCipher, RecordError,
    SALT_LEN,
};
use crate::reader::{Reader, Truncated};

/// How many bytes a script may write.
const FILE_MAX: usize = 64 << 10;

/// A header that is read is written as it was.
pub fn any_header(bytes: &[u8]) {
    if let Ok(header) = Header::parse(bytes) {
        assert_eq!(header.emit(), bytes, "a header is not written as it was read");
    }
}

/// Reads `bytes` as a script: what is written, and what is done to the blocks. For any script: the data that are given out are a
/// beginning of what was written; they are all of it where nothing was done, and the end is not found where anything was.
pub fn holds(new_cipher: NewCipher, bytes: &[u8]) {
    let mut script = Reader::new(bytes);
    let Ok(setup) = script.u16() else { return };
    let mut file = File::written(new_cipher, usize::from(setup) % 3000, setup >> 15 == 1);
    let before = file.blocks.clone();
    while file.blocks.len() < FILE_MAX / BLOCK_MIN as usize && file.change(&mut script).is_ok() {}
    // A tape has none without bytes.
    file.blocks.retain(|block| !block.is_empty());
    let mut out = Vec::new();
    let read = file.read(new_cipher, &mut out);
    assert!(file.data.starts_with(&out), "something was given out that was not written so");
    if file.blocks == before {
        assert_eq!(read, Ok(()), "what was written is not read");
        assert!(out == file.data, "not all that was written is read");
    } else {
        assert!(read.is_err(), "a change was not noticed");
    }
}

struct File {
    data: Vec<u8>,
    header: Header,
    /// All but that of the header.
    blocks: Vec<Bytes>,
}

impl File {
    fn written(new_cipher: NewCipher, len: usize, fills: bool) -> Self {
        let data: Vec<u8> = (0..len).map(|at| (at * 7 + (at >> 8)) as u8).collect();
        let cost = Cost { memory_kib: 32, passes: 1, lanes: 1 };
        let secrets = FileSecrets { salt: [1; SALT_LEN], file_key: Zeroizing::new([2; KEY_LEN]) };
        let key = Zeroizing::new([3; KEY_LEN]);
        let begun = FileWriter::new(BLOCK_MIN, fills, cost, &secrets, &key, new_cipher);
        let (mut writer, header) = begun.expect("the cost and the length are allowed");
        let mut blocks = Vec::new();
        let mut rest = &data[..];
        while rest.len() > writer.data_len() {
            let (block, behind) = rest.split_at(writer.data_len());
            blocks.push(writer.block(block, false));
            rest = behind;
        }
        blocks.push(writer.block(rest, true));
        let header = Header::parse(&header).expect("a header that was written is read");
        Self { data, header, blocks }
    }

    fn change(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        let (what, which) = (script.u8()?, usize::from(script.u8()?));
        if self.blocks.is_empty() {
            return Ok(());
        }
        let which = which % self.blocks.len();
        let block = self.blocks[which].clone();
        match what % 6 {
            0 => {
                let mut changed = block.to_vec();
                let at = usize::from(script.u16()?) % changed.len().max(1);
                if let Some(byte) = changed.get_mut(at) {
                    *byte ^= script.u8()?;
                }
                self.blocks[which] = changed.into();
            }
            1 => drop(self.blocks.remove(which)),
            2 => self.blocks.insert(which, block),
            3 => self.blocks.truncate(which),
            4 => self.blocks[which] = block.slice(..usize::from(script.u8()?).min(block.len())),
            _ => {
                let other = usize::from(script.u8()?) % self.blocks.len();
                self.blocks.swap(which, other);
            }
        }
        Ok(())
    }

    fn read(&self, new_cipher: NewCipher, out: &mut Vec<u8>) -> Result<(), RecordError> {
        let key = Zeroizing::new([3; KEY_LEN]);
        let mut reader = FileReader::new(&self.header, &key, new_cipher)
            .expect("the key is the one of the file");
        for block in &self.blocks {
            reader.take(block.clone(), out)?;
        }
        reader.finish(out)
    }
}
