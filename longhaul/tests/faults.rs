//! Real block devices that lose what they had taken: loop devices whose file system is full, and whose file takes
//! nothing any more. Needs root.

mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use common::{LONGHAUL, Running, run};
use longhaul::store::device::{self, DeviceOptions};
use peer::Peer;
use rustix::fs::{MemfdFlags, SealFlags};
use volume::{Durability, Space, Span, Volume};

const SIZE: u64 = 32 << 20;
const BLOCK: usize = 512;
const WRITABLE: DeviceOptions = DeviceOptions { read_only: false, direct: false };

/// Where the tests write: in the first block, which gets its space before anything fails ...
const SAFE: u64 = 0;

/// ... in one that has none when it is written, ...
const LOST: u64 = 8 << 20;

/// ... and in its neighbour, in the same page.
const BESIDE: u64 = LOST + BLOCK as u64;

/// What a device stands on, and how it fails.
enum Backing {
    /// A sparse file in a small file system, which gets full.
    Full(tempfile::TempDir),
    /// A file that is sealed: every write to it is an error.
    Sealed(File),
}

/// A loop device that will fail; all of it ends with this.
struct Failing {
    path: PathBuf,
    backing: Backing,
}

fn succeed(program: &str, args: &[&str]) -> String {
    let (printed, status) = run(Command::new(program).args(args));
    assert!(status.success(), "{program} {args:?}: {printed}");
    printed.trim().to_owned()
}

fn attached(file: &str) -> PathBuf {
    succeed("losetup", &["--find", "--show", file]).into()
}

impl Failing {
    /// It runs out of space.
    fn by_space() -> Self {
        let dir = tempfile::tempdir().unwrap();
        succeed("mount", &["-t", "tmpfs", "-o", "size=4M", "full", dir.path().to_str().unwrap()]);
        let mut failing = Self { path: PathBuf::new(), backing: Backing::Full(dir) };
        let disk = failing.dir().unwrap().join("disk");
        File::create(&disk).unwrap().set_len(SIZE).unwrap();
        let path = attached(disk.to_str().unwrap());
        failing.path = path;
        failing
    }

    /// Its writes are errors.
    fn by_errors() -> Self {
        let file = rustix::fs::memfd_create("disk", MemfdFlags::ALLOW_SEALING).unwrap();
        let file = File::from(file);
        file.set_len(SIZE).unwrap();
        let name = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Self { path: attached(&name), backing: Backing::Sealed(file) }
    }

    fn dir(&self) -> Option<&Path> {
        match &self.backing {
            Backing::Full(dir) => Some(dir.path()),
            Backing::Sealed(_) => None,
        }
    }

    /// From now on it cannot write back what has no space yet, or anything.
    fn fail(&self) {
        match &self.backing {
            Backing::Full(dir) => {
                let mut filler = File::create(dir.path().join("filler")).unwrap();
                while filler.write_all(&[1; 4096]).is_ok() {}
            }
            Backing::Sealed(file) => rustix::fs::fcntl_add_seals(file, SealFlags::WRITE).unwrap(),
        }
    }

    /// There is space again, where there was none. What is lost stays lost.
    fn recover(&self) {
        if let Some(dir) = self.dir() {
            fs::remove_file(dir.join("filler")).unwrap();
        }
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        if self.path.exists() {
            let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
        }
        if let Some(dir) = self.dir() {
            // A device goes when the last who has it open is gone.
            let _ = Command::new("umount").arg("--lazy").arg(dir).status();
        }
    }
}

fn failing() -> [Failing; 2] {
    [Failing::by_space(), Failing::by_errors()]
}

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK])
}

/// How a request that syncs comes to be the first that is told of the loss.
#[derive(Clone, Copy, Debug)]
enum First {
    Write,
    Zeroes,
    Flush,
}

async fn first(volume: &dyn Volume, first: First) {
    let durable = Durability::Durable;
    match first {
        First::Write => drop(volume.write(BESIDE, block(3), durable).await.unwrap_err()),
        First::Zeroes => {
            let span = Span::new(2 * LOST, 1 << 20);
            drop(volume.write_zeroes(span, durable, Space::Release).await.unwrap_err());
        }
        First::Flush => drop(volume.flush().await.unwrap_err()),
    }
}

#[tokio::test]
async fn a_lost_write_fails_every_later_flush_whoever_was_told_first() {
    for first_told in [First::Write, First::Zeroes, First::Flush] {
        for failing in failing() {
            let volume = device::open(&failing.path, WRITABLE).unwrap();
            volume.write(SAFE, block(1), Durability::Durable).await.unwrap();
            failing.fail();
            volume.write(LOST, block(2), Durability::Volatile).await.unwrap();
            first(&volume, first_told).await;
            failing.recover();
            for _ in 0..2 {
                let why = volume.flush().await.expect_err(&format!("{first_told:?}: flush"));
                assert!(std::error::Error::source(&why).is_some());
                let again = volume.write(SAFE, block(1), Durability::Durable).await;
                again.expect_err(&format!("{first_told:?}: a durable write elsewhere"));
            }
        }
    }
}

/// The system tells one of several syncs of a loss. Of durable writes that all lose their bytes none may succeed, and
/// neither may a flush beside them.
#[tokio::test(flavor = "multi_thread")]
async fn of_durable_writes_at_once_that_are_lost_none_succeeds() {
    for _ in 0..5 {
        for failing in failing() {
            let volume = device::open(&failing.path, WRITABLE).unwrap();
            failing.fail();
            for n in 0..32_u64 {
                volume.write(LOST + n * 65536, block(2), Durability::Volatile).await.unwrap();
            }
            let beside =
                |n: u64| volume.write(LOST + n * 65536 + 4096, block(3), Durability::Durable);
            let writes = futures_util::future::join_all((0..32).map(beside));
            let flushes = futures_util::future::join_all((0..8).map(|_| volume.flush()));
            let (writes, flushes) = tokio::join!(writes, flushes);
            assert_eq!(writes.iter().filter(|written| written.is_ok()).count(), 0, "writes");
            assert_eq!(flushes.iter().filter(|flushed| flushed.is_ok()).count(), 0, "flushes");
        }
    }
}

/// A server on a device, and its portal.
fn serve(device: &Path, engine: &str) -> (Running, std::net::SocketAddr) {
    let mut command = Command::new(LONGHAUL);
    command.arg("serve").arg("--volume").arg(format!("disk=device:{}", device.display()));
    command.args(["--listen", "127.0.0.1:0"]).env("LONGHAUL_IO", engine);
    let server = Running::start(&mut command);
    let ready = server.line().expect("it says when it is ready");
    let portal = ready.split('/').nth(2).and_then(|portal| portal.parse().ok());
    (server, portal.expect("ready iscsi://PORTAL/..."))
}

fn log_in(portal: std::net::SocketAddr, isid: u8) -> Peer {
    log_in_to("disk", portal, isid)
}

fn log_in_to(volume: &str, portal: std::net::SocketAddr, isid: u8) -> Peer {
    let target = format!("iqn.2026-11.dev.longhaul:{volume}");
    let mut peer = Peer::log_in(portal, "iqn.2000-01.example:faults", isid, &target);
    peer.settle();
    peer
}

fn flush(peer: &mut Peer) -> bool {
    let mut cdb = [0; 16];
    cdb[0] = 0x91;
    peer.run(cdb, Bytes::new(), 0).expect("an answer").0 == 0
}

fn lba(at: u64) -> u32 {
    (at / BLOCK as u64) as u32
}

/// FUA gives MEDIUM ERROR; then neither the next FUA nor SYNCHRONIZE CACHE may give GOOD, in any session.
#[test]
fn a_server_on_a_full_device_never_flushes_again() {
    for engine in ["ring", "threads"] {
        for failing in failing() {
            let (server, portal) = serve(&failing.path, engine);
            let mut peer = log_in(portal, 1);
            assert_eq!(peer.write(1, lba(SAFE), block(1).to_vec(), true), Some(true));
            assert!(flush(&mut peer));
            failing.fail();
            assert_eq!(peer.write(2, lba(LOST), block(2).to_vec(), false), Some(true));
            assert_eq!(peer.write(3, lba(BESIDE), block(3).to_vec(), true), Some(false));
            failing.recover();
            for mut peer in [peer, log_in(portal, 2)] {
                assert_eq!(peer.write(4, lba(SAFE), block(1).to_vec(), true), Some(false), "FUA");
                assert!(!flush(&mut peer), "SYNCHRONIZE CACHE");
            }
            assert!(!server.stop().success(), "what it had acknowledged is lost");
            let (server, portal) = serve(&failing.path, engine);
            let mut peer = log_in(portal, 1);
            assert_eq!(peer.read(1, lba(SAFE), 1), Some(block(1).to_vec()));
            server.kill();
        }
    }
}

/// Runs `longhaul` with these words; what it printed, and whether it succeeded.
fn longhaul(home: &Path, words: &str) -> (String, bool) {
    let mut command = Command::new(LONGHAUL);
    let (printed, status) = run(command.args(words.split(' ')).current_dir(home));
    (printed, status.success())
}

/// The administrator makes space; the volume is opened again without a restart of the server, and not before what it
/// lost has been told and its sessions have ended.
#[test]
fn volume_that_lost_writes_is_opened_again_by_two_reloads() {
    let (home, failing) = (tempfile::tempdir().unwrap(), Failing::by_space());
    let disk = format!("[volumes.disk]\nuri = \"device:{}\"\n", failing.path.display());
    let config = |disk: &str| {
        let other = "[volumes.other]\nuri = \"memory:1M\"\n";
        let text = format!("listen = [\"127.0.0.1:0\"]\ncontrol = \"control.sock\"\n{other}{disk}");
        fs::write(home.path().join("longhaul.toml"), text).unwrap();
    };
    config(&disk);
    let mut command = Command::new("sh");
    command.args(["-c", "exec 2>&1\nexec \"$0\" serve --config longhaul.toml", LONGHAUL]);
    let server = Running::start(command.current_dir(&home));
    let says = |text: &str| {
        let line = std::iter::from_fn(|| server.line()).find(|line| line.contains(text));
        line.unwrap_or_else(|| panic!("it never says {text:?}"))
    };
    let portal = says("ready ").split('/').nth(2).unwrap().parse().unwrap();
    let (mut peer, mut other) = (log_in(portal, 1), log_in_to("other", portal, 2));
    failing.fail();
    assert_eq!(peer.write(1, lba(LOST), block(2).to_vec(), false), Some(true));
    assert!(!flush(&mut peer));
    let said = says("flushes and durable writes fail until it is opened again");
    let name = failing.path.display().to_string();
    assert!(said.contains("ERROR") && said.contains(&name), "{said}");
    failing.recover();
    assert!(!flush(&mut peer), "what was lost is not there because there is space");
    let (said, _) = longhaul(home.path(), "status --control control.sock");
    let line = said.lines().find(|line| line.contains("flushes fail until it is opened again"));
    assert!(line.is_some_and(|line| line.contains("an earlier flush failed")), "{said}");

    config("");
    let (said, done) = longhaul(home.path(), "reload --control control.sock");
    assert!(!done && said.contains("removed disk") && said.contains("cannot flush"), "{said}");
    config(&disk);
    let (said, done) = longhaul(home.path(), "reload --control control.sock");
    assert!(done && said.contains("added disk"), "{said}");
    let told = std::iter::from_fn(|| peer.receive()).count();
    assert!(told > 0, "its session is asked to log out, and has ended, as at a loss of power");
    let mut peer = log_in(portal, 1);
    assert_eq!(peer.write(1, lba(LOST), block(3).to_vec(), false), Some(true));
    assert!(flush(&mut peer) && flush(&mut other));
    let (said, _) = longhaul(home.path(), "status --control control.sock");
    assert!(!said.contains("flushes fail"), "{said}");
    drop((peer, other));
    assert!(server.stop().success());
}
