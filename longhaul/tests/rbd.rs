//! Images of a Ceph cluster of our own as volumes: the contract, other users of the image, snapshots, names and rights, sizes
//! that change, and a cluster that does not answer. Needs root, and Debian's Ceph.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use common::{LONGHAUL, Running, run};
use host::rbd::{ImageSpec, Lock};
use longhaul::store::rbd::{RbdOptions, open};
use rustix::process::{Pid, Signal, kill_process};
use volume::{Durability, Kind, Span, Volume, check};

/// A cluster, ended with the last test that uses it.
struct Cluster(tempfile::TempDir);

/// What runs now.
static CLUSTER: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());

fn script(words: &str) -> (String, bool) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/ceph-cluster");
    let (said, status) = run(Command::new(path).args(words.split(' ')));
    (said, status.success())
}

impl Cluster {
    fn get() -> Arc<Self> {
        let mut running = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = running.upgrade() {
            return running;
        }
        let cluster = Arc::new(Self(tempfile::tempdir().unwrap()));
        let (said, is_up) = script(&format!("up {}", cluster.0.path().display()));
        assert!(is_up, "{said}");
        *running = Arc::downgrade(&cluster);
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn conf(&self) -> String {
        self.path("ceph.conf").display().to_string()
    }

    /// Runs one of Ceph's own tools, which must succeed.
    fn ceph(&self, words: &str) -> String {
        let mut words = words.split(' ');
        let mut command = Command::new(words.next().unwrap());
        let (said, status) = run(command.args(["--conf", &self.conf()]).args(words));
        assert!(status.success(), "{said}");
        said
    }

    fn spec(&self, image: &str) -> ImageSpec {
        ImageSpec {
            conf: Some(self.path("ceph.conf")),
            user: None,
            keyring: None,
            pool: "rbd".to_owned(),
            namespace: None,
            image: image.to_owned(),
            snapshot: None,
        }
    }

    fn uri(&self, image: &str) -> String {
        format!("rbd:{image}?conf={}", self.conf())
    }

    /// Stops an OSD, or lets it go on.
    fn signal(&self, daemon: &str, signal: Signal) {
        let pid = fs::read_to_string(self.path(&format!("{daemon}.pid"))).unwrap();
        kill_process(Pid::from_raw(pid.trim().parse().unwrap()).unwrap(), signal).unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let (said, is_down) = script(&format!("down {}", self.0.path().display()));
        assert!(is_down || std::thread::panicking(), "{said}");
    }
}

const WRITABLE: RbdOptions = RbdOptions { read_only: false, lock: Lock::Take, block_size: 512 };

/// What a test does with the program.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "exec 2>&1\nexec \"$0\" \"$@\"", LONGHAUL]).args(words);
        command.current_dir(&self.0).env("RUNTIME_DIRECTORY", self.0.path().join("run"));
        command
    }

    /// What a command says, and whether it succeeds.
    fn run(&self, words: &[&str]) -> (String, bool) {
        let (said, status) = run(&self.command(words));
        (said, status.success())
    }

    fn start(&self, words: &[&str]) -> Running {
        let running = Running::start(&mut self.command(words));
        says(&running, "ready ");
        running
    }
}

fn says(running: &Running, what: &str) -> String {
    let line = std::iter::from_fn(|| running.line()).find(|line| line.contains(what));
    line.unwrap_or_else(|| panic!("it never says {what:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn image_keeps_the_contract() {
    let cluster = Cluster::get();
    // With the map of what is allocated that RBD keeps, and without; of blocks of both sizes.
    for (number, (features, block_size)) in
        [("exclusive-lock,object-map,fast-diff", 512), ("exclusive-lock", 4096), ("layering", 512)]
            .into_iter()
            .enumerate()
    {
        let image = format!("contract-{number}");
        cluster.ceph(&format!("rbd create --size 40M --image-feature {features} {image}"));
        let options = RbdOptions { block_size, ..WRITABLE };
        let volume = Arc::new(open(&cluster.spec(&image), options).await.unwrap());
        check::volume(number as u64, Arc::clone(&volume) as Arc<dyn Volume>).await;
        let used = volume.extents().unwrap().extents(Span::new(0, 40 << 20)).await.unwrap();
        assert!(!used.is_empty());
        let close = volume.clone();
        longhaul::store::abilities::Close::close(&*close).await;
        let after = volume.write(0, vec![0; 4096].into(), Durability::Volatile).await;
        assert_eq!(after.unwrap_err().kind, Kind::Gone, "it is closed");
    }
}

/// What others read of an image is what was copied to it, and it takes space only where there are data.
#[test]
fn copies_are_what_ceph_and_qemu_read() {
    let (cluster, home) = (Cluster::get(), Home::new());
    cluster.ceph("rbd create --size 64M copied");
    let path = home.0.path().join("from.img");
    fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let data: Vec<u8> = (0..5 << 20).map(|at: u32| (at / 4096 + at) as u8 | 1).collect();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &data, 30 << 20).unwrap();
    let uri = cluster.uri("rbd/copied");
    let (said, done) = home.run(&["copy", "from.img", &uri, "--verify"]);
    assert!(done && said.contains("verified"), "{said}");
    let image = format!("rbd:rbd/copied:conf={}", cluster.conf());
    let qemu = ["compare", "-f", "raw", "-F", "raw", path.to_str().unwrap(), &image];
    let (said, status) = run(Command::new("qemu-img").args(qemu));
    assert!(status.success(), "{said}");
    let used = cluster.ceph("rbd du --format json copied");
    let used: serde_json::Value = serde_json::from_str(&used[used.find('{').unwrap()..]).unwrap();
    let used = used["images"][0]["used_size"].as_u64().unwrap();
    assert!((5 << 20..=12 << 20).contains(&used), "{used} bytes of 64 MiB are used");
    let (said, done) = home.run(&["copy", &uri, "back.img"]);
    assert!(done && said.contains("5.00 MiB of data"), "{said}");
    assert!(fs::read(home.0.path().join("back.img")).unwrap() == fs::read(&path).unwrap());
}

#[test]
fn image_has_one_writer_and_a_message_says_where_he_is() {
    let (cluster, home) = (Cluster::get(), Home::new());
    cluster.ceph("rbd create --size 16M locked");
    fs::write(home.0.path().join("in.img"), [7; 4096]).unwrap();
    let uri = cluster.uri("rbd/locked");
    let first = home.start(&["attach", &uri, "--nbd", "first.sock"]);
    let (said, done) = home.run(&["copy", "in.img", &uri]);
    assert!(!done, "{said}");
    for words in ["the client at 127.0.0.1", "has the exclusive lock of the image", "--take-over"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let (said, done) = home.run(&["copy", &uri, "out.img"]);
    assert!(done, "a source is only read: {said}");
    // QEMU gives its lock up to who asks for it, and does not get ours.
    let write = |to: &str| {
        let mut qemu = Command::new("qemu-io");
        let (said, _) = run(qemu.args(["-f", "raw", "-c", "write -P 9 0 4096", to]));
        said.contains("wrote 4096/4096")
    };
    assert!(!write(&format!("rbd:rbd/locked:conf={}", cluster.conf())));
    let socket = format!("nbd+unix:///?socket={}", home.0.path().join("first.sock").display());
    assert!(write(&socket));

    let (said, done) = home.run(&["copy", "in.img", &uri, "--take-over"]);
    assert!(done, "{said}");
    assert!(!write(&socket), "the cluster takes nothing from it any more");
    assert!(says(&first, "ERROR").contains("another has the image"));
    assert!(!first.stop().success());
    let (said, done) = home.run(&["copy", &uri, "again.img"]);
    assert!(done, "{said}");
    assert!(fs::read(home.0.path().join("again.img")).unwrap()[..4096] == [7; 4096]);
    // A process that is killed leaves a lock, which is nobody's.
    let killed = home.start(&["attach", &uri, "--nbd", "killed.sock"]);
    killed.kill();
    let last = std::time::Instant::now() + common::PATIENCE;
    while !home.run(&["copy", "in.img", &uri]).1 {
        assert!(std::time::Instant::now() < last, "it stays locked");
    }
}

#[test]
fn snapshots_namespaces_and_users_are_as_ceph_has_them() {
    let (cluster, home) = (Cluster::get(), Home::new());
    fs::write(home.0.path().join("old.img"), vec![1; 1 << 20]).unwrap();
    fs::write(home.0.path().join("new.img"), vec![2; 1 << 20]).unwrap();
    cluster.ceph("rbd namespace create rbd/tenant");
    cluster.ceph("rbd create --size 1M rbd/tenant/disk");
    let uri = cluster.uri("rbd/tenant/disk");
    assert!(home.run(&["copy", "old.img", &uri]).1);
    cluster.ceph("rbd snap create rbd/tenant/disk@monday");
    assert!(home.run(&["copy", "new.img", &uri]).1);
    let (said, done) = home.run(&["copy", &cluster.uri("rbd/tenant/disk@monday"), "monday.img"]);
    assert!(done, "{said}");
    let read = |name: &str| fs::read(home.0.path().join(name)).unwrap();
    assert!(read("monday.img") == read("old.img"));
    let (said, done) = home.run(&["copy", "new.img", &cluster.uri("rbd/tenant/disk@monday")]);
    assert!(!done && said.contains("read-only"), "{said}");

    let keyring = cluster.path("tenant.keyring");
    let rights = "mon 'profile rbd' osd 'profile rbd pool=rbd namespace=tenant'";
    let make = format!("ceph --conf {} auth get-or-create client.tenant {rights}", cluster.conf());
    let (said, status) =
        run(Command::new("sh").args(["-c", &format!("{make} -o {}", keyring.display())]));
    assert!(status.success(), "{said}");
    let as_tenant =
        |image: &str| format!("{}&id=tenant&keyring={}", cluster.uri(image), keyring.display());
    let (said, done) = home.run(&["copy", &as_tenant("rbd/tenant/disk"), "tenant.img"]);
    assert!(done && read("tenant.img") == read("new.img"), "{said}");
    for (image, words) in [
        (as_tenant("rbd/other"), "Operation not permitted"),
        (cluster.uri("rbd/none"), "`rbd ls POOL` lists images"),
        (cluster.uri("nopool/none"), "cannot open the pool nopool"),
        (cluster.uri("rbd/none") + "&id=nobody", "as client.nobody"),
        ("rbd:rbd/none?conf=/none".to_owned(), "?conf=FILE behind the image"),
    ] {
        let (said, done) = home.run(&["info", &image]);
        assert!(!done && said.contains(words), "{words}: {said}");
    }
}

#[test]
fn program_runs_without_librbd_and_names_the_package() {
    let home = Home::new();
    let hide = "for library in $(ldconfig -p | sed -n 's/.* => \\(.*librbd.*\\)/\\1/p'); do mount --bind /dev/null \
                $library; done; exec \"$0\" \"$@\" 2>&1";
    let run_without = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", hide, LONGHAUL]).args(words).current_dir(&home.0);
        run(&command)
    };
    let (said, status) = run_without(&["info", "rbd:rbd/disk"]);
    assert_eq!(status.code(), Some(1));
    assert!(said.contains("librbd") && said.contains("the package librbd1"), "{said}");
    let (said, status) = run_without(&["info", "memory:1M"]);
    assert!(status.success(), "{said}");
}

#[test]
fn luks_image_of_rbd_is_an_encrypted_volume() {
    let (cluster, home) = (Cluster::get(), Home::new());
    cluster.ceph("rbd create --size 24M private");
    let pass = home.0.path().join("pass");
    fs::write(&pass, "correct horse battery staple").unwrap();
    cluster.ceph(&format!("rbd encryption format private luks2 {}", pass.display()));
    let uri = cluster.uri("rbd/private");
    let with = ["--passphrase-file", "pass", "--key-memory", "4G"];
    fs::write(home.0.path().join("in.img"), vec![5; 1 << 20]).unwrap();
    let (said, done) = home.run(&[&["copy", "in.img", &uri][..], &with].concat());
    assert!(done, "{said}");
    // What it has written RBD reads, under the key that RBD has made.
    let script = format!(
        "qemu-img dd -U --image-opts if=driver=rbd,pool=rbd,image=private,conf={},encrypt.format=luks2,encrypt.key-secret=pass of={} \
         bs=1M count=1 --object secret,id=pass,file={}",
        cluster.conf(),
        home.0.path().join("out.img").display(),
        pass.display()
    );
    let (said, status) = run(Command::new("sh").args(["-c", &script]));
    assert!(status.success(), "{said}");
    assert!(fs::read(home.0.path().join("out.img")).unwrap() == vec![5; 1 << 20]);
}

#[test]
fn server_notices_that_an_image_has_another_size() {
    let (cluster, home) = (Cluster::get(), Home::new());
    cluster.ceph("rbd create --size 16M grows");
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\ncontrol = \"control.sock\"\n[volumes.grows]\nuri = \"{}\"\n",
        cluster.uri("rbd/grows")
    );
    fs::write(home.0.path().join("longhaul.toml"), config).unwrap();
    let server = Running::start(&mut home.command(&["serve", "--config", "longhaul.toml"]));
    let uri = says(&server, "ready ").strip_prefix("ready ").unwrap().to_owned();
    cluster.ceph("rbd resize --size 32M grows");
    let said = says(&server, "the image has another size");
    assert!(said.contains("to=33554432"), "{said}");
    let (said, done) = home.run(&["reload", "--control", "control.sock"]);
    assert!(done && said.contains("grown grows"), "{said}");
    let (said, _) = home.run(&["info", &uri]);
    assert!(said.contains("32M (33554432 bytes)"), "{said}");
    assert!(server.stop().success());
}

/// librbd writes what is before the end, and calls that success.
#[tokio::test(flavor = "multi_thread")]
async fn change_behind_the_end_of_a_smaller_image_fails_and_so_does_the_next_flush() {
    let cluster = Cluster::get();
    cluster.ceph("rbd create --size 16M shrinks");
    let volume = open(&cluster.spec("shrinks"), WRITABLE).await.unwrap();
    let (end, half) = (8_u64 << 20, 256_u64 << 10);
    volume.write(end - half, vec![7; 4096].into(), Durability::Volatile).await.unwrap();
    volume.flush().await.unwrap();
    cluster.ceph("rbd resize --allow-shrink --size 8M shrinks");
    let data = vec![8; 2 * half as usize];
    let written = volume.write(end - half, data.into(), Durability::Volatile).await;
    assert_eq!(written.unwrap_err().kind, Kind::Gone);
    assert!(volume.flush().await.is_err(), "what it lacks was not told to who waits for the flush");
    assert!(volume.read(Span::new(end - half, 2 * half)).await.is_err());
    assert!(volume.read(Span::new(end - half, half)).await.is_ok());
}

/// Requests wait for the cluster, for however long it is away, and go on.
#[test]
fn cluster_that_stands_still_costs_time_only() {
    let (cluster, home) = (Cluster::get(), Home::new());
    cluster.ceph("rbd create --size 16M waits");
    let uri = cluster.uri("rbd/waits");
    let attached = home.start(&["attach", &uri, "--nbd", "disk.sock"]);
    let socket = format!("nbd+unix:///?socket={}", home.0.path().join("disk.sock").display());
    for osd in ["osd.0", "osd.1"] {
        cluster.signal(osd, Signal::STOP);
    }
    let mut writer = Command::new("qemu-io")
        .args([
            "-f",
            "raw",
            "-c",
            "write -P 6 0 1M",
            "-c",
            "flush",
            "-c",
            "read -P 6 0 1M",
            &socket,
        ])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Until it has a client, which writes at once.
    let last = std::time::Instant::now() + common::PATIENCE;
    while !home.run(&["status"]).0.contains("1 client") {
        assert!(std::time::Instant::now() < last, "nobody writes");
    }
    assert!(writer.try_wait().unwrap().is_none(), "nobody can have taken it");
    for osd in ["osd.0", "osd.1"] {
        cluster.signal(osd, Signal::CONT);
    }
    let output = writer.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("read 1048576/1048576"), "{said}");
    assert!(attached.stop().success());
}
