//! Secrets: from a prompt, a file or an environment variable, never from an argument, where every
//! process of the machine could read them.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use clap::Args;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::{Zeroize, Zeroizing};

use crate::failure::{Failure, OrFail, Outcome, print_error};
use crate::printable::Shown as _;

/// The longest pass-phrase taken, which is cryptsetup's limit for one that is typed.
const PASSPHRASE_MAX: usize = 512;

/// The longest key file taken, which is cryptsetup's default limit.
const KEY_FILE_MAX: usize = 8 << 20;

/// Bytes that are wiped when dropped and never shown.
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes `bytes` over.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        keep(&bytes);
        Self(Zeroizing::new(bytes))
    }

    /// The bytes themselves.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

/// Keeps a secret from being paged out. A machine that allows no locked memory is used all the same.
pub(crate) fn keep(secret: &[u8]) {
    let _ = host::memory::keep(secret);
}

impl Clone for Secret {
    fn clone(&self) -> Self {
        Self::new(self.0.to_vec())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The rights of others on a file that holds a secret.
const OTHERS: u32 = 0o007;
const GROUP: u32 = 0o070;

/// Refuses a file that holds a secret if others than its owner can read it. Only where root has a file, and this
/// program reads it by its group, as services do, has the group a right to.
pub(crate) fn refuse_shared(found: &Metadata, path: &Path) -> Outcome {
    let lent = found.uid() == 0 && !rustix::process::geteuid().is_root();
    let shared = if lent { OTHERS } else { OTHERS | GROUP };
    if !found.is_file() || found.mode() & shared == 0 {
        return Ok(());
    }
    let path = path.shown();
    let what = format!("cannot use {path}: others than its owner may read it");
    Err(Failure::new(what).hint(format!("if nobody has read it: chmod 600 {path}")))
}

/// Where a secret comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A person types it at the terminal.
    Prompt,
    /// The first line of a file, without its line end: what `cryptsetup` takes from its standard
    /// input. What follows that line is ignored.
    File(PathBuf),
    /// The value of an environment variable, as it is.
    Env(String),
    /// The whole content of a file, line ends included, as `cryptsetup --key-file` takes it.
    KeyFile(PathBuf),
}

impl Source {
    /// Reads a secret that exists already; `what` names it in the prompt. It blocks.
    pub fn read(&self, what: &str) -> Outcome<Secret> {
        match self {
            Self::Prompt => prompt(what),
            Self::File(path) => first_line(read_file(path, KEY_FILE_MAX)?, path),
            Self::Env(name) => from_env(name),
            Self::KeyFile(path) => {
                let content = read_file(path, KEY_FILE_MAX)?;
                refuse_empty(content, || format!("the key file {}", path.shown()))
            }
        }
    }

    /// Reads a secret that is about to be set: what is typed must be typed twice. It blocks.
    pub fn read_new(&self, what: &str) -> Outcome<Secret> {
        let secret = self.read(what)?;
        if *self == Self::Prompt && prompt(&format!("{what} again"))?.0 != secret.0 {
            return Err(Failure::new(format!("{what}: the two do not match")));
        }
        Ok(secret)
    }
}

/// The file of a secret, if others than its owner may read it.
#[must_use]
pub fn others_read(source: &Source) -> Option<&Path> {
    let (Source::File(path) | Source::KeyFile(path)) = source else { return None };
    let found = path.metadata().ok().filter(Metadata::is_file)?;
    (found.mode() & 0o044 != 0).then_some(path)
}

/// Where the pass-phrase that opens a volume comes from.
#[derive(Args, Clone, Debug, Default)]
#[group(multiple = false)]
pub struct SecretArgs {
    /// Take the pass-phrase from the first line of this file
    #[arg(long, value_name = "PATH")]
    pub passphrase_file: Option<PathBuf>,
    /// Take the pass-phrase from this environment variable
    #[arg(long, value_name = "VAR")]
    pub passphrase_env: Option<String>,
    /// Use the whole content of this file as the key
    #[arg(long, value_name = "PATH")]
    pub key_file: Option<PathBuf>,
}

impl SecretArgs {
    /// The source these options name; the terminal if they name none.
    #[must_use]
    pub fn source(&self) -> Source {
        source(&self.passphrase_file, &self.passphrase_env, &self.key_file)
    }

    /// Whether an option names a source, so that nobody has to be asked.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.source() != Source::Prompt
    }
}

/// Options as those of [`SecretArgs`], for one of several secrets of a command.
macro_rules! secret_args {
    ($(#[$doc:meta])* $name:ident, $file:ident, $env:ident, $key_file:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Args, Clone, Debug, Default)]
        #[group(multiple = false)]
        pub struct $name {
            /// The file whose first line it is.
            #[arg(long, value_name = "PATH", help = concat!("Take the ", $what, " from the first line of this file"))]
            pub $file: Option<PathBuf>,
            /// The environment variable that holds it.
            #[arg(long, value_name = "VAR", help = concat!("Take the ", $what, " from this environment variable"))]
            pub $env: Option<String>,
            /// The file whose content it is.
            #[arg(long, value_name = "PATH", help = concat!("Use the whole content of this file as the ", $what))]
            pub $key_file: Option<PathBuf>,
        }

        impl $name {
            /// The source these options name; the terminal if they name none.
            #[must_use]
            pub fn source(&self) -> Source {
                self.secret().source()
            }

            /// The same under the usual names.
            #[must_use]
            pub fn secret(&self) -> SecretArgs {
                SecretArgs {
                    passphrase_file: self.$file.clone(),
                    passphrase_env: self.$env.clone(),
                    key_file: self.$key_file.clone(),
                }
            }

            /// Whether an option names a source.
            #[must_use]
            pub fn is_given(&self) -> bool {
                self.secret().is_given()
            }
        }
    };
}

secret_args!(
    /// Where a further or a changed pass-phrase comes from.
    NewSecretArgs, new_passphrase_file, new_passphrase_env, new_key_file, "new pass-phrase"
);
secret_args!(
    /// Where the pass-phrase of the source of a copy comes from.
    SourceSecretArgs,
    source_passphrase_file,
    source_passphrase_env,
    source_key_file,
    "source's pass-phrase"
);
secret_args!(
    /// Where the pass-phrase of the destination of a copy comes from.
    DestinationSecretArgs,
    destination_passphrase_file,
    destination_passphrase_env,
    destination_key_file,
    "destination's pass-phrase"
);

fn source(file: &Option<PathBuf>, env: &Option<String>, key_file: &Option<PathBuf>) -> Source {
    match (file, env, key_file) {
        (Some(path), _, _) => Source::File(path.clone()),
        (_, Some(name), _) => Source::Env(name.clone()),
        (_, _, Some(path)) => Source::KeyFile(path.clone()),
        (None, None, None) => Source::Prompt,
    }
}

/// How the terminal was when somebody was asked who has not answered yet.
static ASKED: Mutex<Option<Termios>> = Mutex::new(None);

/// Has the terminal show again what is typed, should the program end while it asks somebody.
pub fn restore_terminal() {
    let before = ASKED.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let (Some(before), Ok(terminal)) = (before, terminal()) {
        let _ = tcsetattr(terminal, OptionalActions::Now, &before);
        print_error(&"");
    }
}

/// The controlling terminal.
fn terminal() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/tty")
}

fn prompt(what: &str) -> Outcome<Secret> {
    let before = terminal().ok().and_then(|terminal| tcgetattr(terminal).ok());
    *ASKED.lock().unwrap_or_else(PoisonError::into_inner) = before;
    let answer = answer(what);
    ASKED.lock().unwrap_or_else(PoisonError::into_inner).take();
    answer
}

fn answer(what: &str) -> Outcome<Secret> {
    // Alone before its colon it is a sentence.
    let name = what.replacen("Pass-phrase", "pass-phrase", 1);
    let typed = rpassword::prompt_password(format!("{what}: ")).map_err(|why| {
        // ENXIO: the process has no controlling terminal (tty(4)).
        let none = why.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error());
        let why = if none { "there is no terminal".to_owned() } else { why.to_string() };
        Failure::new(format!("cannot ask for the {name}"))
            .because(why)
            .hint("give it with --passphrase-file, --passphrase-env or --key-file instead")
    })?;
    check_length(typed.into_bytes(), || format!("the {name}"))
}

fn from_env(name: &str) -> Outcome<Secret> {
    use std::os::unix::ffi::OsStringExt;
    let value = std::env::var_os(name)
        .ok_or_else(|| Failure::new(format!("the environment variable {name} is not set")))?;
    check_length(value.into_vec(), || format!("the environment variable {name}"))
}

fn first_line(mut content: Vec<u8>, path: &Path) -> Outcome<Secret> {
    if let Some(end) = content.iter().position(|&byte| byte == b'\n') {
        content[end..].zeroize();
        content.truncate(end);
    }
    if content.starts_with(b"\xef\xbb\xbf") {
        print_error(&format_args!(
            "longhaul: {} begins with a byte order mark, which counts as a part of the secret",
            path.shown()
        ));
    }
    if content.last() == Some(&b'\r') {
        print_error(&format_args!(
            "longhaul: the first line of {} ends with a carriage return, which counts as a part of the secret",
            path.shown()
        ));
    }
    check_length(content, || format!("the first line of {}", path.shown()))
}

/// Reads at most `most` bytes, into a buffer that never moves, so that no copy is left behind.
fn read_file(path: &Path, most: usize) -> Outcome<Vec<u8>> {
    let what = || format!("cannot read the secret in {}", path.shown());
    let file = File::open(path).or_fail(what)?;
    let len = file.metadata().or_fail(what)?.len();
    // A pipe says nothing of its length; a secret in one is short.
    let expected = usize::try_from(len).unwrap_or(most).clamp(4096, most) + 1;
    let mut content = Vec::with_capacity(expected);
    file.take(most as u64 + 1).read_to_end(&mut content).or_fail(what)?;
    if content.len() > most {
        content.zeroize();
        return Err(Failure::new(format!("{} is longer than {most} bytes", path.shown())));
    }
    Ok(content)
}

fn check_length(bytes: Vec<u8>, what: impl Fn() -> String) -> Outcome<Secret> {
    let secret = refuse_empty(bytes, &what)?;
    if secret.expose().len() > PASSPHRASE_MAX {
        return Err(Failure::new(format!("{} is longer than {PASSPHRASE_MAX} bytes", what()))
            .hint("use it as a key file instead: --key-file"));
    }
    Ok(secret)
}

/// An empty pass-phrase is always a mistake: a variable that is not filled, a file cut short.
fn refuse_empty(bytes: Vec<u8>, what: impl Fn() -> String) -> Outcome<Secret> {
    let secret = Secret::new(bytes);
    if secret.expose().is_empty() {
        return Err(Failure::new(format!("{} is empty", what())));
    }
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        file
    }

    #[test]
    fn a_passphrase_file_is_its_first_line() {
        for (content, expected) in
            [(&b"secret\n"[..], &b"secret"[..]), (b"secret", b"secret"), (b"a b\r\nrest", b"a b\r")]
        {
            let file = file(content);
            let source = Source::File(file.path().to_owned());
            assert_eq!(source.read("it").unwrap().expose(), expected);
            assert_eq!(source.read_new("it").unwrap().expose(), expected);
        }
    }

    #[test]
    fn a_key_file_is_all_of_it() {
        let file = file(b"\n\0\xff\n");
        let secret = Source::KeyFile(file.path().to_owned()).read("it").unwrap();
        assert_eq!(secret.expose(), b"\n\0\xff\n");
    }

    #[test]
    fn empty_absurd_and_missing_secrets_are_refused() {
        let (empty, line, long) = (file(b""), file(b"\nx"), file(&[b'x'; PASSPHRASE_MAX + 1]));
        for (source, why) in [
            (Source::File(empty.path().to_owned()), "is empty"),
            (Source::KeyFile(empty.path().to_owned()), "is empty"),
            (Source::File(line.path().to_owned()), "is empty"),
            (Source::File(long.path().to_owned()), "longer than"),
            (Source::Env("LONGHAUL_TEST_UNSET".into()), "is not set"),
            (Source::File("/nonexistent".into()), "cannot read"),
        ] {
            let failure = source.read("it").unwrap_err().to_string();
            assert!(failure.contains(why), "{source:?}: {failure}");
        }
    }

    #[test]
    fn a_secret_does_not_show_itself() {
        assert_eq!(format!("{:?}", Secret::new(b"hunter2".to_vec())), "Secret(..)");
    }
}
