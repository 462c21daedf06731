//! A store at the other end of a link with a delay and a rate, on virtual time. Each direction carries
//! one thing at a time, in order, as a connection does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use volume::check::Random;
use volume::layer::pipeline::Clock;
use volume::{Durability, ExtentMap, Shape, Space, Span, Volume, Work};

use crate::sim::Sim;

/// What a command or an answer takes beside its data.
const HEADER: u64 = 48;

/// What the link is like; it may change while it is used.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    pub(crate) one_way: Duration,
    /// Up to this much more at times.
    pub(crate) jitter: Duration,
    /// Bytes per second, each way.
    pub(crate) rate: f64,
}

pub(crate) struct Link<V> {
    sim: Sim,
    line: Mutex<Line>,
    up: Lane,
    down: Lane,
    random: Mutex<Random>,
    store: V,
}

#[derive(Default)]
struct Lane {
    free: Mutex<Duration>,
    /// When the last of what was sent arrives: nothing overtakes.
    arrived: Mutex<Duration>,
    carried: AtomicU64,
}

impl<V: Volume> Link<V> {
    pub(crate) fn new(sim: &Sim, line: Line, store: V) -> Arc<Self> {
        let (up, down) = (Lane::default(), Lane::default());
        Arc::new(Self {
            sim: sim.clone(),
            line: Mutex::new(line),
            up,
            down,
            random: Mutex::new(Random::new(1)),
            store,
        })
    }

    pub(crate) fn become_like(&self, line: Line) {
        *self.line.lock().unwrap() = line;
    }

    /// How much has been carried to the store and from it.
    pub(crate) fn carried(&self) -> (u64, u64) {
        (self.up.carried.load(Ordering::Relaxed), self.down.carried.load(Ordering::Relaxed))
    }

    async fn cross(&self, lane: &Lane, bytes: u64) {
        let line = *self.line.lock().unwrap();
        let sent = {
            let mut free = lane.free.lock().unwrap();
            let time = Duration::from_secs_f64((bytes + HEADER) as f64 / line.rate);
            *free = self.sim.now().max(*free) + time;
            *free
        };
        self.sim.until(sent).await;
        lane.carried.fetch_add(bytes, Ordering::Relaxed);
        let arrives = {
            let mut arrived = lane.arrived.lock().unwrap();
            let late = self.random.lock().unwrap().below(1001) as u32;
            *arrived = (sent + line.one_way + line.jitter * late / 1000).max(*arrived);
            *arrived
        };
        self.sim.until(arrives).await;
    }
}

impl<V: Volume> Volume for Link<V> {
    fn shape(&self) -> &Shape {
        self.store.shape()
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(async move {
            self.cross(&self.up, 0).await;
            let bytes = self.store.read(span).await?;
            self.cross(&self.down, span.len).await;
            Ok(bytes)
        })
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        Box::pin(async move {
            self.cross(&self.up, data.len() as u64).await;
            self.store.write(at, data, durability).await?;
            self.cross(&self.down, 0).await;
            Ok(())
        })
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        Box::pin(async move {
            self.cross(&self.up, 0).await;
            self.store.write_zeroes(span, durability, space).await?;
            self.cross(&self.down, 0).await;
            Ok(())
        })
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        Box::pin(async move {
            self.cross(&self.up, 0).await;
            self.store.discard(span).await?;
            self.cross(&self.down, 0).await;
            Ok(())
        })
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(async move {
            self.cross(&self.up, 0).await;
            self.store.flush().await?;
            self.cross(&self.down, 0).await;
            Ok(())
        })
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        None
    }
}

/// A store that takes everything and holds nothing, for runs of many gigabytes: what is read says
/// where it was read from.
pub(crate) struct Void(pub(crate) Shape);

impl Volume for Void {
    fn shape(&self) -> &Shape {
        &self.0
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        let mut bytes = vec![0; span.len as usize];
        for (block, at) in bytes.chunks_mut(512).zip((span.at..).step_by(512)) {
            block[..8].copy_from_slice(&at.to_le_bytes());
        }
        Box::pin(std::future::ready(Ok(bytes.into())))
    }

    fn write(&self, _: u64, _: Bytes, _: Durability) -> Work<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write_zeroes(&self, _: Span, _: Durability, _: Space) -> Work<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn discard(&self, _: Span) -> Work<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        None
    }
}
