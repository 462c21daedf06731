//! A network that parts: the client no longer reaches the active gateway, which reaches the shared state as ever and keeps its
//! lease, or that gateway no longer reaches Ceph, and the client both of them. Each gateway is in a network namespace of its own.
//! Needs root.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::ceph::Cluster;
use crate::common::run;
use crate::images::{FEATURES, in_cluster};
use crate::{NAMES, Pair, progress, under_load};

/// The namespaces of both gateways, and a link of each to this one. Dropping them removes all of it.
pub(crate) struct Links {
    names: [String; 2],
    pub(crate) hosts: [Ipv4Addr; 2],
    /// The ends of the links in this namespace.
    outer: [Ipv4Addr; 2],
}

/// What the device is called within a namespace.
const INNER: &str = "eth0";

fn ip(words: &str) {
    let mut command = Command::new("ip");
    let (said, status) = run(command.args(words.split(' ')));
    assert!(status.success(), "ip {words}: {said}");
}

impl Links {
    fn make() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        assert!(number < 2, "the addresses are for two");
        let names = NAMES.map(|name| format!("lh{pid}{name}{number}"));
        // Sixteen addresses of those for tests (RFC 2544) for each process.
        let first = Ipv4Addr::new(198, 18, 0, 0);
        let first = u32::from(first) + (pid % (1 << 13)) * 16 + number * 8;
        let address = |at: usize, end: u32| Ipv4Addr::from(first + 4 * at as u32 + end);
        let [hosts, outer] = [2, 1].map(|end| [address(0, end), address(1, end)]);
        let links = Self { names, hosts, outer };
        for (at, name) in links.names.iter().enumerate() {
            let (outer, inner) = (address(at, 1), address(at, 2));
            ip(&format!("netns add {name}"));
            ip(&format!("link add {name} type veth peer name {INNER} netns {name}"));
            ip(&format!("address add {outer}/30 dev {name}"));
            ip(&format!("link set {name} up"));
            ip(&format!("-n {name} address add {inner}/30 dev {INNER}"));
            ip(&format!("-n {name} link set {INNER} up"));
            ip(&format!("-n {name} route add default via {outer}"));
        }
        links
    }

    /// Where Ceph is, which both gateways reach.
    fn ceph(&self) -> Ipv4Addr {
        self.outer[0]
    }

    /// What runs a program at this gateway.
    pub(crate) fn enter(&self, at: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[at], program]);
        command
    }

    fn cut(&self, at: usize) {
        ip(&format!("-n {} link set {INNER} down", self.names[at]));
    }

    fn mend(&self, at: usize) {
        ip(&format!("-n {} link set {INNER} up", self.names[at]));
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for name in &self.names {
            // The device goes with its other end.
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn of_files() -> Pair {
    within(Links::make(), Pair::without_fence([1, 1]))
}

fn of_an_image() -> Pair {
    let links = Links::make();
    let pair = in_cluster(Cluster::start_at(links.ceph()), "parted", FEATURES, [1, 1]);
    within(links, pair)
}

/// The pair with each gateway in a namespace of these.
fn within(links: Links, mut pair: Pair) -> Pair {
    pair.edit(|config| {
        let at = |config: String, at: usize| {
            let of = |host| format!("{host}:{}", pair.ports[at].number);
            config.replace(&of(Ipv4Addr::LOCALHOST), &of(links.hosts[at]))
        };
        format!("insecure = true\n{}", at(at(config, 0), 1))
    });
    pair.links = Some(links);
    pair
}

/// Cuts the client off the active gateway. Somebody who sees that moves the volumes, and then mends the link.
fn cuts(pair: Pair, done: &AtomicU64) -> Pair {
    let links = pair.links.as_ref().unwrap();
    for active in [0, 1] {
        progress(done);
        links.cut(active);
        assert!(pair.is(active, "active"), "it has its lease");
        pair.ask(active, &["move"]);
        pair.wait_for(1 - active);
        progress(done);
        links.mend(active);
        progress(done);
    }
    // It comes back before anybody has done something.
    links.cut(0);
    links.mend(0);
    progress(done);
    pair
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_is_cut_off_the_active_gateway_goes_on_by_the_other_one_when_that_is_active() {
    under_load(of_files(), cuts).await;
}

/// Cuts the active gateway off the cluster that has the image and the record. Its lease runs out; nobody has to do anything.
fn cuts_off_ceph(pair: Pair, done: &AtomicU64) -> Pair {
    let links = pair.links.as_ref().unwrap();
    let route = |at: usize, change: &str| {
        ip(&format!("-n {} route {change} blackhole {}/32", links.names[at], links.ceph()));
    };
    for active in [0, 1] {
        progress(done);
        route(active, "add");
        pair.wait_for(1 - active);
        assert!(!pair.is(active, "active"));
        progress(done);
        route(active, "del");
        pair.until(active, "standby");
        progress(done);
    }
    pair
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_goes_on_by_the_other_gateway_when_the_active_one_is_cut_off_the_cluster_of_the_image()
 {
    under_load(of_an_image(), cuts_off_ceph).await;
}
