//! Where the record of a cluster is kept.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use host::rbd::Client;
use proto::cluster::{GroupName, Record, Signs};

/// Which of the records of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) enum RecordName<'a> {
    /// That of a group of volumes.
    Group(&'a GroupName),
    /// The one that says which unit is in which group.
    Membership,
}

/// A record that is read whole, and replaced if it is as it was read. All of it may wait, so it is called where that is
/// allowed.
pub(super) trait RecordStore: fmt::Debug + Send + Sync {
    /// The record; `None` if there never was one.
    fn read(&self) -> io::Result<Option<Record>>;

    /// Puts `record` in the place of the version before; `false` if another one is there. After an error it may be there
    /// or not, or come to be there.
    fn replace(&self, record: &Record) -> io::Result<bool>;

    /// Shows the other gateways that this one looks at the record, and what weight it has.
    fn show_presence(&self, weight: u16) -> io::Result<()>;

    /// What the other gateways have shown last.
    fn others_seen(&self) -> io::Result<Signs>;
}

/// A storage that can be told to take nothing any more from an address. All of it may wait.
pub(super) trait Blocklist: fmt::Debug + Send + Sync {
    /// A new way to the media, with an address that nobody else has had.
    fn connect(&self) -> io::Result<MediaClient>;

    /// Whether the storage takes nothing from this one any more.
    fn is_shut_out(&self, client: &MediaClient) -> bool;

    /// Has the storage take nothing from this address any more.
    fn shut_out(&self, address: &str) -> io::Result<()>;
}

/// A way to the media.
#[derive(Clone, Debug)]
pub(super) struct MediaClient {
    pub(super) address: String,
    pub(super) client: Arc<Client>,
}

/// The way by which this gateway comes to the media with the lease that it holds, or takes next.
pub(super) type CurrentClient = Arc<Mutex<Option<MediaClient>>>;
