//! A copy to and from an encrypted volume beside a plain one: the same image, the same target, the same client.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::bench::longhaul;
use crate::rounds::{by_turns, median_of};
use crate::running::Job;
use crate::{Bench, Failure};

/// How much is copied each way.
const IMAGE: usize = 1 << 30;

/// Bytes a second.
pub(crate) struct Copies {
    pub(crate) plain_in: f64,
    pub(crate) encrypted_in: f64,
    pub(crate) plain_out: f64,
    pub(crate) encrypted_out: f64,
}

/// Copies an image in and out, plain and encrypted by turns; medians of the rounds.
pub(crate) fn encrypted_against_plain(options: &Bench) -> Result<Option<Copies>, Failure> {
    if !"copy".contains(&options.only) {
        return Ok(None);
    }
    let scratch = tempfile::tempdir_in("/dev/shm")?;
    let (image, back) = (scratch.path().join("image"), scratch.path().join("back"));
    let secret = scratch.path().join("pass-phrase");
    std::fs::write(&secret, "bench")?;
    std::fs::write(&image, noise(IMAGE))?;
    let client = Client { program: &options.longhaul, secret: &secret };

    let volume = format!("memory:{}M", (IMAGE >> 20) + 64);
    let plain = longhaul(options, &volume)?;
    let encrypted = longhaul(options, &volume)?;
    client.init(&encrypted.uri)?;

    let (from, to) = (path(&image)?, path(&back)?);
    let rounds = by_turns(
        options.rounds,
        [
            &mut || client.copy(from, &plain.uri, false, &back),
            &mut || client.copy(from, &encrypted.uri, true, &back),
            &mut || client.copy(&plain.uri, to, false, &back),
            &mut || client.copy(&encrypted.uri, to, true, &back),
        ],
    )?;
    let [plain_in, encrypted_in, plain_out, encrypted_out] =
        rounds.map(|round| median_of(&round, |rate| *rate));
    Ok(Some(Copies { plain_in, encrypted_in, plain_out, encrypted_out }))
}

struct Client<'a> {
    program: &'a Path,
    secret: &'a Path,
}

impl Client<'_> {
    fn init(&self, uri: &str) -> Result<(), Failure> {
        let mut command = Command::new(self.program);
        command.args(["key", "init", uri, "--passphrase-file"]).arg(self.secret);
        // Deriving a key takes as long as its owner wishes and says nothing of the copy.
        command.args(["--pbkdf-memory", "32M", "--pbkdf-iterations", "4"]);
        done(&mut command)
    }

    /// Copies and says at how many bytes a second, the start of the program included.
    fn copy(&self, from: &str, to: &str, encrypted: bool, back: &Path) -> Result<f64, Failure> {
        let _ = std::fs::remove_file(back);
        let mut command = Command::new(self.program);
        command.args(["copy", from, to]);
        if encrypted {
            command.arg("--passphrase-file").arg(self.secret);
        }
        let start = Instant::now();
        done(&mut command)?;
        Ok(IMAGE as f64 / start.elapsed().as_secs_f64())
    }
}

fn done(command: &mut Command) -> Result<(), Failure> {
    Ok(Job::start(command.stdout(Stdio::null()))?.succeed()?)
}

fn path(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| "a path that is no text".into())
}

/// Bytes without runs of zeroes, so that a sparse copy copies all of them.
fn noise(len: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes
}
