//! Clients that go and come again.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use volume::store::blocked_writes::BlockedWrites;
use volume::store::hooked::{Hooked, go_on};
use volume::store::memory::Memory;
use volume::{Span, Verb};

use super::*;

type Disk = Arc<BlockedWrites<Memory>>;

/// A server of a disk whose writes wait.
struct GatedServer {
    dir: tempfile::TempDir,
    disk: Disk,
    clients: Clients,
    ender: Stopper,
    served: tokio::task::JoinHandle<()>,
}

impl GatedServer {
    fn new() -> Self {
        Self::breaking(false)
    }

    /// Whose first flush panics, or none.
    fn breaking(breaks: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(BlockedWrites::new(Memory::new(1 << 20, 512)));
        let server = Server::bind(&dir.path().join("s"), false).unwrap();
        let clients = server.clients();
        let (ender, stop) = Stopper::new();
        let flushed = AtomicBool::new(!breaks);
        let volume = Hooked::new(Arc::clone(&disk), move |verb, _| {
            assert!(verb != Verb::Flush || flushed.swap(true, Ordering::Relaxed), "a mistake");
            go_on()
        });
        let volume = Arc::new(volume);
        let served = tokio::spawn(async move { server.run(volume, "a test", stop).await });
        Self { dir, disk, clients, ender, served }
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("s")).await.unwrap()
    }

    async fn first_byte(&self) -> u8 {
        self.disk.read(Span::new(0, 512)).await.unwrap()[0]
    }

    /// Waits until so many writes are held. The disk is let to do none of them meanwhile.
    async fn holds(&self, writes: usize) {
        while self.disk.waiting() < writes {
            tokio::task::yield_now().await;
        }
    }
}

/// Fixed newstyle, no padding, and the export without a name; then its size and its flags.
async fn enter(client: &mut UnixStream) {
    client.read_exact(&mut [0; 18]).await.unwrap();
    client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").await.unwrap();
    client.read_exact(&mut [0; 10]).await.unwrap();
}

async fn ask_to_write(client: &mut UnixStream, byte: u8) {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend([0, 0, 0, 1]);
    request.extend([0; 16]);
    request.extend(512_u32.to_be_bytes());
    request.extend([byte; 512]);
    client.write_all(&request).await.unwrap();
}

async fn is_answered(client: &mut UnixStream) {
    let mut reply = [0; 16];
    client.read_exact(&mut reply).await.unwrap();
    assert_eq!(reply[4..8], [0; 4]);
}

/// Writes of a client that is gone land before anything of a client that comes after it, or never.
#[tokio::test]
async fn writes_of_a_broken_connection_never_land_over_later_ones() {
    for breaks in ["nothing", "the client", "the program"] {
        let stage = GatedServer::breaking(breaks == "the program");
        let mut old = stage.connect().await;
        enter(&mut old).await;
        ask_to_write(&mut old, 7).await;
        stage.holds(1).await;
        match breaks {
            // No request begins like this: the server breaks the connection off.
            "the client" => old.write_all(&[0; 28]).await.unwrap(),
            "the program" => {
                let mut flush = 0x2560_9513_u32.to_be_bytes().to_vec();
                flush.extend([0, 0, 0, 3]);
                flush.extend([0; 20]);
                old.write_all(&flush).await.unwrap();
            }
            _ => {}
        }
        drop(old);
        let mut new = stage.connect().await;
        let entering = tokio::spawn(async move {
            enter(&mut new).await;
            ask_to_write(&mut new, 9).await;
            is_answered(&mut new).await;
        });
        // Of the new client nothing is begun, however long the old write takes.
        for _ in 0..2000 {
            tokio::task::yield_now().await;
            assert_eq!(stage.disk.waiting(), 1, "breaks: {breaks}");
        }
        stage.disk.let_through(1);
        while stage.disk.passed() < 1 {
            tokio::task::yield_now().await;
        }
        stage.holds(1).await;
        assert_eq!(stage.first_byte().await, 7, "breaks: {breaks}");
        stage.disk.let_through(1);
        entering.await.unwrap();
        assert_eq!(stage.first_byte().await, 9, "breaks: {breaks}");
        stage.ender.call();
        stage.served.await.unwrap();
    }
}

#[tokio::test]
async fn clients_that_are_there_together_do_not_wait_for_one_another() {
    let stage = GatedServer::new();
    let (mut first, mut second) = (stage.connect().await, stage.connect().await);
    enter(&mut first).await;
    ask_to_write(&mut first, 1).await;
    stage.holds(1).await;
    enter(&mut second).await;
    let mut third = stage.connect().await;
    enter(&mut third).await;
    stage.disk.let_through(1);
    is_answered(&mut first).await;
    stage.ender.call();
    stage.served.await.unwrap();
}

/// At its end the server waits for what was begun, and not for clients that wait.
#[tokio::test]
async fn an_end_waits_for_what_a_broken_connection_had_begun() {
    let stage = GatedServer::new();
    let mut old = stage.connect().await;
    enter(&mut old).await;
    ask_to_write(&mut old, 7).await;
    stage.holds(1).await;
    drop(old);
    let mut new = stage.connect().await;
    while stage.clients.count() < 2 {
        tokio::task::yield_now().await;
    }
    stage.ender.call();
    assert_eq!(new.read(&mut [0]).await.unwrap(), 0, "it is hung up on");
    assert!(!stage.served.is_finished());
    stage.disk.let_through(1);
    stage.served.await.unwrap();
    assert_eq!(stage.disk.read(Span::new(0, 512)).await.unwrap()[0], 7);
}

#[tokio::test]
async fn server_that_ends_leaves_socket_of_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    let first = Server::bind(&path, false).unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = Server::bind(&path, false).unwrap();
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
}
