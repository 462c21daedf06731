//! Commands that do not end: a volume that does not answer, and sessions that end each other's commands while
//! those wait for one another, and initiators that take no answer. Whoever can go on goes on, and nothing lands
//! after it was said to be dead.

#[expect(dead_code, reason = "each test uses its part")]
mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longhaul::front::iscsi::{Limits, Node, Server};
use longhaul::stop::{Stop, Stopper};
use longhaul::target::lun::{Options, TargetDevice};
use peer::{NO_ITT, Peer, login, read_16, text, write_16};
use proto::iscsi::header::{
    Header, LogoutReason, LogoutRequest, NopOut, ScsiCommand, TaskFunction, TaskManagementRequest,
    TaskResponse,
};
use proto::iscsi::login::policy::Policy;
use proto::scsi::lun;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use volume::Volume;
use volume::store::blocked_writes::BlockedWrites;
use volume::store::memory::Memory;

const TARGET: &str = "iqn.2026-11.dev.longhaul:t";
const BLOCK: usize = 512;
const SIZE: u64 = 64 << 20;

/// A target on a disk that does not answer writes until it is told to; it runs until the test ends it.
struct Fixture {
    volume: Arc<BlockedWrites<Memory>>,
    portal: SocketAddr,
    stopper: Stopper,
    server: JoinHandle<bool>,
    /// Several threads, so that sessions run at once.
    runtime: Runtime,
}

impl Fixture {
    fn new() -> Self {
        Self::with(Limits {
            // Nothing but what happens may wake a session: a ping would hide an answer that is stuck.
            ping_after: Duration::from_secs(3600),
            ..Limits::default()
        })
    }

    fn with(limits: Limits) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let (runtime, volume) =
            (runtime.unwrap(), BlockedWrites::new(Memory::new(SIZE, BLOCK as u32)));
        let volume = Arc::new(volume);
        let unit: Arc<dyn Volume> = Arc::clone(&volume) as _;
        let other: Arc<dyn Volume> = Arc::new(Memory::new(1 << 20, BLOCK as u32));
        let units = [(0, unit, Options::default()), (1, other, Options::default())];
        let device = TargetDevice::new(TARGET, units);
        let limits = Limits {
            // A login that has to wait is refused soon; one that need not is done by then, on a busy machine too.
            login: Duration::from_secs(3),
            ..limits
        };
        let node = Node::new([device], Policy::open).with_limits(limits);
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = runtime.block_on(Server::bind(&[listen], node)).unwrap();
        let portal = server.portals()[0];
        let (stopper, stop): (_, Stop) = Stopper::new();
        let server = runtime.spawn(server.run(stop));
        Self { volume, portal, stopper, server, runtime }
    }

    /// A session of initiator `n` that has been told of the power on.
    fn peer(&self, n: u8) -> Peer {
        let mut peer = Peer::log_in(self.portal, &name(n), n, TARGET);
        peer.settle();
        peer
    }

    fn end(self) {
        self.stopper.call();
        self.runtime.block_on(self.server).unwrap();
    }
}

fn name(n: u8) -> String {
    format!("iqn.2000-01.example:{n}")
}

/// Sends a write and does not wait for it.
fn begin_write(peer: &mut Peer, itt: u32, byte: u8) {
    let command = peer.command(itt, write_16(0, 1));
    let command = ScsiCommand { write: true, expected_len: BLOCK as u32, ..command };
    peer.send(command, vec![byte; BLOCK]);
}

const REGISTER: u8 = 6; // AND IGNORE EXISTING KEY
const PREEMPT_AND_ABORT: u8 = 5;

/// Sends PERSISTENT RESERVE OUT for Write Exclusive and does not wait for it.
fn begin_change(peer: &mut Peer, itt: u32, action: u8, key: u64, action_key: u64) {
    let mut cdb = [0; 16];
    cdb[..9].copy_from_slice(&[0x5F, action, 1, 0, 0, 0, 0, 0, 24]);
    let command = peer.command(itt, cdb);
    let list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    peer.send(ScsiCommand { write: true, expected_len: 24, ..command }, list);
}

fn change(peer: &mut Peer, itt: u32, action: u8, key: u64, action_key: u64) -> Option<bool> {
    begin_change(peer, itt, action, key, action_key);
    peer.status(itt)
}

/// Sends an immediate task management function.
fn manage(peer: &mut Peer, itt: u32, function: TaskFunction, referenced_tag: u32) {
    let request = TaskManagementRequest {
        immediate: true,
        function,
        itt,
        referenced_tag,
        cmd_sn: peer.cmd_sn,
        ..TaskManagementRequest::default()
    };
    peer.send(request, Bytes::new());
}

/// The next PDU that is no answer to a command.
fn answer(peer: &mut Peer) -> Header {
    loop {
        let header = peer.receive().expect("the session stands still").header;
        if !matches!(header, Header::ScsiResponse(_)) {
            return header;
        }
    }
}

fn expect_managed(peer: &mut Peer, itt: u32) {
    match answer(peer) {
        Header::TaskManagementResponse(response) => {
            assert_eq!((response.itt, response.response), (itt, TaskResponse::COMPLETE));
        }
        other => panic!("{other:?}"),
    }
}

/// What was sent before has been taken in, and not answered.
fn expect_silence(peer: &mut Peer) {
    let nop = NopOut { immediate: true, itt: 0x4000, ttt: NO_ITT, ..NopOut::default() };
    peer.send(NopOut { cmd_sn: peer.cmd_sn, ..nop }, Bytes::new());
    let echo = peer.receive().expect("an echo").header;
    assert!(matches!(echo, Header::NopIn(_)), "{echo:?}");
}

/// A logout is answered when every command of the session is dead.
fn log_out(mut peer: Peer) {
    let request = LogoutRequest {
        immediate: true,
        reason: LogoutReason::CLOSE_SESSION,
        itt: 0x5000,
        cmd_sn: peer.cmd_sn,
        ..LogoutRequest::default()
    };
    peer.send(request, Bytes::new());
    let answer = answer(&mut peer);
    assert!(matches!(answer, Header::LogoutResponse(_)), "{answer:?}");
}

/// Sends an EXTENDED COPY of a block of unit 1 to unit 0, which is a task of unit 1, and does not wait for it.
fn begin_copy(peer: &mut Peer, itt: u32) {
    let mut list = vec![1, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
    for unit in [1, 0] {
        while peer.says(unit).is_some() {}
        let (_, page) =
            peer.run_on(unit, &[0x12, 1, 0x83, 0, 252, 0], Bytes::new(), 252).expect("an answer");
        // The NAA designator, in an identification descriptor.
        let at = page.windows(4).position(|header| header == [1, 3, 0, 8]).unwrap();
        list.extend([&[0xE4, 0, 0, 0], &page[at..at + 12], &[0; 16]].concat());
    }
    list.extend([&[2, 0, 0, 24, 0, 0, 0, 1, 0, 0, 0, 1][..], &[0; 16]].concat());
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x83, list.len() as u8);
    let command = peer.command(itt, cdb);
    let lun = u64::from_be_bytes(lun::encode(1));
    let expected_len = list.len() as u32;
    peer.send(ScsiCommand { lun, write: true, expected_len, ..command }, list);
}

#[test]
fn reset_of_a_unit_waits_for_a_copy_to_it_that_is_a_task_of_another() {
    for function in [TaskFunction::LOGICAL_UNIT_RESET, TaskFunction::CLEAR_TASK_SET] {
        let fixture = Fixture::new();
        let (mut one, mut two) = (fixture.peer(1), fixture.peer(2));
        begin_copy(&mut one, 0x10);
        while fixture.volume.waiting() == 0 {
            thread::yield_now();
        }
        manage(&mut two, 0x20, function, u32::MAX);
        for _ in 0..50 {
            expect_silence(&mut two);
        }
        fixture.volume.let_through(1);
        expect_managed(&mut two, 0x20);
        assert_eq!(fixture.volume.waiting(), 0);
        assert_eq!(one.status(0x10), Some(true), "it had written all");
        log_out(one);
        log_out(two);
        fixture.end();
    }
}

/// What two sessions do to each other at the same time.
fn cross(fixture: &Fixture, rounds: usize, act: impl Fn(&mut Peer, [u64; 2]) + Send + Sync) {
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for [me, other] in [[1, 2], [2, 1]] {
            let (start, act) = (&start, &act);
            scope.spawn(move || {
                for _ in 0..rounds {
                    let mut peer = fixture.peer(me as u8);
                    start.wait();
                    act(&mut peer, [me, other]);
                    log_out(peer);
                }
            });
        }
    });
}

/// SPC-4, 5.13.11.2.6: PREEMPT AND ABORT waits for the commands of those it preempts. Where they do it to each
/// other at once, each is among what the other waits for.
#[test]
fn sessions_that_preempt_each_other_go_on() {
    let fixture = Fixture::new();
    fixture.volume.let_through(usize::MAX);
    cross(&fixture, 100, |peer, [me, other]| {
        for itt in (0..24).step_by(2) {
            begin_change(peer, itt, REGISTER, 0, me);
            begin_change(peer, itt + 1, PREEMPT_AND_ABORT, me, other);
        }
    });
    fixture.end();
}

/// RFC 7143, 4.2.3.3: each answers when the commands of both sessions are dead, and is no command itself.
#[test]
fn resets_that_cross_are_all_answered() {
    const FUNCTIONS: [TaskFunction; 4] = [
        TaskFunction::CLEAR_TASK_SET,
        TaskFunction::LOGICAL_UNIT_RESET,
        TaskFunction::TARGET_WARM_RESET,
        TaskFunction::ABORT_TASK_SET,
    ];
    let fixture = Fixture::new();
    fixture.volume.let_through(usize::MAX);
    cross(&fixture, 50, |peer, [me, other]| {
        for itt in (0..16).step_by(4) {
            begin_change(peer, itt, REGISTER, 0, me);
            begin_change(peer, itt + 1, PREEMPT_AND_ABORT, me, other);
            begin_write(peer, itt + 2, me as u8);
            manage(peer, 0x1000 + itt, FUNCTIONS[itt as usize / 4], NO_ITT);
        }
        let mut answered: Vec<u32> = FUNCTIONS
            .iter()
            .map(|_| match answer(peer) {
                Header::TaskManagementResponse(response) => response.itt,
                other => panic!("{other:?}"),
            })
            .collect();
        answered.sort_unstable();
        assert_eq!(answered, [0x1000, 0x1004, 0x1008, 0x100C]);
    });
    fixture.end();
}

/// RFC 7143, 11.5.1: an abort is answered when the command can do nothing any more, not before.
#[test]
fn an_abort_waits_for_a_volume_that_does_not_answer() {
    for function in [TaskFunction::ABORT_TASK, TaskFunction::LOGICAL_UNIT_RESET] {
        let fixture = Fixture::new();
        let mut peer = fixture.peer(1);
        begin_write(&mut peer, 1, 7);
        manage(&mut peer, 2, function, 1);
        expect_silence(&mut peer);
        // The session goes on meanwhile, and so do others.
        for peer in [&mut peer, &mut fixture.peer(2)] {
            assert!((3..5).any(|itt| peer.read(itt, 0, 1).is_some()));
        }
        assert_eq!(fixture.volume.passed(), 0);
        fixture.volume.let_through(1);
        expect_managed(&mut peer, 2);
        assert_eq!(fixture.volume.passed(), 1);
        log_out(peer);
        fixture.end();
    }
}

/// SPC-4, 5.13.11.2.6: so does one who preempts. He need not wait for ever: his command can be aborted, though
/// what he preempted stays so.
#[test]
fn command_that_waits_for_a_stuck_one_can_be_aborted() {
    let fixture = Fixture::new();
    let (mut victim, mut peer) = (fixture.peer(1), fixture.peer(2));
    assert_eq!(change(&mut victim, 1, REGISTER, 0, 1), Some(true));
    assert_eq!(change(&mut peer, 1, REGISTER, 0, 2), Some(true));
    begin_write(&mut victim, 2, 7);
    expect_silence(&mut victim);
    begin_change(&mut peer, 2, PREEMPT_AND_ABORT, 2, 1);
    expect_silence(&mut peer);
    manage(&mut peer, 3, TaskFunction::ABORT_TASK, 2);
    expect_managed(&mut peer, 3);
    assert_eq!(fixture.volume.passed(), 0);
    // What it has done stays done: told once, then refused as one who is not registered.
    assert_eq!(change(&mut victim, 3, PREEMPT_AND_ABORT, 1, 2), Some(false), "it is told");
    assert_eq!(change(&mut victim, 4, PREEMPT_AND_ABORT, 1, 2), Some(false), "it is nobody");
    fixture.volume.let_through(1);
    log_out(peer);
    log_out(victim);
    fixture.end();
}

/// A login as `n`; the class and detail of the answer.
fn try_login(fixture: &Fixture, n: u8) -> (Peer, (u8, u8)) {
    let mut peer = Peer::connect(fixture.portal);
    peer.send(login(n), text(&name(n), TARGET));
    match peer.receive().expect("an answer").header {
        Header::LoginResponse(answer) => (peer, (answer.status_class, answer.status_detail)),
        other => panic!("{other:?}"),
    }
}

/// RFC 7143, 6.3.5: a session takes the place of an old one when the old one's commands are dead. Where they do
/// not die, it is refused for now: a write of the old session must not land behind one of the new.
#[test]
fn a_login_anew_never_overtakes_a_stuck_write() {
    const SERVICE_UNAVAILABLE: (u8, u8) = (3, 1);
    for connected in [true, false] {
        let fixture = Fixture::new();
        let mut old = fixture.peer(1);
        begin_write(&mut old, 1, 1);
        begin_write(&mut old, 2, 1);
        expect_silence(&mut old);
        let old = connected.then_some(old);
        assert_eq!(try_login(&fixture, 1).1, SERVICE_UNAVAILABLE);
        // Others are not concerned.
        let mut other = fixture.peer(2);
        assert!(other.read(1, 0, 1).is_some());
        assert_eq!(fixture.volume.passed(), 0);
        fixture.volume.let_through(3);
        let mut new = loop {
            match try_login(&fixture, 1) {
                (peer, (0, 0)) => break peer,
                (_, refused) => assert_eq!(refused, SERVICE_UNAVAILABLE),
            }
        };
        assert_eq!(fixture.volume.passed(), 2, "before the login was answered");
        new.settle();
        assert_eq!(new.write(1, 0, vec![2; BLOCK], false), Some(true));
        assert_eq!(other.read(2, 0, 1), Some(vec![2; BLOCK]));
        drop(old);
        fixture.end();
    }
}

/// Asks for the largest answer there is.
fn begin_large_read(peer: &mut Peer, itt: u32) {
    const BLOCKS: u32 = longhaul::target::lun::TRANSFER_MAX / BLOCK as u32;
    let command = peer.command(itt, read_16(0, BLOCKS));
    let expected_len = longhaul::target::lun::TRANSFER_MAX;
    peer.send(ScsiCommand { read: true, expected_len, ..command }, Bytes::new());
}

/// They hold all there is for large requests, for as long as they like. Requests of moderate size, in both
/// directions, are served all the same.
#[test]
fn initiators_that_take_no_answer_leave_room_for_others() {
    const MODERATE: u32 = 1 << 20;
    let fixture = Fixture::new();
    fixture.volume.let_through(usize::MAX);
    let mut greedy: Vec<_> = (1..=3).map(|n| fixture.peer(n)).collect();
    begin_large_read(&mut greedy[0], 1);
    greedy[0].peek();
    // The others wait for the same room.
    for peer in &mut greedy[1..] {
        begin_large_read(peer, 1);
        expect_silence(peer);
    }
    let mut modest = fixture.peer(4);
    for itt in 1..4 {
        let data = vec![itt as u8; MODERATE as usize];
        assert_eq!(modest.write_solicited(itt, 0, &data), Some(true));
        assert_eq!(modest.read(itt, 0, MODERATE / BLOCK as u32), Some(data));
    }
    drop(greedy);
    // What they held is free again.
    begin_large_read(&mut modest, 9);
    modest.peek();
    drop(modest);
    fixture.end();
}

/// Announces a write of 32 MiB, is asked for its data, and brings none.
fn begin_empty_write(peer: &mut Peer, itt: u32) {
    const BLOCKS: u32 = longhaul::target::lun::TRANSFER_MAX / BLOCK as u32;
    let command = peer.command(itt, write_16(0, BLOCKS));
    let expected_len = longhaul::target::lun::TRANSFER_MAX;
    peer.send(ScsiCommand { write: true, expected_len, ..command }, Bytes::new());
    let asked = peer.receive().expect("it is asked for its data").header;
    assert!(matches!(asked, Header::R2t(_)), "{asked:?}");
}

/// Answers pings until the session ends; whether it does so before `deadline`.
fn answers_pings_until_it_ends(peer: &mut Peer, deadline: Instant) -> bool {
    while Instant::now() < deadline {
        match peer.receive_any().map(|pdu| pdu.header) {
            None => return true,
            Some(Header::NopIn(ping)) => {
                let nop =
                    NopOut { immediate: true, itt: NO_ITT, ttt: ping.ttt, ..NopOut::default() };
                let _ = peer.try_send(NopOut { cmd_sn: peer.cmd_sn, ..nop }, Bytes::new());
            }
            Some(Header::AsyncMessage(_)) => {}
            Some(other) => panic!("{other:?}"),
        }
    }
    false
}

/// An initiator that sends nothing of what it is asked for, and answers pings, leaves the memory to others, and is
/// ended.
#[test]
fn initiator_that_sends_no_data_leaves_room_for_others_and_is_ended() {
    const LARGE: u32 = 4 << 20;
    let patience = Duration::from_secs(3);
    let limits = Limits { ping_after: patience / 3, ping_patience: patience, ..Limits::default() };
    let fixture = Fixture::with(limits);
    fixture.volume.let_through(usize::MAX);
    let mut idle = fixture.peer(1);
    begin_empty_write(&mut idle, 0x20);
    thread::scope(|scope| {
        let deadline = Instant::now() + common::PATIENCE;
        let ended = scope.spawn(move || answers_pings_until_it_ends(&mut idle, deadline));
        let mut modest = fixture.peer(2);
        let data = vec![7; LARGE as usize];
        assert_eq!(modest.write_solicited(0x20, 0, &data), Some(true));
        assert_eq!(modest.read(0x21, 0, LARGE / BLOCK as u32), Some(data));
        drop(modest);
        assert!(ended.join().unwrap(), "it holds what it was promised for ever");
    });
    fixture.end();
}

/// What a session has held and given back is not its own: it waits for memory as before.
#[test]
fn memory_of_an_earlier_write_is_reserved_anew_for_the_next() {
    const LARGE: usize = longhaul::target::lun::TRANSFER_MAX as usize;
    let fixture = Fixture::new();
    fixture.volume.let_through(usize::MAX);
    let mut peers = [1, 2].map(|n| fixture.peer(n));
    for peer in &mut peers {
        assert_eq!(peer.write_solicited(0x20, 0, &vec![7; LARGE]), Some(true));
    }
    let [mut one, mut two] = peers;
    // It has sent as much before, so that it is asked for all of it.
    begin_empty_write(&mut one, 0x21);
    let command = two.command(0x21, write_16(0, (LARGE / BLOCK) as u32));
    let expected_len = LARGE as u32;
    two.send(ScsiCommand { write: true, expected_len, ..command }, Bytes::new());
    expect_silence(&mut two);
    drop(one);
    let asked = two.receive().expect("it is asked for its data").header;
    assert!(matches!(asked, Header::R2t(_)), "{asked:?}");
    drop(two);
    fixture.end();
}

/// Sessions that are dropped may leave a write under way that nobody waits for: whoever closes the volume has to know.
#[test]
fn server_says_whether_its_sessions_have_ended() {
    let fixture = Fixture::with(Limits { stop: Duration::ZERO, ..Limits::default() });
    let mut peer = fixture.peer(1);
    begin_write(&mut peer, 9, 7);
    while fixture.volume.waiting() == 0 {
        thread::yield_now();
    }
    fixture.stopper.call();
    assert!(!fixture.runtime.block_on(fixture.server).unwrap(), "the write is under way");
    fixture.volume.let_through(1);
    let idle = Fixture::new();
    idle.stopper.call();
    assert!(idle.runtime.block_on(idle.server).unwrap());
}
