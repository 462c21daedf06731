//! The device server of a media changer (SMC-3), as far as it is not that of a disk: which elements there are, which cartridge
//! is where, and what it tells of that. The drives are other units; moving a cartridge is done elsewhere.

mod status;
#[cfg(test)]
mod tests;

pub use super::changer_op::{ChangerOp, Movement};
pub use status::{DriveState, report};

use super::super::Sense;
use super::super::cdb::ChangerCdb;
use super::super::elements::{ElementKind, Layout};
use super::super::sense::Additional;
use super::Step;
use super::step::DONE;

/// What a command asks for, or why it is refused.
pub(super) fn plan(cdb: ChangerCdb, layout: Layout) -> Result<Step, Sense> {
    Ok(match cdb {
        // The status of elements is what the changer has noted, which is so at any time.
        ChangerCdb::Initialize => DONE,
        ChangerCdb::InitializeRange { start } => {
            layout.place(start)?;
            DONE
        }
        // The transport element need not be anywhere before it moves something.
        ChangerCdb::Position { transport, destination } => {
            is_transport(transport)?;
            layout.place(destination)?;
            DONE
        }
        ChangerCdb::ReadStatus(query) => Step::Changer(ChangerOp::Status(query)),
        ChangerCdb::Move { transport, source, destination } => {
            is_transport(transport)?;
            let (source, destination) = (layout.place(source)?, layout.place(destination)?);
            Step::Changer(ChangerOp::Move(Movement::Move { source, destination }))
        }
        ChangerCdb::Exchange { transport, source, first, second } => {
            is_transport(transport)?;
            let (source, first) = (layout.place(source)?, layout.place(first)?);
            let second = layout.place(second)?;
            Step::Changer(ChangerOp::Move(Movement::Exchange { source, first, second }))
        }
    })
}

/// SMC-3, 6.6: address zero means the default one, which is the only one here, and is at zero.
fn is_transport(address: u16) -> Result<(), Sense> {
    match address == ElementKind::Transport.first() {
        true => Ok(()),
        false => Err(Sense::illegal(Additional::INVALID_ELEMENT_ADDRESS)),
    }
}
