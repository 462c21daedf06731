//! The clients that make the load: strangers, so that no code of ours is on both sides.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;

use crate::Failure;
use crate::running::{Job, output};

/// The core the client has for itself.
pub(crate) const CLIENT_CORE: &str = "1";

/// After which an `iscsi-perf` has long logged in and reads.
const READING: Duration = Duration::from_millis(300);

/// A pattern of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) client: Client,
    pub(crate) block: usize,
    pub(crate) depth: usize,
}

/// Who asks, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Client {
    /// `iscsi-perf`, which reads at random.
    PerfRandomRead,
    /// `qemu-img bench`, reading one block after another.
    QemuRead,
    /// `qemu-img bench`, writing one block after another.
    QemuWrite,
}

impl Load {
    pub(crate) fn name(&self) -> String {
        let what = match self.client {
            Client::PerfRandomRead => "random read (iscsi-perf)",
            Client::QemuRead => "sequential read (qemu-img)",
            Client::QemuWrite => "sequential write (qemu-img)",
        };
        format!("{} KiB, depth {}, {what}", self.block / 1024, self.depth)
    }

    /// Runs for about `seconds` and says how many requests a second were answered, and how many in all.
    pub(crate) fn run(&self, uri: &str, seconds: u32) -> Result<Rate, Failure> {
        match self.client {
            Client::PerfRandomRead => self.perf(uri, seconds),
            Client::QemuRead => self.qemu(uri, seconds, &[]),
            Client::QemuWrite => self.qemu(uri, seconds, &["-w", "--pattern=165"]),
        }
    }

    /// Writes all of a volume of `size` bytes, so that reads read something.
    pub(crate) fn fill(uri: &str, size: usize) -> Result<(), Failure> {
        let all = Self { client: Client::QemuWrite, block: 1 << 20, depth: 8 };
        all.qemu_count(uri, size / all.block, &["-w", "--pattern=165"]).map(drop)
    }

    fn perf(&self, uri: &str, seconds: u32) -> Result<Rate, Failure> {
        let per_second = Reader::start(self, uri, seconds)?.finish()?;
        Ok(Rate { per_second, requests: per_second * f64::from(seconds) })
    }

    /// qemu-img wants a number of requests, so a short run finds out how many fill the time.
    fn qemu(&self, uri: &str, seconds: u32, how: &[&str]) -> Result<Rate, Failure> {
        let trial = 400 * self.depth.min(8);
        let trial_seconds = self.qemu_count(uri, trial, how)?;
        let count = (trial as f64 / trial_seconds * f64::from(seconds)).ceil() as usize;
        let taken = self.qemu_count(uri, count, how)?;
        Ok(Rate { per_second: count as f64 / taken, requests: (count + trial) as f64 })
    }

    fn qemu_count(&self, uri: &str, count: usize, how: &[&str]) -> Result<f64, Failure> {
        let output = output(
            Command::new("taskset")
                .args(["-c", CLIENT_CORE, "qemu-img", "bench", "-f", "raw", "-t", "none"])
                .args(how)
                .args([
                    format!("-d{}", self.depth),
                    format!("-s{}", self.block),
                    format!("-c{count}"),
                    uri.to_owned(),
                ]),
        )?;
        let taken =
            output.rsplit("Run completed in ").next().and_then(|rest| rest.split(' ').next());
        Ok(taken.ok_or("qemu-img printed no time")?.parse()?)
    }
}

/// An `iscsi-perf` that runs.
pub(crate) struct Reader(Job);

impl Reader {
    /// Reads at random for so many seconds.
    pub(crate) fn start(load: &Load, uri: &str, seconds: u32) -> Result<Self, Failure> {
        let mut command = Command::new("taskset");
        command.args(["-c", CLIENT_CORE, "iscsi-perf", "-r"]).args([
            format!("-m{}", load.depth),
            format!("-b{}", load.block / 512),
            format!("-t{seconds}"),
            uri.to_owned(),
        ]);
        Ok(Self(Job::start(command.stdout(Stdio::piped()))?))
    }

    /// How many requests a second were answered, when it has ended.
    pub(crate) fn finish(mut self) -> Result<f64, Failure> {
        let mut printed = String::new();
        let mut output = self.0.stdout().ok_or("no standard output")?;
        output.read_to_string(&mut printed)?;
        let average =
            printed.rsplit("iops average ").next().and_then(|rest| rest.split(' ').next());
        Ok(average.ok_or("iscsi-perf printed no average")?.parse()?)
    }

    /// Stops it in the middle of its reading: it takes nothing any more, and holds its connection.
    pub(crate) fn stall(self) -> Result<Self, Failure> {
        sleep(READING);
        self.0.signal(Signal::STOP)?;
        Ok(self)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// What a run achieved.
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    /// All requests the target saw.
    pub(crate) requests: f64,
}
