//! The mount, its end, and how it goes on under another process.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use proto::fuse::Notice;
use tokio::sync::{Mutex as AsyncMutex, RwLock, mpsc, oneshot};
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
    /// What stops the thread that reads requests.
    stopper: Mutex<Option<ReadingStopper>>,
    /// Read-locked by each thread that reads. There are two for a while after a hand-over that was given up: the first may
    /// wait for memory still.
    reading: Arc<RwLock<()>>,
    /// How each of them has ended.
    ends: mpsc::UnboundedSender<io::Result<End>>,
    ended: AsyncMutex<mpsc::UnboundedReceiver<io::Result<End>>>,
    leaves: AtomicBool,
}

/// Tells how a thread that reads has ended, also if it has panicked.
struct ReaderEnd {
    ends: mpsc::UnboundedSender<io::Result<End>>,
    how: Option<io::Result<End>>,
}

impl Drop for ReaderEnd {
    fn drop(&mut self) {
        let panicked = || Err(io::Error::other("an internal error"));
        // The server may be gone.
        let _ = self.ends.send(self.how.take().unwrap_or_else(panicked));
    }
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
        // It is to know them before somebody asks while nobody serves the file.
        let path = server.point.path().to_owned();
        spawn_blocking(move || drop(std::fs::symlink_metadata(path)));
        Ok(server)
    }

    fn new(file: Arc<File>, point: MountPoint) -> Self {
        let (ends, ended) = mpsc::unbounded_channel();
        Self {
            file,
            point: Arc::new(point),
            stopper: Mutex::default(),
            reading: Arc::default(),
            ends,
            ended: AsyncMutex::new(ended),
            leaves: AtomicBool::new(false),
        }
    }

    /// Reads requests in a thread of its own, which waits in poll(2); whether the first one has yet to come.
    async fn begin_reading(&self, is_first: bool) -> io::Result<()> {
        let (stopper, stopped) = stopper()?;
        let (begins, begun) = oneshot::channel();
        let ends = self.ends.clone();
        let reading = Arc::clone(&self.reading).read_owned().await;
        let file = Arc::clone(&self.file);
        std::thread::Builder::new().name("fuse".to_owned()).spawn(move || {
            let mut requests: Requests<'_> = file.connection.requests(stopped);
            let first = if is_first { file.begin_session(&mut requests) } else { Ok(()) };
            let is_begun = first.is_ok();
            let _ = begins.send(first);
            if is_begun {
                let mut end = ReaderEnd { ends, how: None };
                end.how = Some(file.serve(&mut requests));
            }
            drop(reading);
        })?;
        begun.await.map_err(io::Error::other)??;
        *self.stopper() = Some(stopper);
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
    async fn unmounted(&self) -> io::Result<()> {
        let mut ended = self.ended.lock().await;
        loop {
            match ended.recv().await {
                Some(Ok(End::Stopped)) => {}
                Some(how) => return how.map(drop),
                // The other end is held here.
                None => std::future::pending().await,
            }
        }
    }

    /// Reads no more requests, finishes those that it has, and makes everything stable: from then on another process can go
    /// on, if this one ends without closing anything. If that fails it serves as before; if it is given up,
    /// [`Server::serve_on`] does.
    pub async fn hand_over(&self) -> Result<(), HandOverError> {
        drop(self.stopper().take());
        drop(self.reading.write().await);
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

    fn tell_of_end(&self, how: io::Result<()>) {
        let path = self.path().shown();
        match how {
            Ok(()) => {
                tracing::warn!(%path, "FUSE: the file was unmounted by somebody else: ending");
            }
            Err(why) => {
                tracing::error!(%path, %why, "FUSE: the connection to the kernel failed: ending");
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

    fn stopper(&self) -> std::sync::MutexGuard<'_, Option<ReadingStopper>> {
        self.stopper.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, OwnedFd};

    use futures_util::future::poll_immediate;
    use rustix::io::ioctl_fionread;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
    use tokio::sync::watch;
    use volume::Verb;
    use volume::store::hooked::{Hooked, go_on};
    use volume::store::memory::Memory;

    use super::*;

    const MIB: u32 = 1 << 20;
    const READ: u32 = 15;
    const DESTROY: u32 = 38;

    /// The requests that wait for memory begin with the one after these.
    const READS: u64 = 64;

    /// As the kernel asks (fuse_in_header of linux/fuse.h, and what follows it).
    fn request(opcode: u32, unique: u64, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(40 + body.len()).unwrap();
        let head = [&len.to_ne_bytes()[..], &opcode.to_ne_bytes(), &unique.to_ne_bytes()].concat();
        [&head[..], &1_u64.to_ne_bytes(), &[0; 16], body].concat()
    }

    /// A read of the first MiB (fuse_read_in).
    fn read(unique: u64) -> Vec<u8> {
        let body = [&[0; 16][..], &MIB.to_ne_bytes(), &[0; 20]].concat();
        request(READ, unique, &body)
    }

    /// As an upgrade is given up while a server is silent: the thread that reads may wait for memory then, beside the next one.
    #[tokio::test]
    async fn unmount_is_noticed_after_a_hand_over_that_was_given_up() {
        let (begun, mut began) = mpsc::unbounded_channel();
        let (free, held) = watch::channel(());
        let waiting = Hooked::new(Memory::new(MIB.into(), 512), move |verb, _| {
            let mut held = held.clone();
            if verb != Verb::Read {
                return go_on();
            }
            let _ = begun.send(());
            Box::pin(async move {
                let _ = held.changed().await;
                Ok(())
            })
        });
        let kind = SocketType::SEQPACKET;
        let (ours, kernel) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let asked: OwnedFd = ours.try_clone().unwrap();
        let record = Record::default();
        let takeover = Takeover { device: ours, record, made: false, was_killed: false };
        let server = Server::resume(Path::new("/none"), Arc::new(waiting), takeover).await.unwrap();
        let mut unmounted = Box::pin(server.unmounted());
        assert!(poll_immediate(&mut unmounted).await.is_none());
        let ask = |request: Vec<u8>| send(&kernel, &request, SendFlags::empty()).unwrap();
        for unique in 0..=READS {
            ask(read(unique));
        }
        for _ in 0..READS {
            began.recv().await.unwrap();
        }
        while ioctl_fionread(asked.as_fd()).unwrap() > 0 {
            tokio::task::yield_now().await;
        }
        let given_up = poll_immediate(Box::pin(server.hand_over())).await;
        assert!(given_up.is_none(), "it waits for the reads");
        server.serve_on().await.unwrap();
        ask(request(DESTROY, READS + 1, &[]));
        unmounted.await.unwrap();
        free.send_replace(());
        server.hand_over().await.unwrap();
        began.recv().await.unwrap();
    }
}
