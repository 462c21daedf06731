//! The requests of a device. They are taken, and their answers given, by one thread: the kernel knows the queue by it.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::mem;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, pread, pwrite, read, retry_on_intr, write};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{DEPTH, Descriptor, IO_MAX, Request, command};

// The numbers of commands, and the length of `struct ublksrv_io_cmd`.
const FETCH_REQ: u32 = 0x20;
const COMMIT_AND_FETCH_REQ: u32 = 0x21;
const COMMAND_LEN: usize = 16;

/// Where the data of requests begin in the character device, and the bits of a request's number (UBLKSRV_IO_BUF_OFFSET and
/// UBLK_TAG_OFF).
const DATA_AT: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;

/// What the ring is told of the event that answers wait; the others are tags.
const EVENT: u64 = u64::MAX;

/// Bytes of descriptors, which is a multiple of a page.
const DESCRIPTORS_LEN: usize = (DEPTH as usize * size_of::<Descriptor>()).next_multiple_of(4096);

/// The thread that takes the requests of a device.
pub struct Queue {
    answers: Arc<Answers>,
    thread: JoinHandle<()>,
}

/// Where requests are answered, from any thread.
pub struct Answers {
    device: File,
    event: OwnedFd,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Tags, and how their requests ended.
    answers: Vec<(u16, i32)>,
    /// The thread is to end.
    ends: bool,
}

/// Who is told of requests.
pub trait Handler: Send + 'static {
    /// A request, which has to be answered. It must not wait.
    fn request(&mut self, request: Request);
    /// The device has ended; or the queue has failed, and nothing is taken any more.
    fn ended(&mut self, how: Result<()>);
}

impl Queue {
    /// Opens that of the device with this number; requests come once the device is started.
    pub fn open<H: Handler>(number: u32, handler: impl FnOnce(Arc<Answers>) -> H) -> Result<Self> {
        let device =
            OpenOptions::new().read(true).write(true).open(format!("/dev/ublkc{number}"))?;
        let descriptors = Descriptors::map(&device)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let answers = Arc::new(Answers { device, event, waiting: Mutex::default() });
        let (says, said) = channel();
        let mut taker = Taker {
            answers: Arc::clone(&answers),
            descriptors,
            handler: handler(Arc::clone(&answers)),
            open: DEPTH.into(),
        };
        let thread = thread::Builder::new().name("ublk".to_owned());
        let thread = thread.spawn(move || taker.run(&says))?;
        match said.recv() {
            Ok(Ok(())) => Ok(Self { answers, thread }),
            Ok(Err(why)) => Err(why),
            Err(_) => Err(Error::other("the thread that takes requests has ended")),
        }
    }

    /// Ends it. The device, if it has not ended, has its requests wait for another queue.
    pub fn close(self) {
        self.answers.lock().ends = true;
        self.answers.wake();
        // Its end is all that is wanted.
        let _ = self.thread.join();
    }
}

impl Answers {
    /// Answers a request: with how many bytes were moved, or the number of an error below zero.
    pub fn answer(&self, tag: u16, result: i32) {
        let mut waiting = self.lock();
        waiting.answers.push((tag, result));
        let is_first = waiting.answers.len() == 1;
        drop(waiting);
        // For those that follow it is awake.
        if is_first {
            self.wake();
        }
    }

    /// The data of a write.
    pub fn data(&self, request: &Request) -> Result<Vec<u8>> {
        let mut data = vec![0; length(request)?];
        let mut filled = 0;
        while filled < data.len() {
            let at = place(request, filled);
            match retry_on_intr(|| pread(&self.device, &mut data[filled..], at))? {
                0 => return Err(Error::from(std::io::ErrorKind::UnexpectedEof)),
                more => filled += more,
            }
        }
        Ok(data)
    }

    /// Gives a read its data, which are as many as were asked for.
    pub fn fill(&self, request: &Request, data: &[u8]) -> Result<()> {
        let mut filled = 0;
        while filled < data.len() {
            let at = place(request, filled);
            match retry_on_intr(|| pwrite(&self.device, &data[filled..], at))? {
                0 => return Err(Error::from(std::io::ErrorKind::WriteZero)),
                more => filled += more,
            }
        }
        Ok(())
    }

    fn wake(&self) {
        // It fails only where the event is there already, 2^64 times.
        let _ = write(&self.event, &1_u64.to_ne_bytes());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// No request has more than the device was made for.
fn length(request: &Request) -> Result<usize> {
    let len = usize::try_from(request.len).ok().filter(|len| *len <= IO_MAX as usize);
    len.ok_or_else(|| Error::from(std::io::ErrorKind::InvalidInput))
}

fn place(request: &Request, filled: usize) -> u64 {
    DATA_AT + (u64::from(request.tag) << TAG_SHIFT) + filled as u64
}

/// What the thread has.
struct Taker<H> {
    answers: Arc<Answers>,
    descriptors: Descriptors,
    handler: H,
    /// Tags by which requests may still come.
    open: usize,
}

/// What comes next.
enum Next {
    Event,
    Request(u16, i32),
}

impl<H: Handler> Taker<H> {
    /// Takes requests until the device ends, or the thread is to end; first says whether it does.
    fn run(&mut self, says: &Sender<Result<()>>) {
        let mut ring = match self.fetch_all() {
            Ok(ring) => ring,
            Err(why) => return drop(says.send(Err(why))),
        };
        let _ = says.send(Ok(()));
        match self.take_all(&mut ring) {
            Ok(true) => self.handler.ended(Ok(())),
            Ok(false) => {}
            Err(why) => self.handler.ended(Err(why)),
        }
    }

    /// A ring that waits for a request by every tag. It is of this thread.
    fn fetch_all(&self) -> Result<IoUring> {
        let mut ring = IoUring::new(u32::from(DEPTH) * 2)?;
        self.watch(&mut ring)?;
        for tag in 0..DEPTH {
            self.push(&mut ring, &self.call(FETCH_REQ, tag, 0))?;
        }
        ring.submit()?;
        Ok(ring)
    }

    /// Whether it was the device that ended.
    fn take_all(&mut self, ring: &mut IoUring) -> Result<bool> {
        loop {
            match ring.submit_and_wait(1) {
                Err(why) if Errno::from_io_error(&why) != Some(Errno::INTR) => return Err(why),
                _ => {}
            }
            let next: Vec<_> = ring
                .completion()
                .map(|answer| match answer.user_data() {
                    EVENT => Next::Event,
                    tag => Next::Request(tag as u16, answer.result()),
                })
                .collect();
            for next in next {
                match next {
                    Next::Event if self.give(ring)? => return Ok(false),
                    Next::Event => {}
                    Next::Request(tag, result) => self.took(tag, result)?,
                }
            }
            if self.open == 0 {
                return Ok(true);
            }
        }
    }

    /// A command by this tag has come back.
    fn took(&mut self, tag: u16, result: i32) -> Result<()> {
        match result {
            // UBLK_IO_RES_OK.
            0 => {
                match Request::of(tag, self.descriptors.of(tag)) {
                    Some(request) => self.handler.request(request),
                    None => self.answers.answer(tag, -libc::EOPNOTSUPP),
                }
                Ok(())
            }
            // UBLK_IO_RES_ABORT: the device ends.
            _ if result == -libc::ENODEV => {
                self.open -= 1;
                Ok(())
            }
            _ => Err(Error::from_raw_os_error(result.saturating_neg())),
        }
    }

    /// Gives the kernel the answers that wait, each with the wish for the next request; whether the thread is to end.
    fn give(&self, ring: &mut IoUring) -> Result<bool> {
        // First, so that an answer that comes meanwhile wakes it again.
        let _ = read(&self.answers.event, &mut [0; 8]);
        let mut waiting = self.answers.lock();
        let (answers, ends) = (mem::take(&mut waiting.answers), waiting.ends);
        drop(waiting);
        for (tag, result) in answers {
            self.push(ring, &self.call(COMMIT_AND_FETCH_REQ, tag, result))?;
        }
        if ends {
            // What was answered is not asked again.
            ring.submit()?;
            return Ok(true);
        }
        self.watch(ring)?;
        Ok(false)
    }

    fn call(&self, number: u32, tag: u16, result: i32) -> squeue::Entry {
        let mut bytes = [0; COMMAND_LEN];
        // `struct ublksrv_io_cmd`: the queue, which is the first, the tag, the result, and no address.
        bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&result.to_ne_bytes());
        let device = Fd(self.answers.device.as_raw_fd());
        let call = opcode::UringCmd16::new(device, command(false, number, COMMAND_LEN));
        call.cmd(bytes).build().user_data(tag.into())
    }

    fn watch(&self, ring: &mut IoUring) -> Result<()> {
        let event = Fd(self.answers.event.as_raw_fd());
        let call = opcode::PollAdd::new(event, libc::POLLIN as u32).build().user_data(EVENT);
        self.push(ring, &call)
    }

    fn push(&self, ring: &mut IoUring, call: &squeue::Entry) -> Result<()> {
        // SAFETY: no call here names memory of ours, and both files belong to `answers`, which this value, and so the thread
        // of the ring, holds.
        match unsafe { ring.submission().push(call) } {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::other("the queue of commands is full")),
        }
    }
}

/// What the kernel tells of each request, mapped from the character device.
struct Descriptors(NonNull<Descriptor>);

// SAFETY: it is memory of the process, not of a thread, and nobody else has its address.
unsafe impl Send for Descriptors {}

impl Descriptors {
    fn map(device: &File) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, where the kernel chooses: nothing else lies there.
        let mapped =
            unsafe { mmap(ptr::null_mut(), DESCRIPTORS_LEN, ProtFlags::READ, flags, device, 0) };
        let mapped = NonNull::new(mapped?.cast::<Descriptor>());
        mapped.map(Self).ok_or_else(|| Error::from(Errno::NOMEM))
    }

    /// That of a request that has just come.
    fn of(&self, tag: u16) -> Descriptor {
        assert!(tag < DEPTH, "the kernel has no request with this tag");
        // SAFETY: the mapping is of `DEPTH` descriptors and begins at a page.
        let descriptor = unsafe { self.0.add(tag.into()) };
        // SAFETY: it is mapped, and the kernel writes no descriptor before its request was answered. Every value is a number.
        unsafe { descriptor.as_ptr().read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: this value has made the mapping, and hands out no reference to it.
        let _ = unsafe { munmap(self.0.as_ptr().cast::<c_void>(), DESCRIPTORS_LEN) };
    }
}
