//! Addresses of links.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations of a network.
    pub const BROADCAST: Self = Self([0xFF; 6]);

    /// Whether it names a group of stations (IEEE 802, 8.2: the first bit on the wire), which nothing is sent from.
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What is no Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an Ethernet address has six pairs of hexadecimal digits with colons between, as 02:00:5e:10:00:01"
)]
pub struct ParseMacError;

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let mut octets = [0; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let part = parts.next().ok_or(ParseMacError)?;
            let is_pair = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            *octet = u8::from_str_radix(part, 16).ok().filter(|_| is_pair).ok_or(ParseMacError)?;
        }
        if parts.next().is_some() { Err(ParseMacError) } else { Ok(Self(octets)) }
    }
}

/// Where a packet comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A station of the network that the link is on.
    Ethernet(Mac),
    /// A socket elsewhere.
    Ip {
        /// That socket.
        remote: SocketAddr,
        /// The address at this end that it sends to, of a machine that has several. `None` leaves it to the system.
        local: Option<IpAddr>,
    },
}

impl From<SocketAddr> for Address {
    fn from(remote: SocketAddr) -> Self {
        Self::Ip { remote, local: None }
    }
}

impl From<Mac> for Address {
    fn from(mac: Mac) -> Self {
        Self::Ethernet(mac)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ethernet(mac) => mac.fmt(f),
            Self::Ip { remote, .. } => remote.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_is_read_as_it_is_shown() {
        let mac: Mac = "02:00:5e:10:00:0A".parse().unwrap();
        assert_eq!(mac, Mac([2, 0, 0x5e, 0x10, 0, 10]));
        assert_eq!(mac.to_string(), "02:00:5e:10:00:0a");
        assert_eq!("02-00-5e-10-00-0a".parse(), Ok(mac));
        assert!(Mac::BROADCAST.is_group() && !mac.is_group());
    }

    #[test]
    fn mac_of_another_form_is_refused() {
        for wrong in
            ["", "02:00:5e:10:00", "02:00:5e:10:00:0a:01", "2:0:5e:10:0:a", "02:00:5e:10:00:+1"]
        {
            assert_eq!(wrong.parse::<Mac>(), Err(ParseMacError), "{wrong}");
        }
    }
}
