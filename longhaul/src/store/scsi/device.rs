//! What a disk, or an optical drive of its disc, says of itself.

use bytes::Bytes;
use proto::scsi::Status;
use proto::scsi::capacity::Capacity;
use proto::scsi::command::optical::DiscInfo;
use proto::scsi::command::{Command, Mode, vital_pages};
use proto::scsi::device_type::DeviceType;
use proto::scsi::inquiry::{self, BlockLimits, Provisioning, Standard, page};
use proto::scsi::unit::optical::DiscStatus;

use super::session::Session;
use super::unit::{Unit, UnitError};

/// What a disk says of itself, as far as a volume on it needs it.
#[derive(Clone, Debug)]
pub(in crate::store) struct Device {
    pub(in crate::store) standard: Standard,
    pub(in crate::store) serial: Option<String>,
    /// What tells a Longhaul volume from another one that was given its serial number.
    pub(in crate::store) volume: Option<String>,
    pub(super) capacity: Capacity,
    pub(super) mode: Mode,
    /// It is a disc, which another may take the place of in its drive.
    is_disc: bool,
    pub(super) limits: BlockLimits,
    pub(super) provisioning: Provisioning,
    /// It answers GET LBA STATUS.
    pub(super) tells_extents: bool,
    /// Some of that is not known, since the reservation of another lets it tell only those that are registered.
    pub(super) is_withheld: bool,
}

/// Why it cannot be learned what a unit is.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    /// It does not say what must be known of it.
    #[error("cannot learn what the logical unit is")]
    Unit(#[from] UnitError),
    /// It is no disk, or one that cannot be used.
    #[error("the logical unit {0}")]
    NotADisk(&'static str),
    /// An answer that cannot be read.
    #[error("the logical unit's {0} cannot be read")]
    Answer(&'static str, #[source] proto::scsi::Malformed),
}

/// What the caching page, which no optical drive has, would say of a disc: it is only read here.
const DISC: Mode = Mode { write_protected: true, fua: false, write_cache: Some(false) };

const NOT_THERE: &str = "does not exist";
const NO_DISK: &str = "is no disk";

impl DeviceError {
    /// The target has no such unit.
    pub(super) const fn not_there() -> Self {
        Self::NotADisk(NOT_THERE)
    }

    /// Whether the disk that is wanted may be another unit of the target: some have a controller as unit 0.
    pub(crate) fn is_of_another_unit(&self) -> bool {
        matches!(self, Self::NotADisk(NOT_THERE | NO_DISK))
    }
}

impl Device {
    /// Asks the unit, in as few round trips as the questions allow.
    pub(super) async fn learn<S: Session>(unit: &Unit<S>) -> Result<Self, DeviceError> {
        let (standard, pages, capacity, mode) = tokio::join!(
            unit.ask(Command::inquiry()),
            unit.ask(Command::vital(page::SUPPORTED)),
            capacity(unit),
            mode(unit),
        );
        let standard = Standard::parse(&standard?)
            .map_err(|error| DeviceError::Answer("INQUIRY data", error))?;
        match standard.qualifier() {
            0 => {}
            1 => return Err(DeviceError::NotADisk("cannot be accessed by this portal")),
            _ => return Err(DeviceError::not_there()),
        }
        let is_drive = standard.device_type() == DeviceType::Optical.code();
        if standard.device_type() == DeviceType::Tape.code() {
            return Err(DeviceError::NotADisk(
                "is a tape drive, which `longhaul tape` reads and writes",
            ));
        }
        if standard.device_type() != DeviceType::Disk.code() && !is_drive {
            return Err(DeviceError::NotADisk(NO_DISK));
        }
        let capacity = capacity?;
        if capacity.blocks == 0 {
            return Err(DeviceError::NotADisk("is empty"));
        }
        // Of a disc on which nothing is recorded drives tell the size in different ways, but not that it has many blocks.
        if is_drive && capacity.blocks == 1 && is_blank(unit).await? {
            return Err(DeviceError::NotADisk(
                "is a drive with a blank disc, which `longhaul cd burn` writes",
            ));
        }
        // A device that has no such page has no pages.
        let pages = answered(pages)?.and_then(|pages| vital_pages(&pages).ok());
        let pages = pages.unwrap_or_default();
        let (serial, volume, limits, provisioning, tells_extents) = tokio::join!(
            vital(unit, &pages, page::SERIAL),
            vital(unit, &pages, page::VOLUME),
            vital(unit, &pages, page::BLOCK_LIMITS),
            vital(unit, &pages, page::PROVISIONING),
            tells_extents(unit, &capacity),
        );
        let (mode, tells_extents) = (unless_reserved(mode)?, unless_reserved(tells_extents)?);
        Ok(Self {
            is_withheld: mode.is_none() || tells_extents.is_none(),
            is_disc: is_drive,
            standard,
            serial: serial?.as_deref().and_then(inquiry::serial),
            volume: volume?.as_deref().and_then(inquiry::volume),
            capacity,
            mode: if is_drive { DISC } else { mode.unwrap_or_default() },
            limits: limits?.and_then(|page| BlockLimits::parse(&page).ok()).unwrap_or_default(),
            provisioning: provisioning?
                .and_then(|page| Provisioning::parse(&page).ok())
                .unwrap_or_default(),
            tells_extents: tells_extents.unwrap_or_default(),
        })
    }

    /// What makes this another volume than `before`, or one that may not be used as that one was. One that has
    /// grown is the same: what was asked of it before can still be asked of it.
    pub(super) fn differs(&self, before: &Self) -> Option<&'static str> {
        let checks = [
            (self.serial != before.serial, "serial number"),
            (self.standard.vendor != before.standard.vendor, "vendor"),
            (self.standard.product != before.standard.product, "product"),
            // The serial number is that of the drive.
            (self.is_disc && self.volume != before.volume, "disc"),
            (self.capacity.block_size != before.capacity.block_size, "block size"),
            (self.capacity.blocks < before.capacity.blocks, "size"),
            (self.mode.write_protected && !before.mode.write_protected, "write protection"),
        ];
        checks.into_iter().find_map(|(differs, what)| differs.then_some(what))
    }

    /// Whether it may keep in a volatile cache what it answers with GOOD.
    pub(super) fn has_write_cache(&self) -> bool {
        self.mode.write_cache.unwrap_or(true)
    }

    /// Its size in bytes.
    pub(super) const fn size(&self) -> u64 {
        size(&self.capacity)
    }

    /// Whether the target is known to end the tasks of a session before it lets the next one in, as
    /// RFC 7143, 6.3.5 demands. tgt, for one, does not wait for what its disks are busy with; of all others
    /// nobody here has seen that they do.
    pub(super) fn ends_tasks(&self) -> bool {
        self.is_longhaul()
    }

    /// Whether the unit says that it is one of ours.
    pub(super) fn is_longhaul(&self) -> bool {
        self.standard.vendor.trim() == "LONGHAUL"
    }
}

/// In bytes.
pub(super) const fn size(capacity: &Capacity) -> u64 {
    capacity.blocks.saturating_mul(capacity.block_size as u64)
}

/// An answer, or none where the unit does not know the question. Some refuse it without sense data.
fn answered<T>(answer: Result<T, UnitError>) -> Result<Option<T>, UnitError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_unknown_command() || error.may_be_unknown_operation() => Ok(None),
        Err(error) => Err(error),
    }
}

/// An answer, or none where the reservation of another stands before it: that of MODE SENSE and the like is up to its
/// type (SPC-4, table 65). What can be read is read all the same, and who reserves the unit asks again.
fn unless_reserved<T>(answer: Result<T, UnitError>) -> Result<Option<T>, UnitError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(UnitError::Status(Status::ReservationConflict)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How large the unit is.
pub(super) async fn capacity<S: Session>(unit: &Unit<S>) -> Result<Capacity, DeviceError> {
    let wrong = |error| DeviceError::Answer("READ CAPACITY data", error);
    if let Some(bytes) = answered(unit.ask(Command::read_capacity_16()).await)? {
        return Capacity::parse_16(&bytes).map_err(wrong);
    }
    let bytes = unit.ask(Command::read_capacity_10()).await?;
    let capacity = Capacity::parse_10(&bytes).map_err(wrong)?;
    capacity.ok_or(DeviceError::NotADisk("is too large for the commands it knows"))
}

/// Whether nothing is recorded on the disc in a drive.
async fn is_blank<S: Session>(unit: &Unit<S>) -> Result<bool, UnitError> {
    let info = answered(unit.ask(Command::read_disc_information()).await)?;
    let info = info.and_then(|info| DiscInfo::parse(&info).ok());
    Ok(info.is_some_and(|info| info.status == DiscStatus::Blank))
}

/// The caching page. A device that has none is taken to have a cache: flushing one that is not there
/// costs little, not flushing one that is costs data.
async fn mode<S: Session>(unit: &Unit<S>) -> Result<Mode, UnitError> {
    if let Some(bytes) = answered(unit.ask(Command::mode_sense_10()).await)?
        && let Ok(mode) = Mode::parse_10(&bytes)
    {
        return Ok(mode);
    }
    let bytes = answered(unit.ask(Command::mode_sense_6()).await)?;
    Ok(bytes.and_then(|bytes| Mode::parse_6(&bytes).ok()).unwrap_or_default())
}

/// A page of vital product data, whole, where the device has it.
async fn vital<S: Session>(
    unit: &Unit<S>,
    pages: &[u8],
    code: u8,
) -> Result<Option<Bytes>, UnitError> {
    if pages.contains(&code) { answered(unit.ask(Command::vital(code)).await) } else { Ok(None) }
}

async fn tells_extents<S: Session>(unit: &Unit<S>, capacity: &Capacity) -> Result<bool, UnitError> {
    if !capacity.provisioning_managed {
        return Ok(false);
    }
    Ok(answered(unit.ask(Command::get_lba_status(0, 1)).await)?.is_some())
}
