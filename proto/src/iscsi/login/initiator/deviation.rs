//! What a target may get wrong at the login, since nobody loses anything by it.
//!
//! A target whose key is pinned may not: it is one of ours, and what is wrong then was changed on its way. Nor may one
//! that a further connection logs in to, whose session has a name.

use super::Common;
use crate::iscsi::keys::Key;
use crate::iscsi::text::Pair;

/// A rule that a target does not keep, though it can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Deviation {
    /// The session goes by another name than it was given.
    #[error("its Login Response has another ISID than the request (RFC 7143, 11.13)")]
    OtherIsid,
    /// The session has no name at the target.
    #[error("its login ends with TSIH 0 (RFC 7143, 11.13.3)")]
    NoTsih,
    /// It says back what was asked, by a key that only an initiator may send.
    #[error("it sends {0}, which only an initiator may (RFC 7143, 13)")]
    Echo(Key),
    /// It has a name that no node may have.
    #[error("its name is not well formed (RFC 7143, 4.2.7)")]
    TargetName,
    /// It gives several statuses one number.
    #[error("it uses a StatSN more than once (RFC 7143, 4.2.2.2)")]
    StatSn,
    /// It says that more or fewer bytes came than it has sent.
    #[error("a residual count of its answers is wrong (RFC 7143, 11.4.5)")]
    Residual,
}

impl Deviation {
    /// Whether a later login cannot name the session, to take its place or to join it.
    #[must_use]
    pub const fn leaves_session_unnamed(self) -> bool {
        matches!(self, Self::OtherIsid | Self::NoTsih)
    }
}

impl Common {
    /// Whether what the target does wrong is accepted; then it is noted.
    pub(super) fn accept(&mut self, deviation: Deviation) -> bool {
        if self.config.pinned.is_some() || self.place.tsih != 0 {
            return false;
        }
        // A discovery session holds nothing, so that nobody need hear of it.
        if self.config.target.is_some() && !self.deviations.contains(&deviation) {
            self.deviations.push(deviation);
        }
        true
    }

    pub(super) fn judge_target_name(&mut self) {
        if self.config.target.as_ref().is_some_and(|name| !name.is_well_formed()) {
            self.accept(Deviation::TargetName);
        }
    }

    /// Leaves out the pairs with which the target only repeats what it was asked.
    pub(super) fn without_echoes<'a>(&mut self, pairs: &[Pair<'a>]) -> Vec<Pair<'a>> {
        let mut rest = Vec::new();
        for pair in pairs {
            let echo = self.echoed(pair).map(Deviation::Echo);
            if !echo.is_some_and(|echo| self.accept(echo)) {
                rest.push(*pair);
            }
        }
        rest
    }

    /// The key of a pair that says what our first request said.
    fn echoed(&self, pair: &Pair<'_>) -> Option<Key> {
        let key = Key::named(pair.key)?;
        let said = match key {
            Key::InitiatorName => Some(self.config.initiator.as_str()),
            Key::TargetName => self.config.target.as_ref().map(|name| name.as_str()),
            Key::SessionType => Some(self.config.session_type()),
            _ => None,
        };
        said.filter(|said| said.eq_ignore_ascii_case(pair.value)).map(|_| key)
    }
}
