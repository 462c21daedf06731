//! Results as tab-separated text: one measurement a line, with all its conditions, the names first.

use std::fmt::Write;
use std::str::FromStr;

use crate::cpu::{BothSpent, Spent};
use crate::link::By;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// Writes and a flush at the end.
    Write,
    /// Reads.
    Read,
    /// Reads at random places, several at a time.
    RandomRead,
    /// Writes at random places, a flush after each.
    SyncWrite,
    /// Writes, while another program reads elsewhere.
    BothWrite,
    /// Reads, while another program writes elsewhere.
    BothRead,
    /// A file system is made, and the rest of it is left for later.
    MkfsLazy,
    /// A file system is made, all of it.
    Mkfs,
    /// A file is copied and synced: onto the file system, or by scp.
    Copy,
    /// One stream, enciphered by the programs at its ends if the peer says so.
    Stream,
}

impl Mode {
    const ALL: [Self; 10] = [
        Self::Write,
        Self::Read,
        Self::RandomRead,
        Self::SyncWrite,
        Self::BothWrite,
        Self::BothRead,
        Self::MkfsLazy,
        Self::Mkfs,
        Self::Copy,
        Self::Stream,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::RandomRead => "random-read",
            Self::SyncWrite => "sync-write",
            Self::BothWrite => "both-write",
            Self::BothRead => "both-read",
            Self::MkfsLazy => "mkfs-lazy",
            Self::Mkfs => "mkfs",
            Self::Copy => "copy",
            Self::Stream => "stream",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) mode: Mode,
    /// Bytes of a request.
    pub(crate) block: u64,
    /// Requests at a time.
    pub(crate) depth: u32,
    /// Bytes in all.
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// What it cost both ends.
    pub(crate) cpu: BothSpent,
    /// The most memory one process of each end held, in bytes, the near end first.
    pub(crate) peak: [u64; 2],
}

/// What went over the link in one direction meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wire {
    pub(crate) packets: u64,
    /// With their IP headers.
    pub(crate) bytes: u64,
}

/// What lay between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    /// One way, in microseconds.
    pub(crate) delay_us: u64,
    /// Bytes a second.
    pub(crate) rate: u64,
    pub(crate) losses_per_million: u32,
    pub(crate) by: By,
}

/// Where and how it was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conditions {
    /// The plan it is part of.
    pub(crate) plan: String,
    /// The peers, outermost first: `wireguard tgt`.
    pub(crate) peer: String,
    pub(crate) path: Path,
    pub(crate) seed: u64,
    /// Segments in flight if they are fixed, or `auto`.
    pub(crate) in_flight: String,
    /// Of the repository.
    pub(crate) commit: String,
    /// The load of the machine when it began, times 100.
    pub(crate) load_percent: u64,
}

/// One line of results.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) conditions: Conditions,
    pub(crate) measured: Measurement,
    /// Out, and back.
    pub(crate) wire: [Wire; 2],
}

/// Why a line of results cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("the first line does not name the columns of this version")]
    Columns,
    #[error("line {line}: {why}")]
    Line { line: usize, why: &'static str },
}

/// The peer that is no volume but one fresh TCP stream.
pub(crate) const TCP: &str = "tcp";

/// How the number of segments in flight is told where it is not fixed.
pub(crate) const AUTO: &str = "auto";

const COLUMNS: &str = "plan\tpeer\tdelay_us\trate\tlosses_per_million\tseed\tin_flight\tcommit\t\
                       load_percent\tmode\tblock\tdepth\tbytes\tseconds\tnear_user_s\tnear_system_s\t\
                       far_user_s\tfar_system_s\tnear_peak_bytes\tfar_peak_bytes\tpackets_out\t\
                       bytes_out\tpackets_back\tbytes_back\tlink_by";

/// What results have behind the others since netem can make a link; before that they were all our emulator's.
const SINCE_NETEM: &str = "\tlink_by";

impl Measurement {
    /// Bytes a second.
    pub(crate) fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// Requests.
    pub(crate) fn requests(&self) -> f64 {
        self.bytes as f64 / self.block as f64
    }

    /// As a part of a line of results.
    pub(crate) fn line(&self) -> String {
        let Self { mode, block, depth, bytes, seconds, cpu: BothSpent(cpu), peak } = self;
        let mut line = format!("{}\t{block}\t{depth}\t{bytes}\t{seconds:.6}", mode.name());
        for Spent { user, system } in cpu {
            // Writing to a String cannot fail.
            let _ = write!(line, "\t{user:.2}\t{system:.2}");
        }
        let [near, far] = peak;
        let _ = write!(line, "\t{near}\t{far}");
        line
    }

    /// Reads what [`line`](Self::line) wrote.
    pub(crate) fn parse(line: &str) -> Result<Self, &'static str> {
        Self::from_fields(&mut line.split('\t'))
    }

    fn from_fields<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Result<Self, &'static str> {
        let mode = fields.next().and_then(Mode::parse).ok_or("there is no such mode")?;
        let (block, depth, bytes) = (number(fields)?, number(fields)?, number(fields)?);
        let mut time = || number::<f64>(fields).and_then(finite);
        let seconds = time()?;
        let near = Spent { user: time()?, system: time()? };
        let far = Spent { user: time()?, system: time()? };
        let peak = [number(fields)?, number(fields)?];
        Ok(Self { mode, block, depth, bytes, seconds, cpu: BothSpent([near, far]), peak })
    }
}

fn finite(seconds: f64) -> Result<f64, &'static str> {
    if seconds.is_finite() && seconds >= 0.0 { Ok(seconds) } else { Err("a time that is none") }
}

fn number<'a, T: FromStr>(fields: &mut impl Iterator<Item = &'a str>) -> Result<T, &'static str> {
    fields.next().ok_or("a column is missing")?.parse().map_err(|_| "a number is none")
}

/// The line that names the columns.
pub(crate) const fn head() -> &'static str {
    COLUMNS
}

impl Row {
    /// As a line of results.
    pub(crate) fn line(&self) -> String {
        let Conditions {
            plan,
            peer,
            path: Path { delay_us, rate, losses_per_million, by },
            seed,
            in_flight,
            commit,
            load_percent,
        } = &self.conditions;
        let path = format!("{delay_us}\t{rate}\t{losses_per_million}\t{seed}\t{in_flight}");
        let measured = self.measured.line();
        let mut line = format!("{plan}\t{peer}\t{path}\t{commit}\t{load_percent}\t{measured}");
        for Wire { packets, bytes } in self.wire {
            // Writing to a String cannot fail.
            let _ = write!(line, "\t{packets}\t{bytes}");
        }
        line + "\t" + by.name()
    }

    fn parse(line: &str, since_netem: bool) -> Result<Self, &'static str> {
        let fields = &mut line.split('\t');
        let text = |field: Option<&str>| field.map(str::to_owned).ok_or("a column is missing");
        let mut conditions = Conditions {
            plan: text(fields.next())?,
            peer: text(fields.next())?,
            path: Path {
                delay_us: number(fields)?,
                rate: number(fields)?,
                losses_per_million: number(fields)?,
                by: By::default(),
            },
            seed: number(fields)?,
            in_flight: text(fields.next())?,
            commit: text(fields.next())?,
            load_percent: number(fields)?,
        };
        let measured = Measurement::from_fields(fields)?;
        let mut wire = || Ok(Wire { packets: number(fields)?, bytes: number(fields)? });
        let wire = [wire()?, wire()?];
        if since_netem {
            let by = fields.next().and_then(By::parse);
            conditions.path.by = by.ok_or("there is no such emulator")?;
        }
        if fields.next().is_some() {
            return Err("a column too many");
        }
        Ok(Self { conditions, measured, wire })
    }
}

/// Reads results; further files may be appended to the first, their names of columns included.
pub(crate) fn parse(text: &str) -> Result<Vec<Row>, Error> {
    let mut since_netem = None;
    let mut rows = Vec::new();
    for (line, row) in (1..).zip(text.lines()).filter(|(_, row)| !row.is_empty()) {
        if row == COLUMNS || Some(row) == COLUMNS.strip_suffix(SINCE_NETEM) {
            since_netem = Some(row == COLUMNS);
            continue;
        }
        let since_netem = since_netem.ok_or(Error::Columns)?;
        rows.push(Row::parse(row, since_netem).map_err(|why| Error::Line { line, why })?);
    }
    since_netem.map(|_| rows).ok_or(Error::Columns)
}

#[cfg(test)]
pub(crate) fn example(peer: &str, delay_us: u64, block: u64, rate: f64) -> Row {
    let conditions = Conditions {
        plan: "short".into(),
        peer: peer.into(),
        path: Path { delay_us, rate: 125_000_000, losses_per_million: 0, by: By::Emulator },
        seed: 1,
        in_flight: AUTO.into(),
        commit: "abc".into(),
        load_percent: 150,
    };
    let spent = Spent { user: 0.5, system: 0.25 };
    let cpu = BothSpent([spent; 2]);
    let bytes = block * 100;
    let seconds = bytes as f64 / rate;
    let (mode, peak) = (Mode::Write, [40 << 20, 20 << 20]);
    let measured = Measurement { mode, block, depth: 1, bytes, seconds, cpu, peak };
    let wire = [Wire { packets: 4, bytes: 1500 }, Wire { packets: 3, bytes: 120 }];
    Row { conditions, measured, wire }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_again() {
        let rows = [example("wireguard tgt", 8000, 65536, 4e6), example("tcp", 0, 4096, 1e6)];
        let text = format!("{COLUMNS}\n{}\n{COLUMNS}\n{}\n", rows[0].line(), rows[1].line());
        assert_eq!(parse(&text), Ok(rows.to_vec()));
    }

    #[test]
    fn results_from_before_there_was_netem_are_read_beside_newer_ones() {
        let (old, mut new) = (example("tgt", 0, 4096, 1e6), example("tgt", 0, 4096, 2e6));
        new.conditions.path.by = By::Netem;
        let before = |line: &str| line.rsplit_once('\t').unwrap().0.to_owned();
        let (columns, line) = (before(COLUMNS), before(&old.line()));
        let text = format!("{columns}\n{line}\n{COLUMNS}\n{}\n{columns}\n{line}\n", new.line());
        assert_eq!(parse(&text), Ok(vec![old.clone(), new, old]));
    }

    #[test]
    fn a_broken_line_is_named() {
        let good = example("tgt", 0, 4096, 1e6).line();
        let broken = [
            good.replace("\twrite\t", "\twrote\t"),
            good.replace("\t4096\t", "\tmany\t"),
            good.rsplit_once('\t').unwrap().0.to_owned(),
            format!("{good}\t1"),
            good.replace("0.409600", "NaN"),
            good.replace("\temulator", "\tnobody"),
        ];
        for line in broken {
            let text = format!("{COLUMNS}\n{good}\n{line}\n");
            assert!(matches!(parse(&text), Err(Error::Line { line: 3, .. })), "{line}");
        }
        assert_eq!(parse(&good), Err(Error::Columns));
        assert_eq!(parse(""), Err(Error::Columns));
    }
}
