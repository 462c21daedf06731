//! Requests handed to the system, which says when they are done (io_uring): nobody waits meanwhile.
//!
//! Whatever a request needs, its file and its memory, is in a table until the system has completed it, whether
//! or not anybody still wants the answer: so the system never writes to memory that is somebody else's.

use std::collections::VecDeque;
use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::file::{File, Sync};
use crate::request::{Progress, Request};
use crate::syncs::UnderWay;

/// Entries of the submission queue. Each is submitted at once, so that few are needed.
const SUBMISSIONS: u32 = 64;

/// Requests under way at most: the system has room for so many answers.
const UNDER_WAY_MAX: usize = 1024;

/// The largest request of which the system may do at once what need not wait for a device: some 100
/// microseconds of copying. Larger ones go to a thread of the system from the start.
const AT_ONCE_MAX: u64 = 1 << 20;

/// The most that one call moves.
const CALL_MAX: usize = 1 << 30;

/// IORING_ENTER_GETEVENTS, include/uapi/linux/io_uring.h.
const ENTER_GETEVENTS: u32 = 1;

/// After this time the system is asked again to take what it could not take.
pub const STALL: Duration = Duration::from_millis(1);

/// Is told how a request ended.
pub type Done = Box<dyn FnOnce(Result<Bytes>) + Send>;

/// A queue of requests and one of answers, shared with the system. It is readable, as files are, when there are
/// answers to [`reap`](Self::reap).
pub struct Ring {
    ring: IoUring,
    /// Its lock is also that of both queues.
    table: Mutex<Table>,
    /// What the system is to answer instead of taking anything.
    #[cfg(test)]
    refusals: Mutex<VecDeque<Errno>>,
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
    /// Those that the system has not taken yet, the oldest first ...
    queue: VecDeque<usize>,
    /// ... of which so many are in the submission queue.
    filled: usize,
    /// The system takes none any more.
    broken: bool,
    /// Those that it has not taken for that reason, to be told.
    refused: Vec<(Done, Error)>,
    /// What they needed. The system may look at it as long as the ring is there.
    kept: Vec<(Arc<File>, Progress)>,
}

struct Entry {
    file: Arc<File>,
    progress: Progress,
    /// It could not be done at once.
    patient: bool,
    done: Done,
    /// It is a sync, and under way until this is dropped.
    _sync: Option<UnderWay>,
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
        Ok(Self {
            ring,
            table: Mutex::default(),
            #[cfg(test)]
            refusals: Mutex::default(),
        })
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

    /// Hands over a request; says whether the system has taken it already. `done` is called by
    /// [`reap`](Self::reap). Both come back if too many are under way, or the system takes none any more.
    pub fn submit(
        &self,
        file: &Arc<File>,
        request: Request,
        done: Done,
    ) -> std::result::Result<bool, (Request, Done)> {
        let mut table = self.table();
        if table.broken || table.under_way() == UNDER_WAY_MAX {
            return Err((request, done));
        }
        let _sync = request.syncs().then(|| file.syncs.begin());
        let progress = Progress::new(request, file.is_direct());
        let entry = Entry { file: Arc::clone(file), progress, patient: false, done, _sync };
        let number = table.insert(entry);
        table.queue.push_back(number);
        self.hand_over(&mut table);
        Ok(table.queue.is_empty() && table.refused.is_empty())
    }

    /// Whether requests wait that the system could not take just now. Whoever watches the ring calls
    /// [`reap`](Self::reap) a little later, which tries again.
    pub fn is_stalled(&self) -> bool {
        let table = self.table();
        !(table.queue.is_empty() && table.refused.is_empty())
    }

    /// Hands over what is queued, as far as the system takes it now: it may be short of memory, or want its
    /// answers to be taken first. If it will never take anything again, what is queued has failed.
    fn hand_over(&self, table: &mut Table) {
        while !table.broken && !table.queue.is_empty() {
            self.fill(table);
            match self.enter() {
                Ok(0) => return,
                Ok(taken) => {
                    table.queue.drain(..taken.min(table.queue.len()));
                    table.filled = table.filled.saturating_sub(taken);
                }
                Err(why) => match Errno::from_io_error(&why) {
                    Some(Errno::INTR) => {}
                    Some(Errno::AGAIN | Errno::BUSY) => return,
                    _ => table.give_up(&why),
                },
            }
        }
    }

    /// Puts what is queued into the submission queue, as far as there is room.
    fn fill(&self, table: &mut Table) {
        // SAFETY: whoever uses the queue holds the lock of the table, as the caller shows.
        let mut submissions = unsafe { self.ring.submission_shared() };
        while let Some(&number) = table.queue.get(table.filled) {
            let Some(Some(entry)) = table.slots.get_mut(number) else { return };
            let wanted = entry.call().user_data(number as u64);
            // SAFETY: the file and the memory that the call speaks of belong to the entry, which stays in the
            // table until the call is completed, or, if the system never takes it, as long as the ring; the
            // memory is on the heap and does not move with the entry.
            if unsafe { submissions.push(&wanted) }.is_err() {
                return;
            }
            table.filled += 1;
        }
    }

    /// Has the system take what is in the submission queue; how many it took.
    fn enter(&self) -> Result<usize> {
        #[cfg(test)]
        if let Some(refusal) = self.refusals.lock().unwrap().pop_front() {
            return Err(refusal.into());
        }
        self.ring.submit()
    }

    /// Takes the answers that there are, tells whom they are for, and hands over what has waited.
    pub fn reap(&self) {
        loop {
            while let Some((done, outcome)) = self.next() {
                done(outcome);
            }
            let mut table = self.table();
            self.hand_over(&mut table);
            let refused = mem::take(&mut table.refused);
            drop(table);
            if refused.is_empty() {
                return;
            }
            refused.into_iter().for_each(|(done, why)| done(Err(why)));
        }
    }

    /// The next request that has ended.
    fn next(&self) -> Option<(Done, Result<Bytes>)> {
        let mut table = self.table();
        loop {
            // SAFETY: whoever uses the queue holds the lock of the table.
            let answer: cqueue::Entry = unsafe { self.ring.completion_shared() }.next()?;
            let number = answer.user_data() as usize;
            let Some(Some(entry)) = table.slots.get_mut(number) else { continue };
            match entry.take(answer.result()) {
                Ok(false) => table.queue.push_back(number),
                Ok(true) => {
                    return table.remove(number).map(|e| (e.done, Ok(e.progress.into_read())));
                }
                Err(why) => return table.remove(number).map(|entry| entry.fail(why)),
            }
        }
    }
}

/// Waits for the system to be done with memory that is about to be freed.
impl Drop for Ring {
    fn drop(&mut self) {
        loop {
            self.reap();
            let table = self.table();
            let (taken, stalled) = (table.taken(), !table.queue.is_empty());
            drop(table);
            if taken == 0 && !stalled {
                return;
            }
            if taken == 0 {
                std::thread::sleep(STALL);
            } else if let Err(why) = self.wait_for_answer() {
                match Errno::from_io_error(&why) {
                    Some(Errno::INTR) => {}
                    Some(Errno::AGAIN | Errno::BUSY) => std::thread::sleep(STALL),
                    // It cannot be known when the memory is free, so it never is.
                    _ => return mem::forget(mem::take(&mut *self.table())),
                }
            }
        }
    }
}

impl Ring {
    /// Waits for an answer to what the system has taken; hands over nothing.
    fn wait_for_answer(&self) -> Result<usize> {
        // SAFETY: nothing is submitted and no argument given, so no memory is concerned.
        unsafe { self.ring.submitter().enter::<()>(0, 1, ENTER_GETEVENTS, None) }
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

    /// How many the system has taken and not answered.
    fn taken(&self) -> usize {
        self.under_way() - self.queue.len()
    }

    /// Nothing is handed over any more; what is queued has failed.
    fn give_up(&mut self, why: &Error) {
        self.broken = true;
        self.filled = 0;
        for number in mem::take(&mut self.queue) {
            let Some(Entry { file, progress, done, .. }) = self.remove(number) else { continue };
            file.note(&progress.request, why);
            self.refused.push((done, Error::new(why.kind(), why.to_string())));
            self.kept.push((file, progress));
        }
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
    /// It has failed, whether or not anybody waits for it.
    fn fail(self, why: Error) -> (Done, Result<Bytes>) {
        self.file.note(&self.progress.request, &why);
        (self.done, Err(why))
    }

    /// The call for what is left.
    fn call(&mut self) -> squeue::Entry {
        let fd = Fd(self.file.raw());
        let (filled, written) = (self.progress.filled(), self.progress.written);
        let len = self.progress.request.len();
        let mut waits = self.patient || len > AT_ONCE_MAX;
        let call = match &self.progress.request {
            Request::Read { at, len } => {
                let (from, left) = (*at + filled as u64, *len - filled);
                let spare = &mut self.progress.spare()[..left.min(CALL_MAX)];
                opcode::Read::new(fd, spare.as_mut_ptr().cast(), spare.len() as u32)
                    .offset(from)
                    .build()
            }
            Request::Write { at, data, sync } => {
                let rest = &data[written..];
                let flags = if *sync == Sync::Now { libc::RWF_DSYNC } else { 0 };
                // What has to be stable waits for the device, even where the copy does not.
                waits |= *sync == Sync::Now;
                opcode::Write::new(fd, rest.as_ptr(), rest.len().min(CALL_MAX) as u32)
                    .offset(*at + written as u64)
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
            Request::WriteBack => {
                opcode::SyncFileRange::new(fd, 0).flags(libc::SYNC_FILE_RANGE_WRITE).build()
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

    fn ask(ring: &Ring, file: &Arc<File>, request: Request) -> Receiver<Result<Bytes>> {
        let (sender, receiver) = channel();
        let done: Done = Box::new(move |outcome| drop(sender.send(outcome)));
        assert!(ring.submit(file, request, done).is_ok());
        receiver
    }

    fn answer(ring: &Ring, asked: &Receiver<Result<Bytes>>) -> Result<Bytes> {
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
        assert_eq!(run(Request::Read { at: 8192, len: 4096 }).unwrap(), [7; 4096][..]);
        run(Request::Punch { at: 4096, len: 4096 }).unwrap();
        assert_eq!(file.read(4096, 4096).unwrap(), [0; 4096]);
        run(Request::Allocate { at: 0, len: 4096 }).unwrap();
        assert!(run(Request::WriteBack).unwrap().is_empty());
        match run(Request::Zero { at: 8192, len: 4096 }) {
            Ok(_) => assert_eq!(file.read(8192, 4096).unwrap(), [0; 4096]),
            Err(why) => assert_eq!(why.kind(), ErrorKind::Unsupported, "{why}"),
        }
        assert_eq!(run(Request::Read { at: 12_000, len: 4096 }).unwrap().len(), 288, "the end");
    }

    #[test]
    fn direct_requests_of_unaligned_memory_move_the_same_bytes() {
        let Some(ring) = ring() else { return };
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("file");
        File::open(&path, Access::Create).unwrap().set_len(1 << 20).unwrap();
        let file = Arc::new(File::open(&path, Access::Write).unwrap().uncached().unwrap());
        let data: Vec<u8> = (0..200_001).map(|n: u32| (n % 251) as u8).collect();
        for (from, len) in [(0, 4096), (1, 4096), (512, 8192), (1, 196_608)] {
            let data = Bytes::copy_from_slice(&data).slice(from..from + len);
            for sync in [Sync::Later, Sync::Now] {
                let wanted = Request::Write { at: 4096, data: data.clone(), sync };
                answer(&ring, &ask(&ring, &file, wanted.clone())).unwrap();
                file.perform(&wanted).unwrap();
            }
            let read = Request::Read { at: 4096, len };
            assert_eq!(answer(&ring, &ask(&ring, &file, read.clone())).unwrap(), data);
            assert_eq!(file.perform(&read).unwrap(), data);
        }
        let end = Request::Read { at: (1 << 20) - 4096, len: 8192 };
        assert_eq!(answer(&ring, &ask(&ring, &file, end.clone())).unwrap().len(), 4096);
        assert_eq!(file.perform(&end).unwrap().len(), 4096);
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
    fn abandoned_request_is_carried_out_before_the_ring_is_gone() {
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

    fn refuse(ring: &Ring, times: usize, errno: Errno) {
        ring.refusals.lock().unwrap().extend(std::iter::repeat_n(errno, times));
    }

    #[test]
    fn requests_refused_for_a_moment_are_handed_over_later() {
        for errno in [Errno::AGAIN, Errno::BUSY] {
            let Some(ring) = ring() else { return };
            let (_dir, file) = scratch();
            // More than the submission queue has room for.
            let many = 3 * SUBMISSIONS as u64;
            refuse(&ring, many as usize, errno);
            let asked: Vec<_> = (0..many)
                .map(|at| ask(&ring, &file, write(at * 4, b"late", Sync::Later)))
                .collect();
            assert!(ring.is_stalled());
            assert_eq!(file.len().unwrap(), 0);
            for one in &asked {
                answer(&ring, one).unwrap();
            }
            assert!(!ring.is_stalled());
            assert_eq!(file.read(0, 4 * many as usize).unwrap(), b"late".repeat(many as usize));
        }
    }

    #[test]
    fn a_ring_that_is_dropped_while_it_is_refused_carries_everything_out() {
        let Some(ring) = ring() else { return };
        let (_dir, file) = scratch();
        refuse(&ring, 100, Errno::AGAIN);
        for at in 0..80 {
            drop(ask(&ring, &file, write(at * 4, b"last", Sync::Later)));
        }
        drop(ring);
        assert_eq!(file.read(0, 320).unwrap(), b"last".repeat(80));
    }

    #[test]
    fn requests_that_are_never_taken_fail_and_a_drop_does_not_wait_for_them() {
        let Some(ring) = ring() else { return };
        let (_dir, file) = scratch();
        refuse(&ring, 2, Errno::AGAIN);
        let before: Vec<_> =
            (0..2).map(|at| ask(&ring, &file, write(at, b"x", Sync::Now))).collect();
        refuse(&ring, 1, Errno::BADFD);
        let last = ask(&ring, &file, Request::Sync);
        ring.reap();
        for one in before.iter().chain([&last]) {
            let failed = one.try_recv().unwrap().unwrap_err();
            assert!(failed.to_string().contains("bad state"), "{failed}");
        }
        assert!(ring.submit(&file, Request::Sync, Box::new(|_| ())).is_err());
        assert!(file.still_whole().is_err(), "a flush that was never tried has not succeeded");
        drop(ring);
        assert_eq!(file.len().unwrap(), 0);
    }

    #[test]
    fn a_failed_sync_is_kept_though_nobody_waits_for_it() {
        let Some(ring) = ring() else { return };
        let (dir, _) = scratch();
        let reading = Arc::new(File::open(&dir.path().join("file"), Access::Read).unwrap());
        drop(ask(&ring, &reading, write(0, b"no", Sync::Now)));
        drop(ring);
        let failed = reading.still_whole().unwrap_err().to_string();
        assert!(failed.starts_with("an earlier durable write of 2 bytes at 0 failed"), "{failed}");
    }
}
