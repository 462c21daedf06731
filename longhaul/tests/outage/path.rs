//! A path between an initiator and a target on which things go wrong.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use volume::check::Random;

/// What can happen to a connection.
#[derive(Clone, Copy, Debug)]
enum ConnectionFault {
    /// Both ends see it break.
    Cut,
    /// Part of what was on its way still arrives.
    CutAfterPart,
    /// Nothing arrives any more, and nobody is told. When the initiator has gone and its next connection
    /// is there, what was on its way to the target arrives after all.
    Late,
    /// It breaks, and so many connections after it are refused.
    Refused(u32),
}

/// A proxy in front of a target, on a port that stays.
pub(crate) struct Path {
    pub(crate) address: SocketAddr,
    control: Arc<Control>,
    _accepting: JoinSet<()>,
}

struct Control {
    upstream: Mutex<Option<SocketAddr>>,
    random: Mutex<Random>,
    /// Bytes until the next trouble; `None` for no trouble.
    budget: Mutex<Option<u64>>,
    bytes: watch::Sender<u64>,
    troubles: watch::Sender<u32>,
    connections: watch::Sender<u64>,
    refusing: AtomicU32,
    running: Mutex<JoinSet<()>>,
}

impl Path {
    /// A path to `upstream`, calm at first.
    pub(crate) async fn new(upstream: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let control = Arc::new(Control {
            upstream: Mutex::new(Some(upstream)),
            random: Mutex::new(Random::new(seed)),
            budget: Mutex::new(None),
            bytes: watch::Sender::new(0),
            troubles: watch::Sender::new(0),
            connections: watch::Sender::new(0),
            refusing: AtomicU32::new(0),
            running: Mutex::new(JoinSet::new()),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&control)));
        Self { address, control, _accepting: accepting }
    }

    /// How often something went wrong.
    pub(crate) fn troubles(&self) -> u32 {
        *self.control.troubles.borrow()
    }

    /// Waits until something went wrong so often.
    pub(crate) async fn troubled(&self, count: u32) {
        self.control.troubles.subscribe().wait_for(|troubles| *troubles >= count).await.unwrap();
    }

    /// From now on everything goes wrong, at random instants.
    pub(crate) fn rage(&self) {
        *self.control.budget.lock().unwrap() = Some(1);
    }

    /// From now on nothing goes wrong any more.
    pub(crate) fn calm(&self) {
        *self.control.budget.lock().unwrap() = None;
        self.control.refusing.store(0, Ordering::Relaxed);
    }

    /// Waits until so many more bytes have passed.
    pub(crate) async fn passed(&self, more: u64) {
        let until = *self.control.bytes.borrow() + more;
        self.control.bytes.subscribe().wait_for(|bytes| *bytes >= until).await.unwrap();
    }

    /// Breaks every connection and lets none through until [`lead_to`](Self::lead_to).
    pub(crate) async fn close(&self) {
        *self.control.upstream.lock().unwrap() = None;
        let mut running = std::mem::take(&mut *self.control.running.lock().unwrap());
        running.shutdown().await;
    }

    /// Connections lead there from now on.
    pub(crate) fn lead_to(&self, upstream: SocketAddr) {
        *self.control.upstream.lock().unwrap() = Some(upstream);
    }
}

async fn accept(listener: TcpListener, control: Arc<Control>) {
    while let Ok((client, _)) = listener.accept().await {
        let refused = control
            .refusing
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if refused.is_ok() {
            let _ = client.set_zero_linger();
            continue;
        }
        let Some(upstream) = *control.upstream.lock().unwrap() else { continue };
        let Ok(server) = TcpStream::connect(upstream).await else { continue };
        control.connections.send_modify(|count| *count += 1);
        let relay = relay(client, server, Arc::clone(&control));
        control.running.lock().unwrap().spawn(relay);
    }
}

async fn relay(client: TcpStream, server: TcpStream, control: Arc<Control>) {
    let number = *control.connections.borrow();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (fault, up, rest) = tokio::select! {
        (fault, rest) = copy_bytes(&mut from_client, &mut to_server, &control) => (fault, true, rest),
        (fault, rest) = copy_bytes(&mut from_server, &mut to_client, &control) => (fault, false, rest),
    };
    let Some(fault) = fault else { return };
    match fault {
        ConnectionFault::Cut => {}
        ConnectionFault::CutAfterPart => {
            let part = &rest[..rest.len() / 2];
            let _ =
                if up { to_server.write_all(part).await } else { to_client.write_all(part).await };
        }
        ConnectionFault::Refused(count) => control.refusing.store(count, Ordering::Relaxed),
        ConnectionFault::Late => {
            let mut late = if up { rest } else { Vec::new() };
            while from_client.read_buf(&mut late).await.is_ok_and(|len| len > 0) {}
            let mut connections = control.connections.subscribe();
            let _ = connections.wait_for(|count| *count > number).await;
            let _ = to_server.write_all(&late).await;
            return;
        }
    }
    for half in [to_client.as_ref(), to_server.as_ref()] {
        let _ = half.set_zero_linger();
    }
}

/// Carries bytes until something goes wrong; gives what was not delivered.
async fn copy_bytes(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    control: &Control,
) -> (Option<ConnectionFault>, Vec<u8>) {
    let mut bytes = Vec::with_capacity(64 << 10);
    loop {
        match from.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return (None, bytes),
            Ok(_) => {}
        }
        if let Some(fault) = control.spend(bytes.len() as u64) {
            return (Some(fault), bytes);
        }
        if to.write_all(&bytes).await.is_err() {
            return (None, bytes);
        }
        bytes.clear();
    }
}

impl Control {
    fn spend(&self, bytes: u64) -> Option<ConnectionFault> {
        self.bytes.send_modify(|passed| *passed += bytes);
        let mut budget = self.budget.lock().unwrap();
        let left = budget.as_mut()?;
        *left = left.saturating_sub(bytes);
        if *left > 0 {
            return None;
        }
        self.troubles.send_modify(|count| *count += 1);
        let mut random = self.random.lock().unwrap();
        // Often within the login, often within the first exchange, sometimes much later.
        let most = 1 << random.below(20);
        *left = 1 + random.below(most);
        Some(match random.below(8) {
            0..3 => ConnectionFault::Cut,
            3..5 => ConnectionFault::CutAfterPart,
            5..7 => ConnectionFault::Late,
            _ => ConnectionFault::Refused(1 + random.below(2) as u32),
        })
    }
}
