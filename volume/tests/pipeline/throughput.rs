//! One application, one request at a time, over a long link: how much of it is used.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use volume::layer::pipeline::model::Stages;
use volume::layer::pipeline::{Chosen, Limit, Pipeline, Settings};
use volume::layer::reconnect::Runtime;
use volume::{Durability, Shape, Span, Volume};

use crate::link::{Conditions, Link, Void};
use crate::sim::Sim;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const GIGABIT: f64 = 125e6;
const KIB: u64 = 1 << 10;

fn line(one_way_ms: u32, rate: f64) -> Conditions {
    Conditions {
        one_way: one_way_ms * MS,
        jitter: Duration::ZERO,
        rate,
        slow_start: false,
        unsolicited: u64::MAX,
    }
}

fn void() -> Void {
    Void(Shape {
        physical_block_size: 4096,
        discard: None,
        fast_zeroes: false,
        ..Shape::in_memory(1 << 40, 512)
    })
}

/// What the application does, again and again.
#[derive(Clone, Copy, Debug)]
enum Act {
    Read,
    Write,
}

/// A link, a pipeline over it, and one application.
struct Fixture {
    sim: Sim,
    link: Arc<Link<Void>>,
    pipeline: Arc<Pipeline>,
    at: u64,
}

impl Fixture {
    fn new(sim: &Sim, line: Conditions, settings: Settings) -> Self {
        let link = Link::new(sim, line, void());
        let beneath = Arc::clone(&link) as Arc<dyn Volume>;
        let (pipeline, worker) = Pipeline::new(beneath, settings, Arc::new(sim.clone()));
        sim.spawn(worker);
        Self { sim: sim.clone(), link, pipeline: Arc::new(pipeline), at: 0 }
    }

    /// Does `act` with the next `block`.
    async fn once(&mut self, act: Act, block: u64) {
        match act {
            Act::Write => {
                let data = Bytes::from(vec![7; block as usize]);
                let write = self.pipeline.write(self.at, data, Durability::Volatile);
                write.await.unwrap();
            }
            Act::Read => {
                let bytes = self.pipeline.read(Span::new(self.at, block)).await.unwrap();
                assert_eq!(bytes[..8], self.at.to_le_bytes());
            }
        }
        self.at += block;
    }

    /// Does `act` in blocks of `block` for a time; says how many bytes per second crossed the link.
    async fn rate(&mut self, act: Act, block: u64, time: Duration) -> f64 {
        let (before, from) = (self.link.carried(), self.sim.now());
        while self.sim.now() < from + time {
            self.once(act, block).await;
        }
        let (after, elapsed) = (self.link.carried(), (self.sim.now() - from).as_secs_f64());
        match act {
            Act::Write => (after.0 - before.0) as f64 / elapsed,
            Act::Read => (after.1 - before.1) as f64 / elapsed,
        }
    }

    fn chosen(&self, act: Act) -> Chosen {
        let (writes, reads) = self.pipeline.chosen();
        match act {
            Act::Write => writes,
            Act::Read => reads,
        }
    }
}

fn run<T: Send + 'static, S: Future<Output = T> + Send + 'static>(
    line: Conditions,
    settings: Settings,
    story: impl FnOnce(Fixture) -> S,
) -> T {
    let sim = Sim::default();
    let fixture = Fixture::new(&sim, line, settings);
    sim.run(1, story(fixture))
}

#[test]
fn one_request_at_a_time_fills_a_gigabit_link_of_64_ms() {
    for act in [Act::Write, Act::Read] {
        for block in [16 * KIB, 64 * KIB, 2048 * KIB] {
            let rate = run(line(64, GIGABIT), Settings::default(), |mut fixture| async move {
                // The first seconds are spent finding out what the link is like.
                fixture.rate(act, block, 3 * SECOND).await;
                fixture.rate(act, block, 25 * SECOND).await
            });
            println!("{act:?} {block}: {:.1} % of the link", rate / GIGABIT * 100.0);
            assert!(rate > 0.95 * GIGABIT, "{act:?} {block}: {rate}");
        }
    }
}

/// What a program does between two requests: the answer has to reach it, and the next one the pipeline.
const BETWEEN: Duration = Duration::from_micros(60);

#[test]
fn a_fresh_connection_is_used_as_a_stream_would_use_it() {
    const BYTES: u64 = 1 << 30;
    for one_way_ms in [8, 64] {
        let line = Conditions { slow_start: true, ..line(one_way_ms, GIGABIT) };
        let stream = run(line, Settings::default(), |fixture| async move {
            fixture.link.stream(BYTES).await;
            fixture.sim.now()
        });
        for (act, block) in [
            (Act::Write, 16 * KIB),
            (Act::Write, 64 * KIB),
            (Act::Write, 2048 * KIB),
            (Act::Read, 16 * KIB),
            (Act::Read, 64 * KIB),
            (Act::Read, 2048 * KIB),
        ] {
            let (taken, queued) = run(line, Settings::default(), |mut fixture| async move {
                for _ in 0..BYTES / block {
                    fixture.once(act, block).await;
                    fixture.sim.pause(BETWEEN).await;
                }
                fixture.pipeline.flush().await.unwrap();
                (fixture.sim.now(), fixture.link.queued())
            });
            let queued = queued.0.max(queued.1);
            let share = stream.as_secs_f64() / taken.as_secs_f64();
            println!(
                "{one_way_ms} ms, {act:?} {block}: {taken:?}, {:.1} % of a stream, {queued:?} in queues",
                share * 100.0
            );
            assert!(share > 0.95, "{act:?} {block}: {taken:?} where a stream takes {stream:?}");
            // A router's queue that holds as much as the link does not overflow.
            assert!(queued <= 2 * line.one_way + MS, "{act:?} {block}: {queued:?} in queues");
        }
    }
}

/// What a program, and the socket to it, take for so many bytes of an answer: most of a gigabyte a second.
fn digesting(bytes: u64) -> Duration {
    BETWEEN + Duration::from_secs_f64(bytes as f64 / 0.8e9)
}

#[test]
fn the_next_answer_is_on_its_way_while_a_program_takes_the_last() {
    for one_way_ms in [0, 8] {
        for block in [512 * KIB, 2048 * KIB, 8192 * KIB] {
            let rate =
                run(line(one_way_ms, GIGABIT), Settings::default(), |mut fixture| async move {
                    let (mut taken, mut from) = (0, Duration::ZERO);
                    while fixture.sim.now() < 3 * SECOND {
                        fixture.once(Act::Read, block).await;
                        fixture.sim.pause(digesting(block)).await;
                        match fixture.sim.now() {
                            now if now < SECOND => from = now,
                            _ => taken += block,
                        }
                    }
                    taken as f64 / (fixture.sim.now() - from).as_secs_f64()
                });
            println!("{one_way_ms} ms, {block}: {:.1} % of the link", rate / GIGABIT * 100.0);
            assert!(rate > 0.95 * GIGABIT, "{one_way_ms} ms, {block}: {rate}");
        }
    }
}

#[test]
fn it_takes_ten_round_trips_to_fill_it() {
    for act in [Act::Write, Act::Read] {
        let rate = run(line(64, GIGABIT), Settings::default(), |mut fixture| async move {
            fixture.rate(act, 64 * KIB, 10 * 128 * MS).await;
            fixture.rate(act, 64 * KIB, SECOND).await
        });
        println!("{act:?}: {:.1} % of the link", rate / GIGABIT * 100.0);
        assert!(rate > 0.9 * GIGABIT, "{act:?}: {rate}");
    }
}

#[test]
fn short_and_slow_links_are_filled_too_and_not_flooded() {
    for (one_way, rate) in [(0, GIGABIT), (1, GIGABIT), (8, GIGABIT), (16, 125e3), (16, 375e3)] {
        for act in [Act::Write, Act::Read] {
            let (used, chosen) =
                run(line(one_way, rate), Settings::default(), |mut fixture| async move {
                    fixture.rate(act, 64 * KIB, 10 * SECOND).await;
                    let used = fixture.rate(act, 64 * KIB, 10 * SECOND).await;
                    (used, fixture.chosen(act))
                });
            println!("{act:?} {one_way} ms, {rate}: {:.3}, {chosen:?}", used / rate);
            assert!(used > 0.95 * rate, "{act:?} {one_way} {rate}: {used}");
            // No more in flight than twice what fills the link, or a few of the smallest segments;
            // the latency that counts is that of two segments.
            let product = 2.0 * f64::from(one_way) / 1e3 * rate;
            let most = 2.5 * (product + 2.0 * chosen.segment as f64);
            assert!(chosen.in_flight as f64 <= most, "{chosen:?}");
        }
    }
}

/// With `n` segments in flight the rate is what the model says: `n` times that of one, up to the
/// useful `n`, and the link's from there on.
#[test]
fn the_gain_follows_the_model() {
    for act in [Act::Write, Act::Read] {
        for segment in [64 * KIB, 512 * KIB] {
            let stages = Stages {
                round_trip: 128 * MS,
                round_trips: 1,
                link: GIGABIT,
                encrypt: None,
                decrypt: None,
            };
            for n in [1, 2, 4, 8, 16, 32, 64, 300] {
                let settings = Settings {
                    segments: Some(n),
                    segment: Some(segment as u32),
                    window: Some(2 * u64::from(n) * segment),
                    read_ahead: Some(u64::from(n + 2) * segment),
                    ..Settings::default()
                };
                let rate = run(line(64, GIGABIT), settings, |mut fixture| async move {
                    fixture.rate(act, 64 * KIB, 3 * SECOND).await;
                    fixture.rate(act, 64 * KIB, 10 * SECOND).await
                });
                let predicted = stages.throughput(segment, f64::from(n));
                println!("{act:?} {n} x {segment}: {rate:.0}, predicted {predicted:.0}");
                assert!((rate / predicted - 1.0).abs() < 0.05, "{act:?} {n} x {segment}");
            }
        }
    }
}

#[test]
fn follows_a_link_that_changes() {
    const FAST: f64 = GIGABIT / 10.0;
    let lines = [
        line(64, FAST),
        line(64, FAST / 10.0),
        line(8, FAST / 10.0),
        line(8, FAST),
        line(100, FAST),
        line(64, FAST),
    ];
    for act in [Act::Write, Act::Read] {
        run(lines[0], Settings::default(), |mut fixture| async move {
            for line in lines {
                fixture.link.set_conditions(line);
                // What a fast link has in flight takes a slow one seconds, for each of some ten rounds.
                fixture.rate(act, 64 * KIB, 45 * SECOND).await;
                let used = fixture.rate(act, 64 * KIB, 10 * SECOND).await / line.rate;
                let chosen = fixture.chosen(act);
                println!("{act:?} {:?} {:.0}: {used:.3}, {chosen:?}", line.one_way, line.rate);
                assert!(used > 0.95, "{act:?} {used}");
                let product = 2.0 * line.one_way.as_secs_f64() * line.rate;
                let most = 2.5 * (product + 2.0 * chosen.segment as f64);
                assert!(chosen.in_flight as f64 <= most, "{chosen:?}");
            }
        });
    }
}

/// A reader of one file after the other does not wait until what was read ahead of the last is
/// forgotten.
#[test]
fn a_reader_that_jumps_is_followed_at_once() {
    let link = line(8, GIGABIT / 10.0);
    run(link, Settings::default(), |mut fixture| async move {
        fixture.rate(Act::Read, 16 * KIB, 3 * SECOND).await;
        for jump in 1..=5 {
            fixture.at = jump << 30;
            let used = fixture.rate(Act::Read, 16 * KIB, SECOND / 2).await / link.rate;
            println!("after jump {jump}: {used:.3}");
            assert!(used > 0.75, "after jump {jump}: {used}");
            // The place it left has its share for a second more.
            fixture.rate(Act::Read, 16 * KIB, SECOND).await;
        }
    });
}

#[test]
fn jitter_costs_little() {
    let shaky = Conditions { jitter: 10 * MS, ..line(40, GIGABIT / 4.0) };
    for act in [Act::Write, Act::Read] {
        let rate = run(shaky, Settings::default(), |mut fixture| async move {
            fixture.rate(act, 64 * KIB, 3 * SECOND).await;
            fixture.rate(act, 64 * KIB, 25 * SECOND).await
        });
        println!("{act:?}: {:.1} % of the link", rate / shaky.rate * 100.0);
        assert!(rate > 0.93 * shaky.rate, "{act:?}: {rate}");
    }
}

/// One of several applications: what it does without end, at its own place.
#[derive(Clone, Copy)]
enum Access {
    Read,
    Write(Durability),
}

/// Applications with these accesses at once.
struct Together {
    fixture: Fixture,
    pipeline: Arc<Pipeline>,
}

impl Together {
    fn start(fixture: Fixture, accesses: impl IntoIterator<Item = Access>) -> Self {
        let together = Self { pipeline: Arc::clone(&fixture.pipeline), fixture };
        for (number, access) in (1..).zip(accesses) {
            let pipeline = Arc::clone(&together.pipeline);
            let data = Bytes::from(vec![7; 64 << 10]);
            together.fixture.sim.spawn(async move {
                for at in (number << 33_u64..).step_by(64 << 10) {
                    match access {
                        Access::Read => drop(pipeline.read(Span::new(at, 64 * KIB)).await.unwrap()),
                        Access::Write(durability) => {
                            pipeline.write(at, data.clone(), durability).await.unwrap();
                        }
                    }
                }
            });
        }
        together
    }

    /// The parts of both directions of the link that are used for so long.
    async fn used(&self, time: Duration) -> (f64, f64) {
        let Fixture { sim, link, .. } = &self.fixture;
        let before = link.carried();
        sim.pause(time).await;
        let after = link.carried();
        let used = |bytes: u64| bytes as f64 / time.as_secs_f64() / link.conditions().rate;
        (used(after.0 - before.0), used(after.1 - before.1))
    }
}

const VOLATILE: Access = Access::Write(Durability::Volatile);
const DURABLE: Access = Access::Write(Durability::Durable);

/// tgt takes so much of a write with its command. Longer ones take two round trips each, shorter ones one.
#[test]
fn a_store_that_asks_for_data_is_kept_busy_too() {
    const UNSOLICITED: u64 = 8 * KIB;
    let asking = Conditions { unsolicited: UNSOLICITED, ..line(8, GIGABIT / 10.0) };
    for block in [16 * KIB, 64 * KIB, 256 * KIB] {
        let settings = Settings { unsolicited: UNSOLICITED, ..Settings::default() };
        let used = run(asking, settings, |mut fixture| async move {
            // A superblock is read and written before anything else.
            fixture.once(Act::Write, 4 * KIB).await;
            fixture.pipeline.flush().await.unwrap();
            fixture.rate(Act::Write, block, SECOND).await;
            fixture.rate(Act::Write, block, 4 * SECOND).await / asking.rate
        });
        assert!(used > 0.95, "{block}: {used}");
    }
}

/// What is in flight at most, once in a round trip of a geostationary link: no write waits to be asked for its data, and
/// the link is not left idle again and again to measure the latency.
#[test]
fn link_by_satellite_carries_what_memory_holds() {
    const UNSOLICITED: u64 = 512 * KIB;
    let satellite = Conditions { unsolicited: UNSOLICITED, ..line(300, GIGABIT) };
    let settings = Settings { unsolicited: UNSOLICITED, ..Settings::default() };
    let rate = run(satellite, settings, |mut fixture| async move {
        fixture.rate(Act::Write, 64 * KIB, 10 * SECOND).await;
        fixture.rate(Act::Write, 64 * KIB, 60 * SECOND).await
    });
    let most = settings.memory as f64 / (2.0 * satellite.one_way.as_secs_f64());
    println!("{:.1} % of {most:.0}", rate / most * 100.0);
    assert!(rate > 0.95 * most, "{rate} of {most}");
}

#[test]
fn several_readers_or_writers_fill_the_link() {
    for (access, direction) in [(VOLATILE, 0), (Access::Read, 1)] {
        run(line(32, GIGABIT / 4.0), Settings::default(), move |fixture| async move {
            let together = Together::start(fixture, [access; 3]);
            together.used(5 * SECOND).await;
            let used = <[f64; 2]>::from(together.used(20 * SECOND).await);
            assert!(used[direction] > 0.95, "{used:?}");
        });
    }
}

/// With both directions full, each one's requests and answers queue behind the other's data.
#[test]
fn both_directions_are_kept_full_at_once() {
    for (one_way, rate) in
        [(2, GIGABIT / 5.0), (8, GIGABIT), (32, GIGABIT / 4.0), (64, GIGABIT / 5.0)]
    {
        run(line(one_way, rate), Settings::default(), move |fixture| async move {
            let together = Together::start(fixture, [VOLATILE, Access::Read].repeat(3));
            together.used(5 * SECOND).await;
            let (up, down) = together.used(40 * SECOND).await;
            println!("{one_way} ms, {rate:.0}: {up:.3} {down:.3}");
            assert!(up > 0.8 && down > 0.8, "{one_way} ms, {rate}: {up} {down}");
        });
    }
}

/// The latency without a queue is not that of a queue which the other direction makes: with it ever more would be in flight.
#[test]
fn in_flight_does_not_grow_while_both_directions_are_full() {
    run(line(8, GIGABIT / 10.0), Settings::default(), |fixture| async move {
        let together = Together::start(fixture, [VOLATILE, Access::Read].repeat(3));
        for _ in 0..10 {
            together.used(12 * SECOND).await;
            let (writes, reads) = together.pipeline.chosen();
            for chosen in [writes, reads] {
                assert!(chosen.latency < Some(25 * MS), "{chosen:?}");
            }
        }
    });
}

/// Durable writes go first, but not alone; a flush waits for what was written before it.
#[test]
fn flushes_beside_durable_writes_and_reads_wait_for_no_second() {
    run(line(8, GIGABIT / 10.0), Settings::default(), |fixture| async move {
        let accesses = [Access::Read; 3].into_iter().chain([DURABLE; 48]);
        let together = Together::start(fixture, accesses);
        let sim = &together.fixture.sim;
        for at in (0..300).map(|number| number * 64 * KIB) {
            let data = Bytes::from(vec![7; 64 << 10]);
            let began = sim.now();
            together.pipeline.write(at, data, Durability::Volatile).await.unwrap();
            together.pipeline.flush().await.unwrap();
            assert!(sim.now() - began < SECOND, "at {began:?}");
            sim.pause(100 * MS).await;
        }
    });
}

/// Each of them has requests of its own in flight while the latency is measured.
#[test]
fn durable_and_volatile_writes_fill_the_link_together() {
    run(line(8, GIGABIT / 10.0), Settings::default(), |fixture| async move {
        let together = Together::start(fixture, [VOLATILE, DURABLE].repeat(3));
        for _ in 0..6 {
            let (up, _) = together.used(10 * SECOND).await;
            assert!(up > 0.85, "{up}");
        }
    });
}

#[test]
fn says_what_limits() {
    let limit = |settings, act| {
        run(line(64, GIGABIT), settings, move |mut fixture| async move {
            fixture.rate(act, 64 * KIB, 5 * SECOND).await;
            println!("{act:?} {:?}", fixture.chosen(act));
            fixture.chosen(act).limit
        })
    };
    let few = Settings { segments: Some(4), ..Settings::default() };
    let little = Settings { memory: 4 << 20, ..Settings::default() };
    for act in [Act::Write, Act::Read] {
        assert_eq!(limit(Settings::default(), act), Limit::Connection, "{act:?}");
        assert_eq!(limit(few, act), Limit::RoundTrips, "{act:?}");
        assert_eq!(limit(little, act), Limit::RoundTrips, "{act:?}");
    }
}

#[test]
fn a_read_of_what_was_written_waits_for_nothing() {
    run(line(64, GIGABIT), Settings::default(), |fixture| async move {
        let data = Bytes::from(vec![9; 4096]);
        fixture.pipeline.write(1 << 20, data.clone(), Durability::Volatile).await.unwrap();
        assert_eq!(fixture.pipeline.read(Span::new(1 << 20, 4096)).await.unwrap(), data);
        assert_eq!(fixture.sim.now(), Duration::ZERO);
    });
}
