//! Places that somebody wants to know of once they are written to.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use volume::Span;

/// What is done at the first change of one of these places, which lie one behind another.
pub struct Watched {
    /// The places, without overlaps.
    pub places: Vec<Span>,
    /// It is called once.
    pub on_change: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("places", &self.places).finish_non_exhaustive()
    }
}

impl Watched {
    fn has(&self, span: Span) -> bool {
        let after = self.places.partition_point(|place| place.end() <= span.at);
        self.places.get(after).is_some_and(|place| place.at < span.end())
    }
}

/// All that is watched of one disk.
#[derive(Debug, Default)]
pub(super) struct Watch {
    any: AtomicBool,
    watched: Mutex<Vec<Watched>>,
}

impl Watch {
    /// Watches these too.
    pub(super) fn add(&self, watched: Watched) {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).push(watched);
        self.any.store(true, Ordering::Release);
    }

    /// This was changed.
    pub(super) fn changed(&self, span: Span) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        for changed in watched.extract_if(.., |watched| watched.has(span)) {
            (changed.on_change)();
        }
        self.any.store(!watched.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn change_of_a_watched_place_is_told_once() {
        let watch = Watch::default();
        let told = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&told);
        watch.add(Watched {
            places: vec![Span::new(10, 5), Span::new(20, 5)],
            on_change: Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            }),
        });
        for (at, len) in [(0, 10), (15, 5), (25, 100)] {
            watch.changed(Span::new(at, len));
            assert_eq!(told.load(Ordering::Relaxed), 0, "{at}");
        }
        watch.changed(Span::new(24, 1));
        watch.changed(Span::new(0, 100));
        assert_eq!(told.load(Ordering::Relaxed), 1);
    }
}
