//! What holds for sealed PDUs whatever happens to them on the way, as a function a fuzzer can drive.

use super::{
    Direction, Head, Limits, Master, NewCipher, OpenError, Opener, Protection, SEALED_BHS_LEN,
    Sealer, TAG_LEN, Transcripts,
};
use crate::iscsi::header::{BHS_LEN, Lengths};
use crate::reader::{Reader, Truncated};

/// A script may repeat what it has repeated, and so double the wire with every byte.
const WIRE_MAX: usize = 64 << 10;

/// Of bodies in pieces. It is no multiple of a block of the cipher.
const PIECE: usize = 100;

/// Reads `bytes` as a script: what is sent, and what is done to it on the way. For any script: what is
/// opened is a beginning of what was sent, unchanged and in order; it is all of it where nothing was
/// done; and after the first part that does not open, nothing opens any more. Some bodies are sealed in pieces, and
/// others opened so.
pub fn holds(new_cipher: NewCipher, bytes: &[u8]) {
    let mut script = Reader::new(bytes);
    let Ok(setup) = script.u8() else { return };
    let protection = [Protection::Integrity, Protection::Encrypt][usize::from(setup & 1)];
    // Tiny limits, so that keys change within a short script.
    let limits =
        Limits { pdus: u64::from(setup >> 1 & 15) + 2, bytes: 2000, age: Limits::SPEC.age };
    let (sealer, mut opener) = both_ends(protection, limits, new_cipher);
    let mut path = Path::new(sealer);
    while path.wire.len() < WIRE_MAX && path.step(&mut script).is_ok() {}
    let opened = open_all(&mut opener, &mut path.wire);
    assert!(path.sent.starts_with(&opened), "something was opened that was not sent so");
    if !path.touched {
        assert_eq!(opened.len(), path.sent.len(), "something sent was not opened");
    }
}

/// A sealer and the opener for what it seals, with keys that are no secret: for tests.
pub fn both_ends(
    protection: Protection,
    limits: Limits,
    new_cipher: NewCipher,
) -> (Sealer, Opener) {
    let from = Direction::FromInitiator;
    let login = Transcripts { initiator: [1; 32], target: [2; 32] };
    let master = Master::extract(&[3; 32], &[4; 32], &[5; 32], None);
    let secret = || master.traffic(from, protection, 0, &login);
    let sealer = Sealer::new(from, protection, secret(), new_cipher, limits);
    (sealer, Opener::new(from, protection, secret(), new_cipher, limits))
}

/// Headers and bodies that were sent, and what is on the wire of them.
struct Path {
    sealer: Sealer,
    sent: Vec<([u8; BHS_LEN], Vec<u8>)>,
    wire: Vec<u8>,
    /// Where PDUs begin on the wire.
    borders: Vec<usize>,
    touched: bool,
}

impl Path {
    const fn new(sealer: Sealer) -> Self {
        Self { sealer, sent: Vec::new(), wire: Vec::new(), borders: Vec::new(), touched: false }
    }

    fn step(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        match script.u8()? % 8 {
            0 => self.flip(usize::from(script.u16()?), script.u8()?),
            1 => self.cut(usize::from(script.u16()?)),
            2 => self.repeat(usize::from(script.u8()?)),
            3 => self.drop_one(usize::from(script.u8()?)),
            4 => {
                let len = script.u8()?;
                self.insert(script.take(len.into())?);
            }
            _ => self.send(usize::from(script.u16()?) % 700),
        }
        Ok(())
    }

    fn send(&mut self, len: usize) {
        let mut bhs = [self.sent.len() as u8; BHS_LEN];
        bhs[0] = 0x05;
        bhs[4] = 0;
        let [_, high, middle, low] = (len as u32).to_be_bytes();
        bhs[5..8].copy_from_slice(&[high, middle, low]);
        let body = vec![self.sent.len() as u8; len];
        self.borders.push(self.wire.len());
        let ticket = self.sealer.next(len, &mut self.wire);
        ticket.seal_header(&bhs, &mut self.wire);
        if len % 2 == 1 && ticket.enciphers() {
            let mut stream = ticket.stream_body();
            body.chunks(PIECE).for_each(|piece| stream.seal(piece, &mut self.wire));
            self.wire.extend_from_slice(&stream.finish());
        } else if len > 0 {
            ticket.seal_body(&body, &mut self.wire);
        }
        self.sent.push((bhs, body));
    }

    fn flip(&mut self, at: usize, bits: u8) {
        let len = self.wire.len().max(1);
        if let Some(byte) = self.wire.get_mut(at % len) {
            *byte ^= bits;
            self.touched |= bits != 0;
        }
    }

    fn cut(&mut self, by: usize) {
        let left = self.wire.len().saturating_sub(by % 512);
        self.touched |= left < self.wire.len();
        self.wire.truncate(left);
    }

    fn repeat(&mut self, which: usize) {
        let Some(pdu) = self.pdu(which) else { return };
        let copy = self.wire.get(pdu).map(<[u8]>::to_vec).unwrap_or_default();
        self.insert(&copy);
    }

    fn drop_one(&mut self, which: usize) {
        let Some(pdu) = self.pdu(which) else { return };
        let end = pdu.end.min(self.wire.len());
        let start = pdu.start.min(end);
        self.touched |= start < end;
        self.wire.drain(start..end);
    }

    fn insert(&mut self, bytes: &[u8]) {
        self.touched |= !bytes.is_empty();
        self.wire.extend_from_slice(bytes);
    }

    fn pdu(&self, which: usize) -> Option<std::ops::Range<usize>> {
        let which = which.checked_rem(self.borders.len())?;
        let end = self.borders.get(which + 1).copied().unwrap_or(self.wire.len());
        Some(self.borders[which]..end)
    }
}

fn open_all(opener: &mut Opener, wire: &mut [u8]) -> Vec<([u8; BHS_LEN], Vec<u8>)> {
    let (mut rest, mut opened) = (wire, Vec::new());
    while let Some((header, behind)) = rest.split_first_chunk_mut::<SEALED_BHS_LEN>() {
        rest = behind;
        let bhs = match opener.open_header(header) {
            Ok(Head::Pdu(bhs)) => bhs,
            Ok(Head::Rekeyed) => continue,
            Err(_) => break,
        };
        let Lengths { ahs, data } = Lengths::parse(&bhs);
        let len = ahs + data;
        let sealed = if len > 0 { len + TAG_LEN } else { 0 };
        let Some((body, behind)) = rest.split_at_mut_checked(sealed) else { break };
        rest = behind;
        if len > 0 && open_body(opener, body, len % 3 == 1).is_err() {
            break;
        }
        opened.push((bhs, body.get(..len).unwrap_or_default().to_vec()));
    }
    opened
}

fn open_body(opener: &mut Opener, sealed: &mut [u8], in_pieces: bool) -> Result<(), OpenError> {
    match sealed.split_last_chunk_mut() {
        Some((text, tag)) if in_pieces && opener.deciphers() => {
            let len = text.len();
            text.chunks_mut(PIECE).try_for_each(|piece| opener.open_piece(len, piece))?;
            opener.end_body(tag)
        }
        _ => opener.open_body(sealed),
    }
}
