//! Disks that fail, bits that flip, and another writer: what is lost is told, and nothing is told that is not so.

use volume::Span;
use volume::layer::journal::{
    Action, Cause, Content, Corruption, Refused, State, Superblock, superblock_offset,
};

use crate::disk::{Crash, SECTOR};
use crate::simulation::{CrashState, FILE_LEN, Request, Simulation, scan};
use crate::store::BLOCK;

const BLOCKS: usize = 6;
const RING_START: u64 = 2 << 20;

const fn span(at: u64, len: u64) -> Span {
    Span::new(at * BLOCK, len * BLOCK)
}

/// Some groups, of which a part is not sent, and a frame that vouches for the last of them.
fn quiet_world() -> Simulation {
    let mut simulation = Simulation::new(BLOCKS);
    for number in 0..3 {
        simulation.request(Request::Write(span(number, 2)));
        simulation.request(Request::Zero(span(number + 3, 1)));
        simulation.request(Request::Flush);
    }
    simulation.settle_disk();
    simulation.journal.idle();
    simulation.poll();
    simulation.settle_disk();
    simulation
}

/// The bytes of the file that hold something.
fn used(simulation: &Simulation) -> impl Iterator<Item = u64> {
    let sectors = (0..FILE_LEN / SECTOR).map(|sector| sector * SECTOR);
    let used =
        move |offset: &u64| simulation.disk.read(*offset, SECTOR).unwrap() != [0; SECTOR as usize];
    sectors.filter(used).flat_map(|offset| offset..offset + SECTOR)
}

/// What is found on a disk, by what was acknowledged: panics if it is told as whole and is not.
fn is_told(simulation: &Simulation, disk: crate::disk::Disk) -> bool {
    let left = simulation.crash(Crash::Power, &mut || false);
    simulation.reopen(CrashState { disk, ..left }).is_err()
}

#[test]
fn no_flipped_bit_of_what_was_acknowledged_is_silent() {
    let simulation = quiet_world();
    let (mut told, mut harmless) = (0, 0);
    for offset in used(&simulation) {
        for bit in [0, 3, 7] {
            let mut disk = simulation.disk.clone();
            disk.flip(offset, bit);
            match is_told(&simulation, disk) {
                true => told += 1,
                false => harmless += 1,
            }
        }
    }
    println!("{told} flips told, {harmless} where nothing is lost");
    assert!(told > 3 * 3 * (128 + 2 * BLOCK), "each byte of each frame");
}

#[test]
fn no_unreadable_sector_of_the_log_is_taken_for_its_end() {
    let simulation = quiet_world();
    let sectors = (RING_START..FILE_LEN).step_by(SECTOR as usize);
    for offset in sectors {
        let mut disk = simulation.disk.clone();
        disk.make_unreadable(offset);
        let found = scan(&disk).unwrap_err();
        assert!(matches!(found, Corruption::Unreadable { .. }), "{found}");
    }
}

#[test]
fn a_lost_superblock_is_told_if_anything_relies_on_it() {
    let mut simulation = Simulation::new(BLOCKS);
    let mut lost = 0;
    for number in 0..40 {
        simulation.request(Request::Write(span(number % 5, 2)));
        simulation.request(Request::Flush);
        simulation.settle();
        for place in [0, 1] {
            let mut disk = simulation.disk.clone();
            disk.flip(superblock_offset(place) + 100, 1);
            lost += u64::from(is_told(&simulation, disk.clone()));
            disk.flip(superblock_offset(1 - place) + 100, 1);
            let found = scan(&disk).unwrap_err();
            assert!(matches!(found, Corruption::NoSuperblock(..)), "{found}");
        }
    }
    assert!(lost > 5, "{lost}");
}

#[test]
fn a_write_of_the_journal_that_fails_is_never_tried_again() {
    let mut failed = 0;
    for after in 0.. {
        let mut simulation = Simulation::new(BLOCKS);
        simulation.disk.fail_after = Some(after);
        for number in 0..6 {
            simulation.request(Request::Write(span(number % 4, 2)));
            simulation.request(Request::Flush);
            if number % 2 == 1 {
                simulation.settle();
            }
        }
        simulation.settle();
        let state = simulation.journal.status().state;
        if state == State::Open {
            break;
        }
        failed += 1;
        assert_eq!(state, State::Broken(Cause::File));
        assert!(simulation.journal.poll().is_none());
        // What was accepted can still be read, and had by other ways.
        let seen = simulation.contents();
        simulation.history.clone().recover(&seen);
        let before = simulation.refused.len();
        simulation.request(Request::Flush);
        simulation.request(Request::Write(span(0, 1)));
        simulation.journal.idle();
        simulation.journal.close();
        simulation.poll();
        assert!(simulation.io.is_empty(), "{:?}", simulation.io);
        assert_eq!(simulation.refused[before..], [Refused::Broken(Cause::File); 2]);
        // The disk works again for the next who opens it: what was acknowledged is there.
        simulation.disk.fail_after = None;
        simulation.crashed(Crash::Power, &mut || false).finish();
    }
    assert!(failed > 6, "{failed}");
}

#[test]
fn bytes_that_rot_after_they_were_verified_are_not_sent() {
    let mut simulation = Simulation::new(BLOCKS);
    simulation.request(Request::Write(span(0, 6)));
    simulation.request(Request::Flush);
    simulation.settle_disk();
    let mut simulation = simulation.crashed(Crash::Power, &mut || false);
    let extents = simulation.journal.unsent().filter_map(|unsent| match &unsent.content {
        Content::Write { extent, .. } => *extent,
        _ => None,
    });
    let extent = extents.last().expect("it was not sent");
    simulation.disk.flip(extent.offset + extent.len - 1, 4);
    simulation.settle();
    assert_eq!(simulation.sent, 0);
    assert_eq!(simulation.journal.status().state, State::Broken(Cause::Store));
    simulation.request(Request::Flush);
    assert_eq!(simulation.refused, [Refused::Broken(Cause::Store)]);
}

/// Whatever is under way when another writer takes the volume over.
#[test]
fn nothing_is_sent_once_the_journal_is_frozen() {
    for events in 0..60 {
        let mut simulation = Simulation::new(BLOCKS);
        let mut pending = 0;
        for event in 0..events {
            if event % 4 == 0 {
                simulation.request(if pending % 2 == 0 {
                    Request::Write(span(pending % 5, 2))
                } else {
                    Request::Flush
                });
                pending += 1;
            } else if !simulation.io.is_empty() {
                simulation.complete(0);
            }
        }
        let sent = simulation.sent;
        simulation.journal.fenced();
        simulation.poll();
        simulation.request(Request::Write(span(0, 1)));
        simulation.request(Request::Flush);
        simulation.journal.idle();
        simulation.settle();
        simulation.journal.close();
        simulation.settle();
        assert_eq!((simulation.sent, simulation.journal.status().state), (sent, State::Frozen));
        assert!(simulation.refused.iter().all(|refused| *refused == Refused::Frozen));
        assert!(simulation.refused.len() >= 2);
        let unsent = simulation.journal.unsent().count();
        let mut again = simulation.crashed(Crash::Power, &mut || false);
        again.journal.idle();
        again.request(Request::Flush);
        assert!(again.io.is_empty() && again.sent == 0, "{:?}", again.io);
        assert_eq!(again.journal.status().state, State::Frozen);
        assert!(again.journal.unsent().count() >= unsent, "it can be exported");
    }
}

#[test]
fn a_superblock_says_who_may_write_and_how_often_it_was_opened() {
    let mut simulation = Simulation::new(BLOCKS);
    for epoch in 1..4 {
        let Some(Action::Sync) = simulation.io.front() else { panic!("{:?}", simulation.io) };
        simulation.settle();
        let newest = [0, 1].map(|place| {
            Superblock::decode(&simulation.disk.read(superblock_offset(place), 512).unwrap())
                .unwrap()
        });
        let newest = newest.into_iter().max_by_key(|superblock| superblock.number).unwrap();
        assert_eq!((newest.epoch, newest.token), (epoch, 77));
        simulation = simulation.crashed(Crash::Power, &mut || false);
    }
}
