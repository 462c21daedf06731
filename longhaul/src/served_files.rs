//! The files that have been served as volumes, noted in the state directory: `serve` makes none of them again.
//!
//! A client knows a volume by its serial number, which follows from the name of the target and not from the file. If a
//! file is missing since its disk is not mounted, a new one in its place would be taken for the volume by every client,
//! and what it has not flushed would be replayed into it.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use proto::iscsi::login::policy::UnitName;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::config::Served;
use crate::failure::{Failure, OrFail, Outcome};
use crate::replay_log;
use crate::size::Size;
use crate::state;
use crate::uri::Uri;
use crate::utc::{now, utc};

/// The directory of the records.
pub(crate) struct ServedFiles(Option<PathBuf>);

/// What is known of a file.
#[derive(Serialize, Deserialize)]
struct Record {
    path: PathBuf,
    target: String,
    lun: u16,
    /// When it was opened last, in seconds of the Unix epoch.
    opened: u64,
}

impl ServedFiles {
    /// Those that are noted in the state directory `state` of the server, or in that of the service or the user.
    pub(crate) fn in_state(state: Option<&Path>) -> Self {
        let state = state.map(PathBuf::from).or_else(replay_log::default_dir);
        Self(state.map(|state| state.join("served")))
    }

    /// Whether the file of `volume` has been served before, so that it must be there; an error if it is missing.
    pub(crate) fn must_exist(&self, volume: &Served) -> Outcome<bool> {
        let Uri::File(path) = &volume.uri else { return Ok(false) };
        let Some(file) = self.file_of(path)? else { return Ok(false) };
        let found = match std::fs::read(&file) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(false),
            found => found.and_then(|text| Ok(serde_json::from_slice::<Record>(&text)?)),
        };
        let missing = matches!(path.metadata(), Err(why) if why.kind() == io::ErrorKind::NotFound);
        match found {
            _ if !missing => Ok(true),
            Ok(record) => Err(record.refusal(path, volume)),
            Err(why) => Err(Failure::new(format!(
                "cannot tell whether {} has been served before: {}",
                volume.uri,
                file.display()
            ))
            .because(why)
            .hint(to_do(path, volume.size))),
        }
    }

    /// Notes that the file of `volume` is there.
    pub(crate) fn note(&self, volume: &Served) -> Outcome {
        let Uri::File(path) = &volume.uri else { return Ok(()) };
        let UnitName { target, lun } = volume.unit();
        let Some(file) = self.file_of(path)? else {
            return Err(Failure::new("there is no state directory").hint("give one with --state"));
        };
        let path = absolute(path)?;
        let record = Record { path, target: target.as_str().to_owned(), lun, opened: now() };
        let directory = file.parent().unwrap_or(&file);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        let written = made.and_then(|()| {
            let text = serde_json::to_vec(&record)?;
            state::replace(&file, &text)
        });
        written.or_fail(|| format!("cannot remember it in {}", directory.display()))
    }

    /// Where the file at `path` is noted. The path is as it is written: links lead elsewhere while a disk is not
    /// mounted.
    fn file_of(&self, path: &Path) -> Outcome<Option<PathBuf>> {
        let Some(directory) = &self.0 else { return Ok(None) };
        let name = Sha256::digest(absolute(path)?.as_os_str().as_encoded_bytes());
        // As many digits as tell all paths apart.
        let name: String = name[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Some(directory.join(name).with_extension("json")))
    }
}

impl Record {
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
    let size = size.map_or_else(|| "SIZE".to_owned(), |size| size.to_string());
    format!(
        "clients would take a new file for the volume that they know: mount its disk, or bring the file back; to begin \
         anew, with an empty volume, make the file: `truncate -s {size} {}`",
        path.display()
    )
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).or_fail(|| format!("cannot tell where {} is", path.display()))
}
