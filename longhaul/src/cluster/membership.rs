//! Which unit is in which group of volumes, as all gateways of a cluster have it.
//!
//! A unit that is in one group at one gateway and in another one elsewhere would have two leases: two gateways could use it at
//! once, and neither would know of the reservations that were made by the other. So the first gateway with groups writes down
//! which units are in which, and one that starts with a unit in another group ends at its start, unless nobody can be using
//! the unit by its former group: nobody holds that lease, and no other gateway looks at its record.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use proto::cluster::{GroupName, Record};

use super::store::{RecordStore, Signs};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::target::lun::is_anybody_registered;

/// How often another gateway is looked for in the time that is waited for one.
const LOOKS: u32 = 20;

const CANNOT_TELL: fn() -> String =
    || "cannot tell whether another gateway uses the volume".to_owned();

/// The units, each with its group.
pub(super) type Units = BTreeMap<String, GroupName>;

/// Where a gateway finds what others have.
pub(super) trait Records {
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
            "`group` is the same at all gateways: to change it, end all of them in order, and start none with the configuration of before",
        )
    }
}

/// The units of `mine` that are in another group at the other gateways, as `found` says. A group of which there never was a
/// record is nobody's.
pub(super) fn moved(
    records: &impl Records,
    found: Option<&Record>,
    mine: &Units,
) -> Outcome<Vec<Moved>> {
    let listed = found.map(units_of).transpose()?;
    let from = |unit: &String| match &listed {
        // A unit that nobody has listed is a new one.
        Some(listed) => listed.get(unit).cloned(),
        // There never were groups.
        None => Some(GroupName::default()),
    };
    let mut used: BTreeMap<GroupName, bool> = BTreeMap::new();
    let mut all = Vec::new();
    for (unit, to) in mine {
        let Some(from) = from(unit).filter(|from| from != to) else { continue };
        if !used.contains_key(&from) {
            let store = records.look(&from).or_fail(CANNOT_TELL)?;
            let record = store.map_or(Ok(None), |store| store.read()).or_fail(CANNOT_TELL)?;
            used.insert(from.clone(), record.is_some());
        }
        if used[&from] {
            all.push(Moved { unit: unit.clone(), from, to: to.clone() });
        }
    }
    Ok(all)
}

/// Has all gateways know the groups of `mine`, or fails because they have others. It may wait for `patience`, in which a
/// gateway that runs gives a sign of life.
pub(super) fn settle(records: &impl Records, mine: &Units, patience: Duration) -> Outcome {
    let what = || "cannot read which volume of the cluster is in which group".to_owned();
    let has_groups = mine.values().any(|group| !group.is_default());
    loop {
        let found = records.membership().or_fail(what)?;
        if found.is_none() && !has_groups {
            return Ok(());
        }
        let moved = moved(records, found.as_ref(), mine)?;
        refuse_unless_free(records, &moved, patience)?;
        let known = found.clone().unwrap_or_default();
        let mut listed = found.as_ref().map(units_of).transpose()?.unwrap_or_default();
        let before = listed.clone();
        listed.extend(mine.clone());
        if listed == before {
            return Ok(());
        }
        let next = record_of(&listed, known.version + 1);
        if !records.replace_membership(&next).or_fail(what)? {
            continue;
        }
        // One that has started meanwhile has read what was there before.
        if let Err(why) = refuse_unless_free(records, &moved, patience) {
            let before = moved.into_iter().map(|moved| (moved.unit, moved.from)).chain(before);
            let undone = record_of(&before.collect(), next.version + 1);
            records.replace_membership(&undone).or_fail(what)?;
            return Err(why);
        }
        return Ok(());
    }
}

/// Refuses it where somebody may be using a unit by the group that it was in.
fn refuse_unless_free(records: &impl Records, moved: &[Moved], patience: Duration) -> Outcome {
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
fn record_of(units: &Units, version: u64) -> Record {
    let mut groups: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (unit, group) in units {
        let lines = groups.entry(group.to_string()).or_default();
        lines.extend(unit.as_bytes());
        lines.push(b'\n');
    }
    Record { version, units: groups, ..Record::default() }
}

fn units_of(record: &Record) -> Outcome<Units> {
    let damaged = || Failure::new("the record with the groups of the cluster makes no sense");
    let mut units = Units::new();
    for (group, lines) in &record.units {
        let group: GroupName = group.parse().map_err(|_| damaged())?;
        let lines = str::from_utf8(lines).map_err(|_| damaged())?;
        units.extend(lines.lines().map(|unit| (unit.to_owned(), group.clone())));
    }
    Ok(units)
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
    fn cluster_without_groups_writes_nothing_down() {
        let home = tempfile::tempdir().unwrap();
        settled(&gateway(home.path(), "a"), &[("t/0", "default")]).unwrap();
        assert_eq!(home.path().read_dir().unwrap().count(), 0);
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
                    b.store.show_presence().unwrap();
                }
            });
            let why = settled(&gateway(home.path(), "a"), &[("t/0", "web")]).unwrap_err();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(
                why.contains("a gateway runs that looks at the record of the group default"),
                "{why}"
            );
        });
        assert_eq!(gateway(home.path(), "a").membership().unwrap(), None);
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
