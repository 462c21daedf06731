//! An emulated link between two network namespaces: the far away machine, on one machine.
//!
//! ```text
//! lab link --delay 8ms --rate 1G --loss 0.1% -- COMMAND
//! ```
//!
//! Real programs, with the kernel's own TCP, on a path whose every packet of at most 1500 bytes is
//! delayed, queued and lost by [`testing::link::packets`]: the same conditions and the same emulator that
//! tests run on virtual time. Or, where the kernel has it, by netem.

mod emulate;
mod exchanges;
mod namespaces;
mod netem;
mod train;

use std::io::{PipeReader, PipeWriter};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use host::tun::Tun;
use serde::{Deserialize, Serialize};
use testing::link::Conditions;
use testing::link::packets::Counts;

use emulate::Seen;
pub(crate) use emulate::Traffic;
use exchanges::Exchanges;
pub(crate) use namespaces::FAR;
use namespaces::{DEVICE, Namespaces, ip};

use crate::units;

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot make a TUN device (this needs root, and /dev/net/tun): {0}")]
    Device(#[source] std::io::Error),
    #[error("{program} {arguments}: {why}")]
    Tool { program: &'static str, arguments: String, why: String },
    #[error("this kernel has no netem: load it (modprobe sch_netem), or leave out --by netem")]
    NoNetem,
    #[error("netem shows its packets to nobody: leave out --exchanges, or --by netem")]
    Exchanges,
    #[error("the emulator ended: {0}")]
    Emulator(#[source] std::io::Error),
    #[error("the emulator panicked")]
    Panicked,
}

/// Who emulates it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    clap::ValueEnum,
    Deserialize,
    Serialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LinkMaker {
    /// Ours, on TUN devices
    #[default]
    Emulator,
    /// The kernel's, where it has that
    Netem,
}

impl LinkMaker {
    /// Its name in results and options.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Emulator => "emulator",
            Self::Netem => "netem",
        }
    }
}

/// What the link is like, the same both ways.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// How long a packet travels, one way
    #[arg(long, default_value = "0ms", value_parser = units::duration)]
    pub(crate) delay: Duration,
    /// Bits a second, IP headers included; no limit if not given
    #[arg(long, value_parser = units::rate)]
    pub(crate) rate: Option<u64>,
    /// Bytes that may wait to be sent; what the rate moves in a round trip, and at least 1M, if not given
    #[arg(long, value_parser = units::size)]
    pub(crate) queue: Option<u64>,
    /// The most a packet is late beyond the delay; packets keep their order
    #[arg(long, default_value = "0ms", value_parser = units::duration)]
    pub(crate) jitter: Duration,
    /// The share of packets that are lost, such as 0.1%
    #[arg(long = "loss", default_value = "0%", value_parser = units::per_million)]
    pub(crate) losses_per_million: u32,
    /// The same seed loses the same packets
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Count how often iSCSI writes waited for their target: sessions must be neither sealed nor digested
    #[arg(long)]
    pub(crate) exchanges: bool,
    /// Who emulates the link
    #[arg(long, value_enum, default_value_t)]
    pub(crate) by: LinkMaker,
}

/// The least a queue holds if nothing is said: some burst must fit, however short the link.
const QUEUE_MIN: u64 = 1 << 20;

impl Options {
    /// A link that is far away and limited, and nothing else.
    pub(crate) const fn far(delay: Duration, rate: Option<u64>) -> Self {
        Self {
            delay,
            rate,
            queue: None,
            jitter: Duration::ZERO,
            losses_per_million: 0,
            seed: 1,
            exchanges: false,
            by: LinkMaker::Emulator,
        }
    }

    fn conditions(&self) -> Conditions {
        let round_trip = self.rate.unwrap_or(0) as f64 * 2.0 * self.delay.as_secs_f64();
        let queue = self.queue.unwrap_or_else(|| QUEUE_MIN.max(round_trip as u64));
        Conditions {
            delay: self.delay,
            rate: self.rate,
            queue: usize::try_from(queue).unwrap_or(usize::MAX),
            jitter: self.jitter,
            losses_per_million: self.losses_per_million,
        }
    }
}

/// A link in use. Dropping it ends every process at its ends and removes them.
#[derive(Debug)]
pub(crate) struct Link {
    // First: the devices vanish with the namespaces, which would be an error to the emulator. None if it is netem.
    emulator: Option<Emulator>,
    namespaces: Namespaces,
}

impl Link {
    /// Makes the two ends and joins them.
    pub(crate) fn create(options: &Options) -> Result<Self, Error> {
        match options.by {
            LinkMaker::Emulator => Self::emulated(options),
            LinkMaker::Netem if options.exchanges => Err(Error::Exchanges),
            LinkMaker::Netem => {
                let namespaces = Namespaces::create(|ends| netem::join(ends, options))?;
                Ok(Self { emulator: None, namespaces })
            }
        }
    }

    fn emulated(options: &Options) -> Result<Self, Error> {
        let device = || Tun::create("lab%d").map_err(Error::Device);
        let devices = [device()?, device()?];
        let namespaces = Namespaces::create(|ends| {
            for (end, device) in ends.iter().zip(&devices) {
                ip(&["link", "set", device.name(), "netns", end, "name", DEVICE])?;
            }
            Ok(())
        })?;
        let emulator = Some(Emulator::start(devices, options)?);
        Ok(Self { emulator, namespaces })
    }

    /// A command at the near end. Its environment names both ends and their addresses.
    pub(crate) fn command(&self, program: &str) -> Command {
        self.namespaces.command(program)
    }

    /// A command at the far end.
    pub(crate) fn far_command(&self, program: &str) -> Command {
        self.namespaces.far_command(program)
    }

    /// What it has carried so far, out and back.
    pub(crate) fn seen(&self) -> Result<[Counts; 2], Error> {
        match &self.emulator {
            Some(emulator) => Ok(emulator.seen.get()),
            None => netem::seen(self.namespaces.names()),
        }
    }

    /// Ends the link and says what it carried.
    pub(crate) fn finish(self) -> Result<Traffic, Error> {
        let Some(emulator) = self.emulator else {
            let [out, back] = netem::seen(self.namespaces.names())?;
            return Ok(Traffic { out, back, cpu: None, exchanges: None });
        };
        emulator.finish()
    }
}

/// The thread that carries the packets. It ends when this is dropped.
#[derive(Debug)]
struct Emulator {
    thread: JoinHandle<std::io::Result<Traffic>>,
    stop: PipeWriter,
    seen: Arc<Seen>,
}

impl Emulator {
    fn start(devices: [Tun; 2], options: &Options) -> Result<Self, Error> {
        let (stopped, stop): (PipeReader, _) = std::io::pipe().map_err(Error::Emulator)?;
        let conditions = (options.conditions(), options.seed);
        let exchanges = options.exchanges.then(Exchanges::default);
        let seen = Arc::new(Seen::default());
        let counts = Arc::clone(&seen);
        let run = move || emulate::run(&devices, conditions, &stopped, &counts, exchanges);
        Ok(Self { thread: std::thread::spawn(run), stop, seen })
    }

    fn finish(self) -> Result<Traffic, Error> {
        drop(self.stop);
        self.thread.join().map_err(|_| Error::Panicked)?.map_err(Error::Emulator)
    }
}
