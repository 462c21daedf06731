//! TransportIDs whose identifier is text, as those of iSCSI are (SPC-4, 7.6.4.6).

use super::transport::{NotATransportId, PORT_ID_MAX, TransportId};
use crate::reader::Reader;

/// TPID FORMAT.
const FORMAT: u8 = 0xC0;
const FORMAT_DEVICE: u8 = 0x00;
const FORMAT_PORT: u8 = 0x40;

/// ADDITIONAL LENGTH is at least this, and a multiple of four.
const ADDITIONAL_MIN: usize = 20;

/// What the text of a TransportID names.
pub(crate) enum TextId<'a> {
    /// A device by its name.
    Device(&'a str),
    /// A port by the name of its device, and what stands behind the separator.
    Port(&'a str, &'a str),
}

/// Reads a TransportID, all of it, in which `separator` stands between device and port.
pub(crate) fn read<'a>(
    reader: &mut Reader<'a>,
    separator: &str,
) -> Result<TextId<'a>, NotATransportId> {
    let [first, _] = reader.array()?;
    let length = usize::from(reader.u16()?);
    let text = reader.take(length)?;
    if !(ADDITIONAL_MIN..=PORT_ID_MAX).contains(&length) || !length.is_multiple_of(4) {
        return Err(NotATransportId);
    }
    // The first NUL ends the text, whatever follows it.
    let end = text.iter().position(|byte| *byte == 0).ok_or(NotATransportId)?;
    let text = text.get(..end).and_then(|text| str::from_utf8(text).ok());
    let text = text.ok_or(NotATransportId)?;
    match first & FORMAT {
        FORMAT_DEVICE => Ok(TextId::Device(text)),
        FORMAT_PORT => {
            let (device, port) = text.rsplit_once(separator).ok_or(NotATransportId)?;
            Ok(TextId::Port(device, port))
        }
        _ => Err(NotATransportId),
    }
}

/// The TransportID as it stands in parameter data.
pub(crate) fn write(id: &TransportId) -> Vec<u8> {
    let (format, protocol, text) = match id {
        TransportId::Device { protocol, name } => (FORMAT_DEVICE, *protocol, name),
        TransportId::Port(port) => (FORMAT_PORT, port.protocol, &port.id),
    };
    let length = (text.len() + 1).next_multiple_of(4).max(ADDITIONAL_MIN);
    let mut bytes = vec![format | protocol.code(), 0];
    bytes.extend((length as u16).to_be_bytes());
    bytes.extend(text.bytes());
    bytes.resize(4 + length, 0);
    bytes
}
