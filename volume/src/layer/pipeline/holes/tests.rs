use super::*;
use crate::check::Random;

const BLOCK: u64 = 512;
const BLOCKS: u64 = 64;
const SIZE: u64 = BLOCKS * BLOCK;

fn blocks(from: u64, count: u64) -> Span {
    Span::new(from * BLOCK, count * BLOCK)
}

fn extent(from: u64, count: u64, zero: bool) -> Extent {
    Extent { span: blocks(from, count), hole: zero, zero }
}

fn holes() -> Holes {
    Holes::new(SIZE, true)
}

impl Holes {
    /// A read of one block brings zeroes; whether the map is to be asked for now.
    fn blank(&mut self, block: u64) -> Option<Span> {
        self.looked(blocks(block, 1), &[0; BLOCK as usize]);
        self.wanted()
    }

    /// Lets them ask, and then tells them.
    fn learns(&mut self, extents: &[Extent]) {
        let span = self.blank(0).expect("zeroes were read");
        self.asked(span, Vec::new());
        self.told(extents);
    }

    fn all(&self) -> Vec<Span> {
        let mut all: Vec<Span> = self.parts(Span::new(0, u64::MAX)).collect();
        all.reverse();
        all
    }
}

#[test]
fn known_holes_are_zeroed_or_mapped_and_not_filled_since() {
    for seed in 0..200 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut holes = holes();
        let mut known = [false; BLOCKS as usize];
        let mut touched = [false; BLOCKS as usize];
        for _ in 0..200 {
            let from = random.below(BLOCKS);
            let count = 1 + random.below((BLOCKS - from).min(9));
            let range = from as usize..(from + count) as usize;
            match random.below(4) {
                0 => {
                    holes.filled(blocks(from, count));
                    known[range.clone()].fill(false);
                    touched[range].fill(true);
                }
                1 => {
                    holes.zeroed(blocks(from, count), std::iter::once(blocks(from, 1)));
                    known[range.clone()].fill(true);
                    known[range.start] = false;
                }
                2 if holes.is_idle() => {
                    touched.fill(false);
                    touched[range].fill(true);
                    holes.asked(blocks(0, BLOCKS), vec![blocks(from, count)]);
                }
                _ => {
                    let asked = !holes.is_idle();
                    holes.told(&[extent(0, 20, false), extent(20, 30, true)]);
                    for block in (20..50).filter(|_| asked) {
                        known[block] |= !touched[block];
                    }
                    for block in (0..BLOCKS as usize).filter(|_| asked) {
                        known[block] &= !touched[block];
                    }
                }
            }
            let here = |block: u64| holes.parts(blocks(block, 1)).next().is_some();
            assert!((0..BLOCKS).all(|block| here(block) == known[block as usize]));
            let all = holes.all();
            assert!(all.windows(2).all(|pair| pair[0].end() < pair[1].at), "{all:?}");
        }
    }
}

#[test]
fn an_answer_that_many_changes_have_overtaken_is_not_believed() {
    for (changes, believed) in [(CHANGES_MAX, true), (CHANGES_MAX + 1, false)] {
        let mut holes = holes();
        let span = holes.blank(0).unwrap();
        holes.asked(span, Vec::new());
        (0..changes).for_each(|_| holes.filled(blocks(63, 1)));
        holes.told(&[extent(0, BLOCKS, true)]);
        assert_eq!(!holes.all().is_empty(), believed, "{changes}");
    }
}

#[test]
fn an_answer_counts_only_for_what_was_asked() {
    let mut holes = holes();
    let span = holes.blank(8).unwrap();
    assert_eq!(span, blocks(8, BLOCKS - 8));
    holes.asked(span, Vec::new());
    assert!(holes.blank(0).is_none(), "one question at a time");
    holes.told(&[extent(0, 2 * BLOCKS, true)]);
    assert_eq!(holes.all(), [blocks(8, BLOCKS - 8)]);
    assert_eq!(holes.unknown(blocks(4, 8)), Some(blocks(4, 4)));
    assert_eq!(holes.unknown(blocks(8, 8)), None);
}

#[test]
fn only_so_many_spans_are_known() {
    let mut holes = Holes::new(u64::MAX, true);
    for number in 0..2 * SPANS_MAX as u64 {
        holes.zeroed(blocks(4 * number, 3), std::iter::empty());
    }
    assert_eq!(holes.known.len(), SPANS_MAX);
    // What is known still grows, and where it is cut the larger part stays.
    holes.zeroed(blocks(3, 1), std::iter::empty());
    holes.zeroed(blocks(4 * SPANS_MAX as u64, 3), std::iter::empty());
    assert_eq!(holes.known.len(), SPANS_MAX);
    holes.filled(blocks(1, 1));
    assert_eq!(holes.all()[0], blocks(2, 5));
    assert_eq!(holes.known.len(), SPANS_MAX);
}

#[test]
fn data_are_no_reason_to_ask() {
    let mut holes = holes();
    let mut bytes = [0; BLOCK as usize];
    bytes[BLOCK as usize - 1] = 1;
    holes.looked(blocks(0, 1), &bytes);
    assert!(holes.wanted().is_none());
}

#[test]
fn questions_that_are_of_no_use_become_rare() {
    const READS: u32 = 20_000;
    let mut holes = holes();
    let mut asked = 0;
    for _ in 0..READS {
        if let Some(span) = holes.blank(5) {
            asked += 1;
            holes.asked(span, Vec::new());
            // That the block just read is zero is nothing new.
            holes.told(&[extent(5, 1, true), extent(6, BLOCKS - 6, false)]);
            holes.filled(blocks(5, 1));
        }
    }
    println!("{asked} questions");
    assert!((11..11 + READS / PATIENCE_MAX).contains(&asked));
    // Where something was given back there may be holes now.
    holes.released();
    assert!(holes.blank(5).is_some());
}

#[test]
fn where_the_map_told_of_data_it_is_not_asked_before_something_was_given_back() {
    let mut holes = holes();
    holes.learns(&[extent(0, 8, true), extent(8, BLOCKS - 8, false)]);
    assert!((8..BLOCKS).all(|block| holes.blank(block).is_none()));
    holes.filled(blocks(0, 8));
    let span = holes.blank(7).expect("that was no data");
    holes.asked(span, Vec::new());
    holes.told(&[extent(7, 1, true)]);
    assert!(holes.blank(9).is_none());
    holes.released();
    assert!(holes.blank(9).is_some());
}

#[test]
fn range_discarded_during_an_extent_query_is_queried_again() {
    let mut holes = holes();
    let span = holes.blank(0).unwrap();
    holes.asked(span, Vec::new());
    holes.released();
    holes.told(&[extent(0, BLOCKS, false)]);
    assert!(holes.blank(9).is_none(), "the answer was of no use");
    assert!(holes.blank(9).is_some());
}

#[test]
fn a_question_that_was_of_use_is_followed_by_the_next() {
    let mut holes = holes();
    for from in (0..BLOCKS).step_by(8) {
        let span = holes.blank(from).expect("the one before was of use");
        holes.asked(span, Vec::new());
        // A store that tells of one extent at a time.
        holes.told(&[extent(from, 8, true)]);
    }
    assert_eq!(holes.all(), [blocks(0, BLOCKS)]);
    assert!(holes.blank(9).is_none(), "all is known");
}

#[test]
fn of_a_volume_that_others_write_to_nothing_is_known() {
    let mut holes = Holes::new(SIZE, false);
    assert!(holes.blank(0).is_none());
    holes.zeroed(blocks(0, 8), std::iter::empty());
    assert!(holes.all().is_empty());
}

#[test]
fn mapped_hole_is_forgotten_where_it_was_filled() {
    let mut holes = holes();
    holes.learns(&[extent(0, BLOCKS, true)]);
    holes.filled(blocks(10, 2));
    assert_eq!(holes.all(), [blocks(0, 10), blocks(12, BLOCKS - 12)]);
}
