//! Commands on their way to a device.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use proto::scsi::sense::Key;
use proto::scsi::{Sense, Status};
use tokio::sync::oneshot;

use super::turns::{Turn, Turns};
use super::{DeviceAnswer, DeviceFailure, DeviceRequest, Pending};

/// The most that is kept for clients that have not heard it: it says the same again and again.
const UNHEARD_MAX: usize = 16;

/// REQUEST SENSE, whose data are sense data.
const REQUEST_SENSE: u8 = 0x03;

/// How a command has ended.
pub type Ended = Result<DeviceAnswer, DeviceFailure>;

/// The commands of a device: those that wait for their turn, where they can be aborted, and those that have it.
#[derive(Default)]
pub struct CommandQueue {
    turns: Turns,
    unheard: Unheard,
}

impl CommandQueue {
    /// Whose turn it is.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Hands a command on whose turn it is, and waits until it has ended.
    pub fn execute(
        &self,
        turn: Turn,
        request: DeviceRequest,
        hand_on: impl FnOnce(Job) -> Result<(), DeviceFailure> + Send + 'static,
    ) -> Pending<Ended> {
        let unheard = self.unheard.clone();
        Box::pin(async move {
            if !unheard.kept().is_empty() {
                return Err(DeviceFailure::NotBegun);
            }
            let (answer, ended) = oneshot::channel();
            let is_request_sense = request.block[0] == REQUEST_SENSE;
            let (waiting, kept) = (turn.clone(), unheard.clone());
            let waiting = Waiting { ended, unheard: kept, is_request_sense, _turn: waiting };
            hand_on(Job { request, answer, unheard, turn })?;
            waiting.ended().await
        })
    }

    /// The sense data of commands that nobody waited for any more, and that somebody has to be told of.
    pub fn take_unheard(&self) -> Vec<Bytes> {
        mem::take(&mut *self.unheard.kept())
    }
}

/// A command whose turn it is.
pub struct Job {
    /// What is asked of the device.
    pub request: DeviceRequest,
    answer: oneshot::Sender<Ended>,
    unheard: Unheard,
    turn: Turn,
}

impl Job {
    /// Ends it. Nobody may wait for that any more: it was aborted.
    pub fn end(self, ended: Ended) {
        let Self { request, answer, unheard, turn } = self;
        // Before its end is known: nothing that was not sent is sent behind it.
        if !matches!(&ended, Ok(answer) if answer.status == Status::Good) {
            turn.halt();
        }
        if let Err(ended) = answer.send(ended) {
            unheard.keep(ended, request.block[0] == REQUEST_SENSE);
        }
    }

    /// A command that was sent before it has failed: it is not to be sent.
    pub fn is_halted(&self) -> bool {
        self.turn.is_halted()
    }

    /// Nobody waits for its end any more.
    pub fn is_aborted(&self) -> bool {
        self.answer.is_closed()
    }

    /// Whether that is so; the task is woken when it is.
    pub fn poll_aborted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.answer.poll_closed(cx)
    }
}

/// Who waits for the end of a command.
struct Waiting {
    ended: oneshot::Receiver<Ended>,
    unheard: Unheard,
    is_request_sense: bool,
    /// The next command begins once somebody has heard of this one.
    _turn: Turn,
}

impl Waiting {
    async fn ended(mut self) -> Ended {
        (&mut self.ended).await.unwrap_or(Err(DeviceFailure::Gone))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // It may have ended just before it was aborted.
        if let Ok(ended) = self.ended.try_recv() {
            self.unheard.keep(ended, self.is_request_sense);
        }
    }
}

/// Unit attentions and deferred errors that a device has told to nobody: it does not tell them again.
#[derive(Clone, Default)]
struct Unheard(Arc<Mutex<Vec<Bytes>>>);

impl Unheard {
    fn keep(&self, ended: Ended, is_request_sense: bool) {
        let Ok(DeviceAnswer { data, sense, .. }) = ended else { return };
        let told = if is_request_sense { data } else { sense };
        let is_of_others = Sense::parse(&told)
            .is_some_and(|sense| sense.key == Key::UnitAttention || sense.deferred);
        let mut kept = self.kept();
        if is_of_others && kept.len() < UNHEARD_MAX {
            kept.push(told);
        }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use proto::scsi::Residual;
    use proto::scsi::sense::{Additional, Format};
    use tokio::sync::mpsc;

    use super::super::DeviceData;
    use super::super::turns::Concurrency;
    use super::*;

    fn request(opcode: u8) -> DeviceRequest {
        let mut block = [0; 16];
        block[0] = opcode;
        DeviceRequest { block, data: DeviceData::None, timeout: Duration::from_secs(1) }
    }

    fn answer(data: Bytes, sense: Bytes) -> Ended {
        Ok(DeviceAnswer { status: Status::CheckCondition, data, sense, residual: Residual::None })
    }

    fn turn(commands: &CommandQueue) -> Turn {
        commands.turns().enter().turn(Concurrency::Alone).now_or_never().expect("a turn")
    }

    /// A command that is under way.
    fn begin(commands: &CommandQueue, opcode: u8) -> (Pending<Ended>, Job) {
        let (jobs, mut queue) = mpsc::channel(1);
        let hand_on = move |job| jobs.try_send(job).map_err(|_| DeviceFailure::Gone);
        let mut pending = commands.execute(turn(commands), request(opcode), hand_on);
        assert!((&mut pending).now_or_never().is_none());
        (pending, queue.try_recv().ok().unwrap())
    }

    fn begun(commands: &CommandQueue) -> Result<(), DeviceFailure> {
        let begun = commands.execute(turn(commands), request(0), |job| {
            drop(job);
            Ok(())
        });
        match begun.now_or_never() {
            Some(Err(DeviceFailure::Gone)) => Ok(()),
            Some(Err(why)) => Err(why),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sense_for_an_aborted_command_is_kept_for_others() {
        let attention = Sense::new(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED);
        let told: Bytes = attention.emit(Format::Fixed).into();
        let none = Bytes::new();
        // Aborted before it ends, or between its end and when its client hears of that.
        for is_late in [false, true] {
            for (opcode, ended) in [
                (0x00, answer(none.clone(), told.clone())),
                (REQUEST_SENSE, answer(told.clone(), none.clone())),
            ] {
                let commands = CommandQueue::default();
                let (pending, mut job) = begin(&commands, opcode);
                if is_late {
                    job.end(ended);
                    drop(pending);
                } else {
                    drop(pending);
                    assert!(
                        job.is_aborted()
                            && poll_fn(|cx| job.poll_aborted(cx)).now_or_never().is_some()
                    );
                    job.end(ended);
                }
                assert_eq!(begun(&commands), Err(DeviceFailure::NotBegun));
                assert_eq!(commands.take_unheard(), [&told]);
                assert_eq!(begun(&commands), Ok(()));
            }
        }
    }

    #[test]
    fn sense_that_its_client_hears_or_concerns_it_alone_is_not_kept() {
        let commands = CommandQueue::default();
        let attention = Sense::new(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED);
        let (pending, job) = begin(&commands, 0);
        job.end(answer(Bytes::new(), attention.emit(Format::Fixed).into()));
        assert!(pending.now_or_never().unwrap().is_ok());
        assert_eq!(begun(&commands), Ok(()));
        let (pending, job) = begin(&commands, 0);
        drop(pending);
        let refused = Sense::illegal(Additional::LBA_OUT_OF_RANGE);
        job.end(answer(Bytes::new(), refused.emit(Format::Fixed).into()));
        assert_eq!(begun(&commands), Ok(()));
        assert!(commands.take_unheard().is_empty());
    }
}
