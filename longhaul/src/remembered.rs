//! Volumes that were mounted, by name: their URIs, where they were mounted, and with which options. No secret is kept, only
//! the names of files that hold one.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::durable::{lock_file, make_directories};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;
use crate::regular_file::read_regular;
use crate::state;
use crate::uri::{Location, ScsiPlace, Uri};

/// Names another directory, as tests need.
pub const OVERRIDE: &str = "LONGHAUL_CONFIG_DIR";

const FILE: &str = "volumes.toml";

/// Whoever changes the file has locked this one.
const LOCK: &str = "volumes.lock";

/// The longest name. The path of its file must fit into what the kernel keeps of one.
const NAME_MAX: usize = 48;

/// What the file begins with.
const HEAD: &str =
    "# Volumes that `longhaul mount` has mounted; `longhaul volumes` lists them.\n\n";

/// Options of one occasion, and whether they have a value. They are not remembered.
const ONCE: &[(&str, bool)] = &[
    ("--mkfs", true),
    ("--size", true),
    ("--name", true),
    ("--fuse", true),
    ("--serve-at", true),
    ("--foreground", false),
    ("--device", false),
    ("--take-over", false),
    ("--force", false),
    ("--persist", false),
    ("--kept", true),
];

/// Options whose value is a path.
const PATHS: &[&str] = &[
    "--passphrase-file",
    "--key-file",
    "--identity",
    "--site-key",
    "--chap-secret-file",
    "--chap-mutual-secret-file",
    "--replay-log",
    // With what may follow the path.
    "--journal",
];

/// The option that is remembered only if it was given with the URI.
const READ_ONLY: &str = "--read-only";

/// The option that has no use beside it.
const JOURNAL: &str = "--journal";

/// What is remembered of a volume.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Remembered {
    /// Its URI.
    pub uri: String,
    /// Where it was mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// Options of `longhaul mount`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    #[serde(default)]
    volumes: BTreeMap<String, Remembered>,
}

/// Checks a name: it becomes that of files.
pub fn name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_fit = !text.is_empty() && text.len() <= NAME_MAX && text.chars().all(is_plain);
    match is_fit && !text.starts_with(['.', '-']) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "a name has 1 to {NAME_MAX} letters, digits, dots, hyphens and underscores, and begins with no dot or hyphen"
        )),
    }
}

/// The name of a volume that was given none.
pub fn name_of(uri: &Uri) -> String {
    let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let given = match uri.location() {
        Location::Process(_) => "memory".to_owned(),
        Location::Several(compound) => compound.kind.name().to_owned(),
        Location::Drive(disc) => disc.map_or_else(|| "cdrom".to_owned(), stem),
        Location::Changer(directory) => stem(directory),
        Location::Passed(ScsiPlace::Device(path)) => stem(path),
        Location::Tape(tape) => tape.map_or_else(|| "tape".to_owned(), stem),
        Location::File(path) | Location::Device(path) => stem(path),
        Location::Unit(unit) | Location::Passed(ScsiPlace::Unit(unit)) => {
            let target = unit.target.to_string();
            let last = target.rsplit(':').next().unwrap_or_default().to_owned();
            if unit.lun == 0 { last } else { format!("{last}-{}", unit.lun) }
        }
        Location::Served(volume) | Location::Passed(ScsiPlace::Served(volume)) => {
            volume.volume.clone()
        }
        Location::Image(image) => image.image.clone(),
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let mut plain: String = given.chars().map(plain).skip_while(|c| ".-".contains(*c)).collect();
    // A number may follow.
    plain.truncate(NAME_MAX - 8);
    if plain.is_empty() { "volume".to_owned() } else { plain }
}

/// The name under which this volume is remembered, or one that no other has.
pub fn name_for(uri: &Uri) -> Outcome<String> {
    name_among(&all()?, &name_of(uri), &absolute(uri)?.to_string())
}

/// The same among the `known`: `name` itself if it has that, so that what was kept under another one is found again.
fn name_among(known: &BTreeMap<String, Remembered>, name: &str, uri: &str) -> Outcome<String> {
    let is_its = |name: &str| known.get(name).is_some_and(|volume| volume.uri == uri);
    let given = known.keys().find(|name| is_its(name)).filter(|_| !is_its(name));
    if let Some(given) = given {
        return Ok(given.clone());
    }
    let numbered = (2_u32..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    let is_free = |name: &String| !known.contains_key(name) || is_its(name);
    names.find(is_free).ok_or_else(|| Failure::new(format!("all names like `{name}` are taken")))
}

/// The URI, from any directory.
fn absolute(uri: &Uri) -> Outcome<Uri> {
    let here =
        std::env::current_dir().or_fail(|| "cannot tell the working directory".to_owned())?;
    Ok(uri.clone().resolved_in(&here))
}

/// All of them.
pub fn all() -> Outcome<BTreeMap<String, Remembered>> {
    match path() {
        Some(path) => Ok(read(&path)?.volumes),
        None => Ok(BTreeMap::new()),
    }
}

/// The one with this name.
pub fn find(name: &str) -> Outcome<Remembered> {
    let known = all()?;
    known.get(name).cloned().ok_or_else(|| {
        let names: Vec<_> = known.keys().map(String::as_str).collect();
        let hint = match names.is_empty() {
            true => {
                "no volume is remembered yet: mount one by its URI, such as iscsi://HOST/IQN/LUN"
                    .to_owned()
            }
            false => format!("these are remembered: {}", names.join(", ")),
        };
        Failure::usage(format!("`{name}` is neither a URI nor the name of a volume")).hint(hint)
    })
}

impl Remembered {
    /// What to remember: `arguments` are those of the program, of which `given` is the volume.
    pub fn new(
        uri: &Uri,
        dir: Option<&Path>,
        arguments: &[OsString],
        given: &[&OsStr],
    ) -> Outcome<Self> {
        let here =
            std::env::current_dir().or_fail(|| "cannot tell the working directory".to_owned())?;
        let uri = absolute(uri)?.to_string();
        let options = options(arguments, given, &here);
        Ok(Self { uri, dir: dir.map(Path::to_owned), options })
    }

    /// A volume that this machine was let at, and has not mounted yet, with a directory and options for later.
    pub fn of(uri: &Uri, dir: Option<PathBuf>, options: Vec<String>) -> Self {
        Self { uri: uri.to_string(), dir, options }
    }

    /// Whether it is mounted read-only whenever it is called by its name.
    pub fn is_read_only(&self) -> bool {
        self.options.iter().any(|option| option == READ_ONLY)
    }

    /// The value of an option that is remembered with it.
    pub fn value_of(&self, option: &str) -> Option<&str> {
        let mut words = self.options.iter();
        while let Some(word) = words.next() {
            match word.split_once('=') {
                Some((key, value)) if key == option => return Some(value),
                None if word == option => return words.next().map(String::as_str),
                _ => {}
            }
        }
        None
    }

    /// The same, but not read-only, and with the journal of what was `known` before, which was left out.
    #[must_use]
    pub fn writable(mut self, known: &Self) -> Self {
        let count = self.options.len();
        self.options.retain(|option| option != READ_ONLY);
        if self.options.len() < count
            && let Some(journal) = known.value_of(JOURNAL)
        {
            self.options.extend([JOURNAL, journal].map(str::to_owned));
        }
        self
    }

    /// Remembers it under this name, instead of what had it before. Of the same volume the directory stays, if there is no
    /// other.
    pub fn keep(self, name: &str) -> Outcome {
        let Some(path) = path() else { return Ok(()) };
        change(&path, |volumes| {
            let mut kept = self.clone();
            let before = volumes.get(name).filter(|before| before.uri == kept.uri);
            if let Some(before) = before.filter(|_| kept.dir.is_none()) {
                kept.dir.clone_from(&before.dir);
            }
            volumes.insert(name.to_owned(), kept);
            Ok(())
        })
    }

    /// Remembers it under a name that no other volume has, unless it is remembered already: that name.
    pub fn keep_if_new(self, uri: &Uri) -> Outcome<String> {
        let name = name_of(uri);
        let Some(path) = path() else { return Ok(name) };
        change(&path, |volumes| {
            let name = name_among(volumes, &name, &self.uri)?;
            volumes.entry(name.clone()).or_insert_with(|| self.clone());
            Ok(name)
        })
    }

    /// The command line in which the URI, and what is remembered with it, stand in the place of the name, which goes on to be
    /// that of its journal and its log. An option that is given again counts instead of the one that is remembered.
    pub fn expand(&self, arguments: &[OsString], name: &str, dir: Option<&Path>) -> Vec<OsString> {
        let mut expanded: Vec<OsString> = Vec::new();
        let mut found = false;
        let is_name =
            |word: &OsString| word == "--name" || word.to_string_lossy().starts_with("--name=");
        let is_named = arguments.iter().any(is_name);
        for word in arguments {
            if !found && word == name && expanded.iter().any(|word| word == "mount") {
                found = true;
                expanded.push(self.uri.clone().into());
                expanded.extend(dir.map(|dir| dir.as_os_str().to_owned()));
                if !is_named {
                    expanded.extend(["--name", name].map(OsString::from));
                }
                expanded.extend(self.options_beside(arguments).map(OsString::from));
            } else {
                expanded.push(word.clone());
            }
        }
        expanded
    }

    fn options_beside<'a>(&'a self, arguments: &'a [OsString]) -> impl Iterator<Item = &'a str> {
        let key = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
        let given: Vec<_> = arguments.iter().map(|word| key(&word.to_string_lossy())).collect();
        let reads = given.iter().any(|option| option == READ_ONLY);
        let mut skips = false;
        self.options.iter().map(String::as_str).filter(move |word| {
            if word.starts_with('-') {
                let option = key(word);
                skips = given.contains(&option) || (reads && option == JOURNAL);
            }
            !skips
        })
    }
}

/// The options among `arguments` that are worth to be remembered; paths are made absolute.
fn options(arguments: &[OsString], given: &[&OsStr], here: &Path) -> Vec<String> {
    let words = arguments.iter().skip_while(|word| *word != "mount").skip(1);
    let reads = arguments.iter().any(|word| word == READ_ONLY);
    let mut options = Vec::new();
    let (mut skips, mut path_of) = (false, None);
    for word in words.filter(|word| !given.contains(&word.as_os_str()) && *word != "--") {
        let text = word.to_string_lossy().into_owned();
        let (key, value) =
            text.split_once('=').map_or((&*text, None), |(key, value)| (key, Some(value)));
        if std::mem::take(&mut skips) {
            continue;
        }
        let absolute = |key: &str, path: &str| match (key, path) {
            // It stands for no journal.
            ("--journal", "none") => path.to_owned(),
            _ => here.join(path).to_string_lossy().into_owned(),
        };
        if let Some(key) = path_of.take() {
            options.push(absolute(key, &text));
        } else if let Some((_, has_value)) = ONCE.iter().find(|(once, _)| *once == key) {
            skips = *has_value && value.is_none();
        } else if reads && is_for_the_file_system(key) {
            skips = value.is_none() && (key == "-o" || key == "--options");
        } else if let Some(known) = PATHS.iter().find(|path| **path == key) {
            path_of = value.is_none().then_some(*known);
            let with = |value| format!("{key}={}", absolute(key, value));
            options.push(value.map_or_else(|| text.clone(), with));
        } else {
            options.push(text);
        }
    }
    options
}

/// Whether it is what the file system is mounted with. What it takes to be read, such as `noload`, may keep it from being mounted to
/// be written.
fn is_for_the_file_system(key: &str) -> bool {
    key == "--options" || key.starts_with("-o")
}

/// Changes the file at `path` beside other processes that do the same. Where that changes nothing the directory need not be one
/// that can be written to.
fn change<T>(
    path: &Path,
    change: impl Fn(&mut BTreeMap<String, Remembered>) -> Outcome<T>,
) -> Outcome<T> {
    let before = read(path)?;
    let mut contents = before.clone();
    let done = change(&mut contents.volumes)?;
    if contents == before {
        return Ok(done);
    }
    let what = || format!("cannot remember the volume in {}", path.shown());
    if let Some(dir) = path.parent() {
        make_directories(dir, 0o755).or_fail(what)?;
    }
    let lock = path.with_file_name(LOCK);
    let _lock = lock_file(&lock).or_fail(|| format!("cannot lock {}", lock.shown()))?;
    let mut contents = read(path)?;
    let done = change(&mut contents.volumes)?;
    let text = toml::to_string(&contents).or_fail(what)?;
    state::replace(path, format!("{HEAD}{text}").as_bytes()).or_fail(what)?;
    Ok(done)
}

fn read(path: &Path) -> Outcome<Contents> {
    let what = || format!("cannot read {}", path.shown());
    match read_regular(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Contents::default()),
        read => toml::from_str(&String::from_utf8_lossy(&read.or_fail(what)?)).or_fail(what),
    }
}

/// The file: root's is the system's. None for someone without a home.
fn path() -> Option<PathBuf> {
    let variable =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(dir) = variable(OVERRIDE) {
        return Some(dir.join(FILE));
    }
    if rustix::process::geteuid().is_root() {
        return Some(Path::new("/etc/longhaul").join(FILE));
    }
    let config = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
    config.map(|config| config.join("longhaul").join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn volume_has_the_last_part_of_its_uri_for_a_name() {
        for (uri, expected) in [
            ("iscsi://server/iqn.2026-11.dev.longhaul:backup/0", "backup"),
            ("iscsi://server/iqn.2026-11.dev.longhaul:backup/3", "backup-3"),
            ("file:/srv/my disk.img", "my-disk"),
            ("file:/srv/.hidden", "hidden"),
            ("memory:1M", "memory"),
        ] {
            assert_eq!(name_of(&uri.parse().unwrap()), expected);
            name(expected).unwrap();
        }
        for wrong in ["", ".", "-a", "a/b", "a b", &"a".repeat(49)] {
            name(wrong).unwrap_err();
        }
    }

    /// Each reads the file, changes it and replaces it.
    #[test]
    fn volumes_that_are_remembered_at_once_are_all_remembered() {
        const EACH: usize = 4;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/volumes.toml");
        let uri: Uri = "file:/a".parse().unwrap();
        let volume = Remembered::of(&uri, None, Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..EACH {
                let (path, volume) = (&path, &volume);
                scope.spawn(move || {
                    for turn in 0..EACH {
                        let name = format!("{thread}-{turn}");
                        let kept = change(path, |volumes| {
                            volumes.insert(name.clone(), volume.clone());
                            Ok(())
                        });
                        kept.unwrap();
                    }
                });
            }
        });
        assert_eq!(read(&path).unwrap().volumes.len(), EACH * EACH);
    }

    #[test]
    fn file_that_stays_as_it_is_is_not_locked() {
        let dir = tempfile::tempdir().unwrap();
        change(&dir.path().join(FILE), |_| Ok(())).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn options_of_one_occasion_are_not_remembered() {
        let arguments = words(
            "longhaul --log debug mount file:a /mnt --mkfs ext4 --read-only --passphrase-file p --size=1G --key-file=k --window 8M --journal j,size=64M",
        );
        let given = ["file:a", "/mnt"].map(OsStr::new);
        let none = words("longhaul mount file:a /mnt --journal none");
        assert_eq!(options(&none, &given, Path::new("/here")), ["--journal", "none"]);
        for given_as in ["-o noload", "-onoload", "--options noload", "--options=noload"] {
            let read = words(&format!("longhaul mount b --read-only {given_as} --window 8M"));
            let kept = options(&read, &[OsStr::new("b")], Path::new("/here"));
            assert_eq!(kept, ["--read-only", "--window", "8M"], "{given_as}");
        }
        let written = words("longhaul mount b -o noatime");
        assert_eq!(options(&written, &[OsStr::new("b")], Path::new("/here")), ["-o", "noatime"]);
        let options = options(&arguments, &given, Path::new("/here"));
        let expected = "--read-only --passphrase-file /here/p --key-file=/here/k --window 8M --journal /here/j,size=64M";
        assert_eq!(options.join(" "), expected);
    }

    #[test]
    fn name_becomes_what_is_remembered_and_options_given_again_count() {
        let known = Remembered {
            uri: "file:/a".to_owned(),
            dir: None,
            options: ["--read-only", "--window", "8M"].map(str::to_owned).to_vec(),
        };
        let expand = |text: &str, dir| {
            let words = known.expand(&words(text), "a", dir);
            words.join(OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(
            expand("longhaul mount a /mnt", None),
            "longhaul mount file:/a --name a --read-only --window 8M /mnt"
        );
        let dir = Some(Path::new("/mnt"));
        assert_eq!(
            expand("longhaul mount a", dir),
            "longhaul mount file:/a /mnt --name a --read-only --window 8M"
        );
        assert_eq!(
            expand("longhaul mount --window=1M a --name b", dir),
            "longhaul mount --window=1M file:/a /mnt --read-only --name b"
        );
    }

    /// What it holds must be found when the volume is written to again.
    #[test]
    fn journal_is_left_out_where_the_volume_is_read_once_and_stays_remembered() {
        let of = |options: &str| Remembered {
            uri: "file:/a".to_owned(),
            dir: None,
            options: options.split(' ').map(str::to_owned).collect(),
        };
        let known = of("--journal /j,size=64M --window 8M");
        let line = words("longhaul mount a /mnt --read-only");
        let expanded = known.expand(&line, "a", None).join(OsStr::new(" "));
        assert_eq!(expanded, "longhaul mount file:/a --name a --window 8M /mnt --read-only");
        let read = of("--window 8M --read-only").writable(&known);
        assert_eq!(read.options.join(" "), "--window 8M --journal /j,size=64M");
        let written = of("--window 8M").writable(&known);
        assert_eq!(
            written.options.join(" "),
            "--window 8M",
            "it was left out by whoever mounted it"
        );
    }
    #[test]
    fn volume_keeps_the_name_under_which_it_is_remembered() {
        let remembered =
            |uri: &str| Remembered { uri: uri.to_owned(), dir: None, options: Vec::new() };
        let known = |names: &[(&str, &str)]| -> BTreeMap<String, Remembered> {
            names.iter().map(|(name, uri)| ((*name).to_owned(), remembered(uri))).collect()
        };
        for (names, expected) in [
            (&[][..], "disk"),
            (&[("disk", "file:/b")], "disk-2"),
            (&[("mine", "file:/a")], "mine"),
            (&[("disk", "file:/a"), ("a-copy", "file:/a")], "disk"),
        ] {
            assert_eq!(name_among(&known(names), "disk", "file:/a").unwrap(), expected);
        }
    }
}
