//! A record of a run: each request to each layer of a chain, from when it was made to when it was answered. What lies between
//! a request to one layer and those that it causes beneath is what the layer takes: waiting, encrypting, sending.
//!
//! A chain without a trace has nothing of it. With one each request costs two looks at the clock and an entry of a list.

mod chrome;
mod layer;
mod picture;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use volume::{Span, Verb, Volume};

use layer::TracedVolume;

/// Requests that are kept, the first of a run: some 30 MB.
const REQUESTS_MAX: usize = 500_000;

/// A request to a layer. Times are nanoseconds since the trace began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TracedRequest {
    /// The number of the layer.
    layer: u8,
    verb: Verb,
    span: Span,
    from: u64,
    to: u64,
    failed: bool,
}

/// A record that is being made.
#[derive(Debug)]
pub struct Trace {
    began: Instant,
    kept: Mutex<Records>,
}

#[derive(Debug, Default)]
struct Records {
    layers: Vec<&'static str>,
    requests: Vec<TracedRequest>,
    /// Those for which there was no room.
    dropped: u64,
}

impl Trace {
    /// One that begins now.
    #[must_use]
    pub fn begin() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), kept: Mutex::default() })
    }

    /// The same volume, whose requests are recorded as those of the layer `name`.
    #[must_use]
    pub fn over(self: &Arc<Self>, name: &'static str, volume: Arc<dyn Volume>) -> Arc<dyn Volume> {
        let mut kept = self.kept();
        kept.layers.push(name);
        let layer = u8::try_from(kept.layers.len() - 1).unwrap_or(u8::MAX);
        drop(kept);
        Arc::new(TracedVolume::new(Arc::clone(self), layer, volume))
    }

    /// The time of the trace.
    #[must_use]
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn kept(&self) -> MutexGuard<'_, Records> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, request: TracedRequest) {
        let mut kept = self.kept();
        match kept.requests.len() < REQUESTS_MAX {
            true => kept.requests.push(request),
            false => kept.dropped += 1,
        }
    }

    /// How many requests there are, and for how many more there was no room.
    #[must_use]
    pub fn count(&self) -> (usize, u64) {
        let kept = self.kept();
        (kept.requests.len(), kept.dropped)
    }

    /// The record as Chrome and Perfetto read it.
    pub fn write_chrome(&self, to: &mut impl std::io::Write) -> std::io::Result<()> {
        let kept = self.kept();
        chrome::write(&kept.layers, &kept.requests, to)
    }

    /// The record as a picture over time, in parts one below the other: each has a name and ends at a time of the trace.
    #[must_use]
    pub fn picture(&self, title: &str, parts: &[(&str, u64)]) -> String {
        let kept = self.kept();
        picture::picture(title, parts, &kept.layers, &kept.requests)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use volume::store::memory::Memory;
    use volume::{Durability, check};

    use super::*;

    async fn traced() -> Arc<Trace> {
        let trace = Trace::begin();
        let store = trace.over("store", Arc::new(Memory::new(1 << 20, 512)));
        let top = trace.over("requests", store);
        top.write(512, Bytes::from(vec![7; 1024]), Durability::Volatile).await.unwrap();
        assert_eq!(top.read(Span::new(512, 1024)).await.unwrap(), vec![7; 1024]);
        top.flush().await.unwrap();
        trace
    }

    #[tokio::test]
    async fn trace_keeps_the_contract_and_tells_the_truth() {
        let trace = Trace::begin();
        check::volume(21, trace.over("store", Arc::new(Memory::new(5 << 20, 512)))).await;
        check::truth(512, async |disk| Trace::begin().over("store", disk)).await;
    }

    #[tokio::test]
    async fn each_request_to_each_layer_is_recorded_within_the_one_above() {
        let trace = traced().await;
        assert_eq!(trace.count(), (6, 0));
        let kept = trace.kept();
        for pair in kept.requests.chunks(2) {
            let [below, above] = pair else { panic!("an odd number") };
            assert_eq!((below.layer, above.layer, below.verb), (0, 1, above.verb));
            assert!(above.from <= below.from && below.from <= below.to && below.to <= above.to);
            assert!(!below.failed && below.span == above.span);
        }
    }

    #[tokio::test]
    async fn file_for_perfetto_is_json_in_which_every_request_begins_and_ends() {
        let trace = traced().await;
        let mut file = Vec::new();
        trace.write_chrome(&mut file).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&file).unwrap();
        let events = read["traceEvents"].as_array().unwrap();
        let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
        assert_eq!((of("b"), of("e"), of("M")), (6, 6, 2));
        let write = events.iter().find(|event| event["name"] == "write").unwrap();
        assert_eq!(write["args"]["bytes"], 1024);
    }

    #[tokio::test]
    async fn picture_has_a_bar_for_each_request_of_its_part() {
        let trace = traced().await;
        let svg =
            trace.picture("a <title>", &[("all of it", trace.now()), ("nothing", trace.now())]);
        assert_eq!(svg.matches("class=\"bar\"").count(), 6);
        assert!(svg.contains("a &lt;title&gt;") && svg.ends_with("</svg>\n"));
    }
}
