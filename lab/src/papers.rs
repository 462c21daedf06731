//! What the papers printed, to stand beside what is measured.

/// Table 4 of the evaluation with several processes: throughput of sequential reads relative to IPsec,
/// means over all block sizes, with 1 to 4 processes.
pub(crate) const READS_BESIDE_IPSEC: [(u64, [f64; 4]); 5] = [
    (0, [0.752, 1.323, 1.465, 1.512]),
    (1, [0.719, 1.379, 1.825, 2.082]),
    (2, [0.772, 1.510, 2.093, 2.522]),
    (4, [0.804, 1.607, 2.382, 3.013]),
    (8, [0.894, 1.803, 2.692, 3.537]),
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
