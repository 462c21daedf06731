//! A volume behind an iSCSI target.
//!
//! ```text
//! Disk (Volume)      splits, maps verbs to commands, announces what the device says of itself
//!   Unit             one logical unit: retries what may be retried, turns sense into errors
//!     Session        one task that owns socket and protocol machine; requests go in by a channel
//! ```

mod connect;
mod device;
mod discover;
mod disk;
mod session;
mod unit;

use std::time::Duration;

use proto::iscsi::chap::{Account, Algorithm};
use proto::iscsi::initiator::Timeouts;
use proto::iscsi::keys::Offer;
use proto::iscsi::login::initiator::Pinned;
use proto::iscsi::name::{IscsiName, Isid};

pub use connect::{ConnectError, Portal};
pub use device::Probe;
pub use discover::{DiscoveredTarget, discover};
pub use disk::Disk;
pub use session::{Loss, Session};
pub use unit::UnitError;

/// A logical unit of a target, and where the target listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IscsiTarget {
    /// The portal to ask first.
    pub portal: Portal,
    /// The target.
    pub name: IscsiName,
    /// The logical unit.
    pub lun: u16,
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Who we are.
    pub initiator: IscsiName,
    /// Our part of the session's name; a random one if `None`. One that stays lets the target end the
    /// session it replaces.
    pub isid: Option<Isid>,
    /// How we prove it, and the target if the account is mutual.
    pub account: Option<Account>,
    /// With whom sessions are sealed; then nothing less is offered.
    pub pinned: Option<Pinned>,
    /// The CHAP algorithms that may be used, best first.
    pub algorithms: Vec<Algorithm>,
    /// What we ask for: digests, and the lengths that keep a long link full.
    pub offer: Offer,
    /// How long one address may take to answer at all.
    pub connect_timeout: Duration,
    /// How long the session waits.
    pub timeouts: Timeouts,
    /// Refuse writes.
    pub read_only: bool,
}

impl ConnectOptions {
    /// What suits a long link, without authentication.
    #[must_use]
    pub fn new(initiator: IscsiName) -> Self {
        Self {
            initiator,
            isid: None,
            account: None,
            pinned: None,
            algorithms: Algorithm::STRONG.to_vec(),
            offer: Offer::long_haul(),
            connect_timeout: Duration::from_secs(15),
            timeouts: Timeouts::default(),
            read_only: false,
        }
    }
}

/// Connects to a target, logs in, and opens a logical unit.
pub async fn connect(target: &IscsiTarget, options: &ConnectOptions) -> Result<Disk, ConnectError> {
    let session = connect::log_in(&target.portal, Some(&target.name), options).await?;
    match Disk::open(session.clone(), target.lun, options.read_only).await {
        Ok(disk) => Ok(disk),
        Err(error) => {
            session.close().await;
            Err(error)
        }
    }
}
