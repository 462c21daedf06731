//! Other users of a file or block device of this machine. Locks keep programs apart, but the kernel's own users
//! take none: loop devices, mounts, swap and the device mapper.

use std::fmt;
use std::fs;
use std::io;
use std::iter::once;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use host::file::{Access, File};
use host::loop_device::{self, FileId};

use super::open_error::OpenError;
use crate::printable::Shown as _;

/// Refuses to write beside a user that takes no lock; a reader is warned.
pub(super) fn refuse(path: &Path, access: Access) -> Result<(), OpenError> {
    match system_user(path, access)? {
        Some(user) if access == Access::Read => {
            let path = path.shown();
            tracing::warn!(%path, "it is {user}: what changes meanwhile may be read in part");
            Ok(())
        }
        Some(user) => Err(OpenError::UsedBySystem(user)),
        None => Ok(()),
    }
}

/// How the system uses the file or block device at `path`, in words that follow "it is".
pub fn system_user(path: &Path, access: Access) -> io::Result<Option<String>> {
    let found = fs::metadata(path)?;
    let user = if found.file_type().is_block_device() {
        let number = number(found.rdev());
        let Ok(device) = fs::canonicalize(Path::new("/sys/dev/block").join(number)) else {
            return Ok(None);
        };
        device_user(&device).or_else(|| user_of_backing_file(&device, access))
    } else {
        loop_device_over((found.dev(), found.ino()), access, None)
            .map(|user| format!("the backing file of {user}"))
    };
    Ok(user.or_else(|| is_swap(path).then(|| "swap space of the system".to_owned())))
}

/// A process that holds a lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LockHolder {
    pid: u32,
    /// What it is called, if that is known.
    name: Option<String>,
}

impl LockHolder {
    pub(crate) fn is_this_process(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)?;
        self.name.as_ref().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

/// The process that holds a lock on the file at `path`, as far as this user may know.
pub(crate) fn lock_holder(path: &Path) -> Option<LockHolder> {
    let file = fs::metadata(path).ok()?;
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|process| process.path());
    let is_numbered = |process: &PathBuf| {
        process.file_name().is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok())
    };
    let holder = processes.filter(is_numbered).find(|process| {
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let mut descriptors = descriptors.map(|descriptor| descriptor.path());
        descriptors.any(|descriptor| is_locked_by(process, &descriptor, (file.dev(), file.ino())))
    })?;
    let pid = holder.file_name()?.to_str()?.parse().ok()?;
    let name = fs::read_to_string(holder.join("comm")).ok();
    Some(LockHolder { pid, name: name.map(|name| name.trim().to_owned()) })
}

/// Whether a descriptor of a process is of this file, and holds a lock: proc_pid_fdinfo(5) shows those.
fn is_locked_by(process: &Path, descriptor: &Path, file: FileId) -> bool {
    let is_open = fs::metadata(descriptor).is_ok_and(|open| (open.dev(), open.ino()) == file);
    let name = descriptor.file_name().unwrap_or_default();
    is_open
        && fs::read_to_string(process.join("fdinfo").join(name))
            .is_ok_and(|info| info.lines().any(|line| line.starts_with("lock:")))
}

/// A device number, as the system writes it.
fn number(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// The loop device over a file, except `but`, and how that is used. One that is read-only is in no reader's way.
fn loop_device_over(file: FileId, access: Access, but: Option<&Path>) -> Option<String> {
    let devices = fs::read_dir("/sys/block").ok()?.flatten().map(|device| device.path());
    let loops = devices.filter(|device| device.join("loop").is_dir());
    let mut over = loops.filter(|device| {
        let changes = fs::read_to_string(device.join("ro")).is_ok_and(|ro| ro.trim() == "0");
        file_name(device) != but.and_then(file_name)
            && (changes || access != Access::Read)
            && backing_file(device) == Some(file)
    });
    let device = over.next()?;
    let user = device_user(&device).map(|user| format!(", which is {user}")).unwrap_or_default();
    Some(format!("the loop device {}{user}", node(&device).shown()))
}

/// Who uses the file behind a device, or behind the device that it is a partition of.
fn user_of_backing_file(device: &Path, access: Access) -> Option<String> {
    let device = if device.join("partition").exists() { device.parent()? } else { device };
    // The device mapper hands the question on to the device beneath.
    if !device.join("loop").is_dir() {
        return None;
    }
    let file = backing_file(device)?;
    if let Some(other) = loop_device_over(file, access, Some(device)) {
        return Some(format!("a loop device over a file that is also behind {other}"));
    }
    let path = backing_path(device)?;
    // A file that is not in sight here cannot be served from here.
    let behind = File::open(&path, access).ok()?;
    if id(&path) != Some(file) || behind.try_lock(access).ok()? {
        return None;
    }
    // One of its two locks may be ours by now.
    drop(behind);
    let holder = lock_holder(&path);
    let holder = holder.map_or_else(|| "another process".to_owned(), |holder| holder.to_string());
    Some(format!("a loop device over {}, which is in use by {holder}", path.shown()))
}

/// The file behind a loop device. Asking the device takes rights; the path in sysfs leads astray where the file was
/// removed or is in another mount namespace.
///
/// A device whose file is behind FUSE or a network waits for whoever serves that, which may be for ever. Such a file is not
/// ours: ours was found just now.
fn backing_file(device: &Path) -> Option<FileId> {
    let device = device.to_owned();
    answered_in_time(move || {
        let asked = loop_device::backing_file(&node(&device)).ok();
        asked.or_else(|| id(&backing_path(&device)?))
    })?
}

/// How long the system may take to say what a loop device stands on.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// What comes of `work`, on a thread of its own; `None` if that takes too long, and the thread is left behind.
fn answered_in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, answer) = std::sync::mpsc::channel();
    // Nobody may wait any more.
    std::thread::spawn(move || drop(sender.send(work())));
    answer.recv_timeout(ANSWER_MAX).ok()
}

fn backing_path(device: &Path) -> Option<PathBuf> {
    let path = fs::read_to_string(device.join("loop/backing_file")).ok()?;
    Some(PathBuf::from(path.strip_suffix('\n').unwrap_or(&path)))
}

fn id(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

fn file_name(path: &Path) -> Option<&std::ffi::OsStr> {
    path.file_name()
}

fn node(device: &Path) -> PathBuf {
    Path::new("/dev").join(device.file_name().unwrap_or_default())
}

/// The mount, or the device made of it, that uses a device or one of its partitions.
fn device_user(device: &Path) -> Option<String> {
    let parts = fs::read_dir(device).into_iter().flatten().flatten().map(|entry| entry.path());
    let parts = parts.filter(|path| path.join("partition").exists());
    once(device.to_owned()).chain(parts).find_map(|part| {
        let number = fs::read_to_string(part.join("dev")).ok()?;
        let holders = fs::read_dir(part.join("holders")).into_iter().flatten().flatten();
        let mut holders = holders.map(|holder| node(&holder.path()).shown().to_string());
        let place = mount_of(number.trim()).map(|place| format!("mounted at {place}"));
        place
            .or_else(|| holders.next().map(|holder| format!("part of {holder}")))
            .or_else(|| is_swap(&node(&part)).then(|| "swap space of the system".to_owned()))
    })
}

/// proc_pid_mountinfo(5): field 3 is the device, field 5 the place.
fn mount_of(number: &str) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        (fields.get(2) == Some(&number)).then(|| fields.get(4).map(|place| (*place).to_owned()))?
    })
}

fn is_swap(path: &Path) -> bool {
    let Ok(path) = fs::canonicalize(path) else { return false };
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut names = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    names.any(|name| Path::new(name) == path)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::device;
    use super::super::file::{FileOptions, open};
    use super::*;

    fn must(program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A file behind a loop device, detached when it is dropped.
    struct Loop {
        device: String,
        file: PathBuf,
        dir: tempfile::TempDir,
    }

    impl Loop {
        fn new(options: &[&str]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("disk");
            fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
            Self::over(dir, file, options)
        }

        fn over(dir: tempfile::TempDir, file: PathBuf, options: &[&str]) -> Self {
            let path = file.to_str().unwrap();
            let device = must("losetup", &[options, &["--find", "--show", path]].concat());
            Self { device, file, dir }
        }

        fn mount(&self) -> PathBuf {
            must("mkfs.ext4", &["-q", &self.device]);
            let place = self.dir.path().join("place");
            fs::create_dir(&place).unwrap();
            must("mount", &[&self.device, place.to_str().unwrap()]);
            place
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(self.dir.path().join("place")).output();
            let _ = Command::new("losetup").args(["--detach", &self.device]).output();
        }
    }

    fn read_only() -> FileOptions {
        FileOptions { read_only: true, ..FileOptions::default() }
    }

    fn refused(path: &Path) -> String {
        open(path, &FileOptions::default()).err().expect("it was opened").to_string()
    }

    fn device_refused(path: &str) -> String {
        device::open(path.as_ref(), device::DeviceOptions::default())
            .err()
            .expect("it was opened")
            .to_string()
    }

    #[test]
    fn file_behind_a_loop_device_is_refused_for_writing() {
        let disk = Loop::new(&[]);
        let expected = format!("it is the backing file of the loop device {}", disk.device);
        assert_eq!(refused(&disk.file), expected);
        open(&disk.file, &read_only()).expect("a reader is only warned");
        let place = disk.mount();
        let mounted = format!("mounted at {}", place.display());
        assert_eq!(refused(&disk.file), format!("{expected}, which is {mounted}"));
        assert_eq!(device_refused(&disk.device), format!("it is {mounted}"));
        let reading = device::DeviceOptions { read_only: true, direct: false };
        device::open(disk.device.as_ref(), reading).expect("a reader is only warned");
        must("umount", &[place.to_str().unwrap()]);
        device::open(disk.device.as_ref(), device::DeviceOptions::default())
            .expect("nobody uses it any more");
        must("losetup", &["--detach", &disk.device]);
        open(&disk.file, &FileOptions::default()).expect("nobody uses it any more");
    }

    #[test]
    fn device_that_never_answers_is_not_waited_for() {
        let (never, waits) = std::sync::mpsc::channel::<()>();
        assert_eq!(answered_in_time(move || waits.recv().is_ok()), None);
        assert_eq!(answered_in_time(|| 7), Some(7));
        drop(never);
    }

    #[test]
    fn file_behind_a_loop_device_is_found_by_any_name() {
        let disk = Loop::new(&["--read-only"]);
        let second = disk.dir.path().join("second");
        fs::hard_link(&disk.file, &second).unwrap();
        fs::remove_file(&disk.file).unwrap();
        assert!(refused(&second).ends_with(&disk.device), "{}", refused(&second));
        assert_eq!(system_user(&second, Access::Read).unwrap(), None, "it changes nothing");
        let link = disk.dir.path().join("link");
        std::os::unix::fs::symlink(&second, &link).unwrap();
        assert!(refused(&link).ends_with(&disk.device), "{}", refused(&link));
    }

    #[test]
    fn loop_device_over_a_file_that_is_served_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk");
        let options = FileOptions { size: Some(1 << 20), ..FileOptions::default() };
        let served = open(&file, &options).unwrap();
        let disk = Loop::over(dir, file, &[]);
        let said = device_refused(&disk.device);
        let process = format!("which is in use by process {} (", std::process::id());
        assert!(said.starts_with("it is a loop device over ") && said.contains(&process), "{said}");
        drop(served);
        device::open(disk.device.as_ref(), device::DeviceOptions::default())
            .expect("nobody uses the file any more");
    }

    #[test]
    fn loop_device_over_the_file_of_another_is_refused() {
        let disk = Loop::new(&[]);
        let other = must("losetup", &["--find", "--show", disk.file.to_str().unwrap()]);
        let other =
            Loop { device: other, file: disk.file.clone(), dir: tempfile::tempdir().unwrap() };
        let said = device_refused(&disk.device);
        assert!(said.ends_with(&format!("also behind the loop device {}", other.device)), "{said}");
        drop(other);
        device::open(disk.device.as_ref(), device::DeviceOptions::default())
            .expect("it is the only one");
    }

    #[test]
    fn process_that_locked_a_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let file = File::open(&path, Access::Create).unwrap();
        assert_eq!(lock_holder(&path), None);
        assert!(file.try_lock(Access::Write).unwrap());
        let holder = lock_holder(&path).expect("a process");
        let named = format!("process {} (", std::process::id());
        assert!(holder.is_this_process() && holder.to_string().starts_with(&named), "{holder}");
    }
}
