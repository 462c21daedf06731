//! What holds of a journal file whatever is in it: for the fuzzer and for tests.

use sha2::{Digest as _, Sha256};

use super::format::{PAGE, RING_START, Superblock, fit, superblock_offset};
use super::machine::{Action, Journal, Settings, State};
use super::scan::{RecoveredContent, Scan, Step};

/// Bytes of the file.
const FILE_LEN: u64 = RING_START + 24 * PAGE;

/// Bytes of a superblock that count.
const SUPERBLOCK_LEN: usize = 512;

/// More steps than any reading or sending of so small a file takes.
const STEPS_MAX: usize = 10_000;

/// Reads a file that begins with two superblocks and goes on with the pages of the ring, sums of which are made to fit, and sends
/// what it holds.
///
/// # Panics
///
/// If reading does not end, finds changes that the volume or the file does not have, or they cannot be sent.
pub fn any_file(input: &[u8]) {
    let file = file(input);
    let mut scan = Scan::new(FILE_LEN);
    for _ in 0..STEPS_MAX {
        match scan.step() {
            Step::Read { offset, len } => {
                let (from, len) = (offset as usize, len as usize);
                scan.give(file.get(from..from + len));
            }
            Step::Done(recovered) => {
                let volume = recovered.superblock.volume;
                for change in &recovered.changes {
                    assert!(change.span.end() <= volume.size, "{change:?}");
                    if let RecoveredContent::Write(extent) = change.content {
                        let from = extent.offset as usize;
                        let bytes = &file[from..from + extent.len as usize];
                        assert!(extent.verify(bytes), "{change:?}");
                    }
                }
                for (is_ordered, has_checkpoint) in [(false, false), (true, false), (true, true)] {
                    let settings = Settings { is_ordered, has_checkpoint, ..Settings::DEFAULT };
                    send(Journal::open(&recovered, 1, settings));
                }
                return;
            }
            Step::Corrupt(_) => {
                let salvaged = scan.salvaged().map_or(0, |found| found.changes.len());
                assert!(salvaged <= STEPS_MAX);
                return;
            }
        }
    }
    panic!("reading does not end");
}

fn file(input: &[u8]) -> Vec<u8> {
    let mut file = vec![0; FILE_LEN as usize];
    let (superblocks, ring) = input.split_at(input.len().min(2 * SUPERBLOCK_LEN));
    let mut salt = None;
    for (number, superblock) in (0..).zip(superblocks.chunks_exact(SUPERBLOCK_LEN)) {
        let at = superblock_offset(number) as usize;
        let place = &mut file[at..at + SUPERBLOCK_LEN];
        place.copy_from_slice(superblock);
        let sum = Sha256::digest(&place[..480]);
        place[480..].copy_from_slice(&sum);
        salt = salt.or_else(|| Superblock::decode(place).ok());
    }
    let room = file.len() - RING_START as usize;
    let ring = &ring[..ring.len().min(room)];
    file[RING_START as usize..][..ring.len()].copy_from_slice(ring);
    if let Some(superblock) = salt {
        let mut chain = superblock.tail.chain;
        for page in file[RING_START as usize..].chunks_exact_mut(PAGE as usize) {
            chain = fit(page, &superblock.salt, &chain).unwrap_or(chain);
        }
    }
    file
}

/// Sends everything to a store that does all it is told.
fn send(mut journal: Journal) {
    journal.close();
    for _ in 0..STEPS_MAX {
        match journal.poll() {
            Some(Action::Sync) => journal.synced(Ok(())),
            Some(Action::Append { seq, .. }) => journal.appended(seq, Ok(())),
            Some(Action::Superblock { number, .. }) => journal.superblock_written(number, Ok(())),
            Some(
                Action::DrainWrite { id, .. }
                | Action::DrainZero { id, .. }
                | Action::DrainDiscard { id, .. }
                | Action::DrainFlush { id }
                | Action::DrainGroup { id, .. },
            ) => journal.drained(id, Ok(())),
            Some(Action::Answer { .. }) => {}
            Some(Action::Checkpoint(_)) => panic!("nobody asked for it"),
            None => {
                let state = journal.status().state;
                assert!(matches!(state, State::Clean | State::Frozen), "{state:?}");
                return;
            }
        }
    }
    panic!("sending does not end");
}

#[cfg(test)]
mod tests {
    use super::super::format::{Change, Descriptor, Frame, Identity, LogPoint};
    use super::*;
    use crate::Span;
    use crate::check::Random;

    /// A journal with frames, as the functions above take it.
    fn seed() -> Vec<u8> {
        let volume = Identity { name: [1; 32], size: 1 << 20, block_size: 512 };
        let superblocks = Superblock::new([2; 16], [3; 32], volume, FILE_LEN).unwrap();
        let [first, second] = superblocks.map(|mut superblock| {
            superblock.state = super::super::format::SuperblockState::Open;
            superblock
        });
        let mut bytes = first.encode()[..SUPERBLOCK_LEN].to_vec();
        bytes.extend_from_slice(&second.encode()[..SUPERBLOCK_LEN]);
        let (mut position, mut chain) = (0, [0; 32]);
        for seq in 1..=4 {
            let change = Change::Write { crc: super::super::format::crc32c(&[7; 512]) };
            let changes = vec![
                Descriptor { span: Span::new(seq * 512, 512), change },
                Descriptor { span: Span::new(8192, 4096), change: Change::Discard },
            ];
            let (group, length) = (seq.div_ceil(2), 2 * PAGE);
            let point = LogPoint { position, seq, chain };
            let frame =
                Frame { point, epoch: 0, group, length, durable_seq: 0, superblock: 1, changes };
            let (head, sum) = frame.encode(&first.salt);
            bytes.extend_from_slice(&head);
            bytes.extend_from_slice(&[7; 512]);
            bytes.resize(bytes.len() + PAGE as usize - 512, 0);
            (position, chain) = (position + length, sum);
        }
        bytes
    }

    #[test]
    fn journals_with_any_change_are_read_or_refused() {
        let seed = seed();
        any_file(&seed);
        any_file(&[]);
        let mut random = Random::new(1);
        for _ in 0..2_000 {
            let mut bytes = seed.clone();
            for _ in 0..=random.below(3) {
                // Most of what counts is at the start of pages.
                let room = if random.below(4) == 0 { PAGE } else { 160 };
                let within = random.below(room);
                let page = random.below(10) * PAGE;
                let base = if page == 0 { 0 } else { page - PAGE + 1024 };
                let at = (base + within).min(bytes.len() as u64 - 1) as usize;
                bytes[at] = match random.below(3) {
                    0 => bytes[at] ^ (1 << random.below(8)),
                    1 => bytes[at].wrapping_add(1),
                    _ => random.below(256) as u8,
                };
            }
            any_file(&bytes);
        }
    }
}
