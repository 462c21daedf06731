//! A Ceph cluster of our own, for the tests of one program. Needs root, and Debian's Ceph.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use host::rbd::{Access, ImageSpec, PoolSpec};
use rustix::process::{Pid, Signal};

use crate::common::{run, send_signal};

/// A cluster, ended with the last test that uses it.
pub(crate) struct Cluster(tempfile::TempDir);

/// What runs now.
static CLUSTER: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());

fn script(words: &str) -> (String, bool) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/ceph-cluster");
    let (said, status) = run(Command::new(path).args(words.split(' ')));
    (said, status.success())
}

impl Cluster {
    pub(crate) fn get() -> Arc<Self> {
        let mut running = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = running.upgrade() {
            return running;
        }
        let cluster = Self::start();
        *running = Arc::downgrade(&cluster);
        cluster
    }

    /// One that other tests do not use, so that it can be stopped.
    pub(crate) fn start() -> Arc<Self> {
        Self::start_at(Ipv4Addr::new(127, 77, 0, 1))
    }

    /// The same at another address of this machine.
    pub(crate) fn start_at(address: Ipv4Addr) -> Arc<Self> {
        let cluster = Arc::new(Self(tempfile::tempdir().unwrap()));
        let (said, is_up) = script(&format!("up {} {address}", cluster.0.path().display()));
        assert!(is_up, "{said}");
        cluster
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn conf(&self) -> String {
        self.path("ceph.conf").display().to_string()
    }

    /// Runs one of Ceph's own tools, which must succeed.
    pub(crate) fn ceph(&self, words: &str) -> String {
        let mut words = words.split(' ');
        let mut command = Command::new(words.next().unwrap());
        let (said, status) = run(command.args(["--conf", &self.conf()]).args(words));
        assert!(status.success(), "{said}");
        said
    }

    pub(crate) fn access(&self) -> Access {
        Access { conf: Some(self.path("ceph.conf")), ..Access::default() }
    }

    pub(crate) fn pool(&self, namespace: Option<&str>) -> PoolSpec {
        let namespace = namespace.map(str::to_owned);
        PoolSpec { access: self.access(), pool: "rbd".to_owned(), namespace }
    }

    pub(crate) fn spec(&self, image: &str) -> ImageSpec {
        ImageSpec { pool: self.pool(None), image: image.to_owned(), snapshot: None }
    }

    pub(crate) fn uri(&self, image: &str) -> String {
        format!("rbd:{image}?conf={}", self.conf())
    }

    /// Makes a user with these rights; gives the file with its key.
    pub(crate) fn user(&self, name: &str, rights: &str) -> PathBuf {
        let keyring = self.path(&format!("{name}.keyring"));
        let make = format!("ceph --conf {} auth get-or-create client.{name} {rights}", self.conf());
        let make = format!("{make} -o {}", keyring.display());
        let (said, status) = run(Command::new("sh").args(["-c", &make]));
        assert!(status.success(), "{said}");
        keyring
    }

    /// Stops an OSD, or lets it go on.
    pub(crate) fn signal(&self, daemon: &str, signal: Signal) {
        let pid = fs::read_to_string(self.path(&format!("{daemon}.pid"))).unwrap();
        send_signal(Pid::from_raw(pid.trim().parse().unwrap()).unwrap(), signal);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let (said, is_down) = script(&format!("down {}", self.0.path().display()));
        assert!(is_down || std::thread::panicking(), "{said}");
    }
}
