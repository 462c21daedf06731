//! A logical unit of any type, for those who send it commands themselves: clients of tape drives, optical drives and changers.
//!
//! A [`Disk`](super::Disk) rides out lost connections by itself, since its commands may be carried out twice. Those of a
//! tape may not: whoever sends them opens the unit again, and finds out what was carried out.

use std::error::Error as StdError;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use proto::scsi::command::{Command, designated_vendor, vital_pages};
use proto::scsi::inquiry::{self, Standard, page};

use super::connect::OPENED_WITHIN;
use super::device::DeviceError;
use super::error::OpenError;
use super::options::Options;
use super::reservation::{Request, Reservation, ReservationError};
use super::session::{Address, Answer, Lost, ResetAnswer, Session, Task, Transport};
use super::unit::{Unit, UnitError};
use super::writers::Writers;
use crate::attachments::UnitAddress;
use crate::store::slow_login::warn_if_slow;

/// What is awaited of a unit whose transport is not known.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why a unit is not open, or not reserved.
#[derive(Debug)]
pub struct NotOpen {
    /// Why.
    pub why: Box<dyn StdError + Send + Sync>,
    /// It may be over when it is tried again.
    pub is_fleeting: bool,
    /// The unit takes no reservation of this client: nobody else has it.
    pub is_refused: bool,
    /// Another unit answers in its place.
    pub is_another: bool,
}

impl<E: StdError + Send + Sync + 'static> From<OpenError<E>> for NotOpen {
    fn from(why: OpenError<E>) -> Self {
        let is_refused = matches!(&why, OpenError::Reservation(ReservationError::Failed(_)));
        let is_another = matches!(&why, OpenError::Changed(_));
        Self { is_fleeting: why.is_fleeting(), is_refused, is_another, why: Box::new(why) }
    }
}

/// A unit, whatever its transport.
pub trait RawUnit: Send + Sync {
    /// INQUIRY data.
    fn standard(&self) -> &Standard;

    /// Its serial number, if it has one.
    fn serial(&self) -> Option<&str>;

    /// Whether commands that were sent one after the other are carried out so.
    fn keeps_order(&self) -> bool;

    /// Whether writes may be sent to a tape or disc before those before them have ended. A drive that was reset, or has another
    /// medium, tells the first one and carries out the others wherever its head is; Longhaul's servers refuse them.
    fn takes_writes_ahead(&self) -> bool;

    /// Carries out a command; gives what came in. Unit attentions, and a unit that is busy, are met by trying again: so the
    /// command is one that does no harm when it is carried out twice.
    fn ask(&self, command: Command, data: Bytes) -> Pending<'_, Result<Bytes, UnitError>>;

    /// The same of another unit of the target.
    fn ask_at(&self, lun: u16, command: Command) -> Pending<'_, Result<Bytes, UnitError>>;

    /// Puts a command on its way, behind those before. It is not tried again.
    fn send(&self, command: Command, data: Bytes) -> Pending<'_, Result<Answer, Lost>>;

    /// Reserves it.
    fn reserve(&self) -> Pending<'_, Result<(), NotOpen>>;

    /// Whether it is reserved for us.
    fn is_reserved(&self) -> bool;

    /// Opens it on a new session, once the one before is lost: the same unit, still ours, with nothing old under way.
    fn open_again(&mut self) -> Pending<'_, Result<(), NotOpen>>;

    /// The same, but the unit is not reset: it is that of others too. Only a session of whose commands one is `uncertain` has to be
    /// ended by the new one.
    fn log_in_again(&mut self, uncertain: bool) -> Pending<'_, Result<(), NotOpen>>;

    /// Resets it (LOGICAL UNIT RESET).
    fn reset(&self) -> Pending<'_, Result<ResetAnswer, Lost>>;

    /// Asks the target to end all that this client has under way there. Each command has its answer all the same.
    fn abort_all(&self) -> Pending<'_, Result<(), Lost>>;

    /// The most bytes that the transport carries with one command.
    fn transfer_max(&self) -> u64;

    /// Returns when its session has ended, and says why.
    fn ended(&self) -> Pending<'_, Lost>;

    /// Gives the reservation back, and logs out.
    fn close(&self) -> Pending<'_, ()>;
}

/// A unit behind a transport.
#[derive(Debug)]
pub struct TransportUnit<T: Transport> {
    transport: T,
    options: Options,
    unit: Unit<T::Session>,
    standard: Standard,
    serial: Option<String>,
    /// It is one of our servers, though it may be a device that this passes through.
    is_longhaul: bool,
    reservation: Reservation,
}

/// What a unit says that it is.
struct Described {
    standard: Standard,
    serial: Option<String>,
    /// It is one of our servers, though it may be a device that this passes through.
    is_longhaul: bool,
}

impl<T: Transport> TransportUnit<T> {
    /// Logs in, and asks what it is. It is not reserved.
    pub async fn open(transport: T, options: Options) -> Result<Self, OpenError<T::Error>> {
        let opened =
            options.stop.unless_called(Self::attempt(&transport, None, options.login_within));
        let opened = opened.await.unwrap_or(Err(OpenError::Stopped))?;
        let (unit, Described { standard, serial, is_longhaul }) = opened;
        let reservation = Reservation::default();
        Ok(Self { transport, options, unit, standard, serial, is_longhaul, reservation })
    }

    /// Logs in by whichever portal answers, and asks what is there.
    async fn attempt(
        transport: &T,
        before: Option<&T::Session>,
        within: Duration,
    ) -> Result<(Unit<T::Session>, Described), OpenError<T::Error>> {
        let mut first = None;
        for portal in transport.portals() {
            let login = transport.log_in(&portal, before, within);
            let session = match warn_if_slow(&portal, login).await {
                Ok(session) => session,
                Err(why) if T::is_out_of_reach(&why) => {
                    first.get_or_insert(OpenError::Session(why));
                    continue;
                }
                Err(why) => return Err(OpenError::Session(why)),
            };
            let unit = Unit::new(session, transport.address().lun);
            let asked = tokio::time::timeout(OPENED_WITHIN, ask_what_it_is(&unit)).await;
            let slow = |_| OpenError::Slow(transport.address().portal, OPENED_WITHIN);
            return match asked.map_err(slow) {
                Ok(Ok(described)) => Ok((unit, described)),
                Ok(Err(why)) => {
                    unit.session().close().await;
                    Err(why.into())
                }
                Err(slow) => Err(slow),
            };
        }
        Err(first.unwrap_or(OpenError::Stopped))
    }

    fn place(&self) -> UnitAddress {
        let Address { target, lun, portal, pin } = self.transport.address();
        UnitAddress { target, lun, serial: self.serial.clone(), portal, pin }
    }

    async fn acquire(&self) -> Result<(), OpenError<T::Error>> {
        let Options { writers, state, .. } = &self.options;
        let request = Request {
            writers: *writers,
            replays: None,
            state: state.as_deref(),
            replay_logs: None,
        };
        Ok(self.reservation.acquire(&self.unit, &self.place(), request).await?)
    }

    /// Opens the same unit on a new session, which ends the one before if that is uncertain; whether it is one of our servers.
    async fn open_new_session(&mut self, uncertain: bool) -> Result<bool, OpenError<T::Error>> {
        let before = uncertain.then(|| self.unit.session());
        let within = self.options.login_within;
        let attempt = Self::attempt(&self.transport, before, within);
        let (unit, Described { standard, serial, is_longhaul }) = attempt.await?;
        if (&standard.product, &serial) != (&self.standard.product, &self.serial) {
            unit.session().close().await;
            return Err(OpenError::Changed("serial number"));
        }
        self.unit = unit;
        Ok(is_longhaul)
    }

    /// The same, still ours, with nothing old under way.
    async fn take_again(&mut self) -> Result<(), OpenError<T::Error>> {
        let is_longhaul = self.open_new_session(true).await?;
        self.reservation.confirm(&self.unit).await?;
        // Others than Longhaul are not known to end the tasks of a session before they let the next one in.
        if !is_longhaul
            && let ResetAnswer::Refused { is_final, answer } =
                self.unit.reset().await.map_err(OpenError::Lost)?
        {
            return Err(OpenError::NotReset { is_final, answer });
        }
        Ok(())
    }
}

/// What our servers call themselves.
const VENDOR: &str = "LONGHAUL";

async fn ask_what_it_is<S: Session>(unit: &Unit<S>) -> Result<Described, DeviceError> {
    let wrong = |error| DeviceError::Answer("INQUIRY data", error);
    let (standard, pages) =
        tokio::join!(unit.ask(Command::inquiry()), unit.ask(Command::vital(page::SUPPORTED)));
    let standard = Standard::parse(&standard?).map_err(wrong)?;
    match standard.qualifier() {
        0 => {}
        1 => return Err(DeviceError::NotADisk("cannot be accessed by this portal")),
        _ => return Err(DeviceError::not_there()),
    }
    // One without such a page has no pages.
    let pages = pages.ok().and_then(|pages| vital_pages(&pages).ok()).unwrap_or_default();
    let serial = match pages.contains(&page::SERIAL) {
        true => unit.ask(Command::vital(page::SERIAL)).await.ok(),
        false => None,
    };
    let identified = match pages.contains(&page::IDENTIFICATION) {
        true => unit.ask(Command::vital(page::IDENTIFICATION)).await.ok(),
        false => None,
    };
    let vendor = identified.as_deref().and_then(designated_vendor);
    let is_longhaul = standard.vendor.trim() == VENDOR
        || vendor.is_some_and(|vendor| vendor == VENDOR.as_bytes());
    let serial = serial.as_deref().and_then(inquiry::serial);
    Ok(Described { standard, serial, is_longhaul })
}

impl<T: Transport> RawUnit for TransportUnit<T> {
    fn standard(&self) -> &Standard {
        &self.standard
    }

    fn serial(&self) -> Option<&str> {
        self.serial.as_deref()
    }

    fn keeps_order(&self) -> bool {
        T::Session::IN_ORDER
    }

    fn takes_writes_ahead(&self) -> bool {
        self.keeps_order() && self.is_longhaul
    }

    fn ask(&self, command: Command, data: Bytes) -> Pending<'_, Result<Bytes, UnitError>> {
        Box::pin(self.unit.execute(command, data))
    }

    fn ask_at(&self, lun: u16, command: Command) -> Pending<'_, Result<Bytes, UnitError>> {
        let unit = Unit::new(self.unit.session().clone(), lun);
        Box::pin(async move { unit.ask(command).await })
    }

    fn send(&self, command: Command, data: Bytes) -> Pending<'_, Result<Answer, Lost>> {
        let task = Task { lun: self.unit.lun(), command, data, is_ordered: true };
        Box::pin(self.unit.session().queue(task))
    }

    fn reserve(&self) -> Pending<'_, Result<(), NotOpen>> {
        Box::pin(async {
            let acquired = tokio::time::timeout(OPENED_WITHIN, self.acquire()).await;
            let slow = |_| OpenError::Slow(self.transport.address().portal, OPENED_WITHIN);
            Ok(acquired.map_err(slow).flatten()?)
        })
    }

    fn is_reserved(&self) -> bool {
        self.options.writers != Writers::Unasked && self.reservation.is_held()
    }

    fn open_again(&mut self) -> Pending<'_, Result<(), NotOpen>> {
        Box::pin(async {
            // What is left of it is of no use.
            self.unit.session().abandon();
            let stop = self.options.stop.clone();
            let opened = stop.unless_called(self.take_again());
            Ok(opened.await.unwrap_or(Err(OpenError::Stopped))?)
        })
    }

    fn log_in_again(&mut self, uncertain: bool) -> Pending<'_, Result<(), NotOpen>> {
        Box::pin(async move {
            self.unit.session().abandon();
            self.open_new_session(uncertain).await?;
            Ok(())
        })
    }

    fn reset(&self) -> Pending<'_, Result<ResetAnswer, Lost>> {
        Box::pin(self.unit.reset())
    }

    fn abort_all(&self) -> Pending<'_, Result<(), Lost>> {
        Box::pin(self.unit.session().abort_all())
    }

    fn transfer_max(&self) -> u64 {
        self.unit.session().limits().data_in
    }

    fn ended(&self) -> Pending<'_, Lost> {
        Box::pin(self.unit.session().ended())
    }

    fn close(&self) -> Pending<'_, ()> {
        Box::pin(async {
            self.reservation.release(&self.unit).await;
            let session = self.unit.session();
            session.close().await;
            if session.ended().await.is_logged_out {
                self.transport.note_logout();
            }
        })
    }
}
