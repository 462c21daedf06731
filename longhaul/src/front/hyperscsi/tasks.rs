//! The tasks of a session: from the commands of its connection to the units and back, within the memory that it has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use proto::scsi::{Parsed, Residual, Status, lun};
use proto::time::Time;
use tokio::sync::oneshot;

use crate::target::executor::{CommandRecord, Executor, Place, Ready};
use crate::target::lun::{Command, Response, TargetDevice};
use crate::target::memory_quota::{Pools, Quota};
use crate::target::sessions::SessionEntry;
use crate::target::shares::Turns;

/// The longest answer of a command that moves no blocks.
const ANSWER_MAX: u32 = 64 << 10;

/// A command that has arrived, with all its data-out.
pub(super) struct Arrival<T> {
    /// Its task.
    pub(super) task: T,
    /// The unit it is for.
    pub(super) lun: u16,
    pub(super) cdb: [u8; 16],
    pub(super) data: Bytes,
    /// How much data-in the initiator has room for.
    pub(super) room: u32,
    /// A hint: those of a higher one go first.
    pub(super) priority: u8,
    /// Its task attribute is another than SIMPLE.
    pub(super) in_order: bool,
    /// When it came.
    pub(super) arrived: Time,
}

/// A task that has ended, and how much data-in its initiator has room for; without a response if it was aborted.
pub(super) type Ended<T> = (T, u32, Option<Response>);

/// The same, not counted yet.
struct Uncounted<T> {
    task: T,
    room: u32,
    record: CommandRecord,
    response: Response,
    is_aborted: bool,
}

impl<T> Uncounted<T> {
    fn len(&self) -> u64 {
        self.response.data.iter().map(|piece| piece.len() as u64).sum()
    }

    fn counted<S>(self, entry: &SessionEntry<S>, now: Time) -> Ended<T> {
        let CommandRecord { kind, started, out, .. } = self.record;
        let bytes = out + self.len();
        let Self { task, room, response, is_aborted, .. } = self;
        if is_aborted {
            entry.meter.aborted();
        } else if response.status != Status::Good {
            entry.meter.ended_badly(kind, &response.sense);
        }
        entry.meter.ended(kind, bytes, now - started);
        (task, room, (!is_aborted).then_some(response))
    }
}

/// The tasks under way; `T` names one.
pub(super) struct Tasks<T> {
    executor: Executor<T>,
    quota: Quota,
    /// The unit of each, and the room for its data-in.
    units: BTreeMap<T, (u16, u32)>,
    aborted: BTreeSet<T>,
    /// Those that have to end before somebody is told.
    clears: Vec<(BTreeSet<T>, oneshot::Sender<()>)>,
    ended: VecDeque<Uncounted<T>>,
    /// The data of those.
    ended_bytes: u64,
}

impl<T: Copy + Ord + Unpin> Tasks<T> {
    pub(super) fn new(pools: &Pools, turns: Turns) -> Self {
        Self {
            executor: Executor::new(turns),
            quota: Quota::new(pools),
            units: BTreeMap::new(),
            aborted: BTreeSet::new(),
            clears: Vec::new(),
            ended: VecDeque::new(),
            ended_bytes: 0,
        }
    }

    /// Runs a command, or lets it wait for its turn, and until there is memory for its answer beside `unsent` bytes of others.
    pub(super) fn begin<S>(
        &mut self,
        cx: &mut Context<'_>,
        (entry, device): (&SessionEntry<S>, &TargetDevice),
        arrival: Arrival<T>,
        unsent: u64,
    ) {
        let Arrival { task, lun: number, cdb, data, room, priority, in_order, arrived } = arrival;
        let unit = Arc::clone(device.unit(lun::encode(number)));
        let parsed = Parsed::of(&cdb, unit.device_type());
        let asked = unit.working_memory(&parsed);
        let weight = u64::from(asked.max(room.min(ANSWER_MAX))).min(self.quota.request_max());
        let (kind, opcode) = (parsed.traits.kind, parsed.opcode);
        let record = CommandRecord { kind, opcode, started: arrived, out: data.len() as u64 };
        let announced = data.len() as u32;
        let command = Command { parsed, data: vec![data], announced };
        entry.meter.began();
        self.units.insert(task, (number, room));
        let bytes = u64::from(asked).max(record.out);
        let place = Place { lun: number, bytes, priority, in_order };
        let ready = Ready { task, record, weight, unit, command, place, service: None };
        if let Some(ready) = self.executor.take_turn(cx, ready) {
            self.admit(cx, entry, ready, unsent);
        }
    }

    /// Runs a command whose turn it is, if there is memory for its answer.
    fn admit<S>(
        &mut self,
        cx: &mut Context<'_>,
        entry: &SessionEntry<S>,
        ready: Ready<T>,
        unsent: u64,
    ) {
        let weight = ready.weight;
        let waits = self.executor.next_weight().is_some();
        let total = self.held() + unsent + weight;
        if weight == 0 || (!waits && self.quota.covers(cx, total)) {
            self.start(cx, entry, ready);
        } else {
            self.executor.wait(ready);
        }
    }

    fn start<S>(&mut self, cx: &mut Context<'_>, entry: &SessionEntry<S>, ready: Ready<T>) {
        if let Some((task, record, response)) = self.executor.start(cx, entry.nexus, ready) {
            self.end((task, record), response);
        }
    }

    /// The next task that has ended. Starts those that waited, as far as there is memory now.
    pub(super) fn poll<S>(
        &mut self,
        cx: &mut Context<'_>,
        entry: &SessionEntry<S>,
        unsent: u64,
        now: Time,
    ) -> Poll<Ended<T>> {
        while let Poll::Ready((task, record, response)) = self.executor.poll(cx) {
            self.end((task, record), response);
        }
        for ready in self.executor.poll_turns(cx) {
            self.admit(cx, entry, ready, unsent);
        }
        while let Some(weight) = self.executor.next_weight() {
            if !self.quota.covers(cx, self.held() + unsent + weight) {
                break;
            }
            let Some(ready) = self.executor.pop_waiting() else { break };
            self.start(cx, entry, ready);
        }
        match self.ended.pop_front() {
            Some(ended) => {
                self.ended_bytes -= ended.len();
                Poll::Ready(ended.counted(entry, now))
            }
            None => Poll::Pending,
        }
    }

    /// Whether there is none.
    pub(super) fn is_idle(&self) -> bool {
        self.units.is_empty() && self.ended.is_empty()
    }

    /// What runs, and what has ended and was not taken from here.
    const fn held(&self) -> u64 {
        self.executor.held() + self.ended_bytes
    }

    /// Gives back the memory that nothing needs any more.
    pub(super) fn give_back(&mut self, unsent: u64) {
        self.quota.settle(self.held() + unsent, 0);
    }

    /// Ends a task, whose answer nobody wants any more.
    pub(super) fn abort(&mut self, task: T) {
        if self.units.contains_key(&task)
            && self.aborted.insert(task)
            && let Some(Ready { record, .. }) = self.executor.abort(task)
        {
            let (status, data, sense) = (Status::TaskAborted, Vec::new(), Bytes::new());
            let response = Response { status, data, sense, residual: Residual::None };
            self.end((task, record), response);
        }
    }

    /// Ends one task and tells when it does not run any more; whether it is there.
    pub(super) fn clear_task(&mut self, task: T, done: oneshot::Sender<()>) -> bool {
        let is_there = self.units.contains_key(&task);
        self.abort(task);
        self.clears.push((BTreeSet::from([task]), done));
        self.tell_cleared();
        is_there
    }

    /// Ends the tasks on a unit, or all of them, and tells when none of them runs any more.
    pub(super) fn clear(&mut self, unit: Option<u16>, done: oneshot::Sender<()>) {
        let on_unit = self.units.iter().filter(|(_, on)| unit.is_none_or(|unit| unit == on.0));
        let tasks: BTreeSet<T> = on_unit.map(|(task, _)| *task).collect();
        tasks.iter().for_each(|task| self.abort(*task));
        self.clears.push((tasks, done));
        self.tell_cleared();
    }

    fn end(&mut self, (task, record): (T, CommandRecord), response: Response) {
        let is_aborted = self.aborted.remove(&task);
        let (_, room) = self.units.remove(&task).unwrap_or_default();
        let ended = Uncounted { task, room, record, response, is_aborted };
        self.ended_bytes += ended.len();
        self.ended.push_back(ended);
        self.tell_cleared();
    }

    fn tell_cleared(&mut self) {
        let units = &self.units;
        self.clears.iter_mut().for_each(|(tasks, _)| tasks.retain(|task| units.contains_key(task)));
        let (done, clears): (Vec<_>, _) =
            self.clears.drain(..).partition(|(tasks, _)| tasks.is_empty());
        self.clears = clears;
        for (_, done) in done {
            let _ = done.send(());
        }
    }

    /// Forgets what waits and ends what runs: nothing of this session reaches a unit afterwards.
    pub(super) async fn drain(&mut self) {
        self.executor.drain().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::task::noop_waker_ref;
    use proto::client::ClientId;
    use proto::scsi::Blocks;
    use proto::scsi::command::{Command, Transfer};
    use proto::scsi::device_type::DeviceType;
    use proto::scsi::transport::{InitiatorPort, Protocol};
    use volume::Volume;
    use volume::store::blocked_writes::BlockedWrites;
    use volume::store::memory::Memory;

    use super::*;
    use crate::target::fair_queue::Share;
    use crate::target::lun::Options;
    use crate::target::sessions::{ClientQuota, Identity, SessionHandle, Sessions};
    use crate::target::shares::ListedShare;

    const FIRST: Blocks = Blocks { lba: 0, count: 1 };

    fn identity() -> Identity {
        let initiator = InitiatorPort { protocol: Protocol::new(0), id: "i".into() };
        let (name, client) = ("i".into(), ClientId::Unauthenticated);
        Identity { initiator, name, client, target: Some("t".into()), target_port: 1 }
    }

    fn session() -> SessionHandle<()> {
        let quota = ClientQuota { sessions: 1, connections: 1 };
        Sessions::default().add(&identity(), quota, || ()).ok().unwrap()
    }

    fn device(volume: Arc<dyn Volume>) -> TargetDevice {
        TargetDevice::new("t", [(0, volume, Options::default())])
    }

    fn arrival(task: u32, command: &Command, data: Bytes) -> Arrival<u32> {
        let (cdb, arrived) = (command.cdb, Time::ZERO);
        let (priority, in_order) = (0, false);
        Arrival { task, lun: 0, cdb, data, room: 1 << 20, priority, in_order, arrived }
    }

    fn session_and_tasks() -> (SessionHandle<()>, Tasks<u32>) {
        let handle = session();
        let tasks = Tasks::new(&Pools::new(0, 0), handle.entry.turns());
        (handle, tasks)
    }

    #[tokio::test]
    async fn task_ends_with_what_its_unit_answers() {
        let (handle, mut tasks) = session_and_tasks();
        let (entry, device) = (&handle.entry, device(Arc::new(Memory::new(1 << 20, 512))));
        let cx = &mut Context::from_waker(noop_waker_ref());
        let write = Command::write(FIRST, 512, false);
        tasks.begin(cx, (entry, &device), arrival(1, &write, vec![7; 512].into()), 0);
        let read = Command::read(FIRST, 512);
        tasks.begin(cx, (entry, &device), arrival(2, &read, Bytes::new()), 0);
        let mut ended = BTreeMap::new();
        while ended.len() < 2 {
            let (task, _, response) = poll_fn(|cx| tasks.poll(cx, entry, 0, Time::ZERO)).await;
            ended.insert(task, response.unwrap());
        }
        assert_eq!((ended[&1].status, ended[&2].status), (Status::Good, Status::Good));
        assert_eq!(ended[&2].data.concat(), [7; 512]);
        let activity = entry.meter.activity();
        assert_eq!(
            (activity.writes.bytes, activity.reads.bytes, activity.in_flight),
            (512, 512, 0)
        );
    }

    #[tokio::test]
    async fn drive_tells_of_its_disc_by_this_transport_too() {
        let (handle, mut tasks) = session_and_tasks();
        let options = Options { device: DeviceType::Optical, ..Options::default() };
        let disc: Arc<dyn Volume> = Arc::new(Memory::new(100 * 2048, 2048));
        let device = TargetDevice::new("t", [(0, disc, options)]);
        let cx = &mut Context::from_waker(noop_waker_ref());
        let mut cdb = [0; 16];
        // READ TOC of the lead-out.
        cdb[..9].copy_from_slice(&[0x43, 0, 0, 0, 0, 0, 0xAA, 0, 12]);
        let toc = Command { cdb, transfer: Transfer::In(12) };
        tasks.begin(cx, (&handle.entry, &device), arrival(1, &toc, Bytes::new()), 0);
        let ended = poll_fn(|cx| tasks.poll(cx, &handle.entry, 0, Time::ZERO)).await;
        let data = ended.2.unwrap().data.concat();
        assert_eq!(data, [0, 10, 1, 1, 0, 0x14, 0xAA, 0, 0, 0, 0, 100]);
    }

    #[tokio::test]
    async fn clear_is_told_when_the_tasks_have_ended_and_they_have_no_answer() {
        let blocked = Arc::new(BlockedWrites::new(Memory::new(1 << 20, 512)));
        let (handle, mut tasks) = session_and_tasks();
        let (entry, device) = (&handle.entry, device(Arc::clone(&blocked) as _));
        let cx = &mut Context::from_waker(noop_waker_ref());
        let write = Command::write(FIRST, 512, false);
        tasks.begin(cx, (entry, &device), arrival(1, &write, vec![7; 512].into()), 0);
        let (done, mut cleared) = oneshot::channel();
        tasks.clear(Some(0), done);
        assert!(tasks.poll(cx, entry, 0, Time::ZERO).is_pending() && cleared.try_recv().is_err());
        blocked.let_through(1);
        let (task, _, response) = poll_fn(|cx| tasks.poll(cx, entry, 0, Time::ZERO)).await;
        assert!(task == 1 && response.is_none());
        assert_eq!(cleared.try_recv(), Ok(()));
        let (done, mut cleared) = oneshot::channel();
        tasks.clear(None, done);
        assert_eq!(cleared.try_recv(), Ok(()), "there was none");
    }

    /// A session of a client that may have one command a second.
    fn slow_session_and_tasks() -> (Sessions<()>, SessionHandle<()>, Tasks<u32>) {
        let sessions = Sessions::default();
        let (identity, quota) = (identity(), ClientQuota { sessions: 1, connections: 1 });
        let share = Share { commands: Some(1), ..Share::default() };
        let (proofs, initiator) = (Vec::new(), Some("i".to_owned()));
        sessions.shares().set(vec![ListedShare { name: "c".into(), proofs, initiator, share }]);
        let handle = sessions.add(&identity, quota, || ()).ok().unwrap();
        let tasks = Tasks::new(&Pools::new(0, 0), handle.entry.turns());
        (sessions, handle, tasks)
    }

    /// Task management does not wait for a rate, nor does what moves no data, nor the end of the session.
    #[tokio::test]
    async fn command_that_waits_for_its_rate_is_ended_at_once() {
        let (sessions, handle, mut tasks) = slow_session_and_tasks();
        let (entry, device) = (&handle.entry, device(Arc::new(Memory::new(1 << 20, 512))));
        let cx = &mut Context::from_waker(noop_waker_ref());
        let read = Command::read(FIRST, 512);
        for task in 1..=4 {
            tasks.begin(cx, (entry, &device), arrival(task, &read, Bytes::new()), 0);
        }
        let (task, _, response) = poll_fn(|cx| tasks.poll(cx, entry, 0, Time::ZERO)).await;
        assert!(task == 1 && response.is_some(), "nothing was before it");
        let ready = Command::test_unit_ready();
        tasks.begin(cx, (entry, &device), arrival(5, &ready, Bytes::new()), 0);
        let (task, ..) = poll_fn(|cx| tasks.poll(cx, entry, 0, Time::ZERO)).await;
        assert_eq!(task, 5);
        assert_eq!(sessions.shares().status()["c"].waiting, 3);
        tasks.abort(2);
        let (task, _, response) = poll_fn(|cx| tasks.poll(cx, entry, 0, Time::ZERO)).await;
        assert!(task == 2 && response.is_none());
        let (done, mut cleared) = oneshot::channel();
        tasks.clear(Some(0), done);
        assert_eq!(cleared.try_recv(), Ok(()));
        assert_eq!(sessions.shares().status()["c"].waiting, 0);
        tasks.begin(cx, (entry, &device), arrival(6, &read, Bytes::new()), 0);
        tasks.drain().await;
        drop(tasks);
        assert_eq!(sessions.shares().status()["c"].waiting, 0);
    }

    /// A rate that is lifted lets go what waits, and tells the task of the session.
    #[tokio::test]
    async fn command_goes_when_its_rate_is_lifted() {
        let (sessions, handle, mut tasks) = slow_session_and_tasks();
        let (entry, device) = (&handle.entry, device(Arc::new(Memory::new(1 << 20, 512))));
        let cx = &mut Context::from_waker(noop_waker_ref());
        let read = Command::read(FIRST, 512);
        for task in 1..=100 {
            tasks.begin(cx, (entry, &device), arrival(task, &read, Bytes::new()), 0);
        }
        sessions.shares().set(Vec::new());
        for _ in 1..=100 {
            let (_, _, response) = poll_fn(|cx| tasks.poll(cx, entry, 0, Time::ZERO)).await;
            assert!(response.unwrap().status == Status::Good);
        }
        assert!(sessions.shares().status().is_empty());
    }

    /// What is not taken by the initiator is held for it, so that it gets no more.
    #[tokio::test]
    async fn answer_waits_for_memory_that_others_hold() {
        let (handle, mut tasks) = session_and_tasks();
        let (entry, device) = (&handle.entry, device(Arc::new(Memory::new(1 << 20, 512))));
        let cx = &mut Context::from_waker(noop_waker_ref());
        let read = Command::read(FIRST, 512);
        let unsent = 64 << 20;
        tasks.begin(cx, (entry, &device), arrival(1, &read, Bytes::new()), unsent);
        assert!(tasks.poll(cx, entry, unsent, Time::ZERO).is_pending());
        let (task, _, response) = poll_fn(|cx| tasks.poll(cx, entry, 0, Time::ZERO)).await;
        assert!(task == 1 && response.unwrap().status == Status::Good);
    }
}
