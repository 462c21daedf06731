//! What a client gets by another's name: nothing.

use super::*;

#[test]
fn a_login_under_anothers_name_ends_no_session_but_ones_own() {
    for by in BOTH {
        let fixture = Fixture::new(by);
        let mut alice = fixture.log_in("alice", NAME, 1);
        for who in ["mallory", "bob", "reader"] {
            let mut other = fixture.log_in(who, NAME, 1);
            let lun = u16::from(who == "mallory");
            assert!(is_undisturbed(&mut alice, 0), "{by:?} {who}");
            assert!(is_undisturbed(&mut other, lun), "{by:?} {who}: beside it");
        }
        // RFC 7143, 6.3.5: with the same proof it is reinstatement.
        let mut again = fixture.log_in("alice", NAME, 1);
        assert!(is_over(&mut alice), "{by:?}");
        assert_eq!(write(&mut again, 0), Some(GOOD));
        // Several machines of one account, each under its own name and with the same ISID.
        let mut second = fixture.log_in("alice", "iqn.2001-04.com.example:second", 1);
        assert!(is_undisturbed(&mut again, 0) && is_undisturbed(&mut second, 0), "{by:?}");
        fixture.end();
    }
}

#[test]
fn a_reservation_is_that_of_the_client_that_made_it() {
    for by in BOTH {
        let mut fixture = Fixture::new(by);
        let mut alice = fixture.log_in("alice", NAME, 1);
        assert_eq!(reserve_out(&mut alice, (REGISTER, 0), (0, 7), APTPL), Some(GOOD));
        assert_eq!(reserve_out(&mut alice, (RESERVE, EXCLUSIVE_ACCESS), (7, 0), 0), Some(GOOD));
        for restarted in [false, true] {
            if restarted {
                fixture = fixture.restart();
            }
            // Under the name of the holder, and knowing its key.
            let mut bob = fixture.log_in("bob", NAME, 1);
            assert_eq!(write(&mut bob, 0), Some(CONFLICT), "{by:?} {restarted}");
            for (action, kind, keys) in [
                (REGISTER, 0, (7, 0)),
                (RELEASE, EXCLUSIVE_ACCESS, (7, 0)),
                (CLEAR, 0, (7, 0)),
                (PREEMPT, EXCLUSIVE_ACCESS, (7, 7)),
            ] {
                let status = reserve_out(&mut bob, (action, kind), keys, 0);
                assert_eq!(status, Some(CONFLICT), "{by:?} {restarted} {action}");
            }
            let mut reader = fixture.log_in("reader", NAME, 1);
            assert!(reader.read(9, 0, 1).is_none(), "{by:?}: kept out");
            assert_ne!(reserve_out(&mut reader, (CLEAR, 0), (7, 0), 0), Some(GOOD), "{by:?}");
            // The holder itself comes back, with the same ISID.
            let mut alice = fixture.log_in("alice", NAME, 1);
            assert_eq!(write(&mut alice, 0), Some(GOOD), "{by:?} {restarted}");
            let other_port = &mut fixture.log_in("alice", NAME, 2);
            assert_eq!(write(other_port, 0), Some(CONFLICT), "{by:?}: another port of hers is not");
        }
        let mut alice = fixture.log_in("alice", NAME, 1);
        assert_eq!(reserve_out(&mut alice, (CLEAR, 0), (7, 0), 0), Some(GOOD));
        fixture.end();
    }
}

/// What an earlier release kept, or a server before its clients had to prove who they are, is of a bare name.
#[test]
fn a_reservation_under_a_bare_name_goes_to_the_first_client_with_rights_that_has_it() {
    let fixture = Fixture::with(Proof::Chap, "", &[]);
    let mut bare = Peer::log_in(fixture.portal, NAME, 1, TARGET);
    bare.says(0);
    assert_eq!(reserve_out(&mut bare, (REGISTER, 0), (0, 7), APTPL), Some(GOOD));
    assert_eq!(reserve_out(&mut bare, (RESERVE, EXCLUSIVE_ACCESS), (7, 0), 0), Some(GOOD));
    drop(bare);
    for (name, _) in CLIENTS {
        keep_secret(&fixture.home, name);
    }
    configure(&fixture.home, Proof::Chap, "", &CLIENTS);
    let fixture = fixture.restart();
    for who in ["reader", "mallory"] {
        let mut other = fixture.log_in(who, NAME, 1);
        assert!(other.read(9, 0, 1).is_none(), "{who} has no right to it");
    }
    let mut alice = fixture.log_in("alice", NAME, 1);
    assert_eq!(write(&mut alice, 0), Some(GOOD));
    let mut bob = fixture.log_in("bob", NAME, 1);
    assert_eq!(write(&mut bob, 0), Some(CONFLICT), "it is somebody's");
    // A change is kept with its client.
    assert_eq!(reserve_out(&mut alice, (REGISTER, 0), (7, 8), APTPL), Some(GOOD));
    let fixture = fixture.restart();
    let mut bob = fixture.log_in("bob", NAME, 1);
    assert_eq!(write(&mut bob, 0), Some(CONFLICT));
    let mut alice = fixture.log_in("alice", NAME, 1);
    assert_eq!(write(&mut alice, 0), Some(GOOD));
    fixture.end();
}

/// One name is used by two; who reads of it can tell them apart.
#[test]
fn the_log_and_the_status_tell_which_client_it_is() {
    for by in BOTH {
        let fixture = Fixture::new(by);
        let _sessions = ["alice", "bob"].map(|who| fixture.log_in(who, NAME, 1));
        let proofs = ["alice", "bob"].map(|who| match by {
            Proof::Chap => format!("chap:{who}"),
            Proof::Key => {
                fs::read_to_string(fixture.home.path().join(format!("{who}.pub"))).unwrap()
            }
        });
        fixture.logs("another client uses the same initiator name");
        let line = fixture.logs("logged in");
        assert!(line.contains(&proofs[1]), "{by:?}: {line}");
        let mut status = Command::new(LONGHAUL);
        status.args(["status", "--json", "--control", "control"]).current_dir(&fixture.home);
        let (printed, _) = common::run(&status);
        for proof in &proofs {
            let client = format!("\"initiator\":\"{NAME}\",\"client\":\"{proof}\"");
            assert!(printed.contains(&client), "{by:?}: {printed}");
        }
        fixture.end();
    }
}

/// SPC-4, 6.16.3: initiator ports are named without the client that uses them.
#[test]
fn a_named_initiator_port_is_that_of_the_client_that_is_there() {
    for by in BOTH {
        let fixture = Fixture::new(by);
        let other = "iqn.2001-04.com.example:bob";
        let mut alice = fixture.log_in("alice", NAME, 1);
        let mut bob = fixture.log_in("bob", other, 1);
        let mut list = [0_u64.to_be_bytes(), 7_u64.to_be_bytes(), [0; 8]].concat();
        list[20] = 0x08; // SPEC_I_PT
        let mut id = format!("{other},i,0x800000000001\0").into_bytes();
        id.resize(id.len().next_multiple_of(4), 0);
        list.extend((id.len() as u32 + 4).to_be_bytes());
        list.extend([0x45, 0, 0, id.len() as u8]);
        list.extend(id);
        let cdb = [0x5F, REGISTER, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
        assert_eq!(run(&mut alice, 0, &cdb, list), Some(GOOD), "{by:?}");
        assert_eq!(reserve_out(&mut bob, (RESERVE, EXCLUSIVE_ACCESS), (7, 0), 0), Some(GOOD));
        assert_eq!(write(&mut alice, 0), Some(CONFLICT), "{by:?}");
        fixture.end();
    }
}

#[test]
fn sessions_count_for_the_client_that_has_them() {
    for by in BOTH {
        let limits = "[limits]\nsessions_per_initiator = 2\n";
        let fixture = Fixture::with(by, limits, &CLIENTS);
        let full = Some((3, 2));
        let held = [1, 2].map(|isid| fixture.log_in("mallory", NAME, isid));
        for name in [NAME, "iqn.2001-04.com.example:another"] {
            let third = fixture.try_log_in("mallory", (name, 3), Some(TARGET));
            assert_eq!(third.err(), full, "{by:?} {name}");
        }
        let mut alice = [1, 2].map(|isid| fixture.log_in("alice", NAME, isid));
        assert!(alice.iter_mut().all(|session| is_undisturbed(session, 0)), "{by:?}");
        assert_eq!(fixture.try_log_in("alice", (NAME, 3), Some(TARGET)).err(), full, "{by:?}");
        drop(held);
        fixture.end();
    }
}

/// Of all connections there may be, one client has not so many that there is none for another.
#[test]
fn connections_are_left_for_others() {
    let limits = "[limits]\nconnections = 8\n";
    let fixture = Fixture::with(Proof::Chap, limits, &CLIENTS);
    let mut held = Vec::new();
    let refused = loop {
        let isid = held.len() as u8;
        match fixture.try_log_in("mallory", (NAME, isid), Some(TARGET)) {
            Ok(session) => held.push(session),
            Err(refused) => break refused,
        }
        assert!(held.len() < 8, "it has them all");
    };
    assert_eq!(refused, (3, 2));
    let mut alice = fixture.log_in("alice", NAME, 1);
    assert!(is_undisturbed(&mut alice, 0));
    fixture.end();
}

/// A login that asks to join a session learns nothing of it before it has proven that it may.
#[test]
fn an_unproven_login_learns_nothing_of_a_session() {
    let fixture = Fixture::new(Proof::Chap);
    let offer = |peer: &mut Peer, tsih| {
        let request = proto::iscsi::header::LoginRequest {
            transit: false,
            current_stage: 0,
            next_stage: 0,
            tsih,
            cid: 1,
            cmd_sn: 1000,
            ..peer::login(1)
        };
        let text = format!("InitiatorName={NAME}\0TargetName={TARGET}\0AuthMethod=CHAP\0");
        peer.send(request, text);
        let answer = peer.receive().expect("an answer").header;
        let Header::LoginResponse(answer) = answer else { panic!("{answer:?}") };
        (answer.status_class, answer.exp_cmd_sn, answer.max_cmd_sn)
    };
    let mut tsihs = Vec::new();
    for isid in 1..=6 {
        let config = fixture.config("alice", (NAME, isid), Some(TARGET));
        let (mut peer, tsih) = log_in_for_tsih(Peer::connect(fixture.portal), config);
        for _ in 0..5 {
            peer.says(0);
        }
        let there = offer(&mut Peer::connect(fixture.portal), tsih);
        let absent = offer(&mut Peer::connect(fixture.portal), tsih ^ 0x5555);
        assert_eq!(there, absent, "whether there is such a session is not told");
        // RFC 7143, 4.2.2.1: such numbers are ignored.
        assert!(there.2.wrapping_sub(there.1).wrapping_add(1) as i32 <= -1, "{there:?}");
        tsihs.push(tsih);
        std::mem::forget(peer);
    }
    let steps: Vec<_> = tsihs.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    assert!(steps.iter().any(|step| *step != steps[0]), "they can be guessed: {tsihs:?}");
    fixture.end();
}

/// A login whose TSIH counts.
fn log_in_for_tsih(mut peer: Peer, config: Config) -> (Peer, u16) {
    let entropy = Entropy::fresh(&mut |bytes| getrandom::fill(bytes).unwrap());
    let (mut login, mut request) = InitiatorLogin::start(config, entropy);
    loop {
        peer.send(request.header, request.data);
        let answer = peer.receive().expect("an answer");
        let Header::LoginResponse(response) = answer.header else { panic!("{answer:?}") };
        match login.handle(&response, &answer.data, &peer.transcript()).expect("a login") {
            Progress::Continue(next, pdu) => (login, request) = (next, pdu),
            Progress::Done(established, _) => {
                peer.cmd_sn = established.cmd_sn;
                return (peer, established.tsih);
            }
        }
    }
}
