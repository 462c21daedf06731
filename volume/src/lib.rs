//! The one contract of Longhaul: a [`Volume`] is a fixed-size array of bytes with five verbs.
//!
//! ```text
//! front      who asks        iSCSI target, NBD, FUSE, copy
//!   layer    what is added   crypt
//!     store  where bytes are memory, file, device, iSCSI initiator
//! ```
//!
//! A chain is built from the store up; every hop goes through a [`Gate`], which checks what a caller
//! may ask, so that no store or layer has to. Nothing here knows an operating system: the same seed
//! gives the same run.
#![forbid(unsafe_code)]

mod complete;
mod error;
mod future_set;
mod gate;
mod loss;
#[cfg(any(test, feature = "check"))]
mod random;
mod span;
mod volume;
#[cfg(any(test, feature = "check"))]
mod wake_counter;

#[cfg(any(test, feature = "check"))]
pub mod check;
pub mod layer;
pub mod store;
pub mod tape;

pub use complete::complete_all;
pub use error::{Blame, Error, Kind, Result, Verb};
pub use future_set::FutureSet;
pub use gate::Gate;
pub use loss::FirstLoss;
pub use span::{Durability, Space, Span};
pub use volume::{
    CryptoErase, Discard, Extent, ExtentMap, GroupChange, Ordered, Shape, TRANSFER_MAX, Volume,
    Work,
};
