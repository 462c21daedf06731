//! Opens volumes side by side.

use futures_util::stream::StreamExt as _;
use volume::FutureSet;

use crate::failure::Outcome;

/// How many volumes are opened at a time: most of it is waiting for their storage.
const AT_ONCE: usize = 16;

/// What comes of `open` for each of `volumes`, in their order. None is begun after one has failed: that is `None`.
pub(super) async fn open_together<V, T, F: Future<Output = Outcome<T>>>(
    volumes: Vec<V>,
    open: impl Fn(V) -> F,
) -> Vec<Option<Outcome<T>>> {
    let mut has_failed = false;
    let mut opened: Vec<_> = volumes.iter().map(|_| None).collect();
    let mut waiting = volumes.into_iter().enumerate();
    let begin = |(at, volume): (usize, V)| {
        let opening = open(volume);
        async move { (at, opening.await) }
    };
    // In no order: one that takes long must not keep those behind it from being begun.
    let mut under_way = FutureSet::new();
    waiting.by_ref().take(AT_ONCE).for_each(|one| under_way.push(begin(one)));
    while let Some((at, outcome)) = under_way.next().await {
        has_failed |= outcome.is_err();
        if let Some(place) = opened.get_mut(at) {
            *place = Some(outcome);
        }
        if !has_failed {
            waiting.next().into_iter().for_each(|one| under_way.push(begin(one)));
        }
    }
    opened
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::future::{pending, ready};
    use std::sync::Mutex;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::failure::Failure;

    #[test]
    fn volume_that_hangs_does_not_hold_up_the_others() {
        let begun = Mutex::new(BTreeSet::new());
        let open = async |volume: usize| {
            begun.lock().unwrap().insert(volume);
            if volume == 0 { pending().await } else { Ok(()) }
        };
        let opened = open_together((0..100).collect(), open).now_or_never();
        assert!(opened.is_none(), "the first is not open");
        assert_eq!(*begun.lock().unwrap(), (0..100).collect());
    }

    #[test]
    fn no_more_than_so_many_are_opened_at_once() {
        let begun = Mutex::new(0);
        let open = async |_: usize| {
            *begun.lock().unwrap() += 1;
            pending::<Outcome>().await
        };
        assert!(open_together((0..100).collect(), open).now_or_never().is_none());
        assert_eq!(*begun.lock().unwrap(), AT_ONCE);
    }

    /// The first one is done last.
    #[tokio::test]
    async fn results_are_in_the_order_of_the_volumes() {
        let open = async |volume: usize| {
            for _ in volume..40 {
                tokio::task::yield_now().await;
            }
            Ok(volume)
        };
        let opened = open_together((0..40).collect(), open).await;
        let opened: Vec<_> = opened.into_iter().map(|one| one.unwrap().unwrap()).collect();
        assert_eq!(opened, (0..40).collect::<Vec<_>>());
    }

    /// All that were under way are waited for, so that those which were opened can be closed.
    #[test]
    fn after_a_failure_no_other_is_begun_and_each_failure_is_told() {
        let open = |volume: usize| {
            ready(match volume {
                0 | 3 => Err(Failure::new(format!("no volume {volume}"))),
                _ => Ok(volume),
            })
        };
        let opened = open_together((0..100).collect(), open).now_or_never().unwrap();
        let failed = |at: usize| opened[at].as_ref().unwrap().as_ref().unwrap_err().to_string();
        assert_eq!((failed(0), failed(3)), ("no volume 0".to_owned(), "no volume 3".to_owned()));
        assert_eq!(opened.iter().flatten().flatten().count(), AT_ONCE - 2);
        assert!(opened[AT_ONCE..].iter().all(Option::is_none));
    }
}
