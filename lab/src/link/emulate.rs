//! The emulator: packets of two TUN devices through [`Path`]s, on real time.

use std::io::{PipeReader, Result};
use std::num::NonZeroU64;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use host::tun::{PACKET_MAX, Tun};
use proto::time::Time;
use rustix::event::{PollFd, PollFlags, poll};
use testing::link::Conditions;
use testing::link::packets::{Counts, Path};

use super::exchanges::{Exchanges, Heading};
use super::train::Train;

/// Packets that follow each other within this time are delivered together, and none is later than this for the sake
/// of those behind it,
const GAP: Duration = Duration::from_micros(50);

/// or than this where packets have come one behind the other for as long: a network card, too, interrupts its machine
/// more seldom the busier it is. A packet that nothing follows is not late.
const BURST: Duration = Duration::from_micros(250);

/// Whatever comes while the queue has this much to send leaves no earlier for being taken from the kernel at once.
/// So it is taken every half of that, which is what the queue's limit is wrong by.
const BACKLOG: Duration = Duration::from_micros(250);

/// How many packets are taken from one device before the other has its turn.
const BATCH: usize = 64;

/// Ahead of what it measures, or it would measure the scheduler. Only root may; without it runs on.
const NICE: i32 = -15;

/// What a link did.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    /// From the near end to the far end.
    pub(crate) out: Counts,
    /// From the far end to the near end.
    pub(crate) back: Counts,
    /// What emulating it has cost the processor; nobody knows it of netem.
    pub(crate) cpu: Option<Duration>,
    /// How often iSCSI writes waited, if that was asked for.
    pub(crate) exchanges: Option<Exchanges>,
}

impl std::fmt::Display for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (way, counts) in [("out", self.out), ("back", self.back)] {
            let Counts { sent, bytes, lost, dropped } = counts;
            write!(f, "{way} {sent} packets, {bytes} bytes, {lost} lost, {dropped} dropped; ")?;
        }
        match self.cpu {
            Some(cpu) => write!(f, "emulated in {:.2} s of processor time", cpu.as_secs_f64())?,
            None => f.write_str("emulated by netem")?,
        }
        self.exchanges.as_ref().map_or(Ok(()), |exchanges| write!(f, "; {exchanges}"))
    }
}

/// What has gone out and back so far, for others to look at.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<[Counts; 2]>);

impl Seen {
    pub(crate) fn get(&self) -> [Counts; 2] {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, counts: [Counts; 2]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

/// Carries packets between the devices until the other end of `stop` is closed. What passes the near end is
/// shown to `exchanges`.
pub(crate) fn run(
    [near, far]: &[Tun; 2],
    (conditions, seed): (Conditions, u64),
    stop: &PipeReader,
    seen: &Seen,
    mut exchanges: Option<Exchanges>,
) -> Result<Traffic> {
    let _ = rustix::process::setpriority_process(None, NICE);
    // The default lets a timer be 50 us late.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let start = Instant::now();
    let now = || Time::from_origin(start.elapsed());
    let mut out = Way::new(near, far, conditions, seed);
    let mut back = Way::new(far, near, conditions, !seed);
    let mut buffer = vec![0; PACKET_MAX];
    loop {
        let mut pass = |heading, train: &Train, part| {
            if let Some(exchanges) = &mut exchanges {
                exchanges.pass(heading, train, part);
            }
        };
        let leaves = |train: &Train| pass(Heading::Out, train, 0..train.segments());
        let more = out.take(now(), &mut buffer, leaves)? | back.take(now(), &mut buffer, |_| {})?;
        let arrived = now();
        out.deliver(arrived, |_, _| {})?;
        back.deliver(arrived, |train, part| pass(Heading::Back, train, part))?;
        seen.set([out.path.counts(), back.path.counts()]);
        let wait = if more { Some(Duration::ZERO) } else { next_of(&[&out, &back], now()) };
        let mut ready = [
            PollFd::new(near, out.awaits(now())),
            PollFd::new(far, back.awaits(now())),
            PollFd::new(stop, PollFlags::IN),
        ];
        // Any duration here is far below what a Timespec holds.
        let wait = wait.and_then(|wait| wait.try_into().ok());
        match poll(&mut ready, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if !ready[2].revents().is_empty() {
            let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            let cpu = Some(Duration::try_from(cpu).unwrap_or_default());
            let (out, back) = (out.path.counts(), back.path.counts());
            return Ok(Traffic { out, back, cpu, exchanges });
        }
    }
}

/// How long nothing has to be done unless a packet comes.
fn next_of(ways: &[&Way<'_>], now: Time) -> Option<Duration> {
    let next = ways.iter().flat_map(|way| [way.delivers(), way.takes(now)]);
    next.flatten().min().map(|next| next - now)
}

/// One direction.
struct Way<'a> {
    from: &'a Tun,
    to: &'a Tun,
    path: Path<Segment>,
    /// When the kernel last had nothing more.
    drained: Time,
    /// When packets began to arrive without a gap, and when the last of them did.
    run: Range<Time>,
}

/// A packet on the wire: which one of which train.
struct Segment {
    train: Rc<Train>,
    index: usize,
}

impl<'a> Way<'a> {
    const fn new(from: &'a Tun, to: &'a Tun, conditions: Conditions, seed: u64) -> Self {
        let path = Path::new(conditions, seed);
        Self { from, to, path, drained: Time::ZERO, run: Time::ZERO..Time::ZERO }
    }

    /// When the kernel is asked again for what it has; `None` if that has to be as soon as it has anything.
    fn takes(&self, now: Time) -> Option<Time> {
        let full = self.path.backlog(now) > BACKLOG;
        full.then(|| self.drained + BACKLOG / 2).filter(|at| *at > now)
    }

    /// What the device has to wake the emulator for.
    fn awaits(&self, now: Time) -> PollFlags {
        if self.takes(now).is_some() { PollFlags::empty() } else { PollFlags::IN }
    }

    /// When packets are to be delivered.
    fn delivers(&self) -> Option<Time> {
        let lasted = self.path.next_arrival()? - self.run.start;
        self.path.next_burst(GAP, lasted.clamp(GAP, BURST))
    }

    /// Puts what the kernel has on the path; whether there may be more. Each train is shown to `pass`.
    fn take(&mut self, now: Time, buffer: &mut [u8], mut pass: impl FnMut(&Train)) -> Result<bool> {
        if self.takes(now).is_some() {
            return Ok(false);
        }
        for _ in 0..BATCH {
            let Some(len) = self.from.receive(buffer)? else {
                self.drained = now;
                return Ok(false);
            };
            let train = Rc::new(Train::new(&buffer[..len]));
            pass(&train);
            for index in 0..train.segments() {
                let wire_len = train.wire_len(index);
                self.path.send(now, wire_len, Segment { train: Rc::clone(&train), index });
            }
        }
        Ok(true)
    }

    /// Gives the kernel what has arrived, neighbours of one train in one piece. Each is shown to `pass`.
    fn deliver(&mut self, now: Time, mut pass: impl FnMut(&Train, Range<usize>)) -> Result<()> {
        let mut send = |train: &Train, part: Range<usize>| {
            pass(train, part.clone());
            train.send(part, self.to)
        };
        if self.delivers().is_none_or(|at| at > now) {
            return Ok(());
        }
        let mut piece: Option<(Rc<Train>, Range<usize>)> = None;
        while let Some((arrived, Segment { train, index })) = self.path.receive(now) {
            if arrived > self.run.end + GAP {
                self.run.start = arrived;
            }
            self.run.end = arrived;
            match &mut piece {
                Some((same, part)) if Rc::ptr_eq(same, &train) && part.end == index => {
                    part.end += 1;
                }
                _ => {
                    if let Some((train, part)) = piece.replace((train, index..index + 1)) {
                        send(&train, part)?;
                    }
                }
            }
        }
        piece.map_or(Ok(()), |(train, part)| send(&train, part))
    }
}
