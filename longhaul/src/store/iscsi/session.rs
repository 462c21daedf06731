//! One session: a task that owns its sockets and the protocol machine.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::iscsi::header::{RejectReason, TaskResponse};
use proto::iscsi::initiator::{Command, Completion, Event, Fault, Initiator, TaskError, Transfer};
use proto::iscsi::login::initiator::{Deviation, Established};
use proto::iscsi::pdu::Pieces;
use proto::scsi::command as scsi_command;
use proto::scsi::transport::Transports;
use proto::time::Time;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Sleep, sleep_until};

use super::connections::{Connection, Connections, Count, Opening, open, poll_ready};
use super::random::entropy;
use crate::net::tcp_tuning::path::combined_info;
use crate::net::tcp_tuning::{Info, discard_unsent};
use crate::store::scsi::{self, Announced, Executed, Lost, NoStatus, ResetAnswer, TransferLimits};
use crate::task::unless_broken;
use crate::transports;

/// Requests on their way to the task. Behind them the machine has a queue of its own, so a full
/// channel means that the target's window has long been full.
const REQUESTS_MAX: usize = 256;

/// Why a session has ended.
#[derive(Debug, thiserror::Error)]
pub enum Loss {
    /// The machine ended it.
    #[error("{0}")]
    Fault(Fault),
    /// The connection broke.
    #[error("the connection to {0} broke")]
    Io(String, #[source] io::Error),
    /// The target closed the connection.
    #[error("{0} closed the connection")]
    Closed(String),
    /// It was given up by us at once, with all that was under way.
    #[error("the session was given up")]
    Abandoned,
    /// It was logged out, by us or at the target's wish.
    #[error("the session was logged out")]
    LoggedOut,
    /// The task that drives it has panicked: what it had under way may still be carried out.
    #[error("an internal error: the session has broken down")]
    Broken,
}

/// How a command ended, at the unit or before it.
type Ended = Result<Completion, TaskError>;

enum Request {
    Command(Command, oneshot::Sender<Ended>),
    Ping(oneshot::Sender<Duration>),
    Path(oneshot::Sender<Info>),
    Text(Bytes, oneshot::Sender<Result<Vec<u8>, RejectReason>>),
    ResetUnit(u64, oneshot::Sender<TaskResponse>),
    AbortAll,
    Settle(oneshot::Sender<()>),
    /// Dropped when the session has ended.
    Logout(oneshot::Sender<()>),
}

/// A handle on a session. When the last one is dropped the session logs out.
#[derive(Clone, Debug)]
pub struct Session {
    requests: mpsc::Sender<Request>,
    lost: Arc<OnceLock<Arc<Loss>>>,
    announced: Arc<Announced>,
    /// It has, or had, several connections.
    several: Arc<AtomicBool>,
    /// Ends it at once.
    abandoned: Arc<Notify>,
    /// Somebody waits for the end of what is under way.
    hurried: Arc<Notify>,
    established: Arc<Established>,
    /// Where its first connection goes.
    address: Option<SocketAddr>,
}

impl Session {
    /// Drives the machine on this socket in a task of its own; gives the session once it is logged in.
    pub(super) async fn start(
        socket: TcpStream,
        peer: String,
        origin: Instant,
        machine: Initiator<oneshot::Sender<Ended>>,
        (connections, patience): (Connections, Duration),
    ) -> Result<Self, Arc<Loss>> {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let (ready, established) = oneshot::channel();
        let lost = Arc::new(OnceLock::new());
        let announced = Arc::<Announced>::default();
        let several = Arc::<AtomicBool>::default();
        let [abandoned, hurried] = [(); 2].map(|()| Arc::new(Notify::new()));
        let address = socket.peer_addr().ok();
        let driver = Driver {
            address,
            connections: vec![Some(Connection::new(socket))],
            count: Count::new(connections),
            opening: None,
            patience,
            peer,
            origin,
            machine,
            receiver,
            open: true,
            ready: Some(ready),
            pings: Vec::new(),
            text: None,
            resets: Vec::new(),
            logouts: Vec::new(),
            settles: VecDeque::new(),
            announced: Arc::clone(&announced),
            several: Arc::clone(&several),
            abandoned: Arc::clone(&abandoned),
            hurried: Arc::clone(&hurried),
        };
        tokio::spawn(driver.run(Arc::clone(&lost)));
        match established.await {
            Ok(established) => {
                let established = Arc::new(established);
                Ok(Self {
                    requests,
                    lost,
                    announced,
                    several,
                    abandoned,
                    hurried,
                    established,
                    address,
                })
            }
            Err(_) => Err(loss(&lost)),
        }
    }

    /// What the login agreed on.
    #[must_use]
    pub fn established(&self) -> &Established {
        &self.established
    }

    /// Whether it ends `other` before it begins, as a session of the same name by the same portal group does
    /// (RFC 7143, 6.3.5). An address that has come to another group is that of a target that was set up anew,
    /// where nothing is left of the sessions before.
    pub(super) fn replaces(&self, other: &Self) -> bool {
        let group = |session: &Self| session.established.portal_group_tag;
        group(self) == group(other) || (self.address.is_some() && self.address == other.address)
    }

    /// Measures the way to the target and back.
    pub async fn ping(&self) -> Result<Duration, Arc<Loss>> {
        self.ask(Request::Ping).await
    }

    /// What the kernel knows of its connections.
    pub(super) async fn path(&self) -> Result<Info, Arc<Loss>> {
        self.ask(Request::Path).await
    }

    /// Sends a text request and gives the answer.
    pub(super) async fn text(&self, text: Bytes) -> Result<Vec<u8>, Arc<Loss>> {
        let answer = self.ask(|done| Request::Text(text, done)).await?;
        answer.map_err(|reason| Arc::new(Loss::Fault(Fault::Rejected(reason))))
    }

    /// Logs out when what is in flight has ended, and waits until it is done.
    pub async fn close(&self) {
        // The answer never comes: that the asker is dropped says that the session has ended.
        let _ = self.ask(Request::Logout).await;
    }

    /// What the SCSI side of a volume has to know of a loss, with how long the target wants to be left alone (RFC 7143,
    /// 13.15 and 11.9.1).
    fn lost(&self, loss: Arc<Loss>) -> Lost {
        let wait = match &*loss {
            Loss::LoggedOut => Duration::ZERO,
            Loss::Fault(Fault::Dropped(wait)) => *wait,
            _ => Duration::from_secs(self.established.parameters.default_time2wait.into()),
        };
        Lost {
            is_logged_out: matches!(*loss, Loss::LoggedOut),
            is_stalled: matches!(*loss, Loss::Fault(Fault::Stalled { .. })),
            wait,
            why: loss,
        }
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, Arc<Loss>> {
        let (done, answer) = oneshot::channel();
        if self.requests.send(request(done)).await.is_ok()
            && let Ok(answer) = answer.await
        {
            return Ok(answer);
        }
        Err(loss(&self.lost))
    }
}

impl scsi::Session for Session {
    const TRANSPORTS: Transports = transports::ALL;
    /// CmdSN, also by several connections (RFC 7143, 4.2.2.1).
    const IN_ORDER: bool = true;

    async fn execute(&self, task: scsi::Task) -> Result<Executed, Lost> {
        let ended = self.ask(|done| Request::Command(command(task), done)).await;
        ended.map(executed).map_err(|loss| self.lost(loss))
    }

    async fn queue(&self, task: scsi::Task) -> Result<scsi::Answer, Lost> {
        let (done, answer) = oneshot::channel();
        let sent = self.requests.send(Request::Command(command(task), done)).await;
        sent.map_err(|_| self.lost(loss(&self.lost)))?;
        let session = self.clone();
        let ended = async move {
            answer.await.map(executed).map_err(|_| session.lost(loss(&session.lost)))
        };
        Ok(Box::pin(ended))
    }

    fn keeps_order(&self) -> bool {
        self.established.parameters.stops_at_failure
    }

    async fn reset_unit(&self, lun: u64) -> Result<ResetAnswer, Lost> {
        let answer = self.ask(|done| Request::ResetUnit(lun, done)).await;
        Ok(match answer.map_err(|loss| self.lost(loss))? {
            TaskResponse::COMPLETE => ResetAnswer::Complete,
            refused => ResetAnswer::Refused {
                is_final: matches!(
                    refused,
                    TaskResponse::NOT_SUPPORTED | TaskResponse::AUTHORIZATION_FAILED
                ),
                answer: format!("{refused:?}"),
            },
        })
    }

    async fn abort_all(&self) -> Result<(), Lost> {
        let sent = self.requests.send(Request::AbortAll).await;
        sent.map_err(|_| self.lost(loss(&self.lost)))
    }

    fn announced(&self) -> &Announced {
        &self.announced
    }

    fn has_several_connections(&self) -> bool {
        self.several.load(Ordering::Acquire)
    }

    async fn settle(&self) -> Result<(), Lost> {
        match self.has_several_connections() {
            true => self.ask(Request::Settle).await.map_err(|loss| self.lost(loss)),
            false => Ok(()),
        }
    }

    async fn ended(&self) -> Lost {
        self.requests.closed().await;
        self.lost(loss(&self.lost))
    }

    async fn close(&self) {
        Self::close(self).await;
    }

    fn abandon(&self) {
        self.abandoned.notify_one();
    }

    fn hurry(&self) {
        self.hurried.notify_one();
    }

    fn limits(&self) -> TransferLimits {
        let parameters = &self.established.parameters;
        TransferLimits {
            unsolicited: parameters.unsolicited().into(),
            solicited: u64::from(parameters.max_burst) * u64::from(parameters.max_outstanding_r2t),
            data_in: u64::MAX,
        }
    }
}

fn command(task: scsi::Task) -> Command {
    let scsi::Task { lun, command, data, is_ordered } = task;
    let transfer = match command.transfer {
        scsi_command::Transfer::None => Transfer::None,
        scsi_command::Transfer::In(most) => Transfer::In(most),
        scsi_command::Transfer::Out(_) => Transfer::Out(Pieces::from(data)),
    };
    Command { lun, cdb: command.cdb, transfer, is_ordered }
}

fn executed(ended: Ended) -> Executed {
    match ended {
        Ok(Completion { status, data, sense, residual }) => {
            Ok(scsi::Completion { status, data, sense, residual })
        }
        Err(TaskError::Aborted) => Err(NoStatus::Aborted),
        Err(error) => Err(NoStatus::Failed(Arc::new(error))),
    }
}

/// The driver says why before it lets go of anything.
fn loss(lost: &OnceLock<Arc<Loss>>) -> Arc<Loss> {
    lost.get().map_or_else(|| Arc::new(Loss::Broken), Arc::clone)
}

/// Drops what nobody will take any more. A request for which there was room when the session ended may come into the
/// channel only afterwards: were the receiver gone then, whoever made it would wait for ever.
async fn drop_requests(mut receiver: mpsc::Receiver<Request>) {
    receiver.close();
    while receiver.recv().await.is_some() {}
}

struct Driver {
    /// The connections, by the index the machine knows them by.
    connections: Vec<Option<Connection>>,
    count: Count,
    /// One more.
    opening: Option<Opening>,
    /// How long that may take, and where it goes.
    patience: Duration,
    address: Option<SocketAddr>,
    peer: String,
    origin: Instant,
    machine: Initiator<oneshot::Sender<Ended>>,
    receiver: mpsc::Receiver<Request>,
    /// Handles are left, so requests may come.
    open: bool,
    ready: Option<oneshot::Sender<Established>>,
    pings: Vec<oneshot::Sender<Duration>>,
    text: Option<oneshot::Sender<Result<Vec<u8>, RejectReason>>>,
    resets: Vec<oneshot::Sender<TaskResponse>>,
    logouts: Vec<oneshot::Sender<()>>,
    settles: VecDeque<oneshot::Sender<()>>,
    announced: Arc<Announced>,
    several: Arc<AtomicBool>,
    abandoned: Arc<Notify>,
    hurried: Arc<Notify>,
}

impl Driver {
    async fn run(mut self, lost: Arc<OnceLock<Arc<Loss>>>) {
        let loss = unless_broken(self.drive()).await.unwrap_or(Loss::Broken);
        match &loss {
            Loss::LoggedOut => tracing::debug!(target = self.peer, "logged out"),
            // Whoever logs in is told why it failed; there is nothing to lose yet.
            loss if self.ready.is_some() => {
                tracing::debug!(target = self.peer, "no session: {loss}");
            }
            loss => tracing::info!(target = self.peer, "session lost: {loss}"),
        }
        if !matches!(loss, Loss::LoggedOut) {
            // What the system has not sent yet is not to be sent any more: all of it is either useless or
            // will be sent again.
            for connection in self.connections.iter().flatten() {
                discard_unsent(connection.socket());
            }
        }
        // Set before the requests are dropped with the driver, so that each finds why.
        let _ = lost.set(Arc::new(loss));
        drop_requests(self.into_receiver()).await;
    }

    /// Drops the sockets, and all requests it has taken.
    fn into_receiver(self) -> mpsc::Receiver<Request> {
        self.receiver
    }

    /// Until the session ends.
    async fn drive(&mut self) -> Loss {
        let first = self.deadline().unwrap_or_else(|| Instant::now().into());
        let mut alarm = std::pin::pin!(sleep_until(first));
        loop {
            if self.tell() {
                return Loss::LoggedOut;
            }
            if let Err(loss) = self.turn(alarm.as_mut()).await {
                // What ended before the loss has ended all the same.
                self.tell();
                return loss;
            }
        }
    }

    /// Sends what can be sent, then waits for whatever comes first and takes it.
    async fn turn(&mut self, mut alarm: std::pin::Pin<&mut Sleep>) -> Result<(), Loss> {
        self.send()?;
        match self.deadline() {
            // A deadline that moved away is met by looking again at the old one.
            Some(deadline) if deadline < alarm.deadline() || alarm.is_elapsed() => {
                alarm.as_mut().reset(deadline);
            }
            _ => {}
        }
        let takes_requests = self.open && self.machine.has_room();
        let (connections, machine, origin) =
            (&mut self.connections, &mut self.machine, self.origin);
        let now = || Time::from_origin(origin.elapsed());
        tokio::select! {
            request = self.receiver.recv(), if takes_requests => self.take(request),
            () = poll_fn(|cx| poll_ready(connections, machine, cx, now)) => self.receive()?,
            opened = poll_opening(&mut self.opening), if self.opening.is_some() => {
                self.opening = None;
                self.opened(opened);
            }
            () = self.abandoned.notified() => return Err(Loss::Abandoned),
            () = self.hurried.notified() => self.machine.hurry(),
            () = alarm => {
                let now = self.now();
                self.machine.wake(now).map_err(Loss::Fault)?;
            }
        }
        self.open_more();
        Ok(())
    }

    /// Begins another connection, if there should be one.
    fn open_more(&mut self) {
        let there = self.connections.iter().flatten().count();
        if let Some(address) = self.address
            && self.opening.is_none()
            && there < self.count.get()
        {
            self.opening = Some(open(address, self.patience));
        }
    }

    /// Another connection is there, or not: then the session has those it has.
    fn opened(&mut self, opened: io::Result<TcpStream>) {
        let joined = opened.map_err(|error| error.to_string()).and_then(|socket| {
            let entropy = entropy()
                .map_err(|error| format!("the system gives no random numbers: {error}"))?;
            let on = self.machine.join(self.now(), entropy);
            Ok((on.ok_or("the session is ending")?, socket))
        });
        match joined {
            Ok((on, socket)) => {
                let connection = Connection::new(socket);
                self.count.added(&connection);
                self.connections.resize_with(self.connections.len().max(on + 1), || None);
                self.connections[on] = Some(connection);
            }
            Err(why) => self.do_without(&why),
        }
    }

    fn do_without(&mut self, why: &str) {
        let there = self.connections.iter().flatten().count();
        tracing::info!(target = self.peer, connections = there, "no further connection: {why}");
        self.count.settle_for(there);
    }

    /// Takes one request and those behind it, as far as there is room.
    fn take(&mut self, mut request: Option<Request>) {
        let now = self.now();
        loop {
            match request {
                Some(Request::Command(command, done)) => {
                    // There is room; without it the sender is dropped, which tells of the loss.
                    let _ = self.machine.submit(now, command, done);
                }
                Some(Request::Ping(done)) => {
                    self.pings.push(done);
                    self.machine.ping(now);
                }
                Some(Request::Path(done)) => {
                    let sockets = self.connections.iter().flatten().map(Connection::socket);
                    let _ = done.send(combined_info(sockets));
                }
                Some(Request::Text(text, done)) => {
                    self.text = Some(done);
                    self.machine.text(text);
                }
                Some(Request::ResetUnit(lun, done)) => {
                    self.resets.push(done);
                    self.machine.reset_unit(lun);
                }
                Some(Request::AbortAll) => self.machine.abort_all(),
                Some(Request::Settle(done)) => {
                    self.settles.push_back(done);
                    self.machine.settle();
                }
                Some(Request::Logout(done)) => {
                    self.logouts.push(done);
                    self.machine.logout(now);
                }
                None => {
                    self.open = false;
                    self.machine.logout(now);
                    return;
                }
            }
            if !self.machine.has_room() {
                return;
            }
            match self.receiver.try_recv() {
                Ok(next) => request = Some(next),
                Err(_) => return,
            }
        }
    }

    fn send(&mut self) -> Result<(), Loss> {
        for on in 0..self.connections.len() {
            if let Err(error) = self.send_by(on) {
                self.broken(on, error)?;
            }
        }
        Ok(())
    }

    fn send_by(&mut self, on: usize) -> io::Result<()> {
        let origin = self.origin;
        let Some(Some(connection)) = self.connections.get_mut(on) else { return Ok(()) };
        connection.send(&mut self.machine, on, || Time::from_origin(origin.elapsed()))
    }

    fn receive(&mut self) -> Result<(), Loss> {
        let mut last = None;
        for on in 0..self.connections.len() {
            let Some(Some(connection)) = self.connections.get_mut(on) else { continue };
            match connection.read.take() {
                None => {}
                Some(Ok((0, _))) => self.broken(on, io::ErrorKind::UnexpectedEof.into())?,
                Some(Err(error)) => self.broken(on, error)?,
                Some(Ok((_, now))) => {
                    let machine = &mut self.machine;
                    connection
                        .decode(|bytes| machine.receive(now, on, bytes))
                        .map_err(Loss::Fault)?;
                    last = last.max(Some(now));
                }
            }
        }
        if let Some(now) = last {
            self.count.look(now, &self.connections);
        }
        Ok(())
    }

    /// A connection broke. At error recovery level 0 the session goes with it (RFC 7143, 7.1.5), unless it was
    /// not part of it yet.
    fn broken(&mut self, on: usize, error: io::Error) -> Result<(), Loss> {
        if self.machine.abandon(on) {
            self.connections[on] = None;
            self.do_without(&error.to_string());
            return Ok(());
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Err(Loss::Closed(self.peer.clone())),
            _ => Err(Loss::Io(self.peer.clone(), error)),
        }
    }

    /// Tells whoever waits what the machine has to tell; whether it was that the session has ended.
    fn tell(&mut self) -> bool {
        while let Some(event) = self.machine.poll() {
            match event {
                Event::Established(established) => {
                    self.warn(&established.deviations);
                    self.count.agreed(self.machine.connections_max());
                    if let Some(ready) = self.ready.take() {
                        let _ = ready.send(*established);
                    }
                }
                Event::Deviation(deviation) => self.warn(&[deviation]),
                Event::Settled => {
                    let _ = self.settles.pop_front().map(|done| done.send(()));
                }
                Event::Joined(on) => {
                    self.several.store(true, Ordering::Release);
                    tracing::debug!(target = self.peer, on, "a connection was added");
                }
                Event::NotJoined(on, fault) => {
                    self.connections[on] = None;
                    self.do_without(&fault.to_string());
                }
                Event::Completed(done, ended) => {
                    if let Ok(Completion { status, sense, .. }) = &ended {
                        self.announced.note(*status, sense);
                    }
                    // Whoever stopped waiting does not want to know.
                    let _ = done.send(ended);
                }
                Event::Pong(elapsed) => {
                    for done in self.pings.drain(..) {
                        let _ = done.send(elapsed);
                    }
                }
                Event::Text(text) => self.told(Ok(text)),
                Event::TextRejected(reason) => self.told(Err(reason)),
                Event::UnitReset(response) => {
                    for done in self.resets.drain(..) {
                        let _ = done.send(response);
                    }
                }
                Event::UnitEvent { lun, .. } => {
                    tracing::info!(target = self.peer, lun, "the unit has something to tell");
                }
                Event::LogoutRequested(within) => {
                    tracing::warn!(target = self.peer, ?within, "the target asks for a logout");
                }
                Event::LoggedOut => return true,
            }
        }
        false
    }

    /// Says what the target gets wrong, and what follows from it.
    fn warn(&self, deviations: &[Deviation]) {
        if deviations.is_empty() {
            return;
        }
        let wrong = deviations.iter().map(Deviation::to_string).collect::<Vec<_>>().join("; ");
        let target = &self.peer;
        if deviations.iter().any(|deviation| deviation.leaves_session_unnamed()) {
            tracing::warn!(
                target,
                "the target does not keep the standard: {wrong}. It is used with one connection; \
                if that is lost while a write is under way the volume is given up, since the target may not \
                end what is left of the session"
            );
        } else {
            tracing::warn!(target, "the target does not keep the standard, but is used: {wrong}");
        }
    }

    /// How a text request ended.
    fn told(&mut self, answer: Result<Vec<u8>, RejectReason>) {
        if let Some(done) = self.text.take() {
            let _ = done.send(answer);
        }
    }

    fn now(&self) -> Time {
        Time::from_origin(self.origin.elapsed())
    }

    fn deadline(&self) -> Option<tokio::time::Instant> {
        let deadline = self.machine.deadline()?;
        Some((self.origin + deadline.since_origin()).into())
    }
}

async fn poll_opening(opening: &mut Option<Opening>) -> io::Result<TcpStream> {
    match opening {
        Some(opening) => opening.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// Then what it had under way may still be carried out, which a logout rules out.
    #[test]
    fn session_that_ended_without_a_reason_was_not_logged_out() {
        assert!(matches!(*loss(&OnceLock::new()), Loss::Broken));
    }

    /// The sender lives on with the link that is waited on.
    #[tokio::test]
    async fn request_that_comes_when_the_session_has_ended_is_told_of_it() {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let room = requests.reserve().await.unwrap();
        let mut dropped = std::pin::pin!(drop_requests(receiver));
        assert_eq!(dropped.as_mut().now_or_never(), None, "one is on its way");
        assert!(requests.is_closed());
        let (done, answer) = oneshot::channel();
        room.send(Request::Ping(done));
        dropped.await;
        assert!(answer.now_or_never().is_some_and(|answer| answer.is_err()));
    }
}
