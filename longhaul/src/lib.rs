//! Longhaul: encrypted disks that live far away, over standard iSCSI.
//!
//! The library behind the `longhaul` program: it joins the protocol machines (`proto`), the volume
//! contract (`volume`) and the operating system (`host`).
#![forbid(unsafe_code)]

pub mod attachments;
mod block_devices;
pub mod chain;
mod cipher_pool;
pub mod ciphers;
pub mod cli;
pub mod cluster;
pub mod command;
pub mod compression;
pub mod config;
pub mod control;
pub mod credentials;
mod data_spans;
mod durable;
mod explain;
pub mod failure;
mod file_space;
pub mod front;
mod journals;
pub mod line_chart;
pub mod log;
mod log_limiter;
pub mod luks;
mod metered;
mod mount_helper;
pub mod net;
#[cfg(test)]
mod option_document;
pub mod option_table;
mod passed_descriptors;
pub mod pipelined;
mod printable;
pub mod progress;
mod qr_code;
pub mod reconnect_limit;
pub mod recorded_disc;
mod recovery_sheet;
mod recovery_words;
mod regular_file;
pub mod remembered;
pub mod replay_log;
pub mod scsi_device;
pub mod sealing;
pub mod secret;
mod served_volumes;
mod signatures;
pub mod site_key;
pub mod size;
mod socket_file;
pub mod state;
pub mod state_dir;
mod stderr;
pub mod stop;
pub mod store;
mod suggest;
pub mod systemd;
mod tape_key;
pub mod target;
mod task;
pub mod trace;
pub mod transports;
pub mod tune;
mod ublk_note;
pub mod uri;
mod utc;
