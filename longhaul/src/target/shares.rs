//! The shares of clients in force: whose turn it is to be carried out, across the sessions of all transports.
//!
//! Nothing of this is on the way of a command unless a client has a weight or a rate: then [`Turns::is_active`] is one
//! load, and there is neither lock nor wait.

use std::collections::{BTreeMap, btree_map};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use proto::client::ClientId;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::fair_queue::{FairQueue, Flow, Grant, QueuedCommand, Request, Share, Unit, Waited};

/// What a client of the configuration is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedShare {
    /// The name of its table.
    pub name: String,
    /// By which it proves who it is; with nothing its name is enough.
    pub proofs: Vec<ClientId>,
    /// The name of its initiator.
    pub initiator: Option<String>,
    /// What it is given.
    pub share: Share,
}

impl ListedShare {
    fn is_of(&self, flow: &Flow) -> bool {
        match &flow.name {
            None => self.proofs.contains(&flow.client),
            Some(name) => self.proofs.is_empty() && self.initiator.as_deref() == Some(name),
        }
    }
}

/// How a client with a share is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareStatus {
    /// Its part beside those of others.
    pub weight: u32,
    /// Bytes a second, at most.
    pub rate: Option<u64>,
    /// Reads and writes a second, at most.
    pub iops: Option<u64>,
    /// Commands that wait for their turn.
    pub waiting: u64,
    /// Commands that have waited for it.
    pub waited: u64,
    /// The microseconds that they waited together.
    pub waited_us: u64,
}

impl ShareStatus {
    fn add(&mut self, waited: &Waited) {
        self.waiting += waited.waiting as u64;
        self.waited += waited.commands;
        self.waited_us += u64::try_from(waited.time.as_micros()).unwrap_or(u64::MAX);
    }
}

/// See the module. Sessions of all transports of a node have it in common.
#[derive(Debug)]
pub struct Shares {
    is_active: AtomicBool,
    origin: Instant,
    state: Mutex<State>,
    /// The timer has to be set earlier.
    earlier: Notify,
}

impl Default for Shares {
    fn default() -> Self {
        let (is_active, state, earlier) = <_>::default();
        Self { is_active, origin: Instant::now(), state, earlier }
    }
}

#[derive(Debug, Default)]
struct State {
    queue: FairQueue,
    listed: Vec<ListedShare>,
    sessions: BTreeMap<u64, Session>,
    /// For when the task is set that lets commands go that waited for a rate; `None` if there is none.
    timer: Option<Duration>,
}

#[derive(Debug)]
struct Session {
    client: Flow,
    /// What it has been granted and not taken.
    granted: Vec<Grant>,
    waker: Option<Waker>,
}

impl State {
    fn share_of(&self, client: &Flow) -> Share {
        let listed = self.listed.iter().filter(|it| it.is_of(client)).map(|it| it.share);
        listed.reduce(|one, other| if one.is_set() { one } else { other }).unwrap_or_default()
    }

    /// Lets all go for which a unit has room.
    fn grant(&mut self, now: Duration, unit: &Unit) {
        while let Some(grant) = self.queue.next(now, unit) {
            match self.sessions.get_mut(&grant.session) {
                Some(session) => {
                    session.granted.push(grant);
                    session.waker.iter().for_each(Waker::wake_by_ref);
                }
                None => self.queue.ended(&grant.unit, grant.bytes),
            }
        }
    }

    fn grant_all(&mut self, now: Duration) {
        self.queue.waited_for().iter().for_each(|unit| self.grant(now, unit));
    }
}

impl Shares {
    /// What the clients are given from now on: those that wait, too.
    pub fn set(self: &Arc<Self>, listed: Vec<ListedShare>) {
        let is_active = listed.iter().any(|listed| listed.share.is_set());
        let (now, mut state) = (self.now(), self.state());
        state.listed = listed;
        let clients: Vec<_> = state.sessions.values().map(|it| it.client.clone()).collect();
        for client in clients {
            let share = state.share_of(&client);
            state.queue.set_share(now, &client, share);
        }
        state.grant_all(now);
        self.set_timer(&mut state, now);
        drop(state);
        self.is_active.store(is_active, Ordering::Relaxed);
    }

    /// How the clients are, by name; nothing if nobody is given anything.
    #[must_use]
    pub fn status(&self) -> BTreeMap<String, ShareStatus> {
        let state = self.state();
        let mut status = BTreeMap::<String, ShareStatus>::new();
        for ListedShare { name, share, .. } in state.listed.iter().filter(|it| it.share.is_set()) {
            let weight = share.weight.unwrap_or(1);
            let (rate, iops) = (share.bytes, share.commands);
            status.insert(name.clone(), ShareStatus { weight, rate, iops, ..<_>::default() });
        }
        if status.is_empty() {
            return status;
        }
        for (client, _, waited) in state.queue.clients() {
            let listed = state.listed.iter().find(|listed| listed.is_of(client));
            let name = listed.map(|it| it.name.clone()).unwrap_or_else(|| name_of(client));
            let none = ShareStatus { weight: 1, ..<_>::default() };
            status.entry(name).or_insert(none).add(&waited);
        }
        status
    }

    /// The turns of a session that has just begun with `target`; `number` is unlike those of other sessions.
    pub fn join(
        self: &Arc<Self>,
        (client, name): (&ClientId, &Arc<str>),
        number: u64,
        target: Option<&Arc<str>>,
    ) -> Turns {
        let name = (*client == ClientId::Unauthenticated).then(|| Arc::clone(name));
        let client = Flow { client: client.clone(), name };
        let mut state = self.state();
        let share = state.share_of(&client);
        state.queue.join(self.now(), client.clone(), share);
        state.sessions.insert(number, Session { client, granted: Vec::new(), waker: None });
        drop(state);
        let target = target.cloned().unwrap_or_else(|| "".into());
        Turns { shares: Arc::clone(self), session: number, target }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something at a unit has ended, or does not count there any more.
    fn ended(self: &Arc<Self>, unit: &Unit, bytes: u64) {
        let (now, mut state) = (self.now(), self.state());
        state.queue.ended(unit, bytes);
        state.grant(now, unit);
        self.set_timer(&mut state, now);
    }

    /// Sees to it that what waits for a rate goes when it may.
    fn set_timer(self: &Arc<Self>, state: &mut State, now: Duration) {
        let Some(deadline) = state.queue.deadline(now) else { return };
        match state.timer {
            Some(set) if set <= deadline => return,
            Some(_) => self.earlier.notify_one(),
            None => drop(tokio::spawn(Arc::clone(self).keep_time(deadline))),
        }
        state.timer = Some(deadline);
    }

    /// Until nothing waits for a rate.
    async fn keep_time(self: Arc<Self>, mut deadline: Duration) {
        loop {
            tokio::select! {
                () = sleep_until(self.origin + deadline) => {}
                () = self.earlier.notified() => {}
            }
            let (now, mut state) = (self.now(), self.state());
            state.grant_all(now);
            state.timer = state.queue.deadline(now);
            let Some(next) = state.timer else { return };
            deadline = next;
        }
    }
}

fn name_of(client: &Flow) -> String {
    client.name.as_ref().map_or_else(|| client.client.to_string(), ToString::to_string)
}

/// A command counts at its unit as long as this is there.
#[derive(Debug)]
pub struct Service {
    shares: Arc<Shares>,
    unit: Unit,
    bytes: u64,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shares.ended(&self.unit, self.bytes);
    }
}

/// Whether a command may go.
#[derive(Debug)]
pub enum Turn {
    /// It may.
    Now(Service),
    /// It waits.
    Later(QueuedCommand),
}

/// The turns of one session. It has ended when this is dropped.
#[derive(Debug)]
pub struct Turns {
    shares: Arc<Shares>,
    session: u64,
    target: Arc<str>,
}

impl Turns {
    /// Whether commands have to ask: not unless some client is given something.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.shares.is_active.load(Ordering::Relaxed)
    }

    fn service(&self, Grant { unit, bytes, .. }: Grant) -> Service {
        Service { shares: Arc::clone(&self.shares), unit, bytes }
    }

    /// Asks for the turn of a command of so many bytes. The task is woken when it comes, unless that is now.
    pub fn ask(&self, cx: &Context<'_>, lun: u16, bytes: u64, order: (u8, bool)) -> Turn {
        let (priority, in_order) = order;
        let request = Request { session: self.session, bytes, priority, in_order };
        let unit = (Arc::clone(&self.target), lun);
        let now = self.shares.now();
        let mut state = self.shares.state();
        let State { sessions, queue, .. } = &mut *state;
        let btree_map::Entry::Occupied(mut session) = sessions.entry(self.session) else {
            unreachable!("a session is known until its turns are dropped")
        };
        session.get_mut().waker = Some(cx.waker().clone());
        let ticket = queue.ask(now, &session.get().client, unit.clone(), request);
        state.grant(now, &unit);
        self.shares.set_timer(&mut state, now);
        match state.take_granted(self.session, ticket.number) {
            Some(grant) => Turn::Now(self.service(grant)),
            None => Turn::Later(ticket),
        }
    }

    /// The commands whose turn has come, by the numbers of their tickets.
    pub fn poll(&self, cx: &Context<'_>) -> Vec<(u64, Service)> {
        let mut state = self.shares.state();
        let Some(session) = state.sessions.get_mut(&self.session) else { return Vec::new() };
        session.waker = Some(cx.waker().clone());
        let granted = std::mem::take(&mut session.granted);
        drop(state);
        granted.into_iter().map(|grant| (grant.number, self.service(grant))).collect()
    }

    /// A command that waits is not to be carried out any more.
    pub fn cancel(&self, ticket: &QueuedCommand) {
        let mut state = self.shares.state();
        state.queue.cancel(ticket);
        if let Some(grant) = state.take_granted(self.session, ticket.number) {
            drop(state);
            drop(self.service(grant));
        }
    }
}

impl State {
    fn take_granted(&mut self, session: u64, number: u64) -> Option<Grant> {
        let granted = &mut self.sessions.get_mut(&session)?.granted;
        let at = granted.iter().position(|grant| grant.number == number)?;
        Some(granted.swap_remove(at))
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        let mut state = self.shares.state();
        let Some(Session { client, granted, .. }) = state.sessions.remove(&self.session) else {
            return;
        };
        state.queue.leave(self.shares.now(), &client);
        drop(state);
        granted.into_iter().for_each(|grant| drop(self.service(grant)));
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    fn listed(share: Share) -> Vec<ListedShare> {
        let (name, proofs) = ("a".to_owned(), vec![ClientId::Account("a".to_owned())]);
        vec![ListedShare { name, proofs, initiator: None, share }]
    }

    fn turns(shares: &Arc<Shares>, number: u64) -> Turns {
        let (client, name) = (ClientId::Account("a".to_owned()), "i".into());
        shares.join((&client, &name), number, Some(&"t".into()))
    }

    /// Asks for the turns of so many commands, and waits until all have come.
    async fn wait(turns: &Turns, count: usize) {
        let mut left = poll_fn(|cx| {
            let asked = (0..count).map(|_| turns.ask(cx, 0, 512, (0, false)));
            Poll::Ready(asked.filter(|turn| matches!(turn, Turn::Later(_))).count())
        })
        .await;
        while left > 0 {
            left -= poll_fn(|cx| match turns.poll(cx) {
                granted if granted.is_empty() => Poll::Pending,
                granted => Poll::Ready(granted.len()),
            })
            .await;
        }
    }

    #[tokio::test]
    async fn command_is_let_go_when_its_rate_permits() {
        let shares = Arc::<Shares>::default();
        assert!(!turns(&shares, 1).is_active(), "nobody is given anything");
        shares.set(listed(Share { commands: Some(100), ..Share::default() }));
        let (one, other) = (turns(&shares, 1), turns(&shares, 2));
        assert!(one.is_active());
        // Both sessions wait for the one rate; there is nothing but the timer to wake them.
        futures_util::future::join(wait(&one, 15), wait(&other, 15)).await;
        let status = shares.status()["a"];
        assert_eq!((status.iops, status.waiting), (Some(100), 0));
        assert!(status.waited > 0 && status.waited_us > 0, "{status:?}");
        drop((one, other));
        assert!(shares.state().sessions.is_empty());
    }

    /// What a session has not taken of its turns when it ends counts nowhere any more.
    #[tokio::test]
    async fn session_that_ends_gives_back_its_turns() {
        let shares = Arc::<Shares>::default();
        shares.set(listed(Share { weight: Some(2), ..Share::default() }));
        let (one, other) = (turns(&shares, 1), turns(&shares, 2));
        let mut held = Vec::new();
        poll_fn(|cx| {
            held.extend((0..40).map(|_| one.ask(cx, 0, 512, (0, false))));
            Poll::Ready(())
        })
        .await;
        assert!(held.iter().any(|turn| matches!(turn, Turn::Later(_))), "the unit is full");
        for turn in held {
            match turn {
                Turn::Now(service) => drop(service),
                Turn::Later(ticket) => one.cancel(&ticket),
            }
        }
        drop(one);
        wait(&other, 40).await;
        assert_eq!(shares.status()["a"].waiting, 0);
    }
}
