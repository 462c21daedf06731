//! Why a command ends without GOOD, and the one table from what a volume reports to what SCSI calls it.

use bytes::Bytes;
use proto::scsi::sense::{Additional, Format, Key};
use proto::scsi::{Residual, Sense, Status};
use volume::{Error, Kind, Verb};

use super::Response;

/// How a command fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// CHECK CONDITION, with this sense.
    Check(Sense),
    /// A status that needs no sense.
    Status(Status),
}

/// Something that cannot be.
pub(super) const INTERNAL: Sense =
    Sense::new(Key::HardwareError, Additional::INTERNAL_TARGET_FAILURE);

impl From<Sense> for Fault {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

impl Fault {
    /// What the initiator is told when the volume failed at a request that began at block `lba`.
    ///
    /// The place is the front's own: an error that comes from below may name a place of the store.
    pub(super) fn of_volume(error: &Error, lba: Option<u64>) -> Self {
        let (key, additional) = match (error.kind, error.verb) {
            (Kind::Busy, _) => return Self::Status(Status::Busy),
            (Kind::Range, _) => (Key::IllegalRequest, Additional::LBA_OUT_OF_RANGE),
            (Kind::Unsupported, _) => {
                (Key::IllegalRequest, Additional::INVALID_COMMAND_OPERATION_CODE)
            }
            (Kind::ReadOnly, _) => (Key::DataProtect, Additional::WRITE_PROTECTED),
            (Kind::NoSpace, _) => (Key::DataProtect, Additional::SPACE_ALLOCATION_FAILED),
            (Kind::Medium, Verb::Read | Verb::Extents) => {
                (Key::MediumError, Additional::UNRECOVERED_READ_ERROR)
            }
            (Kind::Medium, _) => (Key::MediumError, Additional::WRITE_ERROR),
            (Kind::Integrity, _) => (Key::MediumError, Additional::RECOMMEND_REWRITE),
            (Kind::Gone, _) => (Key::NotReady, Additional::COMMUNICATION_FAILURE),
            (Kind::Peer, _) => (Key::HardwareError, Additional::INTERNAL_TARGET_FAILURE),
        };
        let sense = Sense::new(key, additional);
        Self::Check(match (error.kind, lba) {
            (Kind::Medium | Kind::Integrity, Some(lba)) => sense.with_information(lba),
            _ => sense,
        })
    }

    pub(super) fn response(self, format: Format) -> Response {
        match self {
            Self::Check(sense) => Response {
                status: Status::CheckCondition,
                data: Vec::new(),
                sense: sense.emit(format).into(),
                residual: Residual::None,
            },
            Self::Status(status) => {
                Response { status, data: Vec::new(), sense: Bytes::new(), residual: Residual::None }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 9] = [
        Kind::Range,
        Kind::Unsupported,
        Kind::ReadOnly,
        Kind::Medium,
        Kind::Integrity,
        Kind::NoSpace,
        Kind::Gone,
        Kind::Busy,
        Kind::Peer,
    ];

    #[test]
    fn only_the_medium_names_a_block() {
        for kind in KINDS {
            let error = Error::new(kind, Verb::Write, None);
            let Fault::Check(sense) = Fault::of_volume(&error, Some(7)) else {
                assert_eq!(kind, Kind::Busy);
                continue;
            };
            let names = matches!(kind, Kind::Medium | Kind::Integrity);
            assert_eq!(sense.information, names.then_some(7), "{kind:?}");
        }
    }

    #[test]
    fn reading_and_writing_fail_apart() {
        let additional = |verb| match Fault::of_volume(&Error::new(Kind::Medium, verb, None), None)
        {
            Fault::Check(sense) => sense.additional,
            Fault::Status(status) => panic!("{status:?}"),
        };
        assert_eq!(additional(Verb::Read), Additional::UNRECOVERED_READ_ERROR);
        assert_eq!(additional(Verb::Flush), Additional::WRITE_ERROR);
    }

    #[test]
    fn a_full_store_is_a_failed_allocation() {
        let full = Fault::of_volume(&Error::new(Kind::NoSpace, Verb::Write, None), Some(1));
        let expected = Sense::new(Key::DataProtect, Additional::SPACE_ALLOCATION_FAILED);
        assert_eq!(full, Fault::Check(expected));
        let response = full.response(Format::Fixed);
        assert_eq!(Sense::parse(&response.sense), Some(expected));
    }
}
