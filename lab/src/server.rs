//! The targets under test, each started as its user would start it, pinned to one core, and ended by
//! its process id.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::running::{Job, output};

/// The core the target has for itself; the client has the other.
pub(crate) const TARGET_CORE: &str = "0";

/// For a target that may use all there are.
pub(crate) const BOTH_CORES: &str = "0,1";

/// How long a server may take to come up.
const START_MAX: Duration = Duration::from_secs(10);

/// A running target with one volume.
pub(crate) struct Server {
    job: Job,
    /// How a libiscsi client names the volume.
    pub(crate) uri: String,
}

impl Server {
    /// Longhaul over a volume named by a URI, on these cores, with further options.
    pub(crate) fn longhaul(
        program: &Path,
        cores: &str,
        volume: &str,
        options: &[&str],
    ) -> Result<Self, Failure> {
        let mut command = Command::new("taskset");
        command.args(["-c", cores]).arg(program);
        command.args(["--log", "warn", "serve", "--listen", "127.0.0.1:0"]);
        command.args(["--volume", &format!("bench={volume}")]).args(options);
        let mut job = Job::start(command.stdout(Stdio::piped()))?;
        let output = job.stdout().ok_or("no standard output")?;
        let mut server = Self { job, uri: String::new() };
        let mut ready = String::new();
        BufReader::new(output).read_line(&mut ready)?;
        let uri = ready.strip_prefix("ready ").ok_or("longhaul did not start")?;
        uri.trim().clone_into(&mut server.uri);
        Ok(server)
    }

    /// tgt over a file.
    pub(crate) fn tgt(file: &Path) -> Result<Self, Failure> {
        let port = free_port()?;
        // tgtd takes its control port as a signed 16-bit number.
        let control = (20_000 + std::process::id() % 10_000).to_string();
        let mut command = Command::new("taskset");
        command.args(["-c", TARGET_CORE, "tgtd", "-f", "-C", &control]);
        command.args(["--iscsi", &format!("portal=127.0.0.1:{port}")]);
        let job = Job::start(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
        let server = Self { job, uri: uri(port, 1) };
        wait_for(port)?;
        let file = file.to_str().ok_or("the path of the backing file is no text")?;
        for operation in [
            &["--op", "new", "--mode", "target", "--tid", "1", "-T", NAME][..],
            &["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", file],
            &["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"],
        ] {
            let mut command = Command::new("tgtadm");
            output(command.args(["-C", &control, "--lld", "iscsi"]).args(operation))?;
        }
        Ok(server)
    }

    /// The process to watch. `taskset` replaces itself by what it starts.
    pub(crate) fn pid(&self) -> u32 {
        self.job.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // tgtd ignores SIGTERM; a server that only held scratch data may go at once.
        self.job.kill();
    }
}

const NAME: &str = "iqn.2026-11.dev.longhaul:bench";

fn uri(port: u16, lun: u8) -> String {
    format!("iscsi://127.0.0.1:{port}/{NAME}/{lun}")
}

fn free_port() -> Result<u16, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn wait_for(port: u16) -> Result<(), Failure> {
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if start.elapsed() > START_MAX {
            return Err(format!("nothing listens on port {port}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
