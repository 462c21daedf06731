//! A link that is cut: both ends see their connections break.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A proxy in front of a server. It listens for as long as the test runs.
pub(crate) struct Link {
    pub(crate) port: u16,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    is_shut: Arc<AtomicBool>,
    /// What the server says is not passed on.
    is_mute: Arc<AtomicBool>,
    /// Bytes that were passed on to the server.
    sent: Arc<AtomicU64>,
}

/// Passes on what comes until one end is closed, and counts it; what comes while `is_held` is dropped.
fn pass(from: &mut TcpStream, to: &mut TcpStream, count: &AtomicU64, is_held: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer)
        && (is_held.load(Ordering::Relaxed) || to.write_all(&buffer[..len]).is_ok())
    {
        count.fetch_add(len as u64, Ordering::Relaxed);
    }
}

impl Link {
    /// A link to a port of this machine.
    pub(crate) fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let streams = Arc::<Mutex<Vec<TcpStream>>>::default();
        let all = Arc::clone(&streams);
        let is_shut = Arc::<AtomicBool>::default();
        let shut = Arc::clone(&is_shut);
        let sent = Arc::<AtomicU64>::default();
        let is_mute = Arc::<AtomicBool>::default();
        let to_server = (Arc::clone(&sent), Arc::default());
        let to_client = (Arc::default(), Arc::clone(&is_mute));
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if shut.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                for (from, to, way) in [(&near, &far, &to_server), (&far, &near, &to_client)] {
                    let (count, is_held) = way.clone();
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || {
                        pass(&mut from, &mut to, &count, &is_held);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                all.lock().unwrap().extend([near, far]);
            }
        });
        Self { port, streams, is_shut, is_mute, sent }
    }

    /// How many bytes were passed on to the server.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Drops what the server says, until the connections are cut.
    pub(crate) fn mute(&self) {
        self.is_mute.store(true, Ordering::Relaxed);
    }

    /// Breaks all connections, and takes none until it is opened.
    pub(crate) fn shut(&self) {
        self.is_shut.store(true, Ordering::Relaxed);
        self.cut();
    }

    /// Takes connections again.
    pub(crate) fn open(&self) {
        self.is_shut.store(false, Ordering::Relaxed);
    }

    /// Breaks all connections; whether there was one.
    pub(crate) fn cut(&self) -> bool {
        let streams: Vec<_> = self.streams.lock().unwrap().drain(..).collect();
        let cut = streams.iter().filter(|stream| stream.shutdown(Shutdown::Both).is_ok()).count();
        self.is_mute.store(false, Ordering::Relaxed);
        cut > 0
    }
}
