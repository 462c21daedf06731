//! What the units of a server are that are no disks of its own, and what is behind them: drives, media changers, devices that
//! are passed through, units of other servers.

use proto::scsi::device_type::DeviceType;

use crate::chain::Chain;
use crate::command::media::PassedDevice;
use crate::command::unit_type::short_name;
use crate::failure::Outcome;
use crate::served_volumes::Upstream;
use crate::store::abilities::TargetInfo;
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

/// What is said of itself by the unit, image or device that is behind a volume.
pub(super) async fn upstream(chain: &Chain) -> Outcome<Option<Upstream>> {
    let told = chain.probe().await?;
    let unit = told.map(|TargetInfo { vendor, product, serial, volume, luks_uuid, .. }| Upstream {
        vendor,
        product,
        serial,
        volume,
        luks_uuid,
    });
    let image = || chain.image().map(Upstream::image);
    let passed = || Some(Upstream::passed(chain.device()?.serial()));
    Ok(unit.or_else(image).or_else(passed))
}

/// The drive or media changer that the volume `name` passes through, if it does.
pub(super) fn passed_device(name: &str, chain: &Chain) -> Option<PassedDevice> {
    let peripheral = chain.device()?.peripheral();
    let has_media = [DeviceType::Optical, DeviceType::Tape, DeviceType::Changer];
    has_media.iter().any(|device| device.code() == peripheral).then(|| PassedDevice {
        name: name.to_owned(),
        kind: short_name(peripheral).to_owned(),
        source: chain.uri().to_string(),
    })
}
