//! The target's side of a login.

mod admission;
mod reason;
mod security;

use std::sync::Arc;

use bytes::Bytes;

use super::invitations::Invited;
use super::policy::{Client, Demand, Policy};
use super::{
    EXCHANGES_MAX, Entropy, LoginStatus, Phase, SECURITY_KEYS, VERSION, is_security, value,
};
use crate::client::ClientId;
use crate::identity::PublicKey;
use crate::iscsi::header::{LoginRequest, LoginResponse};
use crate::iscsi::keys::{DigestWish, Key, Offer, Role};
use crate::iscsi::name::{IscsiName, Isid};
use crate::iscsi::negotiation::{Negotiation, Stage};
use crate::iscsi::pdu::{DATA_MAX_DEFAULT, Pdu};
use crate::iscsi::sealed::{PROOF_KEY, Protection, Sealing, Transcript, Transcripts};
use crate::iscsi::text::{self, Assembly, Pair};
use admission::Seal;
pub use admission::{Admission, Established};
pub use reason::Reason;
use security::{Security, UnprovenHandshake, binary};

/// What a target node brings to every login.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who may use what.
    pub policy: Policy,
    /// What it asks for.
    pub offer: Offer,
    /// What it seals sessions with; without it none is.
    pub sealing: Option<Sealing>,
    /// How many commands a new session may have on their way.
    pub command_window: u32,
    /// The longest text of a login.
    pub text_max: usize,
}

/// What the portal that a connection came in by says of its login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortalRules {
    /// Its portal group (RFC 7143, 13.9).
    pub portal_group_tag: u16,
    /// How sessions must be sealed, at least, whatever they want.
    pub demanded: Option<Protection>,
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
    entrance: PortalRules,
    /// The invitations that were good when the login began.
    live: Vec<Arc<Invited>>,
    assembly: Assembly,
    negotiation: Negotiation,
    /// The keys of authentication that have come.
    security_keys: Vec<&'static str>,
    /// What the first request fixed; `None` before it.
    ids: Option<Ids>,
    stat_sn: u32,
    exchanges: u32,
    /// The portal group tag or the segment length has been declared.
    tag_sent: bool,
    segment_sent: bool,
    /// All responses so far, and the hash of all requests.
    sent: Transcript,
    heard: Transcript,
}

/// What stays the same in every request of a login (RFC 7143, 11.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ids {
    isid: [u8; 6],
    tsih: u16,
    cid: u16,
    itt: u32,
    /// That of a new session; in one that is there, commands by other connections move it on (11.12.8).
    cmd_sn: Option<u32>,
}

#[derive(Debug)]
enum Expect {
    /// The first request says who is there; random values wait for it.
    First(Entropy),
    /// The security stage goes on.
    Security(Box<Peer>, Security),
    /// The operational stage of a session to be sealed, which begins with the initiator's proof.
    Proof(Box<Peer>, Box<UnprovenHandshake>),
    /// The operational stage.
    Operational(Box<Peer>, Grant),
}

/// Who wants what, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Who it is.
    pub initiator: IscsiName,
    /// What it wants to use; `None` for a discovery session.
    pub target: Option<IscsiName>,
}

/// What a peer has proven, and the targets it may use.
#[derive(Debug)]
struct Grant {
    proven: ClientId,
    visible: Vec<IscsiName>,
    /// The handshake that names it, if its session is to be sealed.
    shaken: Option<Box<UnprovenHandshake>>,
}

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
    /// Whose, if it has said so.
    pub peer: Option<Peer>,
}

/// The response to anything but a Login Request before a login that has begun has ended (RFC 7143, 4.2.4).
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
    /// A login on a new connection. The entropy is fresh, for the method it comes to.
    #[must_use]
    pub fn new(config: Arc<Config>, entrance: PortalRules, entropy: Entropy) -> Self {
        let common = Common {
            negotiation: Negotiation::new(Role::Target, config.offer.clone()),
            assembly: Assembly::of_at_most(config.text_max),
            config,
            entrance,
            live: Vec::new(),
            security_keys: Vec::new(),
            ids: None,
            stat_sn: 0,
            exchanges: 0,
            tag_sent: false,
            segment_sent: false,
            sent: Transcript::default(),
            heard: Transcript::default(),
        };
        Self { common, state: Expect::First(entropy) }
    }

    /// The same login, to which clients can come with one of these invitations, too. Whoever admits one that did has to
    /// claim it first: another login may have been faster.
    #[must_use]
    pub fn with_invitations(mut self, live: Vec<Arc<Invited>>) -> Self {
        self.common.live = live;
        self
    }

    /// Who is logging in, if it has said so.
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        self.common.meet().ok()
    }

    /// Whether the initiator has proven who it is.
    #[must_use]
    pub fn has_proven(&self) -> bool {
        matches!(&self.state, Expect::Operational(_, grant) if grant.proven != ClientId::Unauthenticated)
    }

    /// Takes the next Login Request; `heard` is all the initiator has sent, this request included.
    #[must_use]
    pub fn handle(mut self, request: &LoginRequest, data: &[u8], heard: &Transcript) -> Progress {
        // The proof covers what came before the text that carries it.
        if let Expect::Proof(_, shaken) = &mut self.state {
            shaken.before.get_or_insert_with(|| self.common.transcripts());
        }
        self.common.heard = heard.clone();
        let response = self.common.response_to(request);
        let mut peer = self.peer();
        match self.step(request, data, response, &mut peer) {
            Ok(Progress::Continue(mut next, response)) => {
                next.common.sent.add_pdu(&response);
                Progress::Continue(next, response)
            }
            Ok(progress) => progress,
            Err(reason) => Progress::Refused(refuse(response, reason, peer)),
        }
    }

    fn step(
        mut self,
        request: &LoginRequest,
        data: &[u8],
        response: LoginResponse,
        peer: &mut Option<Peer>,
    ) -> Result<Progress, Reason> {
        let (phase, next) = self.common.check(&self.state, request)?;
        let Some(text) = self.common.assembly.add(data, request.continues)? else {
            // The rest is asked for with an empty response (RFC 7143, 6.2).
            return Ok(Progress::Continue(Box::new(self), Pdu::bare(response)));
        };
        let Self { mut common, state } = self;
        let turn = common.turn(state, phase, next, &text::parse(&text)?);
        // A first request that is refused has said who it is, too.
        *peer = common.meet().ok();
        let (turn, text) = turn?;
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
                let (established, seal) = common.establish(*peer, grant, request)?;
                Progress::Admit(Box::new(Admission { response, text, established, seal }))
            }
        })
    }
}

impl Common {
    fn response_to(&mut self, request: &LoginRequest) -> LoginResponse {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(1);
        // A Login Request is immediate: it takes no CmdSN (RFC 7143, 11.12.8).
        let exp_cmd_sn = request.cmd_sn;
        let max_cmd_sn = match request.tsih {
            0 => exp_cmd_sn.wrapping_add(self.config.command_window).wrapping_sub(1),
            // The numbers of a session that is there are its own affair until the connection has joined it: the last
            // response has them. Until then these are such that both are ignored (4.2.2.1).
            _ => exp_cmd_sn.wrapping_sub(2),
        };
        LoginResponse {
            current_stage: request.current_stage,
            version_max: VERSION,
            version_active: VERSION,
            isid: request.isid,
            tsih: request.tsih,
            itt: request.itt,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
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
        let ids = Ids { isid, tsih, cid, itt, cmd_sn: (tsih == 0).then_some(cmd_sn) };
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
            Expect::Proof(..) | Expect::Operational(..) => phase == Phase::Operational,
        };
        let next = match request.transit {
            true => Some(Phase::from_bits(request.next_stage).ok_or(Reason::Stage)?),
            false => None,
        };
        // RFC 7143, 6.3 and 11.12.2: forward only, and not in the middle of a text.
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
        let (security, operational): (Vec<_>, Vec<_>) =
            match phase == Phase::Security || matches!(state, Expect::Proof(..)) {
                true => pairs.iter().copied().partition(is_security),
                false => (Vec::new(), pairs.to_vec()),
            };
        if matches!(state, Expect::First(_)) {
            self.learn_session_type(&operational)?;
            if self.ids.is_some_and(|ids| ids.tsih != 0) {
                self.negotiation.joins();
            }
        }
        let stage = match phase {
            Phase::Security => Stage::Security,
            Phase::Operational | Phase::FullFeature => Stage::Operational,
        };
        let answers = self.negotiation.receive(stage, &operational)?;
        self.note_security(&security)?;
        let mut text = Vec::new();
        let turn = match state {
            Expect::First(entropy) => {
                let peer = Box::new(self.meet()?);
                if phase == Phase::Security {
                    let state = Security::ExpectMethod(entropy);
                    self.security(peer, state, &security, next, &mut text)?
                } else {
                    let grant = self.grant_unproven(&peer)?;
                    operational_turn(peer, grant, next)
                }
            }
            Expect::Security(peer, state) => {
                self.security(peer, state, &security, next, &mut text)?
            }
            Expect::Proof(peer, shaken) => {
                let grant = self.check_proof(&peer, shaken, &security)?;
                operational_turn(peer, grant, next)
            }
            Expect::Operational(peer, grant) => operational_turn(peer, grant, next),
        };
        answers.iter().for_each(|(key, value)| text::push(&mut text, key, value));
        self.declare(phase, &mut text);
        Ok((turn, text))
    }

    /// RFC 7143, 6.3: no key is declared twice in a login. Of two values one would count, and whoever looks
    /// at the login on its way could take the other for it.
    fn note_security(&mut self, pairs: &[Pair<'_>]) -> Result<(), Reason> {
        for pair in pairs {
            let Some(key) = SECURITY_KEYS.into_iter().find(|key| *key == pair.key) else {
                continue;
            };
            if self.security_keys.contains(&key) {
                return Err(Reason::Repeated(key));
            }
            self.security_keys.push(key);
        }
        Ok(())
    }

    fn security(
        &mut self,
        peer: Box<Peer>,
        state: Security,
        pairs: &[Pair<'_>],
        next: Option<Phase>,
        answers: &mut Vec<u8>,
    ) -> Result<Turn, Reason> {
        let known = (&*self.config, &*self.live);
        let state = state.handle(known, &peer.initiator, pairs, next.is_some(), answers)?;
        match (state, next) {
            (Security::Proven(proven), Some(next)) => {
                let grant = self.grant(&peer, proven, None)?;
                Ok(match next {
                    Phase::FullFeature => Turn::Complete(peer, grant),
                    _ => Turn::Follow(Expect::Operational(peer, grant)),
                })
            }
            (Security::UnprovenHandshake(shaken), Some(Phase::Operational)) => {
                self.negotiation.seal(DigestWish::AnySeal);
                Ok(Turn::Follow(Expect::Proof(peer, shaken)))
            }
            // Without the operational stage there is no agreement on a seal.
            (Security::UnprovenHandshake(_), Some(_)) => Err(Reason::Stage),
            // T is answered with T=0 where more is to be said (RFC 7143, 6.3.2).
            (state, _) => Ok(Turn::Stay(Expect::Security(peer, state))),
        }
    }

    /// Nothing is granted before it is clear that the client is there now.
    fn check_proof(
        &mut self,
        peer: &Peer,
        shaken: Box<UnprovenHandshake>,
        pairs: &[Pair<'_>],
    ) -> Result<Grant, Reason> {
        let theirs = binary(pairs, PROOF_KEY)?;
        let before = shaken.before.ok_or(Reason::Proof)?;
        if !shaken.master.proof(&before).is(&theirs) {
            return Err(Reason::Proof);
        }
        if let Some(invited) = &shaken.invited {
            self.list(invited, shaken.client);
        }
        let proven = ClientId::Key(shaken.client);
        self.grant(peer, proven, Some(shaken))
    }

    /// For this login the client is listed already, as it will be for others once it is admitted.
    fn list(&mut self, invited: &Invited, key: PublicKey) {
        let client = Client { key: Some(key), ..invited.client.clone() };
        let config = Arc::make_mut(&mut self.config);
        config.policy = std::mem::take(&mut config.policy).with_client(client);
    }

    /// Everything both sides have sent so far.
    fn transcripts(&self) -> Transcripts {
        Transcripts { initiator: self.heard.hash(), target: self.sent.hash() }
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
        // A rule for a client names it by a well-formed name, which one that is not never equals.
        let initiator = IscsiName::tolerant(text(Key::InitiatorName)?)?;
        let target = match self.negotiation.text(Key::SessionType) {
            Some("Discovery") => None,
            _ => Some(IscsiName::new(text(Key::TargetName)?)?),
        };
        Ok(Peer { initiator, target })
    }

    /// An initiator that skips the security stage proves nothing (RFC 7143, 6.3.1).
    fn grant_unproven(&self, peer: &Peer) -> Result<Grant, Reason> {
        match self.config.policy.demands(&peer.initiator) {
            Demand::Nothing => self.grant(peer, ClientId::Unauthenticated, None),
            Demand::Proof => Err(Reason::NoMethod),
            Demand::Impossible => Err(Reason::NotAllowed(peer.initiator.clone())),
        }
    }

    /// Which targets a peer may use, now that it is known; the one it asks for must be among them.
    fn grant(
        &self,
        peer: &Peer,
        proven: ClientId,
        shaken: Option<Box<UnprovenHandshake>>,
    ) -> Result<Grant, Reason> {
        let policy = &self.config.policy;
        if policy.pauses(&peer.initiator, &proven) {
            return Err(Reason::Paused(peer.initiator.clone()));
        }
        let visible = policy.visible(&peer.initiator, &proven);
        match &peer.target {
            Some(target) if !policy.has(target) => Err(Reason::NotFound(target.clone())),
            Some(target) if !visible.contains(target) => {
                Err(Reason::NotAllowed(peer.initiator.clone()))
            }
            _ => Ok(Grant { proven, visible, shaken }),
        }
    }

    /// What this side says of itself, each once.
    fn declare(&mut self, phase: Phase, text: &mut Vec<u8>) {
        // RFC 7143, 13.9: in the first response to a login that names a target.
        let named = self.negotiation.text(Key::TargetName).is_some();
        if named && !std::mem::replace(&mut self.tag_sent, true) {
            let tag = self.entrance.portal_group_tag.to_string();
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
    ) -> Result<(Established, Option<Seal>), Reason> {
        let parameters = self.negotiation.finish()?;
        self.check_seal(&peer, &grant.proven, parameters.seal)?;
        let established = Established {
            initiator: peer.initiator,
            isid: Isid(request.isid),
            tsih: request.tsih,
            cid: request.cid,
            target: peer.target,
            proven: grant.proven,
            visible: grant.visible,
            key: grant.shaken.as_ref().map(|shaken| shaken.client),
            invitation: grant.shaken.as_ref().and_then(|shaken| Some(shaken.invited.as_ref()?.id)),
            parameters,
            exp_cmd_sn: request.cmd_sn,
            stat_sn: self.stat_sn,
        };
        let Self { sent, heard, config, .. } = self;
        let seal = grant.shaken.map(|shaken| Seal { shaken, sent, heard, config });
        Ok((established, seal))
    }

    /// Whether the session is sealed as the portal, the volume and what the policy says of the initiator demand.
    fn check_seal(
        &self,
        peer: &Peer,
        proven: &ClientId,
        offered: Option<Protection>,
    ) -> Result<(), Reason> {
        let policy = &self.config.policy;
        let volume = peer.target.as_ref().and_then(|name| policy.demanded(name));
        let client = policy.demanded_of(&peer.initiator, proven);
        match self.entrance.demanded.max(volume).max(client) {
            Some(demanded) if offered < Some(demanded) => {
                Err(Reason::Protection { offered, demanded })
            }
            _ => Ok(()),
        }
    }
}

fn operational_turn(peer: Box<Peer>, grant: Grant, next: Option<Phase>) -> Turn {
    match next {
        Some(_) => Turn::Complete(peer, grant),
        None => Turn::Stay(Expect::Operational(peer, grant)),
    }
}

fn refuse(response: LoginResponse, reason: Reason, peer: Option<Peer>) -> Refusal {
    let status = reason.status();
    let response = LoginResponse {
        // RFC 7143, 6.3.1: reserved in a Login reject.
        transit: false,
        current_stage: 0,
        next_stage: 0,
        status_class: status.class,
        status_detail: status.detail,
        ..response
    };
    Refusal { response: Pdu::bare(response), reason, peer }
}
