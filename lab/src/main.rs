//! Benchmarks of Longhaul beside its peers, in one run, on one machine, as ratios.
//!
//! ```text
//! lab bench --longhaul target/release/longhaul --output docs/benchmarks.md
//! ```
#![forbid(unsafe_code)]

mod bench;
mod copy;
mod cpu;
mod load;
mod plaintext;
mod report;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

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
