//! Two sides of a login, joined without a link.

use std::sync::Arc;

use proto::iscsi::chap::{Account, Algorithm, Credentials, Secret};
use proto::iscsi::header::Header;
use proto::iscsi::keys::Offer;
use proto::iscsi::login::Entropy;
use proto::iscsi::login::initiator::{self, InitiatorLogin, LoginError};
use proto::iscsi::login::policy::{Client, Policy, UnitName};
use proto::iscsi::login::target::{self, TargetLogin};
use proto::iscsi::name::{IscsiName, Isid};
use proto::iscsi::sealed::Transcript;
use proto::iscsi::text::TEXT_MAX;

pub fn disk() -> IscsiName {
    IscsiName::new("iqn.2026-11.dev.longhaul:disk").unwrap()
}

pub fn other_disk() -> IscsiName {
    IscsiName::new("iqn.2026-11.dev.longhaul:other").unwrap()
}

pub fn initiator() -> initiator::Config {
    initiator::Config {
        initiator: IscsiName::new("iqn.2026-11.dev.longhaul:client").unwrap(),
        isid: Isid::random([1, 2, 3], 4),
        target: Some(disk()),
        account: None,
        pinned: None,
        algorithms: Algorithm::ALL.to_vec(),
        offer: Offer::for_long_links(),
    }
}

/// A portal that asks for nothing.
pub const ENTRANCE: target::PortalRules =
    target::PortalRules { portal_group_tag: 7, demanded: None };

/// A target that anyone may use.
pub fn target_config() -> target::Config {
    target::Config {
        policy: Policy::open(vec![disk(), other_disk()]),
        offer: Offer::for_long_links(),
        sealing: None,
        command_window: 128,
        text_max: TEXT_MAX,
    }
}

/// A target whose one client may use `disk`.
pub fn closed(account: Account) -> target::Config {
    closed_with(account, Algorithm::ALL.to_vec())
}

pub fn closed_with(account: Account, algorithms: Vec<Algorithm>) -> target::Config {
    let units = Some(vec![UnitName { target: disk(), lun: 0 }]);
    let client = Client { account: Some(account), units, ..Client::default() };
    let policy = Policy::closed(vec![disk(), other_disk()], vec![client], algorithms);
    target::Config { policy, ..target_config() }
}

pub fn account(name: &str) -> Account {
    Account::one_way(credentials(name, "alice's secret"))
}

pub fn wrong_secret() -> Account {
    Account::one_way(credentials("alice", "another secret"))
}

/// An account whose target proves itself under `target`.
pub fn mutual(target: &str) -> Account {
    let alice = credentials("alice", "alice's secret");
    Account::mutual(alice, credentials(target, "the disk's secret")).unwrap()
}

fn credentials(name: &str, secret: &str) -> Credentials {
    Credentials { name: name.into(), secret: Secret::new(secret).unwrap() }
}

pub fn entropy(byte: u8) -> Entropy {
    Entropy::fresh(&mut |buffer| buffer.fill(byte))
}

#[derive(Debug)]
pub struct Done {
    pub initiator: initiator::Established,
    pub target: target::Established,
    pub round_trips: u32,
}

/// Runs a login to its end; the error is what the initiator sees.
pub fn login(initiator: initiator::Config, target: target::Config) -> Result<Done, LoginError> {
    let (mut ours, mut request) = InitiatorLogin::start(initiator, entropy(1));
    let mut theirs = Some(TargetLogin::new(Arc::new(target), ENTRANCE, entropy(2)));
    let (mut up, mut down) = (Transcript::default(), Transcript::default());
    let mut established = None;
    for round_trips in 1.. {
        let Header::LoginRequest(header) = request.header else { panic!("not a login") };
        let side = theirs.take().expect("the target had ended");
        up.add_pdu(&request);
        let response = match side.handle(&header, &request.data, &up) {
            target::Progress::Continue(next, response) => {
                theirs = Some(*next);
                response
            }
            target::Progress::Admit(admission) => {
                let (response, done, _) = admission.admit(1);
                established = Some(done);
                response
            }
            target::Progress::Refused(refusal) => refusal.response,
        };
        let Header::LoginResponse(header) = response.header else { panic!("not a login") };
        down.add_pdu(&response);
        match ours.handle(&header, &response.data, &down)? {
            initiator::Progress::Continue(next, next_request) => {
                (ours, request) = (next, next_request);
            }
            initiator::Progress::Done(initiator, _) => {
                let target = established.expect("the target is not done");
                return Ok(Done { initiator: *initiator, target, round_trips });
            }
        }
    }
    unreachable!("both sides end")
}
