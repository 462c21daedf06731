//! The vectors of the specification, which were not computed by this code.

use serde_json::Value;

use super::soft::new_aes_256_gcm;
use super::*;
use crate::identity::Identity;

fn vectors() -> Value {
    let text = include_str!("../../../../docs/spec/vectors/sealed-iscsi.json");
    serde_json::from_str(text).unwrap()
}

fn bytes(value: &Value) -> Vec<u8> {
    let digits: Vec<u8> =
        value.as_str().unwrap().chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn array<const N: usize>(value: &Value) -> [u8; N] {
    bytes(value).try_into().unwrap()
}

fn transcripts(value: &Value) -> Transcripts {
    Transcripts { initiator: array(&value[0]), target: array(&value[1]) }
}

fn identity(value: &Value) -> Identity {
    let secret = bytes(&value["secret"]);
    Identity::fresh(&mut |buffer| buffer.copy_from_slice(&secret))
}

fn ephemeral(value: &Value) -> Ephemeral {
    Ephemeral::fresh(&mut |buffer| buffer.copy_from_slice(&bytes(value)))
}

fn masters(vectors: &Value) -> [Master; 2] {
    masters_with(vectors, None)
}

fn masters_with(vectors: &Value, invitation: Option<&InvitationSecret>) -> [Master; 2] {
    let (client, target) = (identity(&vectors["client"]), identity(&vectors["target"]));
    let (ours, theirs) = (&vectors["ephemerals"][0], &vectors["ephemerals"][1]);
    let (initiating, first) = Initiating::start(&client, &target.public(), ephemeral(ours));
    assert_eq!(first, bytes(&vectors["messages"][0]));
    let responding = Responding::read(&target, ephemeral(theirs), &first).unwrap();
    assert_eq!(responding.client().as_bytes(), &array(&vectors["client"]["public"]));
    let (second, theirs) = responding.answer(invitation);
    assert_eq!(second, bytes(&vectors["messages"][1]));
    [initiating.finish(&second, invitation).unwrap(), theirs]
}

#[test]
fn keys_as_text() {
    let vectors = vectors();
    for who in ["client", "target"] {
        let identity = identity(&vectors[who]);
        assert_eq!(identity.public().as_bytes(), &array(&vectors[who]["public"]));
        assert_eq!(identity.public().to_string(), vectors[who]["public_text"].as_str().unwrap());
    }
    let secret = vectors["client"]["secret_text"].as_str().unwrap();
    assert_eq!(identity(&vectors["client"]).to_secret_text().as_str(), secret);
    let read = Identity::from_secret_text(secret).unwrap();
    assert_eq!(read.public(), identity(&vectors["client"]).public());
}

#[test]
fn the_handshake_and_the_proof() {
    let vectors = vectors();
    let before = transcripts(&vectors["before_proof"]);
    for master in masters(&vectors) {
        assert_eq!(master.proof(&before).as_bytes(), &array(&vectors["proof"]));
    }
}

/// Spec, 7.
#[test]
fn the_secret_of_an_invitation() {
    let vectors = vectors();
    let told = &vectors["invitation"];
    let secret = InvitationSecret::from_bytes(&array(&told["secret"]));
    assert_eq!(secret.id().as_bytes(), &array(&told["id"]));
    let before = transcripts(&vectors["before_proof"]);
    for master in masters_with(&vectors, Some(&secret)) {
        assert_eq!(master.proof(&before).as_bytes(), &array(&told["proof"]));
    }
}

#[test]
fn keys_and_sealed_pdus() {
    let vectors = vectors();
    let [master, _] = masters(&vectors);
    let login = transcripts(&vectors["login"]);
    let streams = vectors["streams"].as_array().unwrap();
    assert_eq!(streams.len(), 4);
    for stream in streams {
        let direction = match stream["direction"].as_str().unwrap() {
            "I" => Direction::FromInitiator,
            _ => Direction::FromTarget,
        };
        let protection = match stream["protection"].as_str().unwrap() {
            "encrypt" => Protection::Encrypt,
            _ => Protection::Integrity,
        };
        let cid = stream["cid"].as_u64().unwrap() as u16;
        let secret = || master.traffic(direction, protection, cid, &login);
        let mut next = secret();
        for key in stream["keys"].as_array().unwrap() {
            assert_eq!(*next.key(), array::<32>(key));
            next = next.next();
        }
        // The change of keys is the third PDU under each.
        let limits = Limits { pdus: 3, ..Limits::SPEC };
        let mut sealer = Sealer::new(direction, protection, secret(), new_aes_256_gcm, limits);
        let mut opener = Opener::new(direction, protection, secret(), new_aes_256_gcm, limits);
        let (mut expected, mut sealed) = (Vec::new(), Vec::new());
        for pdu in stream["pdus"].as_array().unwrap() {
            let wire = bytes(&pdu["sealed"]);
            expected.extend_from_slice(&wire);
            check_opens(&mut opener, wire, pdu);
            if pdu["rekey"].is_null() {
                let (header, body) = (array(&pdu["header"]), bytes(&pdu["body"]));
                let ticket = sealer.next(body.len(), &mut sealed);
                ticket.seal_header(&header, &mut sealed);
                if !body.is_empty() {
                    ticket.seal_body(&body, &mut sealed);
                }
            }
        }
        // The last change of keys is due with the next PDU only.
        let last = SEALED_BHS_LEN;
        assert_eq!(sealed, expected[..expected.len() - last]);
    }
}

fn check_opens(opener: &mut Opener, mut wire: Vec<u8>, pdu: &Value) {
    let (header, body) = wire.split_first_chunk_mut::<SEALED_BHS_LEN>().unwrap();
    let head = opener.open_header(header).unwrap();
    if pdu["rekey"].is_null() {
        assert_eq!(head, Head::Pdu(array(&pdu["header"])));
        if !body.is_empty() {
            opener.open_body(body).unwrap();
            assert_eq!(body[..body.len() - TAG_LEN], bytes(&pdu["body"]));
        }
    } else {
        assert_eq!(head, Head::Rekeyed);
    }
}
