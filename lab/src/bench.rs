//! The target beside tgt: the same client, the same load, taking turns.

use std::path::Path;

use crate::load::{Client, Load};
use crate::rounds::{by_turns, median_of};
use crate::server::{Server, TARGET_CORE};
use crate::{Bench, Failure, cpu};

/// The size of the volume: large enough to be random, small enough for memory.
const VOLUME: u64 = 1 << 30;

const LOADS: [Load; 11] = [
    Load { client: Client::PerfRandomRead, block: 4 << 10, depth: 1 },
    Load { client: Client::PerfRandomRead, block: 4 << 10, depth: 32 },
    Load { client: Client::PerfRandomRead, block: 256 << 10, depth: 8 },
    Load { client: Client::QemuRead, block: 4 << 10, depth: 1 },
    Load { client: Client::QemuRead, block: 4 << 10, depth: 32 },
    Load { client: Client::QemuRead, block: 256 << 10, depth: 8 },
    Load { client: Client::QemuWrite, block: 4 << 10, depth: 1 },
    Load { client: Client::QemuWrite, block: 4 << 10, depth: 32 },
    Load { client: Client::QemuWrite, block: 256 << 10, depth: 1 },
    Load { client: Client::QemuWrite, block: 256 << 10, depth: 8 },
    Load { client: Client::QemuWrite, block: 1 << 20, depth: 8 },
];

/// One load on each target.
pub(crate) struct Row {
    pub(crate) load: String,
    pub(crate) tgt: Figures,
    pub(crate) file: Figures,
    pub(crate) memory: Figures,
}

/// Medians over the rounds.
#[derive(Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) per_second: f64,
    /// Microseconds of the target's processor for one request.
    pub(crate) cpu_us: f64,
}

/// Measures every load on tgt over a file in memory, Longhaul over the same kind of file, and Longhaul
/// over a memory volume.
pub(crate) fn against_tgt(options: &Bench) -> Result<Vec<Row>, Failure> {
    let scratch = tempfile::tempdir_in("/dev/shm")?;
    let (ours, theirs) = (scratch.path().join("longhaul"), scratch.path().join("tgt"));
    for file in [&ours, &theirs] {
        fill(file)?;
    }
    let file = format!("file:{}", ours.display());
    let memory = format!("memory:{}M", VOLUME >> 20);
    let mut rows = Vec::new();
    for load in LOADS.iter().filter(|load| load.name().contains(&options.only)) {
        let rounds = by_turns(
            options.rounds,
            [
                &mut || measure(&Server::tgt(&theirs)?, load, options),
                &mut || measure(&longhaul(options, &file)?, load, options),
                &mut || {
                    let memory = longhaul(options, &memory)?;
                    Load::fill(&memory.uri, VOLUME as usize)?;
                    measure(&memory, load, options)
                },
            ],
        )?;
        let [tgt, file, memory] = rounds.map(|round| Figures::median(&round));
        eprintln!(
            "{}: tgt {:.0}/s {:.1} us, file {:.0}/s {:.1} us, memory {:.0}/s {:.1} us",
            load.name(),
            tgt.per_second,
            tgt.cpu_us,
            file.per_second,
            file.cpu_us,
            memory.per_second,
            memory.cpu_us,
        );
        rows.push(Row { load: load.name(), tgt, file, memory });
    }
    Ok(rows)
}

/// Longhaul over a volume, with a core to itself.
pub(crate) fn longhaul(options: &Bench, volume: &str) -> Result<Server, Failure> {
    Server::longhaul(&options.longhaul, TARGET_CORE, volume, &[])
}

/// A file without holes, so that reads read something; as large as every volume here.
pub(crate) fn fill(path: &Path) -> Result<(), Failure> {
    use std::io::Write;
    let mut file = std::fs::File::create(path)?;
    let block = vec![0xa5; 1 << 20];
    for _ in 0..VOLUME >> 20 {
        file.write_all(&block)?;
    }
    Ok(())
}

fn measure(server: &Server, load: &Load, options: &Bench) -> Result<Figures, Failure> {
    let before = cpu::spent(server.pid())?;
    let rate = load.run(&server.uri, options.seconds)?;
    let spent = cpu::spent(server.pid())? - before;
    let cpu_us = spent.as_secs_f64() * 1e6 / rate.requests;
    Ok(Figures { per_second: rate.per_second, cpu_us })
}

impl Figures {
    pub(crate) fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median_of(rounds, figure);
        Self { per_second: of(|round| round.per_second), cpu_us: of(|round| round.cpu_us) }
    }
}
