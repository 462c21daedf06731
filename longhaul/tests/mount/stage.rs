//! A directory in which volumes are mounted, and of which nothing is left: no mount, no loop device and no process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{LONGHAUL, PATIENCE, Running, run};
use crate::port::Port;

const TARGET: &str = "iqn.2026-11.dev.longhaul:disk";

pub(crate) struct Stage {
    home: tempfile::TempDir,
    port: Port,
}

/// Runs a program that must succeed; what it printed.
pub(crate) fn must(command: &mut Command) -> String {
    let (printed, status) = run(command);
    assert!(status.success(), "{command:?}: {printed}");
    printed
}

/// Writes a file, and waits until it is stable.
pub(crate) fn write_stable(path: &Path, data: impl AsRef<[u8]>) {
    fs::write(path, data).unwrap();
    fs::File::open(path).unwrap().sync_all().unwrap();
}

impl Stage {
    pub(crate) fn new() -> Self {
        for device in ["/dev/fuse", "/dev/loop-control"] {
            assert!(Path::new(device).exists(), "these tests need {device}: `modprobe fuse loop`");
        }
        let stage = Self { home: tempfile::tempdir().unwrap(), port: Port::reserve() };
        fs::create_dir(stage.mnt()).unwrap();
        fs::write(stage.path("secret"), "correct horse battery staple\n").unwrap();
        stage
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home().join(name)
    }

    /// Where things are mounted.
    pub(crate) fn mnt(&self) -> PathBuf {
        self.path("mnt")
    }

    pub(crate) fn uri(&self) -> String {
        format!("iscsi://127.0.0.1:{}/{TARGET}/0", self.port.number)
    }

    /// Where the server listens.
    pub(crate) fn port(&self) -> u16 {
        self.port.number
    }

    pub(crate) fn serve(&self, options: &str) -> Running {
        self.serve_file("disk.img", options)
    }

    pub(crate) fn serve_file(&self, file: &str, options: &str) -> Running {
        self.serve_sized(file, "128M", options)
    }

    pub(crate) fn serve_sized(&self, file: &str, size: &str, options: &str) -> Running {
        let port = self.port.number;
        self.serve_args(&format!(
            "--listen 127.0.0.1:{port} --volume=disk=file:{file},size={size} {options}"
        ))
    }

    pub(crate) fn serve_args(&self, args: &str) -> Running {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("exec \"$0\" serve {args} 2>>server.log"), LONGHAUL])
            .current_dir(self.home());
        command
            .env("STATE_DIRECTORY", self.path("server"))
            .env("RUNTIME_DIRECTORY", self.path("server"));
        let server = Running::start(&mut command);
        assert!(server.line().is_some_and(|line| line.starts_with("ready ")));
        server
    }

    pub(crate) fn environment(&self, command: &mut Command) {
        command
            .env("RUNTIME_DIRECTORY", self.path("run"))
            .env("LONGHAUL_STATE_DIR", self.path("state"));
        command.env("LONGHAUL_CONFIG_DIR", self.path("config"));
    }

    pub(crate) fn command(&self, args: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec \"$0\" {args} 2>&1"), LONGHAUL]).current_dir(self.home());
        self.environment(&mut shell);
        shell
    }

    /// Runs the program, which must succeed; what it printed.
    pub(crate) fn longhaul(&self, args: &str) -> String {
        must(&mut self.command(args))
    }

    /// The processes in the background.
    fn servers(&self) -> Vec<u32> {
        let sockets = fs::read_dir(self.path("run")).into_iter().flatten().flatten();
        let names = sockets.map(|socket| socket.file_name().to_string_lossy().into_owned());
        let pids = names
            .filter_map(|name| name.strip_prefix("attach-")?.strip_suffix(".sock")?.parse().ok());
        let home = self.home().to_str().unwrap();
        pids.filter(|pid| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&arguments).contains(home)
        })
        .collect()
    }

    /// All processes that serve or keep something below the directory.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.processes_with("--serve-at")
    }

    /// Those of them that a keeper has started.
    pub(crate) fn kept_processes(&self) -> Vec<u32> {
        self.processes_with("--kept-by")
    }

    fn processes_with(&self, option: &str) -> Vec<u32> {
        let home = self.home().to_str().unwrap().to_owned();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let arguments = String::from_utf8_lossy(&arguments).into_owned();
            arguments.contains(option) && arguments.contains(&home)
        })
        .collect()
    }

    /// The process that serves what is mounted, once it is another one than `before`.
    pub(crate) fn server_after(&self, before: Option<u32>) -> u32 {
        let found = std::cell::Cell::new(None);
        self.wait_until("another process serves the mount", || {
            found.set(self.servers().into_iter().find(|pid| Some(*pid) != before));
            found.get().is_some()
        });
        found.get().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let servers = self.servers();
        assert!(!servers.is_empty(), "nothing runs in the background");
        for pid in servers {
            kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
        }
    }

    /// Kills what serves and what keeps it, as a crash of the machine would.
    pub(crate) fn crash(&self) {
        // Who keeps a mount has no time to start another process.
        for pid in self.processes() {
            let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
        }
    }

    /// Kills the processes that keep what is mounted, and leaves those that serve it, or are about to.
    pub(crate) fn kill_keepers(&self) {
        let kept = self.kept_processes();
        for pid in self.processes().into_iter().filter(|pid| !kept.contains(pid)) {
            kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
        }
    }

    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("state/{name}.log"))).unwrap_or_default()
    }

    /// What is mounted below the directory, the latest first.
    pub(crate) fn mounted(&self) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        let home = self.home().to_str().unwrap();
        places.filter(|place| place.starts_with(home)).map(str::to_owned).rev().collect()
    }

    fn loops(&self) -> Vec<String> {
        let devices = fs::read_dir("/sys/block").unwrap().flatten();
        let over = devices.filter(|device| {
            let file =
                fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
            file.starts_with(self.home().to_str().unwrap())
        });
        over.map(|device| format!("/dev/{}", device.file_name().to_string_lossy())).collect()
    }

    /// Processes, mounts and loop devices that are still there.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let servers = self.servers().into_iter().map(|pid| format!("process {pid}"));
        servers.chain(self.mounted()).chain(self.loops()).collect()
    }

    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let last = Instant::now() + PATIENCE;
        while !is_so() {
            let left = self.leftovers();
            assert!(
                Instant::now() < last,
                "{what}: not in time; there is {left:?}; {}",
                self.log("disk")
            );
            std::thread::yield_now();
        }
    }
}

impl Drop for Stage {
    /// A test that fails leaves nothing behind.
    fn drop(&mut self) {
        self.crash();
        for mount in self.mounted() {
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
        for device in self.loops() {
            let _ = run(Command::new("losetup").args(["-d", &device]));
        }
    }
}
