//! The program's allocator: the system's, except that a few large buffers are kept for the next one.
//!
//! A target needs a buffer of a few hundred KiB for every large request, and for some ten microseconds. The
//! system's allocator gives such memory back to the kernel at once, which then has to clear every page of
//! it anew: more work than the request itself. Here a freed buffer goes on a free list with those of its size,
//! and the next request of that size gets the one freed last, which the processor still has in its cache.
//! What is kept is bounded by [`KEPT_MAX`].
//!
//! It is an allocator and not a pool that buffers are asked of, so that every buffer profits: what a socket
//! is read into, what a volume in memory answers with, what is sealed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes kept, of all sizes together.
pub const KEPT_MAX: usize = 8 << 20;

/// Sizes below are the system allocator's own business, which it does well.
const SIZE_MIN: usize = 64 << 10;

/// To what the C library raises its threshold by itself (`DEFAULT_MMAP_THRESHOLD_MAX`).
const LARGE: libc::c_int = 32 << 20;

/// Sizes above are rare, and would fill the lists.
const SIZE_MAX: usize = 2 << 20;

/// Four sizes for each doubling, so that rounding up wastes a fifth at most.
const STEPS: usize = 4;

/// How many sizes there are, `SIZE_MIN` and `SIZE_MAX` among them.
const LISTS: usize = (SIZE_MAX / SIZE_MIN).ilog2() as usize * STEPS + 1;

/// A whole page, as every buffer here is at least one: fit for devices that want alignment.
const ALIGN: usize = 4096;

/// Buffers of one size at most; more would not fit in [`KEPT_MAX`] but for the smallest.
const LIST_LEN: usize = 64;

/// The allocator; see the module.
#[derive(Debug)]
pub struct Recycler(());

impl Recycler {
    /// The allocator of this program: for a static with `#[global_allocator]`.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl Default for Recycler {
    fn default() -> Self {
        Self::new()
    }
}

/// Has the kernel take back every large buffer that is freed and not kept. Without this the C library learns
/// from the first of them to carve the others out of heaps, where what lives longer keeps what lay beside it
/// resident: twice as much as is in use, and five times for a server whose answers wait for a long link. The price is
/// the clearing of new pages; it is worth paying by a program that holds many megabytes for as long as a long link
/// takes, and not by one that copies as fast as memory does.
pub fn return_large() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number; no memory is touched.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, SIZE_MIN as libc::c_int);
    }
}

/// Has the C library keep what libraries in other languages free, as it does in other programs: those of Ceph take a buffer for
/// each request, each page of which the kernel would have to clear. [`return_large`] has no effect any more.
pub fn keep_large() {
    #[cfg(target_env = "gnu")]
    for (number, value) in [(libc::M_MMAP_THRESHOLD, LARGE), (libc::M_TRIM_THRESHOLD, 2 * LARGE)] {
        // SAFETY: sets a number; no memory is touched.
        unsafe { libc::mallopt(number, value) };
    }
}

/// Freed buffers of one size.
struct FreeList {
    buffers: [*mut u8; LIST_LEN],
    len: usize,
}

// SAFETY: the pointers on a list own what they point to: whoever frees a buffer hands it over, and has no
// other pointer to it. It does not matter which thread frees it in the end.
unsafe impl Send for FreeList {}

static FREE_LISTS: [Mutex<FreeList>; LISTS] =
    [const { Mutex::new(FreeList { buffers: [ptr::null_mut(); LIST_LEN], len: 0 }) }; LISTS];

/// Bytes on all lists.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// One of the sizes that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    list: usize,
    layout: Layout,
}

impl Class {
    /// The class buffers of this layout are of, if they are of any. It depends on nothing else, so that a
    /// buffer is freed as what it was made.
    const fn of(layout: Layout) -> Option<Self> {
        let size = layout.size();
        if size < SIZE_MIN || size > SIZE_MAX || layout.align() > ALIGN {
            return None;
        }
        // A doubling begins above a power of two, which itself ends the one before.
        let doubling = ((size - 1) / (SIZE_MIN / 2)).ilog2() as usize;
        let step = Self::step(doubling);
        let steps = size.div_ceil(step);
        let Ok(layout) = Layout::from_size_align(steps * step, ALIGN) else { return None };
        // From `STEPS + 1` to twice `STEPS` within a doubling; the smallest size ends the one before it.
        Some(Self { list: doubling * STEPS + steps - 2 * STEPS, layout })
    }

    /// The buffer freed last. Nobody waits for a list: the system has buffers too.
    fn take(self) -> Option<*mut u8> {
        let mut list = FREE_LISTS[self.list].try_lock().ok()?;
        list.len = list.len.checked_sub(1)?;
        KEPT.fetch_sub(self.layout.size(), Ordering::Relaxed);
        Some(list.buffers[list.len])
    }

    /// Keeps a buffer, if there is room or room can be made.
    fn keep(self, buffer: *mut u8) -> bool {
        let size = self.layout.size();
        let kept = KEPT.fetch_add(size, Ordering::Relaxed) + size;
        // Others make room only for what its own list takes.
        if let Ok(mut list) = FREE_LISTS[self.list].try_lock()
            && list.len < LIST_LEN
            && (kept <= KEPT_MAX || self.free_others(kept - KEPT_MAX))
        {
            let at = list.len;
            list.buffers[at] = buffer;
            list.len += 1;
            return true;
        }
        KEPT.fetch_sub(size, Ordering::Relaxed);
        false
    }

    /// Gives so many bytes of other sizes back to the system, the lists by turns; whether there were as many. Or
    /// buffers of a size that nobody asks for any more would be kept for ever, and those that are asked for never.
    fn free_others(self, mut excess: usize) -> bool {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        for _ in 0..LISTS {
            let class = Self::at(NEXT.fetch_add(1, Ordering::Relaxed) % LISTS);
            while excess > 0
                && class != self
                && let Some(buffer) = class.take()
            {
                // SAFETY: it was on the list of this class, and so allocated by the system with its layout.
                unsafe { System.dealloc(buffer, class.layout) };
                excess = excess.saturating_sub(class.layout.size());
            }
        }
        excess == 0
    }

    /// By how much the sizes of a doubling differ.
    const fn step(doubling: usize) -> usize {
        (SIZE_MIN / 2 / STEPS) << doubling
    }

    /// The class of a list.
    const fn at(list: usize) -> Self {
        // The other way round than in `of`.
        let (doubling, beyond) = match list.checked_sub(1) {
            Some(above) => (above / STEPS + 1, above % STEPS + 1),
            None => (0, STEPS),
        };
        match Layout::from_size_align((STEPS + beyond) * Self::step(doubling), ALIGN) {
            Ok(layout) => Self { list, layout },
            Err(_) => panic!("every list's size is one of a layout"),
        }
    }
}

// SAFETY: what is not of a class is the system allocator's throughout. What is of a class was allocated by
// it with the layout of the class, which is at least as large and as aligned as what was asked for, and is
// given back with that layout; while it is on a list nobody else has it. No method unwinds: the locks are
// only tried, and the lists are indexed by `Class`, whose indices a test checks over all sizes.
unsafe impl GlobalAlloc for Recycler {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match Class::of(layout) {
            // SAFETY: the layout of a class is not empty.
            Some(class) => class.take().unwrap_or_else(|| unsafe { System.alloc(class.layout) }),
            // SAFETY: the caller's duties are the same.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(class) = Class::of(layout) else {
            // SAFETY: the caller's duties are the same.
            return unsafe { System.alloc_zeroed(layout) };
        };
        match class.take() {
            Some(buffer) => {
                // SAFETY: the buffer is as large as its class, and nobody else's.
                unsafe { ptr::write_bytes(buffer, 0, layout.size()) };
                buffer
            }
            // SAFETY: the layout of a class is not empty.
            None => unsafe { System.alloc_zeroed(class.layout) },
        }
    }

    unsafe fn dealloc(&self, buffer: *mut u8, layout: Layout) {
        match Class::of(layout) {
            Some(class) if class.keep(buffer) => {}
            // SAFETY: it was allocated by the system with the layout of its class.
            Some(class) => unsafe { System.dealloc(buffer, class.layout) },
            // SAFETY: it was allocated by the system with this layout.
            None => unsafe { System.dealloc(buffer, layout) },
        }
    }

    unsafe fn realloc(&self, buffer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller says that the size does not overflow when rounded up to the alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (Class::of(layout), Class::of(wanted)) {
            // SAFETY: the caller's duties are the same.
            (None, None) => return unsafe { System.realloc(buffer, layout, size) },
            (Some(old), Some(new)) if old == new => return buffer,
            _ => {}
        }
        // SAFETY: the caller says that the size is not zero.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both are at least as large as what is copied, and the new one is nobody else's.
            unsafe { ptr::copy_nonoverlapping(buffer, moved, layout.size().min(size)) };
            // SAFETY: the caller owns it, and it was allocated with this layout.
            unsafe { self.dealloc(buffer, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(size: usize) -> Option<Class> {
        Class::of(Layout::from_size_align(size, 1).unwrap())
    }

    #[test]
    fn every_size_has_a_list_that_fits() {
        assert_eq!((class(SIZE_MIN - 1), class(SIZE_MAX + 1)), (None, None));
        let (mut list, mut largest) = (0, 0);
        for size in SIZE_MIN..=SIZE_MAX {
            let class = class(size).unwrap();
            let fits = class.layout.size();
            assert!(fits >= size && fits - size < size / STEPS + 1, "{size}: {fits}");
            assert!(class.list < LISTS && class.list >= list, "{size}: {class:?}");
            assert_eq!(class, Class::at(class.list), "{size}");
            // One list has one size.
            assert_eq!(class.list == list, fits == largest || size == SIZE_MIN, "{size}");
            (list, largest) = (class.list, fits);
        }
        assert_eq!((list, largest), (LISTS - 1, SIZE_MAX));
    }

    /// Otherwise each costs 64 page faults.
    #[test]
    fn buffers_of_libraries_are_kept_once_that_was_asked_for() {
        return_large();
        keep_large();
        let faults = || {
            let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
            // SAFETY: it fills what the pointer leads to.
            let asked = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
            assert_eq!(asked, 0);
            // SAFETY: it was filled.
            unsafe { usage.assume_init() }.ru_minflt
        };
        let touch = || {
            // SAFETY: it only asks for memory.
            let buffer = unsafe { libc::malloc(256 << 10) };
            assert!(!buffer.is_null());
            // SAFETY: it has as many bytes.
            unsafe { ptr::write_bytes(buffer.cast::<u8>(), 1, 256 << 10) };
            // SAFETY: it was allocated so, and is not used after this.
            unsafe { libc::free(std::hint::black_box(buffer)) };
        };
        touch();
        let before = faults();
        (0..100).for_each(|_| touch());
        assert!(faults() - before < 100);
    }

    /// A buffer by way of the allocator, and nobody else's.
    struct Buffer(*mut u8, Layout);

    impl Buffer {
        fn zeroed(len: usize) -> Self {
            let layout = Layout::from_size_align(len, 8).unwrap();
            // SAFETY: no test asks for nothing.
            Self(unsafe { Recycler::new().alloc_zeroed(layout) }, layout)
        }

        fn resize(&mut self, len: usize) {
            // SAFETY: it was allocated with this layout, and no test asks for nothing.
            self.0 = unsafe { Recycler::new().realloc(self.0, self.1, len) };
            self.1 = Layout::from_size_align(len, 8).unwrap();
        }

        /// The first `len` bytes, which were zeroed or copied.
        fn front(&mut self, len: usize) -> &mut [u8] {
            assert!(len <= self.1.size());
            // SAFETY: it is that long, initialised that far, and borrowed with its owner.
            unsafe { std::slice::from_raw_parts_mut(self.0, len) }
        }
    }

    impl Drop for Buffer {
        fn drop(&mut self) {
            // SAFETY: it was allocated with this layout.
            unsafe { Recycler::new().dealloc(self.0, self.1) };
        }
    }

    #[test]
    fn buffers_come_back_whole_and_zeroed_where_asked() {
        for size in [1000, SIZE_MIN, 300_000, SIZE_MAX, SIZE_MAX + 1] {
            for _ in 0..3 {
                let mut buffer = Buffer::zeroed(size);
                assert!(buffer.front(size).iter().all(|byte| *byte == 0));
                buffer.front(size).fill(0xa5);
                buffer.resize(size * 2);
                assert!(buffer.front(size).iter().all(|byte| *byte == 0xa5));
                buffer.resize(size);
                assert!(buffer.front(size).iter().all(|byte| *byte == 0xa5));
            }
        }
    }

    /// Fills the list of a size.
    fn fill(size: usize) {
        let buffers: Vec<_> = (0..2 * KEPT_MAX / size).map(|_| Buffer::zeroed(size)).collect();
        assert!(buffers.iter().all(|buffer| (buffer.0 as usize).is_multiple_of(ALIGN)));
    }

    #[test]
    fn freed_buffers_are_bounded_and_make_room_for_other_sizes() {
        // One size after the other, as a program does that was asked for small blocks and then for larger ones.
        // Tests beside this one keep a few.
        for size in [SIZE_MAX, 300_000, SIZE_MAX / 2, SIZE_MAX] {
            fill(size);
            let class = class(size).unwrap();
            let kept = FREE_LISTS[class.list].lock().unwrap().len * class.layout.size();
            assert!(kept > KEPT_MAX / 2, "{size}: {kept}");
            assert!(KEPT.load(Ordering::Relaxed) <= KEPT_MAX + SIZE_MAX * 8);
        }
    }
}
