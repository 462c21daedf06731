//! What a person meets who types pass-phrases on a terminal.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Signal, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp};

#[expect(dead_code, reason = "each test uses its part")]
mod common;

use common::{LONGHAUL, PATIENCE, run};

/// A program whose controlling terminal is ours, and what it has shown.
struct Terminal {
    master: File,
    child: Child,
    shown: String,
}

impl Terminal {
    fn start(home: &Path, arguments: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let slave = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        // The first terminal that the leader of a session opens is its controlling one (tty_ioctl(4)).
        let script = "exec <>\"$TERMINAL\" >&0 2>&0; exec \"$0\" \"$@\"";
        let mut command = Command::new("timeout");
        command.args(["--foreground", &PATIENCE.as_secs().to_string(), "setsid", "--wait", "sh"]);
        command.args(["-c", script, LONGHAUL]).args(arguments).env("TERMINAL", slave);
        command
            .env("LONGHAUL_STATE_DIR", home.join("state"))
            .env("RUNTIME_DIRECTORY", home.join("run"));
        let command = command.current_dir(home).stdin(Stdio::null());
        Self { child: command.spawn().unwrap(), master: master.into(), shown: String::new() }
    }

    /// Waits until it has asked so many times, and answers the last.
    fn answer(&mut self, asked: &str, times: usize, answer: &str) {
        while self.shown.matches(asked).count() < times {
            assert!(self.read(), "it did not ask: {}", self.shown);
        }
        writeln!(self.master, "{answer}").unwrap();
    }

    /// What it shows next; whether there was anything.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        // When nobody has the other end open any more, that is an error (EIO).
        let read = self.master.read(&mut bytes).unwrap_or(0);
        self.shown += &String::from_utf8_lossy(&bytes[..read]);
        read > 0
    }

    /// All that it showed, and its exit code.
    fn end(mut self) -> (String, Option<i32>) {
        while self.read() {}
        (self.shown, self.child.wait().unwrap().code())
    }
}

const RIGHT: &str = "correct horse battery staple";

/// A directory with an encrypted volume.
fn encrypted() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("right"), RIGHT).unwrap();
    let mut command = Command::new(LONGHAUL);
    command.args(["key", "init", "file:disk.img", "--size", "24M", "--passphrase-file", "right"]);
    command.args(["--pbkdf-memory", "32K", "--pbkdf-iterations", "4"]).current_dir(&home);
    let (printed, status) = run(&command);
    assert!(status.success(), "{printed}");
    home
}

#[test]
fn wrong_pass_phrase_is_asked_for_three_times_and_no_more() {
    let home = encrypted();
    let attach = ["attach", "file:disk.img", "--nbd", "disk.sock"];
    for (arguments, prompt) in [
        (&["key", "test", "file:disk.img"][..], "Pass-phrase: "),
        (&attach, "pass-phrase of file:disk.img: "),
        (&["mount", "file:disk.img", "--fuse", "disk"], "pass-phrase of file:disk.img: "),
    ] {
        let mut terminal = Terminal::start(home.path(), arguments);
        for attempt in 1..=3 {
            terminal.answer(prompt, attempt, "a wrong one");
        }
        let (shown, code) = terminal.end();
        assert_eq!(code, Some(1), "{shown}");
        assert_eq!(shown.matches("try again").count(), 2, "{shown}");
        assert_eq!(shown.matches("no key slot opens with this pass-phrase").count(), 3, "{shown}");
        assert!(!home.path().join("disk.sock").exists());
    }
}

#[test]
fn right_pass_phrase_after_a_wrong_one_opens_the_volume() {
    let home = encrypted();
    let mut terminal = Terminal::start(home.path(), &["key", "test", "file:disk.img"]);
    terminal.answer("Pass-phrase: ", 1, "a wrong one");
    terminal.answer("Pass-phrase: ", 2, RIGHT);
    let (shown, code) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("opens key slot 0"), "{shown}");
}

#[test]
fn new_pass_phrase_is_typed_twice() {
    let home = tempfile::tempdir().unwrap();
    let init = ["key", "init", "file:new.img", "--size", "24M"];
    let mut terminal = Terminal::start(home.path(), &init);
    terminal.answer("Pass-phrase: ", 1, RIGHT);
    terminal.answer("Pass-phrase again: ", 1, "correct horse battery stable");
    let (shown, code) = terminal.end();
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("the two do not match"), "{shown}");
    assert!(!home.path().join("new.img").exists());
}

/// Deriving a key takes seconds with what a volume gets by default.
#[test]
fn terminal_shows_that_a_key_is_being_derived() {
    let home = tempfile::tempdir().unwrap();
    let init = ["key", "init", "file:new.img", "--size", "24M"];
    let cost = ["--pbkdf-memory", "64M", "--pbkdf-iterations", "8"];
    let mut terminal = Terminal::start(home.path(), &[&init[..], &cost].concat());
    terminal.answer("Pass-phrase: ", 1, RIGHT);
    terminal.answer("Pass-phrase again: ", 1, RIGHT);
    let (shown, code) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("deriving a key from the pass-phrase"), "{shown}");
    let mut terminal = Terminal::start(home.path(), &["key", "test", "file:new.img"]);
    terminal.answer("Pass-phrase: ", 1, RIGHT);
    let (shown, code) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("deriving the key from the pass-phrase"), "{shown}");
}

/// Who is asked can end the program, and sees again what he types.
#[test]
fn program_that_is_ended_while_it_asks_ends_and_leaves_the_terminal_as_it_was() {
    let home = encrypted();
    fs::write(home.path().join("from.img"), [0; 512]).unwrap();
    let attach = ["attach", "file:disk.img", "--nbd", "disk.sock"];
    let copy = ["copy", "file:from.img", "file:disk.img"];
    let tape = ["tape", "import", "a.tape", "from.img", "--size", "1M", "--encrypt"];
    let commands = [&["key", "test", "file:disk.img"][..], &attach, &copy, &tape];
    for (arguments, typed) in commands.into_iter().flat_map(|it| [(it, true), (it, false)]) {
        let mut terminal = Terminal::start(home.path(), arguments);
        let is_shown = |terminal: &Terminal| {
            let modes = tcgetattr(&terminal.master).unwrap().local_modes;
            modes.contains(LocalModes::ECHO)
        };
        while !terminal.shown.to_lowercase().contains("pass-phrase") {
            assert!(terminal.read(), "it did not ask: {}", terminal.shown);
        }
        let asked = Instant::now();
        while is_shown(&terminal) {
            assert!(asked.elapsed() < PATIENCE, "what is typed would be seen");
            std::thread::yield_now();
        }
        match typed {
            true => terminal.master.write_all(&[3]).unwrap(), // ^C
            false => {
                kill_process_group(tcgetpgrp(&terminal.master).unwrap(), Signal::TERM).unwrap();
            }
        }
        while terminal.read() {}
        assert!(is_shown(&terminal), "{}", terminal.shown);
        let (shown, code) = terminal.end();
        assert_eq!(code, Some(1), "{shown}");
    }
}

#[test]
fn pass_phrase_is_asked_for_before_the_terminal_is_left() {
    let home = encrypted();
    let mut terminal = Terminal::start(home.path(), &["mount", "file:disk.img", "--fuse", "disk"]);
    terminal.answer("pass-phrase of file:disk.img: ", 1, RIGHT);
    // The process in the background has the terminal no more: else this would not end.
    let (shown, code) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("is the file"), "{shown}");
    let disk = home.path().join("disk");
    for _ in 0..2 {
        assert_eq!(fs::read(&disk).unwrap().len(), 8 << 20);
    }
    let mut umount = Command::new(LONGHAUL);
    umount.args(["umount", "disk"]).current_dir(&home);
    umount
        .env("LONGHAUL_STATE_DIR", home.path().join("state"))
        .env("RUNTIME_DIRECTORY", home.path().join("run"));
    let (printed, status) = run(&umount);
    assert!(status.success(), "{printed}");
    assert!(!disk.exists());
}

#[test]
fn pass_phrase_of_a_tape_is_asked_for_twice_and_then_once() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("in"), "plain text").unwrap();
    let import = ["tape", "import", "a.tape", "in", "--size", "1M", "--encrypt"];
    let cost = ["--pbkdf-memory", "32K", "--pbkdf-iterations", "4"];
    let mut terminal = Terminal::start(home.path(), &[&import[..], &cost].concat());
    terminal.answer("Pass-phrase of the tape: ", 1, RIGHT);
    terminal.answer("Pass-phrase of the tape again: ", 1, RIGHT);
    let (shown, code) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    let export = ["tape", "export", "a.tape", "--dir", "out"];
    let mut terminal = Terminal::start(home.path(), &export);
    terminal.answer("pass-phrase of a.tape: ", 1, "something else");
    terminal.answer("pass-phrase of a.tape: ", 2, RIGHT);
    let (shown, code) = terminal.end();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("try again"), "{shown}");
    assert_eq!(fs::read(home.path().join("out/0000")).unwrap(), b"plain text");
}
