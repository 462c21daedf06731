//! The papers' figures with what was measured beside them.

use crate::papers;
use crate::results::{AUTO, Conditions, Mode, Path, Row};
use crate::tables::{NOTHING, Results, Table, megabytes, nothing, owned, times};

/// The peers the papers compared with: what they had, and what is there today.
const IPSEC_3DES: &str = "ipsec-3des tgt";
const IPSEC: &str = "ipsec tgt";
/// What stands for the papers' system.
const SEALED: &str = "longhaul-sealed";

impl Results {
    /// The rate of one way to have segments in flight.
    fn with(&self, peer: &str, in_flight: &str, path: Path, mode: Mode, block: u64) -> Option<f64> {
        self.median(
            |row| row.measured.rate(),
            |row| {
                let Conditions { peer: other, path: others, in_flight: number, .. } =
                    &row.conditions;
                other == peer
                    && *others == path
                    && number == in_flight
                    && (row.measured.mode, row.measured.block) == (mode, block)
            },
        )
    }

    /// How many times as fast as another peer we are, the mean over the blocks that both have.
    fn mean_ratio(&self, in_flight: &str, other: &str, path: Path, mode: Mode) -> Option<f64> {
        let ratios: Vec<f64> = self
            .blocks()
            .into_iter()
            .filter_map(|block| {
                let ours = self.with(SEALED, in_flight, path, mode, block)?;
                Some(ours / self.with(other, AUTO, path, mode, block)?)
            })
            .collect();
        (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64)
    }

    fn best(&self, peer: &str, in_flight: &str, path: Path, mode: Mode) -> Option<f64> {
        let blocks = self.blocks().into_iter();
        blocks.filter_map(|block| self.with(peer, in_flight, path, mode, block)).reduce(f64::max)
    }

    /// The share of one processor that the far end used, in percent, the mean over the blocks.
    fn far_cpu(&self, peer: &str, in_flight: &str, path: Path, mode: Mode) -> Option<f64> {
        let rows = self.0.iter().filter(|row| {
            let Conditions { peer: other, path: others, in_flight: number, .. } = &row.conditions;
            other == peer && *others == path && number == in_flight && row.measured.mode == mode
        });
        let shares: Vec<f64> = rows
            .map(|row| {
                let far = row.measured.cpu.0[1];
                100.0 * (far.user + far.system) / row.measured.seconds
            })
            .collect();
        (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
    }

    /// Writes with so many segments in flight.
    pub(crate) fn writes_of_the_papers(&self) -> Table {
        let head = [
            "delay",
            "printed: IPsec, ahead",
            "printed: ratio",
            "IPsec 3DES, IPsec AES",
            "2 in flight, 10 in flight",
            "auto",
            "ratio of 10 to IPsec 3DES",
            "of auto to IPsec 3DES, AES",
        ];
        let given = |rate: Option<f64>| {
            rate.map_or_else(|| "not given".into(), |rate| format!("{rate} MB/s"))
        };
        let rows = papers::WRITES.iter().map(|paper| {
            let path = self.clean(paper.delay_ms);
            let best = |peer, n| {
                let rate = path.and_then(|path| self.best(peer, n, path, Mode::Write));
                rate.map_or_else(nothing, megabytes)
            };
            let ratio = |n, other| {
                times(path.and_then(|path| self.mean_ratio(n, other, path, Mode::Write)))
            };
            vec![
                format!("{} ms", paper.delay_ms),
                format!("{}, {}", given(paper.ipsec), given(paper.ahead)),
                paper.ratio.to_owned(),
                format!("{}, {}", best(IPSEC_3DES, AUTO), best(IPSEC, AUTO)),
                format!("{}, {}", best(SEALED, "2"), best(SEALED, "10")),
                best(SEALED, AUTO),
                ratio("10", IPSEC_3DES),
                format!("{}, {}", ratio(AUTO, IPSEC_3DES), ratio(AUTO, IPSEC)),
            ]
        });
        let title =
            "Writes enciphered ahead, beside IPsec (best over the blocks; ratios: means over them)";
        Table { title: title.to_owned(), head: owned(&head), rows: rows.collect() }
    }

    /// Reads with one to four segments in flight: tables 4 and 5.
    pub(crate) fn reads_of_the_papers(&self) -> Table {
        let head = ["delay", "", "IPsec 3DES", "1", "2", "3", "4", "auto"];
        let mut rows = Vec::new();
        for (delay_ms, printed) in papers::READS_BESIDE_IPSEC {
            let name = format!("{delay_ms} ms");
            let cell = |(ratio, cpu): &(f64, f64)| format!("{ratio:.3} / {cpu:.1} %");
            let printed = printed.iter().map(cell).chain([String::new()]);
            rows.push([name.clone(), "printed".into()].into_iter().chain(printed).collect());
            let path = self.clean(delay_ms);
            let measured = |peer, n| {
                let cpu = path.and_then(|path| self.far_cpu(peer, n, path, Mode::Read));
                let ratio = match peer {
                    SEALED => {
                        path.and_then(|path| self.mean_ratio(n, IPSEC_3DES, path, Mode::Read))
                    }
                    _ => cpu.map(|_| 1.0),
                };
                match (ratio, cpu) {
                    (Some(ratio), Some(cpu)) => format!("{ratio:.3} / {cpu:.1} %"),
                    _ => nothing(),
                }
            };
            let ours = ["1", "2", "3", "4", AUTO].map(|n| measured(SEALED, n));
            let row = [name, "measured".into(), measured(IPSEC_3DES, AUTO)].into_iter().chain(ours);
            rows.push(row.collect());
        }
        let title = "Reads beside IPsec: throughput as a multiple of it (mean over the blocks) / share of a \
                     processor at the far end, with 1 to 4 segments in flight";
        Table { title: title.to_owned(), head: owned(&head), rows }
    }

    /// Sockets without storage: enciphered above TCP or by IPsec.
    pub(crate) fn sockets_of_the_papers(&self) -> Table {
        let peers = self.peers();
        let mut head = vec!["block".to_owned()];
        head.extend(peers.iter().map(|peer| (*peer).to_owned()));
        head.extend(["above / IPsec, 3DES", "above / IPsec, AES"].map(str::to_owned));
        let path = self.clean(0);
        let rate = |peer: &str, block| self.with(peer, AUTO, path?, Mode::Stream, block);
        let mut rows: Vec<Vec<String>> = Vec::new();
        for block in self.blocks() {
            let mut row = vec![format!("{} KiB", block / 1024)];
            row.extend(peers.iter().map(|peer| rate(peer, block).map_or_else(nothing, megabytes)));
            let ratio = |above, beneath| Some(rate(above, block)? / rate(beneath, block)?);
            row.push(times(ratio("above-3des", "ipsec-3des")));
            row.push(times(ratio("above-aes", "ipsec")));
            rows.push(row);
        }
        let title = "Sockets: enciphered by the programs above TCP, or by IPsec beneath (printed, 3DES: 12.3 MB/s, \
                     1.30 times IPsec)";
        Table { title: title.to_owned(), head, rows }
    }

    /// A backup disk behind a home uplink.
    pub(crate) fn uplink_of_the_papers(&self) -> Table {
        let head = ["what", "link", "printed", "measured", "sent", "received"];
        let mut rows = Vec::new();
        for (path, name) in self.paths() {
            for (mode, peer) in [
                (Mode::MkfsLazy, SEALED),
                (Mode::Mkfs, SEALED),
                (Mode::Copy, "ssh"),
                (Mode::Copy, SEALED),
            ] {
                let is_one = |row: &Row| {
                    let Conditions { peer: other, path: others, .. } = &row.conditions;
                    other == peer && *others == path && row.measured.mode == mode
                };
                let seconds = self.median(|row| row.measured.seconds, is_one);
                let wire = |way: usize| self.median(|row| row.wire[way].bytes as f64 / 1e6, is_one);
                let sized =
                    |bytes: Option<f64>| bytes.map_or_else(nothing, |mb| format!("{mb:.2} MB"));
                rows.push(vec![
                    format!("{}, {}", papers::uplink_name(mode, peer == SEALED), peer),
                    name.clone(),
                    papers::uplink(mode, peer == SEALED, path.rate).unwrap_or(NOTHING).to_owned(),
                    seconds.map_or_else(nothing, |seconds| format!("{seconds:.1} s")),
                    sized(wire(0)),
                    sized(wire(1)),
                ]);
            }
        }
        let title = "A disk of 80 GB behind a home uplink: a file system made on it, and a file of 11 MB copied to it";
        Table { title: title.to_owned(), head: owned(&head), rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    fn results() -> Results {
        let mut fixed = example(SEALED, 64_000, 65536, 2e6);
        fixed.conditions.in_flight = "10".into();
        Results(vec![
            example(SEALED, 64_000, 65536, 96e6),
            example(SEALED, 64_000, 131_072, 98e6),
            fixed,
            example(IPSEC_3DES, 64_000, 65536, 0.5e6),
            example(IPSEC_3DES, 64_000, 131_072, 1e6),
        ])
    }

    #[test]
    fn ratios_are_means_over_the_blocks_and_gaps_are_told() {
        let row = &results().writes_of_the_papers().rows[3];
        assert_eq!(row[5], "98.0 MB/s");
        assert_eq!(row[4], "not measured, 2.00 MB/s");
        // 2 / 0.5; and (96 / 0.5 + 98 / 1) / 2.
        assert_eq!((&row[6][..], &row[7][..]), ("4.00", "145.00, not measured"));
        assert_eq!(results().writes_of_the_papers().rows[0][5], NOTHING);
        assert_eq!(results().reads_of_the_papers().rows[1][7], NOTHING);
    }

    #[test]
    fn the_uplink_shows_what_was_printed_beside_what_was_sent() {
        let mut made = example(SEALED, 37_500, 4096, 1e6);
        made.measured.mode = Mode::Mkfs;
        made.conditions.path.rate = 125_000;
        let table = Results(vec![made]).uplink_of_the_papers();
        assert_eq!(table.rows[1][2], "24 min, 200 MB sent");
        assert_eq!(table.rows[1][4], "0.00 MB");
    }
}
