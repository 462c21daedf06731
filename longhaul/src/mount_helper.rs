//! What mount(8) calls for a line of `/etc/fstab` with the type `longhaul`: this program under the name `mount.longhaul`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The name, which a link to the program has.
const NAME: &str = "mount.longhaul";

/// Options for mount(8) itself, systemd and the boot (mount(8), systemd.mount(5)).
const NOT_OURS: &[&str] = &[
    "rw", "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "group",
    "owner",
];

/// The command line for `longhaul mount` that a call under that name stands for; any other is as it was. `has_value` says of
/// an option of `mount` whether it has a value; `None` of one that it has not.
pub(crate) fn translated(
    arguments: Vec<OsString>,
    has_value: impl Fn(&str) -> Option<bool>,
) -> Vec<OsString> {
    let called = arguments.first().and_then(|path| Path::new(path).file_name());
    if called != Some(OsStr::new(NAME)) {
        return arguments;
    }
    let mut words = arguments.into_iter().skip(1);
    let mut translated: Vec<OsString> = vec!["longhaul".into(), "mount".into()];
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("-o") => {
                let list = words.next().unwrap_or_default();
                translated.extend(options(&list.to_string_lossy(), &has_value));
            }
            // The type, and the namespace; then what it says and where it notes that: not that one, nor `-f`, which mounts
            // nothing and is refused as no option of ours.
            Some("-t" | "-N") => drop(words.next()),
            Some("-s" | "-n" | "-v" | "-w") => {}
            Some("-r") => translated.push("--read-only".into()),
            _ => translated.push(word),
        }
    }
    translated
}

/// `passphrase_file=/etc/longhaul/p,noexec,ro` and the like.
fn options(list: &str, has_value: &impl Fn(&str) -> Option<bool>) -> Vec<OsString> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for option in list.split(',').filter(|option| !option.is_empty()) {
        let (key, value) =
            option.split_once('=').map_or((option, None), |(key, value)| (key, Some(value)));
        let name = key.replace('_', "-");
        if key == "ro" {
            ours.push("--read-only".into());
        } else if has_value(&name).is_some_and(|takes| takes == value.is_some()) {
            ours.push(
                value
                    .map_or_else(|| format!("--{name}"), |value| format!("--{name}={value}"))
                    .into(),
            );
        } else if !NOT_OURS.contains(&key) && !key.starts_with("x-") && key != "comment" {
            theirs.push(option);
        }
    }
    if !theirs.is_empty() {
        ours.push(format!("--options={}", theirs.join(",")).into());
    }
    ours
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(text: &str) -> String {
        let words = text.split(' ').map(OsString::from).collect();
        let known = |name: &str| match name {
            "passphrase-file" => Some(true),
            "shared" => Some(false),
            _ => None,
        };
        translated(words, known).join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn line_of_fstab_becomes_a_command() {
        let line = "/sbin/mount.longhaul file:/a /mnt -v -o rw,_netdev,x-systemd.idle-timeout=1,noexec,passphrase_file=/p,shared,data=journal";
        let expected = "longhaul mount file:/a /mnt --passphrase-file=/p --shared --options=noexec,data=journal";
        assert_eq!(called(line), expected);
        assert_eq!(
            called("mount.longhaul backup /mnt -o ro"),
            "longhaul mount backup /mnt --read-only"
        );
        assert_eq!(called("longhaul mount -o ro"), "longhaul mount -o ro");
    }
}
