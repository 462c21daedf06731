//! The target's side of a login.

mod security;

use std::sync::Arc;

use bytes::Bytes;

use super::policy::{Demand, Policy};
use super::{EXCHANGES_MAX, LoginStatus, Phase, VERSION, is_security, value};
use crate::iscsi::chap::{Challenge, ChapError};
use crate::iscsi::header::{LoginRequest, LoginResponse};
use crate::iscsi::keys::{Key, Offer, Parameters, Role};
use crate::iscsi::name::{IscsiName, Isid, NameError};
use crate::iscsi::negotiation::{Negotiation, Stage, Violation};
use crate::iscsi::pdu::{DATA_MAX_DEFAULT, Pdu};
use crate::iscsi::text::{self, Assembly, Pair, TextError};
use security::Security;

/// What a target node brings to every login.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who may use what.
    pub policy: Policy,
    /// What it asks for.
    pub offer: Offer,
    /// The portal group the connection came in by (RFC 7143, 13.9).
    pub portal_group_tag: u16,
    /// How many commands a new session may have on their way.
    pub command_window: u32,
}

/// A login under way, waiting for the next request.
#[derive(Debug)]
pub struct TargetLogin {
    common: Common,
    state: Expect,
}

/// What all states share.
#[derive(Debug)]
struct Common {
    config: Arc<Config>,
    assembly: Assembly,
    negotiation: Negotiation,
    /// What the first request fixed; `None` before it.
    ids: Option<Ids>,
    stat_sn: u32,
    exchanges: u32,
    /// The portal group tag or the segment length has been declared.
    tag_sent: bool,
    segment_sent: bool,
}

/// What stays the same in every request of a login (RFC 7143, 11.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ids {
    isid: [u8; 6],
    tsih: u16,
    cid: u16,
    itt: u32,
    cmd_sn: u32,
}

#[derive(Debug)]
enum Expect {
    /// The first request says who is there; the challenge waits for it.
    First(Challenge),
    /// The security stage goes on.
    Security(Box<Peer>, Security),
    /// The operational stage.
    Operational(Box<Peer>, Grant),
}

/// Who wants what.
#[derive(Clone, Debug)]
struct Peer {
    initiator: IscsiName,
    /// `None` for a discovery session.
    target: Option<IscsiName>,
}

/// The targets a peer may use.
#[derive(Clone, Debug)]
struct Grant(Vec<IscsiName>);

/// What comes of a request.
#[derive(Debug)]
pub enum Progress {
    /// Send the response; the login goes on.
    Continue(Box<TargetLogin>, Pdu),
    /// The login is complete but for the session: admit or refuse it.
    Admit(Box<Admission>),
    /// Send the response and close the connection.
    Refused(Refusal),
}

/// A login that was refused.
#[derive(Debug)]
pub struct Refusal {
    /// The last response.
    pub response: Pdu,
    /// Why.
    pub reason: Reason,
}

/// Why a login is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The text cannot be read.
    #[error("malformed text: {0}")]
    Text(#[from] TextError),
    /// A key broke a rule.
    #[error("negotiation failed: {0}")]
    Violation(#[from] Violation),
    /// A name is none.
    #[error("{0}")]
    Name(#[from] NameError),
    /// CHAP proved nothing.
    #[error("{0}")]
    Chap(#[from] ChapError),
    /// What a CHAP step needs is absent or malformed.
    #[error("{0} is missing or malformed")]
    ChapKey(&'static str),
    /// No authentication method or algorithm in common, or none was tried.
    #[error("no authentication that this target accepts was offered")]
    NoMethod,
    /// A key every login must have.
    #[error("{0} is missing")]
    Missing(Key),
    /// A session type that does not exist.
    #[error("unknown session type")]
    SessionType,
    /// A version that does not exist.
    #[error("unsupported version")]
    Version,
    /// ISID, TSIH, CID, task tag or CmdSN changed under way.
    #[error("the identity of the login changed under way")]
    Changed,
    /// Stages that do not follow one another.
    #[error("the stages do not follow one another")]
    Stage,
    /// It has too many requests, or too many keys nobody knows.
    #[error("the login is too long")]
    TooLong,
    /// There is no such target.
    #[error("no such target: {0}")]
    NotFound(IscsiName),
    /// The initiator may not use it.
    #[error("{0} may not log in here")]
    NotAllowed(IscsiName),
    /// The session was not admitted.
    #[error("not admitted: {0}")]
    NotAdmitted(LoginStatus),
}

impl Reason {
    /// What the initiator is told (RFC 7143, 11.13.5).
    #[must_use]
    pub const fn status(&self) -> LoginStatus {
        match self {
            Self::Text(_)
            | Self::Violation(_)
            | Self::Name(_)
            | Self::Changed
            | Self::Stage
            | Self::TooLong => LoginStatus::INITIATOR_ERROR,
            Self::Chap(_) | Self::ChapKey(_) | Self::NoMethod => {
                LoginStatus::AUTHENTICATION_FAILURE
            }
            Self::Missing(_) => LoginStatus::MISSING_PARAMETER,
            Self::SessionType => LoginStatus::SESSION_TYPE_NOT_SUPPORTED,
            Self::Version => LoginStatus::UNSUPPORTED_VERSION,
            Self::NotFound(_) => LoginStatus::NOT_FOUND,
            Self::NotAllowed(_) => LoginStatus::AUTHORIZATION_FAILURE,
            Self::NotAdmitted(status) => *status,
        }
    }
}

/// The response to anything but a Login Request before the login has ended (RFC 7143, 6.3.1).
#[must_use]
pub fn invalid_during_login(itt: u32) -> Pdu {
    let status = LoginStatus::INVALID_DURING_LOGIN;
    Pdu::bare(LoginResponse {
        itt,
        status_class: status.class,
        status_detail: status.detail,
        ..LoginResponse::default()
    })
}

/// What one request leads to, before it is put into a PDU.
enum Turn {
    /// The stage goes on.
    Stay(Expect),
    /// The operational stage begins.
    Follow(Expect),
    /// The next stage is the full-feature phase.
    Complete(Box<Peer>, Grant),
}

impl TargetLogin {
    /// A login on a new connection. The challenge is a fresh one, for CHAP if it comes to that.
    #[must_use]
    pub fn new(config: Arc<Config>, challenge: Challenge) -> Self {
        let common = Common {
            negotiation: Negotiation::new(Role::Target, config.offer.clone()),
            config,
            assembly: Assembly::default(),
            ids: None,
            stat_sn: 0,
            exchanges: 0,
            tag_sent: false,
            segment_sent: false,
        };
        Self { common, state: Expect::First(challenge) }
    }

    /// Takes the next Login Request.
    #[must_use]
    pub fn handle(mut self, request: &LoginRequest, data: &[u8]) -> Progress {
        let response = self.common.response_to(request);
        match self.step(request, data, response) {
            Ok(progress) => progress,
            Err(reason) => Progress::Refused(refuse(response, reason)),
        }
    }

    fn step(
        mut self,
        request: &LoginRequest,
        data: &[u8],
        response: LoginResponse,
    ) -> Result<Progress, Reason> {
        let (phase, next) = self.common.check(&self.state, request)?;
        let Some(text) = self.common.assembly.add(data, request.continues)? else {
            // The rest is asked for with an empty response (RFC 7143, 6.2).
            return Ok(Progress::Continue(Box::new(self), Pdu::bare(response)));
        };
        let Self { mut common, state } = self;
        let (turn, text) = common.turn(state, phase, next, &text::parse(&text)?)?;
        // Only a flood of unknown keys is answered with so much.
        if text.len() > DATA_MAX_DEFAULT {
            return Err(Reason::TooLong);
        }
        let text = Bytes::from(text);
        Ok(match turn {
            Turn::Stay(state) => {
                let next = Box::new(Self { common, state });
                Progress::Continue(next, Pdu::with_data(response, text))
            }
            Turn::Follow(state) => {
                let next_stage = Phase::Operational.bits();
                let response = LoginResponse { transit: true, next_stage, ..response };
                let next = Box::new(Self { common, state });
                Progress::Continue(next, Pdu::with_data(response, text))
            }
            Turn::Complete(peer, grant) => {
                let next_stage = Phase::FullFeature.bits();
                let response = LoginResponse { transit: true, next_stage, ..response };
                let established = common.establish(*peer, grant, request)?;
                Progress::Admit(Box::new(Admission { response, text, established }))
            }
        })
    }
}

impl Common {
    fn response_to(&mut self, request: &LoginRequest) -> LoginResponse {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(1);
        // A Login Request is immediate: it takes no CmdSN (RFC 7143, 11.12.7).
        let window = self.config.command_window;
        LoginResponse {
            current_stage: request.current_stage,
            version_max: VERSION,
            version_active: VERSION,
            isid: request.isid,
            tsih: request.tsih,
            itt: request.itt,
            stat_sn,
            exp_cmd_sn: request.cmd_sn,
            max_cmd_sn: request.cmd_sn.wrapping_add(window).wrapping_sub(1),
            ..LoginResponse::default()
        }
    }

    /// What every request must keep to; gives its stage and the one it wants.
    fn check(
        &mut self,
        state: &Expect,
        request: &LoginRequest,
    ) -> Result<(Phase, Option<Phase>), Reason> {
        let LoginRequest { isid, tsih, cid, itt, cmd_sn, .. } = *request;
        let ids = Ids { isid, tsih, cid, itt, cmd_sn };
        self.exchanges += 1;
        if request.version_min > VERSION {
            return Err(Reason::Version);
        }
        if *self.ids.get_or_insert(ids) != ids {
            return Err(Reason::Changed);
        }
        if self.exchanges > EXCHANGES_MAX {
            return Err(Reason::TooLong);
        }
        let phase = Phase::from_bits(request.current_stage).ok_or(Reason::Stage)?;
        let expected = match state {
            Expect::First(_) => phase != Phase::FullFeature,
            Expect::Security(..) => phase == Phase::Security,
            Expect::Operational(..) => phase == Phase::Operational,
        };
        let next = match request.transit {
            true => Some(Phase::from_bits(request.next_stage).ok_or(Reason::Stage)?),
            false => None,
        };
        // RFC 7143, 11.12.1 and 11.12.2: forward only, and not in the middle of a text.
        let forward = next.is_none_or(|next| next > phase && !request.continues);
        if expected && forward { Ok((phase, next)) } else { Err(Reason::Stage) }
    }

    fn turn(
        &mut self,
        state: Expect,
        phase: Phase,
        next: Option<Phase>,
        pairs: &[Pair<'_>],
    ) -> Result<(Turn, Vec<u8>), Reason> {
        let (security, operational): (Vec<_>, Vec<_>) = match phase {
            Phase::Security => pairs.iter().copied().partition(is_security),
            Phase::Operational | Phase::FullFeature => (Vec::new(), pairs.to_vec()),
        };
        if matches!(state, Expect::First(_)) {
            self.learn_session_type(&operational)?;
        }
        let stage = match phase {
            Phase::Security => Stage::Security,
            Phase::Operational | Phase::FullFeature => Stage::Operational,
        };
        let answers = self.negotiation.receive(stage, &operational)?;
        let mut text = Vec::new();
        let turn = match state {
            Expect::First(challenge) => {
                let peer = Box::new(self.meet()?);
                if phase == Phase::Security {
                    let state = Security::ExpectMethod(challenge);
                    self.security(peer, state, &security, next, &mut text)?
                } else {
                    let grant = self.grant_unproven(&peer)?;
                    operational_turn(peer, grant, next)
                }
            }
            Expect::Security(peer, state) => {
                self.security(peer, state, &security, next, &mut text)?
            }
            Expect::Operational(peer, grant) => operational_turn(peer, grant, next),
        };
        answers.iter().for_each(|(key, value)| text::push(&mut text, key, value));
        self.declare(phase, &mut text);
        Ok((turn, text))
    }

    fn security(
        &self,
        peer: Box<Peer>,
        state: Security,
        pairs: &[Pair<'_>],
        next: Option<Phase>,
        answers: &mut Vec<u8>,
    ) -> Result<Turn, Reason> {
        let policy = &self.config.policy;
        let state = state.handle(policy, &peer.initiator, pairs, next.is_some(), answers)?;
        let (Security::Proven(chap_name), Some(next)) = (&state, next) else {
            // T is answered with T=0 where more is to be said (RFC 7143, 6.3.1).
            return Ok(Turn::Stay(Expect::Security(peer, state)));
        };
        let grant = self.grant(&peer, chap_name.as_deref())?;
        Ok(match next {
            Phase::FullFeature => Turn::Complete(peer, grant),
            _ => Turn::Follow(Expect::Operational(peer, grant)),
        })
    }

    /// The session type decides what other keys mean, so it is looked at before they are.
    fn learn_session_type(&mut self, pairs: &[Pair<'_>]) -> Result<(), Reason> {
        match value(pairs, Key::SessionType.spec().name) {
            None | Some("Normal") => {}
            Some("Discovery") => self.negotiation.in_discovery(),
            Some(_) => return Err(Reason::SessionType),
        }
        Ok(())
    }

    /// Who is there, from the first request (RFC 7143, 6.3.1 and 13.4).
    fn meet(&self) -> Result<Peer, Reason> {
        let text = |key| self.negotiation.text(key).ok_or(Reason::Missing(key));
        let initiator = IscsiName::new(text(Key::InitiatorName)?)?;
        let target = match self.negotiation.text(Key::SessionType) {
            Some("Discovery") => None,
            _ => Some(IscsiName::new(text(Key::TargetName)?)?),
        };
        Ok(Peer { initiator, target })
    }

    /// An initiator that skips the security stage says AuthMethod=None (RFC 7143, 6.3.1).
    fn grant_unproven(&self, peer: &Peer) -> Result<Grant, Reason> {
        match self.config.policy.demands(&peer.initiator) {
            Demand::Nothing => self.grant(peer, None),
            Demand::Chap => Err(Reason::NoMethod),
            Demand::Impossible => Err(Reason::NotAllowed(peer.initiator.clone())),
        }
    }

    /// Which targets a peer may use, now that it is known; the one it asks for must be among them.
    fn grant(&self, peer: &Peer, chap_name: Option<&str>) -> Result<Grant, Reason> {
        let visible = self.config.policy.visible(&peer.initiator, chap_name);
        match &peer.target {
            Some(target) if !self.config.policy.has(target) => {
                Err(Reason::NotFound(target.clone()))
            }
            Some(target) if !visible.contains(target) => {
                Err(Reason::NotAllowed(peer.initiator.clone()))
            }
            _ => Ok(Grant(visible)),
        }
    }

    /// What this side says of itself, each once.
    fn declare(&mut self, phase: Phase, text: &mut Vec<u8>) {
        // RFC 7143, 13.9: in the first response to a login that names a target.
        let named = self.negotiation.text(Key::TargetName).is_some();
        if named && !std::mem::replace(&mut self.tag_sent, true) {
            let tag = self.config.portal_group_tag.to_string();
            text::push(text, Key::TargetPortalGroupTag.spec().name, &tag);
        }
        if phase == Phase::Operational && !std::mem::replace(&mut self.segment_sent, true) {
            let (key, value) = self.negotiation.declare();
            text::push(text, key, &value);
        }
    }

    fn establish(
        self,
        peer: Peer,
        grant: Grant,
        request: &LoginRequest,
    ) -> Result<Established, Reason> {
        Ok(Established {
            initiator: peer.initiator,
            isid: Isid(request.isid),
            tsih: request.tsih,
            cid: request.cid,
            target: peer.target,
            visible: grant.0,
            parameters: self.negotiation.finish()?,
            exp_cmd_sn: request.cmd_sn,
            stat_sn: self.stat_sn,
        })
    }
}

fn operational_turn(peer: Box<Peer>, grant: Grant, next: Option<Phase>) -> Turn {
    match next {
        Some(_) => Turn::Complete(peer, grant),
        None => Turn::Stay(Expect::Operational(peer, grant)),
    }
}

fn refuse(response: LoginResponse, reason: Reason) -> Refusal {
    let status = reason.status();
    let response = LoginResponse {
        transit: false,
        next_stage: 0,
        status_class: status.class,
        status_detail: status.detail,
        ..response
    };
    Refusal { response: Pdu::bare(response), reason }
}

/// A login that has succeeded but for its place among the sessions.
///
/// Before it is admitted, the session it replaces has ended: same initiator, ISID and target with
/// TSIH zero (RFC 7143, 6.3.5).
#[derive(Debug)]
pub struct Admission {
    response: LoginResponse,
    text: Bytes,
    established: Established,
}

impl Admission {
    /// What the login has agreed on. Its TSIH is the one asked for, zero for a new session.
    #[must_use]
    pub const fn established(&self) -> &Established {
        &self.established
    }

    /// Admits the session under `tsih`, which is not zero; gives the last response.
    #[must_use]
    pub fn admit(self, tsih: u16) -> (Pdu, Established) {
        debug_assert_ne!(tsih, 0, "RFC 7143, 11.13.3");
        let response = LoginResponse { tsih, ..self.response };
        let established = Established { tsih, ..self.established };
        (Pdu::with_data(response, self.text), established)
    }

    /// Refuses the session.
    #[must_use]
    pub fn refuse(self, status: LoginStatus) -> Refusal {
        refuse(self.response, Reason::NotAdmitted(status))
    }
}

/// What a login has led to.
#[derive(Clone, Debug)]
pub struct Established {
    /// Who is there.
    pub initiator: IscsiName,
    /// Its part of the session's name.
    pub isid: Isid,
    /// This side's part.
    pub tsih: u16,
    /// The connection's number.
    pub cid: u16,
    /// The target; `None` in a discovery session.
    pub target: Option<IscsiName>,
    /// The targets the initiator may use, and so what SendTargets=All tells in a discovery session.
    pub visible: Vec<IscsiName>,
    /// What was agreed.
    pub parameters: Parameters,
    /// The first CmdSN of the session.
    pub exp_cmd_sn: u32,
    /// The StatSN of the next PDU that carries one.
    pub stat_sn: u32,
}
