//! The file that is made for a volume.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::trailing_option;
use crate::failure::{Failure, Outcome};
use crate::printable::Shown as _;
use crate::store::abilities::Close;
use crate::uri::Uri;

/// A file that was made for a volume that is not open yet. It goes when this is dropped, and its lock after it: whoever
/// waits for that must not lose the file under its hands.
pub(super) struct CreatedFile(Option<(PathBuf, Arc<dyn Close>)>);

impl CreatedFile {
    /// The file at `path`, which is open as `store`.
    pub(super) fn new(path: &Path, store: &Arc<dyn Close>) -> Self {
        Self(Some((path.to_owned(), Arc::clone(store))))
    }

    /// Nothing was made.
    pub(super) const fn none() -> Self {
        Self(None)
    }

    /// Whether there is one.
    pub(super) const fn is_one(&self) -> bool {
        self.0.is_some()
    }

    /// It stays from now on.
    pub(super) fn keep(mut self) -> Option<PathBuf> {
        self.0.take().map(|(path, _)| path)
    }
}

impl Drop for CreatedFile {
    fn drop(&mut self) {
        if let Some((made, store)) = &self.0 {
            remove(made, &**store);
        }
    }
}

/// Removes the file at `made`, if it is still the one that is open as `store`.
fn remove(made: &Path, store: &dyn Close) {
    if store.misplaced().is_some() {
        return;
    }
    if let Err(why) = std::fs::remove_file(made) {
        tracing::warn!(%why, path = %made.shown(), "a file that was made for nothing cannot be removed");
    }
}

/// Refuses to make a file whose name ends in what is an option elsewhere.
pub(super) fn refuse_options(uri: &Uri, path: &Path) -> Outcome {
    let option = path.to_str().filter(|_| !path.exists()).and_then(trailing_option);
    let Some(option) = option else { return Ok(()) };
    Err(Failure::usage(format!("cannot open {uri}"))
        .because(format!(
            "it does not exist, and `,{option}` at its end is an option of a volume of `serve`"
        ))
        .hint("leave it out here; a file that has such a name must be there already"))
}

#[cfg(test)]
mod tests {
    use super::super::{OpenOptions, open};
    use crate::size::Size;

    #[tokio::test]
    async fn file_that_was_made_for_nothing_is_removed_and_no_other_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.img");
        let uri = format!("file:{}", path.display()).parse().unwrap();
        for is_replaced in [false, true] {
            let options = OpenOptions { size: Some(Size(1 << 20)), ..OpenOptions::default() };
            let chain = open(&uri, options).await.unwrap();
            if is_replaced {
                std::fs::rename(&path, dir.path().join("moved.img")).unwrap();
                std::fs::write(&path, "of somebody else").unwrap();
            }
            chain.discard().await;
            assert_eq!(path.exists(), is_replaced);
        }
    }
}
