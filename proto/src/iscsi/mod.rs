//! iSCSI to RFC 7143, error recovery level 0: both machines, and what they share.

pub mod digest;
pub mod header;
pub mod pdu;
