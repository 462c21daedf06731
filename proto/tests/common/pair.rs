//! An initiator and a target, joined by an emulated link, on virtual time.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use proto::iscsi::header::{Header, TaskResponse};
use proto::iscsi::initiator::{Command, Completion, Event, Fault, Initiator, TaskError};
use proto::iscsi::initiator::{Timeouts, Transfer};
use proto::iscsi::keys::{Offer, Parameters};
use proto::iscsi::login::Entropy;
use proto::iscsi::login::initiator::Config;
use proto::iscsi::login::target::{self, Admission, Established, PortalRules};
use proto::iscsi::login::target::{Progress, Reason, TargetLogin};
use proto::iscsi::pdu::{Decoder, Frame, FrameError, Outbox, Pdu, Pieces};
use proto::iscsi::sealed::Protection;
use proto::iscsi::target as machine;
use proto::iscsi::target::{
    Budget, Ending, Joining, Reply, Session, Setup, TargetRecord, TaskId, WINDOW,
};
use proto::iscsi::text::TEXT_MAX;
use proto::scsi::{Cdb, DeviceType, Parsed, Residual, Status};
use proto::time::Time;
use testing::link::{Conditions, Direction};

use super::login::{ENTRANCE, entropy};

/// One way; a round trip is twice that.
pub const DELAY: Duration = Duration::from_millis(50);

/// Bytes of the disk behind the target.
const DISK: usize = 40 << 20;

/// What is done to bytes on their way, by which connection that is, and which way.
pub type Tamper = Box<dyn FnMut(usize, Way, &mut Vec<u8>)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Up,
    Down,
}

pub struct Pair {
    pub tamper: Option<Tamper>,
    pub now: Time,
    pub initiator: Initiator<u32>,
    pub target: Target,
    conditions: Conditions,
    /// Draws what connections that join need at random.
    random: u64,
    /// The links, by the index of the connection.
    links: Vec<Link>,
    pub ended: Vec<(u32, Result<Completion, TaskError>)>,
    pub other: Vec<Event<u32>>,
    pub fault: Option<Fault>,
}

/// The way of one connection, and what has come to the initiator.
struct Link {
    up: Direction,
    down: Direction,
    arrived: BytesMut,
}

impl Link {
    /// Each loses other packets.
    fn new(conditions: Conditions, on: u64) -> Self {
        let (up, down) =
            (Direction::new(conditions, 2 * on + 1), Direction::new(conditions, 2 * on + 2));
        Self { up, down, arrived: BytesMut::new() }
    }
}

/// The target's machine with a front that is a disk in memory.
pub struct Target {
    config: Arc<target::Config>,
    session: Option<Box<Session>>,
    ends: Vec<End>,
    pub disk: Vec<u8>,
    /// Commands are kept waiting instead of being carried out.
    pub holds: bool,
    pub held: Vec<TaskId>,
    pub ending: Option<Ending>,
    /// Why nothing more is taken in.
    pub broken: Option<FrameError>,
    /// The login came to nothing.
    pub refused: bool,
    pub reason: Option<Reason>,
}

/// The target's end of a connection.
struct End {
    /// Until it has logged in.
    login: Option<Box<TargetLogin>>,
    /// The connection of the session it has become.
    cid: Option<u16>,
    /// What ends its login.
    outbox: Outbox,
    decoder: Decoder,
    arrived: BytesMut,
    /// It takes nothing more.
    closed: bool,
}

impl End {
    fn new(login: TargetLogin) -> Self {
        Self {
            login: Some(Box::new(login)),
            cid: None,
            outbox: Outbox::new(),
            decoder: Decoder::new(),
            arrived: BytesMut::new(),
            closed: false,
        }
    }
}

impl Pair {
    /// A pair that has logged in.
    pub fn new(initiator: Offer, target: Offer) -> Self {
        let config = Config { offer: initiator, ..super::login::initiator() };
        let mut pair = Self::connect(
            config,
            target::Config { offer: target, ..super::login::target_config() },
            Conditions::far(DELAY),
        );
        pair.drive();
        assert!(pair.fault.is_none(), "{:?}", pair.fault);
        pair
    }

    /// A pair whose first request waits to be sent.
    pub fn connect(initiator: Config, target: target::Config, link: Conditions) -> Self {
        Self::drawing(2, None, initiator, target, link)
    }

    /// The same; `drawn` stands for what the target draws at random, and the portal demands a seal.
    pub fn drawing(
        drawn: u8,
        demanded: Option<Protection>,
        initiator: Config,
        target: target::Config,
        link: Conditions,
    ) -> Self {
        Self::beginning(Time::ZERO, [1, drawn], demanded, initiator, target, link)
    }

    /// The same, at that time; `drawn` stands for what initiator and target draw at random.
    pub fn beginning(
        now: Time,
        drawn: [u8; 2],
        demanded: Option<Protection>,
        initiator: Config,
        target: target::Config,
        link: Conditions,
    ) -> Self {
        let config = Arc::new(target);
        let entrance = PortalRules { demanded, ..ENTRANCE };
        let login = TargetLogin::new(Arc::clone(&config), entrance, entropy(drawn[1]));
        Self {
            tamper: None,
            now,
            initiator: Initiator::start(initiator, entropy(drawn[0]), Timeouts::default(), now),
            target: Target {
                config,
                session: None,
                ends: vec![End::new(login)],
                disk: vec![0; DISK],
                holds: false,
                held: Vec::new(),
                ending: None,
                broken: None,
                refused: false,
                reason: None,
            },
            conditions: link,
            random: u64::from(u16::from_be_bytes(drawn)),
            links: vec![Link::new(link, 0)],
            ended: Vec::new(),
            other: Vec::new(),
            fault: None,
        }
    }

    pub fn parameters(&self) -> &Parameters {
        let established = self.other.iter().find_map(|event| match event {
            Event::Established(established) => Some(&established.parameters),
            _ => None,
        });
        established.expect("logged in")
    }

    pub fn session(&mut self) -> &mut Session {
        self.target.session.as_mut().expect("logged in")
    }

    /// Begins to add a connection, if the session may have another.
    pub fn join(&mut self) -> Option<usize> {
        let (ours, theirs) = (self.entropy(), self.entropy());
        let on = self.initiator.join(self.now, ours)?;
        let login = TargetLogin::new(Arc::clone(&self.target.config), ENTRANCE, theirs);
        assert_eq!(on, self.links.len(), "it takes no place of one that did not come about");
        self.links.push(Link::new(self.conditions, on as u64));
        self.target.ends.push(End::new(login));
        Some(on)
    }

    /// SplitMix64: each connection draws something else, or what was recorded of one would fit the next.
    fn entropy(&mut self) -> Entropy {
        Entropy::fresh(&mut |buffer| {
            for byte in buffer {
                self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = self.random;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                *byte = (z ^ (z >> 31)) as u8;
            }
        })
    }

    /// A connection breaks; whether it takes the session with it.
    pub fn cut(&mut self, on: usize) -> bool {
        let end = &mut self.target.ends[on];
        end.closed = true;
        !self.initiator.abandon(on) || end.cid.is_some()
    }

    /// Whether the session has ended at either end, or did not come about.
    pub fn is_lost(&self) -> bool {
        let counts = |(on, end): (usize, &End)| end.closed && (on == 0 || end.cid.is_some());
        let given_up = |event: &Event<u32>| {
            matches!(event, Event::NotJoined(on, _)
                if self.target.ends.get(*on).is_some_and(|end| end.cid.is_some()))
        };
        self.fault.is_some()
            || self.target.ending.is_some()
            || self.target.ends.iter().enumerate().any(counts)
            // The target sees the end of a connection that it had taken into the session.
            || self.other.iter().any(given_up)
    }

    /// Adds as many connections as the session may have; gives their number.
    pub fn join_all(&mut self) -> usize {
        while self.join().is_some() {}
        self.drive();
        self.links.len()
    }

    /// Writes `data` at `at`; the token is `token`.
    pub fn write(&mut self, token: u32, at: usize, data: Vec<u8>) -> u32 {
        let cdb = cdb(0x8a, at, data.len());
        self.submit(token, cdb, Transfer::Out(Pieces::from(Bytes::from(data))))
    }

    pub fn read(&mut self, token: u32, at: usize, len: usize) -> u32 {
        self.submit(token, cdb(0x88, at, len), Transfer::In(len as u32))
    }

    pub fn submit(&mut self, token: u32, cdb: [u8; 16], transfer: Transfer) -> u32 {
        self.initiator
            .submit(self.now, Command { lun: 0, cdb, transfer, is_ordered: false }, token)
            .expect("room")
    }

    /// Lets everything happen that happens without waiting for a deadline.
    pub fn drive(&mut self) {
        loop {
            self.exchange();
            let ways = self.links.iter().flat_map(|link| [&link.up, &link.down]);
            let Some(next) = ways.filter_map(Direction::next_arrival).min() else { return };
            self.now = self.now.max(next);
            self.deliver();
        }
    }

    /// The same, and time passes, deadlines and all.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.drive();
            // One that has ended waits for nothing any more.
            let session = self.target.session.as_ref().filter(|_| self.target.ending.is_none());
            let deadline = session.map(|session| session.deadline());
            let ours = self.initiator.deadline().filter(|_| self.fault.is_none());
            let next = [ours, deadline].into_iter().flatten().min();
            match next.filter(|next| *next <= until) {
                Some(next) => self.now = self.now.max(next),
                None => break,
            }
            if let Err(fault) = self.initiator.wake(self.now) {
                self.fault = Some(fault);
            }
            if let Some(session) = &mut self.target.session {
                session.handle_timeout(self.now);
            }
        }
        self.now = until;
    }

    /// Everything in the outboxes goes on the links.
    fn exchange(&mut self) {
        self.target.act();
        for on in 0..self.links.len() {
            let sent = self.take_requests(on);
            let sent = self.on_the_way(on, Way::Up, sent);
            let up = &mut self.links[on].up;
            assert!(up.send(self.now, sent).is_empty(), "the link has no queue limit here");
            let sent = self.target.take_output(on);
            let sent = self.on_the_way(on, Way::Down, sent);
            let down = &mut self.links[on].down;
            assert!(down.send(self.now, sent).is_empty(), "the link has no queue limit here");
        }
    }

    /// What the initiator has to send. What is taken makes room for more.
    fn take_requests(&mut self, on: usize) -> Bytes {
        let mut sent = BytesMut::new();
        while let Some(outbox) = self.initiator.outbox(on).filter(|outbox| !outbox.is_empty()) {
            sent.extend_from_slice(&bytes_of(outbox));
            self.initiator.sent(self.now, on, 0);
        }
        sent.freeze()
    }

    fn on_the_way(&mut self, on: usize, way: Way, sent: Bytes) -> Bytes {
        let Some(tamper) = &mut self.tamper else { return sent };
        let mut bytes = sent.to_vec();
        tamper(on, way, &mut bytes);
        bytes.into()
    }

    fn deliver(&mut self) {
        for (on, Link { up, down, arrived }) in self.links.iter_mut().enumerate() {
            while let Some(bytes) = up.receive(self.now) {
                self.target.ends[on].arrived.extend_from_slice(&bytes);
            }
            self.target.receive(self.now, on);
            while let Some(bytes) = down.receive(self.now) {
                arrived.extend_from_slice(&bytes);
            }
            if let Err(fault) = self.initiator.receive(self.now, on, arrived) {
                self.fault = Some(fault);
            }
        }
        while let Some(event) = self.initiator.poll() {
            match event {
                Event::Completed(token, ended) => self.ended.push((token, ended)),
                other => self.other.push(other),
            }
        }
    }

    /// How long `act` takes, in round trips.
    pub fn round_trips(&mut self, act: impl FnOnce(&mut Self)) -> u32 {
        let begun = self.now;
        act(self);
        self.drive();
        let taken = self.now - begun;
        u32::try_from(taken.as_micros() / (2 * DELAY).as_micros()).expect("few")
    }

    /// The one command that has ended.
    pub fn only(&mut self) -> Completion {
        assert_eq!(self.ended.len(), 1, "{:?} {:?}", self.ended, self.fault);
        self.ended.remove(0).1.expect("a status")
    }
}

impl Target {
    pub fn config(&self) -> &target::Config {
        &self.config
    }

    /// Logins to come meet another target.
    pub fn replace_config(&mut self, config: target::Config) {
        self.config = Arc::new(config);
    }

    fn take_output(&mut self, on: usize) -> Bytes {
        let end = &mut self.ends[on];
        match (&mut self.session, end.cid) {
            (Some(session), Some(cid)) if end.outbox.is_empty() => {
                session.outbox(cid).map(bytes_of).unwrap_or_default()
            }
            _ => bytes_of(&mut end.outbox),
        }
    }

    fn receive(&mut self, now: Time, on: usize) {
        loop {
            let end = &mut self.ends[on];
            if end.closed {
                return;
            }
            let frame = match end.decoder.decode(&mut end.arrived) {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(error) => {
                    end.closed = true;
                    self.broken = Some(error);
                    return;
                }
            };
            match (&mut self.session, end.cid) {
                (Some(session), Some(cid)) => session.handle(now, cid, frame),
                _ => {
                    let Frame::Pdu(Pdu { header: Header::LoginRequest(header), data, .. }) = frame
                    else {
                        end.closed = true;
                        return self.refused = true;
                    };
                    let Some(login) = end.login.take() else { return };
                    let heard = end.decoder.transcript();
                    self.log_in(now, on, login.handle(&header, &data, &heard));
                }
            }
            self.act();
        }
    }

    fn log_in(&mut self, now: Time, on: usize, progress: Progress) {
        let end = &mut self.ends[on];
        match progress {
            Progress::Continue(login, response) => {
                end.login = Some(login);
                end.outbox.push_pdu(response);
            }
            Progress::Refused(refusal) => {
                end.closed = true;
                self.refused = true;
                self.reason = Some(refusal.reason);
                end.outbox.push_pdu(refusal.response);
            }
            Progress::Admit(admission) => self.admit(now, on, *admission),
        }
    }

    fn admit(&mut self, now: Time, on: usize, admission: Admission) {
        let end = &mut self.ends[on];
        let joins = admission.established().tsih != 0;
        let (established, seals) = if joins {
            let session = self.session.as_mut().expect("it has the TSIH of a session");
            let (response, established, seals) = admission.join(session.command_numbers());
            let Established { cid, stat_sn, ref parameters, .. } = established;
            session.join(now, &Joining { cid, stat_sn, parameters }, response);
            (established, seals)
        } else {
            let (response, established, seals) = admission.admit(1);
            end.outbox.push_pdu(response);
            let Established { cid, stat_sn, ref parameters, .. } = established;
            let first = Joining { cid, stat_sn, parameters };
            self.session = Some(Box::new(Session::new(now, &first, setup(&established))));
            (established, seals)
        };
        let (cid, parameters) = (established.cid, &established.parameters);
        end.cid = Some(cid);
        end.decoder.set_digests(parameters.header_digest, parameters.data_digest);
        end.decoder.set_data_max(parameters.max_recv_data_segment as usize);
        if let (Some(seals), Some(session)) = (seals, &mut self.session) {
            end.decoder.set_opener(seals.opener);
            session.outbox(cid).expect("its connection").set_sealer(seals.sealer);
        }
    }

    /// What the front does.
    fn act(&mut self) {
        let Some(session) = &mut self.session else { return };
        while let Some(event) = session.poll_event() {
            match event {
                machine::Event::Command(command) => {
                    let parsed = Parsed::of(&command.cdb, DeviceType::Disk);
                    let (_, len) = place(&parsed);
                    let asked = if parsed.opcode == 0x8a { len as u32 } else { 0 };
                    if let Some(data) = session.want_data(command.task, asked) {
                        let job = (command.task, &parsed, &data[..]);
                        run(session, &mut self.disk, self.holds, &mut self.held, job);
                    }
                }
                machine::Event::Execute { command, data } => {
                    let parsed = Parsed::of(&command.cdb, DeviceType::Disk);
                    let job = (command.task, &parsed, &data[..]);
                    run(session, &mut self.disk, self.holds, &mut self.held, job);
                }
                machine::Event::Manage { request, .. } => {
                    session.managed(request, TaskResponse::COMPLETE);
                }
                machine::Event::SendTargets { cid, .. } => {
                    let portals = vec![(([127, 0, 0, 1], 3260).into(), 1); 3];
                    let records: Vec<_> = (0..400)
                        .map(|i| TargetRecord {
                            name: format!("iqn.2026-11.dev.longhaul:{i}"),
                            portals: portals.clone(),
                        })
                        .collect();
                    session.targets(cid, &records);
                }
                machine::Event::Abort(_)
                | machine::Event::Cleared { .. }
                | machine::Event::CommandsCleared { .. }
                | machine::Event::CloseConnection(_) => {}
                machine::Event::Close(ending) => self.ending = Some(ending),
            }
        }
    }
}

fn setup(established: &Established) -> Setup {
    Setup {
        discovery: established.target.is_none(),
        exp_cmd_sn: established.exp_cmd_sn,
        window: WINDOW,
        window_max: WINDOW,
        unsolicited: Arc::new(Budget::new(32 << 20, 0)),
        solicited: 32 << 20,
        text_max: TEXT_MAX,
        ping_after: Duration::from_secs(60),
        ping_patience: Duration::from_secs(30),
    }
}

fn run(
    session: &mut Session,
    disk: &mut [u8],
    holds: bool,
    held: &mut Vec<TaskId>,
    (task, command, data): (TaskId, &Parsed, &[Bytes]),
) {
    if holds {
        held.push(task);
        return;
    }
    let (at, len) = place(command);
    let mut reply = Reply {
        status: Status::Good,
        data: Pieces::new(),
        sense: Bytes::new(),
        residual: Residual::None,
    };
    match command.opcode {
        0x8a => {
            let written = data.concat();
            disk[at..at + written.len()].copy_from_slice(&written);
        }
        0x88 => reply.data = Bytes::copy_from_slice(&disk[at..at + len]).into(),
        // SYNCHRONIZE CACHE (16)
        0x91 => {}
        _ => {
            reply.status = Status::CheckCondition;
            reply.sense = Bytes::from_static(&[0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 0]);
        }
    }
    session.complete(task, reply);
}

/// READ (16) and WRITE (16), with bytes for blocks.
pub fn cdb(opcode: u8, at: usize, len: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&(at as u64).to_be_bytes());
    cdb[10..14].copy_from_slice(&(len as u32).to_be_bytes());
    cdb
}

/// The disk of the tests has blocks of one byte.
fn place(command: &Parsed) -> (usize, usize) {
    match command.cdb {
        Ok(Cdb::Read(access) | Cdb::Write(access)) => {
            (access.blocks.lba as usize, access.blocks.count as usize)
        }
        _ => (0, 0),
    }
}

/// Takes all that waits in an outbox.
pub fn bytes_of(outbox: &mut Outbox) -> Bytes {
    let mut bytes = BytesMut::new();
    while !outbox.is_empty() {
        let from = bytes.len();
        let mut slices = [IoSlice::new(&[]); 64];
        let filled = outbox.slices(&mut slices);
        slices[..filled].iter().for_each(|slice| bytes.extend_from_slice(slice));
        outbox.advance(bytes.len() - from);
    }
    bytes.freeze()
}
