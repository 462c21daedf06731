//! Plans: which links, blocks, modes and peers are measured, as text.

mod resume;

use std::num::TryFromIntError;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use testing::link::packets::Counts;

use crate::calibrate;
use crate::cpu::BothSpent;
use crate::link::{Link, LinkMaker, Options};
use crate::measure::{BEGIN, Task};
use crate::results::{self, AUTO, Conditions, Measurement, Mode, Row, TCP, Wire};
use crate::{Failure, running, units};

use resume::EarlierResults;

/// A plan file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// What the results call it.
    name: String,
    /// One after the other.
    #[serde(rename = "matrix")]
    matrices: Vec<Matrix>,
}

/// Everything in it with everything else in it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Matrix {
    /// Of the link, in bits a second.
    rate: String,
    /// One way.
    delays: Vec<String>,
    #[serde(default = "no_loss")]
    losses: Vec<String>,
    #[serde(default = "first_seed")]
    seed: u64,
    blocks: Vec<String>,
    /// How many random reads are made at a time.
    #[serde(default = "once")]
    depth: u32,
    tasks: Vec<Task>,
    /// Scripts in `lab/peers`, outermost first; or `tcp` for one fresh stream.
    peers: Vec<String>,
    /// How many segments a pipeline has in flight, of a block each, and `auto` for what it chooses; only
    /// peers that have a pipeline are measured with a number.
    #[serde(default = "chosen")]
    in_flight: Vec<String>,
    /// The most a measurement moves.
    bytes: String,
    /// The longest it may take, about; without it all is moved, however long it takes.
    time: Option<String>,
    /// How long a peer may take with all that is measured on it, before that is given up.
    #[serde(default = "ten_minutes")]
    limit: String,
    /// Each measurement has peers that were just started, so that none profits from the one before.
    #[serde(default)]
    fresh: bool,
    /// How often all of it is measured.
    #[serde(default = "once")]
    rounds: u32,
    /// The size of the volume; twice the bytes if not given.
    volume: Option<String>,
}

fn no_loss() -> Vec<String> {
    vec!["0%".into()]
}

const fn first_seed() -> u64 {
    1
}

const fn once() -> u32 {
    1
}

fn chosen() -> Vec<String> {
    vec![AUTO.into()]
}

fn ten_minutes() -> String {
    "600s".into()
}

/// The parts of a plan that are run; everything where nothing is said.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Only {
    /// Runs only what has one of these delays
    #[arg(long = "delay", value_delimiter = ',', value_parser = units::duration)]
    delays: Vec<Duration>,
    /// Runs only these peers
    #[arg(long = "peer", value_delimiter = ',')]
    peers: Vec<String>,
    /// Runs only these tasks
    #[arg(long = "task", value_delimiter = ',')]
    tasks: Vec<Task>,
    /// Runs only blocks of these sizes
    #[arg(long = "block", value_delimiter = ',', value_parser = units::size)]
    blocks: Vec<u64>,
}

impl Only {
    fn takes(&self, run: &Run) -> bool {
        fn among<T: PartialEq>(some: &[T], one: &T) -> bool {
            some.is_empty() || some.contains(one)
        }
        among(&self.delays, &run.link.delay) && among(&self.peers, &run.peer)
    }

    /// What of a run is to be done; none if nothing is.
    fn part(&self, run: &Run) -> Option<Run> {
        let mut part = run.clone();
        part.tasks.retain(|task| self.tasks.is_empty() || self.tasks.contains(task));
        part.blocks.retain(|block| self.blocks.is_empty() || self.blocks.contains(block));
        (self.takes(run) && !part.tasks.is_empty() && !part.blocks.is_empty()).then_some(part)
    }
}

/// Why a text is no plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Syntax(#[from] toml::de::Error),
    #[error(transparent)]
    Quantity(#[from] units::NotOne),
    #[error("`{0}` is no peer: a peer is named by letters, digits and hyphens")]
    Peer(String),
    #[error("`{0}` is no number of segments in flight, such as 4, nor auto")]
    InFlight(String),
    #[error("segments in flight are fixed for one block at a time: the matrix has to be fresh")]
    Fresh,
    #[error("the plan measures nothing")]
    Nothing,
}

/// One peer on one link: what is set up once and then measured with every block and mode.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    link: Options,
    rate: u64,
    peer: String,
    blocks: Vec<u64>,
    depth: u32,
    tasks: Vec<Task>,
    in_flight: String,
    bytes: u64,
    time: Option<String>,
    limit: Duration,
    fresh: bool,
    volume: u64,
}

impl Plan {
    /// Reads a plan. Everything in it is checked before anything is run.
    pub(crate) fn parse(text: &str) -> Result<(String, Vec<Run>), Error> {
        let plan: Self = toml::from_str(text)?;
        let mut runs = Vec::new();
        for matrix in &plan.matrices {
            matrix.runs(&mut runs)?;
        }
        if runs.is_empty() { Err(Error::Nothing) } else { Ok((plan.name, runs)) }
    }
}

impl Matrix {
    fn runs(&self, runs: &mut Vec<Run>) -> Result<(), Error> {
        self.check_in_flight()?;
        let rate = units::rate(&self.rate)?;
        let bytes = units::size(&self.bytes)?;
        self.time.as_deref().map(units::duration).transpose()?;
        let volume = self.volume.as_deref().map(units::size).transpose()?;
        let blocks = self.blocks.iter().map(|block| units::size(block));
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        for (delay, loss) in product(&self.delays, &self.losses) {
            let mut link = Options::far(units::duration(delay)?, Some(rate));
            link.losses_per_million = units::per_million(loss)?;
            link.seed = self.seed;
            for (_, (peer, in_flight)) in (0..self.rounds)
                .flat_map(|n| product(&self.peers, &self.in_flight).map(move |p| (n, p)))
            {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
                if !peer.split(' ').all(|name| !name.is_empty() && name.bytes().all(plain)) {
                    return Err(Error::Peer(peer.clone()));
                }
                if in_flight != AUTO && !peer.contains(OURS) {
                    continue;
                }
                runs.push(Run {
                    link: link.clone(),
                    rate,
                    peer: peer.clone(),
                    blocks: blocks.clone(),
                    depth: self.depth,
                    tasks: self.tasks.clone(),
                    in_flight: in_flight.clone(),
                    bytes,
                    time: self.time.clone(),
                    limit: units::duration(&self.limit)?,
                    fresh: self.fresh,
                    volume: volume.unwrap_or(2 * bytes).max(VOLUME_MIN),
                });
            }
        }
        Ok(())
    }

    fn check_in_flight(&self) -> Result<(), Error> {
        let fixed = || self.in_flight.iter().filter(|number| *number != AUTO);
        match fixed().find(|number| !number.parse::<u32>().is_ok_and(|number| number > 0)) {
            Some(wrong) => Err(Error::InFlight(wrong.clone())),
            None if fixed().next().is_some() && !self.fresh => Err(Error::Fresh),
            None => Ok(()),
        }
    }
}

/// What the names of peers with a pipeline have in them.
const OURS: &str = "longhaul";

/// Less than this would not hold a sealed volume's header and something beside.
const VOLUME_MIN: u64 = 64 << 20;

fn product<'a, A, B>(some: &'a [A], others: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    some.iter().flat_map(move |one| others.iter().map(move |other| (one, other)))
}

/// Runs what of a plan is not among the results there are, `had`, and hands out each line of results as it
/// comes. What fails is told and left out, so that one peer does not cost the results of the others; the
/// number of failures is given back.
pub(crate) fn run(
    path: &Path,
    only: &Only,
    by: LinkMaker,
    had: Vec<Row>,
    mut each: impl FnMut(&str),
) -> Result<usize, Failure> {
    running::catch_signals()?;
    let text = std::fs::read_to_string(path)
        .map_err(|why| format!("cannot read {}: {why}", path.display()))?;
    let (plan, runs) = Plan::parse(&text).map_err(|why| format!("{}: {why}", path.display()))?;
    let commit = commit();
    let mut had = EarlierResults::new(&plan, had);
    let mut left = Vec::new();
    for mut run in runs.iter().filter_map(|run| only.part(run)) {
        run.link.by = by;
        left.extend(had.rest(run)?);
    }
    let mut failures = 0;
    each(results::head());
    for run in left {
        let conditions = Conditions {
            plan: plan.clone(),
            peer: run.peer.clone(),
            path: run.path()?,
            seed: run.link.seed,
            in_flight: run.in_flight.clone(),
            commit: commit.clone(),
            load_percent: load_percent(),
        };
        let tell = |(measured, wire)| {
            each(&Row { conditions: conditions.clone(), measured, wire }.line());
        };
        match run.measure(tell) {
            Ok(()) => {}
            Err(why) if running::interrupted() => return Err(why),
            Err(why) => {
                failures += 1;
                eprintln!("lab: {} at {:?}: {why}", run.peer, run.link.delay);
            }
        }
    }
    Ok(failures)
}

/// What was measured, and what went over the link meanwhile.
type RunResult = (Measurement, [Wire; 2]);

impl Run {
    /// The link it is measured on.
    fn path(&self) -> Result<results::Path, TryFromIntError> {
        Ok(results::Path {
            delay_us: u64::try_from(self.link.delay.as_micros())?,
            rate: self.rate,
            losses_per_million: self.link.losses_per_million,
            by: self.link.by,
        })
    }

    /// Measures and tells, as it goes.
    fn measure(&self, mut tell: impl FnMut(RunResult)) -> Result<(), Failure> {
        let link = Link::create(&self.link)?;
        let measured = if self.peer == TCP {
            self.tcp(&link, &mut tell)
        } else {
            self.volume(&link, &mut tell)
        };
        link.finish()?;
        measured
    }

    /// The same bytes in one fresh stream, once for all blocks: to TCP they are the same.
    fn tcp(&self, link: &Link, tell: &mut impl FnMut(RunResult)) -> Result<(), Failure> {
        let seconds = calibrate::tcp(link, self.bytes)?.as_secs_f64();
        let measured = Measurement {
            mode: Mode::Stream,
            block: self.bytes,
            depth: 1,
            bytes: self.bytes,
            seconds,
            cpu: BothSpent::default(),
            peak: [0; 2],
        };
        tell((measured, since(&[Counts::default(); 2], &link.seen()?)));
        Ok(())
    }

    fn volume(&self, link: &Link, tell: &mut impl FnMut(RunResult)) -> Result<(), Failure> {
        if !self.fresh {
            return self.started(link, &self.tasks, &self.blocks, tell);
        }
        for (task, block) in product(&self.tasks, &self.blocks) {
            self.started(link, &[*task], &[*block], tell)?;
        }
        Ok(())
    }

    /// Starts the peers and has them measured.
    fn started(
        &self,
        link: &Link,
        tasks: &[Task],
        blocks: &[u64],
        tell: &mut impl FnMut(RunResult),
    ) -> Result<(), Failure> {
        let mut before = [Counts::default(); 2];
        let mut take = |line: &str| -> Result<(), Failure> {
            let now = link.seen()?;
            if line == BEGIN {
                before = now;
                return Ok(());
            }
            let measured = Measurement::parse(line).map_err(|why| format!("{why}: {line}"))?;
            tell((measured, since(&before, &now)));
            Ok(())
        };
        let mut taken = Ok(());
        running::lines(&mut self.command(link, tasks, blocks)?, |line| {
            if let Err(why) = take(line) {
                taken = Err(why);
            }
        })?;
        taken
    }

    fn command(&self, link: &Link, tasks: &[Task], blocks: &[u64]) -> Result<Command, Failure> {
        let comma = |texts: Vec<String>| texts.join(",");
        let mut command = link.command("timeout");
        // The peers have more time to end than they take for it.
        command.args(["--kill-after=30", &self.limit.as_secs().to_string()]);
        command.args(self.peer.split(' ').map(|name| format!("lab/peers/{name}")));
        command.arg(std::env::current_exe()?).arg("measure");
        command.args(["--blocks", &comma(blocks.iter().map(u64::to_string).collect())]);
        command.args(["--tasks", &comma(tasks.iter().map(|task| task.name()).collect())]);
        command.args(["--depth", &self.depth.to_string(), "--bytes", &self.bytes.to_string()]);
        if let Some(time) = &self.time {
            command.args(["--time", time]);
        }
        command.env("LAB_VOLUME_MIB", self.volume.div_ceil(1 << 20).to_string());
        if let ([block], Ok(segments)) = (blocks, self.in_flight.parse()) {
            command.env("LAB_ATTACH", fixed(segments, *block));
        }
        Ok(command)
    }
}

/// Options of attach for a pipeline that has so many segments of this size in flight; room beyond them,
/// so that it is they that limit.
fn fixed(segments: u64, block: u64) -> String {
    let room = (2 * segments + 2) * block;
    format!("--in-flight {segments} --segment {block} --window {room} --read-ahead {room}")
}

/// netem is asked for one number after the other, so that a packet may have been counted twice.
fn since(before: &[Counts; 2], now: &[Counts; 2]) -> [Wire; 2] {
    std::array::from_fn(|way| Wire {
        packets: now[way].sent.saturating_sub(before[way].sent),
        bytes: now[way].bytes.saturating_sub(before[way].bytes),
    })
}

/// What the repository stands at; results are worth little without it.
fn commit() -> String {
    let described = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let described = described.map(|output| output.stdout).unwrap_or_default();
    match String::from_utf8_lossy(&described).trim() {
        "" => "unknown".to_owned(),
        commit => commit.to_owned(),
    }
}

/// The load of the machine over the last minute, times 100.
fn load_percent() -> u64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    (load * 100.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MATRIX: &str = r#"
        name = "short"
        [[matrix]]
        rate = "1G"
        delays = ["0ms", "8ms"]
        blocks = ["64K", "2M"]
        tasks = ["write", "read"]
        peers = ["tcp", "wireguard tgt"]
        bytes = "256M"
        time = "5s"
    "#;

    #[test]
    fn a_matrix_is_every_link_with_every_peer() {
        let (name, runs) = Plan::parse(MATRIX).unwrap();
        assert_eq!((name.as_str(), runs.len()), ("short", 4));
        let last = &runs[3];
        assert_eq!(last.link.delay, Duration::from_millis(8));
        assert_eq!((last.peer.as_str(), last.rate), ("wireguard tgt", 125_000_000));
        assert_eq!(last.blocks, [65536, 2 << 20]);
        assert_eq!(last.tasks, [Task::Write, Task::Read]);
    }

    #[test]
    fn segments_are_fixed_for_those_that_have_any_and_rounds_alternate() {
        let text = MATRIX
            .replace("\"tcp\", ", "\"tcp\", \"longhaul\", ")
            .replace("time =", "fresh = true\nrounds = 2\nin_flight = [\"auto\", \"4\"]\ntime =")
            .replace("\"0ms\", ", "");
        let (_, runs) = Plan::parse(&text).unwrap();
        let each: Vec<_> = runs.iter().map(|run| (&run.peer[..], &run.in_flight[..])).collect();
        let round = [("tcp", AUTO), ("longhaul", AUTO), ("longhaul", "4"), ("wireguard tgt", AUTO)];
        assert_eq!(each, [round, round].concat());
        assert_eq!(
            fixed(4, 65536),
            "--in-flight 4 --segment 65536 --window 655360 --read-ahead 655360"
        );
    }

    #[test]
    fn parts_of_a_plan_can_be_chosen() {
        let (_, runs) = Plan::parse(MATRIX).unwrap();
        let only = Only {
            delays: vec![Duration::from_millis(8)],
            tasks: vec![Task::Read],
            ..Only::default()
        };
        let parts: Vec<_> = runs.iter().filter_map(|run| only.part(run)).collect();
        assert_eq!(parts.len(), 2);
        assert!(parts.iter().all(|run| run.tasks == [Task::Read] && run.blocks.len() == 2));
        let none = Only { blocks: vec![512], ..Only::default() };
        assert!(runs.iter().all(|run| none.part(run).is_none()));
    }

    #[test]
    fn mistakes_are_found_before_anything_runs() {
        for (from, to, why) in [
            ("\"8ms\"", "\"8\"", "`8` is no time, such as 8ms"),
            ("\"1G\"", "\"fast\"", "`fast` is no rate in bits a second, such as 1G"),
            ("\"64K\"", "\"0\"", "`0` is no size, such as 64K"),
            ("\"5s\"", "\"soon\"", "`soon` is no time, such as 8ms"),
            ("wireguard tgt", "../tgt", "`../tgt` is no peer"),
            ("wireguard tgt", "", "`` is no peer"),
            ("\"tcp\", \"wireguard tgt\"", "", "the plan measures nothing"),
            ("\"read\"", "\"append\"", "unknown variant `append`"),
            ("time =", "tiem =", "unknown field `tiem`"),
            ("time =", "in_flight = [\"0\"]\ntime =", "`0` is no number of segments"),
            ("time =", "in_flight = [\"4\"]\ntime =", "the matrix has to be fresh"),
        ] {
            let told = Plan::parse(&MATRIX.replace(from, to)).unwrap_err().to_string();
            assert!(told.contains(why), "{told}");
        }
    }

    #[test]
    fn the_plans_of_the_laboratory_can_be_read() {
        let plans = concat!(env!("CARGO_MANIFEST_DIR"), "/plans");
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let mut found = 0;
        for plan in std::fs::read_dir(plans).unwrap() {
            let path = plan.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let (_, runs) = Plan::parse(&text).unwrap_or_else(|why| panic!("{path:?}: {why}"));
            let names = runs.iter().flat_map(|run| run.peer.split(' '));
            for name in names.filter(|name| *name != TCP) {
                assert!(peers.join(name).exists(), "{path:?}: there is no peer {name}");
            }
            found += 1;
        }
        assert!(found > 0);
    }
}
