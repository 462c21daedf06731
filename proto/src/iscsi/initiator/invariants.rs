//! What holds whatever a target sends, as functions a fuzzer can drive.

use bytes::{Bytes, BytesMut};

use super::{Command, Event, Initiator, QUEUE_MAX, Timeouts, Transfer};
use crate::identity::Identity;
use crate::iscsi::chap::{Account, Algorithm, Credentials, Secret};
use crate::iscsi::header::{BHS_LEN, Header, LoginResponse, NO_TAG};
use crate::iscsi::keys::Offer;
use crate::iscsi::login::Entropy;
use crate::iscsi::login::initiator::{Config, InitiatorLogin};
use crate::iscsi::login::invitations::Issued;
use crate::iscsi::login::policy::{Client, Policy};
use crate::iscsi::login::target::{self, PortalRules, Progress, TargetLogin};
use crate::iscsi::name::{IscsiName, Isid};
use crate::iscsi::pdu::{Outbox, Pdu, Pieces};
use crate::iscsi::sealed::{InvitationSecret, Limits, Sealing, Transcript};
use crate::iscsi::text::TEXT_MAX;
use crate::reader::{Reader, Truncated};
use crate::time::Time;

/// The data of each write; a script of a few thousand PDUs can ask for no more than was submitted.
const WRITE: usize = 100_000;

/// How many commands a script submits at most.
const COMMANDS_MAX: usize = 64;

/// Reads `bytes` as a script of a hostile target's PDUs and of the driver's wishes. For any script: no
/// panic; every command ends once or is given back; no more data come out than were asked for, and no
/// more go out than were submitted; after a fault nothing is taken.
pub fn holds(bytes: &[u8]) {
    let mut simulation = Simulation::log_in();
    let mut script = Reader::new(bytes);
    while simulation.step(&mut script).is_ok() {}
    simulation.finish();
}

/// Reads `bytes` as what either side of a login says to the other: it ends or goes on, and never
/// succeeds without proof where proof is demanded.
pub fn login_holds(bytes: &[u8]) {
    let Some((&flags, text)) = bytes.split_first() else { return };
    let phase = flags & 1;
    let transit = flags & 2 != 0;
    let next_stage = if transit { 1 + 2 * phase } else { 0 };
    let heard = Transcript::default();

    let (login, _) = InitiatorLogin::start(config(Some(account())), entropy());
    let response = LoginResponse {
        transit,
        current_stage: phase,
        next_stage,
        isid: ISID.0,
        ..LoginResponse::default()
    };
    let _ = login.handle(&response, text, &heard);

    let client = Client { account: Some(account()), ..Client::default() };
    let target = target::Config {
        policy: Policy::closed(vec![name()], vec![client], Algorithm::ALL.to_vec()),
        offer: Offer::for_long_links(),
        sealing: Some(sealing()),
        command_window: 1,
        text_max: TEXT_MAX,
    };
    let request = crate::iscsi::header::LoginRequest {
        transit,
        current_stage: phase,
        next_stage,
        ..Default::default()
    };
    let entrance = PortalRules { portal_group_tag: 1, demanded: None };
    let secret = InvitationSecret::fresh(&mut |buffer| buffer.fill(2));
    let issued = Issued::new("guest".to_owned(), u64::MAX, secret, Client::default());
    let login = TargetLogin::new(target.into(), entrance, entropy());
    let mut login = Box::new(login.with_invitations(vec![issued.invited]));
    for part in text.split_inclusive(|byte| *byte == b'\n') {
        match login.handle(&request, part, &heard) {
            Progress::Continue(next, _) => login = next,
            Progress::Refused(_) => return,
            Progress::Admit(_) => panic!("admitted without proof"),
        }
    }
}

/// No script has proven anything: there is nothing to encrypt.
fn sealing() -> Sealing {
    Sealing {
        identity: Identity::fresh(&mut |buffer| buffer.fill(3)),
        new_cipher: |_| panic!("a session is secure without proof"),
        limits: Limits::SPEC,
    }
}

pub(super) fn entropy() -> Entropy {
    Entropy::fresh(&mut |buffer| buffer.fill(1))
}

const ISID: Isid = Isid::random([1, 2, 3], 4);

fn name() -> IscsiName {
    IscsiName::new("iqn.2000-01.example:disk").expect("a name")
}

fn account() -> Account {
    let secret = Secret::new("a secret of the script").expect("long enough");
    Account::one_way(Credentials { name: "alice".into(), secret })
}

pub(super) fn config(account: Option<Account>) -> Config {
    let offer = Offer { max_burst: 65_536, first_burst: 4096, ..Offer::for_long_links() };
    Config {
        initiator: name(),
        isid: ISID,
        target: Some(name()),
        account,
        pinned: None,
        algorithms: Algorithm::ALL.to_vec(),
        offer,
    }
}

struct Simulation {
    machine: Initiator<usize>,
    now: Time,
    stat_sn: u32,
    /// Per command: how many bytes it has room for, and how often it has ended.
    commands: Vec<(usize, u32)>,
    submitted: usize,
    sent: usize,
    faulted: bool,
}

impl Simulation {
    fn log_in() -> Self {
        let machine = Initiator::start(config(None), entropy(), Timeouts::default(), Time::ZERO);
        let mut simulation = Self {
            machine,
            now: Time::ZERO,
            stat_sn: 0,
            commands: Vec::new(),
            submitted: 0,
            sent: 0,
            faulted: false,
        };
        let response = LoginResponse {
            transit: true,
            current_stage: 1,
            next_stage: 3,
            isid: ISID.0,
            tsih: 1,
            exp_cmd_sn: 1,
            max_cmd_sn: 16,
            ..LoginResponse::default()
        };
        let text = Bytes::from_static(b"MaxRecvDataSegmentLength=8192\0InitialR2T=Yes\0");
        simulation.receive(Pdu::with_data(response, text));
        assert!(!simulation.faulted && simulation.machine.has_room());
        simulation.stat_sn = 1;
        simulation.drain();
        simulation.sent = 0;
        simulation
    }

    fn step(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        let control = script.u8()?;
        match control & 7 {
            0 => self.submit(Transfer::Out(Pieces::from(Bytes::from(vec![0; WRITE])))),
            1 => self.submit(Transfer::In(u32::from(control) * 64)),
            2 => self.machine.abort(u32::from(control >> 3)),
            3 if control >> 3 == 7 => self.machine.logout(self.now),
            3 => self.machine.text(Bytes::from_static(b"SendTargets=\0")),
            4 => self.now = self.now + Timeouts::default().idle / 2,
            _ => self.send(control, script)?,
        }
        if self.machine.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.faulted |= self.machine.wake(self.now).is_err();
        }
        self.drain();
        Ok(())
    }

    fn submit(&mut self, transfer: Transfer) {
        if self.commands.len() == COMMANDS_MAX {
            return;
        }
        let (room, out) = match &transfer {
            Transfer::In(most) => (*most as usize, 0),
            Transfer::Out(data) => (0, data.len()),
            Transfer::None => (0, 0),
        };
        let could = self.machine.has_room();
        let command = Command { lun: 0, cdb: [0; 16], transfer, is_ordered: false };
        let taken = self.machine.submit(self.now, command, self.commands.len()).is_ok();
        assert_eq!(could, taken);
        if taken {
            self.commands.push((room, 0));
            self.submitted += out;
        }
        assert!(self.commands.len() <= QUEUE_MAX);
    }

    /// A header as it stands in the script, with few tags, and mostly with the number that is due.
    fn send(&mut self, control: u8, script: &mut Reader<'_>) -> Result<(), Truncated> {
        let mut bhs: [u8; BHS_LEN] = script.array()?;
        if bhs[16] < 0x80 {
            bhs[16..19].fill(0);
        } else {
            bhs[16..20].copy_from_slice(&NO_TAG.to_be_bytes());
        }
        if control & 0x08 == 0 {
            bhs[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
        }
        let data = script.take(usize::from(control >> 4).min(script.rest().len()))?;
        let Ok(header) = Header::parse(&bhs) else { return Ok(()) };
        let uses = match &header {
            Header::DataIn(header) => header.has_status,
            Header::NopIn(header) => header.itt != NO_TAG,
            Header::R2t(_) => false,
            _ => true,
        };
        self.receive(Pdu::with_data(header, Bytes::copy_from_slice(data)));
        self.stat_sn = self.stat_sn.wrapping_add(u32::from(uses));
        Ok(())
    }

    fn receive(&mut self, pdu: Pdu) {
        let mut outbox = Outbox::new();
        outbox.push_pdu(pdu);
        let mut buffer = BytesMut::from(&bytes_of(&mut outbox)[..]);
        self.faulted |= self.machine.receive(self.now, 0, &mut buffer).is_err();
        assert!(!self.faulted || !self.machine.has_room(), "a fault ends the session");
    }

    fn drain(&mut self) {
        while let Some(event) = self.machine.poll() {
            let Event::Completed(which, ended) = event else { continue };
            let (room, times) = &mut self.commands[which];
            *times += 1;
            assert_eq!(*times, 1, "a command ends once");
            let came = ended.map_or(0, |completion| completion.data.len());
            assert!(came <= *room, "more data than asked for");
        }
        let len = self.machine.outbox(0).map_or(0, |outbox| outbox.len());
        self.sent += len;
        self.machine.sent(self.now, 0, len);
        // Each PDU has its header; a script has not enough steps for more than these.
        let headers = BHS_LEN * (1 << 14) + self.submitted / 512 * BHS_LEN;
        assert!(self.sent <= self.submitted + headers, "more sent than there is");
    }

    fn finish(self) {
        let mut commands = self.commands;
        self.machine.unfinished().into_iter().for_each(|which| commands[which].1 += 1);
        assert!(commands.iter().all(|(_, times)| *times == 1), "a command was lost or ended twice");
    }
}

fn bytes_of(outbox: &mut Outbox) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !outbox.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[])];
        outbox.slices(&mut slices);
        bytes.extend_from_slice(&slices[0]);
        let sent = slices[0].len();
        outbox.advance(sent);
    }
    bytes
}
