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

    pub(super) fn add(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    pub(super) fn remove(&self) {
        // The kernel releases only what it has opened; a count below nothing would be nonsense all the same.
        self.0.send_modify(|count| *count = count.saturating_sub(1));
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
        clients.add();
        clients.add();
        clients.remove();
        tokio::task::yield_now().await;
        assert!(!gone.is_finished());
        clients.remove();
        gone.await.unwrap();
        assert_eq!(clients.count(), 0);
    }
}
