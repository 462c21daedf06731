use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::watch;

use super::Supervisor;
use crate::layer::reconnect::{
    Connect, Effect, Failure, Loss, Over, Refused, Replay, RequestError, Runtime, Salvage,
    Settings, Status, Task, Verdict,
};

const SETTINGS: Settings = Settings {
    patience: None,
    first_wait: Duration::from_millis(100),
    longest_wait: Duration::from_secs(5),
    unflushed_max: Some(1 << 20),
    salvage: Salvage::Answered,
};

/// Time that passes when it is waited for.
#[derive(Debug, Default)]
struct Virtual(Arc<Mutex<Duration>>);

impl Runtime for Virtual {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn sleep_until(&self, at: Duration) -> Task {
        let now = Arc::clone(&self.0);
        Box::pin(async move {
            tokio::task::yield_now().await;
            let mut now = now.lock().unwrap();
            *now = at.max(*now);
        })
    }

    fn spawn(&self, task: Task) {
        tokio::spawn(task);
    }

    fn random(&self) -> u64 {
        0
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the link is lost")]
struct Broken;

/// A write of these bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Write(Range<u64>);

impl Replay for Write {
    fn part(&self, part: &Range<u64>) -> Self {
        Self(part.clone())
    }

    fn replaces(&self) -> bool {
        true
    }
}

/// A link that answers nothing before it is lost, or everything.
struct Link {
    number: usize,
    answers: bool,
    lost: watch::Sender<bool>,
    simulation: Arc<Simulation>,
}

/// What the links of a test share.
#[derive(Debug, Default)]
struct Simulation {
    /// How the next attempts end: with a link that answers, or so.
    attempts: Mutex<VecDeque<Option<Effect>>>,
    /// On which links what was written.
    written: Mutex<Vec<(usize, Write)>>,
    saved: Mutex<Vec<Write>>,
    /// The next links answer nothing.
    is_mute: AtomicBool,
    links: Mutex<usize>,
    /// On which links somebody waits for the end.
    hurried: Mutex<Vec<usize>>,
    begun: watch::Sender<usize>,
}

impl Simulation {
    fn link(self: &Arc<Self>, answers: bool) -> Link {
        let mut links = self.links.lock().unwrap();
        *links += 1;
        let (number, lost) = (*links - 1, watch::Sender::new(false));
        Link { number, answers, lost, simulation: Arc::clone(self) }
    }
}

/// A transport of which each attempt ends as the test says.
#[derive(Debug)]
struct Scripted(Arc<Simulation>);

impl fmt::Display for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("scripted")
    }
}

impl Connect for Scripted {
    type Volume = Link;
    type Change = Write;
    type Error = Broken;

    async fn connect(&self, _: Arc<Link>, _: Arc<Link>, _: bool) -> Result<Link, Refused> {
        match self.0.attempts.lock().unwrap().pop_front().flatten() {
            Some(effect) => Err(Refused { why: Arc::new(Broken), effect }),
            None => Ok(self.0.link(!self.0.is_mute.load(Ordering::Relaxed))),
        }
    }

    async fn ended(&self, on: &Link) -> Loss {
        // The sender lives as long as the link.
        let _ = on.lost.subscribe().wait_for(|lost| *lost).await;
        Loss::new(Broken)
    }

    fn judge(&self, _: &Link, failure: Option<&Broken>) -> Verdict {
        match failure {
            None => Verdict::Done,
            Some(broken) => Verdict::Lost(Loss::new(broken.clone())),
        }
    }

    async fn change(on: &Link, change: &Write) -> Result<(), Broken> {
        on.simulation.begun.send_modify(|begun| *begun += 1);
        if !on.answers {
            let _ = on.lost.subscribe().wait_for(|lost| *lost).await;
            return Err(Broken);
        }
        on.simulation.written.lock().unwrap().push((on.number, change.clone()));
        Ok(())
    }

    async fn flush(on: &Link) -> Result<(), Broken> {
        if !on.answers {
            let _ = on.lost.subscribe().wait_for(|lost| *lost).await;
            return Err(Broken);
        }
        Ok(())
    }

    fn abandon(&self, on: &Link) {
        on.lost.send_replace(true);
    }

    fn hurry(&self, on: &Link) {
        self.0.hurried.lock().unwrap().push(on.number);
    }

    fn save(&self, change: Write) {
        self.0.saved.lock().unwrap().push(change);
    }

    fn describe(&self, why: &(dyn StdError + 'static)) -> String {
        why.to_string()
    }
}

fn start(
    answers: bool,
    attempts: &[Option<Effect>],
) -> (Arc<Simulation>, Arc<Supervisor<Scripted>>) {
    start_with(SETTINGS, answers, attempts)
}

fn start_with(
    settings: Settings,
    answers: bool,
    attempts: &[Option<Effect>],
) -> (Arc<Simulation>, Arc<Supervisor<Scripted>>) {
    let simulation = Arc::<Simulation>::default();
    simulation.attempts.lock().unwrap().extend(attempts);
    let first = simulation.link(answers);
    let transport = Scripted(Arc::clone(&simulation));
    let runtime = Arc::<Virtual>::default();
    (simulation, Supervisor::start(transport, settings, first, runtime))
}

#[tokio::test]
async fn change_under_way_when_the_link_is_lost_runs_again_on_the_next() {
    let refused = Some(Effect::Failed(Failure::NoSession));
    let (simulation, supervisor) = start(false, &[refused, refused, None]);
    let (change, lost) = tokio::join!(supervisor.change(Write(0..8), 0..8, 8), async {
        simulation.begun.subscribe().wait_for(|begun| *begun == 1).await.unwrap();
        supervisor.link().lost.send_replace(true)
    });
    assert!(change.is_ok() && !lost);
    assert_eq!(*simulation.written.lock().unwrap(), [(1, Write(0..8))]);
    assert!(simulation.attempts.lock().unwrap().is_empty());
    assert_eq!(supervisor.status().0, Status::Connected);
    assert_eq!(supervisor.unflushed(), (1, 8));
    supervisor.close();
}

#[tokio::test]
async fn change_that_nobody_waits_for_any_more_goes_on() {
    let (simulation, supervisor) = start(false, &[]);
    let change = supervisor.change(Write(0..8), 0..8, 8).now_or_never();
    assert!(change.is_none(), "it is under way, and dropped");
    supervisor.link().lost.send_replace(true);
    supervisor.quiet().await;
    assert_eq!(*simulation.written.lock().unwrap(), [(1, Write(0..8))]);
    supervisor.close();
}

#[tokio::test]
async fn fenced_volume_ends_and_saves_what_was_answered() {
    let (simulation, supervisor) = start(true, &[Some(Effect::Fenced)]);
    supervisor.change(Write(0..8), 0..8, 8).await.unwrap();
    supervisor.link().lost.send_replace(true);
    let number = supervisor.current().unwrap().0;
    supervisor.lose(number, Loss::new(Broken));
    let read = supervisor.read(0..8, |_| std::future::ready(Ok(()))).await;
    let Err(RequestError::Over(ended)) = read else { panic!("{read:?}") };
    assert_eq!(ended.over, Over::Fenced);
    assert_eq!(supervisor.over(), Some(Over::Fenced));
    assert_eq!(*simulation.saved.lock().unwrap(), [Write(0..8)]);
    assert_eq!(*simulation.written.lock().unwrap(), [(0, Write(0..8))], "nothing more is written");
}

/// What comes of `work` while everything that can go on does; `None` if it waits for what never happens.
async fn settled<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = Box::pin(work);
    for _ in 0..10_000 {
        if let Some(done) = (&mut work).now_or_never() {
            return Some(done);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// Requests had no answer on one link, and have none on the next, which stands.
#[tokio::test]
async fn volume_that_is_given_up_abandons_a_link_that_stands() {
    let settings = Settings { salvage: Salvage::Submitted, ..SETTINGS };
    let (simulation, supervisor) = start_with(settings, false, &[]);
    simulation.is_mute.store(true, Ordering::Relaxed);
    let mut begun = simulation.begun.subscribe();
    let (change, flush) = (supervisor.change(Write(0..8), 0..8, 8), supervisor.flush());
    let ended = async { tokio::join!(change, flush) };
    let given_up = async {
        begun.wait_for(|begun| *begun == 1).await.unwrap();
        let stalled = Loss { is_unanswered: true, ..Loss::new(Broken) };
        let first = supervisor.link();
        supervisor.lose(0, stalled);
        first.lost.send_replace(true);
        begun.wait_for(|begun| *begun == 2).await.unwrap();
        assert_eq!(supervisor.current().unwrap().0, 1, "it runs on the next link");
        let status = supervisor.status().0;
        assert!(matches!(status, Status::Unanswered { requests: 2, .. }), "{status:?}");
        supervisor.leave(Duration::from_secs(10));
    };
    let ended = settled(async { tokio::join!(ended, given_up).0 }).await;
    assert!(matches!(supervisor.over(), Some(Over::NotCarriedOut(_))), "{:?}", supervisor.over());
    let (change, flush) = ended.expect("who asked for them is told");
    assert!(matches!(change, Err(RequestError::Over(_))), "{change:?}");
    assert!(matches!(flush, Err(RequestError::Over(_))), "{flush:?}");
    assert!(settled(supervisor.quiet()).await.is_some(), "no change is under way");
    assert_eq!(*simulation.saved.lock().unwrap(), [Write(0..8)], "it was acknowledged, perhaps");
    let late = settled(supervisor.change(Write(8..16), 8..16, 8)).await;
    assert!(matches!(late, Some(Err(RequestError::Over(_)))), "{late:?}");
    assert_eq!(*simulation.saved.lock().unwrap(), [Write(0..8), Write(8..16)]);
}

/// Of a unit that was slow before, requests may have long to be answered.
#[tokio::test]
async fn volume_whose_end_is_waited_for_hurries_the_link_that_stands() {
    let (simulation, supervisor) = start(true, &[]);
    supervisor.change(Write(0..8), 0..8, 8).await.unwrap();
    supervisor.leave(Duration::from_secs(10));
    assert_eq!(*simulation.hurried.lock().unwrap(), [0]);
    supervisor.close();
}

/// The end that its owner asks for waits for what is under way.
#[tokio::test]
async fn volume_that_is_closed_lets_what_is_under_way_end() {
    let (simulation, supervisor) = start(false, &[]);
    let mut change = Box::pin(supervisor.change(Write(0..8), 0..8, 8));
    assert!((&mut change).now_or_never().is_none());
    supervisor.close();
    assert!(settled(&mut change).await.is_none(), "it is under way");
    assert!(!*supervisor.link().lost.borrow());
    supervisor.link().lost.send_replace(true);
    assert!(matches!(change.await, Err(RequestError::Over(_))));
    assert!(simulation.written.lock().unwrap().is_empty());
}
