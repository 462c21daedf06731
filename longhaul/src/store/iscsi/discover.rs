//! Which targets there are: SendTargets in a discovery session (RFC 7143, appendix C).

use bytes::Bytes;
use proto::iscsi::text;

use super::ConnectOptions;
use super::error::{ConnectError, SessionError};
use super::login::log_in;
use super::portal::{is_here, portal};
use crate::store::scsi::OpenError;
use crate::store::slow_login::warn_if_slow;
use crate::uri::Host;

/// So many other portals are tried: each may take its time to be silent.
const OTHERS_MAX: usize = 8;

/// A target that a portal tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// Its name, as the portal says it.
    pub name: String,
    /// Where it listens; where the list came from if it says nothing of use.
    pub portals: Vec<Host>,
    /// Addresses that it says and that are none, or none from here.
    pub unusable: Vec<String>,
}

/// Asks a portal which targets we may use.
pub async fn discover(
    asked: &Host,
    options: &ConnectOptions,
) -> Result<Vec<DiscoveredTarget>, ConnectError> {
    let login = log_in(asked, None, options, None);
    let session = warn_if_slow(asked, login).await.map_err(OpenError::Session)?;
    let answer = session.text(Bytes::from_static(b"SendTargets=All\0")).await;
    session.close().await;
    let answer = answer.map_err(|loss| SessionError::Session(asked.clone(), loss));
    let list = answer
        .and_then(|answer| parse(asked, &answer).ok_or_else(|| SessionError::List(asked.clone())));
    list.map_err(OpenError::Session)
}

/// A TargetName begins a target, the TargetAddresses after it are its own; without any it is where
/// the list came from. An address that means the machine that uses it is of use only there.
fn parse(asked: &Host, answer: &[u8]) -> Option<Vec<DiscoveredTarget>> {
    let mut targets: Vec<DiscoveredTarget> = Vec::new();
    for pair in text::parse(answer).ok()? {
        match pair.key {
            "TargetName" => {
                let (name, portals, unusable) = (pair.value.to_owned(), vec![], vec![]);
                targets.push(DiscoveredTarget { name, portals, unusable });
            }
            "TargetAddress" => {
                let target = targets.last_mut()?;
                let usable = |found: &Host| found.port != 0 && (is_here(asked) || !is_here(found));
                match portal(pair.value).filter(usable) {
                    Some(found) => target.portals.push(found),
                    None => target.unusable.push(pair.value.to_owned()),
                }
            }
            _ => {}
        }
    }
    for target in &mut targets {
        if target.portals.is_empty() {
            target.portals.push(asked.clone());
        }
    }
    Some(targets)
}

/// Where else a target listens, by what it says of itself: the portals of one group, by any of which a session with
/// it is the same session (RFC 7143, 4.4.1). What is an address only where the target runs is left out; and who came
/// by an address of this machine came by a tunnel, perhaps, which nothing must leave.
pub(super) fn others(target: &str, group: u16, known: &Host, answer: &[u8]) -> Vec<Host> {
    let Ok(pairs) = text::parse(answer) else { return Vec::new() };
    let (mut found, mut ours) = (Vec::new(), false);
    for pair in pairs {
        let tag = || pair.value.rsplit_once(',').and_then(|(_, tag)| tag.parse().ok());
        match pair.key {
            "TargetName" => ours = pair.value.eq_ignore_ascii_case(target),
            "TargetAddress" if ours && tag() == Some(group) => {
                found.extend(portal(pair.value));
            }
            _ => {}
        }
    }
    found.retain(|other| other != known && is_here(known) == is_here(other));
    found.truncate(OTHERS_MAX);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read() {
        let asked = Host { name: "server".into(), port: 3260 };
        let list = b"TargetName=iqn.a\0TargetAddress=10.0.0.1:3260,1\0\
            TargetAddress=[2001:db8::1]:3261,2\0TargetName=iqn.b\0";
        let targets = parse(&asked, list).unwrap();
        assert_eq!(targets[0].portals.len(), 2);
        assert_eq!(targets[1].portals, std::slice::from_ref(&asked));
        assert_eq!(parse(&asked, b"TargetAddress=10.0.0.1\0"), None);
        assert_eq!(parse(&asked, b""), Some(vec![]));
    }

    /// Each row: where the list came from, the addresses of a target, and those of them that cannot be used.
    #[test]
    fn addresses_of_no_use_are_left_out_and_named() {
        let host = |name: &str| Host { name: name.into(), port: 3260 };
        for (asked, told, portals, unusable) in [
            (
                "server",
                vec!["10.0.0.1,1", "0.0.0.0:3260,1"],
                vec!["10.0.0.1"],
                vec!["0.0.0.0:3260,1"],
            ),
            (
                "server",
                vec!["127.0.0.1,1", "a b", "b:0"],
                vec!["server"],
                vec!["127.0.0.1,1", "a b", "b:0"],
            ),
            ("localhost", vec!["127.0.0.1,1", "[::]:3260"], vec!["127.0.0.1", "::"], vec![]),
        ] {
            let list: String = told.iter().map(|at| format!("TargetAddress={at}\0")).collect();
            let target = parse(&host(asked), format!("TargetName=iqn.a\0{list}").as_bytes());
            let target = target.unwrap().remove(0);
            let expected: Vec<_> = portals.into_iter().map(host).collect();
            assert_eq!((target.portals, target.unusable.len()), (expected, unusable.len()));
            assert!(target.unusable.iter().eq(unusable), "{told:?}");
        }
    }

    #[test]
    fn other_portals_are_those_of_the_group_and_not_this_machine() {
        let portal = |host: &str, port| Host { name: host.into(), port };
        let list = b"TargetName=iqn.b\0TargetAddress=10.0.0.9:3260,1\0TargetName=iqn.a\0\
            TargetAddress=10.0.0.1:3260,1\0TargetAddress=[fe80::1]:3261,1\0TargetAddress=10.0.0.2,2\0\
            TargetAddress=127.0.0.1:3262,1\0TargetAddress=0.0.0.0,1\0TargetAddress=10.0.0.3\0";
        let found = |known| others("iqn.a", 1, &known, list);
        assert_eq!(found(portal("10.0.0.1", 3260)), [portal("fe80::1", 3261)]);
        let here = [portal("127.0.0.1", 3262), portal("0.0.0.0", 3260)];
        assert_eq!(found(portal("localhost", 3260)), here);
        assert_eq!(others("iqn.a", 1, &portal("a", 1), b"no text"), []);
    }
}
