//! Negotiation of the operational keys (RFC 7143, 6.2), the same for both sides.
//!
//! Each side makes a [`Negotiation`] from its [`Offer`]; the initiator proposes, the target answers
//! what it receives, and both [`finish`](Negotiation::finish) with the same values. A key that is
//! settled may not be sent again.

use std::collections::{BTreeMap, BTreeSet};

use super::keys::{
    DigestWish, Key, Offer, Parameters, Role, Rule, Spec, TABLE, TaskReporting, When,
};
use super::sealed::Protection;
use super::text::{self, Pair};

/// The answer to a key nobody here knows.
pub const NOT_UNDERSTOOD: &str = "NotUnderstood";

/// The answer to a key without meaning for this connection.
const IRRELEVANT: &str = "Irrelevant";

/// The digest of the standard.
const CRC32C: &str = "CRC32C";

/// The answer to a value that cannot be.
pub const REJECT: &str = "Reject";

/// How the peer broke the rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// It sent a key again that was settled (RFC 7143, 6.3).
    #[error("{0} was sent twice")]
    Repeated(Key),
    /// The key is not the peer's to send, or not now.
    #[error("{0} may not be sent by this side at this stage")]
    NotNow(Key),
    /// It declared what cannot be.
    #[error("{key}={} cannot be declared", .value.escape_debug())]
    Declared {
        /// The key.
        key: Key,
        /// What it said.
        value: String,
    },
    /// It chose what was not offered.
    #[error("{key}={} was not offered", .value.escape_debug())]
    NotOffered {
        /// The key.
        key: Key,
        /// What it said.
        value: String,
    },
    /// What this side cannot do without was not agreed on.
    #[error("{0} is required here and was not agreed on")]
    Required(Key),
    /// The first burst would exceed the maximum (RFC 7143, 13.14).
    #[error("FirstBurstLength exceeds MaxBurstLength")]
    FirstBurst,
    /// Headers and data would be sealed in different ways.
    #[error("HeaderDigest and DataDigest are different seals")]
    UnlikeSeals,
}

/// The stage of the login a batch of keys belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// SecurityNegotiation.
    Security,
    /// LoginOperationalNegotiation.
    Operational,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(u32),
    Bool(bool),
    Choice(&'static str),
    Text(String),
    /// The default, by refusal or for want of meaning.
    Default,
}

/// A negotiation under way.
#[derive(Clone, Debug)]
pub struct Negotiation {
    role: Role,
    offer: Offer,
    discovery: bool,
    /// The connection is not the first of its session.
    joining: bool,
    /// What this side proposed and the peer has not answered.
    open: BTreeSet<Key>,
    /// What is agreed, or what the peer declared.
    settled: BTreeMap<Key, Value>,
}

impl Negotiation {
    /// A negotiation in which this side is `role` and asks for `offer`.
    #[must_use]
    pub const fn new(role: Role, offer: Offer) -> Self {
        Self {
            role,
            offer,
            discovery: false,
            joining: false,
            open: BTreeSet::new(),
            settled: BTreeMap::new(),
        }
    }

    /// The session is for discovery, in which many keys have no meaning.
    pub const fn in_discovery(&mut self) {
        self.discovery = true;
    }

    /// The connection is not the first of its session, whose values stand.
    pub const fn joins(&mut self) {
        self.joining = true;
    }

    /// Seals take the place of digests, now that both sides are proven.
    pub const fn seal(&mut self, wish: DigestWish) {
        self.offer.header_digest = wish;
        self.offer.data_digest = wish;
    }

    /// The initiator's proposals and declarations.
    ///
    /// A key at its default is proposed all the same, since the other side may want less; only the
    /// keys old targets do not know are left out then.
    pub fn propose(&mut self) -> Vec<(&'static str, String)> {
        let late = [Key::TaskReporting, Key::ProtocolLevel, Key::StopsAtFailure];
        let mut pairs = Vec::new();
        for spec in &TABLE {
            if !self.concerns(spec) {
                continue;
            }
            let Some(value) = self.proposal(spec) else { continue };
            if late.contains(&spec.key) && is_default(spec, &value) {
                continue;
            }
            if !matches!(spec.rule, Rule::DeclareNumber(_)) {
                self.open.insert(spec.key);
            }
            pairs.push((spec.name, value));
        }
        pairs
    }

    /// What this side declares of itself, for the side that does not propose.
    #[must_use]
    pub fn declare(&self) -> (&'static str, String) {
        let spec = Key::MaxRecvDataSegmentLength.spec();
        (spec.name, self.offer.max_recv_data_segment.to_string())
    }

    /// Takes a batch of the peer's pairs, proposals and answers mixed, in any order, and gives the
    /// answers it is owed. Keys of authentication must have been taken out.
    pub fn receive(
        &mut self,
        stage: Stage,
        pairs: &[Pair<'_>],
    ) -> Result<Vec<(String, String)>, Violation> {
        let mut known: Vec<(Key, &str)> = Vec::new();
        let mut answers = Vec::new();
        for pair in pairs {
            match Key::named(pair.key) {
                Some(key) => known.push((key, pair.value)),
                // An answer to a key we never sent is not answered: two machines would not end.
                None if pair.value == NOT_UNDERSTOOD => {}
                None => answers.push((pair.key.to_owned(), NOT_UNDERSTOOD.to_owned())),
            }
        }
        known.sort_by_key(|&(key, _)| key);
        for (key, value) in known {
            self.check_sender(stage, key)?;
            if self.open.remove(&key) {
                let value = self.read_answer(key, value)?;
                self.settled.insert(key, value);
            } else if self.settled.contains_key(&key) {
                return Err(Violation::Repeated(key));
            } else if let Some(answer) = self.read_proposal(key, value)? {
                answers.push((key.spec().name.to_owned(), answer));
            }
        }
        Ok(answers)
    }

    /// A text the peer declared.
    #[must_use]
    pub fn text(&self, key: Key) -> Option<&str> {
        match self.settled.get(&key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The values both sides now have. What the peer left unanswered keeps its default.
    pub fn finish(&self) -> Result<Parameters, Violation> {
        let max_burst = self.number(Key::MaxBurstLength);
        let first_burst = self.number(Key::FirstBurstLength);
        // A default may exceed what was negotiated for the other key; a negotiated value may not.
        if first_burst > max_burst && self.settled.contains_key(&Key::FirstBurstLength) {
            return Err(Violation::FirstBurst);
        }
        Ok(Parameters {
            header_digest: self.digest(Key::HeaderDigest)? == CRC32C,
            data_digest: self.digest(Key::DataDigest)? == CRC32C,
            seal: self.agreed_seal()?,
            max_connections: self.small(Key::MaxConnections),
            initial_r2t: self.bool(Key::InitialR2T),
            immediate_data: self.bool(Key::ImmediateData),
            max_recv_data_segment: self.offer.max_recv_data_segment,
            max_send_data_segment: self.number(Key::MaxRecvDataSegmentLength),
            max_burst,
            first_burst: first_burst.min(max_burst),
            max_outstanding_r2t: self.small(Key::MaxOutstandingR2T),
            default_time2wait: self.small(Key::DefaultTime2Wait),
            default_time2retain: self.small(Key::DefaultTime2Retain),
            data_pdu_in_order: self.bool(Key::DataPDUInOrder),
            data_sequence_in_order: self.bool(Key::DataSequenceInOrder),
            error_recovery_level: self.small(Key::ErrorRecoveryLevel),
            protocol_level: self.small(Key::ProtocolLevel),
            task_reporting: self.task_reporting(),
            stops_at_failure: self.bool(Key::StopsAtFailure),
        })
    }

    /// Whether a key has a meaning for this connection.
    const fn concerns(&self, spec: &Spec) -> bool {
        (spec.in_discovery || !self.discovery) && !(self.joining && spec.is_leading_only())
    }

    fn check_sender(&self, stage: Stage, key: Key) -> Result<(), Violation> {
        let spec = key.spec();
        let now = match stage {
            Stage::Security => spec.when == When::AnyLoginStage,
            Stage::Operational => spec.when != When::FullFeature,
        };
        let sent = spec.sender.allows(self.role.peer());
        if now && sent { Ok(()) } else { Err(Violation::NotNow(key)) }
    }

    /// This side's value of a key, as text; `None` if it is not this side's to propose.
    fn proposal(&self, spec: &Spec) -> Option<String> {
        Some(match spec.rule {
            Rule::Min(_) | Rule::Max(_) | Rule::DeclareNumber(_) => {
                self.offer.number(spec.key)?.to_string()
            }
            Rule::And { .. } | Rule::Or { .. } => yes_no(self.offer.bool(spec.key)?).to_owned(),
            Rule::List { .. } => self.offer.list(spec.key).join(","),
            Rule::DeclareText | Rule::Obsolete { .. } => return None,
        })
    }

    /// The peer's answer to what this side proposed: it must be one the rule can give.
    fn read_answer(&self, key: Key, value: &str) -> Result<Value, Violation> {
        if [REJECT, IRRELEVANT, NOT_UNDERSTOOD].contains(&value) {
            return Ok(Value::Default);
        }
        let ours = self.offer.number(key);
        let number = || text::number(value).and_then(|value| u32::try_from(value).ok());
        let read = match key.spec().rule {
            Rule::Min(range) => number()
                .filter(|&theirs| range.allow(theirs) && Some(theirs) <= ours)
                .map(Value::Number),
            Rule::Max(range) => number()
                .filter(|&theirs| range.allow(theirs) && Some(theirs) >= ours)
                .map(Value::Number),
            Rule::And { .. } => text::boolean(value)
                .filter(|&theirs| !theirs || self.offer.bool(key) == Some(true))
                .map(Value::Bool),
            Rule::Or { .. } => text::boolean(value)
                .filter(|&theirs| theirs || self.offer.bool(key) == Some(false))
                .map(Value::Bool),
            Rule::List { .. } => {
                self.offer.list(key).iter().find(|&&one| one == value).map(|one| Value::Choice(one))
            }
            Rule::DeclareNumber(_) | Rule::DeclareText | Rule::Obsolete { .. } => None,
        };
        read.ok_or_else(|| Violation::NotOffered { key, value: value.to_owned() })
    }

    /// The peer's proposal or declaration: settles it and gives the answer, if one is owed.
    fn read_proposal(&mut self, key: Key, value: &str) -> Result<Option<String>, Violation> {
        let spec = key.spec();
        let (settled, answer) = match spec.rule {
            Rule::DeclareText => (Value::Text(value.to_owned()), None),
            Rule::DeclareNumber(range) => {
                let number = text::number(value).and_then(|value| u32::try_from(value).ok());
                let number = number.filter(|&number| range.allow(number));
                let wrong = || Violation::Declared { key, value: value.to_owned() };
                (Value::Number(number.ok_or_else(wrong)?), None)
            }
            Rule::Obsolete { answer } => (Value::Default, Some(answer.to_owned())),
            _ if !self.concerns(spec) => (Value::Default, Some(self.irrelevant(spec, value))),
            _ => match self.meet(spec, value) {
                Some(met) => {
                    let answer = met.to_text();
                    (met, Some(answer))
                }
                None => (Value::Default, Some(REJECT.to_owned())),
            },
        };
        self.settled.insert(key, settled);
        Ok(answer)
    }

    /// The answer to a proposal that has no meaning here, whatever it is: nothing is settled by it. In a discovery session
    /// it is what the rule gives, since there are initiators that end the login at an `Irrelevant`, which nobody needs.
    fn irrelevant(&self, spec: &Spec, value: &str) -> String {
        let joins = self.joining && spec.is_leading_only();
        let met = match spec.key {
            _ if joins => None,
            // As many as there are.
            Key::MaxConnections => self.meet(spec, "1"),
            _ => self.meet(spec, value),
        };
        met.map_or_else(|| IRRELEVANT.to_owned(), |met| met.to_text())
    }

    /// The value the rule gives for the peer's proposal and this side's offer.
    fn meet(&self, spec: &Spec, value: &str) -> Option<Value> {
        let theirs = || text::number(value).and_then(|value| u32::try_from(value).ok());
        Some(match spec.rule {
            Rule::Min(range) => {
                let theirs = theirs().filter(|&theirs| range.allow(theirs))?;
                let met = theirs.min(self.offer.number(spec.key)?);
                Value::Number(match spec.key {
                    // RFC 7143, 13.14; MaxBurstLength is worked off before.
                    Key::FirstBurstLength => met.min(self.number(Key::MaxBurstLength)),
                    _ => met,
                })
            }
            Rule::Max(range) => {
                let theirs = theirs().filter(|&theirs| range.allow(theirs))?;
                Value::Number(theirs.max(self.offer.number(spec.key)?))
            }
            Rule::And { .. } => Value::Bool(text::boolean(value)? && self.offer.bool(spec.key)?),
            Rule::Or { .. } => Value::Bool(text::boolean(value)? || self.offer.bool(spec.key)?),
            Rule::List { .. } => {
                let ours = self.offer.list(spec.key);
                let first = |theirs| ours.iter().find(|&&one| one == theirs);
                Value::Choice(text::list(value).find_map(first)?)
            }
            Rule::DeclareNumber(_) | Rule::DeclareText | Rule::Obsolete { .. } => return None,
        })
    }

    fn number(&self, key: Key) -> u32 {
        match (self.settled.get(&key), key.spec().rule) {
            (Some(Value::Number(number)), _) => *number,
            (_, Rule::Min(n) | Rule::Max(n) | Rule::DeclareNumber(n)) => n.default,
            _ => 0,
        }
    }

    /// A number whose range fits a smaller type.
    fn small<T: TryFrom<u32> + Default>(&self, key: Key) -> T {
        T::try_from(self.number(key)).unwrap_or_default()
    }

    fn bool(&self, key: Key) -> bool {
        match (self.settled.get(&key), key.spec().rule) {
            (Some(Value::Bool(value)), _) => *value,
            (_, Rule::And { default } | Rule::Or { default }) => default,
            _ => false,
        }
    }

    fn choice(&self, key: Key) -> &'static str {
        match (self.settled.get(&key), key.spec().rule) {
            (Some(Value::Choice(choice)), _) => choice,
            (_, Rule::List { default }) => default,
            _ => "None",
        }
    }

    fn digest(&self, key: Key) -> Result<&'static str, Violation> {
        let choice = self.choice(key);
        // A default that is not in the list was not agreed to: the digest is required.
        if !self.offer.list(key).contains(&choice) {
            return Err(Violation::Required(key));
        }
        Ok(choice)
    }

    fn agreed_seal(&self) -> Result<Option<Protection>, Violation> {
        let seal = |key| self.digest(key).map(Protection::of_digest);
        let (header, data) = (seal(Key::HeaderDigest)?, seal(Key::DataDigest)?);
        if header == data { Ok(header) } else { Err(Violation::UnlikeSeals) }
    }

    fn task_reporting(&self) -> TaskReporting {
        let choice = self.choice(Key::TaskReporting);
        [TaskReporting::ResponseFence, TaskReporting::FastAbort]
            .into_iter()
            .find(|reporting| reporting.name() == choice)
            .unwrap_or(TaskReporting::Rfc3720)
    }
}

/// What an initiator says in one exchange of text of the full-feature phase: the maximum segment may be
/// declared again, nothing else is negotiated then (RFC 7143, 13).
#[derive(Debug, Default)]
pub struct Later {
    said: BTreeSet<Key>,
    segment_max: Option<u32>,
}

impl Later {
    /// Takes a key; gives the answer, if one is owed. What SendTargets asks for is for the caller to answer.
    pub fn receive(&mut self, pair: Pair<'_>) -> Result<Option<&'static str>, Violation> {
        let Some(key) = Key::named(pair.key) else {
            return Ok((pair.value != NOT_UNDERSTOOD).then_some(NOT_UNDERSTOOD));
        };
        // RFC 7143, 6.4: no key comes twice in an exchange.
        if !self.said.insert(key) {
            return Err(Violation::Repeated(key));
        }
        match (key, key.spec().rule) {
            (_, Rule::DeclareNumber(range)) => {
                let number = text::number(pair.value).and_then(|value| u32::try_from(value).ok());
                let number = number.filter(|&number| range.allow(number));
                let wrong = || Violation::Declared { key, value: pair.value.to_owned() };
                self.segment_max = Some(number.ok_or_else(wrong)?);
                Ok(None)
            }
            (Key::SendTargets | Key::InitiatorAlias, _) => Ok(None),
            _ => Ok(Some(REJECT)),
        }
    }

    /// Whether a key has come.
    #[must_use]
    pub fn has(&self, key: Key) -> bool {
        self.said.contains(&key)
    }

    /// The maximum segment, if it was declared. It holds when the exchange has ended, and not if it fails
    /// (RFC 7143, 6.4 and 7.12).
    #[must_use]
    pub const fn segment_max(&self) -> Option<u32> {
        self.segment_max
    }
}

impl Value {
    fn to_text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Bool(value) => yes_no(*value).to_owned(),
            Self::Choice(choice) => (*choice).to_owned(),
            Self::Text(text) => text.clone(),
            Self::Default => REJECT.to_owned(),
        }
    }
}

const fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

fn is_default(spec: &Spec, value: &str) -> bool {
    match spec.rule {
        Rule::Min(n) | Rule::Max(n) | Rule::DeclareNumber(n) => value == n.default.to_string(),
        Rule::And { default } | Rule::Or { default } => value == yes_no(default),
        Rule::List { default } => value == default,
        Rule::DeclareText | Rule::Obsolete { .. } => false,
    }
}

impl Offer {
    fn number(&self, key: Key) -> Option<u32> {
        Some(match key {
            Key::MaxConnections => u32::from(self.max_connections),
            Key::MaxRecvDataSegmentLength => self.max_recv_data_segment,
            Key::MaxBurstLength => self.max_burst,
            Key::FirstBurstLength => self.first_burst,
            Key::DefaultTime2Wait => u32::from(self.default_time2wait),
            Key::DefaultTime2Retain => u32::from(self.default_time2retain),
            Key::MaxOutstandingR2T => u32::from(self.max_outstanding_r2t),
            Key::ErrorRecoveryLevel => u32::from(self.error_recovery_level),
            Key::ProtocolLevel => u32::from(self.protocol_level),
            _ => return None,
        })
    }

    fn bool(&self, key: Key) -> Option<bool> {
        Some(match key {
            Key::InitialR2T => self.initial_r2t,
            Key::ImmediateData => self.immediate_data,
            Key::DataPDUInOrder => self.data_pdu_in_order,
            Key::DataSequenceInOrder => self.data_sequence_in_order,
            Key::StopsAtFailure => self.stops_at_failure,
            _ => return None,
        })
    }

    fn list(&self, key: Key) -> Vec<&'static str> {
        match key {
            Key::HeaderDigest => self.header_digest.list().to_vec(),
            Key::DataDigest => self.data_digest.list().to_vec(),
            Key::TaskReporting if self.task_reporting == TaskReporting::Rfc3720 => {
                vec![TaskReporting::Rfc3720.name()]
            }
            Key::TaskReporting => {
                vec![self.task_reporting.name(), TaskReporting::Rfc3720.name()]
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
