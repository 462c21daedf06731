//! A volume that answers late and in any order, and watches what it is asked: changes to the same
//! bytes are never in flight together, and never more than was agreed. Its discards may keep the bytes,
//! if it says so.

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use volume::check::Random;
use volume::{Discard, Durability, ExtentMap, Result, Shape, Space, Span, Volume, Work};

use crate::sim::Sim;

pub(crate) struct Chaos<V> {
    pub(crate) disk: V,
    sim: Sim,
    random: Mutex<Random>,
    in_flight: Mutex<Vec<(Span, bool)>>,
    bytes_max: u64,
    shape: Shape,
}

impl<V: Volume> Chaos<V> {
    /// Over `disk`; more than `bytes_max` of data in flight are a failure of the test.
    pub(crate) fn new(sim: &Sim, seed: u64, disk: V, bytes_max: u64) -> Self {
        let random = Mutex::new(Random::new(seed));
        let mut shape = disk.shape().clone();
        shape.discard = shape
            .discard
            .map(|discard| Discard { reads_zeroes: !seed.is_multiple_of(3), ..discard });
        Self { shape, disk, sim: sim.clone(), random, in_flight: Mutex::default(), bytes_max }
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
        None
    }
}
