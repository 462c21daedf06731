//! What a client gets by another's name: nothing.

use proto::iscsi::login::initiator::LoginPurpose;

use super::*;

#[test]
fn a_login_under_anothers_name_ends_no_session_but_ones_own() {
    for by in ALL {
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
        if by == LoginMethod::HyperScsi {
            // A port is all that its client is told apart by.
            fixture.end();
            continue;
        }
        // Several machines of one account, each under its own name and with the same ISID.
        let mut second = fixture.log_in("alice", "iqn.2001-04.com.example:second", 1);
        assert!(is_undisturbed(&mut again, 0) && is_undisturbed(&mut second, 0), "{by:?}");
        fixture.end();
    }
}

#[test]
fn a_reservation_is_that_of_the_client_that_made_it() {
    for by in ALL {
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
            assert!(reader.read(0).is_none(), "{by:?}: kept out");
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
    for by in ISCSI {
        let fixture = Fixture::new(by);
        configure(&fixture.home, LoginMethod::Chap, "", &[]);
        let mut fixture = fixture.restart();
        let mut bare = Session::Iscsi(Box::new(Peer::log_in(fixture.portal, NAME, 1, TARGET)));
        bare.says(0);
        assert_eq!(reserve_out(&mut bare, (REGISTER, 0), (0, 7), APTPL), Some(GOOD));
        assert_eq!(reserve_out(&mut bare, (RESERVE, EXCLUSIVE_ACCESS), (7, 0), 0), Some(GOOD));
        drop(bare);
        configure(&fixture.home, by, "", &CLIENTS);
        fixture = fixture.restart();
        for who in ["reader", "mallory"] {
            let mut other = fixture.log_in(who, NAME, 1);
            assert!(other.read(0).is_none(), "{by:?}: {who} has no right to it");
        }
        let mut alice = fixture.log_in("alice", NAME, 1);
        assert_eq!(write(&mut alice, 0), Some(GOOD), "{by:?}");
        let mut bob = fixture.log_in("bob", NAME, 1);
        assert_eq!(write(&mut bob, 0), Some(CONFLICT), "{by:?}: it is somebody's");
        // A change is kept with its client.
        assert_eq!(reserve_out(&mut alice, (REGISTER, 0), (7, 8), APTPL), Some(GOOD));
        fixture = fixture.restart();
        let mut bob = fixture.log_in("bob", NAME, 1);
        assert_eq!(write(&mut bob, 0), Some(CONFLICT), "{by:?}");
        let mut alice = fixture.log_in("alice", NAME, 1);
        assert_eq!(write(&mut alice, 0), Some(GOOD), "{by:?}");
        fixture.end();
    }
}

/// One name is used by two; who reads of it can tell them apart.
#[test]
fn the_log_and_the_status_tell_which_client_it_is() {
    for by in ISCSI {
        let fixture = Fixture::new(by);
        let _sessions = ["alice", "bob"].map(|who| fixture.log_in(who, NAME, 1));
        let proofs = ["alice", "bob"].map(|who| match by {
            LoginMethod::Chap => format!("chap:{who}"),
            LoginMethod::Key | LoginMethod::HyperScsi => {
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

/// SPC-4, 6.16.3: initiator ports are named without the client that uses them. So the port of one that is there is
/// its own, and the port of nobody is that of the client that names it.
#[test]
fn a_named_initiator_port_is_that_of_the_client_that_is_there() {
    for by in ALL {
        let fixture = Fixture::new(by);
        let other = "iqn.2001-04.com.example:bob";
        let mut alice = fixture.log_in("alice", NAME, 1);
        let mut bob = fixture.log_in("bob", other, 1);
        for port in [1, 2] {
            let mut list = [0_u64.to_be_bytes(), 7_u64.to_be_bytes(), [0; 8]].concat();
            list[20] = 0x08; // SPEC_I_PT
            let id = fixture.port_id("bob", other, port);
            list.extend((id.len() as u32).to_be_bytes());
            list.extend(id);
            let cdb = [0x5F, REGISTER, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
            assert_eq!(run(&mut alice, 0, &cdb, list), Some(GOOD), "{by:?} {port}");
            assert_eq!(reserve_out(&mut alice, (REGISTER, 0), (7, 0), 0), Some(GOOD), "{by:?}");
        }
        let mut absent = fixture.log_in("bob", other, 2);
        let refused = reserve_out(&mut absent, (RESERVE, EXCLUSIVE_ACCESS), (7, 0), 0);
        assert_eq!(refused, Some(CONFLICT), "{by:?}: alice has registered a port of her own");
        let reserved = reserve_out(&mut bob, (RESERVE, EXCLUSIVE_ACCESS), (7, 0), 0);
        assert_eq!(reserved, Some(GOOD), "{by:?}");
        assert_eq!(write(&mut alice, 0), Some(CONFLICT), "{by:?}");
        fixture.end();
    }
}

#[test]
fn sessions_count_for_the_client_that_has_them() {
    for by in ISCSI {
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
    for by in ISCSI {
        connections_are_left_for_others_by(by);
    }
}

fn connections_are_left_for_others_by(by: LoginMethod) {
    let limits = "[limits]\nconnections = 8\n";
    let fixture = Fixture::with(by, limits, &CLIENTS);
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

/// What a login that asks to join session `tsih` is told by each answer.
fn answers_to_join(
    fixture: &Fixture,
    who: &str,
    (isid, tsih, cid): (u8, u16, u16),
) -> Vec<LoginAnswer> {
    let config = fixture.config(who, (NAME, isid), Some(TARGET));
    let place = LoginPurpose { tsih, cid, cmd_sn: 1000 };
    let (mut login, mut request) = InitiatorLogin::join(config, place, entropy());
    let (mut peer, mut told) = (Peer::connect(fixture.portal), Vec::new());
    loop {
        peer.send(request.header, request.data);
        let answer = peer.receive().expect("an answer");
        let Header::LoginResponse(response) = answer.header else { panic!("{answer:?}") };
        let status = (response.status_class, response.status_detail);
        told.push((status, response.exp_cmd_sn, response.max_cmd_sn));
        if status != (0, 0) {
            return told;
        }
        match login.handle(&response, &answer.data, &peer.transcript()).expect("a login") {
            Progress::Continue(next, pdu) => (login, request) = (next, pdu),
            Progress::Done(..) => return told,
        }
    }
}

/// Status class and detail, ExpCmdSN, MaxCmdSN.
type LoginAnswer = ((u8, u8), u32, u32);

/// Neither before it has proven who it is, nor then, if it is somebody else. Neither a connection beside that of the
/// session nor one in its place (RFC 7143, 6.3.4) gets in.
#[test]
fn a_login_that_asks_to_join_a_session_of_another_learns_nothing_of_it() {
    for by in ISCSI {
        let fixture = Fixture::new(by);
        let mut tsihs = Vec::new();
        for isid in 1..=6 {
            let config = fixture.config("alice", (NAME, isid), Some(TARGET));
            let (peer, tsih) = log_in_for_tsih(Peer::connect(fixture.portal), config);
            let mut alice = Session::Iscsi(Box::new(peer));
            alice.says(0);
            for (who, cid) in [("mallory", 0), ("mallory", 1), ("bob", 1)] {
                let there = answers_to_join(&fixture, who, (isid, tsih, cid));
                let absent = answers_to_join(&fixture, who, (isid, tsih ^ 0x5555, cid));
                assert_eq!(there, absent, "{by:?} {who}: whether there is such a session");
                assert_ne!(there.last().unwrap().0, (0, 0), "{by:?} {who}");
                // RFC 7143, 4.2.2.1: such numbers are ignored.
                let ignored = |(_, exp, max): &LoginAnswer| max.wrapping_sub(exp - 1) as i32 <= -1;
                assert!(there.iter().all(ignored), "{by:?} {there:?}");
            }
            assert!(is_undisturbed(&mut alice, 0), "{by:?}");
            let own = answers_to_join(&fixture, "alice", (isid, tsih, 1));
            assert_eq!(own.last().unwrap().0, (0, 0), "{by:?}: with the same proof");
            tsihs.push(tsih);
            std::mem::forget(alice);
        }
        let steps: Vec<_> = tsihs.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert!(steps.iter().any(|step| *step != steps[0]), "they can be guessed: {tsihs:?}");
        fixture.end();
    }
}

/// A login whose TSIH counts.
fn log_in_for_tsih(mut peer: Peer, config: Config) -> (Peer, u16) {
    let (mut login, mut request) = InitiatorLogin::start(config, entropy());
    loop {
        peer.send(request.header, request.data);
        let answer = peer.receive().expect("an answer");
        let Header::LoginResponse(response) = answer.header else { panic!("{answer:?}") };
        match login.handle(&response, &answer.data, &peer.transcript()).expect("a login") {
            Progress::Continue(next, pdu) => (login, request) = (next, pdu),
            Progress::Done(established, seals) => {
                peer.cmd_sn = established.cmd_sn;
                if let Some(seals) = seals {
                    peer.secure(*seals);
                }
                return (peer, established.tsih);
            }
        }
    }
}
