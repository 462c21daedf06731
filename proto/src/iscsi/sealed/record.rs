//! Sealed PDUs: [`Sealer`] on the way out, [`Opener`] on the way in (spec, 5 and 6).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Cipher, Direction, Forged, NONCE_LEN, NewCipher, OpenStream, Protection, SealStream, Secret,
    TAG_LEN,
};
use crate::iscsi::header::BHS_LEN;
use crate::time::Time;

/// Bytes of a sealed header.
pub const SEALED_BHS_LEN: usize = BHS_LEN + TAG_LEN;

/// The number no PDU reaches: beyond it nonces would come again (spec, 6).
const NUMBER_END: u64 = 1 << 62;

/// How much one key seals before the next takes its place (spec, 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// PDUs.
    pub pdus: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// The age at which the next PDU takes the next key.
    pub age: Duration,
}

impl Limits {
    /// Those of the specification.
    pub const SPEC: Self = Self { pdus: 1 << 24, bytes: 1 << 36, age: Duration::from_secs(3600) };
}

/// The parts of a PDU, as the nonce tells them apart.
#[derive(Clone, Copy)]
enum Part {
    Header = 0,
    Body = 1,
}

fn nonce(number: u64, part: Part) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - 8..].copy_from_slice(&(2 * number + part as u64).to_be_bytes());
    nonce
}

/// The PDU that says: from the next on, my next key (spec, 6).
const fn rekey_bhs(direction: Direction) -> [u8; BHS_LEN] {
    let mut bhs = [0; BHS_LEN];
    bhs[0] = match direction {
        Direction::FromInitiator => 0x40 | 0x1e,
        Direction::FromTarget => 0x3e,
    };
    bhs[1] = 0x80;
    bhs
}

/// A key, what came before it, and what has been done with it.
struct Keyed {
    secret: Secret,
    cipher: Arc<dyn Cipher>,
    new_cipher: NewCipher,
    /// The number of the next PDU. It never starts again.
    number: u64,
    /// PDUs and bytes under this key.
    pdus: u64,
    bytes: u64,
}

impl Keyed {
    fn new(secret: Secret, new_cipher: NewCipher) -> Self {
        let cipher = Arc::from(new_cipher(&secret.key()));
        Self { secret, cipher, new_cipher, number: 0, pdus: 0, bytes: 0 }
    }

    /// The next key; the old one and its secret are dropped, and so wiped.
    fn advance(&mut self) {
        self.secret = self.secret.next();
        self.cipher = Arc::from((self.new_cipher)(&self.secret.key()));
        (self.pdus, self.bytes) = (0, 0);
    }

    /// Uses up the number of a PDU.
    const fn count(&mut self, body: u64) -> u64 {
        let number = self.number;
        self.number += 1;
        self.pdus += 1;
        self.bytes += body;
        number
    }
}

/// Seals what one side sends.
pub struct Sealer {
    direction: Direction,
    protection: Protection,
    keyed: Keyed,
    limits: Limits,
    /// When the key came into use; not known before the first tick.
    since: Option<Time>,
    now: Time,
}

/// The right to seal one PDU under its number, anywhere and at any time.
pub struct SealPermit {
    cipher: Arc<dyn Cipher>,
    protection: Protection,
    number: u64,
}

impl Sealer {
    /// Seals from now on, beginning with the first key of `secret`.
    #[must_use]
    pub fn new(
        direction: Direction,
        protection: Protection,
        secret: Secret,
        new_cipher: NewCipher,
        limits: Limits,
    ) -> Self {
        let keyed = Keyed::new(secret, new_cipher);
        Self { direction, protection, keyed, limits, since: None, now: Time::ZERO }
    }

    /// How the PDUs are protected.
    #[must_use]
    pub const fn protection(&self) -> Protection {
        self.protection
    }

    /// It is that late; keys grow old.
    pub fn tick(&mut self, now: Time) {
        self.now = now;
        self.since.get_or_insert(now);
    }

    /// Numbers the next PDU, whose body has `body` bytes. `out` is where its header will be sealed to:
    /// if the key has done its part, a PDU that says so is put there first.
    ///
    /// # Panics
    ///
    /// After 2^62 PDUs, which at a thousand million a second takes a hundred and forty years.
    #[must_use]
    pub fn next(&mut self, body: usize, out: &mut Vec<u8>) -> SealPermit {
        let body = body as u64;
        if self.is_due(body) {
            let ticket = self.ticket(0);
            ticket.seal_header(&rekey_bhs(self.direction), out);
            self.keyed.advance();
            self.since = Some(self.now);
        }
        self.ticket(body)
    }

    /// Whether the key has to make place. It always leaves room for the PDU that says so.
    fn is_due(&self, body: u64) -> bool {
        let Keyed { pdus, bytes, .. } = self.keyed;
        // A key that has sealed nothing can take any PDU; so even tiny limits come to an end.
        pdus > 0
            && (pdus + 1 >= self.limits.pdus
                || bytes.saturating_add(body) > self.limits.bytes
                || self.since.is_some_and(|since| self.now - since >= self.limits.age))
    }

    fn ticket(&mut self, body: u64) -> SealPermit {
        assert!(self.keyed.number < NUMBER_END, "the numbers of sealed PDUs are used up");
        let number = self.keyed.count(body);
        SealPermit { cipher: Arc::clone(&self.keyed.cipher), protection: self.protection, number }
    }
}

impl SealPermit {
    /// Appends the sealed header to `out`.
    pub fn seal_header(&self, bhs: &[u8; BHS_LEN], out: &mut Vec<u8>) {
        self.seal(Part::Header, bhs, out);
    }

    /// Appends the sealed body to `out`.
    pub fn seal_body(&self, body: &[u8], out: &mut Vec<u8>) {
        self.seal(Part::Body, body, out);
    }

    /// Begins a body that is enciphered piece by piece; what comes of it and its tag are those of
    /// [`seal_body`](Self::seal_body).
    #[must_use]
    pub fn stream_body(self) -> Box<dyn SealStream> {
        debug_assert!(self.enciphers());
        self.cipher.seal_stream(&nonce(self.number, Part::Body))
    }

    /// Whether bodies are enciphered; if not, they are sent as they stand, with a tag behind them.
    #[must_use]
    pub fn enciphers(&self) -> bool {
        self.protection == Protection::Encrypt
    }

    /// Appends only the tag of a body that is sent as it stands.
    pub fn seal_tag(&self, body: &[u8], out: &mut Vec<u8>) {
        debug_assert!(!self.enciphers());
        self.cipher.seal(&nonce(self.number, Part::Body), body, &[], out);
    }

    fn seal(&self, part: Part, bytes: &[u8], out: &mut Vec<u8>) {
        let nonce = nonce(self.number, part);
        match self.protection {
            Protection::Encrypt => self.cipher.seal(&nonce, &[], bytes, out),
            Protection::Integrity => {
                out.extend_from_slice(bytes);
                self.cipher.seal(&nonce, bytes, &[], out);
            }
        }
    }
}

/// Why what came is not what the peer sent next. Nothing more is taken after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The first header: most likely the login arrived otherwise than it was sent.
    #[error(
        "the first sealed PDU does not open: something on the way changed it, or the login before it"
    )]
    First,
    /// A header.
    #[error(
        "the header of sealed PDU {0} does not open: it was changed on the way, or is out of its place"
    )]
    Header(u64),
    /// A body.
    #[error("the data of sealed PDU {0} do not open: they were changed on the way")]
    Body(u64),
    /// The peer goes on with a key that has sealed too much.
    #[error("the peer did not change its key in time")]
    Overused,
    /// A PDU of the opcode that stands for a change of keys, and is none.
    #[error("the peer sent a malformed change of keys")]
    Rekey,
    /// Something came after a part that did not open.
    #[error("the seal was broken before")]
    Broken,
}

/// What a sealed header was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// That of a PDU.
    Pdu([u8; BHS_LEN]),
    /// The peer's next key is in use; the next part is a header again.
    Rekeyed,
}

/// Opens what one side has sent, in order.
pub struct Opener {
    direction: Direction,
    protection: Protection,
    keyed: Keyed,
    limits: Limits,
    /// The body that is opened piece by piece.
    begun: Option<Box<dyn OpenStream>>,
    /// A part did not open.
    broken: bool,
}

impl Opener {
    /// Opens what comes from `direction`.
    #[must_use]
    pub fn new(
        direction: Direction,
        protection: Protection,
        secret: Secret,
        new_cipher: NewCipher,
        limits: Limits,
    ) -> Self {
        let keyed = Keyed::new(secret, new_cipher);
        Self { direction, protection, keyed, limits, begun: None, broken: false }
    }

    /// Opens a header, in place.
    pub fn open_header(&mut self, sealed: &mut [u8; SEALED_BHS_LEN]) -> Result<Head, OpenError> {
        let number = self.keyed.count(0);
        let wrong = if number == 0 { OpenError::First } else { OpenError::Header(number) };
        self.open(Part::Header, number, sealed, wrong)?;
        let mut bhs = [0; BHS_LEN];
        bhs.copy_from_slice(&sealed[..BHS_LEN]);
        let rekey = rekey_bhs(self.direction);
        if bhs == rekey {
            self.keyed.advance();
            Ok(Head::Rekeyed)
        } else if (bhs[0] ^ rekey[0]) & 0x3f == 0 {
            Err(self.fail(OpenError::Rekey))
        } else {
            Ok(Head::Pdu(bhs))
        }
    }

    /// Opens the body that follows the header opened last, in place; the tag stands at its end.
    pub fn open_body(&mut self, sealed: &mut [u8]) -> Result<(), OpenError> {
        let number = self.begin_body(sealed.len().saturating_sub(TAG_LEN));
        self.open(Part::Body, number, sealed, OpenError::Body(number))
    }

    /// Whether bodies are enciphered, and so can be deciphered piece by piece.
    #[must_use]
    pub fn deciphers(&self) -> bool {
        self.protection == Protection::Encrypt
    }

    /// Deciphers the next piece of the body that follows the header opened last, which has `body` bytes. Nothing
    /// may be done with it before [`end_body`](Self::end_body).
    pub fn open_piece(&mut self, body: usize, piece: &mut [u8]) -> Result<(), OpenError> {
        debug_assert!(self.deciphers());
        if self.begun.is_none() {
            let number = self.begin_body(body);
            self.allow(number)?;
            self.begun = Some(self.keyed.cipher.open_stream(&nonce(number, Part::Body)));
        }
        self.begun.iter_mut().for_each(|stream| stream.open(piece));
        Ok(())
    }

    /// Whether the pieces were the body that was sealed with this tag.
    pub fn end_body(&mut self, tag: &[u8; TAG_LEN]) -> Result<(), OpenError> {
        let wrong = OpenError::Body(self.keyed.number.saturating_sub(1));
        let Some(stream) = self.begun.take() else { return Err(self.fail(wrong)) };
        stream.finish(tag).map_err(|Forged| self.fail(wrong))
    }

    /// Counts a body; the number of its PDU.
    const fn begin_body(&mut self, body: usize) -> u64 {
        self.keyed.bytes = self.keyed.bytes.saturating_add(body as u64);
        self.keyed.number.saturating_sub(1)
    }

    /// Opens one part; `wrong` is what it means if it does not open.
    fn open(
        &mut self,
        part: Part,
        number: u64,
        sealed: &mut [u8],
        wrong: OpenError,
    ) -> Result<(), OpenError> {
        self.allow(number)?;
        self.check(&nonce(number, part), sealed).map_err(|Forged| self.fail(wrong))
    }

    /// Whether anything more is to be opened.
    const fn allow(&mut self, number: u64) -> Result<(), OpenError> {
        if self.broken {
            return Err(OpenError::Broken);
        }
        let Keyed { pdus, bytes, .. } = self.keyed;
        if pdus > 2 * self.limits.pdus || bytes > 2 * self.limits.bytes || number >= NUMBER_END {
            return Err(self.fail(OpenError::Overused));
        }
        Ok(())
    }

    fn check(&self, nonce: &[u8; NONCE_LEN], sealed: &mut [u8]) -> Result<(), Forged> {
        let (text, tag) = sealed.split_last_chunk_mut::<TAG_LEN>().ok_or(Forged)?;
        match self.protection {
            Protection::Encrypt => self.keyed.cipher.open(nonce, &[], text, tag),
            Protection::Integrity => self.keyed.cipher.open(nonce, text, &mut [], tag),
        }
    }

    const fn fail(&mut self, error: OpenError) -> OpenError {
        self.broken = true;
        error
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.keyed.number;
        write!(f, "Sealer({:?}, {:?}, next {number})", self.direction, self.protection)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.keyed.number;
        write!(f, "Opener({:?}, {:?}, next {number})", self.direction, self.protection)
    }
}

impl fmt::Debug for SealPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealPermit({})", self.number)
    }
}
