//! A link that is cut: both ends see their connections break.

use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A proxy in front of a server. It listens for as long as the test runs.
pub(crate) struct Link {
    pub(crate) port: u16,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    is_shut: Arc<AtomicBool>,
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
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if shut.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || {
                        let _ = copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                all.lock().unwrap().extend([near, far]);
            }
        });
        Self { port, streams, is_shut }
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
        streams.iter().filter(|stream| stream.shutdown(Shutdown::Both).is_ok()).count() > 0
    }
}
