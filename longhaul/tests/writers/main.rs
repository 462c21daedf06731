//! One writer: who has a volume, who does not get it, and what becomes of a writer that lost it.

#[path = "../common/mod.rs"]
mod common;
mod copies;
mod end;
mod exchanged;
mod fenced;
mod gateway;
mod headers;
mod identity;
mod link;
mod local;
#[path = "../common/nbd.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod nbd;
mod replaced;
mod replayed;
mod unguarded;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{LONGHAUL, Running, run};
use rustix::process::Signal;

/// A server, and a directory for all that a test leaves behind.
struct Bench {
    dir: tempfile::TempDir,
    server: Option<Running>,
    uri: String,
}

impl Bench {
    /// Serves a volume in memory on a port of its own, with `options`.
    fn new(options: &[&str]) -> Self {
        Self::serving(&[&["--volume", "t=file:t.img,size=32M"], options].concat())
    }

    /// Serves what `options` say.
    fn serving(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("logs")).unwrap();
        let mut bench = Self { dir, server: None, uri: String::new() };
        bench.serve(options);
        bench
    }

    fn serve(&mut self, options: &[&str]) {
        let listen = self.uri.split('/').nth(2).unwrap_or("127.0.0.1:0").to_owned();
        let mut command = self.longhaul(&["serve", "--listen", &listen]);
        let server = Running::start(command.args(options));
        let ready = server.line().expect("it says when it is ready");
        self.uri = ready.strip_prefix("ready ").unwrap().to_owned();
        self.server = Some(server);
    }

    fn longhaul(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(LONGHAUL);
        command.args(arguments).current_dir(self.path());
        command.env("LONGHAUL_STATE_DIR", self.path().join("state"));
        command
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Attaches the volume at a socket of this name.
    fn attach(&self, name: &str, options: &[&str]) -> Attached {
        self.attach_to(&self.uri, name, options)
    }

    fn attach_to(&self, uri: &str, name: &str, options: &[&str]) -> Attached {
        let socket = format!("{name}.sock");
        let mut command = self.longhaul(&["attach", uri, "--nbd", &socket]);
        command.args(["--replay-log", "logs"]);
        let log = std::fs::File::create(self.path().join(format!("{name}.log"))).unwrap();
        let process = Running::start(command.args(options).stderr(log));
        let uri = process.line().unwrap_or_else(|| panic!("{}", self.log(name)));
        Attached { uri: uri.strip_prefix("ready ").unwrap().to_owned(), process }
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(format!("{name}.log"))).unwrap()
    }

    /// What a command printed, and whether it succeeded.
    fn run(&self, arguments: &[&str]) -> (String, bool) {
        let (printed, status) = run(&self.longhaul(arguments));
        (printed, status.success())
    }

    /// The serial number of the volume at `uri`.
    fn serial(&self, uri: &str) -> String {
        let (said, done) = self.run(&["info", uri]);
        assert!(done, "{said}");
        let serial = said.lines().find_map(|line| line.trim().strip_prefix("serial "));
        serial.unwrap_or_else(|| panic!("{said}")).trim().to_owned()
    }

    /// What an attachment that is refused says.
    fn refused(&self, options: &[&str]) -> String {
        let arguments = [&["attach", &self.uri, "--nbd", "refused.sock"], options].concat();
        let (printed, done) = self.run(&arguments);
        assert!(!done, "{printed}");
        printed
    }

    fn qemu_io(&self, at: &Attached, arguments: &[&str]) -> (String, bool) {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw"]).args(arguments).arg(&at.uri).current_dir(self.path());
        let (printed, status) = run(&command);
        (printed, status.success())
    }

    fn write(&self, at: &Attached, pattern: u8) -> bool {
        let write = format!("write -P {pattern} 0 1M");
        let (printed, done) = self.qemu_io(at, &["-c", &write, "-c", "flush"]);
        done && !printed.contains("failed") && !printed.contains("rror")
    }

    fn reads(&self, at: &Attached, pattern: u8) -> bool {
        let (printed, done) = self.qemu_io(at, &["-r", "-c", &format!("read -P {pattern} 0 1M")]);
        done && !printed.contains("failed") && !printed.contains("rror")
    }

    /// What the store holds there.
    fn stored(&self) -> Vec<u8> {
        std::fs::read(self.path().join("t.img")).unwrap()[..1 << 20].to_vec()
    }
}

struct Attached {
    process: Running,
    uri: String,
}

#[test]
fn second_attachment_is_refused_and_told_who_has_the_volume() {
    let bench = Bench::new(&[]);
    let first = bench.attach("first", &["--initiator", "iqn.2001-04.com.example:first"]);
    let said = bench.refused(&[]);
    for words in [
        "another writer",
        "iqn.2001-04.com.example:first",
        "`--take-over` of `attach`, `mount`, `copy`, `tune` and `key`",
        "--shared",
        "--read-only",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(said.contains(&format!("process {} of this machine", first.process.pid())), "{said}");
    let shared = bench.refused(&["--shared"]);
    assert!(shared.contains("another writer"), "{shared}");
    assert!(shared.contains("iqn.2001-04.com.example:first"), "{shared}");
    let reader = bench.attach("reader", &["--read-only"]);
    for words in ["another writer has", "iqn.2001-04.com.example:first", "nothing is read ahead"] {
        assert!(bench.log("reader").contains(words), "{words}: {}", bench.log("reader"));
    }
    assert!(bench.write(&first, 6) && bench.reads(&reader, 6));
    assert!(bench.write(&first, 7) && bench.reads(&reader, 7), "nothing was read ahead");
    assert!(reader.process.stop().success());
    std::fs::write(bench.path().join("in.img"), [5; 4096]).unwrap();
    let (said, done) = bench.run(&["copy", "in.img", &bench.uri]);
    assert!(!done && said.contains("another writer"), "{said}");
    let (said, done) = bench.run(&["copy", &bench.uri, "out.img"]);
    assert!(done, "a source is only read: {said}");
    assert!(first.process.stop().success());
    let second = bench.attach("second", &[]);
    assert!(bench.write(&second, 8));
    assert!(second.process.stop().success());
    assert_eq!(std::fs::read_dir(bench.path().join("state/attachments")).unwrap().count(), 0);
}

#[test]
fn shared_attachments_write_side_by_side_and_not_beside_one_that_is_not() {
    let bench = Bench::new(&[]);
    let (one, two) = (bench.attach("one", &["--shared"]), bench.attach("two", &["--shared"]));
    assert!(bench.write(&one, 1) && bench.reads(&two, 1) && bench.write(&two, 2));
    assert!(bench.reads(&one, 2));
    // Whoever reads in order may be read ahead for: what lies there may be written by the other meanwhile.
    let pieces: Vec<_> = (0..16).map(|at| format!("read -P 2 {} 64K", at << 16)).collect();
    let in_order: Vec<_> = pieces.iter().flat_map(|read| ["-c", read]).collect();
    assert!(bench.qemu_io(&one, &[&["-r"], &in_order[..]].concat()).1);
    let write = ["-c", "write -P 3 1M 1M", "-c", "flush"];
    assert!(bench.qemu_io(&two, &write).1);
    let (printed, _) = bench.qemu_io(&one, &["-r", "-c", "read -P 3 1M 64K"]);
    assert!(!printed.contains("failed"), "it was read ahead: {printed}");
    assert!(one.process.stop().success() && two.process.stop().success());
}

#[test]
fn taken_over_attachment_writes_nothing_more_and_says_why() {
    let bench = Bench::new(&[]);
    let first = bench.attach("first", &["--initiator", "iqn.2001-04.com.example:first"]);
    assert!(bench.write(&first, 1));
    let second =
        bench.attach("second", &["--take-over", "--initiator", "iqn.2001-04.com.example:second"]);
    assert!(bench.write(&second, 2));
    assert!(!bench.write(&first, 3), "it is fenced");
    assert!(second.process.stop().success());
    assert!(!bench.write(&first, 4), "and stays so when the other has gone");
    assert!(bench.stored().iter().all(|byte| *byte == 2));
    first.process.stop();
    let log = bench.log("first");
    for words in ["taken over", "iqn.2001-04.com.example:second", "(attached at 20"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    let third = bench.attach("third", &[]);
    assert!(bench.reads(&third, 2));
    assert!(third.process.stop().success());
}

#[test]
fn key_init_by_force_fails_beside_a_live_attachment() {
    let bench = Bench::new(&[]);
    std::fs::write(bench.path().join("key"), "pass-phrase").unwrap();
    let init = [
        "key",
        "init",
        &bench.uri,
        "--force",
        "--passphrase-file",
        "key",
        "--pbkdf-iterations",
        "4",
        "--pbkdf-memory",
        "32K",
    ];
    let first = bench.attach("first", &[]);
    let (said, done) = bench.run(&init);
    assert!(!done && said.contains("another writer"), "{said}");
    assert!(bench.write(&first, 1) && first.process.stop().success());
    let (said, done) = bench.run(&init);
    assert!(done, "{said}");
    // Nothing is left reserved by a command that fails.
    let (said, done) = bench.run(&["key", "restore", &bench.uri, "missing"]);
    assert!(!done, "{said}");
    let again = bench.attach("again", &["--raw", "--force"]);
    assert!(again.process.stop().success());
}

/// Each would change a header that the holder has read, or the key of what it writes.
#[test]
fn no_key_command_changes_a_header_beside_a_live_attachment() {
    let bench = Bench::new(&[]);
    for name in ["key", "other"] {
        std::fs::write(bench.path().join(name), name).unwrap();
    }
    let cheap = ["--pbkdf-iterations", "4", "--pbkdf-memory", "32K"];
    let (uri, with) = (&*bench.uri, ["--passphrase-file", "key"]);
    let (said, done) = bench.run(&[&["key", "init", uri][..], &with, &cheap].concat());
    assert!(done, "{said}");
    let (said, done) = bench.run(&["key", "backup", uri, "header"]);
    assert!(done, "{said}");
    let before = bench.stored();
    let holder = bench.attach("holder", &with);
    let new = [&with[..], &["--new-passphrase-file", "other"], &cheap].concat();
    for (verb, rest) in [
        ("add", &new[..]),
        ("change", &new),
        ("remove", &["--passphrase-file", "key"]),
        ("restore", &["header"]),
        ("restore", &["header", "--force"]),
    ] {
        let (said, done) = bench.run(&[&["key", verb, uri][..], rest].concat());
        assert!(!done && said.contains("another writer"), "key {verb}: {said}");
        assert_eq!(bench.stored(), before, "key {verb}");
    }
    assert!(holder.process.stop().success());
    let (said, done) = bench.run(&[&["key", "change", uri][..], &new].concat());
    assert!(done, "{said}");
}

/// A typing error must not end the writing of another machine.
#[test]
fn nothing_is_taken_over_by_a_pass_phrase_that_opens_nothing() {
    let bench = Bench::new(&[]);
    for name in ["key", "other"] {
        std::fs::write(bench.path().join(name), name).unwrap();
    }
    let init = ["key", "init", &bench.uri, "--passphrase-file", "key"];
    let (said, done) =
        bench.run(&[&init[..], &["--pbkdf-iterations", "4", "--pbkdf-memory", "32K"]].concat());
    assert!(done, "{said}");
    let holder = bench.attach("holder", &["--passphrase-file", "key"]);
    let other = ["--take-over", "--initiator", "iqn.2001-04.com.example:second"];
    std::fs::write(bench.path().join("in.img"), [1; 4096]).unwrap();
    for command in [
        &["attach", &bench.uri, "--nbd", "second.sock"][..],
        &["copy", "in.img", &bench.uri, "--force"],
        &["tune", &bench.uri],
    ] {
        let wrong = ["--passphrase-file", "other"];
        let (said, done) = bench.run(&[command, &wrong, &other].concat());
        assert!(!done && said.contains("nothing was taken over"), "{command:?}: {said}");
    }
    assert!(bench.write(&holder, 1) && holder.process.stop().success());
    let second = [&other[..], &["--passphrase-file", "key"]].concat();
    let second = bench.attach("second", &second);
    assert!(bench.reads(&second, 1) && second.process.stop().success());
}

#[test]
fn attachment_that_was_killed_is_taken_over_by_its_machine_and_no_other() {
    let bench = Bench::new(&[]);
    let first = bench.attach("first", &[]);
    assert!(bench.write(&first, 1));
    first.process.kill();
    let elsewhere = tempfile::tempdir().unwrap();
    let mut other = bench.longhaul(&["attach", &bench.uri, "--nbd", "other.sock"]);
    let (said, status) = run(other.env("LONGHAUL_STATE_DIR", elsewhere.path()));
    assert!(!status.success() && said.contains("another writer"), "{said}");
    assert!(said.contains("(attached at 20") && said.contains("UTC by its clock)"), "{said}");
    let second = bench.attach("second", &[]);
    assert!(bench.write(&second, 2) && second.process.stop().success());
    assert_eq!(std::fs::read_dir(bench.path().join("state/attachments")).unwrap().count(), 0);
}

#[test]
fn copy_of_the_state_directory_takes_nothing_from_a_writer_that_lives() {
    let bench = Bench::new(&[]);
    let first = bench.attach("first", &[]);
    assert!(bench.write(&first, 1));
    let clone = bench.path().join("clone");
    let state = bench.path().join("state");
    let copied = Command::new("cp").arg("-a").args([&state, &clone]).status().unwrap();
    assert!(copied.success());
    let mut other = bench.longhaul(&["attach", &bench.uri, "--nbd", "other.sock"]);
    let (said, status) = run(other.env("LONGHAUL_STATE_DIR", &clone));
    for words in ["another writer", "that is a copy", "--take-over"] {
        assert!(!status.success() && said.contains(words), "{words}: {said}");
    }
    assert!(bench.write(&first, 2), "{}", bench.log("first"));
    // Nor is the copy trusted once the process is gone: it could be any machine's.
    first.process.kill();
    let (said, status) = run(other.env("LONGHAUL_STATE_DIR", &clone));
    assert!(!status.success() && said.contains("that is a copy"), "{said}");
    let second = bench.attach("second", &[]);
    assert!(bench.reads(&second, 2) && second.process.stop().success());
}

#[test]
fn attachment_outlives_a_server_that_forgets_and_one_that_remembers() {
    for options in [&[][..], &["--state", "pr"]] {
        let mut bench = Bench::new(options);
        let first = bench.attach("first", &[]);
        assert!(bench.write(&first, 1));
        bench.server.take().unwrap().kill();
        bench.serve(&[&["--volume", "t=file:t.img"], options].concat());
        assert!(bench.write(&first, 2), "{}", bench.log("first"));
        assert!(bench.refused(&[]).contains("another writer"));
        assert!(first.process.stop().success(), "{}", bench.log("first"));
        let second = bench.attach("second", &[]);
        assert!(bench.reads(&second, 2) && second.process.stop().success());
    }
}

/// Without a state directory a server that was started anew knows of no reservation, so a second writer may come
/// while the first is cut off. The first finds out.
#[test]
fn writer_that_was_cut_off_does_not_write_over_its_successor() {
    let mut bench = Bench::new(&[]);
    let first = bench.attach("first", &[]);
    assert!(bench.write(&first, 1));
    first.process.signal(Signal::STOP);
    bench.server.take().unwrap().kill();
    bench.serve(&["--volume", "t=file:t.img"]);
    let second = bench.attach("second", &[]);
    assert!(bench.write(&second, 2) && second.process.stop().success());
    first.process.signal(Signal::CONT);
    assert!(!bench.write(&first, 3), "{}", bench.log("first"));
    assert!(bench.stored().iter().all(|byte| *byte == 2));
    first.process.kill();
}

#[test]
fn gateway_reserves_what_it_serves_unless_it_is_shared() {
    let bench = Bench::new(&[]);
    let gateway = |options: &str| {
        let volume = format!("g={}{options}", bench.uri);
        let mut command =
            bench.longhaul(&["serve", "--listen", "127.0.0.1:0", "--volume", &volume]);
        Running::start(command.stderr(Stdio::null()))
    };
    let first = gateway("");
    assert!(first.line().is_some_and(|line| line.starts_with("ready ")));
    let said = bench.refused(&[]);
    assert!(said.contains("another writer"), "{said}");
    assert!(gateway("").line().is_none(), "two gateways");
    assert!(first.stop().success());
    let (one, two) = (gateway(",shared"), gateway(",shared"));
    assert!(one.line().is_some() && two.line().is_some());
    assert!(one.stop().success() && two.stop().success());
}
