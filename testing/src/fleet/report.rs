//! What is seen of a fleet: in peace, in the storm, and after it.

use std::time::Duration;

use super::engine::{Counts, Engine, Gap, Instant, micros};
use super::{Fleet, Storm};

/// How long peace is watched.
const PEACE: Duration = Duration::from_secs(30);

/// How long a fleet may take to serve all volumes again.
const STORM_MAX: Duration = Duration::from_secs(600);

/// When gateways are back that failed all at once: the first one, and the last.
const RESTART: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(60));

/// Within which time preferred gateways ask for their groups, after those that failed are back.
const RETURN: Duration = Duration::from_secs(60);

/// After how long a client gives up a gateway that has lost its power: as its keepalive has it.
const NOTICED: Duration = Duration::from_secs(15);

/// What the shared state is asked for, each second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Reads of a record.
    pub reads: f64,
    /// Writes of a record: signs of life, above all.
    pub writes: f64,
    /// Marks by which standbys show that they are there.
    pub marks: f64,
    /// The longest that one of them had to wait.
    pub longest: Duration,
    /// Requests that were not answered in time, in all.
    pub unanswered: u64,
    /// Leases lost by holders that run, in all.
    pub lost: u64,
}

impl Traffic {
    /// All together.
    #[must_use]
    pub fn all(&self) -> f64 {
        self.reads + self.writes + self.marks
    }

    fn of(counts: &Counts, during: Instant) -> Self {
        let each = |count: u64| count as f64 * 1e6 / during.max(1) as f64;
        Self {
            reads: each(counts.reads),
            writes: each(counts.writes),
            marks: each(counts.marks),
            longest: Duration::from_micros(counts.longest_wait),
            unanswered: counts.unanswered,
            lost: counts.lost,
        }
    }
}

/// For how long something was not to be had, by those that had lost it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outage {
    /// How many had lost it.
    pub count: usize,
    /// Half of them no longer than this.
    pub median: Duration,
    /// None longer than this.
    pub longest: Duration,
}

impl Outage {
    fn of(mut each: Vec<Instant>) -> Self {
        each.sort_unstable();
        let at = |at: usize| Duration::from_micros(each.get(at).copied().unwrap_or(0));
        Self { count: each.len(), median: at(each.len() / 2), longest: at(each.len().max(1) - 1) }
    }
}

/// What became of a fleet.
#[derive(Clone, Debug)]
pub struct Report {
    /// How many leases there are.
    pub leases: usize,
    /// Before anything fails.
    pub peace: Traffic,
    /// From the failure on until all volumes are served again.
    pub storm: Traffic,
    /// How many addresses the storage had to shut out.
    pub fences: u64,
    /// From the failure on; `None` if that took too long.
    pub all_served: Option<Duration>,
    /// The volumes that were served by what failed.
    pub volumes: Outage,
    /// Their sessions.
    pub sessions: Outage,
    /// Volumes of the fullest gateway that runs, as a multiple of the average: before, after, and once all have returned.
    pub imbalance: [f64; 3],
    /// How many groups went back to the gateway that is preferred, and how many asked to.
    pub moved: (u64, u64),
    /// While they did, volumes that were moved.
    pub moves: Outage,
}

/// Has the fleet go through all.
pub(super) fn observe(fleet: &Fleet, storm: Storm) -> Report {
    let mut engine = Engine::new(fleet);
    let settled = micros(fleet.lease * 6 + PEACE);
    engine.run(settled, |_| false);
    engine.counts = Counts::default();
    engine.run(settled + micros(PEACE), |_| false);
    let peace = Traffic::of(&engine.counts, micros(PEACE));
    let before = imbalance(fleet, &engine, &[]);

    let victims = victims(fleet, storm);
    let since = engine.now;
    (engine.counts, engine.gaps) = (Counts::default(), Vec::new());
    engine.fail(&victims);
    if storm == Storm::All {
        restart(&mut engine, &victims, RESTART);
    }
    engine.run(since + micros(STORM_MAX), Engine::all_are_served);
    let took = engine.now - since;
    let during = Traffic::of(&engine.counts, took);
    let fences = engine.counts.fences;
    let all_served = engine.all_are_served().then(|| Duration::from_micros(took));
    let gaps = std::mem::take(&mut engine.gaps);
    let sizes = fleet.sizes();
    let outage = of_volumes(&gaps, &sizes);
    let sessions = of_sessions(fleet, &mut engine, &gaps, since);
    let gone: &[usize] = if storm == Storm::All { &[] } else { &victims };
    let after = imbalance(fleet, &engine, gone);

    restart(&mut engine, &victims, (Duration::ZERO, RESTART.0));
    let rest = micros(RESTART.1 + fleet.lease * 4);
    engine.run(engine.now + rest, |_| false);
    engine.gaps.clear();
    let epochs = engine.epochs();
    let asked = engine.ask_for_preferred(RETURN);
    engine.run(engine.now + micros(RETURN + fleet.lease * 4), |_| false);
    let moved = engine.epochs().iter().zip(&epochs).map(|(now, then)| now - then).sum();
    Report {
        leases: sizes.len(),
        peace,
        storm: during,
        fences,
        all_served,
        volumes: outage,
        sessions,
        imbalance: [before, after, imbalance(fleet, &engine, &[])],
        moved: (moved, asked),
        moves: of_volumes(&engine.gaps, &sizes),
    }
}

fn victims(fleet: &Fleet, storm: Storm) -> Vec<usize> {
    let all = 0..fleet.gateways;
    match storm {
        Storm::Gateway => vec![0],
        Storm::Rack => all.filter(|at| fleet.rack(*at) == 0).collect(),
        Storm::All => all.collect(),
    }
}

fn restart(engine: &mut Engine<'_>, gateways: &[usize], (first, last): (Duration, Duration)) {
    for gateway in gateways {
        let at = micros(first) + engine.random.below(micros(last) - micros(first));
        engine.start(*gateway, engine.now + at);
    }
}

/// The volumes of the fullest gateway, beside the average of those that run and may be active. Of a pair one is.
fn imbalance(fleet: &Fleet, engine: &Engine<'_>, gone: &[usize]) -> f64 {
    let mut loads = vec![0; fleet.gateways];
    for ((_, gateway), size) in engine.gateways().zip(fleet.sizes()) {
        if let Some(gateway) = gateway {
            loads[gateway] += size;
        }
    }
    let fullest = loads.iter().max().copied().unwrap_or(0);
    let running = fleet.gateways - gone.len();
    fullest as f64 * running as f64 / fleet.volumes as f64
}

fn of_volumes(gaps: &[Gap], sizes: &[usize]) -> Outage {
    let each = gaps.iter().flat_map(|gap| vec![gap.to - gap.from; sizes[gap.group]]);
    Outage::of(each.collect())
}

/// Sessions of groups that were away come back: each tries at intervals, and a gateway logs in one after the other.
fn of_sessions(fleet: &Fleet, engine: &mut Engine<'_>, gaps: &[Gap], since: Instant) -> Outage {
    let mut back = vec![None; fleet.sizes().len()];
    for gap in gaps {
        back[gap.group] = Some((gap.to.max(since + micros(NOTICED)), gap.gateway));
    }
    let mut arrivals = vec![Vec::new(); fleet.gateways];
    for group in fleet.groups_of_sessions(&mut engine.random) {
        if let Some((there, gateway)) = back[group] {
            let at: Instant = there + engine.random.below(micros(fleet.reconnect));
            arrivals[gateway].push(at);
        }
    }
    let each = 1_000_000 / fleet.login_rate;
    let mut outages = Vec::new();
    for mut arrivals in arrivals {
        arrivals.sort_unstable();
        let mut free = 0;
        for at in arrivals {
            free = at.max(free) + each;
            outages.push(free - since);
        }
    }
    Outage::of(outages)
}
