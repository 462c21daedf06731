//! Sense data: why a command ended as it did (SPC-4, 4.5).

use core::fmt;

use crate::reader::Reader;

/// The most sense data a device may return: the ADDITIONAL SENSE LENGTH is one byte that SPC-4, 4.5.2.1
/// caps at 244, after a header of eight.
pub const LENGTH_MAX: usize = 252;

/// The sense key: what class of thing happened (SPC-4, 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Key {
    /// Nothing to report.
    NoSense = 0x0,
    /// Done, after the device helped itself.
    RecoveredError = 0x1,
    /// The logical unit cannot be used now.
    NotReady = 0x2,
    /// The medium failed.
    MediumError = 0x3,
    /// The device failed.
    HardwareError = 0x4,
    /// The command or its parameters are wrong.
    IllegalRequest = 0x5,
    /// Something happened that this initiator has not been told yet.
    UnitAttention = 0x6,
    /// The medium is protected from what was asked.
    DataProtect = 0x7,
    /// Blank medium met, or not blank where blank was expected.
    BlankCheck = 0x8,
    /// The vendor's own.
    VendorSpecific = 0x9,
    /// A copy manager gave up.
    CopyAborted = 0xA,
    /// The device ended the command; another try may help.
    AbortedCommand = 0xB,
    /// Data left in a buffer at the end of the medium.
    VolumeOverflow = 0xD,
    /// The data compared are not the data on the medium.
    Miscompare = 0xE,
    /// Done; the sense data carry a remark.
    Completed = 0xF,
}

impl Key {
    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0x0 => Self::NoSense,
            0x1 => Self::RecoveredError,
            0x2 => Self::NotReady,
            0x3 => Self::MediumError,
            0x4 => Self::HardwareError,
            0x5 => Self::IllegalRequest,
            0x6 => Self::UnitAttention,
            0x7 => Self::DataProtect,
            0x8 => Self::BlankCheck,
            0x9 => Self::VendorSpecific,
            0xA => Self::CopyAborted,
            0xB => Self::AbortedCommand,
            0xD => Self::VolumeOverflow,
            0xE => Self::Miscompare,
            0xF => Self::Completed,
            _ => return None,
        })
    }
}

/// The additional sense code and its qualifier: what happened, in detail (SPC-4, annex F.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Additional {
    /// ADDITIONAL SENSE CODE.
    pub code: u8,
    /// ADDITIONAL SENSE CODE QUALIFIER.
    pub qualifier: u8,
}

/// One line per code: the constant and the name the standard gives it.
macro_rules! additional {
    ($($constant:ident = $code:literal / $qualifier:literal, $name:literal;)*) => {
        impl Additional {
            $(
                #[doc = $name]
                pub const $constant: Self = Self { code: $code, qualifier: $qualifier };
            )*

            /// The name in the standard, of the codes this product knows.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match (self.code, self.qualifier) {
                    $(($code, $qualifier) => Some($name),)*
                    _ => None,
                }
            }
        }
    };
}

additional! {
    NONE = 0x00 / 0x00, "NO ADDITIONAL SENSE INFORMATION";
    FILEMARK_DETECTED = 0x00 / 0x01, "FILEMARK DETECTED";
    END_OF_PARTITION = 0x00 / 0x02, "END-OF-PARTITION/MEDIUM DETECTED";
    BEGINNING_OF_PARTITION = 0x00 / 0x04, "BEGINNING-OF-PARTITION/MEDIUM DETECTED";
    END_OF_DATA = 0x00 / 0x05, "END-OF-DATA DETECTED";
    NOT_READY_UNKNOWN_CAUSE = 0x04 / 0x00, "LOGICAL UNIT NOT READY, CAUSE NOT REPORTABLE";
    BECOMING_READY = 0x04 / 0x01, "LOGICAL UNIT IS IN PROCESS OF BECOMING READY";
    INITIALIZING_COMMAND_REQUIRED = 0x04 / 0x02, "LOGICAL UNIT NOT READY, INITIALIZING COMMAND REQUIRED";
    MANUAL_INTERVENTION_REQUIRED = 0x04 / 0x03, "LOGICAL UNIT NOT READY, MANUAL INTERVENTION REQUIRED";
    PORT_IN_STANDBY = 0x04 / 0x0B, "LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE";
    PORT_UNAVAILABLE = 0x04 / 0x0C, "LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN UNAVAILABLE STATE";
    START_STOP_IN_PROGRESS = 0x04 / 0x1A, "LOGICAL UNIT NOT READY, START STOP UNIT COMMAND IN PROGRESS";
    SANITIZE_IN_PROGRESS = 0x04 / 0x1B, "LOGICAL UNIT NOT READY, SANITIZE IN PROGRESS";
    NO_RESPONSE_TO_SELECTION = 0x05 / 0x00, "LOGICAL UNIT DOES NOT RESPOND TO SELECTION";
    COMMUNICATION_FAILURE = 0x08 / 0x00, "LOGICAL UNIT COMMUNICATION FAILURE";
    UNREACHABLE_COPY_TARGET = 0x08 / 0x04, "UNREACHABLE COPY TARGET";
    WRITE_ERROR = 0x0C / 0x00, "WRITE ERROR";
    THIRD_PARTY_DEVICE_FAILURE = 0x0D / 0x01, "THIRD PARTY DEVICE FAILURE";
    INCORRECT_COPY_TARGET_DEVICE_TYPE = 0x0D / 0x03, "INCORRECT COPY TARGET DEVICE TYPE";
    INVALID_FIELD_IN_INFORMATION_UNIT = 0x0E / 0x03, "INVALID FIELD IN COMMAND INFORMATION UNIT";
    UNRECOVERED_READ_ERROR = 0x11 / 0x00, "UNRECOVERED READ ERROR";
    RECOMMEND_REWRITE = 0x11 / 0x0C, "UNRECOVERED READ ERROR - RECOMMEND REWRITE THE DATA";
    PARAMETER_LIST_LENGTH_ERROR = 0x1A / 0x00, "PARAMETER LIST LENGTH ERROR";
    MISCOMPARE_DURING_VERIFY = 0x1D / 0x00, "MISCOMPARE DURING VERIFY OPERATION";
    INVALID_COMMAND_OPERATION_CODE = 0x20 / 0x00, "INVALID COMMAND OPERATION CODE";
    ACCESS_DENIED_NO_ACCESS_RIGHTS = 0x20 / 0x02, "ACCESS DENIED - NO ACCESS RIGHTS";
    LBA_OUT_OF_RANGE = 0x21 / 0x00, "LOGICAL BLOCK ADDRESS OUT OF RANGE";
    INVALID_ELEMENT_ADDRESS = 0x21 / 0x01, "INVALID ELEMENT ADDRESS";
    INVALID_ADDRESS_FOR_WRITE = 0x21 / 0x02, "INVALID ADDRESS FOR WRITE";
    INVALID_FIELD_IN_CDB = 0x24 / 0x00, "INVALID FIELD IN CDB";
    LOGICAL_UNIT_NOT_SUPPORTED = 0x25 / 0x00, "LOGICAL UNIT NOT SUPPORTED";
    INVALID_FIELD_IN_PARAMETER_LIST = 0x26 / 0x00, "INVALID FIELD IN PARAMETER LIST";
    INVALID_RELEASE_OF_PERSISTENT_RESERVATION = 0x26 / 0x04, "INVALID RELEASE OF PERSISTENT RESERVATION";
    TOO_MANY_TARGET_DESCRIPTORS = 0x26 / 0x06, "TOO MANY TARGET DESCRIPTORS";
    UNSUPPORTED_TARGET_DESCRIPTOR = 0x26 / 0x07, "UNSUPPORTED TARGET DESCRIPTOR TYPE CODE";
    TOO_MANY_SEGMENT_DESCRIPTORS = 0x26 / 0x08, "TOO MANY SEGMENT DESCRIPTORS";
    UNSUPPORTED_SEGMENT_DESCRIPTOR = 0x26 / 0x09, "UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE";
    INLINE_DATA_LENGTH_EXCEEDED = 0x26 / 0x0B, "INLINE DATA LENGTH EXCEEDED";
    COPY_SEGMENT_GRANULARITY_VIOLATION = 0x26 / 0x0D, "COPY SEGMENT GRANULARITY VIOLATION";
    WRITE_PROTECTED = 0x27 / 0x00, "WRITE PROTECTED";
    SOFTWARE_WRITE_PROTECTED = 0x27 / 0x02, "LOGICAL UNIT SOFTWARE WRITE PROTECTED";
    SPACE_ALLOCATION_FAILED = 0x27 / 0x07, "SPACE ALLOCATION FAILED WRITE PROTECT";
    MEDIUM_MAY_HAVE_CHANGED = 0x28 / 0x00, "NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED";
    IMPORT_OR_EXPORT_ACCESSED = 0x28 / 0x01, "IMPORT OR EXPORT ELEMENT ACCESSED";
    POWER_ON_OR_RESET = 0x29 / 0x00, "POWER ON, RESET, OR BUS DEVICE RESET OCCURRED";
    POWER_ON = 0x29 / 0x01, "POWER ON OCCURRED";
    BUS_DEVICE_RESET = 0x29 / 0x03, "BUS DEVICE RESET FUNCTION OCCURRED";
    NEXUS_LOSS = 0x29 / 0x07, "I_T NEXUS LOSS OCCURRED";
    MODE_PARAMETERS_CHANGED = 0x2A / 0x01, "MODE PARAMETERS CHANGED";
    LOG_PARAMETERS_CHANGED = 0x2A / 0x02, "LOG PARAMETERS CHANGED";
    RESERVATIONS_PREEMPTED = 0x2A / 0x03, "RESERVATIONS PREEMPTED";
    RESERVATIONS_RELEASED = 0x2A / 0x04, "RESERVATIONS RELEASED";
    REGISTRATIONS_PREEMPTED = 0x2A / 0x05, "REGISTRATIONS PREEMPTED";
    ACCESS_STATE_CHANGED = 0x2A / 0x06, "ASYMMETRIC ACCESS STATE CHANGED";
    CAPACITY_CHANGED = 0x2A / 0x09, "CAPACITY DATA HAS CHANGED";
    COMMAND_TIMEOUT = 0x2E / 0x02, "COMMAND TIMEOUT DURING PROCESSING";
    COMMANDS_CLEARED = 0x2F / 0x00, "COMMANDS CLEARED BY ANOTHER INITIATOR";
    PROTOCOL_SERVICE_CRC_ERROR = 0x47 / 0x05, "PROTOCOL SERVICE CRC ERROR";
    SOME_COMMANDS_CLEARED = 0x47 / 0x7F, "SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT";
    INCOMPATIBLE_FORMAT = 0x30 / 0x02, "CANNOT READ MEDIUM - INCOMPATIBLE FORMAT";
    CANNOT_FORMAT_MEDIUM = 0x30 / 0x06, "CANNOT FORMAT MEDIUM - INCOMPATIBLE MEDIUM";
    WORM_OVERWRITE_ATTEMPTED = 0x30 / 0x0C, "WORM MEDIUM - OVERWRITE ATTEMPTED";
    SANITIZE_FAILED = 0x31 / 0x03, "SANITIZE COMMAND FAILED";
    SAVING_PARAMETERS_NOT_SUPPORTED = 0x39 / 0x00, "SAVING PARAMETERS NOT SUPPORTED";
    MEDIUM_NOT_PRESENT = 0x3A / 0x00, "MEDIUM NOT PRESENT";
    MEDIUM_NOT_PRESENT_TRAY_CLOSED = 0x3A / 0x01, "MEDIUM NOT PRESENT - TRAY CLOSED";
    MEDIUM_NOT_PRESENT_TRAY_OPEN = 0x3A / 0x02, "MEDIUM NOT PRESENT - TRAY OPEN";
    SEQUENTIAL_POSITIONING_ERROR = 0x3B / 0x00, "SEQUENTIAL POSITIONING ERROR";
    DESTINATION_ELEMENT_FULL = 0x3B / 0x0D, "MEDIUM DESTINATION ELEMENT FULL";
    SOURCE_ELEMENT_EMPTY = 0x3B / 0x0E, "MEDIUM SOURCE ELEMENT EMPTY";
    REPORTED_LUNS_CHANGED = 0x3F / 0x0E, "REPORTED LUNS DATA HAS CHANGED";
    INTERNAL_TARGET_FAILURE = 0x44 / 0x00, "INTERNAL TARGET FAILURE";
    INVALID_TARGET_PORT_TRANSFER_TAG = 0x4B / 0x01, "INVALID TARGET PORT TRANSFER TAG RECEIVED";
    TOO_MUCH_WRITE_DATA = 0x4B / 0x02, "TOO MUCH WRITE DATA";
    OVERLAPPED_COMMANDS = 0x4E / 0x00, "OVERLAPPED COMMANDS ATTEMPTED";
    UNLOAD_TAPE_FAILURE = 0x53 / 0x01, "UNLOAD TAPE FAILURE";
    MEDIUM_REMOVAL_PREVENTED = 0x53 / 0x02, "MEDIUM REMOVAL PREVENTED";
    INSUFFICIENT_REGISTRATION_RESOURCES = 0x55 / 0x04, "INSUFFICIENT REGISTRATION RESOURCES";
    END_OF_USER_AREA = 0x63 / 0x00, "END OF USER AREA ENCOUNTERED ON THIS TRACK";
    ILLEGAL_MODE_FOR_TRACK = 0x64 / 0x00, "ILLEGAL MODE FOR THIS TRACK";
}

impl fmt::Display for Additional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02X}/{:02X}", self.code, self.qualifier)?;
        self.name().map_or(Ok(()), |name| write!(f, " {name}"))
    }
}

impl fmt::Debug for Additional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where the offending field is (SPC-4, 4.5.2.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPointer {
    /// In the command block rather than in the parameter list.
    pub in_cdb: bool,
    /// The byte it starts in.
    pub byte: u16,
    /// Its highest bit in that byte, where it is smaller than a byte.
    pub bit: Option<u8>,
}

impl FieldPointer {
    const VALID: u8 = 0x80;
    const IN_CDB: u8 = 0x40;
    const BIT_VALID: u8 = 0x08;
    const BIT: u8 = 0x07;

    fn emit(self) -> [u8; 3] {
        let place = if self.in_cdb { Self::IN_CDB } else { 0 };
        let bit = self.bit.map_or(0, |bit| Self::BIT_VALID | (bit & Self::BIT));
        let [high, low] = self.byte.to_be_bytes();
        [Self::VALID | place | bit, high, low]
    }

    fn parse([flags, high, low]: [u8; 3]) -> Option<Self> {
        (flags & Self::VALID != 0).then(|| Self {
            in_cdb: flags & Self::IN_CDB != 0,
            byte: u16::from_be_bytes([high, low]),
            bit: (flags & Self::BIT_VALID != 0).then_some(flags & Self::BIT),
        })
    }
}

/// How sense data are laid out: the D_SENSE bit of the control mode page chooses, and the DESC bit of
/// REQUEST SENSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Fixed (SPC-4, 4.5.3): 18 bytes, with 32 bits of information.
    Fixed,
    /// Descriptors (SPC-4, 4.5.2), with 64 bits of information.
    Descriptor,
}

/// What sense data say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// The class.
    pub key: Key,
    /// The detail.
    pub additional: Additional,
    /// The INFORMATION field: for the commands of a disk a logical block address, or the offset of a
    /// miscompare.
    pub information: Option<u64>,
    /// FILEMARK, EOM and ILI, which commands of tapes have.
    pub stream: Stream,
    /// Which field is wrong; only with ILLEGAL REQUEST.
    pub field: Option<FieldPointer>,
    /// PROGRESS INDICATION, in parts of 65,536; only with NOT READY and NO SENSE.
    pub progress: Option<u16>,
    /// It tells of an earlier command, not of the one it came with.
    pub deferred: bool,
}

/// What a command of a tape met (SPC-4, 4.5.2.6 and 4.5.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// FILEMARK.
    pub filemark: bool,
    /// EOM: the beginning or the end of the medium.
    pub end_of_medium: bool,
    /// ILI: a block of another length.
    pub incorrect_length: bool,
}

impl Stream {
    /// Nothing of it.
    pub const NONE: Self = Self { filemark: false, end_of_medium: false, incorrect_length: false };
    /// EOM.
    pub const END: Self = Self { end_of_medium: true, ..Self::NONE };

    const fn bits(self) -> u8 {
        (self.filemark as u8) << 7
            | (self.end_of_medium as u8) << 6
            | (self.incorrect_length as u8) << 5
    }

    const fn from_bits(bits: u8) -> Self {
        Self {
            filemark: bits & 0x80 != 0,
            end_of_medium: bits & 0x40 != 0,
            incorrect_length: bits & 0x20 != 0,
        }
    }
}

const FIXED_CURRENT: u8 = 0x70;
const FIXED_DEFERRED: u8 = 0x71;
const DESCRIPTOR_CURRENT: u8 = 0x72;
const DESCRIPTOR_DEFERRED: u8 = 0x73;
const DESCRIPTOR_INFORMATION: u8 = 0x00;
const DESCRIPTOR_KEY_SPECIFIC: u8 = 0x02;
const DESCRIPTOR_STREAM: u8 = 0x04;
const VALID: u8 = 0x80;

impl Sense {
    /// `key` with `additional`, and nothing else.
    #[must_use]
    pub const fn new(key: Key, additional: Additional) -> Self {
        Self {
            key,
            additional,
            information: None,
            stream: Stream::NONE,
            field: None,
            progress: None,
            deferred: false,
        }
    }

    /// ILLEGAL REQUEST with `additional`.
    #[must_use]
    pub const fn illegal(additional: Additional) -> Self {
        Self::new(Key::IllegalRequest, additional)
    }

    /// INVALID FIELD IN CDB: the field at `byte`, or the one whose highest bit there is `bit`.
    #[must_use]
    pub const fn invalid_cdb(byte: u16, bit: Option<u8>) -> Self {
        let mut sense = Self::illegal(Additional::INVALID_FIELD_IN_CDB);
        sense.field = Some(FieldPointer { in_cdb: true, byte, bit });
        sense
    }

    /// INVALID FIELD IN PARAMETER LIST, likewise.
    #[must_use]
    pub const fn invalid_parameter(byte: u16, bit: Option<u8>) -> Self {
        let mut sense = Self::illegal(Additional::INVALID_FIELD_IN_PARAMETER_LIST);
        sense.field = Some(FieldPointer { in_cdb: false, byte, bit });
        sense
    }

    /// The same, with an INFORMATION field.
    #[must_use]
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// The same, of a command of a tape.
    #[must_use]
    pub const fn with_stream(mut self, stream: Stream) -> Self {
        self.stream = stream;
        self
    }

    /// Whether the command it came with was carried out all the same.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        !self.deferred && matches!(self.key, Key::NoSense | Key::RecoveredError | Key::Completed)
    }

    /// The unit does not know the command: INVALID COMMAND OPERATION CODE, or INVALID FIELD IN CDB.
    #[must_use]
    pub const fn is_unknown_command(&self) -> bool {
        matches!(self.key, Key::IllegalRequest) && matches!(self.additional.code, 0x20 | 0x24)
    }

    /// ILLEGAL REQUEST without a reason, as some targets answer a command that they do not know.
    #[must_use]
    pub const fn is_unexplained_refusal(&self) -> bool {
        matches!((self.key, self.additional), (Key::IllegalRequest, Additional::NONE))
    }

    /// What SPC-4, 4.5.2.4 puts in the sense key specific bytes.
    fn key_specific(&self) -> Option<[u8; 3]> {
        let progress = self.progress.map(|progress| {
            let [high, low] = progress.to_be_bytes();
            [FieldPointer::VALID, high, low]
        });
        self.field.map(FieldPointer::emit).or(progress)
    }

    /// Reads them: what they mean follows from the sense key.
    fn set_key_specific(&mut self, bytes: [u8; 3]) {
        let [flags, high, low] = bytes;
        match self.key {
            Key::IllegalRequest => self.field = FieldPointer::parse(bytes),
            Key::NotReady | Key::NoSense if flags & FieldPointer::VALID != 0 => {
                self.progress = Some(u16::from_be_bytes([high, low]));
            }
            _ => {}
        }
    }

    /// Lays it out.
    #[must_use]
    pub fn emit(&self, format: Format) -> Vec<u8> {
        match format {
            Format::Fixed => self.emit_fixed(),
            Format::Descriptor => self.emit_descriptors(),
        }
    }

    fn emit_fixed(&self) -> Vec<u8> {
        let code = if self.deferred { FIXED_DEFERRED } else { FIXED_CURRENT };
        // SPC-4, 4.5.3: what does not fit 32 bits leaves VALID at zero.
        let information = self.information.and_then(|value| match self.stream.incorrect_length {
            // SSC-4, 7.4: it may be below zero.
            true => i32::try_from(value.cast_signed()).ok().map(i32::cast_unsigned),
            false => u32::try_from(value).ok(),
        });
        let valid = if information.is_some() { VALID } else { 0 };
        let mut bytes = vec![code | valid, 0, self.key as u8 | self.stream.bits()];
        bytes.extend(information.unwrap_or(0).to_be_bytes());
        bytes.push(10); // ADDITIONAL SENSE LENGTH
        bytes.extend([0; 4]); // COMMAND-SPECIFIC INFORMATION
        bytes.extend([self.additional.code, self.additional.qualifier, 0]);
        bytes.extend(self.key_specific().unwrap_or_default());
        bytes
    }

    fn emit_descriptors(&self) -> Vec<u8> {
        let mut descriptors = Vec::new();
        if let Some(information) = self.information {
            descriptors.extend([DESCRIPTOR_INFORMATION, 10, VALID, 0]);
            descriptors.extend(information.to_be_bytes());
        }
        if let Some([flags, high, low]) = self.key_specific() {
            descriptors.extend([DESCRIPTOR_KEY_SPECIFIC, 6, 0, 0, flags, high, low, 0]);
        }
        if self.stream != Stream::NONE {
            descriptors.extend([DESCRIPTOR_STREAM, 2, 0, self.stream.bits()]);
        }
        let code = if self.deferred { DESCRIPTOR_DEFERRED } else { DESCRIPTOR_CURRENT };
        let Additional { code: additional, qualifier } = self.additional;
        let mut bytes = vec![code, self.key as u8, additional, qualifier, 0, 0, 0];
        bytes.push(descriptors.len() as u8); // three descriptors at most, 24 bytes
        bytes.extend(descriptors);
        bytes
    }

    /// Reads sense data of either format; `None` if they are of neither, or cut off before the sense key.
    /// What is cut off later is taken as absent (SPC-4, 4.5.3: a device may return less).
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let code = reader.u8().ok()?;
        let mut sense = match code & !VALID {
            FIXED_CURRENT | FIXED_DEFERRED => Self::parse_fixed(code & VALID != 0, reader)?,
            DESCRIPTOR_CURRENT | DESCRIPTOR_DEFERRED => Self::parse_descriptors(reader)?,
            _ => return None,
        };
        sense.deferred = matches!(code & !VALID, FIXED_DEFERRED | DESCRIPTOR_DEFERRED);
        Some(sense)
    }

    fn parse_fixed(valid: bool, mut reader: Reader<'_>) -> Option<Self> {
        let [_, key] = reader.array().ok()?;
        let mut sense = Self::new(Key::from_bits(key & 0x0F)?, Additional::NONE);
        let Ok(information) = reader.u32() else { return Some(sense) };
        sense.stream = Stream::from_bits(key);
        let information = match sense.stream.incorrect_length {
            true => i64::from(information.cast_signed()).cast_unsigned(),
            false => information.into(),
        };
        sense.information = valid.then_some(information);
        let Ok(length) = reader.u8() else { return Some(sense) };
        let mut reader = reader.up_to(length.into());
        if let Ok([_, _, _, _, code, qualifier]) = reader.array() {
            sense.additional = Additional { code, qualifier };
        }
        if let Ok([_, flags, high, low]) = reader.array() {
            sense.set_key_specific([flags, high, low]);
        }
        Some(sense)
    }

    fn parse_descriptors(mut reader: Reader<'_>) -> Option<Self> {
        let [key, code, qualifier] = reader.array().ok()?;
        let mut sense = Self::new(Key::from_bits(key & 0x0F)?, Additional { code, qualifier });
        let Ok([_, _, _, length]) = reader.array() else { return Some(sense) };
        let mut reader = reader.up_to(length.into());
        while let Ok([kind, length]) = reader.array() {
            let Ok(body) = reader.take(length.into()) else { break };
            let mut body = Reader::new(body);
            match (kind, body.array()) {
                (DESCRIPTOR_INFORMATION, Ok([valid, _])) if valid & VALID != 0 => {
                    sense.information = body.u64().ok();
                }
                (DESCRIPTOR_STREAM, Ok([_, bits])) => sense.stream = Stream::from_bits(bits),
                (DESCRIPTOR_KEY_SPECIFIC, Ok(_)) => {
                    if let Ok(bytes) = body.array() {
                        sense.set_key_specific(bytes);
                    }
                }
                _ => {}
            }
        }
        Some(sense)
    }
}

impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deferred = if self.deferred { "deferred " } else { "" };
        write!(f, "{deferred}{:?}, {}", self.key, self.additional)?;
        if let Some(information) = self.information {
            write!(f, ", information {information}")?;
        }
        if let Some(FieldPointer { in_cdb, byte, .. }) = self.field {
            let place = if in_cdb { "command block" } else { "parameter list" };
            write!(f, ", byte {byte} of the {place}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_sense() -> impl Strategy<Value = Sense> {
        let key = (0..16u8).prop_filter_map("reserved", Key::from_bits);
        let pointer = (any::<bool>(), any::<u16>(), proptest::option::of(0..8u8));
        let rest = (any::<Option<u64>>(), proptest::option::of(pointer), any::<bool>());
        (key, any::<[u8; 2]>(), rest, any::<Option<u16>>(), any::<u8>()).prop_map(
            |(key, [code, qualifier], (information, pointer, deferred), progress, bits)| Sense {
                stream: Stream::from_bits(bits),
                progress: progress.filter(|_| matches!(key, Key::NotReady | Key::NoSense)),
                key,
                additional: Additional { code, qualifier },
                information,
                field: pointer
                    .filter(|_| key == Key::IllegalRequest)
                    .map(|(in_cdb, byte, bit)| FieldPointer { in_cdb, byte, bit }),
                deferred,
            },
        )
    }

    proptest! {
        #[test]
        fn descriptors_carry_all_of_it(sense in any_sense()) {
            prop_assert_eq!(Sense::parse(&sense.emit(Format::Descriptor)), Some(sense));
        }

        #[test]
        fn fixed_carries_all_but_large_information(sense in any_sense()) {
            let bytes = sense.emit(Format::Fixed);
            prop_assert_eq!(bytes.len(), 18);
            let fits = sense.information.filter(|value| match sense.stream.incorrect_length {
                true => i32::try_from(value.cast_signed()).is_ok(),
                false => u32::try_from(*value).is_ok(),
            });
            prop_assert_eq!(Sense::parse(&bytes), Some(Sense { information: fits, ..sense }));
        }

        #[test]
        fn hostile_sense_does_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Sense::parse(&bytes);
        }

        #[test]
        fn cut_sense_keeps_its_key(sense in any_sense(), fixed: bool, at in 4usize..64) {
            let format = if fixed { Format::Fixed } else { Format::Descriptor };
            let mut bytes = sense.emit(format);
            bytes.truncate(at);
            prop_assert_eq!(Sense::parse(&bytes).map(|parsed| parsed.key), Some(sense.key));
        }
    }

    #[test]
    fn fixed_layout() {
        let sense = Sense::invalid_cdb(0x0102, Some(5));
        let expected = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xCD, 1, 2];
        assert_eq!(sense.emit(Format::Fixed), expected);
    }

    #[test]
    fn descriptor_layout() {
        let lba = Sense::new(Key::MediumError, Additional::UNRECOVERED_READ_ERROR);
        let expected = [0x72, 3, 0x11, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 2];
        assert_eq!(lba.with_information(0x1_0000_0002).emit(Format::Descriptor), expected);
    }

    #[test]
    fn codes_have_their_names() {
        assert_eq!(Additional::LBA_OUT_OF_RANGE.name(), Some("LOGICAL BLOCK ADDRESS OUT OF RANGE"));
        assert_eq!(Additional { code: 0xFE, qualifier: 0 }.to_string(), "FE/00");
    }
}
