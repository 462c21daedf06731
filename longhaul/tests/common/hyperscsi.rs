//! A bare HyperSCSI client: it sends what a test wants, and takes what it wants.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longhaul::ciphers::AES_FIRST;
use proto::hyperscsi::{
    Address, Client, ClientEvent, Command, Config, Device, Ecn, Ended, Endpoint, Handle, LinkId,
    Remote, Reply, RequestId, SITE_KEY_LEN, SiteKey, TaskAttribute, TaskFunction, TaskResponse,
};
use proto::identity::Identity;
use proto::time::Time;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::common::PATIENCE;

/// The key of the site of all tests.
pub(crate) fn site_key() -> SiteKey {
    SiteKey::from_bytes([7; SITE_KEY_LEN])
}

const HCBE_REPLY: u8 = 0x81;

pub(crate) struct Raw {
    socket: UdpSocket,
    server: SocketAddr,
    machine: Client,
    origin: Instant,
    /// It takes no answers of commands.
    pub(crate) is_deaf: bool,
    pub(crate) devices: Vec<Device>,
    pub(crate) replies: BTreeMap<RequestId, Reply>,
    pub(crate) managed: BTreeMap<RequestId, TaskResponse>,
    pub(crate) ended: Option<Ended>,
}

impl Raw {
    /// A client with this identity and initiator port, which begins to connect.
    pub(crate) async fn start(server: SocketAddr, identity: &Identity, port: u64) -> Self {
        let config = Config::ip(identity.clone(), site_key(), AES_FIRST);
        Self::with(server, Config { port, data_max: 32 << 20, credit: 1 << 30, ..config }).await
    }

    pub(crate) async fn with(server: SocketAddr, config: Config) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let endpoint = Endpoint { link: LinkId::default(), address: Address::Ip(server) };
        let remote = Remote { endpoint, pin: None };
        let random = Box::new(|buffer: &mut [u8]| getrandom::fill(buffer).unwrap());
        Self {
            socket,
            server,
            machine: Client::new(Time::ZERO, config, remote, random),
            origin: Instant::now(),
            is_deaf: false,
            devices: Vec::new(),
            replies: BTreeMap::new(),
            managed: BTreeMap::new(),
            ended: None,
        }
    }

    /// One that is connected.
    pub(crate) async fn connect(server: SocketAddr, identity: &Identity, port: u64) -> Self {
        let mut raw = Self::start(server, identity, port).await;
        raw.until(|raw| !raw.devices.is_empty() || raw.ended.is_some()).await;
        assert_eq!(raw.ended, None, "it is connected");
        raw
    }

    fn now(&self) -> Time {
        Time::from_origin(self.origin.elapsed())
    }

    /// Moves packets until something is so.
    pub(crate) async fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        let last = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < last, "it never is: {:?}", self.ended);
            self.step().await;
        }
    }

    /// Moves packets for as long.
    pub(crate) async fn until_then(&mut self, then: impl Future<Output = ()>) {
        let mut then = std::pin::pin!(then);
        loop {
            tokio::select! {
                () = &mut then => return,
                () = self.step() => {}
            }
        }
    }

    /// Sends what there is to be sent, then waits for a packet or a deadline.
    pub(crate) async fn step(&mut self) {
        let now = self.now();
        self.machine.handle_timeout(now);
        while let Some(transmit) = self.machine.poll_transmit(now) {
            self.socket.send_to(&transmit.bytes, self.server).await.unwrap();
        }
        while let Some(event) = self.machine.poll_event() {
            match event {
                ClientEvent::Connected { devices, .. } | ClientEvent::Changed { devices } => {
                    self.devices = devices;
                }
                ClientEvent::Completed(id, reply) => drop(self.replies.insert(id, reply)),
                ClientEvent::TaskManaged(id, response) => drop(self.managed.insert(id, response)),
                ClientEvent::Managed(..) => {}
                ClientEvent::Ended { reason, .. } => self.ended = Some(reason),
            }
        }
        let due = self.machine.next_deadline().map_or(Duration::MAX, |at| at - self.now());
        let mut buffer = [0; 65536];
        let wait = due.clamp(Duration::from_micros(50), Duration::from_millis(20));
        if let Ok(received) = timeout(wait, self.socket.recv_from(&mut buffer)).await {
            // What a host without a listener answers is no packet.
            let Ok((len, from)) = received else { return };
            let from = Endpoint { link: LinkId::default(), address: Address::Ip(from) };
            if !(self.is_deaf && buffer[4] == HCBE_REPLY) {
                self.machine.handle_packet(self.now(), from, Ecn::NotEct, &mut buffer[..len]);
            }
        }
    }

    /// Submits a command for the device of this name.
    pub(crate) fn submit(&mut self, name: &str, cdb: &[u8], out: Vec<u8>, room: u32) -> RequestId {
        let command = Command {
            device: self.device(name),
            cdb: Bytes::copy_from_slice(cdb),
            data_out: out.into(),
            data_in_len: room,
            attribute: TaskAttribute::Simple,
            priority: 0,
        };
        let now = self.now();
        self.machine.submit(now, command).expect("it is taken")
    }

    pub(crate) fn device(&self, name: &str) -> Handle {
        let device = self.devices.iter().find(|device| *device.name == *name);
        device.unwrap_or_else(|| panic!("no {name} in {:?}", self.devices)).handle
    }

    /// Runs a command to its end; `None` if the connection ends before.
    pub(crate) async fn run(
        &mut self,
        name: &str,
        cdb: &[u8],
        out: Vec<u8>,
        room: u32,
    ) -> Option<Reply> {
        let id = self.submit(name, cdb, out, room);
        self.until(|raw| raw.replies.contains_key(&id) || raw.ended.is_some()).await;
        self.replies.remove(&id)
    }

    /// Runs a task management function to its end.
    pub(crate) async fn manage(&mut self, name: &str, function: TaskFunction) -> TaskResponse {
        let id = self.begin_to_manage(name, function);
        self.managed(id).await
    }

    /// Submits a task management function.
    pub(crate) fn begin_to_manage(&mut self, name: &str, function: TaskFunction) -> RequestId {
        let (device, now) = (self.device(name), self.now());
        self.machine.manage_tasks(now, device, function).unwrap()
    }

    /// The answer of one.
    pub(crate) async fn managed(&mut self, id: RequestId) -> TaskResponse {
        self.until(|raw| raw.managed.contains_key(&id) || raw.ended.is_some()).await;
        self.managed.remove(&id).expect("an answer")
    }

    /// Leaves, as clients do.
    pub(crate) async fn disconnect(mut self) {
        let now = self.now();
        self.machine.disconnect(now);
        while let Some(transmit) = self.machine.poll_transmit(now) {
            self.socket.send_to(&transmit.bytes, self.server).await.unwrap();
        }
    }
}

/// READ (10) of so many blocks.
pub(crate) fn read(lba: u32, blocks: u16) -> [u8; 10] {
    block_command(0x28, lba, blocks)
}

/// WRITE (10) of so many blocks.
pub(crate) fn write(lba: u32, blocks: u16) -> [u8; 10] {
    block_command(0x2A, lba, blocks)
}

fn block_command(opcode: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}
