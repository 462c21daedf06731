//! Files and block devices of this machine that somebody else uses.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::common::{LONGHAUL, Running, run};

fn must(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A directory with `disk.img`, and a loop device over it if a test wants one.
struct Fixture {
    dir: tempfile::TempDir,
    device: Option<String>,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::File::create(dir.path().join("disk.img")).unwrap().set_len(16 << 20).unwrap();
        fs::write(dir.path().join("in.img"), [5; 4096]).unwrap();
        fs::write(dir.path().join("key"), "pass-phrase").unwrap();
        Self { dir, device: None }
    }

    fn with_loop() -> Self {
        let mut fixture = Self::new();
        let file = fixture.path().join("disk.img");
        fixture.device = Some(must("losetup", &["--find", "--show", file.to_str().unwrap()]));
        fixture
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn longhaul(&self, line: &str) -> Command {
        let mut command = Command::new(LONGHAUL);
        command.args(line.split(' ')).current_dir(self.path());
        command.env("LONGHAUL_STATE_DIR", self.path().join("state"));
        command
    }

    /// What a command that must fail says.
    fn refused(&self, line: &str) -> String {
        let (printed, status) = run(&self.longhaul(line));
        assert_eq!(status.code(), Some(1), "{line}: {printed}");
        printed
    }

    /// Every command that writes to `uri`.
    fn writers(uri: &str) -> [String; 4] {
        [
            format!("serve --listen 127.0.0.1:0 --volume t={uri}"),
            format!("attach {uri} --nbd disk.sock"),
            format!("copy in.img {uri}"),
            format!(
                "key init {uri} --force --passphrase-file key --pbkdf-iterations 4 --pbkdf-memory 32K"
            ),
        ]
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path().join("mnt")).output();
        if let Some(device) = &self.device {
            let _ = Command::new("losetup").args(["--detach", device]).output();
        }
    }
}

#[test]
fn writers_of_a_mounted_image_are_refused_and_told_where_it_is_mounted() {
    let fixture = Fixture::with_loop();
    let device = fixture.device.clone().unwrap();
    must("mkfs.ext4", &["-q", &device]);
    let mnt = fixture.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    must("mount", &[&device, mnt.to_str().unwrap()]);
    let mounted = format!("mounted at {}", mnt.display());
    let before = fs::read(fixture.path().join("disk.img")).unwrap();
    let backing = format!("it is the backing file of the loop device {device}, which is {mounted}");
    for line in Fixture::writers("file:disk.img") {
        let said = fixture.refused(&line);
        assert!(said.contains(&backing) && said.contains("losetup --detach"), "{line}: {said}");
    }
    for line in Fixture::writers(&format!("device:{device}")) {
        let said = fixture.refused(&line);
        assert!(said.contains(&format!("it is {mounted}")), "{line}: {said}");
    }
    let after = fs::read(fixture.path().join("disk.img")).unwrap();
    assert!(before == after, "nothing was written");
    let (said, status) = run(&fixture.longhaul("copy --raw disk.img out.img"));
    assert!(status.success() && said.contains("may be read in part"), "{said}");
}

#[test]
fn check_tells_of_a_volume_that_is_behind_a_loop_device() {
    let fixture = Fixture::with_loop();
    let config = "listen = [\"127.0.0.1:0\"]\n[volumes.t]\nuri = \"file:disk.img\"\n";
    fs::write(fixture.path().join("l.toml"), config).unwrap();
    let (said, status) = run(&fixture.longhaul("check --config l.toml"));
    assert_eq!(status.code(), Some(2), "{said}");
    let device = fixture.device.clone().unwrap();
    assert!(said.contains(&format!("the backing file of the loop device {device}")), "{said}");
    let config = config.to_owned() + "read_only = true\n";
    fs::write(fixture.path().join("l.toml"), config).unwrap();
    let (said, status) = run(&fixture.longhaul("check --config l.toml"));
    assert!(status.success(), "{said}");
}

#[test]
fn process_that_uses_a_file_is_named() {
    let fixture = Fixture::new();
    let mut served = fixture.longhaul("attach file:disk.img --nbd disk.sock");
    let served = Running::start(served.stderr(Stdio::null()));
    assert!(served.line().is_some_and(|line| line.starts_with("ready ")));
    let said = fixture.refused("copy disk.img out.img");
    let holder = format!("it is in use by process {} (longhaul)", served.pid());
    assert!(said.contains(&holder), "{said}");
    // Other programs know of it by the locks that QEMU uses.
    let write = ["-f", "raw", "-c", "write 0 4k"];
    let (said, status) =
        run(Command::new("qemu-io").args(write).arg(fixture.path().join("disk.img")));
    assert!(!status.success() && said.contains("lock"), "{said}");
    assert!(served.stop().success());
}

/// QEMU locks bytes of a file for as long as it has it open, and takes no `flock`.
#[test]
fn file_that_qemu_has_open_is_refused_and_qemu_named() {
    let fixture = Fixture::new();
    let socket = fixture.path().join("qemu.sock");
    let mut qemu = Command::new("qemu-nbd");
    qemu.args(["--persistent", "--format", "raw", "--socket"]).arg(&socket);
    let mut qemu = qemu.arg(fixture.path().join("disk.img")).stdout(Stdio::null()).spawn().unwrap();
    let last = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !socket.exists() && std::time::Instant::now() < last {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let holder = format!("it is in use by process {} (qemu-nbd)", qemu.id());
    let said = [fixture.refused("copy in.img disk.img"), fixture.refused("copy disk.img out.img")];
    qemu.kill().unwrap();
    qemu.wait().unwrap();
    assert!(said.iter().all(|said| said.contains(&holder)), "{said:?}");
    let (said, status) = run(&fixture.longhaul("copy in.img disk.img"));
    assert!(status.success(), "{said}");
    let mut start = [0; 4096];
    fs::File::open(fixture.path().join("disk.img")).unwrap().read_exact_at(&mut start, 0).unwrap();
    assert_eq!(start, [5; 4096]);
}
