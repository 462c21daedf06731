//! iSCSI to RFC 7143, error recovery level 0: both machines, and what they share.

pub mod chap;
pub mod digest;
pub mod header;
pub mod initiator;
pub mod invitation;
pub mod keys;
pub mod login;
pub mod name;
pub mod negotiation;
pub mod pdu;
mod role;
pub mod sealed;
pub mod target;
pub mod text;
pub mod transport_id;
pub mod window;
