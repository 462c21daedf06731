//! What is burnt: a file, in the blocks of a disc.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use proto::scsi::unit::optical::BLOCK_SIZE;
use tokio::task::block_in_place;

use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;
use crate::regular_file::open_regular;
use crate::size::Size;

pub(super) struct Image {
    file: File,
    /// Its bytes.
    pub(super) size: u64,
    /// Its blocks, of which the last one may be filled up.
    pub(super) blocks: u32,
}

impl Image {
    pub(super) fn open(path: &Path) -> Outcome<Self> {
        let what = || format!("cannot burn {}", path.shown());
        let file = open_regular(path).map_err(|why| match why.kind() {
            io::ErrorKind::InvalidInput => Failure::new(what()).because(why).hint(
                "how large the image is has to be known before: write a stream to a file first",
            ),
            _ => Failure::new(what()).because(why),
        })?;
        let size = file.metadata().or_fail(what)?.len();
        if size == 0 {
            return Err(Failure::new(what()).because("it is empty"));
        }
        let blocks = u32::try_from(size.div_ceil(BLOCK_SIZE.into()));
        let blocks = blocks.map_err(|_| Failure::new(what()).because("no disc is as large"))?;
        Ok(Self { file, size, blocks })
    }

    /// So many blocks from block `at` on. The last one is filled up with zeroes.
    pub(super) fn read(&self, at: u32, count: u32) -> Outcome<Bytes> {
        let (from, whole) = (u64::from(at) * u64::from(BLOCK_SIZE), count * BLOCK_SIZE);
        let mut bytes = BytesMut::zeroed(whole as usize);
        let there = self.bytes(at + count) - self.bytes(at);
        let read = block_in_place(|| self.file.read_exact_at(&mut bytes[..there as usize], from));
        match read {
            Ok(()) => Ok(bytes.freeze()),
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => {
                let was = format!("it had {} bytes, and has become shorter", Size(self.size));
                Err(Failure::new("cannot read the image").because(was))
            }
            Err(why) => Err(Failure::new("cannot read the image").because(why)),
        }
    }

    /// How many bytes its first blocks have.
    pub(super) fn bytes(&self, blocks: u32) -> u64 {
        (u64::from(blocks) * u64::from(BLOCK_SIZE)).min(self.size)
    }
}
