//! A volume on a block device, with the block sizes the device states.

use std::path::Path;

use host::file::{Access, File};
use volume::{Discard, Shape};

use super::file::{lock, suits, uncached};
use super::open_error::{OpenError, whole_blocks};
use super::{Local, in_use};

/// How a block device is opened as a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Past the page cache.
    pub direct: bool,
}

/// Opens the block device at `path`. One that the system has mounted is refused.
pub fn open(path: &Path, options: DeviceOptions) -> Result<Local, OpenError> {
    let DeviceOptions { read_only, direct } = options;
    if let Ok(found) = path.metadata() {
        suits(&found, true)?;
    }
    let access = if read_only { Access::Read } else { Access::Write };
    let file = File::open(path, access).map_err(|why| match why.kind() {
        std::io::ErrorKind::ResourceBusy => match in_use::system_user(path, access) {
            Ok(Some(user)) => OpenError::UsedBySystem(user),
            _ => OpenError::InUse,
        },
        _ => OpenError::System(why),
    })?;
    if !file.is_block_device()? {
        return Err(OpenError::NotA { found: "a file", wanted: "a block device" });
    }
    if !read_only && file.is_write_protected()? {
        return Err(OpenError::WriteProtected);
    }
    let (block_size, physical) = file.device_blocks()?;
    let file = if direct { uncached(file, block_size)? } else { file };
    let found = lock(&file, access)?;
    in_use::refuse(path, access)?;
    let size = match whole_blocks(file.len()?, block_size) {
        Err(OpenError::Empty) => return Err(OpenError::NoMedium),
        size => size?,
    };
    let zeroes = !read_only && file.discards()?;
    let shape = Shape {
        size,
        block_size,
        physical_block_size: physical.max(block_size),
        read_only,
        write_cache: true,
        // Punching a hole in a device zeroes it, releasing space where the device can.
        discard: zeroes
            .then_some(Discard { granularity: physical.max(block_size), reads_zeroes: true }),
        fast_zeroes: zeroes,
    };
    Ok(Local::new(path, file, found, shape)?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Arc;

    use rustix::fs::{Mode, OFlags};
    use volume::check;

    use super::*;

    const WRITABLE: DeviceOptions = DeviceOptions { read_only: false, direct: false };
    const READ_ONLY: DeviceOptions = DeviceOptions { read_only: true, direct: false };

    /// A loop device over a new file, detached when dropped.
    struct Loop {
        path: String,
        _dir: tempfile::TempDir,
    }

    impl Loop {
        fn new(size: u64) -> Self {
            Self::with(size, &[])
        }

        fn with(size: u64, options: &[&str]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("disk");
            std::fs::File::create(&file).unwrap().set_len(size).unwrap();
            let made = Command::new("losetup")
                .args(["--find", "--show"])
                .args(options)
                .arg(&file)
                .output()
                .unwrap();
            assert!(made.status.success(), "losetup: {}", String::from_utf8_lossy(&made.stderr));
            Self { path: String::from_utf8(made.stdout).unwrap().trim().to_owned(), _dir: dir }
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").args(["--detach", &self.path]).status();
        }
    }

    #[tokio::test]
    async fn keeps_the_contract_on_a_loop_device() {
        let device = Loop::new(40 << 20);
        let volume = open(device.path.as_ref(), WRITABLE).unwrap();
        assert!(volume::Volume::shape(&volume).discard.is_some(), "loop devices discard");
        check::volume(5, Arc::new(volume)).await;
    }

    #[tokio::test]
    async fn direct_device_keeps_the_contract_in_its_own_blocks() {
        for block in ["512", "4096"] {
            let device = Loop::with(40 << 20, &["--sector-size", block]);
            let direct = DeviceOptions { direct: true, ..WRITABLE };
            let volume = open(device.path.as_ref(), direct).unwrap();
            check::volume(6, Arc::new(volume)).await;
        }
    }

    #[test]
    fn device_does_not_lie_in_memory_though_its_name_does() {
        let device = Loop::new(1 << 20);
        let file = File::open(device.path.as_ref(), Access::Read).unwrap();
        assert!(!file.lies_in_memory().unwrap());
    }

    #[test]
    fn device_that_takes_no_writes_is_opened_for_reading_only() {
        let device = Loop::with(1 << 20, &["--read-only"]);
        assert!(matches!(open(device.path.as_ref(), WRITABLE), Err(OpenError::WriteProtected)));
        open(device.path.as_ref(), READ_ONLY).unwrap();
    }

    #[test]
    fn a_file_is_not_a_device_and_a_device_is_served_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(open(file.path(), WRITABLE), Err(OpenError::NotA { .. })));
        let device = Loop::new(1 << 20);
        let first = open(device.path.as_ref(), WRITABLE).unwrap();
        assert!(matches!(open(device.path.as_ref(), WRITABLE), Err(OpenError::InUse)));
        drop(first);
        open(device.path.as_ref(), READ_ONLY).unwrap();
    }

    /// As the system has it that mounts the device, or an LVM that uses it: no lock of ours is there.
    #[test]
    fn device_that_another_has_exclusively_is_not_written() {
        let device = Loop::new(1 << 20);
        let exclusive = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let holder = rustix::fs::open(&device.path, exclusive, Mode::empty()).unwrap();
        assert!(matches!(open(device.path.as_ref(), WRITABLE), Err(OpenError::InUse)));
        drop(holder);
        open(device.path.as_ref(), WRITABLE).unwrap();
    }
}
