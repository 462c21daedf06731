//! What has been served as volumes, noted in the state directory: `serve` makes no file again that was there, and clients
//! are shown no volume in the place of another.
//!
//! A client knows a volume by its target, unit and serial number. If a file is missing since its disk is not mounted, a new
//! one in its place would be taken for the volume by people, and by clients that do not look at the serial number.

mod device_name;
mod file_id;
mod identity;
mod note;
mod source;
#[cfg(test)]
mod tests;

pub(crate) use identity::VolumeIdentity;
pub(crate) use note::LeftState;
pub(crate) use source::Upstream;

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proto::iscsi::login::policy::UnitName;

use crate::config::Served;
use crate::failure::{Failure, OrFail, Outcome};
use crate::printable::{Quoted as _, Shown as _};
use crate::size::Size;
use crate::state_dir::state_dir;
use crate::utc::{now, utc};
use file_id::FileId;
use note::{Note, Unreadable, newest};
use source::Source;

/// All notes in a state directory, as they were when they were read.
pub(crate) struct ServedVolumes {
    /// Where they are; `None` if there is no state directory.
    directory: Option<PathBuf>,
    notes: Vec<Note>,
    unreadable: Vec<Unreadable>,
}

/// What becomes of a file that was another volume when it was served last, in the place of one that was this volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnExchange {
    /// It is not served.
    Refuse,
    /// That is only told: in a reload, which asks the sessions of the target to log in anew.
    Warn,
}

/// A volume that has just been opened, and how it was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) volume: Served,
    /// How its file was when nobody else could write to it any more.
    state: Option<LeftState>,
    /// Which file it was; another one may be at its path by now.
    id: Option<FileId>,
    /// What its target says of it.
    upstream: Option<Upstream>,
}

impl Found {
    /// A volume that was opened, whose file was as `found`.
    pub(crate) fn new(
        volume: Served,
        found: Option<&Metadata>,
        upstream: Option<Upstream>,
    ) -> Self {
        let found = found.filter(|_| volume.uri.file().is_some());
        let (state, id) = (found.map(LeftState::of), found.and_then(FileId::of));
        Self { volume, state, id, upstream }
    }
}

impl ServedVolumes {
    /// Reads what is noted in the state directory `state` of the server, or in that of the service or the user.
    pub(crate) fn read(state: Option<&Path>) -> Self {
        Self::read_from(directory(state))
    }

    /// Whether the file of `volume` has been served before, so that it must be there; an error if it is missing, has
    /// become shorter, or was served as another volume.
    pub(crate) fn must_exist(&self, volume: &Served, exchanged: OnExchange) -> Outcome<bool> {
        let notes = &self.notes;
        let Some(path) = volume.uri.file() else {
            // One that is made of others, and was served, has all its files: none is made anew in the place of one.
            let place = PathBuf::from(volume.uri.to_string());
            return Ok(notes
                .iter()
                .any(|note| note.source.place == place && !volume.uri.is_remote()));
        };
        let place = absolute(path)?;
        // Also under another name: by links, mounts, or `..`.
        let is_there =
            |note: &&Note| note.source.is_a_file() && is_same_place(&note.source.place, &place);
        let there = newest(notes.iter().filter(is_there));
        match path.metadata() {
            Ok(found) => {
                let here = FileId::of(&found);
                let own = newest(notes.iter().filter(|note| note.source.is_file(&place, here)));
                for note in own.into_iter().chain(there) {
                    note.refuse_shorter(&found, volume)?;
                }
                self.refuse_exchanged((&place, here), volume, exchanged)?;
            }
            Err(why) if why.kind() == io::ErrorKind::NotFound => match there {
                Some(note) => return Err(note.refusal(path, volume)),
                None => self.refuse_new_file(path, &place, volume)?,
            },
            // Opening it tells why.
            Err(_) => {}
        }
        Ok(there.is_some())
    }

    /// Refuses to make a file that may be one that is missing, or for a unit that was something else.
    fn refuse_new_file(&self, path: &Path, place: &Path, volume: &Served) -> Outcome {
        if let Some(Unreadable { file, why }) = self.unreadable_of(place) {
            let what = "cannot tell whether";
            let what = format!("{what} {} has been served before: {}", volume.uri, file.shown());
            return Err(Failure::new(what).because(why.to_string()).hint(to_do(path, volume.size)));
        }
        if volume.size.is_none() || volume.read_only {
            return Ok(());
        }
        let Some(Note { source, target, lun, opened, .. }) =
            newest(self.notes.iter().filter(|note| note.is_of(volume)))
        else {
            return Ok(());
        };
        let (other, opened) = (source.place.shown(), utc(*opened));
        Err(Failure::new(format!("cannot make {}", volume.uri))
            .because(format!("{target}/{lun} was {other} on {opened}"))
            .hint(format!(
                "clients would find a new, empty volume in the place of the one that they know: name the file that it is in; {}",
                to_begin_anew(path, volume.size)
            )))
    }

    /// Says that the file of `volume`, which is open now, was another volume when it was served last.
    pub(crate) fn tell_of_new_name(&self, volume: &Served) {
        let Some(path) = volume.uri.file() else { return };
        let (Ok(place), Ok(found)) = (absolute(path), path.metadata()) else { return };
        if let Some(last) = self.last_as_another((&place, FileId::of(&found)), volume) {
            let (unit, last) = (unit_of(volume), last.served_as());
            tracing::warn!("{} is served as {unit}: it was {last}", volume.uri);
        }
    }

    /// Notes that a volume is served, by this identity. That of the same source before, which was changed, never comes back.
    pub(crate) fn note(&mut self, found: &Found, by: &VolumeIdentity) -> Outcome {
        let Some(source) = Source::of(found)? else { return Ok(()) };
        let volume = &found.volume;
        let file = self.file_of(&source.place, &by.identity)?;
        let own = self.notes.iter().filter(|note| note.is_of(volume) && source.is(&note.source));
        let own: Vec<_> = own.cloned().collect();
        let left = match own.iter().find(|note| note.identity == by.identity) {
            // Until it is closed.
            _ if !volume.read_only => None,
            Some(before) => before.left,
            None => found.state,
        };
        let order = self.notes.iter().map(|note| note.order).max().unwrap_or(0) + 1;
        let UnitName { target, lun } = volume.unit();
        let now_there = volume.uri.file().and_then(|path| path.metadata().ok());
        let size = now_there.as_ref().map(Metadata::len);
        let (identity, serial) = (by.identity.clone(), by.serial.clone());
        let (target, opened) = (target.as_str().to_owned(), now());
        let before = own.iter().find(|note| note.identity == by.identity);
        let begun = match before.filter(|_| volume.read_only) {
            Some(before) => before.begun,
            // A clock that was set back gives what is written from now on older times than that.
            None => {
                now_there.map(|found| LeftState::of(&found)).filter(|begun| begun.is_past(opened))
            }
        };
        let note =
            Note { identity, serial, target, lun, source, opened, order, size, begun, left, file };
        note.write()?;
        let replaced = own.into_iter().map(|note| note.file).filter(|file| *file != note.file);
        let replaced: Vec<_> = replaced.collect();
        self.notes.retain(|old| old.file != note.file && !replaced.contains(&old.file));
        self.notes.push(note);
        for file in replaced {
            fs::remove_file(&file).or_fail(|| format!("cannot remove {}", file.shown()))?;
        }
        Ok(())
    }

    /// Notes how the file was left of the volume with this identity, if it is in one: a device is written to unseen. No
    /// other note is read.
    pub(crate) fn note_left(state: Option<&Path>, identity: &str, left: LeftState) -> Outcome {
        let note = directory(state).and_then(|directory| Note::find(&directory, identity));
        let note = note.filter(|note| note.source.is_a_file());
        note.map_or(Ok(()), |note| Note { left: Some(left), ..note }.write())
    }

    /// The identity of the volume that is in a file, if the file was as its clients have left it when it was found.
    pub(crate) fn left_as(&self, found: &Found) -> Option<String> {
        let source = Source::of(found).ok()??;
        let is_left = |note: &Note| {
            note.is_of(&found.volume) && source.is(&note.source) && note.left.is_some()
        };
        let left = self.notes.iter().find(|note| is_left(note) && note.left == found.state);
        left.map(|note| note.identity.clone())
    }

    /// Notes how large the file of `volume` is, which has grown.
    pub(crate) fn note_size(&self, volume: &Served) -> Outcome {
        let Some(path) = volume.uri.file() else { return Ok(()) };
        let Ok(found) = path.metadata() else { return Ok(()) };
        let (place, here) = (absolute(path)?, FileId::of(&found));
        let own = self.notes.iter().filter(|note| note.source.is_file(&place, here));
        let size = Some(found.len());
        newest(own).map_or(Ok(()), |own| Note { size, ..own.clone() }.write())
    }

    /// The identities of everything that was the unit of `volume`, and may be again; `None` if a note cannot be read.
    pub(crate) fn identities_of(&self, volume: &Served) -> Option<Vec<String>> {
        let own = self.notes.iter().filter(|note| note.is_of(volume));
        self.unreadable.is_empty().then(|| own.map(|note| note.identity.clone()).collect())
    }

    /// Refuses a file that was another volume when it was served last, in the place of one that was this volume: two files
    /// or names were exchanged. Where clients cannot know the volume, as it has a new name, that is only told.
    fn refuse_exchanged(
        &self,
        (path, here): (&Path, Option<FileId>),
        volume: &Served,
        exchanged: OnExchange,
    ) -> Outcome {
        let Some(last) = self.last_as_another((path, here), volume) else { return Ok(()) };
        let is_other = |note: &&Note| note.is_of(volume) && !note.source.is_file(path, here);
        let other = self.notes.iter().find(is_other).filter(|_| exchanged == OnExchange::Refuse);
        let Some(other) = other else { return Ok(()) };
        let (was, unit) = (last.served_as(), unit_of(volume));
        Err(Failure::new(format!("cannot serve {} as {unit}", volume.uri))
            .because(format!("it was {was}, and {unit} was {}", other.source.place.shown()))
            .hint(format!(
                "clients would find another volume in the place of the one that they know: look which file belongs to \
                 which volume; if this is wanted, and no client has anything left to write, remove {}",
                last.file.shown()
            )))
    }

    /// The note of the file at `path`, if it was another volume when it was served last.
    fn last_as_another(
        &self,
        (path, here): (&Path, Option<FileId>),
        volume: &Served,
    ) -> Option<&Note> {
        let last = newest(self.notes.iter().filter(|note| note.source.is_file(path, here)));
        last.filter(|note| !note.is_of(volume))
    }
}

/// Where the notes are.
fn directory(state: Option<&Path>) -> Option<PathBuf> {
    let state = state.map(PathBuf::from).or_else(state_dir);
    state.map(|state| state.join("served"))
}

fn unit_of(volume: &Served) -> String {
    let UnitName { target, lun } = volume.unit();
    format!("{}/{lun}", target.as_str())
}

impl Note {
    /// A file that was cut off is served only to someone who knows of it, and says so by its size.
    fn refuse_shorter(&self, found: &Metadata, volume: &Served) -> Outcome {
        let Some(was) = self.size else { return Ok(()) };
        let is = Size(found.len());
        if found.len() >= was || volume.size == Some(is) {
            return Ok(());
        }
        let (was, since) = (Size(was), utc(self.opened));
        Err(Failure::new(format!("cannot open {}", volume.uri))
            .because(format!("it is {is} long, and was {was} on {since}"))
            .hint(format!(
                "what is missing is lost to the clients: bring the file back; to serve it as it is, give its size: size={is}"
            )))
    }

    fn refusal(&self, path: &Path, volume: &Served) -> Failure {
        let Self { target, lun, opened, .. } = self;
        let what = format!(
            "cannot open {}: it is missing, and it was there on {}, as {target}/{lun}",
            volume.uri,
            utc(*opened)
        );
        Failure::new(what).hint(to_do(path, volume.size))
    }
}

fn to_do(path: &Path, size: Option<Size>) -> String {
    let anew = to_begin_anew(path, size);
    format!(
        "clients would take a new file for the volume that they know: mount its disk, or bring the file back; {anew}"
    )
}

fn to_begin_anew(path: &Path, size: Option<Size>) -> String {
    let size = size.map_or_else(|| "SIZE".to_owned(), |size| size.to_string());
    let path = path.quoted();
    format!("to begin anew, with an empty volume, make the file: `truncate -s {size} {path}`")
}

/// Whether a file at either path would be the same one, whether or not there is one.
fn is_same_place(one: &Path, other: &Path) -> bool {
    if one == other {
        return true;
    }
    let directory = |path: &Path| {
        let found = path.parent()?.metadata().ok()?;
        Some((found.dev(), found.ino()))
    };
    one.file_name().is_some()
        && one.file_name() == other.file_name()
        && directory(one).is_some()
        && directory(one) == directory(other)
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).or_fail(|| format!("cannot tell where {} is", path.shown()))
}
