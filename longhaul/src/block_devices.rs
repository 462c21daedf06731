//! What the kernel has made of a file: loop devices over it, or an NBD or ublk device that is known by it, what is mounted of them, and who
//! uses that.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use crate::ublk_note::Note;

/// The block devices over the file at `path`, by the name that it had when they were made.
pub(crate) fn devices_over(path: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let over = devices.filter(|device| backing_path(&device.path()).as_deref() == Some(path));
    let over = over.map(|device| Path::new("/dev").join(device.file_name()));
    over.chain(Note::of(path).map(|note| note.node())).collect()
}

/// The file behind a block device, or behind the one that it is a partition of.
pub(crate) fn file_of(node: &Path) -> Option<PathBuf> {
    let name = node.file_name()?;
    let device = Path::new("/sys/class/block").join(name);
    let known = |device: &Path| {
        let noted = || Note::of_device(&Path::new("/dev").join(device.file_name()?));
        backing_path(device).or_else(|| noted().map(|(file, _)| file))
    };
    known(&device).or_else(|| known(fs::canonicalize(&device).ok()?.parent()?))
}

fn backing_path(device: &Path) -> Option<PathBuf> {
    let path = fs::read(device.join("loop/backing_file"));
    let path = path.or_else(|_| fs::read(device.join("backend"))).ok()?;
    let path = path.strip_suffix(b"\n").unwrap_or(&path);
    Some(PathBuf::from(OsString::from_vec(path.to_vec())))
}

/// A mount, as proc_pid_mountinfo(5) tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Where it is.
    pub(crate) place: PathBuf,
    /// The kind of file system.
    pub(crate) kind: String,
    /// What is mounted.
    pub(crate) source: PathBuf,
}

/// All mounts of this process, the latest last.
pub(crate) fn mounts() -> Vec<Mount> {
    mounts_in(Path::new("/proc/self"))
}

/// All mounts that a process sees.
fn mounts_in(process: &Path) -> Vec<Mount> {
    let text = fs::read(process.join("mountinfo")).unwrap_or_default();
    text.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// What is mounted at `place`, which need not answer.
pub(crate) fn mounted_at(place: &Path) -> Option<Mount> {
    mounts().into_iter().rev().find(|mount| mount.place == place)
}

/// The mounts of a block device and its partitions, the latest first.
pub(crate) fn mounts_of(node: &Path) -> Vec<Mount> {
    mounts().into_iter().rev().filter(|mount| is_of(mount, node)).collect()
}

fn is_of(mount: &Mount, node: &Path) -> bool {
    let source = mount.source.as_os_str().as_bytes();
    let rest = source.strip_prefix(node.as_os_str().as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'p')
}

/// One process of each other mount namespace that has a mount of this block device, by its number and name, and where: a
/// container, or `ip netns exec`, takes a copy of all mounts, which keeps the device busy.
pub(crate) fn mounts_elsewhere(node: &Path) -> Vec<(u32, String, Mount)> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let mut seen: Vec<_> = namespace(Path::new("/proc/self")).into_iter().collect();
    let mut found = Vec::new();
    for (pid, process) in processes() {
        let Some(other) = namespace(&process).filter(|other| !seen.contains(other)) else {
            continue;
        };
        seen.push(other);
        let mut mounts = mounts_in(&process).into_iter();
        if let Some(mount) = mounts.find(|mount| is_of(mount, node)) {
            found.push((pid, name_of(&process), mount));
        }
    }
    found
}

fn processes() -> impl Iterator<Item = (u32, PathBuf)> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    processes.filter_map(|process| {
        let pid: u32 = process.file_name()?.to_str()?.parse().ok()?;
        Some((pid, process))
    })
}

fn name_of(process: &Path) -> String {
    fs::read_to_string(process.join("comm")).unwrap_or_default().trim().to_owned()
}

fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let place = unescaped(fields.nth(4)?);
    // Optional fields end with a hyphen.
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    Some(Mount { place, kind, source: unescaped(fields.next()?) })
}

/// Spaces and the like are written as three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = (byte == b'\\').then(|| after.get(..3)).flatten();
        let code =
            code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Processes that have something below `place` open, or work there, as far as this user may know.
pub(crate) fn users_of(place: &Path) -> Vec<String> {
    let users = processes().filter(|(_, process)| uses(process, place));
    users.map(|(pid, process)| format!("process {pid} ({})", name_of(&process))).collect()
}

fn uses(process: &Path, place: &Path) -> bool {
    let links = ["cwd", "root"].map(|name| process.join(name));
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let mut links = links.into_iter().chain(open.map(|entry| entry.path()));
    links.any(|link| fs::read_link(link).is_ok_and(|path| path.starts_with(place)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_is_read_with_spaces_and_optional_fields() {
        let line = br"36 35 98:0 / /mnt/a\040b rw,noatime shared:1 master:2 - ext4 /dev/loop3 rw,errors=continue";
        let found = mount(line).unwrap();
        assert_eq!(found.place, Path::new("/mnt/a b"));
        assert_eq!(
            (found.kind.as_str(), found.source.as_path()),
            ("ext4", Path::new("/dev/loop3"))
        );
        assert_eq!(mount(b"36 35 98:0 / /mnt rw"), None);
        assert_eq!(unescaped(br"a\13"), Path::new(r"a\13"));
    }

    #[test]
    fn root_is_mounted_and_used_by_this_process() {
        assert!(mounted_at(Path::new("/")).is_some());
        let me = format!("process {} ", std::process::id());
        assert!(users_of(Path::new("/")).iter().any(|user| user.starts_with(&me)));
    }
}
