//! Discovery sessions when rights change.

use super::*;

#[test]
fn rights_that_are_taken_away_end_the_discovery_sessions_that_had_them() {
    for by in BOTH {
        // Nothing but the reload ends them.
        let patient = "[limits]\nping_after = '1h'\n";
        let fixture = Fixture::with(by, patient, &CLIENTS);
        let mut alice = fixture.try_log_in("alice", (NAME, 1), None).expect("it gets in");
        let mut bob = fixture.try_log_in("bob", (NAME, 2), None).expect("it gets in");
        // Alice is gone; bob stays as he is.
        fixture.reload(patient, &CLIENTS[1..]);
        assert!(ends(&mut alice), "{by:?}");
        assert!(!targets(&mut bob).is_empty(), "{by:?}");
        fixture.end();
    }
}

/// Whether the connection ends, whatever is said before.
fn ends(peer: &mut Peer) -> bool {
    while let Some(pdu) = peer.receive() {
        assert!(!matches!(pdu.header, Header::TextResponse(_)), "{pdu:?}");
    }
    true
}

/// What SendTargets=All tells.
fn targets(peer: &mut Peer) -> Vec<u8> {
    let request = proto::iscsi::header::TextRequest {
        is_final: true,
        itt: 9,
        ttt: NO_TAG,
        cmd_sn: peer.cmd_sn,
        ..proto::iscsi::header::TextRequest::default()
    };
    peer.cmd_sn += 1;
    peer.send(request, "SendTargets=All\0");
    let answer = peer.receive().expect("an answer");
    assert!(matches!(answer.header, Header::TextResponse(_)), "{answer:?}");
    answer.data.to_vec()
}
