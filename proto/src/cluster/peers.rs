//! The other gateways that look at the record, and the weight of each: of those in standby the one with the most comes first.
//!
//! No clock is compared with another's: a gateway is there if what it shows of itself has changed while this one looked.

use std::collections::BTreeMap;
use std::time::Duration;

use super::record::GatewayName;
use crate::time::Time;

/// The part of a lease after which a gateway is not there that has shown nothing new: it would have looked at the record twice.
const ABSENT: u32 = 4;

/// The part of a lease after which what was seen before says nothing of whether a gateway runs.
const FORGOTTEN: u32 = 2;

/// What a gateway has shown of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sign {
    /// Another one each time that it looks at the record.
    pub mark: Vec<u8>,
    /// How much it is to be active.
    pub weight: u16,
}

/// What each of the other gateways has shown last.
pub type Signs = BTreeMap<GatewayName, Sign>;

#[derive(Clone, Debug)]
struct Peer {
    sign: Sign,
    first: Time,
    changed: Option<Time>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers {
    seen: BTreeMap<GatewayName, Peer>,
    at: Option<Time>,
    /// The last look has succeeded.
    is_known: bool,
}

impl Peers {
    /// They could not be looked at: nobody is waited for, and nobody's weight is known.
    pub(super) fn fail(&mut self, now: Time) {
        *self = Self { at: Some(now), ..Self::default() };
    }

    /// Whether their weights are known.
    pub(super) const fn is_known(&self) -> bool {
        self.is_known
    }

    /// What they show now.
    pub(super) fn see(&mut self, now: Time, signs: Signs, lease: Duration) {
        if self.at.is_none_or(|at| now - at >= lease / FORGOTTEN) {
            self.seen.clear();
        }
        let before = std::mem::take(&mut self.seen);
        let peer = |(name, sign): (GatewayName, Sign)| {
            let peer = match before.get(&name) {
                None => Peer { sign, first: now, changed: None },
                Some(known) if known.sign.mark == sign.mark => Peer { sign, ..known.clone() },
                Some(known) => Peer { sign, changed: Some(now), ..known.clone() },
            };
            (name, peer)
        };
        self.seen = signs.into_iter().map(peer).collect();
        (self.at, self.is_known) = (Some(now), true);
    }

    /// Whether they were looked at then, or later.
    pub(super) fn is_seen_since(&self, time: Time) -> bool {
        self.at.is_some_and(|at| at >= time)
    }

    /// That of one that may have ended since.
    pub(super) fn weight_of(&self, gateway: &GatewayName) -> u16 {
        self.seen.get(gateway).map_or(0, |peer| peer.sign.weight)
    }

    /// Whether there is one with more weight than this, none of `others`, or that may be.
    pub(super) fn is_heavier_there(
        &self,
        now: Time,
        (weight, lease): (u16, Duration),
        others: [Option<&GatewayName>; 2],
    ) -> bool {
        let is_there = |peer: &Peer| match peer.changed {
            Some(changed) => now - changed < lease,
            None => now - peer.first < lease / ABSENT,
        };
        let mut peers = self.seen.iter();
        peers.any(|(name, peer)| {
            peer.sign.weight > weight && !others.contains(&Some(name)) && is_there(peer)
        })
    }
}
