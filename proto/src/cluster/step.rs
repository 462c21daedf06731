//! How a gateway keeps its lease, what it is to do next, and what it is told of that.

use std::time::Duration;

use super::record::{GatewayName, Holder, Record};
use crate::time::Time;

/// How a gateway keeps its lease.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who it is.
    pub me: Holder,
    /// How long its lease lasts after a sign of life.
    pub lease: Duration,
    /// Another holder that gives no sign of life is fenced before its lease is taken.
    pub fences: bool,
    /// The storage can shut out an address: a holder has one that is its own and new with each lease, and is shut out before
    /// its lease is taken, whatever it is called.
    pub has_addresses: bool,
    /// How much it is to be active rather than a gateway with less; it asks for nothing with 0.
    pub weight: u16,
}

/// Who is to touch nothing any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousHolder {
    /// Its name, which is that of this gateway if it is an earlier life of it.
    pub gateway: GatewayName,
    /// Which life of it that was.
    pub incarnation: u64,
    /// By which address it came to the media, if the storage can shut that out.
    pub address: Option<String>,
    /// When its last sign of life was read.
    pub seen: Time,
}

/// What a gateway is, as far as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Another one may use the media, or none.
    Standby,
    /// It holds the lease, and is to open the volumes.
    TakingOver,
    /// The volumes are open, and it may use them.
    Active,
    /// It is to give the lease back, once it has closed the volumes.
    Leaving,
    /// The lease is over: it is to close the volumes, and answers nothing from them.
    Lost,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing before then, unless something is asked of it.
    Wait(Time),
    /// Read the record.
    Read,
    /// Read what the other gateways have shown of themselves.
    Look,
    /// Write this record, if the one that is there is the version before.
    Write(Record),
    /// See to it that this gateway touches nothing any more.
    Fence(PreviousHolder),
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The record is there.
    Done,
    /// Another one was: nothing has changed.
    Conflict,
    /// There is no telling, and it may be there later.
    Unknown,
}

/// A change of what is kept of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The unit.
    pub unit: String,
    /// What it was decided on.
    pub base: Option<Vec<u8>>,
    /// What takes its place.
    pub image: Vec<u8>,
}

/// What became of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is kept, and in force at whoever uses the media.
    Done,
    /// What it was decided on has changed.
    Conflict,
    /// There is no telling.
    Unknown,
}
