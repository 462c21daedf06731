//! The layer itself, on virtual time: nothing ends before the test says so, in whatever order, and at any moment the
//! client or a disk may be gone.

mod environment;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use volume::check::Random;
use volume::layer::journal::{
    Checkpoint, FlushPolicy, Identity, Journaled, LayerOptions, LayerStatus, Mode, Settings, Stale,
    State, Superblock, recover, superblock_offset,
};
use volume::{Discard, Durability, Shape, Space, Span, Volume as _};

use self::environment::{Clock, Environment, FileEnd, Handle, Io, StoreEnd};
use crate::disk::{Crash, Disk};
use crate::history::History;
use crate::simulation::{FILE_LEN, Request, SETTINGS};
use crate::store::{BLOCK, JOURNAL, Store, ZERO, block, blocks, stamps};

const BLOCKS: usize = 8;

#[derive(Clone, Copy, Debug)]
enum Pending {
    /// The change of that number, which is to be durable.
    Durable(usize, Span),
    /// The same of one that is not.
    Volatile(usize, Span),
    /// Of so many changes.
    Flush(usize),
}

type Running = Pin<Box<dyn Future<Output = volume::Result<()>>>>;

struct Simulation {
    handle: Handle,
    flush: FlushPolicy,
    layer: Option<Arc<Journaled>>,
    worker: Option<Pin<Box<dyn Future<Output = LayerStatus> + Send>>>,
    pending: Vec<(Pending, Running)>,
    history: History,
    next_stamp: u64,
    failed: u64,
    answered: u64,
    /// Whether the store was sent something that the journal may not hold.
    was_direct: bool,
    is_ordered: bool,
}

/// How a simulation is opened.
struct OpenWith {
    flush: FlushPolicy,
    max_age: Option<Duration>,
    was_direct: bool,
    /// The store keeps the order of groups.
    is_ordered: bool,
}

/// Polls what needs nothing from outside.
fn now<T>(work: impl Future<Output = T>) -> T {
    let mut work = Box::pin(work);
    match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(ready) => ready,
        Poll::Pending => panic!("it has to wait"),
    }
}

impl Simulation {
    fn new(flush: FlushPolicy) -> Self {
        Self::made(flush, None, false)
    }

    fn made(flush: FlushPolicy, max_age: Option<Duration>, is_ordered: bool) -> Self {
        let volume =
            Identity { name: [1; 32], size: BLOCKS as u64 * BLOCK, block_size: BLOCK as u32 };
        let mut disk = Disk::default();
        for superblock in Superblock::new(JOURNAL, [3; 32], volume, FILE_LEN).unwrap() {
            disk.write(superblock_offset(superblock.number), &superblock.encode()).unwrap();
        }
        let with = OpenWith { flush, max_age, was_direct: false, is_ordered };
        Self::open(disk, Store::new(BLOCKS), History::new(BLOCKS), 1, with)
    }

    fn open(
        disk: Disk,
        store: Store,
        history: History,
        next_stamp: u64,
        OpenWith { flush, max_age, was_direct, is_ordered }: OpenWith,
    ) -> Self {
        let handle = Handle(Arc::new(Mutex::new(Environment::new(disk, store))));
        let file = Arc::new(FileEnd(handle.clone()));
        let mut recovered = match now(recover(&*file, FILE_LEN)) {
            Ok(recovered) => recovered,
            Err(corruption) => panic!("a crash is no corruption: {corruption}"),
        };
        let checkpoint = handle.lock().store.checkpoint();
        assert_eq!(checkpoint.admit(&recovered), Ok(()), "the journal itself is no copy");
        checkpoint.apply(&mut recovered);
        if recovered.changes.is_empty() {
            let mut environment = handle.lock();
            environment.disk.sync();
            environment.store.put_checkpoint(&Checkpoint::of(&recovered));
        }
        let shape = Shape {
            size: BLOCKS as u64 * BLOCK,
            block_size: BLOCK as u32,
            physical_block_size: BLOCK as u32,
            read_only: false,
            write_cache: true,
            discard: Some(Discard { granularity: BLOCK as u32, reads_zeroes: true }),
            fast_zeroes: true,
        };
        let options = LayerOptions {
            settings: Settings { discard_zeroes: true, ..SETTINGS },
            flush,
            max_age,
            unsolicited: u64::MAX,
            is_fence: {
                let handle = handle.clone();
                Arc::new(move |_| handle.lock().is_fenced)
            },
            checkpoint: Some(span(BLOCKS as u64, 1)),
        };
        let clock = Arc::new(Clock(handle.clone()));
        let inner = Arc::new(StoreEnd(handle.clone(), shape, is_ordered));
        let (layer, worker) = Journaled::new(inner, file, &recovered, 7, options, clock);
        let mut simulation = Self {
            handle,
            flush,
            layer: Some(Arc::new(layer)),
            worker: Some(Box::pin(worker)),
            pending: Vec::new(),
            history,
            next_stamp,
            failed: 0,
            answered: 0,
            was_direct,
            is_ordered,
        };
        let found = simulation.contents();
        match was_direct {
            true => {
                simulation.history.recover_loosely(&found);
                // The store may hold what came after the last flush that was acknowledged, which is set back to it.
                simulation.poll();
                simulation.settle();
                simulation.pass(Duration::from_secs(2));
                simulation.settle();
                // What it got without the journal was not flushed, and is known from here on.
                simulation.handle.lock().store.flush();
                simulation.was_direct = false;
            }
            false => simulation.history.recover(&found),
        }
        simulation.poll();
        simulation
    }

    fn layer(&self) -> &Arc<Journaled> {
        self.layer.as_ref().expect("it is open")
    }

    fn contents(&self) -> Vec<u64> {
        let span = Span::new(0, BLOCKS as u64 * BLOCK);
        stamps(&now(self.layer().read(span)).expect("it can be read"))
    }

    /// So many changes came before any that a flush now does not cover.
    fn accepted(&self) -> usize {
        let status = self.layer().status();
        if status.mode == Mode::Journal {
            return self.history.len() - status.journal.waiting;
        }
        let unanswered = self.pending.iter().filter_map(|(pending, _)| match pending {
            Pending::Durable(number, _) | Pending::Volatile(number, _) => Some(*number),
            Pending::Flush(_) => None,
        });
        unanswered.min().unwrap_or(self.history.len())
    }

    /// Whether a change under way concerns any block that this one does.
    fn overlaps_unanswered(&self, request: Request) -> bool {
        let (Request::Write(span)
        | Request::WriteDurable(span)
        | Request::Zero(span)
        | Request::Discard(span)) = request
        else {
            return false;
        };
        let overlaps = |other: &Span| other.at < span.end() && span.at < other.end();
        self.pending.iter().any(|(pending, _)| match pending {
            Pending::Durable(_, other) | Pending::Volatile(_, other) => overlaps(other),
            Pending::Flush(_) => false,
        })
    }

    fn request(&mut self, request: Request) {
        let layer = Arc::clone(self.layer());
        let (stamp, number) = (self.next_stamp, self.history.len());
        self.next_stamp += 1;
        let (pending, changed) = match request {
            Request::Flush => {
                let covered = self.accepted();
                self.history.flush(covered);
                (Pending::Flush(covered), None)
            }
            Request::WriteDurable(span) => (Pending::Durable(number, span), Some((span, stamp))),
            Request::Write(span) => (Pending::Volatile(number, span), Some((span, stamp))),
            Request::Zero(span) | Request::Discard(span) => {
                (Pending::Volatile(number, span), Some((span, ZERO)))
            }
        };
        if let Some((span, stamp)) = changed {
            self.history.push(span, stamp);
        }
        let running: Running = Box::pin(async move {
            let data = |span: Span| Bytes::from(block(stamp).repeat(blocks(span).len()));
            match request {
                Request::Write(span) => {
                    layer.write(span.at, data(span), Durability::Volatile).await
                }
                Request::WriteDurable(span) => {
                    layer.write(span.at, data(span), Durability::Durable).await
                }
                Request::Zero(span) => {
                    layer.write_zeroes(span, Durability::Volatile, Space::Release).await
                }
                Request::Discard(span) => layer.discard(span).await,
                Request::Flush => layer.flush().await,
            }
        });
        self.pending.push((pending, running));
        self.poll();
    }

    /// Lets the client do all it can.
    fn poll(&mut self) {
        let context = &mut Context::from_waker(Waker::noop());
        // What one wakes another may be waiting for.
        for _ in 0..4 {
            for (pending, mut running) in std::mem::take(&mut self.pending) {
                match running.as_mut().poll(context) {
                    Poll::Pending => self.pending.push((pending, running)),
                    Poll::Ready(Ok(())) => self.answer(pending),
                    Poll::Ready(Err(_)) => self.failed += 1,
                }
            }
            if let Some(worker) = &mut self.worker
                && worker.as_mut().poll(context).is_ready()
            {
                self.worker = None;
            }
        }
        if self.layer.as_ref().is_some_and(|layer| layer.status().mode != Mode::Journal) {
            self.was_direct = true;
        }
        if !self.was_direct {
            self.history.check(&self.handle.lock().store.possible());
        }
    }

    fn answer(&mut self, pending: Pending) {
        self.answered += 1;
        let is_direct = self.layer().status().mode == Mode::Direct;
        let changes = match pending {
            Pending::Volatile(..) => return,
            // On the store alone it does not cover those before it.
            Pending::Durable(..) if is_direct => return,
            Pending::Durable(number, _) => number + 1,
            Pending::Flush(covered) => covered,
        };
        self.history.acknowledge(changes);
        if self.flush == FlushPolicy::Remote && !is_direct {
            let possible = self.handle.lock().store.possible();
            let reaches = |image: &Vec<_>| self.history.reaches(changes, image);
            assert!(possible.iter().all(reaches), "the store lacks what was flushed");
        }
    }

    fn under_way(&self) -> usize {
        self.handle.lock().under_way.len()
    }

    /// What is under way, in order.
    fn sent(&self) -> Vec<Io> {
        self.handle.lock().under_way.values().cloned().collect()
    }

    fn complete(&mut self, index: usize) {
        self.handle.complete(index);
        self.poll();
    }

    fn settle(&mut self) {
        while self.under_way() > 0 {
            self.complete(0);
        }
    }

    /// The same of the journal file; the store answers nothing.
    fn settle_file(&mut self) {
        let is_file = |io: &Io| matches!(io, Io::FileWrite(..) | Io::FileSync);
        loop {
            let index = self.handle.lock().under_way.values().position(is_file);
            let Some(index) = index else { return };
            self.complete(index);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.handle.lock().now += time;
        self.poll();
    }

    /// The client is gone. Opens what it has left.
    fn crash(self, crash: Crash, pick: &mut dyn FnMut() -> bool) -> Self {
        let (mut disk, mut store) = {
            let environment = self.handle.lock();
            (environment.disk.clone(), environment.store.clone())
        };
        for io in self.handle.lock().under_way.values() {
            if let Io::FileWrite(offset, bytes) = io {
                disk.tear(*offset, bytes, crash, pick);
            }
        }
        store.lose_client(pick);
        if crash == Crash::Power {
            disk.lose_cache(pick);
        }
        disk.fail_after = None;
        disk.bad = None;
        let Self { history, next_stamp, flush, was_direct, is_ordered, .. } = self;
        let with = OpenWith { flush, max_age: None, was_direct, is_ordered };
        Self::open(disk, store, history, next_stamp, with)
    }

    /// Ends it: the store must have everything.
    fn finish(mut self) {
        self.settle();
        self.pass(Duration::from_secs(2));
        self.settle();
        let seen = self.contents();
        self.pending.clear();
        self.layer = None;
        self.poll();
        self.settle();
        assert!(self.worker.is_none(), "the worker waits for something");
        assert_eq!(self.handle.lock().store.contents(), seen);
    }
}

const fn span(at: u64, len: u64) -> Span {
    Span::new(at * BLOCK, len * BLOCK)
}

const ALPHABET: [Request; 5] = [
    Request::Write(span(0, 2)),
    Request::WriteDurable(span(1, 2)),
    Request::Zero(span(0, 3)),
    Request::Discard(span(1, 1)),
    Request::Flush,
];

/// Every sequence of three requests, whose I/O ends in order or in reverse order.
fn run_crashed_after(
    asks: &[Request],
    events: usize,
    is_reversed: bool,
    flush: FlushPolicy,
) -> Option<Simulation> {
    let mut simulation = Simulation::new(flush);
    let mut asks = asks.iter();
    for event in 0..events {
        // Requests come while the I/O of those before is under way.
        match asks.next().filter(|_| event % 2 == 0 || simulation.under_way() == 0) {
            Some(request) => simulation.request(*request),
            None if simulation.under_way() > 0 => {
                let last = simulation.under_way() - 1;
                simulation.complete(if is_reversed { last } else { 0 });
            }
            None => return None,
        }
    }
    Some(simulation)
}

#[test]
fn three_requests_crashed_at_every_event_keep_every_promise() {
    let mut crashes = 0_u64;
    for number in 0..ALPHABET.len().pow(3) {
        let at = |place: u32| ALPHABET[number / ALPHABET.len().pow(place) % ALPHABET.len()];
        let asks = [at(0), at(1), at(2)];
        for (is_reversed, flush) in
            [(false, FlushPolicy::Local), (true, FlushPolicy::Local), (false, FlushPolicy::Remote)]
        {
            for events in 0.. {
                // Of what is under way nothing happens, all, or every second half.
                for choice in 0..3 {
                    let Some(simulation) = run_crashed_after(&asks, events, is_reversed, flush)
                    else {
                        break;
                    };
                    let mut count = 0_u32;
                    let simulation = simulation.crash(Crash::Power, &mut || {
                        count += 1;
                        [false, true, count.is_multiple_of(2)][choice]
                    });
                    // Recovery crashes as well, before anything of it has ended, and then is left to end.
                    let simulation = simulation.crash(Crash::Process, &mut || choice == 1);
                    simulation.finish();
                    crashes += 2;
                }
                if run_crashed_after(&asks, events, is_reversed, flush).is_none() {
                    break;
                }
            }
        }
    }
    println!("{crashes} crashes");
    assert!(crashes > 5_000, "{crashes} crashes");
}

fn random_request(random: &mut Random) -> Request {
    let at = random.below(BLOCKS as u64);
    let len = 1 + random.below((BLOCKS as u64 - at).min(4));
    let span = span(at, len);
    match random.below(16) {
        0..=8 => Request::Write(span),
        9 => Request::WriteDurable(span),
        10 => Request::Zero(span),
        11 => Request::Discard(span),
        _ => Request::Flush,
    }
}

/// What else may happen in a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    None,
    /// The ring cannot be written from some moment on.
    BadRing,
    /// Nothing of the disk can be.
    BadDisk,
    /// The store refuses everything.
    BadStore,
    /// Another writer takes the volume.
    Fenced,
}

fn event(random: &mut Random, simulation: &mut Simulation, fault: FaultKind) {
    match random.below(8) {
        0..=2 => {
            let request = random_request(random);
            // Without the journal changes in flight that overlap may end in any order.
            if fault == FaultKind::None || !simulation.overlaps_unanswered(request) {
                simulation.request(request);
            }
        }
        3 if random.below(4) == 0 => {
            let tenths = if random.below(4) == 0 { 105 } else { 6 };
            simulation.pass(Duration::from_millis(100 * tenths));
        }
        // A caller that no longer wants its answer.
        3 if fault == FaultKind::None && !simulation.pending.is_empty() && random.below(8) == 0 => {
            let index = random.index(simulation.pending.len());
            drop(simulation.pending.swap_remove(index));
            simulation.poll();
        }
        _ if simulation.under_way() > 0 => {
            let index = if random.below(2) == 0 { 0 } else { random.index(simulation.under_way()) };
            simulation.complete(index);
        }
        _ => {}
    }
}

fn begin(fault: FaultKind, simulation: &Simulation) {
    let mut environment = simulation.handle.lock();
    match fault {
        FaultKind::None => {}
        FaultKind::BadRing => environment.disk.bad = Some(2 << 20..u64::MAX),
        FaultKind::BadDisk => environment.disk.fail_after = Some(0),
        FaultKind::BadStore => environment.is_store_broken = true,
        FaultKind::Fenced => environment.is_fenced = true,
    }
}

/// Lives in one journal, one after another.
fn lives(seed: u64, crashes: u64, counts: &mut [u64; 3]) {
    let mut random = Random::new(seed);
    let flush = if random.below(3) == 0 { FlushPolicy::Remote } else { FlushPolicy::Local };
    let mut simulation = Simulation::made(flush, None, seed % 4 < 2);
    for _ in 0..crashes {
        let fault = match random.below(8) {
            0 => FaultKind::BadRing,
            1 => FaultKind::BadDisk,
            2 => FaultKind::BadStore,
            _ => FaultKind::None,
        };
        let (events, from) = (1 << random.below(8), random.below(100));
        for number in 0..events {
            if number == from {
                begin(fault, &simulation);
            }
            event(&mut random, &mut simulation, fault);
        }
        if simulation.failed > 0 {
            let is_troubled = !matches!(fault, FaultKind::None | FaultKind::BadRing);
            assert!(is_troubled, "{} requests failed with {fault:?}", simulation.failed);
        }
        counts[0] += 1;
        counts[1] += simulation.answered;
        counts[2] += u64::from(simulation.was_direct);
        let kind = if random.below(3) == 0 { Crash::Process } else { Crash::Power };
        let share = random.below(5);
        let mut bits = random.clone();
        random.word();
        simulation = simulation.crash(kind, &mut || bits.below(4) < share);
    }
    simulation.finish();
}

#[test]
fn random_lives_of_the_layer_keep_every_promise() {
    const CRASHES: u64 = 20;
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let first: u64 = number("LONGHAUL_SEED").unwrap_or(0);
    let crashes: u64 = number("LONGHAUL_JOURNAL_CRASHES").unwrap_or(4_000);
    println!("LONGHAUL_SEED={first} LONGHAUL_JOURNAL_CRASHES={crashes}");
    let mut counts = [0; 3];
    for seed in first..first + crashes.div_ceil(CRASHES) {
        let run = std::panic::AssertUnwindSafe(|| lives(seed, CRASHES, &mut counts));
        if let Err(panic) = std::panic::catch_unwind(run) {
            println!("LONGHAUL_SEED={seed} LONGHAUL_JOURNAL_CRASHES=1");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{} crashes, {} answers, {} fell back or failed", counts[0], counts[1], counts[2]);
    assert!(counts[1] > counts[0] && counts[2] > 0, "the run does not do what it should");
}

/// After the file of the journal failed nothing fails, and what is flushed is on the store.
#[test]
fn failed_journal_file_falls_back_to_the_store() {
    let mut simulation = Simulation::new(FlushPolicy::Local);
    simulation.settle();
    simulation.request(Request::Write(span(0, 2)));
    begin(FaultKind::BadRing, &simulation);
    simulation.request(Request::Flush);
    simulation.request(Request::Write(span(1, 1)));
    simulation.settle();
    assert_eq!((simulation.failed, simulation.answered), (0, 3));
    assert_eq!(simulation.layer().status().mode, Mode::Direct);
    assert!(simulation.layer().status().failure.is_some_and(|why| why.to_string().contains("EIO")));
    simulation.request(Request::Flush);
    simulation.settle();
    assert_eq!(simulation.handle.lock().store.contents()[..3], [1, 3, 0]);
    // The journal says that it holds nothing: what it held does not replace this.
    let simulation = simulation.crash(Crash::Power, &mut || false);
    assert_eq!(simulation.contents()[..3], [1, 3, 0]);
    simulation.finish();
}

/// A file that does not even take the superblock which says that it holds nothing would be sent again.
#[test]
fn journal_that_cannot_be_retired_fails_every_request() {
    let mut simulation = Simulation::new(FlushPolicy::Local);
    simulation.settle();
    simulation.request(Request::Write(span(0, 2)));
    begin(FaultKind::BadDisk, &simulation);
    simulation.request(Request::Flush);
    simulation.settle();
    simulation.request(Request::Write(span(1, 1)));
    simulation.request(Request::Flush);
    simulation.settle();
    assert_eq!((simulation.failed, simulation.answered), (3, 1));
    assert_eq!(simulation.layer().status().mode, Mode::Failed);
}

#[test]
fn fenced_layer_freezes_its_journal_and_sends_nothing_more() {
    let mut simulation = Simulation::new(FlushPolicy::Local);
    simulation.settle();
    simulation.request(Request::Write(span(0, 2)));
    begin(FaultKind::Fenced, &simulation);
    simulation.request(Request::Flush);
    simulation.settle();
    simulation.request(Request::Write(span(1, 1)));
    simulation.request(Request::Flush);
    simulation.settle();
    assert_eq!((simulation.failed, simulation.answered), (2, 2), "the first flush was local");
    assert_eq!(simulation.handle.lock().store.contents(), [ZERO; BLOCKS]);
    let file = FileEnd(simulation.handle.clone());
    let recovered = now(recover(&file, FILE_LEN)).unwrap();
    assert_eq!(recovered.superblock.state, volume::layer::journal::SuperblockState::Frozen);
    assert_eq!(recovered.changes.len(), 1, "it can be exported");
    simulation.layer = None;
    simulation.pending.clear();
    simulation.poll();
    assert!(simulation.worker.is_none());
}

/// Writers wait where the store lags behind by more than they allow, and go on when it has caught up.
#[test]
fn changes_wait_for_a_store_that_lags_too_far_behind() {
    let mut simulation = Simulation::made(FlushPolicy::Local, Some(Duration::from_secs(60)), false);
    simulation.settle();
    simulation.request(Request::Write(span(0, 1)));
    simulation.request(Request::Flush);
    simulation.settle_file();
    assert_eq!(simulation.answered, 2);
    simulation.pass(Duration::from_secs(59));
    simulation.request(Request::Write(span(1, 1)));
    assert_eq!(simulation.answered, 3, "it is not too old");
    simulation.pass(Duration::from_secs(2));
    simulation.request(Request::Write(span(2, 1)));
    simulation.request(Request::Write(span(3, 1)));
    assert_eq!((simulation.answered, simulation.failed), (3, 0), "they wait");
    simulation.settle();
    assert_eq!((simulation.answered, simulation.failed), (5, 0));
    simulation.finish();
}

/// The store answers nothing for hours: what has room is answered at once, what has none waits, and nothing fails.
#[test]
fn outage_of_hours_fails_nothing_and_nobody_waits_while_there_is_room() {
    let mut simulation = Simulation::new(FlushPolicy::Local);
    simulation.settle();
    for quarter in 0..4 {
        simulation.request(Request::Write(span(quarter, 1)));
        simulation.request(Request::Flush);
        simulation.settle_file();
        assert_eq!(simulation.answered, 2 * (quarter + 1), "no time has passed");
        simulation.pass(Duration::from_secs(15 * 60));
        simulation.settle_file();
    }
    let status = simulation.layer().status();
    assert_eq!(status.journal.state, State::Open);
    assert_eq!(status.oldest, Some(Duration::from_secs(60 * 60)));
    let mut pending = 8;
    while simulation.layer().status().journal.waiting == 0 {
        simulation.request(Request::WriteDurable(span(pending % BLOCKS as u64, 1)));
        simulation.settle_file();
        pending += 1;
    }
    assert_eq!(
        simulation.layer().status().journal.state,
        State::Full,
        "`status` says why it waits"
    );
    simulation.pass(Duration::from_secs(60 * 60));
    simulation.settle_file();
    assert_eq!((simulation.answered, simulation.failed), (pending - 1, 0));
    simulation.settle();
    assert_eq!((simulation.answered, simulation.failed), (pending, 0));
    simulation.finish();
}

/// What a copy holds was sent, and so was what came later.
#[test]
fn older_copy_of_the_file_is_known_once_the_store_was_told_of_more() {
    let admitted = |simulation: &Simulation, copy: &Disk| {
        let environment = Environment::new(copy.clone(), Store::new(BLOCKS));
        let file = FileEnd(Handle(Arc::new(Mutex::new(environment))));
        let recovered = now(recover(&file, FILE_LEN)).unwrap();
        assert!(!recovered.changes.is_empty(), "what the copy holds would be sent");
        simulation.handle.lock().store.checkpoint().admit(&recovered)
    };
    let mut simulation = Simulation::new(FlushPolicy::Local);
    simulation.settle();
    simulation.request(Request::WriteDurable(span(0, 2)));
    simulation.settle_file();
    let copy = simulation.handle.lock().disk.clone();
    simulation.settle();
    simulation.request(Request::WriteDurable(span(0, 1)));
    simulation.settle();
    assert_eq!(admitted(&simulation, &copy), Ok(()), "the store was told a moment ago");
    simulation.pass(Duration::from_secs(11));
    simulation.settle();
    assert!(matches!(admitted(&simulation, &copy), Err(Stale::Copy { .. })));
    simulation.crash(Crash::Power, &mut || false).finish();
}

/// On another connection it would be written again, over one of a group.
#[test]
fn checkpoint_is_flushed_before_a_group_has_one() {
    let mut simulation = Simulation::made(FlushPolicy::Local, None, true);
    simulation.settle();
    simulation.request(Request::WriteDurable(span(0, 1)));
    simulation.settle_file();
    assert!(matches!(simulation.sent()[..], [Io::StoreGroup]));
    simulation.settle_file();
    simulation.complete(0);
    assert!(matches!(simulation.sent()[..], [Io::Checkpoint]));
    let groups = |simulation: &mut Simulation| {
        simulation.request(Request::WriteDurable(span(0, 1)));
        simulation.settle_file();
        simulation.sent().iter().filter(|io| matches!(io, Io::StoreGroup)).count()
    };
    assert_eq!((groups(&mut simulation), groups(&mut simulation)), (1, 1), "one by a superblock");
    simulation.complete(0);
    assert!(simulation.sent().iter().any(|io| matches!(io, Io::StoreFlush)));
    assert_eq!(groups(&mut simulation), 1);
    let flush = simulation.sent().iter().position(|io| matches!(io, Io::StoreFlush)).unwrap();
    simulation.complete(flush);
    assert_eq!(groups(&mut simulation), 4, "all of them");
    simulation.finish();
}

/// Where nothing is written nothing is told, and no write waits for it.
#[test]
fn store_is_told_once_of_what_it_was_given() {
    let mut simulation = Simulation::new(FlushPolicy::Local);
    simulation.settle();
    let mut told = 0;
    for _ in 0..100 {
        simulation.request(Request::WriteDurable(span(0, 1)));
        while let count @ 1.. = simulation.under_way() {
            let last = simulation.handle.lock().under_way.values().next_back().cloned();
            told += u64::from(matches!(last, Some(Io::Checkpoint)));
            simulation.complete(count - 1);
        }
        simulation.pass(Duration::from_secs(1));
    }
    assert_eq!(simulation.answered, 100);
    assert!((9..=11).contains(&told), "{told} in 100 seconds");
    simulation.settle();
    simulation.pass(Duration::from_secs(60));
    simulation.settle();
    let before = simulation.handle.lock().next;
    simulation.pass(Duration::from_secs(3_600));
    simulation.settle();
    assert_eq!(simulation.handle.lock().next, before, "an idle journal does nothing");
}
