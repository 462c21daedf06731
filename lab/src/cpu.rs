//! What a process has cost the processor.

use std::time::Duration;

use crate::Failure;

/// Time spent on a core by all threads of `pid` that still live, in user and system mode.
pub(crate) fn spent(pid: u32) -> Result<Duration, Failure> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the listing and the reading.
        let Ok(line) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        nanoseconds += line.split(' ').next().ok_or("an empty schedstat")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanoseconds))
}
