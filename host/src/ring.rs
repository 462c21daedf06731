//! Requests handed to the system, which says when they are done (io_uring): nobody waits meanwhile.
//!
//! Whatever a request needs, its file and its memory, is in a table until the system has completed it, whether
//! or not anybody still wants the answer: so the system never writes to memory that is somebody else's.

use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::file::{File, Sync};
use crate::request::{Progress, Request};

/// Entries of the submission queue. Each is submitted at once, so that few are needed.
const SUBMISSIONS: u32 = 64;

/// Requests under way at most: the system has room for so many answers.
const UNDER_WAY_MAX: usize = 1024;

/// The largest request of which the system may do at once what need not wait for a device: some 100
/// microseconds of copying. Larger ones go to a thread of the system from the start.
const AT_ONCE_MAX: u64 = 1 << 20;

/// The most that one call moves.
const CALL_MAX: usize = 1 << 30;

/// Is told how a request ended.
pub type Done = Box<dyn FnOnce(Result<Vec<u8>>) + Send>;

/// A queue of requests and one of answers, shared with the system. It is readable, as files are, when there are
/// answers to [`reap`](Self::reap).
pub struct Ring {
    ring: IoUring,
    /// Its lock is also that of both queues.
    table: Mutex<Table>,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("ring", &self.ring.as_raw_fd()).finish_non_exhaustive()
    }
}

/// The requests under way, by the number the system knows them by.
#[derive(Default)]
struct Table {
    slots: Vec<Option<Entry>>,
    free: Vec<usize>,
}

struct Entry {
    file: Arc<File>,
    progress: Progress,
    /// It could not be done at once.
    patient: bool,
    done: Done,
}

impl Ring {
    /// A new ring; an error where the system has none, does not allow it, or cannot do all that is needed.
    pub fn new() -> Result<Self> {
        let ring = IoUring::builder().setup_cqsize(UNDER_WAY_MAX as u32).build(SUBMISSIONS)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed =
            [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE, opcode::Fallocate::CODE];
        // Without this the system forgets answers for which there is no room.
        if !ring.params().is_feature_nodrop()
            || !needed.iter().all(|code| probe.is_supported(*code))
        {
            return Err(ErrorKind::Unsupported.into());
        }
        Ok(Self { ring, table: Mutex::default() })
    }

    /// The ring as something that a task can wait for, of the runtime this is called on.
    pub fn watch(self: Arc<Self>) -> Result<AsyncFd<Arc<Self>>> {
        // SAFETY: the descriptor is open as long as the ring is there, which the result keeps, and is always the
        // same.
        Ok(unsafe { AsyncFd::register_with_interest(self, Interest::READABLE) }?)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over a request. `done` is called by [`reap`](Self::reap). Both come back if too many are under way.
    pub fn submit(
        &self,
        file: &Arc<File>,
        request: Request,
        done: Done,
    ) -> std::result::Result<(), (Request, Done)> {
        let mut table = self.table();
        if table.under_way() == UNDER_WAY_MAX {
            return Err((request, done));
        }
        let progress = Progress::new(request);
        let entry = Entry { file: Arc::clone(file), progress, patient: false, done };
        let number = table.insert(entry);
        self.push(&mut table, number);
        Ok(())
    }

    /// Hands over what is left of request `number`.
    fn push(&self, table: &mut Table, number: usize) {
        let Some(Some(entry)) = table.slots.get_mut(number) else { return };
        let wanted = entry.call().user_data(number as u64);
        // SAFETY: whoever uses the queue holds the lock of the table, as the caller shows.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: the file and the memory that the call speaks of belong to the entry, which stays in the table
        // until the call is completed; the memory is on the heap and does not move with the entry.
        let pushed = unsafe { queue.push(&wanted) };
        debug_assert!(pushed.is_ok(), "every call was submitted before the next was pushed");
        drop(queue);
        // The system refuses for a moment when it is short of memory.
        while let Err(why) = self.ring.submit() {
            match Errno::from_io_error(&why) {
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => std::thread::yield_now(),
                // The next one takes it along.
                _ => break,
            }
        }
    }

    /// Takes the answers that there are, and tells whom they are for.
    pub fn reap(&self) {
        while let Some((done, outcome)) = self.next() {
            done(outcome);
        }
    }

    /// The next request that has ended.
    fn next(&self) -> Option<(Done, Result<Vec<u8>>)> {
        let mut table = self.table();
        loop {
            // SAFETY: whoever uses the queue holds the lock of the table.
            let answer: cqueue::Entry = unsafe { self.ring.completion_shared() }.next()?;
            let number = answer.user_data() as usize;
            let Some(Some(entry)) = table.slots.get_mut(number) else { continue };
            match entry.take(answer.result()) {
                Ok(false) => self.push(&mut table, number),
                Ok(true) => return table.remove(number).map(|e| (e.done, Ok(e.progress.read))),
                Err(why) => return table.remove(number).map(|e| (e.done, Err(why))),
            }
        }
    }
}

/// Waits for the system to be done with memory that is about to be freed.
impl Drop for Ring {
    fn drop(&mut self) {
        while self.table().under_way() > 0 {
            match self.ring.submit_and_wait(1) {
                Err(why) if why.kind() != ErrorKind::Interrupted => {
                    // It cannot be known when the memory is free, so it never is.
                    mem::forget(mem::take(&mut *self.table()));
                }
                _ => self.reap(),
            }
        }
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

impl Table {
    const fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn insert(&mut self, entry: Entry) -> usize {
        match self.free.pop() {
            Some(number) => {
                self.slots[number] = Some(entry);
                number
            }
            None => {
                self.slots.push(Some(entry));
                self.slots.len() - 1
            }
        }
    }

    fn remove(&mut self, number: usize) -> Option<Entry> {
        let entry = self.slots.get_mut(number)?.take()?;
        self.free.push(number);
        Some(entry)
    }
}

impl Entry {
    /// The call for what is left.
    fn call(&mut self) -> squeue::Entry {
        let fd = Fd(self.file.raw());
        let Progress { request, read, written } = &mut self.progress;
        let len = request.len();
        let mut waits = self.patient || len > AT_ONCE_MAX;
        let call = match request {
            Request::Read { at, len } => {
                let (from, left) = (*at + read.len() as u64, *len - read.len());
                let spare = &mut read.spare_capacity_mut()[..left.min(CALL_MAX)];
                opcode::Read::new(fd, spare.as_mut_ptr().cast(), spare.len() as u32)
                    .offset(from)
                    .build()
            }
            Request::Write { at, data, sync } => {
                let rest = &data[*written..];
                let flags = if *sync == Sync::Now { libc::RWF_DSYNC } else { 0 };
                // What has to be stable waits for the device, even where the copy does not.
                waits |= *sync == Sync::Now;
                opcode::Write::new(fd, rest.as_ptr(), rest.len().min(CALL_MAX) as u32)
                    .offset(*at + *written as u64)
                    .rw_flags(flags)
                    .build()
            }
            Request::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Request::Punch { at, len } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, *len).offset(*at).mode(mode).build()
            }
            Request::Zero { at, len } => {
                let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, *len).offset(*at).mode(mode).build()
            }
            Request::Allocate { at, len } => {
                opcode::Fallocate::new(fd, *len).offset(*at).mode(libc::FALLOC_FL_KEEP_SIZE).build()
            }
        };
        if waits { call.flags(squeue::Flags::ASYNC) } else { call }
    }

    /// A call ended with `result`: whether that was the last.
    fn take(&mut self, result: i32) -> Result<bool> {
        match usize::try_from(result) {
            Ok(moved) => self.progress.advance(moved),
            Err(_) => match result.saturating_neg() {
                // It could not be done now, or the thread that handed it over has ended meanwhile.
                libc::EAGAIN | libc::EINTR | libc::ECANCELED => {
                    self.patient = true;
                    Ok(false)
                }
                errno => Err(Error::from_raw_os_error(errno)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use bytes::Bytes;

    use super::*;
    use crate::file::Access;

    /// A ring, where there is one: sandboxes may forbid it.
    fn ring() -> Option<Ring> {
        Ring::new().inspect_err(|why| eprintln!("no ring here: {why}")).ok()
    }

    fn scratch() -> (tempfile::TempDir, Arc<File>) {
        // Not on a file system in memory, where nothing ever waits.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = File::open(&dir.path().join("file"), Access::Create).unwrap();
        (dir, Arc::new(file))
    }

    fn ask(ring: &Ring, file: &Arc<File>, request: Request) -> Receiver<Result<Vec<u8>>> {
        let (sender, receiver) = channel();
        let done: Done = Box::new(move |outcome| drop(sender.send(outcome)));
        assert!(ring.submit(file, request, done).is_ok());
        receiver
    }

    fn answer(ring: &Ring, asked: &Receiver<Result<Vec<u8>>>) -> Result<Vec<u8>> {
        loop {
            ring.reap();
            match asked.try_recv() {
                Ok(outcome) => return outcome,
                Err(_) => drop(ring.ring.submit_and_wait(1).unwrap()),
            }
        }
    }

    fn write(at: u64, data: &'static [u8], sync: Sync) -> Request {
        Request::Write { at, data: Bytes::from_static(data), sync }
    }

    #[test]
    fn every_request_does_what_its_call_does() {
        let Some(ring) = ring() else { return };
        let (_dir, file) = scratch();
        let run = |request| answer(&ring, &ask(&ring, &file, request));
        for (at, sync) in [(4096, Sync::Later), (8192, Sync::Now)] {
            assert!(run(write(at, &[7; 4096], sync)).unwrap().is_empty());
        }
        assert!(run(Request::Sync).unwrap().is_empty());
        assert_eq!(run(Request::Read { at: 8192, len: 4096 }).unwrap(), [7; 4096]);
        run(Request::Punch { at: 4096, len: 4096 }).unwrap();
        assert_eq!(file.read(4096, 4096).unwrap(), [0; 4096]);
        run(Request::Allocate { at: 0, len: 4096 }).unwrap();
        match run(Request::Zero { at: 8192, len: 4096 }) {
            Ok(_) => assert_eq!(file.read(8192, 4096).unwrap(), [0; 4096]),
            Err(why) => assert_eq!(why.kind(), ErrorKind::Unsupported, "{why}"),
        }
        assert_eq!(run(Request::Read { at: 12_000, len: 4096 }).unwrap().len(), 288, "the end");
    }

    #[test]
    fn an_error_is_the_systems() {
        let Some(ring) = ring() else { return };
        let (dir, _) = scratch();
        let reading = Arc::new(File::open(&dir.path().join("file"), Access::Read).unwrap());
        let refused = answer(&ring, &ask(&ring, &reading, write(0, b"no", Sync::Later)));
        assert_eq!(Errno::from_io_error(&refused.unwrap_err()), Some(Errno::BADF));
    }

    #[test]
    fn what_nobody_waits_for_is_done_before_the_ring_is_gone() {
        let Some(ring) = ring() else { return };
        let (_dir, file) = scratch();
        for at in 0..64 {
            drop(ask(&ring, &file, write(at * 4096, &[9; 4096], Sync::Later)));
        }
        drop(ring);
        assert_eq!(file.len().unwrap(), 64 * 4096);
        assert!(file.read(0, 64 * 4096).unwrap().iter().all(|byte| *byte == 9));
    }

    #[test]
    fn a_thread_that_ends_takes_nothing_with_it() {
        let Some(ring) = ring().map(Arc::new) else { return };
        let (_dir, file) = scratch();
        let handed = std::thread::spawn({
            let (ring, file) = (Arc::clone(&ring), Arc::clone(&file));
            move || {
                (0..64).map(|at| ask(&ring, &file, write(at * 8, b"complete", Sync::Now))).collect()
            }
        });
        let asked: Vec<_> = handed.join().unwrap();
        for one in asked {
            answer(&ring, &one).unwrap();
        }
        assert_eq!(file.read(63 * 8, 8).unwrap(), b"complete");
    }

    #[test]
    fn more_than_the_system_has_room_for_comes_back() {
        let Some(ring) = ring() else { return };
        let (_dir, file) = scratch();
        let asked: Vec<_> =
            (0..UNDER_WAY_MAX).map(|_| ask(&ring, &file, write(0, b"x", Sync::Later))).collect();
        let beyond = ring.submit(&file, Request::Sync, Box::new(|_| ()));
        assert!(matches!(beyond, Err((Request::Sync, _))));
        for one in asked {
            answer(&ring, &one).unwrap();
        }
        assert!(ring.submit(&file, Request::Sync, Box::new(|_| ())).is_ok());
    }
}
