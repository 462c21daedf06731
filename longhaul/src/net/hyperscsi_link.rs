//! The link of a HyperSCSI machine, and its clock.

use std::future::Future as _;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use host::link::{self, AsyncLink, AsyncSender, Batch, Losses, Mac};
use proto::hyperscsi::{Address, Config, Endpoint, LinkId, Transmit};
use proto::time::Time;
use tokio::time::{Instant, Sleep, sleep_until};

/// Packets that are sealed before those that are there are sent.
const BATCH: usize = 64;

/// What both ends agree on beyond what the protocol proposes: a command moves as much as a volume takes at a time, and
/// a peer may send so much ahead of what is executed.
pub fn with_limits(config: Config) -> Config {
    Config { data_max: volume::TRANSFER_MAX, credit: 2 * u64::from(volume::TRANSFER_MAX), ..config }
}

/// What the timer of the runtime does not tell apart: what is due earlier is waited for awake.
const TICK: Duration = Duration::from_millis(1);

/// While the link takes nothing the machine is asked for its timers as often.
const BLOCKED: Duration = Duration::from_millis(10);

/// A link that one task uses, and when that has to look again.
#[derive(Debug)]
pub(crate) struct Wire {
    link: AsyncLink,
    sender: AsyncSender,
    batch: Batch,
    origin: Instant,
    timer: Pin<Box<Sleep>>,
    locals: LocalAddresses,
    /// The link takes nothing now, and packets wait for it.
    is_blocked: bool,
    /// When it was last told meanwhile that a deadline has come.
    told: Time,
}

impl Wire {
    pub(crate) fn new(link: impl Into<link::Link>) -> io::Result<Self> {
        let link = AsyncLink::new(link)?;
        let (sender, origin) = (link.sender(), Instant::now());
        let timer = Box::pin(sleep_until(origin));
        let (batch, locals) = (Batch::default(), LocalAddresses::default());
        Ok(Self { link, sender, batch, origin, timer, locals, is_blocked: false, told: Time::ZERO })
    }

    /// The address of this end.
    pub(crate) fn local(&self) -> link::Address {
        self.sender.get_ref().local()
    }

    /// The longest packet that can leave.
    pub(crate) fn mtu(&self) -> usize {
        self.sender.get_ref().mtu()
    }

    /// Whether the link takes nothing now.
    pub(crate) const fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// What was lost at this end.
    pub(crate) fn losses(&mut self) -> Losses {
        self.link.losses()
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_origin(self.origin.elapsed())
    }

    /// Hands over what has arrived; whether anything has.
    pub(crate) fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        mut each: impl FnMut(Time, Endpoint, &mut [u8]),
    ) -> io::Result<bool> {
        let (now, locals) = (self.now(), &mut self.locals);
        let received = self.link.poll_recv(cx, &mut |from, packet| {
            each(now, locals.endpoint(from), packet);
        });
        match received {
            Poll::Ready(received) => received.map(|count| count > 0),
            Poll::Pending => Ok(false),
        }
    }

    /// Sends what `next` gives, as far as the link takes it; whether anything was sent.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        mut next: impl FnMut(Time) -> Option<Transmit>,
    ) -> io::Result<bool> {
        let mut any = false;
        loop {
            let now = self.now();
            while self.batch.len() < BATCH {
                let Some(Transmit { to, bytes }) = next(now) else { break };
                let to = self.locals.address(to);
                self.batch.push(to, |buffer| buffer.extend_from_slice(&bytes));
            }
            self.is_blocked = false;
            if self.batch.is_empty() {
                return Ok(any);
            }
            match self.sender.poll_send(cx, &mut self.batch) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => {
                    self.is_blocked = true;
                    return Ok(any);
                }
            }
            any = true;
        }
    }

    /// Wakes the task at the deadline; whether it has come.
    pub(crate) fn poll_deadline(&mut self, cx: &mut Context<'_>, deadline: Option<Time>) -> bool {
        let Some(deadline) = deadline else { return false };
        let now = self.now();
        if self.is_blocked {
            return self.poll_blocked(cx, now, deadline);
        }
        if deadline <= now {
            return true;
        }
        if deadline - now < TICK {
            cx.waker().wake_by_ref();
            return false;
        }
        self.poll_timer(cx, deadline)
    }

    /// What is due to be sent stays due while the link takes nothing: that is told now and then, since other things may be due.
    fn poll_blocked(&mut self, cx: &mut Context<'_>, now: Time, deadline: Time) -> bool {
        let at = deadline.max(self.told + BLOCKED);
        if at > now {
            return self.poll_timer(cx, at);
        }
        self.told = now;
        let _ = self.poll_timer(cx, now + BLOCKED);
        true
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>, at: Time) -> bool {
        let at = self.origin + at.since_origin();
        if self.timer.deadline() != at {
            self.timer.as_mut().reset(at);
        }
        self.timer.as_mut().poll(cx).is_ready()
    }
}

/// How many addresses of this machine are told apart; what comes to others is answered from the one that the system chooses.
const LOCAL_ADDRESSES_MAX: usize = 1024;

/// The addresses of this machine that peers use, for answers to come from there: each is a link of its own to the machine. It
/// does not depend on who sends.
#[derive(Debug, Default)]
struct LocalAddresses(Vec<IpAddr>);

impl LocalAddresses {
    fn endpoint(&mut self, from: link::Address) -> Endpoint {
        match from {
            link::Address::Ethernet(Mac(octets)) => {
                Endpoint { link: LinkId::default(), address: Address::Ethernet(octets) }
            }
            link::Address::Ip { remote, local } => {
                let link = local.map_or_else(LinkId::default, |local| self.link(local));
                Endpoint { link, address: Address::Ip(remote) }
            }
        }
    }

    fn link(&mut self, local: IpAddr) -> LinkId {
        let at = self.0.iter().position(|one| *one == local).unwrap_or(self.0.len());
        if at == self.0.len() {
            if at >= LOCAL_ADDRESSES_MAX {
                return LinkId::default();
            }
            self.0.push(local);
        }
        LinkId(at as u16 + 1)
    }

    fn address(&self, to: Endpoint) -> link::Address {
        match to.address {
            Address::Ethernet(octets) => link::Address::Ethernet(Mac(octets)),
            Address::Ip(remote) => {
                let at = usize::from(to.link.0).checked_sub(1);
                link::Address::Ip { remote, local: at.and_then(|at| self.0.get(at)).copied() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures_util::task::noop_waker_ref;
    use host::link::Udp;

    use super::*;

    fn wire() -> Wire {
        Wire::new(Udp::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap()).unwrap()
    }

    /// The answer to whoever comes leaves from where he came to, whatever others have sent before.
    #[test]
    fn strangers_do_not_change_where_answers_leave_from() {
        let mut locals = LocalAddresses::default();
        let at = |remote: u32, local: u8| {
            let remote = SocketAddr::from((remote.to_be_bytes(), 5));
            link::Address::Ip { remote, local: Some([127, 0, 0, local].into()) }
        };
        for stranger in 0..100_000 {
            locals.endpoint(at(stranger, 1));
        }
        for from in [at(1 << 31, 1), at(1 << 31, 2), at(7, 2)] {
            let endpoint = locals.endpoint(from);
            assert_eq!(locals.address(endpoint), from);
        }
    }

    /// The tasks that drive a machine ask again whenever they have done something.
    #[tokio::test]
    async fn deadline_that_stays_due_while_the_link_takes_nothing_is_told_now_and_then() {
        let (mut wire, cx) = (wire(), &mut Context::from_waker(noop_waker_ref()));
        let mut told = |now| wire.poll_blocked(cx, now, Time::ZERO);
        // Far from what the clock says.
        let now = Time::from_origin(Duration::from_secs(86_400));
        assert!(told(now));
        assert!(!told(now) && !told(now + BLOCKED / 2), "it was told just now");
        assert!(told(now + BLOCKED));
        assert!(!told(now + BLOCKED));
        assert!(wire.poll_deadline(cx, Some(Time::ZERO)), "while the link takes all, at once");
        assert!(wire.poll_deadline(cx, Some(Time::ZERO)));
    }
}
