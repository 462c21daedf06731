//! What a gateway tells of itself, to whoever asks: nobody waits for the store of the record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::cluster::{GatewayName, GroupName, Record, Role};
use tokio::sync::watch;

use super::name_of;
use crate::target::lun::MediumPermit;
use crate::target::status::{ClusterStatus, GroupStatus};

#[derive(Clone, Debug)]
struct Seen {
    since: Instant,
    role: Role,
    holder: Option<GatewayName>,
    epoch: u64,
    takeovers: u64,
    failures: u64,
}

/// Where the driver of the lease says what this gateway is.
pub(super) struct Published {
    group: GroupName,
    roles: watch::Sender<Role>,
    seen: watch::Sender<Seen>,
}

/// Tells what this gateway is.
#[derive(Clone, Debug)]
pub struct Observer {
    gateway: GatewayName,
    groups: Vec<GroupObserver>,
}

/// Tells what this gateway is for one group of volumes.
#[derive(Clone, Debug)]
pub(super) struct GroupObserver {
    group: GroupName,
    weight: u16,
    seen: watch::Receiver<Seen>,
    permit: Arc<MediumPermit>,
}

impl Published {
    /// Of a gateway that may use the media of `group` as long as `permit` says; what tells of its role, and of all.
    pub(super) fn new(
        group: &GroupName,
        weight: u16,
        permit: &Arc<MediumPermit>,
    ) -> (Self, watch::Receiver<Role>, GroupObserver) {
        let (roles, told) = watch::channel(Role::Standby);
        let first = Seen {
            since: Instant::now(),
            role: Role::Standby,
            holder: None,
            epoch: 0,
            takeovers: 0,
            failures: 0,
        };
        let (seen, sees) = watch::channel(first);
        let (group, permit) = (group.clone(), Arc::clone(permit));
        let observer = GroupObserver { group: group.clone(), weight, seen: sees, permit };
        (Self { group, roles, seen }, told, observer)
    }

    /// Of which group it is said.
    pub(super) const fn group(&self) -> &GroupName {
        &self.group
    }

    /// Says what it is now; whether it was something else before.
    pub(super) fn publish(&self, role: Role, record: &Record) -> bool {
        let holder = record.holder.as_ref().map(|holder| &holder.gateway);
        self.seen.send_if_modified(|seen| {
            let same =
                (seen.role, seen.epoch, seen.holder.as_ref()) == (role, record.epoch, holder);
            if seen.role != role {
                (seen.role, seen.since) = (role, Instant::now());
                seen.takeovers += u64::from(role == Role::Active);
            }
            (seen.epoch, seen.holder) = (record.epoch, holder.cloned());
            !same
        });
        self.roles.send_if_modified(|told| std::mem::replace(told, role) != role)
    }

    /// The record could not be read or written.
    pub(super) fn failed(&self) {
        self.seen.send_modify(|seen| seen.failures += 1);
    }
}

impl Observer {
    pub(super) fn new(gateway: &GatewayName, groups: Vec<GroupObserver>) -> Self {
        Self { gateway: gateway.clone(), groups }
    }

    /// How it is.
    #[must_use]
    pub fn status(&self) -> ClusterStatus {
        let groups = self.groups.iter().map(GroupObserver::status).collect();
        ClusterStatus::new(self.gateway.to_string(), groups)
    }
}

impl GroupObserver {
    fn status(&self) -> GroupStatus {
        let Seen { since, role, holder, epoch, takeovers, failures } = self.seen.borrow().clone();
        GroupStatus {
            group: self.group.to_string(),
            role: name_of(role).to_owned(),
            seconds: since.elapsed().as_secs(),
            holder: holder.map(|holder| holder.to_string()),
            epoch,
            weight: self.weight,
            permitted_ms: millis(self.permit.left()),
            takeovers,
            record_failures: failures,
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
