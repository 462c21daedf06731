//! The order of connections. A client whose connection broke connects again and repeats what was not answered; what
//! the broken connection had begun must not land on top of that. So whoever connects waits for those who hung up before.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::timeout;

/// A client that waits as long as this is worth a line in the log.
const LONG: Duration = Duration::from_secs(5);

/// The connections there are, in the order in which they came.
#[derive(Default)]
pub(super) struct ConnectionOrder(Vec<ConnectionEntry>);

/// A connection as the others see it.
struct ConnectionEntry {
    stream: Weak<UnixStream>,
    /// Closed when it has ended, and with it all that it began.
    ended: watch::Receiver<()>,
}

/// A connection that is served. It has ended when this is dropped.
pub(super) struct ConnectionGuard {
    /// Those to wait for.
    predecessors: Vec<watch::Receiver<()>>,
    _ends: watch::Sender<()>,
}

impl ConnectionOrder {
    /// Takes in a connection that was just accepted.
    pub(super) fn register(&mut self, stream: &Arc<UnixStream>) -> ConnectionGuard {
        self.0.retain(|entry| entry.ended.has_changed().is_ok());
        let predecessors = self.0.iter().filter(|entry| entry.is_hung_up());
        let predecessors = predecessors.map(|entry| entry.ended.clone()).collect();
        let (ends, ended) = watch::channel(());
        self.0.push(ConnectionEntry { stream: Arc::downgrade(stream), ended });
        ConnectionGuard { predecessors, _ends: ends }
    }
}

impl ConnectionEntry {
    /// Asked of the system: its task may not have read as far as the end. A client that closed its socket before it
    /// connected again is seen here (unix(7): a peer learns of a close at once).
    fn is_hung_up(&self) -> bool {
        let Some(stream) = self.stream.upgrade() else { return true };
        let mut fds = [PollFd::new(&*stream, PollFlags::RDHUP)];
        // What cannot be asked is waited for.
        poll(&mut fds, Some(&Timespec::default())).map_or(true, |ready| ready > 0)
    }
}

impl ConnectionGuard {
    /// Waits until nothing runs any more of those who hung up before, however long the volume takes.
    pub(super) async fn wait_for_predecessors(&mut self, number: u64) {
        let connections = self.predecessors.len();
        let wait = async {
            for ended in &mut self.predecessors {
                // Nothing is ever sent: it ends with its sender.
                let _ = ended.changed().await;
            }
        };
        tokio::pin!(wait);
        if timeout(LONG, &mut wait).await.is_err() {
            tracing::warn!(
                number,
                connections,
                "an NBD client has to wait: the volume has not finished what connections had begun that are gone"
            );
            wait.await;
            tracing::info!(number, "the NBD client need not wait any longer");
        }
    }
}
