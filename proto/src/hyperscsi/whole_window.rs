//! Windows that are acknowledged, and sent again, as a whole: the paper's way, for its own sake (spec, 9.2).

use core::num::NonZeroU16;

use super::recovery::Content;

/// The window of a path that is being sent.
#[derive(Debug)]
pub(super) struct WholeWindow {
    most: NonZeroU16,
    /// What its packets carry.
    contents: Vec<Content>,
    /// Its last packet was sent: nothing follows until all of it is acknowledged, or lost.
    is_closed: bool,
}

impl WholeWindow {
    /// Of as many packets.
    pub(super) const fn new(most: NonZeroU16) -> Self {
        Self { most, contents: Vec::new(), is_closed: false }
    }

    /// Whether another packet belongs to it. Once nothing is in flight the next one begins.
    pub(super) fn is_open(&mut self, in_flight: u64) -> bool {
        if in_flight == 0 {
            self.contents.clear();
            self.is_closed = false;
        }
        !self.is_closed
    }

    /// Whether the next packet is its last one.
    pub(super) fn is_last(&self) -> bool {
        self.contents.len() + 1 >= usize::from(self.most.get())
    }

    /// A packet was sent; one of data that asks for an acknowledgement closes it.
    pub(super) fn on_sent(&mut self, content: &Content, asks: bool) {
        if matches!(content, Content::Fragment { .. }) {
            self.is_closed |= asks || self.is_last();
            self.contents.push(content.clone());
        }
    }

    /// Whether it carries this.
    pub(super) fn has(&self, content: &Content) -> bool {
        matches!(content, Content::Fragment { .. }) && self.contents.contains(content)
    }

    /// All that it carries, which is to be sent by another one.
    pub(super) fn take(&mut self) -> Vec<Content> {
        core::mem::take(&mut self.contents)
    }
}
