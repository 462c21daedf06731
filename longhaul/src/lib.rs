//! Longhaul: encrypted disks that live far away, over standard iSCSI.
//!
//! The library behind the `longhaul` program: it joins the protocol machines (`proto`), the volume
//! contract (`volume`) and the operating system (`host`).
#![forbid(unsafe_code)]

pub mod attachments;
pub mod chain;
mod cipher_pool;
pub mod cli;
pub mod command;
pub mod config;
pub mod control;
pub mod credentials;
mod durable;
mod explain;
pub mod failure;
pub mod front;
pub mod line_chart;
pub mod log;
mod log_limiter;
pub mod luks;
pub mod net;
pub mod option_table;
pub mod pipelined;
mod printable;
pub mod progress;
pub mod reconnect_limit;
mod regular_file;
pub mod replay_log;
pub mod sealing;
pub mod secret;
mod served_files;
mod signatures;
pub mod size;
mod socket_file;
pub mod state;
pub mod state_dir;
pub mod stop;
pub mod store;
mod suggest;
pub mod systemd;
pub mod target;
mod task;
pub mod tune;
pub mod uri;
mod utc;
