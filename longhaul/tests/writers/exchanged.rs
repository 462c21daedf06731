//! Volumes that are exchanged behind a target while a program that knows their LUKS UUID waits: what it writes never gets
//! into another one.

use std::fs::{self, File};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::common::{PATIENCE, Running, run};
use super::identity::{CHEAP, OPEN, TWO, encrypt, swap, uri_of};
use super::nbd::Nbd;
use super::{Attached, Bench};

/// A pipe from which a command reads a secret: opening it waits until the command does.
fn pipe(bench: &Bench) {
    let mut make = Command::new("mkfifo");
    make.args(["-m", "600", "pipe"]).current_dir(bench.path());
    assert!(run(&make).1.success());
}

/// The volumes change places, at a server that knows nothing of their files, and shows them by the serial numbers of their
/// units.
pub(super) fn exchange(bench: &mut Bench) {
    let [t, o] = [("t", bench.uri.clone()), ("o", uri_of(bench, "o"))]
        .map(|(name, uri)| format!("{name}=file:{name}.img,serial={}", bench.serial(&uri)));
    bench.server.take().unwrap().kill();
    swap(bench);
    bench.serve(&["--volume", &t, "--state", "new", "--volume", &o]);
}

/// Runs a command, and exchanges the volumes when it asks for the secret that comes by the pipe.
fn exchanged_meanwhile(bench: &mut Bench, arguments: &[&str]) -> String {
    let mut command = bench.longhaul(arguments);
    command.args(["--reconnect-for", "5s"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = command.stdin(Stdio::null()).spawn().unwrap();
    let mut secret = File::options().write(true).open(bench.path().join("pipe")).unwrap();
    exchange(bench);
    secret.write_all(b"pass-phrase").unwrap();
    drop(secret);
    let ended = running.wait_with_output().unwrap();
    let said = String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap();
    assert!(!ended.status.success(), "{said}");
    said
}

/// Both volumes, `t` the one that is asked for.
fn both(bench: &Bench) -> [Vec<u8>; 2] {
    ["t.img", "o.img"].map(|file| fs::read(bench.path().join(file)).unwrap())
}

/// A command that asks for a secret, with the volume as its first argument after `key NAME`.
fn key_command_writes_to_no_other_volume(rest: &[&str]) {
    let mut bench = Bench::new(&TWO);
    pipe(&bench);
    for uri in [bench.uri.clone(), uri_of(&bench, "o")] {
        encrypt(&bench, &uri);
    }
    let (said, done) = bench.run(&["key", "backup", &bench.uri, "backup"]);
    assert!(done, "{said}");
    let [t, o] = both(&bench);
    let uri = bench.uri.clone();
    let arguments = [&["key", rest[0], &uri], &rest[1..]].concat();
    let said = exchanged_meanwhile(&mut bench, &arguments);
    assert!(said.contains("LUKS UUID"), "{said}");
    assert!(both(&bench) == [o, t], "{rest:?}: a volume was written to: {said}");
}

const NEW: [&str; 2] = ["--new-passphrase-file", "pipe"];
const OLD: [&str; 2] = ["--passphrase-file", "pipe"];

#[test]
fn key_add_writes_to_no_other_volume() {
    key_command_writes_to_no_other_volume(&[&["add"][..], &OPEN, &NEW, &CHEAP].concat());
}

#[test]
fn key_change_writes_to_no_other_volume() {
    key_command_writes_to_no_other_volume(&[&["change"][..], &OPEN, &NEW, &CHEAP].concat());
}

#[test]
fn key_remove_writes_to_no_other_volume() {
    key_command_writes_to_no_other_volume(&[&["remove", "--force"][..], &OLD].concat());
}

#[test]
fn key_restore_writes_to_no_other_volume() {
    key_command_writes_to_no_other_volume(&[&["restore", "backup", "--force"][..], &OLD].concat());
}

#[test]
fn key_init_writes_to_no_other_volume() {
    for force in [false, true] {
        let mut bench = Bench::new(&TWO);
        pipe(&bench);
        let other = uri_of(&bench, "o");
        encrypt(&bench, &other);
        let [t, o] = both(&bench);
        let uri = bench.uri.clone();
        let force = if force { &["--force"][..] } else { &[] };
        let init = [&["key", "init", &uri], &OLD[..], &CHEAP, force].concat();
        let said = exchanged_meanwhile(&mut bench, &init);
        assert!(said.contains("not empty") || said.contains("has changed since"), "{said}");
        assert!(both(&bench) == [o, t], "a volume was written to: {said}");
    }
}

/// Exchanges the volumes. A write by an attachment to the first fails, changes nothing in the other, and the log of the
/// program that refuses it says why.
fn refused_once_exchanged(bench: &mut Bench, log: &str, write: impl FnOnce(&mut Bench) -> bool) {
    let [_, o] = both(bench);
    exchange(bench);
    assert!(!write(bench), "{}", bench.log(log));
    assert!(both(bench)[0] == o, "the other volume was written to");
    let log = bench.log(log);
    assert!(log.contains("LUKS UUID has changed"), "{log}");
}

/// A gateway that serves what the volume of another target holds.
fn gateway(bench: &Bench) -> (Running, String) {
    let volume = format!("g={}", bench.uri);
    let mut command = bench.longhaul(&["serve", "--listen", "127.0.0.1:0", "--volume", &volume]);
    command.args(["--control", "gateway.sock"]);
    let log = File::create(bench.path().join("gateway.log")).unwrap();
    let command = command.env("LONGHAUL_STATE_DIR", bench.path().join("gateway"));
    let process = Running::start(command.stderr(log));
    let ready = process.line().unwrap_or_else(|| panic!("{}", bench.log("gateway")));
    (process, ready.strip_prefix("ready ").unwrap().to_owned())
}

#[test]
fn gateway_passes_writes_to_no_other_volume() {
    let mut bench = Bench::new(&TWO);
    for uri in [bench.uri.clone(), uri_of(&bench, "o")] {
        encrypt(&bench, &uri);
    }
    let (process, served) = gateway(&bench);
    let attached = bench.attach_to(&served, "first", &OPEN);
    assert!(bench.write(&attached, 1));
    waits_once_exchanged(&mut bench, &attached);
    process.kill();
}

/// How many commands of its client the gateway has under way, and how often it has tried to find its volume again.
fn gateway_status(bench: &Bench) -> (u64, u64) {
    let (said, done) = bench.run(&["status", "--json", "--control", "gateway.sock"]);
    assert!(done, "{said}");
    let status: serde_json::Value = serde_json::from_str(&said).unwrap();
    let in_flight = status["targets"].as_object().unwrap().values();
    let outages = status["outages"].to_string();
    let tries = outages.split_once(" attempts").and_then(|(told, _)| told.split(' ').next_back());
    let tries = tries.and_then(|tries| tries.parse().ok()).unwrap_or_default();
    (in_flight.filter_map(|target| target["in_flight"].as_u64()).sum(), tries)
}

/// Exchanges the volumes behind a gateway, which goes on looking for its own. A write of its client waits that long, and
/// gets neither an answer nor into the other volume.
fn waits_once_exchanged(bench: &mut Bench, attached: &Attached) {
    let [_, o] = both(bench);
    exchange(bench);
    let mut write = Command::new("qemu-io");
    write.args(["-f", "raw", "-c", "write -P 2 0 1M", "-c", "flush"]).arg(&attached.uri);
    let write = write.current_dir(bench.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut write = write.stdin(Stdio::null()).spawn().unwrap();
    let mut since = None;
    until(|| {
        let (in_flight, tries) = gateway_status(bench);
        // Twice since the write was there: the first may have begun before.
        in_flight > 0 && tries > *since.get_or_insert(tries) + 1
    });
    assert!(write.try_wait().unwrap().is_none(), "{}", bench.log("gateway"));
    attached.process.signal(Signal::KILL);
    let write = write.wait_with_output().unwrap();
    let said = String::from_utf8([write.stdout, write.stderr].concat()).unwrap();
    assert!(said.contains("rror") || said.contains("failed"), "{said}");
    assert!(both(bench)[0] == o, "the other volume was written to");
    let log = bench.log("gateway");
    assert!(log.contains("LUKS UUID has changed"), "{log}");
}

fn until(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "it does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A gateway is started over an empty volume, and its client encrypts it.
#[test]
fn gateway_learns_the_header_that_its_client_writes() {
    let mut bench = Bench::new(&TWO);
    encrypt(&bench, &uri_of(&bench, "o"));
    let (process, served) = gateway(&bench);
    encrypt(&bench, &served);
    let attached = bench.attach_to(&served, "first", &OPEN);
    assert!(bench.write(&attached, 1));
    waits_once_exchanged(&mut bench, &attached);
    process.kill();
}

/// The same of an attachment by which the header is written as it is stored.
#[test]
fn raw_attachment_learns_the_header_that_is_written() {
    let mut bench = Bench::new(&TWO);
    let other = uri_of(&bench, "o");
    encrypt(&bench, &other);
    let header = both(&bench)[1][..32 << 10].to_vec();
    let (said, done) =
        bench.run(&[&["key", "init", "--force", &other], &OPEN[..], &CHEAP].concat());
    assert!(done, "{said}");
    let attached = bench.attach("first", &["--raw", "--reconnect-for", "5s"]);
    let mut client = Nbd::connect(&bench.path().join("first.sock"));
    client.write(0, &header).unwrap();
    client.flush().unwrap();
    refused_once_exchanged(&mut bench, "first", |_| {
        client.write_durably(1 << 20, &[2; 4096]).is_ok()
    });
    drop(client);
    attached.process.stop();
}

/// What a client of a gateway makes of the volume is the volume from then on.
#[test]
fn gateway_goes_on_with_a_header_that_its_client_has_written() {
    let mut bench = Bench::new(&[]);
    encrypt(&bench, &bench.uri.clone());
    let (process, served) = gateway(&bench);
    let (said, done) =
        bench.run(&[&["key", "init", "--force", &served], &OPEN[..], &CHEAP].concat());
    assert!(done, "{said}");
    let attached = bench.attach_to(&served, "first", &OPEN);
    assert!(bench.write(&attached, 1));
    bench.server.take().unwrap().kill();
    bench.serve(&["--volume", "t=file:t.img"]);
    assert!(bench.write(&attached, 2), "{}", bench.log("gateway"));
    assert!(attached.process.stop().success());
    assert!(process.stop().success());
}
