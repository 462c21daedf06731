//! Data of commands that are compressed on their way (spec, 7.6).

use core::fmt::Debug;

use bytes::Bytes;

/// How data are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// LZ4 block format, without a frame.
    Lz4,
    /// Zstandard frames (RFC 8878).
    Zstd,
}

impl Algorithm {
    /// As it stands in a command block; 0 is no compression.
    const fn number(self) -> u8 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// Its bit in the option.
    const fn bit(self) -> u16 {
        1 << (self.number() - 1)
    }
}

/// Compresses data, and restores them. It has no state that changes.
pub trait Codec: Send + Sync + Debug {
    /// Its algorithm.
    fn algorithm(&self) -> Algorithm;

    /// The data compressed to at most `most` bytes; `None` if they take more.
    fn compress(&self, data: &[u8], most: usize) -> Option<Vec<u8>>;

    /// The `len` bytes that were compressed to `data`; `None` if those are not what `data` hold. No more memory is taken than
    /// `len` bytes and what the algorithm itself needs, whatever `data` are.
    fn restore(&self, data: &[u8], len: usize) -> Option<Vec<u8>>;
}

/// The codecs of one end, the preferred one first.
pub type Codecs = &'static [&'static dyn Codec];

/// The bits of the option for these codecs.
pub(super) fn bits(codecs: Codecs) -> u16 {
    codecs.iter().fold(0, |bits, codec| bits | codec.algorithm().bit())
}

/// Shorter data go as they are: there is little to be gained.
const LEN_MIN: usize = 512;

/// Longer data go as they are, and are not restored: a few bytes must not stand for the memory of a whole session.
const LEN_MAX: usize = 1 << 20;

/// Messages that go as they are, at most, before it is tried again.
const PASSED_MAX: u32 = 64;

/// What two ends have agreed on, at one of them.
#[derive(Debug, Default)]
pub(super) struct Compression {
    codecs: Vec<&'static dyn Codec>,
    /// What was agreed on earlier too: data may be under way.
    known: Vec<&'static dyn Codec>,
    /// Messages that go as they are before it is tried again, and how many there are next time.
    passing: u32,
    pass_next: u32,
}

impl Compression {
    /// Of the codecs of this end those whose bits were agreed on.
    pub(super) fn agreed(codecs: Codecs, bits: u16) -> Self {
        let mut agreed = Self { pass_next: 1, ..Self::default() };
        agreed.change(codecs, bits);
        agreed
    }

    /// Those whose bits are agreed on from now on; what was compressed before is restored as ever.
    pub(super) fn change(&mut self, codecs: Codecs, bits: u16) {
        let is_agreed = |codec: &&&dyn Codec| codec.algorithm().bit() & bits != 0;
        self.codecs = codecs.iter().filter(is_agreed).copied().collect();
        for codec in &self.codecs {
            if !self.known.iter().any(|known| known.algorithm() == codec.algorithm()) {
                self.known.push(*codec);
            }
        }
    }

    /// What this end compresses by.
    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        self.codecs.first().map(|codec| codec.algorithm())
    }

    /// The data as they are sent, and the number of the algorithm; 0 if they go as they are.
    ///
    /// Data that do not get shorter, such as those of an encrypted volume, are tried more and more rarely.
    pub(super) fn compress(&mut self, data: Bytes) -> (u8, Bytes) {
        let Some(codec) = self.codecs.first().filter(|_| (LEN_MIN..=LEN_MAX).contains(&data.len()))
        else {
            return (0, data);
        };
        if self.passing > 0 {
            self.passing -= 1;
            return (0, data);
        }
        match codec.compress(&data, data.len() - data.len() / 16) {
            Some(shorter) => {
                self.pass_next = 1;
                (codec.algorithm().number(), shorter.into())
            }
            None => {
                self.passing = self.pass_next;
                self.pass_next = (self.pass_next * 2).min(PASSED_MAX);
                (0, data)
            }
        }
    }

    /// The `len` bytes that a peer has sent as `data`; `None` if they are not that.
    pub(super) fn restore(&self, number: u8, data: Bytes, len: u32) -> Option<Bytes> {
        let len = len as usize;
        if number == 0 {
            return (data.len() == len).then_some(data);
        }
        let codec = self.known.iter().find(|codec| codec.algorithm().number() == number)?;
        if len > LEN_MAX {
            return None;
        }
        let restored = codec.restore(&data, len).filter(|restored| restored.len() == len)?;
        Some(restored.into())
    }
}

/// A codec for tests: runs of one byte.
#[cfg(any(test, feature = "invariants"))]
pub(super) mod run_length {
    use super::{Algorithm, Codec, Codecs};

    /// A byte, and how often.
    #[derive(Debug)]
    struct RunLength;

    impl Codec for RunLength {
        fn algorithm(&self) -> Algorithm {
            Algorithm::Lz4
        }

        fn compress(&self, data: &[u8], most: usize) -> Option<Vec<u8>> {
            let mut out = Vec::new();
            for run in data.chunk_by(|a, b| a == b) {
                out.push(run[0]);
                out.extend_from_slice(&(run.len() as u32).to_be_bytes());
            }
            (out.len() <= most).then_some(out)
        }

        fn restore(&self, data: &[u8], len: usize) -> Option<Vec<u8>> {
            let mut out = Vec::new();
            for run in data.chunks(5) {
                let (byte, times) = run.split_first()?;
                let times = u32::from_be_bytes(times.try_into().ok()?) as usize;
                if times > len - out.len() {
                    return None;
                }
                out.resize(out.len() + times, *byte);
            }
            Some(out)
        }
    }

    /// It alone.
    pub(in crate::hyperscsi) static CODECS: Codecs = &[&RunLength];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compression() -> Compression {
        Compression::agreed(run_length::CODECS, bits(run_length::CODECS))
    }

    #[test]
    fn data_restored_after_compressing_are_the_same() {
        let data = Bytes::from(vec![7; 5000]);
        let (number, sent) = compression().compress(data.clone());
        assert!(number != 0 && sent.len() < 100);
        assert_eq!(compression().restore(number, sent, 5000), Some(data));
    }

    #[test]
    fn data_of_another_length_or_algorithm_are_refused() {
        let (number, sent) = compression().compress(vec![7; 5000].into());
        let restore = |number, len| compression().restore(number, sent.clone(), len);
        assert!(restore(number, 5000).is_some());
        for (number, len) in [(number, 4999), (number, 5001), (0, 5000), (2, 5000), (9, 5000)] {
            assert_eq!(restore(number, len), None, "{number} {len}");
        }
        assert_eq!(Compression::default().restore(number, sent.clone(), 5000), None, "not agreed");
    }

    #[test]
    fn data_that_do_not_get_shorter_are_tried_ever_more_rarely() {
        let noise: Bytes = (0..1000_u32).map(|n| (n * 7) as u8).collect::<Vec<_>>().into();
        let (mut compression, mut tried) = (compression(), Vec::new());
        for at in 0..40 {
            let is_tried = compression.passing == 0;
            assert_eq!(compression.compress(noise.clone()), (0, noise.clone()));
            if is_tried {
                tried.push(at);
            }
        }
        assert_eq!(tried, [0, 2, 5, 10, 19, 36]);
        (0..64).for_each(|_| {
            compression.compress(vec![1; 512].into());
        });
        assert_eq!((compression.passing, compression.pass_next), (0, 1));
        assert_eq!(compression.compress(vec![1; 511].into()).0, 0, "short ones are not tried");
    }

    #[test]
    fn data_that_are_too_long_are_neither_compressed_nor_restored() {
        for (len, is_taken) in [(LEN_MAX, true), (LEN_MAX + 1, false)] {
            let data = Bytes::from(vec![1; len]);
            assert_eq!(compression().compress(data.clone()).0 != 0, is_taken);
            let sent = run_length::CODECS[0].compress(&data, len).unwrap();
            let restored = compression().restore(1, sent.into(), len as u32);
            assert_eq!(restored.is_some(), is_taken);
        }
    }
}
