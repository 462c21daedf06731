//! The one writer of an encrypted volume whose target has no reservations: a token in the header of the one, which the
//! other looks at.

use std::sync::Arc;
use std::time::Duration;

use crate::luks::{Claim, WriterToken};
use crate::store::abilities::{BoxFuture, Close, OneWriter, Token};
use crate::store::iscsi::{self, Writers};
use crate::uri::Uri;

/// How long reading and writing a header may take, over any link that is of use.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);

/// What a writer has to claim, if its target keeps nobody away.
pub(super) fn claim(store: Option<&dyn OneWriter>) -> Option<(Writers, Claim)> {
    let iscsi::Unguarded { writers, key, gone, others } = store?.unguarded()?;
    let take_over = writers == Writers::TakeOver;
    let (written_within, noticed_within) = (WRITTEN_WITHIN, iscsi::NOTICED_WITHIN);
    Some((writers, Claim { key, gone, others, take_over, written_within, noticed_within }))
}

/// Says what keeps a second writer away: it is less than it should be.
pub(super) fn warn(volume: &Uri, has_token: bool) {
    if has_token {
        tracing::warn!(
            %volume,
            "the target has no persistent reservations: a token in the header tells other Longhauls of this writer, and \
             keeps nobody else away"
        );
    } else {
        tracing::warn!(
            %volume,
            "the target has no persistent reservations: nothing keeps a second writer from this volume"
        );
    }
}

/// A token in the header of a volume, and the store beneath.
pub(super) struct HeaderToken {
    pub(super) token: Arc<WriterToken>,
    pub(super) writer: Arc<dyn OneWriter>,
    pub(super) close: Option<Arc<dyn Close>>,
}

impl HeaderToken {
    /// From now on the store is written to only as long as the token is there.
    pub(super) fn rely_on(&self) {
        let found = Arc::clone(&self.token);
        self.writer.mark(self.token.span(), Arc::new(move |bytes| found.find(bytes)));
    }
}

impl Token for HeaderToken {
    fn give_back(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let unflushed = self.close.as_deref().and_then(Close::saved).is_some();
            if !self.writer.is_quiet().await {
                return;
            }
            match self.token.give_back(unflushed).await {
                // The next attachment of this machine knows of it.
                Ok(()) if unflushed => {}
                Ok(()) => self.writer.unmark(),
                Err(why) => {
                    tracing::warn!("the token of this attachment stays in the header: {why}");
                }
            }
        })
    }
}
