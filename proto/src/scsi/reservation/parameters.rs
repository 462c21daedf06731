//! The parameter lists of PERSISTENT RESERVE OUT (SPC-4, 6.16.3 and 6.16.4).

use super::Key;
use crate::reader::{Reader, Truncated};
use crate::scsi::Sense;
use crate::scsi::sense::Additional;
use crate::scsi::transport::{InitiatorPort, TransportId, Transports};

/// The list of every service action but REGISTER AND MOVE.
#[derive(Clone, Copy, Debug)]
pub(super) struct Basic<'a> {
    /// RESERVATION KEY.
    pub(super) key: Key,
    /// SERVICE ACTION RESERVATION KEY.
    pub(super) action_key: Key,
    /// SPEC_I_PT.
    pub(super) names_initiators: bool,
    /// ALL_TG_PT.
    pub(super) all_target_ports: bool,
    /// APTPL.
    pub(super) through_power_loss: bool,
    /// What follows.
    additional: Reader<'a>,
}

/// The list of REGISTER AND MOVE.
#[derive(Clone, Debug)]
pub(super) struct Move<'a> {
    pub(super) key: Key,
    pub(super) action_key: Key,
    /// UNREG.
    pub(super) unregister: bool,
    /// APTPL.
    pub(super) through_power_loss: bool,
    /// RELATIVE TARGET PORT IDENTIFIER.
    pub(super) target_port: u16,
    transport_ids: Reader<'a>,
}

/// Where fields start, for the field pointer of the sense data.
pub(super) mod at {
    pub(in super::super) const ACTION_KEY: u16 = 8;
    pub(in super::super) const BASIC_FLAGS: u16 = 20;
    pub(in super::super) const TARGET_PORT: u16 = 18;
    pub(in super::super) const TRANSPORT_IDS_LENGTH: u16 = 20;
    pub(in super::super) const MOVE_TRANSPORT_ID: u16 = 24;
    pub(in super::super) const BASIC_TRANSPORT_IDS: u16 = 28;
}

/// The bits of the flags, as field pointers have them.
pub(super) mod bit {
    pub(in super::super) const SPEC_I_PT: u8 = 3;
    pub(in super::super) const APTPL: u8 = 0;
}

const fn length_error() -> Sense {
    Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR)
}

impl<'a> Basic<'a> {
    pub(super) fn parse(list: &'a [u8]) -> Result<Self, Sense> {
        let basic = Self::read(list).map_err(|_| length_error())?;
        // SPC-4, 6.16.1: 24 bytes, unless SPEC_I_PT announces more.
        if !basic.names_initiators && !basic.additional.rest().is_empty() {
            return Err(length_error());
        }
        Ok(basic)
    }

    fn read(list: &'a [u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(list);
        let (key, action_key) = (reader.u64()?, reader.u64()?);
        let [.., flags, _, _, _] = reader.array::<8>()?;
        Ok(Self {
            key,
            action_key,
            names_initiators: flags & 1 << bit::SPEC_I_PT != 0,
            all_target_ports: flags & 0x04 != 0,
            through_power_loss: flags & 1 << bit::APTPL != 0,
            additional: reader,
        })
    }

    /// The TransportIDs that follow, all of them or an error: none is acted on if one is wrong.
    pub(super) fn transport_ids(&self, known: Transports) -> Result<Vec<TransportId>, Sense> {
        let mut reader = self.additional;
        let announced = reader.u32().map_err(|_| length_error())?;
        let mut ids = list(&mut reader, announced).map_err(|_| length_error())?;
        let mut found = Vec::new();
        while !ids.rest().is_empty() {
            let wrong = Sense::invalid_parameter(at::BASIC_TRANSPORT_IDS, None);
            found.push(known.read(&mut ids).map_err(|_| wrong)?);
        }
        Ok(found)
    }
}

impl<'a> Move<'a> {
    pub(super) fn parse(list: &'a [u8]) -> Result<Self, Sense> {
        Self::read(list).map_err(|_| length_error())
    }

    fn read(bytes: &'a [u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let (key, action_key) = (reader.u64()?, reader.u64()?);
        let [_, flags] = reader.array()?;
        let target_port = reader.u16()?;
        let announced = reader.u32()?;
        Ok(Self {
            key,
            action_key,
            unregister: flags & 0x02 != 0,
            through_power_loss: flags & 1 << bit::APTPL != 0,
            target_port,
            transport_ids: list(&mut reader, announced)?,
        })
    }

    /// The initiator port the reservation moves to: one TransportID, which names a port.
    pub(super) fn initiator(&self, known: Transports) -> Result<InitiatorPort, Sense> {
        let mut reader = self.transport_ids;
        let parsed = known.read(&mut reader);
        if !reader.rest().is_empty() {
            return Err(Sense::invalid_parameter(at::TRANSPORT_IDS_LENGTH, None));
        }
        match parsed {
            Ok(TransportId::Port(port)) => Ok(port),
            _ => Err(Sense::invalid_parameter(at::MOVE_TRANSPORT_ID, None)),
        }
    }
}

/// The next `announced` bytes: fewer would be a truncated list.
fn list<'a>(reader: &mut Reader<'a>, announced: u32) -> Result<Reader<'a>, Truncated> {
    let announced = usize::try_from(announced).unwrap_or(usize::MAX);
    reader.take(announced).map(Reader::new)
}
