use std::time::Duration;

use super::*;
use crate::log::Format;

const WHOLE: &str = r#"
listen = ["0.0.0.0:3260", "[::1]"]
chap_weak = true
state = "state"

[volumes.backup]
uri = "file:backup.img"
size = "80G"

[volumes.media]
uri = "device:/dev/sdb"
read_only = true
target = "iqn.2001-04.com.example:media"
block_size = 4096
physical_block_size = 16384
removable = true
thin = false
vendor = "ACME"
product = "Media"
serial = "0815"

[volumes.scratch]
uri = "memory:1G"
target = "backup"
lun = 3

[clients.laptop]
chap_secret_file = "laptop.secret"
chap_mutual_user = "server"
chap_mutual_secret_env = "MUTUAL"
volumes = ["backup", "media"]

[clients.tv]
initiator = "iqn.2001-04.com.example:tv"
read_only = ["backup"]
volumes = ["media"]

[limits]
connections = 100
login = "500ms"

[log]
level = "debug"
format = "json"

[volumes.gateway]
uri = "iscsi://array/iqn.2001-04.com.example:array/3"
initiator = "iqn.2001-04.com.example:me"
chap_user = "me"
chap_secret_file = "array.secret"
chap_weak = true
key_file = "volume.key"
allow_discards = true
connections = 3
crypto_erase = true
"#;

fn parse(text: &str) -> Config {
    let (config, wrong) = file::parse(text, Path::new("/etc/longhaul/longhaul.toml"));
    assert_eq!(wrong, []);
    config
}

#[test]
fn portals_are_in_groups_that_have_their_access() {
    let volume = "[volumes.a]\nuri = 'memory:1M'\n";
    let ports = |listen: &str| parse(&format!("{listen}\n{volume}")).ports();
    let optimized = AccessState::Optimized;
    assert_eq!(ports(""), BTreeMap::from([(1, optimized)]));
    assert_eq!(ports("listen = ['127.0.0.1', '[::1]']"), BTreeMap::from([(1, optimized)]));
    let several = "listen = ['127.0.0.1', { address = '127.0.0.2', group = 2, access = 'standby' },
        { address = '127.0.0.3', group = 2 }, { address = '127.0.0.4', group = 255 }]";
    let expected = [(1, optimized), (2, AccessState::Standby), (255, optimized)];
    assert_eq!(ports(several), BTreeMap::from(expected));
    let wrong = |said: &str| {
        let text = format!(
            "\nlisten = ['[::1]', {{ address = '127.0.0.1', {said} }}, {{ address = '127.0.0.2', access = 'optimized' }}]\n{volume}"
        );
        let (_, wrong) = file::parse(&text, Path::new("longhaul.toml"));
        wrong.into_iter().map(|wrong| wrong.why).collect::<Vec<_>>()
    };
    for (said, why) in [
        ("group = 0", "a group is from 1 to 255, not 0"),
        ("group = 256", "a group is from 1 to 255, not 256"),
        ("access = 'offline'", "write `optimized`, `non-optimized`, `standby` or `unavailable`"),
        ("access = 'standby'", "group 1 has one `access`"),
    ] {
        let said = wrong(said);
        assert!(said.len() == 1 && said[0].contains(why), "{said:?}");
    }
}

#[test]
fn a_whole_file_is_understood() {
    let config = parse(WHOLE);
    assert_eq!(
        config.listen.iter().map(|listen| listen.at.to_string()).collect::<Vec<_>>(),
        ["0.0.0.0:3260", "[::1]:3260"]
    );
    assert_eq!(config.state.as_deref(), Some(Path::new("/etc/longhaul/state")));
    let [backup, media, scratch, gateway] = &config.volumes[..] else { panic!() };
    assert_eq!((&scratch.target, scratch.lun, media.lun), (&backup.target, 3, 0));
    assert_eq!(backup.target.as_str(), "iqn.2026-11.dev.longhaul:backup");
    assert_eq!(backup.uri.to_string(), "file:/etc/longhaul/backup.img");
    assert_eq!((backup.size, backup.read_only), (Some(Size(80 << 30)), false));
    assert_eq!(media.target.as_str(), "iqn.2001-04.com.example:media");
    assert!(media.read_only);
    assert_eq!(backup.appearance, Appearance::default());
    assert_eq!(media.appearance, appearance());
    let [laptop, tv] = &config.clients[..] else { panic!() };
    let chap = laptop.chap.as_ref().unwrap();
    assert_eq!(chap.initiator.name, "laptop", "the name of the table, unless chap_user says more");
    assert_eq!(chap.initiator.secret, Source::File("/etc/longhaul/laptop.secret".into()));
    let mutual = chap.target.as_ref().unwrap();
    assert_eq!((mutual.name.as_str(), &mutual.secret), ("server", &Source::Env("MUTUAL".into())));
    assert_eq!(laptop.units.as_ref().unwrap().len(), 2);
    assert_eq!(tv.units, Some(vec![media.unit()]));
    assert_eq!(tv.read_only, [backup.unit()]);
    assert_eq!(gateway.upstream.initiator.as_ref().unwrap().as_str(), "iqn.2001-04.com.example:me");
    assert_eq!(gateway.upstream.chap.as_ref().unwrap().initiator.name, "me");
    let key = Source::KeyFile("/etc/longhaul/volume.key".into());
    assert_eq!(gateway.upstream.connections, Connections::Fixed(3));
    let unlocking = Unlocking { secret: key, allow_discards: true, crypto_erase: true };
    assert_eq!(gateway.unlock, Some(unlocking));
    assert!(gateway.upstream.chap_weak && backup.upstream == Upstream::default());
    let millis = |time: Option<ConfigDuration>| time.map(|time| time.into_inner().as_millis());
    assert_eq!((config.limits.connections, millis(config.limits.login)), (Some(100), Some(500)));
    assert_eq!(millis(config.limits.stop), Some(2000), "what is left out is as it was");
    assert_eq!(config.log, Log { level: Some("debug".into()), format: Some(Format::Json) });
    assert_eq!(config.line("clients", "tv"), 33);
    assert!(!config.is_authenticated(), "a name alone proves nothing");
}

#[test]
fn mistake_is_found_at_its_line() {
    let volume = "[volumes.a]\nuri = \"memory:1M\"\n";
    for (text, line, why) in [
        ("lisen = []\n", 1, "unknown key `lisen`"),
        ("\nlisten = [\"::1\"]\n", 2, "HOST:PORT"),
        ("\n\n[volumes.a]\nuri = \"s4:x\"\n", 4, "unknown scheme `s4:`"),
        ("[volumes.a]\nuri = \"memory:1M\"\nsize = \"1,5G\"\n", 3, "is not a size"),
        ("[volumes.a]\nuri = \"memory:1M\"\nreadonly = true\n", 3, "unknown key `readonly`"),
        ("[volumes.a]\nuri = \"memory:1M\"\ntarget = \"iqn.\"\n", 3, "is followed by"),
        ("[volumes.a]\nuri = \"memory:1M\"\ntarget = \"X\"\n", 3, "cannot name"),
        ("[volumes.a]\nuri = \"memory:1M\"\nlun = 16384\n", 3, "from 0 to 16383"),
        ("[volumes.a]\nuri = \"memory:1M\"\nblock_size = 520\n", 3, "512 or 4096 bytes, not 520"),
        ("[volumes.a]\nuri = \"memory:1M\"\nphysical_block_size = 5000\n", 3, "power of two"),
        ("[volumes.a]\nuri = \"memory:1M\"\nvendor = \"too long a name\"\n", 3, "1 to 8 ASCII"),
        ("[volumes.A]\nuri = \"memory:1M\"\n", 1, "cannot name a volume"),
        ("[volumes.a]\n", 1, "missing field `uri`"),
        ("insecure = true\n", 1, "there is no volume to serve"),
        ("a = \n", 1, ""),
        ("listen = \"::1\"\n", 1, "listen: a list of strings, in [ ], is expected here"),
        (
            "[volumes.a]\nuri = 1\n",
            2,
            "uri: a string is expected here, not the number 1: write it in quotes",
        ),
        (&format!("[limits]\nlogin = \"5\"\n{volume}"), 2, "is not a time"),
        (&format!("[limits]\nconnections = 0\n{volume}"), 2, "connections is from 1 to 65535"),
        (&format!("[limits]\nlogins = 65536\n{volume}"), 2, "logins is from 1 to 65535"),
        (&format!("[limits]\nlogin = \"99ms\"\n{volume}"), 2, "login is from 100ms to 24h"),
        (&format!("[limits]\nsessions_per_initiator = -1\n{volume}"), 2, "a whole number"),
        (&format!("[limits]\nconnections_per_session = 0\n{volume}"), 2, "is from 1 to 64"),
        (&format!("[limits]\ncommands = 129\n{volume}"), 2, "commands is from 1 to 128"),
        (&format!("[limits]\ntext = \"2M\"\n{volume}"), 2, "text is from 8K to 1M"),
        (&format!("[limits]\ndata_segment = \"4K\"\n{volume}"), 2, "from 8K to 16777215, not 4K"),
        (&format!("[limits]\nfirst_burst = \"16M\"\n{volume}"), 2, "from 512 to 16777215, not 16M"),
        (&format!("[limits]\nunsolicited = \"2T\"\n{volume}"), 2, "unsolicited is from 1M to 1T"),
        (&format!("[limits]\nheld = \"31M\"\n{volume}"), 2, "held is from 32M to 1T"),
        (&format!("[limits]\nheld_by_session = \"64M\"\n{volume}"), 2, "than all do"),
        (&format!("[limits]\nping_after = \"0s\"\n{volume}"), 2, "ping_after is from 100ms"),
        (&format!("[limits]\nping_patience = \"1us\"\n{volume}"), 2, "from 100ms to 24h"),
        (&format!("[limits]\nawake = \"11ms\"\n{volume}"), 2, "awake is from 0us to 10ms"),
        (&format!("[limits]\nstop = \"1ms\"\n{volume}"), 2, "stop is from 100ms to 24h"),
        (&format!("[limits]\nslow = \"0ms\"\n{volume}"), 2, "slow is from 1us to 24h"),
        (&format!("[log]\nformat = \"xml\"\n{volume}"), 2, "no format of log lines"),
        (&format!("{volume}chap_user = \"x\"\n"), 1, "CHAP needs"),
        (&format!("{volume}chap_weak = true\n"), 1, "only a volume of an iSCSI target"),
        (&format!("{volume}connections = \"2\"\n"), 1, "only a volume of an iSCSI target"),
        (&format!("{volume}connections = 65\n"), 3, "neither auto nor a number"),
        (&format!("{volume}connections = \"all\"\n"), 3, "neither auto nor a number"),
        (
            &format!("{volume}connections = true\n"),
            3,
            "connections: a string is expected here, not true",
        ),
        (
            "[volumes.a]\nuri = \"scsi:/dev/sg0\"\nkey_file = \"k\"\n",
            1,
            "a device is passed through as it is: a key opens encrypted volumes alone",
        ),
        (
            "[volumes.a]\nuri = \"scsi:/dev/sg0\"\nthin = false\n",
            1,
            "passed through as it is, and thin=false is for other volumes",
        ),
        (&format!("{volume}allow_discards = true\n"), 3, "for encrypted volumes"),
        (&format!("{volume}crypto_erase = true\n"), 3, "for encrypted volumes"),
        (&format!("{volume}[clients.b]\nchap_secret_env = \"X\"\n"), 3, "missing field `volumes`"),
        (
            &format!(
                "{volume}[clients.b]\ninitiator = \"iqn.a\"\nvolumes = [\"a\"]\nread_only = [\"a\"]\n"
            ),
            6,
            "one of them only",
        ),
        (&format!("{volume}[clients.b]\nvolumes = []\n"), 3, "a client is known by"),
        (&format!("{volume}[clients.b]\nchap_user = \"x\"\nvolumes = []\n"), 3, "CHAP needs"),
        (
            &format!("{volume}[clients.b]\nchap_secret_env = \"X\"\nvolumes = [\"c\"]\n"),
            5,
            "there is no volume `c`",
        ),
        (
            &format!(
                "{volume}lun = 2\n[volumes.b]\nuri = \"memory:1M\"\ntarget = \"a\"\nlun = 2\n"
            ),
            4,
            "is volume a already",
        ),
        (
            &format!("{volume}[volumes.b]\nuri = \"memory:1M\"\ntarget = \"{TARGET_PREFIX}a\"\n"),
            3,
            "is volume a already",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("longhaul.toml");
        std::fs::write(&path, text).unwrap();
        let failure = Config::read(&path).unwrap_err();
        let message = failure.to_string();
        let at = format!("{}:{line}: ", path.display());
        let told = message.lines().any(|line| line.starts_with(&at) && line.contains(why));
        assert!(told, "{text}{message}");
        assert_eq!(failure.exit_code(), 2);
    }
}

fn appearance() -> Appearance {
    Appearance {
        block_size: Some(BlockSize(4096)),
        physical_block_size: Some(PhysicalBlockSize(16_384)),
        removable: true,
        thin: false,
        vendor: Some(Label("ACME".to_owned())),
        product: Some(Label("Media".to_owned())),
        serial: Some(Label("0815".to_owned())),
    }
}

#[test]
fn a_volume_on_the_command_line_can_look_like_one_in_a_file() {
    let options = "block_size=4096,physical_block_size=16384,removable,thin=false";
    let text = format!("a=file:b,{options},vendor=ACME,product=Media,serial=0815,read_only");
    let served = text.parse::<Served>().unwrap();
    assert_eq!(served.uri.to_string(), "file:b");
    assert!(served.read_only);
    assert_eq!(served.appearance, appearance());
    for (option, why) in [
        ("block_size=1024", "block_size: blocks are of 512 or 4096 bytes"),
        ("block_size", "block_size: it needs a value"),
        ("thin=no", "thin: `no` is neither"),
        ("vendor=", "vendor: `` is not a text"),
        ("serial=\u{e9}", "ASCII"),
    ] {
        let refused = format!("a=memory:1M,{option}").parse::<Served>().unwrap_err();
        assert!(refused.contains(why), "{option}: {refused}");
    }
}

#[test]
fn the_example_is_right_as_it_stands_and_with_everything_in_it() {
    let example = include_str!("../../../packaging/longhaul.toml");
    let config = parse(example);
    assert_eq!((config.volumes.len(), config.clients.len()), (1, 0));
    // What stands for a key is none; everything else that is commented out is as good as the rest.
    fn assigns(line: &str) -> Option<&str> {
        let setting = line.strip_prefix("# ").filter(|line| !line.contains("lhpub1-..."))?;
        let key = setting.split(' ').next().filter(|key| !key.is_empty())?;
        let is_key = key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let is_setting = setting.starts_with('[') || (is_key && setting.contains(" = "));
        is_setting.then_some(setting)
    }
    let set = |part: &str| {
        let lines: Vec<_> = part.lines().map(|line| assigns(line).unwrap_or(line)).collect();
        lines.join("\n")
    };
    // A cluster serves files alone, so that its table stands beside what is not commented out.
    let (before, cluster) = example.split_once("# [cluster]").unwrap();
    let (cluster, behind) = cluster.split_once("\n\n").unwrap();
    let with_cluster = format!("{before}[cluster]{}\n\n{behind}", set(cluster));
    assert!(parse(&with_cluster).cluster.is_some());
    let config = parse(&set(&format!("{before}\n{behind}")));
    assert_eq!((config.volumes.len(), config.clients.len()), (4, 1));
    assert!(config.volumes[1].upstream.chap.is_some() && config.volumes[1].unlock.is_some());
    // A media changer, and its drive.
    assert!(config.volumes[2].elements().is_some() && config.volumes[3].drive_of().is_some());
}

#[test]
fn every_mistake_is_told_at_once() {
    let text = "\
lisen = 1
[volumes.a]
uri = \"s4:x\"
size = \"x\"
[volumes.b]
readonly = true
[clients.c]
volumes = [\"a\", \"d\"]
e = \"unfinished
";
    let (config, wrong) = file::parse(text, Path::new("x"));
    let lines: Vec<_> = wrong.iter().map(|wrong| wrong.line).collect();
    assert_eq!(lines, [1, 3, 4, 5, 6, 7, 8, 9, 9], "{wrong:#?}");
    assert_eq!(config.volumes, []);
}

#[test]
fn a_volume_on_the_command_line() {
    let served = "backup=file:/srv/a,b.img,size=80G,read_only".parse::<Served>().unwrap();
    assert_eq!(served.uri.to_string(), "file:/srv/a,b.img");
    assert_eq!((served.size, served.read_only), (Some(Size(80 << 30)), true));
    let unit = |text: &str| text.parse::<Served>().unwrap().unit();
    let UnitName { target, lun } = unit("data=memory:1M,target=vm,lun=3");
    assert_eq!((target.as_str(), lun), ("iqn.2026-11.dev.longhaul:vm", 3));
    assert_eq!(unit("vm=memory:1M,lun=3"), unit("data=memory:1M,target=vm,lun=3"));
    for text in ["backup", "=memory:1M", "Backup=memory:1M", "a=memory:1M,size=x", "a=nothing"] {
        assert!(text.parse::<Served>().is_err(), "{text}");
    }
}

const CLUSTER: &str = "listen = [\"192.0.2.1\"]\ninsecure = true\n[cluster]\ngateway = \"a\"\ndirectory = \"shared\"\n\
    peers = [\"192.0.2.2\", { address = \"192.0.2.3\", group = 7 }]\n[volumes.a]\nuri = \"file:a.img\"\n";

/// SPC-4, 5.16: what is standby here is optimized there.
#[test]
fn gateway_of_a_cluster_has_the_groups_of_all() {
    let config = parse(CLUSTER);
    let cluster = config.cluster.as_ref().unwrap();
    assert_eq!((cluster.gateway.as_str(), cluster.lease), ("a", Duration::from_secs(5)));
    assert_eq!(cluster.place, RecordPlace::Directory("/etc/longhaul/shared".into()));
    let (optimized, standby) = (AccessState::Optimized, AccessState::Standby);
    assert_eq!(config.ports_in_cluster(true), BTreeMap::from([(1, optimized), (7, standby)]));
    assert_eq!(config.ports_in_cluster(false), BTreeMap::from([(1, standby), (7, optimized)]));
}

#[test]
fn gateway_has_a_weight_for_each_group_that_it_prefers() {
    let prefers = "prefers = [\"default\", { group = \"db\", weight = 7 }]\npeers = [";
    let text = CLUSTER.replacen("peers = [", prefers, 1);
    let (config, _) = Config::parse(&text, Path::new("/etc/longhaul/longhaul.toml"));
    let cluster = config.cluster.unwrap();
    let weights = ["default", "db", "web"].map(|it| cluster.weight_for(&it.parse().unwrap()));
    assert_eq!(weights, [100, 7, 0]);
}

/// Each row: what is changed, and what is wrong then.
#[test]
fn volume_that_a_cluster_cannot_serve_is_a_mistake() {
    for (from, to, wrong) in [
        ("file:a.img", "memory:1M", "line 3: volume a: a cluster with `directory` serves files"),
        ("file:a.img", "rbd:rbd/a", "line 3: volume a: a cluster with `directory` serves files"),
        ("directory", "state", "line 5: state: the state of a cluster is in `rados:POOL"),
        ("directory = \"shared\"\n", "", "line 3: a cluster of files needs `directory`"),
        ("peers", "state = \"rados:p\"\npeers", "line 6: a cluster has `directory` or `state`"),
        ("a.img\"", "a.img\"\nremovable = true", "line 3: volume a: in a cluster no medium"),
        (
            "[\"192.0.2.1\"]",
            "[{ address = \"192.0.2.1\", access = \"standby\" }]",
            "line 3: the lease",
        ),
        ("gateway = \"a\"\n", "", "line 3: missing field `gateway`"),
        ("gateway = \"a\"", "gateway = \"a b\"", "line 4: gateway: a gateway has a name"),
        ("peers = [", "lease = \"1ms\"\npeers = [", "line 6: lease is from 500ms"),
        (
            "peers = [",
            "prefers = [{ group = \"default\", weight = 0 }]\npeers = [",
            "line 6: weight is from 1 to 1000",
        ),
        (
            "peers = [",
            "prefers = [\"default\", { group = \"default\", weight = 7 }]\npeers = [",
            "line 6: `prefers` names the group default twice",
        ),
    ] {
        let text = CLUSTER.replacen(from, to, 1);
        let (_, mistakes) = Config::parse(&text, Path::new("/etc/longhaul/longhaul.toml"));
        let told: Vec<_> =
            mistakes.iter().map(|it| format!("line {}: {}", it.line, it.why)).collect();
        assert!(told.iter().any(|told| told.starts_with(wrong)), "{wrong}: {told:?}");
    }
}

const CEPH_CLUSTER: &str = "[cluster]\ngateway = \"a\"\nstate = \"rados:pool/gateways?id=gw&conf=ceph.conf\"\n\
    [volumes.a]\nuri = \"rbd:rbd/a?id=gw&conf=ceph.conf\"\n";

#[test]
fn cluster_of_images_has_its_record_in_a_pool() {
    let config = parse(CEPH_CLUSTER);
    let place = &config.cluster.as_ref().unwrap().place;
    let RecordPlace::Rados(pool) = place else { panic!("{place}") };
    assert_eq!((pool.pool.as_str(), pool.namespace.as_deref()), ("pool", Some("gateways")));
    assert_eq!(place.to_string(), "rados:pool/gateways?id=gw&conf=/etc/longhaul/ceph.conf");
    // One who is blocklisted is so by the address of one connection, which both have.
    for (from, to, wrong) in [
        ("a?id=gw&", "a?id=other&", "volume a: it is opened as `state` is"),
        ("rbd/a?", "rbd/a@monday?", "volume a: a cluster serves no snapshot"),
        (
            "rbd:rbd/a?id=gw&conf=ceph.conf",
            "file:a.img",
            "volume a: a cluster with `state` serves images",
        ),
        ("rados:pool/gateways", "rados:pool/gateways/x", "the state of a cluster is in"),
        ("rados:pool", "rbd:pool", "the state of a cluster is in"),
    ] {
        let text = CEPH_CLUSTER.replacen(from, to, 1);
        let (_, mistakes) = Config::parse(&text, Path::new("/etc/longhaul/longhaul.toml"));
        assert!(
            mistakes.iter().any(|it| it.why.to_string().contains(wrong)),
            "{wrong}: {mistakes:?}"
        );
    }
}

#[test]
fn client_has_a_share_within_bounds() {
    let client = |lines: &str| {
        let text = format!(
            "[volumes.a]\nuri = 'memory:1M'\n[clients.c]\ninitiator = 'iqn.2000-01.example:c'\nvolumes = ['a']\n{lines}"
        );
        Config::parse(&text, Path::new("longhaul.toml"))
    };
    let (config, wrong) = client("weight = 9\nrate = '100M'\niops = 1000\n");
    assert_eq!(wrong, []);
    let share = Share { weight: Some(9), bytes: Some(100 << 20), commands: Some(1000) };
    assert_eq!(config.clients[0].share, share);
    assert!(!client("").0.clients[0].share.is_set());
    for (line, why) in [
        ("weight = 0", "weight is from 1 to 1000, not 0"),
        ("weight = 1001", "weight is from 1 to 1000, not 1001"),
        ("rate = '1K'", "rate is from 64K to 1T, not 1K"),
        ("iops = 0", "iops is from 1 to 100000000, not 0"),
    ] {
        let (_, wrong) = client(line);
        assert_eq!(wrong.iter().map(|wrong| wrong.why.to_string()).collect::<Vec<_>>(), [why]);
    }
}
