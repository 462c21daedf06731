//! Which volume something is: nothing is written to another that answers in its place.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::common::{LONGHAUL, PATIENCE, Running, run};
use super::exchanged::exchange;
use super::nbd::Nbd;
use super::{Attached, Bench};

pub(super) const OPEN: [&str; 2] = ["--passphrase-file", "key"];
pub(super) const CHEAP: [&str; 4] = ["--pbkdf-iterations", "4", "--pbkdf-memory", "32K"];
pub(super) const TWO: [&str; 2] = ["--volume", "o=file:o.img,size=32M"];

/// Puts a LUKS header on the volume at `uri`, with a key of its own.
pub(super) fn encrypt(bench: &Bench, uri: &str) {
    fs::write(bench.path().join("key"), "pass-phrase").unwrap();
    let (said, done) = bench.run(&[&["key", "init", uri], &OPEN[..], &CHEAP].concat());
    assert!(done, "{said}");
}

pub(super) fn uri_of(bench: &Bench, name: &str) -> String {
    bench.uri.replace(":t/", &format!(":{name}/"))
}

pub(super) fn swap(bench: &Bench) {
    let at = |name: &str| bench.path().join(name);
    fs::rename(at("t.img"), at("x.img")).unwrap();
    fs::rename(at("o.img"), at("t.img")).unwrap();
    fs::rename(at("x.img"), at("o.img")).unwrap();
}

/// A server of these volumes whose log can be read, at the address of `bench`.
pub(super) fn serve(bench: &Bench, options: &[&str]) -> Running {
    let listen = bench.uri.split('/').nth(2).unwrap().to_owned();
    let log = fs::File::create(bench.path().join("serve.log")).unwrap();
    let mut command = bench.longhaul(&["serve", "--listen", &listen]);
    Running::start(command.args(options).stderr(log))
}

fn end(attached: Attached) {
    attached.process.stop();
}

#[test]
fn other_luks_volume_in_its_place_is_not_written_to() {
    let mut bench = Bench::new(&TWO);
    let other = uri_of(&bench, "o");
    encrypt(&bench, &bench.uri.clone());
    encrypt(&bench, &other);
    let attached = bench.attach("first", &[&OPEN[..], &["--reconnect-for", "5s"]].concat());
    assert!(bench.write(&attached, 1));
    let before = fs::read(bench.path().join("o.img")).unwrap();
    exchange(&mut bench);
    assert!(!bench.write(&attached, 2));
    assert!(before == fs::read(bench.path().join("t.img")).unwrap(), "it was written to");
    let log = bench.log("first");
    assert!(log.contains("its LUKS UUID has changed"), "{log}");
    end(attached);
}

#[test]
fn log_of_a_luks_volume_is_not_written_to_another_of_its_name() {
    let mut bench = Bench::new(&[]);
    encrypt(&bench, &bench.uri.clone());
    let attached = bench.attach("first", &[&OPEN[..], &["--reconnect-for", "1s"]].concat());
    let volume = format!("t=file:t.img,size=32M,serial={}", bench.serial(&bench.uri));
    bench.server.take().unwrap().kill();
    assert!(!bench.write(&attached, 2));
    end(attached);
    let logs = fs::read_dir(bench.path().join("logs")).unwrap();
    let log =
        logs.map(|log| log.unwrap().path()).next().expect("a replay log").display().to_string();
    fs::remove_file(bench.path().join("t.img")).unwrap();
    bench.serve(&["--volume", &volume, "--state", "new"]);
    let replay = |bench: &Bench| bench.run(&["replay", "--force", &log]);
    let (said, done) = replay(&bench);
    assert!(!done && said.contains("LUKS UUID"), "it is not encrypted: {said}");
    encrypt(&bench, &bench.uri.clone());
    let (said, done) = replay(&bench);
    assert!(!done && said.contains("LUKS UUID"), "it is another: {said}");
}

#[test]
fn flush_to_a_removed_file_fails_and_the_server_says_so_at_its_end() {
    let mut bench = Bench::new(&[]);
    bench.server.take().unwrap().stop();
    let server = serve(&bench, &["--volume", "t=file:t.img"]);
    server.line().expect("it says when it is ready");
    let attached = bench.attach("first", &["--reconnect-for", "5s"]);
    assert!(bench.write(&attached, 1));
    fs::remove_file(bench.path().join("t.img")).unwrap();
    // Its result is that of its writes; what became of the flush is in the logs.
    bench.write(&attached, 2);
    assert!(!attached.process.stop().success(), "it would be gone with the server");
    let told = bench.log("first");
    assert!(told.contains("goes to a replay log"), "{told}");
    assert_eq!(server.stop().code(), Some(1));
    let log = bench.log("serve");
    assert!(log.contains("ERROR") && log.contains("has been removed"), "{log}");
    assert!(log.contains("flush failed"), "{log}");
}

#[test]
fn durable_write_to_a_removed_file_fails() {
    let mut bench = Bench::new(&[]);
    bench.server.take().unwrap().stop();
    let server = serve(&bench, &["--volume", "t=file:t.img"]);
    server.line().expect("it says when it is ready");
    let attached = bench.attach("first", &["--reconnect-for", "5s"]);
    let mut client = Nbd::connect(&bench.path().join("first.sock"));
    client.write_durably(0, &[1; 4096]).unwrap();
    fs::remove_file(bench.path().join("t.img")).unwrap();
    client.write_durably(0, &[2; 4096]).unwrap_err();
    drop(client);
    assert!(!attached.process.stop().success());
    assert_eq!(server.stop().code(), Some(1));
}

#[test]
fn file_moved_under_its_server_is_reported_at_its_end() {
    let mut bench = Bench::new(&[]);
    bench.server.take().unwrap().stop();
    let server = serve(&bench, &["--volume", "t=file:t.img", "--control", "serve.sock"]);
    server.line().expect("it says when it is ready");
    let at = |name: &str| bench.path().join(name);
    fs::copy(at("t.img"), at("o.img")).unwrap();
    fs::rename(at("t.img"), at("moved.img")).unwrap();
    fs::rename(at("o.img"), at("t.img")).unwrap();
    let attached = bench.attach("first", &[]);
    assert!(bench.write(&attached, 1), "the file is there, if elsewhere");
    let (said, done) = bench.run(&["status", "--control", "serve.sock"]);
    assert!(done && said.contains("has been moved") && !said.contains("flushes fail"), "{said}");
    end(attached);
    assert_eq!(server.stop().code(), Some(1));
    let log = bench.log("serve");
    assert!(log.contains("ERROR") && log.contains("another file is there now"), "{log}");
}

#[test]
fn files_of_two_volumes_that_were_exchanged_are_not_served() {
    let mut bench = Bench::new(&TWO);
    bench.server.take().unwrap().stop();
    let exchanged = ["--volume", "t=file:o.img", "--volume", "o=file:t.img"];
    let as_before = ["--volume", "t=file:t.img", "--volume", "o=file:o.img"];
    let refused = |volumes: &[&str]| {
        let serve = [&["serve", "--listen", "127.0.0.1:0"], volumes].concat();
        let (said, status) = run(&bench.longhaul(&serve));
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains("was served as iqn.2026-11.dev.longhaul:o/0"), "{said}");
    };
    refused(&exchanged);
    let config = "listen = [\"127.0.0.1:0\"]\n[volumes.t]\nuri = \"file:o.img\"\n[volumes.o]\nuri = \"file:t.img\"\n";
    fs::write(bench.path().join("config.toml"), config).unwrap();
    let (said, done) = bench.run(&["check", "--config", "config.toml"]);
    assert!(!done && said.contains("was served as iqn.2026-11.dev.longhaul:o/0"), "{said}");
    swap(&bench);
    refused(&as_before);
    swap(&bench);
    let server = serve(&bench, &as_before);
    server.line().expect("it is ready");
    assert!(server.stop().success());
}

/// A volume of `serve --config`, whose file the configuration names.
struct Reloading<'a>(&'a Bench, Running);

impl<'a> Reloading<'a> {
    fn new(bench: &'a mut Bench, volumes: &[(&str, &str)]) -> Self {
        bench.server.take().unwrap().stop();
        let bench: &'a Bench = bench;
        Self::configure(bench, volumes);
        let log = fs::File::create(bench.path().join("serve.log")).unwrap();
        let mut command = bench.longhaul(&["serve", "--config", "serve.toml"]);
        let server = Running::start(command.stderr(log));
        volumes
            .iter()
            .for_each(|_| drop(server.line().unwrap_or_else(|| panic!("{}", bench.log("serve")))));
        Self(bench, server)
    }

    fn configure(bench: &Bench, volumes: &[(&str, &str)]) {
        let listen = bench.uri.split('/').nth(2).unwrap();
        let mut text = format!(
            "listen = [\"{listen}\"]\ncontrol = \"serve.sock\"\nstate = \"state\"\n[volumes.m]\nuri = \"memory:1M\"\ntarget = \"t\"\nlun = 7\n"
        );
        for (name, file) in volumes {
            text += &format!("[volumes.{name}]\nuri = \"file:{file}\"\n");
        }
        fs::write(bench.path().join("serve.toml"), text).unwrap();
    }

    fn reload(&self, volumes: &[(&str, &str)]) {
        Self::configure(self.0, volumes);
        let (said, done) = self.0.run(&["reload", "--control", "serve.sock"]);
        assert!(done, "{said}");
    }
}

pub(super) fn stored(bench: &Bench, file: &str) -> Vec<u8> {
    fs::read(bench.path().join(file)).unwrap()
}

/// Writes that are acknowledged, and flushed only when the file of the volume is another.
pub(super) fn unflushed(bench: &Bench) -> (Attached, Nbd) {
    unflushed_for(bench, "forever")
}

/// The same, which waits for its server as long as `patience` says.
fn unflushed_for(bench: &Bench, patience: &str) -> (Attached, Nbd) {
    let attached = bench.attach("first", &["--reconnect-for", patience]);
    let mut client = Nbd::connect(&bench.path().join("first.sock"));
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    client.write(4096, &[2; 4096]).unwrap();
    (attached, client)
}

/// The client waits for its own volume, however long the other one took to come, and saves what it holds at its end.
pub(super) fn is_told_of_another(bench: &Bench, (attached, mut client): (Attached, Nbd)) {
    let begun = Instant::now();
    while !bench.log("first").contains("its serial number has changed") {
        assert!(begun.elapsed() < PATIENCE, "{}", bench.log("first"));
        std::thread::sleep(Duration::from_millis(5));
    }
    attached.process.signal(Signal::TERM);
    assert!(client.flush().is_err(), "{}", bench.log("first"));
    drop(client);
    assert!(!attached.process.end().success());
    let log = bench.log("first");
    assert_eq!(bench.replay_logs().len(), 1, "{log}");
}

#[test]
fn files_that_a_reload_exchanges_get_no_write_of_the_other() {
    let mut bench = Bench::new(&TWO);
    let (mine, others) = ([("t", "t.img"), ("o", "o.img")], [("t", "o.img"), ("o", "t.img")]);
    let fixture = Reloading::new(&mut bench, &mine);
    let first = unflushed(fixture.0);
    fixture.reload(&[]);
    let before = ["t.img", "o.img"].map(|file| stored(fixture.0, file)[..4096].to_vec());
    fixture.reload(&others);
    is_told_of_another(fixture.0, first);
    assert!(before == ["t.img", "o.img"].map(|file| stored(fixture.0, file)[..4096].to_vec()));
    assert!(stored(fixture.0, "o.img").iter().all(|byte| *byte == 0), "it was written to");
    let log = fixture.0.replay_logs().remove(0);
    for options in
        [&["replay", "--force", &log][..], &["replay", "--force", &log, &uri_of(fixture.0, "o")]]
    {
        let (said, done) = fixture.0.run(options);
        assert!(!done && said.contains("serial number"), "{said}");
    }
    // Exchanged again, and written to by nobody, it is the volume that the log is of, reserved for it.
    fixture.reload(&[]);
    fixture.reload(&mine);
    let (said, done) = fixture.0.run(&["replay", &log]);
    assert!(done && stored(fixture.0, "t.img")[4096..8192] == [2; 4096], "{said}");
    assert!(fixture.1.stop().success());
}

/// The replay log of a client whose volume was taken out of the configuration.
fn given_up(fixture: &Reloading<'_>) -> String {
    let (attached, mut client) = unflushed_for(fixture.0, "3s");
    fixture.reload(&[]);
    client.flush().unwrap_err();
    drop(client);
    assert!(!attached.process.stop().success());
    fixture.0.replay_logs().remove(0)
}

fn is_not_written(bench: &Bench, log: &str) {
    for force in [None, Some("--force")] {
        let options: Vec<_> = ["replay"].into_iter().chain(force).chain([log]).collect();
        let (said, done) = bench.run(&options);
        assert!(!done && said.contains("serial number"), "{said}");
    }
}

#[test]
fn file_that_was_written_to_as_another_unit_gets_no_write_of_its_first_client() {
    let mut bench = Bench::new(&[]);
    let mine = [("t", "t.img")];
    let fixture = Reloading::new(&mut bench, &mine);
    let log = given_up(&fixture);
    fixture.reload(&[("rescue", "t.img")]);
    let second = fixture.0.attach_to(&uri_of(fixture.0, "rescue"), "second", &[]);
    let mut client = Nbd::connect(&fixture.0.path().join("second.sock"));
    client.write_durably(4096, &[3; 4096]).unwrap();
    drop(client);
    end(second);
    fixture.reload(&[]);
    fixture.reload(&mine);
    is_not_written(fixture.0, &log);
    assert!(stored(fixture.0, "t.img")[4096..8192] == [3; 4096], "it was written over");
    let said = fixture.0.log("serve");
    assert!(said.contains("served as iqn.2026-11.dev.longhaul:rescue/0"), "{said}");
    end(fixture.0.attach("third", &[]));
    assert!(fixture.1.stop().success());
}

#[test]
fn file_that_was_written_to_while_it_was_not_served_gets_no_write_of_its_client() {
    let mut bench = Bench::new(&[]);
    let mine = [("t", "t.img")];
    let fixture = Reloading::new(&mut bench, &mine);
    let log = given_up(&fixture);
    fixture.reload(&mine);
    assert!(fixture.1.stop().success());
    let bench = fixture.0;
    let serve = || {
        let server = Running::start(&mut bench.longhaul(&["serve", "--config", "serve.toml"]));
        server.line().expect("it is ready");
        server
    };
    // As it was left, it is reserved for the log.
    let server = serve();
    let (said, done) = bench.run(&["attach", &bench.uri, "--nbd", "second.sock"]);
    assert!(!done && said.contains("it is reserved for the replay log"), "{said}");
    assert!(server.stop().success());
    let file = fs::File::options().write(true).open(bench.path().join("t.img")).unwrap();
    file.write_all_at(&[3; 4096], 4096).unwrap();
    let server = serve();
    is_not_written(bench, &log);
    assert!(stored(bench, "t.img")[4096..8192] == [3; 4096], "it was written over");
    end(bench.attach("third", &[]));
    assert!(server.stop().success());
}

#[test]
fn other_file_in_place_of_a_volumes_own_is_not_written_to() {
    let mut bench = Bench::new(&[]);
    let first = unflushed(&bench);
    bench.server.take().unwrap().kill();
    fs::File::create(bench.path().join("new.img")).unwrap().set_len(32 << 20).unwrap();
    let server = serve(&bench, &["--volume", "t=file:new.img"]);
    server.line().expect("it is ready");
    is_told_of_another(&bench, first);
    assert!(stored(&bench, "new.img").iter().all(|byte| *byte == 0), "it was written to");
    let log = bench.log("serve");
    assert!(
        log.contains("WARN") && log.contains("new serial number") && log.contains("t.img"),
        "{log}"
    );
    assert!(server.stop().success());
}

#[test]
fn file_is_not_made_for_a_unit_that_was_another_or_that_is_missing_under_another_name() {
    let mut bench = Bench::new(&[]);
    bench.server.take().unwrap().stop();
    let refused = |volume: &str| {
        let (said, done) = bench.run(&["serve", "--listen", "127.0.0.1:0", "--volume", volume]);
        assert!(!done, "{said}");
        said
    };
    let said = refused("t=file:tt.img,size=32M");
    for words in ["cannot make file:tt.img", "/t.img on ", "truncate -s 32M tt.img"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    fs::remove_file(bench.path().join("t.img")).unwrap();
    fs::create_dir(bench.path().join("sub")).unwrap();
    std::os::unix::fs::symlink(".", bench.path().join("link")).unwrap();
    for other in ["u=file:sub/../t.img,size=32M", "u=file:link/t.img,size=32M"] {
        let said = refused(other);
        assert!(said.contains("it is missing, and it was there on"), "{said}");
    }
    assert!(!bench.path().join("t.img").exists() && !bench.path().join("tt.img").exists());
}

#[test]
fn file_that_shrank_is_not_served_unless_its_size_is_given() {
    let mut bench = Bench::new(&[]);
    bench.server.take().unwrap().stop();
    let file = fs::File::options().write(true).open(bench.path().join("t.img")).unwrap();
    file.set_len(16 << 20).unwrap();
    for volume in ["t=file:t.img", "t=file:t.img,size=32M"] {
        let serving = ["serve", "--listen", "127.0.0.1:0", "--volume", volume];
        let (said, status) = run(&bench.longhaul(&serving));
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains("it is 16M long, and was 32M"), "{said}");
        assert!(said.contains("to serve it as it is, give its size: size=16M"), "{said}");
    }
    let server = serve(&bench, &["--volume", "t=file:t.img,size=16M"]);
    server.line().expect("it is ready");
    assert!(server.stop().success());
}

#[test]
fn file_that_grew_while_it_was_served_and_lost_its_end_is_not_served() {
    let mut bench = Bench::new(&[]);
    let mine = [("t", "t.img")];
    let fixture = Reloading::new(&mut bench, &mine);
    let resize = |size| {
        let file = fs::File::options().write(true).open(fixture.0.path().join("t.img")).unwrap();
        file.set_len(size).unwrap();
    };
    resize(64 << 20);
    fixture.reload(&mine);
    resize(32 << 20);
    assert!(!fixture.1.stop().success());
    let (said, done) = fixture.0.run(&["serve", "--config", "serve.toml"]);
    assert!(!done && said.contains("it is 32M long, and was 64M"), "{said}");
}

#[test]
fn info_shows_a_volume_that_somebody_has_attached() {
    let bench = Bench::new(&[]);
    let attached = bench.attach("first", &[]);
    let (said, done) = bench.run(&["info", &bench.uri]);
    assert!(done && said.contains("LONGHAUL"), "{said}");
    end(attached);
}

#[test]
fn state_of_a_service_lies_in_one_directory() {
    let bench = Bench::new(&[]);
    let state = bench.path().join("service");
    let mut command = Command::new(LONGHAUL);
    command.args(["attach", &bench.uri, "--nbd", "s.sock"]).current_dir(bench.path());
    command.env_remove("LONGHAUL_STATE_DIR").env("STATE_DIRECTORY", &state);
    let attached = Running::start(command.stderr(Stdio::null()));
    attached.line().expect("it is ready");
    assert_eq!(fs::read_dir(state.join("attachments")).unwrap().count(), 1);
    assert!(attached.stop().success());
}
