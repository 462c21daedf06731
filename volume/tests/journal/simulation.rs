//! A journal with its disk, its store and its users.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use volume::layer::journal::{
    Action, Corruption, Identity, Journal, Part, Recovered, Refused, Scan, Sending, Settings,
    Source, State, Step, Superblock, superblock_offset,
};
use volume::{Durability, Space, Span};

use crate::disk::{Crash, Disk};
use crate::history::{History, KEPT_OR_ZERO};
use crate::store::{BLOCK, Group, JOURNAL, Store, ZERO, block, stamp_of, stamps};

pub(crate) const FILE_LEN: u64 = (2 << 20) + 16 * 4096;

/// Of the request that writes a checkpoint which is no part of a group: there is one at a time.
const CHECKPOINT_ID: u64 = u64::MAX - 1;

/// Every limit is small, so that it is met.
pub(crate) const SETTINGS: Settings = Settings {
    frame_max: 4 * 4096,
    appends_max: 2,
    unstable_max: 16 * BLOCK,
    held_max: 4 * BLOCK,
    group_max: 6 * 4096,
    superblock_every: 5 * 4096,
    drain_max: 3,
    drain_bytes_max: 6 * BLOCK,
    drain_segment: 3 * BLOCK,
    is_ordered: false,
    has_checkpoint: false,
    discard_zeroes: true,
};

/// What a user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Write(Span),
    WriteDurable(Span),
    Zero(Span),
    Discard(Span),
    Flush,
}

/// A request that was not answered.
#[derive(Clone, Debug)]
enum Pending {
    /// The change of that number, and whether its answer says that it is durable.
    Change(usize, Durability),
    /// Of so many changes.
    Flush(usize),
}

/// What the store of a simulation is like.
#[derive(Clone, Copy)]
pub(crate) struct StoreKind {
    /// Discarded blocks read as zeroes; otherwise some do.
    pub(crate) discard_zeroes: bool,
    /// It keeps the order of groups.
    pub(crate) is_ordered: bool,
    /// It has room for a checkpoint.
    pub(crate) has_checkpoint: bool,
}

impl StoreKind {
    const PLAIN: Self = Self { discard_zeroes: true, is_ordered: false, has_checkpoint: false };
}

pub(crate) struct Simulation {
    kind: StoreKind,
    pub(crate) disk: Disk,
    pub(crate) store: Store,
    pub(crate) journal: Journal,
    pub(crate) history: History,
    /// I/O under way.
    pub(crate) io: VecDeque<Action>,
    pending: BTreeMap<u64, Pending>,
    next_id: u64,
    next_stamp: u64,
    /// Changes that were accepted before what happens now.
    accepted_before: usize,
    /// A reader that has not read yet.
    reader: Option<(Vec<Part>, Option<u64>)>,
    /// Requests that were refused.
    pub(crate) refused: Vec<Refused>,
    /// Requests sent to the store.
    pub(crate) sent: u64,
    /// The most groups that were under way together.
    pub(crate) sent_ahead: usize,
    /// Groups that were sent before others that they may overlap were answered.
    pub(crate) sent_over: u64,
}

impl Simulation {
    /// A new journal over a store of so many blocks.
    pub(crate) fn new(blocks: usize) -> Self {
        Self::over(blocks, StoreKind::PLAIN)
    }

    /// The same over a store that keeps the order of groups.
    pub(crate) fn ordered(blocks: usize) -> Self {
        Self::over(blocks, StoreKind { is_ordered: true, ..StoreKind::PLAIN })
    }

    /// The same where the store has room for a checkpoint.
    pub(crate) fn with_checkpoint(blocks: usize) -> Self {
        Self::over(blocks, StoreKind { is_ordered: true, has_checkpoint: true, ..StoreKind::PLAIN })
    }

    /// The same over a store of a kind.
    pub(crate) fn over(blocks: usize, kind: StoreKind) -> Self {
        let size = blocks as u64 * BLOCK;
        let volume = Identity { name: [1; 32], size, block_size: BLOCK as u32 };
        let superblocks = Superblock::new(JOURNAL, [3; 32], volume, FILE_LEN).unwrap();
        let mut disk = Disk::default();
        for superblock in superblocks {
            disk.write(superblock_offset(superblock.number), &superblock.encode()).unwrap();
        }
        let left = CrashState { disk, store: Store::new(blocks), history: History::new(blocks) };
        Self::recover(left, 1, kind).unwrap()
    }

    /// Opens what a crash has left, and checks what is found.
    pub(crate) fn recover(
        CrashState { disk, store, history }: CrashState,
        next_stamp: u64,
        kind: StoreKind,
    ) -> Result<Self, Corruption> {
        let mut recovered = scan(&disk)?;
        let checkpoint = store.checkpoint();
        assert_eq!(checkpoint.admit(&recovered), Ok(()), "the journal itself is no copy");
        checkpoint.apply(&mut recovered);
        let StoreKind { discard_zeroes, is_ordered, has_checkpoint } = kind;
        let settings = Settings { discard_zeroes, is_ordered, has_checkpoint, ..SETTINGS };
        let journal = Journal::open(&recovered, 77, settings);
        let mut simulation = Self {
            kind,
            disk,
            store,
            journal,
            history,
            io: VecDeque::new(),
            pending: BTreeMap::new(),
            reader: None,
            next_id: 0,
            next_stamp,
            accepted_before: 0,
            refused: Vec::new(),
            sent: 0,
            sent_ahead: 0,
            sent_over: 0,
        };
        let found = simulation.contents();
        simulation.history.recover(&found);
        simulation.history.check(&simulation.store.possible());
        simulation.poll();
        Ok(simulation)
    }

    /// What a reader sees.
    pub(crate) fn contents(&mut self) -> Vec<u64> {
        let store = self.store.contents();
        let span = Span::new(0, store.len() as u64 * BLOCK);
        let (parts, reader) = self.journal.read(span);
        let contents = parts.iter().flat_map(|part| match &part.source {
            Source::Store => store[crate::store::blocks(part.span)].to_vec(),
            source => self.resolve(part.span, source).expect("it can be read"),
        });
        let contents = contents.collect();
        if let Some(reader) = reader {
            self.journal.read_done(reader);
            self.poll();
        }
        contents
    }

    /// A slow reader asks where the bytes are, or reads them at last: they must still be there.
    pub(crate) fn read_slowly(&mut self) {
        let size = self.store.contents().len() as u64 * BLOCK;
        let Some((parts, reader)) = self.reader.take() else {
            self.reader = Some(self.journal.read(Span::new(0, size)));
            return;
        };
        for part in parts.iter().filter(|part| part.source != Source::Store) {
            assert!(self.resolve(part.span, &part.source).is_some(), "{part:?} was written over");
        }
        if let Some(reader) = reader {
            self.journal.read_done(reader);
            self.poll();
        }
    }

    /// The stamps of a source other than the store; `None` if the journal does not have them any more.
    fn resolve(&self, span: Span, source: &Source) -> Option<Vec<u64>> {
        match source {
            Source::Memory(bytes) => Some(stamps(bytes)),
            Source::Journal { extent, skip } => {
                let bytes = self.disk.read(extent.offset, extent.len)?;
                let (start, len) = (*skip as usize, span.len as usize);
                extent.verify(&bytes).then(|| stamps(&bytes[start..start + len]))
            }
            Source::Zero => Some(vec![ZERO; (span.len / BLOCK) as usize]),
            Source::Store => None,
        }
    }

    /// Changes that were accepted: they do not wait for room.
    fn accepted(&self) -> usize {
        self.history.len() - self.journal.status().waiting
    }

    /// A reader must see all that was accepted.
    pub(crate) fn check_reads(&mut self) {
        let (seen, accepted) = (self.contents(), self.accepted());
        assert!(self.history.is_state(accepted, &seen), "{seen:?} after {:?}", self.history);
    }

    pub(crate) fn request(&mut self, request: Request) {
        let id = self.next_id;
        self.next_id += 1;
        let pending = match request {
            Request::Flush => {
                let covered = self.accepted();
                self.history.flush(covered);
                Pending::Flush(covered)
            }
            Request::WriteDurable(_) => Pending::Change(self.history.len(), Durability::Durable),
            _ => Pending::Change(self.history.len(), Durability::Volatile),
        };
        self.pending.insert(id, pending);
        match request {
            Request::Flush => self.journal.flush(id),
            Request::Write(span) => self.write(id, span, Durability::Volatile),
            Request::WriteDurable(span) => self.write(id, span, Durability::Durable),
            Request::Zero(span) => {
                self.history.push(span, ZERO);
                self.journal.write_zeroes(id, span, Durability::Volatile, Space::Keep);
            }
            Request::Discard(span) => {
                let stamp = if self.kind.discard_zeroes { ZERO } else { KEPT_OR_ZERO };
                self.history.push(span, stamp);
                self.journal.discard(id, span);
            }
        }
        self.poll();
    }

    fn write(&mut self, id: u64, span: Span, durability: Durability) {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        self.history.push(span, stamp);
        let data = Bytes::from(block(stamp).repeat((span.len / BLOCK) as usize));
        self.journal.write(id, span.at, &data, durability);
    }

    /// Takes what the machine wants done: answers at once, I/O is under way from now on.
    pub(crate) fn poll(&mut self) {
        while let Some(action) = self.journal.poll() {
            match &action {
                Action::Answer { id, result } => {
                    self.answered(*id, *result);
                    continue;
                }
                Action::DrainWrite { id, span, parts, .. } => {
                    let stamps = parts.iter().map(|part| self.resolve(part.span, &part.source));
                    let Some(stamps) = stamps.collect::<Option<Vec<_>>>() else {
                        self.journal.drained(*id, Err(()));
                        continue;
                    };
                    self.send(*id, *span, &stamps.concat());
                }
                Action::DrainDiscard { id, span } => {
                    let left = self.discarded(*id, *span);
                    self.send(*id, *span, &left);
                }
                Action::DrainGroup { id, changes, checkpoint } => {
                    let Some(mut group) = self.group(*id, changes) else {
                        self.journal.drained(*id, Err(()));
                        continue;
                    };
                    let stamp = checkpoint.as_ref().map(stamp_of);
                    group.extend(stamp.map(|stamp| (self.store.checkpoint_place(), vec![stamp])));
                    self.sent_over += u64::from(stamp.is_some());
                    self.sent += 1;
                    self.sent_ahead = self.sent_ahead.max(self.store.begin_group(*id, group));
                    self.history.check(&self.store.possible());
                }
                Action::DrainZero { id, span, .. } => {
                    self.send(*id, *span, &vec![ZERO; (span.len / BLOCK) as usize]);
                }
                Action::DrainFlush { id } => self.store.begin_flush(*id),
                Action::Checkpoint(checkpoint) => {
                    let place = self.store.checkpoint_place();
                    self.store.begin(CHECKPOINT_ID, place, &[stamp_of(checkpoint)]);
                }
                _ => {}
            }
            self.io.push_back(action);
        }
    }

    /// What a discard leaves.
    fn discarded(&self, id: u64, span: Span) -> Vec<u64> {
        let mut kept = self.store.contents()[crate::store::blocks(span)].to_vec();
        let is_kept = !self.kind.discard_zeroes && !id.is_multiple_of(3);
        let first = if is_kept { (id % 2) as usize * (kept.len() / 2) } else { 0 };
        kept[first..].fill(ZERO);
        kept
    }

    /// The stamps of a group; `None` if the journal does not have them any more.
    fn group(&self, id: u64, changes: &[(Span, Sending)]) -> Option<Group> {
        let stamps = |(span, sending): &(Span, Sending)| {
            let stamps = match sending {
                Sending::Write(parts) => {
                    let stamps = parts.iter().map(|part| self.resolve(part.span, &part.source));
                    stamps.collect::<Option<Vec<_>>>()?.concat()
                }
                Sending::Zero(_) => vec![ZERO; crate::store::blocks(*span).len()],
                Sending::Discard => self.discarded(id, *span),
            };
            Some((*span, stamps))
        };
        changes.iter().map(stamps).collect()
    }

    fn send(&mut self, id: u64, span: Span, stamps: &[u64]) {
        self.sent += 1;
        self.store.begin(id, span, stamps);
        self.history.check(&self.store.possible());
    }

    fn answered(&mut self, id: u64, result: Result<(), Refused>) {
        let pending = self.pending.remove(&id).expect("it is answered once");
        match (pending, result) {
            (_, Err(refused)) => self.refused.push(refused),
            // A durable change covers what was accepted before it.
            (Pending::Change(number, Durability::Durable), Ok(())) => {
                // What is accepted from now on may rely on it.
                self.history.flush(self.accepted_before);
                self.history.acknowledge(number + 1);
            }
            (Pending::Flush(covered), Ok(())) => self.history.acknowledge(covered),
            (Pending::Change(_, Durability::Volatile), Ok(())) => {}
        }
    }

    /// Ends one I/O that is under way.
    pub(crate) fn complete(&mut self, index: usize) {
        let action = self.io.remove(index).expect("it is under way");
        self.accepted_before = self.accepted();
        match action {
            Action::Sync => {
                self.disk.sync();
                self.journal.synced(Ok(()));
            }
            Action::Append { seq, offset, bytes } => {
                let result = self.disk.write(offset, &bytes);
                self.journal.appended(seq, result);
            }
            Action::Superblock { number, offset, bytes } => {
                let result = self.disk.write(offset, &bytes);
                self.journal.superblock_written(number, result);
            }
            Action::DrainFlush { id } => {
                self.store.end_flush(id);
                self.journal.drained(id, Ok(()));
            }
            Action::DrainGroup { id, .. } => {
                self.store.end_group(id);
                self.journal.drained(id, Ok(()));
            }
            Action::DrainWrite { id, durability: Durability::Durable, .. }
            | Action::DrainZero { id, durability: Durability::Durable, .. } => {
                self.store.end_durably(id);
                self.journal.drained(id, Ok(()));
            }
            Action::DrainWrite { id, .. }
            | Action::DrainZero { id, .. }
            | Action::DrainDiscard { id, .. } => {
                self.store.end(id);
                self.journal.drained(id, Ok(()));
            }
            Action::Checkpoint(_) => {
                self.store.end_durably(CHECKPOINT_ID);
                self.journal.checkpointed(Ok(()));
            }
            Action::Answer { .. } => unreachable!("answers are no I/O"),
        }
        self.poll();
    }

    /// Ends all I/O, in the order in which it began.
    pub(crate) fn settle(&mut self) {
        while !self.io.is_empty() {
            self.complete(0);
        }
    }

    /// Ends all I/O of the disk; the store answers nothing.
    pub(crate) fn settle_disk(&mut self) {
        let of_disk = |action: &Action| {
            matches!(action, Action::Sync | Action::Append { .. } | Action::Superblock { .. })
        };
        while let Some(index) = self.io.iter().position(of_disk) {
            self.complete(index);
        }
    }

    /// Sends everything; the store must have it then, and again after the journal was closed.
    pub(crate) fn finish(&mut self) {
        if self.reader.is_some() {
            self.read_slowly();
        }
        self.journal.idle();
        self.poll();
        self.settle();
        self.check_reads();
        assert_eq!(self.contents(), self.store.contents(), "idle, and not all is sent");
        self.journal.close();
        self.poll();
        self.settle();
        assert_eq!(self.journal.status().state, State::Clean);
        assert_eq!(self.journal.unsent().count(), 0);
        assert!(self.pending.is_empty(), "{:?}", self.pending);
    }

    /// How many independent halves of I/O a crash now may leave: sectors of the disk, and requests to the store.
    pub(crate) fn halves(&self) -> usize {
        let sectors = self.io.iter().map(|action| match action {
            Action::Append { offset, bytes, .. } | Action::Superblock { offset, bytes, .. } => {
                self.disk.changes(*offset, bytes)
            }
            _ => 0,
        });
        sectors.sum::<usize>() + self.store.halves()
    }

    /// What a crash leaves; of what was under way that happened which `pick` says.
    pub(crate) fn crash(&self, crash: Crash, pick: &mut dyn FnMut() -> bool) -> CrashState {
        let (mut disk, mut store) = (self.disk.clone(), self.store.clone());
        for action in &self.io {
            if let Action::Append { offset, bytes, .. } | Action::Superblock { offset, bytes, .. } =
                action
            {
                disk.tear(*offset, bytes, crash, pick);
            }
        }
        store.lose_client(pick);
        if crash == Crash::Power {
            disk.lose_cache(pick);
        }
        CrashState { disk, store, history: self.history.clone() }
    }

    /// Opens what a crash of this one has left.
    pub(crate) fn reopen(&self, left: CrashState) -> Result<Self, Corruption> {
        Self::recover(left, self.next_stamp, self.kind)
    }

    /// The same of a crash now, which is no corruption.
    pub(crate) fn crashed(&self, crash: Crash, pick: &mut dyn FnMut() -> bool) -> Self {
        match self.reopen(self.crash(crash, pick)) {
            Ok(simulation) => simulation,
            Err(corruption) => panic!("a crash is no corruption: {corruption}"),
        }
    }
}

/// What a crash leaves.
pub(crate) struct CrashState {
    pub(crate) disk: Disk,
    pub(crate) store: Store,
    pub(crate) history: History,
}

/// Reads a journal.
pub(crate) fn scan(disk: &Disk) -> Result<Recovered, Corruption> {
    let mut scan = Scan::new(FILE_LEN);
    loop {
        match scan.step() {
            Step::Read { offset, len } => scan.give(disk.read(offset, len).as_deref()),
            Step::Done(recovered) => return Ok(*recovered),
            Step::Corrupt(corruption) => return Err(corruption),
        }
    }
}
