//! Long random runs with crashes in all places, also one after another.

use volume::Span;
use volume::check::Random;
use volume::layer::journal::State;

use crate::disk::Crash;
use crate::simulation::{Request, Simulation, StoreKind};
use crate::store::BLOCK;

const BLOCKS: u64 = 12;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[derive(Default)]
struct Counts {
    crashes: u64,
    requests: u64,
    sent: u64,
    full: u64,
    sent_ahead: usize,
    sent_over: u64,
}

fn request(random: &mut Random) -> Request {
    let at = random.below(BLOCKS);
    let longest = 1 << random.below(4);
    let len = 1 + random.below((BLOCKS - at).min(longest));
    let span = Span::new(at * BLOCK, len * BLOCK);
    match random.below(16) {
        0..=8 => Request::Write(span),
        9 => Request::WriteDurable(span),
        10 => Request::Zero(span),
        11 => Request::Discard(span),
        _ => Request::Flush,
    }
}

/// One thing happens.
fn event(random: &mut Random, simulation: &mut Simulation, counts: &mut Counts) {
    match random.below(8) {
        0..=2 => {
            let request = request(random);
            simulation.request(request);
            counts.requests += 1;
            counts.full += u64::from(simulation.journal.status().state == State::Full);
        }
        3 if random.below(4) == 0 => {
            simulation.journal.idle();
            simulation.poll();
        }
        3 if random.below(8) == 0 => simulation.read_slowly(),
        3 => {
            simulation.journal.checkpoint();
            simulation.poll();
        }
        _ if !simulation.io.is_empty() => {
            let index = if random.below(2) == 0 { 0 } else { random.index(simulation.io.len()) };
            simulation.complete(index);
        }
        _ => {}
    }
}

/// Of each crash the process alone dies, or the power goes; and the store may lose its power too.
fn crash(random: &mut Random, simulation: &Simulation) -> Simulation {
    let kind = if random.below(3) == 0 { Crash::Process } else { Crash::Power };
    let share = random.below(5);
    let mut bits = random.clone();
    random.word();
    let mut left = simulation.crash(kind, &mut || bits.below(4) < share);
    if random.below(4) == 0 {
        left.store.lose_power(&mut |versions| bits.index(versions));
    }
    match simulation.reopen(left) {
        Ok(simulation) => simulation,
        Err(corruption) => panic!("a crash is no corruption: {corruption}"),
    }
}

/// One life after another in one journal.
fn run(seed: u64, crashes: u64, counts: &mut Counts) {
    let mut random = Random::new(seed);
    let (discard_zeroes, is_ordered) = (seed.is_multiple_of(2), seed % 4 < 2);
    let kind = StoreKind { discard_zeroes, is_ordered, has_checkpoint: seed % 8 < 6 };
    let mut simulation = Simulation::over(BLOCKS as usize, kind);
    for _ in 0..crashes {
        // Many lives are short: then recovery itself is what crashes.
        let events = 1 << random.below(8);
        for _ in 0..events {
            event(&mut random, &mut simulation, counts);
        }
        if random.below(4) == 0 {
            simulation.check_reads();
        }
        counts.sent += simulation.sent;
        counts.sent_over += simulation.sent_over;
        counts.sent_ahead = counts.sent_ahead.max(simulation.sent_ahead);
        counts.crashes += 1;
        simulation = crash(&mut random, &simulation);
    }
    simulation.finish();
}

#[test]
fn random_lives_with_crashes_keep_every_promise() {
    const CRASHES: u64 = 20;
    let first = number("LONGHAUL_SEED").unwrap_or(0);
    let crashes = number("LONGHAUL_JOURNAL_CRASHES").unwrap_or(4_000);
    println!("LONGHAUL_SEED={first} LONGHAUL_JOURNAL_CRASHES={crashes}");
    let mut counts = Counts::default();
    for seed in first..first + crashes.div_ceil(CRASHES) {
        let run = std::panic::AssertUnwindSafe(|| run(seed, CRASHES, &mut counts));
        if let Err(panic) = std::panic::catch_unwind(run) {
            println!("LONGHAUL_SEED={seed} LONGHAUL_JOURNAL_CRASHES=1");
            std::panic::resume_unwind(panic);
        }
    }
    let Counts { crashes, requests, sent, full, sent_ahead, sent_over } = counts;
    println!(
        "{crashes} crashes, {requests} requests, {sent} sent, {full} times full, {sent_ahead} groups at once, \
         {sent_over} over others"
    );
    assert!(sent_over > crashes / 4 || crashes < 1_000, "groups that overlap wait");
    assert!(sent_ahead > 2 || crashes < 1_000, "groups wait for one another");
    assert!(requests > crashes && sent > crashes && full > 0, "the run does not do what it should");
}
