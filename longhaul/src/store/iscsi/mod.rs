//! A volume behind an iSCSI target: sessions, under what any SCSI transport needs (`store/scsi`).
//!
//! ```text
//! Disk               `store/scsi`, by this transport
//!   IscsiTransport   logs in, again under the same name, by whichever portal answers
//!     Session        one task that owns sockets and protocol machine; requests go in by a channel
//! ```

mod connections;
mod dial;
mod discover;
mod error;
mod login;
mod negotiated;
mod portal;
mod probe;
mod random;
mod session;
mod transport;

use std::path::PathBuf;
use std::time::Duration;

use proto::iscsi::chap::{Account, Algorithm};
use proto::iscsi::initiator::Timeouts;
use proto::iscsi::keys::Offer;
use proto::iscsi::login::initiator::Pinned;
use proto::iscsi::name::{IscsiName, Isid};

pub use connections::{Connections, NotConnections};
pub use discover::{DiscoveredTarget, discover};
pub use error::{ConnectError, SessionError};
pub use session::{Loss, Session};
pub use transport::IscsiTransport;

use super::scsi::{self, Options, TransportUnit};
pub use super::scsi::{
    Holders, Identity, MarkCheck, NOTICED_WITHIN, OpenError, Predecessor, ReplayLogOptions,
    ReplayedLog, ReservationError, Seen, State, Unguarded, UnitError, Writers,
};
use crate::stop::Stop;
use crate::uri::Host;

/// A logical unit of a target, and where the target listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IscsiTarget {
    /// The portal to ask first.
    pub portal: Host,
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
    /// How many connections each session has.
    pub connections: Connections,
    /// How long one address may take to answer at all.
    pub connect_timeout: Duration,
    /// How long the session waits.
    pub timeouts: Timeouts,
    /// Refuse writes.
    pub read_only: bool,
    /// Who else may write.
    pub writers: Writers,
    /// The state directory: attachments are noted there, to know those of processes that were killed, and their replay
    /// logs are looked for.
    pub state: Option<PathBuf>,
    /// The replay log that is to be written.
    pub replays: Option<ReplayedLog>,
    /// What was found there before: another volume is neither opened nor reserved.
    pub same_as: Option<Seen>,
    /// How long an outage may last before requests fail; `None` for as long as it takes, zero for not
    /// at all.
    pub reconnect_for: Option<Duration>,
    /// Where the portal cannot be reached any more, try the others of the target.
    pub other_portals: bool,
    /// The longest wait between two attempts to connect again.
    pub reconnect_every: Duration,
    /// What becomes of acknowledged writes when the disk is given up; they are dropped if `None`.
    pub replay_log: Option<ReplayLogOptions>,
    /// When it is called, what is being opened is let go.
    pub stop: Stop,
    /// Bytes of acknowledged writes that are kept until a flush, to be written again if the target loses
    /// them. At half of it a flush is made unasked.
    pub unflushed_max: usize,
}

/// How long one-shot commands wait for a connection that is lost.
pub const RECONNECT_FOR: Duration = Duration::from_secs(60);

/// A server that is back is found within it, and one that is not is asked seldom.
const RECONNECT_EVERY: Duration = Duration::from_secs(5);

/// Half of it is more than any link in use holds in flight, so the flushes it brings stop nothing.
const UNFLUSHED_MAX: usize = 64 << 20;

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
            offer: Offer::for_long_links(),
            connections: Connections::default(),
            connect_timeout: Duration::from_secs(15),
            timeouts: Timeouts::default(),
            read_only: false,
            writers: Writers::default(),
            state: None,
            replays: None,
            same_as: None,
            reconnect_for: Some(RECONNECT_FOR),
            other_portals: true,
            reconnect_every: RECONNECT_EVERY,
            replay_log: None,
            stop: Stop::default(),
            unflushed_max: UNFLUSHED_MAX,
        }
    }
}

impl From<&ConnectOptions> for Options {
    fn from(options: &ConnectOptions) -> Self {
        let options = options.clone();
        Self {
            read_only: options.read_only,
            writers: options.writers,
            state: options.state,
            replays: options.replays,
            same_as: options.same_as,
            reconnect_for: options.reconnect_for,
            reconnect_every: options.reconnect_every,
            replay_log: options.replay_log,
            stop: options.stop,
            unflushed_max: options.unflushed_max,
            login_within: options.timeouts.login,
            idle: options.timeouts.idle,
            stall: options.timeouts.stall,
        }
    }
}

/// A disk behind an iSCSI target.
pub type Disk = scsi::Disk<IscsiTransport>;

/// Connects to a target, logs in, and opens a logical unit. What fails here is not tried again: it may be
/// a mistake, and somebody is waiting to be told.
pub async fn connect(target: &IscsiTarget, options: &ConnectOptions) -> Result<Disk, ConnectError> {
    let transport = IscsiTransport::new(target.clone(), options).map_err(OpenError::Session)?;
    let disk = Disk::open(transport, options.into()).await?;
    warn_if_not_secure(target, options).await;
    Ok(disk)
}

/// Connects to a target, logs in, and opens a logical unit of any type, for who sends it commands.
pub async fn open_unit(
    target: &IscsiTarget,
    options: &ConnectOptions,
) -> Result<TransportUnit<IscsiTransport>, ConnectError> {
    let transport = IscsiTransport::new(target.clone(), options).map_err(OpenError::Session)?;
    let unit = TransportUnit::open(transport, options.into()).await?;
    warn_if_not_secure(target, options).await;
    Ok(unit)
}

async fn warn_if_not_secure(target: &IscsiTarget, options: &ConnectOptions) {
    if options.pinned.is_none() && !is_this_machine(&target.portal).await {
        tracing::warn!(
            portal = %target.portal,
            target = target.name.as_str(),
            "session is not secure: whoever is on its way can read and change what is sent; use the URI that the \
             server prints, which ends in ?pin=KEY, or a tunnel"
        );
    }
}

/// Whether nothing that is sent there leaves this machine.
async fn is_this_machine(portal: &Host) -> bool {
    match tokio::net::lookup_host((portal.name.as_str(), portal.port)).await {
        Ok(mut found) => found.all(|address| address.ip().to_canonical().is_loopback()),
        Err(_) => false,
    }
}
