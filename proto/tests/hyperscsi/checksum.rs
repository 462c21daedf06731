//! Checksums of data from end to end (spec, 7.7).

use super::net::*;
use super::pattern;
use proto::hyperscsi::*;
use proto::scsi::sense::Key;
use proto::scsi::status::Status;

/// What restores other data than were compressed, as broken memory might.
#[derive(Debug)]
struct Broken;

impl Codec for Broken {
    fn algorithm(&self) -> Algorithm {
        Algorithm::Lz4
    }

    fn compress(&self, _: &[u8], _: usize) -> Option<Vec<u8>> {
        None
    }

    fn restore(&self, data: &[u8], len: usize) -> Option<Vec<u8>> {
        let mut data = data.to_vec();
        *data.first_mut()? ^= 1;
        (data.len() == len).then_some(data)
    }
}

/// Its opposite: data go as they are, and are called compressed.
#[derive(Debug)]
struct Copied;

impl Codec for Copied {
    fn algorithm(&self) -> Algorithm {
        Algorithm::Lz4
    }

    fn compress(&self, data: &[u8], _: usize) -> Option<Vec<u8>> {
        Some(data.to_vec())
    }

    fn restore(&self, data: &[u8], _: usize) -> Option<Vec<u8>> {
        Some(data.to_vec())
    }
}

const BROKEN: Codecs = &[&Broken];
const COPIED: Codecs = &[&Copied];

fn net((client, server): (bool, bool), (to, from): (Codecs, Codecs)) -> Net {
    let with = |who, checksum, codecs| Config { checksum, codecs, ..config(who, SITE) };
    let mut net = Net::with(41, CALM, with(CLIENT, client, to), with(SERVER, server, from));
    net.connect();
    net
}

#[test]
fn data_have_checksums_if_both_ends_want_them() {
    for (client, server) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut net = net((client, server), (&[], &[]));
        assert_eq!(net.client.has_checksum(), client && server);
        assert_eq!(net.server.has_checksum(net.connection.unwrap()), client && server);
        // As long as may be.
        for len in [BLOCK, DATA_MAX as usize] {
            let data = pattern(1, len);
            let id = net.submit(write(DEVICE, 3, data.clone()));
            assert_eq!(net.reply(id), Reply::status(Status::Good));
            let id = net.submit(read(DEVICE, 3, len));
            assert!(net.reply(id).data_in == data);
        }
        assert!(net.ended.is_empty());
    }
}

/// PROTOCOL SERVICE CRC ERROR (SPC-4, table of additional sense codes).
fn assert_is_crc_error(reply: &Reply, key: Key) {
    assert_eq!(reply.status, Status::CheckCondition);
    assert_eq!((reply.sense[2], &reply.sense[12..14]), (key as u8, &[0x47, 5][..]));
    assert!(reply.data_in.is_empty());
}

#[test]
fn command_whose_data_have_changed_is_not_executed() {
    let mut net = net((true, true), (COPIED, BROKEN));
    for _ in 0..3 {
        let id = net.submit(write(DEVICE, 3, vec![7; BLOCK]));
        assert_is_crc_error(&net.reply(id), Key::AbortedCommand);
    }
    assert_eq!((net.executed, net.disk[3 * BLOCK]), (0, 0));
    let id = net.submit(increment());
    assert_eq!(net.reply(id).data_in[..], 1_u64.to_be_bytes());
    assert!(net.ended.is_empty());
}

#[test]
fn data_in_that_have_changed_are_not_given_out() {
    let mut net = net((true, true), (BROKEN, COPIED));
    for executed in 1..4 {
        let id = net.submit(read(DEVICE, 3, BLOCK));
        assert_is_crc_error(&net.reply(id), Key::HardwareError);
        assert_eq!(net.executed, executed, "it is executed once");
    }
    let id = net.submit(increment());
    assert_eq!(net.reply(id).data_in[..], 1_u64.to_be_bytes());
    assert!(net.ended.is_empty());
}
