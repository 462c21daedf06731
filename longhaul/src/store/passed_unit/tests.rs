use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use proto::scsi::command::Standard;
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::super::scsi::{Answer, NotOpen, Pending as Work, UnitError};
use super::*;
use crate::scsi_device::Concurrency;

/// What a unit does with a command.
enum Act {
    End(Completion),
    /// The session is lost while it has the command.
    Lose,
    /// The session is lost before the command is sent.
    Refuse,
    /// There is never an answer.
    Hang,
    /// It ends when the test says so.
    When(oneshot::Receiver<Completion>),
}

/// A unit that does what it is told, and notes what it was asked for.
#[derive(Default)]
struct Script {
    acts: Mutex<VecDeque<Act>>,
    sent: Mutex<Vec<u8>>,
    /// Whether the logins had to end something.
    logins: Mutex<Vec<bool>>,
    /// How many logins fail.
    unreachable: AtomicUsize,
    /// Another unit is in its place.
    is_another: AtomicBool,
    resets: AtomicUsize,
    /// Ends what hangs.
    aborted: Notify,
    ended: Notify,
    closed: AtomicUsize,
}

impl Script {
    fn will(&self, act: Act) {
        self.acts.lock().unwrap().push_back(act);
    }

    /// The next command ends when the test says so.
    fn waits(&self) -> oneshot::Sender<Completion> {
        let (end, ended) = oneshot::channel();
        self.will(Act::When(ended));
        end
    }

    /// The operation codes that have come since it was looked at last.
    fn taken(&self) -> Vec<u8> {
        std::mem::take(&mut *self.sent.lock().unwrap())
    }

    fn logins(&self) -> Vec<bool> {
        std::mem::take(&mut *self.logins.lock().unwrap())
    }
}

struct Scripted {
    script: Arc<Script>,
    standard: Standard,
}

fn lost() -> Lost {
    let why = Arc::new(std::io::Error::other("the cable is out"));
    Lost { why, is_logged_out: false, is_stalled: false, wait: Duration::ZERO }
}

fn done(data: &[u8]) -> Completion {
    let data = Bytes::copy_from_slice(data);
    Completion { status: Status::Good, data, sense: Bytes::new(), residual: Residual::None }
}

fn told(key: Key, additional: Additional) -> Completion {
    let sense = Sense::new(key, additional).emit(Format::Fixed).into();
    Completion { status: Status::CheckCondition, sense, ..done(&[]) }
}

impl RawUnit for Scripted {
    fn standard(&self) -> &Standard {
        &self.standard
    }

    fn serial(&self) -> Option<&str> {
        None
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn takes_writes_ahead(&self) -> bool {
        true
    }

    fn ask(&self, _: Command, _: Bytes) -> Work<'_, Result<Bytes, UnitError>> {
        unreachable!("it would be tried again")
    }

    fn ask_at(&self, _: u16, _: Command) -> Work<'_, Result<Bytes, UnitError>> {
        unreachable!("it is another unit")
    }

    fn send(&self, command: Command, _: Bytes) -> Work<'_, Result<Answer, Lost>> {
        let act = self.script.acts.lock().unwrap().pop_front();
        let act = act.unwrap_or_else(|| Act::End(done(&[])));
        if matches!(act, Act::Refuse) {
            return Box::pin(async { Err(lost()) });
        }
        self.script.sent.lock().unwrap().push(command.cdb[0]);
        Box::pin(async move {
            Ok(match act {
                Act::End(completion) => Box::pin(async { Ok(Ok(completion)) }) as Answer,
                Act::Lose | Act::Refuse => Box::pin(async { Err(lost()) }),
                Act::When(ended) => Box::pin(async { Ok(Ok(ended.await.unwrap())) }),
                Act::Hang => {
                    let script = Arc::clone(&self.script);
                    Box::pin(async move {
                        script.aborted.notified().await;
                        Ok(Err(NoStatus::Aborted))
                    })
                }
            })
        })
    }

    fn reserve(&self) -> Work<'_, Result<(), NotOpen>> {
        unreachable!("its clients have reservations among themselves")
    }

    fn is_reserved(&self) -> bool {
        false
    }

    fn open_again(&mut self) -> Work<'_, Result<(), NotOpen>> {
        unreachable!("it would be reset")
    }

    fn log_in_again(&mut self, uncertain: bool) -> Work<'_, Result<(), NotOpen>> {
        self.script.logins.lock().unwrap().push(uncertain);
        let fewer = |left: usize| left.checked_sub(1);
        let left = &self.script.unreachable;
        let fails = left.fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer).is_ok();
        let is_another = self.script.is_another.load(Ordering::Acquire);
        Box::pin(async move {
            let (why, is_fleeting) = (Box::new(lost()), !is_another);
            match fails || is_another {
                true => Err(NotOpen { why, is_fleeting, is_refused: false, is_another }),
                false => Ok(()),
            }
        })
    }

    fn reset(&self) -> Work<'_, Result<ResetAnswer, Lost>> {
        self.script.resets.fetch_add(1, Ordering::AcqRel);
        Box::pin(async { Ok(ResetAnswer::Complete) })
    }

    fn abort_all(&self) -> Work<'_, Result<(), Lost>> {
        self.script.aborted.notify_one();
        Box::pin(async { Ok(()) })
    }

    fn transfer_max(&self) -> u64 {
        1 << 16
    }

    fn ended(&self) -> Work<'_, Lost> {
        Box::pin(async {
            self.script.ended.notified().await;
            lost()
        })
    }

    fn close(&self) -> Work<'_, ()> {
        self.script.closed.fetch_add(1, Ordering::AcqRel);
        Box::pin(async {})
    }
}

/// Short, but for the wait for a unit that comes back.
const SHORT: Times = Times {
    first_wait: Duration::from_millis(1),
    wait_max: Duration::from_millis(1),
    drained: Duration::from_millis(1),
    ..TIMES
};

const TAPE: u8 = 0x01;
const READY: u8 = 0x00;
const REWIND: u8 = 0x01;
const WRITE: u8 = 0x0A;
const INQUIRY: u8 = 0x12;
const MODE_SENSE: u8 = 0x1A;

/// A tape drive that has been asked what its blocks are.
async fn tape() -> (Arc<Script>, Arc<PassedUnit>) {
    tape_with(SHORT).await
}

async fn tape_with(times: Times) -> (Arc<Script>, Arc<PassedUnit>) {
    let script = Arc::<Script>::default();
    let mut standard = [0; 36];
    (standard[0], standard[4]) = (TAPE, 31);
    let standard = Standard::parse(&standard).unwrap();
    script.will(Act::End(told(Key::UnitAttention, Additional::POWER_ON_OR_RESET)));
    script.will(Act::End(done(&[])));
    script.will(Act::End(done(&[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 4, 0])));
    let unit = Box::new(Scripted { script: Arc::clone(&script), standard });
    let tape = open_with(unit, "the tape".to_owned(), times).await.unwrap();
    assert_eq!(
        (tape.peripheral(), tape.block_length(), tape.transfer_max()),
        (TAPE, 1024, 1 << 16)
    );
    assert_eq!(script.taken(), [READY, READY, MODE_SENSE]);
    (script, Arc::new(tape))
}

fn request(code: u8, data: DeviceData) -> DeviceRequest {
    let mut block = [0; 16];
    block[0] = code;
    DeviceRequest { block, data, timeout: Duration::from_secs(1800) }
}

/// Has a command carried out when it is its turn, beside others of its kind.
fn execute(tape: &Arc<PassedUnit>, request: DeviceRequest) -> impl Future<Output = Ended> + use<> {
    let bytes = (7, length(&request.data));
    let concurrency = Concurrency::of(tape.order(), DeviceClass::Tape, request.block[0], bytes);
    let place = tape.turns().enter();
    let tape = Arc::clone(tape);
    async move {
        let turn = place.turn(concurrency).await;
        tape.execute(turn, request).await
    }
}

async fn run(tape: &Arc<PassedUnit>, code: u8) -> Result<DeviceAnswer, DeviceFailure> {
    let data = if code == WRITE {
        DeviceData::Out(Bytes::from_static(&[7; 100]))
    } else {
        DeviceData::None
    };
    execute(tape, request(code, data)).await
}

/// What a command that is carried out comes to, or the unit attention in its place.
async fn tells(tape: &Arc<PassedUnit>, code: u8) -> Option<Additional> {
    let answer = run(tape, code).await.unwrap();
    Sense::parse(&answer.sense).map(|sense| sense.additional)
}

#[tokio::test]
async fn answer_is_the_unit_s_with_its_residual() {
    let (script, tape) = tape().await;
    let short = told(Key::NoSense, Additional::NONE);
    script.will(Act::End(Completion { residual: Residual::Under(60), ..short.clone() }));
    let answer = run(&tape, WRITE).await.unwrap();
    assert_eq!(
        (answer.status, answer.sense, answer.residual),
        (short.status, short.sense, Residual::Under(60))
    );
    // Of what came in, the length of the data tells.
    script.will(Act::End(Completion { residual: Residual::Under(90), ..done(&[1; 10]) }));
    let answer = execute(&tape, request(MODE_SENSE, DeviceData::In(100))).await.unwrap();
    assert_eq!((answer.data.len(), answer.residual), (10, Residual::None));
    // Where it had more there is no room left.
    let over = Residual::Over(5);
    for (came, told) in [(100, over), (10, Residual::None)] {
        script.will(Act::End(Completion { residual: over, ..done(&vec![1; came]) }));
        let answer = execute(&tape, request(MODE_SENSE, DeviceData::In(100))).await.unwrap();
        assert_eq!(answer.residual, told);
    }
    script.will(Act::End(Completion { residual: over, ..done(&[]) }));
    assert_eq!(run(&tape, WRITE).await.unwrap().residual, over);
}

#[tokio::test]
async fn command_without_an_answer_is_not_sent_again() {
    let (script, tape) = tape().await;
    script.will(Act::Lose);
    assert_eq!(run(&tape, WRITE).await, Err(DeviceFailure::Lost));
    assert_eq!(tells(&tape, WRITE).await, Some(Additional::NEXUS_LOSS));
    assert_eq!(script.taken(), [WRITE, READY], "the second was told of the loss in its place");
    assert_eq!(script.logins(), [true], "the new session ends what is left of the old one");
    assert_eq!(script.resets.load(Ordering::Acquire), 0);
    assert_eq!(tells(&tape, WRITE).await, None);
    assert_eq!(script.taken(), [WRITE]);
}

#[tokio::test]
async fn command_that_was_not_sent_is_told_of_the_loss_and_goes_by_the_next_session() {
    let (script, tape) = tape().await;
    script.will(Act::Refuse);
    assert_eq!(tells(&tape, REWIND).await, Some(Additional::NEXUS_LOSS));
    assert_eq!((script.taken(), script.logins()), (vec![READY], vec![false]));
    script.will(Act::Refuse);
    // INQUIRY meets no unit attention (SPC-4, 6.6.1).
    assert_eq!(tells(&tape, INQUIRY).await, None);
    assert_eq!(script.taken(), [READY, INQUIRY]);
    assert_eq!(tells(&tape, REWIND).await, Some(Additional::NEXUS_LOSS));
}

#[tokio::test]
async fn unit_tells_itself_what_has_happened() {
    let (script, tape) = tape().await;
    script.will(Act::Lose);
    let deferred =
        Sense { deferred: true, ..Sense::new(Key::MediumError, Additional::WRITE_ERROR) };
    let deferred = Completion {
        sense: deferred.emit(Format::Fixed).into(),
        ..told(Key::NoSense, Additional::NONE)
    };
    for act in [
        told(Key::UnitAttention, Additional::POWER_ON_OR_RESET),
        told(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED),
        deferred,
        told(Key::NotReady, Additional::MEDIUM_NOT_PRESENT),
    ] {
        script.will(Act::End(act));
    }
    assert_eq!(run(&tape, WRITE).await, Err(DeviceFailure::Lost));
    for code in [
        Additional::POWER_ON_OR_RESET,
        Additional::MEDIUM_MAY_HAVE_CHANGED,
        Additional::WRITE_ERROR,
    ] {
        assert_eq!(tells(&tape, WRITE).await, Some(code));
    }
    assert_eq!(tells(&tape, WRITE).await, None, "each is told once");
}

#[tokio::test]
async fn idle_session_that_ends_is_opened_again_and_its_loss_told() {
    let (script, tape) = tape().await;
    script.unreachable.store(3, Ordering::Release);
    script.ended.notify_one();
    while script.logins.lock().unwrap().len() < 4 {
        yield_now().await;
    }
    assert_eq!(script.logins(), [false; 4]);
    assert_eq!(tells(&tape, REWIND).await, Some(Additional::NEXUS_LOSS));
    assert_eq!(tells(&tape, REWIND).await, None);
}

#[tokio::test]
async fn unit_that_stays_away_does_not_respond_until_it_is_back() {
    let (script, tape) = tape_with(Times { reached: Duration::from_millis(1), ..SHORT }).await;
    script.unreachable.store(usize::MAX, Ordering::Release);
    script.will(Act::Lose);
    assert_eq!(run(&tape, WRITE).await, Err(DeviceFailure::Lost));
    for _ in 0..3 {
        assert_eq!(run(&tape, WRITE).await, Err(DeviceFailure::Gone));
    }
    tape.reset().await;
    assert!(script.logins().iter().all(|uncertain| *uncertain));
    script.unreachable.store(0, Ordering::Release);
    let told = loop {
        match run(&tape, WRITE).await {
            Err(why) => assert_eq!(why, DeviceFailure::Gone),
            Ok(answer) => break Sense::parse(&answer.sense).unwrap(),
        }
    };
    assert_eq!((told.key, told.additional), (Key::UnitAttention, Additional::NEXUS_LOSS));
    assert_eq!(tells(&tape, WRITE).await, None);
    assert_eq!(script.taken(), [WRITE, READY, WRITE]);
}

#[tokio::test]
async fn command_does_not_wait_where_another_unit_is_in_its_place() {
    let (script, tape) = tape().await;
    assert_eq!(tape.connection(), Some(Connection::Connected));
    script.is_another.store(true, Ordering::Release);
    script.ended.notify_one();
    while !matches!(tape.connection(), Some(Connection::Refused { .. })) {
        yield_now().await;
    }
    // All others would be told after the time that a unit may stay away.
    assert_eq!(run(&tape, WRITE).await, Err(DeviceFailure::Replaced));
    let told = tape.connection().unwrap().to_string();
    assert!(told.contains("refused for ") && told.contains("the cable is out"), "{told}");
    script.is_another.store(false, Ordering::Release);
    script.unreachable.store(usize::MAX, Ordering::Release);
    while !matches!(tape.connection(), Some(Connection::Lost { .. })) {
        yield_now().await;
    }
    assert_eq!(run(&tape, WRITE).await, Err(DeviceFailure::Gone), "it may be the same again");
    script.unreachable.store(0, Ordering::Release);
    while tape.connection() != Some(Connection::Connected) {
        yield_now().await;
    }
    assert_eq!(tells(&tape, WRITE).await, Some(Additional::NEXUS_LOSS));
    assert!(script.taken().iter().all(|code| *code == READY), "none was sent to the other");
}

#[tokio::test]
async fn command_that_was_aborted_while_there_was_no_session_is_never_sent() {
    let (script, tape) = tape().await;
    script.unreachable.store(usize::MAX, Ordering::Release);
    script.ended.notify_one();
    while script.logins().is_empty() {
        yield_now().await;
    }
    let mut rewind = Box::pin(execute(&tape, request(REWIND, DeviceData::None)));
    assert!(timeout(Duration::from_millis(10), &mut rewind).await.is_err());
    drop(rewind);
    script.unreachable.store(0, Ordering::Release);
    assert_eq!(tells(&tape, WRITE).await, Some(Additional::NEXUS_LOSS));
    assert!(!script.taken().contains(&REWIND));
}

#[tokio::test]
async fn command_that_does_not_end_in_time_ends_with_its_session() {
    let (script, tape) = tape().await;
    script.will(Act::Hang);
    let timeout = Duration::from_millis(1);
    let rewind = DeviceRequest { timeout, ..request(REWIND, DeviceData::None) };
    assert_eq!(execute(&tape, rewind).await, Err(DeviceFailure::TimedOut));
    assert_eq!(tells(&tape, REWIND).await, Some(Additional::NEXUS_LOSS));
    assert_eq!(script.logins(), [true]);
    assert_eq!(script.resets.load(Ordering::Acquire), 0);
}

#[tokio::test]
async fn abort_ends_the_command_at_the_unit_and_the_next_goes_on() {
    let (script, tape) = tape().await;
    script.will(Act::Hang);
    let rewind = tokio::spawn(execute(&tape, request(REWIND, DeviceData::None)));
    while script.sent.lock().unwrap().is_empty() {
        yield_now().await;
    }
    rewind.abort();
    // It waits until the unit has ended the other, which it does not by itself.
    assert_eq!(tells(&tape, WRITE).await, None);
    assert_eq!((script.taken(), script.logins()), (vec![REWIND, WRITE], vec![]));
}

#[tokio::test]
async fn reset_reaches_the_unit_while_it_has_a_command() {
    let (script, tape) = tape().await;
    script.will(Act::Hang);
    let rewind = tokio::spawn(execute(&tape, request(REWIND, DeviceData::None)));
    while script.sent.lock().unwrap().is_empty() {
        yield_now().await;
    }
    tape.reset().await;
    assert_eq!(script.resets.load(Ordering::Acquire), 1);
    // Without TAS it has no answer.
    assert_eq!(rewind.await.unwrap(), Err(DeviceFailure::Lost));
    assert_eq!(tells(&tape, REWIND).await, Some(Additional::NEXUS_LOSS));
    tape.reset().await;
    assert_eq!(script.resets.load(Ordering::Acquire), 2);
    assert_eq!(tells(&tape, REWIND).await, None);
}

#[tokio::test]
async fn unit_is_logged_out_when_it_is_closed_or_dropped() {
    let (script, tape) = tape().await;
    assert!(tape.close().await.is_none());
    assert_eq!(script.closed.load(Ordering::Acquire), 1);
    assert_eq!(run(&tape, REWIND).await, Err(DeviceFailure::Gone));
    let (script, tape) = self::tape().await;
    drop(tape);
    while script.closed.load(Ordering::Acquire) == 0 {
        yield_now().await;
    }
}

/// As many writes as the script has ends for, all of them with the unit.
async fn writes<const N: usize>(
    script: &Script,
    tape: &Arc<PassedUnit>,
) -> ([oneshot::Sender<Completion>; N], [JoinHandle<Ended>; N]) {
    let ends = [(); N].map(|()| script.waits());
    let tasks = [(); N].map(|()| tokio::spawn(write(tape)));
    while script.sent.lock().unwrap().len() < N {
        yield_now().await;
    }
    assert_eq!(script.taken(), [WRITE; N]);
    (ends, tasks)
}

fn write(tape: &Arc<PassedUnit>) -> impl Future<Output = Ended> + use<> {
    execute(tape, request(WRITE, DeviceData::Out(Bytes::from_static(&[7; 100]))))
}

/// Lets the task of the unit, and those of the commands, do what they can do.
async fn settle() {
    for _ in 0..32 {
        yield_now().await;
    }
}

#[tokio::test]
async fn writes_are_under_way_together_and_what_is_no_write_waits_for_their_end() {
    let (script, tape) = tape().await;
    let (ends, tasks) = writes::<3>(&script, &tape).await;
    let rewind = tokio::spawn(execute(&tape, request(REWIND, DeviceData::None)));
    let behind = tokio::spawn(write(&tape));
    for end in ends {
        settle().await;
        assert_eq!(script.taken(), [0u8; 0]);
        end.send(done(&[])).unwrap();
    }
    for task in tasks.into_iter().chain([rewind, behind]) {
        assert_eq!(task.await.unwrap().unwrap().status, Status::Good);
    }
    assert_eq!(script.taken(), [REWIND, WRITE]);
}

#[tokio::test]
async fn nothing_is_sent_behind_a_write_that_failed_before_all_have_ended() {
    let (script, tape) = tape().await;
    let ([first, second, third], tasks) = writes::<3>(&script, &tape).await;
    second.send(told(Key::MediumError, Additional::WRITE_ERROR)).unwrap();
    settle().await;
    let behind = tokio::spawn(write(&tape));
    third.send(done(&[])).unwrap();
    settle().await;
    assert_eq!(script.taken(), [0u8; 0], "the first has not ended");
    first.send(done(&[])).unwrap();
    let [first, second, third] = tasks;
    let status = |answer: Ended| answer.unwrap().status;
    assert_eq!(status(first.await.unwrap()), Status::Good);
    assert_eq!(status(second.await.unwrap()), Status::CheckCondition);
    assert_eq!(status(third.await.unwrap()), Status::Good);
    assert_eq!(status(behind.await.unwrap()), Status::Good);
    assert_eq!(script.taken(), [WRITE]);
}

#[tokio::test]
async fn writes_that_wait_for_a_session_are_not_sent_behind_what_is_told_in_place_of_the_first() {
    let (script, tape) = tape().await;
    script.unreachable.store(usize::MAX, Ordering::Release);
    script.ended.notify_one();
    while script.logins().is_empty() {
        yield_now().await;
    }
    let tasks = [(); 3].map(|()| tokio::spawn(write(&tape)));
    settle().await;
    script.unreachable.store(0, Ordering::Release);
    let [first, rest @ ..] = tasks;
    let sense = first.await.unwrap().unwrap().sense;
    assert_eq!(Sense::parse(&sense).unwrap().additional, Additional::NEXUS_LOSS);
    for behind in rest {
        assert_eq!(behind.await.unwrap(), Err(DeviceFailure::NotBegun));
    }
    assert!(!script.taken().contains(&WRITE));
}

#[tokio::test]
async fn each_write_without_an_answer_is_lost_with_its_session_and_none_is_sent_again() {
    let (script, tape) = tape().await;
    let ([first, second, third], tasks) = writes::<3>(&script, &tape).await;
    script.will(Act::Lose);
    let last = tokio::spawn(write(&tape));
    // What has come before the loss counts.
    first.send(done(&[])).unwrap();
    let mut ended = Vec::new();
    for task in tasks.into_iter().chain([last]) {
        ended.push(task.await.unwrap().map(|answer| answer.status));
    }
    let lost = Err(DeviceFailure::Lost);
    assert_eq!(ended, [Ok(Status::Good), lost, lost, lost]);
    assert_eq!(tells(&tape, WRITE).await, Some(Additional::NEXUS_LOSS));
    assert_eq!(script.taken(), [WRITE, READY]);
    assert_eq!(script.logins(), [true]);
    drop((second, third));
}

#[tokio::test]
async fn first_of_several_writes_is_the_one_that_is_late() {
    let (script, tape) = tape().await;
    script.will(Act::Hang);
    script.will(Act::Hang);
    let data = || DeviceData::Out(Bytes::from_static(&[7; 100]));
    let timeout = Duration::from_millis(1);
    let late = DeviceRequest { timeout, ..request(WRITE, data()) };
    let tasks = [late, request(WRITE, data())].map(|it| tokio::spawn(execute(&tape, it)));
    let [first, second] = tasks;
    assert_eq!(first.await.unwrap(), Err(DeviceFailure::TimedOut));
    assert_eq!(second.await.unwrap(), Err(DeviceFailure::Lost));
    assert_eq!(tells(&tape, REWIND).await, Some(Additional::NEXUS_LOSS));
    assert_eq!(script.logins(), [true]);
}

#[tokio::test]
async fn abort_goes_on_when_it_is_of_all_that_are_under_way() {
    let (script, tape) = tape().await;
    script.will(Act::Hang);
    let end = script.waits();
    let [first, second] = [(); 2].map(|()| tokio::spawn(write(&tape)));
    while script.sent.lock().unwrap().len() < 2 {
        yield_now().await;
    }
    first.abort();
    settle().await;
    end.send(done(&[])).unwrap();
    assert_eq!(second.await.unwrap().unwrap().status, Status::Good, "it was not aborted");
    // The first is alone by now, and ends.
    assert_eq!(tells(&tape, REWIND).await, None);
    assert_eq!((script.taken(), script.logins()), (vec![WRITE, WRITE, REWIND], vec![]));
}
