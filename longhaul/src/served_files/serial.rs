//! The serial numbers of files: each stands for one file as the clients of one unit have left it.
//!
//! A client that connects again tells its volume by the serial number, and writes into it what it had not flushed. So a
//! number that a file had is never given to another, and a file that others may have written to since gets a new one: the
//! client may wait for as long as it likes.

use std::path::{Path, PathBuf};

use proto::iscsi::login::policy::UnitName;
use proto::scsi::inquiry::Identity;
use sha2::{Digest as _, Sha256};

use super::{FileId, LeftState, Number, Record, ServedFiles, absolute};
use crate::config::Served;
use crate::failure::Outcome;
use crate::printable::Shown as _;
use crate::utc::{now, utc};

/// By what clients know a volume that is to be served, and what is kept for them.
#[derive(Debug)]
pub(crate) struct VolumeIdentity {
    /// Reservations are kept under it.
    pub(crate) serial: String,
    /// No other volume was its unit since it was: the reservations are its own that earlier releases kept for the unit.
    pub(crate) is_last_of_unit: bool,
    /// Others may have written to it, and its number is configured all the same: no reservation holds any more.
    pub(crate) forget_reservations: bool,
}

/// A volume that is about to be served.
struct Candidate<'a> {
    volume: &'a Served,
    /// That of its file; else its URI.
    path: PathBuf,
    id: Option<FileId>,
    /// How its file was before it was opened.
    found: Option<LeftState>,
    records: &'a [Record],
    /// The volumes of the whole configuration.
    all: &'a [Served],
    /// A note that cannot be read: any file that has no other may have been served with any number.
    damaged: Option<&'a Path>,
}

impl ServedFiles {
    /// The identities of `volumes`, whose files were found so before they were opened. `all` are the volumes of the whole
    /// configuration.
    pub(crate) fn identify(
        &self,
        volumes: &[(Served, Option<LeftState>)],
        all: &[Served],
    ) -> Outcome<Vec<VolumeIdentity>> {
        let records = self.records();
        let records: Vec<_> = records.into_iter().map(|(_, record)| record).collect();
        let damaged = self.damaged_note();
        let identify = |(volume, found): &(Served, Option<LeftState>)| {
            let (path, id) = match volume.uri.file() {
                Some(path) => (absolute(path)?, path.metadata().ok().as_ref().and_then(FileId::of)),
                None => (PathBuf::from(volume.uri.to_string()), None),
            };
            let (found, damaged) = (*found, damaged.as_ref().map(|(note, _)| &**note));
            Ok(Candidate { volume, path, id, found, records: &records, all, damaged }.identify())
        };
        let identities = volumes.iter().map(identify).collect();
        if let Some((note, why)) = damaged.as_ref().filter(|_| !volumes.is_empty()) {
            let note = note.shown();
            tracing::warn!(
                %note,
                %why,
                "a note of a file that was served cannot be read: files without another get new serial numbers; once each has \
                 been served, remove it"
            );
        }
        identities
    }
}

impl Candidate<'_> {
    fn identify(&self) -> VolumeIdentity {
        let own = self.records.iter().filter(|record| record.is_file(&self.path, self.id));
        let numbers = own.max_by_key(|record| record.age()).map(Record::numbers);
        let numbers = numbers.unwrap_or_default();
        let (serial, forget_reservations) = match configured(self.volume) {
            Some(serial) => (serial.to_owned(), self.is_changed_as_configured(serial, &numbers)),
            None => (self.choose(&numbers), false),
        };
        let unit = self.volume.unit();
        let of_unit = self.records.iter().flat_map(Record::numbers);
        let last = of_unit.filter(|number| number.is_of(&unit)).max_by_key(Number::age);
        let is_last_of_unit = last.is_none_or(|last| last.serial == serial);
        VolumeIdentity { serial, is_last_of_unit, forget_reservations }
    }

    /// The number that the file had as this unit, if it is as the clients of this unit have left it; for a file that never
    /// was this unit the one that follows from the unit. A new one where that is not so, or another has it.
    fn choose(&self, numbers: &[Number]) -> String {
        let unit = self.volume.unit();
        let here = numbers.iter().filter(|number| number.is_of(&unit)).max_by_key(|had| had.age());
        let serial = here.map_or_else(|| of_unit(&unit), |here| here.serial.clone());
        let change = here.and_then(|here| self.change_since(here, numbers));
        let owner = || {
            let owner = match here {
                Some(_) => self.owner(&serial, here),
                None => self.owner(&serial, None).or_else(|| owned(&serial, numbers)),
            };
            owner.map(|owner| format!("{serial} is that of {owner}"))
        };
        let doubt = self.doubt(here);
        // Nobody knows which numbers were given: one that was never given has the time in it.
        let first = if doubt.is_some() { now() } else { 0 };
        let Some(why) = change.or(doubt).or_else(owner) else { return serial };
        let is_free = |serial: &String| {
            self.owner(serial, None).is_none() && owned(serial, numbers).is_none()
        };
        let new = (first..).map(|n| self.new_serial(n)).find(is_free).unwrap_or_default();
        let Served { name, uri, .. } = self.volume;
        tracing::warn!(
            volume = name,
            "{uri} is served with the new serial number {new}: {why}. Clients take it for another volume, and write \
             nothing into it that they had not flushed before; if it is to be the same volume for them, \
             `serial = \"{serial}\"` in its configuration says so"
        );
        new
    }

    /// Why nobody knows the number that the file had, if none is noted of it.
    fn doubt(&self, here: Option<&Number>) -> Option<String> {
        let note = self.damaged?.shown();
        let is_written = self.volume.uri.file().is_some() && !self.volume.read_only;
        (is_written && here.is_none())
            .then(|| format!("the note {note} cannot be read, and may be that of the file"))
    }

    /// How others may have changed the file since clients used it with `number`, one of its `numbers`. After a crash of the
    /// server that is not known, and not assumed unless the file was served otherwise since. Where nobody may write, nobody has
    /// anything left to write.
    fn change_since(&self, number: &Number, numbers: &[Number]) -> Option<String> {
        let is_as_left = |number: &Number| number.left.is_some() && number.left == self.found;
        let last = numbers.iter().max_by_key(|had| had.age()).unwrap_or(number);
        let (target, opened) = (&last.target, utc(last.opened));
        match last.serial == number.serial {
            _ if self.volume.read_only || is_as_left(number) && is_as_left(last) => None,
            true if number.left.is_none() => None,
            true => Some(format!(
                "the file was changed while it was not served, after {target}/{} was opened on {opened}",
                last.lun
            )),
            false => Some(format!(
                "the file was served as {target}/{} on {opened}, and may have been changed",
                last.lun
            )),
        }
    }

    /// Whether others may have written to a volume that keeps its number because that is configured, as it was before. Who
    /// configures it newly says that it is to be the same volume.
    fn is_changed_as_configured(&self, serial: &str, numbers: &[Number]) -> bool {
        let had = numbers.iter().find(|number| number.serial == serial && number.configured);
        let Some(why) = had.and_then(|had| self.change_since(had, numbers)) else { return false };
        let Served { name, uri, .. } = self.volume;
        tracing::warn!(
            volume = name,
            "{uri} has the serial number {serial}, as configured, although {why}: what was kept of reservations is \
             forgotten, so that their holders write nothing more; without `state`, and where nothing was reserved, clients \
             write into it what they had not flushed before"
        );
        true
    }

    /// Whose a serial number is, if not this volume's: another file that was ever served with it, if that was after it was
    /// this one's `own`, or a volume that is configured so.
    fn owner(&self, serial: &str, own: Option<&Number>) -> Option<String> {
        let mut others = self.all.iter().filter(|other| other.name != self.volume.name);
        if let Some(other) = others.find(|other| configured(other) == Some(serial)) {
            return Some(format!("volume {}", other.name));
        }
        let others = self.records.iter().filter(|record| !record.is_file(&self.path, self.id));
        let mut numbers =
            others.flat_map(|other| other.numbers().into_iter().map(move |had| (other, had)));
        let (other, had) = numbers
            .find(|(_, had)| had.serial == serial && own.is_none_or(|own| had.age() > own.age()))?;
        let (path, opened) = (other.path.shown(), utc(had.opened));
        let what = if other.path == self.path { "another file that was at" } else { "the file" };
        Some(format!("{what} {path}, served on {opened} as {}/{}", had.target, had.lun))
    }

    /// It follows from the identity of the volume where that is known, so that it stays the same if it cannot be noted.
    fn new_serial(&self, n: u64) -> String {
        let UnitName { target, lun } = self.volume.unit();
        let mut hash = Sha256::new();
        hash.update(target.as_str().as_bytes());
        hash.update([0]);
        hash.update(lun.to_be_bytes());
        let (inode, born) = match (self.id, self.volume.uri.file()) {
            (Some(id), _) => (id.inode, id.born),
            (None, Some(_)) => (0, now()),
            (None, None) => {
                hash.update(self.volume.uri.to_string().as_bytes());
                (0, 0)
            }
        };
        [inode, born, n].iter().for_each(|number| hash.update(number.to_be_bytes()));
        hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// As what a file was served with a number of its own.
fn owned(serial: &str, numbers: &[Number]) -> Option<String> {
    let had = numbers.iter().find(|number| number.serial == serial)?;
    Some(format!("the same file as {}/{}, on {}", had.target, had.lun, utc(had.opened)))
}

impl Record {
    /// All serial numbers that the file was served with. Earlier releases knew the last, or that of the unit only.
    pub(super) fn numbers(&self) -> Vec<Number> {
        if !self.numbers.is_empty() {
            return self.numbers.clone();
        }
        let Self { target, lun, opened, order, .. } = self.clone();
        let serial = self.serial.clone();
        let serial = serial.unwrap_or_else(|| Identity::new(&*target, lun).serial);
        vec![Number { serial, target, lun, opened, order, configured: false, left: None }]
    }
}

impl Number {
    /// The later of two is the larger.
    pub(super) const fn age(&self) -> (u64, u64) {
        (self.order, self.opened)
    }

    fn is_of(&self, UnitName { target, lun }: &UnitName) -> bool {
        (&*self.target, self.lun) == (target.as_str(), *lun)
    }
}

fn of_unit(UnitName { target, lun }: &UnitName) -> String {
    Identity::new(target.as_str(), *lun).serial
}

fn configured(volume: &Served) -> Option<&str> {
    volume.appearance.serial.as_ref().map(|serial| &*serial.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::super::OnExchange;
    use super::*;
    use crate::config::Config;

    /// A server with a state directory and files `a` to `c`.
    struct Scene(tempfile::TempDir);

    impl Scene {
        fn new() -> Self {
            let scene = Self(tempfile::tempdir().unwrap());
            ["a", "b", "c"].iter().for_each(|name| scene.make(name));
            scene
        }

        fn make(&self, name: &str) {
            fs::write(self.0.path().join(name), name).unwrap();
        }

        /// A configuration of volumes: name, file, other options.
        fn config(&self, volumes: &[(&str, &str, &str)]) -> Config {
            let table = |(name, file, options): &(&str, &str, &str)| {
                format!("[volumes.{name}]\nuri = \"file:{file}\"\n{options}\n")
            };
            let text: String = volumes.iter().map(table).collect();
            let (config, wrong) = Config::parse(&text, &self.0.path().join("longhaul.toml"));
            assert!(wrong.is_empty(), "{wrong:?}");
            config
        }

        /// The serial numbers of volumes that are served.
        fn serve(&self, volumes: &[(&str, &str, &str)]) -> Vec<String> {
            let config = self.config(volumes);
            let identities = self.identify(&config);
            let files = self.files();
            for (volume, VolumeIdentity { serial, .. }) in config.volumes.iter().zip(&identities) {
                files.note(volume, serial).unwrap();
            }
            identities.into_iter().map(|identity| identity.serial).collect()
        }

        fn identify(&self, config: &Config) -> Vec<VolumeIdentity> {
            let volumes = config.volumes.iter();
            let volumes: Vec<_> =
                volumes.map(|volume| (volume.clone(), ServedFiles::state_of(volume))).collect();
            self.files().identify(&volumes, &config.volumes).unwrap()
        }

        fn files(&self) -> ServedFiles {
            ServedFiles::in_state(Some(self.0.path()))
        }

        /// Its server ends, and leaves this file, which it had served with this number.
        fn leave(&self, serial: &str, file: &str) {
            let found = self.0.path().join(file).metadata().unwrap();
            self.files().note_left(serial, LeftState::of(&found)).unwrap();
        }

        /// Whoever writes to a file, at another time than all others.
        fn write(&self, name: &str) {
            let path = self.0.path().join(name);
            let file = fs::File::options().write(true).open(&path).unwrap();
            let last = file.metadata().unwrap().modified().unwrap();
            file.set_modified(last + std::time::Duration::from_millis(1)).unwrap();
        }
    }

    fn usual(name: &str) -> String {
        Identity::new(format!("iqn.2026-11.dev.longhaul:{name}"), 0).serial
    }

    #[test]
    fn first_file_of_a_unit_has_its_serial_number_and_keeps_it() {
        let scene = Scene::new();
        for _ in 0..2 {
            let found = scene.serve(&[("x", "a", ""), ("y", "b", "")]);
            assert_eq!(found, [usual("x"), usual("y")]);
        }
        fs::rename(scene.0.path().join("a"), scene.0.path().join("d")).unwrap();
        assert_eq!(scene.serve(&[("x", "d", "")]), [usual("x")], "renamed");
    }

    #[test]
    fn file_that_was_changed_while_it_was_not_served_has_a_new_number() {
        let scene = Scene::new();
        let mut had = BTreeSet::new();
        let mut number = usual("x");
        for n in 0..3 {
            assert_eq!(scene.serve(&[("x", "a", "")]), [&*number], "{n}");
            assert!(had.insert(number.clone()), "{n}");
            scene.leave(&number, "a");
            // As it was left.
            assert_eq!(scene.serve(&[("x", "a", "")]), [&*number]);
            // Its server was killed: nobody knows.
            scene.write("a");
            assert_eq!(scene.serve(&[("x", "a", "")]), [&*number]);
            scene.leave(&number, "a");
            scene.write("a");
            // Who may not write to it is not concerned, and leaves the others what they know.
            assert_eq!(scene.serve(&[("x", "a", "read_only = true")]), [&*number]);
            number = scene.serve(&[("x", "a", "")]).remove(0);
            scene.leave(&number, "a");
        }
    }

    #[test]
    fn file_that_was_another_unit_meanwhile_has_its_number_only_if_nothing_was_written() {
        let scene = Scene::new();
        let as_x = |scene: &Scene| scene.serve(&[("x", "a", "")]).remove(0);
        let as_y = |scene: &Scene| scene.serve(&[("y", "a", "")]).remove(0);
        assert_eq!(as_x(&scene), usual("x"));
        scene.leave(&usual("x"), "a");
        assert_eq!(as_y(&scene), usual("y"));
        scene.leave(&usual("y"), "a");
        assert_eq!(as_x(&scene), usual("x"), "nobody has written to it");
        scene.leave(&usual("x"), "a");
        assert_eq!(as_y(&scene), usual("y"));
        scene.write("a");
        scene.leave(&usual("y"), "a");
        let second = as_x(&scene);
        assert_ne!(second, usual("x"));
        scene.leave(&second, "a");
        assert_eq!(as_x(&scene), second);
        scene.leave(&second, "a");
        // A server that is killed then does not say how it has left the file.
        assert_eq!(as_y(&scene), usual("y"), "as its clients have left it");
        assert!(![usual("x"), second, usual("y")].contains(&as_x(&scene)));
    }

    #[test]
    fn configured_number_of_a_file_that_was_changed_is_kept_without_its_reservations() {
        let scene = Scene::new();
        let forgets = |scene: &Scene, own: &str| {
            let own = format!("serial = \"{own}\"");
            let config = scene.config(&[("x", "a", &own)]);
            let forgets = scene.identify(&config)[0].forget_reservations;
            scene.serve(&[("x", "a", &own)]);
            forgets
        };
        scene.serve(&[("x", "a", "")]);
        scene.leave(&usual("x"), "a");
        scene.write("a");
        assert!(!forgets(&scene, &usual("x")), "it is said to be the same volume");
        scene.leave(&usual("x"), "a");
        assert!(!forgets(&scene, &usual("x")), "as it was left");
        scene.leave(&usual("x"), "a");
        scene.write("a");
        assert!(forgets(&scene, &usual("x")), "nobody has said anything of that");
    }

    #[test]
    fn volume_that_is_no_file_does_not_have_the_number_of_one() {
        let scene = Scene::new();
        scene.serve(&[("x", "a", "")]);
        let memory = "[volumes.x]\nuri = \"memory:1M\"\n";
        let (config, _) = Config::parse(memory, Path::new("longhaul.toml"));
        let mut serials: Vec<_> =
            (0..2).map(|_| scene.identify(&config).remove(0).serial).collect();
        serials.dedup();
        assert!(serials.len() == 1 && serials[0] != usual("x"), "{serials:?}");
    }

    #[test]
    fn what_was_kept_for_a_unit_is_that_of_its_last_volume() {
        let scene = Scene::new();
        let is_last =
            |file: &str| scene.identify(&scene.config(&[("x", file, "")]))[0].is_last_of_unit;
        assert!(is_last("a"), "nothing is noted");
        scene.serve(&[("x", "a", "")]);
        assert!(is_last("a") && !is_last("b"));
        scene.serve(&[("x", "b", "")]);
        assert!(!is_last("a") && is_last("b"));
    }

    #[test]
    fn other_file_of_a_unit_has_another_serial_number() {
        let scene = Scene::new();
        scene.serve(&[("x", "a", "")]);
        let other = scene.serve(&[("x", "b", "")]).remove(0);
        assert_ne!(other, usual("x"));
        assert_eq!(scene.serve(&[("x", "b", "")]), [&*other]);
        assert_eq!(scene.serve(&[("x", "a", "")]), [usual("x")]);
        // A new file in the place of the one that was noted.
        fs::remove_file(scene.0.path().join("a")).unwrap();
        scene.make("a");
        let new = scene.serve(&[("x", "a", "")]).remove(0);
        assert!(new != usual("x") && new != other);
    }

    #[test]
    fn serial_number_of_a_file_that_was_replaced_is_given_to_none_after_it() {
        let scene = Scene::new();
        let mut had = BTreeSet::from([scene.serve(&[("x", "a", "")]).remove(0)]);
        let file = |name: &str| scene.0.path().join(name);
        for n in 1..4 {
            fs::rename(file("a"), file(&format!("old{n}"))).unwrap();
            scene.make("a");
            assert!(had.insert(scene.serve(&[("x", "a", "")]).remove(0)), "{n}: {had:?}");
        }
        // By way of a file elsewhere, and of another unit.
        assert!(had.insert(scene.serve(&[("x", "b", "")]).remove(0)), "{had:?}");
        let of_unit = scene.serve(&[("y", "c", "")]).remove(0);
        assert!(had.insert(of_unit.clone()) && of_unit == usual("y"), "{had:?}");
        fs::rename(file("c"), file("old")).unwrap();
        fs::rename(file("old1"), file("c")).unwrap();
        assert!(had.insert(scene.serve(&[("y", "c", "")]).remove(0)), "{had:?}");
        fs::rename(file("c"), file("old1")).unwrap();
        scene.make("c");
        assert!(had.insert(scene.serve(&[("y", "c", "")]).remove(0)), "{had:?}");
        // The first one is back, and may have been written to as another unit.
        fs::rename(file("old1"), file("a")).unwrap();
        assert!(had.insert(scene.serve(&[("x", "a", "")]).remove(0)), "{had:?}");
    }

    #[test]
    fn number_that_a_file_had_before_a_configured_one_is_still_its_own() {
        let scene = Scene::new();
        scene.serve(&[("x", "a", "")]);
        scene.serve(&[("x", "a", "serial = \"0815\"")]);
        assert_ne!(scene.serve(&[("x", "b", "")]), [usual("x")]);
    }

    #[test]
    fn size_of_a_file_that_grew_is_noted() {
        let scene = Scene::new();
        scene.serve(&[("x", "a", "")]);
        let file = fs::File::options().write(true).open(scene.0.path().join("a")).unwrap();
        file.set_len(2048).unwrap();
        let config = scene.config(&[("x", "a", "")]);
        let files = scene.files();
        files.note_size(&config.volumes[0]).unwrap();
        assert!(files.must_exist(&config.volumes[0], OnExchange::Refuse).unwrap());
        file.set_len(1024).unwrap();
        let why = files.must_exist(&config.volumes[0], OnExchange::Refuse).unwrap_err();
        assert!(why.to_string().contains("it is 1K long, and was 2K"), "{why}");
    }

    #[test]
    fn configured_serial_number_is_used_and_nobody_elses() {
        let scene = Scene::new();
        scene.serve(&[("x", "a", "")]);
        let own = format!("serial = \"{}\"", usual("x"));
        assert_eq!(scene.serve(&[("x", "b", &own)]), [usual("x")]);
        // It is the number of `b` now, also while both are served.
        let both = scene.serve(&[("x", "b", &own), ("y", "a", "")]);
        assert_eq!(both[0], usual("x"));
        assert_ne!(both[1], usual("x"));
        assert_eq!(scene.serve(&[("x", "b", "serial = \"0815\""), ("z", "c", "")])[0], "0815");
        assert_eq!(scene.serve(&[("x", "b", "")]), ["0815"], "it stays with the file");
    }

    #[test]
    fn file_whose_note_is_damaged_has_a_number_that_none_had() {
        for damage in ["", "junk"] {
            let scene = Scene::new();
            scene.serve(&[("x", "a", ""), ("y", "b", "")]);
            let notes = fs::read_dir(scene.0.path().join("served")).unwrap();
            let of_a = |note: &PathBuf| fs::read_to_string(note).unwrap().contains("/a\"");
            let note = notes.map(|note| note.unwrap().path()).find(of_a).unwrap();
            fs::write(&note, damage).unwrap();
            let found = scene.serve(&[("x", "a", ""), ("y", "b", "")]);
            assert!(found[0] != usual("x") && found[1] == usual("y"), "{found:?}");
            assert_eq!(scene.serve(&[("x", "a", "")]), [&*found[0]], "it is noted again");
            assert_ne!(scene.serve(&[("z", "c", "")]), [usual("z")], "it may be that of the note");
            fs::remove_file(note).unwrap();
            assert_eq!(scene.serve(&[("x", "a", "")]), [&*found[0]]);
        }
    }

    #[test]
    fn note_of_an_earlier_release_names_the_number_of_its_unit() {
        let scene = Scene::new();
        scene.serve(&[("x", "a", "")]);
        let notes = scene.0.path().join("served");
        let note = fs::read_dir(&notes).unwrap().next().unwrap().unwrap().path();
        let mut old: serde_json::Value = serde_json::from_slice(&fs::read(&note).unwrap()).unwrap();
        for part in ["serial", "order", "numbers"] {
            old.as_object_mut().unwrap().remove(part).expect("it was noted");
        }
        fs::write(&note, old.to_string()).unwrap();
        assert_eq!(scene.serve(&[("x", "a", "")]), [usual("x")]);
        assert_ne!(scene.serve(&[("x", "c", "")]), [usual("x")]);
    }
}
