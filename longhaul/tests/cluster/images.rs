//! Two gateways of one image of Ceph: the record is in RADOS, and the cluster takes nothing from a gateway that was replaced.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use host::rbd::{Client, Objects};
use proto::cluster::Record;
use proto::iscsi::header::{Header, ScsiCommand};
use proto::iscsi::pdu::Pdu;
use rustix::process::Signal;

use crate::ceph::Cluster;
use crate::common::{LONGHAUL, PATIENCE, run};
use crate::faults::until_one_is_active;
use crate::groups::DATA;
use crate::{
    GOOD, HOST, OTHER, Pair, REGISTER, STANDBY, TARGET, keys, killed_gateway_is_replaced, progress,
    refusal, reserve_out, session, session_with, under_load, write,
};

/// The name of the object with the record.
const OBJECT: &str = "longhaul-cluster";

pub(crate) const FEATURES: &str = "exclusive-lock,object-map,fast-diff";

/// A pair that serves a new image of that name, and has its record in the namespace of that name.
fn of_image(image: &str, features: &str, groups: [u16; 2]) -> Pair {
    in_cluster(Cluster::get(), image, features, groups)
}

pub(crate) fn in_cluster(
    cluster: Arc<Cluster>,
    image: &str,
    features: &str,
    groups: [u16; 2],
) -> Pair {
    cluster.ceph(&format!("rbd create --size 1M --image-feature {features} rbd/{image}"));
    let mut pair = Pair::without_fence(groups);
    let (uri, conf) = (cluster.uri(&format!("rbd/{image}")), cluster.conf());
    pair.edit(|config| {
        let state = format!("state = 'rados:rbd/{image}?conf={conf}'");
        config.replace("directory = '../record'", &state).replace("file:../disk.img", &uri)
    });
    pair.image = Some((cluster, image.to_owned()));
    pair
}

impl Pair {
    fn cluster(&self) -> &Arc<Cluster> {
        &self.image.as_ref().unwrap().0
    }

    fn objects(&self) -> Objects {
        let (cluster, image) = self.image.as_ref().unwrap();
        let client = Client::connect(&cluster.access(), Some(Duration::from_secs(30))).unwrap();
        Objects::open(&client, &cluster.pool(Some(image))).unwrap()
    }

    fn record(&self) -> Record {
        self.record_in(OBJECT)
    }

    fn record_in(&self, object: &str) -> Record {
        let bytes = self.objects().read(object, 1 << 20).unwrap().unwrap();
        Record::decode(&bytes).unwrap()
    }

    /// For how many days to come the cluster refuses this address, if it does.
    fn days_shut_out(&self, address: &str) -> Option<u64> {
        let listed = self.cluster().ceph("ceph osd blocklist ls");
        let until = listed.lines().find_map(|line| line.strip_prefix(address))?.trim();
        let [until, now] = [until, "now"].map(|at| {
            let (said, status) = run(Command::new("date").args(["+%s", "-d", at]));
            assert!(status.success(), "{said}");
            said.trim().parse::<u64>().unwrap()
        });
        Some(until.saturating_sub(now) / (24 * 3600))
    }

    /// What a command of the gateway says, and its exit status.
    fn run(&self, at: usize, words: &[&str]) -> (String, Option<i32>) {
        let mut command = Command::new(LONGHAUL);
        command.args(words).args(["--config", "longhaul.toml"]).current_dir(self.dir(at));
        let (said, status) = run(&command);
        (said, status.code())
    }
}

#[test]
fn standby_of_an_image_takes_over_when_the_active_gateway_is_killed() {
    let pair = of_image("killed", FEATURES, [1, 2]);
    let (said, status) = pair.run(0, &["check"]);
    assert_eq!(status, Some(0), "{said}");
    killed_gateway_is_replaced(pair.started());
}

/// One that is stopped keeps nobody waiting, as it would where only the lock on a file keeps it away.
#[test]
fn gateway_of_an_image_that_is_stopped_is_shut_out_and_answers_nothing() {
    for (image, features) in [("stopped", FEATURES), ("stopped-unlocked", "layering")] {
        let pair = of_image(image, features, [1, 2]).started();
        let mut active = session(pair.address(0), HOST);
        assert_eq!((write(&mut active), refusal(&mut active)), (GOOD, None));
        let before = pair.record();
        assert_eq!(before.holder.unwrap().gateway.as_str(), "a");
        pair.signal(0, Signal::STOP);
        pair.wait_for(1);
        let mut next = session(pair.address(1), OTHER);
        assert_eq!((refusal(&mut next), write(&mut next)), (None, GOOD));
        let address = before.address.unwrap();
        let days = pair.days_shut_out(&address).expect("it is on the blocklist");
        assert!((5..=7).contains(&days), "for {days} days");
        let content = pair.content();
        for itt in 100..110 {
            let cdb = [0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
            let command = active.command(itt, cdb);
            active.send(ScsiCommand { write: true, expected_len: 512, ..command }, vec![9; 512]);
        }
        pair.signal(0, Signal::CONT);
        while let Some(Pdu { header, .. }) = active.receive() {
            let is_good = matches!(&header, Header::ScsiResponse(it) if it.status == GOOD);
            assert!(!is_good, "{header:?}");
        }
        pair.until(0, "standby");
        assert!(pair.content() == content, "nothing has changed since");
        assert_eq!(refusal(&mut session(pair.address(0), HOST)), STANDBY);
        // It comes by a new address when it is its turn.
        pair.ask(0, &["move"]);
        pair.wait_for(0);
        let mut again = session(pair.address(0), HOST);
        assert_eq!((write(&mut again), refusal(&mut again)), (GOOD, None));
        assert_ne!(pair.record().address.unwrap(), address);
        pair.end();
    }
}

/// What is closed in order has nothing under way.
#[test]
fn gateway_of_an_image_that_is_moved_is_not_shut_out() {
    let pair = of_image("moved", FEATURES, [1, 2]).started();
    let mut other = session(pair.address(1), OTHER);
    assert_eq!(reserve_out(&mut other, REGISTER, 0, [0, 9]), GOOD);
    for next in [1, 0, 1] {
        let address = pair.record().address.unwrap();
        pair.ask(1 - next, &["move"]);
        pair.wait_for(next);
        assert_eq!(pair.days_shut_out(&address), None);
        let mut peer = session(pair.address(next), OTHER);
        assert_eq!((write(&mut peer), keys(&mut peer)), (GOOD, vec![9]));
    }
    pair.end();
}

/// Stops the active gateway in the middle of its work, and lets it go on when the client has written by the other one. A client
/// takes its time to give up a connection that is there.
fn pauses(pair: Pair, done: &AtomicU64) -> Pair {
    for _ in 0..2 {
        progress(done);
        let active = usize::from(pair.is(1, "active"));
        pair.signal(active, Signal::STOP);
        pair.wait_for(1 - active);
        progress(done);
        pair.signal(active, Signal::CONT);
        pair.until(active, "standby");
        progress(done);
    }
    pair
}

/// Ends it as a loss of power would, moves it, and ends it in order.
fn ends(mut pair: Pair, done: &AtomicU64) -> Pair {
    for round in 0..6 {
        progress(done);
        let active = usize::from(pair.is(1, "active"));
        match round % 3 {
            0 => pair.kill(active),
            1 => drop(pair.ask(active, &["move"])),
            _ => assert!(pair.running[active].take().unwrap().stop().success()),
        }
        pair.wait_for(1 - active);
        progress(done);
        if pair.running[active].is_none() {
            pair.start(active);
        }
    }
    pair
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_block_of_an_image_goes_back_in_time_when_a_stopped_gateway_goes_on() {
    under_load(of_image("paused", FEATURES, [1, 1]), pauses).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_block_of_an_image_without_a_lock_goes_back_in_time_when_a_stopped_gateway_goes_on() {
    under_load(of_image("paused-unlocked", "layering", [1, 1]), pauses).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_of_an_image_goes_on_when_a_gateway_is_killed_moved_or_ended() {
    under_load(of_image("ended", FEATURES, [1, 1]), ends).await;
}

/// Both gateways lose the cluster, and have it again.
#[test]
fn gateways_whose_cluster_stands_still_answer_nothing_and_go_on_later() {
    let pair = in_cluster(Cluster::start(), "still", FEATURES, [1, 2]).started();
    let mut active = session(pair.address(0), HOST);
    assert_eq!(reserve_out(&mut active, REGISTER, 0, [0, 7]), GOOD);
    for osd in ["osd.0", "osd.1"] {
        pair.cluster().signal(osd, Signal::STOP);
    }
    while pair.is(0, "active") {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(refusal(&mut session(pair.address(1), HOST)), STANDBY);
    for osd in ["osd.0", "osd.1"] {
        pair.cluster().signal(osd, Signal::CONT);
    }
    until_one_is_active(&pair);
    assert_eq!(keys(&mut session(pair.address(1), OTHER)), [7]);
    pair.end();
}

/// As where another gateway has shut it out, and then met a sign of life of it; or an operator did.
#[test]
fn holder_that_is_shut_out_takes_the_lease_anew_by_another_address() {
    let mut pair = of_image("shut-out", FEATURES, [1, 2]);
    pair.start(0);
    pair.wait_for(0);
    let before = pair.record();
    let mut peer = session(pair.address(0), HOST);
    assert_eq!(write(&mut peer), GOOD);
    let address = before.address.unwrap();
    pair.cluster().ceph(&format!("ceph osd blocklist add {address}"));
    // It is told with the next map that the OSD of the record gets.
    pair.cluster().ceph("rados -p rbd -N shut-out stat longhaul-cluster");
    let last = Instant::now() + PATIENCE;
    while pair.record().epoch == before.epoch {
        assert!(Instant::now() < last, "{}", pair.ask(0, &["show"]));
    }
    pair.wait_for(0);
    assert_ne!(pair.record().address.unwrap(), address);
    let mut again = session(pair.address(0), HOST);
    assert_eq!((write(&mut again), refusal(&mut again)), (GOOD, None));
    pair.end();
}

/// It must not come to light when the other one has to be shut out.
#[test]
fn gateway_that_cannot_use_the_state_of_the_cluster_says_why_at_its_start() {
    let pair = of_image("refused", FEATURES, [1, 2]);
    let cluster = pair.cluster();
    let may_not_fence = cluster.user("reader", "mon 'allow r' osd 'profile rbd pool=rbd'");
    let may_not_read = cluster.user("nobody", "mon 'profile rbd' osd 'allow r pool=none'");
    let may_not_write =
        cluster.user("looker", "mon 'profile rbd' osd 'profile rbd-read-only pool=rbd'");
    let conf = cluster.conf();
    let as_user = |name: &str, keyring: &std::path::Path| {
        format!("?id={name}&keyring={}&conf={conf}", keyring.display())
    };
    let path = pair.dir(0).join("longhaul.toml");
    let config = fs::read_to_string(&path).unwrap();
    let plain = format!("?conf={conf}");
    for (from, to, words) in [
        (&plain[..], as_user("reader", &may_not_fence), "cannot blocklist the client at"),
        (
            &plain,
            as_user("reader", &may_not_fence),
            "ceph auth caps client.reader mon 'profile rbd'",
        ),
        (
            &plain,
            as_user("nobody", &may_not_read),
            "cannot read the record: Operation not permitted",
        ),
        (
            &plain,
            as_user("nobody", &may_not_read),
            "ceph auth caps client.nobody mon 'profile rbd'",
        ),
        (
            &plain,
            as_user("looker", &may_not_write),
            "cannot write to the record: Operation not permitted",
        ),
        ("rados:rbd/", "rados:nopool/".to_owned(), "cannot open the pool nopool"),
    ] {
        fs::write(&path, config.replace(from, &to)).unwrap();
        let (said, status) = pair.run(0, &["serve"]);
        assert!(status == Some(1) && said.contains(words), "{words}: {said}");
    }
    fs::write(&path, &config).unwrap();
    assert!(pair.objects().create(OBJECT, b"LHGW\x00\x09 of a later release").unwrap());
    for command in ["serve", "check"] {
        let (said, status) = pair.run(0, &[command]);
        let words = "records of version 9 are not known to this release";
        assert!(status != Some(0) && said.contains(words), "{command}: {said}");
    }
}

/// What a gateway has shown of itself leaves the record as it is.
#[test]
fn move_of_an_image_without_another_gateway_is_refused() {
    let mut pair = of_image("alone", FEATURES, [1, 2]);
    pair.start(0);
    pair.wait_for(0);
    let refused = |pair: &Pair| {
        let mut command = Command::new(LONGHAUL);
        command.args(["cluster", "move", "--control", "control.sock"]).current_dir(pair.dir(0));
        let (said, status) = run(&command);
        assert!(status.code() == Some(1) && said.contains("no other gateway"), "{said}");
    };
    refused(&pair);
    pair.start(1);
    pair.until(1, "standby");
    pair.kill(1);
    refused(&pair);
    assert!(pair.is(0, "active"));
    pair.end();
}

/// The connection of a group is its own: the storage takes nothing more of one, and all of the other.
#[test]
fn group_of_images_whose_address_is_shut_out_leaves_the_other_group_active() {
    let pair = of_image("grouped", FEATURES, [1, 2]);
    let cluster = Arc::clone(pair.cluster());
    cluster.ceph(&format!("rbd create --size 1M --image-feature {FEATURES} rbd/grouped-data"));
    let uri = cluster.uri("rbd/grouped-data");
    pair.edit(|config| {
        format!("{config}group = 'web'\n[volumes.data]\nuri = '{uri}'\ngroup = 'db'\n")
    });
    let (said, status) = pair.run(0, &["check"]);
    assert_eq!(status, Some(0), "{said}");
    let pair = pair.with_both_at_the_first();
    let records = |pair: &Pair| {
        ["web", "db"].map(|group| pair.record_in(&format!("longhaul-cluster.{group}")))
    };
    let [web, db] = records(&pair);
    assert_ne!(web.address, db.address);
    let mut other = session_with(pair.address(0), HOST, DATA);
    assert_eq!((write(&mut other), refusal(&mut other)), (GOOD, None));
    cluster.ceph(&format!("ceph osd blocklist add {}", web.address.unwrap()));
    cluster.ceph("rados -p rbd -N grouped stat longhaul-cluster.web");
    let last = Instant::now() + PATIENCE;
    while records(&pair)[0].epoch == web.epoch {
        assert!(Instant::now() < last, "{}", pair.ask(0, &["show"]));
    }
    // In the session that was there, by the address that was there.
    assert_eq!((write(&mut other), refusal(&mut other)), (GOOD, None));
    let [_, after] = records(&pair);
    assert_eq!((after.epoch, after.address), (db.epoch, db.address.clone()));
    assert_eq!(pair.days_shut_out(&db.address.unwrap()), None);
    // One that is stopped has both shut out, and both are taken over.
    pair.ask(1, &["move", "web"]);
    pair.until_group(1, "web", "active");
    pair.ask(0, &["move", "web"]);
    pair.until_group(0, "web", "active");
    let addresses = records(&pair).map(|record| record.address.unwrap());
    pair.signal(0, Signal::STOP);
    for (group, target) in [("web", TARGET), ("db", DATA)] {
        pair.until_group(1, group, "active");
        assert_eq!(refusal(&mut session_with(pair.address(1), HOST, target)), None);
    }
    for address in &addresses {
        assert!(pair.days_shut_out(address).is_some(), "{address}");
    }
    pair.signal(0, Signal::CONT);
    pair.until_group(0, "web", "standby");
    pair.until_group(0, "db", "standby");
    pair.end();
}
