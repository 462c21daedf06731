//! `longhaul ls`: what is in a directory of a volume.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::files::{FilesArgs, bytes_of};
use super::{say_json, say_text};
use crate::failure::{Failure, Outcome, print_error};
use crate::front::ext4::{Entry, FilesError, Kind, Name};
use crate::utc;

/// List files of an ext2, ext3 or ext4 file system on a volume, without root and without mounting it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    files: FilesArgs,
    /// The file or directory
    #[arg(default_value = "/")]
    path: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  longhaul ls iscsi://server/iqn.2026-11.dev.longhaul:backup/0 /home
  longhaul ls file:backup.img / --json

What a journal of the file system still holds is taken into account; nothing is written. Owners are shown by number.";

/// Lists what is at a path.
pub async fn run(args: Args) -> Outcome {
    let path = bytes_of(&args.path);
    let listed = args.files.read(move |fs| {
        let (entry, found) = fs.find(&path)?;
        let mut failed = Vec::new();
        let entries = match entry.kind {
            Kind::Directory => fs.list(&found, &mut |why| failed.push(why.to_string()))?,
            _ => vec![entry],
        };
        Ok::<_, FilesError>((entries, failed))
    });
    let (listed, is_all) = listed.await?;
    let (entries, failed) = listed.map_err(|why| args.files.explain(why))?;
    match args.json {
        true => {
            let files = entries.iter().map(ListedFile::from).collect();
            say_json(&Listing { uri: args.files.uri.to_string(), files })?;
        }
        false => entries.iter().try_for_each(|entry| say_text(&Long(entry)))?,
    }
    failed.iter().for_each(|why| print_error(&format_args!("longhaul: {why}")));
    match failed.len() {
        0 => is_all,
        several => Err(Failure::new(format!("{several} entries could not be read"))),
    }
}

#[derive(Debug, Serialize)]
struct Listing {
    uri: String,
    files: Vec<ListedFile>,
}

/// An entry for scripts.
#[derive(Debug, Serialize)]
struct ListedFile {
    /// With replacement characters where it is not UTF-8.
    name: String,
    /// Its bytes, where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    kind: Kind,
    size: u64,
    mode: String,
    uid: u32,
    gid: u32,
    /// Seconds of the Unix epoch.
    modified: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl From<&Entry> for ListedFile {
    fn from(entry: &Entry) -> Self {
        Self {
            name: entry.name.lossy(),
            name_hex: entry.name.hex(),
            kind: entry.kind,
            size: entry.size,
            mode: format!("{:04o}", entry.mode),
            uid: entry.uid,
            gid: entry.gid,
            modified: entry.modified.0,
            target: entry.target.as_ref().map(Name::lossy),
        }
    }
}

/// An entry as `ls -l` shows it, but for the number of its names, which is not known here.
struct Long<'e>(&'e Entry);

impl fmt::Display for Long<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(entry) = self;
        let time = u64::try_from(entry.modified.0).map_or_else(
            |_| format!("{} s before 1970", entry.modified.0.unsigned_abs()),
            utc::utc,
        );
        let Entry { kind, mode, uid, gid, size, name, .. } = entry;
        write!(f, "{} {uid:>5} {gid:>5} {size:>12} {time} {name}", permissions(*kind, *mode))?;
        entry.target.as_ref().map_or(Ok(()), |target| write!(f, " -> {target}"))
    }
}

/// Such as `drwxr-xr-x`.
fn permissions(kind: Kind, mode: u16) -> String {
    let kind = match kind {
        Kind::File => '-',
        Kind::Directory => 'd',
        Kind::SymbolicLink => 'l',
        Kind::BlockDevice => 'b',
        Kind::CharacterDevice => 'c',
        Kind::Pipe => 'p',
        Kind::Socket => 's',
    };
    let mut text = String::from(kind);
    // The bit that stands in the place of `x`, and its letter.
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_written_as_ls_writes_them() {
        for (kind, mode, text) in [
            (Kind::File, 0o644, "-rw-r--r--"),
            (Kind::Directory, 0o1777, "drwxrwxrwt"),
            (Kind::File, 0o4755, "-rwsr-xr-x"),
            (Kind::File, 0o2644, "-rw-r-Sr--"),
            (Kind::SymbolicLink, 0o777, "lrwxrwxrwx"),
            (Kind::Pipe, 0, "p---------"),
        ] {
            assert_eq!(permissions(kind, mode), text);
        }
    }
}
