//! What other initiators' tests ask of a target, asked of the served program by bare PDUs: races of COMPARE AND
//! WRITE, pings, SendTargets, CHAP and what the disk says of itself.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;

mod chap;
mod compare;
mod pages;
mod ping;
mod targets;

use std::net::SocketAddr;
use std::process::Command;

use common::{LONGHAUL, Running};

const TARGET: &str = "iqn.2026-11.dev.longhaul:disk";
const NAME: &str = "iqn.2000-01.example:host";

/// The program serving `volumes` volumes by these arguments, and where.
fn serve(arguments: &[String], volumes: usize) -> (Running, SocketAddr) {
    let server = Running::start(Command::new(LONGHAUL).arg("serve").args(arguments));
    let ready: Vec<_> = (0..volumes).map(|_| server.line().expect("ready")).collect();
    let portal = ready[0].split('/').nth(2).expect("ready iscsi://PORTAL/...").parse().unwrap();
    (server, portal)
}

/// The same, for volumes of memory of these names that anyone may use.
fn serve_memory(names: &[String]) -> (Running, SocketAddr) {
    let volumes = names.iter().flat_map(|name| ["--volume".into(), format!("{name}=memory:1M")]);
    let listen = ["--listen", "127.0.0.1:0"].map(str::to_owned);
    serve(&volumes.chain(listen).collect::<Vec<_>>(), names.len())
}
