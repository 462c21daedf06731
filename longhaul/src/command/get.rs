//! `longhaul get`: files and directories of a volume brought here.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::files::{FilesArgs, bytes_of, cannot_write};
use super::say_done;
use crate::failure::{Failure, Outcome, print_error};
use crate::front::ext4::{Destination, Event, ExtractError, Extracted, extract};
use crate::printable::Shown as _;
use crate::progress::Count;

/// Copy a file or directory of an ext2, ext3 or ext4 file system on a volume, without root and without mounting it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    files: FilesArgs,
    /// The file or directory, which is brought with all that is in it
    path: PathBuf,
    /// The name that it gets here; by default its own, in this directory
    destination: Option<PathBuf>,
    /// Replace files that are there already, and fill up directories
    #[arg(long)]
    force: bool,
}

const EXAMPLES: &str = "\
Examples:
  longhaul get iscsi://server/iqn.2026-11.dev.longhaul:backup/0 /home/alice alice
  longhaul get file:backup.img /etc/fstab

Permissions, times, holes and symbolic links are kept; owners, set-uid bits, extended attributes and hard links are not, and \
devices, pipes and sockets are left out. What cannot be read is named, and the rest is brought all the same.";

/// Brings it.
pub async fn run(args: Args) -> Outcome {
    let path = bytes_of(&args.path);
    let destination = Destination { path: destination(&args)?, force: args.force };
    let to = destination.path.clone();
    let brought = args.files.read(move |fs| {
        let count = Count::new("getting");
        extract(fs, &path, &destination, &mut |event| match event {
            Event::Done(Extracted { files, bytes, .. }) => count.set(files, bytes),
            Event::Failed(why) => print_error(&format_args!("longhaul: {why}")),
        })
    });
    let (brought, is_all) = brought.await?;
    let done = brought.map_err(|why| explain(&args, why))?;
    let Extracted { files, directories, links, bytes, skipped, failed } = done;
    let mut text = format!(
        "{} is at {}: {files} files of {bytes} bytes, {directories} directories, {links} symbolic links",
        args.path.shown(),
        to.shown()
    );
    if skipped > 0 {
        text += &format!("; {skipped} devices, pipes and sockets were left out");
    }
    if failed > 0 {
        let what = format!("{failed} files or directories could not be read");
        return Err(Failure::new(what).hint(format!("the others were brought: {text}")));
    }
    say_done(&text)?;
    is_all
}

fn destination(args: &Args) -> Outcome<PathBuf> {
    let own = || args.path.file_name().map(PathBuf::from);
    args.destination.clone().or_else(own).ok_or_else(|| {
        Failure::usage(format!("{} has no name of its own", args.path.shown()))
            .hint("name the directory that is to be made: `longhaul get URI PATH DESTINATION`")
    })
}

fn explain(args: &Args, why: ExtractError) -> Failure {
    match why {
        ExtractError::Files(why) => args.files.explain(why),
        ExtractError::Exists(path) => exists(&path),
        ExtractError::Destination(path, why) if why.kind() == ErrorKind::NotFound => {
            cannot_write(&path, why).hint("its directory is not there: make it first")
        }
        ExtractError::Destination(path, why) => cannot_write(&path, why)
            .hint("what was brought before that is there; `--force` goes on in the same place, from the start"),
    }
}

fn exists(path: &Path) -> Failure {
    Failure::new(format!("{} is there already", path.shown()))
        .hint("nothing was written; give another name, or --force, which replaces files of the same names")
}
