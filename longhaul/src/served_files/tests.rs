use std::collections::BTreeSet;
use std::fs;

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

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn make(&self, name: &str) {
        fs::write(self.path(name), name).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    /// A configuration of volumes: name, file or URI, other options.
    fn config(&self, volumes: &[(&str, &str, &str)]) -> Config {
        let table = |(name, uri, options): &(&str, &str, &str)| {
            let scheme = if uri.contains(':') { "" } else { "file:" };
            format!("[volumes.{name}]\nuri = \"{scheme}{uri}\"\n{options}\n")
        };
        let text: String = volumes.iter().map(table).collect();
        let (config, wrong) = Config::parse(&text, &self.path("longhaul.toml"));
        assert!(wrong.is_empty(), "{wrong:?}");
        config
    }

    /// The identities of volumes that are served.
    fn serve(&self, volumes: &[(&str, &str, &str)]) -> Vec<String> {
        self.serve_upstream(volumes, None)
    }

    /// The identity of one volume.
    fn one(&self, name: &str, file: &str, options: &str) -> String {
        self.serve(&[(name, file, options)]).remove(0)
    }

    fn serve_upstream(
        &self,
        volumes: &[(&str, &str, &str)],
        upstream: Option<&Upstream>,
    ) -> Vec<String> {
        let found = self.config(volumes).volumes.into_iter().map(Found::unopened);
        let found: Vec<_> =
            found.map(|found| Found { upstream: upstream.cloned(), ..found }).collect();
        let files = self.files();
        let identities = files.identify(&found).unwrap();
        for (found, identity) in found.iter().zip(&identities) {
            files.note(found, identity).unwrap();
        }
        identities.into_iter().map(|by| by.identity).collect()
    }

    fn files(&self) -> ServedFiles {
        ServedFiles::in_state(Some(self.0.path()))
    }

    /// Its server ends, and leaves this file, which was the volume with this identity.
    fn leave(&self, identity: &str, file: &str) {
        let found = self.path(file).metadata().unwrap();
        self.files().note_left(identity, LeftState::of(&found)).unwrap();
    }

    /// Whoever writes to a file, at another time than all others.
    fn write(&self, name: &str) {
        let file = fs::File::options().write(true).open(self.path(name)).unwrap();
        let last = file.metadata().unwrap().modified().unwrap();
        file.set_modified(last + std::time::Duration::from_millis(1)).unwrap();
    }

    fn set_len(&self, name: &str, len: u64) {
        fs::File::options().write(true).open(self.path(name)).unwrap().set_len(len).unwrap();
    }

    fn refusal(&self, name: &str, file: &str, options: &str) -> String {
        let config = self.config(&[(name, file, options)]);
        let refused = self.files().must_exist(&config.volumes[0], OnExchange::Refuse);
        refused.unwrap_err().to_string()
    }

    fn notes(&self) -> Vec<PathBuf> {
        let notes = fs::read_dir(self.path("served")).unwrap();
        notes.map(|note| note.unwrap().path()).collect()
    }
}

#[test]
fn identity_is_random_and_stays_with_the_file() {
    let scene = Scene::new();
    let both = [("x", "a", ""), ("y", "b", "")];
    let found = scene.serve(&both);
    assert_ne!(found[0], found[1]);
    assert_eq!(scene.serve(&both), found);
    scene.rename("a", "d");
    assert_eq!(scene.one("x", "d", ""), found[0], "renamed");
    assert_eq!(scene.notes().len(), 2);
    assert_ne!(Scene::new().serve(&both), found, "nothing follows from names");
}

#[test]
fn volume_in_memory_is_another_each_time_and_is_not_noted() {
    let scene = Scene::new();
    let memory = || scene.one("x", "memory:1M", "");
    assert_ne!(memory(), memory());
    assert!(!scene.path("served").exists());
}

#[test]
fn without_a_state_directory_the_identity_follows_from_the_unit() {
    let scene = Scene::new();
    let config = scene.config(&[("x", "a", ""), ("y", "b", ""), ("m", "memory:1M", "")]);
    let found: Vec<_> = config.volumes.into_iter().map(Found::unopened).collect();
    let serials = || {
        let identities = ServedFiles(None).identify(&found).unwrap();
        identities.into_iter().map(|by| by.serial).collect::<Vec<_>>()
    };
    let (first, second) = (serials(), serials());
    assert_eq!(first[..2], second[..2]);
    assert!(first[0] != first[1] && first[2] != second[2], "{first:?} {second:?}");
}

#[test]
fn file_that_was_changed_while_it_was_not_served_is_another_volume() {
    let scene = Scene::new();
    let mut had = BTreeSet::new();
    let mut identity = scene.one("x", "a", "");
    for n in 0..3 {
        assert!(had.insert(identity.clone()), "{n}");
        scene.leave(&identity, "a");
        // As it was left.
        assert_eq!(scene.one("x", "a", ""), identity);
        // Its server was killed: nobody knows.
        scene.write("a");
        assert_eq!(scene.one("x", "a", ""), identity);
        scene.leave(&identity, "a");
        scene.write("a");
        // Who may not write to it is not concerned, and leaves the others what they know.
        assert_eq!(scene.one("x", "a", "read_only = true"), identity);
        identity = scene.one("x", "a", "");
    }
    assert_eq!(scene.notes().len(), 1, "what never comes back is not noted any more");
}

#[test]
fn file_that_was_another_unit_meanwhile_is_its_volume_only_if_nothing_was_written() {
    let scene = Scene::new();
    let as_x = || scene.one("x", "a", "");
    let as_y = || scene.one("y", "a", "");
    let first = as_x();
    scene.leave(&first, "a");
    let other = as_y();
    assert_ne!(other, first);
    scene.leave(&other, "a");
    assert_eq!(as_x(), first, "nobody has written to it");
    scene.leave(&first, "a");
    assert_eq!(as_y(), other);
    scene.write("a");
    scene.leave(&other, "a");
    let second = as_x();
    assert_ne!(second, first);
    scene.leave(&second, "a");
    assert_eq!(as_x(), second);
    scene.leave(&second, "a");
    // A server that is killed then does not say how it has left the file.
    assert_eq!(as_y(), other, "as its clients have left it");
    assert!(![first, second, other].contains(&as_x()));
}

#[test]
fn other_file_of_a_unit_is_another_volume_also_at_the_same_path() {
    let scene = Scene::new();
    let first = scene.one("x", "a", "");
    scene.leave(&first, "a");
    let other = scene.one("x", "b", "");
    assert_ne!(other, first);
    assert_eq!(scene.one("x", "b", ""), other);
    assert_eq!(scene.one("x", "a", ""), first, "it is back, and as it was left");
    let mut had = BTreeSet::from([first, other]);
    for n in 0..3 {
        scene.rename("a", &format!("old{n}"));
        scene.make("a");
        assert!(had.insert(scene.one("x", "a", "")), "{n}: {had:?}");
    }
    assert!(had.insert(scene.one("y", "old0", "")), "{had:?}");
}

/// Reservations are kept under the identity: a number that is configured carries none over to another file.
#[test]
fn configured_serial_number_makes_no_other_file_the_same_volume() {
    let scene = Scene::new();
    let serial = "serial = \"0815\"";
    let first = scene.one("x", "a", "");
    assert_eq!(scene.one("x", "a", serial), first, "the file is the same");
    scene.leave(&first, "a");
    scene.rename("b", "a");
    let second = scene.one("x", "a", serial);
    assert_ne!(second, first);
    scene.leave(&second, "a");
    scene.write("a");
    let third = scene.one("x", "a", &format!("serial = \"{second}\""));
    assert!(![first, second].contains(&third));
    let found = scene.config(&[("x", "a", serial)]).volumes.into_iter().map(Found::unopened);
    let by = scene.files().identify(&found.collect::<Vec<_>>()).unwrap().remove(0);
    assert_eq!((&*by.serial, by.identity), ("0815", third));
}

#[test]
fn serial_number_of_another_volume_is_told() {
    let scene = Scene::new();
    let identity = scene.one("y", "b", "");
    let own = format!("serial = \"{identity}\"");
    let other = |volumes: &[(&str, &str, &str)], at| {
        let volumes = scene.config(volumes).volumes;
        scene.files().with_serial_of(&volumes, at).map(|other| other.name.clone())
    };
    let one = "serial = \"0815\"";
    for (volumes, expected) in [
        ([("x", "a", one), ("y", "b", one)], [None, Some("x")]),
        ([("x", "a", one), ("y", "b", "serial = \"0816\"")], [None, None]),
        ([("x", "a", &*own), ("y", "b", "")], [Some("y"), None]),
        ([("x", "a", &*own), ("y", "b", one)], [None, None]),
    ] {
        let found = [0, 1].map(|at| other(&volumes, at));
        assert_eq!(found.each_ref().map(Option::as_deref), expected, "{volumes:?}");
    }
}

#[test]
fn what_is_no_file_is_told_from_a_file_and_from_each_other() {
    let scene = Scene::new();
    let upstream = |serial: &str, luks_uuid: Option<&str>| Upstream {
        vendor: "V".to_owned(),
        product: "P".to_owned(),
        serial: Some(serial.to_owned()),
        luks_uuid: luks_uuid.map(str::to_owned),
    };
    let serve = |lun: u16, upstream: Upstream| {
        let uri = format!("iscsi://192.0.2.1/iqn.2000-01.example:t/{lun}");
        scene.serve_upstream(&[("x", &uri, "")], Some(&upstream)).remove(0)
    };
    let first = serve(0, upstream("1", None));
    assert_eq!(serve(0, upstream("1", None)), first);
    assert_eq!(serve(0, upstream("1", Some("u"))), first, "its clients have encrypted it");
    let mut had = BTreeSet::from([first]);
    for (lun, other) in [
        (0, upstream("1", Some("w"))),
        (0, upstream("1", None)),
        // It is not that one, encrypted.
        (0, upstream("1", Some("u"))),
        (0, upstream("2", Some("u"))),
        (1, upstream("2", Some("u"))),
    ] {
        assert!(had.insert(serve(lun, other.clone())), "{lun} {other:?}");
    }
    assert!(had.insert(scene.one("x", "a", "")), "a file");
    assert!(had.insert(scene.one("x", "device:/dev/null", "")), "a device");
    assert!(had.insert(scene.one("x", "device:/dev/zero", "")), "another device");
    let again = scene.one("x", "device:/dev/null", "");
    // Of the node of a device the time of the last change tells nothing.
    scene.leave(&again, "a");
    assert_eq!(scene.one("x", "device:/dev/null", ""), again, "after a clean end");
    assert!(!had.insert(again.clone()), "the first device");
    assert!(had.insert(scene.one("y", "device:/dev/null", "")));
    assert_ne!(scene.one("x", "device:/dev/null", ""), again, "others may have written to it");
}

#[test]
fn how_a_file_was_left_is_noted_of_that_file() {
    let scene = Scene::new();
    let serial = "serial = \"0815\"";
    let both = [("x", "a", serial), ("y", "b", "")];
    let found = scene.serve(&both);
    scene.leave(&found[0], "a");
    scene.write("b");
    scene.leave(&found[1], "b");
    assert_eq!(scene.serve(&both), found);
}

#[test]
fn source_whose_note_cannot_be_read_is_new() {
    let scene = Scene::new();
    let first = scene.one("x", "a", "");
    let note = scene.notes().remove(0);
    fs::write(&note, &fs::read(&note).unwrap()[..50]).unwrap();
    let (_, unreadable) = scene.files().read();
    assert!(unreadable.len() == 1 && unreadable[0].file == note);
    assert_ne!(scene.one("x", "a", ""), first);
    let volumes = scene.config(&[("x", "a", "")]).volumes;
    assert_eq!(scene.files().identities_of(&volumes[0]), None, "nothing is forgotten");
    fs::remove_file(&note).unwrap();
    assert_eq!(scene.files().identities_of(&volumes[0]).unwrap().len(), 1);
}

#[test]
fn size_of_a_file_that_grew_is_noted() {
    let scene = Scene::new();
    scene.one("x", "a", "");
    scene.set_len("a", 2048);
    let config = scene.config(&[("x", "a", "")]);
    let files = scene.files();
    files.note_size(&config.volumes[0]).unwrap();
    assert!(files.must_exist(&config.volumes[0], OnExchange::Refuse).unwrap());
    scene.set_len("a", 1024);
    let why = scene.refusal("x", "a", "");
    assert!(why.contains("it is 1K long, and was 2K"), "{why}");
}

#[test]
fn file_that_was_moved_and_cut_off_is_not_served() {
    let scene = Scene::new();
    scene.set_len("a", 2048);
    scene.one("x", "a", "");
    scene.rename("a", "d");
    scene.set_len("d", 1024);
    let why = scene.refusal("x", "d", "");
    assert!(why.contains("it is 1K long, and was 2K"), "{why}");
    let config = scene.config(&[("x", "d", "size = \"1K\"")]);
    scene.files().must_exist(&config.volumes[0], OnExchange::Refuse).unwrap();
}
