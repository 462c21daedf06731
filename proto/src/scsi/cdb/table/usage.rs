//! Which bits of a command block the device evaluates: the maps of the rows.

/// DPO is a hint and is not needed here; FUA is obeyed; FUA_NV became obsolete with SBC-3 and is
/// ignored, as the group number is where groups are not supported.
pub(super) const ACCESS: u8 = 0x1A;
pub(super) const GROUP: u8 = 0x1F;
/// DPO and BYTCHK.
pub(super) const CHECKED: u8 = 0x16;

pub(super) const IMMEDIATE: u8 = 0x02;
/// IMMED, and the obsolete SYNC_NV, which is ignored.
pub(super) const SYNCHRONIZE: u8 = 0x06;

pub(super) const fn ten(opcode: u8, flags: u8) -> [u8; 10] {
    [opcode, flags, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0xFF, 0xFF, 0]
}

pub(super) const fn twelve(opcode: u8, flags: u8) -> [u8; 12] {
    [opcode, flags, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, GROUP, 0]
}

/// MANAGEMENT PROTOCOL SPECIFIC1 and 2 are not used.
pub(super) const fn management(opcode: u8) -> [u8; 12] {
    [opcode, 0x10, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0]
}

pub(super) const fn sixteen(opcode: u8, flags: u8) -> [u8; 16] {
    let mut usage = [0xFF; 16];
    usage[0] = opcode;
    usage[1] = flags;
    usage[14] = GROUP;
    usage[15] = 0;
    usage
}

pub(super) const COMPARE_AND_WRITE: [u8; 16] = {
    let mut usage = sixteen(0x89, ACCESS);
    usage[10] = 0;
    usage[11] = 0;
    usage[12] = 0;
    usage
};

/// ATOMIC BOUNDARY must be zero: there are none.
pub(super) const WRITE_ATOMIC: [u8; 16] = {
    let mut usage = sixteen(0x9C, 0x18);
    usage[10] = 0;
    usage[11] = 0;
    usage
};

pub(super) const LBA_STATUS: [u8; 16] = {
    let mut usage = sixteen(0x9E, 0x12);
    usage[14] = 0;
    usage
};

pub(super) const fn reserve_in(action: u8) -> [u8; 10] {
    [0x5E, action, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0]
}

pub(super) const fn reserve_out(action: u8) -> [u8; 10] {
    [0x5F, action, 0xFF, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0]
}
