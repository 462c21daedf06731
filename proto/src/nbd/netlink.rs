//! What is said to the kernel's NBD client over generic netlink (linux/nbd-netlink.h, linux/genetlink.h, linux/netlink.h):
//! bytes in the order of this machine.

use super::export::Export;
use super::wire::transmission;

/// Of the kernel's controller, which knows the numbers of all families.
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const ATTR_FAMILY_ID: u16 = 1;
const ATTR_FAMILY_NAME: u16 = 2;

/// The family of NBD.
const FAMILY: &str = "nbd";
const VERSION: u8 = 1;

// Types and flags of messages.
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;

/// Of an attribute that holds others.
const NESTED: u16 = 1 << 15;

const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;

const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const CLIENT_FLAGS: u16 = 6;
const SOCKETS: u16 = 7;
const DEAD_CONN_TIMEOUT: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;
const SOCK_ITEM: u16 = 1;
const SOCK_FD: u16 = 1;

/// `NBD_CFLAG_DISCONNECT_ON_CLOSE`.
const DISCONNECT_ON_CLOSE: u64 = 2;

/// A message and a generic one begin with so many bytes.
const HEAD: usize = 16;
const GENERIC_HEAD: usize = 4;

/// Of which the kernel makes a device, with a number of its own choice.
#[derive(Clone, Copy, Debug)]
pub struct Connect<'a> {
    /// In bytes.
    pub size: u64,
    /// Of the device, in bytes.
    pub block_size: u32,
    /// What the server can: [`kernel_flags`].
    pub flags: u16,
    /// The descriptor of the socket, which is in the transmission phase.
    pub socket: u32,
    /// By which the device is known: the file `backend` of its directory in sysfs, from Linux 5.14 on.
    pub identifier: &'a str,
    /// For how many seconds requests wait without a server.
    pub dead_for: u64,
}

/// What is changed of a device.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// A socket in the place of one that is dead.
    Socket(u32),
    /// Its size in bytes.
    Size(u64),
    /// It goes when nobody has it open any more.
    DisconnectOnClose,
}

/// What the kernel answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The number of the family.
    Family(u16),
    /// The number of the device.
    Device(u32),
    /// All was done.
    Done,
    /// It was not: an error of the system.
    Error(i32),
}

/// What the kernel's client is told of an export that it does not negotiate.
#[must_use]
pub const fn kernel_flags(export: &Export) -> u16 {
    use transmission::*;
    let flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA;
    match (export.read_only, export.trim) {
        (true, _) => flags | READ_ONLY,
        (false, true) => flags | SEND_WRITE_ZEROES | SEND_TRIM,
        (false, false) => flags | SEND_WRITE_ZEROES,
    }
}

/// Asks for the number of the family.
#[must_use]
pub fn ask_for_family() -> Vec<u8> {
    let mut message = Message::new(CONTROLLER, GET_FAMILY);
    message.text(ATTR_FAMILY_NAME, FAMILY);
    message.finish()
}

/// Makes a device.
#[must_use]
pub fn connect(family: u16, device: &Connect<'_>) -> Vec<u8> {
    let mut message = Message::new(family, CONNECT);
    message.long(SIZE_BYTES, device.size);
    message.long(BLOCK_SIZE_BYTES, device.block_size.into());
    // However long a request takes, its socket is not given up.
    message.long(TIMEOUT, 0);
    message.long(SERVER_FLAGS, device.flags.into());
    message.long(DEAD_CONN_TIMEOUT, device.dead_for);
    message.socket(device.socket);
    message.text(BACKEND_IDENTIFIER, device.identifier);
    message.finish()
}

/// Changes a device, which is refused if it has another identifier.
#[must_use]
pub fn reconfigure(family: u16, index: u32, identifier: &str, change: Change) -> Vec<u8> {
    let mut message = Message::new(family, RECONFIGURE);
    message.put(INDEX, &index.to_ne_bytes());
    message.text(BACKEND_IDENTIFIER, identifier);
    match change {
        Change::Socket(socket) => message.socket(socket),
        Change::Size(size) => message.long(SIZE_BYTES, size),
        Change::DisconnectOnClose => message.long(CLIENT_FLAGS, DISCONNECT_ON_CLOSE),
    }
    message.finish()
}

/// Ends a device: whoever uses it gets errors.
#[must_use]
pub fn disconnect(family: u16, index: u32) -> Vec<u8> {
    let mut message = Message::new(family, DISCONNECT);
    message.put(INDEX, &index.to_ne_bytes());
    message.finish()
}

/// The answers in what was received. The last one is [`Answer::Done`] or [`Answer::Error`]; what is not understood is left out.
#[must_use]
pub fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut found = Vec::new();
    while let Some((message, rest)) = cut(bytes, HEAD, word) {
        found.extend(answer(message));
        bytes = rest;
    }
    found
}

fn answer(message: &[u8]) -> Option<Answer> {
    let family = half(message.get(4..)?)?;
    let body = message.get(HEAD..)?;
    if family == ERROR {
        let code = word(body)?.cast_signed();
        return Some(if code == 0 { Answer::Done } else { Answer::Error(-code) });
    }
    let wanted = if family == CONTROLLER { ATTR_FAMILY_ID } else { INDEX };
    let mut attributes = body.get(GENERIC_HEAD..)?;
    while let Some((attribute, rest)) = cut(attributes, 4, |bytes| half(bytes).map(u32::from)) {
        let (kind, value) = (half(attribute.get(2..)?)?, attribute.get(4..)?);
        if kind == wanted {
            return match family {
                CONTROLLER => half(value).map(Answer::Family),
                _ => word(value).map(Answer::Device),
            };
        }
        attributes = rest;
    }
    None
}

/// The first of several that begin with their length, and the rest, which begins at a multiple of four.
fn cut(
    bytes: &[u8],
    least: usize,
    length: impl Fn(&[u8]) -> Option<u32>,
) -> Option<(&[u8], &[u8])> {
    let len = usize::try_from(length(bytes)?).ok()?;
    let first = bytes.get(..len).filter(|_| len >= least)?;
    Some((first, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

fn half(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().copied().map(u16::from_ne_bytes)
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_ne_bytes)
}

/// A message that is being made.
struct Message(Vec<u8>);

impl Message {
    fn new(family: u16, command: u8) -> Self {
        // The length comes last.
        let mut bytes = vec![0; 4];
        bytes.extend(family.to_ne_bytes());
        bytes.extend((REQUEST | ACKNOWLEDGE).to_ne_bytes());
        // One message at a time, so that its number says nothing; and the kernel knows the sender.
        bytes.extend([0; 8]);
        bytes.extend([command, VERSION, 0, 0]);
        Self(bytes)
    }

    fn put(&mut self, kind: u16, value: &[u8]) {
        // None is longer than a path.
        let len = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn long(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_ne_bytes());
    }

    fn text(&mut self, kind: u16, text: &str) {
        self.put(kind, &[text.as_bytes(), &[0]].concat());
    }

    /// A list of one socket.
    fn socket(&mut self, descriptor: u32) {
        let nested = |kind: u16, value: &[u8]| {
            let len = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
            [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
        };
        let socket = nested(SOCK_FD, &descriptor.to_ne_bytes());
        self.put(SOCKETS | NESTED, &nested(SOCK_ITEM | NESTED, &socket));
    }

    fn finish(mut self) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    /// linux/netlink.h: `struct nlmsghdr` and `struct nlattr`; linux/genetlink.h: `struct genlmsghdr`.
    #[test]
    fn family_is_asked_for_by_its_name() {
        let expected = [
            &[28, 0, 0, 0, 16, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
            &[3, 1, 0, 0],
            &[8, 0, 2, 0, b'n', b'b', b'd', 0],
        ];
        assert_eq!(ask_for_family(), expected.concat());
    }

    /// linux/nbd-netlink.h: the numbers of the attributes; drivers/block/nbd.c: their types.
    #[test]
    fn device_is_made_with_the_attributes_that_the_kernel_knows() {
        let device = Connect {
            size: 1 << 20,
            block_size: 4096,
            flags: 0x2d,
            socket: 7,
            identifier: "/a",
            dead_for: 9,
        };
        let expected = [
            &[112, 0, 0, 0, 33, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
            &[1, 1, 0, 0],
            &[12, 0, 2, 0, 0, 0, 16, 0, 0, 0, 0, 0],
            &[12, 0, 3, 0, 0, 16, 0, 0, 0, 0, 0, 0],
            &[12, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[12, 0, 5, 0, 0x2d, 0, 0, 0, 0, 0, 0, 0],
            &[12, 0, 8, 0, 9, 0, 0, 0, 0, 0, 0, 0],
            &[16, 0, 7, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0, 7, 0, 0, 0],
            &[7, 0, 10, 0, b'/', b'a', 0, 0],
        ];
        let expected = expected.concat();
        let message = connect(33, &device);
        assert_eq!(message[4..], expected[4..]);
        assert_eq!(message[..4], u32::try_from(message.len()).unwrap().to_le_bytes());
    }

    #[test]
    fn device_is_changed_and_ended_by_its_number() {
        let changed = |change| reconfigure(33, 5, "/a", change).split_off(20);
        let known = [&[8, 0, 1, 0, 5, 0, 0, 0][..], &[7, 0, 10, 0, b'/', b'a', 0, 0]].concat();
        let with = |attribute: &[u8]| [&known, attribute].concat();
        let socket = [16, 0, 7, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0, 7, 0, 0, 0];
        assert_eq!(changed(Change::Socket(7)), with(&socket));
        assert_eq!(changed(Change::Size(512)), with(&[12, 0, 2, 0, 0, 2, 0, 0, 0, 0, 0, 0]));
        let closing = [12, 0, 6, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(changed(Change::DisconnectOnClose), with(&closing));
        assert_eq!(disconnect(33, 5)[16..], [2, 1, 0, 0, 8, 0, 1, 0, 5, 0, 0, 0]);
    }

    #[test]
    fn answers_tell_numbers_and_errors() {
        let head = |len: u8, family: u8| [len, 0, 0, 0, family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        // The name comes before the number, and is as long as this with its padding.
        let family = [8, 0, 2, 0, b'n', b'b', b'd', 0, 6, 0, 1, 0, 33, 0, 0, 0];
        let told = [&head(36, 16)[..], &[1, 2, 0, 0], &family, &head(20, 2), &[0; 4]].concat();
        assert_eq!(answers(&told), [Answer::Family(33), Answer::Done]);
        let told = [&head(28, 33)[..], &[1, 1, 0, 0], &[8, 0, 1, 0, 5, 0, 0, 0]].concat();
        assert_eq!(answers(&told), [Answer::Device(5)]);
        let told = [&head(20, 2)[..], &(-2_i32).to_le_bytes()].concat();
        assert_eq!(answers(&told), [Answer::Error(2)]);
        for len in 0..told.len() {
            assert_eq!(answers(&told[..len]), []);
        }
        assert_eq!(answers(&[0; 64]), []);
    }

    #[test]
    fn kernel_is_told_what_an_export_can() {
        let mut export = Export {
            size: 512,
            minimum_block_size: 512,
            preferred_block_size: 512,
            read_only: false,
            trim: true,
            fast_zero: false,
            base_allocation: false,
            description: String::new(),
        };
        // linux/nbd.h: HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM; SEND_WRITE_ZEROES since Linux 6.12.
        assert_eq!(kernel_flags(&export), 1 | 4 | 8 | 32 | 64);
        export.trim = false;
        assert_eq!(kernel_flags(&export), 1 | 4 | 8 | 64);
        export.read_only = true;
        assert_eq!(kernel_flags(&export), 1 | 2 | 4 | 8);
    }
}
