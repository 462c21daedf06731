//! Memory that holds secrets.

use std::ffi::c_void;

use rustix::mm::{Advice, madvise, mlock};

/// Keeps the pages that `secret` lies in from swap, and from a core dump, for as long as the process lives. Whether the
/// system allows it: the limit of locked memory (RLIMIT_MEMLOCK) is small, and so are secrets.
///
/// Other data share these pages; they stay locked when the secret is gone, since another secret may lie there too.
pub fn keep(secret: &[u8]) -> bool {
    if secret.is_empty() {
        return true;
    }
    let page = rustix::param::page_size();
    let start = secret.as_ptr().addr();
    let first = start - start % page;
    let len = (start + secret.len() - first).next_multiple_of(page);
    let pages = secret.as_ptr().wrapping_sub(start - first).cast_mut().cast::<c_void>();
    // SAFETY: the pages hold `secret`, so they are mapped. Leaving them out of core dumps and keeping them in memory
    // changes neither what they hold nor who may use them.
    let (hidden, locked) =
        unsafe { (madvise(pages, len, Advice::LinuxDontDump), mlock(pages, len)) };
    hidden.is_ok() && locked.is_ok()
}

/// Keeps the process from leaving core dumps, and others of the same user from reading its memory.
pub fn hide() -> bool {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    set_dumpable_behavior(DumpableBehavior::NotDumpable).is_ok()
}

/// Makes this process, and the threads that it starts from now on, fit to answer the kernel's requests for a file or block
/// device when memory is short: they wait for no write to be made room (PR_SET_IO_FLUSHER), and what they use is not paged
/// out. Whether the system allows both.
pub fn serve_kernel() -> bool {
    use rustix::mm::{MlockAllFlags, mlockall};
    let flusher = rustix::process::configure_io_flusher_behavior(true);
    let locked = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT);
    flusher.is_ok() && locked.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says of the memory around `at` (proc(5), smaps).
    fn flags(at: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut found = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let ends = range.and_then(|(from, to)| {
                Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
            });
            if let Some((from, to)) = ends {
                found = (from..to).contains(&at);
            } else if let (true, Some(flags)) = (found, line.strip_prefix("VmFlags:")) {
                return flags.to_owned();
            }
        }
        panic!("nothing is mapped there");
    }

    #[test]
    fn kept_memory_is_locked_and_not_dumped() {
        let secret = vec![7; 100];
        assert!(keep(&secret) && keep(&[]));
        let flags = flags(secret.as_ptr().addr());
        let has = |flag| flags.split(' ').any(|found| found == flag);
        assert!(has("lo") && has("dd"), "{flags}");
        assert_eq!(secret, [7; 100]);
    }
}
