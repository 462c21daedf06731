//! Results arranged to be read: a table for each link and mode, and the ratios the papers gave.

use crate::papers;
use crate::results::{Mode, Row, TCP};

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

    /// Bytes a second; what TCP moved counts for any block.
    pub(crate) fn rate(&self, peer: &str, delay_us: u64, mode: Mode, block: u64) -> Option<f64> {
        self.0
            .iter()
            .find(|row| {
                row.conditions.peer == peer
                    && row.conditions.delay_us == delay_us
                    && row.measured.mode == mode
                    && (peer == TCP || row.measured.block == block)
            })
            .map(|row| row.measured.rate())
    }

    /// How many times as fast as another a peer is, the mean over the blocks that both have.
    fn mean_ratio(&self, peer: &str, other: &str, delay_us: u64, mode: Mode) -> Option<f64> {
        let blocks = self.blocks();
        let ratios: Vec<f64> = blocks
            .iter()
            .filter_map(|block| {
                let rate = |peer| self.rate(peer, delay_us, mode, *block);
                Some(rate(peer)? / rate(other)?)
            })
            .collect();
        (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64)
    }

    fn best(&self, peer: &str, delay_us: u64, mode: Mode) -> Option<f64> {
        let blocks = self.blocks();
        let rates = blocks.iter().filter_map(|block| self.rate(peer, delay_us, mode, *block));
        rates.reduce(f64::max)
    }

    /// For one mode and block: MB/s, and the share of what TCP moved on the same link.
    pub(crate) fn by_delay(&self, mode: Mode, block: u64) -> Table {
        let delays = self.each(|row| row.conditions.delay_us);
        let mut head = vec!["peer".to_owned()];
        head.extend(delays.iter().map(|delay| milliseconds(*delay)));
        let row = |peer: &str| {
            let cells = delays.iter().map(|delay| {
                let rate = self.rate(peer, *delay, mode, block);
                let link = self.rate(TCP, *delay, mode, block);
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
            let delay = paper.delay_ms * 1000;
            vec![
                milliseconds(delay),
                format!("{}, {}", given(paper.ipsec), given(paper.ahead)),
                paper.ratio.to_owned(),
                format!(
                    "{}, {}",
                    measured(self.best(IPSEC, delay, Mode::Write)),
                    measured(self.best(SEALED, delay, Mode::Write))
                ),
                times(self.mean_ratio(SEALED, IPSEC, delay, Mode::Write)),
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
            let delay = delay_ms * 1000;
            let mut row = vec![milliseconds(delay)];
            row.extend(printed.iter().map(|ratio| format!("{ratio:.3}")));
            row.push(times(self.mean_ratio(SEALED, IPSEC, delay, Mode::Read)));
            row
        });
        let title = "Reads, as a multiple of IPsec (mean over the blocks)";
        Table { title: title.to_owned(), head: owned(&head), rows: rows.collect() }
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

pub(crate) fn milliseconds(microseconds: u64) -> String {
    format!("{} ms", microseconds as f64 / 1e3)
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
        let table = results().by_delay(Mode::Write, 65536);
        assert_eq!(table.head, ["peer", "64 ms"]);
        assert_eq!(table.rows[0], [TCP, "100.0 MB/s"]);
        assert_eq!(table.rows[1], [SEALED, "96.0 MB/s (96.0 %)"]);
        assert_eq!(table.rows[2], [IPSEC, "0.50 MB/s (0.5 %)"]);
        assert!(table.markdown().starts_with("| peer | 64 ms |\n|---|---|\n| tcp |"));
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
