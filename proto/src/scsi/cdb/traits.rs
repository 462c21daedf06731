//! What is known of a command besides its fields. Each row of the table of commands has an answer to each of these
//! questions.

use crate::scsi::attention::AttentionHandling;
use crate::scsi::reservation::Class;

/// The answers for one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// What a reservation means for it.
    pub class: Class,
    /// What the unit must have for it.
    pub required_state: RequiredState,
    /// The access states of a target port in which it runs.
    pub minimum_access: MinimumAccess,
    /// What a client must be allowed to do to run it.
    pub required_right: RequiredRight,
    /// How it meets a pending unit attention.
    pub attention: AttentionHandling,
    /// As what it is counted.
    pub kind: Kind,
    /// How long it may take at the unit.
    pub pace: Pace,
    /// What its data are.
    pub data: DataKind,
}

/// What a unit must have to run a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredState {
    /// Nothing: it only asks what the unit is, and runs while the medium is sanitized too (SBC-3, 4.11.3).
    Nothing,
    /// No medium: it is about the unit.
    Unit,
    /// A medium, which may be stopped: how large it is can be told all the same.
    Capacity,
    /// A medium that is ready.
    Medium,
    /// A medium, also one that could not be sanitized: it is sanitized again.
    Sanitize {
        /// AUSE: if it fails, the medium may be used without it.
        unrestricted: bool,
    },
    /// A medium, also one that could not be sanitized: it is used without that.
    SanitizeExit,
}

/// The least access that a target port must have for a command (SPC-4, 5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinimumAccess {
    /// All.
    Unavailable,
    /// All but unavailable: what may run there as it moves no block. READ CAPACITY is what initiators cannot do
    /// without when they find a disk by such a port first.
    Standby,
    /// Those in which the port moves blocks.
    Active,
}

/// What a client must be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredRight {
    /// To read: the command changes neither the medium nor the unit, and keeps nobody from either.
    Read,
    /// To write to the medium.
    Write,
    /// To write, since the settings and the state of the unit are those of all clients.
    Manage,
}

/// What a command does with the medium, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what they say")]
pub enum Kind {
    Read,
    Write,
    Other,
}

/// How long a command may take at the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As long as the unit needs for the data that come and go with it.
    Quick,
    /// Much longer, since it concerns far more than its data: a flush, zeroes, a discard.
    Slow,
}

/// What the data of a command are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataKind {
    /// Parameters, which say themselves how long they are; or there are none.
    Parameters,
    /// What the medium holds, or the status of its blocks: what is missing would be taken for nothing.
    Medium,
    /// What the medium holds afterwards, all of it.
    Stored,
}

impl Traits {
    /// Of a block that no row is for. It reports a unit attention: the condition comes before the fault.
    pub(super) const UNKNOWN: Self = MEDIUM;

    /// Whether the command changes what a medium that is ready holds, or makes changes durable.
    #[must_use]
    pub fn changes_medium(&self) -> bool {
        self.class == Class::Writes && self.required_state == RequiredState::Medium
    }

    const fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    const fn right(self, required_right: RequiredRight) -> Self {
        Self { required_right, ..self }
    }

    const fn counted(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    const fn data(self, data: DataKind) -> Self {
        Self { data, ..self }
    }

    const fn slow(self) -> Self {
        Self { pace: Pace::Slow, ..self }
    }

    /// START STOP UNIT that starts. SBC-3, table 13: no reservation stops it, if it names no power condition.
    pub(super) const fn starting(self) -> Self {
        self.class(Class::Free)
    }

    /// PREVENT ALLOW MEDIUM REMOVAL that allows: it takes nothing back but the initiator's own wish.
    pub(super) const fn allowing(self) -> Self {
        self.class(Class::Free).right(RequiredRight::Read)
    }

    /// READ ELEMENT STATUS with CURDATA: it moves nothing, and no reservation stops it.
    pub(super) const fn current(self) -> Self {
        self.class(Class::Free)
    }

    /// SANITIZE with AUSE.
    pub(super) const fn unrestricted(self) -> Self {
        Self { required_state: RequiredState::Sanitize { unrestricted: true }, ..self }
    }
}

/// TEST UNIT READY.
pub(super) const READY: Traits = Traits {
    class: Class::Ready,
    required_state: RequiredState::Medium,
    minimum_access: MinimumAccess::Active,
    required_right: RequiredRight::Read,
    attention: AttentionHandling::Reports,
    kind: Kind::Other,
    pace: Pace::Quick,
    data: DataKind::Parameters,
};

/// INQUIRY, REPORT LUNS (SPC-4, 6.6.1 and 6.33).
pub(super) const IDENTIFY: Traits = Traits { attention: AttentionHandling::Passes, ..PORTS };

/// REQUEST SENSE (SPC-4, 6.39).
pub(super) const SENSE: Traits = Traits { attention: AttentionHandling::Returns, ..PORTS };

/// REPORT TARGET PORT GROUPS and REPORT TIMESTAMP, which are not about the unit.
pub(super) const PORTS: Traits = Traits {
    class: Class::Free,
    required_state: RequiredState::Nothing,
    minimum_access: MinimumAccess::Unavailable,
    ..READY
};

/// What else only asks what the unit is. SPC-4, table 65, note b: the device may refuse LOG SENSE and MODE SENSE under
/// a reservation, and tells in ALLOW COMMANDS that it does not.
pub(super) const QUERY: Traits = Traits {
    class: Class::Reads,
    required_state: RequiredState::Nothing,
    minimum_access: MinimumAccess::Standby,
    ..READY
};

/// MANAGEMENT PROTOCOL IN and OUT, which are about the server: no state of the unit and nobody's reservation keeps an
/// administrator from it, nor a unit attention, which is about the unit.
pub(super) const ADMINISTER: Traits =
    Traits { attention: AttentionHandling::Passes, ..PORTS }.slow();

/// MODE SENSE.
pub(super) const SETTINGS: Traits = Traits { required_state: RequiredState::Unit, ..QUERY };

/// SEND DIAGNOSTIC: the self-test tests nothing that others notice.
pub(super) const SELF_TEST: Traits = SETTINGS.class(Class::Writes);

/// MODE SELECT: the settings of the unit are those of all.
pub(super) const CHANGE_SETTINGS: Traits =
    SETTINGS.class(Class::Writes).right(RequiredRight::Manage);

/// START STOP UNIT brings a medium, and starts the unit.
pub(super) const POWER: Traits = PREVENT.slow();

/// PREVENT ALLOW MEDIUM REMOVAL that prevents.
pub(super) const PREVENT: Traits =
    Traits { minimum_access: MinimumAccess::Active, ..CHANGE_SETTINGS };

/// PERSISTENT RESERVE IN. SPC-4, table 28 demands it of every device that has reservations.
pub(super) const RESERVE_IN: Traits = SETTINGS.class(Class::Persistent);

/// READ FULL STATUS, which is not demanded, and tells the names of all initiators.
pub(super) const FULL_STATUS: Traits = RESERVE_IN.right(RequiredRight::Manage);

/// PERSISTENT RESERVE OUT that registers: who is not registered is kept from reading by some reservations. What a
/// client may register that may only read is for [`Reservations::prepare_reader`].
///
/// [`Reservations::prepare_reader`]: crate::scsi::reservation::Reservations::prepare_reader
pub(super) const REGISTER: Traits = RESERVE_IN;

/// PERSISTENT RESERVE OUT that does anything else.
pub(super) const RESERVE_OUT: Traits = REGISTER.right(RequiredRight::Manage);

/// RESERVE and RELEASE: nobody else could even read.
pub(super) const RESERVE_UNIT: Traits = Traits { class: Class::Reserve, ..PREVENT };

/// GET CONFIGURATION and GET EVENT STATUS NOTIFICATION, which report no unit attention (MMC-6, 4.1.6.1).
pub(super) const DRIVE: Traits = Traits {
    attention: AttentionHandling::Passes,
    minimum_access: MinimumAccess::Standby,
    ..PORTS
};

/// What tells of the disc in an optical drive.
pub(super) const DISC: Traits = READY.class(Class::Reads);

/// What moves a tape, which every initiator that uses it finds elsewhere then.
pub(super) const MOVE: Traits = READY.class(Class::Writes).slow();

/// READ of a tape moves it.
pub(super) const READ_NEXT: Traits = READ.class(Class::Writes);

/// WRITE FILEMARKS. Without IMMED it makes stable all that was written before.
pub(super) const WRITE_MARKS: Traits = CHANGE.slow().data(DataKind::Parameters);

/// ERASE of a tape.
pub(super) const ERASE: Traits = WRITE_MARKS;

/// What prepares a disc to be written, and what ends its tracks and sessions.
pub(super) const RECORD: Traits = WRITE_MARKS;

/// What moves media in a changer, or has it look at them: every initiator finds them elsewhere then.
pub(super) const MOVE_MEDIUM: Traits = CHANGE_SETTINGS.slow();

/// READ ELEMENT STATUS. SMC-3, table 8: it conflicts with a reservation, as the device may have to look at its elements.
pub(super) const ELEMENT_STATUS: Traits = SETTINGS.class(Class::Writes);

/// READ CAPACITY.
pub(super) const CAPACITY: Traits = Traits {
    class: Class::Free,
    required_state: RequiredState::Capacity,
    minimum_access: MinimumAccess::Standby,
    ..READY
};

/// What reads the medium, or learns how it is.
pub(super) const MEDIUM: Traits = READY.class(Class::Reads).data(DataKind::Medium);

/// READ.
pub(super) const READ: Traits = MEDIUM.counted(Kind::Read);

/// VERIFY, which may cover the whole medium.
pub(super) const VERIFY: Traits = MEDIUM.slow();

/// SYNCHRONIZE CACHE makes stable what others have written, which they can only want.
pub(super) const SYNCHRONIZE: Traits = MEDIUM.class(Class::Writes).slow();

/// What changes the medium and is not counted as a write.
pub(super) const CHANGE: Traits = MEDIUM.class(Class::Writes).right(RequiredRight::Write);

/// WRITE.
pub(super) const WRITE: Traits = CHANGE.counted(Kind::Write).data(DataKind::Stored);

/// What is carried out as one: COMPARE AND WRITE, ORWRITE, WRITE ATOMIC.
pub(super) const WRITE_AS_ONE: Traits = CHANGE.counted(Kind::Write);

/// WRITE SAME: its data is one block, for as many as it names.
pub(super) const WRITE_SAME: Traits = CHANGE.slow().data(DataKind::Stored);

/// UNMAP.
pub(super) const UNMAP: Traits = CHANGE.slow();

/// SANITIZE.
pub(super) const SANITIZE: Traits =
    Traits { required_state: RequiredState::Sanitize { unrestricted: false }, ..UNMAP };

/// SANITIZE with EXIT FAILURE MODE.
pub(super) const SANITIZE_EXIT: Traits =
    Traits { required_state: RequiredState::SanitizeExit, ..SANITIZE };

/// EXTENDED COPY. It asks of each unit whether it is ready. A unit does one copy at a time, for whichever client asks
/// first: one that may only read asks the unit that it writes to, and each end checks its rights.
pub(super) const COPY: Traits = PREVENT.slow();

/// RECEIVE COPY RESULTS.
pub(super) const COPY_RESULTS: Traits =
    Traits { minimum_access: MinimumAccess::Active, ..SETTINGS };
