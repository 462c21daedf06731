//! Images of Ceph's RBD, by librbd, and objects of its pools, by librados. What may wait for the cluster blocks, but for reads
//! and changes of images, whose futures are woken by librbd's threads.

mod api;
mod client;
mod completion_queue;
mod object;
mod request;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::io;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use self::api::{Api, Handle, Watcher};
use self::client::Pool;
pub use self::client::{Access, BLOCKLISTED_FOR, Client, PoolSpec};
pub use self::object::{Attributes, Objects};
use self::request::Requests;

/// How many requests may be under way: librbd would hold up its caller for more than the 1024 of its own
/// (`objecter_inflight_ops`), of which a request may need several.
const REQUESTS_MAX: usize = 256;

/// `RBD_FEATURE_EXCLUSIVE_LOCK` and `RBD_FEATURE_FAST_DIFF` (rbd/features.h).
const EXCLUSIVE_LOCK: u64 = 1 << 2;
const FAST_DIFF: u64 = 1 << 4;

/// `RBD_LOCK_MODE_EXCLUSIVE`
const LOCK_EXCLUSIVE: c_int = 0;

/// How long the end of a handle that was dropped, and not closed, waits between two looks at what is under way.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Where an image is, and as whom to use it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageSpec {
    /// The pool.
    pub pool: PoolSpec,
    /// The image.
    pub image: String,
    /// One of its snapshots.
    pub snapshot: Option<String>,
}

impl fmt::Display for ImageSpec {
    /// `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.image)?;
        self.snapshot.iter().try_for_each(|snapshot| write!(f, "@{snapshot}"))
    }
}

/// Why an image cannot be opened.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum RbdError {
    #[error("librbd cannot be used: {0}")]
    Library(String),
    #[error("{what}: {why}")]
    Step { what: String, why: io::Error },
    #[error("a name has a zero byte")]
    Name,
    #[error("the client at {0} has the exclusive lock of the image")]
    Locked(String),
    #[error("cannot read the configuration of the cluster: {0}")]
    Configuration(io::Error),
}

/// How the exclusive lock is had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Not at all: others may write.
    Leave,
    /// If nobody who is connected has it.
    Take,
    /// Whoever has it loses it, and with it the right to write: the cluster refuses all that it still sends.
    Break,
}

/// An open image. Once it is dropped, or closed, its requests end first.
pub struct Image {
    open: Mutex<Option<OpenImage>>,
    requests: Requests,
    info: ImageInfo,
}

/// What does not change while an image is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Its size when it was opened, in bytes.
    pub size: u64,
    /// What no two images have: cluster, pool, and the number that the image has there.
    pub id: String,
    /// The unit in which it lies in objects, in bytes.
    pub stripe_unit: u64,
    /// What is allocated is known without asking for each object.
    pub has_fast_map: bool,
    /// Others are kept from writing.
    pub is_locked: bool,
}

/// The handles of librados and librbd.
struct OpenImage {
    api: &'static Api,
    image: Handle,
    watch: Option<(u64, *mut OnUpdate)>,
    /// Which is left after the image.
    pool: Pool,
}

type OnUpdate = Box<dyn Fn() + Send + Sync>;

// SAFETY: librados and librbd let every thread use their handles (librados.h, "thread safe"); what the watch points to is
// called from any thread and may be.
unsafe impl Send for OpenImage {}

impl Image {
    /// Opens one. It blocks until the cluster has answered.
    pub fn open(spec: &ImageSpec, read_only: bool, lock: Lock) -> Result<Self, RbdError> {
        Self::open_by(&Client::connect(&spec.pool.access, None)?, spec, read_only, lock)
    }

    /// The same by a connection that there is.
    pub fn open_by(
        client: &Arc<Client>,
        spec: &ImageSpec,
        read_only: bool,
        lock: Lock,
    ) -> Result<Self, RbdError> {
        let api = client.api();
        // Whoever was blocklisted before cannot write any more to what is read here.
        client.see_latest_map()?;
        let pool = Pool::open(client, &spec.pool)?;
        let place = pool.place()?;
        let open = OpenImage::open(api, pool, spec, read_only || spec.snapshot.is_some())?;
        let features = open.number(api.rbd_get_features, "its features")?;
        let may_lock = !read_only && spec.snapshot.is_none() && lock != Lock::Leave;
        let is_locked = features & EXCLUSIVE_LOCK != 0 && may_lock;
        if is_locked {
            open.lock(lock)?;
        }
        let info = ImageInfo {
            size: open.number(api.rbd_get_size, "its size")?,
            id: format!("{place}/{}", open.id()?),
            stripe_unit: open.number(api.rbd_get_stripe_unit, "its stripes")?,
            has_fast_map: features & FAST_DIFF != 0,
            is_locked,
        };
        let requests = Requests::new(api, open.image, Arc::new(Semaphore::new(REQUESTS_MAX)));
        let requests = requests
            .map_err(|why| RbdError::Step { what: "cannot open the image".to_owned(), why })?;
        Ok(Self { open: Mutex::new(Some(open)), requests, info })
    }

    /// What does not change while it is open.
    #[must_use]
    pub const fn info(&self) -> &ImageInfo {
        &self.info
    }

    /// Its requests.
    #[must_use]
    pub const fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Its size now, in bytes.
    pub fn size(&self) -> io::Result<u64> {
        self.with(|open| open.number(open.api.rbd_get_size, "its size").map_err(io::Error::other))
    }

    /// The extents of a part, in order: offset, length. What is between them is not allocated. It blocks.
    pub fn allocated(&self, at: u64, len: u64) -> io::Result<Vec<(u64, u64)>> {
        let whole_objects = u8::from(self.info.has_fast_map);
        self.with(|open| {
            let mut found: Vec<(u64, u64)> = Vec::new();
            // SAFETY: the image is open, and nothing keeps the pointer after the call.
            let asked = unsafe {
                (open.api.rbd_diff_iterate2)(
                    open.image,
                    ptr::null(),
                    at,
                    len,
                    1,
                    whole_objects,
                    add_extent,
                    (&raw mut found).cast(),
                )
            };
            if asked < 0 { Err(io::Error::from_raw_os_error(-asked)) } else { Ok(found) }
        })
    }

    /// Calls `updated` from a thread of librbd when the image may have changed its size.
    pub fn watch(&self, updated: OnUpdate) -> io::Result<()> {
        let mut open = self.lock_open();
        let open = open.as_mut().ok_or_else(closed)?;
        let updated = Box::into_raw(Box::new(updated));
        let mut handle = 0;
        // SAFETY: the image is open; what the pointer leads to lives until the watch has ended.
        let watched = unsafe {
            (open.api.rbd_update_watch)(open.image, &raw mut handle, call_updated, updated.cast())
        };
        if watched < 0 {
            // SAFETY: it was not taken.
            drop(unsafe { Box::from_raw(updated) });
            return Err(io::Error::from_raw_os_error(-watched));
        }
        open.watch = Some((handle, updated));
        Ok(())
    }

    /// Closes it once all requests have ended, and gives its lock back.
    pub async fn close(&self) {
        self.requests.end().await;
        let open = self.lock_open().take();
        // The closing waits for the cluster.
        let _ended = tokio::task::spawn_blocking(move || drop(open)).await;
    }

    fn with<T>(&self, ask: impl FnOnce(&OpenImage) -> io::Result<T>) -> io::Result<T> {
        ask(self.lock_open().as_ref().ok_or_else(closed)?)
    }

    fn lock_open(&self) -> std::sync::MutexGuard<'_, Option<OpenImage>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Image {
    /// Its last holder may be anybody, a thread of librbd too, and must not wait.
    fn drop(&mut self) {
        let Some(open) = self.lock_open().take() else { return };
        let under_way = self.requests.permits();
        let close = move || {
            while under_way.available_permits() < REQUESTS_MAX {
                std::thread::sleep(LOOK_AGAIN);
            }
            drop(open);
        };
        // Without a thread it stays open for as long as the process lives, which ends it too.
        let _ = std::thread::Builder::new().name("rbd-close".to_owned()).spawn(close);
    }
}

fn closed() -> io::Error {
    io::Error::from_raw_os_error(libc::ESHUTDOWN)
}

impl OpenImage {
    fn open(
        api: &'static Api,
        pool: Pool,
        spec: &ImageSpec,
        read_only: bool,
    ) -> Result<Self, RbdError> {
        let name = c_string(&spec.image)?;
        let snapshot = spec.snapshot.as_deref().map(c_string).transpose()?;
        let at = snapshot.as_ref().map_or(ptr::null(), |snapshot| snapshot.as_ptr());
        let open = if read_only { api.rbd_open_read_only } else { api.rbd_open };
        let mut image = ptr::null_mut();
        // SAFETY: the pool is open; the names end with zero and outlive the call, that of a snapshot may be null.
        let opened = unsafe { open(pool.handle(), name.as_ptr(), &raw mut image, at) };
        check(opened, || match &spec.snapshot {
            Some(snapshot) => format!("cannot open the image {}@{snapshot}", spec.image),
            None => format!("cannot open the image {}", spec.image),
        })?;
        Ok(Self { api, image, watch: None, pool })
    }

    fn number(
        &self,
        ask: unsafe extern "C" fn(Handle, *mut u64) -> c_int,
        what: &str,
    ) -> Result<u64, RbdError> {
        let mut number = 0;
        // SAFETY: the image is open.
        let asked = unsafe { ask(self.image, &raw mut number) };
        check(asked, || format!("cannot learn {what}"))?;
        Ok(number)
    }

    fn id(&self) -> Result<String, RbdError> {
        let mut id = [0_u8; 128];
        // SAFETY: the buffer has the length that is told.
        let told = unsafe { (self.api.rbd_get_id)(self.image, id.as_mut_ptr().cast(), id.len()) };
        check(told, || "cannot learn the number of the image".to_owned())?;
        Ok(text(&id))
    }

    /// Keeps others from writing, and does not give way to them.
    fn lock(&self, how: Lock) -> Result<(), RbdError> {
        if let Some(owner) = self.owner()? {
            // One that is not connected any more can do nothing but what it has under way.
            if how != Lock::Break && self.has_open(&owner)? {
                return Err(RbdError::Locked(owner));
            }
            self.break_lock(&owner)?;
        }
        // SAFETY: the image is open.
        let locked = unsafe { (self.api.rbd_lock_acquire)(self.image, LOCK_EXCLUSIVE) };
        // It has been locked since, by one that does not give way.
        if let (true, Some(owner)) = (locked == -libc::EROFS, self.owner()?) {
            return Err(RbdError::Locked(owner));
        }
        check(locked, || "cannot lock the image".to_owned())
    }

    fn break_lock(&self, owner: &str) -> Result<(), RbdError> {
        let name = c_string(owner)?;
        // SAFETY: the image is open; the name ends with zero and outlives the call.
        let broken =
            unsafe { (self.api.rbd_lock_break)(self.image, LOCK_EXCLUSIVE, name.as_ptr()) };
        // Nobody has it any more, or another one.
        if [-libc::ENOENT, -libc::EBUSY].contains(&broken) {
            return Ok(());
        }
        check(broken, || format!("cannot break the lock of {owner}"))?;
        // librbd has blocklisted it, for an hour, also if it was to be so for longer. Its own setting of that time is refused by
        // the monitors of Ceph 16.
        self.pool.client().blocklist(owner, BLOCKLISTED_FOR)
    }

    /// The address of the client that has the exclusive lock.
    fn owner(&self) -> Result<Option<String>, RbdError> {
        let (mut mode, mut count) = (0, 1);
        let mut name: *mut c_char = ptr::null_mut();
        // SAFETY: there is room for one owner, and an exclusive lock has no more.
        let asked = unsafe {
            (self.api.rbd_lock_get_owners)(self.image, &raw mut mode, &raw mut name, &raw mut count)
        };
        if asked == -libc::ENOENT || (asked == 0 && count == 0) {
            return Ok(None);
        }
        check(asked, || "cannot learn who has locked the image".to_owned())?;
        // SAFETY: librbd has written one string that ends with zero.
        let owner = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        // SAFETY: it is what librbd has allocated, and not used any more.
        unsafe { (self.api.rbd_lock_get_owners_cleanup)(&raw mut name, count) };
        Ok(Some(owner))
    }

    /// Whether the client at this address has the image open.
    fn has_open(&self, address: &str) -> Result<bool, RbdError> {
        const MOST: usize = 64;
        let mut watchers: [Watcher; MOST] =
            std::array::from_fn(|_| Watcher { address: ptr::null_mut(), _id: 0, _cookie: 0 });
        let mut count = MOST;
        // SAFETY: there is room for as many as are told.
        let asked = unsafe {
            (self.api.rbd_watchers_list)(self.image, watchers.as_mut_ptr(), &raw mut count)
        };
        check(asked, || "cannot learn who has the image open".to_owned())?;
        let is_it = |watcher: &Watcher| {
            // SAFETY: librbd has written a string that ends with zero.
            unsafe { CStr::from_ptr(watcher.address) }.to_bytes() == address.as_bytes()
        };
        let found = watchers[..count].iter().any(is_it);
        // SAFETY: it is what librbd has allocated, and not used any more.
        unsafe { (self.api.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
        Ok(found)
    }
}

impl Drop for OpenImage {
    fn drop(&mut self) {
        if let Some((handle, updated)) = self.watch.take() {
            // SAFETY: the image is open, and this is its watch.
            unsafe { (self.api.rbd_update_unwatch)(self.image, handle) };
            // SAFETY: the watch has ended: nobody calls it any more.
            drop(unsafe { Box::from_raw(updated) });
        }
        // SAFETY: no request is under way, and nobody has the handle after this.
        unsafe { (self.api.rbd_close)(self.image) };
    }
}

/// Adds an extent to the vector that `found` points to.
unsafe extern "C" fn add_extent(at: u64, len: usize, has_data: c_int, found: *mut c_void) -> c_int {
    // SAFETY: it is the vector of `Image::allocated`, which waits for the end of the calls.
    let found = unsafe { &mut *found.cast::<Vec<(u64, u64)>>() };
    let len = len as u64;
    match found.last_mut() {
        _ if has_data == 0 => {}
        Some((last, so_far)) if *last + *so_far == at => *so_far += len,
        _ => found.push((at, len)),
    }
    0
}

/// Calls what was given to [`Image::watch`].
unsafe extern "C" fn call_updated(updated: *mut c_void) {
    // SAFETY: it is what `watch` has made, and freed once the watch has ended.
    let updated = unsafe { &*updated.cast::<OnUpdate>() };
    updated();
}

fn c_string(text: &str) -> Result<CString, RbdError> {
    CString::new(text).map_err(|_| RbdError::Name)
}

/// What stands before the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// What a function has answered: a negative number is an error.
fn check(answer: c_int, what: impl FnOnce() -> String) -> Result<(), RbdError> {
    match answer {
        0.. => Ok(()),
        _ => Err(RbdError::Step { what: what(), why: io::Error::from_raw_os_error(-answer) }),
    }
}
