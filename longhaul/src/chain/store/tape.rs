//! The tapes in tape drives: files of blocks of 512 bytes, in a format of their own.

use std::path::Path;
use std::sync::Arc;

use volume::Volume;
use volume::store::memory::Memory;
use volume::tape::{OpenError, SIZE_MIN, Tape};

use super::{Store, file_options, retry_while_locked};
use crate::chain::OpenOptions;
use crate::chain::created_file::CreatedFile;
use crate::explain::explain;
use crate::failure::{Failure, Outcome};
use crate::size::Size;
use crate::store::abilities::Opened;
use crate::store::file;
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
    let with = file::FileOptions { block_size: UNIT, ..file_options(options) };
    let opened = retry_while_locked(path, || file::open_or_make(path, &with)).await;
    let (opened, made) = opened.map_err(|why| explain(what(), why))?;
    let mut opened = opened.opened("tape");
    // A tape is as long as it was made.
    opened.abilities.grow = None;
    refuse_foreign(uri, &*opened.volume).await?;
    let mut store = Store::new("tape", opened);
    if let (true, Some(close)) = (made, &store.opened.abilities.close) {
        store.made = CreatedFile::new(path, close);
    }
    Ok(store)
}

/// Refuses what no drive could have in it.
pub(crate) async fn check(path: &Path) -> Outcome {
    let uri = Uri::of_tape(path.to_owned());
    let with = file::FileOptions { block_size: UNIT, read_only: true, ..Default::default() };
    let opened = retry_while_locked(path, || file::open(path, &with)).await;
    let opened = opened.map_err(|why| explain(format!("cannot open {uri}"), why))?;
    let opened = opened.opened("tape");
    let checked = refuse_foreign(&uri, &*opened.volume).await;
    if let Some(close) = &opened.abilities.close {
        close.close().await;
    }
    checked
}

/// Refuses a file that is no tape, before a client finds that out. Its records are left to whoever uses it first: what a
/// crash has left may take long to read.
async fn refuse_foreign(uri: &Uri, volume: &dyn Volume) -> Outcome {
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
