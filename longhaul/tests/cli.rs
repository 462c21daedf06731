//! The command line as a user meets it: commands and what they print, in text files.
//!
//! `$ COMMAND` is run by a shell in an empty directory, and the lines below it are what it must print,
//! on standard output and error together. `[exit N]` is how it must end, if not with 0. `...` stands
//! for anything within a line, and alone for any number of lines. `$ COMMAND &` goes on beside the
//! rest, once it has printed what it must; `$URI` is then the last `ready URI`. `$ stop` ends all of
//! them, as the end of the file does; each must exit with 0. `-- NAME --` begins a file. The ports 13260
//! to 13264 stand for free ones.
//!
//! The `console` examples of the manual, and of what it says of sessions, are checked in the same way.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

mod common;
#[path = "common/port.rs"]
mod port;

use common::{LONGHAUL, Running, run};
use port::Port;

#[test]
fn scripts() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli");
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        println!("{}", path.display());
        check(&fs::read_to_string(path).unwrap());
    }
}

#[test]
fn the_manual() {
    check_examples("manual.md");
}

#[test]
fn sessions_of_the_manual() {
    check_examples("sessions.md");
}

fn check_examples(page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let page = fs::read_to_string(path).unwrap();
    let examples: Vec<_> =
        page.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!examples.is_empty());
    check(&examples.concat());
}

/// The options of `serve`.
fn configuration() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    fs::read_to_string(path).unwrap()
}

#[test]
fn every_key_of_the_example_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let document = configuration();
    let example = fs::read_to_string(root.join("packaging/longhaul.toml")).unwrap();
    let (mut table, mut keys) = ("", 0);
    for line in example.lines() {
        let line = line.strip_prefix("# ").unwrap_or(line);
        if line.starts_with('[') {
            table = line;
        }
        let Some((key, value)) = line.split_once(" = ") else { continue };
        if key.contains(|letter: char| letter != '_' && !letter.is_ascii_lowercase()) {
            continue;
        }
        keys += 1;
        let value = value.split_whitespace().next().unwrap().trim_matches('"');
        let forms = match table {
            "[limits]" => vec![format!("| `{key}` | {value} |")],
            _ => vec![
                format!("`{key}`"),
                format!("`{key} = "),
                format!("\n{key} = "),
                format!("\n# {key} = "),
            ],
        };
        let named = forms.iter().any(|form| document.contains(form));
        assert!(named, "the document does not name {key} = {value} of {table}");
    }
    assert!(keys > 50, "only {keys} keys");
}

/// A table of what people get wrong, and what they are told: what, where, why, and what to do.
#[test]
fn wrong_inputs() {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong_inputs.txt");
    let table = fs::read_to_string(table).unwrap();
    let rows = parse(table.split("\n-- ").next().unwrap());
    let told = |row: &&Step<'_>| row.exit != 0 && !row.expected.is_empty();
    let count = rows.iter().filter(told).count();
    assert!(count >= 150, "only {count} wrong inputs");
    check(&table);
}

/// A command and what it must do.
struct Step<'a> {
    command: &'a str,
    expected: Vec<&'a str>,
    exit: i32,
}

fn parse(script: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    for line in script.lines().filter(|line| !line.starts_with("# ")) {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command, expected: Vec::new(), exit: 0 });
        } else if let Some(step) = steps.last_mut() {
            match line.strip_prefix("[exit ").and_then(|rest| rest.strip_suffix(']')) {
                Some(exit) => step.exit = exit.parse().unwrap(),
                None => step.expected.push(line),
            }
        }
    }
    for step in &mut steps {
        while step.expected.last().is_some_and(|line| line.is_empty()) {
            step.expected.pop();
        }
    }
    steps
}

/// The ports in scripts. Tests run beside each other, and beside those of others on this machine.
const PORTS: std::ops::RangeInclusive<u16> = 13_260..=13_264;

fn check(text: &str) {
    let ports: Vec<_> = PORTS.map(|stands| (stands, Port::reserve())).collect();
    let text = ports.iter().fold(text.to_owned(), |text, (stands, port)| {
        text.replace(&stands.to_string(), &port.number.to_string())
    });
    let dir = tempfile::tempdir().unwrap();
    let mut files = text.split("\n-- ");
    let script = files.next().unwrap();
    for file in files {
        let (name, content) = file.split_once(" --\n").expect("-- NAME --");
        fs::write(dir.path().join(name), content).unwrap();
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let mut fixture = Fixture { dir: dir.path(), beside: Vec::new(), uri: String::new() };
    for step in parse(script) {
        fixture.play(&step);
    }
    fixture.stop();
}

struct Fixture<'a> {
    dir: &'a Path,
    beside: Vec<(String, Running)>,
    uri: String,
}

impl Fixture<'_> {
    fn play(&mut self, step: &Step<'_>) {
        println!("$ {}", step.command);
        if step.command == "stop" {
            self.stop();
        } else if let Some(command) = step.command.strip_suffix(" &") {
            self.start(command, &step.expected);
        } else {
            let (printed, status) = run(&self.shell(step.command));
            let lines: Vec<_> = printed.lines().collect();
            assert!(
                matches(&step.expected, &lines),
                "$ {}\nprinted\n{printed}\ninstead of\n{}",
                step.command,
                step.expected.join("\n")
            );
            assert_eq!(status.code(), Some(step.exit), "$ {}\n{printed}", step.command);
        }
    }

    fn start(&mut self, command: &str, expected: &[&str]) {
        let running = Running::start(&mut self.shell(&format!("exec {command}")));
        for expected in expected {
            let line = running.line().unwrap_or_default();
            assert!(
                alike(expected, &line),
                "$ {command} &\nprinted\n{line}\ninstead of\n{expected}"
            );
            if let Some(uri) = line.strip_prefix("ready ") {
                uri.clone_into(&mut self.uri);
            }
        }
        self.beside.push((command.to_owned(), running));
    }

    fn stop(&mut self) {
        // The last one first: it may be using the others.
        for (command, running) in self.beside.drain(..).rev() {
            let status = running.stop();
            assert!(status.success(), "$ {command} &\nended with {status}");
        }
    }

    fn shell(&self, command: &str) -> Command {
        let bin = Path::new(LONGHAUL).parent().unwrap().display().to_string();
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec 2>&1\numask 077\n{command}")]).current_dir(self.dir);
        shell.env("PATH", format!("{bin}:{}", std::env::var("PATH").unwrap()));
        shell.env("STATE_DIRECTORY", self.dir.join(".state"));
        shell.env("RUNTIME_DIRECTORY", self.dir.join(".run"));
        shell.env_remove("LONGHAUL_CONFIG_DIR");
        shell.env("URI", &self.uri).env("COLUMNS", "100");
        shell
    }
}

fn matches(expected: &[&str], printed: &[&str]) -> bool {
    match expected {
        [] => printed.is_empty(),
        ["...", rest @ ..] => (0..=printed.len()).any(|skip| matches(rest, &printed[skip..])),
        [first, rest @ ..] => printed
            .split_first()
            .is_some_and(|(line, after)| alike(first, line) && matches(rest, after)),
    }
}

/// Whether a line is what was expected, `...` being anything.
fn alike(expected: &str, line: &str) -> bool {
    match expected.split_once("...") {
        None => expected == line,
        Some((before, after)) => line.strip_prefix(before).is_some_and(|rest| {
            let mut ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            ends.any(|at| alike(after, &rest[at..]))
        }),
    }
}

#[test]
fn the_runner_can_fail() {
    assert!(alike("a ... c", "a b c") && alike("...", "") && alike("a...", "abc"));
    assert!(!alike("a ... c", "a b d") && !alike("a", "ab") && !alike("", "a"));
    assert!(matches(&["a", "...", "d"], &["a", "b", "c", "d"]));
    assert!(!matches(&["a"], &["a", "b"]) && !matches(&["a", "b"], &["a"]));
    let wrong = || check("$ echo one\ntwo\n");
    assert!(std::panic::catch_unwind(wrong).is_err());
    let wrong = || check("$ false\n");
    assert!(std::panic::catch_unwind(wrong).is_err());
    check("$ cat file; false\none\n[exit 1]\n\n-- file --\none\n");
}
