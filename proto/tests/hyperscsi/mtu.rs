//! How long packets are on paths that carry more or fewer bytes (spec, 9).

use core::time::Duration;

use proto::hyperscsi::*;
use proto::scsi::status::Status;

use super::net::*;
use super::pattern;

const LONGEST: u16 = 8952;

/// A connection by a way that carries packets of so many bytes.
fn connected(mtu: usize) -> Net {
    let longest =
        |who| Config { packet_max: LONGEST, packet_first: PACKET_MIN, ..config(who, SITE) };
    let mut net = Net::with(1, CALM, longest(CLIENT), longest(SERVER));
    net.mtu = mtu;
    net.connect();
    net
}

/// Writes and reads 64 KiB, eight times.
fn load(net: &mut Net) {
    for at in 0..8 {
        let data = pattern(at, 65536);
        let id = net.submit(write(DEVICE, 0, data.clone()));
        assert_eq!(net.reply(id), Reply::status(Status::Good));
        let id = net.submit(read(DEVICE, 0, data.len()));
        assert!(net.reply(id).data_in == data, "other data");
    }
    assert!(net.ended.is_empty());
}

/// The longest packet in each direction under load.
fn longest(net: &mut Net) -> [usize; 2] {
    net.wiretap.clear();
    load(net);
    [true, false].map(|to_server| {
        let of_one = |to: &Endpoint| (*to == endpoint(SERVER_PORT)) == to_server;
        let packets = net.wiretap.iter().filter(|(to, _)| of_one(to));
        packets.map(|(_, bytes)| bytes.len()).max().unwrap()
    })
}

#[test]
fn packets_become_as_long_as_their_way_carries() {
    for mtu in [1200, 1280, 1420, 1472, 4000, 9000] {
        let mut net = connected(mtu);
        load(&mut net);
        net.pass(Duration::from_secs(20));
        let most = mtu.min(LONGEST.into());
        for longest in longest(&mut net) {
            assert!((most - 32..=most).contains(&longest), "{mtu}: {longest}");
        }
    }
}

#[test]
fn way_that_carries_less_than_before_costs_no_error() {
    let mut net = connected(9000);
    load(&mut net);
    assert_eq!(longest(&mut net), [usize::from(LONGEST); 2]);
    net.mtu = 1400;
    let begun = net.now;
    load(&mut net);
    assert!(net.now - begun < Duration::from_secs(5), "{:?}", net.now - begun);
    net.pass(Duration::from_secs(20));
    for longest in longest(&mut net) {
        assert!((1368..=1400).contains(&longest), "{longest}");
    }
}
