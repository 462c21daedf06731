//! Images of a Ceph cluster of our own as volumes: the contract, other users of the image, snapshots, names and rights, sizes
//! that change, and a cluster that does not answer. Needs root, and Debian's Ceph.

#[path = "common/ceph.rs"]
mod ceph;
mod common;

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ceph::Cluster;
use common::{LONGHAUL, Running, run};
use host::rbd::{Client, Lock, Objects};
use longhaul::store::rbd::{RbdOptions, open};
use rustix::process::Signal;
use volume::{Durability, Kind, Span, Volume, check};

const WRITABLE: RbdOptions =
    RbdOptions { client: None, read_only: false, lock: Lock::Take, block_size: 512 };

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

/// Its buffers are not cleared before librbd has them: that does so wherever an object is missing or short, also one of several
/// that a request reads, and of a clone.
#[tokio::test(flavor = "multi_thread")]
async fn holes_read_as_zeroes_whatever_the_memory_had() {
    const OBJECT: u64 = 4 << 20;
    const LEN: usize = 256 << 10;
    let cluster = Cluster::get();
    cluster.ceph("rbd create --size 16M holes");
    cluster.ceph("rbd snap create holes@empty");
    cluster.ceph("rbd snap protect holes@empty");
    cluster.ceph("rbd clone holes@empty of-holes");
    for image in ["holes", "of-holes"] {
        let volume = open(&cluster.spec(image), WRITABLE).await.unwrap();
        for at in [8192, 2 * OBJECT] {
            let data = vec![7; 4096].into();
            volume.write(at, data, Durability::Volatile).await.unwrap();
        }
        for at in [0, OBJECT - LEN as u64 / 2, OBJECT, 2 * OBJECT - LEN as u64 / 2, 3 * OBJECT] {
            // As many as the allocator may have for the next buffer of this size.
            drop((0..32).map(|_| vec![0xa5_u8; LEN]).collect::<Vec<_>>());
            let found = volume.read(Span::new(at, LEN as u64)).await.unwrap();
            let is_data = |at: u64| [8192, 2 * OBJECT].contains(&(at & !4095));
            let expected: Vec<u8> =
                (at..at + LEN as u64).map(|at| if is_data(at) { 7 } else { 0 }).collect();
            assert!(found == expected, "{image} at {at}");
        }
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

    let rights = "mon 'profile rbd' osd 'profile rbd pool=rbd namespace=tenant'";
    let keyring = cluster.user("tenant", rights);
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

/// An object is replaced whole, by whoever knows what is there.
#[test]
fn object_is_replaced_only_if_it_is_as_expected() {
    let cluster = Cluster::get();
    let client = Client::connect(&cluster.access(), Some(Duration::from_secs(30))).unwrap();
    let objects = Objects::open(&client, &cluster.pool(Some("objects"))).unwrap();
    let at_two = |text: &str| [(0, b"ab".to_vec()), (2, text.as_bytes().to_vec())];
    assert_eq!(objects.read("one", 100).unwrap(), None);
    assert!(!objects.replace("one", &at_two("1"), b"ab2").unwrap(), "there is nothing to replace");
    assert!(objects.attributes("one").unwrap().is_empty());
    objects.set_attribute("one", "seen", b"1").unwrap_err();
    assert_eq!(objects.read("one", 100).unwrap(), None, "no attribute makes an object");
    assert_eq!([b"ab1", b"ab9"].map(|new| objects.create("one", new).unwrap()), [true, false]);
    assert_eq!(
        ["2", "1", "1"].map(|is| objects.replace("one", &at_two(is), b"ab2").unwrap()),
        [false, true, false]
    );
    objects.set_attribute("one", "seen", &[0, 255]).unwrap();
    assert_eq!(objects.attributes("one").unwrap()["seen"], [0, 255]);
    assert_eq!(objects.read("one", 100).unwrap().unwrap(), b"ab2");
    // Longer than what is read at first; and than what is wanted.
    let long = [&b"ab3"[..], &vec![7; 300_000]].concat();
    assert!(objects.replace("one", &at_two("2"), &long).unwrap());
    assert!(objects.read("one", 1 << 20).unwrap().unwrap() == long);
    assert_eq!(objects.read("one", 1000).unwrap_err().kind(), std::io::ErrorKind::FileTooLarge);
    assert!(objects.read("one", long.len()).unwrap().unwrap() == long);
}

/// Ceph's OSDs learn late of who is blocklisted: whoever comes after has to see to it that those it uses know.
#[tokio::test(flavor = "multi_thread")]
async fn write_of_one_who_was_blocklisted_does_not_land_behind_that_of_its_successor() {
    let cluster = Cluster::get();
    // No lock of an image plays a part in it.
    cluster.ceph("rbd create --size 16M --image-feature layering fenced");
    let connect = || Client::connect(&cluster.access(), None).unwrap();
    let (watcher, spec) = (connect(), cluster.spec("fenced"));
    let open_by = |client: &Arc<Client>| {
        let options = RbdOptions { client: Some(client.clone()), lock: Lock::Leave, ..WRITABLE };
        open(&spec, options)
    };
    let write = |volume: Arc<longhaul::store::rbd::Rbd>, byte: u8| async move {
        volume.write(0, vec![byte; 4096].into(), Durability::Volatile).await
    };
    for round in 1..=10 {
        let (former, next) = (connect(), connect());
        let former_volume = Arc::new(open_by(&former).await.unwrap());
        write(former_volume.clone(), 100).await.unwrap();
        // One that is under way when it is fenced, and one that it begins later.
        for osd in ["osd.0", "osd.1"].into_iter().filter(|_| round % 5 == 0) {
            cluster.signal(osd, Signal::STOP);
        }
        let under_way = tokio::spawn(write(former_volume.clone(), 101));
        tokio::task::yield_now().await;
        watcher.blocklist(&former.address().unwrap(), Duration::from_secs(60)).unwrap();
        for osd in ["osd.0", "osd.1"].into_iter().filter(|_| round % 5 == 0) {
            cluster.signal(osd, Signal::CONT);
        }
        let volume = Arc::new(open_by(&next).await.unwrap());
        write(volume.clone(), round).await.unwrap();
        let late = write(former_volume.clone(), 102).await;
        assert_eq!(late.unwrap_err().kind, Kind::Gone);
        let _either_way = under_way.await.unwrap();
        let read = volume.read(Span::new(0, 4096)).await.unwrap();
        assert!(read == vec![round; 4096], "round {round} reads {}", read[0]);
        assert!(former_volume.read(Span::new(0, 512)).await.is_err(), "nor does it read");
    }
}
