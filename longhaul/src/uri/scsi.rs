//! `scsi:DEVICE` and `scsi:URI`: what is passed through.

use std::path::PathBuf;

use super::{ScsiPlace, UriError, hyperscsi, iscsi};

/// Reads what stands behind `scsi:`, which as a path is `path`.
pub(super) fn parse(text: &str, path: PathBuf) -> Result<ScsiPlace, UriError> {
    match text.split_once(':') {
        Some(("iscsi", rest)) => iscsi(text, rest).map(ScsiPlace::Unit),
        Some((scheme @ ("hyperscsi" | "hseth"), rest)) => {
            let volume = hyperscsi::read(text, scheme, rest)?;
            // The lock would be one of all its initiators together, which any of them could end.
            if volume.options.media_lock {
                return Err(UriError::PassedMediaLock);
            }
            Ok(ScsiPlace::Served(volume))
        }
        // A file of this name would be taken for a device, and not be one.
        Some((scheme, _)) if is_scheme(scheme) => Err(UriError::NotPassed(text.to_owned())),
        _ => Ok(ScsiPlace::Device(path)),
    }
}

/// Whether it is a scheme (RFC 3986, 3.1), and not the beginning of a path.
fn is_scheme(text: &str) -> bool {
    let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_of_scheme)
}
