//! `longhaul doctor`: what it says of a server that answers, of one that lets nobody in, and of a port that is closed.

mod common;

use std::path::Path;
use std::process::Command;

use common::{LONGHAUL, Running, run};
use serde_json::Value;

fn longhaul(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(LONGHAUL);
    command.args(arguments).current_dir(home).env("HOME", home).env_remove("XDG_CONFIG_HOME");
    command.env("LONGHAUL_CONFIG_DIR", home);
    command
}

fn serve(home: &Path, more: &[&str]) -> (Running, String) {
    let line = ["serve", "--volume", "t=memory:1M", "--listen", "127.0.0.1:0"];
    let server = Running::start(&mut longhaul(home, &[&line, more].concat()));
    let uri = server.line().unwrap().strip_prefix("ready ").unwrap().to_owned();
    (server, uri)
}

/// What is found of the way to a server: how it is, and what is said of it.
fn way(home: &Path, place: &str) -> Vec<(String, String)> {
    let found = longhaul(home, &["doctor", place, "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&found.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let broken = findings.iter().filter(|finding| finding["state"] == "broken").count();
    assert_eq!(report["broken"], broken, "{report}");
    assert!(report["server"].is_string(), "{report}");
    let is_broken = broken > 0;
    assert_eq!(found.status.code(), Some(i32::from(is_broken)), "{findings:?}");
    let of_server = findings.iter().skip_while(|finding| {
        let what = finding["what"].as_str().unwrap();
        !what.starts_with("127.0.0.1:") && !what.contains("has no address")
    });
    let text = |finding: &Value| {
        let texts = ["what", "why", "todo"].map(|name| finding[name].as_str().unwrap_or_default());
        (finding["state"].as_str().unwrap().to_owned(), texts.join(": "))
    };
    of_server.map(text).collect()
}

/// As in a container that was not given it.
#[test]
fn capability_that_a_mount_lacks_is_named() {
    let home = tempfile::tempdir().unwrap();
    let doctor = longhaul(home.path(), &["doctor"]);
    let mut without = Command::new("setpriv");
    without.args(["--bounding-set", "-sys_resource"]).arg(doctor.get_program());
    without.args(doctor.get_args()).current_dir(home.path());
    let (said, _) = run(&without);
    assert!(said.contains("CAP_SYS_RESOURCE is missing"), "{said}");
}

#[test]
fn server_that_answers_is_good_and_one_that_refuses_is_told_with_its_reason() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let (server, uri) = serve(home, &[]);
    let found = way(home, &uri);
    let [connects, answers, clock] = &found[..] else { panic!("{found:?}") };
    assert!([connects, answers, clock].iter().all(|found| found.0 == "good"), "{found:?}");
    assert!(answers.1.contains("lets this client in, to 1 target"), "{found:?}");
    assert!(clock.1.contains("clocks of the server and of this machine agree"), "{found:?}");
    assert!(server.stop().success());

    std::fs::write(home.join("secret"), "a secret of some length").unwrap();
    std::fs::set_permissions(
        home.join("secret"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let chap = ["--chap-user", "me", "--chap-secret-file", "secret"];
    let (server, uri) = serve(home, &chap);
    let found = way(home, &uri);
    assert_eq!(found[0].0, "good", "{found:?}");
    assert_eq!(found[1].0, "broken", "{found:?}");
    assert!(server.stop().success());
}

/// By its name: with the identity that it was mounted with, and not that of the user.
#[test]
fn volume_that_is_remembered_is_asked_for_by_what_is_remembered_with_it() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let identity = |name: &str| {
        let (key, made) = run(&longhaul(home, &["identity", "new", name]));
        assert!(made.success(), "{key}");
        key.trim().to_owned()
    };
    identity("server.identity");
    let client = identity("client.identity");
    let known = ["--identity", "server.identity", "--client-key", &client];
    let (server, uri) = serve(home, &known);
    let volume = format!(
        "[volumes.backup]\nuri = \"{uri}\"\noptions = [\"--identity\", \"{}\", \"--read-only\"]\n",
        home.join("client.identity").display()
    );
    std::fs::write(home.join("volumes.toml"), volume).unwrap();
    let found = way(home, "backup");
    assert!(found.len() > 1 && found.iter().all(|found| found.0 != "broken"), "{found:?}");
    // The default identity is another one.
    let (key, made) = run(&longhaul(home, &["identity", "new"]));
    assert!(made.success(), "{key}");
    let found = way(home, &uri);
    assert_eq!(found[1].0, "broken", "{found:?}");
    let found = way(home, "backup");
    assert!(found.iter().all(|found| found.0 != "broken"), "{found:?}");
    assert!(server.stop().success());
}

/// What a volume may become is more than there is room for.
#[test]
fn file_that_can_outgrow_the_disk_of_the_server_is_told() {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let home = home.path();
    let line = ["serve", "--volume", "t=file:t.img,size=999T", "--listen", "127.0.0.1:0"];
    let server = Running::start(&mut longhaul(home, &line));
    let uri = server.line().unwrap().strip_prefix("ready ").unwrap().to_owned();
    let found = way(home, &uri);
    let (state, said) = found.last().unwrap();
    assert_eq!(state, "note", "{found:?}");
    assert!(said.contains("the volume may still take 999T"), "{found:?}");
    assert!(server.stop().success());
}

#[test]
fn closed_port_and_name_without_address_are_broken() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let found = way(home, &closed.to_string());
    let [(state, said)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(state, "broken");
    assert!(said.contains("refused") && said.contains("`longhaul serve` running"), "{said}");
    // RFC 6761, 6.4: this name never has an address.
    let found = way(home, "nowhere.invalid");
    assert_eq!(found[0].0, "broken", "{found:?}");
    let (said, ended) = run(&longhaul(home, &["doctor", "hyperscsi://127.0.0.1/t"]));
    assert_eq!(ended.code(), Some(2), "{said}");
    assert!(said.contains("HyperSCSI"), "{said}");
}
