//! Has the system write what it keeps in its cache while more comes, rather than all at once at the next flush: a disk that is slower
//! than the network has its part done by then, and no flush takes longer than clients wait for one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use host::file::File;
use host::request::Request;
use tokio::sync::oneshot::error::TryRecvError;

use super::engine::{Begun, Engine};

/// So many bytes are kept before the system is asked again, which costs a request of its own. A disk of 100 MB/s writes them
/// in 80 ms.
const DIRTY_MAX: u64 = 8 << 20;

/// Smaller writes do not count. Scattered ones cost a disk as much each as large ones, and may be written over before the
/// system does them when it thinks best.
const COUNTED_MIN: u64 = 64 << 10;

/// What a file was given since its system was asked last.
#[derive(Debug, Default)]
pub(super) struct WriteBack {
    dirty: AtomicU64,
    begun: Mutex<Option<Begun>>,
}

impl WriteBack {
    /// `len` bytes more are in the cache.
    pub(super) fn note_dirty(&self, len: u64, file: &Arc<File>, engine: &Engine) {
        if len < COUNTED_MIN || self.dirty.fetch_add(len, Ordering::Relaxed) + len < DIRTY_MAX {
            return;
        }
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        // A disk that cannot keep up is asked again when it has done that much.
        if let Some(Err(TryRecvError::Empty)) = begun.as_mut().map(Begun::try_recv) {
            return;
        }
        self.dirty.store(0, Ordering::Relaxed);
        *begun = engine.begin(file, Request::WriteBack);
    }
}

#[cfg(test)]
mod tests {
    use host::file::Access;

    use super::super::engine::tests::engines;
    use super::*;

    #[tokio::test]
    async fn system_is_asked_for_each_eight_mebibytes() {
        for engine in engines() {
            let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let file = Arc::new(File::open(&dir.path().join("file"), Access::Create).unwrap());
            let write_back = WriteBack::default();
            let begun = || write_back.begun.lock().unwrap().take();
            for _ in 0..3 {
                write_back.note_dirty(DIRTY_MAX - COUNTED_MIN, &file, &engine);
                for _ in 0..DIRTY_MAX / COUNTED_MIN {
                    write_back.note_dirty(COUNTED_MIN - 1, &file, &engine);
                }
                assert!(begun().is_none());
                write_back.note_dirty(COUNTED_MIN, &file, &engine);
                begun().unwrap().await.unwrap().unwrap();
            }
        }
    }

    #[tokio::test]
    async fn system_is_not_asked_again_before_it_has_answered() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = Arc::new(File::open(&dir.path().join("file"), Access::Create).unwrap());
        let (answer, begun) = tokio::sync::oneshot::channel();
        let write_back = WriteBack { begun: Mutex::new(Some(begun)), ..WriteBack::default() };
        for _ in 0..2 {
            write_back.note_dirty(DIRTY_MAX, &file, &Engine::Threads);
        }
        assert_eq!(write_back.dirty.load(Ordering::Relaxed), 2 * DIRTY_MAX);
        answer.send(Ok(bytes::Bytes::new())).unwrap();
        write_back.note_dirty(COUNTED_MIN, &file, &Engine::Threads);
        assert_eq!(write_back.dirty.load(Ordering::Relaxed), 0);
        assert!(write_back.begun.lock().unwrap().is_some());
    }
}
