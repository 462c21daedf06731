//! Encryption on other processors: bodies of an outbox go to a pool of threads, and come back encrypted.
//!
//! Only what is worth it goes: enough bytes to keep a processor busy for longer than it takes to wake one,
//! while the caller encrypts and sends as many itself. Small output never leaves the task it is made by.

use std::sync::{LazyLock, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use host::aead::{Aead, KEY_LEN, NONCE_LEN};
use host::thread_pool::ThreadPool;
use proto::iscsi::pdu::{Done, Outbox};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Shared by all volumes and sessions of the process.
pub(crate) static CIPHER_POOL: LazyLock<ThreadPool> =
    LazyLock::new(|| pool(THREADS.get().copied()));

/// How many threads there are to be, if somebody has said it.
static THREADS: OnceLock<usize> = OnceLock::new();

/// Fixes the number of threads, before anything is ciphered. With none, whoever sends or receives does all of it.
pub(crate) fn fix_threads(threads: usize) {
    // Said once, by the command line.
    let _ = THREADS.set(threads);
}

fn pool(threads: Option<usize>) -> ThreadPool {
    const NAME: &str = "cipher";
    threads.map_or_else(
        || ThreadPool::per_processor_but_one(NAME),
        |threads| ThreadPool::new(NAME, threads),
    )
}

/// A piece must keep a processor busy for this long to be worth waking another one, which costs some
/// 10 us there and back.
const WORTH_WAKING: Duration = Duration::from_micros(50);

/// What the cipher is tried on: it fits the processor's cache, as bodies do that were just received.
const SAMPLE: usize = 64 << 10;

/// Bounds of a share, whatever was measured: below, handing over costs more than any cipher; above, no
/// session would ever have two of them waiting.
const SHARE_RANGE: (usize, usize) = (64 << 10, 4 << 20);

/// How many bytes are worth handing over on this machine.
static SHARE: LazyLock<usize> = LazyLock::new(|| {
    let (gcm, plain, mut sealed) = (Aead::aes_256_gcm(&[1; KEY_LEN]), vec![0; SAMPLE], Vec::new());
    // Nothing of it is sent, so that it does not matter that the nonce stays the same.
    let share = worthwhile(SAMPLE, || {
        sealed.clear();
        gcm.seal(&[0; NONCE_LEN], &[], &plain, &mut sealed);
    });
    share.clamp(SHARE_RANGE.0, SHARE_RANGE.1)
});

/// How many bytes take [`WORTH_WAKING`], if `work` does `bytes` of them. The best of a few tries counts:
/// others may use the processor.
pub(crate) fn worthwhile(bytes: usize, mut work: impl FnMut()) -> usize {
    let tries = (0..8).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed()
    });
    let best = tries.min().unwrap_or_default().as_nanos().max(1);
    let worth = bytes as u128 * WORTH_WAKING.as_nanos() / best;
    usize::try_from(worth).unwrap_or(usize::MAX)
}

/// The bodies of one connection that are encrypted on the pool.
#[derive(Debug)]
pub(crate) struct OutboxOffload {
    share: usize,
    /// Jobs that are not back.
    outstanding: usize,
    sender: UnboundedSender<Done>,
    returned: UnboundedReceiver<Done>,
}

impl OutboxOffload {
    /// Nothing is handed over yet. What is worth handing over is measured once, here.
    pub(crate) fn new() -> Self {
        Self::with_share(*SHARE)
    }

    fn with_share(share: usize) -> Self {
        // Never more in it than there are threads.
        let (sender, returned) = unbounded_channel();
        Self { share, outstanding: 0, sender, returned }
    }

    /// Gives bodies away while there are threads for them, and takes back what is done.
    pub(crate) fn hand_over(&mut self, outbox: &mut Outbox) {
        while let Ok(done) = self.returned.try_recv() {
            self.take_back(done, outbox);
        }
        while self.outstanding < CIPHER_POOL.threads()
            && let Some(job) = outbox.job(self.share)
        {
            self.outstanding += 1;
            let sender = self.sender.clone();
            let job = Box::new(move || {
                // Nobody wants it any more if the connection has ended.
                let _ = sender.send(job.run());
            });
            if let Err(job) = CIPHER_POOL.submit(job) {
                job();
            }
        }
    }

    /// Ready when something came back; never while nothing is away.
    pub(crate) fn poll_returned(&mut self, cx: &mut Context<'_>, outbox: &mut Outbox) -> Poll<()> {
        // The channel does not close: one end of it is here.
        let Poll::Ready(Some(done)) = self.returned.poll_recv(cx) else { return Poll::Pending };
        self.take_back(done, outbox);
        Poll::Ready(())
    }

    fn take_back(&mut self, done: Done, outbox: &mut Outbox) {
        self.outstanding -= 1;
        outbox.put_back(done);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::IoSlice;

    use bytes::Bytes;
    use proto::iscsi::header::DataIn;
    use proto::iscsi::sealed::{Limits, Protection, invariants};

    use super::*;
    use crate::ciphers::new_aes_256_gcm;

    #[test]
    fn the_number_of_threads_can_be_fixed() {
        assert_eq!([0, 3].map(|threads| pool(Some(threads)).threads()), [0, 3]);
        let processors = std::thread::available_parallelism().unwrap().get();
        assert_eq!(pool(None).threads(), processors - 1);
    }

    fn queue() -> Outbox {
        let (sealer, _) = invariants::both_ends(Protection::Encrypt, Limits::SPEC, new_aes_256_gcm);
        let mut outbox = Outbox::new();
        outbox.set_sealer(sealer);
        for itt in 0..200 {
            let body = Bytes::from(vec![itt as u8; 10_000 + 100 * itt as usize]);
            outbox.push_data(DataIn { itt, ..DataIn::default() }, body);
        }
        outbox
    }

    /// Sends some of what can be sent; whether there was anything.
    fn send(outbox: &mut Outbox, wire: &mut Vec<u8>) -> bool {
        let mut slices = [IoSlice::new(&[]); 5];
        let filled = outbox.slices(&mut slices);
        let from = wire.len();
        slices[..filled].iter().for_each(|slice| wire.extend_from_slice(slice));
        outbox.advance(wire.len() - from);
        filled > 0
    }

    /// On a machine of one processor nothing goes away, and the same holds.
    #[tokio::test]
    async fn with_help_or_without_the_same_bytes_go_out() {
        let (mut outbox, mut alone) = (queue(), Vec::new());
        while send(&mut outbox, &mut alone) {}
        let (mut outbox, mut helped) = (queue(), Vec::new());
        let mut offload = OutboxOffload::with_share(50_000);
        while !outbox.is_empty() {
            offload.hand_over(&mut outbox);
            if !send(&mut outbox, &mut helped) {
                poll_fn(|cx| offload.poll_returned(cx, &mut outbox)).await;
            }
        }
        assert!(alone == helped);
    }

    #[tokio::test]
    async fn a_connection_may_end_while_bodies_are_away() {
        for _ in 0..50 {
            let mut outbox = queue();
            OutboxOffload::with_share(50_000).hand_over(&mut outbox);
        }
    }
}
