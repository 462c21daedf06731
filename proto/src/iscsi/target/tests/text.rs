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
