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
use super::connection_pause::Pause;
use super::kernel_client::{KernelClient, KernelError, node};
use super::mapping;
use crate::block_devices::file_of;
use crate::front::block_size::{FRONT, block_size};
use crate::front::recorded::Recorded;
use crate::front::{Clients, HandOverError, Record};
use crate::printable::Shown as _;
use crate::stop::Stop;

/// For how many seconds requests wait without a process that serves them: until somebody ends the device.
const DEAD_FOR: u64 = u32::MAX as u64;

/// How often a socket is offered that the kernel does not take yet, and how long is waited before the next time.
const OFFERS: usize = 1500;
const OFFER_EVERY: Duration = Duration::from_millis(20);

/// A volume that is a block device.
pub struct KernelServer {
    device: Arc<dyn Device>,
    /// `None` once it is closed.
    volume: Mutex<Option<Arc<Recorded>>>,
    /// The first change that had failed by then.
    failure: OnceLock<String>,
    export: Export,
    clients: Clients,
    state: Arc<watch::Sender<State>>,
    /// Of the connection that was served last.
    pause: Mutex<Pause>,
}

/// What is asked of the kernel once the device is made.
trait Device: Send + Sync {
    /// The file by which it is known, which is empty.
    fn path(&self) -> &Path;
    /// Offers it a socket, which is taken if that of before is dead.
    fn offer(&self, socket: &OwnedFd) -> io::Result<()>;
    /// Takes it away.
    fn end(&self);
}

/// As the kernel knows it.
struct KernelDevice {
    client: KernelClient,
    index: u32,
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
                Ok(index) => Ok(KernelDevice { client, index, path }),
                Err(why) => {
                    let _ = fs::remove_file(&path);
                    Err(why)
                }
            }
        });
        let device = connected.await.map_err(io::Error::other)??;
        let server = Self::new(Arc::new(device), volume, export);
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
            Ok::<_, KernelError>(KernelDevice { client, index, path })
        });
        let device = found.await.map_err(io::Error::other)??;
        let server = Self::new(Arc::new(device), volume, export);
        server.serve_on().await?;
        Ok(server)
    }

    fn new(device: Arc<dyn Device>, volume: Arc<Recorded>, export: Export) -> Self {
        Self {
            device,
            volume: Mutex::new(Some(volume)),
            failure: OnceLock::new(),
            export,
            clients: Clients::default(),
            state: Arc::new(watch::Sender::new(State::Paused)),
            pause: Mutex::new(Pause::ended()),
        }
    }

    /// Serves this socket in a task of its own.
    fn serve(&self, socket: UnixStream) {
        let Some(volume) = self.volume() else { return };
        let pause = Pause::default();
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
        *lock(&self.pause) = pause.clone();
        tokio::spawn(async move {
            let served = connection::serve(Arc::new(socket), volume, machine, shutdown).await;
            if let Err(why) = &served {
                tracing::warn!(%why, "NBD: the kernel's connection has ended");
            }
            let is_paused = pause.is_asked();
            pause.end();
            if is_paused {
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
        self.device.path()
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

    /// Serves as before. A connection whose requests still run goes on: they must not be asked again beside themselves. In the
    /// place of one that is not served any more the kernel takes another socket.
    pub async fn serve_on(&self) -> io::Result<()> {
        let goes_on = lock(&self.pause).take_back();
        if goes_on {
            return Ok(());
        }
        // It may be sending its last replies.
        self.unserved().await;
        if *self.state.borrow() == State::Ended {
            return Ok(());
        }
        for _ in 0..OFFERS {
            let (ours, theirs) = pair()?;
            let device = Arc::clone(&self.device);
            let offered = spawn_blocking(move || device.offer(&theirs));
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
            let _ = self.failure.set(failure);
        }
    }

    /// Takes no more requests, and waits for those that run.
    async fn pause(&self) {
        lock(&self.pause).ask();
        self.unserved().await;
    }

    /// Returns when no connection is served.
    async fn unserved(&self) {
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

impl Device for KernelDevice {
    fn path(&self) -> &Path {
        &self.path
    }

    fn offer(&self, socket: &OwnedFd) -> io::Result<()> {
        self.client.offer(self.index, &self.path.to_string_lossy(), socket)
    }

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

#[cfg(test)]
mod tests {
    use futures_util::future::poll_immediate;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use volume::store::hooked::{Hooked, go_on};
    use volume::store::memory::Memory;
    use volume::{Error, Kind, Verb};

    use super::*;

    const SIZE: u64 = 1 << 20;
    const BLOCK: usize = 4096;
    const READ: u8 = 0;
    const WRITE: u8 = 1;
    const DISCONNECT: u8 = 2;

    /// Refuses so many sockets, and takes the next one.
    #[derive(Default)]
    struct Kernel {
        refusals: Mutex<usize>,
        taken: Mutex<Option<OwnedFd>>,
    }

    impl Device for Kernel {
        fn path(&self) -> &Path {
            Path::new("/run/none")
        }

        fn offer(&self, socket: &OwnedFd) -> io::Result<()> {
            let mut refusals = lock(&self.refusals);
            if let Some(fewer) = refusals.checked_sub(1) {
                *refusals = fewer;
                return Ok(());
            }
            *lock(&self.taken) = Some(socket.try_clone()?);
            Ok(())
        }

        fn end(&self) {}
    }

    impl Kernel {
        /// The kernel's end of the connection.
        fn socket(&self) -> UnixStream {
            let socket = lock(&self.taken).take().expect("no socket was offered");
            let socket = std::os::unix::net::UnixStream::from(socket);
            socket.set_nonblocking(true).unwrap();
            UnixStream::from_std(socket).unwrap()
        }
    }

    /// A server of `volume` that the kernel has taken the socket of.
    async fn served(volume: Arc<dyn Volume>) -> (KernelServer, Arc<Kernel>, UnixStream) {
        let kernel = Arc::new(Kernel::default());
        let volume = Arc::new(Recorded::new(volume, Record::default()));
        let export = mapping::export(&*volume, "");
        let device = Arc::clone(&kernel) as Arc<dyn Device>;
        let server = KernelServer::new(device, volume, export);
        server.serve_on().await.unwrap();
        let socket = kernel.socket();
        (server, kernel, socket)
    }

    /// A request for one block (NBD, transmission phase), without its data.
    fn request(command: u8, block: u64) -> Vec<u8> {
        let (cookie, offset) = (block.to_be_bytes(), (block * BLOCK as u64).to_be_bytes());
        let len = u32::try_from(BLOCK).unwrap().to_be_bytes();
        [&[0x25, 0x60, 0x95, 0x13, 0, 0, 0, command][..], &cookie, &offset, &len].concat()
    }

    /// The block that is answered, and whether that is a success.
    async fn answer(socket: &mut UnixStream) -> (u64, bool) {
        let mut head = [0; 16];
        socket.read_exact(&mut head).await.unwrap();
        assert_eq!(head[..4], [0x67, 0x44, 0x66, 0x98]);
        (u64::from_be_bytes(head[8..].try_into().unwrap()), head[4..8] == [0; 4])
    }

    async fn write(socket: &mut UnixStream, block: u64) -> (u64, bool) {
        let data = vec![u8::try_from(block).unwrap(); BLOCK];
        socket.write_all(&[request(WRITE, block), data].concat()).await.unwrap();
        answer(socket).await
    }

    async fn is_closed(socket: &mut UnixStream) -> bool {
        matches!(socket.read(&mut [0; 1]).await, Ok(0))
    }

    #[tokio::test]
    async fn volume_is_served_from_the_first_request_until_the_kernel_ends_the_device() {
        let (server, _, mut socket) = served(Arc::new(Memory::new(SIZE, 512))).await;
        assert_eq!(server.clients().count(), 1);
        assert_eq!(write(&mut socket, 7).await, (7, true));
        socket.write_all(&request(READ, 7)).await.unwrap();
        assert_eq!(answer(&mut socket).await, (7, true));
        let mut data = vec![0; BLOCK];
        socket.read_exact(&mut data).await.unwrap();
        assert_eq!(data, vec![7; BLOCK]);
        socket.write_all(&request(DISCONNECT, 0)).await.unwrap();
        server.clients().gone().await;
        server.close().await;
        assert_eq!(server.failure(), None);
    }

    #[tokio::test]
    async fn hand_over_answers_what_runs_and_closes_the_socket() {
        let (server, _, mut socket) = served(Arc::new(Memory::new(SIZE, 512))).await;
        assert_eq!(write(&mut socket, 3).await, (3, true));
        server.hand_over().await.unwrap();
        assert!(is_closed(&mut socket).await);
        assert_eq!(server.clients().count(), 1, "the kernel still has the device");
    }

    /// As by an upgrade that waits too long for a server: what runs is neither ended nor asked again.
    #[tokio::test]
    async fn hand_over_that_is_given_up_goes_on_with_the_same_socket() {
        // The connection notices the pause before it is taken back, or does not.
        for turns in [0, 16] {
            let (begun, mut began) = tokio::sync::mpsc::unbounded_channel();
            let (free, held) = watch::channel(());
            let waiting = Hooked::new(Memory::new(SIZE, 512), move |verb, _| {
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
            let (server, kernel, mut socket) = served(Arc::new(waiting)).await;
            socket.write_all(&request(READ, 7)).await.unwrap();
            began.recv().await.unwrap();
            let given_up = poll_immediate(Box::pin(server.hand_over())).await;
            assert!(given_up.is_none(), "it waits for the read");
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            server.serve_on().await.unwrap();
            assert!(lock(&kernel.taken).is_none(), "the kernel has one that is served");
            assert_eq!(write(&mut socket, 3).await, (3, true));
            free.send_replace(());
            assert_eq!(answer(&mut socket).await, (7, true));
            socket.read_exact(&mut [0; BLOCK]).await.unwrap();
            server.hand_over().await.unwrap();
            assert!(is_closed(&mut socket).await);
            server.serve_on().await.unwrap();
            assert_eq!(write(&mut kernel.socket(), 4).await, (4, true));
        }
    }

    /// The kernel ends the device while it is to be handed over.
    #[tokio::test]
    async fn device_that_has_ended_is_not_served_on() {
        let (server, kernel, mut socket) = served(Arc::new(Memory::new(SIZE, 512))).await;
        socket.write_all(&request(DISCONNECT, 0)).await.unwrap();
        server.clients().gone().await;
        server.hand_over().await.unwrap();
        server.serve_on().await.unwrap();
        assert!(lock(&kernel.taken).is_none());
        assert_eq!(server.clients().count(), 0);
    }

    #[tokio::test]
    async fn socket_is_offered_until_the_kernel_takes_one() {
        let (server, kernel, socket) = served(Arc::new(Memory::new(SIZE, 512))).await;
        server.hand_over().await.unwrap();
        drop(socket);
        *lock(&kernel.refusals) = 3;
        server.serve_on().await.unwrap();
        assert_eq!(*lock(&kernel.refusals), 0);
        assert_eq!(write(&mut kernel.socket(), 5).await, (5, true));
    }

    #[tokio::test]
    async fn server_goes_on_where_what_it_had_answered_cannot_be_flushed() {
        let failing = Hooked::new(Memory::new(SIZE, 512), |verb, span| match verb {
            Verb::Flush => Box::pin(async move { Err(Error::new(Kind::Medium, verb, span)) }),
            _ => go_on(),
        });
        let (server, kernel, mut socket) = served(Arc::new(failing)).await;
        assert_eq!(write(&mut socket, 1).await, (1, true));
        let refused = server.hand_over().await.unwrap_err();
        assert!(matches!(refused, HandOverError::Flush(_)), "{refused}");
        assert!(is_closed(&mut socket).await);
        assert_eq!(write(&mut kernel.socket(), 2).await, (2, true));
        server.close().await;
        assert!(server.failure().is_some());
    }
}
