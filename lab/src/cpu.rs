//! What a process has cost the processor.

use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Failure;

/// Time spent on a core by all threads of `pid` that still live, in user and system mode.
pub(crate) fn spent(pid: u32) -> Result<Duration, Failure> {
    Ok(Duration::from_nanos(threads(pid)?.iter().sum()))
}

/// What part of that the busiest thread has spent.
pub(crate) fn busiest(pid: u32) -> Result<f64, Failure> {
    let threads = threads(pid)?;
    let most = threads.iter().max().ok_or("a process without threads")?;
    Ok(*most as f64 / threads.iter().sum::<u64>() as f64)
}

/// Nanoseconds of each thread.
fn threads(pid: u32) -> Result<Vec<u64>, Failure> {
    let mut spent = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the listing and the reading.
        let Ok(line) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        spent.push(line.split(' ').next().ok_or("an empty schedstat")?.parse()?);
    }
    Ok(spent)
}

/// The most memory `pid` has had, in bytes.
pub(crate) fn memory_peak(pid: u32) -> Result<u64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|peak| peak.trim().split(' ').next()).ok_or("no VmHWM")?;
    Ok(kib.parse::<u64>()? << 10)
}

/// Processor time of a machine, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Spent {
    /// In the programs.
    #[serde(with = "seconds")]
    pub(crate) user: f64,
    /// In the kernel on their behalf.
    #[serde(with = "seconds")]
    pub(crate) system: f64,
}

/// What both ends of a link have spent, the near one first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct BothSpent(pub(crate) [Spent; 2]);

impl BothSpent {
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut spent = self.0;
        for (now, then) in spent.iter_mut().zip(before.0) {
            // A process that ended meanwhile takes what it had spent with it.
            now.user = (now.user - then.user).max(0.0);
            now.system = (now.system - then.system).max(0.0);
        }
        Self(spent)
    }
}

/// The namespaces at the ends of a link.
#[derive(Debug)]
pub(crate) struct Namespaces([String; 2]);

impl Namespaces {
    /// The ends of the link this runs on.
    pub(crate) fn from_environment() -> Result<Self, Failure> {
        let end = |name| std::env::var(name).map_err(|_| "not inside lab link");
        Ok(Self([end("LAB_NEAR")?, end("LAB_FAR")?]))
    }

    /// The numbers of the processes at an end.
    fn pids(&self, end: usize) -> Result<Vec<String>, Failure> {
        let listed = Command::new("ip").args(["netns", "pids", &self.0[end]]).output()?;
        let listed = String::from_utf8_lossy(&listed.stdout);
        Ok(listed.split_whitespace().map(str::to_owned).collect())
    }

    /// What the processes at each end have spent, with those they have waited for.
    pub(crate) fn spent(&self) -> Result<BothSpent, Failure> {
        let mut both = BothSpent::default();
        for (end, spent) in both.0.iter_mut().enumerate() {
            for pid in self.pids(end)? {
                // It may have ended since it was listed.
                let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
                    continue;
                };
                let [user, system] = times(&stat).ok_or("a strange /proc/PID/stat")?;
                spent.user += user;
                spent.system += system;
            }
        }
        Ok(both)
    }

    /// From here on [`peaks`](Self::peaks) counts.
    pub(crate) fn forget_peaks(&self) -> Result<(), Failure> {
        for end in 0..self.0.len() {
            for pid in self.pids(end)? {
                // It may have ended since it was listed.
                let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), FORGET_PEAK);
            }
        }
        Ok(())
    }

    /// The most memory that one process of each end has held at a time, in bytes.
    pub(crate) fn peaks(&self) -> Result<[u64; 2], Failure> {
        let mut peaks = [0; 2];
        for (end, peak) in peaks.iter_mut().enumerate() {
            for pid in self.pids(end)? {
                let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
                    continue;
                };
                *peak = peak_of(&status).unwrap_or(0).max(*peak);
            }
        }
        Ok(peaks)
    }
}

/// What makes the kernel begin anew with the peak of a process (proc_pid_clear_refs(5)).
const FORGET_PEAK: &str = "5";

/// How the status of a virtual machine begins: it asks, and its memory is not that of an end.
const GUEST: &str = "Name:\tqemu-system";

/// The peak of resident memory from `/proc/PID/status`, in bytes; kernel threads have none.
fn peak_of(status: &str) -> Option<u64> {
    if status.starts_with(GUEST) {
        return None;
    }
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// User and system time from a line of `/proc/PID/stat`, children that were waited for included.
fn times(stat: &str) -> Option<[f64; 2]> {
    // The name in parentheses may hold anything; utime, stime, cutime, cstime are fields 14 to 17.
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok();
    let (user, system) = (next()?, next()?);
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    Some([(user + next()?) / ticks, (system + next()?) / ticks])
}

/// Times to the microsecond.
pub(crate) mod seconds {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(seconds: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64((seconds * 1e6).round() / 1e6)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        let seconds = f64::deserialize(from)?;
        let is_time = seconds.is_finite() && seconds >= 0.0;
        is_time.then_some(seconds).ok_or_else(|| D::Error::custom("a time that is none"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 9 8 0 0 100 20 300 40 20 0 1 0 5";
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!(times(stat), Some([400.0 / ticks, 60.0 / ticks]));
        assert_eq!(times("7 (a) S 1"), None);
    }

    #[test]
    fn the_peak_is_found_where_there_is_one() {
        assert_eq!(peak_of("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n"), Some(2 << 20));
        assert_eq!(peak_of("Name:\tkthreadd\n"), None);
        assert_eq!(peak_of("Name:\tqemu-system-x86\nVmHWM:\t    2048 kB\n"), None);
    }
}
