//! By what a block device is known through restarts of the machine, unlike its path and number: what the system has of it
//! in sysfs.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::file_id::FileId;
use crate::printable::Shown as _;

/// Where one of these is: an identifier of the unit (SCSI, NVMe), a serial number (virtio), or that of a mapping (LVM,
/// dm-crypt) or card.
const NAMES: [&str; 5] = ["wwid", "device/wwid", "serial", "dm/uuid", "device/cid"];

/// The name of the device at `path`: what the system knows it by, else its path and size.
pub(super) fn of(path: &Path) -> String {
    let number = path.metadata().map_or(0, |found| found.rdev());
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let device = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    known(&device).unwrap_or_else(|| {
        let sectors = read(&device.join("size")).unwrap_or_default();
        format!("{} of {sectors} sectors", path.shown())
    })
}

/// The same from the directory of the device, if the system knows it by anything. A partition is its number and place on
/// the device that it is a part of.
fn known(device: &Path) -> Option<String> {
    let device = device.canonicalize().ok()?;
    let Some(partition) = read(&device.join("partition")) else { return whole(&device) };
    let start = read(&device.join("start")).unwrap_or_default();
    Some(format!("{}, partition {partition} at {start}", whole(device.parent()?)?))
}

fn whole(device: &Path) -> Option<String> {
    let name = NAMES.iter().find_map(|name| read(&device.join(name)));
    name.or_else(|| behind_loop(device))
}

/// The file behind a loop device, whichever it is at that path, and where in it the device begins.
fn behind_loop(device: &Path) -> Option<String> {
    let file = read(&device.join("loop/backing_file"))?;
    let offset = read(&device.join("loop/offset")).unwrap_or_default();
    let found = fs::metadata(&file).ok();
    let id = found.as_ref().and_then(FileId::of).map(|id| id.to_string()).unwrap_or_default();
    Some(format!("{file} {id} from {offset}"))
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::make_directories;

    #[test]
    fn device_is_known_by_its_identifier_a_partition_by_its_place_and_a_loop_device_by_its_file() {
        let sys = tempfile::tempdir().unwrap();
        let at = |name: &str| sys.path().join(name);
        let put = |name: &str, text: &str| {
            make_directories(at(name).parent().unwrap(), 0o700).unwrap();
            fs::write(at(name), text).unwrap();
        };
        put("sdb/device/wwid", "naa.5000c500a1b2c3d4\n");
        for (name, number, start) in [("sdb1", "1\n", "2048\n"), ("sdb2", "2\n", "4096\n")] {
            put(&format!("sdb/{name}/partition"), number);
            put(&format!("sdb/{name}/start"), start);
        }
        put("vda/serial", "disk-7\n");
        put("vdb/serial", "\n");
        put("dm-0/dm/uuid", "LVM-abc\n");
        let file = at("a.img").display().to_string();
        put("a.img", "");
        put("loop0/loop/backing_file", &format!("{file}\n"));
        put("loop0/loop/offset", "512\n");
        let known = |name: &str| known(&at(name));
        assert_eq!(known("sdb").as_deref(), Some("naa.5000c500a1b2c3d4"));
        let second = "naa.5000c500a1b2c3d4, partition 2 at 4096";
        assert_eq!(known("sdb/sdb2").as_deref(), Some(second));
        assert_eq!(known("vda").as_deref(), Some("disk-7"));
        assert_eq!(known("dm-0").as_deref(), Some("LVM-abc"));
        assert_eq!([known("vdb"), known("nothing")], [None, None]);
        let first = known("loop0").unwrap();
        assert!(first.starts_with(&file) && first.ends_with("from 512"), "{first}");
        assert_eq!(known("loop0"), Some(first.clone()));
        put("b.img", "");
        fs::rename(at("b.img"), at("a.img")).unwrap();
        assert_ne!(known("loop0"), Some(first), "another file at its path");
    }

    #[test]
    fn device_that_the_system_knows_by_nothing_is_known_by_its_path() {
        assert!(of(Path::new("/dev/null")).starts_with("/dev/null of "));
    }
}
