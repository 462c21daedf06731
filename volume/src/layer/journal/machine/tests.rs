use super::super::format::{Frame, Identity, PAGE, RING_START};
use super::super::scan::End;
use super::*;

const SALT: [u8; 32] = [3; 32];

const SETTINGS: Settings =
    Settings { appends_max: 2, superblock_every: 1 << 40, held_max: 0, ..Settings::DEFAULT };

/// A journal with a ring of so many pages, as it was made.
fn recovered(pages: u64) -> Recovered {
    let volume = Identity { name: [1; 32], size: 1 << 20, block_size: 512 };
    let superblocks = Superblock::new([2; 16], SALT, volume, RING_START + pages * PAGE);
    let [_, superblock] = superblocks.unwrap();
    let head = superblock.tail;
    Recovered { superblock, changes: Vec::new(), head, last_group: 0, end: End::Clean }
}

/// A machine of which all that is asked of the disk is done at once, unless it is held back.
struct JournalHarness {
    journal: Journal,
    answers: Vec<(u64, Result<(), Refused>)>,
    /// What was not answered: appends, superblocks, and what was sent.
    held: VecDeque<Action>,
}

impl JournalHarness {
    fn new(pages: u64, settings: Settings) -> Self {
        let journal = Journal::open(&recovered(pages), 5, settings);
        let mut harness = Self { journal, answers: Vec::new(), held: VecDeque::new() };
        harness.settle();
        harness
    }

    /// Takes what is to be done.
    fn poll(&mut self) {
        while let Some(action) = self.journal.poll() {
            match action {
                Action::Answer { id, result } => self.answers.push((id, result)),
                action => self.held.push_back(action),
            }
        }
    }

    fn done(&mut self, action: Action) {
        match action {
            Action::Sync => self.journal.synced(Ok(())),
            Action::Append { seq, .. } => self.journal.appended(seq, Ok(())),
            Action::Superblock { number, .. } => self.journal.superblock_written(number, Ok(())),
            Action::DrainWrite { id, .. }
            | Action::DrainZero { id, .. }
            | Action::DrainDiscard { id, .. }
            | Action::DrainFlush { id }
            | Action::DrainGroup { id, .. } => self.journal.drained(id, Ok(())),
            Action::Checkpoint(_) => self.journal.checkpointed(Ok(())),
            Action::Answer { .. } => unreachable!("it is no I/O"),
        }
        self.poll();
    }

    /// Does what `is_meant`, until nothing more of it is to be done.
    fn settle_only(&mut self, is_meant: impl Fn(&Action) -> bool) {
        self.poll();
        while let Some(index) = self.held.iter().position(&is_meant) {
            let action = self.held.remove(index).unwrap();
            self.done(action);
        }
    }

    fn settle(&mut self) {
        self.settle_only(|_| true);
    }

    fn settle_disk(&mut self) {
        self.settle_only(|action| !action.is_sending());
    }

    fn write(&mut self, id: u64, at: u64, len: usize, durability: Durability) {
        self.journal.write(id, at, &Bytes::from(vec![id as u8; len]), durability);
        self.poll();
    }

    /// Writes the first page, flushes, and lets the journal have it.
    fn commit(&mut self, id: u64) {
        self.write(id, 0, 4096, Durability::Volatile);
        self.flush(id + 1);
        self.settle_disk();
    }

    fn flush(&mut self, id: u64) {
        self.journal.flush(id);
        self.poll();
    }

    /// The frames that are held back.
    fn frames(&self) -> Vec<Frame> {
        let frame = |action: &Action| match action {
            Action::Append { bytes, .. } => Some(Frame::decode(bytes, &SALT).unwrap().0),
            _ => None,
        };
        self.held.iter().filter_map(frame).collect()
    }

    /// The requests to the store that are held back.
    fn sent(&self) -> Vec<String> {
        let name = |action: &Action| match action {
            Action::DrainWrite { span, durability, .. } => {
                Some(format!("{}write {span}", durable(*durability)))
            }
            Action::DrainZero { span, durability, .. } => {
                Some(format!("{}zero {span}", durable(*durability)))
            }
            Action::DrainDiscard { span, .. } => Some(format!("discard {span}")),
            Action::DrainFlush { .. } => Some("flush".to_owned()),
            Action::DrainGroup { changes, checkpoint, .. } => {
                let spans = changes.iter().map(|(span, _)| span.to_string());
                let told = checkpoint.map(|it| format!("all up to {}", it.group));
                Some(format!("group {}", spans.chain(told).collect::<Vec<_>>().join(" ")))
            }
            Action::Checkpoint(checkpoint) => Some(format!("checkpoint {}", checkpoint.group)),
            _ => None,
        };
        self.held.iter().filter_map(name).collect()
    }

    fn answered(&mut self) -> Vec<u64> {
        let ids = self.answers.drain(..).map(|(id, result)| {
            result.unwrap();
            id
        });
        ids.collect()
    }

    fn state(&self) -> State {
        self.journal.status().state
    }
}

fn durable(durability: Durability) -> &'static str {
    if durability == DURABLE { "durable " } else { "" }
}

const VOLATILE: Durability = Durability::Volatile;
const DURABLE: Durability = Durability::Durable;

fn name(action: &Action) -> &'static str {
    match action {
        Action::Sync => "sync",
        Action::Append { .. } => "append",
        Action::Superblock { .. } => "superblock",
        _ => "other",
    }
}

#[test]
fn nothing_is_answered_before_the_new_epoch_is_stable() {
    let mut journal = Journal::open(&recovered(16), 5, SETTINGS);
    journal.write(1, 0, &Bytes::from(vec![1; 512]), VOLATILE);
    journal.flush(2);
    assert_eq!(journal.poll(), Some(Action::Sync));
    assert_eq!(journal.poll(), None);
    journal.synced(Ok(()));
    let Some(Action::Superblock { number: 2, offset: 0, bytes }) = journal.poll() else { panic!() };
    let superblock = Superblock::decode(&bytes).unwrap();
    assert_eq!((superblock.epoch, superblock.token), (1, 5));
    assert_eq!(superblock.state, SuperblockState::Open);
    assert_eq!(journal.poll(), None);
    journal.superblock_written(2, Ok(()));
    assert_eq!(journal.poll(), Some(Action::Answer { id: 1, result: Ok(()) }));
    let Some(Action::Append { seq: 1, .. }) = journal.poll() else { panic!() };
    assert_eq!(journal.poll(), None, "the flush waits for the frame");
    journal.appended(1, Ok(()));
    assert_eq!(journal.poll(), Some(Action::Answer { id: 2, result: Ok(()) }));
}

#[test]
fn a_durable_write_of_a_page_is_one_write_of_two() {
    let mut harness = JournalHarness::new(64, SETTINGS);
    harness.write(1, 4096, 4096, DURABLE);
    assert_eq!(harness.answered(), [0; 0]);
    let Some(Action::Append { offset: RING_START, bytes, .. }) = harness.held.front() else {
        panic!()
    };
    assert_eq!(bytes.len(), 8192);
    assert_eq!(bytes[4096..], [1; 4096]);
    harness.settle_disk();
    assert_eq!(harness.answered(), [1]);
}

#[test]
fn a_volatile_write_is_answered_at_once_and_a_flush_when_its_frame_is_stable() {
    let mut harness = JournalHarness::new(64, SETTINGS);
    harness.write(1, 0, 512, VOLATILE);
    harness.write(2, 512, 512, VOLATILE);
    assert_eq!((harness.answered(), harness.held.len()), (vec![1, 2], 0));
    harness.flush(3);
    let [frame] = &harness.frames()[..] else { panic!() };
    assert_eq!((frame.changes.len(), frame.length), (2, 2 * PAGE));
    assert_eq!(harness.answered(), [0; 0]);
    harness.settle_disk();
    harness.flush(4);
    assert_eq!(harness.answered(), [3, 4], "nothing came since");
}

#[test]
fn frames_count_in_their_order_whichever_is_written_first() {
    let mut harness = JournalHarness::new(64, SETTINGS);
    harness.write(1, 0, 512, DURABLE);
    harness.write(2, 512, 512, DURABLE);
    let first = harness.held.pop_front().unwrap();
    harness.settle_disk();
    assert_eq!(harness.answered(), [0; 0]);
    harness.done(first);
    assert_eq!(harness.answered(), [1, 2]);
}

#[test]
fn requests_gather_in_one_frame_while_enough_are_in_flight() {
    let mut harness = JournalHarness::new(64, SETTINGS);
    for id in 0..9 {
        harness.write(id, 512 * id, 512, DURABLE);
    }
    let counts = |harness: &JournalHarness| -> Vec<usize> {
        harness.frames().iter().map(|frame| frame.changes.len()).collect()
    };
    assert_eq!(counts(&harness), [1, 1]);
    let first = harness.held.pop_front().unwrap();
    harness.done(first);
    assert_eq!(counts(&harness), [1, 7]);
    harness.settle_disk();
    assert_eq!(harness.answered(), (0..9).collect::<Vec<_>>());
}

#[test]
fn a_flush_closes_a_group_and_groups_are_sent_one_after_another() {
    let mut harness = JournalHarness::new(64, SETTINGS);
    harness.write(1, 0, 1024, VOLATILE);
    harness.journal.write_zeroes(2, Span::new(512, 1024), VOLATILE, Space::Keep);
    harness.flush(3);
    harness.journal.discard(4, Span::new(4096, 512));
    harness.flush(5);
    assert_eq!(harness.sent(), [""; 0], "it is not stable");
    harness.settle_disk();
    assert_eq!(harness.sent(), ["write 0+512", "zero 512+1024"], "each byte once");
    let first = harness.held.pop_front().unwrap();
    harness.done(first);
    assert_eq!(harness.sent(), ["zero 512+1024"]);
    harness.settle_only(|action| matches!(action, Action::DrainZero { .. }));
    assert_eq!(harness.sent(), ["flush"]);
    let flush = harness.held.pop_front().unwrap();
    harness.done(flush);
    assert_eq!(harness.sent(), ["discard 4096+512"]);
    harness.settle();
    assert_eq!(harness.journal.status().unsent, 0);
}

/// It takes one round trip, and not two.
#[test]
fn a_group_of_one_request_is_sent_without_a_flush() {
    let mut harness = JournalHarness::new(64, SETTINGS);
    harness.write(1, 0, 512, VOLATILE);
    harness.flush(2);
    harness.journal.write_zeroes(3, Span::new(512, 1024), VOLATILE, Space::Keep);
    harness.flush(4);
    harness.journal.discard(5, Span::new(4096, 512));
    harness.flush(6);
    harness.settle_disk();
    for sent in ["durable write 0+512", "durable zero 512+1024", "discard 4096+512", "flush"] {
        assert_eq!(harness.sent(), [sent]);
        let request = harness.held.pop_front().unwrap();
        harness.done(request);
    }
    assert_eq!((harness.sent(), harness.journal.status().unsent), (vec![], 0));
}

/// On a long link the store is kept busy although nobody flushes.
#[test]
fn groups_without_a_flush_between_are_sent_without_waiting() {
    let mut harness = JournalHarness::new(256, SETTINGS);
    for id in 0..3 {
        harness.write(id, 65_536 * id, 512, VOLATILE);
        harness.write(id, 65_536 * id + 1024, 12 << 10, VOLATILE);
        harness.journal.idle();
        harness.settle_disk();
    }
    harness.flush(8);
    harness.write(9, 300 << 10, 512, VOLATILE);
    harness.flush(10);
    harness.settle_disk();
    let of =
        |id: u64| [(0, 512), (1024, 12 << 10)].map(|(at, len)| Span::new(id * 65_536 + at, len));
    let writes: Vec<_> = (0..3).flat_map(of).map(|span| format!("write {span}")).collect();
    assert_eq!(harness.sent(), writes);
    for _ in 0..2 {
        let request = harness.held.pop_front().unwrap();
        harness.done(request);
    }
    assert_eq!(harness.sent()[4..], ["flush"], "of the first");
    for _ in 0..4 {
        let request = harness.held.pop_front().unwrap();
        harness.done(request);
    }
    assert_eq!(harness.sent(), ["flush"], "one flush at a time");
    assert_eq!(harness.journal.drained_group(), 0);
    let flush = harness.held.pop_front().unwrap();
    harness.done(flush);
    assert_eq!((harness.sent(), harness.journal.drained_group()), (vec!["flush".to_owned()], 1));
    let flush = harness.held.pop_front().unwrap();
    harness.done(flush);
    assert_eq!(harness.journal.drained_group(), 3);
    assert_eq!(harness.sent(), ["durable write 307200+512"], "behind the flush");
}

/// After a crash the first group would be sent again, over the second.
#[test]
fn a_group_over_one_that_was_sent_waits_for_a_superblock() {
    let mut harness = JournalHarness::new(64, SETTINGS);
    for (id, at) in [(1, 0), (3, 512), (5, 0)] {
        harness.write(id, at, 512, VOLATILE);
        harness.flush(id + 1);
    }
    harness.settle_only(|action| !matches!(action, Action::Superblock { .. }));
    let superblocks = |harness: &JournalHarness| harness.held.iter().map(name).collect::<Vec<_>>();
    assert_eq!(superblocks(&harness), ["superblock"], "the second shares nothing with the first");
    assert_eq!(harness.journal.status().unsent, 1);
    let Some(Action::Superblock { bytes, .. }) = harness.held.front() else { panic!() };
    assert_eq!(Superblock::decode(bytes).unwrap().drained_group, 2);
    let superblock = harness.held.pop_front().unwrap();
    harness.done(superblock);
    assert_eq!(harness.sent(), ["durable write 0+512"]);
}

#[test]
fn changes_wait_for_room_and_never_fail_for_want_of_it() {
    let mut harness = JournalHarness::new(16, SETTINGS);
    for id in 0..20 {
        harness.write(id, 4096 * id, 4096, VOLATILE);
    }
    harness.settle_disk();
    assert_eq!((harness.state(), harness.journal.status().waiting > 0), (State::Full, true));
    let before = harness.answered();
    assert!((9..14).contains(&before.len()), "{before:?}");
    harness.flush(30);
    harness.settle_disk();
    assert_eq!(harness.answered(), [30], "a flush does not wait for what waits");
    harness.settle();
    let rest: Vec<u64> = (before.len() as u64..20).collect();
    assert_eq!((harness.answered(), harness.state()), (rest, State::Open));
}

#[test]
fn a_group_without_a_flush_is_sent_when_it_is_large_or_nothing_else_happens() {
    let mut harness = JournalHarness::new(256, Settings { group_max: 64 << 10, ..SETTINGS });
    harness.write(1, 0, 512, VOLATILE);
    harness.settle();
    assert_eq!(harness.journal.status().unsent, 1);
    harness.journal.idle();
    harness.settle();
    assert_eq!(harness.journal.status().unsent, 0);
    harness.write(2, 0, 512 << 10, VOLATILE);
    harness.settle();
    assert_eq!(harness.journal.status().unsent, 0);
}

#[test]
fn an_idle_journal_vouches_once_for_its_last_frames() {
    let mut harness = JournalHarness::new(64, SETTINGS);
    harness.write(1, 0, 512, DURABLE);
    harness.settle();
    harness.journal.idle();
    harness.poll();
    let [mark] = &harness.frames()[..] else { panic!("{:?}", harness.held) };
    assert_eq!((mark.changes.len(), mark.length, mark.durable_seq), (0, PAGE, 1));
    harness.settle();
    let used = harness.journal.status().used;
    harness.journal.idle();
    harness.settle();
    assert_eq!(harness.journal.status().used, used);
}

#[test]
fn a_place_that_is_being_read_is_not_used_again() {
    let mut harness = JournalHarness::new(16, SETTINGS);
    harness.write(1, 0, 4096, DURABLE);
    harness.settle_disk();
    let (parts, reader) = harness.journal.read(Span::new(512, 512));
    let [Part { source: Source::Journal { extent, skip: 512 }, .. }] = parts[..] else {
        panic!("{parts:?}")
    };
    assert!(extent.verify(&[1; 4096]) && !extent.verify(&[2; 4096]) && !extent.verify(&[1; 512]));
    for id in 2..18 {
        harness.write(id, 4096 * id, 4096, VOLATILE);
    }
    harness.settle();
    assert_eq!(harness.state(), State::Full);
    harness.journal.read_done(reader.unwrap());
    harness.settle();
    assert_eq!(harness.state(), State::Open);
    assert_eq!(harness.journal.read(Span::new(0, 512)).1, None);
}

#[test]
fn a_store_that_fails_ends_all_and_the_journal_keeps_what_it_lacks() {
    let mut harness = JournalHarness::new(64, SETTINGS);
    harness.write(1, 0, 512, DURABLE);
    harness.journal.idle();
    harness.settle_disk();
    harness.write(2, 512, 512, DURABLE);
    let Some(Action::DrainWrite { id, .. }) = harness.held.pop_front() else { panic!() };
    harness.journal.drained(id, Err(()));
    harness.poll();
    harness.answers.clear();
    harness.flush(3);
    let refused = Err(Refused::Broken(Cause::Store));
    assert_eq!(harness.answers, [(3, refused)]);
    assert_eq!(harness.state(), State::Broken(Cause::Store));
    let unsent: Vec<Span> = harness.journal.unsent().map(|unsent| unsent.span).collect();
    assert_eq!(unsent, [Span::new(0, 512), Span::new(512, 512)]);
}

#[test]
fn those_who_wait_for_a_frame_that_fails_are_told() {
    let mut harness = JournalHarness::new(64, SETTINGS);
    harness.write(1, 0, 512, DURABLE);
    harness.write(2, 512, 512, DURABLE);
    harness.write(3, 1024, 512, DURABLE);
    harness.journal.appended(1, Err(()));
    harness.journal.appended(2, Ok(()));
    harness.poll();
    let refused = Err(Refused::Broken(Cause::File));
    assert_eq!(harness.answers, [1, 2, 3].map(|id| (id, refused)));
    harness.held.clear();
    harness.journal.idle();
    harness.poll();
    assert!(harness.held.is_empty());
}

#[test]
fn an_end_sends_everything_and_says_so() {
    let mut harness = JournalHarness::new(64, SETTINGS);
    harness.write(1, 0, 512, VOLATILE);
    harness.journal.close();
    harness.flush(2);
    assert_eq!(harness.answers.pop(), Some((2, Err(Refused::Closed))));
    assert_eq!(harness.state(), State::Draining);
    harness.settle_only(|action| !matches!(action, Action::Superblock { .. }));
    let Some(Action::Superblock { bytes, .. }) = harness.held.front() else { panic!() };
    let superblock = Superblock::decode(bytes).unwrap();
    assert_eq!((superblock.state, superblock.tail.seq), (SuperblockState::Clean, 2));
    harness.settle();
    assert_eq!((harness.state(), harness.journal.status().used), (State::Clean, 0));
}

#[test]
fn a_superblock_follows_the_tail_and_not_the_flushes() {
    let mut harness =
        JournalHarness::new(256, Settings { superblock_every: 20 * PAGE, ..SETTINGS });
    let mut superblocks = 0;
    for id in 0..100 {
        harness.write(id, id * 4096, 4096, DURABLE);
        harness.flush(1000 + id);
        harness.poll();
        while let Some(action) = harness.held.pop_front() {
            superblocks += u64::from(name(&action) == "superblock");
            harness.done(action);
        }
    }
    assert_eq!(superblocks, 10, "each frame has two pages");
}

/// A flush before the changes that it is to make durable would lose them.
#[test]
fn limits_of_nothing_count_as_the_least_that_works() {
    for (unstable_max, first) in [(0, "durable write 0+4096"), (32 << 10, "write 0+12288")] {
        let none =
            Settings { frame_max: 0, appends_max: 0, drain_max: 0, unstable_max, ..SETTINGS };
        let mut harness = JournalHarness::new(16, none);
        harness.write(1, 0, 12 << 10, VOLATILE);
        harness.journal.discard(3, Span::new(16 << 10, 512));
        harness.flush(2);
        harness.settle_disk();
        assert_eq!(harness.sent(), [first]);
        harness.journal.idle();
        harness.settle();
        assert_eq!(harness.journal.status().unsent, 0);
        harness.answers.sort_unstable_by_key(|(id, _)| *id);
        assert_eq!(harness.answered(), [1, 2, 3]);
    }
}

/// A change of no bytes would be no valid frame.
#[test]
fn a_change_of_nothing_is_answered_and_not_logged() {
    let mut harness = JournalHarness::new(16, SETTINGS);
    harness.write(1, 512, 0, DURABLE);
    harness.journal.write_zeroes(2, Span::new(512, 0), VOLATILE, Space::Release);
    harness.journal.discard(3, Span::new(0, 0));
    harness.poll();
    assert_eq!(harness.answered(), [1, 2, 3]);
    assert_eq!(harness.journal.status().unsent, 0);
}

#[test]
fn unsent_changes_stay_once_the_journal_is_frozen() {
    let mut frozen = JournalHarness::new(64, SETTINGS);
    frozen.write(1, 0, 512, DURABLE);
    frozen.journal.idle();
    // What this sends was not taken yet.
    frozen.journal.appended(1, Ok(()));
    frozen.journal.fenced();
    frozen.poll();
    assert_eq!(frozen.sent(), [""; 0]);
    assert_eq!(frozen.state(), State::Frozen);
}

/// The ring might go round while the frame is written, and its place be used twice at once.
#[test]
fn the_tail_does_not_pass_a_frame_that_is_in_flight() {
    let mut harness = JournalHarness::new(64, Settings { superblock_every: PAGE, ..SETTINGS });
    harness.write(1, 0, 512, DURABLE);
    harness.journal.idle();
    let frame = harness.held.pop_front().unwrap();
    harness.done(frame);
    harness.settle_only(Action::is_sending);
    assert_eq!(harness.journal.status().unsent, 0);
    let superblock = harness.held.iter().find_map(|action| match action {
        Action::Superblock { bytes, .. } => Superblock::decode(bytes).ok(),
        _ => None,
    });
    assert_eq!(harness.frames().len(), 1, "the frame that vouches for the first");
    assert_eq!(superblock.unwrap().tail.seq, 2);
}

const ORDERED: Settings = Settings { is_ordered: true, ..SETTINGS };

#[test]
fn groups_follow_one_another_where_the_store_keeps_their_order() {
    let mut harness = JournalHarness::new(64, ORDERED);
    for number in 0..3 {
        harness.write(2 * number, number * 8192, 4096, Durability::Volatile);
        harness.flush(2 * number + 1);
    }
    harness.settle_disk();
    assert_eq!(harness.sent(), ["group 0+4096", "group 8192+4096", "group 16384+4096"]);
    harness.settle();
    assert_eq!(harness.journal.drained_group(), harness.journal.last_group());
    assert_eq!(harness.journal.status().unsent, 0);
}

/// What is under way together is what the link was found to take, as it is of other requests: reads wait behind it.
#[test]
fn groups_that_are_handed_over_whole_fit_the_window() {
    const LEN: u64 = 64 << 10;
    for (bytes, sent) in [(96 << 20, 6), (5 * LEN, 5), (1, 4)] {
        let mut harness = JournalHarness::new(1024, ORDERED);
        harness.journal.set_drain_window(DrainWindow { requests: 8, bytes, segment: 1 << 20 });
        for number in 0..6 {
            harness.write(2 * number, number * LEN, LEN as usize, Durability::Volatile);
            harness.flush(2 * number + 1);
        }
        harness.settle_disk();
        assert_eq!(harness.sent().len(), sent);
        harness.settle();
        assert_eq!(harness.journal.status().unsent, 0);
    }
}

/// It would be set back if all of them were sent again (rule 7).
#[test]
fn group_waits_for_one_that_it_overlaps_though_the_store_keeps_their_order() {
    let mut harness = JournalHarness::new(64, ORDERED);
    for (number, at) in [(0, 0), (1, 8192), (2, 0)] {
        harness.write(2 * number, at, 4096, Durability::Volatile);
        harness.flush(2 * number + 1);
    }
    harness.settle_disk();
    assert_eq!(harness.sent(), ["group 0+4096", "group 8192+4096"]);
    harness.settle();
    assert_eq!(harness.journal.status().unsent, 0);
}

const WITH_CHECKPOINT: Settings = Settings { has_checkpoint: true, ..ORDERED };

/// The first that overlaps one before says that all before are there; those behind it may overlap them too.
#[test]
fn group_does_not_wait_for_one_that_it_overlaps_where_a_checkpoint_tells_them_apart() {
    let mut harness = JournalHarness::new(64, WITH_CHECKPOINT);
    for (number, at) in [(0, 0), (1, 8192), (2, 0), (3, 8192), (4, 0)] {
        harness.write(2 * number, at, 4096, Durability::Volatile);
        harness.flush(2 * number + 1);
    }
    harness.settle_disk();
    let sent = [
        "group 0+4096",
        "group 8192+4096",
        "group 0+4096 all up to 2",
        "group 8192+4096",
        "group 0+4096 all up to 4",
    ];
    assert_eq!(harness.sent(), sent);
    harness.settle();
    assert_eq!(harness.journal.status().unsent, 0);
}

/// It could be written over the one that a group has.
#[test]
fn checkpoint_of_its_own_is_not_under_way_beside_one_of_a_group() {
    let mut harness = JournalHarness::new(64, WITH_CHECKPOINT);
    harness.journal.checkpoint();
    harness.poll();
    assert!(harness.sent().is_empty(), "there is nothing to tell");
    harness.commit(0);
    harness.commit(2);
    harness.journal.checkpoint();
    harness.poll();
    assert_eq!(harness.sent(), ["group 0+4096", "group 0+4096 all up to 1"]);
    harness.settle();
    harness.commit(4);
    harness.settle();
    harness.journal.checkpoint();
    harness.poll();
    harness.commit(6);
    harness.commit(8);
    assert_eq!(
        harness.sent(),
        ["checkpoint 3", "group 0+4096"],
        "after a superblock; the next waits"
    );
    let first = harness.held.pop_front().unwrap();
    harness.done(first);
    assert_eq!(harness.sent(), ["group 0+4096", "group 0+4096 all up to 4"]);
    harness.settle();
    assert_eq!(harness.journal.status().unsent, 0);
}

/// A place that cannot be written must not be what a group fails for.
#[test]
fn groups_do_without_a_checkpoint_once_one_was_not_written() {
    let mut harness = JournalHarness::new(64, WITH_CHECKPOINT);
    harness.commit(0);
    harness.settle();
    harness.journal.checkpoint();
    harness.poll();
    assert!(matches!(harness.held.pop_front(), Some(Action::Checkpoint(_))));
    harness.journal.checkpointed(Err(()));
    harness.commit(2);
    harness.commit(4);
    assert_eq!(harness.sent(), ["group 0+4096"], "it waits for an answer, and a superblock");
    harness.settle();
    assert_eq!(harness.journal.status().unsent, 0);
}

fn large_group_behind_a_small_one() -> JournalHarness {
    let mut harness = JournalHarness::new(256, ORDERED);
    harness.write(0, 1 << 19, 512, Durability::Volatile);
    harness.flush(1);
    for number in 0..65 {
        harness.write(2 + number, number * 1024, 512, Durability::Volatile);
    }
    harness.flush(100);
    harness
}

/// A large one is not handed over whole, and so nothing follows it before it is durable; nor does it follow.
#[test]
fn large_group_has_a_border_on_both_sides() {
    let mut harness = large_group_behind_a_small_one();
    harness.write(101, 1 << 18, 512, Durability::Volatile);
    harness.flush(102);
    harness.settle_disk();
    assert_eq!(harness.sent(), ["group 524288+512"]);
    let first = harness.held.pop_front().unwrap();
    harness.done(first);
    harness.settle_disk();
    assert_eq!(harness.sent().len(), 65, "{:?}", harness.sent());
    harness.settle_only(|action| matches!(action, Action::DrainWrite { .. }));
    assert_eq!(harness.sent(), ["flush"]);
    harness.settle_only(|action| !matches!(action, Action::DrainGroup { .. }));
    assert_eq!(harness.sent(), ["group 262144+512"]);
    harness.settle();
    assert_eq!(harness.journal.status().unsent, 0);
}

/// Whatever happens meanwhile, as it does some hundred times in a second while it waits.
#[test]
fn group_that_waits_for_others_is_merged_once_and_when_it_begins() {
    let mut harness = large_group_behind_a_small_one();
    harness.settle_disk();
    assert_eq!(harness.sent(), ["group 524288+512"]);
    for _ in 0..100 {
        harness.journal.idle();
        harness.poll();
    }
    assert_eq!(harness.journal.overlay.merges.get(), 2, "each once");
    harness.settle();
    assert_eq!(harness.journal.overlay.merges.get(), 3);
    assert_eq!(harness.journal.status().unsent, 0);
}

/// The store may leave it undone, and goes on.
#[test]
fn group_with_a_discard_is_not_handed_over_whole() {
    let mut harness = JournalHarness::new(64, ORDERED);
    harness.write(0, 0, 4096, Durability::Volatile);
    harness.journal.discard(1, Span::new(8192, 4096));
    harness.flush(2);
    harness.settle_disk();
    assert_eq!(harness.sent(), ["write 0+4096", "discard 8192+4096"]);
    harness.settle();
    assert_eq!(harness.journal.status().unsent, 0);
}

#[test]
fn group_that_fails_at_the_store_ends_sending() {
    let mut harness = JournalHarness::new(64, ORDERED);
    for number in 0..2 {
        harness.write(2 * number, number * 8192, 4096, Durability::Volatile);
        harness.flush(2 * number + 1);
    }
    harness.settle_disk();
    let Some(Action::DrainGroup { id, .. }) = harness.held.pop_front() else { panic!("a group") };
    harness.journal.drained(id, Err(()));
    harness.journal.drained(id + 1, Ok(()));
    assert_eq!(harness.state(), State::Broken(Cause::Store));
    assert_eq!(harness.journal.status().unsent, 2, "both are kept");
}
