//! Connections and their tuning, whatever protocol they carry.

pub(crate) mod busy_poll;
pub(crate) mod connection;
pub mod hyperscsi_link;
pub(crate) mod pdu_output;
pub(crate) mod peer_process;
mod receive_buffer;
pub(crate) mod shared_level;
mod stuck_timer;
pub mod tcp_tuning;
