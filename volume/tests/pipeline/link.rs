//! A store at the other end of a link with a delay and a rate, on virtual time. Each direction carries
//! one thing at a time, in order, as a connection does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use volume::check::Random;
use volume::layer::reconnect::Runtime;
use volume::{Durability, Extent, ExtentMap, Shape, Space, Span, Volume, Work};

use crate::sim::Sim;

/// What a command or an answer takes beside its data.
const HEADER: u64 = 48;

/// What one extent of a map takes, as in GET LBA STATUS.
const EXTENT: u64 = 16;

/// What the link is like; it may change while it is used.
#[derive(Clone, Copy)]
pub(crate) struct Conditions {
    pub(crate) one_way: Duration,
    /// Up to this much more at times.
    pub(crate) jitter: Duration,
    /// Bytes per second, each way.
    pub(crate) rate: f64,
    /// Each way is a TCP connection that has not sent anything yet.
    pub(crate) slow_start: bool,
    /// A longer write waits until the store asks for its data.
    pub(crate) unsolicited: u64,
}

pub(crate) struct Link<V> {
    sim: Sim,
    line: Mutex<Conditions>,
    up: Lane,
    down: Lane,
    random: Mutex<Random>,
    store: V,
    /// How often the map was asked for.
    questions: AtomicU64,
}

/// What a TCP connection may have in flight before its first acknowledgement (RFC 6928, 2).
const FIRST_WINDOW: u64 = 10 * PACKET;

/// What a packet carries.
const PACKET: u64 = 1448;

/// A connection that starts slowly (RFC 5681, 3.1): it may have twice as much in flight after each round trip
/// in which it used what it had.
struct SlowStart {
    window: u64,
    in_flight: u64,
    /// When the last packet was sent.
    sent: Duration,
    /// When packets are acknowledged, and their bytes.
    acknowledged: VecDeque<(Duration, u64)>,
}

impl Default for SlowStart {
    fn default() -> Self {
        Self {
            window: FIRST_WINDOW,
            in_flight: 0,
            sent: Duration::ZERO,
            acknowledged: VecDeque::new(),
        }
    }
}

impl SlowStart {
    /// When a packet that is there at `time` may be sent.
    fn may_send(&mut self, time: Duration, bytes: u64) -> Duration {
        let mut time = time.max(self.sent);
        while let Some(&(at, acknowledged)) = self.acknowledged.front()
            && (at <= time || self.in_flight + bytes > self.window)
        {
            // A window of which not half was used does not grow (RFC 7661, 4.3).
            if self.in_flight * 2 > self.window {
                self.window += acknowledged;
            }
            self.in_flight -= acknowledged;
            self.acknowledged.pop_front();
            time = time.max(at);
        }
        self.sent = time;
        time
    }

    fn sent(&mut self, bytes: u64, acknowledged: Duration) {
        self.in_flight += bytes;
        self.acknowledged.push_back((acknowledged, bytes));
    }
}

#[derive(Default)]
struct Lane {
    start: Mutex<SlowStart>,
    free: Mutex<Duration>,
    /// How long what TCP had let go waited for the link at most.
    queued: Mutex<Duration>,
    /// When the last of what was sent arrives: nothing overtakes.
    arrived: Mutex<Duration>,
    carried: AtomicU64,
}

impl Lane {
    /// When the last of so many bytes has left.
    fn leaves(&self, now: Duration, bytes: u64, line: Conditions) -> Duration {
        let mut free = self.free.lock().unwrap();
        let takes = |bytes: u64| Duration::from_secs_f64(bytes as f64 / line.rate);
        if !line.slow_start {
            *free = now.max(*free) + takes(bytes);
            return *free;
        }
        let mut start = self.start.lock().unwrap();
        let mut queued = self.queued.lock().unwrap();
        for packet in Span::new(0, bytes).pieces(PACKET) {
            let sent = start.may_send(now, packet.len);
            *queued = queued.max(free.saturating_sub(sent));
            *free = sent.max(*free) + takes(packet.len);
            start.sent(packet.len, *free + 2 * line.one_way);
        }
        *free
    }
}

impl<V: Volume> Link<V> {
    pub(crate) fn new(sim: &Sim, line: Conditions, store: V) -> Arc<Self> {
        let (up, down) = (Lane::default(), Lane::default());
        Arc::new(Self {
            sim: sim.clone(),
            line: Mutex::new(line),
            up,
            down,
            random: Mutex::new(Random::new(1)),
            store,
            questions: AtomicU64::new(0),
        })
    }

    /// How often the store's map was asked for.
    pub(crate) fn questions(&self) -> u64 {
        self.questions.load(Ordering::Relaxed)
    }

    pub(crate) fn conditions(&self) -> Conditions {
        *self.line.lock().unwrap()
    }

    pub(crate) fn set_conditions(&self, line: Conditions) {
        *self.line.lock().unwrap() = line;
    }

    /// How much has been carried to the store and from it.
    pub(crate) fn carried(&self) -> (u64, u64) {
        (self.up.carried.load(Ordering::Relaxed), self.down.carried.load(Ordering::Relaxed))
    }

    /// How long what was sent to the store, and from it, waited for the link at most. Where that is more than the
    /// router's queue lasts, packets are lost.
    pub(crate) fn queued(&self) -> (Duration, Duration) {
        let most = |lane: &Lane| *lane.queued.lock().unwrap();
        (most(&self.up), most(&self.down))
    }

    /// Sends so many bytes to the store, and nothing else; returns when they are there.
    pub(crate) async fn stream(&self, bytes: u64) {
        self.cross(&self.up, bytes).await;
    }

    async fn cross(&self, lane: &Lane, bytes: u64) {
        let line = self.conditions();
        let sent = lane.leaves(self.sim.now(), bytes + HEADER, line);
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
            let line = self.conditions();
            if data.len() as u64 > line.unsolicited {
                // Data that were asked for let commands pass.
                self.sim.until(self.sim.now() + line.one_way).await;
                self.cross(&self.down, 0).await;
            }
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
        self.store.extents().is_some().then_some(self)
    }
}

impl<V: Volume> ExtentMap for Link<V> {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        Box::pin(async move {
            self.questions.fetch_add(1, Ordering::Relaxed);
            self.cross(&self.up, 0).await;
            let map = self.store.extents().expect("asked of one that has a map");
            let extents = map.extents(span).await?;
            self.cross(&self.down, EXTENT * extents.len() as u64).await;
            Ok(extents)
        })
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
