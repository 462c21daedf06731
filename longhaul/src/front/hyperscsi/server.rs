//! The server on one link or several: its protocol machine, and a session with each target for each connection.
//!
//! One task polls all of it by hand, as everything it waits for may be ready at once, and owns all state of all
//! connections: there is no lock and no hop between tasks on the way of a command.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable, abortable};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use host::link;
use proto::hyperscsi::{
    Config, ConnectionId, Ended, Endpoint, Fill, Level, Outbox, Server as Machine, ServerEvent,
};
use proto::identity::PublicKey;
use proto::time::Time;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use super::connection::{Admitted, Connection, EndOfConnection, Managing, Refusal, admit};
use super::node::Node;
use crate::net::busy_poll::BusyPoll;
use crate::net::hyperscsi_link::{Wire, shown};
use crate::stop::Stop;

/// Connections that one client has at a time, by whatever ports: each may have data of 64 MiB under way to the server, which are
/// in memory until their last packet is there.
const CONNECTIONS_MAX: usize = 16;

/// How long sessions have to end when the server stops.
const STOP_MAX: Duration = Duration::from_secs(10);

/// How often it is noted for the status how connections are, as long as anything happens.
const NOTED_EVERY: Duration = Duration::from_millis(100);

/// A client that waits for its sessions: for those that it replaces to end.
type Admission = Pin<Box<dyn Future<Output = (ConnectionId, Result<Admitted, Refusal>)> + Send>>;

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
    connections: BTreeMap<ConnectionId, Connection>,
    admissions: FuturesUnordered<Abortable<Admission>>,
    /// Whose admissions these are.
    undecided: BTreeMap<ConnectionId, Undecided>,
    managing: FuturesUnordered<Managing>,
    /// Sessions that have ended, whose commands may still run.
    ending: JoinSet<()>,
    /// When it is noted again how connections are.
    note_at: Time,
    busy_poll: BusyPoll,
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
        // A client that wants checksums gets them.
        let config = Config { place, checksum: true, ..config };
        let machine = Machine::new(wire.now(), config, random);
        Ok(Self {
            node,
            wire,
            machine,
            connections: BTreeMap::new(),
            admissions: FuturesUnordered::new(),
            undecided: BTreeMap::new(),
            managing: FuturesUnordered::new(),
            ending: JoinSet::new(),
            note_at: Time::ZERO,
            busy_poll: BusyPoll::new(awake),
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
        for (id, connection) in std::mem::take(&mut self.connections) {
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
        let Self { wire, machine, busy_poll, connections, .. } = self;
        let clock = wire.clock();
        let mut each = |now, from, packet: &mut [u8]| machine.handle_packet(now, from, packet);
        connections.values().all(Connection::is_idle)
            && busy_poll.poll(cx, || clock.now(), || wire.receive_now(&mut each))
    }

    /// Whether anything was done.
    fn turn(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let machine = &mut self.machine;
        let mut any = self.wire.poll_recv(cx, |now, from, packet| {
            machine.handle_packet(now, from, packet);
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
            self.handle(cx, event);
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
        for (id, connection) in &self.connections {
            connection.note(&self.machine, *id);
        }
    }

    fn handle(&mut self, cx: &mut Context<'_>, event: ServerEvent) {
        let now = self.wire.now();
        match event {
            ServerEvent::Proven { connection, client, port, least, from } => {
                self.proven(connection, (client, port, least), from);
            }
            ServerEvent::Command { connection: id, request, command } => {
                let Some(connection) = self.connections.get_mut(&id) else { return };
                let unsent = |handles| self.machine.unsent(id, handles);
                if let Err(why) = connection.begin(cx, now, (request, command), unsent) {
                    self.end(id, &why);
                }
            }
            ServerEvent::TaskManagement { connection: id, request, device, function } => {
                let Some(connection) = self.connections.get_mut(&id) else { return };
                let sessions = self.node.sessions().clone();
                let managing = connection.manage(sessions, (id, request), device, function);
                self.managing.push(managing);
            }
            // There is no administration by this way.
            ServerEvent::Manage { connection, request, .. } => {
                self.machine.managed(now, connection, request, bytes::Bytes::new());
            }
            ServerEvent::Ended { connection, reason } => self.ended(connection, reason),
        }
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
        let connections = self.connections.values().map(|it| (it.client(), it.port()));
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
                    self.machine.accept(now, id, devices);
                    self.connections.insert(id, connection);
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

    /// Does what other sessions ask for, and answers commands; whether there was any of that.
    fn poll_connections(&mut self, cx: &mut Context<'_>) -> bool {
        let now = self.wire.now();
        let (mut any, mut over) = (false, Vec::new());
        for (id, connection) in &mut self.connections {
            if let Err(why) = connection.poll_messages(cx) {
                over.push((*id, why));
                continue;
            }
            loop {
                let unsent = |handles| self.machine.unsent(*id, handles);
                let Poll::Ready((request, reply)) = connection.poll_reply(cx, now, unsent) else {
                    break;
                };
                self.machine.complete(now, *id, request, reply);
                any = true;
            }
        }
        for (id, why) in over {
            any = true;
            self.end(id, &why);
        }
        any
    }

    fn end(&mut self, id: ConnectionId, why: &EndOfConnection) {
        self.machine.close(id, why.reason());
        if let Some(connection) = self.connections.remove(&id) {
            info!(peer = connection.peer(), client = %connection.client(), %why, "connection ended");
            connection.end(&mut self.ending);
        }
    }

    fn ended(&mut self, id: ConnectionId, reason: Ended) {
        self.forget_undecided(id);
        let Some(connection) = self.connections.remove(&id) else { return };
        let (peer, client) = (connection.peer(), connection.client());
        match reason {
            Ended::Violation(_) => warn!(peer, %client, %reason, "connection broken"),
            _ => info!(peer, %client, %reason, "connection ended"),
        }
        connection.end(&mut self.ending);
    }
}
