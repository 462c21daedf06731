//! The options of the configuration: a row for each.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use proto::cluster::GroupName;
use proto::identity::PublicKey;
use proto::iscsi::name::IscsiName;
use proto::scsi::inquiry::SERIAL_MAX;
use toml::Spanned;

use super::Listen;
use super::cluster::{CLUSTER, PREFERRED};
use super::disk::{
    Appearance, BlankDisc, BlockSize, Drives, Label, Lun, Mail, PhysicalBlockSize, Rate, Slots,
    TargetName,
};
use super::limits::LIMITS;
use super::listen::{LISTEN, listens};
use crate::ciphers::Ciphers;
use crate::compression::Compression;
use crate::credentials::{CHAP, WEAK};
use crate::log::LOG;
use crate::option_table::{
    ADDRESS, BYTES, CIPHER, COMPRESSION, COUNT, DEMAND, DIRECTORY, FILE, IQN, KEY, Kind, NAME,
    PATH, Place, RATE, RawValue, Row, Rows, SIZE, SWITCH, Section, Standard, VARIABLE, ValueError,
    number, number_or_text, options, path, switch, text, texts,
};
use crate::sealing::Demand;
use crate::size::Size;
use crate::store::iscsi::Connections;
use crate::target::fair_queue::WEIGHT_MAX;
use crate::uri::Uri;

const URI: Kind = Kind::text("URI", "the URI of a volume");
const TARGET: Kind =
    Kind::text("TARGET", "a whole iSCSI name, or what follows iqn.2026-11.dev.longhaul:");
const DISC: Kind = Kind::text("DISC", "`cd-r`, `dvd+rw` or `bd-r`");
const LABEL: Kind = Kind::text("TEXT", "printable ASCII characters");
const CONNECTIONS: Kind = Kind::text("N, auto", "a number from 1 to 64, or `auto`");

const WEIGHT: RangeInclusive<u32> = 1..=WEIGHT_MAX;

/// At less a large command waits for longer than initiators do.
const CLIENT_RATE: RangeInclusive<Size> = Size(64 << 10)..=Size(1 << 40);

const IOPS: RangeInclusive<u32> = 1..=100_000_000;

options! {
    /// What stands in no table.
    pub struct ServerOptions in pub(super) SERVER {
        listen: Vec<Listen> = listens => {
            kind: ADDRESS.listed(),
            default: Standard::Words("127.0.0.1:3260"),
            place: Place::Both,
            help: "Address to listen on: ADDR or ADDR:PORT for iSCSI, hyperscsi://ADDR or hseth://INTERFACE for HyperSCSI; may be repeated. Every address reaches every volume",
            manual: "An entry in the file may be a table, see [several paths](#several-paths)",
        }
        insecure: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::Both,
            help: "Let anyone who reaches the port read and overwrite the volumes",
            manual: "Beyond loopback `serve` wants this or [authentication](sessions.md#chap). With `protection = \"none\"` it also lets clients of HyperSCSI do without [protection](sessions.md#protection)",
        }
        identity: Option<PathBuf> = path => {
            kind: FILE,
            default: Standard::Words("no secure sessions"),
            place: Place::Both,
            help: "Identity of this server, made by `longhaul identity new`, for secure sessions",
            manual: "See [secure sessions](sessions.md#secure-sessions)",
        }
        site_key: Option<PathBuf> = path => {
            kind: FILE,
            default: Standard::Words("no HyperSCSI"),
            place: Place::Both,
            help: "Key of the site, made by `longhaul identity site-key`, for HyperSCSI",
            manual: "See [HyperSCSI](sessions.md#hyperscsi)",
        }
        compression: Option<Compression> = text => {
            kind: COMPRESSION,
            default: Standard::Value("none"),
            place: Place::Both,
            help: "How data of HyperSCSI are compressed if the client asks for it: none, lz4, zstd or any",
            manual: "See [compression](sessions.md#compression), and what it gives away",
        }
        cipher: Option<Ciphers> = text => {
            kind: CIPHER,
            default: Standard::Value("any"),
            place: Place::Both,
            help: "Cipher of HyperSCSI: any, aes-256-gcm or chacha20-poly1305",
            manual: "See [HyperSCSI](sessions.md#hyperscsi)",
        }
        client_key: Vec<PublicKey> = keys => {
            kind: KEY.listed(),
            default: Standard::Words(""),
            place: Place::CommandLine,
            help: "Public key of a client; may be repeated",
            manual: "In the file: `key` of a client",
        }
        protection: Option<Demand> = text => {
            kind: DEMAND,
            default: Standard::Words("integrity with an identity, else none"),
            place: Place::Both,
            help: "Least protection of every session: none, integrity or encrypt",
            manual: "The strongest demand on a session holds",
        }
        state: Option<PathBuf> = path => {
            kind: DIRECTORY,
            default: Standard::Words("reservations end with the server"),
            place: Place::Both,
            help: "Directory in which reservations (APTPL) outlast a restart",
            manual: "Notes of the files served are kept there too; of a gateway's volumes, where the user has no state directory. With `--invite` and no file it is the user's",
        }
        control: Option<PathBuf> = path => {
            kind: PATH,
            default: Standard::Words("one of its own, which is found"),
            place: Place::Both,
            help: "Socket at which `longhaul status`, `reload`, `invite` and others ask",
            manual: "Only root and the user of the server may ask",
        }
        metrics: Option<MetricsAddress> = text => {
            kind: ADDRESS,
            default: Standard::Words(""),
            place: Place::File,
            help: "Address that offers Prometheus metrics at /metrics",
            manual: "See [status](manual.md#status)",
        }
        metrics_public: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::File,
            help: "Allow metrics beyond loopback, where everyone could read them",
            manual: "",
        }
    }
}

impl Rows for ServerOptions {
    const ROWS: &'static [Row<Self>] = SERVER;
}

options! {
    /// How a volume is offered.
    pub(super) struct VolumeOptions in pub(super) VOLUMES {
        uri: Option<Uri> = located => {
            kind: URI,
            default: Standard::Required,
            place: Place::File,
            help: "The volume",
            manual: "On the command line it follows the name: `NAME=URI`. See [volumes](manual.md#volumes-and-their-names)",
        }
        size: Option<Size> = text => {
            kind: SIZE,
            default: Standard::Words(""),
            place: Place::Both,
            help: "Create a missing file with this size, once; an existing one must have it",
            manual: "See [a file that is missing](disaster.md#a-file-that-is-missing)",
        }
        read_only: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::Both,
            help: "Refuse all writes, whatever clients may do",
            manual: "",
        }
        direct: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::Both,
            help: "Use a file or device past the page cache (O_DIRECT)",
            manual: "Refused where the file system has no such requests. [When it pays](benchmarks.md#direct-and-cached)",
        }
        encrypted: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::Both,
            help: "Refuse the volume unless it has a LUKS header",
            manual: "See [encrypted volumes](manual.md#encrypted-volumes)",
        }
        protection: Option<Demand> = text => {
            kind: DEMAND,
            default: Standard::Words("none"),
            place: Place::Both,
            help: "Least protection of its sessions: none, integrity or encrypt",
            manual: "See [secure sessions](sessions.md#secure-sessions)",
        }
        target: Option<TargetName> = text => {
            kind: TARGET,
            default: Standard::Words("the name of the volume"),
            place: Place::Both,
            help: "Target of which the volume is a unit",
            manual: "See [several units](#several-units)",
        }
        lun: Option<Lun> = number => {
            kind: COUNT,
            default: Standard::Value("0"),
            place: Place::Both,
            help: "Number of the unit in its target, 0 to 16383",
            manual: "",
        }
        drives: Option<Drives> = number => {
            kind: COUNT,
            default: Standard::Words("1"),
            place: Place::Both,
            help: "Tape drives of a media changer, 1 to 32: the units behind its own",
            manual: "See [media changers](volumes.md#media-changers)",
        }
        slots: Option<Slots> = number => {
            kind: COUNT,
            default: Standard::Words("8"),
            place: Place::Both,
            help: "Slots of a media changer, 1 to 4096",
            manual: "",
        }
        mail: Option<Mail> = number => {
            kind: COUNT,
            default: Standard::Words("1"),
            place: Place::Both,
            help: "Import and export elements of a media changer, 0 to 64",
            manual: "",
        }
        block_size: Option<BlockSize> = number => {
            kind: BYTES,
            default: Standard::Words("512"),
            place: Place::Both,
            help: "Logical block of a file or of memory: 512 or 4096 bytes",
            manual: "Devices and remote disks have their own",
        }
        physical_block_size: Option<PhysicalBlockSize> = number => {
            kind: BYTES,
            default: Standard::Words("the volume's own"),
            place: Place::Both,
            help: "Physical block, to which initiators align: a power of two up to 1 MiB",
            manual: "",
        }
        removable: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::Both,
            help: "Let initiators eject and load the medium",
            manual: "As `sg_start --eject` and `--load` do. The medium is in when `serve` starts",
        }
        worm: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::Both,
            help: "Make a missing or blank tape one that is written once: nothing on it is written over",
            manual: "For good. See [tapes that are written once](volumes.md#tapes-that-are-written-once)",
        }
        blank: Option<BlankDisc> = text => {
            kind: DISC,
            default: Standard::Words("the disc must be there"),
            place: Place::Both,
            help: "Make a missing disc, a blank one: cd-r, dvd+rw or bd-r",
            manual: "See [discs that are written](volumes.md#discs-that-are-written)",
        }
        maintenance: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::Both,
            help: "Let clients format, sanitize, lock and reprogram a device that is passed through",
            manual: "Also vendors' own commands. See [devices that are passed through](pass-through.md)",
        }
        thin: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("true"),
            place: Place::Both,
            help: "Whether initiators are told that they may give space back",
            manual: "",
        }
        sanitize_rate: Option<Rate> = text => {
            kind: RATE,
            default: Standard::Words("no bound"),
            place: Place::Both,
            help: "Bytes per second that a SANITIZE overwrites at most",
            manual: "",
        }
        vendor: Option<Label<8>> = text => {
            kind: LABEL,
            default: Standard::Words("Longhaul"),
            place: Place::Both,
            help: "Vendor in INQUIRY, up to 8 characters",
            manual: "",
        }
        product: Option<Label<16>> = text => {
            kind: LABEL,
            default: Standard::Words("Longhaul's own"),
            place: Place::Both,
            help: "Product in INQUIRY, up to 16 characters",
            manual: "",
        }
        serial: Option<Label<SERIAL_MAX>> = text => {
            kind: LABEL,
            default: Standard::Words("one of its own"),
            place: Place::Both,
            help: "Serial number, up to 200 characters",
            manual: "If left out, that of a file, device or volume of another target is a random one, noted in the state directory ([rules](spec/recovery.md#files-of-a-server)); that of `cdrom:`, `tape:` and `changer:` follows from `target` and `lun`, that of `scsi:` also from the device's own; that of memory is new at each start",
        }
        group: Option<GroupName> = text => {
            kind: NAME,
            default: Standard::Value("default"),
            place: Place::File,
            help: "Group of volumes of a cluster that move together, and apart from others",
            manual: "The same at all gateways. See [groups](#groups-of-volumes)",
        }
        shared: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::Both,
            help: "Do not reserve a volume of another target: others write to it too",
            manual: "A cluster file system must coordinate the writers",
        }
    }
}

options! {
    /// How a volume of another target is logged in to.
    pub(crate) struct UpstreamOptions in pub(crate) UPSTREAM {
        initiator: Option<IscsiName> = text => {
            kind: IQN,
            default: Standard::Words("iqn.2026-11.dev.longhaul.client:HOST"),
            place: Place::File,
            help: "Initiator name under which this machine logs in",
            manual: "",
        }
        identity: Option<PathBuf> = path => {
            kind: FILE,
            default: Standard::Words("that of the user"),
            place: Place::File,
            help: "Identity of this machine, for a URI that ends in ?pin=KEY",
            manual: "",
        }
        connections: Option<Connections> = number_or_text => {
            kind: CONNECTIONS,
            default: Standard::Value("auto"),
            place: Place::File,
            help: "Connections to each target, 1 to 64; `auto` begins with one and adds up to three where the link loses packets",
            manual: "A target may allow fewer",
        }
    }
}

options! {
    /// What opens an encrypted volume.
    pub(crate) struct UnlockOptions in pub(crate) UNLOCK {
        passphrase_file: Option<PathBuf> = path => {
            kind: PATH,
            default: Standard::Words("ciphertext is served"),
            place: Place::File,
            help: "File whose first line is the pass-phrase: the plain text is served",
            manual: "Use loopback or secure sessions",
        }
        passphrase_env: Option<String> = text => {
            kind: VARIABLE,
            default: Standard::Words(""),
            place: Place::File,
            help: "Variable that holds the pass-phrase, instead",
            manual: "",
        }
        key_file: Option<PathBuf> = path => {
            kind: PATH,
            default: Standard::Words(""),
            place: Place::File,
            help: "File whose whole content is the key, instead",
            manual: "",
        }
        allow_discards: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::File,
            help: "Pass discards and zeroes on, which the header remembers: saves space and time, but shows the store which blocks are in use, and the kernel's dm-crypt reads noise there",
            manual: "",
        }
        crypto_erase: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::File,
            help: "Let every client with the right to write destroy the key by SANITIZE",
            manual: "For good, and with it [all other key slots](spec/seal.md#destroying-the-key)",
        }
    }
}

options! {
    /// Someone who may log in.
    pub(super) struct ClientOptions in pub(super) CLIENTS {
        volumes: Vec<Spanned<String>> = texts => {
            kind: NAME.listed(),
            default: Standard::Words("none"),
            place: Place::File,
            help: "Volumes that it may read and write",
            manual: "",
        }
        read_only: Vec<Spanned<String>> = texts => {
            kind: NAME.listed(),
            default: Standard::Words("none"),
            place: Place::File,
            help: "Volumes that it may only read; it sees no others",
            manual: "",
        }
        key: Option<PublicKey> = text => {
            kind: KEY,
            default: Standard::Words(""),
            place: Place::File,
            help: "Public key that it proves in a secure session",
            manual: "See [secure sessions](sessions.md#secure-sessions)",
        }
        protection: Option<Demand> = text => {
            kind: DEMAND,
            default: Standard::Words("none"),
            place: Place::File,
            help: "Least protection of its sessions, whatever else is demanded of them",
            manual: "",
        }
        weight: Option<u32> = number, within WEIGHT => {
            kind: COUNT,
            default: Standard::Words("1"),
            place: Place::File,
            help: "Its part of a volume for which commands of several clients wait",
            manual: "See [shares of clients](shares.md)",
        }
        rate: Option<Size> = text, within CLIENT_RATE => {
            kind: RATE,
            default: Standard::Words("unlimited"),
            place: Place::File,
            help: "Bytes a second that all its sessions read and write; what is beyond that waits",
            manual: "",
        }
        iops: Option<u32> = number, within IOPS => {
            kind: COUNT,
            default: Standard::Words("unlimited"),
            place: Place::File,
            help: "Reads and writes a second of all its sessions; what is beyond that waits",
            manual: "",
        }
        paused: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::File,
            help: "It may do nothing for now: its sessions are ended, and it cannot log in",
            manual: "Longhaul's own client waits for that to end, as for the end of an outage",
        }
        administrator: Option<bool> = switch => {
            kind: SWITCH,
            default: Standard::Value("false"),
            place: Place::File,
            help: "It may administer the server in encrypted sessions, and so let it serve every file that it can read",
            manual: "See [admin](manual.md#admin)",
        }
        initiator: Option<IscsiName> = text => {
            kind: IQN,
            default: Standard::Words("any"),
            place: Place::File,
            help: "The only initiator name under which it may log in",
            manual: "",
        }
    }
}

/// Where metrics are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsAddress(pub SocketAddr);

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let why = || format!("`{text}` is not ADDRESS:PORT, such as 127.0.0.1:9260 or [::1]:9260");
        text.parse().map(Self).map_err(|_| why())
    }
}

fn keys(given: &RawValue<'_>) -> Result<Vec<PublicKey>, ValueError> {
    text(given).map(|key| vec![key])
}

/// A URI. The path of a file begins at the directory of the configuration.
fn located(given: &RawValue<'_>) -> Result<Uri, ValueError> {
    let uri: Uri = text(given)?;
    Ok(match given {
        RawValue::File(_, base) => uri.resolved_in(base),
        RawValue::Word(_) => uri,
    })
}

/// All options of the file, by the tables they stand in.
#[must_use]
pub fn sections() -> Vec<Section> {
    vec![
        Section::new(["server", "", "Options of the server"], "--", SERVER),
        Section::new(["weak CHAP", "", "CHAP of all clients"], "--", WEAK),
        Section::new(["listen", "listen", "An entry of listen that is a table"], "", LISTEN),
        Section::new(["log", "log", "The log"], "", LOG),
        Section::new(["limits", "limits", "Bounds of what clients may use"], "", LIMITS),
        Section::new(["cluster", "cluster", "Other gateways of the same volumes"], "", CLUSTER),
        Section::new(
            ["preferred", "cluster.prefers", "An entry of prefers that is a table"],
            "",
            PREFERRED,
        ),
        Section::new(["volume", "volumes.NAME", "A volume"], ",", VOLUMES),
        Section::new(
            ["gateway", "volumes.NAME", "How a volume of another target is logged in to"],
            "",
            UPSTREAM,
        ),
        Section::new(
            ["encrypted volume", "volumes.NAME", "How an encrypted volume is opened"],
            "",
            UNLOCK,
        ),
        Section::new(
            ["client", "clients.NAME", "A client; without any, everyone may log in"],
            "",
            CLIENTS,
        ),
        Section::new(
            ["CHAP", "clients.NAME and volumes.NAME", "CHAP, of a client or for another target"],
            "--",
            CHAP,
        ),
    ]
}

impl From<&VolumeOptions> for Appearance {
    fn from(said: &VolumeOptions) -> Self {
        let own = Self::default();
        Self {
            block_size: said.block_size,
            physical_block_size: said.physical_block_size,
            removable: said.removable.unwrap_or(own.removable),
            thin: said.thin.unwrap_or(own.thin),
            vendor: said.vendor.clone(),
            product: said.product.clone(),
            serial: said.serial.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::option_table::manual_table;

    /// What holds of every row, whatever it is an option of.
    fn check<S: Default>(rows: &'static [Row<S>]) {
        for row in rows {
            let name = row.text.name;
            if let Standard::Value(text) = row.text.standard {
                let mut into = S::default();
                let read = (row.read)(&mut into, &RawValue::Word(Some(text.as_ref())));
                assert!(read.is_ok() && (row.is_set)(&into), "the default of {name}: {read:?}");
            }
            let help = row.text.help;
            let is_sentence = help.starts_with(char::is_uppercase) && !help.ends_with('.');
            assert!(is_sentence && !row.text.manual.ends_with('.'), "{name}: {help}");
            assert!(!row.text.meaning().contains('|'), "{name}: it ends a column of the manual");
        }
        let names: BTreeSet<_> = rows.iter().map(|row| row.text.name).collect();
        assert_eq!(names.len(), rows.len(), "a name stands twice");
    }

    #[test]
    fn every_row_has_a_default_that_it_reads_and_a_sentence() {
        check(SERVER);
        check(LISTEN);
        check(PREFERRED);
        check(LOG);
        check(LIMITS);
        check(CLUSTER);
        check(VOLUMES);
        check(UPSTREAM);
        check(UNLOCK);
        check(CLIENTS);
        check(CHAP);
        check(WEAK);
    }

    fn document(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
    }

    /// The document has the tables that the rows make. With LONGHAUL_WRITE_TABLES in the environment
    /// (`scripts/write-tables`) it gets them.
    #[test]
    fn tables_of_the_document_are_those_of_the_rows() {
        let path = document("docs/configuration.md");
        let mut text = fs::read_to_string(&path).unwrap();
        for section in sections() {
            let (begin, end) = (format!("<!-- options: {} -->\n", section.name), "<!-- end -->");
            let at = text.find(&begin).unwrap_or_else(|| panic!("the document lacks {begin}"));
            let at = at + begin.len();
            let end = at + text[at..].find(end).expect("the end of the table");
            let table = manual_table(&section);
            if std::env::var_os("LONGHAUL_WRITE_TABLES").is_none() {
                let hint = "scripts/write-tables writes it anew";
                assert_eq!(text[at..end], table, "the table of {}: {hint}", section.name);
            }
            text.replace_range(at..end, &table);
        }
        if std::env::var_os("LONGHAUL_WRITE_TABLES").is_some() {
            fs::write(path, text).unwrap();
        }
    }

    /// The keys of the example that is installed, by table, with their values.
    fn example() -> Vec<(String, String, String)> {
        let text = fs::read_to_string(document("packaging/longhaul.toml")).unwrap();
        let (mut table, mut found) = (String::new(), Vec::new());
        for line in text.lines() {
            let line = line.strip_prefix("# ").unwrap_or(line);
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                table = name.split('.').next().unwrap().to_owned();
            }
            let Some((key, value)) = line.split_once(" = ") else { continue };
            if key.chars().all(|letter| letter == '_' || letter.is_ascii_lowercase()) {
                let value = value.split(" #").next().unwrap().trim().trim_matches('"');
                found.push((table.clone(), key.to_owned(), value.to_owned()));
            }
        }
        found
    }

    #[test]
    fn example_has_every_option_of_the_file_and_shows_its_default() {
        let example = example();
        for section in sections().into_iter().filter(|section| section.name != "listen") {
            for table in section.table.split(" and ") {
                let table = table.split('.').next().unwrap();
                for option in section.options.iter().filter(|option| option.place.in_file()) {
                    let name = option.name;
                    let mut shown =
                        example.iter().filter(|(of, key, _)| of == table && key == name);
                    let Some((.., value)) = shown.next() else {
                        // One of several that exclude each other is shown, the others are named beside it.
                        let text = fs::read_to_string(document("packaging/longhaul.toml")).unwrap();
                        assert!(text.contains(name), "the example lacks {name} of [{table}]");
                        continue;
                    };
                    if let (Standard::Value(default), "limits") = (option.standard, table) {
                        assert_eq!(value, default, "{name} of [{table}]");
                    }
                }
            }
        }
    }
}
