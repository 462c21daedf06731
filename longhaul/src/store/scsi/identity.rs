//! By what a volume is known again on the next session: an identity that its bytes have.
//!
//! The identity that a unit reports follows, with many targets, from its name. A server whose files were exchanged reports
//! the same of each of them as before.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use volume::Span;

use super::change::Change;
use super::session::Session;
use super::unit::UnitError;
use super::volume::Link;

/// The identity of a volume that is in its bytes.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The identity itself.
    pub uuid: String,
    /// Where it is, each from the start of a block on. One of them may be torn.
    pub copies: Vec<Span>,
    /// Reads it from the first bytes of a copy, 512 or more.
    pub read: fn(&[u8]) -> Option<String>,
}

/// The identity that a volume must have on each link, once that is known.
#[derive(Debug, Default)]
pub(super) struct KnownIdentity(Mutex<Option<Known>>);

#[derive(Clone, Debug)]
struct Known {
    identity: Identity,
    /// What changes made here may have put in its place: another identity, or none.
    written: Vec<Option<String>>,
}

impl KnownIdentity {
    /// From now on a volume must have this one.
    pub(super) fn set(&self, identity: Identity) {
        *self.lock() = Some(Known { identity, written: Vec::new() });
    }

    /// The identity itself, unless changes may have replaced it.
    pub(super) fn uuid(&self) -> Option<String> {
        let known = self.lock();
        let known = known.as_ref().filter(|known| known.written.is_empty());
        known.map(|known| known.identity.uuid.clone())
    }

    /// As it was found.
    pub(super) fn found(&self) -> Option<Identity> {
        self.lock().as_ref().map(|known| known.identity.clone())
    }

    /// Takes note of a change that is about to be made: it may replace the identity. Says whether it is the first
    /// that does.
    pub(super) fn track(&self, change: &Change) -> bool {
        self.lock().as_mut().is_some_and(|known| known.track(change))
    }

    /// Whether the volume at `link` has it, as far as one is known. What cannot be read leaves that open.
    pub(super) async fn is_of<S: Session>(&self, link: &Link<S>) -> Result<bool, UnitError> {
        let Some(known) = self.lock().clone() else { return Ok(true) };
        let mut copies = Vec::new();
        for span in &known.identity.copies {
            copies.push(link.read(*span).await);
        }
        known.judge(copies)
    }

    /// The same of copies that were read in another way.
    pub(super) fn judge<E>(&self, copies: Vec<Result<Bytes, E>>) -> Result<bool, E> {
        let known = self.lock().clone();
        known.map_or(Ok(true), |known| known.judge(copies))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn track(&mut self, change: &Change) -> bool {
        let before = self.written.len();
        for copy in &self.identity.copies {
            let span = change.span();
            // It is in the first block, which is written as a whole.
            if !span.contains(copy.at) {
                continue;
            }
            let found = match change {
                Change::Write { data, .. } => {
                    let from = (copy.at - span.at) as usize;
                    (self.identity.read)(&data[from..])
                }
                Change::Zero { .. } | Change::Discard(_) => None,
            };
            if found.as_ref() != Some(&self.identity.uuid) && !self.written.contains(&found) {
                self.written.push(found);
            }
        }
        before == 0 && !self.written.is_empty()
    }

    fn judge<E>(&self, copies: Vec<Result<Bytes, E>>) -> Result<bool, E> {
        let (mut unread, mut found) = (None, Vec::new());
        for copy in copies {
            match copy {
                Ok(bytes) => found.push((self.identity.read)(&bytes)),
                Err(why) => unread = Some(why),
            }
        }
        let is_ours = |found: &Option<String>| {
            found.is_some()
                && (found.as_ref() == Some(&self.identity.uuid) || self.written.contains(found))
        };
        if found.iter().any(is_ours) {
            return Ok(true);
        }
        match unread {
            Some(why) => Err(why),
            None => Ok(self.written.contains(&None) && found.iter().all(Option::is_none)),
        }
    }
}

#[cfg(test)]
mod tests {
    use volume::Durability;

    use super::*;

    fn read(bytes: &[u8]) -> Option<String> {
        let bytes = &bytes[..512];
        (bytes[0] != 0).then(|| char::from(bytes[0]).to_string())
    }

    fn known() -> KnownIdentity {
        let copies = vec![Span::new(0, 4096), Span::new(16384, 4096)];
        let known = KnownIdentity::default();
        known.set(Identity { uuid: "a".into(), copies, read });
        known
    }

    fn has(known: &KnownIdentity, copies: [&str; 2]) -> Result<bool, ()> {
        let copy = |text: &str| match text {
            "unread" => Err(()),
            text => {
                let mut bytes = text.as_bytes().to_vec();
                bytes.resize(4096, 0);
                Ok(bytes.into())
            }
        };
        known.judge(copies.map(copy).into())
    }

    fn write(at: u64, first: u8, len: usize) -> Change {
        let data = Bytes::from(vec![first; len]);
        Change::Write { at, data, durability: Durability::Volatile, is_alone: true }
    }

    #[test]
    fn one_copy_shows_the_identity() {
        let known = known();
        for (copies, shows) in [
            (["a", "a"], Ok(true)),
            (["a", "b"], Ok(true)),
            (["", "a"], Ok(true)),
            (["unread", "a"], Ok(true)),
            (["unread", "b"], Err(())),
            (["b", "b"], Ok(false)),
            (["", ""], Ok(false)),
        ] {
            assert_eq!(has(&known, copies), shows, "{copies:?}");
        }
        assert_eq!(has(&KnownIdentity::default(), ["b", "b"]), Ok(true), "none is known");
    }

    #[test]
    fn volume_may_get_another_identity_from_our_own_changes_only() {
        let known = known();
        assert!(!known.track(&write(512, b'c', 512)), "not in the first block");
        assert!(!known.track(&write(0, b'a', 512)), "the same again");
        assert_eq!(known.uuid().as_deref(), Some("a"));
        assert!(known.track(&write(16384 - 512, b'c', 1024)), "the second copy");
        assert_eq!(known.uuid(), None);
        for (copies, shows) in [(["a", "c"], true), (["c", "c"], true), (["", "b"], false)] {
            assert_eq!(has(&known, copies), Ok(shows), "{copies:?}");
        }
        assert_eq!(has(&known, ["", ""]), Ok(false));
        assert!(!known.track(&Change::Discard(Span::new(0, 1 << 20))), "it is not the first");
        assert_eq!(has(&known, ["", ""]), Ok(true));
        assert_eq!(has(&known, ["", "b"]), Ok(false), "another volume");
    }
}
