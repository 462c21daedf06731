//! Clients that are added to a configuration file and taken out of it, as an administrator would: what else stands there,
//! remarks too, stays as it is.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use proto::identity::PublicKey;
use serde::{Deserialize, Serialize};
use toml_edit::{Array, DocumentMut, Item, Key, Table, TableLike, TomlError, Value, value};

use super::TEXT_MAX;
use crate::durable::{refuse_irreplaceable, replace_as_owned};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;
use crate::size::Size;

/// A client, as its table has it.
#[derive(Clone, Debug)]
pub struct ClientTable {
    /// The name of the table.
    pub name: String,
    /// Its public key.
    pub key: PublicKey,
    /// The volumes that it may read and write.
    pub volumes: Vec<String>,
    /// Those that it may only read.
    pub read_only: Vec<String>,
    /// Where volumes are, by name, if the file says that of its clients' volumes.
    pub places: BTreeMap<String, String>,
    /// What stands above the table, on one line.
    pub remark: String,
}

/// The text with one client more.
pub fn with_client(text: &str, client: &ClientTable) -> Outcome<String> {
    let mut document = parse(text)?;
    add_places(&mut document, client)?;
    let clients = clients(&mut document)?;
    if clients.contains_key(&client.name) {
        return Err(Failure::new(format!("there is a client {} already", client.name))
            .hint("`longhaul revoke` removes it; or give another name"));
    }
    let mut table = Table::new();
    table.insert("key", value(client.key.to_string()));
    for (key, volumes) in [("volumes", &client.volumes), ("read_only", &client.read_only)] {
        if !volumes.is_empty() {
            table.insert(key, value(volumes.iter().collect::<Array>()));
        }
    }
    table.insert("protection", value("encrypt"));
    table.decor_mut().set_prefix(format!("\n# {}\n", client.remark));
    clients.insert(&client.name, Item::Table(table));
    let text = document.to_string();
    if text.len() as u64 > TEXT_MAX {
        let why = format!("it would have more than {} bytes", Size(TEXT_MAX));
        return Err(Failure::new("the file cannot have one client more").because(why));
    }
    Ok(text)
}

/// Notes where its volumes are. A volume of the same name in another place is that of another server.
fn add_places(document: &mut DocumentMut, client: &ClientTable) -> Outcome {
    let noted = places(&document.to_string());
    for (volume, place) in &client.places {
        match noted.get(volume) {
            Some(other) if other != place => {
                return Err(Failure::new(format!("its volume {volume} is {other}, and not {place}"))
                    .because("another server keeps its clients there")
                    .hint("give this server a --state DIR of its own, or its volume another name; if the volume was moved, change the file"));
            }
            Some(_) => {}
            None => {
                let mut table = Table::new();
                table.insert("place", value(place));
                let volumes = subtable(document, "volumes")?;
                volumes.insert(volume, Item::Table(table));
            }
        }
    }
    Ok(())
}

/// Where a file of clients says that volumes are, by name.
pub fn places(text: &str) -> BTreeMap<String, String> {
    let document = text.parse::<DocumentMut>().unwrap_or_default();
    let volumes = document.get("volumes").and_then(Item::as_table_like);
    let place = |(name, volume): (&str, &Item)| {
        Some((name.to_owned(), volume.get("place")?.as_str()?.to_owned()))
    };
    volumes.into_iter().flat_map(|volumes| volumes.iter().filter_map(place)).collect()
}

/// A key of the file, and its new value; without one it is taken out.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Change {
    /// With the names of the tables that it is in before it, by dots: `clients.laptop.volumes`.
    pub key: String,
    /// As TOML has it; what is none is text.
    pub value: Option<String>,
}

/// The text with these changes.
pub fn with_changes(text: &str, changes: &[Change]) -> Outcome<String> {
    let mut document = parse(text)?;
    let has_clients = document.contains_key("clients");
    for change in changes {
        let Change { key, value } = change;
        let done = Key::parse(key).or_fail(String::new).and_then(|path| match value {
            Some(value) => set(document.as_table_mut(), &path, text_value(value)),
            None => unset(document.as_table_mut(), &path),
        });
        done.map_err(|why| why.within(&format!("cannot change `{key}`")))?;
    }
    if has_clients {
        keep_closed(&mut document)?;
    }
    let text = document.to_string();
    match text.len() as u64 > TEXT_MAX {
        true => {
            Err(Failure::new(format!("the file would have more than {} bytes", Size(TEXT_MAX))))
        }
        false => Ok(text),
    }
}

fn text_value(text: &str) -> Value {
    text.parse().unwrap_or_else(|_| Value::from(text))
}

/// Sets a key, where it stands; tables that are not there are made.
fn set(table: &mut dyn TableLike, path: &[Key], new: Value) -> Outcome {
    let [name, inner @ ..] = path else { return Err(Failure::new("it has no name")) };
    if inner.is_empty() {
        let item = table.entry(name.get()).or_insert(Item::None);
        let mut new = new;
        match item {
            Item::Table(_) | Item::ArrayOfTables(_) => {
                return Err(Failure::new(format!("`{}` is a table: name a key in it", name.get())));
            }
            Item::Value(old) => *new.decor_mut() = old.decor().clone(),
            Item::None => {}
        }
        *item = Item::Value(new);
        return Ok(());
    }
    let mut empty = Table::new();
    // Only tables with keys of their own have headers.
    empty.set_implicit(inner.len() > 1);
    let item = table.entry(name.get()).or_insert(Item::Table(empty));
    let found = item.as_table_like_mut();
    set(found.ok_or_else(|| Failure::new(format!("`{}` is not a table", name.get())))?, inner, new)
}

fn unset(table: &mut dyn TableLike, path: &[Key]) -> Outcome {
    let absent = || Failure::new("it is not there");
    let [name, inner @ ..] = path else { return Err(absent()) };
    if inner.is_empty() {
        return table.remove(name.get()).map(drop).ok_or_else(absent);
    }
    let found = table.get_mut(name.get()).and_then(Item::as_table_like_mut);
    unset(found.ok_or_else(absent)?, inner)
}

/// The text without this client; `None` if it is not there. The table `clients` stays, if empty: nobody may log in then.
pub fn without_client(text: &str, name: &str) -> Outcome<Option<String>> {
    let mut document = parse(text)?;
    if document.get("clients").is_none() || clients(&mut document)?.remove(name).is_none() {
        return Ok(None);
    }
    keep_closed(&mut document)?;
    Ok(Some(document.to_string()))
}

/// The table `clients` stays, if empty: without it everybody may log in.
fn keep_closed(document: &mut DocumentMut) -> Outcome {
    clients(document)?;
    if let Some(clients) = document.get_mut("clients").and_then(Item::as_table_mut) {
        clients.set_implicit(!clients.is_empty());
        // One that was written as `clients.NAME.key` would not be printed if empty.
        clients.set_dotted(!clients.is_empty() && clients.is_dotted());
    }
    Ok(())
}

fn parse(text: &str) -> Outcome<DocumentMut> {
    text.parse().map_err(|why: TomlError| {
        let before = why.span().and_then(|at| text.get(..at.start)).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        Failure::new("the file is not TOML").because(format!("line {line}: {}", why.message()))
    })
}

fn clients(document: &mut DocumentMut) -> Outcome<&mut dyn TableLike> {
    subtable(document, "clients")
}

fn subtable<'d>(document: &'d mut DocumentMut, name: &str) -> Outcome<&'d mut dyn TableLike> {
    let mut empty = Table::new();
    // Its tables have headers of their own.
    empty.set_implicit(true);
    let found = document.entry(name).or_insert(Item::Table(empty));
    found.as_table_like_mut().ok_or_else(|| Failure::new(format!("`{name}` is not a table")))
}

/// Whether the file can be replaced: tells it before it has to be.
pub fn refuse_unwritable(path: &Path) -> Outcome {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    refuse_irreplaceable(&path).map_err(|why| not_replaced(&path, why))
}

const WRITABLE: &str =
    "the user of the server must be able to write in this directory, and so must its service";

const FULL: &str = "make room on its file system: the new file is written beside the old one";

fn not_replaced(path: &Path, why: io::Error) -> Failure {
    let hint = match why.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FULL,
        _ => WRITABLE,
    };
    Failure::new(format!("cannot write {}", path.shown())).because(why).hint(hint)
}

/// Puts `text` in the place of the file, which keeps its owner and its permissions: at every moment there is the old file
/// or the new one, whole, also after a loss of power.
pub fn replace(path: &Path, text: &str) -> Outcome {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    replace_as_owned(&path, text.as_bytes()).map_err(|why| not_replaced(&path, why))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    fn client(name: &str) -> ClientTable {
        ClientTable {
            name: name.to_owned(),
            key: PublicKey::from_bytes([7; 32]),
            volumes: vec!["backup".to_owned()],
            read_only: Vec::new(),
            places: BTreeMap::new(),
            remark: "by invitation".to_owned(),
        }
    }

    const FILE: &str = "\
# The house's disks.
listen = [\"0.0.0.0\"] # everywhere

[volumes.backup]   # of the laptop
uri = \"memory:8M\"

# The old one.
[clients.old]
initiator = \"iqn.2000-01.example:old\"
volumes = []
";

    #[test]
    fn full_disk_is_not_taken_for_a_lack_of_rights() {
        let said =
            |kind| not_replaced(Path::new("longhaul.toml"), io::Error::from(kind)).to_string();
        assert!(said(io::ErrorKind::StorageFull).ends_with(FULL));
        assert!(said(io::ErrorKind::PermissionDenied).ends_with(WRITABLE));
    }

    fn changed(text: &str, changes: &[(&str, Option<&str>)]) -> Outcome<String> {
        let change = |(key, value): &(&str, Option<&str>)| Change {
            key: (*key).to_owned(),
            value: value.map(str::to_owned),
        };
        with_changes(text, &changes.iter().map(change).collect::<Vec<_>>())
    }

    #[test]
    fn keys_are_set_and_taken_out_and_the_rest_stays() {
        let media = [
            ("volumes.media.uri", Some("file:/srv/m.img")),
            ("volumes.media.size", Some("10G")),
            ("volumes.media.read_only", Some("true")),
            ("volumes.media.lun", Some("3")),
            ("clients.old.volumes", Some("[\"backup\", \"media\"]")),
        ];
        let text = changed(FILE, &media).unwrap();
        let expected = "[volumes.media]\nuri = \"file:/srv/m.img\"\nsize = \"10G\"\nread_only = true\nlun = 3\n";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("volumes = [\"backup\", \"media\"]"), "{text}");
        for kept in ["# The house's disks.", "# everywhere", "# of the laptop", "# The old one."] {
            assert!(text.contains(kept), "{kept} in {text}");
        }
        let back = [("volumes.media", None), ("clients.old.volumes", Some("[]"))];
        assert_eq!(changed(&text, &back).unwrap(), FILE);
    }

    /// Without the table everybody could log in after the next start.
    #[test]
    fn clients_that_are_taken_out_leave_a_table_that_lets_nobody_in() {
        for text in [FILE, "clients.laptop.volumes = []\n"] {
            let none = changed(text, &[("clients", None)]).unwrap();
            assert!(none.contains("[clients]"), "{none}");
        }
        let last =
            changed("[clients.laptop]\nvolumes = []\n", &[("clients.laptop", None)]).unwrap();
        assert!(last.contains("[clients]"), "{last}");
        assert!(!changed("", &[("metrics", Some("x"))]).unwrap().contains("clients"));
    }

    #[test]
    fn change_that_cannot_be_made_is_named_and_nothing_is_changed() {
        for (key, value, why) in [
            ("volumes", Some("1"), "is a table"),
            ("listen.a", Some("1"), "is not a table"),
            ("clients.nobody", None, "it is not there"),
            ("clients.nobody.key", None, "it is not there"),
            ("a..b", Some("1"), "cannot change `a..b`"),
        ] {
            let refused = changed(FILE, &[(key, value)]).unwrap_err().to_string();
            assert!(refused.contains(why) && refused.contains(key), "{refused}");
        }
    }

    #[test]
    fn client_comes_and_goes_and_remarks_stay() {
        let key = PublicKey::from_bytes([7; 32]);
        let added = with_client(FILE, &client("laptop")).unwrap();
        let expected = format!(
            "{FILE}\n# by invitation\n[clients.laptop]\nkey = \"{key}\"\nvolumes = [\"backup\"]\nprotection = \"encrypt\"\n"
        );
        assert_eq!(added, expected);
        let again = with_client(&added, &client("laptop")).unwrap_err().to_string();
        assert!(again.contains("there is a client laptop already"), "{again}");
        assert_eq!(without_client(&added, "laptop").unwrap().unwrap(), FILE);
        assert_eq!(without_client(&added, "nobody").unwrap(), None);
    }

    #[test]
    fn file_without_clients_gets_its_first_and_lets_nobody_in_after_the_last() {
        let volumes = "[volumes.a]\nuri = \"memory:8M\"\n";
        let added = with_client(volumes, &client("laptop")).unwrap();
        assert!(added.starts_with(volumes) && !added.contains("[clients]"), "{added}");
        let none = without_client(&added, "laptop").unwrap().unwrap();
        assert!(none.contains("[clients]"), "{none}");
        assert_eq!(without_client(volumes, "laptop").unwrap(), None);
        let dotted = format!("clients.laptop.volumes = []\n{volumes}");
        let none = without_client(&dotted, "laptop").unwrap().unwrap();
        assert!(none.contains("[clients]"), "{none}");
        assert!(with_client("", &client("a")).unwrap().contains("[clients.a]"));
    }

    #[test]
    fn volume_of_the_same_name_in_another_place_is_refused() {
        let at = |place: &str, name: &str| ClientTable {
            places: BTreeMap::from([("backup".to_owned(), place.to_owned())]),
            ..client(name)
        };
        let one = with_client("", &at("file:/a", "one")).unwrap();
        assert_eq!(places(&one)["backup"], "file:/a");
        let two = with_client(&one, &at("file:/a", "two")).unwrap();
        assert_eq!(two.matches("[volumes.backup]").count(), 1, "{two}");
        let other = with_client(&two, &at("file:/b", "three")).unwrap_err().to_string();
        assert!(other.contains("backup is file:/a, and not file:/b"), "{other}");
        assert!(places("[volumes").is_empty() && places("volumes = 3").is_empty());
    }

    #[test]
    fn clients_in_other_notations_are_kept() {
        let inline =
            "clients = { old = { initiator = \"iqn.2000-01.example:old\", volumes = [] } }\n";
        let added = with_client(inline, &client("laptop")).unwrap();
        assert!(added.contains("old = {") && added.contains("laptop = {"), "{added}");
        let parsed: toml::Table = added.parse().unwrap();
        assert_eq!(parsed["clients"]["laptop"]["volumes"][0].as_str(), Some("backup"));
        with_client("clients = 3\n", &client("a")).unwrap_err();
        with_client("[clients", &client("a")).unwrap_err();
    }

    #[test]
    fn replaced_file_keeps_its_permissions_and_its_link() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("real/a.toml"), dir.path().join("a.toml"));
        fs::create_dir(dir.path().join("real")).unwrap();
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("real/a.toml", &link).unwrap();
        replace(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_dir(dir.path().join("real")).unwrap().count(), 1);
        refuse_unwritable(&dir.path().join("missing/a.toml")).unwrap_err();
    }
}
