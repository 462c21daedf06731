//! Media changers: a directory of tapes, and no blocks.

use std::path::Path;
use std::sync::Arc;

use proto::scsi::elements::Layout;
use volume::store::memory::Memory;

use super::{Store, tape};
use crate::chain::OpenOptions;
use crate::failure::{Failure, Outcome};
use crate::store::abilities::Opened;
use crate::store::library::{Library, LibraryError};
use crate::uri::Uri;

/// The bytes of a block of a volume that has none.
const UNIT: u32 = 512;

/// Opens the changer of the cartridges in `directory`, which must all be tapes.
pub(super) async fn open(uri: &Uri, directory: &Path, options: &OpenOptions) -> Outcome<Store> {
    let Some(layout) = options.elements else {
        return Err(Failure::usage(format!("cannot use {uri}"))
            .because("a media changer has no blocks")
            .hint("`longhaul serve --volume NAME=changer:DIR,drives=1,slots=8` offers it"));
    };
    let library = Library::open(directory, layout);
    let library = library.map_err(|why| explain(format!("cannot open {uri}"), why))?;
    for path in library.files() {
        tape::check(&path).await?;
    }
    let mut opened = Opened::plain(Arc::new(Memory::new(0, UNIT)));
    opened.abilities.library = Some(Arc::new(library));
    Ok(Store::new("changer", opened))
}

/// Whether a media changer could be opened, as far as that can be told while another process has it.
pub(crate) fn look(uri: &Uri, directory: &Path, layout: Layout) -> Outcome {
    let looked = Library::look(directory, layout);
    looked.map_err(|why| explain(format!("cannot open {uri}"), why))
}

/// Adds what the user can do about it.
pub(crate) fn explain(what: String, why: LibraryError) -> Failure {
    let hint = match &why {
        LibraryError::Directory(..) => {
            "make it, with a file for each cartridge: `longhaul tape import DIR/A00001 --size 8G FILE`, or `truncate -s 8G \
             DIR/A00001` for an empty one"
        }
        LibraryError::InUse(_) => "a media changer is served once: end the other server first",
        LibraryError::NotAFile(_) => "put it elsewhere",
        LibraryError::Name(..) => "give it a barcode for a name, or put it elsewhere",
        LibraryError::SameBarcode(..) | LibraryError::SameFile(..) => {
            "give one of them another name, or put it elsewhere"
        }
        LibraryError::NoSlot(..) => "give it more `slots`, or put cartridges elsewhere",
        LibraryError::Places(..) => {
            "bring it back from a backup, or move it away: then all cartridges are in slots"
        }
        LibraryError::NoFile(..) => "put the file there, or have an empty tape made: --size 8G",
        LibraryError::NoImportExport => {
            "empty one: `longhaul media move` or `longhaul media export`; or give it more (`mail`)"
        }
        LibraryError::Unnoted(..) | LibraryError::Unmade(..) | LibraryError::Inside(..) => {
            return Failure::new(what).because(why);
        }
    };
    Failure::new(what).because(why).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::super::store;
    use super::*;

    #[tokio::test]
    async fn changer_is_of_tapes_alone_and_opened_once() {
        let dir = tempfile::tempdir().unwrap();
        let uri: Uri = format!("changer:{}", dir.path().display()).parse().unwrap();
        std::fs::write(dir.path().join("A1"), vec![0; 1 << 20]).unwrap();
        let layout = Layout { drives: 1, slots: 2, mail: 0 };
        let options = || OpenOptions { elements: Some(layout), ..OpenOptions::default() };
        let opened = store(&uri, &options()).await.unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(opened.opened.volume.shape().size, 0);
        assert!(opened.opened.abilities.library.is_some());
        let refused = async |options: &OpenOptions| match store(&uri, options).await {
            Ok(_) => panic!("it is open"),
            Err(why) => why.to_string(),
        };
        assert!(refused(&options()).await.contains("another process uses"));
        drop(opened);
        assert!(refused(&OpenOptions::default()).await.contains("has no blocks"));
        std::fs::write(dir.path().join("B2"), vec![7; 1 << 20]).unwrap();
        let why = refused(&options()).await;
        assert!(why.contains("/B2") && why.contains("no tape"), "{why}");
    }
}
