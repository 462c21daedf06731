use proptest::prelude::*;

use super::*;
use crate::iscsi::keys::DigestWish;

/// Lets an initiator and a target of these minds negotiate in one exchange; `shuffle` orders the
/// initiator's keys.
fn negotiate(
    initiator: Offer,
    target: Offer,
    shuffle: impl Fn(&mut Vec<(String, String)>),
) -> Result<(Parameters, Parameters), Violation> {
    let mut initiator = Negotiation::new(Role::Initiator, initiator);
    let mut target = Negotiation::new(Role::Target, target);
    let mut proposals: Vec<(String, String)> =
        initiator.propose().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    shuffle(&mut proposals);
    let mut answers = target.receive(Stage::Operational, &pairs(&proposals))?;
    let (key, value) = target.declare();
    answers.push((key.to_owned(), value));
    assert!(initiator.receive(Stage::Operational, &pairs(&answers))?.is_empty());
    Ok((initiator.finish()?, target.finish()?))
}

fn pairs(pairs: &[(String, String)]) -> Vec<Pair<'_>> {
    pairs.iter().map(|(key, value)| Pair { key, value }).collect()
}

fn receive(side: &mut Negotiation, text: &str) -> Result<Vec<(String, String)>, Violation> {
    let text = format!("{text}\n").replace('\n', "\0");
    side.receive(Stage::Operational, &text::parse(text.as_bytes()).unwrap())
}

fn target() -> Negotiation {
    Negotiation::new(Role::Target, Offer::for_long_links())
}

fn initiator() -> Negotiation {
    let mut side = Negotiation::new(Role::Initiator, Offer::for_long_links());
    side.propose();
    side
}

fn answer(side: &mut Negotiation, text: &str) -> String {
    let answers = receive(side, text).unwrap();
    answers.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn each_rule_answers_as_its_clause_says() {
    let mut target = target();
    assert_eq!(answer(&mut target, "MaxConnections=8"), "MaxConnections=1");
    assert_eq!(answer(&mut target, "InitialR2T=Yes"), "InitialR2T=Yes");
    assert_eq!(answer(&mut target, "ImmediateData=No"), "ImmediateData=No");
    assert_eq!(answer(&mut target, "DefaultTime2Wait=5"), "DefaultTime2Wait=5");
    assert_eq!(answer(&mut target, "HeaderDigest=CRC32C,None"), "HeaderDigest=CRC32C");
    assert_eq!(answer(&mut target, "DataDigest=Y-odd,None"), "DataDigest=None");
    assert_eq!(answer(&mut target, "MaxRecvDataSegmentLength=0x1000"), "");
    assert_eq!(answer(&mut target, "TaskReporting=FastAbort,RFC3720"), "TaskReporting=RFC3720");
    let agreed = target.finish().unwrap();
    assert_eq!(agreed.max_send_data_segment, 4096);
    assert!(agreed.header_digest && !agreed.data_digest && agreed.initial_r2t);
}

#[test]
fn impossible_value_is_rejected_and_keeps_its_default() {
    let mut target = target();
    assert_eq!(answer(&mut target, "MaxBurstLength=511"), "MaxBurstLength=Reject");
    assert_eq!(answer(&mut target, "FirstBurstLength=16777216"), "FirstBurstLength=Reject");
    assert_eq!(answer(&mut target, "ImmediateData=yes"), "ImmediateData=Reject");
    assert_eq!(answer(&mut target, "HeaderDigest=SHA"), "HeaderDigest=Reject");
    let agreed = target.finish().unwrap();
    assert_eq!((agreed.max_burst, agreed.first_burst), (262_144, 65_536));
}

#[test]
fn unknown_and_obsolete_keys_have_their_answers() {
    // RFC 7143, 6.2 and 13.25.
    assert_eq!(answer(&mut target(), "X-com.example.a=1"), "X-com.example.a=NotUnderstood");
    assert_eq!(answer(&mut target(), "X-com.example.a=NotUnderstood"), "");
    assert_eq!(answer(&mut target(), "IFMarker=Yes\nOFMarker=No"), "IFMarker=No OFMarker=No");
    assert_eq!(answer(&mut target(), "OFMarkInt=1~2048"), "OFMarkInt=Reject");
}

/// RFC 7143, 13 ("Irrelevant when: SessionType=Discovery"): the answer may be `Irrelevant` and need not be (6.2).
#[test]
fn discovery_answers_the_keys_of_data_and_settles_nothing_by_them() {
    let mut target = target();
    target.in_discovery();
    assert_eq!(answer(&mut target, "MaxBurstLength=8192"), "MaxBurstLength=8192");
    assert_eq!(answer(&mut target, "FirstBurstLength=512"), "FirstBurstLength=512");
    assert_eq!(answer(&mut target, "InitialR2T=No"), "InitialR2T=No");
    assert_eq!(answer(&mut target, "MaxConnections=8"), "MaxConnections=1");
    assert_eq!(answer(&mut target, "TaskReporting=FastAbort,RFC3720"), "TaskReporting=RFC3720");
    assert_eq!(answer(&mut target, "HeaderDigest=None"), "HeaderDigest=None");
    // What cannot be has no meaning all the same.
    assert_eq!(answer(&mut target, "MaxOutstandingR2T=0"), "MaxOutstandingR2T=Irrelevant");
    let agreed = target.finish().unwrap();
    assert_eq!((agreed.max_burst, agreed.first_burst), (262_144, 65_536));
    assert!(agreed.initial_r2t && agreed.max_connections == 1);
    // Twice is still once too often (RFC 7143, 6.3).
    let again = receive(&mut target, "InitialR2T=No");
    assert_eq!(again, Err(Violation::Repeated(Key::InitialR2T)));
}

/// RFC 7143, 13: what the leading connection settled has no meaning for others.
#[test]
fn a_connection_that_joins_is_told_what_is_irrelevant() {
    let mut target = target();
    target.joins();
    assert_eq!(answer(&mut target, "MaxBurstLength=8192"), "MaxBurstLength=Irrelevant");
    assert_eq!(answer(&mut target, "HeaderDigest=None"), "HeaderDigest=None");
}

#[test]
fn a_settled_key_may_not_come_again() {
    let mut side = target();
    answer(&mut side, "InitialR2T=No");
    assert_eq!(receive(&mut side, "InitialR2T=No"), Err(Violation::Repeated(Key::InitialR2T)));
    assert_eq!(
        receive(&mut target(), "ImmediateData=No\nImmediateData=No"),
        Err(Violation::Repeated(Key::ImmediateData))
    );
    let mut side = initiator();
    receive(&mut side, "ImmediateData=No").unwrap();
    assert_eq!(
        receive(&mut side, "ImmediateData=Yes"),
        Err(Violation::Repeated(Key::ImmediateData))
    );
}

#[test]
fn an_answer_must_be_one_the_rule_can_give() {
    for wrong in [
        "MaxBurstLength=16777216",
        "MaxOutstandingR2T=65",
        "HeaderDigest=SHA",
        "ErrorRecoveryLevel=1",
        "DataPDUInOrder=No",
        "MaxConnections=0",
    ] {
        let error = receive(&mut initiator(), wrong).unwrap_err();
        assert!(matches!(error, Violation::NotOffered { .. }), "{wrong}: {error}");
    }
}

#[test]
fn keys_have_senders_and_stages() {
    assert_eq!(receive(&mut target(), "TargetAlias=x"), Err(Violation::NotNow(Key::TargetAlias)));
    assert_eq!(receive(&mut target(), "SendTargets=All"), Err(Violation::NotNow(Key::SendTargets)));
    let early = [Pair { key: "MaxBurstLength", value: "8192" }];
    assert_eq!(
        target().receive(Stage::Security, &early),
        Err(Violation::NotNow(Key::MaxBurstLength))
    );
    let error = receive(&mut target(), "MaxRecvDataSegmentLength=511").unwrap_err();
    assert!(matches!(error, Violation::Declared { .. }));
}

#[test]
fn a_required_digest_that_is_refused_ends_the_login() {
    let wants = Offer { data_digest: DigestWish::Require, ..Offer::for_long_links() };
    let lacks = Offer { data_digest: DigestWish::Refuse, ..Offer::for_long_links() };
    for (initiator, target) in [(wants.clone(), lacks.clone()), (lacks, wants)] {
        let error = negotiate(initiator, target, |_| {}).unwrap_err();
        assert_eq!(error, Violation::Required(Key::DataDigest));
    }
}

#[test]
fn a_first_burst_stays_within_a_burst() {
    // Negotiated after the burst it must fit, and by default, when only the burst was negotiated.
    assert_eq!(
        answer(&mut target(), "FirstBurstLength=65536\nMaxBurstLength=8192"),
        "MaxBurstLength=8192 FirstBurstLength=8192"
    );
    let mut side = target();
    answer(&mut side, "MaxBurstLength=8192");
    assert_eq!(side.finish().unwrap().first_burst, 8192);
    let mut side = target();
    answer(&mut side, "FirstBurstLength=65536");
    answer(&mut side, "MaxBurstLength=8192");
    assert_eq!(side.finish(), Err(Violation::FirstBurst));
}

#[test]
fn the_segment_may_be_declared_again_later() {
    let mut later = Later::default();
    let mut say = |key, value| later.receive(Pair { key, value });
    assert_eq!(say("MaxRecvDataSegmentLength", "65536"), Ok(None));
    assert_eq!(say("MaxBurstLength", "65536"), Ok(Some(REJECT)));
    assert_eq!(say("InitiatorAlias", "me"), Ok(None));
    assert_eq!(say("X-a", "1"), Ok(Some(NOT_UNDERSTOOD)));
    let key = Key::MaxRecvDataSegmentLength;
    assert_eq!(say("MaxRecvDataSegmentLength", "1024"), Err(Violation::Repeated(key)));
    assert_eq!(later.segment_max(), Some(65_536));
    let wrong = Pair { key: "MaxRecvDataSegmentLength", value: "1" };
    assert!(Later::default().receive(wrong).is_err());
}

fn wish() -> impl Strategy<Value = DigestWish> {
    prop::sample::select(vec![
        DigestWish::Refuse,
        DigestWish::Accept,
        DigestWish::Prefer,
        DigestWish::Require,
    ])
}

prop_compose! {
    fn offer()(
        header_digest in wish(),
        data_digest in wish(),
        (initial_r2t, immediate_data, data_pdu_in_order, data_sequence_in_order, stops_at_failure)
            in any::<(bool, bool, bool, bool, bool)>(),
        max_connections in 1_u16..,
        max_recv_data_segment in 512_u32..1 << 24,
        max_burst in 512_u32..1 << 24,
        first_share in 0_u32..=100,
        max_outstanding_r2t in 1_u16..,
        (default_time2wait, default_time2retain) in (0_u16..=3600, 0_u16..=3600),
        error_recovery_level in 0_u8..=2,
        protocol_level in 0_u8..=31,
        task_reporting in prop::sample::select(
            vec![TaskReporting::Rfc3720, TaskReporting::ResponseFence, TaskReporting::FastAbort]),
    ) -> Offer {
        let first_burst = (max_burst / 100 * first_share).max(512);
        Offer {
            header_digest, data_digest, max_connections, initial_r2t, immediate_data,
            max_recv_data_segment, max_burst, first_burst, max_outstanding_r2t, default_time2wait,
            default_time2retain, data_pdu_in_order, data_sequence_in_order, error_recovery_level,
            protocol_level, task_reporting, stops_at_failure,
        }
    }
}

proptest! {
    #[test]
    fn both_sides_agree_within_what_both_offered(a in offer(), b in offer(), turn in 0_usize..20) {
        let Ok((initiator, target)) = negotiate(a.clone(), b.clone(), |_| {}) else {
            let required = [a.header_digest, a.data_digest, b.header_digest, b.data_digest];
            prop_assert!(required.contains(&DigestWish::Require));
            return Ok(());
        };
        prop_assert_eq!(initiator.max_send_data_segment, b.max_recv_data_segment);
        prop_assert_eq!(target.max_send_data_segment, a.max_recv_data_segment);
        let same = Parameters {
            max_recv_data_segment: target.max_recv_data_segment,
            max_send_data_segment: target.max_send_data_segment,
            ..initiator.clone()
        };
        prop_assert_eq!(&same, &target);
        prop_assert_eq!(same.max_burst, a.max_burst.min(b.max_burst));
        prop_assert!(same.first_burst <= a.first_burst.min(b.first_burst).min(same.max_burst));
        prop_assert_eq!(same.initial_r2t, a.initial_r2t || b.initial_r2t);
        prop_assert_eq!(same.immediate_data, a.immediate_data && b.immediate_data);
        prop_assert_eq!(same.default_time2wait, a.default_time2wait.max(b.default_time2wait));

        let turned = negotiate(a, b, |keys| { let n = keys.len(); keys.rotate_left(turn % n); keys.reverse(); });
        prop_assert_eq!(turned, Ok((initiator, target)), "the order of the keys matters");
    }

    #[test]
    fn no_text_breaks_either_side(text in "([A-Z][A-Za-z0-9]{0,12}=[ -~]{0,12}\n|MaxBurstLength=[0-9a-z~,]{0,9}\n|InitialR2T=(Yes|No|Maybe)\n){0,9}") {
        let _ = receive(&mut target(), text.trim_end());
        let _ = receive(&mut initiator(), text.trim_end());
    }
}
