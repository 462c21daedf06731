//! The initiator's side of a login.
//!
//! It takes as few round trips as the standard allows: one without authentication, since the
//! security stage may be skipped (RFC 7143, 6.3.1), two for a sealed session, four with CHAP.

mod deviation;
mod security;

use super::{EXCHANGES_MAX, Entropy, LoginStatus, Phase, VERSION, is_security, value};
use crate::identity::PublicKey;
use crate::iscsi::chap::{Account, Algorithm, ChapError};
use crate::iscsi::header::{LoginRequest, LoginResponse};
use crate::iscsi::keys::{DigestWish, Key, Offer, Parameters, Role};
use crate::iscsi::name::{IscsiName, Isid};
use crate::iscsi::negotiation::{Negotiation, Stage, Violation};
use crate::iscsi::pdu::Pdu;
use crate::iscsi::sealed::{
    HandshakeError, InvitationSecret, Master, PROOF_KEY, Protection, Sealing, Seals, Transcript,
    Transcripts,
};
use crate::iscsi::text::{self, Assembly, Pair, TextError};
pub use deviation::Deviation;
use security::Security;

/// What an initiator brings to a login.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name.
    pub initiator: IscsiName,
    /// Its part of the session's name.
    pub isid: Isid,
    /// The target to log in to; `None` for a discovery session.
    pub target: Option<IscsiName>,
    /// How it proves itself, and the target if the account is mutual.
    pub account: Option<Account>,
    /// With whom the session is sealed. Then nothing less is offered, and the account is not used.
    pub pinned: Option<Pinned>,
    /// The algorithms it takes for CHAP, best first.
    pub algorithms: Vec<Algorithm>,
    /// What it asks for.
    pub offer: Offer,
}

/// A target that is known by its public key.
#[derive(Clone, Debug)]
pub struct Pinned {
    /// Who we are.
    pub sealing: Sealing,
    /// Who it is.
    pub target: PublicKey,
    /// What the session gets: exactly this.
    pub protection: Protection,
    /// What makes the target list this client, if it does not yet: good for one login.
    pub invitation: Option<InvitationSecret>,
}

/// A login under way, waiting for the next response.
#[derive(Debug)]
pub struct InitiatorLogin {
    common: Common,
    state: Expect,
}

#[derive(Debug)]
struct Common {
    config: Config,
    place: LoginPurpose,
    assembly: Assembly,
    negotiation: Negotiation,
    /// Whether the last request asked for the next stage.
    asked: bool,
    exp_stat_sn: Option<u32>,
    exchanges: u32,
    tag: Option<u16>,
    /// All requests so far.
    sent: Transcript,
    /// Rules the target does not keep, each once.
    deviations: Vec<Deviation>,
}

/// What a login asks for: a session, or a place for another connection in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginPurpose {
    /// The session; zero for a new one.
    pub tsih: u16,
    /// The number of the connection.
    pub cid: u16,
    /// The CmdSN of the next command.
    pub cmd_sn: u32,
}

impl LoginPurpose {
    /// That of the first connection.
    const LEADING: Self = Self { tsih: 0, cid: CID, cmd_sn: FIRST_CMD_SN };
}

#[derive(Debug)]
enum Expect {
    /// In the security stage.
    Security(Security),
    /// In the operational stage, perhaps of a session that will be sealed.
    Operational(Option<Box<Master>>),
}

/// What comes of a response.
#[derive(Debug)]
pub enum Progress {
    /// Send the request; the login goes on.
    Continue(Box<InitiatorLogin>, Pdu),
    /// The session is there, and what it is sealed with from now on.
    Done(Box<Established>, Option<Box<Seals>>),
}

/// Why a login failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The target is at another address (RFC 7143, 11.13.5: class 1).
    #[error("the target has moved to {}", .address.escape_debug())]
    Moved {
        /// Where to: `host[:port][,tag]`.
        address: String,
        /// For good.
        permanently: bool,
    },
    /// A redirection where the target's key is pinned: it comes before anything is proven.
    #[error(
        "a redirection to {}, which is not followed: nothing proves it, and a key is pinned",
        .0.escape_debug()
    )]
    UnprovenMove(String),
    /// The target refused.
    #[error("the target refuses: {0}")]
    Refused(LoginStatus),
    /// The target's text cannot be read.
    #[error("the target sent malformed text: {0}")]
    Text(#[from] TextError),
    /// The target broke a rule of negotiation, or lacks what is required here.
    #[error("negotiation failed: {0}")]
    Violation(#[from] Violation),
    /// The target did not prove who it is, or tried to make us betray our secret.
    #[error("the target does not prove who it is: {0}")]
    Chap(#[from] ChapError),
    /// Someone else answers than the target that was pinned.
    #[error("the target does not prove who it is: {0}")]
    Seal(#[from] HandshakeError),
    /// It cannot seal sessions, or someone on the way has taken our wish for one out.
    #[error("the target does not offer sealed sessions, which its pinned key demands")]
    NoSeal,
    /// It knows the method, and not us.
    #[error(
        "the target does not list this client's key {0}, or is not the one whose key was pinned"
    )]
    KeyRefused(PublicKey),
    /// It does not take the invitation.
    #[error(
        "the target does not take the invitation: it was used, has expired or was revoked, or the target is not the one \
         that has made it"
    )]
    InvitationRefused,
    /// It knows us, and wants better protection, or does not let us use what we asked for.
    #[error("the target does not let this client use it with the protection `{}`", .0.name())]
    TooLittle(Protection),
    /// It knows us, and does not let us in for now.
    #[error(
        "the target lets this client not in for now: it is paused there, or its last session has not ended yet"
    )]
    Unavailable,
    /// A step of authentication lacks a key, or has it malformed.
    #[error("the target sent no usable {0}")]
    ChapKey(&'static str),
    /// It chose a method or algorithm that was not offered.
    #[error("the target chose {}, which was not offered", .0.escape_debug())]
    NotOffered(String),
    /// It demands what there are no credentials for.
    #[error("the target demands authentication and there are no credentials for it")]
    NoCredentials,
    /// The PDU does not fit the login.
    #[error("the target's login response has a wrong {0}")]
    Field(&'static str),
    /// It never comes to an end.
    #[error("the login takes too many responses")]
    TooLong,
}

/// What a login has led to.
#[derive(Clone, Debug)]
pub struct Established {
    /// What was agreed: by a connection that joins a session, only what is of one connection.
    pub parameters: Parameters,
    /// The target's part of the session's name.
    pub tsih: u16,
    /// The portal group this connection came in by.
    pub portal_group_tag: Option<u16>,
    /// What the target calls itself.
    pub target_alias: Option<String>,
    /// The CmdSN of the first command.
    pub cmd_sn: u32,
    /// The CmdSN the target expects.
    pub exp_cmd_sn: u32,
    /// The last CmdSN the target has room for.
    pub max_cmd_sn: u32,
    /// The StatSN that comes next.
    pub exp_stat_sn: u32,
    /// What was accepted of the target though it breaks a rule, each once.
    pub deviations: Vec<Deviation>,
}

impl Established {
    /// Whether a later login under the same name is sure to end this session (RFC 7143, 6.3.5): the target has
    /// understood by which name it goes.
    #[must_use]
    pub fn can_be_reinstated(&self) -> bool {
        !self.deviations.iter().any(|deviation| deviation.leaves_session_unnamed())
    }
}

/// The first connection of a session.
pub const CID: u16 = 0;

/// Where command numbers begin.
const FIRST_CMD_SN: u32 = 1;

impl InitiatorLogin {
    /// Begins a login: the first request. The entropy is fresh, for mutual CHAP or a sealed session.
    #[must_use]
    pub fn start(config: Config, entropy: Entropy) -> (Box<Self>, Pdu) {
        Self::start_at(config, LoginPurpose::LEADING, entropy)
    }

    /// The same, for a connection that joins a session: as the same initiator, with the same proof
    /// (RFC 7143, 6.3.1).
    #[must_use]
    pub fn join(config: Config, place: LoginPurpose, entropy: Entropy) -> (Box<Self>, Pdu) {
        Self::start_at(config, place, entropy)
    }

    fn start_at(mut config: Config, place: LoginPurpose, entropy: Entropy) -> (Box<Self>, Pdu) {
        let mut negotiation = Negotiation::new(Role::Initiator, config.offer.clone());
        if config.target.is_none() {
            negotiation.in_discovery();
        }
        if place.tsih != 0 {
            negotiation.joins();
            // The session that it joins has used it.
            config.pinned.iter_mut().for_each(|pinned| pinned.invitation = None);
        }
        let mut text = config.identity(place);
        let state = match Security::start(&config, entropy, &mut text) {
            Some(security) => Expect::Security(security),
            None => Expect::Operational(None),
        };
        let mut common = Common {
            config,
            place,
            assembly: Assembly::default(),
            negotiation,
            asked: false,
            exp_stat_sn: None,
            exchanges: 0,
            tag: None,
            sent: Transcript::default(),
            deviations: Vec::new(),
        };
        common.judge_target_name();
        let request = match &state {
            Expect::Security(state) => common.request(Phase::Security, text, state.may_leave()),
            Expect::Operational(_) => common.propose(text),
        };
        (Box::new(Self { common, state }), request)
    }

    /// Takes the next Login Response; `heard` is all the target has sent, this response included.
    pub fn handle(
        mut self: Box<Self>,
        response: &LoginResponse,
        data: &[u8],
        heard: &Transcript,
    ) -> Result<Progress, LoginError> {
        self.common.check(&self.state, response, data)?;
        let Some(text) = self.common.assembly.add(data, response.continues)? else {
            let request = self.common.request(self.state.phase(), Vec::new(), false);
            return Ok(Progress::Continue(self, request));
        };
        let pairs = text::parse(&text)?;
        let Self { mut common, state } = *self;
        let (security, operational): (Vec<_>, Vec<_>) = pairs.iter().partition(|p| is_security(p));
        let answers = common.learn(&state, &operational)?;
        let (state, request) = match state {
            Expect::Security(state) => common.security(state, response, &security, heard)?,
            Expect::Operational(master) if response.transit => {
                return common.finish(response, master, heard);
            }
            Expect::Operational(master) => {
                let request = common.request(Phase::Operational, answers, true);
                (Expect::Operational(master), request)
            }
        };
        Ok(Progress::Continue(Box::new(Self { common, state }), request))
    }
}

impl Expect {
    const fn phase(&self) -> Phase {
        match self {
            Self::Security(_) => Phase::Security,
            Self::Operational(_) => Phase::Operational,
        }
    }
}

impl Config {
    /// Who we are and what we want, which the first request says (RFC 7143, 6.3.1). What type its session has
    /// only the leading connection says (13.21); the Linux kernel's target knows no such key of others.
    fn identity(&self, place: LoginPurpose) -> Vec<u8> {
        let mut text = Vec::new();
        let mut push = |key: Key, value: &str| text::push(&mut text, key.spec().name, value);
        push(Key::InitiatorName, self.initiator.as_str());
        if place.tsih == 0 {
            push(Key::SessionType, self.session_type());
        }
        if let Some(target) = &self.target {
            push(Key::TargetName, target.as_str());
        }
        text
    }

    const fn session_type(&self) -> &'static str {
        if self.target.is_some() { "Normal" } else { "Discovery" }
    }
}

impl Common {
    fn request(&mut self, phase: Phase, text: Vec<u8>, transit: bool) -> Pdu {
        self.asked = transit;
        let next = match phase {
            Phase::Security => Phase::Operational,
            Phase::Operational | Phase::FullFeature => Phase::FullFeature,
        };
        let header = LoginRequest {
            transit,
            continues: false,
            current_stage: phase.bits(),
            next_stage: if transit { next.bits() } else { 0 },
            version_max: VERSION,
            version_min: VERSION,
            isid: self.config.isid.0,
            tsih: self.place.tsih,
            itt: 0,
            cid: self.place.cid,
            cmd_sn: self.place.cmd_sn,
            exp_stat_sn: self.exp_stat_sn.unwrap_or_default(),
        };
        let request = Pdu::with_data(header, text.into());
        self.sent.add_pdu(&request);
        request
    }

    /// Everything both sides have sent so far.
    fn transcripts(&self, heard: &Transcript) -> Transcripts {
        Transcripts { initiator: self.sent.hash(), target: heard.hash() }
    }

    /// The request that proposes all operational keys at once.
    fn propose(&mut self, mut text: Vec<u8>) -> Pdu {
        for (key, value) in self.negotiation.propose() {
            text::push(&mut text, key, &value);
        }
        self.request(Phase::Operational, text, true)
    }

    /// What every response must keep to.
    fn check(
        &mut self,
        state: &Expect,
        response: &LoginResponse,
        data: &[u8],
    ) -> Result<(), LoginError> {
        let status = LoginStatus { class: response.status_class, detail: response.status_detail };
        match status {
            LoginStatus::SUCCESS => {}
            LoginStatus::MOVED_TEMPORARILY | LoginStatus::MOVED_PERMANENTLY => {
                return Err(self.moved(status, data));
            }
            _ => return Err(self.refused(status)),
        }
        self.exchanges += 1;
        if self.exchanges > EXCHANGES_MAX {
            return Err(LoginError::TooLong);
        }
        // The first response says where StatSN begins (RFC 7143, 11.13.4).
        if self.exp_stat_sn.is_some_and(|expected| expected != response.stat_sn) {
            return Err(LoginError::Field("StatSN"));
        }
        self.exp_stat_sn = Some(response.stat_sn.wrapping_add(1));
        let phase = state.phase();
        let next = match phase {
            Phase::Security => Phase::Operational,
            Phase::Operational | Phase::FullFeature => Phase::FullFeature,
        };
        let transit = !response.transit
            || (self.asked && response.next_stage == next.bits() && !response.continues);
        let other_isid = response.isid != self.config.isid.0;
        match () {
            () if response.itt != 0 => Err(LoginError::Field("task tag")),
            () if other_isid && !self.accept(Deviation::OtherIsid) => {
                Err(LoginError::Field("ISID"))
            }
            () if response.version_active != VERSION => Err(LoginError::Field("version")),
            () if response.current_stage != phase.bits() => Err(LoginError::Field("stage")),
            () if !transit => Err(LoginError::Field("transition")),
            () => Ok(()),
        }
    }

    /// A redirection carries the address as text, in any stage (RFC 7143, 11.13.5). It is in clear, so whoever pins
    /// a key does not follow it.
    fn moved(&self, status: LoginStatus, data: &[u8]) -> LoginError {
        let pairs = text::parse(data);
        let address =
            pairs.ok().and_then(|pairs| value(&pairs, "TargetAddress").map(str::to_owned));
        match address {
            Some(address) if self.config.pinned.is_some() => LoginError::UnprovenMove(address),
            Some(address) => {
                LoginError::Moved { address, permanently: status == LoginStatus::MOVED_PERMANENTLY }
            }
            None => LoginError::Field("redirection without TargetAddress"),
        }
    }

    /// Why a target refuses, as far as the status and what we came with tell.
    fn refused(&self, status: LoginStatus) -> LoginError {
        match (status, &self.config.pinned) {
            (LoginStatus::AUTHENTICATION_FAILURE, Some(Pinned { invitation: Some(_), .. })) => {
                LoginError::InvitationRefused
            }
            (LoginStatus::AUTHENTICATION_FAILURE, Some(pinned)) => {
                LoginError::KeyRefused(pinned.sealing.identity.public())
            }
            (LoginStatus::AUTHORIZATION_FAILURE, Some(pinned)) => {
                LoginError::TooLittle(pinned.protection)
            }
            (LoginStatus::SERVICE_UNAVAILABLE, Some(_)) => LoginError::Unavailable,
            // It wants proof and had no way to say so: we came without credentials.
            (LoginStatus::AUTHENTICATION_FAILURE, None) if self.config.account.is_none() => {
                LoginError::NoCredentials
            }
            _ => LoginError::Refused(status),
        }
    }

    /// Takes what the target says of itself and of the operational keys; gives our answers.
    fn learn(&mut self, state: &Expect, pairs: &[Pair<'_>]) -> Result<Vec<u8>, LoginError> {
        let stage = match state {
            Expect::Security(_) => Stage::Security,
            Expect::Operational(_) => Stage::Operational,
        };
        let pairs = self.without_echoes(pairs);
        let answers = self.negotiation.receive(stage, &pairs)?;
        let tag = self.negotiation.text(Key::TargetPortalGroupTag);
        self.tag = tag.and_then(text::number).and_then(|tag| u16::try_from(tag).ok());
        let mut text = Vec::new();
        answers.iter().for_each(|(key, value)| text::push(&mut text, key, value));
        Ok(text)
    }

    fn security(
        &mut self,
        state: Security,
        response: &LoginResponse,
        pairs: &[Pair<'_>],
        heard: &Transcript,
    ) -> Result<(Expect, Pdu), LoginError> {
        let mut text = Vec::new();
        let state = state.handle(&self.config, pairs, &mut text)?;
        if !response.transit {
            let leaving = state.may_leave();
            let request = self.request(Phase::Security, text, leaving);
            return Ok((Expect::Security(state), request));
        }
        match state {
            Security::Done => Ok((Expect::Operational(None), self.propose(Vec::new()))),
            Security::UnprovenHandshake(master, protection) => {
                self.negotiation.seal(DigestWish::Seal(protection));
                let proof = master.proof(&self.transcripts(heard));
                text::push(&mut text, PROOF_KEY, &text::base64(proof.as_bytes()));
                Ok((Expect::Operational(Some(master)), self.propose(text)))
            }
            // It wants to go on without having proven itself, or without asking us to.
            _ => Err(LoginError::ChapKey("CHAP_R")),
        }
    }

    fn finish(
        mut self,
        response: &LoginResponse,
        master: Option<Box<Master>>,
        heard: &Transcript,
    ) -> Result<Progress, LoginError> {
        // RFC 7143, 11.13.3: the last response names the session.
        let other = ![0, response.tsih].contains(&self.place.tsih);
        if other || (response.tsih == 0 && !self.accept(Deviation::NoTsih)) {
            return Err(LoginError::Field("TSIH"));
        }
        let mut parameters = self.negotiation.finish()?;
        if self.deviations.iter().any(|deviation| deviation.leaves_session_unnamed()) {
            // Another connection would have to name the session that it joins (RFC 7143, 6.3.1).
            parameters.max_connections = 1;
        }
        let seals = self.seals(master.as_deref(), &parameters, heard);
        let established = Established {
            parameters,
            tsih: response.tsih,
            portal_group_tag: self.tag,
            target_alias: self.negotiation.text(Key::TargetAlias).map(str::to_owned),
            cmd_sn: self.place.cmd_sn,
            exp_cmd_sn: response.exp_cmd_sn,
            max_cmd_sn: response.max_cmd_sn,
            exp_stat_sn: response.stat_sn.wrapping_add(1),
            deviations: self.deviations,
        };
        Ok(Progress::Done(Box::new(established), seals))
    }

    /// The whole login goes into the keys, its last response included.
    fn seals(
        &self,
        master: Option<&Master>,
        parameters: &Parameters,
        heard: &Transcript,
    ) -> Option<Box<Seals>> {
        let sealing = &self.config.pinned.as_ref()?.sealing;
        let place = (parameters.seal?, self.place.cid);
        let login = self.transcripts(heard);
        Some(Box::new(Seals::new(Role::Initiator, sealing, master?, place, &login)))
    }
}
