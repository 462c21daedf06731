//! Clients that write, zero, discard, read and flush the same few blocks at once, over a disk that
//! answers in any order, fails, and loses its power: what is read and what is found afterwards is
//! never older than what was promised.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use volume::check::Random;
use volume::layer::pipeline::{Pipeline, Settings};
use volume::store::faulty::Faulty;
use volume::{Durability, Kind, Result, Space, Span, Verb, Volume};

use crate::chaos::Chaos;
use crate::history::{BLOCK, History, tagged};
use crate::sim::Sim;

/// Few blocks, so that everything meets everything.
const BLOCKS: u64 = 96;
const SIZE: u64 = BLOCKS * BLOCK;
const CLIENTS: u64 = 4;
const STEPS: usize = 40;

/// Small windows, so that they are always full.
fn tight(random: &mut Random) -> Settings {
    let mut pick = |some: &[u64]| some[random.below(some.len() as u64) as usize];
    let segment = pick(&[512, 2048, 4096]);
    Settings {
        window: Some(segment * pick(&[1, 4, 16])),
        segments: Some(pick(&[1, 2, 8]) as u32),
        segment: Some(segment as u32),
        read_ahead: Some(segment * pick(&[0, 2, 8])),
        unsolicited: [u64::MAX, 4096][random.below(2) as usize],
        holes: true,
        memory: 1 << 20,
    }
}

/// What one client, and its verdicts, need.
struct Client {
    pipeline: Arc<Pipeline>,
    history: Arc<History>,
    tags: Arc<AtomicU64>,
    sim: Sim,
    random: Random,
    /// Where it reads on, so that there are streams.
    cursor: u64,
    /// A flush failed here: from then on each must.
    flush_failed: bool,
}

impl Client {
    async fn run(mut self) {
        for _ in 0..STEPS {
            self.step().await;
            if self.random.below(4) == 0 {
                let time = Duration::from_micros(self.random.below(2000));
                self.sim.pause(time).await;
            }
        }
    }

    async fn step(&mut self) {
        let from = self.random.below(BLOCKS);
        let blocks = 1 + self.random.below((BLOCKS - from).min(12));
        let span = Span::new(from * BLOCK, blocks * BLOCK);
        let durability = match self.random.below(4) {
            0 => Durability::Durable,
            _ => Durability::Volatile,
        };
        match self.random.below(16) {
            0..6 => self.write(span, durability).await,
            6 => self.zero(span, durability).await,
            7 => self.discard(span).await,
            8 => self.flush().await,
            9..12 => {
                let at = self.cursor % BLOCKS * BLOCK;
                self.cursor += 2;
                self.read(Span::new(at, (2 * BLOCK).min(SIZE - at))).await;
            }
            _ => self.read(span).await,
        }
    }

    async fn write(&mut self, span: Span, durability: Durability) {
        let tag = self.tags.fetch_add(1, Ordering::Relaxed);
        let data = Bytes::from(tagged(tag, span.len));
        let write = self.history.begin(span, tag, durability == Durability::Durable);
        let pipeline = Arc::clone(&self.pipeline);
        if let Some(Ok(())) = self.perhaps(pipeline.write(span.at, data, durability)).await {
            self.history.end(write);
        }
    }

    async fn zero(&mut self, span: Span, durability: Durability) {
        let write = self.history.begin(span, 0, durability == Durability::Durable);
        if self.pipeline.write_zeroes(span, durability, Space::Release).await.is_ok() {
            self.history.end(write);
        }
    }

    async fn discard(&mut self, span: Span) {
        let write = self.history.begin(span, 0, false);
        let discarded = self.pipeline.discard(span).await;
        // One that may keep the bytes is as one of which nobody knows whether it happened.
        let zeroes = self.pipeline.shape().discard.is_some_and(|discard| discard.reads_zeroes);
        if discarded.is_ok() && zeroes {
            self.history.end(write);
        }
    }

    async fn flush(&mut self) {
        let began = self.history.now();
        match self.pipeline.flush().await {
            Ok(()) => {
                assert!(!self.flush_failed, "a flush succeeded after one that failed");
                self.history.flushed(began);
            }
            Err(_) => self.flush_failed = true,
        }
    }

    async fn read(&mut self, span: Span) {
        let began = self.history.now();
        let pipeline = Arc::clone(&self.pipeline);
        if let Some(Ok(bytes)) = self.perhaps(pipeline.read(span)).await {
            assert_eq!(bytes.len() as u64, span.len);
            self.history.check_read(span, began, &bytes);
        }
    }

    /// Sometimes loses patience, as a caller may.
    async fn perhaps<T>(&mut self, work: impl Future<Output = Result<T>>) -> Option<Result<T>> {
        if self.random.below(8) > 0 {
            return Some(work.await);
        }
        let mut patience = self.random.below(3);
        let mut work = pin!(work);
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if patience == 0 => Poll::Ready(None),
            Poll::Pending => {
                patience -= 1;
                Poll::Pending
            }
        })
        .await
    }
}

/// How a run ends.
#[derive(Clone, Copy, Debug)]
enum RunEnd {
    /// Everything is done and flushed.
    Peace,
    /// This machine stops at a random instant.
    Stop,
    /// The disk loses its power after some changes.
    Cut,
    /// A verb of the disk fails once.
    Fail(Verb),
}

const FATES: [RunEnd; 7] = [
    RunEnd::Peace,
    RunEnd::Stop,
    RunEnd::Cut,
    RunEnd::Fail(Verb::Write),
    RunEnd::Fail(Verb::Flush),
    RunEnd::Fail(Verb::WriteZeroes),
    RunEnd::Fail(Verb::Read),
];

struct Simulation {
    sim: Sim,
    disk: Arc<Chaos<Faulty>>,
    history: Arc<History>,
    clients: Vec<Client>,
    pipeline: Arc<Pipeline>,
}

fn simulation(seed: u64, settings: Settings) -> Simulation {
    let sim = Sim::default();
    let faulty = Faulty::new(SIZE, BLOCK as u32);
    // Volatile and durable writes may each have so much in flight, and one request always.
    let each = settings.segments.zip(settings.segment).map(|(many, size)| u64::from(many * size));
    let window = settings.window.unwrap_or(settings.memory);
    let most = each.map_or(window, |each| window.min(2 * each));
    let disk = Arc::new(Chaos::new(&sim, seed ^ 1, faulty, most));
    let beneath = Arc::clone(&disk) as Arc<dyn Volume>;
    let (pipeline, worker) = Pipeline::new(beneath, settings, Arc::new(sim.clone()));
    sim.spawn(worker);
    let pipeline = Arc::new(pipeline);
    let history = Arc::new(History::new(SIZE));
    let tags = Arc::new(AtomicU64::new(1));
    let client = |number| Client {
        pipeline: Arc::clone(&pipeline),
        history: Arc::clone(&history),
        tags: Arc::clone(&tags),
        sim: sim.clone(),
        random: Random::new(seed << 8 | number),
        cursor: 0,
        flush_failed: false,
    };
    let clients = (0..CLIENTS).map(client).collect();
    Simulation { sim, disk, history, clients, pipeline }
}

/// One life; how often the map was told in it.
fn live(seed: u64, run_end: RunEnd, settings: Settings) -> u64 {
    let mut random = Random::new(seed);
    let Simulation { sim, disk, history, clients, pipeline } = simulation(seed, settings);
    let ended = Arc::new(AtomicU64::new(0));
    for client in clients {
        let ended = Arc::clone(&ended);
        sim.spawn(async move {
            client.run().await;
            ended.fetch_add(1, Ordering::Relaxed);
        });
    }
    match run_end {
        RunEnd::Cut => disk.disk.cut_after(random.below(80)),
        RunEnd::Peace | RunEnd::Stop | RunEnd::Fail(_) => {}
    }
    let instant = Duration::from_micros(random.below(60_000));
    let main = {
        let (sim, disk, ended) = (sim.clone(), Arc::clone(&disk), Arc::clone(&ended));
        let (history, pipeline) = (Arc::clone(&history), Arc::clone(&pipeline));
        async move {
            sim.until(instant).await;
            match run_end {
                RunEnd::Stop => return,
                RunEnd::Fail(verb) => disk.disk.fail(verb, Kind::Medium),
                RunEnd::Peace | RunEnd::Cut => {}
            }
            while ended.load(Ordering::Relaxed) < CLIENTS {
                sim.pause(Duration::from_millis(1)).await;
            }
            let began = history.now();
            let flushed = pipeline.flush().await;
            assert!(flushed.is_ok() || !matches!(run_end, RunEnd::Peace), "{flushed:?}");
            if flushed.is_ok() {
                history.flushed(began);
            }
        }
    };
    sim.run(seed, main);
    history.check_crash(disk.disk.crash(seed).contents().as_slice());
    disk.told()
}

#[test]
fn nothing_is_older_than_was_promised() {
    let mut told = 0;
    for seed in 0..700 {
        let run_end = FATES[seed as usize % FATES.len()];
        let settings = tight(&mut Random::new(seed));
        println!("seed {seed}: {run_end:?}, {settings:?}");
        told += live(seed, run_end, settings);
    }
    assert!(told > 700, "the map was told {told} times: hardly anything was known to be zero");
}

#[test]
fn nor_with_windows_that_follow_the_disk() {
    for seed in 10_000..10_140 {
        let run_end = FATES[seed as usize % FATES.len()];
        println!("seed {seed}: {run_end:?}");
        live(seed, run_end, Settings::default());
    }
}
