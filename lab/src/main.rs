//! Benchmarks of Longhaul beside its peers, in one run, on one machine, as ratios.
//!
//! ```text
//! lab bench --longhaul target/release/longhaul --output docs/benchmarks.md
//! lab link --delay 8ms --rate 1G -- ping -c 3 10.77.0.2
//! ```
#![forbid(unsafe_code)]

mod bare_loop;
mod bench;
mod beside;
mod calibrate;
mod chart;
mod cipher;
mod copy;
mod cpu;
mod direction;
mod fleet;
mod flow;
mod link;
mod load;
mod measure;
mod page;
mod papers;
mod plaintext;
mod plan;
mod report;
mod results;
mod rounds;
mod running;
mod secure_session;
mod server;
mod sessions;
mod tables;
mod throughput;
mod triple_des;
mod trips;
mod units;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use host::allocator::Recycler;

use report::Measured;
use running::Job;

/// The allocator of the program that is measured, since [`throughput`] is a part of it.
#[global_allocator]
static ALLOCATOR: Recycler = Recycler::new();

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
    /// Runs a plan (lab/plans) from the root of the repository; results as tab-separated text
    Plan {
        /// The plan
        plan: PathBuf,
        /// Where the results go; standard output if not given
        #[arg(long)]
        output: Option<PathBuf>,
        /// Keeps what the output has of the plan, and measures the rest
        #[arg(long, requires = "output")]
        resume: bool,
        #[command(flatten)]
        only: plan::Only,
        /// Who emulates the links
        #[arg(long, value_enum, default_value_t)]
        by: link::LinkMaker,
    },
    /// Makes one page of the results of plans, with charts and the papers' figures beside
    Report {
        /// Results, as `lab plan` wrote them
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// Where the page goes; standard output if not given
        #[arg(long)]
        output: Option<PathBuf>,
        /// Tables for a Markdown page instead of HTML
        #[arg(long)]
        markdown: bool,
    },
    /// Draws what programs on mounted volumes do, by the results of scripts/bench-mounts, as SVG
    Chart {
        /// Results: delay, way, program and figure
        results: PathBuf,
        /// What the names of the programs begin with
        #[arg(long = "program", required = true)]
        programs: Vec<String>,
        /// Where the picture goes; standard output if not given
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// Measures the volume of the peers around this
    Measure(measure::Measure),
    /// Compares sessions of our own program with itself, plain and secure: rate and cost of both ends
    SecureSession(secure_session::SecureSession),
    /// Loads a volume through our own initiator, and says what that cost
    Throughput(throughput::Throughput),
    /// Simulates a fleet of gateways on virtual time: lease traffic, take-overs, balance
    Fleet(fleet::Fleet),
    /// Times single writes to the volume of the peers around this, in round trips
    Trips(trips::Trips),
    /// Sends bytes over one fresh TCP stream to `lab receive` and prints the seconds it took
    Send {
        /// Where the receiver listens
        address: String,
        /// How much
        #[arg(value_parser = units::size)]
        bytes: u64,
        #[command(flatten)]
        cut: flow::Cut,
    },
    /// Receives one stream from `lab send`
    Receive {
        /// Where to listen
        address: String,
        #[command(flatten)]
        cut: flow::Cut,
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
    #[arg(long, default_value_t = 1)]
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
        Lab::Plan { plan, output, resume, only, by } => {
            run_plan(&plan, &only, by, output.as_deref(), resume)
        }
        Lab::Report { results, output, markdown } => {
            report_on(&results, output.as_deref(), markdown)
        }
        Lab::Chart { results, programs, output } => draw(&results, &programs, output.as_deref()),
        Lab::Measure(wanted) => measure::run(&wanted),
        Lab::SecureSession(wanted) => secure_session::run(&wanted),
        Lab::Throughput(load) => throughput::run(load),
        Lab::Fleet(wanted) => fleet::run(&wanted),
        Lab::Trips(wanted) => trips::run(&wanted),
        Lab::Send { address, bytes, cut } => {
            flow::send(&address, bytes, cut).map(|taken| println!("{:.6}", taken.as_secs_f64()))
        }
        Lab::Receive { address, cut } => flow::receive(&address, cut),
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
    let measured = Measured {
        rows: bench::against_tgt(options)?,
        floors: bare_loop::measure(options)?,
        sessions: sessions::measure(options)?,
        copies: copy::encrypted_against_plain(options)?,
    };
    let mut report = report::markdown(options, &measured)?;
    report.push_str(&secure_session::section(options)?);
    put(options.output.as_deref(), &report)
}

fn put(output: Option<&Path>, text: &str) -> Result<(), Failure> {
    match output {
        Some(path) => std::fs::write(path, text)?,
        None => print!("{text}"),
    }
    Ok(())
}

fn report_on(results: &[PathBuf], output: Option<&Path>, markdown: bool) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for path in results {
        rows.extend(results_in(path)?);
    }
    put(output, &if markdown { page::markdown(rows) } else { page::html(rows) })
}

fn draw(results: &Path, programs: &[String], output: Option<&Path>) -> Result<(), Failure> {
    put(output, &chart::picture(&std::fs::read_to_string(results)?, programs)?)
}

fn results_in(path: &Path) -> Result<Vec<results::Row>, Failure> {
    let named = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let text = std::fs::read_to_string(path).map_err(|why| named(&why))?;
    Ok(results::parse(&text).map_err(|why| named(&why))?)
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

fn run_plan(
    plan: &Path,
    only: &plan::Only,
    by: link::LinkMaker,
    output: Option<&Path>,
    resume: bool,
) -> Result<(), Failure> {
    let had = output.filter(|path| resume && path.exists());
    let had = had.map_or_else(|| Ok(Vec::new()), results_in)?;
    let mut results: Box<dyn Write> = match output {
        Some(path) if resume => Box::new(File::options().append(true).create(true).open(path)?),
        Some(path) => Box::new(File::create(path)?),
        None => Box::new(std::io::stdout()),
    };
    // Each line at once: a plan takes long, and what it has measured is worth keeping.
    let mut lost = Ok(());
    let failures = plan::run(plan, only, by, had, |line| {
        eprintln!("{line}");
        // With its end in one piece: whoever resumes reads them all.
        let whole = format!("{line}\n");
        lost =
            std::mem::replace(&mut lost, Ok(())).and_then(|()| results.write_all(whole.as_bytes()));
    })?;
    lost?;
    if failures == 0 { Ok(()) } else { Err(format!("{failures} parts of the plan failed").into()) }
}
