//! One session: its protocol machine, its connections, and the target that serves it. It does what the machine, other
//! sessions and the node ask for; the driver decides when.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use proto::iscsi::header::TaskFunction;
use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::target::Established;
use proto::iscsi::sealed::Seals;
use proto::iscsi::target::{self, Event, Request, Selection, Session};
use proto::scsi::sense::Additional;
use tracing::info;

use super::attached_target::AttachedTarget;
use super::clock::Clock;
use super::commands::Commands;
use super::connection::Connection;
use super::connections::{Connections, JoinDecision};
use super::end::End;
use super::joining::{Join, SessionInfo};
use super::mailbox::Call;
use super::node::Node;
use super::pdu_stream::{PduStream, StreamError};
use super::shutdown::Shutdown;
use super::targets::Targets;
use super::task_management::{AfterClear, TaskManagement, manage};
use crate::log_limiter::{LogLimiter, Permit};
use crate::target::sessions::{EndReason, SessionHandle, SessionMessage, Sessions};

/// A session and what serves it.
pub(super) struct ServedSession {
    /// Dropped first: however the session ends, the units forget its nexus before another one can take its place.
    target: AttachedTarget,
    pub(super) machine: Session,
    pub(super) connections: Connections,
    pub(super) commands: Commands,
    pub(super) clock: Clock,
    pub(super) shutdown: Shutdown,
    task_management: TaskManagement<Request>,
    targets: Targets,
    sessions: Sessions<SessionInfo>,
    pub(super) log_limiter: Arc<LogLimiter>,
    /// How long the initiator has to log out when the node stops.
    logout_max: Duration,
    /// Dropped last: whoever waits for this session to be gone may then close what it has used.
    pub(super) handle: SessionHandle<SessionInfo>,
}

impl ServedSession {
    pub(super) fn new(
        node: &Node,
        portals: Arc<[(SocketAddr, u16)]>,
        stream: PduStream,
        handle: SessionHandle<SessionInfo>,
        (established, seals): (Established, Option<Box<Seals>>),
    ) -> Result<Self, StreamError> {
        let serving = node.target.serving();
        let limits = serving.authorization.limits;
        let parameters = &established.parameters;
        let mut machine = serving.authorization.machine(&established);
        let target = AttachedTarget::new(serving.device(&handle.entry), &handle.entry);
        machine.set_sequential(target.sequential());
        let first = Connection::first(established.cid, stream, &mut machine, (parameters, seals))?;
        let connections = Connections::new(first, parameters.max_connections.into());
        let mut clock = Clock::new();
        clock.set(machine.deadline());
        Ok(Self {
            target,
            machine,
            connections,
            commands: Commands::new(
                &serving.authorization.pools,
                limits.slow,
                handle.entry.turns(),
            ),
            clock,
            shutdown: Shutdown::default(),
            task_management: TaskManagement::default(),
            targets: Targets::new(established, portals),
            sessions: node.target.sessions.clone(),
            log_limiter: Arc::clone(&node.log_limiter),
            logout_max: limits.stop,
            handle,
        })
    }

    /// Does what the machine asks for.
    pub(super) fn handle_events(&mut self, cx: &mut Context<'_>) {
        while let Some(event) = self.machine.poll_event() {
            let Self { commands, machine, target, handle, .. } = self;
            let by = (machine, &*handle.entry);
            match (event, target.device()) {
                (Event::Command(command), Some(device)) => commands.offer(cx, by, device, &command),
                (Event::Execute { command, data }, Some(device)) => {
                    commands.execute(cx, by, device, &command, data);
                }
                (Event::Abort(task), _) => commands.abort(by.0, by.1, task),
                (Event::CommandsCleared { lun }, Some(device)) => {
                    device.unit(lun).tell(by.1.nexus, Additional::SOME_COMMANDS_CLEARED);
                }
                (event, _) => self.handle_rare_event(cx, event),
            }
        }
    }

    fn handle_rare_event(&mut self, cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Manage { request, function, lun } => self.manage(cx, request, function, lun),
            Event::SendTargets { cid, selection } => self.send_targets(cid, &selection),
            Event::Cleared { ticket } => match self.task_management.end_clear(ticket) {
                Some(AfterClear::Notify(done)) => drop(done.send(())),
                Some(AfterClear::Join(join)) => self.add(*join),
                None => {}
            },
            Event::CloseConnection(cid) => self.connections.close(cid),
            Event::Close(ending) => {
                match ending {
                    // Before the response is sent: who reads it may count on what the loss of the nexus ends.
                    target::Ending::Logout => self.target.detach(),
                    _ => self.machine.announce_drop(),
                }
                self.finish(ending.into());
            }
            // A discovery session has no units.
            Event::Command(_)
            | Event::Execute { .. }
            | Event::Abort(_)
            | Event::CommandsCleared { .. } => {}
        }
    }

    fn manage(
        &mut self,
        cx: &mut Context<'_>,
        request: Request,
        function: TaskFunction,
        lun: [u8; 8],
    ) {
        let Some(device) = self.target.device().cloned() else { return };
        let (entry, sessions) = (Arc::clone(&self.handle.entry), self.sessions.clone());
        let peer = entry.transport.peer;
        if let Some(Permit { suppressed }) = self.log_limiter.permit(peer) {
            let (initiator, target) = (&*entry.identity.name, device.name());
            info!(%peer, initiator, target, ?function, suppressed, "task management");
        }
        let managed = async move { manage(&sessions, &entry, &device, (function, lun)).await };
        if let Some(response) = self.task_management.start(cx, request, managed) {
            self.machine.managed(request, response);
        }
    }

    /// Gives the machine the responses to task management; whether there were any.
    pub(super) fn poll_task_management(&mut self, cx: &mut Context<'_>) -> bool {
        self.task_management.drain(cx, |request, response| self.machine.managed(request, response))
    }

    fn send_targets(&mut self, cid: u16, selection: &Selection) {
        if let Some(connection) = self.connections.find(cid) {
            let records = self.targets.records(selection, connection.here);
            self.machine.targets(cid, &records);
        }
    }

    /// Does what another session, or the node, asks for.
    pub(super) fn handle_call(&mut self, call: Call) {
        match call {
            Call::Stop | Call::Message(SessionMessage::LogOut) => self.request_logout(),
            Call::Message(SessionMessage::End(why)) => self.end_for(why),
            Call::Message(SessionMessage::ColdReset(units)) => {
                if !self.target.has_others_than(&units) {
                    self.end_for(EndReason::Reset);
                }
            }
            Call::Message(SessionMessage::Changed(device, done)) => {
                self.target.replace(device);
                self.machine.set_sequential(self.target.sequential());
                let _ = done.send(());
            }
            Call::Message(SessionMessage::Clear(unit, done)) => {
                let number = self.task_management.begin_clear(AfterClear::Notify(done));
                self.machine.clear(unit, number);
            }
            // Such a session ends if it has less than is demanded.
            Call::Message(SessionMessage::Demanded) => {}
            Call::Join(join) => self.join(*join),
        }
    }

    fn request_logout(&mut self) {
        self.machine.request_logout(self.clock.now(), self.logout_max);
        self.clock.set(self.machine.deadline());
    }

    fn end_for(&mut self, why: EndReason) {
        self.machine.announce_drop();
        self.finish(why.into());
    }

    /// Nothing is taken in any more; what there is to send is sent, in bounded time.
    pub(super) fn finish(&mut self, end: End) {
        if let Some(deadline) = self.shutdown.begin(self.clock.now(), end) {
            self.clock.set(deadline);
        }
    }

    pub(super) fn handle_timeout(&mut self) {
        let now = self.clock.now();
        if let Some(deadline) = self.shutdown.time_out(now) {
            self.connections.discard_output(&mut self.machine);
            self.clock.set(deadline);
        } else {
            self.machine.handle_timeout(now);
            self.clock.set(self.machine.deadline());
        }
    }

    /// Another connection comes to join the session.
    fn join(&mut self, join: Join) {
        if self.shutdown.has_begun() {
            return join.refuse(LoginStatus::SESSION_DOES_NOT_EXIST);
        }
        let cid = join.admission.established().cid;
        let (known, joining) = (self.machine.has_connection(cid), self.task_management.joining());
        match self.connections.decide(cid, known, joining) {
            JoinDecision::Refuse(status) => join.refuse(status),
            JoinDecision::Add => self.add(join),
            JoinDecision::Replace => {
                self.connections.drop(cid);
                let number = self.task_management.begin_clear(AfterClear::Join(Box::new(join)));
                self.machine.replace_connection(self.clock.now(), cid, number);
            }
        }
    }

    fn add(&mut self, join: Join) {
        let (now, entry) = (self.clock.now(), &self.handle.entry);
        // A socket that does not know its own address any more is closed.
        let Ok(_place) = self.connections.add(now, join, &mut self.machine) else { return };
        let connections = self.connections.len();
        if let Some(Permit { suppressed }) = self.log_limiter.permit(entry.transport.peer) {
            let (initiator, tsih) = (&*entry.identity.name, entry.number);
            info!(
                initiator,
                tsih, connections, suppressed, "a connection was added to the session"
            );
        }
        entry.set_connections(connections);
        // Its deadline may come before those of the others.
        self.clock.set(self.machine.deadline());
    }
}
