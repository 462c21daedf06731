//! Writers of different blocks in one block of the store.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;

use crate::{Durability, Span, Volume};

/// Asks that concurrent writers, each of a block of 512 bytes and all in the first 8 KiB, each find what they wrote. It runs
/// on a runtime of several threads.
///
/// # Panics
///
/// If one has undone another.
pub(crate) async fn neighbours(volume: Arc<dyn Volume>) {
    for round in 1..=100_u8 {
        let writers = (0..16_u64).map(|block| {
            let volume = Arc::clone(&volume);
            tokio::spawn(async move {
                let data = Bytes::from(vec![round ^ block as u8; 512]);
                volume.write(block * 512, data, Durability::Volatile).await
            })
        });
        for written in join_all(writers).await {
            written.unwrap().unwrap();
        }
        let all = volume.read(Span::new(0, 8192)).await.unwrap();
        for (block, bytes) in all.chunks(512).enumerate() {
            assert!(bytes.iter().all(|&byte| byte == round ^ block as u8), "{round} {block}");
        }
    }
}
