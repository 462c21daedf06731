//! A volume behind a SCSI target, by whatever transport.
//!
//! ```text
//! Disk (Volume)      what the device says of itself; verbs go to whatever link there is
//!   Supervisor       rides out lost connections (`volume/layer/reconnect`)
//!     Connector      opens the unit again: the same one, still ours, with nothing old under way
//!     Link           the volume on one session: splits, maps verbs to commands
//!       Unit         one logical unit: retries what may be retried, turns sense into errors
//!         Session    what a transport gives
//! ```
//!
//! A transport implements [`Transport`] and [`Session`].

mod administration;
mod announced;
mod attend;
mod change;
mod connect;
mod device;
mod disk;
mod error;
mod group;
mod group_order;
mod identity;
mod initiator_port;
mod key;
mod login_limits;
mod mark;
mod options;
mod raw;
mod reservation;
mod session;
mod stall_count;
#[cfg(test)]
mod tests;
mod unit;
mod unwritten;
mod volume;
mod watch;
mod writers;

pub use administration::{AdministrationError, ask_server};
pub use announced::Announced;
pub use device::DeviceError;
pub use disk::{Disk, State};
pub use error::OpenError;
pub use identity::Identity;
pub(in crate::store) use initiator_port::InitiatorPort;
pub use mark::{MarkCheck, NOTICED_WITHIN, Unguarded};
pub use options::{Options, ReplayLogOptions, ReplayedLog, Seen};
pub use raw::{NotOpen, Pending, RawUnit, TransportUnit};
pub use reservation::{Holders, ReservationError};
pub use session::{
    Address, Answer, Completion, Executed, Lost, NoStatus, ResetAnswer, Session, Task,
    TransferLimits, Transport,
};
pub(in crate::store) use stall_count::StallCount;
pub use unit::UnitError;
pub use watch::Watched;
pub use writers::{Predecessor, Writers};
