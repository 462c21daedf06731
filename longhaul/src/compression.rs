//! How data of HyperSCSI are compressed on their way (`docs/spec/hyperscsi.md`, 7.6).

use std::fmt;
use std::str::FromStr;

use proto::hyperscsi::{Algorithm, Codec, Codecs};

/// LZ4: little work for the processor.
#[derive(Debug)]
struct Lz4;

impl Codec for Lz4 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::Lz4
    }

    fn compress(&self, data: &[u8], most: usize) -> Option<Vec<u8>> {
        // It takes no less room than the worst case needs.
        let mut out = vec![0; lz4_flex::block::get_maximum_output_size(data.len())];
        let len = lz4_flex::block::compress_into(data, &mut out).ok()?;
        out.truncate(len);
        (len <= most).then_some(out)
    }

    fn restore(&self, data: &[u8], len: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; len];
        let restored = lz4_flex::block::decompress_into(data, &mut out).ok()?;
        (restored == len).then_some(out)
    }
}

/// Zstandard: fewer bytes, more work.
#[derive(Debug)]
struct Zstd;

impl Zstd {
    /// The fastest of its usual levels: a message waits for it.
    const LEVEL: i32 = 1;
}

impl Codec for Zstd {
    fn algorithm(&self) -> Algorithm {
        Algorithm::Zstd
    }

    fn compress(&self, data: &[u8], most: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; most];
        let len = zstd::bulk::compress_to_buffer(data, &mut out, Self::LEVEL).ok()?;
        out.truncate(len);
        Some(out)
    }

    fn restore(&self, data: &[u8], len: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; len];
        let restored = zstd::bulk::decompress_to_buffer(data, &mut out).ok()?;
        (restored == len).then_some(out)
    }
}

/// How one end compresses, if the other agrees.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compression(pub Codecs);

/// What can be written, with the codecs that it stands for.
const NAMED: [(&str, Codecs); 4] =
    [("none", &[]), ("lz4", &[&Lz4]), ("zstd", &[&Zstd]), ("any", &[&Zstd, &Lz4])];

impl Compression {
    fn algorithms(self) -> impl Iterator<Item = Algorithm> {
        self.0.iter().map(|codec| codec.algorithm())
    }

    /// What was agreed on with the other end.
    #[must_use]
    pub const fn name_of(agreed: Algorithm) -> &'static str {
        match agreed {
            Algorithm::Lz4 => "lz4",
            Algorithm::Zstd => "zstd",
        }
    }

    /// Whether data go as they are.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0.is_empty()
    }
}

impl PartialEq for Compression {
    fn eq(&self, other: &Self) -> bool {
        self.algorithms().eq(other.algorithms())
    }
}

impl Eq for Compression {}

impl FromStr for Compression {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = NAMED.into_iter().find(|(name, _)| *name == text);
        named.map(|(_, codecs)| Self(codecs)).ok_or("write `none`, `lz4`, `zstd` or `any`")
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = NAMED.into_iter().find(|(_, codecs)| *self == Self(codecs));
        f.write_str(named.map_or("none", |(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn codecs() -> Codecs {
        "any".parse::<Compression>().unwrap().0
    }

    #[test]
    fn data_restored_after_compressing_are_the_same() {
        let text = "the same words over and over, ".repeat(2000).into_bytes();
        let mut random = testing::Random::new(1);
        let noise: Vec<u8> = (0..60_000).map(|_| random.word() as u8).collect();
        for codec in codecs() {
            let sent = codec.compress(&text, text.len() / 16).unwrap();
            assert_eq!(codec.restore(&sent, text.len()), Some(text.clone()), "{codec:?}");
            for len in [0, text.len() - 1, text.len() + 1] {
                assert_eq!(codec.restore(&sent, len), None, "{codec:?} {len}");
            }
            assert_eq!(codec.compress(&noise, noise.len() / 2), None, "{codec:?}");
        }
    }

    proptest! {
        /// Whatever a peer sends is refused, or as long as was asked for.
        #[test]
        fn garbage_is_refused_or_has_the_length_asked_for(
            start in proptest::sample::select(vec![&b""[..], &[0x28, 0xb5, 0x2f, 0xfd], &[0xff; 8]]),
            data in proptest::collection::vec(any::<u8>(), 0..300),
            len in 0..5000_usize,
        ) {
            let data = [start, &data].concat();
            for codec in codecs() {
                if let Some(restored) = codec.restore(&data, len) {
                    prop_assert_eq!(restored.len(), len);
                }
            }
        }
    }

    #[test]
    fn name_is_read_as_it_is_written() {
        for (name, codecs) in NAMED {
            assert_eq!(name.parse(), Ok(Compression(codecs)));
            assert_eq!(Compression(codecs).to_string(), name);
        }
        assert!("gzip".parse::<Compression>().is_err());
    }
}
