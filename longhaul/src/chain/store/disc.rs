//! The discs in optical drives: files of blocks of 2048 bytes, which nobody writes to, or discs that can be written.

use std::path::Path;
use std::sync::Arc;

use proto::scsi::unit::optical::{BLOCK_SIZE, Disc};
use volume::store::memory::Memory;

use super::{Store, retry_while_locked};
use crate::chain::OpenOptions;
use crate::chain::created_file::{CreatedFile, refuse_options};
use crate::config::BlankDisc;
use crate::explain::{explain, explain_read_only};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::recorded_disc::{RECORD_BLOCKS, RecordedDisc};
use crate::store::abilities::Opened;
use crate::store::file::OpenError;
use crate::store::file::{self, FileOptions};
use crate::uri::Uri;

/// Opens the image `disc`, which is made if it is missing and a blank disc is wanted, or a volume of no blocks for a drive
/// without one.
pub(super) async fn open(uri: &Uri, disc: Option<&Path>, options: &OpenOptions) -> Outcome<Store> {
    let what = || format!("cannot open {uri}");
    let own_size = options.block_size.is_some_and(|size| size != BLOCK_SIZE);
    if own_size {
        let why = format!("a disc has blocks of {BLOCK_SIZE} bytes: leave block_size out");
        return Err(Failure::usage(what()).because(why));
    }
    let Some(path) = disc else {
        if options.may_be_empty {
            return Ok(Store::new("cdrom", Opened::plain(Arc::new(Memory::new(0, BLOCK_SIZE)))));
        }
        return Err(Failure::usage(what()).because("no disc is in it").hint("name one: cdrom:ISO"));
    };
    if let Some(blank) = options.blank.filter(|_| !path.exists()) {
        return make(uri, path, blank, options).await;
    }
    if options.read_only && !path.exists() {
        return Err(explain_read_only(what(), OpenError::Missing));
    }
    let image = open_file(uri, path, &as_image(options)).await?;
    let recorded = RecordedDisc::load(&*image.volume).await.or_fail(what)?;
    if let Some(blank) = options.blank {
        refuse_other(uri, blank, recorded.as_ref())?;
    }
    let Some(recorded) = recorded else { return pressed(uri, image) };
    if options.read_only || !options.by_records {
        return Ok(recordable(image, recorded));
    }
    // Once more, to be written: an image that nobody writes to may be in several drives.
    if let Some(close) = &image.abilities.close {
        close.close().await;
    }
    drop(image);
    let image =
        open_file(uri, path, &FileOptions { read_only: false, ..as_image(options) }).await?;
    let recorded = RecordedDisc::load(&*image.volume).await.or_fail(what)?;
    match recorded {
        Some(recorded) => Ok(recordable(image, recorded)),
        None => Err(Failure::new(what()).because("the file has just become another one")),
    }
}

fn as_image(options: &OpenOptions) -> FileOptions {
    FileOptions {
        existing_only: true,
        read_only: true,
        block_size: BLOCK_SIZE,
        direct: options.direct,
        ..FileOptions::default()
    }
}

async fn open_file(uri: &Uri, path: &Path, with: &FileOptions) -> Outcome<Opened> {
    let opened = retry_while_locked(path, || file::open_or_make(path, with)).await;
    let (opened, _) = opened.map_err(|why| {
        let hint = match why {
            OpenError::Missing => "look at the path; `blank=cd-r` of `serve`, or `--blank cd-r` of `media load`, makes a blank disc there, as `dvd+rw` and `bd-r` do",
            OpenError::Empty => "remove it: then `blank=cd-r` of `serve`, or `--blank cd-r` of `media load`, makes a blank disc there, as `dvd+rw` and `bd-r` do",
            why => return explain(format!("cannot open {uri}"), why),
        };
        Failure::new(format!("cannot open {uri}")).because(why).hint(hint)
    })?;
    Ok(opened.opened("cdrom"))
}

/// A disc that is as it was pressed.
fn pressed(uri: &Uri, mut image: Opened) -> Outcome<Store> {
    image.abilities.grow = None;
    if image.volume.shape().size / u64::from(BLOCK_SIZE) > Disc::BLOCKS_MAX {
        return Err(Failure::new(format!("cannot open {uri}")).because("a disc has at most 8 TiB"));
    }
    Ok(Store::new("cdrom", image))
}

fn recordable(mut image: Opened, recorded: RecordedDisc) -> Store {
    image.abilities.grow = None;
    image.abilities.recorded = Some(recorded);
    Store::new("cdrom", image)
}

/// Makes a blank disc.
async fn make(uri: &Uri, path: &Path, blank: BlankDisc, options: &OpenOptions) -> Outcome<Store> {
    let what = || format!("cannot make {uri}");
    if options.read_only {
        let why = "it does not exist, and the drive is one in which nobody may write (read_only)";
        return Err(Failure::usage(what())
            .because(why)
            .hint("name a disc that exists, or another drive"));
    }
    refuse_options(uri, path)?;
    let BlankDisc(disc) = blank;
    let size = u64::from(disc.blocks() + RECORD_BLOCKS) * u64::from(BLOCK_SIZE);
    let with = FileOptions {
        size: Some(size),
        existing_only: false,
        read_only: false,
        ..as_image(options)
    };
    let image = open_file(uri, path, &with).await?;
    let made = image.abilities.close.as_ref().map(|close| CreatedFile::new(path, close));
    let id = getrandom::u32().or_fail(|| "cannot get random bytes".to_owned())?;
    let mut recorded = RecordedDisc::new(Disc::blank(disc, disc.blocks()).with_id(id.max(1)));
    recorded.make(&*image.volume).await.or_fail(what)?;
    let mut store = recordable(image, recorded);
    store.made = made.unwrap_or(CreatedFile::none());
    Ok(store)
}

/// Refuses a file that is not what was to be made. A disc of that type may have been written since.
fn refuse_other(uri: &Uri, BlankDisc(blank): BlankDisc, found: Option<&RecordedDisc>) -> Outcome {
    let why = match found.map(|found| found.disc.disc_type()) {
        Some(found) if found == blank => return Ok(()),
        Some(found) => format!("it is a {}, and no {}", found.name(), blank.name()),
        None => format!("it exists, and is no {}", blank.name()),
    };
    Err(Failure::new(format!("cannot use {uri}"))
        .because(why)
        .hint("name a file that does not exist, or leave `blank` out"))
}

#[cfg(test)]
mod tests {
    use proto::scsi::unit::optical::DiscType;
    use volume::Span;

    use super::super::store;
    use super::*;

    fn disc_of(bytes: usize) -> (tempfile::TempDir, Uri) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.iso");
        std::fs::write(&path, vec![7; bytes]).unwrap();
        let uri = format!("cdrom:{}", path.display()).parse().unwrap();
        (dir, uri)
    }

    #[tokio::test]
    async fn disc_has_blocks_of_2048_bytes_and_is_only_read() {
        let (_dir, uri) = disc_of(3 * 2048);
        let opened =
            store(&uri, &OpenOptions::default()).await.unwrap_or_else(|why| panic!("{why}"));
        assert!(opened.opened.abilities.grow.is_none());
        let volume = opened.opened.volume;
        let shape = volume.shape();
        assert_eq!((shape.size, shape.block_size, shape.read_only), (3 * 2048, 2048, true));
        assert_eq!(volume.read(Span::new(4096, 2048)).await.unwrap(), vec![7; 2048]);
    }

    #[tokio::test]
    async fn blank_disc_is_made_once_and_stays_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new.iso");
        let uri: Uri = format!("cdrom:{}", path.display()).parse().unwrap();
        let open = async |blank: Option<&str>, by_records| {
            let blank = blank.map(|name| name.parse().unwrap());
            let options = OpenOptions { blank, by_records, ..OpenOptions::default() };
            let opened = store(&uri, &options).await.map_err(|why| why.to_string())?;
            let disc = opened.opened.abilities.recorded.map(|recorded| recorded.disc);
            opened.made.keep();
            Ok::<_, String>((disc, opened.opened.volume.shape().read_only))
        };
        assert!(open(None, true).await.unwrap_err().contains("does not exist"));
        let (blank, read_only) = open(Some("cd-r"), true).await.unwrap();
        let id = blank.as_ref().and_then(Disc::id);
        let expected = Disc::blank(DiscType::CdR, DiscType::CdR.blocks()).with_id(id.unwrap());
        assert_eq!((blank.as_ref(), read_only), (Some(&expected), false));
        assert_eq!(open(Some("cd-r"), true).await, Ok((blank.clone(), false)));
        assert_eq!(open(None, true).await, Ok((blank.clone(), false)));
        assert_eq!(open(None, false).await, Ok((blank, true)), "it is only looked at");
        assert!(open(Some("bd-r"), true).await.unwrap_err().contains("it is a CD-R"));
        std::fs::write(&path, vec![7; 3 * 2048]).unwrap();
        assert!(open(Some("cd-r"), true).await.unwrap_err().contains("is no CD-R"));
        assert_eq!(std::fs::read(&path).unwrap(), vec![7; 3 * 2048]);
    }

    #[tokio::test]
    async fn image_that_was_cut_off_or_is_missing_is_refused() {
        let options = OpenOptions { may_be_empty: true, ..OpenOptions::default() };
        let failure = async |uri: &Uri| match store(uri, &options).await {
            Ok(_) => panic!("{uri} is opened"),
            Err(why) => why.to_string(),
        };
        let (_dir, uri) = disc_of(3 * 2048 - 512);
        assert!(failure(&uri).await.contains("2048"));
        let missing = "cdrom:/nowhere/a.iso".parse().unwrap();
        assert!(failure(&missing).await.contains("does not exist"));
        let empty = store(&"cdrom:".parse().unwrap(), &options).await;
        assert!(empty.is_ok_and(|store| store.opened.volume.shape().size == 0));
        let alone = store(&"cdrom:".parse().unwrap(), &OpenOptions::default()).await;
        assert!(alone.is_err());
    }
}
