//! What a running server is told: to end, to say how it is, to read its file again.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::select_all;
use proto::cluster::{GroupName, Role};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::administration::Administered;
use super::config_edit::Edited;
use super::gateway::{Done, Work};
use super::invitations::{Asked, Waiting};
use super::live::{Applied, Live, Prepared};
use super::movements::{Moved, MovementAsked};
use crate::cluster::RoleChanges;
use crate::config::edit::Change;
use crate::control::{Control, Request};
use crate::failure::{Failure, OrFail, Outcome};
use crate::stop::{Stop, Stopper};
use crate::systemd;

/// When who asks for a reload is answered at the latest: volumes far away that have to be opened, or flushed and closed,
/// may take longer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

/// What it is told if the volumes are not open by then.
const NOT_YET: &str = "not applied yet: the volumes that are new are still being opened, or those that are not wanted any \
    more let go\n  the log tells when it is applied; another reload takes its place";

/// What those are told who ask for something that a reload may change.
const RELOADING: &str = "the server is reading its file again: try it in a moment";

/// What begins a request about the configuration file.
const CONFIG: &str = "config ";

/// What begins a request to move a group of volumes of a cluster.
const MOVE: &str = "cluster move";

/// What those are told whose reload was given up.
const REPLACED: &str = "not applied: another reload has taken its place";
const ENDING: &str = "not applied: the server ends";

/// The sources of events of a server.
pub(super) struct Events {
    server: JoinHandle<bool>,
    control: Option<Control>,
    newcomers: Waiting,
    role_changes: Option<RoleChanges>,
    moved: Moved,
    administered: Administered,
    /// The groups of volumes of a cluster that are being opened or closed.
    work: Work,
    /// What means a reload, if anything does.
    hangup: Option<Signal>,
    stop: Stop,
    is_stopping: bool,
    /// The volumes are not opened or closed meanwhile.
    is_reloading: bool,
}

/// The end of the terminal, or what is called so.
pub(super) fn hangup() -> Outcome<Signal> {
    signal(SignalKind::hangup()).or_fail(|| "cannot listen for signals".to_owned())
}

enum Event {
    /// It is to end.
    Stop,
    /// It has ended, and so have all sessions, or not.
    Ended(Outcome<bool>),
    /// It is to read its file again.
    Hangup,
    Asked(Request),
    /// A client that was invited is to be listed.
    Enrol(Asked),
    /// An initiator has cartridges moved.
    Move(MovementAsked),
    /// A group of volumes of a cluster is to be opened or closed.
    Role(GroupName, Role),
    /// It is.
    Worked(GroupName, Done),
}

/// What tells of events besides signals.
type Sources = (Option<Control>, Waiting, Option<RoleChanges>, Moved, Administered);

impl Events {
    /// Runs `serving`. What `hangup` tells of means a reload.
    pub(super) fn new(
        serving: impl Future<Output = bool> + Send + 'static,
        (control, newcomers, role_changes, moved, administered): Sources,
        stop: Stop,
        hangup: Option<Signal>,
    ) -> Self {
        let server = tokio::spawn(serving);
        let (work, is_stopping, is_reloading) = (Work::new(), false, false);
        Self {
            server,
            control,
            newcomers,
            role_changes,
            moved,
            administered,
            work,
            hangup,
            stop,
            is_stopping,
            is_reloading,
        }
    }

    /// The next event. Dropping this future loses none.
    async fn next(&mut self) -> Event {
        let takes_roles = !self.is_stopping;
        tokio::select! {
            // In this order, or a server that ends at once would not have been said to be stopping.
            biased;
            () = self.stop.called(), if !self.is_stopping => {
                self.is_stopping = true;
                Event::Stop
            }
            ended = &mut self.server => {
                Event::Ended(ended.or_fail(|| "the server broke down".to_owned()))
            }
            () = hung_up(self.hangup.as_mut()) => Event::Hangup,
            request = request(self.control.as_mut()) => Event::Asked(request),
            Some(request) = self.administered.next() => Event::Asked(request),
            Some(client) = self.newcomers.recv() => Event::Enrol(client),
            Some(asked) = self.moved.recv() => Event::Move(asked),
            event = cluster_event(self.role_changes.as_mut(), &mut self.work, takes_roles),
                if !self.is_reloading => event,
        }
    }
}

/// A group of volumes is to be opened or closed, which is not told of one with which something is being done; or that is done.
/// Dropping this future loses nothing.
async fn cluster_event(
    role_changes: Option<&mut RoleChanges>,
    work: &mut Work,
    takes_roles: bool,
) -> Event {
    let Some(role_changes) = role_changes else { return std::future::pending().await };
    let busy: BTreeSet<_> = work.keys().cloned().collect();
    let (group, done) = tokio::select! {
        (group, role) = role_changes.next(|group| busy.contains(group)), if takes_roles => {
            return Event::Role(group, role);
        }
        worked = worked(work) => worked,
    };
    work.remove(&group);
    Event::Worked(group, done)
}

/// What comes of the work that is done first.
async fn worked(work: &mut Work) -> (GroupName, Done) {
    if work.is_empty() {
        return std::future::pending().await;
    }
    let groups: Vec<_> = work.keys().cloned().collect();
    let (done, at, _) = select_all(work.values_mut()).await;
    (groups[at].clone(), done.unwrap_or(Done::Nothing))
}

async fn hung_up(hangup: Option<&mut Signal>) {
    let received = match hangup {
        Some(hangup) => hangup.recv().await,
        None => None,
    };
    if received.is_none() {
        std::future::pending::<()>().await;
    }
}

async fn request(control: Option<&mut Control>) -> Request {
    match control {
        Some(control) => control.request().await,
        None => std::future::pending().await,
    }
}

/// Serves, and does what is asked of the server, until it has stopped. Says whether all sessions have ended.
pub(super) async fn attend(live: &mut Live, mut events: Events) -> Outcome<bool> {
    systemd::ready(&live.summary());
    loop {
        let ended = match events.next().await {
            Event::Stop => {
                systemd::stopping();
                None
            }
            Event::Ended(outcome) => Some(outcome),
            Event::Hangup => reload(live, &mut events, Vec::new(), Vec::new()).await,
            Event::Asked(request) => carry_out(live, &mut events, request).await,
            Event::Enrol(client) => {
                live.enrol(client).await;
                None
            }
            Event::Move(asked) => {
                live.carry_out(asked).await;
                None
            }
            Event::Role(group, role) => {
                let work = live.change_role(&group, role).await;
                events.work.insert(group, work);
                None
            }
            Event::Worked(group, done) => {
                live.worked(&group, done).await;
                None
            }
        };
        if let Some(outcome) = ended {
            live.end_work(std::mem::take(&mut events.work)).await;
            return outcome;
        }
    }
}

/// Does what is asked. How the server has ended meanwhile, if it has.
async fn carry_out(
    live: &mut Live,
    events: &mut Events,
    request: Request,
) -> Option<Outcome<bool>> {
    let request = permitted(live, request)?;
    if request.verb.starts_with(CONFIG) {
        return edit(live, events, request).await;
    }
    if let Some(meant) = request.verb.strip_prefix(MOVE) {
        let meant = meant.trim().to_owned();
        live.begin_move(&meant, request);
        return None;
    }
    match live.administer(&request.verb).await {
        Some(answer) => request.answer(answer),
        None => {
            let asked = answer(live, request)?;
            return reload(live, events, vec![asked], Vec::new()).await;
        }
    }
    None
}

/// A request that came before its administrator lost that right is refused.
fn permitted(live: &Live, request: Request) -> Option<Request> {
    if request.client().is_none_or(|client| live.is_administrator(client)) {
        return Some(request);
    }
    request.answer(Err(Failure::new("this client is no administrator any more")));
    None
}

/// Answers what can be answered at once. A reload is given back.
fn answer(live: &Live, request: Request) -> Option<Request> {
    let answer = match request.verb.as_str() {
        "status" => live.status(),
        "reload" => return Some(request),
        "cluster show" => live.cluster_status(),
        "clients" => Err(Failure::new(RELOADING)),
        other if ["invite ", "media ", MOVE, CONFIG].iter().any(|verb| other.starts_with(verb)) => {
            Err(Failure::new(RELOADING))
        }
        other => Err(Failure::new(format!("there is no request `{other}`"))),
    };
    request.answer(answer);
    None
}

/// Shows the file, or changes it and reads it again. How the server has ended, if it has.
async fn edit(live: &mut Live, events: &mut Events, request: Request) -> Option<Outcome<bool>> {
    let asked = request.verb.strip_prefix(CONFIG).unwrap_or_default().to_owned();
    match live.edit(&asked).await {
        Ok(Edited::Changes(changes)) => return reload(live, events, vec![request], changes).await,
        Ok(Edited::Answered(answer)) => request.answer(Ok(answer)),
        Err(why) => request.answer(Err(why)),
    }
    None
}

/// Reads the file again, with these changes, for those who have `asked`, and once more for who asks meanwhile. How the server
/// has ended, if it has.
async fn reload(
    live: &mut Live,
    events: &mut Events,
    mut asked: Vec<Request>,
    mut changes: Vec<Change>,
) -> Option<Outcome<bool>> {
    loop {
        if events.is_stopping {
            tell(asked, &Err(ENDING.to_owned()));
            return None;
        }
        systemd::reloading();
        let mut reload = Reload { asked, ..Reload::default() };
        events.is_reloading = true;
        let prepared = reload.prepare((live, &changes), events).await;
        events.is_reloading = false;
        let Reload { asked: waiting, given_up, again, ended, revocations, newcomers, .. } = reload;
        match (prepared, given_up) {
            (Err(_), Some(why)) => tell(waiting, &Err(why.to_owned())),
            // All of it may have been done before that was heard.
            (prepared, _) => {
                changes.clear();
                apply(live, prepared, waiting);
            }
        }
        for request in revocations {
            let Some(request) = permitted(live, request) else { continue };
            match live.administer(&request.verb).await {
                Some(answer) => request.answer(answer),
                None => drop(answer(live, request)),
            }
        }
        for client in newcomers {
            live.enrol(client).await;
        }
        match (ended, again) {
            (None, Some(again)) => asked = again,
            (ended, again) => {
                tell(again.unwrap_or_default(), &Err(ENDING.to_owned()));
                return ended;
            }
        }
    }
}

/// A reload that is under way.
#[derive(Default)]
struct Reload {
    /// Who has asked for it and was not answered yet.
    asked: Vec<Request>,
    /// Ends it before it is done.
    stopper: Option<Stopper>,
    /// Why it was ended.
    given_up: Option<&'static str>,
    /// Another was asked for meanwhile, and by whom.
    again: Option<Vec<Request>>,
    /// Who wants an end of a client's access, which does not wait for volumes that are being opened.
    revocations: Vec<Request>,
    /// Clients that are to be listed then.
    newcomers: Vec<Asked>,
    /// How the server has ended meanwhile.
    ended: Option<Outcome<bool>>,
}

impl Reload {
    /// Opens what is new. To open a volume can take long, and the next file may be without it.
    async fn prepare(
        &mut self,
        (live, changes): (&Live, &[Change]),
        events: &mut Events,
    ) -> Outcome<Prepared> {
        let (stopper, stop) = Stopper::new();
        self.stopper = Some(stopper);
        let mut preparing = pin!(live.prepare(changes, stop));
        loop {
            let due = due(self.asked.iter().chain(self.again.iter().flatten()));
            tokio::select! {
                biased;
                prepared = &mut preparing => return prepared,
                event = events.next(), if self.ended.is_none() => self.handle(live, event),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.answer_late(),
            }
        }
    }

    fn handle(&mut self, live: &Live, event: Event) {
        match event {
            Event::Stop => {
                systemd::stopping();
                self.give_up(ENDING);
            }
            Event::Ended(outcome) => {
                self.ended = Some(outcome);
                self.give_up(ENDING);
            }
            Event::Hangup => {
                self.again.get_or_insert_default();
                self.give_up(REPLACED);
            }
            Event::Asked(request) if request.verb.starts_with("revoke ") => {
                // The reload is begun once more afterwards, for the same who have asked for it.
                let asked = std::mem::take(&mut self.asked);
                self.again.get_or_insert_default().extend(asked);
                self.revocations.push(request);
                self.give_up(REPLACED);
            }
            Event::Asked(request) => {
                if let Some(asked) = answer(live, request) {
                    self.again.get_or_insert_default().push(asked);
                    self.give_up(REPLACED);
                }
            }
            // Answered by whoever reloads; a login does not wait longer than it may take.
            Event::Enrol(client) => self.newcomers.push(client),
            // The initiator tries it again: what it names may be about to go.
            Event::Move(asked) => asked.refuse_busy(),
            // It comes again when the reload is done, which opens no volume of a cluster.
            Event::Role(..) | Event::Worked(..) => {}
        }
    }

    fn give_up(&mut self, why: &'static str) {
        if why == REPLACED {
            // A change that was asked for is in what is prepared next.
            let asked = std::mem::take(&mut self.asked).into_iter();
            let (edits, others) = asked.partition(|request| request.verb.starts_with(CONFIG));
            let edits: Vec<_> = edits;
            self.again.get_or_insert_default().extend(edits);
            self.asked = others;
        }
        self.given_up = Some(why);
        if let Some(stopper) = self.stopper.take() {
            stopper.call();
        }
    }

    /// Answers those who have waited long enough.
    fn answer_late(&mut self) {
        let now = Instant::now();
        for waiting in [Some(&mut self.asked), self.again.as_mut()].into_iter().flatten() {
            let (late, others) = std::mem::take(waiting)
                .into_iter()
                .partition(|request| request.since + ANSWERED_WITHIN <= now);
            *waiting = others;
            tell(late, &Err(NOT_YET.to_owned()));
        }
    }
}

/// When the first of them is to be answered.
fn due<'a>(asked: impl Iterator<Item = &'a Request>) -> Option<Instant> {
    asked.map(|request| request.since + ANSWERED_WITHIN).min()
}

fn apply(live: &mut Live, prepared: Outcome<Prepared>, asked: Vec<Request>) {
    match prepared.map(|prepared| live.apply(prepared)) {
        Ok(applied) => {
            systemd::ready(&live.summary());
            tokio::spawn(report(applied, asked));
        }
        Err(why) => {
            tracing::error!(
                "configuration not applied, nothing has changed: {}",
                why.on_one_line()
            );
            systemd::ready(&format!("{}; the last reload failed, see the log", live.summary()));
            tell(asked, &Err(why.to_string()));
        }
    }
}

/// Tells of a reload that is in force, when what it removed is closed; where that takes long, before.
async fn report(Applied { said, closed }: Applied, asked: Vec<Request>) {
    let due = due(asked.iter()).unwrap_or_else(|| Instant::now() + ANSWERED_WITHIN);
    let closed = timeout_at(due, closed).await;
    tracing::info!("configuration applied: {said}");
    let answer = match closed {
        Ok(Ok(Err(why))) => {
            Err(why.within(&format!("configuration applied ({said}), but")).to_string())
        }
        Ok(_) => Ok(said),
        Err(_) => Ok(format!(
            "{said}; what was removed is still in use: the log tells if it cannot be closed"
        )),
    };
    tell(asked, &answer);
}

fn tell(asked: Vec<Request>, answer: &Result<String, String>) {
    for request in asked {
        request.answer(answer.clone().map_err(Failure::new));
    }
}
