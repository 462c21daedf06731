//! An initiator and a target, joined by an emulated link, on virtual time.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use proto::iscsi::header::{Header, TaskResponse};
use proto::iscsi::initiator::{Command, Completion, Event, Fault, Initiator, TaskError};
use proto::iscsi::initiator::{Timeouts, Transfer};
use proto::iscsi::keys::{Offer, Parameters};
use proto::iscsi::login::initiator::{CID, Config};
use proto::iscsi::login::target::{self, Progress, Reason, TargetLogin};
use proto::iscsi::pdu::{Decoder, Frame, FrameError, Outbox, Pieces};
use proto::iscsi::sealed::Protection;
use proto::iscsi::target as machine;
use proto::iscsi::target::{
    Budget, Ending, Joining, Reply, Session, Setup, TargetRecord, TaskId, WINDOW,
};
use proto::iscsi::text::TEXT_MAX;
use proto::link::{Conditions, Direction};
use proto::scsi::Status;
use proto::time::Time;

use super::login::entropy;

/// One way; a round trip is twice that.
pub const DELAY: Duration = Duration::from_millis(50);

/// Bytes of the disk behind the target.
const DISK: usize = 40 << 20;

/// What is done to bytes on their way, and which way that is.
pub type Tamper = Box<dyn FnMut(Way, &mut Vec<u8>)>;

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
    up: Direction,
    down: Direction,
    arrived: BytesMut,
    pub ended: Vec<(u32, Result<Completion, TaskError>)>,
    pub other: Vec<Event<u32>>,
    pub fault: Option<Fault>,
}

/// The target's machine with a front that is a disk in memory.
pub struct Target {
    side: Side,
    outbox: Outbox,
    decoder: Decoder,
    arrived: BytesMut,
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

enum Side {
    Login(Option<Box<TargetLogin>>),
    Session(Box<Session>),
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
        let login = TargetLogin::new(Arc::new(target), demanded, entropy(drawn));
        let timeouts = Timeouts::default();
        Self {
            tamper: None,
            now: Time::ZERO,
            initiator: Initiator::start(initiator, entropy(1), timeouts, Time::ZERO),
            target: Target {
                side: Side::Login(Some(Box::new(login))),
                outbox: Outbox::new(),
                decoder: Decoder::new(),
                arrived: BytesMut::new(),
                disk: vec![0; DISK],
                holds: false,
                held: Vec::new(),
                ending: None,
                broken: None,
                refused: false,
                reason: None,
            },
            up: Direction::new(link, 1),
            down: Direction::new(link, 2),
            arrived: BytesMut::new(),
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
        match &mut self.target.side {
            Side::Session(session) => session,
            Side::Login(_) => panic!("not logged in"),
        }
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
        self.initiator.submit(Command { lun: 0, cdb, transfer }, token).expect("room")
    }

    /// Lets everything happen that happens without waiting for a deadline.
    pub fn drive(&mut self) {
        loop {
            self.exchange();
            let arrivals = [self.up.next_arrival(), self.down.next_arrival()];
            let Some(next) = arrivals.into_iter().flatten().min() else { return };
            self.now = self.now.max(next);
            self.deliver();
        }
    }

    /// The same, and time passes, deadlines and all.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.drive();
            let deadline = match &self.target.side {
                Side::Session(session) => Some(session.deadline()),
                Side::Login(_) => None,
            };
            let next = [self.initiator.deadline(), deadline].into_iter().flatten().min();
            match next.filter(|next| *next <= until) {
                Some(next) => self.now = self.now.max(next),
                None => break,
            }
            if let Err(fault) = self.initiator.wake(self.now) {
                self.fault = Some(fault);
            }
            if let Side::Session(session) = &mut self.target.side {
                session.handle_timeout(self.now);
            }
        }
        self.now = until;
    }

    /// Everything in the outboxes goes on the link.
    fn exchange(&mut self) {
        self.target.act();
        let sent = bytes_of(self.initiator.outbox());
        self.initiator.sent(self.now, 0);
        let sent = self.on_the_way(Way::Up, sent);
        assert!(self.up.send(self.now, sent).is_empty(), "the link has no queue limit here");
        let outbox = match &mut self.target.side {
            Side::Session(session) if self.target.outbox.is_empty() => {
                session.outbox(CID).expect("its first connection")
            }
            _ => &mut self.target.outbox,
        };
        let sent = bytes_of(outbox);
        let sent = self.on_the_way(Way::Down, sent);
        assert!(self.down.send(self.now, sent).is_empty(), "the link has no queue limit here");
    }

    fn on_the_way(&mut self, way: Way, sent: Bytes) -> Bytes {
        let Some(tamper) = &mut self.tamper else { return sent };
        let mut bytes = sent.to_vec();
        tamper(way, &mut bytes);
        bytes.into()
    }

    fn deliver(&mut self) {
        while let Some(bytes) = self.up.receive(self.now) {
            self.target.arrived.extend_from_slice(&bytes);
        }
        self.target.receive(self.now);
        while let Some(bytes) = self.down.receive(self.now) {
            self.arrived.extend_from_slice(&bytes);
        }
        if let Err(fault) = self.initiator.receive(self.now, &mut self.arrived) {
            self.fault = Some(fault);
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
    fn receive(&mut self, now: Time) {
        while self.broken.is_none() {
            let frame = match self.decoder.decode(&mut self.arrived) {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(error) => {
                    self.broken = Some(error);
                    return;
                }
            };
            match &mut self.side {
                Side::Session(session) => session.handle(now, CID, frame),
                Side::Login(login) => {
                    let Frame::Pdu(pdu) = frame else { return self.refused = true };
                    let Header::LoginRequest(header) = pdu.header else {
                        return self.refused = true;
                    };
                    let Some(login) = login.take() else { return };
                    self.log_in(now, login.handle(&header, &pdu.data, &self.decoder.transcript()));
                }
            }
            self.act();
        }
    }

    fn log_in(&mut self, now: Time, progress: Progress) {
        match progress {
            Progress::Continue(login, response) => {
                self.side = Side::Login(Some(login));
                self.outbox.push_pdu(response);
            }
            Progress::Refused(refusal) => {
                self.refused = true;
                self.reason = Some(refusal.reason);
                self.outbox.push_pdu(refusal.response);
            }
            Progress::Admit(admission) => {
                let (response, established, seals) = admission.admit(1);
                self.outbox.push_pdu(response);
                let parameters = established.parameters;
                self.decoder.set_digests(parameters.header_digest, parameters.data_digest);
                self.decoder.set_data_max(parameters.max_recv_data_segment as usize);
                let setup = Setup {
                    discovery: established.target.is_none(),
                    exp_cmd_sn: established.exp_cmd_sn,
                    window: WINDOW,
                    window_max: WINDOW,
                    unsolicited: Arc::new(Budget::new(32 << 20, 0)),
                    solicited: 32 << 20,
                    text_max: TEXT_MAX,
                    ping_after: Duration::from_secs(60),
                    ping_patience: Duration::from_secs(30),
                };
                let (cid, stat_sn) = (established.cid, established.stat_sn);
                let first = Joining { cid, stat_sn, parameters: &parameters };
                let mut session = Session::new(now, &first, setup);
                if let Some(seals) = seals {
                    self.decoder.set_opener(seals.opener);
                    session.outbox(cid).expect("its first connection").set_sealer(seals.sealer);
                }
                self.side = Side::Session(Box::new(session));
            }
        }
    }

    /// What the front does.
    fn act(&mut self) {
        let Side::Session(session) = &mut self.side else { return };
        while let Some(event) = session.poll_event() {
            match event {
                machine::Event::Command(command) => {
                    let (_, len) = place(&command.cdb);
                    let asked = if command.cdb[0] == 0x8a { len as u32 } else { 0 };
                    if let Some(data) = session.want_data(command.task, asked) {
                        let job = (command.task, &command.cdb, &data[..]);
                        run(session, &mut self.disk, self.holds, &mut self.held, job);
                    }
                }
                machine::Event::Execute { command, data } => {
                    let job = (command.task, &command.cdb, &data[..]);
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
                | machine::Event::CloseConnection(_) => {}
                machine::Event::Close(ending) => self.ending = Some(ending),
            }
        }
    }
}

fn run(
    session: &mut Session,
    disk: &mut [u8],
    holds: bool,
    held: &mut Vec<TaskId>,
    (task, cdb, data): (TaskId, &[u8; 16], &[Bytes]),
) {
    if holds {
        held.push(task);
        return;
    }
    let (at, len) = place(cdb);
    let mut reply = Reply { status: Status::Good, data: Pieces::new(), sense: Bytes::new() };
    match cdb[0] {
        0x8a => {
            let written = data.concat();
            disk[at..at + written.len()].copy_from_slice(&written);
        }
        0x88 => reply.data = Bytes::copy_from_slice(&disk[at..at + len]).into(),
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

fn place(cdb: &[u8; 16]) -> (usize, usize) {
    let at = u64::from_be_bytes(cdb[2..10].try_into().expect("eight"));
    let len = u32::from_be_bytes(cdb[10..14].try_into().expect("four"));
    (at as usize, len as usize)
}

/// Takes all that waits in an outbox.
fn bytes_of(outbox: &mut Outbox) -> Bytes {
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
