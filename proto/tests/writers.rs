//! Thousands of lives of one volume on virtual time: writers that attach, lose their links, take the volume over from
//! one another, end or die, with what they sent still on its way. What the holder has flushed is never written over
//! by one that held the volume before.
//!
//! The machine that rides out lost links, the logic of a writer and the reservations of the target are the real ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proto::client::ClientId;
use proto::iscsi::name::{IscsiName, Isid};
use proto::iscsi::transport_id::{ISCSI, initiator_port};
use proto::scsi::command::Command;
use proto::scsi::reservation::{Class, Device, NexusId, Refused, Reservations};
use proto::scsi::transport::Transports;
use proto::scsi::writer::{self, Answer, NotHeld, OwnReservation, Released, Removals, Unit};
use proto::scsi::{Cdb, DeviceType, Parsed};
use testing::Random;
use testing::reconnect::{Action, End, Failure, Kind, Recovery, Replay, Salvage, Settings, Turn};

const CASES: u64 = 10_000;
const BLOCKS: usize = 8;
/// How many writers come one after the other, or at once.
const WRITERS: usize = 4;
/// After so much time nobody is troubled any more.
const END: Duration = Duration::from_secs(20);

/// A block, and what is written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Write(usize, u64);

impl Replay for Write {
    fn part(&self, _: &Range<u64>) -> Self {
        *self
    }

    fn replaces(&self) -> bool {
        true
    }
}

/// Who asked at a writer: a request, a restore, or the logic of the reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Request(u64),
    Restore(u64),
    Reservation,
}

#[derive(Clone, Debug)]
enum Verb {
    Read,
    Write(Write),
    Flush,
    Persistent(Command, Vec<u8>),
}

/// What a target says.
#[derive(Clone, Debug)]
enum Reply {
    Done,
    Conflict,
    Preempted,
    Persistent(Answer),
}

/// A connection: the writer, and its number there.
type Connection = (usize, u64);

#[derive(Debug)]
enum Event {
    Arrive(Connection, Who, Verb),
    Execute(u64),
    Reply(Connection, Who, Reply),
    /// A writer has something to do.
    Turn(usize),
    /// A link is cut.
    Cut(usize),
    LogIn(usize),
    Restart,
}

/// Commands and answers between a writer's reservation logic and its link.
#[derive(Debug, Default)]
struct Mailbox {
    asked: Option<(Command, Vec<u8>)>,
    answer: Option<Result<Answer, ()>>,
}

#[derive(Clone, Default)]
struct SharedMailbox(Arc<Mutex<Mailbox>>);

impl Unit for SharedMailbox {
    type Error = ();

    async fn ask(&self, command: Command, data: Vec<u8>) -> Result<Answer, ()> {
        self.0.lock().unwrap().asked = Some((command, data));
        std::future::poll_fn(|_| match self.0.lock().unwrap().answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }

    fn transports(&self) -> Transports {
        ISCSI
    }
}

type Outcome = Result<OwnReservation, NotHeld<()>>;
type Logic = Pin<Box<dyn Future<Output = Outcome>>>;

/// How far a writer is.
enum Stage {
    /// It is not there yet, or was refused and comes again.
    Outside,
    Attaching(Logic),
    Attached,
    /// It wants to end, and waits for what is under way.
    Ending,
    Releasing(Logic),
    /// It ended, died or was fenced.
    Gone,
}

struct Writer {
    stage: Stage,
    machine: Option<Recovery<Write>>,
    hold: Option<OwnReservation>,
    /// In the order in which they got the volume.
    epoch: u64,
    mailbox: SharedMailbox,
    confirming: Option<Logic>,
    /// The connection there is, and its link at the machine, once that knows it.
    connection: Option<u64>,
    last_connection: u64,
    link: u64,
    asked: BTreeMap<u64, Verb>,
    under_way: Vec<(Who, Verb)>,
}

impl Writer {
    fn new() -> Self {
        Self {
            stage: Stage::Outside,
            machine: None,
            hold: None,
            epoch: 0,
            mailbox: SharedMailbox::default(),
            confirming: None,
            connection: None,
            last_connection: 0,
            link: 0,
            asked: BTreeMap::new(),
            under_way: Vec::new(),
        }
    }
}

/// A command at the target.
struct Task {
    connection: Connection,
    who: Who,
    verb: Verb,
}

#[derive(Default)]
struct Target {
    reservations: Reservations,
    /// Whether reservations outlive it.
    durable: bool,
    kept: Option<Vec<u8>>,
    /// The session of each writer.
    sessions: BTreeMap<usize, u64>,
    attentions: Vec<usize>,
    tasks: BTreeMap<u64, Task>,
    last_task: u64,
    /// What is in each block, by which epoch it was written, and by which it was flushed.
    blocks: Vec<(u64, u64)>,
    flushed: Vec<u64>,
}

struct Simulation {
    now: Duration,
    random: Random,
    events: BinaryHeap<Reverse<(Duration, u64)>>,
    what: BTreeMap<u64, Event>,
    last_event: u64,
    /// When the last of what is on its way on a connection arrives: nothing overtakes there.
    arrivals: BTreeMap<(Connection, bool), Duration>,
    writers: Vec<Writer>,
    target: Target,
    epochs: u64,
    stamp: u64,
    /// Whether writers reserve at all.
    reserves: bool,
    wrong: Option<String>,
    fenced: u32,
    takeovers: u32,
}

fn nexus(writer: usize) -> NexusId {
    let name = IscsiName::new(&format!("iqn.2001-04.com.example:{writer}")).unwrap();
    let initiator = initiator_port(&name, Isid([0x80, 0, 0, 0, 0, writer as u8]));
    NexusId { initiator, target_port: 1, client: ClientId::Unauthenticated }
}

impl Simulation {
    fn new(seed: u64, reserves: bool) -> Self {
        let mut simulation = Self {
            now: Duration::ZERO,
            random: Random::new(seed),
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            last_event: 0,
            arrivals: BTreeMap::new(),
            writers: (0..WRITERS).map(|_| Writer::new()).collect(),
            target: Target {
                durable: seed.is_multiple_of(2),
                blocks: vec![(0, 0); BLOCKS],
                flushed: vec![0; BLOCKS],
                ..Target::default()
            },
            epochs: 0,
            stamp: 0,
            reserves,
            wrong: None,
            fenced: 0,
            takeovers: 0,
        };
        for writer in 0..WRITERS {
            let at = simulation.random.within(6000);
            simulation.at(at, Event::Turn(writer));
        }
        if simulation.target.durable {
            let at = simulation.random.within(20_000);
            simulation.at(at, Event::Restart);
        }
        simulation
    }

    fn at(&mut self, after: Duration, event: Event) {
        self.last_event += 1;
        self.events.push(Reverse((self.now + after, self.last_event)));
        self.what.insert(self.last_event, event);
    }

    fn is_quiet(&self) -> bool {
        self.now > END
    }

    // The link.

    /// Sends something: in order, after a delay that is seconds long at times.
    fn deliver(&mut self, connection: Connection, up: bool, event: Event) {
        let slow = if self.random.below(20) == 0 { 3000 } else { 30 };
        let delay = self.random.within(slow);
        let last = self.arrivals.entry((connection, up)).or_insert(Duration::ZERO);
        *last = (*last).max(self.now + delay);
        let after = last.saturating_sub(self.now);
        self.at(after, event);
    }

    fn send(&mut self, writer: usize, who: Who, verb: Verb) {
        let Some(number) = self.writers[writer].connection else {
            return self.ended(writer, who, verb, End::Lost);
        };
        self.writers[writer].under_way.push((who, verb.clone()));
        let connection = (writer, number);
        self.deliver(connection, true, Event::Arrive(connection, who, verb));
    }

    fn connect(&mut self, writer: usize) {
        let it = &mut self.writers[writer];
        it.last_connection += 1;
        it.connection = Some(it.last_connection);
        let number = it.last_connection;
        // A session reinstatement: what the old one had under way is carried out or not, and then no more.
        self.target.sessions.insert(writer, number);
        let tasks = self.target.tasks.iter().filter(|(_, task)| task.connection.0 == writer);
        for id in tasks.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.end_task(id);
        }
        self.target.reservations.nexus_lost(&nexus(writer));
        self.target.attentions.retain(|told| *told != writer);
        if !self.is_quiet() {
            let life = self.random.within(4000);
            self.at(life, Event::Cut(writer));
        }
    }

    /// What is on its way stays so.
    fn cut(&mut self, writer: usize) {
        let it = &mut self.writers[writer];
        if it.connection.take().is_none() {
            return;
        }
        for (who, verb) in std::mem::take(&mut it.under_way) {
            self.ended(writer, who, verb, End::Lost);
        }
        let link = self.writers[writer].link;
        let now = self.now;
        if let Some(machine) = &mut self.writers[writer].machine {
            machine.lost(now, link, Duration::ZERO);
        }
        self.act(writer);
    }

    // The target.

    fn arrive(&mut self, connection: Connection, who: Who, verb: Verb) {
        let (writer, number) = connection;
        if self.target.sessions.get(&writer) != Some(&number) {
            return;
        }
        if let Some(told) = self.target.attentions.iter().position(|told| *told == writer) {
            self.target.attentions.remove(told);
            return self.reply(connection, who, Reply::Preempted);
        }
        let class = match &verb {
            Verb::Read => Class::Reads,
            Verb::Write(_) | Verb::Flush => Class::Writes,
            Verb::Persistent(..) => Class::Persistent,
        };
        if self.target.reservations.check(&nexus(writer), class).is_err() {
            return self.reply(connection, who, Reply::Conflict);
        }
        self.target.last_task += 1;
        self.target.tasks.insert(self.target.last_task, Task { connection, who, verb });
        let slow = if self.random.below(8) == 0 { 800 } else { 20 };
        let (after, id) = (self.random.within(slow), self.target.last_task);
        self.at(after, Event::Execute(id));
    }

    /// A task of a session that ends, or that was aborted, was carried out or not.
    fn end_task(&mut self, id: u64) {
        let Some(task) = self.target.tasks.remove(&id) else { return };
        if self.random.below(2) == 0 && !matches!(task.verb, Verb::Persistent(..)) {
            self.carry_out(&task);
        }
    }

    fn execute(&mut self, id: u64) {
        let Some(task) = self.target.tasks.remove(&id) else { return };
        let reply = self.carry_out(&task);
        self.reply(task.connection, task.who, reply);
    }

    fn carry_out(&mut self, task: &Task) -> Reply {
        let (writer, epoch) = (task.connection.0, self.writers[task.connection.0].epoch);
        match &task.verb {
            Verb::Read => Reply::Done,
            Verb::Write(Write(block, stamp)) => {
                if self.target.flushed[*block] > epoch {
                    let by = self.target.flushed[*block];
                    let what =
                        format!("writer {writer} of epoch {epoch} wrote over what {by} flushed");
                    self.wrong.get_or_insert(what);
                }
                self.target.blocks[*block] = (*stamp, epoch);
                Reply::Done
            }
            Verb::Flush => {
                for (flushed, (_, by)) in self.target.flushed.iter_mut().zip(&self.target.blocks) {
                    if *by == epoch {
                        *flushed = epoch;
                    }
                }
                Reply::Done
            }
            Verb::Persistent(command, data) => {
                Reply::Persistent(self.persistent(writer, command, data))
            }
        }
    }

    fn persistent(&mut self, writer: usize, command: &Command, data: &[u8]) -> Answer {
        let present: Vec<_> = self.target.sessions.keys().map(|writer| nexus(*writer)).collect();
        let durable = self.target.durable;
        let device = Device { target_ports: &[1], present: &present, durable, transports: ISCSI };
        match Parsed::of(&command.cdb, DeviceType::Disk).cdb.unwrap() {
            Cdb::PersistentIn { action, .. } => {
                Answer::Good(self.target.reservations.report(&nexus(writer), action, &device))
            }
            Cdb::PersistentOut(out) => {
                let prepared = self.target.reservations.prepare(&nexus(writer), out, data, &device);
                let mut change = match prepared {
                    Ok(change) => change,
                    Err(Refused::Conflict) => return Answer::Conflict,
                    Err(Refused::Sense(sense)) => return Answer::Check(sense),
                };
                if let Some(image) = change.keep.take() {
                    self.target.kept = Some(image);
                }
                self.target.reservations.commit(&change, device.present);
                let of = |id: &NexusId| (0..WRITERS).find(|writer| nexus(*writer) == *id).unwrap();
                self.target.attentions.extend(change.attentions.iter().map(|(id, _)| of(id)));
                for victim in change.abort.iter().map(of) {
                    let theirs =
                        self.target.tasks.iter().filter(|(_, task)| task.connection.0 == victim);
                    for id in theirs.map(|(id, _)| *id).collect::<Vec<_>>() {
                        self.end_task(id);
                    }
                }
                Answer::Good(Vec::new())
            }
            other => panic!("{other:?}"),
        }
    }

    fn reply(&mut self, connection: Connection, who: Who, reply: Reply) {
        self.deliver(connection, false, Event::Reply(connection, who, reply));
    }

    /// It loses its power. Its medium has no cache here: what is lost there others look at.
    fn restart(&mut self) {
        self.target.tasks.clear();
        self.target.sessions.clear();
        self.target.attentions.clear();
        let kept = self.target.kept.as_deref().map(Reservations::restore);
        self.target.reservations = kept.transpose().unwrap().unwrap_or_default();
        for writer in 0..WRITERS {
            self.cut(writer);
        }
    }

    // A writer.

    fn replied(&mut self, (writer, number): Connection, who: Who, reply: Reply) {
        let it = &mut self.writers[writer];
        if it.connection != Some(number) {
            return;
        }
        let Some(place) = it.under_way.iter().position(|(asker, _)| *asker == who) else { return };
        let (_, verb) = it.under_way.remove(place);
        match reply {
            // As the disk tries it again at once.
            Reply::Preempted if who == Who::Reservation => self.send(writer, who, verb),
            Reply::Preempted | Reply::Conflict if who != Who::Reservation && self.reserves => {
                it.under_way.push((who, verb));
                self.cut(writer);
            }
            Reply::Persistent(answer) => self.answer(writer, Ok(answer)),
            Reply::Conflict if who == Who::Reservation => self.answer(writer, Ok(Answer::Conflict)),
            Reply::Done => self.ended(writer, who, verb, End::Done),
            Reply::Preempted | Reply::Conflict => self.ended(writer, who, verb, End::Failed),
        }
    }

    fn ended(&mut self, writer: usize, who: Who, verb: Verb, end: End) {
        let now = self.now;
        let it = &mut self.writers[writer];
        let link = it.link;
        match (who, &mut it.machine) {
            (Who::Reservation, _) => self.answer(writer, Err(())),
            (Who::Restore(seq), Some(machine)) => machine.restored(now, seq, link, end),
            (Who::Request(id), Some(machine)) => match machine.ended(now, id, link, end) {
                Turn::Run(_) => {
                    // Nobody waits for a flush that the machine asked for.
                    assert!(it.asked.contains_key(&id), "nobody runs the unasked flush again");
                    self.send(writer, who, verb);
                }
                Turn::Wait => {}
                Turn::Answer | Turn::Over => {
                    it.asked.remove(&id);
                }
            },
            _ => {}
        }
        self.act(writer);
    }

    fn act(&mut self, writer: usize) {
        while let Some(action) = self.writers[writer].machine.as_mut().and_then(Recovery::poll) {
            match action {
                Action::Connect => {
                    let after = self.random.within(300);
                    self.at(after, Event::LogIn(writer));
                }
                Action::Run { id, .. } => {
                    let verb = self.writers[writer].asked[&id].clone();
                    self.send(writer, Who::Request(id), verb);
                }
                Action::Flush { id, .. } => self.send(writer, Who::Request(id), Verb::Flush),
                Action::Restore { seq, change, .. } => {
                    self.send(writer, Who::Restore(seq), Verb::Write(change));
                }
                Action::Save(_) => {}
                Action::Over => self.writers[writer].stage = Stage::Gone,
            }
        }
    }

    /// Begins to work out something about the reservation.
    fn begin<F>(&mut self, writer: usize, logic: impl FnOnce(SharedMailbox) -> F) -> Logic
    where
        F: Future<Output = Outcome> + 'static,
    {
        self.writers[writer].mailbox = SharedMailbox::default();
        Box::pin(logic(self.writers[writer].mailbox.clone()))
    }

    fn answer(&mut self, writer: usize, answer: Result<Answer, ()>) {
        self.writers[writer].mailbox.0.lock().unwrap().answer = Some(answer);
        self.poll_logic(writer);
    }

    /// Lets the logic of the reservation go on.
    fn poll_logic(&mut self, writer: usize) {
        let it = &mut self.writers[writer];
        let ((Stage::Attaching(logic) | Stage::Releasing(logic), _) | (_, Some(logic))) =
            (&mut it.stage, &mut it.confirming)
        else {
            return;
        };
        match logic.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => self.logic_ended(writer, outcome),
            Poll::Pending => {
                let asked = it.mailbox.0.lock().unwrap().asked.take();
                if let Some((command, data)) = asked {
                    self.send(writer, Who::Reservation, Verb::Persistent(command, data));
                }
            }
        }
    }

    fn logic_ended(&mut self, writer: usize, outcome: Outcome) {
        let it = &mut self.writers[writer];
        if it.confirming.take().is_some() {
            return self.confirmed(writer, outcome);
        }
        match std::mem::replace(&mut it.stage, Stage::Gone) {
            Stage::Attaching(_) => match outcome {
                Ok(hold) => self.attached(writer, Some(hold)),
                Err(_) => {
                    it.stage = Stage::Outside;
                    it.connection = None;
                    it.under_way.clear();
                    let again = self.random.within(2000);
                    self.at(again, Event::Turn(writer));
                }
            },
            _ => self.writers[writer].connection = None,
        }
    }

    fn attached(&mut self, writer: usize, hold: Option<OwnReservation>) {
        self.epochs += 1;
        let it = &mut self.writers[writer];
        it.epoch = self.epochs;
        it.hold = hold;
        it.stage = Stage::Attached;
        it.link = 0;
        it.machine = Some(Recovery::new(Settings {
            patience: None,
            first_wait: Duration::from_millis(20),
            longest_wait: Duration::from_millis(500),
            unflushed_max: Some(40),
            salvage: Salvage::Nothing,
        }));
        self.at(Duration::ZERO, Event::Turn(writer));
    }

    fn confirmed(&mut self, writer: usize, outcome: Outcome) {
        let (now, spread) = (self.now, self.random.below(1 << 32));
        let it = &mut self.writers[writer];
        let Some(machine) = &mut it.machine else { return };
        match outcome {
            Ok(hold) => {
                it.hold = Some(hold);
                it.link += 1;
                machine.connected(now);
            }
            Err(NotHeld::By(_)) => {
                self.fenced += 1;
                it.connection = None;
                machine.fenced();
            }
            Err(_) => {
                it.connection = None;
                machine.failed(now, Failure::NoSession, spread);
            }
        }
        self.act(writer);
        let again = self.random.within(50);
        self.at(again, Event::Turn(writer));
    }

    fn log_in(&mut self, writer: usize) {
        let spread = self.random.below(1 << 32);
        let refused = self.random.below(4) == 0 && !self.is_quiet();
        let now = self.now;
        let it = &mut self.writers[writer];
        if matches!(it.stage, Stage::Gone) || it.connection.is_some() {
            return;
        }
        let Some(machine) = &mut it.machine else { return };
        if refused {
            machine.failed(now, Failure::NoSession, spread);
            self.act(writer);
            let again = self.random.within(50);
            return self.at(again, Event::Turn(writer));
        }
        self.connect(writer);
        match self.writers[writer].hold {
            Some(hold) if self.reserves => {
                let logic =
                    self.begin(writer, |unit| async move { writer::confirm(&unit, &hold).await });
                self.writers[writer].confirming = Some(logic);
                self.poll_logic(writer);
            }
            _ => {
                let it = &mut self.writers[writer];
                it.link += 1;
                it.machine.as_mut().unwrap().connected(now);
                self.act(writer);
            }
        }
    }

    fn turn(&mut self, writer: usize) {
        let now = self.now;
        if let Some(machine) = &mut self.writers[writer].machine {
            machine.wake(now);
        }
        self.act(writer);
        match &self.writers[writer].stage {
            Stage::Outside => self.attach(writer),
            Stage::Attached => self.work(writer),
            Stage::Ending => self.end(writer),
            Stage::Attaching(_) | Stage::Releasing(_) | Stage::Gone => {}
        }
    }

    fn attach(&mut self, writer: usize) {
        if self.is_quiet() {
            return;
        }
        self.connect(writer);
        if !self.reserves {
            return self.attached(writer, None);
        }
        let key = 1 + self.random.below(u64::MAX);
        let removals = match self.random.below(3) {
            0 => Removals::Everyone,
            _ => Removals::Stale(Vec::new()),
        };
        self.takeovers += u32::from(removals == Removals::Everyone);
        let logic = self
            .begin(writer, move |unit| async move { writer::acquire(&unit, key, &removals).await });
        self.writers[writer].stage = Stage::Attaching(logic);
        self.poll_logic(writer);
    }

    fn work(&mut self, writer: usize) {
        let fate = self.random.below(60);
        if fate == 0 || self.is_quiet() {
            self.writers[writer].stage = Stage::Ending;
        } else if fate == 1 {
            // It dies; what it sent is still on its way, and its reservation stays.
            let it = &mut self.writers[writer];
            (it.stage, it.connection, it.machine) = (Stage::Gone, None, None);
            return;
        } else if self.writers[writer].asked.len() < 12 {
            let block = self.random.below(BLOCKS as u64) as usize;
            self.stamp += 1;
            match self.random.below(5) {
                0 => self.ask(writer, Kind::Flush, 0..0, Verb::Flush),
                1 => self.ask(writer, Kind::Read, 0..1, Verb::Read),
                _ => {
                    let (at, write) = (block as u64, Write(block, self.stamp));
                    self.ask(writer, Kind::Change(write), at..at + 1, Verb::Write(write));
                }
            }
        }
        let again = self.random.within(60);
        self.at(again, Event::Turn(writer));
    }

    fn ask(&mut self, writer: usize, kind: Kind<Write>, range: Range<u64>, verb: Verb) {
        let it = &mut self.writers[writer];
        let Some(machine) = &mut it.machine else { return };
        let (id, turn) = machine.submit(kind, range, 1);
        it.asked.insert(id, verb.clone());
        match turn {
            Turn::Run(_) => self.send(writer, Who::Request(id), verb),
            Turn::Wait => {}
            Turn::Answer | Turn::Over => {
                it.asked.remove(&id);
            }
        }
    }

    fn end(&mut self, writer: usize) {
        let it = &self.writers[writer];
        let busy = !it.asked.is_empty() || !it.under_way.is_empty() || it.confirming.is_some();
        if busy || it.connection.is_none() {
            let again = Duration::from_millis(20) + self.random.within(50);
            return self.at(again, Event::Turn(writer));
        }
        self.writers[writer].machine = None;
        let Some(hold) = self.writers[writer].hold else {
            self.writers[writer].stage = Stage::Gone;
            return;
        };
        let logic = self.begin(writer, move |unit| async move {
            let released = writer::release(&unit, &hold).await.map_err(NotHeld::Unit)?;
            assert_eq!(released, Released::Gone);
            Ok(hold)
        });
        self.writers[writer].stage = Stage::Releasing(logic);
        self.poll_logic(writer);
    }

    /// What went wrong, how many were fenced, and how many lives there were.
    fn run(mut self) -> (Option<String>, u32, u64) {
        while let Some(Reverse((at, id))) = self.events.pop() {
            self.now = at;
            if self.now > END * 10 {
                break;
            }
            match self.what.remove(&id).unwrap() {
                Event::Arrive(connection, who, verb) => self.arrive(connection, who, verb),
                Event::Execute(task) => self.execute(task),
                Event::Reply(connection, who, reply) => self.replied(connection, who, reply),
                Event::Turn(writer) => self.turn(writer),
                Event::Cut(writer) => self.cut(writer),
                Event::LogIn(writer) => self.log_in(writer),
                Event::Restart => self.restart(),
            }
        }
        (self.wrong, self.fenced, self.epochs)
    }
}

#[test]
fn flushed_data_of_a_holder_are_never_overwritten_by_an_earlier_holder() {
    let seed = std::env::var("LONGHAUL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    println!("seed {seed}");
    let (mut fenced, mut epochs) = (0, 0);
    for case in seed..seed + CASES {
        let (wrong, times, lives) = Simulation::new(case, true).run();
        assert_eq!(wrong, None, "seed {case}");
        (fenced, epochs) = (fenced + times, epochs + lives);
    }
    assert!(fenced > 100 && epochs > CASES, "nothing happened: {fenced} fenced, {epochs} lives");
}

/// The test above would notice writers that do not reserve.
#[test]
fn writers_that_do_not_reserve_are_found_out() {
    let found = (0..100).filter(|seed| Simulation::new(*seed, false).run().0.is_some()).count();
    assert!(found > 50, "{found}");
}
