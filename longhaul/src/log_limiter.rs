//! Bounds the log lines about one address: a peer that connects again and again must not fill the disk.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

/// Lines about an address in each [`SPAN`]: a machine whose many initiators come back at once is heard, and nobody
/// writes more than some 30 MB a day.
const LINES_MAX: u32 = 120;

/// Lines about what is tried again all the time.
const RETRIES_MAX: u32 = 3;

/// After that it begins anew.
const SPAN: Duration = Duration::from_secs(60);

/// Addresses that are told apart at a time; those beyond them count as one.
const ADDRESSES_MAX: usize = 1024;

/// The lines that were written in the last span.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter(Mutex<BTreeMap<IpAddr, Lines>>);

#[derive(Debug)]
struct Lines {
    since: Instant,
    written: u32,
    suppressed: u64,
}

/// Permission to write a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permit {
    /// How many lines about the same address were held back before it.
    pub(crate) suppressed: Option<u64>,
}

impl LogLimiter {
    /// Whether a line about `peer` may be written now.
    pub(crate) fn permit(&self, peer: SocketAddr) -> Option<Permit> {
        let address = network(peer.ip());
        let (permit, last) = self.admit(address, Instant::now());
        if last {
            warn!(%address, "too many lines about it: more are held back for a minute");
        }
        permit
    }

    /// Also whether it is the last for now.
    fn admit(&self, address: IpAddr, now: Instant) -> (Option<Permit>, bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&address) {
            all.retain(|_, lines| now - lines.since < SPAN);
        }
        let full = all.len() >= ADDRESSES_MAX && !all.contains_key(&address);
        let address = if full { Ipv6Addr::UNSPECIFIED.into() } else { address };
        let lines = all.entry(address).or_insert_with(|| Lines::new(now));
        lines.admit(LINES_MAX, now)
    }
}

impl Lines {
    const fn new(since: Instant) -> Self {
        Self { since, written: 0, suppressed: 0 }
    }

    /// Whether one more may be written, of so many at `most`, and whether it is the last for now.
    fn admit(&mut self, most: u32, now: Instant) -> (Option<Permit>, bool) {
        let suppressed = if now - self.since >= SPAN {
            std::mem::replace(self, Self::new(now)).suppressed
        } else {
            0
        };
        if self.written == most {
            self.suppressed += 1;
            return (None, false);
        }
        self.written += 1;
        let permit = Permit { suppressed: (suppressed > 0).then_some(suppressed) };
        (Some(permit), self.written == most)
    }
}

/// Bounds the log lines about one thing, whatever address has to do with it.
#[derive(Debug)]
pub(crate) struct LineLimiter {
    lines: Mutex<Lines>,
    /// In each span.
    most: u32,
}

impl Default for LineLimiter {
    fn default() -> Self {
        Self { lines: Mutex::new(Lines::new(Instant::now())), most: LINES_MAX }
    }
}

impl LineLimiter {
    /// Bounds the lines about what fails again and again.
    pub(crate) fn of_retries() -> Self {
        Self { most: RETRIES_MAX, ..Self::default() }
    }

    /// Whether a line may be written now, and whether it is the last one for a minute.
    pub(crate) fn permit(&self) -> Option<(Permit, bool)> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let (permit, last) = lines.admit(self.most, Instant::now());
        permit.map(|permit| (permit, last))
    }
}

/// Whoever has one IPv6 address has the 2^64 beside it.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    #[test]
    fn one_address_fills_its_part_and_says_what_it_did_not() {
        let (limiter, start) = (LogLimiter::default(), Instant::now());
        let admit = |number, after| limiter.admit(address(number), start + after);
        for line in 1..=LINES_MAX {
            let (permit, last) = admit(1, Duration::ZERO);
            assert_eq!((permit, last), (Some(Permit { suppressed: None }), line == LINES_MAX));
        }
        for _ in 0..9 {
            assert_eq!(admit(1, SPAN - Duration::from_nanos(1)), (None, false));
        }
        assert!(admit(2, Duration::ZERO).0.is_some(), "others are heard");
        assert_eq!(admit(1, SPAN), (Some(Permit { suppressed: Some(9) }), false));
        assert_eq!(admit(1, SPAN), (Some(Permit { suppressed: None }), false));
    }

    #[test]
    fn one_thing_is_told_of_a_bounded_number_of_times() {
        for (limiter, most) in
            [(LineLimiter::default(), LINES_MAX), (LineLimiter::of_retries(), RETRIES_MAX)]
        {
            let permits: Vec<_> = (0..LINES_MAX + 9).map_while(|_| limiter.permit()).collect();
            let last = permits.iter().position(|(_, last)| *last);
            assert_eq!((permits.len(), last), (most as usize, Some(most as usize - 1)));
        }
    }

    #[test]
    fn many_addresses_are_one() {
        let (limiter, start) = (LogLimiter::default(), Instant::now());
        let heard = |from: u32, after| {
            let admitted =
                |number: &u32| limiter.admit(address(*number), start + after).0.is_some();
            (from..from + 5000).filter(admitted).count()
        };
        let most = ADDRESSES_MAX + LINES_MAX as usize;
        assert_eq!(heard(0, Duration::ZERO), most);
        assert_eq!(heard(5000, Duration::ZERO), 0);
        assert_eq!(limiter.0.lock().unwrap().len(), ADDRESSES_MAX + 1);
        assert_eq!(heard(10_000, SPAN), most, "what is old is forgotten");
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("::ffff:192.0.2.1"), of("::ffff:192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
