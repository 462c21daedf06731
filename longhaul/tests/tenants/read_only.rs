//! A client that may only read changes nothing for those who write.

use super::*;
use proto::scsi::Sense;
use proto::scsi::cdb::{Requires, commands};
use proto::scsi::sense::{Additional, Key};

const READER: &str = "iqn.2001-04.com.example:reader";

/// Every way to keep a writer out, or from its data: its name, the command block, and the data-out.
fn harms() -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    // SWP (SPC-4, 7.5.8) and no WCE (SBC-3, 6.5.5).
    let protect = vec![0, 0, 0, 0, 0x0A, 0x0A, 0, 0, 0x08, 0, 0, 0, 0, 0, 0, 0];
    let mut no_cache = vec![0, 0, 0, 0, 0x08, 0x12];
    no_cache.resize(24, 0);
    let select = |length: usize| vec![0x15, 0x10, 0, 0, length as u8, 0];
    let block = || vec![0xEE; 512];
    let unmap = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &[0; 11], &[8], &[0; 4]].concat();
    let long = |head: &[u8], tail: &[u8]| {
        let mut cdb = head.to_vec();
        cdb.resize(16 - tail.len(), 0);
        cdb.extend(tail);
        cdb
    };
    vec![
        ("MODE SELECT of SWP", select(protect.len()), protect),
        ("MODE SELECT of WCE", select(no_cache.len()), no_cache),
        ("START STOP UNIT: stop", vec![0x1B, 0, 0, 0, 0, 0], vec![]),
        ("START STOP UNIT: eject", vec![0x1B, 0, 0, 0, 2, 0], vec![]),
        ("PREVENT MEDIUM REMOVAL", vec![0x1E, 0, 0, 0, 1, 0], vec![]),
        ("RESERVE (6)", vec![0x16, 0, 0, 0, 0, 0], vec![]),
        ("RESERVE (10)", vec![0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0], vec![]),
        ("SANITIZE", vec![0x48, 0x83, 0, 0, 0, 0, 0, 0, 0, 0], vec![]),
        ("FORMAT UNIT", vec![0x04, 0, 0, 0, 0, 0], vec![]),
        ("UNMAP", vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], unmap),
        ("WRITE SAME", long(&[0x93], &[0, 0, 0, 8, 0, 0]), block()),
        ("COMPARE AND WRITE", long(&[0x89], &[0, 0, 0, 1, 0, 0]), [block(), block()].concat()),
        ("ORWRITE", long(&[0x8B], &[0, 0, 0, 1, 0, 0]), block()),
        ("WRITE (10)", vec![0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0], block()),
        ("WRITE AND VERIFY", vec![0x2E, 0, 0, 0, 0, 0, 0, 0, 1, 0], block()),
        ("WRITE ATOMIC", long(&[0x9C], &[0, 0, 0, 1, 0, 0]), block()),
    ]
}

#[test]
fn read_only_client_keeps_no_writer_out() {
    for by in ALL {
        let fixture = Fixture::new(by);
        let mut alice = fixture.log_in("alice", NAME, 1);
        assert_eq!(write(&mut alice, 0), Some(GOOD));
        let mut reader = fixture.log_in("reader", READER, 1);
        for (name, cdb, data) in harms() {
            let (status, sense) = reader.run_on(0, &cdb, data, 0).expect("an answer");
            let sense = Sense::parse(&sense).map(|sense| sense.key);
            assert_eq!(status, CHECK, "{by:?} {name}");
            assert!(matches!(sense, Some(Key::IllegalRequest | Key::DataProtect)), "{by:?} {name}");
            assert!(is_undisturbed(&mut alice, 0), "{by:?} {name}: no unit attention");
            assert_eq!(write(&mut alice, 0), Some(GOOD), "{by:?} {name}");
        }
        assert_eq!(reader.read(0), Some(vec![0x5A; 512]), "{by:?}");
        fixture.end();
    }
}

/// Every command that the unit knows is refused but for those of the list here.
#[test]
fn commands_are_refused_unless_they_only_read() {
    let reads = [
        0x00, 0x03, 0x08, 0x12, 0x1A, 0x1D, 0x25, 0x28, 0x2F, 0x34, 0x35, 0x37, 0x4D, 0x5A, 0x5E,
        0x84, 0x88, 0x8F, 0x90, 0x91, 0x9E, 0xA0, 0xA3, 0xA8, 0xAF, 0xB7,
    ];
    for by in ALL {
        commands_are_refused_unless_they_only_read_by(by, &reads);
    }
}

fn commands_are_refused_unless_they_only_read_by(by: LoginMethod, reads: &[u8]) {
    let fixture = Fixture::new(by);
    let mut reader = fixture.log_in("reader", READER, 1);
    let denied = Some(Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS);
    // The unit is a disk.
    for entry in commands().filter(|entry| entry.types.disk) {
        let mut cdb = vec![0; 16];
        (cdb[0], cdb[1]) = (entry.opcode, entry.action.unwrap_or(0));
        let (status, sense) = reader.run_on(0, &cdb, vec![], 0).expect("an answer");
        let sense = Sense::parse(&sense);
        if entry.requires == Requires::Administrator {
            let unknown = Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE);
            assert_eq!(sense, Some(unknown), "{by:?} {:#04x}", entry.opcode);
            continue;
        }
        let refused = status == CHECK
            && (sense.map(|sense| sense.additional) == denied
                || sense.map(|sense| sense.key) == Some(Key::DataProtect));
        let free = reads.contains(&entry.opcode)
            // PREVENT ALLOW: this is ALLOW. REGISTER.
            || entry.opcode == 0x1E
            || (entry.opcode == 0x5F && matches!(entry.action, Some(0 | 6)));
        let status_only = entry.opcode == 0x5E && entry.action == Some(3);
        assert_eq!(
            refused,
            !free || status_only,
            "{by:?} {:#04x} {:?} {sense:?}",
            entry.opcode,
            entry.action
        );
    }
    fixture.end();
}

/// Registered, it may read what is reserved for the registered; all else it could do would be to others.
#[test]
fn read_only_client_registers_and_no_more() {
    const EXCLUSIVE_ACCESS_REGISTRANTS: u8 = 6;
    const EXCLUSIVE_ACCESS_ALL: u8 = 8;
    for by in ALL {
        let mut fixture = Fixture::new(by);
        let mut alice = fixture.log_in("alice", NAME, 1);
        let mut reader = fixture.log_in("reader", READER, 1);
        // First there, and it does not keep SPC-2's RESERVE from the writer.
        assert_eq!(reserve_out(&mut reader, (REGISTER, 0), (0, 9), 0), Some(GOOD), "{by:?}");
        assert_eq!(run(&mut alice, 0, &[0x16, 0, 0, 0, 0, 0], vec![]), Some(GOOD), "{by:?}");
        assert_eq!(run(&mut alice, 0, &[0x17, 0, 0, 0, 0, 0], vec![]), Some(GOOD), "{by:?}");
        // The same key as the writer's, who makes it last.
        assert_eq!(reserve_out(&mut alice, (REGISTER, 0), (0, 7), APTPL), Some(GOOD), "{by:?}");
        let kind = EXCLUSIVE_ACCESS_REGISTRANTS;
        assert_eq!(reserve_out(&mut alice, (RESERVE, kind), (7, 0), 0), Some(GOOD), "{by:?}");
        assert_eq!(reader.read(0).map(|data| data.len()), Some(512), "{by:?}");
        // It cannot undo that the reservation lasts.
        assert_eq!(reserve_out(&mut reader, (REGISTER, 0), (9, 7), 0), Some(CHECK), "{by:?}");
        assert_eq!(reserve_out(&mut reader, (REGISTER, 0), (9, 7), APTPL), Some(GOOD), "{by:?}");
        for (action, kind) in
            [(RESERVE, kind), (RELEASE, kind), (CLEAR, 0), (PREEMPT, kind), (5, kind), (7, 0)]
        {
            let status = reserve_out(&mut reader, (action, kind), (7, 7), 0);
            assert_eq!(status, Some(CHECK), "{by:?} {action}");
        }
        // Nor register others.
        assert_eq!(reserve_out(&mut reader, (REGISTER, 0), (7, 8), 0x08), Some(CHECK), "{by:?}");
        assert_eq!(reserve_in(&mut alice, 0).1.len(), 8 + 8, "{by:?}: to others it is nobody");
        let (status, keys) = reserve_in(&mut reader, 0);
        assert_eq!((status, keys.len()), (GOOD, 8 + 16), "{by:?}: READ KEYS has both");
        assert_eq!(reserve_in(&mut reader, 1).0, GOOD, "{by:?}");
        assert_eq!(reserve_in(&mut reader, 3).0, CHECK, "{by:?}: who they are is not for it");
        assert_eq!(reserve_in(&mut alice, 3).0, GOOD, "{by:?}");
        // All of that is there after a loss of power, which it could not avert.
        fixture = fixture.restart();
        let mut alice = fixture.log_in("alice", NAME, 1);
        let mut reader = fixture.log_in("reader", READER, 1);
        assert_eq!(reader.read(0).map(|data| data.len()), Some(512), "{by:?}");
        let mut bob = fixture.log_in("bob", READER, 1);
        assert_eq!(write(&mut bob, 0), Some(CONFLICT), "{by:?}");
        assert_eq!(reserve_out(&mut alice, (RELEASE, kind), (7, 0), 0), Some(GOOD), "{by:?}");
        // A reservation of all registrants ends with the last of those who may write.
        let kind = EXCLUSIVE_ACCESS_ALL;
        assert_eq!(reserve_out(&mut alice, (RESERVE, kind), (7, 0), 0), Some(GOOD), "{by:?}");
        assert_eq!(reserve_out(&mut alice, (REGISTER, 0), (7, 0), 0), Some(GOOD), "{by:?}");
        assert_eq!(write(&mut bob, 0), Some(GOOD), "{by:?}");
        // A writer can remove it like any other.
        assert_eq!(reserve_out(&mut bob, (REGISTER, 0), (0, 5), 0), Some(GOOD), "{by:?}");
        assert_eq!(reserve_out(&mut bob, (CLEAR, 0), (5, 0), 0), Some(GOOD), "{by:?}");
        assert_eq!(reserve_in(&mut bob, 0).1.len(), 8, "{by:?}: nobody is left");
        fixture.end();
    }
}

/// Whoever finds another writer's key gives way. One that may only read is no writer.
#[test]
fn writer_gets_a_volume_with_which_a_reader_has_registered() {
    for by in ALL {
        let fixture = Fixture::new(by);
        let mut reader = fixture.log_in("reader", READER, 1);
        assert_eq!(reserve_out(&mut reader, (REGISTER, 0), (0, 5), 0), Some(GOOD), "{by:?}");
        fs::write(fixture.home.path().join("in.img"), vec![7; 1 << 20]).unwrap();
        let (said, copied) = fixture.copy_as_alice("in.img");
        assert!(copied, "{by:?} {said}");
        let told = reserve_in(&mut reader, 0).0;
        assert_eq!(told, CHECK, "{by:?}: told that the writer has released it");
        assert_eq!(reserve_in(&mut reader, 0).1.len(), 8 + 8, "{by:?}: its registration stands");
        fixture.end();
    }
}

impl Fixture {
    /// Has `longhaul copy` write a file to unit 0 for alice; what it said, and whether it was done.
    fn copy_as_alice(&self, from: &str) -> (String, bool) {
        let home = self.home.path();
        let iscsi = format!("iscsi://{}/{TARGET}/0", self.portal);
        let pin = self.key.map(|key| format!("?pin={key}")).unwrap_or_default();
        let (uri, words) = match self.by {
            LoginMethod::Chap => {
                (iscsi, &["--chap-user", "alice", "--chap-secret-file", "alice"][..])
            }
            LoginMethod::Key => (iscsi + &pin, &["--identity", "alice.id"][..]),
            LoginMethod::HyperScsi => {
                let uri = format!("hyperscsi://{}/a{pin}", self.hyperscsi.unwrap());
                (uri, &["--identity", "alice.id", "--site-key", "site-key"][..])
            }
        };
        let mut copy = Command::new(LONGHAUL);
        copy.args(["copy", from, &uri, "--force"]).args(words).current_dir(home);
        let (said, status) = common::run(copy.env("LONGHAUL_STATE_DIR", home.join("client")));
        (said, status.success())
    }
}

/// It has no room but its own: however often it registers, there is room for writers.
#[test]
fn the_registrations_of_readers_leave_room_for_writers() {
    for by in ALL {
        let fixture = Fixture::new(by);
        let mut refused = 0;
        for isid in 0..=u8::MAX {
            let mut reader = fixture.log_in("reader", READER, isid);
            let answer = reserve_out(&mut reader, (REGISTER, 0), (0, 9), 0);
            refused += u32::from(answer == Some(CHECK));
            reader.leave();
            if refused > 2 {
                break;
            }
        }
        assert!(refused > 2, "{by:?}: there is an end");
        let mut alice = fixture.log_in("alice", NAME, 1);
        assert_eq!(reserve_out(&mut alice, (REGISTER, 0), (0, 7), 0), Some(GOOD), "{by:?}");
        fixture.end();
    }
}
