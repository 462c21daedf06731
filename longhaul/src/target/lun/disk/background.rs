//! Work that goes on after its command was answered with GOOD: SYNCHRONIZE CACHE and START STOP UNIT with IMMED.
//!
//! At most one piece of work of a kind is under way for a unit, and one waits to begin. That one serves all that asked
//! before it begins, so that an initiator cannot pile up work by asking again and again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

use super::super::Nexus;
use super::super::answer::Abort;
use super::Core;

/// Work of one kind.
#[derive(Default)]
pub(super) struct Background(Mutex<State>);

#[derive(Default)]
struct State {
    running: bool,
    waiting: Option<Waiting>,
}

/// What has not begun yet.
struct Waiting {
    /// The view of the unit that was asked last: its volume is the newest.
    core: Arc<Core>,
    /// Those to tell if it fails.
    nexuses: BTreeSet<Nexus>,
    /// A unit is to be stopped after a flush.
    flush: bool,
}

impl Background {
    /// Adds to what has not begun yet. Whether somebody has to begin that now.
    fn add(&self, core: &Arc<Core>, nexus: Nexus, flush: bool) -> bool {
        let mut state = self.state();
        let nothing = || Waiting { core: Arc::clone(core), nexuses: BTreeSet::new(), flush };
        let waiting = state.waiting.get_or_insert_with(nothing);
        waiting.core = Arc::clone(core);
        waiting.nexuses.insert(nexus);
        waiting.flush |= flush;
        !std::mem::replace(&mut state.running, true)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one that does the work of a kind, until there is none.
struct Worker {
    of: Arc<super::State>,
    kind: fn(&super::State) -> &Background,
    over: bool,
}

impl Worker {
    fn new(of: &Arc<super::State>, kind: fn(&super::State) -> &Background) -> Self {
        Self { of: Arc::clone(of), kind, over: false }
    }

    /// What has been asked for since the last look.
    fn next(&mut self) -> Option<Waiting> {
        let mut state = (self.kind)(&self.of).state();
        let waiting = state.waiting.take();
        self.over = waiting.is_none();
        state.running = !self.over;
        waiting
    }
}

/// If it is dropped before its end, the next one that asks begins another.
impl Drop for Worker {
    fn drop(&mut self) {
        if !self.over {
            (self.kind)(&self.of).state().running = false;
        }
    }
}

impl Core {
    /// A flush that nobody waits for. If it fails, `nexus` is told when it comes next.
    pub(super) fn flush_in_background(self: &Arc<Self>, nexus: Nexus) {
        if self.state.background_flushes.add(self, nexus, true) {
            let mut worker = Worker::new(&self.state, |state| &state.background_flushes);
            tokio::spawn(async move {
                while let Some(Waiting { core, nexuses, .. }) = worker.next() {
                    core.defer(&nexuses, core.flush().await);
                }
            });
        }
    }

    /// Stops the unit, which nobody waits for. If it fails, `nexus` is told when it comes next.
    pub(super) fn stop_in_background(self: &Arc<Self>, nexus: Nexus, flush: bool) {
        if !self.state.background_stops.add(self, nexus, flush) {
            return;
        }
        let mut worker = Worker::new(&self.state, |state| &state.background_stops);
        // Taken before the answer, so that a START STOP UNIT that follows it does not overtake this one.
        let stopping = Arc::clone(&self.state.stopping);
        let taken = Arc::clone(&stopping).try_lock_owned();
        tokio::spawn(async move {
            let _stopping: OwnedMutexGuard<()> = match taken {
                Ok(taken) => taken,
                Err(_) => stopping.lock_owned().await,
            };
            while let Some(Waiting { core, nexuses, flush }) = worker.next() {
                core.defer(&nexuses, core.stop_alone(flush, &Abort::never()).await);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proto::scsi::sense::Additional;
    use proto::scsi::{DeviceType, Parsed, Status};
    use tokio::sync::Semaphore;
    use tokio::task::yield_now;
    use volume::store::hooked::{Hooked, go_on};
    use volume::store::memory::Memory;
    use volume::{Error, Kind, Verb};

    use super::super::super::test_initiator::TestInitiator;
    use super::super::super::{Command, LogicalUnit as _};
    use super::super::tests::*;
    use super::super::{Disk, Options};
    use super::*;

    /// Counts the flushes of its volume, which end when they are let through, and fail.
    struct Flushes {
        begun: AtomicUsize,
        gate: Semaphore,
    }

    impl Flushes {
        async fn fail(self: Arc<Self>) -> volume::Result<()> {
            self.begun.fetch_add(1, Ordering::SeqCst);
            self.gate.acquire().await.expect("it is never closed").forget();
            Err(Error::new(Kind::Medium, Verb::Flush, None))
        }
    }

    async fn run(disk: &Disk, nexus: Nexus, cdb: &[u8]) -> super::super::super::Response {
        let command = Command {
            parsed: Parsed::of(&block(cdb), DeviceType::Disk),
            data: vec![],
            announced: 0,
        };
        disk.execute(nexus, command).await
    }

    /// Until the unit tells of something.
    async fn told(disk: &Disk, nexus: Nexus) -> (bool, Additional) {
        loop {
            let response = run(disk, nexus, &[0]).await;
            if response.status != Status::Good {
                let told = sense(&response);
                return (told.deferred, told.additional);
            }
            yield_now().await;
        }
    }

    async fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            yield_now().await;
        }
    }

    /// However often it is asked for.
    #[tokio::test]
    async fn one_background_flush_serves_all_that_asked_before_it_began() {
        const CACHE_IMMED: [u8; 10] = [0x35, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        const STOP_IMMED: [u8; 6] = [0x1B, 1, 0, 0, 0, 0];
        for cdb in [&CACHE_IMMED[..], &STOP_IMMED[..]] {
            let flushes = Arc::new(Flushes { begun: AtomicUsize::new(0), gate: Semaphore::new(0) });
            let of_disk = Arc::clone(&flushes);
            let slow = Hooked::new(Memory::new(SIZE, BLOCK), move |verb, _| match verb {
                Verb::Flush => Box::pin(Arc::clone(&of_disk).fail()),
                _ => go_on(),
            });
            let disk = disk(slow, Options::default());
            for (number, nexus) in [(1, ME), (2, OTHER)] {
                disk.attach(nexus, TestInitiator::new(number));
                told(&disk, nexus).await;
            }
            let begun = || flushes.begun.load(Ordering::SeqCst);
            good(run(&disk, ME, cdb).await);
            until(|| begun() == 1).await;
            for _ in 0..1000 {
                good(run(&disk, ME, cdb).await);
                good(run(&disk, OTHER, cdb).await);
                yield_now().await;
            }
            assert_eq!(begun(), 1, "the others wait");
            flushes.gate.add_permits(1);
            let failed = (true, Additional::WRITE_ERROR);
            assert_eq!(told(&disk, ME).await, failed);
            until(|| begun() == 2).await;
            flushes.gate.add_permits(1000);
            assert_eq!(told(&disk, ME).await, failed);
            assert_eq!(told(&disk, OTHER).await, failed);
            for _ in 0..100 {
                yield_now().await;
            }
            assert_eq!(begun(), 2, "one for all");
            // And it is asked for anew.
            good(run(&disk, ME, cdb).await);
            assert_eq!(told(&disk, ME).await, failed);
        }
    }
}
