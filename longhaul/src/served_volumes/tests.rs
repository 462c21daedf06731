use std::collections::BTreeSet;
use std::fs;

use super::*;
use crate::config::{Config, Served};

/// A volume that was opened just now.
fn opened(volume: Served) -> Found {
    let file = volume.uri.file().and_then(|path| path.metadata().ok());
    Found::new(volume, file.as_ref(), None)
}

/// A server with a state directory and files `a` to `c`.
struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        ["a", "b", "c"].iter().for_each(|name| fixture.make(name));
        fixture
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
        let found = self.config(volumes).volumes.into_iter().map(opened);
        let found: Vec<_> =
            found.map(|found| Found { upstream: upstream.cloned(), ..found }).collect();
        let mut files = self.files();
        let identities = files.identify(&found).unwrap();
        for (found, identity) in found.iter().zip(&identities) {
            files.note(found, identity).unwrap();
        }
        identities.into_iter().map(|by| by.identity).collect()
    }

    fn files(&self) -> ServedVolumes {
        ServedVolumes::read(Some(self.0.path()))
    }

    /// Its server ends, and leaves this file, which was the volume with this identity.
    fn leave(&self, identity: &str, file: &str) {
        let found = self.path(file).metadata().unwrap();
        ServedVolumes::note_left(Some(self.0.path()), identity, LeftState::of(&found)).unwrap();
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
    let fixture = Fixture::new();
    let both = [("x", "a", ""), ("y", "b", "")];
    let found = fixture.serve(&both);
    assert_ne!(found[0], found[1]);
    assert_eq!(fixture.serve(&both), found);
    fixture.rename("a", "d");
    assert_eq!(fixture.one("x", "d", ""), found[0], "renamed");
    assert_eq!(fixture.notes().len(), 2);
    assert_ne!(Fixture::new().serve(&both), found, "nothing follows from names");
}

#[test]
fn volume_in_memory_is_another_each_time_and_is_not_noted() {
    let fixture = Fixture::new();
    let memory = || fixture.one("x", "memory:1M", "");
    assert_ne!(memory(), memory());
    assert!(!fixture.path("served").exists());
}

#[test]
fn without_a_state_directory_the_identity_follows_from_the_unit() {
    let fixture = Fixture::new();
    let config = fixture.config(&[("x", "a", ""), ("y", "b", ""), ("m", "memory:1M", "")]);
    let found: Vec<_> = config.volumes.into_iter().map(opened).collect();
    let serials = || {
        let identities = ServedVolumes::read_from(None).identify(&found).unwrap();
        identities.into_iter().map(|by| by.serial).collect::<Vec<_>>()
    };
    let (first, second) = (serials(), serials());
    assert_eq!(first[..2], second[..2]);
    assert!(first[0] != first[1] && first[2] != second[2], "{first:?} {second:?}");
}

/// The unit behind it may have the same name, and two units with one number are two paths to one disk to their clients.
#[test]
fn unit_that_hands_another_on_has_another_number_than_that() {
    let fixture = Fixture::new();
    let named = fixture.one("x", "tape:", "");
    let behind = |upstream: Option<&str>| {
        let upstream = Upstream::passed(upstream);
        let volumes = [("x", "scsi:iscsi://far/iqn.2026-11.dev.longhaul:x", "")];
        fixture.serve_upstream(&volumes, Some(&upstream)).remove(0)
    };
    let (first, unknown) = (behind(Some(&named)), behind(None));
    let next = behind(Some(&first));
    let all = BTreeSet::from([named.clone(), first.clone(), next, unknown.clone()]);
    assert_eq!(all.len(), 4, "{all:?}");
    assert_eq!((behind(Some(&named)), behind(Some(""))), (first, unknown), "after a restart");
    // Without a state directory that of a volume follows from its name too.
    let config = fixture.config(&[("x", "iscsi://far/iqn.2026-11.dev.longhaul:x", "")]);
    let found = config.volumes.into_iter().map(opened).map(|found| {
        let upstream = Some(Upstream::passed(Some(&named)));
        Found { upstream, ..found }
    });
    let found: Vec<_> = found.collect();
    let identities = ServedVolumes::read_from(None).identify(&found).unwrap();
    assert_ne!(identities[0].serial, named);
}

#[test]
fn file_that_was_changed_while_it_was_not_served_is_another_volume() {
    let fixture = Fixture::new();
    let mut had = BTreeSet::new();
    let mut identity = fixture.one("x", "a", "");
    for n in 0..3 {
        assert!(had.insert(identity.clone()), "{n}");
        fixture.leave(&identity, "a");
        // As it was left.
        assert_eq!(fixture.one("x", "a", ""), identity);
        // Its server was killed: nobody knows.
        fixture.write("a");
        assert_eq!(fixture.one("x", "a", ""), identity);
        fixture.leave(&identity, "a");
        fixture.write("a");
        // Who may not write to it is not concerned, and leaves the others what they know.
        assert_eq!(fixture.one("x", "a", "read_only = true"), identity);
        identity = fixture.one("x", "a", "");
    }
    assert_eq!(fixture.notes().len(), 1, "what never comes back is not noted any more");
}

/// Its server was killed, and a snapshot from before it began was put in the place of what it had written.
#[test]
fn file_that_has_gone_back_in_time_is_another_volume() {
    let at = |seconds| std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    let fixture = Fixture::new();
    let modify = |seconds| {
        let file = fs::File::options().write(true).open(fixture.path("a")).unwrap();
        file.set_modified(at(seconds)).unwrap();
    };
    modify(1_000_000);
    let first = fixture.one("x", "a", "");
    for later in [1_000_000, 1_000_001, 1_000_002] {
        modify(later);
        assert_eq!(fixture.one("x", "a", ""), first, "the server may have written to it");
    }
    modify(1_000_001);
    assert_eq!(fixture.one("x", "a", "read_only = true"), first, "nobody may write");
    let second = fixture.one("x", "a", "");
    assert_ne!(second, first);
    fixture.set_len("a", 512);
    modify(1_000_001);
    assert_eq!(fixture.one("x", "a", ""), second, "it has grown");
    fixture.set_len("a", 0);
    modify(1_000_003);
    let third = fixture.one("x", "a", "");
    assert!(third != first && third != second, "it is smaller");
    // A clock that was set back says nothing.
    modify(now() + 100_000);
    let fourth = fixture.one("x", "a", "");
    modify(1_000_004);
    assert_eq!(fixture.one("x", "a", ""), fourth);
}

/// To open a file may change its time, on some file systems. A start that fails has opened it all the same.
#[test]
fn file_that_was_opened_in_vain_is_as_it_was_left() {
    let fixture = Fixture::new();
    let found = || {
        let volume = fixture.config(&[("x", "a", "")]).volumes.remove(0);
        opened(volume)
    };
    let first = fixture.one("x", "a", "");
    assert_eq!(fixture.files().left_as(&found()), None, "its server did not say how it left it");
    fixture.leave(&first, "a");
    let before = found();
    fixture.write("a");
    assert_eq!(fixture.files().left_as(&before), Some(first));
    assert_eq!(fixture.files().left_as(&found()), None, "somebody has written to it");
}

#[test]
fn file_that_was_another_unit_meanwhile_is_its_volume_only_if_nothing_was_written() {
    let fixture = Fixture::new();
    let as_x = || fixture.one("x", "a", "");
    let as_y = || fixture.one("y", "a", "");
    let first = as_x();
    fixture.leave(&first, "a");
    let other = as_y();
    assert_ne!(other, first);
    fixture.leave(&other, "a");
    assert_eq!(as_x(), first, "nobody has written to it");
    fixture.leave(&first, "a");
    assert_eq!(as_y(), other);
    fixture.write("a");
    fixture.leave(&other, "a");
    let second = as_x();
    assert_ne!(second, first);
    fixture.leave(&second, "a");
    assert_eq!(as_x(), second);
    fixture.leave(&second, "a");
    // A server that is killed then does not say how it has left the file.
    assert_eq!(as_y(), other, "as its clients have left it");
    assert!(![first, second, other].contains(&as_x()));
}

#[test]
fn other_file_of_a_unit_is_another_volume_also_at_the_same_path() {
    let fixture = Fixture::new();
    let first = fixture.one("x", "a", "");
    fixture.leave(&first, "a");
    let other = fixture.one("x", "b", "");
    assert_ne!(other, first);
    assert_eq!(fixture.one("x", "b", ""), other);
    assert_eq!(fixture.one("x", "a", ""), first, "it is back, and as it was left");
    let mut had = BTreeSet::from([first, other]);
    for n in 0..3 {
        fixture.rename("a", &format!("old{n}"));
        fixture.make("a");
        assert!(had.insert(fixture.one("x", "a", "")), "{n}: {had:?}");
    }
    assert!(had.insert(fixture.one("y", "old0", "")), "{had:?}");
}

/// Reservations are kept under the identity: a number that is configured carries none over to another file.
#[test]
fn configured_serial_number_makes_no_other_file_the_same_volume() {
    let fixture = Fixture::new();
    let serial = "serial = \"0815\"";
    let first = fixture.one("x", "a", "");
    assert_eq!(fixture.one("x", "a", serial), first, "the file is the same");
    fixture.leave(&first, "a");
    fixture.rename("b", "a");
    let second = fixture.one("x", "a", serial);
    assert_ne!(second, first);
    fixture.leave(&second, "a");
    fixture.write("a");
    let third = fixture.one("x", "a", &format!("serial = \"{second}\""));
    assert!(![first, second].contains(&third));
    let found = fixture.config(&[("x", "a", serial)]).volumes.into_iter().map(opened);
    let by = fixture.files().identify(&found.collect::<Vec<_>>()).unwrap().remove(0);
    assert_eq!((&*by.serial, by.identity), ("0815", third));
}

#[test]
fn serial_number_of_another_volume_is_told() {
    let fixture = Fixture::new();
    let identity = fixture.one("y", "b", "");
    let own = format!("serial = \"{identity}\"");
    let other = |volumes: &[(&str, &str, &str)], at| {
        let volumes = fixture.config(volumes).volumes;
        fixture.files().with_serial_of(&volumes, at).map(|other| other.name.clone())
    };
    let one = "serial = \"0815\"";
    for (volumes, expected) in [
        ([("x", "a", one), ("y", "b", one)], [None, Some("x")]),
        ([("x", "a", one), ("y", "b", "serial = \"0816\"")], [None, None]),
        ([("x", "a", &*own), ("y", "b", "")], [Some("y"), None]),
        ([("x", "a", &*own), ("y", "b", one)], [None, None]),
        // It shows a new number in that place, and the number there is that of the file of the other.
        ([("x", "b", &*own), ("y", "c", "")], [None, None]),
    ] {
        let found = [0, 1].map(|at| other(&volumes, at));
        assert_eq!(found.each_ref().map(Option::as_deref), expected, "{volumes:?}");
    }
}

/// What a unit shows is that of its file, and not what it showed last.
#[test]
fn serial_number_of_a_file_that_is_back_is_told() {
    let fixture = Fixture::new();
    let first = fixture.one("x", "a", "");
    fixture.leave(&first, "a");
    let second = fixture.one("x", "b", "");
    let of = |serial: &str| format!("serial = \"{serial}\"");
    let other = |x, serial: &str| {
        let volumes = fixture.config(&[("x", x, ""), ("y", "c", &of(serial))]).volumes;
        fixture.files().with_serial_of(&volumes, 1).map(|other| other.name.clone())
    };
    assert_eq!(other("a", &first).as_deref(), Some("x"));
    assert_eq!(other("a", &second), None);
    assert_eq!(other("b", &second).as_deref(), Some("x"));
    assert_eq!(other("b", &first), None);
    // It was restored, and gets another number.
    fixture.write("a");
    assert_eq!(other("a", &first), None);
}

/// Of volumes of other targets that is known once they are open.
#[test]
fn serial_numbers_that_are_shown_are_those_of_what_was_found() {
    let fixture = Fixture::new();
    let first = fixture.one("x", "a", "");
    fixture.leave(&first, "a");
    fixture.one("x", "b", "");
    let noted = fixture.one("z", "c", "");
    let own = format!("serial = \"{first}\"");
    let volumes = fixture.config(&[("x", "a", ""), ("y", "b", &own), ("z", "c", "")]).volumes;
    let found: Vec<_> = volumes[..2].iter().cloned().map(opened).collect();
    let files = fixture.files();
    let identities = files.identify(&found).unwrap();
    let shown = files.serials(&volumes, &found, &identities);
    let shown: Vec<_> = shown.iter().map(|(_, serial)| serial.unwrap()).collect();
    assert_eq!(shown, [&*first, &first, &noted]);
}

#[test]
fn sources_of_different_kinds_are_told_apart() {
    let fixture = Fixture::new();
    let upstream = |serial: &str, luks_uuid: Option<&str>| Upstream {
        vendor: "V".to_owned(),
        product: "P".to_owned(),
        serial: Some(serial.to_owned()),
        volume: None,
        luks_uuid: luks_uuid.map(str::to_owned),
    };
    let serve = |lun: u16, upstream: Upstream| {
        let uri = format!("iscsi://192.0.2.1/iqn.2000-01.example:t/{lun}");
        fixture.serve_upstream(&[("x", &uri, "")], Some(&upstream)).remove(0)
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
    // An upstream of an earlier release shows no identity. Once it has, another is another volume, or none.
    let shows = |volume: Option<&str>| Upstream {
        volume: volume.map(str::to_owned),
        ..upstream("3", None)
    };
    let silent = serve(2, shows(None));
    assert_eq!(serve(2, shows(Some("v"))), silent);
    assert_eq!(serve(2, shows(Some("v"))), silent);
    assert!(had.insert(silent));
    for volume in [Some("w"), None] {
        assert!(had.insert(serve(2, shows(volume))), "{volume:?}");
    }
    assert!(had.insert(fixture.one("x", "a", "")), "a file");
    assert!(had.insert(fixture.one("x", "device:/dev/null", "")), "a device");
    assert!(had.insert(fixture.one("x", "device:/dev/zero", "")), "another device");
    let again = fixture.one("x", "device:/dev/null", "");
    // Of the node of a device the time of the last change tells nothing.
    fixture.leave(&again, "a");
    assert_eq!(fixture.one("x", "device:/dev/null", ""), again, "after a clean end");
    assert!(!had.insert(again.clone()), "the first device");
    assert!(had.insert(fixture.one("y", "device:/dev/null", "")));
    assert_ne!(fixture.one("x", "device:/dev/null", ""), again, "others may have written to it");
}

#[test]
fn how_a_file_was_left_is_noted_of_that_file() {
    let fixture = Fixture::new();
    let serial = "serial = \"0815\"";
    let both = [("x", "a", serial), ("y", "b", "")];
    let found = fixture.serve(&both);
    fixture.leave(&found[0], "a");
    fixture.write("b");
    fixture.leave(&found[1], "b");
    assert_eq!(fixture.serve(&both), found);
}

#[test]
fn source_whose_note_cannot_be_read_is_new() {
    let fixture = Fixture::new();
    let first = fixture.one("x", "a", "");
    let note = fixture.notes().remove(0);
    fs::write(&note, &fs::read(&note).unwrap()[..50]).unwrap();
    let unreadable = fixture.files().unreadable;
    assert!(unreadable.len() == 1 && unreadable[0].file == note);
    assert_ne!(fixture.one("x", "a", ""), first);
    let volumes = fixture.config(&[("x", "a", "")]).volumes;
    assert_eq!(fixture.files().identities_of(&volumes[0]), None, "nothing is forgotten");
    fs::remove_file(&note).unwrap();
    assert_eq!(fixture.files().identities_of(&volumes[0]).unwrap().len(), 1);
}

#[test]
fn size_of_a_file_that_grew_is_noted() {
    let fixture = Fixture::new();
    fixture.one("x", "a", "");
    fixture.set_len("a", 2048);
    let config = fixture.config(&[("x", "a", "")]);
    let files = fixture.files();
    files.note_size(&config.volumes[0]).unwrap();
    assert!(fixture.files().must_exist(&config.volumes[0], OnExchange::Refuse).unwrap());
    fixture.set_len("a", 1024);
    let why = fixture.refusal("x", "a", "");
    assert!(why.contains("it is 1K long, and was 2K"), "{why}");
}

#[test]
fn file_that_was_moved_and_cut_off_is_not_served() {
    let fixture = Fixture::new();
    fixture.set_len("a", 2048);
    fixture.one("x", "a", "");
    fixture.rename("a", "d");
    fixture.set_len("d", 1024);
    let why = fixture.refusal("x", "d", "");
    assert!(why.contains("it is 1K long, and was 2K"), "{why}");
    let config = fixture.config(&[("x", "d", "size = \"1K\"")]);
    fixture.files().must_exist(&config.volumes[0], OnExchange::Refuse).unwrap();
}

/// A number that was configured is the volume's own from then on: the option can go again.
#[test]
fn configured_serial_number_stays_with_the_file() {
    let fixture = Fixture::new();
    let show = |options: &str| {
        let found = fixture.config(&[("x", "a", options)]).volumes.into_iter().map(opened);
        let found: Vec<_> = found.collect();
        let mut files = fixture.files();
        let by = files.identify(&found).unwrap().remove(0);
        files.note(&found[0], &by).unwrap();
        fixture.leave(&by.identity, "a");
        by
    };
    let first = show("");
    assert_eq!(first.serial, first.identity);
    let configured = show("serial = \"0815\"");
    assert_eq!((&*configured.serial, &configured.identity), ("0815", &first.identity));
    let without = show("");
    assert_eq!((without.serial, without.identity), (configured.serial, configured.identity));
    // No other volume is shown under it meanwhile.
    let volumes = fixture.config(&[("x", "a", ""), ("y", "b", "serial = \"0815\"")]).volumes;
    assert_eq!(fixture.files().with_serial_of(&volumes, 1).unwrap().name, "x");
    // Another file has a number of its own, unless the option says otherwise.
    fixture.write("a");
    let other = show("");
    assert_eq!(other.serial, other.identity);
    assert_ne!(other.identity, first.identity);
}
