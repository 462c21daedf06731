//! URIs of images of Ceph's RBD.

use std::fmt;
use std::path::{Path, PathBuf};

use host::rbd::ImageSpec;

use super::UriError;
use crate::printable::Shown as _;

/// How one is written.
pub(super) const FORM: &str =
    "rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][?id=USER&conf=FILE&keyring=FILE]";

pub(super) fn parse(text: &str, rest: &str) -> Result<ImageSpec, UriError> {
    let malformed = || UriError::Rbd(text.to_owned());
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let parts: Vec<_> = rest.split('/').collect();
    let (pool, namespace, image) = match parts[..] {
        [pool, image] => (pool, None, image),
        [pool, namespace, image] => (pool, Some(namespace), image),
        _ => return Err(malformed()),
    };
    let (image, snapshot) = match image.split_once('@') {
        Some((image, snapshot)) => (image, Some(snapshot)),
        None => (image, None),
    };
    let names = [Some(pool), namespace, Some(image), snapshot];
    if names.into_iter().flatten().any(str::is_empty) {
        return Err(malformed());
    }
    let mut spec = ImageSpec {
        conf: None,
        user: None,
        keyring: None,
        pool: pool.to_owned(),
        namespace: namespace.map(str::to_owned),
        image: image.to_owned(),
        snapshot: snapshot.map(str::to_owned),
    };
    for option in query.into_iter().flat_map(|query| query.split('&')) {
        read_option(&mut spec, option).ok_or_else(malformed)?;
    }
    Ok(spec)
}

/// An option that is given twice, or without a value, is a mistake.
fn read_option(spec: &mut ImageSpec, option: &str) -> Option<()> {
    let (name, value) = option.split_once('=').filter(|(_, value)| !value.is_empty())?;
    let is_first = match name {
        "id" => spec.user.replace(value.to_owned()).is_none(),
        "conf" => spec.conf.replace(value.into()).is_none(),
        "keyring" => spec.keyring.replace(value.into()).is_none(),
        _ => false,
    };
    is_first.then_some(())
}

/// Writes one as [`parse`] reads it.
pub(super) fn write(f: &mut fmt::Formatter<'_>, spec: &ImageSpec) -> fmt::Result {
    write!(f, "rbd:{spec}")?;
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.shown().to_string());
    let options =
        [("id", spec.user.clone()), ("conf", path(&spec.conf)), ("keyring", path(&spec.keyring))];
    let given = options.into_iter().filter_map(|(name, value)| Some((name, value?)));
    for (number, (name, value)) in given.enumerate() {
        write!(f, "{}{name}={value}", if number == 0 { '?' } else { '&' })?;
    }
    Ok(())
}

/// The same where the paths of files begin at the directory `base`.
pub(super) fn resolved_in(spec: ImageSpec, base: &Path) -> ImageSpec {
    let join = |path: PathBuf| base.join(path);
    ImageSpec { conf: spec.conf.map(join), keyring: spec.keyring.map(join), ..spec }
}

#[cfg(test)]
mod tests {
    use super::super::Uri;
    use super::*;

    #[test]
    fn images_are_written_as_they_are_read() {
        for text in [
            "rbd:rbd/disk",
            "rbd:pool/tenant/disk@monday",
            "rbd:rbd/disk?id=longhaul&conf=/etc/ceph/b.conf&keyring=/etc/ceph/k",
        ] {
            assert_eq!(text.parse::<Uri>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn text_that_names_no_image_is_refused() {
        for text in [
            "rbd:",
            "rbd:disk",
            "rbd:/disk",
            "rbd:pool/",
            "rbd:pool/disk@",
            "rbd:a/b/c/d",
            "rbd:pool/disk?",
            "rbd:pool/disk?id=",
            "rbd:pool/disk?id=a&id=b",
            "rbd:pool/disk?user=a",
        ] {
            assert!(matches!(text.parse::<Uri>(), Err(UriError::Rbd(_))), "{text}");
        }
    }
}
