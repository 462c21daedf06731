//! `longhaul cd burn` and the discs that it writes: what was burnt is there, once, also when the server is killed meanwhile.

mod common;
#[path = "common/port.rs"]
mod port;
#[path = "common/units.rs"]
mod units;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use common::{LONGHAUL, PATIENCE, Running};
use port::Port;
use rustix::process::{Pid, Signal, kill_process};
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
        assert!(blank.contains("  room ") && !blank.contains("track"), "{blank}");
        let said = done(home, &["cd", "burn", &drive_uri, "one", "--multi", "--verify"]);
        assert!(said.contains("burnt and compared: 3000001 bytes from block 0"), "{said}");
        assert!(front(&path(&format!("{drive}.iso")), one.len()) == one);
        let again = refused(home, &["cd", "burn", &drive_uri, "two"]);
        assert!(again.contains("holds something already") && again.contains("--append"), "{again}");
        let said = done(home, &["cd", "burn", &drive_uri, "two", "--append", "--verify"]);
        assert!(!said.contains("from block 0"), "{said}");
        let toc = done(home, &["cd", "toc", &drive_uri]);
        assert!(toc.contains("track  2") && !toc.contains("  room "), "{toc}");
        let complete = refused(home, &["cd", "burn", &drive_uri, "two", "--append"]);
        assert!(complete.contains("the disc is complete"), "{complete}");
    }
    let dvd = format!("{uri}dvd");
    done(home, &["cd", "burn", &dvd, "one"]);
    let full = refused(home, &["cd", "burn", &dvd, "two"]);
    assert!(full.contains("--force"), "{full}");
    done(home, &["cd", "burn", &dvd, "two", "--force", "--verify"]);
    assert!(front(&path("dvd.iso"), two.len()) == two);
    done(home, &["cd", "read", &dvd, "two.out", "--size", "2000000"]);
    assert!(fs::read(path("two.out")).unwrap() == two);
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

/// A burn that is under way.
struct Burn(Child);

impl Burn {
    fn start(home: &Path, words: &[&str]) -> Self {
        let mut burn = Command::new(LONGHAUL);
        burn.args(["cd", "burn"]).args(words).current_dir(home);
        Self(burn.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn interrupt(&self) {
        let pid = Pid::from_child(&self.0);
        kill_process(pid, Signal::INT).unwrap();
    }

    /// What it says at its end, and whether it has done it.
    fn end(self) -> (String, bool) {
        let ended = self.0.wait_with_output().unwrap();
        let said = [ended.stdout, ended.stderr].concat();
        (String::from_utf8_lossy(&said).into_owned(), ended.status.success())
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
        // A drive that was started again has forgotten that another session is to follow.
        let multi: &[_] = if disc == "dvd+rw" { &[] } else { &["--multi"] };
        let burn = Burn::start(home, &[&[&burner, "image", "--verify"], multi].concat());
        // Once before anything is stable, and once after.
        wait_for(&path("disc.iso"), 8 << 20);
        server.kill();
        let (server, _) = serve(home, &listen, &[&volume]);
        wait_for(&path("disc.iso"), 80 << 20);
        server.kill();
        let (server, _) = serve(home, &listen, &[&volume]);
        let (said, is_burnt) = burn.end();
        assert!(is_burnt, "{disc}: {said}");
        assert!(said.contains("connected again"), "{disc}: it was never cut off: {said}");
        assert!(front(&path("disc.iso"), image.len()) == image, "{disc}");
        let toc = done(home, &["cd", "toc", &burner]);
        assert!(toc.contains("track  1") && !toc.contains("track  2"), "{toc}");
        assert_eq!(toc.contains("more can be added"), disc != "dvd+rw", "{toc}");
        assert!(server.stop().success());
    }
}

/// The gateway keeps the session of the burner, and tells it of the loss.
#[test]
fn server_behind_a_gateway_that_is_killed_costs_nothing_either() {
    for disc in ["cd-r", "dvd+rw"] {
        let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [home, gateway_home] = homes.each_ref().map(tempfile::TempDir::path);
        let image = image(&gateway_home.join("image"), 40 << 20, 3);
        let port = Port::reserve();
        let listen = format!("127.0.0.1:{}", port.number);
        let volume = format!("burner=limit:(cdrom:disc.iso,rate=16M),blank={disc}");
        let (server, uri) = serve(home, &listen, &[&volume]);
        let passed = format!("gate=scsi:{uri}burner");
        let (gateway, uri) = serve(gateway_home, "127.0.0.1:0", &[&passed]);
        let burn = Burn::start(gateway_home, &[&format!("{uri}gate"), "image", "--verify"]);
        wait_for(&home.join("disc.iso"), 8 << 20);
        server.kill();
        let (server, _) = serve(home, &listen, &[&volume]);
        let (said, is_burnt) = burn.end();
        assert!(is_burnt, "{disc}: {said}");
        assert!(front(&home.join("disc.iso"), image.len()) == image, "{disc}");
        assert!(gateway.stop().success() && server.stop().success());
    }
}

#[test]
fn burn_that_was_interrupted_is_gone_on_with_or_closed() {
    for disc in ["cd-r", "bd-r"] {
        let home = tempfile::tempdir().unwrap();
        let (home, path) = (home.path(), |name: &str| home.path().join(name));
        let whole = image(&path("image"), (40 << 20) + 7, 3);
        let other = image(&path("other"), 41 << 20, 4);
        let volume = format!("burner=limit:(cdrom:disc.iso,rate=16M),blank={disc}");
        let (server, uri) = serve(home, "127.0.0.1:0", &[&volume]);
        let burner = &format!("{uri}burner");
        for multi in [false, true] {
            let words = [&[&**burner, "image"][..], if multi { &["--append"] } else { &[] }];
            let before = fs::metadata(path("disc.iso")).unwrap().blocks() * 512;
            let burn = Burn::start(home, &words.concat());
            wait_for(&path("disc.iso"), before + (8 << 20));
            let said = refused(home, &["media", "eject", "burner", "--control", "control.sock"]);
            assert!(said.contains("a disc is being burnt in it"), "{said}");
            burn.interrupt();
            let (said, is_burnt) = burn.end();
            assert!(!is_burnt && said.contains("cd burn --continue"), "{said}");
            let toc = done(home, &["cd", "toc", burner]);
            assert!(toc.contains(", open") && toc.contains(", not closed"), "{toc}");
            let bytes = 2048 * open_blocks(&toc);
            let told =
                format!("{bytes} of {} bytes are on the disc, as the drive says", whole.len());
            assert!(said.contains(&told), "{said}{toc}");
            let listed = done(home, &["media", "list", "--control", "control.sock"]);
            assert!(listed.contains("not closed"), "{listed}");
            let open = refused(home, &["cd", "burn", burner, "image", "--append"]);
            assert!(open.contains("--continue") && open.contains("cd close --multi"), "{open}");
            let wrong = refused(home, &["cd", "burn", burner, "other", "--continue"]);
            assert!(wrong.contains("another image"), "{wrong}");
            if multi {
                // What was begun stays as it is.
                let closed = done(home, &["cd", "close", burner]);
                assert!(closed.contains("nothing can be added"), "{closed}");
            } else {
                let words = ["cd", "burn", burner, "image", "--continue", "--multi", "--verify"];
                let said = done(home, &words);
                assert!(said.contains("from block 0 on"), "{said}");
                let none = refused(home, &["cd", "burn", burner, "image", "--continue"]);
                assert!(none.contains("nothing to go on with"), "{none}");
            }
            assert!(front(&path("disc.iso"), whole.len()) == whole);
        }
        let again = refused(home, &["cd", "close", burner]);
        assert!(again.contains("closed already"), "{again}");
        let toc = done(home, &["cd", "toc", burner]);
        assert!(toc.contains("track  2") && toc.contains("complete"), "{toc}");
        assert!(!toc.contains("open"), "{toc}");
        assert_ne!(whole, other);
        assert!(server.stop().success());
    }
}

/// The server writes to it where it is, and whoever looks for it is told.
#[test]
fn disc_whose_file_was_moved_or_removed_is_told_as_such() {
    let home = tempfile::tempdir().unwrap();
    let (home, path) = (home.path(), |name: &str| home.path().join(name));
    image(&path("image"), 1 << 20, 5);
    fs::write(path("empty"), "").unwrap();
    let volumes = ["moved=cdrom:a.iso,blank=bd-r", "removed=cdrom:b.iso,blank=dvd+rw"];
    let (server, uri) = serve(home, "127.0.0.1:0", &volumes);
    let list = || done(home, &["media", "list", "--control", "control.sock"]);
    assert!(!list().contains("while it is in use"));
    let over = format!("{uri}removed");
    let said = refused(home, &["copy", "file:image", &over]);
    assert!(said.contains("`longhaul cd burn ") && said.contains("optical drive"), "{said}");
    for words in [["cd", "toc", "a.iso"], ["cd", "toc", "file:a.iso"]] {
        let said = refused(home, &words);
        assert!(said.contains("NAME=cdrom:a.iso` has it in a drive"), "{said}");
    }
    let empty = ["media", "load", "moved", "empty", "--control", "control.sock"];
    let said = refused(home, &empty);
    assert!(said.contains("`--blank cd-r` of `media load`"), "{said}");
    fs::rename(path("a.iso"), path("c.iso")).unwrap();
    fs::remove_file(path("b.iso")).unwrap();
    let listed = list();
    let told = |name: &str, what: &str| {
        let mut lines = listed.lines().skip_while(|line| !line.starts_with(name));
        assert!(lines.nth(1).is_some_and(|line| line.contains(what)), "{listed}");
    };
    told("moved: ", "a.iso has been moved while it is in use");
    told("removed: ", "b.iso has been removed while it is in use");
    let said = refused(home, &["cd", "burn", &over, "image"]);
    assert!(said.contains("`longhaul media list` on the server, and its log, say"), "{said}");
    assert!(said.contains("acknowledged all of the image, and not that it is stable"), "{said}");
    // What was lost is an error at its end too.
    assert!(!server.stop().success());
}

/// The blocks of the track that is not closed: `track  1     data, session 1, 3000 blocks from 0 on, open`.
fn open_blocks(toc: &str) -> usize {
    let open = toc.lines().find(|line| line.ends_with(", open")).unwrap();
    let (before, _) = open.split_once(" blocks").unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn sessions_are_read_alone_and_together() {
    let home = tempfile::tempdir().unwrap();
    let (home, path) = (home.path(), |name: &str| home.path().join(name));
    let one = image(&path("one"), 3 << 20, 1);
    let two = image(&path("two"), 2 << 20, 2);
    let (server, uri) = serve(home, "127.0.0.1:0", &["cd=cdrom:cd.iso,blank=cd-r"]);
    let cd = &format!("{uri}cd");
    let blank = refused(home, &["cd", "read", cd, "none"]);
    assert!(blank.contains("nothing is on it") && !path("none").exists(), "{blank}");
    let info = done(home, &["info", cd]);
    assert!(info.contains("CD-R, blank"), "{info}");
    let copied = refused(home, &["copy", cd, "none"]);
    assert!(copied.contains("blank disc") && !path("none").exists(), "{copied}");
    done(home, &["cd", "burn", cd, "one", "--multi"]);
    let said = done(home, &["cd", "burn", cd, "two", "--append"]);
    let begin: usize =
        said.split("from block ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    done(home, &["cd", "read", cd, "first", "--track", "1"]);
    done(home, &["cd", "read", cd, "second", "--session", "2"]);
    done(home, &["cd", "read", cd, "whole"]);
    let read = |name| fs::read(path(name)).unwrap();
    assert!(read("first") == one && read("second") == two);
    let whole = read("whole");
    assert!(whole[..one.len()] == one && whole[begin * 2048..] == two);
    assert!(whole[one.len()..begin * 2048].iter().all(|byte| *byte == 0));
    assert!(front(&path("cd.iso"), whole.len()) == whole, "what the file has there is zeroes too");
    done(home, &["cd", "read", cd, "front", "--size", "1000"]);
    done(home, &["cd", "read", cd, "some", "--size", &(begin * 2048 + 5).to_string()]);
    assert!(read("front") == one[..1000] && read("some") == whole[..begin * 2048 + 5]);
    let none = refused(home, &["cd", "read", cd, "none", "--track", "3"]);
    assert!(none.contains("none of that number"), "{none}");
    let toc = done(home, &["cd", "toc", cd, "--json"]);
    let toc: serde_json::Value = serde_json::from_str(&toc).unwrap();
    assert_eq!(toc["tracks"][0]["blocks"], 1536, "without what lies behind it");
    assert_eq!((&toc["state"], &toc["disc"]), (&"complete".into(), &"CD-R".into()));
    assert!(server.stop().success());
}

#[test]
fn disc_that_is_put_in_meanwhile_stays_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let (home, path) = (home.path(), |name: &str| home.path().join(name));
    let whole = image(&path("image"), 60 << 20, 3);
    let other = image(&path("other"), 30 << 20, 4);
    let control = ["--control", "control.sock"];
    // While the server runs, by force.
    let volumes = ["a=limit:(cdrom:a.iso,rate=16M),blank=dvd+rw", "b=cdrom:b.iso,blank=dvd+rw"];
    let (server, uri) = serve(home, "127.0.0.1:0", &volumes);
    done(home, &["cd", "burn", &format!("{uri}b"), "other"]);
    done(home, &[&["media", "eject", "b"], &control[..]].concat());
    let burn = Burn::start(home, &[&format!("{uri}a"), "image"]);
    wait_for(&path("a.iso"), 8 << 20);
    done(home, &[&["media", "load", "a", "b.iso", "--force"], &control[..]].concat());
    let (said, is_burnt) = burn.end();
    assert!(!is_burnt && said.contains("was taken out while it was used"), "{said}");
    assert!(front(&path("b.iso"), other.len()) == other);
    assert!(server.stop().success());
    // While it does not.
    for disc in ["cd-r", "dvd+rw"] {
        let port = Port::reserve();
        let listen = format!("127.0.0.1:{}", port.number);
        let serve_disc = |name: &str| {
            serve(home, &listen, &[&format!("a=limit:(cdrom:{name}.iso,rate=16M),blank={disc}")])
        };
        let (right, wrong) = (&format!("right-{disc}"), &format!("wrong-{disc}"));
        let (server, uri) = serve_disc(wrong);
        let uri = &format!("{uri}a");
        done(home, &["cd", "burn", uri, "other", "--reconnect-for", "10s"]);
        assert!(server.stop().success());
        let (server, _) = serve_disc(right);
        let burn = Burn::start(home, &[uri, "image"]);
        wait_for(&path(&format!("{right}.iso")), 8 << 20);
        server.kill();
        let (server, _) = serve_disc(wrong);
        let (said, is_burnt) = burn.end();
        let is_told = said.contains("the disc is not as it was left")
            || said.contains("is not the one that was begun");
        assert!(!is_burnt && is_told, "{disc}: {said}");
        assert!(front(&path(&format!("{wrong}.iso")), other.len()) == other, "{disc}");
        assert!(server.stop().success());
    }
    assert_ne!(whole, other);
}
