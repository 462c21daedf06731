//! An attachment killed at random instants under load, and its server as well: what an NBD flush or FUA has
//! acknowledged is found through the next attachment, and nothing that a dead one had sent comes up later.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use volume::check::Random;

use crate::common::{LONGHAUL, PATIENCE, Running};
use crate::nbd::{ENDED, Nbd};
use crate::port::Port;
use crate::{crashes, pause, seed};

const BLOCK: usize = 512;

/// Blocks that one writer has for itself.
const BLOCKS: usize = 64;

const WRITERS: u64 = 4;

/// The most blocks one request changes.
const MOST: u64 = 8;

/// Requests answered before something is killed, at most.
const ANSWERS: u64 = 300;

/// A program with blocks of its own, and what each of them may hold after a crash.
struct Writer {
    first: usize,
    random: Random,
    /// For each block, oldest first: what it held at the last flush that was answered, and all that was
    /// asked to be written to it since.
    may_hold: Vec<Vec<u64>>,
    next: u64,
}

impl Writer {
    fn new(number: u64, seed: u64) -> Self {
        Self {
            first: number as usize * BLOCKS,
            random: Random::new(seed ^ (number + 1)),
            may_hold: vec![vec![0]; BLOCKS],
            next: (number + 1) << 48,
        }
    }

    fn at(&self, index: usize) -> u64 {
        ((self.first + index) * BLOCK) as u64
    }

    fn some(&mut self) -> (usize, usize) {
        let count = 1 + self.random.below(MOST);
        (self.random.below(BLOCKS as u64 - count + 1) as usize, count as usize)
    }

    /// Does something; an error if the attachment is gone.
    fn step(&mut self, nbd: &mut Nbd) -> Result<(), u32> {
        match self.random.below(100) {
            0..50 => self.write(nbd, false),
            50..63 => self.write(nbd, true),
            63..73 => self.write_zeroes(nbd),
            73..85 => self.look(nbd),
            _ => self.flush(nbd),
        }
    }

    fn write(&mut self, nbd: &mut Nbd, durable: bool) -> Result<(), u32> {
        let (index, count) = self.some();
        let stamps: Vec<u64> = (1..).map(|more| self.next + more).take(count).collect();
        self.next += count as u64;
        let data: Vec<u8> = stamps.iter().flat_map(|stamp| block(*stamp)).collect();
        self.put(index, &stamps);
        if durable {
            nbd.write_durably(self.at(index), &data)?;
            self.may_hold[index..index + count].iter_mut().for_each(settle);
        } else {
            nbd.write(self.at(index), &data)?;
        }
        Ok(())
    }

    fn write_zeroes(&mut self, nbd: &mut Nbd) -> Result<(), u32> {
        let (index, count) = self.some();
        self.put(index, &vec![0; count]);
        nbd.write_zeroes(self.at(index), count * BLOCK)
    }

    fn put(&mut self, index: usize, stamps: &[u64]) {
        for (versions, stamp) in self.may_hold[index..].iter_mut().zip(stamps) {
            versions.push(*stamp);
        }
    }

    /// What was written is read.
    fn look(&mut self, nbd: &mut Nbd) -> Result<(), u32> {
        let (index, count) = self.some();
        let found = nbd.read(self.at(index), count * BLOCK)?;
        for (block, versions) in found.chunks_exact(BLOCK).zip(&self.may_hold[index..]) {
            assert_eq!(Some(&stamp_of(block)), versions.last());
        }
        Ok(())
    }

    fn flush(&mut self, nbd: &mut Nbd) -> Result<(), u32> {
        nbd.flush()?;
        self.may_hold.iter_mut().for_each(settle);
        Ok(())
    }

    /// After a crash, each block holds one of the versions that it may; how many hold an older one than the
    /// newest. From here on it holds that one.
    fn check(&mut self, nbd: &mut Nbd) -> u64 {
        let bytes = nbd.read(self.at(0), BLOCKS * BLOCK).expect("the blocks");
        let mut older = 0;
        for (index, block) in bytes.chunks_exact(BLOCK).enumerate() {
            let (found, versions) = (stamp_of(block), &mut self.may_hold[index]);
            let place = versions.iter().rposition(|version| *version == found);
            let place = place.unwrap_or_else(|| {
                panic!("block {} holds {found:#x}, none of {versions:#x?}", self.first + index)
            });
            older += u64::from(place + 1 < versions.len());
            *versions = vec![found];
        }
        older
    }
}

/// Only the newest version is left.
fn settle(versions: &mut Vec<u64>) {
    versions.drain(..versions.len() - 1);
}

/// A block that says one thing all over.
fn block(stamp: u64) -> Vec<u8> {
    stamp.to_be_bytes().repeat(BLOCK / 8)
}

/// What a block says; one that says two things was torn.
fn stamp_of(block: &[u8]) -> u64 {
    let mut words = block.chunks_exact(8).map(|word| u64::from_be_bytes(word.try_into().unwrap()));
    let first = words.next().unwrap();
    assert!(words.all(|word| word == first), "a block is torn: {block:02x?}");
    first
}

fn serve(home: &Path, portal: SocketAddr) -> Running {
    let mut command = Command::new(LONGHAUL);
    command.args(["serve", "--volume", "disk=file:disk.img,size=1M", "--state", "state"]);
    let server = Running::start(command.args(["--listen", &portal.to_string()]).current_dir(home));
    server.line().expect("the server is ready");
    server
}

/// An attachment that has not been before.
fn attach(home: &Path, portal: SocketAddr, socket: &str) -> Running {
    let mut command = Command::new(LONGHAUL);
    let uri = format!("iscsi://{portal}/iqn.2026-11.dev.longhaul:disk/0");
    let client = Running::start(command.args(["attach", &uri, "--nbd", socket]).current_dir(home));
    client.line().expect("the attachment is ready");
    client
}

/// Runs all writers until the attachment is gone; `end` hears of every answer.
fn under_load(socket: &Path, writers: &mut [Writer], end: impl FnOnce(&Receiver<()>)) {
    let (sender, answered) = channel();
    thread::scope(|scope| {
        for writer in writers {
            let (sender, mut nbd) = (sender.clone(), Nbd::connect(socket));
            scope.spawn(move || {
                let ended = loop {
                    match writer.step(&mut nbd) {
                        Ok(()) => drop(sender.send(())),
                        Err(why) => break why,
                    }
                };
                assert_eq!(ended, ENDED, "a request failed");
            });
        }
        end(&answered);
    });
}

/// An attachment under load, and its server, which one kill after the other ends.
pub(crate) struct Round<'r> {
    /// Which kill it is, from 0.
    pub(crate) kill: u64,
    pub(crate) random: &'r mut Random,
    place: (&'r Path, SocketAddr),
    server: &'r mut Option<Running>,
    server_kills: &'r mut u32,
    answered: &'r Receiver<()>,
}

impl Round<'_> {
    /// Waits for some answers, and a moment longer.
    pub(crate) fn wait_for_answers(&mut self) {
        for _ in 0..self.random.below(ANSWERS) {
            self.answered.recv_timeout(PATIENCE).expect("it goes on");
        }
        pause(self.random, Duration::from_millis(1));
    }

    pub(crate) fn kill_server(&mut self) {
        self.server.take().unwrap().kill();
        *self.server_kills += 1;
    }

    /// The server comes back to where it was.
    pub(crate) fn start_server(&mut self) {
        *self.server = Some(serve(self.place.0, self.place.1));
    }
}

/// Attaches a volume again and again, each time has `end` kill the attachment under load, and checks after each kill that
/// all flushed writes are found by the next attachment.
pub(crate) fn kill_under_load(
    home: &Path,
    attach: impl Fn(&Path, SocketAddr, &str) -> Running,
    mut end: impl FnMut(Round<'_>, Running),
) {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut writers: Vec<_> = (0..WRITERS).map(|number| Writer::new(number, seed)).collect();
    let port = Port::reserve();
    let portal = SocketAddr::from(([127, 0, 0, 1], port.number));
    let mut server = Some(serve(home, portal));
    let (mut older, mut server_kills) = (0, 0);
    for kill in 0..=crashes() {
        let socket = format!("disk.{kill}.sock");
        let client = attach(home, portal, &socket);
        let socket = home.join(socket);
        let mut nbd = Nbd::connect(&socket);
        older += writers.iter_mut().map(|writer| writer.check(&mut nbd)).sum::<u64>();
        drop(nbd);
        if kill == crashes() {
            assert!(client.stop().success());
            break;
        }
        under_load(&socket, &mut writers, |answered| {
            let (random, server, server_kills) = (&mut random, &mut server, &mut server_kills);
            let place = (home, portal);
            end(Round { kill, random, place, server, server_kills, answered }, client);
        });
    }
    assert!(server.unwrap().stop().success());
    println!(
        "{} kills of the client, {server_kills} of the server; {older} blocks fell back",
        crashes()
    );
}

#[test]
fn flushed_writes_survive_a_kill_of_the_client() {
    let home = tempfile::tempdir().unwrap();
    kill_under_load(home.path(), attach, |mut round, client| {
        round.wait_for_answers();
        // Sometimes the server goes as well: before the client, so that it has a loss to ride out.
        if round.kill % 4 == 3 {
            round.kill_server();
            round.start_server();
            round.wait_for_answers();
        }
        client.kill();
    });
}
