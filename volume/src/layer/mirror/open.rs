//! Making a mirror, and finding it again on its members.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use tokio::sync::Notify;

use super::core::{Core, Known};
use super::record::{AREA, MEMBERS_MAX, RECORD_MAX, Record, Regions, Stamp, region_of};
use super::{Member, Mirror, Place, RangeLock, Reopen, Runtime, Shared, write_record};
use crate::layer::member::common_shape;
use crate::loss::FirstLoss;
use crate::{Kind, Shape, Span, Verb};

/// Why there is no mirror.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum MirrorError {
    #[error("it has {0} members: 2 are the least, and {MEMBERS_MAX} the most")]
    Count(usize),
    #[error("{0} is no member of a mirror")]
    NoRecord(Arc<str>),
    #[error("{0}")]
    NotThere(String),
    #[error("its members belong to no mirror yet")]
    New,
    #[error("{0} and {1} are members of different mirrors, or the same member")]
    Others(Arc<str>, Arc<str>),
    #[error("it was made of {made} members, and {given} are named")]
    OtherCount { made: usize, given: usize },
    #[error("{name} is not there ({why}), and it may hold what the others lack")]
    Missing { name: Arc<str>, why: String },
    #[error(
        "{0} and {1} do not follow on each other: both were written to without the other, or an older copy of one was put in \
         its place; which is to be kept nobody can tell but you"
    )]
    Split(Arc<str>, Arc<str>),
    #[error(
        "{0} holds an older state than it is known to have had: an older copy of it was put in its place"
    )]
    Older(Arc<str>),
    #[error("another volume has taken the place of {0} in the mirror")]
    Replaced(Arc<str>),
    #[error("{0} holds another member, or one of another mirror, than the one that is not there")]
    Stranger(Arc<str>),
    #[error("{0} was opened again, and {1}: only a new start of the mirror can use it")]
    Unfit(Arc<str>, String),
    #[error("no member that is there has all that was written")]
    NoneWhole,
    #[error("{name} has {found} bytes, and as a member of this mirror it must have {needed}")]
    Short { name: Arc<str>, found: u64, needed: u64 },
    #[error("{0} holds something at its front, where a mirror keeps its records")]
    NotBlank(Arc<str>),
    #[error("{0} is a member of a mirror already")]
    IsMember(Arc<str>),
    #[error("no member is new")]
    NoneNew,
    #[error("{0}: {1}")]
    Volume(Arc<str>, crate::Error),
}

/// A member as the mirror is opened: there, or why not.
pub type Opening = Result<Member, (Arc<str>, String)>;

/// How a mirror is opened.
#[derive(Clone, Copy, Debug)]
pub struct MirrorOptions {
    /// How long a member may take longer than another before it is out.
    pub wait: Duration,
    /// Open it although a member is not there that may hold what the others lack.
    pub alone: bool,
    /// Change nothing on its members, though they can be written to: it is only looked at.
    pub inspect_only: bool,
}

/// A member with the last record that is whole on it.
pub(super) struct Found {
    /// As which it was named.
    named: usize,
    pub(super) member: Member,
    pub(super) record: Option<Record>,
    /// Which of the places of records that is not in.
    pub(super) slot: usize,
    /// Why it may lose that record: it does not make durable what it holds.
    pub(super) unflushed: Option<crate::Error>,
}

/// A member that cannot be used, and why.
struct Unusable {
    name: Arc<str>,
    named: usize,
    why: MirrorError,
}

impl Found {
    async fn read(member: Member) -> Result<Self, MirrorError> {
        let (mut last, mut slot): (Option<Record>, _) = (None, 0);
        for (at, place) in Record::places().into_iter().enumerate() {
            let read = read_area(&member, Span::new(place, RECORD_MAX)).await?;
            let is_later = |found: &Record| {
                last.as_ref().is_none_or(|last| last.stamp.sequence < found.stamp.sequence)
            };
            if let Some(found) = Record::decode(&read).filter(is_later) {
                last = Some(found);
                slot = at ^ 1;
            }
        }
        Ok(Self { named: 0, member, record: last, slot, unflushed: None })
    }

    /// Finds a member that is there, and has a record.
    pub(super) async fn open(
        member: Member,
        options: MirrorOptions,
        runtime: &Arc<dyn Runtime>,
    ) -> Result<Self, MirrorError> {
        let mut found = Self::read(member).await?;
        if found.record.is_none() {
            return Err(MirrorError::NoRecord(Arc::clone(&found.member.name)));
        }
        found.unflushed = found.flush(options, runtime).await.err();
        Ok(found)
    }

    /// Makes durable what was read: from now on an older record of it is that of a copy. In bounded time, as other members may
    /// do without it.
    async fn flush(&self, options: MirrorOptions, runtime: &Arc<dyn Runtime>) -> crate::Result<()> {
        let volume = &self.member.volume;
        if options.inspect_only || volume.shape().read_only {
            return Ok(());
        }
        let late = runtime.sleep_until(runtime.now() + options.wait);
        match select(volume.flush(), late).await {
            Either::Left((flushed, _)) => flushed,
            Either::Right(_) => {
                let why = format!("no answer for {:?}", options.wait);
                Err(crate::Error::new(Kind::Gone, Verb::Flush, None).because(why))
            }
        }
    }

    /// Writes a record where the last whole one is not: a crash in the middle leaves that.
    async fn write(&self, record: &Record) -> Result<(), MirrorError> {
        let record = Some((Record::places()[self.slot], record.encode()));
        let written = write_record(Arc::clone(&self.member.volume), record).await;
        written.map_err(|why| MirrorError::Volume(Arc::clone(&self.member.name), why))
    }

    async fn is_blank(&self) -> Result<bool, MirrorError> {
        let area = read_area(&self.member, Span::new(0, AREA)).await?;
        Ok(area.iter().all(|byte| *byte == 0))
    }
}

async fn read_area(member: &Member, span: Span) -> Result<Bytes, MirrorError> {
    let &Shape { size, block_size, .. } = member.volume.shape();
    if size <= AREA {
        let name = Arc::clone(&member.name);
        return Err(MirrorError::Short { name, found: size, needed: AREA + u64::from(block_size) });
    }
    let span = Span::new(span.at, span.len.next_multiple_of(block_size.into()));
    let read = member.volume.read(span).await;
    read.map_err(|why| MirrorError::Volume(Arc::clone(&member.name), why))
}

/// Makes a mirror of volumes that belong to none. Its first member is copied to the others when it is opened.
pub async fn create(members: Vec<Member>, id: [u8; 16]) -> Result<(), MirrorError> {
    create_with(members, id, None).await
}

pub(super) async fn create_with(
    members: Vec<Member>,
    id: [u8; 16],
    region: Option<u64>,
) -> Result<(), MirrorError> {
    let count = members.len();
    if !(2..=MEMBERS_MAX).contains(&count) {
        return Err(MirrorError::Count(count));
    }
    let common = common_shape(&members);
    let mut all = Vec::new();
    for member in &members {
        let found = Found::read(member.clone()).await?;
        if found.record.is_some() {
            return Err(MirrorError::IsMember(Arc::clone(&member.name)));
        }
        if !found.is_blank().await? {
            return Err(MirrorError::NotBlank(Arc::clone(&member.name)));
        }
        all.push(found);
    }
    let size = (common.size - AREA) / u64::from(common.block_size) * u64::from(common.block_size);
    let region = region.unwrap_or_else(|| region_of(size));
    let dirty = Regions::all(size.div_ceil(region));
    let first = Stamp { opening: 0, sequence: 1 };
    for (at, found) in all.iter().enumerate() {
        // A crash in the middle leaves members without the others, which the first does not open without.
        let in_sync = (0..count).map(|member| member == 0).collect();
        let record = Record {
            id,
            member: at,
            stamp: first,
            size,
            region,
            in_sync,
            sent: vec![first; count],
            confirmed: vec![Stamp::default(); count],
            replaced: vec![0; count],
            dirty: dirty.clone(),
        };
        found.write(&record).await?;
    }
    Ok(())
}

/// Puts new volumes, which belong to no mirror, in the places of members that are not there any more. All that is in the
/// mirror is copied to them when it is opened. A member that was not recorded as out may have later data than those that are
/// here: it is replaced only if `alone` says so.
pub async fn replace(members: Vec<Member>, alone: bool) -> Result<Vec<Arc<str>>, MirrorError> {
    let mut found = Vec::new();
    for member in members {
        found.push(Found::read(member).await?);
    }
    let last = authority(&found)?;
    let Some(last) = last else { return Err(MirrorError::New) };
    let count = last.in_sync.len();
    if found.len() != count {
        return Err(MirrorError::OtherCount { made: count, given: found.len() });
    }
    let (olds, news): (Vec<_>, Vec<_>) = found.iter().partition(|found| found.record.is_some());
    let taken: Vec<_> =
        olds.iter().filter_map(|found| Some(found.record.as_ref()?.member)).collect();
    let free: Vec<_> = (0..count).filter(|at| !taken.contains(at)).collect();
    if news.is_empty() {
        return Err(MirrorError::NoneNew);
    }
    let later = free.iter().find(|at| last.in_sync[**at]);
    if let (Some(at), false) = (later, alone) {
        let name = format!("member {}", at + 1).into();
        return Err(MirrorError::Missing { name, why: "it is to be replaced".to_owned() });
    }
    let record = with_replaced(last, &olds, &free)?;
    for found in &news {
        check_size(&found.member, &record)?;
        if !found.is_blank().await? {
            return Err(MirrorError::NotBlank(Arc::clone(&found.member.name)));
        }
    }
    // What it says is durable on them.
    for found in &olds {
        let flushed = found.member.volume.flush().await;
        flushed.map_err(|why| MirrorError::Volume(Arc::clone(&found.member.name), why))?;
    }
    // First those that have all: a new member must never be taken for one of them.
    for found in &olds {
        let own = found.record.as_ref().map_or(0, |own| own.member);
        if record.in_sync[own] {
            found.write(&Record { member: own, ..record.clone() }).await?;
        }
    }
    for (found, at) in news.iter().zip(free) {
        found.write(&Record { member: at, ..record.clone() }).await?;
    }
    Ok(news.iter().map(|found| Arc::clone(&found.member.name)).collect())
}

/// The record that follows on `last` once others have taken the places `free`.
fn with_replaced(last: &Record, olds: &[&Found], free: &[usize]) -> Result<Record, MirrorError> {
    let mut record = last.clone();
    for at in free {
        record.in_sync[*at] = false;
        record.replaced[*at] = record.replaced[*at].wrapping_add(1);
        record.confirmed[*at] = Stamp::default();
    }
    let olds = || olds.iter().filter_map(|found| found.record.as_ref());
    if !olds().any(|own| record.in_sync[own.member]) {
        return Err(MirrorError::NoneWhole);
    }
    record.dirty = Regions::all(record.dirty.len());
    olds().for_each(|own| record.found(own));
    record.stamp.opening = record.opening_after(olds().map(|own| own.member), 0);
    record.stamp.sequence += 1;
    for at in 0..record.in_sync.len() {
        if record.in_sync[at] || free.contains(&at) {
            record.sent[at] = record.stamp;
        }
    }
    Ok(record)
}

/// The last record of all; `None` if there is none. Those of one mirror are of different members of it.
fn authority(found: &[Found]) -> Result<Option<&Record>, MirrorError> {
    let with_record = found.iter().filter_map(|found| Some((found, found.record.as_ref()?)));
    let known: Vec<_> = with_record.collect();
    for (at, (one, record)) in known.iter().enumerate() {
        for (other, its) in &known[..at] {
            if record.id != its.id || record.member == its.member {
                let name = |found: &Found| Arc::clone(&found.member.name);
                return Err(MirrorError::Others(name(other), name(one)));
            }
        }
    }
    let last = known.iter().max_by_key(|(_, record)| record.stamp.sequence).copied();
    let Some((authority, last)) = last else { return Ok(None) };
    for (other, its) in &known {
        let name = |found: &Found| Arc::clone(&found.member.name);
        if its.replaced.get(its.member) != last.replaced.get(its.member) {
            return Err(MirrorError::Replaced(name(other)));
        }
        if its.member == last.member {
            continue;
        }
        if last.is_after(its) {
            return Err(MirrorError::Older(name(other)));
        }
        if !last.follows(its) {
            return Err(MirrorError::Split(name(authority), name(other)));
        }
    }
    Ok(Some(last))
}

pub(super) fn check_size(member: &Member, record: &Record) -> Result<(), MirrorError> {
    let (found, needed) = (member.volume.shape().size, AREA + record.size);
    if found < needed {
        return Err(MirrorError::Short { name: Arc::clone(&member.name), found, needed });
    }
    Ok(())
}

impl Mirror {
    /// Finds the mirror on its members. Unless it is opened to read, [`Mirror::work`] has to run beside its users.
    pub async fn open(
        openings: Vec<Opening>,
        options: MirrorOptions,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self, MirrorError> {
        Self::open_with(openings, options, runtime, None).await
    }

    /// The same; members that are not there, or say that they have lost something, are opened again meanwhile.
    pub async fn open_with(
        openings: Vec<Opening>,
        options: MirrorOptions,
        runtime: Arc<dyn Runtime>,
        reopen: Option<Arc<dyn Reopen>>,
    ) -> Result<Self, MirrorError> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        let given = openings.len();
        for (named, opening) in openings.into_iter().enumerate() {
            let (name, opened) = match opening {
                Ok(member) => {
                    (Arc::clone(&member.name), Found::open(member, options, &runtime).await)
                }
                Err((name, why)) => (name, Err(MirrorError::NotThere(why))),
            };
            match opened {
                Ok(member) => found.push(Found { named, ..member }),
                Err(why) => missing.push(Unusable { name, named, why }),
            }
        }
        let Some(last) = authority(&found)?.cloned() else {
            return Err(none_known(missing));
        };
        if last.in_sync.len() != given {
            return Err(MirrorError::OtherCount { made: last.in_sync.len(), given });
        }
        let there = found.iter().filter_map(|found| Some(found.record.as_ref()?.member));
        let opening = last.opening_after(there, runtime.random());
        let mirror = assemble(last, found, missing, options, (runtime, reopen))?;
        if !mirror.0.only_reads() {
            mirror.0.core().opened(opening);
        }
        Ok(mirror)
    }
}

fn assemble(
    mut last: Record,
    found: Vec<Found>,
    mut missing: Vec<Unusable>,
    options: MirrorOptions,
    (runtime, reopen): (Arc<dyn Runtime>, Option<Arc<dyn Reopen>>),
) -> Result<Mirror, MirrorError> {
    let mut places = in_places(&last, found, &mut missing);
    without_unflushed(&mut last, &mut places, &mut missing);
    let names = names(&mut last, &places, missing, options.alone)?;
    for found in places.iter_mut().flatten() {
        if let Some(why) = found.unflushed.take() {
            return Err(MirrorError::Volume(Arc::clone(&found.member.name), why));
        }
        found.record.iter().for_each(|own| last.found(own));
    }
    let known = known(&last, &places, &names)?;
    let open: Vec<_> = places.iter().flatten().map(|found| found.member.clone()).collect();
    let members = places.into_iter().map(|place| place.map(|found| found.member));
    let places = names.into_iter().zip(members);
    let places = places.map(|((name, named, _), member)| Place { name, named, member }).collect();
    let common = common_shape(&open);
    let shape = Shape {
        size: last.size / u64::from(common.block_size) * u64::from(common.block_size),
        discard: common.discard.filter(|discard| discard.reads_zeroes),
        ..common
    };
    Ok(Mirror(Arc::new(Shared {
        places: Mutex::new(places),
        reopen: reopen.filter(|_| !options.inspect_only),
        core: Mutex::new(Core::new(last, known)),
        shape,
        wait: options.wait,
        inspect_only: options.inspect_only,
        order: RangeLock::default(),
        recording: tokio::sync::Mutex::new(()),
        loss: FirstLoss::default(),
        runtime,
        news: Notify::new(),
        stopped: AtomicBool::new(false),
    })))
}

/// Why no mirror is known, though volumes are named.
fn none_known(missing: Vec<Unusable>) -> MirrorError {
    let failed = missing.into_iter().map(|missing| missing.why);
    let mut failed =
        failed.filter(|why| matches!(why, MirrorError::Volume(..) | MirrorError::Short { .. }));
    failed.next().unwrap_or(MirrorError::New)
}

/// The members that are there, each in its place. One that has become too short is none of them.
fn in_places(last: &Record, found: Vec<Found>, missing: &mut Vec<Unusable>) -> Vec<Option<Found>> {
    let mut places: Vec<_> = last.in_sync.iter().map(|_| None).collect();
    for found in found {
        if let Err(why) = check_size(&found.member, last) {
            let (name, named) = (Arc::clone(&found.member.name), found.named);
            missing.push(Unusable { name, named, why });
            continue;
        }
        let place = found.record.as_ref().and_then(|record| places.get_mut(record.member));
        if let Some(place) = place {
            *place = Some(found);
        }
    }
    places
}

/// Members that may lose the record that was read are out, and what is known of their records stays as it was. They hold
/// nothing that the others lack, as that record is known. One without which there is no mirror stays.
fn without_unflushed(last: &mut Record, places: &mut [Option<Found>], missing: &mut Vec<Unusable>) {
    let is_kept = |(found, is_in): (&Option<Found>, &bool)| {
        *is_in && found.as_ref().is_some_and(|found| found.unflushed.is_none())
    };
    let is_one_kept = places.iter().zip(&last.in_sync).any(is_kept);
    for (place, is_in) in places.iter_mut().zip(&mut last.in_sync) {
        let Some(found) = place else { continue };
        if *is_in && !is_one_kept {
            continue;
        }
        let Some(why) = found.unflushed.take() else { continue };
        let (name, named) = (Arc::clone(&found.member.name), found.named);
        *is_in = false;
        *place = None;
        let why = MirrorError::Volume(Arc::clone(&name), why);
        missing.push(Unusable { name, named, why });
    }
}

/// The names of all members, as which they were named, and why those are missing that are. A missing one is out from now on; that it was not is an
/// error, unless the mirror is opened without it all the same.
fn names(
    last: &mut Record,
    places: &[Option<Found>],
    missing: Vec<Unusable>,
    alone: bool,
) -> Result<Vec<Name>, MirrorError> {
    let mut missing = missing.into_iter();
    let mut names = Vec::new();
    for (place, in_sync) in places.iter().zip(&mut last.in_sync) {
        if let Some(found) = place {
            names.push((Arc::clone(&found.member.name), found.named, String::new()));
            continue;
        }
        let unknown = || Unusable {
            name: "a member".into(),
            named: usize::MAX,
            why: MirrorError::NotThere("it is not named".to_owned()),
        };
        let Unusable { name, named, why } = missing.next().unwrap_or_else(unknown);
        if *in_sync {
            if !alone {
                return Err(refusal(name, why));
            }
            *in_sync = false;
        }
        tracing::error!("the mirror is degraded: {name} is not used: {why}");
        names.push((name, named, why.to_string()));
    }
    Ok(names)
}

/// Why the mirror is not opened without a member that may hold what the others lack.
fn refusal(name: Arc<str>, why: MirrorError) -> MirrorError {
    match why {
        MirrorError::NoRecord(_) | MirrorError::Short { .. } => why,
        why => MirrorError::Missing { name, why: why.to_string() },
    }
}

/// What a member is called, as which it was named, and why it is missing.
type Name = (Arc<str>, usize, String);

/// What is known of the members. One of those that have all, and the last record, is the source of the others.
fn known(
    last: &Record,
    places: &[Option<Found>],
    names: &[Name],
) -> Result<Vec<Known>, MirrorError> {
    let own = |at: usize| places[at].as_ref().and_then(|found| found.record.as_ref());
    let whole = (0..places.len()).filter(|at| last.in_sync[*at]);
    let source = whole.max_by_key(|at| own(*at).map(|own| own.stamp.sequence));
    let source = source.ok_or(MirrorError::NoneWhole)?;
    let known = (0..places.len()).map(|at| {
        let lacks = match at == source {
            true => Regions::none(last.dirty.len()),
            false => last.dirty.clone(),
        };
        let mut known = Known::new(places[at].is_some(), last.in_sync[at], lacks);
        known.slot = places[at].as_ref().map_or(0, |found| found.slot);
        let is_here = places[at].is_some();
        let out = || "it was out when the mirror was opened".to_owned();
        let why = || if is_here { out() } else { names[at].2.clone() };
        known.why = (!last.in_sync[at]).then(why);
        known
    });
    Ok(known.collect())
}
