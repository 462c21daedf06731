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

    /// Writes to the volume, as one who may.
    fn copies_data(&self, uri: &str) {
        fs::write(self.path("data"), vec![0x5A; 1 << 20]).unwrap();
        self.copies("data", uri);
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
    assert_eq!(mode(&laptop.path("config/identity")), 0o600);

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
        told.contains("laptop is no client any more; sessions that must log in anew: 1"),
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

/// The machine is a client already; that it is let in shows nothing of the invitation.
#[test]
fn refused_invitation_is_not_reported_as_an_enrolment() {
    let (machine, laptop, other) = (Machine::new(), Machine::new(), Machine::new());
    let (server, _) = configured(&machine);
    let (attached, said) = laptop.attaches(&invite(&machine, "laptop --volume backup"));
    assert!(said.contains("the server knows this machine as laptop"), "{said}");
    assert!(attached.stop().success());
    let phone = invite(&machine, "phone --volume backup");
    let (attached, _) = other.attaches(&phone);
    assert!(attached.stop().success());
    let (attached, said) = laptop.attaches(&phone);
    assert!(said.contains("the invitation has enrolled nobody now"), "{said}");
    assert!(!said.contains("phone"), "{said}");
    assert!(attached.stop().success());
    // What the invitation is for is not what this machine may use.
    let media = invite(&machine, "media --volume media");
    let (attached, _) = other.attaches(&media);
    assert!(attached.stop().success());
    let refused = laptop.fails(&format!("attach {media} --nbd disk.sock"));
    assert!(refused.contains("it was used, has expired or was revoked"), "{refused}");
    // The server could not list it, as an administrator is at work.
    let third = invite(&machine, "third --volume backup");
    let text = fs::read_to_string(machine.path("longhaul.toml")).unwrap();
    fs::write(machine.path("longhaul.toml"), format!("{text}[clients.half")).unwrap();
    let refused = laptop.fails(&format!("attach {third} --nbd disk.sock"));
    assert!(refused.contains("target error (03/00)"), "{refused}");
    assert!(server.stop().success());
}

/// Each row: what is done to the file of the clients, and what an invitation is refused for then.
#[test]
fn invitation_whose_client_could_not_be_listed_is_refused() {
    let machine = Machine::new();
    let (server, _) = configured(&machine);
    let file = machine.path("longhaul.toml");
    let without = CONFIG.replace("[volumes.backup]\nuri = \"memory:64M\"\n", "");
    for (text, why) in [
        (
            format!(
                "{CONFIG}[clients.laptop]\ninitiator = \"iqn.2000-01.example:l\"\nvolumes = []\n"
            ),
            "there is a client laptop already",
        ),
        (format!("{CONFIG}[clients.half"), "longhaul.toml"),
        (format!("{CONFIG}[volumes.wrong]\n"), "uri"),
        (without, "backup"),
    ] {
        fs::write(&file, &text).unwrap();
        let refused = machine.fails("invite laptop --volume backup --control c.sock");
        assert!(refused.contains("cannot invite laptop") && refused.contains(why), "{refused}");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        assert!(!machine.longhaul("clients --control c.sock").contains("laptop"));
    }
    fs::write(&file, CONFIG).unwrap();
    invite(&machine, "laptop --volume backup");
    assert!(server.stop().success());
}

/// A file that is mounted by itself, as into a container, cannot be replaced.
#[test]
fn server_whose_file_is_mounted_by_itself_invites_nobody() {
    let machine = Machine::new();
    let (server, _) = configured(&machine);
    assert!(server.stop().success());
    let mut command = Command::new("unshare");
    let line =
        "mount --bind longhaul.toml longhaul.toml && exec \"$0\" serve --config longhaul.toml";
    command.args(["-m", "sh", "-c", line, LONGHAUL]).current_dir(machine.0.path());
    machine.keeps_all_here(&mut command);
    let server = Running::start(&mut command);
    assert!(server.line().unwrap().starts_with("ready "));
    let refused = machine.fails("invite laptop --volume backup --control c.sock");
    assert!(refused.contains("it is mounted there by itself"), "{refused}");
    assert!(server.stop().success());
}

#[test]
fn revoked_client_is_out_whatever_else_is_wrong() {
    let (machine, laptop) = (Machine::new(), Machine::new());
    fs::write(machine.path("chap.secret"), "0123456789abcdef").unwrap();
    Command::new("chmod")
        .args(["600", "chap.secret"])
        .current_dir(machine.0.path())
        .status()
        .unwrap();
    let (server, _) = configured(&machine);
    assert!(server.stop().success());
    let with_chap = format!(
        "{CONFIG}[clients.old]\nchap_secret_file = \"chap.secret\"\nvolumes = [\"media\"]\n"
    )
    .replace("listen =", "protection = \"none\"\nlisten =");
    let file = machine.path("longhaul.toml");
    fs::write(&file, &with_chap).unwrap();
    let (server, uri) = configured(&machine);
    let enrols = || {
        let (attached, _) = laptop.attaches(&invite(&machine, "laptop --volume backup"));
        assert!(attached.stop().success());
        laptop.longhaul(&format!("info {uri}"));
    };
    enrols();
    // Another client's secret, and another mistake.
    fs::remove_file(machine.path("chap.secret")).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("uri = \"memory:8M\"", "uri = \"memory:8X\"")).unwrap();
    let told = machine.longhaul("revoke laptop --control c.sock");
    assert!(told.contains("laptop is no client any more"), "{told}");
    laptop.fails(&format!("info {uri}"));
    assert!(!fs::read_to_string(&file).unwrap().contains("laptop"));
    fs::write(&file, &with_chap).unwrap();

    // A file of which nothing can be taken out.
    enrols();
    fs::write(&file, format!("{with_chap}[clients.half")).unwrap();
    let told = machine.fails("revoke laptop --control c.sock");
    assert!(told.contains("laptop is no client any more"), "{told}");
    assert!(told.contains("it cannot be taken out of") && told.contains("comes back"), "{told}");
    laptop.fails(&format!("info {uri}"));
    fs::write(&file, &with_chap).unwrap();

    // One key under two names.
    enrols();
    let (attached, _) = laptop.attaches(&invite(&machine, "again --volume media"));
    assert!(attached.stop().success());
    let told = machine.fails("revoke laptop --control c.sock");
    assert!(told.contains("lets it in as again, which has to be revoked too"), "{told}");
    laptop.fails(&format!("info {uri}"));
    assert!(machine.longhaul("revoke again --control c.sock").contains("again is no client"));
    assert!(server.stop().success());
}

#[test]
fn client_of_the_command_line_is_out_until_the_next_start() {
    let (machine, laptop) = (Machine::new(), Machine::new());
    machine.longhaul("identity new server.identity");
    laptop.longhaul("identity new");
    let key = laptop.longhaul("identity show").trim().to_owned();
    let server = machine.start(&format!(
        "serve --volume a=memory:8M --listen 127.0.0.1:0 --control c.sock --identity server.identity --client-key {key}"
    ));
    let uri = server.line().unwrap().strip_prefix("ready ").unwrap().to_owned();
    laptop.longhaul(&format!("info {uri}"));
    let told = machine.fails(&format!("revoke {key} --control c.sock"));
    assert!(told.contains("it stands on the command line"), "{told}");
    laptop.fails(&format!("info {uri}"));
    assert!(server.stop().success());
}

/// Two servers of one user, with volumes of one name.
#[test]
fn servers_that_share_a_state_directory_keep_their_clients_apart() {
    let (machine, laptop, phone) = (Machine::new(), Machine::new(), Machine::new());
    for file in ["a.img", "b.img", "c.img"] {
        fs::File::create(machine.path(file)).unwrap().set_len(64 << 20).unwrap();
    }
    let start = |volume: &str, rest: &str| {
        let control = volume.replace(['=', ':', '.'], "-");
        let server = machine.start(&format!(
            "serve --volume {volume} --listen 127.0.0.1:0 --control {control}.sock {rest}"
        ));
        let ready = server.line().unwrap();
        (server, ready.strip_prefix("ready ").unwrap_or_else(|| panic!("{ready}")).to_owned())
    };
    let line =
        |server: &Running| server.line().unwrap().split_whitespace().last().unwrap().to_owned();
    let (first, first_uri) = start("backup=file:a.img", "--invite laptop");
    let to_laptop = line(&first);
    // The same name of a volume: its invitation is another server's.
    let (second, second_uri) = start("backup=file:b.img", "");
    let port = |uri: &str| uri.split('/').nth(2).unwrap().to_owned();
    assert!(machine.longhaul("clients --control backup-file-b-img.sock").is_empty());
    let (attached, _) = laptop.attaches(&to_laptop);
    assert!(attached.stop().success());
    laptop.longhaul(&format!("info {first_uri}"));
    assert!(second.stop().success());
    let (second, second_again) = start("backup=file:b.img", "");
    laptop.fails(&format!("info {second_again}"));
    assert_ne!(port(&second_uri), port(&first_uri));
    let refused = machine.fails("invite phone --volume backup --control backup-file-b-img.sock");
    assert!(
        refused.contains("a.img, and not file:") && refused.contains("--state DIR"),
        "{refused}"
    );
    // Another name of a volume, and another of the client.
    let (third, third_uri) = start("media=file:c.img", "");
    let control = "media-file-c-img.sock";
    let taken = machine.fails(&format!("invite laptop --volume media --control {control}"));
    assert!(taken.contains("there is a client laptop already"), "{taken}");
    let told = machine.longhaul(&format!("invite phone --volume media --control {control}"));
    let (attached, _) = phone.attaches(told.split_whitespace().last().unwrap());
    assert!(attached.stop().success());
    phone.longhaul(&format!("info {third_uri}"));
    phone.fails(&format!("info {first_uri}"));
    laptop.fails(&format!("info {third_uri}"));
    let told = machine.longhaul("revoke laptop --control backup-file-a-img.sock");
    assert!(told.contains("laptop is no client any more"), "{told}");
    phone.longhaul(&format!("info {third_uri}"));
    for server in [first, second, third] {
        assert!(server.stop().success());
    }
}

/// Another process holds the lock and is stopped.
#[test]
fn locked_state_directory_is_told_and_keeps_nobody_from_his_volume() {
    let (machine, laptop) = (Machine::new(), Machine::new());
    let (server, uri) = configured(&machine);
    let (attached, _) = laptop.attaches(&invite(&machine, "laptop --volume backup"));
    let lock = fs::File::open(machine.path("state/invitations.lock")).unwrap();
    lock.lock().unwrap();
    let refused = machine.fails("invite phone --volume media --control c.sock");
    assert!(refused.contains("another process has locked it"), "{refused}");
    laptop.longhaul(&format!("info {uri}"));
    drop(lock);
    invite(&machine, "phone --volume media");
    assert!(attached.stop().success());
    assert!(server.stop().success());
}

/// A reload that waits for a volume which is out of reach does not keep a client in.
#[test]
fn client_is_revoked_while_a_reload_is_under_way() {
    let (machine, laptop) = (Machine::new(), Machine::new());
    let (server, uri) = configured(&machine);
    let (attached, _) = laptop.attaches(&invite(&machine, "laptop --volume backup"));
    // Connections are taken there, and nothing is answered.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let file = machine.path("longhaul.toml");
    let text = fs::read_to_string(&file).unwrap();
    let at = silent.local_addr().unwrap();
    fs::write(
        &file,
        format!("{text}\n[volumes.far]\nuri = \"iscsi://{at}/iqn.2026-11.dev.longhaul:far/0\"\n"),
    )
    .unwrap();
    let reload = machine.start("reload --control c.sock");
    drop(silent.accept().unwrap());
    let told = machine.longhaul("revoke laptop --control c.sock");
    assert!(told.contains("laptop is no client any more"), "{told}");
    laptop.fails(&format!("info {uri}"));
    assert!(!fs::read_to_string(&file).unwrap().contains("clients.laptop"));
    reload.kill();
    attached.kill();
    server.kill();
}

/// What cannot be mounted on this machine is refused before the invitation is used.
#[test]
fn mount_that_cannot_be_uses_no_invitation_and_makes_no_identity() {
    let (server_machine, laptop) = (Machine::new(), Machine::new());
    let (server, _, invitation) = server_machine.serves(true);
    let nowhere = format!("mount {invitation} nowhere --mkfs ext4");
    let refused = laptop.fails(&nowhere);
    assert!(refused.contains("cannot mount at nowhere"), "{refused}");
    // The kernel's NBD cannot be asked from another network namespace, if there is one.
    fs::create_dir(laptop.path("mnt")).unwrap();
    let mut unshare = Command::new("unshare");
    unshare.arg("--net").arg(LONGHAUL).args(["mount", &invitation, "mnt", "--mkfs", "ext4"]);
    laptop.keeps_all_here(unshare.args(["--via", "nbd"]).current_dir(laptop.0.path()));
    let (refused, status) = run(&unshare);
    assert_eq!(status.code(), Some(1), "{refused}");
    assert!(refused.contains("NBD"), "{refused}");
    assert!(!laptop.path("config").exists(), "nothing is made");
    let (attached, said) = laptop.attaches(&invitation);
    assert!(said.contains("the server knows this machine as laptop"), "{said}");
    assert!(attached.stop().success());
    assert!(server.stop().success());
}

/// What keeps other writers away from a client that has crashed is there when the server has crashed too.
#[test]
fn reservations_of_a_server_that_keeps_its_clients_outlast_it() {
    let (server_machine, laptop, other) = (Machine::new(), Machine::new(), Machine::new());
    let (server, _, invitation) = server_machine.serves(true);
    let (attached, _) = laptop.attaches(&invitation);
    attached.kill();
    server.kill();
    let (server, uri, _) = server_machine.serves(false);
    // The same client, on a machine that knows nothing of the attachment.
    fs::create_dir_all(other.path("config")).unwrap();
    fs::copy(laptop.path("config/identity"), other.path("config/identity")).unwrap();
    fs::write(other.path("data"), vec![0x5A; 1 << 20]).unwrap();
    let refused = other.fails(&format!("copy data {uri}"));
    assert!(refused.contains("another writer has the volume"), "{refused}");
    laptop.copies_data(&uri);
    assert!(server.stop().success());
}
