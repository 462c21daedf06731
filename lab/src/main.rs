//! Benchmarks of Longhaul beside its peers, in one run, on one machine, as ratios.
//!
//! ```text
//! lab bench --longhaul target/release/longhaul --output docs/benchmarks.md
//! lab link --delay 8ms --rate 1G -- ping -c 3 10.77.0.2
//! ```
#![forbid(unsafe_code)]

mod bench;
mod calibrate;
mod copy;
mod cpu;
mod flow;
mod link;
mod load;
mod plaintext;
mod report;
mod running;
mod server;
mod units;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use running::Job;

/// Anything that stops a benchmark.
type Failure = Box<dyn std::error::Error>;

/// Measures and inspects Longhaul from outside.
#[derive(Debug, Parser)]
enum Lab {
    /// Runs the target and the copy benchmarks and writes the report
    Bench(Bench),
    /// Looks for blocks of an image in a file that a server holds; fails if it finds one
    Plaintext {
        /// The image in plain text
        image: PathBuf,
        /// The file the server holds
        served: PathBuf,
    },
    /// Runs a command at one end of an emulated link to another network namespace
    ///
    /// The command finds both ends in LAB_NEAR, LAB_FAR, LAB_NEAR_ADDRESS and LAB_FAR_ADDRESS, and starts
    /// a program at the other end with: ip netns exec $LAB_FAR PROGRAM
    Link {
        #[command(flatten)]
        options: link::Options,
        /// What to run, and its arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Measures what emulated links are worth: the round trip, and what one fresh TCP stream moves
    Calibrate(calibrate::Calibrate),
    /// Sends bytes over one fresh TCP stream to `lab receive` and prints the seconds it took
    Send {
        /// Where the receiver listens
        address: String,
        /// How much
        #[arg(value_parser = units::size)]
        bytes: u64,
    },
    /// Receives one stream from `lab send`
    Receive {
        /// Where to listen
        address: String,
    },
}

#[derive(Debug, clap::Args)]
struct Bench {
    /// The longhaul program to measure
    #[arg(long, default_value = "target/release/longhaul")]
    longhaul: PathBuf,
    /// Where the report goes; standard output if not given
    #[arg(long)]
    output: Option<PathBuf>,
    /// How often each measurement alternates between the peers; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds for each measurement of a round
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Runs only the cases whose name contains this
    #[arg(long, default_value = "")]
    only: String,
}

fn main() -> ExitCode {
    let outcome = match Lab::parse() {
        Lab::Bench(options) => bench(&options),
        Lab::Plaintext { image, served } => plaintext::search(&image, &served),
        Lab::Link { options, command } => over_link(&options, &command),
        Lab::Calibrate(wanted) => calibrate::run(&wanted),
        Lab::Send { address, bytes } => {
            flow::send(&address, bytes).map(|taken| println!("{:.6}", taken.as_secs_f64()))
        }
        Lab::Receive { address } => flow::receive(&address),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("lab: {why}");
            ExitCode::FAILURE
        }
    }
}

fn bench(options: &Bench) -> Result<(), Failure> {
    let target = bench::against_tgt(options)?;
    let copies = copy::sealed_against_plain(options)?;
    let report = report::markdown(options, &target, &copies)?;
    match &options.output {
        Some(path) => std::fs::write(path, report)?,
        None => print!("{report}"),
    }
    Ok(())
}

fn over_link(options: &link::Options, command: &[String]) -> Result<(), Failure> {
    let (program, arguments) = command.split_first().ok_or("no command")?;
    running::catch_signals()?;
    let link = link::Link::create(options)?;
    let outcome =
        Job::start(link.command(program).args(arguments)).and_then(|mut job| job.succeed());
    let traffic = link.finish()?;
    eprintln!("lab: {traffic}");
    Ok(outcome?)
}
