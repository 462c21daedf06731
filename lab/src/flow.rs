//! One fresh TCP stream, timed: what a link is worth, slow start included.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::Failure;

/// How much goes to the kernel at once.
const CHUNK: usize = 256 << 10;

/// Accepts one stream, counts it, and says so to the sender.
pub(crate) fn receive(address: &str) -> Result<(), Failure> {
    let listener = TcpListener::bind(address)?;
    // Whoever started this may now connect.
    println!("ready {address}");
    let (mut stream, _) = listener.accept()?;
    let mut buffer = vec![0; CHUNK];
    let mut received: u64 = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            len => received += len as u64,
        }
    }
    stream.write_all(&received.to_be_bytes())?;
    Ok(())
}

/// Sends `bytes` to a receiver and prints how many seconds passed until it had them all, from before the
/// connection was made.
pub(crate) fn send(address: &str, bytes: u64) -> Result<Duration, Failure> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(address)?;
    let buffer = vec![0xa5; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let len = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        stream.write_all(&buffer[..len])?;
        left -= len as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut received = [0; 8];
    stream.read_exact(&mut received)?;
    let taken = start.elapsed();
    let received = u64::from_be_bytes(received);
    if received != bytes {
        return Err(format!("{received} of {bytes} bytes arrived").into());
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_counted_at_the_other_end() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let there = address.clone();
        let receiver = std::thread::spawn(move || receive(&there).map_err(|why| why.to_string()));
        let sent = loop {
            match send(&address, 1_000_003) {
                // The receiver does not listen yet.
                Err(why) if why.to_string().contains("refused") => std::thread::yield_now(),
                sent => break sent,
            }
        };
        assert!(sent.is_ok(), "{sent:?}");
        assert_eq!(receiver.join().unwrap(), Ok(()));
    }
}
