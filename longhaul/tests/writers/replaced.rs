//! Other volumes in the place of one whose client waits with writes: none of them gets any.

use std::fs::{self, File};

use super::Bench;
use super::identity::{is_told_of_another, serve, stored, unflushed};

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
    assert!(server.stop().success());
}
