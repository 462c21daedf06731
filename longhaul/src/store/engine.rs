//! How requests to a file are carried out while the caller's task goes on: by the system itself where it has a
//! ring for that, on the runtime's blocking threads elsewhere. Both do the same.

use std::env;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use host::file::File;
use host::request::Request;
use host::ring::{Ring, STALL};
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, spawn_blocking};

/// The variable that chooses: `ring`, `threads`, or the ring where there is one.
const VARIABLE: &str = "LONGHAUL_IO";

/// One of the ways.
#[derive(Clone, Debug)]
pub(super) enum Engine {
    /// The system's own.
    Ring(Arc<Watched>),
    /// The runtime's blocking threads.
    Threads,
}

impl Engine {
    /// The one the environment asks for.
    pub(super) fn chosen() -> io::Result<Self> {
        match env::var(VARIABLE).as_deref() {
            Ok("threads") => Ok(Self::Threads),
            Ok("ring") => Self::ring(),
            Ok(other) => {
                let why =
                    format!("{VARIABLE} is {other:?}, which is neither \"ring\" nor \"threads\"");
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
            // Kernels without it, and sandboxes that forbid it, are no reason not to serve.
            Err(_) => Ok(Self::ring().unwrap_or(Self::Threads)),
        }
    }

    /// A ring of its own.
    pub(super) fn ring() -> io::Result<Self> {
        let ring = Arc::new(Ring::new()?);
        Ok(Self::Ring(Arc::new(Watched {
            ring,
            reaper: Mutex::default(),
            stalled: Arc::default(),
        })))
    }

    /// Carries out `request`. What the caller no longer waits for is done all the same.
    pub(super) async fn perform(&self, file: &Arc<File>, request: Request) -> io::Result<Bytes> {
        let request = match self {
            Self::Threads => request,
            Self::Ring(watched) => match watched.submit(file, request) {
                Ok(answer) => return answer.await.map_err(io::Error::other)?,
                Err(request) => request,
            },
        };
        blocking(file, move |file| file.perform(&request)).await
    }

    /// Begins `request`, of which nobody waits for an answer: it comes when the request has ended, if one was begun.
    pub(super) fn begin(&self, file: &Arc<File>, request: Request) -> Option<Begun> {
        match self {
            Self::Threads => {
                // It keeps nobody else from the file.
                let file = Arc::downgrade(file);
                let (sender, receiver) = oneshot::channel();
                spawn_blocking(move || {
                    let outcome = file.upgrade().map(|file| file.perform(&request));
                    outcome.map(|outcome| sender.send(outcome))
                });
                Some(receiver)
            }
            Self::Ring(watched) => watched.submit(file, request).ok(),
        }
    }
}

/// The answer to a request that was begun.
pub(super) type Begun = oneshot::Receiver<Outcome>;

/// Does on a blocking thread what may wait.
pub(super) async fn blocking<T: Send + 'static>(
    file: &Arc<File>,
    act: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let file = Arc::clone(file);
    spawn_blocking(move || act(&file)).await.map_err(io::Error::other)?
}

type Outcome = io::Result<Bytes>;

/// A ring, and the task that takes its answers while there is anybody to ask for something.
#[derive(Debug)]
pub(super) struct Watched {
    ring: Arc<Ring>,
    reaper: Mutex<Option<AbortHandle>>,
    /// Tells the reaper that the system could not take a request at once.
    stalled: Arc<Notify>,
}

impl Watched {
    /// Hands over a request; it comes back if too many are under way.
    fn submit(&self, file: &Arc<File>, request: Request) -> Result<Begun, Request> {
        self.watch();
        let (sender, receiver) = oneshot::channel();
        // Nobody may wait any more.
        let done = Box::new(move |outcome| drop(sender.send(outcome)));
        let taken = self.ring.submit(file, request, done).map_err(|(request, _)| request)?;
        if !taken {
            self.stalled.notify_one();
        }
        Ok(receiver)
    }

    /// Sees to it that answers are taken: on the runtime that asks, also if it is another than before.
    fn watch(&self) {
        let mut reaper = self.reaper.lock().unwrap_or_else(PoisonError::into_inner);
        if reaper.as_ref().is_none_or(AbortHandle::is_finished) {
            *reaper = Some(
                tokio::spawn(reap(Arc::clone(&self.ring), Arc::clone(&self.stalled)))
                    .abort_handle(),
            );
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let reaper = self.reaper.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(reaper) = reaper {
            reaper.abort();
        }
    }
}

async fn reap(ring: Arc<Ring>, stalled: Arc<Notify>) -> io::Result<()> {
    let ring = ring.watch()?;
    loop {
        tokio::select! {
            // Cleared before the look, so that an answer that comes after it is not missed.
            ready = ring.readable() => ready?.clear_ready(),
            () = stalled.notified() => tokio::time::sleep(STALL).await,
        }
        ring.get_ref().reap();
        if ring.get_ref().is_stalled() {
            stalled.notify_one();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;
    use host::file::{Access, Sync};

    use super::*;

    /// Every engine there is here; a sandbox may forbid rings.
    pub(in super::super) fn engines() -> Vec<Engine> {
        let ring = Engine::ring().inspect_err(|why| eprintln!("no ring here: {why}"));
        ring.into_iter().chain([Engine::Threads]).collect()
    }

    fn scratch() -> (tempfile::TempDir, Arc<File>) {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = File::open(&dir.path().join("file"), Access::Create).unwrap();
        (dir, Arc::new(file))
    }

    fn write(at: u64) -> Request {
        Request::Write { at, data: Bytes::from_static(&[7; 512]), sync: Sync::Later }
    }

    #[tokio::test]
    async fn more_than_a_ring_holds_are_carried_out() {
        for engine in engines() {
            let (_dir, file) = scratch();
            let all = (0..3000).map(|at| engine.perform(&file, write(at * 512)));
            for done in futures_util::future::join_all(all).await {
                done.unwrap();
            }
            let read = engine.perform(&file, Request::Read { at: 0, len: 3000 * 512 });
            assert!(read.await.unwrap().iter().all(|byte| *byte == 7));
        }
    }

    #[tokio::test]
    async fn abandoned_request_is_carried_out() {
        for engine in engines() {
            let (_dir, file) = scratch();
            {
                let given_up = std::pin::pin!(engine.perform(&file, write(512)));
                assert!(futures_util::poll!(given_up).is_pending());
            }
            while file.len().unwrap() < 1024 {
                tokio::task::yield_now().await;
            }
            let read = engine.perform(&file, Request::Read { at: 512, len: 512 });
            assert_eq!(read.await.unwrap(), [7; 512][..]);
        }
    }

    #[test]
    fn an_engine_outlives_the_runtime_it_began_on() {
        for engine in engines() {
            let (_dir, file) = scratch();
            for at in 0..3 {
                let runtime = tokio::runtime::Runtime::new().unwrap();
                runtime.block_on(engine.perform(&file, write(at * 512))).unwrap();
            }
            assert_eq!(file.len().unwrap(), 3 * 512);
        }
    }
}
