//! Results arranged to be read: a table for each link and mode, and the ratios the papers gave.

use crate::papers;
use crate::results::{AUTO, Conditions, Mode, Path, Row, TCP};

/// The peer the papers compared with.
const IPSEC: &str = "ipsec tgt";
/// What stands for the papers' system.
const SEALED: &str = "longhaul-sealed";

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

    /// The median of something over all rounds of one measurement.
    pub(crate) fn median(
        &self,
        of: impl Fn(&Row) -> f64,
        which: impl Fn(&Row) -> bool,
    ) -> Option<f64> {
        let mut values: Vec<f64> = self.0.iter().filter(|row| which(row)).map(of).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        if values.len().is_multiple_of(2) {
            Some((values[middle - 1] + upper) / 2.0)
        } else {
            Some(upper)
        }
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

    /// How many times as fast as another a peer is, the mean over the blocks that both have.
    fn mean_ratio(&self, peer: &str, other: &str, path: Path, mode: Mode) -> Option<f64> {
        let blocks = self.blocks();
        let ratios: Vec<f64> = blocks
            .iter()
            .filter_map(|block| {
                let rate = |peer| self.rate(peer, path, mode, *block);
                Some(rate(peer)? / rate(other)?)
            })
            .collect();
        (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64)
    }

    fn best(&self, peer: &str, path: Path, mode: Mode) -> Option<f64> {
        let blocks = self.blocks();
        let rates = blocks.iter().filter_map(|block| self.rate(peer, path, mode, *block));
        rates.reduce(f64::max)
    }

    /// The paths, and how to tell them apart: what all have in common is left out.
    pub(crate) fn paths(&self) -> Vec<(Path, String)> {
        let paths = self.each(|row| row.conditions.path);
        let one_rate = paths.iter().all(|path| path.rate == paths[0].rate);
        let one_loss =
            paths.iter().all(|path| path.losses_per_million == paths[0].losses_per_million);
        let name = |path: &Path| {
            let mut name = format!("{} ms", path.delay_us as f64 / 1e3);
            if !one_rate {
                name += &format!(", {} Mbit/s", megabits(path.rate));
            }
            if !one_loss {
                name += &format!(", {} % lost", percent(path.losses_per_million));
            }
            name
        };
        paths.iter().map(|path| (*path, name(path))).collect()
    }

    /// The path without losses and with a delay, at the highest rate there is.
    fn clean(&self, delay_ms: u64) -> Option<Path> {
        let paths = self.each(|row| row.conditions.path).into_iter();
        paths
            .filter(|path| path.delay_us == delay_ms * 1000 && path.losses_per_million == 0)
            .max_by_key(|path| path.rate)
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
                    (None, _) => "not measured".to_owned(),
                }
            });
            std::iter::once(peer.to_owned()).chain(cells).collect()
        };
        let rows = self.peers().into_iter().map(row).collect();
        Table { title: format!("{} of {} KiB", mode.name(), block / 1024), head, rows }
    }

    /// The papers' figures for writes with ours beside them.
    pub(crate) fn writes_of_the_papers(&self) -> Table {
        let head = [
            "delay",
            "printed: IPsec, ahead",
            "printed: ratio",
            "measured: IPsec, sealed",
            "ratio",
        ];
        let given = |rate: Option<f64>| {
            rate.map_or_else(|| "not given".into(), |rate| format!("{rate} MB/s"))
        };
        let measured = |rate: Option<f64>| rate.map_or_else(|| "not measured".into(), megabytes);
        let rows = papers::WRITES.iter().map(|paper| {
            let path = self.clean(paper.delay_ms);
            let best = |peer| measured(path.and_then(|path| self.best(peer, path, Mode::Write)));
            vec![
                format!("{} ms", paper.delay_ms),
                format!("{}, {}", given(paper.ipsec), given(paper.ahead)),
                paper.ratio.to_owned(),
                format!("{}, {}", best(IPSEC), best(SEALED)),
                times(path.and_then(|path| self.mean_ratio(SEALED, IPSEC, path, Mode::Write))),
            ]
        });
        let title =
            "Writes encrypted ahead, beside IPsec (best over the blocks; ratio: mean over them)";
        Table { title: title.to_owned(), head: owned(&head), rows: rows.collect() }
    }

    /// Table 4 with ours beside it.
    pub(crate) fn reads_of_the_papers(&self) -> Table {
        let head = ["delay", "1 process", "2", "3", "4 (printed)", "measured: sealed"];
        let rows = papers::READS_BESIDE_IPSEC.iter().map(|(delay_ms, printed)| {
            let mut row = vec![format!("{delay_ms} ms")];
            row.extend(printed.iter().map(|ratio| format!("{ratio:.3}")));
            let path = self.clean(*delay_ms);
            row.push(times(path.and_then(|path| self.mean_ratio(SEALED, IPSEC, path, Mode::Read))));
            row
        });
        let title = "Reads, as a multiple of IPsec (mean over the blocks)";
        Table { title: title.to_owned(), head: owned(&head), rows: rows.collect() }
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
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

fn megabytes(rate: f64) -> String {
    let digits = if rate < 10e6 { 2 } else { 1 };
    format!("{:.digits$} MB/s", rate / 1e6)
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "not measured".into(), |ratio| format!("{ratio:.1}"))
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
    use crate::results::example;

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
    }

    #[test]
    fn ratios_are_means_over_the_blocks_and_gaps_are_told() {
        let table = results().writes_of_the_papers();
        // (96 / 0.5 + 98 / 1) / 2
        assert_eq!(table.rows[3][4], "145.0");
        assert_eq!(table.rows[3][3], "1.00 MB/s, 98.0 MB/s");
        assert_eq!(table.rows[0][4], "not measured");
        assert_eq!(results().reads_of_the_papers().rows[0][5], "not measured");
    }
}
