//! The operational keys, as one table (RFC 7143, 13): name, rule, default, range, who may send it
//! and when. [`Negotiation`](super::negotiation::Negotiation) works from this table and from nothing
//! else, so a key is right or wrong in one place.

pub use super::role::Role;
use super::sealed::Protection;

/// An operational key. The order is that in which a batch of keys is worked off: what others depend
/// on comes first, so that the order on the wire does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is described by its clause, named in the table")]
pub enum Key {
    SessionType,
    InitiatorName,
    InitiatorAlias,
    TargetName,
    TargetAlias,
    TargetAddress,
    TargetPortalGroupTag,
    SendTargets,
    HeaderDigest,
    DataDigest,
    MaxConnections,
    InitialR2T,
    ImmediateData,
    MaxRecvDataSegmentLength,
    MaxBurstLength,
    FirstBurstLength,
    DefaultTime2Wait,
    DefaultTime2Retain,
    MaxOutstandingR2T,
    DataPDUInOrder,
    DataSequenceInOrder,
    ErrorRecoveryLevel,
    TaskReporting,
    ProtocolLevel,
    IFMarker,
    OFMarker,
    IFMarkInt,
    OFMarkInt,
    StopsAtFailure,
}

/// How the value of a key comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The smaller of both numbers.
    Min(Numbers),
    /// The greater of both numbers.
    Max(Numbers),
    /// Yes if both say yes.
    And {
        /// Without negotiation.
        default: bool,
    },
    /// Yes if one says yes.
    Or {
        /// Without negotiation.
        default: bool,
    },
    /// The first of the proposer's list that the other takes.
    List {
        /// Without negotiation.
        default: &'static str,
    },
    /// Said, not negotiated: a number each side says of itself.
    DeclareNumber(Numbers),
    /// Said, not negotiated: a text.
    DeclareText,
    /// No longer in use: never proposed, always answered so (RFC 7143, 13.25).
    Obsolete {
        /// What a proposal is answered with.
        answer: &'static str,
    },
}

/// The default and the range of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Without negotiation.
    pub default: u32,
    /// The smallest value.
    pub low: u32,
    /// The greatest value.
    pub high: u32,
}

impl Numbers {
    /// Whether `value` lies in the range.
    #[must_use]
    pub const fn allow(self, value: u32) -> bool {
        self.low <= value && value <= self.high
    }
}

/// Who may send a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The initiator.
    Initiator,
    /// The target.
    Target,
    /// Either.
    Both,
}

impl Sender {
    /// Whether `role` may send it.
    #[must_use]
    pub fn allows(self, role: Role) -> bool {
        match self {
            Self::Initiator => role == Role::Initiator,
            Self::Target => role == Role::Target,
            Self::Both => true,
        }
    }
}

/// When a key may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In any stage of the login, the security stage too (RFC 7143, 12).
    AnyLoginStage,
    /// In the operational stage of the login.
    OperationalStage,
    /// In the operational stage, and again in the full-feature phase.
    OperationalAndFullFeature,
    /// In the full-feature phase.
    FullFeature,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// The key.
    pub key: Key,
    /// Its name on the wire.
    pub name: &'static str,
    /// How its value comes about.
    pub rule: Rule,
    /// Who may send it.
    pub sender: Sender,
    /// When.
    pub when: When,
    /// It has a meaning in discovery sessions too.
    pub in_discovery: bool,
}

impl Spec {
    /// It is settled by the first connection of a session, for all of them (RFC 7143, 13: "LO").
    #[must_use]
    pub const fn is_leading_only(&self) -> bool {
        let negotiated =
            matches!(self.rule, Rule::Min(_) | Rule::Max(_) | Rule::And { .. } | Rule::Or { .. });
        negotiated || matches!(self.key, Key::TaskReporting)
    }
}

const LENGTH_MAX: u32 = (1 << 24) - 1;

const fn numbers(default: u32, low: u32, high: u32) -> Numbers {
    Numbers { default, low, high }
}

const fn negotiated(key: Key, name: &'static str, rule: Rule, in_discovery: bool) -> Spec {
    Spec { key, name, rule, sender: Sender::Both, when: When::OperationalStage, in_discovery }
}

const fn declared(key: Key, name: &'static str, sender: Sender, when: When) -> Spec {
    Spec { key, name, rule: Rule::DeclareText, sender, when, in_discovery: true }
}

/// The table, in the order of [`Key`].
#[rustfmt::skip]
pub static TABLE: [Spec; 29] = [
    declared(Key::SessionType, "SessionType", Sender::Initiator, When::AnyLoginStage), // 13.21
    declared(Key::InitiatorName, "InitiatorName", Sender::Initiator, When::AnyLoginStage), // 13.5
    declared(Key::InitiatorAlias, "InitiatorAlias", Sender::Initiator, When::AnyLoginStage), // 13.7
    declared(Key::TargetName, "TargetName", Sender::Initiator, When::AnyLoginStage), // 13.4
    declared(Key::TargetAlias, "TargetAlias", Sender::Target, When::AnyLoginStage), // 13.6
    declared(Key::TargetAddress, "TargetAddress", Sender::Target, When::AnyLoginStage), // 13.8
    declared(Key::TargetPortalGroupTag, "TargetPortalGroupTag", Sender::Target, When::AnyLoginStage), // 13.9
    declared(Key::SendTargets, "SendTargets", Sender::Initiator, When::FullFeature), // 13.3
    negotiated(Key::HeaderDigest, "HeaderDigest", Rule::List { default: "None" }, true), // 13.1
    negotiated(Key::DataDigest, "DataDigest", Rule::List { default: "None" }, true), // 13.1
    negotiated(Key::MaxConnections, "MaxConnections", Rule::Min(numbers(1, 1, 65_535)), false), // 13.2
    negotiated(Key::InitialR2T, "InitialR2T", Rule::Or { default: true }, false), // 13.10
    negotiated(Key::ImmediateData, "ImmediateData", Rule::And { default: true }, false), // 13.11
    Spec { // 13.12
        key: Key::MaxRecvDataSegmentLength,
        name: "MaxRecvDataSegmentLength",
        rule: Rule::DeclareNumber(numbers(8192, 512, LENGTH_MAX)),
        sender: Sender::Both,
        when: When::OperationalAndFullFeature,
        in_discovery: true,
    },
    negotiated(Key::MaxBurstLength, "MaxBurstLength", Rule::Min(numbers(262_144, 512, LENGTH_MAX)), false), // 13.13
    negotiated(Key::FirstBurstLength, "FirstBurstLength", Rule::Min(numbers(65_536, 512, LENGTH_MAX)), false), // 13.14
    negotiated(Key::DefaultTime2Wait, "DefaultTime2Wait", Rule::Max(numbers(2, 0, 3600)), true), // 13.15
    negotiated(Key::DefaultTime2Retain, "DefaultTime2Retain", Rule::Min(numbers(20, 0, 3600)), true), // 13.16
    negotiated(Key::MaxOutstandingR2T, "MaxOutstandingR2T", Rule::Min(numbers(1, 1, 65_535)), false), // 13.17
    negotiated(Key::DataPDUInOrder, "DataPDUInOrder", Rule::Or { default: true }, false), // 13.18
    negotiated(Key::DataSequenceInOrder, "DataSequenceInOrder", Rule::Or { default: true }, false), // 13.19
    negotiated(Key::ErrorRecoveryLevel, "ErrorRecoveryLevel", Rule::Min(numbers(0, 0, 2)), true), // 13.20
    negotiated(Key::TaskReporting, "TaskReporting", Rule::List { default: "RFC3720" }, false), // 13.23
    negotiated(Key::ProtocolLevel, "iSCSIProtocolLevel", Rule::Min(numbers(1, 0, 31)), false), // 13.24; RFC 7144, 7.1.1
    // No rather than Reject, which the clause allows as well: some initiators take Reject for an error.
    negotiated(Key::IFMarker, "IFMarker", Rule::Obsolete { answer: "No" }, true), // 13.25
    negotiated(Key::OFMarker, "OFMarker", Rule::Obsolete { answer: "No" }, true), // 13.25
    negotiated(Key::IFMarkInt, "IFMarkInt", Rule::Obsolete { answer: "Reject" }, true), // 13.25
    negotiated(Key::OFMarkInt, "OFMarkInt", Rule::Obsolete { answer: "Reject" }, true), // 13.25
    negotiated(Key::StopsAtFailure, "X-dev.longhaul.stops", Rule::And { default: false }, false), // docs/spec/ordered-writes.md
];

impl Key {
    /// Its line in the table.
    #[must_use]
    pub fn spec(self) -> &'static Spec {
        &TABLE[self as usize]
    }

    /// The key of this name, if it is one of ours.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        TABLE.iter().find(|spec| spec.name == name).map(|spec| spec.key)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.spec().name)
    }
}

/// What a side thinks of a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DigestWish {
    /// Never.
    Refuse,
    /// Only if the other side asks for it.
    Accept,
    /// If the other side can.
    Prefer,
    /// Always, or no session.
    Require,
    /// This seal in its place, or no session ([`super::sealed`]).
    Seal(Protection),
    /// Any seal in its place, or no session.
    AnySeal,
}

impl DigestWish {
    /// The list a side of this mind proposes and accepts from.
    #[must_use]
    pub const fn list(self) -> &'static [&'static str] {
        match self {
            Self::Refuse => &["None"],
            Self::Accept => &["None", "CRC32C"],
            Self::Prefer => &["CRC32C", "None"],
            Self::Require => &["CRC32C"],
            Self::Seal(Protection::Integrity) => const { &[Protection::Integrity.digest()] },
            Self::Seal(Protection::Encrypt) => const { &[Protection::Encrypt.digest()] },
            Self::AnySeal => {
                const { &[Protection::Encrypt.digest(), Protection::Integrity.digest()] }
            }
        }
    }
}

/// How a target reports tasks that a task management function ends (RFC 7143, 13.23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskReporting {
    /// As RFC 3720 had it.
    Rfc3720,
    /// Responses are fenced.
    ResponseFence,
    /// Aborts are answered at once and fenced by Async event 5.
    FastAbort,
}

impl TaskReporting {
    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rfc3720 => "RFC3720",
            Self::ResponseFence => "ResponseFence",
            Self::FastAbort => "FastAbort",
        }
    }
}

/// What one side asks for. For numbers under [`Rule::Min`] it is the most it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the key of its name, or plain")]
pub struct Offer {
    pub header_digest: DigestWish,
    pub data_digest: DigestWish,
    pub max_connections: u16,
    pub initial_r2t: bool,
    pub immediate_data: bool,
    /// The most this side takes in one data segment.
    pub max_recv_data_segment: u32,
    pub max_burst: u32,
    pub first_burst: u32,
    pub max_outstanding_r2t: u16,
    pub default_time2wait: u16,
    pub default_time2retain: u16,
    pub data_pdu_in_order: bool,
    pub data_sequence_in_order: bool,
    pub error_recovery_level: u8,
    pub protocol_level: u8,
    pub task_reporting: TaskReporting,
    /// The session ends before anything is carried out behind a change or flush that failed.
    pub stops_at_failure: bool,
}

impl Offer {
    /// What keeps a long link full: everything a write needs travels with its command, and where the
    /// other side insists on R2Ts, many of them at once.
    #[must_use]
    pub const fn for_long_links() -> Self {
        Self {
            header_digest: DigestWish::Accept,
            data_digest: DigestWish::Accept,
            max_connections: 1,
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment: 1 << 20,
            max_burst: LENGTH_MAX,
            first_burst: LENGTH_MAX,
            max_outstanding_r2t: 64,
            default_time2wait: 0,
            default_time2retain: 0,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            protocol_level: 1,
            task_reporting: TaskReporting::Rfc3720,
            stops_at_failure: false,
        }
    }
}

/// What both sides agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the key of its name, or plain")]
pub struct Parameters {
    /// CRC32C over headers.
    pub header_digest: bool,
    /// CRC32C over data.
    pub data_digest: bool,
    /// The seal in place of digests.
    pub seal: Option<Protection>,
    pub max_connections: u16,
    pub initial_r2t: bool,
    pub immediate_data: bool,
    /// The most the peer may put into one data segment: what this side declared.
    pub max_recv_data_segment: u32,
    /// The most this side may put into one data segment: what the peer declared.
    pub max_send_data_segment: u32,
    pub max_burst: u32,
    /// Never above `max_burst`.
    pub first_burst: u32,
    pub max_outstanding_r2t: u16,
    pub default_time2wait: u16,
    pub default_time2retain: u16,
    pub data_pdu_in_order: bool,
    pub data_sequence_in_order: bool,
    pub error_recovery_level: u8,
    pub protocol_level: u8,
    pub task_reporting: TaskReporting,
    /// The session ends before anything is carried out behind a change or flush that failed.
    pub stops_at_failure: bool,
}

impl Parameters {
    /// How many bytes of a write may travel without being asked for.
    #[must_use]
    pub const fn unsolicited(&self) -> u32 {
        match (self.initial_r2t, self.immediate_data) {
            (false, _) => self.first_burst,
            (true, true) if self.max_send_data_segment < self.first_burst => {
                self.max_send_data_segment
            }
            (true, true) => self.first_burst,
            (true, false) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_keys() {
        for (i, spec) in TABLE.iter().enumerate() {
            assert_eq!(spec.key as usize, i, "{}", spec.name);
            assert_eq!(Key::named(spec.name), Some(spec.key));
        }
    }

    #[test]
    fn defaults_lie_in_their_ranges() {
        for spec in &TABLE {
            if let Rule::Min(n) | Rule::Max(n) | Rule::DeclareNumber(n) = spec.rule {
                assert!(n.allow(n.default), "{}", spec.name);
            }
        }
    }
}
