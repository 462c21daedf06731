//! A client and a server with a disk, over a network that loses, repeats, delays and changes packets, on virtual time.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use core::net::SocketAddr;
use core::time::Duration;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use bytes::Bytes;
use proto::hyperscsi::*;
use proto::identity::Identity;
use proto::scsi::status::Status;
use proto::time::Time;
use testing::Random;

use proto::cipher::*;

#[path = "../../src/iscsi/sealed/soft.rs"]
mod soft;

pub const BLOCK: usize = 512;
pub const DEVICE: Handle = Handle(0);
pub const READABLE: Handle = Handle(1);

/// What the network does; chances are per thousand packets.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub delay: Duration,
    pub jitter: Duration,
    pub losses: u64,
    pub repeats: u64,
    pub changes: u64,
    /// Bytes per second in each direction; 0 for no limit.
    pub rate: u64,
}

pub const CALM: Weather = Weather {
    delay: Duration::from_micros(50),
    jitter: Duration::ZERO,
    losses: 0,
    repeats: 0,
    changes: 0,
    rate: 0,
};

/// How long a packet waits at most before a way of limited rate drops it.
const QUEUE: Duration = Duration::from_millis(5);

/// Another way between both ends than the first one.
pub struct Way {
    pub client: Endpoint,
    pub server: Endpoint,
    pub weather: Weather,
    /// Nothing arrives at the client by it.
    pub is_deaf: bool,
}

/// A packet on its way: when it arrives, its number, where it goes, where it comes from, what it comes with, its
/// bytes.
type Flying = Reverse<(Time, u64, Endpoint, Endpoint, Ecn, Vec<u8>)>;

pub struct Net {
    pub now: Time,
    pub client: Client,
    pub server: Server,
    pub weather: Weather,
    pub random: Random,
    flying: BinaryHeap<Flying>,
    sent: u64,
    /// Until when each address is busy with what was sent to it.
    busy: BTreeMap<Endpoint, Time>,
    /// The ways beside the first one.
    pub ways: Vec<Way>,
    /// All packets, with their destination.
    pub wiretap: Vec<(Endpoint, Vec<u8>)>,
    pub client_at: Endpoint,
    pub events: Vec<ClientEvent>,
    pub ended: Vec<Ended>,
    /// Of each change of devices whether the client has taken it.
    pub changes: Vec<ChangeStep>,
    pub disk: Vec<u8>,
    /// How often the counter was incremented.
    pub counter: u64,
    pub executed: u64,
    /// Whether somebody is accepted.
    pub accepts: bool,
    /// What it may use then.
    pub devices: Vec<Device>,
    pub connection: Option<ConnectionId>,
    pub held: Vec<(ConnectionId, Request)>,
    /// Why it is refused, and told so.
    pub refusal: Option<Ended>,
    /// Whether it is decided about clients.
    pub decides: bool,
    /// What somebody on the path adds, once, to the data at the end of the next packet of a command to the client.
    pub changes_data: Option<[u8; 5]>,
    /// Longer packets do not arrive.
    pub mtu: usize,
    /// Packets with this fifth byte do not arrive.
    pub swallows: Option<u8>,
    /// Nothing arrives at the client.
    pub deaf: bool,
    /// What packets with ECT come with: one of these, by chance.
    pub codepoints: &'static [Ecn],
    /// An abort is answered before the command that it ends.
    pub answers_aborts_first: bool,
}

pub fn endpoint(port: u16) -> Endpoint {
    let address = Address::Ip(SocketAddr::from(([10, 0, 0, 1], port)));
    Endpoint { link: LinkId(0), address }
}

pub const SERVER_PORT: u16 = PORT;

/// The longest packet, unless a test says otherwise: none is looked for then.
pub const PACKET: u16 = 1452;

pub fn identity(byte: u8) -> Identity {
    Identity::fresh(&mut |buffer| buffer.fill(byte))
}

pub const AES: Ciphers = &[(Aead::Aes256Gcm, soft::new_aes_256_gcm)];
pub const CHACHA: Ciphers = &[(Aead::ChaCha20Poly1305, soft::new_chacha20_poly1305)];
pub const AES_FIRST: Ciphers = &[AES[0], CHACHA[0]];
pub const CHACHA_FIRST: Ciphers = &[CHACHA[0], AES[0]];

pub fn config(who: u8, site: u8) -> Config {
    let site = SiteKey::from_bytes([site; SITE_KEY_LEN]);
    let config = Config::ip(identity(who), site, AES);
    Config {
        timing: Timing::ETHERNET,
        packet_max: PACKET,
        packet_first: PACKET,
        least: Level::Integrity,
        ecn: false,
        ..config
    }
}

pub fn fill(seed: u64) -> Fill {
    let mut random = Random::new(seed);
    Box::new(move |buffer| buffer.iter_mut().for_each(|byte| *byte = random.word() as u8))
}

pub fn devices() -> Vec<Device> {
    let device =
        |handle, name: &str, level| Device { handle, name: name.into(), level, read_only: false };
    vec![device(DEVICE, "disk", Level::Encrypt), device(READABLE, "open", Level::Integrity)]
}

pub const CLIENT: u8 = 1;
pub const SERVER: u8 = 2;
pub const SITE: u8 = 9;

impl Net {
    pub fn new(seed: u64, weather: Weather) -> Self {
        Self::with(seed, weather, config(CLIENT, SITE), config(SERVER, SITE))
    }

    pub fn with(seed: u64, weather: Weather, client: Config, server: Config) -> Self {
        let now = Time::from_origin(Duration::from_secs(1000));
        let remote = Remote { endpoint: endpoint(SERVER_PORT), pin: None };
        Self {
            now,
            client: Client::new(now, client, remote, fill(seed ^ 0xc11e)),
            server: Server::new(now, server, fill(seed ^ 0x5e4e)),
            weather,
            random: Random::new(seed),
            flying: BinaryHeap::new(),
            sent: 0,
            busy: BTreeMap::new(),
            ways: Vec::new(),
            wiretap: Vec::new(),
            client_at: endpoint(1111),
            events: Vec::new(),
            ended: Vec::new(),
            changes: Vec::new(),
            disk: vec![0; 4096 * BLOCK],
            counter: 0,
            executed: 0,
            accepts: true,
            devices: devices(),
            connection: None,
            held: Vec::new(),
            refusal: None,
            decides: true,
            changes_data: None,
            mtu: usize::MAX,
            swallows: None,
            deaf: false,
            codepoints: &[],
            answers_aborts_first: false,
        }
    }

    /// Adds a way, and opens a path by it.
    pub fn add_way(&mut self, weather: Weather) {
        let number = self.ways.len() as u16 + 1;
        let (client, server) = (endpoint(1111 + number), endpoint(SERVER_PORT + number));
        self.ways.push(Way { client, server, weather, is_deaf: false });
        assert!(self.client.add_path(self.now, server), "there may be another path");
    }

    fn way(&self, one_end: Endpoint) -> Option<&Way> {
        self.ways.iter().find(|way| way.client == one_end || way.server == one_end)
    }

    /// The other end of the way to this one.
    fn other_end(&self, to: Endpoint) -> Endpoint {
        match self.way(to) {
            Some(way) if way.server == to => way.client,
            Some(way) => way.server,
            None if to == endpoint(SERVER_PORT) => self.client_at,
            None => endpoint(SERVER_PORT),
        }
    }

    /// When a packet that is sent now arrives there; never, if there is no room for it.
    fn arrival(&mut self, weather: Weather, to: Endpoint, len: usize) -> Option<Time> {
        let mut left = self.now;
        if let Some(takes) = (len as u64 * 1_000_000_000).checked_div(weather.rate) {
            let busy = self.busy.entry(to).or_insert(self.now);
            if *busy > self.now + QUEUE {
                return None;
            }
            *busy = self.now.max(*busy) + Duration::from_nanos(takes);
            left = *busy;
        }
        let jitter = self.random.below(weather.jitter.as_nanos() as u64 + 1);
        Some(left + weather.delay + Duration::from_nanos(jitter))
    }

    pub fn send(&mut self, from: Endpoint, to: Endpoint, bytes: &[u8]) {
        self.send_with(Ecn::NotEct, (from, to), bytes);
    }

    fn send_with(&mut self, mut ecn: Ecn, (from, to): (Endpoint, Endpoint), bytes: &[u8]) {
        if ecn != Ecn::NotEct && !self.codepoints.is_empty() {
            ecn = self.codepoints[self.random.below(self.codepoints.len() as u64) as usize];
        }
        self.wiretap.push((to, bytes.to_vec()));
        let weather = self.way(to).map_or(self.weather, |way| way.weather);
        let is_swallowed = bytes.get(4).copied() == self.swallows && self.swallows.is_some();
        if self.random.below(1000) < weather.losses || bytes.len() > self.mtu || is_swallowed {
            return;
        }
        let mut bytes = bytes.to_vec();
        if bytes[4] == 0x81
            && let Some(change) = self.changes_data.take()
        {
            let at = bytes.len() - 16 - change.len();
            bytes[at..].iter_mut().zip(change).for_each(|(byte, added)| *byte ^= added);
        }
        let copies = 1 + u64::from(self.random.below(1000) < weather.repeats);
        for _ in 0..copies {
            let mut bytes = bytes.clone();
            if self.random.below(1000) < weather.changes {
                let at = self.random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.random.below(8);
            }
            let Some(at) = self.arrival(weather, to, bytes.len()) else { continue };
            self.sent += 1;
            self.flying.push(Reverse((at, self.sent, to, from, ecn, bytes)));
        }
    }

    /// Moves what both ends have to say.
    fn exchange(&mut self) {
        while let Some(Transmit { to, ecn, bytes }) = self.client.poll_transmit(self.now) {
            self.send_with(ecn, (self.other_end(to), to), &bytes);
        }
        self.events.extend(core::iter::from_fn(|| self.client.poll_event()));
        while let Some(event) = self.server.poll_event() {
            self.serve(event);
        }
        while let Some(Transmit { to, ecn, bytes }) = self.server.poll_transmit(self.now) {
            self.send_with(ecn, (self.other_end(to), to), &bytes);
        }
    }

    fn serve(&mut self, event: ServerEvent) {
        match event {
            ServerEvent::Proven { connection, client, .. } => {
                assert_eq!(client, identity(CLIENT).public());
                self.connection = Some(connection);
                if !self.decides {
                    // Nobody says anything.
                } else if let Some(why) = self.refusal {
                    self.server.close(connection, why);
                } else if self.accepts {
                    self.server.accept(self.now, connection, self.devices.clone());
                } else {
                    self.server.refuse(self.now, connection);
                }
            }
            ServerEvent::Command { connection, request, command } => {
                self.executed += 1;
                match self.execute(&command) {
                    Some(reply) => self.server.complete(self.now, connection, request, reply),
                    None => self.held.push((connection, request)),
                }
            }
            ServerEvent::Manage { connection, request, body } => {
                // Nothing is the answer to what has type 0.
                let is_empty = body.starts_with(&[0, 0]);
                let echo = body.iter().rev().copied().take_while(|_| !is_empty);
                let echo = echo.collect::<Vec<u8>>().into();
                self.server.managed(self.now, connection, request, echo);
            }
            ServerEvent::TaskManagement { connection, request, function, .. } => {
                let TaskFunction::AbortTask(task) = function else { panic!("{function:?}") };
                let at = self.held.iter().position(|one| *one == (connection, task));
                if at.is_some() && self.answers_aborts_first {
                    self.server.task_managed(self.now, connection, request, TaskResponse::Complete);
                    while let Some(Transmit { to, bytes, .. }) = self.server.poll_transmit(self.now)
                    {
                        self.send(endpoint(SERVER_PORT), to, &bytes);
                    }
                }
                let response = match at {
                    Some(at) => {
                        self.held.remove(at);
                        let reply = Reply::status(Status::TaskAborted);
                        self.server.complete(self.now, connection, task, reply);
                        TaskResponse::Complete
                    }
                    None => TaskResponse::NoSuchTask,
                };
                self.server.task_managed(self.now, connection, request, response);
            }
            ServerEvent::Changed { step, .. } => self.changes.push(step),
            ServerEvent::Ended { reason, .. } => self.ended.push(reason),
        }
    }

    /// WRITE, READ, and commands of our own: an increment that says what it has come to, and one that waits.
    fn execute(&mut self, command: &Command) -> Option<Reply> {
        let at = command.cdb[1] as usize * 256 + command.cdb[2] as usize;
        let mut reply = Reply::status(Status::Good);
        match command.cdb[0] {
            0x0a => {
                let to = at * BLOCK..at * BLOCK + command.data_out.len();
                self.disk[to].copy_from_slice(&command.data_out);
            }
            0x08 => {
                let from = at * BLOCK..at * BLOCK + command.data_in_len as usize;
                reply.data_in = Bytes::copy_from_slice(&self.disk[from]);
            }
            0xc0 => {
                self.counter += 1;
                reply.data_in = Bytes::copy_from_slice(&self.counter.to_be_bytes());
            }
            0xc1 => return None,
            other => panic!("command {other:#x}"),
        }
        Some(reply)
    }

    /// The next thing happens. False if it would be after `until`.
    pub fn step(&mut self, until: Time) -> bool {
        self.exchange();
        let arrival = self.flying.peek().map(|Reverse((at, ..))| *at);
        let timers = [arrival, self.client.next_deadline(), self.server.next_deadline()];
        let Some(next) = timers.into_iter().flatten().min().filter(|at| *at <= until) else {
            self.now = until;
            return false;
        };
        self.now = self.now.max(next);
        if arrival.is_some_and(|at| at <= self.now) {
            let Some(Reverse((_, _, to, from, ecn, mut bytes))) = self.flying.pop() else {
                panic!()
            };
            let way = self.way(to);
            if to == endpoint(SERVER_PORT) || way.is_some_and(|way| way.server == to) {
                self.server.handle_packet(self.now, from, ecn, &mut bytes);
            } else if way.map_or(to == self.client_at, |way| !way.is_deaf) && !self.deaf {
                self.client.handle_packet(self.now, from, ecn, &mut bytes);
            }
        } else {
            self.client.handle_timeout(self.now);
            self.server.handle_timeout(self.now);
        }
        true
    }

    /// Lets as much time pass.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
    }

    /// Waits until `is_done` finds something in the events.
    pub fn wait<T>(&mut self, is_done: impl Fn(&mut Vec<ClientEvent>) -> Option<T>) -> T {
        let until = self.now + Duration::from_secs(600);
        loop {
            self.exchange();
            if let Some(found) = is_done(&mut self.events) {
                return found;
            }
            assert!(self.step(until), "nothing happens: {:?} {:?}", self.events, self.client);
        }
    }

    pub fn connect(&mut self) {
        self.wait(|events| {
            let at = events.iter().position(|event| matches!(event, ClientEvent::Connected { .. }));
            at.map(|at| events.remove(at))
        });
    }

    pub fn reply(&mut self, id: RequestId) -> Reply {
        self.wait(|events| {
            let is_it =
                |event: &ClientEvent| matches!(event, ClientEvent::Completed(of, _) if *of == id);
            let at = events.iter().position(is_it)?;
            let ClientEvent::Completed(_, reply) = events.remove(at) else { panic!() };
            Some(reply)
        })
    }

    pub fn submit(&mut self, command: Command) -> RequestId {
        self.client.submit(self.now, command).expect("it is taken")
    }

    /// No pair of key and nonce is used twice: here, no number of a path and a direction.
    pub fn assert_numbers_are_unique(&self) {
        let mut seen = BTreeSet::new();
        for (_, bytes) in &self.wiretap {
            if !matches!(bytes[0] >> 6, 1 | 2) {
                continue;
            }
            let number = u64::from_be_bytes(bytes[16..24].try_into().unwrap());
            let cid = u32::from_be_bytes(bytes[8..12].try_into().unwrap());
            let (from_server, path) = (bytes[4] >> 7, bytes[12]);
            assert!(seen.insert((from_server, cid, path, number)), "number {number} twice");
        }
    }
}

fn command(device: Handle, opcode: u8, block: u16) -> Command {
    let [high, low] = block.to_be_bytes();
    Command {
        device,
        cdb: Bytes::copy_from_slice(&[opcode, high, low, 0, 0, 0]),
        data_out: Bytes::new(),
        data_in_len: 0,
        attribute: TaskAttribute::Simple,
        priority: 0,
    }
}

pub fn write(device: Handle, block: u16, data: Vec<u8>) -> Command {
    Command { data_out: data.into(), ..command(device, 0x0a, block) }
}

pub fn read(device: Handle, block: u16, len: usize) -> Command {
    Command { data_in_len: len as u32, ..command(device, 0x08, block) }
}

pub fn increment() -> Command {
    Command { data_in_len: 8, ..command(DEVICE, 0xc0, 0) }
}

pub fn hold() -> Command {
    command(DEVICE, 0xc1, 0)
}
