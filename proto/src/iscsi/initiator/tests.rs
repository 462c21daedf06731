//! What a target must not do, and what is said of it. What works is in the pair tests.

use proptest::prelude::*;

use super::*;
use crate::iscsi::header::{
    AsyncMessage, BHS_LEN, DataIn, Lengths, LoginResponse, NopIn, R2t, Reject, RejectReason,
    ScsiCommand, ScsiResponse, TextRequest,
};
use crate::iscsi::keys::Offer;
use crate::iscsi::login::Entropy;
use crate::iscsi::name::{IscsiName, Isid};
use crate::iscsi::pdu::Decoder;
use crate::scsi::sense::{Additional, Format, Key, Sense};

const ISID: Isid = Isid::random([1, 2, 3], 4);

/// A machine that has logged in to a target with small bursts; the first status due is 1.
fn machine() -> Initiator<u8> {
    let text = b"MaxBurstLength=8192\0FirstBurstLength=1024\0";
    logged_in(Some(name()), text)
}

fn name() -> IscsiName {
    IscsiName::new("iqn.2000-01.example:disk").unwrap()
}

fn logged_in(target: Option<IscsiName>, text: &'static [u8]) -> Initiator<u8> {
    let config = LoginConfig {
        initiator: name(),
        isid: ISID,
        target,
        account: None,
        pinned: None,
        algorithms: vec![],
        offer: Offer { max_burst: 8192, first_burst: 1024, ..Offer::for_long_links() },
    };
    let entropy = Entropy::fresh(&mut |buffer| buffer.fill(1));
    let mut machine = Initiator::start(config, entropy, Timeouts::default(), Time::ZERO);
    let response = LoginResponse {
        transit: true,
        current_stage: 1,
        next_stage: 3,
        isid: ISID.0,
        tsih: 1,
        exp_cmd_sn: 1,
        max_cmd_sn: 8,
        ..LoginResponse::default()
    };
    say(&mut machine, Pdu::with_data(response, Bytes::from_static(text))).unwrap();
    assert!(matches!(machine.poll(), Some(Event::Established(_))));
    machine
}

fn say(machine: &mut Initiator<u8>, pdu: Pdu) -> Result<(), Fault> {
    let mut outbox = Outbox::new();
    outbox.push_pdu(pdu);
    let mut slices = [std::io::IoSlice::new(&[]); 4];
    let filled = outbox.slices(&mut slices);
    let mut bytes: BytesMut = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
    machine.receive(Time::ZERO, 0, &mut bytes)
}

fn read(machine: &mut Initiator<u8>, len: u32) -> u32 {
    let command =
        Command { lun: 0, cdb: [0x88; 16], transfer: Transfer::In(len), is_ordered: false };
    machine.submit(Time::ZERO, command, 1).unwrap()
}

fn write(machine: &mut Initiator<u8>, len: usize) -> u32 {
    let data = Pieces::from(Bytes::from(vec![1; len]));
    let command =
        Command { lun: 0, cdb: [0x8a; 16], transfer: Transfer::Out(data), is_ordered: false };
    machine.submit(Time::ZERO, command, 1).unwrap()
}

fn misbehaved(said: Result<(), Fault>) -> Misbehaviour {
    match said {
        Err(Fault::Misbehaved(how)) => how,
        other => panic!("{other:?}"),
    }
}

#[test]
fn data_that_were_not_asked_for_are_refused() {
    let cases: [(DataIn, usize, Misbehaviour); 4] = [
        (DataIn::default(), 1025, Misbehaviour::DataInBeyondExpected),
        (DataIn { buffer_offset: 4, ..DataIn::default() }, 8, Misbehaviour::DataInOutOfOrder),
        // RFC 7143, 11.7.5: the first is number zero.
        (DataIn { data_sn: 1, ..DataIn::default() }, 8, Misbehaviour::DataInOutOfOrder),
        (
            DataIn { itt: 77, ..DataIn::default() },
            8,
            Misbehaviour::UnknownTag { pdu: "Data-In", tag: 77 },
        ),
    ];
    for (header, len, expected) in cases {
        let mut machine = machine();
        let tag = read(&mut machine, 1024);
        let itt = if header.itt == 0 { tag } else { header.itt };
        let pdu = Pdu::with_data(DataIn { itt, ..header }, vec![0; len].into());
        assert_eq!(misbehaved(say(&mut machine, pdu)), expected);
        assert_eq!(machine.unfinished(), [1], "the command is given back");
    }
}

#[test]
fn a_write_gets_no_data_and_a_read_no_r2t() {
    let mut one = machine();
    let itt = write(&mut one, 512);
    let data = Pdu::with_data(DataIn { itt, ..DataIn::default() }, vec![0; 4].into());
    assert_eq!(misbehaved(say(&mut one, data)), Misbehaviour::DataInBeyondExpected);
    let mut other = machine();
    let itt = read(&mut other, 512);
    let r2t = R2t { itt, desired_len: 4, ..R2t::default() };
    assert_eq!(misbehaved(say(&mut other, Pdu::bare(r2t))), Misbehaviour::R2tBeyondBuffer);
}

#[test]
fn an_r2t_asks_for_what_there_is_in_order_and_within_a_burst() {
    // InitialR2T stays Yes by default: 1024 immediate bytes are gone, R2Ts are for what follows.
    let good = R2t { buffer_offset: 1024, desired_len: 8192, ..R2t::default() };
    let cases = [
        (good, None),
        (R2t { desired_len: 0, ..good }, Some(Misbehaviour::R2tLength(0))),
        (R2t { desired_len: 8193, ..good }, Some(Misbehaviour::R2tLength(8193))),
        (R2t { buffer_offset: 0, ..good }, Some(Misbehaviour::R2tOutOfOrder)),
        (R2t { r2t_sn: 1, ..good }, Some(Misbehaviour::R2tOutOfOrder)),
        // RFC 7143, 4.2.5.3: both forms of a number are the same unit.
        (R2t { lun: 0x4000 << 48, ..good }, None),
        (R2t { lun: 0x0001 << 48, ..good }, Some(Misbehaviour::R2tOfOtherUnit)),
    ];
    for (r2t, expected) in cases {
        let mut machine = machine();
        let itt = write(&mut machine, 20_000);
        let said = say(&mut machine, Pdu::bare(R2t { itt, ..r2t }));
        assert_eq!(said.err(), expected.map(Fault::Misbehaved), "{r2t:?}");
    }
    let mut machine = machine();
    let itt = write(&mut machine, 2000);
    let said = say(&mut machine, Pdu::bare(R2t { itt, ..good }));
    assert_eq!(misbehaved(said), Misbehaviour::R2tBeyondBuffer);
}

#[test]
fn a_command_passes_data_that_were_asked_for() {
    let mut machine = machine();
    let writes: Vec<_> = (0..7).map(|_| write(&mut machine, 20_000)).collect();
    drain(&mut machine);
    for r2t_sn in 0..2 {
        for &itt in &writes {
            let buffer_offset = 1024 + 8192 * r2t_sn;
            let r2t = R2t { itt, r2t_sn, buffer_offset, desired_len: 8192, ..R2t::default() };
            say(&mut machine, Pdu::bare(r2t)).unwrap();
        }
    }
    let read = read(&mut machine, 512);
    let sent = drain(&mut machine);
    let data: Vec<_> = sent.iter().filter(|header| matches!(header, Header::DataOut(_))).collect();
    assert_eq!(data.len(), 14, "all that was asked for is sent");
    let is_read = |header: &Header| matches!(header, Header::ScsiCommand(it) if it.itt == read);
    // 64 KiB were on their way already.
    assert_eq!(sent.iter().position(is_read), Some(8));
    let order = data.iter().map(|header| match header {
        Header::DataOut(it) => (it.buffer_offset, it.itt, it.is_final),
        other => panic!("{other:?}"),
    });
    let asked = [1024, 1024 + 8192]
        .into_iter()
        .flat_map(|at| writes.iter().map(move |itt| (at, *itt, true)));
    assert!(order.eq(asked), "data go out in the order in which they were asked for");
}

/// The headers of all that the machine sends.
fn drain(machine: &mut Initiator<u8>) -> Vec<Header> {
    let (mut decoder, mut bytes, mut sent) = (Decoder::new(), BytesMut::new(), Vec::new());
    while let Some(outbox) = machine.outbox(0).filter(|outbox| !outbox.is_empty()) {
        let mut slices = [std::io::IoSlice::new(&[])];
        outbox.slices(&mut slices);
        bytes.extend_from_slice(&slices[0]);
        let len = slices[0].len();
        machine.sent(Time::ZERO, 0, len);
        while let Some(Frame::Pdu(pdu)) = decoder.decode(&mut bytes).unwrap() {
            sent.push(pdu.header);
        }
    }
    sent
}

#[test]
fn a_missing_status_ends_the_session() {
    // RFC 7143, 4.2.2.2; nothing can be asked for again at error recovery level 0.
    let mut machine = machine();
    let itt = read(&mut machine, 0);
    let response = ScsiResponse { itt, stat_sn: 2, ..ScsiResponse::default() };
    let gap = Misbehaviour::StatSn { expected: 1, found: 2 };
    assert_eq!(misbehaved(say(&mut machine, Pdu::bare(response))), gap);
    assert!(!machine.has_room());
}

/// RFC 7143, 4.2.2.2: each status has a number of its own. Where several have one, none is missing.
#[test]
fn a_status_number_that_comes_again_is_told_once() {
    let mut machine = machine();
    let commands: Vec<_> = (0..3).map(|_| read(&mut machine, 0)).collect();
    for itt in &commands {
        let response = ScsiResponse { itt: *itt, stat_sn: 1, ..ScsiResponse::default() };
        say(&mut machine, Pdu::bare(response)).unwrap();
    }
    let told: Vec<_> = std::iter::from_fn(|| machine.poll()).collect();
    let completed = |event: &&Event<u8>| matches!(event, Event::Completed(1, Ok(_)));
    assert_eq!(told.iter().filter(completed).count(), 3);
    let deviation = |event: &&Event<u8>| matches!(event, Event::Deviation(Deviation::StatSn));
    assert_eq!(told.iter().filter(deviation).count(), 1);
    // A command ends once, whatever number its status has.
    let again = ScsiResponse { itt: commands[0], stat_sn: 1, ..ScsiResponse::default() };
    let unknown = Misbehaviour::UnknownTag { pdu: "SCSI Response", tag: commands[0] };
    assert_eq!(misbehaved(say(&mut machine, Pdu::bare(again))), unknown);
}

#[test]
fn good_status_without_the_data_is_no_success() {
    let mut machine = machine();
    let itt = read(&mut machine, 512);
    let response = ScsiResponse { itt, stat_sn: 1, ..ScsiResponse::default() };
    say(&mut machine, Pdu::bare(response)).unwrap();
    let missing = TaskError::DataMissing { received: 0, expected: 512 };
    assert!(matches!(machine.poll(), Some(Event::Completed(1, Err(e))) if e == missing));
}

/// RFC 7143, 11.4.5: some targets send the whole of a page without a residual, or count from another length. What
/// came says itself how long it is; it is told once that the target does so.
#[test]
fn a_wrong_residual_of_an_inquiry_is_told_once_and_the_data_are_used() {
    let mut machine = machine();
    let inquiry = crate::scsi::command::Command::inquiry();
    for (stat_sn, underflow, residual) in [(1, false, 0), (2, true, 3), (3, true, 9999)] {
        let command =
            Command { lun: 0, cdb: inquiry.cdb, transfer: Transfer::In(252), is_ordered: false };
        let itt = machine.submit(Time::ZERO, command, 1).unwrap();
        let data = DataIn { itt, ..DataIn::default() };
        say(&mut machine, Pdu::with_data(data, vec![7; 36].into())).unwrap();
        let response =
            ScsiResponse { itt, stat_sn, underflow, residual, ..ScsiResponse::default() };
        say(&mut machine, Pdu::bare(response)).unwrap();
        if stat_sn == 1 {
            let told = machine.poll();
            assert!(matches!(told, Some(Event::Deviation(Deviation::Residual))), "{told:?}");
        }
        let Some(Event::Completed(1, Ok(completion))) = machine.poll() else { panic!("no data") };
        assert_eq!(completion.data, vec![7; 36]);
    }
    assert!(machine.poll().is_none());
}

/// Of the medium nothing may be missing, whatever else a target gets wrong.
#[test]
fn a_wrong_residual_of_a_read_or_of_the_status_of_blocks_is_an_error() {
    let blocks = crate::scsi::Blocks { lba: 0, count: 1 };
    for asked in [
        crate::scsi::command::Command::read(blocks, 512),
        crate::scsi::command::Command::get_lba_status(0, 31),
    ] {
        let mut machine = machine();
        let command =
            Command { lun: 0, cdb: asked.cdb, transfer: Transfer::In(512), is_ordered: false };
        let itt = machine.submit(Time::ZERO, command, 1).unwrap();
        let data = DataIn { itt, ..DataIn::default() };
        say(&mut machine, Pdu::with_data(data, vec![7; 256].into())).unwrap();
        let response = ScsiResponse { itt, stat_sn: 1, ..ScsiResponse::default() };
        say(&mut machine, Pdu::bare(response)).unwrap();
        let missing = TaskError::DataMissing { received: 256, expected: 512 };
        assert!(matches!(machine.poll(), Some(Event::Completed(1, Err(e))) if e == missing));
    }
}

/// GOOD for a write of which not all was asked for, or was of use (RFC 7143, 11.4.5: U), is no success.
#[test]
fn good_status_for_a_part_of_a_write_is_no_success() {
    let write = |asks: bool, residual: u32| {
        let mut machine = machine();
        let itt = write(&mut machine, 1024 + 512);
        if asks {
            let r2t = R2t { itt, buffer_offset: 1024, desired_len: 512, ..R2t::default() };
            say(&mut machine, Pdu::bare(r2t)).unwrap();
        }
        let underflow = residual > 0;
        let response =
            ScsiResponse { itt, stat_sn: 1, underflow, residual, ..ScsiResponse::default() };
        say(&mut machine, Pdu::bare(response)).unwrap();
        match machine.poll() {
            Some(Event::Completed(1, result)) => result.map(|completion| completion.status),
            other => panic!("{other:?}"),
        }
    };
    let missing = |received| Err(TaskError::DataMissing { received, expected: 1536 });
    assert_eq!(write(true, 0), Ok(Status::Good));
    assert_eq!(write(false, 0), missing(1024));
    assert_eq!(write(true, 512), missing(1024));
    assert_eq!(write(true, 1536), missing(0));
}

/// SSC-4: a drive may write a part at the end of its medium, and says EOM. What was not asked for was not written either.
#[test]
fn part_of_a_write_at_the_end_of_a_medium_has_a_residual() {
    let sense = Sense::new(Key::NoSense, Additional::END_OF_PARTITION);
    let sense = sense.with_stream(crate::scsi::sense::Stream::END).emit(Format::Fixed);
    let data = Bytes::from([&[0, sense.len() as u8][..], &sense[..]].concat());
    for (residual, expected) in [(0, 512), (512, 512), (1000, 1000)] {
        let mut machine = machine();
        let itt = write(&mut machine, 1024 + 512);
        let (status, underflow) = (Status::CheckCondition as u8, residual > 0);
        let response = ScsiResponse {
            itt,
            stat_sn: 1,
            status,
            underflow,
            residual,
            ..ScsiResponse::default()
        };
        say(&mut machine, Pdu::with_data(response, data.clone())).unwrap();
        match machine.poll() {
            Some(Event::Completed(1, Ok(completion))) => {
                assert_eq!(completion.residual, Residual::Under(expected));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A remark on a command that was carried out changes nothing of what had to be moved; with an error nothing had to.
#[test]
fn remark_without_the_data_is_no_success() {
    let ends = |sense: &Sense| {
        let mut machine = machine();
        let itt = write(&mut machine, 1024 + 512);
        let status = Status::CheckCondition as u8;
        let response = ScsiResponse { itt, stat_sn: 1, status, ..ScsiResponse::default() };
        let sense = sense.emit(Format::Fixed);
        let data = [&[0, sense.len() as u8][..], &sense[..]].concat();
        say(&mut machine, Pdu::with_data(response, data.into())).unwrap();
        match machine.poll() {
            Some(Event::Completed(1, result)) => result.map(|completion| completion.status),
            other => panic!("{other:?}"),
        }
    };
    let missing = Err(TaskError::DataMissing { received: 1024, expected: 1536 });
    for (key, expected) in [
        (Key::RecoveredError, missing),
        (Key::NoSense, missing),
        (Key::MediumError, Ok(Status::CheckCondition)),
    ] {
        let current = Sense::new(key, Additional::NONE);
        assert_eq!(ends(&current), expected, "{key:?}");
        let deferred = Sense { deferred: true, ..current };
        assert_eq!(ends(&deferred), Ok(Status::CheckCondition), "it was not carried out");
    }
}

#[test]
fn a_rejected_command_ends_and_the_session_goes_on() {
    let mut machine = machine();
    let itt = read(&mut machine, 512);
    let rejected = ScsiCommand { itt, ..ScsiCommand::default() }.emit(Lengths::default());
    let reason = RejectReason::COMMAND_NOT_SUPPORTED;
    let reject = Reject { reason, stat_sn: 1, ..Reject::default() };
    say(&mut machine, Pdu::with_data(reject, rejected.to_vec().into())).unwrap();
    assert!(matches!(machine.poll(), Some(Event::Completed(1, Err(TaskError::Rejected(_))))));
    assert!(machine.has_room());
    machine.text(Bytes::from_static(b"SendTargets=\0"));
    let rejected = TextRequest { itt: itt + 1, ..TextRequest::default() }.emit(Lengths::default());
    let reject = Reject { reason, stat_sn: 2, ..Reject::default() };
    say(&mut machine, Pdu::with_data(reject, rejected.to_vec().into())).unwrap();
    assert!(matches!(machine.poll(), Some(Event::TextRejected(why)) if why == reason));
    // What is no command shows that the two do not understand each other.
    let reject = Reject { reason, stat_sn: 3, ..Reject::default() };
    let said = say(&mut machine, Pdu::with_data(reject, vec![0; BHS_LEN].into()));
    assert_eq!(said, Err(Fault::Rejected(reason)));
}

#[test]
fn pings_are_answered_until_they_flood() {
    let mut machine = machine();
    let ping = NopIn { itt: NO_TAG, ttt: 5, lun: 9, ..NopIn::default() };
    let before = machine.outbox(0).map_or(0, |outbox| outbox.len());
    say(&mut machine, Pdu::bare(ping)).unwrap();
    assert_eq!(machine.outbox(0).map_or(0, |outbox| outbox.len()), before + BHS_LEN);
    let flood = (0..2000).find_map(|_| say(&mut machine, Pdu::bare(ping)).err());
    assert_eq!(flood, Some(Fault::Misbehaved(Misbehaviour::PingFlood)));
}

#[test]
fn silence_is_noticed_and_any_sign_of_life_counts() {
    let mut machine = machine();
    let timeouts = Timeouts::default();
    let asked = Time::ZERO + timeouts.idle;
    assert_eq!(machine.deadline(), Some(asked));
    machine.wake(asked).unwrap();
    // The link still takes our bytes: the ping may be behind them.
    let later = asked + timeouts.answer / 2;
    let len = machine.outbox(0).map_or(0, |outbox| outbox.len());
    machine.sent(later, 0, len);
    machine.wake(asked + timeouts.answer).unwrap();
    assert_eq!(machine.wake(later + timeouts.answer), Err(Fault::Silent));
}

/// As where the target is stopped: its system takes what fits its buffers.
#[test]
fn target_that_answers_nothing_is_silent_although_the_link_takes_small_requests() {
    let mut machine = machine();
    let timeouts = Timeouts::default();
    take(&mut machine, Time::ZERO);
    let lost = Time::ZERO + timeouts.idle + timeouts.answer;
    for second in 1.. {
        let now = Time::ZERO + Duration::from_secs(second);
        if second % 5 == 0 {
            write(&mut machine, 512);
        }
        let woken = machine.wake(now);
        if now >= lost {
            assert_eq!((woken, now), (Err(Fault::Silent), lost));
            return;
        }
        assert_eq!(woken, Ok(()), "after {second} s");
        take(&mut machine, now);
    }
}

/// What waits to be sent is taken; gives it.
fn take(machine: &mut Initiator<u8>, now: Time) -> Vec<u8> {
    let mut taken = Vec::new();
    while let Some(outbox) = machine.outbox(0).filter(|outbox| !outbox.is_empty()) {
        let mut slices = [std::io::IoSlice::new(&[]); 4];
        let filled = outbox.slices(&mut slices);
        let bytes: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
        machine.sent(now, 0, bytes.len());
        taken.extend(bytes);
    }
    taken
}

fn say_at(machine: &mut Initiator<u8>, now: Time, pdu: Pdu) {
    let mut outbox = Outbox::new();
    outbox.push_pdu(pdu);
    let mut slices = [std::io::IoSlice::new(&[]); 4];
    let filled = outbox.slices(&mut slices);
    let mut bytes: BytesMut = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
    machine.receive(now, 0, &mut bytes).unwrap();
}

/// Answers a ping, if one was sent last.
fn answer_ping(machine: &mut Initiator<u8>, now: Time, stat_sn: &mut u32) {
    let sent = take(machine, now);
    let Some(last) = sent.len().checked_sub(BHS_LEN).and_then(|at| sent.get(at..)) else { return };
    if last[0] & 0x3F == 0 {
        let itt = u32::from_be_bytes(last[16..20].try_into().unwrap());
        let pong = NopIn { itt, ttt: NO_TAG, stat_sn: *stat_sn, ..NopIn::default() };
        say_at(machine, now, Pdu::bare(pong));
        *stat_sn += 1;
    }
}

fn seconds(seconds: u64) -> Time {
    Time::from_origin(Duration::from_secs(seconds))
}

const STALLED: Fault =
    Fault::Stalled { operation: 0x8a, count: 1, within: Duration::from_secs(60) };

/// Another initiator may have ended it, or the target has lost it.
#[test]
fn command_without_an_answer_is_noticed_while_later_ones_are_answered() {
    let mut machine = machine();
    write(&mut machine, 512);
    let given_up = (1..200).find_map(|second: u32| {
        let now = seconds(second.into());
        let command = Command { lun: 0, cdb: [0; 16], transfer: Transfer::None, is_ordered: false };
        let itt = machine.submit(now, command, 1).unwrap();
        take(&mut machine, now);
        let response = ScsiResponse { itt, stat_sn: second, ..ScsiResponse::default() };
        let max_cmd_sn = 8 + second;
        say_at(&mut machine, now, Pdu::bare(ScsiResponse { max_cmd_sn, ..response }));
        machine.wake(now).err().map(|fault| (second, fault))
    });
    let (second, fault) = given_up.expect("it is noticed");
    assert_eq!(fault, STALLED);
    assert!((60..=80).contains(&second), "{second}");
}

/// A unit may be busy for minutes with a flush, and goes on with all else.
#[test]
fn flush_may_take_minutes_while_the_unit_answers() {
    for (answers, most) in [(true, 320), (false, 100)] {
        let mut machine = machine();
        let flush =
            Command { lun: 0, cdb: [0x91; 16], transfer: Transfer::None, is_ordered: false };
        machine.submit(Time::ZERO, flush, 1).unwrap();
        let mut stat_sn = 1;
        let given_up = (1..400).find_map(|second: u32| {
            let now = seconds(second.into());
            answer_ping(&mut machine, now, &mut stat_sn);
            if second.is_multiple_of(10) {
                let command =
                    Command { lun: 0, cdb: [0; 16], transfer: Transfer::None, is_ordered: false };
                let itt = machine.submit(now, command, 1).ok()?;
                take(&mut machine, now);
                let max_cmd_sn = 8 + second;
                let response = ScsiResponse { itt, stat_sn, max_cmd_sn, ..ScsiResponse::default() };
                if answers {
                    say_at(&mut machine, now, Pdu::bare(response));
                    stat_sn += 1;
                }
            }
            machine.wake(now).err().map(|fault| (second, fault))
        });
        let (second, fault) = given_up.expect("it is noticed");
        assert!(matches!(fault, Fault::Stalled { .. }), "{fault:?}");
        let least = if answers { 300 } else { 60 };
        assert!((least..=most).contains(&second), "{answers}: {second}");
    }
}

/// A unit may hang while its target answers pings.
#[test]
fn unit_that_answers_nothing_is_noticed_while_pings_are_answered() {
    let mut machine = machine();
    write(&mut machine, 512);
    take(&mut machine, Time::ZERO);
    let mut stat_sn = 1;
    let fault = loop {
        let now = machine.deadline().unwrap();
        assert!(now <= seconds(90));
        if let Err(fault) = machine.wake(now) {
            break fault;
        }
        answer_ping(&mut machine, now, &mut stat_sn);
    };
    assert_eq!(fault, STALLED);
    assert!(stat_sn > 2, "it was asked");
}

/// However long it takes as a whole.
#[test]
fn command_whose_data_come_slowly_has_not_stalled() {
    let mut machine = machine();
    let itt = read(&mut machine, 30 * 512);
    let mut stat_sn = 1;
    for piece in 0..30 {
        let due = seconds(50 * (u64::from(piece) + 1));
        while let Some(now) = machine.deadline().filter(|at| *at < due) {
            machine.wake(now).unwrap();
            answer_ping(&mut machine, now, &mut stat_sn);
        }
        let data = DataIn { itt, data_sn: piece, buffer_offset: piece * 512, ..DataIn::default() };
        say_at(&mut machine, due, Pdu::with_data(data, vec![7; 512].into()));
    }
}

/// The ping that was answered says nothing of the data that were asked for later, and take minutes to be sent.
#[test]
fn command_whose_data_go_slowly_has_not_stalled() {
    let mut machine = machine();
    let itt = write(&mut machine, 1024 + 8192);
    let mut stat_sn = 1;
    while let Some(now) = machine.deadline().filter(|at| *at < seconds(25)) {
        machine.wake(now).unwrap();
        answer_ping(&mut machine, now, &mut stat_sn);
    }
    assert!(stat_sn > 1, "a ping was answered");
    let r2t = R2t { itt, buffer_offset: 1024, desired_len: 8192, ..R2t::default() };
    say_at(&mut machine, seconds(26), Pdu::bare(r2t));
    for step in 1..80 {
        let now = seconds(26 + 5 * step);
        machine.sent(now, 0, 100);
        machine.wake(now).unwrap();
    }
}

/// RFC 7143, 4.3: a target of a discovery session has as long to answer, and is not asked for more.
#[test]
fn a_discovery_session_has_no_pings() {
    let mut machine = logged_in(None, b"");
    let timeouts = Timeouts::default();
    let lost = Time::ZERO + timeouts.idle + timeouts.answer;
    let len = machine.outbox(0).map_or(0, |outbox| outbox.len());
    machine.wake(Time::ZERO + timeouts.idle).unwrap();
    assert_eq!(machine.outbox(0).map_or(0, |outbox| outbox.len()), len, "nothing is sent");
    assert_eq!(machine.deadline(), Some(lost));
    assert_eq!(machine.wake(lost), Err(Fault::Silent));
}

#[test]
fn unknown_events_are_passed_over() {
    let mut machine = machine();
    let message = AsyncMessage {
        event: super::super::header::AsyncEvent::VENDOR,
        stat_sn: 1,
        ..AsyncMessage::default()
    };
    assert_eq!(say(&mut machine, Pdu::bare(message)), Ok(()));
    assert!(machine.has_room());
}

proptest! {
    #[test]
    fn invariants_hold_for_any_target(script in prop::collection::vec(any::<u8>(), 0..2000)) {
        invariants::holds(&script);
    }

    #[test]
    fn invariants_hold_for_any_login(script in "[\\x00-\\x07](AuthMethod=(CHAP|None)\\x00|CHAP_A=[5-8]\\x00|CHAP_[NRIC]=[0-9a-fx]{0,9}\\x00|InitiatorName=iqn.2000-01.example:a\\x00|TargetName=iqn.2000-01.example:disk\\x00|\n){0,9}") {
        invariants::login_holds(script.as_bytes());
    }
}
