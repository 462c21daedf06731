//! A volume as a mounted file system: from a blank volume to files and back, how it ends, and what is never done in silence.
//! It takes root, /dev/fuse and loop devices, as `make test` has them.

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod hangs;
mod images;
mod interrupted;
mod invited;
mod link;
mod memory;
#[path = "../common/port.rs"]
mod port;
mod refused;
mod stage;
mod takeover;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::run;
use link::Link;
use rustix::process::Signal;
use stage::{Stage, must, write_stable};

#[test]
fn blank_volume_becomes_a_private_file_system_that_is_found_again_by_name() {
    let stage = Stage::new();
    let server = stage.serve("");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --passphrase-file secret", stage.uri()));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(stage.mnt().to_str().unwrap())).unwrap();
    for option in ["nosuid", "nodev", "noatime"] {
        assert!(line.contains(option), "{line}");
    }
    must(
        Command::new("sh")
            .args(["-c", "tar -C /etc -cf - --exclude=shadow* . | tar -xf - -C mnt"])
            .current_dir(stage.home()),
    );
    fs::write(stage.mnt().join("a note"), "plain words that nobody else may read").unwrap();
    let status = stage.longhaul("status");
    assert!(status.contains("mounted at") && status.contains("connected"), "{status}");
    for told in ["link: round trip", "disk.journal: open", " used, ", "writes ", " commands, "] {
        assert!(status.contains(told), "{told}: {status}");
    }
    let metrics = stage.longhaul("status --metrics");
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name}: {metrics}"));
        assert!(line.contains("disk") && line.contains("attachment=\"iscsi://"), "{line}");
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    assert_eq!(value("longhaul_attachment_connected{").to_string(), "1");
    assert!(value("longhaul_attachment_round_trip_microseconds{") > 0.0);
    assert!(value("longhaul_attachment_journal_size_bytes{") > 0.0);
    assert!(value("longhaul_attachment_bytes_total{") > 0.0);
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    let told = stage.longhaul("umount mnt");
    assert!(told.contains("all that was written is on it"), "{told}");
    let stored = fs::read(stage.path("disk.img")).unwrap();
    assert!(stored.starts_with(b"LUKS"));
    assert!(
        !stored.windows(11).any(|bytes| bytes == b"plain words"),
        "plain text left this machine"
    );
    assert_eq!(stage.leftovers(), Vec::<String>::new());

    let volumes = stage.longhaul("volumes");
    assert!(volumes.starts_with(&format!("disk: {}", stage.uri())), "{volumes}");
    stage.longhaul("mount disk");
    assert_eq!(
        fs::read_to_string(stage.mnt().join("a note")).unwrap(),
        "plain words that nobody else may read"
    );
    must(
        Command::new("diff")
            .args(["-r", "--no-dereference", "/etc/alternatives"])
            .arg(stage.mnt().join("alternatives")),
    );
    stage.longhaul("umount disk");

    let told = stage.longhaul(&format!("mount {} --device --passphrase-file secret", stage.uri()));
    let node = told
        .split_whitespace()
        .find(|word| word.starts_with("/dev/loop"))
        .unwrap()
        .trim_end_matches(';');
    must(Command::new("e2fsck").args(["-f", "-n", node]));
    stage.longhaul("umount disk");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(server.stop().success());
}

#[test]
fn other_file_systems_and_volumes_of_this_machine_can_be_mounted_too() {
    let stage = Stage::new();
    stage.longhaul("mount file:xfs.img mnt --size 400M --mkfs xfs --raw");
    fs::write(stage.mnt().join("file"), vec![7; 3 << 20]).unwrap();
    must(Command::new("umount").arg(stage.mnt()));
    // Unmounted by another program: the process in the background ends by itself.
    stage.wait_until("nothing is attached", || stage.leftovers().is_empty());
    stage.longhaul("mount file:xfs.img mnt --read-only");
    assert_eq!(fs::read(stage.mnt().join("file")).unwrap(), vec![7; 3 << 20]);
    fs::write(stage.mnt().join("file"), "").unwrap_err();
    stage.longhaul("umount mnt");
}

#[test]
fn volume_keeps_its_name_and_what_is_remembered_of_it() {
    let stage = Stage::new();
    let server = stage.serve("");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw --name mine", stage.uri()));
    stage.longhaul("umount mine");
    // By its name it is mounted once as it was asked for now, and by that name it is known: its journal has that too.
    let told = stage.longhaul("mount mine --read-only");
    assert!(told.contains("is mounted read-only at"), "{told}");
    stage.longhaul("umount mine");
    stage.longhaul("mount mine --device");
    stage.longhaul("umount mine");
    let told = stage.longhaul("mount mine");
    assert!(told.contains("is mounted at"), "{told}");
    fs::write(stage.mnt().join("file"), "written").unwrap();
    stage.longhaul("umount mine");
    // So it is called also where it is mounted by its URI again.
    stage.longhaul(&format!("mount {} mnt", stage.uri()));
    stage.longhaul("umount mine");
    assert_eq!(stage.longhaul("volumes").matches(&stage.uri()).count(), 1);
    let journals = fs::read_dir(stage.path("state")).unwrap().flatten();
    let names = journals.map(|file| file.file_name().into_string().unwrap());
    let journals: Vec<_> = names.filter(|name| name.ends_with(".journal")).collect();
    assert_eq!(journals, ["mine.journal"]);
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(server.stop().success());
}

#[test]
fn block_device_holds_what_fio_writes_and_verifies() {
    let stage = Stage::new();
    let server = stage.serve("");
    let told = stage.longhaul(&format!("mount {} --device", stage.uri()));
    let node = told
        .split_whitespace()
        .find(|word| word.starts_with("/dev/loop"))
        .unwrap()
        .trim_end_matches(';');
    let number = node.trim_start_matches("/dev/");
    let direct = fs::read_to_string(format!("/sys/block/{number}/loop/dio")).unwrap();
    assert_eq!(direct.trim(), "1", "the loop device keeps a second copy in memory");
    let mut fio = Command::new("fio");
    fio.args([
        "--name=verify",
        "--rw=randwrite",
        "--bsrange=4k-256k",
        "--blockalign=4k",
        "--direct=1",
    ]);
    fio.args(["--ioengine=libaio", "--iodepth=32", "--size=48M", "--verify=crc32c", "--fsync=64"]);
    must(
        fio.arg(format!("--filename={node}"))
            .arg("--output-format=terse")
            .current_dir(stage.home()),
    );
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}

#[test]
fn server_that_is_killed_under_load_and_comes_back_costs_time_only() {
    let stage = Stage::new();
    let mut server = stage.serve("");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --passphrase-file secret", stage.uri()));
    let mnt = stage.mnt();
    let writer = std::thread::spawn(move || {
        for n in 0..24_u8 {
            write_file(&mnt, n);
        }
    });
    for round in 0..3 {
        let file = stage.mnt().join(format!("file {}", 6 * round));
        stage.wait_until("the writer goes on", || file.exists() || writer.is_finished());
        server.kill();
        server = stage.serve("");
    }
    writer.join().unwrap();
    check_files(&stage, 24);
    assert!(server.stop().success());
}

/// Writes the `n`th file, and waits until it is stable.
fn write_file(mnt: &Path, n: u8) {
    write_stable(&mnt.join(format!("file {n}")), vec![n; 1 << 20]);
}

/// After another mount, the first files are there.
fn check_files(stage: &Stage, count: u8) {
    stage.longhaul("umount mnt");
    stage.longhaul("mount disk");
    for n in 0..count {
        let found = fs::read(stage.mnt().join(format!("file {n}"))).unwrap();
        assert!(found == vec![n; 1 << 20], "file {n}");
    }
    stage.longhaul("umount disk");
}

#[test]
fn link_that_is_cut_under_load_costs_time_only() {
    let stage = Stage::new();
    let server = stage.serve("");
    let link = Link::to(stage.port());
    let uri = stage.uri().replace(&format!(":{}/", stage.port()), &format!(":{}/", link.port));
    stage.longhaul(&format!("mount {uri} mnt --mkfs ext4 --passphrase-file secret"));
    for n in 0..16_u8 {
        let mnt = stage.mnt();
        let written = std::thread::spawn(move || write_file(&mnt, n));
        if n % 4 == 0 {
            stage.wait_until("the link is used again", || link.cut());
        }
        written.join().unwrap();
    }
    check_files(&stage, 16);
    assert!(server.stop().success());
}

/// How long a process is stopped at least, beside what it takes to be noticed.
fn stopped_for() -> Duration {
    let seconds = std::env::var("LONGHAUL_STOPPED");
    Duration::from_secs(seconds.map_or(0, |text| text.parse().expect("a number")))
}

/// One that is stopped answers nothing and closes nothing, as one whose machine is out of memory.
#[test]
fn server_that_is_stopped_costs_time_only() {
    let stage = Stage::new();
    let server = stage.serve("");
    let mount = format!("mount {} mnt --mkfs ext4 --raw --journal none", stage.uri());
    stage.longhaul(&mount);
    server.signal(Signal::STOP);
    let mnt = stage.mnt();
    let writer = std::thread::spawn(move || write_file(&mnt, 0));
    stage.wait_until("it is noticed", || {
        let status = stage.longhaul("status");
        status.contains("have had no answer") || status.contains("reconnecting")
    });
    std::thread::sleep(stopped_for());
    assert!(!writer.is_finished(), "it was told that its file is stable");
    server.signal(Signal::CONT);
    writer.join().unwrap();
    check_files(&stage, 1);
    assert!(server.stop().success());
}

#[test]
fn server_that_is_stopped_is_not_noticed_by_who_has_a_journal() {
    let stage = Stage::new();
    let server = stage.serve("");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw --journal j,size=64M", stage.uri()));
    server.signal(Signal::STOP);
    write_file(&stage.mnt(), 0);
    std::thread::sleep(stopped_for());
    write_file(&stage.mnt(), 1);
    server.signal(Signal::CONT);
    check_files(&stage, 2);
    assert!(server.stop().success());
}

/// Nobody takes it for dead.
#[test]
fn process_that_is_stopped_costs_time_only() {
    let stage = Stage::new();
    let server = stage.serve("");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw", stage.uri()));
    let before = stage.server_after(None);
    stage.signal(Signal::STOP);
    let mnt = stage.mnt();
    let writer = std::thread::spawn(move || write_file(&mnt, 0));
    let (printed, status) = run(&stage.command("status"));
    assert!(!status.success() && printed.contains("it does not answer"), "{printed}");
    std::thread::sleep(stopped_for());
    assert!(!writer.is_finished(), "it was told that its file is stable");
    stage.signal(Signal::CONT);
    writer.join().unwrap();
    assert_eq!(stage.server_after(None), before);
    check_files(&stage, 1);
    assert!(server.stop().success());
}

#[test]
fn writes_that_the_servers_disk_had_no_room_for_are_told_by_umount() {
    let stage = Stage::new();
    fs::create_dir(stage.path("small")).unwrap();
    must(
        Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=40M", "none"])
            .arg(stage.path("small")),
    );
    let server = stage.serve_file("small/disk.img", "");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw", stage.uri()));
    let written = fs::write(stage.mnt().join("large"), vec![7; 60 << 20]);
    let synced = written.and_then(|()| fs::File::open(stage.mnt().join("large"))?.sync_all());
    assert!(synced.is_err(), "a full disk was taken for a disk");
    let (printed, status) = run(&stage.command("umount mnt"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("no space left") || printed.contains("not given all"), "{printed}");
    assert_eq!(stage.mounted(), [stage.path("small").to_str().unwrap()]);
    server.kill();
    must(Command::new("umount").arg(stage.path("small")));
}

/// Without a journal what was not flushed goes with the machine: that there is none is told before it matters.
#[test]
fn mount_says_that_it_makes_no_journal_and_why() {
    let stage = Stage::new();
    let server = stage.serve_file("disk.img", "");
    let (state, small) = (stage.path("state"), stage.path("small.img"));
    fs::create_dir_all(&state).unwrap();
    fs::File::create(&small).unwrap().set_len(64 << 20).unwrap();
    must(Command::new("mkfs.ext4").arg("-q").arg(&small));
    let small = small.to_str().unwrap();
    let cases: [(&[&str], &str, &str); 2] = [
        (
            &["-t", "tmpfs", "none"],
            "--mkfs ext4",
            "since its directory lies in memory: a flush waits",
        ),
        (&["-o", "loop", small], "", "since less than 512M are free there: a flush waits"),
    ];
    for (place, mkfs, told) in cases {
        must(Command::new("mount").args(place).arg(&state));
        let printed = stage.longhaul(&format!("mount {} mnt {mkfs} --raw", stage.uri()));
        assert!(printed.contains("no journal is made") && printed.contains(told), "{printed}");
        stage.longhaul("umount mnt");
        must(Command::new("umount").arg("--lazy").arg(&state));
    }
    assert!(server.stop().success());
}
