//! The conformance suite: what the prose of [`Volume`] promises, asked of a real one.
//!
//! Every store and every layer runs it in its tests. It asserts, so a failure is a panic that names
//! the promise, and it prints its seed first, so that a failure can be had again. It overwrites the
//! first four MiB and the end of the volume it is given. What the trait says of failures is asked by [`truth()`],
//! of volumes on a disk that fails.

#[cfg(test)]
mod neighbours;
mod truth;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{join, join_all};

use crate::{Durability, Gate, Kind, Shape, Space, Span, TRANSFER_MAX, Volume};

pub use crate::random::Random;
pub use crate::wake_counter::WakeCounter;
#[cfg(test)]
pub(crate) use neighbours::neighbours;
pub use truth::truth;

/// How much of the volume the random part works on: enough to cross every internal border of a
/// store, little enough to keep a model of it.
const WINDOW: u64 = 4 << 20;

/// How many random verbs run against the model.
const STEPS: usize = 600;

/// Runs the whole suite. The volume must be writable.
///
/// # Panics
///
/// On the first promise that is not kept.
pub async fn volume(seed: u64, volume: Arc<dyn Volume>) {
    println!("volume check, seed {seed}");
    let volume = Gate::new("check", volume);
    shape(volume.shape());
    refusals(&volume).await;
    ends(&volume).await;
    largest_transfer(&volume, &mut Random::new(seed)).await;
    in_flight(&volume, &mut Random::new(seed ^ 1)).await;
    compare_with_model(&volume, &mut Random::new(seed ^ 2)).await;
    extents(&volume).await;
    volume.flush().await.expect("flush");
}

fn shape(shape: &Shape) {
    assert!(shape.size > 0, "an empty volume cannot be checked");
    assert!(!shape.read_only, "a read-only volume cannot be checked");
    if let Some(discard) = shape.discard {
        assert!(discard.granularity.is_multiple_of(shape.block_size), "{discard:?}");
    }
}

type Checked = Gate<Arc<dyn Volume>>;

/// What the gate promises on behalf of the volume.
async fn refusals(volume: &Checked) {
    let &Shape { size, block_size, .. } = volume.shape();
    let block = u64::from(block_size);
    for span in [
        Span::new(1, block),
        Span::new(0, block - 1),
        Span::new(size, block),
        Span::new(size - block, 2 * block),
        Span::new(u64::MAX - block + 1, block),
        Span::new(0, u64::from(TRANSFER_MAX) + block),
    ] {
        let refused = volume.read(span).await.expect_err("a read outside the rules");
        assert_eq!(refused.kind, Kind::Range, "{span}");
    }
    let short = Bytes::from(vec![0; block_size as usize - 1]);
    let refused = volume.write(0, short, Durability::Volatile).await.expect_err("half a block");
    assert_eq!(refused.kind, Kind::Range);
    assert_eq!(volume.read(Span::new(size, 0)).await.expect("nothing, at the end"), Bytes::new());
}

/// The first and the last block are there, and apart.
async fn ends(volume: &Checked) {
    let &Shape { size, block_size, .. } = volume.shape();
    let last = size - u64::from(block_size);
    for (at, byte) in [(0, 0xa5), (last, 0x5a)] {
        let data = Bytes::from(vec![byte; block_size as usize]);
        volume.write(at, data.clone(), Durability::Durable).await.expect("write an end");
        assert_eq!(volume.read(Span::new(at, u64::from(block_size))).await.expect("read"), data);
    }
}

async fn largest_transfer(volume: &Checked, random: &mut Random) {
    let len = u64::from(TRANSFER_MAX).min(volume.shape().size);
    let data = Bytes::from(random.bytes(len as usize));
    volume.write(0, data.clone(), Durability::Volatile).await.expect("the largest write");
    let read = volume.read(Span::new(0, len)).await.expect("the largest read");
    assert!(read == data, "the largest transfer came back changed");
}

/// Many writes in flight at once land each in its place; a read beside a write sees, block by
/// block, old or new bytes.
async fn in_flight(volume: &Checked, random: &mut Random) {
    let block = u64::from(volume.shape().block_size);
    let count = (volume.shape().size / block).min(64);
    let span = Span::new(0, count * block);
    let old = volume.read(span).await.expect("read before");
    let new = Bytes::from(random.bytes(old.len()));
    let writes = span.pieces(block).map(|piece| {
        let data = new.slice(piece.at as usize..piece.end() as usize);
        volume.write(piece.at, data, Durability::Volatile)
    });
    let (written, beside) = join(join_all(writes), volume.read(span)).await;
    for result in written {
        result.expect("a write among many");
    }
    let beside = beside.expect("a read beside writes");
    for piece in span.pieces(block) {
        let range = piece.at as usize..piece.end() as usize;
        let seen = &beside[range.clone()];
        assert!(seen == &old[range.clone()] || seen == &new[range], "a torn block at {piece}");
    }
    assert!(volume.read(span).await.expect("read after") == new, "a completed write was not seen");
}

/// What a model knows of a block: its bytes, and whether a discard left open what they are.
struct Model {
    bytes: Vec<u8>,
    open: Vec<bool>,
    block: usize,
}

impl Model {
    fn set(&mut self, span: Span, data: Option<&[u8]>) {
        let range = span.at as usize..span.end() as usize;
        match data {
            Some(data) => self.bytes[range].copy_from_slice(data),
            None => self.bytes[range].fill(0),
        }
        self.mark(span, false);
    }

    fn mark(&mut self, span: Span, open: bool) {
        self.open[span.at as usize / self.block..span.end() as usize / self.block].fill(open);
    }

    fn compare(&self, span: Span, read: &[u8], step: usize) {
        assert_eq!(read.len() as u64, span.len, "step {step}: the answer has another length");
        let blocks = read.chunks(self.block).zip(span.pieces(self.block as u64));
        for (read, piece) in blocks {
            let known = &self.bytes[piece.at as usize..piece.end() as usize];
            let zeroed = self.open[piece.at as usize / self.block] && read.iter().all(|b| *b == 0);
            assert!(read == known || zeroed, "step {step}: wrong bytes at {piece}");
        }
    }
}

async fn compare_with_model(volume: &Checked, random: &mut Random) {
    let block = u64::from(volume.shape().block_size);
    let blocks = volume.shape().size.min(WINDOW) / block;
    let all = Span::new(0, blocks * block);
    let mut model = Model {
        bytes: volume.read(all).await.expect("read the window").to_vec(),
        open: vec![false; blocks as usize],
        block: block as usize,
    };
    for step in 0..STEPS {
        let span = some_span(random, blocks, block);
        step_against_the_model(volume, &mut model, random, span, step).await;
    }
    volume.flush().await.expect("flush");
    model.compare(all, &volume.read(all).await.expect("read the window again"), STEPS);
}

/// Mostly short, sometimes long, anywhere.
fn some_span(random: &mut Random, blocks: u64, block: u64) -> Span {
    let from = random.below(blocks);
    let longest = if random.below(4) == 0 { blocks - from } else { (blocks - from).min(16) };
    Span::new(from * block, (1 + random.below(longest)) * block)
}

async fn step_against_the_model(
    volume: &Checked,
    model: &mut Model,
    random: &mut Random,
    span: Span,
    step: usize,
) {
    let durability = [Durability::Volatile, Durability::Durable][random.below(2) as usize];
    match random.below(10) {
        0..4 => {
            let data = Bytes::from(random.bytes(span.len as usize));
            model.set(span, Some(&data));
            volume.write(span.at, data, durability).await.expect("write");
        }
        4 => {
            let space = [Space::Keep, Space::Release][random.below(2) as usize];
            model.set(span, None);
            volume.write_zeroes(span, durability, space).await.expect("write zeroes");
        }
        5 => discard(volume, model, span).await,
        6 => volume.flush().await.expect("flush"),
        _ => model.compare(span, &volume.read(span).await.expect("read"), step),
    }
}

async fn discard(volume: &Checked, model: &mut Model, span: Span) {
    match volume.shape().discard {
        None => {
            let refused = volume.discard(span).await.expect_err("discard is not announced");
            assert_eq!(refused.kind, Kind::Unsupported);
        }
        Some(how) => {
            volume.discard(span).await.expect("discard");
            if how.reads_zeroes {
                model.set(span, None);
            } else {
                model.mark(span, true);
            }
        }
    }
}

/// Extents follow one another without gaps, and what they call zero reads as zeroes.
async fn extents(volume: &Checked) {
    let Some(map) = volume.extents() else { return };
    let block = u64::from(volume.shape().block_size);
    let window = volume.shape().size.min(WINDOW) / block * block;
    let third = Span::new(window / 3 / block * block, window / 3 / block * block);
    volume.write_zeroes(third, Durability::Volatile, Space::Release).await.expect("write zeroes");
    let mut at = 0;
    while at < window {
        let found = map.extents(Span::new(at, window - at)).await.expect("extents");
        assert!(!found.is_empty(), "no extent at {at}");
        for extent in found {
            assert_eq!(extent.span.at, at, "extents leave a gap or overlap");
            assert!(extent.span.len > 0 && extent.span.end() <= window, "{extent:?}");
            if extent.zero {
                let read = volume.read(extent.span).await.expect("read an extent");
                assert!(read.iter().all(|byte| *byte == 0), "not zero: {extent:?}");
            }
            at = extent.span.end();
        }
    }
}
