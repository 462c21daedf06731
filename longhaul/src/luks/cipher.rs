//! The sector cipher of a volume: short spans at once, long ones on several processors.

use std::sync::Arc;

use bytes::BytesMut;
use host::cipher::{KeyError, Xts};
use tokio::sync::oneshot;
use volume::layer::crypt::{Ciphering, SectorCipher, TWEAK_UNIT};

use crate::cipher_pool::{CIPHER_POOL, worthwhile};

/// Bounds of a piece, whatever was measured: below, handing over costs more than any cipher; above,
/// the largest transfer would not be cut even on a machine that was measured wrongly.
const PIECE_RANGE: (usize, usize) = (16 << 10, 4 << 20);

/// AES-XTS over the processors of this machine.
pub struct PooledXts {
    xts: Arc<Xts>,
    sector_size: u32,
    piece: usize,
}

#[derive(Clone, Copy)]
enum Direction {
    Encrypt,
    Decrypt,
}

impl PooledXts {
    /// A cipher with this key, which measures how fast it is here.
    pub fn new(key: &[u8], sector_size: u32) -> Result<Self, KeyError> {
        let xts = Xts::new(key)?;
        let piece = worthwhile_piece(&xts, sector_size as usize);
        tracing::debug!(piece, threads = CIPHER_POOL.threads(), "ciphering longer spans in pieces");
        Ok(Self { xts: Arc::new(xts), sector_size, piece })
    }

    /// The same, cut into pieces of at least `piece` bytes.
    #[cfg(test)]
    fn with_piece(self, piece: usize) -> Self {
        Self { piece, ..self }
    }

    fn run(&self, direction: Direction, tweak: u64, mut sectors: BytesMut) -> Ciphering<'_> {
        let shares = (sectors.len() / self.piece).min(CIPHER_POOL.threads() + 1);
        if shares < 2 {
            apply(&self.xts, direction, tweak, self.sector_size, &mut sectors);
            return Box::pin(std::future::ready(sectors));
        }
        let share = sectors.len().div_ceil(shares).next_multiple_of(self.sector_size as usize);
        let rest = sectors.split_off(share);
        let elsewhere = self.hand_out(direction, tweak + share as u64 / TWEAK_UNIT, rest, share);
        Box::pin(async move {
            apply(&self.xts, direction, tweak, self.sector_size, &mut sectors);
            for piece in elsewhere {
                // The pieces lie one behind the other, so this joins them without a copy.
                sectors.unsplit(piece.await.expect("a cipher thread does not panic"));
            }
            sectors
        })
    }

    fn hand_out(
        &self,
        direction: Direction,
        mut tweak: u64,
        mut rest: BytesMut,
        share: usize,
    ) -> Vec<oneshot::Receiver<BytesMut>> {
        let mut answers = Vec::new();
        while !rest.is_empty() {
            let mut piece = rest.split_to(share.min(rest.len()));
            let (xts, sector_size) = (Arc::clone(&self.xts), self.sector_size);
            let (done, answer) = oneshot::channel();
            let job = Box::new(move || {
                apply(&xts, direction, tweak, sector_size, &mut piece);
                // Nobody listens any more if the request was dropped.
                let _ = done.send(piece);
            });
            if let Err(job) = CIPHER_POOL.submit(job) {
                job();
            }
            answers.push(answer);
            tweak += share as u64 / TWEAK_UNIT;
        }
        answers
    }
}

fn apply(xts: &Xts, direction: Direction, tweak: u64, sector_size: u32, sectors: &mut [u8]) {
    match direction {
        Direction::Encrypt => xts.encrypt(tweak, sector_size as usize, sectors),
        Direction::Decrypt => xts.decrypt(tweak, sector_size as usize, sectors),
    }
}

/// The smallest piece that is worth handing over.
fn worthwhile_piece(xts: &Xts, sector_size: usize) -> usize {
    let mut sample = vec![0; PIECE_RANGE.0];
    let piece = worthwhile(sample.len(), || xts.encrypt(0, sector_size, &mut sample));
    piece.clamp(PIECE_RANGE.0, PIECE_RANGE.1)
}

impl SectorCipher for PooledXts {
    fn sector_size(&self) -> u32 {
        self.sector_size
    }

    fn encrypt(&self, tweak: u64, sectors: BytesMut) -> Ciphering<'_> {
        self.run(Direction::Encrypt, tweak, sectors)
    }

    fn decrypt(&self, tweak: u64, sectors: BytesMut) -> Ciphering<'_> {
        self.run(Direction::Decrypt, tweak, sectors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_come_back_in_place_and_as_one_span_ciphers() {
        let key: Vec<u8> = (0..64).collect();
        let xts = Xts::new(&key).unwrap();
        for (sectors, sector_size) in [(1, 4096), (7, 4096), (64, 512), (1000, 4096), (999, 1024)] {
            let cipher = PooledXts::new(&key, sector_size).unwrap().with_piece(16 << 10);
            let plain: Vec<u8> = (0..sectors * sector_size).map(|at| (at >> 5) as u8).collect();
            let mut expected = plain.clone();
            xts.encrypt(1 << 33, sector_size as usize, &mut expected);
            let data = BytesMut::from(&plain[..]);
            let address = data.as_ptr();
            let ciphertext = cipher.encrypt(1 << 33, data).await;
            assert!(ciphertext == expected, "{sectors} sectors of {sector_size}");
            assert_eq!(ciphertext.as_ptr(), address, "the pieces were copied");
            assert!(cipher.decrypt(1 << 33, ciphertext).await == plain);
        }
    }

    #[tokio::test]
    async fn a_dropped_request_leaves_the_pool_usable() {
        let key: Vec<u8> = (0..64).collect();
        let cipher = PooledXts::new(&key, 4096).unwrap().with_piece(16 << 10);
        for _ in 0..100 {
            drop(cipher.encrypt(0, BytesMut::zeroed(1 << 20)));
        }
        let ciphertext = cipher.encrypt(0, BytesMut::zeroed(1 << 20)).await;
        assert!(cipher.decrypt(0, ciphertext).await.iter().all(|&byte| byte == 0));
    }
}
