//! Windows that are acknowledged, and sent again, as a whole (spec, 9.2).

use core::num::NonZeroU16;
use core::time::Duration;

use super::net::*;
use super::pattern;
use proto::hyperscsi::*;
use proto::scsi::status::Status;

/// Commands with so much data at a time.
const LEN: usize = 128 * 1024;

fn net(seed: u64, weather: Weather, windows: [Option<u16>; 2]) -> Net {
    let [client, server] = windows.map(|window| window.and_then(NonZeroU16::new));
    let client = Config { window: client, ..config(CLIENT, SITE) };
    let server = Config { window: server, ..config(SERVER, SITE) };
    let mut net = Net::with(seed, weather, client, server);
    net.connect();
    net
}

/// Writes and reads, four at a time; the packets of data, those of them that carry again what was sent before, and the
/// acknowledgements.
fn moved(net: &mut Net) -> [usize; 3] {
    let before = net.wiretap.len();
    for round in 0..6 {
        let data = pattern(round, LEN);
        let ids: Vec<_> = (0..4).map(|_| net.submit(write(DEVICE, 3, data.clone()))).collect();
        ids.into_iter().for_each(|id| assert_eq!(net.reply(id).status, Status::Good));
        let ids: Vec<_> = (0..4).map(|_| net.submit(read(DEVICE, 3, LEN))).collect();
        ids.into_iter().for_each(|id| assert!(net.reply(id).data_in == data));
    }
    assert_eq!(net.executed, 48, "each once");
    net.assert_numbers_are_unique();
    let packets = &net.wiretap[before..];
    let count = |is_it: &dyn Fn(&[u8]) -> bool| packets.iter().filter(|it| is_it(&it.1)).count();
    [
        count(&|bytes| bytes[4] & 0x7f < 2),
        count(&|bytes| bytes[4] & 0x7f < 2 && bytes[5] & 0x40 != 0),
        count(&|bytes| bytes[4] & 0x7f == 0x21),
    ]
}

#[test]
fn window_has_one_acknowledgement() {
    for window in [8, 20, 100] {
        let [data, again, acks] = moved(&mut net(1, CALM, [Some(window), Some(1024)]));
        // A probe repeats the oldest packet.
        assert!(again * 1000 < data, "{again} of {data}");
        // Some windows end early: at the congestion window, and where nothing waits.
        let windows = data / usize::from(window);
        assert!((windows * 3 / 4..windows * 3 / 2 + 24).contains(&acks), "{acks} of {windows}");
    }
}

/// What was lost comes again with all of its window.
#[test]
fn window_with_a_loss_is_sent_again_as_a_whole() {
    let weather = Weather { losses: 10, ..CALM };
    let [_, selective, _] = moved(&mut net(2, weather, [None, None]));
    let [data, whole, _] = moved(&mut net(2, weather, [Some(64), Some(16)]));
    assert!(whole > selective * 3, "{whole} in place of {selective} of {data}");
}

#[test]
fn commands_in_windows_are_executed_once_on_bad_networks() {
    println!("seeds from 1");
    for seed in 1..=3 {
        let weather = Weather {
            jitter: Duration::from_micros(200),
            losses: 50,
            repeats: 30,
            changes: 10,
            ..CALM
        };
        moved(&mut net(seed, weather, [Some(16), Some(1024)]));
        moved(&mut net(seed, weather, [Some(1), Some(1)]));
    }
}

/// Whoever does not know the option, or has not asked for it, has packets acknowledged each by itself.
#[test]
fn window_is_used_only_if_both_ends_have_it() {
    let packets = |windows| moved(&mut net(3, CALM, windows));
    let selective = packets([None, None]);
    for windows in [[Some(20), None], [None, Some(20)]] {
        assert_eq!(packets(windows), selective);
    }
    assert_ne!(packets([Some(20), Some(20)]), selective);
}
