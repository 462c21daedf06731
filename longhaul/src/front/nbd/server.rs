//! The listener: a Unix socket that only its owner may open.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proto::nbd::{Export, Machine};
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use volume::Volume;

use super::connection::{self, Broken, Shutdown};
use super::connection_order::{ConnectionGuard, ConnectionOrder};
use super::connection_pause::Pause;
use super::mapping;
use crate::front::Clients;
use crate::log_limiter::{LineLimiter, Permit};
use crate::socket_file::SocketFile;
use crate::stop::{Stop, Stopper};

/// Clients at a time. `nbdcopy` opens 4 connections, qemu at most 16.
const CONNECTIONS_MAX: usize = 64;

/// The longest path of a socket: a field of 108 bytes that ends with a zero (unix(7)).
const PATH_MAX: usize = 107;

/// Why the socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody listens there.
    #[error("another server is listening on it")]
    InUse,
    /// It is a file, or a directory, or something else one would miss.
    #[error("it exists and is not a socket")]
    NotASocket,
    /// A server that was killed has left it.
    #[error(
        "a process that was killed, or could not write all it had acknowledged, has left it there"
    )]
    Left,
    /// The system keeps the path in a field of fixed size (unix(7)).
    #[error("the path has {0} bytes, and that of a socket may have {PATH_MAX}")]
    TooLong(usize),
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// An NBD server for one volume, as the default export.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    file: SocketFile,
    clients: Clients,
    leaves: AtomicBool,
    log_limiter: LineLimiter,
}

impl Server {
    /// Listens on a new socket at `path`, with mode 0600. A socket nobody listens on any more was left by a server
    /// that was killed; it is replaced only if the caller says so, since a client that connects again repeats only
    /// what was not answered.
    pub fn bind(path: &Path, replace: bool) -> Result<Self, BindError> {
        let len = path.as_os_str().len();
        if len > PATH_MAX {
            return Err(BindError::TooLong(len));
        }
        clear(path, replace)?;
        // The mode must be right from the start: a socket can be connected to once it is there.
        let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
        let listener = UnixListener::bind(path);
        umask(before);
        Ok(Self {
            listener: listener?,
            file: SocketFile::of(path)?,
            clients: Clients::default(),
            leaves: AtomicBool::new(false),
            log_limiter: LineLimiter::of_retries(),
        })
    }

    /// How many clients it has.
    #[must_use]
    pub fn clients(&self) -> Clients {
        self.clients.clone()
    }

    /// Does not remove the socket at the end: something was lost, and whoever replaces it has to know.
    pub fn leave(&self) {
        self.leaves.store(true, Ordering::Relaxed);
    }

    /// What a client connects to, from any directory.
    #[must_use]
    pub fn uri(&self) -> String {
        uri(self.file.path())
    }

    /// Serves `volume` until `stop` is called. Then it finishes what its clients asked for, refuses what they ask
    /// from then on, and flushes before it hangs up on them: a client that connects elsewhere then has lost nothing.
    pub async fn run(&self, volume: Arc<dyn Volume>, description: &str, mut stop: Stop) {
        let export = mapping::export(&*volume, description);
        let mut connections = JoinSet::new();
        let mut order = ConnectionOrder::default();
        let mut number: u64 = 0;
        let mut is_full_said = false;
        let (ender, end) = Stopper::new();
        // Each connection holds one until nothing runs on it any more.
        let (busy, mut idle) = mpsc::channel::<()>(1);
        loop {
            tokio::select! {
                stream = self.accept(), if connections.len() < CONNECTIONS_MAX => {
                    number += 1;
                    let volume = Arc::clone(&volume);
                    let shutdown = Shutdown { stop: stop.clone(), busy: Some(busy.clone()), end: end.clone(), pause: Pause::default() };
                    let stream = Arc::new(stream);
                    let guard = order.register(&stream);
                    let conversation = serve(number, guard, stream, volume, export.clone(), shutdown);
                    connections.spawn(conversation);
                }
                Some(_) = connections.join_next() => {}
                () = stop.called() => break,
            }
            self.clients.set(connections.len());
            if connections.len() == CONNECTIONS_MAX && !is_full_said {
                is_full_said = true;
                tracing::warn!(
                    "{CONNECTIONS_MAX} NBD clients are connected, the most there can be: more wait until one leaves"
                );
            }
        }
        drop(busy);
        // Nobody sends anything: it is closed when all are idle.
        let _ = idle.recv().await;
        if let Err(why) = volume.flush().await {
            tracing::error!(%why, "cannot flush before the clients are hung up on");
        }
        ender.call();
        while connections.join_next().await.is_some() {}
    }

    async fn accept(&self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return stream,
                Err(why) => {
                    if let Some((Permit { suppressed }, _)) = self.log_limiter.permit() {
                        tracing::warn!(%why, suppressed, "cannot accept an NBD connection");
                    }
                    // Out of descriptors or memory: those in use have to come back first.
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// The URI of an NBD server that listens on the socket at `path`, from any directory.
#[must_use]
pub fn uri(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut uri = "nbd+unix:///?socket=".to_owned();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(byte.into()),
            byte if byte.is_ascii_alphanumeric() => uri.push(byte.into()),
            // What RFC 3986 gives a meaning of its own, or does not allow.
            byte => uri += &format!("%{byte:02X}"),
        }
    }
    uri
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.leaves.load(Ordering::Relaxed) {
            self.file.remove();
        }
    }
}

/// Serves a client when its turn has come, unless everything is to end before.
async fn serve(
    number: u64,
    mut guard: ConnectionGuard,
    stream: Arc<UnixStream>,
    volume: Arc<dyn Volume>,
    export: Export,
    mut shutdown: Shutdown,
) {
    tracing::debug!(number, "NBD client connected");
    tokio::select! {
        () = guard.wait_for_predecessors(number) => {}
        () = shutdown.stop.called() => return,
    }
    match connection::serve(stream, volume, Machine::new(export), shutdown).await {
        Ok(()) => tracing::debug!(number, "NBD client left"),
        // Clients that have what they wanted often just go.
        Err(Broken::Socket(why)) => tracing::debug!(number, %why, "NBD client is gone"),
        Err(why) => tracing::warn!(number, %why, "NBD client was hung up on"),
    }
}

/// Removes a socket that nobody listens on, if it may.
fn clear(path: &Path, replace: bool) -> Result<(), BindError> {
    let found = match std::fs::symlink_metadata(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(BindError::NotASocket);
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(BindError::InUse),
        Err(why) if why.kind() != io::ErrorKind::ConnectionRefused => Err(why.into()),
        Err(_) if !replace => Err(BindError::Left),
        Err(_) => Ok(std::fs::remove_file(path)?),
    }
}

#[cfg(test)]
mod tests;
