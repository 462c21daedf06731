//! Who drives the lease: one task that reads and writes the record, one thing at a time. While the record, the fence or a
//! task of a preempted initiator is waited for, what the rest of the server asks for is taken in all the same.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use proto::cluster::{Lease, Outcome, Record, Role, Settings, Step, Update, Written};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::fence::Fences;
use super::observer::Published;
use super::store::{CurrentClient, RecordStore};
use super::{name_of, now};
use crate::log_limiter::{LineLimiter, Permit};
use crate::target::lun::{Disk, MediumPermit, check_shared_reservations};

/// How long a gateway waits that has met another's change, before it looks again.
const AFTER_CONFLICT: Duration = Duration::from_millis(2);

/// For how many times as long as a change took to write the next one waits, so that another gateway can read the record and
/// change it in between.
const ROOM_FOR_OTHERS: u32 = 3;

/// How long a call of the file system is waited for at most.
const CALL_MAX: Duration = Duration::from_secs(15);

/// How many calls of the file system may be under way: one that hangs is not waited for, but those that follow must not
/// take all threads of the process while it does.
const CALLS_MAX: usize = 4;

/// How often in a lease a connection is tried that could not be made.
const RETRIES: u32 = 10;

/// What the rest of the server asks for.
#[derive(Debug)]
pub(super) enum Request {
    /// What is kept of the units is to be in force here.
    Refresh(oneshot::Sender<io::Result<()>>),
    Update(Update, oneshot::Sender<Outcome>),
    /// Whether no gateway that had the media before can write to them any more.
    Settled(oneshot::Sender<io::Result<()>>),
    Move(oneshot::Sender<()>),
    Opened(oneshot::Sender<()>),
    Closed(oneshot::Sender<()>),
    /// Everything is closed, and the process ends.
    End(oneshot::Sender<()>),
}

/// Asks for something, and waits until the driver has heard it.
pub(super) async fn tell(
    requests: &mpsc::Sender<Request>,
    request: fn(oneshot::Sender<()>) -> Request,
) {
    let (done, heard) = oneshot::channel();
    if requests.send(request(done)).await.is_ok() {
        let _ = heard.await;
    }
}

/// See the module.
pub(super) struct Driver {
    lease: Lease,
    /// Others know the weight of this gateway.
    has_shown: bool,
    store: Arc<dyn RecordStore>,
    fences: Fences,
    client: CurrentClient,
    requests: mpsc::Receiver<Request>,
    published: Published,
    permit: Arc<MediumPermit>,
    calls: Arc<Semaphore>,
    disks: BTreeMap<String, Disk>,
    refreshes: Vec<oneshot::Sender<io::Result<()>>>,
    settling: Vec<oneshot::Sender<io::Result<()>>>,
    updates: VecDeque<(Update, oneshot::Sender<Outcome>)>,
    /// When the next of them may begin.
    next_update: Instant,
    /// When an address is asked for again that could not be had.
    next_address: Instant,
    /// Who waits for the update that is under way.
    updating: Option<oneshot::Sender<Outcome>>,
    ending: Option<oneshot::Sender<()>>,
    /// It holds nothing, and the process ends.
    has_left: bool,
    /// Tells whether the storage takes nothing from this gateway any more.
    shut_out: Option<JoinHandle<bool>>,
    /// Nobody can ask for anything any more.
    is_abandoned: bool,
    /// Tasks are being ended, which may be those that ask.
    is_ending_tasks: bool,
    failures: LineLimiter,
}

impl Driver {
    pub(super) fn new(
        settings: Settings,
        (store, fences, client): (Arc<dyn RecordStore>, Fences, CurrentClient),
        requests: mpsc::Receiver<Request>,
        published: Published,
        permit: Arc<MediumPermit>,
    ) -> Self {
        Self {
            lease: Lease::new(settings, now()),
            has_shown: false,
            store,
            fences,
            client,
            requests,
            published,
            permit,
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            disks: BTreeMap::new(),
            refreshes: Vec::new(),
            settling: Vec::new(),
            updates: VecDeque::new(),
            next_update: Instant::now(),
            next_address: Instant::now(),
            updating: None,
            ending: None,
            has_left: false,
            shut_out: None,
            is_abandoned: false,
            is_ending_tasks: false,
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
            if self.is_abandoned {
                return;
            }
            self.begin_update();
            self.renew_address().await;
            let step = self.lease.poll(now());
            self.publish();
            match step {
                Step::Wait(_) if self.is_over() => self.has_left = true,
                Step::Wait(until) => {
                    let until = Instant::now() + (until - now());
                    let next = if self.updates.is_empty() { until } else { self.next_update };
                    self.until_asked(sleep_until(until.min(next))).await;
                }
                Step::Read => self.read().await,
                Step::Look => self.look().await,
                Step::Write(record) => self.write(record).await,
                Step::Fence(former) => {
                    let done = self.during(self.fences.clone().fence(former)).await;
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
        let record = self.lease.record();
        if self.published.publish(role, record) {
            let (gateway, epoch) = (&self.lease.settings().me.gateway, record.epoch);
            let (group, role) = (self.published.group(), name_of(role));
            tracing::info!(%gateway, %group, role, epoch, "cluster: the role of this gateway has changed");
        }
        self.tell_settled(role);
    }

    /// A gateway that takes over has the lease and waits for the files: the one before may be carrying out a last write.
    fn tell_settled(&mut self, role: Role) {
        if role == Role::TakingOver {
            return;
        }
        for tell in self.settling.drain(..) {
            let _ = tell.send(match role {
                Role::Lost => Err(io::Error::other("the lease was lost")),
                _ => Ok(()),
            });
        }
    }

    /// Whether the process ends and the lease is given back.
    fn is_over(&mut self) -> bool {
        self.ending.is_some() && self.lease.role(now()) == Role::Standby
    }

    /// What `work` gives; requests are taken in meanwhile.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                request = self.requests.recv(), if !self.is_abandoned => match request {
                    Some(request) => self.take(request),
                    None => self.is_abandoned = true,
                },
            }
        }
    }

    /// The same, until there is a request.
    async fn until_asked(&mut self, work: impl Future<Output = ()>) {
        tokio::select! {
            request = self.requests.recv() => match request {
                Some(request) => self.take(request),
                None => self.is_abandoned = true,
            },
            () = work => {}
        }
    }

    fn take(&mut self, request: Request) {
        match request {
            Request::Refresh(tell)
                if self.lease.valid_until().is_some_and(|until| now() < until) =>
            {
                // Nobody else changes anything that this gateway has not put in force.
                let _ = tell.send(Ok(()));
            }
            // What asks may be a task that is to end, which is waited for.
            Request::Refresh(tell) | Request::Settled(tell) if self.is_ending_tasks => {
                let _ = tell.send(Err(io::ErrorKind::Interrupted.into()));
            }
            Request::Update(_, tell) if self.is_ending_tasks => {
                let _ = tell.send(Outcome::Unknown);
            }
            Request::Refresh(tell) => {
                self.refreshes.push(tell);
                self.lease.refresh(now());
            }
            Request::Update(update, tell) => self.updates.push_back((update, tell)),
            Request::Settled(tell) => {
                self.settling.push(tell);
                self.publish();
            }
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
            Request::End(done) => {
                self.has_left = self.lease.role(now()) == Role::Standby;
                self.lease.leave(now());
                self.lease.closed(now());
                self.publish();
                self.ending = Some(done);
            }
        }
    }

    fn begin_update(&mut self) {
        if self.updating.is_none()
            && Instant::now() >= self.next_update
            && let Some((update, tell)) = self.updates.pop_front()
        {
            self.lease.update(now(), update);
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

    /// Before it can take the lease it needs a way to the media that nobody has shut out.
    async fn renew_address(&mut self) {
        let Some(blocklist) = self.fences.blocklist() else { return };
        if !self.lease.lacks_address() || Instant::now() < self.next_address {
            return;
        }
        let connected = self.operation(move || blocklist.connect()).await;
        let connected =
            connected.map_err(|why| self.report("used: no connection to the media", &why));
        let Ok(connected) = connected else {
            self.next_address = Instant::now() + self.lease.settings().lease / RETRIES;
            return;
        };
        self.lease.set_address(connected.address.clone());
        self.shut_out = None;
        let mut current = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let before = current.replace(connected);
        // That of a lease before, which is closed. To leave the cluster takes a moment.
        spawn_blocking(move || drop(before));
    }

    async fn read(&mut self) {
        // Those who ask from here on want what is there then.
        let refreshes = std::mem::take(&mut self.refreshes);
        let (store, weight) = (Arc::clone(&self.store), self.lease.weight(now()));
        let look = move || {
            let found = store.read()?;
            // Not where another directory is in the place of that of the cluster. Whoever wants to move finds out.
            let shown = found.is_some().then(|| store.show_presence(weight));
            Ok((found, shown.transpose()))
        };
        let looked = self.operation(look).await;
        let found = looked.and_then(|(found, shown)| {
            self.note_shown(shown);
            self.check(found)
        });
        let failed = found.as_ref().err().map(|why| (why.kind(), why.to_string()));
        let found = found.map_err(|why| self.report("read", &why));
        self.lease.read(now(), found);
        self.adopt().await;
        for tell in refreshes {
            let failed = failed.clone().map(|(kind, why)| io::Error::new(kind, why));
            let _ = tell.send(failed.map_or(Ok(()), Err));
        }
        if !self.refreshes.is_empty() {
            self.lease.refresh(now());
        }
    }

    /// Whether others know the weight of this gateway, if that was to be shown.
    fn note_shown(&mut self, shown: io::Result<Option<()>>) {
        match shown {
            Ok(shown) => self.has_shown |= shown.is_some(),
            Err(why) => self
                .report("marked as looked at: others do not know that this gateway is there", &why),
        }
    }

    /// Which other gateways there are.
    async fn look(&mut self) {
        let store = Arc::clone(&self.store);
        let signs = self.operation(move || store.others_seen()).await;
        let signs =
            signs.map_err(|why| self.report("compared with what other gateways show", &why));
        self.lease.others_seen(now(), signs.ok());
    }

    /// Refuses a record that this gateway cannot go by: to use the media without the reservations in it would be to ignore
    /// them.
    fn check(&self, found: Option<Record>) -> io::Result<Option<Record>> {
        const OLDER: &str =
            "it is older than it was before: is its file system mounted here, on NFS with noac?";
        let record = found.clone().unwrap_or_default();
        if !self.lease.accepts(&record) {
            return Err(io::Error::other(OLDER));
        }
        for (unit, image) in record.units.iter().filter(|(unit, _)| self.disks.contains_key(*unit))
        {
            check_shared_reservations(image)
                .map_err(|why| io::Error::other(format!("the reservations of {unit}: {why}")))?;
        }
        Ok(found)
    }

    async fn write(&mut self, record: Record) {
        let (store, begun) = (Arc::clone(&self.store), Instant::now());
        let weight = (!self.has_shown).then(|| self.lease.weight(now()));
        let replace = move || {
            let is_done = store.replace(&record)?;
            // The first record of a cluster is there only now.
            Ok((is_done, weight.map(|weight| store.show_presence(weight)).transpose()))
        };
        let written = match self.operation(replace).await {
            Ok((true, shown)) => {
                self.note_shown(shown);
                Written::Done
            }
            Ok((false, _)) => {
                self.during(sleep(AFTER_CONFLICT)).await;
                Written::Conflict
            }
            Err(why) => {
                self.report("written", &why);
                Written::Unknown
            }
        };
        if self.updating.is_some() {
            self.next_update = Instant::now() + begun.elapsed() * ROOM_FOR_OTHERS;
        }
        self.lease.written(now(), written);
        self.look_whether_shut_out();
        self.adopt().await;
    }

    /// Another gateway may have shut this one out and then have met a sign of life of it: then this one holds the lease, and
    /// nothing that it does comes to anything. Nobody waits for the answer, which is found with the next sign of life.
    fn look_whether_shut_out(&mut self) {
        let answered = self.shut_out.take_if(|looking| looking.is_finished());
        if answered.and_then(JoinHandle::now_or_never).is_some_and(|is| is.unwrap_or(false)) {
            tracing::error!(
                group = %self.published.group(),
                "the storage takes nothing from this gateway any more: it opens the volumes anew"
            );
            self.lease.shut_out();
        }
        let current = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let (Some(blocklist), Some(client), None) =
            (self.fences.blocklist(), current, &self.shut_out)
        {
            self.shut_out = Some(spawn_blocking(move || blocklist.is_shut_out(&client)));
        }
    }

    /// What a call gives that may wait for long: it is not waited for longer than the lease would last.
    async fn operation<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let calls = Arc::clone(&self.calls);
        let call = async move {
            let permit = calls.acquire_owned().await.map_err(io::Error::other)?;
            let called = spawn_blocking(move || {
                let done = work();
                drop(permit);
                done
            });
            called.await.map_err(io::Error::other)?
        };
        let longest = (self.lease.settings().lease / 2).min(CALL_MAX);
        let done = self.during(timeout(longest, call)).await;
        done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    fn report(&mut self, what: &str, why: &io::Error) {
        self.published.failed();
        if let Some((Permit { suppressed }, _)) = self.failures.permit() {
            let group = self.published.group();
            tracing::error!(%why, %group, suppressed, "the record of the cluster could not be {what}");
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
                // They were looked at before the record was taken for one.
                Err(why) => tracing::error!(unit, %why, "the shared reservations cannot be used"),
            }
        }
        self.end_tasks(join_all(ending).map(drop)).await;
    }

    /// Waits until tasks have ended. They may wait for this gateway to change the reservations: they are told that it does
    /// not, or each would wait for the other.
    async fn end_tasks(&mut self, ending: impl Future<Output = ()>) {
        let mut ending = pin!(ending);
        if ending.as_mut().now_or_never().is_some() {
            return;
        }
        self.lease.abandon_update();
        self.end_update();
        for (_, tell) in self.updates.drain(..) {
            let _ = tell.send(Outcome::Unknown);
        }
        for tell in self.refreshes.drain(..).chain(self.settling.drain(..)) {
            let _ = tell.send(Err(io::ErrorKind::Interrupted.into()));
        }
        self.is_ending_tasks = true;
        self.during(ending).await;
        self.is_ending_tasks = false;
    }
}
