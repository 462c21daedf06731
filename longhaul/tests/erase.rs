//! CRYPTO ERASE through the served program: who allows it, and what is found after the server was killed.

mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use common::{LONGHAUL, Running, run};
use peer::Peer;
use proto::scsi::Sense;
use proto::scsi::sense::Additional;
use rustix::process::Signal;

const TARGET: &str = "iqn.2026-11.dev.longhaul:disk";
const NAME: &str = "iqn.2000-01.example:host";
/// IMMED.
const CRYPTO_ERASE: [u8; 10] = [0x48, 0x83, 0, 0, 0, 0, 0, 0, 0, 0];

/// Runs `longhaul` in `home`; whether it succeeded.
fn longhaul(home: &Path, arguments: &str) -> bool {
    let (said, status) =
        run(Command::new(LONGHAUL).args(arguments.split_whitespace()).current_dir(home));
    println!("{arguments}: {said}");
    status.success()
}

/// An encrypted volume in `home` that the secrets `one` and `two` open.
fn encrypted(home: &Path) {
    sealed_at(home, "--pbkdf-memory 32K --pbkdf-iterations 4");
}

/// The same, at this cost of a new key.
fn sealed_at(home: &Path, cost: &str) {
    File::create(home.join("disk.img")).unwrap().set_len(18 << 20).unwrap();
    for name in ["one", "two"] {
        fs::write(home.join(name), format!("{name}\n")).unwrap();
    }
    assert!(longhaul(home, &format!("key init file:disk.img --passphrase-file one {cost}")));
    let add = "key add file:disk.img --passphrase-file one --new-passphrase-file two";
    assert!(longhaul(home, &format!("{add} {cost}")));
}

/// Whether a secret opens it.
fn opens(home: &Path, secret: &str) -> bool {
    let copy = "copy file:disk.img plain.raw --passphrase-file";
    let opens = longhaul(home, &format!("{copy} {secret}"));
    let _ = fs::remove_file(home.join("plain.raw"));
    opens
}

/// Serves it, opened with `one`, with this besides in its table.
fn serve(home: &Path, more: &str) -> (Running, SocketAddr) {
    let table = "[volumes.disk]\nuri = 'file:disk.img'\npassphrase_file = 'one'\n";
    fs::write(home.join("longhaul.toml"), format!("listen = ['127.0.0.1:0']\n{table}{more}"))
        .unwrap();
    let mut command = Command::new(LONGHAUL);
    let server =
        Running::start(command.args(["serve", "--config", "longhaul.toml"]).current_dir(home));
    let ready = server.line().unwrap();
    (server, ready.split('/').nth(2).unwrap().parse().unwrap())
}

fn log_in(portal: SocketAddr) -> Peer {
    log_in_by(portal, 1)
}

fn log_in_by(portal: SocketAddr, isid: u8) -> Peer {
    let mut peer = Peer::log_in(portal, NAME, isid, TARGET);
    peer.settle();
    peer
}

#[test]
fn a_server_that_is_killed_after_the_answer_has_erased() {
    let home = tempfile::tempdir().unwrap();
    encrypted(home.path());
    let (server, portal) = serve(home.path(), "crypto_erase = true\n");
    let mut peer = log_in(portal);
    assert_eq!(peer.write(100, 0, vec![7; 512], true), Some(true));
    let (status, _) = peer.run_on(0, &CRYPTO_ERASE, Bytes::new(), 0).unwrap();
    assert_eq!(status, 0);
    server.kill();
    let (server, portal) = serve(home.path(), "crypto_erase = true\n");
    let mut peer = log_in(portal);
    assert_ne!(peer.read(101, 0, 1).unwrap(), [7; 512]);
    drop(peer);
    assert!(server.stop().success());
    assert!(opens(home.path(), "one") && !opens(home.path(), "two"));
}

/// The connection of the erasing session is gone by then.
#[test]
fn server_that_is_told_to_end_finishes_an_erase_first() {
    let home = tempfile::tempdir().unwrap();
    sealed_at(home.path(), "--pbkdf-memory 64M --pbkdf-iterations 40");
    let (server, portal) = serve(home.path(), "crypto_erase = true\n");
    let (mut erasing, mut asking) = (log_in(portal), log_in_by(portal, 2));
    let mut block = [0; 16];
    block[..CRYPTO_ERASE.len()].copy_from_slice(&CRYPTO_ERASE);
    let command = erasing.command(50, block);
    erasing.send(command, Bytes::new());
    let is_erasing = |asking: &mut Peer| asking.says(0) == Some(Additional::SANITIZE_IN_PROGRESS);
    assert!((0..10_000).any(|_| is_erasing(&mut asking)), "it has not begun");
    server.signal(Signal::TERM);
    drop((erasing, asking));
    assert!(server.end().success());
    assert!(opens(home.path(), "one") && !opens(home.path(), "two"));
}

#[test]
fn volume_without_crypto_erase_refuses_it() {
    let home = tempfile::tempdir().unwrap();
    encrypted(home.path());
    let (server, portal) = serve(home.path(), "");
    let mut peer = log_in(portal);
    let (status, sense) = peer.run_on(0, &CRYPTO_ERASE, Bytes::new(), 0).unwrap();
    assert_eq!((status, Sense::parse(&sense)), (2, Some(Sense::invalid_cdb(1, Some(4)))));
    drop(peer);
    assert!(server.stop().success());
    assert!(opens(home.path(), "one") && opens(home.path(), "two"));
}
