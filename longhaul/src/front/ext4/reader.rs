//! The volume as the crate reads it: any bytes, from a cache of aligned pieces.

use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use ext4_view::Ext4Read;
use tokio::runtime::Handle;
use volume::{Span, Volume};

use super::error::FilesError;
use crate::stop::Stop;

/// What is read at once: a round trip costs more than the bytes that nobody asked for.
const PIECE: u64 = 128 << 10;

/// How many pieces are kept: 8 MiB, for inodes and directories that are read again and again.
const KEPT_MAX: usize = 64;

/// Reads from a volume, and waits for it.
pub(super) struct VolumeReader {
    volume: Arc<dyn Volume>,
    runtime: Handle,
    stop: Stop,
    kept: HashMap<u64, Bytes>,
    /// The pieces in the order in which they were read.
    order: VecDeque<u64>,
}

impl VolumeReader {
    pub(super) fn new(volume: Arc<dyn Volume>, runtime: Handle, stop: Stop) -> Self {
        Self { volume, runtime, stop, kept: HashMap::new(), order: VecDeque::new() }
    }

    /// The piece that begins at `at`; shorter at the end of the volume.
    fn piece(&mut self, at: u64) -> Result<Bytes, FilesError> {
        if let Some(piece) = self.kept.get(&at) {
            return Ok(piece.clone());
        }
        let len = PIECE.min(self.volume.shape().size.saturating_sub(at));
        let read = async { self.volume.read(Span::new(at, len)).await };
        let read = self.runtime.block_on(self.stop.unless_called(read));
        let piece = read.ok_or(FilesError::Stopped)?.map_err(FilesError::Volume)?;
        if self.order.len() == KEPT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.kept.remove(&oldest);
        }
        self.order.push_back(at);
        self.kept.insert(at, piece.clone());
        Ok(piece)
    }
}

impl Ext4Read for VolumeReader {
    fn read(
        &mut self,
        start_byte: u64,
        mut dst: &mut [u8],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let size = self.volume.shape().size;
        let end = start_byte.checked_add(dst.len() as u64).filter(|end| *end <= size);
        if end.is_none() {
            return Err(
                format!("byte {start_byte} and those behind it are not on the volume").into()
            );
        }
        let mut at = start_byte;
        while !dst.is_empty() {
            let (first, skip) = (at - at % PIECE, (at % PIECE) as usize);
            let piece = self.piece(first)?;
            let found = piece.get(skip..).unwrap_or_default();
            let len = found.len().min(dst.len());
            if len == 0 {
                return Err("the volume is shorter than it was".into());
            }
            let (now, later) = dst.split_at_mut(len);
            now.copy_from_slice(&found[..len]);
            (at, dst) = (at + len as u64, later);
        }
        Ok(())
    }
}
