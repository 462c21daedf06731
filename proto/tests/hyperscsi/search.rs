//! A client that looks for its server on an Ethernet link with several (spec, 6.1).

use core::time::Duration;

use proto::hyperscsi::*;
use proto::time::Time;

use super::net::*;

fn station(number: u8) -> Endpoint {
    Endpoint { link: LinkId(0), address: Address::Ethernet([2, 0, 0, 0, 0, number]) }
}

const CLIENT_STATION: u8 = 9;
const EVERYBODY: Endpoint = Endpoint { link: LinkId(0), address: Address::BROADCAST };

/// A link with servers, whose stations are numbered from 0, and a client. Packets arrive at once.
struct Segment {
    now: Time,
    servers: Vec<Server>,
    /// Whether each accepts the client.
    accepts: Vec<bool>,
    client: Client,
    /// Where the client's packets went.
    sent_to: Vec<Endpoint>,
    connected: bool,
    ended: Option<Ended>,
}

impl Segment {
    fn new(keys: &[u8], pin: Option<u8>) -> Self {
        let now = Time::from_origin(Duration::from_secs(1000));
        let server = |(seed, key): (u64, &u8)| Server::new(now, config(*key, SITE), fill(seed));
        let pin = pin.map(|key| identity(key).public());
        let remote = Remote { endpoint: EVERYBODY, pin };
        Self {
            now,
            servers: (0..).zip(keys).map(server).collect(),
            accepts: vec![true; keys.len()],
            client: Client::new(now, config(CLIENT, SITE), remote, fill(99)),
            sent_to: Vec::new(),
            connected: false,
            ended: None,
        }
    }

    /// One exchange, then the next deadline.
    fn step(&mut self) {
        while let Some(Transmit { to, bytes, .. }) = self.client.poll_transmit(self.now) {
            self.sent_to.push(to);
            for (number, server) in (0..).zip(&mut self.servers) {
                if to == EVERYBODY || to == station(number) {
                    server.handle_packet(
                        self.now,
                        station(CLIENT_STATION),
                        Ecn::NotEct,
                        &mut bytes.to_vec(),
                    );
                }
            }
        }
        for (number, server) in (0..).zip(&mut self.servers) {
            while let Some(event) = server.poll_event() {
                let ServerEvent::Proven { connection, .. } = event else { continue };
                if self.accepts[usize::from(number)] {
                    server.accept(self.now, connection, devices());
                } else {
                    server.refuse(self.now, connection);
                }
            }
            while let Some(Transmit { bytes, .. }) = server.poll_transmit(self.now) {
                self.client.handle_packet(
                    self.now,
                    station(number),
                    Ecn::NotEct,
                    &mut bytes.to_vec(),
                );
            }
        }
        while let Some(event) = self.client.poll_event() {
            match event {
                ClientEvent::Connected { .. } => self.connected = true,
                ClientEvent::Ended { reason, .. } => self.ended = Some(reason),
                _ => {}
            }
        }
        self.now = self.now + Duration::from_millis(1);
        self.client.handle_timeout(self.now);
        self.servers.iter_mut().for_each(|server| server.handle_timeout(self.now));
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until && !self.connected && self.ended.is_none() {
            self.step();
        }
    }
}

#[test]
fn only_the_probe_goes_to_everybody() {
    let mut segment = Segment::new(&[SERVER], None);
    segment.run(Duration::from_secs(5));
    assert!(segment.connected);
    for _ in 0..10 {
        segment.step();
    }
    let (probes, rest): (Vec<Endpoint>, Vec<Endpoint>) =
        segment.sent_to.iter().copied().partition(|to| *to == EVERYBODY);
    assert!(probes.len() == 1 && !rest.is_empty(), "{:?}", segment.sent_to);
    assert!(rest.iter().all(|to| *to == station(0)));
}

#[test]
fn server_with_another_key_than_the_pinned_one_is_passed_over() {
    let mut segment = Segment::new(&[50, 51, SERVER], Some(SERVER));
    segment.run(Duration::from_secs(5));
    assert!(segment.connected && segment.ended.is_none());
    assert_eq!(segment.sent_to.last(), Some(&station(2)));
}

#[test]
fn server_that_does_not_accept_the_client_is_passed_over() {
    let mut segment = Segment::new(&[50, SERVER], None);
    segment.accepts[0] = false;
    segment.run(Duration::from_secs(5));
    assert!(segment.connected && segment.ended.is_none());
    assert_eq!(segment.sent_to.last(), Some(&station(1)));
}

#[test]
fn search_without_the_pinned_server_ends_in_time() {
    let mut segment = Segment::new(&[50, 51], Some(SERVER));
    segment.run(Duration::from_secs(20));
    assert_eq!(segment.ended, Some(Ended::WrongServer));
}

/// Spec, 6.1: on IP only those are asked that are known, so that a PROBE is answered to nobody.
#[test]
fn probe_by_ip_is_not_answered() {
    let mut segment = Segment::new(&[SERVER], None);
    let probe = segment.client.poll_transmit(segment.now).unwrap().bytes;
    let server = &mut segment.servers[0];
    for (from, answers) in [(endpoint(1111), false), (station(7), true)] {
        server.handle_packet(segment.now, from, Ecn::NotEct, &mut probe.to_vec());
        assert_eq!(server.poll_transmit(segment.now).is_some(), answers, "{from:?}");
    }
}
