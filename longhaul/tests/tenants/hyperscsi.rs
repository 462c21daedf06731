//! What only HyperSCSI has, and clients that come by it beside others that come by iSCSI.

use std::net::UdpSocket;

use proto::hyperscsi::Ended;
use proto::scsi::Status;
use proto::scsi::Status::ReservationConflict;

use super::raw::write as write_blocks;
use super::*;

impl Client {
    fn write(&mut self) -> Status {
        self.run("a", &write_blocks(0, 1), vec![0x5A; 512]).status
    }

    fn reserve(&mut self, action: u8, (key, action_key): (u64, u64)) -> Status {
        let list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
        self.run("a", &[0x5F, action, EXCLUSIVE_ACCESS, 0, 0, 0, 0, 0, 24, 0], list).status
    }
}

#[test]
fn client_sees_what_it_may_use_and_nothing_else() {
    let fixture = Fixture::new(LoginMethod::Key);
    for (who, expected) in
        [("alice", &["a"][..]), ("bob", &["a", "b"]), ("mallory", &["b"]), ("reader", &["a"])]
    {
        let client = Client::connect(&fixture, who, 1);
        let names: Vec<_> = client.raw.devices.iter().map(|device| &*device.name).collect();
        assert_eq!(names, expected, "{who}");
        assert_eq!(client.raw.devices[0].read_only, who == "reader");
    }
    fixture.end();
}

/// Each connection may make the server hold data: one client has not all of its memory.
#[test]
fn client_has_sixteen_connections_and_its_ports_come_back() {
    let fixture = Fixture::new(LoginMethod::Key);
    let mut clients: Vec<_> =
        (1..=16).map(|port| Client::connect(&fixture, "alice", port)).collect();
    let mut one_more = Client::start(&fixture, "alice", 17);
    assert_eq!(one_more.end(), Ended::ByPeer(4), "it has as many as it may");
    assert_eq!(Client::connect(&fixture, "bob", 17).write(), Status::Good, "others are let in");
    let mut again = Client::connect(&fixture, "alice", 16);
    assert_eq!(again.write(), Status::Good);
    assert_eq!(clients[0].write(), Status::Good);
    fixture.end();
}

#[test]
fn reservation_by_either_transport_keeps_the_other_out() {
    let fixture = Fixture::new(LoginMethod::Key);
    let mut alice = fixture.log_in("alice", NAME, 1);
    let mut bob = Client::connect(&fixture, "bob", 1);
    let good = Status::Good;
    assert_eq!((bob.reserve(REGISTER, (0, 7)), bob.reserve(RESERVE, (7, 0))), (good, good));
    assert_eq!((write(&mut alice, 0), bob.write()), (Some(CONFLICT), good));
    let (status, keys) = reserve_in(&mut alice, 0);
    assert_eq!((status, &keys[8..16]), (GOOD, &7_u64.to_be_bytes()[..]));
    assert_eq!(bob.reserve(RELEASE, (7, 0)), good);
    assert_eq!(reserve_out(&mut alice, (REGISTER, 0), (0, 9), 0), Some(GOOD));
    assert_eq!(reserve_out(&mut alice, (RESERVE, EXCLUSIVE_ACCESS), (9, 0), 0), Some(GOOD));
    assert_eq!((write(&mut alice, 0), bob.write()), (Some(GOOD), ReservationConflict));
    // One that may only read preempts nobody, and the same client on another port holds nothing.
    let mut reader = Client::connect(&fixture, "reader", 1);
    reader.reserve(REGISTER, (0, 5));
    assert_ne!(reader.reserve(PREEMPT, (5, 9)), good);
    assert_eq!((write(&mut alice, 0), bob.write()), (Some(GOOD), ReservationConflict));
    let mut other = Client::connect(&fixture, "bob", 2);
    assert_eq!(other.reserve(RESERVE, (7, 0)), ReservationConflict, "its port is not registered");
    assert_eq!(bob.reserve(PREEMPT, (7, 9)), good);
    assert_eq!((write(&mut alice, 0), bob.write()), (Some(CONFLICT), good));
    fixture.end();
}

#[test]
fn client_that_is_taken_out_is_thrown_out_and_stays_out() {
    let fixture = Fixture::new(LoginMethod::Key);
    let mut bob = Client::connect(&fixture, "bob", 1);
    let mut alice = Client::connect(&fixture, "alice", 1);
    assert_eq!((bob.write(), alice.write()), (Status::Good, Status::Good));
    let rest: Vec<_> = CLIENTS.into_iter().filter(|(who, _)| *who != "bob").collect();
    fixture.reload("", &rest);
    assert_eq!(bob.end(), Ended::ByPeer(3), "what it may use has changed");
    assert_eq!(Client::start(&fixture, "bob", 2).end(), Ended::NoAnswer);
    assert_eq!(alice.write(), Status::Good, "it was not disturbed");
    fixture.end();
}

/// Packets of strangers, and handshakes of a member of the site that is not listed, keep nobody out.
#[test]
fn flood_of_packets_and_handshakes_ends_no_connection_and_keeps_nobody_out() {
    let fixture = Fixture::new(LoginMethod::Key);
    sealing::create(&fixture.home.path().join("stranger.id")).unwrap();
    let mut bob = Client::connect(&fixture, "bob", 1);
    let flood = UdpSocket::bind("127.0.0.1:0").unwrap();
    flood.connect(fixture.hyperscsi.unwrap()).unwrap();
    let mut random = testing::Random::new(10);
    for round in 0..40 {
        for kind in 0..50_u8 {
            let mut packet: Vec<u8> = (0..1200).map(|_| random.word() as u8).collect();
            packet[3] = 2;
            packet[4] = [0x00, 0x10, 0x12, 0x13, 0x16][usize::from(kind) % 5];
            packet[0] |= if kind % 2 == 0 { 0xC0 } else { 0x80 };
            packet[6..8].copy_from_slice(&1176_u16.to_be_bytes());
            // What the kernel does not take is lost, as on any way.
            let _ = flood.send(&packet);
        }
        let mut stranger = Client::start(&fixture, "stranger", round);
        stranger.runtime.block_on(async {
            for _ in 0..4 {
                stranger.raw.step().await;
            }
        });
        assert!(stranger.raw.devices.is_empty());
        assert_eq!(bob.write(), Status::Good);
        if round % 10 == 0 {
            Client::connect(&fixture, "alice", round);
        }
    }
    fixture.end();
}
