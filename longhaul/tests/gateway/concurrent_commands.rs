//! Several commands of a client that are under way at a unit of another server: they are carried out in its order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use proto::iscsi::header::{DataOut, Header, ScsiCommand, TaskFunction, TaskResponse};
use proto::scsi::Sense;
use proto::scsi::sense::{Additional, Key};
use tempfile::TempDir;

use super::common::Running;
use super::peer::Peer;
use super::units::{TARGET, done, serve_at};
use super::{REWIND, ask, bytes, manage, told, wait_until};

const WRITE: u8 = 0x0A;

/// What a link carries, and whether it does.
#[derive(Default)]
struct Traffic {
    /// No answer comes through.
    is_held: bool,
    /// The operation codes of the commands that were sent.
    sent: Vec<u8>,
    /// How many requests of task management were.
    managed: usize,
    /// The ends of its connections.
    sockets: Vec<TcpStream>,
}

/// The way to a server, on which answers can be held up.
#[derive(Clone)]
struct Link {
    address: SocketAddr,
    traffic: Arc<(Mutex<Traffic>, Condvar)>,
}

impl Link {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Self { address: listener.local_addr().unwrap(), traffic: Arc::default() };
        let shared = link.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(server) = TcpStream::connect(server) else { continue };
                shared.connect(client.unwrap(), server);
            }
        });
        link
    }

    fn connect(&self, client: TcpStream, server: TcpStream) {
        let ends = [(); 3].map(|()| [&client, &server].map(|end| end.try_clone().unwrap()));
        let [[up_from, up_to], [down_to, down_from], ends] = ends;
        self.traffic.0.lock().unwrap().sockets.extend(ends);
        for (from, to, is_up) in [(up_from, up_to, true), (down_from, down_to, false)] {
            let link = self.clone();
            thread::spawn(move || {
                let _ = link.pass(&from, &to, is_up);
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            });
        }
    }

    fn pass(&self, from: &TcpStream, mut to: &TcpStream, is_up: bool) -> io::Result<()> {
        loop {
            let pdu = super::read_pdu(from)?;
            let (traffic, changed) = &*self.traffic;
            let mut traffic = traffic.lock().unwrap();
            match (is_up, pdu[0] & 0x3F) {
                // SCSI Command (RFC 7143, 11.3).
                (true, 0x01) => traffic.sent.push(pdu[32]),
                (true, 0x02) => traffic.managed += 1,
                // SCSI Response and SCSI Data-In (RFC 7143, 11.4 and 11.7).
                (false, 0x21 | 0x25) => drop(changed.wait_while(traffic, |it| it.is_held).unwrap()),
                _ => {}
            }
            to.write_all(&pdu)?;
        }
    }

    fn hold(&self, is_held: bool) {
        self.traffic.0.lock().unwrap().is_held = is_held;
        self.traffic.1.notify_all();
    }

    /// How many writes it has carried.
    fn writes(&self) -> usize {
        let traffic = self.traffic.0.lock().unwrap();
        traffic.sent.iter().filter(|code| **code == WRITE).count()
    }

    fn managed(&self) -> usize {
        self.traffic.0.lock().unwrap().managed
    }

    /// Breaks the connections there are. What is held up never comes.
    fn cut(&self) {
        let sockets = std::mem::take(&mut self.traffic.0.lock().unwrap().sockets);
        for socket in sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.hold(false);
    }
}

/// A server of a tape, and a gateway that passes it on over a link.
struct Far {
    there: TempDir,
    _home: TempDir,
    server: Running,
    link: Link,
    gateway: Running,
    portal: SocketAddr,
}

impl Far {
    fn new(volume: &str) -> Self {
        let (there, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (server, upstream) = serve_at(there.path(), "127.0.0.1:0", &[volume]);
        let link = Link::to(upstream);
        let passed = format!("backup=scsi:iscsi://{}/{TARGET}backup", link.address);
        let (gateway, portal) = serve_at(home.path(), "127.0.0.1:0", &[&passed]);
        Self { there, _home: home, server, link, gateway, portal }
    }

    fn peer(&self, number: u8) -> Peer {
        let name = format!("iqn.2001-04.com.example:{number}");
        let mut peer = Peer::log_in(self.portal, &name, number, &format!("{TARGET}backup"));
        assert_eq!(peer.says(0), Some(Additional::POWER_ON_OR_RESET));
        peer
    }

    /// What tapes hold when nobody uses them any more.
    fn stop<const N: usize>(self, tapes: &[&str; N]) -> [String; N] {
        assert!(self.gateway.stop().success() && self.server.stop().success());
        tapes.map(|tape| done(self.there.path(), &["tape", "info", tape]))
    }
}

/// Writes a block, and does not wait for the answer.
fn send(peer: &mut Peer, data: &[u8]) -> u32 {
    let command = write(peer, data.len() as u32);
    peer.send(command, data.to_vec());
    command.itt
}

/// WRITE (6) of a block of this length.
fn write(peer: &mut Peer, expected_len: u32) -> ScsiCommand {
    let itt = peer.cmd_sn;
    let mut block = [0; 16];
    block[0] = WRITE;
    block[2..5].copy_from_slice(&expected_len.to_be_bytes()[1..]);
    ScsiCommand { write: true, expected_len, ..peer.command(itt, block) }
}

/// Sends the data of a block as they are asked for.
fn send_as_asked(peer: &mut Peer, itt: u32, data: &[u8]) {
    let mut sent = 0;
    while sent < data.len() {
        let pdu = peer.receive().expect("a request for data");
        let Header::R2t(r2t) = pdu.header else { panic!("{:?}", pdu.header) };
        assert_eq!(r2t.itt, itt, "data of another are asked for");
        let at = r2t.buffer_offset as usize;
        let part = &data[at..at + r2t.desired_len as usize];
        let (is_final, ttt, buffer_offset) = (true, r2t.ttt, r2t.buffer_offset);
        let header = DataOut { is_final, itt, ttt, buffer_offset, ..DataOut::default() };
        peer.send(header, part.to_vec());
        sent += part.len();
    }
}

type Answers = BTreeMap<u32, Result<(), Sense>>;

/// The next answers to commands.
fn answers(peer: &mut Peer, count: usize) -> Answers {
    let one = |_| {
        let pdu = peer.receive().expect("an answer");
        let Header::ScsiResponse(response) = pdu.header else { panic!("{:?}", pdu.header) };
        let sense = pdu.data.get(2..).and_then(Sense::parse);
        (response.itt, if response.status == 0 { Ok(()) } else { Err(sense.expect("a reason")) })
    };
    (0..count).map(one).collect()
}

/// Blocks of many lengths: which is which is told by each byte.
fn block(number: u32) -> Vec<u8> {
    bytes((number as usize * 7919) % 60_000 + 1).iter().map(|byte| byte ^ number as u8).collect()
}

/// Reads blocks from the beginning on.
fn expect(peer: &mut Peer, blocks: impl Iterator<Item = u32>) {
    assert_eq!(ask(peer, REWIND, &[], 0), Ok(vec![]));
    blocks.for_each(|number| read(peer, number));
}

/// Reads the next block, which is this one.
fn read(peer: &mut Peer, number: u32) {
    let expected = block(number);
    let length = expected.len() as u32;
    let [_, high, middle, low] = length.to_be_bytes();
    let read = ask(peer, &[0x08, 0, high, middle, low, 0], &[], length);
    assert!(read == Ok(expected), "block {number}");
}

#[test]
fn writes_under_way_together_are_on_the_tape_in_their_order() {
    let far = Far::new("backup=tape:a.tape,size=64M");
    let (mut first, mut second) = (far.peer(1), far.peer(2));
    far.link.hold(true);
    for number in 0..24 {
        send(&mut first, &block(number));
    }
    // All are at the server, and none has been answered.
    wait_until(|| far.link.writes() == 24);
    // Those of another client wait.
    for number in 24..30 {
        send(&mut second, &block(number));
    }
    far.link.hold(false);
    assert!(answers(&mut first, 24).values().all(Result::is_ok));
    assert!(answers(&mut second, 6).values().all(Result::is_ok));
    // Many more than may be under way, with commands of another client between them.
    for batch in 0..5 {
        for number in 0..60 {
            send(&mut first, &block(30 + batch * 60 + number));
        }
        // READ POSITION, of the long form: it waits for its turn.
        let position = ask(&mut second, &[0x34, 6, 0, 0, 0, 0, 0, 0, 0, 0], &[], 32).unwrap();
        let number = u64::from_be_bytes(position[8..16].try_into().unwrap());
        let begun = u64::from(30 + batch * 60);
        assert!((begun..=begun + 60).contains(&number), "{number}");
        assert!(answers(&mut first, 60).values().all(Result::is_ok));
    }
    expect(&mut second, 0..330);
    drop((first, second));
    let [said] = far.stop(&["a.tape"]);
    assert!(said.contains("330 blocks, 0 file marks"), "{said}");
}

/// Their data come with them, and the data of those before do not.
#[test]
fn blocks_do_not_pass_one_whose_data_are_still_to_come() {
    let far = Far::new("backup=tape:a.tape,size=16M");
    let mut peer = far.peer(1);
    let large = bytes(200_000);
    let late = write(&mut peer, large.len() as u32);
    peer.send(late, Vec::new());
    for number in 1..9 {
        send(&mut peer, &block(number));
    }
    assert_eq!(far.link.writes(), 0);
    send_as_asked(&mut peer, late.itt, &large);
    assert!(answers(&mut peer, 9).values().all(Result::is_ok));
    assert_eq!(ask(&mut peer, REWIND, &[], 0), Ok(vec![]));
    assert!(ask(&mut peer, &[0x08, 0, 3, 13, 64, 0], &[], 200_000) == Ok(large));
    for number in 1..9 {
        read(&mut peer, number);
    }
    drop(peer);
    let [said] = far.stop(&["a.tape"]);
    assert!(said.contains("9 blocks, 0 file marks"), "{said}");
}

#[test]
fn writes_under_way_when_the_connection_is_lost_are_carried_out_once_and_each_is_told() {
    let far = Far::new("backup=tape:a.tape,size=16M");
    let mut peer = far.peer(1);
    far.link.hold(true);
    for number in 0..5 {
        send(&mut peer, &block(number));
    }
    wait_until(|| far.link.writes() == 5);
    // They have been carried out, of which the gateway knows nothing.
    wait_until(|| {
        let said = done(far.there.path(), &["status", "--json", "--control", "control.sock"]);
        said.contains("\"writes\":{\"commands\":5,")
    });
    far.link.cut();
    let lost = answers(&mut peer, 5);
    let is_lost = |sense: &Sense| {
        (sense.key, sense.additional) == (Key::AbortedCommand, Additional::COMMUNICATION_FAILURE)
    };
    assert!(lost.values().all(|ended| ended.is_err_and(|sense| is_lost(&sense))), "{lost:?}");
    // The head may be anywhere.
    for number in 0..3 {
        send(&mut peer, &block(number));
    }
    let refused = answers(&mut peer, 3);
    let told = |ended: &Result<(), Sense>| ended.unwrap_err().additional;
    let expected = Additional::SEQUENTIAL_POSITIONING_ERROR;
    assert!(refused.values().all(|ended| told(ended) == expected), "{refused:?}");
    while peer.says(0).is_some() {}
    assert_eq!(far.link.writes(), 5, "none was sent again");
    drop(peer);
    let [said] = far.stop(&["a.tape"]);
    assert!(said.contains("5 blocks, 0 file marks"), "{said}");
}

#[test]
fn writes_behind_one_that_does_not_fit_change_nothing_that_was_written_before() {
    let far = Far::new("backup=tape:a.tape,size=2M");
    let mut peer = far.peer(1);
    let mut ended = Answers::new();
    // So many blocks do not fit.
    for batch in 0..4 {
        for number in 0..32 {
            send(&mut peer, &block(batch * 32 + number));
        }
        ended.extend(answers(&mut peer, 32));
    }
    // Near its end the tape says so, and has written the block (SSC-4, 4.2.5).
    let is_written = |ended: &Result<(), Sense>| match ended {
        Ok(()) => true,
        Err(sense) => sense.key == Key::NoSense && sense.information.unwrap_or(0) == 0,
    };
    let written = ended.values().take_while(|ended| is_written(ended)).count();
    assert!((1..128).contains(&written));
    assert!(ended.values().skip(written).all(|ended| !is_written(ended)), "{ended:?}");
    expect(&mut peer, 0..written as u32);
    drop(peer);
    let [said] = far.stop(&["a.tape"]);
    assert!(said.contains(&format!("{written} blocks, 0 file marks")), "{said}");
}

#[test]
fn writes_sent_before_a_tape_was_exchanged_do_not_reach_the_other() {
    let far = Far::new("backup=tape:a.tape,size=16M");
    let there = far.there.path();
    let mut peer = far.peer(1);
    for number in 0..4 {
        send(&mut peer, &block(number));
    }
    assert!(answers(&mut peer, 4).values().all(Result::is_ok));
    File::create(there.join("b.tape")).unwrap().set_len(16 << 20).unwrap();
    done(there, &["media", "load", "backup", "b.tape", "--control", "control.sock"]);
    for number in 4..52 {
        send(&mut peer, &block(number));
    }
    let ended = answers(&mut peer, 48);
    let mut ended = ended.values().map(|ended| ended.unwrap_err().additional);
    assert_eq!(ended.next(), Some(Additional::MEDIUM_MAY_HAVE_CHANGED));
    assert!(ended.all(|told| told == Additional::SEQUENTIAL_POSITIONING_ERROR));
    assert_eq!(peer.says(0), None);
    assert_eq!(ask(&mut peer, &[WRITE, 0, 0, 0, 3, 0], b"new", 0), Ok(vec![]));
    drop(peer);
    let said = far.stop(&["a.tape", "b.tape"]);
    assert!(said[0].contains("4 blocks, 0 file marks"), "{said:?}");
    assert!(said[1].contains("1 blocks, 0 file marks"), "{said:?}");
}

#[test]
fn abort_of_one_of_several_writes_ends_no_other() {
    let far = Far::new("backup=tape:a.tape,size=16M");
    let mut peer = far.peer(1);
    far.link.hold(true);
    let tags: Vec<_> = (0..3).map(|number| send(&mut peer, &block(number))).collect();
    wait_until(|| far.link.writes() == 3);
    assert_eq!(manage(&mut peer, TaskFunction::ABORT_TASK, tags[1]), TaskResponse::COMPLETE);
    // What comes later waits for the one that was aborted as well.
    let behind = send(&mut peer, &block(3));
    far.link.hold(false);
    let ended: Vec<_> = answers(&mut peer, 3).into_iter().collect();
    assert_eq!(ended, [(tags[0], Ok(())), (tags[2], Ok(())), (behind, Ok(()))]);
    assert_eq!(far.link.managed(), 0);
    // All of them at once.
    far.link.hold(true);
    for number in 4..7 {
        send(&mut peer, &block(number));
    }
    wait_until(|| far.link.writes() == 7);
    assert_eq!(manage(&mut peer, TaskFunction::ABORT_TASK_SET, tags[0]), TaskResponse::COMPLETE);
    wait_until(|| far.link.managed() == 3);
    far.link.hold(false);
    assert_eq!(ask(&mut peer, REWIND, &[], 0), Ok(vec![]));
    expect(&mut peer, 0..4);
    let unknown = ask(&mut peer, &[0x02, 0, 0, 0, 0, 0], &[], 0);
    assert_eq!(told(unknown), Additional::INVALID_COMMAND_OPERATION_CODE);
    drop(peer);
    far.stop(&["a.tape"]);
}
