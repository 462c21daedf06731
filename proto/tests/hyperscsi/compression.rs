//! Data that are compressed on their way (spec, 7.6).

use super::net::*;
use super::pattern;
use proto::hyperscsi::*;
use proto::scsi::status::Status;

/// Data of one byte over and over, as that byte.
#[derive(Debug)]
struct OneByte(Algorithm);

impl Codec for OneByte {
    fn algorithm(&self) -> Algorithm {
        self.0
    }

    fn compress(&self, data: &[u8], _most: usize) -> Option<Vec<u8>> {
        data.iter().all(|byte| *byte == data[0]).then(|| vec![data[0]])
    }

    fn restore(&self, data: &[u8], len: usize) -> Option<Vec<u8>> {
        let [byte] = data else { return None };
        Some(vec![*byte; len])
    }
}

const NONE: Codecs = &[];
pub(super) const LZ4: Codecs = &[&OneByte(Algorithm::Lz4)];
const ZSTD: Codecs = &[&OneByte(Algorithm::Zstd)];
const BOTH: Codecs = &[&OneByte(Algorithm::Zstd), &OneByte(Algorithm::Lz4)];

const LEN: usize = 256 * 1024;

/// The bytes on the wire of a write and a read of these data, and what they were compressed by.
fn moved(client: Codecs, server: Codecs, data: &[u8]) -> (usize, Option<Algorithm>) {
    let with = |config, codecs| Config { codecs, ..config };
    let (client, server) = (with(config(CLIENT, SITE), client), with(config(SERVER, SITE), server));
    let mut net = Net::with(5, CALM, client, server);
    net.connect();
    let before = net.wiretap.len();
    for device in [DEVICE, READABLE] {
        let id = net.submit(write(device, 3, data.to_vec()));
        assert_eq!(net.reply(id), Reply::status(Status::Good));
        let id = net.submit(read(device, 3, data.len()));
        assert!(net.reply(id).data_in == data);
    }
    let agreed = net.client.compression();
    assert_eq!(net.server.compression(net.connection.unwrap()), agreed);
    (net.wiretap[before..].iter().map(|(_, bytes)| bytes.len()).sum(), agreed)
}

#[test]
fn data_are_compressed_as_both_ends_can() {
    let zeroes = vec![0; LEN];
    for (client, server, agreed) in [
        (NONE, BOTH, None),
        (LZ4, NONE, None),
        (LZ4, ZSTD, None),
        (LZ4, BOTH, Some(Algorithm::Lz4)),
        (ZSTD, BOTH, Some(Algorithm::Zstd)),
        (BOTH, BOTH, Some(Algorithm::Zstd)),
    ] {
        let (bytes, by) = moved(client, server, &zeroes);
        assert_eq!(by, agreed);
        assert_eq!(bytes < LEN / 4, agreed.is_some(), "{agreed:?}: {bytes} bytes");
    }
    let (bytes, _) = moved(BOTH, BOTH, &pattern(1, LEN));
    assert!(bytes > 4 * LEN, "what does not get shorter goes as it is: {bytes} bytes");
}

/// Both ends have the same algorithm by name and not the same bytes: a connection that gives other data must not go on.
#[test]
fn data_that_cannot_be_restored_end_the_connection() {
    #[derive(Debug)]
    struct Broken;
    impl Codec for Broken {
        fn algorithm(&self) -> Algorithm {
            Algorithm::Lz4
        }
        fn compress(&self, _: &[u8], _: usize) -> Option<Vec<u8>> {
            Some(vec![1, 2, 3])
        }
        fn restore(&self, _: &[u8], _: usize) -> Option<Vec<u8>> {
            None
        }
    }
    const BROKEN: Codecs = &[&Broken];
    for (client, server) in [(BROKEN, LZ4), (LZ4, BROKEN)] {
        let with = |config, codecs| Config { codecs, ..config };
        let (client, server) =
            (with(config(CLIENT, SITE), client), with(config(SERVER, SITE), server));
        let mut net = Net::with(6, CALM, client, server);
        net.connect();
        net.disk.fill(0);
        let id = net.submit(read(DEVICE, 0, LEN));
        let other = net.submit(write(DEVICE, 1000, vec![0; LEN]));
        let (_, unanswered) = super::ended(&mut net);
        assert!(unanswered.contains(&id) || unanswered.contains(&other));
    }
}
