//! From the handshake and the site key to the keys of packets (spec, 5).

use core::fmt;

use hkdf::Hkdf;
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::codec::{FRAGMENT_LEN, HEADER_LEN, MAC_LEN, Sec, TOKEN_LEN};
use super::command::Level;
use super::config::SiteKey;
use crate::cipher::{Cipher, Forged, KEY_LEN, NONCE_LEN, NewCipher, TAG_LEN};
use crate::identity::Identity;

const LABEL: &[u8] = b"longhaul hyperscsi 2";
const HASH_LEN: usize = 32;

/// Bytes of both headers of a fragment, and of a checksum.
const HEADERS_LEN: usize = HEADER_LEN + FRAGMENT_LEN;
const CHECKSUM_LEN: usize = 4;

/// What is before the data of a packet nearly always fits in: the header of a fragment, and that of a request or reply.
const HEAD_MAX: usize = 128;

/// Packets that a sender may protect with the keys of one epoch (RFC 9001, 6.6; spec, 5.5).
pub(super) const PACKETS_MAX: u64 = 1 << 23;

/// Packets with wrong tags that a receiver takes (RFC 9001, 6.6).
pub(super) const FORGED_MAX: u64 = 1 << 36;

/// HMAC-SHA256, which is what HKDF extracts by (RFC 5869, 2.2).
pub(super) fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; HASH_LEN] {
    let (prk, _) = Hkdf::<Sha256>::extract(Some(key), &parts.concat());
    prk.into()
}

fn expand<const N: usize>(secret: &[u8; HASH_LEN], info: &[&[u8]]) -> Zeroizing<[u8; N]> {
    let mut out = Zeroizing::new([0; N]);
    Hkdf::<Sha256>::from_prk(secret)
        .expect("a hash is long enough a key")
        .expand_multi_info(info, &mut *out)
        .expect("one block can always be had");
    out
}

/// What the site key is for: message 1 of a handshake, and MACs.
pub(super) struct SiteKeys {
    mac: Zeroizing<[u8; HASH_LEN]>,
    pub(super) psk: Zeroizing<[u8; HASH_LEN]>,
}

impl SiteKeys {
    pub(super) fn of(key: &SiteKey) -> Self {
        let site = Zeroizing::new(hmac(LABEL, &[key.expose()]));
        Self { mac: expand(&site, &[b"mac"]), psk: expand(&site, &[b"psk"]) }
    }

    pub(super) fn mac(&self, parts: &[&[u8]]) -> [u8; MAC_LEN] {
        truncated(hmac(&*self.mac, parts))
    }

    /// Whether a MAC is that of these parts, in a time that does not tell where it differs.
    pub(super) fn is_mac(&self, parts: &[&[u8]], mac: &[u8]) -> bool {
        self.mac(parts).ct_eq(mac).into()
    }
}

/// The first 16 bytes.
pub(super) fn truncated(hash: [u8; HASH_LEN]) -> [u8; MAC_LEN] {
    let mut short = [0; MAC_LEN];
    short.copy_from_slice(&hash[..MAC_LEN]);
    short
}

/// Makes the tokens by which a server resets connections that it does not know any more (spec, 13).
pub(super) struct ResetKey {
    key: Zeroizing<[u8; HASH_LEN]>,
    place: Box<[u8]>,
}

impl ResetKey {
    /// The key of the server that listens at `place`: no other one of the same identity resets its connections.
    pub(super) fn of(identity: &Identity, place: &[u8]) -> Self {
        let secret = Zeroizing::new(hmac(LABEL, &[identity.secret()]));
        Self { key: expand(&secret, &[b"reset"]), place: place.into() }
    }

    pub(super) fn token(&self, server: u32, client: u32) -> [u8; TOKEN_LEN] {
        truncated(hmac(&*self.key, &[&server.to_be_bytes(), &client.to_be_bytes(), &self.place]))
    }
}

/// What all keys of an epoch come from. It is wiped when dropped.
pub(super) struct Root {
    secret: Zeroizing<[u8; HASH_LEN]>,
    /// The handshake hash.
    pub(super) hash: [u8; HASH_LEN],
}

impl Root {
    pub(super) fn extract(
        hash: [u8; HASH_LEN],
        first: &[u8; KEY_LEN],
        second: &[u8; KEY_LEN],
    ) -> Self {
        let mut input = Zeroizing::new([0; 2 * KEY_LEN]);
        input[..KEY_LEN].copy_from_slice(first);
        input[KEY_LEN..].copy_from_slice(second);
        Self { secret: Zeroizing::new(hmac(&hash, &[&*input])), hash }
    }

    /// The psk of the next re-authentication.
    pub(super) fn resume(&self) -> Zeroizing<[u8; HASH_LEN]> {
        expand(&self.secret, &[LABEL, b": resume"])
    }

    pub(super) fn keys(&self, from_server: bool, new_cipher: NewCipher) -> DirectionKeys {
        let key = |level: u8| {
            let (key, iv) = self.key(from_server, level);
            PacketKey { cipher: new_cipher(&key), iv }
        };
        let [none, integrity, encrypt] =
            [Level::None, Level::Integrity, Level::Encrypt].map(|level| key(level.number()));
        DirectionKeys { none, integrity, encrypt }
    }

    /// The key and the iv of a direction and a level (spec, 5.1).
    fn key(
        &self,
        from_server: bool,
        level: u8,
    ) -> (Zeroizing<[u8; KEY_LEN]>, Zeroizing<[u8; NONCE_LEN]>) {
        let place = [if from_server { b'S' } else { b'C' }, level];
        let key = expand(&self.secret, &[LABEL, b": key", &place]);
        (key, expand(&self.secret, &[LABEL, b": iv", &place]))
    }
}

#[derive(Debug)]
struct PacketKey {
    cipher: Box<dyn Cipher>,
    iv: Zeroizing<[u8; NONCE_LEN]>,
}

impl PacketKey {
    fn nonce(&self, path: u8, number: u64) -> [u8; NONCE_LEN] {
        let mut nonce = *self.iv;
        nonce[3] ^= path;
        nonce[4..].iter_mut().zip(number.to_be_bytes()).for_each(|(byte, bits)| *byte ^= bits);
        nonce
    }
}

/// The keys of one direction in one epoch.
#[derive(Debug)]
pub(super) struct DirectionKeys {
    none: PacketKey,
    integrity: PacketKey,
    encrypt: PacketKey,
}

impl DirectionKeys {
    /// Appends the packet of a header, which tells the body's length with its tag, and a body in parts.
    pub(super) fn seal(
        &self,
        sec: Sec,
        place: (u8, u64),
        (header, body): (&[u8], &[&[u8]]),
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        out.extend_from_slice(header);
        let key = match sec {
            Sec::None => &self.none,
            Sec::Integrity => &self.integrity,
            _ => return self.encrypt(place, (header, body), out),
        };
        let nonce = key.nonce(place.0, place.1);
        body.iter().for_each(|part| out.extend_from_slice(part));
        let packet = &out[start..];
        let tag = match sec {
            Sec::None => {
                let clear = covered(packet).expect("messages alone have this level");
                key.cipher.tag(&nonce, &clear)
            }
            _ => key.cipher.tag(&nonce, packet),
        };
        out.extend_from_slice(&tag);
    }

    /// Appends what follows the header of an encrypted packet. What comes before the last part is short, and is copied before
    /// it; the data are enciphered from where they are.
    fn encrypt(&self, place: (u8, u64), (header, body): (&[u8], &[&[u8]]), out: &mut Vec<u8>) {
        let PacketKey { cipher, .. } = &self.encrypt;
        let nonce = self.encrypt.nonce(place.0, place.1);
        let (data, before) =
            body.split_last().map_or((&[][..], body), |(last, before)| (*last, before));
        let len = before.iter().map(|part| part.len()).sum();
        let mut head = [0; HEAD_MAX];
        let Some(head) = head.get_mut(..len) else {
            return cipher.seal_parts(&nonce, header, [&before.concat(), data], out);
        };
        let bytes = before.iter().copied().flatten();
        head.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        cipher.seal_parts(&nonce, header, [head, data], out);
    }

    /// The body of a packet, decrypted in place.
    pub(super) fn open<'a>(
        &self,
        sec: Sec,
        place: (u8, u64),
        header_len: usize,
        packet: &'a mut [u8],
    ) -> Result<&'a [u8], Forged> {
        let body_len = packet.len().checked_sub(header_len + TAG_LEN).ok_or(Forged)?;
        let (rest, tag) = packet.split_at_mut(header_len + body_len);
        let tag: [u8; TAG_LEN] = (&*tag).try_into().map_err(|_| Forged)?;
        if sec == Sec::None {
            let nonce = self.none.nonce(place.0, place.1);
            let clear = covered(rest).ok_or(Forged)?;
            self.none.cipher.open(&nonce, &clear, &mut [], &tag)?;
            return Ok(&rest[header_len..]);
        }
        if sec == Sec::Integrity {
            let nonce = self.integrity.nonce(place.0, place.1);
            self.integrity.cipher.open(&nonce, rest, &mut [], &tag)?;
            return Ok(&rest[header_len..]);
        }
        let nonce = self.encrypt.nonce(place.0, place.1);
        let (header, body) = rest.split_at_mut(header_len);
        self.encrypt.cipher.open(&nonce, header, body, &tag)?;
        Ok(body)
    }
}

/// What the tag of a packet of level none is made of (spec, 5.3): its headers, and the checksum of the rest.
fn covered(packet: &[u8]) -> Option<[u8; HEADERS_LEN + CHECKSUM_LEN]> {
    let (headers, data) = packet.split_first_chunk::<HEADERS_LEN>()?;
    let mut clear = [0; HEADERS_LEN + CHECKSUM_LEN];
    clear[..HEADERS_LEN].copy_from_slice(headers);
    clear[HEADERS_LEN..].copy_from_slice(&crc_fast::crc32_iscsi(data).to_be_bytes());
    Some(clear)
}

macro_rules! never_printed {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    )*};
}
never_printed!(SiteKeys, ResetKey, Root);

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::hyperscsi::{Aead, Ciphers};
    use crate::iscsi::sealed::soft;

    /// Those of an end.
    pub(in crate::hyperscsi) const CIPHERS: Ciphers = &[
        (Aead::Aes256Gcm, soft::new_aes_256_gcm),
        (Aead::ChaCha20Poly1305, soft::new_chacha20_poly1305),
    ];

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Spec, 16. The values were computed by another program, from RFC 5869.
    #[test]
    fn keys_are_those_of_the_specification() {
        let hash = core::array::from_fn(|at| at as u8);
        let root = Root::extract(hash, &[0x11; KEY_LEN], &[0x22; KEY_LEN]);
        assert_eq!(
            hex(&*root.secret),
            "51eb05d3eea0c25668b40226ad31af0ff7f2c004387226ce91ae8ff7910c1157"
        );
        for (from_server, level, key, iv) in [
            (
                false,
                0,
                "692dc24332567fe072dedf187534354e2bf0843e8039beb78566952f4f3831dd",
                "668ab6ff8d50242b728be9a3",
            ),
            (
                true,
                0,
                "8ba7a2d00feca3576c221604c4a918a281aeaf85878d03e5b3999e2757054a6c",
                "4fe8f0d55a69831e74c7794b",
            ),
            (
                false,
                1,
                "d9288c45564a908280a616ee6e3e4db1ed4ad69e626f68c8235fa6f4ac52261c",
                "2c75005cbcc1178085b33a67",
            ),
            (
                false,
                2,
                "b33cf045655d862cd38a3facf373ee27ad9477fd7bfff4279b9a264bbfd8570a",
                "e992df192253cfd24c6748f5",
            ),
            (
                true,
                1,
                "a88433aa5d30d2cfef459b9cdd9ac3c7e9ebd22df7f4d24beeef57ab74b905b8",
                "85e23ae730adeb7c012d5b40",
            ),
            (
                true,
                2,
                "e952d41869455174f66d80d5941df4276235b7efea3d262efcf69c672cc04378",
                "f8f51630bcae2f9bef3c61dd",
            ),
        ] {
            let found = root.key(from_server, level);
            assert_eq!((hex(&*found.0), hex(&*found.1)), (key.to_owned(), iv.to_owned()));
        }
        assert_eq!(
            hex(&*root.resume()),
            "616b31691afca3f6735c94a25011a0cd6b1a72a2bbcbf16907c042e513be55e5"
        );
    }

    /// Spec, 16.
    #[test]
    fn keys_of_a_site_are_those_of_the_specification() {
        let site = SiteKeys::of(&SiteKey::from_bytes([7; 32]));
        assert_eq!(
            hex(&*site.mac),
            "5f6d2bbffe4b2e37d33e807af1a0fc700eaee34288752e20131c8e5a795b0783"
        );
        assert_eq!(
            hex(&*site.psk),
            "f356e12aec19aef5ce35cdceff6bca9e5d5998f3f36a2c9ad2ce2ef1ca5cce48"
        );
        assert_eq!(hex(&site.mac(&[b"P", &[5; 16]])), "945205ce8951c1ef6ef7eed7c72bb17d");
    }

    /// Spec, 16. The values were computed by another program.
    #[test]
    fn packets_of_the_specification_have_its_tags() {
        let root = Root::extract(core::array::from_fn(|at| at as u8), &[0x11; 32], &[0x22; 32]);
        let tags = [
            [
                (Sec::None, 0x10, "5aa432f3d74b316f3cab02c71d67e013"),
                (Sec::Integrity, 0x50, "a6a67ac66cd2f91bf5f2d2ff4e377424"),
                (Sec::Encrypt, 0x90, "704bc1daf2f5a3f5655db0e29be0c99f"),
            ],
            [
                (Sec::None, 0x10, "f956a19b7e59faf19f47dd0c30dac2e2"),
                (Sec::Integrity, 0x50, "d52849f30321416afe0c77d0c3b5413b"),
                (Sec::Encrypt, 0x90, "ea5a18cd8b19e2d4de414bc74fb476af"),
            ],
        ];
        for ((_, new_cipher), tags) in CIPHERS.iter().zip(tags) {
            let keys = root.keys(false, *new_cipher);
            for (sec, first, tag) in tags {
                let header = [
                    first, 0x2c, 3, 2, 0, 0x80, 0, 100, 1, 2, 3, 4, 0, 7, 0, 2, 0, 0, 0, 0, 0, 0,
                    0, 9,
                ];
                let mut packet = Vec::new();
                keys.seal(sec, (0, 9), (&header, &[&[0x5a; 84]]), &mut packet);
                assert_eq!(hex(&packet[108..]), tag);
                assert_eq!(keys.open(sec, (0, 9), HEADER_LEN, &mut packet), Ok(&[0x5a; 84][..]));
            }
        }
    }

    /// Spec, 16.
    #[test]
    fn nonce_of_the_specification_has_the_path_in_it() {
        let iv = Zeroizing::new(core::array::from_fn(|at| at as u8));
        let key = PacketKey { cipher: soft::new_aes_256_gcm(&[0; KEY_LEN]), iv };
        assert_eq!(key.nonce(3, 9), [0, 1, 2, 0, 4, 5, 6, 7, 8, 9, 10, 2]);
    }
}
