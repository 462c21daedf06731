//! A transport within the process: it shows what `longhaul::target` asks of a transport protocol, and takes tests to a
//! target without iSCSI. A session is a task that owns its commands; a [`Client`] is its initiator port, under the names of
//! [`plain`].

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use longhaul::target::executor::{CommandRecord, Executor, Place, Ready};
use longhaul::target::lun::{Command, Initiator, Response, TargetDevice};
use longhaul::target::node::{Authorization, Node};
use longhaul::target::sessions::{
    AddSessionError, ClientQuota, Identity, SessionEntry, SessionHandle, SessionMessage,
};
use longhaul::target::shares::Turns;
use longhaul::target::task_management::{Function, Outcome, manage};
use proto::client::ClientId;
use proto::scsi::rights::Rights;
use proto::scsi::transport::plain;
use proto::scsi::{DeviceType, Parsed, Status, command, lun};
use proto::time::Time;
use tokio::sync::{mpsc, oneshot};

const QUOTA: ClientQuota = ClientQuota { sessions: 64, connections: 64 };

/// The rights of clients by the names of their devices; all rights for those that have none here.
#[derive(Clone, Debug, Default)]
pub struct Masks(pub BTreeMap<String, Rights>);

impl Authorization for Masks {
    type Session = ();

    fn rights(&self, session: &SessionEntry<()>) -> Option<Rights> {
        Some(self.0.get(&*session.identity.name).cloned().unwrap_or(Rights::All))
    }

    fn administers(&self, _session: &SessionEntry<()>) -> bool {
        false
    }

    fn keeps(&self, _before: &Self, _session: &SessionEntry<()>) -> bool {
        true
    }
}

/// What a session is asked for by its initiator.
enum Request {
    Execute { lun: u16, cdb: [u8; 16], data: Bytes, answer: oneshot::Sender<Response> },
    Manage(Function, oneshot::Sender<Outcome>),
}

/// An initiator port that is logged in. The session ends when it is dropped.
#[derive(Debug)]
pub struct Client(mpsc::UnboundedSender<Request>);

impl Client {
    /// Logs in to a target of `node` as port 1 of the device with this name, in place of the session that has it. `None` if the
    /// client may use nothing there.
    pub async fn log_in(node: &Arc<Node<Masks>>, name: &str, target: &str) -> Option<Self> {
        let identity = Identity {
            initiator: plain::port(name, 1),
            name: name.into(),
            client: ClientId::Account(name.to_owned()),
            target: Some(target.into()),
            target_port: 1,
        };
        let handle = loop {
            match node.sessions.add(&identity, QUOTA, || ()) {
                Ok(handle) => break handle,
                Err(AddSessionError::Taken(old)) => old.gone().await,
                Err(AddSessionError::Full) => return None,
            }
        };
        let device = node.serving().device(&handle.entry)?;
        device.attach(handle.entry.nexus, &(Arc::clone(&handle.entry) as Arc<dyn Initiator>));
        let (sender, requests) = mpsc::unbounded_channel();
        let node = Arc::clone(node);
        let tasks = Tasks::new(handle.entry.turns());
        tokio::spawn(Session { node, requests, device, tasks, handle }.run());
        Some(Self(sender))
    }

    /// Has a command executed; `None` if it was aborted, or the session has ended.
    pub async fn execute(
        &self,
        lun: u16,
        command: command::Command,
        data: impl Into<Bytes>,
    ) -> Option<Response> {
        let (answer, response) = oneshot::channel();
        let data = data.into();
        self.0.send(Request::Execute { lun, cdb: command.cdb, data, answer }).ok()?;
        response.await.ok()
    }

    /// Has a task management function carried out; `None` if the session has ended.
    pub async fn manage(&self, function: Function) -> Option<Outcome> {
        let (answer, outcome) = oneshot::channel();
        self.0.send(Request::Manage(function, answer)).ok()?;
        outcome.await.ok()
    }
}

/// The tasks of a session.
struct Tasks {
    executor: Executor<u64>,
    /// Where each is, and who waits for its answer. An aborted task is not answered.
    waiting: BTreeMap<u64, (u16, Option<oneshot::Sender<Response>>)>,
    last: u64,
    /// Those that have to end before somebody is told.
    clearing: Vec<(BTreeSet<u64>, oneshot::Sender<()>)>,
}

impl Tasks {
    fn new(turns: Turns) -> Self {
        let (waiting, last, clearing) = <_>::default();
        Self { executor: Executor::new(turns), waiting, last, clearing }
    }

    fn abort(&mut self, unit: Option<u16>, done: oneshot::Sender<()>) {
        let mut aborted = BTreeSet::new();
        for (task, (lun, answer)) in &mut self.waiting {
            if unit.is_none_or(|unit| unit == *lun) {
                *answer = None;
                match self.executor.abort(*task) {
                    // It had not begun, and never does.
                    Some(_) => {}
                    None => drop(aborted.insert(*task)),
                }
            }
        }
        self.clearing.push((aborted, done));
        self.tell_cleared();
    }

    fn end(&mut self, task: u64, response: Response) {
        if let Some((_, Some(answer))) = self.waiting.remove(&task) {
            let _ = answer.send(response);
        }
        self.tell_cleared();
    }

    fn tell_cleared(&mut self) {
        let waiting = &self.waiting;
        self.clearing.iter_mut().for_each(|(tasks, _)| tasks.retain(|it| waiting.contains_key(it)));
        let (ended, clearing): (Vec<_>, _) =
            self.clearing.drain(..).partition(|(tasks, _)| tasks.is_empty());
        self.clearing = clearing;
        for (_, done) in ended {
            let _ = done.send(());
        }
    }
}

struct Session {
    node: Arc<Node<Masks>>,
    requests: mpsc::UnboundedReceiver<Request>,
    device: Arc<TargetDevice>,
    tasks: Tasks,
    /// Dropped last: the session is gone then.
    handle: SessionHandle<()>,
}

impl Session {
    async fn run(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
        self.tasks.executor.drain().await;
        self.device.detach(self.handle.entry.nexus);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(message) = self.handle.messages.poll_recv(cx) {
            if message.is_none_or(|message| self.ends_by(message)) {
                return Poll::Ready(());
            }
        }
        while let Poll::Ready(request) = self.requests.poll_recv(cx) {
            let Some(request) = request else { return Poll::Ready(()) };
            self.begin(cx, request);
        }
        while let Poll::Ready((task, record, response)) = self.tasks.executor.poll(cx) {
            self.ended(task, record, response);
        }
        for ready in self.tasks.executor.poll_turns(cx) {
            self.start(cx, ready);
        }
        Poll::Pending
    }

    /// Does what another session, or the node, asks for; whether this session ends by it.
    fn ends_by(&mut self, message: SessionMessage) -> bool {
        match message {
            SessionMessage::Clear(unit, done) => self.tasks.abort(unit, done),
            SessionMessage::Changed(device, done) => {
                let old = std::mem::replace(&mut self.device, Arc::clone(&device));
                let initiator: Arc<dyn Initiator> = Arc::clone(&self.handle.entry) as _;
                device.succeed(&old, self.handle.entry.nexus, &initiator);
                let _ = done.send(());
            }
            SessionMessage::ColdReset(units) => {
                return self.device.luns().all(|unit| units.contains(&unit));
            }
            SessionMessage::Demanded => {}
            SessionMessage::End(_) | SessionMessage::LogOut => return true,
        }
        false
    }

    fn start(&mut self, cx: &mut Context<'_>, ready: Ready<u64>) {
        let nexus = self.handle.entry.nexus;
        if let Some((task, record, response)) = self.tasks.executor.start(cx, nexus, ready) {
            self.ended(task, record, response);
        }
    }

    fn begin(&mut self, cx: &mut Context<'_>, request: Request) {
        match request {
            Request::Execute { lun: number, cdb, data, answer } => {
                let parsed = Parsed::of(&cdb, DeviceType::Disk);
                let unit = Arc::clone(self.device.unit(lun::encode(number)));
                let out = data.len() as u64;
                let (kind, opcode) = (parsed.traits.kind, parsed.opcode);
                let record = CommandRecord { kind, opcode, started: Time::ZERO, out };
                let announced = data.len() as u32;
                let command = Command { parsed, data: vec![data], announced };
                self.tasks.last += 1;
                let task = self.tasks.last;
                self.tasks.waiting.insert(task, (number, Some(answer)));
                self.handle.entry.meter.began();
                let bytes = u64::from(unit.working_memory(&command.parsed)).max(out);
                let place = Place { lun: number, bytes, ..Place::default() };
                let (weight, service) = (0, None);
                let ready = Ready { task, record, weight, unit, command, place, service };
                if let Some(ready) = self.tasks.executor.take_turn(cx, ready) {
                    self.start(cx, ready);
                }
            }
            Request::Manage(function, answer) => {
                let (node, entry) = (Arc::clone(&self.node), Arc::clone(&self.handle.entry));
                let device = Arc::clone(&self.device);
                let (done, cleared) = oneshot::channel();
                self.tasks.abort(unit_of(function), done);
                tokio::spawn(async move {
                    let _ = cleared.await;
                    let outcome = manage(&node.sessions, &entry, &device, function).await;
                    let _ = answer.send(outcome);
                });
            }
        }
    }

    fn ended(&mut self, task: u64, record: CommandRecord, response: Response) {
        let meter = &self.handle.entry.meter;
        if response.status != Status::Good {
            meter.ended_badly(record.kind, &response.sense);
        }
        let bytes = record.out + response.data.iter().map(|piece| piece.len() as u64).sum::<u64>();
        meter.ended(record.kind, bytes, Time::ZERO.since_origin());
        self.tasks.end(task, response);
    }
}

/// The unit whose tasks a function ends; `None` for all units.
fn unit_of(function: Function) -> Option<u16> {
    match function {
        Function::AbortTaskSet(field)
        | Function::ClearTaskSet(field)
        | Function::LogicalUnitReset(field) => lun::decode(field),
        Function::TargetReset | Function::TargetColdReset => None,
    }
}
