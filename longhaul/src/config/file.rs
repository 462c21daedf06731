//! The configuration file, as it is written.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use proto::iscsi::login::policy::UnitName;
use proto::iscsi::name::IscsiName;
use toml::de::DeTable;

use super::access::contradiction;
use super::disk::{Lun, TargetName};
use super::limits::limits;
use super::syntax;
use super::{
    Appearance, Client, Config, Group, LACKS_IDENTITY, Listen, Origin, ROOT, Served, Unsealing,
    Upstream, idle_size, taken, target_of,
};
use crate::credentials::{Chap, Login};
use crate::log::Log;
use crate::option_table::{Entry, Sheet, Table, Wrong};
use crate::sealing::Demand;
use crate::secret::Source;
use crate::uri::Uri;

/// The volumes that are right, and the names of all.
type Known<'t> = BTreeMap<&'t str, Option<UnitName>>;

/// Reads as much of the text as is right, and notes everything that is not.
pub(super) fn parse(text: &str, path: &Path) -> (Config, Vec<Wrong>) {
    let sheet = Sheet::new(text);
    let (root, unreadable) = DeTable::parse_recoverable(text);
    let config = read(Table::new(&sheet, 0..0, root.get_ref()), path);
    if !unreadable.is_empty()
        && let Some((at, why)) = syntax::left_open(text)
    {
        let config = Config { origin: config.origin, ..Config::default() };
        return (config, vec![Wrong { line: sheet.line(&at), why }]);
    }
    for error in &unreadable {
        let (at, why) = syntax::mistake(text, error);
        sheet.note(&at, why);
    }
    (config, sheet.into_wrong())
}

fn read(mut root: Table<'_>, path: &Path) -> Config {
    let base = path.parent().unwrap_or_else(|| Path::new(""));
    let mut config = Config {
        listen: root.each("listen", listen),
        protection: root.text("protection"),
        identity: root.path("identity", base),
        insecure: root.flag("insecure").unwrap_or_default(),
        chap_weak: root.flag("chap_weak").unwrap_or_default(),
        state: root.path("state", base),
        control: root.path("control", base),
        metrics: root.text::<MetricsAddress>("metrics").map(|at| at.0),
        metrics_public: root.flag("metrics_public").unwrap_or_default(),
        origin: Some(Origin { path: path.to_owned(), lines: BTreeMap::new() }),
        ..Config::default()
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
        let volume = volume(name, table, &known, base);
        known.insert(name, volume.as_ref().map(Served::unit));
        config.volumes.extend(volume);
    }
    if known.is_empty() {
        root.note("there is no volume to serve: write a table [volumes.NAME]");
    }
    for (name, table) in root.tables("clients") {
        config.remember("clients", name, table.line());
        config.clients.extend(client(name, table, &known, base));
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

/// Where metrics are told.
struct MetricsAddress(SocketAddr);

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let why = || format!("`{text}` is not ADDRESS:PORT, such as 127.0.0.1:9260 or [::1]:9260");
        text.parse().map(Self).map_err(|_| why())
    }
}

/// An address, or a table with one.
fn listen(entry: Entry<'_>) -> Option<Listen> {
    match entry {
        Entry::Text(host) => Some(Listen::at(host.parse()?)),
        Entry::Table(mut table) => {
            let (host, protection) = (table.text("address"), table.text("protection"));
            if host.is_none() && !table.has("address") {
                table.note("missing field `address`");
            }
            let (group, access) = (table.number("group"), table.text("access"));
            table.finish();
            let group = group.unwrap_or_default();
            Some(Listen { host: host?, protection, group, access })
        }
    }
}

/// `None` if too little of it is right to go on with.
fn volume(name: &str, mut table: Table<'_>, known: &Known<'_>, base: &Path) -> Option<Served> {
    let target = match table.has("target") {
        true => table.text("target").map(|TargetName(target)| target),
        false => {
            let _ = table.text::<TargetName>("target");
            target_of(name).map_err(|why| table.note(why)).ok()
        }
    };
    let lun = table.number("lun");
    let lun = if table.has("lun") { lun } else { Some(Lun::default()) };
    let uri = match table.text::<Uri>("uri") {
        Some(Uri::File(path)) => Some(Uri::File(base.join(path))),
        None if !table.has("uri") => {
            table.note("missing field `uri`");
            None
        }
        uri => uri,
    };
    let size = table.text("size");
    if let Some(why) = uri.as_ref().and_then(|uri| idle_size(uri, size)) {
        table.note_at("size", why);
    }
    let read_only = table.flag("read_only").unwrap_or_default();
    let protection = table.text("protection").unwrap_or_default();
    let appearance = Appearance {
        block_size: table.number("block_size"),
        physical_block_size: table.number("physical_block_size"),
        removable: table.flag("removable").unwrap_or_default(),
        thin: table.flag("thin").unwrap_or(true),
        vendor: table.text("vendor"),
        product: table.text("product"),
        serial: table.text("serial"),
    };
    let sanitize_rate = table.text("sanitize_rate");
    let upstream = Upstream {
        initiator: table.text("initiator"),
        chap: chap(name, &mut table, base),
        chap_weak: table.flag("chap_weak").unwrap_or_default(),
        identity: table.path("identity", base),
        connections: table.number_or_text("connections").unwrap_or_default(),
        shared: table.flag("shared").unwrap_or_default(),
    };
    let encrypted = table.flag("encrypted").unwrap_or_default();
    let unseal = unseal(&mut table, base);
    if upstream != Upstream::default() && !matches!(uri, Some(Uri::Iscsi(_)) | None) {
        table.note("only a volume of an iSCSI target (uri = \"iscsi://...\") is logged in to");
    }
    let unit = target.clone().zip(lun).map(|(target, Lun(lun))| UnitName { target, lun });
    if let Some(unit) = &unit
        && let Some((other, _)) = known.iter().find(|(_, other)| other.as_ref() == Some(unit))
    {
        table.note(taken(unit, other));
    }
    table.finish();
    let (name, UnitName { target, lun }, uri) = (name.to_owned(), unit?, uri?);
    Some(Served {
        name,
        target,
        lun,
        uri,
        size,
        read_only,
        protection,
        appearance,
        sanitize_rate,
        upstream,
        encrypted,
        unseal,
    })
}

fn unseal(table: &mut Table<'_>, base: &Path) -> Option<Unsealing> {
    let sources = [
        table.path("passphrase_file", base).map(Source::File),
        table.text("passphrase_env").map(Source::Env),
        table.path("key_file", base).map(Source::KeyFile),
    ];
    let [allow_discards, crypto_erase] =
        ["allow_discards", "crypto_erase"].map(|key| table.flag(key).unwrap_or_default());
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
    secret.map(|secret| Unsealing { secret, allow_discards, crypto_erase })
}

fn client(name: &str, mut table: Table<'_>, known: &Known<'_>, base: &Path) -> Option<Client> {
    let units = granted(&mut table, "volumes", known);
    let read_only = granted(&mut table, "read_only", known);
    if let Some(volume) = read_only.keys().find(|volume| units.contains_key(*volume)) {
        table.note_at("read_only", format!("{volume} is in `volumes` too: one of them only"));
    }
    let [units, read_only] = [units, read_only].map(|granted| granted.into_values().collect());
    if !table.has("volumes") && !table.has("read_only") {
        table.note("missing field `volumes`, or `read_only`: what the client may use");
    }
    let initiator: Option<IscsiName> = table.text("initiator");
    let key = table.text("key");
    let chap = chap(name, &mut table, base);
    let wants_chap = table.has("chap_user") || table.has("chap_mutual_user");
    let nameless = !table.has("key") && !table.has("initiator");
    if nameless && !wants_chap && !table.has("chap_secret_file") && !table.has("chap_secret_env") {
        table.note("a client is known by key, chap_secret_file, chap_secret_env or initiator");
    }
    let protection: Demand = table.text("protection").unwrap_or_default();
    if protection.0.is_some() && key.is_none() && chap.is_some() {
        table.note_at(
            "protection",
            "a client that proves itself by CHAP has no sealed session: give it a `key`",
        );
    }
    table.finish();
    let name = name.to_owned();
    Some(Client { name, initiator, chap, key, units: Some(units), read_only, protection })
}

/// The volumes in a list, and which units they are.
fn granted(
    table: &mut Table<'_>,
    key: &'static str,
    known: &Known<'_>,
) -> BTreeMap<String, UnitName> {
    let mut granted = BTreeMap::new();
    for name in table.texts::<String>(key) {
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
fn chap(name: &str, table: &mut Table<'_>, base: &Path) -> Option<Chap> {
    let user: Option<String> = table.text("chap_user");
    let own = secret(table, ["chap_secret_file", "chap_secret_env"], base);
    let mutual_user: Option<String> = table.text("chap_mutual_user");
    let mutual = secret(table, ["chap_mutual_secret_file", "chap_mutual_secret_env"], base);
    let target = match (mutual_user, mutual) {
        (Some(name), Some(secret)) => Some(Login { name, secret }),
        (None, None) => None,
        _ => {
            table.note("mutual CHAP needs chap_mutual_user and one of its secrets");
            None
        }
    };
    let Some(secret) = own else {
        if user.is_some() || target.is_some() {
            table.note("CHAP needs chap_secret_file or chap_secret_env");
        }
        return None;
    };
    let initiator = Login { name: user.unwrap_or_else(|| name.to_owned()), secret };
    Some(Chap { initiator, target })
}

fn secret(table: &mut Table<'_>, keys: [&'static str; 2], base: &Path) -> Option<Source> {
    let [file, env] = keys;
    match (table.path(file, base), table.text::<String>(env)) {
        (Some(_), Some(_)) => {
            table.note_at(env, format!("{file} and {env} exclude each other"));
            None
        }
        (Some(path), None) => Some(Source::File(path)),
        (None, Some(name)) => Some(Source::Env(name)),
        (None, None) => None,
    }
}

fn log(mut table: Table<'_>) -> Log {
    let log = Log { level: table.text("level"), format: table.text("format") };
    if let Err(why) = log.filter("info") {
        table.note_at("level", why);
    }
    table.finish();
    log
}
