//! Packets as bytes (spec, 2).

mod ack;
mod block;
mod header;
mod options;
mod setup;

pub(super) use ack::{AckFrame, RANGES_MAX};
pub(super) use block::{
    CHECKSUM_LEN, Checksum, FRAGMENT_LEN, Fragment, MANAGE_MAX, REPLY_LEN, REQUEST_LEN,
    TaskRequest, WrongChecksum, precedes, read_reply, read_request, write_reply, write_request,
};
pub(super) use header::{HEADER_LEN, Header, Opcode, Sec};
pub(super) use options::{DeviceChange, Options};
pub(super) use setup::{
    COOKIE_LEN, MAC_LEN, Start, TOKEN_LEN, devices_reply, devices_request, not_understood,
    read_devices,
};
