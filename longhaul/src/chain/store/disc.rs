//! The discs in optical drives: files of blocks of 2048 bytes, which nobody writes to.

use std::path::Path;
use std::sync::Arc;

use proto::scsi::unit::optical::{BLOCK_SIZE, Disc};
use volume::store::memory::Memory;

use super::{Store, retry_while_locked};
use crate::chain::OpenOptions;
use crate::explain::explain;
use crate::failure::{Failure, Outcome};
use crate::store::abilities::Opened;
use crate::store::file;
use crate::uri::Uri;

/// Opens the image `disc`, or a volume of no blocks for a drive without one.
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
    let with = file::FileOptions {
        existing_only: true,
        read_only: true,
        block_size: BLOCK_SIZE,
        direct: options.direct,
        ..file::FileOptions::default()
    };
    let opened = retry_while_locked(path, || file::open(path, &with)).await;
    let mut opened = opened.map_err(|why| explain(what(), why))?.opened("cdrom");
    // A disc is as it was recorded.
    opened.abilities.grow = None;
    if opened.volume.shape().size / u64::from(BLOCK_SIZE) > Disc::BLOCKS_MAX {
        return Err(Failure::new(what()).because("a disc has at most 8 TiB"));
    }
    Ok(Store::new("cdrom", opened))
}

#[cfg(test)]
mod tests {
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
