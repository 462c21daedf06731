//! Requests to an image, each with a future that a thread of librbd wakes.

use std::ffi::c_int;
use std::ffi::c_void;
use std::io;
use std::ptr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::api::{Api, Handle};
use super::completion_queue::CompletionQueue;

/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`
const THICK: c_int = 1;

/// The requests to one image.
#[derive(Clone)]
pub struct Requests {
    api: &'static Api,
    image: Handle,
    permits: Arc<Semaphore>,
    completed: Arc<CompletionQueue<Completed>>,
}

// SAFETY: librbd lets every thread use an image.
unsafe impl Send for Requests {}
// SAFETY: the same of several at a time.
unsafe impl Sync for Requests {}

/// What librbd reads from, or writes to, until a request has ended.
enum Buffer {
    None,
    Read(BytesMut),
    Write(#[expect(dead_code, reason = "held for librbd")] Bytes),
}

/// A request that is under way. librbd has the only pointer to it.
struct Pending {
    api: &'static Api,
    buffer: Buffer,
    done: oneshot::Sender<Ended>,
    permit: OwnedSemaphorePermit,
    completed: Arc<CompletionQueue<Completed>>,
}

/// A request that has ended.
struct Ended {
    answer: isize,
    buffer: Buffer,
    /// The image is not closed before it is given back.
    permit: OwnedSemaphorePermit,
}

/// One that has ended, and whoever waits for it.
struct Completed {
    done: oneshot::Sender<Ended>,
    ended: Ended,
}

impl Completed {
    fn tell(self) {
        // Nobody waits for it where its future was dropped.
        let _ = self.done.send(self.ended);
    }
}

impl Requests {
    pub(super) fn new(
        api: &'static Api,
        image: Handle,
        permits: Arc<Semaphore>,
    ) -> io::Result<Self> {
        Ok(Self { api, image, permits, completed: Arc::new(CompletionQueue::new()?) })
    }

    /// Tells those who wait for requests that these have ended, until it is dropped. Without it librbd's threads do so, which
    /// takes more time.
    pub async fn complete(self) -> io::Result<()> {
        self.completed.run(Completed::tell).await
    }

    pub(super) fn permits(&self) -> Arc<Semaphore> {
        Arc::clone(&self.permits)
    }

    /// Takes no more requests, and waits until those that are under way have ended.
    pub(super) async fn end(&self) {
        let all = super::REQUESTS_MAX as u32;
        // It is closed already otherwise, and nothing is under way.
        if let Ok(all) = self.permits.acquire_many(all).await {
            self.permits.close();
            drop(all);
        }
    }

    /// Reads `len` bytes.
    pub async fn read(&self, at: u64, len: usize) -> io::Result<Bytes> {
        // Not cleared before: what is touched twice, and in between by many others, is out of the processor's cache.
        let mut buffer = BytesMut::with_capacity(len);
        let to = BufferStart(buffer.spare_capacity_mut().as_mut_ptr().cast());
        let Ended { answer, buffer, .. } = self
            .run(Buffer::Read(buffer), move |api, image, completion| {
                // SAFETY: the buffer has `len` bytes, does not move, and lives until the request has ended.
                unsafe { (api.rbd_aio_read)(image, at, len, to.get().cast(), completion) }
            })
            .await?;
        match buffer {
            Buffer::Read(mut buffer) if answer.cast_unsigned() == len => {
                // SAFETY: librbd has answered that it has read so many bytes. Each of them is copied, or cleared where the image has a
                // hole or an object is short (`StripedReadResult::assemble_result` of Ceph's osdc/Striper.cc).
                unsafe { buffer.set_len(len) };
                Ok(buffer.freeze())
            }
            // librbd reads up to the end of an image, which may have been made smaller.
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Refuses to call a change done of which a part lies behind the end of the image: if that was made smaller meanwhile, librbd
    /// leaves the part out, and reports success.
    fn within(&self, at: u64, len: u64) -> io::Result<()> {
        let mut size = 0;
        // SAFETY: the image is open as long as the caller has the permit of its request.
        let asked = unsafe { (self.api.rbd_get_size)(self.image, &raw mut size) };
        match asked {
            0.. if at + len <= size => Ok(()),
            0.. => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Err(io::Error::from_raw_os_error(-asked)),
        }
    }

    /// Writes `data`. Once it has succeeded they are durable.
    pub async fn write(&self, at: u64, data: Bytes) -> io::Result<()> {
        let (from, len) = (BufferStart(data.as_ptr().cast_mut()), data.len());
        self.change((at, len as u64), Buffer::Write(data), move |api, image, completion| {
            // SAFETY: the data have `len` bytes, do not move, and live until the request has ended.
            unsafe { (api.rbd_aio_write)(image, at, len, from.get().cast(), completion) }
        })
        .await
    }

    /// Gives space back, which reads as zeroes then.
    pub async fn discard(&self, at: u64, len: u64) -> io::Result<()> {
        self.change((at, len), Buffer::None, move |api, image, completion| {
            // SAFETY: the image is open, and the completion new.
            unsafe { (api.rbd_aio_discard)(image, at, len, completion) }
        })
        .await
    }

    /// Makes a part read as zeroes; with `thick` it has its space afterwards.
    pub async fn write_zeroes(&self, at: u64, len: usize, thick: bool) -> io::Result<()> {
        let flags = if thick { THICK } else { 0 };
        self.change((at, len as u64), Buffer::None, move |api, image, completion| {
            // SAFETY: the image is open, and the completion new.
            unsafe { (api.rbd_aio_write_zeroes)(image, at, len, completion, flags, 0) }
        })
        .await
    }

    /// Makes everything durable that was written before.
    pub async fn flush(&self) -> io::Result<()> {
        self.run(Buffer::None, move |api, image, completion| {
            // SAFETY: the image is open, and the completion new.
            unsafe { (api.rbd_aio_flush)(image, completion) }
        })
        .await
        .map(drop)
    }

    /// Carries out a change of `len` bytes, all of which are in the image afterwards.
    async fn change(
        &self,
        (at, len): (u64, u64),
        buffer: Buffer,
        start: impl FnOnce(&Api, Handle, Handle) -> c_int,
    ) -> io::Result<()> {
        let ended = self.run(buffer, start).await?;
        let within = self.within(at, len);
        drop(ended.permit);
        within
    }

    /// Starts a request, and waits for its end. One whose future is dropped goes on.
    async fn run(
        &self,
        buffer: Buffer,
        start: impl FnOnce(&Api, Handle, Handle) -> c_int,
    ) -> io::Result<Ended> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_closed| super::closed())?;
        let (done, ended) = oneshot::channel();
        let completed = Arc::clone(&self.completed);
        self.start(Pending { api: self.api, buffer, done, permit, completed }, start)?;
        let ended = ended.await.map_err(io::Error::other)?;
        match i32::try_from(-ended.answer) {
            Ok(errno @ 1..) => Err(io::Error::from_raw_os_error(errno)),
            _ => Ok(ended),
        }
    }

    fn start(
        &self,
        pending: Pending,
        start: impl FnOnce(&Api, Handle, Handle) -> c_int,
    ) -> io::Result<()> {
        let pending = Box::into_raw(Box::new(pending));
        let mut completion = ptr::null_mut();
        // SAFETY: what the pointer leads to lives until `finished` takes it back.
        let made = unsafe {
            (self.api.rbd_aio_create_completion)(pending.cast(), finished, &raw mut completion)
        };
        let started = if made < 0 { made } else { start(self.api, self.image, completion) };
        if started >= 0 {
            return Ok(());
        }
        if made >= 0 {
            // SAFETY: the request was not started: nobody else has the completion.
            unsafe { (self.api.rbd_aio_release)(completion) };
        }
        // SAFETY: `finished` is not called for it.
        drop(unsafe { Box::from_raw(pending) });
        Err(io::Error::from_raw_os_error(-started))
    }
}

/// Where a buffer begins.
#[derive(Clone, Copy)]
struct BufferStart(*mut u8);

// SAFETY: it is an address; whoever uses it answers for what lies there.
unsafe impl Send for BufferStart {}

impl BufferStart {
    const fn get(self) -> *mut u8 {
        self.0
    }
}

/// A thread of librbd tells that a request has ended.
unsafe extern "C" fn finished(completion: Handle, pending: *mut c_void) {
    // SAFETY: it is what `start` has given away, and this is called once.
    let pending = unsafe { Box::from_raw(pending.cast::<Pending>()) };
    let Pending { api, buffer, done, permit, completed } = *pending;
    // SAFETY: the completion is the one of this call, and not released yet.
    let answer = unsafe { (api.rbd_aio_get_return_value)(completion) };
    // SAFETY: it is not used after this.
    unsafe { (api.rbd_aio_release)(completion) };
    let ended = Ended { answer, buffer, permit };
    completed.push(Completed { done, ended }).unwrap_or_else(Completed::tell);
}
