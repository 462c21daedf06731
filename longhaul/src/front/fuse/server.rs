//! The mount, its end, and how it goes on under another process.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use proto::fuse::Notice;
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_blocking;
use volume::Volume;

use super::connection::{Connection, End, ReadingStopper, Requests, stopper};
use super::filesystem::File;
use super::mount::{Device, mount};
use super::mount_point::{HELPER, MountError, MountPoint, detach};
use crate::front::{Clients, HandOverError, Record};
use crate::printable::Shown as _;
use crate::stop::Stop;

/// A volume that is mounted as one file.
pub struct Server {
    file: Arc<File>,
    point: Arc<MountPoint>,
    reader: Mutex<Reader>,
    /// Told when reading begins.
    reads: Notify,
    leaves: AtomicBool,
}

/// The thread that reads requests.
struct Reader {
    /// What stops it.
    stopper: Option<ReadingStopper>,
    /// Filled at its end.
    ended: Option<oneshot::Receiver<io::Result<End>>>,
    /// Closed at its end.
    gone: Option<oneshot::Receiver<()>>,
}

/// A mount that another process has served.
pub struct Takeover {
    /// Its connection to the kernel.
    pub device: Device,
    /// What that process has noted.
    pub record: Record,
    /// The file that it is mounted over was made for it.
    pub made: bool,
    /// The process was killed: what it was asked and has not answered is to be asked again.
    pub was_killed: bool,
}

impl Server {
    /// Mounts `volume` over the file at `path`, which is made if it is not there, by way of `device`. It answers at once. A
    /// mount that a killed server has left is replaced only if the caller says so.
    pub async fn mount(
        path: &Path,
        replace: bool,
        volume: Arc<dyn Volume>,
        device: Device,
        record: Record,
    ) -> Result<Self, MountError> {
        let path = path.to_owned();
        let mounted = spawn_blocking(move || {
            let point = MountPoint::prepare(&path, replace)?;
            match mount(device, point.path()) {
                Ok(device) => Ok((point, Connection::new(device)?)),
                Err(why) => {
                    point.remove();
                    Err(why)
                }
            }
        });
        let (point, connection) = mounted.await.map_err(io::Error::other)??;
        let file = Arc::new(File::new(connection, record, volume));
        let server = Self::new(file, point);
        match server.begin_reading(true).await {
            Ok(()) => Ok(server),
            Err(why) => {
                server.end().await;
                Err(why.into())
            }
        }
    }

    /// Goes on with a mount that another process has served. Where that was killed and the kernel cannot ask again what it
    /// was asked, that fails: those who have asked would wait for ever.
    pub async fn resume(
        path: &Path,
        volume: Arc<dyn Volume>,
        takeover: Takeover,
    ) -> Result<Self, MountError> {
        let Takeover { device, record, made, was_killed } = takeover;
        let file = Arc::new(File::new(Connection::new(device)?, record, volume));
        match file.connection.notify(Notice::Resend) {
            Err(why) if was_killed => return Err(MountError::NoResend(why)),
            // A server that was not killed has answered everything.
            _ => {}
        }
        let server = Self::new(file, MountPoint::taken_over(path, made));
        server.begin_reading(false).await?;
        // The volume may have grown meanwhile.
        if let Err(why) = server.file.connection.notify(Notice::AttributesChanged) {
            tracing::debug!(%why, "FUSE: the kernel keeps the attributes of the file");
        }
        Ok(server)
    }

    fn new(file: Arc<File>, point: MountPoint) -> Self {
        Self {
            file,
            point: Arc::new(point),
            reader: Mutex::new(Reader { stopper: None, ended: None, gone: None }),
            reads: Notify::new(),
            leaves: AtomicBool::new(false),
        }
    }

    /// Reads requests in a thread of its own, which waits in poll(2); whether the first one has yet to come.
    async fn begin_reading(&self, is_first: bool) -> io::Result<()> {
        let (stopper, stopped) = stopper()?;
        let (ends, ended) = oneshot::channel();
        let (begins, begun) = oneshot::channel();
        let (going, gone) = oneshot::channel();
        let file = Arc::clone(&self.file);
        std::thread::Builder::new().name("fuse".to_owned()).spawn(move || {
            let mut requests: Requests<'_> = file.connection.requests(stopped);
            let first = if is_first { file.begin_session(&mut requests) } else { Ok(()) };
            let is_begun = first.is_ok();
            let _ = begins.send(first);
            if is_begun {
                let _ = ends.send(file.serve(&mut requests));
            }
            drop(going);
        })?;
        begun.await.map_err(io::Error::other)??;
        *self.lock() = Reader { stopper: Some(stopper), ended: Some(ended), gone: Some(gone) };
        self.reads.notify_one();
        Ok(())
    }

    /// The file, from any directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.point.path()
    }

    /// Whether the file that it is mounted over was made for it.
    #[must_use]
    pub fn has_made_file(&self) -> bool {
        self.point.is_made()
    }

    /// How many programs have it open.
    #[must_use]
    pub fn clients(&self) -> Clients {
        self.file.clients.clone()
    }

    /// The first change that failed, if one did: those who asked for it were told.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.file.record.failure()
    }

    /// Leaves the mount where it is at the end: something was lost, and whoever replaces it has to know.
    pub fn leave(&self) {
        self.leaves.store(true, Ordering::Relaxed);
    }

    /// Serves until `stop` is called, or somebody unmounts the file; then it closes. The mount is there until
    /// [`Server::end`].
    pub async fn run(&self, mut stop: Stop) {
        tokio::select! {
            () = stop.called() => {}
            how = self.unmounted() => self.tell_of_end(how),
        }
        self.close().await;
    }

    /// Returns when the last request was read. After a stop, which is for a hand-over, reading may begin again.
    async fn unmounted(&self) -> Result<io::Result<End>, oneshot::error::RecvError> {
        loop {
            let ended = self.lock().ended.take();
            match ended {
                None => self.reads.notified().await,
                Some(ended) => match ended.await {
                    Ok(Ok(End::Stopped)) => {}
                    how => return how,
                },
            }
        }
    }

    /// Reads no more requests, finishes those that it has, and makes everything stable: from then on another process can go
    /// on, if this one ends without closing anything. If that fails it serves as before.
    pub async fn hand_over(&self) -> Result<(), HandOverError> {
        let gone = {
            let mut reader = self.lock();
            drop(reader.stopper.take());
            reader.gone.take()
        };
        if let Some(gone) = gone {
            // It says nothing, and ends.
            let _: Result<(), _> = gone.await;
        }
        let quiet = self.file.quiesce().await;
        let flushed = self.file.flush().await;
        drop(quiet);
        match flushed {
            Ok(()) => Ok(()),
            Err(why) => {
                self.begin_reading(false).await?;
                Err(why.into())
            }
        }
    }

    /// Serves as before, after it was to be handed over.
    pub async fn serve_on(&self) -> Result<(), HandOverError> {
        Ok(self.begin_reading(false).await?)
    }

    /// Finishes what was asked for, refuses what is asked from then on, and flushes. The volume is not held any more.
    pub async fn close(&self) {
        if let Some(volume) = self.file.close().await
            && let Err(why) = volume.flush().await
        {
            tracing::error!(%why, "cannot flush before the file is unmounted");
        }
    }

    fn tell_of_end(&self, how: Result<io::Result<End>, oneshot::error::RecvError>) {
        let path = self.path().shown();
        match how {
            Ok(Ok(_)) => {
                tracing::warn!(%path, "FUSE: the file was unmounted by somebody else: ending");
            }
            Ok(Err(why)) => {
                tracing::error!(%path, %why, "FUSE: the connection to the kernel failed: ending");
            }
            Err(_) => {
                tracing::error!(%path, "FUSE: an internal error: the connection to the kernel has broken down");
            }
        }
    }

    /// Takes the mount away. Programs that still have the file open are refused whatever they ask for.
    pub async fn end(self) {
        if self.leaves.load(Ordering::Relaxed) {
            return;
        }
        let (point, clients) = (Arc::clone(&self.point), self.clients());
        if let Err(why) = spawn_blocking(move || unmount(&point, &clients)).await {
            tracing::error!(%why, "cannot unmount");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever has the file open, a loop device for one, keeps the mount busy: then it is taken out of sight only.
fn unmount(point: &MountPoint, clients: &Clients) {
    let path = point.path().shown();
    if let Err(why) = rustix::mount::unmount(point.path(), rustix::mount::UnmountFlags::empty()) {
        let open = clients.count();
        match detach(point.path()) {
            Ok(()) if open > 0 => {
                tracing::warn!(%path, %why, open, "FUSE: the file is still open: those who have it get errors from now on");
            }
            Ok(()) => {}
            // Somebody else has unmounted it.
            Err(gone) if gone.kind() == io::ErrorKind::InvalidInput => {}
            Err(why) => {
                return tracing::error!(%path, %why, "FUSE: cannot unmount; `{HELPER} -u -z {path}` does");
            }
        }
    }
    point.remove();
}
