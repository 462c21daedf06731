//! What commands on a media changer ask for.

use std::fmt;

use super::super::Sense;
use super::super::cdb::StatusQuery;
use super::super::elements::{Element, Inventory};

/// What is to be done with a media changer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangerOp {
    /// Return [`report`](super::changer::report).
    Status(StatusQuery),
    /// Move cartridges.
    Move(Movement),
}

/// Which cartridges are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// MOVE MEDIUM.
    Move {
        /// Where it is.
        source: Element,
        /// Where it goes.
        destination: Element,
    },
    /// EXCHANGE MEDIUM.
    Exchange {
        /// Where the first one is.
        source: Element,
        /// Where it goes.
        first: Element,
        /// Where the one goes that is there.
        second: Element,
    },
}

impl Movement {
    /// What is where afterwards.
    pub fn apply(self, inventory: &Inventory) -> Result<Inventory, Sense> {
        match self {
            Self::Move { source, destination } => inventory.moved(source, destination),
            Self::Exchange { source, first, second } => inventory.exchanged(source, first, second),
        }
    }
}

impl fmt::Display for Movement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Move { source, destination } => write!(f, "{source} to {destination}"),
            Self::Exchange { source, first, second } => {
                write!(f, "{source} to {first}, {first} to {second}")
            }
        }
    }
}
