//! The ECN field in the IP header of a packet (RFC 3168, 5).

use quinn_udp::EcnCodepoint;

/// What it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// No ECN. Ethernet has none.
    #[default]
    NotEct,
    /// ECT(1).
    Ect1,
    /// ECT(0).
    Ect0,
    /// Congestion was experienced.
    Ce,
}

impl Ecn {
    pub(super) const fn codepoint(self) -> Option<EcnCodepoint> {
        match self {
            Self::NotEct => None,
            Self::Ect1 => Some(EcnCodepoint::Ect1),
            Self::Ect0 => Some(EcnCodepoint::Ect0),
            Self::Ce => Some(EcnCodepoint::Ce),
        }
    }

    pub(super) const fn of(codepoint: Option<EcnCodepoint>) -> Self {
        match codepoint {
            None => Self::NotEct,
            Some(EcnCodepoint::Ect1) => Self::Ect1,
            Some(EcnCodepoint::Ect0) => Self::Ect0,
            Some(EcnCodepoint::Ce) => Self::Ce,
        }
    }
}
