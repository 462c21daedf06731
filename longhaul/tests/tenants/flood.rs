//! Floods of connections, and logins that go on beside them over a long link.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, scope, sleep, spawn};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::*;

/// What goes over the long link one way comes so many connections of the flood later: at its pace, 50 ms.
const DELAY: u32 = 15;

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

/// What is under way on the long links: when it is due in connections of the flood, where to, and what. Nothing at
/// all is an end.
#[derive(Default)]
struct UnderWay {
    round: u32,
    sent: VecDeque<(u32, TcpStream, Vec<u8>)>,
}

type Links = Arc<Mutex<UnderWay>>;

/// A long link to `server`, whose connections come from `source`. The flood delivers what goes over it: so the
/// link is as long on a busy machine as on an idle one.
fn long_link(source: Ipv4Addr, server: SocketAddr, links: &Links) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let links = Arc::clone(links);
    spawn(move || {
        while let Ok((near, _)) = listener.accept() {
            let links = Arc::clone(&links);
            spawn(move || {
                // What is sent first follows the connection at once.
                let mut first = [0];
                let Ok(1) = near.peek(&mut first) else { return };
                let Ok(far) = connect_from(source, server) else { return };
                let (from, to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
                let back = Arc::clone(&links);
                spawn(move || send_on(from, &to, &back));
                send_on(near, &far, &links);
            });
        }
    });
    address
}

/// Sends on what comes, and its end.
fn send_on(mut from: TcpStream, to: &TcpStream, links: &Links) {
    let mut buffer = [0; 4096];
    loop {
        let read = from.read(&mut buffer).unwrap_or(0);
        let mut links = links.lock().unwrap();
        let due = links.round + DELAY;
        links.sent.push_back((due, to.try_clone().unwrap(), buffer[..read].to_vec()));
        if read == 0 {
            return;
        }
    }
}

/// Another connection of the flood has been made: delivers what is due.
fn deliver(links: &Links) {
    let mut links = links.lock().unwrap();
    links.round += 1;
    let due = links.sent.partition_point(|(due, ..)| *due <= links.round);
    for (_, mut to, bytes) in links.sent.drain(..due) {
        // The other end may have gone.
        let _ = if bytes.is_empty() { to.shutdown(Shutdown::Both) } else { to.write_all(&bytes) };
    }
}

/// Connections without end, each of which sends `bytes` and nothing more.
struct Flood {
    over: Arc<AtomicBool>,
    links: Links,
    thread: JoinHandle<()>,
}

impl Flood {
    fn begin(source: Ipv4Addr, server: SocketAddr, bytes: Vec<u8>) -> Self {
        let (over, links) = (Arc::new(AtomicBool::new(false)), Links::default());
        let (flag, carried) = (Arc::clone(&over), Arc::clone(&links));
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
                deliver(&carried);
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
        Self { over, links, thread }
    }

    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Eight logins at a time over a long link, which comes from `source`; how many succeed.
fn logins(fixture: &Fixture, source: Ipv4Addr, flood: &Flood) -> usize {
    let portal = long_link(source, fixture.portal, &flood.links);
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
        assert_eq!(logins(&fixture, NEIGHBOUR, &flood), 8, "{by:?}");
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
        assert_eq!(logins(&fixture, ELSEWHERE, &flood), 8, "{by:?}");
        flood.end();
        fixture.end();
    }
}
