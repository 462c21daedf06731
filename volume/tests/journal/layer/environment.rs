//! What is outside the client of the layer: its disk, its store and its clock. Nothing ends before the test says so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use volume::layer::journal::{Checkpoint, FileWork, JournalFile};
use volume::layer::reconnect::{Runtime, Task};
use volume::{
    Durability, Error, ExtentMap, GroupChange, Kind, Ordered, Shape, Space, Span, Verb, Volume,
    Work,
};

use crate::disk::Disk;
use crate::store::{Store, ZERO, block, blocks, stamp_of, stamps};

/// What is under way outside the client.
#[derive(Clone, Debug)]
pub(super) enum Io {
    FileWrite(u64, Vec<u8>),
    FileSync,
    StoreWrite(Durability),
    StoreFlush,
    StoreGroup,
    Checkpoint,
}

/// All that is outside the client, and survives it.
pub(super) struct Environment {
    pub(super) disk: Disk,
    pub(super) store: Store,
    /// Requests to the store are refused from now on: another writer has it.
    pub(super) is_fenced: bool,
    /// Requests to the store fail.
    pub(super) is_store_broken: bool,
    /// No group behind it is carried out.
    pub(super) has_failed_group: bool,
    pub(super) under_way: BTreeMap<u64, Io>,
    pub(super) ended: BTreeMap<u64, bool>,
    pub(super) wakers: BTreeMap<u64, Waker>,
    pub(super) next: u64,
    pub(super) now: Duration,
}

impl Environment {
    pub(super) fn new(disk: Disk, store: Store) -> Self {
        Self {
            disk,
            store,
            is_fenced: false,
            is_store_broken: false,
            has_failed_group: false,
            under_way: BTreeMap::new(),
            ended: BTreeMap::new(),
            wakers: BTreeMap::new(),
            next: 0,
            now: Duration::ZERO,
        }
    }
}

#[derive(Clone)]
pub(super) struct Handle(pub(super) Arc<Mutex<Environment>>);

impl Handle {
    pub(super) fn lock(&self) -> MutexGuard<'_, Environment> {
        self.0.lock().unwrap()
    }

    /// Begins something, and waits until the test ends it. Says whether it was done.
    async fn perform(&self, io: Io, begin: impl FnOnce(&mut Environment, u64)) -> bool {
        let id = self.begin(io, begin);
        self.end(id).await
    }

    fn begin(&self, io: Io, begin: impl FnOnce(&mut Environment, u64)) -> u64 {
        let mut environment = self.lock();
        let id = environment.next;
        environment.next += 1;
        environment.under_way.insert(id, io);
        begin(&mut environment, id);
        id
    }

    async fn end(&self, id: u64) -> bool {
        std::future::poll_fn(|context| {
            let mut environment = self.lock();
            match environment.ended.remove(&id) {
                Some(done) => Poll::Ready(done),
                None => {
                    environment.wakers.insert(id, context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Ends one of those under way.
    pub(super) fn complete(&self, index: usize) {
        let mut environment = self.lock();
        let environment = &mut *environment;
        let id = *environment.under_way.keys().nth(index).expect("it is under way");
        let done = match environment.under_way.remove(&id).unwrap() {
            Io::FileWrite(offset, bytes) => environment.disk.write(offset, &bytes).is_ok(),
            Io::FileSync => {
                environment.disk.sync();
                true
            }
            Io::StoreWrite(durability)
                if !environment.is_fenced && !environment.is_store_broken =>
            {
                match durability {
                    Durability::Durable => environment.store.end_durably(id),
                    Durability::Volatile => environment.store.end(id),
                }
                true
            }
            Io::StoreFlush if !environment.is_fenced && !environment.is_store_broken => {
                environment.store.end_flush(id);
                true
            }
            Io::StoreGroup
                if !environment.is_fenced
                    && !environment.is_store_broken
                    && !environment.has_failed_group =>
            {
                environment.store.end_group(id);
                true
            }
            Io::Checkpoint if !environment.is_fenced && !environment.is_store_broken => {
                environment.store.end(id);
                true
            }
            Io::StoreGroup => {
                environment.store.refuse(id);
                environment.has_failed_group = true;
                false
            }
            Io::StoreWrite(_) | Io::Checkpoint => {
                environment.store.refuse(id);
                false
            }
            Io::StoreFlush => false,
        };
        environment.ended.insert(id, done);
        environment.wakers.remove(&id).into_iter().for_each(Waker::wake);
    }
}

pub(super) struct FileEnd(pub(super) Handle);

impl JournalFile for FileEnd {
    fn read(&self, offset: u64, len: u64) -> FileWork<'_, Bytes> {
        let found = self.0.lock().disk.read(offset, len);
        let bad = || Arc::new(std::io::Error::other("bad sector")) as _;
        Box::pin(async move { found.map(Bytes::from).ok_or_else(bad) })
    }

    fn write(&self, offset: u64, bytes: Vec<u8>) -> FileWork<'_, ()> {
        Box::pin(async move {
            let done = self.0.perform(Io::FileWrite(offset, bytes), |_, _| {}).await;
            done.then_some(()).ok_or_else(|| Arc::new(std::io::Error::other("EIO")) as _)
        })
    }

    fn sync(&self) -> FileWork<'_, ()> {
        Box::pin(async move {
            self.0.perform(Io::FileSync, |_, _| {}).await;
            Ok(())
        })
    }
}

/// The store, of that shape, and whether it keeps the order of groups.
pub(super) struct StoreEnd(pub(super) Handle, pub(super) Shape, pub(super) bool);

impl StoreEnd {
    fn change(
        &self,
        (verb, durability): (Verb, Durability),
        span: Span,
        stamps: Vec<u64>,
    ) -> Work<'_, ()> {
        Box::pin(async move {
            let begin =
                |environment: &mut Environment, id: u64| environment.store.begin(id, span, &stamps);
            let done = self.0.perform(Io::StoreWrite(durability), begin).await;
            done.then_some(()).ok_or_else(|| Error::new(Kind::Gone, verb, span))
        })
    }
}

impl Volume for StoreEnd {
    fn shape(&self) -> &Shape {
        &self.1
    }
    fn read(&self, span: Span) -> Work<'_, Bytes> {
        let contents = self.0.lock().store.contents();
        let found: Vec<u8> = contents[blocks(span)].iter().flat_map(|s| block(*s)).collect();
        Box::pin(async move { Ok(found.into()) })
    }
    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        if span.at >= self.1.size {
            let stamp = stamp_of(&Checkpoint::decode(&data).unwrap());
            return Box::pin(async move {
                let begin = |all: &mut Environment, id| all.store.begin(id, span, &[stamp]);
                let done = self.0.perform(Io::Checkpoint, begin).await;
                done.then_some(()).ok_or_else(|| Error::new(Kind::Gone, Verb::Write, span))
            });
        }
        self.change((Verb::Write, durability), span, stamps(&data))
    }
    fn write_zeroes(&self, span: Span, durability: Durability, _space: Space) -> Work<'_, ()> {
        self.change((Verb::WriteZeroes, durability), span, vec![ZERO; blocks(span).len()])
    }
    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.change((Verb::Discard, Durability::Volatile), span, vec![ZERO; blocks(span).len()])
    }
    fn flush(&self) -> Work<'_, ()> {
        Box::pin(async move {
            let done = self.0.perform(Io::StoreFlush, |all, id| all.store.begin_flush(id)).await;
            done.then_some(()).ok_or_else(|| Error::new(Kind::Gone, Verb::Flush, None))
        })
    }
    fn extents(&self) -> Option<&dyn ExtentMap> {
        None
    }
    fn ordered(&self) -> Option<&dyn Ordered> {
        self.2.then_some(self)
    }
}

impl Ordered for StoreEnd {
    fn write_group(&self, group: Vec<GroupChange>) -> Work<'_, ()> {
        let stamps = |change: GroupChange| match change {
            GroupChange::Write(at, data) => (Span::new(at, data.len() as u64), stamps(&data)),
            GroupChange::Checkpoint(at, data) => {
                let stamp = stamp_of(&Checkpoint::decode(&data).unwrap());
                (Span::new(at, data.len() as u64), vec![stamp])
            }
            GroupChange::Zero(span, _) | GroupChange::Discard(span) => {
                (span, vec![ZERO; blocks(span).len()])
            }
        };
        let group = group.into_iter().map(stamps).collect();
        // Its place is that of this call.
        let begin = |all: &mut Environment, id| {
            all.store.begin_group(id, group);
        };
        let id = self.0.begin(Io::StoreGroup, begin);
        Box::pin(async move {
            let done = self.0.end(id).await;
            done.then_some(()).ok_or_else(|| Error::new(Kind::Gone, Verb::Write, None))
        })
    }
}

/// Time that the test lets pass.
pub(super) struct Clock(pub(super) Handle);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

impl Runtime for Clock {
    fn now(&self) -> Duration {
        self.0.lock().now
    }
    fn sleep_until(&self, at: Duration) -> Task {
        let handle = self.0.clone();
        let over = move |_: &mut Context<'_>| match handle.lock().now >= at {
            true => Poll::Ready(()),
            false => Poll::Pending,
        };
        Box::pin(std::future::poll_fn(over))
    }
    fn spawn(&self, _task: Task) {
        unreachable!("it has one worker");
    }
    fn random(&self) -> u64 {
        0
    }
}
