//! By what a volume is known again on the next session: an identity that its bytes have.
//!
//! What a unit says of itself follows, with many targets, from its name. A server whose files were exchanged says the same
//! of each of them as before.

use volume::Span;

use super::session::Session;
use super::unit::UnitError;
use super::volume::Link;

/// The identity of a volume that is in its bytes.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The identity itself.
    pub uuid: String,
    /// Where it is. One of them may be torn.
    pub copies: Vec<Span>,
    /// Reads it from the bytes that are there.
    pub read: fn(&[u8]) -> Option<String>,
}

impl Identity {
    /// Whether the volume at `link` has it. What cannot be read leaves that open.
    pub(super) async fn is_of<S: Session>(&self, link: &Link<S>) -> Result<bool, UnitError> {
        let mut unread = None;
        for span in &self.copies {
            match link.read(*span).await {
                Ok(bytes) if (self.read)(&bytes).as_ref() == Some(&self.uuid) => return Ok(true),
                Ok(_) => {}
                Err(why) => unread = Some(why),
            }
        }
        unread.map_or(Ok(false), Err)
    }
}
