//! A volume as the command line has it: `NAME=URI[,KEY[=VALUE]]...`.

use std::str::FromStr;

use super::change::GivenOptions;
use super::changer::changer_role;
use super::options::{VOLUMES, VolumeOptions};
use super::{BlankDisc, Served, Upstream, target_of};
use crate::option_table::{RawValue, Row, fill};
use crate::size::Size;
use crate::suggest::did_you_mean;
use crate::uri::Uri;
use crate::uri::compound::end_of;

/// The options there are.
fn known() -> impl Iterator<Item = &'static Row<VolumeOptions>> {
    VOLUMES.iter().filter(|row| row.text.place.on_command_line())
}

fn names() -> impl Iterator<Item = &'static str> {
    known().map(|row| row.text.name)
}

/// Splits off the options, from the end, since a path may hold a comma: what follows one is an option if it
/// begins with a word, and two commas are one of the path.
fn split(text: &str) -> (String, Vec<(&str, Option<&str>)>) {
    let (mut rest, mut options) = (text, Vec::new());
    // What stands in the parentheses of a volume that is made of others is its own.
    let own = end_of(text);
    while let Some((uri, option)) = rest.rsplit_once(',') {
        let (key, value) = match option.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (option, None),
        };
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let is_word = key.starts_with(|c: char| c.is_ascii_alphabetic()) && key.chars().all(letter);
        if uri.ends_with(',') || !is_word || own.is_some_and(|end| uri.len() < end) {
            break;
        }
        options.push((key, value));
        rest = uri;
    }
    options.reverse();
    let uri = if own.is_some() { rest.to_owned() } else { rest.replace(",,", ",") };
    (uri, options)
}

/// The option with which the text of a path ends, if it is one with a value.
pub(crate) fn trailing_option(path: &str) -> Option<&str> {
    let (_, option) = path.rsplit_once(',')?;
    let (key, _) = option.split_once('=')?;
    names().any(|name| name == key).then_some(option)
}

fn unknown(key: &str) -> String {
    let meant = did_you_mean(key, names());
    let end = if meant.is_empty() { "." } else { "" };
    let known = names().collect::<Vec<_>>().join(", ");
    format!(
        "`{key}` is no option of a volume{meant}{end} The options are {known}; in a path write two commas for one"
    )
}

impl FromStr for Served {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text
            .split_once('=')
            .ok_or_else(|| "write NAME=URI, such as backup=file:/srv/backup.img".to_owned())?;
        let (uri, given) = split(rest);
        let options = options(&given)?;
        let uri = uri.parse::<Uri>().map_err(|why| why.to_string())?;
        let shared = options.shared.unwrap_or_default();
        if shared && !uri.is_remote() {
            return Err("shared: only a volume of a target can have other writers".to_owned());
        }
        idle_size(&uri, options.size).map_or(Ok(()), Err)?;
        idle_direct(&uri, options.direct.unwrap_or_default()).map_or(Ok(()), Err)?;
        idle_worm(&uri, options.worm.unwrap_or_default()).map_or(Ok(()), Err)?;
        idle_blank(&uri, options.blank).map_or(Ok(()), Err)?;
        idle_passed(&uri, &options).map_or(Ok(()), Err)?;
        let target = options.target.clone();
        let target = target.map_or_else(|| target_of(name), |target| Ok(target.0))?;
        let upstream = Upstream { shared, ..Upstream::default() };
        let changer = changer_role(&uri, &options)?;
        let given = GivenOptions { volume: options, ..GivenOptions::default() };
        Ok(Self { changer, ..Self::new(name, target, uri, upstream, given) })
    }
}

/// What is said of a volume after its URI.
fn options(given: &[(&str, Option<&str>)]) -> Result<VolumeOptions, String> {
    let mut options = VolumeOptions::default();
    for (place, (key, value)) in given.iter().enumerate() {
        let row = known().find(|row| row.text.name == *key).ok_or_else(|| unknown(key))?;
        if given[..place].iter().any(|(other, _)| other == key) {
            return Err(format!("`{key}` is given twice: write it once"));
        }
        let value = RawValue::Word(value.map(str::as_ref));
        (row.read)(&mut options, &value).map_err(|why| why.of(key))?;
    }
    fill(VOLUMES, &mut options);
    Ok(options)
}

/// Why a size means nothing for this volume, if it does not.
pub(crate) fn idle_size(uri: &Uri, size: Option<Size>) -> Option<String> {
    let has = uri.has_size()?;
    size.map(|_| format!("size is what a file is made with, and {uri} {has}: leave it out"))
}

/// Why `direct` means nothing for this volume, if it does not.
pub(crate) fn idle_direct(uri: &Uri, direct: bool) -> Option<String> {
    let idle = direct && uri.path().is_none();
    idle.then(|| {
        format!("direct is for files and devices of this machine, not {uri}: leave it out")
    })
}

/// Why `worm` means nothing for this volume, if it does not.
pub(crate) fn idle_worm(uri: &Uri, worm: bool) -> Option<String> {
    let idle = worm && !uri.is_tape();
    idle.then(|| format!("worm is for tapes (tape:PATH), not {uri}: leave it out"))
}

/// Why `blank` means nothing for this volume, if it does not.
pub(crate) fn idle_blank(uri: &Uri, blank: Option<BlankDisc>) -> Option<String> {
    let idle = blank.is_some() && !uri.is_disc();
    idle.then(|| format!("blank is for discs (cdrom:PATH), not {uri}: leave it out"))
}

/// Why an option means nothing for this volume: to a device that is passed through, or to any other.
pub(super) fn idle_passed(uri: &Uri, said: &VolumeOptions) -> Option<String> {
    if !uri.is_passed_through() {
        let idle = said.maintenance.unwrap_or_default();
        return idle.then(|| {
            format!("maintenance is for devices that are passed through (scsi:DEVICE), not {uri}: leave it out")
        });
    }
    let given = [
        ("encrypted", said.encrypted.unwrap_or_default()),
        ("block_size", said.block_size.is_some()),
        ("physical_block_size", said.physical_block_size.is_some()),
        ("removable", said.removable.unwrap_or_default()),
        ("thin=false", said.thin == Some(false)),
        ("sanitize_rate", said.sanitize_rate.is_some()),
        ("vendor", said.vendor.is_some()),
        ("product", said.product.is_some()),
    ];
    let idle = given.into_iter().find_map(|(name, given)| given.then_some(name))?;
    Some(format!("{uri} is passed through as it is, and {idle} is for other volumes: leave it out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comma_of_a_path_is_told_from_an_option() {
        for (text, path, size) in [
            ("a=file:/srv/a.img", "/srv/a.img", None),
            ("a=file:/srv/a.img,size=1G", "/srv/a.img", Some(1 << 30)),
            ("a=file:/srv/a,b.img", "/srv/a,b.img", None),
            ("a=file:/srv/2,5.img,size=1G", "/srv/2,5.img", Some(1 << 30)),
            ("a=file:/srv/a,,sise=1G", "/srv/a,sise=1G", None),
            ("a=file:/srv/a,,b,size=1G", "/srv/a,b", Some(1 << 30)),
        ] {
            let served = text.parse::<Served>().unwrap();
            assert_eq!(served.uri, Uri::File(path.into()), "{text}");
            assert_eq!(served.size, size.map(Size), "{text}");
        }
    }

    #[test]
    fn options_follow_the_parentheses_of_a_compound_volume() {
        let text = "a=limit:(concat:(file:x,,y,file:z),rate=1M),read_only,lun=3";
        let served = text.parse::<Served>().unwrap();
        assert_eq!(served.uri.to_string(), "limit:(concat:(file:x,,y,file:z),rate=1M)");
        assert!(served.read_only && served.lun == 3);
        let size = "a=concat:(file:x,file:y),size=1G".parse::<Served>().unwrap_err();
        assert!(size.contains("takes its size from its members"), "{size}");
        let limited = "a=limit:(file:x,iops=5),size=1G".parse::<Served>().unwrap();
        assert_eq!(limited.size, Some(Size(1 << 30)), "it is as good as the file");
    }

    #[test]
    fn option_that_is_unknown_twice_or_idle_is_refused() {
        for (text, why) in [
            (
                "a=file:x,sise=1G",
                "`sise` is no option of a volume: did you mean `size`? The options",
            ),
            (
                "a=file:x,read-only",
                "`read-only` is no option of a volume: did you mean `read_only`?",
            ),
            ("a=file:x,old", "in a path write two commas for one"),
            ("a=file:x,quux=1", "`quux` is no option of a volume. The options are size, read_only"),
            ("a=file:x,size=1G,size=2G", "`size` is given twice"),
            ("a=file:x,read_only,read_only=false", "`read_only` is given twice"),
            ("a=memory:1M,size=2M", "memory:1M has its size in its URI"),
            ("a=device:/dev/sdb,size=2M", "device:/dev/sdb has a size of its own"),
            (
                "a=memory:1M,direct",
                "direct is for files and devices of this machine, not memory:1M",
            ),
            ("a=file:x,size", "size: it needs a value"),
            ("a=file:x,lun=x", "lun: `x` is not a number"),
        ] {
            let said = text.parse::<Served>().unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
