//! The transport protocols by which initiators come.

use proto::hyperscsi::transport_id::HyperScsi;
use proto::iscsi::transport_id::Iscsi;
use proto::scsi::transport::Transports;

/// All of them: a reservation is seen from each, with the names of those that came by the others.
pub const ALL: Transports = Transports(&[&Iscsi, &HyperScsi]);
