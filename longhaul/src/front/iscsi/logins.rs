//! The logins under way, and which of them makes way when there are too many.
//!
//! Whoever can reach a portal can connect without end. What that costs others is bounded: first goes what comes from a
//! network that has more than its share of the places, then what has sent nothing, then what has only said who it
//! is, and of those the oldest. So connections that send nothing end no login that has begun, however many they are;
//! and whatever comes from fewer than four networks ends no login from another one that has no more than its share.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::oneshot;

/// One network has one of so many parts of all places, when they are short.
const PARTS: usize = 4;

/// How far a login has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LoginStage {
    /// Nothing has come that is a request.
    Silent,
    /// It has begun.
    Begun,
    /// The initiator has proven who it is.
    Proven,
}

/// The slot of a login among the others: how far it has got, and what is closed when it has to make way. The
/// slot is free when the latter is dropped.
pub(super) type LoginSlot = (LoginProgress, oneshot::Receiver<()>);

/// How far a login has got, for others to see.
pub(super) struct LoginProgress(Arc<AtomicU8>);

impl LoginProgress {
    pub(super) fn reach(&self, stage: LoginStage) {
        self.0.fetch_max(stage as u8, Ordering::Relaxed);
    }
}

struct Login {
    network: Network,
    stage: Arc<AtomicU8>,
    /// Dropped, it ends the login.
    slot: oneshot::Sender<()>,
}

/// What one site is given: 24 bits of an IPv4 address, 64 of an IPv6 one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Network {
    V4([u8; 3]),
    V6([u16; 4]),
}

impl From<SocketAddr> for Network {
    fn from(peer: SocketAddr) -> Self {
        match peer.ip().to_canonical() {
            IpAddr::V4(address) => {
                let [a, b, c, _] = address.octets();
                Self::V4([a, b, c])
            }
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self::V6([a, b, c, d])
            }
        }
    }
}

/// The logins under way, oldest first.
#[derive(Default)]
pub(super) struct Logins(VecDeque<Login>);

impl Logins {
    /// A login begins. If there are more than `most` now, one is told to end.
    pub(super) fn begin(&mut self, peer: SocketAddr, most: usize) -> LoginSlot {
        let (network, most) = (Network::from(peer), most.max(1));
        self.0.retain(|login| !login.slot.is_closed());
        while self.0.len() >= most {
            let Some(last) = self.last(network, most) else { break };
            self.0.remove(last);
        }
        let stage = Arc::new(AtomicU8::new(LoginStage::Silent as u8));
        let (slot, given_up) = oneshot::channel();
        self.0.push_back(Login { network, stage: Arc::clone(&stage), slot });
        (LoginProgress(stage), given_up)
    }

    /// Which of them makes way for one from `newcomer`.
    fn last(&self, newcomer: Network, most: usize) -> Option<usize> {
        let share = (most / PARTS).max(1);
        let mut of_network = BTreeMap::from([(newcomer, 1)]);
        for login in &self.0 {
            *of_network.entry(login.network).or_insert(0) += 1;
        }
        let worth = |(age, login): &(usize, &Login)| {
            let within = of_network.get(&login.network).is_none_or(|count| *count <= share);
            (within, login.stage.load(Ordering::Relaxed), *age)
        };
        self.0.iter().enumerate().min_by_key(worth).map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 7)
    }

    fn is_over(slot: &mut LoginSlot) -> bool {
        slot.1.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    /// Each row: what came before, and the stage it has reached; and the one that makes way for another from the
    /// first address.
    #[test]
    fn the_login_that_makes_way_is_the_one_with_least_claim() {
        use LoginStage::{Begun, Proven, Silent};
        let (a, near, far, six) = ("192.0.2.1", "192.0.2.200", "198.51.100.1", "2001:db8::1");
        let rows: [(&[(&str, LoginStage)], usize); 6] = [
            (&[(a, Silent), (a, Silent), (a, Silent), (a, Silent)], 0),
            (&[(a, Begun), (a, Silent), (a, Begun), (near, Proven)], 1),
            (&[(a, Proven), (a, Begun), (a, Proven), (near, Begun)], 1),
            (&[(far, Silent), (a, Begun), (near, Begun), (six, Silent)], 1),
            (&[(far, Silent), (far, Begun), (far, Proven), (a, Proven)], 0),
            (
                &[
                    (far, Silent),
                    (six, Begun),
                    ("2001:db8:0:1::1", Begun),
                    ("::ffff:192.0.2.9", Proven),
                ],
                3,
            ),
        ];
        for (before, expected) in rows {
            let mut logins = Logins::default();
            let begin = |(address, stage): &(&str, LoginStage)| {
                let slot = logins.begin(from(address), before.len());
                slot.0.reach(*stage);
                slot
            };
            let mut places: Vec<_> = before.iter().map(begin).collect();
            let _newcomer = logins.begin(from(a), before.len());
            let over: Vec<_> = places.iter_mut().map(is_over).collect();
            let only: Vec<_> = (0..before.len()).map(|at| at == expected).collect();
            assert_eq!(over, only, "{before:?}");
        }
    }

    /// The bound that the limits state.
    #[test]
    fn a_flood_from_three_networks_ends_no_login_from_a_fourth() {
        const MOST: usize = 64;
        let mut logins = Logins::default();
        let mut flood = Vec::new();
        let mut honest: Vec<LoginSlot> = Vec::new();
        for round in 0..10_000_u32 {
            let slot = logins.begin(from(&format!("10.0.{}.{}", round % 3, round % 250)), MOST);
            slot.0.reach(if round % 2 == 0 { LoginStage::Proven } else { LoginStage::Silent });
            flood.push(slot);
            if round % 500 == 0 && honest.len() < MOST / PARTS {
                honest.push(logins.begin(from("10.1.0.1"), MOST));
            }
            flood.retain_mut(|slot| !is_over(slot));
            assert!(flood.len() + honest.len() <= MOST);
            assert!(!honest.iter_mut().any(is_over), "{round}");
        }
        assert_eq!(honest.len(), MOST / PARTS);
    }

    #[test]
    fn ended_login_takes_no_slot() {
        let mut logins = Logins::default();
        let mut first = logins.begin(from("192.0.2.1"), 2);
        drop(logins.begin(from("192.0.2.1"), 2));
        let _third = logins.begin(from("192.0.2.1"), 2);
        assert!(!is_over(&mut first));
    }
}
