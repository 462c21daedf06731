//! A gateway that is to be active rather than another one.

use super::{Store, at, settings};
use proto::cluster::{Holder, Lease, Role, Settings};

fn preferring(name: &str, incarnation: u64) -> Lease {
    weighing(name, incarnation, 100)
}

fn other(name: &str, incarnation: u64) -> Lease {
    weighing(name, incarnation, 0)
}

fn weighing(name: &str, incarnation: u64, weight: u16) -> Lease {
    let me = Holder { gateway: name.parse().unwrap(), incarnation };
    Lease::new(Settings { weight, ..settings(me) }, at(0))
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
    run(&mut store, &mut [&mut holder], 0, 10);
    let became = run(&mut store, &mut [&mut holder, &mut preferred], 10, 400);
    assert!(matches!(became[..], [(1, 60..80)]), "{became:?}");
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
    run(&mut store, &mut [&mut holder], 0, 10);
    run(&mut store, &mut [&mut holder, &mut preferred, &mut third], 10, 40);
    assert_eq!(holder.role(at(39)), Role::Active);
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
    run(&mut store, &mut [&mut holder], 0, 10);
    run(&mut store, &mut [&mut holder, &mut preferred, &mut third], 10, 30);
    // The holder ends without a word, while the preferred one stands still.
    let became = run(&mut store, &mut [&mut third], 30, 80);
    assert!(matches!(became[..], [(0, _)]), "{became:?}");
    let became = run(&mut store, &mut [&mut third, &mut preferred], 80, 200);
    assert!(matches!(became[..], [(1, 140..160)]), "{became:?}");
}

#[test]
fn of_two_with_the_same_weight_the_holder_keeps_the_lease() {
    let mut store = Store::default();
    let [mut one, mut two] = [preferring("a", 1), preferring("b", 2)];
    let became = run(&mut store, &mut [&mut one, &mut two], 0, 2000);
    assert!(matches!(became[..], [(0, _)]), "{became:?}");
}

/// By the heaviest of those that run, although another one asks as soon.
#[test]
fn lease_comes_to_the_gateway_with_the_most_weight_at_once() {
    let mut store = Store::default();
    let mut holder = weighing("a", 1, 10);
    let [mut light, mut heavy] = [weighing("b", 2, 20), weighing("c", 3, 30)];
    run(&mut store, &mut [&mut holder], 0, 10);
    let became = run(&mut store, &mut [&mut holder, &mut light, &mut heavy], 10, 2000);
    assert!(matches!(became[..], [(2, _)]), "{became:?}");
}

/// The one with less looks first each time.
#[test]
fn heavier_one_of_two_in_standby_takes_over() {
    for is_orderly in [true, false] {
        let mut store = Store::default();
        let [mut holder, mut light, mut heavy] =
            [weighing("a", 1, 30), weighing("b", 2, 10), weighing("c", 3, 20)];
        run(&mut store, &mut [&mut holder, &mut light, &mut heavy], 0, 30);
        if is_orderly {
            holder.leave(at(30));
            holder.closed(at(30));
            store.step(&mut holder, at(30));
        }
        let became = run(&mut store, &mut [&mut light, &mut heavy], 30, 200);
        let [(1, when)] = became[..] else { panic!("{became:?}") };
        assert!(when < if is_orderly { 36 } else { 54 }, "{when}");
    }
}

/// It has ended, or cannot open the volumes: neither is waited for without end.
#[test]
fn lighter_one_takes_over_where_the_heavier_one_does_not() {
    let mut store = Store::default();
    let [mut holder, mut light, mut heavy] =
        [weighing("a", 1, 30), weighing("b", 2, 10), weighing("c", 3, 20)];
    run(&mut store, &mut [&mut holder, &mut light, &mut heavy], 0, 30);
    let became = run(&mut store, &mut [&mut light], 30, 200);
    assert!(matches!(became[..], [(0, 45..55)]), "{became:?}");
    // It runs again, and looks at the record, but has no address for the next lease.
    light.leave(at(200));
    light.closed(at(200));
    store.step(&mut light, at(200));
    let me = Holder { gateway: "c".parse().unwrap(), incarnation: 4 };
    let mut heavy = Lease::new(Settings { weight: 20, has_addresses: true, ..settings(me) }, at(0));
    let mut other = weighing("d", 5, 5);
    let became = run(&mut store, &mut [&mut heavy, &mut other], 200, 300);
    assert!(matches!(became[..], [(1, 230..245)]), "{became:?}");
}

/// Else two gateways that cannot would be waited for by turns, and the third one would never be active.
#[test]
fn gateway_that_could_not_open_the_volumes_is_not_waited_for_again() {
    for finds_out_after in [0, 10, 14] {
        let mut store = Store { opens_late: true, ..Store::default() };
        let mut all = [weighing("b", 1, 30), weighing("c", 2, 20), weighing("a", 3, 10)];
        let (mut took, mut since) = (Vec::new(), [0; 3]);
        for number in 0..1000 {
            for (place, lease) in all.iter_mut().enumerate() {
                let before = lease.role(at(number));
                store.step(lease, at(number));
                let role = lease.role(at(number));
                if role == Role::TakingOver && before != Role::TakingOver {
                    took.push(place);
                    since[place] = number;
                }
                match role {
                    Role::TakingOver if place == 2 => lease.opened(at(number)),
                    Role::TakingOver if number - since[place] >= finds_out_after => {
                        lease.closed(at(number));
                    }
                    Role::Leaving | Role::Lost => lease.closed(at(number)),
                    _ => {}
                }
            }
        }
        assert_eq!(all[2].role(at(999)), Role::Active);
        assert!(took.len() <= 4, "{finds_out_after}: {took:?}");
    }
}

/// A weight that is not known is not taken for less.
#[test]
fn gateway_asks_nothing_while_it_cannot_see_the_others() {
    let mut store = Store::default();
    let [mut heavy, mut light] = [weighing("a", 1, 1000), weighing("b", 2, 1)];
    run(&mut store, &mut [&mut heavy], 0, 10);
    let mut became = Vec::new();
    for number in 10..400 {
        // No look of it succeeds while it could begin to ask.
        store.is_blind = (60..90).contains(&number);
        became.extend(run(&mut store, &mut [&mut heavy, &mut light], number, number + 1));
    }
    assert!(became.is_empty(), "{became:?}");
}
