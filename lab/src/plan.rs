//! Plans: which links, blocks, modes and peers are measured, as text.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::calibrate;
use crate::cpu::BothSpent;
use crate::link::{Link, Options};
use crate::results::{self, Conditions, Measurement, Mode, Row, TCP};
use crate::{Failure, running, units};

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
    modes: Vec<Mode>,
    /// Scripts in `lab/peers`, outermost first; or `tcp` for one fresh stream.
    peers: Vec<String>,
    /// The most a measurement moves.
    bytes: String,
    /// The longest it may take, about.
    time: String,
}

fn no_loss() -> Vec<String> {
    vec!["0%".into()]
}

const fn first_seed() -> u64 {
    1
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
    modes: Vec<Mode>,
    bytes: u64,
    time: String,
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
        let rate = units::rate(&self.rate)?;
        let bytes = units::size(&self.bytes)?;
        units::duration(&self.time)?;
        let blocks = self.blocks.iter().map(|block| units::size(block));
        let blocks = blocks.collect::<Result<Vec<_>, _>>()?;
        for (delay, loss) in product(&self.delays, &self.losses) {
            let mut link = Options::far(units::duration(delay)?, Some(rate));
            link.losses_per_million = units::per_million(loss)?;
            link.seed = self.seed;
            for peer in &self.peers {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
                if !peer.split(' ').all(|name| !name.is_empty() && name.bytes().all(plain)) {
                    return Err(Error::Peer(peer.clone()));
                }
                runs.push(Run {
                    link: link.clone(),
                    rate,
                    peer: peer.clone(),
                    blocks: blocks.clone(),
                    modes: self.modes.clone(),
                    bytes,
                    time: self.time.clone(),
                });
            }
        }
        Ok(())
    }
}

fn product<'a, A, B>(some: &'a [A], others: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    some.iter().flat_map(move |one| others.iter().map(move |other| (one, other)))
}

/// Runs a plan and hands out each line of results as it comes. What fails is told and left out, so that
/// one peer does not cost the results of the others; the number of failures is given back.
pub(crate) fn run(path: &Path, mut each: impl FnMut(&str)) -> Result<usize, Failure> {
    running::catch_signals()?;
    let text = std::fs::read_to_string(path)
        .map_err(|why| format!("cannot read {}: {why}", path.display()))?;
    let (plan, runs) = Plan::parse(&text).map_err(|why| format!("{}: {why}", path.display()))?;
    let commit = commit();
    let mut failures = 0;
    each(results::head());
    for run in &runs {
        let conditions = Conditions {
            plan: plan.clone(),
            peer: run.peer.clone(),
            path: results::Path {
                delay_us: u64::try_from(run.link.delay.as_micros())?,
                rate: run.rate,
                losses_per_million: run.link.losses_per_million,
            },
            seed: run.link.seed,
            commit: commit.clone(),
            load_percent: load_percent(),
        };
        match run.measure() {
            Ok(measurements) => {
                for measured in measurements {
                    each(&Row { conditions: conditions.clone(), measured }.line());
                }
            }
            Err(why) if running::interrupted() => return Err(why),
            Err(why) => {
                failures += 1;
                eprintln!("lab: {} at {:?}: {why}", run.peer, run.link.delay);
            }
        }
    }
    Ok(failures)
}

impl Run {
    fn measure(&self) -> Result<Vec<Measurement>, Failure> {
        let link = Link::create(&self.link)?;
        let measured = if self.peer == TCP { self.tcp(&link) } else { self.volume(&link) };
        link.finish()?;
        measured
    }

    /// The same bytes in one fresh stream, once for all blocks: to TCP they are the same.
    fn tcp(&self, link: &Link) -> Result<Vec<Measurement>, Failure> {
        let seconds = calibrate::tcp(link, self.bytes)?.as_secs_f64();
        let one = |mode| Measurement {
            mode,
            block: self.bytes,
            bytes: self.bytes,
            seconds,
            cpu: BothSpent::default(),
        };
        // The link is the same both ways.
        Ok(self.modes.iter().map(|mode| one(*mode)).collect())
    }

    fn volume(&self, link: &Link) -> Result<Vec<Measurement>, Failure> {
        let scripts: Vec<_> =
            self.peer.split(' ').map(|name| format!("lab/peers/{name}")).collect();
        let [outermost, inner @ ..] = &scripts[..] else { return Err("no peer".into()) };
        let mut command = link.command(outermost);
        command.args(inner).arg(std::env::current_exe()?).arg("measure");
        let comma = |texts: Vec<String>| texts.join(",");
        command.args(["--blocks", &comma(self.blocks.iter().map(u64::to_string).collect())]);
        command.args(["--modes", &comma(self.modes.iter().map(|m| m.name().into()).collect())]);
        command.args(["--bytes", &self.bytes.to_string(), "--time", &self.time]);
        command.env("LAB_VOLUME_MIB", (2 * self.bytes).div_ceil(1 << 20).max(64).to_string());
        let printed = running::output(&mut command)?;
        printed.lines().map(|line| Ok(Measurement::parse(line)?)).collect()
    }
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
    use std::time::Duration;

    use super::*;

    const MATRIX: &str = r#"
        name = "short"
        [[matrix]]
        rate = "1G"
        delays = ["0ms", "8ms"]
        blocks = ["64K", "2M"]
        modes = ["write", "read"]
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
        assert_eq!(last.modes, [Mode::Write, Mode::Read]);
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
