//! What a disk behind a SCSI target can do beyond the verbs of a volume, by whatever transport.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proto::scsi::writer::Registrants;
use volume::{Gate, Span, Volume as _};

use super::super::scsi::{
    Disk, Identity, MarkCheck, Predecessor, Seen, Session, State, Transport, Unguarded, Watched,
};
use super::{
    Abilities, BoxFuture, Close, Grow, Growth, OneWriter, OpenError, Opened, Probe, TargetInfo,
    TransportInfo, UnitInquiry,
};
use crate::attachments::UnitAddress;
use crate::net::tcp_tuning;
use crate::replay_log::{Header, Saved};

/// A session that can tell of its target and of the path to it, in the terms of its transport.
pub trait Described: Session {
    /// What a chain calls a disk behind it.
    const STORE: &'static str;

    /// Measures the round trip.
    fn round_trip(
        &self,
    ) -> impl Future<Output = Result<Duration, Box<dyn Error + Send + Sync>>> + Send;

    /// What the transport says of itself.
    fn transport(&self) -> TransportInfo;

    /// For how long nothing has come from the target that it should have said, where the transport knows that before it gives
    /// the connection up.
    fn silence(&self) -> Option<Duration> {
        None
    }

    /// What the kernel knows of the path, if it does.
    fn path(&self) -> impl Future<Output = Option<tcp_tuning::Info>> + Send;
}

impl<T: Transport<Session: Described>> Disk<T> {
    /// It as the store of a chain.
    #[must_use]
    pub fn opened(self) -> Opened {
        let disk = Arc::new(self);
        let abilities = Abilities {
            grow: Some(disk.clone()),
            probe: Some(disk.clone()),
            close: Some(disk.clone()),
            writer: Some(disk.clone()),
            ..Abilities::default()
        };
        Opened { volume: Arc::new(Gate::new(T::Session::STORE, disk)), worker: None, abilities }
    }
}

impl<T: Transport<Session: Described>> Grow for Disk<T> {
    /// What is not there, or does not answer, has not grown: nothing else waits for that.
    fn prepare(&self, _asked: Option<u64>) -> BoxFuture<'_, Result<Option<Growth>, OpenError>> {
        Box::pin(async {
            let Some(grown) = self.grown().await else { return Ok(None) };
            grown.offer();
            let before = self.of_size(self.shape().size);
            let undo = move || {
                before.offer();
                Ok(())
            };
            Ok(Some(Growth { grown: grown.opened(), undo: Box::new(undo) }))
        })
    }
}

impl<T: Transport<Session: Described>> Probe for Disk<T> {
    fn probe(&self) -> BoxFuture<'_, Result<TargetInfo, Box<dyn Error + Send + Sync>>> {
        Box::pin(async {
            let link = self.link();
            let (session, device) = (link.session(), link.device());
            let round_trip = session.round_trip().await?;
            let standard = &device.standard;
            Ok(TargetInfo {
                transport: session.transport(),
                unsolicited: session.limits().unsolicited,
                round_trip,
                device_type: standard.device_type(),
                vendor: standard.vendor.clone(),
                product: standard.product.clone(),
                revision: standard.revision.clone(),
                serial: device.serial.clone(),
                volume: device.volume.clone(),
                luks_uuid: self.luks_uuid(),
            })
        })
    }

    fn inquiry(&self) -> UnitInquiry {
        let link = self.link();
        let device = link.device();
        let (vendor, product) = (device.standard.vendor.clone(), device.standard.product.clone());
        UnitInquiry { vendor, product, serial: device.serial.clone() }
    }

    fn path(&self) -> BoxFuture<'_, Option<tcp_tuning::Info>> {
        Box::pin(async { Described::path(&self.session()).await })
    }

    fn writer(&self) -> BoxFuture<'_, Option<Registrants>> {
        Box::pin(self.writer())
    }

    fn unsolicited(&self) -> u64 {
        self.unsolicited()
    }

    fn state(&self) -> State {
        self.state()
    }

    fn silence(&self) -> Option<Duration> {
        Described::silence(&self.session())
    }

    fn reason(&self) -> Option<String> {
        self.reason()
    }

    fn not_offered(&self) -> u64 {
        self.not_offered()
    }

    fn seen(&self) -> Seen {
        self.seen()
    }

    fn place(&self) -> UnitAddress {
        self.place()
    }

    fn state_dir(&self) -> Option<PathBuf> {
        self.state_dir()
    }

    fn expect_own_buffers(&self) {
        self.expect_own_buffers();
    }

    fn is_of(&self, header: &Header) -> bool {
        let UnitAddress { target, lun, .. } = self.place();
        self.is_of(header, &target, lun)
    }
}

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

    fn keep_reserved(&self) {
        self.keep_reserved();
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
