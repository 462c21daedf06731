use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use std::io::IoSlice;
use std::time::Duration;

use super::data_in::Residual;
use super::*;
use crate::iscsi::header::{
    AsyncEvent, DataIn, DataOut, Header, LogoutReason, LogoutRequest, LogoutResponseCode, NO_TAG,
    NopOut, R2t, RejectReason, ScsiCommand, ScsiResponse, TaskManagementRequest, TaskResponse,
    TextRequest,
};
use crate::iscsi::keys::{Offer, Parameters, TaskReporting};
use crate::iscsi::pdu::{Decoder, Flaw, Frame, Pdu};
use crate::time::Time;

fn parameters() -> Parameters {
    Parameters {
        header_digest: false,
        data_digest: false,
        seal: None,
        max_connections: 1,
        initial_r2t: false,
        immediate_data: true,
        max_recv_data_segment: Offer::long_haul().max_recv_data_segment,
        max_send_data_segment: 8192,
        max_burst: 16384,
        first_burst: 4096,
        max_outstanding_r2t: 2,
        default_time2wait: 2,
        default_time2retain: 0,
        data_pdu_in_order: true,
        data_sequence_in_order: true,
        error_recovery_level: 0,
        protocol_level: 1,
        task_reporting: TaskReporting::Rfc3720,
    }
}

/// A session and the initiator's end of it.
struct Pair {
    session: Session,
    decoder: Decoder,
    cmd_sn: u32,
    now: Time,
}

impl Pair {
    fn new(parameters: Parameters) -> Self {
        Self::with(parameters, false)
    }

    fn with(parameters: Parameters, discovery: bool) -> Self {
        Self::within(parameters, discovery, Arc::new(Budget::new(1 << 20, 0)), WINDOW)
    }

    /// A session that shares `budget` and begins with a window of `window`.
    fn within(parameters: Parameters, discovery: bool, budget: Arc<Budget>, window: u32) -> Self {
        let setup = Setup {
            discovery,
            cid: 3,
            exp_cmd_sn: u32::MAX,
            stat_sn: 100,
            window,
            window_max: WINDOW,
            unsolicited: budget,
            solicited: 1 << 25,
            ping_after: Duration::from_secs(15),
            ping_patience: Duration::from_secs(30),
        };
        let mut decoder = Decoder::new();
        decoder.set_data_max(1 << 24);
        let session = Session::new(Time::ZERO, parameters, &setup);
        Self { session, decoder, cmd_sn: u32::MAX, now: Time::ZERO }
    }

    fn send(&mut self, header: impl Into<Header>, data: &[u8]) {
        let pdu = Pdu::with_data(header, Bytes::copy_from_slice(data));
        self.session.handle(self.now, Frame::Pdu(pdu));
    }

    fn next_cmd_sn(&mut self) -> u32 {
        let cmd_sn = self.cmd_sn;
        self.cmd_sn = cmd_sn.wrapping_add(1);
        cmd_sn
    }

    fn read(&mut self, itt: u32, expected_len: u32) {
        let cmd_sn = self.next_cmd_sn();
        let is_final = true;
        let read = true;
        self.send(ScsiCommand { is_final, read, itt, expected_len, cmd_sn, ..<_>::default() }, &[]);
    }

    fn write(&mut self, itt: u32, expected_len: u32, immediate: &[u8], is_final: bool) {
        let cmd_sn = self.next_cmd_sn();
        let write = true;
        let command = ScsiCommand { is_final, write, itt, expected_len, cmd_sn, ..<_>::default() };
        self.send(command, immediate);
    }

    fn data_out(&mut self, itt: u32, ttt: u32, data_sn: u32, offset: u32, data: &[u8], last: bool) {
        let header = DataOut {
            is_final: last,
            itt,
            ttt,
            data_sn,
            buffer_offset: offset,
            ..DataOut::default()
        };
        self.send(header, data);
    }

    fn manage(&mut self, function: TaskFunction, referenced_tag: u32) {
        let request = TaskManagementRequest {
            immediate: true,
            function,
            itt: 0x900,
            referenced_tag,
            cmd_sn: self.cmd_sn,
            ref_cmd_sn: self.cmd_sn.wrapping_sub(1),
            ..TaskManagementRequest::default()
        };
        self.send(request, &[]);
    }

    /// The next event, which has to be a command.
    fn command(&mut self) -> Command {
        match self.session.poll_event() {
            Some(Event::Command(command)) => command,
            other => panic!("no command: {other:?}"),
        }
    }

    /// The next event, which has to tell that a task was aborted.
    fn expect_abort(&mut self, task: TaskId) {
        match self.session.poll_event() {
            Some(Event::Abort(aborted)) => assert_eq!(aborted, task),
            other => panic!("no abort: {other:?}"),
        }
    }

    /// How many commands the answer to a small read allows from then on.
    fn width_after_a_read(&mut self) -> u32 {
        self.read(1, 0);
        let task = self.command().task;
        self.session.want_data(task, 0);
        self.reply(task, 0);
        let answer: ScsiResponse = self.one();
        answer.max_cmd_sn.wrapping_sub(answer.exp_cmd_sn).wrapping_add(1)
    }

    fn reply(&mut self, task: TaskId, len: usize) {
        let data = Pieces::from(Bytes::from((0..len).map(|i| i as u8).collect::<Vec<_>>()));
        self.session.complete(task, Reply { status: Status::Good, data, sense: Bytes::new() });
    }

    /// What the target has sent since the last look.
    fn received(&mut self) -> Vec<Pdu> {
        let outbox = self.session.outbox();
        let mut buffer = BytesMut::new();
        while !outbox.is_empty() {
            let mut slices = [IoSlice::new(&[])];
            outbox.slices(&mut slices);
            let len = slices[0].len();
            buffer.extend_from_slice(&slices[0]);
            outbox.advance(len);
        }
        let mut pdus = Vec::new();
        while let Some(frame) = self.decoder.decode(&mut buffer).unwrap() {
            let Frame::Pdu(pdu) = frame else { panic!("flawed") };
            pdus.push(pdu);
        }
        pdus
    }

    fn one<T: TryFrom<Header>>(&mut self) -> T {
        let mut pdus = self.received();
        assert_eq!(pdus.len(), 1, "{pdus:?}");
        let header = pdus.remove(0).header;
        T::try_from(header).unwrap_or_else(|_| panic!("another PDU: {header:?}"))
    }

    fn reject_reason(&mut self) -> RejectReason {
        self.one::<crate::iscsi::header::Reject>().reason
    }
}

macro_rules! from_header {
    ($($name:ident),*) => {$(
        impl TryFrom<Header> for crate::iscsi::header::$name {
            type Error = Header;

            fn try_from(header: Header) -> Result<Self, Header> {
                if let Header::$name(inner) = header { Ok(inner) } else { Err(header) }
            }
        }
    )*};
}
from_header!(
    AsyncMessage,
    DataIn,
    LogoutResponse,
    NopIn,
    R2t,
    Reject,
    ScsiResponse,
    TaskManagementResponse,
    TextResponse
);

/// ABORTED COMMAND with the given code, as fixed sense behind its length.
fn aborted_with(pdu: &Pdu, code: u8, qualifier: u8) -> bool {
    pdu.data[2 + 2] == 0x0b && pdu.data[2 + 12] == code && pdu.data[2 + 13] == qualifier
}

#[test]
fn a_read_is_answered_with_data_and_status_in_one() {
    let mut pair = Pair::new(parameters());
    pair.read(1, 512);
    let command = pair.command();
    assert_eq!(pair.session.want_data(command.task, 0), Some(vec![]));
    pair.reply(command.task, 512);
    let answer: DataIn = pair.one();
    assert!(answer.is_final && answer.has_status && !answer.overflow && !answer.underflow);
    assert_eq!((answer.stat_sn, answer.exp_cmd_sn, answer.residual), (100, 0, 0));
    assert_eq!(answer.max_cmd_sn, WINDOW - 1, "its place is free again");
    assert!(!pair.session.is_busy());
}

/// RFC 7143, 13.12 and 13.13.
#[test]
fn long_data_are_split_by_segment_and_burst() {
    let mut pair = Pair::new(Parameters { max_burst: 12_000, ..parameters() });
    pair.read(1, 30_000);
    let task = pair.command().task;
    pair.session.want_data(task, 0);
    pair.reply(task, 30_000);
    let pdus = pair.received();
    let mut offset = 0;
    for (i, pdu) in pdus.iter().enumerate() {
        let Header::DataIn(header) = pdu.header else { panic!() };
        let last = i + 1 == pdus.len();
        assert_eq!((header.data_sn, header.buffer_offset), (i as u32, offset));
        offset += pdu.data.len() as u32;
        assert_eq!(header.is_final, offset.is_multiple_of(12_000) || last);
        assert_eq!(header.has_status, last);
        assert!(pdu.data.iter().zip(header.buffer_offset..).all(|(byte, at)| *byte == at as u8));
    }
    let lens: Vec<_> = pdus.iter().map(|pdu| pdu.data.len()).collect();
    assert_eq!(lens, [8192, 3808, 8192, 3808, 6000]);
}

#[test]
fn immediate_data_run_at_once() {
    let mut pair = Pair::new(parameters());
    pair.write(1, 512, &[7; 512], true);
    let command = pair.command();
    assert_eq!(command.announced, 512);
    assert_eq!(pair.session.want_data(command.task, 512).unwrap(), [vec![7; 512]]);
    pair.reply(command.task, 0);
    let response: ScsiResponse = pair.one();
    assert_eq!((response.status, response.residual, response.exp_data_sn), (0, 0, 0));
}

/// RFC 7143, 11.8: bursts of MaxBurstLength, MaxOutstandingR2T at a time, in order of offset; and the
/// initiator may send several at once.
#[test]
fn the_rest_is_asked_for() {
    let mut pair = Pair::new(parameters());
    let data: Vec<u8> = (0..50_000u32).map(|i| i as u8).collect();
    pair.write(1, 50_000, &data[..1000], false);
    let task = pair.command().task;
    assert_eq!(pair.session.want_data(task, 50_000), None);
    let mut r2ts: Vec<R2t> = headers(pair.received());
    pair.data_out(1, NO_TAG, 0, 1000, &data[1000..4096], true);
    let mut asked = Vec::new();
    while !r2ts.is_empty() {
        assert!(r2ts.len() <= 2);
        let r2t = r2ts.remove(0);
        assert_eq!(r2t.r2t_sn as usize, asked.len());
        assert_eq!(r2t.stat_sn, 100, "an R2T uses no status number up");
        asked.push((r2t.buffer_offset, r2t.desired_len));
        let (from, len) = (r2t.buffer_offset as usize, r2t.desired_len as usize);
        let middle = from + len / 2;
        pair.data_out(1, r2t.ttt, 0, from as u32, &data[from..middle], false);
        pair.data_out(1, r2t.ttt, 1, middle as u32, &data[middle..from + len], true);
        r2ts.extend(headers::<R2t>(pair.received()));
    }
    assert_eq!(asked, [(4096, 16384), (20480, 16384), (36864, 13136)]);
    let Some(Event::Execute { data: got, .. }) = pair.session.poll_event() else { panic!() };
    assert_eq!(got.concat(), data);
    pair.reply(task, 0);
    assert_eq!(pair.one::<ScsiResponse>().exp_data_sn, 3);
}

fn headers<T: TryFrom<Header>>(pdus: Vec<Pdu>) -> Vec<T> {
    pdus.into_iter().map(|pdu| T::try_from(pdu.header).ok().expect("another PDU")).collect()
}

/// RFC 7143, 11.4.5 and 11.3.4, for writes.
#[test]
fn a_write_never_fetches_more_than_announced_nor_more_than_wanted() {
    for (expected, asked, fetched) in [(512, 1024, 512), (1024, 512, 512), (0, 512, 0)] {
        let mut pair = Pair::new(parameters());
        pair.write(1, expected, &[], true);
        let task = pair.command().task;
        if pair.session.want_data(task, asked).is_none() {
            let r2t: R2t = pair.one();
            assert_eq!(r2t.desired_len, fetched);
            pair.data_out(1, r2t.ttt, 0, 0, &vec![1; fetched as usize], true);
            let Some(Event::Execute { data, .. }) = pair.session.poll_event() else { panic!() };
            assert_eq!(data.concat().len(), fetched as usize);
        } else {
            assert_eq!(fetched, 0);
        }
        pair.reply(task, 0);
        let response: ScsiResponse = pair.one();
        assert_eq!(response.overflow, asked > expected);
        assert_eq!(response.underflow, asked < expected);
        assert_eq!(response.residual, asked.abs_diff(expected));
    }
}

/// Unsolicited data a command does not want are drained before it runs, and dropped.
#[test]
fn unwanted_data_are_drained() {
    let mut pair = Pair::new(parameters());
    pair.write(1, 4096, &[1; 100], false);
    let task = pair.command().task;
    assert_eq!(pair.session.want_data(task, 0), None);
    assert!(pair.session.poll_event().is_none(), "the initiator still sends");
    pair.data_out(1, NO_TAG, 0, 100, &[1; 3996], true);
    let Some(Event::Execute { data, .. }) = pair.session.poll_event() else { panic!() };
    assert!(data.is_empty());
}

/// RFC 7143, 11.4.7.2: what an initiator does wrong fails the task, when it has ended sending.
#[test]
fn faults_of_transfers_fail_the_task() {
    type Case = (&'static str, fn(&mut Pair), (u8, u8));
    let cases: [Case; 6] = [
        (
            "a gap in DataSN",
            |p| {
                p.data_out(1, NO_TAG, 1, 0, &[0; 2048], false);
                assert!(p.received().is_empty(), "answered before the data have ended");
                p.data_out(1, NO_TAG, 2, 2048, &[0; 2048], true);
            },
            (0x47, 0x05),
        ),
        (
            "an offset that does not follow",
            |p| {
                p.data_out(1, NO_TAG, 0, 512, &[0; 2048], true);
            },
            (0x0c, 0x0d),
        ),
        (
            "more than the first burst",
            |p| {
                p.data_out(1, NO_TAG, 0, 0, &[0; 4097], true);
            },
            (0x0c, 0x0d),
        ),
        (
            "less than the first burst",
            |p| {
                p.data_out(1, NO_TAG, 0, 0, &[0; 4095], true);
            },
            (0x0c, 0x0d),
        ),
        (
            "an end that does not come",
            |p| {
                p.data_out(1, NO_TAG, 0, 0, &[0; 4096], false);
                p.data_out(1, NO_TAG, 1, 4096, &[], true);
            },
            (0x0c, 0x0d),
        ),
        (
            "a tag nobody gave",
            |p| {
                p.data_out(1, 77, 0, 0, &[0; 512], true);
                p.data_out(1, NO_TAG, 0, 0, &[0; 4096], true);
            },
            (0x0c, 0x0c),
        ),
    ];
    for (name, act, (code, qualifier)) in cases {
        let mut pair = Pair::new(parameters());
        pair.write(1, 10_000, &[], false);
        let command = pair.command();
        act(&mut pair);
        let pdus = pair.received();
        assert!(pdus.len() == 1 && aborted_with(&pdus[0], code, qualifier), "{name}: {pdus:?}");
        assert_eq!(pair.session.want_data(command.task, 10_000), None, "{name}");
        assert!(!pair.session.is_busy());
    }
}

#[test]
fn what_was_not_agreed_is_refused() {
    let mut pair =
        Pair::new(Parameters { initial_r2t: true, immediate_data: false, ..parameters() });
    pair.write(1, 512, &[1; 512], true);
    let pdus = pair.received();
    assert!(aborted_with(&pdus[0], 0x0c, 0x0c), "immediate data under ImmediateData=No");
    pair.write(2, 512, &[], false);
    assert!(pair.received().is_empty());
    pair.data_out(2, NO_TAG, 0, 0, &[1; 512], true);
    assert!(aborted_with(&pair.received()[0], 0x0c, 0x0c), "unsolicited under InitialR2T=Yes");
    assert!(pair.session.poll_event().is_none());
}

/// RFC 7143, 7.8: a damaged Data-Out is rejected and its task fails.
#[test]
fn damaged_data_fail_the_task() {
    let mut pair = Pair::new(parameters());
    pair.write(1, 4096, &[], false);
    pair.command();
    let header = DataOut { is_final: true, itt: 1, ttt: NO_TAG, ..DataOut::default() };
    let bhs = header.emit(<_>::default());
    pair.session.handle(pair.now, Frame::Flawed { bhs, flaw: Flaw::DataDigest });
    let pdus = pair.received();
    assert!(
        matches!(pdus[0].header, Header::Reject(r) if r.reason == RejectReason::DATA_DIGEST_ERROR)
    );
    assert_eq!(pdus[0].data, bhs[..]);
    assert!(aborted_with(&pdus[1], 0x47, 0x05));
}

#[test]
fn a_damaged_command_fails_and_does_not_stop_the_next() {
    let mut pair = Pair::new(parameters());
    let cmd_sn = pair.next_cmd_sn();
    let command = ScsiCommand {
        is_final: true,
        write: true,
        itt: 1,
        expected_len: 4,
        cmd_sn,
        ..<_>::default()
    };
    let bhs = command.emit(<_>::default());
    pair.session.handle(pair.now, Frame::Flawed { bhs, flaw: Flaw::DataDigest });
    let pdus = pair.received();
    assert!(aborted_with(&pdus[1], 0x47, 0x05));
    pair.read(2, 0);
    pair.command();
}

/// RFC 7143, 4.2.2.1.
#[test]
fn commands_are_delivered_in_order_and_ignored_outside_the_window() {
    let mut pair = Pair::new(parameters());
    let (first, second) = (pair.next_cmd_sn(), pair.next_cmd_sn());
    let command = |itt, cmd_sn| ScsiCommand { is_final: true, itt, cmd_sn, ..<_>::default() };
    pair.send(command(2, second), &[]);
    pair.send(command(9, first.wrapping_sub(1)), &[]);
    pair.send(command(9, first.wrapping_add(WINDOW)), &[]);
    assert!(pair.session.poll_event().is_none());
    pair.send(command(1, first), &[]);
    let (one, two) = (pair.command(), pair.command());
    for task in [one.task, two.task] {
        pair.session.want_data(task, 0);
        pair.reply(task, 0);
    }
    let itts: Vec<_> = headers::<ScsiResponse>(pair.received()).iter().map(|r| r.itt).collect();
    assert_eq!(itts, [1, 2]);
    assert!(pair.received().is_empty(), "what lies outside is not even rejected");
}

#[test]
fn the_window_closes_when_all_places_are_taken() {
    let mut pair = Pair::new(parameters());
    for itt in 0..WINDOW {
        pair.read(itt, 0);
        let task = pair.command().task;
        pair.session.want_data(task, 0);
    }
    pair.send(NopOut { immediate: true, itt: 0x800, ttt: NO_TAG, ..<_>::default() }, &[]);
    let nop: crate::iscsi::header::NopIn = pair.one();
    assert_eq!(nop.max_cmd_sn, nop.exp_cmd_sn.wrapping_sub(1));
    pair.read(WINDOW, 0);
    assert!(pair.session.poll_event().is_none());
}

#[test]
fn immediate_commands_are_bounded() {
    let mut pair = Pair::new(parameters());
    for itt in 0..=IMMEDIATE_MAX as u32 {
        let command = ScsiCommand {
            immediate: true,
            is_final: true,
            itt,
            cmd_sn: pair.cmd_sn,
            ..<_>::default()
        };
        pair.send(command, &[]);
    }
    assert_eq!(pair.reject_reason(), RejectReason::IMMEDIATE_COMMAND_REJECT);
}

#[test]
fn a_tag_in_use_is_rejected() {
    let mut pair = Pair::new(parameters());
    pair.read(1, 0);
    pair.read(1, 0);
    assert_eq!(pair.reject_reason(), RejectReason::TASK_IN_PROGRESS);
}

/// RFC 7143, 11.5.5: the response comes when the task is dead, and the task's own never.
#[test]
fn an_abort_waits_for_what_runs() {
    let mut pair = Pair::new(parameters());
    pair.read(1, 512);
    let task = pair.command().task;
    pair.session.want_data(task, 0);
    pair.manage(TaskFunction::ABORT_TASK, 1);
    assert!(pair.received().is_empty());
    pair.reply(task, 512);
    let answer: crate::iscsi::header::TaskManagementResponse = pair.one();
    assert_eq!((answer.response, answer.itt), (TaskResponse::COMPLETE, 0x900));
}

#[test]
fn an_aborted_write_drains() {
    let mut pair = Pair::new(parameters());
    pair.write(1, 4096, &[], false);
    let task = pair.command().task;
    pair.session.want_data(task, 4096);
    pair.manage(TaskFunction::ABORT_TASK, 1);
    let _: crate::iscsi::header::TaskManagementResponse = pair.one();
    pair.data_out(1, NO_TAG, 0, 0, &[0; 4096], true);
    assert!(pair.received().is_empty() && pair.session.poll_event().is_none());
}

#[test]
fn aborting_what_is_not_there() {
    let mut pair = Pair::new(parameters());
    let mut request = TaskManagementRequest {
        immediate: true,
        function: TaskFunction::ABORT_TASK,
        itt: 9,
        referenced_tag: 5,
        cmd_sn: pair.cmd_sn,
        ref_cmd_sn: pair.cmd_sn.wrapping_sub(5),
        ..TaskManagementRequest::default()
    };
    pair.send(request, &[]);
    let answer: crate::iscsi::header::TaskManagementResponse = pair.one();
    assert_eq!(answer.response, TaskResponse::TASK_DOES_NOT_EXIST);
    // A command lost on its way counts as received, and the next one is not held up by it.
    request.ref_cmd_sn = pair.next_cmd_sn();
    request.cmd_sn = pair.cmd_sn;
    pair.send(request, &[]);
    let answer: crate::iscsi::header::TaskManagementResponse = pair.one();
    assert_eq!(answer.response, TaskResponse::COMPLETE);
    pair.read(6, 0);
    pair.command();
}

#[test]
fn a_unit_reset_ends_its_tasks_and_waits_for_the_front() {
    let mut pair = Pair::new(parameters());
    pair.read(1, 0);
    let task = pair.command().task;
    pair.session.want_data(task, 0);
    pair.manage(TaskFunction::LOGICAL_UNIT_RESET, NO_TAG);
    pair.expect_abort(task);
    let Some(Event::Manage { request, lun, .. }) = pair.session.poll_event() else { panic!() };
    assert_eq!(lun, [0; 8]);
    pair.session.managed(request, TaskResponse::COMPLETE);
    assert!(pair.received().is_empty());
    pair.reply(task, 0);
    let _: crate::iscsi::header::TaskManagementResponse = pair.one();
}

#[test]
fn functions_that_are_refused() {
    let cases = [
        (TaskFunction::CLEAR_ACA, 1, TaskResponse::NOT_SUPPORTED),
        (TaskFunction::TASK_REASSIGN, 1, TaskResponse::REASSIGNMENT_NOT_SUPPORTED),
        (TaskFunction::QUERY_TASK, 1, TaskResponse::NOT_SUPPORTED),
        (TaskFunction::QUERY_TASK, 2, TaskResponse::SUCCEEDED),
        (TaskFunction::QUERY_TASK_SET, 2, TaskResponse::SUCCEEDED),
        (TaskFunction::QUERY_ASYNCHRONOUS_EVENT, 2, TaskResponse::COMPLETE),
        (TaskFunction(0x55), 2, TaskResponse::NOT_SUPPORTED),
    ];
    for (function, protocol_level, response) in cases {
        let mut pair = Pair::new(Parameters { protocol_level, ..parameters() });
        pair.read(1, 0);
        pair.manage(function, 1);
        let answer: crate::iscsi::header::TaskManagementResponse = pair.one();
        assert_eq!(answer.response, response, "{function:?} at level {protocol_level}");
    }
}

#[test]
fn another_session_clears_a_unit() {
    let mut pair = Pair::new(parameters());
    pair.read(1, 0);
    let task = pair.command().task;
    pair.session.want_data(task, 0);
    pair.session.clear(Some(0), 42);
    pair.expect_abort(task);
    pair.session.clear(Some(0), 43);
    assert!(pair.session.poll_event().is_none(), "it is told once");
    pair.reply(task, 0);
    assert!(matches!(pair.session.poll_event(), Some(Event::Cleared { ticket: 42 })));
    assert!(matches!(pair.session.poll_event(), Some(Event::Cleared { ticket: 43 })));
    assert!(pair.received().is_empty());
}

/// RFC 7143, 11.18 and 11.19.
#[test]
fn a_ping_is_echoed_as_far_as_the_initiator_takes_it() {
    let mut pair = Pair::new(Parameters { max_send_data_segment: 512, ..parameters() });
    pair.send(NopOut { immediate: true, itt: 5, ttt: NO_TAG, ..<_>::default() }, &[3; 600]);
    let pdus = pair.received();
    let Header::NopIn(nop) = pdus[0].header else { panic!() };
    assert_eq!((nop.itt, nop.ttt, nop.stat_sn, pdus[0].data.len()), (5, NO_TAG, 100, 512));
}

#[test]
fn silence_is_met_with_a_ping_and_then_the_end() {
    let mut pair = Pair::new(parameters());
    pair.session.handle_timeout(pair.session.deadline());
    let nop: crate::iscsi::header::NopIn = pair.one();
    assert_eq!((nop.itt, nop.stat_sn), (NO_TAG, 100));
    // Any byte is a sign of life.
    pair.now = pair.session.deadline();
    pair.session.heard(pair.now);
    pair.session.handle_timeout(pair.now);
    assert!(pair.session.poll_event().is_none());
    pair.session.handle_timeout(pair.session.deadline());
    pair.session.handle_timeout(pair.session.deadline());
    assert!(matches!(pair.session.poll_event(), Some(Event::Close(Ending::Silent))));
    pair.send(NopOut { immediate: true, itt: 5, ttt: NO_TAG, ..<_>::default() }, &[]);
    let nop: crate::iscsi::header::NopIn = pair.one();
    assert_eq!(nop.stat_sn, 100, "a ping used no number up");
}

fn logout(reason: LogoutReason, cid: u16) -> LogoutRequest {
    LogoutRequest { immediate: true, reason, cid, itt: 8, ..LogoutRequest::default() }
}

#[test]
fn logouts() {
    use LogoutResponseCode as Code;
    let cases = [
        (LogoutReason::CLOSE_SESSION, 0, Code::CLOSED),
        (LogoutReason::CLOSE_CONNECTION, 3, Code::CLOSED),
        (LogoutReason::CLOSE_CONNECTION, 4, Code::CID_NOT_FOUND),
        (LogoutReason::REMOVE_FOR_RECOVERY, 3, Code::RECOVERY_NOT_SUPPORTED),
    ];
    for (reason, cid, code) in cases {
        let mut pair = Pair::new(parameters());
        pair.send(logout(reason, cid), &[]);
        assert_eq!(pair.one::<crate::iscsi::header::LogoutResponse>().response, code);
        let closed = matches!(pair.session.poll_event(), Some(Event::Close(Ending::Logout)));
        assert_eq!(closed, code == Code::CLOSED);
    }
}

/// RFC 7143, 11.15: the Logout Response is the last PDU of its connection.
#[test]
fn a_logout_waits_for_what_runs() {
    let mut pair = Pair::new(parameters());
    pair.read(1, 512);
    let task = pair.command().task;
    pair.session.want_data(task, 0);
    pair.send(logout(LogoutReason::CLOSE_SESSION, 0), &[]);
    assert!(pair.received().is_empty());
    pair.expect_abort(task);
    pair.reply(task, 512);
    let _: crate::iscsi::header::LogoutResponse = pair.one();
    pair.read(2, 512);
    assert!(matches!(pair.session.poll_event(), Some(Event::Close(Ending::Logout))));
    assert!(pair.session.poll_event().is_none() && pair.received().is_empty());
}

#[test]
fn a_logout_that_was_asked_for_becomes_overdue() {
    let mut pair = Pair::new(parameters());
    pair.session.request_logout(pair.now, Duration::from_secs(5));
    let message: crate::iscsi::header::AsyncMessage = pair.one();
    assert_eq!((message.event, message.parameter3), (AsyncEvent::LOGOUT_REQUEST, 5));
    pair.session.handle_timeout(pair.now + Duration::from_secs(5));
    assert!(matches!(pair.session.poll_event(), Some(Event::Close(Ending::LogoutOverdue))));
}

#[test]
fn a_discovery_session_only_discovers() {
    let mut pair = Pair::with(parameters(), true);
    pair.read(1, 0);
    assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR);
    pair.manage(TaskFunction::ABORT_TASK, 1);
    assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR);
    pair.send(NopOut { immediate: true, itt: 5, ttt: NO_TAG, ..<_>::default() }, &[]);
    let _: crate::iscsi::header::NopIn = pair.one();
}

fn text(pair: &mut Pair, ttt: u32, data: &[u8]) {
    let cmd_sn = pair.next_cmd_sn();
    pair.send(TextRequest { is_final: true, itt: 4, ttt, cmd_sn, ..<_>::default() }, data);
}

/// RFC 7143, 11.11 and Appendix C: an answer longer than a segment comes in several, by C and a tag.
#[test]
fn send_targets_in_segments() {
    let mut pair = Pair::with(Parameters { max_send_data_segment: 64, ..parameters() }, true);
    text(&mut pair, NO_TAG, b"SendTargets=All\0");
    assert!(matches!(pair.session.poll_event(), Some(Event::SendTargets(Selection::All))));
    pair.session.targets(&[TargetRecord {
        name: "iqn.2000-01.example:disk".to_owned(),
        portals: vec![
            ("192.0.2.7:3260".parse().unwrap(), 1),
            ("[2001:db8::1]:3261".parse().unwrap(), 2),
        ],
    }]);
    let mut answer = Vec::new();
    loop {
        let pdu = pair.received().remove(0);
        let Header::TextResponse(header) = pdu.header else { panic!() };
        assert_eq!(header.is_final, header.ttt == NO_TAG);
        assert_eq!(header.continues, !header.is_final);
        assert!(pdu.data.len() <= 64);
        answer.extend_from_slice(&pdu.data);
        if header.is_final {
            break;
        }
        text(&mut pair, header.ttt, b"");
    }
    let expected = "TargetName=iqn.2000-01.example:disk\0TargetAddress=192.0.2.7:3260,1\0\
                    TargetAddress=[2001:db8::1]:3261,2\0";
    assert_eq!(answer, expected.as_bytes());
}

#[test]
fn text_in_a_normal_session() {
    let mut pair = Pair::new(parameters());
    text(
        &mut pair,
        NO_TAG,
        b"SendTargets=All\0X-other=1\0MaxRecvDataSegmentLength=1024\0MaxBurstLength=512\0",
    );
    let pdus = pair.received();
    let expected = "SendTargets=Reject\0X-other=NotUnderstood\0MaxBurstLength=Reject\0";
    assert_eq!(pdus[0].data, expected);
    pair.read(1, 2048);
    let task = pair.command().task;
    pair.session.want_data(task, 0);
    pair.reply(task, 2048);
    assert_eq!(pair.received().len(), 2, "the segment declared anew is in force");
    text(&mut pair, 99, b"");
    assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR);
}

/// SAM-5, 8.6.
#[test]
fn an_ordered_command_is_a_barrier() {
    let mut pair = Pair::new(parameters());
    let mut itt = 0;
    let mut send = |pair: &mut Pair, attribute| {
        itt += 1;
        let cmd_sn = pair.next_cmd_sn();
        pair.send(ScsiCommand { is_final: true, itt, cmd_sn, attribute, ..<_>::default() }, &[]);
    };
    send(&mut pair, TaskAttribute::SIMPLE);
    send(&mut pair, TaskAttribute::ORDERED);
    send(&mut pair, TaskAttribute::SIMPLE);
    send(&mut pair, TaskAttribute::HEAD_OF_QUEUE);
    let (simple, head) = (pair.command(), pair.command());
    assert_eq!(head.attribute, TaskAttribute::HEAD_OF_QUEUE);
    assert!(pair.session.poll_event().is_none());
    for before in [simple, head] {
        pair.session.want_data(before.task, 0);
        pair.reply(before.task, 0);
    }
    let ordered = pair.command();
    assert_eq!(ordered.attribute, TaskAttribute::ORDERED);
    assert!(pair.session.poll_event().is_none());
    pair.manage(TaskFunction::ABORT_TASK, 2);
    assert_eq!(pair.command().attribute, TaskAttribute::SIMPLE, "the barrier is gone");
}

/// The allowance bounds what one session can make the target hold.
#[test]
fn solicited_data_are_granted_in_turn() {
    let mut pair =
        Pair::new(Parameters { max_burst: (1 << 24) - 1, max_outstanding_r2t: 64, ..parameters() });
    let len = 20 << 20;
    for itt in 1..=2 {
        pair.write(itt, len, &[], true);
        let task = pair.command().task;
        assert_eq!(pair.session.want_data(task, len), None);
    }
    let r2ts: Vec<R2t> = headers(pair.received());
    assert!(r2ts.len() == 2 && r2ts.iter().all(|r2t| r2t.itt == 1));
    pair.manage(TaskFunction::ABORT_TASK, 1);
    let next: Vec<u32> = pair
        .received()
        .iter()
        .filter_map(|pdu| R2t::try_from(pdu.header).ok())
        .map(|r2t| r2t.itt)
        .collect();
    assert_eq!(next, [2, 2]);
}

proptest! {
    #[test]
    fn residuals_add_up(expected: u32, actual: u32) {
        let Residual { overflow, underflow, count } = Residual::of(expected, actual);
        prop_assert!(!(overflow && underflow));
        let (expected, actual, count) = (i64::from(expected), i64::from(actual), i64::from(count));
        prop_assert_eq!(actual - expected, if underflow { -count } else { count });
        prop_assert_eq!(overflow || underflow, count != 0);
    }

    #[test]
    fn any_script_is_survived(script in proptest::collection::vec(any::<u8>(), 0..6000)) {
        law::any_script(&script);
    }
}

/// A write of 16 KiB, the first 4 KiB of which come unsolicited: 1 KiB with the command.
fn bursting(pair: &mut Pair, itt: u32) {
    let cmd_sn = pair.next_cmd_sn();
    let header = ScsiCommand { write: true, itt, expected_len: 16 << 10, cmd_sn, ..<_>::default() };
    pair.send(header, &[7; 1024]);
}

/// What the budget has no room for is refused, after all of it has come, and what is refused holds nothing.
#[test]
fn unsolicited_data_beyond_the_budget_are_refused() {
    let budget = Arc::new(Budget::new(8 << 10, 0));
    let mut other = Pair::within(parameters(), false, Arc::clone(&budget), WINDOW);
    let mut pair = Pair::within(parameters(), false, budget, WINDOW);
    bursting(&mut other, 1);
    bursting(&mut pair, 1);
    bursting(&mut pair, 2);
    let task = pair.command().task;
    assert!(pair.session.poll_event().is_none(), "the second is not delivered");
    assert!(pair.received().is_empty(), "nor answered before its burst has ended");
    let rest = |itt| DataOut {
        is_final: true,
        itt,
        ttt: NO_TAG,
        buffer_offset: 1024,
        ..DataOut::default()
    };
    pair.send(rest(2), &[7; 3072]);
    let refused: ScsiResponse = pair.one();
    assert_eq!((refused.itt, refused.status), (2, Status::TaskSetFull as u8));
    // The first goes on, and when it is over there is room again.
    assert_eq!(pair.session.want_data(task, 4096), None);
    pair.send(rest(1), &[7; 3072]);
    assert!(matches!(pair.session.poll_event(), Some(Event::Execute { .. })));
    pair.reply(task, 0);
    let _: ScsiResponse = pair.one();
    bursting(&mut pair, 3);
    assert_eq!(pair.command().cdb, [0; 16]);
}

/// The window narrows as the budget is used up, down to what the session may hold anyway.
#[test]
fn the_window_follows_the_budget() {
    let budget = Arc::new(Budget::new(16 << 10, 8 << 10));
    let mut pair = Pair::within(parameters(), false, Arc::clone(&budget), 1);
    assert_eq!(pair.width_after_a_read(), 6);
    let mut greedy = Pair::within(parameters(), false, budget, WINDOW);
    (0..6).for_each(|itt| bursting(&mut greedy, itt));
    // What was allowed stays so (RFC 7143, 4.2.2.1), and is used up.
    let widths: Vec<_> = (0..6).map(|_| pair.width_after_a_read()).collect();
    assert_eq!(widths, [5, 4, 3, 2, 2, 2]);
    drop(greedy);
    assert_eq!(pair.width_after_a_read(), 6);
}

/// What comes before its turn is kept only while it is small: on one connection nothing does.
#[test]
fn large_data_before_their_turn_are_as_if_they_had_never_come() {
    let mut pair = Pair::new(parameters());
    let (first, second) = (pair.next_cmd_sn(), pair.next_cmd_sn());
    let nop = |itt, cmd_sn| NopOut { itt, ttt: NO_TAG, cmd_sn, ..<_>::default() };
    pair.send(nop(2, second), &vec![7; AHEAD_MAX + 1]);
    pair.send(nop(1, first), &vec![7; AHEAD_MAX + 1]);
    let echo: crate::iscsi::header::NopIn = pair.one();
    assert_eq!((echo.itt, echo.exp_cmd_sn), (1, second));
}

/// The front says how much solicited data there may be, and learns how much more is wanted.
#[test]
fn solicited_data_wait_until_they_are_allowed() {
    let mut pair = Pair::new(parameters());
    pair.session.allow_solicited(0);
    pair.write(1, 1000, &[], true);
    let task = pair.command().task;
    assert_eq!(pair.session.want_data(task, 1000), None);
    assert!(pair.received().is_empty());
    assert_eq!((pair.session.solicited(), pair.session.solicited_wanted()), (0, Some(1000)));
    pair.session.allow_solicited(1000);
    let r2t: R2t = pair.one();
    assert_eq!(r2t.desired_len, 1000);
    assert_eq!((pair.session.solicited(), pair.session.solicited_wanted()), (1000, None));
}
