//! Units of one server that another passes on: what clients see of them is true, also when the connection between the servers is lost.

mod common;
#[path = "gateway/concurrent_commands.rs"]
mod concurrent_commands;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;
#[path = "common/port.rs"]
mod port;
#[path = "common/units.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod units;

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use common::{LONGHAUL, PATIENCE, Running, run};
use longhaul::{sealing, site_key};
use peer::Peer;
use port::Port;
use proto::iscsi::header::{
    BHS_LEN, Header, ScsiCommand, TaskFunction, TaskManagementRequest, TaskResponse,
};
use proto::scsi::Sense;
use proto::scsi::sense::{Additional, Key};
use rustix::process::Signal;
use tempfile::TempDir;
use units::{TARGET, serve_at};

const READY: &[u8] = &[0; 6];
const REWIND: &[u8] = &[0x01, 0, 0, 0, 0, 0];
const PREVENT: &[u8] = &[0x1E, 0, 0, 0, 1, 0];
const EJECT: &[u8] = &[0x1B, 0, 0, 0, 2, 0];
const RESERVED: u8 = 0x18;

/// A server of units, and a gateway that passes them on under the same names.
struct Site {
    /// The files of the server.
    there: TempDir,
    /// Those of the gateway and its clients.
    home: TempDir,
    port: Port,
    volumes: Vec<String>,
    server: Option<Running>,
    gateway: Running,
    portal: SocketAddr,
}

impl Site {
    /// Each of `passed` is a target of the server and a unit of that.
    fn new(there: TempDir, volumes: &[&str], passed: &[&str]) -> Self {
        let (port, home) = (Port::reserve(), tempfile::tempdir().unwrap());
        let listen = format!("127.0.0.1:{}", port.number);
        let (server, upstream) = serve_at(there.path(), &listen, volumes);
        let passed: Vec<_> = passed
            .iter()
            .map(|unit| {
                let (name, rest) = unit.split_once('/').unwrap();
                let (lun, options) = rest.split_at(1);
                let given = if lun == "0" { name.to_owned() } else { format!("{name}{lun}") };
                format!("{given}=scsi:iscsi://{upstream}/{TARGET}{name}/{lun}{options}")
            })
            .collect();
        let passed: Vec<_> = passed.iter().map(String::as_str).collect();
        let (gateway, portal) = serve_at(home.path(), "127.0.0.1:0", &passed);
        let volumes = volumes.iter().map(|volume| (*volume).to_owned()).collect();
        Self { there, home, port, volumes, server: Some(server), gateway, portal }
    }

    fn uri(&self, name: &str) -> String {
        format!("iscsi://{}/{TARGET}{name}/0", self.portal)
    }

    /// What the program says to these words, and whether it was done.
    fn longhaul(&self, words: &[&str]) -> (String, bool) {
        let (said, status) = run(Command::new(LONGHAUL).args(words).current_dir(self.home.path()));
        (said, status.success())
    }

    fn done(&self, words: &[&str]) -> String {
        let (said, done) = self.longhaul(words);
        assert!(done, "{words:?}: {said}");
        said
    }

    fn refused(&self, words: &[&str]) -> String {
        let (said, done) = self.longhaul(words);
        assert!(!done, "{words:?}: {said}");
        said
    }

    /// An initiator that has been told of the power on.
    fn peer(&self, number: u8, name: &str) -> Peer {
        let initiator = format!("iqn.2001-04.com.example:{number}");
        let target = format!("{TARGET}{name}");
        let mut peer = Peer::log_in(self.portal, &initiator, number, &target);
        assert_eq!(peer.says(0), Some(Additional::POWER_ON_OR_RESET));
        peer
    }

    fn kill_server(&mut self) {
        self.server.take().unwrap().kill();
    }

    fn start_server(&mut self) {
        let volumes: Vec<_> = self.volumes.iter().map(String::as_str).collect();
        let listen = format!("127.0.0.1:{}", self.port.number);
        self.server = Some(serve_at(self.there.path(), &listen, &volumes).0);
    }

    fn stop(self) {
        assert!(self.gateway.stop().success());
        assert!(self.server.unwrap().stop().success());
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.home.path().join(name)).unwrap()
    }
}

/// So many bytes, each place another.
fn bytes(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// The data of a command of unit 0, or the sense data in their place.
fn ask(peer: &mut Peer, cdb: &[u8], data: &[u8], room: u32) -> Result<Vec<u8>, Sense> {
    match peer.run_on(0, cdb, data.to_vec(), room).expect("an answer") {
        (0, data) => Ok(data),
        (status, sense) => {
            Err(Sense::parse(&sense).unwrap_or_else(|| panic!("status {status:#x}")))
        }
    }
}

fn told(answer: Result<Vec<u8>, Sense>) -> Additional {
    answer.unwrap_err().additional
}

/// A directory with the cartridges A1 and B2, a disc, and room for others.
fn library() -> (TempDir, Vec<u8>) {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("tapes")).unwrap();
    for name in ["A1", "B2"] {
        let tape = File::create(home.path().join("tapes").join(name)).unwrap();
        tape.set_len(8 << 20).unwrap();
    }
    let disc = bytes(2048 * 700);
    fs::write(home.path().join("one.iso"), &disc).unwrap();
    (home, disc)
}

const UNITS: [&str; 4] = [
    "backup=tape:a.tape,size=16M",
    "library=changer:tapes,drives=1,slots=3",
    "movies=cdrom:one.iso",
    "disk=file:d.img,size=4M",
];

#[test]
fn units_of_every_type_are_used_through_a_gateway() {
    let (there, disc) = library();
    let passed = ["backup/0", "library/0", "library/1", "movies/0", "disk/0"];
    let site = Site::new(there, &UNITS, &passed);
    let uri = |name: &str| site.uri(name);
    for (name, kind) in [
        ("backup", "tape drive"),
        ("library", "media changer"),
        ("library1", "tape drive, empty"),
        ("movies", "optical drive"),
        ("disk", "disk"),
    ] {
        let said = site.done(&["info", &uri(name)]);
        assert!(said.contains(kind), "{name}: {said}");
        let url = uri(name);
        let (said, status) = run(Command::new("iscsi-inq").arg(&url));
        assert!(status.success() && said.contains("LONGHAUL"), "{said}");
    }
    let (said, status) =
        run(Command::new("iscsi-ls").args(["-s", &format!("iscsi://{}", site.portal)]));
    assert!(status.success() && said.contains(&format!("{TARGET}movies")), "{said}");
    // A tape: files of blocks of any length, and of one.
    let files = [bytes(700_001), bytes(10_240)];
    fs::write(site.home.path().join("a"), &files[0]).unwrap();
    fs::write(site.home.path().join("b"), &files[1]).unwrap();
    site.done(&["tape", "write", &uri("backup"), "a"]);
    site.done(&["tape", "write", &uri("backup"), "b", "--append", "--fixed", "512"]);
    site.done(&["tape", "read", &uri("backup"), "a.out", "--file", "0"]);
    site.done(&["tape", "read", &uri("backup"), "b.out", "--file", "1"]);
    assert!(site.read("a.out") == files[0] && site.read("b.out") == files[1]);
    // A disc.
    let said = site.done(&["cd", "toc", &uri("movies")]);
    assert!(said.contains("700 blocks from 0 on"), "{said}");
    site.done(&["cd", "read", &uri("movies"), "copy.iso"]);
    assert!(site.read("copy.iso") == disc);
    // A disk.
    fs::write(site.home.path().join("image"), bytes(4 << 20)).unwrap();
    site.done(&["copy", "file:image", &uri("disk")]);
    site.done(&["copy", &uri("disk"), "file:back.img"]);
    assert!(site.read("back.img") == bytes(4 << 20));
    moves_a_tape(&site);
    site.stop();
}

/// The changer puts a tape into the drive, which tells its own clients.
fn moves_a_tape(site: &Site) {
    let (mut changer, mut drive) = (site.peer(1, "library"), site.peer(1, "library1"));
    assert_eq!(told(ask(&mut drive, READY, &[], 0)), Additional::MEDIUM_NOT_PRESENT);
    // MOVE MEDIUM, from the first slot.
    let to_drive = [0xA5, 0, 0, 0, 0x04, 0x00, 0x01, 0x00, 0, 0, 0, 0];
    assert_eq!(ask(&mut changer, &to_drive, &[], 0), Ok(vec![]));
    let full = Additional::DESTINATION_ELEMENT_FULL;
    let again = [0xA5, 0, 0, 0, 0x04, 0x01, 0x01, 0x00, 0, 0, 0, 0];
    assert_eq!(told(ask(&mut changer, &again, &[], 0)), full);
    assert_eq!(told(ask(&mut drive, READY, &[], 0)), Additional::MEDIUM_MAY_HAVE_CHANGED);
    assert_eq!(ask(&mut drive, READY, &[], 0), Ok(vec![]));
    assert_eq!(ask(&mut drive, &[0x0A, 0, 0, 0, 6, 0], b"on A1!", 0), Ok(vec![]));
    assert_eq!(ask(&mut drive, REWIND, &[], 0), Ok(vec![]));
    // Twice as many bytes as the block has: ILI (SSC-4, 7.4).
    let short = drive.run_on(0, &[0x08, 0, 0, 0, 12, 0], vec![], 12).unwrap();
    assert_eq!(short.0, 2);
    let from_drive = [0xA5, 0, 0, 0, 0x01, 0x00, 0x04, 0x00, 0, 0, 0, 0];
    assert_eq!(ask(&mut changer, &from_drive, &[], 0), Ok(vec![]));
}

#[test]
fn administrator_is_told_what_is_passed_on_and_where_it_comes_from() {
    let (there, _) = library();
    let site = Site::new(there, &UNITS, &["backup/0", "library/1", "disk/0"]);
    let at = |name: &str, lun| {
        format!("scsi:iscsi://127.0.0.1:{}/{TARGET}{name}/{lun}", site.port.number)
    };
    let control = ["--control", "control.sock"];
    // An empty drive is asked for its medium as systems do.
    let mut drive = site.peer(1, "library1");
    assert_eq!(told(ask(&mut drive, READY, &[], 0)), Additional::MEDIUM_NOT_PRESENT);
    let said = site.done(&["status", control[0], control[1]]);
    for line in [
        format!("  unit 0, tape drive {}, connected\n  in flight 0, failed 0", at("backup", 0)),
        format!("  unit 0, tape drive {}, connected\n  in flight 0, failed 0", at("library", 1)),
        format!("  unit 0, disk {}, connected\n", at("disk", 0)),
    ] {
        assert!(said.contains(&line), "{line}: {said}");
    }
    let said = site.done(&["media", "list", control[0], control[1]]);
    let line = |name, source| {
        format!("{name}: tape drive {source}, passed through: its media are not managed here\n")
    };
    let lines = line("backup", at("backup", 0)) + &line("library1", at("library", 1));
    assert_eq!(said, lines);
    site.stop();
}

/// Units with one identity are paths to one disk to multipath programs, which write to whichever answers.
#[test]
fn gateway_and_server_of_one_name_show_two_units() {
    let (there, _) = library();
    let units = ["backup/0", "movies/0", "disk/0", "library/0"];
    let site = Site::new(there, &UNITS, &units);
    let server = SocketAddr::from(([127, 0, 0, 1], site.port.number));
    for unit in units {
        let target = format!("{TARGET}{}", unit.strip_suffix("/0").unwrap());
        let pages = [server, site.portal].map(|portal| {
            let initiator = "iqn.2001-04.com.example:1";
            let mut peer = Peer::log_in(portal, initiator, 1, &target);
            // INQUIRY: the serial number, and the designators.
            [0x80, 0x83].map(|page| ask(&mut peer, &[0x12, 1, page, 0, 255, 0], &[], 255).unwrap())
        });
        let [there, here] = &pages;
        assert!(there[0].len() > 4 && there[0] != here[0], "{unit}: {pages:?}");
        // The first two name the unit: a vendor's designator and an NAA.
        assert!(there[1].len() > 40 && there[1][..40] != here[1][..40], "{unit}: {pages:?}");
    }
    site.stop();
}

#[test]
fn client_that_may_only_read_writes_nothing() {
    let (there, _) = library();
    let site = Site::new(
        there,
        &UNITS,
        &["backup/0,read_only", "library/0,read_only", "disk/0,read_only"],
    );
    fs::write(site.home.path().join("in"), bytes(100_000)).unwrap();
    let said = site.refused(&["tape", "write", &site.uri("backup"), "in"]);
    assert!(said.contains("write-protected"), "{said}");
    let mut tape = site.peer(1, "backup");
    let refused = ask(&mut tape, &[0x0A, 0, 0, 0, 4, 0], &[7; 4], 0).unwrap_err();
    assert_eq!((refused.key, refused.additional), (Key::DataProtect, Additional::WRITE_PROTECTED));
    let mut changer = site.peer(1, "library");
    let to_drive = [0xA5, 0, 0, 0, 0x04, 0x00, 0x01, 0x00, 0, 0, 0, 0];
    let refused = ask(&mut changer, &to_drive, &[], 0);
    assert_eq!(told(refused), Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS);
    let mut disk = site.peer(1, "disk");
    let refused = ask(&mut disk, &[0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 512], 0);
    assert_eq!(told(refused), Additional::WRITE_PROTECTED);
    site.stop();
}

/// A client that writes what it is given to a tape.
struct Writer(Child);

impl Writer {
    fn start(site: &Site, words: &[&str]) -> Self {
        let mut command = Command::new(LONGHAUL);
        command.args(["tape", "write"]).args(words).current_dir(site.home.path());
        command.env("STATE_DIRECTORY", site.home.path().join(".writer"));
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(File::create(site.home.path().join("writer.log")).unwrap());
        Self(command.spawn().unwrap())
    }

    fn give(&mut self, site: &Site, data: &[u8]) {
        let given = self.0.stdin.as_mut().unwrap().write_all(data);
        given.unwrap_or_else(|why| {
            let said = String::from_utf8_lossy(&site.read("writer.log")).into_owned();
            panic!("{why}: {said}")
        });
    }

    fn end(mut self, site: &Site) {
        drop(self.0.stdin.take());
        let status = self.0.wait().unwrap();
        let said = String::from_utf8(site.read("writer.log")).unwrap();
        assert!(status.success(), "{said}");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the tape holds these bytes near its beginning.
fn wait_until_holds(tape: &Path, bytes: &[u8]) {
    let began = Instant::now();
    loop {
        let head = fs::read(tape).unwrap();
        if head[..256 << 10].windows(bytes.len()).any(|window| window == bytes) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "nothing is written to {}", tape.display());
    }
}

#[test]
fn server_behind_a_gateway_that_is_killed_in_mid_stream_costs_nothing() {
    let there = tempfile::tempdir().unwrap();
    let mut site = Site::new(there, &["backup=tape:a.tape,size=64M"], &["backup/0"]);
    let uri = site.uri("backup");
    let data = bytes(24 << 20);
    let tape = site.there.path().join("a.tape");
    let mut writer = Writer::start(&site, &[&uri, "--block", "30000", "--sync", "1M"]);
    for (number, piece) in data.chunks(8 << 20).enumerate() {
        let (first, rest) = piece.split_at(5 << 20);
        writer.give(&site, first);
        if number == 0 {
            wait_until_holds(&tape, &data[40_000..40_100]);
        }
        site.kill_server();
        site.start_server();
        writer.give(&site, rest);
    }
    writer.end(&site);
    site.done(&["tape", "read", &uri, "out"]);
    assert!(site.read("out") == data);
    // Nothing is on it twice.
    let there = site.there.path();
    assert!(site.gateway.stop().success());
    assert!(site.server.unwrap().stop().success());
    let (said, status) =
        run(Command::new(LONGHAUL).args(["tape", "info", "a.tape"]).current_dir(there));
    assert!(status.success() && said.contains("839 blocks, 1 file marks"), "{said}");
}

/// Passes PDUs on to a server.
struct Relay {
    address: SocketAddr,
    /// Once it is set the next response to a command is lost, and its connection.
    loses: Arc<AtomicBool>,
    /// The ISID of each login.
    isids: Arc<Mutex<Vec<[u8; 6]>>>,
}

impl Relay {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (loses, isids) = (Arc::default(), Arc::default());
        let (switch, logins) = (Arc::clone(&loses), Arc::clone(&isids));
        thread::spawn(move || relay(&listener, server, &switch, &logins));
        Self { address, loses, isids }
    }
}

fn relay(
    listener: &TcpListener,
    server: SocketAddr,
    loses: &AtomicBool,
    isids: &Mutex<Vec<[u8; 6]>>,
) {
    for client in listener.incoming() {
        let mut client = client.unwrap();
        let mut login = [0; BHS_LEN];
        // Whoever logs in may be killed before.
        let (Ok(()), Ok(mut server)) = (client.read_exact(&mut login), TcpStream::connect(server))
        else {
            continue;
        };
        isids.lock().unwrap().push(login[8..14].try_into().unwrap());
        server.write_all(&login).unwrap();
        let mut up = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || {
            let _ = io::copy(&mut up.0, &mut up.1);
            let _ = up.1.shutdown(Shutdown::Both);
        });
        let _ = pass_responses(&server, &client, loses);
        let _ = (server.shutdown(Shutdown::Both), client.shutdown(Shutdown::Both));
    }
}

/// The next PDU, without digests (RFC 7143, 11.2).
fn read_pdu(mut from: &TcpStream) -> io::Result<Vec<u8>> {
    let mut pdu = vec![0; BHS_LEN];
    from.read_exact(&mut pdu)?;
    let data = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]) as usize;
    pdu.resize(BHS_LEN + data.next_multiple_of(4), 0);
    from.read_exact(&mut pdu[BHS_LEN..])?;
    Ok(pdu)
}

fn pass_responses(from: &TcpStream, mut to: &TcpStream, loses: &AtomicBool) -> io::Result<()> {
    loop {
        let pdu = read_pdu(from)?;
        // SCSI Response (RFC 7143, 11.4).
        if pdu[0] & 0x3F == 0x21 && loses.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        to.write_all(&pdu)?;
    }
}

#[test]
fn command_whose_answer_is_lost_is_carried_out_once() {
    let (there, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (server, upstream) = serve_at(there.path(), "127.0.0.1:0", &["backup=tape:a.tape,size=4M"]);
    let relay = Relay::to(upstream);
    let volume = format!("backup=scsi:iscsi://{}/{TARGET}backup", relay.address);
    let (gateway, portal) = serve_at(home.path(), "127.0.0.1:0", &[&volume]);
    let mut peers = [1, 2].map(|number| {
        let name = format!("iqn.2001-04.com.example:{number}");
        let mut peer = Peer::log_in(portal, &name, number, &format!("{TARGET}backup"));
        assert_eq!(peer.says(0), Some(Additional::POWER_ON_OR_RESET));
        peer
    });
    let [first, second] = &mut peers;
    let (write, mark) = ([0x0A, 0, 0, 0, 3, 0], [0x10, 0, 0, 0, 1, 0]);
    assert_eq!(ask(first, &write, b"one", 0), Ok(vec![]));
    relay.loses.store(true, Ordering::Release);
    let lost = ask(first, &mark, &[], 0).unwrap_err();
    let expected = (Key::AbortedCommand, Additional::COMMUNICATION_FAILURE);
    assert_eq!((lost.key, lost.additional), expected);
    // What was sent before that was known is not carried out wherever the head is now.
    for peer in [&mut *first, second] {
        let refused = told(ask(peer, &write, b"two", 0));
        assert_eq!(refused, Additional::SEQUENTIAL_POSITIONING_ERROR);
    }
    for peer in [&mut *first, second] {
        assert_eq!(peer.says(0), Some(Additional::POWER_ON_OR_RESET));
        assert_eq!(peer.says(0), None);
    }
    // READ POSITION of the long form: a block and a mark.
    let position = ask(first, &[0x34, 6, 0, 0, 0, 0, 0, 0, 0, 0], &[], 32).unwrap();
    assert_eq!(
        (&position[8..16], &position[16..24]),
        (&[0, 0, 0, 0, 0, 0, 0, 2][..], &[0, 0, 0, 0, 0, 0, 0, 1][..])
    );
    assert_eq!(ask(first, &write, b"two", 0), Ok(vec![]));
    drop(peers);
    // The next process ends what this one may have under way, as each login has ended the session before it (RFC 7143, 6.3.5).
    gateway.kill();
    let (gateway, _) = serve_at(home.path(), "127.0.0.1:0", &[&volume]);
    assert!(gateway.stop().success() && server.stop().success());
    let isids = relay.isids.lock().unwrap();
    assert!(isids.len() >= 3 && isids.iter().all(|isid| *isid == isids[0]), "{isids:?}");
    let (said, status) =
        run(Command::new(LONGHAUL).args(["tape", "info", "a.tape"]).current_dir(there.path()));
    assert!(status.success() && said.contains("2 blocks, 1 file marks"), "{said}");
}

#[test]
fn every_client_is_told_once_that_the_unit_was_lost_and_the_medium_is_kept_in_again() {
    let (there, _) = library();
    let mut site = Site::new(there, &UNITS, &["movies/0"]);
    let mut peers = [1, 2].map(|number| site.peer(number, "movies"));
    assert_eq!(ask(&mut peers[0], PREVENT, &[], 0), Ok(vec![]));
    site.kill_server();
    site.start_server();
    for peer in &mut peers {
        assert_eq!(peer.says(0), Some(Additional::POWER_ON_OR_RESET));
        assert_eq!(peer.says(0), None);
    }
    // The new server knew nothing of it.
    let refused = told(ask(&mut peers[1], EJECT, &[], 0));
    assert_eq!(refused, Additional::MEDIUM_REMOVAL_PREVENTED);
    // Who wanted that is gone without a word.
    let [first, mut second] = peers;
    drop(first);
    let began = Instant::now();
    while ask(&mut second, EJECT, &[], 0).is_err() {
        assert!(began.elapsed() < PATIENCE, "the disc stays in");
    }
    site.stop();
}

/// Waits until `status` of the gateway holds this.
fn wait_until_status_holds(site: &Site, text: &str) -> String {
    let began = Instant::now();
    loop {
        let said = site.done(&["status", "--json", "--control", "control.sock"]);
        if said.contains(text) {
            return said;
        }
        assert!(began.elapsed() < PATIENCE, "{text}: {said}");
    }
}

#[test]
fn unit_that_is_away_or_another_is_told_to_clients_and_to_the_administrator() {
    let (there, _) = library();
    let mut site = Site::new(there, &UNITS, &["backup/0"]);
    site.kill_server();
    let said = wait_until_status_holds(&site, "reconnecting for");
    assert!(said.contains("outages"), "{said}");
    // Another tape drive is in its place.
    site.volumes[0].push_str(",serial=0815");
    site.start_server();
    wait_until_status_holds(&site, "its serial number has changed");
    let said = site.refused(&["info", &site.uri("backup")]);
    assert!(said.contains("MANUAL INTERVENTION REQUIRED"), "{said}");
    assert!(
        said.contains("`longhaul status` says what is wrong with the unit behind it"),
        "{said}"
    );
    let said = site.done(&["status", "--control", "control.sock"]);
    assert!(said.contains("    refused for ") && said.contains("A restart of `serve`"), "{said}");
    // The one that it was.
    site.kill_server();
    site.volumes[0] = UNITS[0].to_owned();
    site.start_server();
    let mut peer =
        Peer::log_in(site.portal, "iqn.2001-04.com.example:1", 1, &format!("{TARGET}backup"));
    let began = Instant::now();
    while peer.says(0).is_some() {
        assert!(began.elapsed() < PATIENCE, "the unit is not used again");
    }
    let said = site.done(&["status", "--json", "--control", "control.sock"]);
    assert!(!said.contains("refused for") && !said.contains("reconnecting for"), "{said}");
    site.stop();
}

#[test]
fn client_that_stops_keeps_no_other_from_the_unit() {
    let (there, _) = library();
    let site = Site::new(there, &UNITS, &["backup/0", "disk/0"]);
    let uri = site.uri("backup");
    let mut writer = Writer::start(&site, &[&uri, "--shared"]);
    writer.give(&site, &bytes(3 << 20));
    let pid = rustix::process::Pid::from_child(&writer.0);
    common::send_signal(pid, Signal::STOP);
    let mut other = site.peer(2, "backup");
    assert_eq!(ask(&mut other, READY, &[], 0), Ok(vec![]));
    assert_eq!(
        ask(&mut other, &[0x1A, 0, 0x3F, 0, 255, 0], &[], 255).map(|mode| mode.len() > 4),
        Ok(true)
    );
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    writer.end(&site);
    // One that never takes its answers.
    let mut silent = site.peer(1, "disk");
    for itt in 1000..1064 {
        let command = silent.command(itt, peer::read_16(0, 512));
        let command = ScsiCommand { read: true, expected_len: 512 * 512, ..command };
        silent.send(command, bytes::Bytes::new());
    }
    let mut other = site.peer(2, "disk");
    assert_eq!(ask(&mut other, &[0x2A, 0, 0, 0, 0, 9, 0, 0, 1, 0], &[7; 512], 0), Ok(vec![]));
    assert_eq!(ask(&mut other, &[0x28, 0, 0, 0, 0, 9, 0, 0, 1, 0], &[], 512), Ok(vec![7; 512]));
    drop(silent);
    site.stop();
}

/// The answer to a task management function for a command.
fn manage(peer: &mut Peer, function: TaskFunction, itt: u32) -> TaskResponse {
    let request = TaskManagementRequest {
        immediate: true,
        function,
        itt: 2000,
        referenced_tag: if function == TaskFunction::ABORT_TASK { itt } else { u32::MAX },
        cmd_sn: peer.cmd_sn,
        ..TaskManagementRequest::default()
    };
    peer.send(request, bytes::Bytes::new());
    match peer.receive().expect("an answer").header {
        Header::TaskManagementResponse(answer) => answer.response,
        other => panic!("{other:?}"),
    }
}

/// The unit stands still, so that the commands end by nothing else.
#[test]
fn command_that_is_aborted_is_aborted_at_the_server_too() {
    let homes = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [there, middle, home] = homes.each_ref().map(TempDir::path);
    let passed = |server| format!("backup=scsi:iscsi://{server}/{TARGET}backup");
    let (drive, at) = serve_at(there, "127.0.0.1:0", &["backup=tape:a.tape,size=16M"]);
    let (server, at) = serve_at(middle, "127.0.0.1:0", &[&passed(at)]);
    let (gateway, portal) = serve_at(home, "127.0.0.1:0", &[&passed(at)]);
    let mut peer = Peer::log_in(portal, "iqn.2001-04.com.example:1", 1, &format!("{TARGET}backup"));
    assert_eq!(peer.says(0), Some(Additional::POWER_ON_OR_RESET));
    // The gateway has asked for all that it wants to know by itself: its own commands are not taken for those of the client.
    assert_eq!(ask(&mut peer, READY, &[], 0), Ok(vec![]));
    let status = || units::done(middle, &["status", "--json", "--control", "control.sock"]);
    drive.signal(Signal::STOP);
    for (count, function) in (1..).zip([TaskFunction::ABORT_TASK, TaskFunction::ABORT_TASK_SET]) {
        let mut block = [0; 16];
        block[..6].copy_from_slice(REWIND);
        let command = peer.command(1000, block);
        peer.send(command, bytes::Bytes::new());
        wait_until(|| status().contains("\"in_flight\":1"));
        assert_eq!(manage(&mut peer, function, 1000), TaskResponse::COMPLETE);
        wait_until(|| status().contains(&format!("\"aborted\":{count},")));
    }
    drive.signal(Signal::CONT);
    assert_eq!(ask(&mut peer, READY, &[], 0), Ok(vec![]));
    drop(peer);
    for server in [gateway, server, drive] {
        assert!(server.stop().success());
    }
}

/// Waits until it is so.
fn wait_until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it is never so");
    }
}

#[test]
fn reservations_are_between_the_clients_of_the_gateway() {
    let (there, _) = library();
    let site = Site::new(there, &UNITS, &["backup/0"]);
    let (mut first, mut second) = (site.peer(1, "backup"), site.peer(2, "backup"));
    assert_eq!(ask(&mut first, &[0x16, 0, 0, 0, 0, 0], &[], 0), Ok(vec![]));
    assert_eq!(second.run_on(0, REWIND, vec![], 0).unwrap().0, RESERVED);
    assert_eq!(ask(&mut first, REWIND, &[], 0), Ok(vec![]));
    // A client of the server itself is not kept away, nor does it reset anything.
    let portal = SocketAddr::from(([127, 0, 0, 1], site.port.number));
    let target = format!("{TARGET}backup");
    let mut direct = Peer::log_in(portal, "iqn.2001-04.com.example:3", 3, &target);
    assert_eq!(direct.says(0), Some(Additional::POWER_ON_OR_RESET));
    assert_eq!(ask(&mut direct, REWIND, &[], 0), Ok(vec![]));
    // What it reserves there is told to every client here.
    assert_eq!(ask(&mut direct, &[0x16, 0, 0, 0, 0, 0], &[], 0), Ok(vec![]));
    assert_eq!(first.run_on(0, REWIND, vec![], 0).unwrap().0, RESERVED);
    assert_eq!(ask(&mut direct, &[0x17, 0, 0, 0, 0, 0], &[], 0), Ok(vec![]));
    assert_eq!(ask(&mut first, REWIND, &[], 0), Ok(vec![]));
    site.stop();
}

#[test]
fn unit_that_is_not_there_is_not_served() {
    let home = tempfile::tempdir().unwrap();
    let port = Port::reserve();
    let uri = format!("iscsi://127.0.0.1:{}/{TARGET}backup", port.number);
    let serve = |volume: &str| {
        let mut command = Command::new(LONGHAUL);
        command.args(["serve", "--listen", "127.0.0.1:0", "--volume", volume]);
        let (said, status) = run(command.current_dir(home.path()));
        assert!(!status.success(), "{said}");
        said
    };
    let said = serve(&format!("backup=scsi:{uri}"));
    assert!(said.contains(&format!("cannot open {uri}/0")), "{said}");
    let said = serve(&format!("backup=scsi:{uri},shared"));
    assert!(said.contains("only a volume of a target can have other writers"), "{said}");
    let said = serve(&format!("backup=scsi:{uri},product=X"));
    assert!(said.contains("is passed through as it is"), "{said}");
}

/// A server of a tape by HyperSCSI, and a gateway that logs in to it with a key.
#[test]
fn tape_behind_hyperscsi_is_used_through_a_gateway() {
    let (there, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    sealing::create(&there.path().join("server")).unwrap();
    site_key::create(&there.path().join("site.key")).unwrap();
    let key = sealing::create(&home.path().join("identity")).unwrap().public();
    let config = home.path().join(".config/longhaul");
    fs::create_dir_all(&config).unwrap();
    fs::copy(there.path().join("site.key"), config.join("site-key")).unwrap();
    let config_at = |place: &str| {
        format!(
            "listen = [\"hyperscsi://{place}\"]\nidentity = \"server\"\nsite_key = \"site.key\"\nstate = \"state\"\n\
             [volumes.backup]\nuri = \"tape:a.tape\"\nsize = \"16M\"\n[clients.gateway]\nkey = \"{key}\"\nvolumes = [\"backup\"]\n"
        )
    };
    let serve_at = |place: &str| {
        fs::write(there.path().join("longhaul.toml"), config_at(place)).unwrap();
        let mut serve = Command::new(LONGHAUL);
        let serve = serve.args(["serve", "--config", "longhaul.toml"]);
        let server = Running::start(serve.current_dir(there.path()));
        let ready = server.line().unwrap();
        (server, ready.strip_prefix("ready ").unwrap().to_owned())
    };
    let (server, upstream) = serve_at("127.0.0.1:0");
    let file = format!(
        "listen = [\"127.0.0.1:0\"]\nstate = \"state\"\n[volumes.backup]\nuri = \"scsi:{upstream}\"\nidentity = \"identity\"\n"
    );
    fs::write(home.path().join("longhaul.toml"), file).unwrap();
    let mut serve = Command::new(LONGHAUL);
    serve.args(["serve", "--config", "longhaul.toml"]).current_dir(home.path());
    let gateway = Running::start(serve.env("XDG_CONFIG_HOME", home.path().join(".config")));
    let ready = gateway.line().unwrap();
    let uri = ready.strip_prefix("ready ").unwrap();
    let longhaul = |words: &[&str]| {
        let (said, status) = run(Command::new(LONGHAUL).args(words).current_dir(home.path()));
        assert!(status.success(), "{said}");
    };
    fs::write(home.path().join("in"), bytes(900_001)).unwrap();
    longhaul(&["tape", "write", uri, "in"]);
    // The same server, after a crash.
    server.kill();
    let place = upstream.strip_prefix("hyperscsi://").unwrap().split('/').next().unwrap();
    let (server, _) = serve_at(place);
    longhaul(&["tape", "read", uri, "out"]);
    assert!(fs::read(home.path().join("out")).unwrap() == bytes(900_001));
    assert!(gateway.stop().success() && server.stop().success());
}
