//! How an attachment ends, and what becomes of what it had acknowledged: clients that go on are not deceived, and what
//! could not be written is in a file that can be written later.

mod common;
#[path = "common/port.rs"]
mod port;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use common::{LONGHAUL, PATIENCE, Running, run};
use port::Port;
use rustix::process::Signal;

const SIZE: usize = 16 << 20;
const TARGET: &str = "iqn.2026-11.dev.longhaul:disk";

/// A directory, and a port that a server comes back to.
struct Fixture {
    home: tempfile::TempDir,
    port: Port,
}

impl Fixture {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap(), port: Port::reserve() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn uri(&self) -> String {
        format!("iscsi://127.0.0.1:{}/{TARGET}/0", self.port.number)
    }

    fn serve(&self, file: &str, size: usize) -> Running {
        let mut command = Command::new(LONGHAUL);
        command.args(["serve", "--listen", &format!("127.0.0.1:{}", self.port.number)]);
        command.arg(format!("--volume=disk=file:{file},size={size}"));
        let server = Running::start(command.current_dir(&self.home));
        assert!(server.line().is_some_and(|line| line.starts_with("ready ")));
        server
    }

    fn longhaul(&self, args: &str) -> Command {
        self.shell("", args)
    }

    /// The same, after what the shell is told to do before.
    fn shell(&self, before: &str, args: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec 2>&1\n{before}\nexec \"$0\" {args}"), LONGHAUL]);
        shell.env("RUNTIME_DIRECTORY", self.path("run")).env("STATE_DIRECTORY", self.path("state"));
        shell.current_dir(&self.home);
        shell
    }

    /// An attachment whose log is its output.
    fn attach(&self, options: &str) -> Running {
        // Enough to acknowledge all that is written while nothing can be sent.
        let args = format!("attach {} --nbd disk.sock --window 16M {options}", self.uri());
        Running::start(&mut self.longhaul(&args))
    }

    fn ready(&self, options: &str) -> Running {
        let attached = self.attach(options);
        assert!(attached.line().is_some_and(|line| line.starts_with("ready ")));
        attached
    }

    fn client(&self) -> Client {
        Client::connect(&self.path("disk.sock"))
    }

    /// A server that does nothing any more, and an attachment that has acknowledged `len` bytes of 7 since then.
    fn stalled(&self, options: &str, len: usize) -> (Running, Running, Client) {
        let server = self.serve("disk.img", SIZE);
        let attached = self.ready(options);
        server.signal(Signal::STOP);
        let mut writer = self.client();
        writer.write(7, 0, len);
        (server, attached, writer)
    }

    /// What `longhaul replay` prints, and how it ends.
    fn replay(&self, options: &str, log: &Path) -> (String, ExitStatus) {
        run(&self.longhaul(&format!("replay {options} {}", log.display())))
    }
}

/// An NBD client that does no more than it is told to.
struct Client(UnixStream);

const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const ESHUTDOWN: u32 = 108;

impl Client {
    fn connect(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        // Fixed newstyle without zeroes; NBD_OPT_EXPORT_NAME of the default export.
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        Self(stream)
    }

    fn ask(&mut self, kind: u16, at: u64, data: &[u8]) {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend([0, 0]);
        request.extend(kind.to_be_bytes());
        request.extend([0; 8]);
        request.extend(at.to_be_bytes());
        request.extend((data.len() as u32).to_be_bytes());
        request.extend(data);
        self.0.write_all(&request).unwrap();
    }

    /// The error of the next reply.
    fn answer(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    /// Has a write acknowledged.
    fn write(&mut self, byte: u8, at: u64, len: usize) {
        self.ask(WRITE, at, &vec![byte; len]);
        assert_eq!(self.answer(), 0);
    }
}

/// Waits for a line.
fn said(running: &Running, what: &str) -> String {
    loop {
        let line = running.line().unwrap_or_else(|| panic!("nothing is said of: {what}"));
        if line.contains(what) {
            return line;
        }
    }
}

/// What a killed attachment had acknowledged is gone: whoever takes its place has to say that he knows.
#[test]
fn socket_of_a_killed_attachment_is_not_replaced_unasked() {
    let fixture = Fixture::new();
    let (server, attached, writer) = fixture.stalled("", 4 << 20);
    attached.kill();
    drop(writer);
    server.signal(Signal::CONT);
    let (printed, status) =
        run(&fixture.longhaul(&format!("attach {} --nbd disk.sock", fixture.uri())));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("a process that was killed, or could not write all it had acknowledged, has left it there"), "{printed}");
    assert!(printed.contains("--replace"), "{printed}");
    // Which is why: a flush of a client that connected again would succeed.
    let attached = fixture.ready("--replace");
    let mut again = fixture.client();
    again.ask(FLUSH, 0, &[]);
    assert_eq!(again.answer(), 0);
    assert!(fs::read(fixture.path("disk.img")).unwrap()[..4 << 20].contains(&0));
    assert!(attached.stop().success());
    assert!(!fixture.path("disk.sock").exists());
    assert!(server.stop().success());
}

#[test]
fn more_clients_than_there_can_be_wait_and_are_told_of() {
    let fixture = Fixture::new();
    let attached = Running::start(&mut fixture.longhaul("attach memory:1M --nbd disk.sock"));
    said(&attached, "ready ");
    let mut clients: Vec<_> = (0..64).map(|_| fixture.client()).collect();
    said(&attached, "64 NBD clients are connected");
    let mut waiting = UnixStream::connect(fixture.path("disk.sock")).unwrap();
    clients.pop();
    waiting.set_read_timeout(Some(PATIENCE)).unwrap();
    waiting.read_exact(&mut [0; 18]).unwrap();
    drop((waiting, clients));
    assert!(attached.stop().success());
}

/// The log that an attachment left.
fn left(home: &Path) -> PathBuf {
    let mut logs = fs::read_dir(home.join("state")).unwrap().map(|entry| entry.unwrap().path());
    let log = logs.find(|path| path.extension().is_some_and(|extension| extension == "replay"));
    log.expect("a replay log")
}

#[test]
fn writes_that_failed_are_replayed() {
    let fixture = Fixture::new();
    let (server, attached, mut writer) = fixture.stalled("--reconnect-for 1s", 4 << 20);
    writer.write(8, 1 << 20, 64 << 10);
    writer.write(0, 2 << 20, 64 << 10);
    server.kill();
    let said_so = said(&attached, "goes to a replay log");
    let log = left(fixture.home.path());
    assert!(said_so.contains(log.to_str().unwrap()), "{said_so}");
    let (printed, status) = run(&fixture.longhaul("status"));
    assert!(status.success(), "{printed}");
    for part in
        [&fixture.uri(), "given up: no connection for 1s", "FAILED: ", log.to_str().unwrap()]
    {
        assert!(printed.contains(part), "{part} is missing:\n{printed}");
    }
    assert!(!printed.contains("bytes not flushed"), "it is in the log: {printed}");
    let (json, _) = run(&fixture.longhaul("status --json"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["volume"]["replay_log"], log.to_str().unwrap());
    drop(writer);
    attached.signal(Signal::TERM);
    said(&attached, &format!("`longhaul replay {}` writes them", log.display()));
    assert_eq!(attached.end().code(), Some(1));
    assert!(fixture.path("disk.sock").exists(), "whoever comes next has to say that he knows");

    let log = log.display();
    let (shown, status) = run(&fixture.longhaul(&format!("replay --dry-run {log}")));
    assert!(status.success() && shown.contains("state     whole"), "{shown}");

    // Another volume is not written to.
    let other = fs::File::create(fixture.path("other.img")).unwrap();
    other.set_len(SIZE as u64 / 2).unwrap();
    let server = fixture.serve("other.img", SIZE / 2);
    let replay = |options: &str| run(&fixture.longhaul(&format!("replay {log} {options}")));
    let (printed, status) = replay("--force");
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("this is not the volume of the replay log: its size"), "{printed}");
    assert!(server.stop().success());
    assert!(fs::read(fixture.path("other.img")).unwrap().iter().all(|byte| *byte == 0));

    // Of a file nothing tells what it is.
    let copy = fixture.path("copy.img");
    fs::copy(fixture.path("disk.img"), &copy).unwrap();
    let args = format!("replay --force {log} file:{}", copy.display());
    let (printed, status) = run(&fixture.longhaul(&args));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("cannot tell whether this is the volume of the replay log"));
    assert!(printed.contains("add --unverified"), "{printed}");
    assert!(fs::read(&copy).unwrap() == fs::read(fixture.path("disk.img")).unwrap());
    let same = fixture.path("same.replay");
    fs::copy(fixture.path(&log.to_string()), &same).unwrap();
    let args = format!("replay --force --unverified {} file:{}", same.display(), copy.display());
    let (printed, status) = run(&fixture.longhaul(&args));
    assert!(status.success(), "{printed}");
    assert!(printed.contains(&format!("to file:{}; flushed", copy.display())), "{printed}");

    let server = fixture.serve("disk.img", SIZE);
    let (printed, status) = replay("");
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("cannot know whether anybody has written to"), "{printed}");
    let (printed, status) = replay("--force");
    assert!(status.success(), "{printed}");
    assert!(printed.contains("flushed\nthe log is now "), "{printed}");
    assert!(server.stop().success());
    let mut expected = vec![0; SIZE];
    expected[..4 << 20].fill(7);
    expected[1 << 20..(1 << 20) + (64 << 10)].fill(8);
    expected[2 << 20..(2 << 20) + (64 << 10)].fill(0);
    assert!(fs::read(fixture.path("disk.img")).unwrap() == expected);
    let (printed, status) = replay("--force");
    assert_eq!(status.code(), Some(1), "it was renamed: {printed}");
}

/// What it holds is what would have been sent, and it is written without a pass-phrase.
#[test]
fn replay_log_of_an_encrypted_volume_is_ciphertext() {
    let fixture = Fixture::new();
    fs::write(fixture.path("pass"), "correct horse battery staple").unwrap();
    let server = fixture.serve("disk.img", 2 * SIZE);
    let cheap = "--pbkdf-memory 32K --pbkdf-iterations 4";
    let init = format!("key init {} --passphrase-file pass {cheap}", fixture.uri());
    let (printed, status) = run(&fixture.longhaul(&init));
    assert!(status.success(), "{printed}");
    let attached = fixture.attach("--reconnect-for 1s --passphrase-file pass");
    said(&attached, "ready ");
    server.signal(Signal::STOP);
    let mut writer = fixture.client();
    let text = b"nobody else is to read this line, wherever it lies. ".repeat(2000);
    let text = &text[..100 << 10];
    writer.ask(WRITE, 1 << 20, text);
    assert_eq!(writer.answer(), 0);
    server.kill();
    let log = gives_up(&fixture, attached, writer);
    let holds_text = |bytes: &[u8]| bytes.windows(16).any(|part| part == &text[..16]);
    let held = fs::read(&log).unwrap();
    assert!(held.len() > text.len() && !holds_text(&held));

    let server = fixture.serve("disk.img", 2 * SIZE);
    let (printed, status) = fixture.replay("--force", &log);
    assert!(status.success(), "{printed}");
    assert!(!holds_text(&fs::read(fixture.path("disk.img")).unwrap()));
    let out = format!("copy {} out.img --passphrase-file pass", fixture.uri());
    let (printed, status) = run(&fixture.longhaul(&out));
    assert!(status.success(), "{printed}");
    let out = fs::read(fixture.path("out.img")).unwrap();
    assert!(out[1 << 20..][..text.len()] == *text);
    assert!(server.stop().success());
}

/// What is flushed is not lost when the volume is gone: nobody is alarmed, and the next attachment needs no permission.
#[test]
fn idle_attachment_of_a_volume_that_is_gone_ends_without_a_false_alarm() {
    for (options, writes) in [("", false), ("--no-pipeline", true), ("--read-only", false)] {
        let fixture = Fixture::new();
        let server = fixture.serve("disk.img", SIZE);
        let args = format!("attach {} --nbd disk.sock --reconnect-for 1s {options}", fixture.uri());
        let attached = Running::start(&mut fixture.longhaul(&args));
        assert!(attached.line().is_some_and(|line| line.starts_with("ready ")));
        if writes {
            let mut writer = fixture.client();
            writer.write(7, 0, 1 << 20);
            writer.ask(FLUSH, 0, &[]);
            assert_eq!(writer.answer(), 0);
        }
        server.kill();
        let given_up = || run(&fixture.longhaul("status")).0.contains("given up");
        let last = Instant::now() + PATIENCE;
        while !given_up() {
            assert!(Instant::now() < last, "it does not give up");
        }
        attached.signal(Signal::TERM);
        let mut said = String::new();
        while let Some(line) = attached.line() {
            said += &line;
        }
        assert!(said.contains("nothing is lost"), "{options}: {said}");
        assert!(!said.contains("may be lost") && !said.contains("write behind failed"), "{said}");
        assert_eq!(attached.end().code(), Some(0));
        assert!(!fixture.path("disk.sock").exists());
    }
}

/// An attachment that was given up with `writes`, each of 64 KiB and with its number, 128 KiB apart. What `shell` says
/// is done before it begins.
fn given_up(fixture: &Fixture, shell: &str, writes: u8) -> PathBuf {
    let server = fixture.serve("disk.img", SIZE);
    let args = format!("attach {} --nbd disk.sock --window 16M --reconnect-for 1s", fixture.uri());
    let attached = Running::start(&mut fixture.shell(shell, &args));
    assert!(attached.line().is_some_and(|line| line.starts_with("ready ")));
    server.signal(Signal::STOP);
    let mut writer = fixture.client();
    for number in 0..writes {
        writer.write(number + 1, u64::from(number) * (128 << 10), 64 << 10);
    }
    server.kill();
    gives_up(fixture, attached, writer)
}

/// An attachment that has lost its server ends; the log that it leaves.
fn gives_up(fixture: &Fixture, attached: Running, writer: Client) -> PathBuf {
    said(&attached, "goes to a replay log");
    drop(writer);
    assert_eq!(attached.stop().code(), Some(1));
    left(fixture.home.path())
}

/// What it is asked of a log, as JSON.
fn told(fixture: &Fixture, log: &Path) -> serde_json::Value {
    let (json, _) = run(&fixture.longhaul(&format!("replay --dry-run --json {}", log.display())));
    serde_json::from_str(&json).unwrap_or_else(|why| panic!("{why}: {json}"))
}

#[test]
fn the_log_of_a_volume_that_has_grown_is_written_once() {
    let fixture = Fixture::new();
    let log = given_up(&fixture, "", 4);
    assert_eq!(told(&fixture, &log)["applied"], serde_json::Value::Null);
    let image = fs::OpenOptions::new().write(true).open(fixture.path("disk.img")).unwrap();
    image.set_len(2 * SIZE as u64).unwrap();
    let server = fixture.serve("disk.img", 2 * SIZE);
    let (printed, status) = fixture.replay("--force", &log);
    assert!(status.success(), "{printed}");
    assert!(server.stop().success());
    assert!(fs::read(fixture.path("disk.img")).unwrap()[..64 << 10].iter().all(|byte| *byte == 1));
    // Whatever has been written since stays.
    let image = vec![9; 2 * SIZE];
    fs::write(fixture.path("disk.img"), &image).unwrap();
    let server = fixture.serve("disk.img", 2 * SIZE);
    let applied = PathBuf::from(format!("{}.applied", log.display()));
    assert_eq!(told(&fixture, &applied)["applied"], applied.to_str().unwrap());
    let replay = |options: &str| fixture.replay(options, &applied);
    let (printed, _) = replay("--dry-run");
    assert!(printed.contains("this log was written already"), "{printed}");
    let (printed, status) = replay("--force");
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("this log was written already"), "{printed}");
    assert!(applied.exists());
    assert!(server.stop().success());
    assert!(fs::read(fixture.path("disk.img")).unwrap() == image);
}

/// What an attachment says until it is ready.
fn said_before_ready(attached: &Running) -> Vec<String> {
    let lines = std::iter::from_fn(|| attached.line());
    lines.take_while(|line| !line.starts_with("ready ")).collect()
}

#[test]
fn a_log_that_waits_is_named_by_a_server_of_its_volume() {
    let fixture = Fixture::new();
    let log = given_up(&fixture, "", 4);
    let server = fixture.serve("disk.img", SIZE);
    let args = format!("serve --listen 127.0.0.1:0 --volume far={}", fixture.uri());
    let gateway = Running::start(&mut fixture.longhaul(&args));
    let warning = said(&gateway, "lacks what is in the replay log");
    assert!(warning.contains(&format!("`longhaul replay {}`", log.display())), "{warning}");
    assert!(warning.contains(&fixture.uri()), "{warning}");
    said(&gateway, "ready ");
    assert!(gateway.stop().success());
    assert!(server.stop().success());
}

#[test]
fn a_log_that_waits_is_named_before_its_volume_is_used() {
    let fixture = Fixture::new();
    let log = given_up(&fixture, "", 4);
    let replay = format!("`longhaul replay {}`", log.display());
    let server = fixture.serve("disk.img", SIZE);
    let (printed, status) =
        run(&fixture.longhaul(&format!("attach {} --nbd disk.sock", fixture.uri())));
    assert_eq!(status.code(), Some(1), "{printed}");
    let (_, refusal) = printed.split_once("a process that was killed, or could not write all it had acknowledged, has left it there").unwrap();
    assert!(refusal.contains(&replay), "{printed}");
    let attached = fixture.attach("--replace");
    let said = said_before_ready(&attached);
    let holds = format!("{} (4 changes, 256K bytes)", log.display());
    let is_told = |line: &String| {
        line.starts_with("longhaul: ") && line.contains(&holds) && line.contains(&replay)
    };
    assert!(said.iter().any(is_told), "{said:#?}");
    assert!(said.iter().any(|line| line.contains("WARN") && line.contains(&holds)), "{said:#?}");
    fixture.client().write(7, 0, 512);
    assert!(attached.stop().success());
    assert!(server.stop().success());
    // Neither of another volume, nor once it was written, is anything said.
    let server = fixture.serve("disk.img", SIZE);
    let (printed, status) = fixture.replay("--force", &log);
    assert!(status.success(), "{printed}");
    let attached = fixture.attach("");
    let said = said_before_ready(&attached);
    assert!(!said.iter().any(|line| line.contains(".replay")), "{said:#?}");
    assert!(attached.stop().success());
    assert!(server.stop().success());
}

/// It has saved all changes, and has not closed the log: its client is still connected.
#[test]
fn log_of_an_attachment_that_was_killed_before_its_end_is_not_said_to_be_whole() {
    const WRITTEN: usize = 1 << 20;
    let fixture = Fixture::new();
    let (server, attached, writer) = fixture.stalled("--reconnect-for 0s", WRITTEN);
    server.kill();
    said(&attached, "goes to a replay log");
    let log = left(fixture.home.path());
    let begun = Instant::now();
    while !ends_open(&log, WRITTEN) {
        assert!(begun.elapsed() < PATIENCE, "{} has no end yet", log.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    let (printed, status) = fixture.replay("--dry-run", &log);
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("another process uses it"), "{printed}");
    attached.kill();
    drop(writer);
    let (printed, status) = fixture.replay("--dry-run", &log);
    assert!(status.success() && printed.contains("state     it has no end"), "{printed}");
    let server = fixture.serve("disk.img", SIZE);
    let (printed, status) = fixture.replay("--force", &log);
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("what wrote it was killed") && printed.contains("--partial"),
        "{printed}"
    );
    let (printed, status) = fixture.replay("--force --partial", &log);
    assert!(status.success() && printed.contains("flushed"), "{printed}");
    assert!(server.stop().success());
}

/// Whether a log holds so many bytes and ends with `OPEN` (docs/spec/replay-log.md).
fn ends_open(log: &Path, len: usize) -> bool {
    const END_LEN: usize = 24 + 32;
    let log = fs::read(log).unwrap();
    log.len() > len + END_LEN && log[log.len() - END_LEN..].starts_with(b"OPEN")
}

/// It may be a mistake, or on a disk that is not mounted.
#[test]
fn directory_for_replay_logs_that_is_not_there_is_not_made() {
    let fixture = Fixture::new();
    let attach = format!("attach {} --nbd a.sock --replay-log 'gone away/dir'", fixture.uri());
    let (printed, status) = run(&fixture.longhaul(&attach));
    assert_eq!(status.code(), Some(2), "{printed}");
    let words = [
        "cannot keep replay logs in",
        "there is no such directory",
        "`mkdir '",
        "nothing was opened",
    ];
    assert!(words.iter().all(|words| printed.contains(words)), "{printed}");
    assert!(!fixture.path("gone away").exists());
}

/// The directory is full before all is saved: a limit of the size of files, in units of 512 bytes.
#[test]
fn a_log_that_has_no_room_holds_what_fits_and_says_what_is_lost() {
    let (writes, room) = (64, 3 << 20);
    let fixture = Fixture::new();
    let log = given_up(&fixture, &format!("ulimit -f {}", room / 512), writes);
    let shown = told(&fixture, &log);
    let (kept, lost) = (shown["changes"].as_u64().unwrap(), shown["lost"].as_u64().unwrap());
    assert_eq!(kept + lost, u64::from(writes), "{shown}");
    let len = fs::metadata(&log).unwrap().len();
    assert!((room - (65 << 10)..=room).contains(&len), "{len} of {room} bytes are used: {shown}");
    let server = fixture.serve("disk.img", SIZE);
    let replay = |options: &str| fixture.replay(options, &log);
    let missing = format!("{lost} writes after those it holds did not fit, and are LOST");
    for (options, code) in [("--dry-run", 0), ("--force", 1), ("--force --partial", 0)] {
        let (printed, status) = replay(options);
        assert_eq!(status.code(), Some(code), "{printed}");
        assert!(printed.contains(&missing), "{printed}");
    }
    assert!(server.stop().success());
    let image = fs::read(fixture.path("disk.img")).unwrap();
    let there = (0..writes).map(|number| image[usize::from(number) * (128 << 10)] == number + 1);
    assert_eq!(there.collect::<Vec<_>>(), (0..64).map(|number| number < kept).collect::<Vec<_>>());
}

#[test]
fn damaged_and_foreign_logs_are_refused() {
    let fixture = Fixture::new();
    let (server, attached, writer) = fixture.stalled("--reconnect-for 0s", 1 << 20);
    server.kill();
    let log = gives_up(&fixture, attached, writer);
    let whole = fs::read(&log).unwrap();
    let dry_run = |bytes: &[u8]| {
        fs::write(&log, bytes).unwrap();
        fixture.replay("--dry-run", &log)
    };
    let (printed, _) = dry_run(&whole);
    assert!(printed.contains("state     whole"), "{printed}");
    // Wherever one bit differs or the file ends, it is noticed.
    for at in (0..whole.len()).step_by(whole.len() / 16).chain([whole.len() - 1]) {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        let (printed, _) = dry_run(&damaged);
        assert!(!printed.contains("state     whole"), "bit {at}: {printed}");
        let (printed, _) = dry_run(&whole[..at]);
        assert!(!printed.contains("state     whole"), "cut at {at}: {printed}");
    }
    fs::write(&log, &whole[..whole.len() - 1]).unwrap();
    let (printed, status) = fixture.replay("--force", &log);
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("there is no end") && printed.contains("--partial"), "{printed}");
    let (printed, _) = dry_run(b"something else");
    assert!(printed.contains("it is no replay log of Longhaul"), "{printed}");
    // A file that has the name it would get is not replaced.
    fs::write(&log, &whole).unwrap();
    let applied = PathBuf::from(format!("{}.applied", log.display()));
    fs::write(&applied, "mine").unwrap();
    let (printed, status) = fixture.replay("--force", &log);
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("the name of a log that was written"), "{printed}");
    assert!(log.exists() && fs::read(&applied).unwrap() == b"mine");
}

/// What is asked of an attachment that ends is refused, what was written before is flushed, and all of that is said.
#[test]
fn an_attachment_that_ends_flushes_before_it_lets_go() {
    let fixture = Fixture::new();
    let (server, attached, mut writer) = fixture.stalled("", 4 << 20);
    attached.signal(Signal::TERM);
    let waits = said(&attached, "longhaul: ending: ");
    assert!(waits.contains("4M bytes are not flushed yet, 1 client"), "{waits}");
    writer.ask(WRITE, 0, &[8; 512]);
    assert_eq!(writer.answer(), ESHUTDOWN);
    server.signal(Signal::CONT);
    assert!(attached.end().success());
    assert_eq!(writer.0.read(&mut [0]).unwrap(), 0, "it is hung up on");
    assert!(fs::read(fixture.path("disk.img")).unwrap()[..4 << 20].iter().all(|byte| *byte == 7));
    assert!(server.stop().success());
}

#[test]
fn a_socket_path_that_is_too_long_is_refused_with_the_reason() {
    let fixture = Fixture::new();
    let path = "x".repeat(120);
    let (printed, status) = run(&fixture.longhaul(&format!("attach memory:1M --nbd {path}")));
    assert_eq!(status.code(), Some(2), "{printed}");
    assert!(printed.contains("the path of a socket has at most 107 bytes"), "{printed}");
}

#[test]
fn attachment_is_ended_by_the_name_of_its_socket_or_its_uri() {
    let fixture = Fixture::new();
    for by_uri in [false, true] {
        let attached = Running::start(&mut fixture.longhaul("attach memory:1M --nbd a.sock"));
        let ready = said(&attached, "ready ");
        let what = if by_uri { ready.trim_start_matches("ready ") } else { "a.sock" };
        let (printed, status) = run(&fixture.longhaul(&format!("umount {what}")));
        assert!(status.success(), "{printed}");
        assert!(attached.end().success());
    }
}

#[test]
fn a_volume_that_cannot_be_offered_leaves_no_file() {
    let fixture = Fixture::new();
    fs::write(fixture.path("taken"), "something").unwrap();
    let (printed, status) = run(&fixture.longhaul("attach file:new.img --size 8M --nbd taken"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("it exists and is not a socket"), "{printed}");
    assert!(!fixture.path("new.img").exists());
    let mut command = fixture.longhaul("attach file:new.img --size 8M --nbd new.sock");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(command.stdout(full).status().unwrap().code(), Some(1));
    assert!(!fixture.path("new.img").exists() && !fixture.path("new.sock").exists());
    // One that was there before stays.
    fs::write(fixture.path("old.img"), vec![5; 4096]).unwrap();
    let (printed, status) = run(&fixture.longhaul("attach file:old.img --nbd taken"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert_eq!(fs::read(fixture.path("old.img")).unwrap(), vec![5; 4096]);
}

/// `timeout` sends its signal twice, to the process and to its group.
#[test]
fn signals_of_one_kill_end_it_once() {
    let fixture = Fixture::new();
    let (server, attached, writer) = fixture.stalled("", 4 << 20);
    attached.signal(Signal::TERM);
    attached.signal(Signal::INT);
    // It still waits for the server.
    said(&attached, "longhaul: ending: ");
    server.signal(Signal::CONT);
    assert!(attached.end().success());
    drop((writer, server));
    // A later one is another.
    let (server, attached, writer) = fixture.stalled("", 4 << 20);
    attached.signal(Signal::TERM);
    said(&attached, "longhaul: ending: ");
    attached
        .signal_during(Signal::TERM, |attached| drop(said(attached, "ended by a second signal")));
    assert_eq!(attached.end().code(), Some(1));
    drop((writer, server));
}

/// Nothing that was acknowledged is lost by a signal that is not meant to end it.
#[test]
fn stray_signals_end_no_attachment() {
    let fixture = Fixture::new();
    let (server, attached, mut writer) = fixture.stalled("--reconnect-for 1s", 1 << 20);
    for stray in [Signal::USR1, Signal::USR2, Signal::XFSZ] {
        attached.signal(stray);
        writer.write(7, 0, 1 << 20);
    }
    server.kill();
    let log = gives_up(&fixture, attached, writer);
    assert_eq!(told(&fixture, &log)["lost"], 0);
}
