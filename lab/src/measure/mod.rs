//! What programs do to the volume that the peers around this have made ready, and what it costs.
//!
//! Before the clock of a measurement starts, a line `begin` is printed, and one line for each thing that
//! was measured when it has stopped, so that whoever reads them can look at the link at both moments.

mod filesystem;
mod fio;
mod sequential;
mod stream;

use std::time::Duration;

use crate::cpu::{BothSpent, Namespaces};
use crate::results::{Measurement, Mode};
use crate::{Failure, units};

/// What is printed when a clock starts.
pub(crate) const BEGIN: &str = "begin";

/// What is asked of a volume, or of the way to it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Task {
    /// Writes one after the other, and a flush
    Write,
    /// Reads one after the other
    Read,
    /// Reads at random places, several at a time
    RandomRead,
    /// Writes at random places, a flush after each
    SyncWrite,
    /// Writes one after the other beside reads one after the other, on a connection each
    Both,
    /// A file system is made twice, lazily and whole, and a file copied onto it
    Filesystem,
    /// A file is copied by scp
    Scp,
    /// One fresh TCP stream
    Stream,
}

impl Task {
    pub(crate) fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A table of measurements on one volume.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Measure {
    /// What is done
    #[arg(long, value_delimiter = ',', default_value = "write,read")]
    pub(crate) tasks: Vec<Task>,
    /// How much a request moves
    #[arg(long, value_delimiter = ',', value_parser = units::size, default_value = "64K")]
    pub(crate) blocks: Vec<u64>,
    /// How many random reads are made at a time
    #[arg(long, default_value_t = 1)]
    pub(crate) depth: u32,
    /// How much is moved, at most; half the volume at most
    #[arg(long, value_parser = units::size, default_value = "256M")]
    pub(crate) bytes: u64,
    /// Less is moved where it would take longer than this; all of it, if not given
    #[arg(long, value_parser = units::duration)]
    pub(crate) time: Option<Duration>,
}

/// One measurement of a table.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    block: u64,
    depth: u32,
    bytes: u64,
    time: Option<Duration>,
}

/// Measures and prints.
pub(crate) fn run(measure: &Measure) -> Result<(), Failure> {
    crate::running::catch_signals()?;
    let costs = Costs { ends: Namespaces::from_environment()? };
    let Measure { depth, bytes, time, .. } = *measure;
    for &task in &measure.tasks {
        for &block in &measure.blocks {
            one(task, Wanted { block, depth, bytes, time }, &costs)?;
        }
    }
    Ok(())
}

fn one(task: Task, wanted: Wanted, costs: &Costs) -> Result<(), Failure> {
    match task {
        Task::Write => sequential::measure(Mode::Write, wanted, costs),
        Task::Read => sequential::measure(Mode::Read, wanted, costs),
        Task::RandomRead | Task::SyncWrite | Task::Both => fio::measure(task, wanted, costs),
        Task::Filesystem => filesystem::measure(wanted, costs),
        Task::Scp => stream::scp(wanted, costs),
        Task::Stream => stream::measure(wanted, costs),
    }
}

/// What a peer says of its volume.
pub(crate) fn from_peer(name: &str) -> Result<String, Failure> {
    std::env::var(name).map_err(|_| format!("no {name}: the peers around this offer none").into())
}

/// Sees what measurements cost both ends.
struct Costs {
    ends: Namespaces,
}

impl Costs {
    /// A clock is about to start.
    fn begin(&self) -> Result<Running<'_>, Failure> {
        self.ends.forget_peaks()?;
        println!("{BEGIN}");
        Ok(Running { ends: &self.ends, before: self.ends.spent()? })
    }
}

/// A measurement under way.
struct Running<'a> {
    ends: &'a Namespaces,
    before: BothSpent,
}

impl Running<'_> {
    /// The clock has stopped: tells what was done, of `block` bytes each and `bytes` in all.
    fn tell(
        &self,
        mode: Mode,
        Wanted { block, depth, .. }: Wanted,
        bytes: u64,
        seconds: f64,
    ) -> Result<(), Failure> {
        let (cpu, peak) = (self.ends.spent()?.since(&self.before), self.ends.peaks()?);
        println!("{}", Measurement { mode, block, depth, bytes, seconds, cpu, peak }.line());
        Ok(())
    }
}
