//! Results arranged to be read: a table for each link and mode, and the ratios the papers gave.

use crate::results::{AUTO, Conditions, Mode, Path, Row, TCP};
use crate::rounds::median;

/// What a cell holds that nothing was measured for.
pub(crate) const NOTHING: &str = "not measured";

/// A table of text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// Results of one plan, searched by what they were measured with.
#[derive(Debug)]
pub(crate) struct Results(pub(crate) Vec<Row>);

impl Results {
    /// The different values of something, in order.
    pub(crate) fn each<T: Ord>(&self, of: impl Fn(&Row) -> T) -> Vec<T> {
        let mut values: Vec<_> = self.0.iter().map(of).collect();
        values.sort();
        values.dedup();
        values
    }

    /// The peers in the order the plan has them, which means something.
    pub(crate) fn peers(&self) -> Vec<&str> {
        let mut peers = Vec::new();
        for row in &self.0 {
            if !peers.contains(&row.conditions.peer.as_str()) {
                peers.push(&row.conditions.peer);
            }
        }
        peers
    }

    /// The block sizes of volumes; a TCP stream has none.
    pub(crate) fn blocks(&self) -> Vec<u64> {
        let volumes = self.0.iter().filter(|row| row.conditions.peer != TCP);
        let mut blocks: Vec<_> = volumes.map(|row| row.measured.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    /// The block sizes that volumes were asked for in a mode.
    pub(crate) fn blocks_of(&self, mode: Mode) -> Vec<u64> {
        let one = |row: &&Row| row.conditions.peer != TCP && row.measured.mode == mode;
        let mut blocks: Vec<_> = self.0.iter().filter(one).map(|row| row.measured.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    /// The median of something over all rounds of one measurement.
    pub(crate) fn median(
        &self,
        of: impl Fn(&Row) -> f64,
        which: impl Fn(&Row) -> bool,
    ) -> Option<f64> {
        median(self.0.iter().filter(|row| which(row)).map(of))
    }

    /// Bytes a second, with what is in flight chosen; of TCP, what moved as much as was moved here.
    pub(crate) fn rate(&self, peer: &str, path: Path, mode: Mode, block: u64) -> Option<f64> {
        let is_here = |row: &Row| {
            let Conditions { peer: other, path: others, in_flight, .. } = &row.conditions;
            other == peer && *others == path && in_flight == AUTO
        };
        let rate = |row: &Row| row.measured.rate();
        if peer != TCP {
            let is_one = |row: &Row| row.measured.mode == mode && row.measured.block == block;
            return self.median(rate, |row| is_here(row) && is_one(row));
        }
        let moved = self.0.iter().find(|row| {
            let other = &row.conditions;
            other.path == path && other.peer != TCP && row.measured.mode == mode
        });
        let as_much =
            |row: &Row| moved.is_some_and(|moved| moved.measured.bytes == row.measured.bytes);
        let same = self.median(rate, |row| is_here(row) && as_much(row));
        same.or_else(|| self.median(rate, is_here))
    }

    /// The paths, and how to tell them apart: what all have in common is left out.
    pub(crate) fn paths(&self) -> Vec<(Path, String)> {
        let paths = self.each(|row| row.conditions.path);
        let one_rate = paths.iter().all(|path| path.rate == paths[0].rate);
        let one_loss =
            paths.iter().all(|path| path.losses_per_million == paths[0].losses_per_million);
        let one_by = paths.iter().all(|path| path.by == paths[0].by);
        let name = |path: &Path| {
            let mut name = format!("{} ms", path.delay_us as f64 / 1e3);
            if !one_rate {
                name += &format!(", {} Mbit/s", megabits(path.rate));
            }
            if !one_loss {
                name += &format!(", {} % lost", percent(path.losses_per_million));
            }
            if !one_by {
                name += &format!(", by {}", path.by.name());
            }
            name
        };
        paths.iter().map(|path| (*path, name(path))).collect()
    }

    /// The path without losses and with a delay, at the highest rate there is.
    pub(crate) fn clean(&self, delay_ms: u64) -> Option<Path> {
        let paths = self.each(|row| row.conditions.path).into_iter();
        paths
            .filter(|path| path.delay_us == delay_ms * 1000 && path.losses_per_million == 0)
            .max_by_key(|path| path.rate)
    }

    /// The modes that move data in order, whose rate is what matters.
    pub(crate) fn in_order(&self) -> Vec<Mode> {
        let modes = self.each(|row| row.measured.mode).into_iter();
        let sequential = [Mode::Write, Mode::Read, Mode::BothWrite, Mode::BothRead];
        modes.filter(|mode| sequential.contains(mode)).collect()
    }

    /// For one mode and block: MB/s, and the share of what TCP moved on the same link.
    pub(crate) fn by_path(&self, mode: Mode, block: u64) -> Table {
        let paths = self.paths();
        let mut head = vec!["peer".to_owned()];
        head.extend(paths.iter().map(|(_, name)| name.clone()));
        let row = |peer: &str| {
            let cells = paths.iter().map(|(path, _)| {
                let rate = self.rate(peer, *path, mode, block);
                let link = self.rate(TCP, *path, mode, block);
                match (rate, link) {
                    (Some(rate), Some(link)) if peer != TCP => {
                        format!("{} ({:.1} %)", megabytes(rate), 100.0 * rate / link)
                    }
                    (Some(rate), _) => megabytes(rate),
                    (None, _) => nothing(),
                }
            });
            std::iter::once(peer.to_owned()).chain(cells).collect()
        };
        let has_any = |peer: &&str| {
            peer == &TCP
                || paths.iter().any(|(path, _)| self.rate(peer, *path, mode, block).is_some())
        };
        let rows = self.peers().into_iter().filter(has_any).map(row).collect();
        Table { title: format!("{} of {} KiB", mode.name(), block / 1024), head, rows }
    }
}

impl Results {
    /// Requests a second, and how that compares with what the round trip allows.
    pub(crate) fn latency(&self, mode: Mode) -> Table {
        let paths = self.paths();
        let mut head = vec!["peer".to_owned()];
        head.extend(paths.iter().map(|(_, name)| name.clone()));
        let cell = |peer: &str, path: Path| {
            let is_one = |row: &Row| {
                let Conditions { peer: other, path: others, .. } = &row.conditions;
                other == peer && *others == path && row.measured.mode == mode
            };
            let rate = self.median(|row| row.measured.requests() / row.measured.seconds, is_one)?;
            let depth = self.0.iter().find(|row| is_one(row))?.measured.depth;
            let round_trip = 2.0 * path.delay_us as f64 / 1e6;
            Some(match (mode, round_trip > 0.0) {
                (_, false) => format!("{rate:.0} /s"),
                (Mode::RandomRead, true) => {
                    let share = 100.0 * rate * round_trip / f64::from(depth);
                    format!("{rate:.0} /s ({share:.1} % of {depth} / RTT)")
                }
                (_, true) => format!("{rate:.1} /s ({:.2} RTT each)", 1.0 / (rate * round_trip)),
            })
        };
        let peers = self.peers().into_iter().filter(|peer| {
            self.0.iter().any(|row| row.conditions.peer == *peer && row.measured.mode == mode)
        });
        let rows = peers.map(|peer| {
            let cells = paths.iter().map(|(path, _)| cell(peer, *path).unwrap_or_else(nothing));
            std::iter::once(peer.to_owned()).chain(cells).collect()
        });
        let title = match mode {
            Mode::RandomRead => "Random reads of 4 KiB, several at a time",
            _ => "Random writes of 4 KiB, a flush after each",
        };
        Table { title: title.to_owned(), head, rows: rows.collect() }
    }

    /// What moving a gigabyte took of both ends, and the most memory a process of each held.
    pub(crate) fn costs(&self, mode: Mode) -> Table {
        let head = [
            "peer",
            "block",
            "link",
            "near CPU s/GB",
            "far CPU s/GB",
            "near MiB",
            "far MiB",
            "wire",
        ];
        let mut rows = Vec::new();
        for (path, name) in self.paths() {
            for (peer, block) in self
                .peers()
                .iter()
                .flat_map(|peer| self.blocks().into_iter().map(move |b| (*peer, b)))
            {
                let is_one = |row: &Row| {
                    let Conditions { peer: other, path: others, in_flight, .. } = &row.conditions;
                    let measured = &row.measured;
                    other == peer
                        && *others == path
                        && in_flight == AUTO
                        && (measured.mode, measured.block) == (mode, block)
                };
                let each = |of: &dyn Fn(&Row) -> f64| self.median(of, is_one);
                let gigabytes = |row: &Row| row.measured.bytes as f64 / 1e9;
                let cpu = |end: usize| {
                    each(&|row| {
                        let spent = row.measured.cpu.0[end];
                        (spent.user + spent.system) / gigabytes(row)
                    })
                };
                let peak =
                    |end: usize| each(&|row| row.measured.peak[end] as f64 / f64::from(1 << 20));
                let wire = each(&|row| {
                    let wire: u64 = row.wire.iter().map(|way| way.bytes).sum();
                    wire as f64 / row.measured.bytes as f64
                });
                let (Some(near), Some(far), Some(wire)) = (cpu(0), cpu(1), wire) else { continue };
                rows.push(vec![
                    peer.to_owned(),
                    format!("{} KiB", block / 1024),
                    name.clone(),
                    format!("{near:.2}"),
                    format!("{far:.2}"),
                    peak(0).map_or_else(nothing, |peak| format!("{peak:.0}")),
                    peak(1).map_or_else(nothing, |peak| format!("{peak:.0}")),
                    format!("{wire:.3}"),
                ]);
            }
        }
        let title = format!(
            "{}: processor time, the client program's included, memory, and bytes on the wire for each byte",
            mode.name()
        );
        Table { title, head: owned(&head), rows }
    }
}

pub(crate) fn nothing() -> String {
    NOTHING.to_owned()
}

pub(crate) fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// A rate in bytes a second as people write it.
pub(crate) fn megabits(rate: u64) -> f64 {
    rate as f64 * 8.0 / 1e6
}

/// A share of a million.
pub(crate) fn percent(per_million: u32) -> f64 {
    f64::from(per_million) / 1e4
}

pub(crate) fn megabytes(rate: f64) -> String {
    let digits = if rate < 10e6 { 2 } else { 1 };
    format!("{:.digits$} MB/s", rate / 1e6)
}

pub(crate) fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(nothing, |ratio| format!("{ratio:.2}"))
}

impl Table {
    /// As Markdown.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = format!("|{}\n", "---|".repeat(self.head.len()));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}{rule}{rows}", line(&self.head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkMaker;
    use crate::results::example;

    const SEALED: &str = "longhaul-sealed";
    const IPSEC: &str = "ipsec tgt";

    fn results() -> Results {
        Results(vec![
            example(TCP, 64_000, 1 << 20, 100e6),
            example(SEALED, 64_000, 65536, 96e6),
            example(SEALED, 64_000, 131_072, 98e6),
            example(IPSEC, 64_000, 65536, 0.5e6),
            example(IPSEC, 64_000, 131_072, 1e6),
        ])
    }

    #[test]
    fn the_median_of_all_rounds_counts() {
        let rates = [3e6, 1e6, 2e6].map(|rate| example(SEALED, 0, 65536, rate));
        let results = Results(rates.to_vec());
        let (path, _) = results.paths()[0];
        assert_eq!(results.rate(SEALED, path, Mode::Write, 65536), Some(2e6));
        assert_eq!(results.rate(SEALED, path, Mode::Read, 65536), None);
    }

    #[test]
    fn waits_are_compared_with_the_round_trip() {
        // 32 at a time over 128 ms are 250 a second; half of that was reached.
        let mut row = example(SEALED, 64_000, 4096, 125.0 * 4096.0);
        (row.measured.mode, row.measured.depth) = (Mode::RandomRead, 32);
        let reads = Results(vec![row.clone()]).latency(Mode::RandomRead);
        assert_eq!(reads.rows[0][1], "125 /s (50.0 % of 32 / RTT)");
        row.measured.mode = Mode::SyncWrite;
        let writes = Results(vec![row]).latency(Mode::SyncWrite);
        assert_eq!(writes.rows[0][1], "125.0 /s (0.06 RTT each)");
    }

    #[test]
    fn costs_are_told_for_a_gigabyte() {
        let costs = results().costs(Mode::Write);
        // 0.75 s for 100 blocks of 64 KiB at each end.
        assert_eq!(costs.rows[0][3], "114.44");
        assert_eq!(costs.rows[0][5], "40");
    }

    #[test]
    fn a_rate_is_given_with_its_share_of_the_link() {
        let table = results().by_path(Mode::Write, 65536);
        assert_eq!(table.head, ["peer", "64 ms"]);
        assert_eq!(table.rows[0], [TCP, "100.0 MB/s"]);
        assert_eq!(table.rows[1], [SEALED, "96.0 MB/s (96.0 %)"]);
        assert_eq!(table.rows[2], [IPSEC, "0.50 MB/s (0.5 %)"]);
        assert!(table.markdown().starts_with("| peer | 64 ms |\n|---|---|\n| tcp |"));
    }

    #[test]
    fn paths_are_told_apart_by_what_differs() {
        let mut results = results();
        let mut slow = example(TCP, 37_500, 1 << 20, 0.1e6);
        slow.conditions.path.rate = 125_000;
        results.0.push(slow);
        let names: Vec<_> = results.paths().into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["37.5 ms, 1 Mbit/s", "64 ms, 1000 Mbit/s"]);
        assert_eq!(results.by_path(Mode::Write, 65536).rows[1][1], "not measured");
        let emulated = example(TCP, 64_000, 1 << 20, 100e6);
        let mut by_netem = emulated.clone();
        by_netem.conditions.path.by = LinkMaker::Netem;
        let names = Results(vec![emulated, by_netem]).paths().into_iter().map(|(_, name)| name);
        assert_eq!(names.collect::<Vec<_>>(), ["64 ms, by emulator", "64 ms, by netem"]);
    }
}
