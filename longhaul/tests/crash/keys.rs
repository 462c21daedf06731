//! Two initiators that register, reserve and preempt each other, and what must be left of that when the target
//! has crashed (SPC-4, 5.13.5: with APTPL, all of it but the generation).

use std::net::SocketAddr;

use volume::check::Random;

use crate::peer::Peer;

const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
const NAMES: [&str; 2] = ["iqn.2000-01.example:left", "iqn.2000-01.example:right"];

/// Types of which one initiator is the holder: Write Exclusive, Exclusive Access, and both for registrants.
const TYPES: [u8; 4] = [1, 3, 5, 6];

const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER: u8 = 6; // AND IGNORE EXISTING KEY

/// How the unit is reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    keys: [Option<u64>; 2],
    /// Who holds it, and how.
    holder: Option<(usize, u8)>,
}

/// A change that the rules allow.
struct Change {
    by: usize,
    action: u8,
    kind: u8,
    action_key: u64,
    after: State,
}

/// The two initiators and what they know.
pub(crate) struct Keys {
    random: Random,
    /// As it was when the last change was answered, and as it is if the one under way was made.
    may_be: Vec<State>,
    next_key: u64,
}

impl Keys {
    pub(crate) fn new(seed: u64) -> Self {
        let random = Random::new(seed ^ 0xABCD);
        Self { random, may_be: vec![State::default()], next_key: 1 }
    }

    /// Sessions of both.
    pub(crate) fn log_in(portal: SocketAddr, target: &str) -> [Peer; 2] {
        [0, 1].map(|n| Peer::log_in(portal, NAMES[n], n as u8, target))
    }

    /// After a crash: one of the states that may be, and no change since the power on.
    pub(crate) fn check(&mut self, peers: &mut [Peer; 2]) {
        let (generation, found) = look(&mut peers[0]).expect("the reservations");
        assert_eq!(generation, 0, "it does not survive");
        assert!(self.may_be.contains(&found), "{found:?} is none of {:?}", self.may_be);
        self.may_be = vec![found];
    }

    /// Changes one thing after another until a connection ends; tells of each answer.
    pub(crate) fn run(&mut self, peers: &mut [Peer; 2], answered: impl Fn()) -> Option<()> {
        let mut generation = 0;
        loop {
            let now = self.may_be[0].clone();
            let change = self.choose(&now);
            let Change { by, action, kind, action_key, after } = change;
            let key = now.keys[by].unwrap_or(0);
            self.may_be.push(after.clone());
            let status = out(&mut peers[by], action, kind, key, action_key)?;
            assert_eq!(status, GOOD, "action {action} of {by} in {now:?}");
            self.may_be = vec![after.clone()];
            // RESERVE and RELEASE do not count (SPC-4, 5.13.1).
            generation += u32::from(!matches!(action, RESERVE | RELEASE));
            assert_eq!(look(&mut peers[1 - by])?, (generation, after));
            answered();
        }
    }

    /// Some change that is possible now.
    fn choose(&mut self, now: &State) -> Change {
        let by = self.random.below(2) as usize;
        let kind = TYPES[self.random.below(4) as usize];
        let (other, mut after) = (1 - by, now.clone());
        let change =
            |action, kind, action_key, after| Change { by, action, kind, action_key, after };
        if now.keys[by].is_none() {
            return self.register(by, now);
        }
        match (self.random.below(8), now.holder, now.keys[other]) {
            (0..3, None, _) => {
                after.holder = Some((by, kind));
                change(RESERVE, kind, 0, after)
            }
            (0..2, Some((holder, kind)), _) if holder == by => {
                after.holder = None;
                change(RELEASE, kind, 0, after)
            }
            (2..5, holder, Some(key)) => {
                after.keys[other] = None;
                if holder.is_some_and(|(holder, _)| holder == other) {
                    after.holder = Some((by, kind));
                }
                let action = [PREEMPT, PREEMPT_AND_ABORT][self.random.below(2) as usize];
                change(action, kind, key, after)
            }
            (5, ..) => change(CLEAR, 0, 0, State::default()),
            (6, ..) => {
                after.keys[by] = None;
                after.holder = after.holder.filter(|(holder, _)| *holder != by);
                change(REGISTER, 0, 0, after)
            }
            _ => self.register(by, now),
        }
    }

    fn register(&mut self, by: usize, now: &State) -> Change {
        let (action_key, mut after) = (self.next_key, now.clone());
        self.next_key += 1;
        after.keys[by] = Some(action_key);
        Change { by, action: REGISTER, kind: 0, action_key, after }
    }
}

/// Runs a command, past what the unit has to tell first.
fn run(peer: &mut Peer, cdb: [u8; 16], data: &[u8], room: u32) -> Option<(u8, Vec<u8>)> {
    // At most the power on, and one for each kind of change by the other.
    for _ in 0..8 {
        let (status, data) = peer.run(cdb, data.to_vec(), room)?;
        if status != CHECK_CONDITION {
            return Some((status, data));
        }
    }
    panic!("{cdb:02x?} is refused again and again");
}

/// PERSISTENT RESERVE OUT, with APTPL.
fn out(peer: &mut Peer, action: u8, kind: u8, key: u64, action_key: u64) -> Option<u8> {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    list[20] = 1;
    let mut cdb = [0; 16];
    cdb[..9].copy_from_slice(&[0x5F, action, kind, 0, 0, 0, 0, 0, 24]);
    run(peer, cdb, &list, 0).map(|(status, _)| status)
}

/// The generation, and the state that READ FULL STATUS tells.
fn look(peer: &mut Peer) -> Option<(u32, State)> {
    const ROOM: u16 = 4096;
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x5E, 3);
    cdb[7..9].copy_from_slice(&ROOM.to_be_bytes());
    let (status, data) = run(peer, cdb, &[], ROOM.into())?;
    assert_eq!(status, GOOD);
    let (generation, mut rest) = (word(&data), &data[8..]);
    let mut state = State::default();
    while !rest.is_empty() {
        let length = 24 + word(&rest[20..]) as usize;
        let (one, more) = rest.split_at(length);
        let port = String::from_utf8_lossy(&one[28..]).into_owned();
        let who = NAMES.iter().position(|name| port.starts_with(&format!("{name},i,0x"))).unwrap();
        state.keys[who] = Some(u64::from_be_bytes(one[..8].try_into().unwrap()));
        if one[12] & 1 != 0 {
            state.holder = Some((who, one[13]));
        }
        rest = more;
    }
    Some((generation, state))
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}
