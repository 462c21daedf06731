//! Tells when volumes have to be opened or closed.

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, pending, select_all};
use proto::cluster::{GroupName, Role};
use tokio::sync::watch;

/// Tells it of all groups of volumes.
pub struct RoleChanges(Vec<GroupRoles>);

/// Tells it of one group.
pub(super) struct GroupRoles {
    group: GroupName,
    roles: watch::Receiver<Role>,
    /// Nobody looks after the lease any more, which was told.
    is_over: bool,
}

impl RoleChanges {
    pub(super) fn new(groups: impl Iterator<Item = (GroupName, watch::Receiver<Role>)>) -> Self {
        Self(groups.map(|(group, roles)| GroupRoles { group, roles, is_over: false }).collect())
    }

    /// Returns when the gateway takes over a group, leaves it or has lost its lease, and as long as that is so. A group that is
    /// busy is not told of. Dropping this future loses nothing.
    pub async fn next(&mut self, is_busy: impl Fn(&GroupName) -> bool) -> (GroupName, Role) {
        let free = self.0.iter_mut().filter(|group| !is_busy(&group.group));
        let waiting: Vec<BoxFuture<'_, _>> = free
            .map(|group| async move { (group.group.clone(), group.next().await) }.boxed())
            .collect();
        match waiting.is_empty() {
            true => pending().await,
            false => select_all(waiting).await.0,
        }
    }
}

impl GroupRoles {
    async fn next(&mut self) -> Role {
        loop {
            if self.is_over {
                pending::<()>().await;
            }
            let role = *self.roles.borrow_and_update();
            if self.roles.has_changed().is_ok()
                && matches!(role, Role::TakingOver | Role::Leaving | Role::Lost)
            {
                return role;
            }
            if self.roles.changed().await.is_err() {
                // The lease ends, and another gateway can only have the files if this one closes them.
                tracing::error!(
                    group = %self.group,
                    "cluster: nobody looks after the lease any more: restart the gateway"
                );
                self.is_over = true;
                return Role::Lost;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> GroupName {
        name.parse().unwrap()
    }

    /// As when the task that does so breaks down: the lock on the files would keep the other gateway out.
    #[test]
    fn gateway_whose_lease_nobody_looks_after_is_to_close_the_volumes_once() {
        let (tell, roles) = watch::channel(Role::TakingOver);
        let mut role_changes = GroupRoles { group: named("a"), roles, is_over: false };
        assert_eq!(role_changes.next().now_or_never(), Some(Role::TakingOver));
        assert_eq!(role_changes.next().now_or_never(), Some(Role::TakingOver), "it is so still");
        tell.send(Role::Active).unwrap();
        assert_eq!(role_changes.next().now_or_never(), None);
        drop(tell);
        assert_eq!(role_changes.next().now_or_never(), Some(Role::Lost));
        assert_eq!(role_changes.next().now_or_never(), None);
    }

    /// A file system that hangs keeps one group opening, and no other one waiting.
    #[test]
    fn group_that_is_busy_keeps_no_other_one_waiting() {
        let (one, two) = (watch::channel(Role::TakingOver), watch::channel(Role::Standby));
        let groups = [(named("a"), one.1), (named("b"), two.1)];
        let mut role_changes = RoleChanges::new(groups.into_iter());
        let told = role_changes.next(|_| false).now_or_never();
        assert_eq!(told, Some((named("a"), Role::TakingOver)));
        let is_busy = |group: &GroupName| *group == named("a");
        assert_eq!(role_changes.next(is_busy).now_or_never(), None);
        two.0.send(Role::Leaving).unwrap();
        let told = role_changes.next(is_busy).now_or_never();
        assert_eq!(told, Some((named("b"), Role::Leaving)));
        assert_eq!(role_changes.next(|_| true).now_or_never(), None);
    }
}
