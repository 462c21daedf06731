//! What comes before a connection: cookies, handshakes, discovery, reset (spec, 6 and 13).

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;

use super::super::address::{Address, Endpoint};
use super::super::codec::{COOKIE_LEN, Header, MAC_LEN, Opcode, Options, Sec, Start};
use super::super::config::{Config, Random};
use super::super::keys::{ResetKey, SiteKeys, hmac, truncated};
use super::super::noise::{Noise, Part};
use crate::reader::Reader;
use crate::time::Time;

/// Handshakes that wait for message 3.
const PENDING_MAX: usize = 64;

/// How long one waits.
const PENDING_TIME: Duration = Duration::from_secs(5);

/// STARTs with a valid cookie that are remembered, so that they are not taken twice.
const REMEMBERED: usize = 256;

/// How long the server makes cookies of one kind.
const PERIOD: Duration = Duration::from_secs(60);

/// A handshake that waits for message 3.
#[derive(Debug)]
struct Pending {
    ephemeral: Vec<u8>,
    server_cid: u32,
    client_cid: u32,
    from: Endpoint,
    noise: Noise,
    /// ADN_REQUEST, for a repeated START.
    answer: Bytes,
    until: Time,
}

/// A handshake that has ended well.
#[derive(Debug)]
pub(super) struct Proof {
    pub(super) server_cid: u32,
    pub(super) client_cid: u32,
    pub(super) from: Endpoint,
    pub(super) noise: Noise,
    /// What the client has announced.
    pub(super) options: Options,
}

/// What a server has before there is a connection.
#[derive(Debug)]
pub(super) struct Admission {
    site: SiteKeys,
    reset: ResetKey,
    cookie_key: [u8; 32],
    pending: VecDeque<Pending>,
    remembered: VecDeque<Vec<u8>>,
    name: Box<str>,
}

impl Admission {
    pub(super) fn new(config: &Config, random: &mut Random) -> Self {
        Self {
            site: SiteKeys::of(&config.site_key),
            reset: ResetKey::of(&config.identity, &config.place),
            cookie_key: random.array(),
            pending: VecDeque::new(),
            remembered: VecDeque::new(),
            name: "".into(),
        }
    }

    pub(super) fn set_name(&mut self, name: &str) {
        self.name = name.chars().take(63).collect::<String>().into();
    }

    /// What this server announces to the client with this number.
    pub(super) fn options(&self, config: &Config, server_cid: u32, client_cid: u32) -> Options {
        Options {
            credit: Some(config.credit),
            token: Some(self.reset.token(server_cid, client_cid)),
            ..Options::of(config)
        }
    }

    /// Answers a PROBE or a START; `fresh` is a connection id that is not in use.
    pub(super) fn discovery(
        &mut self,
        now: Time,
        from: Endpoint,
        body: &[u8],
        (config, random, fresh): (&Config, &mut Random, u32),
    ) -> Option<Bytes> {
        if let Some((&[1, 0, 0, 0], probe)) = body.split_first_chunk() {
            // An IP client asks only those that it was told of, so that a PROBE by IP is none.
            let is_ethernet = matches!(from.address, Address::Ethernet(_));
            return if is_ethernet { self.offer(probe) } else { None };
        }
        let start = Start::parse(body)?;
        if let Some(pending) = self.pending.iter().find(|one| one.ephemeral == start.ephemeral()) {
            // Another address would be told what was meant for the first one.
            return (pending.from == from).then(|| pending.answer.clone());
        }
        let identity = &config.identity;
        let mut noise =
            Noise::setup(Part::Responder, identity, &self.site.psk, start.cid, &mut random.0);
        noise.read(&start.noise).ok()?;
        let period = now.since_origin().as_secs() / PERIOD.as_secs();
        let is_valid = [period, period.wrapping_sub(1)].into_iter().any(|period| {
            bool::from(subtle::ConstantTimeEq::ct_eq(
                &self.cookie(period, &start, from)[..],
                &start.cookie[..],
            ))
        });
        if !is_valid {
            let cookie = self.cookie(period, &start, from);
            let mac = self.site.mac(&[b"C", start.ephemeral(), &cookie]);
            let header = Header::new(Opcode::Cookie, Sec::Handshake, true);
            let body = [&cookie[..], &mac].concat();
            return Some(Header { cid: start.cid, ..header }.with_body(&body).into());
        }
        self.begin(now, from, &start, noise, (config, fresh))
    }

    fn begin(
        &mut self,
        now: Time,
        from: Endpoint,
        start: &Start,
        mut noise: Noise,
        (config, server_cid): (&Config, u32),
    ) -> Option<Bytes> {
        let ephemeral = start.ephemeral().to_vec();
        if self.remembered.contains(&ephemeral) {
            return None;
        }
        self.remembered.push_back(ephemeral.clone());
        if self.remembered.len() > REMEMBERED {
            self.remembered.pop_front();
        }
        let mut payload = server_cid.to_be_bytes().to_vec();
        payload.extend_from_slice(&self.options(config, server_cid, start.cid).emit());
        let mut body = vec![1, 0, 0, 0];
        body.extend_from_slice(&noise.write(&payload));
        let header = Header::new(Opcode::AdnRequest, Sec::Handshake, true);
        let answer: Bytes = Header { cid: start.cid, ..header }.with_body(&body).into();
        if self.pending.len() >= PENDING_MAX {
            self.pending.pop_front();
        }
        let until = now + PENDING_TIME;
        let (client_cid, given) = (start.cid, answer.clone());
        self.pending.push_back(Pending {
            ephemeral,
            server_cid,
            client_cid,
            from,
            noise,
            answer,
            until,
        });
        Some(given)
    }

    /// Whether a handshake has this number.
    pub(super) fn has(&self, server_cid: u32) -> bool {
        self.pending.iter().any(|pending| pending.server_cid == server_cid)
    }

    /// Takes ADN_REPLY of set-up: the client's proof.
    pub(super) fn proof(&mut self, from: Endpoint, cid: u32, body: &[u8]) -> Option<Proof> {
        let at = self.pending.iter().position(|one| one.server_cid == cid && one.from == from)?;
        let (&[1, 0, 0, 0], message) = body.split_first_chunk()? else { return None };
        // Nothing has happened to the handshake if it is refused.
        let payload = self.pending[at].noise.read(message).ok()?;
        let Pending { server_cid, client_cid, noise, .. } = self.pending.remove(at)?;
        let options = Options::parse(&payload)?;
        Some(Proof { server_cid, client_cid, from, noise, options })
    }

    fn offer(&self, probe: &[u8]) -> Option<Bytes> {
        let (nonce, mac) = probe.split_at_checked(16)?;
        if !self.site.is_mac(&[b"P", nonce], mac) {
            return None;
        }
        let name = self.name.as_bytes();
        let mac = self.site.mac(&[b"O", nonce, name]);
        let body = [nonce, &mac, &[name.len() as u8], name].concat();
        Some(Header::new(Opcode::Offer, Sec::Handshake, true).with_body(&body).into())
    }

    /// Answers a client that asks whether its connection is still known.
    pub(super) fn reset(&self, body: &[u8], is_known: impl Fn(u32) -> bool) -> Option<Bytes> {
        let (asked, mac) = body.split_at_checked(body.len().checked_sub(MAC_LEN)?)?;
        let mut reader = Reader::new(asked);
        let (server, client) = (reader.u32().ok()?, reader.u32().ok()?);
        if reader.rest().len() != 16 || !self.site.is_mac(&[b"R", asked], mac) || is_known(server) {
            return None;
        }
        let token = self.reset.token(server, client);
        let header = Header::new(Opcode::Reset, Sec::Handshake, true);
        Some(Header { cid: client, ..header }.with_body(&token).into())
    }

    fn cookie(&self, period: u64, start: &Start, from: Endpoint) -> [u8; COOKIE_LEN] {
        let period = (period as u32).to_be_bytes();
        let address = [&from.link.0.to_be_bytes()[..], &from.address.to_bytes()].concat();
        let hash = hmac(
            &self.cookie_key,
            &[&period, &start.cid.to_be_bytes(), start.ephemeral(), &address],
        );
        let mut cookie = [0; COOKIE_LEN];
        cookie[..4].copy_from_slice(&period);
        cookie[4..].copy_from_slice(&truncated(hash));
        cookie
    }

    /// Forgets handshakes that nobody has finished.
    pub(super) fn expire(&mut self, now: Time) {
        self.pending.retain(|pending| now < pending.until);
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.pending.iter().map(|pending| pending.until).min()
    }
}
