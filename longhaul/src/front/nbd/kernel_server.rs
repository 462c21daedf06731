//! The server of a device that the kernel's NBD client makes: one socket, in the transmission phase from the start. One, since
//! the kernel gives up the first of several when a request takes long, and asks again by another while the first still runs.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use proto::nbd::netlink::{Connect, kernel_flags};
use proto::nbd::{Export, Machine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use volume::{Span, Volume};

use super::connection::{self, Shutdown};
use super::kernel_client::{KernelClient, KernelError, node};
use super::mapping;
use super::recorded::Recorded;
use crate::block_devices::file_of;
use crate::front::block_size::{FRONT, block_size};
use crate::front::{Clients, HandOverError, Record};
use crate::printable::Shown as _;
use crate::stop::{Stop, Stopper};

/// For how many seconds requests wait without a process that serves them: until somebody ends the device.
const DEAD_FOR: u64 = u32::MAX as u64;

/// How often a socket is offered that the kernel does not take yet, and how long is waited before the next time.
const OFFERS: usize = 1500;
const OFFER_EVERY: Duration = Duration::from_millis(20);

/// A volume that is a block device.
pub struct KernelServer {
    device: Arc<Device>,
    /// `None` once it is closed.
    volume: Mutex<Option<Arc<Recorded>>>,
    /// The first change that had failed by then.
    failure: OnceLock<String>,
    export: Export,
    clients: Clients,
    state: Arc<watch::Sender<State>>,
    pauser: Mutex<Option<Stopper>>,
}

/// As the kernel knows it.
struct Device {
    client: KernelClient,
    index: u32,
    /// By which it is known: a file, which is empty.
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Serving,
    /// No socket is served; the kernel waits for another one.
    Paused,
    /// The kernel has ended the device.
    Ended,
}

impl KernelServer {
    /// Makes a device of `volume`, which is known by the file at `path`.
    pub async fn connect(
        path: &Path,
        volume: Arc<dyn Volume>,
        record: Record,
    ) -> Result<Self, KernelError> {
        let shape = volume.shape();
        let front = volume.read(Span::new(0, shape.size.min(FRONT))).await?;
        let (size, smallest) = (shape.size, shape.block_size);
        let block_size = block_size(&front, size).max(smallest);
        let volume = Arc::new(Recorded::new(volume, record));
        let export = mapping::export(&*volume, "");
        let flags = kernel_flags(&export);
        let (ours, theirs) = pair()?;
        let path = path.to_owned();
        let connected = spawn_blocking(move || {
            let client = KernelClient::open()?;
            fs::write(&path, "")?;
            let index = client.connect(&theirs, |socket| Connect {
                size,
                block_size,
                flags,
                socket,
                identifier: path.to_str().unwrap_or_default(),
                dead_for: DEAD_FOR,
            });
            match index {
                Ok(index) => Ok(Device { client, index, path }),
                Err(why) => {
                    let _ = fs::remove_file(&path);
                    Err(why)
                }
            }
        });
        let device = connected.await.map_err(io::Error::other)??;
        let server = Self::new(device, volume, export);
        server.serve(ours);
        Ok(server)
    }

    /// Goes on with a device that another process has served: what that had not answered the kernel asks again.
    pub async fn resume(
        path: &Path,
        volume: Arc<dyn Volume>,
        record: Record,
    ) -> Result<Self, KernelError> {
        let volume = Arc::new(Recorded::new(volume, record));
        let export = mapping::export(&*volume, "");
        let path = path.to_owned();
        let found = spawn_blocking(move || {
            let client = KernelClient::open()?;
            let index =
                KernelClient::made_of(&path).ok_or_else(|| KernelError::NoDevice(path.clone()))?;
            Ok::<_, KernelError>(Device { client, index, path })
        });
        let device = found.await.map_err(io::Error::other)??;
        let server = Self::new(device, volume, export);
        server.serve_on().await?;
        Ok(server)
    }

    fn new(device: Device, volume: Arc<Recorded>, export: Export) -> Self {
        Self {
            device: Arc::new(device),
            volume: Mutex::new(Some(volume)),
            failure: OnceLock::new(),
            export,
            clients: Clients::default(),
            state: Arc::new(watch::Sender::new(State::Paused)),
            pauser: Mutex::default(),
        }
    }

    /// Serves this socket in a task of its own.
    fn serve(&self, socket: UnixStream) {
        let Some(volume) = self.volume() else { return };
        let (pauser, pause) = Stopper::new();
        let shutdown = Shutdown {
            stop: Stop::default(),
            busy: None,
            end: Stop::default(),
            pause: pause.clone(),
        };
        let machine = Machine::in_transmission(self.export.clone());
        let (state, clients) = (Arc::clone(&self.state), self.clients.clone());
        state.send_replace(State::Serving);
        clients.set(1);
        *lock(&self.pauser) = Some(pauser);
        tokio::spawn(async move {
            let served = connection::serve(Arc::new(socket), volume, machine, shutdown).await;
            if let Err(why) = &served {
                tracing::warn!(%why, "NBD: the kernel's connection has ended");
            }
            if pause.is_called() {
                state.send_replace(State::Paused);
            } else {
                state.send_replace(State::Ended);
                clients.set(0);
            }
        });
    }

    /// The file by which the device is known.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.device.path
    }

    /// One, while the kernel uses it.
    #[must_use]
    pub fn clients(&self) -> Clients {
        self.clients.clone()
    }

    /// The first change that failed, if one did; known once it is closed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    /// Serves until `stop` is called; then it closes. That the kernel has ended the device is seen by its clients.
    pub async fn run(&self, mut stop: Stop) {
        stop.called().await;
        self.close().await;
    }

    /// Takes no more requests, finishes those that it has, and makes everything stable. If that fails it serves as before.
    pub async fn hand_over(&self) -> Result<(), HandOverError> {
        self.pause().await;
        let Some(volume) = self.volume() else { return Ok(()) };
        let flushed = volume.flush().await;
        if flushed.is_err() {
            self.serve_on().await?;
        }
        Ok(flushed?)
    }

    /// Has the kernel take another socket, in the place of one that is not served any more.
    pub async fn serve_on(&self) -> io::Result<()> {
        for _ in 0..OFFERS {
            let (ours, theirs) = pair()?;
            let device = Arc::clone(&self.device);
            let offered = spawn_blocking(move || {
                device.client.offer(device.index, &device.path.to_string_lossy(), &theirs)
            });
            offered.await.map_err(io::Error::other)??;
            if is_taken(&ours) {
                self.serve(ours);
                return Ok(());
            }
            // The end of that before has not been noticed yet.
            sleep(OFFER_EVERY).await;
        }
        Err(io::Error::other("the kernel keeps the socket of the process before"))
    }

    /// Finishes what was asked for, and flushes. The volume is not held any more.
    pub async fn close(&self) {
        self.pause().await;
        let Some(volume) = lock(&self.volume).take() else { return };
        if let Err(why) = volume.flush().await {
            tracing::error!(%why, "cannot flush before the device is ended");
        }
        if let Some(failure) = volume.failure() {
            let _ = self.failure.set(failure.clone());
        }
    }

    /// Takes no more requests, and waits for those that run.
    async fn pause(&self) {
        drop(lock(&self.pauser).take());
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|state| *state != State::Serving).await;
    }

    /// Takes the device away. Programs that still use it get errors.
    pub async fn end(self) {
        let device = Arc::clone(&self.device);
        if let Err(why) = spawn_blocking(move || device.end()).await {
            tracing::error!(%why, "cannot end the device");
        }
    }

    fn volume(&self) -> Option<Arc<Recorded>> {
        lock(&self.volume).clone()
    }
}

impl Device {
    fn end(&self) {
        let node = node(self.index);
        // Once it is gone another one may have its number.
        if file_of(&node).as_deref() == Some(&*self.path)
            && let Err(why) = self.client.disconnect(self.index)
        {
            tracing::error!(device = %node.shown(), %why, "NBD: cannot end the device");
        }
        if let Err(why) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.shown(), %why, "cannot remove the file of the device");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Our end of a connection, and the kernel's.
fn pair() -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((UnixStream::from_std(ours)?, theirs.into()))
}

/// Whether somebody has the other end, which is closed here.
fn is_taken(socket: &UnixStream) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready == 0)
}
