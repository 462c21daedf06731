//! Sealed sessions on the wire, between two programs, through someone who means harm.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

mod common;

use common::{LONGHAUL, Running, run};

const BHS: usize = 48;
const TAG: usize = 16;

/// Bytes of the volume, and of what is copied to it.
const SIZE: usize = 2 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// What is done to the stream that goes one way.
#[derive(Clone, Copy, Debug)]
enum Tampering {
    None,
    /// During the login, text becomes other text.
    Replace(&'static str, &'static str),
    /// A bit of a byte of the login is flipped.
    FlipLogin(usize),
    /// A bit of a byte, counted from the end of the login, is flipped.
    Flip(usize),
    /// Of the PDUs after the login this one comes twice.
    Repeat(usize),
    /// It does not come.
    Drop(usize),
    /// It comes after the one that follows it.
    Swap(usize),
    /// The connection ends in the middle of it.
    Truncate(usize),
    /// Something of its size comes before it.
    Insert(usize),
}

/// One direction of a connection, PDU by PDU.
struct Stream {
    from: TcpStream,
    to: TcpStream,
    tampering: Tampering,
    /// The length of a sealed PDU can be seen, as its header is not enciphered. Where it cannot, whoever
    /// knows the program can guess that the first ones are all header.
    readable: bool,
}

impl Stream {
    fn run(mut self) {
        // However it ends, both ends learn of it.
        let _ = self.login().and_then(|()| self.session());
        let _ = self.to.shutdown(Shutdown::Both);
        let _ = self.from.shutdown(Shutdown::Both);
    }

    /// Passes the login on; the last PDU of either side is known by its flags (RFC 7143, 11.12, 11.13).
    fn login(&mut self) -> io::Result<()> {
        let mut passed = 0;
        loop {
            let mut pdu = self.read(BHS)?;
            let len = data_len(&pdu);
            pdu.extend(self.read(len + (len.wrapping_neg() & 3))?);
            let last = pdu[0] & 0x1f == 3 && pdu[1] & 0x83 == 0x83 && pdu[36] == 0;
            if let Tampering::Replace(from, to) = self.tampering {
                replace(&mut pdu, from, to);
            }
            if let Tampering::FlipLogin(at) = self.tampering
                && let Some(byte) = at.checked_sub(passed).and_then(|at| pdu.get_mut(at))
            {
                *byte ^= 0x10;
            }
            passed += pdu.len();
            self.to.write_all(&pdu)?;
            if last {
                return Ok(());
            }
        }
    }

    fn session(&mut self) -> io::Result<()> {
        if let Tampering::Flip(at) = self.tampering {
            // As it comes, since the one side may wait for the other.
            io::copy(&mut (&mut self.from).take(at as u64), &mut self.to)?;
            let byte = self.read(1)?;
            self.to.write_all(&[byte[0] ^ 0x10])?;
        } else {
            self.harm_pdus()?;
        }
        io::copy(&mut self.from, &mut self.to).map(|_| ())
    }

    fn harm_pdus(&mut self) -> io::Result<()> {
        let (Tampering::Repeat(n)
        | Tampering::Drop(n)
        | Tampering::Swap(n)
        | Tampering::Truncate(n)
        | Tampering::Insert(n)) = self.tampering
        else {
            return Ok(());
        };
        for _ in 0..n {
            let pdu = self.sealed_pdu()?;
            self.to.write_all(&pdu)?;
        }
        let pdu = self.sealed_pdu()?;
        match self.tampering {
            Tampering::Repeat(_) => self.to.write_all(&[&pdu[..], &pdu].concat()),
            Tampering::Swap(_) => {
                let next = self.sealed_pdu()?;
                self.to.write_all(&[next, pdu].concat())
            }
            Tampering::Truncate(_) => {
                self.to.write_all(&pdu[..pdu.len() / 2])?;
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            Tampering::Insert(_) => self.to.write_all(&[vec![0x20; pdu.len()], pdu].concat()),
            _ => Ok(()),
        }
    }

    fn sealed_pdu(&mut self) -> io::Result<Vec<u8>> {
        let mut pdu = self.read(BHS + TAG)?;
        let len = data_len(&pdu) + 4 * usize::from(pdu[4]);
        if self.readable && len > 0 {
            pdu.extend(self.read(len + TAG)?);
        }
        Ok(pdu)
    }

    fn read(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.from.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn data_len(bhs: &[u8]) -> usize {
    u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize
}

fn replace(pdu: &mut [u8], from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    if let Some(at) = pdu.windows(from.len()).position(|window| window == from.as_bytes()) {
        pdu[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
}

/// Someone between a client and the server, who does harm to the first `harmed` connections one way.
fn between(
    server: SocketAddr,
    (way, tampering): (Way, Tampering),
    readable: bool,
    harmed: usize,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in 0.. {
            let Ok((client, _)) = listener.accept() else { return };
            let Ok(upstream) = TcpStream::connect(server) else { return };
            let harmed = connection < harmed;
            let tampering =
                |direction| if harmed && direction == way { tampering } else { Tampering::None };
            let up =
                (client.try_clone().unwrap(), upstream.try_clone().unwrap(), tampering(Way::Up));
            for (from, to, tampering) in [up, (upstream, client, tampering(Way::Down))] {
                thread::spawn(move || Stream { from, to, tampering, readable }.run());
            }
        }
    });
    address
}

/// A server with one volume in a file, and a client it knows.
struct Fixture {
    dir: tempfile::TempDir,
    server: Running,
    address: SocketAddr,
    /// What follows the address in the volume's URI.
    rest: String,
    content: Vec<u8>,
}

impl Fixture {
    fn new() -> Self {
        Self::with_client(None)
    }

    /// A server that knows this client, or one of its own.
    fn with_client(known: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let key = |name: &str| {
            let mut new = Command::new(LONGHAUL);
            let (printed, status) = run(new.args(["identity", "new"]).arg(path(name)));
            assert!(status.success(), "{printed}");
            printed.trim().to_owned()
        };
        key("server");
        let own = key("client");
        let client = known.unwrap_or(&own);
        let content: Vec<u8> = (0..SIZE).map(|at| ((at * 31) ^ (at >> 9)) as u8 | 1).collect();
        fs::write(path("in.img"), &content).unwrap();
        let volume = format!("v=file:{},size={SIZE}", path("v.img").display());
        let serve = format!(
            "exec {LONGHAUL} --log info serve --volume {volume} --listen 127.0.0.1:0 \
             --identity {} --client-key {client} 2>&1",
            path("server").display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &serve]).env("STATE_DIRECTORY", path("state"));
        let server = Running::start(&mut command);
        let uri = loop {
            let line = server.line().expect("the server is ready");
            if let Some(uri) = line.strip_prefix("ready iscsi://") {
                break uri.to_owned();
            }
        };
        let (address, rest) = uri.split_once('/').unwrap();
        let (address, rest) = (address.parse().unwrap(), rest.to_owned());
        Self { dir, server, address, rest, content }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A client's command through `portal`; what it said, and whether it succeeded.
    fn client(&self, portal: SocketAddr, protection: &str, command: &[&str]) -> (String, bool) {
        let uri = format!("iscsi://{portal}/{}", self.rest);
        let arguments =
            command.iter().map(|&argument| if argument == "URI" { &*uri } else { argument });
        let mut client = Command::new(LONGHAUL);
        client.current_dir(&self.dir).args(arguments);
        client.args(["--identity", "client", "--protection", protection]);
        let (said, status) = run(&client);
        (said, status.success())
    }

    /// What the server says of the end of the next session, or of a login that failed.
    fn verdict(&self) -> String {
        loop {
            let line = self.server.line().expect("the server says how the session ended");
            let ends = ["session ended", "session broken", "login failed"];
            if ends.iter().any(|end| line.contains(end)) {
                return line;
            }
        }
    }

    /// Every block is as it was, all zeroes, or as it was meant to be.
    fn check_volume(&self, what: &str) {
        check(&self.path("v.img"), &self.content, what);
    }
}

fn check(path: &Path, content: &[u8], what: &str) {
    let found = fs::read(path).unwrap();
    for (block, meant) in found.chunks(512).zip(content.chunks(512)) {
        assert!(block == meant || block.iter().all(|&byte| byte == 0), "{what}: wrong data");
    }
}

/// Each row: one way, what is done there, and what is said by the side that notices. It is the side the
/// harmed stream leads to; where it is the server, the client learns that the connection is closed.
#[test]
fn attacker_gets_nothing_but_the_end_of_the_connection() {
    use Tampering::{Drop, Flip, Insert, Repeat, Replace, Swap, Truncate};
    let (header, first) = ("the header of sealed PDU", "the first sealed PDU does not open");
    let (data, closed) = ("the data of sealed PDU", "closed");
    let (gmac, gcm) = ("integrity", "encrypt");
    let rows: &[(&str, Way, Tampering, &str)] = &[
        (gmac, Way::Up, Repeat(3), header),
        (gmac, Way::Up, Drop(3), header),
        (gmac, Way::Up, Swap(3), header),
        (gmac, Way::Up, Insert(3), header),
        (gmac, Way::Up, Truncate(3), closed),
        (gmac, Way::Down, Repeat(3), header),
        (gmac, Way::Down, Drop(3), header),
        (gmac, Way::Down, Swap(1), header),
        (gmac, Way::Down, Insert(3), header),
        (gmac, Way::Down, Truncate(3), closed),
        (gmac, Way::Up, Flip(20), first),
        (gmac, Way::Down, Flip(20), first),
        (gcm, Way::Up, Repeat(1), header),
        (gcm, Way::Up, Drop(1), header),
        (gcm, Way::Up, Swap(1), header),
        (gcm, Way::Up, Insert(1), header),
        (gcm, Way::Up, Truncate(1), closed),
        (gcm, Way::Down, Repeat(0), data),
        (gcm, Way::Down, Insert(0), first),
        (gcm, Way::Down, Truncate(0), closed),
        (gcm, Way::Up, Flip(0), first),
        (gcm, Way::Up, Flip(63), first),
        (gcm, Way::Up, Flip(64), header),
        (gcm, Way::Up, Flip(300_000), data),
        (gcm, Way::Down, Flip(5), first),
        (gcm, Way::Down, Flip(70), data),
        (gcm, Way::Down, Flip(1_000_000), data),
        (gcm, Way::Up, Replace("MaxBurstLength=16777215", "MaxBurstLength=16777214"), first),
        (gcm, Way::Up, Replace("InitialR2T=No", "InitialR2T=no"), first),
        // The client's first PDU does not open then.
        (gcm, Way::Down, Replace("DataSegmentLength=1048576", "DataSegmentLength=1048572"), closed),
    ];
    for &(protection, way, tampering, expected) in rows {
        let what = format!("{protection} {way:?} {tampering:?}");
        let fixture = Fixture::new();
        let portal = between(fixture.address, (way, tampering), protection == "integrity", 1);
        let copy = ["copy", "in.img", "URI", "--verify"];
        let (said, success) = fixture.client(portal, protection, &copy);
        let noticed = if way == Way::Up { fixture.verdict() } else { said };
        // Who was sending when it was closed finds it broken instead.
        let broken = ["Broken pipe", "Connection reset"].iter().any(|why| noticed.contains(why));
        let found = noticed.contains(expected) || (expected == closed && broken);
        assert!(found, "{what}: {noticed}");
        fixture.check_volume(&what);
        // The client may have gone on over a connection nobody harmed; then all of it is there.
        let written = fs::read(fixture.path("v.img")).unwrap();
        assert!(!success || written == fixture.content, "{what}: done, and something is missing");
        assert!(fixture.server.stop().success());
    }
}

/// What is read through harm is right, or not there; and it is told what happened.
#[test]
fn nothing_wrong_is_read() {
    let fixture = Fixture::new();
    let (said, success) = fixture.client(fixture.address, "encrypt", &["copy", "in.img", "URI"]);
    assert!(success, "{said}");
    for at in [500, 70_000, 1_500_000] {
        let what = format!("flip {at}");
        let portal = between(fixture.address, (Way::Down, Tampering::Flip(at)), false, 1);
        let out = format!("out{at}.img");
        let (said, success) = fixture.client(portal, "encrypt", &["copy", "URI", &out]);
        assert!(said.contains("sealed PDU"), "{what}: {said}");
        let read = fs::read(fixture.path(&out)).unwrap_or_default();
        assert!(!success || read == fixture.content, "{what}: done, and something is missing");
        if !read.is_empty() {
            check(&fixture.path(&out), &fixture.content, &what);
        }
    }
    assert!(fixture.server.stop().success());
}

/// A few places, all over, the same in every run.
fn places(count: usize, below: usize) -> impl Iterator<Item = usize> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    (0..count).map(move |_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        (word % below as u64) as usize
    })
}

/// Wherever a bit is flipped after the login, that is the end, and what was asked for did not happen.
#[test]
fn a_bit_flipped_anywhere_in_a_session_ends_it() {
    let fixture = Fixture::new();
    let copy = ["copy", "in.img", "URI", "--reconnect-for", "0s"];
    let (said, success) = fixture.client(fixture.address, "encrypt", &copy);
    assert!(success, "{said}");
    for protection in ["integrity", "encrypt"] {
        for (number, at) in places(12, SIZE - 4096).enumerate() {
            let (way, copy) = match number % 2 {
                0 => (Way::Up, ["copy", "in.img", "URI", "--reconnect-for", "0s"]),
                _ => (Way::Down, ["copy", "URI", "back.img", "--reconnect-for", "0s"]),
            };
            let what = format!("{protection} {way:?} {at}");
            let _ = fs::remove_file(fixture.path("back.img"));
            let readable = protection == "integrity";
            let portal = between(fixture.address, (way, Tampering::Flip(at)), readable, usize::MAX);
            let (said, success) = fixture.client(portal, protection, &copy);
            assert!(!success, "{what}: {said}");
            if way == Way::Down {
                assert!(said.contains("sealed PDU"), "{what}: {said}");
            }
            assert!(fs::read(fixture.path("v.img")).unwrap() == fixture.content, "{what}: changed");
            if fixture.path("back.img").exists() {
                check(&fixture.path("back.img"), &fixture.content, &what);
            }
        }
    }
    assert!(fixture.server.stop().success());
}

/// No bit of a login can be flipped either: all of it enters the keys. The lengths of its PDUs are left
/// alone here, as a peer waits for what a longer one has announced, as long as a login may take.
#[test]
fn a_bit_flipped_anywhere_in_a_login_ends_it() {
    let fixture = Fixture::new();
    for way in [Way::Up, Way::Down] {
        for at in (0..220).step_by(11).filter(|at| !(4..8).contains(at)) {
            let portal =
                between(fixture.address, (way, Tampering::FlipLogin(at)), false, usize::MAX);
            let copy = ["copy", "in.img", "URI", "--reconnect-for", "0s"];
            let (said, success) = fixture.client(portal, "encrypt", &copy);
            assert!(!success, "{way:?} {at}: {said}");
            let error = said.lines().find(|line| line.starts_with("longhaul: "));
            assert!(error.is_some(), "{way:?} {at}: {said}");
        }
    }
    let written = fs::read(fixture.path("v.img")).unwrap();
    assert!(written.iter().all(|&byte| byte == 0), "something was written");
    assert!(fixture.server.stop().success());
}

/// Whoever has recorded a session in which something was written cannot have it written again.
#[test]
fn a_recorded_session_is_not_taken_again() {
    let fixture = Fixture::new();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let portal = watched(fixture.address, Arc::clone(&seen));
    let (said, success) = fixture.client(portal, "encrypt", &["copy", "in.img", "URI"]);
    assert!(success, "{said}");
    assert!(fixture.verdict().contains("logged out"));
    fs::write(fixture.path("later.img"), vec![0x77; SIZE]).unwrap();
    let (said, success) = fixture.client(fixture.address, "encrypt", &["copy", "later.img", "URI"]);
    assert!(success, "{said}");
    assert!(fixture.verdict().contains("logged out"));

    let recorded = seen.lock().unwrap().clone();
    assert!(recorded.len() > SIZE);
    let mut again = TcpStream::connect(fixture.address).unwrap();
    let mut answers = again.try_clone().unwrap();
    // The server hangs up in the middle of it.
    let _ = again.write_all(&recorded);
    let _ = again.shutdown(Shutdown::Write);
    let _ = io::copy(&mut answers, &mut io::sink());
    let verdict = fixture.verdict();
    assert!(verdict.contains("login failed"), "{verdict}");
    assert!(fs::read(fixture.path("v.img")).unwrap().iter().all(|&byte| byte == 0x77));
    assert!(fixture.server.stop().success());
}

/// The way leads to another server, which would like to have the client's data.
#[test]
fn a_wrong_target_gets_nothing() {
    let fixture = Fixture::new();
    let (shown, _) =
        run(Command::new(LONGHAUL).args(["identity", "show"]).arg(fixture.path("client")));
    let impostor = Fixture::with_client(Some(shown.trim()));
    let (said, success) = fixture.client(impostor.address, "encrypt", &["copy", "in.img", "URI"]);
    assert!(!success && said.contains("is not the one whose key was pinned"), "{said}");
    assert!(impostor.verdict().contains("login failed"));
    let written = fs::read(impostor.path("v.img")).unwrap();
    assert!(written.iter().all(|&byte| byte == 0), "something was written");
    assert!(impostor.server.stop().success());
    assert!(fixture.server.stop().success());
}

/// A client that has the target's key, and is not known there.
#[test]
fn an_unknown_client_gets_nothing() {
    let fixture = Fixture::new();
    fs::remove_file(fixture.path("client")).unwrap();
    let (said, status) =
        run(Command::new(LONGHAUL).args(["identity", "new"]).arg(fixture.path("client")));
    assert!(status.success(), "{said}");
    for protection in ["integrity", "encrypt"] {
        let (said, success) =
            fixture.client(fixture.address, protection, &["copy", "in.img", "URI"]);
        assert!(!success && said.contains("does not list this client's key"), "{said}");
        assert!(fixture.verdict().contains("login failed"));
    }
    let written = fs::read(fixture.path("v.img")).unwrap();
    assert!(written.iter().all(|&byte| byte == 0), "something was written");
    assert!(fixture.server.stop().success());
}

/// A login that is changed so that it would lead to less does not lead to anything.
#[test]
fn nobody_can_make_it_less() {
    let fixture = Fixture::new();
    let (method, none) = ("AuthMethod=Z-dev.longhaul.noise", "AuthMethod=None,None,None,None.");
    let (seal, crc) = ("Digest=Y-dev.longhaul.aes256gcm", "Digest=CRC32C,None,None,None,No");
    let rows = [
        (Way::Up, Tampering::Replace(method, none)),
        (Way::Down, Tampering::Replace(method, none)),
        (Way::Up, Tampering::Replace(seal, crc)),
        (Way::Down, Tampering::Replace(seal, crc)),
        (Way::Up, Tampering::Replace("aes256gcm", "gmac,None")),
        (Way::Up, Tampering::Replace("X-dev.longhaul.proof", "X-dev.longhaul.prooF")),
        (Way::Up, Tampering::Replace("X-dev.longhaul.noise", "X-dev.longhaul.noisE")),
        (Way::Down, Tampering::Replace("X-dev.longhaul.noise", "X-dev.longhaul.noisE")),
    ];
    for (way, tampering) in rows {
        let portal = between(fixture.address, (way, tampering), false, usize::MAX);
        let (said, success) = fixture.client(portal, "encrypt", &["copy", "in.img", "URI"]);
        assert!(!success, "{way:?} {tampering:?}: {said}");
        assert!(said.starts_with("longhaul: "), "{said}");
        let written = fs::read(fixture.path("v.img")).unwrap();
        assert!(
            written.iter().all(|&byte| byte == 0),
            "{way:?} {tampering:?}: something was written"
        );
    }
    assert!(fixture.server.stop().success());
}

/// Two programs, nobody between: what an eavesdropper sees of the data.
#[test]
fn an_eavesdropper_sees_the_data_only_where_they_are_not_enciphered() {
    let fixture = Fixture::new();
    for (protection, readable) in [("integrity", true), ("encrypt", false)] {
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let portal = watched(fixture.address, Arc::clone(&seen));
        let (said, success) = fixture.client(portal, protection, &["copy", "in.img", "URI"]);
        assert!(success, "{said}");
        let seen = seen.lock().unwrap();
        assert!(seen.len() > SIZE, "{protection}: {} bytes went by", seen.len());
        let part = &fixture.content[100_000..100_032];
        let found = seen.windows(part.len()).any(|window| window == part);
        assert_eq!(found, readable, "{protection}");
    }
    assert!(fixture.server.stop().success());
}

/// A listener in front of the server that keeps what the client sends.
fn watched(server: SocketAddr, seen: Arc<std::sync::Mutex<Vec<u8>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut upstream = TcpStream::connect(server).unwrap();
        let (mut back, mut to) = (upstream.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || {
            let _ = io::copy(&mut back, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
        let mut buffer = vec![0; 64 << 10];
        while let Ok(len @ 1..) = client.read(&mut buffer) {
            seen.lock().unwrap().extend_from_slice(&buffer[..len]);
            if upstream.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _ = upstream.shutdown(Shutdown::Both);
    });
    address
}
