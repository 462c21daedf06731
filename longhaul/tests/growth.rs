//! A volume that grows while it is attached, and a connection that is lost after that.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

mod common;
#[path = "common/port.rs"]
mod port;

use common::{LONGHAUL, Running, run};
use port::Port;

const MIB: u64 = 1 << 20;

/// A way to a server whose connections can be cut.
struct Wire {
    address: SocketAddr,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Wire {
    fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sockets = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&sockets);
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let both = [(&client, &server), (&server, &client)];
                for (from, to) in
                    both.map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap()))
                {
                    thread::spawn(move || pass(from, to));
                }
                kept.lock().unwrap().extend([client, server]);
            }
        });
        Self { address, sockets }
    }

    fn cut(&self) {
        for socket in self.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

/// The least of an NBD client: one request at a time.
struct Nbd(UnixStream);

impl Nbd {
    /// Its export must have this size.
    fn connect(path: &std::path::Path, size: u64) -> Self {
        let mut socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(common::PATIENCE)).unwrap();
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting).unwrap();
        // Fixed newstyle without zeroes, then NBD_OPT_EXPORT_NAME without a name.
        socket.write_all(&[0, 0, 0, 3]).unwrap();
        socket.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        let mut export = [0; 10];
        socket.read_exact(&mut export).unwrap();
        assert_eq!(export[..8], size.to_be_bytes());
        Self(socket)
    }

    fn ask(&mut self, command: u16, at: u64, len: u32, data: &[u8]) {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend([0, 0]);
        request.extend(command.to_be_bytes());
        request.extend([7; 8]);
        request.extend(at.to_be_bytes());
        request.extend(len.to_be_bytes());
        request.extend(data);
        self.0.write_all(&request).unwrap();
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "NBD command {command}");
    }

    fn read(&mut self, at: u64, len: u32) -> Vec<u8> {
        self.ask(0, at, len, &[]);
        let mut data = vec![0; len as usize];
        self.0.read_exact(&mut data).unwrap();
        data
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        self.ask(1, at, data.len() as u32, data);
    }

    fn flush(&mut self) {
        self.ask(3, 0, 0, &[]);
    }
}

/// The next line of a program that holds `text`.
fn says(program: &Running, text: &str) -> String {
    let mut said = String::new();
    loop {
        let line = program.line().unwrap_or_else(|| panic!("it never says {text:?}, but: {said}"));
        if line.contains(text) {
            return line;
        }
        said.push_str(&line);
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec 2>&1\nexec \"$0\" {script}"), LONGHAUL]);
    command
}

#[test]
fn attached_volume_that_grows_keeps_what_was_not_flushed_when_its_connection_is_lost() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    fs::File::create(path("disk.img")).unwrap().set_len(MIB).unwrap();
    let config = "listen = [\"127.0.0.1:0\"]\n[volumes.disk]\nuri = \"file:disk.img\"\n";
    fs::write(path("longhaul.toml"), config).unwrap();
    let server = Running::start(shell("serve --config longhaul.toml").current_dir(&home));
    let ready = says(&server, "ready iscsi://");
    let (portal, rest) = ready["ready iscsi://".len()..].split_once('/').unwrap();
    let wire = Wire::new(portal.parse().unwrap());
    let attach = format!("attach iscsi://{}/{rest} --nbd disk.sock", wire.address);
    let here = |script: &str| {
        let mut command = shell(script);
        command.current_dir(&home).env("RUNTIME_DIRECTORY", path("run"));
        command
    };
    let attached = Running::start(&mut here(&attach));
    says(&attached, "ready ");

    let mut disk = Nbd::connect(&path("disk.sock"), MIB);
    let noise: Vec<u8> = (0..MIB / 2).map(|at| (at * 7 + at / 251) as u8 | 1).collect();
    disk.write(4096, &noise);
    fs::OpenOptions::new().write(true).open(path("disk.img")).unwrap().set_len(2 * MIB).unwrap();
    server.signal(Signal::HUP);
    assert!(says(&server, "configuration applied").contains("grown disk"));
    disk.write(0, &noise[..4096]);
    wire.cut();

    // Both ways, and the last block that there was at first.
    assert!(disk.read(4096, noise.len() as u32) == noise);
    disk.write(MIB - 512, &[9; 512]);
    disk.flush();
    let said = says(&attached, "has grown");
    assert!(said.contains("the rest is used when it is opened again"), "{said}");
    let (said, _) = run(&here("status"));
    assert!(said.contains("connected; the volume has grown by 1M"), "{said}");
    let there = fs::read(path("disk.img")).unwrap();
    assert_eq!(there.len() as u64, 2 * MIB);
    assert!(there[..4096] == noise[..4096] && there[4096..4096 + noise.len()] == noise);
    assert!(there[MIB as usize - 512..MIB as usize] == [9; 512]);
    drop(disk);
    assert!(attached.stop().success());
    assert!(server.stop().success());
}

/// Starts a server of a volume, and says what its URI is.
fn serve(home: &tempfile::TempDir, port: u16, uri: &str) -> (Running, String) {
    let config = format!("listen = [\"127.0.0.1:{port}\"]\n[volumes.disk]\nuri = \"{uri}\"\n");
    let name = if port == 0 { "gateway.toml" } else { "upstream.toml" };
    fs::write(home.path().join(name), config).unwrap();
    let server = Running::start(shell(&format!("serve --config {name}")).current_dir(home));
    let ready = says(&server, "ready iscsi://");
    (server, ready["ready ".len()..].to_owned())
}

/// A server that offers `disk.img` of its directory, and another of what it offers, by a wire that can be cut.
struct Gateway {
    home: tempfile::TempDir,
    port: Port,
    upstream: Running,
    wire: Wire,
    gateway: Running,
    /// Where the gateway offers it.
    uri: String,
}

impl Gateway {
    fn new(size: u64) -> Self {
        let (home, port) = (tempfile::tempdir().unwrap(), Port::reserve());
        fs::File::create(home.path().join("disk.img")).unwrap().set_len(size).unwrap();
        let (upstream, uri) = serve(&home, port.number, "file:disk.img\"\nserial = \"its own");
        let (portal, rest) = uri["iscsi://".len()..].split_once('/').unwrap();
        let wire = Wire::new(portal.parse().unwrap());
        let (gateway, uri) = serve(&home, 0, &format!("iscsi://{}/{rest}", wire.address));
        Self { home, port, upstream, wire, gateway, uri }
    }

    /// The file is that long, and its server knows it.
    fn grow(&self, size: u64) {
        let path = self.home.path().join("disk.img");
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(size).unwrap();
        self.upstream.signal(Signal::HUP);
        assert!(says(&self.upstream, "configuration applied").contains("grown disk"));
    }

    /// What a reload of the gateway has changed.
    fn reload(&self) -> String {
        self.gateway.signal(Signal::HUP);
        says(&self.gateway, "configuration applied")
    }

    fn size(&self) -> u64 {
        let (said, succeeded) = run(&shell(&format!("info --json {}", self.uri)));
        assert!(succeeded.success(), "{said}");
        let from = said.find('{').unwrap();
        let info: serde_json::Value = serde_json::from_str(&said[from..]).unwrap();
        info["size"].as_u64().unwrap()
    }

    /// Copies a file of its directory to the gateway.
    fn copy(&self, name: &str) -> (String, ExitStatus) {
        let script = format!("copy {name} {} --force", self.uri);
        run(shell(&script).current_dir(&self.home))
    }
}

#[test]
fn a_gateway_offers_what_its_target_has_grown_by_once_it_is_reloaded() {
    let there = Gateway::new(MIB);
    assert!(there.reload().contains("nothing to tell sessions"));
    there.grow(2 * MIB);
    assert_eq!(there.size(), MIB, "sessions are not told before");
    assert!(there.reload().contains("grown disk"));
    assert_eq!(there.size(), 2 * MIB);

    // Also after the connection was lost.
    there.wire.cut();
    let noise: Vec<u8> = (0..2 * MIB).map(|at| (at * 7 + at / 251) as u8 | 1).collect();
    fs::write(there.home.path().join("noise"), &noise).unwrap();
    let (said, copied) = there.copy("noise");
    assert!(copied.success(), "{said}");
    assert!(fs::read(there.home.path().join("disk.img")).unwrap() == noise);
    assert!(there.reload().contains("nothing to tell sessions"));
    assert!(there.gateway.stop().success());
    assert!(there.upstream.stop().success());
}

#[test]
fn a_gateway_whose_target_is_out_of_reach_or_has_shrunk_is_reloaded_without_growth() {
    let there = Gateway::new(MIB);
    there.grow(2 * MIB);
    assert!(there.reload().contains("grown disk"));
    let Gateway { home, port, upstream, gateway, wire: _wire, .. } = there;
    assert!(upstream.stop().success());
    gateway.signal(Signal::HUP);
    assert!(says(&gateway, "configuration applied").contains("nothing to tell sessions"));

    // A file that has its first size again takes its place.
    let path = home.path().join("disk.img");
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(MIB).unwrap();
    let (upstream, _) =
        serve(&home, port.number, "file:disk.img\"\nserial = \"its own\"\nsize = \"1M");
    says(&gateway, "its size has changed");
    gateway.signal(Signal::KILL);
    assert!(upstream.stop().success());
}

/// Nobody waits for it to end once the target of a volume that has grown is gone.
#[test]
fn a_gateway_of_a_volume_that_has_grown_ends_though_its_target_is_gone() {
    let there = Gateway::new(MIB);
    there.grow(2 * MIB);
    assert!(there.reload().contains("grown disk"));
    assert_eq!(there.size(), 2 * MIB);
    let Gateway { home: _home, upstream, gateway, wire, .. } = there;
    assert!(upstream.stop().success());
    wire.cut();
    says(&gateway, "requests wait");
    assert!(gateway.stop().success());
}

/// Neither does it wait for a target that does not say how large its volume is.
#[test]
fn a_gateway_that_is_told_to_end_asks_no_target_any_more_for_its_size() {
    let there = Gateway::new(MIB);
    let Gateway { home: _home, upstream, gateway, wire: _wire, .. } = there;
    upstream.signal(Signal::STOP);
    gateway.signal(Signal::HUP);
    // By then it asks.
    thread::sleep(Duration::from_secs(1));
    gateway.signal(Signal::TERM);
    let mut said = String::new();
    while let Some(line) = gateway.line() {
        said.push_str(&line);
    }
    assert!(!said.contains("how large") && !said.contains("configuration applied"), "{said}");
    upstream.signal(Signal::KILL);
}
