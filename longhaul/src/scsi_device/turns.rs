//! Whose turn it is at a device.
//!
//! Commands have it in the order in which they came, one at a time; those of one stream have it together. When one of them
//! fails, none of those that were not sent is sent before all others have ended: what the first has to tell comes before.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use proto::scsi::pass_through::{DeviceClass, Direction};

use super::Order;

/// As many commands of a stream have their turn together: with blocks of 64 KiB they fill a gigabit link of 16 ms.
pub const COMMANDS_MAX: usize = 32;

/// What the commands of a stream carry together, unless it is one: the memory of a device's clients is not that of one of them.
const BYTES_MAX: u64 = 8 << 20;

/// Commands of one client that may have their turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The number of the client.
    pub client: u64,
    /// Where their data go, if those of the other direction have to wait.
    pub direction: Option<Direction>,
}

/// With which others a command may have its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// With none.
    Alone,
    /// With those of this stream; it carries so many bytes.
    With(Stream, u32),
}

impl Concurrency {
    /// That of a command of a client that carries so many bytes, by what the device does with several.
    pub fn of(order: Order, class: DeviceClass, opcode: u8, (client, bytes): (u64, u32)) -> Self {
        let direction = Direction::of(class, opcode);
        let stream = match (order, class, direction) {
            (Order::Single, ..) | (_, _, None) => return Self::Alone,
            // A head that turns around has to stand where the last block ended.
            (Order::Kept, DeviceClass::Tape, _) => Stream { client, direction },
            (Order::Kept, ..) => Stream { client, direction: None },
            // Reads that overtake one another return what they were to return, if nothing else is done meanwhile.
            (Order::Lost, DeviceClass::Disk | DeviceClass::Optical, Some(Direction::Read)) => {
                Stream { client, direction }
            }
            (Order::Lost, ..) => return Self::Alone,
        };
        Self::With(stream, bytes)
    }

    const fn bytes(self) -> u64 {
        match self {
            Self::Alone => 0,
            Self::With(_, bytes) => bytes as u64,
        }
    }

    const fn stream(self) -> Option<Stream> {
        match self {
            Self::Alone => None,
            Self::With(stream, _) => Some(stream),
        }
    }
}

/// See the module. Clones are of the same device.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<Mutex<State>>);

/// Where a command stands: our own questions stand before those of clients.
type Rank = (bool, u64);

#[derive(Debug, Default)]
struct State {
    entered: u64,
    /// Those that wait, and how they are woken.
    waiting: BTreeMap<Rank, Option<Waker>>,
    under_way: usize,
    bytes: u64,
    /// That of those under way; none if there is one that is alone.
    stream: Option<Stream>,
    /// One of those under way has failed.
    is_halted: bool,
}

impl State {
    /// Whether a command may have its turn beside those under way.
    fn admits(&self, concurrency: Concurrency) -> bool {
        if self.under_way == 0 {
            return true;
        }
        let is_of_stream = concurrency.stream().is_some_and(|stream| self.stream == Some(stream));
        let has_room = self.under_way < COMMANDS_MAX
            && self.bytes.saturating_add(concurrency.bytes()) <= BYTES_MAX;
        is_of_stream && has_room && !self.is_halted
    }

    fn begin(&mut self, concurrency: Concurrency) {
        self.under_way += 1;
        self.bytes += concurrency.bytes();
        self.stream = concurrency.stream();
    }

    fn end(&mut self, bytes: u64) {
        self.under_way -= 1;
        self.bytes -= bytes;
        if self.under_way == 0 {
            (self.stream, self.is_halted) = (None, false);
        }
    }

    fn is_first(&self, rank: Rank) -> bool {
        self.waiting.first_key_value().is_some_and(|(first, _)| *first == rank)
    }

    /// What wakes the one that waits first.
    fn first(&mut self) -> Option<Waker> {
        self.waiting.first_entry()?.get_mut().take()
    }
}

impl Turns {
    /// A place behind all that wait.
    #[must_use]
    pub fn enter(&self) -> Place {
        self.place(true)
    }

    /// A place before all commands of clients that wait: they wait for the answer.
    #[must_use]
    pub fn enter_first(&self) -> Place {
        self.place(false)
    }

    fn place(&self, is_behind: bool) -> Place {
        let mut state = self.state();
        let rank = (is_behind, state.entered);
        state.entered += 1;
        state.waiting.insert(rank, None);
        Place { turns: self.clone(), rank }
    }

    /// Changes the state, and wakes the one that may have its turn now.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let changed = change(&mut state);
        let first = state.first();
        drop(state);
        first.into_iter().for_each(Waker::wake);
        changed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a command that waits. None behind it has its turn before, unless it is dropped.
#[derive(Debug)]
pub struct Place {
    turns: Turns,
    rank: Rank,
}

impl Place {
    /// Waits for its turn.
    pub async fn turn(self, concurrency: Concurrency) -> Turn {
        poll_fn(|cx| self.poll_turn(cx, concurrency)).await
    }

    fn poll_turn(&self, cx: &Context<'_>, concurrency: Concurrency) -> Poll<Turn> {
        let mut state = self.turns.state();
        if !(state.is_first(self.rank) && state.admits(concurrency)) {
            // It is woken when something changes, and not by this.
            state.waiting.insert(self.rank, Some(cx.waker().clone()));
            return Poll::Pending;
        }
        state.waiting.remove(&self.rank);
        state.begin(concurrency);
        let next = state.first();
        drop(state);
        next.into_iter().for_each(Waker::wake);
        let (turns, rank) = (self.turns.clone(), self.rank);
        Poll::Ready(Turn(Arc::new(Slot { turns, rank, concurrency })))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.turns.change(|state| state.waiting.remove(&self.rank));
    }
}

/// The turn of a command, which ends with the last clone.
#[derive(Clone, Debug)]
pub struct Turn(Arc<Slot>);

#[derive(Debug)]
struct Slot {
    turns: Turns,
    rank: Rank,
    concurrency: Concurrency,
}

impl Turn {
    /// With which others it is.
    #[must_use]
    pub fn concurrency(&self) -> Concurrency {
        self.0.concurrency
    }

    /// Its command has failed: none joins those under way any more.
    pub fn halt(&self) {
        self.0.turns.state().is_halted = true;
    }

    /// Whether a command that has its turn with this one has failed.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.0.turns.state().is_halted
    }

    /// The place that its command had, if that was not sent.
    #[must_use]
    pub fn back(self) -> Place {
        let (turns, rank) = (self.0.turns.clone(), self.0.rank);
        turns.state().waiting.insert(rank, None);
        Place { turns, rank }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.turns.change(|state| state.end(self.concurrency.bytes()));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use testing::WakeCounter;

    use super::*;

    const TAPE: DeviceClass = DeviceClass::Tape;
    const READ: u8 = 0x08;
    const WRITE: u8 = 0x0A;
    const REWIND: u8 = 0x01;

    fn of(opcode: u8, client: u64) -> Concurrency {
        Concurrency::of(Order::Kept, TAPE, opcode, (client, 1000))
    }

    type Waiting = std::pin::Pin<Box<dyn Future<Output = Turn>>>;

    fn wait(turns: &Turns, concurrency: Concurrency) -> Waiting {
        Box::pin(turns.enter().turn(concurrency))
    }

    /// Who of those that wait has its turn now.
    fn begun(waiting: &mut [Waiting]) -> Vec<Option<Turn>> {
        waiting.iter_mut().map(|turn| turn.now_or_never()).collect()
    }

    #[test]
    fn commands_of_one_stream_go_together_and_nothing_passes_another() {
        let turns = Turns::default();
        let kinds = [(WRITE, 1), (WRITE, 1), (READ, 1), (READ, 2), (WRITE, 2), (REWIND, 2)];
        let mut waiting: Vec<_> =
            kinds.iter().map(|&(opcode, client)| wait(&turns, of(opcode, client))).collect();
        // One of the first stream that comes later waits as well.
        waiting.push(wait(&turns, of(WRITE, 1)));
        for together in [2, 1, 1, 1, 1, 1] {
            let has_turn = begun(&mut waiting);
            let count = has_turn.iter().take_while(|turn| turn.is_some()).count();
            let others = has_turn.iter().skip(count);
            assert!(count == together && others.into_iter().all(Option::is_none), "{has_turn:?}");
            waiting.drain(..count);
        }
        assert!(waiting.is_empty());
    }

    #[test]
    fn nothing_goes_behind_one_that_failed_before_all_have_ended_and_each_keeps_its_place() {
        let turns = Turns::default();
        let [first, second, third] = [(); 3].map(|()| wait(&turns, of(WRITE, 1)).now_or_never());
        let mut fourth = wait(&turns, of(WRITE, 1));
        let mut other = wait(&turns, of(WRITE, 2));
        let (first, second, third) = (first.unwrap(), second.unwrap(), third.unwrap());
        first.halt();
        assert!(third.is_halted());
        // The last two were not sent.
        let third = third.back();
        let second = second.back();
        assert!((&mut fourth).now_or_never().is_none());
        let mut behind = wait(&turns, of(WRITE, 1));
        let (mut second, mut third) =
            (Box::pin(second.turn(of(WRITE, 1))), Box::pin(third.turn(of(WRITE, 1))));
        assert!((&mut second).now_or_never().is_none(), "the first has not ended");
        drop(first);
        assert!((&mut third).now_or_never().is_none(), "it is the turn of the second");
        let second = (&mut second).now_or_never().unwrap();
        assert!(!second.is_halted());
        let all = ((&mut third).now_or_never().unwrap(), (&mut fourth).now_or_never().unwrap());
        assert!((&mut behind).now_or_never().is_none() && (&mut other).now_or_never().is_none());
        drop((second, all));
        assert!((&mut behind).now_or_never().is_none());
        assert!((&mut other).now_or_never().is_some());
    }

    /// One that woke itself would keep a processor busy for as long as it waits.
    #[test]
    fn command_that_waits_is_woken_when_it_may_go_on_and_not_before() {
        let count = Arc::<WakeCounter>::default();
        let waker = Waker::from(Arc::clone(&count));
        let woken = || count.count();
        let turns = Turns::default();
        let alone = wait(&turns, Concurrency::Alone).now_or_never();
        let mut waiting = wait(&turns, of(READ, 1));
        for _ in 0..3 {
            assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(woken(), 0);
        drop(alone);
        assert_eq!(woken(), 1);
        assert!(waiting.now_or_never().is_some());
    }

    #[test]
    fn as_many_go_together_as_there_is_room_for() {
        let turns = Turns::default();
        let mut all: Vec<_> = (0..COMMANDS_MAX + 1).map(|_| wait(&turns, of(READ, 1))).collect();
        let begun = begun(&mut all);
        assert_eq!(begun.iter().filter(|turn| turn.is_some()).count(), COMMANDS_MAX);
        drop((begun, all));
        let large = Concurrency::of(Order::Kept, TAPE, READ, (1, u32::MAX));
        let only = wait(&turns, large).now_or_never();
        assert!(only.is_some() && wait(&turns, of(READ, 1)).now_or_never().is_none());
    }

    #[test]
    fn place_that_is_left_is_free_and_a_question_of_ours_comes_first() {
        let turns = Turns::default();
        let alone = wait(&turns, Concurrency::Alone).now_or_never();
        let left = turns.enter();
        let mut second = wait(&turns, of(READ, 1));
        let mut ours = Box::pin(turns.enter_first().turn(Concurrency::Alone));
        drop(alone);
        assert!((&mut second).now_or_never().is_none());
        let asked = (&mut ours).now_or_never();
        assert!(asked.is_some());
        drop((asked, left));
        assert!((&mut second).now_or_never().is_some());
    }

    #[test]
    fn concurrency_follows_from_device_and_order() {
        let alone = |order, class, opcode| {
            Concurrency::of(order, class, opcode, (1, 0)) == Concurrency::Alone
        };
        let (disk, disc) = (DeviceClass::Disk, DeviceClass::Optical);
        for opcode in [READ, WRITE] {
            assert!(alone(Order::Single, TAPE, opcode) && alone(Order::Lost, TAPE, opcode));
        }
        for opcode in [0x10, 0x0F, REWIND, 0x00, 0x11] {
            assert!(alone(Order::Kept, TAPE, opcode), "{opcode:#x}");
        }
        for class in [disk, disc] {
            assert!(!alone(Order::Lost, class, 0x28) && alone(Order::Lost, class, 0x2A));
            let [read, write] =
                [0x28, 0x2A].map(|code| Concurrency::of(Order::Kept, class, code, (1, 0)));
            assert!(read == write && read != Concurrency::Alone);
        }
        assert_ne!(of(READ, 1), of(WRITE, 1));
        assert_ne!(of(READ, 1), of(READ, 2));
    }
}
