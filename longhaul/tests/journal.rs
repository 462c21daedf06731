//! Journals of real attachments: outages, crashes, other volumes, other writers and damage.

#[path = "common/mod.rs"]
mod common;
#[path = "journal/copies.rs"]
mod copies;
#[path = "common/nbd.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod nbd;
#[path = "common/port.rs"]
mod port;

use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{LONGHAUL, Running, run};
use nbd::Nbd;
use port::Port;

/// The first frame, in bytes from the start of a journal.
const RING_START: u64 = 2 << 20;

struct Site {
    home: tempfile::TempDir,
    port: Port,
}

impl Site {
    fn new() -> Self {
        // Not in memory: there are no direct writes.
        let home = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        Self { home, port: Port::reserve() }
    }

    fn path(&self) -> &Path {
        self.home.path()
    }

    fn portal(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port.number))
    }

    fn uri(&self, volume: &str) -> String {
        format!("iscsi://{}/iqn.2026-11.dev.longhaul:{volume}/0", self.portal())
    }

    fn serve(&self) -> Running {
        self.serve_large("24M")
    }

    /// The same with a large volume of this size.
    fn serve_large(&self, size: &str) -> Running {
        let mut command = Command::new(LONGHAUL);
        command.args(["serve", "--volume", "disk=file:disk.img,size=1M", "--state", "state"]);
        command.args(["--volume", "other=file:other.img,size=1M"]);
        command.args(["--volume", &format!("large=file:large.img,size={size}")]);
        command.args(["--listen", &self.portal().to_string()]).current_dir(self.path());
        let server = Running::start(&mut command);
        (0..3).for_each(|_| drop(server.line().expect("the server is ready")));
        server
    }

    fn longhaul(&self, args: &[&str]) -> Command {
        let mut command = Command::new(LONGHAUL);
        command.args(args).current_dir(self.path());
        command
    }

    /// Runs it to its end: what it said, and its exit code.
    fn run(&self, args: &[&str]) -> (String, i32) {
        let (said, status) = run(&self.longhaul(args));
        (said, status.code().unwrap())
    }

    fn attach(&self, socket: &str, more: &[&str]) -> (Running, Nbd) {
        self.attach_to("disk", socket, more)
    }

    fn attach_to(&self, volume: &str, socket: &str, more: &[&str]) -> (Running, Nbd) {
        let uri = self.uri(volume);
        let args = [&["attach", &uri, "--nbd", socket], more].concat();
        let client = Running::start(&mut self.longhaul(&args));
        client.line().expect("the attachment is ready");
        let nbd = Nbd::connect(&self.path().join(socket));
        (client, nbd)
    }

    /// What the server holds at `at`.
    fn stored(&self, at: u64) -> [u8; 512] {
        let mut block = [0; 512];
        let file = std::fs::File::open(self.path().join("disk.img")).unwrap();
        file.read_exact_at(&mut block, at).unwrap();
        block
    }

    /// An attachment that was killed, during an outage, with a flush in its journal for each of these blocks.
    fn crashed(&self, blocks: &[u8]) {
        let server = self.serve();
        let (client, mut nbd) = self.attach("crashed.sock", &["--journal", "j,size=8M"]);
        server.kill();
        for number in blocks {
            nbd.write(u64::from(*number) * 512, &[*number; 512]).unwrap();
            nbd.flush().unwrap();
        }
        client.kill();
    }

    /// The same of the large volume, with one such block of 4096 bytes.
    fn crashed_on_large(&self, more: &[&str]) {
        let server = self.serve();
        let options = [&["--journal", "j,size=8M"], more].concat();
        let (client, mut nbd) = self.attach_to("large", "crashed.sock", &options);
        server.kill();
        nbd.write(0, &[7; 4096]).unwrap();
        nbd.flush().unwrap();
        client.kill();
    }

    /// Has the server lose its reservations.
    fn forget_reservations(&self) {
        for entry in std::fs::read_dir(self.path().join("state")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|name| name == "reservations") {
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    /// Encrypts the large volume.
    fn encrypt(&self, more: &[&str]) {
        std::fs::write(self.path().join("pass"), "one").unwrap();
        let uri = self.uri("large");
        let init = ["key", "init", &uri, "--passphrase-file", "pass"];
        let cheap = ["--pbkdf-memory", "32K", "--pbkdf-iterations", "4"];
        let (said, code) = self.run(&[&init[..], &cheap, more].concat());
        assert_eq!(code, 0, "{said}");
    }

    /// The frame that the checkpoint of the large volume names.
    fn checkpoint(&self) -> u64 {
        let mut frame = [0; 8];
        let file = std::fs::File::open(self.path().join("large.img")).unwrap();
        file.read_exact_at(&mut frame, (16 << 20) - (64 << 10) + 32).unwrap();
        u64::from_le_bytes(frame)
    }

    /// Saves what the journal holds: the replay log.
    fn export(&self) -> String {
        std::fs::create_dir(self.path().join("saved")).unwrap();
        let (said, code) = self.run(&["journal", "export", "j", "saved"]);
        assert_eq!(code, 0, "{said}");
        assert!(!said.contains("ERROR"), "nothing is wrong: {said}");
        let mut logs = std::fs::read_dir(self.path().join("saved")).unwrap();
        logs.next().unwrap().unwrap().path().into_os_string().into_string().unwrap()
    }

    /// Whether the pass-phrase opens the large volume.
    fn is_opened(&self) -> bool {
        self.run(&["key", "test", &self.uri("large"), "--passphrase-file", "pass"]).1 == 0
    }

    fn status(&self) -> serde_json::Value {
        let (said, code) = self.run(&["journal", "status", "j", "--json"]);
        let status: serde_json::Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        assert_eq!(code, i32::from(status["state"] == "damaged"), "{said}");
        status
    }
}

#[test]
fn outage_longer_than_the_reconnect_limit_fails_no_write() {
    let site = Site::new();
    let server = site.serve();
    let (client, mut nbd) =
        site.attach("a.sock", &["--journal", "j,size=8M", "--reconnect-for", "1s"]);
    nbd.write(0, &[1; 512]).unwrap();
    nbd.flush().unwrap();
    server.kill();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        nbd.write(512, &[2; 512]).unwrap();
        nbd.write_durably(1024, &[3; 512]).unwrap();
        nbd.flush().unwrap();
        // Not so fast that the journal is full.
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(nbd.read(512, 512).unwrap(), [2; 512], "the journal has it");
    nbd.read(512 << 10, 512).expect_err("only the server has it, and is away for too long");
    let server = site.serve();
    drop(nbd);
    assert!(client.stop().success());
    let blocks = [0, 512, 1024].map(|at| site.stored(at)[0]);
    assert_eq!(blocks, [1, 2, 3]);
    assert_eq!(site.status()["state"], "clean");
    assert!(server.stop().success());
}

#[test]
fn journal_of_a_crash_is_not_forgotten() {
    let site = Site::new();
    site.crashed(&[1, 2]);
    let server = site.serve();
    let uri = site.uri("disk");
    let (said, code) = site.run(&["attach", &uri, "--nbd", "b.sock"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("longhaul journal drain"), "{said}");
    let (said, code) =
        site.run(&["attach", &site.uri("other"), "--nbd", "b.sock", "--journal", "j"]);
    assert_eq!(code, 1, "{said}");
    let status = site.status();
    assert_eq!((&status["state"], &status["unsent"]), (&"open".into(), &2.into()));
    assert_eq!(status["volume"], uri);
    let (said, code) = site.run(&["journal", "discard", "j"]);
    assert!(code == 2 && said.contains("it holds 2 changes"), "{said}");
    assert_eq!(site.stored(512), [0; 512]);
    let (said, code) = site.run(&["journal", "drain", "j"]);
    assert!(code == 0 && said.contains("sent 2 changes (1K bytes)"), "{said}");
    assert_eq!((site.stored(512), site.stored(1024)), ([1; 512], [2; 512]));
    assert_eq!(site.status()["state"], "clean");
    // Of another volume it is refused by name also when it holds nothing.
    let (said, code) =
        site.run(&["attach", &site.uri("other"), "--nbd", "b.sock", "--journal", "j"]);
    assert!(code == 1 && said.contains("another volume") && said.contains(&uri), "{said}");
    // Nothing is reserved any more.
    let (client, nbd) = site.attach("b.sock", &[]);
    drop(nbd);
    assert!(client.stop().success());
    let (said, code) = site.run(&["journal", "discard", "j"]);
    assert_eq!(code, 0, "{said}");
    assert!(!site.path().join("j").exists());
    assert!(server.stop().success());
}

#[test]
fn journal_is_not_passed_over_where_the_server_has_forgotten_its_reservations() {
    let site = Site::new();
    site.crashed(&[1]);
    site.forget_reservations();
    let server = site.serve();
    let uri = site.uri("disk");
    for options in [&["--journal", "k,size=8M"][..], &[]] {
        let (said, code) = site.run(&[&["attach", &uri, "--nbd", "b.sock"], options].concat());
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("is in the journal") && said.contains("--take-over"), "{said}");
    }
    assert_eq!(site.stored(512), [0; 512]);
    let (said, code) = site.run(&["journal", "drain", "j", "--force"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(site.stored(512), [1; 512]);
    let (client, nbd) = site.attach("b.sock", &[]);
    drop(nbd);
    assert!(client.stop().success());
    assert!(server.stop().success());
}

#[test]
fn journal_of_a_volume_that_was_taken_over_is_kept_and_not_sent() {
    let site = Site::new();
    site.crashed(&[1]);
    let server = site.serve();
    let uri = site.uri("disk");
    // Another machine.
    let other = |more: &[&str]| {
        let name = ["--initiator", "iqn.2000-01.example:other", "--nbd", "c.sock"];
        let mut command = site.longhaul(&[&["attach", &uri], &name[..], more].concat());
        command.env("STATE_DIRECTORY", site.path().join("other-state"));
        command
    };
    let (said, status) = run(&other(&[]));
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("another writer has the volume"), "{said}");
    let client = Running::start(&mut other(&["--take-over"]));
    client.line().expect("the attachment is ready");
    assert!(client.stop().success());
    for args in
        [&["attach", &uri, "--nbd", "d.sock", "--journal", "j"][..], &["journal", "drain", "j"]]
    {
        let (said, code) = site.run(args);
        assert!(code == 1 && said.contains("longhaul journal export"), "{said}");
    }
    assert_eq!(site.stored(512), [0; 512], "nothing was sent");
    let log = site.export();
    let (said, code) = site.run(&["replay", "--dry-run", "--json", &log]);
    assert_eq!(code, 0, "{said}");
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&report["changes"], &report["bytes"]), (&1.into(), &512.into()));
    let (said, code) = site.run(&["journal", "discard", "--lose", "j"]);
    assert_eq!(code, 0, "{said}");
    assert!(server.stop().success());
}

/// Another machine is told which one has a journal, since when and how much that holds, and what a take-over leaves there.
#[test]
fn other_machine_is_told_of_the_journal_of_an_encrypted_volume() {
    let site = Site::new();
    let server = site.serve();
    site.encrypt(&[]);
    assert!(server.stop().success());
    site.crashed_on_large(&["--passphrase-file", "pass"]);
    let server = site.serve();
    let other = |more: &[&str]| {
        let name = ["--initiator", "iqn.2000-01.example:other", "--nbd", "c.sock"];
        let pass = ["--passphrase-file", "pass"];
        let mut command =
            site.longhaul(&[&["attach", &site.uri("large")], &name[..], &pass[..], more].concat());
        command.env("STATE_DIRECTORY", site.path().join("other-state"));
        command
    };
    let (said, status) = run(&other(&[]));
    assert_eq!(status.code(), Some(1), "{said}");
    for words in ["has kept changes in the journal", "since 20", "up to 6M", "--take-over"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let client = Running::start(&mut other(&["--take-over"]));
    client.line().expect("the attachment is ready");
    assert!(client.stop().success());
    let (said, code) = site.run(&["journal", "drain", "j"]);
    assert!(code == 1 && said.contains("longhaul journal export"), "{said}");
    site.export();
    // Here it is not passed over until somebody says so, and then nothing is said of it any more.
    let options = ["--passphrase-file", "pass", "--journal", "k,size=8M"];
    let attach = ["attach", &site.uri("large"), "--nbd", "d.sock"];
    let (said, code) = site.run(&[&attach[..], &options].concat());
    assert!(code == 1 && said.contains("is in the journal"), "{said}");
    let (said, code) = site.run(&["journal", "discard", "--lose", "j"]);
    assert_eq!(code, 0, "{said}");
    let (client, nbd) = site.attach_to("large", "d.sock", &options);
    drop(nbd);
    assert!(client.stop().success());
    assert!(server.stop().success());
}

/// The header names the journal by an id, which is another one for a volume that has grown.
#[test]
fn own_journal_of_a_volume_that_has_grown_is_not_told_of_as_if_it_were_of_another() {
    let site = Site::new();
    let server = site.serve();
    site.encrypt(&[]);
    let options = ["--passphrase-file", "pass", "--journal", "j,size=8M"];
    let (client, nbd) = site.attach_to("large", "a.sock", &options);
    drop(nbd);
    client.kill();
    server.kill();
    let large = std::fs::File::options().write(true).open(site.path().join("large.img")).unwrap();
    large.set_len(32 << 20).unwrap();
    let server = site.serve_large("32M");
    let uri = site.uri("large");
    let attach = [&["attach", &uri, "--nbd", "b.sock"], &options[..]].concat();
    let said = std::fs::File::create(site.path().join("said")).unwrap();
    let client = Running::start(site.longhaul(&attach).stderr(said));
    client.line().expect("the attachment is ready");
    assert!(client.stop().success());
    let said = std::fs::read_to_string(site.path().join("said")).unwrap();
    assert!(!said.contains("has kept changes"), "{said}");
    assert!(server.stop().success());
}

/// The volume is reserved there as before.
#[test]
fn drain_to_a_server_that_is_away_asks_for_no_force() {
    let site = Site::new();
    site.crashed(&[1]);
    let (said, code) = site.run(&["journal", "drain", "j"]);
    assert!(code == 1 && said.contains("refused") && !said.contains("--force"), "{said}");
}

/// Gives the large volume of a journal another header, and tries to send the journal in any way.
fn not_sent_over_another_header(site: &Site, init: &[&str], reason: &str) {
    let server = site.serve();
    site.encrypt(init);
    let (said, code) = site.run(&["journal", "drain", "j"]);
    assert!(code == 1 && said.contains("journal export"), "{said}");
    let (said, code) = site.run(&["journal", "drain", "j", "--force"]);
    assert!(code == 1 && said.contains(reason) && !said.contains("drain --force"), "{said}");
    let log = site.export();
    let (said, code) = site.run(&["replay", "--force", &log]);
    assert!(code == 1 && said.contains(reason), "{said}");
    assert!(site.is_opened());
    assert!(server.stop().success());
}

#[test]
fn journal_of_a_plain_volume_that_was_encrypted_since_is_not_sent() {
    let site = Site::new();
    site.crashed_on_large(&[]);
    not_sent_over_another_header(&site, &["--take-over", "--force"], "encrypted since");
}

#[test]
fn journal_of_a_volume_that_was_encrypted_anew_is_not_sent() {
    let site = Site::new();
    let server = site.serve();
    site.encrypt(&[]);
    assert!(server.stop().success());
    site.crashed_on_large(&["--passphrase-file", "pass"]);
    let init = ["--take-over", "--force"];
    not_sent_over_another_header(&site, &init, "LUKS UUID");
}

#[test]
fn journal_of_an_encrypted_volume_is_sent_where_its_reservation_is_lost() {
    let site = Site::new();
    let server = site.serve();
    site.encrypt(&[]);
    assert!(server.stop().success());
    site.crashed_on_large(&["--passphrase-file", "pass"]);
    site.forget_reservations();
    let server = site.serve();
    let log = site.export();
    let (said, code) = site.run(&["replay", "--force", &log]);
    assert_eq!(code, 0, "{said}");
    let (said, code) = site.run(&["journal", "drain", "j", "--force"]);
    assert_eq!(code, 0, "{said}");
    let (client, mut nbd) =
        site.attach_to("large", "b.sock", &["--passphrase-file", "pass", "--journal", "j"]);
    assert_eq!(nbd.read(0, 4096).unwrap(), [7; 4096]);
    drop(nbd);
    assert!(client.stop().success());
    assert!(server.stop().success());
}

#[test]
fn journal_that_is_empty_serves_a_volume_that_was_encrypted_since() {
    let site = Site::new();
    let server = site.serve();
    let (client, nbd) = site.attach_to("large", "a.sock", &["--journal", "j,size=8M"]);
    drop(nbd);
    assert!(client.stop().success());
    assert_eq!(site.status()["luks_uuid"], serde_json::Value::Null);
    site.encrypt(&[]);
    let options = ["--passphrase-file", "pass", "--journal", "j"];
    let (client, nbd) = site.attach_to("large", "b.sock", &options);
    drop(nbd);
    assert!(client.stop().success());
    assert!(site.status()["luks_uuid"].is_string());
    assert!(server.stop().success());
}

#[test]
fn flipped_bit_in_what_was_acknowledged_is_told_and_nothing_is_sent() {
    let site = Site::new();
    site.crashed(&[1, 2, 3]);
    let path = site.path().join("j");
    let server = site.serve();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    // The head and the bytes of the first frame, which the second says was stable.
    for at in [0, 9, 40, 72, 104, 112, 4064, 4096, 4607] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, RING_START + at).unwrap();
        file.write_all_at(&[byte[0] ^ 4], RING_START + at).unwrap();
        let status = site.status();
        assert_eq!(status["state"], "damaged", "byte {at}");
        let (said, code) = site.run(&["journal", "drain", "j"]);
        assert!(code == 1 && said.contains("the journal is corrupt: frame 1"), "{said}");
        file.write_all_at(&byte, RING_START + at).unwrap();
    }
    assert_eq!(site.status()["unsent"], 3);
    assert_eq!(site.stored(512), [0; 512], "nothing was sent");
    // What stands before the damage can be saved.
    file.write_all_at(&[0xFF], RING_START + 8192 + 4096).unwrap();
    let (said, code) = site.run(&["journal", "salvage", "j", "."]);
    assert!(code == 1 && said.contains("saved 1 changes") && said.contains("frame 2"), "{said}");
    assert!(server.stop().success());
}

#[test]
fn journal_that_was_cut_gives_up_what_is_left_of_it() {
    let site = Site::new();
    site.crashed(&[1, 2, 3]);
    let file = std::fs::File::options().write(true).open(site.path().join("j")).unwrap();
    let salvage = |from: &str| site.run(&["journal", "salvage", from, "."]);
    file.set_len(file.metadata().unwrap().len() - 4096).unwrap();
    let (said, code) = site.run(&["journal", "status", "j"]);
    assert!(code == 1 && said.contains("is cut") && said.contains("salvage"), "{said}");
    let (said, code) = salvage("j");
    assert!(code == 1 && said.contains("saved 3 changes") && said.contains("is cut"), "{said}");
    // In the midst of the second change, which is behind the head of its frame.
    file.set_len(RING_START + 8192 + 4200).unwrap();
    let (said, code) = salvage("j");
    assert!(code == 1 && said.contains("saved 1 changes"), "{said}");
}

#[test]
fn journal_that_does_not_fit_its_disk_is_not_left_behind() {
    let site = Site::new();
    let uri = site.uri("disk");
    let (said, code) = site.run(&["attach", &uri, "--nbd", "a.sock", "--journal", "j,size=100T"]);
    assert!(code == 1 && said.contains("cannot use the journal j"), "{said}");
    assert!(!site.path().join("j").exists());
    for (args, why) in [
        (&["attach", "memory:1M", "--nbd", "a", "--journal", "j"][..], "behind a network"),
        (&["attach", &uri, "--nbd", "a", "--journal", "j,size=1M"], "8M is the least"),
        (&["attach", &uri, "--nbd", "a", "--journal", "j", "--shared"], "cannot be used with"),
    ] {
        let (said, code) = site.run(args);
        assert!(code == 2 && said.contains(why), "{said}");
    }
}

#[test]
fn journal_that_was_made_for_a_volume_that_does_not_open_is_removed() {
    let site = Site::new();
    let uri = site.uri("disk");
    let journal = ["--journal", "j,size=8M"];
    let refused = |args: &[&str]| {
        let (said, code) = site.run(&[&["attach", &uri], args].concat());
        assert_eq!(code, 1, "{said}");
        said
    };
    let begin = |args: &[&str]| refused(&[args, &journal].concat());
    let is_there = || site.path().join("j").exists();
    begin(&["--nbd", "a.sock"]);
    assert!(!is_there(), "no server");
    let server = site.serve();
    let said = begin(&["--nbd", "a.sock", "--encrypted", "--passphrase-env", "HOME"]);
    assert!(said.contains("is not encrypted") && !is_there(), "a layer above fails: {said}");
    std::fs::write(site.path().join("taken"), "").unwrap();
    let said = begin(&["--nbd", "taken"]);
    assert!(said.contains("cannot listen") && !is_there(), "the front fails: {said}");
    // Nothing is reserved or noted for what is gone.
    let (client, nbd) = site.attach("b.sock", &[]);
    let said = begin(&["--nbd", "c.sock"]);
    assert!(said.contains("another writer") && !is_there(), "it is in use: {said}");
    drop(nbd);
    assert!(client.stop().success());
    // One that was there stays, also if it holds nothing.
    let (client, nbd) = site.attach("d.sock", &journal);
    drop(nbd);
    assert!(client.stop().success());
    begin(&["--nbd", "taken"]);
    assert!(is_there());
    assert!(server.stop().success());
}
