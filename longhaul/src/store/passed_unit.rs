//! A logical unit of another target, to which a target of ours passes command blocks on.
//!
//! One task has the session with that target, and sends each command once. It sends what has its turn, and nothing behind a
//! command that has failed before all others have ended. A command that had no answer when the session ended may have been
//! carried out: its client is told that nobody knows. Then the same unit is opened on a new session, which
//! ends what was left of the old one at the target (RFC 7143, 6.3.5). The unit is not reset for that: others may use it too.
//! What it tells of the time between is told to the clients; if that is nothing, I_T NEXUS LOSS OCCURRED (SAM-5, 6.3.4).

mod under_way;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use proto::scsi::command::{BlockLimits, Command, Transfer};
use proto::scsi::inquiry::page;
use proto::scsi::pass_through::{DeviceClass, reports_attention};
use proto::scsi::sense::{Additional, Format, Key, Sense};
use proto::scsi::{Residual, Status};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use under_way::{Event, UnderWay};

use super::abilities::{BoxFuture, Close};
use super::scsi::{Completion, Executed, Lost, NoStatus, RawUnit, ResetAnswer};
use crate::printable::OneLine;
use crate::scsi_device::{
    self, COMMANDS_MAX, CommandQueue, Connection, DeviceAnswer, DeviceData, DeviceFailure,
    DeviceRequest, Ended, Job, Order, Pending, SENSE_MAX, ScsiDevice, Turn, Turns, ask,
};
use crate::stop::{Stop, Stopper};

/// How long is waited for what.
#[derive(Clone, Copy)]
struct Times {
    /// Commands wait so long for a connection that is lost. After that the unit does not respond.
    reached: Duration,
    /// The first wait between two attempts to connect again; each is twice the one before.
    first_wait: Duration,
    /// The longest such wait.
    wait_max: Duration,
    /// The unit may take so long to tell how it is, and to be reset.
    heard: Duration,
    /// A command that a reset has ended may take so long to end. Without TAS its answer never comes (SAM-5, 5.3.1).
    drained: Duration,
}

const TIMES: Times = Times {
    reached: Duration::from_secs(20),
    first_wait: Duration::from_millis(100),
    wait_max: Duration::from_secs(5),
    heard: Duration::from_secs(60),
    drained: Duration::from_secs(5),
};

/// How long a logout may take when the unit is let go.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// The most that a unit tells in a row.
const ATTENTIONS_MAX: usize = 16;

/// The additional sense code of resets and lost nexuses.
const RESET_CODE: u8 = Additional::NEXUS_LOSS.code;

/// A unit, and the task that has its session.
pub struct PassedUnit {
    commands: CommandQueue,
    jobs: mpsc::Sender<Job>,
    resets: mpsc::Sender<oneshot::Sender<()>>,
    peripheral: u8,
    order: Order,
    transfer_max: u32,
    block_length: u32,
    serial: Option<String>,
    connection: Arc<Mutex<Connection>>,
    /// Ends the task when it is dropped.
    stopper: Mutex<Option<Stopper>>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

/// Passes commands to a unit that is open, and is called `name`. What it has to tell of the time before is dropped: each
/// client is told of a power on.
pub async fn open(unit: Box<dyn RawUnit>, name: String) -> Result<PassedUnit, DeviceFailure> {
    open_with(unit, name, TIMES).await
}

async fn open_with(
    unit: Box<dyn RawUnit>,
    name: String,
    times: Times,
) -> Result<PassedUnit, DeviceFailure> {
    let peripheral = unit.standard().device_type();
    let class = DeviceClass::of(peripheral);
    let serial = unit.serial().filter(|serial| !serial.is_empty()).map(str::to_owned);
    let most = u32::try_from(unit.transfer_max()).unwrap_or(u32::MAX);
    let is_disk = class == DeviceClass::Disk;
    let order = match unit.keeps_order() && (is_disk || unit.takes_writes_ahead()) {
        true => Order::Kept,
        false => Order::Lost,
    };
    // Each has its turn, so that there is room.
    let (jobs, job_queue) = mpsc::channel(COMMANDS_MAX);
    let (resets, reset_queue) = mpsc::channel(1);
    let (stopper, stop) = Stopper::new();
    let failure = DeviceFailure::Gone;
    let queues = Queues { jobs: job_queue, resets: reset_queue, waiting: VecDeque::new(), failure };
    let connection = Arc::new(Mutex::new(Connection::Connected));
    let (attentions, noted) = (VecDeque::new(), Arc::clone(&connection));
    let worker = Worker { unit, name, class, attentions, queues, times, connection: noted };
    let mut opened = PassedUnit {
        commands: CommandQueue::default(),
        jobs,
        resets,
        peripheral,
        order,
        transfer_max: most.min(volume::TRANSFER_MAX),
        block_length: 0,
        serial,
        connection,
        stopper: Mutex::new(Some(stopper)),
        worker: Mutex::new(Some(tokio::spawn(worker.run(stop)))),
    };
    ask(&opened, &TEST_UNIT_READY, 0, &mut |_| ()).await?;
    opened.block_length = scsi_device::block_length(&opened, &mut |_| ()).await;
    if let Some(limit) = opened.limit_of_disk(class).await? {
        opened.transfer_max = opened.transfer_max.min(limit);
    }
    Ok(opened)
}

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const BLOCK_LIMITS: [u8; 6] = [0x12, 0x01, page::BLOCK_LIMITS, 0, 64, 0];

impl PassedUnit {
    /// The MAXIMUM TRANSFER LENGTH of a disk (SBC-3, 6.6.4) in bytes, if it has one.
    async fn limit_of_disk(&self, class: DeviceClass) -> Result<Option<u32>, DeviceFailure> {
        if class != DeviceClass::Disk {
            return Ok(None);
        }
        let answer = ask(self, &BLOCK_LIMITS, 64, &mut |_| ()).await?;
        let limits = BlockLimits::parse(&answer.data).ok();
        let limits = limits.filter(|_| answer.status == Status::Good);
        let bytes = limits.map(|limits| limits.transfer_max.saturating_mul(self.block_length));
        Ok(bytes.filter(|bytes| *bytes > 0))
    }

    async fn end(&self) {
        let stopper = self.stopper.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(stopper);
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            // One that has panicked has ended too.
            let _: Result<_, _> = worker.await;
        }
    }
}

impl ScsiDevice for PassedUnit {
    fn peripheral(&self) -> u8 {
        self.peripheral
    }

    fn transfer_max(&self) -> u32 {
        self.transfer_max
    }

    fn block_length(&self) -> u32 {
        self.block_length
    }

    fn serial(&self) -> Option<&str> {
        self.serial.as_deref()
    }

    fn order(&self) -> Order {
        self.order
    }

    fn turns(&self) -> &Turns {
        self.commands.turns()
    }

    fn execute(&self, turn: Turn, request: DeviceRequest) -> Pending<Ended> {
        let jobs = self.jobs.clone();
        let hand_on = move |job| jobs.try_send(job).map_err(|_| DeviceFailure::Gone);
        self.commands.execute(turn, request, hand_on)
    }

    fn take_unheard(&self) -> Vec<Bytes> {
        self.commands.take_unheard()
    }

    fn reset(&self) -> Pending<()> {
        let resets = self.resets.clone();
        Box::pin(async move {
            let (done, ended) = oneshot::channel();
            if resets.send(done).await.is_ok() {
                // It is dropped where there is no session, of which nothing is left to be reset.
                let _: Result<_, _> = ended.await;
            }
        })
    }

    /// The unit tells this initiator port, or the new session shows it.
    fn tells_of_losses(&self) -> bool {
        true
    }

    fn connection(&self) -> Option<Connection> {
        Some(self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Close for PassedUnit {
    fn let_go(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.end())
    }

    fn close(&self) -> BoxFuture<'_, Option<crate::replay_log::Saved>> {
        Box::pin(async {
            self.end().await;
            None
        })
    }
}

/// What the task of a unit is asked for.
struct Queues {
    jobs: mpsc::Receiver<Job>,
    resets: mpsc::Receiver<oneshot::Sender<()>>,
    /// Commands that were not sent yet.
    waiting: VecDeque<Job>,
    /// What their client is told where there is no session for too long.
    failure: DeviceFailure,
}

impl Queues {
    /// Waits for `work`, without which there is no session: a command that comes waits too, but not beyond `last`.
    async fn meanwhile<T>(&mut self, last: Instant, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let is_late = Instant::now() >= last;
            if is_late {
                self.waiting.drain(..).for_each(|job| job.end(Err(self.failure)));
            }
            let Self { jobs, resets, waiting, .. } = self;
            tokio::select! {
                done = &mut work => return done,
                Some(job) = jobs.recv() => waiting.push_back(job),
                Some(done) = resets.recv() => drop(done),
                at = aborted(waiting) => drop(self.waiting.remove(at)),
                () = sleep_until(last), if !is_late => {}
            }
        }
    }
}

/// Returns when nobody waits for the answer to one of these commands any more, and says to which.
async fn aborted(jobs: &mut VecDeque<Job>) -> usize {
    poll_fn(|cx| {
        let at = jobs.iter_mut().position(|job| job.poll_aborted(cx).is_ready());
        at.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// A session that is no more, or is to be no more.
struct Outage {
    why: String,
    /// A command may still be under way.
    is_uncertain: bool,
    /// It is given up, as a command had no answer in time.
    is_late: bool,
}

impl Outage {
    fn of(lost: &Lost, is_uncertain: bool) -> Self {
        Self { why: OneLine(lost).to_string(), is_uncertain, is_late: false }
    }
}

/// Why the unit was not opened again.
struct FailedAttempt {
    why: String,
    /// Another unit answers in its place.
    is_another: bool,
}

struct Worker {
    unit: Box<dyn RawUnit>,
    name: String,
    class: DeviceClass,
    /// Sense data that the unit told when nobody had asked it anything.
    attentions: VecDeque<Bytes>,
    queues: Queues,
    times: Times,
    connection: Arc<Mutex<Connection>>,
}

impl Worker {
    async fn run(mut self, stop: Stop) {
        stop.unless_called(self.work()).await;
        // What is under way may take hours.
        let _: Result<_, _> = timeout(CLOSED_WITHIN, self.unit.close()).await;
    }

    async fn work(&mut self) {
        let mut under_way = UnderWay::default();
        loop {
            let Some(outage) = self.work_on(&mut under_way).await else { continue };
            let outage = self.lose(&mut under_way, outage);
            self.reconnect(outage).await;
        }
    }

    /// Does what is to be done next; why the session is lost, if it is.
    async fn work_on(&mut self, under_way: &mut UnderWay) -> Option<Outage> {
        if let Some(job) = self.queues.waiting.pop_front() {
            return self.send(job, under_way).await;
        }
        let (is_idle, deadline) = (under_way.is_empty(), under_way.deadline());
        tokio::select! {
            // An answer that is there may say that nothing is to be sent.
            biased;
            event = under_way.event(), if !is_idle => self.follow(event).await,
            Some(job) = self.queues.jobs.recv() => self.send(job, under_way).await,
            Some(done) = self.queues.resets.recv() => {
                let outage = self.reset(done).await;
                under_way.drain_within(self.times.drained);
                outage
            }
            () = sleep_until(deadline), if !is_idle => {
                let why = overdue(under_way).to_string();
                Some(Outage { why, is_uncertain: true, is_late: true })
            }
            lost = self.unit.ended(), if is_idle => Some(Outage::of(&lost, false)),
        }
    }

    /// Puts a command on its way, unless nobody waits for it, one before it has failed, or there is something else to be told
    /// first.
    async fn send(&mut self, job: Job, under_way: &mut UnderWay) -> Option<Outage> {
        if job.is_aborted() {
            return None;
        }
        if job.is_halted() {
            job.end(Err(DeviceFailure::NotBegun));
            return None;
        }
        let request = &job.request;
        if reports_attention(&request.block, self.class)
            && let Some(sense) = self.attentions.pop_front()
        {
            let told = told_in_place(sense, &request.data);
            job.end(Ok(told));
            return None;
        }
        let (command, data) = command(request);
        match self.unit.send(command, data).await {
            Ok(answer) => {
                under_way.push(job, answer);
                None
            }
            Err(lost) => {
                // It was not sent: it goes by the next session.
                self.queues.waiting.push_front(job);
                Some(Outage::of(&lost, false))
            }
        }
    }

    /// Ends a command that has ended at the unit, which a reset may have brought about. When their client has aborted all that
    /// are under way, that goes on: one alone cannot be aborted without those behind it.
    async fn follow(&mut self, event: Event) -> Option<Outage> {
        match event {
            Event::Ended(job, Err(lost)) => {
                job.end(Err(DeviceFailure::Lost));
                Some(Outage::of(&lost, true))
            }
            Event::Ended(job, Ok(ended)) => {
                let ended = self.judge(ended, &job.request.data);
                job.end(ended);
                None
            }
            Event::Aborted => {
                let lost = self.unit.abort_all().await.err()?;
                Some(Outage::of(&lost, true))
            }
        }
    }

    /// Ends all that was sent with the session. What had its answer before has ended so.
    fn lose(&self, under_way: &mut UnderWay, mut outage: Outage) -> Outage {
        // The unit is late with the first, and has not come to the others.
        let mut failure = if outage.is_late { overdue(under_way) } else { DeviceFailure::Lost };
        for (job, answer) in under_way.take() {
            let ended = match answer {
                Some(Ok(ended)) => self.judge(ended, &job.request.data),
                Some(Err(_)) | None => {
                    outage.is_uncertain = true;
                    Err(std::mem::replace(&mut failure, DeviceFailure::Lost))
                }
            };
            job.end(ended);
        }
        outage
    }

    fn judge(&self, ended: Executed, data: &DeviceData) -> Ended {
        match ended {
            Ok(Completion { status, data: came, sense, residual }) => {
                let residual = residual_of(residual, data, &came);
                // Whatever the other target sends.
                let sense = sense.slice(..sense.len().min(SENSE_MAX));
                Ok(DeviceAnswer { status, data: came, sense, residual })
            }
            Err(NoStatus::Aborted) => Err(DeviceFailure::Lost),
            Err(NoStatus::Failed(why)) => {
                let why = OneLine(&*why);
                tracing::warn!(unit = self.name, %why, "pass-through: a command failed on its way");
                Err(DeviceFailure::Broken)
            }
        }
    }

    /// LOGICAL UNIT RESET.
    async fn reset(&mut self, done: oneshot::Sender<()>) -> Option<Outage> {
        let reset = timeout(self.times.heard, self.unit.reset()).await;
        let outage = match reset {
            Ok(Ok(ResetAnswer::Complete)) => None,
            Ok(Ok(ResetAnswer::Refused { answer, .. })) => {
                tracing::warn!(unit = self.name, answer, "pass-through: the unit was not reset");
                None
            }
            Ok(Err(lost)) => Some(Outage::of(&lost, false)),
            Err(_) => {
                let why = "no answer to a reset".to_owned();
                Some(Outage { why, is_uncertain: true, is_late: false })
            }
        };
        // Whoever asked may have left.
        let _: Result<_, _> = done.send(());
        outage
    }

    /// Opens the unit again, and finds out what there is to be told of the time between. Where another one answers in its place
    /// no command waits: that does not pass by itself.
    async fn reconnect(&mut self, Outage { why, mut is_uncertain, .. }: Outage) {
        tracing::warn!(unit = self.name, why, "pass-through: connection to the unit lost");
        let mut last = Instant::now() + self.times.reached;
        let (since, mut wait) = (Instant::now().into_std(), self.times.first_wait);
        self.note_failure(since, 0, &why, false);
        let mut reasons = String::new();
        for attempts in 1.. {
            let failed = match self.try_again(last, &mut is_uncertain).await {
                Ok(()) => break,
                Err(failed) => failed,
            };
            let FailedAttempt { why, is_another } = failed;
            self.note_failure(since, attempts, &why, is_another);
            if is_another {
                last = last.min(Instant::now());
            }
            // The same is not told again and again.
            if why != reasons {
                tracing::warn!(unit = self.name, why, "pass-through: cannot reach the unit");
                reasons = why;
            }
            self.queues.meanwhile(last, sleep(wait)).await;
            wait = (wait * 2).min(self.times.wait_max);
        }
        self.note_connection(Connection::Connected);
        tracing::info!(unit = self.name, "pass-through: connected to the unit again");
    }

    /// One attempt to open it again. A session that was opened has ended what was left of the one before.
    async fn try_again(
        &mut self,
        last: Instant,
        is_uncertain: &mut bool,
    ) -> Result<(), FailedAttempt> {
        let Self { unit, queues, .. } = self;
        let opened = queues.meanwhile(last, unit.log_in_again(*is_uncertain)).await;
        opened.map_err(|not| {
            let why = OneLine(&*not.why).to_string();
            FailedAttempt { why, is_another: not.is_another }
        })?;
        *is_uncertain = false;
        let heard = self.hear(last).await;
        heard.map_err(|lost| FailedAttempt { why: OneLine(&lost).to_string(), is_another: false })
    }

    /// Notes why there is no session, for commands and for people.
    fn note_failure(&mut self, since: std::time::Instant, attempts: u64, why: &str, another: bool) {
        let why = why.to_owned();
        let (failure, connection) = match another {
            true => (DeviceFailure::Replaced, Connection::Refused { since, why }),
            false => (DeviceFailure::Gone, Connection::Lost { since, attempts, why }),
        };
        self.queues.failure = failure;
        self.note_connection(connection);
    }

    fn note_connection(&self, connection: Connection) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }

    /// Asks what the unit has to tell. All sessions before are over, of which the clients have to know.
    async fn hear(&mut self, last: Instant) -> Result<(), Lost> {
        for _ in 0..ATTENTIONS_MAX {
            let asked = async {
                let answer = self.unit.send(Command::test_unit_ready(), Bytes::new()).await?;
                // One that does not answer is used all the same: it is as slow to the commands of clients.
                timeout(self.times.heard, answer).await.ok().transpose()
            };
            let answered = self.queues.meanwhile(last, asked).await?;
            let Some(Ok(Completion { sense, .. })) = answered else { break };
            match Sense::parse(&sense) {
                Some(told) if told.deferred || told.key == Key::UnitAttention => self.note(sense),
                _ => break,
            }
        }
        let tells_of_loss = |sense: &Bytes| {
            Sense::parse(sense).is_some_and(|told| told.additional.code == RESET_CODE)
        };
        if !self.attentions.iter().any(tells_of_loss) {
            let loss = Sense::new(Key::UnitAttention, Additional::NEXUS_LOSS);
            self.attentions.push_front(loss.emit(Format::Fixed).into());
        }
        Ok(())
    }

    fn note(&mut self, sense: Bytes) {
        if self.attentions.len() < ATTENTIONS_MAX && !self.attentions.contains(&sense) {
            self.attentions.push_back(sense);
        }
    }
}

/// The answer to a command that was not sent, since this is told in its place.
fn told_in_place(sense: Bytes, data: &DeviceData) -> DeviceAnswer {
    let (status, residual) = (Status::CheckCondition, Residual::of(length(data), 0));
    DeviceAnswer { status, data: Bytes::new(), sense, residual }
}

/// Why a command ends that had no answer in time.
const fn overdue(under_way: &UnderWay) -> DeviceFailure {
    match under_way.is_drained() {
        true => DeviceFailure::Lost,
        false => DeviceFailure::TimedOut,
    }
}

/// The residual of a command. Of what came in, the length of the data tells what is less.
fn residual_of(told: Residual, data: &DeviceData, came: &Bytes) -> Residual {
    match (told, data) {
        (Residual::Under(bytes), DeviceData::Out(data)) => {
            let sent = data.len() as u32;
            Residual::of(sent, sent.saturating_sub(bytes))
        }
        (Residual::Over(_), DeviceData::In(room)) if came.len() < *room as usize => Residual::None,
        (Residual::Over(_), _) => told,
        _ => Residual::None,
    }
}

/// The bytes that are sent with a command.
fn length(data: &DeviceData) -> u32 {
    match data {
        DeviceData::Out(data) => data.len() as u32,
        DeviceData::None | DeviceData::In(_) => 0,
    }
}

fn command(request: &DeviceRequest) -> (Command, Bytes) {
    let (transfer, data) = match &request.data {
        DeviceData::None => (Transfer::None, Bytes::new()),
        DeviceData::In(room) => (Transfer::In(*room), Bytes::new()),
        DeviceData::Out(data) => (Transfer::Out(length(&request.data)), data.clone()),
    };
    (Command { cdb: request.block, transfer }, data)
}

#[cfg(test)]
mod tests;
