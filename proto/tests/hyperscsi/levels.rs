//! The levels of devices, and the lowest one that a client takes (spec, 5.3).

use super::net::*;
use super::{ended, pattern};
use proto::hyperscsi::*;
use proto::scsi::status::Status;

const PLAIN: Handle = Handle(2);

const ALL: [(Handle, Level); 3] =
    [(PLAIN, Level::None), (READABLE, Level::Integrity), (DEVICE, Level::Encrypt)];

/// A network with a client that takes no lower level than `least`, and a device of each of these levels.
fn net(least: Level, levels: &[(Handle, Level)]) -> Net {
    let client = Config { least, ..config(CLIENT, SITE) };
    let mut net = Net::with(31, CALM, client, config(SERVER, SITE));
    let device = |(handle, level)| Device {
        handle,
        name: format!("{level:?}").into(),
        level,
        read_only: false,
    };
    net.devices = levels.iter().copied().map(device).collect();
    net
}

#[test]
fn client_takes_no_lower_level_than_it_has_announced() {
    for least in [Level::None, Level::Integrity, Level::Encrypt] {
        for (handle, level) in ALL {
            let mut net = net(least, &[(handle, level)]);
            if level >= least {
                net.connect();
            } else {
                assert!(matches!(ended(&mut net).0, Ended::Violation(_)), "{least:?} {level:?}");
            }
        }
    }
}

/// Only packets of commands have the level of their device.
#[test]
fn packets_have_the_level_of_their_device() {
    let mut net = net(Level::None, &ALL);
    net.connect();
    let secret = pattern(1, 40 * BLOCK);
    for (handle, level) in ALL {
        let before = net.wiretap.len();
        let id = net.submit(write(handle, 3, secret.clone()));
        assert_eq!(net.reply(id), Reply::status(Status::Good));
        let id = net.submit(read(handle, 3, secret.len()));
        assert!(net.reply(id).data_in == secret);
        for (_, bytes) in &net.wiretap[before..] {
            let is_command = bytes[4] & 0x7f < 2;
            assert_eq!(bytes[0] >> 6, if is_command { level as u8 } else { 2 });
            let is_seen = bytes.windows(32).any(|part| part == &secret[..32]);
            assert!(!is_seen || level != Level::Encrypt);
        }
    }
    net.assert_numbers_are_unique();
}

/// Who has neither key can change no header, and so neither packet numbers nor slots: nothing that counts for other packets.
#[test]
fn forged_headers_of_level_none_change_nothing() {
    let mut net = net(Level::None, &ALL);
    net.connect();
    for _ in 0..3 {
        let id = net.submit(write(PLAIN, 3, pattern(2, 4 * BLOCK)));
        net.reply(id);
    }
    net.pass(core::time::Duration::from_millis(10));
    let plain = net.wiretap.iter().filter(|(_, bytes)| bytes[0] >> 6 == 0).cloned();
    let plain: Vec<_> = plain.collect();
    assert!(plain.len() > 6);
    for (to, bytes) in plain {
        for bit in 0..8 * 36 {
            let mut forged = bytes.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            if to == endpoint(SERVER_PORT) {
                net.server.handle_packet(net.now, net.client_at, Ecn::NotEct, &mut forged);
            } else {
                net.client.handle_packet(net.now, to, Ecn::NotEct, &mut forged);
            }
            assert_eq!(net.server.poll_event(), None);
            assert_eq!(net.client.poll_event(), None);
            assert_eq!(net.server.poll_transmit(net.now), None);
            assert_eq!(net.client.poll_transmit(net.now), None);
        }
    }
    let executed = net.executed;
    for (handle, _) in ALL {
        let id = net.submit(write(handle, 3, pattern(3, BLOCK)));
        assert_eq!(net.reply(id).status, Status::Good);
    }
    assert_eq!(net.executed, executed + 3);
}

/// A multiple of the polynomial of CRC32C: to add it changes no checksum.
const UNSEEN: [u8; 5] = {
    let (mut bytes, mut at) = ([1, 0, 0, 0, 0], 0);
    while at < 32 {
        if 0x1edc_6f41_u32 >> (31 - at) & 1 == 1 {
            bytes[(at + 1) / 8] |= 1 << ((at + 1) % 8);
        }
        at += 1;
    }
    bytes
};

/// What somebody on the path can do: at level none the data that pass by are his, and nothing else.
#[test]
fn data_of_level_none_can_be_changed_on_the_path() {
    let mut net = net(Level::None, &ALL);
    net.connect();
    for (handle, level) in ALL {
        let id = net.submit(write(handle, 3, vec![0; BLOCK]));
        net.reply(id);
        let id = net.submit(read(handle, 3, BLOCK));
        net.changes_data = Some(UNSEEN);
        let reply = net.reply(id);
        net.changes_data = None;
        let is_changed = reply.data_in != vec![0; BLOCK];
        assert_eq!((reply.status, is_changed), (Status::Good, level == Level::None), "{level:?}");
    }
    assert!(net.ended.is_empty());
}
