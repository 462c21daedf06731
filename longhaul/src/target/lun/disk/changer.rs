//! What commands do with the elements of a media changer. Who runs the server moves the cartridges: the drives are other
//! units, and what is in them is exchanged there.

use bytes::Bytes;
use proto::scsi::Sense;
use proto::scsi::Status;
use proto::scsi::cdb::StatusQuery;
use proto::scsi::sense::{Additional, Key};
use proto::scsi::unit::changer::{self, ChangerOp, DriveState};
use proto::scsi::unit::truncate;

use super::super::answer::Abort;
use super::super::fault::{Fault, INTERNAL};
use super::super::{MediaChanger, MoveError};
use super::{Core, Disk};

impl Disk {
    /// An operator has changed what is where in a media changer: every initiator is told.
    pub fn elements_changed(&self, how: ElementsChanged) {
        let condition = match how {
            ElementsChanged::Moved => Additional::MEDIUM_MAY_HAVE_CHANGED,
            ElementsChanged::ImportedOrExported => Additional::IMPORT_OR_EXPORT_ACCESSED,
        };
        self.core.attend(|attentions| attentions.establish(condition, None));
    }
}

/// What an operator has done to the elements of a media changer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementsChanged {
    /// A cartridge was moved.
    Moved,
    /// One has come in, or gone out.
    ImportedOrExported,
}

impl Core {
    pub(super) async fn work_on_elements(
        &self,
        op: ChangerOp,
        abort: &Abort,
    ) -> Result<Vec<Bytes>, Fault> {
        let changer = self.state.changer.as_deref().ok_or(INTERNAL)?;
        match op {
            ChangerOp::Status(query) => Ok(vec![self.element_status(changer, query).into()]),
            // Where the command is aborted a movement that has begun is done to its end.
            ChangerOp::Move(movement) => match abort.unless(changer.perform(movement)).await? {
                Ok(()) => Ok(Vec::new()),
                Err(MoveError::Busy) => Err(Fault::Status(Status::Busy)),
                Err(MoveError::Refused(sense)) => Err(sense.into()),
            },
        }
    }

    fn element_status(&self, changer: &dyn MediaChanger, query: StatusQuery) -> Vec<u8> {
        let inventory = changer.inventory();
        let drives: Vec<_> =
            (0..inventory.layout().drives).map(|index| self.drive_state(index)).collect();
        truncate(changer::report(&inventory, query, &drives), query.allocation)
    }

    /// How a drive is: one of the units behind the changer, if this initiator may see it.
    fn drive_state(&self, index: u16) -> DriveState {
        let lun = self.state.lun + 1 + index;
        let drive = self.peers().find(|peer| peer.state.lun == lun);
        drive.map_or_else(DriveState::default, |drive| DriveState {
            is_locked: drive.switches().locked,
            designator: drive.unit.identity().designator(),
        })
    }
}

impl MoveError {
    /// An initiator forbids that what is in a drive is taken out, or another put in.
    pub const LOCKED: Self = Self::Refused(Sense::illegal(Additional::MEDIUM_REMOVAL_PREVENTED));
    /// What was written to a tape last could not be made stable.
    pub const UNSTABLE: Self =
        Self::Refused(Sense::new(Key::HardwareError, Additional::UNLOAD_TAPE_FAILURE));
    /// The file of a cartridge cannot be used.
    pub const UNUSABLE: Self =
        Self::Refused(Sense::new(Key::MediumError, Additional::INCOMPATIBLE_FORMAT));
    /// What is where could not be noted.
    pub const UNNOTED: Self = Self::Refused(INTERNAL);
}
