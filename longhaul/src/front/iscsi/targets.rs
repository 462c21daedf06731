//! The targets that a session may be told of (SendTargets of RFC 7143, Appendix C).

use std::net::SocketAddr;
use std::sync::Arc;

use proto::iscsi::login::target::Established;
use proto::iscsi::target::{Selection, TargetRecord};

use super::node::record;

/// The names that the initiator may see, and the portals by which they are reached.
pub(super) struct Targets {
    established: Established,
    portals: Arc<[(SocketAddr, u16)]>,
}

impl Targets {
    pub(super) const fn new(established: Established, portals: Arc<[(SocketAddr, u16)]>) -> Self {
        Self { established, portals }
    }

    /// Those that an initiator asks about which came to `here`.
    pub(super) fn records(&self, selection: &Selection, here: SocketAddr) -> Vec<TargetRecord> {
        let Self { established, portals } = self;
        let chosen = established.visible.iter().filter(|name| match selection {
            Selection::All => true,
            Selection::Named(wanted) => name.as_str() == wanted,
            Selection::Current => established.target.as_ref() == Some(name),
        });
        chosen.map(|name| record(name, portals, here)).collect()
    }
}
