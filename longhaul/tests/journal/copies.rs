//! Copies of journals, and what else stands where their checkpoints do.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Site;
use super::common::Running;
use super::nbd::Nbd;

/// A backup of this machine brings back a journal whose changes were sent long ago, and overwritten since.
#[test]
fn older_copy_of_a_journal_is_not_sent() {
    let site = Site::new();
    let server = site.serve();
    site.encrypt(&[]);
    let options = ["--passphrase-file", "pass", "--journal", "j,size=8M"];
    let (client, mut nbd) = site.attach_to("large", "a.sock", &options);
    server.kill();
    nbd.write(0, &[7; 4096]).unwrap();
    nbd.flush().unwrap();
    let [journal, copy, newest] = ["j", "copy", "newest"].map(|name| site.path().join(name));
    std::fs::copy(&journal, &copy).unwrap();
    client.kill();
    let server = site.serve();
    // Crashes, so that the reservation is the same all the time.
    for number in 1..=3 {
        let before = site.checkpoint();
        let socket = format!("b{number}.sock");
        let (client, mut nbd) = site.attach_to("large", &socket, &options);
        nbd.write(0, &[number; 4096]).unwrap();
        nbd.flush().unwrap();
        while site.checkpoint() == before {
            std::thread::sleep(Duration::from_millis(10));
        }
        client.kill();
    }
    let stored = std::fs::read(site.path().join("large.img")).unwrap();
    std::fs::rename(&journal, &newest).unwrap();
    std::fs::copy(&copy, &journal).unwrap();
    let attach = ["attach", &site.uri("large"), "--nbd", "c.sock"];
    for args in [[&attach[..], &options].concat(), vec!["journal", "drain", "j"]] {
        let (said, code) = site.run(&args);
        assert_eq!(code, 1, "{said}");
        for words in ["would replace what is newer", "longhaul journal export"] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
    assert!(stored == std::fs::read(site.path().join("large.img")).unwrap(), "nothing was sent");
    site.export();
    // The journal itself goes on where it was.
    std::fs::rename(&newest, &journal).unwrap();
    let (client, mut nbd) = site.attach_to("large", "d.sock", &options);
    assert_eq!(nbd.read(0, 4096).unwrap(), [3; 4096]);
    drop(nbd);
    client.kill();
    // Whoever wants it all the same says so.
    std::fs::rename(&copy, &journal).unwrap();
    let (said, code) = site.run(&["journal", "drain", "j", "--force"]);
    assert!(code == 0 && said.contains("holds replaces what is newer"), "{said}");
    let (client, mut nbd) = site.attach_to("large", "e.sock", &options);
    assert_eq!(nbd.read(0, 4096).unwrap(), [7; 4096]);
    // It is the journal of the volume from then on.
    nbd.write(0, &[8; 4096]).unwrap();
    nbd.flush().unwrap();
    client.kill();
    let (client, mut nbd) = site.attach_to("large", "f.sock", &options);
    assert_eq!(nbd.read(0, 4096).unwrap(), [8; 4096]);
    drop(nbd);
    assert!(client.stop().success());
    assert!(server.stop().success());
}

/// A backup may be of a moment at which the journal held nothing.
#[test]
fn older_copy_of_a_journal_that_held_nothing_is_refused_while_the_newest_may_hold_something() {
    let site = Site::new();
    let server = site.serve();
    site.encrypt(&[]);
    let options = ["--passphrase-file", "pass", "--journal", "j,size=8M"];
    let (client, mut nbd) = site.attach_to("large", "a.sock", &options);
    let [journal, copy, newest] = ["j", "copy", "newest"].map(|name| site.path().join(name));
    std::fs::copy(&journal, &copy).unwrap();
    nbd.write(0, &[1; 4096]).unwrap();
    nbd.flush().unwrap();
    while site.checkpoint() == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    server.kill();
    nbd.write(0, &[2; 4096]).unwrap();
    nbd.flush().unwrap();
    client.kill();
    let server = site.serve();
    std::fs::rename(&journal, &newest).unwrap();
    std::fs::rename(&copy, &journal).unwrap();
    let uri = site.uri("large");
    let attach = [&["attach", &uri, "--nbd", "b.sock"], &options[..]].concat();
    let (said, code) = site.run(&attach);
    assert!(code == 1 && said.contains("it is an older copy of itself"), "{said}");
    // The newest one is lost.
    let (said, code) = site.run(&["journal", "discard", "j"]);
    assert_eq!(code, 0, "{said}");
    let take_over = [&attach[..], &["--take-over"]].concat();
    let client = Running::start(&mut site.longhaul(&take_over));
    client.line().expect("the attachment is ready");
    let mut nbd = Nbd::connect(&site.path().join("b.sock"));
    assert_eq!(nbd.read(0, 4096).unwrap(), [1; 4096]);
    nbd.write(0, &[3; 4096]).unwrap();
    nbd.flush().unwrap();
    client.kill();
    // The newest one comes back too late.
    std::fs::rename(&newest, &journal).unwrap();
    let (said, code) = site.run(&["journal", "drain", "j"]);
    assert!(code == 1 && said.contains("longhaul journal export"), "{said}");
    assert!(server.stop().success());
}

/// Nothing is missing that the newest one held.
#[test]
fn older_copy_of_a_journal_that_held_nothing_serves_after_a_clean_end() {
    let site = Site::new();
    let server = site.serve();
    site.encrypt(&[]);
    let options = ["--passphrase-file", "pass", "--journal", "j,size=8M"];
    let (client, nbd) = site.attach_to("large", "a.sock", &options);
    drop(nbd);
    assert!(client.stop().success());
    let [journal, copy] = ["j", "copy"].map(|name| site.path().join(name));
    std::fs::copy(&journal, &copy).unwrap();
    let before = site.checkpoint();
    let (client, mut nbd) = site.attach_to("large", "b.sock", &options);
    nbd.write(0, &[1; 4096]).unwrap();
    nbd.flush().unwrap();
    while site.checkpoint() == before {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(nbd);
    assert!(client.stop().success());
    std::fs::rename(&copy, &journal).unwrap();
    for (number, socket) in [(2, "c.sock"), (3, "d.sock")] {
        let (client, mut nbd) = site.attach_to("large", socket, &options);
        assert_eq!(nbd.read(0, 4096).unwrap(), [number - 1; 4096]);
        nbd.write(0, &[number; 4096]).unwrap();
        nbd.flush().unwrap();
        drop(nbd);
        client.kill();
    }
    let (said, code) = site.run(&["journal", "drain", "j"]);
    assert_eq!(code, 0, "{said}");
    assert!(server.stop().success());
}

/// It says that it holds nothing, of a time before the newest one was used.
#[test]
fn older_copy_of_a_clean_end_is_not_taken_for_the_journal_of_a_crash() {
    let site = Site::new();
    let server = site.serve();
    let (client, nbd) = site.attach("a.sock", &["--journal", "j,size=8M"]);
    drop(nbd);
    assert!(client.stop().success());
    let [journal, copy, newest] = ["j", "copy", "newest"].map(|name| site.path().join(name));
    std::fs::copy(&journal, &copy).unwrap();
    // Keys tell the second in which they were made.
    std::thread::sleep(Duration::from_millis(1100));
    let (client, mut nbd) = site.attach("b.sock", &["--journal", "j"]);
    server.kill();
    nbd.write(0, &[1; 512]).unwrap();
    nbd.flush().unwrap();
    client.kill();
    std::fs::rename(&journal, &newest).unwrap();
    std::fs::rename(&copy, &journal).unwrap();
    let server = site.serve();
    for more in [&["--journal", "j"][..], &[]] {
        let (said, code) =
            site.run(&[&["attach", &site.uri("disk"), "--nbd", "c.sock"], more].concat());
        assert!(code == 1 && said.contains("mount its disk or bring it back"), "{said}");
    }
    std::fs::rename(&newest, &journal).unwrap();
    let (said, code) = site.run(&["journal", "drain", "j"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(site.stored(0), [1; 512]);
    assert!(server.stop().success());
}

/// Whoever uses an encrypted volume as it is stored may write anything where its header was.
#[test]
fn volume_that_is_used_as_it_is_stored_gets_no_checkpoint_over_what_is_written() {
    const PLACE: u64 = (16 << 20) - (64 << 10);
    let site = Site::new();
    let stored = || {
        let mut block = [0; 4096];
        let file = std::fs::File::open(site.path().join("large.img")).unwrap();
        file.read_exact_at(&mut block, PLACE).unwrap();
        block
    };
    let server = site.serve();
    site.encrypt(&[]);
    let options = ["--raw", "--force", "--journal", "j,size=8M"];
    let (client, mut nbd) = site.attach_to("large", "a.sock", &options);
    nbd.write(PLACE, &[1; 4096]).unwrap();
    nbd.flush().unwrap();
    while stored() != [1; 4096] {
        std::thread::sleep(Duration::from_millis(10));
    }
    // What would follow the first group has come before what this says is sent.
    nbd.write(0, &[9; 4096]).unwrap();
    nbd.flush().unwrap();
    drop(nbd);
    assert!(client.stop().success());
    assert!(stored() == [1; 4096]);
    // Nor does a drain write one.
    site.encrypt(&["--force"]);
    let (client, mut nbd) = site.attach_to("large", "b.sock", &options);
    server.kill();
    for at in [PLACE, 0] {
        nbd.write(at, &[2; 4096]).unwrap();
        nbd.flush().unwrap();
    }
    client.kill();
    let server = site.serve();
    let (said, code) = site.run(&["journal", "drain", "j"]);
    assert_eq!(code, 0, "{said}");
    assert!(stored() == [2; 4096]);
    assert!(server.stop().success());
}

/// The image of an encrypted volume has the checkpoint of that one.
#[test]
fn journal_by_which_an_image_of_an_encrypted_volume_came_is_sent() {
    let site = Site::new();
    let server = site.serve();
    site.encrypt(&[]);
    let options = ["--passphrase-file", "pass", "--journal", "other,size=8M"];
    let (client, nbd) = site.attach_to("large", "a.sock", &options);
    drop(nbd);
    assert!(client.stop().success());
    assert!(server.stop().success());
    let large = site.path().join("large.img");
    let image = std::fs::read(&large).unwrap();
    std::fs::write(&large, vec![0; image.len()]).unwrap();
    let server = site.serve();
    let (client, mut nbd) = site.attach_to("large", "b.sock", &["--journal", "j,size=24M"]);
    for (at, piece) in (0..).step_by(1 << 20).zip(image.chunks(1 << 20)).take(16) {
        nbd.write(at, piece).unwrap();
    }
    nbd.flush().unwrap();
    while std::fs::read(&large).unwrap() != image {
        std::thread::sleep(Duration::from_millis(10));
    }
    server.kill();
    nbd.write(20 << 20, &[7; 4096]).unwrap();
    nbd.flush().unwrap();
    client.kill();
    let server = site.serve();
    let (said, code) = site.run(&["journal", "drain", "j"]);
    assert_eq!(code, 0, "{said}");
    assert!(std::fs::read(&large).unwrap()[20 << 20..][..4096] == [7; 4096]);
    assert!(server.stop().success());
}

/// The server has another volume under the name: that is not to stay reserved for a journal that is none of it.
#[test]
fn volume_stays_free_whose_name_a_journal_of_another_has() {
    let site = Site::new();
    site.crashed(&[1]);
    let disk = site.path().join("disk.img");
    std::fs::rename(&disk, site.path().join("old.img")).unwrap();
    std::fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    let server = site.serve();
    let (said, code) = site.run(&["journal", "drain", "j", "--force"]);
    assert!(code == 1 && said.contains("it is for another volume"), "{said}");
    let name = ["--initiator", "iqn.2000-01.example:other", "--nbd", "b.sock"];
    let mut other = site.longhaul(&[&["attach", &site.uri("disk")], &name[..]].concat());
    let client = Running::start(other.env("STATE_DIRECTORY", site.path().join("other-state")));
    client.line().expect("nobody has it");
    assert!(client.stop().success());
    assert!(server.stop().success());
}

#[test]
fn journal_stays_noted_when_a_copy_of_it_is_discarded() {
    let site = Site::new();
    let server = site.serve();
    let (client, mut nbd) = site.attach("a.sock", &["--journal", "j,size=8M"]);
    server.kill();
    nbd.write(0, &[1; 512]).unwrap();
    nbd.flush().unwrap();
    let backup = site.path().join("backup");
    std::fs::create_dir(&backup).unwrap();
    std::fs::copy(site.path().join("j"), backup.join("j")).unwrap();
    client.kill();
    let (said, code) = site.run(&["journal", "discard", "--lose", "backup/j"]);
    assert_eq!(code, 0, "{said}");
    let server = site.serve();
    let (said, code) = site.run(&["attach", &site.uri("disk"), "--nbd", "b.sock"]);
    assert!(code == 1 && said.contains("longhaul journal drain"), "{said}");
    let (said, code) = site.run(&["journal", "drain", "j"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(site.stored(0), [1; 512]);
    assert!(server.stop().success());
}

/// It holds nothing, and does not say so itself.
#[test]
fn journal_of_a_crash_after_which_nothing_is_left_to_send_is_drained_all_the_same() {
    let site = Site::new();
    let server = site.serve();
    let (client, nbd) = site.attach("a.sock", &["--journal", "j,size=8M"]);
    drop(nbd);
    client.kill();
    server.kill();
    site.forget_reservations();
    let server = site.serve();
    let (said, code) = site.run(&["journal", "drain", "j"]);
    assert!(code == 0 && said.contains("j holds nothing that"), "{said}");
    let (client, nbd) = site.attach("b.sock", &[]);
    drop(nbd);
    assert!(client.stop().success());
    assert!(server.stop().success());
}

/// Nothing there says otherwise, so that the journal needs no checkpoint.
#[test]
fn journal_is_begun_where_the_server_has_no_room_for_its_checkpoint() {
    let site = Site::new();
    let full = tempfile::tempdir().unwrap();
    let mount = full.path().to_str().unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=2M", "full", mount]).status();
    assert!(mounted.unwrap().success());
    let _unmount = Unmount(full.path());
    let large = full.path().join("large.img");
    let server = site.serve();
    site.encrypt(&[]);
    assert!(server.stop().success());
    // Its zeroes are holes there.
    let served = site.path().join("large.img");
    let copied = Command::new("cp").arg("--sparse=always").args([&served, &large]).status();
    assert!(copied.unwrap().success());
    std::fs::remove_file(&served).unwrap();
    std::os::unix::fs::symlink(&large, &served).unwrap();
    let server = site.serve();
    assert!(std::fs::write(full.path().join("rest"), vec![1; 4 << 20]).is_err(), "it is full");
    let options = ["--passphrase-file", "pass", "--journal", "j,size=8M"];
    let (client, nbd) = site.attach_to("large", "a.sock", &options);
    drop(nbd);
    assert!(client.stop().success());
    assert_eq!(site.checkpoint(), 0);
    assert!(server.stop().success());
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l".as_ref(), self.0.as_os_str()]).status();
    }
}
