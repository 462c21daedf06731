//! What units are called, by their PERIPHERAL DEVICE TYPE.

use proto::scsi::DeviceType;

/// What units of a type are called.
pub(super) fn type_name(code: u8) -> String {
    let known = [
        (DeviceType::Disk, "a disk"),
        (DeviceType::Optical, "an optical drive"),
        (DeviceType::Tape, "a tape drive"),
        (DeviceType::Changer, "a media changer"),
    ];
    let known = known.into_iter().find(|(device, _)| device.code() == code);
    known.map_or_else(|| format!("a device of type {code:#04x}"), |(_, name)| name.to_owned())
}

/// The same without an article.
pub(super) fn short_name(code: u8) -> &'static str {
    let known = [
        (DeviceType::Disk, "disk"),
        (DeviceType::Optical, "optical drive"),
        (DeviceType::Tape, "tape drive"),
        (DeviceType::Changer, "media changer"),
    ];
    let known = known.into_iter().find(|(device, _)| device.code() == code);
    known.map_or("other device", |(_, name)| name)
}
