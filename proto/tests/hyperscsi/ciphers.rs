//! The cipher that two ends choose (spec, 5.6).

use core::time::Duration;
use std::collections::BTreeSet;

use super::net::*;
use super::{ended, pattern};
use proto::hyperscsi::*;
use proto::scsi::status::Status;

fn net(client: Ciphers, server: Ciphers) -> Net {
    let with = |config, ciphers| Config { ciphers, ..config };
    Net::with(21, CALM, with(config(CLIENT, SITE), client), with(config(SERVER, SITE), server))
}

#[test]
fn connection_has_the_cipher_that_its_ends_choose() {
    use Aead::{Aes256Gcm, ChaCha20Poly1305};
    for (client, server, chosen) in [
        // An end that knows no option of ciphers is one that has AES alone.
        (AES, AES, Aes256Gcm),
        (AES, CHACHA_FIRST, Aes256Gcm),
        (CHACHA_FIRST, AES, Aes256Gcm),
        (AES_FIRST, AES_FIRST, Aes256Gcm),
        (AES_FIRST, CHACHA_FIRST, ChaCha20Poly1305),
        (CHACHA_FIRST, AES_FIRST, ChaCha20Poly1305),
        (CHACHA, AES_FIRST, ChaCha20Poly1305),
        (AES_FIRST, CHACHA, ChaCha20Poly1305),
    ] {
        let mut net = net(client, server);
        net.connect();
        assert_eq!(net.client.cipher(), Some(chosen));
        assert_eq!(net.server.cipher(net.connection.unwrap()), Some(chosen));
        for device in [DEVICE, READABLE] {
            let data = pattern(1, 64 * BLOCK);
            let id = net.submit(write(device, 3, data.clone()));
            assert_eq!(net.reply(id), Reply::status(Status::Good));
            let id = net.submit(read(device, 3, data.len()));
            assert!(net.reply(id).data_in == data);
        }
        net.assert_numbers_are_unique();
    }
}

/// Who insists on a cipher gets no other.
#[test]
fn ends_without_a_common_cipher_do_not_connect() {
    for (client, server) in [(AES, CHACHA), (CHACHA, AES)] {
        let mut net = net(client, server);
        assert_eq!(ended(&mut net).0, Ended::NoCipher);
        assert_eq!(net.connection, None);
    }
}

/// Spec, 10: the keys of later epochs are for the same cipher.
#[test]
fn cipher_stays_when_keys_change() {
    let mut net = net(AES_FIRST, CHACHA_FIRST);
    net.connect();
    let mut epochs = BTreeSet::new();
    for round in 1..=100 {
        let id = net.submit(increment());
        assert_eq!(net.reply(id).data_in[..], u64::to_be_bytes(round));
        net.pass(Duration::from_secs(6));
        let sealed = net.wiretap.drain(..).filter(|(_, bytes)| matches!(bytes[0] >> 6, 1 | 2));
        epochs.extend(sealed.map(|(_, bytes)| bytes[0] >> 4 & 3));
    }
    assert_eq!((epochs.len(), net.client.cipher()), (4, Some(Aead::ChaCha20Poly1305)));
    assert!(net.ended.is_empty() && net.events.is_empty());
}
