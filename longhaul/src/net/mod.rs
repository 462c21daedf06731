//! What all connections have in common, whatever protocol they carry.

pub mod tcp_tuning;
