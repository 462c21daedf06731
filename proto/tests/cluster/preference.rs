//! A gateway that is to be active rather than another one.

use super::{Store, at, settings};
use proto::cluster::{Holder, Lease, Role, Settings};

fn preferring(name: &str, incarnation: u64) -> Lease {
    let me = Holder { gateway: name.parse().unwrap(), incarnation };
    Lease::new(Settings { is_preferred: true, ..settings(me) }, at(0))
}

fn other(name: &str, incarnation: u64) -> Lease {
    let me = Holder { gateway: name.parse().unwrap(), incarnation };
    Lease::new(settings(me), at(0))
}

/// Lets them run, and whoever leaves close at once; when each came to be active, by its place among them.
fn run(store: &mut Store, leases: &mut [&mut Lease], from: u32, to: u32) -> Vec<(usize, u32)> {
    let mut became = Vec::new();
    for number in from..to {
        for (place, lease) in leases.iter_mut().enumerate() {
            let before = lease.role(at(number));
            store.step(lease, at(number));
            let role = lease.role(at(number));
            if role == Role::Active && before != Role::Active {
                became.push((place, number));
            }
            if matches!(role, Role::Leaving | Role::Lost) {
                lease.closed(at(number));
            }
        }
    }
    became
}

#[test]
fn preferred_gateway_asks_once_when_it_has_run_for_three_leases() {
    let mut store = Store::default();
    let (mut holder, mut preferred) = (other("a", 1), preferring("b", 2));
    let became = run(&mut store, &mut [&mut holder, &mut preferred], 0, 400);
    let [(0, first), (1, second)] = became[..] else { panic!("{became:?}") };
    assert!((60..80).contains(&(second - first)), "{became:?}");
    // Somebody moves it back, and is heard.
    holder.move_on(at(400));
    let became = run(&mut store, &mut [&mut holder, &mut preferred], 400, 1000);
    assert!(matches!(became[..], [(0, _)]), "{became:?}");
    assert_eq!(store.record.unwrap().epoch, 3);
}

/// By the gateway that is not preferred, before the other one has asked: neither clients nor time bring it back.
#[test]
fn preferred_gateway_does_not_ask_against_a_move_by_hand_that_it_has_seen() {
    let mut store = Store::default();
    let mut preferred = preferring("b", 2);
    let [mut holder, mut third] = [other("a", 1), other("c", 3)];
    let became = run(&mut store, &mut [&mut holder, &mut preferred, &mut third], 0, 40);
    assert!(matches!(became[..], [(0, _)]), "{became:?}");
    third.move_on(at(40));
    let became = run(&mut store, &mut [&mut holder, &mut third, &mut preferred], 40, 600);
    assert!(matches!(became[..], [(1, _)]), "{became:?}");
    // A new life of it has not seen that.
    let mut anew = preferring("b", 4);
    let became = run(&mut store, &mut [&mut holder, &mut third, &mut anew], 600, 800);
    assert!(matches!(became[..], [(2, _)]), "{became:?}");
}

/// The lease goes to another one by the failure of its holder: that is nobody's wish.
#[test]
fn preferred_gateway_asks_after_a_failure_when_three_leases_have_passed_since() {
    let mut store = Store::default();
    let [mut holder, mut third] = [other("a", 1), other("c", 3)];
    let mut preferred = preferring("b", 2);
    run(&mut store, &mut [&mut holder, &mut preferred, &mut third], 0, 10);
    // The holder ends without a word, and the third one comes first.
    let became = run(&mut store, &mut [&mut third, &mut preferred], 10, 200);
    let [(0, first), (1, second)] = became[..] else { panic!("{became:?}") };
    assert!((60..80).contains(&(second - first)), "{became:?}");
}

/// Two that are preferred by mistake: each asks once in its life.
#[test]
fn two_preferred_gateways_do_not_move_the_lease_to_and_fro() {
    let mut store = Store::default();
    let [mut one, mut two] = [preferring("a", 1), preferring("b", 2)];
    let became = run(&mut store, &mut [&mut one, &mut two], 0, 2000);
    assert!(became.len() <= 2, "{became:?}");
}
