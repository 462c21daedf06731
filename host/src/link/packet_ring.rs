//! A ring of frames that a packet socket receives into, in memory shared with the kernel (PACKET_RX_RING, TPACKET_V2; see
//! packet(7) and Documentation/networking/packet_mmap.rst of Linux).
//!
//! TPACKET_V3 hands over blocks of frames, each when it is full or some whole milliseconds old. A single packet would wait
//! that long, which is thirty times its round trip; so each frame is handed over by itself.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::Mac;
use super::socket_option::set;

/// What the kernel writes before the data: its header, the address, and 16 bytes for a link header that is not handed over.
const OVERHEAD: usize = align(HEADER_LEN + size_of::<libc::sockaddr_ll>()) + 16;
const HEADER_LEN: usize = align(size_of::<libc::tpacket2_hdr>());

/// A block is contiguous memory, which is scarce: the less of it is asked for at once the better.
const BLOCK: usize = 1 << 16;

/// TPACKET_ALIGN.
const fn align(len: usize) -> usize {
    len.next_multiple_of(libc::TPACKET_ALIGNMENT)
}

/// Frames of a packet socket.
#[derive(Debug)]
pub(super) struct PacketRing {
    memory: NonNull<u8>,
    len: usize,
    frame: usize,
    frames_per_block: usize,
    frames: usize,
    /// The frame that is filled next.
    next: usize,
    /// Packets that were longer than a frame.
    pub(super) cut: u64,
}

// SAFETY: the memory belongs to the ring alone on our side of the kernel; no thread keeps a pointer to it elsewhere.
unsafe impl Send for PacketRing {}

impl PacketRing {
    /// Gives a packet socket a ring of about `bytes` for packets of at most `mtu` bytes.
    pub(super) fn new(socket: impl AsFd, mtu: usize, bytes: usize) -> io::Result<Self> {
        set(
            &socket,
            libc::SOL_PACKET,
            libc::PACKET_VERSION,
            &(libc::tpacket_versions::TPACKET_V2 as libc::c_int),
        )?;
        let frame = align(OVERHEAD + mtu);
        let block = BLOCK.max(frame.next_power_of_two());
        let blocks = bytes.div_ceil(block).max(1);
        let (frames_per_block, len) = (block / frame, block * blocks);
        let frames = frames_per_block * blocks;
        let request = libc::tpacket_req {
            tp_block_size: block as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: frame as u32,
            tp_frame_nr: frames as u32,
        };
        set(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let memory = unsafe {
            mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, socket.as_fd(), 0)
        }?;
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, len, frame, frames_per_block, frames, next: 0, cut: 0 })
    }

    /// Hands over at most `most` packets; how many it were.
    pub(super) fn receive(&mut self, most: usize, each: &mut dyn FnMut(Mac, &mut [u8])) -> usize {
        let mut count = 0;
        while count < most && self.receive_one(each) {
            count += 1;
        }
        count
    }

    fn receive_one(&mut self, each: &mut dyn FnMut(Mac, &mut [u8])) -> bool {
        let at = self.next / self.frames_per_block * self.block()
            + self.next % self.frames_per_block * self.frame;
        // SAFETY: `at` is the start of a frame, which lies within the mapping; a frame begins aligned to 16 bytes.
        let start = unsafe { self.memory.add(at) };
        // SAFETY: a frame starts with `tp_status`, 32 bits that the kernel changes while we look, so they are atomic.
        let status = unsafe { start.cast::<AtomicU32>().as_ref() };
        // Whatever the kernel wrote to the frame before it set this bit is seen after it.
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return false;
        }
        // SAFETY: the frame is ours until its status is set back, lies within the mapping and is `frame` bytes long.
        let frame = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.frame) };
        match parse(frame) {
            Some((from, packet)) => each(from, packet),
            None => self.cut += 1,
        }
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.frames;
        true
    }

    const fn block(&self) -> usize {
        self.len / (self.frames / self.frames_per_block)
    }
}

/// The sender and the bytes of a packet; `None` if not all of it is there.
fn parse(frame: &mut [u8]) -> Option<(Mac, &mut [u8])> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(*frame.get(at..)?.first_chunk()?) as usize);
    let (len, kept) = (u32_at(4)?, u32_at(8)?);
    // `tp_net`: where the packet begins, without the header of the link.
    let start = usize::from(u16::from_ne_bytes(*frame.get(14..)?.first_chunk()?));
    // `sll_addr`.
    let from = Mac(*frame.get(HEADER_LEN + 12..)?.first_chunk()?);
    let packet = frame.get_mut(start..start.checked_add(kept)?)?;
    (len == kept).then_some((from, packet))
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, as long as this, and nobody has a slice of it: each call that hands one out ends
        // before it could be dropped.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.len) };
    }
}
