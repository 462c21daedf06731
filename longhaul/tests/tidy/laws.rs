//! Of each volume each law is asked, or there is a reason why not: none that is new can be forgotten.

use std::collections::BTreeSet;

use super::{Source, files, root};

/// A law: what asks for it.
#[derive(Clone, Copy, Debug)]
enum Law {
    /// The contract, as `check::volume` has it.
    Contract,
    /// The truth about failures, as `check::truth` has it.
    Truth,
    /// Writers of different blocks of one larger block, as `check::neighbours` has it.
    Neighbours,
}

impl Law {
    const ALL: [Self; 3] = [Self::Contract, Self::Truth, Self::Neighbours];

    const fn call(self) -> &'static str {
        match self {
            Self::Contract => "check::volume(",
            Self::Truth => "check::truth(",
            Self::Neighbours => "check::neighbours(",
        }
    }
}

/// Where a law is asked of a volume, or why it is not.
enum Asked {
    In(&'static str),
    Not(&'static str),
}

use Asked::{In, Not};

/// It reads and writes whole blocks of the volume beneath, so that no neighbour is touched.
const WHOLE: Asked = Not("it passes whole blocks on");
const READ_ONLY: Asked = Not("it takes no changes");
const OF_TESTS: Asked = Not("it fails or waits as tests want it");

/// Each volume, and where the contract, the truth and the neighbours are asked of it.
const VOLUMES: [(&str, &str, [Asked; 3]); 27] = [
    (
        "Recorded",
        "longhaul/src/front/recorded.rs",
        [In("longhaul/src/front/recorded.rs"), In("longhaul/src/front/recorded.rs"), WHOLE],
    ),
    (
        "Metered",
        "longhaul/src/metered.rs",
        [In("longhaul/src/metered.rs"), In("longhaul/src/metered.rs"), WHOLE],
    ),
    (
        "Rbd",
        "longhaul/src/store/rbd.rs",
        [In("longhaul/tests/rbd.rs"), Not("nothing makes a cluster fail alike"), WHOLE],
    ),
    (
        "Gate",
        "volume/src/gate.rs",
        [In("volume/src/check/mod.rs"), In("volume/src/gate.rs"), WHOLE],
    ),
    (
        "Arc",
        "volume/src/gate.rs",
        [Not("it is what it points to"), Not("it is what it points to"), WHOLE],
    ),
    (
        "Memory",
        "volume/src/store/memory.rs",
        [In("volume/src/store/memory.rs"), Not("nothing fails"), WHOLE],
    ),
    (
        "BlockedWrites",
        "volume/src/store/blocked_writes.rs",
        [In("volume/src/store/blocked_writes.rs"), OF_TESTS, WHOLE],
    ),
    ("Hooked", "volume/src/store/hooked.rs", [In("volume/src/store/hooked.rs"), OF_TESTS, WHOLE]),
    (
        "Faulty",
        "volume/src/store/faulty.rs",
        [In("volume/src/store/faulty.rs"), In("volume/src/check/truth.rs"), WHOLE],
    ),
    ("ReadOnly", "volume/src/layer/read_only.rs", [READ_ONLY, READ_ONLY, READ_ONLY]),
    ("Padded", "volume/src/layer/padded.rs", [READ_ONLY, READ_ONLY, READ_ONLY]),
    (
        "Overlay",
        "volume/src/layer/overlay/mod.rs",
        [
            In("volume/src/layer/overlay/tests.rs"),
            In("volume/src/layer/overlay/tests.rs"),
            In("volume/src/layer/overlay/tests.rs"),
        ],
    ),
    (
        "Journaled",
        "volume/src/layer/journal/layer.rs",
        [
            In("volume/src/layer/journal/layer/tests.rs"),
            In("volume/src/layer/journal/layer/tests.rs"),
            WHOLE,
        ],
    ),
    (
        "Limited",
        "volume/src/layer/limit.rs",
        [In("volume/src/layer/limit.rs"), In("volume/src/layer/limit.rs"), WHOLE],
    ),
    (
        "Pipeline",
        "volume/src/layer/pipeline/mod.rs",
        [In("volume/src/layer/pipeline/tests.rs"), In("volume/src/layer/pipeline/tests.rs"), WHOLE],
    ),
    (
        "Narrow",
        "volume/src/layer/narrow.rs",
        [
            In("volume/src/layer/narrow.rs"),
            In("volume/src/layer/narrow.rs"),
            In("volume/src/layer/narrow.rs"),
        ],
    ),
    (
        "Joined",
        "volume/src/layer/joined/mod.rs",
        [
            In("volume/src/layer/joined/tests.rs"),
            In("volume/src/layer/joined/tests.rs"),
            In("volume/src/layer/joined/tests.rs"),
        ],
    ),
    (
        "Mirror",
        "volume/src/layer/mirror/mod.rs",
        [
            In("volume/src/layer/mirror/tests.rs"),
            In("volume/src/layer/mirror/tests.rs"),
            In("volume/src/layer/mirror/tests.rs"),
        ],
    ),
    (
        "Crypt",
        "volume/src/layer/crypt/mod.rs",
        [
            In("volume/src/layer/crypt/tests.rs"),
            In("volume/src/layer/crypt/tests.rs"),
            In("volume/src/layer/crypt/tests.rs"),
        ],
    ),
    (
        "TracedVolume",
        "longhaul/src/trace/layer.rs",
        [In("longhaul/src/trace/mod.rs"), In("longhaul/src/trace/mod.rs"), WHOLE],
    ),
    (
        "LimitedReads",
        "longhaul/src/chain/limited_reads.rs",
        [
            In("longhaul/src/chain/limited_reads.rs"),
            In("longhaul/src/chain/limited_reads.rs"),
            WHOLE,
        ],
    ),
    (
        "Local",
        "longhaul/src/store/local.rs",
        [
            In("longhaul/src/store/file.rs"),
            Not("only a kernel stands beneath: tests/faults.rs has its devices fail"),
            WHOLE,
        ],
    ),
    (
        "Standby",
        "longhaul/src/store/standby.rs",
        [Not("it refuses all"), Not("it refuses all"), Not("it refuses all")],
    ),
    ("Null", "longhaul/src/store/null.rs", [Not("it keeps nothing"), Not("nothing fails"), WHOLE]),
    (
        "Disk",
        "longhaul/src/store/scsi/disk.rs",
        [In("longhaul/tests/initiator.rs"), In("longhaul/tests/initiator.rs"), WHOLE],
    ),
    (
        "Erasable",
        "longhaul/src/luks/erase.rs",
        [
            In("longhaul/src/luks/tests/erase.rs"),
            Not("Crypt and the store answer, which are asked"),
            WHOLE,
        ],
    ),
    (
        "FailureLogging",
        "longhaul/src/pipelined.rs",
        [In("longhaul/src/pipelined.rs"), In("longhaul/src/pipelined.rs"), WHOLE],
    ),
];

/// What stands in another place than its name says: the same volume over another transport.
const ELSEWHERE: [(Law, &str); 3] = [
    (Law::Contract, "longhaul/tests/hyperscsi.rs"),
    (Law::Truth, "longhaul/tests/hyperscsi.rs"),
    (Law::Contract, "longhaul/src/store/device.rs"),
];

/// The volumes of a file that is no test: the names behind `Volume for`.
fn volumes(source: &Source) -> Vec<String> {
    // Those of tests at the bottom of a file are further to the right.
    let named = source.text.lines().filter(|line| line.starts_with("impl"));
    let named = named.filter_map(|line| line.split_once(" Volume for ").map(|(_, name)| name));
    let last = |name: &str| {
        let name = name.split(['<', ' ']).next().unwrap_or_default();
        name.rsplit("::").next().unwrap_or_default().to_owned()
    };
    named.map(last).collect()
}

#[test]
fn each_volume_has_a_row() {
    let sources = ["volume/src", "longhaul/src"].map(|room| files(room, ".rs"));
    let all = sources.iter().flatten().filter(|source| !source.path.contains("/tests"));
    let found: BTreeSet<_> = all
        .flat_map(|source| volumes(source).into_iter().map(|name| (name, source.path.clone())))
        .collect();
    let rows = VOLUMES.iter().map(|(name, path, _)| ((*name).to_owned(), (*path).to_owned()));
    let rows: BTreeSet<_> = rows.collect();
    let missing: Vec<_> = found.symmetric_difference(&rows).collect();
    assert!(missing.is_empty(), "volumes without a row, or rows without a volume: {missing:?}");
}

#[test]
fn each_law_is_asked_where_the_table_says() {
    let rows = VOLUMES.iter().flat_map(|(name, _, asked)| {
        asked.iter().zip(Law::ALL).map(move |(asked, law)| (*name, asked, law))
    });
    let elsewhere = ELSEWHERE.iter().map(|(law, path)| ("Disk or Local", *path, *law));
    let said = rows.filter_map(|(name, asked, law)| match asked {
        In(path) => Some((name, *path, law)),
        Not(why) => {
            assert!(!why.is_empty(), "{name}: {law:?} is not asked, and no reason is given");
            None
        }
    });
    for (name, path, law) in said.chain(elsewhere) {
        let text = std::fs::read_to_string(root().join(path));
        let text = text.unwrap_or_else(|why| panic!("{path}: {why}"));
        // The suite names its own laws without the room.
        let own = law.call().replacen("check::", "", 1);
        let is_own = path.starts_with("volume/src/check/") && text.contains(&own);
        assert!(is_own || text.contains(law.call()), "{path} does not ask {law:?} of {name}");
    }
}
