//! Target ports, their groups and how units are accessed by them (SPC-4, 5.16).
//!
//! A target port of an iSCSI target is one of its portal groups (RFC 7143, 4.4.2), and is alone in its target
//! port group here: the portal group tag, the relative target port identifier and the target port group are
//! one number. Access is implicit (TPGS 01b): states are the administrator's to change, as all ports lead to
//! the same store and no initiator has a reason to.

use std::sync::Arc;

use super::Sense;
use super::cdb::MinimumAccess;
use super::sense::{Additional, Key};

/// The identifier of the port of a device that has one.
pub const PORT: u16 = 1;

/// The largest identifier of a port. So many ports, of a target whose name has 223 bytes, fit the SCSI ports
/// page.
pub const PORT_MAX: u16 = 255;

/// A primary target port asymmetric access state (SPC-4, 5.16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessState {
    /// Active/optimized.
    #[default]
    Optimized,
    /// Active/non-optimized: it does all that an optimized one does, and is not the way to take.
    NonOptimized,
    /// The medium is not reached.
    Standby,
    /// Nor is anything else but what tells of ports.
    Unavailable,
}

impl AccessState {
    /// ASYMMETRIC ACCESS STATE.
    const fn code(self) -> u8 {
        match self {
            Self::Optimized => 0x0,
            Self::NonOptimized => 0x1,
            Self::Standby => 0x2,
            Self::Unavailable => 0x3,
        }
    }

    /// What an administrator calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Standby => "standby",
            Self::Unavailable => "unavailable",
        }
    }

    /// What a unit says by whose port the medium is not reached.
    #[must_use]
    pub const fn sense(self) -> Option<Sense> {
        match self {
            Self::Optimized | Self::NonOptimized => None,
            Self::Standby => Some(Sense::new(Key::NotReady, Additional::PORT_IN_STANDBY)),
            Self::Unavailable => Some(Sense::new(Key::NotReady, Additional::PORT_UNAVAILABLE)),
        }
    }

    /// Whether a unit runs a command that came by a port in this state.
    pub fn check(self, minimum: MinimumAccess) -> Result<(), Sense> {
        let Some(sense) = self.sense() else { return Ok(()) };
        let runs = match self {
            Self::Standby => minimum != MinimumAccess::Active,
            _ => minimum == MinimumAccess::Unavailable,
        };
        if runs { Ok(()) } else { Err(sense) }
    }
}

/// A target port, which is alone in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its identifier, from 1 to [`PORT_MAX`].
    pub id: u16,
    /// How units are accessed by it.
    pub access: AccessState,
    /// Whether that has changed since power on.
    pub changed: bool,
}

impl Port {
    /// A port that has just been powered on.
    #[must_use]
    pub const fn new(id: u16, access: AccessState) -> Self {
        Self { id, access, changed: false }
    }
}

/// The ports of a device, as they are seen by one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    all: Arc<[Port]>,
    own: Port,
}

impl Default for Ports {
    /// One port.
    fn default() -> Self {
        let own = Port::new(PORT, AccessState::Optimized);
        Self { all: Arc::new([own]), own }
    }
}

impl Ports {
    /// All ports, as seen by each of them.
    pub fn views(all: &Arc<[Port]>) -> impl Iterator<Item = Self> {
        all.iter().map(|own| Self { all: Arc::clone(all), own: *own })
    }

    /// The port by which they are seen.
    #[must_use]
    pub const fn own(&self) -> Port {
        self.own
    }

    /// Their identifiers.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = u16> {
        self.all.iter().map(|port| port.id)
    }

    /// The answer to REPORT TARGET PORT GROUPS (SPC-4, 6.37), in the long form if `extended`.
    #[must_use]
    pub fn report(&self, extended: bool) -> Vec<u8> {
        const EXTENDED: u8 = 0x10;
        const IMPLICITLY_ALTERED: u8 = 0x02;
        // U_SUP, S_SUP, AN_SUP and AO_SUP. A change takes no time, so that none is ever in transition.
        const SUPPORTED: u8 = 0x08 | 0x04 | 0x02 | 0x01;
        let mut data = if extended { Vec::from([EXTENDED, 0, 0, 0]) } else { Vec::new() };
        for Port { id, access, changed } in self.all.iter() {
            data.extend([access.code(), SUPPORTED]);
            data.extend(id.to_be_bytes());
            let status = if *changed { IMPLICITLY_ALTERED } else { 0 };
            data.extend([0, status, 0, 1]); // One port.
            data.extend([0, 0]);
            data.extend(id.to_be_bytes());
        }
        let mut bytes = (data.len() as u32).to_be_bytes().to_vec();
        bytes.extend(data);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::command::Command;
    use crate::scsi::{DeviceType, Parsed};

    #[test]
    fn every_group_is_reported_with_its_state_and_port() {
        let all = Arc::from([
            Port::new(1, AccessState::Optimized),
            Port { changed: true, ..Port::new(2, AccessState::NonOptimized) },
            Port::new(7, AccessState::Standby),
            Port::new(PORT_MAX, AccessState::Unavailable),
        ]);
        let ports = Ports::views(&all).nth(1).unwrap();
        let expected = [
            [0x00, 0x0F, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1],
            [0x01, 0x0F, 0, 2, 0, 2, 0, 1, 0, 0, 0, 2],
            [0x02, 0x0F, 0, 7, 0, 0, 0, 1, 0, 0, 0, 7],
            [0x03, 0x0F, 0, 255, 0, 0, 0, 1, 0, 0, 0, 255],
        ];
        let short = ports.report(false);
        assert_eq!(short[..4], 48_u32.to_be_bytes());
        assert_eq!(short[4..], expected.concat());
        let long = ports.report(true);
        assert_eq!(long[..8], [0, 0, 0, 52, 0x10, 0, 0, 0]);
        assert_eq!(long[8..], short[4..]);
        assert_eq!((ports.own().id, ports.ids().collect::<Vec<_>>()), (2, [1, 2, 7, 255].into()));
    }

    /// SPC-4, 5.16: each row is a command, and whether it runs in standby and where a port is
    /// unavailable.
    #[test]
    fn command_that_does_not_reach_the_medium_runs_by_a_passive_port() {
        let block = |bytes: &[u8]| {
            let mut block = [0; 16];
            block[..bytes.len()].copy_from_slice(bytes);
            block
        };
        let register = [0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0];
        let rows = [
            (Command::inquiry().cdb, true, true),
            (Command::report_luns(16).cdb, true, true),
            (block(&[0x03, 0, 0, 0, 18]), true, true), // REQUEST SENSE
            (block(&[0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 0, 64]), true, true), // REPORT TARGET PORT GROUPS
            (Command::mode_sense_10().cdb, true, false),
            (Command::read_capacity_16().cdb, true, false),
            (block(&[0x5E, 0, 0, 0, 0, 0, 0, 0, 64]), true, false), // PERSISTENT RESERVE IN
            (block(&register), true, false),
            (Command::test_unit_ready().cdb, false, false),
            (Command::synchronize_cache().cdb, false, false),
            (block(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1]), false, false), // READ (10)
            (block(&[0x2A, 0, 0, 0, 0, 0, 0, 0, 1]), false, false), // WRITE (10)
            (block(&[0x16]), false, false),                         // RESERVE (6)
        ];
        for (block, standby, unavailable) in rows {
            let Parsed { cdb, traits, .. } = Parsed::of(&block, DeviceType::Disk);
            for (state, runs, code) in [
                (AccessState::Optimized, true, None),
                (AccessState::NonOptimized, true, None),
                (AccessState::Standby, standby, Some(0x0B)),
                (AccessState::Unavailable, unavailable, Some(0x0C)),
            ] {
                let told = state.check(traits.minimum_access).err();
                let told = told.map(|sense| {
                    (sense.key, sense.additional.code, Some(sense.additional.qualifier))
                });
                let expected = (!runs).then_some((Key::NotReady, 0x04, code));
                assert_eq!(told, expected, "{cdb:?} {state:?}");
            }
        }
    }
}
