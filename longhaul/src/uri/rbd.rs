//! URIs of images of Ceph's RBD, and of pools of RADOS.

use std::fmt;
use std::path::{Path, PathBuf};

use host::rbd::{Access, ImageSpec, PoolSpec};

use super::UriError;
use crate::printable::Shown as _;

/// How one is written.
pub(super) const FORM: &str =
    "rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][?id=USER&conf=FILE&keyring=FILE]";

pub(super) fn parse(text: &str, rest: &str) -> Result<ImageSpec, UriError> {
    let malformed = || UriError::Rbd(text.to_owned());
    let (rest, access) = split_access(rest).ok_or_else(malformed)?;
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
    Ok(ImageSpec {
        pool: pool_spec(access, pool, namespace),
        image: image.to_owned(),
        snapshot: snapshot.map(str::to_owned),
    })
}

/// `POOL[/NAMESPACE][?id=USER&conf=FILE&keyring=FILE]`; `None` if it is not that.
pub(crate) fn parse_pool(text: &str) -> Option<PoolSpec> {
    let (rest, access) = split_access(text)?;
    let (pool, namespace) = match rest.split_once('/') {
        Some((pool, namespace)) => (pool, Some(namespace)),
        None => (rest, None),
    };
    let is_name = |name: &str| !name.is_empty() && !name.contains('/');
    let are_names = is_name(pool) && namespace.is_none_or(is_name);
    are_names.then(|| pool_spec(access, pool, namespace))
}

fn pool_spec(access: Access, pool: &str, namespace: Option<&str>) -> PoolSpec {
    PoolSpec { access, pool: pool.to_owned(), namespace: namespace.map(str::to_owned) }
}

/// What stands before the question mark, and what follows it.
fn split_access(text: &str) -> Option<(&str, Access)> {
    let (rest, query) = match text.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (text, None),
    };
    let mut access = Access::default();
    for option in query.into_iter().flat_map(|query| query.split('&')) {
        read_option(&mut access, option)?;
    }
    Some((rest, access))
}

/// An option that is given twice, or without a value, is a mistake.
fn read_option(access: &mut Access, option: &str) -> Option<()> {
    let (name, value) = option.split_once('=').filter(|(_, value)| !value.is_empty())?;
    let is_first = match name {
        "id" => access.user.replace(value.to_owned()).is_none(),
        "conf" => access.conf.replace(value.into()).is_none(),
        "keyring" => access.keyring.replace(value.into()).is_none(),
        _ => false,
    };
    is_first.then_some(())
}

/// Writes one as [`parse`] reads it.
pub(super) fn write(f: &mut fmt::Formatter<'_>, spec: &ImageSpec) -> fmt::Result {
    write!(f, "rbd:{spec}")?;
    write_access(f, &spec.pool.access)
}

/// Writes what follows the name of an image or a pool.
pub(crate) fn write_access(f: &mut fmt::Formatter<'_>, access: &Access) -> fmt::Result {
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.shown().to_string());
    let options = [
        ("id", access.user.clone()),
        ("conf", path(&access.conf)),
        ("keyring", path(&access.keyring)),
    ];
    let given = options.into_iter().filter_map(|(name, value)| Some((name, value?)));
    for (number, (name, value)) in given.enumerate() {
        write!(f, "{}{name}={value}", if number == 0 { '?' } else { '&' })?;
    }
    Ok(())
}

/// The same where the paths of files begin at the directory `base`.
pub(super) fn resolved_in(spec: ImageSpec, base: &Path) -> ImageSpec {
    ImageSpec { pool: pool_resolved_in(spec.pool, base), ..spec }
}

/// The same of a pool.
pub(crate) fn pool_resolved_in(spec: PoolSpec, base: &Path) -> PoolSpec {
    let join = |path: PathBuf| base.join(path);
    let Access { conf, user, keyring } = spec.access;
    let access = Access { conf: conf.map(join), user, keyring: keyring.map(join) };
    PoolSpec { access, ..spec }
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
