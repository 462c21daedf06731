//! What a person is told without having asked: that a session is not secure, that a header was damaged, that writes behind
//! fail; where a server can be reached; and nothing that a server says of itself reaches a terminal as a command for it.
//! Needs root.

mod common;
#[path = "common/port.rs"]
mod port;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use common::{LONGHAUL, PATIENCE, Running, run};
use port::Port;

/// Neither loopback nor anybody's (RFC 5737).
const ADDRESS: &str = "192.0.2.7";

/// What a key costs that a test makes.
const CHEAP: [&str; 4] = ["--pbkdf-memory", "32K", "--pbkdf-iterations", "4"];

/// Runs a shell whose command line is `script`, with the program as `$0`.
fn shell(home: &Path, script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, LONGHAUL]).current_dir(home);
    command.env("LONGHAUL_STATE_DIR", home.join("state"));
    command.env("RUNTIME_DIRECTORY", home.join("run"));
    command
}

/// Does what `script` says, and is that it must succeed.
fn done(home: &Path, script: &str) -> String {
    let (said, status) = run(&shell(home, script));
    assert!(status.success(), "{script}: {said}");
    said
}

/// A server in a network of its own, where it has [`ADDRESS`], and what it says first.
fn server_elsewhere(home: &Path, arguments: &str) -> (Running, Vec<String>) {
    let link = format!(
        "ip link set lo up && ip link add one type veth peer name two && ip link set two up && ip link set one up && \
         ip address add {ADDRESS}/24 dev one"
    );
    let script =
        format!("exec unshare --net sh -c '{link} && exec \"$0\" serve {arguments} 2>&1' \"$0\"");
    let server = Running::start(&mut shell(home, &script));
    let mut said = Vec::new();
    while !said.last().is_some_and(|line: &String| line.starts_with("ready ")) {
        said.push(server.line().unwrap_or_else(|| panic!("it is not ready: {said:?}")));
    }
    (server, said)
}

/// Waits until it says this.
fn says(running: &Running, what: &str) -> String {
    let line = std::iter::from_fn(|| running.line()).find(|line| line.contains(what));
    line.unwrap_or_else(|| panic!("it never says {what:?}"))
}

/// Whether it says that a session is not secure, and what to do.
fn warns_of_plain(line: &str) -> bool {
    line.contains("WARN")
        && line.contains("not secure")
        && line.contains("; ")
        && ["give the server an identity", "use the URI that", "give its client a"]
            .iter()
            .any(|advice| line.contains(advice))
}

#[test]
fn session_that_is_not_secure_is_told_of_by_both_ends() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let options = "--volume t=memory:1M --listen 0.0.0.0:0 --insecure";
    let (server, said) = server_elsewhere(home, options);
    assert!(said.iter().any(|line| warns_of_plain(line)), "{said:?}");
    let uri = said.last().unwrap().strip_prefix("ready ").unwrap();
    assert!(uri.starts_with(&format!("iscsi://{ADDRESS}:")), "an address for clients: {uri}");
    let inside = format!("nsenter --target {} --net \"$0\" info", server.pid());
    let said = done(home, &format!("{inside} '{uri}'"));
    assert!(said.lines().any(warns_of_plain), "{said}");
    assert!(warns_of_plain(&says(&server, "session is not secure")));
    // On loopback nobody is on the way.
    let loopback = uri.replace(ADDRESS, "127.0.0.1");
    let said = done(home, &format!("{inside} '{loopback}'"));
    assert!(!said.contains("not secure"), "{said}");
    assert!(server.stop().success());
}

#[test]
fn secure_session_warns_of_nothing() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    done(home, "\"$0\" identity new id && \"$0\" identity new me");
    let options = "--volume t=memory:1M --listen 0.0.0.0:0 --identity id --insecure";
    let (server, said) = server_elsewhere(home, options);
    let uri = said.last().unwrap().strip_prefix("ready ").unwrap();
    assert!(uri.contains(ADDRESS) && uri.contains("pin="), "{uri}");
    let inside = format!("nsenter --target {} --net \"$0\" info --identity me", server.pid());
    let told = done(home, &format!("{inside} '{uri}'"));
    for line in said.iter().map(String::as_str).chain(told.lines()) {
        assert!(!warns_of_plain(line), "{line}");
    }
    assert!(server.stop().success());
}

/// Makes the encrypted volume disk.img, which what is in pass opens.
fn init(home: &Path) {
    fs::write(home.join("pass"), "correct horse battery staple").unwrap();
    fs::set_permissions(home.join("pass"), fs::Permissions::from_mode(0o600)).unwrap();
    let init = "\"$0\" key init file:disk.img --size 24M --passphrase-file pass";
    done(home, &format!("{init} {}", CHEAP.join(" ")));
}

/// Overwrites a part of a copy of the header: the first begins at 0, the second at 16 KiB.
fn damage(home: &Path, copy: u64) {
    let file = fs::OpenOptions::new().write(true).open(home.join("disk.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0x5a; 64], copy * (16 << 10) + 256).unwrap();
}

#[test]
fn damaged_copy_of_a_header_is_told_of_and_repaired_by_who_may_write() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    init(home);
    for (copy, name) in [(0, "first"), (1, "second")] {
        damage(home, copy);
        let damaged = fs::read(home.join("disk.img")).unwrap();
        let said = done(home, "\"$0\" key list --read-only file:disk.img");
        let what = format!("the {name} copy of the header is damaged");
        assert!(said.contains(&what) && said.contains("not repaired"), "{said}");
        assert_eq!(fs::read(home.join("disk.img")).unwrap(), damaged, "it only reads");
        let said = done(home, "\"$0\" key test file:disk.img --passphrase-file pass");
        assert!(
            said.contains(&format!("the {name} copy of the LUKS2 header is damaged")),
            "{said}"
        );
        assert_eq!(fs::read(home.join("disk.img")).unwrap(), damaged, "it only reads");

        let said = done(home, "\"$0\" key list file:disk.img");
        let repaired = format!("the {name} copy of the LUKS2 header was damaged: repaired");
        assert!(said.contains("WARN") && said.contains(&repaired), "{said}");
        let said = done(home, "\"$0\" key list file:disk.img");
        assert!(!said.contains("damaged"), "{said}");
        done(home, "cryptsetup luksDump disk.img");

        damage(home, copy);
        let attach = "exec \"$0\" attach file:disk.img --nbd disk.sock --passphrase-file pass 2>&1";
        let attached = Running::start(&mut shell(home, attach));
        assert!(says(&attached, &repaired).contains("WARN"));
        says(&attached, "ready ");
        assert!(attached.stop().success());
        let said = done(home, "\"$0\" key list file:disk.img");
        assert!(!said.contains("damaged"), "{said}");
        done(home, "cryptsetup luksDump disk.img");
    }
}

/// The other copy is all there is of the header: it is not touched, and nothing is made up from what is left.
#[test]
fn header_without_a_whole_copy_is_left_as_it_is_by_key_list() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    init(home);
    (0..2).for_each(|copy| damage(home, copy));
    let damaged = fs::read(home.join("disk.img")).unwrap();
    let (said, status) = run(&shell(home, "\"$0\" key list file:disk.img 2>&1"));
    assert_eq!(status.code(), Some(1), "{said}");
    assert_eq!(fs::read(home.join("disk.img")).unwrap(), damaged);
}

/// A volume that another writer has is listed, and not repaired.
#[test]
fn damaged_header_of_a_volume_in_use_is_listed_and_not_repaired() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    init(home);
    let serve = "exec \"$0\" serve --listen 127.0.0.1:0 --volume disk=file:disk.img";
    let server = Running::start(&mut shell(home, serve));
    let uri = says(&server, "ready ").strip_prefix("ready ").unwrap().to_owned();
    let attach = format!("exec \"$0\" attach '{uri}' --nbd disk.sock --passphrase-file pass 2>&1");
    let attached = Running::start(&mut shell(home, &attach));
    says(&attached, "ready ");
    damage(home, 0);
    let damaged = fs::read(home.join("disk.img")).unwrap();
    let other = "--initiator iqn.2000-01.example:other";
    let said = done(home, &format!("\"$0\" key list '{uri}' {other} 2>&1"));
    assert!(said.contains("is not repaired") && said.contains("slot 0"), "{said}");
    assert_eq!(fs::read(home.join("disk.img")).unwrap(), damaged);
    assert!(attached.stop().success());
    assert!(server.stop().success());
}

#[test]
fn attachment_whose_server_is_out_of_space_says_so_before_any_flush() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let small = tempfile::tempdir_in(home).unwrap();
    let place = small.path().display();
    done(home, &format!("mount -t tmpfs -o size=4M small {place}"));
    let port = Port::reserve();
    let serve = format!(
        "exec \"$0\" serve --listen 127.0.0.1:{} --volume disk=file:{place}/disk,size=32M",
        port.number
    );
    let server = Running::start(&mut shell(home, &serve));
    let uri = says(&server, "ready ").strip_prefix("ready ").unwrap().to_owned();
    let attach = format!("exec \"$0\" attach '{uri}' --nbd disk.sock 2>&1");
    let attached = Running::start(&mut shell(home, &attach));
    says(&attached, "ready ");
    let mut client = nbd(&home.join("disk.sock"));
    for at in (0..8_u64 << 20).step_by(1 << 20) {
        write(&mut client, at, &[7; 1 << 20]);
    }
    let said = says(&attached, "write behind failed");
    for words in ["ERROR", &uri, "at=", "no space left"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let said = done(home, "\"$0\" status");
    assert!(said.contains("FAILED") && said.contains("no space left"), "{said}");
    assert!(!attached.stop().success(), "what it had acknowledged is not on the volume");
    assert!(server.stop().success());
    done(home, &format!("umount {place}"));
}

/// A client of the NBD server at `socket`, that only writes.
fn nbd(socket: &Path) -> std::os::unix::net::UnixStream {
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    // Fixed newstyle without zeroes; NBD_OPT_EXPORT_NAME of the default export.
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    stream
}

/// Writes, however that ends.
fn write(stream: &mut std::os::unix::net::UnixStream, at: u64, data: &[u8]) {
    let mut request = b"\x25\x60\x95\x13\0\0\0\x01\0\0\0\0\0\0\0\0".to_vec();
    request.extend(at.to_be_bytes());
    request.extend((data.len() as u32).to_be_bytes());
    request.extend(data);
    stream.write_all(&request).unwrap();
    stream.read_exact(&mut [0; 16]).unwrap();
}

/// What a server says of itself reaches the client with other bytes in the place of some.
fn changed(server: &str, from: &'static [u8], to: &'static [u8]) -> u16 {
    assert_eq!(from.len(), to.len());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = server.to_owned();
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(&server).unwrap();
            let (mut there, mut back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut there, &mut &far);
                let _ = far.shutdown(Shutdown::Write);
            });
            std::thread::spawn(move || pass_changed(&mut back, near, from, to));
        }
    });
    port
}

fn pass_changed(from: &mut TcpStream, mut to: TcpStream, old: &[u8], new: &[u8]) {
    let mut bytes = [0; 64 << 10];
    // One PDU fits into one segment of loopback, so that nothing to be changed lies in two pieces.
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        let piece = &mut bytes[..read];
        let places: Vec<_> = piece.windows(old.len()).enumerate().collect();
        let places: Vec<_> =
            places.iter().filter(|(_, part)| *part == old).map(|it| it.0).collect();
        for place in places {
            piece[place..place + new.len()].copy_from_slice(new);
        }
        if to.write_all(piece).is_err() {
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// ESC begins the commands of a terminal, BEL sounds, CR writes over what stands there, and C1's CSI is one more way.
#[test]
fn control_characters_of_a_server_do_not_reach_the_terminal() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let serve = "exec \"$0\" serve --listen 127.0.0.1:0 --volume disk=file:disk.img,size=1M,serial=ABCDEFGHIJ";
    let server = Running::start(&mut shell(home, serve));
    let uri = says(&server, "ready ").strip_prefix("ready ").unwrap().to_owned();
    let portal = uri.split('/').nth(2).unwrap();
    let target = uri.split('/').nth(3).unwrap();
    let changes: [(&[u8], &[u8], &str); 4] = [
        (b"ABCDEFGHIJ", b"\x1b[31mEV\x07IL", "[31mEV"),
        (b"LONGHAUL", b"\x1b]0;no\x07\r", "]0;no"),
        (b"longhaul:disk", b"longhaul:\x1b[2m", "\\u{1b}[2m"),
        (b"TargetAddress", b"Target\x1b[1mess", "sent a list of targets that cannot be read"),
    ];
    for (old, new, shown) in changes {
        let way = changed(portal, old, new);
        let uri = format!("iscsi://127.0.0.1:{way}/{target}/0");
        let all = [
            format!("info {uri}"),
            format!("info --json {uri}"),
            format!("discover 127.0.0.1:{way}"),
        ];
        let all = all.map(|words| run(&shell(home, &format!("\"$0\" {words}"))).0);
        assert!(all.iter().any(|said| said.contains(shown)), "{shown}: {all:?}");
        for said in all {
            let commands = said.chars().filter(|char| char.is_control() && *char != '\n');
            assert_eq!(commands.count(), 0, "{said:?}");
        }
    }
    assert!(server.stop().success());
}

/// Its identity is on no disk but where it was read from.
#[test]
fn private_key_of_a_server_is_locked_in_memory() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    done(home, "\"$0\" identity new id");
    let locked = |options: &str| {
        let serve =
            format!("exec \"$0\" serve --listen 127.0.0.1:0 --volume t=memory:1M {options}");
        let server = Running::start(&mut shell(home, &serve));
        says(&server, "ready ");
        let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        assert!(server.stop().success());
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    assert_eq!(locked(""), 0, "there is no secret");
    assert!(locked("--identity id") > 0);
}

/// Files of /proc of a process that leaves no core dump are root's, whoever runs it (proc(5)).
#[test]
fn no_other_process_of_its_user_reads_the_memory_of_a_server() {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = home.path().join("longhaul");
    fs::copy(LONGHAUL, &program).unwrap();
    let serve = format!(
        "ulimit -c unlimited; exec setpriv --reuid 65534 --clear-groups {} serve --listen 127.0.0.1:0 \
         --volume t=memory:1M --state {}",
        program.display(),
        home.path().join("own").display()
    );
    let server = Running::start(&mut shell(home.path(), &serve));
    says(&server, "ready ");
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    assert!(status.lines().any(|line| line.starts_with("Uid:\t65534")), "{status}");
    assert_eq!(fs::metadata(format!("/proc/{}/mem", server.pid())).unwrap().uid(), 0);
    let started = Instant::now();
    server.signal(rustix::process::Signal::ABORT);
    while fs::metadata(format!("/proc/{}/exe", server.pid())).is_ok() {
        assert!(started.elapsed() < PATIENCE, "it does not end");
    }
    assert!(fs::read_dir(home.path()).unwrap().flatten().all(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        !name.starts_with("core")
    }));
}
