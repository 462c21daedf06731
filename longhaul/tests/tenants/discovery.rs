//! What clients learn of targets, and when their rights change.

use proto::iscsi::header::TextRequest;

use super::*;

#[test]
fn rights_that_are_taken_away_end_the_discovery_sessions_that_had_them() {
    for by in ISCSI {
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

/// A client finds the targets of which it may use units, whatever it asks, and no others.
#[test]
fn a_client_is_told_of_no_target_that_it_may_not_use() {
    for by in ISCSI {
        let fixture = Fixture::with(by, PRIVATE, &WITH_PRIVATE);
        let asked = ["All".to_owned(), String::new(), PRIVATE_TARGET.to_owned(), TARGET.to_owned()];
        for (who, may) in [("alice", true), ("bob", false), ("mallory", false)] {
            let mut discovery = fixture.try_log_in(who, (NAME, 1), None).expect("it gets in");
            let mut told = Vec::new();
            for what in &asked {
                told.extend(send_targets(&mut discovery, what).unwrap_or_default());
                // In a session with one target, too.
                let mut normal = fixture.log_in(who, NAME, 1);
                let text = send_targets(normal.peer(), what).unwrap_or_default();
                assert!(may || !contains(&text, PRIVATE_TARGET), "{by:?} {who} {what}");
            }
            assert_eq!(contains(&told, PRIVATE_TARGET), may, "{by:?} {who}");
            assert!(contains(&told, TARGET), "{by:?} {who}");
            let login = fixture.try_log_in(who, (NAME, 1), Some(PRIVATE_TARGET));
            assert_eq!(login.is_ok(), may, "{by:?} {who}");
        }
        fixture.end();
    }
}

fn contains(text: &[u8], name: &str) -> bool {
    text.windows(name.len()).any(|part| part == name.as_bytes())
}

/// What SendTargets=All tells.
fn targets(peer: &mut Peer) -> Vec<u8> {
    send_targets(peer, "All").expect("a text")
}

/// What SendTargets tells; `None` if it is rejected.
fn send_targets(peer: &mut Peer, what: &str) -> Option<Vec<u8>> {
    let request = TextRequest {
        is_final: true,
        itt: 9,
        ttt: NO_TAG,
        cmd_sn: peer.cmd_sn,
        ..TextRequest::default()
    };
    peer.cmd_sn += 1;
    peer.send(request, format!("SendTargets={what}\0"));
    let answer = peer.receive().expect("an answer");
    match answer.header {
        Header::TextResponse(_) => Some(answer.data.to_vec()),
        Header::Reject(_) => None,
        other => panic!("{other:?}"),
    }
}
