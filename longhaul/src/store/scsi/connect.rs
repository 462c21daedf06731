//! From an address to a session that is logged in.

use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proto::iscsi::header::TaskResponse;
use proto::iscsi::initiator::{Fault, Initiator};
use proto::iscsi::keys::Offer;
use proto::iscsi::login::initiator::{Config, LoginError};
use proto::iscsi::name::{IscsiName, Isid};
use proto::scsi::Status;
use proto::scsi::command::Command;
use proto::time::Time;
use tokio::net::TcpStream;
use volume::layer::reconnect::{Failure, Salvage, Settings};

use super::device::Device;
use super::dial::dial;
use super::discover;
use super::identity::Identity;
use super::link::Link;
use super::mark::MarkError;
use super::random::{entropy, random};
use super::reservation::{Holders, Request, Reservation, Writers};
use super::session::{Loss, Session};
use super::unit::{self, UnitError};
use super::{ConnectOptions, IscsiTarget, ReplayLogOptions};
use crate::attachments::Place;
use crate::replay_log::{Header, Writer};
use crate::uri::Host;

/// How often a target may send us elsewhere before we stop going there.
const REDIRECTIONS_MAX: u32 = 4;

/// The wait after the first attempt to connect again that failed.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// How long a unit may take for each step: to say what it is, to be reserved, to be reset. One that does not within it
/// is let go, so that no peer that answers pings alone keeps us; when we connect again it is asked anew.
const OPENED_WITHIN: Duration = Duration::from_secs(60);

/// How long a reservation that is being made is waited for by who has been told to end: half made, it would stay.
const RESERVED_WITHIN: Duration = Duration::from_secs(5);

/// The longest a target may have us wait that has not proven who says so. It could be hours by the protocol.
const UNPROVEN_WAIT_MAX: Duration = Duration::from_secs(60);

/// How often the time is doubled after which a command stalls, while commands do: a unit may be so slow.
const STALLS_MAX: u32 = 4;

/// How long a target may take to say where else it listens.
const OTHERS_WITHIN: Duration = Duration::from_secs(30);

/// Reads `host[:port][,tag]`, as targets write it (RFC 7143, 13.8).
pub(super) fn portal(address: &str) -> Option<Host> {
    address.split(',').next()?.parse().ok()
}

/// Why there is no connection, or no volume behind it.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody answers there.
    #[error("cannot connect to {0}")]
    Connect(Host, #[source] io::Error),
    /// It takes too long to answer.
    #[error("{0} does not answer within {1:?}")]
    Timeout(Host, Duration),
    /// The session did not come about, or ended.
    #[error("no session with {0}")]
    Session(Host, #[source] Arc<Loss>),
    /// It sends us from one place to the next.
    #[error("{0} redirects us without end")]
    Redirections(Host),
    /// It sends us out of a tunnel, or to this machine.
    #[error(
        "{portal} redirects us to {to}, which is not followed: one of the two is an address of this machine"
    )]
    Tunnel {
        /// Who says so.
        portal: Host,
        /// Where to.
        to: Host,
    },
    /// It takes too long to say what its unit is, or to reset it.
    #[error("the unit of {0} is not ready within {1:?}")]
    Slow(Host, Duration),
    /// Whoever opens it was told to end.
    #[error("it was ended before it was open")]
    Stopped,
    /// It sends us where nothing can be.
    #[error("{portal} redirects us to {to:?}, which is no address")]
    Redirection {
        /// Who says so.
        portal: Host,
        /// Where to.
        to: String,
    },
    /// No randomness for challenges.
    #[error("the system gives no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// The logical unit does not say what must be known of it.
    #[error("cannot learn what the logical unit is")]
    Unit(#[from] UnitError),
    /// What an earlier session had under way cannot be ended.
    #[error("the target does not reset its unit: its answer is {0:?}")]
    NotReset(TaskResponse),
    /// It is no disk, or one that cannot be used.
    #[error("the logical unit {0}")]
    NotADisk(&'static str),
    /// An answer that cannot be read.
    #[error("the logical unit's {0} cannot be read")]
    Answer(&'static str, #[source] proto::scsi::Malformed),
    /// Another volume answers where ours was, or it may not be used as before.
    #[error("it is not the volume that was connected before: its {0} has changed")]
    Changed(&'static str),
    /// What was under way when the connection was lost may still be carried out behind another portal group.
    #[error("{0} is not of the portal group where what was under way may still be carried out")]
    OtherGroup(Host),
    /// What was under way when the connection was lost may still be carried out: the target does not know sessions by
    /// their names, so that none ends another.
    #[error(
        "a write was under way when the connection was lost, and {0} does not end the session it belonged to: it answers \
         logins with another ISID or without a TSIH"
    )]
    NotReplaced(Host),
    /// The session that is to end what an earlier one had under way is none that could.
    #[error(
        "{0} answers with another ISID or without a TSIH, so that nothing ends what was under way"
    )]
    NotReplacing(Host),
    /// Another writer has the volume.
    #[error("another writer has the volume: {0}")]
    Held(Holders),
    /// Another writer has the volume now, or had it meanwhile.
    #[error("the reservation was taken away; the volume is held by {0}")]
    Fenced(Holders),
    /// Another writer has put its mark on the volume, or ours is gone.
    #[error("the mark of this attachment is not on the volume any more; {0}")]
    Replaced(String),
    /// Nobody knows whether others have written since a writer that is gone.
    #[error("cannot know whether anybody has written to the volume since: {0}")]
    NotResumed(String),
    /// The reservation can be neither had nor refused.
    #[error("cannot reserve the volume: {0}")]
    Reservation(String),
    /// The list of targets cannot be read.
    #[error("{0} sent a list of targets that cannot be read")]
    List(Host),
}

impl ConnectError {
    /// Why the login was refused, if it was.
    #[must_use]
    pub fn login(&self) -> Option<&LoginError> {
        match self {
            Self::Session(_, loss) => match &**loss {
                Loss::Fault(Fault::Login(error)) => Some(error),
                _ => None,
            },
            _ => None,
        }
    }
}

impl ConnectError {
    /// Whether the volume is another's now, or was meanwhile.
    pub(super) const fn is_fence(&self) -> bool {
        matches!(self, Self::Fenced(_) | Self::Replaced(_))
    }

    /// What this failure of an attempt to connect again is worth; `secure` if sessions are.
    pub(super) const fn failure(&self, secure: bool) -> Failure {
        match self {
            Self::Unit(UnitError::Status(Status::ReservationConflict)) => Failure::Reserved,
            Self::Changed(_)
            | Self::NotReset(TaskResponse::NOT_SUPPORTED | TaskResponse::AUTHORIZATION_FAILED) => {
                Failure::Unusable { secure }
            }
            Self::Random(_) | Self::NotReplaced(_) | Self::Held(_) => Failure::Local,
            // A target or a unit that is not found may be there again when its server has come up.
            _ => Failure::NoSession,
        }
    }
}

/// A session that is no more, of which a change may still be under way.
pub(super) struct MaybeAlive {
    /// What ends it has to take its place.
    pub(super) session: Session,
    /// That is not enough: the unit is reset before anything else is asked of it.
    pub(super) reset: bool,
}

/// Makes sessions with one unit of one target, all under one name.
#[derive(Debug)]
pub(super) struct Connector {
    target: IscsiTarget,
    options: ConnectOptions,
    /// Where else the target listens, as it said last.
    others: Arc<Mutex<Vec<Host>>>,
    /// How long each step to a unit may take.
    opened_within: Duration,
    /// Sessions given up in a row because commands stalled.
    stalls: AtomicU32,
    /// What the volume holds that tells it from others, once that is known.
    identity: Mutex<Option<Identity>>,
    /// That nobody else writes.
    pub(super) reservation: Reservation,
}

impl fmt::Display for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IscsiTarget { portal, name, lun } = &self.target;
        write!(f, "iscsi://{portal}/{name}/{lun}")
    }
}

impl Connector {
    pub(super) fn new(target: IscsiTarget, options: &ConnectOptions) -> Result<Self, ConnectError> {
        let mut options = options.clone();
        // The same at every login, so that each ends the session before it (RFC 7143, 6.3.5).
        if options.isid.is_none() {
            options.isid = Some(Isid::random(random()?, 0));
        }
        let reservation = Reservation::default();
        let (others, opened_within) = (Arc::default(), OPENED_WITHIN);
        let (stalls, identity) = Default::default();
        Ok(Self { target, options, others, opened_within, stalls, identity, reservation })
    }

    /// Reserves the unit of a first link, unless it is shared or only read.
    pub(super) async fn reserve(&self, link: Link) -> Result<Link, ConnectError> {
        if link.shape().read_only {
            return Ok(link);
        }
        let ConnectOptions { writers, replays, state, replay_log, .. } = &self.options;
        let own = replay_log.as_ref().map(|options| &*options.dir);
        let request = Request {
            writers: *writers,
            replays: match writers {
                Writers::Resume(of) => Some(*of),
                _ => replays.as_ref().map(|log| log.key),
            },
            state: state.as_deref(),
            replay_logs: own.or_else(|| replays.as_ref().map(|log| &*log.dir)),
        };
        let (portal, place) = (&self.target.portal, self.place(&link));
        let acquired = self.reservation.acquire(link.unit(), &place, request);
        self.in_time_or_not_at_all(&link, acquired).await?;
        if !link.device().is_withheld || !self.reservation.is_held() {
            return Ok(link);
        }
        // Now it tells us what it did not before.
        let whole = self.in_time(portal, self.open(link.session()));
        let whole = self.options.stop.unless_called(whole);
        let whole = whole.await.unwrap_or(Err(ConnectError::Stopped));
        if whole.is_err() {
            self.reservation.release(link.unit()).await;
        }
        whole
    }

    /// How this machine notes the unit of a link.
    fn place(&self, link: &Link) -> Place {
        let IscsiTarget { portal, name, lun } = &self.target;
        Place {
            target: name.as_str().to_owned(),
            lun: *lun,
            serial: link.device().serial.clone(),
            portal: portal.to_string(),
            pin: self.options.pinned.as_ref().map(|pinned| pinned.target.to_string()),
        }
    }

    /// One step that must not be left half done. A target that does not answer, or not when we are told to end, loses
    /// the session: that fails it, and has noted what may be left of it.
    async fn in_time_or_not_at_all(
        &self,
        link: &Link,
        step: impl Future<Output = Result<(), ConnectError>>,
    ) -> Result<(), ConnectError> {
        let (within, mut step) = (self.opened_within, pin!(step));
        let timed = tokio::time::timeout(within, &mut step);
        let late = match self.options.stop.unless_late(RESERVED_WITHIN, timed).await {
            Some(Ok(done)) => return done,
            Some(Err(_)) => ConnectError::Slow(self.target.portal.clone(), within),
            None => ConnectError::Stopped,
        };
        link.session().abandon();
        step.await.map_err(|_| late)
    }

    /// Connects, logs in, and opens the unit, which has nothing left to do then for the session in doubt. It must be
    /// the one that was there `before`. Where the portal cannot be reached the others of the target are tried; why
    /// they cannot be used is nobody's business, since they are only what the target says.
    pub(super) async fn connect(
        &self,
        doubt: Option<MaybeAlive>,
        before: Option<&Device>,
    ) -> Result<Link, ConnectError> {
        let out_of_reach = match self.connect_at(&self.target.portal, doubt.as_ref(), before).await
        {
            Err(why @ (ConnectError::Connect(..) | ConnectError::Timeout(..))) => why,
            outcome => return outcome,
        };
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for portal in others {
            match self.connect_at(&portal, doubt.as_ref(), before).await {
                Ok(link) => {
                    tracing::warn!(%portal, why = %out_of_reach, "another portal of the target is used");
                    return Ok(link);
                }
                Err(why) => tracing::info!(%portal, %why, "another portal cannot be used"),
            }
        }
        Err(out_of_reach)
    }

    async fn connect_at(
        &self,
        portal: &Host,
        doubt: Option<&MaybeAlive>,
        before: Option<&Device>,
    ) -> Result<Link, ConnectError> {
        let replaced = |session: &Session| session.established().can_be_reinstated();
        // A reset of the unit does not reach commands that still lie in the buffers of a connection.
        if doubt.is_some_and(|doubt| !replaced(&doubt.session)) {
            return Err(ConnectError::NotReplaced(portal.clone()));
        }
        let stalls = self.stalls.load(Ordering::Relaxed).min(STALLS_MAX);
        let mut options = self.options.clone();
        options.timeouts.stall *= 1 << stalls;
        let session = log_in(portal, Some(&self.target.name), &options, doubt).await?;
        if doubt.is_some() && !replaced(&session) {
            session.close().await;
            // Its login response says so, which is not authenticated: the next may say something else.
            return Err(ConnectError::NotReplacing(portal.clone()));
        }
        let opened = match before {
            Some(before) => {
                let reset = doubt.is_some_and(|doubt| doubt.reset);
                self.open_again(portal, &session, before, reset).await
            }
            None => self.in_time(portal, self.open(&session)).await,
        };
        match &opened {
            Ok(link) if link.device().is_longhaul() => self.ask_for_others(session),
            Ok(_) => {}
            Err(_) => session.close().await,
        }
        opened
    }

    /// Asks where else the target listens, for when it cannot be reached here any more. Nobody waits for that.
    fn ask_for_others(&self, session: Session) {
        let Some(group) = session.established().portal_group_tag else { return };
        if !self.options.other_portals || self.options.reconnect_for == Some(Duration::ZERO) {
            return;
        }
        let (others, IscsiTarget { portal, name, .. }) =
            (Arc::clone(&self.others), self.target.clone());
        tokio::spawn(async move {
            // A target must answer this in any session (RFC 7143, appendix C); tgt, for one, closes the connection.
            let question = format!("SendTargets={}\0", name.as_str());
            let answer = tokio::time::timeout(OTHERS_WITHIN, session.text(question.into())).await;
            if let Ok(Ok(answer)) = answer {
                let found = discover::others(name.as_str(), group, &portal, &answer);
                tracing::debug!(?found, "other portals of the target");
                *others.lock().unwrap_or_else(PoisonError::into_inner) = found;
            }
        });
    }

    /// Resets the unit, so that nothing old runs on it.
    async fn reset(&self, portal: &Host, session: &Session) -> Result<(), ConnectError> {
        let reset = session.reset_unit(unit::field(self.target.lun)).await;
        match reset.map_err(|loss| ConnectError::Session(portal.clone(), loss))? {
            TaskResponse::COMPLETE => {
                tracing::info!("the unit was reset: nothing old runs on it");
                Ok(())
            }
            // Without it nothing can be sent again: a write of the earlier session may land after it.
            refused => Err(ConnectError::NotReset(refused)),
        }
    }

    async fn open(&self, session: &Session) -> Result<Link, ConnectError> {
        Link::open(session.clone(), self.target.lun, self.options.read_only).await
    }

    /// Opens the unit on a later session. It is only asked questions until it has turned out to be the one that was there
    /// `before`: a registration, a reservation or a reset would disturb those who use another. Nor is a unit reset that
    /// has become another's.
    async fn open_again(
        &self,
        portal: &Host,
        session: &Session,
        before: &Device,
        reset: bool,
    ) -> Result<Link, ConnectError> {
        let mut link = self.in_time(portal, self.open_same(session, before)).await?;
        self.in_time(portal, self.confirm(&link)).await?;
        if reset {
            self.in_time(portal, self.reset(portal, session)).await?;
        }
        // Opening it again takes note of what the reset has made the unit report, and of what it told nobody who was not
        // registered.
        if reset || link.device().is_withheld {
            link = self.in_time(portal, self.open_same(session, before)).await?;
        }
        let prepared = async {
            // A path in standby says what the unit is, and does nothing else.
            if let Err(why) = link.unit().ask(Command::test_unit_ready()).await
                && why.is_outage()
            {
                return Err(why.into());
            }
            link.keep_promise(before).await?;
            Ok(link)
        };
        self.in_time(portal, prepared).await
    }

    /// Asks the unit what it is: it must be the one that was there `before`.
    async fn open_same(&self, session: &Session, before: &Device) -> Result<Link, ConnectError> {
        let link = self.open(session).await?;
        if let Some(what) = link.device().differs(before) {
            return Err(ConnectError::Changed(what));
        }
        match self.refuse_other(&link).await {
            Ok(()) => Ok(link),
            // The reservation of another keeps us from reading: it tells whose the volume is now.
            Err(conflict @ ConnectError::Unit(UnitError::Status(Status::ReservationConflict))) => {
                Err(self.reservation.confirm(link.unit()).await.err().unwrap_or(conflict))
            }
            Err(other) => Err(other),
        }
    }

    /// Refuses a volume that is not the one that the first link led to, as far as its bytes tell.
    async fn refuse_other(&self, link: &Link) -> Result<(), ConnectError> {
        let Some(identity) = self.identity() else { return Ok(()) };
        match identity.is_of(link).await? {
            true => Ok(()),
            false => Err(ConnectError::Changed("LUKS UUID")),
        }
    }

    /// What the volume is known by, if its bytes tell.
    pub(super) fn identity(&self) -> Option<Identity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on each link must lead to a volume with this identity.
    pub(super) fn identify(&self, identity: Identity) {
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = Some(identity);
    }

    /// Finds out whether the reservation or the mark on the volume is still ours, where there is one.
    async fn confirm(&self, link: &Link) -> Result<(), ConnectError> {
        self.reservation.confirm(link.unit()).await?;
        let Some(mark) = self.reservation.mark() else { return Ok(()) };
        mark.look(link).await.map_err(|not_there| match not_there {
            MarkError::Unread(why) => why.into(),
            MarkError::Replaced(by) => ConnectError::Replaced(by),
        })
    }

    /// One step to a unit, which may not take for ever.
    async fn in_time<T>(
        &self,
        portal: &Host,
        step: impl Future<Output = Result<T, ConnectError>>,
    ) -> Result<T, ConnectError> {
        let ended = tokio::time::timeout(self.opened_within, step).await;
        ended.unwrap_or_else(|_| Err(ConnectError::Slow(portal.clone(), self.opened_within)))
    }

    /// Whether what a target says in a session is authenticated: it is with a pinned key.
    pub(super) const fn is_secure(&self) -> bool {
        self.options.pinned.is_some()
    }

    /// How long nothing may be heard of a unit before it is asked how it is.
    pub(super) const fn idle(&self) -> Duration {
        self.options.timeouts.idle
    }

    /// Whether a session was given up because commands stalled, or the outage that began so is over.
    pub(super) fn note_stall(&self, stalled: bool) {
        match stalled {
            true => drop(self.stalls.fetch_add(1, Ordering::Relaxed)),
            false => self.stalls.store(0, Ordering::Relaxed),
        }
    }

    /// How long we let a target have us wait that asks for `wait`.
    pub(super) fn wait(&self, wait: Duration) -> Duration {
        if self.is_secure() { wait } else { wait.min(UNPROVEN_WAIT_MAX) }
    }

    /// What saves acknowledged changes of this unit when it is given up, if that was asked for.
    pub(super) fn replay_log(&self, link: &Link) -> Option<Writer> {
        let ReplayLogOptions { dir, volume, .. } = self.options.replay_log.as_ref()?;
        let opened = SystemTime::now().duration_since(UNIX_EPOCH);
        let (device, shape) = (link.device(), link.shape());
        let header = Header {
            volume: volume.clone(),
            target: self.target.name.as_str().to_owned(),
            lun: self.target.lun,
            serial: device.serial.clone(),
            vendor: device.standard.vendor.clone(),
            product: device.standard.product.clone(),
            size: shape.size,
            block_size: shape.block_size,
            opened: opened.map_or(0, |since| since.as_secs()),
            created: 0,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            key: self.reservation.key(),
            luks_uuid: None,
        };
        Some(Writer::new(dir.clone(), header))
    }

    /// How outages are met, by a unit that has a volatile cache or by one that has none.
    pub(super) fn settings(&self, cached: bool) -> Settings {
        let patience = self.options.reconnect_for;
        let salvage = match &self.options.replay_log {
            None => Salvage::Nothing,
            Some(options) if options.write_behind => Salvage::Submitted,
            Some(_) => Salvage::Answered,
        };
        // Where nothing is ever sent again, nor saved, nothing has to be kept.
        let sends_again = patience != Some(Duration::ZERO);
        let keeps = cached && (sends_again || salvage != Salvage::Nothing);
        Settings {
            patience,
            first_wait: FIRST_WAIT,
            longest_wait: self.options.reconnect_every,
            unflushed_max: keeps.then_some(self.options.unflushed_max),
            salvage,
        }
    }
}

/// Connects and logs in, for discovery if no target is named. Redirections are followed. The session takes the
/// place of the one in doubt.
pub(super) async fn log_in(
    portal: &Host,
    target: Option<&IscsiName>,
    options: &ConnectOptions,
    doubt: Option<&MaybeAlive>,
) -> Result<Session, ConnectError> {
    let isid = match options.isid {
        Some(isid) => isid,
        None => Isid::random(random()?, 0),
    };
    let mut portal = portal.clone();
    for _ in 0..=REDIRECTIONS_MAX {
        let config = Config {
            initiator: options.initiator.clone(),
            isid,
            target: target.cloned(),
            account: options.account.clone(),
            pinned: options.pinned.clone(),
            algorithms: options.algorithms.clone(),
            offer: Offer { max_connections: options.connections.most(), ..options.offer.clone() },
        };
        let error = match log_in_at(&portal, &config, options, doubt).await {
            Ok(session) => return Ok(session),
            Err(error) => error,
        };
        let Some(LoginError::Moved { address, .. }) = error.login() else { return Err(error) };
        portal = redirection(portal, address)?;
    }
    Err(ConnectError::Redirections(portal))
}

/// Where a portal sends us. Anyone on the path may have said so: it never leads out of a tunnel that ends on this
/// machine, nor from far away to what listens here.
fn redirection(portal: Host, address: &str) -> Result<Host, ConnectError> {
    let Some(to) = self::portal(address) else {
        return Err(ConnectError::Redirection { portal, to: address.to_owned() });
    };
    if discover::is_here(&portal) != discover::is_here(&to) {
        return Err(ConnectError::Tunnel { portal, to });
    }
    tracing::info!(from = %portal, %to, "redirected");
    Ok(to)
}

/// Tries the addresses of a portal until one leads to where we have to go.
async fn log_in_at(
    portal: &Host,
    config: &Config,
    options: &ConnectOptions,
    doubt: Option<&MaybeAlive>,
) -> Result<Session, ConnectError> {
    let mut elsewhere = Vec::new();
    loop {
        let socket = match dial(portal, &elsewhere, options.connect_timeout).await {
            Err(_) if !elsewhere.is_empty() => break,
            socket => socket?,
        };
        let address = socket.peer_addr();
        let session = begin(portal, socket, config.clone(), options).await?;
        if doubt.is_none_or(|doubt| session.replaces(&doubt.session)) {
            return Ok(session);
        }
        session.close().await;
        let Ok(address) = address else { break };
        elsewhere.push(address);
    }
    Err(ConnectError::OtherGroup(portal.clone()))
}

async fn begin(
    portal: &Host,
    socket: TcpStream,
    config: Config,
    options: &ConnectOptions,
) -> Result<Session, ConnectError> {
    let entropy = entropy()?;
    let origin = Instant::now();
    let machine = Initiator::start(config, entropy, options.timeouts, Time::ZERO);
    let connections = (options.connections, options.connect_timeout);
    Session::start(socket, portal.to_string(), origin, machine, connections)
        .await
        .map_err(|loss| ConnectError::Session(portal.clone(), loss))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target may answer pings all the time, and nothing else.
    #[tokio::test]
    async fn step_to_a_unit_that_does_not_end_is_given_up() {
        let portal = Host { name: "192.0.2.1".into(), port: 3260 };
        let name = |name| IscsiName::new(name).unwrap();
        let target = IscsiTarget {
            portal: portal.clone(),
            name: name("iqn.2026-11.dev.longhaul:disk"),
            lun: 0,
        };
        let options = ConnectOptions::new(name("iqn.2026-11.dev.longhaul:client"));
        let mut connector = Connector::new(target, &options).unwrap();
        connector.opened_within = Duration::from_millis(1);
        let step = connector.in_time(&portal, std::future::pending::<Result<(), _>>()).await;
        assert!(matches!(step, Err(ConnectError::Slow(..))), "{step:?}");
    }

    #[test]
    fn addresses_are_read_as_targets_write_them() {
        let host = |name: &str, port| Some(Host { name: name.into(), port });
        assert_eq!(portal("10.0.0.1:3261,1"), host("10.0.0.1", 3261));
        assert_eq!(portal("disk.example"), host("disk.example", 3260));
        assert_eq!(portal("[fe80::1]:3260,2"), host("fe80::1", 3260));
        for wrong in ["", ":3260", "[fe80::1", "host:port", "[::1]x", "host:99999"] {
            assert_eq!(portal(wrong), None, "{wrong}");
        }
    }
}
