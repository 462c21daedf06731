//! All short sequences of requests, crashed at every event in every way.

use volume::Span;

use crate::disk::Crash;
use crate::simulation::{Request, Simulation};
use crate::store::BLOCK;

const BLOCKS: usize = 3;

/// So many independent halves are tried in all combinations; of more, each alone missing, alone there, and each first
/// run.
const HALVES_MAX: usize = 4;

/// At one of so many points recovery crashes as well.
const SECOND_EVERY: u64 = 16;

const fn span(at: u64, len: u64) -> Span {
    Span::new(at * BLOCK, len * BLOCK)
}

const ALPHABET: [Request; 6] = [
    Request::Write(span(0, 2)),
    Request::Write(span(1, 1)),
    Request::WriteDurable(span(1, 2)),
    Request::Zero(span(0, 3)),
    Request::Discard(span(1, 1)),
    Request::Flush,
];

/// All sequences of three requests; the shorter ones are where these begin.
fn sequences() -> Vec<Vec<Request>> {
    (0..3).fold(vec![Vec::new()], |shorter, _| {
        let longer = |sequence: &Vec<Request>| {
            let sequence = sequence.clone();
            ALPHABET.iter().map(move |request| [&sequence[..], &[*request]].concat())
        };
        shorter.iter().flat_map(longer).collect()
    })
}

/// Which halves happen in each crash that is tried.
fn choices(halves: usize) -> Vec<u128> {
    let all = if halves >= 128 { u128::MAX } else { (1 << halves) - 1 };
    if halves <= HALVES_MAX {
        return (0..=all).collect();
    }
    let bits = (0..halves.min(127)).map(|bit| 1_u128 << bit);
    let mut some: Vec<u128> = bits.flat_map(|bit| [bit, all ^ bit, bit - 1]).chain([all]).collect();
    some.sort_unstable();
    some.dedup();
    some
}

fn picker(choice: u128) -> impl FnMut() -> bool {
    let mut bit = 0_u32;
    move || {
        let is_picked = choice.checked_shr(bit).is_some_and(|rest| rest & 1 == 1);
        bit += 1;
        is_picked
    }
}

/// In which order things happen.
#[derive(Clone, Copy)]
struct Schedule {
    /// I/O ends in the order in which it began, or the last first.
    is_in_order: bool,
    /// All requests come before any I/O ends, or each when the one before has settled.
    is_at_once: bool,
}

#[derive(Default)]
struct Counts {
    sequences: u64,
    points: u64,
    crashes: u64,
    second_crashes: u64,
}

/// A simulation whose ring was once around, so that old frames stand where new ones go.
fn aged() -> Simulation {
    let mut simulation = Simulation::new(BLOCKS);
    for number in 0..7 {
        simulation.request(Request::Write(span(number % 3, 1)));
        simulation.request(Request::Flush);
        simulation.settle();
    }
    simulation
}

/// Runs a sequence and crashes after each event.
fn run(make: fn() -> Simulation, sequence: &[Request], schedule: Schedule, counts: &mut Counts) {
    let mut simulation = make();
    let mut asks = sequence.iter();
    let mut is_idle = false;
    loop {
        // What was asked so far is where other sequences begin too: one of them is crashed there.
        if asks.clone().all(|request| *request == ALPHABET[0]) {
            crash_here(&simulation, counts);
        }
        let may_ask = schedule.is_at_once || simulation.io.is_empty();
        if may_ask && let Some(request) = asks.next() {
            simulation.request(*request);
        } else if !simulation.io.is_empty() {
            simulation.complete(if schedule.is_in_order { 0 } else { simulation.io.len() - 1 });
        } else if !is_idle {
            is_idle = true;
            simulation.journal.idle();
            simulation.poll();
        } else {
            break;
        }
    }
    counts.sequences += 1;
    simulation.finish();
}

/// Crashes now in every way; what is found is recovered, sent and closed.
fn crash_here(simulation: &Simulation, counts: &mut Counts) {
    counts.points += 1;
    for choice in choices(simulation.halves()) {
        let mut found = simulation.crashed(Crash::Power, &mut picker(choice));
        counts.crashes += 1;
        // Recovery is much the same after most of them.
        if choice.count_ones() == 1 && counts.points.is_multiple_of(SECOND_EVERY) {
            second_crash(&mut found, counts);
        }
        found.finish();
    }
}

/// Recovers with a crash at every event of that, each of which begins again.
fn second_crash(found: &mut Simulation, counts: &mut Counts) {
    found.journal.idle();
    found.poll();
    while !found.io.is_empty() {
        for is_picked in [false, true] {
            let mut again = found.crashed(Crash::Power, &mut || is_picked);
            counts.second_crashes += 1;
            again.finish();
        }
        found.complete(0);
    }
}

fn all(make: fn() -> Simulation) {
    let mut counts = Counts::default();
    for sequence in sequences() {
        for (is_in_order, is_at_once) in
            [(true, true), (true, false), (false, true), (false, false)]
        {
            let schedule = Schedule { is_in_order, is_at_once };
            run(make, &sequence, schedule, &mut counts);
        }
    }
    let Counts { sequences, points, crashes, second_crashes } = counts;
    println!("{sequences} runs, {points} points, {crashes} crashes, {second_crashes} in recovery");
    assert_eq!(sequences, 4 * 6 * 6 * 6);
    assert!(crashes > 2 * points && second_crashes > points / 8, "the crashes are not tried");
}

#[test]
fn any_crash_of_any_three_requests_in_a_new_journal_is_legal() {
    all(|| Simulation::new(BLOCKS));
}

#[test]
fn any_crash_of_any_three_requests_over_a_store_that_keeps_the_order_is_legal() {
    all(|| Simulation::ordered(BLOCKS));
}

#[test]
fn any_crash_of_any_three_requests_over_a_store_with_a_checkpoint_is_legal() {
    all(|| Simulation::with_checkpoint(BLOCKS));
}

#[test]
fn any_crash_of_any_three_requests_in_a_journal_that_was_once_around_is_legal() {
    let used = aged().journal.status().used;
    assert!(used > 0, "old frames stand there");
    all(aged);
}
