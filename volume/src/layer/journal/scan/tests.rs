use proptest::prelude::*;

use super::super::format::{Descriptor, Identity, crc32c};
use super::*;

const SALT: [u8; 32] = [7; 32];
const RING_LEN: u64 = 16 * PAGE;

/// A file, and the frames that stand in it.
struct File {
    bytes: Vec<u8>,
    superblock: Superblock,
    next: LogPoint,
    durable_seq: u64,
}

impl File {
    fn new() -> Self {
        let volume = Identity { name: [0; 32], size: 1 << 20, block_size: 512 };
        let [zero, one] = Superblock::new([1; 16], SALT, volume, RING_START + RING_LEN).unwrap();
        let bytes = vec![0; (RING_START + RING_LEN) as usize];
        let mut file = Self { bytes, superblock: one, next: one.tail, durable_seq: 0 };
        file.put(0, &zero.encode());
        file.superblock(|_| ());
        file
    }

    /// One in use, of epoch 1.
    fn open() -> Self {
        let mut file = Self::new();
        file.superblock(|superblock| {
            (superblock.state, superblock.number, superblock.epoch) = (SuperblockState::Open, 2, 1);
        });
        file
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        self.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn superblock(&mut self, change: impl FnOnce(&mut Superblock)) {
        change(&mut self.superblock);
        let bytes = self.superblock.encode();
        self.put(superblock_offset(self.superblock.number), &bytes);
    }

    /// The next frame, with one write of a block.
    fn frame(&self) -> (Frame, Vec<u8>) {
        let payload = vec![self.next.seq as u8; 512];
        let change = Change::Write { crc: crc32c(&payload) };
        let frame = Frame {
            point: self.next,
            epoch: 1,
            group: self.next.seq,
            length: 2 * PAGE,
            durable_seq: self.durable_seq,
            superblock: 2,
            changes: vec![Descriptor { span: Span::new(512 * self.next.seq, 512), change }],
        };
        (frame, payload)
    }

    /// Appends a frame; says where it is.
    fn append(&mut self, change: impl FnOnce(&mut Frame)) -> u64 {
        let (mut frame, payload) = self.frame();
        change(&mut frame);
        let (head, chain) = frame.encode(&SALT);
        let at = offset(RING_LEN, self.next.position);
        self.put(at, &head);
        if !frame.changes.is_empty() {
            self.put(at + PAGE, &payload);
        }
        let LogPoint { position, seq, .. } = self.next;
        self.next = LogPoint { position: position + frame.length, seq: seq + 1, chain };
        at
    }

    fn scan(&self) -> Result<Recovered, Corruption> {
        let mut scan = Scan::new(self.bytes.len() as u64);
        loop {
            match scan.step() {
                Step::Read { offset, len } => {
                    scan.give(self.bytes.get(offset as usize..(offset + len) as usize));
                }
                Step::Done(recovered) => return Ok(*recovered),
                Step::Corrupt(corruption) => return Err(corruption),
            }
        }
    }

    /// How many changes are found, and why no more.
    fn found(&self) -> (usize, End) {
        let recovered = self.scan().unwrap();
        (recovered.changes.len(), recovered.end)
    }
}

#[test]
fn a_new_journal_is_clean() {
    let recovered = File::new().scan().unwrap();
    assert_eq!((recovered.changes.len(), recovered.end), (0, End::Clean));
    assert_eq!((recovered.superblock.number, recovered.head.seq), (1, 1));
}

#[test]
fn frames_are_found_in_order_with_their_bytes() {
    let mut file = File::open();
    let first = file.append(|_| ());
    let tail = file.next;
    // The rest of the ring is skipped.
    file.append(|frame| (frame.length, frame.changes) = (14 * PAGE, Vec::new()));
    assert_eq!(offset(RING_LEN, file.next.position), first, "once around");
    file.append(|frame| frame.group = 9);
    file.superblock(|superblock| superblock.tail = tail);
    let recovered = file.scan().unwrap();
    let [change] = recovered.changes[..] else { panic!("{recovered:?}") };
    let extent = Extent { offset: RING_START + PAGE, len: 512, crc: crc32c(&[3; 512]) };
    assert_eq!((change.group, change.span), (9, Span::new(3 * 512, 512)));
    assert_eq!(change.content, RecoveredContent::Write(extent));
    assert_eq!((recovered.head, recovered.last_group), (file.next, 9));
    assert_eq!(recovered.end, End::NoFrame(Invalid::Field("position")), "that of a lap before");
}

#[test]
fn groups_that_are_durable_at_the_store_are_verified_and_left_out() {
    let mut file = File::open();
    let first = file.append(|_| ());
    file.append(|_| ());
    file.superblock(|superblock| superblock.drained_group = 1);
    assert_eq!(file.found().0, 1);
    file.superblock(|superblock| superblock.drained_group = 5);
    let recovered = file.scan().unwrap();
    assert_eq!((recovered.changes.len(), recovered.last_group), (0, 5));
    file.superblock(|superblock| superblock.durable_seq = 2);
    file.bytes[(first + PAGE) as usize] ^= 1;
    assert!(matches!(
        file.scan(),
        Err(Corruption::FrameOfSuperblock { seq: 1, durable_seq: 2, .. })
    ));
}

#[test]
fn the_log_ends_at_the_first_frame_that_is_not_the_next_one() {
    type Wrong = (fn(&mut Frame), Invalid);
    let wrong: [Wrong; 7] = [
        (|frame| frame.point.position += 16 * PAGE, Invalid::Field("position")),
        (|frame| frame.point.seq += 1, Invalid::Field("sequence number")),
        (|frame| frame.point.chain[31] ^= 1, Invalid::Field("chain")),
        (|frame| frame.epoch += 1, Invalid::Field("epoch")),
        (|frame| frame.group -= 2, Invalid::Field("group")),
        (|frame| frame.length = 14 * PAGE, Invalid::Field("length")),
        (|frame| frame.length = PAGE, Invalid::Field("length")),
    ];
    for (change, why) in wrong {
        let mut file = File::open();
        file.append(|_| ());
        file.append(|_| ());
        file.append(change);
        assert_eq!(file.found(), (2, End::NoFrame(why)));
    }
}

/// After a crash the next epoch writes over the torn frame; what stood behind it is not of the same log.
#[test]
fn a_frame_from_before_the_crash_does_not_continue_the_log() {
    let mut file = File::open();
    file.append(|_| ());
    let torn = file.next;
    file.append(|_| ());
    file.append(|_| ());
    assert_eq!(file.found().0, 3);
    file.next = torn;
    file.superblock(|superblock| superblock.epoch = 2);
    file.append(|frame| frame.epoch = 2);
    assert_eq!(file.found(), (2, End::NoFrame(Invalid::Field("chain"))));
}

#[test]
fn a_torn_end_and_corruption_are_told_apart_by_what_later_frames_say() {
    let mut file = File::open();
    file.append(|_| ());
    let torn = file.append(|_| ());
    // Both were in flight.
    file.durable_seq = 1;
    file.append(|_| ());
    file.bytes[(torn + PAGE + 511) as usize] ^= 1;
    assert_eq!(file.found(), (1, End::NoFrame(Invalid::Checksum)));
    // One that was made when the torn one was stable.
    file.durable_seq = 2;
    let witness = file.append(|_| ());
    let why = Invalid::Checksum;
    let missing = Corruption::Frame { seq: 2, offset: torn, why, witness, durable_seq: 2 };
    assert_eq!(file.scan().unwrap_err(), missing);
    let text = missing.to_string();
    assert!(text.contains(&torn.to_string()) && text.contains(&witness.to_string()), "{text}");
    // Another lap of the ring says so as well.
    let mut file = File::open();
    file.next.position = 20 * PAGE;
    file.next.seq = 8;
    file.durable_seq = 7;
    file.append(|_| ());
    assert!(matches!(file.scan(), Err(Corruption::Frame { seq: 1, durable_seq: 7, .. })));
}

/// A stranger's bytes may be a copy of anything that ever stood in the file.
#[test]
fn a_copy_of_a_frame_at_another_place_says_nothing() {
    let mut file = File::open();
    file.append(|_| ());
    let at = file.append(|frame| frame.durable_seq = 9);
    let copy = file.bytes[at as usize..(at + 2 * PAGE) as usize].to_vec();
    let mut file = File::open();
    file.append(|_| ());
    for page in 4..14 {
        file.put(RING_START + page * PAGE, &copy);
    }
    assert_eq!(file.found(), (1, End::NoFrame(Invalid::Magic)));
    // At the place of the next frame it states another one before it.
    let mut other = File::open();
    other.append(|frame| frame.group = 1);
    other.append(|_| ());
    file.put(at, &other.bytes[at as usize..(at + 2 * PAGE) as usize]);
    assert_eq!(file.found().0, 2, "the same frame before it makes it the same frame");
    let mut other = File::open();
    other.append(|frame| frame.changes[0].span.at = 0);
    other.append(|_| ());
    file.put(at, &other.bytes[at as usize..(at + 2 * PAGE) as usize]);
    assert_eq!(file.found(), (1, End::NoFrame(Invalid::Field("chain"))));
}

#[test]
fn the_newest_superblock_counts_and_its_loss_is_told() {
    let mut file = File::open();
    file.append(|_| ());
    assert_eq!(file.scan().unwrap().superblock.number, 2);
    let second = superblock_offset(2) as usize;
    file.bytes[second] ^= 1;
    let witness = RING_START;
    let lost = Corruption::Superblock { found: 1, stated: 2, witness };
    assert_eq!(file.scan().unwrap_err(), lost);
    // Even where the log seems to end before the frame that says so.
    file.put(RING_START, &[0; PAGE as usize]);
    let lost = Corruption::Superblock { found: 1, stated: 2, witness: file.append(|_| ()) };
    assert_eq!(file.scan().unwrap_err(), lost);
    file.bytes[superblock_offset(1) as usize] ^= 1;
    let none = Corruption::NoSuperblock(Invalid::Magic, Invalid::Magic);
    assert_eq!(file.scan().unwrap_err(), none);
    // One in the wrong place is none.
    let superblock = file.superblock.encode();
    file.put(superblock_offset(1), &superblock);
    assert!(matches!(file.scan(), Err(Corruption::NoSuperblock(_, Invalid::Field("number")))));
}

#[test]
fn a_file_that_was_cut_and_a_frame_for_another_volume_are_refused() {
    let mut file = File::open();
    file.append(|frame| frame.changes[0].span.at = 1 << 20);
    assert!(matches!(file.scan(), Err(Corruption::Outside { offset: RING_START, .. })));
    file.bytes.truncate((RING_START + RING_LEN - PAGE) as usize);
    assert!(matches!(file.scan(), Err(Corruption::Cut { .. })));
}

proptest! {
    /// Whatever a file holds, with sums that are right.
    #[test]
    fn no_file_makes_a_scan_panic(
        words in proptest::collection::vec(any::<u64>(), 9),
        places in proptest::collection::vec((0..16_u64, any::<u64>(), any::<u8>()), 0..6),
        is_small in any::<bool>(),
    ) {
        let mut file = File::open();
        let scale = |word: u64| if is_small { word % 40 } else { word };
        file.superblock(|superblock| {
            superblock.number = scale(words[0]);
            superblock.tail.position = scale(words[1]) / PAGE * PAGE;
            superblock.tail.seq = scale(words[2]);
            superblock.durable_seq = scale(words[3]);
            superblock.ring_len = if is_small { RING_LEN } else { words[4] / PAGE * PAGE };
        });
        for (page, word, byte) in places {
            file.next.position = if is_small { page * PAGE } else { word };
            let (mut frame, _) = file.frame();
            frame.length = scale(word);
            frame.durable_seq = scale(words[5]);
            frame.changes[0].span = Span::new(scale(words[6]), scale(words[7]) % 65537);
            let (mut head, _) = frame.encode(&SALT);
            head[4000] = byte;
            file.put(RING_START + page * PAGE, &head);
        }
        let _ = file.scan();
    }
}
