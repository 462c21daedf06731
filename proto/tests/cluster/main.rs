//! Two gateways over a store whose answers come late or never, on clocks that do not run alike, with pauses, ends, moves
//! and changes of reservations at random.

mod groups;
mod preference;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use proto::cluster::{
    GatewayName, Holder, Lease, Outcome, PreviousHolder, Record, Role, Settings, Sign, Signs, Step,
    Update, Written,
};
use proto::time::Time;
use testing::Random;

const LEASE: Duration = Duration::from_millis(1000);
const UNIT: &str = "iqn.2026-11.dev.longhaul:t/0";

/// For how many milliseconds there is trouble, and how many follow without.
const TROUBLE: u64 = 20_000;
const PEACE: u64 = 12_000;

/// How often a seed is tried, unless `LONGHAUL_CLUSTER_SEEDS` says otherwise.
const SEEDS: u64 = 60;

/// What may go wrong.
#[derive(Clone, Copy)]
struct World {
    /// The clock of a gateway that is paused stands still with it: then only the fence keeps it away.
    clocks_stop: bool,
    fences: bool,
    /// The storage shuts out the address of a holder that is fenced, which runs on.
    shuts_out: bool,
    /// The gateway that is to be active rather than the other one.
    prefers: Option<&'static str>,
}

const NO_FENCE: World =
    World { clocks_stop: false, fences: false, shuts_out: false, prefers: None };

enum Operation {
    Read,
    Look,
    Write(Record),
    Fence(PreviousHolder),
}

struct Pending {
    operation: Operation,
    /// When it takes effect, and when its answer comes; that is not known where the answer is lost.
    applies: u64,
    answers: u64,
    is_lost: bool,
    result: Option<Answer>,
}

enum Answer {
    Read(Option<Record>),
    Seen(Signs),
    Written(Written),
    Fenced(bool),
}

struct Gateway {
    lease: Lease,
    name: GatewayName,
    /// Thousandths by which its clock runs faster than time.
    rate: u64,
    clock: u64,
    paused_until: u64,
    pending: Option<Pending>,
    /// When the volumes are open or closed for which that is being done.
    work_until: Option<u64>,
    /// The number that it has put in force.
    applied: u64,
    /// What it has asked for.
    asked: Option<u64>,
    longest: u64,
    /// The address by which it has the volumes open.
    open: Option<String>,
}

struct Simulation {
    world: World,
    random: Random,
    now: u64,
    store: Option<Record>,
    /// What each gateway has shown with the last record that it has read.
    shown: Signs,
    /// Writes whose asker heard nothing, and that take effect later.
    late: VecDeque<(u64, Record)>,
    gateways: [Gateway; 2],
    /// What the storage takes nothing from any more.
    shut_out: BTreeSet<String>,
    /// Addresses of gateways that were ended, and until when a request of theirs may be under way.
    under_way: Vec<(u64, String)>,
    /// The largest number that somebody was told is in force.
    acknowledged: u64,
    epoch: u64,
    moves: usize,
    is_calm: bool,
    /// What has happened to whole gateways, with all that they hold in other groups.
    happened: Vec<(usize, Fault)>,
}

/// What may happen to a gateway.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// It stands still until then.
    Pause(u64),
    /// It ends, and another life of it begins.
    Restart,
}

fn number(record: &Record) -> u64 {
    record.units.get(UNIT).map_or(0, |image| u64::from_be_bytes(image[..8].try_into().unwrap()))
}

impl Gateway {
    fn new(name: &str, world: World, random: &mut Random, now: u64) -> Self {
        let name: GatewayName = name.parse().unwrap();
        let me = Holder { gateway: name.clone(), incarnation: random.word() | 1 };
        let (fences, has_addresses) = (world.fences, world.shuts_out);
        let weight = if world.prefers == Some(name.as_str()) { 100 } else { 0 };
        let settings = Settings { me, lease: LEASE, fences, has_addresses, weight };
        let clock = random.below(1 << 40);
        Self {
            lease: Lease::new(settings, Time::from_origin(Duration::from_micros(clock))),
            name,
            rate: random.below(120),
            clock,
            paused_until: now,
            pending: None,
            work_until: None,
            applied: 0,
            asked: None,
            longest: 0,
            open: None,
        }
    }

    fn time(&self) -> Time {
        Time::from_origin(Duration::from_micros(self.clock))
    }

    /// Whether it would answer from the medium at this moment.
    fn answers(&mut self, now: u64) -> bool {
        let time = self.time();
        now >= self.paused_until
            && self.lease.role(time) == Role::Active
            && self.lease.valid_until().is_some_and(|until| time < until)
    }
}

impl Simulation {
    fn new(seed: u64, world: World) -> Self {
        let mut random = Random::new(seed);
        let gateways = ["a", "b"].map(|name| Gateway::new(name, world, &mut random, 0));
        Self {
            world,
            random,
            now: 0,
            store: None,
            shown: Signs::new(),
            late: VecDeque::new(),
            gateways,
            shut_out: BTreeSet::new(),
            under_way: Vec::new(),
            acknowledged: 0,
            epoch: 0,
            moves: 0,
            is_calm: false,
            happened: Vec::new(),
        }
    }

    /// One millisecond.
    fn tick(&mut self) {
        self.now += 1;
        self.land_late();
        for at in 0..2 {
            let stops = self.world.clocks_stop && self.now < self.gateways[at].paused_until;
            if !stops {
                self.gateways[at].clock += 1000 + self.gateways[at].rate;
            }
            self.apply(at);
            if self.now >= self.gateways[at].paused_until {
                self.disturb(at);
                self.run(at);
            }
        }
        self.check();
    }

    fn land_late(&mut self) {
        let (due, rest) = self.late.drain(..).partition(|(at, _)| *at <= self.now);
        self.late = rest;
        let due: VecDeque<_> = due;
        for (_, record) in due {
            self.swap(record);
        }
    }

    fn swap(&mut self, record: Record) -> Written {
        let before = self.store.as_ref().map_or(0, |store| store.version);
        if before + 1 != record.version {
            return Written::Conflict;
        }
        assert!(record.epoch >= self.epoch, "an epoch went back");
        self.moves += usize::from(record.epoch > self.epoch);
        self.epoch = record.epoch;
        assert!(number(&record) >= self.acknowledged, "what was acknowledged is gone");
        // Every record goes over the wire.
        self.store = Some(Record::decode(&record.encode()).unwrap());
        Written::Done
    }

    fn disturb(&mut self, at: usize) {
        if self.is_calm {
            return;
        }
        let now = self.now;
        let time = self.gateways[at].time();
        match self.random.below(4000) {
            0 | 1 => {
                let until = now + self.random.below(4000);
                self.happens(at, Fault::Pause(until));
            }
            2 => self.happens(at, Fault::Restart),
            3 => self.gateways[at].lease.move_on(time),
            4..20 if self.gateways[at].asked.is_none() => {
                let base = self.gateways[at].lease.record().units.get(UNIT).cloned();
                let next = number(self.gateways[at].lease.record()) + 1;
                let image = next.to_be_bytes().to_vec();
                self.gateways[at].lease.update(time, Update { unit: UNIT.into(), base, image });
                self.gateways[at].asked = Some(next);
            }
            _ => {}
        }
    }

    /// Something happens to a gateway, here and in its other groups.
    fn happens(&mut self, at: usize, fault: Fault) {
        self.happened.push((at, fault));
        self.suffers(at, fault);
    }

    fn suffers(&mut self, at: usize, fault: Fault) {
        match fault {
            Fault::Pause(until) => self.gateways[at].paused_until = until,
            Fault::Restart => self.restart(at),
        }
    }

    fn restart(&mut self, at: usize) {
        let (now, world) = (self.now, self.world);
        if let Some(Pending { operation: Operation::Write(record), result: None, .. }) =
            self.gateways[at].pending.take()
        {
            // What is on its way arrives.
            self.late.push_back((now + self.random.below(500), record));
        }
        if let Some(address) = self.gateways[at].open.take() {
            self.under_way.push((now + self.random.below(4000), address));
        }
        let name = self.gateways[at].name.to_string();
        self.gateways[at] = Gateway::new(&name, world, &mut self.random, now);
    }

    /// Has the store or the fence do what is on its way.
    fn apply(&mut self, at: usize) {
        let now = self.now;
        let Some(pending) = &self.gateways[at].pending else { return };
        if now < pending.applies || pending.result.is_some() {
            return;
        }
        let result = match &pending.operation {
            Operation::Read => {
                let time = self.gateways[at].time();
                show(&mut self.shown, &self.gateways[at].lease, time, now);
                Answer::Read(self.store.clone())
            }
            Operation::Look => {
                let mut signs = self.shown.clone();
                signs.remove(&self.gateways[at].name);
                Answer::Seen(signs)
            }
            Operation::Write(record) => {
                let record = record.clone();
                Answer::Written(self.swap(record))
            }
            Operation::Fence(former) => {
                let former = former.clone();
                Answer::Fenced(self.fence(&former))
            }
        };
        if let Some(pending) = &mut self.gateways[at].pending {
            pending.result = Some(result);
        }
    }

    fn fence(&mut self, former: &PreviousHolder) -> bool {
        let works = self.is_calm || self.random.below(4) > 0;
        if !works {
            return false;
        }
        if self.world.fences {
            let victim = self.gateways.iter().position(|it| it.name == former.gateway);
            victim.into_iter().for_each(|victim| self.happens(victim, Fault::Restart));
        }
        self.shut_out.extend(former.address.clone());
        true
    }

    fn run(&mut self, at: usize) {
        let (now, time) = (self.now, self.gateways[at].time());
        if self.gateways[at].pending.as_ref().is_some_and(|pending| pending.answers <= now) {
            self.answer(at, time);
        }
        let (is_reached, random) = (self.is_calm || self.random.below(4) > 0, self.random.word());
        let gateway = &mut self.gateways[at];
        if gateway.lease.lacks_address() && is_reached {
            gateway.lease.set_address(format!("{}/{random}", gateway.name));
        }
        if gateway.pending.is_none() {
            if gateway.lease.take_changed() {
                gateway.applied = number(gateway.lease.record());
            }
            match gateway.lease.poll(time) {
                Step::Wait(_) => {}
                Step::Read => self.begin(at, Operation::Read),
                Step::Look => self.begin(at, Operation::Look),
                Step::Write(record) => self.begin(at, Operation::Write(record)),
                Step::Fence(former) => self.begin(at, Operation::Fence(former)),
            }
        }
        self.hear(at);
        self.work(at, time);
    }

    fn answer(&mut self, at: usize, time: Time) {
        let Some(pending) = self.gateways[at].pending.take() else { return };
        let lease = &mut self.gateways[at].lease;
        match (pending.operation, pending.result) {
            (Operation::Write(record), result) if pending.is_lost => {
                lease.written(time, Written::Unknown);
                if result.is_none() {
                    self.late.push_back((pending.applies, record));
                }
            }
            (Operation::Read, _) if pending.is_lost => lease.read(time, Err(())),
            (Operation::Look, _) if pending.is_lost => lease.others_seen(time, None),
            (Operation::Fence(_), _) if pending.is_lost => lease.fenced(time, false),
            (_, Some(Answer::Read(found))) => lease.read(time, Ok(found)),
            (_, Some(Answer::Seen(signs))) => lease.others_seen(time, Some(signs)),
            (operation, Some(Answer::Written(written))) => {
                lease.written(time, written);
                // As the driver finds out with each sign of life that it gives.
                let address = match operation {
                    Operation::Write(record) => record.address,
                    _ => None,
                };
                if address.is_some_and(|address| self.shut_out.contains(&address)) {
                    lease.shut_out();
                }
            }
            (_, Some(Answer::Fenced(done))) => lease.fenced(time, done),
            (_, None) => unreachable!("an answer comes after its effect"),
        }
    }

    fn begin(&mut self, at: usize, operation: Operation) {
        let slow = !self.is_calm && self.random.below(20) == 0;
        let applies = self.now + self.random.below(if slow { 900 } else { 8 });
        let is_lost = !self.is_calm && self.random.below(25) == 0;
        let answers = match is_lost {
            true => self.now + 1 + self.random.below(300),
            false => applies + self.random.below(8),
        };
        self.gateways[at].pending =
            Some(Pending { operation, applies, answers, is_lost, result: None });
    }

    /// What its caller is told of an update.
    fn hear(&mut self, at: usize) {
        let gateway = &mut self.gateways[at];
        let Some(outcome) = gateway.lease.take_outcome() else { return };
        let asked = gateway.asked.take();
        if let (Outcome::Done, Some(asked)) = (outcome, asked) {
            self.acknowledged = self.acknowledged.max(asked);
            // It puts in force itself what it has asked for.
            self.gateways[at].applied = self.gateways[at].applied.max(asked);
        }
    }

    /// Opens and closes the volumes.
    fn work(&mut self, at: usize, time: Time) {
        let (now, takes) = (self.now, self.random.below(60));
        let gateway = &mut self.gateways[at];
        let role = gateway.lease.role(time);
        if !matches!(role, Role::TakingOver | Role::Leaving | Role::Lost) {
            gateway.work_until = None;
            return;
        }
        if role == Role::TakingOver {
            gateway.open.clone_from(&gateway.lease.record().address);
        }
        if *gateway.work_until.get_or_insert(now + takes) > now {
            return;
        }
        gateway.work_until = None;
        match role {
            Role::TakingOver => gateway.lease.opened(time),
            _ => {
                gateway.open = None;
                gateway.lease.closed(time);
            }
        }
    }

    fn check(&mut self) {
        let now = self.now;
        let served = self.gateways.each_ref().map(|it| self.is_served(it));
        let answers = self.gateways.each_mut().map(|gateway| gateway.answers(now));
        let active = [answers[0] && served[0], answers[1] && served[1]];
        assert_ne!(active, [true, true], "two gateways answer from the medium at {now} ms");
        self.check_addresses();
        for (gateway, active) in self.gateways.iter_mut().zip(active) {
            let (acknowledged, applied) = (self.acknowledged, gateway.applied);
            assert!(!active || applied >= acknowledged, "{applied} of {acknowledged} in force");
            gateway.longest += u64::from(active);
        }
    }

    /// Whether the storage carries out what this gateway asks for.
    fn is_served(&self, gateway: &Gateway) -> bool {
        gateway.open.as_ref().is_none_or(|address| !self.shut_out.contains(address))
    }

    /// Whatever clocks show, and whoever was ended with requests under way: of all addresses that may still write the storage
    /// takes something from one only.
    fn check_addresses(&mut self) {
        let now = self.now;
        self.under_way.retain(|(until, _)| now < *until);
        let open = self.gateways.iter().filter_map(|gateway| gateway.open.as_ref());
        let writers = open.chain(self.under_way.iter().map(|(_, address)| address));
        let writers: BTreeSet<_> =
            writers.filter(|address| !self.shut_out.contains(*address)).collect();
        assert!(writers.len() <= 1, "{writers:?} can write at {now} ms");
    }

    /// Runs for a while as the world is, then in peace. What it has seen: who came to be active, and what was acknowledged.
    fn finish(&mut self) -> (usize, u64) {
        for _ in 0..TROUBLE {
            self.tick();
        }
        self.calm();
        for _ in 0..PEACE {
            self.tick();
        }
        self.result()
    }

    fn calm(&mut self) {
        self.is_calm = true;
        for gateway in &mut self.gateways {
            gateway.paused_until = self.now;
        }
    }

    fn result(&mut self) -> (usize, u64) {
        let now = self.now;
        let served = self.gateways.each_ref().map(|it| self.is_served(it));
        let answers = self.gateways.each_mut().map(|gateway| gateway.answers(now));
        let active = [answers[0] && served[0], answers[1] && served[1]];
        assert!(active != [false, false], "nobody is active in peace");
        assert!(self.gateways.iter().all(|gateway| gateway.asked.is_none()), "nobody is answered");
        (self.moves, self.acknowledged)
    }
}

fn seeds() -> u64 {
    let seeds = std::env::var("LONGHAUL_CLUSTER_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    seeds.unwrap_or(SEEDS)
}

fn simulate(world: World) {
    let (mut moves, mut acknowledged) = (0, 0);
    for seed in 0..seeds() {
        println!("seed {seed}");
        let (moved, told) = Simulation::new(seed, world).finish();
        (moves, acknowledged) = (moves + moved, acknowledged + told);
    }
    assert!(moves > 100 && acknowledged > 500, "{moves} moves, {acknowledged} changes");
}

#[test]
fn clocks_that_run_on_keep_two_gateways_apart() {
    simulate(NO_FENCE);
}

#[test]
fn fence_keeps_two_gateways_apart_where_clocks_stand_still() {
    simulate(World { clocks_stop: true, fences: true, ..NO_FENCE });
}

#[test]
fn addresses_that_are_shut_out_keep_two_gateways_apart_where_clocks_stand_still() {
    simulate(World { clocks_stop: true, shuts_out: true, ..NO_FENCE });
    simulate(World { clocks_stop: true, shuts_out: true, fences: true, ..NO_FENCE });
}

/// A gateway shows that it has looked at the record.
fn show(shown: &mut Signs, lease: &Lease, now: Time, mark: u64) {
    let sign = Sign { mark: mark.to_be_bytes().to_vec(), weight: lease.weight(now) };
    shown.insert(lease.settings().me.gateway.clone(), sign);
}

/// A store that does everything at once. Whoever holds the lease opens the volumes at once too, unless it is told not to.
#[derive(Default)]
struct Store {
    record: Option<Record>,
    shown: Signs,
    steps: u64,
    /// What gateways show cannot be read.
    is_blind: bool,
    opens_late: bool,
}

impl Store {
    fn step(&mut self, lease: &mut Lease, now: Time) {
        self.steps += 1;
        match lease.poll(now) {
            Step::Read => {
                show(&mut self.shown, lease, now, self.steps);
                lease.read(now, Ok(self.record.clone()));
            }
            Step::Look => {
                let mut signs = self.shown.clone();
                signs.remove(&lease.settings().me.gateway);
                lease.others_seen(now, (!self.is_blind).then_some(signs));
            }
            Step::Write(record) => {
                let before = self.record.as_ref().map_or(0, |store| store.version);
                let is_next = record.version == before + 1;
                if is_next {
                    self.record = Some(record);
                }
                lease.written(now, if is_next { Written::Done } else { Written::Conflict });
            }
            Step::Fence(former) => panic!("{former:?} is fenced"),
            Step::Wait(_) => {}
        }
        if !self.opens_late {
            lease.opened(now);
        }
    }

    /// Lets these gateways run, each twenty times in a lease, from one moment to another, both in twentieths of a lease.
    fn run(&mut self, leases: &mut [&mut Lease], from: u32, to: u32) {
        for number in from..to {
            for lease in &mut *leases {
                self.step(lease, at(number));
            }
        }
    }
}

fn at(number: u32) -> Time {
    Time::from_origin(Duration::ZERO) + LEASE / 20 * number
}

fn gateway(name: &str, incarnation: u64, fences: bool) -> Lease {
    let me = Holder { gateway: name.parse().unwrap(), incarnation };
    Lease::new(Settings { fences, ..settings(me) }, at(0))
}

fn settings(me: Holder) -> Settings {
    Settings { me, lease: LEASE, fences: false, has_addresses: false, weight: 0 }
}

fn change() -> Update {
    Update { unit: UNIT.into(), base: None, image: vec![7] }
}

/// A machine that was cloned, or a configuration that was copied: nobody fences himself.
#[test]
fn gateway_waits_for_another_one_of_its_own_name_as_for_any() {
    let (mut first, mut second) = (gateway("a", 1, true), gateway("a", 2, true));
    let mut store = Store::default();
    store.run(&mut [&mut first, &mut second], 0, 200);
    assert_eq!(first.role(at(199)), Role::Active);
    assert_eq!(second.role(at(199)), Role::Standby);
    // It ends without a word.
    store.run(&mut [&mut second], 200, 260);
    assert_eq!(second.role(at(259)), Role::Active);
}

/// As after a pause of the process: what came meanwhile is asked for before the end of the lease is noticed.
#[test]
fn change_that_is_asked_for_after_the_end_of_the_lease_is_answered() {
    let mut active = gateway("a", 1, false);
    let mut store = Store::default();
    store.run(&mut [&mut active], 0, 20);
    assert_eq!(active.role(at(19)), Role::Active);
    active.update(at(60), change());
    store.run(&mut [&mut active], 60, 61);
    assert_eq!((active.take_outcome(), active.role(at(60))), (Some(Outcome::Unknown), Role::Lost));
    // The volumes cannot be closed before whoever asks is answered.
    active.update(at(61), change());
    store.run(&mut [&mut active], 61, 62);
    assert_eq!((active.take_outcome(), active.role(at(61))), (Some(Outcome::Unknown), Role::Lost));
}

#[test]
fn change_by_a_standby_is_in_force_when_it_takes_over_itself() {
    let (mut active, mut standby) = (gateway("a", 1, false), gateway("b", 2, false));
    let mut store = Store::default();
    store.run(&mut [&mut active, &mut standby], 0, 40);
    standby.update(at(40), change());
    store.run(&mut [&mut standby], 40, 50);
    assert_eq!(standby.take_outcome(), None, "the holder has not shown that it knows of it");
    store.run(&mut [&mut standby], 50, 80);
    assert_eq!(standby.role(at(79)), Role::Active);
    assert_eq!(standby.take_outcome(), Some(Outcome::Done));
}

/// A fence that fails keeps a gateway from taking over for ever.
#[test]
fn change_that_nobody_puts_in_force_is_answered_after_some_leases() {
    let (mut active, mut standby) = (gateway("a", 1, false), gateway("b", 2, true));
    let mut store = Store::default();
    store.run(&mut [&mut active, &mut standby], 0, 40);
    standby.update(at(40), change());
    for number in 40..110 {
        match standby.poll(at(number)) {
            Step::Fence(_) => standby.fenced(at(number), false),
            Step::Read => standby.read(at(number), Ok(store.record.clone())),
            Step::Look => standby.others_seen(at(number), None),
            Step::Write(record) => {
                store.record = Some(record);
                standby.written(at(number), Written::Done);
            }
            Step::Wait(_) => {}
        }
    }
    assert_eq!(standby.take_outcome(), Some(Outcome::Unknown));
}

/// Others who change the record whenever it is to be renewed must not make a lease end.
#[test]
fn renewal_that_meets_another_change_is_made_at_once_on_that() {
    let mut active = gateway("a", 1, false);
    let mut store = Store::default();
    store.run(&mut [&mut active], 0, 20);
    let before = store.record.as_ref().unwrap().renewals;
    for number in 20..100 {
        store.record.as_mut().unwrap().version += 1;
        // It finds that its write is refused, reads, and writes.
        (0..3).for_each(|_| store.step(&mut active, at(number)));
        assert_eq!(active.role(at(number)), Role::Active, "{number}");
    }
    let renewals = store.record.as_ref().unwrap().renewals - before;
    assert!(renewals >= 15, "{renewals} in four leases");
}

/// A file system that is not mounted any more, and beneath it an empty directory, or one of long ago.
#[test]
fn record_that_is_gone_or_older_is_not_taken_for_a_new_one() {
    let (mut active, mut standby) = (gateway("a", 1, false), gateway("b", 2, false));
    let mut store = Store::default();
    store.run(&mut [&mut active, &mut standby], 0, 10);
    let old = store.record.clone();
    store.run(&mut [&mut active, &mut standby], 10, 40);
    for elsewhere in [None, old] {
        let mut store = Store { record: elsewhere.clone(), ..Store::default() };
        let mut standby = standby.clone();
        store.run(&mut [&mut standby], 40, 100);
        assert_eq!((standby.role(at(99)), store.record), (Role::Standby, elsewhere));
    }
}

#[test]
fn gateway_that_does_not_open_the_volumes_gives_the_lease_to_another() {
    let (mut first, mut second) = (gateway("a", 1, false), gateway("b", 2, false));
    let mut store = Store { opens_late: true, ..Store::default() };
    store.run(&mut [&mut first, &mut second], 0, 40);
    assert_eq!(first.role(at(39)), Role::TakingOver);
    second.move_on(at(40));
    store.run(&mut [&mut first, &mut second], 40, 50);
    assert_eq!(first.role(at(49)), Role::Leaving);
    first.closed(at(50));
    store.run(&mut [&mut first, &mut second], 50, 60);
    assert_eq!(second.role(at(59)), Role::TakingOver);
}

/// A gateway that comes to the media by an address that can be shut out.
fn addressed(name: &str, incarnation: u64) -> Lease {
    let me = Holder { gateway: name.parse().unwrap(), incarnation };
    Lease::new(Settings { has_addresses: true, ..settings(me) }, at(0))
}

/// The first step from `from` on that fences, which is to come within some leases.
fn fence_of(store: &mut Store, lease: &mut Lease, from: u32) -> (u32, PreviousHolder) {
    for number in from..from + 100 {
        if let Step::Fence(former) = lease.poll(at(number)) {
            return (number, former);
        }
        store.run(&mut [&mut *lease], number, number + 1);
    }
    panic!("nobody is fenced")
}

/// What may be under way is not that of a name, but that of an address: an earlier life of this gateway has one too.
#[test]
fn lease_is_taken_once_the_address_of_its_holder_is_shut_out_whoever_that_was() {
    let mut store = Store::default();
    let mut first = addressed("a", 1);
    store.run(&mut [&mut first], 0, 20);
    assert_eq!((first.role(at(19)), store.record.clone()), (Role::Standby, None), "it has none");
    first.set_address("one".to_owned());
    store.run(&mut [&mut first], 20, 40);
    assert_eq!(store.record.as_ref().unwrap().address.as_deref(), Some("one"));
    for (name, incarnation, from, is_done) in [("a", 2, 40, false), ("b", 3, 200, true)] {
        let mut second = addressed(name, incarnation);
        second.set_address(name.to_owned());
        let (number, former) = fence_of(&mut store, &mut second, from);
        let told = (former.gateway.as_str(), former.incarnation, former.address.as_deref());
        assert_eq!(told, ("a", 1, Some("one")), "{name}");
        second.fenced(at(number), is_done);
        // It looks which others there are, and writes.
        (0..2).for_each(|_| store.step(&mut second, at(number)));
        let holder = store.record.as_ref().unwrap().holder.as_ref().unwrap().incarnation;
        assert_eq!(holder, if is_done { incarnation } else { 1 });
    }
    assert_eq!(store.record.unwrap().address.as_deref(), Some("b"));
}

/// The one of the lease before may be shut out, whatever this gateway knows of that.
#[test]
fn address_is_for_one_lease_only() {
    let (mut store, mut gateway) = (Store::default(), addressed("a", 1));
    assert!(gateway.lacks_address());
    gateway.set_address("one".to_owned());
    store.run(&mut [&mut gateway], 0, 20);
    assert!(!gateway.lacks_address(), "it has one as long as it holds the lease");
    assert_eq!(gateway.role(at(60)), Role::Lost);
    gateway.closed(at(60));
    store.run(&mut [&mut gateway], 60, 80);
    assert!(gateway.lacks_address() && gateway.role(at(79)) == Role::Standby);
    gateway.set_address("two".to_owned());
    // Nobody was there meanwhile: it needs no fence for what it has closed itself.
    store.run(&mut [&mut gateway], 80, 100);
    assert_eq!(gateway.role(at(99)), Role::Active);
    assert_eq!(store.record.as_ref().unwrap().address.as_deref(), Some("two"));
    gateway.move_on(at(100));
    gateway.closed(at(100));
    store.run(&mut [&mut gateway], 100, 101);
    let record = store.record.unwrap();
    assert_eq!((record.holder, record.address), (None, None), "nothing of it is under way");
}

/// Whoever shut it out has met a sign of life of it, and leaves the lease to it.
#[test]
fn holder_that_is_shut_out_takes_the_lease_anew_with_another_address() {
    let (mut store, mut holder, mut other) =
        (Store::default(), addressed("a", 1), addressed("b", 2));
    holder.set_address("one".to_owned());
    other.set_address("two".to_owned());
    store.run(&mut [&mut holder, &mut other], 0, 40);
    holder.shut_out();
    assert_eq!(holder.role(at(40)), Role::Lost, "it keeps nobody from taking the lease");
    holder.closed(at(40));
    holder.set_address("three".to_owned());
    store.run(&mut [&mut holder, &mut other], 40, 44);
    assert_eq!(holder.role(at(43)), Role::Active);
    assert_eq!(store.record.unwrap().address.as_deref(), Some("three"));
}

/// What the lease alone does not do, as the specification says: one of the laws breaks.
#[test]
#[should_panic]
fn without_a_fence_clocks_that_stand_still_let_two_gateways_answer() {
    simulate(World { clocks_stop: true, ..NO_FENCE });
}
