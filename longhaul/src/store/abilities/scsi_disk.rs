//! What a disk behind a SCSI target can do beyond the verbs of a volume, by whatever transport.

use std::io;
use std::path::Path;
use std::time::Duration;

use volume::{Span, Volume as _};

use super::super::scsi::{Disk, Identity, MarkCheck, Predecessor, Transport, Unguarded, Watched};
use super::{BoxFuture, Close, OneWriter};
use crate::replay_log::Saved;

impl<T: Transport> Close for Disk<T> {
    fn set_outage_limit(&self, limit: Option<Duration>) {
        self.set_outage_limit(limit);
    }

    fn leave(&self, grace: Duration) {
        self.leave(grace);
    }

    fn log_written(&self) {
        self.log_written();
    }

    fn is_over(&self) -> bool {
        self.is_over()
    }

    fn has_flushed_all(&self) -> bool {
        self.has_flushed_all()
    }

    fn unflushed(&self) -> u64 {
        self.unflushed().1 as u64
    }

    fn saved(&self) -> Option<Saved> {
        self.saved()
    }

    fn let_go(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.let_go())
    }

    fn flush_rest(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if self.unflushed().0 > 0 {
                let _ = self.flush().await;
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, Option<Saved>> {
        Box::pin(async {
            self.close().await;
            self.settled().await
        })
    }
}

impl<T: Transport> OneWriter for Disk<T> {
    fn unguarded(&self) -> Option<Unguarded> {
        self.unguarded()
    }

    fn identify(&self, identity: Identity) -> BoxFuture<'_, volume::Result<bool>> {
        Box::pin(self.identify(identity))
    }

    fn keep_out_of_log(&self, span: Span) {
        self.keep_out_of_log(span);
    }

    fn watch(&self, watched: Watched) {
        self.watch(watched);
    }

    fn mark(&self, span: Span, is_ours: MarkCheck) {
        self.mark(span, is_ours);
    }

    fn unmark(&self) {
        self.unmark();
    }

    fn reserved(&self) -> Option<u64> {
        self.reserved()
    }

    fn for_successor(&self) -> Option<Predecessor> {
        self.for_successor()
    }

    fn guard_journal(&self, path: &Path) -> io::Result<()> {
        self.guard_journal(path)
    }

    fn journal_sent(&self, path: &Path) -> io::Result<()> {
        self.journal_sent(path)
    }

    fn is_quiet(&self) -> BoxFuture<'_, bool> {
        Box::pin(self.is_quiet())
    }
}
