//! Results as tab-separated text: one measurement a line, with all its conditions, the names first.

use csv::{ReaderBuilder, StringRecord, WriterBuilder};
use serde::de::IntoDeserializer;
use serde::de::value::Error as ValueError;
use serde::{Deserialize, Serialize};

use crate::cpu::{BothSpent, seconds};
use crate::link::LinkMaker;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
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
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::deserialize(IntoDeserializer::<ValueError>::into_deserializer(name)).ok()
    }

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
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Measurement {
    pub(crate) mode: Mode,
    /// Bytes of a request.
    pub(crate) block: u64,
    /// Requests at a time.
    pub(crate) depth: u32,
    /// Bytes in all.
    pub(crate) bytes: u64,
    #[serde(with = "seconds")]
    pub(crate) seconds: f64,
    /// What it cost both ends.
    pub(crate) cpu: BothSpent,
    /// The most memory one process of each end held, in bytes, the near end first.
    pub(crate) peak: [u64; 2],
}

/// What went over the link in one direction meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Wire {
    pub(crate) packets: u64,
    /// With their IP headers.
    pub(crate) bytes: u64,
}

/// What lay between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub(crate) struct Path {
    /// One way, in microseconds.
    pub(crate) delay_us: u64,
    /// Bytes a second.
    pub(crate) rate: u64,
    pub(crate) losses_per_million: u32,
    /// The last column.
    #[serde(skip)]
    pub(crate) by: LinkMaker,
}

/// Where and how it was measured.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Row {
    pub(crate) conditions: Conditions,
    pub(crate) measured: Measurement,
    /// Out, and back.
    pub(crate) wire: [Wire; 2],
}

/// Why a line of results cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the first line does not name the columns of this version")]
    Columns,
    #[error("line {line}: {why}")]
    Series { line: u64, why: csv::Error },
    #[error("line {line}: {found} columns instead of {wanted}")]
    Length { line: u64, found: usize, wanted: usize },
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
        line(self)
    }

    /// Reads what [`line`](Self::line) wrote.
    pub(crate) fn parse(line: &str) -> Result<Self, csv::Error> {
        let record: StringRecord = line.split(SEPARATOR as char).collect();
        record.deserialize(None)
    }
}

/// What is between two columns.
const SEPARATOR: u8 = b'\t';

/// The fields of `of`, and of what it holds, one after the other.
fn line(of: impl Serialize) -> String {
    let mut writer = WriterBuilder::new();
    let mut writer = writer.delimiter(SEPARATOR).has_headers(false).from_writer(Vec::new());
    writer.serialize(of).expect("all fields are words and numbers");
    let line = writer.into_inner().expect("memory does not fail");
    String::from_utf8_lossy(&line).trim_end().to_owned()
}

/// The line that names the columns.
pub(crate) const fn head() -> &'static str {
    COLUMNS
}

impl Row {
    /// As a line of results.
    pub(crate) fn line(&self) -> String {
        line((self, self.conditions.path.by))
    }

    fn parse(record: &StringRecord) -> Result<Self, csv::Error> {
        let (mut row, by): (Self, LinkMaker) = record.deserialize(None)?;
        row.conditions.path.by = by;
        Ok(row)
    }
}

/// Reads results; further files may be appended to the first, their names of columns included.
pub(crate) fn parse(text: &str) -> Result<Vec<Row>, Error> {
    let columns = [COLUMNS, COLUMNS.trim_end_matches(SINCE_NETEM)];
    let columns = columns.map(|names| names.split(SEPARATOR as char).collect::<StringRecord>());
    let mut reader = ReaderBuilder::new();
    let reader = reader.delimiter(SEPARATOR).has_headers(false).flexible(true).quoting(false);
    let (mut wanted, mut rows) = (None, Vec::new());
    for record in reader.from_reader(text.as_bytes()).records() {
        let mut record = record.map_err(|why| Error::Series { line: 0, why })?;
        if columns.contains(&record) {
            wanted = Some(record.len());
            continue;
        }
        let line = record.position().map_or(0, csv::Position::line);
        let (found, wanted) = (record.len(), wanted.ok_or(Error::Columns)?);
        if found != wanted {
            return Err(Error::Length { line, found, wanted });
        }
        if found < columns[0].len() {
            record.push_field(LinkMaker::default().name());
        }
        rows.push(Row::parse(&record).map_err(|why| Error::Series { line, why })?);
    }
    wanted.map(|_| rows).ok_or(Error::Columns)
}

#[cfg(test)]
pub(crate) fn example(peer: &str, delay_us: u64, block: u64, rate: f64) -> Row {
    let conditions = Conditions {
        plan: "short".into(),
        peer: peer.into(),
        path: Path { delay_us, rate: 125_000_000, losses_per_million: 0, by: LinkMaker::Emulator },
        seed: 1,
        in_flight: AUTO.into(),
        commit: "abc".into(),
        load_percent: 150,
    };
    let spent = crate::cpu::Spent { user: 0.5, system: 0.25 };
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
    fn written_results_are_read_back() {
        let rows = [example("wireguard tgt", 8000, 65536, 4e6), example("tcp", 0, 4096, 1e6)];
        let text = format!("{COLUMNS}\n{}\n{COLUMNS}\n{}\n", rows[0].line(), rows[1].line());
        assert_eq!(parse(&text).unwrap(), rows);
    }

    #[test]
    fn results_from_before_there_was_netem_are_read_beside_newer_ones() {
        let (old, mut new) = (example("tgt", 0, 4096, 1e6), example("tgt", 0, 4096, 2e6));
        new.conditions.path.by = LinkMaker::Netem;
        let before = |line: &str| line.rsplit_once('\t').unwrap().0.to_owned();
        let (columns, line) = (before(COLUMNS), before(&old.line()));
        let text = format!("{columns}\n{line}\n{COLUMNS}\n{}\n{columns}\n{line}\n", new.line());
        assert_eq!(parse(&text).unwrap(), [old.clone(), new, old]);
    }

    #[test]
    fn a_broken_line_is_named() {
        let good = example("tgt", 0, 4096, 1e6).line();
        let broken = [
            good.replace("\twrite\t", "\twrote\t"),
            good.replace("\t4096\t", "\tmany\t"),
            good.rsplit_once('\t').unwrap().0.to_owned(),
            format!("{good}\t1"),
            good.replace("0.4096", "NaN"),
            good.replace("0.4096", "-1"),
            good.replace("\temulator", "\tnobody"),
        ];
        for line in broken {
            let text = format!("{COLUMNS}\n{good}\n{line}\n");
            let why = parse(&text).unwrap_err();
            assert!(
                matches!(why, Error::Series { line: 3, .. } | Error::Length { line: 3, .. }),
                "{line}: {why}"
            );
        }
        assert!(matches!(parse(&good), Err(Error::Columns)));
        assert!(matches!(parse(""), Err(Error::Columns)));
    }
}
