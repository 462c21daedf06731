//! Connections that share a slow link, on virtual time: what each of them gets of it.

use core::time::Duration;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bytes::Bytes;
use proto::cipher::{Cipher, Forged, KEY_LEN, NONCE_LEN, OpenStream, SealStream, TAG_LEN};
use proto::hyperscsi::*;
use proto::scsi::status::Status;
use proto::time::Time;
use testing::Random;

use super::net::{self, DEVICE, PACKET, SERVER_PORT};

const CLIENT_PORT: u16 = 1111;

/// Bytes of each command.
const SIZE: usize = 64 * 1024;

/// Commands at a time.
const DEPTH: usize = 48;

/// No cipher: what is measured takes far less time without.
#[derive(Debug)]
struct Plain;

impl Cipher for Plain {
    fn seal_parts(&self, _: &[u8; NONCE_LEN], _: &[u8], parts: [&[u8]; 2], out: &mut Vec<u8>) {
        parts.iter().for_each(|part| out.extend_from_slice(part));
        out.extend_from_slice(&[0; TAG_LEN]);
    }

    fn tag(&self, _: &[u8; NONCE_LEN], _: &[u8]) -> [u8; TAG_LEN] {
        [0; TAG_LEN]
    }

    fn open(
        &self,
        _: &[u8; NONCE_LEN],
        _: &[u8],
        _: &mut [u8],
        _: &[u8; TAG_LEN],
    ) -> Result<(), Forged> {
        Ok(())
    }

    fn seal_stream(&self, _: &[u8; NONCE_LEN]) -> Box<dyn SealStream> {
        unreachable!("packets are no streams")
    }

    fn open_stream(&self, _: &[u8; NONCE_LEN]) -> Box<dyn OpenStream> {
        unreachable!("packets are no streams")
    }
}

fn plain(_: &[u8; KEY_LEN]) -> Box<dyn Cipher> {
    Box::new(Plain)
}

/// What the link is like in each direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// Bytes per second.
    pub(super) rate: u64,
    pub(super) delay: Duration,
    /// Bytes that wait at most.
    pub(super) queue: u64,
    pub(super) losses_per_million: u64,
    pub(super) ecn: Marks,
    /// By how much packets arrive later at most, so that others overtake them.
    pub(super) jitter: Duration,
}

/// What it does about ECN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marks {
    /// Nothing.
    None,
    /// Marks what has ECT behind as many bytes that wait.
    Behind(u64),
    /// Clears it.
    Bleached,
    /// Makes ECT(1) of ECT(0).
    Exchanged,
    /// Marks all of it.
    All,
    /// Drops it.
    Dropped,
}

impl Marks {
    /// What a packet with this codepoint has behind as many bytes; nothing, if it does not arrive.
    fn apply(self, ecn: Ecn, waiting: u64) -> Option<Ecn> {
        Some(match self {
            _ if ecn == Ecn::NotEct => ecn,
            Self::Behind(bytes) if waiting > bytes => Ecn::Ce,
            Self::None | Self::Behind(_) => ecn,
            Self::Bleached => Ecn::NotEct,
            Self::Exchanged => Ecn::Ect1,
            Self::All => Ecn::Ce,
            Self::Dropped => return None,
        })
    }
}

/// A link of 50 Mbit/s, 8 ms long, whose queue holds what a round trip takes.
pub(super) const LINK: Link = Link {
    rate: 6_250_000,
    delay: Duration::from_millis(8),
    queue: 100_000,
    losses_per_million: 0,
    ecn: Marks::None,
    jitter: Duration::ZERO,
};

/// What a client does all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    Reads,
    Writes,
}

/// A client and its server.
pub(super) struct Flow {
    pub(super) client: Client,
    server: Server,
    load: Load,
    begins: Time,
    submitted: usize,
    done: u64,
    is_connected: bool,
}

/// A packet that arrives: when, in which order, whether at the server, of which flow.
type Flying = Reverse<(Time, u64, bool, usize, Ecn, Vec<u8>)>;

/// What has happened at the link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) sent: u64,
    /// The bytes that waited before each of them, in all.
    pub(super) waited: u64,
    pub(super) dropped: u64,
    pub(super) with_ect: u64,
    pub(super) marked: u64,
}

pub(super) struct Sim {
    now: Time,
    link: Link,
    random: Random,
    pub(super) flows: Vec<Flow>,
    flying: BinaryHeap<Flying>,
    sent: u64,
    /// Until when the link is busy, to clients and to servers.
    busy: [Time; 2],
    pub(super) counts: Counts,
    zeros: Bytes,
}

pub(super) fn config(who: u8, congestion: CongestionControl) -> Config {
    let config = net::config(who, net::SITE);
    let credit = 64 << 20;
    Config {
        ciphers: &[(Aead::Aes256Gcm, plain)],
        timing: Timing::IP,
        congestion,
        credit,
        ecn: true,
        ..config
    }
}

impl Sim {
    pub(super) fn new(seed: u64, link: Link) -> Self {
        Self {
            now: Time::from_origin(Duration::from_secs(1000)),
            link,
            random: Random::new(seed),
            flows: Vec::new(),
            flying: BinaryHeap::new(),
            sent: 0,
            busy: [Time::ZERO; 2],
            counts: Counts::default(),
            zeros: Bytes::from(vec![0; SIZE]),
        }
    }

    /// Another connection, which begins after as long.
    pub(super) fn add(&mut self, load: Load, congestion: CongestionControl, after: Duration) {
        let client = config(net::CLIENT, congestion);
        self.add_ends(load, (client, config(net::SERVER, congestion)), after);
    }

    /// The same of these ends.
    pub(super) fn add_ends(
        &mut self,
        load: Load,
        (client, server): (Config, Config),
        after: Duration,
    ) {
        let begins = self.now + after;
        let (seed, endpoint) = (self.flows.len() as u64, net::endpoint(SERVER_PORT));
        let remote = Remote { endpoint, pin: None };
        self.flows.push(Flow {
            client: Client::new(begins, client, remote, net::fill(2 * seed)),
            server: Server::new(begins, server, net::fill(2 * seed + 1)),
            load,
            begins,
            submitted: 0,
            done: 0,
            is_connected: false,
        });
    }

    fn send(&mut self, flow: usize, to_server: bool, packet: Transmit) {
        let Transmit { ecn, bytes, .. } = packet;
        let busy = &mut self.busy[usize::from(to_server)];
        let waits = busy.since_origin().saturating_sub(self.now.since_origin());
        let waiting = (waits.as_nanos() * u128::from(self.link.rate) / 1_000_000_000) as u64;
        self.counts.with_ect += u64::from(ecn != Ecn::NotEct);
        if waiting + bytes.len() as u64 > self.link.queue {
            self.counts.dropped += 1;
            return;
        }
        let takes = Duration::from_nanos(bytes.len() as u64 * 1_000_000_000 / self.link.rate);
        *busy = self.now.max(*busy) + takes;
        if self.random.below(1_000_000) < self.link.losses_per_million {
            return;
        }
        let Some(ecn) = self.link.ecn.apply(ecn, waiting) else { return };
        self.sent += 1;
        self.counts.sent += 1;
        self.counts.waited += waiting;
        self.counts.marked += u64::from(ecn == Ecn::Ce);
        let jitter = self.random.below(self.link.jitter.as_nanos() as u64 + 1);
        let at = *busy + self.link.delay + Duration::from_nanos(jitter);
        self.flying.push(Reverse((at, self.sent, to_server, flow, ecn, bytes.to_vec())));
    }

    fn exchange(&mut self, number: usize) {
        let (now, flow) = (self.now, &mut self.flows[number]);
        if now < flow.begins {
            return;
        }
        while let Some(event) = flow.client.poll_event() {
            match event {
                ClientEvent::Connected { .. } => flow.is_connected = true,
                ClientEvent::Completed(_, reply) => {
                    assert_eq!(reply.status, Status::Good);
                    flow.submitted -= 1;
                    flow.done += SIZE as u64;
                }
                other => panic!("{other:?}"),
            }
        }
        while flow.is_connected && flow.submitted < DEPTH {
            let command = match flow.load {
                Load::Reads => net::read(DEVICE, 0, SIZE),
                Load::Writes => {
                    Command { data_out: self.zeros.clone(), ..net::write(DEVICE, 0, Vec::new()) }
                }
            };
            flow.client.submit(now, command).expect("there are more slots");
            flow.submitted += 1;
        }
        while let Some(event) = flow.server.poll_event() {
            match event {
                ServerEvent::Proven { connection, .. } => {
                    flow.server.accept(now, connection, net::devices());
                }
                ServerEvent::Command { connection, request, command } => {
                    let data_in = self.zeros.slice(..command.data_in_len as usize);
                    let reply = Reply { data_in, ..Reply::status(Status::Good) };
                    flow.server.complete(now, connection, request, reply);
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some(packet) = self.flows[number].client.poll_transmit(now) {
            self.send(number, true, packet);
        }
        while let Some(packet) = self.flows[number].server.poll_transmit(now) {
            self.send(number, false, packet);
        }
    }

    /// Lets as much time pass; the bytes that each flow has moved in it.
    pub(super) fn run(&mut self, time: Duration) -> Vec<u64> {
        let until = self.now + time;
        let before: Vec<u64> = self.flows.iter().map(|flow| flow.done).collect();
        let mut changed: Vec<usize> = (0..self.flows.len()).collect();
        loop {
            for flow in changed.drain(..) {
                self.exchange(flow);
            }
            let timer = |flow: &Flow| {
                if self.now < flow.begins {
                    return flow.begins;
                }
                let timers = [flow.client.next_deadline(), flow.server.next_deadline()];
                timers.into_iter().flatten().min().unwrap_or(until)
            };
            let timers = self.flows.iter().map(timer).min().unwrap_or(until);
            let arrival = self.flying.peek().map_or(until, |Reverse((at, ..))| *at);
            let next = timers.min(arrival);
            if next >= until {
                self.now = until;
                break;
            }
            self.now = self.now.max(next);
            if arrival <= self.now {
                let Some(Reverse((_, _, to_server, flow, ecn, mut bytes))) = self.flying.pop()
                else {
                    break;
                };
                let (now, at) = (self.now, &mut self.flows[flow]);
                if to_server {
                    at.server.handle_packet(now, net::endpoint(CLIENT_PORT), ecn, &mut bytes);
                } else {
                    at.client.handle_packet(now, net::endpoint(SERVER_PORT), ecn, &mut bytes);
                }
                changed.push(flow);
            } else {
                for (number, flow) in self.flows.iter_mut().enumerate() {
                    if flow.begins <= self.now {
                        flow.client.handle_timeout(self.now);
                        flow.server.handle_timeout(self.now);
                        changed.push(number);
                    }
                }
            }
        }
        self.flows.iter().zip(before).map(|(flow, before)| flow.done - before).collect()
    }

    /// The shares of what the link carries that each flow has in as long, in per cent.
    pub(super) fn shares(&mut self, time: Duration) -> Vec<f64> {
        let payload = f64::from(PACKET - 40 - 28) / f64::from(PACKET);
        let all = self.link.rate as f64 * time.as_secs_f64() * payload;
        self.run(time).into_iter().map(|bytes| 100.0 * bytes as f64 / all).collect()
    }
}

/// The share that one connection has of a link that loses some packets, once it has found its rate: the mean of some runs, as
/// which packets are lost is chance.
fn share_with_losses(load: Load, losses_per_million: u64) -> f64 {
    const RUNS: u64 = 3;
    let run = |seed| {
        let mut sim = Sim::new(seed, Link { losses_per_million, ..LINK });
        sim.add(load, CongestionControl::ByRtt, Duration::ZERO);
        sim.run(Duration::from_secs(2));
        sim.shares(Duration::from_secs(6))[0]
    };
    (1..=RUNS).map(run).sum::<f64>() / RUNS as f64
}

/// CUBIC, which takes each loss for congestion, has some 60 and 18 per cent there.
#[test]
fn losses_by_chance_cost_little() {
    for load in [Load::Reads, Load::Writes] {
        for (losses_per_million, least) in [(1000, 90.0), (10_000, 60.0)] {
            let share = share_with_losses(load, losses_per_million);
            assert!(share >= least, "{load:?} {losses_per_million}: {share}");
        }
    }
}

#[test]
fn cubic_beside_it_keeps_its_share() {
    use CongestionControl::{ByRtt, Cubic};
    let mut sim = Sim::new(1, LINK);
    sim.add(Load::Writes, ByRtt, Duration::ZERO);
    sim.add(Load::Writes, Cubic, Duration::from_secs(1));
    sim.run(Duration::from_secs(10));
    let shares = sim.shares(Duration::from_secs(20));
    assert!(shares.iter().all(|share| *share >= 35.0), "{shares:?}");
}

/// The answers of many servers arrive by one link.
#[test]
fn sixteen_servers_of_one_client_fill_its_link() {
    let mut sim = Sim::new(1, Link { queue: LINK.queue / 4, ..LINK });
    (0..16).for_each(|_| sim.add(Load::Reads, CongestionControl::ByRtt, Duration::ZERO));
    sim.run(Duration::from_secs(2));
    let shares = sim.shares(Duration::from_secs(3));
    assert!(shares.iter().sum::<f64>() >= 95.0, "{shares:?}");
    assert!(shares.iter().all(|share| *share > 0.5), "{shares:?}");
}
