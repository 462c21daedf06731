//! The listener.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use proto::iscsi::login::target::PortalRules;
use proto::iscsi::name::IscsiName;
use proto::iscsi::sealed::Protection;
use proto::scsi::ports::PORT;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

use super::driver::Driver;
use super::login::{LoggedIn, LoginError, Outcome, join, log_in};
use super::logins::{LoginSlot, Logins};
use super::node::Node;
use super::pdu_stream::{PduStream, StreamError};
use crate::log_limiter::{LineLimiter, Permit};
use crate::net::tcp_tuning::send_at_once;
use crate::stop::Stop;

/// How long no connection is taken after the system could not give one, for want of file descriptors
/// mostly: trying again at once would only burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What sessions get beyond [`Limits::stop`](super::Limits::stop) for their last output.
const STOP_SLACK: Duration = Duration::from_secs(8);

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portal {
    /// The address; port 0 takes a free one.
    pub address: SocketAddr,
    /// Which of the node's portal groups it belongs to, and how sessions that come in here must be sealed.
    pub rules: PortalRules,
}

impl From<SocketAddr> for Portal {
    fn from(address: SocketAddr) -> Self {
        Self { address, rules: PortalRules { portal_group_tag: PORT, demanded: None } }
    }
}

/// Asks whether new connections are taken.
#[derive(Clone, Debug)]
pub struct AcceptProbe(mpsc::Sender<oneshot::Sender<()>>);

impl AcceptProbe {
    /// Whether they are; returns when the listener has got to say so, which it cannot while it hangs.
    pub async fn is_accepting(&self) -> bool {
        let (sender, answer) = oneshot::channel();
        self.0.send(sender).await.is_ok() && answer.await.is_ok()
    }
}

/// An iSCSI target that listens.
pub struct Server {
    node: Arc<Node>,
    accept_probe: (AcceptProbe, mpsc::Receiver<oneshot::Sender<()>>),
    listeners: Vec<(TcpListener, PortalRules)>,
    portals: Vec<SocketAddr>,
    /// What discovery tells: the portals with their groups.
    told: Arc<[(SocketAddr, u16)]>,
}

impl Server {
    /// Listens on every one of `portals`.
    pub async fn bind(
        portals: &[impl Copy + Into<Portal>],
        node: impl Into<Arc<Node>>,
    ) -> io::Result<Self> {
        let mut listeners = Vec::new();
        for &portal in portals {
            let Portal { address, rules } = portal.into();
            listeners.push((TcpListener::bind(address).await?, rules));
        }
        Self::on(listeners, node)
    }

    /// Takes connections from `listeners`, each of which belongs to a portal group of the node.
    pub fn on(
        listeners: Vec<(TcpListener, PortalRules)>,
        node: impl Into<Arc<Node>>,
    ) -> io::Result<Self> {
        let node = node.into();
        let groups = || listeners.iter().map(|(_, rules)| rules.portal_group_tag);
        if groups().any(|group| !node.has_port(group)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such portal group"));
        }
        let (sender, receiver) = mpsc::channel(1);
        let addresses = listeners.iter().map(|(listener, _)| listener.local_addr());
        let portals = addresses.collect::<Result<Vec<_>, _>>()?;
        let told = portals.iter().copied().zip(groups()).collect();
        Ok(Self { node, accept_probe: (AcceptProbe(sender), receiver), listeners, portals, told })
    }

    /// The same, which tells clients of these portals and their groups too: others serve the same targets there.
    #[must_use]
    pub fn with_others(mut self, others: &[(SocketAddr, u16)]) -> Self {
        self.told = self.told.iter().chain(others).copied().collect();
        self
    }

    /// Where it listens.
    #[must_use]
    pub fn portals(&self) -> &[SocketAddr] {
        &self.portals
    }

    /// What asks whether it takes connections, once it runs.
    #[must_use]
    pub fn accept_probe(&self) -> AcceptProbe {
        self.accept_probe.0.clone()
    }

    /// Serves until `stop` is called; then asks the initiators to log out, waits for them for a bounded
    /// time, and ends what is left. Says whether nothing was: else a write may be under way still that nobody waits for.
    pub async fn run(mut self, mut stop: Stop) -> bool {
        let mut connections = JoinSet::new();
        let mut logins = Logins::default();
        // Where descriptors have run out that goes on until others are closed.
        let failures = LineLimiter::of_retries();
        let session_stop = stop.clone();
        loop {
            tokio::select! {
                accepted = accept(&self.listeners) => match accepted {
                    Ok((socket, peer, rules)) if connections.len() < self.node.limits().connections => {
                        let node = Arc::clone(&self.node);
                        let portals = Arc::clone(&self.told);
                        let socket = (socket, peer, rules);
                        let login = logins.begin(peer, node.limits().logins);
                        let stop = session_stop.clone();
                        connections.spawn(connection(node, portals, socket, login, stop));
                        // What it has sent already counts before the next one can end it.
                        yield_now().await;
                    }
                    Ok((_, peer, _)) => {
                        if let Some(Permit { suppressed }) = self.node.log_limiter.permit(peer) {
                            warn!(%peer, suppressed, "too many connections: closed");
                        }
                    }
                    Err(error) => {
                        if let Some((Permit { suppressed }, _)) = failures.permit() {
                            warn!(%error, suppressed, "no connection could be taken");
                        }
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(ended) = connections.join_next() => report(ended),
                Some(asked) = self.accept_probe.1.recv() => drop(asked.send(())),
                () = stop.called() => break,
            }
        }
        // Nobody is taken any more, and nobody is told that they are.
        drop((self.listeners, self.accept_probe));
        let drained = timeout(self.node.limits().stop + STOP_SLACK, async {
            while let Some(ended) = connections.join_next().await {
                report(ended);
            }
        });
        let have_ended = drained.await.is_ok();
        if !have_ended {
            warn!(sessions = connections.len(), "sessions did not end in time: dropped");
        }
        have_ended
    }
}

/// The next connection on any portal.
async fn accept(
    listeners: &[(TcpListener, PortalRules)],
) -> io::Result<(TcpStream, SocketAddr, PortalRules)> {
    std::future::poll_fn(|cx| {
        let mut accepted = listeners.iter().map(|(listener, rules)| {
            listener.poll_accept(cx).map_ok(|(socket, peer)| (socket, peer, *rules))
        });
        accepted.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

/// A panic ends its session and nothing else.
fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        error!(%error, "a session broke down");
    }
}

async fn connection(
    node: Arc<Node>,
    portals: Arc<[(SocketAddr, u16)]>,
    (socket, peer, rules): (TcpStream, SocketAddr, PortalRules),
    (progress, mut given_up): LoginSlot,
    mut stop: Stop,
) {
    // Answers are small and awaited; they are put together here, not by the kernel.
    if let Err(error) = send_at_once(&socket) {
        return warn!(%peer, %error, "connection cannot be used");
    }
    let mut stream = PduStream::new(socket);
    let mut who = None;
    let outcome = tokio::select! {
        outcome = log_in(&node, &mut stream, rules, &mut who, &progress) => outcome,
        () = stop.called() => return,
        _ = &mut given_up => {
            if let Some(Permit { suppressed }) = node.log_limiter.permit(peer) {
                info!(%peer, suppressed, "login given up: there are too many at a time");
            }
            return;
        }
    };
    drop(given_up);
    match outcome {
        Ok(Outcome::Session(logged_in)) => {
            session(&node, portals, (stream, peer), *logged_in, stop).await;
        }
        Ok(Outcome::Connection(admission, place)) => {
            let tsih = place.session().number;
            if let Err(reason) = join(stream, *admission, place).await
                && let Some(Permit { suppressed }) = node.log_limiter.permit(peer)
            {
                info!(%peer, tsih, %reason, suppressed, "the connection was not added to its session");
            }
        }
        // Probes of load balancers and port scanners connect and leave.
        Err(LoginError::Stream(StreamError::Closed)) if who.is_none() => {}
        Err(reason) => {
            let initiator = who.as_ref().map(|who| who.initiator.as_str());
            let target = who.as_ref().map(|who| wanted(who.target.as_ref()));
            if let Some(Permit { suppressed }) = node.log_limiter.permit(peer) {
                info!(%peer, initiator, target, %reason, suppressed, "login failed");
            }
        }
    }
}

async fn session(
    node: &Node,
    portals: Arc<[(SocketAddr, u16)]>,
    (stream, peer): (PduStream, SocketAddr),
    logged_in: LoggedIn,
    stop: Stop,
) {
    let established = &logged_in.established;
    let initiator = established.initiator.clone();
    let target = established.target.clone();
    let target = wanted(target.as_ref());
    let tsih = established.tsih;
    let client = logged_in.handle.entry.identity.client.to_string();
    let seal = established.parameters.seal.map_or("none", Protection::name);
    if let Some(Permit { suppressed }) = node.log_limiter.permit(peer) {
        info!(%peer, initiator = initiator.as_str(), target, tsih, client, seal, suppressed, "logged in");
        let is_plain = established.target.is_some() && established.parameters.seal.is_none();
        if is_plain && !peer.ip().to_canonical().is_loopback() {
            warn!(
                %peer,
                initiator = initiator.as_str(),
                target,
                "session is not secure: whoever is on its way can read and change what is sent; give its client a \
                 `key`, or let it come by a tunnel"
            );
        }
    }
    match Driver::new(node, portals, stream, logged_in, stop) {
        Ok(driver) => {
            let (name, reason) = (initiator.as_str(), driver.run().await);
            match node.log_limiter.permit(peer) {
                None => {}
                Some(Permit { suppressed }) if reason.is_attack() => {
                    warn!(%peer, initiator = name, target, tsih, %reason, suppressed, "session broken");
                }
                Some(Permit { suppressed }) => {
                    info!(%peer, initiator = name, target, tsih, %reason, suppressed, "session ended");
                }
            }
        }
        Err(reason) => info!(%peer, %reason, "session not begun"),
    }
}

/// What a session is for, as the log names it.
fn wanted(target: Option<&IscsiName>) -> &str {
    target.map_or("discovery", IscsiName::as_str)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use futures_util::FutureExt as _;
    use proto::iscsi::login::policy::Policy;

    use super::*;
    use crate::front::iscsi::node::Limits;
    use crate::stop::Stopper;
    use crate::target::lun::TargetDevice;

    #[tokio::test]
    async fn the_pulse_beats_while_connections_are_taken() {
        let node = Node::new(std::iter::empty::<TargetDevice>(), Policy::open);
        let server = Server::bind(&[SocketAddr::from(([127, 0, 0, 1], 0))], node).await.unwrap();
        let accept_probe = server.accept_probe();
        assert_eq!(accept_probe.is_accepting().now_or_never(), None, "nobody takes them yet");
        let (stopper, stop) = Stopper::new();
        let run = tokio::spawn(server.run(stop));
        assert!(accept_probe.is_accepting().await);
        assert!(accept_probe.is_accepting().await);
        stopper.call();
        run.await.unwrap();
        assert!(!accept_probe.is_accepting().await);
    }

    /// The login request of a discovery session (RFC 7143, 11.12), which goes on to full feature phase at once.
    fn login_request() -> Vec<u8> {
        let text = b"InitiatorName=iqn.2026-01.example:i\0SessionType=Discovery\0";
        let mut bytes = vec![0; 48];
        bytes[..2].copy_from_slice(&[0x43, 0x87]);
        bytes[7] = u8::try_from(text.len()).unwrap();
        bytes.extend_from_slice(text);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// They wait in the queue of the socket when the server has its turn.
    #[tokio::test]
    async fn login_that_has_begun_counts_before_the_next_connection_is_taken() {
        let node = Node::new(std::iter::empty::<TargetDevice>(), Policy::open)
            .with_limits(Limits { logins: 1, ..Limits::default() });
        let server = Server::bind(&[SocketAddr::from(([127, 0, 0, 1], 0))], node).await.unwrap();
        let portal = server.portals()[0];
        let mut honest = std::net::TcpStream::connect(portal).unwrap();
        honest.write_all(&login_request()).unwrap();
        let _silent: Vec<_> =
            (0..8).map(|_| std::net::TcpStream::connect(portal).unwrap()).collect();
        let (stopper, stop) = Stopper::new();
        let run = tokio::spawn(server.run(stop));
        let answered = tokio::task::spawn_blocking(move || {
            let mut bhs = [0; 48];
            honest.read_exact(&mut bhs).map(|()| bhs)
        });
        let bhs = answered.await.unwrap().expect("the login is answered");
        assert_eq!((bhs[0], bhs[36]), (0x23, 0), "a login response that says success");
        stopper.call();
        run.await.unwrap();
    }
}
