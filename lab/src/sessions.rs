//! Many sessions at a time, and sessions that do not take their answers.

use std::path::Path;

use crate::bench::{Figures, fill, longhaul};
use crate::load::{Client, Load, Reader};
use crate::rounds::{by_turns, median_of};
use crate::server::{BOTH_CORES, Server};
use crate::{Bench, Failure, cpu};

/// How many sessions share the target.
const SESSIONS: [usize; 4] = [1, 2, 8, 64];

/// What each session asks for.
const EACH: Load = Load { client: Client::PerfRandomRead, block: 4 << 10, depth: 8 };

/// What a session asks for that takes nothing: much.
const GREEDY: Load = Load { client: Client::PerfRandomRead, block: 256 << 10, depth: 32 };

/// How many of those there are.
const GREEDY_SESSIONS: usize = 8;

/// So many sessions on each target.
pub(crate) struct SessionLoad {
    pub(crate) sessions: usize,
    pub(crate) tgt: Figures,
    pub(crate) file: Figures,
    pub(crate) memory: Figures,
    /// With both cores for the target: what part of its time the busiest thread had.
    pub(crate) busiest: f64,
}

/// One session alone, and beside others that have asked for much and take none of it.
pub(crate) struct Stalled {
    pub(crate) alone: Figures,
    pub(crate) beside: Figures,
    /// The most memory the target had meanwhile, in bytes.
    pub(crate) memory: u64,
}

/// Measures all of it.
pub(crate) fn measure(options: &Bench) -> Result<Option<(Vec<SessionLoad>, Stalled)>, Failure> {
    if !"sessions".contains(&options.only) {
        return Ok(None);
    }
    let scratch = tempfile::tempdir_in("/dev/shm")?;
    let (ours, theirs) = (scratch.path().join("longhaul"), scratch.path().join("tgt"));
    for file in [&ours, &theirs] {
        fill(file)?;
    }
    let crowds = SESSIONS.iter().map(|sessions| session_load(options, *sessions, &ours, &theirs));
    let crowds = crowds.collect::<Result<_, _>>()?;
    Ok(Some((crowds, stalled(options, &ours)?)))
}

fn session_load(
    options: &Bench,
    sessions: usize,
    ours: &Path,
    theirs: &Path,
) -> Result<SessionLoad, Failure> {
    let file = format!("file:{}", ours.display());
    let mut busiest = Vec::new();
    let rounds = by_turns(
        options.rounds,
        [
            &mut || together(&Server::tgt(theirs)?, options, sessions),
            &mut || together(&longhaul(options, &file)?, options, sessions),
            &mut || {
                let memory = longhaul(options, "memory:1024M")?;
                Load::fill(&memory.uri, 1 << 30)?;
                together(&memory, options, sessions)
            },
            &mut || {
                let both = Server::longhaul(&options.longhaul, BOTH_CORES, &file, &[])?;
                let figures = together(&both, options, sessions)?;
                busiest.push(cpu::busiest(both.pid())?);
                Ok(figures)
            },
        ],
    )?;
    let [tgt, file, memory, _] = rounds.map(|round| Figures::median(&round));
    eprintln!(
        "{sessions} sessions: tgt {:.0}/s, file {:.0}/s, memory {:.0}/s",
        tgt.per_second, file.per_second, memory.per_second
    );
    Ok(SessionLoad { sessions, tgt, file, memory, busiest: median_of(&busiest, |share| *share) })
}

fn together(server: &Server, options: &Bench, sessions: usize) -> Result<Figures, Failure> {
    let before = cpu::spent(server.pid())?;
    let readers: Result<Vec<_>, _> =
        (0..sessions).map(|_| Reader::start(&EACH, &server.uri, options.seconds)).collect();
    let mut per_second = 0.0;
    for reader in readers? {
        per_second += reader.finish()?;
    }
    let spent = cpu::spent(server.pid())? - before;
    let requests = per_second * f64::from(options.seconds);
    Ok(Figures { per_second, cpu_us: spent.as_secs_f64() * 1e6 / requests })
}

fn stalled(options: &Bench, ours: &Path) -> Result<Stalled, Failure> {
    let file = format!("file:{}", ours.display());
    let (mut alone, mut beside, mut memory) = (Vec::new(), Vec::new(), 0);
    for _ in 0..options.rounds {
        let server = longhaul(options, &file)?;
        alone.push(together(&server, options, 1)?);
        // They would end by themselves long after this has.
        let greedy: Result<Vec<_>, _> = (0..GREEDY_SESSIONS)
            .map(|_| Reader::start(&GREEDY, &server.uri, 1000)?.stall())
            .collect();
        let greedy = greedy?;
        beside.push(together(&server, options, 1)?);
        memory = cpu::memory_peak(server.pid())?.max(memory);
        drop(greedy);
    }
    let (alone, beside) = (Figures::median(&alone), Figures::median(&beside));
    eprintln!("stalled: {:.0}/s alone, {:.0}/s beside", alone.per_second, beside.per_second);
    Ok(Stalled { alone, beside, memory })
}
