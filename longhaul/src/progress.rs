//! How far a long command is: a bar on a terminal, plain lines elsewhere, nothing for scripts.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::print_error;

/// Where it is not a terminal, a line this often.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

const BAR: &str = "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";

/// The progress of one activity through a known number of bytes, on standard error.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    total: u64,
    done: Cell<u64>,
    started: Instant,
    shown: Shown,
}

#[derive(Debug)]
enum Shown {
    Not,
    Bar(ProgressBar),
    Lines { next: Cell<Instant> },
}

impl Progress {
    /// `what` through `total` bytes begins now; it is shown unless it is `quiet`.
    #[must_use]
    pub fn new(what: &'static str, total: u64, quiet: bool) -> Self {
        let started = Instant::now();
        let shown = if quiet {
            Shown::Not
        } else if io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template(BAR).expect("the template is well-formed");
            Shown::Bar(bar.with_style(style.progress_chars("=> ")).with_message(what))
        } else {
            Shown::Lines { next: Cell::new(started + LINE_INTERVAL) }
        };
        Self { what, total, done: Cell::new(0), started, shown }
    }

    /// `bytes` more are done.
    pub fn advance(&self, bytes: u64) {
        let done = self.done.get() + bytes;
        self.done.set(done);
        match &self.shown {
            Shown::Not => {}
            Shown::Bar(bar) => bar.set_position(done),
            Shown::Lines { next } => {
                let now = Instant::now();
                if now >= next.get() && done < self.total {
                    next.set(now + LINE_INTERVAL);
                    print_error(&line(self.what, done, self.total, now - self.started));
                }
            }
        }
    }
}

impl Drop for Progress {
    /// What is left on the screen is the outcome.
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

/// Something whose end nobody knows is under way, which a terminal shows.
#[derive(Debug)]
pub struct Spinner(Option<ProgressBar>);

impl Spinner {
    /// `what` begins now, and ends when this is dropped.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        let shown = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner().with_message(what);
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self(shown)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Files or bytes are being moved, nobody knows how many: shown on a terminal, told by lines elsewhere.
#[derive(Debug)]
pub struct Count {
    what: &'static str,
    bar: Option<ProgressBar>,
    started: Instant,
    next: Cell<Instant>,
}

impl Count {
    /// `what` begins now, and ends when this is dropped.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        let bar = io::stderr().is_terminal().then(ProgressBar::new_spinner);
        let started = Instant::now();
        let first = if bar.is_some() { Duration::ZERO } else { LINE_INTERVAL };
        Self { what, bar, started, next: Cell::new(started + first) }
    }

    /// So many files are done by now.
    pub fn set(&self, files: u64, bytes: u64) {
        self.show(&format!("{files} files, "), bytes);
    }

    /// So many bytes are done by now.
    pub fn set_bytes(&self, bytes: u64) {
        self.show("", bytes);
    }

    fn show(&self, files: &str, bytes: u64) {
        /// How often a terminal is written to.
        const REDRAWN: Duration = Duration::from_millis(200);
        let now = Instant::now();
        if now < self.next.get() {
            return;
        }
        let (what, moved) = (self.what, HumanBytes(bytes));
        let line = format!("{what}: {files}{moved}, {}", rate(bytes, now - self.started));
        match &self.bar {
            Some(bar) => {
                bar.set_message(line);
                bar.tick();
                self.next.set(now + REDRAWN);
            }
            None => {
                print_error(&line);
                self.next.set(now + LINE_INTERVAL);
            }
        }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn line(what: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let left = elapsed.mul_f64((total - done) as f64 / done.max(1) as f64);
    format!(
        "{what}: {} of {} ({} %), {}, {} left",
        HumanBytes(done),
        HumanBytes(total),
        u128::from(done) * 100 / u128::from(total.max(1)),
        rate(done, elapsed),
        HumanDuration(left),
    )
}

/// `bytes` in `elapsed`, for people.
#[must_use]
pub fn rate(bytes: u64, elapsed: Duration) -> String {
    let per_second = bytes as f64 / elapsed.as_secs_f64().max(1e-6);
    format!("{}/s", HumanBytes(per_second as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_how_fast_and_how_long() {
        let line = line("copying", 256 << 20, 1 << 30, Duration::from_secs(2));
        assert_eq!(line, "copying: 256.00 MiB of 1.00 GiB (25 %), 128.00 MiB/s, 6 seconds left");
    }

    #[test]
    fn the_first_byte_divides_nothing_by_zero() {
        assert!(line("copying", 0, 0, Duration::ZERO).starts_with("copying: 0 B of 0 B (0 %)"));
    }
}
