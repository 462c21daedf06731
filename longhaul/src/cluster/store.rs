//! Where the record of a cluster is kept.

use std::fmt;
use std::io;

use proto::cluster::Record;

/// A record that is read whole, and replaced if it is as it was read. Both may wait, so they are called where that is
/// allowed.
pub(super) trait RecordStore: fmt::Debug + Send + Sync {
    /// The record; `None` if there never was one.
    fn read(&self) -> io::Result<Option<Record>>;

    /// Puts `record` in the place of the version before; `false` if another one is there. After an error it may be there
    /// or not, or come to be there.
    fn replace(&self, record: &Record) -> io::Result<bool>;

    /// Shows the other gateways that this one looks at the record.
    fn show_presence(&self) -> io::Result<()>;
}
