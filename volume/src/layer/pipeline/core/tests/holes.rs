//! What is known to be zero is not read, and never longer than it is so.

use super::*;

/// A store that is one hole.
fn hole(span: Span) -> Vec<Extent> {
    vec![Extent { span, hole: true, zero: true }]
}

impl Core {
    /// A caller reads `span` from beneath, and finds zeroes there.
    fn reads_zeroes(&mut self, span: Span) {
        let Found::Beneath(part, _) = self.read(span, NOW).unwrap() else { panic!("it is here") };
        self.read_returned(part, &vec![0; part.len as usize], NOW, NOW);
    }

    /// The map says that all it is asked for is a hole.
    fn is_told_of_a_hole(&mut self, question: Order) {
        let Order::Extents { span } = question else {
            panic!("{} is no question", told(&question))
        };
        self.finish(Outcome::Extents(Ok(hole(span))), NOW);
    }

    /// Knows that everything from block 200 on is a hole.
    fn knowing() -> Self {
        let mut core = core();
        core.reads_zeroes(Span::new(200 * BLOCK, BLOCK));
        let question = core.next(NOW).unwrap();
        core.is_told_of_a_hole(question);
        core
    }

    fn is_here(&mut self, at: u64, len: u64) -> bool {
        matches!(self.find(Span::new(at, len)).unwrap(), Found::Here(_))
    }
}

#[test]
fn a_read_of_zeroes_makes_it_ask_and_what_it_learns_is_not_read() {
    let mut core = core();
    core.reads_zeroes(Span::new(4096, BLOCK));
    let mut orders = core.orders();
    assert_eq!(orders.iter().map(told).collect::<Vec<_>>(), ["extents 4096+1044480"]);
    // Nothing waits for the answer, and there is one question at a time.
    core.reads_zeroes(Span::new(1 << 19, BLOCK));
    assert!(core.told().is_empty());
    core.is_told_of_a_hole(orders.remove(0));
    let Found::Here(patches) = core.read(Span::new(1 << 18, 65_536), NOW).unwrap() else {
        panic!("nothing of it need be read")
    };
    assert!(patches.iter().all(|patch| patch.data.is_none()));
    // What is known in part is asked for in part.
    let Found::Beneath(part, _) = core.read(Span::new(0, 8192), NOW).unwrap() else {
        panic!("the first half is not known")
    };
    assert_eq!(part, Span::new(0, 4096));
}

#[test]
fn written_span_is_no_hole_from_its_acceptance_on() {
    let mut core = Core::knowing();
    core.enter(volatile(300 * BLOCK, BLOCK));
    let Found::Here(patches) = core.find(Span::new(300 * BLOCK, BLOCK)).unwrap() else {
        panic!("it waits to be written")
    };
    assert!(patches.iter().all(|patch| patch.data.is_some()));
    core.settle_all();
    assert!(!core.is_here(300 * BLOCK, BLOCK));
    assert!(core.is_here(299 * BLOCK, BLOCK) && core.is_here(301 * BLOCK, BLOCK));
}

#[test]
fn an_answer_on_its_way_is_not_believed_of_what_changes() {
    let mut core = core();
    core.enter(volatile(300 * BLOCK, BLOCK));
    let issued = core.next(NOW).unwrap();
    core.reads_zeroes(Span::new(200 * BLOCK, BLOCK));
    let question = core.next(NOW).unwrap();
    core.enter(volatile(400 * BLOCK, BLOCK));
    core.answer_to(issued, Ok(()));
    core.settle_all();
    // The map may have been drawn before either was written.
    core.is_told_of_a_hole(question);
    for (block, known) in [(299, true), (300, false), (301, true), (399, true), (400, false)] {
        assert_eq!(core.is_here(block * BLOCK, BLOCK), known, "{block}");
    }
}

#[test]
fn zeroed_span_is_known_without_a_map() {
    let mut core = Core::new(tight(), shape(false));
    core.enter(zeroes(0, 64 * BLOCK));
    let zeroing = core.next(NOW).unwrap();
    core.enter(volatile(8 * BLOCK, BLOCK));
    core.answer_to(zeroing, Ok(()));
    assert_eq!(core.settle_all(), ["write 4096+512 Volatile"]);
    assert!(core.is_here(0, 8 * BLOCK) && core.is_here(9 * BLOCK, 55 * BLOCK));
    assert!(!core.is_here(8 * BLOCK, BLOCK), "it was written while the zeroes were in flight");
    // A discard that may keep the bytes keeps zeroes too, and elsewhere says nothing.
    core.enter(discard(0, 128 * BLOCK));
    core.settle_all();
    assert!(core.is_here(0, 8 * BLOCK) && !core.is_here(100 * BLOCK, BLOCK));
}

#[test]
fn zeroes_that_failed_are_not_known() {
    let mut core = core();
    core.enter(zeroes(0, 8 * BLOCK));
    let order = core.next(NOW).unwrap();
    core.answer_to(order, Err(Error::new(Kind::Medium, Verb::WriteZeroes, None)));
    assert!(core.find(Span::new(0, BLOCK)).is_err());
}

#[test]
fn a_stream_reads_nothing_ahead_in_a_hole_and_on_behind_it() {
    let mut core = Core::knowing();
    core.enter(volatile(220 * BLOCK, 4 * BLOCK));
    core.settle_all();
    for block in (200..216).step_by(2) {
        assert!(matches!(core.read(Span::new(block * BLOCK, 2 * BLOCK), NOW), Ok(Found::Here(_))));
    }
    assert_eq!(core.told(), ["read 112640+2048"], "what was written there, and no more");
}

#[test]
fn others_who_write_are_believed_to_have_written() {
    let mut core = Core::new(Settings { read_ahead: Some(0), ..tight() }, shape(true));
    core.reads_zeroes(Span::new(4096, BLOCK));
    core.enter(zeroes(0, BLOCK));
    assert_eq!(core.settle_all(), ["zeroes 0+512"]);
    assert!(!core.is_here(0, BLOCK));
}

#[test]
fn a_map_that_is_not_to_be_had_changes_nothing() {
    let mut core = core();
    core.reads_zeroes(Span::new(4096, BLOCK));
    let question = core.next(NOW).unwrap();
    core.answer_to(question, Err(Error::new(Kind::Busy, Verb::Extents, None)));
    assert!(!core.is_here(4096, BLOCK));
    assert!(core.barrier(true).is_ok(), "no failure of anybody's");
    // It is asked again, but not at every opportunity.
    core.reads_zeroes(Span::new(4096, BLOCK));
    assert_eq!(core.settle_all(), ["flush"]);
    core.reads_zeroes(Span::new(8192, BLOCK));
    assert_eq!(core.settle_all(), ["extents 8192+1040384"]);
}

#[test]
fn it_is_not_over_while_a_question_is_open_and_asks_no_more() {
    let mut core = core();
    core.reads_zeroes(Span::new(4096, BLOCK));
    let question = core.next(NOW).unwrap();
    core.close();
    assert!(!core.is_over());
    core.answer_to(question, Ok(()));
    assert!(core.is_over());
}
