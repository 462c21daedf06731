//! The clients that make the load: strangers, so that no code of ours is on both sides.

use std::process::Command;

use crate::Failure;

/// The core the client has for itself.
pub(crate) const CLIENT_CORE: &str = "1";

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

    fn perf(&self, uri: &str, seconds: u32) -> Result<Rate, Failure> {
        let output =
            output(Command::new("taskset").args(["-c", CLIENT_CORE, "iscsi-perf", "-r"]).args([
                format!("-m{}", self.depth),
                format!("-b{}", self.block / 512),
                format!("-t{seconds}"),
                uri.to_owned(),
            ]))?;
        let average = output.rsplit("iops average ").next().and_then(|rest| rest.split(' ').next());
        let per_second: f64 = average.ok_or("iscsi-perf printed no average")?.parse()?;
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

/// What a run achieved.
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    /// All requests the target saw.
    pub(crate) requests: f64,
}

fn output(command: &mut Command) -> Result<String, Failure> {
    let done = command.output()?;
    if !done.status.success() {
        let why = String::from_utf8_lossy(&done.stderr);
        return Err(format!("{command:?} failed: {}", why.trim()).into());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
