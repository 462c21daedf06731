//! The volume: what the device says of itself, on whatever link there is to it.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use volume::layer::reconnect::{Over, Status};
use volume::{Durability, Error, Extent, ExtentMap, Kind, Shape, Space, Span, Verb, Volume, Work};

use super::connect::Connector;
use super::device::Probe;
use super::identity::Identity;
use super::link::{Change, Link};
use super::mark::{IsOurs, Mark, Unguarded};
use super::session::{Loss, Session};
use super::supervisor::Supervisor;
use super::unit::UnitError;
use crate::replay_log::{Header, Saved};

/// How long the end of a session is waited for of which nothing is wanted any more.
const LOGGED_OUT_WITHIN: Duration = Duration::from_secs(2);

/// A disk behind an iSCSI target.
#[derive(Debug)]
pub struct Disk {
    shape: Shape,
    tells_extents: bool,
    supervisor: Arc<Supervisor>,
}

/// How the connection of a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Requests are carried out.
    Connected,
    /// They wait.
    Reconnecting {
        /// For how long already.
        lasted: Duration,
        /// How often a connection was tried.
        attempts: u32,
    },
    /// They fail.
    Over(Over),
}

impl Disk {
    pub(super) fn new(connector: Connector, link: Link) -> Self {
        Self {
            shape: link.shape().clone(),
            tells_extents: link.device().tells_extents,
            supervisor: Supervisor::start(connector, link),
        }
    }

    /// The session there is, or was last.
    #[must_use]
    pub fn session(&self) -> Session {
        self.supervisor.link().session().clone()
    }

    /// How the connection is.
    #[must_use]
    pub fn state(&self) -> State {
        match self.supervisor.status() {
            (Status::Connected, _) => State::Connected,
            (Status::Reconnecting { since, attempts }, now) => {
                State::Reconnecting { lasted: now - since, attempts }
            }
            (Status::Over(over), _) => State::Over(over),
        }
    }

    /// Writes that were acknowledged and are not durable, and their bytes.
    #[must_use]
    pub fn unflushed(&self) -> (usize, usize) {
        self.supervisor.unflushed()
    }

    /// Whether it is given up, so that nothing is carried out any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state(), State::Over(_))
    }

    /// Whether nothing that was acknowledged is missing on the unit, as far as that was watched: of what is written
    /// without a replay log it is not.
    #[must_use]
    pub fn has_flushed_all(&self) -> bool {
        self.shape.read_only || self.supervisor.has_flushed_all()
    }

    /// From now on the volume must have this LUKS UUID: another that answers in its place is not written to.
    pub fn identify(&self, identity: Identity) {
        self.supervisor.identify(identity);
    }

    /// Whether a replay log belongs to this unit. One without a serial number is told by its place.
    #[must_use]
    pub fn is_of(&self, header: &Header, target: &str, lun: u16) -> bool {
        let link = self.supervisor.link();
        let device = link.device();
        let uuids = self.supervisor.identity().zip(header.luks_uuid.as_ref());
        device.serial == header.serial
            && uuids.is_none_or(|(here, there)| here.uuid == *there)
            && (&device.standard.vendor, &device.standard.product)
                == (&header.vendor, &header.product)
            && (header.serial.is_some() || (target, lun) == (&header.target, header.lun))
    }

    /// What has become of acknowledged writes that the target could not be given; `None` if there are none.
    #[must_use]
    pub fn saved(&self) -> Option<Saved> {
        self.supervisor.saved()
    }

    /// The same, once all of them are in the replay log, or lost. Of a disk that was not closed there may be more
    /// later.
    pub async fn settled(&self) -> Option<Saved> {
        self.supervisor.settled().await
    }

    /// Why there is no connection, or why the last one was lost: the cause and all beneath it.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.supervisor.reason()
    }

    /// The bytes by which the volume has grown since it was opened. They are used when it is opened again.
    #[must_use]
    pub fn grown(&self) -> u64 {
        self.supervisor.grown()
    }

    /// From now on an outage is waited for as long as this, or for ever.
    pub fn be_patient(&self, patience: Option<Duration>) {
        self.supervisor.be_patient(patience);
    }

    /// From now on an outage is waited for only this long: for whoever wants to end, and to flush before.
    pub fn leave(&self, grace: Duration) {
        self.supervisor.leave(grace);
    }

    /// The reservation is not given back at the end.
    pub fn stay_reserved(&self) {
        self.supervisor.reservation().stay();
    }

    /// What keeping other writers away takes, if the target cannot do it and nothing does yet.
    #[must_use]
    pub fn unguarded(&self) -> Option<Unguarded> {
        self.supervisor.reservation().unguarded()
    }

    /// From now on a mark on the volume says that it is ours: `span` holds it as long as `is_ours` finds it there.
    /// Nothing is written any more once it is not.
    pub fn mark(&self, span: Span, is_ours: IsOurs) {
        self.supervisor.reservation().set_mark(Mark { span, is_ours });
        self.supervisor.watch_mark();
    }

    /// Waits, not for ever, until every change has ended; whether all have. Only then may the mark be removed.
    pub async fn is_quiet(&self) -> bool {
        self.supervisor.is_quiet().await
    }

    /// The mark was removed, so nothing has to be remembered.
    pub fn unmark(&self) {
        self.supervisor.reservation().unmark();
    }

    /// Ends it: requests that wait for a connection fail, those in flight are waited for, the reservation is
    /// given back, and the session logs out. If a change does not end for long, the volume stays reserved.
    pub async fn close(&self) {
        self.supervisor.close();
        self.supervisor.release().await;
        self.session().close().await;
    }

    /// The same of a disk that was not used: a session whose target does not answer is not waited for.
    pub async fn let_go(&self) {
        self.supervisor.close();
        self.supervisor.release().await;
        let session = self.session();
        if tokio::time::timeout(LOGGED_OUT_WITHIN, session.close()).await.is_err() {
            session.abandon();
        }
    }

    /// What is known of target and device; measures the round trip.
    pub async fn probe(&self) -> Result<Probe, Arc<Loss>> {
        self.supervisor.link().probe().await
    }

    /// The other who has reserved the unit to write to it, if the unit tells.
    pub async fn writer(&self) -> Option<String> {
        self.supervisor.link().writer().await.map(|writer| writer.to_string())
    }

    /// The longest write that takes one round trip; the target asks for the data of longer ones.
    #[must_use]
    pub fn unsolicited(&self) -> u64 {
        self.supervisor.link().unsolicited()
    }

    /// What the kernel knows of the connections to the target, if there are any just now.
    pub async fn path(&self) -> Option<crate::net::tcp_tuning::Info> {
        self.supervisor.link().session().path().await.ok()
    }

    fn change(&self, change: Change, verb: Verb) -> Work<'_, ()> {
        let span = change.span();
        Box::pin(async move { self.supervisor.change(change).await.map_err(failed(verb, span)) })
    }
}

/// A disk that is forgotten does not try to connect again.
impl Drop for Disk {
    fn drop(&mut self) {
        self.supervisor.close();
    }
}

impl Volume for Disk {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(async move {
            let read = |link: Arc<Link>| async move { link.read(span).await };
            let bytes = self.supervisor.read(span, read).await.map_err(failed(Verb::Read, span))?;
            // A residual may say that less came; a volume has no less.
            if bytes.len() as u64 != span.len {
                return Err(Error::new(Kind::Peer, Verb::Read, span));
            }
            Ok(bytes)
        })
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        self.change(Change::Write { at, data, durability }, Verb::Write)
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.change(Change::Zero { span, durability, space }, Verb::WriteZeroes)
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        if self.shape.discard.is_none() {
            return Box::pin(ready(Err(Error::new(Kind::Unsupported, Verb::Discard, span))));
        }
        self.change(Change::Discard(span), Verb::Discard)
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(async move { self.supervisor.flush().await.map_err(failed(Verb::Flush, None)) })
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.tells_extents.then_some(self)
    }

    fn is_saving(&self) -> bool {
        self.supervisor.is_saving()
    }

    fn save_part(&self, at: u64, data: Bytes) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        let change = Change::Write { at, data, durability: Durability::Volatile };
        Box::pin(
            async move { self.supervisor.refuse(change).await.map_err(failed(Verb::Write, span)) },
        )
    }
}

impl ExtentMap for Disk {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        Box::pin(async move {
            let runs = |link: Arc<Link>| async move { link.runs(span).await };
            self.supervisor.read(span, runs).await.map_err(failed(Verb::Extents, span))
        })
    }
}

fn failed(verb: Verb, span: impl Into<Option<Span>>) -> impl FnOnce(UnitError) -> Error {
    let span = span.into();
    move |error| Error::new(error.kind(), verb, span).because(error)
}
