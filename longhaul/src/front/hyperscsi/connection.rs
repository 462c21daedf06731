//! A connection of a client: a session with each target of which it may use units, under one I_T nexus each.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use proto::hyperscsi::{
    Address, Command, ConnectionId, Device, Endpoint, Handle, Level, Reply, Request, TaskFunction,
    TaskResponse,
};
use proto::identity::PublicKey;
use proto::scsi::{Status, lun};
use proto::time::Time;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::node::{Entry, Node, SessionInfo, identity};
use super::tasks::{Arrival, Tasks};
use crate::target::lun::{Initiator, Response, TargetDevice};
use crate::target::sessions::{
    AddSessionError, EndReason, SessionHandle, SessionMessage, Sessions,
};
use crate::target::task_management::{self, Function, Outcome};
use crate::task::unless_broken;

/// The longest command block that a unit may know; others are refused by their first byte.
const CDB_LEN: usize = 16;

/// A task management function under way.
pub(super) type Managing =
    Pin<Box<dyn Future<Output = (ConnectionId, Request, TaskResponse)> + Send>>;

/// A session with one target.
struct Session {
    device: Arc<TargetDevice>,
    tasks: Tasks<Request>,
    /// Dropped last: the session is gone then.
    handle: SessionHandle<SessionInfo>,
}

/// A connection of a client.
pub(super) struct Connection {
    client: PublicKey,
    peer: String,
    sessions: Vec<Session>,
    /// The session and the unit of each device, by its handle.
    devices: Vec<(usize, u16)>,
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

/// How a client is called where it is.
pub(super) fn shown(from: Endpoint) -> String {
    match from.address {
        Address::Ethernet(octets) => host::link::Mac(octets).to_string(),
        Address::Ip(address) => address.to_string(),
    }
}

/// Makes the sessions of a client that has proven its key, once those that they replace have ended. `None` if it may use
/// nothing.
pub(super) async fn admit(node: &Node, client: PublicKey, peer: String) -> Option<Admitted> {
    let (mut sessions, mut places, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    for (target, volumes) in node.volumes(client) {
        let identity = identity(client, 0, &target);
        let info = || SessionInfo { peer: peer.clone() };
        let handle = loop {
            match node.sessions().add(&identity, node.quota(), info) {
                Ok(handle) => break handle,
                Err(AddSessionError::Taken(old)) => old.gone().await,
                Err(AddSessionError::Full) => return None,
            }
        };
        let device = node.target.serving().device(&handle.entry)?;
        device.attach(handle.entry.nexus, &(Arc::clone(&handle.entry) as Arc<dyn Initiator>));
        for (name, unit) in volumes.into_iter().filter(|(_, unit)| device.has(lun::encode(*unit))) {
            let handle = Handle(u16::try_from(places.len()).ok()?);
            let read_only = !device.writable().any(|writable| writable == unit);
            places.push((sessions.len(), unit));
            devices.push(Device { handle, name: name.into(), level: Level::Encrypt, read_only });
        }
        sessions.push(Session { device, tasks: Tasks::new(&node.pools), handle });
    }
    let connection = Connection { client, peer, sessions, devices: places };
    (!devices.is_empty()).then_some(Admitted { connection, devices })
}

impl Connection {
    pub(super) const fn client(&self) -> PublicKey {
        self.client
    }

    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    fn find(&mut self, device: Handle) -> Option<(&mut Session, u16)> {
        let (session, unit) = *self.devices.get(usize::from(device.0))?;
        Some((self.sessions.get_mut(session)?, unit))
    }

    /// Begins a command; its answer, if that is known without a unit.
    pub(super) fn begin(
        &mut self,
        cx: &mut Context<'_>,
        now: Time,
        request: Request,
        command: Command,
    ) -> Option<Reply> {
        let Command { device, cdb, data_out, data_in_len, .. } = command;
        let Some((session, unit)) = self.find(device) else {
            // The machine knows the handles, so that this is no device of a client.
            return Some(Reply::status(Status::Busy));
        };
        let mut block = [0; CDB_LEN];
        block.iter_mut().zip(&cdb).for_each(|(to, from)| *to = *from);
        let arrival = Arrival {
            task: request,
            lun: unit,
            cdb: block,
            data: data_out,
            room: data_in_len,
            arrived: now,
        };
        session.tasks.begin(cx, (&session.handle.entry, &session.device), arrival, 0);
        None
    }

    /// The next command that has ended. What was aborted is answered so: its slot is free then.
    pub(super) fn poll_reply(&mut self, cx: &mut Context<'_>, now: Time) -> Poll<(Request, Reply)> {
        for Session { tasks, handle, .. } in &mut self.sessions {
            if let Poll::Ready((request, room, response)) = tasks.poll(cx, &handle.entry, 0, now) {
                let aborted = || Reply::status(Status::TaskAborted);
                let reply = response.map_or_else(aborted, |response| reply(response, room));
                return Poll::Ready((request, reply));
            }
            tasks.give_back(0);
        }
        Poll::Pending
    }

    /// Does what other sessions, or the node, ask for; fails if the connection ends by it.
    pub(super) fn poll_messages(&mut self, cx: &mut Context<'_>) -> Result<(), EndOfConnection> {
        for session in &mut self.sessions {
            while let Poll::Ready(message) = session.handle.messages.poll_recv(cx) {
                session.take(message.ok_or(EndOfConnection::Stopped)?)?;
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
            SessionMessage::End(why) => return Err(why.into()),
            SessionMessage::LogOut => return Err(EndOfConnection::Changed),
        }
        Ok(())
    }
}

/// The reply to an initiator that has room for so much data-in.
fn reply(Response { status, data, sense }: Response, room: u32) -> Reply {
    let len: usize = data.iter().map(Bytes::len).sum();
    let room = room as usize;
    let residual = i32::try_from(room as i64 - len as i64).unwrap_or_default();
    Reply { status, sense, residual, data_in: joined(data, len.min(room)) }
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
