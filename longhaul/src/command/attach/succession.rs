//! Those who have asked that another process takes an attachment over.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{sleep, timeout};

use super::detach::Detach;
use super::front::Front;
use super::kept::HANDED_OVER;
use crate::chain::Observer;
use crate::control::Request;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;

/// How long programs may wait for what the journal holds to be sent.
const SENT_WITHIN: Duration = Duration::from_secs(20);

/// How long a program may take to tell its version.
const STARTED_WITHIN: Duration = Duration::from_secs(10);

/// How often it is looked whether it is.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How many may wait.
const WAITING_MAX: usize = 16;

/// The answer to all who have asked before.
const DONE: &str = "handed over";

/// Both ends of what they ask.
#[derive(Clone)]
pub(super) struct Succession {
    asked: mpsc::Sender<Request>,
    requests: Arc<Mutex<mpsc::Receiver<Request>>>,
}

impl Default for Succession {
    fn default() -> Self {
        let (asked, requests) = mpsc::channel(WAITING_MAX);
        Self { asked, requests: Arc::new(Mutex::new(requests)) }
    }
}

impl Succession {
    /// Somebody asks. One that comes after the mount was handed over gets no answer, and asks the next process.
    pub(super) fn ask(&self, request: Request) {
        if let Err(mpsc::error::TrySendError::Full(request)) = self.asked.try_send(request) {
            request.answer(Err(Failure::new("too many ask for the same")));
        }
    }

    /// Hands the mount over to whoever asks, by ending the process as if it were killed: nothing is closed, so that the
    /// reservation stands until the next process has it. `before_end` runs at the last moment. A mount that cannot be handed
    /// over is served as before: for one of the reasons that `refusal` gives, or as `successor` finds out that the next process
    /// could not begin.
    pub(super) async fn serve(
        &self,
        front: &Front,
        volume: &Observer,
        detach: &Detach,
        (refusal, successor): (impl Fn() -> Option<&'static str>, impl AsyncFn() -> Outcome),
        before_end: impl Fn(),
    ) {
        let mut requests = self.requests.lock().await;
        while let Some(request) = requests.recv().await {
            if let Some(why) = refusal() {
                request.answer(Err(
                    Failure::new("no other process can take this attachment over").because(why)
                ));
                continue;
            }
            if let Err(why) = successor().await {
                request.answer(Err(why.within(
                    "the process goes on as it is: the next one could not take the mount over",
                )));
                continue;
            }
            match hand_over(front, volume, detach).await {
                Err(why) => request.answer(Err(why)),
                Ok(()) => {
                    before_end();
                    requests.close();
                    request.answer(Ok(DONE.to_owned()));
                    while let Ok(request) = requests.try_recv() {
                        request.answer(Ok(DONE.to_owned()));
                    }
                    std::process::exit(HANDED_OVER.into());
                }
            }
        }
    }
}

/// Only what a successor can open is handed over: a volume that is connected, and a journal that holds nothing. For one that
/// holds something the reservation has to stand, which a server that was restarted may not have yet.
async fn hand_over(front: &Front, volume: &Observer, detach: &Detach) -> Outcome {
    let refuse = |what: &str| Failure::new(format!("{what}: the process goes on as it is"));
    if let Some(why) = volume.outage() {
        return Err(refuse("there is no connection to the server").because(why));
    }
    // A request may wait for a server that is silent, for as long as that is.
    let Ok(handed_over) = timeout(SENT_WITHIN, front.hand_over()).await else {
        serve_on(front).await?;
        return Err(refuse("what was asked for before is not answered by the server")
            .hint("try again when it answers"));
    };
    handed_over.map_err(|why| refuse("what was acknowledged could not be flushed").because(why))?;
    if timeout(SENT_WITHIN, sent(volume)).await.is_err() {
        serve_on(front).await?;
        return Err(refuse("what its journal holds is not sent yet")
            .hint("`longhaul status` shows how much that is; try again when it is less"));
    }
    if !detach.hand_over() {
        serve_on(front).await?;
        return Err(refuse("somebody unmounts it"));
    }
    Ok(())
}

async fn serve_on(front: &Front) -> Outcome {
    front.serve_on().await.or_fail(|| "the mount cannot be served any more".to_owned())
}

/// Starts the program that is installed now, for its version only.
pub(super) async fn try_program() -> Outcome {
    let own = std::env::current_exe().or_fail(|| "cannot tell which program this is".to_owned())?;
    // So the kernel calls the path of one that was replaced (proc(5)).
    let path = own.as_os_str().as_bytes();
    let own = Path::new(OsStr::from_bytes(path.strip_suffix(b" (deleted)").unwrap_or(path)));
    let what = || format!("cannot start {}", own.shown());
    let mut program = Command::new(own);
    program.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    let ended = timeout(STARTED_WITHIN, program.status()).await.or_fail(what)?.or_fail(what)?;
    match ended.success() {
        true => Ok(()),
        false => Err(Failure::new(what()).because(ended.to_string())),
    }
}

/// Waits until the volume has what the journal holds, and the journal says so: its reader finds nothing.
async fn sent(volume: &Observer) {
    while !volume.settle() {
        sleep(LOOK_EVERY).await;
    }
}
