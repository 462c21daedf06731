//! PDUs on their way between an initiator and a target, without digests.

use proto::iscsi::header::BHS_LEN;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Where a SCSI Command PDU has its command block (RFC 7143, 11.3).
pub(crate) const CDB: usize = 32;

/// A vendor specific operation code that our target does not know.
pub(crate) const UNKNOWN: u8 = 0xC0;

/// Passes PDUs on, each as `change` leaves it.
pub(crate) async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut change: impl FnMut(&mut Vec<u8>),
) {
    loop {
        let mut pdu = vec![0; BHS_LEN];
        if from.read_exact(&mut pdu).await.is_err() {
            return;
        }
        let data = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]) as usize;
        pdu.resize(BHS_LEN + usize::from(pdu[4]) * 4 + data.next_multiple_of(4), 0);
        if from.read_exact(&mut pdu[BHS_LEN..]).await.is_err() {
            return;
        }
        change(&mut pdu);
        if to.write_all(&pdu).await.is_err() {
            return;
        }
    }
}

/// Whether it is a SCSI Command.
pub(crate) fn is_command(pdu: &[u8]) -> bool {
    pdu[0] & 0x3F == 0x01
}

/// Whether it is a SCSI Response with CHECK CONDITION, and fixed format sense data (behind their length) that say
/// INVALID COMMAND OPERATION CODE.
pub(crate) fn is_unknown_operation(pdu: &[u8]) -> bool {
    pdu[0] & 0x3F == 0x21 && pdu[3] == 2 && pdu[BHS_LEN + 2 + 12] == 0x20
}
