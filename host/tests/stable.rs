//! What is said to be stable has left the page cache for the disk: the kernel is asked how many pages of the file
//! are still dirty.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use host::file::{Access, File, Sync};

const LEN: usize = 1 << 20;

/// The answer of cachestat(2), in pages (include/uapi/linux/mman.h).
#[repr(C)]
#[derive(Debug, Default)]
struct Pages {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Its question; a length of zero is the whole file.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

fn pages(of: &OwnedFd) -> Pages {
    /// Linux 6.5, the same on every machine.
    const SYS_CACHESTAT: libc::c_long = 451;
    let (range, mut pages) = (Range { offset: 0, len: 0 }, Pages::default());
    // SAFETY: the descriptor is open, and the kernel reads one `Range` and writes one `Pages`, both of which
    // live until the call returns.
    let done = unsafe {
        libc::syscall(SYS_CACHESTAT, of.as_raw_fd(), &raw const range, &raw mut pages, 0)
    };
    assert_eq!(done, 0, "cachestat: {}", std::io::Error::last_os_error());
    pages
}

/// A file of its own on the disk that holds the build, and a second way to it.
fn scratch(name: &str) -> (File, OwnedFd, PathBuf) {
    let path =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let file = File::open(&path, Access::Create).unwrap();
    file.set_len(LEN as u64).unwrap();
    let beside = std::fs::File::open(&path).unwrap().into();
    (file, beside, path)
}

/// Whether the write that is to be made stable was in memory only before that.
fn settles(name: &str, act: impl Fn(&File)) {
    let (file, beside, path) = scratch(name);
    let mut was_dirty = false;
    for byte in 0..8 {
        file.write(0, &vec![byte; LEN / 2], Sync::Later).unwrap();
        was_dirty |= pages(&beside).dirty > 0;
        act(&file);
        let Pages { dirty, writeback, .. } = pages(&beside);
        assert_eq!((dirty, writeback), (0, 0), "pages that are not on the disk");
    }
    std::fs::remove_file(path).unwrap();
    assert!(was_dirty, "{name}: this file system writes at once, so that nothing was tried");
}

#[test]
fn a_flush_has_written_all_there_was() {
    settles("flush", |file| file.sync().unwrap());
}

#[test]
fn a_durable_write_is_on_the_disk_when_it_returns() {
    // Over what was written before, so that nothing else is dirty.
    settles("durable", |file| file.write(0, &vec![9; LEN / 2], Sync::Now).unwrap());
}
