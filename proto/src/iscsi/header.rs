//! The basic header segment of every PDU (RFC 7143, 11.2): one table per PDU, read like the pictures of
//! the standard, from which parsing and emitting both follow.
//!
//! The laws, for any 48 bytes `x` with a known opcode:
//!
//! - `parse(emit(parse(x))) == parse(x)`;
//! - `emit(parse(x))` is `x` with reserved bits cleared and the bits the standard fixes set. A receiver
//!   ignores reserved bits and a sender clears them (RFC 7143, 11), so they are in no field; where
//!   the bytes themselves matter (the data of a Reject) the frame decoder keeps the header as it came.
//!
//! Codes are open newtypes rather than enums: an unknown one survives parsing, and whoever acts on it
//! answers it as its clause demands.

mod codes;
mod fields;

pub use codes::{
    AsyncEvent, LogoutReason, LogoutResponseCode, RejectReason, ResponseCode, SnackType,
    TaskAttribute, TaskFunction, TaskResponse,
};
use fields::{Bits, Word};

/// Bytes of a basic header segment.
pub const BHS_LEN: usize = 48;

/// The tag that stands for no task (RFC 7143, 11.2.1.8 and others).
pub const NO_TAG: u32 = 0xffff_ffff;

/// The opcode, without the immediate bit.
const OPCODE_MASK: u8 = 0x3f;

/// The lengths that stand in every header, in bytes, padding not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// Additional header segments: a multiple of four, at most 1,020 (RFC 7143, 11.2.1.5).
    pub ahs: usize,
    /// The data segment: at most 2^24 - 1 (RFC 7143, 11.2.1.6).
    pub data: usize,
}

impl Lengths {
    /// The lengths a header announces.
    #[must_use]
    pub const fn parse(bhs: &[u8; BHS_LEN]) -> Self {
        Self {
            ahs: bhs[4] as usize * 4,
            data: u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize,
        }
    }

    /// Writes them into a header.
    fn emit(self, bhs: &mut [u8; BHS_LEN]) {
        debug_assert!(self.ahs.is_multiple_of(4) && self.ahs <= 1020 && self.data < 1 << 24);
        let [_, high, middle, low] = (self.data as u32).to_be_bytes();
        bhs[4..8].copy_from_slice(&[(self.ahs / 4) as u8, high, middle, low]);
    }
}

/// Nothing is known by this opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown opcode {0:#04x}")]
pub struct UnknownOpcode(pub u8);

/// Declares the PDUs: name, opcode, the bits that are always set, then per field its place. A field of
/// bits stands as `byte & mask`, a whole one as the offset of its first byte.
macro_rules! pdus {
    ($(
        $(#[$doc:meta])*
        $name:ident = $opcode:literal {
            always { $($fixed_at:literal | $fixed:literal),* }
            bits { $($(#[$bit_doc:meta])* $bit:ident: $bit_type:ty = $byte:literal & $mask:literal,)* }
            words { $($(#[$word_doc:meta])* $word:ident: $word_type:ty = $at:literal,)* }
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $name {
                $($(#[$bit_doc])* pub $bit: $bit_type,)*
                $($(#[$word_doc])* pub $word: $word_type,)*
            }

            impl $name {
                /// The opcode on the wire.
                pub const OPCODE: u8 = $opcode;

                /// Reads the fields; reserved bits are ignored (RFC 7143, 11).
                #[must_use]
                pub fn parse(bhs: &[u8; BHS_LEN]) -> Self {
                    Self {
                        $($bit: Bits::from_bits((bhs[$byte] & $mask) >> u8::trailing_zeros($mask)),)*
                        $($word: Word::read(bhs, $at),)*
                    }
                }

                /// Writes the fields, with reserved bits clear.
                #[must_use]
                pub fn emit(&self, lengths: Lengths) -> [u8; BHS_LEN] {
                    let mut bhs = [0; BHS_LEN];
                    bhs[0] = $opcode;
                    $(bhs[$fixed_at] |= $fixed;)*
                    $(bhs[$byte] |= (self.$bit.into_bits() << u8::trailing_zeros($mask)) & $mask;)*
                    $(self.$word.write(&mut bhs, $at);)*
                    lengths.emit(&mut bhs);
                    bhs
                }
            }

            impl From<$name> for Header {
                fn from(header: $name) -> Self {
                    Self::$name(header)
                }
            }
        )*

        /// The header of any PDU.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each is documented on its struct")]
        pub enum Header {
            $($name($name),)*
        }

        impl Header {
            /// Reads the header its opcode names.
            pub fn parse(bhs: &[u8; BHS_LEN]) -> Result<Self, UnknownOpcode> {
                match bhs[0] & OPCODE_MASK {
                    $($opcode => Ok(Self::$name($name::parse(bhs))),)*
                    other => Err(UnknownOpcode(other)),
                }
            }

            /// Writes the header.
            #[must_use]
            pub fn emit(&self, lengths: Lengths) -> [u8; BHS_LEN] {
                match self {
                    $(Self::$name(header) => header.emit(lengths),)*
                }
            }

            /// What the standard calls this PDU, for messages.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)*
                }
            }
        }
    };
}

pdus! {
    /// NOP-Out: a ping, or the answer to one (RFC 7143, 11.18).
    NopOut = 0x00 {
        always { 1 | 0x80 }
        bits {
            /// Outside the command order.
            immediate: bool = 0 & 0x40,
        }
        words {
            /// As in the NOP-In it answers; otherwise zero.
            lun: u64 = 8,
            /// Names the ping, or [`NO_TAG`] where no answer is wanted.
            itt: u32 = 16,
            /// As in the NOP-In it answers, or [`NO_TAG`].
            ttt: u32 = 20,
            /// Its place in the command order.
            cmd_sn: u32 = 24,
            /// The status the initiator expects next.
            exp_stat_sn: u32 = 28,
        }
    }

    /// SCSI Command (RFC 7143, 11.3).
    ScsiCommand = 0x01 {
        always {}
        bits {
            /// Outside the command order.
            immediate: bool = 0 & 0x40,
            /// F: no unsolicited Data-Out follows.
            is_final: bool = 1 & 0x80,
            /// R: data-in is expected.
            read: bool = 1 & 0x40,
            /// W: data-out is expected.
            write: bool = 1 & 0x20,
            /// How the task stands to others of its task set.
            attribute: TaskAttribute = 1 & 0x07,
        }
        words {
            /// The logical unit, as SAM-5 4.7 lays it out.
            lun: u64 = 8,
            /// Names the task until its response.
            itt: u32 = 16,
            /// How many bytes the initiator has room or data for.
            expected_len: u32 = 20,
            /// Its place in the command order.
            cmd_sn: u32 = 24,
            /// The status the initiator expects next.
            exp_stat_sn: u32 = 28,
            /// The command block, or its first sixteen bytes.
            cdb: [u8; 16] = 32,
        }
    }

    /// Task Management Function Request (RFC 7143, 11.5).
    TaskManagementRequest = 0x02 {
        always { 1 | 0x80 }
        bits {
            /// Outside the command order.
            immediate: bool = 0 & 0x40,
            /// What to do.
            function: TaskFunction = 1 & 0x7f,
        }
        words {
            /// The logical unit concerned, for functions that have one.
            lun: u64 = 8,
            /// Names this request.
            itt: u32 = 16,
            /// The task concerned, or [`NO_TAG`].
            referenced_tag: u32 = 20,
            /// Its place in the command order.
            cmd_sn: u32 = 24,
            /// The status the initiator expects next.
            exp_stat_sn: u32 = 28,
            /// The CmdSN of the task concerned, for ABORT TASK.
            ref_cmd_sn: u32 = 32,
            /// For TASK REASSIGN.
            exp_data_sn: u32 = 36,
        }
    }

    /// Login Request (RFC 7143, 11.12).
    LoginRequest = 0x03 {
        always { 0 | 0x40 }
        bits {
            /// T: wants to go to the next stage.
            transit: bool = 1 & 0x80,
            /// C: the text goes on in the next request.
            continues: bool = 1 & 0x40,
            /// CSG: the stage it is in.
            current_stage: u8 = 1 & 0x0c,
            /// NSG: the stage it wants.
            next_stage: u8 = 1 & 0x03,
        }
        words {
            /// The newest version it speaks.
            version_max: u8 = 2,
            /// The oldest version it speaks.
            version_min: u8 = 3,
            /// The initiator's part of the session's name.
            isid: [u8; 6] = 8,
            /// The target's part: zero for a new session.
            tsih: u16 = 14,
            /// Names the login.
            itt: u32 = 16,
            /// The connection's number in its session.
            cid: u16 = 20,
            /// The first CmdSN of a new session.
            cmd_sn: u32 = 24,
            /// The status the initiator expects next.
            exp_stat_sn: u32 = 28,
        }
    }

    /// Text Request (RFC 7143, 11.10).
    TextRequest = 0x04 {
        always {}
        bits {
            /// Outside the command order.
            immediate: bool = 0 & 0x40,
            /// F: all has been said.
            is_final: bool = 1 & 0x80,
            /// C: the text goes on in the next request.
            continues: bool = 1 & 0x40,
        }
        words {
            /// As in the response it follows; otherwise zero.
            lun: u64 = 8,
            /// Names the exchange.
            itt: u32 = 16,
            /// As in the response it follows, or [`NO_TAG`] to begin.
            ttt: u32 = 20,
            /// Its place in the command order.
            cmd_sn: u32 = 24,
            /// The status the initiator expects next.
            exp_stat_sn: u32 = 28,
        }
    }

    /// SCSI Data-Out (RFC 7143, 11.7).
    DataOut = 0x05 {
        always {}
        bits {
            /// F: the last of its sequence.
            is_final: bool = 1 & 0x80,
        }
        words {
            /// As in the R2T it answers.
            lun: u64 = 8,
            /// The task.
            itt: u32 = 16,
            /// The R2T it answers, or [`NO_TAG`] for unsolicited data.
            ttt: u32 = 20,
            /// The status the initiator expects next.
            exp_stat_sn: u32 = 28,
            /// Its place in the sequence.
            data_sn: u32 = 36,
            /// Where its data belong in the whole transfer.
            buffer_offset: u32 = 40,
        }
    }

    /// Logout Request (RFC 7143, 11.14).
    LogoutRequest = 0x06 {
        always { 1 | 0x80 }
        bits {
            /// Outside the command order.
            immediate: bool = 0 & 0x40,
            /// What to end.
            reason: LogoutReason = 1 & 0x7f,
        }
        words {
            /// Names this request.
            itt: u32 = 16,
            /// The connection to end, unless the session ends.
            cid: u16 = 20,
            /// Its place in the command order.
            cmd_sn: u32 = 24,
            /// The status the initiator expects next.
            exp_stat_sn: u32 = 28,
        }
    }

    /// SNACK Request (RFC 7143, 11.16).
    Snack = 0x10 {
        always { 1 | 0x80 }
        bits {
            /// What is asked for again.
            kind: SnackType = 1 & 0x0f,
        }
        words {
            /// As in the PDUs asked for.
            lun: u64 = 8,
            /// The task, or [`NO_TAG`].
            itt: u32 = 16,
            /// Target transfer tag or SNACK tag.
            ttt: u32 = 20,
            /// The status the initiator expects next.
            exp_stat_sn: u32 = 28,
            /// The first number missing.
            beg_run: u32 = 40,
            /// How many are missing.
            run_length: u32 = 44,
        }
    }

    /// NOP-In: a ping, or the answer to one (RFC 7143, 11.19).
    NopIn = 0x20 {
        always { 1 | 0x80 }
        bits {}
        words {
            /// The answer is to carry it.
            lun: u64 = 8,
            /// The ping it answers, or [`NO_TAG`].
            itt: u32 = 16,
            /// Names the ping, or [`NO_TAG`] where no answer is wanted.
            ttt: u32 = 20,
            /// Status number; the next one, not used up, where `itt` is [`NO_TAG`].
            stat_sn: u32 = 24,
            /// The command the target expects next.
            exp_cmd_sn: u32 = 28,
            /// The last command it has room for.
            max_cmd_sn: u32 = 32,
        }
    }

    /// SCSI Response (RFC 7143, 11.4).
    ScsiResponse = 0x21 {
        always { 1 | 0x80 }
        bits {
            /// o: the read part of a bidirectional command had more.
            bidi_overflow: bool = 1 & 0x10,
            /// u: the read part of a bidirectional command had less.
            bidi_underflow: bool = 1 & 0x08,
            /// O: there was more to transfer than the initiator expected.
            overflow: bool = 1 & 0x04,
            /// U: there was less.
            underflow: bool = 1 & 0x02,
        }
        words {
            /// Whether the command completed at the target.
            response: ResponseCode = 2,
            /// The SCSI status.
            status: u8 = 3,
            /// The task.
            itt: u32 = 16,
            /// For R-Data SNACK.
            snack_tag: u32 = 20,
            /// Status number.
            stat_sn: u32 = 24,
            /// The command the target expects next.
            exp_cmd_sn: u32 = 28,
            /// The last command it has room for.
            max_cmd_sn: u32 = 32,
            /// How many Data-In and R2T PDUs the task had.
            exp_data_sn: u32 = 36,
            /// By how much the read part of a bidirectional command missed.
            bidi_residual: u32 = 40,
            /// By how much the transfer missed what the initiator expected.
            residual: u32 = 44,
        }
    }

    /// Task Management Function Response (RFC 7143, 11.6).
    TaskManagementResponse = 0x22 {
        always { 1 | 0x80 }
        bits {}
        words {
            /// How it ended.
            response: TaskResponse = 2,
            /// The request.
            itt: u32 = 16,
            /// Status number.
            stat_sn: u32 = 24,
            /// The command the target expects next.
            exp_cmd_sn: u32 = 28,
            /// The last command it has room for.
            max_cmd_sn: u32 = 32,
        }
    }

    /// Login Response (RFC 7143, 11.13).
    LoginResponse = 0x23 {
        always {}
        bits {
            /// T: goes to the next stage.
            transit: bool = 1 & 0x80,
            /// C: the text goes on in the next response.
            continues: bool = 1 & 0x40,
            /// CSG: the stage it is in.
            current_stage: u8 = 1 & 0x0c,
            /// NSG: the stage it goes to.
            next_stage: u8 = 1 & 0x03,
        }
        words {
            /// The newest version the target speaks.
            version_max: u8 = 2,
            /// The version in use.
            version_active: u8 = 3,
            /// As in the request.
            isid: [u8; 6] = 8,
            /// The target's part of the session's name.
            tsih: u16 = 14,
            /// As in the request.
            itt: u32 = 16,
            /// Status number.
            stat_sn: u32 = 24,
            /// The command the target expects next.
            exp_cmd_sn: u32 = 28,
            /// The last command it has room for.
            max_cmd_sn: u32 = 32,
            /// Success, redirection, or whose error.
            status_class: u8 = 36,
            /// Which of its class.
            status_detail: u8 = 37,
        }
    }

    /// Text Response (RFC 7143, 11.11).
    TextResponse = 0x24 {
        always {}
        bits {
            /// F: all has been said.
            is_final: bool = 1 & 0x80,
            /// C: the text goes on in the next response.
            continues: bool = 1 & 0x40,
        }
        words {
            /// The next request is to carry it.
            lun: u64 = 8,
            /// The exchange.
            itt: u32 = 16,
            /// The next request is to carry it; [`NO_TAG`] at the end.
            ttt: u32 = 20,
            /// Status number.
            stat_sn: u32 = 24,
            /// The command the target expects next.
            exp_cmd_sn: u32 = 28,
            /// The last command it has room for.
            max_cmd_sn: u32 = 32,
        }
    }

    /// SCSI Data-In (RFC 7143, 11.7).
    DataIn = 0x25 {
        always {}
        bits {
            /// F: the last of its sequence.
            is_final: bool = 1 & 0x80,
            /// A: to be acknowledged, at error recovery level 1 and above.
            acknowledge: bool = 1 & 0x40,
            /// O: there was more to transfer than the initiator expected. With S only.
            overflow: bool = 1 & 0x04,
            /// U: there was less. With S only.
            underflow: bool = 1 & 0x02,
            /// S: carries the status, so that no response follows.
            has_status: bool = 1 & 0x01,
        }
        words {
            /// The SCSI status, with S only.
            status: u8 = 3,
            /// With A only.
            lun: u64 = 8,
            /// The task.
            itt: u32 = 16,
            /// With A only, otherwise [`NO_TAG`].
            ttt: u32 = 20,
            /// Status number, with S only.
            stat_sn: u32 = 24,
            /// The command the target expects next.
            exp_cmd_sn: u32 = 28,
            /// The last command it has room for.
            max_cmd_sn: u32 = 32,
            /// Its place among the Data-In PDUs of the task.
            data_sn: u32 = 36,
            /// Where its data belong in the whole transfer.
            buffer_offset: u32 = 40,
            /// By how much the transfer missed what was expected, with S only.
            residual: u32 = 44,
        }
    }

    /// Logout Response (RFC 7143, 11.15).
    LogoutResponse = 0x26 {
        always { 1 | 0x80 }
        bits {}
        words {
            /// How it ended.
            response: LogoutResponseCode = 2,
            /// The request.
            itt: u32 = 16,
            /// Status number.
            stat_sn: u32 = 24,
            /// The command the target expects next.
            exp_cmd_sn: u32 = 28,
            /// The last command it has room for.
            max_cmd_sn: u32 = 32,
            /// Seconds to wait before logging in again.
            time2wait: u16 = 40,
            /// Seconds after that for which tasks can be taken up again.
            time2retain: u16 = 42,
        }
    }

    /// Ready To Transfer (RFC 7143, 11.8).
    R2t = 0x31 {
        always { 1 | 0x80 }
        bits {}
        words {
            /// The Data-Out PDUs are to carry it.
            lun: u64 = 8,
            /// The task.
            itt: u32 = 16,
            /// Names the sequence.
            ttt: u32 = 20,
            /// The next status number, not used up.
            stat_sn: u32 = 24,
            /// The command the target expects next.
            exp_cmd_sn: u32 = 28,
            /// The last command it has room for.
            max_cmd_sn: u32 = 32,
            /// Its place among the R2T PDUs of the task.
            r2t_sn: u32 = 36,
            /// Where the data it asks for begin.
            buffer_offset: u32 = 40,
            /// How many bytes it asks for.
            desired_len: u32 = 44,
        }
    }

    /// Asynchronous Message (RFC 7143, 11.9).
    AsyncMessage = 0x32 {
        always { 1 | 0x80, 16 | 0xff, 17 | 0xff, 18 | 0xff, 19 | 0xff }
        bits {}
        words {
            /// The logical unit concerned, for SCSI events.
            lun: u64 = 8,
            /// Status number.
            stat_sn: u32 = 24,
            /// The command the target expects next.
            exp_cmd_sn: u32 = 28,
            /// The last command it has room for.
            max_cmd_sn: u32 = 32,
            /// What happened.
            event: AsyncEvent = 36,
            /// The vendor's code, for vendor events.
            vendor_code: u8 = 37,
            /// By event.
            parameter1: u16 = 38,
            /// By event.
            parameter2: u16 = 40,
            /// By event.
            parameter3: u16 = 42,
        }
    }

    /// Reject; its data segment is the header it rejects (RFC 7143, 11.17).
    Reject = 0x3f {
        always { 1 | 0x80, 16 | 0xff, 17 | 0xff, 18 | 0xff, 19 | 0xff }
        bits {}
        words {
            /// Why.
            reason: RejectReason = 2,
            /// Status number.
            stat_sn: u32 = 24,
            /// The command the target expects next.
            exp_cmd_sn: u32 = 28,
            /// The last command it has room for.
            max_cmd_sn: u32 = 32,
            /// For SNACKs, the number expected.
            data_sn: u32 = 36,
        }
    }
}

#[cfg(test)]
mod tests;
