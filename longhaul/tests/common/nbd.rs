//! An NBD client that does one thing at a time, or asks for several and looks who is answered first.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::common::PATIENCE;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const WRITE_ZEROES: u16 = 6;
const FUA: u16 = 1;

/// Instead of an error number: the connection ended before the answer.
pub(crate) const ENDED: u32 = u32::MAX;

const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// A connection whose export was chosen.
pub(crate) struct Nbd {
    stream: UnixStream,
    cookies: u64,
}

/// The answer to a request: its cookie, and an error number or 0.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) errno: u32,
}

impl Nbd {
    pub(crate) fn connect(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[8..16], OPTION_MAGIC);
        // Fixed newstyle and no padding; then the export without a name.
        let mut hello = 3_u32.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC);
        hello.extend(1_u32.to_be_bytes());
        hello.extend(0_u32.to_be_bytes());
        stream.write_all(&hello).unwrap();
        let mut export = [0; 10];
        stream.read_exact(&mut export).unwrap();
        Self { stream, cookies: 0 }
    }

    fn ask(&mut self, flags: u16, kind: u16, at: u64, len: usize, data: &[u8]) -> u64 {
        self.cookies += 1;
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend(flags.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(self.cookies.to_be_bytes());
        request.extend(at.to_be_bytes());
        request.extend(u32::try_from(len).unwrap().to_be_bytes());
        request.extend(data);
        // If the other end is gone, no answer comes, which tells.
        let _ = self.stream.write_all(&request);
        self.cookies
    }

    /// The next reply, whosever it is.
    pub(crate) fn reply(&mut self) -> Reply {
        self.try_reply().expect("an answer comes")
    }

    /// The same; nothing if the connection has ended.
    fn try_reply(&mut self) -> Option<Reply> {
        let mut head = [0; 16];
        match self.stream.read_exact(&mut head) {
            Err(why) if why.kind() == ErrorKind::WouldBlock => {
                panic!("neither an answer nor an end")
            }
            Err(_) => return None,
            Ok(()) => {}
        }
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), REPLY_MAGIC);
        Some(Reply { cookie: u64::from(word(8)) << 32 | u64::from(word(12)), errno: word(4) })
    }

    fn finish(&mut self, cookie: u64) -> Result<(), u32> {
        let Some(reply) = self.try_reply() else { return Err(ENDED) };
        assert_eq!(reply.cookie, cookie);
        if reply.errno == 0 { Ok(()) } else { Err(reply.errno) }
    }

    pub(crate) fn write(&mut self, at: u64, data: &[u8]) -> Result<(), u32> {
        let cookie = self.ask(0, WRITE, at, data.len(), data);
        self.finish(cookie)
    }

    /// A write that is durable when it is answered (FUA).
    pub(crate) fn write_durably(&mut self, at: u64, data: &[u8]) -> Result<(), u32> {
        let cookie = self.begin_durable_write(at, data);
        self.finish(cookie)
    }

    pub(crate) fn begin_durable_write(&mut self, at: u64, data: &[u8]) -> u64 {
        self.ask(FUA, WRITE, at, data.len(), data)
    }

    pub(crate) fn write_zeroes(&mut self, at: u64, len: usize) -> Result<(), u32> {
        let cookie = self.ask(0, WRITE_ZEROES, at, len, &[]);
        self.finish(cookie)
    }

    pub(crate) fn flush(&mut self) -> Result<(), u32> {
        let cookie = self.begin_flush();
        self.finish(cookie)
    }

    pub(crate) fn begin_flush(&mut self) -> u64 {
        self.ask(0, FLUSH, 0, 0, &[])
    }

    pub(crate) fn begin_read(&mut self, at: u64, len: usize) -> u64 {
        self.ask(0, READ, at, len, &[])
    }

    /// The data of a read that succeeded, behind its reply.
    pub(crate) fn data(&mut self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data).unwrap();
        data
    }

    pub(crate) fn read(&mut self, at: u64, len: usize) -> Result<Vec<u8>, u32> {
        let cookie = self.begin_read(at, len);
        self.finish(cookie)?;
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data).map_err(|_| ENDED)?;
        Ok(data)
    }
}
