//! `longhaul cd burn` and the discs that it writes: what was burnt is there, once, also when the server is killed meanwhile.

mod common;
#[path = "common/port.rs"]
mod port;
#[path = "common/units.rs"]
mod units;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use common::{LONGHAUL, PATIENCE, Running};
use port::Port;
use units::{TARGET, done, refused, serve_at};

/// A server of these volumes in `home` that listens there, and what the URIs of its volumes begin with.
fn serve(home: &Path, listen: &str, volumes: &[&str]) -> (Running, String) {
    let (server, portal) = serve_at(home, listen, volumes);
    (server, format!("iscsi://{portal}/{TARGET}"))
}

/// An image in which each block is told from all others.
fn image(path: &Path, bytes: usize, seed: u32) -> Vec<u8> {
    let words = (0..bytes.div_ceil(4) as u32).map(|at| at.wrapping_mul(2_654_435_761) ^ seed);
    let mut image: Vec<u8> = words.flat_map(u32::to_be_bytes).collect();
    image.truncate(bytes);
    fs::write(path, &image).unwrap();
    image
}

/// The beginning of the file of a disc.
fn front(path: &Path, bytes: usize) -> Vec<u8> {
    use std::io::Read as _;
    let mut front = vec![0; bytes];
    fs::File::open(path).unwrap().read_exact(&mut front).unwrap();
    front
}

#[test]
fn discs_are_burnt_once_or_over_and_over() {
    let home = tempfile::tempdir().unwrap();
    let (home, path) = (home.path(), |name: &str| home.path().join(name));
    let one = image(&path("one"), 3_000_001, 1);
    let two = image(&path("two"), 2_000_000, 2);
    let volumes = ["cd=cdrom:cd.iso,blank=cd-r", "dvd=cdrom:dvd.iso,blank=dvd+rw", "bd=cdrom:"];
    let (server, uri) = serve(home, "127.0.0.1:0", &volumes);
    done(home, &["media", "load", "bd", "bd.iso", "--blank", "bd-r", "--control", "control.sock"]);
    for drive in ["cd", "bd"] {
        let drive_uri = format!("{uri}{drive}");
        let blank = done(home, &["cd", "toc", &drive_uri]);
        assert!(blank.contains("bytes more") && !blank.contains("track"), "{blank}");
        let said = done(home, &["cd", "burn", &drive_uri, "one", "--multi", "--verify"]);
        assert!(said.contains("burnt and compared: 3000001 bytes from block 0"), "{said}");
        assert!(front(&path(&format!("{drive}.iso")), one.len()) == one);
        let again = refused(home, &["cd", "burn", &drive_uri, "two"]);
        assert!(again.contains("holds something already") && again.contains("--append"), "{again}");
        let said = done(home, &["cd", "burn", &drive_uri, "two", "--append", "--verify"]);
        assert!(!said.contains("from block 0"), "{said}");
        let toc = done(home, &["cd", "toc", &drive_uri]);
        assert!(toc.contains("track  2") && !toc.contains("bytes more"), "{toc}");
        let complete = refused(home, &["cd", "burn", &drive_uri, "two", "--append"]);
        assert!(complete.contains("the disc is complete"), "{complete}");
    }
    let dvd = format!("{uri}dvd");
    done(home, &["cd", "burn", &dvd, "one"]);
    let full = refused(home, &["cd", "burn", &dvd, "two"]);
    assert!(full.contains("--force"), "{full}");
    done(home, &["cd", "burn", &dvd, "two", "--force", "--verify"]);
    assert!(front(&path("dvd.iso"), two.len()) == two);
    // What it is outlives the server, and says what it was burnt with.
    assert!(server.stop().success());
    let (server, uri) = serve(home, "127.0.0.1:0", &["cd=cdrom:cd.iso", "bd=cdrom:bd.iso"]);
    for drive in ["cd", "bd"] {
        let toc = done(home, &["cd", "toc", &format!("{uri}{drive}")]);
        assert!(toc.contains("track  2"), "{toc}");
    }
    assert!(server.stop().success());
}

#[test]
fn image_that_cannot_be_burnt_leaves_the_disc_blank() {
    let home = tempfile::tempdir().unwrap();
    let (home, path) = (home.path(), |name: &str| home.path().join(name));
    image(&path("one"), 100_000, 1);
    fs::write(path("empty"), []).unwrap();
    fs::File::create(path("large")).unwrap().set_len(800 << 20).unwrap();
    let volumes = ["cd=cdrom:cd.iso,blank=cd-r", "pressed=cdrom:one.iso", "disk=memory:1M"];
    image(&path("one.iso"), 20 * 2048, 1);
    let (server, uri) = serve(home, "127.0.0.1:0", &volumes);
    let cd = format!("{uri}cd");
    assert!(refused(home, &["cd", "burn", &cd, "empty"]).contains("it is empty"));
    assert!(refused(home, &["cd", "burn", &cd, "missing"]).contains("missing"));
    let large = refused(home, &["cd", "burn", &cd, "large"]);
    assert!(large.contains("too large") && large.contains("has room for"), "{large}");
    let pressed = refused(home, &["cd", "burn", &format!("{uri}pressed"), "one"]);
    assert!(pressed.contains("cannot be written"), "{pressed}");
    let disk = refused(home, &["cd", "burn", &format!("{uri}disk"), "one"]);
    assert!(disk.contains("is no optical drive"), "{disk}");
    let toc = done(home, &["cd", "toc", &cd]);
    assert!(toc.contains("end          block 0"), "{toc}");
    done(home, &["cd", "burn", &cd, "one", "--verify"]);
    // A blank disc is made where nothing is, and nowhere else.
    let control = ["--control", "control.sock"];
    let load = |words: &[&str]| refused(home, &[&["media", "load"], words, &control].concat());
    let other = load(&["pressed", "one", "--blank", "cd-r"]);
    assert!(other.contains("is no CD-R") || other.contains("2048"), "{other}");
    let busy = load(&["pressed", "cd.iso"]);
    assert!(busy.contains("it is in the drive cd of this server"), "{busy}");
    assert!(load(&["pressed", "new.iso", "--blank", "cd-rw"]).contains("cd-r, dvd+rw or bd-r"));
    assert!(!path("new.iso").exists());
    assert!(server.stop().success());
}

/// Waits until so many bytes of a file are there.
fn wait_for(path: &Path, bytes: u64) {
    let began = Instant::now();
    while fs::metadata(path).unwrap().blocks() * 512 < bytes {
        assert!(began.elapsed() < PATIENCE, "nothing is written to {}", path.display());
        thread::yield_now();
    }
}

#[test]
fn server_that_is_killed_while_a_disc_is_burnt_costs_nothing() {
    for disc in ["cd-r", "bd-r", "dvd+rw"] {
        let home = tempfile::tempdir().unwrap();
        let (home, path) = (home.path(), |name: &str| home.path().join(name));
        let image = image(&path("image"), (100 << 20) + 7, 3);
        let port = Port::reserve();
        let listen = format!("127.0.0.1:{}", port.number);
        let volume = format!("burner=limit:(cdrom:disc.iso,rate=64M),blank={disc}");
        let (server, uri) = serve(home, &listen, &[&volume]);
        let burner = format!("{uri}burner");
        let mut burn = Command::new(LONGHAUL);
        burn.args(["cd", "burn", &burner, "image", "--verify"]).current_dir(home);
        let burn = burn.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Once before anything is stable, and once after.
        wait_for(&path("disc.iso"), 8 << 20);
        server.kill();
        let (server, _) = serve(home, &listen, &[&volume]);
        wait_for(&path("disc.iso"), 80 << 20);
        server.kill();
        let (server, _) = serve(home, &listen, &[&volume]);
        let burnt = burn.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&burnt.stderr);
        assert!(burnt.status.success(), "{disc}: {said}");
        assert!(said.contains("connected again"), "{disc}: it was never cut off: {said}");
        assert!(front(&path("disc.iso"), image.len()) == image, "{disc}");
        let toc = done(home, &["cd", "toc", &burner]);
        assert!(toc.contains("track  1") && !toc.contains("track  2"), "{toc}");
        assert!(server.stop().success());
    }
}
