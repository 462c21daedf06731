//! One fresh TCP stream, timed: what a link is worth, slow start included. Its blocks may be enciphered.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::cipher::Cipher;
use crate::{Failure, units};

/// How the stream is cut, and what is done to the pieces; the same at both ends.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Cut {
    /// How much is enciphered and given to the kernel at once
    #[arg(long, value_parser = units::size, default_value = "256K")]
    block: u64,
    /// What each block is enciphered with
    #[arg(long, value_enum, default_value_t = Cipher::None)]
    cipher: Cipher,
}

impl Cut {
    /// Bytes of a block on the wire that carries `len`, what the cipher cannot do without added.
    fn wire_len(self, len: u64) -> usize {
        len.next_multiple_of(self.cipher.unit() as u64) as usize + self.cipher.overhead()
    }
}

/// Accepts one stream, deciphers and counts it, and says so to the sender.
pub(crate) fn receive(address: &str, cut: Cut) -> Result<(), Failure> {
    let listener = TcpListener::bind(address)?;
    // Whoever started this may now connect.
    println!("ready {address}");
    let (mut stream, _) = listener.accept()?;
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let (mut left, mut received) = (u64::from_be_bytes(length), 0);
    let mut buffer = vec![0; cut.wire_len(cut.block)];
    let mut cipher = cut.cipher.keyed();
    for number in 0.. {
        let len = left.min(cut.block);
        if len == 0 {
            break;
        }
        let piece = &mut buffer[..cut.wire_len(len)];
        stream.read_exact(piece)?;
        cipher.open(number, piece).ok_or("a block does not decipher")?;
        received += len;
        left -= len;
    }
    stream.write_all(&u64::to_be_bytes(received))?;
    Ok(())
}

/// Sends `bytes` to a receiver and gives how much time passed until it had them all, from before the
/// connection was made.
pub(crate) fn send(address: &str, bytes: u64, cut: Cut) -> Result<Duration, Failure> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(&bytes.to_be_bytes())?;
    let plain = vec![0xa5; cut.wire_len(cut.block)];
    let mut sealed = Vec::with_capacity(plain.len());
    let mut cipher = cut.cipher.keyed();
    let mut left = bytes;
    for number in 0.. {
        let len = left.min(cut.block);
        if len == 0 {
            break;
        }
        let whole = &plain[..cut.wire_len(len) - cut.cipher.overhead()];
        match cut.cipher {
            Cipher::None => stream.write_all(whole)?,
            _ => {
                cipher.seal(number, whole, &mut sealed);
                stream.write_all(&sealed)?;
            }
        }
        left -= len;
    }
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
    fn sent_data_are_counted_at_the_other_end() {
        for cipher in [Cipher::None, Cipher::Aes, Cipher::TripleDes] {
            crosses(Cut { block: 65_536, cipher });
        }
    }

    fn crosses(cut: Cut) {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let there = address.clone();
        let receive = move || receive(&there, cut).map_err(|why| why.to_string());
        let receiver = std::thread::spawn(receive);
        let sent = loop {
            match send(&address, 1_000_003, cut) {
                // The receiver does not listen yet.
                Err(why) if why.to_string().contains("refused") => std::thread::yield_now(),
                sent => break sent,
            }
        };
        assert!(sent.is_ok(), "{sent:?}");
        assert_eq!(receiver.join().unwrap(), Ok(()));
    }
}
