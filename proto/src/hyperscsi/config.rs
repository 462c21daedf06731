//! What a machine is told when it is made.

use core::fmt;
use core::num::NonZeroU16;
use core::time::Duration;
use std::sync::Arc;

use zeroize::Zeroizing;

use super::address::Endpoint;
use super::aead::{Aead, Ciphers};
use super::command::Level;
use super::compression::Codecs;
use crate::cipher::NewCipher;
use crate::identity::{Identity, PublicKey};

/// Fills a buffer with unpredictable bytes.
pub type Fill = Box<dyn FnMut(&mut [u8]) + Send>;

/// The random bytes of a machine.
pub(super) struct Random(pub(super) Fill);

impl Random {
    /// An array of them.
    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        (self.0)(&mut bytes);
        bytes
    }

    /// A connection id, which is not 0.
    pub(super) fn connection_id(&mut self) -> u32 {
        u32::from_be_bytes(self.array()).max(1)
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Random(..)")
    }
}

/// Bytes of a site key.
pub const SITE_KEY_LEN: usize = 32;

/// The secret that all clients and servers of a site share: without it a server answers nothing. It must be
/// random, since an observer can test guesses. It is in memory once, whatever is cloned, wiped when the last is dropped,
/// and never printed.
#[derive(Clone)]
pub struct SiteKey(Arc<Zeroizing<[u8; SITE_KEY_LEN]>>);

impl SiteKey {
    /// The site key with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; SITE_KEY_LEN]) -> Self {
        Self(Arc::new(Zeroizing::new(bytes)))
    }

    /// Gives its memory to `keep`, which can keep it from being paged out.
    pub fn keep_with(&self, keep: impl FnOnce(&[u8])) {
        keep(&**self.0);
    }

    /// A fresh one.
    pub fn fresh(fill: &mut dyn FnMut(&mut [u8])) -> Self {
        let mut bytes = Zeroizing::new([0; SITE_KEY_LEN]);
        fill(&mut *bytes);
        Self(Arc::new(bytes))
    }

    pub(super) fn expose(&self) -> &[u8; SITE_KEY_LEN] {
        &self.0
    }
}

impl fmt::Debug for SiteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SiteKey(..)")
    }
}

/// The timing of a kind of link (spec, 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The round trip that is assumed before one was measured.
    pub initial_rtt: Duration,
    /// The finest step of the loss timers.
    pub granularity: Duration,
    /// The longest that an acknowledgement is held back.
    pub ack_delay: Duration,
}

impl Timing {
    /// HS/eth.
    pub const ETHERNET: Self = Self {
        initial_rtt: Duration::from_millis(2),
        granularity: Duration::from_micros(100),
        ack_delay: Duration::from_millis(2),
    };

    /// HS/IP.
    pub const IP: Self = Self {
        initial_rtt: Duration::from_millis(333),
        granularity: Duration::from_micros(200),
        ack_delay: Duration::from_millis(5),
    };
}

/// What a sender does about congestion (spec, 9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CongestionControl {
    /// [`Cubic`](Self::Cubic) on short paths, [`Bbr`](Self::Bbr) on long ones.
    #[default]
    ByRtt,
    /// draft-ietf-ccwg-bbr.
    Bbr,
    /// RFC 9002, 7.
    NewReno,
    /// RFC 9438.
    Cubic,
}

/// What both roles have.
#[derive(Clone, Debug)]
pub struct Config {
    /// The key pair of this node.
    pub identity: Identity,
    /// The secret of the site.
    pub site_key: SiteKey,
    /// The ciphers of packets, the preferred one first.
    pub ciphers: Ciphers,
    /// The longest packet, its header included: the MTU of HS/eth, without IP and UDP headers of HS/IP.
    pub packet_max: u16,
    /// The longest packet that is sent by a path before longer ones have been found to arrive.
    pub packet_first: u16,
    /// The most data of one command, in each direction.
    pub data_max: u32,
    /// Commands at a time: 1 to 256.
    pub slots: u16,
    /// Bytes of unfinished messages that a peer may have sent here.
    pub credit: u64,
    /// The timing of the link.
    pub timing: Timing,
    /// What the sender does about congestion.
    pub congestion: CongestionControl,
    /// Without a packet for as long, a packet is asked for.
    pub keep_alive: Duration,
    /// The initiator port of a client: what tells its connections with one server apart (spec, 6.4).
    pub port: u64,
    /// The most paths of a connection: 1 to [`PATHS_MAX`].
    pub paths: u8,
    /// How data of commands may be compressed on their way (spec, 7.6), the preferred way first; not at all if it is empty.
    pub codecs: Codecs,
    /// Data of commands have checksums from end to end (spec, 7.7), if the peer has them too.
    pub checksum: bool,
    /// Packets of a window that is acknowledged as a whole (spec, 9.2), if the peer has such too; each packet by itself if not.
    pub window: Option<NonZeroU16>,
    /// The driver sends packets over IP with the ECN codepoint that it is given, and tells those of packets that come: congestion
    /// control uses it (spec, 9.3), if the peer does it too.
    pub ecn: bool,
    /// The lowest level at which a client uses a device.
    pub least: Level,
    /// Where a server listens: what tells the servers of one identity apart, also after they were restarted (spec, 13).
    pub place: Box<[u8]>,
}

/// What an end may change while there are connections: it counts for them from the next re-authentication on (spec, 10). The
/// fields are those of [`Config`].
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The ciphers of packets, the preferred one first.
    pub ciphers: Ciphers,
    /// The most data of one command; connections keep a larger number that they have.
    pub data_max: u32,
    /// Commands at a time.
    pub slots: u16,
    /// Without a packet for as long, a packet is asked for.
    pub keep_alive: Duration,
    /// How data of commands may be compressed.
    pub codecs: Codecs,
    /// Data of commands have checksums.
    pub checksum: bool,
}

/// The longest packet that every link must carry.
pub const PACKET_MIN: u16 = 1200;

/// The longest one over IP: what jumbo frames of 9000 bytes hold, without the headers of IPv6 and UDP.
const PACKET_MAX_IP: u16 = 8952;

/// What every Ethernet carries (IEEE 802.3: 1500 octets).
const PACKET_ETHERNET: u16 = 1500;

/// Commands at a time, unless told otherwise (paper: 64).
pub const SLOTS: u16 = 64;

/// The most data of one command, unless told otherwise (paper: 512 KiB).
pub const DATA_MAX: u32 = 512 * 1024;

/// The most paths that a connection has (spec, 14).
pub const PATHS_MAX: u8 = 8;

impl Config {
    /// The usual settings for an HS/IP link.
    #[must_use]
    pub fn ip(identity: Identity, site_key: SiteKey, ciphers: Ciphers) -> Self {
        Self {
            identity,
            site_key,
            ciphers,
            packet_max: PACKET_MAX_IP,
            packet_first: PACKET_MIN,
            data_max: DATA_MAX,
            slots: SLOTS,
            credit: u64::from(SLOTS) * u64::from(DATA_MAX),
            timing: Timing::IP,
            congestion: CongestionControl::default(),
            keep_alive: Duration::from_secs(10),
            port: 0,
            paths: 1,
            codecs: &[],
            checksum: false,
            window: None,
            ecn: true,
            least: Level::default(),
            place: Box::default(),
        }
    }

    /// The usual settings for an HS/eth link of this MTU.
    #[must_use]
    pub fn ethernet(identity: Identity, site_key: SiteKey, ciphers: Ciphers, mtu: u16) -> Self {
        Self {
            packet_max: mtu,
            packet_first: mtu.min(PACKET_ETHERNET),
            timing: Timing::ETHERNET,
            ecn: false,
            ..Self::ip(identity, site_key, ciphers)
        }
    }

    /// What of it may change while there are connections.
    #[must_use]
    pub const fn terms(&self) -> Terms {
        Terms {
            ciphers: self.ciphers,
            data_max: self.data_max,
            slots: self.slots,
            keep_alive: self.keep_alive,
            codecs: self.codecs,
            checksum: self.checksum,
        }
    }

    pub(super) const fn set_terms(&mut self, terms: Terms) {
        let Terms { ciphers, data_max, slots, keep_alive, codecs, checksum } = terms;
        (self.ciphers, self.data_max, self.slots) = (ciphers, data_max, slots);
        (self.keep_alive, self.codecs, self.checksum) = (keep_alive, codecs, checksum);
    }

    /// What makes this cipher of a key, if this end has it.
    pub(super) fn cipher(&self, aead: Aead) -> Option<NewCipher> {
        self.ciphers.iter().find(|(one, _)| *one == aead).map(|(_, new_cipher)| *new_cipher)
    }
}

/// The server that a client connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Where it is.
    pub endpoint: Endpoint,
    /// Its key, if it is known; every server of the site is taken if not.
    pub pin: Option<PublicKey>,
}
