//! The output of an iSCSI connection, of initiators and targets.

use std::io::IoSlice;
use std::task::{Context, Poll};

use proto::iscsi::pdu::Outbox;

use super::connection::Output;
use crate::cipher_pool::OutboxOffload;

/// PDUs that wait to be sent; large bodies of a secure session are encrypted by other threads meanwhile.
pub(crate) struct PduOutput<'a> {
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) offload: &'a mut OutboxOffload,
}

impl Output for PduOutput<'_> {
    fn is_empty(&mut self) -> bool {
        self.outbox.is_empty()
    }

    fn slices<'a>(&'a mut self, slices: &mut [IoSlice<'a>]) -> usize {
        self.offload.hand_over(self.outbox);
        self.outbox.slices(slices)
    }

    fn advance(&mut self, sent: usize) {
        self.outbox.advance(sent);
    }

    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.offload.poll_returned(cx, self.outbox)
    }
}
