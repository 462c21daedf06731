//! The tapes in tape drives: files of blocks of 512 bytes, in a format of their own.

use std::path::Path;
use std::sync::Arc;

use volume::Volume;
use volume::store::memory::Memory;
use volume::tape::{LabelInfo, OpenError, SIZE_MIN, Tape};

use super::{Store, file_options, retry_while_locked};
use crate::chain::OpenOptions;
use crate::chain::created_file::{CreatedFile, refuse_options};
use crate::explain::{explain, explain_read_only};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::size::Size;
use crate::store::abilities::Opened;
use crate::store::file;
use crate::store::file::OpenError as OpenFileError;
use crate::uri::Uri;

/// The bytes of a unit of the format.
const UNIT: u32 = proto::scsi::unit::tape::UNIT;

/// Opens the tape at `path`, which is made if it is missing and a size is given, or a volume of no blocks for a drive
/// without one.
pub(super) async fn open(uri: &Uri, path: Option<&Path>, options: &OpenOptions) -> Outcome<Store> {
    let what = || format!("cannot open {uri}");
    if options.block_size.is_some_and(|size| size != UNIT) {
        let why = "the blocks of a tape have the lengths that its clients give them";
        return Err(Failure::usage(what()).because(why).hint("leave block_size out"));
    }
    let Some(path) = path else {
        if options.may_be_empty {
            return Ok(Store::new("tape", Opened::plain(Arc::new(Memory::new(0, UNIT)))));
        }
        return Err(Failure::usage(what()).because("no tape is in it").hint("name one: tape:PATH"));
    };
    if !options.by_records && !options.read_only {
        let why = "a tape is no disk: what is written to its blocks would destroy its records";
        return Err(Failure::usage(what()).because(why).hint(
            "`longhaul tape` reads and writes its files; `longhaul serve --volume NAME=tape:PATH` has it in a drive",
        ));
    }
    if options.size.is_some_and(|size| size.0 < SIZE_MIN) {
        let why = format!("a tape has at least {}", Size(SIZE_MIN));
        return Err(Failure::usage(what()).because(why));
    }
    refuse_options(uri, path)?;
    let with = file::FileOptions { block_size: UNIT, ..file_options(options) };
    let opened = retry_while_locked(path, || file::open_or_make(path, &with)).await;
    let (opened, made) = opened.map_err(|why| match why {
        OpenFileError::Missing if options.read_only => explain_read_only(what(), why),
        OpenFileError::Empty => explain(what(), why).hint(
            "remove it: then `size=100G` of `serve`, or `--size 100G` of `media load` and `tape import`, makes a tape there",
        ),
        OpenFileError::InUse | OpenFileError::LockedBy(_) => explain(what(), why).hint(
            "in the drive of a server `longhaul tape status URI` shows it, and `tape read` reads it; or take it out there: `longhaul media eject DRIVE`",
        ),
        OpenFileError::Missing => explain(what(), why).hint(
            "look at the path; `size=100G` of `serve`, or `--size 100G` of `media load` and `tape import`, makes a tape there",
        ),
        OpenFileError::PartialBlock { .. } => {
            explain(what(), why).hint("a tape has whole blocks: is it one?")
        }
        why => explain(what(), why),
    })?;
    let mut opened = opened.opened("tape");
    // A tape is as long as it was made.
    opened.abilities.grow = None;
    let label = refuse_foreign(uri, &*opened.volume).await?;
    let mut store = Store::new("tape", opened);
    if let (true, Some(close)) = (made, &store.opened.abilities.close) {
        store.made = CreatedFile::new(path, close);
    }
    if options.write_once && !label.is_write_once {
        make_write_once(uri, &store.opened.volume).await?;
    }
    store.opened.abilities.is_write_once = options.write_once || label.is_write_once;
    Ok(store)
}

async fn make_write_once(uri: &Uri, volume: &Arc<dyn Volume>) -> Outcome {
    let new_id = getrandom::u64().or_fail(|| "the system gives no random numbers".to_owned())?;
    let made = Tape::make_write_once(Arc::clone(volume), new_id).await;
    made.map_err(|why| {
        Failure::new(format!("cannot use {uri} as a tape that is written once"))
            .because(why)
            .hint("`worm` is for a new tape, or one that was made with it")
    })
}

/// Refuses what no drive could have in it.
pub(crate) async fn check(path: &Path) -> Outcome {
    look_at(path, false).await
}

/// Makes a blank tape that no drive has one that is written once; one that is so stays as it is.
pub(crate) async fn make_file_write_once(path: &Path) -> Outcome {
    look_at(path, true).await
}

/// Looks at a file as at a tape, and makes it one that is `write_once`.
async fn look_at(path: &Path, write_once: bool) -> Outcome {
    let uri = Uri::of_tape(path.to_owned());
    let with = file::FileOptions { block_size: UNIT, read_only: !write_once, ..Default::default() };
    let opened = retry_while_locked(path, || file::open(path, &with)).await;
    let opened = opened.map_err(|why| explain(format!("cannot open {uri}"), why))?;
    let opened = opened.opened("tape");
    let checked = match refuse_foreign(&uri, &*opened.volume).await {
        Ok(label) if write_once && !label.is_write_once => {
            make_write_once(&uri, &opened.volume).await
        }
        checked => checked.map(drop),
    };
    if let Some(close) = &opened.abilities.close {
        close.close().await;
    }
    checked
}

/// Refuses a file that is no tape, before a client finds that out. Its records are left to whoever uses it first: what a
/// crash has left may take long to read.
async fn refuse_foreign(uri: &Uri, volume: &dyn Volume) -> Outcome<LabelInfo> {
    let what = || format!("cannot use {uri}");
    Tape::check(volume).await.map_err(|why| match why {
        OpenError::CutOff { .. } => Failure::new(what())
            .because(why)
            .hint("`truncate` makes it as long as it was; then what is left of it can be read"),
        why => Failure::new(what()).because(why),
    })
}

#[cfg(test)]
mod tests {
    use super::super::store;
    use super::*;

    async fn opened(uri: &str, options: &OpenOptions) -> Result<u64, String> {
        let opened = store(&uri.parse().unwrap(), options).await;
        opened.map(|store| store.opened.volume.shape().size).map_err(|why| why.to_string())
    }

    #[tokio::test]
    async fn tape_is_made_once_and_foreign_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tape");
        let uri = format!("tape:{}", path.display());
        let drive =
            || OpenOptions { may_be_empty: true, by_records: true, ..OpenOptions::default() };
        let sized = |size| OpenOptions { size: Some(Size(size)), ..drive() };
        let plain = drive();
        assert!(opened(&uri, &plain).await.unwrap_err().contains("does not exist"));
        assert!(opened(&uri, &sized(1 << 19)).await.is_err() && !path.exists());
        assert_eq!(opened(&uri, &sized(1 << 20)).await, Ok(1 << 20));
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        assert_eq!(opened(&uri, &plain).await, Ok(1 << 20));
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let refused = opened(&uri, &plain).await.unwrap_err();
        assert!(refused.contains("cannot use"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), vec![7; 1 << 20]);
        assert_eq!(opened("tape:", &plain).await, Ok(0));
        assert!(opened("tape:", &OpenOptions::default()).await.is_err());
    }

    #[tokio::test]
    async fn blank_tape_becomes_one_that_is_written_once_and_stays_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tape");
        let uri = format!("tape:{}", path.display());
        let open = async |write_once, size| {
            let options =
                OpenOptions { write_once, size, by_records: true, ..OpenOptions::default() };
            let opened = store(&uri.parse().unwrap(), &options).await;
            opened.map(|store| store.opened.abilities.is_write_once).map_err(|why| why.to_string())
        };
        assert!(open(true, None).await.is_err());
        assert_eq!(open(true, Some(Size(1 << 20))).await, Ok(true));
        // What was made is gone if nobody has used it. A blank file stays, and so does what becomes of it.
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        for write_once in [true, false, true] {
            assert_eq!(open(write_once, None).await, Ok(true));
        }
        // A tape that was used.
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let parsed = uri.parse().unwrap();
        let by_records = OpenOptions { by_records: true, ..OpenOptions::default() };
        let used = store(&parsed, &by_records).await.unwrap_or_else(|why| panic!("{why}"));
        let mut tape = Tape::open(Arc::clone(&used.opened.volume), 1)
            .await
            .unwrap_or_else(|why| panic!("{why}"));
        tape.write_mark().await.unwrap();
        tape.sync().await.unwrap();
        drop((tape, used));
        let refused = open(true, None).await.unwrap_err();
        assert!(refused.contains("that can be written over"), "{refused}");
        assert_eq!(open(false, None).await, Ok(false));
    }

    #[tokio::test]
    async fn tape_is_no_disk_that_can_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tape");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let uri = format!("tape:{}", path.display());
        let refused = opened(&uri, &OpenOptions::default()).await.unwrap_err();
        assert!(refused.contains("longhaul tape"), "{refused}");
        let to_look = OpenOptions { read_only: true, ..OpenOptions::default() };
        assert_eq!(opened(&uri, &to_look).await, Ok(1 << 20));
        let missing = format!("tape:{}", dir.path().join("b.tape").display());
        let made = OpenOptions { size: Some(Size(1 << 20)), ..OpenOptions::default() };
        assert!(opened(&missing, &made).await.is_err());
        assert!(!dir.path().join("b.tape").exists());
    }
}
