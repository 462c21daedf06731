//! COMPARE AND WRITE of several hosts at a time (SBC-4, 5.3).

use std::sync::Barrier;
use std::thread;

use proto::iscsi::header::{Header, ScsiCommand};
use proto::scsi::Sense;
use proto::scsi::sense::{Additional, Key};

use super::{NAME, TARGET, serve};
use crate::peer::{Peer, write_16};

const ROUNDS: u64 = 64;
const HOSTS: u64 = 2;

/// Commands that one host has on their way at a time.
const DEPTH: u64 = 8;

const LBA: u32 = 5;

/// A block that says one thing all over.
fn block(stamp: u64) -> Vec<u8> {
    stamp.to_be_bytes().repeat(512 / 8)
}

/// What nobody else writes, in any round; never what is there before the first.
const fn stamp(round: u64, host: u64, turn: u64) -> u64 {
    (round * HOSTS + host) * DEPTH + turn + 1
}

/// Sends all commands of a round, each of which expects `before`, and then takes the answers: the stamps that
/// were written.
fn race(peer: &mut Peer, round: u64, host: u64, before: u64) -> Vec<u64> {
    let first = peer.cmd_sn;
    for turn in 0..DEPTH {
        let mut cdb = write_16(LBA, 0);
        (cdb[0], cdb[13]) = (0x89, 1);
        let command = ScsiCommand { write: true, expected_len: 1024, ..peer.command(0, cdb) };
        let command = ScsiCommand { itt: command.cmd_sn, ..command };
        peer.send(command, [block(before), block(stamp(round, host, turn))].concat());
    }
    let mut won = Vec::new();
    for _ in 0..DEPTH {
        let pdu = peer.receive().expect("an answer");
        let Header::ScsiResponse(response) = pdu.header else { panic!("{pdu:?}") };
        if response.status == 0 {
            won.push(stamp(round, host, u64::from(response.itt - first)));
            continue;
        }
        assert_eq!(response.status, 2, "CHECK CONDITION");
        let sense = Sense::parse(&pdu.data[2..]).expect("sense data");
        let miscompare = (Key::Miscompare, Additional::MISCOMPARE_DURING_VERIFY);
        assert_eq!((sense.key, sense.additional), miscompare);
    }
    won
}

/// One host, round after round: what it has won, and what it found in the block when a round was over.
fn play(peer: &mut Peer, host: u64, line_up: &Barrier) -> Vec<(Vec<u64>, u64)> {
    let mut before = 0;
    let round = |round| {
        line_up.wait();
        let won = race(peer, round, host, before);
        line_up.wait();
        let found = peer.read(u32::MAX - 1, LBA, 1).expect("good status");
        before = u64::from_be_bytes(found[..8].try_into().unwrap());
        assert_eq!(found, block(before), "a block is torn");
        (won, before)
    };
    (0..ROUNDS).map(round).collect()
}

#[test]
fn one_of_all_that_compare_and_write_at_once_wins() {
    let home = tempfile::tempdir().unwrap();
    // In a file: its reads and writes are waited for, so that another command can come between them.
    let image = home.path().join("disk.img");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let volume = format!("disk=file:{}", image.display());
    let arguments = ["--volume", &volume, "--listen", "127.0.0.1:0"].map(str::to_owned);
    let (server, portal) = serve(&arguments, 1);
    let mut hosts: Vec<_> = (0..HOSTS)
        .map(|host| Peer::log_in(portal, &format!("{NAME}{host}"), host as u8, TARGET))
        .collect();
    hosts.iter_mut().for_each(Peer::settle);
    let line_up = &Barrier::new(hosts.len());
    let played: Vec<_> = thread::scope(|scope| {
        let playing: Vec<_> = (0..)
            .zip(&mut hosts)
            .map(|(host, peer)| scope.spawn(move || play(peer, host, line_up)))
            .collect();
        playing.into_iter().map(|host| host.join().unwrap()).collect()
    });
    for round in 0..ROUNDS as usize {
        let won: Vec<_> = played.iter().flat_map(|host| host[round].0.clone()).collect();
        for host in &played {
            assert_eq!(won, [host[round].1], "round {round}: one has won, and his is there");
        }
    }
    drop(hosts);
    assert!(server.stop().success());
}
