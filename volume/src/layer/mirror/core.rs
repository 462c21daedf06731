//! What is known of the members and of the regions, and what follows from it. Pure: the shell does the I/O.
//!
//! A region is *dirty* while members may differ in it: from before the first write to it until a flush that all members
//! have done, and for as long as a member is out. What is dirty, and which members are out, is in the records of those that
//! are not, and counts by its version: nothing that depends on a version is done, or acknowledged, before that is recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use super::record::{Record, Recording, Regions, Stamp};
use crate::Span;

/// How long a region stays dirty that nobody writes to: to clean it and to make it dirty again takes a record each.
pub(super) const IDLE: Duration = Duration::from_secs(5);

/// How long a member that failed is left alone at first, and at last.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));

/// The longest pause until a member that is not there is looked for again.
const REOPEN_MAX: Duration = Duration::from_secs(60);

/// A member, as far as it is known.
pub(super) struct Known {
    /// It is there.
    pub(super) is_open: bool,
    /// It has all that was written, or its record says so.
    pub(super) is_in: bool,
    /// It is given what is written to regions that it does not lack.
    pub(super) accepts: bool,
    /// Regions in which it may differ from the source.
    pub(super) lacks: Regions,
    /// The one that is being copied to it, and whether something was written there meanwhile that it was not given.
    copying: Option<u64>,
    again: bool,
    /// Requests that nobody waits for any more.
    pub(super) abandoned: usize,
    /// Why it is out, or cannot be given what it lacks.
    pub(super) why: Option<String>,
    /// How often it was put out: whoever copies to it, or has sent it a record, has to begin anew. One is let go of and opened
    /// again only while it is out, by the same task that copies: that counts no more.
    outs: u64,
    /// Its own record says since it was opened that it is out, or is to say so. One of an earlier opening knows less of
    /// those that have all.
    is_marked: bool,
    is_marking: bool,
    /// It has all, and is to be recorded as one that has: it counts as one once that is so.
    is_joining: bool,
    /// It has lost something and says so until it is opened again.
    has_failed: bool,
    /// Which of the places of records its last whole one is not in.
    pub(super) slot: usize,
    pub(super) retry_at: Duration,
    retry: Duration,
    /// How long its reads take.
    pub(super) latency: Option<Duration>,
}

impl Known {
    pub(super) fn new(is_open: bool, is_in: bool, lacks: Regions) -> Self {
        Self {
            is_open,
            is_in,
            accepts: is_open && is_in,
            lacks,
            copying: None,
            again: false,
            abandoned: 0,
            why: None,
            outs: 0,
            is_marked: false,
            is_marking: false,
            is_joining: false,
            has_failed: false,
            slot: 0,
            retry_at: Duration::ZERO,
            retry: RETRY.0,
            latency: None,
        }
    }

    /// It lacks a region, also if that is being copied to it.
    fn lose(&mut self, region: u64) {
        self.lacks.insert(region);
        self.again |= self.copying == Some(region);
    }

    fn lose_all(&mut self, regions: &Regions) {
        self.lacks.extend(regions);
        self.again |= self.copying.is_some_and(|region| regions.contains(region));
    }

    /// It has all, as far as is known, or its own record is to say whether it has.
    const fn takes_records(&self) -> bool {
        self.is_open && (self.is_in || self.is_joining || self.is_marking)
    }
}

/// Why a member that was opened again is not the one that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotReturned {
    /// It is of another mirror, or another member.
    Stranger,
    /// Another volume has its place.
    Replaced,
    /// It holds an older state than it is known to have had.
    Older,
    /// It was written to without the others.
    Split,
}

/// All members and regions.
pub(super) struct Core {
    id: [u8; 16],
    size: u64,
    pub(super) region: u64,
    stamp: Stamp,
    sent: Vec<Stamp>,
    confirmed: Vec<Stamp>,
    replaced: Vec<u8>,
    pub(super) members: Vec<Known>,
    pub(super) dirty: Regions,
    /// The number of the last change of what is recorded, and of the last that is.
    version: u64,
    recorded: u64,
    /// The version of the first record of this opening: it is written before the first change.
    first: u64,
    /// When regions became dirty that are not recorded as such.
    dirtied: BTreeMap<u64, u64>,
    /// The version in which the last member that is out was put out.
    out_since: u64,
    /// Writes under way by region.
    writers: BTreeMap<u64, usize>,
    /// Regions with writes that no flush has made durable, by the number of the last; and when they were written to.
    unflushed: BTreeMap<u64, u64>,
    written_at: BTreeMap<u64, Duration>,
    writes: u64,
    reads: u64,
}

/// Every so many reads go to another member than the fastest, which may be so no longer.
const MEASURE_EVERY: u64 = 256;

impl Core {
    /// From the record that counts.
    pub(super) fn new(record: Record, members: Vec<Known>) -> Self {
        // Whoever wrote there before may not have flushed.
        let unflushed = record.dirty.iter().map(|region| (region, 1)).collect();
        Self {
            id: record.id,
            size: record.size,
            region: record.region,
            stamp: record.stamp,
            sent: record.sent,
            confirmed: record.confirmed,
            replaced: record.replaced,
            members,
            dirty: record.dirty,
            version: 0,
            recorded: 0,
            first: 0,
            dirtied: BTreeMap::new(),
            out_since: 0,
            writers: BTreeMap::new(),
            unflushed,
            written_at: BTreeMap::new(),
            writes: 1,
            reads: 0,
        }
    }

    pub(super) fn regions(&self, span: Span) -> std::ops::Range<u64> {
        span.at / self.region..span.end().div_ceil(self.region)
    }

    /// The bytes of a region.
    pub(super) fn span_of(&self, region: u64) -> Span {
        let at = region * self.region;
        Span::new(at, self.region.min(self.size - at))
    }

    /// A change of what is recorded.
    fn changed(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// It is open from now on. The first record of an opening is not written before something is to be changed: until then
    /// what the members say may differ.
    pub(super) fn opened(&mut self, opening: u64) {
        self.stamp.opening = opening;
        self.first = self.changed();
        self.out_since = self.first;
    }

    /// The version that must be recorded before anything is changed.
    pub(super) const fn first(&self) -> u64 {
        self.first
    }

    pub(super) const fn is_recorded(&self, version: u64) -> bool {
        self.recorded >= version
    }

    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    /// The record of each member that has all, or that is to say of itself whether it has.
    pub(super) fn records(&mut self) -> Recording {
        self.stamp.sequence += 1;
        let has_all = |member: &Known| member.is_in || member.is_joining;
        let in_sync: Vec<_> = self.members.iter().map(has_all).collect();
        let live: Vec<_> =
            (0..in_sync.len()).filter(|at| self.members[*at].takes_records()).collect();
        live.iter().for_each(|at| self.sent[*at] = self.stamp);
        let record = |member| Record {
            id: self.id,
            member,
            stamp: self.stamp,
            size: self.size,
            region: self.region,
            in_sync: in_sync.clone(),
            sent: self.sent.clone(),
            confirmed: self.confirmed.clone(),
            replaced: self.replaced.clone(),
            dirty: self.dirty.clone(),
        };
        let records = live.iter().copied().map(record).collect();
        let (first, then) = live.into_iter().partition(|at| self.members[*at].is_in);
        let outs = self.members.iter().map(|member| member.outs).collect();
        Recording { records, first, then, version: self.version, outs }
    }

    /// Records are durable on these members. Says whether they count: one that has all is among them.
    pub(super) fn confirm(&mut self, recording: &Recording, done: &[usize]) -> bool {
        for record in &recording.records {
            let at = record.member;
            // One that was put out since may have been opened again: what it holds is what was read of it then.
            if !done.contains(&at) || self.members[at].outs != recording.outs[at] {
                continue;
            }
            self.confirmed[at] = record.stamp;
            let member = &mut self.members[at];
            member.slot ^= 1;
            member.is_marked = !record.in_sync[at];
            member.is_marking &= record.in_sync[at];
        }
        self.has_one_in(done)
    }

    /// All records of a version are written.
    pub(super) fn recorded(&mut self, version: u64) {
        self.recorded = self.recorded.max(version);
        self.dirtied.retain(|_, dirtied| *dirtied > version);
    }

    /// Whether one of these has all that was written.
    pub(super) fn has_one_in(&self, members: &[usize]) -> bool {
        members.iter().any(|at| self.members[*at].is_in)
    }

    /// Members may differ in a region from now on: that is to be recorded before any is told to change it.
    fn make_dirty(&mut self, region: u64) {
        if !self.dirty.contains(region) {
            self.dirty.insert(region);
            let version = self.changed();
            self.dirtied.insert(region, version);
        }
    }

    /// A change of `span` begins: the version that must be recorded before any member is told.
    pub(super) fn begin(&mut self, span: Span) -> u64 {
        let mut wanted = self.first;
        for region in self.regions(span) {
            *self.writers.entry(region).or_default() += 1;
            self.make_dirty(region);
            wanted = wanted.max(self.dirtied.get(&region).copied().unwrap_or_default());
        }
        wanted
    }

    /// The members that a change goes to; the others lack it from now on.
    pub(super) fn targets(&mut self, span: Span) -> Vec<usize> {
        let regions = self.regions(span);
        let mut targets = Vec::new();
        for (at, member) in self.members.iter_mut().enumerate() {
            let has =
                |region: u64| !member.lacks.contains(region) || member.copying == Some(region);
            // One that has all is given everything: what it is given makes it differ no more than it did.
            if member.accepts && (member.is_in || regions.clone().all(has)) {
                targets.push(at);
                continue;
            }
            regions.clone().for_each(|region| member.lose(region));
        }
        targets
    }

    /// A change of `span` has ended.
    pub(super) fn end(&mut self, span: Span, is_durable: bool, now: Duration) {
        self.writes += 1;
        for region in self.regions(span) {
            if let Some(writers) = self.writers.get_mut(&region) {
                *writers -= 1;
                if *writers == 0 {
                    self.writers.remove(&region);
                }
            }
            self.written_at.insert(region, now);
            if !is_durable {
                self.unflushed.insert(region, self.writes);
            }
        }
    }

    /// What a flush that begins now makes durable.
    pub(super) const fn flush_begins(&self) -> u64 {
        self.writes
    }

    /// All members that are not out have done it.
    pub(super) fn flushed(&mut self, mark: u64) {
        self.unflushed.retain(|_, write| *write > mark);
    }

    /// No member took a change: all may hold some of it. They are made equal to the first.
    pub(super) fn torn(&mut self, span: Span) {
        let source = self.source();
        let regions = self.regions(span);
        for (at, member) in self.members.iter_mut().enumerate() {
            if Some(at) != source {
                regions.clone().for_each(|region| member.lose(region));
            }
        }
    }

    /// A member has failed, and others have not: it lacks something from now on. Says whether it was not known before. The
    /// last one that has all is not put out: it fails as any other volume does.
    pub(super) fn put_out(&mut self, at: usize, why: String, now: Duration) -> bool {
        if self.is_last(at) {
            return false;
        }
        let was_source = self.source() == Some(at);
        let dirty = self.dirty.clone();
        let Some(member) = self.members.get_mut(at) else { return false };
        let is_news = member.is_in || member.is_joining;
        member.accepts = false;
        member.is_in = false;
        member.is_marking = false;
        member.is_joining = false;
        member.outs += 1;
        member.lose_all(&dirty);
        member.why = Some(why);
        // Several requests may fail for one reason.
        if is_news || member.retry_at <= now {
            member.retry_at = now + member.retry;
            member.retry = (2 * member.retry).min(RETRY.1);
        }
        if is_news {
            self.out_since = self.changed();
        }
        if was_source {
            self.choose_source();
        }
        is_news
    }

    /// Whether no other member that is there has all that was written.
    pub(super) fn is_last(&self, at: usize) -> bool {
        let has_all = |member: &Known| member.is_in && member.is_open;
        has_all(&self.members[at])
            && self.members.iter().filter(|member| has_all(member)).count() == 1
    }

    /// If the source is lost while others are made equal to it, one of these takes its place.
    fn choose_source(&mut self) {
        if self.source().is_some() {
            return;
        }
        let live =
            self.members.iter().enumerate().filter(|(_, member)| member.is_in && member.is_open);
        let Some((next, _)) = live.min_by_key(|(_, member)| member.lacks.count()) else { return };
        let none = Regions::none(self.dirty.len());
        let differs = std::mem::replace(&mut self.members[next].lacks, none);
        for (at, member) in self.members.iter_mut().enumerate() {
            if at != next {
                member.lose_all(&differs);
            }
        }
    }

    /// A member that has all that there is.
    pub(super) fn source(&self) -> Option<usize> {
        self.members
            .iter()
            .position(|member| member.is_in && member.is_open && member.lacks.is_empty())
    }

    /// The version that must be recorded before a change is acknowledged that a member did not get.
    pub(super) fn acknowledged_at(&self) -> u64 {
        let is_out = |member: &Known| !member.is_in;
        if self.members.iter().any(is_out) { self.out_since } else { 0 }
    }

    /// Members that `span` may be read from, the fastest first; those that are not known yet before them.
    pub(super) fn readers(&mut self, span: Span) -> Vec<usize> {
        let regions = self.regions(span);
        let has = |member: &Known| !regions.clone().any(|region| member.lacks.contains(region));
        let members = self.members.iter().enumerate();
        let mut readers: Vec<_> =
            members.filter(|(_, member)| member.is_open && member.is_in && has(member)).collect();
        readers.sort_by_key(|(_, member)| member.latency);
        self.reads += 1;
        if self.reads.is_multiple_of(MEASURE_EVERY) && readers.len() > 1 {
            readers.rotate_left(1);
        }
        readers.into_iter().map(|(at, _)| at).collect()
    }

    /// Whether what a member was asked for is still what may be told: it has not been put out meanwhile.
    pub(super) fn is_reader(&self, at: usize, span: Span) -> bool {
        let member = &self.members[at];
        member.is_in && !self.regions(span).any(|region| member.lacks.contains(region))
    }

    /// Members that may hold another version of `span` than the source, though it is as good: should the source be lost,
    /// they take its place.
    pub(super) fn lagging(&self, span: Span) -> Vec<usize> {
        let regions = self.regions(span);
        let lacks = |member: &Known| regions.clone().any(|region| member.lacks.contains(region));
        let members = self.members.iter().enumerate();
        let lagging = members.filter(|(_, member)| member.is_open && member.is_in && lacks(member));
        lagging.map(|(at, _)| at).collect()
    }

    /// Whether members that are not there, or hold another version, may be used next in the place of the one that `span` is
    /// read from: then it is not told before it is recorded which were there.
    pub(super) fn may_differ(&self, span: Span) -> bool {
        !self.is_recorded(self.first)
            && self.regions(span).any(|region| self.dirty.contains(region))
    }

    /// A read took so long.
    pub(super) fn measured(&mut self, at: usize, took: Duration) {
        let latency = &mut self.members[at].latency;
        *latency = Some(latency.map_or(took, |known| (7 * known + took) / 8));
    }

    /// Cleans regions in which all members are the same for good. Says whether that is to be recorded.
    pub(super) fn clean(&mut self, now: Duration, idle: Duration) -> bool {
        if !self.are_all_in() {
            return false;
        }
        let is_clean = |region: &u64| {
            let written_at = self.written_at.get(region).copied().unwrap_or_default();
            !self.writers.contains_key(region)
                && !self.unflushed.contains_key(region)
                && !self.members.iter().any(|member| member.lacks.contains(*region))
                && written_at + idle <= now
        };
        let clean: Vec<_> = self.dirty.iter().filter(is_clean).collect();
        for region in &clean {
            self.dirty.remove(*region);
            self.dirtied.remove(region);
            self.written_at.remove(region);
        }
        if !clean.is_empty() {
            self.changed();
        }
        !clean.is_empty()
    }

    /// A member to which something is to be copied, and can be.
    pub(super) fn to_resync(&self, now: Duration) -> Option<usize> {
        self.source()?;
        self.members.iter().position(|member| {
            let is_due = member.retry_at <= now && member.abandoned == 0;
            let lacks = !(member.is_in && member.lacks.is_empty());
            member.is_open && !member.has_failed && is_due && lacks
        })
    }

    /// A member that was put out has failed for good: it is to be opened again.
    pub(super) fn fail(&mut self, at: usize) {
        self.members[at].has_failed |= !self.members[at].is_in;
    }

    /// A member that is to be opened again. While nobody has all there is nothing to be copied to it.
    pub(super) fn to_reopen(&self, now: Duration) -> Option<usize> {
        self.source()?;
        self.members.iter().position(|member| {
            let is_due = member.retry_at <= now && member.abandoned == 0;
            is_due && (!member.is_open || member.has_failed)
        })
    }

    /// A member cannot be opened again.
    pub(super) fn never(&mut self, at: usize) {
        let member = &mut self.members[at];
        member.has_failed = false;
        member.retry_at = Duration::MAX;
    }

    /// A member cannot be opened now, or must not be taken back. Says whether that was not known.
    pub(super) fn not_returned(&mut self, at: usize, why: String, now: Duration) -> bool {
        let is_news = self.defer(at, why, now);
        let member = &mut self.members[at];
        member.retry_at = member.retry_at.min(now + REOPEN_MAX);
        is_news
    }

    /// A member that is out is let go of, to be opened again.
    pub(super) fn let_go(&mut self, at: usize) {
        let member = &mut self.members[at];
        member.is_open = false;
        member.accepts = false;
    }

    /// The place of a member that is opened again, by its own record. What can be read of it must be what it is known to have
    /// had when it was last there.
    pub(super) fn place_of(&self, own: &Record) -> Result<usize, NotReturned> {
        let known = self.last();
        if own.id != known.id || own.in_sync.len() != known.in_sync.len() || own.size != known.size
        {
            return Err(NotReturned::Stranger);
        }
        if own.replaced.get(own.member) != known.replaced.get(own.member) {
            return Err(NotReturned::Replaced);
        }
        if self.members.get(own.member).is_none_or(|member| member.is_open) {
            return Err(NotReturned::Stranger);
        }
        if known.is_after(own) {
            return Err(NotReturned::Older);
        }
        match known.follows(own) && own.stamp.sequence <= known.stamp.sequence {
            true => Ok(own.member),
            false => Err(NotReturned::Split),
        }
    }

    /// What is known now, as a record that is nobody's.
    fn last(&self) -> Record {
        Record {
            id: self.id,
            member: self.members.len(),
            stamp: self.stamp,
            size: self.size,
            region: self.region,
            in_sync: self.members.iter().map(|member| member.is_in).collect(),
            sent: self.sent.clone(),
            confirmed: self.confirmed.clone(),
            replaced: self.replaced.clone(),
            dirty: self.dirty.clone(),
        }
    }

    /// A member is open again, with this last record, which is durable there. It is as one that was out when the mirror was
    /// opened: it may lack everything that is dirty, also what was copied to it and not flushed.
    pub(super) fn take_back(&mut self, own: &Record, slot: usize) {
        let at = own.member;
        (self.sent[at], self.confirmed[at]) = (own.stamp, own.stamp);
        own.dirty.iter().for_each(|region| self.make_dirty(region));
        // What nobody waits for any more was asked before it was opened again.
        let Known { retry, outs, abandoned, .. } = self.members[at];
        let why = Some("it is there again".to_owned());
        let fresh = Known::new(true, false, self.dirty.clone());
        self.members[at] = Known { slot, retry, outs, abandoned, why, ..fresh };
    }

    /// Copying to a member is not possible now, or not all of it. Says whether that was not known.
    pub(super) fn defer(&mut self, at: usize, why: String, now: Duration) -> bool {
        let member = &mut self.members[at];
        let is_news = member.why.as_ref() != Some(&why);
        member.is_marking = false;
        member.why = Some(why);
        member.retry_at = now + member.retry;
        member.retry = (2 * member.retry).min(RETRY.1);
        is_news
    }

    /// When something is to be done if nothing happens; members that are not there too, if they can be opened again.
    pub(super) fn deadline(&self, now: Duration, reopens: bool) -> Option<Duration> {
        let lacks = |member: &&Known| {
            let is_used = member.is_open && !member.has_failed;
            if is_used { !(member.is_in && member.lacks.is_empty()) } else { reopens }
        };
        let out = self.members.iter().filter(lacks);
        let retries = out.filter(|member| member.abandoned == 0).map(|member| member.retry_at);
        // Without a source nothing can be copied before a member that is out is opened again.
        let retries = retries.filter(|_| self.source().is_some());
        let idle = (!self.dirty.is_empty() && self.are_all_in()).then(|| now + IDLE);
        retries.chain(idle).min()
    }

    fn are_all_in(&self) -> bool {
        self.members.iter().all(|member| member.is_in && member.is_open)
    }

    /// Something is to be copied to a member: how often it was out, and the version that must be recorded before. A crash
    /// would leave one that is neither as it was nor as the others are, so that its own record has to say that it is out.
    pub(super) fn begin_resync(&mut self, at: usize) -> (u64, u64) {
        let member = &mut self.members[at];
        member.is_marking = !member.is_in && !member.is_marked;
        let outs = member.outs;
        let version = if member.is_marking { self.changed() } else { self.first };
        (outs, version)
    }

    /// It may be copied to a member: from now on it is given what is written to what it has. How much it lacks; `None` if it
    /// was put out meanwhile.
    pub(super) fn accept(&mut self, at: usize, outs: u64) -> Option<u64> {
        let is_same = self.is_same(at, outs);
        let member = &mut self.members[at];
        if !is_same || !(member.is_in || member.is_marked) {
            return None;
        }
        member.accepts = true;
        member.why = None;
        Some(member.lacks.count())
    }

    /// Whether a member was not put out since, and no request is under way there that nobody waits for.
    pub(super) fn is_same(&self, at: usize, outs: u64) -> bool {
        self.members[at].outs == outs && self.members[at].abandoned == 0
    }

    /// The next region that is copied to a member, `from` one on, and how many there are left with it. Those in `without`
    /// cannot be read.
    pub(super) fn next_region(
        &mut self,
        at: usize,
        from: u64,
        without: &Regions,
    ) -> Option<(u64, u64)> {
        let member = &mut self.members[at];
        let mut regions = (from..member.lacks.len()).chain(0..from);
        let is_next = |region: &u64| member.lacks.contains(*region) && !without.contains(*region);
        let region = regions.find(is_next)?;
        member.copying = Some(region);
        member.again = false;
        Some((region, member.lacks.count()))
    }

    /// A region was copied, or that failed. What was copied is not durable before the next flush.
    pub(super) fn end_region(&mut self, at: usize, region: u64, is_copied: bool) {
        self.writes += 1;
        self.unflushed.insert(region, self.writes);
        let member = &mut self.members[at];
        member.copying = None;
        if is_copied && !member.again && member.accepts {
            member.lacks.remove(region);
        }
    }

    /// A member has been given all that it lacked, and has made it durable: the version that says so. `None` if it lacks
    /// something again, or was put out meanwhile.
    pub(super) fn join(&mut self, at: usize, outs: u64) -> Option<u64> {
        let is_same = self.is_same(at, outs);
        let member = &mut self.members[at];
        if !is_same || !member.accepts || !member.lacks.is_empty() {
            return None;
        }
        member.why = None;
        member.retry = RETRY.0;
        if member.is_in {
            return Some(0);
        }
        member.is_joining = true;
        // The record that says so may get there, and its answer not.
        member.is_marked = false;
        Some(self.changed())
    }

    /// It is recorded that a member has all: from now on it counts as one that has. Before, the last of the others could have
    /// been put out, and its record would not tell of this one.
    pub(super) fn put_in(&mut self, at: usize, outs: u64) -> bool {
        let is_same = self.is_same(at, outs);
        let member = &mut self.members[at];
        member.is_in |= is_same && member.is_joining;
        member.is_joining = false;
        member.is_in
    }
}
