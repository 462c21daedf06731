//! Who drives the lease: one task that reads and writes the record, one thing at a time.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use proto::cluster::{Lease, Outcome, Record, Role, Settings, Step, Update, Written};
use proto::time::Time;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::fence::fence;
use super::store::RecordStore;
use super::{ClusterStatus, name_of};
use crate::log_limiter::{LineLimiter, Permit};
use crate::target::lun::{Disk, MediumPermit, since_boot};

/// How long a gateway waits that has met another's change, before it looks again.
const AFTER_CONFLICT: Duration = Duration::from_millis(2);

/// What the rest of the server asks for.
#[derive(Debug)]
pub(super) enum Request {
    /// What is kept of the units is to be in force here.
    Refresh(oneshot::Sender<io::Result<()>>),
    Update(Update, oneshot::Sender<Outcome>),
    Move(oneshot::Sender<()>),
    Opened(oneshot::Sender<()>),
    Closed(oneshot::Sender<()>),
    Status(oneshot::Sender<ClusterStatus>),
    /// Everything is closed, and the process ends.
    End(oneshot::Sender<()>),
}

/// See the module.
pub(super) struct Driver {
    lease: Lease,
    settings: Settings,
    store: Arc<dyn RecordStore>,
    fence: Option<PathBuf>,
    requests: mpsc::Receiver<Request>,
    roles: watch::Sender<Role>,
    permit: Arc<MediumPermit>,
    disks: BTreeMap<String, Disk>,
    refreshes: Vec<oneshot::Sender<io::Result<()>>>,
    updates: VecDeque<(Update, oneshot::Sender<Outcome>)>,
    /// Who waits for the update that is under way.
    updating: Option<oneshot::Sender<Outcome>>,
    ending: Option<oneshot::Sender<()>>,
    /// It holds nothing, and the process ends.
    has_left: bool,
    failures: LineLimiter,
}

fn now() -> Time {
    Time::from_origin(since_boot())
}

impl Driver {
    pub(super) fn new(
        settings: Settings,
        (store, fence): (Arc<dyn RecordStore>, Option<PathBuf>),
        requests: mpsc::Receiver<Request>,
        roles: watch::Sender<Role>,
        permit: Arc<MediumPermit>,
    ) -> Self {
        Self {
            lease: Lease::new(settings.clone(), now()),
            settings,
            store,
            fence,
            requests,
            roles,
            permit,
            disks: BTreeMap::new(),
            refreshes: Vec::new(),
            updates: VecDeque::new(),
            updating: None,
            ending: None,
            has_left: false,
            failures: LineLimiter::default(),
        }
    }

    /// Until the lease is given back at the end of the process, or nobody asks for anything any more.
    pub(super) async fn run(mut self, disks: BTreeMap<String, Disk>) {
        self.disks = disks;
        loop {
            if self.has_left {
                if let Some(done) = self.ending.take() {
                    let _ = done.send(());
                }
                return;
            }
            self.begin_update();
            let step = self.lease.poll(now());
            self.publish();
            match step {
                Step::Wait(_) if self.is_over() => self.has_left = true,
                Step::Wait(until) => {
                    if !self.wait(until).await {
                        return;
                    }
                }
                Step::Read => self.read().await,
                Step::Write(record) => self.write(record).await,
                Step::Fence(former) => {
                    let done = match &self.fence {
                        Some(program) => fence(program, &former).await,
                        None => true,
                    };
                    self.lease.fenced(now(), done);
                }
            }
            self.publish();
            self.end_update();
        }
    }

    /// Has the rest of the server know what this gateway is now.
    fn publish(&mut self) {
        let role = self.lease.role(now());
        match self.lease.valid_until() {
            Some(until) => self.permit.extend(until.since_origin()),
            None => self.permit.withdraw(),
        }
        let before = self.roles.send_replace(role);
        if before != role {
            let Record { epoch, .. } = *self.lease.record();
            let (gateway, role) = (&self.settings.me.gateway, name_of(role));
            tracing::info!(%gateway, role, epoch, "cluster: the role of this gateway has changed");
        }
    }

    /// Whether the process ends and the lease is given back.
    fn is_over(&mut self) -> bool {
        self.ending.is_some() && self.lease.role(now()) == Role::Standby
    }

    /// Waits for a request, or until then. Not if nobody can ask any more.
    async fn wait(&mut self, until: Time) -> bool {
        tokio::select! {
            request = self.requests.recv() => match request {
                Some(request) => self.take(request),
                None => return false,
            },
            () = sleep(until - now()) => {}
        }
        true
    }

    fn take(&mut self, request: Request) {
        match request {
            Request::Refresh(tell)
                if self.lease.valid_until().is_some_and(|until| now() < until) =>
            {
                // Nobody else changes anything that this gateway has not put in force.
                let _ = tell.send(Ok(()));
            }
            Request::Refresh(tell) => {
                self.refreshes.push(tell);
                self.lease.refresh(now());
            }
            Request::Update(update, tell) => self.updates.push_back((update, tell)),
            Request::Move(done) => {
                self.lease.move_on(now());
                self.publish();
                let _ = done.send(());
            }
            Request::Opened(done) => {
                self.lease.opened(now());
                self.publish();
                let _ = done.send(());
            }
            Request::Closed(done) => {
                self.lease.closed(now());
                self.publish();
                let _ = done.send(());
            }
            Request::Status(tell) => drop(tell.send(self.status())),
            Request::End(done) => {
                self.has_left = self.lease.role(now()) == Role::Standby;
                self.lease.leave(now());
                self.lease.closed(now());
                self.publish();
                self.ending = Some(done);
            }
        }
    }

    fn status(&mut self) -> ClusterStatus {
        let role = name_of(self.lease.role(now())).to_owned();
        let Record { holder, epoch, .. } = self.lease.record();
        let holder = holder.as_ref().map(|holder| holder.gateway.to_string());
        ClusterStatus { gateway: self.settings.me.gateway.to_string(), role, holder, epoch: *epoch }
    }

    fn begin_update(&mut self) {
        if self.updating.is_none()
            && let Some((update, tell)) = self.updates.pop_front()
        {
            self.lease.update(update);
            self.updating = Some(tell);
        }
    }

    fn end_update(&mut self) {
        if let Some(outcome) = self.lease.take_outcome()
            && let Some(tell) = self.updating.take()
        {
            let _ = tell.send(outcome);
        }
    }

    async fn read(&mut self) {
        let store = Arc::clone(&self.store);
        let found = self.operation(move || store.read()).await;
        let failed = found.as_ref().err().map(|why| (why.kind(), why.to_string()));
        self.lease.read(now(), found.map_err(|why| self.report("read", &why)));
        self.adopt().await;
        for tell in std::mem::take(&mut self.refreshes) {
            let failed = failed.clone().map(|(kind, why)| io::Error::new(kind, why));
            let _ = tell.send(failed.map_or(Ok(()), Err));
        }
    }

    async fn write(&mut self, record: Record) {
        let store = Arc::clone(&self.store);
        let written = match self.operation(move || store.replace(&record)).await {
            Ok(true) => Written::Done,
            Ok(false) => {
                sleep(AFTER_CONFLICT).await;
                Written::Conflict
            }
            Err(why) => {
                self.report("written", &why);
                Written::Unknown
            }
        };
        self.lease.written(now(), written);
        self.adopt().await;
    }

    /// What a call gives that may wait for long: it is not waited for longer than the lease would last.
    async fn operation<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        match timeout(self.settings.lease / 2, spawn_blocking(work)).await {
            Ok(done) => done.map_err(io::Error::other)?,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn report(&self, what: &str, why: &io::Error) {
        if let Some((Permit { suppressed }, _)) = self.failures.permit() {
            tracing::error!(%why, suppressed, "the record of the cluster could not be {what}");
        }
    }

    /// Puts in force what others have made of the reservations. What that ends has ended when this returns: the next
    /// record that this gateway writes tells the others so.
    async fn adopt(&mut self) {
        if !self.lease.take_changed() {
            return;
        }
        let mut ending = Vec::new();
        for (unit, image) in &self.lease.record().units {
            let Some(disk) = self.disks.get(unit) else { continue };
            match disk.adopt_reservations(image) {
                Ok(ended) => ending.push(ended),
                Err(why) => tracing::error!(unit, %why, "the shared reservations cannot be used"),
            }
        }
        join_all(ending).await;
    }
}
