//! One of several gateways that serve the same volumes (`docs/spec/cluster.md`): the lease is `proto`'s, this is who reads
//! and writes the record, and what of it concerns the rest of the server.

mod directory;
mod driver;
mod fence;
mod group;
mod observer;
mod rados;
mod reservations;
mod roles;
mod store;
mod survey;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;
use proto::cluster::{GroupName, Holder, Role, Settings};
use proto::time::Time;

use self::directory::Directory;
use self::fence::Fences;
pub use self::group::{Group, Media, Reporter};
pub use self::observer::Observer;
use self::rados::Rados;
pub use self::roles::RoleChanges;
use self::store::{Blocklist, RecordStore};
pub use self::survey::{Finding, survey};
use crate::config::{ClusterOptions, RecordPlace, Served};
use crate::explain::explain_ceph;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::target::lun::{Disk, Shared, since_boot};

/// The part of this gateway in its cluster.
pub struct Cluster {
    options: ClusterOptions,
    groups: BTreeMap<GroupName, Group>,
}

impl Cluster {
    /// One that does nothing yet, with these groups of volumes. It may wait for where the records are.
    pub fn new(options: &ClusterOptions, groups: &BTreeSet<GroupName>) -> Outcome<Self> {
        let random = || "cannot name this life of the gateway".to_owned();
        // One for all groups: what ends it ends it for all of them.
        let incarnation = getrandom::u64().or_fail(random)? | 1;
        let fences = Fences::new(options);
        let group = |(name, (store, blocklist)): (GroupName, Places)| {
            let settings = Settings {
                me: Holder { gateway: options.gateway.clone(), incarnation },
                lease: options.lease,
                fences: options.fence.is_some(),
                has_addresses: blocklist.is_some(),
                is_preferred: options.prefers.contains(&name),
            };
            let places = (store, fences.with(blocklist));
            let group = Group::new(&name, groups.len() == 1, settings, places);
            (name, group)
        };
        let groups = open(options, groups)?.into_iter().map(group).collect();
        Ok(Self { options: options.clone(), groups })
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

/// Where a record is, and the storage that can shut out a gateway, if it is that.
type Places = (Arc<dyn RecordStore>, Option<Arc<dyn Blocklist>>);

fn open(
    options: &ClusterOptions,
    groups: &BTreeSet<GroupName>,
) -> Outcome<Vec<(GroupName, Places)>> {
    let what =
        || format!("cannot use the {} of the cluster, {}", options.place.option(), options.place);
    let mut opened: Vec<(GroupName, Places)> = Vec::new();
    match &options.place {
        RecordPlace::Directory(path) => {
            for group in groups {
                let directory = Directory::open(path, &options.gateway, group).or_fail(what)?;
                opened.push((group.clone(), (Arc::new(directory), None)));
            }
        }
        RecordPlace::Rados(pool) => {
            let explained = |why| explain_ceph(what(), &pool.access, why);
            let client = Rados::connect(pool).map_err(explained)?;
            for group in groups {
                let rados = Rados::open(&client, pool, &options.gateway, group);
                let rados = rados.map_err(explained)?;
                rados.first_look().map_err(explained)?;
                // They are those of the pool, and so of all.
                if opened.is_empty() {
                    rados.try_rights().map_err(explained)?;
                }
                let rados = Arc::new(rados);
                opened.push((group.clone(), (rados.clone(), Some(rados))));
            }
        }
    }
    Ok(opened)
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
