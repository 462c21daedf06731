//! What parts of a configuration cannot be together, although each is right: found by `serve`, `reload` and `check`
//! before anything is opened.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::chain::{memory_needed, memory_of_machine};
use crate::config::{self, Client, Config, ROOT, Served, Wrong};
use crate::control;
use crate::failure::{Failure, Outcome};
use crate::front::iscsi::Portal;
use crate::served_volumes::ServedVolumes;
use crate::size::Size;
use crate::uri::{self, ScsiPlace, Uri};

/// Refuses a configuration that contradicts itself.
pub(super) fn refuse(config: &Config, portals: &[Portal]) -> Outcome {
    let wrong = find(config, portals);
    match &config.origin {
        _ if wrong.is_empty() => Ok(()),
        Some(origin) => Err(config::refuse(&origin.path, &wrong)),
        None => {
            let why: Vec<_> = wrong.into_iter().map(|wrong| wrong.why).collect();
            Err(Failure::usage(why.join("\n")))
        }
    }
}

/// Everything that contradicts something else, with its line.
pub(in crate::command) fn find(config: &Config, portals: &[Portal]) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let mut note = |kind, name: &str, why| wrong.push(Wrong { line: config.line(kind, name), why });
    for client in config.locked_out() {
        note("clients", &client.name, locked_out(client));
    }
    for client in &config.clients {
        for volume in config.unreachable(client) {
            note("clients", &client.name, unreachable(client, volume));
        }
    }
    for (client, other) in shared_accounts(&config.clients) {
        let line = config.line("clients", &other.name);
        note("clients", &client.name, shared_account(client, other, line));
    }
    for why in duplicate_listens(portals) {
        note(ROOT, "listen", why);
    }
    if let Some(why) = metrics(config, portals) {
        note(ROOT, "metrics", why);
    }
    let control = config.control.as_deref();
    if let Some(why) =
        control.and_then(|at| control::too_long(at).or_else(|| control::lacks_dir(at)))
    {
        note(ROOT, "control", why);
    }
    for volume in &config.volumes {
        if let Some(why) = own(volume, portals) {
            note("volumes", &volume.name, why);
        }
    }
    for (kind, name, why) in config.group_conflicts() {
        note(kind, name, why);
    }
    for (volume, why) in shared(&config.volumes) {
        note("volumes", &volume.name, why);
    }
    for (volume, other) in same_serials(config) {
        note("volumes", &volume.name, same_serial(volume, other));
    }
    if let Some((volume, why)) = memory(&config.volumes) {
        note("volumes", &volume.name, why);
    }
    wrong
}

fn locked_out(Client { name, .. }: &Client) -> String {
    format!(
        "client {name} can never log in: it proves itself by CHAP, and every session must be secure here, which \
         takes a `key`. To let it in without, say `protection = \"none\"` for an address of `listen`, or for all \
         (--protection none)"
    )
}

fn unreachable(Client { name, .. }: &Client, volume: &Served) -> String {
    let volume = &volume.name;
    format!(
        "client {name} can never use volume {volume}: its target demands a secure session (`protection`), which takes a \
         `key`. Give the client one, or leave {volume} out of its `volumes` and `read_only`"
    )
}

/// Clients that nothing tells apart: one CHAP name, and an initiator that may be either. Only the first would ever be
/// found.
fn shared_accounts(clients: &[Client]) -> impl Iterator<Item = (&Client, &Client)> {
    let name = |client: &Client| client.chap.as_ref().map(|chap| chap.initiator.name.clone());
    let alike = move |one: &Client, two: &Client| {
        let apart =
            one.initiator.is_some() && two.initiator.is_some() && one.initiator != two.initiator;
        name(one).is_some() && name(one) == name(two) && !apart
    };
    clients.iter().enumerate().filter_map(move |(place, client)| {
        Some((client, clients[..place].iter().find(|other| alike(client, other))?))
    })
}

fn shared_account(client: &Client, other: &Client, line: usize) -> String {
    let name = client.chap.as_ref().map_or("", |chap| &chap.initiator.name);
    format!(
        "the CHAP name {name} is that of client {} (line {line}) too, and one of them can never log in: give each a \
         `chap_user` of its own",
        other.name
    )
}

/// Whether the system gives both to nobody: the same port of the same address, or of all addresses.
fn overlap(one: SocketAddr, two: SocketAddr) -> bool {
    let any = |one: SocketAddr, two: SocketAddr| {
        one.ip().is_unspecified() && (one.is_ipv6() || two.is_ipv4())
    };
    one.port() != 0
        && one.port() == two.port()
        && (one.ip() == two.ip() || any(one, two) || any(two, one))
}

fn duplicate_listens(portals: &[Portal]) -> impl Iterator<Item = String> {
    portals.iter().enumerate().filter_map(|(place, Portal { address, .. })| {
        let other = portals[..place].iter().find(|other| overlap(other.address, *address))?.address;
        Some(match other == *address {
            true => format!("{address} is listened on twice: name it once"),
            false => format!("{address} and {other} are listened on, and one is part of the other: name one of them"),
        })
    })
}

fn metrics(config: &Config, portals: &[Portal]) -> Option<String> {
    let at = config.metrics?;
    let portal = portals.iter().find(|portal| overlap(portal.address, at))?.address;
    Some(format!(
        "metrics cannot be told at {at}: volumes are served at {portal}. Give them another port"
    ))
}

/// What is the same for two names of one store.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum StoreName {
    Inode(u64, u64),
    Device(u64),
    /// A file that is not there yet, by its directory.
    Missing(u64, u64, PathBuf),
    Unit(String),
}

fn place(uri: &Uri) -> Option<StoreName> {
    match uri.location() {
        uri::Location::Process(_)
        | uri::Location::Several(_)
        | uri::Location::Drive(None)
        | uri::Location::Tape(None) => None,
        uri::Location::Changer(directory) => {
            let found = directory.metadata().ok()?;
            Some(StoreName::Inode(found.dev(), found.ino()))
        }
        uri::Location::Passed(ScsiPlace::Device(path)) => {
            Some(StoreName::Device(path.metadata().ok()?.rdev()))
        }
        uri::Location::Unit(unit) | uri::Location::Passed(ScsiPlace::Unit(unit)) => {
            Some(StoreName::Unit(format!("{}/{}", unit.target, unit.lun)))
        }
        uri::Location::Served(volume) | uri::Location::Passed(ScsiPlace::Served(volume)) => {
            Some(StoreName::Unit(format!("{}/{}", volume.server, volume.volume)))
        }
        uri::Location::Image(image) => Some(StoreName::Unit(image.to_string())),
        uri::Location::File(path)
        | uri::Location::Device(path)
        | uri::Location::Drive(Some(path))
        | uri::Location::Tape(Some(path)) => match path.metadata() {
            Ok(found) if found.file_type().is_block_device() => {
                Some(StoreName::Device(found.rdev()))
            }
            Ok(found) => Some(StoreName::Inode(found.dev(), found.ino())),
            Err(_) => {
                let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
                let directory = directory.unwrap_or_else(|| Path::new(".")).metadata().ok()?;
                let name = path.file_name()?.into();
                Some(StoreName::Missing(directory.dev(), directory.ino(), name))
            }
        },
    }
}

/// The volume as people know it, with the one of `others` that uses the same store.
pub(super) fn named(volume: &Served, others: &[Served]) -> String {
    let places = |volume: &Served| -> Vec<_> {
        volume.uri.leaves().into_iter().filter_map(|(leaf, _)| place(leaf)).collect()
    };
    let own = places(volume);
    let is_same = |other: &&Served| places(other).iter().any(|place| own.contains(place));
    let same = others.iter().find(is_same).map(|other| &other.name);
    let same = same.map(|other| format!(" (volume {other} uses the same)"));
    format!("volume {}{}", volume.name, same.unwrap_or_default())
}

/// A store is several volumes only if nobody writes to it.
fn shared(volumes: &[Served]) -> Vec<(&Served, String)> {
    let mut seen: BTreeMap<StoreName, (&Served, bool)> = BTreeMap::new();
    let mut wrong = Vec::new();
    for volume in volumes {
        for (leaf, is_only_read) in volume.uri.leaves() {
            let Some(place) = place(leaf) else { continue };
            // A disc that was pressed can be in several drives.
            let is_pressed = leaf.is_disc() && volume.blank.is_none();
            let is_read = volume.read_only || is_only_read || is_pressed;
            let Some((other, is_other_read)) = seen.get(&place) else {
                seen.insert(place, (volume, is_read));
                continue;
            };
            if !(is_read && *is_other_read) {
                let why = match other.name == volume.name {
                    true => format!("{leaf} is in {} twice", volume.uri),
                    false => {
                        let (first, second) = (&other.name, &volume.name);
                        format!(
                            "{leaf} is used twice in this configuration, by the volumes {first} and {second}: one volume is \
                             served once"
                        )
                    }
                };
                wrong.push((volume, why));
            }
        }
    }
    wrong
}

/// A volume of this server's own would have to be open before it can be opened. The names of other machines are not looked
/// up.
fn own(volume: &Served, portals: &[Portal]) -> Option<String> {
    volume.uri.leaves().into_iter().find_map(|(leaf, _)| own_unit(leaf, portals))
}

fn own_unit(uri: &Uri, portals: &[Portal]) -> Option<String> {
    let uri::Location::Unit(unit) = uri.location() else { return None };
    let ip = match unit.host.name.as_str() {
        "localhost" => Ipv4Addr::LOCALHOST.into(),
        name => name.parse::<IpAddr>().ok()?,
    };
    let is_own = |portal: &&Portal| {
        let at = portal.address;
        let is_there = at.ip() == ip || (at.ip().is_unspecified() && ip.is_loopback());
        is_there && at.port() == unit.host.port
    };
    let at = portals.iter().find(is_own)?.address;
    Some(format!(
        "{uri} is at an address of this server itself ({at}), which would wait for its own start: name what is to be served, \
         such as file:PATH, or another port"
    ))
}

/// Volumes with the serial number of another, of which clients would take one for the other.
fn same_serials(config: &Config) -> impl Iterator<Item = (&Served, &Served)> {
    let served = ServedVolumes::read(config.state.as_deref());
    let volumes = &config.volumes;
    (0..volumes.len())
        .filter_map(move |at| Some((&volumes[at], served.with_serial_of(volumes, at)?)))
}

fn same_serial(volume: &Served, other: &Served) -> String {
    let (serial, name, other) =
        (volume.configured_serial().unwrap_or_default(), &volume.name, &other.name);
    format!(
        "volume {name} cannot have the serial number {serial}: it is that of volume {other} too. Give it another `serial`, \
         or none"
    )
}

/// Refuses volumes of which clients would take one for another, by the serial numbers that they will show.
pub(super) fn refuse_same_serials(shown: &[(&Served, Option<&str>)]) -> Outcome {
    let shown = || shown.iter().filter_map(|(volume, serial)| Some((*volume, (*serial)?)));
    for (volume, serial) in shown().filter(|(volume, _)| volume.configured_serial().is_some()) {
        let other = shown().find(|(other, own)| other.name != volume.name && *own == serial);
        if let Some((other, _)) = other {
            return Err(Failure::usage(same_serial(volume, other)));
        }
    }
    Ok(())
}

/// The volume with which those in memory come to more than there is.
fn memory(volumes: &[Served]) -> Option<(&Served, String)> {
    let most = memory_of_machine();
    let mut sum = 0_u64;
    volumes.iter().find_map(|volume| {
        let sizes = volume.uri.leaves().into_iter().map(|(leaf, _)| match leaf.location() {
            uri::Location::Process(size) => memory_needed(size),
            _ => 0,
        });
        let needed = sizes.fold(0_u64, u64::saturating_add);
        sum = sum.saturating_add(needed);
        let why = || {
            let (sum, most) = (Size(sum), Size(most));
            format!(
                "with {} the volumes in memory take {sum} bytes, and this machine has {most}: make them smaller, or \
                 files",
                volume.uri
            )
        };
        (needed > 0 && sum > most).then(|| (volume, why()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, portals: &[&str]) -> Vec<String> {
        let (config, wrong) = Config::parse(text, Path::new("longhaul.toml"));
        assert_eq!(wrong, []);
        let portal = |portal: &&str| Portal::from(portal.parse::<SocketAddr>().unwrap());
        let portals: Vec<_> = portals.iter().map(portal).collect();
        find(&config, &portals).into_iter().map(|wrong| wrong.why).collect()
    }

    const VOLUME: &str = "[volumes.a]\nuri = 'memory:1M'\n";

    #[test]
    fn address_that_is_taken_twice_is_found() {
        for (portals, why) in [
            (&["127.0.0.1:1", "127.0.0.1:2"][..], None),
            (&["127.0.0.1:0", "127.0.0.1:0"], None),
            (&["127.0.0.1:1", "127.0.0.1:1"], Some("127.0.0.1:1 is listened on twice")),
            (&["0.0.0.0:1", "127.0.0.1:1"], Some("127.0.0.1:1 and 0.0.0.0:1")),
            (&["[::1]:1", "[::]:1"], Some("[::]:1 and [::1]:1")),
            (&["[::]:1", "0.0.0.0:1"], Some("0.0.0.0:1 and [::]:1")),
            (&["0.0.0.0:1", "[::1]:1"], None),
        ] {
            let said = found(VOLUME, portals);
            assert_eq!(said.len(), usize::from(why.is_some()), "{portals:?}: {said:?}");
            assert!(said.iter().all(|said| said.contains(why.unwrap())), "{said:?}");
        }
        let metrics = format!("metrics = '127.0.0.1:9'\n{VOLUME}");
        assert_eq!(found(&metrics, &["127.0.0.1:8"]), [""; 0]);
        assert!(found(&metrics, &["0.0.0.0:9"])[0].contains("metrics cannot be told"));
    }

    #[test]
    fn volume_of_the_server_itself_is_found() {
        for (host, portal, is_own) in [
            ("127.0.0.1:7", "127.0.0.1:7", true),
            ("localhost:7", "0.0.0.0:7", true),
            ("[::1]:7", "[::]:7", true),
            ("127.0.0.1:7", "127.0.0.1:8", false),
            ("192.0.2.1:7", "0.0.0.0:7", false),
            ("elsewhere:7", "0.0.0.0:7", false),
        ] {
            let volume = format!("[volumes.a]\nuri = 'iscsi://{host}/iqn.2001-04.com.example:t'\n");
            let said = found(&volume, &[portal]);
            assert_eq!(said.len(), usize::from(is_own), "{host} {portal}: {said:?}");
            assert!(said.iter().all(|said| said.contains("an address of this server itself")));
        }
    }

    #[test]
    fn client_without_a_key_needs_a_portal_that_takes_it() {
        let client = "[clients.desk]\nvolumes = ['a']\nchap_secret_file = 'secret'\n";
        let text = |root: &str| format!("{root}\n{VOLUME}{client}");
        for (root, refused) in [
            ("", false),
            ("identity = 'i'", true),
            ("identity = 'i'\nprotection = 'encrypt'", true),
            ("identity = 'i'\nprotection = 'none'", false),
            ("identity = 'i'\nlisten = ['127.0.0.1']", true),
            (
                "identity = 'i'\nlisten = ['127.0.0.1', { address = '[::1]', protection = 'none' }]",
                false,
            ),
        ] {
            let said = found(&text(root), &[]);
            assert_eq!(said.len(), usize::from(refused), "{root}: {said:?}");
            assert!(said.iter().all(|said| said.contains("client desk can never log in")));
        }
    }

    #[test]
    fn client_without_a_key_is_told_of_a_volume_that_takes_one() {
        let text = |protection: &str, client: &str| {
            format!(
                "identity = 'i'\nprotection = 'none'\n{VOLUME}[volumes.b]\nuri = 'memory:1M'\n{protection}\n\
                 [clients.desk]\n{client}\n"
            )
        };
        let chap = "chap_secret_file = 's'";
        let key = format!("key = '{}'", proto::identity::PublicKey::from_bytes([7; 32]));
        for (protection, client, refused) in [
            ("protection = 'encrypt'", format!("{chap}\nvolumes = ['b']"), true),
            ("protection = 'integrity'", format!("{chap}\nread_only = ['a', 'b']"), true),
            (
                "protection = 'encrypt'\ntarget = 'a'\nlun = 1",
                format!("{chap}\nvolumes = ['a']"),
                true,
            ),
            ("protection = 'encrypt'", format!("{chap}\nvolumes = ['a']"), false),
            ("", format!("{chap}\nvolumes = ['b']"), false),
            ("protection = 'encrypt'", format!("{key}\nvolumes = ['b']"), false),
        ] {
            let said = found(&text(protection, &client), &[]);
            assert_eq!(said.len(), usize::from(refused), "{protection} {client}: {said:?}");
            assert!(said.iter().all(|said| said.contains("desk can never use volume")), "{said:?}");
        }
    }

    #[test]
    fn clients_with_one_chap_name_are_found_unless_their_initiators_differ() {
        let client = |name: &str, more: &str| {
            format!(
                "[clients.{name}]\nvolumes = ['a']\nchap_user = 'u'\nchap_secret_file = 's'\n{more}\n"
            )
        };
        let named = |last| format!("initiator = 'iqn.2001-04.com.example:{last}'");
        for (one, two, refused) in [
            (String::new(), String::new(), true),
            (named("a"), String::new(), true),
            (named("a"), named("a"), true),
            (named("a"), named("b"), false),
        ] {
            let said =
                found(&format!("{VOLUME}{}{}", client("one", &one), client("two", &two)), &[]);
            assert_eq!(said.len(), usize::from(refused), "{said:?}");
            assert!(
                said.iter().all(|said| said.contains("that of client one (line 3) too")),
                "{said:?}"
            );
        }
    }

    #[test]
    fn file_by_two_names_is_found() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name).display().to_string();
        std::fs::write(path("one"), [0; 512]).unwrap();
        std::fs::hard_link(path("one"), path("hard")).unwrap();
        std::os::unix::fs::symlink(path("one"), path("soft")).unwrap();
        for (one, two, more, refused) in [
            ("one", "two", "", false),
            ("one", "hard", "", true),
            ("one", "soft", "", true),
            ("one", "soft", "read_only = true", false),
            ("made", "./made", "size = '1M'", true),
            ("made", "other", "size = '1M'", false),
        ] {
            let volume =
                |name, file| format!("[volumes.{name}]\nuri = 'file:{}'\n{more}\n", path(file));
            let said = found(&(volume("a", one) + &volume("b", two)), &[]);
            assert_eq!(said.len(), usize::from(refused), "{one} {two} {more}: {said:?}");
            let both = "is used twice in this configuration, by the volumes a and b";
            assert!(said.iter().all(|said| said.contains(both)), "{said:?}");
        }
        for (one, two, more, refused) in [
            ("tape", "tape", "", true),
            ("tape", "tape", "read_only = true", false),
            ("file", "tape", "", true),
            ("file", "cdrom", "", true),
            ("cdrom", "cdrom", "", false),
            ("cdrom", "cdrom", "blank = 'bd-r'", true),
        ] {
            let volume = |name, scheme| {
                format!("[volumes.{name}]\nuri = '{scheme}:{}'\n{more}\n", path("one"))
            };
            let said = found(&(volume("a", one) + &volume("b", two)), &[]);
            assert_eq!(said.len(), usize::from(refused), "{one} {two} {more}: {said:?}");
        }
    }

    #[test]
    fn memory_beyond_what_there_is_is_found() {
        let volume = |name: &str, size: &str| format!("[volumes.{name}]\nuri = 'memory:{size}'\n");
        let half = memory_of_machine() / 1024 * 6 / 10;
        let half = format!("{half}K");
        assert_eq!(found(&volume("a", &half), &[]), [""; 0]);
        let both = found(&(volume("a", &half) + &volume("b", &half)), &[]);
        assert!(both[0].contains("the volumes in memory take"), "{both:?}");
        assert_eq!(found(&volume("a", "99999T"), &[]).len(), 1);
    }
}
