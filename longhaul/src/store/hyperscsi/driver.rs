//! The task of a session: it owns the link and the protocol machine, and polls all that it waits for by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use proto::hyperscsi::{
    Aead, Algorithm, Client, ClientEvent, Device, Endpoint, Handle, PathState, PathStats, Reply,
    RequestId, SLOTS, SubmitError, TaskAttribute, TaskFunction, TaskResponse,
};
use proto::scsi::cdb::traits_of;
use proto::scsi::command::{Command, Transfer};
use proto::scsi::{DeviceType, Residual};
use proto::time::Time;
use tokio::sync::{mpsc, oneshot};

use super::Server;
use super::error::Loss;
use super::session::{Ended, Request, Shared, warn_of_level};
use super::silence::Listener;
use super::stalls::{Sent, Stalls};
use crate::net::busy_poll::BusyPoll;
use crate::net::hyperscsi_link::{Wire, shown};
use crate::store::scsi::ResetAnswer;
use crate::task::unless_broken;

/// Requests under way and waiting: more would only wait in the machine.
const UNDER_WAY_MAX: usize = 2 * SLOTS as usize;

/// How long the links are polled for an answer before the task sleeps, where answers come that soon.
const AWAKE: Duration = Duration::from_micros(100);

/// What a session uses of its connection.
pub(super) struct Choice {
    pub(super) device: Handle,
    /// What is asked for.
    pub(super) receiver: mpsc::Receiver<Request>,
    /// How long what is asked for may take.
    pub(super) stalls: Stalls,
}

/// A connection that is there.
pub(super) struct Ready {
    /// What it may use.
    pub(super) devices: Vec<Device>,
    /// The most data of a command.
    pub(super) data_max: u32,
    /// How data are compressed.
    pub(super) compression: Option<Algorithm>,
    /// The cipher of packets.
    pub(super) cipher: Option<Aead>,
    /// Data have checksums.
    pub(super) has_checksum: bool,
    /// Whom to tell which of the devices is wanted.
    pub(super) choose: oneshot::Sender<Choice>,
}

/// Who waits for a request.
enum Waiting {
    Command { done: oneshot::Sender<Result<Ended, SubmitError>>, operation: u8, sent: Sent },
    Reset(oneshot::Sender<ResetAnswer>),
}

/// What the task of a session owns.
pub(super) struct Driver {
    server: Server,
    wire: Wire,
    machine: Client,
    /// Where the server is beside the place where it was found.
    paths: Vec<Endpoint>,
    /// What was last told of each path.
    told: Vec<PathState>,
    shared: Arc<Shared>,
    listener: Listener,
    ready: Option<oneshot::Sender<Ready>>,
    choice: Option<oneshot::Receiver<Choice>>,
    receiver: Option<mpsc::Receiver<Request>>,
    device: Handle,
    /// Once a device is chosen.
    stalls: Option<Stalls>,
    waiting: BTreeMap<RequestId, Waiting>,
    /// Who waits until the requests have ended that were under way when it asked.
    settles: Vec<(BTreeSet<RequestId>, oneshot::Sender<()>)>,
    disconnects: Vec<oneshot::Sender<()>>,
    /// It is to disconnect when nothing is under way any more.
    is_closing: bool,
    busy_poll: BusyPoll,
}

impl Driver {
    pub(super) fn new(
        server: Server,
        (wire, machine, paths): (Wire, Client, Vec<Endpoint>),
        shared: Arc<Shared>,
        ready: oneshot::Sender<Ready>,
    ) -> Self {
        Self {
            server,
            wire,
            machine,
            paths,
            told: Vec::new(),
            shared,
            listener: Listener::default(),
            ready: Some(ready),
            choice: None,
            receiver: None,
            device: Handle::CONNECTION,
            stalls: None,
            waiting: BTreeMap::new(),
            settles: Vec::new(),
            disconnects: Vec::new(),
            is_closing: false,
            busy_poll: BusyPoll::new(AWAKE),
        }
    }

    /// Runs the session to its end.
    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let loss = {
            let mut abandoned = pin!(shared.abandoned.notified());
            let driven = poll_fn(|cx| match abandoned.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Loss::Abandoned),
                Poll::Pending => self.poll(cx),
            });
            unless_broken(driven).await.unwrap_or(Loss::Broken)
        };
        match &loss {
            Loss::Disconnected => tracing::debug!(server = %self.server, "disconnected"),
            // Whoever connects is told why it failed; there is nothing to lose yet.
            loss if self.receiver.is_none() => {
                tracing::debug!(server = %self.server, "no session: {loss}");
            }
            loss => tracing::info!(server = %self.server, "session lost: {loss}"),
        }
        // Set before the requests are dropped with the driver, so that each finds why.
        let _ = shared.lost.set(Arc::new(loss));
        let receiver = self.receiver.take();
        drop(self);
        // A request for which there was room when the session ended may come into the channel only afterwards.
        if let Some(mut receiver) = receiver {
            receiver.close();
            while receiver.recv().await.is_some() {}
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Loss> {
        loop {
            match self.turn(cx) {
                Err(loss) => return Poll::Ready(loss),
                Ok(true) => {}
                Ok(false) if self.busy_poll(cx) => {}
                Ok(false) => return Poll::Pending,
            }
        }
    }

    /// Nothing is left to do but to wait for answers. A near server gives them sooner than this task would be asleep and awake
    /// again, so the links are polled a few times. Whether something has arrived.
    fn busy_poll(&mut self, cx: &mut Context<'_>) -> bool {
        let Self { wire, machine, busy_poll, waiting, .. } = self;
        if waiting.is_empty() {
            return false;
        }
        busy_poll.expect(waiting.len() as u32);
        let clock = wire.clock();
        let mut each =
            |now, from, ecn, packet: &mut [u8]| machine.handle_packet(now, from, ecn, packet);
        busy_poll.poll(cx, || clock.now(), || wire.receive_now(&mut each))
    }

    /// Whether anything was done.
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<bool, Loss> {
        let machine = &mut self.machine;
        let received = self.wire.poll_recv(cx, |now, from, ecn, packet| {
            machine.handle_packet(now, from, ecn, packet);
        });
        let mut any = received.map_err(|why| Loss::Link(self.server.clone(), why))?;
        if any {
            self.busy_poll.ends(self.wire.now());
        }
        if self.wire.poll_deadline(cx, self.next_deadline(), self.machine.pace()) {
            self.machine.handle_timeout(self.wire.now());
            // While the link takes nothing, what is due to be sent stays due.
            any |= !self.wire.is_blocked();
        }
        while let Some(event) = self.machine.poll_event() {
            self.handle(event)?;
            any = true;
        }
        any |= self.poll_choice(cx)? | self.poll_requests(cx);
        self.look_for_stalls()?;
        let is_over = self.is_closing && self.waiting.is_empty();
        if is_over {
            self.machine.disconnect(self.wire.now());
        }
        let machine = &mut self.machine;
        let sent = self.wire.poll_send(cx, |now, outbox| machine.transmit(now, outbox));
        any |= sent.map_err(|why| Loss::Link(self.server.clone(), why))?;
        self.tell_paths();
        if let Some(hearing) = self.machine.hearing() {
            self.listener.note(&self.shared.silence, hearing);
        }
        if is_over { Err(Loss::Disconnected) } else { Ok(any) }
    }

    /// While commands are under way they are looked at now and then.
    fn next_deadline(&self) -> Option<Time> {
        let stalls = self.stalls.as_ref().filter(|_| !self.waiting.is_empty());
        [self.machine.next_deadline(), stalls.map(Stalls::deadline)].into_iter().flatten().min()
    }

    fn look_for_stalls(&mut self) -> Result<(), Loss> {
        let now = self.wire.now();
        let Some(stalls) = self.stalls.as_mut().filter(|stalls| stalls.deadline() <= now) else {
            return Ok(());
        };
        if self.shared.hurried.load(Ordering::Relaxed) {
            stalls.hurry();
        }
        let at_server = self.machine.at_server();
        let moving = self.waiting.iter_mut().filter_map(|(id, waiting)| match waiting {
            Waiting::Command { sent, .. } if !at_server.contains(id) => Some(sent),
            Waiting::Command { .. } | Waiting::Reset(_) => None,
        });
        let Some(within) = stalls.look(now, moving) else { return Ok(()) };
        let operation = at_server.iter().find_map(|id| match self.waiting.get(id) {
            Some(Waiting::Command { operation, .. }) => Some(*operation),
            _ => None,
        });
        let (operation, count) = (operation.unwrap_or_default(), at_server.len());
        Err(Loss::Stalled { server: self.server.clone(), operation, count, within })
    }

    fn handle(&mut self, event: ClientEvent) -> Result<(), Loss> {
        match event {
            ClientEvent::Connected { devices, .. } => {
                self.open_paths();
                let (choose, choice) = oneshot::channel();
                self.choice = Some(choice);
                if let Some(ready) = self.ready.take() {
                    let data_max = self.machine.data_max();
                    let (compression, cipher) = (self.machine.compression(), self.machine.cipher());
                    let has_checksum = self.machine.has_checksum();
                    let terms =
                        Ready { devices, data_max, compression, cipher, has_checksum, choose };
                    let _ = ready.send(terms);
                }
            }
            ClientEvent::Changed { devices } => self.tell_changed(&devices),
            ClientEvent::Completed(id, reply) => self.completed(id, reply),
            ClientEvent::TaskManaged(id, response) => {
                if let Some(Waiting::Reset(done)) = self.waiting.remove(&id) {
                    let _ = done.send(answer(response));
                }
                self.tell_settled();
            }
            ClientEvent::Managed(..) => {}
            ClientEvent::Ended { reason, .. } => return Err(Loss::Ended(reason)),
        }
        Ok(())
    }

    /// The server has changed how the volume is protected.
    fn tell_changed(&self, devices: &[Device]) {
        let device = devices.iter().find(|device| device.handle == self.device);
        if let Some(Device { name, level, .. }) = device
            && *level != self.shared.level.get()
        {
            let is_less = *level < self.shared.level.get();
            self.shared.level.set(*level);
            let server = &self.server;
            tracing::info!(%server, volume = &**name, level = level.name(), "re-authenticated with another level");
            warn_of_level(server, name, *level, is_less);
        }
    }

    /// A server of one path has one.
    fn open_paths(&mut self) {
        let now = self.wire.now();
        for endpoint in &self.paths {
            if !self.machine.add_path(now, *endpoint) {
                let server = &self.server;
                tracing::warn!(%server, "the server takes no further path");
                return;
            }
        }
    }

    /// Tells of paths that are used now, or not any more.
    fn tell_paths(&mut self) {
        if self.paths.is_empty() {
            return;
        }
        let paths = self.machine.paths();
        self.told.resize(paths.len(), PathState::Unproven);
        for (told, PathStats { path, state, endpoint, .. }) in self.told.iter_mut().zip(paths) {
            if std::mem::replace(told, state) != state {
                let (server, at) = (&self.server, shown(endpoint));
                // Nothing else tells that there is less between the volume and an outage.
                match state {
                    PathState::Failed => tracing::warn!(%server, path, at, "path failed"),
                    _ => tracing::info!(%server, path, at, "path {}", state.name()),
                }
            }
        }
    }

    fn completed(&mut self, id: RequestId, reply: Reply) {
        let Reply { status, sense, residual, data_in } = reply;
        self.shared.announced.note(status, &sense);
        if let Some(Waiting::Command { done, sent, .. }) = self.waiting.remove(&id) {
            let now = self.wire.now();
            self.stalls.iter_mut().for_each(|stalls| stalls.ended(now, sent));
            let residual = Residual::of_missing(residual);
            // Whoever stopped waiting does not want to know.
            let _ = done.send(Ok(Ended { status, data: data_in, sense, residual }));
        }
        self.tell_settled();
    }

    /// Which device is used; who does not say it any more wants none.
    fn poll_choice(&mut self, cx: &mut Context<'_>) -> Result<bool, Loss> {
        let Some(choice) = &mut self.choice else { return Ok(false) };
        let Poll::Ready(chosen) = std::pin::Pin::new(choice).poll(cx) else { return Ok(false) };
        self.choice = None;
        match chosen {
            Ok(Choice { device, receiver, stalls }) => {
                self.device = device;
                (self.receiver, self.stalls) = (Some(receiver), Some(stalls));
            }
            Err(_) => self.is_closing = true,
        }
        Ok(true)
    }

    /// Takes requests, as far as there is room; whether there were any.
    fn poll_requests(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while !self.is_closing && self.waiting.len() < UNDER_WAY_MAX {
            let Some(receiver) = &mut self.receiver else { break };
            let Poll::Ready(request) = receiver.poll_recv(cx) else { break };
            any = true;
            match request {
                Some(request) => self.take(request),
                None => self.is_closing = true,
            }
        }
        any
    }

    fn take(&mut self, request: Request) {
        let now = self.wire.now();
        match request {
            Request::Execute(command, data, done) => self.submit(now, (command, data), done),
            Request::ResetUnit(done) => {
                let function = TaskFunction::LogicalUnitReset;
                match self.machine.manage_tasks(now, self.device, function) {
                    Ok(id) => drop(self.waiting.insert(id, Waiting::Reset(done))),
                    Err(SubmitError::NotConnected) => {}
                    Err(why) => {
                        let answer = why.to_string();
                        let _ = done.send(ResetAnswer::Refused { is_final: false, answer });
                    }
                }
            }
            Request::AbortAll => {
                let is_command = |waiting: &Waiting| matches!(waiting, Waiting::Command { .. });
                let all = self.waiting.iter().filter(|(_, waiting)| is_command(waiting));
                for id in all.map(|(id, _)| *id).collect::<Vec<_>>() {
                    // Without a connection there is nothing to abort.
                    let _: Result<_, _> = self.machine.abort(now, self.device, id);
                }
            }
            Request::Settle(done) => {
                self.settles.push((self.waiting.keys().copied().collect(), done));
                self.tell_settled();
            }
            Request::Disconnect(done) => {
                self.disconnects.push(done);
                self.is_closing = true;
            }
        }
    }

    fn submit(
        &mut self,
        now: Time,
        (command, data): (Command, Bytes),
        done: oneshot::Sender<Result<Ended, SubmitError>>,
    ) {
        // A device comes with both.
        let Some(stalls) = &mut self.stalls else { return };
        let pace = traits_of(&command.cdb, DeviceType::Disk).pace;
        let operation = command.cdb[0];
        match self.machine.submit(now, command_for(self.device, command, data)) {
            Ok(id) => {
                let sent = stalls.sent(now, pace);
                self.waiting.insert(id, Waiting::Command { done, operation, sent });
            }
            // That the sender is dropped tells of the loss.
            Err(SubmitError::NotConnected) => {}
            Err(why) => drop(done.send(Err(why))),
        }
    }

    fn tell_settled(&mut self) {
        let waiting = &self.waiting;
        self.settles.iter_mut().for_each(|(ids, _)| ids.retain(|id| waiting.contains_key(id)));
        let (done, settles): (Vec<_>, _) =
            self.settles.drain(..).partition(|(ids, _)| ids.is_empty());
        self.settles = settles;
        for (_, done) in done {
            let _ = done.send(());
        }
    }
}

fn command_for(device: Handle, command: Command, data_out: Bytes) -> proto::hyperscsi::Command {
    let data_in_len = match command.transfer {
        Transfer::In(most) => most,
        Transfer::None | Transfer::Out(_) => 0,
    };
    proto::hyperscsi::Command {
        device,
        cdb: Bytes::copy_from_slice(&command.cdb),
        data_out,
        data_in_len,
        attribute: TaskAttribute::Simple,
        priority: 0,
    }
}

fn answer(response: TaskResponse) -> ResetAnswer {
    match response {
        TaskResponse::Complete => ResetAnswer::Complete,
        refused => ResetAnswer::Refused {
            is_final: !matches!(refused, TaskResponse::NoSuchTask),
            answer: format!("{refused:?}"),
        },
    }
}
