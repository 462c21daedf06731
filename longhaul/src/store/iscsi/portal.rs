//! Addresses of targets, as they write them.

use std::net::IpAddr;

use crate::uri::Host;

/// Reads `host[:port][,tag]`, as targets write it (RFC 7143, 13.8).
pub(super) fn portal(address: &str) -> Option<Host> {
    address.split(',').next()?.parse().ok()
}

/// Whether an address means the machine that uses it.
pub(super) fn is_here(portal: &Host) -> bool {
    let here = |address: IpAddr| {
        let address = address.to_canonical();
        address.is_loopback() || address.is_unspecified()
    };
    portal.name.eq_ignore_ascii_case("localhost") || portal.name.parse().is_ok_and(here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_targets_write_them() {
        let host = |name: &str, port| Some(Host { name: name.into(), port });
        assert_eq!(portal("10.0.0.1:3261,1"), host("10.0.0.1", 3261));
        assert_eq!(portal("disk.example"), host("disk.example", 3260));
        assert_eq!(portal("[fe80::1]:3260,2"), host("fe80::1", 3260));
        for wrong in ["", ":3260", "[fe80::1", "host:port", "[::1]x", "host:99999"] {
            assert_eq!(portal(wrong), None, "{wrong}");
        }
    }
}
