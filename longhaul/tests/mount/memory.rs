//! Memory that is short: what writes to a mount waits, and what serves the mount goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::common::run;
use super::stage::{Stage, must};

/// What the cgroup may use.
const MEMORY: u64 = 256 << 20;

/// How much is written, by two writers.
const DIRTIED: u64 = 4 * MEMORY;

/// A cgroup with little memory, of either version. Removed when it is dropped, once all in it have ended.
struct Cgroup {
    dir: PathBuf,
    is_v2: bool,
}

impl Cgroup {
    fn new() -> Self {
        let root = Path::new("/sys/fs/cgroup");
        let is_v2 = root.join("cgroup.controllers").exists();
        let (parent, limit) = match is_v2 {
            true => (root.to_owned(), "memory.max"),
            false => (root.join("memory"), "memory.limit_in_bytes"),
        };
        if is_v2 {
            fs::write(parent.join("cgroup.subtree_control"), "+memory").unwrap();
        }
        let dir = parent.join(format!("longhaul-test-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let cgroup = Self { dir, is_v2 };
        fs::write(cgroup.dir.join(limit), MEMORY.to_string()).unwrap();
        cgroup
    }

    fn procs(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// How many processes were killed in it for want of memory.
    fn killed(&self) -> u64 {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let told = fs::read_to_string(self.dir.join(file)).unwrap();
        let line = told.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.unwrap_or_else(|| panic!("{told}")).parse().unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let parent = self.dir.parent().unwrap();
        for pid in fs::read_to_string(self.procs()).unwrap_or_default().lines() {
            let _ = fs::write(parent.join("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Lines of this, as many bytes as are wanted.
fn pattern(number: usize) -> String {
    format!("yes 'file {number}, a line that is no zero' | head -c {}", DIRTIED / 2)
}

/// Writes a file through the page cache of the cgroup, and synchronises it. A writer that gets nowhere is ended.
fn write(cgroup: &Cgroup, file: &Path, number: usize) -> Child {
    let procs = cgroup.procs();
    let script = format!(
        "echo $$ > {} && {} | timeout 300 dd of={} bs=1M iflag=fullblock conv=fsync status=none",
        procs.display(),
        pattern(number),
        file.display(),
    );
    Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn().unwrap()
}

#[test]
fn writers_that_dirty_four_times_their_memory_end_with_the_server_of_the_mount_beside_them() {
    let stage = Stage::new();
    let server = stage.serve_sized("disk.img", "1536M", "");
    let journal = "--journal j,size=64M";
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw {journal}", stage.uri()));
    let before = stage.server_after(None);
    let cgroup = Cgroup::new();
    let files = [0, 1].map(|number| stage.mnt().join(number.to_string()));
    let writers = [0, 1].map(|number| write(&cgroup, &files[number], number));
    for mut writer in writers {
        assert!(writer.wait().unwrap().success(), "{}", stage.log("disk"));
    }
    assert_eq!(cgroup.killed(), 0);
    assert_eq!(stage.server_after(None), before, "the process that serves it was killed");
    stage.longhaul("umount disk");
    drop(cgroup);
    stage.longhaul("mount disk");
    for (number, file) in files.iter().enumerate() {
        let compare = format!("{} | cmp - {}", pattern(number), file.display());
        must(Command::new("sh").args(["-c", &compare]));
    }
    stage.longhaul("umount disk");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(server.stop().success());
}

#[test]
fn mounted_device_is_refused_as_swap_space() {
    let stage = Stage::new();
    stage.longhaul("mount file:disk.img mnt --size 64M --mkfs ext4 --raw");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(stage.mnt().to_str().unwrap())).unwrap();
    let device = line.split(' ').next().unwrap();
    let (told, status) = run(Command::new("swapon").arg(device));
    assert!(!status.success(), "{told}");
    assert!(!fs::read_to_string("/proc/swaps").unwrap().contains(device));
    stage.longhaul("umount mnt");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
}
