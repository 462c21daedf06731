//! Portal groups, and how volumes are accessed by them.

use std::str::FromStr;

use proto::scsi::ports::{AccessState, PORT, PORT_MAX};

use super::Listen;

/// The number of a portal group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group(pub u16);

impl Default for Group {
    /// The same for all that name none: a session may then have its connections by any of them, and an
    /// initiator that comes back by another one ends what it left behind (RFC 7143, 6.3.5).
    fn default() -> Self {
        Self(PORT)
    }
}

impl TryFrom<u32> for Group {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        match u16::try_from(number) {
            Ok(group @ PORT..=PORT_MAX) => Ok(Self(group)),
            _ => Err(format!("a group is from {PORT} to {PORT_MAX}, not {number}")),
        }
    }
}

/// How volumes are accessed by a portal group: `optimized`, `non-optimized`, `standby` or `unavailable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(pub AccessState);

impl FromStr for Access {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let states = [
            AccessState::Optimized,
            AccessState::NonOptimized,
            AccessState::Standby,
            AccessState::Unavailable,
        ];
        let state = states.into_iter().find(|state| state.name() == text);
        state.map(Self).ok_or("write `optimized`, `non-optimized`, `standby` or `unavailable`")
    }
}

/// The first group of which two places to listen say different things.
pub(super) fn contradiction(listen: &[Listen]) -> Option<Group> {
    let says = |group: Group| {
        let of_group = listen.iter().filter(move |listen| listen.group == group);
        of_group.filter_map(|listen| listen.access)
    };
    let differ = |group: &Group| says(*group).any(|access| Some(access) != says(*group).next());
    listen.iter().map(|listen| listen.group).find(differ)
}
