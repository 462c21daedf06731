//! Login (RFC 7143, 6.3): who the two sides are, proof of it, and the parameters they agree on.
//!
//! Both machines are values that a PDU consumes and turns into the next: what is not known yet has
//! no place in a state, and a state that has ended cannot be used again.
//!
//! - [`TargetLogin`](target::TargetLogin) answers requests, asks for [admission](target::Admission)
//!   before the last answer, and ends in [`target::Established`].
//! - [`InitiatorLogin`](initiator::InitiatorLogin) asks, and ends in [`initiator::Established`].

pub mod initiator;
pub mod invitations;
pub mod policy;
pub mod target;

use std::fmt;

use super::chap::Challenge;
use super::sealed::{Ephemeral, INVITATION_KEY, NOISE_KEY, PROOF_KEY};
use super::text::Pair;

/// The one version there is (RFC 7143, 11.12.4).
const VERSION: u8 = 0;

/// The most PDUs a login takes from its peer. The longest sensible one, mutual CHAP with large texts,
/// stays below 20; a peer that never comes to an end does not.
const EXCHANGES_MAX: u32 = 64;

/// The random values of one login, whichever of them it comes to need.
#[derive(Debug)]
pub struct Entropy {
    /// For CHAP.
    pub challenge: Challenge,
    /// For a sealed session.
    pub ephemeral: Ephemeral,
}

impl Entropy {
    /// Fresh values; `fill` fills a buffer with unpredictable bytes.
    pub fn fresh(fill: &mut dyn FnMut(&mut [u8])) -> Self {
        Self { challenge: Challenge::fresh(fill), ephemeral: Ephemeral::fresh(fill) }
    }
}

/// A stage, as CSG and NSG name it (RFC 7143, 11.12.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Security,
    Operational,
    FullFeature,
}

impl Phase {
    const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Security),
            1 => Some(Self::Operational),
            3 => Some(Self::FullFeature),
            _ => None,
        }
    }

    const fn bits(self) -> u8 {
        match self {
            Self::Security => 0,
            Self::Operational => 1,
            Self::FullFeature => 3,
        }
    }
}

/// How a login went: class and detail (RFC 7143, 11.13.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LoginStatus {
    /// The class: success, redirection, or whose error.
    pub class: u8,
    /// Which of its class.
    pub detail: u8,
}

macro_rules! statuses {
    ($($constant:ident = $class:literal / $detail:literal, $name:literal;)*) => {
        impl LoginStatus {
            $(
                #[doc = $name]
                pub const $constant: Self = Self { class: $class, detail: $detail };
            )*

            /// What the standard calls it.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match (self.class, self.detail) {
                    $(($class, $detail) => Some($name),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0 / 0, "success";
    MOVED_TEMPORARILY = 1 / 1, "target moved temporarily";
    MOVED_PERMANENTLY = 1 / 2, "target moved permanently";
    INITIATOR_ERROR = 2 / 0, "initiator error";
    AUTHENTICATION_FAILURE = 2 / 1, "authentication failure";
    AUTHORIZATION_FAILURE = 2 / 2, "authorization failure";
    NOT_FOUND = 2 / 3, "target not found";
    TARGET_REMOVED = 2 / 4, "target removed";
    UNSUPPORTED_VERSION = 2 / 5, "unsupported version";
    TOO_MANY_CONNECTIONS = 2 / 6, "too many connections";
    MISSING_PARAMETER = 2 / 7, "missing parameter";
    CANNOT_INCLUDE = 2 / 8, "cannot include connection in session";
    SESSION_TYPE_NOT_SUPPORTED = 2 / 9, "session type not supported";
    SESSION_DOES_NOT_EXIST = 2 / 10, "session does not exist";
    INVALID_DURING_LOGIN = 2 / 11, "invalid during login";
    TARGET_ERROR = 3 / 0, "target error";
    SERVICE_UNAVAILABLE = 3 / 1, "service unavailable";
    OUT_OF_RESOURCES = 3 / 2, "out of resources";
}

impl fmt::Display for LoginStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name().unwrap_or("unknown status");
        write!(f, "{name} ({:02x}/{:02x})", self.class, self.detail)
    }
}

impl fmt::Debug for LoginStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The keys of authentication that mean something; of CHAP, those of RFC 7143, 12.1.3.
const SECURITY_KEYS: [&str; 9] = [
    "AuthMethod",
    "CHAP_A",
    "CHAP_I",
    "CHAP_C",
    "CHAP_N",
    "CHAP_R",
    NOISE_KEY,
    INVITATION_KEY,
    PROOF_KEY,
];

/// Whether a key belongs to authentication and not to the table of operational keys.
fn is_security(pair: &Pair<'_>) -> bool {
    SECURITY_KEYS.contains(&pair.key) || pair.key.starts_with("CHAP_")
}

/// The value of a key that may stand once.
fn value<'a>(pairs: &[Pair<'a>], key: &str) -> Option<&'a str> {
    pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value)
}
