use volume::{Durability, Space};

use super::*;

const FIRST: u64 = 0;
const SECOND: u64 = 16384;
const OTHER: u64 = 32768;

fn read(_: u64, bytes: &[u8]) -> Option<String> {
    let bytes = &bytes[..512];
    (bytes[0] != 0).then(|| char::from(bytes[0]).to_string())
}

fn span(at: u64) -> Span {
    Span::new(at, 4096)
}

/// A volume with "a" in both copies.
fn known() -> KnownIdentity {
    let (copies, others) = (vec![span(FIRST), span(SECOND)], vec![span(OTHER)]);
    let known = KnownIdentity::default();
    known.set(Identity { uuid: Some("a".into()), copies, others, is_blank: false, read });
    known
}

/// One that has none yet.
fn blank(is_blank: bool) -> KnownIdentity {
    let others = [FIRST, SECOND, OTHER].map(span).to_vec();
    let known = KnownIdentity::default();
    known.set(Identity { uuid: None, copies: Vec::new(), others, is_blank, read });
    known
}

fn copies(found: [&str; 2]) -> Vec<(u64, Result<Bytes, ()>)> {
    let copy = |text: &str| match text {
        "unread" => Err(()),
        text => {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(4096, 0);
            Ok(bytes.into())
        }
    };
    [FIRST, SECOND].into_iter().zip(found.map(copy)).collect()
}

/// Whether a volume that holds this in its first two places is taken for ours. Only the places that tell are read.
fn has(known: &KnownIdentity, found: [&str; 2]) -> Result<bool, ()> {
    let telling = known.copies();
    let is_read = |(at, _): &(u64, _)| telling.iter().any(|span| span.at == *at);
    known.lock().judge(copies(found).into_iter().filter(is_read).collect())
}

fn write(at: u64, first: u8, len: usize) -> Change {
    let data = Bytes::from(vec![first; len]);
    Change::Write { at, data, durability: Durability::Volatile, is_alone: true }
}

/// A write that is answered, and not durable.
fn written(known: &KnownIdentity, at: u64, first: u8) {
    known.track(&write(at, first, 4096)).expect("it is tracked").answered(false);
}

#[test]
fn one_copy_shows_the_identity() {
    let known = known();
    for (copies, shows) in [
        (["a", "a"], Ok(true)),
        (["a", "b"], Ok(true)),
        (["", "a"], Ok(true)),
        (["unread", "a"], Ok(true)),
        (["unread", "b"], Err(())),
        (["b", "b"], Ok(false)),
        (["", ""], Ok(false)),
    ] {
        assert_eq!(has(&known, copies), shows, "{copies:?}");
    }
    assert_eq!(has(&KnownIdentity::default(), ["b", "b"]), Ok(true), "none is known");
}

#[test]
fn volume_may_get_another_identity_from_our_own_changes_only() {
    let known = known();
    assert!(known.track(&write(512, b'c', 512)).is_none(), "not in the first block");
    drop(known.track(&write(0, b'a', 512)));
    assert_eq!(known.uuid().as_deref(), Some("a"), "the same again");
    drop(known.track(&write(16384 - 512, b'c', 1024)));
    assert_eq!(known.uuid(), None, "the second copy");
    for (copies, shows) in [(["a", "c"], true), (["c", "c"], true), (["", "b"], false)] {
        assert_eq!(has(&known, copies), Ok(shows), "{copies:?}");
    }
    assert_eq!(has(&known, ["", ""]), Ok(false));
    drop(known.track(&Change::Discard(Span::new(0, 1 << 20))));
    assert_eq!(has(&known, ["", ""]), Ok(true));
    assert_eq!(has(&known, ["", "b"]), Ok(false), "another volume");
}

/// A header that is written over the connection is that of the volume from then on.
#[test]
fn volume_without_an_identity_gets_the_one_that_is_written() {
    let known = blank(true);
    assert!(known.copies().is_empty(), "nothing is read");
    assert_eq!(has(&known, ["b", "b"]), Ok(true), "none is known");
    written(&known, FIRST, b'u');
    assert_eq!(known.uuid(), None, "it may be lost with a cache");
    for (copies, shows) in [(["u", ""], true), (["", ""], true), (["b", "b"], false)] {
        assert_eq!(has(&known, copies), Ok(shows), "{copies:?}");
    }
    let covered = known.covered();
    written(&known, SECOND, b'u');
    assert!(known.settle(covered));
    assert_eq!(has(&known, ["", ""]), Ok(false), "the first is durable");
    assert_eq!(has(&known, ["u", ""]), Ok(true));
    assert_eq!(known.uuid(), None, "the second is not");
    assert!(known.settle(known.covered()));
    assert_eq!(known.uuid().as_deref(), Some("u"));
    for (copies, shows) in [(["u", "b"], true), (["", "u"], true), (["", ""], false)] {
        assert_eq!(has(&known, copies), Ok(shows), "{copies:?}");
    }
}

#[test]
fn durable_write_leaves_nothing_of_what_was_before() {
    let known = known();
    for at in [FIRST, SECOND] {
        assert!(known.track(&write(at, b'c', 4096)).unwrap().answered(true));
    }
    assert_eq!(known.uuid().as_deref(), Some("c"));
    assert_eq!(has(&known, ["a", "a"]), Ok(false));
    let wiped = Change::Zero {
        span: Span::new(0, 1 << 20),
        durability: Durability::Durable,
        space: Space::Release,
    };
    assert!(known.track(&wiped).unwrap().answered(true));
    assert!(known.copies().is_empty(), "it has none any more");
    assert_eq!(has(&known, ["b", "b"]), Ok(true));
}

/// A discard may do nothing, a failed write anything, and of two writes at the same time either may be the last.
#[test]
fn partly_landed_change_stays_possible() {
    let discarded = known();
    let discard = Change::Discard(Span::new(0, 1 << 20));
    discarded.track(&discard).unwrap().answered(false);
    discarded.settle(discarded.covered());
    assert_eq!(has(&discarded, ["a", "a"]), Ok(true));
    assert_eq!(has(&discarded, ["", ""]), Ok(true));
    let failed = known();
    drop(failed.track(&write(FIRST, b'c', 4096)));
    failed.settle(failed.covered());
    assert_eq!(has(&failed, ["a", "b"]), Ok(true));
    let both = blank(true);
    let (one, two) = (both.track(&write(0, b'c', 512)), both.track(&write(0, b'd', 512)));
    two.unwrap().answered(true);
    one.unwrap().answered(true);
    both.settle(both.covered());
    for uuid in ["c", "d"] {
        assert_eq!(has(&both, [uuid, ""]), Ok(true), "{uuid}");
    }
    written(&both, FIRST, b'e');
    both.settle(both.covered());
    assert_eq!(both.uuid().as_deref(), Some("e"));
}

#[test]
fn damaged_copy_is_not_looked_for() {
    let torn = known();
    assert_eq!(torn.confirm(copies(["b", "b"])), Ok(false));
    assert_eq!(torn.confirm(copies(["", "a"])), Ok(true));
    assert_eq!(torn.copies(), [span(SECOND)]);
    assert!(torn.track(&write(SECOND, 0, 4096)).unwrap().answered(true));
    assert_eq!(has(&torn, ["", ""]), Ok(true), "it was overwritten here");
    let unknown = blank(false);
    written(&unknown, FIRST, b'u');
    assert_eq!(has(&unknown, ["x", ""]), Ok(true), "what was there before");
    unknown.settle(unknown.covered());
    assert_eq!(has(&unknown, ["x", ""]), Ok(false));
}

#[test]
fn headers_that_may_be_found_are_bounded() {
    let known = known();
    for n in 0..10_000_u64 {
        written(&known, FIRST, (n % 200) as u8);
    }
    written(&known, FIRST, b'z');
    assert_eq!(has(&known, ["z", ""]), Ok(true));
    assert_eq!(has(&known, ["", "a"]), Ok(true));
    known.settle(known.covered());
    assert_eq!(has(&known, ["a", "b"]), Ok(true), "the second copy");
    assert_eq!(has(&known, ["b", "b"]), Ok(false));
}
