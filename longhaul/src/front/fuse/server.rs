//! The mount, and its end.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fuser::{Config, MountOption, Session, SessionUnmounter};
use rustix::process::geteuid;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use volume::Volume;

use super::filesystem::{File, Handlers};
use super::mount_point::{HELPER, MountError, MountPoint, detach};
use crate::front::Clients;
use crate::printable::Shown as _;
use crate::stop::Stop;

const DEVICE: &str = "/dev/fuse";

/// A volume that is mounted as one file.
pub struct Server {
    file: Arc<File>,
    point: Arc<MountPoint>,
    unmounter: Mutex<Option<SessionUnmounter>>,
    /// Filled when the kernel has no more requests, because somebody has unmounted the file.
    ended: Mutex<Option<oneshot::Receiver<io::Result<()>>>>,
    leaves: AtomicBool,
}

impl Server {
    /// Mounts `volume` over the file at `path`, which is made if it is not there. It answers at once. A mount that a
    /// killed server has left is replaced only if the caller says so.
    pub async fn mount(
        path: &Path,
        replace: bool,
        volume: Arc<dyn Volume>,
    ) -> Result<Self, MountError> {
        let file = Arc::new(File::new(volume));
        let (path, handlers) = (path.to_owned(), Handlers(Arc::clone(&file)));
        let mounted = spawn_blocking(move || mount(&path, replace, handlers)).await;
        let (point, mut session) = mounted.map_err(io::Error::other)??;
        let unmounter = session.unmount_callable();
        let (ends, ended) = oneshot::channel();
        // It waits in read(2), which nothing but the kernel ends.
        std::thread::Builder::new().name("fuse".to_owned()).spawn(move || {
            let _ = ends.send(session.run());
        })?;
        Ok(Self {
            file,
            point: Arc::new(point),
            unmounter: Mutex::new(Some(unmounter)),
            ended: Mutex::new(Some(ended)),
            leaves: AtomicBool::new(false),
        })
    }

    /// The file, from any directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.point.path()
    }

    /// How many programs have it open.
    #[must_use]
    pub fn clients(&self) -> Clients {
        self.file.clients.clone()
    }

    /// The first change that failed, if one did: those who asked for it were told.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.file.failure.get().cloned()
    }

    /// Leaves the mount where it is at the end: something was lost, and whoever replaces it has to know.
    pub fn leave(&self) {
        self.leaves.store(true, Ordering::Relaxed);
    }

    /// Serves until `stop` is called, or somebody unmounts the file; then it closes. The mount is there until
    /// [`Server::end`].
    pub async fn run(&self, mut stop: Stop) {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        let unmounted = async {
            match ended {
                Some(ended) => ended.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.called() => {}
            how = unmounted => self.tell_of_end(how),
        }
        self.close().await;
    }

    /// Finishes what was asked for, refuses what is asked from then on, and flushes. The volume is not held any more.
    pub async fn close(&self) {
        if let Some(volume) = self.file.close().await
            && let Err(why) = volume.flush().await
        {
            tracing::error!(%why, "cannot flush before the file is unmounted");
        }
    }

    fn tell_of_end(&self, how: Result<io::Result<()>, oneshot::error::RecvError>) {
        let path = self.path().shown();
        match how {
            Ok(Ok(())) => {
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
        let unmounter = self.unmounter.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (point, clients) = (Arc::clone(&self.point), self.clients());
        let work = spawn_blocking(move || unmount(&point, unmounter, &clients));
        if let Err(why) = work.await {
            tracing::error!(%why, "cannot unmount");
        }
    }
}

fn mount(
    path: &Path,
    replace: bool,
    handlers: Handlers,
) -> Result<(MountPoint, Session<Handlers>), MountError> {
    // Before anything is made. The kernel's module is loaded by this.
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(DEVICE)
        .map_err(MountError::NoDevice)?;
    let point = MountPoint::prepare(path, replace)?;
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("longhaul".to_owned()),
        MountOption::Subtype("longhaul".to_owned()),
        MountOption::NoExec,
    ];
    match Session::new(handlers, point.path(), &config) {
        Ok(session) => Ok((point, session)),
        Err(why) => {
            point.remove();
            let lacks_helper =
                !geteuid().is_root() && Command::new(HELPER).arg("-V").output().is_err();
            Err(if lacks_helper { MountError::NoHelper } else { MountError::System(why) })
        }
    }
}

/// Whoever has the file open, a loop device for one, keeps the mount busy: then it is taken out of sight only.
fn unmount(point: &MountPoint, unmounter: Option<SessionUnmounter>, clients: &Clients) {
    let path = point.path().shown();
    let done = unmounter.map_or(Ok(()), |mut unmounter| unmounter.unmount());
    if let Err(why) = done {
        let open = clients.count();
        match detach(point.path()) {
            Ok(()) => {
                tracing::warn!(%path, %why, open, "FUSE: the file is still open: those who have it get errors from now on");
            }
            // Somebody else has unmounted it.
            Err(gone) if gone.kind() == io::ErrorKind::InvalidInput => {}
            Err(why) => {
                return tracing::error!(%path, %why, "FUSE: cannot unmount; `{HELPER} -u -z {path}` does");
            }
        }
    }
    point.remove();
}
