//! The buffer that a connection is read into.
//!
//! Messages are slices of it, so nothing that arrives is copied, but for the part of a message that does not fit any more
//! into the buffer where it begins. Many small messages are read at once. Where messages are large, little is read past
//! the end of each: then that part is small, and each large message has a buffer of its own, which its owner may keep.

use bytes::buf::Limit;
use bytes::{BufMut as _, BytesMut};

/// How much is read at once while messages are small: many of them with one system call. Two of 64 KiB, as many clients send them,
/// have room with their headers, and a small part of the next one, which is all that is copied then.
const READ_MANY: usize = 136 << 10;

/// The least room of such a read. The rest of a buffer is used down to here, since a new one is an allocation, and the
/// old one lives as long as the slices of it.
const READ_MANY_MIN: usize = READ_MANY / 8;

/// How much is read past the end of a large message, and of the message that follows it.
pub(super) const READ_PAST: usize = 8 << 10;

/// From this length on a message is large. To copy half of a smaller one costs less than the system calls for it and for its
/// answer, which leaves together with that of another one else.
const LARGE: usize = 96 << 10;

/// So many reads after a large message little is read past the end of each: who sends it in pieces of which some are smaller
/// sends the next large one soon, and the part of it that would be read with a smaller one is copied, while the place where
/// it was is kept with that.
const AFTER_LARGE: u8 = 4;

/// The bytes that have arrived and are not used yet.
#[derive(Debug, Default)]
pub(super) struct ReceiveBuffer {
    bytes: BytesMut,
    size: Size,
}

/// The size of messages, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Size {
    /// They are small.
    #[default]
    Small,
    /// A large one is being received.
    Large,
    /// One of the last was large: a next one probably is, too. So many reads more are for that.
    AfterLarge(u8),
}

impl ReceiveBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Makes room for the next read, which is to fill no more than this. `missing` bytes of the next message are missing,
    /// as far as that is known.
    pub(super) fn room(&mut self, missing: usize) -> Limit<&mut BytesMut> {
        // All that is left here is the beginning of that message.
        if self.bytes.len() + missing >= LARGE {
            self.size = Size::Large;
        }
        let (least, most) = match self.size {
            Size::Small => (missing.max(READ_MANY_MIN), missing.max(READ_MANY)),
            Size::Large => (missing, missing + READ_PAST),
            Size::AfterLarge(_) => (missing, missing.max(READ_PAST)),
        };
        if let Size::AfterLarge(reads) = self.size {
            self.size = if reads > 1 { Size::AfterLarge(reads - 1) } else { Size::Small };
        }
        let free = self.bytes.capacity() - self.bytes.len();
        if free < least {
            self.reserve(most);
        }
        let free = self.bytes.capacity() - self.bytes.len();
        (&mut self.bytes).limit(free.min(most))
    }

    fn reserve(&mut self, room: usize) {
        if self.size == Size::Large {
            // A buffer of the same size as the last large message had, so that memory just freed fits.
            let mut own = BytesMut::with_capacity(self.bytes.len() + room);
            own.extend_from_slice(&self.bytes);
            self.bytes = own;
        } else {
            self.bytes.reserve(room);
        }
    }

    /// Adds bytes that were read elsewhere.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Has `decode` take messages off the front.
    pub(super) fn decode<T>(&mut self, decode: impl FnOnce(&mut BytesMut) -> T) -> T {
        let before = self.bytes.len();
        let decoded = decode(&mut self.bytes);
        if self.size == Size::Large && self.bytes.len() < before {
            self.release();
        }
        decoded
    }

    /// Leaves the buffer to the large message that was taken off it.
    fn release(&mut self) {
        self.size = Size::AfterLarge(AFTER_LARGE);
        let mut next = BytesMut::new();
        if !self.bytes.is_empty() {
            next.reserve(READ_PAST.max(self.bytes.len()));
            next.extend_from_slice(&self.bytes);
        }
        self.bytes = next;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// A stream of messages, each of a head that says how long the rest is.
    struct Stream {
        bytes: Vec<u8>,
        sent: usize,
        buffer: ReceiveBuffer,
        missing: usize,
        reads: usize,
    }

    const HEAD: usize = 8;

    impl Stream {
        fn of(lengths: impl Iterator<Item = usize>) -> Self {
            let message = |len: usize| [&len.to_be_bytes()[..], &vec![7; len]].concat();
            let bytes = lengths.flat_map(message).collect();
            Self { bytes, sent: 0, buffer: ReceiveBuffer::default(), missing: HEAD, reads: 0 }
        }

        /// Reads once as much as there is room for, at most `most`, as a socket would.
        fn read(&mut self, most: usize) {
            let mut room = self.buffer.room(self.missing);
            let len = room.remaining_mut().min(most).min(self.bytes.len() - self.sent);
            assert!(len > 0, "there is room for a read");
            room.put_slice(&self.bytes[self.sent..][..len]);
            self.sent += len;
            self.reads += 1;
        }

        fn next(&mut self) -> Option<Bytes> {
            let missing = &mut self.missing;
            self.buffer.decode(|bytes| {
                let head = bytes.first_chunk::<HEAD>().copied();
                let len = head.map_or(HEAD, |head| HEAD + usize::from_be_bytes(head));
                *missing = len.saturating_sub(bytes.len());
                if head.is_none() || *missing > 0 {
                    return None;
                }
                *missing = HEAD;
                Some(bytes.split_to(len).freeze())
            })
        }

        fn messages(&mut self, most: usize) -> Vec<Bytes> {
            let mut all = Vec::new();
            while self.sent < self.bytes.len() {
                self.read(most);
                while let Some(message) = self.next() {
                    all.push(message);
                }
            }
            all
        }
    }

    #[test]
    fn messages_are_whole_whatever_their_sizes_and_those_of_reads() {
        let sizes = [0, 40, 4096, 60 << 10, 64 << 10, 3, 256 << 10, 1, 1 << 20, 70_000, 9];
        for most in [1000, 8192, 50_000, usize::MAX] {
            let mut stream = Stream::of(sizes.into_iter().cycle().take(55));
            let lengths: Vec<_> =
                stream.messages(most).iter().map(|one| one.len() - HEAD).collect();
            assert!(lengths.into_iter().eq(sizes.into_iter().cycle().take(55)), "{most}");
        }
    }

    #[test]
    fn large_message_has_a_buffer_of_its_own() {
        let mut stream = Stream::of([256 << 10; 20].into_iter());
        stream.read(4096);
        assert!(stream.next().is_none());
        for _ in 0..18 {
            stream.read(usize::MAX);
            let message = stream.next().expect("one read for each");
            assert!(message.is_unique(), "the connection has let go of it");
            assert!(stream.next().is_none());
        }
    }

    #[test]
    fn large_message_stays_where_it_is_until_its_end() {
        let mut stream = Stream::of([256 << 10].into_iter());
        stream.read(4096);
        assert!(stream.next().is_none());
        stream.read(100_000);
        let place = stream.buffer.bytes.as_ptr();
        let message = loop {
            if let Some(message) = stream.next() {
                break message;
            }
            stream.read(30_000);
        };
        assert_eq!(message.as_ptr(), place);
    }

    /// Who keeps messages keeps their buffers: those of a write that comes in pieces of all sizes are little longer than it.
    #[test]
    fn messages_that_are_kept_keep_little_else() {
        let write = [64 << 10, 128 << 10, 64 << 10];
        let mut stream = Stream::of(write.into_iter().cycle().take(300));
        let (mut kept, mut buffers, mut last) = (Vec::new(), 0, std::ptr::null());
        while stream.sent < stream.bytes.len() {
            stream.read(usize::MAX);
            if !std::ptr::eq(last, stream.buffer.bytes.as_ptr()) {
                buffers += stream.buffer.bytes.capacity();
            }
            while let Some(message) = stream.next() {
                kept.push(message);
            }
            last = stream.buffer.bytes.as_ptr();
        }
        assert!(buffers * 8 <= stream.bytes.len() * 9, "{buffers} for {}", stream.bytes.len());
    }

    #[test]
    fn many_small_messages_are_read_at_once() {
        let mut stream = Stream::of([40; 10_000].into_iter());
        assert_eq!(stream.messages(usize::MAX).len(), 10_000);
        assert!(
            stream.reads <= 10_000 * (40 + HEAD) / (READ_MANY - READ_MANY_MIN) + 1,
            "{}",
            stream.reads
        );
        // After a large one, too.
        let mut stream = Stream::of([1 << 20].into_iter().chain([40; 10_000]));
        assert_eq!(stream.messages(usize::MAX).len(), 10_001);
        assert!(stream.reads <= 12, "{}", stream.reads);
    }
}
