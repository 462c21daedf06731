//! A volume that answers late and in any order, and watches what it is asked: changes to the same
//! bytes are never in flight together, and never more than was agreed. Its discards may keep the bytes,
//! if it says so. Its map is that of some moment since it was asked for, and often ends early.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use volume::check::Random;
use volume::{Discard, Durability, Extent, ExtentMap, Result, Shape, Space, Span, Volume, Work};

use crate::history::BLOCK;
use crate::sim::Sim;

pub(crate) struct Chaos<V> {
    pub(crate) disk: V,
    sim: Sim,
    random: Mutex<Random>,
    in_flight: Mutex<Vec<(Span, bool)>>,
    bytes_max: u64,
    shape: Shape,
    told: AtomicU64,
}

impl<V: Volume> Chaos<V> {
    /// Over `disk`; more than `bytes_max` of data in flight are a failure of the test.
    pub(crate) fn new(sim: &Sim, seed: u64, disk: V, bytes_max: u64) -> Self {
        let random = Mutex::new(Random::new(seed));
        let mut shape = disk.shape().clone();
        shape.discard = shape
            .discard
            .map(|discard| Discard { reads_zeroes: !seed.is_multiple_of(3), ..discard });
        let (sim, in_flight) = (sim.clone(), Mutex::default());
        Self { shape, disk, sim, random, in_flight, bytes_max, told: AtomicU64::new(0) }
    }

    /// How often its map was told.
    pub(crate) fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    /// Whether discarded blocks may show what was there before.
    pub(crate) fn keeps(&self) -> bool {
        self.shape.discard.is_some_and(|discard| !discard.reads_zeroes)
    }

    /// Some time, often none.
    async fn dawdle(&self) {
        let time = {
            let mut random = self.random.lock().unwrap();
            Duration::from_micros(random.below(4).saturating_sub(1) * random.below(1500))
        };
        if !time.is_zero() {
            self.sim.pause(time).await;
        }
    }

    async fn change(
        &self,
        span: Span,
        data: bool,
        act: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        {
            let mut flying = self.in_flight.lock().unwrap();
            let other = flying.iter().find(|(other, _)| other.overlaps(span));
            assert!(other.is_none(), "{span} is in flight together with {other:?}");
            flying.push((span, data));
            let bytes: u64 =
                flying.iter().filter(|(_, data)| *data).map(|(span, _)| span.len).sum();
            assert!(bytes <= self.bytes_max, "{bytes} bytes in flight");
        }
        self.dawdle().await;
        let result = act.await;
        self.dawdle().await;
        self.in_flight.lock().unwrap().retain(|(other, _)| *other != span);
        result
    }
}

impl<V: Volume> Volume for Chaos<V> {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(async move {
            self.dawdle().await;
            let bytes = self.disk.read(span).await;
            self.dawdle().await;
            bytes
        })
    }

    // The verbs of the disk beneath act when they are called, so they are called when it is time.

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        Box::pin(self.change(
            span,
            true,
            async move { self.disk.write(at, data, durability).await },
        ))
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        let zero = async move { self.disk.write_zeroes(span, durability, space).await };
        Box::pin(self.change(span, false, zero))
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        let kept = self.keeps() && self.random.lock().unwrap().below(2) == 0;
        let discard = async move { if kept { Ok(()) } else { self.disk.discard(span).await } };
        Box::pin(self.change(span, false, discard))
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(async move {
            self.dawdle().await;
            let result = self.disk.flush().await;
            self.dawdle().await;
            result
        })
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        Some(self)
    }
}

impl<V: Volume> ExtentMap for Chaos<V> {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        Box::pin(async move {
            self.dawdle().await;
            let bytes = self.disk.read(span).await?;
            let mut extents: Vec<Extent> = Vec::new();
            for (block, bytes) in span.pieces(BLOCK).zip(bytes.chunks(BLOCK as usize)) {
                let zero = bytes.iter().all(|byte| *byte == 0);
                match extents.last_mut() {
                    Some(last) if last.zero == zero => last.span.len += block.len,
                    _ => extents.push(Extent { span: block, hole: zero, zero }),
                }
            }
            extents.truncate(1 + self.random.lock().unwrap().below(6) as usize);
            self.told.fetch_add(1, Ordering::Relaxed);
            self.dawdle().await;
            Ok(extents)
        })
    }
}
