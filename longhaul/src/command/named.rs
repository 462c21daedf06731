//! Volumes that are called by the name that `mount` remembers.
//!
//! One rule holds for all commands but `mount`, which takes no paths: a word with a scheme is a URI, and one without is a
//! name. Where a file of this directory has that name too, neither is taken. What a copy goes to is never named, since a file
//! would be made otherwise.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command};

use crate::remembered::{self, Remembered};
use crate::state_dir::state_dir;
use crate::uri::{Location, Uri, UriError};

/// Options of `mount` that say who logs in, and to whom.
const LOGIN: &[&str] = &[
    "--initiator",
    "--chap-user",
    "--chap-secret-file",
    "--chap-secret-env",
    "--chap-mutual-user",
    "--chap-mutual-secret-file",
    "--chap-mutual-secret-env",
    "--chap-weak",
    "--identity",
    "--site-key",
    "--pin",
    "--protection",
    "--insecure",
];

/// Options of `mount` that open an encrypted volume.
const SECRETS: &[&str] = &["--passphrase-file", "--passphrase-env", "--key-file"];

/// Options of `mount` that narrow what is done to a volume.
const NARROWING: &[&str] = &["--encrypted", "--read-only"];

/// Commands to which a pass-phrase means more than to open the volume.
const ASK: &[&str] = &["key", "copy"];

/// The command that opens an encrypted volume only to show its chain.
const INFO: &str = "info";

/// The command behind whose volume stands another command, and that.
const ADMIN: &str = "admin";

/// The arguments that may be a name.
const NAMED: &[&str] = &["uri", "source", "place"];

/// A command of which another argument may be a name, and that.
const JOURNAL: (&str, &str) = ("journal", "file");

/// Reads the volume of a command that takes no paths.
pub(super) fn volume(text: &str) -> Result<Uri, String> {
    match text.parse() {
        Ok(uri) => Ok(uri),
        Err(why @ UriError::NoScheme(_)) => named(text)?.ok_or_else(|| unknown(&why)),
        Err(why) => Err(why.to_string()),
    }
}

/// Reads the optical drive of a server.
pub(super) fn optical_drive(text: &str) -> Result<Uri, String> {
    unit(text, |path| {
        format!(
            "`longhaul serve --volume NAME=cdrom:{path}` has it in a drive, and prints the URI of that"
        )
    })
}

/// Reads the tape drive of a server.
pub(super) fn tape_drive(text: &str) -> Result<Uri, String> {
    unit(text, |path| {
        format!(
            "`longhaul tape info {path}` and `tape export` look at a tape without a drive; `longhaul serve --volume NAME=tape:{path}` has \
             it in one, and prints the URI of that"
        )
    })
}

/// Reads the unit of a server. Of the file of a medium it is told how that is used.
fn unit(text: &str, how: impl FnOnce(&str) -> String) -> Result<Uri, String> {
    match text.parse::<Uri>() {
        Err(UriError::NoScheme(_)) if is_file(Path::new(text)) && named(text)?.is_none() => {
            Err(format!("`{text}` is a file, and no drive of a server: {}", how(text)))
        }
        _ => volume(text),
    }
}

/// The volume of this name; `None` if none has it. Refused where a file has it too.
pub(super) fn named(word: &str) -> Result<Option<Uri>, String> {
    let is_file = is_file(Path::new(word));
    let known = match find(word) {
        // A file is there, whatever may be known of volumes.
        Err(_) if is_file => return Ok(None),
        found => found?,
    };
    let Some(known) = known else { return Ok(None) };
    match is_file {
        true => Err(ambiguous(word, "a file of this directory", &known)),
        false => uri(word, &known).map(Some),
    }
}

/// Refuses the name of a volume for what would be a file. If the names cannot be read all are taken for files, as they are by
/// other programs.
pub(super) fn refuse_as_file(word: &str) -> Result<(), String> {
    match find(word).unwrap_or_default() {
        Some(known) => Err(ambiguous(word, "a file to be made or written here", &known)),
        None => Ok(()),
    }
}

/// Reads the path of a journal, or the name of the volume that it is for.
pub(super) fn journal(text: &str) -> Result<PathBuf, String> {
    let is_file = is_file(Path::new(text));
    let known = match find(text) {
        Err(_) if is_file => None,
        found => found?,
    };
    let Some(known) = known else { return Ok(text.into()) };
    if is_file {
        return Err(ambiguous(text, "a file of this directory", &known));
    }
    let given = known.value_of("--journal").and_then(|value| value.split(',').next());
    // It stands for no journal; an earlier mount may have had the one that is made by default.
    let given = given.filter(|path| *path != "none");
    let default = || Some(state_dir()?.join(format!("{text}.journal")));
    let path = given.map(PathBuf::from).or_else(default);
    path.ok_or_else(|| format!("there is no directory for the journal of `{text}`"))
}

fn find(word: &str) -> Result<Option<Remembered>, String> {
    if remembered::name(word).is_err() {
        return Ok(None);
    }
    let mut all = remembered::all().map_err(|why| why.to_string())?;
    Ok(all.remove(word))
}

fn uri(word: &str, known: &Remembered) -> Result<Uri, String> {
    known.uri.parse().map_err(|why| format!("`{word}` is remembered as {}: {why}", known.uri))
}

fn ambiguous(word: &str, file: &str, known: &Remembered) -> String {
    let volume = &known.uri;
    format!(
        "`{word}` could be {file} or the volume {volume}: write file:{word} for the file, or the URI of the volume"
    )
}

fn unknown(why: &UriError) -> String {
    let names: Vec<_> = remembered::all().unwrap_or_default().into_keys().collect();
    match names.is_empty() {
        true => why.to_string(),
        false => format!("{why}; these volumes are remembered: {}", names.join(", ")),
    }
}

/// What could be a volume.
fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.is_dir())
}

/// The command line with how to log in to the volume, and to open it, where it is called by a name; `None` if it is not.
pub(crate) fn with_remembered_options(
    command: impl FnOnce() -> Command,
    arguments: &[OsString],
) -> Option<Vec<OsString>> {
    // Whoever needs them has said what is wrong with them.
    let mut all = remembered::all().ok()?;
    // Which is so of few command lines: no other is parsed once more.
    let is_named = |word: &OsString| word.to_str().is_some_and(|word| all.contains_key(word));
    if !arguments.iter().any(is_named) {
        return None;
    }
    let command = command();
    let matches = command.clone().try_get_matches_from(arguments).ok()?;
    let (mut leaf, mut matches) = (&command, &matches);
    let (mut asks, mut is_admin, mut named) = (false, false, NAMED.to_vec());
    while let Some((name, below)) = matches.subcommand() {
        let Some(found) = leaf.find_subcommand(name) else { break };
        asks |= ASK.contains(&name) || (name == INFO && !is_set(below, "chain"));
        named.extend((name == JOURNAL.0).then_some(JOURNAL.1));
        (leaf, matches) = (found, below);
        is_admin = name == ADMIN;
        if is_admin {
            break;
        }
    }
    let mut words = named.iter().filter_map(|id| word(matches, id));
    let known = words.find_map(|word| all.remove(&word))?;
    let opens: &[&str] = if asks { &[] } else { SECRETS };
    // They would be used with the target of the destination too, which may be anybody's.
    let is_sent_elsewhere = word(matches, "destination").is_some_and(|to| is_of_a_target(&to));
    let login: &[&str] = if is_sent_elsewhere { &[] } else { LOGIN };
    Some(with(arguments, &known, is_admin, |option| {
        let is_wanted = [login, opens, NARROWING].iter().any(|some| some.contains(&option));
        let long = option.strip_prefix("--");
        is_wanted && leaf.get_arguments().any(|argument| argument.get_long() == long)
    }))
}

/// Whether a part of it is behind a server to which one logs in.
fn is_of_a_target(text: &str) -> bool {
    let uri: Result<Uri, _> = text.parse();
    let is_remote = |leaf: &Uri| matches!(leaf.location(), Location::Unit(_) | Location::Served(_));
    uri.is_ok_and(|uri| uri.leaves().iter().any(|(leaf, _)| is_remote(leaf)))
}

fn is_set(matches: &ArgMatches, flag: &str) -> bool {
    matches.try_get_one(flag).ok().flatten() == Some(&true)
}

/// What was given for an argument.
fn word(matches: &ArgMatches, id: &str) -> Option<String> {
    let mut given = matches.try_get_raw(id).ok()??;
    given.next()?.to_str().map(str::to_owned)
}

/// The command line with those remembered options that are wanted and not given.
fn with(
    arguments: &[OsString],
    known: &Remembered,
    is_admin: bool,
    is_wanted: impl Fn(&str) -> bool,
) -> Vec<OsString> {
    let key = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
    let given: Vec<_> = arguments.iter().map(|word| key(&word.to_string_lossy())).collect();
    let is_given = |option: &str| given.iter().any(|given| given == option);
    let opens = SECRETS.iter().any(|secret| is_given(secret)) || is_given("--raw");
    let mut taken = false;
    let options = known.options.iter().filter(|word| {
        if word.starts_with('-') {
            let option = key(word);
            let is_closed = option == "--encrypted" || SECRETS.contains(&&*option);
            taken = is_wanted(&option) && !is_given(&option) && !(opens && is_closed);
        }
        taken
    });
    let mut words = arguments.to_vec();
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    // Behind the other command they would be its options.
    let behind_admin = words.iter().position(|word| word == ADMIN).map(|at| at + 1);
    let at = behind_admin.filter(|_| is_admin).unwrap_or(end);
    words.splice(at..at, options.map(OsString::from));
    words
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn options_are_added_unless_they_are_given() {
        let options = "--read-only --passphrase-file /p --window 8M --pin=K --chap-user me";
        let uri = "file:/a".parse().unwrap();
        let options = options.split(' ').map(str::to_owned).collect();
        let known = Remembered::of(&uri, None, options);
        let all = |option: &str| option != "--window";
        for (line, expected) in [
            ("info a", "info a --read-only --passphrase-file /p --pin=K --chap-user me"),
            ("info a --pin L", "info a --pin L --read-only --passphrase-file /p --chap-user me"),
            ("info a --key-file k", "info a --key-file k --read-only --pin=K --chap-user me"),
            ("attach a --raw -- b", "attach a --raw --read-only --pin=K --chap-user me -- b"),
            (
                "admin a clients",
                "admin --read-only --passphrase-file /p --pin=K --chap-user me a clients",
            ),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let made = with(&words, &known, line.starts_with(ADMIN), all).join(OsStr::new(" "));
            assert_eq!(made.to_str().unwrap(), expected);
        }
    }
}
