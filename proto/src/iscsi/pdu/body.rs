//! A body of a secure session, from what is to be sent to what goes out.
//!
//! A body has its number and its place in the output from the moment it is queued, so that it does not matter by
//! whom it is encrypted, nor when, nor in which order (docs/spec/sealed-iscsi.md, 5).
//!
//! ```text
//! Waiting ------------------------------> Encrypted    all at once
//!    | \--> Begun -> Begun ... -> Begun ------^        piece by piece, as it is sent
//!    \----> Elsewhere ------------------------^        by somebody else
//! ```

use super::Pieces;
use crate::iscsi::sealed::{SealPermit, SealStream, TAG_LEN};

/// A large body on its way out.
#[derive(Debug)]
pub(super) enum Body {
    /// Nothing of it is encrypted.
    Waiting(WaitingBody),
    /// Its first pieces are encrypted.
    Begun(Box<BegunBody>),
    /// It is being encrypted elsewhere; so many bytes will come of it.
    Elsewhere(usize),
    /// All of it is encrypted, and so much of that has been sent.
    Encrypted(Vec<u8>, usize),
}

impl Body {
    /// How many bytes are still to be sent.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Waiting(body) => body.output_len(),
            Self::Begun(body) => body.len(),
            Self::Elsewhere(len) => *len,
            Self::Encrypted(output, sent) => output.len() - sent,
        }
    }

    /// What can be sent as it is.
    pub(super) fn ready(&self) -> &[u8] {
        match self {
            Self::Waiting(_) | Self::Elsewhere(_) => &[],
            Self::Begun(body) => body.ready(),
            Self::Encrypted(output, sent) => output.get(*sent..).unwrap_or_default(),
        }
    }

    /// How many bytes there are to encrypt here.
    pub(super) const fn unencrypted(&self) -> usize {
        match self {
            Self::Waiting(body) => body.input_len(),
            Self::Begun(body) => body.input_len(),
            Self::Elsewhere(_) | Self::Encrypted(..) => 0,
        }
    }

    pub(super) const fn is_encrypted(&self) -> bool {
        matches!(self, Self::Encrypted(..))
    }

    /// Encrypts it, or `most` bytes of it if it can be encrypted piece by piece. `room` gives an empty buffer.
    pub(super) fn encrypt(self, most: usize, room: impl FnOnce() -> Vec<u8>) -> Self {
        match self {
            Self::Waiting(body) if body.is_divisible() && body.input_len() > most => {
                Self::Begun(Box::new(body.begin(room()))).encrypt(most, Vec::new)
            }
            Self::Waiting(body) => {
                let mut output = room();
                body.encrypt(&mut output);
                Self::Encrypted(output, 0)
            }
            Self::Begun(mut body) => {
                body.encrypt(most);
                match body.input_len() {
                    0 => Self::Encrypted(body.finish(), 0),
                    _ => Self::Begun(body),
                }
            }
            other => other,
        }
    }

    /// The first `sent` of what was [ready](Self::ready) are gone.
    pub(super) const fn advance(&mut self, len: usize) {
        match self {
            Self::Begun(body) => body.sent += len,
            Self::Encrypted(_, sent) => *sent += len,
            Self::Waiting(_) | Self::Elsewhere(_) => debug_assert!(len == 0, "sent unencrypted"),
        }
    }
}

/// A body of which nothing is encrypted.
#[derive(Debug)]
pub(super) struct WaitingBody {
    ticket: SealPermit,
    data: Pieces,
}

impl WaitingBody {
    pub(super) const fn new(ticket: SealPermit, data: Pieces) -> Self {
        Self { ticket, data }
    }

    /// How many bytes there are to work on.
    pub(super) const fn input_len(&self) -> usize {
        self.data.len()
    }

    /// How many bytes come of it: all of it with its tag, or only the tag where the body itself is sent as it stands.
    pub(super) fn output_len(&self) -> usize {
        if self.ticket.enciphers() { self.data.len() + TAG_LEN } else { TAG_LEN }
    }

    /// Appends what comes of it to `out`.
    pub(super) fn encrypt(self, out: &mut Vec<u8>) {
        let mut pieces = self.data.into_vec();
        // Ciphers take a body in one piece; only several pieces are copied for it.
        let body = match pieces.len() {
            1 => pieces.swap_remove(0),
            _ => pieces.concat().into(),
        };
        if self.ticket.enciphers() {
            self.ticket.seal_body(&body, out);
        } else {
            self.ticket.seal_tag(&body, out);
        }
    }

    /// Whether it can be encrypted piece by piece.
    fn is_divisible(&self) -> bool {
        self.ticket.enciphers()
    }

    fn begin(self, output: Vec<u8>) -> BegunBody {
        BegunBody { stream: self.ticket.stream_body(), left: self.data, output, sent: 0 }
    }
}

/// A body of which the first pieces are encrypted.
#[derive(Debug)]
pub(super) struct BegunBody {
    stream: Box<dyn SealStream>,
    left: Pieces,
    /// What came of the pieces so far, as far as it is needed, and how much of it has been sent.
    output: Vec<u8>,
    sent: usize,
}

impl BegunBody {
    const fn input_len(&self) -> usize {
        self.left.len()
    }

    /// How many bytes are still to be sent, the tag among them.
    const fn len(&self) -> usize {
        self.output.len() - self.sent + self.left.len() + TAG_LEN
    }

    fn ready(&self) -> &[u8] {
        self.output.get(self.sent..).unwrap_or_default()
    }

    /// Encrypts the next `most` bytes. What has been sent makes room for them, so that they come to where the
    /// processor's cache is still warm.
    fn encrypt(&mut self, most: usize) {
        self.output.drain(..self.sent);
        self.sent = 0;
        let mut pieces = self.left.split_front(most);
        while let Some(piece) = pieces.take_front(most) {
            self.stream.seal(&piece, &mut self.output);
        }
    }

    /// All of it is encrypted: the rest of what comes of it.
    fn finish(mut self) -> Vec<u8> {
        self.output.drain(..self.sent);
        self.output.extend_from_slice(&self.stream.finish());
        self.output
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::iscsi::sealed::invariants::both_ends;
    use crate::iscsi::sealed::soft::new_aes_256_gcm;
    use crate::iscsi::sealed::{Limits, Protection};

    /// The same body each time: of two pieces, as the first of its session.
    fn waiting(protection: Protection) -> Body {
        let (mut sealer, _) = both_ends(protection, Limits::SPEC, new_aes_256_gcm);
        let ticket = sealer.next(5000, &mut Vec::new());
        let pieces = vec![Bytes::from(vec![1; 2000]), vec![2; 3000].into()];
        Body::Waiting(WaitingBody::new(ticket, Pieces::from(pieces)))
    }

    #[test]
    fn body_encrypted_piece_by_piece_is_the_same() {
        let whole = waiting(Protection::Encrypt).encrypt(5000, Vec::new);
        assert!(whole.is_encrypted() && whole.ready().len() == 5000 + TAG_LEN);
        for most in [1, 700, 4999] {
            let mut body = waiting(Protection::Encrypt);
            let mut sent = Vec::new();
            while !body.is_encrypted() {
                let (len, unencrypted) = (body.len(), body.unencrypted());
                body = body.encrypt(most, Vec::new);
                assert_eq!(body.unencrypted(), unencrypted.saturating_sub(most));
                assert_eq!(body.len(), len, "nothing was sent meanwhile");
                // Not all of it is taken each time.
                let taken = body.ready().len().div_ceil(2);
                sent.extend_from_slice(&body.ready()[..taken]);
                body.advance(taken);
            }
            sent.extend_from_slice(body.ready());
            assert!(sent == whole.ready(), "{most} at a time");
        }
    }

    #[test]
    fn only_the_tag_comes_of_a_body_that_is_not_enciphered() {
        let body = waiting(Protection::Integrity);
        assert_eq!((body.len(), body.unencrypted()), (TAG_LEN, 5000));
        let body = body.encrypt(1, Vec::new);
        assert!(body.is_encrypted(), "a tag is made at once");
        assert_eq!((body.len(), body.unencrypted()), (TAG_LEN, 0));
    }

    #[test]
    fn nothing_is_ready_of_a_body_that_is_elsewhere() {
        let body = Body::Elsewhere(70).encrypt(10, Vec::new);
        assert_eq!((body.len(), body.unencrypted(), body.ready()), (70, 0, &[][..]));
    }
}
