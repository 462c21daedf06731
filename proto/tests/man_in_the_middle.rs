//! Somebody on the path forges, changes, cuts, drops, repeats, replays, reorders and delays PDUs of logins, also of
//! connections that join a session, and of secure sessions, for as long as he likes, on virtual time. When he stops the volume is usable, and nothing that
//! was acknowledged is lost.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use common::login::{account, closed, initiator, mutual, target_config};
use common::pair::{Pair, Way, bytes_of, cdb};
use common::sealed::{pinned, sealing_target};
use proto::iscsi::header::{AsyncEvent, AsyncMessage, LoginResponse};
use proto::iscsi::initiator::{Event, Transfer};
use proto::iscsi::login::initiator::Config;
use proto::iscsi::login::target;
use proto::iscsi::pdu::{Outbox, Pdu};
use proto::iscsi::sealed::Protection;
use proto::scsi::Status as ScsiStatus;
use proto::time::Time;
use testing::Random;
use testing::link::Conditions;
use testing::reconnect::{
    Action, End, Failure, Kind, Recovery, Replay, Salvage, Settings, Status, Turn,
};

/// Cases without `LONGHAUL_MIDDLEMAN`: a debug build takes long for a handshake.
const CASES: u64 = 200;
const BLOCKS: usize = 8;
const BLOCK: usize = 512;

/// Longer than any deadline of the machines.
const LONG: Duration = Duration::from_secs(90);

/// The token of what is asked before a link counts as one.
const QUESTION: u32 = 0;

/// What is written to a block: the number of the write.
type Stamp = u64;

/// A write to the blocks from the first number up to the second.
#[derive(Clone, Copy, Debug)]
struct Write(usize, usize, Stamp);

impl Replay for Write {
    fn part(&self, part: &Range<u64>) -> Self {
        Self(part.start as usize, part.end as usize, self.2)
    }

    fn replaces(&self) -> bool {
        true
    }
}

// The one on the path.

/// What he does to the bytes of one turn; during a login these are one PDU.
#[derive(Clone, Copy, Debug)]
enum Tampering {
    /// One bit becomes another.
    Flip,
    /// Only the first half arrives, and the connection ends.
    Truncate,
    Cut,
    Drop,
    /// From here on nothing arrives, and nobody is told.
    Silence,
    Repeat,
    /// It arrives when something has timed out.
    Late,
    /// It arrives behind what follows it.
    Swap,
    /// Something that was recorded earlier comes instead of it, or before it.
    Replay {
        before: bool,
    },
    /// Something that he has made up comes instead of it, or before it.
    Forge {
        before: bool,
    },
    Noise,
}

impl Tampering {
    fn any(random: &mut Random) -> Self {
        let before = random.below(2) == 0;
        match random.below(16) {
            0..2 => Self::Flip,
            2 => Self::Truncate,
            3 => Self::Cut,
            4 => Self::Drop,
            5 => Self::Silence,
            6 => Self::Repeat,
            7 => Self::Late,
            8 => Self::Swap,
            9..11 => Self::Replay { before },
            11 => Self::Noise,
            _ => Self::Forge { before },
        }
    }

    /// Where nothing is authenticated he could change what is agreed and what is written. What is promised there
    /// holds against those who only keep a session from coming about.
    const fn keeps_data(self) -> bool {
        !matches!(self, Self::Flip | Self::Repeat | Self::Swap | Self::Replay { .. })
    }
}

/// Something that is to be done to the turn of this number, one way.
#[derive(Clone, Copy, Debug)]
struct Plan {
    way: Way,
    turn: usize,
    tampering: Tampering,
}

#[derive(Debug)]
struct Middleman {
    random: Random,
    secure: bool,
    /// The connections of a session, by their index.
    passages: Vec<ConnectionPlan>,
    recorded: Vec<(Way, Vec<u8>)>,
    done: u32,
    /// Of these to connections that join.
    done_to_joining: u32,
}

/// What is done to a connection.
#[derive(Debug, Default)]
struct ConnectionPlan {
    plans: Vec<Plan>,
    /// Turns that have passed, each way.
    turns: [usize; 2],
    held: [Vec<u8>; 2],
    /// Held bytes come with the next turn, not with the next timeout.
    swapping: bool,
    silent: bool,
    /// Both ends see the connection end.
    cut: bool,
}

impl Middleman {
    fn new(seed: u64, secure: bool) -> Self {
        Self {
            random: Random::new(seed),
            secure,
            passages: Vec::new(),
            recorded: Vec::new(),
            done: 0,
            done_to_joining: 0,
        }
    }

    /// Another connection, to which so much is done; it joins a session, or begins one.
    fn next_connection(&mut self, joins: bool, harms: u64) {
        if !joins {
            self.passages.clear();
        }
        let mut passage = ConnectionPlan::default();
        for _ in 0..harms {
            let way = if self.random.below(3) == 0 { Way::Up } else { Way::Down };
            let turn = self.random.index(6);
            let tampering = Tampering::any(&mut self.random);
            if self.secure || tampering.keeps_data() {
                passage.plans.push(Plan { way, turn, tampering });
            }
        }
        self.passages.push(passage);
    }

    fn pass(&mut self, on: usize, way: Way, bytes: &mut Vec<u8>) {
        let passage = &mut self.passages[on];
        if passage.silent || passage.cut {
            return bytes.clear();
        }
        let held = &mut passage.held[way as usize];
        if bytes.is_empty() {
            if !passage.swapping {
                std::mem::swap(held, bytes);
            }
            return;
        }
        let turn = passage.turns[way as usize];
        passage.turns[way as usize] += 1;
        let login = matches!(bytes[0] & 0x3f, 0x03 | 0x23);
        if self.recorded.len() < 40 {
            self.recorded.push((way, bytes.clone()));
        }
        let held = std::mem::take(held);
        let plan = passage.plans.iter().find(|plan| plan.way == way && plan.turn == turn);
        if let Some(plan) = plan.filter(|_| self.secure || login).copied() {
            self.done += 1;
            self.done_to_joining += u32::from(on > 0);
            self.tampering(plan.tampering, on, way, bytes);
        }
        bytes.extend(held);
    }

    fn tampering(&mut self, tampering: Tampering, on: usize, way: Way, bytes: &mut Vec<u8>) {
        let passage = &mut self.passages[on];
        match tampering {
            Tampering::Flip => {
                let at = self.random.index(bytes.len());
                bytes[at] ^= 1 << self.random.below(8);
            }
            Tampering::Truncate => {
                bytes.truncate(bytes.len() / 2);
                passage.cut = true;
            }
            Tampering::Cut => {
                bytes.clear();
                passage.cut = true;
            }
            Tampering::Drop => bytes.clear(),
            Tampering::Silence => {
                bytes.clear();
                passage.silent = true;
            }
            Tampering::Repeat => bytes.extend_from_within(..),
            Tampering::Late | Tampering::Swap => {
                passage.swapping = matches!(tampering, Tampering::Swap);
                passage.held[way as usize] = std::mem::take(bytes);
            }
            Tampering::Replay { before } => {
                let which = self.random.index(self.recorded.len());
                let old = self.recorded[which].1.clone();
                replace(bytes, old, before);
            }
            Tampering::Forge { before } => {
                let forged = self.forge(bytes);
                replace(bytes, forged, before);
            }
            Tampering::Noise => {
                let len = self.random.index(200);
                *bytes = (0..len).map(|_| self.random.below(256) as u8).collect();
            }
        }
    }

    /// A PDU as a target would send it: most are what 48 bytes can say to end a login.
    fn forge(&mut self, instead: &[u8]) -> Vec<u8> {
        let statuses = [
            (2, 0),
            (2, 1),
            (2, 2),
            (2, 3),
            (2, 4),
            (2, 5),
            (2, 6),
            (2, 7),
            (2, 8),
            (2, 9),
            (2, 10),
            (2, 11),
            (3, 0),
            (3, 1),
            (3, 2),
            (1, 1),
            (1, 2),
            (0, 0),
            (0, 0),
            (9, 9),
        ];
        let (class, detail) = statuses[self.random.index(statuses.len())];
        let stage = self.random.below(2) as u8;
        let transit = class == 0 && self.random.below(2) == 0;
        let response = LoginResponse {
            transit,
            current_stage: stage,
            next_stage: if transit { 3 } else { 0 },
            isid: initiator().isid.0,
            tsih: self.random.below(3) as u16,
            stat_sn: self.random.below(3) as u32,
            status_class: class,
            status_detail: detail,
            ..LoginResponse::default()
        };
        let texts: [&[u8]; 5] = [
            b"",
            b"TargetAddress=10.0.0.66:3260,7\0",
            b"AuthMethod=None\0",
            b"AuthMethod=CHAP\0TargetPortalGroupTag=1\0",
            b"TargetAddress=\xff\0=\0",
        ];
        let text = Bytes::from_static(texts[self.random.index(texts.len())]);
        match self.random.below(8) {
            0 => {
                let event = AsyncEvent::DROP_CONNECTION;
                let parameter2 = u16::MAX;
                let message = AsyncMessage { event, parameter2, ..AsyncMessage::default() };
                wire(Pdu::bare(message))
            }
            1 => instead.iter().rev().copied().collect(),
            _ => wire(Pdu::with_data(response, text)),
        }
    }
}

fn replace(bytes: &mut Vec<u8>, with: Vec<u8>, before: bool) {
    let rest = std::mem::replace(bytes, with);
    if before {
        bytes.extend(rest);
    }
}

fn wire(pdu: Pdu) -> Vec<u8> {
    let mut outbox = Outbox::new();
    outbox.push_pdu(pdu);
    bytes_of(&mut outbox).to_vec()
}

// Those at the ends.

/// How the initiator knows the target, and the target the initiator.
fn ends(random: &mut Random) -> (Config, target::Config, bool) {
    let connections = 1 + random.below(3) as u16;
    let (mut ours, mut theirs, secure) = proofs(random);
    ours.offer.max_connections = connections;
    theirs.offer.max_connections = connections;
    (ours, theirs, secure)
}

fn proofs(random: &mut Random) -> (Config, target::Config, bool) {
    let with = |account: proto::iscsi::chap::Account| {
        let config = Config { account: Some(account.clone()), ..initiator() };
        (config, closed(account), false)
    };
    match random.below(10) {
        0 => (initiator(), target_config(), false),
        1 => with(account("alice")),
        2 => with(mutual("disk")),
        n => {
            let both = [Protection::Encrypt, Protection::Integrity];
            (pinned(both[n as usize % 2]), sealing_target(None), true)
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum PendingRequest {
    Read { block: usize, oldest: Stamp },
    Write(Write),
    Flush,
}

/// What runs on the link: a request, or a restore.
#[derive(Clone, Copy, Debug)]
enum Running {
    Request(u64, PendingRequest),
    Restore(u64, Write),
}

/// What has been done in a run.
#[derive(Debug, Default)]
struct Done {
    harms: u32,
    /// Of these to connections that were to join a session.
    to_joining: u32,
    /// Connections that did join sessions, up to the loss of each.
    joined: usize,
}

struct Simulation {
    random: Random,
    ends: (Config, target::Config),
    middleman: Rc<RefCell<Middleman>>,
    machine: Recovery<Write>,
    pair: Option<Pair>,
    now: Time,
    link: u64,
    attempts: u8,
    joined: usize,
    /// How much is done to the next connection.
    harms: u64,
    connect: bool,
    pending: BTreeMap<u64, PendingRequest>,
    running: BTreeMap<u32, Running>,
    token: u32,
    disk: Vec<u8>,
    durable: Vec<u8>,
    stamp: Stamp,
    submitted: [Stamp; BLOCKS],
    answered: [Stamp; BLOCKS],
    wrong: Option<String>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (ours, theirs, secure) = ends(&mut random);
        let settings = Settings {
            patience: None,
            first_wait: Duration::from_millis(100),
            longest_wait: Duration::from_secs(5),
            unflushed_max: Some(20),
            salvage: Salvage::Nothing,
        };
        let empty = vec![0; BLOCKS * BLOCK];
        let mut simulation = Self {
            middleman: Rc::new(RefCell::new(Middleman::new(random.below(u64::MAX), secure))),
            random,
            ends: (ours, theirs),
            machine: Recovery::new(settings),
            pair: None,
            now: Time::ZERO,
            link: 0,
            attempts: 0,
            joined: 0,
            harms: 0,
            connect: false,
            pending: BTreeMap::new(),
            running: BTreeMap::new(),
            token: QUESTION,
            disk: empty.clone(),
            durable: empty,
            stamp: 0,
            submitted: [0; BLOCKS],
            answered: [0; BLOCKS],
            wrong: None,
        };
        simulation.pair = simulation.dial();
        assert!(simulation.pair.is_some(), "seed {seed}: nobody disturbs the first login");
        simulation
    }

    // The application.

    fn submit(&mut self, random: u64) {
        let from = self.random.index(BLOCKS);
        let to = from + 1 + self.random.index(BLOCKS - from);
        let (kind, range, pending) = match random % 8 {
            0..5 => {
                self.stamp += 1;
                self.submitted[from..to].fill(self.stamp);
                let write = Write(from, to, self.stamp);
                (Kind::Change(write), from..to, PendingRequest::Write(write))
            }
            5..7 => {
                let oldest = self.answered[from];
                (Kind::Read, from..from + 1, PendingRequest::Read { block: from, oldest })
            }
            _ => (Kind::Flush, 0..0, PendingRequest::Flush),
        };
        let weight = range.len();
        let (id, turn) = self.machine.submit(kind, range.start as u64..range.end as u64, weight);
        self.pending.insert(id, pending);
        self.turn(id, pending, turn, None);
    }

    fn turn(&mut self, id: u64, pending: PendingRequest, turn: Turn, data: Option<Bytes>) {
        match turn {
            Turn::Run(link) => self.send(link, Running::Request(id, pending)),
            Turn::Wait => {}
            Turn::Answer => self.answer(id, pending, data),
            Turn::Over => self.wrong = Some("the volume was given up".into()),
        }
    }

    fn answer(&mut self, id: u64, pending: PendingRequest, data: Option<Bytes>) {
        if self.pending.remove(&id).is_none() {
            return;
        }
        match pending {
            PendingRequest::Write(Write(from, to, stamp)) => {
                for answered in &mut self.answered[from..to] {
                    *answered = stamp.max(*answered);
                }
            }
            PendingRequest::Read { block, oldest } => {
                let right = oldest..=self.submitted[block];
                let read = data.map(|data| stamp_of(&data));
                if !read.is_some_and(|read| right.contains(&read)) {
                    let wrong = format!("block {block} shows {read:?}, not of {right:?}");
                    self.wrong.get_or_insert(wrong);
                }
            }
            PendingRequest::Flush => {}
        }
    }

    // The driver.

    fn act(&mut self) {
        while let Some(action) = self.machine.poll() {
            match action {
                Action::Connect => self.connect = true,
                Action::Run { id, link } => {
                    self.send(link, Running::Request(id, self.pending[&id]));
                }
                Action::Flush { id, link } => {
                    self.send(link, Running::Request(id, PendingRequest::Flush));
                }
                Action::Restore { seq, link, change } => {
                    self.send(link, Running::Restore(seq, change));
                }
                Action::Save(_) | Action::Over => {
                    self.wrong = Some("the volume was given up".into());
                }
            }
        }
    }

    fn send(&mut self, link: u64, running: Running) {
        let Some(pair) = self.pair.as_mut().filter(|_| link == self.link) else {
            return self.end_lost(link, running);
        };
        self.token += 1;
        self.running.insert(self.token, running);
        match running {
            Running::Restore(_, write) | Running::Request(_, PendingRequest::Write(write)) => {
                let Write(from, to, stamp) = write;
                let data = stamp.to_be_bytes().repeat((to - from) * BLOCK / 8);
                pair.write(self.token, from * BLOCK, data);
            }
            Running::Request(_, PendingRequest::Read { block, .. }) => {
                pair.read(self.token, block * BLOCK, BLOCK);
            }
            Running::Request(_, PendingRequest::Flush) => {
                pair.submit(self.token, cdb(0x91, 0, 0), Transfer::None);
            }
        }
    }

    /// The time as the machine counts it.
    fn clock(&self) -> Duration {
        self.now.since_origin()
    }

    fn end_lost(&mut self, link: u64, running: Running) {
        match running {
            Running::Restore(seq, _) => self.machine.restored(self.clock(), seq, link, End::Lost),
            Running::Request(id, pending) => {
                let turn = self.machine.ended(self.clock(), id, link, End::Lost);
                if self.pending.contains_key(&id) {
                    self.turn(id, pending, turn, None);
                }
            }
        }
    }

    /// Lets happen what happens by itself; whether there was anything.
    fn step(&mut self) -> bool {
        self.act();
        if self.pair.is_some() {
            return self.exchange();
        }
        if std::mem::take(&mut self.connect) {
            self.connect_again();
            return true;
        }
        let Some(deadline) = self.machine.deadline() else { return false };
        self.now = self.now.max(Time::from_origin(deadline));
        self.machine.wake(self.clock());
        true
    }

    fn exchange(&mut self) -> bool {
        let Some(pair) = &mut self.pair else { return false };
        pair.drive();
        self.see_cuts();
        if self.pair.as_ref().is_some_and(|pair| pair.ended.is_empty())
            && !self.running.is_empty()
            && !self.is_lost()
        {
            self.pair.as_mut().expect("it is there").pass(LONG);
            self.see_cuts();
        }
        let Some(pair) = &mut self.pair else { return false };
        self.now = self.now.max(pair.now);
        let ended = std::mem::take(&mut pair.ended);
        let any = !ended.is_empty();
        for (token, ended) in ended {
            let good = ended.ok().filter(|done| done.status == ScsiStatus::Good);
            let end = if good.is_some() { End::Done } else { End::Failed };
            if let Some(running) = self.running.remove(&token) {
                self.ended(running, end, good.map(|done| done.data));
            }
        }
        if self.is_lost() {
            self.lose();
            return true;
        }
        any || !self.running.is_empty() && self.wrong.is_none()
    }

    fn ended(&mut self, running: Running, end: End, data: Option<Bytes>) {
        if end == End::Failed {
            self.wrong.get_or_insert_with(|| format!("{running:?} failed"));
        }
        match running {
            Running::Restore(seq, _) => self.machine.restored(self.clock(), seq, self.link, end),
            Running::Request(id, pending) => {
                if matches!(pending, PendingRequest::Flush) && end == End::Done {
                    // What the target has now includes all that was answered before.
                    self.durable.clone_from_slice(
                        &self.pair.as_ref().expect("up").target.disk[..BLOCKS * BLOCK],
                    );
                }
                let turn = self.machine.ended(self.clock(), id, self.link, end);
                if self.pending.contains_key(&id) || matches!(turn, Turn::Run(_)) {
                    self.turn(id, pending, turn, data);
                }
            }
        }
    }

    fn is_lost(&self) -> bool {
        let Some(pair) = &self.pair else { return false };
        pair.is_lost() || self.middleman.borrow().passages[0].cut
    }

    /// The ends of the connections that he has cut see it.
    fn see_cuts(&mut self) {
        let Some(pair) = &mut self.pair else { return };
        let mut middleman = self.middleman.borrow_mut();
        let cut = middleman.passages.iter().enumerate().skip(1).filter(|(_, passage)| passage.cut);
        let cut: Vec<_> = cut.map(|(on, _)| on).collect();
        if cut.into_iter().any(|on| pair.cut(on)) {
            middleman.passages[0].cut = true;
        }
    }

    /// The link is lost: what was on its way may still arrive, and the target may lose its power.
    fn lose(&mut self) {
        let Some(pair) = self.pair.take() else { return };
        self.now = self.now.max(pair.now);
        let joined = pair.other.iter().filter(|event| matches!(event, Event::Joined(_)));
        self.joined += joined.count();
        self.disk.copy_from_slice(&pair.target.disk[..BLOCKS * BLOCK]);
        if self.random.below(2) == 0 {
            for block in 0..BLOCKS {
                if self.random.below(2) == 0 {
                    let at = block * BLOCK..(block + 1) * BLOCK;
                    self.disk[at.clone()].copy_from_slice(&self.durable[at]);
                }
            }
            self.durable.clone_from(&self.disk);
        }
        self.machine.lost(self.clock(), self.link, Duration::ZERO);
        let running = std::mem::take(&mut self.running);
        for running in running.into_values() {
            self.end_lost(self.link, running);
        }
    }

    fn connect_again(&mut self) {
        match self.dial() {
            Some(pair) => {
                self.pair = Some(pair);
                self.link += 1;
                self.machine.connected(self.clock());
            }
            None => {
                let spread = self.random.below(1 << 32);
                self.machine.failed(self.clock(), Failure::NoSession, spread);
            }
        }
    }

    /// A connection, a login, and an answer from the unit; nothing less is a link.
    fn dial(&mut self) -> Option<Pair> {
        self.attempts += 1;
        self.middleman.borrow_mut().next_connection(false, self.harms);
        let far = Conditions::far(Duration::from_millis(1 << self.random.below(8)));
        let (ours, theirs) = self.ends.clone();
        let drawn = [self.attempts, 128 + self.attempts];
        let mut pair = Pair::beginning(self.now, drawn, None, ours, theirs, far);
        pair.target.disk[..BLOCKS * BLOCK].copy_from_slice(&self.disk);
        let middleman = Rc::clone(&self.middleman);
        let pass = move |on, way, bytes: &mut _| middleman.borrow_mut().pass(on, way, bytes);
        pair.tamper = Some(Box::new(pass));
        self.pair = Some(pair);
        let linked = self.log_in();
        let mut pair = self.pair.take()?;
        self.now = self.now.max(pair.now);
        if linked {
            self.join_all(&mut pair);
        }
        linked.then_some(pair)
    }

    /// Begins to add connections: commands do not wait for them.
    fn join_all(&mut self, pair: &mut Pair) {
        while pair.join().is_some() {
            let harms = self.harms.min(self.random.below(3));
            self.middleman.borrow_mut().next_connection(true, harms);
        }
    }

    fn log_in(&mut self) -> bool {
        let established =
            |pair: &Pair| pair.other.iter().any(|event| matches!(event, Event::Established(_)));
        self.settle(established);
        if self.is_lost() || !self.pair.as_ref().is_some_and(established) {
            return false;
        }
        let answered = |pair: &Pair| !pair.ended.is_empty();
        if let Some(pair) = &mut self.pair {
            pair.read(QUESTION, 0, BLOCK);
        }
        self.settle(answered);
        let Some(pair) = &mut self.pair else { return false };
        let ended = std::mem::take(&mut pair.ended);
        let good = matches!(&ended[..], [(QUESTION, Ok(done))] if done.status == ScsiStatus::Good);
        good && !self.is_lost()
    }

    /// Waits for something, or for a deadline.
    fn settle(&mut self, there: impl Fn(&Pair) -> bool) {
        let Some(pair) = &mut self.pair else { return };
        pair.drive();
        if !there(pair) && !self.is_lost() {
            self.pair.as_mut().expect("it is there").pass(LONG);
        }
    }

    /// Until nothing is left to happen.
    fn finish(&mut self) -> Result<(), String> {
        for _ in 0..2000 {
            if let Some(wrong) = self.wrong.take() {
                return Err(wrong);
            }
            if !self.step() && self.pending.is_empty() && self.machine.status() == Status::Connected
            {
                return Ok(());
            }
        }
        Err(format!("it does not come to an end: {:?}", self.machine.status()))
    }

    fn load(&mut self, requests: u64) {
        for _ in 0..requests {
            let random = self.random.below(u64::MAX);
            self.submit(random);
        }
    }

    /// Load and harm by turns, then none; what is wrong then, if anything is.
    fn run(mut self) -> Result<Done, String> {
        self.load(6);
        self.finish()?;
        for _ in 0..=self.random.below(2) {
            // The session is cut in the middle of something; each login after it is harmed.
            self.harms = 1 + self.random.below(3);
            self.load(4);
            self.act();
            self.middleman.borrow_mut().passages[0].cut = true;
            for _ in 0..self.random.below(12) {
                if let Some(wrong) = self.wrong.take() {
                    return Err(wrong);
                }
                self.step();
            }
            self.harms = 0;
            self.load(2);
            self.stop();
            self.finish()?;
        }
        self.submit(7);
        self.finish()?;
        let there = self.durable.chunks(BLOCK).map(stamp_of);
        match there.eq(self.submitted) {
            true => {
                let Middleman { done, done_to_joining, .. } = *self.middleman.borrow();
                Ok(Done { harms: done, to_joining: done_to_joining, joined: self.joined })
            }
            false => Err(format!("{:?} is not what is there", self.submitted)),
        }
    }

    /// He stops, also what he has planned for the connection there is.
    fn stop(&mut self) {
        let mut middleman = self.middleman.borrow_mut();
        middleman.passages.iter_mut().for_each(|passage| passage.plans.clear());
    }
}

/// What a block shows; all of it must show the same.
fn stamp_of(block: &[u8]) -> Stamp {
    let stamp: [u8; 8] = block[..8].try_into().expect("eight");
    assert!(block.chunks(8).all(|chunk| chunk == stamp), "half of a write");
    Stamp::from_be_bytes(stamp)
}

#[test]
fn volume_is_usable_again_when_the_man_in_the_middle_stops() {
    let pending = std::env::var("LONGHAUL_MIDDLEMAN").ok();
    let cases = pending.map_or(CASES, |cases| cases.parse().expect("a number of cases"));
    let seed = 1;
    println!("seed {seed}, {cases} cases");
    let mut done = Done::default();
    for case in seed..seed + cases {
        match Simulation::new(case).run() {
            Ok(run) => {
                done.harms += run.harms;
                done.to_joining += run.to_joining;
                done.joined += run.joined;
            }
            Err(wrong) => panic!("seed {case}: {wrong}"),
        }
    }
    println!("{done:?} in {cases} cases");
    assert!(u64::from(done.harms) > cases, "he did little: {done:?}");
    assert!(u64::from(done.to_joining) * 10 > cases && done.joined as u64 > cases / 2, "{done:?}");
}
