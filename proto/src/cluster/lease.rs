//! The lease of one gateway, as a pure machine: whoever drives it reads and replaces the record, fences, opens and closes
//! the volumes, and tells what came of it.
//!
//! Two clocks are never compared. A holder counts from the moment at which it *began* to write a sign of life, another
//! gateway from the moment at which it *has read* one that it did not know: that is later, whatever the clocks show. The
//! holder stops a quarter earlier, which is room for clocks that do not run alike.

use std::time::Duration;

use super::peers::{Peers, Signs};
use super::preference::Preference;
use super::record::{GatewayName, Holder, Record};
use super::step::{Outcome, PreviousHolder, Role, Settings, Step, Update, Written};
use crate::time::Time;

/// How often in a lease its holder gives a sign of life.
const RENEWALS: u32 = 5;

/// How often in a lease another gateway looks for one.
const LOOKS: u32 = 10;

/// How often in a lease a gateway looks that waits for something.
const EAGER_LOOKS: u32 = 100;

/// The part of a lease after which a holder that gave no sign of life is taken for one that has given none: whoever has taken
/// its lease then has waited for all of it.
const SILENT: u32 = 2;

/// After how many leases a free lease is taken although a gateway with more weight seems to run.
const YIELDING_LEASES: u32 = 2;

/// For how many leases one has no weight that could not open the volumes: the others have tried it by then, each of which is waited
/// for, takes the lease and tries to open for about one.
const UNFIT_LEASES: u32 = 30;

/// After how many leases an update is answered at the latest. A holder that ends is replaced within that time, unless it
/// is fenced slowly or not at all.
const UPDATE_LEASES: u32 = 3;

/// After how long it is answered however long the lease is: before initiators give up the command, which are told to try
/// again so.
const UPDATE_MAX: Duration = Duration::from_secs(25);

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Standby,
    /// This version names a holder that gives no sign of life.
    Fencing(u64, PreviousHolder),
    /// The holder that this version names is fenced.
    Fenced(u64),
    TakingOver,
    Active,
    Leaving,
    /// The volumes are closed: the lease is to be given back.
    Left,
    Lost,
}

/// What a write was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Claim,
    Renewal,
    Release,
    /// Something that a gateway writes which does not hold the lease.
    Request,
}

#[derive(Clone, Debug)]
struct Attempt {
    record: Record,
    purpose: Purpose,
    since: Time,
    /// It carries the update.
    updates: bool,
    is_unknown: bool,
}

/// How far an update is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// The record is read first.
    New,
    Ready,
    /// It is written. The holder has to show that it has seen it: by anything that it writes after this.
    Written {
        epoch: u64,
        renewals: u64,
    },
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Lease {
    settings: Settings,
    state: State,
    /// As it was read or written last.
    record: Record,
    /// The lease that it holds, or held.
    epoch: u64,
    /// When the present holder gave its last sign of life, at the latest; the record was read or written then.
    alive: Time,
    /// When the record was read last.
    looked: Time,
    /// Until when it may use the media.
    valid: Time,
    due: Time,
    must_read: bool,
    /// A sign of life was refused, as others have changed the record: it is due still.
    owes_renewal: bool,
    attempt: Option<Attempt>,
    update: Option<(Update, Stage)>,
    /// When the update was asked for.
    asked: Time,
    outcome: Option<Outcome>,
    /// Somebody has asked it to be active.
    wants: bool,
    preference: Preference,
    peers: Peers,
    /// Until then it shows no weight.
    unfit_until: Option<Time>,
    changed: bool,
    /// The address for the next lease that it takes.
    address: Option<String>,
}

impl Lease {
    /// A gateway that has just started.
    #[must_use]
    pub fn new(settings: Settings, now: Time) -> Self {
        let preference = Preference::new(settings.weight, now);
        Self {
            settings,
            state: State::Standby,
            record: Record::default(),
            epoch: 0,
            alive: now,
            looked: now,
            valid: now,
            due: now,
            must_read: true,
            owes_renewal: false,
            attempt: None,
            update: None,
            asked: now,
            outcome: None,
            wants: false,
            preference,
            peers: Peers::default(),
            unfit_until: None,
            changed: false,
            address: None,
        }
    }

    /// How it keeps its lease.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether it cannot take the lease before it has a new address.
    #[must_use]
    pub const fn lacks_address(&self) -> bool {
        let is_free = matches!(self.state, State::Standby | State::Fencing(..) | State::Fenced(_));
        let is_asked = self.attempt.is_none() && self.settings.has_addresses;
        is_asked && is_free && self.address.is_none()
    }

    /// By which address it comes to the media with the next lease that it takes, and has never come before.
    pub fn set_address(&mut self, address: String) {
        self.address = Some(address);
    }

    /// The storage takes nothing from its address any more: another gateway has taken it for gone, and has not come to take
    /// the lease since. It is lost all the same, and can be taken with another address.
    pub fn shut_out(&mut self) {
        if matches!(self.state, State::TakingOver | State::Active) {
            self.lose();
        }
    }

    /// What it is.
    pub fn role(&mut self, now: Time) -> Role {
        self.expire(now);
        match self.state {
            State::Standby | State::Fencing(..) | State::Fenced(_) | State::Left => Role::Standby,
            State::TakingOver => Role::TakingOver,
            State::Active => Role::Active,
            State::Leaving => Role::Leaving,
            State::Lost => Role::Lost,
        }
    }

    /// Until when it may answer from the media, if it is active; nobody else does before.
    #[must_use]
    pub fn valid_until(&self) -> Option<Time> {
        (self.state == State::Active).then_some(self.valid)
    }

    /// The record as it was read or written last.
    #[must_use]
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// Whether what is kept of units may have changed since this was asked last. What has is put in force before the next
    /// step: that step tells the others so.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Has the record read next.
    pub fn refresh(&mut self, now: Time) {
        (self.must_read, self.due) = (true, now);
    }

    /// Asks for a change; one at a time.
    pub fn update(&mut self, now: Time, update: Update) {
        (self.outcome, self.asked) = (None, now);
        self.update = Some((update, Stage::New));
    }

    /// Nobody waits for the update any more. What is under way of it may take effect still.
    pub fn abandon_update(&mut self) {
        if self.update.take().is_some() {
            self.outcome = Some(Outcome::Unknown);
        }
        if let Some(attempt) = &mut self.attempt {
            attempt.updates = false;
        }
    }

    /// Whether a record can be the present one. One that is older than what this gateway has seen comes from elsewhere: the
    /// directory is another one, as after its file system was unmounted, or a backup.
    #[must_use]
    pub const fn accepts(&self, found: &Record) -> bool {
        found.version >= self.record.version && found.epoch >= self.record.epoch
    }

    /// What became of it, once that is known.
    pub const fn take_outcome(&mut self) -> Option<Outcome> {
        self.outcome.take()
    }

    /// Somebody wants another gateway to be active, or this one: whichever is not.
    pub fn move_on(&mut self, now: Time) {
        match self.role(now) {
            // One that cannot open the volumes must not keep them from another.
            Role::Active | Role::TakingOver => self.state = State::Leaving,
            Role::Standby => self.wants = true,
            Role::Leaving | Role::Lost => {}
        }
    }

    /// The process ends: what it holds is given back.
    pub fn leave(&mut self, now: Time) {
        if self.role(now) == Role::Active {
            self.state = State::Leaving;
        }
    }

    /// The volumes are open.
    pub fn opened(&mut self, now: Time) {
        if self.role(now) == Role::TakingOver {
            self.state = State::Active;
        }
    }

    /// The volumes are closed, or could not be opened, and nothing of them is under way.
    pub fn closed(&mut self, now: Time) {
        let role = self.role(now);
        if role == Role::TakingOver {
            self.unfit_until = Some(now + self.settings.lease * UNFIT_LEASES);
        }
        self.state = match role {
            Role::Leaving | Role::TakingOver => State::Left,
            _ => State::Standby,
        };
        self.due = now;
    }

    /// What is to be done next. Asked again when that is done.
    pub fn poll(&mut self, now: Time) -> Step {
        self.expire(now);
        self.limit_update(now);
        if self.must_read {
            return if now < self.due { Step::Wait(self.due) } else { Step::Read };
        }
        self.judge_update();
        match self.state.clone() {
            State::Standby | State::Fenced(_) => self.watch(now),
            State::Fencing(_, former) => Step::Fence(former),
            State::TakingOver | State::Active | State::Leaving => self.renew(now),
            State::Left => {
                let left_by = Some(self.settings.me.gateway.clone());
                let record = Record { holder: None, address: None, left_by, ..self.record.clone() };
                self.write(now, record, Purpose::Release)
            }
            State::Lost => Step::Wait(now + self.settings.lease),
        }
    }

    /// The record was read; there is none yet if `None`. An error is one that may pass.
    pub fn read(&mut self, now: Time, found: Result<Option<Record>, ()>) {
        let found = found.map(Option::unwrap_or_default);
        let Some(found) = found.ok().filter(|found| self.accepts(found)) else {
            self.due = now + self.settings.lease / LOOKS;
            return;
        };
        let is_sign = |record: &Record| (record.epoch, record.renewals, record.holder.clone());
        let was_silent = now - self.alive >= self.settings.lease / SILENT;
        let me = &self.settings.me.gateway;
        self.preference.see(now, me, (&self.record, &found), was_silent);
        // Where this gateway could not read, the holder may have been unable to write: neither of them is to end the other for
        // that, as each would where both hold a lease.
        let was_blind = now - self.looked >= self.settings.lease / SILENT;
        if was_blind || is_sign(&found) != is_sign(&self.record) {
            self.alive = now;
        }
        self.looked = now;
        self.changed |= found.units != self.record.units;
        (self.record, self.must_read) = (found, false);
        if let Some((_, stage @ Stage::New)) = &mut self.update {
            *stage = Stage::Ready;
        }
        if let Some(attempt) = self.attempt.take() {
            self.resolve(now, &attempt);
        }
        self.check_holder(now);
        self.acknowledge();
        let is_due = std::mem::take(&mut self.owes_renewal);
        self.due = if is_due { now } else { now + self.pause() };
    }

    /// What the other gateways have shown last; that could not be read if `None`, and nobody is waited for.
    pub fn others_seen(&mut self, now: Time, signs: Option<Signs>) {
        match signs {
            Some(signs) => self.peers.see(now, signs, self.settings.lease),
            None => self.peers.fail(now),
        }
    }

    /// How much it is to be active now, as it shows the others. Who could not open the volumes is not waited for, or the others
    /// would wait for such ones by turns.
    #[must_use]
    pub fn weight(&self, now: Time) -> u16 {
        if self.unfit_until.is_some_and(|until| now < until) { 0 } else { self.settings.weight }
    }

    /// What became of the write.
    pub fn written(&mut self, now: Time, written: Written) {
        let Some(mut attempt) = self.attempt.take() else { return };
        match written {
            Written::Done => {
                self.record = attempt.record.clone();
                self.done(now, &attempt);
                self.due = now + self.pause();
            }
            Written::Conflict => {
                (self.must_read, self.due) = (true, now);
                self.owes_renewal = attempt.purpose == Purpose::Renewal;
            }
            Written::Unknown => {
                attempt.is_unknown = true;
                self.attempt = Some(attempt);
                (self.must_read, self.due) = (true, now);
            }
        }
    }

    /// Whether the holder that was to be fenced is.
    pub fn fenced(&mut self, now: Time, done: bool) {
        let State::Fencing(version, _) = self.state else { return };
        self.state = if done { State::Fenced(version) } else { State::Standby };
        self.looked = now;
        // Not again at once: it may take something that comes back.
        (self.must_read, self.due) = (!done, now + self.settings.lease / LOOKS);
    }

    fn expire(&mut self, now: Time) {
        let holds = matches!(self.state, State::TakingOver | State::Active | State::Leaving);
        if holds && now >= self.valid {
            self.lose();
        }
    }

    fn lose(&mut self) {
        self.state = State::Lost;
        self.abandon_update();
    }

    /// Answers for an update that cannot be made, or of which nobody shows that it is in force. A gateway that has lost its
    /// lease makes none before it has closed the volumes, which waits for those who wait for this.
    fn limit_update(&mut self, now: Time) {
        let lease = self.longer_lease();
        let longest = (lease * UPDATE_LEASES).min(UPDATE_MAX);
        if self.state == State::Lost || now - self.asked >= longest {
            self.abandon_update();
        }
    }

    /// That of the last holder or its own: the gateways may differ by mistake.
    fn longer_lease(&self) -> Duration {
        self.record.lease.max(self.settings.lease)
    }

    /// How long until it looks, or gives a sign of life, again.
    fn pause(&self) -> Duration {
        let waits = self.is_asking() || matches!(self.update, Some((_, Stage::Written { .. })));
        let lease = self.settings.lease;
        match self.state {
            State::TakingOver | State::Active | State::Leaving => lease / RENEWALS,
            _ if waits => lease / EAGER_LOOKS,
            _ => lease / LOOKS,
        }
    }

    fn is_asking(&self) -> bool {
        self.wants || self.preference.is_asking()
    }

    /// What a gateway does that does not hold the lease.
    fn watch(&mut self, now: Time) -> Step {
        let lease = self.longer_lease();
        // In time to see of each gateway whether it runs, and no sooner: where the store is slow everything is silent for long.
        let is_free = self.record.holder.is_none() || now - self.alive >= lease * 3 / 4;
        let is_new = !self.peers.is_seen_since(self.looked);
        if is_new && (is_free || self.preference.is_due_soon(now, lease)) {
            return Step::Look;
        }
        if let Some(step) = self.claim(now) {
            return step;
        }
        if matches!(self.update, Some((_, Stage::New))) {
            self.must_read = true;
            return Step::Read;
        }
        if let Some(holder) = self.record.holder.as_ref().filter(|_| self.peers.is_known()) {
            let holders = self.peers.weight_of(&holder.gateway);
            let weight = self.settings.weight;
            let is_right = holders >= weight || self.is_heavier_there(now);
            self.preference.consider(now, lease, is_right);
        }
        let wanted_by = self.is_asking().then(|| self.settings.me.gateway.clone());
        let asks = wanted_by.is_some() && self.record.wanted_by != wanted_by;
        if asks || matches!(self.update, Some((_, Stage::Ready))) {
            let wanted_by = wanted_by.or_else(|| self.record.wanted_by.clone());
            let record = Record { wanted_by, ..self.record.clone() };
            return self.write(now, record, Purpose::Request);
        }
        if now < self.due {
            return Step::Wait(self.due);
        }
        self.must_read = true;
        Step::Read
    }

    /// Whether a gateway in standby seems to run that has more weight.
    fn is_heavier_there(&self, now: Time) -> bool {
        let holder = self.record.holder.as_ref().map(|holder| &holder.gateway);
        let others = [holder, self.record.left_by.as_ref()];
        self.peers.is_heavier_there(now, (self.weight(now), self.settings.lease), others)
    }

    /// Takes the lease, if it is free.
    fn claim(&mut self, now: Time) -> Option<Step> {
        let (lease, silence) = (self.longer_lease(), now - self.alive);
        let is_over = silence >= lease;
        // Nobody is waited for without end who does not take it.
        let yields = silence < lease * YIELDING_LEASES && self.is_heavier_there(now);
        let me = &self.settings.me;
        let is_mine = |name: &Option<GatewayName>| name.as_ref() == Some(&me.gateway);
        let is_others = |name: &Option<GatewayName>| name.is_some() && !is_mine(name);
        let may = match &self.record.holder {
            _ if self.lacks_address() => false,
            None if is_others(&self.record.wanted_by) || is_mine(&self.record.left_by) => is_over,
            None if is_mine(&self.record.wanted_by) => true,
            None => !yields,
            Some(holder) if holder == me => true,
            Some(_) if self.state == State::Fenced(self.record.version) => is_over,
            Some(_) if !is_over || yields => false,
            Some(holder) => match self.former(holder) {
                None => true,
                Some(former) => {
                    self.state = State::Fencing(self.record.version, former.clone());
                    return Some(Step::Fence(former));
                }
            },
        };
        if !may {
            self.state = State::Standby;
            return None;
        }
        let record = Record {
            epoch: self.record.epoch + 1,
            renewals: self.record.renewals + 1,
            lease: self.settings.lease,
            holder: Some(me.clone()),
            // Another one with the next lease: this one may be shut out by then.
            address: self.address.take(),
            left_by: None,
            wanted_by: None,
            ..self.record.clone()
        };
        Some(self.write(now, record, Purpose::Claim))
    }

    /// What of a holder that gives no sign of life is to be fenced, if anything. One with the name of this gateway is as a
    /// rule its own earlier life, or another machine that was given the same name: nobody is fenced by himself, but what an
    /// earlier life has under way can be shut out.
    fn former(&self, holder: &Holder) -> Option<PreviousHolder> {
        let Holder { gateway, incarnation } = holder.clone();
        let is_fenced = self.settings.fences && gateway != self.settings.me.gateway;
        let address = self.record.address.clone().filter(|_| self.settings.has_addresses);
        (is_fenced || address.is_some()).then_some(PreviousHolder {
            gateway,
            incarnation,
            address,
            seen: self.alive,
        })
    }

    /// What a holder does.
    fn renew(&mut self, now: Time) -> Step {
        if let Some((_, stage @ Stage::New)) = &mut self.update {
            // What it has read or written last is what is there, or the write is refused.
            *stage = Stage::Ready;
            self.judge_update();
        }
        let updates = matches!(self.update, Some((_, Stage::Ready)));
        if now < self.due && !updates {
            return Step::Wait(self.due.min(self.valid));
        }
        let record = Record {
            renewals: self.record.renewals + 1,
            lease: self.settings.lease,
            ..self.record.clone()
        };
        self.write(now, record, Purpose::Renewal)
    }

    /// Refuses an update whose base has changed.
    fn judge_update(&mut self) {
        if let Some((update, Stage::Ready)) = &self.update
            && self.record.units.get(&update.unit) != update.base.as_ref()
        {
            (self.update, self.outcome) = (None, Some(Outcome::Conflict));
        }
    }

    fn write(&mut self, now: Time, mut record: Record, purpose: Purpose) -> Step {
        record.version = self.record.version + 1;
        let mut updates = false;
        if let (Some((update, Stage::Ready)), false) = (&self.update, purpose == Purpose::Claim) {
            record.units.insert(update.unit.clone(), update.image.clone());
            updates = true;
        }
        let attempt =
            Attempt { record: record.clone(), purpose, since: now, updates, is_unknown: false };
        self.attempt = Some(attempt);
        Step::Write(record)
    }

    /// A write is there.
    fn done(&mut self, now: Time, attempt: &Attempt) {
        let valid = attempt.since + self.settings.lease * 3 / 4;
        match attempt.purpose {
            Purpose::Claim => {
                (self.state, self.epoch) = (State::TakingOver, attempt.record.epoch);
                (self.valid, self.wants, self.changed) = (valid, false, true);
                self.preference = Preference::None;
                self.alive = now;
            }
            Purpose::Renewal => self.valid = self.valid.max(valid),
            Purpose::Release => (self.state, self.alive) = (State::Standby, now),
            Purpose::Request => {}
        }
        self.expire(now);
        if attempt.updates {
            self.updated(&attempt.record);
        }
        // One that was written before is in force with the first record of a new holder, this gateway too.
        self.acknowledge();
    }

    /// An update is in the record: whoever holds the lease must know it before it is in force.
    fn updated(&mut self, record: &Record) {
        let is_holder = record.holder.as_ref() == Some(&self.settings.me);
        if let Some((_, stage)) = &mut self.update {
            if is_holder || record.holder.is_none() {
                (self.update, self.outcome) = (None, Some(Outcome::Done));
            } else {
                *stage = Stage::Written { epoch: record.epoch, renewals: record.renewals };
            }
        }
    }

    /// Finds out what became of a write by what is there now.
    fn resolve(&mut self, now: Time, attempt: &Attempt) {
        if !attempt.is_unknown {
            return;
        }
        let (found, meant) = (&self.record, &attempt.record);
        let is_mine =
            found.holder.as_ref() == Some(&self.settings.me) && found.epoch == meant.epoch;
        // Only its holder counts renewals.
        let is_there = match attempt.purpose {
            Purpose::Claim | Purpose::Renewal => is_mine && found.renewals >= meant.renewals,
            Purpose::Release | Purpose::Request => found == meant,
        };
        if is_there {
            let found = found.clone();
            let updates = attempt.updates && found.units == meant.units;
            let lost = attempt.updates && !updates;
            self.done(now, &Attempt { record: found, updates, ..attempt.clone() });
            if lost {
                (self.update, self.outcome) = (None, Some(Outcome::Unknown));
            }
        } else if attempt.updates {
            // It may be there still.
            (self.update, self.outcome) = (None, Some(Outcome::Unknown));
        }
    }

    fn check_holder(&mut self, now: Time) {
        let is_mine = self.record.holder.as_ref() == Some(&self.settings.me)
            && self.record.epoch == self.epoch;
        match self.state {
            State::TakingOver | State::Active | State::Leaving if !is_mine => self.lose(),
            State::TakingOver | State::Active if self.record.wanted_by.is_some() => {
                self.move_on(now);
            }
            State::Left if !is_mine => self.state = State::Standby,
            _ => {}
        }
    }

    /// Whether the holder has seen an update: it has written something since, or is another one.
    fn acknowledge(&mut self) {
        let Some((_, Stage::Written { epoch, renewals })) = &self.update else { return };
        if (self.record.epoch, self.record.renewals) != (*epoch, *renewals)
            || self.record.holder.is_none()
        {
            (self.update, self.outcome) = (None, Some(Outcome::Done));
        }
    }
}
