//! What a process says to its keeper, and how far it is by that.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;

use super::super::super::attach::kept::{ProcessMessage, acknowledge, greet, hear};
use crate::front::fuse::Device;
use crate::net::peer_process::peer_process;
use crate::secret::Secret;

/// How long one that takes a mount over may take to ask for it: that needs no server.
const ASKS_WITHIN: Duration = Duration::from_secs(30);

/// How long it may take to open the volume. An outage meanwhile it ends by itself, after a minute.
const OPENS_WITHIN: Duration = Duration::from_secs(90);

/// How often that is doubled at most, where it was not enough: a journal may be long, and its disk slow.
const DOUBLED_MAX: u32 = 5;

/// How long it may take from there until it serves: that needs no server either.
const SERVES_WITHIN: Duration = Duration::from_secs(30);

/// How far a process is that takes a mount over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It runs.
    Started,
    /// It was given what it takes to hear the kernel, and may do so without saying it, as those of other versions do.
    Asked,
    /// The same, and it says when it is about to.
    Opening,
    /// It may have heard the kernel.
    Taking,
    /// The mount is its own.
    Serving,
}

impl Phase {
    /// Whether it may have heard what it has not answered.
    pub(super) const fn may_have_heard(self) -> bool {
        matches!(self, Self::Asked | Self::Taking | Self::Serving)
    }

    /// How long it may last, where `late` processes before have taken too long for it; for ever, if `None`.
    pub(super) fn limit(self, late: u32) -> Option<Duration> {
        match self {
            Self::Started => Some(ASKS_WITHIN),
            Self::Asked | Self::Opening => Some(OPENS_WITHIN * 2_u32.pow(late.min(DOUBLED_MAX))),
            Self::Taking => Some(SERVES_WITHIN),
            Self::Serving => None,
        }
    }

    /// Whether it needs the server and the disk for it: the next one may need longer.
    pub(super) const fn is_opening(self) -> bool {
        matches!(self, Self::Asked | Self::Opening)
    }

    /// What one that was too late for the next phase has not done.
    pub(super) const fn lacks(self) -> &'static str {
        match self {
            Self::Started => "did not ask for it",
            Self::Asked | Self::Opening => "had not opened the volume",
            Self::Taking | Self::Serving => "had not begun to serve",
        }
    }
}

/// What is handed to each process.
pub(super) struct KernelFiles {
    pub(super) device: Option<Device>,
    pub(super) record: File,
}

/// What a process has said that serves, and where it waits for the answer.
pub(super) type StateReport = (Secret, UnixStream);

/// Waits for a process at the keeper's socket, until it is aborted.
pub(super) struct Listening {
    pub(super) listener: Arc<UnixListener>,
    pub(super) pid: Option<u32>,
    pub(super) greeting: Arc<Secret>,
    pub(super) kernel: Arc<KernelFiles>,
    /// How far it is.
    pub(super) phase: Arc<watch::Sender<Phase>>,
    pub(super) says: mpsc::Sender<StateReport>,
}

impl Listening {
    /// Hears the process; others are turned away.
    pub(super) async fn hear_all(self) {
        loop {
            let heard = match self.listener.accept().await {
                Ok((stream, _)) => self.hear(stream).await,
                Err(why) => Err(why),
            };
            match heard {
                Ok(None) => {}
                Ok(Some(report)) => drop(self.says.send(report).await),
                // It was killed meanwhile. That must not end this: the successor asks here too.
                Err(why) => {
                    tracing::warn!(%why, "the process that serves the mount was not heard");
                }
            }
        }
    }

    async fn hear(&self, stream: tokio::net::UnixStream) -> io::Result<Option<StateReport>> {
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        let asks = peer_process(&stream)?.as_raw_nonzero().get().cast_unsigned();
        if Some(asks) != self.pid {
            return Ok(None);
        }
        let (greeting, kernel) = (Arc::clone(&self.greeting), Arc::clone(&self.kernel));
        let phase = Arc::clone(&self.phase);
        // Before it has them: the keeper may find that it has ended before this is run again.
        phase.send_replace(Phase::Asked);
        // It says the last once it serves; if it ends before, so does the stream.
        let heard = spawn_blocking(move || {
            greet(&stream, &greeting, kernel.device.as_ref(), &kernel.record)?;
            Ok(until_it_serves(&stream, &phase)?.map(|state| (state, stream)))
        });
        heard.await.map_err(io::Error::other)?
    }
}

/// Notes how far the process is, before it goes on; what its successor needs, once it serves. `None` if it ends before.
fn until_it_serves(
    stream: &UnixStream,
    phase: &watch::Sender<Phase>,
) -> io::Result<Option<Secret>> {
    loop {
        match hear(stream)? {
            Some(ProcessMessage::Opening) => phase.send_replace(Phase::Opening),
            Some(ProcessMessage::Taking) => phase.send_replace(Phase::Taking),
            Some(ProcessMessage::Serves(state)) => return Ok(Some(state)),
            None => return Ok(None),
        };
        acknowledge(stream)?;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::thread;

    use super::*;

    #[test]
    fn phase_is_noted_before_the_process_goes_on() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (phase, seen) = watch::channel(Phase::Asked);
        let process = thread::spawn(move || {
            let mut answers = BufReader::new(theirs.try_clone().unwrap());
            for (word, noted) in [("opening\n", Phase::Opening), ("taking\n", Phase::Taking)] {
                (&theirs).write_all(word.as_bytes()).unwrap();
                answers.read_line(&mut String::new()).unwrap();
                assert_eq!(*seen.borrow(), noted);
            }
            (&theirs).write_all(b"{}\n").unwrap();
        });
        let state = until_it_serves(&ours, &phase).unwrap().unwrap();
        process.join().unwrap();
        assert_eq!(state.expose(), b"{}");
        assert!(until_it_serves(&ours, &phase).unwrap().is_none());
    }

    #[test]
    fn process_that_says_nothing_of_its_phase_may_have_heard_the_kernel() {
        for phase in [Phase::Asked, Phase::Taking, Phase::Serving] {
            assert!(phase.may_have_heard(), "{phase:?}");
        }
        for phase in [Phase::Started, Phase::Opening] {
            assert!(!phase.may_have_heard(), "{phase:?}");
        }
    }

    #[test]
    fn opening_is_given_more_time_after_it_was_too_late_and_never_without_end() {
        for phase in [Phase::Asked, Phase::Opening] {
            assert_eq!(phase.limit(0), Some(OPENS_WITHIN));
            assert_eq!(phase.limit(1), Some(OPENS_WITHIN * 2));
            assert_eq!(phase.limit(u32::MAX), phase.limit(DOUBLED_MAX));
        }
        assert_eq!(Phase::Taking.limit(9), Some(SERVES_WITHIN));
        assert_eq!(Phase::Serving.limit(0), None);
    }
}
