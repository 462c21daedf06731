//! Which targets there are: SendTargets in a discovery session (RFC 7143, appendix C).

use bytes::Bytes;
use proto::iscsi::text;

use super::ConnectOptions;
use super::connect::{self, ConnectError, Portal};

/// A target that a portal tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// Its name, as the portal says it.
    pub name: String,
    /// Where it listens.
    pub portals: Vec<Portal>,
}

/// Asks a portal which targets we may use.
pub async fn discover(
    portal: &Portal,
    options: &ConnectOptions,
) -> Result<Vec<DiscoveredTarget>, ConnectError> {
    let session = connect::log_in(portal, None, options, None).await?;
    let answer = session.text(Bytes::from_static(b"SendTargets=All\0")).await;
    session.close().await;
    let answer = answer.map_err(|loss| ConnectError::Session(portal.clone(), loss))?;
    parse(portal, &answer).ok_or_else(|| ConnectError::List(portal.clone()))
}

/// A TargetName begins a target, the TargetAddresses after it are its own; without any it is where
/// the list came from.
fn parse(asked: &Portal, answer: &[u8]) -> Option<Vec<DiscoveredTarget>> {
    let mut targets: Vec<DiscoveredTarget> = Vec::new();
    for pair in text::parse(answer).ok()? {
        match pair.key {
            "TargetName" => {
                targets.push(DiscoveredTarget { name: pair.value.to_owned(), portals: vec![] });
            }
            "TargetAddress" => targets.last_mut()?.portals.push(Portal::parse(pair.value)?),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read() {
        let asked = Portal { host: "server".into(), port: 3260 };
        let list = b"TargetName=iqn.a\0TargetAddress=10.0.0.1:3260,1\0\
            TargetAddress=[::1]:3261,2\0TargetName=iqn.b\0";
        let targets = parse(&asked, list).unwrap();
        assert_eq!(targets[0].portals.len(), 2);
        assert_eq!(targets[1].portals, std::slice::from_ref(&asked));
        assert_eq!(parse(&asked, b"TargetAddress=10.0.0.1\0"), None);
        assert_eq!(parse(&asked, b""), Some(vec![]));
    }
}
