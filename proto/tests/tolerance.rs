//! What a peer may get wrong since nobody loses by it, and what it may not.

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::login::{ENTRANCE, account, closed, disk, entropy, initiator, target_config};
use common::sealed::pinned;
use proto::iscsi::header::{Header, LoginRequest, LoginResponse};
use proto::iscsi::keys::Key;
use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::initiator::{
    Config, Deviation, Established, InitiatorLogin, LoginError, LoginPurpose, Progress,
};
use proto::iscsi::login::policy::{Client, Policy};
use proto::iscsi::login::target::{self, TargetLogin};
use proto::iscsi::name::{IscsiName, Isid};
use proto::iscsi::negotiation::Violation;
use proto::iscsi::sealed::{Protection, Transcript};
use proto::iscsi::text;

/// The only response of a login without authentication, as the standard has it.
fn last_response() -> LoginResponse {
    LoginResponse {
        transit: true,
        current_stage: 1,
        next_stage: 3,
        isid: initiator().isid.0,
        tsih: 1,
        exp_cmd_sn: 1,
        max_cmd_sn: 8,
        ..LoginResponse::default()
    }
}

/// What an initiator makes of the only response to its login.
fn answer(
    config: Config,
    response: &LoginResponse,
    text: &[u8],
) -> Result<Box<Established>, LoginError> {
    let (login, _) = InitiatorLogin::start(config, entropy(1));
    match login.handle(response, text, &Transcript::default())? {
        Progress::Done(established, _) => Ok(established),
        Progress::Continue(..) => panic!("the login goes on"),
    }
}

#[test]
fn a_target_that_keeps_the_rules_deviates_from_none() {
    let session = answer(initiator(), &last_response(), b"MaxConnections=1\0").unwrap();
    assert_eq!(session.deviations, []);
    assert!(session.can_be_reinstated());
}

/// RFC 7143, 11.13: the ISID of the response is that of the request. Then a later login under it may not end this
/// session (6.3.5), nor another connection join it.
#[test]
fn a_response_with_another_isid_is_accepted_and_its_session_cannot_be_reinstated() {
    let response = LoginResponse { isid: [0; 6], ..last_response() };
    let session = answer(initiator_of_several(), &response, b"MaxConnections=4\0").unwrap();
    assert_eq!(session.deviations, [Deviation::OtherIsid]);
    assert!(!session.can_be_reinstated());
    assert_eq!(session.parameters.max_connections, 1);
}

/// RFC 7143, 11.13.3: the last response names the session.
#[test]
fn a_login_that_ends_with_tsih_zero_is_accepted_and_has_one_connection() {
    let response = LoginResponse { tsih: 0, ..last_response() };
    let session = answer(initiator_of_several(), &response, b"MaxConnections=4\0").unwrap();
    assert_eq!(session.deviations, [Deviation::NoTsih]);
    assert!(!session.can_be_reinstated());
    assert_eq!(session.parameters.max_connections, 1);
    let named = answer(initiator_of_several(), &last_response(), b"MaxConnections=4\0").unwrap();
    assert_eq!(named.parameters.max_connections, 4);
}

/// A connection that joins a session names it, and the response has to fit.
#[test]
fn a_connection_that_joins_accepts_neither() {
    let place = LoginPurpose { tsih: 1, cid: 1, cmd_sn: 1 };
    for (response, wrong) in [
        (LoginResponse { isid: [0; 6], ..last_response() }, "ISID"),
        (LoginResponse { tsih: 0, ..last_response() }, "TSIH"),
        (LoginResponse { tsih: 2, ..last_response() }, "TSIH"),
    ] {
        let (login, _) = InitiatorLogin::join(initiator(), place, entropy(1));
        let ended = login.handle(&response, b"", &Transcript::default());
        let found = ended.map(drop).unwrap_err();
        assert_eq!(found, LoginError::Field(wrong));
    }
}

/// RFC 7143, 13.4, 13.5 and 13.21: these are the initiator's to send. What it sent may come back, nothing else.
#[test]
fn a_target_may_repeat_what_it_was_asked() {
    let name = initiator().initiator;
    let echo = format!("TargetName={}\0InitiatorName={name}\0SessionType=Normal\0", disk());
    let session = answer(initiator(), &last_response(), echo.as_bytes()).unwrap();
    let echoed = [Key::TargetName, Key::InitiatorName, Key::SessionType].map(Deviation::Echo);
    assert_eq!(session.deviations, echoed);
    assert!(session.can_be_reinstated(), "that says nothing of its name");
    for (other, key) in [
        ("TargetName=iqn.2026-11.dev.longhaul:other\0", Key::TargetName),
        ("SessionType=Discovery\0", Key::SessionType),
        ("InitiatorName=iqn.2026-11.dev.longhaul:else\0", Key::InitiatorName),
        ("InitiatorAlias=me\0", Key::InitiatorAlias),
    ] {
        let refused = answer(initiator(), &last_response(), other.as_bytes()).unwrap_err();
        assert_eq!(refused, LoginError::Violation(Violation::NotNow(key)), "{other}");
    }
}

/// RFC 7143, 4.2.7: a name begins with iqn., eui. or naa.; a target may have any, and is told it as it was written.
#[test]
fn a_target_may_have_any_name() {
    let odd = Some(IscsiName::as_written("Disk0").unwrap());
    let config = Config { target: odd, ..initiator() };
    let (_, request) = InitiatorLogin::start(config.clone(), entropy(1));
    let pairs = text::parse(&request.data).unwrap();
    assert!(pairs.iter().any(|pair| (pair.key, pair.value) == ("TargetName", "Disk0")));
    let session = answer(config, &last_response(), b"").unwrap();
    assert_eq!(session.deviations, [Deviation::TargetName]);
}

/// What a target whose key is pinned gets wrong was changed on its way.
#[test]
fn nothing_is_tolerated_of_a_pinned_target() {
    let response =
        LoginResponse { current_stage: 0, next_stage: 1, isid: [0; 6], tsih: 0, ..last_response() };
    let (login, _) = InitiatorLogin::start(pinned(Protection::Encrypt), entropy(1));
    let ended = login.handle(&response, b"", &Transcript::default());
    assert_eq!(ended.map(drop).unwrap_err(), LoginError::Field("ISID"));
}

fn initiator_of_several() -> Config {
    let mut config = initiator();
    config.offer.max_connections = 8;
    config
}

/// The first request of a login to a target, with this name; gives the name it is known by, or why it is refused.
fn greet(config: target::Config, name: &str) -> Result<IscsiName, LoginStatus> {
    let request = LoginRequest {
        transit: true,
        current_stage: 1,
        next_stage: 3,
        isid: Isid::random([1, 2, 3], 4).0,
        ..LoginRequest::default()
    };
    let text = format!("InitiatorName={name}\0TargetName={}\0", disk());
    let login = TargetLogin::new(Arc::new(config), ENTRANCE, entropy(1));
    match login.handle(&request, text.as_bytes(), &Transcript::default()) {
        target::Progress::Admit(admission) => Ok(admission.admit(1).1.initiator),
        target::Progress::Refused(refusal) => match refusal.response.header {
            Header::LoginResponse(LoginResponse {
                status_class: class,
                status_detail: detail,
                ..
            }) => Err(LoginStatus { class, detail }),
            other => panic!("{other:?}"),
        },
        target::Progress::Continue(..) => panic!("the login goes on"),
    }
}

/// RFC 7143, 4.2.7: names that are not well formed are taken where no rule is for a name; those that are have one form.
#[test]
fn an_initiator_may_have_any_name_where_no_rule_depends_on_it() {
    let greeted = |name| greet(target_config(), name).map(|name| name.to_string());
    assert_eq!(greeted("me"), Ok("me".to_owned()));
    assert_eq!(greeted("iqn.example:Host_1"), Ok("iqn.example:Host_1".to_owned()));
    assert_eq!(greeted("IQN.2001-04.com.Example"), Ok("iqn.2001-04.com.example".to_owned()));
    for bad in ["a b", "a\u{1b}b", "a,i,0x800000000001", &"x".repeat(224)] {
        assert_eq!(greeted(bad), Err(LoginStatus::INITIATOR_ERROR), "{bad:?}");
    }
}

#[test]
fn a_rule_for_a_name_admits_no_other() {
    let named = |name: &str| {
        let client = Client { initiator: Some(IscsiName::new(name).unwrap()), ..Client::default() };
        let policy = Policy::closed(vec![disk()], vec![client], vec![]);
        target::Config { policy, ..target_config() }
    };
    let name = "iqn.2001-04.com.example:a";
    assert!(greet(named(name), "iqn.2001-04.com.example:A").is_ok());
    for other in ["iqn.2001-04.com.example:a/", "a", "xiqn.2001-04.com.example:a"] {
        let refused = greet(named(name), other).unwrap_err();
        assert_eq!(refused, LoginStatus::AUTHORIZATION_FAILURE, "{other}");
    }
    // Who has to prove himself has to, whatever he is called.
    let refused = greet(closed(account("alice")), "me").unwrap_err();
    assert_eq!(refused, LoginStatus::AUTHENTICATION_FAILURE);
}

/// RFC 7143, 13: MaxBurstLength and others are irrelevant in a discovery session, which some initiators do not want to
/// hear. They ask, and are told a value.
#[test]
fn a_discovery_session_is_answered_with_values() {
    let login = TargetLogin::new(Arc::new(target_config()), ENTRANCE, entropy(1));
    let request =
        LoginRequest { transit: true, current_stage: 1, next_stage: 3, ..LoginRequest::default() };
    let asked =
        b"InitiatorName=iqn.2001-04.com.example:a\0SessionType=Discovery\0MaxConnections=1\0\
        InitialR2T=Yes\0ImmediateData=Yes\0MaxBurstLength=262144\0FirstBurstLength=65536\0\
        MaxOutstandingR2T=1\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0";
    let target::Progress::Admit(admission) = login.handle(&request, asked, &Transcript::default())
    else {
        panic!("not admitted")
    };
    let (response, ..) = admission.admit(1);
    let said: Bytes = response.data;
    let pairs = text::parse(&said).unwrap();
    assert!(pairs.iter().all(|pair| pair.value != "Irrelevant"), "{pairs:?}");
    let value = |key| pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value);
    assert_eq!(value("MaxBurstLength"), Some("262144"));
    assert_eq!(value("ImmediateData"), Some("Yes"));
}
