//! Other volumes in the place of one whose client waits with writes: none of them gets any.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::process::Stdio;

use super::Bench;
use super::identity::{is_told_of_another, serve, stored, unflushed};
use super::link::Link;

/// A file that was never served.
fn make(bench: &Bench, name: &str) {
    File::create(bench.path().join(name)).unwrap().set_len(32 << 20).unwrap();
}

/// Puts a restored copy in the place of the file of the volume.
fn restore(bench: &Bench) {
    make(bench, "copy.img");
    fs::rename(bench.path().join("copy.img"), bench.path().join("t.img")).unwrap();
}

fn is_empty(bench: &Bench, file: &str) {
    assert!(stored(bench, file).iter().all(|byte| *byte == 0), "it was written to");
}

/// Who has the volume reserved is fenced, also where the number by which the file is shown is configured.
#[test]
fn configured_serial_number_carries_no_reservation_over_to_another_file() {
    let mut bench = Bench::new(&[]);
    let volume = ["--volume", "t=file:t.img,serial=0815", "--state", "pr"];
    // It was configured before, too.
    for _ in 0..2 {
        bench.server.take().unwrap().stop();
        bench.serve(&volume);
    }
    let (attached, mut client) = unflushed(&bench);
    bench.server.take().unwrap().stop();
    restore(&bench);
    let server = serve(&bench, &volume);
    server.line().expect("it is ready");
    assert!(client.flush().is_err(), "{}", bench.log("first"));
    drop(client);
    assert!(!attached.process.stop().success());
    let (said, done) = bench.run(&["replay", &bench.replay_logs().remove(0)]);
    assert!(!done, "{said}");
    is_empty(&bench, "t.img");
    let log = bench.log("serve");
    assert!(log.contains("0815, as configured, although") && log.contains("t.img"), "{log}");
    assert!(server.stop().success());
}

/// A server may wait for the target of one volume before it opens the file of the next.
#[tokio::test]
async fn file_that_is_restored_while_its_server_starts_gets_no_write_of_its_clients() {
    let far = Bench::new(&[]);
    let mut bench = Bench::new(&[]);
    let first = unflushed(&bench);
    assert!(bench.server.take().unwrap().stop().success());
    let link = Link::to(&far.uri);
    link.park_after_reserve_out(0);
    let far = format!("g={}", link.uri);
    let server = serve(&bench, &["--volume", &far, "--volume", "t=file:t.img"]);
    link.parked(1).await;
    let file = File::options().write(true).open(bench.path().join("t.img")).unwrap();
    file.write_all_at(&[3; 4096], 4096).unwrap();
    link.unpark();
    (0..2).for_each(|_| drop(server.line().expect("it is ready")));
    is_told_of_another(&bench, first);
    assert!(stored(&bench, "t.img")[4096..8192] == [3; 4096], "it was written over");
    assert!(server.stop().success());
}

/// A server of the volume of another one.
fn gateway(upstream: &Bench) -> (Bench, String) {
    let volume = format!("g={}", upstream.uri);
    let mut bench = Bench::new(&[]);
    bench.server.take().unwrap().stop();
    bench.serve(&["--volume", &volume]);
    (bench, volume)
}

#[test]
fn other_volume_behind_a_gateway_gets_no_write_of_its_clients() {
    let mut upstream = Bench::new(&[]);
    let (mut bench, volume) = gateway(&upstream);
    let serial = bench.serial(&bench.uri);
    bench.server.take().unwrap().stop();
    bench.serve(&["--volume", &volume]);
    assert_eq!(bench.serial(&bench.uri), serial, "it is the same volume");
    let first = unflushed(&bench);
    assert!(bench.server.take().unwrap().stop().success());
    assert!(upstream.server.take().unwrap().stop().success());
    restore(&upstream);
    upstream.serve(&["--volume", "t=file:t.img"]);
    let server = serve(&bench, &["--volume", &volume]);
    server.line().expect("it is ready");
    is_told_of_another(&bench, first);
    is_empty(&upstream, "t.img");
    let log = bench.log("serve");
    assert!(log.contains("WARN") && log.contains("new serial number"), "{log}");
    assert!(server.stop().success());
}

/// Somebody says by `serial` that a restored file is the volume that it was. Its gateway keeps reservations for its own clients.
#[test]
fn configured_serial_number_carries_no_reservation_over_behind_a_gateway() {
    let mut upstream = Bench::new(&[]);
    let serial = upstream.serial(&upstream.uri);
    let (mut bench, volume) = gateway(&upstream);
    bench.server.take().unwrap().stop();
    bench.serve(&["--volume", &volume, "--state", "pr"]);
    let first = unflushed(&bench);
    assert!(bench.server.take().unwrap().stop().success());
    assert!(upstream.server.take().unwrap().stop().success());
    restore(&upstream);
    upstream.serve(&["--volume", &format!("t=file:t.img,serial={serial}")]);
    assert_eq!(upstream.serial(&upstream.uri), serial);
    let server = serve(&bench, &["--volume", &volume, "--state", "pr"]);
    server.line().expect("it is ready");
    is_told_of_another(&bench, first);
    is_empty(&upstream, "t.img");
    assert!(server.stop().success());
}

/// A server that cannot say that it is ready, and so ends.
fn start_in_vain(bench: &Bench, volume: &str) {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--volume", volume];
    let mut command = bench.longhaul(&arguments);
    let ended = command.stdout(full).stderr(Stdio::null()).status().unwrap();
    assert_eq!(ended.code(), Some(1));
}

#[test]
fn file_that_is_restored_after_a_start_that_failed_gets_no_write_of_its_clients() {
    let mut bench = Bench::new(&[]);
    let first = unflushed(&bench);
    assert!(bench.server.take().unwrap().stop().success());
    start_in_vain(&bench, "t=file:t.img");
    let file = File::options().write(true).open(bench.path().join("t.img")).unwrap();
    file.write_all_at(&[3; 4096], 4096).unwrap();
    let server = serve(&bench, &["--volume", "t=file:t.img"]);
    server.line().expect("it is ready");
    is_told_of_another(&bench, first);
    assert!(stored(&bench, "t.img")[4096..8192] == [3; 4096], "it was written over");
    assert!(server.stop().success());
}

#[test]
fn gateway_whose_start_failed_gives_its_volume_back() {
    let upstream = Bench::new(&[]);
    let mut bench = Bench::new(&[]);
    bench.server.take().unwrap().stop();
    start_in_vain(&bench, &format!("g={}", upstream.uri));
    // By another machine, as far as its state tells.
    let attached = upstream.attach("second", &[]);
    assert!(upstream.write(&attached, 1) && attached.process.stop().success());
}

#[test]
fn file_in_place_of_a_volume_of_another_target_gets_no_write_of_its_clients() {
    let upstream = Bench::new(&[]);
    let (mut bench, _) = gateway(&upstream);
    let first = unflushed(&bench);
    assert!(bench.server.take().unwrap().stop().success());
    make(&bench, "new.img");
    let server = serve(&bench, &["--volume", "g=file:new.img"]);
    server.line().expect("it is ready");
    is_told_of_another(&bench, first);
    is_empty(&bench, "new.img");
    let log = bench.log("serve");
    assert!(log.contains("longhaul:g/0 was iscsi://"), "{log}");
    assert!(server.stop().success());
}

#[test]
fn file_whose_note_is_damaged_gets_no_write_of_its_clients() {
    let mut bench = Bench::new(&[]);
    let first = unflushed(&bench);
    assert!(bench.server.take().unwrap().stop().success());
    let note = fs::read_dir(bench.path().join("state/served")).unwrap().next().unwrap().unwrap();
    fs::write(note.path(), &fs::read(note.path()).unwrap()[..50]).unwrap();
    restore(&bench);
    let server = serve(&bench, &["--volume", "t=file:t.img"]);
    server.line().expect("it is ready");
    is_told_of_another(&bench, first);
    is_empty(&bench, "t.img");
    let log = bench.log("serve");
    let name = note.file_name().display().to_string();
    assert!(log.contains("WARN") && log.contains(&format!("{name} cannot be read")), "{log}");
    assert!(log.contains("(it is of file:t.img, volume t)"), "{log}");
    assert!(server.stop().success());
}
