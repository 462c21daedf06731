//! A fleet of gateways on virtual time, to see what becomes of the lease of `proto::cluster` where there are hundreds of them:
//! each candidate of each group of volumes runs that very machine against a store of limited speed (`docs/scale.md`).
//!
//! The rest is a model: the store and the fence are queues with a fixed rate, to open a volume takes a fixed time, clients come
//! back at random within their interval and log in one after the other.

mod engine;
pub mod placement;
mod report;

use std::time::Duration;

pub use self::report::{Outage, Report, Traffic};
use crate::Random;
use placement::{Site, place};

/// How volumes share leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Gateways 2n and 2n + 1 are a pair, with one lease for all of its volumes.
    Pairs,
    /// As many volumes as that have a lease of their own, and as many gateways as that may hold it.
    Groups {
        /// Volumes of a lease.
        volumes: usize,
        /// Gateways that look at it, its holder included.
        candidates: usize,
    },
}

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storm {
    /// One gateway.
    Gateway,
    /// All gateways of one rack.
    Rack,
    /// All gateways, which come back within half a minute.
    All,
}

/// A fleet, and how fast what it stands on is.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// How many gateways there are.
    pub gateways: usize,
    /// In how many racks they stand.
    pub racks: usize,
    /// How many volumes they serve.
    pub volumes: usize,
    /// How many sessions clients have, each with one volume.
    pub sessions: usize,
    /// How volumes share leases.
    pub sharing: Sharing,
    /// How long a lease lasts.
    pub lease: Duration,
    /// Requests per second that the shared state carries out.
    pub store_rate: u64,
    /// From a gateway to the shared state and back.
    pub round_trip: Duration,
    /// Addresses per second that the storage can shut out.
    pub fence_rate: u64,
    /// How long it takes to open a volume.
    pub open: Duration,
    /// How many volumes a gateway opens at once.
    pub opens_at_once: usize,
    /// How often a client tries to come back.
    pub reconnect: Duration,
    /// Logins per second that a gateway carries out.
    pub login_rate: u64,
    /// The same seed, the same run.
    pub seed: u64,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            gateways: 100,
            racks: 5,
            volumes: 10_000,
            sessions: 100_000,
            sharing: Sharing::Groups { volumes: 25, candidates: 3 },
            lease: Duration::from_secs(5),
            store_rate: 20_000,
            round_trip: Duration::from_millis(2),
            fence_rate: 50,
            open: Duration::from_millis(50),
            opens_at_once: 8,
            reconnect: Duration::from_secs(5),
            login_rate: 500,
            seed: 1,
        }
    }
}

impl Fleet {
    /// Runs it in peace, through the storm, and until preferred gateways have their volumes back.
    ///
    /// # Panics
    ///
    /// If two gateways are active for one group, or an epoch goes back.
    #[must_use]
    pub fn run(&self, storm: Storm) -> Report {
        report::observe(self, storm)
    }

    /// The rack of a gateway. Those of a pair stand in two.
    const fn rack(&self, gateway: usize) -> usize {
        gateway % self.racks
    }

    /// The volumes of each group: as even as they can be.
    fn sizes(&self) -> Vec<usize> {
        let groups = match self.sharing {
            Sharing::Pairs => self.gateways / 2,
            Sharing::Groups { volumes, .. } => self.volumes.div_ceil(volumes),
        };
        (0..groups)
            .map(|at| (at + 1) * self.volumes / groups - at * self.volumes / groups)
            .collect()
    }

    /// The gateways that may serve each group, the preferred one first.
    fn candidates(&self) -> Vec<Vec<usize>> {
        let groups = self.sizes().len();
        match self.sharing {
            Sharing::Pairs => (0..groups).map(|at| vec![2 * at, 2 * at + 1]).collect(),
            Sharing::Groups { candidates, .. } => {
                let site = |at| Site { rack: self.rack(at), weight: 1.0 };
                place(groups, candidates, &(0..self.gateways).map(site).collect::<Vec<_>>())
            }
        }
    }

    /// The group that each session uses.
    fn groups_of_sessions(&self, random: &mut Random) -> Vec<usize> {
        let sizes = self.sizes();
        let volumes: Vec<_> =
            sizes.iter().enumerate().flat_map(|(group, size)| vec![group; *size]).collect();
        (0..self.sessions).map(|_| volumes[random.below(self.volumes as u64) as usize]).collect()
    }
}
