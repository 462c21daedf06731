//! What the trait says of failures, asked of a volume that stands on a disk which fails.

use std::error::Error as _;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;

use crate::store::faulty::Faulty;
use crate::{Durability, Kind, Result, Space, Span, Verb, Volume};

/// The size of the disk beneath: enough that a layer cuts what is asked of it into several requests.
const SIZE: u64 = 12 << 20;

/// Where the trials are, apart from one another and from what a layer keeps at the front.
const PLACE: u64 = 1 << 20;

/// How often a change is polled that lands late: longer than a layer takes to hear of another's failure.
const LATE: u32 = 1000;

/// How a change may fail beneath.
const KINDS: [Kind; 6] =
    [Kind::Medium, Kind::NoSpace, Kind::Gone, Kind::Peer, Kind::Integrity, Kind::Busy];

const DURABILITIES: [Durability; 2] = [Durability::Volatile, Durability::Durable];

/// Asks for the truth about failures, of volumes that `over` puts on disks with blocks of `block_size` which
/// fail: that none is forgotten, and that nothing is under way when a verb has ended.
///
/// # Panics
///
/// On the first promise that is not kept.
pub async fn truth(block_size: u32, over: impl AsyncFn(Arc<Faulty>) -> Arc<dyn Volume>) {
    for kind in KINDS {
        for durability in DURABILITIES {
            for change in [Change::Write, Change::Zeroes, Change::Discard] {
                let case = Case::new(block_size, &over).await;
                case.failed_change(change, kind, durability).await;
            }
        }
        Case::new(block_size, &over).await.failed_flush(kind).await;
    }
    for kind in [Kind::Medium, Kind::NoSpace] {
        for change in [Change::Write, Change::Zeroes] {
            Case::new(block_size, &over).await.lost_write_back(change, kind).await;
        }
    }
    for durability in DURABILITIES {
        Case::new(block_size, &over).await.torn_write(durability).await;
        for change in [Change::Write, Change::Zeroes] {
            for span in [Span::new(PLACE - 512, 1024), Span::new(PLACE + 512, 6 << 20)] {
                let case = Case::new(block_size, &over).await;
                case.late_siblings(change, span, durability).await;
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Write,
    Zeroes,
    Discard,
}

/// A volume, and the disk it stands on.
struct Case {
    disk: Arc<Faulty>,
    volume: Arc<dyn Volume>,
    /// A volatile change ends before it is on the disk, so that its caller is not told.
    behind: bool,
}

impl Case {
    async fn new(block_size: u32, over: &impl AsyncFn(Arc<Faulty>) -> Arc<dyn Volume>) -> Self {
        let mut case = Self::on_new_disk(block_size, over).await;
        case.fail_next(Kind::Medium);
        let changed = case.change(Change::Write, case.block_at(PLACE), Durability::Volatile).await;
        let behind = changed.is_ok();
        case = Self { behind, ..Self::on_new_disk(block_size, over).await };
        // What a layer has to write for itself is behind it.
        let span = case.block_at(2 * PLACE);
        case.change(Change::Write, span, Durability::Volatile).await.expect("nothing fails yet");
        case.volume.flush().await.expect("nothing fails yet");
        case
    }

    async fn on_new_disk(
        block_size: u32,
        over: &impl AsyncFn(Arc<Faulty>) -> Arc<dyn Volume>,
    ) -> Self {
        let disk = Arc::new(Faulty::new(SIZE, block_size));
        let volume = over(Arc::clone(&disk)).await;
        Self { disk, volume, behind: false }
    }

    fn block_at(&self, at: u64) -> Span {
        Span::new(at, self.volume.shape().block_size.into())
    }

    async fn change(&self, change: Change, span: Span, durability: Durability) -> Result<()> {
        match change {
            Change::Write => {
                let data = Bytes::from(vec![0xa5; span.len as usize]);
                self.volume.write(span.at, data, durability).await
            }
            Change::Zeroes => self.volume.write_zeroes(span, durability, Space::Release).await,
            Change::Discard => self.volume.discard(span).await,
        }
    }

    /// The next change fails beneath, whatever the layer makes of it.
    fn fail_next(&self, kind: Kind) {
        for verb in [Verb::Write, Verb::WriteZeroes, Verb::Discard] {
            self.disk.fail(verb, kind);
        }
    }

    /// A change fails. Its caller is told, or else everybody is.
    async fn failed_change(&self, change: Change, kind: Kind, durability: Durability) {
        let span = Span::new(PLACE, 16 << 10);
        if change == Change::Discard && self.volume.shape().discard.is_none() {
            return;
        }
        let what = format!("{change:?}, {kind:?}, {durability:?}");
        let before = self.disk.failures();
        self.fail_next(kind);
        let told = self.change(change, span, durability).await.is_err();
        if !told {
            // It writes behind, or tries again.
            self.until(|disk| disk.failures() < before + 3).await;
        }
        self.disk.stop_failing();
        let durability = if change == Change::Discard { Durability::Volatile } else { durability };
        if told && !kind.loses(durability) && !self.behind {
            self.volume.flush().await.unwrap_or_else(|why| panic!("{what}: refused, and {why}"));
        } else if (told && kind.loses(durability)) || self.volume.flush().await.is_err() {
            self.is_dead(&what).await;
        } else if !told {
            // What passes is tried again, with all that was written before and is not durable.
            assert!(matches!(kind, Kind::Busy | Kind::Gone), "{what}: nobody was told");
            let byte = if change == Change::Write { 0xa5 } else { 0 };
            let found = self.volume.read(span).await.expect("it was tried again");
            assert!(found.iter().all(|found| *found == byte), "{what}: nobody was told");
        }
    }

    async fn failed_flush(&self, kind: Kind) {
        let what = format!("flush, {kind:?}");
        self.change(Change::Write, self.block_at(PLACE), Durability::Volatile)
            .await
            .expect("write");
        self.disk.fail(Verb::Flush, kind);
        // A layer may have made the write durable by itself, so that it needs no flush beneath.
        if self.volume.flush().await.is_err() && kind.loses(Durability::Durable) {
            self.is_dead(&what).await;
        }
    }

    /// What was acknowledged is lost, of which the disk tells the next who syncs: another than who flushes.
    async fn lost_write_back(&self, change: Change, kind: Kind) {
        let before = self.disk.changes();
        self.change(Change::Write, self.block_at(PLACE), Durability::Volatile)
            .await
            .expect("write");
        self.until(|disk| disk.changes() > before).await;
        self.disk.lose_write_back(kind);
        let what = format!("write-back lost before {change:?}, {kind:?}");
        let span = self.block_at(3 * PLACE);
        self.change(change, span, Durability::Durable).await.expect_err(&what);
        self.is_dead(&what).await;
    }

    /// A write that failed half way has left each block old or new.
    async fn torn_write(&self, durability: Durability) {
        let block = u64::from(self.volume.shape().block_size);
        let span = Span::new(PLACE, 16 * block);
        self.change(Change::Zeroes, span, Durability::Durable).await.expect("zeroes");
        self.disk.tear(Verb::Write, Kind::Medium, 2);
        let told = self.change(Change::Write, span, durability).await.is_err();
        if told {
            let read = self.volume.read(span).await.expect("its caller was told");
            let blocks = read.chunks(block as usize);
            blocks.for_each(|block| assert!(block.iter().all(|byte| *byte == block[0]), "torn"));
        }
        self.is_dead("a torn write").await;
    }

    /// The first part of a change fails at once, the others take long.
    async fn late_siblings(&self, change: Change, span: Span, durability: Durability) {
        self.fail_next(Kind::Medium);
        self.disk.land_late(LATE);
        let told = self.change(change, span, durability).await.is_err();
        // What was accepted to be written behind lands in order, before whatever comes later.
        if told && !(durability == Durability::Volatile && self.behind) {
            let left = self.disk.under_way();
            assert_eq!(
                left, 0,
                "{change:?} of {span}, {durability:?}: failed, with parts under way"
            );
        }
        self.until(|disk| disk.failures() < 3).await;
        self.disk.stop_failing();
        self.is_dead("late siblings").await;
    }

    /// Flushes and durable changes fail, again and again, and say why.
    async fn is_dead(&self, what: &str) {
        for _ in 0..3 {
            let flushed = self.volume.flush().await;
            let why = flushed.expect_err(&format!("{what}: a flush after it succeeded"));
            assert!(why.source().is_some(), "{what}: a flush failed without the first failure");
            for change in [Change::Write, Change::Zeroes] {
                let span = self.block_at(4 * PLACE);
                let changed = self.change(change, span, Durability::Durable).await;
                changed.expect_err(&format!("{what}: a durable {change:?} after it succeeded"));
            }
        }
    }

    /// Waits until the disk is so.
    async fn until(&self, so: impl Fn(&Faulty) -> bool) {
        poll_fn(|context| {
            if so(&self.disk) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_faulty_disk_tells_the_truth() {
        truth(512, async |disk| disk as Arc<dyn Volume>).await;
    }

    #[tokio::test]
    #[should_panic(expected = "a flush after it succeeded")]
    async fn a_forgetful_disk_is_found_out() {
        let forgetful = async |disk: Arc<Faulty>| {
            disk.forget();
            disk as Arc<dyn Volume>
        };
        Case::new(512, &forgetful).await.lost_write_back(Change::Write, Kind::Medium).await;
    }

    /// Each verb as two, of which the first error drops the other.
    struct CancelsSibling(Arc<Faulty>);

    impl Volume for CancelsSibling {
        fn shape(&self) -> &crate::Shape {
            self.0.shape()
        }

        fn read(&self, span: Span) -> crate::Work<'_, Bytes> {
            self.0.read(span)
        }

        fn write(&self, at: u64, data: Bytes, durability: Durability) -> crate::Work<'_, ()> {
            let half = data.len() / 1024 * 512;
            let first = self.0.write(at, data.slice(..half), durability);
            let second = self.0.write(at + half as u64, data.slice(half..), durability);
            Box::pin(async { futures_util::future::try_join(first, second).await.map(drop) })
        }

        fn write_zeroes(
            &self,
            span: Span,
            durability: Durability,
            space: Space,
        ) -> crate::Work<'_, ()> {
            self.0.write_zeroes(span, durability, space)
        }

        fn discard(&self, span: Span) -> crate::Work<'_, ()> {
            self.0.discard(span)
        }

        fn flush(&self) -> crate::Work<'_, ()> {
            self.0.flush()
        }

        fn extents(&self) -> Option<&dyn crate::ExtentMap> {
            None
        }
    }

    #[tokio::test]
    #[should_panic(expected = "with parts under way")]
    async fn a_part_left_running_is_found_out() {
        let cancels_sibling = async |disk| Arc::new(CancelsSibling(disk)) as Arc<dyn Volume>;
        let case = Case::new(512, &cancels_sibling).await;
        case.late_siblings(Change::Write, Span::new(PLACE, 1024), Durability::Durable).await;
    }
}
