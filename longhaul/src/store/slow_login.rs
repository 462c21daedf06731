//! A server that does not answer a login: whoever waits is told for whom.

use std::fmt::Display;
use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

/// A login by a link of half a second takes that long.
const TOLD_AFTER: Duration = Duration::from_secs(3);

/// What comes of `login` at `server`. Says so if that takes long.
pub(super) async fn warn_if_slow<T>(server: impl Display, login: impl Future<Output = T>) -> T {
    let mut login = pin!(login);
    if let Ok(done) = timeout(TOLD_AFTER, &mut login).await {
        return done;
    }
    tracing::warn!("no answer from {server} yet: waiting for its login response");
    login.await
}
