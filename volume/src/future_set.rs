//! Futures that are polled by one task, as many as there are, without having it woken for nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::stream::{FuturesUnordered, Stream, StreamExt as _};
use futures_util::task::AtomicWaker;

/// A future has been woken since they were polled.
const WOKEN: u8 = 1;
/// They are being polled.
const POLLING: u8 = 2;

/// How often they are polled before the task lets others go on: one of them may wake itself each time.
const ROUNDS: u32 = 2;

/// Futures under way, of which each result is given once it is there.
///
/// [`FuturesUnordered`] wakes its task, while that polls it, whenever it has polled as many futures as it has: with one under way,
/// each time. The runtime then polls the task once more, and wakes another of its threads to do so.
pub struct FutureSet<F> {
    futures: FuturesUnordered<F>,
    /// One of them was not polled yet.
    has_new: bool,
    woken: Arc<SetWaker>,
    waker: Waker,
}

/// Passes on who is woken, but not to a task that is about to look.
#[derive(Default)]
struct SetWaker {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Wake for SetWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.fetch_or(WOKEN, Ordering::AcqRel) == 0 {
            self.task.wake();
        }
    }
}

impl<F> Default for FutureSet<F> {
    fn default() -> Self {
        let woken = Arc::<SetWaker>::default();
        let (futures, waker) = (FuturesUnordered::default(), Waker::from(Arc::clone(&woken)));
        Self { futures, has_new: false, woken, waker }
    }
}

impl<F: Future> FutureSet<F> {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one, which is polled when the set is. The others wake their task as before, also if it is not polled again before.
    pub fn push(&mut self, future: F) {
        self.futures.push(future);
        self.has_new = true;
    }

    /// How many have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.futures.len()
    }

    /// Whether all have ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.futures.is_empty()
    }

    /// Those that have not ended.
    pub fn iter(&self) -> impl Iterator<Item = &F>
    where
        F: Unpin,
    {
        self.futures.iter()
    }

    fn poll_futures(&mut self) -> Poll<Option<F::Output>> {
        self.has_new = false;
        // What is woken from here on is seen after this.
        self.woken.state.store(POLLING, Ordering::Release);
        let polled = self.futures.poll_next_unpin(&mut Context::from_waker(&self.waker));
        match polled {
            // Others may have ended too.
            Poll::Ready(Some(_)) => self.woken.state.store(WOKEN, Ordering::Release),
            Poll::Ready(None) | Poll::Pending => {
                self.woken.state.fetch_and(!POLLING, Ordering::AcqRel);
            }
        }
        polled
    }

    /// Whether there is something to poll. They are in the state of being polled if one of them has panicked: the rest goes on.
    fn is_due(&self) -> bool {
        self.has_new || self.woken.state.load(Ordering::Acquire) != 0
    }
}

impl<F: Future> Stream for FutureSet<F> {
    type Item = F::Output;

    /// The next result; `None` if no future is under way. After a result it has to be polled again before its task is woken.
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        if self.is_empty() {
            return Poll::Ready(None);
        }
        self.woken.task.register(cx.waker());
        for _ in 0..ROUNDS {
            if !self.is_due() {
                return Poll::Pending;
            }
            let polled = self.poll_futures();
            if polled.is_ready() {
                return polled;
            }
        }
        if self.is_due() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt as _;
    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::wake_counter::WakeCounter;

    /// What a task sees that polls a set.
    struct Task(Arc<WakeCounter>);

    impl Task {
        fn poll<F: Future>(&self, set: &mut FutureSet<F>) -> Poll<Option<F::Output>> {
            let waker = Waker::from(Arc::clone(&self.0));
            set.poll_next_unpin(&mut Context::from_waker(&waker))
        }
    }

    fn task() -> Task {
        Task(Arc::default())
    }

    #[test]
    fn a_task_is_woken_by_what_ends_and_not_by_its_own_look() {
        let (mut set, task) = (FutureSet::new(), task());
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| oneshot::channel()).unzip();
        receivers.into_iter().for_each(|receiver| set.push(receiver));
        for _ in 0..5 {
            assert!(task.poll(&mut set).is_pending());
        }
        assert_eq!(task.0.count(), 0);
        for (number, sender) in senders.into_iter().enumerate() {
            sender.send(number).unwrap();
        }
        assert_eq!(task.0.count(), 1, "for what ends after that it is awake");
        let mut ended: Vec<_> = std::iter::from_fn(|| match task.poll(&mut set) {
            Poll::Ready(ended) => ended.map(Result::unwrap),
            Poll::Pending => panic!("all have ended"),
        })
        .collect();
        ended.sort_unstable();
        assert_eq!(ended, [0, 1, 2]);
        assert_eq!(task.0.count(), 1);
    }

    #[test]
    fn set_that_was_empty_is_polled_again() {
        let (mut set, task) = (FutureSet::new(), task());
        assert_eq!(task.poll(&mut set), Poll::Ready(None));
        for number in 0..3 {
            set.push(std::future::ready(number));
            assert_eq!(task.poll(&mut set), Poll::Ready(Some(number)));
            assert_eq!(task.poll(&mut set), Poll::Ready(None));
        }
    }

    #[test]
    fn others_wake_their_task_where_one_was_added_and_not_polled() {
        let (mut set, task) = (FutureSet::new(), task());
        let [(first, of_first), (_second, of_second)] = [(); 2].map(|()| oneshot::channel());
        set.push(of_first);
        assert!(task.poll(&mut set).is_pending());
        set.push(of_second);
        first.send(1).unwrap();
        assert_eq!(task.0.count(), 1);
        assert_eq!(task.poll(&mut set), Poll::Ready(Some(Ok(1))));
        assert!(task.poll(&mut set).is_pending());
    }

    #[test]
    fn the_others_go_on_where_one_has_panicked() {
        let (mut set, task) = (FutureSet::new(), task());
        let (sender, receiver) = oneshot::channel();
        let receiver = async { receiver.await.unwrap() }.left_future();
        set.push(receiver);
        assert!(task.poll(&mut set).is_pending());
        set.push(async { panic!("as a request may") }.right_future());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| task.poll(&mut set))).unwrap_err();
        assert!(task.poll(&mut set).is_pending());
        sender.send(1).unwrap();
        assert_eq!(task.0.count(), 1);
        assert_eq!(task.poll(&mut set), Poll::Ready(Some(1)));
        assert_eq!(task.poll(&mut set), Poll::Ready(None));
    }

    #[test]
    fn the_task_that_polled_last_is_woken() {
        let (mut set, [before, after]) = (FutureSet::new(), [task(), task()]);
        let (sender, receiver) = oneshot::channel();
        set.push(receiver);
        assert!(before.poll(&mut set).is_pending());
        assert!(after.poll(&mut set).is_pending());
        sender.send(()).unwrap();
        assert_eq!([before.0.count(), after.0.count()], [0, 1]);
    }

    #[test]
    fn future_that_always_wakes_itself_lets_its_task_go_on() {
        let (mut set, task) = (FutureSet::new(), task());
        let mut polls = 0;
        set.push(poll_fn(|cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
        for wakes in 1..4 {
            assert!(task.poll(&mut set).is_pending());
            assert_eq!(task.0.count(), wakes, "its task is to poll it again");
        }
        drop(set);
        assert_eq!(polls, 3 * ROUNDS);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_missed_that_other_tasks_wake() {
        const ROUNDS: usize = 20_000;
        let (queue, mut waiting) = mpsc::unbounded_channel::<oneshot::Sender<usize>>();
        let other = tokio::spawn(async move {
            for number in 0.. {
                let Some(sender) = waiting.recv().await else { break };
                sender.send(number).unwrap();
            }
        });
        let mut set = FutureSet::new();
        let mut sum = 0;
        for _ in 0..ROUNDS {
            let (sender, receiver) = oneshot::channel();
            set.push(receiver);
            queue.send(sender).unwrap();
            if set.len() == 4 {
                sum += set.next().await.unwrap().unwrap();
            }
        }
        drop(queue);
        while let Some(ended) = set.next().await {
            sum += ended.unwrap();
        }
        other.await.unwrap();
        assert_eq!(sum, ROUNDS * (ROUNDS - 1) / 2);
    }
}
