//! The driver of one session: moves frames from its connections into the protocol machine, commands from the machine
//! to the units, answers back, and output out.
//!
//! One task polls all of it by hand rather than by a `select!`, as everything it waits for may be ready at once: all that
//! has arrived is taken in, all that is answered is answered, and then one write takes all output. That task owns all
//! connections of the session, so that their commands are put in order without a lock. When one is lost the session
//! ends, as error recovery level 0 has it (RFC 7143, 7.1.5).

use std::future::Future as _;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use proto::iscsi::header::TaskFunction;
use proto::iscsi::login::LoginStatus;
use proto::iscsi::target::{self, Event, Request, Selection, Session};
use proto::scsi::sense::Additional;
use proto::time::Time;
use tokio::task::yield_now;
use tracing::info;

use super::attached_target::AttachedTarget;
use super::busy_poll::BusyPoll;
use super::clock::Clock;
use super::commands::Commands;
use super::connection::Connection;
use super::connections::{Connections, JoinDecision};
use super::end::End;
use super::joining::{Join, SessionInfo};
use super::login::LoggedIn;
use super::mailbox::{Call, Mailbox};
use super::node::Node;
use super::pdu_stream::{PduStream, StreamError};
use super::targets::Targets;
use super::task_management::{AfterClear, TaskManagement, function, response};
use crate::log_limiter::{LogLimiter, Permit};
use crate::stop::Stop;
use crate::target::sessions::{EndReason, SessionHandle, SessionMessage, Sessions};
use crate::target::task_management::{Outcome, manage};
use crate::task::unless_broken;

/// How often a session polls its sockets before other tasks have their turn: some microseconds.
const BUSY_POLLS: u32 = 4;

/// How long the last output of a session may take to be sent.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// A session and all it needs to run.
pub(super) struct Driver {
    /// Dropped first: however the session ends, the units forget its nexus before another one can take its place.
    target: AttachedTarget,
    session: Session,
    connections: Connections,
    commands: Commands,
    task_management: TaskManagement<Request>,
    mailbox: Mailbox,
    clock: Clock,
    busy_poll: BusyPoll,
    targets: Targets,
    sessions: Sessions<SessionInfo>,
    log_limiter: Arc<LogLimiter>,
    /// How long an initiator may take nothing of what is sent to it.
    stuck_max: Duration,
    /// How long it has to log out when the node stops.
    logout_max: Duration,
    end: Option<End>,
    /// Dropped last: whoever waits for this session to be gone may then close what it has used.
    handle: SessionHandle<SessionInfo>,
}

impl Driver {
    pub(super) fn new(
        node: &Node,
        portals: Arc<[(SocketAddr, u16)]>,
        stream: PduStream,
        LoggedIn { handle, arrivals, established, seals }: LoggedIn,
        stop: Stop,
    ) -> Result<Self, StreamError> {
        let serving = node.target.serving();
        let limits = serving.authorization.limits;
        let parameters = &established.parameters;
        let mut session = serving.authorization.machine(&established);
        let first = Connection::first(established.cid, stream, &mut session, (parameters, seals))?;
        let connections = Connections::new(first, parameters.max_connections.into());
        let target = AttachedTarget::new(serving.device(&handle.entry), &handle.entry);
        let mut clock = Clock::new();
        clock.set(session.deadline());
        Ok(Self {
            target,
            session,
            connections,
            commands: Commands::new(&serving.authorization.pools, limits.slow),
            task_management: TaskManagement::default(),
            mailbox: Mailbox::new(stop, arrivals),
            clock,
            busy_poll: BusyPoll::new(limits.awake),
            targets: Targets::new(established, portals),
            sessions: node.target.sessions.clone(),
            log_limiter: Arc::clone(&node.log_limiter),
            stuck_max: limits.ping_patience,
            logout_max: limits.stop,
            end: None,
            handle,
        })
    }

    /// Runs the session to its end, and until none of its commands runs any more, also if it breaks down: the session that
    /// replaces it begins only then.
    pub(super) async fn run(mut self) -> End {
        let end = unless_broken(std::future::poll_fn(|cx| self.poll(cx))).await;
        // A command that panics is taken out by that, so that the others can be waited for.
        while unless_broken(self.commands.drain()).await.is_none() {}
        end.unwrap_or(End::Broken)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.poll_calls(cx);
        loop {
            match self.poll_traffic(cx) {
                Err(error) => return Poll::Ready(error.into()),
                Ok(()) if self.session.unsent() > 0 => return Poll::Pending,
                Ok(()) => {}
            }
            if let Some(end) = self.end.take() {
                return Poll::Ready(end);
            }
            if !self.busy_poll(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Nothing is left to do. The answers of units take their time; an initiator may be back at once, so the sockets are
    /// polled a few times. Whether something has arrived.
    fn busy_poll(&mut self, cx: &mut Context<'_>) -> bool {
        for _ in 0..BUSY_POLLS {
            if !self.commands.is_idle() || !self.busy_poll.goes_on(self.clock.now()) {
                return false;
            }
            if self.connections.busy_poll() {
                return true;
            }
        }
        // Lets every other task and the system have their turn before this one polls again.
        let _ = pin!(yield_now()).poll(cx);
        false
    }

    /// Answers, input and output, until all of them have to wait. Output that was sent counts as well: what was held back
    /// for it can go on, and nothing else would say so.
    fn poll_traffic(&mut self, cx: &mut Context<'_>) -> Result<(), StreamError> {
        loop {
            let answered = self.poll_answers(cx);
            let received = self.poll_input(cx)?;
            let Self { commands, session, handle, .. } = self;
            commands.start_waiting(cx, session, &handle.entry);
            self.act(cx);
            let Self { commands, session, handle, clock, log_limiter, .. } = self;
            commands.solicit(cx, session);
            commands.count(|| clock.now(), &handle.entry, log_limiter);
            let sent = self.poll_output(cx)?;
            if !answered && !received && !sent {
                self.commands.give_back(&mut self.session);
                return Ok(());
            }
        }
    }

    /// Whether any answer came.
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready((request, outcome)) = self.task_management.poll(cx) {
            self.session.managed(request, outcome);
            any = true;
        }
        any |= self.commands.poll_answers(cx, &mut self.session, &self.handle.entry);
        if any {
            self.act(cx);
        }
        any
    }

    /// Whether anything was read.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamError> {
        if self.end.is_some() || self.commands.is_overdrawn(&mut self.session) {
            return Ok(false);
        }
        let mut last = None;
        let mut at = 0;
        // What arrives may add connections, and does not take any away.
        while at < self.connections.len() {
            last = last.max(self.poll_connection(cx, at)?);
            at += 1;
        }
        if let Some(now) = last {
            self.connections.sample(now);
        }
        Ok(last.is_some())
    }

    /// When something was read by a connection, if anything was.
    fn poll_connection(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
    ) -> Result<Option<Time>, StreamError> {
        let Poll::Ready(read) = self.connections.poll_read(cx, at, &self.clock) else {
            return Ok(None);
        };
        let (cid, now) = read?;
        self.session.heard(now, cid);
        // A sign of life is not enough: what it does not take is held for it.
        if self.connections.is_stuck(at, now, self.stuck_max) {
            self.finish(StreamError::Late.into());
            return Ok(Some(now));
        }
        self.commands.arrive(now);
        self.busy_poll.ends(now);
        while let Some(frame) = self.connections.decode(at)? {
            self.session.handle(now, cid, frame);
            self.act(cx);
        }
        if self.connections.is_amid_a_pdu(at) {
            self.session.receiving();
        }
        Ok(Some(now))
    }

    /// Whether anything was sent.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamError> {
        let Self { connections, session, clock, .. } = self;
        let (sent, removed) = connections.poll_write(cx, session, clock)?;
        if removed {
            self.handle.entry.set_connections(connections.len());
        }
        Ok(sent)
    }

    /// What does not come from the initiator: other sessions, the end of the program, the clock.
    fn poll_calls(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(call) = self.mailbox.poll(cx, &mut self.handle.messages) {
            match call {
                Call::Stop => self.ask_to_log_out(),
                Call::Message(message) => self.receive(message),
                Call::Join(join) => self.join(*join),
            }
        }
        while self.clock.poll(cx) {
            self.on_timer();
        }
        self.act(cx);
    }

    fn ask_to_log_out(&mut self) {
        self.session.request_logout(self.clock.now(), self.logout_max);
        self.clock.set(self.session.deadline());
    }

    fn on_timer(&mut self) {
        let now = self.clock.now();
        if self.end.is_some() {
            self.end = Some(StreamError::Late.into());
            self.connections.discard_output(&mut self.session);
            self.clock.set(now + FLUSH_MAX);
        } else {
            self.session.handle_timeout(now);
            self.clock.set(self.session.deadline());
        }
    }

    fn receive(&mut self, message: SessionMessage) {
        match message {
            SessionMessage::End(why) => self.end_for(why),
            SessionMessage::ColdReset(units) => {
                if !self.target.has_others_than(&units) {
                    self.end_for(EndReason::Reset);
                }
            }
            SessionMessage::LogOut => self.ask_to_log_out(),
            SessionMessage::Changed(device, done) => {
                self.target.replace(device);
                let _ = done.send(());
            }
            SessionMessage::Clear(unit, done) => {
                let number = self.task_management.begin_clear(AfterClear::Notify(done));
                self.session.clear(unit, number);
            }
        }
    }

    fn end_for(&mut self, why: EndReason) {
        self.session.announce_drop();
        self.finish(why.into());
    }

    /// Nothing is taken in any more; what there is to send is sent, in bounded time.
    fn finish(&mut self, end: End) {
        if self.end.is_none() {
            self.end = Some(end);
            self.clock.set(self.clock.now() + FLUSH_MAX);
        }
    }

    /// Another connection comes to join the session.
    fn join(&mut self, join: Join) {
        if self.end.is_some() {
            return join.refuse(LoginStatus::SESSION_DOES_NOT_EXIST);
        }
        let cid = join.admission.established().cid;
        let (known, joining) = (self.session.has_connection(cid), self.task_management.joining());
        match self.connections.decide(cid, known, joining) {
            JoinDecision::Refuse(status) => join.refuse(status),
            JoinDecision::Add => self.add(join),
            JoinDecision::Replace => {
                self.connections.drop(cid);
                let number = self.task_management.begin_clear(AfterClear::Join(Box::new(join)));
                self.session.vacate(self.clock.now(), cid, number);
            }
        }
    }

    fn add(&mut self, join: Join) {
        let (now, entry) = (self.clock.now(), &self.handle.entry);
        // A socket that does not know its own address any more is closed.
        let Ok(_place) = self.connections.add(now, join, &mut self.session) else { return };
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
        self.clock.set(self.session.deadline());
    }

    /// Does what the machine asks for.
    fn act(&mut self, cx: &mut Context<'_>) {
        while let Some(event) = self.session.poll_event() {
            let Self { commands, session, target, handle, .. } = self;
            let by = (session, &*handle.entry);
            match (event, target.device()) {
                (Event::Command(command), Some(device)) => commands.offer(cx, by, device, &command),
                (Event::Execute { command, data }, Some(device)) => {
                    commands.execute(cx, by, device, &command, data);
                }
                (Event::Abort(task), _) => commands.abort(by.0, by.1, task),
                (Event::CommandsCleared { lun }, Some(device)) => {
                    device.unit(lun).tell(by.1.nexus, Additional::SOME_COMMANDS_CLEARED);
                }
                (event, _) => self.act_rarely(cx, event),
            }
        }
    }

    fn act_rarely(&mut self, cx: &mut Context<'_>, event: Event) {
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
                    _ => self.session.announce_drop(),
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
        asked: TaskFunction,
        lun: [u8; 8],
    ) {
        let Some(device) = self.target.device().cloned() else { return };
        let (entry, sessions) = (Arc::clone(&self.handle.entry), self.sessions.clone());
        let peer = entry.transport.peer;
        if let Some(Permit { suppressed }) = self.log_limiter.permit(peer) {
            let (initiator, function) = (&*entry.identity.name, asked);
            info!(%peer, initiator, target = device.name(), ?function, suppressed, "task management");
        }
        let managed = async move {
            response(match function(asked, lun) {
                Some(function) => manage(&sessions, &entry, &device, function).await,
                None => Outcome::Complete,
            })
        };
        if let Some(response) = self.task_management.start(cx, request, managed) {
            self.session.managed(request, response);
        }
    }

    fn send_targets(&mut self, cid: u16, selection: &Selection) {
        if let Some(connection) = self.connections.find(cid) {
            let records = self.targets.records(selection, connection.here);
            self.session.targets(cid, &records);
        }
    }
}
