//! A connection of a client: a session with each target of which it may use units, under one I_T nexus each.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use proto::hyperscsi::{
    ChangeStep, Command, ConnectionId, Device, Ended, Handle, Level, Reply, Request,
    Server as Machine, TaskAttribute, TaskFunction, TaskResponse,
};
use proto::identity::PublicKey;
use proto::scsi::{Status, lun};
use proto::time::Time;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::node::{ConnectionState, Entry, Node, SessionInfo, identity};
use super::tasks::{Arrival, Tasks};
use crate::net::shared_level::SharedLevel;
use crate::target::lun::{Initiator, Response, TargetDevice};
use crate::target::sessions::{
    AddSessionError, EndReason, SessionHandle, SessionMessage, Sessions,
};
use crate::target::task_management::{self, Function, Outcome};
use crate::task::unless_broken;

/// The longest command block that a unit may know; others are refused by their first byte.
const CDB_LEN: usize = 16;

/// The devices of a connection: handles above them mean the connection itself.
const DEVICES_MAX: usize = Handle::CONNECTION.0 as usize;

/// A task management function under way.
pub(super) type Managing =
    Pin<Box<dyn Future<Output = (ConnectionId, Request, TaskResponse)> + Send>>;

/// A session with one target.
struct Session {
    /// The handles of its units.
    handles: Range<u16>,
    device: Arc<TargetDevice>,
    tasks: Tasks<Request>,
    /// Dropped last: the session is gone then.
    handle: SessionHandle<SessionInfo>,
}

/// A connection of a client.
pub(super) struct Connection {
    client: PublicKey,
    port: u64,
    /// The lowest level that it takes.
    least: Level,
    peer: String,
    state: Arc<ConnectionState>,
    sessions: Vec<Session>,
    /// The session and the unit of each device, by its handle; nothing where that disk is not served any more.
    devices: Vec<Option<(usize, u16)>>,
    /// What it was told of them last.
    table: Vec<Device>,
    /// Another level may be demanded than they have.
    is_demanded: bool,
}

/// A connection that is let in, and what is told of it.
pub(super) struct Admitted {
    pub(super) connection: Connection,
    pub(super) devices: Vec<Device>,
}

/// Why a connection is ended from here.
#[derive(Debug, thiserror::Error)]
pub(super) enum EndOfConnection {
    #[error(transparent)]
    Session(#[from] EndReason),
    #[error("what it may use has changed")]
    Changed,
    #[error("the server ends")]
    Stopped,
}

impl EndOfConnection {
    /// What the client is told.
    pub(super) const fn reason(&self) -> Ended {
        match self {
            Self::Session(EndReason::Reinstated) => Ended::Replaced,
            Self::Changed | Self::Session(EndReason::Revoked) => Ended::Changed,
            Self::Session(EndReason::Reset | EndReason::TakenOver) | Self::Stopped => Ended::Closed,
        }
    }
}

/// Why a client that has proven its key is not let in.
pub(super) enum Refusal {
    /// It may use nothing, and is told nothing.
    Unknown,
    /// It may do nothing for now, and is told so.
    Paused,
    /// It has as many sessions as it may.
    Full,
}

/// Makes the sessions of an initiator port of a client that has proven its key, once those that they replace have ended. Its units
/// have the level that is demanded of it here, or the lowest one that it takes.
pub(super) async fn admit(
    node: &Node,
    (client, port, least): (PublicKey, u64, Level),
    peer: String,
) -> Result<Admitted, Refusal> {
    if node.pauses(client) {
        return Err(Refusal::Paused);
    }
    let (mut sessions, mut places, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    let state = Arc::<ConnectionState>::default();
    for (target, volumes) in node.volumes(client) {
        let identity = identity(client, port, &target);
        let (handle, level) = loop {
            let level = node.least(client, &target).max(least);
            let connection = || Arc::clone(&state);
            let info = || SessionInfo {
                peer: peer.clone(),
                level: Arc::new(SharedLevel::new(level)),
                connection: connection(),
            };
            match node.sessions().add(&identity, node.quota(), info) {
                Ok(handle) => break (handle, level),
                Err(AddSessionError::Taken(old)) => old.gone().await,
                Err(AddSessionError::Full) => return Err(Refusal::Full),
            }
        };
        let device = node.target.serving().device(&handle.entry).ok_or(Refusal::Unknown)?;
        // A reload looks only at sessions that are there: it may demand more since the level was chosen.
        if level < node.least(client, &target) {
            return Err(Refusal::Unknown);
        }
        device.attach(handle.entry.nexus, &(Arc::clone(&handle.entry) as Arc<dyn Initiator>));
        let first = places.len() as u16;
        for (name, unit) in volumes.into_iter().filter(|(_, unit)| device.has(lun::encode(*unit))) {
            if places.len() >= DEVICES_MAX {
                return Err(Refusal::Full);
            }
            let handle = Handle(places.len() as u16);
            let read_only = !device.writable().any(|writable| writable == unit);
            places.push(Some((sessions.len(), unit)));
            devices.push(Device { handle, name: name.into(), level, read_only });
        }
        let tasks = Tasks::new(&node.pools, handle.entry.turns());
        let handles = first..places.len() as u16;
        sessions.push(Session { handles, device, tasks, handle });
    }
    let connection = Connection {
        client,
        port,
        least,
        peer,
        state,
        sessions,
        devices: places,
        table: devices.clone(),
        is_demanded: false,
    };
    if devices.is_empty() {
        return Err(Refusal::Unknown);
    }
    Ok(Admitted { connection, devices })
}

impl Connection {
    pub(super) const fn client(&self) -> PublicKey {
        self.client
    }

    /// Its initiator port.
    pub(super) const fn port(&self) -> u64 {
        self.port
    }

    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// Notes for the status how it is.
    pub(super) fn note(&self, machine: &Machine, id: ConnectionId) {
        self.state.note(machine, id);
    }

    /// Whether no command of it runs.
    pub(super) fn is_idle(&self) -> bool {
        self.sessions.iter().all(|session| session.tasks.is_idle())
    }

    fn find(&mut self, device: Handle) -> Option<(&mut Session, u16)> {
        let (session, unit) = (*self.devices.get(usize::from(device.0))?)?;
        Some((self.sessions.get_mut(session)?, unit))
    }

    /// Begins a command, beside the answers that `unsent` tells of for these handles. Fails if the disk that the client has
    /// opened is not there any more: whatever is in its place now is another one.
    pub(super) fn begin(
        &mut self,
        cx: &mut Context<'_>,
        now: Time,
        (request, command): (Request, Command),
        unsent: impl Fn(Range<u16>) -> u64,
    ) -> Result<(), EndOfConnection> {
        let Command { device, cdb, data_out, data_in_len, attribute, priority } = command;
        // The machine knows the handles, so that it is one of those that were given out.
        let (session, unit) = self.find(device).ok_or(EndOfConnection::Changed)?;
        let mut block = [0; CDB_LEN];
        block.iter_mut().zip(&cdb).for_each(|(to, from)| *to = *from);
        let arrival = Arrival {
            task: request,
            lun: unit,
            cdb: block,
            data: data_out,
            room: data_in_len,
            priority,
            in_order: attribute != TaskAttribute::Simple,
            arrived: now,
        };
        let unsent = unsent(session.handles.clone());
        session.tasks.begin(cx, (&session.handle.entry, &session.device), arrival, unsent);
        Ok(())
    }

    /// The next command that has ended. What was aborted is answered so: its slot is free then.
    pub(super) fn poll_reply(
        &mut self,
        cx: &mut Context<'_>,
        now: Time,
        unsent: impl Fn(Range<u16>) -> u64,
    ) -> Poll<(Request, Reply)> {
        for Session { handles, tasks, handle, .. } in &mut self.sessions {
            let unsent = unsent(handles.clone());
            let ended = tasks.poll(cx, &handle.entry, unsent, now);
            if let Poll::Ready((request, room, response)) = ended {
                let aborted = || Reply::status(Status::TaskAborted);
                let reply = response.map_or_else(aborted, |response| reply(response, room));
                return Poll::Ready((request, reply));
            }
            tasks.give_back(unsent);
        }
        Poll::Pending
    }

    /// Does what other sessions, or the node, ask for; fails if the connection ends by it.
    pub(super) fn poll_messages(&mut self, cx: &mut Context<'_>) -> Result<(), EndOfConnection> {
        for (number, session) in self.sessions.iter_mut().enumerate() {
            while let Poll::Ready(message) = session.handle.messages.poll_recv(cx) {
                let message = message.ok_or(EndOfConnection::Stopped)?;
                self.is_demanded |= matches!(message, SessionMessage::Demanded);
                if let SessionMessage::Changed(device, _) = &message {
                    let stays = |unit| device.shares(&session.device, unit);
                    for place in &mut self.devices {
                        place.take_if(|(of, unit)| *of == number && !stays(*unit));
                    }
                }
                let is_beside = |place: &Option<(usize, u16)>| {
                    place.is_some_and(|(session, _)| session != number)
                };
                if matches!(message, SessionMessage::ColdReset(_))
                    && self.devices.iter().any(is_beside)
                {
                    // The sessions with other targets would end with it, which the one who resets may not touch.
                    continue;
                }
                session.take(message)?;
            }
        }
        Ok(())
    }

    /// The devices as they are to be, if that is another level than they have.
    pub(super) fn poll_demanded(&mut self, node: &Node) -> Option<Vec<Device>> {
        if !std::mem::take(&mut self.is_demanded) {
            return None;
        }
        let before = self.table.clone();
        for session in &self.sessions {
            let level = node.level(&session.handle.entry, self.least);
            let devices = self.table.iter_mut();
            let of_session = devices.filter(|device| session.handles.contains(&device.handle.0));
            of_session.for_each(|device| device.level = level);
        }
        (self.table != before).then(|| self.table.clone())
    }

    /// Whether data of a device are not protected.
    pub(super) fn is_unprotected(&self) -> bool {
        self.table.iter().any(|device| device.level == Level::None)
    }

    /// The client has taken these levels, or has refused them; fails if less is left than is demanded.
    pub(super) fn changed(&mut self, node: &Node, step: ChangeStep) -> Result<(), EndOfConnection> {
        for session in &self.sessions {
            let (entry, first) = (&session.handle.entry, usize::from(session.handles.start));
            let level = self.table.get_mut(first..usize::from(session.handles.end));
            let Some([device, rest @ ..]) = level else { continue };
            let now = entry.transport.level.get();
            match step {
                ChangeStep::Begun => entry.transport.level.set(device.level.min(now)),
                ChangeStep::Complete => entry.transport.level.set(device.level),
                ChangeStep::Refused if now < node.level(entry, self.least) => {
                    return Err(EndOfConnection::Changed);
                }
                ChangeStep::Refused => {
                    device.level = now;
                    rest.iter_mut().for_each(|other| other.level = now);
                }
            }
        }
        Ok(())
    }

    /// Begins a task management function. Its own tasks end first.
    pub(super) fn manage(
        &mut self,
        sessions: Sessions<SessionInfo>,
        (id, request): (ConnectionId, Request),
        device: Handle,
        function: TaskFunction,
    ) -> Managing {
        let Some((session, unit)) = self.find(device) else {
            return Box::pin(async move { (id, request, TaskResponse::NoSuchDevice) });
        };
        let (done, cleared) = oneshot::channel();
        let field = lun::encode(unit);
        let function = match function {
            TaskFunction::AbortTask(task) => {
                let is_there = session.tasks.clear_task(task, done);
                let response =
                    if is_there { TaskResponse::Complete } else { TaskResponse::NoSuchTask };
                return Box::pin(async move {
                    let _ = cleared.await;
                    (id, request, response)
                });
            }
            TaskFunction::ClearAca => {
                return Box::pin(async move { (id, request, TaskResponse::Unsupported) });
            }
            TaskFunction::AbortTaskSet => Function::AbortTaskSet(field),
            TaskFunction::ClearTaskSet => Function::ClearTaskSet(field),
            TaskFunction::LogicalUnitReset => Function::LogicalUnitReset(field),
        };
        session.tasks.clear(Some(unit), done);
        let (entry, device) = (Arc::clone(&session.handle.entry), Arc::clone(&session.device));
        Box::pin(async move {
            let _ = cleared.await;
            (id, request, manage(&sessions, &entry, &device, function).await)
        })
    }

    /// Its sessions end once none of their commands runs any more.
    pub(super) fn end(self, ending: &mut JoinSet<()>) {
        for mut session in self.sessions {
            ending.spawn(async move {
                // A command that panics is taken out by that, so that the others can be waited for.
                while unless_broken(session.tasks.drain()).await.is_none() {}
            });
        }
    }
}

/// However a session ends, the units forget its nexus before another one can take its place.
impl Drop for Session {
    fn drop(&mut self) {
        self.device.detach(self.handle.entry.nexus);
    }
}

async fn manage(
    sessions: &Sessions<SessionInfo>,
    by: &Entry,
    device: &TargetDevice,
    function: Function,
) -> TaskResponse {
    match task_management::manage(sessions, by, device, function).await {
        Outcome::Complete => TaskResponse::Complete,
        Outcome::IncorrectLun => TaskResponse::NoSuchDevice,
        Outcome::NotAuthorized => TaskResponse::Rejected,
    }
}

impl Session {
    fn take(&mut self, message: SessionMessage) -> Result<(), EndOfConnection> {
        match message {
            SessionMessage::Clear(unit, done) => self.tasks.clear(unit, done),
            SessionMessage::Changed(device, done) => {
                let old = std::mem::replace(&mut self.device, device);
                let entry = &self.handle.entry;
                let initiator: Arc<dyn Initiator> = Arc::clone(entry) as _;
                self.device.succeed(&old, entry.nexus, &initiator);
                let _ = done.send(());
            }
            SessionMessage::ColdReset(units) => {
                if self.device.luns().all(|unit| units.contains(&unit)) {
                    return Err(EndReason::Reset.into());
                }
            }
            SessionMessage::Demanded => {}
            SessionMessage::End(why) => return Err(why.into()),
            SessionMessage::LogOut => return Err(EndOfConnection::Changed),
        }
        Ok(())
    }
}

/// The reply to an initiator that has room for so much data-in.
fn reply(Response { status, data, sense, residual }: Response, room: u32) -> Reply {
    let len: usize = data.iter().map(Bytes::len).sum();
    let residual = match (room, len) {
        // Nothing was to come: it is of the data-out.
        (0, 0) => residual,
        _ => residual.behind(room, u32::try_from(len).unwrap_or(u32::MAX)),
    };
    let residual = i32::try_from(residual.missing()).unwrap_or_default();
    Reply { status, sense, residual, data_in: joined(data, len.min(room as usize)) }
}

/// The first `len` bytes of `pieces`: copied only if they came in several.
fn joined(pieces: Vec<Bytes>, len: usize) -> Bytes {
    match <[Bytes; 1]>::try_from(pieces) {
        Ok([only]) => only.slice(..len),
        Err(pieces) => {
            let mut all = BytesMut::with_capacity(len);
            for piece in pieces {
                let left = len - all.len();
                all.extend_from_slice(piece.get(..left).unwrap_or(&piece));
            }
            all.freeze()
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::scsi::{Residual, Status};

    use super::*;

    #[test]
    fn residual_is_that_of_the_data_in_or_else_of_the_data_out() {
        for (room, len, residual, told) in [
            (512, 100, Residual::None, 412),
            (100, 512, Residual::None, -412),
            (100, 512, Residual::Over(8), -420),
            (512, 100, Residual::Over(8), 412),
            (0, 0, Residual::Under(300), 300),
            (0, 0, Residual::Over(300), -300),
            (0, 0, Residual::None, 0),
            (512, 0, Residual::Under(9), 512),
        ] {
            let data = if len == 0 { vec![] } else { vec![Bytes::from(vec![7; len])] };
            let response = Response { status: Status::Good, data, sense: Bytes::new(), residual };
            assert_eq!(reply(response, room).residual, told);
        }
    }
}
