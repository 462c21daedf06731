//! A file, or standard input, as the blocks that are written of it.

use std::io::{self, Read};

use bytes::Bytes;
use proto::tape_encryption::FileWriter;
use zeroize::Zeroizing;

/// What is read, block by block; `None` at its end.
pub(super) trait Blocks: Send {
    fn next(&mut self) -> io::Result<Option<Bytes>>;
}

/// Blocks as they are read.
pub(super) struct Plain<R> {
    input: R,
    len: usize,
    /// The last one is filled up to a multiple of that.
    fill: Option<usize>,
    is_ended: bool,
}

impl<R: Read + Send> Plain<R> {
    pub(super) const fn new(input: R, len: usize, fill: Option<usize>) -> Self {
        Self { input, len, fill, is_ended: false }
    }
}

impl<R: Read + Send> Blocks for Plain<R> {
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        if self.is_ended {
            return Ok(None);
        }
        let mut block = Vec::with_capacity(self.len);
        (&mut self.input).take(self.len as u64).read_to_end(&mut block)?;
        self.is_ended = block.len() < self.len;
        if let Some(fill) = self.fill {
            block.resize(block.len().next_multiple_of(fill), 0);
        }
        Ok(Some(block).filter(|block| !block.is_empty()).map(Bytes::from))
    }
}

/// Blocks of an encrypted file. Which one is the last is known when there is nothing behind it.
pub(super) struct Encrypted<R> {
    input: R,
    writer: FileWriter,
    header: Option<Bytes>,
    /// What the next block has, once it was read.
    read: Option<Zeroizing<Vec<u8>>>,
    is_ended: bool,
}

impl<R: Read + Send> Encrypted<R> {
    pub(super) fn new(input: R, (writer, header): (FileWriter, Bytes)) -> Self {
        Self { input, writer, header: Some(header), read: None, is_ended: false }
    }

    fn read(&mut self) -> io::Result<Zeroizing<Vec<u8>>> {
        let len = self.writer.data_len();
        let mut data = Zeroizing::new(Vec::with_capacity(len));
        (&mut self.input).take(len as u64).read_to_end(&mut data)?;
        Ok(data)
    }
}

impl<R: Read + Send> Blocks for Encrypted<R> {
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        if let Some(header) = self.header.take() {
            return Ok(Some(header));
        }
        if self.is_ended {
            return Ok(None);
        }
        let data = match self.read.take() {
            Some(data) => data,
            None => self.read()?,
        };
        if data.len() == self.writer.data_len() {
            let following = self.read()?;
            if !following.is_empty() {
                self.read = Some(following);
                return Ok(Some(self.writer.block(&data, false)));
            }
        }
        self.is_ended = true;
        Ok(Some(self.writer.block(&data, true)))
    }
}

/// So many blocks at a time, as one command has them.
pub(super) struct Grouped<B> {
    blocks: B,
    count: usize,
}

impl<B: Blocks> Grouped<B> {
    pub(super) const fn new(blocks: B, count: usize) -> Self {
        Self { blocks, count }
    }
}

impl<B: Blocks> Blocks for Grouped<B> {
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        let mut group = Vec::new();
        for _ in 0..self.count {
            let Some(block) = self.blocks.next()? else { break };
            group.push(block);
        }
        Ok(match group.len() {
            0 => None,
            1 => group.pop(),
            _ => Some(group.concat().into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut blocks: impl Blocks) -> Vec<usize> {
        std::iter::from_fn(|| blocks.next().unwrap()).map(|block| block.len()).collect()
    }

    #[test]
    fn input_is_cut_into_blocks_and_the_last_is_filled() {
        assert_eq!(all(Plain::new(&[1; 25][..], 10, None)), [10, 10, 5]);
        assert_eq!(all(Plain::new(&[1; 20][..], 10, None)), [10, 10]);
        assert_eq!(all(Plain::new(&[1; 25][..], 20, Some(4))), [20, 8]);
        assert_eq!(all(Plain::new(&[][..], 10, Some(4))), [0; 0]);
        let groups = Grouped::new(Plain::new(&[1; 45][..], 10, Some(10)), 2);
        assert_eq!(all(groups), [20, 20, 10]);
    }
}
