//! A volume that is given only so many bytes and requests a second.
//!
//! A token bucket for each: a request begins once the tokens of those before it are paid, so that what a request takes is
//! paid by the next. Flushes are not held up: what they wait for has been paid.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::reconnect::Runtime;
use crate::{Durability, ExtentMap, Shape, Space, Span, Volume, Work};

/// How much of an idle time may be made up for.
const BURST: Duration = Duration::from_millis(100);

/// What is allowed a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Bytes read and written.
    pub bytes: Option<u64>,
    /// Requests but flushes.
    pub requests: Option<u64>,
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Tokens a second.
    rate: u64,
    /// When all that was taken is paid.
    paid_at: Duration,
}

impl Bucket {
    /// Takes tokens; when whoever took them may begin.
    fn take(&mut self, now: Duration, tokens: u64) -> Duration {
        let begin = self.paid_at.max(now.saturating_sub(BURST));
        let nanoseconds = u128::from(tokens) * 1_000_000_000 / u128::from(self.rate.max(1));
        let cost = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        self.paid_at = begin.saturating_add(cost);
        begin
    }
}

/// A volume whose rate is limited.
pub struct Limited<V> {
    inner: V,
    /// Of bytes, and of requests.
    buckets: Mutex<[Option<Bucket>; 2]>,
    runtime: Arc<dyn Runtime>,
}

impl<V: Volume> Limited<V> {
    /// `inner`, by the clock of `runtime`.
    pub fn new(inner: V, rates: Rates, runtime: Arc<dyn Runtime>) -> Self {
        let bucket = |rate: u64| Bucket { rate, paid_at: Duration::ZERO };
        let buckets = Mutex::new([rates.bytes.map(bucket), rates.requests.map(bucket)]);
        Self { inner, buckets, runtime }
    }

    /// Waits for the turn of a request with so many bytes.
    async fn turn(&self, bytes: u64) {
        let now = self.runtime.now();
        let begin = {
            let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
            let pairs = buckets.iter_mut().zip([bytes, 1]);
            let begins =
                pairs.filter_map(|(bucket, tokens)| Some(bucket.as_mut()?.take(now, tokens)));
            begins.max().unwrap_or_default()
        };
        if begin > now {
            self.runtime.sleep_until(begin).await;
        }
    }

    fn after_turn<'a, T: Send + 'a>(
        &'a self,
        bytes: u64,
        act: impl FnOnce(&'a V) -> Work<'a, T> + Send + 'a,
    ) -> Work<'a, T> {
        Box::pin(async move {
            self.turn(bytes).await;
            act(&self.inner).await
        })
    }
}

impl<V: Volume> Volume for Limited<V> {
    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        self.after_turn(span.len, move |inner| inner.read(span))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        self.after_turn(data.len() as u64, move |inner| inner.write(at, data, durability))
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.after_turn(0, move |inner| inner.write_zeroes(span, durability, space))
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.after_turn(0, move |inner| inner.discard(span))
    }

    fn flush(&self) -> Work<'_, ()> {
        self.inner.flush()
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.inner.extents()
    }

    fn is_saving(&self) -> bool {
        self.inner.is_saving()
    }

    fn save_part(&self, at: u64, data: Bytes) -> Work<'_, ()> {
        self.inner.save_part(at, data)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::check;
    use crate::store::memory::Memory;
    use crate::store::virtual_time::VirtualTime;

    fn limited(bytes: Option<u64>, requests: Option<u64>) -> (Limited<Memory>, Arc<VirtualTime>) {
        let time = Arc::new(VirtualTime::default());
        let rates = Rates { bytes, requests };
        (Limited::new(Memory::new(1 << 20, 512), rates, Arc::clone(&time) as _), time)
    }

    #[tokio::test]
    async fn limited_volume_keeps_the_contract() {
        // Time passes by itself.
        let time = Arc::new(VirtualTime::flying());
        let rates = Rates { bytes: Some(1 << 30), requests: Some(100_000) };
        let limited = || Limited::new(Memory::new(40 << 20, 512), rates, Arc::clone(&time) as _);
        check::volume(7, Arc::new(limited())).await;
        check::truth(512, async |disk| {
            let time = Arc::clone(&time) as Arc<dyn Runtime>;
            Arc::new(Limited::new(disk, rates, time)) as Arc<dyn Volume>
        })
        .await;
    }

    #[test]
    fn reads_and_writes_wait_for_what_those_before_took() {
        let (limited, time) = limited(Some(512), None);
        time.pass(Duration::from_secs(10));
        let span = Span::new(0, 512);
        // One is paid by a tenth of a second of idle time and the next by what follows.
        limited.read(span).now_or_never().expect("nobody was before it").unwrap();
        let mut write = limited.write(0, vec![1; 512].into(), Durability::Volatile);
        assert!((&mut write).now_or_never().is_none());
        time.pass(Duration::from_millis(899));
        assert!((&mut write).now_or_never().is_none());
        limited.flush().now_or_never().expect("flushes are not held up").unwrap();
        time.pass(Duration::from_millis(1));
        write.now_or_never().expect("a second and a tenth").unwrap();
    }

    #[test]
    fn requests_are_counted_whatever_their_size() {
        let (limited, time) = limited(None, Some(10));
        let zero =
            || limited.write_zeroes(Span::new(0, 1 << 20), Durability::Volatile, Space::Keep);
        zero().now_or_never().expect("the first").unwrap();
        let mut late = zero();
        assert!((&mut late).now_or_never().is_none());
        time.pass(Duration::from_millis(100));
        late.now_or_never().expect("a tenth of a second later").unwrap();
    }
}
