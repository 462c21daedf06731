//! Work that goes on when nobody waits for it any more.

use std::pin::Pin;
use std::task::{Context, Poll};

/// A future that is run to its end even if it is dropped.
pub(super) struct Detached<T: Send + 'static>(
    pub(super) Option<Pin<Box<dyn Future<Output = T> + Send>>>,
);

impl<T: Send + 'static> Future for Detached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.0 else { return Poll::Pending };
        let output = future.as_mut().poll(cx);
        if output.is_ready() {
            self.0 = None;
        }
        output
    }
}

impl<T: Send + 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        if let Some(future) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(future);
        }
    }
}
