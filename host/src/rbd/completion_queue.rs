//! The way from threads that are not the runtime's to its tasks: through its I/O driver.
//!
//! A thread that wakes a task itself has the runtime look for a worker, and that one for a second, which finds nothing to do.
//! The driver wakes one worker, and once for all that has been completed meanwhile.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What has been completed, and not been taken by the task that hands it out.
pub(super) struct CompletionQueue<T> {
    /// `None` where there is no such task.
    entries: Mutex<Option<Vec<T>>>,
    event: OwnedFd,
}

impl<T> CompletionQueue<T> {
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { entries: Mutex::default(), event })
    }

    /// Adds an entry; it comes back where no task takes it.
    pub(super) fn push(&self, entry: T) -> Result<(), T> {
        let mut entries = self.lock();
        let Some(waiting) = entries.as_mut() else { return Err(entry) };
        waiting.push(entry);
        let is_first = waiting.len() == 1;
        drop(entries);
        // For those that follow the task is awake.
        if is_first {
            // It fails only where the sum of all that was written exceeds 64 bits.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
        Ok(())
    }

    /// Hands out what is pushed, until it is dropped: what was pushed before that is handed out too.
    pub(super) async fn run(&self, hand_out: impl Fn(T)) -> io::Result<()> {
        // SAFETY: the descriptor is open, and the same, as long as the queue is there, which outlives the future.
        let event =
            unsafe { AsyncFd::register_with_interest(self.event.as_fd(), Interest::READABLE) }?;
        let running = Running::begin(self, hand_out);
        loop {
            // Cleared before the look, so that what comes after it is not missed. The driver tells of each write, also where
            // the one before was not read (epoll(7), edge-triggered).
            event.readable().await?.clear_ready();
            running.hand_out_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<T>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// There is a task that hands out entries.
struct Running<'a, T, F: Fn(T)> {
    queue: &'a CompletionQueue<T>,
    hand_out: F,
}

impl<'a, T, F: Fn(T)> Running<'a, T, F> {
    fn begin(queue: &'a CompletionQueue<T>, hand_out: F) -> Self {
        queue.lock().get_or_insert_default();
        Self { queue, hand_out }
    }

    fn hand_out_all(&self) {
        let entries = self.queue.lock().as_mut().map(std::mem::take);
        entries.into_iter().flatten().for_each(&self.hand_out);
    }
}

impl<T, F: Fn(T)> Drop for Running<'_, T, F> {
    fn drop(&mut self) {
        let entries = self.queue.lock().take();
        entries.into_iter().flatten().for_each(&self.hand_out);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc;

    use super::*;

    type Queue = Arc<CompletionQueue<u32>>;

    /// A queue, the task that hands out its entries, and what it hands out.
    async fn running()
    -> (Queue, tokio::task::JoinHandle<io::Result<()>>, mpsc::UnboundedReceiver<u32>) {
        let queue = Queue::new(CompletionQueue::new().unwrap());
        let (sender, receiver) = mpsc::unbounded_channel();
        let own = Arc::clone(&queue);
        let task = tokio::spawn(async move { own.run(move |it| sender.send(it).unwrap()).await });
        while queue.lock().is_none() {
            tokio::task::yield_now().await;
        }
        (queue, task, receiver)
    }

    #[tokio::test]
    async fn all_that_threads_push_is_handed_out() {
        let (queue, _task, mut received) = running().await;
        let threads = (0..4).map(|thread| {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || {
                (0..5000).for_each(|it| queue.push(thread * 5000 + it).unwrap())
            })
        });
        let threads: Vec<_> = threads.collect();
        let mut all = Vec::new();
        while all.len() < 20_000 {
            all.push(received.recv().await.unwrap());
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        all.sort_unstable();
        assert!(all.into_iter().eq(0..20_000));
    }

    #[tokio::test]
    async fn an_aborted_task_leaves_nothing_behind() {
        let (queue, task, mut received) = running().await;
        queue.push(1).unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(received.recv().await, Some(1));
        assert_eq!(queue.push(2), Err(2), "whoever pushes hands it out");
        assert_eq!(received.recv().await, None);
    }
}
