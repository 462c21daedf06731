//! A volume behind a HyperSCSI server (docs/spec/hyperscsi.md), under what any SCSI transport needs (`store/scsi`).
//!
//! ```text
//! Disk                   `store/scsi`, by this transport
//!   HyperScsiTransport   connects, again under the same key
//!     Session            one task that owns link and protocol machine; requests go in by a channel
//! ```

mod connect;
mod driver;
mod error;
mod probe;
mod session;
mod silence;
mod stalls;
mod transport;

use std::time::Duration;

use proto::hyperscsi::{Level, SiteKey};
use proto::identity::{Identity, PublicKey};

pub use connect::volumes;
pub use error::{Loss, SessionError};
pub use session::Session;
pub use transport::HyperScsiTransport;

use super::scsi::{self, OpenError, Options, TransportUnit};
pub use crate::uri::HyperScsiOptions as ConnectionOptions;
use crate::uri::HyperScsiServer as Server;

/// A volume of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Who has it.
    pub server: Server,
    /// What it is called there.
    pub name: String,
    /// Where else the server is: one connection uses all of these at once.
    pub paths: Vec<Server>,
    /// How the connection is, if the server agrees.
    pub options: ConnectionOptions,
}

/// Who we are, and whom we trust.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Who we are.
    pub identity: Identity,
    /// What tells the machines of the site from strangers.
    pub site_key: SiteKey,
    /// The key of the server; that of any server of the site if `None`.
    pub pin: Option<PublicKey>,
    /// The lowest level at which we use a volume.
    pub least: Level,
}

/// How long a server may take to answer at all, and to prove who it is.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(15);

/// A disk behind a HyperSCSI server.
pub type Disk = scsi::Disk<HyperScsiTransport>;

/// Connects to a server and opens one of its volumes. What fails here is not tried again: it may be a mistake, and
/// somebody is waiting to be told.
pub async fn connect(
    volume: &Volume,
    credentials: &Credentials,
    options: Options,
) -> Result<Disk, OpenError<SessionError>> {
    let transport = HyperScsiTransport::new(volume.clone(), credentials.clone(), &options);
    Disk::open(transport, options).await
}

/// Connects to a server and opens one of its volumes, of any type, for who sends it commands.
pub async fn open_unit(
    volume: &Volume,
    credentials: &Credentials,
    options: Options,
) -> Result<TransportUnit<HyperScsiTransport>, OpenError<SessionError>> {
    let transport = HyperScsiTransport::new(volume.clone(), credentials.clone(), &options);
    TransportUnit::open(transport, options).await
}
