//! The events of a fleet, in the order of their time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use proto::cluster::{Holder, Lease, Record, Role, Settings, Signs, Step, Written};
use proto::time::Time;

use super::Fleet;
use crate::Random;

/// How long a program, or the storage, may take to fence; as the driver of a gateway has it.
const FENCED_WITHIN: u64 = 60_000_000;

/// How long a request to the shared state is waited for at most, and half a lease, as the driver has it.
const CALL_MAX: u64 = 15_000_000;

/// Microseconds since the beginning.
pub(super) type Instant = u64;

pub(super) const fn micros(duration: Duration) -> Instant {
    duration.as_micros() as Instant
}

const fn time(now: Instant) -> Time {
    Time::from_origin(Duration::from_micros(now))
}

enum Operation {
    Read,
    Look,
    Write(Record),
    Fence,
}

enum Answer {
    Read(Option<Record>),
    Seen(Signs),
    Written(Written),
    Fenced(bool),
}

enum Event {
    Wake(usize),
    /// The request gets to where it is carried out.
    Apply(usize, Operation),
    /// It was not answered in time.
    GiveUp(usize),
    Answer(usize, Answer),
    Opened(usize),
    Closed(usize),
    /// The member wants the volumes, as it is the preferred one.
    Ask(usize),
    Start(usize),
}

struct Due {
    at: Instant,
    /// Events of one moment in the order in which they were made.
    number: u64,
    /// Of which life of the member it is.
    life: u32,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// What a request of a member is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Look,
    Write,
    Fence,
}

/// One gateway as a candidate for one group.
struct Member {
    lease: Lease,
    group: usize,
    gateway: usize,
    runs: bool,
    life: u32,
    pending: Option<Kind>,
    wakes: Instant,
    /// It opens or closes the volumes.
    works: bool,
}

/// Something that carries out one request after the other.
struct Queue {
    each: Instant,
    free: Instant,
}

impl Queue {
    const fn new(rate: u64) -> Self {
        Self { each: 1_000_000 / rate, free: 0 }
    }

    fn done(&mut self, from: Instant, requests: u64) -> Instant {
        self.free = self.free.max(from) + self.each * requests;
        self.free
    }
}

/// What was asked of the shared state and of the storage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) marks: u64,
    pub(super) fences: u64,
    pub(super) unanswered: u64,
    pub(super) lost: u64,
    pub(super) longest_wait: Instant,
}

/// A time in which nobody served a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    pub(super) group: usize,
    pub(super) from: Instant,
    pub(super) to: Instant,
    /// Who serves it from then on.
    pub(super) gateway: usize,
}

pub(super) struct Engine<'a> {
    fleet: &'a Fleet,
    sizes: Vec<usize>,
    pub(super) random: Random,
    pub(super) now: Instant,
    events: BinaryHeap<Reverse<Due>>,
    number: u64,
    store: Vec<Option<Record>>,
    store_queue: Queue,
    fence_queue: Queue,
    members: Vec<Member>,
    /// The members of each group, the preferred one first.
    by_group: Vec<Vec<usize>>,
    /// When each of the openings that a gateway has at once is free.
    openings: Vec<Vec<Instant>>,
    pub(super) serves: Vec<Option<usize>>,
    unserved_since: Vec<Instant>,
    pub(super) gaps: Vec<Gap>,
    pub(super) counts: Counts,
}

impl<'a> Engine<'a> {
    /// All run; the preferred gateways come first.
    pub(super) fn new(fleet: &'a Fleet) -> Self {
        let sizes = fleet.sizes();
        let groups = sizes.len();
        let mut engine = Self {
            fleet,
            sizes,
            random: Random::new(fleet.seed),
            now: 0,
            events: BinaryHeap::new(),
            number: 0,
            store: vec![None; groups],
            store_queue: Queue::new(fleet.store_rate),
            fence_queue: Queue::new(fleet.fence_rate),
            members: Vec::new(),
            by_group: vec![Vec::new(); groups],
            openings: vec![vec![0; fleet.opens_at_once]; fleet.gateways],
            serves: vec![None; groups],
            unserved_since: vec![0; groups],
            gaps: Vec::new(),
            counts: Counts::default(),
        };
        for (group, candidates) in fleet.candidates().into_iter().enumerate() {
            for (rank, gateway) in candidates.into_iter().enumerate() {
                engine.add(group, rank, gateway);
            }
        }
        engine
    }

    fn add(&mut self, group: usize, rank: usize, gateway: usize) {
        let at = self.members.len();
        let lease = self.fresh_lease(gateway);
        self.members.push(Member {
            lease,
            group,
            gateway,
            runs: false,
            life: 0,
            pending: None,
            wakes: 0,
            works: false,
        });
        self.by_group[group].push(at);
        // Not all in one moment.
        let lease = micros(self.fleet.lease);
        let first = if rank == 0 { 0 } else { 2 * lease };
        let start = first + self.random.below(lease);
        self.plan(start, 0, Event::Start(at));
    }

    fn fresh_lease(&mut self, gateway: usize) -> Lease {
        let gateway = format!("gateway-{gateway}").parse().expect("a name");
        let me = Holder { gateway, incarnation: self.random.word() | 1 };
        let lease = self.fleet.lease;
        // As over Ceph: nobody needs a program that fences, and each lease has an address.
        let settings = Settings { me, lease, fences: false, has_addresses: true, weight: 0 };
        Lease::new(settings, time(self.now))
    }

    fn plan(&mut self, at: Instant, life: u32, event: Event) {
        self.number += 1;
        self.events.push(Reverse(Due { at, number: self.number, life, event }));
    }

    /// Whether somebody serves every group.
    pub(super) fn all_are_served(&self) -> bool {
        self.serves.iter().all(Option::is_some)
    }

    /// Goes on until then, or until `is_enough`.
    pub(super) fn run(&mut self, until: Instant, is_enough: impl Fn(&Self) -> bool) {
        while let Some(Reverse(next)) = self.events.peek()
            && next.at <= until
            && !is_enough(self)
        {
            let Some(Reverse(Due { at, life, event, .. })) = self.events.pop() else { return };
            self.now = at;
            self.happen(life, event);
        }
        if !is_enough(self) {
            self.now = until;
        }
    }

    fn happen(&mut self, life: u32, event: Event) {
        let at = match event {
            // What is on its way arrives, whatever has become of its sender.
            Event::Apply(at, operation) => return self.apply(at, life, operation),
            Event::Wake(at)
            | Event::GiveUp(at)
            | Event::Answer(at, _)
            | Event::Opened(at)
            | Event::Closed(at)
            | Event::Ask(at)
            | Event::Start(at) => at,
        };
        if self.members[at].life != life {
            return;
        }
        let (now, member) = (time(self.now), &mut self.members[at]);
        match event {
            Event::Wake(_) if member.wakes != self.now => return,
            Event::GiveUp(_) => match member.pending.take() {
                Some(kind) => {
                    self.counts.unanswered += 1;
                    give_up(&mut member.lease, now, kind);
                }
                None => return,
            },
            Event::Answer(_, answer) => match member.pending.take() {
                Some(_) => take_answer(&mut member.lease, now, answer),
                None => return,
            },
            Event::Opened(_) => {
                member.works = false;
                member.lease.opened(now);
            }
            Event::Closed(_) => {
                member.works = false;
                member.lease.closed(now);
            }
            Event::Ask(_) if member.lease.role(now) == Role::Standby => member.lease.move_on(now),
            Event::Start(_) => member.runs = true,
            Event::Wake(_) | Event::Ask(_) | Event::Apply(..) => {}
        }
        self.advance(at);
    }

    /// Has the shared state, or the storage, carry it out.
    fn apply(&mut self, at: usize, life: u32, operation: Operation) {
        let group = self.members[at].group;
        let answer = match operation {
            Operation::Read => Answer::Read(self.store[group].clone()),
            // All have the same weight, and none is waited for.
            Operation::Look => Answer::Seen(Signs::new()),
            Operation::Write(record) => Answer::Written(self.swap(group, record)),
            Operation::Fence => Answer::Fenced(true),
        };
        let back = self.now + micros(self.fleet.round_trip) / 2;
        self.plan(back, life, Event::Answer(at, answer));
    }

    fn swap(&mut self, group: usize, record: Record) -> Written {
        let (version, epoch) =
            self.store[group].as_ref().map_or((0, 0), |found| (found.version, found.epoch));
        if version + 1 != record.version {
            return Written::Conflict;
        }
        assert!(record.epoch >= epoch, "the epoch of group {group} went back");
        self.store[group] = Some(record);
        Written::Done
    }

    /// Whatever the member has to do now.
    fn advance(&mut self, at: usize) {
        self.look(at);
        if !self.members[at].runs || self.members[at].pending.is_some() {
            return;
        }
        if self.members[at].lease.lacks_address() {
            let address = format!("{at}/{}", self.random.word());
            self.members[at].lease.set_address(address);
        }
        match self.members[at].lease.poll(time(self.now)) {
            Step::Wait(until) => {
                let until = micros(until.since_origin()).max(self.now + 1);
                self.members[at].wakes = until;
                self.plan(until, self.members[at].life, Event::Wake(at));
            }
            Step::Read => self.begin(at, Operation::Read),
            Step::Look => self.begin(at, Operation::Look),
            Step::Write(record) => self.begin(at, Operation::Write(record)),
            Step::Fence(_) => self.begin(at, Operation::Fence),
        }
        self.look(at);
    }

    fn begin(&mut self, at: usize, operation: Operation) {
        let there = self.now + micros(self.fleet.round_trip) / 2;
        let (counts, group) = (&mut self.counts, self.members[at].group);
        let limit = (micros(self.fleet.lease) / 2).min(CALL_MAX);
        let (kind, done, limit) = match operation {
            Operation::Read => {
                // A gateway that has read the record shows that it is there, by a second request.
                let marks = u64::from(self.store[group].is_some());
                counts.reads += 1;
                counts.marks += marks;
                (Kind::Read, self.store_queue.done(there, 1 + marks), limit)
            }
            Operation::Look => {
                counts.reads += 1;
                (Kind::Look, self.store_queue.done(there, 1), limit)
            }
            Operation::Write(_) => {
                counts.writes += 1;
                (Kind::Write, self.store_queue.done(there, 1), limit)
            }
            Operation::Fence => {
                counts.fences += 1;
                (Kind::Fence, self.fence_queue.done(there, 1), FENCED_WITHIN)
            }
        };
        if kind != Kind::Fence {
            counts.longest_wait = counts.longest_wait.max(done - self.now);
        }
        let (life, late) = (self.members[at].life, done - self.now >= limit);
        self.members[at].pending = Some(kind);
        match (late, operation) {
            (false, operation) => self.plan(done, life, Event::Apply(at, operation)),
            (true, operation) => {
                self.plan(self.now + limit, life, Event::GiveUp(at));
                // It takes effect all the same, and its answer is heard by nobody.
                self.plan(done, u32::MAX, Event::Apply(at, operation));
            }
        }
    }

    /// Opens and closes volumes as the role asks for, and notes who serves the group.
    fn look(&mut self, at: usize) {
        let now = self.now;
        let member = &mut self.members[at];
        let (group, gateway, life) = (member.group, member.gateway, member.life);
        let role = member.lease.role(time(now));
        let is_active = role == Role::Active && member.runs;
        if self.serves[group] == Some(at) && !is_active {
            self.unserve(group);
            self.counts.lost += u64::from(role == Role::Lost);
        } else if is_active && self.serves[group] != Some(at) {
            self.serve(group, at);
        }
        if self.members[at].works || !self.members[at].runs {
            return;
        }
        match role {
            Role::TakingOver => {
                let done = self.opened_at(gateway, self.sizes[group]);
                self.plan(done, life, Event::Opened(at));
            }
            // All at once: only what is under way is waited for.
            Role::Leaving | Role::Lost => {
                self.plan(now + micros(self.fleet.open), life, Event::Closed(at));
            }
            Role::Standby | Role::Active => return,
        }
        self.members[at].works = true;
    }

    fn opened_at(&mut self, gateway: usize, volumes: usize) -> Instant {
        let (now, each) = (self.now, micros(self.fleet.open));
        let openings = &mut self.openings[gateway];
        let mut last = now;
        for _ in 0..volumes {
            let Some(free) = openings.iter_mut().min() else { break };
            *free = (*free).max(now) + each;
            last = last.max(*free);
        }
        last
    }

    fn serve(&mut self, group: usize, at: usize) {
        let now = self.now;
        for other in self.by_group[group].clone() {
            let valid = self.members[other].lease.valid_until();
            let runs = self.members[other].runs && other != at;
            let is_active = runs && valid.is_some_and(|until| time(now) < until);
            assert!(!is_active, "two gateways are active for group {group} at {now} us");
        }
        let (from, gateway) = (self.unserved_since[group], self.members[at].gateway);
        self.gaps.push(Gap { group, from, to: now, gateway });
        self.serves[group] = Some(at);
    }

    fn unserve(&mut self, group: usize) {
        (self.serves[group], self.unserved_since[group]) = (None, self.now);
    }

    /// These gateways lose their power.
    pub(super) fn fail(&mut self, gateways: &[usize]) {
        for at in 0..self.members.len() {
            if !gateways.contains(&self.members[at].gateway) {
                continue;
            }
            if self.serves[self.members[at].group] == Some(at) {
                self.unserve(self.members[at].group);
            }
            let lease = self.fresh_lease(self.members[at].gateway);
            let member = &mut self.members[at];
            (member.lease, member.runs, member.pending, member.works) = (lease, false, None, false);
            member.life += 1;
        }
        for gateway in gateways {
            self.openings[*gateway].fill(0);
        }
    }

    /// A gateway that has failed starts again at that time.
    pub(super) fn start(&mut self, gateway: usize, at: Instant) {
        for member in 0..self.members.len() {
            if self.members[member].gateway == gateway && !self.members[member].runs {
                self.plan(at, self.members[member].life, Event::Start(member));
            }
        }
    }

    /// Every preferred gateway that does not have its group asks for it, at some moment within that time.
    pub(super) fn ask_for_preferred(&mut self, within: Duration) -> u64 {
        let mut asked = 0;
        for group in 0..self.by_group.len() {
            let Some(&preferred) = self.by_group[group].first() else { continue };
            if self.serves[group] != Some(preferred) {
                asked += 1;
                let at = self.now + self.random.below(micros(within));
                self.plan(at, self.members[preferred].life, Event::Ask(preferred));
            }
        }
        asked
    }

    /// Which gateway serves each group.
    pub(super) fn gateways(&self) -> impl Iterator<Item = (usize, Option<usize>)> {
        let gateway = |at: Option<usize>| at.map(|at| self.members[at].gateway);
        self.serves.iter().map(move |at| gateway(*at)).enumerate()
    }

    /// How many have held the lease of each group.
    pub(super) fn epochs(&self) -> Vec<u64> {
        self.store.iter().map(|record| record.as_ref().map_or(0, |found| found.epoch)).collect()
    }
}

fn give_up(lease: &mut Lease, now: Time, kind: Kind) {
    match kind {
        Kind::Read => lease.read(now, Err(())),
        Kind::Look => lease.others_seen(now, None),
        Kind::Write => lease.written(now, Written::Unknown),
        Kind::Fence => lease.fenced(now, false),
    }
}

fn take_answer(lease: &mut Lease, now: Time, answer: Answer) {
    match answer {
        Answer::Read(found) => lease.read(now, Ok(found)),
        Answer::Seen(signs) => lease.others_seen(now, Some(signs)),
        Answer::Written(written) => lease.written(now, written),
        Answer::Fenced(done) => lease.fenced(now, done),
    }
}
