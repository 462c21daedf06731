//! An executor on virtual time: tasks run on one thread, in an order drawn from a seed, and when none
//! can run the clock jumps to the next timer. The same seed gives the same run, and a test that
//! covers an hour takes a moment.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use volume::check::Random;
use volume::layer::reconnect::{Runtime, Task};

/// A simulation of its own; clones are handles to the same one.
#[derive(Clone, Default)]
pub(crate) struct Sim(Arc<Mutex<Simulation>>);

#[derive(Default)]
struct Simulation {
    now: Duration,
    timers: BTreeMap<(Duration, u64), Waker>,
    timers_set: u64,
    runnable: Vec<usize>,
    spawned: Vec<Task>,
}

struct Runnable {
    sim: Sim,
    task: usize,
}

impl Wake for Runnable {
    fn wake(self: Arc<Self>) {
        let mut simulation = self.sim.simulation();
        if !simulation.runnable.contains(&self.task) {
            simulation.runnable.push(self.task);
        }
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").finish_non_exhaustive()
    }
}

impl Runtime for Sim {
    fn now(&self) -> Duration {
        self.simulation().now
    }
    fn sleep_until(&self, at: Duration) -> Task {
        let sim = self.clone();
        Box::pin(async move { sim.until(at).await })
    }
    fn spawn(&self, task: Task) {
        self.simulation().spawned.push(task);
    }
    fn random(&self) -> u64 {
        0
    }
}

impl Sim {
    fn simulation(&self) -> MutexGuard<'_, Simulation> {
        self.0.lock().unwrap()
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        Runtime::spawn(self, Box::pin(task));
    }

    /// Waits until `moment`.
    pub(crate) async fn until(&self, moment: Duration) {
        let mut is_set = false;
        poll_fn(|context| {
            let mut simulation = self.simulation();
            if simulation.now >= moment {
                return Poll::Ready(());
            }
            // A task has one waker, whatever else it is woken by meanwhile.
            if std::mem::replace(&mut is_set, true) {
                return Poll::Pending;
            }
            simulation.timers_set += 1;
            let key = (moment, simulation.timers_set);
            simulation.timers.insert(key, context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    pub(crate) async fn pause(&self, time: Duration) {
        let moment = self.now() + time;
        self.until(moment).await;
    }

    /// Runs until `main` has ended; the other tasks are then dropped where they stand. Panics if
    /// nothing can ever happen again.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        seed: u64,
        main: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let answer = Arc::new(Mutex::new(None));
        let mut random = Random::new(seed);
        let mut tasks: Vec<Option<Task>> = Vec::new();
        let put = Arc::clone(&answer);
        self.spawn(async move {
            let value = main.await;
            *put.lock().unwrap() = Some(value);
        });
        while answer.lock().unwrap().is_none() {
            let task = self.next_task(&mut tasks, &mut random);
            let waker = Waker::from(Arc::new(Runnable { sim: self.clone(), task }));
            if let Some(running) = &mut tasks[task]
                && running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
            {
                tasks[task] = None;
            }
        }
        drop(tasks);
        answer.lock().unwrap().take().unwrap()
    }

    fn next_task(&self, tasks: &mut Vec<Option<Task>>, random: &mut Random) -> usize {
        loop {
            let mut simulation = self.simulation();
            for task in std::mem::take(&mut simulation.spawned) {
                simulation.runnable.push(tasks.len());
                tasks.push(Some(task));
            }
            if !simulation.runnable.is_empty() {
                let chosen = random.below(simulation.runnable.len() as u64) as usize;
                return simulation.runnable.swap_remove(chosen);
            }
            let ((moment, _), waker) =
                simulation.timers.pop_first().expect("nothing can ever happen again");
            simulation.now = simulation.now.max(moment);
            drop(simulation);
            waker.wake();
        }
    }
}
