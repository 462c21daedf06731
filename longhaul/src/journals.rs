//! Files of journals, as they look to whoever does not use them.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use volume::layer::journal::{Superblock, SuperblockState, superblock_offset};

use crate::regular_file::open_regular;

/// How many bytes of a superblock count.
const SUPERBLOCK_LEN: usize = 512;

/// Whether there is a journal at `path`.
#[must_use]
pub(crate) fn is_journal(path: &Path) -> bool {
    newest(path).is_some()
}

/// The key under which it was used last, if there is one that says that it holds nothing its volume lacks.
#[must_use]
pub(crate) fn sent_under(path: &Path) -> Option<u64> {
    newest(path).filter(|newest| newest.state == SuperblockState::Clean).map(|newest| newest.token)
}

/// Whether there is one that says that it holds nothing its volume lacks.
#[must_use]
pub(crate) fn is_sent(path: &Path) -> bool {
    sent_under(path).is_some()
}

/// The newest superblock that can be read, without a lock.
fn newest(path: &Path) -> Option<Superblock> {
    let file = open_regular(path).ok()?;
    let at = |number| {
        let mut bytes = [0; SUPERBLOCK_LEN];
        file.read_exact_at(&mut bytes, superblock_offset(number)).ok()?;
        Superblock::decode(&bytes).ok()
    };
    [at(0), at(1)].into_iter().flatten().max_by_key(|found| found.number)
}
