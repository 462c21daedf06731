//! The served program among initiators that mean no good: whatever they do, a session that behaves is served,
//! and memory stays within its bound.

#[expect(dead_code, reason = "each test uses its part")]
mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;

use std::net::SocketAddr;
use std::process::Command;
use std::thread;

use bytes::Bytes;
use common::{LONGHAUL, Running};
use peer::{NO_ITT, Peer, frame, login, read_16, text, write_16};
use proto::iscsi::header::{DataOut, Header, NopOut, ScsiCommand, TextRequest};

const TARGET: &str = "iqn.2026-11.dev.longhaul:disk";
const GOOD: &str = "iqn.2000-01.example:good";
const BAD: &str = "iqn.2000-01.example:bad";

/// What the program may take beside the part of each session, in KiB.
const COMMON_MAX: u64 = 64 << 10;

/// What it may take for each session, in KiB.
const SESSION_MAX: u64 = 1 << 10;

/// Blocks of 512 bytes in 256 KiB, which is the first burst.
const BURST: u32 = 512;

/// A served volume and the session that behaves.
struct Fixture {
    server: Running,
    portal: SocketAddr,
    good: Peer,
    writes: u8,
}

impl Fixture {
    fn new() -> Self {
        Self::on("memory:64M")
    }

    /// The same on another volume.
    fn on(uri: &str) -> Self {
        let volume = format!("disk={uri}");
        let listen = ["--listen", "127.0.0.1:0"];
        let mut serve = Command::new(LONGHAUL);
        let server = Running::start(serve.args(["serve", "--volume", &volume]).args(listen));
        let ready = server.line().expect("ready");
        let portal = ready.split('/').nth(2).expect("ready iscsi://PORTAL/...").parse().unwrap();
        let mut good = Peer::log_in(portal, GOOD, 1, TARGET);
        good.settle();
        Self { server, portal, good, writes: 0 }
    }

    fn bad(&self, isid: u8) -> Peer {
        Peer::log_in(self.portal, BAD, isid, TARGET)
    }

    /// Service goes on: what is written is read.
    fn check_service(&mut self) {
        self.writes += 1;
        let block = vec![self.writes; 4096];
        assert_eq!(self.good.write(1, 8, block.clone(), false), Some(true));
        assert_eq!(self.good.read(2, 8, 8), Some(block));
    }

    /// The most memory it ever took is within the bound for so many sessions.
    fn check_memory(&self, sessions: u64) {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.server.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        let peak: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        let bound = COMMON_MAX + sessions * SESSION_MAX;
        println!("{peak} KiB at most, of {bound}");
        assert!(peak <= bound, "{peak} KiB with {sessions} sessions");
    }

    /// It ends when asked to, cleanly and while they are all there.
    fn end(self) {
        assert!(self.server.stop().success());
    }
}

#[test]
fn half_open_logins() {
    let mut fixture = Fixture::new();
    let whole = frame(login(9), text(BAD, TARGET));
    let mut strangers = Vec::new();
    for round in 0..400 {
        let mut stranger = Peer::connect(fixture.portal);
        // Nothing, a part of a header, a header without its data, all but the last byte.
        let part = [0, 20, 48, whole.len() - 1][round % 4];
        stranger.send_raw(&whole[..part]);
        strangers.push(stranger);
        if round % 100 == 99 {
            fixture.check_service();
            let newcomer = Peer::log_in(fixture.portal, GOOD, 2, TARGET);
            drop(newcomer);
        }
    }
    fixture.check_memory(1);
    fixture.end();
}

#[test]
fn a_flood_of_connections() {
    let mut fixture = Fixture::new();
    for _ in 0..2 {
        let flood: Vec<_> = (0..700).map(|_| Peer::connect(fixture.portal)).collect();
        fixture.check_service();
        drop(flood);
    }
    let _newcomer = Peer::log_in(fixture.portal, GOOD, 2, TARGET);
    fixture.check_memory(2);
    fixture.end();
}

/// A PDU that comes byte by byte holds nobody up, nor do writes whose data never end.
#[test]
fn writers_that_never_finish() {
    let mut fixture = Fixture::new();
    let mut writers: Vec<_> = (0..32).map(|isid| fixture.bad(isid)).collect();
    for (turn, writer) in writers.iter_mut().enumerate() {
        for itt in 0..32 {
            let command = writer.command(itt, write_16(0, BURST));
            let command =
                ScsiCommand { write: true, is_final: false, expected_len: BURST * 512, ..command };
            writer.send(command, vec![7; 65_536]);
            let data =
                |at: u32| DataOut { itt, ttt: NO_ITT, buffer_offset: at, ..DataOut::default() };
            writer.send(DataOut { data_sn: 0, ..data(65_536) }, vec![7; 131_072]);
            writer.send(DataOut { data_sn: 1, ..data(196_608) }, vec![7; 65_535]);
        }
        // And one that stops within a header.
        writer.send_raw(&[0x41; 13]);
        if turn % 8 == 0 {
            fixture.check_service();
        }
    }
    fixture.check_service();
    fixture.check_memory(33);
    fixture.end();
}

#[test]
fn readers_that_never_read() {
    let mut fixture = Fixture::new();
    let mut readers: Vec<_> = (0..32).map(|isid| fixture.bad(isid)).collect();
    for (turn, reader) in readers.iter_mut().enumerate() {
        let blocks = [8, BURST, 4 * BURST, 64 * BURST][turn % 4];
        for itt in 0..30 {
            let command = reader.command(itt, read_16(0, blocks));
            // Some have no room for what they ask for, which is read all the same.
            let expected_len = if itt % 3 == 0 { 0 } else { blocks * 512 };
            reader.send(ScsiCommand { read: true, expected_len, ..command }, Vec::new());
        }
        fixture.check_service();
    }
    fixture.check_memory(33);
    fixture.end();
}

/// Echoes nobody takes: the sender is not listened to in the end, and only he.
#[test]
fn pings_without_end() {
    let mut fixture = Fixture::new();
    let mut pinger = fixture.bad(1);
    let portal = fixture.portal;
    let bytes = frame(
        NopOut { immediate: true, itt: 5, ttt: NO_ITT, ..NopOut::default() },
        vec![1; 200_000],
    );
    // Its own thread: it stands still when it is no longer listened to.
    let pinging = thread::spawn(move || (0..300).all(|_| pinger.send_raw(&bytes)));
    for isid in 2..12 {
        fixture.check_service();
        drop(Peer::log_in(portal, GOOD, isid, TARGET));
    }
    fixture.check_memory(12);
    fixture.end();
    assert!(!pinging.join().unwrap(), "60 MB were taken without an answer read");
}

#[test]
fn a_million_bad_pdus() {
    const BAD_PDUS: usize = 1_000_000;
    const BATCH: usize = 1000;
    let mut fixture = Fixture::new();
    let mut sender = fixture.bad(1);
    let mut batch = Vec::new();
    for number in 0..BATCH {
        let mut bhs = [0; 48];
        // What no initiator sends, and what only targets send; immediate, so that none is out of turn.
        bhs[0] = 0x40 | [0x07, 0x1f, 0x21, 0x25, 0x31, 0x3f][number % 6];
        batch.extend_from_slice(&bhs);
    }
    for round in 0..BAD_PDUS / BATCH {
        assert!(sender.send_raw(&batch));
        for _ in 0..BATCH {
            let answer = sender.receive().expect("the session goes on");
            assert!(matches!(answer.header, Header::Reject(_)), "{answer:?}");
        }
        if round % 100 == 0 {
            fixture.check_service();
        }
    }
    fixture.check_memory(2);
    fixture.end();
}

#[test]
fn text_without_end() {
    let mut fixture = Fixture::new();
    // During login: refused once it is longer than any login.
    let mut stranger = Peer::connect(fixture.portal);
    let mut request = login(3);
    (request.transit, request.continues) = (false, true);
    let mut ended = false;
    for round in 0..1000 {
        let data = if round == 0 { text(BAD, TARGET).to_vec() } else { vec![b'x'; 8000] };
        if !stranger.send_raw(&frame(request, data)) {
            ended = true;
            break;
        }
        let Some(answer) = stranger.receive() else {
            ended = true;
            break;
        };
        let Header::LoginResponse(response) = answer.header else { panic!("{answer:?}") };
        request.cmd_sn = response.exp_cmd_sn;
    }
    assert!(ended, "8 MB of login text were taken");
    fixture.check_service();
    // Afterwards: rejected.
    let mut talker = fixture.bad(4);
    let mut ttt = NO_ITT;
    let mut rejected = false;
    for _ in 0..1000 {
        let request = TextRequest {
            immediate: true,
            continues: true,
            itt: 9,
            ttt,
            cmd_sn: talker.cmd_sn,
            ..TextRequest::default()
        };
        talker.send(request, vec![b'x'; 8000]);
        match talker.receive().expect("an answer").header {
            Header::TextResponse(response) => ttt = response.ttt,
            Header::Reject(_) => {
                rejected = true;
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(rejected, "8 MB of text were taken");
    fixture.check_service();
    fixture.check_memory(2);
    fixture.end();
}

/// Reads and writes of a first burst each, as many at a time as the window lets it; every answer is good, or says
/// that there is no room now.
fn load(peer: &mut Peer, lba: u32) {
    const COMMANDS: u32 = 20;
    const AT_A_TIME: u32 = 16;
    const TASK_SET_FULL: u8 = 0x28;
    let data = Bytes::from(vec![7; BURST as usize * 512]);
    let first = peer.cmd_sn;
    let (mut answered, mut last) = (0, first);
    while answered < COMMANDS {
        let (sent, most) = (peer.cmd_sn - first, COMMANDS.min(answered + AT_A_TIME));
        if sent < most && peer.cmd_sn <= last {
            let (write, itt) = (sent % 2 == 0, peer.cmd_sn);
            let cdb = if write { write_16(lba, BURST) } else { read_16(lba, BURST) };
            let command = ScsiCommand { write, read: !write, ..peer.command(itt, cdb) };
            let command = ScsiCommand { expected_len: BURST * 512, ..command };
            peer.send(command, if write { data.clone() } else { Bytes::new() });
            continue;
        }
        let status = match peer.receive().expect("the session goes on").header {
            Header::DataIn(header) => {
                last = header.max_cmd_sn;
                header.has_status.then_some(header.status)
            }
            Header::ScsiResponse(response) => {
                last = response.max_cmd_sn;
                Some(response.status)
            }
            other => panic!("{other:?}"),
        };
        if let Some(status) = status {
            assert!([0, TASK_SET_FULL].contains(&status), "{status:#x}");
            answered += 1;
        }
    }
}

/// Initiators that behave, and ask for all they may: more than is held for them all.
#[test]
fn many_sessions_at_full_load() {
    const SESSIONS: u32 = 64;
    let home = tempfile::tempdir().unwrap();
    let image = home.path().join("disk.img");
    // In a file, as memory that is served is no memory of the target's own.
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let mut fixture = Fixture::on(&format!("file:{}", image.display()));
    let mut peers: Vec<_> = (0..SESSIONS).map(|isid| fixture.bad(isid as u8)).collect();
    thread::scope(|scope| {
        for (peer, n) in peers.iter_mut().zip(0..) {
            scope.spawn(move || {
                peer.settle();
                load(peer, 64 + n * BURST);
            });
        }
    });
    fixture.check_service();
    fixture.check_memory(u64::from(SESSIONS) + 1);
    drop(peers);
    fixture.end();
}

/// An end with everything at once: logins half open and broken off, commands without their data, and answers
/// that nobody takes.
#[test]
fn an_end_among_them() {
    let mut fixture = Fixture::new();
    let whole = frame(login(9), text(BAD, TARGET));
    for _ in 0..20 {
        let mut stranger = Peer::connect(fixture.portal);
        stranger.send_raw(&whole[..60]);
    }
    let half_open: Vec<_> = (0..20)
        .map(|_| {
            let mut stranger = Peer::connect(fixture.portal);
            stranger.send_raw(&whole[..60]);
            stranger
        })
        .collect();
    let mut readers: Vec<_> = (0..4).map(|isid| fixture.bad(isid)).collect();
    for reader in &mut readers {
        for itt in 0..20 {
            let command = reader.command(itt, read_16(0, 4 * BURST));
            let command = ScsiCommand { read: true, expected_len: 4 * BURST * 512, ..command };
            reader.send(command, Vec::new());
        }
    }
    fixture.check_service();
    fixture.end();
    drop((half_open, readers));
}
