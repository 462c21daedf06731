//! Work that others wait for. A panic is a mistake in the program; if it ended the work and nobody noticed, they would wait
//! for ever.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

/// What comes of `work`; `None` if it panics. What it has left half done is the caller's affair.
pub(crate) async fn unless_broken<T>(work: impl Future<Output = T>) -> Option<T> {
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    if outcome.is_err() {
        tracing::error!("an internal error: a task has broken down");
    }
    outcome.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_that_panics_has_no_outcome() {
        assert_eq!(unless_broken(async { 7 }).await, Some(7));
        assert_eq!(unless_broken(async { panic!("a mistake") }).await, None::<()>);
    }
}
