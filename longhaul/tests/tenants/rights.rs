//! What a client may do ends when its rights are taken away, whatever it was doing then.

use proto::iscsi::header::ScsiCommand;

use super::tasks::{begin_write, send_data};
use super::*;

/// Nobody has to log out for what follows.
const PATIENT: &str = "[limits]\nstop = '1h'\nping_after = '1h'\n";

/// The clients, of whom alice may do this.
fn clients(alice: Option<&'static str>) -> Vec<(&'static str, &'static str)> {
    alice.map(|rights| ("alice", rights)).into_iter().chain(CLIENTS[1..].iter().copied()).collect()
}

/// One who is asked to log out and stays has nothing more of it; nor has one whose write waits for its data.
#[test]
fn rights_that_are_taken_away_end_at_once() {
    for by in ALL {
        for after in [None, Some("read_only = ['a', 'b']"), Some("volumes = ['b']")] {
            let fixture = Fixture::with(by, PATIENT, &clients(Some("volumes = ['a', 'b']")));
            let mut bob = fixture.log_in("bob", NAME, 1);
            assert_eq!(write(&mut bob, 0), Some(GOOD));
            let mut alice = fixture.log_in("alice", NAME, 1);
            let waiting = match &mut alice {
                Session::Iscsi(peer) => Some(begin_write(peer).1),
                Session::HyperScsi(_) => None,
            };
            fixture.reload(PATIENT, &clients(after));
            alice.is_asked_to_end();
            if let Some(ttt) = waiting {
                send_data(alice.peer(), ttt);
                let _ = alice.peer().try_send(late_write(), vec![0xEE; 512]);
            }
            assert!(is_over(&mut alice), "{by:?} {after:?}");
            assert_eq!(bob.read(0), Some(vec![0x5A; 512]), "{by:?} {after:?}");
            // As long as it is there the server waits for it.
            drop(bob);
            fixture.end();
        }
    }
}

/// A write of a whole block to unit 0, with its data.
fn late_write() -> ScsiCommand {
    ScsiCommand {
        is_final: true,
        write: true,
        immediate: true,
        itt: 0x77,
        expected_len: 512,
        cdb: peer::write_16(0, 1),
        ..ScsiCommand::default()
    }
}
