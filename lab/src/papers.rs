//! What the papers printed, to stand beside what is measured.

use crate::results::Mode;

/// Tables 4 and 5 of the evaluation with several processes: throughput of sequential reads relative to
/// IPsec, means over all block sizes, and the target's processor in percent: IPsec, then 1 to 4 processes.
pub(crate) const READS_BESIDE_IPSEC: [(u64, [(f64, f64); 5]); 5] = [
    (0, [(1.0, 81.148), (0.752, 41.408), (1.323, 66.428), (1.465, 77.306), (1.512, 71.375)]),
    (1, [(1.0, 43.777), (0.719, 29.066), (1.379, 54.386), (1.825, 73.014), (2.082, 71.792)]),
    (2, [(1.0, 33.593), (0.772, 22.429), (1.510, 43.092), (2.093, 59.738), (2.522, 67.348)]),
    (4, [(1.0, 18.768), (0.804, 14.305), (1.607, 30.803), (2.382, 42.707), (3.013, 56.577)]),
    (8, [(1.0, 12.899), (0.894, 8.351), (1.803, 21.642), (2.692, 31.228), (3.537, 41.915)]),
];

/// Writes encrypted ahead of time: a delay one way in milliseconds, the best of IPsec and of the paper's
/// system in MB/s, and the mean ratio with ten workers, where they are given.
pub(crate) struct Writes {
    pub(crate) delay_ms: u64,
    pub(crate) ipsec: Option<f64>,
    pub(crate) ahead: Option<f64>,
    pub(crate) ratio: &'static str,
}

/// The figures for writes.
pub(crate) const WRITES: [Writes; 4] = [
    Writes { delay_ms: 0, ipsec: None, ahead: None, ratio: "slightly below 1" },
    Writes { delay_ms: 1, ipsec: None, ahead: None, ratio: "up to about 1.5" },
    Writes { delay_ms: 8, ipsec: Some(4.0), ahead: Some(8.8), ratio: "up to about 4.6" },
    Writes { delay_ms: 64, ipsec: Some(0.6), ahead: Some(2.8), ratio: "up to about 6.6" },
];

/// The rates of the home uplinks, in bytes a second.
const SLOW: u64 = 125_000;
const QUICK: u64 = 375_000;

/// What the backup disk took on a home uplink; `disk` tells the copy onto the disk from that by scp.
pub(crate) const fn uplink(mode: Mode, disk: bool, rate: u64) -> Option<&'static str> {
    Some(match (mode, disk, rate) {
        (Mode::Mkfs | Mode::MkfsLazy, _, SLOW) => "24 min, 200 MB sent",
        (Mode::Mkfs | Mode::MkfsLazy, _, QUICK) => "8 min, 160 MB sent, compressed",
        (Mode::Copy, true, SLOW) => "105 s",
        (Mode::Copy, false, SLOW) => "100 s",
        (Mode::Copy, _, QUICK) => "39 s",
        _ => return None,
    })
}

/// How that is called in a table.
pub(crate) const fn uplink_name(mode: Mode, disk: bool) -> &'static str {
    match (mode, disk) {
        (Mode::MkfsLazy, _) => "mkfs.ext4, tables and journal left for later",
        (Mode::Mkfs, _) => "mkfs.ext4, all of it",
        (_, true) => "copy and sync",
        (_, false) => "scp",
    }
}
