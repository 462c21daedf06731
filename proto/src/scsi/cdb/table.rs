//! The table of commands.

pub(super) mod changer;
pub(super) mod optical;
pub(super) mod tape;
mod usage;

use usage::{
    ACCESS, CHECKED, COMPARE_AND_WRITE, GROUP, IMMEDIATE, LBA_STATUS, SYNCHRONIZE, WRITE_ATOMIC,
    management, reserve_in, reserve_out, sixteen, ten, twelve,
};

use super::traits::{self, Traits};
use super::{
    ACTION, Access, Additional, Cdb, Fields, Form, Format, ManagementCdb, Out, ReserveInAction,
    Sense,
};
use crate::scsi::copy_limits::LIST_MAX;
use crate::scsi::device_type::{DeviceType, DeviceTypes as Types};
use crate::scsi::reservation::{PARAMETERS_MAX, ReserveOutAction};
use crate::scsi::sanitize::Method;

/// What a unit must be able to do before it offers a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requires {
    /// Nothing: every disk offers it.
    Nothing,
    /// To give space back.
    Provisioning,
    /// To have a key of its own, and to destroy it.
    Key,
    /// To be used by an administrator of the server.
    Administrator,
}

/// A command the device knows.
#[derive(Debug)]
pub struct Entry {
    /// OPERATION CODE.
    pub opcode: u8,
    /// SERVICE ACTION, for the operation codes that have some.
    pub action: Option<u8>,
    /// What a unit needs to offer it.
    pub requires: Requires,
    /// The types of devices that have it.
    pub types: Types,
    /// As long as the command block: each bit that is evaluated.
    pub(super) usage: &'static [u8],
    /// Each bit of a block that must be zero, its first byte being the highest.
    pub(super) reserved: u128,
    pub(super) parse: fn(Fields<'_>) -> Result<Cdb, Sense>,
    /// What is known of it besides, where its fields do not say otherwise.
    traits: Traits,
    /// What else is known of it by its fields.
    refine: fn(&Cdb, Traits) -> Traits,
}

/// One row: code, usage map, the types of devices that have it, what else is known of it, and how the fields are read.
const fn row(
    opcode: u8,
    usage: &'static [u8],
    types: Types,
    traits: Traits,
    parse: fn(Fields<'_>) -> Result<Cdb, Sense>,
) -> Entry {
    assert!(usage[0] == opcode, "the map starts with the operation code");
    // SAM-5, 5.2: the first three bits of the code tell the length of the block.
    let length = match opcode >> 5 {
        0 => 6,
        1 | 2 => 10,
        4 => 16,
        5 => 12,
        _ => panic!("no fixed length"),
    };
    assert!(usage.len() == length, "the map is as long as the block");
    let reserved = !evaluated(usage);
    let (action, requires) = (None, Requires::Nothing);
    let refine: fn(&Cdb, Traits) -> Traits = |_, traits| traits;
    Entry { opcode, action, requires, types, usage, reserved, parse, traits, refine }
}

/// The bits of a block that mean something. What follows a short block is padding of the transport, not part
/// of the command, and may be anything.
const fn evaluated(usage: &[u8]) -> u128 {
    let mut bytes = [0xFF; 16];
    let mut at = 1;
    while at < usage.len() {
        bytes[at] = usage[at];
        at += 1;
    }
    u128::from_be_bytes(bytes)
}

impl Entry {
    /// Of an operation code that has service actions, this one.
    const fn action(mut self) -> Self {
        self.action = Some(self.usage[1] & ACTION);
        self.reserved &= !((ACTION as u128) << (14 * 8));
        self
    }

    const fn requiring(mut self, ability: Requires) -> Self {
        self.requires = ability;
        self
    }

    /// Where it depends on the fields what is known of it.
    const fn refined(mut self, refine: fn(&Cdb, Traits) -> Traits) -> Self {
        self.refine = refine;
        self
    }

    pub(super) fn traits(&self, cdb: Option<&Cdb>) -> Traits {
        cdb.map_or(self.traits, |cdb| (self.refine)(cdb, self.traits))
    }
}

/// Every command but those that only optical drives, tapes or media changers have, by operation code and service action.
static COMMANDS: &[Entry] = &[
    row(0x00, &[0x00, 0, 0, 0, 0, 0], Types::ALL, traits::READY, |_| Ok(Cdb::TestUnitReady)),
    row(0x03, &[0x03, 0x01, 0, 0, 0xFF, 0], Types::ALL, traits::SENSE, |cdb| {
        let format = if cdb.flag::<1>(0x01) { Format::Descriptor } else { Format::Fixed };
        Ok(Cdb::RequestSense { format, allocation: cdb.u8::<4>().into() })
    }),
    row(0x08, &[0x08, 0x1F, 0xFF, 0xFF, 0xFF, 0], Types::DISK, traits::READ, |cdb| {
        Ok(Cdb::Read(cdb.access_6()))
    }),
    row(0x0A, &[0x0A, 0x1F, 0xFF, 0xFF, 0xFF, 0], Types::DISK, traits::WRITE, |cdb| {
        Ok(Cdb::Write(cdb.access_6()))
    }),
    row(0x12, &[0x12, 0x01, 0xFF, 0xFF, 0xFF, 0], Types::ALL, traits::IDENTIFY, |cdb| {
        Ok(Cdb::Inquiry {
            vital: cdb.flag::<1>(0x01),
            page: cdb.u8::<2>(),
            allocation: cdb.u16::<3>().into(),
        })
    }),
    row(0x15, &[0x15, 0x11, 0, 0, 0xFF, 0], Types::ALL, traits::CHANGE_SETTINGS, |cdb| {
        Ok(select(cdb, Form::Six, cdb.u8::<4>().into()))
    }),
    row(0x16, &[0x16, 0, 0, 0, 0, 0], Types::ALL, traits::RESERVE_UNIT, |_| Ok(Cdb::Reserve)),
    row(0x17, &[0x17, 0, 0, 0, 0, 0], Types::ALL, traits::RESERVE_UNIT, |_| Ok(Cdb::Release)),
    row(0x1A, &[0x1A, 0x08, 0xFF, 0xFF, 0xFF, 0], Types::ALL, traits::SETTINGS, |cdb| {
        Ok(sense(cdb, Form::Six, cdb.u8::<4>().into()))
    }),
    row(0x1B, &[0x1B, 0x01, 0, 0x0F, 0xF7, 0], Types::BLOCKS, traits::POWER, |cdb| {
        Ok(Cdb::StartStop {
            immediate: cdb.flag::<1>(0x01),
            condition: cdb.u8::<4>() >> 4,
            no_flush: cdb.flag::<4>(0x04),
            load_eject: cdb.flag::<4>(0x02),
            start: cdb.flag::<4>(0x01),
        })
    })
    .refined(|cdb, traits| match cdb {
        Cdb::StartStop { start: true, condition: 0, .. } => traits.starting(),
        _ => traits,
    }),
    row(0x1D, &[0x1D, 0x14, 0, 0, 0, 0], Types::ALL, traits::SELF_TEST, |_| {
        Ok(Cdb::SendDiagnostic)
    }),
    row(0x1E, &[0x1E, 0, 0, 0, 0x03, 0], Types::ALL, traits::PREVENT, |cdb| {
        Ok(Cdb::PreventAllow { prevent: cdb.flag::<4>(0x01), persistent: cdb.flag::<4>(0x02) })
    })
    .refined(|cdb, traits| match cdb {
        Cdb::PreventAllow { prevent: false, persistent: false } => traits.allowing(),
        _ => traits,
    }),
    row(0x25, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], Types::BLOCKS, traits::CAPACITY, |_| {
        Ok(Cdb::ReadCapacity10)
    }),
    row(0x28, &ten(0x28, ACCESS), Types::BLOCKS, traits::READ, |cdb| {
        Ok(Cdb::Read(cdb.access_10()))
    }),
    row(0x2A, &ten(0x2A, ACCESS), Types::BLOCKS, traits::WRITE, |cdb| {
        Ok(Cdb::Write(cdb.access_10()))
    }),
    row(0x2E, &ten(0x2E, CHECKED), Types::DISK, traits::WRITE, |cdb| {
        Ok(Cdb::WriteVerify(cdb.access_10(), cdb.compare()?))
    }),
    row(0x2F, &ten(0x2F, CHECKED), Types::BLOCKS, traits::VERIFY, |cdb| {
        Ok(Cdb::Verify(cdb.access_10(), cdb.compare()?))
    }),
    row(0x34, &ten(0x34, IMMEDIATE), Types::DISK, traits::MEDIUM, |cdb| {
        Ok(Cdb::Prefetch(cdb.access_10()))
    }),
    row(0x35, &ten(0x35, SYNCHRONIZE), Types::BLOCKS, traits::SYNCHRONIZE, |cdb| {
        Ok(synchronize(cdb, cdb.access_10()))
    }),
    row(0x37, &[0x37, 0, 0x1F, 0, 0, 0, 0, 0xFF, 0xFF, 0], Types::DISK, traits::MEDIUM, |cdb| {
        Ok(Cdb::ReadDefects {
            form: Form::Ten,
            list: cdb.u8::<2>(),
            allocation: cdb.u16::<7>().into(),
        })
    }),
    row(0x41, &ten(0x41, 0x08), Types::DISK, traits::WRITE_SAME, |cdb| {
        Ok(Cdb::WriteSame {
            access: cdb.access_10().without_fua(),
            unmap: cdb.flag::<1>(0x08),
            no_data: false,
        })
    }),
    row(0x42, &[0x42, 0, 0, 0, 0, 0, GROUP, 0xFF, 0xFF, 0], Types::DISK, traits::UNMAP, |cdb| {
        Ok(Cdb::Unmap { length: cdb.u16::<7>().into() })
    })
    .requiring(Requires::Provisioning),
    row(0x48, &[0x48, 0xA1, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], Types::DISK, traits::SANITIZE, |cdb| {
        Ok(sanitize(cdb, Method::Overwrite, cdb.u16::<7>().into()))
    })
    .refined(unrestricted)
    .action(),
    row(0x48, &[0x48, 0xA2, 0, 0, 0, 0, 0, 0, 0, 0], Types::DISK, traits::SANITIZE, |cdb| {
        Ok(sanitize(cdb, Method::BlockErase, 0))
    })
    .refined(unrestricted)
    .action()
    .requiring(Requires::Provisioning),
    row(0x48, &[0x48, 0xA3, 0, 0, 0, 0, 0, 0, 0, 0], Types::DISK, traits::SANITIZE, |cdb| {
        Ok(sanitize(cdb, Method::CryptoErase, 0))
    })
    .refined(unrestricted)
    .action()
    .requiring(Requires::Key),
    row(0x48, &[0x48, 0x1F, 0, 0, 0, 0, 0, 0, 0, 0], Types::DISK, traits::SANITIZE_EXIT, |_| {
        Ok(Cdb::SanitizeExit)
    })
    .action(),
    row(0x4D, &[0x4D, 0, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0], Types::ALL, traits::QUERY, |cdb| {
        Ok(Cdb::LogSense {
            page: cdb.u8::<2>() & 0x3F,
            subpage: cdb.u8::<3>(),
            allocation: cdb.u16::<7>().into(),
        })
    }),
    row(
        0x55,
        &[0x55, 0x11, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0],
        Types::ALL,
        traits::CHANGE_SETTINGS,
        |cdb| Ok(select(cdb, Form::Ten, cdb.u16::<7>().into())),
    ),
    row(0x56, &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0], Types::ALL, traits::RESERVE_UNIT, |_| {
        Ok(Cdb::Reserve)
    }),
    row(0x57, &[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0], Types::ALL, traits::RESERVE_UNIT, |_| {
        Ok(Cdb::Release)
    }),
    row(
        0x5A,
        &[0x5A, 0x18, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0],
        Types::ALL,
        traits::SETTINGS,
        |cdb| Ok(sense(cdb, Form::Ten, cdb.u16::<7>().into())),
    ),
    row(0x5E, &reserve_in(0x00), Types::ALL, traits::RESERVE_IN, |cdb| {
        Ok(persistent_in(cdb, ReserveInAction::ReadKeys))
    })
    .action(),
    row(0x5E, &reserve_in(0x01), Types::ALL, traits::RESERVE_IN, |cdb| {
        Ok(persistent_in(cdb, ReserveInAction::ReadReservation))
    })
    .action(),
    row(0x5E, &reserve_in(0x02), Types::ALL, traits::RESERVE_IN, |cdb| {
        Ok(persistent_in(cdb, ReserveInAction::ReportCapabilities))
    })
    .action(),
    row(0x5E, &reserve_in(0x03), Types::ALL, traits::FULL_STATUS, |cdb| {
        Ok(persistent_in(cdb, ReserveInAction::ReadFullStatus))
    })
    .action(),
    row(0x5F, &reserve_out(0x00), Types::ALL, traits::REGISTER, |cdb| {
        persistent_out(cdb, ReserveOutAction::Register)
    })
    .action(),
    row(0x5F, &reserve_out(0x01), Types::ALL, traits::RESERVE_OUT, |cdb| {
        persistent_out(cdb, ReserveOutAction::Reserve)
    })
    .action(),
    row(0x5F, &reserve_out(0x02), Types::ALL, traits::RESERVE_OUT, |cdb| {
        persistent_out(cdb, ReserveOutAction::Release)
    })
    .action(),
    row(0x5F, &reserve_out(0x03), Types::ALL, traits::RESERVE_OUT, |cdb| {
        persistent_out(cdb, ReserveOutAction::Clear)
    })
    .action(),
    row(0x5F, &reserve_out(0x04), Types::ALL, traits::RESERVE_OUT, |cdb| {
        persistent_out(cdb, ReserveOutAction::Preempt)
    })
    .action(),
    row(0x5F, &reserve_out(0x05), Types::ALL, traits::RESERVE_OUT, |cdb| {
        persistent_out(cdb, ReserveOutAction::PreemptAndAbort)
    })
    .action(),
    row(0x5F, &reserve_out(0x06), Types::ALL, traits::REGISTER, |cdb| {
        persistent_out(cdb, ReserveOutAction::RegisterAndIgnore)
    })
    .action(),
    row(0x5F, &reserve_out(0x07), Types::ALL, traits::RESERVE_OUT, |cdb| {
        persistent_out(cdb, ReserveOutAction::RegisterAndMove)
    })
    .action(),
    row(
        0x83,
        &[0x83, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        Types::DISK,
        traits::COPY,
        extended_copy,
    )
    .action(),
    row(
        0x84,
        &[0x84, 0x00, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        Types::DISK,
        traits::COPY_RESULTS,
        |cdb| Ok(Cdb::CopyStatus { id: cdb.u8::<2>(), allocation: cdb.u32::<10>() }),
    )
    .action(),
    row(
        0x84,
        &[0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        Types::DISK,
        traits::COPY_RESULTS,
        |cdb| Ok(Cdb::CopyParameters { allocation: cdb.u32::<10>() }),
    )
    .action(),
    row(0x88, &sixteen(0x88, ACCESS), Types::DISK, traits::READ, |cdb| {
        Ok(Cdb::Read(cdb.access_16()))
    }),
    row(0x89, &COMPARE_AND_WRITE, Types::DISK, traits::WRITE_AS_ONE, |cdb| {
        Ok(Cdb::CompareAndWrite(cdb.access_compare()))
    }),
    row(0x8A, &sixteen(0x8A, ACCESS), Types::DISK, traits::WRITE, |cdb| {
        Ok(Cdb::Write(cdb.access_16()))
    }),
    row(0x8B, &sixteen(0x8B, ACCESS), Types::DISK, traits::WRITE_AS_ONE, |cdb| {
        Ok(Cdb::OrWrite(cdb.access_16()))
    }),
    row(0x8E, &sixteen(0x8E, CHECKED), Types::DISK, traits::WRITE, |cdb| {
        Ok(Cdb::WriteVerify(cdb.access_16(), cdb.compare()?))
    }),
    row(0x8F, &sixteen(0x8F, CHECKED), Types::DISK, traits::VERIFY, |cdb| {
        Ok(Cdb::Verify(cdb.access_16(), cdb.compare()?))
    }),
    row(0x90, &sixteen(0x90, IMMEDIATE), Types::DISK, traits::MEDIUM, |cdb| {
        Ok(Cdb::Prefetch(cdb.access_16()))
    }),
    row(0x91, &sixteen(0x91, SYNCHRONIZE), Types::DISK, traits::SYNCHRONIZE, |cdb| {
        Ok(synchronize(cdb, cdb.access_16()))
    }),
    row(0x93, &sixteen(0x93, 0x09), Types::DISK, traits::WRITE_SAME, |cdb| {
        Ok(Cdb::WriteSame {
            access: cdb.access_16().without_fua(),
            unmap: cdb.flag::<1>(0x08),
            no_data: cdb.flag::<1>(0x01),
        })
    }),
    row(0x9C, &WRITE_ATOMIC, Types::DISK, traits::WRITE_AS_ONE, |cdb| {
        Ok(Cdb::WriteAtomic(cdb.access_atomic()))
    }),
    row(
        0x9E,
        &[0x9E, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        Types::DISK,
        traits::CAPACITY,
        |cdb| Ok(Cdb::ReadCapacity16 { allocation: cdb.u32::<10>() }),
    )
    .action(),
    row(0x9E, &LBA_STATUS, Types::DISK, traits::MEDIUM, |cdb| {
        Ok(Cdb::GetLbaStatus { lba: cdb.be::<2, 8>(), allocation: cdb.u32::<10>() })
    })
    .action(),
    row(
        0xA0,
        &[0xA0, 0, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        Types::ALL,
        traits::IDENTIFY,
        |cdb| Ok(Cdb::ReportLuns { select: cdb.u8::<2>(), allocation: cdb.u32::<6>() }),
    ),
    row(
        0xA3,
        &[0xA3, 0x2A, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        Types::ALL,
        traits::PORTS,
        |cdb| {
            Ok(Cdb::ReportPortGroups { extended: cdb.flag::<1>(0x20), allocation: cdb.u32::<6>() })
        },
    )
    .action(),
    row(
        0xA3,
        &[0xA3, 0x0C, 0x87, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        Types::ALL,
        traits::QUERY,
        |cdb| {
            Ok(Cdb::ReportOpcodes {
                timeouts: cdb.flag::<2>(0x80),
                options: cdb.u8::<2>() & 0x07,
                opcode: cdb.u8::<3>(),
                action: cdb.u16::<4>(),
                allocation: cdb.u32::<6>(),
            })
        },
    )
    .action(),
    row(
        0xA3,
        &[0xA3, 0x0D, 0x80, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        Types::ALL,
        traits::QUERY,
        |cdb| {
            Ok(Cdb::ReportTaskManagement {
                extended: cdb.flag::<2>(0x80),
                allocation: cdb.u32::<6>(),
            })
        },
    )
    .action(),
    row(
        0xA3,
        &[0xA3, 0x0F, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        Types::ALL,
        traits::PORTS,
        |cdb| Ok(Cdb::ReportTimestamp { allocation: cdb.u32::<6>() }),
    )
    .action(),
    row(0xA3, &management(0xA3), Types::ALL, traits::ADMINISTER, |cdb| {
        Ok(Cdb::Management(ManagementCdb::In {
            protocol: cdb.u8::<2>(),
            allocation: cdb.u32::<6>(),
        }))
    })
    .action()
    .requiring(Requires::Administrator),
    row(0xA4, &management(0xA4), Types::ALL, traits::ADMINISTER, |cdb| {
        Ok(Cdb::Management(ManagementCdb::Out { protocol: cdb.u8::<2>(), length: cdb.u32::<6>() }))
    })
    .action()
    .requiring(Requires::Administrator),
    row(0xA8, &twelve(0xA8, ACCESS), Types::BLOCKS, traits::READ, |cdb| {
        Ok(Cdb::Read(cdb.access_12()))
    }),
    row(0xAA, &twelve(0xAA, ACCESS), Types::BLOCKS, traits::WRITE, |cdb| {
        Ok(Cdb::Write(cdb.access_12()))
    }),
    row(0xAE, &twelve(0xAE, CHECKED), Types::DISK, traits::WRITE, |cdb| {
        Ok(Cdb::WriteVerify(cdb.access_12(), cdb.compare()?))
    }),
    row(0xAF, &twelve(0xAF, CHECKED), Types::DISK, traits::VERIFY, |cdb| {
        Ok(Cdb::Verify(cdb.access_12(), cdb.compare()?))
    }),
    row(
        0xB7,
        &[0xB7, 0x1F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0],
        Types::DISK,
        traits::MEDIUM,
        |cdb| {
            Ok(Cdb::ReadDefects {
                form: Form::Twelve,
                list: cdb.u8::<1>(),
                allocation: cdb.u32::<6>(),
            })
        },
    ),
];

/// Where the rows of each operation code begin and end: every command is looked up here.
static RANGES: [(u8, u8); 256] = {
    assert!(COMMANDS.len() < 256);
    let mut ranges = [(0, 0); 256];
    let mut row = 0;
    while row < COMMANDS.len() {
        let range = &mut ranges[COMMANDS[row].opcode as usize];
        assert!(range.1 == 0 || range.1 as usize == row, "the rows of one code lie together");
        if range.1 == 0 {
            range.0 = row as u8;
        }
        range.1 = row as u8 + 1;
        row += 1;
    }
    ranges
};

/// Every command. Those of optical drives, tapes and media changers, which mean other things by some operation codes, are
/// apart.
pub fn commands() -> impl Iterator<Item = &'static Entry> + Clone {
    COMMANDS.iter().chain(optical::COMMANDS).chain(tape::COMMANDS).chain(changer::COMMANDS)
}

/// The commands of an operation code that a device of that type has.
pub(super) fn of_opcode(opcode: u8, device: DeviceType) -> impl Iterator<Item = &'static Entry> {
    let (from, to) = RANGES.get(usize::from(opcode)).copied().unwrap_or_default();
    let shared = COMMANDS.get(usize::from(from)..usize::from(to)).unwrap_or_default();
    let own = match device {
        DeviceType::Tape => tape::COMMANDS,
        DeviceType::Changer => changer::COMMANDS,
        DeviceType::Optical => optical::COMMANDS,
        DeviceType::Disk => &[],
    };
    let own = own.iter().filter(move |entry| entry.opcode == opcode);
    shared.iter().filter(move |entry| entry.types.include(device)).chain(own)
}

fn synchronize(cdb: Fields<'_>, access: Access) -> Cdb {
    Cdb::Synchronize { access: access.without_fua(), immediate: cdb.flag::<1>(IMMEDIATE) }
}

fn sanitize(cdb: Fields<'_>, method: Method, length: u32) -> Cdb {
    let (immediate, unrestricted) = (cdb.flag::<1>(0x80), cdb.flag::<1>(0x20));
    Cdb::Sanitize { method, immediate, unrestricted, length }
}

fn unrestricted(cdb: &Cdb, traits: Traits) -> Traits {
    match cdb {
        Cdb::Sanitize { unrestricted: true, .. } => traits.unrestricted(),
        _ => traits,
    }
}

fn extended_copy(cdb: Fields<'_>) -> Result<Cdb, Sense> {
    let length = cdb.u32::<10>();
    // A list that is too long is refused before it is fetched.
    if length > LIST_MAX {
        return Err(Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR));
    }
    Ok(Cdb::ExtendedCopy { length })
}

fn persistent_in(cdb: Fields<'_>, action: ReserveInAction) -> Cdb {
    Cdb::PersistentIn { action, allocation: cdb.u16::<7>().into() }
}

fn persistent_out(cdb: Fields<'_>, action: ReserveOutAction) -> Result<Cdb, Sense> {
    let length = cdb.u32::<5>();
    // SPC-4, 6.16.1: a list that is too long is refused before it is fetched.
    if length > PARAMETERS_MAX {
        return Err(Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR));
    }
    let scope_and_kind = cdb.u8::<2>();
    let (scope, kind) = (scope_and_kind >> 4, scope_and_kind & 0x0F);
    Ok(Cdb::PersistentOut(Out { action, scope, kind, length }))
}

fn select(cdb: Fields<'_>, form: Form, length: u32) -> Cdb {
    let (page_format, save) = (cdb.flag::<1>(0x10), cdb.flag::<1>(0x01));
    Cdb::ModeSelect { form, page_format, save, length }
}

fn sense(cdb: Fields<'_>, form: Form, allocation: u32) -> Cdb {
    Cdb::ModeSense {
        form,
        // MODE SENSE (6) has no LLBAA: its table row refuses the bit.
        long: cdb.flag::<1>(0x10),
        bare: cdb.flag::<1>(0x08),
        control: cdb.page_control(),
        page: cdb.u8::<2>() & 0x3F,
        subpage: cdb.u8::<3>(),
        allocation,
    }
}
