//! A few threads for work that only needs a processor.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A piece of work.
pub type Job = Box<dyn FnOnce() + Send>;

/// How many jobs may wait per thread. More would only hold memory: whoever finds the queue full does
/// the work himself, which slows down exactly those who ask for too much.
const QUEUED_PER_THREAD: usize = 4;

/// Threads that take jobs from one bounded queue. They end when this is dropped.
pub struct ThreadPool {
    queue: SyncSender<Job>,
    threads: usize,
}

impl ThreadPool {
    /// One thread per processor but one, which is the caller's.
    #[must_use]
    pub fn per_processor_but_one(name: &str) -> Self {
        Self::new(name, thread::available_parallelism().map_or(1, NonZero::get) - 1)
    }

    /// Starts up to `threads` threads called `name`; fewer if the system gives no more.
    #[must_use]
    pub fn new(name: &str, threads: usize) -> Self {
        let (queue, jobs) = sync_channel(threads * QUEUED_PER_THREAD);
        let jobs = Arc::new(Mutex::new(jobs));
        let started = (0..threads).map_while(|_| {
            let jobs = Arc::clone(&jobs);
            thread::Builder::new().name(name.into()).spawn(move || work(&jobs)).ok()
        });
        Self { queue, threads: started.count() }
    }

    /// How many threads there are; with none, nothing can be submitted.
    #[must_use]
    pub const fn threads(&self) -> usize {
        self.threads
    }

    /// Queues `job`, or gives it back if the queue is full. It never waits.
    pub fn submit(&self, job: Job) -> Result<(), Job> {
        if self.threads == 0 {
            return Err(job);
        }
        self.queue.try_send(job).map_err(|refused| match refused {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    }
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    // The lock is held while waiting, so idle threads queue on it; it is free while a job runs.
    while let Ok(job) = {
        let jobs = jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.recv()
    } {
        // Whoever waits for the job is told by what it drops; the thread is there for the next one.
        drop(catch_unwind(AssertUnwindSafe(job)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn every_job_is_done_once_or_given_back() {
        let pool = ThreadPool::new("test", 2);
        let (done, count) = channel();
        for _ in 0..1000 {
            let done = done.clone();
            if let Err(job) = pool.submit(Box::new(move || done.send(()).unwrap())) {
                job();
            }
        }
        drop(done);
        assert_eq!(count.iter().count(), 1000);
    }

    #[test]
    fn a_full_queue_gives_the_job_back() {
        let pool = ThreadPool::new("test", 1);
        let (release, held) = channel::<()>();
        let (started, running) = channel();
        assert!(
            pool.submit(Box::new(move || {
                started.send(()).unwrap();
                held.recv().unwrap();
            }))
            .is_ok()
        );
        running.recv().unwrap();
        for _ in 0..QUEUED_PER_THREAD {
            assert!(pool.submit(Box::new(|| ())).is_ok());
        }
        assert!(pool.submit(Box::new(|| ())).is_err());
        release.send(()).unwrap();
    }

    #[test]
    fn job_that_panics_costs_no_thread() {
        let pool = ThreadPool::new("test", 1);
        let (done, count) = channel();
        assert!(pool.submit(Box::new(|| panic!("a mistake"))).is_ok());
        assert!(pool.submit(Box::new(move || done.send(()).unwrap())).is_ok());
        count.recv().unwrap();
    }

    #[test]
    fn without_threads_everything_is_given_back() {
        assert!(ThreadPool::new("test", 0).submit(Box::new(|| ())).is_err());
    }
}
