//! Invitations, both machines and the list of the target, on virtual time (docs/spec/sealed-iscsi.md, 7).

mod common;

use std::sync::Arc;

use common::login::{ENTRANCE, closed, disk, entropy, initiator, other_disk};
use common::sealed::{CLIENT, STRANGER, TARGET, identity, pinned, sealing, sealing_target};
use proto::client::ClientId;
use proto::iscsi::header::{Header, LoginResponse};
use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::initiator::{self, InitiatorLogin, LoginError};
use proto::iscsi::login::invitations::{INVITATIONS_MAX, Invitations, IssueError, Issued};
use proto::iscsi::login::policy::{Client, Policy, UnitName};
use proto::iscsi::login::target::{self, Admission, Established, Progress, Reason, TargetLogin};
use proto::iscsi::pdu::Pdu;
use proto::iscsi::sealed::{InvitationSecret, Protection, Transcript};

const HOUR: u64 = 3600;

fn secret(byte: u8) -> InvitationSecret {
    InvitationSecret::fresh(&mut |buffer| buffer.fill(byte))
}

/// A target that lists nobody yet.
struct Server {
    config: target::Config,
    invitations: Invitations,
    now: u64,
    /// Whether the list of clients can be written.
    is_durable: bool,
}

impl Server {
    /// One that has invited `laptop` for an hour.
    fn inviting() -> Self {
        let policy = Policy::closed(vec![disk(), other_disk()], Vec::new(), Vec::new());
        let config = target::Config { policy, ..sealing_target(None) };
        let (invitations, now) = (Invitations::default(), 1000);
        let mut server = Self { config, invitations, now, is_durable: true };
        server.invite("laptop", secret(1)).unwrap();
        server
    }

    fn invite(&mut self, name: &str, secret: InvitationSecret) -> Result<(), IssueError> {
        let issued = Issued::new(name.to_owned(), self.now + HOUR, secret, invited());
        self.invitations.issue(issued, self.now)
    }

    fn begin(&self) -> TargetLogin {
        let login = TargetLogin::new(Arc::new(self.config.clone()), ENTRANCE, entropy(2));
        login.with_invitations(self.invitations.live(self.now))
    }

    /// What a front does with a login that is complete: the last response, and the session.
    fn admit(&mut self, admission: Admission) -> Result<(Pdu, Established), Pdu> {
        if let Some(id) = admission.established().invitation {
            let Some(claimed) = self.invitations.claim(id, self.now) else {
                return Err(admission.refuse(LoginStatus::AUTHENTICATION_FAILURE).response);
            };
            if !self.is_durable {
                self.invitations.give_back(claimed);
                return Err(admission.refuse(LoginStatus::TARGET_ERROR).response);
            }
            let client =
                Client { key: admission.established().key, ..claimed.invited.client.clone() };
            self.config.policy = self.config.policy.clone().with_client(client);
        }
        let (response, established, _) = admission.admit(1);
        Ok((response, established))
    }

    /// A login from its first request to its end.
    fn meet(&mut self, config: initiator::Config) -> Result<Established, LoginError> {
        let mut login = Under::way(self, config);
        while let Some(response) = login.step(self)? {
            assert!(login.hears(response)?, "the target goes on, and the initiator has ended");
        }
        Ok(login.established.expect("admitted"))
    }

    fn has_listed(&self, who: u8) -> bool {
        let key = ClientId::Key(identity(who).public());
        self.config.policy.rights(&initiator().initiator, &key, &disk()).is_some()
    }
}

/// What the invitation is for: one unit, in sessions that are encrypted.
fn invited() -> Client {
    Client {
        units: Some(vec![UnitName { target: disk(), lun: 0 }]),
        protection: Some(Protection::Encrypt),
        ..Client::default()
    }
}

/// A login, step by step.
struct Under {
    ours: Option<Box<InitiatorLogin>>,
    theirs: Option<Box<TargetLogin>>,
    request: Pdu,
    up: Transcript,
    down: Transcript,
    admission: Option<Box<Admission>>,
    established: Option<Established>,
    reason: Option<Reason>,
}

impl Under {
    fn way(server: &Server, config: initiator::Config) -> Self {
        let (ours, request) = InitiatorLogin::start(config, entropy(1));
        let (up, down) = (Transcript::default(), Transcript::default());
        let theirs = Some(Box::new(server.begin()));
        let (admission, established, reason) = (None, None, None);
        Self { ours: Some(ours), theirs, request, up, down, admission, established, reason }
    }

    /// The target takes a request; its response, if it does not admit the session yet.
    fn asks(&mut self) -> Option<Pdu> {
        let Header::LoginRequest(header) = self.request.header else { panic!("not a login") };
        self.up.add_pdu(&self.request);
        let side = self.theirs.take().expect("the target had ended");
        match side.handle(&header, &self.request.data, &self.up) {
            Progress::Continue(next, response) => {
                self.theirs = Some(next);
                Some(response)
            }
            Progress::Admit(admission) => {
                self.admission = Some(admission);
                None
            }
            Progress::Refused(refusal) => {
                self.reason = Some(refusal.reason);
                Some(refusal.response)
            }
        }
    }

    fn is_admitted(&mut self, server: &mut Server) -> Pdu {
        match server.admit(*self.admission.take().expect("complete")) {
            Ok((response, established)) => {
                self.established = Some(established);
                response
            }
            Err(response) => response,
        }
    }

    /// A request and its response; `None` after the end.
    fn step(&mut self, server: &mut Server) -> Result<Option<Pdu>, LoginError> {
        if self.ours.is_none() {
            return Ok(None);
        }
        let response = self.asks();
        Ok(Some(response.unwrap_or_else(|| self.is_admitted(server))))
    }

    /// The initiator takes a response; whether it could.
    fn hears(&mut self, response: Pdu) -> Result<bool, LoginError> {
        let Header::LoginResponse(header) = response.header else { panic!("not a login") };
        self.down.add_pdu(&response);
        let Some(ours) = self.ours.take() else { return Ok(false) };
        if let initiator::Progress::Continue(next, request) =
            ours.handle(&header, &response.data, &self.down)?
        {
            (self.ours, self.request) = (Some(next), request);
        }
        Ok(true)
    }

    /// Up to where the target would admit the session.
    fn nearly(mut self) -> Self {
        while let Some(response) = self.asks() {
            assert!(self.hears(response).unwrap());
        }
        self
    }
}

/// A client that comes with this invitation.
fn with(who: u8, invitation: Option<InvitationSecret>) -> initiator::Config {
    let mut config = pinned(Protection::Encrypt);
    let pinned = config.pinned.as_mut().unwrap();
    (pinned.sealing, pinned.invitation) = (sealing(who), invitation);
    config
}

fn status(response: &Pdu) -> LoginStatus {
    let Header::LoginResponse(LoginResponse { status_class, status_detail, .. }) = response.header
    else {
        panic!("no login response");
    };
    LoginStatus { class: status_class, detail: status_detail }
}

#[test]
fn invited_client_is_listed_with_what_it_was_invited_to() {
    let mut server = Server::inviting();
    assert!(!server.has_listed(CLIENT));
    let established = server.meet(with(CLIENT, Some(secret(1)))).unwrap();
    assert_eq!(established.proven, ClientId::Key(identity(CLIENT).public()));
    assert_eq!(established.invitation, Some(secret(1).id()));
    assert_eq!(established.visible, [disk()], "and nothing else");
    assert!(server.has_listed(CLIENT));
    // From now on it needs none.
    let again = server.meet(with(CLIENT, None)).unwrap();
    assert_eq!(again.invitation, None);
    let elsewhere = initiator::Config { target: Some(other_disk()), ..with(CLIENT, None) };
    let refused = server.meet(elsewhere).unwrap_err();
    assert_eq!(refused, LoginError::TooLittle(Protection::Encrypt));
}

/// The protection that its clients must have holds for the first session, too.
#[test]
fn invited_client_has_to_encrypt() {
    let mut server = Server::inviting();
    let mut config = with(CLIENT, Some(secret(1)));
    config.pinned.as_mut().unwrap().protection = Protection::Integrity;
    let refused = server.meet(config).unwrap_err();
    assert_eq!(refused, LoginError::TooLittle(Protection::Integrity));
    assert!(!server.has_listed(CLIENT), "nor is it listed");
    server.meet(with(CLIENT, Some(secret(1)))).unwrap();
}

/// Each row: what the client comes with, what is wrong, and what the log of the target says. All are told the same.
#[test]
fn client_without_a_good_invitation_is_refused_like_an_unlisted_key() {
    type Row = (&'static str, Option<InvitationSecret>, fn(&mut Server), fn(&Reason) -> bool);
    let unknown = |reason: &Reason| matches!(reason, Reason::Invitation { .. });
    let rows: [Row; 5] = [
        ("none", None, |_| {}, |reason| matches!(reason, Reason::UnknownKey { .. })),
        ("unknown", Some(secret(9)), |_| {}, unknown),
        ("expired", Some(secret(1)), |server| server.now += HOUR, unknown),
        (
            "withdrawn",
            Some(secret(1)),
            |server| assert!(server.invitations.withdraw("laptop")),
            unknown,
        ),
        (
            "used",
            Some(secret(1)),
            |server| drop(server.meet(with(CLIENT, Some(secret(1)))).unwrap()),
            unknown,
        ),
    ];
    for (what, invitation, change, says) in rows {
        // Another client is listed already, so that the target tells keys apart.
        let mut server = Server::inviting();
        let other = Client { key: Some(identity(99).public()), ..Client::default() };
        server.config.policy = Policy::closed(vec![disk()], vec![other], Vec::new());
        change(&mut server);
        let mut login = Under::way(&server, with(STRANGER, invitation.clone()));
        let response = login.asks().expect("refused");
        assert_eq!(status(&response), LoginStatus::AUTHENTICATION_FAILURE, "{what}");
        assert!(response.data.is_empty(), "{what}");
        assert!(login.reason.as_ref().is_some_and(says), "{what}: {:?}", login.reason);
        let told = login.hears(response).unwrap_err();
        let expected = match invitation {
            Some(_) => LoginError::InvitationRefused,
            None => LoginError::KeyRefused(identity(STRANGER).public()),
        };
        assert_eq!(told, expected, "{what}");
        assert!(!server.has_listed(STRANGER), "{what}");
    }
}

/// A second before its end it is good.
#[test]
fn invitation_is_good_until_its_end() {
    let mut server = Server::inviting();
    server.now += HOUR - 1;
    server.meet(with(CLIENT, Some(secret(1)))).unwrap();
}

/// Who has only seen the ID goes by, which is in clear, does not get past the proof; the invitation stays good.
#[test]
fn id_without_the_secret_proves_nothing() {
    /// Replaces the ID in the first request by that of the invitation.
    fn claiming(login: &mut Under) {
        let text = String::from_utf8(login.request.data.to_vec()).unwrap();
        let id = |secret: InvitationSecret| proto::iscsi::text::base64(secret.id().as_bytes());
        let replaced = text.replace(&id(secret(9)), &id(secret(1)));
        assert_ne!(replaced, text);
        let Header::LoginRequest(header) = login.request.header else { panic!("not a login") };
        login.request = Pdu::with_data(header, replaced.into_bytes().into());
    }
    let mut server = Server::inviting();
    let mut login = Under::way(&server, with(STRANGER, Some(secret(9))));
    claiming(&mut login);
    let response = login.asks().unwrap();
    assert_eq!(status(&response), LoginStatus::SUCCESS, "as far as that anybody gets");
    login.hears(response).unwrap();
    let response = login.asks().expect("refused");
    assert_eq!(
        (login.reason, status(&response)),
        (Some(Reason::Proof), LoginStatus::AUTHENTICATION_FAILURE)
    );
    assert!(!server.has_listed(STRANGER));
    server.meet(with(CLIENT, Some(secret(1)))).unwrap();
}

/// The same where nothing but the secret differs: the login is whole, and both sides name the same invitation.
#[test]
fn wrong_secret_does_not_get_past_the_proof() {
    let mut server = Server::inviting();
    let mut invited = Issued::new("guest".to_owned(), u64::MAX, secret(5), invited()).invited;
    Arc::make_mut(&mut invited).id = secret(9).id();
    let mut login = Under::way(&server, with(STRANGER, Some(secret(9))));
    let target = TargetLogin::new(Arc::new(server.config.clone()), ENTRANCE, entropy(2));
    login.theirs = Some(Box::new(target.with_invitations(vec![invited])));
    let response = login.asks().unwrap();
    assert_eq!(status(&response), LoginStatus::SUCCESS);
    login.hears(response).unwrap();
    let response = login.step(&mut server).unwrap().expect("refused");
    assert_eq!(login.reason, Some(Reason::Proof));
    assert_eq!(status(&response), LoginStatus::AUTHENTICATION_FAILURE);
    assert!(!server.has_listed(STRANGER));
}

/// The requests of a login with an invitation, sent again by somebody who has recorded them.
#[test]
fn recorded_login_with_an_invitation_is_not_admitted() {
    for is_used in [true, false] {
        let mut server = Server::inviting();
        let mut login = Under::way(&server, with(CLIENT, Some(secret(1))));
        let first = login.request.clone();
        let response = login.asks().unwrap();
        login.hears(response).unwrap();
        let second = login.request.clone();
        if is_used {
            assert!(login.asks().is_none());
            login.is_admitted(&mut server);
        }
        let again = TargetLogin::new(Arc::new(server.config.clone()), ENTRANCE, entropy(77));
        let again = again.with_invitations(server.invitations.live(server.now));
        let mut theirs = Some(Box::new(again));
        let mut heard = Transcript::default();
        let mut reason = None;
        for request in [first, second] {
            let Some(side) = theirs.take() else { break };
            let Header::LoginRequest(header) = request.header else { panic!("not a login") };
            heard.add_pdu(&request);
            match side.handle(&header, &request.data, &heard) {
                Progress::Continue(next, _) => theirs = Some(next),
                Progress::Refused(refusal) => reason = Some(refusal.reason),
                Progress::Admit(_) => panic!("admitted"),
            }
        }
        match is_used {
            true => assert!(matches!(reason, Some(Reason::Invitation { .. })), "{reason:?}"),
            false => assert_eq!(reason, Some(Reason::Proof)),
        }
    }
}

/// Both have shown the secret; whoever is admitted first is listed, and nobody else.
#[test]
fn of_two_logins_with_one_invitation_one_is_listed() {
    let mut server = Server::inviting();
    let mut ours = Under::way(&server, with(CLIENT, Some(secret(1)))).nearly();
    let mut theirs = Under::way(&server, with(STRANGER, Some(secret(1)))).nearly();
    let (won, lost) = (theirs.is_admitted(&mut server), ours.is_admitted(&mut server));
    assert_eq!(status(&won), LoginStatus::SUCCESS);
    assert_eq!(status(&lost), LoginStatus::AUTHENTICATION_FAILURE);
    assert_eq!(ours.hears(lost).unwrap_err(), LoginError::InvitationRefused);
    assert!(server.has_listed(STRANGER) && !server.has_listed(CLIENT));
}

/// It came to its end while the login was under way.
#[test]
fn invitation_that_ends_during_the_login_lists_nobody() {
    let mut server = Server::inviting();
    let mut login = Under::way(&server, with(CLIENT, Some(secret(1)))).nearly();
    server.now += HOUR;
    assert_eq!(status(&login.is_admitted(&mut server)), LoginStatus::AUTHENTICATION_FAILURE);
    assert!(!server.has_listed(CLIENT));
}

#[test]
fn invitation_stays_good_if_the_client_cannot_be_listed() {
    let mut server = Server::inviting();
    server.is_durable = false;
    let refused = server.meet(with(CLIENT, Some(secret(1)))).unwrap_err();
    assert_eq!(refused, LoginError::Refused(LoginStatus::TARGET_ERROR));
    assert!(!server.has_listed(CLIENT));
    server.is_durable = true;
    server.meet(with(CLIENT, Some(secret(1)))).unwrap();
}

/// The client does not know that it is listed; it comes again, without the invitation.
#[test]
fn client_whose_last_response_is_lost_is_listed() {
    let mut server = Server::inviting();
    let mut login = Under::way(&server, with(CLIENT, Some(secret(1)))).nearly();
    drop(login.is_admitted(&mut server));
    let refused = server.meet(with(CLIENT, Some(secret(1)))).unwrap_err();
    assert_eq!(refused, LoginError::InvitationRefused);
    server.meet(with(CLIENT, None)).unwrap();
}

/// Initiators whose names no client has come with an invitation too.
#[test]
fn invitation_lets_an_unknown_initiator_name_in() {
    let mut server = Server::inviting();
    let named =
        Client { initiator: Some(disk()), key: Some(identity(99).public()), ..Client::default() };
    server.config.policy = Policy::closed(vec![disk()], vec![named], Vec::new());
    server.meet(with(CLIENT, None)).unwrap_err();
    let refused = server.meet(with(CLIENT, Some(secret(9)))).unwrap_err();
    assert_eq!(refused, LoginError::InvitationRefused);
    server.meet(with(CLIENT, Some(secret(1)))).unwrap();
}

/// A client that is listed already is given more.
#[test]
fn listed_client_can_use_an_invitation() {
    let mut server = Server::inviting();
    server.meet(with(CLIENT, Some(secret(1)))).unwrap();
    let unit = UnitName { target: other_disk(), lun: 0 };
    let client = Client { read_only: vec![unit], units: Some(Vec::new()), ..invited() };
    let issued = Issued::new("media".to_owned(), server.now + HOUR, secret(2), client);
    server.invitations.issue(issued, server.now).unwrap();
    let elsewhere =
        || initiator::Config { target: Some(other_disk()), ..with(CLIENT, Some(secret(2))) };
    assert_eq!(server.meet(elsewhere()).unwrap().visible, [disk(), other_disk()]);
    assert_eq!(server.meet(with(CLIENT, None)).unwrap().visible, [disk(), other_disk()]);
}

/// RFC 7143, 6.3: declared once, and a value that is none is an error of form.
#[test]
fn malformed_ids_are_refused() {
    for (extra, expected) in [
        ("X-dev.longhaul.invitation=0bAAAA\0", Reason::MalformedKey("X-dev.longhaul.invitation")),
        ("X-dev.longhaul.invitation=AAAA\0", Reason::MalformedKey("X-dev.longhaul.invitation")),
    ] {
        let server = Server::inviting();
        let mut login = Under::way(&server, with(CLIENT, None));
        let Header::LoginRequest(header) = login.request.header else { panic!("not a login") };
        let text = [&*login.request.data, extra.as_bytes()].concat();
        login.request = Pdu::with_data(header, text.into());
        let response = login.asks().expect("refused");
        assert_eq!(
            (login.reason, status(&response)),
            (Some(expected), LoginStatus::INITIATOR_ERROR)
        );
    }
    let server = Server::inviting();
    let mut login = Under::way(&server, with(CLIENT, Some(secret(1))));
    let Header::LoginRequest(header) = login.request.header else { panic!("not a login") };
    let id = proto::iscsi::text::base64(secret(1).id().as_bytes());
    let extra = format!("X-dev.longhaul.invitation={id}\0");
    let text = [&*login.request.data, extra.as_bytes()].concat();
    login.request = Pdu::with_data(header, text.into());
    login.asks().expect("refused");
    assert_eq!(login.reason, Some(Reason::Repeated("X-dev.longhaul.invitation")));
}

/// A target that does not know the key refuses the proof, which has the secret in it.
#[test]
fn target_without_invitations_refuses_all() {
    let mut server = Server::inviting();
    server.invitations = Invitations::default();
    server.config = closed(common::login::account("alice"));
    server.meet(with(CLIENT, Some(secret(1)))).unwrap_err();
    server.config = target::Config { sealing: Some(sealing(TARGET)), ..server.config };
    server.meet(with(CLIENT, Some(secret(1)))).unwrap_err();
}

#[test]
fn invitations_are_bounded_and_their_names_differ() {
    let mut server = Server::inviting();
    assert_eq!(server.invite("laptop", secret(2)), Err(IssueError::Taken));
    for number in 1..INVITATIONS_MAX {
        server.invite(&format!("n{number}"), secret(number as u8 + 10)).unwrap();
    }
    assert_eq!(server.invite("more", secret(200)), Err(IssueError::Full));
    assert_eq!(server.invitations.good(server.now).count(), INVITATIONS_MAX);
    // Those that have ended make room.
    server.now += HOUR;
    server.invite("more", secret(200)).unwrap();
    assert_eq!(server.invitations.good(server.now).count(), 1);
}
