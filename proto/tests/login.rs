//! Both sides of a login against each other.

mod common;

use std::sync::Arc;

use common::login::{ENTRANCE, account, closed, entropy, initiator, login, mutual, target_config};
use proto::iscsi::chap::Algorithm;
use proto::iscsi::header::{Header, LoginRequest, LoginResponse};
use proto::iscsi::keys::{DigestWish, Offer};
use proto::iscsi::login::initiator::{self, Config, InitiatorLogin, LoginError, LoginPurpose};
use proto::iscsi::login::target::{self, Progress, Reason, TargetLogin};
use proto::iscsi::login::{LoginStatus, policy::Policy};
use proto::iscsi::name::IscsiName;
use proto::iscsi::pdu::Pdu;
use proto::iscsi::sealed::Transcript;

#[test]
fn without_authentication_a_login_takes_one_round_trip() {
    let done = login(initiator(), target_config()).unwrap();
    assert_eq!(done.round_trips, 1);
    assert_eq!(done.initiator.tsih, done.target.tsih);
    // RFC 7143, 13.9.
    assert_eq!(done.initiator.portal_group_tag, Some(7));
    assert!(!done.initiator.parameters.initial_r2t);
    assert_eq!(done.initiator.parameters.first_burst, (1 << 24) - 1);
    assert_eq!(done.initiator.exp_stat_sn, done.target.stat_sn);
    assert_eq!(done.initiator.cmd_sn, done.target.exp_cmd_sn);
    // The window of the last response is that of the session.
    assert_eq!(done.initiator.max_cmd_sn, done.target.exp_cmd_sn + 127);
}

#[test]
fn a_connection_that_joins_says_who_it_is_and_nothing_of_the_session() {
    let place = LoginPurpose { tsih: 1, cid: 1, cmd_sn: 1 };
    let (_, request) = InitiatorLogin::join(initiator(), place, entropy(1));
    let said = String::from_utf8(request.data.to_vec()).unwrap();
    let keys: Vec<_> = said.split_terminator('\0').map(|pair| pair.split('=').next()).collect();
    // RFC 7143, 6.3.1 and 13: these may be sent by every connection, those with the use LO by the leading one.
    let each = ["HeaderDigest", "DataDigest", "MaxRecvDataSegmentLength"];
    assert_eq!(keys[..2], ["InitiatorName", "TargetName"].map(Some));
    assert!(keys[2..].iter().flatten().all(|key| each.contains(key)), "{keys:?}");
}

#[test]
fn chap_takes_four_round_trips_with_every_algorithm() {
    for algorithm in Algorithm::ALL {
        let config = Config { algorithms: vec![algorithm], ..initiator_with(account("alice")) };
        let done = login(config, closed(account("alice"))).unwrap();
        assert_eq!(done.round_trips, 4, "{algorithm:?}");
    }
}

#[test]
fn mutual_chap_needs_no_more() {
    let done = login(initiator_with(mutual("disk")), closed(mutual("disk"))).unwrap();
    assert_eq!(done.round_trips, 4);
}

#[test]
fn a_wrong_secret_or_name_is_an_authentication_failure() {
    // RFC 7143, 11.13.5: 02/01.
    for wrong in [common::login::wrong_secret(), account("mallory")] {
        let failed = login(initiator_with(wrong), closed(account("alice"))).unwrap_err();
        let status = LoginStatus::AUTHENTICATION_FAILURE;
        assert!(matches!(failed, LoginError::Refused(s) if s == status));
    }
}

#[test]
fn a_target_that_does_not_prove_itself_is_left() {
    let failed = login(initiator_with(mutual("disk")), closed(mutual("other"))).unwrap_err();
    assert!(matches!(failed, LoginError::Chap(_)), "{failed:?}");
    let failed = login(initiator_with(mutual("disk")), closed(account("alice"))).unwrap_err();
    assert!(matches!(failed, LoginError::Refused(_)), "{failed:?}");
}

#[test]
fn credentials_are_asked_for_where_they_are_needed() {
    let failed = login(initiator(), closed(account("alice"))).unwrap_err();
    assert!(matches!(failed, LoginError::NoCredentials), "{failed:?}");
}

/// Somebody on the path could choose `None` where it were offered.
#[test]
fn credentials_that_are_given_are_used_or_the_login_ends() {
    let refused = LoginError::Refused(LoginStatus::AUTHENTICATION_FAILURE);
    for account in [account("alice"), mutual("disk")] {
        let (_, request) = InitiatorLogin::start(initiator_with(account.clone()), entropy(1));
        let text = String::from_utf8(request.data.to_vec()).unwrap();
        assert!(text.contains("AuthMethod=CHAP\0"), "{text:?}");
        assert_eq!(login(initiator_with(account), target_config()).unwrap_err(), refused);
    }
}

/// Each row: what the target answers to the offer of CHAP, or of the strong algorithms, and what it is told.
#[test]
fn initiator_takes_no_method_and_no_algorithm_that_it_did_not_offer() {
    let strong =
        || Config { algorithms: Algorithm::STRONG.to_vec(), ..initiator_with(account("alice")) };
    let answer = |login: Box<InitiatorLogin>, stat_sn: u32, text: &str| {
        let isid = initiator().isid.0;
        let response = LoginResponse { isid, stat_sn, ..LoginResponse::default() };
        let mut heard = Transcript::default();
        heard.add_pdu(&Pdu::with_data(response, text.to_owned().into()));
        login.handle(&response, text.as_bytes(), &heard)
    };
    for (method, algorithm, refused) in [
        ("AuthMethod=None\0", "", "AuthMethod=None"),
        ("AuthMethod=SRP\0", "", "AuthMethod=SRP"),
        ("AuthMethod=CHAP\0", "CHAP_A=5\0CHAP_I=1\0CHAP_C=0x0102030405060708\0", "CHAP_A=5"),
        ("AuthMethod=CHAP\0", "CHAP_A=6\0CHAP_I=1\0CHAP_C=0x0102030405060708\0", "CHAP_A=6"),
    ] {
        let (login, _) = InitiatorLogin::start(strong(), entropy(1));
        let error = match answer(login, 1, method) {
            Ok(initiator::Progress::Continue(login, _)) => answer(login, 2, algorithm).unwrap_err(),
            Ok(done) => panic!("{done:?}"),
            Err(error) => error,
        };
        assert_eq!(error, LoginError::NotOffered(refused.to_owned()));
    }
}

#[test]
fn algorithms_that_are_not_allowed_are_not_used() {
    let config = Config { algorithms: vec![Algorithm::Md5], ..initiator_with(account("alice")) };
    let strong = common::login::closed_with(account("alice"), Algorithm::STRONG.to_vec());
    assert!(matches!(login(config, strong), Err(LoginError::Refused(_))));
}

#[test]
fn digests_are_agreed_on() {
    let offer = Offer {
        header_digest: DigestWish::Require,
        data_digest: DigestWish::Prefer,
        ..Offer::for_long_links()
    };
    let done = login(Config { offer, ..initiator() }, target_config()).unwrap();
    assert!(done.initiator.parameters.header_digest && done.target.parameters.data_digest);
}

#[test]
fn discovery_sees_what_the_client_may_use() {
    let config = Config { target: None, ..initiator_with(account("alice")) };
    let done = login(config, closed(account("alice"))).unwrap();
    assert_eq!(done.target.target, None);
    assert_eq!(done.target.visible, [common::login::disk()]);
}

#[test]
fn a_target_that_is_not_there_or_not_allowed_is_refused() {
    let elsewhere = Some(IscsiName::new("iqn.2026-11.dev.longhaul:none").unwrap());
    let failed = login(Config { target: elsewhere, ..initiator() }, target_config()).unwrap_err();
    assert!(matches!(failed, LoginError::Refused(LoginStatus::NOT_FOUND)));

    let other = Some(common::login::other_disk());
    let config = Config { target: other, ..initiator_with(account("alice")) };
    let failed = login(config, closed(account("alice"))).unwrap_err();
    let status = LoginStatus::AUTHORIZATION_FAILURE;
    assert!(matches!(failed, LoginError::Refused(s) if s == status));
}

#[test]
fn nobody_is_let_in_where_the_clients_are_none() {
    let targets = vec![common::login::disk()];
    let config = target::Config {
        policy: Policy::closed(targets, vec![], Algorithm::ALL.to_vec()),
        ..target_config()
    };
    assert!(login(initiator(), config).is_err());
}

/// One request to a target; gives the status and the reason of its refusal.
fn refused(header: LoginRequest, text: &[u8]) -> Option<(LoginStatus, Reason)> {
    let login = TargetLogin::new(Arc::new(target_config()), ENTRANCE, entropy(1));
    match login.handle(&header, text, &Transcript::default()) {
        Progress::Refused(refusal) => {
            let Header::LoginResponse(response) = refusal.response.header else { panic!() };
            // RFC 7143, 6.3.1: reserved in a Login reject.
            let stages = (response.transit, response.current_stage, response.next_stage);
            assert_eq!(stages, (false, 0, 0));
            let status =
                LoginStatus { class: response.status_class, detail: response.status_detail };
            Some((status, refusal.reason))
        }
        _ => None,
    }
}

const NAMES: &[u8] =
    b"InitiatorName=iqn.2026-11.dev.longhaul:a\0TargetName=iqn.2026-11.dev.longhaul:disk\0";

#[test]
fn every_refusal_has_its_status() {
    let to_full_feature =
        LoginRequest { transit: true, current_stage: 1, next_stage: 3, ..LoginRequest::default() };
    let stage =
        |current_stage, next_stage| LoginRequest { current_stage, next_stage, ..to_full_feature };
    let with = |text: &[u8]| [NAMES, text].concat();
    let cases: &[(LoginRequest, Vec<u8>, Option<LoginStatus>)] = &[
        (to_full_feature, NAMES.to_vec(), None),
        (stage(0, 3), NAMES.to_vec(), None),
        (stage(0, 1), NAMES.to_vec(), None),
        // RFC 7143, 11.12.3: the stages that may follow one another.
        (stage(1, 0), NAMES.to_vec(), Some(LoginStatus::INITIATOR_ERROR)),
        (stage(1, 1), NAMES.to_vec(), Some(LoginStatus::INITIATOR_ERROR)),
        (stage(2, 3), NAMES.to_vec(), Some(LoginStatus::INITIATOR_ERROR)),
        (stage(3, 3), NAMES.to_vec(), Some(LoginStatus::INITIATOR_ERROR)),
        // RFC 7143, 11.12.2: C and T exclude each other.
        (
            LoginRequest { continues: true, ..to_full_feature },
            NAMES.to_vec(),
            Some(LoginStatus::INITIATOR_ERROR),
        ),
        (
            LoginRequest { version_min: 1, ..to_full_feature },
            NAMES.to_vec(),
            Some(LoginStatus::UNSUPPORTED_VERSION),
        ),
        (to_full_feature, b"".to_vec(), Some(LoginStatus::MISSING_PARAMETER)),
        (
            to_full_feature,
            b"InitiatorName=iqn.2026-11.dev.longhaul:a\0".to_vec(),
            Some(LoginStatus::MISSING_PARAMETER),
        ),
        (to_full_feature, b"InitiatorName".to_vec(), Some(LoginStatus::INITIATOR_ERROR)),
        (to_full_feature, b"InitiatorName=a b\0".to_vec(), Some(LoginStatus::INITIATOR_ERROR)),
        (to_full_feature, b"InitiatorName=a\nb\0".to_vec(), Some(LoginStatus::INITIATOR_ERROR)),
        (
            to_full_feature,
            [b"InitiatorName=".as_slice(), &[b'x'; 224], b"\0"].concat(),
            Some(LoginStatus::INITIATOR_ERROR),
        ),
        // Which targets there are is ours to say, and all of them have a name as RFC 7143, 4.2.7 has it.
        (
            to_full_feature,
            b"InitiatorName=me\0TargetName=disk\0".to_vec(),
            Some(LoginStatus::INITIATOR_ERROR),
        ),
        (
            to_full_feature,
            with(b"SessionType=Odd\0"),
            Some(LoginStatus::SESSION_TYPE_NOT_SUPPORTED),
        ),
        (
            to_full_feature,
            with(b"InitialR2T=No\0InitialR2T=No\0"),
            Some(LoginStatus::INITIATOR_ERROR),
        ),
        (to_full_feature, with(&b"X-a=1\0".repeat(1000)), Some(LoginStatus::INITIATOR_ERROR)),
        (stage(0, 1), with(b"AuthMethod=KRB5\0"), Some(LoginStatus::AUTHENTICATION_FAILURE)),
        (stage(0, 1), with(b"MaxBurstLength=8192\0"), Some(LoginStatus::INITIATOR_ERROR)),
        (
            stage(0, 1),
            with(b"AuthMethod=None\0AuthMethod=None\0"),
            Some(LoginStatus::INITIATOR_ERROR),
        ),
    ];
    for (header, text, expected) in cases {
        let found = refused(*header, text);
        let status = found.as_ref().map(|(status, _)| *status);
        assert_eq!(status, *expected, "{header:?} {found:?}");
    }
}

#[test]
fn a_refusal_names_whom_it_refuses() {
    let config = Arc::new(closed(account("alice")));
    let skips_security =
        LoginRequest { transit: true, current_stage: 1, next_stage: 3, ..LoginRequest::default() };
    let heard = Transcript::default();
    let refuse = |login: TargetLogin, request, text| match login.handle(request, text, &heard) {
        Progress::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    let login = || TargetLogin::new(Arc::clone(&config), ENTRANCE, entropy(1));
    assert_eq!(refuse(login(), &skips_security, b"").peer, None, "it has said nothing");

    let peer = refuse(login(), &skips_security, NAMES).peer.unwrap();
    assert_eq!(peer.initiator.as_str(), "iqn.2026-11.dev.longhaul:a");
    assert_eq!(peer.target, Some(common::login::disk()));

    let asks = LoginRequest { transit: false, next_stage: 0, current_stage: 0, ..skips_security };
    let text = [NAMES, b"AuthMethod=CHAP\0"].concat();
    let Progress::Continue(next, _) = login().handle(&asks, &text, &heard) else {
        panic!("refused")
    };
    assert_eq!(next.peer(), Some(peer.clone()), "known while it goes on");
    assert_eq!(refuse(*next, &asks, b"CHAP_A=99\0").peer, Some(peer));
}

fn initiator_with(account: proto::iscsi::chap::Account) -> Config {
    Config { account: Some(account), ..initiator() }
}

#[test]
fn text_may_come_in_pieces() {
    // RFC 7143, 6.2: the C bit, each piece asked for with an empty response.
    let login = TargetLogin::new(Arc::new(target_config()), ENTRANCE, entropy(1));
    let piece = LoginRequest { continues: true, current_stage: 1, ..LoginRequest::default() };
    let Progress::Continue(login, response) =
        login.handle(&piece, &NAMES[..20], &Transcript::default())
    else {
        panic!("refused")
    };
    assert!(response.data.is_empty());
    let last = LoginRequest { continues: false, transit: true, next_stage: 3, ..piece };
    assert!(matches!(
        login.handle(&last, &NAMES[20..], &Transcript::default()),
        Progress::Admit(_)
    ));
}

/// RFC 7143, 11.12.8: while a connection logs in to a session, commands by others move the CmdSN on.
#[test]
fn the_cmd_sn_of_a_login_that_joins_may_advance() {
    let login = TargetLogin::new(Arc::new(target_config()), ENTRANCE, entropy(1));
    let (heard, first) =
        (Transcript::default(), LoginRequest { tsih: 7, cmd_sn: 500, ..<_>::default() });
    let first = LoginRequest { current_stage: 1, ..first };
    let Progress::Continue(login, _) = login.handle(&first, NAMES, &heard) else {
        panic!("refused")
    };
    let last = LoginRequest { cmd_sn: 503, transit: true, next_stage: 3, ..first };
    assert!(matches!(login.handle(&last, b"", &heard), Progress::Admit(_)));
}

/// RFC 7143, 4.2.2.1: numbers of which the last is before the first but one are both ignored. A login that has not
/// joined its session yet is told such ones, whether there is a session or not.
#[test]
fn a_login_that_joins_is_told_numbers_that_are_ignored() {
    let heard = Transcript::default();
    let first = LoginRequest { tsih: 7, cmd_sn: 500, current_stage: 1, ..LoginRequest::default() };
    let mut login = TargetLogin::new(Arc::new(target_config()), ENTRANCE, entropy(1));
    for text in [NAMES, b"", b""] {
        let Progress::Continue(next, response) = login.handle(&first, text, &heard) else {
            panic!("refused")
        };
        let Header::LoginResponse(response) = response.header else { panic!("{response:?}") };
        assert_eq!((response.exp_cmd_sn, response.max_cmd_sn), (500, 498));
        login = *next;
    }
}

#[test]
fn the_identity_may_not_change_and_the_login_must_end() {
    let config = Arc::new(target_config());
    let stay = LoginRequest { current_stage: 1, ..LoginRequest::default() };
    let heard = Transcript::default();
    let start = |config| match TargetLogin::new(config, ENTRANCE, entropy(1))
        .handle(&stay, NAMES, &heard)
    {
        Progress::Continue(login, _) => login,
        other => panic!("{other:?}"),
    };
    for changed in [LoginRequest { isid: [1; 6], ..stay }, LoginRequest { cmd_sn: 1, ..stay }] {
        let progress = start(Arc::clone(&config)).handle(&changed, b"", &heard);
        assert!(matches!(progress, Progress::Refused(r) if r.reason == Reason::Changed));
    }
    let mut login = start(config);
    let reason = loop {
        match login.handle(&stay, b"", &heard) {
            Progress::Continue(next, _) => login = next,
            Progress::Refused(refusal) => break refusal.reason,
            Progress::Admit(_) => panic!("admitted"),
        }
    };
    assert_eq!(reason, Reason::TooLong);
}
