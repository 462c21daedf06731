//! The driver of one session: moves frames from its connections into the machine, commands from the
//! machine to the units, answers back, and output out.
//!
//! One task polls all of it by hand rather than by a `select!`, as everything it waits for may be ready
//! at once: all that has come is taken in, all that is answered is answered, and then one write takes
//! all output. That task owns all connections of the session, so that their commands are put in order without
//! a lock. When one is lost the session ends, as error recovery level 0 has it (RFC 7143, 7.1.5).

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use proto::iscsi::header::{TaskFunction, TaskResponse};
use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::target::Established;
use proto::iscsi::pdu::{Outbox, Pieces};
use proto::iscsi::target::{
    self, Event, Joining, Reply, Request, Selection, Session, Setup, TaskId, Wanted,
};
use proto::scsi::Status;
use proto::scsi::sense::Additional;
use proto::time::Time;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::{info, warn};

use super::busy_poll::BusyPoll;
use super::connection::Connection;
use super::end::End;
use super::joining::{Entry, Join, Joins, SessionInfo};
use super::login::LoggedIn;
use super::node::{Node, record};
use super::pdu_stream::{PduStream, StreamError};
use super::task_management::{function, response};
use crate::log_limiter::{LogLimiter, Permit};
use crate::net::tcp_tuning::loss_detector::LossDetector;
use crate::stop::Stop;
use crate::target::executor::{Executor, Mark, Ready};
use crate::target::lun::{Command, Initiator, Response, TargetDevice};
use crate::target::memory_quota::Quota;
use crate::target::sessions::{EndReason, SessionHandle, SessionMessage, Sessions};
use crate::target::task_management::{Outcome, manage};
use crate::task::unless_broken;

/// Unsent output up to which more is read whatever the session holds, as reading may be what frees it.
const OUTPUT_MIN: usize = 256 << 10;

/// How often a session looks for its initiator before other tasks have their turn: some microseconds.
const LOOKS: u32 = 4;

/// What a command that moves no blocks answers at most.
const ANSWER_MAX: u32 = 64 << 10;

/// How long the last output of a session may take to be sent.
const FLUSH_MAX: Duration = Duration::from_secs(5);

type Errand = Pin<Box<dyn Future<Output = (Request, TaskResponse)> + Send>>;

/// A session and all it needs to run.
pub(super) struct Driver {
    lines: Vec<Connection>,
    /// Connections that wait for the tasks of those they replace to end, by the number the machine knows
    /// that by.
    joins: Vec<(u64, Join)>,
    /// How many connections there may be.
    lines_max: usize,
    session: Session,
    /// `None` in a discovery session.
    device: Option<Arc<TargetDevice>>,
    sessions: Sessions<SessionInfo>,
    log_limiter: Arc<LogLimiter>,
    executor: Executor<TaskId>,
    quota: Quota,
    busy_poll: BusyPoll,
    loss_detector: LossDetector,
    /// How long an initiator may take nothing of what is sent to it.
    stuck_max: Duration,
    /// Task management that involves other sessions.
    errands: FuturesUnordered<Errand>,
    /// Whom to tell that tasks were cleared, by the number the machine knows it by.
    cleared: BTreeMap<u64, oneshot::Sender<()>>,
    next_clear: u64,
    targets: Targets,
    clock: Clock,
    /// When what is being worked on came in.
    heard: Time,
    /// Commands that have ended since the clock was looked at.
    finished: Vec<(Mark, u64)>,
    slow: Duration,
    stop: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    stop_patience: Duration,
    end: Option<End>,
    /// Connections that come to join the session.
    arrivals: Joins,
    /// Dropped last: whoever waits for this session to be gone may then close what it has used.
    handle: SessionHandle<SessionInfo>,
}

/// What SendTargets may tell.
struct Targets {
    established: Established,
    portals: Arc<[(SocketAddr, u16)]>,
}

/// The machine's time, and the timer that follows its deadline.
struct Clock {
    origin: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Clock {
    fn now(&self) -> Time {
        Time::from_origin(self.origin.elapsed())
    }

    fn set(&mut self, deadline: Time) {
        self.timer.as_mut().reset(self.origin + deadline.since_origin());
    }
}

impl Driver {
    pub(super) fn new(
        node: &Node,
        portals: Arc<[(SocketAddr, u16)]>,
        stream: PduStream,
        LoggedIn { handle, arrivals, established, seals }: LoggedIn,
        mut stop: Stop,
    ) -> Result<Self, StreamError> {
        let serving = node.target.serving();
        let admittance = &serving.authorization;
        let limits = admittance.limits;
        let parameters = &established.parameters;
        let (cid, stat_sn) = (established.cid, established.stat_sn);
        let setup = Setup {
            discovery: established.target.is_none(),
            exp_cmd_sn: established.exp_cmd_sn,
            window: admittance.login.command_window,
            text_max: admittance.login.text_max,
            window_max: limits.commands,
            unsolicited: Arc::clone(&admittance.unsolicited),
            solicited: 0,
            ping_after: limits.ping_after,
            ping_patience: limits.ping_patience,
        };
        let first = Joining { cid, stat_sn, parameters };
        let mut session = Session::new(Time::ZERO, &first, setup);
        let line = Connection::first(cid, stream, &mut session, (parameters, seals));
        let lines = vec![line.map_err(StreamError::Io)?];
        let lines_max = usize::from(parameters.max_connections);
        let device = serving.device(&handle.entry);
        if let Some(device) = &device {
            let initiator: Arc<dyn Initiator> = Arc::clone(&handle.entry) as _;
            device.attach(handle.entry.nexus, &initiator);
        }
        let origin = Instant::now();
        let timer = Box::pin(sleep_until(origin + session.deadline().since_origin()));
        Ok(Self {
            lines,
            joins: Vec::new(),
            lines_max,
            session,
            arrivals,
            handle,
            device,
            sessions: node.target.sessions.clone(),
            log_limiter: Arc::clone(&node.log_limiter),
            executor: Executor::default(),
            quota: Quota::new(&admittance.pools),
            busy_poll: BusyPoll::new(limits.awake),
            loss_detector: LossDetector::new(),
            stuck_max: limits.ping_patience,
            errands: FuturesUnordered::new(),
            cleared: BTreeMap::new(),
            next_clear: 0,
            targets: Targets { established, portals },
            clock: Clock { origin, timer },
            heard: Time::ZERO,
            finished: Vec::new(),
            slow: limits.slow,
            stop: Some(Box::pin(async move { stop.called().await })),
            stop_patience: limits.stop,
            end: None,
        })
    }

    /// Runs the session to its end, and until none of its commands runs any more, also if it breaks down: the session that
    /// replaces it begins only then.
    pub(super) async fn run(mut self) -> End {
        let end = unless_broken(std::future::poll_fn(|cx| self.poll(cx))).await;
        // A command that panics is taken out by that, so that the others can be waited for.
        while unless_broken(self.executor.drain()).await.is_none() {}
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
            if !self.finds_more(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Nothing is left to do. What runs elsewhere takes its time; an initiator may be back at once, so it is looked
    /// for a few times.
    fn finds_more(&mut self, cx: &mut Context<'_>) -> bool {
        for _ in 0..LOOKS {
            if !self.executor.is_idle() || !self.busy_poll.goes_on(self.clock.now()) {
                return false;
            }
            if self.lines.iter_mut().any(Connection::busy_poll) {
                return true;
            }
        }
        // Lets every other task and the system have their turn before this one looks again.
        let _ = pin!(yield_now()).poll(cx);
        false
    }

    /// Input, answers and output, until all of them have to wait. Output that was sent counts as well:
    /// what was held back for it can go on, and nobody else would say so.
    fn poll_traffic(&mut self, cx: &mut Context<'_>) -> Result<(), StreamError> {
        loop {
            let answered = self.poll_answers(cx);
            let received = self.poll_input(cx)?;
            let managed = self.poll_errands(cx);
            self.quota.needs_later(self.session.solicited_later());
            self.start_waiting(cx);
            self.solicit(cx);
            self.settle();
            let sent = self.poll_output(cx)?;
            if !answered && !received && !managed && !sent {
                let (held, later) = (self.held(), self.session.solicited_later());
                self.quota.settle(held, later);
                return Ok(());
            }
        }
    }

    /// Whether anything was sent. A connection that was logged out is closed when it has sent all.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamError> {
        let (mut any, mut over) = (false, false);
        let clock = &self.clock;
        for line in &mut self.lines {
            let Some(outbox) = self.session.outbox(line.cid) else { continue };
            match line.write(cx, outbox, || clock.now()) {
                Ok(sent) => any |= sent,
                Err(_) if line.closing => outbox.clear(),
                Err(error) => return Err(error.into()),
            }
            over |= line.closing && outbox.is_empty();
        }
        if over {
            self.close_lines();
        }
        Ok(any)
    }

    fn close_lines(&mut self) {
        let (now, session) = (self.clock.now(), &mut self.session);
        self.lines.retain(|line| {
            let sent = session.outbox(line.cid).is_none_or(|outbox| outbox.is_empty());
            let over = line.closing && sent;
            if over {
                session.remove(now, line.cid);
            }
            !over
        });
        self.handle.entry.set_connections(self.lines.len());
    }

    /// What does not come from the initiator: the clock, other sessions, the end of the program.
    fn poll_calls(&mut self, cx: &mut Context<'_>) {
        if self.stop.as_mut().is_some_and(|stop| stop.as_mut().poll(cx).is_ready()) {
            self.stop = None;
            self.leave();
        }
        while let Poll::Ready(Some(message)) = self.handle.messages.poll_recv(cx) {
            self.receive(message);
        }
        while let Poll::Ready(Some(join)) = self.arrivals.0.poll_recv(cx) {
            self.join(join);
        }
        while self.clock.timer.as_mut().poll(cx).is_ready() {
            self.on_timer();
        }
        self.act(cx);
    }

    fn leave(&mut self) {
        self.session.request_logout(self.clock.now(), self.stop_patience);
        self.clock.set(self.session.deadline());
    }

    fn on_timer(&mut self) {
        let now = self.clock.now();
        if self.end.is_some() {
            self.end = Some(StreamError::Late.into());
            for line in &self.lines {
                self.session.outbox(line.cid).into_iter().for_each(Outbox::clear);
            }
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
                let mut used = self.device.iter().flat_map(|device| device.luns());
                let others = used.any(|unit| !units.contains(&unit));
                drop(used);
                if !others {
                    self.end_for(EndReason::Reset);
                }
            }
            SessionMessage::LogOut => self.leave(),
            SessionMessage::Changed(device, done) => {
                // Commands under way go on where they began, which is the same disk.
                if let Some(old) = self.device.replace(Arc::clone(&device)) {
                    let initiator: Arc<dyn Initiator> = Arc::clone(&self.handle.entry) as _;
                    device.succeed(&old, self.handle.entry.nexus, &initiator);
                }
                let _ = done.send(());
            }
            SessionMessage::Clear(unit, done) => {
                self.cleared.insert(self.next_clear, done);
                self.session.clear(unit, self.next_clear);
                self.next_clear += 1;
            }
        }
    }

    fn end_for(&mut self, why: EndReason) {
        self.session.announce_drop();
        self.finish(why.into());
    }

    /// Another connection. If there is one with its number it takes the place of that, whose tasks end
    /// before (RFC 7143, 6.3.4).
    fn join(&mut self, join: Join) {
        let cid = join.admission.established().cid;
        let waits = self.joins.iter().any(|(_, other)| other.admission.established().cid == cid);
        let others = self.lines.iter().filter(|line| line.cid != cid).count() + self.joins.len();
        if self.end.is_some() {
            join.refuse(LoginStatus::SESSION_DOES_NOT_EXIST);
        } else if waits || others >= self.lines_max {
            join.refuse(LoginStatus::TOO_MANY_CONNECTIONS);
        } else if self.session.has_connection(cid) {
            self.lines.retain(|line| line.cid != cid);
            self.joins.push((self.next_clear, join));
            self.session.vacate(self.clock.now(), cid, self.next_clear);
            self.next_clear += 1;
        } else {
            self.add(join);
        }
    }

    fn add(&mut self, join: Join) {
        let now = self.clock.now();
        // A socket that does not know its own address any more is closed.
        let Ok((line, _place)) = Connection::join(now, join, &mut self.session) else { return };
        self.loss_detector.added(line.stream.socket());
        self.lines.push(line);
        let (entry, connections) = (&self.handle.entry, self.lines.len());
        if let Some(Permit { suppressed }) = self.log_limiter.permit(entry.transport.peer) {
            let (initiator, tsih) = (&*entry.identity.name, entry.number);
            info!(
                initiator,
                tsih, connections, suppressed, "a connection was added to the session"
            );
        }
        entry.set_connections(connections);
        // It may be heard of sooner than what there was before.
        self.clock.set(self.session.deadline());
    }

    /// What [`Session::clear`] or [`Session::vacate`] was asked to end has ended.
    fn cleared(&mut self, ticket: u64) {
        if let Some(done) = self.cleared.remove(&ticket) {
            let _ = done.send(());
        } else if let Some(at) = self.joins.iter().position(|(waits, _)| *waits == ticket) {
            let (_, join) = self.joins.swap_remove(at);
            self.add(join);
        }
    }

    /// Nothing is taken in any more; what there is to send is sent, in bounded time.
    fn finish(&mut self, end: End) {
        if self.end.is_none() {
            self.end = Some(end);
            self.clock.set(self.clock.now() + FLUSH_MAX);
        }
    }

    /// Whether any answer came. Errands are polled here too, because input adds to them: one that is
    /// never polled never wakes this task.
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready(Some((request, outcome))) = self.errands.poll_next_unpin(cx) {
            self.session.managed(request, outcome);
            any = true;
        }
        while let Poll::Ready((task, mark, response)) = self.executor.poll(cx) {
            self.answer(task, mark, response);
            any = true;
        }
        if any {
            self.act(cx);
        }
        any
    }

    /// Whether any errand was done. One that has just been sent on its way must be looked at too: it may
    /// be done at once, and else it does not know yet whom to wake.
    fn poll_errands(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready(Some((request, outcome))) = self.errands.poll_next_unpin(cx) {
            self.session.managed(request, outcome);
            any = true;
        }
        if any {
            self.act(cx);
        }
        any
    }

    /// Whether anything was read.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamError> {
        // An initiator that sends and does not take its answers must not make us keep them.
        let overdrawn = self.session.unsent() > OUTPUT_MIN && self.held() > self.quota.limit();
        if self.end.is_some() || overdrawn {
            return Ok(false);
        }
        let (mut any, mut at) = (false, 0);
        // What comes may add connections, and does not take any away.
        while at < self.lines.len() {
            any |= self.poll_line(cx, at)?;
            at += 1;
        }
        if any {
            let sockets = self.lines.iter().map(|line| line.stream.socket());
            self.loss_detector.sample(self.heard, sockets);
        }
        Ok(any)
    }

    fn poll_line(&mut self, cx: &mut Context<'_>, at: usize) -> Result<bool, StreamError> {
        let Some(line) = self.lines.get_mut(at).filter(|line| !line.closing) else {
            return Ok(false);
        };
        let clock = &self.clock;
        let (cid, read) = (line.cid, line.poll_read(cx, || clock.now())?);
        if let Poll::Ready(now) = read {
            self.session.heard(now, cid);
            // A sign of life is not enough: what it does not take is held for it.
            if line.is_stuck(now, self.stuck_max) {
                self.finish(StreamError::Late.into());
                return Ok(true);
            }
            self.heard = now;
            self.busy_poll.ends(now);
            while let Some(line) = self.lines.get_mut(at)
                && let Some(frame) = line.stream.decode()?
            {
                self.session.handle(now, cid, frame);
                self.act(cx);
            }
            if self
                .lines
                .get_mut(at)
                .is_some_and(|line| line.stream.connection().is_amid_a_message())
            {
                self.session.receiving();
            }
        }
        Ok(read.is_ready())
    }

    /// Does what the machine calls for.
    fn act(&mut self, cx: &mut Context<'_>) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Command(command) => self.offer(cx, &command),
                Event::Execute { command, data } => self.execute(cx, &command, data),
                Event::Manage { request, function, lun } => self.manage(request, function, lun),
                Event::Abort(task) => self.abort(task),
                Event::SendTargets { cid, selection } => self.send_targets(cid, &selection),
                Event::Cleared { ticket } => self.cleared(ticket),
                Event::CommandsCleared { lun } => {
                    let (nexus, told) =
                        (self.handle.entry.nexus, Additional::SOME_COMMANDS_CLEARED);
                    self.device.iter().for_each(|device| device.unit(lun).tell(nexus, told));
                }
                Event::CloseConnection(cid) => {
                    let lines = self.lines.iter_mut().filter(|line| line.cid == cid);
                    lines.for_each(|line| line.closing = true);
                }
                Event::Close(ending) => {
                    if ending != target::Ending::Logout {
                        self.session.announce_drop();
                    }
                    self.finish(ending.into());
                }
            }
        }
    }

    fn offer(&mut self, cx: &mut Context<'_>, command: &target::Command) {
        let Some(device) = &self.device else { return };
        let asked = device.unit(command.lun).data_out_len(&command.parsed);
        if let Some(data) = self.session.want_data(command.task, asked) {
            self.execute(cx, command, data);
        }
    }

    /// Runs a command, or lets it wait its turn.
    fn execute(
        &mut self,
        cx: &mut Context<'_>,
        &target::Command { task, lun, parsed, announced, room, .. }: &target::Command,
        data: Vec<Bytes>,
    ) {
        let Some(device) = &self.device else { return };
        let unit = Arc::clone(device.unit(lun));
        let weight = self.weight(unit.data_in_len(&parsed), room);
        let out = data.iter().map(|piece| piece.len() as u64).sum();
        let (kind, opcode) = (parsed.traits.kind, parsed.opcode);
        let mark = Mark { kind, opcode, started: self.heard, out };
        self.handle.entry.meter.began();
        let ready =
            Ready { task, mark, weight, unit, command: Command { parsed, data, announced } };
        // Data-out are paid for already; what is to answer must not take more behind those that wait.
        let total = self.held() + weight;
        let waits = weight > 0 && self.executor.next_weight().is_some();
        if weight == 0 || (!waits && self.quota.covers(cx, total)) {
            self.start(cx, ready);
        } else {
            self.executor.wait(ready);
        }
    }

    /// What the answer to a command may come to: what it asks for, even beyond what the initiator has room
    /// for, since it is cut only when it is there.
    fn weight(&self, asked: u32, room: u32) -> u64 {
        u64::from(asked.max(room.min(ANSWER_MAX))).min(self.quota.request_max())
    }

    fn start(&mut self, cx: &mut Context<'_>, ready: Ready<TaskId>) {
        let Ready { task, mark, weight, unit, command } = ready;
        let answer = unit.execute(self.handle.entry.nexus, command);
        if let Some(response) = self.executor.start(cx, (task, mark), weight, answer) {
            self.answer(task, mark, response);
        }
    }

    /// Starts commands that waited, as far as there is room now.
    fn start_waiting(&mut self, cx: &mut Context<'_>) {
        while let Some(weight) = self.executor.next_weight() {
            let total = self.held() + weight;
            if !self.quota.covers(cx, total) {
                break;
            }
            let Some(ready) = self.executor.pop_waiting() else { break };
            self.start(cx, ready);
        }
        self.act(cx);
    }

    /// Nobody waits for this answer, but the machine waits for the end.
    fn abort(&mut self, task: TaskId) {
        if let Some(Ready { task, mark, .. }) = self.executor.abort(task) {
            let (status, data, sense) = (Status::TaskAborted, Vec::new(), Bytes::new());
            self.answer(task, mark, Response { status, data, sense });
        }
    }

    /// Lets the machine ask for data as far as there is room for them.
    fn solicit(&mut self, cx: &mut Context<'_>) {
        while let Some(wanted) = self.session.solicited_wanted() {
            let Wanted { now, later } = wanted;
            let total = self.held() + now;
            if !self.quota.covers_part(cx, total, later) {
                break;
            }
            self.session.allow_solicited(self.session.solicited() + now);
        }
    }

    /// Bytes the session holds that had to be paid for.
    fn held(&mut self) -> u64 {
        // What a task has given back is to be paid for anew: without this it would be granted to the next one for nothing.
        self.session.allow_solicited(self.session.solicited());
        self.session.solicited() + self.executor.held() + self.session.unsent() as u64
    }

    fn answer(&mut self, task: TaskId, mark: Mark, Response { status, data, sense }: Response) {
        let meter = &self.handle.entry.meter;
        if self.session.is_aborted(task) {
            meter.aborted();
        } else if status != Status::Good {
            meter.ended_badly(mark.kind, &sense);
        }
        let bytes = mark.out + data.iter().map(|piece| piece.len() as u64).sum::<u64>();
        self.finished.push((mark, bytes));
        self.session.complete(task, Reply { status, data: Pieces::from(data), sense });
    }

    /// Counts what has ended, with one look at the clock.
    fn settle(&mut self) {
        if self.finished.is_empty() {
            return;
        }
        let now = self.clock.now().since_origin();
        for (mark, bytes) in self.finished.drain(..) {
            let took = now.saturating_sub(mark.started.since_origin());
            self.handle.entry.meter.ended(mark.kind, bytes, took);
            if took >= self.slow {
                report_slow(&self.log_limiter, &self.handle.entry, mark, bytes, took);
            }
        }
    }

    fn manage(&mut self, request: Request, asked: TaskFunction, lun: [u8; 8]) {
        let Some(device) = self.device.clone() else { return };
        let (entry, sessions) = (Arc::clone(&self.handle.entry), self.sessions.clone());
        let peer = entry.transport.peer;
        if let Some(Permit { suppressed }) = self.log_limiter.permit(peer) {
            let (initiator, function) = (&*entry.identity.name, asked);
            info!(%peer, initiator, target = device.name(), ?function, suppressed, "task management");
        }
        self.errands.push(Box::pin(async move {
            let outcome = match function(asked, lun) {
                Some(function) => manage(&sessions, &entry, &device, function).await,
                None => Outcome::Complete,
            };
            (request, response(outcome))
        }));
    }

    fn send_targets(&mut self, cid: u16, selection: &Selection) {
        let Targets { established, portals } = &self.targets;
        let Some(line) = self.lines.iter().find(|line| line.cid == cid) else { return };
        let chosen = established.visible.iter().filter(|name| match selection {
            Selection::All => true,
            Selection::Named(wanted) => name.as_str() == wanted,
            Selection::Current => established.target.as_ref() == Some(name),
        });
        let records: Vec<_> = chosen.map(|name| record(name, portals, line.here)).collect();
        self.session.targets(cid, &records);
    }
}

fn report_slow(limiter: &LogLimiter, entry: &Entry, mark: Mark, bytes: u64, took: Duration) {
    let peer = entry.transport.peer;
    let Some(Permit { suppressed }) = limiter.permit(peer) else { return };
    let (initiator, target) = (&*entry.identity.name, entry.identity.target.as_deref());
    let opcode = format!("{:#04x}", mark.opcode);
    warn!(%peer, initiator, target, opcode, bytes, ?took, suppressed, "slow command");
}

/// However it ends, the units forget the nexus before another session can take the seat.
impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            device.detach(self.handle.entry.nexus);
        }
    }
}
