//! A file that another gateway serves: it is known how large it is and what it can do, and nothing of it is touched.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use volume::{Durability, Error, ExtentMap, Gate, Kind, Shape, Space, Span, Verb, Volume, Work};

use super::abilities::Opened;
use super::file::{FileOptions, OpenError, shape_of};

struct Standby(Shape);

/// The file at `path`, which has to be there.
pub fn open(path: &Path, options: &FileOptions) -> Result<Opened, OpenError> {
    shape_of(path, options).map(like)
}

/// One that is like this. Nothing is looked at.
pub fn like(shape: Shape) -> Opened {
    Opened::plain(Arc::new(Gate::new("standby", Standby(shape))))
}

fn refused<T: Send + 'static>(verb: Verb, span: Option<Span>) -> Work<'static, T> {
    Box::pin(std::future::ready(Err(Error::new(Kind::Busy, verb, span))))
}

impl Volume for Standby {
    fn shape(&self) -> &Shape {
        &self.0
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        refused(Verb::Read, Some(span))
    }

    fn write(&self, at: u64, data: Bytes, _durability: Durability) -> Work<'_, ()> {
        refused(Verb::Write, Some(Span::new(at, data.len() as u64)))
    }

    fn write_zeroes(&self, span: Span, _durability: Durability, _space: Space) -> Work<'_, ()> {
        refused(Verb::WriteZeroes, Some(span))
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        refused(Verb::Discard, Some(span))
    }

    /// Nothing was written here.
    fn flush(&self) -> Work<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        None
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::super::file;
    use super::*;

    /// A client that sees both takes them for one disk.
    #[test]
    fn it_has_the_shape_of_the_file_that_another_has_locked_and_does_nothing() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("volume.img");
        let options = FileOptions { size: Some(1 << 20), ..FileOptions::default() };
        let active = file::open(&path, &options).unwrap();
        let standby = open(&path, &options).unwrap().volume;
        assert_eq!(standby.shape(), active.shape());
        let span = Span::new(0, 512);
        let read = standby.read(span).now_or_never().unwrap();
        assert_eq!(read.unwrap_err().kind, Kind::Busy);
        let written = standby.write(0, vec![1; 512].into(), Durability::Volatile);
        assert_eq!(written.now_or_never().unwrap().unwrap_err().kind, Kind::Busy);
        assert!(matches!(open(&home.path().join("none"), &options), Err(OpenError::Missing)));
    }
}
