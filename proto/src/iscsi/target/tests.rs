mod budget;
mod connections;
mod management;
mod text;
mod turn;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::time::Duration;

use super::*;
use crate::iscsi::header::{
    AsyncEvent, DataIn, DataOut, Header, LogoutReason, LogoutRequest, LogoutResponseCode, NO_TAG,
    NopOut, R2t, RejectReason, ScsiCommand, ScsiResponse, TaskManagementRequest, TaskResponse,
    TextRequest,
};
use crate::iscsi::keys::{Offer, Parameters, TaskReporting};
use crate::iscsi::pdu::{Decoder, Flaw, Frame, Pdu};
use crate::iscsi::text::TEXT_MAX;
use crate::scsi::Sequence;
use crate::time::Time;

fn parameters() -> Parameters {
    Parameters {
        header_digest: false,
        data_digest: false,
        seal: None,
        max_connections: 1,
        initial_r2t: false,
        immediate_data: true,
        max_recv_data_segment: Offer::for_long_links().max_recv_data_segment,
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
        stops_at_failure: false,
    }
}

/// The first connection.
const CID: u16 = 3;

fn decoder() -> Decoder {
    let mut decoder = Decoder::new();
    decoder.set_data_max(1 << 24);
    decoder
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
            exp_cmd_sn: u32::MAX,
            window,
            window_max: WINDOW,
            unsolicited: budget,
            solicited: 1 << 25,
            text_max: TEXT_MAX,
            ping_after: Duration::from_secs(15),
            ping_patience: Duration::from_secs(30),
        };
        let first = Joining { cid: CID, stat_sn: 100, parameters: &parameters };
        let session = Session::new(Time::ZERO, &first, setup);
        Self { session, decoder: decoder(), cmd_sn: u32::MAX, now: Time::ZERO }
    }

    fn send(&mut self, header: impl Into<Header>, data: &[u8]) {
        let pdu = Pdu::with_data(header, Bytes::copy_from_slice(data));
        self.session.handle(self.now, CID, Frame::Pdu(pdu));
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

    /// A write of 512 bytes with the attribute ORDERED.
    fn write_ordered(&mut self, itt: u32, immediate: &[u8]) {
        let (cmd_sn, attribute) = (self.next_cmd_sn(), TaskAttribute::ORDERED);
        let (is_final, write, expected_len) = (true, true, 512);
        let command =
            ScsiCommand { is_final, write, itt, expected_len, cmd_sn, attribute, ..<_>::default() };
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
        self.session.complete(
            task,
            Reply { status: Status::Good, data, sense: Bytes::new(), residual: Residual::None },
        );
    }

    /// What the target has sent since the last look.
    fn received(&mut self) -> Vec<Pdu> {
        received(&mut self.session, CID, &mut self.decoder)
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

/// What the target has sent on a connection since the last look.
fn received(session: &mut Session, cid: u16, decoder: &mut Decoder) -> Vec<Pdu> {
    let outbox = session.outbox(cid).expect("a connection");
    let mut buffer = BytesMut::new();
    while !outbox.is_empty() {
        let mut slices = [IoSlice::new(&[])];
        outbox.slices(&mut slices);
        let len = slices[0].len();
        buffer.extend_from_slice(&slices[0]);
        outbox.advance(len);
    }
    let mut pdus = Vec::new();
    while let Some(frame) = decoder.decode(&mut buffer).unwrap() {
        let Frame::Pdu(pdu) = frame else { panic!("flawed") };
        pdus.push(pdu);
    }
    pdus
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

/// What a tape holds is what was sent, in this order: a block that came with its command waits for one that is asked for.
#[test]
fn command_of_a_sequential_unit_waits_for_those_before_it() {
    let mut pair = Pair::new(parameters());
    pair.session.set_sequential(BTreeMap::from([(0, Sequence::Ended)]));
    pair.write(1, 512, &[], true);
    let first = pair.command().task;
    assert_eq!(pair.session.want_data(first, 512), None);
    let r2t: R2t = pair.one();
    pair.write(2, 512, &[2; 512], true);
    pair.write(3, 512, &[3; 512], true);
    assert!(pair.session.poll_event().is_none(), "it has overtaken the first");
    pair.data_out(1, r2t.ttt, 0, 0, &[1; 512], true);
    assert!(matches!(pair.session.poll_event(), Some(Event::Execute { .. })));
    assert!(pair.session.poll_event().is_none(), "it has overtaken the first");
    pair.reply(first, 0);
    let second = pair.command().task;
    assert_eq!(pair.session.want_data(second, 512).unwrap(), [vec![2; 512]]);
    assert!(pair.session.poll_event().is_none(), "it has overtaken the second");
    pair.reply(second, 0);
    let third = pair.command().task;
    assert_eq!(pair.session.want_data(third, 512).unwrap(), [vec![3; 512]]);
    pair.reply(third, 0);
    assert!(!pair.session.is_busy());
}

/// Such a unit has several at once, those with the attribute ORDERED too; and what is sent behind them never before them.
#[test]
fn unit_that_keeps_order_has_each_command_when_it_has_the_one_before() {
    let mut pair = Pair::new(parameters());
    pair.session.set_sequential(BTreeMap::from([(0, Sequence::Started)]));
    pair.write_ordered(1, &[1; 512]);
    pair.write_ordered(2, &[]);
    pair.write_ordered(3, &[3; 512]);
    let first = pair.command().task;
    assert!(pair.session.poll_event().is_none(), "the front does not have the first yet");
    assert!(pair.session.want_data(first, 512).is_some());
    assert!(pair.session.poll_event().is_none(), "the unit does not have the first yet");
    pair.session.begun(first);
    let second = pair.command().task;
    assert_eq!(pair.session.want_data(second, 512), None);
    let r2t: R2t = pair.one();
    assert!(pair.session.poll_event().is_none(), "it has overtaken the second");
    pair.data_out(2, r2t.ttt, 0, 0, &[2; 512], true);
    assert!(matches!(pair.session.poll_event(), Some(Event::Execute { .. })));
    pair.session.begun(second);
    let third = pair.command().task;
    assert!(pair.session.want_data(third, 512).is_some());
    pair.session.begun(third);
    // One that is not sent for a fault of its own holds up nobody.
    pair.write_ordered(4, &[4; 512]);
    let fourth = pair.command().task;
    pair.write_ordered(5, &[5; 512]);
    assert!(pair.session.poll_event().is_none());
    pair.reply(fourth, 0);
    let fifth = pair.command().task;
    assert!(pair.session.want_data(fifth, 512).is_some());
    pair.session.begun(fifth);
    for task in [third, first, second, fifth] {
        pair.reply(task, 0);
    }
    assert!(!pair.session.is_busy());
}

/// What has failed must not be followed by what was sent behind it, in a session that was promised that.
#[test]
fn session_that_stops_at_a_failure_hands_on_one_command_at_a_time() {
    let mut pair = Pair::new(Parameters { stops_at_failure: true, ..parameters() });
    pair.session.set_sequential(BTreeMap::from([(0, Sequence::Started)]));
    pair.write(1, 512, &[1; 512], true);
    pair.write(2, 512, &[2; 512], true);
    let first = pair.command().task;
    assert!(pair.session.want_data(first, 512).is_some());
    pair.session.begun(first);
    assert!(pair.session.poll_event().is_none());
    pair.reply(first, 0);
    pair.command();
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
    // RFC 7143, 11.4.8: R2Ts do not count.
    assert_eq!(pair.one::<ScsiResponse>().exp_data_sn, 0);
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

/// RFC 7143, 11.4.5: what the unit did not take of the data that were asked for was not transferred.
#[test]
fn part_of_a_write_that_the_unit_did_not_take_is_the_residual() {
    for (expected, residual, told) in [(512, 100, 100), (612, 100, 200), (512, 600, 512)] {
        let mut pair = Pair::new(parameters());
        pair.write(1, expected, &vec![7; expected as usize], true);
        let task = pair.command().task;
        assert!(pair.session.want_data(task, 512).is_some());
        let (status, data, sense) = (Status::CheckCondition, Pieces::new(), Bytes::new());
        let residual = Residual::Under(residual);
        pair.session.complete(task, Reply { status, data, sense, residual });
        let response: ScsiResponse = pair.one();
        assert!(response.underflow && !response.overflow);
        assert_eq!(response.residual, told);
    }
}

/// RFC 7143, 11.4.5: what a device behind the unit had beyond what was asked of it was not transferred either.
#[test]
fn excess_of_a_device_behind_the_unit_is_an_overflow() {
    for (expected, told) in [(512, Residual::Over(100)), (612, Residual::Under(100))] {
        let mut pair = Pair::new(parameters());
        pair.write(1, expected, &vec![7; expected as usize], true);
        let task = pair.command().task;
        assert!(pair.session.want_data(task, 512).is_some());
        let (status, data, sense) = (Status::Good, Pieces::new(), Bytes::new());
        let residual = Residual::Over(100);
        pair.session.complete(task, Reply { status, data, sense, residual });
        let response: ScsiResponse = pair.one();
        assert_eq!((response.overflow, response.underflow), (told.over() > 0, told.under() > 0));
        assert_eq!(response.residual, 100);
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

/// RFC 7143, 11.7.7: PDUs without data are taken, be it only for their F.
#[test]
fn an_end_may_come_alone() {
    let mut pair = Pair::new(parameters());
    pair.write(1, 4096, &[], false);
    let task = pair.command().task;
    assert_eq!(pair.session.want_data(task, 4096), None);
    pair.data_out(1, NO_TAG, 0, 0, &[], false);
    pair.data_out(1, NO_TAG, 1, 0, &[7; 4096], false);
    assert!(pair.session.poll_event().is_none(), "the initiator still sends");
    pair.data_out(1, NO_TAG, 2, 4096, &[], true);
    let Some(Event::Execute { data, .. }) = pair.session.poll_event() else { panic!() };
    assert_eq!(data, [vec![7; 4096]]);
}

/// RFC 7143, 11: a reserved code is a protocol error.
#[test]
fn codes_that_mean_nothing_are_rejected() {
    let mut pair = Pair::new(parameters());
    let attribute = TaskAttribute(5);
    let cmd_sn = pair.next_cmd_sn();
    let command = ScsiCommand { is_final: true, itt: 1, attribute, cmd_sn, ..<_>::default() };
    pair.send(command, &[]);
    assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR);
    pair.send(management::logout(LogoutReason(3), CID), &[]);
    assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR);
    assert!(pair.session.poll_event().is_none() && !pair.session.is_busy());
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
                p.data_out(1, NO_TAG, 1, 4096, &[0; 1], true);
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

/// RFC 7143, 4.2.5.3, 11.7.4 and 11.17.1: data that answer an R2T name the unit of the command. What names another
/// is rejected, and its task fails when the initiator has ended sending.
#[test]
fn solicited_data_name_the_unit_of_their_command() {
    let mut pair = Pair::new(Parameters { max_burst: 4096, ..parameters() });
    pair.write(1, 8192, &[], true);
    let command = pair.command();
    assert_eq!(pair.session.want_data(command.task, 8192), None);
    let r2ts: Vec<R2t> = headers(pair.received());
    let [first, second] = r2ts[..] else { panic!("{r2ts:?}") };
    let answer = |r2t: &R2t, lun| DataOut {
        is_final: true,
        lun,
        itt: 1,
        ttt: r2t.ttt,
        buffer_offset: r2t.buffer_offset,
        ..DataOut::default()
    };
    pair.send(answer(&first, 1 << 48), &[1; 4096]);
    assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR);
    assert!(pair.session.is_busy(), "the other R2T is still to be answered");
    pair.send(answer(&second, 0x4000 << 48), &[1; 4096]);
    let pdus = pair.received();
    assert!(pdus.len() == 1 && aborted_with(&pdus[0], 0x0e, 0x00), "{pdus:?}");
    assert!(pair.session.poll_event().is_none() && !pair.session.is_busy());
}

/// RFC 7143, 11.7.4: in data that nobody asked for the field is reserved; the other form of a number is the same
/// unit.
#[test]
fn the_unit_of_unsolicited_data_is_not_looked_at() {
    let mut pair = Pair::new(parameters());
    pair.write(1, 8192, &[], false);
    let command = pair.command();
    assert_eq!(pair.session.want_data(command.task, 8192), None);
    let r2t: R2t = pair.one();
    let unsolicited =
        DataOut { is_final: true, lun: 9 << 48, itt: 1, ttt: NO_TAG, ..DataOut::default() };
    pair.send(unsolicited, &[1; 4096]);
    let solicited = DataOut { lun: 0x4000 << 48, ttt: r2t.ttt, buffer_offset: 4096, ..unsolicited };
    pair.send(solicited, &[2; 4096]);
    let Some(Event::Execute { data, .. }) = pair.session.poll_event() else { panic!() };
    assert_eq!(data.concat(), [vec![1; 4096], vec![2; 4096]].concat());
}

#[test]
fn pdu_that_was_not_negotiated_is_refused() {
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
    pair.session.handle(pair.now, CID, Frame::Flawed { bhs, flaw: Flaw::DataDigest });
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
    pair.session.handle(pair.now, CID, Frame::Flawed { bhs, flaw: Flaw::DataDigest });
    let pdus = pair.received();
    assert!(aborted_with(&pdus[1], 0x47, 0x05));
    pair.read(2, 0);
    pair.command();
}

proptest! {
    #[test]
    fn any_script_is_survived(script in proptest::collection::vec(any::<u8>(), 0..6000)) {
        invariants::any_script(&script);
    }
}
