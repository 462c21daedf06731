//! What holds whatever an initiator sends, as functions a fuzzer can drive.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::{
    Budget, Event, IMMEDIATE_MAX, Joining, Reply, Session, Setup, TargetRecord, TaskId, WINDOW,
};
use crate::iscsi::header::{Header, LoginResponse, TaskResponse};
use crate::iscsi::keys::{Parameters, TaskReporting};
use crate::iscsi::pdu::{Decoder, Frame, Pdu, Pieces};
use crate::iscsi::text::TEXT_MAX;
use crate::reader::{Reader, Truncated};
use crate::scsi::{Residual, Status};
use crate::time::Time;

/// The most connections a script has at a time.
const CONNECTIONS_MAX: usize = 3;

/// Reads `bytes` as a script of PDUs, answers of the front and connections that come and go. For any
/// script: no panic; status numbers have no gap on any connection; MaxCmdSN and ExpCmdSN stay within the
/// window of each other; tasks stay within their bounds; no task runs twice; one that was aborted is told
/// to the front once and to the initiator never; when nothing runs any more, nobody waits for it.
pub fn any_script(bytes: &[u8]) {
    let mut script = Reader::new(bytes);
    let Ok(flags) = script.u8() else { return };
    let mut simulation = Simulation::new(parameters(flags), flags & 0x10 != 0);
    while simulation.step(&mut script).is_ok() {}
    simulation.finish();
}

/// Small limits, so that a short script meets them.
const fn parameters(flags: u8) -> Parameters {
    Parameters {
        header_digest: flags & 1 != 0,
        data_digest: flags & 2 != 0,
        seal: None,
        max_connections: 1,
        initial_r2t: flags & 4 != 0,
        immediate_data: flags & 8 == 0,
        max_recv_data_segment: 8192,
        max_send_data_segment: 512,
        max_burst: 1024,
        first_burst: 16,
        max_outstanding_r2t: 2,
        default_time2wait: 2,
        default_time2retain: 0,
        data_pdu_in_order: true,
        data_sequence_in_order: true,
        error_recovery_level: 0,
        protocol_level: if flags & 0x20 != 0 { 2 } else { 1 },
        task_reporting: TaskReporting::Rfc3720,
        stops_at_failure: flags & 0x40 != 0,
    }
}

/// The initiator's end of a connection.
struct End {
    decoder: Decoder,
    stat_sn: u32,
}

struct Simulation {
    session: Session,
    parameters: Parameters,
    ends: BTreeMap<u16, End>,
    now: Time,
    running: Vec<TaskId>,
    /// Those of them that nobody waits for.
    aborted: Vec<TaskId>,
    /// No command is to be answered now.
    silent: bool,
    exp_cmd_sn: u32,
}

impl Simulation {
    fn new(parameters: Parameters, discovery: bool) -> Self {
        let setup = Setup {
            discovery,
            exp_cmd_sn: 1,
            window: 4,
            window_max: WINDOW,
            unsolicited: Arc::new(Budget::new(64, 32)),
            solicited: 1 << 20,
            text_max: TEXT_MAX,
            ping_after: Duration::from_secs(10),
            ping_patience: Duration::from_secs(10),
        };
        let first = Joining { cid: 0, stat_sn: 7, parameters: &parameters };
        Self {
            session: Session::new(Time::ZERO, &first, setup),
            ends: BTreeMap::from([(0, end(&parameters))]),
            parameters,
            now: Time::ZERO,
            running: Vec::new(),
            aborted: Vec::new(),
            silent: false,
            exp_cmd_sn: 1,
        }
    }

    /// A connection comes, in the place of one with its number if there is one.
    fn join(&mut self, cid: u16) {
        if self.session.has_connection(cid) {
            self.ends.remove(&cid);
            return self.session.replace_connection(self.now, cid, 1);
        }
        if self.session.connections() < CONNECTIONS_MAX {
            let joining = Joining { cid, stat_sn: 7, parameters: &self.parameters };
            let response = LoginResponse { stat_sn: 6, ..LoginResponse::default() };
            self.session.join(self.now, &joining, Pdu::bare(response));
            self.session.outbox(cid).expect("just joined").clear();
            self.ends.insert(cid, end(&self.parameters));
        }
    }

    fn step(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        let control = script.u8()?;
        match control & 7 {
            0 => self.now = self.now + Duration::from_secs(u64::from(control >> 3)),
            1 => self.complete(usize::from(control >> 3)),
            2 => self.session.clear((control & 8 == 0).then_some(0), 1),
            3 if control >> 3 >= 28 => self.join(u16::from(control >> 3) - 28),
            3 if control >> 3 == 9 => self.session.request_logout(self.now, Duration::from_secs(9)),
            _ => self.send(control, script)?,
        }
        if self.now >= self.session.deadline() {
            self.session.handle_timeout(self.now);
        }
        self.act();
        self.check_output();
        assert!(self.session.tasks.in_order() <= WINDOW as usize);
        assert!(self.session.tasks.immediate() < IMMEDIATE_MAX + CONNECTIONS_MAX);
        Ok(())
    }

    /// A header as it stands in the script, except that its CmdSN mostly is the expected one, since a
    /// random one would only ever be ignored.
    fn send(&mut self, control: u8, script: &mut Reader<'_>) -> Result<(), Truncated> {
        let mut bhs: [u8; 48] = script.array()?;
        if control & 0x08 == 0 {
            bhs[24..28].copy_from_slice(&self.exp_cmd_sn.to_be_bytes());
        }
        // Few tags, so that requests meet the tasks they name.
        bhs[16..19].fill(0);
        let data = script.take(usize::from(control >> 4).min(script.rest().len()))?;
        let frame = match Header::parse(&bhs) {
            Err(unknown) => Frame::Flawed { bhs, flaw: crate::iscsi::pdu::Flaw::Opcode(unknown.0) },
            Ok(header) => Frame::Pdu(Pdu::with_data(header, Bytes::copy_from_slice(data))),
        };
        // Most come by the first connection that there is.
        let others = self.ends.len().max(1) * usize::from(bhs[47] & 0x40 != 0);
        let which = usize::from(bhs[47] & 3).min(others.saturating_sub(1));
        if let Some(&cid) = self.ends.keys().nth(which) {
            self.session.handle(self.now, cid, frame);
        }
        Ok(())
    }

    fn complete(&mut self, which: usize) {
        if which < self.running.len() {
            let task = self.running.swap_remove(which);
            let data = Pieces::from(Bytes::from(vec![0; which * 700]));
            self.silent = self.aborted.contains(&task);
            self.aborted.retain(|aborted| *aborted != task);
            let status = if which % 3 == 2 { Status::CheckCondition } else { Status::Good };
            let sense = Bytes::from(vec![0; if which % 3 == 2 { 18 } else { 0 }]);
            self.session.complete(task, Reply { status, data, sense, residual: Residual::None });
            self.check_output();
            self.silent = false;
        }
    }

    /// The front ends what it has.
    fn finish(&mut self) {
        while !self.running.is_empty() {
            self.complete(0);
            self.act();
        }
        assert!(self.aborted.is_empty());
        assert!(!self.session.pending.is_waiting_for_tasks(), "somebody waits for nothing");
    }

    fn act(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Command(command) => {
                    let asked = u32::from(command.cdb[0]) * 512;
                    if let Some(data) = self.session.want_data(command.task, asked) {
                        self.run(command.task, &data);
                    }
                }
                Event::Execute { command, data } => self.run(command.task, &data),
                Event::Abort(task) => {
                    assert!(self.running.contains(&task) && !self.aborted.contains(&task));
                    self.aborted.push(task);
                }
                Event::Manage { request, .. } => {
                    self.session.managed(request, TaskResponse::COMPLETE);
                }
                Event::SendTargets { cid, .. } => self.session.targets(cid, &[target()]),
                Event::CloseConnection(cid) => {
                    self.check_output();
                    self.session.remove(self.now, cid);
                    self.ends.remove(&cid);
                }
                Event::Cleared { ticket } => assert_eq!(ticket, 1),
                Event::CommandsCleared { .. } => {}
                Event::Close(_) => {}
            }
        }
    }

    fn run(&mut self, task: TaskId, data: &[Bytes]) {
        assert!(!self.running.contains(&task), "a task runs once");
        assert!(data.iter().map(Bytes::len).sum::<usize>() <= 255 * 512);
        self.running.push(task);
    }

    fn check_output(&mut self) {
        for (&cid, end) in &mut self.ends {
            let mut buffer = BytesMut::new();
            let outbox = self.session.outbox(cid).expect("it has not been removed");
            while !outbox.is_empty() {
                let mut slices = [std::io::IoSlice::new(&[])];
                outbox.slices(&mut slices);
                buffer.extend_from_slice(&slices[0]);
                let sent = slices[0].len();
                outbox.advance(sent);
            }
            while let Some(frame) = end.decoder.decode(&mut buffer).expect("our own output") {
                let Frame::Pdu(pdu) = frame else { panic!("our own output is flawed: {frame:?}") };
                let answer = matches!(pdu.header, Header::ScsiResponse(_) | Header::DataIn(_));
                assert!(!(answer && self.silent), "an aborted command is answered: {pdu:?}");
                self.exp_cmd_sn = end.check_numbers(&pdu.header);
            }
            assert!(buffer.is_empty());
        }
    }
}

fn target() -> TargetRecord {
    TargetRecord {
        name: "iqn.2000-01.example:disk".to_owned(),
        portals: vec![(([127, 0, 0, 1], 3260).into(), 1)],
    }
}

fn end(parameters: &Parameters) -> End {
    let mut decoder = Decoder::new();
    decoder.set_digests(parameters.header_digest, parameters.data_digest);
    decoder.set_data_max(1 << 24);
    End { decoder, stat_sn: 7 }
}

impl End {
    /// RFC 7143, 4.2.2: which PDUs use a status number up, and the window they show. Gives ExpCmdSN.
    fn check_numbers(&mut self, header: &Header) -> u32 {
        let (uses, stat_sn, exp, max) = match header {
            Header::NopIn(h) => (h.itt != u32::MAX, h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn),
            Header::ScsiResponse(h) => (true, h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn),
            Header::TaskManagementResponse(h) => (true, h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn),
            Header::TextResponse(h) => (true, h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn),
            Header::LogoutResponse(h) => (true, h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn),
            Header::AsyncMessage(h) => (true, h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn),
            Header::Reject(h) => (true, h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn),
            Header::R2t(h) => (false, h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn),
            Header::DataIn(h) if h.has_status => (true, h.stat_sn, h.exp_cmd_sn, h.max_cmd_sn),
            Header::DataIn(h) => (false, self.stat_sn, h.exp_cmd_sn, h.max_cmd_sn),
            other => panic!("a target does not send {}", other.name()),
        };
        assert_eq!(stat_sn, self.stat_sn, "{header:?}");
        self.stat_sn = self.stat_sn.wrapping_add(u32::from(uses));
        assert!(max.wrapping_sub(exp).wrapping_add(1) <= WINDOW);
        exp
    }
}
