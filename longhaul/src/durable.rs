//! Files that survive a loss of power.

use std::fs::File;
use std::io;
use std::path::Path;

/// Makes the name of the file at `path` stable, as it was made or changed: its bytes alone are not enough to find them
/// again after a loss of power.
pub(crate) fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()
}
