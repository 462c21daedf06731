//! Servers, the links to them, and what becomes of both.

use super::*;

/// Who is left in one life, and when it ends.
pub(super) struct World {
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) random: Random,
    /// Requests until the process is killed.
    pub(super) left: u64,
    pub(super) is_over: bool,
    /// Nothing happens yet.
    pub(super) is_calm: bool,
    pub(super) was_disturbed: bool,
    pub(super) links: [Link; 2],
    /// The sessions with the servers: an older one is dead.
    pub(super) sessions: [u64; 2],
    /// Requests until a server that is not there can be reached, if ever.
    pub(super) absent: [Option<u64>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Up,
    /// Requests fail, or have no answer, for so many requests of anybody.
    Fails(u64),
    Hangs(u64),
    /// The power of the server has failed, for so many requests: what is left is found when it is opened again.
    Dark(u64),
    /// The session has ended, and the server cannot be reached for so many requests: all fails until it is opened again.
    Ended(u64),
}

impl World {
    pub(super) fn new(random: &mut Random) -> Arc<Self> {
        let left = [20, 60, 400][random.index(3)];
        let left = 1 + random.below(left);
        let random = Random::new(random.word());
        let links = [Link::Up; 2];
        let state = State {
            random,
            left,
            is_over: false,
            is_calm: false,
            was_disturbed: false,
            links,
            sessions: [0; 2],
            absent: [Some(0); 2],
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    pub(super) fn is_over(&self) -> bool {
        self.state.lock().unwrap().is_over
    }

    pub(super) fn word(&self) -> u64 {
        self.state.lock().unwrap().random.word()
    }

    /// A request comes to a member: the state of its link, and whether the process is killed now.
    pub(super) fn request(&self, at: usize) -> (Link, bool, u64) {
        let mut state = self.state.lock().unwrap();
        if state.is_calm {
            return (Link::Up, false, state.random.word());
        }
        for left in state.absent.iter_mut().flatten() {
            *left = left.saturating_sub(1);
        }
        state.left = state.left.saturating_sub(1);
        let dies = state.left == 0 && !state.is_over;
        state.is_over |= dies;
        for link in &mut state.links {
            *link = match *link {
                Link::Fails(0) | Link::Hangs(0) => Link::Up,
                Link::Fails(left) => Link::Fails(left - 1),
                Link::Hangs(left) => Link::Hangs(left - 1),
                Link::Dark(left) => Link::Dark(left.saturating_sub(1)),
                Link::Ended(left) => Link::Ended(left.saturating_sub(1)),
                other => other,
            };
        }
        let (chance, which, long) =
            (state.random.below(60), state.random.index(2), state.random.below(60));
        if state.links[which] == Link::Up {
            state.links[which] = match chance {
                0 => Link::Fails(long),
                1 => Link::Hangs(long),
                2 if long < 10 => Link::Dark(4 * long),
                2 if long < 40 => Link::Ended(long),
                _ => Link::Up,
            };
        }
        state.was_disturbed |= state.links[at] != Link::Up;
        (state.links[at], dies, state.random.word())
    }
}

/// A member as the mirror sees it.
pub(super) struct Remote {
    pub(super) disk: Arc<Faulty>,
    pub(super) world: Arc<World>,
    pub(super) at: usize,
    pub(super) session: u64,
}

/// Opens members again, once their servers can be reached.
pub(super) struct Servers {
    pub(super) world: Arc<World>,
    pub(super) disks: Mutex<[Arc<Faulty>; 2]>,
    /// What may be found instead.
    pub(super) others: Vec<(usize, Arc<Faulty>)>,
    /// What there was before the one that is being opened, until that is taken back.
    pub(super) before: Mutex<[Option<Arc<Faulty>>; 2]>,
    pub(super) opened: Mutex<u64>,
}

impl Servers {
    /// What was opened last is not taken back: another volume was there.
    pub(super) fn refuse(&self, at: usize) {
        if let Some(kept) = self.before.lock().unwrap()[at].take() {
            self.disks.lock().unwrap()[at] = kept;
        }
    }
}

impl Reopen for Servers {
    fn can(&self, _: usize) -> bool {
        true
    }

    fn reopen(&self, at: usize) -> Opens<'_, std::result::Result<Member, String>> {
        Box::pin(async move {
            self.before.lock().unwrap()[at] = None;
            turns(self.world.word() % 20).await;
            // The old session ends in any case.
            let (link, session) = {
                let mut state = self.world.state.lock().unwrap();
                state.sessions[at] += 1;
                let absent = state.absent[at].unwrap_or(1);
                match state.links[at] {
                    _ if absent > 0 => return Err("it is not there".to_owned()),
                    Link::Dark(1..) | Link::Ended(1..) | Link::Fails(_) => {
                        return Err("no route to it".to_owned());
                    }
                    link => (link, state.sessions[at]),
                }
            };
            let word = self.world.word();
            let mut stranger = self.others.iter().filter(|(of, _)| *of == at);
            let mut disk = Arc::clone(&self.disks.lock().unwrap()[at]);
            match (word % 16, stranger.next_back()) {
                (0, _) => disk = Arc::new(Faulty::new(AREA + SIZE, 512)),
                (1 | 2, Some((_, copy))) => disk = Arc::clone(copy),
                _ if matches!(link, Link::Dark(_)) => disk = Arc::new(disk.crash(word >> 8)),
                _ => {}
            }
            if !matches!(link, Link::Hangs(_)) {
                self.world.state.lock().unwrap().links[at] = Link::Up;
            }
            let kept = std::mem::replace(&mut self.disks.lock().unwrap()[at], Arc::clone(&disk));
            self.before.lock().unwrap()[at] = Some(kept);
            *self.opened.lock().unwrap() += 1;
            let remote = Remote { disk, world: Arc::clone(&self.world), at, session };
            Ok(Member::new(names()[at], Arc::new(remote) as Arc<dyn Volume>))
        })
    }

    fn let_go(&self, at: usize) -> Opens<'_, ()> {
        self.world.state.lock().unwrap().sessions[at] += 1;
        self.refuse(at);
        Box::pin(async {})
    }
}

/// The last record on a member.
pub(super) fn last_record(disk: &Faulty) -> Option<Record> {
    let contents = disk.contents();
    let records = Record::places().map(|at| Record::decode(&contents[at as usize..]));
    records.into_iter().flatten().max_by_key(|record| record.stamp.sequence)
}

pub(super) async fn turns(count: u64) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

impl Remote {
    fn is_dead(&self) -> bool {
        self.world.state.lock().unwrap().sessions[self.at] != self.session
    }

    /// The way to the server. Says whether it is the last thing that comes there.
    async fn arrive(&self, verb: Verb) -> Result<(bool, u64)> {
        if self.world.is_over() {
            return std::future::pending().await;
        }
        if self.is_dead() {
            return Err(Error::new(Kind::Gone, verb, None).because("the session is over"));
        }
        let (link, dies, word) = self.world.request(self.at);
        // The last one arrives before anything else can happen.
        turns(if dies { 0 } else { word % 4 }).await;
        let gone = || Error::new(Kind::Gone, verb, None).because("the link is down");
        match link {
            // Nothing lands any more of a session that was ended.
            _ if self.is_dead() => Err(gone()),
            Link::Up => Ok((dies, word >> 8)),
            Link::Fails(_) | Link::Dark(_) | Link::Ended(_) => Err(gone()),
            Link::Hangs(left) => {
                // Until the time is over that others wait, or not as long.
                turns(left * 20).await;
                if word % 3 == 0 && !self.is_dead() { Ok((dies, word >> 8)) } else { Err(gone()) }
            }
        }
    }

    /// The way back.
    async fn answer<T>(&self, answer: Result<T>, word: u64) -> Result<T> {
        turns(word % 3).await;
        if self.world.is_over() {
            return std::future::pending().await;
        }
        answer
    }
}

impl Volume for Remote {
    fn shape(&self) -> &Shape {
        self.disk.shape()
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(async move {
            let (_, word) = self.arrive(Verb::Read).await?;
            let read = self.disk.read(span).await;
            self.answer(read, word).await
        })
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        Box::pin(async move {
            let (is_last, word) = self.arrive(Verb::Write).await?;
            if is_last {
                // Some of it arrives.
                let blocks = word % (data.len() as u64 / 512 + 1);
                self.disk.tear(Verb::Write, Kind::Gone, blocks);
            }
            let written = self.disk.write(at, data, durability).await;
            self.answer(written, word).await
        })
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        Box::pin(async move {
            let (_, word) = self.arrive(Verb::WriteZeroes).await?;
            let written = self.disk.write_zeroes(span, durability, space).await;
            self.answer(written, word).await
        })
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.disk.discard(span)
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(async move {
            let (_, word) = self.arrive(Verb::Flush).await?;
            let flushed = self.disk.flush().await;
            self.answer(flushed, word).await
        })
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        None
    }
}
