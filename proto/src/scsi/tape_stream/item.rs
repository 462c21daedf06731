//! Blocks and file marks that are written by one command.

use bytes::Bytes;

use super::Settings;

/// What is written.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// A block, or several of one length.
    Blocks(Bytes),
    /// A file mark.
    Mark,
}

/// What is written by one command, and not known to be stable.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) content: Content,
    /// How many blocks and file marks it is.
    pub(super) objects: u64,
}

impl Item {
    pub(super) const fn is_mark(&self) -> bool {
        matches!(self.content, Content::Mark)
    }

    /// How long each of its blocks is.
    pub(super) fn block_len(&self, settings: &Settings) -> usize {
        settings.fixed.map_or(self.len(), |fixed| fixed.block as usize)
    }

    /// Whether this is one of its blocks.
    pub(super) fn has_block(&self, settings: &Settings, block: &[u8]) -> bool {
        let Content::Blocks(data) = &self.content else { return false };
        data.chunks(self.block_len(settings).max(1)).any(|one| one == block)
    }

    pub(super) fn len(&self) -> usize {
        match &self.content {
            Content::Blocks(data) => data.len(),
            Content::Mark => 0,
        }
    }
}
