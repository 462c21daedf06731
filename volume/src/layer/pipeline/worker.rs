//! The worker: carries out what the state machine orders, many orders at a time.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::Stream;

use super::core::{Order, Outcome};
use super::piece::Rope;
use super::shared::{Next, Shared};
use crate::layer::reconnect::Task;
use crate::{Durability, Error, Extent, FutureSet, Kind, Result, Span, Verb, Volume};

/// How many times it looks for more before it lets others run: what lies beneath may answer at once.
const ROUNDS_MAX: usize = 16;

/// How many results it gathers before it hands them in: whoever waits for one should not have to wait
/// for all, nor should all seem to have taken as long as the last.
const OUTCOMES_MAX: usize = 8;

type Carried = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Runs until the pipeline was dropped and everything accepted was carried out. It has nothing to
/// look at while there is nothing to do.
pub(super) struct Worker {
    inner: Arc<dyn Volume>,
    shared: Arc<Shared>,
    carried: FutureSet<Carried>,
    orders: VecDeque<Order>,
    outcomes: Vec<Outcome>,
    /// Wakes it when something may be issued that is held back, at this time.
    timer: Option<(Duration, Task)>,
    over: bool,
}

impl Worker {
    pub(super) fn new(inner: Arc<dyn Volume>, shared: Arc<Shared>) -> Self {
        Self {
            inner,
            shared,
            carried: FutureSet::new(),
            orders: VecDeque::new(),
            outcomes: Vec::new(),
            timer: None,
            over: false,
        }
    }

    /// Takes what has been carried out; true if there is no more for now.
    fn gather(&mut self, context: &mut Context<'_>) -> bool {
        while self.outcomes.len() < OUTCOMES_MAX {
            match Pin::new(&mut self.carried).poll_next(context) {
                Poll::Ready(Some(outcome)) => self.outcomes.push(outcome),
                Poll::Ready(None) | Poll::Pending => return true,
            }
        }
        false
    }

    /// Sets the timer to `at`; whether it is that time already.
    fn is_time(&mut self, at: Option<Duration>, context: &mut Context<'_>) -> bool {
        if self.timer.as_ref().map(|(at, _)| *at) != at {
            self.timer = at.map(|at| (at, self.shared.sleep_until(at)));
        }
        self.timer.take_if(|(_, sleep)| sleep.as_mut().poll(context).is_ready()).is_some()
    }

    fn carry_out(&self, order: Order) -> Carried {
        let inner = Arc::clone(&self.inner);
        match order {
            Order::Write { at, data, durability } => {
                let shared = Arc::clone(&self.shared);
                Box::pin(write(inner, shared, at, data, durability))
            }
            Order::WriteZeroes { span, space, durability } => Box::pin(async move {
                Outcome::Changed(span.at, inner.write_zeroes(span, durability, space).await)
            }),
            Order::Discard { span } => {
                Box::pin(async move { Outcome::Changed(span.at, inner.discard(span).await) })
            }
            Order::Flush { flush } => {
                Box::pin(async move { Outcome::Flushed(flush, inner.flush().await) })
            }
            Order::Read { span } => {
                Box::pin(async move { Outcome::Read(span.at, inner.read(span).await) })
            }
            Order::Extents { span } => {
                Box::pin(async move { Outcome::Extents(extents(&*inner, span).await) })
            }
        }
    }
}

async fn write(
    inner: Arc<dyn Volume>,
    shared: Arc<Shared>,
    at: u64,
    data: Rope,
    durability: Durability,
) -> Outcome {
    let data = match data {
        one @ Rope::One(_) => one.into_bytes(),
        // The copy is made here, where nobody waits for a lock.
        several => {
            let whole = several.into_bytes();
            shared.gathered(at, whole.clone());
            whole
        }
    };
    Outcome::Changed(at, inner.write(at, data, durability).await)
}

async fn extents(inner: &dyn Volume, span: Span) -> Result<Vec<Extent>> {
    match inner.extents() {
        Some(map) => map.extents(span).await,
        None => Err(Error::new(Kind::Unsupported, Verb::Extents, span)),
    }
}

impl Future for Worker {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let worker = &mut *self;
        for _ in 0..ROUNDS_MAX {
            let drained = worker.gather(context);
            let next = worker.shared.work(context, &mut worker.outcomes, &mut worker.orders);
            let Next::Later(at) = next else {
                worker.over = true;
                return Poll::Ready(());
            };
            let is_time = worker.is_time(at, context);
            if drained && worker.orders.is_empty() && !is_time {
                return Poll::Pending;
            }
            while let Some(order) = worker.orders.pop_front() {
                let carried = worker.carry_out(order);
                worker.carried.push(carried);
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Whoever waits would wait for ever.
        if !self.over {
            self.shared.abandon();
        }
    }
}
