//! Connections of several paths (spec, 14).

use core::time::Duration;

use proto::hyperscsi::*;
use proto::scsi::status::Status;
use testing::Random;

use super::net::*;
use super::{assert_all_is_well, assert_executed_once, pattern};

/// HCBE_REQUEST and HCBE_REPLY.
const DATA: [u8; 2] = [0x00, 0x81];

const ADDR_REPORT: u8 = 0x30;
const ADDR_REPLY: u8 = 0x31;

fn several(who: u8) -> Config {
    Config { paths: 4, ..config(who, SITE) }
}

/// A connection by the first way, whose ends may open more.
fn connected(seed: u64, weather: Weather) -> Net {
    let mut net = Net::with(seed, weather, several(CLIENT), several(SERVER));
    net.connect();
    net
}

fn states(net: &Net) -> [Vec<PathState>; 2] {
    let server = net.server.paths(net.connection.unwrap());
    [net.client.paths(), server].map(|paths| paths.iter().map(|path| path.state).collect())
}

const BOTH_ACTIVE: [PathState; 2] = [PathState::Active; 2];

/// Writes and reads of 64 KiB; how long they take.
fn load(net: &mut Net, count: usize) -> Duration {
    const LEN: usize = 65536;
    let begun = net.now;
    // The disk has room for so many; what comes later is the same again.
    let data: Vec<_> = (0..count).map(|at| pattern(at as u64 % 32, LEN)).collect();
    let block = |at: usize| (at % 32 * LEN / BLOCK) as u16;
    let ids: Vec<_> =
        (0..count).map(|at| net.submit(write(READABLE, block(at), data[at].clone()))).collect();
    for id in ids {
        assert_eq!(net.reply(id), Reply::status(Status::Good));
    }
    let ids: Vec<_> = (0..count).map(|at| net.submit(read(READABLE, block(at), LEN))).collect();
    for (at, id) in ids.into_iter().enumerate() {
        assert!(net.reply(id).data_in == data[at], "other data");
    }
    net.now - begun
}

/// The packets of data by each path, as they were sent.
fn data_by_path(net: &Net) -> [usize; 2] {
    let by = |path| {
        let is_data = |bytes: &Vec<u8>| DATA.contains(&bytes[4]) && bytes[12] == path;
        net.wiretap.iter().filter(|(_, bytes)| is_data(bytes)).count()
    };
    [by(0), by(1)]
}

#[test]
fn second_path_is_used_once_it_is_proven() {
    let mut net = connected(1, CALM);
    net.add_way(CALM);
    assert_eq!(states(&net)[0], [PathState::Active, PathState::Unproven]);
    load(&mut net, 16);
    assert_eq!(states(&net), [BOTH_ACTIVE; 2]);
    let [first, second] = data_by_path(&net);
    assert!(second > first / 4, "{first} packets by the first, {second} by the second");
    for direction in [0, 0x80] {
        // ADDR_REPLY of the peer is before the first packet of anything else.
        let mut of_path = net.wiretap.iter().filter(|(_, bytes)| bytes[12] == 1);
        let first_data = of_path.position(|(_, bytes)| {
            bytes[4] & 0x80 == direction && ![ADDR_REPORT, ADDR_REPLY].contains(&(bytes[4] & 0x7f))
        });
        let mut of_path = net.wiretap.iter().filter(|(_, bytes)| bytes[12] == 1);
        let proof = of_path.position(|(_, bytes)| bytes[4] == direction ^ 0x80 | ADDR_REPLY);
        assert!(proof < first_data && proof.is_some(), "{proof:?} {first_data:?}");
    }
    net.assert_numbers_are_unique();
}

#[test]
fn path_that_was_not_agreed_on_is_not_opened() {
    for (client, server) in [(4, 1), (1, 4)] {
        let with = |who, paths| Config { paths, ..config(who, SITE) };
        let mut net = Net::with(2, CALM, with(CLIENT, client), with(SERVER, server));
        assert!(!net.client.add_path(net.now, endpoint(7)), "there is no connection");
        net.connect();
        assert!(!net.client.add_path(net.now, endpoint(7)));
    }
    let mut net = connected(2, CALM);
    (0..3).for_each(|_| net.add_way(CALM));
    assert!(!net.client.add_path(net.now, endpoint(7)), "four were agreed on");
}

/// As if it was one link with the rate of both.
#[test]
fn rates_of_two_paths_add_up() {
    const RATE: u64 = 10 << 20;
    let one = |rate| Weather { rate, delay: Duration::from_millis(1), ..CALM };
    let took = |ways: usize, rate| {
        let mut net = connected(3, one(rate));
        (1..ways).for_each(|_| net.add_way(one(rate)));
        net.pass(Duration::from_millis(50));
        load(&mut net, 48)
    };
    let (single, both, sum) = (took(1, RATE), took(2, RATE), took(1, 2 * RATE));
    println!("one {single:?}, two {both:?}, one of twice the rate {sum:?}");
    assert!(both < single * 55 / 100, "{both:?} instead of {single:?}");
    assert!(both < sum * 110 / 100, "{both:?} instead of {sum:?}");
}

/// A path whose round trip is so much longer is no help where the other one has room.
#[test]
fn small_commands_take_the_faster_path() {
    let mut net = connected(4, CALM);
    net.add_way(Weather { delay: Duration::from_millis(50), ..CALM });
    net.pass(Duration::from_secs(1));
    assert_eq!(states(&net), [BOTH_ACTIVE; 2]);
    for _ in 0..50 {
        let begun = net.now;
        let id = net.submit(increment());
        net.reply(id);
        assert!(net.now - begun < Duration::from_millis(50));
    }
}

fn cut(net: &mut Net, way: usize, is_cut: bool) {
    let losses = if is_cut { 1000 } else { 0 };
    match way {
        0 => net.weather.losses = losses,
        way => net.ways[way - 1].weather.losses = losses,
    }
}

/// Whichever it is, also that of set-up.
#[test]
fn path_that_dies_under_load_costs_no_error_and_comes_back() {
    for dying in 0..2 {
        let way = Weather { rate: 10 << 20, delay: Duration::from_millis(1), ..CALM };
        let mut net = connected(5, way);
        net.add_way(way);
        load(&mut net, 8);
        let ids: Vec<_> = (0..16).map(|_| net.submit(write(READABLE, 0, vec![7; 65536]))).collect();
        net.pass(Duration::from_millis(20));
        cut(&mut net, dying, true);
        let begun = net.now;
        ids.into_iter().for_each(|id| assert_eq!(net.reply(id).status, Status::Good));
        let took = net.now - begun;
        assert!(took < Duration::from_millis(400), "{dying}: {took:?}");
        load(&mut net, 8);
        // It has failed by then at the latest.
        net.pass(Duration::from_millis(500));
        net.wiretap.clear();
        net.pass(Duration::from_secs(120));
        load(&mut net, 8);
        let is_other = |(_, bytes): &&(Endpoint, Vec<u8>)| {
            usize::from(bytes[12]) == dying
                && ![ADDR_REPORT, ADDR_REPLY].contains(&(bytes[4] & 0x7f))
        };
        assert_eq!(net.wiretap.iter().find(is_other), None, "only questions whether it is back");
        assert!(net.ended.is_empty());
        assert_eq!(states(&net)[0][1 - dying], PathState::Active);
        assert_ne!(states(&net)[0][dying], PathState::Active);
        cut(&mut net, dying, false);
        net.pass(Duration::from_secs(3));
        assert_eq!(states(&net), [BOTH_ACTIVE; 2], "{dying}");
        net.wiretap.clear();
        load(&mut net, 8);
        assert!(data_by_path(&net)[dying] > 0, "{dying}: it is used again");
        assert!(net.ended.is_empty() && net.events.is_empty());
    }
}

/// Packets of one direction arrive, those of the other do not.
#[test]
fn path_by_which_nothing_comes_back_costs_no_error() {
    let mut net = connected(6, CALM);
    net.add_way(CALM);
    load(&mut net, 8);
    net.ways[0].is_deaf = true;
    let took = load(&mut net, 16);
    assert!(took < Duration::from_secs(1), "{took:?}");
    net.pass(Duration::from_secs(60));
    assert!(net.ended.is_empty() && net.events.is_empty());
    net.ways[0].is_deaf = false;
    // A server that has just given up asks again when something comes: an idle client sends something within the keep-alive time.
    net.pass(Duration::from_secs(15));
    assert_eq!(states(&net), [BOTH_ACTIVE; 2]);
}

#[test]
fn connection_ends_when_all_paths_are_dead() {
    let mut net = connected(7, CALM);
    net.add_way(CALM);
    net.pass(Duration::from_secs(1));
    (0..2).for_each(|way| cut(&mut net, way, true));
    net.pass(Duration::from_secs(60));
    assert_eq!(net.ended, [Ended::Silent]);
}

/// Spec, 13: by every path, as the one of set-up may be dead.
#[test]
fn restarted_server_resets_a_connection_whose_first_path_is_dead() {
    let mut net = connected(8, CALM);
    net.add_way(CALM);
    load(&mut net, 4);
    cut(&mut net, 0, true);
    net.pass(Duration::from_secs(30));
    net.server = Server::new(net.now, several(SERVER), fill(99));
    net.submit(increment());
    let begun = net.now;
    assert_eq!(super::ended(&mut net).0, Ended::Reset);
    assert!(net.now - begun < Duration::from_secs(1));
}

/// The first packets of a path, taken from the way to the server.
fn opening_of_a_path(net: &mut Net) -> Vec<u8> {
    net.add_way(Weather { losses: 1000, ..CALM });
    net.wiretap.clear();
    net.pass(Duration::from_micros(1));
    let found = net.wiretap.iter().find(|(_, bytes)| bytes[4] == ADDR_REPORT);
    found.expect("the path is opened").1.clone()
}

/// RFC 9000, 8: no more than three times what came from there.
#[test]
fn address_that_is_not_proven_gets_little() {
    let mut net = connected(9, CALM);
    let opening = opening_of_a_path(&mut net);
    let victim = endpoint(666);
    net.server.handle_packet(net.now, victim, Ecn::NotEct, &mut opening.clone());
    load(&mut net, 8);
    net.pass(Duration::from_secs(300));
    let sent = net.wiretap.iter().filter(|(to, _)| *to == victim);
    let sent: usize = sent.map(|(_, bytes)| bytes.len()).sum();
    assert!((1..=3 * opening.len()).contains(&sent), "{sent} bytes");
    let [_, server] = states(&net);
    assert_eq!(server, [PathState::Active, PathState::Unproven]);
    // The path is the client's all the same, once it gets through.
    net.ways[0].weather.losses = 0;
    net.pass(Duration::from_secs(3));
    assert_eq!(states(&net), [BOTH_ACTIVE; 2]);
}

/// What a client sends is passed on from elsewhere: only who also gets what goes there has the path moved.
#[test]
fn path_is_not_moved_to_an_address_that_does_not_answer() {
    for (path, fails) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut net = connected(10, CALM);
        net.add_way(CALM);
        load(&mut net, 4);
        cut(&mut net, path, true);
        net.wiretap.clear();
        let is_it = |bytes: &[u8]| usize::from(bytes[12]) == path && bytes[4] < 0x80;
        // Either the first packet that did not arrive, of a path that is in use, or all of one that has failed.
        while !net.wiretap.iter().any(|(_, bytes)| is_it(bytes)) {
            net.pass(Duration::from_micros(100));
        }
        net.pass(if fails { Duration::from_secs(11) } else { Duration::ZERO });
        let taken: Vec<_> = net.wiretap.iter().map(|(_, bytes)| bytes.clone()).collect();
        cut(&mut net, path, false);
        let moved = endpoint(666);
        for mut packet in taken.into_iter().filter(|it| is_it(it)) {
            net.server.handle_packet(net.now, moved, Ecn::NotEct, &mut packet);
        }
        // What the server sends there reaches the client, by whoever has taken the packets.
        while let Some(Transmit { to, bytes, .. }) = net.server.poll_transmit(net.now) {
            net.send(endpoint(SERVER_PORT), to, &bytes);
            if to == moved {
                net.client.handle_packet(net.now, moved, Ecn::NotEct, &mut bytes.to_vec());
            }
        }
        let is_there = |net: &Net| {
            let paths = net.server.paths(net.connection.unwrap());
            paths.iter().any(|path| path.endpoint == moved)
        };
        // The client has answered, from where it is.
        net.pass(Duration::from_micros(500));
        assert!(!is_there(&net), "{path}");
        net.pass(Duration::from_secs(40));
        load(&mut net, 4);
        assert!(!is_there(&net), "{path}");
        let is_used = |(to, bytes): &&(Endpoint, Vec<u8>)| {
            *to == moved && ![ADDR_REPORT, ADDR_REPLY].contains(&(bytes[4] & 0x7f))
        };
        assert_eq!(net.wiretap.iter().find(is_used), None, "only questions and answers go there");
        let by_client = |(to, bytes): &&(Endpoint, Vec<u8>)| *to == moved && bytes[4] < 0x80;
        assert_eq!(net.wiretap.iter().find(by_client), None, "the client does not know it");
    }
}

/// Spec, 14: the question whether somebody is there is repeated.
#[test]
fn address_is_proven_although_the_question_was_lost() {
    let mut net = connected(11, CALM);
    net.client_at = endpoint(2222);
    let id = net.submit(increment());
    net.deaf = true;
    net.pass(Duration::from_millis(1));
    net.deaf = false;
    assert_eq!(net.reply(id).status, Status::Good);
    net.pass(Duration::from_secs(1));
    let paths = net.server.paths(net.connection.unwrap());
    assert_eq!(paths[0].endpoint, endpoint(2222));
}

/// An address of a further path may change like that of the first one.
#[test]
fn path_with_a_new_address_goes_on() {
    let mut net = connected(12, CALM);
    net.add_way(CALM);
    load(&mut net, 4);
    net.ways[0].client = endpoint(2222);
    net.pass(Duration::from_secs(12));
    load(&mut net, 4);
    let paths = net.server.paths(net.connection.unwrap());
    assert_eq!(paths[1].endpoint, endpoint(2222));
    assert_eq!(states(&net), [BOTH_ACTIVE; 2]);
}

/// Spec, 5.4: the windows of paths are apart, and so are their numbers.
#[test]
fn recorded_packets_of_all_paths_change_nothing() {
    let mut net = connected(13, CALM);
    net.add_way(CALM);
    load(&mut net, 4);
    net.pass(Duration::from_millis(10));
    let before = (net.executed, states(&net));
    for (to, bytes) in std::mem::take(&mut net.wiretap) {
        for from in [endpoint(666), net.client_at, net.ways[0].client] {
            for path in [bytes[12], 1 - bytes[12], 3] {
                let mut packet = bytes.clone();
                packet[12] = path;
                if bytes[4] < 0x80 {
                    net.server.handle_packet(net.now, from, Ecn::NotEct, &mut packet);
                } else {
                    net.client.handle_packet(net.now, to, Ecn::NotEct, &mut packet);
                }
            }
        }
        while let Some(answer) = net.server.poll_transmit(net.now) {
            assert_eq!(answer.bytes[4], 0x95, "only a START has a cookie as answer");
        }
        assert_eq!(net.client.poll_transmit(net.now), None);
    }
    assert_eq!((net.executed, states(&net)), before);
    load(&mut net, 4);
}

/// A storm over some ways, which die and come back.
fn storm(seed: u64) {
    let mut random = Random::new(seed);
    let mut below = |limit: u64| random.below(limit);
    let mut weather = || Weather {
        delay: Duration::from_micros(10 + below(3000)),
        jitter: Duration::from_micros(below(1000)),
        losses: below(60),
        repeats: below(60),
        changes: below(40),
        rate: below(2) * ((1 + below(20)) << 20),
    };
    let mut net = connected(seed, weather());
    let calm: Vec<_> = (0..=1 + seed % 3).map(|_| weather()).collect();
    calm[1..].iter().for_each(|way| net.add_way(*way));
    net.weather = calm[0];
    let (mut model, mut increments) = (vec![0; 64 * BLOCK], 0);
    for round in 0..4 {
        let mut running = Vec::new();
        for at in 0..8_u16 {
            let data = pattern(seed * 100 + round * 10 + u64::from(at), 8 * BLOCK);
            model[usize::from(at) * 8 * BLOCK..][..data.len()].copy_from_slice(&data);
            running.push((net.submit(write(DEVICE, at * 8, data)), false));
            running.push((net.submit(increment()), true));
            increments += 1;
        }
        // One way at least stays.
        let stays = below(calm.len() as u64) as usize;
        for (at, way) in calm.iter().enumerate() {
            let losses = if at != stays && below(2) == 0 { 1000 } else { way.losses };
            match at {
                0 => net.weather.losses = losses,
                at => net.ways[at - 1].weather.losses = losses,
            }
        }
        net.pass(Duration::from_millis(below(30)));
        assert_executed_once(&mut net, running, &model, seed);
    }
    assert_all_is_well(&net, increments, seed);
}

#[test]
fn commands_over_a_bad_network_of_several_paths_are_executed_exactly_once() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let storms: u64 = number("LONGHAUL_STORMS").unwrap_or(20);
    let first: u64 = number("LONGHAUL_SEED").unwrap_or(1);
    println!("seeds from {first}");
    (first..first + storms).for_each(storm);
}
