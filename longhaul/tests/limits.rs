//! Every limit of the configuration: what a peer sees that goes beyond it, and what the log says of him.

#[expect(dead_code, reason = "each test uses its part")]
mod common;
#[expect(dead_code, reason = "each test uses its part")]
#[path = "common/peer.rs"]
mod peer;

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use common::{LONGHAUL, Running};
use peer::{NO_ITT, Peer, login, read_16, text, write_16};
use proto::iscsi::header::{Header, LoginRequest, LoginResponse, NopOut, ScsiCommand, TextRequest};
use proto::iscsi::pdu::Pdu;

const TARGET: &str = "iqn.2026-11.dev.longhaul:disk";
const NAME: &str = "iqn.2000-01.example:guest";

/// Blocks of 512 bytes in the largest request, of 32 MiB.
const LARGEST: u32 = 65_536;

/// A server with limits of its own.
struct Fixture {
    server: Running,
    portal: SocketAddr,
    _home: tempfile::TempDir,
}

impl Fixture {
    fn new(limits: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let config = format!(
            "listen = [\"127.0.0.1:0\"]\n[volumes.disk]\nuri = \"memory:64M\"\n[limits]\n{limits}\n"
        );
        fs::write(home.path().join("longhaul.toml"), config).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "exec 2>&1\nexec \"$0\" serve --config longhaul.toml", LONGHAUL]);
        let server = Running::start(command.current_dir(home.path()));
        let ready = server.line().unwrap();
        let portal = ready.split('/').nth(2).unwrap_or_else(|| panic!("{ready}")).parse().unwrap();
        Self { server, portal, _home: home }
    }

    fn log_in(&self, isid: u8) -> Peer {
        let (mut peer, response, _) = self.try_login(NAME, isid);
        assert_eq!(response.status_class, 0);
        peer.settle();
        peer
    }

    /// Tries to log in; the answer, and what it declares.
    fn try_login(&self, name: &str, isid: u8) -> (Peer, LoginResponse, String) {
        let mut peer = Peer::connect(self.portal);
        let text = String::from_utf8(text(name, TARGET).to_vec()).unwrap();
        let wishes = "FirstBurstLength=16777215\0MaxBurstLength=16777215\0";
        let others = text.split_inclusive('\0').filter(|pair| !pair.starts_with("FirstBurst"));
        peer.send(login(isid), others.chain([wishes]).collect::<String>());
        let Pdu { header, data, .. } = peer.receive().expect("an answer");
        let Header::LoginResponse(response) = header else { panic!("{header:?}") };
        (peer, response, String::from_utf8(data.to_vec()).unwrap())
    }

    /// Waits for a line of the log that says this.
    fn logs(&self, what: &str) {
        loop {
            let line = self.server.line().unwrap_or_else(|| panic!("nothing is said of: {what}"));
            if line.contains(what) {
                return;
            }
        }
    }

    fn end(self) {
        assert!(self.server.stop().success());
    }
}

/// A read of the largest size.
fn largest_read(peer: &mut Peer, itt: u32) {
    let command = peer.command(itt, read_16(0, LARGEST));
    let command = ScsiCommand { read: true, expected_len: LARGEST * 512, ..command };
    peer.send(command, Vec::new());
}

fn ping(peer: &mut Peer) {
    let cmd_sn = peer.cmd_sn;
    peer.send(
        NopOut { immediate: true, itt: 99, ttt: NO_ITT, cmd_sn, ..NopOut::default() },
        vec![],
    );
}

/// Whether the answer to a ping comes before any data of command `itt`.
fn ping_overtakes(peer: &mut Peer, itt: u32) -> bool {
    loop {
        match peer.receive().expect("an answer").header {
            Header::NopIn(_) => return true,
            Header::DataIn(data) if data.itt == itt => return false,
            _ => {}
        }
    }
}

#[test]
fn connections() {
    let fixture = Fixture::new("connections = 2");
    let _two = (fixture.log_in(1), Peer::connect(fixture.portal));
    assert!(Peer::connect(fixture.portal).receive().is_none());
    fixture.logs("too many connections");
    fixture.end();
}

#[test]
fn logins_under_way() {
    let fixture = Fixture::new("logins = 1");
    let mut slow = Peer::connect(fixture.portal);
    slow.send_raw(&[0x43]);
    let (_, response, _) = fixture.try_login(NAME, 1);
    assert_eq!(response.status_class, 0, "who gets on with it gets in");
    assert!(slow.receive().is_none());
    fixture.logs("login given up: there are too many at a time");
    fixture.end();
}

#[test]
fn the_time_of_a_login() {
    let fixture = Fixture::new("login = \"100ms\"");
    let mut slow = Peer::connect(fixture.portal);
    slow.send_raw(&[0x43]);
    assert!(slow.receive().is_none());
    fixture.logs("login failed");
    fixture.end();
}

#[test]
fn sessions_of_an_initiator() {
    let fixture = Fixture::new("sessions_per_initiator = 1");
    let _one = fixture.log_in(1);
    let (_, response, _) = fixture.try_login(NAME, 2);
    // RFC 7143, 11.13.5: out of resources.
    assert_eq!((response.status_class, response.status_detail), (3, 2));
    fixture.logs("login failed");
    let (_, response, _) = fixture.try_login("iqn.2000-01.example:other", 2);
    assert_eq!(response.status_class, 0);
    fixture.end();
}

/// A command beyond the window is ignored (RFC 7143, 4.2.2.1).
#[test]
fn commands() {
    let fixture = Fixture::new("commands = 4");
    let (mut peer, response, _) = fixture.try_login(NAME, 1);
    assert_eq!(response.max_cmd_sn.wrapping_sub(response.exp_cmd_sn), 3);
    let test_unit_ready = |peer: &mut Peer, itt, cmd_sn| {
        peer.send(ScsiCommand { is_final: true, itt, cmd_sn, ..ScsiCommand::default() }, vec![]);
    };
    test_unit_ready(&mut peer, 9, 4);
    for cmd_sn in 0..4 {
        test_unit_ready(&mut peer, cmd_sn, cmd_sn);
    }
    for itt in 0..4 {
        peer.status(itt).unwrap();
    }
    test_unit_ready(&mut peer, 10, 4);
    peer.status(10).unwrap();
    fixture.end();
}

#[test]
fn data_segments() {
    let fixture = Fixture::new("data_segment = \"8K\"");
    let (mut peer, _, text) = fixture.try_login(NAME, 1);
    assert!(text.split('\0').any(|pair| pair == "MaxRecvDataSegmentLength=8192"), "{text}");
    peer.settle();
    assert_eq!(peer.write(1, 0, vec![1; 8192], false), Some(true));
    assert_eq!(peer.write(2, 0, vec![1; 16_384], false), None);
    fixture.logs("session ended");
    fixture.end();
}

#[test]
fn first_bursts() {
    let fixture = Fixture::new("first_burst = \"4K\"");
    let (mut peer, _, text) = fixture.try_login(NAME, 1);
    assert!(text.split('\0').any(|pair| pair == "FirstBurstLength=4096"), "{text}");
    peer.settle();
    assert_eq!(peer.write(1, 0, vec![1; 4096], false), Some(true));
    let command = peer.command(2, write_16(0, 16));
    peer.send(ScsiCommand { write: true, expected_len: 8192, ..command }, vec![1; 8192]);
    let Pdu { header, data, .. } = peer.receive().unwrap();
    assert!(matches!(header, Header::ScsiResponse(response) if response.status == 2), "{header:?}");
    // RFC 7143, 11.4.7.2: ABORTED COMMAND, incorrect amount of data. The sense data follow their length.
    assert_eq!((data[2 + 2], data[2 + 12], data[2 + 13]), (0x0B, 0x0C, 0x0D));
    fixture.end();
}

/// Two sessions hold all that is held in common; a third has its share, and no more.
#[test]
fn unsolicited_data() {
    let fixture = Fixture::new("unsolicited = \"1M\"\nfirst_burst = \"1M\"");
    let status = |peer: &mut Peer, itt, length: u32| {
        let command = peer.command(itt, write_16(0, length / 512));
        let command = ScsiCommand { write: true, expected_len: length, ..command };
        peer.send(command, vec![1; length as usize]);
        match peer.receive().unwrap().header {
            Header::ScsiResponse(response) => response.status,
            other => panic!("{other:?}"),
        }
    };
    let mut peers: Vec<_> = (1..4).map(|isid| fixture.log_in(isid)).collect();
    let mut last = peers.pop().unwrap();
    assert_eq!(status(&mut last, 1, 1 << 20), 0, "nobody holds anything yet");
    for peer in &mut peers {
        let command = peer.command(1, write_16(0, 2048));
        let command =
            ScsiCommand { write: true, is_final: false, expected_len: 1 << 20, ..command };
        peer.send(command, vec![1; (1 << 20) - 512]);
        ping(peer);
        assert!(ping_overtakes(peer, 1), "it has been taken in");
    }
    // SAM-5, 5.3.1: TASK SET FULL.
    assert_eq!(status(&mut last, 2, 1 << 20), 0x28);
    assert_eq!(status(&mut last, 3, 512 << 10), 0, "its share is always there");
    fixture.end();
}

/// Whoever does not take its answer holds it, and the request of another waits; not so if there is room for both.
#[test]
fn data_held_by_all() {
    for (held, waits) in [("32M", true), ("128M", false)] {
        let fixture = Fixture::new(&format!("held = \"{held}\""));
        let (mut greedy, mut other) = (fixture.log_in(1), fixture.log_in(2));
        largest_read(&mut greedy, 1);
        assert!(greedy.receive().is_some(), "it is being answered");
        largest_read(&mut other, 1);
        ping(&mut other);
        assert_eq!(ping_overtakes(&mut other, 1), waits, "{held}");
        drop((greedy, other));
        fixture.end();
    }
}

#[test]
fn data_held_by_a_session() {
    for (held, waits) in [("32M", true), ("128M", false)] {
        let fixture = Fixture::new(&format!("held = \"128M\"\nheld_by_session = \"{held}\""));
        let mut greedy = fixture.log_in(1);
        largest_read(&mut greedy, 1);
        largest_read(&mut greedy, 2);
        ping(&mut greedy);
        assert_eq!(ping_overtakes(&mut greedy, 2), waits, "{held}");
        drop(greedy);
        fixture.end();
    }
}

/// A silent initiator is asked whether it is there, and given up if it does not answer.
#[test]
fn silence() {
    let fixture = Fixture::new("ping_after = \"100ms\"\nping_patience = \"100ms\"");
    let mut peer = fixture.log_in(1);
    let asked = peer.receive_any().expect("a ping").header;
    assert!(matches!(asked, Header::NopIn(ping) if ping.ttt != NO_ITT), "{asked:?}");
    while peer.receive().is_some() {}
    fixture.logs("session ended");
    fixture.end();
}

/// Who is asked to log out and does not is given up.
#[test]
fn the_time_to_log_out() {
    let fixture = Fixture::new("stop = \"100ms\"");
    let mut peer = fixture.log_in(1);
    fixture.end();
    assert!(matches!(peer.receive().unwrap().header, Header::AsyncMessage(_)));
}

#[test]
fn slow_commands() {
    let fixture = Fixture::new("slow = \"1us\"");
    let mut peer = fixture.log_in(1);
    assert!(peer.read(1, 0, 2048).is_some());
    fixture.logs("slow command");
    fixture.end();
}

/// Whoever is refused again and again does not fill the log: there are 120 lines about an address in a minute.
#[test]
fn lines_of_the_log() {
    let fixture = Fixture::new("");
    let stranger = "iqn.2000-01.example:stranger";
    for isid in 0..250 {
        let mut peer = Peer::connect(fixture.portal);
        peer.send(login(isid), text(stranger, "iqn.2000-01.example:nothing"));
        assert!(peer.receive().is_some(), "it is answered");
    }
    fixture.server.signal(rustix::process::Signal::TERM);
    let lines: Vec<_> = std::iter::from_fn(|| fixture.server.line()).collect();
    let said = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
    // Twice that if a minute ends in between.
    assert!((120..=240).contains(&said("login failed")), "{lines:#?}");
    assert!(said("too many lines about it") > 0);
    fixture.end();
}

/// A text that goes on over many PDUs: in a login it ends that, later it is rejected.
#[test]
fn texts() {
    let fixture = Fixture::new("text = \"8K\"");
    let mut talker = fixture.log_in(1);
    let question = |ttt, cmd_sn| {
        let end =
            TextRequest { immediate: true, continues: true, itt: 9, ..TextRequest::default() };
        TextRequest { ttt, cmd_sn, ..end }
    };
    let cmd_sn = talker.cmd_sn;
    talker.send(question(NO_ITT, cmd_sn), vec![b'x'; 8192]);
    let Header::TextResponse(response) = talker.receive().unwrap().header else { panic!() };
    talker.send(question(response.ttt, cmd_sn), vec![b'x'; 1]);
    assert!(matches!(talker.receive().unwrap().header, Header::Reject(_)));

    let mut stranger = Peer::connect(fixture.portal);
    let request = LoginRequest { transit: false, continues: true, ..login(2) };
    stranger.send(request, vec![b'x'; 8192]);
    let Header::LoginResponse(response) = stranger.receive().unwrap().header else { panic!() };
    assert_eq!(response.status_class, 0, "it may go on");
    stranger.send(LoginRequest { cmd_sn: response.exp_cmd_sn, ..request }, vec![b'x'; 1]);
    let Header::LoginResponse(response) = stranger.receive().unwrap().header else { panic!() };
    assert_eq!(response.status_class, 2, "initiator error (RFC 7143, 11.13.5)");
    fixture.logs("login failed");
    fixture.end();
}
