//! The part of this gateway in one group of volumes, which has a lease and a record of its own.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use host::rbd::Client;
use proto::cluster::{GatewayName, GroupName, Role, Settings};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::driver::{Driver, Request, tell};
use super::fence::Fences;
use super::membership::Membership;
use super::mover::Mover;
use super::observer::{GroupObserver, Published};
use super::reservations::UnitReservations;
use super::store::{CurrentClient, RecordStore};
use crate::log_limiter::LineLimiter;
use crate::target::lun::{Disk, MediumPermit, Shared};

/// How long an end waits for the lease to be given back.
const LEFT_WITHIN: Duration = Duration::from_secs(5);

/// See the module.
pub struct Group {
    gateway: GatewayName,
    lease: Duration,
    /// How it is called where there are others.
    name: Option<GroupName>,
    store: Arc<dyn RecordStore>,
    membership: Membership,
    /// By which it comes to the media, if those are in a storage that can shut it out.
    client: CurrentClient,
    requests: mpsc::Sender<Request>,
    roles: watch::Receiver<Role>,
    observer: GroupObserver,
    permit: Arc<MediumPermit>,
    /// Of openings that are tried many times.
    take_over_log: Arc<LineLimiter>,
    /// Until it is started.
    driver: Option<Driver>,
}

impl Group {
    /// One that does nothing yet.
    pub(super) fn new(
        name: &GroupName,
        is_alone: bool,
        settings: Settings,
        (store, membership, fences): (Arc<dyn RecordStore>, Membership, Fences),
    ) -> Self {
        let (requests, asked) = mpsc::channel(64);
        let permit = Arc::<MediumPermit>::default();
        let (tell, roles, observer) = Published::new(name, settings.weight, &permit);
        let client = CurrentClient::default();
        let (gateway, lease) = (settings.me.gateway.clone(), settings.lease);
        let places = (Arc::clone(&store), fences, Arc::clone(&client));
        let driver = Driver::new(settings, places, asked, tell, Arc::clone(&permit));
        Self {
            gateway,
            lease,
            name: (!is_alone).then(|| name.clone()),
            store,
            membership,
            client,
            requests,
            roles,
            observer,
            permit,
            take_over_log: Arc::new(LineLimiter::of_retries()),
            driver: Some(driver),
        }
    }

    /// What tells whether the volumes are in this group at all gateways.
    #[must_use]
    pub fn membership(&self) -> Membership {
        self.membership.clone()
    }

    /// What opens the media for a gateway that takes over.
    #[must_use]
    pub fn media(&self) -> Media {
        Media(Arc::clone(&self.client))
    }

    /// What a disk shares that is this unit of this target.
    pub(super) fn shared(&self, target: &str, lun: u16) -> Shared {
        let reservations = UnitReservations::new(unit(target, lun), self.requests.clone());
        Shared { reservations: Arc::new(reservations), permit: Arc::clone(&self.permit) }
    }

    /// Takes part from now on, with these disks.
    pub(super) fn start<'a>(&mut self, disks: impl Iterator<Item = (&'a str, u16, &'a Disk)>) {
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

    /// Of openings that are tried many times.
    pub(crate) fn take_over_log(&self) -> Arc<LineLimiter> {
        Arc::clone(&self.take_over_log)
    }

    /// What tells how it is.
    pub(super) fn observer(&self) -> GroupObserver {
        self.observer.clone()
    }

    /// What reports that a change of role is done.
    #[must_use]
    pub fn reporter(&self) -> Reporter {
        Reporter { requests: self.requests.clone(), lease: self.lease }
    }

    /// What moves it.
    #[must_use]
    pub fn mover(&self) -> Mover {
        Mover {
            gateway: self.gateway.clone(),
            lease: self.lease,
            name: self.name.clone(),
            store: Arc::clone(&self.store),
            requests: self.requests.clone(),
            roles: self.roles.clone(),
        }
    }

    /// Gives the lease back, after everything is closed.
    pub(super) async fn end(&self) {
        let (done, heard) = oneshot::channel();
        if self.requests.send(Request::End(done)).await.is_ok() {
            let _ = timeout(LEFT_WITHIN, heard).await;
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

/// How the record calls a unit.
pub(super) fn unit(target: &str, lun: u16) -> String {
    format!("{target}/{lun}")
}
