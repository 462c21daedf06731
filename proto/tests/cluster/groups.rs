//! Two groups of volumes at the same two gateways: a record, a lease and an address for each, and one process at each gateway,
//! which is paused, ended and fenced with both.

use super::{
    NO_FENCE, PEACE, Simulation, Store, TROUBLE, World, addressed, at, fence_of, gateway, seeds,
};
use proto::cluster::{Role, Step, Written};

/// What happens to a gateway in one group happens to it in the other one.
struct Groups([Simulation; 2]);

impl Groups {
    fn tick(&mut self) {
        for group in 0..2 {
            self.0[group].tick();
            for (at, accident) in std::mem::take(&mut self.0[group].happened) {
                self.0[1 - group].suffers(at, accident);
            }
        }
    }

    /// Each gateway is preferred for one group, if there are preferences.
    fn new(seed: u64, world: World, are_preferred: bool) -> Self {
        let preferred = if are_preferred { [Some("a"), Some("b")] } else { [None, None] };
        Self([0, 1].map(|group| {
            let world = World { prefers: preferred[group], ..world };
            Simulation::new(2 * seed + group as u64, world)
        }))
    }

    fn finish(mut self) -> [(usize, u64); 2] {
        (0..TROUBLE).for_each(|_| self.tick());
        self.0.iter_mut().for_each(Simulation::calm);
        (0..PEACE).for_each(|_| self.tick());
        self.0.each_mut().map(Simulation::result)
    }
}

fn simulate(world: World, are_preferred: bool) {
    let (mut moves, mut acknowledged) = ([0; 2], [0; 2]);
    for seed in 0..seeds() {
        println!("seed {seed}");
        let told = Groups::new(seed, world, are_preferred).finish();
        for (group, (moved, number)) in told.into_iter().enumerate() {
            (moves[group], acknowledged[group]) =
                (moves[group] + moved, acknowledged[group] + number);
        }
    }
    let seen = moves.iter().all(|count| *count > 100) && acknowledged.iter().all(|it| *it > 250);
    assert!(seen, "{moves:?} moves, {acknowledged:?} changes");
}

/// The fence of one group ends the gateway, and with it a lease of the other group that was good.
#[test]
fn two_groups_keep_their_laws_where_one_fence_ends_a_gateway_with_both() {
    simulate(World { clocks_stop: true, fences: true, ..NO_FENCE }, false);
}

#[test]
fn two_groups_keep_their_laws_where_the_address_of_each_is_shut_out_alone() {
    simulate(World { clocks_stop: true, shuts_out: true, ..NO_FENCE }, false);
}

#[test]
fn two_groups_keep_their_laws_where_each_gateway_is_preferred_for_one() {
    simulate(NO_FENCE, true);
    simulate(World { clocks_stop: true, shuts_out: true, fences: true, ..NO_FENCE }, true);
}

/// An address is that of one group: what another gateway takes of one leaves the other where it is.
#[test]
fn group_whose_address_is_shut_out_leaves_the_other_one_where_it_is() {
    let (mut stores, mut holders) =
        ([(); 2].map(|()| Store::default()), [(); 2].map(|()| addressed("a", 1)));
    for group in 0..2 {
        holders[group].set_address(format!("one/{group}"));
        stores[group].run(&mut [&mut holders[group]], 0, 40);
    }
    // Only the record of the first group is out of reach for its holder.
    let mut other = addressed("b", 2);
    other.set_address("two/0".to_owned());
    let (number, former) = fence_of(&mut stores[0], &mut other, 40);
    assert_eq!(former.address.as_deref(), Some("one/0"));
    stores[1].run(&mut [&mut holders[1]], 40, number);
    other.fenced(at(number), true);
    stores[0].run(&mut [&mut other], number, number + 5);
    stores[1].run(&mut [&mut holders[1]], number, number + 5);
    let now = at(number + 4);
    assert_eq!((holders[0].role(now), other.role(now)), (Role::Lost, Role::Active));
    assert_eq!(holders[1].role(now), Role::Active);
    let addresses = stores.map(|store| store.record.unwrap().address.unwrap());
    assert_eq!(addresses, ["two/0", "one/1"]);
}

/// A shared state that is away for a while is nobody's fault. Each gateway holds a lease, and would have the other one ended.
#[test]
fn gateways_that_both_could_not_reach_their_records_do_not_end_each_other() {
    let mut stores = [(); 2].map(|()| Store::default());
    let [mut first, mut second] = ["a", "b"].map(|name| [1, 2].map(|_| gateway(name, 1, true)));
    // The second group is taken by the second gateway.
    stores[0].run(&mut [&mut first[0]], 0, 20);
    stores[1].run(&mut [&mut second[1]], 0, 20);
    for number in 20..140 {
        for group in 0..2 {
            for lease in [&mut first[group], &mut second[group]] {
                match lease.poll(at(number)) {
                    Step::Read if (40..100).contains(&number) => lease.read(at(number), Err(())),
                    Step::Write(_) if (40..100).contains(&number) => {
                        lease.written(at(number), Written::Unknown);
                    }
                    // It fails where one is to be ended.
                    _ => stores[group].step(lease, at(number)),
                }
                if lease.role(at(number)) == Role::Lost {
                    lease.closed(at(number));
                }
            }
        }
    }
    let now = at(139);
    assert_eq!((first[0].role(now), second[0].role(now)), (Role::Active, Role::Standby));
    assert_eq!((first[1].role(now), second[1].role(now)), (Role::Standby, Role::Active));
}

/// One group is moved, and the lease of the other one stays where it is.
#[test]
fn group_that_is_moved_leaves_the_other_one_where_it_is() {
    let mut stores = [(); 2].map(|()| Store::default());
    let [mut first, mut second] = ["a", "b"].map(|name| [1, 2].map(|_| gateway(name, 1, false)));
    let run = |stores: &mut [Store; 2], first: &mut [_; 2], second: &mut [_; 2], from, to| {
        for group in 0..2 {
            stores[group].run(&mut [&mut first[group], &mut second[group]], from, to);
        }
    };
    run(&mut stores, &mut first, &mut second, 0, 40);
    let epoch = stores[1].record.as_ref().unwrap().epoch;
    second[0].move_on(at(40));
    for number in 40..60 {
        run(&mut stores, &mut first, &mut second, number, number + 1);
        if first[0].role(at(number)) == Role::Leaving {
            first[0].closed(at(number));
        }
    }
    let now = at(59);
    assert_eq!((first[0].role(now), second[0].role(now)), (Role::Standby, Role::Active));
    assert_eq!((first[1].role(now), second[1].role(now)), (Role::Active, Role::Standby));
    assert_eq!(stores[1].record.as_ref().unwrap().epoch, epoch);
}
