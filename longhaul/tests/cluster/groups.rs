//! Two groups of volumes at two gateways: each is active by itself, moves by itself, and has reservations of its own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use longhaul::store::iscsi::Disk;
use proto::cluster::Record;
use volume::{Span, Volume};

use crate::common::{LONGHAUL, PATIENCE, run};
use crate::connect::connect_until_there;
use crate::{
    CONFLICT, GOOD, HOST, OTHER, Pair, REGISTER, RESERVE, SIZE, STANDBY, TARGET, WORKERS,
    WRITE_EXCLUSIVE_REGISTRANTS, groups, keys, options, progress, refusal, reserve_out, session,
    session_with, work, write,
};

/// The target of the second volume, which is in a group of its own.
pub(crate) const DATA: &str = "iqn.2026-11.dev.longhaul:data";

/// The pair with the volume `disk` in the group `web`, and `data` in `db`.
fn of_two_groups(portal_groups: [u16; 2]) -> Pair {
    let pair = Pair::new(portal_groups);
    fs::File::create(pair.home.path().join("data.img")).unwrap().set_len(SIZE).unwrap();
    pair.edit(|config| {
        format!("{config}group = 'web'\n[volumes.data]\nuri = 'file:../data.img'\ngroup = 'db'\n")
    });
    pair
}

impl Pair {
    /// What a gateway says of a group.
    fn status(&self, at: usize, group: &str) -> serde_json::Value {
        let said = self.ask(at, &["show", "--json"]);
        let told: serde_json::Value = serde_json::from_str(&said).unwrap();
        let groups = told["groups"].as_array().unwrap();
        groups.iter().find(|it| it["group"] == group).unwrap().clone()
    }

    fn epoch(&self, group: &str) -> u64 {
        self.record_of(group).epoch
    }

    /// Returns when a gateway is that for a group.
    pub(crate) fn until_group(&self, at: usize, group: &str, role: &str) {
        let last = Instant::now() + PATIENCE;
        while self.status(at, group)["role"] != role {
            assert!(Instant::now() < last, "{group} is not {role}: {}", self.ask(at, &["show"]));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Both groups are active at the first gateway, and the second one runs.
    pub(crate) fn with_both_at_the_first(mut self) -> Self {
        self.start(0);
        self.until_group(0, "web", "active");
        self.until_group(0, "db", "active");
        self.start(1);
        self
    }

    /// `web` is active at the first gateway, and `db` at the second one.
    fn with_a_group_each(self) -> Self {
        let pair = self.with_both_at_the_first();
        pair.ask(1, &["move", "db"]);
        pair.until_group(1, "db", "active");
        pair
    }

    /// The newest record of a group.
    fn record_of(&self, group: &str) -> Record {
        self.newest(&format!("group-{group}"))
    }

    /// The newest record in a directory of the shared one.
    fn newest(&self, directory: &str) -> Record {
        let directory = self.home.path().join("record").join(directory);
        loop {
            let names = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
            let is_record = |path: &PathBuf| path.to_string_lossy().contains("/record-0");
            let newest = names.filter(is_record).max().unwrap();
            // It may be removed by now as an old one.
            if let Ok(bytes) = fs::read(newest) {
                return Record::decode(&bytes).unwrap();
            }
        }
    }

    /// The numbers of the sessions with a target.
    fn sessions(&self, at: usize, target: &str) -> Vec<u64> {
        let mut command = Command::new(LONGHAUL);
        command.args(["status", "--json", "--control", "control.sock"]).current_dir(self.dir(at));
        let (said, status) = run(&command);
        assert!(status.success(), "{said}");
        let told: serde_json::Value = serde_json::from_str(&said).unwrap();
        let sessions = told["sessions"].as_array().unwrap().iter();
        let its = sessions.filter(|session| session["target"] == target);
        its.map(|session| session["tsih"].as_u64().unwrap()).collect()
    }

    /// Ends a gateway in order.
    fn end_one(&mut self, at: usize) {
        assert!(self.running[at].take().unwrap().stop().success());
    }

    /// What a gateway says that ends at its start, and its exit code.
    fn serve(&self, at: usize) -> (String, Option<i32>) {
        let mut command = Command::new(LONGHAUL);
        command.args(["serve", "--config", "longhaul.toml"]).current_dir(self.dir(at));
        let (said, status) = run(&command);
        (said, status.code())
    }

    /// What a refused command says.
    fn refused(&self, at: usize, words: &[&str]) -> String {
        let mut command = Command::new(LONGHAUL);
        command.args(words).args(["--control", "control.sock"]).current_dir(self.dir(at));
        let (said, status) = run(&command);
        assert!(!status.success(), "{said}");
        said
    }
}

/// SPC-4, 6.37: the state of a port group is that of the unit which is asked.
#[test]
fn each_group_is_active_at_one_gateway_and_has_its_own_reservations() {
    let pair = of_two_groups([1, 2]).with_a_group_each();
    let web = [0, 1].map(|at| session(pair.address(at), HOST));
    let db = [0, 1].map(|at| session_with(pair.address(at), HOST, DATA));
    let ([mut web, mut web_standby], [mut db_standby, mut db]) = (web, db);
    assert_eq!(groups(&mut web), [(1, 0), (2, 2)]);
    assert_eq!(groups(&mut db_standby), [(1, 2), (2, 0)]);
    assert_eq!((refusal(&mut web), refusal(&mut db)), (None, None));
    assert_eq!((refusal(&mut web_standby), refusal(&mut db_standby)), (STANDBY, STANDBY));

    assert_eq!(reserve_out(&mut web, REGISTER, 0, [0, 7]), GOOD);
    assert_eq!(reserve_out(&mut web, RESERVE, WRITE_EXCLUSIVE_REGISTRANTS, [7, 0]), GOOD);
    assert_eq!((keys(&mut web_standby), keys(&mut db)), (vec![7], vec![]));
    let mut stranger = session(pair.address(0), OTHER);
    let mut stranger_to_db = session_with(pair.address(1), OTHER, DATA);
    assert_eq!((write(&mut stranger), write(&mut stranger_to_db)), (CONFLICT, GOOD));
    let units = |group: &str| pair.record_of(group).units.into_keys().collect::<Vec<_>>();
    assert_eq!((units("web"), units("db")), (vec![format!("{TARGET}/0")], vec![]));
    pair.end();
}

/// What lies in a connection of the group that moves must not be carried out; what lies in others is none of its business.
#[test]
fn group_that_moves_ends_the_sessions_with_its_targets_and_no_others() {
    let pair = of_two_groups([1, 2]).with_both_at_the_first();
    let (mut web, mut db) =
        (session(pair.address(0), HOST), session_with(pair.address(0), HOST, DATA));
    let epoch = pair.epoch("db");
    pair.ask(1, &["move", "web"]);
    pair.until_group(1, "web", "active");
    while web.receive().is_some() {}
    assert_eq!((refusal(&mut db), pair.epoch("db")), (None, epoch));
    assert_eq!(groups(&mut db), [(1, 0), (2, 2)]);
    assert_eq!(groups(&mut session(pair.address(0), HOST)), [(1, 2), (2, 0)]);
    pair.until_group(0, "web", "standby");
    while pair.status(0, "web")["holder"] != "b" {
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = pair.ask(0, &["show"]);
    assert_eq!(
        said,
        "a, group db: active; the lease has a, epoch 1\na, group web: standby; the lease has b, epoch 2\n"
    );
    let said = pair.refused(0, &["cluster", "move"]);
    assert!(said.contains("several groups") && said.contains("db, web"), "{said}");
    let said = pair.refused(0, &["cluster", "move", "mail"]);
    assert!(said.contains("no volume is in the group `mail`"), "{said}");
    pair.end();
}

/// With another group at one of the gateways a volume would have two leases, and one of them nobody's reservations.
#[test]
fn gateway_with_another_group_for_a_volume_ends_at_its_start() {
    let mut pair = Pair::new([1, 2]).started();
    let mut active = session(pair.address(0), HOST);
    assert_eq!(reserve_out(&mut active, REGISTER, 0, [0, 7]), GOOD);
    let [before, path] = [pair.home.path().join("before.toml"), pair.dir(1).join("longhaul.toml")];
    fs::rename(&path, &before).unwrap();
    let other = format!("{}group = 'web'\n", fs::read_to_string(&before).unwrap());
    fs::write(&path, other).unwrap();
    pair.end_one(1);
    let (said, code) = pair.serve(1);
    assert!(code == Some(1) && said.contains("a has the lease of the group default"), "{said}");
    let mut check = Command::new(LONGHAUL);
    let (said, status) =
        run(check.args(["check", "--config", "longhaul.toml"]).current_dir(pair.dir(1)));
    let why = "is in the group web here, and in the group default at the other gateways";
    assert!(status.success() && said.contains(why), "{said}");
    pair.end_one(0);
    let (said, code) = pair.serve(1);
    let why = "initiators are registered for its reservations, which do not come along";
    assert!(code == Some(1) && said.contains(why), "{said}");
    // As the message says.
    pair.start(0);
    pair.wait_for(0);
    assert_eq!(reserve_out(&mut session(pair.address(0), HOST), REGISTER, 0, [7, 0]), GOOD);
    pair.end_one(0);
    pair.start(1);
    pair.wait_for(1);
    assert_eq!(refusal(&mut session(pair.address(1), HOST)), None);
    // The other one has the configuration of before still.
    let (said, code) = pair.serve(0);
    assert!(code == Some(1) && said.contains("b has the lease of the group web"), "{said}");
    pair.end();
}

/// As by a second gateway that is started in the same moment with another group, before either has a lease: the one that has
/// the lease of a group where the volume is no more leaves the volume alone.
#[test]
fn gateway_opens_no_volume_that_is_listed_in_another_group() {
    let mut pair = of_two_groups([1, 2]).with_both_at_the_first();
    let mut list = pair.newest("groups");
    let (unit, version) = (format!("{TARGET}/0"), list.version + 1);
    assert_eq!(list.units["web"], format!("{unit}\n").into_bytes());
    let other = list.units.remove("web").unwrap();
    list = Record { version, units: [("other".to_owned(), other)].into(), ..list };
    let file = pair.home.path().join(format!("record/groups/record-{version:020}"));
    fs::write(file, list.encode()).unwrap();
    pair.kill(0);
    pair.until_group(1, "db", "active");
    // It takes the lease, and gives it back as one that cannot open the volume.
    let last = Instant::now() + PATIENCE;
    while pair.record_of("web").left_by.is_none_or(|gateway| gateway.as_str() != "b") {
        assert!(Instant::now() < last, "it keeps the lease: {}", pair.ask(1, &["show"]));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(refusal(&mut session(pair.address(1), HOST)), STANDBY);
    pair.end();
}

/// Whoever names a volume means its group, at whichever gateway.
#[test]
fn administrator_moves_the_group_of_the_volume_that_he_names() {
    let pair = of_two_groups([1, 2]);
    let longhaul = |words: &[&str]| {
        let (said, status) = run(Command::new(LONGHAUL).args(words).current_dir(pair.home.path()));
        assert!(status.success(), "{said}");
        said.trim().to_owned()
    };
    let server = longhaul(&["identity", "new", "server.identity"]);
    let admin = longhaul(&["identity", "new", "admin"]);
    pair.edit(|config| {
        format!(
            "identity = '../server.identity'\n{config}\n[clients.admin]\nkey = '{admin}'\nvolumes = ['disk', 'data']\n\
             administrator = true\n"
        )
    });
    let pair = pair.with_both_at_the_first();
    let epoch = pair.epoch("web");
    for (at, next) in [(1, 1), (1, 0)] {
        let uri = format!("iscsi://{}/{DATA}/0?pin={server}", pair.address(at));
        let mut command = Command::new(LONGHAUL);
        command.args(["admin", &uri, "--identity", "admin", "cluster", "move"]);
        let (said, status) = run(command.current_dir(pair.home.path()));
        assert!(status.success() && said.contains("the volumes of the group db"), "{said}");
        pair.until_group(next, "db", "active");
    }
    assert_eq!(
        (pair.status(0, "web")["role"].as_str(), pair.epoch("web")),
        (Some("active"), epoch)
    );
    pair.end();
}

/// A path in standby is refused, and nothing follows from that: who is active is nothing that clients pull at.
#[test]
fn clients_that_prefer_different_paths_move_nothing() {
    let pair = of_two_groups([1, 2]).with_a_group_each();
    let mut one = session(pair.address(0), HOST);
    let mut other = session(pair.address(1), OTHER);
    let before = [pair.record_of("web"), pair.record_of("db")];
    // For five leases, by the signs of life of the holder.
    while pair.record_of("web").renewals < before[0].renewals + 25 {
        assert_eq!((refusal(&mut one), refusal(&mut other)), (None, STANDBY));
    }
    let held = |record: Record| (record.epoch, record.holder);
    assert_eq!(before.map(held), [pair.record_of("web"), pair.record_of("db")].map(held));
    pair.end();
}

/// One of the two fences of one gateway ends it, and the other group is taken over as well.
#[test]
fn both_groups_of_a_gateway_that_is_killed_are_taken_over() {
    let mut pair = of_two_groups([1, 2]).with_both_at_the_first();
    pair.kill(0);
    for (group, target) in [("web", TARGET), ("db", DATA)] {
        pair.until_group(1, group, "active");
        assert_eq!(refusal(&mut session_with(pair.address(1), HOST, target)), None);
    }
    pair.end();
}

/// It comes back to the gateway that is preferred, once, and not against whoever moves it.
#[test]
fn group_comes_back_to_the_gateway_that_prefers_it() {
    let pair = of_two_groups([1, 2]);
    pair.edit(|config| {
        // Both would have it, one with more weight.
        let prefers = match config.contains("gateway = 'a'") {
            true => "['web', { group = 'db', weight = 50 }]",
            false => "['db']",
        };
        let config = config.replace("lease = '4s'", "lease = '2s'");
        config.replace("[cluster]\n", &format!("[cluster]\nprefers = {prefers}\n"))
    });
    let mut pair = pair.with_both_at_the_first();
    pair.until_group(1, "db", "active");
    let moved = pair.epoch("db");
    pair.kill(1);
    pair.until_group(0, "db", "active");
    pair.start(1);
    pair.until_group(1, "db", "active");
    assert_eq!(pair.epoch("db"), moved + 2, "to the other gateway and back");
    pair.ask(0, &["move", "db"]);
    pair.until_group(0, "db", "active");
    // For six leases.
    let before = pair.record_of("db");
    while pair.record_of("db").renewals < before.renewals + 30 {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!((pair.epoch("db"), pair.epoch("web")), (before.epoch, 1));
    pair.end();
}

/// Moves one group to and fro. The client of the other one keeps its session, and notices nothing.
fn moves(pair: Pair, [web, db]: [&AtomicU64; 2]) -> Pair {
    let session = pair.sessions(1, DATA);
    let epoch = pair.epoch("db");
    for next in [1, 0, 1, 0] {
        progress(web);
        progress(db);
        pair.ask(1 - next, &["move", "web"]);
        pair.until_group(next, "web", "active");
        progress(web);
        progress(db);
    }
    assert_eq!((pair.sessions(1, DATA), pair.epoch("db")), (session, epoch));
    pair
}

/// Ends the gateway that has one group, as a loss of power would: the other group is where it was.
fn ends(mut pair: Pair, [web, db]: [&AtomicU64; 2]) -> Pair {
    let session = pair.sessions(1, DATA);
    progress(web);
    progress(db);
    pair.kill(0);
    pair.until_group(1, "web", "active");
    progress(web);
    progress(db);
    assert_eq!(pair.sessions(1, DATA), session);
    pair.start(0);
    pair.ask(0, &["move", "web"]);
    pair.until_group(0, "web", "active");
    progress(web);
    progress(db);
    pair
}

type Trouble = fn(Pair, [&AtomicU64; 2]) -> Pair;

/// A client for each group, which use their volumes while there is `trouble`: none of their requests fails.
async fn both_under_load(trouble: Trouble) {
    let pair = of_two_groups([1, 1]);
    let pair = tokio::task::spawn_blocking(|| pair.with_a_group_each()).await.unwrap();
    let stop = Arc::<AtomicBool>::default();
    let (mut disks, mut counts, mut workers) = (Vec::new(), Vec::new(), Vec::new());
    for (at, target) in [(0, TARGET), (1, DATA)] {
        let options = options();
        let connected = connect_until_there(pair.address(at), target, &options);
        let connected = tokio::time::timeout(PATIENCE, connected).await.expect("a session");
        let (disk, done): (Arc<Disk>, Arc<AtomicU64>) = (Arc::new(connected), Arc::default());
        let its = (0..WORKERS)
            .map(|worker| tokio::spawn(work(disk.clone(), worker, stop.clone(), done.clone())));
        workers.push(its.collect::<Vec<_>>());
        disks.push(disk);
        counts.push(done);
    }
    let pair = tokio::task::spawn_blocking(move || trouble(pair, [&counts[0], &counts[1]]));
    let pair = pair.await.unwrap();
    stop.store(true, Ordering::Relaxed);
    for ((disk, workers), file) in disks.into_iter().zip(workers).zip(["disk.img", "data.img"]) {
        let models = tokio::time::timeout(PATIENCE, join_all(workers)).await.expect("an end");
        let model: Vec<u8> =
            models.into_iter().flat_map(|model| model.expect("no error")).collect();
        disk.flush().await.expect("a flush");
        assert!(disk.read(Span::new(0, SIZE)).await.expect("a read") == model);
        disk.close().await;
        assert!(fs::read(pair.home.path().join(file)).unwrap() == model, "{file}");
    }
    pair.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_of_one_group_goes_on_in_its_session_while_the_other_group_moves() {
    both_under_load(moves).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_of_one_group_goes_on_in_its_session_while_the_gateway_of_the_other_is_killed() {
    both_under_load(ends).await;
}
