//! `longhaul key sheet`: a page to print, with a key slot of its own as words.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use volume::Volume;

use super::VolumeArgs;
use crate::durable::sync_directory_of;
use crate::failure::{Failure, OrFail as _, Outcome, print_error};
use crate::luks::{self, CostArgs, Key};
use crate::printable::Shown as _;
use crate::recovery_sheet::RecoverySheet;
use crate::recovery_words::RecoveryWords;
use crate::utc;

/// What else stands on the page.
#[derive(Debug, Default, clap::Args)]
pub(super) struct NoteArgs {
    /// Where the backup of the header is kept, as it is to stand on the sheet; a line to fill in, if not given
    #[arg(long, value_name = "TEXT")]
    header_backup: Option<String>,
    /// A line for whoever needs the sheet, such as whom to ask
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

/// Where the page goes: it holds a key, and goes nowhere else.
#[derive(Clone, Debug)]
pub(super) struct SheetFile(PathBuf);

impl SheetFile {
    /// A new file that ends in `.svg` or `.txt`, or `-` for the terminal.
    pub(super) fn new(path: PathBuf) -> Outcome<Self> {
        if path.as_os_str() == "-" && !io::stdout().is_terminal() {
            return Err(Failure::usage(
                "standard output is no terminal, and the sheet holds a key",
            )
            .hint("name a file: --output sheet.svg or sheet.txt"));
        }
        let new = Self(path);
        match new.0.extension().and_then(|end| end.to_str()) {
            Some("svg" | "txt") => Ok(new),
            _ if new.is_terminal() => Ok(new),
            _ => Err(Failure::usage(format!("{} ends neither in .svg nor in .txt", new.0.shown()))
                .hint("the name says what is made: a picture of a page, or text")),
        }
    }

    fn is_terminal(&self) -> bool {
        self.0.as_os_str() == "-"
    }

    /// Makes the file, empty and for its owner alone, so that it is known that there can be one.
    fn create(&self) -> Outcome<Option<File>> {
        if self.is_terminal() {
            return Ok(None);
        }
        let made = File::options().write(true).create_new(true).mode(0o600).open(&self.0);
        made.map(Some).or_fail(|| cannot_write(&self.0))
    }

    fn write(&self, file: Option<File>, sheet: &RecoverySheet) -> Outcome {
        let Some(mut file) = file else {
            let mut out = io::stdout().lock();
            let printed = out.write_all(sheet.text().as_bytes()).and_then(|()| out.flush());
            return printed.or_fail(|| cannot_write(&self.0));
        };
        let is_picture = self.0.extension().is_some_and(|end| end == "svg");
        let page = if is_picture { sheet.svg() } else { sheet.text() };
        let written = file.write_all(page.as_bytes()).and_then(|()| file.sync_all());
        written.and_then(|()| sync_directory_of(&self.0)).or_fail(|| cannot_write(&self.0))
    }

    fn remove(&self) {
        if !self.is_terminal() {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write the recovery sheet {}", path.shown())
}

/// Adds a key slot that new words open, and writes them on a page. Neither is left without the other.
pub(super) async fn make(
    on: &VolumeArgs,
    volume: Arc<dyn Volume>,
    (existing, cost): (Key, CostArgs),
    to: &SheetFile,
    notes: NoteArgs,
) -> Outcome<u32> {
    let found = luks::slots(Arc::clone(&volume)).await?;
    let words = RecoveryWords::random()?;
    let file = to.create()?;
    let added = luks::add(Arc::clone(&volume), existing, words.secret(), cost).await;
    let slot = added.inspect_err(|_| to.remove())?;
    let here = std::env::current_dir().unwrap_or_default();
    let bits = found.slots.iter().map(|slot| slot.key_bits).max().unwrap_or_default();
    let sheet = RecoverySheet {
        uri: on.uri.clone().resolved_in(&here).to_string(),
        label: found.label,
        uuid: found.uuid,
        cipher: format!("{}, a key of {bits} bits", found.cipher),
        slot,
        words,
        header: notes.header_backup,
        note: notes.note,
        made: utc::now(),
    };
    if let Err(why) = to.write(file, &sheet) {
        to.remove();
        return Err(match luks::remove(volume, None, Some(slot), false).await {
            Ok(_) => why.hint("its key slot was removed again"),
            Err(_) => why.hint(format!(
                "nobody knows its words: `longhaul key remove {} --slot {slot}` removes them",
                on.uri
            )),
        });
    }
    Ok(slot)
}

/// Says of a volume that was just encrypted what its owner needs against the loss of its header and pass-phrase.
pub(super) fn offer(on: &VolumeArgs) {
    if io::stderr().is_terminal() {
        let uri = &on.uri;
        print_error(&format_args!(
            "longhaul: without its header and a pass-phrase nobody can read the volume again: `longhaul key backup {uri} FILE` saves the \
             header, `longhaul key sheet {uri} --output sheet.svg` makes a page with a recovery key to print"
        ));
    }
}
