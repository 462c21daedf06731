//! The codes that stand in headers, by their names in the standard.

macro_rules! codes {
    ($(
        $(#[$doc:meta])*
        $type:ident { $($(#[$code_doc:meta])* $code:ident = $value:literal,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $type(pub u8);

        impl $type {
            $($(#[$code_doc])* pub const $code: Self = Self($value);)*
        }

        impl core::fmt::Debug for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self {
                    $(Self::$code => f.write_str(stringify!($code)),)*
                    Self(other) => write!(f, concat!(stringify!($type), "({})"), other),
                }
            }
        }
    )*};
}

codes! {
    /// How a task stands to others of its task set (RFC 7143, 11.3.1).
    TaskAttribute {
        /// Up to the target: as SIMPLE here.
        UNTAGGED = 0,
        /// In any order with other simple tasks.
        SIMPLE = 1,
        /// After all before it, before all after it.
        ORDERED = 2,
        /// At once.
        HEAD_OF_QUEUE = 3,
        /// Under an auto contingent allegiance.
        ACA = 4,
    }

    /// What a task management request wants (RFC 7143, 11.5.1; RFC 7144, 6.3).
    TaskFunction {
        /// Ends one task.
        ABORT_TASK = 1,
        /// Ends this nexus's tasks on a unit.
        ABORT_TASK_SET = 2,
        /// Ends an auto contingent allegiance.
        CLEAR_ACA = 3,
        /// Ends everyone's tasks on a unit.
        CLEAR_TASK_SET = 4,
        /// Resets a unit.
        LOGICAL_UNIT_RESET = 5,
        /// Resets every unit.
        TARGET_WARM_RESET = 6,
        /// Resets every unit and ends every connection.
        TARGET_COLD_RESET = 7,
        /// Takes a task up on another connection.
        TASK_REASSIGN = 8,
        /// Asks whether one task is there.
        QUERY_TASK = 9,
        /// Asks whether any task is there.
        QUERY_TASK_SET = 10,
        /// Ends what this nexus has everywhere.
        I_T_NEXUS_RESET = 11,
        /// Asks for events not told.
        QUERY_ASYNCHRONOUS_EVENT = 12,
    }

    /// How a task management function ended (RFC 7143, 11.6.1; RFC 7144, 6.4).
    TaskResponse {
        /// Done.
        COMPLETE = 0,
        /// No such task.
        TASK_DOES_NOT_EXIST = 1,
        /// No such unit.
        LUN_DOES_NOT_EXIST = 2,
        /// The task still belongs to a connection.
        TASK_STILL_ALLEGIANT = 3,
        /// Allegiance cannot be moved.
        REASSIGNMENT_NOT_SUPPORTED = 4,
        /// Not known here.
        NOT_SUPPORTED = 5,
        /// This initiator may not.
        AUTHORIZATION_FAILED = 6,
        /// A query found what it asked for.
        SUCCEEDED = 7,
        /// Refused.
        REJECTED = 255,
    }

    /// Whether a command completed at the target (RFC 7143, 11.4.3).
    ResponseCode {
        /// It did: the status holds.
        COMPLETED = 0,
        /// It did not.
        TARGET_FAILURE = 1,
    }

    /// What a logout ends (RFC 7143, 11.14.1).
    LogoutReason {
        /// The session.
        CLOSE_SESSION = 0,
        /// One connection.
        CLOSE_CONNECTION = 1,
        /// A connection, to recover its tasks elsewhere.
        REMOVE_FOR_RECOVERY = 2,
    }

    /// How a logout ended (RFC 7143, 11.15.1).
    LogoutResponseCode {
        /// Done.
        CLOSED = 0,
        /// No such connection.
        CID_NOT_FOUND = 1,
        /// Recovery is not supported.
        RECOVERY_NOT_SUPPORTED = 2,
        /// It could not be cleaned up.
        CLEANUP_FAILED = 3,
    }

    /// Why a PDU was rejected (RFC 7143, 11.17.1).
    RejectReason {
        /// The data digest did not match.
        DATA_DIGEST_ERROR = 0x02,
        /// SNACK refused.
        SNACK_REJECT = 0x03,
        /// Against the protocol.
        PROTOCOL_ERROR = 0x04,
        /// Not known here.
        COMMAND_NOT_SUPPORTED = 0x05,
        /// More immediate commands than there is room for.
        IMMEDIATE_COMMAND_REJECT = 0x06,
        /// The task is under way.
        TASK_IN_PROGRESS = 0x07,
        /// No such data acknowledgement.
        INVALID_DATA_ACK = 0x08,
        /// A field has a value it may not have.
        INVALID_PDU_FIELD = 0x09,
        /// Nothing left to keep a long operation in.
        LONG_OPERATION_REJECT = 0x0a,
        /// The negotiation is to begin anew.
        NEGOTIATION_RESET = 0x0b,
        /// A logout is awaited.
        WAITING_FOR_LOGOUT = 0x0c,
    }

    /// What an asynchronous message tells (RFC 7143, 11.9.1).
    AsyncEvent {
        /// Sense data of a unit.
        SCSI_EVENT = 0,
        /// Asks for a logout within Parameter3 seconds.
        LOGOUT_REQUEST = 1,
        /// A connection will be dropped.
        DROP_CONNECTION = 2,
        /// All connections will be dropped.
        DROP_SESSION = 3,
        /// Parameters are to be negotiated again.
        NEGOTIATE = 4,
        /// All tasks of a unit were ended by another.
        TASK_TERMINATION = 5,
        /// The vendor's own.
        VENDOR = 255,
    }

    /// What a SNACK asks for again (RFC 7143, 11.16.1).
    SnackType {
        /// Data-In or R2T PDUs.
        DATA = 0,
        /// Status PDUs.
        STATUS = 1,
        /// Acknowledges Data-In.
        DATA_ACK = 2,
        /// Data-In, split anew.
        R_DATA = 3,
    }
}
