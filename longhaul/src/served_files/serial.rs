//! The serial numbers of files: each belongs to the file, wherever it is served.
//!
//! A client that connects again tells its volume by the serial number, and writes into it what it had not flushed. So a
//! file that takes the place of another must not answer by its number, now or ever: the client may wait for long.

use std::path::{Path, PathBuf};

use proto::iscsi::login::policy::UnitName;
use proto::scsi::inquiry::Identity;
use sha2::{Digest as _, Sha256};

use super::{FileId, Number, Record, ServedFiles, absolute};
use crate::config::Served;
use crate::failure::Outcome;
use crate::printable::Shown as _;
use crate::uri::Uri;
use crate::utc::{now, utc};

/// A file that is about to be served.
struct FileToServe<'a> {
    volume: &'a Served,
    path: PathBuf,
    id: Option<FileId>,
}

impl ServedFiles {
    /// The serial number of each of `volumes`, where it is not the one that follows from target and unit of a volume that
    /// is no file. `all` are the volumes of the whole configuration.
    pub(crate) fn serials(
        &self,
        volumes: &[Served],
        all: &[Served],
    ) -> Outcome<Vec<Option<String>>> {
        let records = self.records();
        let records: Vec<_> = records.into_iter().map(|(_, record)| record).collect();
        let serial = |volume: &Served| match (configured(volume), &volume.uri) {
            (Some(configured), _) => Ok(Some(configured.to_owned())),
            (None, Uri::File(path)) => {
                FileToServe::of(volume, path)?.serial(&records, all).map(Some)
            }
            (None, _) => Ok(None),
        };
        volumes.iter().map(serial).collect()
    }
}

impl<'a> FileToServe<'a> {
    fn of(volume: &'a Served, path: &Path) -> Outcome<Self> {
        let id = path.metadata().ok().as_ref().and_then(FileId::of);
        Ok(Self { volume, path: absolute(path)?, id })
    }

    /// The number that the file had when it was served last, or that of its unit: whichever it is, unless it belongs to
    /// another file. Then it is a new one.
    fn serial(&self, records: &[Record], all: &[Served]) -> Outcome<String> {
        let own = records.iter().filter(|record| record.is_file(&self.path, self.id));
        let own = own.max_by_key(|record| record.age()).and_then(Record::number);
        let unit = of_unit(&self.volume.unit());
        let serial = own.as_ref().map_or(unit, |own| own.serial.clone());
        let Some(owner) = self.owner(&serial, own.as_ref(), records, all) else {
            return Ok(serial);
        };
        let is_free = |serial: &String| self.owner(serial, None, records, all).is_none();
        let new = (0..).map(|n| self.new_serial(n)).find(is_free).unwrap_or_default();
        let Served { name, uri, .. } = self.volume;
        tracing::warn!(
            volume = name,
            "{uri} is served with the new serial number {new}: {serial} is that of {owner}. Clients take it for another \
             volume, and write nothing into it that they had not flushed before; if it is the same volume, \
             `serial = \"{serial}\"` in its configuration says so"
        );
        Ok(new)
    }

    /// Whose a serial number is, if not this file's: another file that was ever served with it, if that was after it was this
    /// file's `own`, or a volume that is configured so.
    fn owner(
        &self,
        serial: &str,
        own: Option<&Number>,
        records: &[Record],
        all: &[Served],
    ) -> Option<String> {
        let others = all.iter().filter(|other| other.name != self.volume.name);
        if let Some(other) = others.into_iter().find(|other| configured(other) == Some(serial)) {
            return Some(format!("volume {}", other.name));
        }
        let others = records.iter().filter(|record| !record.is_file(&self.path, self.id));
        let numbers =
            others.flat_map(|other| other.numbers().into_iter().map(move |had| (other, had)));
        let (other, had) = numbers
            .into_iter()
            .find(|(_, had)| had.serial == serial && own.is_none_or(|own| had.age() > own.age()))?;
        let (path, opened) = (other.path.shown(), utc(had.opened));
        let what = if other.path == self.path { "another file that was at" } else { "the file" };
        Some(format!("{what} {path}, served on {opened} as {}/{}", had.target, had.lun))
    }

    /// It follows from the identity of the file where that is known, so that it stays the same if it cannot be noted.
    fn new_serial(&self, n: u64) -> String {
        let UnitName { target, lun } = self.volume.unit();
        let mut hash = Sha256::new();
        hash.update(target.as_str().as_bytes());
        hash.update([0]);
        hash.update(lun.to_be_bytes());
        let (inode, born) = self.id.map_or_else(|| (0, now()), |id| (id.inode, id.born));
        [inode, born, n].iter().for_each(|number| hash.update(number.to_be_bytes()));
        hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
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
        vec![Number { serial, target, lun, opened, order }]
    }

    /// The one that it had last.
    fn number(&self) -> Option<Number> {
        self.numbers().into_iter().max_by_key(Number::age)
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
            let files = ServedFiles::in_state(Some(self.0.path()));
            let serials = files.serials(&config.volumes, &config.volumes).unwrap();
            for (volume, serial) in config.volumes.iter().zip(&serials) {
                files.note(volume, serial.as_deref()).unwrap();
            }
            serials.into_iter().map(Option::unwrap).collect()
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
        assert_eq!(scene.serve(&[("x", "b", ""), ("y", "a", "")]), [usual("y"), usual("x")]);
        fs::rename(scene.0.path().join("a"), scene.0.path().join("d")).unwrap();
        assert_eq!(scene.serve(&[("z", "d", "")]), [usual("x")], "renamed");
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
        assert!(!had.insert(scene.serve(&[("y", "c", "")]).remove(0)), "it had one before");
        fs::rename(file("c"), file("old1")).unwrap();
        scene.make("c");
        assert!(had.insert(scene.serve(&[("y", "c", "")]).remove(0)), "{had:?}");
        // The first one is back.
        fs::rename(file("old1"), file("a")).unwrap();
        assert_eq!(scene.serve(&[("x", "a", "")]), [usual("x")]);
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
        let files = ServedFiles::in_state(Some(scene.0.path()));
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
