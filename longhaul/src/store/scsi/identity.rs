//! By what a volume is known again on the next session: an identity that its bytes have.
//!
//! The identity that a unit reports follows, with many targets, from its name. A server whose files were exchanged reports
//! the same of each of them as before.

mod place;

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use volume::Span;

use self::place::{Content, Place};
use super::change::Change;
use super::session::Session;
use super::unit::UnitError;
use super::volume::Link;

/// The identity of a volume that is in its bytes.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The identity itself; `None` if the volume has none yet.
    pub uuid: Option<String>,
    /// Where it is, each from the start of a block on. One of them may be torn.
    pub copies: Vec<Span>,
    /// Where else one may be written.
    pub others: Vec<Span>,
    /// None of those has one now.
    pub is_blank: bool,
    /// Reads it from the first bytes, 512 or more, of what is at an offset.
    pub read: fn(u64, &[u8]) -> Option<String>,
}

/// The identity that a volume must have on each link: the one it had when it was opened, or what was written since.
#[derive(Debug, Default)]
pub(super) struct KnownIdentity(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// As it was found.
    found: Option<Identity>,
    places: Vec<Place>,
    /// The number of the next change.
    next: u64,
}

/// A change to a place where an identity may be, while it is under way.
#[derive(Debug)]
pub(super) struct Tracked<'a> {
    identity: &'a KnownIdentity,
    number: u64,
}

/// Which changes a flush covers that succeeds.
#[derive(Debug)]
pub(super) struct Covered(Vec<Option<u64>>);

impl KnownIdentity {
    /// From now on a volume must have this one.
    pub(super) fn set(&self, identity: Identity) {
        let found = Some(identity.clone());
        let Identity { uuid, copies, others, is_blank, read: _ } = identity;
        let own = uuid.map_or(Content::None, Content::Uuid);
        let other = if is_blank { Content::None } else { Content::Unknown };
        let copies = copies.into_iter().map(|span| Place::new(span, own.clone()));
        let others = others.into_iter().map(|span| Place::new(span, other.clone()));
        let places = copies.chain(others).collect();
        let mut known = self.lock();
        // 0 is what was there before any change.
        let next = known.next.max(1);
        *known = Known { found, places, next };
    }

    /// The identity itself, unless changes may have replaced it.
    pub(super) fn uuid(&self) -> Option<String> {
        let known = self.lock();
        let mut found = known.telling().map(Place::only);
        let first = found.next()??;
        found.all(|other| other == Some(first)).then(|| first.to_owned())
    }

    /// As it was found.
    pub(super) fn found(&self) -> Option<Identity> {
        self.lock().found.clone()
    }

    /// Takes note of a change that is about to be made, if it may give the volume another identity.
    pub(super) fn track(&self, change: &Change) -> Option<Tracked<'_>> {
        let mut known = self.lock();
        let number = known.next;
        known.track(change, number).then(|| {
            known.next += 1;
            Tracked { identity: self, number }
        })
    }

    /// What a flush that begins now will cover.
    pub(super) fn covered(&self) -> Covered {
        Covered(self.lock().places.iter().map(Place::answered).collect())
    }

    /// A flush that covers this has succeeded. Says whether that has told anything.
    pub(super) fn settle(&self, Covered(covered): Covered) -> bool {
        let mut told = false;
        for (place, number) in self.lock().places.iter_mut().zip(covered) {
            told |= number.is_some_and(|number| place.settle(number));
        }
        told
    }

    /// Whether the volume at `link` has it, as far as one is known. What cannot be read leaves that open.
    pub(super) async fn is_of<S: Session>(&self, link: &Link<S>) -> Result<bool, UnitError> {
        let mut copies = Vec::new();
        for span in self.copies() {
            copies.push((span.at, link.read(span).await));
        }
        self.lock().judge(copies)
    }

    /// The same of copies that were read to see whether the volume still has it. Of one that does, those that are not
    /// there, or are another's, are not looked for later.
    pub(super) fn confirm<E>(&self, copies: Vec<(u64, Result<Bytes, E>)>) -> Result<bool, E> {
        let mut known = self.lock();
        let found = known.contents(&copies);
        let is_there = known.judge(copies)?;
        for (at, content) in found.into_iter().filter(|_| is_there) {
            known
                .places
                .iter_mut()
                .filter(|place| place.span.at == at)
                .for_each(|place| place.seen(&content));
        }
        Ok(is_there)
    }

    /// Where it is, or may be.
    pub(super) fn copies(&self) -> Vec<Span> {
        self.lock().telling().map(|place| place.span).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tracked<'_> {
    /// The change was answered; says whether that has told anything.
    pub(super) fn answered(self, is_durable: bool) -> bool {
        let mut told = false;
        for place in &mut self.identity.lock().places {
            place.answer(self.number);
            told |= is_durable && place.settle(self.number);
        }
        told
    }
}

/// It is under way no more, or will have ended before any that comes later to the same place begins.
impl Drop for Tracked<'_> {
    fn drop(&mut self) {
        self.identity.lock().places.iter_mut().for_each(|place| place.end(self.number));
    }
}

impl Known {
    /// The places that may have an identity.
    fn telling(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(|place| place.uuids().next().is_some())
    }

    fn track(&mut self, change: &Change, number: u64) -> bool {
        let Self { places, found: Some(Identity { read, .. }), .. } = self else { return false };
        let (span, mut is_there) = (change.span(), false);
        // It is in the first block of each, which is written as a whole.
        for place in places.iter_mut().filter(|place| span.contains(place.span.at)) {
            let at = place.span.at;
            let (found, replaces) = match change {
                Change::Write { data, .. } => (read(at, &data[(at - span.at) as usize..]), true),
                Change::Zero { .. } => (None, true),
                // It may be left undone.
                Change::Discard(_) | Change::Group(_) => (None, false),
            };
            let content = found.map_or(Content::None, Content::Uuid);
            place.change(content, number, replaces);
            is_there = true;
        }
        is_there
    }

    fn content(&self, at: u64, bytes: &[u8]) -> Content {
        let read = self.found.as_ref().and_then(|known| (known.read)(at, bytes));
        read.map_or(Content::None, Content::Uuid)
    }

    /// What was read, as far as it could be.
    fn contents<E>(&self, copies: &[(u64, Result<Bytes, E>)]) -> Vec<(u64, Content)> {
        let read = copies.iter().filter_map(|(at, copy)| Some((*at, copy.as_ref().ok()?)));
        read.map(|(at, bytes)| (at, self.content(at, bytes))).collect()
    }

    /// Whether a volume has it that holds this at the places where it may be, by their offsets.
    fn judge<E>(&self, copies: Vec<(u64, Result<Bytes, E>)>) -> Result<bool, E> {
        let found = self.contents(&copies);
        let is_ours = |content: &Content| {
            self.places.iter().any(|place| place.uuids().any(|uuid| content.is(uuid)))
        };
        if found.iter().any(|(_, content)| is_ours(content)) {
            return Ok(true);
        }
        if let Some(unread) = copies.into_iter().find_map(|(_, copy)| copy.err()) {
            return Err(unread);
        }
        let place = |at: u64| self.places.iter().find(|place| place.span.at == at);
        let fits =
            |(at, content): &(u64, Content)| place(*at).is_none_or(|place| place.may_hold(content));
        Ok(found.iter().all(fits))
    }
}

#[cfg(test)]
mod tests;
