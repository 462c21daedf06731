//! What must hold whatever is sent, for tests and fuzz targets.

use core::net::SocketAddr;
use core::time::Duration;

use bytes::Bytes;

use super::codec::{
    AckFrame, Fragment, HEADER_LEN, Header, Options, Start, read_reply, read_request,
};
use super::command::{Command, Device, Handle, Level, Reply, TaskAttribute};
use super::compression::{Compression, run_length};
use super::{
    Address, Ciphers, Client, ClientEvent, Config, DATA_MAX, Ecn, Endpoint, Fill, LinkId, PORT,
    Remote, SITE_KEY_LEN, Server, ServerEvent, SiteKey,
};
use crate::identity::Identity;
use crate::scsi::status::Status;
use crate::time::Time;

/// What packets come with, by what the script says: of a path that carries ECN now and then.
const CODEPOINTS: [Ecn; 8] =
    [Ecn::Ect0, Ecn::Ect0, Ecn::Ect0, Ecn::Ce, Ecn::Ect0, Ecn::NotEct, Ecn::Ect0, Ecn::Ect1];

/// Bytes as every kind of packet body: none breaks a parser, and what is read is written as it was.
pub fn packet(bytes: &[u8]) {
    if let Some(header) = Header::parse(bytes) {
        let again = header.emit();
        assert_eq!(Header::parse(&[&again[..], &bytes[HEADER_LEN..]].concat()), Some(header));
    }
    for has_ecn in [false, true] {
        let Some(ack) = AckFrame::parse(bytes, has_ecn) else { continue };
        let mut pairs = ack.ranges.windows(2);
        assert!(pairs.all(|pair| pair[1].end() + 1 < *pair[0].start()));
        let again = AckFrame::parse(&ack.emit(), has_ecn).expect("it was written here");
        assert!(ack.ranges.starts_with(&again.ranges));
    }
    if let Some((fragment, payload)) = Fragment::parse(bytes) {
        assert!(
            u64::from(fragment.offset) + payload.len() as u64 <= u64::from(fragment.message_len)
        );
    }
    if let Some(options) = Options::parse(bytes) {
        assert_eq!(Options::parse(&options.emit()), Some(options));
    }
    let _ = Start::parse(bytes);
    let _ = super::codec::read_devices(bytes);
    let compression = Compression::agreed(run_length::CODECS, 1);
    let message = Bytes::copy_from_slice(bytes);
    for has_checksum in [false, true] {
        let (message, place) = (message.clone(), (Handle(0), 0));
        let command = read_request(message.clone(), place, DATA_MAX, &compression, has_checksum);
        if let Some(Ok(command)) = command {
            assert!(command.data_out.len() <= DATA_MAX as usize);
        }
        let reply = read_reply(message, DATA_MAX, &compression, has_checksum);
        if let Some(Ok(reply)) = reply {
            assert!(reply.data_in.len() <= DATA_MAX as usize);
        }
    }
}

fn fill(mut state: u64) -> Fill {
    Box::new(move |buffer| {
        for byte in buffer {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
    })
}

fn endpoint(port: u16) -> Endpoint {
    Endpoint { link: LinkId(0), address: Address::Ip(SocketAddr::from(([127, 0, 0, 1], port))) }
}

/// A device of each level: which has which changes with `turn`.
fn devices(turn: usize) -> Vec<Device> {
    let mut levels = [Level::None, Level::Integrity, Level::Encrypt];
    levels.rotate_left(turn % 3);
    let device = |(handle, level)| Device {
        handle: Handle(handle),
        name: "disk".into(),
        level,
        read_only: false,
    };
    (0..).zip(levels).map(device).collect()
}

/// A packet: whether it goes to the server, where that is, and its bytes.
type Flying = (bool, Endpoint, Vec<u8>);

/// What both ends have to send.
fn sent(now: Time, client: &mut Client, server: &mut Server) -> Vec<Flying> {
    let to_server = core::iter::from_fn(|| client.poll_transmit(now));
    let to_server = to_server.map(|it| (true, it.to, it.bytes.to_vec()));
    let to_client = core::iter::from_fn(|| server.poll_transmit(now));
    let to_client = to_client.map(|it| (false, it.to, it.bytes.to_vec()));
    to_server.chain(to_client).collect()
}

/// All of these ciphers, the first alone, or the others.
fn turned(ciphers: Ciphers, kind: u8) -> Ciphers {
    match kind % 3 {
        0 => ciphers,
        1 => ciphers.get(..1).unwrap_or(ciphers),
        _ => ciphers.get(1..).filter(|rest| !rest.is_empty()).unwrap_or(ciphers),
    }
}

/// Both ends of a connection, with both paths, at the beginning.
fn ends(now: Time, ciphers: Ciphers) -> (Client, Server) {
    let identity = |byte: u8| Identity::fresh(&mut |buffer| buffer.fill(byte));
    let config = |who| {
        let config = Config::ip(identity(who), SiteKey::from_bytes([7; SITE_KEY_LEN]), ciphers);
        let (codecs, least) = (run_length::CODECS, Level::None);
        Config { credit: 65536, paths: 2, codecs, checksum: true, least, ..config }
    };
    let remote = Remote { endpoint: endpoint(PORT), pin: None };
    (Client::new(now, config(1), remote, fill(1)), Server::new(now, config(2), fill(2)))
}

/// Both machines, while a script says what becomes of each packet: it arrives, is lost, arrives twice, late, or
/// changed. Its first byte says which of the ciphers the ends have.
///
/// # Panics
///
/// If a command is executed twice, or a machine breaks.
pub fn machines(ciphers: Ciphers, script: &[u8]) {
    let (kind, script) = script.split_first().map_or((0, script), |(kind, rest)| (*kind, rest));
    let ciphers = turned(ciphers, kind);
    let mut now = Time::from_origin(Duration::from_secs(100));
    let (mut client, mut server) = ends(now, ciphers);
    let mut script = script.iter().copied();
    let (mut executed, mut submitted) = (0_u64, 0_u64);
    let mut late: Vec<Flying> = Vec::new();
    let (mut accepted, mut turn) = (None, 0);
    let second = (endpoint(1112), endpoint(PORT + 1));
    while let Some(step) = script.next() {
        let mut flying = core::mem::take(&mut late);
        flying.extend(sent(now, &mut client, &mut server));
        for (to_server, to, mut bytes) in flying {
            let copies = match script.next().unwrap_or(0) {
                0..=150 => 1,
                151..=180 => 0,
                181..=200 => 2,
                201..=220 => {
                    late.push((to_server, to, bytes));
                    continue;
                }
                kind => {
                    let at = usize::from(script.next().unwrap_or(0)) % bytes.len();
                    bytes[at] ^= kind;
                    1
                }
            };
            let ecn = CODEPOINTS[usize::from(step) % CODEPOINTS.len()];
            for _ in 0..copies {
                if to_server {
                    let from = if to == second.1 { second.0 } else { endpoint(1111) };
                    server.handle_packet(now, from, ecn, &mut bytes.clone());
                } else {
                    client.handle_packet(now, endpoint(PORT), ecn, &mut bytes.clone());
                }
            }
        }
        while let Some(event) = server.poll_event() {
            match event {
                ServerEvent::Proven { connection, .. } => {
                    server.accept(now, connection, devices(0));
                    accepted = Some(connection);
                }
                ServerEvent::Command { connection, request, command } => {
                    executed += 1;
                    assert!(executed <= submitted, "a command was executed twice");
                    let data_in = Bytes::from(vec![5; command.data_in_len as usize]);
                    let reply = Reply { data_in, ..Reply::status(Status::Good) };
                    server.complete(now, connection, request, reply);
                }
                _ => {}
            }
        }
        while let Some(event) = client.poll_event() {
            match event {
                ClientEvent::Completed(_, reply) => assert_eq!(reply.status, Status::Good),
                ClientEvent::Connected { .. } => assert!(client.add_path(now, second.1)),
                _ => {}
            }
        }
        if step >> 5 == 7
            && let Some(connection) = accepted
        {
            turn += 1;
            server.change_devices(now, connection, devices(turn));
        }
        if step & 1 != 0 {
            let command = Command {
                device: Handle(u16::from(step >> 1) % 3),
                cdb: Bytes::from_static(&[0; 6]),
                data_out: vec![step; usize::from(step) * 20].into(),
                data_in_len: u32::from(step) * 16,
                attribute: TaskAttribute::Simple,
                priority: step,
            };
            submitted += u64::from(client.submit(now, command).is_ok());
        }
        now = now + Duration::from_millis(u64::from(step >> 1));
        client.handle_timeout(now);
        server.handle_timeout(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hyperscsi::keys::tests::CIPHERS;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn packets_hold_their_invariants(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            packet(&bytes);
        }

        #[test]
        fn machines_hold_their_invariants(script in proptest::collection::vec(any::<u8>(), 0..400)) {
            machines(CIPHERS, &script);
        }
    }
}
