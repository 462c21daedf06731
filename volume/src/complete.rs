//! Many requests that make one verb: it does not end before the last of them.

use std::future::poll_fn;
use std::task::Poll;

use futures_util::stream::{Stream, StreamExt as _};

use crate::FutureSet;

/// Carries out `parts`, at most `most` at a time, and gives each result to `each`. After the first error no
/// further part is begun; but those under way are waited for before it is returned.
///
/// A part that was left running could land after the verb has ended, over what was written since.
pub async fn complete_all<T, E>(
    most: usize,
    parts: impl Stream<Item = impl Future<Output = Result<T, E>>>,
    mut each: impl FnMut(T),
) -> Result<(), E> {
    let mut parts = std::pin::pin!(parts);
    let mut under_way = FutureSet::new();
    let (mut all_begun, mut first) = (false, None);
    poll_fn(|context| {
        loop {
            while !all_begun && under_way.len() < most {
                match parts.as_mut().poll_next(context) {
                    Poll::Ready(Some(part)) => under_way.push(part),
                    Poll::Ready(None) => all_begun = true,
                    Poll::Pending => break,
                }
            }
            match under_way.poll_next_unpin(context) {
                Poll::Ready(Some(Ok(done))) => each(done),
                Poll::Ready(Some(Err(error))) => {
                    all_begun = true;
                    first.get_or_insert(error);
                }
                Poll::Ready(None) if all_begun => {
                    return Poll::Ready(first.take().map_or(Ok(()), Err));
                }
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures_util::FutureExt as _;
    use futures_util::stream;

    use super::*;

    /// Parts that succeed or fail after being polled so many times, and when each began and ended.
    fn run(parts: &[(usize, bool)], most: usize) -> (Result<(), usize>, Vec<String>) {
        let log = RefCell::new(Vec::new());
        let log = &log;
        let parts = parts.iter().enumerate().map(|(number, &(polls, succeeds))| async move {
            log.borrow_mut().push(format!("begin {number}"));
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
            log.borrow_mut().push(format!("end {number}"));
            if succeeds { Ok(()) } else { Err(number) }
        });
        let mut all = Box::pin(complete_all(most, stream::iter(parts), drop));
        let ended = loop {
            if let Some(ended) = all.as_mut().now_or_never() {
                break ended;
            }
        };
        drop(all);
        (ended, log.take())
    }

    #[test]
    fn the_first_error_is_returned_when_the_last_part_has_ended() {
        let (ended, log) = run(&[(5, true), (1, false), (3, false)], 3);
        assert_eq!(ended, Err(1));
        assert_eq!(log, ["begin 0", "begin 1", "begin 2", "end 1", "end 2", "end 0"]);
    }

    #[test]
    fn no_part_begins_after_one_has_failed() {
        let (ended, log) = run(&[(2, true), (0, false), (0, true), (0, true)], 2);
        assert_eq!(ended, Err(1));
        assert_eq!(log, ["begin 0", "begin 1", "end 1", "end 0"]);
    }

    #[test]
    fn all_succeed_a_few_at_a_time() {
        let (ended, log) = run(&[(1, true), (1, true), (0, true)], 2);
        assert_eq!(ended, Ok(()));
        assert_eq!(log.iter().filter(|line| line.starts_with("end")).count(), 3);
    }
}
