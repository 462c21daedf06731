//! The initiator's side of a login.
//!
//! It takes as few round trips as the standard allows: one without authentication, since the
//! security stage may be skipped (RFC 7143, 6.3.1), four with CHAP.

mod security;

use super::{EXCHANGES_MAX, LoginStatus, Phase, VERSION, is_security, value};
use crate::iscsi::chap::{Account, Algorithm, Challenge, ChapError};
use crate::iscsi::header::{LoginRequest, LoginResponse};
use crate::iscsi::keys::{Key, Offer, Parameters, Role};
use crate::iscsi::name::{IscsiName, Isid};
use crate::iscsi::negotiation::{Negotiation, Stage, Violation};
use crate::iscsi::pdu::Pdu;
use crate::iscsi::text::{self, Assembly, Pair, TextError};
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
    /// The algorithms it takes for CHAP, best first.
    pub algorithms: Vec<Algorithm>,
    /// What it asks for.
    pub offer: Offer,
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
    assembly: Assembly,
    negotiation: Negotiation,
    /// Whether the last request asked for the next stage.
    asked: bool,
    exp_stat_sn: Option<u32>,
    exchanges: u32,
    tag: Option<u16>,
}

#[derive(Debug)]
enum Expect {
    /// In the security stage.
    Security(Security),
    /// In the operational stage.
    Operational,
}

/// What comes of a response.
#[derive(Debug)]
pub enum Progress {
    /// Send the request; the login goes on.
    Continue(Box<InitiatorLogin>, Pdu),
    /// The session is there.
    Done(Box<Established>),
}

/// Why a login failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The target is at another address (RFC 7143, 11.13.5: class 1).
    #[error("the target has moved to {address}")]
    Moved {
        /// Where to: `host[:port][,tag]`.
        address: String,
        /// For good.
        permanently: bool,
    },
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
    /// A step of CHAP lacks a key, or has it malformed.
    #[error("the target sent no usable {0}")]
    ChapKey(&'static str),
    /// It chose a method or algorithm that was not offered.
    #[error("the target chose {0}, which was not offered")]
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
    /// What was agreed.
    pub parameters: Parameters,
    /// The target's part of the session's name.
    pub tsih: u16,
    /// The portal group this connection came in by.
    pub portal_group_tag: Option<u16>,
    /// What the target calls itself.
    pub target_alias: Option<String>,
    /// The CmdSN of the first command.
    pub cmd_sn: u32,
    /// The last CmdSN the target has room for.
    pub max_cmd_sn: u32,
    /// The StatSN that comes next.
    pub exp_stat_sn: u32,
}

/// The one connection of the session.
pub const CID: u16 = 0;

/// Where command numbers begin.
const FIRST_CMD_SN: u32 = 1;

impl InitiatorLogin {
    /// Begins a login: the first request. The challenge is a fresh one, for mutual CHAP.
    #[must_use]
    pub fn start(config: Config, challenge: Challenge) -> (Box<Self>, Pdu) {
        let mut negotiation = Negotiation::new(Role::Initiator, config.offer.clone());
        if config.target.is_none() {
            negotiation.in_discovery();
        }
        let mut text = config.identity();
        let state = match &config.account {
            Some(account) => Expect::Security(Security::start(account, challenge, &mut text)),
            None => Expect::Operational,
        };
        let mut common = Common {
            config,
            assembly: Assembly::default(),
            negotiation,
            asked: false,
            exp_stat_sn: None,
            exchanges: 0,
            tag: None,
        };
        let request = match state {
            Expect::Security(_) => common.request(Phase::Security, text, false),
            Expect::Operational => common.propose(text),
        };
        (Box::new(Self { common, state }), request)
    }

    /// Takes the next Login Response.
    pub fn handle(
        mut self: Box<Self>,
        response: &LoginResponse,
        data: &[u8],
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
            Expect::Security(state) => common.security(state, response, &security)?,
            Expect::Operational if response.transit => {
                return common.finish(response).map(Box::new).map(Progress::Done);
            }
            Expect::Operational => {
                let request = common.request(Phase::Operational, answers, true);
                (Expect::Operational, request)
            }
        };
        Ok(Progress::Continue(Box::new(Self { common, state }), request))
    }
}

impl Expect {
    const fn phase(&self) -> Phase {
        match self {
            Self::Security(_) => Phase::Security,
            Self::Operational => Phase::Operational,
        }
    }
}

impl Config {
    /// Who we are and what we want, which the first request says (RFC 7143, 6.3.1).
    fn identity(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut push = |key: Key, value: &str| text::push(&mut text, key.spec().name, value);
        push(Key::InitiatorName, self.initiator.as_str());
        match &self.target {
            Some(target) => {
                push(Key::SessionType, "Normal");
                push(Key::TargetName, target.as_str());
            }
            None => push(Key::SessionType, "Discovery"),
        }
        text
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
            tsih: 0,
            itt: 0,
            cid: CID,
            cmd_sn: FIRST_CMD_SN,
            exp_stat_sn: self.exp_stat_sn.unwrap_or_default(),
        };
        Pdu::with_data(header, text.into())
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
                return Err(moved(status, data));
            }
            // The target wants CHAP and had no way to say so: we came without credentials.
            LoginStatus::AUTHENTICATION_FAILURE if self.config.account.is_none() => {
                return Err(LoginError::NoCredentials);
            }
            _ => return Err(LoginError::Refused(status)),
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
        match () {
            () if response.itt != 0 => Err(LoginError::Field("task tag")),
            () if response.isid != self.config.isid.0 => Err(LoginError::Field("ISID")),
            () if response.version_active != VERSION => Err(LoginError::Field("version")),
            () if response.current_stage != phase.bits() => Err(LoginError::Field("stage")),
            () if !transit => Err(LoginError::Field("transition")),
            () => Ok(()),
        }
    }

    /// Takes what the target says of itself and of the operational keys; gives our answers.
    fn learn(&mut self, state: &Expect, pairs: &[Pair<'_>]) -> Result<Vec<u8>, LoginError> {
        let stage = match state {
            Expect::Security(_) => Stage::Security,
            Expect::Operational => Stage::Operational,
        };
        let answers = self.negotiation.receive(stage, pairs)?;
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
    ) -> Result<(Expect, Pdu), LoginError> {
        let mut text = Vec::new();
        let state = state.handle(&self.config, pairs, &mut text)?;
        if !response.transit {
            let leaving = state.may_leave();
            let request = self.request(Phase::Security, text, leaving);
            return Ok((Expect::Security(state), request));
        }
        match state {
            Security::Done => Ok((Expect::Operational, self.propose(Vec::new()))),
            // It wants to go on without having proven itself, or without asking us to.
            _ => Err(LoginError::ChapKey("CHAP_R")),
        }
    }

    fn finish(self, response: &LoginResponse) -> Result<Established, LoginError> {
        // RFC 7143, 11.13.3: the last response names the session.
        if response.tsih == 0 {
            return Err(LoginError::Field("TSIH"));
        }
        Ok(Established {
            parameters: self.negotiation.finish()?,
            tsih: response.tsih,
            portal_group_tag: self.tag,
            target_alias: self.negotiation.text(Key::TargetAlias).map(str::to_owned),
            cmd_sn: FIRST_CMD_SN,
            max_cmd_sn: response.max_cmd_sn,
            exp_stat_sn: response.stat_sn.wrapping_add(1),
        })
    }
}

/// A redirection carries the address as text, in any stage (RFC 7143, 11.13.5).
fn moved(status: LoginStatus, data: &[u8]) -> LoginError {
    match text::parse(data).map(|pairs| value(&pairs, "TargetAddress").map(str::to_owned)) {
        Ok(Some(address)) => {
            LoginError::Moved { address, permanently: status == LoginStatus::MOVED_PERMANENTLY }
        }
        _ => LoginError::Field("redirection without TargetAddress"),
    }
}
