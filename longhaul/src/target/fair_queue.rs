//! Which command goes next where commands of several clients wait for one unit, and when a client with a rate may go on: a
//! value on which time has no hold but what it is told.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996) with a depth: a unit carries out some commands at once, and what it
//! has no room for waits in a lane for each client. Each command costs its bytes and a fixed sum. The lane with the
//! lowest start tag goes next, and its tag moves on by the cost over the weight of its client. So clients that have something
//! waiting get parts as their weights are, a client that comes back has neither saved up nor lost anything, and none starves.
//!
//! In a lane the command of the highest priority goes first and of these the smallest, where their order does not matter. The
//! oldest is not passed over for ever.
//!
//! A rate is a token bucket, as in `volume::layer::limit`: a command begins once those before it are paid. A lane whose
//! client has to wait for that is passed over by the others.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proto::client::ClientId;

/// Commands that a unit carries out at once before others wait: enough to keep a solid-state disk busy, and less than
/// clients have under way, of which some have to wait for weights to hold.
const DEPTH: usize = 16;

/// The same of their bytes, but for a single command.
const DEPTH_BYTES: u64 = 8 << 20;

/// What a command costs beside its bytes: about what a small one takes of a disk or of a core, as bytes of a large one.
const COMMAND_COST: u64 = 16 << 10;

/// How much of an idle time may be made up for by a client with a rate.
const BURST: Duration = Duration::from_millis(100);

/// How often the oldest command of a lane lets others pass.
const PASSED_MAX: u32 = 16;

/// The largest weight.
pub const WEIGHT_MAX: u32 = 1000;

/// What tags are counted in, for each unit of cost at weight 1: a multiple of every common weight.
const TAG: u128 = 720_720;

/// What one client is given of a server that has not enough for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Its part beside those of others that wait; 1 if nothing is said.
    pub weight: Option<u32>,
    /// Bytes a second that it reads and writes.
    pub bytes: Option<u64>,
    /// Reads and writes a second.
    pub commands: Option<u64>,
}

impl Share {
    /// Whether it says anything.
    #[must_use]
    pub fn is_set(&self) -> bool {
        *self != Self::default()
    }

    fn weight(&self) -> u128 {
        self.weight.unwrap_or(1).clamp(1, WEIGHT_MAX).into()
    }
}

/// A client by what it has proven, and by its name where that is nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// What it has proven.
    pub client: ClientId,
    /// The name of its initiator, if it has proven nothing.
    pub name: Option<Arc<str>>,
}

/// A logical unit: its target, and its number there.
pub type Unit = (Arc<str>, u16);

/// A command that would like to be carried out.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The session that has it.
    pub session: u64,
    /// What it reads or writes.
    pub bytes: u64,
    /// Higher ones go first.
    pub priority: u8,
    /// It does not pass those before it, nor those behind it it.
    pub in_order: bool,
}

/// Names a command that has asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedCommand {
    client: Flow,
    unit: Unit,
    /// Unlike that of any other.
    pub number: u64,
}

/// A command whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The session that has it.
    pub session: u64,
    /// The number of its ticket.
    pub number: u64,
    /// Where it counts until it has ended.
    pub unit: Unit,
    /// What it counts there.
    pub bytes: u64,
    /// How long it has waited.
    pub waited: Duration,
}

/// How a client is, and what it has had to wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// Commands that wait now.
    pub waiting: usize,
    /// Commands that have waited.
    pub commands: u64,
    /// How long, together.
    pub time: Duration,
}

/// The priority, the bytes and the number: commands of a lane in the order in which they go.
type Order = (Reverse<u8>, u64, u64);

#[derive(Debug)]
struct Waiting {
    request: Request,
    since: Duration,
}

/// The commands of one client that wait for one unit.
#[derive(Debug, Default)]
struct Lane {
    /// The start tag of its next command.
    tag: u128,
    /// Whether it could go at the last look: otherwise its tag is that of somebody who comes back.
    is_ready: bool,
    waiting: BTreeMap<Order, Waiting>,
    /// The same by age.
    by_age: BTreeMap<u64, Order>,
    /// How many of them may not be passed.
    in_order: usize,
    /// How many have passed the oldest.
    passed: u32,
}

impl Lane {
    fn push(&mut self, number: u64, waiting: Waiting) {
        let Request { priority, bytes, in_order, .. } = waiting.request;
        let order = (Reverse(priority), bytes, number);
        self.in_order += usize::from(in_order);
        self.by_age.insert(number, order);
        self.waiting.insert(order, waiting);
    }

    fn remove(&mut self, number: u64) -> Option<Waiting> {
        let order = self.by_age.remove(&number)?;
        let removed = self.waiting.remove(&order)?;
        self.in_order -= usize::from(removed.request.in_order);
        Some(removed)
    }

    /// The command that goes next.
    fn pop(&mut self) -> Option<(u64, Waiting)> {
        let oldest = *self.by_age.keys().next()?;
        let best = self.waiting.keys().next().map_or(oldest, |(_, _, number)| *number);
        let number = if self.in_order > 0 || self.passed >= PASSED_MAX { oldest } else { best };
        self.passed = if number == oldest { 0 } else { self.passed + 1 };
        self.remove(number).map(|waiting| (number, waiting))
    }
}

/// What is known of a unit, as long as anything runs or waits there.
#[derive(Debug, Default)]
struct Queue {
    /// The start tag of the command that began last.
    virtual_time: u128,
    running: usize,
    running_bytes: u64,
    lanes: BTreeMap<Flow, Lane>,
}

impl Queue {
    const fn has_room(&self) -> bool {
        self.running == 0 || (self.running < DEPTH && self.running_bytes < DEPTH_BYTES)
    }

    /// Nobody is ahead of others by a tag that virtual time has passed, so that nothing is to be known of such a lane.
    fn forget_idle_lanes(&mut self) {
        let now = self.virtual_time;
        self.lanes.retain(|_, lane| !lane.waiting.is_empty() || lane.tag > now);
    }

    /// The lane that goes next, of those whose client may.
    fn next_lane(&mut self, may_go: impl Fn(&Flow) -> bool) -> Option<Flow> {
        let now = self.virtual_time;
        for (client, lane) in &mut self.lanes {
            let was_ready = lane.is_ready;
            lane.is_ready = !lane.waiting.is_empty() && may_go(client);
            if lane.is_ready && !was_ready {
                lane.tag = lane.tag.max(now);
            }
        }
        let ready = self.lanes.iter().filter(|(_, lane)| lane.is_ready);
        ready.min_by_key(|(_, lane)| lane.tag).map(|(client, _)| client.clone())
    }
}

/// What is known of a client.
#[derive(Debug, Default)]
struct Account {
    share: Share,
    sessions: usize,
    /// When all bytes, and all commands, that it had are paid.
    paid_at: [Duration; 2],
    waited: Waited,
}

impl Account {
    /// When it may have the next command.
    fn ready_at(&self) -> Duration {
        let rates = [self.share.bytes, self.share.commands];
        let due = rates.iter().zip(self.paid_at).filter(|(rate, _)| rate.is_some());
        due.map(|(_, paid_at)| paid_at).max().unwrap_or_default()
    }

    fn pay(&mut self, now: Duration, bytes: u64) {
        let rates = [(self.share.bytes, bytes), (self.share.commands, 1)];
        for (paid_at, (rate, tokens)) in self.paid_at.iter_mut().zip(rates) {
            let Some(rate) = rate else { continue };
            let cost = u128::from(tokens) * 1_000_000_000 / u128::from(rate.max(1));
            let cost = Duration::from_nanos(u64::try_from(cost).unwrap_or(u64::MAX));
            let begin = (*paid_at).max(now.saturating_sub(BURST));
            *paid_at = begin.saturating_add(cost);
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct FairQueue {
    units: BTreeMap<Unit, Queue>,
    accounts: BTreeMap<Flow, Account>,
    /// Commands that have asked so far.
    asked: u64,
}

impl FairQueue {
    /// A session of this client began.
    pub fn join(&mut self, now: Duration, client: Flow, share: Share) {
        self.forget_paid(now);
        let account = self.accounts.entry(client).or_default();
        account.sessions += 1;
        account.share = share;
    }

    /// A session of this client has ended: none of its commands waits any more.
    pub fn leave(&mut self, now: Duration, client: &Flow) {
        let Some(account) = self.accounts.get_mut(client) else { return };
        account.sessions -= 1;
        self.forget_paid(now);
    }

    /// Whoever has no session is forgotten once all is paid that it had: to log in anew is no way around a rate.
    fn forget_paid(&mut self, now: Duration) {
        self.accounts.retain(|_, account| account.sessions > 0 || account.ready_at() > now);
    }

    /// What a client is given from now on, what waits already among it. What it owed at the old rate is forgotten.
    pub fn set_share(&mut self, now: Duration, client: &Flow, share: Share) {
        let Some(account) = self.accounts.get_mut(client).filter(|it| it.share != share) else {
            return;
        };
        account.share = share;
        account.paid_at = account.paid_at.map(|paid_at| paid_at.min(now));
    }

    /// Puts a command into its lane: [`next`](Self::next) tells whether it may go at once.
    pub fn ask(
        &mut self,
        now: Duration,
        client: &Flow,
        unit: Unit,
        request: Request,
    ) -> QueuedCommand {
        let number = self.asked;
        self.asked += 1;
        let queue = self.units.entry(unit.clone()).or_default();
        let lane = queue.lanes.entry(client.clone()).or_default();
        lane.push(number, Waiting { request, since: now });
        if let Some(account) = self.accounts.get_mut(client) {
            account.waited.waiting += 1;
        }
        QueuedCommand { client: client.clone(), unit, number }
    }

    /// Takes a command back that waits.
    pub fn cancel(&mut self, ticket: &QueuedCommand) {
        let QueuedCommand { client, unit, number } = ticket;
        let Some(queue) = self.units.get_mut(unit) else { return };
        let lane = queue.lanes.get_mut(client);
        if lane.is_some_and(|lane| lane.remove(*number).is_some())
            && let Some(account) = self.accounts.get_mut(client)
        {
            account.waited.waiting -= 1;
        }
        self.forget_idle(unit);
    }

    /// A command that was granted has ended, or is not to count any more.
    pub fn ended(&mut self, unit: &Unit, bytes: u64) {
        if let Some(queue) = self.units.get_mut(unit) {
            queue.running = queue.running.saturating_sub(1);
            queue.running_bytes = queue.running_bytes.saturating_sub(bytes);
        }
        self.forget_idle(unit);
    }

    fn forget_idle(&mut self, unit: &Unit) {
        let waits = |lane: &Lane| !lane.waiting.is_empty();
        let is_idle = |queue: &mut Queue| queue.running == 0 && !queue.lanes.values().any(waits);
        if self.units.get_mut(unit).is_some_and(is_idle) {
            self.units.remove(unit);
        }
    }

    /// The next command that may go to a unit, if it has room for one.
    pub fn next(&mut self, now: Duration, unit: &Unit) -> Option<Grant> {
        let Self { units, accounts, .. } = self;
        let queue = units.get_mut(unit).filter(|queue| queue.has_room())?;
        let ready_at = |client: &Flow| accounts.get(client).map_or(now, Account::ready_at);
        let client = queue.next_lane(|client| ready_at(client) <= now)?;
        let account = accounts.get_mut(&client)?;
        let lane = queue.lanes.get_mut(&client)?;
        let (number, Waiting { request, since }) = lane.pop()?;
        let Request { session, bytes, .. } = request;
        queue.virtual_time = lane.tag;
        lane.tag += u128::from(bytes + COMMAND_COST) * TAG / account.share.weight();
        account.pay(now, bytes);
        let waited = now.saturating_sub(since);
        account.waited.waiting -= 1;
        if !waited.is_zero() {
            account.waited.commands += 1;
            account.waited.time += waited;
        }
        queue.running += 1;
        queue.running_bytes += bytes;
        queue.forget_idle_lanes();
        Some(Grant { session, number, unit: unit.clone(), bytes, waited })
    }

    /// The units for which anything waits.
    #[must_use]
    pub fn waited_for(&self) -> Vec<Unit> {
        let waits = |queue: &Queue| queue.lanes.values().any(|lane| !lane.waiting.is_empty());
        self.units.iter().filter(|(_, queue)| waits(queue)).map(|(unit, _)| unit.clone()).collect()
    }

    /// When the first of the clients that wait for their rates may go on.
    #[must_use]
    pub fn deadline(&self, now: Duration) -> Option<Duration> {
        let waiting = self.accounts.values().filter(|account| account.waited.waiting > 0);
        waiting.map(Account::ready_at).filter(|ready_at| *ready_at > now).min()
    }

    /// How the clients are that are known.
    pub fn clients(&self) -> impl Iterator<Item = (&Flow, Share, Waited)> {
        self.accounts.iter().map(|(client, account)| (client, account.share, account.waited))
    }
}

#[cfg(test)]
mod tests;
