//! One request at a time, in order.
//!
//! The requests are qemu-io's, a stranger to all of the peers: each is sent when the one before was
//! answered, and a flush ends the writes. The clock runs from when the volume is open until the flush is
//! done.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Costs, Wanted, from_peer};
use crate::Failure;
use crate::results::Mode;
use crate::running::Job;

/// The first of the trials that find out how many requests fill the time.
const TRIAL: u64 = 4;

/// By how much each trial is longer than the one before.
const TRIAL_GROWS: u32 = 8;

/// The part of the time that is long enough to foresee the rest from.
const TRIAL_SHARE: u32 = 8;

/// A trial that takes less than so many times what the one before took says that longer ones are faster
/// still: a connection that starts slowly, or a volume that answers before the other end has.
const STEADY: u32 = TRIAL_GROWS / 2;

/// If this part of what is wanted seems to fit, all of it is moved, so that more is comparable.
const NEARLY_ALL: u64 = 2;

/// What the writes write: not zero, because zeroes may travel as something else.
const PATTERN: u8 = 0xa5;

/// Writes or reads, and tells.
pub(super) fn measure(mode: Mode, wanted: Wanted, costs: &Costs) -> Result<(), Failure> {
    let image = from_peer("LAB_IMAGE")?;
    let count = match wanted.time {
        Some(time) => affordable(&image, mode, wanted, time)?,
        None => wanted.bytes / wanted.block,
    };
    let running = costs.begin()?;
    let taken = requests(&image, mode, wanted.block, 0, count)?;
    running.tell(mode, wanted, count * wanted.block, taken.as_secs_f64())
}

/// How many requests fill the time, as far as they are wanted.
fn affordable(image: &str, mode: Mode, wanted: Wanted, time: Duration) -> Result<u64, Failure> {
    let most = (wanted.bytes / wanted.block).max(1);
    let mut count = TRIAL.min(most);
    let mut before = Duration::ZERO;
    loop {
        // Trials have the second half of the volume to themselves, so that nothing they touched is
        // measured.
        let taken = requests(image, mode, wanted.block, wanted.bytes, count)?;
        match after_trial(count, taken, before, time, most) {
            Next::Measure(count) => return Ok(count),
            Next::Try(more) => (before, count) = (taken, more),
        }
    }
}

/// What follows a trial.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// A trial of so many requests.
    Try(u64),
    /// The measurement, of so many.
    Measure(u64),
}

/// Foresees from a trial of `count` requests, and how long the one `before` took, how many of `most` fill
/// the `time`; or asks for a longer one.
fn after_trial(count: u64, taken: Duration, before: Duration, time: Duration, most: u64) -> Next {
    // The first trial has nothing to be compared with, and a fresh connection ahead of it.
    let compared = !before.is_zero() && taken >= before * STEADY;
    let steady = taken >= time / TRIAL_SHARE && compared;
    if !steady && taken < time && count < most {
        return Next::Try(most.min(count * u64::from(TRIAL_GROWS)));
    }
    let fit = (count as f64 * time.as_secs_f64() / taken.as_secs_f64()) as u64;
    let all = fit >= most.div_ceil(NEARLY_ALL);
    Next::Measure(if all { most } else { fit.max(TRIAL).min(most) })
}

/// How long so many requests take from an offset on.
fn requests(
    image: &str,
    mode: Mode,
    block: u64,
    from: u64,
    count: u64,
) -> Result<Duration, Failure> {
    // A file, because qemu-io looks at its input between commands: a pipe would seem empty.
    let mut script = tempfile::tempfile()?;
    write!(script, "{}", commands(mode, block, from, count))?;
    std::io::Seek::rewind(&mut script)?;
    let mut command = Command::new("qemu-io");
    command.args(["-t", "none"]).args(image.split_whitespace());
    let mut job = Job::start(command.stdin(script).stdout(Stdio::piped()))?;
    let mut printed = BufReader::new(job.stdout().ok_or("no standard output")?);
    let mut mark = || -> Result<Instant, Failure> {
        let mut line = String::new();
        while !line.contains("iB") {
            line.clear();
            if printed.read_line(&mut line)? == 0 {
                return Err("qemu-io ended before its time".into());
            }
            if line.contains("failed") || line.contains("rror") {
                return Err(format!("qemu-io: {}", line.trim()).into());
            }
        }
        Ok(Instant::now())
    };
    let (begin, end) = (mark()?, mark()?);
    job.succeed()?;
    Ok(end - begin)
}

/// The commands, between two that print the volume's size and ask nobody for it.
fn commands(mode: Mode, block: u64, from: u64, count: u64) -> String {
    use std::fmt::Write;
    let mut script = String::from("length\n");
    for index in 0..count {
        let at = from + index * block;
        // Writing to a String cannot fail.
        let _ = match mode {
            Mode::Write => writeln!(script, "write -q -P {PATTERN} {at} {block}"),
            _ => writeln!(script, "read -q {at} {block}"),
        };
    }
    script.push_str(if mode == Mode::Write { "flush\nlength\n" } else { "length\n" });
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_grow_until_they_foretell() {
        let time = Duration::from_secs(4);
        let after = |count, ms: u64, before: u64| {
            let (taken, before) = (Duration::from_millis(ms), Duration::from_millis(before));
            after_trial(count, taken, before, time, 4096)
        };
        // A fresh connection takes several round trips to its speed.
        assert_eq!(after(4, 750, 0), Next::Try(32));
        // Too short to tell anything.
        assert_eq!(after(4, 10, 0), Next::Try(32));
        // Eight times as much took twice as long: it has not come to its speed.
        assert_eq!(after(32, 700, 350), Next::Try(256));
        // A round trip each, whatever their number: a hundred of them fill the time.
        assert_eq!(after(32, 1280, 160), Next::Measure(100));
        // Most of what is wanted fits, so all of it is moved.
        assert_eq!(after(2048, 2500, 500), Next::Measure(4096));
        // What takes too long is kept to a few requests.
        assert_eq!(after(4, 60_000, 0), Next::Measure(4));
        assert_eq!(after(4096, 100, 90), Next::Measure(4096));
    }

    #[test]
    fn writes_are_flushed_before_the_clock_stops() {
        assert_eq!(
            commands(Mode::Write, 4096, 8192, 2),
            "length\nwrite -q -P 165 8192 4096\nwrite -q -P 165 12288 4096\nflush\nlength\n"
        );
        assert_eq!(commands(Mode::Read, 512, 0, 1), "length\nread -q 0 512\nlength\n");
    }
}
