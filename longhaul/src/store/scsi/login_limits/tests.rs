//! The time is that which the logins were given: none passes.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt as _;
use volume::layer::reconnect::Failure;

use super::LoginLimits;
use crate::store::scsi::session::{Address, Transport};
use crate::store::scsi::tests::SilentSession;

const LONGEST: Duration = Duration::from_secs(30);

/// How a portal takes a login.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Portal {
    /// It takes connections and answers nothing.
    Frozen,
    /// A login takes ten seconds.
    Slow,
    Fast,
    /// Nobody listens.
    Closed,
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{0:?}")]
struct NoSession(Portal);

/// A target, and how many seconds each login was given.
#[derive(Debug)]
struct Target {
    portals: Vec<Portal>,
    given: Mutex<Vec<(Portal, u64)>>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("target")
    }
}

impl Transport for Target {
    type Session = SilentSession;
    type Portal = Portal;
    type Error = NoSession;

    fn address(&self) -> Address {
        Address { target: "disk".into(), lun: 0, portal: "192.0.2.1".into(), pin: None }
    }

    fn portals(&self) -> Vec<Portal> {
        self.portals.clone()
    }

    async fn log_in(
        &self,
        portal: &Portal,
        _: Option<&SilentSession>,
        within: Duration,
    ) -> Result<SilentSession, NoSession> {
        self.given.lock().unwrap().push((*portal, within.as_secs()));
        match portal {
            Portal::Fast => Ok(SilentSession),
            Portal::Slow if within > Duration::from_secs(10) => Ok(SilentSession),
            Portal::Slow | Portal::Frozen | Portal::Closed => Err(NoSession(*portal)),
        }
    }

    fn opened(&self, _: &SilentSession, _: bool) {}

    fn is_out_of_reach(_: &NoSession) -> bool {
        true
    }

    fn is_silent(why: &NoSession) -> bool {
        why.0 != Portal::Closed
    }

    fn failure(_: &NoSession) -> Failure {
        Failure::NoSession
    }

    fn is_secure(&self) -> bool {
        false
    }

    fn note_stall(&self, _: bool) {}
}

/// How long each login is given when all portals are tried `times` times.
fn given(portals: &[Portal], times: usize, is_again: bool) -> Vec<(Portal, u64)> {
    let target = Target { portals: portals.to_vec(), given: Mutex::default() };
    let limits = LoginLimits::new(LONGEST);
    for portal in (0..times).flat_map(|_| portals) {
        let _ = limits.log_in(&target, portal, None, is_again).now_or_never().unwrap();
    }
    target.given.into_inner().unwrap()
}

#[test]
fn frozen_portal_has_a_little_time_at_first_and_more_each_time_where_there_is_another() {
    let frozen: Vec<_> = given(&[Portal::Frozen, Portal::Fast], 6, true)
        .into_iter()
        .filter_map(|(portal, within)| (portal == Portal::Frozen).then_some(within))
        .collect();
    assert_eq!(frozen, [3, 6, 12, 24, 30, 30]);
}

#[test]
fn slow_portal_is_logged_in_to_though_another_answers_at_once() {
    use Portal::{Fast, Slow};
    let expected = [(Slow, 3), (Fast, 3), (Slow, 6), (Fast, 3), (Slow, 12), (Fast, 3), (Slow, 3)];
    assert_eq!(given(&[Slow, Fast], 4, true)[..7], expected);
}

#[test]
fn portal_that_refuses_connections_gets_no_more_time() {
    use Portal::{Closed, Fast};
    assert_eq!(given(&[Closed, Fast], 2, true), [(Closed, 3), (Fast, 3), (Closed, 3), (Fast, 3)]);
}

#[test]
fn only_portal_and_the_first_login_have_the_whole_time() {
    use Portal::{Fast, Frozen};
    assert_eq!(given(&[Frozen], 2, true), [(Frozen, 30), (Frozen, 30)]);
    assert_eq!(given(&[Frozen, Fast], 1, false), [(Frozen, 30), (Fast, 30)]);
}
