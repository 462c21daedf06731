//! The configuration file, as it is written.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proto::iscsi::login::policy::UnitName;
use toml::Spanned;
use toml::de::DeTable;

use super::access::contradiction;
use super::change::GivenOptions;
use super::changer::{changer_role, with_drives};
use super::cluster::{CLUSTER, cluster, cluster_conflicts};
use super::disk::{Lun, TargetName};
use super::limits::limits;
use super::options::{CLIENTS, SERVER, UNLOCK, UPSTREAM, UnlockOptions, VOLUMES};
use super::syntax;
use super::{
    Client, Config, Group, LACKS_IDENTITY, Origin, ROOT, Served, Unlocking, Upstream, idle_blank,
    idle_direct, idle_passed, idle_size, idle_worm, taken, target_of,
};
use crate::credentials::{CHAP, Chap, ChapOptions, Login, WEAK};
use crate::log::{LOG, Log};
use crate::option_table::{FileChecks, Table, Wrong};
use crate::secret::Source;
use crate::size::Size;
use crate::target::fair_queue::Share;
use crate::uri::Uri;

/// The volumes that are right, and the names of all.
type Known<'t> = BTreeMap<Cow<'t, str>, Option<UnitName>>;

/// Reads as much of the text as is right, and notes everything that is not.
pub(super) fn parse(text: &str, path: &Path) -> (Config, Vec<Wrong>) {
    let checks = FileChecks::new(text);
    let (root, unreadable) = DeTable::parse_recoverable(text);
    let config = read(Table::new(&checks, 0..0, root.get_ref()), path);
    if !unreadable.is_empty()
        && let Some((at, why)) = syntax::left_open(text)
    {
        let config = Config { origin: config.origin, ..Config::default() };
        return (config, vec![Wrong { line: checks.line(&at), why }]);
    }
    for error in &unreadable {
        let (at, why) = syntax::explain_syntax_error(text, error);
        checks.note(&at, why);
    }
    (config, checks.into_wrong())
}

/// The clients of a file that has nothing else.
pub(super) fn parse_clients(
    text: &str,
    path: &Path,
    volumes: &[Served],
) -> (Vec<Client>, Vec<Wrong>) {
    let checks = FileChecks::new(text);
    let (root, unreadable) = DeTable::parse_recoverable(text);
    for error in &unreadable {
        let (at, why) = syntax::explain_syntax_error(text, error);
        checks.note(&at, why);
    }
    let base = path.parent().unwrap_or_else(|| Path::new(""));
    let mut root = Table::new(&checks, 0..0, root.get_ref());
    let tables = root.tables("clients");
    // Where the volumes are, which whoever calls has compared.
    drop(root.tables("volumes"));
    root.finish();
    let mut known: Known<'_> =
        volumes.iter().map(|volume| ((&*volume.name).into(), Some(volume.unit()))).collect();
    for (_, table) in &tables {
        for name in table.texts_of("volumes").chain(table.texts_of("read_only")) {
            known.entry(name.into()).or_insert(None);
        }
    }
    let clients = tables.into_iter().filter_map(|(name, table)| client(name, table, &known, base));
    let clients = clients.collect();
    (clients, checks.into_wrong())
}

fn read(mut root: Table<'_>, path: &Path) -> Config {
    let base = path.parent().unwrap_or_else(|| Path::new(""));
    let said = root.read(SERVER, base);
    let mut config = Config {
        chap_weak: root.read(WEAK, base).chap_weak.unwrap_or_default(),
        origin: Some(Origin { path: path.to_owned(), lines: BTreeMap::new() }),
        ..Config::from(said)
    };
    if let Some(Group(group)) = contradiction(&config.listen) {
        let why = format!(
            "group {group} has one `access`: give an entry with another one a `group` of its own"
        );
        root.note_at("listen", why);
    }
    if let Some(table) = root.table("limits") {
        config.limits = limits(table);
    }
    if let Some(table) = root.table("cluster") {
        for option in CLUSTER {
            let line = table.line_of(option.text.name).unwrap_or_else(|| table.line());
            config.remember("cluster", option.text.name, line);
        }
        config.cluster = cluster(table, base);
    }
    if let Some(table) = root.table("log") {
        config.log = log(table);
    }
    for key in ["listen", "identity", "metrics", "control"] {
        if let Some(line) = root.line_of(key) {
            config.remember(ROOT, key, line);
        }
    }
    let mut known = Known::new();
    for (name, table) in root.tables("volumes") {
        config.remember("volumes", name, table.line());
        let volumes = volume(name, table, &known, base);
        known.insert(name.into(), None);
        for volume in &volumes {
            known.insert(volume.name.clone().into(), Some(volume.unit()));
        }
        config.volumes.extend(volumes);
    }
    if known.is_empty() {
        root.note("there is no volume to serve: write a table [volumes.NAME]");
    }
    config.closed = root.has("clients");
    for (name, table) in root.tables("clients") {
        config.remember("clients", name, table.line());
        config.clients.extend(client(name, table, &known, base));
    }
    if config.cluster.is_some() {
        cluster_conflicts(&config).into_iter().for_each(|why| root.note_at("cluster", why));
    }
    if config.metrics.is_some_and(|at| !at.ip().is_loopback()) && !config.metrics_public {
        root.note_at(
            "metrics",
            "everyone there could read the metrics: `metrics_public = true` allows it",
        );
    }
    if config.lacks_identity() {
        root.note(LACKS_IDENTITY);
    }
    root.finish();
    config
}

/// A volume, with its drives if it is a media changer; none if too little of it is right to go on with.
fn volume(name: &str, mut table: Table<'_>, known: &Known<'_>, base: &Path) -> Vec<Served> {
    let given = GivenOptions {
        volume: table.read(VOLUMES, base),
        upstream: table.read(UPSTREAM, base),
        chap: table.read(CHAP, base),
        weak: table.read(WEAK, base),
        unlock: table.read(UNLOCK, base),
    };
    let said = &given.volume;
    let target = match (&said.target, table.has("target")) {
        (Some(TargetName(target)), _) => Some(target.clone()),
        (None, true) => None,
        (None, false) => target_of(name).map_err(|why| table.note(why)).ok(),
    };
    // One that is wrong has been noted, and is not the default.
    let lun = said.lun.filter(|_| !table.is_wrong("lun"));
    if let Some(why) = said.uri.as_ref().and_then(|uri| idle_size(uri, said.size)) {
        table.note_at("size", why);
    }
    let direct = said.direct.unwrap_or_default();
    if let Some(why) = said.uri.as_ref().and_then(|uri| idle_direct(uri, direct)) {
        table.note_at("direct", why);
    }
    let worm = said.worm.unwrap_or_default();
    if let Some(why) = said.uri.as_ref().and_then(|uri| idle_worm(uri, worm)) {
        table.note_at("worm", why);
    }
    if let Some(why) = said.uri.as_ref().and_then(|uri| idle_blank(uri, said.blank)) {
        table.note_at("blank", why);
    }
    if let Some(why) = said.uri.as_ref().and_then(|uri| idle_passed(uri, said)) {
        table.note(why);
    }
    let role = said.uri.as_ref().map(|uri| changer_role(uri, said)).transpose();
    let changer = role.unwrap_or_else(|why| {
        table.note(why);
        None
    });
    let upstream = upstream(name, &table, &given);
    let unlock = unlock(&table, &given.unlock);
    if unlock.is_some() && said.uri.as_ref().is_some_and(Uri::is_passed_through) {
        table.note("a device is passed through as it is: a key opens encrypted volumes alone");
    }
    let uri = said.uri.as_ref();
    let is_shared = upstream.shared && !uri.is_none_or(Uri::is_remote);
    if is_shared || (upstream != Upstream::default() && !uri.is_none_or(Uri::has_login)) {
        table.note("only a volume of an iSCSI target (uri = \"iscsi://...\") is logged in to");
    }
    let uri = said.uri.clone();
    let volume = target.zip(lun).zip(uri).map(|((target, _), uri)| Served {
        unlock,
        changer: changer.flatten(),
        ..Served::new(name, target, uri, upstream, given)
    });
    let volumes = with_drives(volume.into_iter().collect());
    volumes.iter().for_each(|volume| refuse_taken(volume, &table, known));
    table.finish();
    volumes
}

/// A unit is one volume, and so is a name.
fn refuse_taken(volume: &Served, table: &Table<'_>, known: &Known<'_>) {
    let unit = volume.unit();
    if let Some((other, _)) = known.iter().find(|(_, other)| other.as_ref() == Some(&unit)) {
        table.note(taken(&unit, other));
    }
    if known.contains_key(&*volume.name) {
        table.note(format!("there are two volumes {}", volume.name));
    }
    if volume.lun >= Lun::END {
        table.note(format!("{}: units have numbers up to 16383, not {}", volume.name, volume.lun));
    }
}

fn upstream(name: &str, table: &Table<'_>, given: &GivenOptions) -> Upstream {
    let GivenOptions { volume, upstream, chap: said, weak, .. } = given.clone();
    Upstream {
        initiator: upstream.initiator,
        chap: chap(name, table, said),
        chap_weak: weak.chap_weak.unwrap_or_default(),
        identity: upstream.identity,
        connections: upstream.connections.unwrap_or_default(),
        shared: volume.shared.unwrap_or_default(),
    }
}

fn unlock(table: &Table<'_>, said: &UnlockOptions) -> Option<Unlocking> {
    let said = said.clone();
    let sources = [
        said.passphrase_file.map(Source::File),
        said.passphrase_env.map(Source::Env),
        said.key_file.map(Source::KeyFile),
    ];
    let allow_discards = said.allow_discards.unwrap_or_default();
    let crypto_erase = said.crypto_erase.unwrap_or_default();
    let mut sources = sources.into_iter().flatten();
    let secret = sources.next();
    if sources.next().is_some() {
        table.note("passphrase_file, passphrase_env and key_file exclude each other");
    }
    for (key, set) in [("allow_discards", allow_discards), ("crypto_erase", crypto_erase)] {
        if secret.is_none() && set {
            table.note_at(key, format!("{key} is for encrypted volumes: give a key"));
        }
    }
    secret.map(|secret| Unlocking { secret, allow_discards, crypto_erase })
}

fn client(name: &str, mut table: Table<'_>, known: &Known<'_>, base: &Path) -> Option<Client> {
    let said = table.read(CLIENTS, base);
    let units = granted(&table, &said.volumes, known);
    let read_only = granted(&table, &said.read_only, known);
    if let Some(volume) = read_only.keys().find(|volume| units.contains_key(*volume)) {
        table.note_at("read_only", format!("{volume} is in `volumes` too: one of them only"));
    }
    let [units, read_only] = [units, read_only].map(|granted| granted.into_values().collect());
    if !table.has("volumes") && !table.has("read_only") {
        table.note("missing field `volumes`, or `read_only`: what the client may use");
    }
    let said_of_chap = table.read(CHAP, base);
    let chap = chap(name, &table, said_of_chap);
    let (initiator, key) = (said.initiator, said.key);
    let wants_chap = table.has("chap_user") || table.has("chap_mutual_user");
    let nameless = !table.has("key") && !table.has("initiator");
    if nameless && !wants_chap && !table.has("chap_secret_file") && !table.has("chap_secret_env") {
        table.note("a client is known by key, chap_secret_file, chap_secret_env or initiator");
    }
    let protection = said.protection.unwrap_or_default();
    if protection.0.is_some() && key.is_none() && chap.is_some() {
        table.note_at(
            "protection",
            "a client that proves itself by CHAP has no secure session: give it a `key`",
        );
    }
    let administers = said.administrator.unwrap_or_default();
    if administers && key.is_none() {
        table.note_at("administrator", "an administrator proves a key: give it a `key`");
    }
    table.finish();
    let (name, units, paused) = (name.to_owned(), Some(units), said.paused.unwrap_or_default());
    let bytes = said.rate.map(|Size(bytes)| bytes);
    let share = Share { weight: said.weight, bytes, commands: said.iops.map(u64::from) };
    let rights = Client { units, read_only, administers, paused, ..Client::named(name) };
    Some(Client { initiator, chap, key, protection, share, ..rights })
}

/// The volumes in a list, and which units they are.
fn granted(
    table: &Table<'_>,
    volumes: &[Spanned<String>],
    known: &Known<'_>,
) -> BTreeMap<String, UnitName> {
    let mut granted = BTreeMap::new();
    for name in volumes {
        match known.get(name.get_ref().as_str()) {
            Some(unit) => granted.extend(unit.clone().map(|unit| (name.get_ref().clone(), unit))),
            None => {
                table.note_span(&name.span(), format!("there is no volume `{}`", name.get_ref()));
            }
        }
    }
    granted
}

/// How whoever `name` stands for proves itself; the name of the table is its CHAP name, unless it has
/// another.
fn chap(name: &str, table: &Table<'_>, said: ChapOptions) -> Option<Chap> {
    let own = secret(table, "chap", said.chap_secret_file, said.chap_secret_env);
    let mutual_file = said.chap_mutual_secret_file;
    let mutual = secret(table, "chap_mutual", mutual_file, said.chap_mutual_secret_env);
    let target = match (said.chap_mutual_user, mutual) {
        (Some(name), Some(secret)) => Some(Login { name, secret }),
        (None, None) => None,
        _ => {
            table.note("mutual CHAP needs chap_mutual_user and one of its secrets");
            None
        }
    };
    let Some(secret) = own else {
        if said.chap_user.is_some() || target.is_some() {
            table.note("CHAP needs chap_secret_file or chap_secret_env");
        }
        return None;
    };
    let initiator = Login { name: said.chap_user.unwrap_or_else(|| name.to_owned()), secret };
    Some(Chap { initiator, target })
}

fn secret(
    table: &Table<'_>,
    prefix: &str,
    file: Option<PathBuf>,
    env: Option<String>,
) -> Option<Source> {
    match (file, env) {
        (Some(_), Some(_)) => {
            let (file, env) = (format!("{prefix}_secret_file"), format!("{prefix}_secret_env"));
            table.note_at(&env, format!("{file} and {env} exclude each other"));
            None
        }
        (Some(path), None) => Some(Source::File(path)),
        (None, Some(name)) => Some(Source::Env(name)),
        (None, None) => None,
    }
}

fn log(mut table: Table<'_>) -> Log {
    let said = table.read(LOG, Path::new(""));
    let log = Log { level: said.level, format: said.format };
    if let Err(why) = log.filter("info") {
        table.note_at("level", why);
    }
    table.finish();
    log
}
