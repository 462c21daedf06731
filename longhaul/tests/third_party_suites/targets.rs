//! SendTargets (RFC 7143, Appendix C).

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proto::iscsi::header::{Header, RejectReason, TextRequest, TextResponse};
use proto::iscsi::pdu::Pdu;
use proto::iscsi::text::{self, Pair};

use super::{NAME, TARGET, serve_memory};
use crate::common::Running;
use crate::peer::{self, NO_ITT, Peer};

/// So many that their names do not fit into one segment.
const VOLUMES: usize = 24;

/// The shortest that may be declared (RFC 7143, 13.12).
const SEGMENT: usize = 512;

const PREFIX: &str = "iqn.2026-11.dev.longhaul:";

struct Fixture {
    server: Running,
    portal: SocketAddr,
    targets: BTreeSet<String>,
}

impl Fixture {
    fn new() -> Self {
        let others = (1..VOLUMES).map(|n| format!("volume-with-a-long-name-{n}"));
        let names: Vec<_> = std::iter::once("disk".to_owned()).chain(others).collect();
        let (server, portal) = serve_memory(&names);
        let targets = names.iter().map(|name| format!("{PREFIX}{name}")).collect();
        Self { server, portal, targets }
    }

    fn discovery(&self) -> Peer {
        let text = format!(
            "InitiatorName={NAME}\0SessionType=Discovery\0MaxRecvDataSegmentLength={SEGMENT}\0"
        );
        let (peer, response) = Peer::ask(self.portal, peer::login(1), text.into());
        assert_eq!((response.status_class, response.status_detail), (0, 0));
        peer
    }

    fn normal(&self) -> Peer {
        Peer::log_in(self.portal, NAME, 2, TARGET)
    }

    /// What is said of one target.
    fn record(&self, target: &str) -> String {
        format!("TargetName={target}\0TargetAddress={},1\0", self.portal)
    }

    fn end(self) {
        assert!(self.server.stop().success());
    }
}

/// Says something in an exchange that `ttt` continues or begins; the answer.
fn say(peer: &mut Peer, ttt: u32, text: &str) -> Pdu {
    let cmd_sn = peer.cmd_sn;
    peer.cmd_sn += 1;
    let request = TextRequest { is_final: true, itt: 77, ttt, cmd_sn, ..TextRequest::default() };
    peer.send(request, text.to_owned());
    peer.receive().expect("an answer")
}

fn response(pdu: &Pdu) -> TextResponse {
    let Header::TextResponse(response) = pdu.header else { panic!("{pdu:?}") };
    assert_eq!(response.itt, 77);
    response
}

/// The answer to SendTargets, where it fits into one PDU.
fn ask(peer: &mut Peer, value: &str) -> String {
    let pdu = say(peer, NO_ITT, &format!("SendTargets={value}\0"));
    let TextResponse { is_final, continues, ttt, .. } = response(&pdu);
    assert_eq!((is_final, continues, ttt), (true, false, NO_ITT), "{value}");
    String::from_utf8(pdu.data.to_vec()).unwrap()
}

/// RFC 7143, 11.11: each piece but the last has C, no F, and a tag to go on with.
#[test]
fn a_long_answer_comes_in_pieces() {
    let fixture = Fixture::new();
    let mut peer = fixture.discovery();
    let (mut whole, mut pieces) = (Vec::new(), 0);
    let mut pdu = say(&mut peer, NO_ITT, "SendTargets=All\0");
    loop {
        pieces += 1;
        whole.extend_from_slice(&pdu.data);
        assert!(pdu.data.len() <= SEGMENT, "{}", pdu.data.len());
        let TextResponse { is_final, continues, ttt, .. } = response(&pdu);
        assert_eq!((continues, ttt == NO_ITT), (!is_final, is_final));
        if is_final {
            break;
        }
        // Another tag is none of this exchange, which goes on.
        let other = say(&mut peer, ttt ^ 0x4000_0000, "");
        assert!(
            matches!(&other.header, Header::Reject(reject) if reject.reason == RejectReason::PROTOCOL_ERROR),
            "{other:?}"
        );
        pdu = say(&mut peer, ttt, "");
    }
    assert_eq!(pieces, whole.len().div_ceil(SEGMENT));
    assert!(pieces > 2, "{pieces}");
    let pairs = text::parse(&whole).unwrap();
    let (names, addresses): (Vec<&Pair<'_>>, Vec<_>) =
        pairs.iter().partition(|pair| pair.key == "TargetName");
    assert_eq!(names.len(), VOLUMES, "each once");
    assert_eq!(
        names.iter().map(|pair| pair.value.to_owned()).collect::<BTreeSet<_>>(),
        fixture.targets
    );
    let here = format!("{},1", fixture.portal);
    assert_eq!(addresses.len(), VOLUMES);
    assert!(addresses.iter().all(|pair| (pair.key, pair.value) == ("TargetAddress", &here)));
    drop(peer);
    fixture.end();
}

/// A new question is answered from its beginning, whatever was left of the answer to the last one.
#[test]
fn an_answer_that_is_not_taken_is_given_up() {
    let fixture = Fixture::new();
    let mut peer = fixture.discovery();
    let first = say(&mut peer, NO_ITT, "SendTargets=All\0");
    let left = response(&first);
    assert!(left.continues);
    assert_eq!(ask(&mut peer, TARGET), fixture.record(TARGET));
    let late = say(&mut peer, left.ttt, "");
    assert!(matches!(late.header, Header::Reject(_)), "{late:?}");
    let anew = say(&mut peer, NO_ITT, "SendTargets=All\0");
    assert_eq!(anew.data, first.data);
    drop(peer);
    fixture.end();
}

#[test]
fn a_discovery_session_is_told_of_the_target_it_names() {
    let fixture = Fixture::new();
    let mut peer = fixture.discovery();
    for target in &fixture.targets {
        assert_eq!(ask(&mut peer, target), fixture.record(target));
    }
    for unknown in ["iqn.2026-11.dev.longhaul:none", "iqn.2026-11.dev.longhaul:dis", "all", "x"] {
        assert_eq!(ask(&mut peer, unknown), "", "{unknown}");
    }
    // There is no current one.
    assert_eq!(ask(&mut peer, ""), "SendTargets=Reject\0");
    drop(peer);
    fixture.end();
}

/// All may not be asked for there, and nothing means the one it is a session with.
#[test]
fn a_normal_session_is_told_of_its_own_target() {
    let fixture = Fixture::new();
    let mut peer = fixture.normal();
    assert_eq!(ask(&mut peer, ""), fixture.record(TARGET));
    assert_eq!(ask(&mut peer, TARGET), fixture.record(TARGET));
    assert_eq!(ask(&mut peer, "iqn.2026-11.dev.longhaul:none"), "");
    assert_eq!(ask(&mut peer, "All"), "SendTargets=Reject\0");
    peer.settle();
    assert!(peer.read(1, 0, 1).is_some(), "the session goes on");
    drop(peer);
    fixture.end();
}
