//! Invitations, with the program at both ends: from `serve --invite` to a volume that is used and known by name.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{LONGHAUL, PATIENCE, Running, run};
use tempfile::TempDir;

/// A machine, with all that it keeps.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(LONGHAUL);
        command.args(line.split_whitespace()).current_dir(self.0.path());
        self.keeps_all_here(&mut command);
        command
    }

    fn keeps_all_here(&self, command: &mut Command) {
        for (name, dir) in
            [("HOME", ""), ("LONGHAUL_CONFIG_DIR", "config"), ("LONGHAUL_STATE_DIR", "state")]
        {
            command.env(name, self.path(dir));
        }
        command.env_remove("XDG_CONFIG_HOME");
    }

    fn start(&self, line: &str) -> Running {
        Running::start(&mut self.command(line))
    }

    /// Runs a command that must succeed; what it prints.
    fn longhaul(&self, line: &str) -> String {
        let (printed, status) = run(&self.command(line));
        assert!(status.success(), "{line}: {printed}");
        printed
    }

    /// One that must fail.
    fn fails(&self, line: &str) -> String {
        let (printed, status) = run(&self.command(line));
        assert_eq!(status.code(), Some(1), "{line}: {printed}");
        printed
    }

    /// A server that invites `laptop`, with the URI of its volume, and the invitation if it makes one.
    fn serves(&self, invites: bool) -> (Running, String, String) {
        const LINE: &str =
            "serve --volume backup=file:backup.img,size=64M --listen 127.0.0.1:0 --control c.sock";
        let server =
            self.start(&format!("{LINE}{}", if invites { " --invite laptop" } else { "" }));
        let line = server.line().unwrap();
        let uri = line.strip_prefix("ready ").unwrap_or_else(|| panic!("{line}")).to_owned();
        let invitation = if invites && !self.path("state/clients.toml").exists() {
            let line = server.line().unwrap();
            assert!(line.starts_with("invitation for laptop (good once, until "), "{line}");
            line.split_whitespace().last().unwrap().to_owned()
        } else {
            String::new()
        };
        (server, uri, invitation)
    }

    /// Has the volume of an invitation attached, by which this machine enrols itself; what it says before.
    fn attaches(&self, invitation: &str) -> (Running, String) {
        let attached = self.start(&format!("attach {invitation} --nbd disk.sock"));
        let mut said = String::new();
        while let Some(line) = attached.line() {
            if line.starts_with("ready ") {
                return (attached, said);
            }
            said += &(line + "\n");
        }
        panic!("{said}");
    }

    fn copies(&self, from: &str, uri: &str) {
        self.longhaul(&format!("copy {from} {uri}"));
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    path.metadata().unwrap().mode() & 0o777
}

#[test]
fn invited_machine_enrols_itself_once_and_stays_a_client() {
    let (server_machine, laptop, other) = (Machine::new(), Machine::new(), Machine::new());
    let (server, uri, invitation) = server_machine.serves(true);
    assert!(invitation.starts_with("longhaul:"), "{invitation}");
    assert!(laptop.fails(&format!("info {uri} --identity none")).contains("none"), "no identity");
    assert_eq!(mode(&server_machine.path("state/invitations.json")), 0o600);
    assert_eq!(mode(&server_machine.path("state/identity")), 0o600);
    let open = server_machine.longhaul("clients --control c.sock");
    assert!(open.contains("laptop: invited until ") && open.contains("writes backup"), "{open}");

    let (attached, said) = laptop.attaches(&invitation);
    assert!(said.contains("the volume is remembered as backup"), "{said}");
    assert!(laptop.longhaul("volumes").contains(&uri), "by its name");
    assert!(attached.stop().success());
    fs::write(laptop.path("data"), vec![0x5A; 1 << 20]).unwrap();
    laptop.copies("data", &uri);
    assert_eq!(mode(&laptop.path(".config/longhaul/identity")), 0o600);

    // It is worth nothing any more.
    let refused = other.fails(&format!("attach {invitation} --nbd disk.sock"));
    assert!(refused.contains("it was used, has expired or was revoked"), "{refused}");
    assert!(other.longhaul("volumes").is_empty());
    other.fails(&format!("info {uri}"));
    // But to the machine that has used it: its key is listed.
    let (attached, _) = laptop.attaches(&invitation);
    assert!(attached.stop().success());

    // The same command line again: nobody is invited anew, and the server is who it was.
    assert!(server.stop().success());
    let kept = fs::read_to_string(server_machine.path("state/clients.toml")).unwrap();
    assert!(
        kept.contains("[clients.laptop]") && kept.contains("protection = \"encrypt\""),
        "{kept}"
    );
    for invites in [true, false] {
        let (server, again, _) = server_machine.serves(invites);
        let moved = uri_at(&uri, &again);
        assert_eq!(moved, again, "but for its port");
        assert!(laptop.longhaul(&format!("info {again}")).contains("secure       encrypt"));
        other.fails(&format!("info {again}"));
        assert!(server.stop().success());
    }
}

/// `uri` with the portal of `other`.
fn uri_at(uri: &str, other: &str) -> String {
    let portal = |uri: &str| uri.split('/').nth(2).unwrap().to_owned();
    uri.replace(&portal(uri), &portal(other))
}

/// As a loss of power leaves it between the list of clients and the end of the invitation.
#[test]
fn invitation_whose_client_is_listed_is_void_after_a_crash() {
    let (server_machine, laptop, other) = (Machine::new(), Machine::new(), Machine::new());
    let (server, _, invitation) = server_machine.serves(true);
    let file = server_machine.path("state/invitations.json");
    let open = fs::read(&file).unwrap();
    let (attached, _) = laptop.attaches(&invitation);
    assert_ne!(fs::read(&file).unwrap(), open);
    assert!(attached.stop().success());
    server.kill();
    fs::write(&file, &open).unwrap();
    let (server, uri, _) = server_machine.serves(true);
    assert!(!server_machine.longhaul("clients --control c.sock").contains("invited until"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "[]");
    other.longhaul("identity new");
    other.fails(&format!("info {uri}"));
    laptop.longhaul(&format!("info {uri}"));
    assert!(server.stop().success());
}

#[test]
fn revoked_client_is_thrown_out_and_stays_out() {
    let (server_machine, laptop) = (Machine::new(), Machine::new());
    let (server, uri, invitation) = server_machine.serves(true);
    let (attached, _) = laptop.attaches(&invitation);
    let clients = server_machine.longhaul("clients --control c.sock --json");
    assert!(clients.contains("\"sessions\":1"), "{clients}");
    let told = server_machine.longhaul("revoke laptop --control c.sock");
    assert!(
        told.contains("laptop is no client any more; sessions asked to log in anew: 1"),
        "{told}"
    );
    laptop.fails(&format!("info {uri}"));
    until("its session is gone", || {
        !server_machine.longhaul("status --json --control c.sock").contains("lhpub1-")
    });
    attached.kill();
    assert!(server_machine.longhaul("clients --control c.sock").is_empty());
    let again = server_machine.fails("revoke laptop --control c.sock");
    assert!(again.contains("neither a client nor an invitation"), "{again}");
    assert!(server.stop().success());
    // Nobody else is let in by a restart, whatever the volume is called then.
    for volume in ["backup", "other"] {
        let server = server_machine
            .start(&format!("serve --volume {volume}=file:backup.img --listen 127.0.0.1:0"));
        let ready = server.line().unwrap();
        let (_, uri) = ready.split_once(' ').unwrap();
        laptop.fails(&format!("info {uri}"));
        laptop.fails(&format!("info {}", uri.split('?').next().unwrap()));
        assert!(server.stop().success());
    }
    // Inviting it again is another invitation, after a restart too.
    let server = server_machine.start(
        "serve --volume backup=file:backup.img --listen 127.0.0.1:0 --control c.sock --invite laptop",
    );
    assert!(server.line().unwrap().starts_with("ready "));
    let line = server.line().unwrap();
    assert!(line.starts_with("invitation for laptop") && !line.contains(&invitation), "{line}");
    laptop.fails(&format!("attach {invitation} --nbd disk.sock"));
    assert!(server.stop().success());
}

const CONFIG: &str = "\
# The disks of the house.
listen = [\"127.0.0.1:0\"]
identity = \"server.identity\"
control = \"c.sock\"   # for the administrator
[volumes.backup]
uri = \"memory:64M\"
[volumes.media]
uri = \"memory:8M\" # films

[clients.nobody]
initiator = \"iqn.2000-01.example:nobody\"
volumes = []
";

/// A server with a configuration file, and the URI of its first volume.
fn configured(machine: &Machine) -> (Running, String) {
    if !machine.path("server.identity").exists() {
        fs::write(machine.path("longhaul.toml"), CONFIG).unwrap();
        machine.longhaul("identity new server.identity");
    }
    let server = machine.start("serve --config longhaul.toml");
    let uris = [server.line().unwrap(), server.line().unwrap()];
    let uri = uris.iter().find(|uri| uri.contains("backup")).unwrap();
    (server, uri.strip_prefix("ready ").unwrap().to_owned())
}

fn invite(machine: &Machine, rest: &str) -> String {
    let told = machine.longhaul(&format!("invite {rest} --control c.sock"));
    assert!(!told.contains('█'), "no picture where nobody looks");
    told.split_whitespace().last().unwrap().to_owned()
}

#[test]
fn client_is_written_into_the_configuration_file_as_an_administrator_would() {
    let (machine, laptop) = (Machine::new(), Machine::new());
    let (server, uri) = configured(&machine);
    let invitation = invite(&machine, "laptop --volume backup");
    // A restart in between, which gives it another port.
    assert!(server.stop().success());
    let (server, again) = configured(&machine);
    assert_eq!(uri_at(&uri, &again), again);
    let uri = again;
    let refused = laptop.fails(&format!("attach {invitation} --nbd disk.sock"));
    assert!(refused.contains("nothing listens there"), "{refused}");
    let listed = machine.longhaul("clients --control c.sock");
    assert!(listed.contains("laptop: invited until"), "{listed}");
    assert!(machine.longhaul("revoke laptop --control c.sock").contains("invited no more"));

    let invitation = invite(&machine, "laptop --volume backup --volume media --read-only");
    let attached = laptop.start(&format!("attach {invitation} --read-only --nbd disk.sock"));
    until("it is ready", || attached.line().unwrap().starts_with("ready "));
    let text = fs::read_to_string(machine.path("longhaul.toml")).unwrap();
    assert!(text.starts_with(CONFIG), "{text}");
    let key = laptop.longhaul("identity show");
    let table = format!(
        "[clients.laptop]\nkey = \"{}\"\nread_only = [\"backup\", \"media\"]\nprotection = \"encrypt\"\n",
        key.trim()
    );
    assert!(text.ends_with(&table), "{text}");
    // What is in force is what the file says.
    assert!(machine.longhaul("reload --control c.sock").contains("nothing to tell sessions"));
    fs::write(laptop.path("data"), vec![0x5A; 4096]).unwrap();
    let refused = laptop.fails(&format!("copy data {uri}"));
    assert!(refused.contains("write-protected") || refused.contains("read"), "{refused}");
    assert!(attached.stop().success());
    machine.longhaul("revoke laptop --control c.sock");
    assert_eq!(fs::read_to_string(machine.path("longhaul.toml")).unwrap(), CONFIG);
    assert!(server.stop().success());
}

#[test]
fn unfit_invitations_are_refused() {
    let machine = Machine::new();
    let (server, _) = configured(&machine);
    for (wrong, why) in [
        ("a/b --volume backup", "the name of a client has"),
        ("laptop --volume other", "there is no volume `other`: it has backup, media"),
        ("nobody --volume backup", "there is a client of this name"),
    ] {
        let refused = machine.fails(&format!("invite {wrong} --control c.sock"));
        assert!(refused.contains(why), "{refused}");
    }
    invite(&machine, "laptop --volume backup");
    let again = machine.fails("invite laptop --volume media --control c.sock");
    assert!(again.contains("there is an invitation under this name"), "{again}");
    let (refused, status) = run(&machine.command("invite a --volume backup --for 25h"));
    assert_eq!(status.code(), Some(2), "{refused}");
    let elsewhere = invite(&machine, "phone --volume media --address 127.0.0.1:1 --for 10s");
    let phone = Machine::new();
    let refused = phone.fails(&format!("attach {elsewhere} --nbd disk.sock"));
    assert!(refused.contains("127.0.0.1:1"), "{refused}");
    for wrong in [&elsewhere[..elsewhere.len() - 1], "longhaul:AAAA"] {
        let (refused, status) = run(&phone.command(&format!("attach {wrong} --nbd disk.sock")));
        assert_eq!(status.code(), Some(2), "{refused}");
        assert!(refused.contains("cannot use the invitation"), "{refused}");
    }
    assert!(server.stop().success());
    // One that anyone may use has nobody to invite.
    let open = machine.start("serve --volume a=memory:8M --listen 127.0.0.1:0 --control o.sock --identity server.identity");
    assert!(open.line().unwrap().starts_with("ready "));
    let refused = machine.fails("invite laptop --volume a --control o.sock");
    assert!(refused.contains("anyone may use this server"), "{refused}");
    assert!(open.stop().success());
    let plain = machine.start("serve --volume a=memory:8M --listen 127.0.0.1:0 --control o.sock");
    assert!(plain.line().unwrap().starts_with("ready "));
    let refused = machine.fails("invite laptop --volume a --control o.sock");
    assert!(refused.contains("the server has no identity"), "{refused}");
    assert!(plain.stop().success());
}

#[test]
fn invitation_ends_with_its_time() {
    let (machine, laptop) = (Machine::new(), Machine::new());
    let (server, _) = configured(&machine);
    let invitation = invite(&machine, "laptop --volume backup --for 1s");
    until("it has ended", || !machine.longhaul("clients --control c.sock").contains("laptop"));
    let refused = laptop.fails(&format!("attach {invitation} --nbd disk.sock"));
    assert!(refused.contains("it was used, has expired or was revoked"), "{refused}");
    assert!(server.stop().success());
}

/// A file that somebody is about to change is not written over; the invitation is as good as before.
#[test]
fn client_that_cannot_be_listed_may_come_again() {
    let (machine, laptop) = (Machine::new(), Machine::new());
    let (server, _) = configured(&machine);
    let invitation = invite(&machine, "laptop --volume backup");
    let half = format!("{CONFIG}[clients.half");
    fs::write(machine.path("longhaul.toml"), &half).unwrap();
    let refused = laptop.fails(&format!("attach {invitation} --nbd disk.sock"));
    assert!(refused.contains("target error (03/00)"), "{refused}");
    assert_eq!(fs::read_to_string(machine.path("longhaul.toml")).unwrap(), half);
    fs::write(machine.path("longhaul.toml"), CONFIG).unwrap();
    let (attached, _) = laptop.attaches(&invitation);
    assert!(attached.stop().success());
    assert!(server.stop().success());
}

#[test]
fn of_several_machines_with_one_invitation_one_is_listed() {
    let machine = Machine::new();
    let (server, _) = configured(&machine);
    let invitation = invite(&machine, "laptop --volume backup");
    let guests = [(); 4].map(|()| Machine::new());
    let started: Vec<_> = guests
        .iter()
        .map(|guest| guest.start(&format!("attach {invitation} --nbd d.sock")))
        .collect();
    let is_ready = |attached: &Running| {
        std::iter::from_fn(|| attached.line()).any(|line| line.starts_with("ready "))
    };
    let ready: Vec<_> = started.iter().map(is_ready).collect();
    assert_eq!(ready.iter().filter(|ready| **ready).count(), 1, "{ready:?}");
    let text = fs::read_to_string(machine.path("longhaul.toml")).unwrap();
    assert_eq!(text.matches("key = ").count(), 1, "{text}");
    drop(started);
    assert!(server.stop().success());
}

/// It does not stand on the command line, where other users of the machine could read it.
#[test]
fn invitation_may_come_by_standard_input() {
    let (machine, laptop) = (Machine::new(), Machine::new());
    let (server, _) = configured(&machine);
    fs::write(laptop.path("line"), invite(&machine, "laptop --volume backup") + "\n").unwrap();
    let mut command = laptop.command("attach - --nbd disk.sock");
    command.stdin(fs::File::open(laptop.path("line")).unwrap());
    let attached = Running::start_as_it_is(&mut command);
    until("it is ready", || attached.line().unwrap().starts_with("ready "));
    let words = fs::read(format!("/proc/{}/cmdline", attached.pid())).unwrap();
    assert!(!String::from_utf8_lossy(&words).contains("longhaul:"), "{words:?}");
    assert!(attached.stop().success());
    assert!(server.stop().success());
}
