//! How many programs use what a front offers.

use std::sync::Arc;

use tokio::sync::watch;

/// How many clients are connected, or have the file open.
#[derive(Clone, Debug)]
pub struct Clients(Arc<watch::Sender<usize>>);

impl Default for Clients {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Clients {
    /// So many.
    #[must_use]
    pub fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Returns once there are none any more; those who have not come yet are waited for.
    pub async fn gone(&self) {
        let mut count = self.0.subscribe();
        for is_there in [true, false] {
            // It cannot fail: the other end is here.
            let _ = count.wait_for(|count| (*count > 0) == is_there).await;
        }
    }

    pub(super) fn set(&self, count: usize) {
        self.0.send_replace(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn clients_are_gone_once_there_were_some() {
        let clients = Clients::default();
        let watched = clients.clone();
        let gone = tokio::spawn(async move { watched.gone().await });
        tokio::task::yield_now().await;
        clients.set(2);
        clients.set(1);
        tokio::task::yield_now().await;
        assert!(!gone.is_finished());
        clients.set(0);
        gone.await.unwrap();
        assert_eq!(clients.count(), 0);
    }
}
