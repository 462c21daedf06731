//! Optical drives of the served program: initiators that read discs, and somebody at the server who exchanges them.

mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;
#[path = "common/units.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod units;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use common::{LONGHAUL, Running, run};
use peer::Peer;
use proto::scsi::Sense;
use proto::scsi::sense::Additional;
use units::{TARGET, serve_at};

const BLOCK: usize = 2048;
const MEDIUM: &[u8] = &[0x4A, 1, 0, 0, 0x10, 0, 0, 0, 8, 0];

/// A disc of so many blocks, each of which is told from all others.
fn image(path: &Path, blocks: u32, seed: u32) -> Vec<u8> {
    let numbers = (0..blocks * (BLOCK as u32 / 4)).map(|at| at.wrapping_mul(2_654_435_761) ^ seed);
    let bytes: Vec<u8> = numbers.flat_map(u32::to_be_bytes).collect();
    fs::write(path, &bytes).unwrap();
    bytes
}

/// A server of these volumes in `home`, and its portal.
fn serve(home: &Path, volumes: &[&str]) -> (Running, SocketAddr) {
    serve_at(home, "127.0.0.1:0", volumes)
}

/// `longhaul media` with these words; what it said, and whether it was done.
fn media(home: &Path, words: &[&str]) -> (String, bool) {
    let mut command = Command::new(LONGHAUL);
    command.arg("media").args(words).args(["--control", "control.sock"]).current_dir(home);
    let (said, status) = run(&command);
    (said, status.success())
}

/// An initiator of a drive.
struct Initiator(Peer);

impl Initiator {
    fn new(portal: SocketAddr, number: u8, drive: &str) -> Self {
        let name = format!("iqn.2001-04.com.example:{number}");
        let mut this = Self(Peer::log_in(portal, &name, number, &format!("{TARGET}{drive}")));
        assert_eq!(this.says(), Some(Additional::POWER_ON_OR_RESET));
        this
    }

    fn says(&mut self) -> Option<Additional> {
        self.0.says(0)
    }

    fn ask(&mut self, cdb: &[u8], expected: u32) -> Result<Vec<u8>, Additional> {
        match self.0.run_on(0, cdb, vec![], expected).expect("an answer") {
            (0, data) => Ok(data),
            (_, sense) => Err(Sense::parse(&sense).unwrap().additional),
        }
    }

    fn read(&mut self, lba: u8) -> Result<Vec<u8>, Additional> {
        self.ask(&[0x28, 0, 0, 0, 0, lba, 0, 0, 1, 0], BLOCK as u32)
    }
}

#[test]
fn disc_is_exchanged_under_two_initiators_that_read_it() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    let (one, two) = (image(&path("one.iso"), 100, 1), image(&path("two.iso"), 100, 2));
    let (server, portal) = serve(home.path(), &["movies=cdrom:one.iso"]);
    let mut all = [1, 2].map(|number| Initiator::new(portal, number, "movies"));
    for initiator in &mut all {
        assert_eq!(initiator.read(7), Ok(one[7 * BLOCK..][..BLOCK].to_vec()));
    }
    // As large as the one before: only the events tell.
    let (said, done) = media(home.path(), &["load", "movies", "two.iso"]);
    assert!(done && said.trim_end().ends_with("two.iso is in movies"), "{said}");
    for initiator in &mut all {
        assert_eq!(initiator.ask(MEDIUM, 8), Ok(vec![0, 6, 4, 0x12, 2, 2, 0, 0]));
        assert_eq!(initiator.read(7), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
        assert_eq!(initiator.read(7), Ok(two[7 * BLOCK..][..BLOCK].to_vec()));
    }
    // The very one that is in it is put in again.
    let (said, done) = media(home.path(), &["load", "movies", "two.iso"]);
    assert!(done && said.trim_end().ends_with("two.iso is in movies"), "{said}");
    for initiator in &mut all {
        assert_eq!(initiator.read(7), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
    }
    // The image that was taken out is free again.
    fs::OpenOptions::new().write(true).open(path("one.iso")).unwrap();
    let (said, done) = media(home.path(), &["eject", "movies"]);
    assert!(done && said == "movies is empty\n", "{said}");
    for initiator in &mut all {
        assert_eq!(initiator.read(7), Err(Additional::MEDIUM_NOT_PRESENT_TRAY_OPEN));
    }
    assert!(server.stop().success());
}

#[test]
fn tray_that_an_initiator_has_locked_opens_by_force_only() {
    let home = tempfile::tempdir().unwrap();
    image(&home.path().join("one.iso"), 10, 1);
    let (server, portal) = serve(home.path(), &["movies=cdrom:one.iso", "tray=cdrom:"]);
    let mut initiator = Initiator::new(portal, 1, "movies");
    assert_eq!(initiator.ask(&[0x1E, 0, 0, 0, 1, 0], 0), Ok(vec![]));
    let listed = || media(home.path(), &["list"]).0;
    let disc = home.path().join("one.iso");
    assert!(listed().starts_with("movies: one.iso, 20K, locked\n"), "{}", listed());
    assert!(listed().ends_with("tray: empty\n"), "{}", listed());
    let (said, done) = media(home.path(), &["eject", "movies"]);
    assert!(!done && said.contains("an initiator has locked the tray"), "{said}");
    assert!(said.contains("--force"), "{said}");
    assert_eq!(initiator.ask(MEDIUM, 8), Ok(vec![0, 6, 4, 0x12, 1, 2, 0, 0]), "it is asked for it");
    assert_eq!(initiator.says(), None);
    assert!(media(home.path(), &["eject", "movies", "--force"]).1);
    assert_eq!(initiator.says(), Some(Additional::MEDIUM_NOT_PRESENT_TRAY_OPEN));
    // One drive is not the other.
    let (said, done) = media(home.path(), &["load", "tray", disc.to_str().unwrap()]);
    assert!(done, "{said}");
    let mut other = Initiator::new(portal, 2, "tray");
    assert!(other.read(9).is_ok());
    assert_eq!(initiator.says(), Some(Additional::MEDIUM_NOT_PRESENT_TRAY_OPEN));
    assert!(server.stop().success());
}

#[test]
fn disc_that_cannot_be_read_leaves_the_one_that_is_in() {
    let home = tempfile::tempdir().unwrap();
    image(&home.path().join("one.iso"), 10, 1);
    fs::write(home.path().join("short.iso"), vec![0; 3000]).unwrap();
    let (server, portal) = serve(home.path(), &["movies=cdrom:one.iso", "disk=memory:1M"]);
    let mut initiator = Initiator::new(portal, 1, "movies");
    for (words, why) in [
        (["load", "movies", "short.iso"], "2048"),
        (["load", "movies", "missing.iso"], "does not exist"),
        (["load", "disk", "one.iso"], "no drive `disk`: it has movies"),
        (["load", "films", "one.iso"], "no drive `films`: it has movies"),
    ] {
        let (said, done) = media(home.path(), &words);
        assert!(!done && said.contains(why), "{words:?}: {said}");
    }
    assert_eq!(initiator.says(), None);
    assert!(initiator.read(9).is_ok());
    assert!(server.stop().success());
}

#[test]
fn own_client_copies_a_disc_and_writes_nothing_to_it() {
    let home = tempfile::tempdir().unwrap();
    let disc = image(&home.path().join("one.iso"), 3000, 4);
    let (server, portal) = serve(home.path(), &["movies=cdrom:one.iso", "tray=cdrom:"]);
    let longhaul = |words: &[&str]| {
        let mut command = Command::new(LONGHAUL);
        let (said, status) = run(command.args(words).current_dir(home.path()));
        (said, status.success())
    };
    let uri = format!("iscsi://{portal}/{TARGET}movies/0");
    let (said, done) = longhaul(&["copy", &uri, "copy.iso"]);
    assert!(done, "{said}");
    assert!(fs::read(home.path().join("copy.iso")).unwrap() == disc);
    let (said, done) = longhaul(&["info", "--chain", &uri]);
    assert!(done && said.contains("blocks of 2048, read-only"), "{said}");
    let (said, done) = longhaul(&["copy", "one.iso", &uri, "--force"]);
    assert!(!done && said.contains("read-only"), "{said}");
    // Another disc of the same size is another volume to who reads the first.
    let identity = || {
        let mut initiator = Initiator::new(portal, 3, "movies");
        let page = initiator.ask(&[0x12, 1, 0xC0, 0, 255, 0], 255).unwrap();
        assert!(page.starts_with(&[5, 0xC0]) && page[4..].starts_with(b"LONGHAUL"));
        page
    };
    let before = identity();
    fs::copy(home.path().join("one.iso"), home.path().join("two.iso")).unwrap();
    assert!(media(home.path(), &["load", "movies", "two.iso"]).1);
    assert_ne!(identity(), before);
    assert!(media(home.path(), &["load", "movies", "one.iso"]).1);
    assert_eq!(identity(), before);
    let (said, done) = longhaul(&["info", &format!("iscsi://{portal}/{TARGET}tray/0")]);
    assert!(done && said.contains("optical drive, empty"), "{said}");
    let (said, done) = longhaul(&["info", &uri]);
    assert!(done && said.contains("type         optical drive"), "{said}");
    let (said, done) =
        longhaul(&["attach", &format!("iscsi://{portal}/{TARGET}tray/0"), "--nbd", "s"]);
    assert!(!done && said.contains("there is no medium in the drive"), "{said}");
    let (said, done) = longhaul(&["cd", "read", &format!("iscsi://{portal}/{TARGET}tray")]);
    assert!(!done && said.contains("there is no medium in the drive"), "{said}");
    assert!(server.stop().success());
}

#[test]
fn disc_is_listed_and_read_and_what_cannot_be_read_is_named() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("one.iso");
    let disc = image(&path, 3000, 4);
    let (server, portal) = serve(home.path(), &["movies=cdrom:one.iso", "disk=memory:1M"]);
    let longhaul = |words: &[&str]| {
        let mut command = Command::new(LONGHAUL);
        let (said, status) = run(command.args(words).current_dir(home.path()));
        (said, status.success())
    };
    let uri = format!("iscsi://{portal}/{TARGET}movies");
    let (said, done) = longhaul(&["cd", "toc", &uri]);
    assert!(done && said.contains("track  1     data, session 1, 3000 blocks from 0 on"), "{said}");
    assert!(said.contains("end          block 3000"), "{said}");
    let (said, done) = longhaul(&["cd", "toc", &uri, "--json"]);
    let track =
        r#"{"number":1,"session":1,"type":"data","first_block":0,"blocks":3000,"open":false}"#;
    assert!(done && said.contains(track), "{said}");
    let (said, done) = longhaul(&["cd", "read", &uri, "copy.iso"]);
    assert!(done && said.contains("copy.iso: "), "{said}");
    assert!(fs::read(home.path().join("copy.iso")).unwrap() == disc);
    for action in ["toc", "read"] {
        let (said, done) = longhaul(&["cd", action, &format!("iscsi://{portal}/{TARGET}disk")]);
        assert!(!done && said.contains("is no optical drive: it is a disk"), "{said}");
    }
    // The image loses its end under the drive.
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2500 * BLOCK as u64).unwrap();
    let (said, done) = longhaul(&["cd", "read", &uri, "copy.iso"]);
    assert!(!done && said.contains("it exists already"), "{said}");
    assert!(fs::read(home.path().join("copy.iso")).unwrap() == disc);
    let (said, done) = longhaul(&["cd", "read", &uri, "short.iso"]);
    assert!(!done && said.contains("cannot read block 2500 of the disc"), "{said}");
    assert!(server.stop().success());
}

#[test]
fn own_client_reads_no_block_of_another_disc() {
    let home = tempfile::tempdir().unwrap();
    image(&home.path().join("one.iso"), 3000, 5);
    image(&home.path().join("two.iso"), 3000, 6);
    let (server, portal) = serve(home.path(), &["movies=cdrom:one.iso"]);
    let uri = format!("iscsi://{portal}/{TARGET}movies/0");
    let mut command = Command::new("sh");
    let script = "exec 2>&1\nexec \"$0\" attach \"$1\" --read-only --nbd disc.sock";
    command.args(["-c", script, LONGHAUL, &uri]).current_dir(home.path());
    let attached = Running::start(&mut command);
    let until = |words: &str| {
        while !attached.line().unwrap_or_else(|| panic!("it does not say: {words}")).contains(words)
        {
        }
    };
    until("ready nbd");
    assert!(media(home.path(), &["load", "movies", "two.iso"]).1);
    let mut reader = Command::new("nbdcopy");
    reader.args(["nbd+unix:///?socket=disc.sock", "copy.iso"]).current_dir(home.path());
    let reader = Running::start(&mut reader);
    until("its disc has changed");
    // What it waits for is the disc that it has begun with.
    assert!(media(home.path(), &["load", "movies", "one.iso"]).1);
    assert!(reader.end().success());
    let (copy, disc) = (home.path().join("copy.iso"), home.path().join("one.iso"));
    assert!(fs::read(copy).unwrap() == fs::read(disc).unwrap());
    assert!(attached.stop().success());
    assert!(server.stop().success());
}

#[test]
fn qemu_copies_a_disc_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let disc = image(&home.path().join("one.iso"), 3000, 3);
    let (server, portal) = serve(home.path(), &["movies=cdrom:one.iso"]);
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-f", "raw", "-O", "raw"]).current_dir(home.path());
    command.arg(format!("iscsi://{portal}/{TARGET}movies/0")).arg("copy.iso");
    let (said, status) = run(&command);
    assert!(status.success(), "{said}");
    assert!(fs::read(home.path().join("copy.iso")).unwrap() == disc);
    assert!(server.stop().success());
}
