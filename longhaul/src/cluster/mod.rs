//! One of several gateways that serve the same volumes (`docs/spec/cluster.md`): the lease is `proto`'s, this is who reads
//! and writes the record, and what of it concerns the rest of the server.

mod directory;
mod driver;
mod fence;
mod group;
mod membership;
mod mover;
mod observer;
mod rados;
mod records;
mod reservations;
mod roles;
mod store;
mod survey;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use proto::cluster::{GroupName, Holder, Role, Settings};
use proto::time::Time;

use self::fence::Fences;
use self::group::unit;
pub use self::group::{Group, Media, Reporter};
pub use self::membership::Membership;
use self::membership::{Units, settle};
pub use self::mover::Mover;
pub use self::observer::Observer;
use self::records::{GroupPlace, Places};
pub use self::roles::RoleChanges;
pub use self::survey::{Finding, survey};
use crate::config::{ClusterOptions, Config, Served};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::target::lun::{Disk, Shared, since_boot};

/// For how long another gateway is looked for at least, before it is taken for one that is not there.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// How long another gateway with this lease is looked for.
fn seen_within(lease: Duration) -> Duration {
    lease.max(SEEN_WITHIN)
}

/// The part of this gateway in its cluster.
pub struct Cluster {
    options: ClusterOptions,
    groups: BTreeMap<GroupName, Group>,
}

impl Cluster {
    /// That of `config`, if it has one; it does nothing yet. It may wait for where the records are, and for other gateways.
    pub fn new(config: &Config) -> Outcome<Option<Self>> {
        let Some(options) = config.cluster.clone() else { return Ok(None) };
        let random = || "cannot name this life of the gateway".to_owned();
        // One for all groups: what ends it ends it for all of them.
        let incarnation = getrandom::u64().or_fail(random)? | 1;
        let (places, names) = (Arc::new(Places::open(&options)?), config.groups());
        if let Some(first) = names.first() {
            places.try_rights(first, options.weight_for(first))?;
        }
        let units = units(config);
        settle(&*places, &units, seen_within(options.lease))?;
        let fences = Fences::new(&options);
        let mut groups = BTreeMap::new();
        for name in &names {
            let GroupPlace { store, blocklist } = places.of_group(name)?;
            let settings = Settings {
                me: Holder { gateway: options.gateway.clone(), incarnation },
                lease: options.lease,
                fences: options.fence.is_some(),
                has_addresses: blocklist.is_some(),
                weight: options.weight_for(name),
            };
            let is_alone = names.len() == 1;
            let membership = Membership::new(Arc::clone(&places) as _, name, &units);
            let stores = (store, membership, fences.with(blocklist));
            let group = Group::new(name, is_alone, settings, stores);
            groups.insert(name.clone(), group);
        }
        Ok(Some(Self { options, groups }))
    }

    /// Its part in one group.
    #[must_use]
    pub fn group(&self, name: &GroupName) -> Option<&Group> {
        self.groups.get(name)
    }

    /// What it is for this group now.
    #[must_use]
    pub fn role(&self, group: &GroupName) -> Role {
        self.group(group).map_or(Role::Standby, Group::role)
    }

    /// What the disk shares that is this volume.
    #[must_use]
    pub fn shared(&self, Served { group, target, lun, .. }: &Served) -> Option<Shared> {
        self.group(group).map(|group| group.shared(target.as_str(), *lun))
    }

    /// Takes part from now on, with these disks.
    pub fn start<'a>(&mut self, disks: &[(&'a Served, &'a Disk)]) {
        for (name, group) in &mut self.groups {
            let its = disks.iter().filter(|(volume, _)| volume.group == *name);
            group.start(its.map(|(volume, disk)| (volume.target.as_str(), volume.lun, *disk)));
        }
    }

    /// What tells that there is something to do.
    #[must_use]
    pub fn role_changes(&self) -> RoleChanges {
        let groups = self.groups.iter();
        RoleChanges::new(groups.map(|(name, group)| (name.clone(), group.roles())))
    }

    /// What tells how it is.
    #[must_use]
    pub fn observer(&self) -> Observer {
        let groups = self.groups.values().map(Group::observer).collect();
        Observer::new(&self.options.gateway, groups)
    }

    /// The group that is meant where none is named.
    pub fn only_group(&self) -> Outcome<&Group> {
        match self.groups.values().collect::<Vec<_>>()[..] {
            [only] => Ok(only),
            _ => Err(Failure::usage(
                "the volumes are in several groups, and it is not said which one is meant",
            )
            .because(self.names())
            .hint("`longhaul cluster move GROUP` moves one of them")),
        }
    }

    /// The group of this name.
    pub fn named_group(&self, name: &str) -> Outcome<&Group> {
        let found = self.groups.iter().find(|(group, _)| group.to_string() == name);
        let missing = || {
            let what = format!("no volume is in the group `{name}`");
            Failure::usage(what).because(format!("the groups of the volumes are {}", self.names()))
        };
        found.map(|(_, group)| group).ok_or_else(missing)
    }

    fn names(&self) -> String {
        self.groups.keys().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Gives all leases back, after everything is closed.
    pub async fn end(&self) {
        join_all(self.groups.values().map(Group::end)).await;
    }
}

/// Which unit of a configuration is in which group.
fn units(config: &Config) -> Units {
    let volumes = config.volumes.iter();
    volumes.map(|it| (unit(it.target.as_str(), it.lun), it.group.clone())).collect()
}

/// The time by the clock of leases, which goes on while the machine is suspended.
fn now() -> Time {
    Time::from_origin(since_boot())
}

/// All that a gateway can be.
pub(crate) const ROLES: [Role; 5] =
    [Role::Standby, Role::TakingOver, Role::Active, Role::Leaving, Role::Lost];

/// What an operator reads of a role.
pub(crate) const fn name_of(role: Role) -> &'static str {
    match role {
        Role::Standby => "standby",
        Role::TakingOver => "taking over",
        Role::Active => "active",
        Role::Leaving => "leaving",
        Role::Lost => "lost",
    }
}
