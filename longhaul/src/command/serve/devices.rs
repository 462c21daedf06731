//! What the units of a server are that are no disks of its own: drives, media changers, and devices that are passed through.

use proto::scsi::device_type::DeviceType;

use super::live::{Live, OpenVolume};
use crate::chain::Chain;
use crate::command::media::PassedDevice;
use crate::command::units::short_name;
use crate::config::Served;
use crate::target::status::DeviceStatus;
use crate::uri::Location;

/// What a unit is that is no disk, or a device that is passed through.
pub(super) fn device_status(chain: &Chain) -> Option<DeviceStatus> {
    let uri = chain.uri();
    let Some(device) = chain.device() else {
        let kind = match uri.location() {
            Location::Drive(_) => DeviceType::Optical,
            Location::Tape(_) => DeviceType::Tape,
            Location::Changer(_) => DeviceType::Changer,
            _ => return None,
        };
        let kind = short_name(kind.code()).to_owned();
        return Some(DeviceStatus { kind, source: None, connection: None });
    };
    Some(DeviceStatus {
        kind: short_name(device.peripheral()).to_owned(),
        source: Some(uri.to_string()),
        connection: device.connection().map(|connection| connection.to_string()),
    })
}

impl Live {
    /// The drives and media changers that are passed through.
    pub(super) fn passed_devices(&self) -> Vec<PassedDevice> {
        let passed = |volume: &Served| {
            let OpenVolume { chain, .. } = self.open_volumes.get(&volume.name)?;
            let peripheral = chain.device()?.peripheral();
            let has_media = [DeviceType::Optical, DeviceType::Tape, DeviceType::Changer];
            has_media.iter().any(|device| device.code() == peripheral).then(|| PassedDevice {
                name: volume.name.clone(),
                kind: short_name(peripheral).to_owned(),
                source: chain.uri().to_string(),
            })
        };
        self.volumes().iter().filter_map(passed).collect()
    }
}
