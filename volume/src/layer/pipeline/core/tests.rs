//! The state machine alone: orders are counted, and answered when the test says so.

mod holes;

use std::collections::VecDeque;

use super::*;
use crate::check::Random;
use crate::{Discard, Durability, Extent, Space};

const NOW: Duration = Duration::ZERO;
const BLOCK: u64 = 512;

fn shape(reads_zeroes: bool) -> Shape {
    Shape {
        write_cache: true,
        discard: Some(Discard { granularity: 512, reads_zeroes }),
        ..Shape::in_memory(1 << 20, BLOCK as u32)
    }
}

/// One segment of 4 KiB in flight, and room for four.
fn tight() -> Settings {
    Settings {
        window: Some(16_384),
        segments: Some(1),
        segment: Some(4096),
        read_ahead: Some(16_384),
        ..Settings::default()
    }
}

fn core() -> Core {
    Core::new(tight(), shape(true))
}

fn write(at: u64, len: u64, durability: Durability) -> Change {
    let data = ChangeBody::Data(Bytes::from(vec![1; len as usize]));
    Change::new(Verb::Write, Span::new(at, len), data, durability)
}

fn volatile(at: u64, len: u64) -> Change {
    write(at, len, Durability::Volatile)
}

fn zeroes(at: u64, len: u64) -> Change {
    let body = ChangeBody::Zeroes(Space::Keep);
    Change::new(Verb::WriteZeroes, Span::new(at, len), body, Durability::Volatile)
}

fn discard(at: u64, len: u64) -> Change {
    Change::new(Verb::Discard, Span::new(at, len), ChangeBody::Discard, Durability::Volatile)
}

/// The place and the kind of an order.
fn told(order: &Order) -> String {
    match order {
        Order::Write { at, data, durability } => {
            format!("write {at}+{} {durability:?}", data.clone().into_bytes().len())
        }
        Order::WriteZeroes { span, .. } => format!("zeroes {span}"),
        Order::Discard { span } => format!("discard {span}"),
        Order::Flush { .. } => "flush".to_owned(),
        Order::Read { span } => format!("read {span}"),
        Order::Extents { span } => format!("extents {span}"),
    }
}

impl Core {
    fn enter(&mut self, mut change: Change) {
        assert_eq!(self.accept(&mut change).unwrap(), Entry::Accepted);
    }

    fn orders(&mut self) -> Vec<Order> {
        std::iter::from_fn(|| self.next(NOW)).collect()
    }

    fn told(&mut self) -> Vec<String> {
        self.orders().iter().map(told).collect()
    }

    fn answer_to(&mut self, order: Order, result: Result<()>) {
        let outcome = match order {
            Order::Write { at, .. } => Outcome::Changed(at, result),
            Order::WriteZeroes { span, .. } | Order::Discard { span } => {
                Outcome::Changed(span.at, result)
            }
            Order::Flush { flush } => Outcome::Flushed(flush, result),
            Order::Read { span } => {
                Outcome::Read(span.at, result.map(|()| vec![1; span.len as usize].into()))
            }
            Order::Extents { span } => {
                let data = Extent { span, hole: false, zero: false };
                Outcome::Extents(result.map(|()| vec![data]))
            }
        };
        self.finish(outcome, NOW);
    }

    /// Answers everything until nothing is left to do; says what was ordered.
    fn settle_all(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(order) = self.next(NOW) {
            all.push(told(&order));
            self.answer_to(order, Ok(()));
        }
        all
    }

    /// Answers the next order, and says what it was.
    fn settle_one(&mut self) -> String {
        let order = self.next(NOW).expect("there is one");
        let told = told(&order);
        self.answer_to(order, Ok(()));
        told
    }

    fn assert_sound(&self) {
        self.queue.assert_sound(self.writes.chosen().window);
    }
}

#[test]
fn stays_sound_and_within_its_window_whatever_comes() {
    for seed in 0..200 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut core = Core::new(tight(), shape(seed % 2 == 0));
        let mut line: Vec<Change> = Vec::new();
        let mut issued: Vec<Order> = Vec::new();
        for _ in 0..300 {
            let span = Span::new(random.below(64) * BLOCK, (1 + random.below(24)) * BLOCK);
            let durability = [Durability::Volatile, Durability::Durable][random.below(2) as usize];
            match random.below(8) {
                0..3 => line.push(write(span.at, span.len, durability)),
                3 => line.push(zeroes(span.at, span.len)),
                4 => line.push(discard(span.at, span.len)),
                5 => drop(core.barrier(true).unwrap()),
                _ if issued.is_empty() => {}
                _ => {
                    let order = issued.swap_remove(random.below(issued.len() as u64) as usize);
                    core.answer_to(order, Ok(()));
                }
            }
            line.retain_mut(|change| core.accept(change).unwrap() != Entry::Accepted);
            core.assert_sound();
            issued.extend(core.orders());
            core.assert_sound();
        }
        while let Some(order) = issued.pop() {
            core.answer_to(order, Ok(()));
            line.retain_mut(|change| core.accept(change).unwrap() != Entry::Accepted);
            issued.extend(core.orders());
            core.assert_sound();
        }
        assert!(line.is_empty() && core.flushes.has_no_barrier() && core.pending_bytes() == 0);
    }
}

#[test]
fn neighbours_are_merged_up_to_a_segment() {
    let mut core = core();
    for block in 0..24 {
        core.enter(volatile(block * BLOCK, BLOCK));
    }
    assert_eq!(
        core.settle_all(),
        ["write 0+4096 Volatile", "write 4096+4096 Volatile", "write 8192+4096 Volatile"]
    );
}

#[test]
fn the_first_write_of_a_run_does_not_wait_for_the_rest() {
    let mut core = core();
    core.enter(volatile(0, BLOCK));
    assert_eq!(core.told(), ["write 0+512 Volatile"]);
}

/// Nine requests stay in flight; each answer is followed by one more write elsewhere.
#[test]
fn short_piece_that_stopped_growing_is_written_while_others_are_in_flight() {
    let settings = Settings { segments: Some(16), window: Some(1 << 20), ..tight() };
    let mut core = Core::new(settings, shape(true));
    let mut elsewhere = (2..).map(|place| volatile(place * 2 * BLOCK, BLOCK));
    (&mut elsewhere).take(9).for_each(|change| core.enter(change));
    core.enter(volatile(0, BLOCK));
    let mut issued = VecDeque::from(core.orders());
    core.enter(volatile(BLOCK, BLOCK));
    assert!(core.orders().is_empty(), "the end of what may be a stream is kept");

    let mut seen = 0;
    while !issued.iter().any(|order| matches!(order, Order::Write { at: BLOCK, .. })) {
        seen += 1;
        assert!(seen <= 128, "kept for ever");
        core.enter(elsewhere.next().unwrap());
        core.answer_to(issued.pop_front().unwrap(), Ok(()));
        issued.extend(core.orders());
        assert!(issued.len() > 8);
    }
}

#[test]
fn a_large_write_is_cut_and_passes_through_a_smaller_window() {
    let mut core = core();
    let mut change = volatile(0, 65_536);
    let mut sent = Vec::new();
    while matches!(core.accept(&mut change).unwrap(), Entry::Wait(_)) {
        assert_eq!(core.pending_bytes(), 16_384);
        sent.extend(core.settle_all());
    }
    sent.extend(core.settle_all());
    assert_eq!(sent.len(), 16);
}

#[test]
fn writers_are_served_in_the_order_they_came() {
    let mut core = core();
    core.enter(volatile(0, 16_384));
    let (mut large, mut small) = (volatile(65_536, 8192), volatile(131_072, BLOCK));
    let Entry::Wait(first) = core.accept(&mut large).unwrap() else { panic!("the window is full") };
    let order = core.next(NOW).unwrap();
    core.answer_to(order, Ok(()));
    // Half of the large one fits, and so would the small one; but the large one came first.
    assert!(core.called().any(|waiter| waiter == first));
    assert!(matches!(core.accept(&mut small).unwrap(), Entry::Wait(_)));
    assert_eq!(core.accept(&mut large).unwrap(), Entry::Wait(first));
    // If it gives up, the next in line is called.
    core.leave(first);
    let order = core.next(NOW).unwrap();
    core.answer_to(order, Ok(()));
    assert_eq!(core.accept(&mut small).unwrap(), Entry::Accepted);
}

#[test]
fn a_block_written_again_is_sent_once_and_keeps_its_place() {
    let mut core = core();
    core.enter(volatile(100 * BLOCK, BLOCK));
    let first = core.next(NOW).unwrap();
    core.enter(volatile(0, BLOCK));
    core.enter(volatile(50 * BLOCK, BLOCK));
    let flush = core.barrier(true).unwrap();
    for _ in 0..10 {
        core.enter(volatile(0, BLOCK));
    }
    core.answer_to(first, Ok(()));
    let expected = ["write 0+512 Volatile", "write 25600+512 Volatile", "flush"];
    assert_eq!(core.settle_all(), expected);
    assert!(core.answer(flush).unwrap().is_ok());
}

#[test]
fn a_flush_waits_for_what_later_writes_were_merged_with() {
    let mut core = core();
    core.enter(volatile(1 << 19, 4096));
    let busy = core.next(NOW).unwrap();
    core.enter(volatile(BLOCK, BLOCK));
    let flush = core.barrier(true).unwrap();
    core.enter(volatile(2 * BLOCK, BLOCK));
    core.enter(volatile(0, BLOCK));
    core.answer_to(busy, Ok(()));
    let merged = core.next(NOW).unwrap();
    assert_eq!(told(&merged), "write 0+1536 Volatile");
    assert!(core.told().is_empty() && core.answer(flush).is_none());
    core.answer_to(merged, Ok(()));
    assert_eq!(core.settle_all(), ["flush"]);
}

#[test]
fn a_later_write_waits_until_the_earlier_has_landed() {
    let mut core = Core::new(Settings { segments: Some(8), ..tight() }, shape(true));
    core.enter(volatile(0, 2 * BLOCK));
    let first = core.next(NOW).unwrap();
    core.enter(volatile(BLOCK, 2 * BLOCK));
    core.enter(volatile(20 * BLOCK, BLOCK));
    assert_eq!(core.told(), ["write 10240+512 Volatile"]);
    core.answer_to(first, Ok(()));
    assert_eq!(core.told(), ["write 512+1024 Volatile"]);
}

#[test]
fn zeroes_replace_data_and_are_cut_by_data() {
    let mut core = core();
    core.enter(volatile(1 << 19, BLOCK));
    let busy = core.next(NOW).unwrap();
    core.enter(volatile(4 * BLOCK, BLOCK));
    core.enter(zeroes(0, 64 * BLOCK));
    core.enter(volatile(8 * BLOCK, BLOCK));
    core.enter(discard(200 * BLOCK, 8 * BLOCK));
    assert_eq!(core.pending_bytes(), 2 * BLOCK, "what zeroes replaced is not held");
    core.answer_to(busy, Ok(()));
    let mut sent = core.settle_all();
    sent.sort();
    assert_eq!(
        sent,
        ["discard 102400+4096", "write 4096+512 Volatile", "zeroes 0+4096", "zeroes 4608+28160"]
    );
}

#[test]
fn a_discard_that_may_keep_the_bytes_lets_them_go_first() {
    let mut core = Core::new(tight(), shape(false));
    core.enter(volatile(1 << 19, BLOCK));
    let busy = core.next(NOW).unwrap();
    core.enter(volatile(0, BLOCK));
    let mut hint = discard(0, 8 * BLOCK);
    assert!(matches!(core.accept(&mut hint).unwrap(), Entry::Wait(_)));
    core.answer_to(busy, Ok(()));
    let data = core.next(NOW).unwrap();
    assert_eq!(core.accept(&mut hint).unwrap(), Entry::Accepted);
    // The bytes are still read: the discard may keep them.
    assert!(matches!(core.find(Span::new(0, BLOCK)).unwrap(), Found::Here(_)));
    assert!(core.told().is_empty());
    core.answer_to(data, Ok(()));
    assert_eq!(core.told(), ["discard 0+4096"]);
    // A hint that is refused has lost nothing.
    core.finish(Outcome::Changed(0, Err(Error::new(Kind::NoSpace, Verb::Discard, None))), NOW);
    assert!(core.barrier(true).is_ok());
}

#[test]
fn durable_writes_overtake_what_nobody_waits_for() {
    let mut core = core();
    for at in 0..4 {
        core.enter(volatile(at * 8192, 4096));
    }
    let first = core.next(NOW).unwrap();
    core.answer_to(first, Ok(()));
    core.enter(write(1 << 19, BLOCK, Durability::Durable));
    assert_eq!(core.told(), ["write 524288+512 Durable", "write 8192+4096 Volatile"]);
}

#[test]
fn a_durable_write_is_not_replaced_while_it_waits() {
    let mut core = core();
    core.enter(write(0, BLOCK, Durability::Durable));
    let first = core.next(NOW).unwrap();
    core.enter(write(0, 4096, Durability::Durable));
    let mut later = volatile(BLOCK, BLOCK);
    assert!(matches!(core.accept(&mut later).unwrap(), Entry::Wait(_)));
    core.answer_to(first, Ok(()));
    let second = core.next(NOW).unwrap();
    assert_eq!(core.accept(&mut later).unwrap(), Entry::Accepted);
    assert!(core.told().is_empty(), "it lands after the durable one");
    core.answer_to(second, Ok(()));
    assert_eq!(core.told(), ["write 512+512 Volatile"]);
}

#[test]
fn a_read_passes_everything_that_is_to_be_written() {
    let mut core = core();
    core.enter(volatile(0, 16_384));
    let mut more = volatile(1 << 19, 4096);
    assert!(matches!(core.accept(&mut more).unwrap(), Entry::Wait(_)));
    let _never_answered = core.next(NOW).unwrap();
    // Elsewhere, all of it here, and half of it here: none waits for a write.
    let elsewhere = Span::new(1 << 18, 4096);
    let found = core.read(elsewhere, NOW).unwrap();
    assert!(
        matches!(found, Found::Beneath(part, patches) if part == elsewhere && patches.is_empty())
    );
    let Found::Here(_) = core.read(Span::new(2048, 8192), NOW).unwrap() else {
        panic!("all is here")
    };
    let Found::Beneath(part, patches) = core.read(Span::new(12_288, 8192), NOW).unwrap() else {
        panic!("half is beneath")
    };
    assert_eq!(part, Span::new(16_384, 4096));
    assert_eq!(patches.iter().map(|patch| patch.span.len).sum::<u64>(), 4096);
}

#[test]
fn flushes_that_are_ready_together_share_one() {
    let mut core = core();
    core.enter(volatile(0, BLOCK));
    let order = core.next(NOW).unwrap();
    let flushes = [core.barrier(true).unwrap(), core.barrier(true).unwrap()];
    core.enter(volatile(64 * BLOCK, BLOCK));
    assert!(core.told().is_empty());
    core.answer_to(order, Ok(()));
    let mut orders = core.orders();
    assert_eq!(orders.iter().map(told).collect::<Vec<_>>(), ["flush", "write 32768+512 Volatile"]);
    // A flush that begins now needs one of its own, since more was written.
    let late = core.barrier(true).unwrap();
    core.answer_to(orders.swap_remove(0), Ok(()));
    assert!(flushes.iter().all(|flush| core.answer(*flush).unwrap().is_ok()));
    assert!(core.answer(late).is_none());
    core.answer_to(orders.remove(0), Ok(()));
    assert_eq!(core.settle_all(), ["flush"]);
    assert!(core.answer(late).unwrap().is_ok());
}

#[test]
fn a_durable_write_that_replaced_others_fails_for_them_too() {
    let mut core = core();
    core.enter(volatile(1 << 19, BLOCK));
    let busy = core.next(NOW).unwrap();
    core.enter(volatile(0, BLOCK));
    core.enter(write(0, BLOCK, Durability::Durable));
    let durable = core.next(NOW).unwrap();
    core.answer_to(durable, Err(Error::new(Kind::Medium, Verb::Write, None)));
    core.answer_to(busy, Ok(()));
    assert_eq!(core.barrier(true).unwrap_err().kind, Kind::Medium);
}

#[test]
fn random_reads_read_nothing_ahead() {
    let mut core = core();
    let mut random = Random::new(5);
    for _ in 0..200 {
        drop(core.read(Span::new(random.below(1 << 8) * 4096, BLOCK), NOW));
        // Chance may put one read behind another, but no more than that.
        assert!(core.told().len() <= 1);
    }
    assert!(core.read_ahead.in_flight() <= 16_384);
}

#[test]
fn several_streams_are_followed_within_one_window() {
    let settings = Settings { read_ahead: Some(65_536), segments: Some(16), ..tight() };
    let mut core = Core::new(settings, shape(true));
    let starts = [1 << 17, 1 << 18, 1 << 19];
    let mut beneath = 0;
    for step in 0..100 {
        for start in starts {
            let span = Span::new(start + step * 1024, 1024);
            let found = core.read(span, NOW).unwrap();
            beneath += u32::from(matches!(found, Found::Beneath(..)));
            for order in core.orders() {
                core.answer_to(order, Ok(()));
            }
            // Room for the read that is put together comes on top.
            assert!(core.read_ahead.held() <= 65_536 + span.len);
        }
    }
    // Two reads each until a stream is believed to be one.
    assert_eq!(beneath, 6);
}

#[test]
fn a_new_stream_gets_the_room_of_one_that_has_ended() {
    let mut core = core();
    let mut now = NOW;
    for start in [1 << 17, 1 << 18, 1 << 19, 3 << 18] {
        now += Duration::from_secs(2);
        let mut beneath = 0;
        for step in 0..200 {
            let found = core.read(Span::new(start + step * 1024, 1024), now).unwrap();
            beneath += u32::from(matches!(found, Found::Beneath(..)));
            while let Some(order) = core.next(now) {
                core.answer_to(order, Ok(()));
            }
        }
        assert_eq!(beneath, 2, "{start}");
    }
}

#[test]
fn written_span_is_not_read_from_read_ahead_data() {
    let mut core = core();
    drop(core.read(Span::new(4096, 1024), NOW));
    drop(core.read(Span::new(5120, 1024), NOW));
    let orders = core.orders();
    assert_eq!(orders.iter().map(told).collect::<Vec<_>>(), ["read 6144+1024"]);
    core.enter(volatile(6144, BLOCK));
    for order in orders {
        core.answer_to(order, Ok(()));
    }
    core.settle_all();
    let Found::Beneath(part, _) = core.find(Span::new(6144, 1024)).unwrap() else {
        panic!("the block that was written is to be read again")
    };
    assert_eq!(part, Span::new(6144, BLOCK));
}

#[test]
fn reader_that_begins_at_the_start_gets_read_ahead_at_once() {
    let mut core = core();
    assert!(matches!(core.read(Span::new(0, 1024), NOW), Ok(Found::Beneath(..))));
    assert_eq!(core.told(), ["read 1024+1024"]);
}

#[test]
fn writer_that_flushes_after_each_write_waits_once() {
    let mut core = core();
    let mut pair = |at| {
        core.enter(volatile(at, 512));
        let sent = core.orders();
        let flush = core.barrier(true).unwrap();
        assert!(core.answer(flush).is_none(), "nothing has landed");
        let told: Vec<_> = sent.iter().map(told).collect();
        sent.into_iter().for_each(|order| core.answer_to(order, Ok(())));
        let more = core.settle_all();
        assert!(matches!(core.answer(flush), Some(Ok(()))));
        (told, more)
    };
    // Nobody knew that a flush would follow.
    for _ in 0..2 {
        assert_eq!(pair(0), (vec!["write 0+512 Volatile".into()], vec!["flush".into()]));
    }
    for at in [512, 8192, 512] {
        assert_eq!(pair(at), (vec![format!("write {at}+512 Durable")], Vec::new()));
    }
}

#[test]
fn writer_of_much_between_flushes_flushes_once() {
    let mut core = core();
    for round in 0..3 {
        let writes = (0..8).map(|number| round * 65_536 + number * 8192);
        let mut durable = 0;
        for at in writes {
            core.enter(volatile(at, 512));
            for order in core.orders() {
                durable += u32::from(told(&order).contains("Durable"));
                core.answer_to(order, Ok(()));
            }
        }
        assert_eq!(durable, 0, "round {round}");
        let flush = core.barrier(true).unwrap();
        assert_eq!(core.settle_all(), ["flush"]);
        assert!(matches!(core.answer(flush), Some(Ok(()))));
    }
}

#[test]
fn a_flush_goes_beneath_unless_all_that_landed_is_stable() {
    let mut core = core();
    let flush = |core: &mut Core| {
        core.barrier(true).unwrap();
        core.settle_all()
    };
    assert_eq!(flush(&mut core), ["flush"], "there may have been others before us");
    assert!(flush(&mut core).is_empty());
    core.enter(zeroes(0, 512));
    assert_eq!(flush(&mut core), ["zeroes 0+512", "flush"]);
    core.enter(discard(0, 512));
    assert_eq!(flush(&mut core), ["discard 0+512", "flush"]);
    assert!(flush(&mut core).is_empty());
    // What lands while a flush is under way is not covered by it.
    core.enter(zeroes(0, 512));
    let first = core.settle_one();
    core.barrier(true).unwrap();
    let under_way = core.orders();
    core.enter(zeroes(512, 512));
    let second = core.settle_one();
    assert_eq!((first, second), ("zeroes 0+512".into(), "zeroes 512+512".into()));
    under_way.into_iter().for_each(|order| core.answer_to(order, Ok(())));
    assert_eq!(flush(&mut core), ["flush"]);
}
