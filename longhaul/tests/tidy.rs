//! The house rules that a compiler does not check: which room may name which, what must not be
//! imported where, and what must not be left behind.

#[path = "tidy/cycles.rs"]
mod cycles;
#[path = "tidy/dead.rs"]
mod dead;
#[path = "tidy/laws.rs"]
mod laws;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A source file: its path from the root of the repository, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// Its lines that are not comments, numbered.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines()).filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// The lines before the tests at the bottom of the file.
    fn lines_without_tests(&self) -> usize {
        self.text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every file under `room` whose name ends in `ending`.
fn files(room: &str, ending: &str) -> Vec<Source> {
    let mut found = Vec::new();
    walk(&root().join(room), ending, &mut found);
    assert!(!found.is_empty(), "no {ending} under {room}: the rule checks nothing");
    found
}

fn walk(dir: &Path, ending: &str, found: &mut Vec<Source>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            // What a build leaves lies beside the manifest; elsewhere a target is that of a protocol.
            let is_build = name == "target" && dir.join("Cargo.toml").exists();
            // Found by fuzzing: bytes, and no text.
            let is_fuzzed =
                dir.ends_with("fuzz") && ["corpus", "artifacts", "seeds"].contains(&&*name);
            if !name.starts_with('.') && !is_build && !is_fuzzed {
                walk(&path, ending, found);
            }
        } else if name.ends_with(ending) {
            let short = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            found.push(Source { path: short, text: fs::read_to_string(&path).unwrap() });
        }
    }
}

/// Fails with one line per place where `room`'s code holds one of `words`.
fn must_not_hold(room: &str, words: &[&str], why: &str) {
    let broken: Vec<String> = files(room, ".rs")
        .iter()
        .flat_map(|source| {
            source
                .code()
                .filter(|(_, line)| words.iter().any(|word| line.contains(word)))
                .map(|(number, line)| format!("{}:{number}: {}", source.path, line.trim()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(broken.is_empty(), "{why}:\n{}", broken.join("\n"));
}

#[test]
fn the_leaves_do_not_know_one_another() {
    for (leaf, others) in [
        ("proto", ["volume", "host"]),
        ("volume", ["proto", "host"]),
        ("host", ["proto", "volume"]),
    ] {
        let manifest = fs::read_to_string(root().join(leaf).join("Cargo.toml")).unwrap();
        for other in others.iter().chain(&["longhaul", "lab"]) {
            let named = manifest.lines().any(|line| line.starts_with(&format!("{other}.")));
            assert!(!named, "{leaf} depends on {other}");
        }
    }
}

#[test]
fn a_front_names_no_store_and_a_store_no_front() {
    // Tests may: they need a volume to serve and a server to reach.
    must_not_hold("longhaul/src/front", &["crate::store"], "only the chain names both");
    must_not_hold("longhaul/src/store", &["crate::front"], "only the chain names both");
    must_not_hold("longhaul/src/target", &["crate::store"], "only the chain names both");
    must_not_hold("longhaul/src/store", &["crate::target"], "only the chain names both");
    must_not_hold(
        "longhaul/src/target",
        &["iscsi", "crate::front"],
        "a transport names the target, and not the other way",
    );
}

#[test]
fn only_the_network_room_tunes_tcp() {
    let tuning = ["host::tcp", "nodelay", "linger", "sockopt", "TCP_", "SO_", "bbr"];
    let all = files("longhaul/src", ".rs");
    let broken = all.iter().filter(|source| !source.path.starts_with("longhaul/src/net/"));
    let broken = broken.filter_map(|source| {
        let (at, line) =
            source.code().find(|(_, line)| tuning.iter().any(|word| line.contains(word)))?;
        Some(format!("{}:{at}: {}", source.path, line.trim()))
    });
    let broken: Vec<_> = broken.collect();
    assert!(broken.is_empty(), "TCP is tuned in longhaul/src/net/tcp_tuning: {broken:?}");
}

#[test]
fn only_commands_join_fronts_to_chains() {
    for source in files("longhaul/src", ".rs") {
        let names = |room: &str| source.code().any(|(_, line)| line.contains(room));
        let path = source.path.strip_prefix("longhaul/src/").unwrap();
        let room = path.split(['/', '.']).next().unwrap();
        if matches!(room, "chain" | "config" | "option_table") {
            assert!(!names("crate::front"), "{path}: only a command names a front");
        }
        let joins = names("crate::front") && (names("crate::store") || names("crate::chain"));
        assert!(!joins || room == "command", "{path}: only a command joins a front to a chain");
        let composes = names("store::file::open") || names("Pipelined::new");
        assert!(
            // `tune` measures by a pipeline of its own.
            !composes || matches!(room, "chain" | "store" | "pipelined" | "tune"),
            "{path}: only the chain puts layers over a store"
        );
    }
}

#[test]
fn schemes_are_told_apart_where_uris_are_read_and_stores_opened() {
    let sources = files("longhaul/src", ".rs");
    let ours = sources.iter().filter(|source| {
        !["src/uri.rs", "src/chain/store.rs", "tests.rs"]
            .iter()
            .any(|end| source.path.ends_with(end))
    });
    let told_apart = ours.flat_map(|source| {
        let code = source.code().take_while(|(at, _)| *at <= source.lines_without_tests());
        let told = code.filter(|(_, line)| {
            // A variant, and no function.
            line.split("Uri::").skip(1).any(|behind| behind.starts_with(char::is_uppercase))
        });
        told.map(|(at, _)| format!("{}:{at}", source.path))
    });
    let told_apart: Vec<_> = told_apart.collect();
    assert!(told_apart.is_empty(), "ask `Uri::location`, or what the store can do: {told_apart:?}");
}

#[test]
fn contributing_lists_every_line_that_the_null_store_takes() {
    let text = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let contributing = text("CONTRIBUTING.md");
    let block = contributing.split("```\n").find(|block| block.contains("\n+")).unwrap();
    let mut listed = BTreeSet::new();
    let mut path = "";
    for line in block.lines() {
        match line.strip_prefix('+') {
            Some(line) => drop(listed.insert((path.to_owned(), line.to_owned()))),
            None => path = line,
        }
    }
    for (path, line) in &listed {
        assert!(text(path).lines().any(|found| found == line), "not in {path}: {line}");
    }
    let sources = files("longhaul/src", ".rs");
    for Source { path, text } in sources.iter().filter(|source| !source.path.ends_with("null.rs")) {
        for line in text.lines() {
            let names =
                ["Null", "null:", "mod null", ", null}"].iter().any(|name| line.contains(name));
            let is_listed = listed.contains(&(path.clone(), line.to_owned()));
            assert!(!names || is_listed, "not listed in CONTRIBUTING.md: {path}: {line}");
        }
    }
}

#[test]
fn paths_are_shown_on_one_line() {
    let sources = files("longhaul/src", ".rs");
    let ours = sources.iter().filter(|source| {
        !source.path.ends_with("printable.rs") && !source.path.ends_with("tests.rs")
    });
    let raw = ours.flat_map(|source| {
        let code = source.code().take_while(|(at, _)| *at <= source.lines_without_tests());
        let raw = code.filter(|(_, line)| line.contains(".display()"));
        raw.map(|(at, _)| format!("{}:{at}", source.path))
    });
    let raw: Vec<_> = raw.collect();
    assert!(raw.is_empty(), "a name may hold a line feed: `shown()` of printable.rs: {raw:?}");
}

#[test]
fn scsi_names_no_transport() {
    must_not_hold("proto/src/scsi", &["iscsi::"], "a transport names SCSI, and not the other way");
    must_not_hold(
        "longhaul/src/store/scsi",
        &["iscsi"],
        "a transport names what is SCSI's, and not the other way",
    );
    must_not_hold(
        "volume/src/layer/reconnect",
        &["scsi"],
        "lost connections are ridden out for any transport",
    );
}

#[test]
fn the_product_has_nothing_of_the_laboratory() {
    let tun = files("host/src", "lib.rs");
    assert!(tun[0].text.contains("#[cfg(feature = \"lab\")]\npub mod tun;"), "TUN is the lab's");
    for room in ["proto", "volume", "host", "longhaul"] {
        let manifest = fs::read_to_string(root().join(room).join("Cargo.toml")).unwrap();
        let enables =
            manifest.lines().any(|line| line.contains("features") && line.contains("\"lab\""));
        assert!(!enables, "{room} enables the feature for the lab");
    }
}

#[test]
fn test_code_is_compiled_for_tests_only() {
    const MODULES: [&str; 5] = ["blocked_writes", "check", "faulty", "hooked", "invariants"];
    let mut gated = 0;
    for room in ["proto", "volume", "longhaul"] {
        for source in files(&format!("{room}/src"), ".rs") {
            let lines: Vec<_> = source.text.lines().collect();
            for (before, line) in lines.iter().zip(&lines[1..]) {
                let module = line.strip_prefix("pub mod ").and_then(|line| line.strip_suffix(';'));
                if !source.path.contains("/command/")
                    && module.is_some_and(|it| MODULES.contains(&it))
                {
                    let is_gated = before.starts_with("#[cfg(any(test, feature = \"");
                    assert!(is_gated, "{}: {line}", source.path);
                    gated += 1;
                }
            }
        }
        let manifest = fs::read_to_string(root().join(room).join("Cargo.toml")).unwrap();
        let product = manifest.split("[dependencies]").nth(1).unwrap();
        let product = product.split("\n[").next().unwrap();
        for feature in ["check", "invariants"] {
            assert!(!product.contains(&format!("\"{feature}\"")), "{room} ships {feature}");
        }
    }
    assert!(gated >= 10, "{gated} modules were found");
}

/// A transport parses the command block that it got; from there on its fields and traits are handed on.
#[test]
fn command_blocks_are_parsed_once() {
    // The second parses the commands that EXTENDED COPY stands for; the machine of HyperSCSI knows no SCSI.
    let parsers = [
        "longhaul/src/front/iscsi/commands.rs",
        "longhaul/src/target/lun/disk/copy.rs",
        "longhaul/src/front/hyperscsi/tasks.rs",
    ];
    for source in ["proto/src", "longhaul/src"].iter().flat_map(|room| files(room, ".rs")) {
        let product = source.lines_without_tests();
        let is_test = source.path.ends_with("tests.rs") || source.path.ends_with("invariants.rs");
        let code = source.code().filter(|(at, _)| !is_test && *at <= product);
        let found = code.filter(|(_, line)| line.contains("Parsed::of(")).count();
        let expected = usize::from(parsers.contains(&source.path.as_str()));
        assert_eq!(found, expected, "{} parses command blocks", source.path);
    }
}

#[test]
fn nbd_and_scsi_do_not_know_one_another() {
    must_not_hold("proto/src/nbd", &["scsi::"], "NBD and SCSI are two ways to a disk");
    for room in ["proto/src/scsi", "proto/src/iscsi"] {
        must_not_hold(room, &["nbd::"], "NBD and SCSI are two ways to a disk");
    }
}

#[test]
fn proto_and_volume_do_no_io_and_read_no_clock() {
    let forbidden = [
        "TcpStream",
        "TcpListener",
        "UdpSocket",
        "UnixStream",
        "UnixListener",
        "std::fs",
        "io::Read",
        "io::Write",
        "std::env",
        "std::process",
        "thread::spawn",
        "thread::scope",
        "thread::sleep",
        "thread::Builder",
        "Instant",
        "SystemTime",
        "getrandom",
        "rand::",
    ];
    must_not_hold("proto/src", &forbidden, "proto is pure");
    must_not_hold("proto/src", &["tokio"], "proto is pure");
    must_not_hold("volume/src", &forbidden, "volume knows no operating system");
}

#[test]
fn directories_are_made_durably() {
    // `durable.rs` makes them one by one.
    must_not_hold(
        "longhaul/src",
        &["create_dir_all(", ".recursive(true)"],
        "a directory that is not synchronised in its parent is lost with the power, and all files in it",
    );
}

#[test]
fn only_host_is_unsafe() {
    for room in
        ["proto/src/lib.rs", "volume/src/lib.rs", "longhaul/src/lib.rs", "longhaul/src/main.rs"]
    {
        let text = fs::read_to_string(root().join(room)).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{room} must forbid unsafe code");
    }
}

#[test]
fn nothing_is_left_behind() {
    let markers = ["TO".to_owned() + "DO", "FIX".to_owned() + "ME", "XX".to_owned() + "X"];
    let mut all = files(".", ".rs");
    all.extend(files(".", ".md"));
    all.extend(files("scripts", ""));
    for source in &all {
        for (number, line) in (1..).zip(source.text.lines()) {
            let words = line.split(|c: char| !c.is_alphanumeric());
            let left = words.filter(|word| markers.iter().any(|marker| marker == word)).count();
            assert_eq!(left, 0, "{}:{number}: {line}", source.path);
        }
    }
}

/// Files and types whose names said nothing to a stranger, and were given the field's words.
#[test]
fn files_and_types_have_names_of_the_field() {
    const FILES: &str = "ahead chatter crew due floor guest habit handed haul held law line lines losses low_water manager \
                         paper passage patience pause purse received seal served_files settle vigil way workers";
    const TYPES: &str = "Aftermath Allowance Arena Breaking Chatter Crew Crowd Door Doubt Drawer Errand Face Fate Fund \
                         Given Guarded Guest Had Handed Harm Keeper Kept Leave Ledger Letter Line Manner Mute Newcomer \
                         NoEntry Party Passage Pulse Purse Rig Room Said Scene Seat Shaken Shelf Stretch Then Ticket Told \
                         Unfit Unfreed Victims Vigil Wish With Workers";
    for source in files(".", ".rs") {
        let stem = Path::new(&source.path).file_stem().unwrap().to_str().unwrap();
        assert!(!FILES.split_whitespace().any(|name| name == stem), "{}", source.path);
        for (number, line) in (1..).zip(source.text.lines()) {
            let words: Vec<_> = line.split(|c: char| !c.is_alphanumeric()).collect();
            let wrong = words.windows(2).find(|pair| {
                ["struct", "enum", "trait", "type"].contains(&pair[0])
                    && TYPES.split_whitespace().any(|name| name == pair[1])
            });
            assert_eq!(wrong, None, "{}:{number}: {line}", source.path);
        }
    }
}

/// The subject of a test comes first in its name: `subject_condition_result`.
#[test]
fn tests_are_named_after_their_subject() {
    const FIRST: [&str; 6] = ["what", "whatever", "who", "whoever", "whose", "the_law"];
    let mut tests = 0;
    for source in files(".", ".rs") {
        let mut is_test = false;
        for (number, line) in (1..).zip(source.text.lines().map(str::trim)) {
            let name = line.trim_start_matches("async ").strip_prefix("fn ");
            if let Some(name) = name.filter(|_| is_test) {
                let is_vague = FIRST.iter().any(|word| name.starts_with(&format!("{word}_")));
                assert!(!is_vague, "{}:{number}: {name}", source.path);
                tests += 1;
            }
            is_test = line.starts_with("#[test]")
                || line.starts_with("#[tokio::test")
                || is_test && (line.starts_with('#') || line.starts_with("//"));
        }
    }
    assert!(tests > 1000, "{tests} tests were found");
}

/// A volume is encrypted; only a session is sealed.
#[test]
fn seal_means_a_secure_session() {
    for room in ["volume/src", "longhaul/src/luks"] {
        for source in files(room, ".rs") {
            for (number, line) in (1..).zip(source.text.lines()) {
                let line = line.replace("docs/spec/seal.md", "").to_lowercase();
                assert!(!line.contains("seal"), "{}:{number}: {line}", source.path);
            }
        }
    }
}

#[test]
fn files_stay_readable() {
    /// A file longer than this hides a second concern.
    const LINES_MAX: usize = 700;
    /// Tests are read one by one.
    const LINES_OF_TESTS_MAX: usize = 850;
    for source in files(".", ".rs") {
        let is_tests = source.path.ends_with("tests.rs") || source.path.contains("/tests/");
        let lines = source.lines_without_tests();
        let most = if is_tests { LINES_OF_TESTS_MAX } else { LINES_MAX };
        assert!(lines <= most, "{}: {lines} lines", source.path);
    }
}

fn headings(page: &Path) -> impl Iterator<Item = String> + use<> {
    let text = fs::read_to_string(page).unwrap();
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.into_iter().filter(|line| line.starts_with('#'))
}

/// The name by which a heading is linked to.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().chars();
    let kept = kept.filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn documents_name_files_and_places_that_exist() {
    for source in files("docs", ".md").iter().chain(&files(".", "README.md")) {
        let base = root().join(&source.path).parent().unwrap().to_owned();
        for link in source.text.split("](").skip(1) {
            let (target, place) =
                link.split(')').next().unwrap().split_once('#').unwrap_or((link, ""));
            let target = target.split(')').next().unwrap();
            if target.contains("://") {
                continue;
            }
            let page =
                if target.is_empty() { root().join(&source.path) } else { base.join(target) };
            assert!(page.exists(), "{}: no {target}", source.path);
            let is_there = || headings(&page).any(|heading| anchor(&heading) == place);
            assert!(place.is_empty() || is_there(), "{}: no {target}#{place}", source.path);
        }
    }
}

/// The names under the dependency tables of a manifest.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut within = false;
    let mut names = Vec::new();
    for line in fs::read_to_string(root().join(manifest)).unwrap().lines() {
        if line.starts_with('[') {
            within = line.ends_with("dependencies]");
        } else if let Some(end) = line.find([' ', '.', '=']).filter(|_| within) {
            names.push(line[..end].to_owned());
        }
    }
    names
}

#[test]
fn every_dependency_is_used_and_explained() {
    let explained = fs::read_to_string(root().join("docs/dependencies.md")).unwrap();
    let ours = ["proto", "volume", "host", "longhaul", "testing", "lab"];
    for room in ours.iter().chain(&["fuzz"]) {
        let sources = files(room, ".rs");
        for name in dependencies(&format!("{room}/Cargo.toml")) {
            let path = if name == "md-5" { "md5".to_owned() } else { name.replace('-', "_") };
            let is_named = |line: &str| {
                line.match_indices(&path).any(|(at, _)| {
                    let is_whole = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                    let behind = &line[at + path.len()..];
                    is_whole && ["::", ";", " as "].iter().any(|next| behind.starts_with(next))
                })
            };
            let used = sources.iter().any(|source| source.code().any(|(_, line)| is_named(line)));
            assert!(used, "{room} names {name} and does not use it");
            let line = |line: &str| line.starts_with('|') && line.contains(&name);
            let why = ours.contains(&name.as_str()) || explained.lines().any(line);
            assert!(why, "docs/dependencies.md does not say why {name} is there");
        }
    }
}
