//! What may be chosen for a unit, and what follows for its device server.

use std::sync::Arc;

use proto::scsi::Capacity;
use proto::scsi::device_type::DeviceType;
use proto::scsi::inquiry::Identity;
use proto::scsi::pass_through::DeviceClass;
use proto::scsi::transport::Transports;
use proto::scsi::unit::Medium;
use volume::{CryptoErase, Shape};

use super::super::{MediaChanger, MediumPermit, SharedReservations, TRANSFER_MAX};
use super::exchange::blocks_of;
use super::reserved::StoredReservations;
use crate::file_space::FileSpace;
use crate::recorded_disc::RecordedDisc;
use crate::scsi_device::ScsiDevice;

/// What may be chosen for a disk.
#[derive(Clone)]
pub struct Options {
    /// What it is.
    pub device: DeviceType,
    /// T10 VENDOR IDENTIFICATION, if not the product's own.
    pub vendor: Option<String>,
    /// PRODUCT IDENTIFICATION, likewise.
    pub product: Option<String>,
    /// PRODUCT REVISION LEVEL, likewise.
    pub revision: Option<String>,
    /// The serial number, if not the one that follows from the name of the target and the unit.
    pub serial: Option<String>,
    /// What no other volume has, likewise.
    pub volume: Option<String>,
    /// The medium can be taken out.
    pub removable: bool,
    /// The unit in which initiators should write, in bytes, if not the volume's own; one that is smaller
    /// than a block is not used.
    pub physical_block_size: Option<u32>,
    /// Nothing of the volume outlives the process, so that no crash can leave a part of a write behind.
    pub vanishes: bool,
    /// Writes are refused, even if the volume would take them.
    pub read_only: bool,
    /// It is a tape that is written once.
    pub write_once: bool,
    /// It is a disc that can be written, on which this has been recorded.
    pub recorded: Option<RecordedDisc>,
    /// Space may be given back, if the volume can.
    pub thin: bool,
    /// How many bytes a second a SANITIZE overwrites at most; as many as the volume takes if `None`.
    pub sanitize_rate: Option<u64>,
    /// What destroys the key that the volume is enciphered with, where an initiator may have that done.
    pub key: Option<Arc<dyn CryptoErase>>,
    /// The reservations that were kept through the last loss of power, and what keeps them; without it
    /// they end with the process.
    pub kept: Option<StoredReservations>,
    /// What tells how much the file system of the volume has free, if it is one.
    pub space: Option<Arc<dyn FileSpace>>,
    /// What moves cartridges, if it is a media changer.
    pub changer: Option<Arc<dyn MediaChanger>>,
    /// The device that it is, if one is passed through.
    pub passed: Option<PassedThrough>,
    /// What it shares with other gateways of the same volume, if there are any.
    pub shared: Option<Shared>,
    /// The protocols by which initiators come, for the names of their ports in reservation commands.
    pub transports: Transports,
}

/// A device that is passed through.
#[derive(Clone)]
pub struct PassedThrough {
    /// What takes its commands.
    pub device: Arc<dyn ScsiDevice>,
    /// Clients that may write may also maintain it.
    pub maintenance: bool,
}

impl PassedThrough {
    /// What it is, as far as this target answers in its place. What has no type of its own here has the commands of all.
    #[must_use]
    pub fn device_type(&self) -> DeviceType {
        match DeviceClass::of(self.device.peripheral()) {
            DeviceClass::Disk | DeviceClass::Other => DeviceType::Disk,
            DeviceClass::Tape => DeviceType::Tape,
            DeviceClass::Optical => DeviceType::Optical,
            DeviceClass::Changer => DeviceType::Changer,
        }
    }
}

/// What a disk shares with those of the same volume on other machines.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Its reservations.
    pub reservations: Arc<dyn SharedReservations>,
    /// Whether the medium may be used here.
    pub permit: Arc<MediumPermit>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: DeviceType::Disk,
            vendor: None,
            product: None,
            revision: None,
            serial: None,
            volume: None,
            removable: false,
            physical_block_size: None,
            vanishes: false,
            read_only: false,
            write_once: false,
            recorded: None,
            thin: true,
            sanitize_rate: None,
            key: None,
            kept: None,
            space: None,
            changer: None,
            passed: None,
            shared: None,
            transports: Transports::default(),
        }
    }
}

impl Options {
    /// What INQUIRY tells of unit `lun` of `target`.
    pub(super) fn identity(self, target: &str, lun: u16) -> Identity {
        let own = Identity::new(target, lun);
        Identity {
            vendor: self.vendor.unwrap_or(own.vendor),
            product: self.product.unwrap_or_else(|| self.device.product().into()),
            revision: self.revision.unwrap_or(own.revision),
            serial: self.serial.unwrap_or(own.serial),
            volume: self.volume.unwrap_or(own.volume),
            ..own
        }
    }

    /// The medium of a volume of this shape.
    pub(super) fn medium(&self, shape: &Shape) -> Medium {
        let Shape { block_size, physical_block_size, .. } = *shape;
        let recorded = self.recorded.as_ref();
        let physical_block_size =
            self.physical_block_size.unwrap_or(physical_block_size).max(block_size);
        let is_pressed = self.device == DeviceType::Optical && recorded.is_none();
        // The medium of a drive is used as what it is, and not block by block.
        let is_drive = self.device != DeviceType::Disk;
        let discard = shape.discard.filter(|_| self.thin && !is_drive);
        Medium {
            device: self.device,
            capacity: Capacity {
                blocks: blocks_of(shape, recorded),
                block_size,
                physical_exponent: match self.device {
                    DeviceType::Disk => (physical_block_size / block_size).ilog2() as u8,
                    _ => 0,
                },
                provisioning_managed: discard.is_some(),
                reads_zeroes: discard.is_some_and(|discard| discard.reads_zeroes),
                protected: false,
            },
            removable: self.removable || is_drive,
            read_only: shape.read_only || self.read_only || is_pressed,
            write_once: self.write_once,
            recordable: recorded.map(|recorded| recorded.disc.disc_type()),
            write_cache: shape.write_cache && !is_drive,
            unmap_granularity: discard.map(|discard| (discard.granularity / block_size).max(1)),
            transfer_max: TRANSFER_MAX / block_size,
            // A volume promises that a block is written whole or not at all, and no more than that.
            atomic_max: if self.vanishes { TRANSFER_MAX / block_size } else { 1 },
            crypto_erase: self.key.is_some(),
        }
    }
}
