//! The identities of volumes: each stands for one source as the clients of one unit have left it.
//!
//! A client that connects again tells its volume by the serial number, and writes into it what it had not flushed. So an
//! identity is a random number that no other volume ever has, and a source that others may have written to since gets a new
//! one: the client may wait for as long as it likes.

use proto::scsi::inquiry::Identity;

use super::note::{Note, newest};
use super::source::Source;
use super::{Found, ServedVolumes};
use crate::config::Served;
use crate::failure::{OrFail as _, Outcome};
use crate::printable::Shown as _;
use crate::utc::utc;

/// By what a volume is known.
#[derive(Debug)]
pub(crate) struct VolumeIdentity {
    /// Reservations are kept under it.
    pub(crate) identity: String,
    /// What clients are shown: the number that is configured, else the one that they were shown of it before, else its
    /// identity.
    pub(crate) serial: String,
}

/// A volume that has just been opened.
struct Candidate<'a> {
    found: &'a Found,
    source: Source,
    notes: &'a [Note],
}

impl ServedVolumes {
    /// The identities of volumes that have just been opened. Without a state directory they follow from the names of their
    /// units, and from the units behind those.
    pub(crate) fn identify(&self, found: &[Found]) -> Outcome<Vec<VolumeIdentity>> {
        for unreadable in &self.unreadable {
            let of = found.iter().find(|found| {
                let source = Source::of(found).ok().flatten();
                source.is_some_and(|source| unreadable.is_of(&source.place))
            });
            let of = of.map_or_else(String::new, |of| {
                format!(" (it is of {}, volume {})", of.volume.uri, of.volume.name)
            });
            tracing::warn!(
                "{} cannot be read: {}. What was noted there{of} is not known again, and clients take it for another \
                 volume; remove it",
                unreadable.file.shown(),
                unreadable.why
            );
        }
        let identify = |found: &Found| {
            let volume = &found.volume;
            let source = if self.directory.is_some() { Source::of(found)? } else { None };
            let identity = match source {
                Some(source) => {
                    return Candidate { found, source, notes: &self.notes }.identify();
                }
                None if is_known_by_name(&volume.uri) => named(found),
                None if self.directory.is_some() || volume.uri.vanishes() => random()?,
                None => named(found),
            };
            let serial = volume.configured_serial().unwrap_or(&identity).to_owned();
            Ok(VolumeIdentity { identity, serial })
        };
        found.iter().map(identify).collect()
    }

    /// Which other one of `volumes` will show the serial number that is configured for the one that is there `at`, as far
    /// as that can be told before they are opened: not of those of other targets. Of two for which it is configured it is
    /// the first.
    pub(crate) fn with_serial_of<'a>(
        &self,
        volumes: &'a [Served],
        at: usize,
    ) -> Option<&'a Served> {
        let serial = volumes[at].configured_serial()?;
        let has = |(place, other): &(usize, &Served)| match other.configured_serial() {
            Some(own) => *place < at && own == serial,
            None => self.kept_by(other).is_some_and(|kept| kept == serial),
        };
        volumes.iter().enumerate().find(has).map(|(_, other)| other)
    }

    /// The serial number that a volume keeps which is not open.
    fn kept_by(&self, volume: &Served) -> Option<String> {
        let file = volume.uri.file().and_then(|path| path.metadata().ok());
        let found = Found::new(volume.clone(), file.as_ref(), None);
        let source = Source::of(&found).ok()??;
        let candidate = Candidate { found: &found, source, notes: &self.notes };
        let own = candidate.own().filter(|own| candidate.change_since(own).is_none())?;
        Some(own.serial.clone())
    }

    /// What the `configured` volumes show: those that were `found` by their identities, the others as they were noted when
    /// they were opened.
    pub(crate) fn serials<'a>(
        &'a self,
        configured: &'a [Served],
        found: &[Found],
        identities: &'a [VolumeIdentity],
    ) -> Vec<(&'a Served, Option<&'a str>)> {
        let serial = |volume: &'a Served| {
            let at = found.iter().position(|found| found.volume.name == volume.name);
            match (at, volume.configured_serial()) {
                (Some(at), _) => Some(&*identities[at].serial),
                (None, Some(serial)) => Some(serial),
                (None, None) => {
                    let own = newest(self.notes.iter().filter(|note| note.is_of(volume)));
                    own.map(|own| &*own.serial)
                }
            }
        };
        configured.iter().map(|volume| (volume, serial(volume))).collect()
    }
}

impl Candidate<'_> {
    /// That which was noted for this source as this unit, if it is as the clients of the unit have left it; else a new one.
    fn identify(&self) -> Outcome<VolumeIdentity> {
        let configured = self.found.volume.configured_serial();
        let change = match self.own() {
            Some(own) => match self.change_since(own) {
                None => {
                    let serial = configured.unwrap_or(&own.serial);
                    self.tell_of_number(serial, own);
                    let (identity, serial) = (own.identity.clone(), serial.to_owned());
                    return Ok(VolumeIdentity { identity, serial });
                }
                change => change.map(|why| (own, why)),
            },
            None => newest(self.of_unit()).map(|last| (last, self.difference(last))),
        };
        let identity = random()?;
        if let Some((former, why)) = change {
            self.tell_of_change(&identity, former, &why);
        }
        let serial = configured.unwrap_or(&identity).to_owned();
        Ok(VolumeIdentity { identity, serial })
    }

    fn of_unit(&self) -> impl Iterator<Item = &Note> {
        self.notes.iter().filter(|note| note.is_of(&self.found.volume))
    }

    /// What was noted for this source as this unit.
    fn own(&self) -> Option<&Note> {
        let own = self.of_unit().filter(|note| self.source.is(&note.source));
        // The very one before one that was not encrypted yet.
        own.max_by_key(|note| (note.source == self.source, note.age()))
    }

    /// How others may have changed the source since clients used it as `own` says. After a crash of the server, and of what
    /// is no file, that is not known, and not assumed unless it was served otherwise since or has gone back in time. Where nobody may write, nobody
    /// has anything left to write.
    fn change_since(&self, own: &Note) -> Option<String> {
        let is_as_left = |note: &Note| note.left.is_some() && note.left == self.found.state;
        let there = self.notes.iter().filter(|note| self.source.is_store(&note.source));
        let last = newest(there).unwrap_or(own);
        match last.identity == own.identity {
            _ if self.found.volume.read_only || is_as_left(own) && is_as_left(last) => None,
            true if own.left.is_none() => self.went_back(own).then(|| {
                format!("it is older or smaller than when it was opened, {}", own.served_as())
            }),
            true => Some(format!(
                "it was changed while it was not served, after it was {}",
                own.served_as()
            )),
            false => Some(format!("it was {}, and may have been changed", last.served_as())),
        }
    }

    /// Whether the file is as it was before it was opened last: a copy was restored, or a snapshot that it is in.
    fn went_back(&self, own: &Note) -> bool {
        let both = self.found.state.zip(own.begun);
        both.is_some_and(|(found, begun)| found.is_older_than(&begun))
    }

    /// What the unit was, which was another source.
    fn difference(&self, last: &Note) -> String {
        let (place, opened) = (last.source.place.shown(), utc(last.opened));
        let another =
            if last.source.place == self.source.place { "another volume at " } else { "" };
        format!("{}/{} was {another}{place} on {opened}", last.target, last.lun)
    }

    /// Says that the volume has another number now, by its configuration alone.
    fn tell_of_number(&self, serial: &str, own: &Note) {
        let Served { name, uri, .. } = &self.found.volume;
        let before = &own.serial;
        if serial != before {
            tracing::warn!(
                volume = name,
                "{uri} has the serial number {serial}, as configured; it had {before}: clients that know it by that take it \
                 for another volume"
            );
        }
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

/// The number that follows from the name of the unit; and where another unit is behind it, which may have the same name,
/// from the serial number of that too.
fn named(Found { volume, upstream, .. }: &Found) -> String {
    let (target, lun) = (volume.target.as_str(), volume.lun);
    if !volume.uri.is_passed_through() && !volume.uri.is_partly_remote() {
        return Identity::new(target, lun).serial;
    }
    let serial = upstream.as_ref().and_then(|upstream| upstream.serial.clone());
    let source = serial.filter(|serial| !serial.is_empty());
    Identity::serial_behind(target, lun, &source.unwrap_or_else(|| volume.uri.to_string()))
}

/// Whether it is a drive, a changer or a device: whatever is in it, it is what its name says.
fn is_known_by_name(uri: &crate::uri::Uri) -> bool {
    uri.has_medium() || uri.is_changer() || uri.is_passed_through()
}
