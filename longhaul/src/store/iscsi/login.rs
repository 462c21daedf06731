//! From an address to a session that is logged in.

use std::time::{Duration, Instant};

use proto::iscsi::initiator::{Fault, Initiator};
use proto::iscsi::keys::Offer;
use proto::iscsi::login::initiator::{Config, LoginError};
use proto::iscsi::name::{IscsiName, Isid};
use proto::time::Time;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::ConnectOptions;
use super::dial::dial;
use super::error::SessionError;
use super::portal::{is_here, portal as read_portal};
use super::random::{entropy, random};
use super::session::{Loss, Session};
use crate::uri::Host;

/// How often a target may send us elsewhere before we stop going there.
const REDIRECTIONS_MAX: u32 = 4;

/// Connects and logs in, for discovery if no target is named. Redirections are followed. The session takes the
/// place of the one whose writes are uncertain.
pub(super) async fn log_in(
    portal: &Host,
    target: Option<&IscsiName>,
    options: &ConnectOptions,
    uncertain: Option<&Session>,
) -> Result<Session, SessionError> {
    let isid = match options.isid {
        Some(isid) => isid,
        None => Isid::random(random()?, 0),
    };
    let mut portal = portal.clone();
    // Redirections and addresses share the time: the caller waits for the whole.
    let began = Instant::now();
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
        let error = match log_in_at(&portal, &config, (options, began), uncertain).await {
            Ok(session) => return Ok(session),
            Err(error) => error,
        };
        let Some(LoginError::Moved { address, .. }) = error.login() else { return Err(error) };
        portal = redirection(portal, address)?;
    }
    Err(SessionError::Redirections(portal))
}

/// Where a portal sends us. Anyone on the path may have said so: it never leads out of a tunnel that ends on this
/// machine, nor from far away to what listens here.
fn redirection(portal: Host, address: &str) -> Result<Host, SessionError> {
    let Some(to) = read_portal(address) else {
        return Err(SessionError::Redirection { portal, to: address.to_owned() });
    };
    if is_here(&portal) != is_here(&to) {
        return Err(SessionError::Tunnel { portal, to });
    }
    tracing::info!(from = %portal, %to, "redirected");
    Ok(to)
}

/// Tries the addresses of a portal until one leads to where we have to go.
async fn log_in_at(
    portal: &Host,
    config: &Config,
    (options, began): (&ConnectOptions, Instant),
    uncertain: Option<&Session>,
) -> Result<Session, SessionError> {
    let mut elsewhere = Vec::new();
    loop {
        let dialled = dial(portal, &elsewhere, options.connect_timeout);
        let late = |_| SessionError::Timeout(portal.clone(), options.timeouts.login);
        let socket = match timeout(left(options, began), dialled).await.map_err(late).flatten() {
            Err(_) if !elsewhere.is_empty() => break,
            socket => socket?,
        };
        let address = socket.peer_addr();
        let session = begin(portal, socket, config.clone(), (options, began)).await?;
        if uncertain.is_none_or(|before| session.replaces(before)) {
            return Ok(session);
        }
        session.close().await;
        let Ok(address) = address else { break };
        elsewhere.push(address);
    }
    Err(SessionError::OtherGroup(portal.clone()))
}

/// What is left of the time for a login that began then.
fn left(options: &ConnectOptions, began: Instant) -> Duration {
    options.timeouts.login.saturating_sub(began.elapsed())
}

async fn begin(
    portal: &Host,
    socket: TcpStream,
    config: Config,
    (options, began): (&ConnectOptions, Instant),
) -> Result<Session, SessionError> {
    let entropy = entropy()?;
    // The machine ends what takes too long since then: a session that is only dropped goes on to log in, and would end the
    // one that comes after it.
    let machine = Initiator::start(config, entropy, options.timeouts, Time::ZERO);
    let connections = (options.connections, options.connect_timeout);
    let started = Session::start(socket, portal.to_string(), began, machine, connections).await;
    started.map_err(|loss| match &*loss {
        Loss::Fault(Fault::LoginTimeout) => {
            SessionError::Silent(portal.clone(), options.timeouts.login)
        }
        _ => SessionError::Session(portal.clone(), loss),
    })
}
