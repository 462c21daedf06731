//! The identities of volumes: each stands for one source as the clients of one unit have left it.
//!
//! A client that connects again tells its volume by the serial number, and writes into it what it had not flushed. So an
//! identity is a random number that no other volume ever has, and a source that others may have written to since gets a new
//! one: the client may wait for as long as it likes.

use proto::scsi::inquiry::Identity;

use super::note::{Note, newest};
use super::source::Source;
use super::{Found, ServedFiles};
use crate::config::Served;
use crate::failure::{OrFail as _, Outcome};
use crate::printable::Shown as _;
use crate::utc::utc;

/// By what a volume is known.
#[derive(Debug)]
pub(crate) struct VolumeIdentity {
    /// Reservations are kept under it.
    pub(crate) identity: String,
    /// What clients are shown: the number that is configured, else its identity.
    pub(crate) serial: String,
}

/// A volume that has just been opened.
struct Candidate<'a> {
    found: &'a Found,
    source: Source,
    notes: &'a [Note],
}

impl ServedFiles {
    /// The identities of volumes that have just been opened. Without a state directory they follow from the names of their
    /// units.
    pub(crate) fn identify(&self, found: &[Found]) -> Outcome<Vec<VolumeIdentity>> {
        let (notes, unreadable) = self.read();
        for unreadable in unreadable {
            tracing::warn!(
                "{} cannot be read: {}. What was noted there is not known again, and clients take it for another volume; \
                 remove it",
                unreadable.file.shown(),
                unreadable.why
            );
        }
        let identify = |found: &Found| {
            let volume = &found.volume;
            let source = if self.0.is_some() { Source::of(found)? } else { None };
            let identity = match source {
                Some(source) => Candidate { found, source, notes: &notes }.identify()?,
                None if self.0.is_some() || volume.uri.vanishes() => random()?,
                None => Identity::new(volume.target.as_str(), volume.lun).serial,
            };
            let serial = volume.configured_serial().unwrap_or(&identity).to_owned();
            Ok(VolumeIdentity { identity, serial })
        };
        found.iter().map(identify).collect()
    }

    /// Which other one of `volumes` has the serial number that is configured for the one that is there `at`, or will have
    /// it. Of two for which it is configured it is the first.
    pub(crate) fn with_serial_of<'a>(
        &self,
        volumes: &'a [Served],
        at: usize,
    ) -> Option<&'a Served> {
        let serial = volumes[at].configured_serial()?;
        let notes = self.notes();
        let has = |(place, other): &(usize, &Served)| match other.configured_serial() {
            Some(own) => *place < at && own == serial,
            None => {
                let last = newest(notes.iter().filter(|note| note.is_of(other)));
                last.is_some_and(|last| last.identity == serial)
            }
        };
        volumes.iter().enumerate().find(has).map(|(_, other)| other)
    }
}

impl Candidate<'_> {
    /// That which was noted for this source as this unit, if it is as the clients of the unit have left it; else a new one.
    fn identify(&self) -> Outcome<String> {
        let volume = &self.found.volume;
        let of_unit = || self.notes.iter().filter(|note| note.is_of(volume));
        let own = of_unit().filter(|note| self.source.is(&note.source));
        // The very one before one that was not encrypted yet.
        let own = own.max_by_key(|note| (note.source == self.source, note.age()));
        let change = match own {
            Some(own) => match self.change_since(own) {
                None => return Ok(own.identity.clone()),
                change => change.map(|why| (own, why)),
            },
            None => newest(of_unit()).map(|last| (last, self.difference(last))),
        };
        let new = random()?;
        if let Some((former, why)) = change {
            self.tell_of_change(&new, former, &why);
        }
        Ok(new)
    }

    /// How others may have changed the source since clients used it as `own` says. After a crash of the server, and of what
    /// is no file, that is not known, and not assumed unless it was served otherwise since. Where nobody may write, nobody
    /// has anything left to write.
    fn change_since(&self, own: &Note) -> Option<String> {
        let is_as_left = |note: &Note| note.left.is_some() && note.left == self.found.state;
        let there = self.notes.iter().filter(|note| self.source.is_store(&note.source));
        let last = newest(there).unwrap_or(own);
        match last.identity == own.identity {
            _ if self.found.volume.read_only || is_as_left(own) && is_as_left(last) => None,
            true if own.left.is_none() => None,
            true => {
                Some(format!("it was changed while it was not served, after it was {}", own.said()))
            }
            false => Some(format!("it was {}, and may have been changed", last.said())),
        }
    }

    /// What the unit was, which was another source.
    fn difference(&self, last: &Note) -> String {
        let (place, opened) = (last.source.place.shown(), utc(last.opened));
        let another =
            if last.source.place == self.source.place { "another volume at " } else { "" };
        format!("{}/{} was {another}{place} on {opened}", last.target, last.lun)
    }

    fn tell_of_change(&self, new: &str, former: &Note, why: &str) {
        let Served { name, uri, .. } = &self.found.volume;
        match self.found.volume.configured_serial() {
            Some(serial) => tracing::warn!(
                volume = name,
                "{uri} has the serial number {serial}, as configured, although {why}. What was reserved is forgotten, so that \
                 clients that had reserved it write nothing more; without `state`, and where nothing was reserved, they write \
                 into it what they had not flushed before"
            ),
            None => tracing::warn!(
                volume = name,
                "{uri} is served with the new serial number {new}: {why}. Clients take it for another volume, and write \
                 nothing into it that they had not flushed before; if it is to be the same volume for those that had \
                 nothing reserved in `state`, `serial = \"{}\"` in its configuration says so",
                former.serial
            ),
        }
    }
}

fn random() -> Outcome<String> {
    let random = getrandom::u64().or_fail(|| "cannot make a serial number".to_owned())?;
    Ok(format!("{random:016x}"))
}
