//! Which unit is in which group of volumes, as all gateways of a cluster have it.
//!
//! A unit that is in one group at one gateway and in another one elsewhere would have two leases: two gateways could use it at
//! once, and neither would know of the reservations that were made by the other. So all gateways write down which units are in
//! which group, and two rules hold:
//!
//! - A gateway that starts with a unit in another group first sees that nobody can be using it by the former one: nobody holds
//!   that lease, no other gateway looks at its record. Then it replaces the list, if that is as it was read before.
//! - A gateway that has taken a lease replaces the list by itself before it opens a unit. One that is not listed in its group it
//!   does not open.
//!
//! The lease is taken before the list is replaced here, and looked at before the list is replaced there. Of the two that replace
//! one version of the list the second fails, and reads it again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use proto::cluster::{GroupName, Record, Signs};

use super::store::RecordStore;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::target::lun::is_anybody_registered;

/// How often another gateway is looked for in the time that is waited for one.
const LOOKS: u32 = 20;

const CANNOT_LIST: fn() -> String =
    || "cannot read which volume of the cluster is in which group".to_owned();

const CANNOT_TELL: fn() -> String =
    || "cannot tell whether another gateway uses the volume".to_owned();

/// The units, each with its group.
pub(super) type Units = BTreeMap<String, GroupName>;

/// Where a gateway finds what others have.
pub(super) trait Records: Send + Sync {
    /// The record with the groups of all units, to be read.
    fn membership(&self) -> io::Result<Option<Record>>;

    /// Puts `record` in the place of the version before; `false` if another one is there.
    fn replace_membership(&self, record: &Record) -> io::Result<bool>;

    /// What has the record of a group; `None` if there never was one.
    fn look(&self, group: &GroupName) -> io::Result<Option<Arc<dyn RecordStore>>>;
}

/// A unit that is in another group than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) unit: String,
    pub(super) from: GroupName,
    pub(super) to: GroupName,
}

impl Moved {
    /// In a sentence.
    pub(super) fn text(&self) -> String {
        let Self { unit, from, to } = self;
        format!(
            "unit {unit} is in the group {to} here, and in the group {from} at the other gateways"
        )
    }

    fn failure(&self, why: String) -> Failure {
        Failure::new(self.text()).because(why).hint(
            "`group` is the same at all gateways: to change it, end all of them in order, and start none with the configuration of before; one that was killed has its lease still: start and end it with that once",
        )
    }
}

/// The units of `mine` that are in another group at the other gateways, as `found` says, and may be used by that. A group of
/// which there never was a record is nobody's.
pub(super) fn moved(
    records: &dyn Records,
    found: Option<&Record>,
    mine: &Units,
) -> Outcome<Vec<Moved>> {
    let mut all = listed_elsewhere(&listed_in(found, mine)?, mine);
    let mut used: BTreeMap<GroupName, bool> = BTreeMap::new();
    for Moved { from, .. } in &all {
        if !used.contains_key(from) {
            let store = records.look(from).or_fail(CANNOT_TELL)?;
            let record = store.map_or(Ok(None), |store| store.read()).or_fail(CANNOT_TELL)?;
            used.insert(from.clone(), record.is_some());
        }
    }
    all.retain(|moved| used[&moved.from]);
    Ok(all)
}

/// Has all gateways know the groups of `mine`, or fails because they have others. It may wait for `patience`, in which a
/// gateway that runs gives a sign of life.
pub(super) fn settle(records: &dyn Records, mine: &Units, patience: Duration) -> Outcome {
    loop {
        let found = records.membership().or_fail(CANNOT_LIST)?;
        if found.is_none() {
            refuse_removed(records, mine)?;
        }
        let mut listed = listed_in(found.as_ref(), mine)?;
        refuse_unless_free(records, &listed_elsewhere(&listed, mine), patience)?;
        let before = listed.clone();
        listed.extend(mine.clone());
        let version = found.as_ref().map_or(0, |found| found.version);
        if (found.is_some() && listed == before) || replace(records, &listed, version + 1)? {
            return Ok(());
        }
    }
}

/// The units of one group, and where it is written down that they are in it.
#[derive(Clone)]
pub struct Membership {
    records: Arc<dyn Records>,
    mine: Arc<Units>,
}

impl Membership {
    pub(super) fn new(records: Arc<dyn Records>, group: &GroupName, units: &Units) -> Self {
        let mine = units.iter().filter(|(_, of)| *of == group);
        let mine = mine.map(|(unit, of)| (unit.clone(), of.clone())).collect();
        Self { records, mine: Arc::new(mine) }
    }

    /// See [`confirm`]. It may wait for where the list is.
    pub fn confirm(&self) -> Outcome {
        confirm(&*self.records, &self.mine)
    }
}

/// What a gateway asks that has taken the lease of the group of `mine`, before it opens them: whether all other gateways have
/// these units in that group. None of them changes that any more.
fn confirm(records: &dyn Records, mine: &Units) -> Outcome {
    loop {
        let Some(found) = records.membership().or_fail(CANNOT_LIST)? else {
            return Err(Failure::new(CANNOT_LIST()).because("it is not there any more"));
        };
        let listed = listed_in(Some(&found), mine)?;
        if let Some(moved) = listed_elsewhere(&listed, mine).into_iter().next() {
            return Err(moved.failure("another gateway has started with that".to_owned()));
        }
        // Whoever has looked at the lease before it was taken here finds another version now, and looks again.
        if replace(records, &listed, found.version + 1)? {
            return Ok(());
        }
    }
}

fn replace(records: &dyn Records, listed: &Units, version: u64) -> Outcome<bool> {
    records.replace_membership(&record_of(listed, version)).or_fail(CANNOT_LIST)
}

/// The units of `mine` that are listed in another group.
fn listed_elsewhere(listed: &Units, mine: &Units) -> Vec<Moved> {
    let moved = |(unit, to): (&String, &GroupName)| {
        let from = listed.get(unit).filter(|from| *from != to)?;
        Some(Moved { unit: unit.clone(), from: from.clone(), to: to.clone() })
    };
    mine.iter().filter_map(moved).collect()
}

/// Before there is a list no group has a record but that of all volumes: the list was removed. Nobody knows which units others have
/// in which group.
fn refuse_removed(records: &dyn Records, mine: &Units) -> Outcome {
    let groups: BTreeSet<_> = mine.values().filter(|group| !group.is_default()).collect();
    for group in groups {
        let store = records.look(group).or_fail(CANNOT_LIST)?;
        if store.map_or(Ok(None), |store| store.read()).or_fail(CANNOT_LIST)?.is_some() {
            return Err(Failure::new(CANNOT_LIST())
                .because(format!("the list of groups is gone, and the group {group} has a record"))
                .hint("bring the list back; or end all gateways and remove the records of the groups too, which forgets their reservations"));
        }
    }
    Ok(())
}

/// Refuses it where somebody may be using a unit by the group that it was in.
fn refuse_unless_free(records: &dyn Records, moved: &[Moved], patience: Duration) -> Outcome {
    let what = CANNOT_TELL;
    let mut watched: Vec<(&Moved, Arc<dyn RecordStore>, Signs)> = Vec::new();
    for moved in moved {
        let Some(store) = records.look(&moved.from).or_fail(what)? else { continue };
        let Some(record) = store.read().or_fail(what)? else { continue };
        if let Some(holder) = &record.holder {
            let why = format!("{} has the lease of the group {}", holder.gateway, moved.from);
            return Err(moved.failure(why));
        }
        refuse_registered(moved, &record)?;
        if watched.iter().all(|(other, ..)| other.from != moved.from) {
            let signs = store.others_seen().or_fail(what)?;
            watched.push((moved, store, signs));
        }
    }
    let begun = Instant::now();
    while !watched.is_empty() && begun.elapsed() < patience {
        sleep(patience / LOOKS);
        for (moved, store, signs) in &watched {
            if store.others_seen().or_fail(what)? != *signs {
                let why =
                    format!("a gateway runs that looks at the record of the group {}", moved.from);
                return Err(moved.failure(why));
            }
        }
    }
    Ok(())
}

/// Registrations stand in the record of the group, and would be forgotten.
fn refuse_registered(moved: &Moved, record: &Record) -> Outcome {
    let Some(image) = record.units.get(&moved.unit) else { return Ok(()) };
    let what = || format!("cannot read the reservations of {}", moved.unit);
    match is_anybody_registered(image).or_fail(what)? {
        false => Ok(()),
        true => Err(Failure::new(moved.text())
            .because("initiators are registered for its reservations, which do not come along")
            .hint("start the gateways with the configuration of before, and have the initiators unregister, or CLEAR (`sg_persist --out --clear`)")),
    }
}

/// A line for each unit, in the place of an image of its group.
fn record_of(listed: &Units, version: u64) -> Record {
    let mut groups: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (unit, group) in listed {
        let lines = groups.entry(group.to_string()).or_default();
        lines.extend(unit.as_bytes());
        lines.push(b'\n');
    }
    Record { version, units: groups, ..Record::default() }
}

/// A unit that is not in the list is a new one. Before there is a list all are in the group that has no name: gateways of a
/// release without groups may be using them.
fn listed_in(found: Option<&Record>, mine: &Units) -> Outcome<Units> {
    let Some(record) = found else {
        return Ok(mine.keys().map(|unit| (unit.clone(), GroupName::default())).collect());
    };
    let damaged = || Failure::new("the record with the groups of the cluster makes no sense");
    let mut listed = Units::new();
    for (group, lines) in &record.units {
        let group: GroupName = group.parse().map_err(|_| damaged())?;
        let lines = str::from_utf8(lines).map_err(|_| damaged())?;
        listed.extend(lines.lines().map(|unit| (unit.to_owned(), group.clone())));
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proto::cluster::Holder;

    use super::super::records::Places;
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(100);

    fn gateway(path: &Path, name: &str) -> Places {
        Places::Directory { path: path.to_owned(), gateway: name.parse().unwrap() }
    }

    fn units(groups: &[(&str, &str)]) -> Units {
        groups.iter().map(|(unit, group)| ((*unit).to_owned(), group.parse().unwrap())).collect()
    }

    fn settled(places: &Places, groups: &[(&str, &str)]) -> Result<(), String> {
        settle(places, &units(groups), PATIENCE).map_err(|why| why.to_string())
    }

    /// Writes a record of the group, as its gateways do.
    fn record(path: &Path, group: &str, record: &Record) {
        let of = gateway(path, "b").of_group(&group.parse().unwrap()).unwrap();
        let version = of.store.read().unwrap().map_or(0, |found| found.version) + 1;
        assert!(of.store.replace(&Record { version, ..record.clone() }).unwrap());
    }

    fn held() -> Record {
        let holder = Some(Holder { gateway: "b".parse().unwrap(), incarnation: 1 });
        Record { holder, ..Record::default() }
    }

    #[test]
    fn gateways_with_the_same_groups_start_and_others_do_not() {
        let home = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| gateway(home.path(), name));
        let same = [("t/0", "web"), ("u/0", "default")];
        settled(&a, &same).unwrap();
        record(home.path(), "web", &held());
        record(home.path(), "default", &held());
        settled(&b, &same).unwrap();
        let why = settled(&b, &[("t/0", "db"), ("u/0", "default")]).unwrap_err();
        assert!(why.contains("unit t/0 is in the group db here, and in the group web"), "{why}");
        assert!(why.contains("b has the lease of the group web"), "{why}");
        settled(&b, &[("t/0", "default"), ("u/0", "default")]).unwrap_err();
        settled(&b, &[("t/0", "web"), ("u/0", "web")]).unwrap_err();
        // Nobody has ever had a new one.
        settled(&b, &[("t/0", "web"), ("v/0", "mail")]).unwrap();
        settled(&a, &[("v/0", "web")]).unwrap();
    }

    /// As where one of two gateways is given groups, while the other one has none yet.
    #[test]
    fn unit_of_a_cluster_without_groups_gets_one_when_nobody_uses_it() {
        let home = tempfile::tempdir().unwrap();
        let a = gateway(home.path(), "a");
        let groups = [("t/0", "web")];
        record(home.path(), "default", &held());
        let why = settled(&a, &groups).unwrap_err();
        assert!(why.contains("b has the lease of the group default"), "{why}");
        record(home.path(), "default", &Record::default());
        settled(&a, &groups).unwrap();
        let why = settled(&a, &[("t/0", "db")]);
        assert_eq!(why, Ok(()), "nobody has had the lease of the group web");
    }

    #[test]
    fn list_that_was_removed_is_not_taken_for_one_that_never_was() {
        let home = tempfile::tempdir().unwrap();
        let a = gateway(home.path(), "a");
        settled(&a, &[("t/0", "web")]).unwrap();
        record(home.path(), "web", &Record::default());
        std::fs::remove_dir_all(home.path().join("groups")).unwrap();
        let why = settled(&a, &[("t/0", "web")]).unwrap_err();
        assert!(
            why.contains("the list of groups is gone, and the group web has a record"),
            "{why}"
        );
        std::fs::remove_dir_all(home.path().join("group-web")).unwrap();
        settled(&a, &[("t/0", "web")]).unwrap();
    }

    /// One in standby would take the lease.
    #[test]
    fn unit_does_not_change_its_group_while_a_gateway_looks_at_the_record_of_that() {
        let home = tempfile::tempdir().unwrap();
        record(home.path(), "default", &Record::default());
        let b = gateway(home.path(), "b").of_group(&GroupName::default()).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    b.store.show_presence(0).unwrap();
                }
            });
            let why = settled(&gateway(home.path(), "a"), &[("t/0", "web")]).unwrap_err();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(
                why.contains("a gateway runs that looks at the record of the group default"),
                "{why}"
            );
        });
        let a = gateway(home.path(), "a");
        assert_eq!(a.membership().unwrap(), None);
    }

    fn confirmed(places: &Places, groups: &[(&str, &str)]) -> Result<(), String> {
        confirm(places, &units(groups)).map_err(|why| why.to_string())
    }

    /// As two do that are started in the same moment, neither of which has a lease yet.
    #[test]
    fn of_two_gateways_with_different_groups_one_may_open_the_unit() {
        let home = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| gateway(home.path(), name));
        settled(&a, &[("t/0", "web"), ("u/0", "web")]).unwrap();
        settled(&b, &[("t/0", "db")]).unwrap();
        let why = confirmed(&a, &[("t/0", "web"), ("u/0", "web")]).unwrap_err();
        assert!(why.contains("unit t/0 is in the group web here, and in the group db"), "{why}");
        confirmed(&b, &[("t/0", "db")]).unwrap();
        confirmed(&a, &[("u/0", "web")]).unwrap();
    }

    /// One that starts has looked at the lease before it is taken, and replaces the list afterwards.
    #[test]
    fn unit_stays_in_the_group_whose_lease_is_taken_while_it_is_to_change_its_group() {
        let home = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| gateway(home.path(), name));
        let (web, db) = ([("t/0", "web")], [("t/0", "db")]);
        settled(&a, &web).unwrap();
        let seen = a.membership().unwrap().unwrap();
        record(home.path(), "web", &held());
        confirmed(&a, &web).unwrap();
        assert!(!replace(&b, &units(&db), seen.version + 1).unwrap(), "it may not go on by that");
        let why = settled(&b, &db).unwrap_err();
        assert!(why.contains("b has the lease of the group web"), "{why}");
        confirmed(&b, &db).unwrap_err();
        // Who is refused leaves nothing behind.
        settled(&a, &web).unwrap();
        settled(&b, &web).unwrap();
        confirmed(&a, &web).unwrap();
    }

    /// As on a machine where the file system of the cluster is mounted no more.
    #[test]
    fn unit_is_not_opened_where_nothing_is_listed() {
        let home = tempfile::tempdir().unwrap();
        let why = confirmed(&gateway(home.path(), "a"), &[("t/0", "default")]).unwrap_err();
        assert!(why.contains("it is not there any more"), "{why}");
    }

    #[test]
    fn damaged_list_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let a = gateway(home.path(), "a");
        for (group, lines) in [("A b", &b"t/0\n"[..]), ("web", b"\xFF\n")] {
            let version = a.membership().unwrap().map_or(0, |found| found.version) + 1;
            let units = [(group.to_owned(), lines.to_vec())].into();
            let damaged = Record { version, units, ..Record::default() };
            assert!(a.replace_membership(&damaged).unwrap());
            settled(&a, &[("t/0", "web")]).unwrap_err();
        }
    }
}
