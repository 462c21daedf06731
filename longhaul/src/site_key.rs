//! The site key of HyperSCSI, which is kept in a file: what all servers and clients of a site have in common.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use proto::hyperscsi::{SITE_KEY_LEN, SiteKey};
use zeroize::Zeroizing;

use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;
use crate::sealing::{default_dir, write_new};
use crate::secret::{keep, refuse_shared};

/// What a site key begins with.
const PREFIX: &str = "lhsite1-";

/// The most bytes of a file: a key, and remarks.
const FILE_MAX: u64 = 4096;

/// The site key of this user, if he names no other.
pub fn default_path() -> Outcome<PathBuf> {
    Ok(default_dir()?.join("site-key"))
}

/// Makes a site key in a new file, which only its owner may read.
pub fn create(path: &Path) -> Outcome {
    let mut key = Zeroizing::new([0; SITE_KEY_LEN]);
    getrandom::fill(&mut *key).or_fail(|| "the system gives no random numbers".to_owned())?;
    let mut text = Zeroizing::new(String::with_capacity(FILE_MAX as usize));
    text.push_str(
        "# A HyperSCSI site key. All servers and clients of the site have it, and nobody else:\n",
    );
    text.push_str(PREFIX);
    for byte in *key {
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\n');
    write_new(path, text.as_bytes())
        .or_fail(|| format!("cannot make the site key {}", path.shown()))
}

/// Reads a site key; a file that others may read holds none any more.
pub fn read(path: &Path) -> Outcome<SiteKey> {
    let what = || format!("cannot use the site key {}", path.shown());
    let file = File::open(path).map_err(|why| {
        let missing = why.kind() == std::io::ErrorKind::NotFound;
        let failure = Failure::new(what()).because(why);
        let hint = "`longhaul identity site-key` makes one on one machine of the site; all others have a copy";
        if missing { failure.hint(hint) } else { failure }
    })?;
    let metadata = file.metadata().or_fail(what)?;
    refuse_shared(&metadata, path).map_err(|why| why.within("site key"))?;
    let mut text = Zeroizing::new(String::with_capacity(FILE_MAX as usize));
    file.take(FILE_MAX).read_to_string(&mut text).or_fail(what)?;
    let mut keys =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let key = match (keys.next(), keys.next()) {
        (Some(key), None) => key.strip_prefix(PREFIX).and_then(bytes),
        _ => None,
    };
    let form = "it does not hold one key: lhsite1- and 64 hexadecimal digits";
    let key = SiteKey::from_bytes(*key.ok_or_else(|| Failure::new(what()).because(form))?);
    key.keep_with(keep);
    Ok(key)
}

fn bytes(text: &str) -> Option<Zeroizing<[u8; SITE_KEY_LEN]>> {
    let mut key = Zeroizing::new([0; SITE_KEY_LEN]);
    let is_whole = text.len() == 2 * SITE_KEY_LEN && text.bytes().all(|c| c.is_ascii_hexdigit());
    for (at, byte) in key.iter_mut().enumerate().filter(|_| is_whole) {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    is_whole.then_some(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn site_key_is_read_as_it_was_made_and_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/site-key");
        create(&path).unwrap();
        assert!(read(&path).is_ok());
        assert!(create(&path).is_err(), "and it is left alone");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("others than its owner"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        for wrong in ["", "lhsite1-00", &format!("{text}{text}"), &text.replace("lhsite1-", "")] {
            std::fs::write(&path, wrong).unwrap();
            assert!(read(&path).unwrap_err().to_string().contains("does not hold one key"));
        }
    }
}
