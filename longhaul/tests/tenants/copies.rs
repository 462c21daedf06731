//! EXTENDED COPY reads what its client may read, and writes what it may write.

use super::*;

/// From a unit that may be read to one that may be written, and not the other way.
#[test]
fn a_copy_goes_to_no_unit_that_its_client_may_only_read() {
    for by in ALL {
        let fixture = Fixture::new(by);
        let mut alice = fixture.log_in("alice", NAME, 1);
        assert_eq!(write(&mut alice, 0), Some(GOOD));
        let mut mixed = fixture.log_in("mixed", "iqn.2001-04.com.example:mixed", 1);
        let units = [0, 1].map(|lun| designator(&mut mixed, lun));
        // Where it may only read it does not ask for copies either: there is one at a time.
        for (at, allowed) in [(0, CHECK), (1, GOOD)] {
            for (from, to, status) in [(0, 1, allowed), (1, 0, CHECK)] {
                let answer = copy(&mut mixed, at, (&units[from], &units[to])).0;
                assert_eq!(answer, status, "{by:?} {from} to {to}, asked of {at}");
            }
        }
        assert_eq!(mixed.read(1), Some(vec![0x5A; 512]), "{by:?}");
        fixture.end();
    }
}

/// Whoever knows what a unit is called reaches it no better, and is not told whether it is there. Unit `c` is of another
/// target.
#[test]
fn a_copy_reaches_no_unit_that_its_client_does_not_see() {
    for by in ALL {
        let fixture = Fixture::with(by, PRIVATE, &WITH_PRIVATE);
        let mut alice = fixture.log_in("alice", NAME, 1);
        let (mut private, c) = fixture.log_in_to_private("alice", NAME, 2);
        for (session, lun) in [(&mut alice, 0), (&mut private, c)] {
            assert_eq!(write(session, lun), Some(GOOD), "{by:?}");
        }
        let hidden = [designator(&mut alice, 0), designator(&mut private, c)];
        let mut mallory = fixture.log_in("mallory", "iqn.2001-04.com.example:mallory", 1);
        let own = designator(&mut mallory, 1);
        let mut nothing = own.clone();
        *nothing.last_mut().unwrap() ^= 0xFF;
        for (from, to) in [(&own, &nothing), (&nothing, &own)] {
            let told = copy(&mut mallory, 1, (from, to));
            assert_eq!(told.0, CHECK, "{by:?}");
            for unit in &hidden {
                let of = |name| if name == &nothing { unit } else { name };
                let answer = copy(&mut mallory, 1, (of(from), of(to)));
                assert_eq!(answer, told, "{by:?}: as of a unit that there is nowhere");
            }
        }
        assert_eq!(mallory.read(1), Some(vec![0; 512]), "{by:?}: nothing was read");
        // Alice may use both, but they are of two targets.
        for (session, at) in [(&mut alice, 0), (&mut private, c)] {
            for (from, to) in [(0, 1), (1, 0)] {
                let answer = copy(session, at, (&hidden[from], &hidden[to])).0;
                assert_eq!(answer, CHECK, "{by:?} {from} to {to}, asked of {at}");
            }
        }
        assert_eq!(mallory_wrote(&mut alice, &mut private, c), [false; 2], "{by:?}");
        // What she may do is done.
        assert_eq!(copy(&mut mallory, 1, (&own, &own)).0, GOOD, "{by:?}");
        fixture.end();
    }
}

/// Whether the units `a` and `c` have anything else than alice has written.
fn mallory_wrote(alice: &mut Session, private: &mut Session, c: u16) -> [bool; 2] {
    let written = Some(vec![0x5A; 512]);
    [alice.read(0) != written, private.read(c) != written]
}

/// What is reserved for others is copied by nobody else, wherever it asks for it.
#[test]
fn a_copy_passes_no_reservation() {
    for by in ALL {
        let fixture = Fixture::new(by);
        let mut alice = fixture.log_in("alice", NAME, 1);
        assert_eq!(write(&mut alice, 0), Some(GOOD), "{by:?}");
        assert_eq!(reserve_out(&mut alice, (REGISTER, 0), (0, 7), 0), Some(GOOD), "{by:?}");
        let reserve = (RESERVE, EXCLUSIVE_ACCESS);
        assert_eq!(reserve_out(&mut alice, reserve, (7, 0), 0), Some(GOOD), "{by:?}");
        for who in ["bob", "mixed"] {
            let mut other = fixture.log_in(who, NAME, 1);
            let units = [0, 1].map(|lun| designator(&mut other, lun));
            for (from, to) in [(0, 1), (1, 0)] {
                let answer = copy(&mut other, 1, (&units[from], &units[to])).0;
                assert_ne!(answer, GOOD, "{by:?} {who} {from} to {to}");
            }
            assert_eq!(other.read(1), Some(vec![0; 512]), "{by:?} {who}: nothing was read");
        }
        assert_eq!(alice.read(0), Some(vec![0x5A; 512]), "{by:?}");
        fixture.end();
    }
}

/// What a unit is called: NAA or EUI-64 of the unit itself.
fn designator(session: &mut Session, lun: u16) -> Vec<u8> {
    let (status, page) =
        session.run_on(lun, &[0x12, 1, 0x83, 0, 252, 0], Bytes::new(), 252).expect("a page");
    assert_eq!(status, GOOD);
    let mut at = 4;
    loop {
        let end = at + 4 + usize::from(page[at + 3]);
        if page[at + 1] & 0x30 == 0 && matches!(page[at + 1] & 0x0F, 2 | 3) {
            return page[at..end].to_vec();
        }
        at = end;
    }
}

/// Asks unit `at` to copy: the status and the sense data.
fn copy(session: &mut Session, at: u16, (from, to): (&[u8], &[u8])) -> (u8, Vec<u8>) {
    let list = copy_list(from, to);
    let mut cdb = vec![0; 16];
    (cdb[0], cdb[13]) = (0x83, list.len() as u8);
    session.run_on(at, &cdb, list, 0).expect("an answer")
}

/// EXTENDED COPY (LID1) of one block from the first unit to the second (SPC-4, 6.4.3.3 and 6.4.3.7.2).
fn copy_list(from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut list = vec![0; 16];
    (list[3], list[11]) = (64, 28);
    for designator in [from, to] {
        let mut target = vec![0xE4, 0, 0, 0];
        target.extend(designator);
        target.resize(32, 0);
        target[30] = 0x02; // 512 bytes in a block.
        list.extend(target);
    }
    let mut segment = vec![0x02, 0, 0, 0x18, 0, 0, 0, 1, 0, 0, 0, 1];
    segment.resize(28, 0);
    list.extend(segment);
    list
}
