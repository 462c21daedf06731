//! One of several gateways that serve the same volumes (`docs/spec/cluster.md`): the lease is `proto`'s, this is who reads
//! and writes the record, and what of it concerns the rest of the server.

mod directory;
mod driver;
mod fence;
mod observer;
mod rados;
mod reservations;
mod store;
mod survey;

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use host::rbd::Client;
use proto::cluster::{Holder, Role, Settings};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use self::directory::Directory;
use self::driver::{Driver, Request};
use self::fence::Fences;
pub use self::observer::Observer;
use self::observer::Published;
use self::rados::Rados;
use self::reservations::UnitReservations;
use self::store::{Blocklist, CurrentClient, RecordStore};
pub use self::survey::{Finding, survey};
use crate::config::{ClusterOptions, RecordPlace};
use crate::explain::explain_ceph;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::target::lun::{Disk, MediumPermit, Shared};

/// How long an end waits for the lease to be given back.
const LEFT_WITHIN: Duration = Duration::from_secs(5);

/// How long the files of a cluster may take to say who is there.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// Another gateway is looked for during this part of a lease, in which it looks at the record several times.
const LOOKED_FOR: u32 = 3;

/// How often it is looked for in a lease.
const LOOKS: u32 = 40;

/// The part of this gateway in its cluster.
pub struct Cluster {
    options: ClusterOptions,
    store: Arc<dyn RecordStore>,
    /// By which it comes to the media, if those are in a storage that can shut it out.
    client: CurrentClient,
    requests: mpsc::Sender<Request>,
    roles: watch::Receiver<Role>,
    observer: Observer,
    permit: Arc<MediumPermit>,
    /// Until it is started.
    driver: Option<Driver>,
}

impl Cluster {
    /// One that does nothing yet. It may wait for where the record is.
    pub fn new(options: &ClusterOptions) -> Outcome<Self> {
        let (store, blocklist) = open(options)?;
        let random = || "cannot name this life of the gateway".to_owned();
        let incarnation = getrandom::u64().or_fail(random)? | 1;
        let settings = Settings {
            me: Holder { gateway: options.gateway.clone(), incarnation },
            lease: options.lease,
            fences: options.fence.is_some(),
            has_addresses: blocklist.is_some(),
            is_preferred: false,
        };
        let (requests, asked) = mpsc::channel(64);
        let permit = Arc::<MediumPermit>::default();
        let (tell, roles, observer) = Published::new(&options.gateway, &permit);
        let fences =
            Fences { me: options.gateway.clone(), program: options.fence.clone(), blocklist };
        let client = CurrentClient::default();
        let places = (Arc::clone(&store), fences, Arc::clone(&client));
        let driver = Driver::new(settings, places, asked, tell, Arc::clone(&permit));
        let (options, driver) = (options.clone(), Some(driver));
        Ok(Self { options, store, client, requests, roles, observer, permit, driver })
    }

    /// What opens the media for a gateway that takes over.
    #[must_use]
    pub fn media(&self) -> Media {
        Media(Arc::clone(&self.client))
    }

    /// What a disk shares that is this unit of this target.
    #[must_use]
    pub fn shared(&self, target: &str, lun: u16) -> Shared {
        let reservations = UnitReservations::new(unit(target, lun), self.requests.clone());
        Shared { reservations: Arc::new(reservations), permit: Arc::clone(&self.permit) }
    }

    /// Takes part from now on, with these disks.
    pub fn start<'a>(&mut self, disks: impl Iterator<Item = (&'a str, u16, &'a Disk)>) {
        let Some(driver) = self.driver.take() else { return };
        let disks = disks.map(|(target, lun, disk)| (unit(target, lun), disk.again())).collect();
        tokio::spawn(driver.run(disks));
    }

    /// What it is now.
    #[must_use]
    pub fn role(&self) -> Role {
        *self.roles.borrow()
    }

    /// What it is, as that changes.
    #[must_use]
    pub fn roles(&self) -> watch::Receiver<Role> {
        self.roles.clone()
    }

    /// What tells that there is something to do.
    #[must_use]
    pub fn role_changes(&self) -> RoleChanges {
        RoleChanges { roles: self.roles.clone(), is_over: false }
    }

    /// What tells how it is.
    #[must_use]
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }

    /// What reports that a change of role is done.
    #[must_use]
    pub fn reporter(&self) -> Reporter {
        Reporter { requests: self.requests.clone(), lease: self.options.lease }
    }

    /// Has another gateway be active, or this one: whichever is not. An active one gives up nothing where no other is there
    /// to take it.
    pub async fn move_on(&self) -> Outcome<String> {
        if self.role() == Role::Active && !self.is_another_there().await? {
            let why = "no other gateway looks at the record of the cluster";
            return Err(Failure::new("cannot move the volumes to another gateway").because(why).hint(
                "nothing was changed; start the other gateway, and see that it has the same `directory` or `state`: `longhaul check` and its log tell",
            ));
        }
        tell(&self.requests, Request::Move).await;
        let gateway = &self.options.gateway;
        Ok(match self.role() {
            Role::Leaving => format!("{gateway} gives the volumes to another gateway"),
            _ => format!("{gateway} has asked for the volumes"),
        })
    }

    /// Whether another gateway looks at the record now.
    async fn is_another_there(&self) -> Outcome<bool> {
        let look = || async {
            let store = Arc::clone(&self.store);
            let seen = timeout(SEEN_WITHIN, spawn_blocking(move || store.others_seen())).await;
            let what = || "cannot look for another gateway".to_owned();
            seen.or_fail(what)?.or_fail(what)?.or_fail(what)
        };
        let (before, began) = (look().await?, Instant::now());
        while began.elapsed() < self.options.lease / LOOKED_FOR {
            sleep(self.options.lease / LOOKS).await;
            if look().await? != before {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives the lease back, after everything is closed.
    pub async fn end(&self) {
        let (done, heard) = oneshot::channel();
        if self.requests.send(Request::End(done)).await.is_ok() {
            let _ = timeout(LEFT_WITHIN, heard).await;
        }
    }
}

/// Where the record is, and the storage that can shut out a gateway, if it is that.
type Places = (Arc<dyn RecordStore>, Option<Arc<dyn Blocklist>>);

fn open(options: &ClusterOptions) -> Outcome<Places> {
    let what =
        || format!("cannot use the {} of the cluster, {}", options.place.option(), options.place);
    match &options.place {
        RecordPlace::Directory(path) => {
            let directory = Directory::open(path, &options.gateway).or_fail(what)?;
            Ok((Arc::new(directory), None))
        }
        RecordPlace::Rados(pool) => {
            let explained = |why| explain_ceph(what(), &pool.access, why);
            let rados = Rados::open(pool, &options.gateway).map_err(explained)?;
            rados.first_look().map_err(explained)?;
            rados.try_rights().map_err(explained)?;
            let rados = Arc::new(rados);
            Ok((rados.clone(), Some(rados)))
        }
    }
}

/// What opens the media for a gateway that takes over.
#[derive(Clone, Debug)]
pub struct Media(CurrentClient);

impl Media {
    /// The connection to a Ceph cluster by which they are opened, if they are there.
    #[must_use]
    pub fn ceph(&self) -> Option<Arc<Client>> {
        let current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map(|current| Arc::clone(&current.client))
    }
}

async fn tell(requests: &mpsc::Sender<Request>, request: fn(oneshot::Sender<()>) -> Request) {
    let (done, heard) = oneshot::channel();
    if requests.send(request(done)).await.is_ok() {
        let _ = heard.await;
    }
}

/// Reports that a change of role is done.
#[derive(Clone, Debug)]
pub struct Reporter {
    requests: mpsc::Sender<Request>,
    lease: Duration,
}

impl Reporter {
    /// The volumes are open.
    pub async fn opened(&self) {
        tell(&self.requests, Request::Opened).await;
    }

    /// The volumes are closed, or cannot be opened.
    pub async fn closed(&self) {
        tell(&self.requests, Request::Closed).await;
    }

    /// How long a gateway tries to open volumes that nobody has, before another one may.
    #[must_use]
    pub const fn patience(&self) -> Duration {
        self.lease
    }
}

/// Tells when volumes have to be opened or closed.
pub struct RoleChanges {
    roles: watch::Receiver<Role>,
    /// Nobody looks after the lease any more, which was told.
    is_over: bool,
}

impl RoleChanges {
    /// Returns when the gateway takes over, leaves or has lost its lease, and as long as that is so. Dropping this future
    /// loses nothing.
    pub async fn next(&mut self) -> Role {
        loop {
            if self.is_over {
                std::future::pending::<()>().await;
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
                    "cluster: nobody looks after the lease any more: restart the gateway"
                );
                self.is_over = true;
                return Role::Lost;
            }
        }
    }
}

/// How the record calls a unit.
fn unit(target: &str, lun: u16) -> String {
    format!("{target}/{lun}")
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// As when the task that does so breaks down: the lock on the files would keep the other gateway out.
    #[test]
    fn gateway_whose_lease_nobody_looks_after_is_to_close_the_volumes_once() {
        let (tell, roles) = watch::channel(Role::TakingOver);
        let mut role_changes = RoleChanges { roles, is_over: false };
        assert_eq!(role_changes.next().now_or_never(), Some(Role::TakingOver));
        assert_eq!(role_changes.next().now_or_never(), Some(Role::TakingOver), "it is so still");
        tell.send(Role::Active).unwrap();
        assert_eq!(role_changes.next().now_or_never(), None);
        drop(tell);
        assert_eq!(role_changes.next().now_or_never(), Some(Role::Lost));
        assert_eq!(role_changes.next().now_or_never(), None);
    }
}
