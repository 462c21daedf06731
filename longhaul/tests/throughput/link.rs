//! A long link between two programs of this machine: a TCP proxy that hands bytes on late, at a limited
//! rate, and counts. Threads wait for the next deadline or for one another, never for a guess.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// What is handed on at once: at 1 Gbit/s it takes 0.13 ms, so a rate is smooth.
const CHUNK: usize = 16 << 10;

/// Bytes under way in one direction. Above it the sender's socket is not read, and TCP slows it down.
const UNDER_WAY_MAX: usize = 64 << 20;

/// What the link is like, in both directions.
#[derive(Clone, Copy)]
pub(crate) struct Conditions {
    /// How long a byte travels.
    pub(crate) delay: Duration,
    /// Bytes per second; none for as many as this machine can.
    pub(crate) rate: Option<u64>,
}

/// The link. It ends when this is dropped.
pub(crate) struct Link {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    to: SocketAddr,
    conditions: Conditions,
    /// The longest chain of messages each of which could be an answer to the one before, in round
    /// trips: what client and server know of it.
    client: AtomicU64,
    server: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    cut: bool,
    /// Answers stay on the link.
    held: bool,
    /// Bytes that the server was handed, or is about to be.
    carried: u64,
    sockets: Vec<TcpStream>,
    lanes: Vec<Arc<Lane>>,
}

impl Link {
    /// A link to the server at `to`.
    pub(crate) fn start(to: SocketAddr, conditions: Conditions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            to,
            conditions,
            client: AtomicU64::new(0),
            server: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.lock().cut {
                    return;
                }
                accepting.join(client.unwrap());
            }
        });
        Self { address, shared }
    }

    /// Where the near end listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many times something could go there and back, one after the other, as the messages went.
    pub(crate) fn round_trips(&self) -> u64 {
        self.shared.client.load(Ordering::SeqCst)
    }

    /// Keeps all answers on the link, until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.set_held(true);
    }

    pub(crate) fn release(&self) {
        self.set_held(false);
    }

    fn set_held(&self, held: bool) {
        let mut state = self.shared.lock();
        state.held = held;
        for lane in &state.lanes {
            lane.set_held(held);
        }
    }

    /// Bytes that the server was handed so far, counted before it can answer them.
    pub(crate) fn carried(&self) -> u64 {
        self.shared.lock().carried
    }

    /// Waits until the server was handed so many bytes in all; false if it takes longer than `patience`.
    pub(crate) fn wait_carried(&self, bytes: u64, patience: Duration) -> bool {
        let state = self.shared.lock();
        let waited =
            self.shared.changed.wait_timeout_while(state, patience, |state| state.carried < bytes);
        !waited.unwrap().1.timed_out()
    }

    /// Ends all connections now, with whatever is under way, and takes no more.
    pub(crate) fn cut(&self) {
        let mut state = self.shared.lock();
        if std::mem::replace(&mut state.cut, true) {
            return;
        }
        for socket in &state.sockets {
            // It may have ended by itself.
            let _ = socket.shutdown(Shutdown::Both);
        }
        state.lanes.iter().for_each(|lane| lane.cut());
        drop(state);
        // The listener looks at the flag when somebody comes.
        let _ = TcpStream::connect(self.address);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Joins a client with the server, by a lane in each direction.
    fn join(self: &Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.to) else { return };
        for socket in [&client, &server] {
            socket.set_nodelay(true).unwrap();
        }
        for (from, to, is_up) in [(&client, &server, true), (&server, &client, false)] {
            let lane = Arc::new(Lane::new(self.conditions, is_up));
            {
                let mut state = self.lock();
                lane.set_held(state.held);
                state.lanes.push(Arc::clone(&lane));
                state.sockets.push(from.try_clone().unwrap());
            }
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let (reading, shared) = (Arc::clone(&lane), Arc::clone(self));
            thread::spawn(move || reading.take_from(from, &shared));
            let shared = Arc::clone(self);
            thread::spawn(move || lane.hand_to(to, &shared));
        }
    }
}

/// One direction of one connection.
struct Lane {
    conditions: Conditions,
    is_up: bool,
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// When the last byte taken has left, as far as the rate is concerned.
    left: Instant,
    held: bool,
    /// Nothing more comes.
    ended: bool,
    cut: bool,
}

struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
    /// How many round trips its sender knew of.
    trips: u64,
}

impl Lane {
    fn new(conditions: Conditions, is_up: bool) -> Self {
        let queue = Queue {
            chunks: VecDeque::new(),
            bytes: 0,
            left: Instant::now(),
            held: false,
            ended: false,
            cut: false,
        };
        Self { conditions, is_up, queue: Mutex::new(queue), changed: Condvar::new() }
    }

    fn change(&self, change: impl FnOnce(&mut Queue)) {
        change(&mut self.queue.lock().unwrap());
        self.changed.notify_all();
    }

    fn set_held(&self, held: bool) {
        self.change(|queue| queue.held = held && !self.is_up);
    }

    fn cut(&self) {
        self.change(|queue| queue.cut = true);
    }

    fn take_from(&self, mut socket: TcpStream, shared: &Shared) {
        let mut buffer = vec![0; CHUNK];
        while let Ok(len @ 1..) = socket.read(&mut buffer) {
            let trips = match self.is_up {
                true => shared.client.load(Ordering::SeqCst),
                false => shared.server.load(Ordering::SeqCst) + 1,
            };
            let queue = self.queue.lock().unwrap();
            let is_full = |queue: &mut Queue| queue.bytes > UNDER_WAY_MAX && !queue.cut;
            let mut queue = self.changed.wait_while(queue, is_full).unwrap();
            queue.put(buffer[..len].to_vec(), trips, self.conditions);
            drop(queue);
            self.changed.notify_all();
        }
        self.change(|queue| queue.ended = true);
    }

    fn hand_to(&self, mut socket: TcpStream, shared: &Shared) {
        while let Some(chunk) = self.next() {
            // Before it can be answered, or too few would be counted.
            let known = if self.is_up { &shared.server } else { &shared.client };
            known.fetch_max(chunk.trips, Ordering::SeqCst);
            if self.is_up {
                shared.lock().carried += chunk.bytes.len() as u64;
                shared.changed.notify_all();
            }
            if socket.write_all(&chunk.bytes).is_err() {
                self.cut();
                return;
            }
        }
        let _ = socket.shutdown(Shutdown::Write);
    }

    /// What is to be handed on, once it is due.
    fn next(&self) -> Option<Chunk> {
        let mut queue = self.queue.lock().unwrap();
        loop {
            if queue.cut || (queue.ended && queue.chunks.is_empty()) {
                return None;
            }
            let due = queue.chunks.front().filter(|_| !queue.held).map(|chunk| chunk.due);
            let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
            queue = match wait {
                None => self.changed.wait(queue).unwrap(),
                Some(Duration::ZERO) => {
                    let chunk = queue.chunks.pop_front()?;
                    queue.bytes -= chunk.bytes.len();
                    drop(queue);
                    self.changed.notify_all();
                    return Some(chunk);
                }
                Some(wait) => self.changed.wait_timeout(queue, wait).unwrap().0,
            };
        }
    }
}

impl Queue {
    fn put(&mut self, bytes: Vec<u8>, trips: u64, conditions: Conditions) {
        let sending = conditions.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(bytes.len() as f64 / rate as f64)
        });
        self.left = self.left.max(Instant::now()) + sending;
        self.bytes += bytes.len();
        self.chunks.push_back(Chunk { due: self.left + conditions.delay, bytes, trips });
    }
}
