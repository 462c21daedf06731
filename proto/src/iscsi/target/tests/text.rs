//! Pings, text and discovery.

use super::*;

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
    pair.session.heard(pair.now, CID);
    pair.session.handle_timeout(pair.now);
    assert!(pair.session.poll_event().is_none());
    pair.session.handle_timeout(pair.session.deadline());
    pair.session.handle_timeout(pair.session.deadline());
    assert!(matches!(pair.session.poll_event(), Some(Event::Close(Ending::Silent))));
    pair.send(NopOut { immediate: true, itt: 5, ttt: NO_TAG, ..<_>::default() }, &[]);
    let nop: crate::iscsi::header::NopIn = pair.one();
    assert_eq!(nop.stat_sn, 100, "a ping used no number up");
}

/// RFC 7143, 4.3.
#[test]
fn a_discovery_session_only_discovers() {
    let mut pair = Pair::with(parameters(), true);
    pair.read(1, 0);
    assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR);
    pair.manage(TaskFunction::ABORT_TASK, 1);
    assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR);
    let ping = NopOut { immediate: true, itt: 5, ttt: NO_TAG, ..<_>::default() };
    pair.send(ping, &[]);
    assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR);
    text(&mut pair, NO_TAG, b"MaxRecvDataSegmentLength=512\0");
    assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR);
    for reason in [LogoutReason::CLOSE_CONNECTION, LogoutReason::REMOVE_FOR_RECOVERY] {
        pair.send(management::logout(reason, CID), &[]);
        assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR);
    }
    pair.send(management::logout(LogoutReason::CLOSE_SESSION, 0), &[]);
    let _: crate::iscsi::header::LogoutResponse = pair.one();
}

/// RFC 7143, 7.4.3: a discovery session is sent answers and nothing else. One that is silent ends when a ping would have
/// become overdue.
#[test]
fn a_discovery_session_is_asked_for_nothing() {
    let mut pair = Pair::with(parameters(), true);
    let overdue = Time::ZERO + Duration::from_secs(45);
    assert_eq!(pair.session.deadline(), overdue);
    pair.session.handle_timeout(Time::ZERO + Duration::from_secs(15));
    assert!(pair.session.poll_event().is_none());
    pair.session.handle_timeout(overdue);
    assert!(matches!(pair.session.poll_event(), Some(Event::Close(Ending::Silent))));
    pair.session.announce_drop();
    assert!(pair.received().is_empty());

    let mut pair = Pair::with(parameters(), true);
    pair.session.request_logout(pair.now, Duration::from_secs(5));
    assert!(pair.received().is_empty());
    assert!(matches!(pair.session.poll_event(), Some(Event::Close(Ending::Dismissed))));
}

fn text(pair: &mut Pair, ttt: u32, data: &[u8]) {
    let cmd_sn = pair.next_cmd_sn();
    pair.send(TextRequest { is_final: true, itt: 4, ttt, cmd_sn, ..<_>::default() }, data);
}

/// The same, and more is to follow: with C within this text, without it in another.
fn unfinished(pair: &mut Pair, ttt: u32, continues: bool, data: &[u8]) {
    let cmd_sn = pair.next_cmd_sn();
    pair.send(TextRequest { continues, itt: 4, ttt, cmd_sn, ..<_>::default() }, data);
}

/// RFC 7143, 11.11 and Appendix C: an answer longer than a segment comes in several, by C and a tag.
#[test]
fn send_targets_in_segments() {
    let mut pair = Pair::with(Parameters { max_send_data_segment: 64, ..parameters() }, true);
    text(&mut pair, NO_TAG, b"SendTargets=All\0");
    assert!(matches!(
        pair.session.poll_event(),
        Some(Event::SendTargets { cid: CID, selection: Selection::All })
    ));
    pair.session.targets(
        CID,
        &[TargetRecord {
            name: "iqn.2000-01.example:disk".to_owned(),
            portals: vec![
                ("192.0.2.7:3260".parse().unwrap(), 1),
                ("[2001:db8::1]:3261".parse().unwrap(), 2),
            ],
        }],
    );
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

/// What a target answers to a text: F, C, the tag to go on with, and its text.
fn answer(pair: &mut Pair) -> (bool, bool, u32, String) {
    let pdu = pair.received().remove(0);
    let Header::TextResponse(header) = pdu.header else { panic!("{pdu:?}") };
    let said = String::from_utf8(pdu.data.to_vec()).unwrap();
    (header.is_final, header.continues, header.ttt, said)
}

/// RFC 7143, 11.11.1: F answers F only; an initiator without it has more to say, in the same exchange.
#[test]
fn an_exchange_ends_when_both_say_so() {
    let mut pair = Pair::new(parameters());
    unfinished(&mut pair, NO_TAG, true, b"X-a");
    let (is_final, continues, ttt, said) = answer(&mut pair);
    assert!(!is_final && !continues && ttt != NO_TAG && said.is_empty(), "the rest is asked for");
    unfinished(&mut pair, ttt, false, b"=1\0");
    let (is_final, continues, ttt, said) = answer(&mut pair);
    assert_eq!((is_final, continues, &said[..]), (false, false, "X-a=NotUnderstood\0"));
    text(&mut pair, ttt, b"MaxBurstLength=512\0");
    let last = (true, false, NO_TAG, "MaxBurstLength=Reject\0".to_owned());
    assert_eq!(answer(&mut pair), last);
    // RFC 7143, 11.10.2: C and F exclude each other.
    let cmd_sn = pair.next_cmd_sn();
    let both =
        TextRequest { is_final: true, continues: true, ttt: NO_TAG, cmd_sn, ..<_>::default() };
    pair.send(both, b"X-a");
    assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR);
}

/// RFC 7143, 6.2, 6.4 and 7.12: what is declared holds when the exchange has ended, and not if it fails; and
/// no key comes twice in it.
#[test]
fn declared_value_holds_from_the_end_of_its_exchange_on() {
    let mut pair = Pair::new(parameters());
    let halves = |pair: &mut Pair| {
        pair.read(1, 2048);
        let task = pair.command().task;
        pair.session.want_data(task, 0);
        pair.reply(task, 2048);
        pair.received().len() == 2
    };
    let declaration: &[u8] = b"MaxRecvDataSegmentLength=1024\0";
    for (rest, why) in [(declaration, "twice"), (b"MaxRecvDataSegmentLength", "cut off")] {
        text(&mut pair, NO_TAG, &[declaration, rest].concat());
        assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR, "{why}");
        assert!(!halves(&mut pair), "{why}");
    }
    unfinished(&mut pair, NO_TAG, false, declaration);
    let (.., ttt, _) = answer(&mut pair);
    assert!(!halves(&mut pair), "the exchange goes on");
    text(&mut pair, ttt, declaration);
    assert_eq!(pair.reject_reason(), RejectReason::PROTOCOL_ERROR, "twice in two requests");
    unfinished(&mut pair, NO_TAG, false, declaration);
    let (.., ttt, _) = answer(&mut pair);
    text(&mut pair, ttt, b"InitiatorAlias=me\0");
    assert_eq!(answer(&mut pair), (true, false, NO_TAG, String::new()));
    assert!(halves(&mut pair));
}
