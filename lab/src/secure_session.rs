//! What a secure session costs: the same volume, the same load, our own program at both ends, plain and
//! secure by turns, one core for each end.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::direction::Direction;
use crate::load::CLIENT_CORE;
use crate::rounds::{by_turns, median_of};
use crate::running::{Job, output};
use crate::server::{Server, TARGET_CORE};
use crate::throughput::{BEGIN, Moved};
use crate::{Bench, Failure, cpu, units};

/// The volume: larger than the caches, and soon touched all over.
const VOLUME: &str = "memory:256M";

/// What is compared, and how often.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SecureSession {
    /// The longhaul program to measure
    #[arg(long, default_value = "target/release/longhaul")]
    longhaul: PathBuf,
    /// Writing, reading or both
    #[arg(long, value_delimiter = ',', default_value = "write,read")]
    modes: Vec<Direction>,
    /// How much a request moves
    #[arg(long, value_delimiter = ',', value_parser = units::size, default_value = "64K,256K")]
    blocks: Vec<u64>,
    /// Requests at a time
    #[arg(long, default_value_t = 8)]
    depth: usize,
    /// How often plain and secure take turns; the medians count
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each run is measured
    #[arg(long, value_parser = units::duration, default_value = "1s")]
    time: Duration,
    /// What secure sessions are given
    #[arg(long, default_value = "encrypt")]
    protection: String,
    /// The cores the target may use, as `taskset -c` takes them
    #[arg(long, default_value = TARGET_CORE)]
    target_cores: String,
    /// The cores the client may use
    #[arg(long, default_value = CLIENT_CORE)]
    client_cores: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Plain,
    Secure,
}

/// One run, or the medians of several.
#[derive(Clone, Copy)]
struct Figures {
    /// Bytes a second.
    rate: f64,
    /// Nanoseconds of processor per KiB, at the client and at the target.
    client: f64,
    target: f64,
}

impl Figures {
    fn both(&self) -> f64 {
        self.client + self.target
    }
}

impl SecureSession {
    /// What the report shows.
    fn of(options: &Bench) -> Self {
        Self {
            longhaul: options.longhaul.clone(),
            modes: vec![Direction::Write, Direction::Read],
            blocks: vec![64 << 10, 256 << 10],
            depth: 8,
            rounds: options.rounds,
            time: Duration::from_secs(options.seconds.into()),
            protection: "encrypt".to_owned(),
            target_cores: TARGET_CORE.to_owned(),
            client_cores: CLIENT_CORE.to_owned(),
        }
    }
}

/// A section of the report.
pub(crate) fn section(options: &Bench) -> Result<String, Failure> {
    if !"secure session".contains(&options.only) {
        return Ok(String::new());
    }
    let table = table(&SecureSession::of(options))?;
    Ok(format!("\n## Secure session beside a plain one\n\n{INTRODUCTION}\n{table}"))
}

const INTRODUCTION: &str = "\
`lab throughput` at depth 8, which is the initiator of `longhaul` itself, and `longhaul serve` over `memory:256M`. The
cost is processor time of both ends together for each KiB that was moved.
";

/// Measures and prints a table.
pub(crate) fn run(wanted: &SecureSession) -> Result<(), Failure> {
    crate::running::catch_signals()?;
    print!("{}", table(wanted)?);
    Ok(())
}

fn table(wanted: &SecureSession) -> Result<String, Failure> {
    let scratch = tempfile::tempdir()?;
    let stage = Stage::new(wanted, scratch.path())?;
    let mut table = HEAD.to_owned();
    for &mode in &wanted.modes {
        for &block in &wanted.blocks {
            let rounds = by_turns(
                wanted.rounds,
                [&mut || stage.measure(End::Plain, mode, block), &mut || {
                    stage.measure(End::Secure, mode, block)
                }],
            )?;
            let [plain, secure] = rounds.map(|round| Figures::median(&round));
            writeln!(table, "{}", line(mode, block, &plain, &secure)?)?;
        }
    }
    Ok(table)
}

const HEAD: &str = "\
| load | plain MB/s | secure MB/s | ratio | plain ns/KiB, client + target | secure ns/KiB | ratio |
|---|---|---|---|---|---|---|
";

fn line(mode: Direction, block: u64, plain: &Figures, secure: &Figures) -> Result<String, Failure> {
    let mut line = String::new();
    write!(line, "| {} KiB {} ", block >> 10, mode.name())?;
    write!(line, "| {:.0} | {:.0} ", plain.rate / 1e6, secure.rate / 1e6)?;
    write!(line, "| **{:.2}** ", secure.rate / plain.rate)?;
    for way in [plain, secure] {
        write!(line, "| {:.0} + {:.0} ", way.client, way.target)?;
    }
    write!(line, "| **{:.2}** |", secure.both() / plain.both())?;
    Ok(line)
}

/// The two targets, and who the client is to the secure one.
struct Stage<'a> {
    wanted: &'a SecureSession,
    identity: PathBuf,
    plain: Server,
    secure: Server,
}

impl<'a> Stage<'a> {
    fn new(wanted: &'a SecureSession, scratch: &Path) -> Result<Self, Failure> {
        let (identity, servers) = (scratch.join("client"), scratch.join("server"));
        let client = new_identity(&wanted.longhaul, &identity)?;
        new_identity(&wanted.longhaul, &servers)?;
        let servers = servers.to_str().ok_or("a scratch directory that is no text")?;
        let serve = |options: &[&str]| {
            Server::longhaul(&wanted.longhaul, &wanted.target_cores, VOLUME, options)
        };
        let secure = ["--identity", servers, "--client-key", &client, "--protection", "integrity"];
        Ok(Self { wanted, identity, plain: serve(&[])?, secure: serve(&secure)? })
    }

    fn measure(&self, end: End, mode: Direction, block: u64) -> Result<Figures, Failure> {
        let SecureSession { depth, time, .. } = self.wanted;
        let server = match end {
            End::Plain => &self.plain,
            End::Secure => &self.secure,
        };
        let mut command = Command::new("taskset");
        command.args(["-c", &self.wanted.client_cores]).arg(std::env::current_exe()?);
        command.args(["throughput", &server.uri, "--mode", mode.name()]);
        command.args(["--block", &block.to_string(), "--depth", &depth.to_string()]);
        command.args(["--time", &format!("{}ms", time.as_millis())]);
        if end == End::Secure {
            command.arg("--identity").arg(&self.identity);
            command.args(["--protection", &self.wanted.protection]);
        }
        let mut job = Job::start(command.stdout(Stdio::piped()))?;
        let mut lines = BufReader::new(job.stdout().ok_or("no standard output")?).lines();
        let mut line = || lines.next().unwrap_or_else(|| Ok(String::new()));
        if line()? != BEGIN {
            return Err("the load did not begin".into());
        }
        let before = cpu::spent(server.pid())?;
        let moved = Moved::parse(&line()?).ok_or("the load did not end")?;
        let spent = (cpu::spent(server.pid())? - before).as_secs_f64();
        job.succeed()?;
        let per_kib = |seconds: f64| seconds * 1e9 / (moved.bytes as f64 / 1024.0);
        let rate = moved.bytes as f64 / moved.seconds;
        Ok(Figures { rate, client: per_kib(moved.cpu), target: per_kib(spent) })
    }
}

/// Makes an identity; its public key.
fn new_identity(program: &Path, path: &Path) -> Result<String, Failure> {
    let printed = output(Command::new(program).args(["identity", "new"]).arg(path))?;
    Ok(printed.trim().to_owned())
}

impl Figures {
    fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median_of(rounds, figure);
        Self {
            rate: of(|round| round.rate),
            client: of(|round| round.client),
            target: of(|round| round.target),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_both_ends_and_the_ratios() {
        let plain = Figures { rate: 2e9, client: 100.0, target: 100.0 };
        let secure = Figures { rate: 1.8e9, client: 110.0, target: 130.0 };
        let line = line(Direction::Read, 256 << 10, &plain, &secure).unwrap();
        assert_eq!(
            line,
            "| 256 KiB read | 2000 | 1800 | **0.90** | 100 + 100 | 110 + 130 | **1.20** |"
        );
    }
}
