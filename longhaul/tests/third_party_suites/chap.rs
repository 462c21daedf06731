//! CHAP as an initiator speaks it that makes mistakes, or means no good (RFC 7143, 9.2.1 and 12.1.3).

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use proto::iscsi::chap::{Algorithm, Challenge, Secret, respond};
use proto::iscsi::header::{Header, LoginRequest};
use proto::iscsi::login::LoginStatus;
use proto::iscsi::text;

use super::{NAME, TARGET, serve};
use crate::common::Running;
use crate::peer::{self, Peer};

const REFUSED: LoginStatus = LoginStatus::AUTHENTICATION_FAILURE;

const MISSING: LoginStatus = LoginStatus::MISSING_PARAMETER;
const WRONG: LoginStatus = LoginStatus::INITIATOR_ERROR;

/// Of the client that the target proves itself to.
const LAPTOP: (&str, &str) = ("laptop", "the secret of laptop");
/// How it does so.
const SERVER: (&str, &str) = ("server", "the secret of server");
/// Of a client that it does not.
const DESK: (&str, &str) = ("desk", "the secret of desk");

struct Fixture {
    server: Running,
    portal: SocketAddr,
    _home: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        for (name, secret) in [LAPTOP, SERVER, DESK] {
            let path = home.path().join(name);
            fs::write(&path, secret).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        let config = "listen = ['127.0.0.1:0']\n[volumes.disk]\nuri = 'memory:1M'\n\
            [clients.laptop]\nvolumes = ['disk']\nchap_secret_file = 'laptop'\n\
            chap_mutual_user = 'server'\nchap_mutual_secret_file = 'server'\n\
            [clients.desk]\nvolumes = ['disk']\nchap_secret_file = 'desk'\n";
        let file = home.path().join("longhaul.toml");
        fs::write(&file, config).unwrap();
        let file = file.to_str().unwrap().to_owned();
        let (server, portal) = serve(&["--config".to_owned(), file], 1);
        Self { server, portal, _home: home }
    }

    /// A login that has begun.
    fn begin(&self) -> Login {
        Login { peer: Peer::connect(self.portal) }
    }

    /// One that has agreed on CHAP, and on nothing else.
    fn agreed(&self) -> Login {
        let mut login = self.begin();
        assert_eq!(
            login.say(&[&names(), "AuthMethod=CHAP\0"].concat(), false).key("AuthMethod"),
            "CHAP"
        );
        login
    }

    /// One that has been challenged, and the challenge.
    fn challenged(&self) -> (Login, Challenge) {
        let mut login = self.agreed();
        let answer = login.say("CHAP_A=7\0", false);
        assert_eq!(answer.key("CHAP_A"), "7");
        let challenge = answer.challenge();
        (login, challenge)
    }

    /// What a challenged login is refused with that says this.
    fn refuses(&self, text: impl FnOnce(&Challenge) -> String) {
        self.refuses_with(REFUSED, text);
    }

    fn refuses_with(&self, status: LoginStatus, text: impl FnOnce(&Challenge) -> String) {
        let (mut login, challenge) = self.challenged();
        let text = text(&challenge);
        login.say(&text, true).refused(status, &mut login, &text);
    }

    fn end(self) {
        assert!(self.server.stop().success());
    }
}

/// A login under way.
struct Login {
    peer: Peer,
}

/// What is said to one request.
struct Answer {
    status: LoginStatus,
    begun: bool,
    text: Vec<u8>,
}

impl Login {
    /// Says this in the security stage; `leaving` it for the session.
    fn say(&mut self, text: &str, leaving: bool) -> Answer {
        let next_stage = if leaving { 3 } else { 0 };
        let request =
            LoginRequest { transit: leaving, current_stage: 0, next_stage, ..peer::login(1) };
        self.peer.send(request, text.to_owned());
        let pdu = self.peer.receive().expect("an answer");
        let Header::LoginResponse(response) = pdu.header else { panic!("{pdu:?}") };
        let status = LoginStatus { class: response.status_class, detail: response.status_detail };
        Answer { status, begun: response.transit, text: pdu.data.to_vec() }
    }
}

impl Answer {
    /// The value of a key; empty if it is not there.
    fn key(&self, key: &str) -> String {
        assert_eq!(self.status, LoginStatus::SUCCESS);
        let pairs = text::parse(&self.text).unwrap();
        pairs
            .iter()
            .find(|pair| pair.key == key)
            .map(|pair| pair.value.to_owned())
            .unwrap_or_default()
    }

    fn challenge(&self) -> Challenge {
        let id = text::number(&self.key("CHAP_I")).expect("CHAP_I");
        let bytes = text::binary(&self.key("CHAP_C")).expect("CHAP_C");
        Challenge { id: id.try_into().unwrap(), bytes }
    }

    /// A refusal says nothing more, and is the end of the connection.
    fn refused(&self, status: LoginStatus, login: &mut Login, what: &str) {
        assert_eq!((self.status, self.begun), (status, false), "{what:.80}");
        assert!(self.text.is_empty(), "{what:.80}");
        assert!(login.peer.receive().is_none(), "{what:.80}");
    }
}

fn names() -> String {
    format!("InitiatorName={NAME}\0TargetName={TARGET}\0SessionType=Normal\0")
}

fn proof((_, secret): (&str, &str), challenge: &Challenge) -> Vec<u8> {
    respond(Algorithm::Sha256, &Secret::new(secret).unwrap(), challenge, None).unwrap()
}

fn says(name: &str, proof: &[u8]) -> String {
    format!("CHAP_N={name}\0CHAP_R={}\0", text::hex(proof))
}

/// What proves a client, as all mistakes here begin with it.
fn good(client: (&str, &str), challenge: &Challenge) -> String {
    says(client.0, &proof(client, challenge))
}

/// A challenge of our own.
fn challenge_back(id: &str, value: &str) -> String {
    format!("CHAP_I={id}\0CHAP_C={value}\0")
}

/// RFC 7143, 12.1.3: the first of the list that is allowed.
#[test]
fn the_algorithm_is_one_of_the_list_that_is_allowed() {
    let fixture = Fixture::new();
    for (list, chosen) in [("7", "7"), ("8,7", "8"), ("7,8", "7"), ("5,6,7", "7"), ("99,0x7", "7")]
    {
        let answer = fixture.agreed().say(&format!("CHAP_A={list}\0"), false);
        assert_eq!(answer.key("CHAP_A"), chosen, "{list}");
        assert_eq!(answer.challenge().bytes.len(), 32);
    }
    // MD5 and SHA-1 are weak; the others are none, though some are 7 to a careless reader.
    for list in
        ["5", "6", "5,6", "99", "", ",", "x", "7x", " 7", "-7", "263", "4294967303", "Reject"]
    {
        let (text, mut login) = (format!("CHAP_A={list}\0"), fixture.agreed());
        login.say(&text, false).refused(REFUSED, &mut login, &text);
    }
    fixture.end();
}

#[test]
fn only_a_whole_proof_proves() {
    let fixture = Fixture::new();
    let (mut login, challenge) = fixture.challenged();
    assert!(
        login.say(&good(LAPTOP, &challenge), true).begun,
        "which all that follow are made from"
    );
    let (name, old) = (LAPTOP.0, challenge);
    let with = |change: fn(&mut Vec<u8>)| {
        move |challenge: &Challenge| {
            let mut proof = proof(LAPTOP, challenge);
            change(&mut proof);
            says(name, &proof)
        }
    };
    // RFC 7143, 9.2: what a step lacks is told from what it does not prove.
    fixture.refuses_with(MISSING, |challenge| {
        format!("CHAP_R={}\0", text::hex(&proof(LAPTOP, challenge)))
    });
    fixture.refuses_with(MISSING, |_| format!("CHAP_N={name}\0"));
    fixture.refuses_with(MISSING, |_| String::new());
    fixture.refuses(|challenge| says("", &proof(LAPTOP, challenge)));
    fixture.refuses(|challenge| says("lapto", &proof(LAPTOP, challenge)));
    fixture.refuses(|challenge| says("Laptop", &proof(LAPTOP, challenge)));
    fixture.refuses(|challenge| says(DESK.0, &proof(LAPTOP, challenge)));
    fixture.refuses(|challenge| says(name, &proof(SERVER, challenge)));
    fixture.refuses(with(|proof| proof[31] ^= 1));
    fixture.refuses(with(|proof| proof.truncate(31)));
    fixture.refuses(with(|proof| proof.truncate(16)));
    fixture.refuses(with(|proof| proof.truncate(1)));
    fixture.refuses(with(|proof| proof.push(0)));
    fixture.refuses(with(|proof| proof.insert(0, 0)));
    fixture.refuses(with(|proof| proof.resize(1024, 0)));
    fixture.refuses(with(|proof| proof.fill(0)));
    for not_binary in ["", "0x", "0b", "0xzz", "7", "Reject"] {
        fixture.refuses_with(WRONG, |_| format!("CHAP_N={name}\0CHAP_R={not_binary}\0"));
    }
    fixture.refuses(|_| good(LAPTOP, &old));
    fixture.end();
}

/// The longest binary value has 1024 bytes (RFC 7143, 12.1.3).
#[test]
fn value_longer_than_any_is_refused() {
    let fixture = Fixture::new();
    let long = |len| "n".repeat(len);
    fixture.refuses(|challenge| says(&long(2050), &proof(LAPTOP, challenge)));
    fixture.refuses_with(WRONG, |challenge| says(&long(2051), &proof(LAPTOP, challenge)));
    fixture
        .refuses_with(WRONG, |_| format!("CHAP_N=laptop\0CHAP_R={}\0", text::base64(&[7; 1025])));
    fixture.refuses_with(WRONG, |_| says(LAPTOP.0, &[7; 1025]));
    fixture.refuses_with(WRONG, |challenge| {
        good(LAPTOP, challenge) + &challenge_back("1", &text::base64(&[7; 1025]))
    });
    fixture.refuses_with(WRONG, |challenge| {
        good(LAPTOP, challenge) + &challenge_back("1", &text::hex(&[7; 1025]))
    });
    fixture.end();
}

#[test]
fn the_target_proves_itself_to_whom_it_can() {
    let fixture = Fixture::new();
    let theirs = Challenge { id: 200, bytes: vec![0xa5; 48] };
    let back = challenge_back("200", &text::hex(&theirs.bytes));
    let (mut login, challenge) = fixture.challenged();
    let answer = login.say(&(good(LAPTOP, &challenge) + &back), true);
    assert!(answer.begun);
    assert_eq!(answer.key("CHAP_N"), SERVER.0);
    assert_eq!(text::binary(&answer.key("CHAP_R")), Some(proof(SERVER, &theirs)));
    // It has no secret for the other.
    fixture.refuses(|challenge| good(DESK, challenge) + &back);
    // And proves itself to nobody who has not done so.
    fixture.refuses(|challenge| says(LAPTOP.0, &proof(DESK, challenge)) + &back);
    fixture.end();
}

/// RFC 7143, 9.2.1: answering our own challenge would tell the peer what we want to hear from it.
#[test]
fn a_challenge_that_comes_back_is_not_answered() {
    let fixture = Fixture::new();
    let forms: [fn(&[u8]) -> String; 3] =
        [text::hex, text::base64, |bytes| text::hex(bytes).to_uppercase().replacen('X', "x", 1)];
    for form in forms {
        // The identifier makes no difference.
        for shift in [0, 1] {
            fixture.refuses(|challenge| {
                let id = challenge.id.wrapping_add(shift).to_string();
                good(LAPTOP, challenge) + &challenge_back(&id, &form(&challenge.bytes))
            });
        }
    }
    // Nor is it a proof to send it where the answer belongs.
    fixture.refuses(|challenge| says(LAPTOP.0, &challenge.bytes));
    fixture.end();
}

#[test]
fn half_a_challenge_is_none() {
    let fixture = Fixture::new();
    for half in ["CHAP_I=1\0", "CHAP_C=0x0102\0"] {
        fixture.refuses_with(MISSING, |challenge| good(LAPTOP, challenge) + half);
    }
    for (id, value) in
        [("", "0x01"), ("256", "0x01"), ("-1", "0x01"), ("1", ""), ("1", "0x"), ("1", "x")]
    {
        fixture
            .refuses_with(WRONG, |challenge| good(LAPTOP, challenge) + &challenge_back(id, value));
    }
    fixture.end();
}

#[test]
fn every_key_has_its_step() {
    let fixture = Fixture::new();
    let blind = says(LAPTOP.0, &[0; 32]);
    // The proof before there is anything to prove it with.
    let mut login = fixture.agreed();
    login.say(&blind, false).refused(MISSING, &mut login, "no algorithm");
    // The method left out, and the session wanted all the same.
    for early in ["", "CHAP_A=7\0", &blind] {
        let mut login = fixture.begin();
        let answer = login.say(&(names() + early), false);
        assert_eq!((answer.begun, answer.key("CHAP_A"), answer.key("CHAP_C")), Default::default());
        login.say("", true).refused(REFUSED, &mut login, early);
    }
    // All at once: only what is due is answered, and nothing has begun.
    let mut login = fixture.begin();
    let answer = login.say(&(names() + "AuthMethod=CHAP\0" + &blind), true);
    assert_eq!(
        (answer.begun, &answer.key("AuthMethod")[..], answer.key("CHAP_C")),
        (false, "CHAP", String::new())
    );
    let answer = login.say("CHAP_A=7\0", true);
    assert!(!answer.begun, "a challenge was not answered yet");
    let challenge = answer.challenge();
    login.say(&good(LAPTOP, &challenge), true).refused(WRONG, &mut login, "the proof anew");
    // One more key when all is proven.
    let (mut login, challenge) = fixture.challenged();
    let answer = login.say(&good(LAPTOP, &challenge), false);
    assert_eq!((answer.status, answer.begun), (LoginStatus::SUCCESS, false));
    login.say("CHAP_I=1\0", true).refused(WRONG, &mut login, "after the end");
    fixture.end();
}

/// RFC 7143, 6.3: what is declared twice is an initiator error, in one request or in several.
#[test]
fn no_key_comes_twice() {
    let fixture = Fixture::new();
    for twice in ["AuthMethod=CHAP\0AuthMethod=CHAP\0", "AuthMethod=CHAP\0AuthMethod=None\0"] {
        let mut login = fixture.begin();
        login.say(&(names() + twice), false).refused(WRONG, &mut login, twice);
    }
    for twice in ["CHAP_A=7\0CHAP_A=7\0", "CHAP_A=7\0CHAP_A=5\0", "CHAP_A=7\0AuthMethod=CHAP\0"] {
        let mut login = fixture.agreed();
        login.say(twice, false).refused(WRONG, &mut login, twice);
    }
    let back = challenge_back("1", "0x0102");
    let extra = ["CHAP_N=laptop\0", "CHAP_N=desk\0", "CHAP_R=0x00\0", "CHAP_A=7\0"];
    for extra in extra {
        fixture.refuses_with(WRONG, |challenge| good(LAPTOP, challenge) + extra);
        fixture.refuses_with(WRONG, |challenge| extra.to_owned() + &good(LAPTOP, challenge));
    }
    for extra in ["CHAP_I=1\0", "CHAP_C=0x0304\0"] {
        fixture.refuses_with(WRONG, |challenge| good(LAPTOP, challenge) + &back + extra);
    }
    // Its own proof said again changes nothing, and is refused like the rest.
    fixture.refuses_with(WRONG, |challenge| good(LAPTOP, challenge).repeat(2));
    fixture.end();
}
