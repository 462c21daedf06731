//! A small fleet of gateways on virtual time, each of which runs the lease of `proto::cluster`; `lab fleet` runs a large one. That
//! no two gateways are active for one group, and no epoch goes back, the simulation itself asserts.

use std::time::Duration;

use testing::fleet::placement::{Site, place};
use testing::fleet::{Fleet, Report, Sharing, Storm};

const ALL: [Storm; 3] = [Storm::Gateway, Storm::Rack, Storm::All];

fn small() -> Fleet {
    Fleet {
        gateways: 10,
        volumes: 200,
        sessions: 2000,
        sharing: Sharing::Groups { volumes: 5, candidates: 3 },
        ..Fleet::default()
    }
}

fn is_whole(report: &Report) {
    assert!(report.all_served.is_some(), "{report:?}");
    assert_eq!((report.peace.unanswered, report.peace.lost), (0, 0), "{report:?}");
}

#[test]
fn fleet_serves_all_volumes_again_whatever_has_failed() {
    for storm in ALL {
        let report = small().run(storm);
        is_whole(&report);
        let lease = small().lease;
        assert!(report.volumes.median >= lease * 3 / 4, "no lease is taken while it may be in use");
        assert!(report.volumes.longest < RESTARTED + lease * 4, "{report:?}");
    }
}

/// After this time all gateways that failed at once run again.
const RESTARTED: Duration = Duration::from_secs(60);

/// Each group that its preferred gateway asks for is moved once, and nobody asks for it back.
#[test]
fn preferred_gateways_that_return_get_their_groups_in_one_move_each() {
    for storm in ALL {
        let report = small().run(storm);
        assert_eq!(report.moved.0, report.moved.1, "{storm:?}: {report:?}");
        assert_eq!(report.imbalance[2], report.imbalance[0], "{storm:?}: {report:?}");
    }
    assert!(small().run(Storm::Rack).moved.1 > 0);
}

#[test]
fn pairs_serve_all_volumes_again_with_one_lease_each() {
    let report = Fleet { sharing: Sharing::Pairs, ..small() }.run(Storm::Rack);
    is_whole(&report);
    assert_eq!(report.leases, 5);
}

/// The requests in peace are those of the specification: a sign of life every fifth of a lease, a look every tenth.
#[test]
fn traffic_in_peace_follows_from_the_number_of_leases_and_candidates() {
    let report = small().run(Storm::Gateway);
    let per_lease = |rate: f64| rate * small().lease.as_secs_f64() / report.leases as f64;
    let (writes, reads) = (per_lease(report.peace.writes), per_lease(report.peace.reads));
    assert!((4.8..=5.0).contains(&writes), "{writes} signs of life in a lease");
    assert!((19.0..=20.0).contains(&reads), "{reads} looks in a lease");
    assert_eq!(report.peace.reads, report.peace.marks);
}

/// Each lease has one request under way, so that a store that is somewhat too slow only delays them. Where they wait for half a
/// lease, they are given up, although everybody runs.
#[test]
fn requests_to_a_store_that_is_far_too_slow_are_given_up_in_peace() {
    let fleet = small();
    let needed = fleet.run(Storm::Gateway).peace.all();
    let report = Fleet { store_rate: (needed / 8.0) as u64, ..fleet }.run(Storm::Gateway);
    assert!(report.peace.unanswered > 0, "{report:?}");
}

#[test]
fn placement_follows_weights_keeps_racks_apart_and_moves_little() {
    let site = |at: usize| Site { rack: at % 5, weight: if at < 5 { 2.0 } else { 1.0 } };
    let sites: Vec<_> = (0..20).map(site).collect();
    let placed = place(1000, 3, &sites);
    let mut count = vec![0; sites.len()];
    for candidates in &placed {
        count[candidates[0]] += 1;
        let racks: std::collections::BTreeSet<_> = candidates.iter().map(|at| at % 5).collect();
        assert_eq!((candidates.len(), racks.len()), (3, 3), "one in each rack");
    }
    for (count, site) in count.iter().zip(&sites) {
        let share = (1000.0 * site.weight / 25.0) as usize;
        assert!(*count <= share, "{count} groups, and {share} are its share");
    }
    // One gateway more takes its share, and hardly anything else moves.
    let more = place(1000, 3, &(0..21).map(site).collect::<Vec<_>>());
    let moved = placed.iter().zip(&more).filter(|(then, now)| then[0] != now[0]).count();
    assert!(moved < 200, "{moved} of 1000 groups have another preferred gateway");
}
