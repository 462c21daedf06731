//! An exchange of text (RFC 7143, 11.10 and 11.11).

use bytes::Bytes;

use crate::iscsi::header::NO_TAG;
use crate::iscsi::negotiation::Later;
use crate::iscsi::text::Assembly;

/// An exchange under way.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) itt: u32,
    /// What the next request is to carry, where one is awaited.
    pub(super) ttt: u32,
    /// The initiator has nothing more to say than its last request says.
    pub(super) is_final: bool,
    pub(super) request: Assembly,
    /// What is left to send of the answer.
    pub(super) answer: Bytes,
    /// All of the request has come, and is being answered.
    pub(super) answering: bool,
    pub(super) said: Later,
}

impl Exchange {
    /// A new one, whose request has at most `text_max` bytes.
    pub(super) fn new(itt: u32, text_max: usize) -> Self {
        Self {
            itt,
            ttt: NO_TAG,
            is_final: false,
            request: Assembly::of_at_most(text_max),
            answer: Bytes::new(),
            answering: false,
            said: Later::default(),
        }
    }
}
