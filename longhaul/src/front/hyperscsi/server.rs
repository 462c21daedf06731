//! The server on one link or several: its protocol machine, and a session with each target for each connection.
//!
//! One task polls all of it by hand, as everything it waits for may be ready at once, and owns all state of all
//! connections: there is no lock and no hop between tasks on the way of a command.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io;
use std::num::NonZeroU16;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable, abortable};
use futures_util::stream::StreamExt as _;
use host::link;
use proto::hyperscsi::{
    ChangeStep, Config, ConnectionId, Ended, Endpoint, Fill, Level, Outbox, Request,
    Server as Machine, ServerEvent,
};
use proto::identity::PublicKey;
use proto::time::Time;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};
use volume::FutureSet;

use super::connection::{Admitted, Connection, EndOfConnection, Managing, Refusal, admit};
use super::node::Node;
use super::wakers::Woken;
use crate::net::busy_poll::BusyPoll;
use crate::net::hyperscsi_link::{Wire, shown};
use crate::stop::Stop;

/// Connections that one client has at a time, by whatever ports: each may have data of 64 MiB under way to the server, which are
/// in memory until their last packet is there.
const CONNECTIONS_MAX: usize = 16;

/// The most packets of a window, if a client wants such.
const WINDOW_MAX: Option<NonZeroU16> = NonZeroU16::new(1024);

/// How long sessions have to end when the server stops.
const STOP_MAX: Duration = Duration::from_secs(10);

/// How often it is noted for the status how connections are, as long as anything happens.
const NOTED_EVERY: Duration = Duration::from_millis(100);

/// A client that waits for its sessions: for those that it replaces to end.
type Admission = Pin<Box<dyn Future<Output = (ConnectionId, Result<Admitted, Refusal>)> + Send>>;

/// A connection, and the waker that it is polled with.
struct Polled {
    connection: Connection,
    waker: Waker,
}

/// A client about which nothing was decided yet.
struct Undecided {
    client: PublicKey,
    port: u64,
    peer: String,
    abort: AbortHandle,
}

/// A HyperSCSI server on links of one kind, which its connections share.
pub struct Server {
    node: Arc<Node>,
    wire: Wire,
    machine: Machine,
    connections: BTreeMap<ConnectionId, Polled>,
    /// Those that have something to do.
    woken: Arc<Woken>,
    /// Those of which commands run.
    busy: BTreeSet<ConnectionId>,
    /// How often connections were polled.
    #[cfg(test)]
    polls: u64,
    admissions: FutureSet<Abortable<Admission>>,
    /// Whose admissions these are.
    undecided: BTreeMap<ConnectionId, Undecided>,
    managing: FutureSet<Managing>,
    /// Sessions that have ended, whose commands may still run.
    ending: JoinSet<()>,
    /// When it is noted again how connections are.
    note_at: Time,
    busy_poll: BusyPoll,
    /// How many commands clients seem to have outstanding.
    depth: u32,
}

/// The addresses of links, as one text.
fn names(wire: &Wire) -> String {
    wire.locals().map(|local| local.to_string()).collect::<Vec<_>>().join(" ")
}

impl Server {
    /// Serves `node` on `links`, which are polled for as long before the server sleeps, where that pays.
    pub fn new(
        node: Arc<Node>,
        (links, awake): (Vec<link::Link>, Duration),
        config: Config,
        random: Fill,
    ) -> io::Result<Self> {
        let wire = Wire::new(links)?;
        // Another server of this identity resets nothing of this one.
        let place = names(&wire).into_bytes().into();
        // A client that wants checksums, or whole windows, gets them.
        let config = Config { place, checksum: true, window: WINDOW_MAX, ..config };
        let machine = Machine::new(wire.now(), config, random);
        Ok(Self {
            node,
            wire,
            machine,
            connections: BTreeMap::new(),
            woken: Arc::default(),
            busy: BTreeSet::new(),
            #[cfg(test)]
            polls: 0,
            admissions: FutureSet::new(),
            undecided: BTreeMap::new(),
            managing: FutureSet::new(),
            ending: JoinSet::new(),
            note_at: Time::ZERO,
            busy_poll: BusyPoll::new(awake),
            depth: 0,
        })
    }

    /// Where it listens.
    pub fn locals(&self) -> impl Iterator<Item = link::Address> {
        self.wire.locals()
    }

    /// Serves until `stop` is called, then ends all sessions. Says whether none of their commands runs any more.
    pub async fn run(mut self, mut stop: Stop) -> bool {
        let broken = tokio::select! {
            broken = poll_fn(|cx| self.poll(cx)) => Some(broken),
            () = stop.called() => None,
        };
        if let Some(why) = broken {
            let link = names(&self.wire);
            tracing::error!(link, %why, "the link broke: nothing is served there any more");
        }
        self.close_all();
        // The word that it is over has to leave; who does not hear it finds out by itself.
        let (wire, machine) = (&mut self.wire, &mut self.machine);
        let mut transmit = |now, outbox: &mut dyn Outbox| machine.transmit(now, outbox);
        let _ = poll_fn(|cx| Poll::Ready(wire.poll_send(cx, &mut transmit))).await;
        let ended = async { while self.ending.join_next().await.is_some() {} };
        timeout(STOP_MAX, ended).await.is_ok()
    }

    fn close_all(&mut self) {
        for (id, Polled { connection, .. }) in std::mem::take(&mut self.connections) {
            self.machine.close(id, Ended::Closed);
            connection.end(&mut self.ending);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            match self.turn(cx) {
                Err(why) => return Poll::Ready(why),
                Ok(true) => {}
                Ok(false) if self.busy_poll(cx) => {}
                Ok(false) => return Poll::Pending,
            }
        }
    }

    /// Nothing is left to do. The answers of units take their time; a client may be back at once, so the links are polled a few
    /// times. Whether something has arrived.
    fn busy_poll(&mut self, cx: &mut Context<'_>) -> bool {
        let Self { wire, machine, busy_poll, busy, .. } = self;
        let clock = wire.clock();
        let mut each =
            |now, from, ecn, packet: &mut [u8]| machine.handle_packet(now, from, ecn, packet);
        busy.is_empty() && busy_poll.poll(cx, || clock.now(), || wire.receive_now(&mut each))
    }

    /// Whether anything was done.
    fn turn(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let machine = &mut self.machine;
        let mut any = self.wire.poll_recv(cx, |now, from, ecn, packet| {
            machine.handle_packet(now, from, ecn, packet);
        })?;
        if any {
            self.busy_poll.ends(self.wire.now());
        }
        if self.wire.poll_deadline(cx, self.machine.next_deadline(), self.machine.pace()) {
            self.machine.handle_timeout(self.wire.now());
            // While the link takes nothing, what is due to be sent stays due.
            any |= !self.wire.is_blocked();
        }
        while let Some(event) = self.machine.poll_event() {
            self.handle(event);
            any = true;
        }
        // Commands that were aborted are answered before those who have aborted them.
        any |= self.poll_admissions(cx) | self.poll_connections(cx) | self.poll_managing(cx);
        while let Poll::Ready(Some(_)) = self.ending.poll_join_next(cx) {}
        let machine = &mut self.machine;
        any |= self.wire.poll_send(cx, |now, outbox| machine.transmit(now, outbox))?;
        self.note();
        Ok(any)
    }

    /// Notes for the status how connections are, if that is some time ago.
    fn note(&mut self) {
        let now = self.wire.now();
        if now < self.note_at {
            return;
        }
        self.note_at = now + NOTED_EVERY;
        for (link, losses) in self.wire.losses() {
            self.node.note_losses(link.to_string(), losses);
        }
        for (id, Polled { connection, .. }) in &self.connections {
            connection.note(&self.machine, *id);
        }
    }

    fn handle(&mut self, event: ServerEvent) {
        let now = self.wire.now();
        match event {
            ServerEvent::Proven { connection, client, port, least, from } => {
                self.proven(connection, (client, port, least), from);
            }
            ServerEvent::Command { connection: id, request, command } => {
                self.expect(request);
                let Some(Polled { connection, waker }) = self.connections.get_mut(&id) else {
                    return;
                };
                let (cx, unsent) =
                    (&mut Context::from_waker(waker), |handles| self.machine.unsent(id, handles));
                match connection.begin(cx, now, (request, command), unsent) {
                    Ok(()) => self.woken.insert(id),
                    Err(why) => self.end(id, &why),
                }
            }
            ServerEvent::TaskManagement { connection: id, request, device, function } => {
                let Some(Polled { connection, .. }) = self.connections.get_mut(&id) else { return };
                self.woken.insert(id);
                let sessions = self.node.sessions().clone();
                let managing = connection.manage(sessions, (id, request), device, function);
                self.managing.push(managing);
            }
            // There is no administration by this way.
            ServerEvent::Manage { connection, request, .. } => {
                self.machine.managed(now, connection, request, bytes::Bytes::new());
            }
            ServerEvent::Changed { connection: id, step } => self.changed(id, step),
            ServerEvent::Ended { connection, reason } => self.ended(connection, reason),
        }
    }

    /// A client takes the lowest slot that is free, so that the one of its command says how many others are not: at least so
    /// many, since any of them may be the one that was answered.
    fn expect(&mut self, request: Request) {
        self.depth = self.depth.saturating_sub(1).max(request.slot.into());
        self.busy_poll.expect(self.depth);
    }

    fn proven(
        &mut self,
        id: ConnectionId,
        (client, port, least): (PublicKey, u64, Level),
        from: Endpoint,
    ) {
        // Only the last one of a port can be meant.
        let older = self.undecided.iter().filter(|(_, it)| (it.client, it.port) == (client, port));
        for older in older.map(|(older, _)| *older).collect::<Vec<_>>() {
            self.machine.close(older, Ended::Replaced);
            self.forget_undecided(older);
        }
        if self.others_of(client, port) >= CONNECTIONS_MAX {
            let peer = shown(from);
            warn!(peer, %client, "refused: the client has as many connections as it may have");
            return self.machine.close(id, Ended::Full);
        }
        let (node, peer) = (Arc::clone(&self.node), shown(from));
        let shown = peer.clone();
        let admission: Admission = Box::pin(async move {
            let admitted = admit(&node, (client, port, least), shown).await;
            (id, admitted)
        });
        let (admission, abort) = abortable(admission);
        self.admissions.push(admission);
        self.undecided.insert(id, Undecided { client, port, peer, abort });
    }

    /// The connections of a client by other ports than this, which one by this replaces.
    fn others_of(&self, client: PublicKey, port: u64) -> usize {
        let connections = self.connections.values().map(|it| &it.connection);
        let connections = connections.map(|it| (it.client(), it.port()));
        let undecided = self.undecided.values().map(|it| (it.client, it.port));
        let is_other = |it: &(PublicKey, u64)| it.0 == client && it.1 != port;
        connections.chain(undecided).filter(is_other).count()
    }

    /// The connection is over before anything was decided: so is its admission, with the sessions that it has made.
    fn forget_undecided(&mut self, id: ConnectionId) {
        if let Some(undecided) = self.undecided.remove(&id) {
            undecided.abort.abort();
        }
    }

    fn poll_admissions(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready(Some(admitted)) = self.admissions.poll_next_unpin(cx) {
            any = true;
            let Ok((id, admitted)) = admitted else { continue };
            let Some(Undecided { client, peer, .. }) = self.undecided.remove(&id) else { continue };
            let now = self.wire.now();
            match admitted {
                Ok(Admitted { connection, devices }) => {
                    info!(peer, %client, "connected");
                    if devices.iter().any(|device| device.level == Level::None) {
                        warn!(peer, %client, "not protected: whoever is on the path reads and changes data");
                    }
                    self.machine.accept(now, id, devices);
                    let waker = self.woken.waker(id);
                    self.connections.insert(id, Polled { connection, waker });
                    self.woken.insert(id);
                }
                Err(Refusal::Full) => {
                    warn!(peer, %client, "refused: the client has as many sessions as it may have");
                    self.machine.close(id, Ended::Full);
                }
                Err(Refusal::Paused) => {
                    info!(peer, %client, "refused: the client is paused");
                    self.machine.close(id, Ended::Paused);
                }
                Err(Refusal::Unknown) => self.machine.refuse(now, id),
            }
        }
        any
    }

    fn poll_managing(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready(Some((id, request, response))) = self.managing.poll_next_unpin(cx) {
            any = true;
            self.machine.task_managed(self.wire.now(), id, request, response);
        }
        any
    }

    /// Does what other sessions ask for, and answers commands, of the connections that were woken or of which packets have come,
    /// since those may have taken answers; whether there was any of that.
    fn poll_connections(&mut self, cx: &Context<'_>) -> bool {
        let now = self.wire.now();
        let (mut any, mut over) = (false, Vec::new());
        let mut ids = self.woken.take(cx);
        ids.extend(self.machine.take_touched());
        for id in ids {
            let Some(Polled { connection, waker }) = self.connections.get_mut(&id) else {
                continue;
            };
            #[cfg(test)]
            {
                self.polls += 1;
            }
            let cx = &mut Context::from_waker(waker);
            if let Err(why) = connection.poll_messages(cx) {
                over.push((id, why));
                continue;
            }
            if let Some(devices) = connection.poll_demanded(&self.node) {
                self.machine.change_devices(now, id, devices);
                any = true;
            }
            loop {
                let unsent = |handles| self.machine.unsent(id, handles);
                let Poll::Ready((request, reply)) = connection.poll_reply(cx, now, unsent) else {
                    break;
                };
                self.machine.complete(now, id, request, reply);
                any = true;
            }
            match connection.is_idle() {
                true => self.busy.remove(&id),
                false => self.busy.insert(id),
            };
        }
        for (id, why) in over {
            any = true;
            self.end(id, &why);
        }
        any
    }

    /// The client has answered a re-authentication that changes levels.
    fn changed(&mut self, id: ConnectionId, step: ChangeStep) {
        let Some(Polled { connection, .. }) = self.connections.get_mut(&id) else { return };
        let (peer, client) = (connection.peer().to_owned(), connection.client());
        match connection.changed(&self.node, step) {
            Ok(()) if step == ChangeStep::Begun => {}
            Ok(()) if step == ChangeStep::Complete && connection.is_unprotected() => {
                warn!(peer, %client, "not protected: whoever is on the path reads and changes data");
            }
            Ok(()) => {
                let is_taken = step == ChangeStep::Complete;
                info!(peer, %client, is_taken, "re-authenticated with another level");
            }
            Err(why) => self.end(id, &why),
        }
    }

    fn end(&mut self, id: ConnectionId, why: &EndOfConnection) {
        self.machine.close(id, why.reason());
        self.busy.remove(&id);
        if let Some(Polled { connection, .. }) = self.connections.remove(&id) {
            info!(peer = connection.peer(), client = %connection.client(), %why, "connection ended");
            connection.end(&mut self.ending);
        }
    }

    fn ended(&mut self, id: ConnectionId, reason: Ended) {
        self.forget_undecided(id);
        self.busy.remove(&id);
        let Some(Polled { connection, .. }) = self.connections.remove(&id) else { return };
        let (peer, client) = (connection.peer(), connection.client());
        match reason {
            Ended::Violation(_) => warn!(peer, %client, %reason, "connection broken"),
            _ => info!(peer, %client, %reason, "connection ended"),
        }
        connection.end(&mut self.ending);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use bytes::Bytes;
    use proto::hyperscsi::{
        Address, Client, ClientEvent, Command, Ecn, Handle, Level, LinkId, Remote, SITE_KEY_LEN,
        SiteKey, TaskAttribute,
    };
    use proto::identity::Identity;
    use proto::iscsi::login::policy::{Policy, UnitName};
    use proto::iscsi::name::IscsiName;
    use proto::scsi::ports::{AccessState, PORT, Port};
    use tokio::net::UdpSocket;
    use tokio::time::Instant;
    use volume::store::memory::Memory;

    use super::super::Offering;
    use super::*;
    use crate::ciphers::AES_FIRST;
    use crate::front::iscsi;
    use crate::target::lun::{Options, TargetDevice};

    const TARGET: &str = "iqn.2026-11.dev.longhaul:disk";

    fn random() -> Fill {
        Box::new(|buffer| getrandom::fill(buffer).unwrap())
    }

    fn config() -> Config {
        let identity = Identity::fresh(&mut random());
        Config::ip(identity, SiteKey::from_bytes([1; SITE_KEY_LEN]), AES_FIRST)
    }

    fn server() -> (Server, SocketAddr) {
        let unit = (0, Arc::new(Memory::new(1 << 20, 512)) as _, Options::default());
        let device = Arc::new(TargetDevice::new(TARGET, [unit]));
        let target = IscsiName::new(TARGET).unwrap();
        let beside = iscsi::Node::new(vec![Arc::clone(&device)], Policy::open);
        let offering = Offering {
            devices: vec![device],
            policy: Policy::open(vec![target.clone()]),
            volumes: BTreeMap::from([("disk".to_owned(), UnitName { target, lun: 0 })]),
            access: BTreeMap::new(),
            least: Level::Encrypt,
        };
        let ports = vec![Port::new(PORT, AccessState::Optimized)];
        let node = Arc::new(Node::new(offering, ports, 64 << 20, &beside));
        let links = vec![link::Udp::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap().into()];
        let server = Server::new(node, (links, Duration::ZERO), config(), random()).unwrap();
        let Some(link::Address::Ip { remote, .. }) = server.locals().next() else {
            panic!("UDP");
        };
        (server, remote)
    }

    /// A client by its machine alone.
    struct Peer {
        socket: UdpSocket,
        server: SocketAddr,
        machine: Client,
        origin: Instant,
    }

    impl Peer {
        async fn connect(server: SocketAddr) -> Self {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let remote = Remote { endpoint: endpoint(server), pin: None };
            let machine = Client::new(Time::ZERO, config(), remote, random());
            let mut peer = Self { socket, server, machine, origin: Instant::now() };
            peer.until(|event| matches!(event, ClientEvent::Connected { .. })).await;
            peer
        }

        fn now(&self) -> Time {
            Time::from_origin(self.origin.elapsed())
        }

        async fn until(&mut self, is_it: impl Fn(&ClientEvent) -> bool) {
            loop {
                let now = self.now();
                self.machine.handle_timeout(now);
                while let Some(packet) = self.machine.poll_transmit(now) {
                    self.socket.send_to(&packet.bytes, self.server).await.unwrap();
                }
                while let Some(event) = self.machine.poll_event() {
                    if is_it(&event) {
                        return;
                    }
                }
                let wait =
                    self.machine.next_deadline().map_or(Duration::from_secs(1), |at| at - now);
                let mut packet = [0; 9000];
                if let Ok(received) = timeout(wait, self.socket.recv(&mut packet)).await {
                    let (now, len) = (self.now(), received.unwrap());
                    self.machine.handle_packet(
                        now,
                        endpoint(self.server),
                        Ecn::NotEct,
                        &mut packet[..len],
                    );
                }
            }
        }

        async fn reads(&mut self) {
            let command = Command {
                device: Handle(0),
                cdb: Bytes::from_static(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
                data_out: Bytes::new(),
                data_in_len: 512,
                attribute: TaskAttribute::Simple,
                priority: 0,
            };
            let id = self.machine.submit(self.now(), command).unwrap();
            self.until(|event| matches!(event, ClientEvent::Completed(of, _) if *of == id)).await;
        }
    }

    fn endpoint(address: SocketAddr) -> Endpoint {
        Endpoint { link: LinkId::default(), address: Address::Ip(address) }
    }

    #[tokio::test]
    async fn slot_of_a_command_tells_how_many_are_outstanding() {
        let (mut server, _) = server();
        let mut depth = |slot| {
            server.expect(Request { slot, seq: 0 });
            server.depth
        };
        assert_eq!([0, 0, 0].map(&mut depth), [0, 0, 0], "one at a time");
        assert_eq!([31, 4, 17, 30].map(&mut depth), [31, 30, 29, 30], "any of them was answered");
        assert_eq!((0..40).map(|_| depth(0)).last(), Some(0));
    }

    /// What a command costs does not grow with the connections beside its own.
    #[tokio::test]
    async fn quiet_connections_are_not_polled() {
        const QUIET: u64 = 40;
        const READS: u64 = 50;
        let (mut server, address) = server();
        let connect = async {
            let mut peers = Vec::new();
            for _ in 0..=QUIET {
                peers.push(Peer::connect(address).await);
            }
            peers
        };
        let mut peers = tokio::select! {
            broken = poll_fn(|cx| server.poll(cx)) => panic!("{broken}"),
            peers = connect => peers,
        };
        assert_eq!(server.connections.len() as u64, QUIET + 1);
        let before = server.polls;
        let reads = async {
            for _ in 0..READS {
                peers[0].reads().await;
            }
        };
        tokio::select! {
            broken = poll_fn(|cx| server.poll(cx)) => panic!("{broken}"),
            () = reads => {}
        }
        // A request, its end, and what acknowledges its answer.
        let polls = server.polls - before;
        assert!(polls < READS * 8, "{polls} polls for {READS} commands");
    }
}
