//! `longhaul status` beside programs that do not answer: they cost neither the answers of others nor much time.

mod common;

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use common::{LONGHAUL, Running, run};
use rustix::process::Signal;

fn longhaul(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(LONGHAUL);
    command.args(arguments).current_dir(home);
    command.env("RUNTIME_DIRECTORY", home.join("run")).env("STATE_DIRECTORY", home.join("state"));
    command.env("LONGHAUL_STATE_DIR", home.join("attachments"));
    command
}

fn status(home: &Path, arguments: &[&str]) -> (String, ExitStatus) {
    run(&longhaul(home, &[&["status"], arguments].concat()))
}

fn attach(home: &Path, name: &str) -> (Running, PathBuf) {
    let socket = format!("{name}.sock");
    let volume = format!("file:{name}.img");
    fs::File::create(home.join(format!("{name}.img"))).unwrap().set_len(1 << 20).unwrap();
    let attached = Running::start(&mut longhaul(home, &["attach", &volume, "--nbd", &socket]));
    assert!(attached.line().is_some_and(|line| line.starts_with("ready ")));
    let control = home.join(format!("run/attach-{}.sock", attached.pid()));
    (attached, control)
}

/// The socket is made after `ready` is said.
fn wait_for(socket: &Path) {
    let last = std::time::Instant::now() + common::PATIENCE;
    while UnixStream::connect(socket).is_err() {
        assert!(std::time::Instant::now() < last, "{} is not there", socket.display());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn those_that_answer_are_shown_beside_one_that_is_stopped_and_one_that_was_killed() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    fs::create_dir(home.join("run")).unwrap();
    let server =
        ["serve", "--volume", "t=memory:1M", "--listen", "127.0.0.1:0", "--control", "run/a.sock"];
    let server = Running::start(&mut longhaul(home, &server));
    assert!(server.line().is_some_and(|line| line.starts_with("ready ")));
    let [(stopped, at), (killed, left), (other, beside), (well, asked)] =
        ["stopped", "killed", "other", "well"].map(|name| attach(home, name));
    for socket in [&at, &left, &beside, &asked] {
        wait_for(socket);
    }
    killed.kill();
    other.kill();
    // It cannot even take connections any more.
    stopped.signal(Signal::STOP);
    let waiting = fill(&at);

    let (said, ended) = status(home, &["--interval", "1"]);
    assert_eq!(ended.code(), Some(1), "one does not answer: {said}");
    assert!(said.contains("iqn.2026-11.dev.longhaul:t\n  unit 0"), "{said}");
    assert!(said.contains("file:well.img\n"), "{said}");
    assert!(said.contains(&format!("cannot ask {}", at.display())), "{said}");
    assert!(said.contains("it does not answer"), "{said}");
    let told: Vec<_> = said.lines().filter(|line| line.contains("that was killed")).collect();
    let [told] = told[..] else { panic!("on one line: {said}") };
    assert!(told.contains("and 1 more beside it were left by a process that was killed"), "{told}");
    assert!(!left.exists() && !beside.exists(), "they are gone");
    drop(waiting);

    // Whoever reads JSON gets an object for each that answers.
    let mut json = longhaul(home, &["status", "--json"]);
    json.stderr(std::process::Stdio::null());
    let output = json.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let values = serde_json::Deserializer::from_slice(&output.stdout);
    let values: Result<Vec<serde_json::Value>, _> = values.into_iter().collect();
    assert_eq!(values.unwrap().len(), 2);

    stopped.signal(Signal::CONT);
    let (said, ended) = status(home, &[]);
    assert!(ended.success() && said.contains("file:stopped.img\n"), "{said}");
    let (said, ended) = status(home, &["--control", left.to_str().unwrap()]);
    assert!(!ended.success(), "{said}");
    for running in [stopped, well, server] {
        assert!(running.stop().success());
    }
}

/// Nobody has to think of a socket before he starts a server that he will want to ask.
#[test]
fn server_that_was_not_told_where_to_be_asked_is_found_and_must_be_named_beside_another() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let serve = |name: &str| {
        let volume = format!("{name}=memory:1M");
        let serve = ["serve", "--volume", &volume, "--listen", "127.0.0.1:0"];
        let server = Running::start(&mut longhaul(home, &serve));
        assert!(server.line().is_some_and(|line| line.starts_with("ready ")));
        let socket = home.join(format!("run/serve-{}.sock", server.pid()));
        wait_for(&socket);
        (server, socket)
    };
    let ask = |words: &[&str]| {
        let (said, ended) = run(&longhaul(home, words));
        (said, ended.code())
    };
    let (first, socket) = serve("first");
    let (said, code) = ask(&["status"]);
    assert!(code == Some(0) && said.contains("iqn.2026-11.dev.longhaul:first\n"), "{said}");
    let (said, code) = ask(&["clients"]);
    assert_eq!(code, Some(0), "{said}");
    let (second, other) = serve("second");
    let (said, code) = ask(&["status"]);
    assert!(code == Some(0) && said.contains(":first\n") && said.contains(":second\n"), "{said}");
    let (said, code) = ask(&["clients"]);
    assert_eq!(code, Some(2), "{said}");
    for path in [&socket, &other] {
        assert!(said.contains(path.to_str().unwrap()), "{said}");
    }
    let (said, code) = ask(&["clients", "--control", other.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    second.kill();
    assert_eq!(ask(&["clients"]).1, Some(0), "only one runs");
    let (said, _) = ask(&["status"]);
    assert!(said.contains("was left by a process that was killed; it is removed"), "{said}");
    assert!(!other.exists());
    assert!(first.stop().success());
    assert!(!socket.exists(), "it takes its socket away");
}

/// `media` and others find the socket that `status` finds, whatever it is called.
#[test]
fn server_with_a_socket_of_any_name_in_the_runtime_directory_is_found_beside_an_attachment() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    fs::create_dir(home.join("run")).unwrap();
    let at = ["--listen", "127.0.0.1:0", "--control", "run/a.sock"];
    let serve = [&["serve", "--volume", "movies=cdrom:"][..], &at].concat();
    let server = Running::start(&mut longhaul(home, &serve));
    assert!(server.line().is_some_and(|line| line.starts_with("ready ")));
    let volume = ["attach", "file:v.img", "--nbd", "run/nbd.sock"];
    fs::File::create(home.join("v.img")).unwrap().set_len(1 << 20).unwrap();
    let attached = Running::start(&mut longhaul(home, &volume));
    assert!(attached.line().is_some_and(|line| line.starts_with("ready ")));
    let (said, ended) = run(&longhaul(home, &["media", "list"]));
    assert!(ended.success() && said == "movies: empty\n", "{said}");
    // The hint of the server names the one that was asked.
    let (said, ended) = run(&longhaul(home, &["revoke", "nobody", "--control", "run/a.sock"]));
    assert!(!ended.success(), "{said}");
    assert!(said.contains("`longhaul clients --control run/a.sock` lists them"), "{said}");
    assert!(attached.stop().success() && server.stop().success());
}

/// Connects until no more connections are taken.
fn fill(socket: &Path) -> Vec<rustix::fd::OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect};
    let address = SocketAddrUnix::new(socket).unwrap();
    let mut waiting = Vec::new();
    loop {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
        if connect(&socket, &address).is_err() {
            return waiting;
        }
        waiting.push(socket);
    }
}
