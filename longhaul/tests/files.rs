//! `ls`, `get` and `cat` on file systems that e2fsprogs made from a tree: what comes back is the tree. What somebody has
//! damaged, or made up, is an error in bounded time, and never a file outside of the place that was named.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use testing::Random;

const LONGHAUL: &str = env!("CARGO_BIN_EXE_longhaul");

/// Runs the program; one that takes so long hangs.
fn longhaul(arguments: &[&OsStr]) -> Output {
    let done = Command::new("timeout").arg("300").arg(LONGHAUL).args(arguments).output().unwrap();
    assert!(matches!(done.status.code(), Some(0..=2)), "{arguments:?}: {done:?}");
    assert!(!text(&done.stderr).contains("panicked"), "{arguments:?}: {done:?}");
    done
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What it says, and that it says it of something that was done.
#[track_caller]
fn done(arguments: &[&OsStr]) -> String {
    let output = longhaul(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    text(&output.stdout)
}

/// What it says of something that failed.
#[track_caller]
fn fails(arguments: &[&OsStr]) -> String {
    let output = longhaul(arguments);
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{arguments:?}: {}", said.len());
    said
}

macro_rules! args {
    ($($word:expr),* $(,)?) => { &[$(OsStr::new(&$word)),*] };
}

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("tree")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn tree(&self, name: &str) -> PathBuf {
        self.path("tree").join(name)
    }

    /// An image of the tree.
    fn image(&self, options: &str) -> String {
        let image = self.path("disk.img");
        let _ = fs::remove_file(&image);
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let made = Command::new("mke2fs")
            .args(["-q", "-F", "-d"])
            .arg(self.path("tree"))
            .args(options.split_whitespace())
            .arg(&image)
            .arg("24M")
            .env("PATH", path)
            .output()
            .expect("mke2fs is installed (Debian: e2fsprogs)");
        assert!(made.status.success(), "{made:?}");
        format!("file:{}", image.display())
    }

    /// Writes `to` over each place in the image that holds `from`, which is as long.
    fn patch(&self, from: &[u8], to: &[u8]) {
        assert_eq!(from.len(), to.len());
        let mut image = fs::read(self.path("disk.img")).unwrap();
        let places: Vec<_> =
            (0..image.len() - from.len()).filter(|at| image[*at..].starts_with(from)).collect();
        assert!(!places.is_empty(), "{:?} is not in the image", text(from));
        for at in places {
            image[at..at + to.len()].copy_from_slice(to);
        }
        fs::write(self.path("disk.img"), image).unwrap();
    }
}

/// What is at a path: type and permissions, size, time, contents or target.
type Found = (u32, u64, i64, Vec<u8>);

/// All that is in a directory, by path.
fn found(root: &Path) -> BTreeMap<PathBuf, Found> {
    let mut all = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            // mke2fs makes it.
            if path.ends_with("lost+found") {
                continue;
            }
            let metadata = path.symlink_metadata().unwrap();
            let (mut size, mut time, mut contents) = (metadata.len(), metadata.mtime(), Vec::new());
            if metadata.is_dir() {
                (size, open) = (0, [open, vec![path.clone()]].concat());
            } else if metadata.is_symlink() {
                (time, contents) = (0, fs::read_link(&path).unwrap().into_os_string().into_vec());
            } else {
                contents = fs::read(&path).unwrap();
            }
            let mode = metadata.mode() & !0o7000;
            all.insert(path.strip_prefix(root).unwrap().to_owned(), (mode, size, time, contents));
        }
    }
    all
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// A tree with all that a tree has.
fn grow(bench: &Bench) {
    for (name, len) in [("empty", 0), ("one", 1), ("block", 4096), ("large", 3_000_001)] {
        fs::write(bench.tree(name), pattern(len)).unwrap();
    }
    let sparse = fs::File::create(bench.tree("sparse")).unwrap();
    sparse.write_all_at(b"the end", (8 << 20) - 7).unwrap();
    fs::create_dir_all(bench.tree("a/b/c d")).unwrap();
    fs::write(bench.tree("a/b/c d/deep"), "deep").unwrap();
    fs::create_dir(bench.tree("many")).unwrap();
    for n in 0..1500 {
        fs::write(bench.tree(&format!("many/file with a long name {n}")), n.to_string()).unwrap();
    }
    symlink("../one", bench.tree("a/relative")).unwrap();
    symlink("/a/b", bench.tree("absolute")).unwrap();
    symlink("nowhere", bench.tree("dangling")).unwrap();
    symlink("x/".repeat(100), bench.tree("long")).unwrap();
    for name in [&b"steers\x1b[2J\nit"[..], b"no \xff text", "é漢".as_bytes()] {
        fs::write(bench.path("tree").join(OsStr::from_bytes(name)), name).unwrap();
    }
    fs::set_permissions(bench.tree("one"), Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(bench.tree("block"), Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(bench.tree("a/b"), Permissions::from_mode(0o500)).unwrap();
}

#[test]
fn tree_that_is_got_is_the_tree_that_was_stored() {
    let bench = Bench::new();
    grow(&bench);
    let mut expected = found(&bench.path("tree"));
    for (n, options) in ["-t ext4", "-t ext4 -b 1024", "-t ext3", "-t ext2"].iter().enumerate() {
        if n == 2 {
            // The crate does not read a hole of ext2 or ext3 for which there is not even a block of addresses.
            fs::remove_file(bench.tree("sparse")).unwrap();
            expected.remove(Path::new("sparse"));
        }
        let uri = bench.image(options);
        let out = bench.path(&format!("out{n}"));
        let said = done(args!["get", uri, "/", out]);
        assert!(said.contains("symbolic links"), "{said}");
        let got = found(&out);
        assert!(got.keys().eq(expected.keys()), "{options}");
        for (path, one) in &expected {
            assert!(got[path] == *one, "{options}: {}", path.display());
        }
        if let Ok(stored) = fs::metadata(out.join("sparse")) {
            assert!(stored.blocks() * 512 < stored.len() / 4, "its hole is one");
        }
    }
}

#[test]
fn listing_shows_what_ls_shows_and_names_cannot_steer_the_terminal() {
    let bench = Bench::new();
    grow(&bench);
    let uri = bench.image("-t ext4");
    let listed = done(args!["ls", uri]);
    let line = |end: &str| {
        let line = listed.lines().find(|line| line.ends_with(end));
        line.unwrap_or_else(|| panic!("{end}: {listed}")).to_owned()
    };
    assert!(line(" one").starts_with("-rw-r-----"));
    assert!(line(" block").starts_with("-rwsr-xr-x") && line(" block").contains(" 4096 "));
    assert!(line(" a").starts_with('d'));
    assert!(line(" absolute -> /a/b").starts_with("lrwxrwxrwx"));
    line(r" steers\u{1b}[2J\nit");
    line(r" no \xff text");
    assert!(!listed.contains('\x1b'));
    assert_eq!(done(args!["ls", uri, "/many"]).lines().count(), 1500);
    assert!(done(args!["ls", uri, "absolute/c d"]).ends_with(" deep\n"), "links are followed");
    assert!(done(args!["ls", uri, "/a/relative"]).ends_with(" /a/relative\n"));
    let json: serde_json::Value = serde_json::from_str(&done(args!["ls", uri, "--json"])).unwrap();
    let files = json["files"].as_array().unwrap();
    let one = files.iter().find(|file| file["name"] == "one").unwrap();
    assert_eq!(
        (&one["size"], &one["kind"], &one["mode"]),
        (&1.into(), &"file".into(), &"0640".into())
    );
    assert!(files.iter().any(|file| file["name_hex"] == "6e6f20ff2074657874"));
}

#[test]
fn contents_are_written_as_they_are() {
    let bench = Bench::new();
    grow(&bench);
    let uri = bench.image("-t ext4");
    for name in ["large", "sparse", "empty"] {
        let output = longhaul(args!["cat", uri, format!("/{name}")]);
        assert!(output.status.success() && output.stdout == fs::read(bench.tree(name)).unwrap());
    }
    for (path, why) in [
        ("/nothing", "/nothing: there is no such file or directory"),
        ("/one/more", "/one/more: it is not a directory"),
        ("/a", "/a: it is a directory"),
        ("/dangling", "/nowhere: there is no such file or directory"),
    ] {
        let said = fails(args!["cat", uri, path]);
        assert!(said.contains(why) && said.contains(&uri), "{said}");
    }
    let long = format!("/{}", "n".repeat(300));
    assert!(fails(args!["ls", uri, long]).contains("too long"));
}

#[test]
fn destination_that_is_there_is_kept_without_force() {
    let bench = Bench::new();
    fs::create_dir(bench.tree("d")).unwrap();
    fs::write(bench.tree("d/file"), "new").unwrap();
    let uri = bench.image("-t ext4");
    let (out, outside) = (bench.path("out"), bench.path("outside"));
    fs::create_dir_all(out.join("own")).unwrap();
    fs::write(out.join("file"), "old").unwrap();
    let said = fails(args!["get", uri, "/d", out]);
    assert!(said.contains("is there already") && said.contains("--force"), "{said}");
    assert_eq!(fs::read_to_string(out.join("file")).unwrap(), "old");
    done(args!["get", "--force", uri, "/d", out]);
    assert_eq!(fs::read_to_string(out.join("file")).unwrap(), "new");
    assert!(out.join("own").is_dir());
    // A symbolic link in the place of a file is replaced, and what it leads to is not touched.
    fs::write(&outside, "kept").unwrap();
    fs::remove_file(out.join("file")).unwrap();
    symlink(&outside, out.join("file")).unwrap();
    done(args!["get", "--force", uri, "/d", out]);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "kept");
    assert!(out.join("file").symlink_metadata().unwrap().is_file());
    let said = fails(args!["get", uri, "/", "/"]);
    assert!(said.contains("cannot write /") || said.contains("there already"), "{said}");
    assert!(fails(args!["get", uri, "/"]).contains("has no name of its own"));
}

#[test]
fn files_of_an_encrypted_volume_are_read_with_its_pass_phrase() {
    let bench = Bench::new();
    fs::write(bench.tree("file"), "secret").unwrap();
    let plain = bench.image("-t ext4");
    let (pass, wrong) = (bench.path("pass"), bench.path("wrong"));
    fs::write(&pass, "correct horse").unwrap();
    fs::write(&wrong, "battery staple").unwrap();
    let uri = format!("file:{}", bench.path("encrypted").display());
    let cost = ["--pbkdf-memory", "32M", "--pbkdf-iterations", "4"];
    let [c0, c1, c2, c3] = cost;
    done(args!["key", "init", uri, "--size", "40M", "--passphrase-file", pass, c0, c1, c2, c3]);
    done(args!["copy", plain, uri, "--passphrase-file", pass]);
    assert_eq!(done(args!["cat", uri, "file", "--passphrase-file", pass]), "secret");
    assert!(
        fails(args!["cat", uri, "file", "--passphrase-file", wrong]).contains("no key slot opens")
    );
}

#[test]
fn volume_without_file_system_is_named() {
    let bench = Bench::new();
    let uri = bench.image("-t ext4");
    let image = bench.path("disk.img");
    fs::File::options().write(true).open(&image).unwrap().set_len(12 << 20).unwrap();
    assert!(fails(args!["ls", uri]).contains("or the volume was cut off"));
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    assert!(fails(args!["ls", uri]).contains("there is no ext2, ext3 or ext4 file system"));
    let mut zip = b"\x89PNG".to_vec();
    zip.resize(4096, 7);
    fs::write(&image, zip).unwrap();
    fails(args!["ls", uri]);
    fs::write(&image, vec![0; 512]).unwrap();
    assert!(fails(args!["ls", uri]).contains("there is no ext2"));
}

/// Names that lead elsewhere, or are there twice: with them a file system could write anywhere.
#[test]
fn hostile_names_make_no_file_outside() {
    let plain = "-t ext4 -O ^metadata_csum";
    for (from, to) in [
        (&b"AAAAAAAAAAAA"[..], &b"../../escape"[..]),
        (b"AAAAAAAAAAAA", b"/tmp/escape1"),
        (b"AAAAAAAAAAAA", b"BBBBBBBBBBBB"),
    ] {
        for force in [false, true] {
            let bench = Bench::new();
            let outside = bench.path("outside");
            fs::create_dir(&outside).unwrap();
            fs::create_dir_all(bench.tree("d/AAAAAAAAAAAA")).unwrap();
            fs::write(bench.tree("d/AAAAAAAAAAAA/planted"), "x").unwrap();
            symlink(&outside, bench.tree("d/BBBBBBBBBBBB")).unwrap();
            fs::write(bench.tree("d/good"), "x").unwrap();
            let uri = bench.image(plain);
            bench.patch(from, to);
            let out = bench.path("in/out");
            fs::create_dir(bench.path("in")).unwrap();
            let before = fs::read_dir(bench.path("")).unwrap().count();
            let forced = if force { "--force" } else { "--log=warn" };
            let got = longhaul(args!["get", forced, uri, "/d", out]);
            assert!(!got.status.success(), "{}: {got:?}", text(to));
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
            assert_eq!(fs::read_dir(bench.path("")).unwrap().count(), before);
            assert_eq!(fs::read_dir(bench.path("in")).unwrap().count(), 1);
            assert!(!Path::new("/tmp/escape1").exists());
        }
    }
}

/// Directories that are within themselves have no end.
#[test]
fn directory_within_itself_is_an_error() {
    let bench = Bench::new();
    fs::create_dir(bench.tree("d")).unwrap();
    let uri = bench.image("-t ext4 -O ^metadata_csum");
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    for name in ["one", "two"] {
        let link = format!("ln d /d/{name}");
        let linked = Command::new("debugfs")
            .args(["-w", "-R", &link])
            .arg(bench.path("disk.img"))
            .env("PATH", &path)
            .output()
            .unwrap();
        assert!(linked.status.success(), "{linked:?}");
    }
    assert_eq!(done(args!["ls", uri, "/d"]).lines().count(), 2, "it has them");
    let said = fails(args!["get", uri, "/d", bench.path("out")]);
    assert!(said.contains("lead back to themselves"), "{said}");
}

/// Whatever the bytes are, the program ends, and tells of it.
#[test]
fn damaged_file_system_is_an_error_or_is_read() {
    let seed = 0x5eed_f11e;
    println!("seed {seed:#x}");
    let mut random = Random::new(seed);
    let bench = Bench::new();
    fs::create_dir_all(bench.tree("a/b")).unwrap();
    for n in 0..300 {
        fs::write(bench.tree(&format!("a/file {n}")), pattern(n * 20)).unwrap();
    }
    symlink("x".repeat(200), bench.tree("a/link")).unwrap();
    let uri = bench.image("-t ext4 -b 1024 -O ^metadata_csum");
    let whole = fs::read(bench.path("disk.img")).unwrap();
    // Super block, groups, inodes and directories come first.
    let used: Vec<usize> = (0..whole.len() / 64)
        .filter(|at| whole[at * 64..][..64].iter().any(|byte| *byte != 0))
        .collect();
    for round in 0..40 {
        let mut image = whole.clone();
        for _ in 0..=random.below(20) {
            let place = used[random.index(used.len())] * 64;
            let at = if round % 3 == 0 { 1024 + random.index(1024) } else { place };
            let value = [0, 0xff, 1, 0x80, random.word() as u8][random.index(5)];
            image[at + random.index(64)] = value;
        }
        fs::write(bench.path("disk.img"), image).unwrap();
        longhaul(args!["ls", uri, "/a"]);
        let out = bench.path(&format!("out{round}"));
        longhaul(args!["get", uri, "/a", out]);
        let _ = fs::remove_dir_all(out);
    }
}
