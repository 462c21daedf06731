//! What sealed sessions between test machines are made of.

use proto::identity::Identity;
use proto::iscsi::login::initiator::{self, Pinned};
use proto::iscsi::login::policy::{Client, Policy, UnitName};
use proto::iscsi::login::target;
use proto::iscsi::sealed::*;

use super::login::{disk, initiator, other_disk, target_config};

#[path = "../../src/iscsi/sealed/soft.rs"]
pub mod soft;

pub fn identity(byte: u8) -> Identity {
    Identity::fresh(&mut |buffer| buffer.fill(byte))
}

pub const CLIENT: u8 = 11;
pub const TARGET: u8 = 12;
pub const STRANGER: u8 = 13;

pub fn sealing(who: u8) -> Sealing {
    Sealing { identity: identity(who), new_cipher: soft::new_aes_256_gcm, limits: Limits::SPEC }
}

/// A client that pins the target.
pub fn pinned(protection: Protection) -> initiator::Config {
    let target = identity(TARGET).public();
    let pinned = Pinned { sealing: sealing(CLIENT), target, protection, invitation: None };
    initiator::Config { pinned: Some(pinned), ..initiator() }
}

/// A target that lists the client and demands as much of sessions with `disk`.
pub fn sealing_target(demanded: Option<Protection>) -> target::Config {
    let key = Some(identity(CLIENT).public());
    let unit = UnitName { target: disk(), lun: 0 };
    let client = Client { key, units: Some(vec![unit]), ..Client::default() };
    let mut policy = Policy::closed(vec![disk(), other_disk()], vec![client], Vec::new());
    if let Some(protection) = demanded {
        policy = policy.demanding(disk(), protection);
    }
    target::Config { policy, sealing: Some(sealing(TARGET)), ..target_config() }
}
