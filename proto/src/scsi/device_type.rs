//! The types of devices there are (SPC-4, 6.6.2: PERIPHERAL DEVICE TYPE).

/// What a logical unit is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceType {
    /// A direct access block device (SBC).
    #[default]
    Disk,
    /// A CD or DVD drive (MMC).
    Optical,
    /// A tape drive (SSC).
    Tape,
    /// A media changer (SMC).
    Changer,
}

impl DeviceType {
    /// PERIPHERAL DEVICE TYPE.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Disk => 0x00,
            Self::Optical => 0x05,
            Self::Tape => 0x01,
            Self::Changer => 0x08,
        }
    }

    /// What it is called in PRODUCT IDENTIFICATION, unless its owner calls it otherwise.
    #[must_use]
    pub const fn product(self) -> &'static str {
        match self {
            Self::Disk => "VIRTUAL-DISK",
            Self::Optical => "VIRTUAL-CDROM",
            Self::Tape => "VIRTUAL-TAPE",
            Self::Changer => "VIRTUAL-CHANGER",
        }
    }

    /// The version descriptor of its command set, without a version claimed (SPC-4, table 172): SBC-3, MMC-6, SSC-4 or SMC-3.
    #[must_use]
    pub const fn command_set(self) -> u16 {
        match self {
            Self::Disk => 0x04C0,
            Self::Optical => 0x04E0,
            Self::Tape => 0x0520,
            Self::Changer => 0x0480,
        }
    }
}

/// Which types of devices have a command. It has a field for each type, so that no row of the table of commands is left
/// without an answer when there is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTypes {
    /// Disks.
    pub disk: bool,
    /// Optical drives.
    pub optical: bool,
    /// Tape drives.
    pub tape: bool,
    /// Media changers.
    pub changer: bool,
}

impl DeviceTypes {
    /// SPC.
    pub const ALL: Self = Self { disk: true, optical: true, tape: true, changer: true };
    /// What SBC and MMC have in common.
    pub const BLOCKS: Self = Self { optical: true, ..Self::DISK };
    /// SBC.
    pub const DISK: Self = Self { disk: true, ..Self::NONE };
    /// MMC.
    pub const OPTICAL: Self = Self { optical: true, ..Self::NONE };
    /// SSC.
    pub const TAPE: Self = Self { tape: true, ..Self::NONE };
    /// SMC.
    pub const CHANGER: Self = Self { changer: true, ..Self::NONE };
    const NONE: Self = Self { disk: false, optical: false, tape: false, changer: false };

    /// Whether devices of this type have it.
    #[must_use]
    pub const fn include(self, device: DeviceType) -> bool {
        match device {
            DeviceType::Disk => self.disk,
            DeviceType::Optical => self.optical,
            DeviceType::Tape => self.tape,
            DeviceType::Changer => self.changer,
        }
    }
}
