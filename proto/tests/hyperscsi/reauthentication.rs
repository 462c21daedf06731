//! What a re-authentication changes beside the keys (spec, 10).

use core::time::Duration;
use std::collections::BTreeSet;

use super::compression::LZ4;
use super::net::*;
use super::{ended, pattern};
use proto::hyperscsi::*;
use proto::scsi::status::Status;

const STORM: Weather = Weather {
    delay: Duration::from_micros(200),
    jitter: Duration::from_micros(300),
    losses: 80,
    repeats: 50,
    changes: 20,
    rate: 0,
};

/// The devices, of which `DEVICE` has this level.
fn with_level(level: Level) -> Vec<Device> {
    let mut devices = devices();
    let device = devices.iter_mut().find(|device| device.handle == DEVICE).unwrap();
    device.level = level;
    devices
}

/// A network in which `DEVICE` has this level; the client takes `least`.
fn net(seed: u64, weather: Weather, least: Level, level: Level) -> Net {
    let client = Config { least, ..config(CLIENT, SITE) };
    let mut net = Net::with(seed, weather, client, config(SERVER, SITE));
    net.devices = with_level(level);
    net.connect();
    net
}

fn change(net: &mut Net, devices: Vec<Device>) {
    net.server.change_devices(net.now, net.connection.unwrap(), devices);
}

/// Steps until the client has answered what was wanted, and the server knows; whether it was taken, and counts alone by now.
fn changed(net: &mut Net) -> bool {
    let until = net.now + Duration::from_secs(60);
    while matches!(net.changes[..], [] | [ChangeStep::Begun]) && net.step(until) {}
    let steps = core::mem::take(&mut net.changes);
    assert!(
        [&[ChangeStep::Refused][..], &[ChangeStep::Begun, ChangeStep::Complete]]
            .contains(&&steps[..])
    );
    steps[0] == ChangeStep::Begun
}

fn is_changed(event: &ClientEvent) -> bool {
    matches!(event, ClientEvent::Changed { .. })
}

/// Of each epoch, by the two bits of it, the levels of the packets of commands for `DEVICE`.
fn levels(net: &Net) -> BTreeSet<(u8, u8)> {
    let packets = net.wiretap.iter().map(|(_, bytes)| bytes);
    let commands = packets.filter(|bytes| bytes[0] >> 6 != 3 && bytes[4] & 0x7f < 2);
    let of_device = commands.filter(|bytes| bytes[14..16] == DEVICE.0.to_be_bytes());
    of_device.map(|bytes| (bytes[0] >> 4 & 3, bytes[0] >> 6)).collect()
}

/// Commands are under way all the time, each of which is executed once; packets have the level of their epoch.
fn change_under_load(seed: u64, from: Level, to: Level) {
    let mut net = net(seed, STORM, Level::Integrity, from);
    let mut ids = Vec::new();
    for round in 0..40 {
        ids.push(net.submit(increment()));
        ids.push(net.submit(write(DEVICE, 5, pattern(round, 20 * BLOCK))));
        if round == 10 {
            change(&mut net, with_level(to));
        }
        net.pass(Duration::from_micros(150));
    }
    for id in ids {
        assert_eq!(net.reply(id).status, Status::Good, "seed {seed}");
    }
    assert!(changed(&mut net), "seed {seed}");
    let id = net.submit(read(DEVICE, 5, 20 * BLOCK));
    assert!(net.reply(id).data_in == pattern(39, 20 * BLOCK));
    net.events.retain(|event| !is_changed(event));
    assert_eq!((net.counter, net.executed), (40, 81), "seed {seed}");
    assert_eq!(levels(&net), BTreeSet::from([(0, from as u8), (1, to as u8)]), "seed {seed}");
    net.assert_numbers_are_unique();
}

#[test]
fn level_changes_with_the_epoch_under_load_on_a_bad_network() {
    println!("seeds from 1");
    for seed in 1..=20 {
        change_under_load(seed, Level::Integrity, Level::Encrypt);
        change_under_load(seed, Level::Encrypt, Level::Integrity);
    }
}

#[test]
fn client_is_told_how_its_devices_are_now() {
    let mut net = net(1, CALM, Level::Integrity, Level::Integrity);
    let mut wanted = with_level(Level::Encrypt);
    wanted[0].read_only = true;
    change(&mut net, wanted.clone());
    let told = net.wait(|events| {
        let at = events.iter().position(is_changed)?;
        let ClientEvent::Changed { devices } = events.remove(at) else { panic!() };
        Some(devices)
    });
    assert_eq!(told, wanted);
}

/// A level that the client does not take, and a device that it does not have: only the keys change.
#[test]
fn change_that_is_refused_leaves_the_connection_as_it_was() {
    let unknown = Device { handle: Handle(77), ..with_level(Level::Encrypt).remove(0) };
    for wanted in [with_level(Level::Integrity).remove(0), unknown] {
        let mut net = net(2, CALM, Level::Integrity, Level::Encrypt);
        if wanted.handle == DEVICE {
            net = Net::with(
                2,
                CALM,
                Config { least: Level::Encrypt, ..config(CLIENT, SITE) },
                config(SERVER, SITE),
            );
            net.devices = vec![with_level(Level::Encrypt).remove(0)];
            net.connect();
        }
        change(&mut net, vec![wanted]);
        assert!(!changed(&mut net));
        for _ in 0..3 {
            let id = net.submit(increment());
            assert_eq!(net.reply(id).status, Status::Good);
        }
        assert_eq!(levels(&net), BTreeSet::from([(1, Level::Encrypt as u8)]));
        assert!(net.ended.is_empty() && !net.events.iter().any(is_changed));
    }
}

/// What both ends have, in turn: nothing, and everything.
fn terms(round: u32) -> Terms {
    let terms = config(SERVER, SITE).terms();
    if round.is_multiple_of(2) {
        return terms;
    }
    Terms {
        ciphers: CHACHA,
        data_max: 2 * DATA_MAX,
        slots: 3,
        keep_alive: Duration::from_secs(7),
        codecs: LZ4,
        checksum: true,
    }
}

/// Commands are under way while each of the options goes to and fro.
#[test]
fn options_change_with_the_epoch_under_load_on_a_bad_network() {
    println!("seeds from 1");
    for seed in 1..=10 {
        let mut net = Net::new(seed, STORM);
        net.connect();
        let mut written = 0;
        for round in 1..=6 {
            net.server.set_terms(terms(round));
            net.client.set_terms(terms(round));
            let devices = devices();
            change(&mut net, devices);
            let mut ids = Vec::new();
            while !net.changes.contains(&ChangeStep::Complete) {
                written += 1;
                ids.push(net.submit(write(DEVICE, written, vec![written as u8; BLOCK])));
                ids.push(net.submit(read(DEVICE, written, BLOCK)));
                ids.push(net.submit(increment()));
                net.pass(Duration::from_micros(200));
            }
            assert!(changed(&mut net));
            for id in ids {
                assert_eq!(net.reply(id).status, Status::Good, "seed {seed}");
            }
            let cipher =
                if round.is_multiple_of(2) { Aead::Aes256Gcm } else { Aead::ChaCha20Poly1305 };
            let codec = (round % 2 == 1).then_some(Algorithm::Lz4);
            let connection = net.connection.unwrap();
            assert_eq!((net.client.cipher(), net.client.compression()), (Some(cipher), codec));
            assert_eq!(net.server.cipher(connection), Some(cipher));
            assert_eq!(net.server.compression(connection), codec);
            assert_eq!(net.client.has_checksum(), round % 2 == 1);
            assert_eq!(net.server.has_checksum(connection), round % 2 == 1);
        }
        // A larger number stays.
        assert_eq!(net.client.data_max(), 2 * DATA_MAX);
        let data = pattern(seed, 2 * DATA_MAX as usize);
        let id = net.submit(write(DEVICE, 0, data.clone()));
        assert_eq!(net.reply(id).status, Status::Good);
        assert!(net.disk[..data.len()] == data);
        net.assert_numbers_are_unique();
    }
}

/// The most commands of which the server has the answers at a time.
fn held_at_once(net: &mut Net) -> usize {
    let ids: Vec<_> = (0..10).map(|_| net.submit(hold())).collect();
    net.pass(Duration::from_millis(50));
    let most = net.held.len();
    while let Some((connection, request)) = net.held.pop() {
        net.server.complete(net.now, connection, request, Reply::status(Status::Good));
        net.pass(Duration::from_millis(5));
    }
    ids.into_iter().for_each(|id| drop(net.reply(id)));
    most
}

#[test]
fn commands_at_a_time_are_as_many_as_was_agreed_on_last() {
    let with = |slots, config: Config| Config { slots, ..config };
    let (client, server) = (with(8, config(CLIENT, SITE)), with(4, config(SERVER, SITE)));
    let mut net = Net::with(3, CALM, client, server);
    net.connect();
    for (own, agreed) in [(4, 4), (6, 6), (200, 8), (2, 2), (8, 8)] {
        let terms = Terms { slots: own, ..config(SERVER, SITE).terms() };
        net.server.set_terms(terms);
        change(&mut net, devices());
        assert!(changed(&mut net));
        net.pass(Duration::from_millis(20));
        assert_eq!(held_at_once(&mut net), agreed, "{own}");
    }
}

/// Spec, 10: whoever is on the path and lets no packet of the new epoch pass keeps the old level for three keep-alive times only;
/// until then the device has the lower one for the server too.
#[test]
fn level_of_before_ends_where_no_packet_of_the_new_epoch_comes() {
    let mut net = net(5, CALM, Level::Integrity, Level::Integrity);
    net.wiretap.clear();
    change(&mut net, with_level(Level::Encrypt));
    // The client answers, and hears nothing of the server after that.
    while net.changes.is_empty() {
        net.deaf = net.wiretap.iter().any(|(_, bytes)| bytes[4] & 0x7f == 0x12);
        assert!(net.step(net.now + Duration::from_secs(1)));
    }
    assert_eq!(net.changes, [ChangeStep::Begun]);
    let (begun, executed) = (net.now, net.executed);
    while net.ended.is_empty() && net.now < begun + Duration::from_secs(60) {
        if net.client.submit(net.now, increment()).is_err() {
            break;
        }
        net.pass(Duration::from_secs(1));
    }
    assert!(net.executed > executed, "commands go on at the old level");
    assert_eq!(
        (&net.ended[..], &net.changes[..]),
        (&[Ended::Silent][..], &[ChangeStep::Begun][..])
    );
    assert!(net.now < begun + Duration::from_secs(40));
}

/// Spec, 10: a client that does not renew its proof has none, whatever else it sends.
#[test]
fn client_that_answers_no_reauthentication_is_dropped() {
    let mut net = net(4, CALM, Level::Integrity, Level::Encrypt);
    net.swallows = Some(0x12);
    let until = net.now + Duration::from_secs(180);
    while net.ended.is_empty() && net.now < until {
        if net.client.submit(net.now, increment()).is_err() {
            break;
        }
        net.pass(Duration::from_secs(1));
    }
    assert_eq!(net.ended, [Ended::Silent]);
    assert!(net.now < until, "two minutes, and three keep-alive times of ten seconds");
    net.swallows = None;
    assert_eq!(ended(&mut net).0, Ended::Reset);
}
