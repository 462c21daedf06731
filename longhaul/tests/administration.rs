//! Servers that are administered over the network, with the program at both ends, by iSCSI and by HyperSCSI.

mod common;

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{LONGHAUL, PATIENCE, Running, run};
use tempfile::TempDir;

/// A server, and two clients of it: `admin`, who may administer it, and `user`, who may not.
struct Site {
    dir: TempDir,
    server: Running,
    /// The volume `backup`, by iSCSI and by HyperSCSI.
    uris: [String; 2],
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let longhaul = |line: &str| -> String {
            let (printed, status) =
                run(Command::new(LONGHAUL).args(line.split(' ')).current_dir(dir.path()));
            assert!(status.success(), "{line}: {printed}");
            printed.trim().to_owned()
        };
        longhaul("identity new server.identity");
        longhaul("identity site-key site.key");
        let [admin, user] = ["admin", "user"].map(|name| longhaul(&format!("identity new {name}")));
        let file = format!(
            r#"listen = ["127.0.0.1:0", "hyperscsi://127.0.0.1:0"]
identity = "server.identity"
site_key = "site.key"
state = "state"
control = "control.sock"

# What is kept here.
[volumes.backup]
uri = "memory:8M"

[clients.admin]
key = "{admin}"
read_only = ["backup"]
administrator = true

[clients.user]
key = "{user}"
volumes = ["backup"]
"#
        );
        fs::write(dir.path().join("longhaul.toml"), file).unwrap();
        let mut serve = Command::new(LONGHAUL);
        serve.args(["serve", "--config", "longhaul.toml"]).current_dir(dir.path());
        let server = Running::start(&mut serve);
        let uri = || server.line().unwrap().strip_prefix("ready ").unwrap().to_owned();
        let uris = [uri(), uri()];
        assert!(uris[1].starts_with("hyperscsi://"), "{uris:?}");
        Self { dir, server, uris }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn file(&self) -> String {
        fs::read_to_string(self.path("longhaul.toml")).unwrap()
    }

    /// How `who` asks by `uri`.
    fn asking(&self, who: &str, uri: &str, request: &[&str]) -> Command {
        let mut command = Command::new(LONGHAUL);
        command.args(["admin", uri, "--identity", who, "--site-key", "site.key"]).args(request);
        command.current_dir(self.dir.path());
        command
    }

    /// Has `who` ask by `uri`; the exit code, and what is printed.
    fn asks(&self, who: &str, uri: &str, request: &[&str]) -> (Option<i32>, String) {
        let (printed, status) = run(&self.asking(who, uri, request));
        (status.code(), printed)
    }

    /// What the server answers to `admin`, by iSCSI.
    fn does(&self, request: &[&str]) -> String {
        let (code, printed) = self.asks("admin", &self.uris[0], request);
        assert_eq!(code, Some(0), "{request:?}: {printed}");
        printed
    }

    fn refuses(&self, request: &[&str], why: &str) {
        let (code, printed) = self.asks("admin", &self.uris[0], request);
        assert_eq!(code, Some(1), "{request:?}: {printed}");
        assert!(printed.contains(why), "{request:?}: {printed}");
    }

    /// Whether `user` can use the volume.
    fn lets_user_in(&self) -> bool {
        let mut info = Command::new(LONGHAUL);
        info.args(["info", &self.uris[0], "--identity", "user"]);
        run(info.current_dir(self.dir.path())).1.success()
    }
}

#[test]
fn administrator_does_by_both_transports_what_is_done_at_the_machine() {
    let site = Site::new();
    for uri in &site.uris {
        for (request, answer) in [
            (&["clients"][..], "admin: proves lhpub1-"),
            (&["status"], "unit 0, 8M bytes"),
            (&["status", "--json"], "\"sessions\":["),
            (&["media", "list"], "no drives and no media changers: "),
            (
                &["invite", "guest", "--volume", "backup", "--address", "nas"],
                "invitation for guest",
            ),
            (&["revoke", "guest"], "guest is invited no more"),
            (&["reload"], "nothing to tell sessions"),
            (&["config", "show"], "# What is kept here."),
        ] {
            let (code, printed) = site.asks("admin", uri, request);
            assert_eq!(code, Some(0), "{uri} {request:?}: {printed}");
            assert!(printed.contains(answer), "{uri} {request:?}: {printed}");
        }
    }
    assert!(site.server.stop().success());
}

#[test]
fn nobody_else_administers_the_server() {
    let site = Site::new();
    for uri in &site.uris {
        let (code, printed) = site.asks("user", uri, &["clients"]);
        assert_eq!(code, Some(1), "{printed}");
        assert!(printed.contains("does not let this client administer it"), "{printed}");
    }
    // What is asked could be read on the way.
    for uri in &site.uris {
        let (code, printed) = site.asks("admin", uri, &["--protection", "integrity", "clients"]);
        assert_eq!(code, Some(1), "{printed}");
        assert!(printed.contains("does not let this client administer it"), "{printed}");
    }
    let plain = site.uris[0].split('?').next().unwrap();
    let (code, printed) = site.asks("admin", plain, &["clients"]);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("without the key of the target"), "{printed}");
    assert!(site.server.stop().success());
}

#[test]
fn change_of_the_configuration_is_in_force_or_not_in_the_file() {
    let site = Site::new();
    let before = site.file();
    for (change, why) in [
        ("volumes.media.uri=file:/no/such/place", "cannot open file:/no/such/place"),
        ("volumes.media.size=1G", "missing field `uri`"),
        ("listen=[\"127.0.0.1:1\"]", "`listen` cannot change"),
        ("clients.user.colour=red", "unknown key `colour`"),
    ] {
        site.refuses(&["config", "set", change], why);
        assert_eq!(site.file(), before, "{change}");
    }
    site.refuses(&["config", "unset", "clients.nobody"], "it is not there");
    let media = ["volumes.media.uri=memory:16M", "clients.user.read_only=[\"media\"]"];
    let said = site.does(&[&["config", "set"][..], &media].concat());
    assert!(said.contains("added media"), "{said}");
    let after = site.file();
    assert!(after.contains("# What is kept here.") && after.contains("uri = \"memory:16M\""));
    assert!(site.does(&["clients"]).contains("writes backup, reads media"));
    // Its own session sees another target before it is answered.
    let more = ["uri=memory:8M", "target=backup", "lun=1"].map(|of| format!("volumes.more.{of}"));
    let [uri, target, lun] = &more;
    let said = site.does(&["config", "set", uri, target, lun, "clients.admin.volumes=[\"more\"]"]);
    assert!(said.contains("added more"), "{said}");
    site.does(&["config", "unset", "volumes.more", "clients.admin.volumes"]);
    site.does(&["config", "unset", "volumes.media", "clients.user.read_only"]);
    assert_eq!(site.file().trim_end(), before.trim_end());
    assert!(site.server.stop().success());
}

/// What is asked meanwhile is done, and goes with none of it.
#[test]
fn change_that_waits_for_a_silent_target_is_not_in_the_file_before_it_is_in_force() {
    let site = Site::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("iscsi://{}/iqn.2026-11.org.example:silent/0", silent.local_addr().unwrap());
    let change = format!("volumes.silent.uri={uri}");
    let mut asking = site.asking("admin", &site.uris[1], &["config", "set", &change]);
    let mut asking = asking.stderr(Stdio::null()).spawn().unwrap();
    // The server asks the target, so the change is under way.
    let _asked = silent.accept().unwrap();
    assert!(!site.file().contains("silent"));
    site.does(&["revoke", "user"]);
    assert!(!site.lets_user_in());
    assert_eq!(asking.wait().unwrap().code(), Some(1));
    let file = site.file();
    assert!(!file.contains("silent") && !file.contains("[clients.user]"), "{file}");
    assert!(site.server.stop().success());
}

/// Whoever is taken for the server could say that a client is revoked.
#[test]
fn server_whose_key_is_not_known_is_not_administered() {
    let site = Site::new();
    for uri in &site.uris {
        let (uri, _) = uri.split_once("?pin=").unwrap();
        let (code, printed) = site.asks("admin", uri, &["clients"]);
        assert_eq!(code, Some(2), "{printed}");
        assert!(printed.contains("key of the"), "{printed}");
    }
    assert!(site.server.stop().success());
}

#[test]
fn option_that_names_a_server_of_this_machine_is_not_offered_for_one_elsewhere() {
    for command in [&["status"][..], &["config", "set"], &["media", "load"], &["clients"]] {
        for (words, is_offered) in [(&["admin", "memory:1M"][..], false), (&[], true)] {
            let mut help = Command::new(LONGHAUL);
            help.args(words).args(command).arg("--help");
            let (printed, status) = run(&help);
            assert!(status.success(), "{printed}");
            assert_eq!(
                printed.contains("--control"),
                is_offered,
                "{words:?} {command:?}: {printed}"
            );
        }
    }
}

#[test]
fn paused_client_waits_until_it_is_let_go_on() {
    let site = Site::new();
    let mut attach = Command::new(LONGHAUL);
    attach.args(["attach", &site.uris[0], "--identity", "user", "--nbd", "disk.sock"]);
    let attached = Running::start(attach.current_dir(site.dir.path()));
    while !attached.line().unwrap().starts_with("ready ") {}
    assert!(site.lets_user_in());
    let said = site.does(&["config", "set", "clients.user.paused=true"]);
    assert!(said.starts_with("applied; "), "{said}");
    assert!(!site.lets_user_in());
    // Who has proven the key is told.
    let portal = site.uris[0].split('/').nth(2).unwrap();
    let (_, pin) = site.uris[0].split_once("?pin=").unwrap();
    for words in [&["discover", portal, "--pin", pin][..], &["doctor", &site.uris[0]]] {
        let mut ask = Command::new(LONGHAUL);
        ask.args(words).args(["--identity", "user"]);
        let (printed, status) = run(ask.current_dir(site.dir.path()));
        assert_eq!(status.code(), Some(1), "{printed}");
        assert!(printed.contains("it is paused there"), "{printed}");
    }
    let mut info = Command::new(LONGHAUL);
    info.args(["info", &site.uris[1], "--identity", "user", "--site-key", "site.key"]);
    let (printed, status) = run(info.current_dir(site.dir.path()));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("this client is paused there"), "{printed}");
    assert!(printed.contains("clients.NAME.paused=false"), "{printed}");
    assert!(site.does(&["clients"]).contains("writes backup; paused; sessions: 0"));
    site.does(&["config", "set", "clients.user.paused=false"]);
    assert!(site.lets_user_in());
    // The attachment has waited, and ends with all that it was given.
    assert!(attached.stop().success());
    assert!(site.server.stop().success());
}

/// Its own session ends with that, and need not hear the answer.
#[test]
fn administrator_who_gives_up_the_right_has_it_no_more() {
    let site = Site::new();
    for uri in &site.uris {
        site.asks("admin", uri, &["config", "set", "clients.admin.administrator=false"]);
        let (code, printed) = site.asks("admin", uri, &["clients"]);
        assert_eq!(code, Some(1), "{printed}");
        assert!(printed.contains("does not let this client administer it"), "{printed}");
        let mut back = Command::new(LONGHAUL);
        back.args(["config", "set", "clients.admin.administrator=true"]);
        back.args(["--control", "control.sock"]).current_dir(site.dir.path());
        assert!(run(&back).1.success());
    }
    site.asks("admin", &site.uris[0], &["revoke", "admin"]);
    // The session ends before the file is changed.
    let deadline = Instant::now() + PATIENCE;
    while site.file().contains("clients.admin") {
        assert!(Instant::now() < deadline, "it stays in the file");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(site.lets_user_in());
    assert!(site.server.stop().success());
}
