//! What requests cost that nobody interprets: loops that move the same bytes between the same places, and know
//! neither iSCSI nor SCSI. No target that uses the same system calls can be cheaper.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::bench::fill;
use crate::rounds::{by_turns, median_of};
use crate::{Bench, Failure};

/// As much as a PDU has before its data.
const HEADER: usize = 48;

/// How much each place holds; large enough that nothing is in a cache of the processor.
const PLACE: usize = 1 << 30;

/// How many requests are under way.
const DEPTH: usize = 8;

/// What a loop does for each request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Reads from the file, and sends what it has read.
    ReadFile,
    /// Has the system send from the file.
    SendFile,
    /// Sends memory as it lies.
    SendMemory,
    /// Receives, and writes to the file.
    WriteFile,
    /// Receives, and copies to memory.
    CopyMemory,
    /// Receives to where it stays.
    ReceiveMemory,
}

/// One loop.
pub(crate) struct BareLoop {
    pub(crate) what: &'static str,
    pub(crate) block: usize,
    /// Microseconds of the processor for one request.
    pub(crate) cpu_us: f64,
}

/// Runs every loop in turn; medians of the rounds.
pub(crate) fn measure(options: &Bench) -> Result<Vec<BareLoop>, Failure> {
    if !"floor".contains(&options.only) {
        return Ok(Vec::new());
    }
    let scratch = tempfile::tempdir_in("/dev/shm")?;
    let path = scratch.path().join("file");
    fill(&path)?;
    let file = File::options().read(true).write(true).open(&path)?;
    let mut memory = vec![0xa5; PLACE];
    let ways = [
        (Way::ReadFile, "read: from the file to a buffer to the socket"),
        (Way::SendFile, "read: from the file to the socket (sendfile)"),
        (Way::SendMemory, "read: from memory to the socket"),
        (Way::WriteFile, "write: from the socket to a buffer to the file"),
        (Way::CopyMemory, "write: from the socket to a buffer to memory"),
        (Way::ReceiveMemory, "write: from the socket to memory"),
    ];
    let mut floors = Vec::new();
    for block in [4 << 10, 256 << 10] {
        let count = 20_000.min((4usize << 30) / block);
        for (way, what) in ways {
            let [spent] =
                by_turns(options.rounds, [&mut || run(way, block, count, &file, &mut memory)])?;
            let cpu_us = median_of(&spent, Duration::as_secs_f64) * 1e6 / count as f64;
            eprintln!("{} KiB, {what}: {cpu_us:.1} us", block >> 10);
            floors.push(BareLoop { what, block, cpu_us });
        }
    }
    Ok(floors)
}

/// The processor time of the serving side.
fn run(
    way: Way,
    block: usize,
    count: usize,
    file: &File,
    memory: &mut [u8],
) -> Result<Duration, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let reads = matches!(way, Way::ReadFile | Way::SendFile | Way::SendMemory);
    std::thread::scope(|scope| {
        let client = scope.spawn(move || -> std::io::Result<()> {
            pin(1)?;
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            let (asked, answered) = if reads { (0, block) } else { (block, 0) };
            ask(stream, asked, answered, count)
        });
        let server = scope.spawn(move || -> std::io::Result<Duration> {
            pin(0)?;
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            let before = processor_time();
            serve(stream, way, block, count, file, memory)?;
            Ok(processor_time() - before)
        });
        let spent = server.join().map_err(|_| "the server broke down")?;
        client.join().map_err(|_| "the client broke down")??;
        Ok(spent?)
    })
}

/// Keeps `DEPTH` requests under way.
fn ask(mut stream: TcpStream, asked: usize, answered: usize, count: usize) -> std::io::Result<()> {
    let (request, mut answer) = (vec![1; HEADER + asked], vec![0; HEADER + answered]);
    let mut sent = 0;
    for received in 0..count {
        while sent < count.min(received + DEPTH) {
            stream.write_all(&request)?;
            sent += 1;
        }
        stream.read_exact(&mut answer)?;
    }
    Ok(())
}

fn serve(
    mut stream: TcpStream,
    way: Way,
    block: usize,
    count: usize,
    file: &File,
    memory: &mut [u8],
) -> std::io::Result<()> {
    let (mut header, mut buffer) = ([0; HEADER], vec![0; block]);
    let mut seed = 1usize;
    for _ in 0..count {
        stream.read_exact(&mut header)?;
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (seed >> 20) % (PLACE / block) * block;
        let place = &mut memory[at..at + block];
        match way {
            Way::ReadFile => {
                file.read_exact_at(&mut buffer, at as u64)?;
                send(&mut stream, &header, &buffer)?;
            }
            Way::SendFile => {
                send(&mut stream, &header, &[])?;
                let mut from = at as u64;
                while from < (at + block) as u64 {
                    let left = at + block - from as usize;
                    if rustix::fs::sendfile(&stream, file, Some(&mut from), left)? == 0 {
                        return Err(std::io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
            Way::SendMemory => send(&mut stream, &header, place)?,
            Way::WriteFile => {
                stream.read_exact(&mut buffer)?;
                file.write_all_at(&buffer, at as u64)?;
            }
            Way::CopyMemory => {
                stream.read_exact(&mut buffer)?;
                place.copy_from_slice(&buffer);
            }
            Way::ReceiveMemory => stream.read_exact(place)?,
        }
        if matches!(way, Way::WriteFile | Way::CopyMemory | Way::ReceiveMemory) {
            stream.write_all(&header)?;
        }
    }
    Ok(())
}

fn send(stream: &mut TcpStream, header: &[u8], data: &[u8]) -> std::io::Result<()> {
    let written = stream.write_vectored(&[IoSlice::new(header), IoSlice::new(data)])?;
    stream.write_all(&header[written.min(header.len())..])?;
    stream.write_all(&data[written.saturating_sub(header.len())..])
}

fn pin(core: usize) -> std::io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
