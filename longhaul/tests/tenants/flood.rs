//! Floods of connections, and logins that go on beside them over a long link.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, scope, sleep, spawn};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::*;

/// How long the link delays what goes one way: a round trip takes 100 ms.
const DELAY: Duration = Duration::from_millis(50);

/// How often the flood connects: 300 times a second, or as often as this machine can.
const PACE: Duration = Duration::from_micros(3_333);

/// As many connections the flood holds at a time.
const HELD: usize = 400;

/// A connection that comes from `source`.
fn connect_from(source: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddrV4::new(source, 0))?;
    connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

/// A long link to `server`, whose connections come from `source`.
fn long_link(source: Ipv4Addr, server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    spawn(move || {
        while let Ok((near, _)) = listener.accept() {
            spawn(move || {
                // The last packet of the handshake takes as long as any.
                sleep(DELAY);
                let Ok(far) = connect_from(source, server) else { return };
                let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
                delay(near, far);
                delay(back.0, back.1);
            });
        }
    });
    address
}

/// Passes on what comes, later.
fn delay(mut from: TcpStream, mut to: TcpStream) {
    let (sender, receiver): (Sender<(Instant, Vec<u8>)>, Receiver<_>) = channel();
    spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if sender.send((Instant::now() + DELAY, buffer[..read].to_vec())).is_err() {
                return;
            }
        }
    });
    spawn(move || {
        while let Ok((due, bytes)) = receiver.recv() {
            sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// Connections without end, each of which sends `bytes` and nothing more.
struct Flood {
    over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Flood {
    fn begin(source: Ipv4Addr, server: SocketAddr, bytes: Vec<u8>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&over);
        let (begun, running) = channel();
        let thread = spawn(move || {
            let mut held = VecDeque::new();
            for round in 0.. {
                if flag.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(mut stream) = connect_from(source, server) {
                    // It may have been closed already.
                    let _ = stream.write_all(&bytes);
                    held.push_back(stream);
                }
                held.truncate(HELD);
                if held.len() == HELD {
                    held.pop_front();
                }
                if round == 100 {
                    begun.send(()).unwrap();
                }
                sleep(PACE);
            }
        });
        running.recv().unwrap();
        Self { over, thread }
    }

    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Eight logins at a time over a long link, which comes from `source`; how many succeed.
fn logins(fixture: &Fixture, source: Ipv4Addr) -> usize {
    let portal = long_link(source, fixture.portal);
    scope(|scope| {
        let login = |isid| {
            let config = fixture.config("alice", (NAME, isid), Some(TARGET));
            scope.spawn(move || log_in(portal, config).is_ok())
        };
        let logins: Vec<_> = (1..=8).map(login).collect();
        logins.into_iter().map(|login| login.join().unwrap()).filter(|success| *success).count()
    })
}

const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 7, 9);

/// What sends nothing makes way for what does, wherever it comes from.
#[test]
fn a_flood_of_bare_connections_ends_no_login() {
    for by in ISCSI {
        let fixture = Fixture::new(by);
        let flood = Flood::begin(Ipv4Addr::LOCALHOST, fixture.portal, Vec::new());
        assert_eq!(logins(&fixture, NEIGHBOUR), 8, "{by:?}");
        flood.end();
        fixture.end();
    }
}

/// What comes from one network makes way for what comes from others, however far it gets.
#[test]
fn a_flood_of_logins_ends_no_login_from_elsewhere() {
    for by in ISCSI {
        let fixture = Fixture::new(by);
        let config = fixture.config("mallory", (NAME, 1), Some(TARGET));
        let (_, request) = InitiatorLogin::start(config, entropy());
        let begun = peer::frame(request.header, request.data);
        let flood = Flood::begin(Ipv4Addr::LOCALHOST, fixture.portal, begun);
        assert_eq!(logins(&fixture, ELSEWHERE), 8, "{by:?}");
        flood.end();
        fixture.end();
    }
}
