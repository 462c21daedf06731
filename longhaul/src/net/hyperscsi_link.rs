//! The link of a HyperSCSI machine, and its clock.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use host::link::{self, AsyncLink, AsyncSender, Batch, Mac};
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

/// A link that one task uses, and when that has to look again.
#[derive(Debug)]
pub(crate) struct Wire {
    link: AsyncLink,
    sender: AsyncSender,
    batch: Batch,
    origin: Instant,
    timer: Pin<Box<Sleep>>,
    /// Addresses of this machine that peers use, for answers to come from there.
    locals: Locals,
}

impl Wire {
    pub(crate) fn new(link: impl Into<link::Link>) -> io::Result<Self> {
        let link = AsyncLink::new(link)?;
        let (sender, origin) = (link.sender(), Instant::now());
        let timer = Box::pin(sleep_until(origin));
        let (batch, locals) = (Batch::default(), Locals::default());
        Ok(Self { link, sender, batch, origin, timer, locals })
    }

    /// The address of this end.
    pub(crate) fn local(&self) -> link::Address {
        self.sender.get_ref().local()
    }

    /// The longest packet that can leave.
    pub(crate) fn mtu(&self) -> usize {
        self.sender.get_ref().mtu()
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
            if self.batch.is_empty() {
                return Ok(any);
            }
            match self.sender.poll_send(cx, &mut self.batch) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => return Ok(any),
            }
            any = true;
        }
    }

    /// Wakes the task at the deadline; whether it has come.
    pub(crate) fn poll_deadline(&mut self, cx: &mut Context<'_>, deadline: Option<Time>) -> bool {
        let Some(deadline) = deadline else { return false };
        let now = self.now();
        if deadline <= now {
            return true;
        }
        if deadline - now < TICK {
            cx.waker().wake_by_ref();
            return false;
        }
        let at = self.origin + deadline.since_origin();
        if self.timer.deadline() != at {
            self.timer.as_mut().reset(at);
        }
        self.timer.as_mut().poll(cx).is_ready()
    }
}

/// How many peers are told apart. Who comes after them is answered from whatever address the system chooses.
const LOCALS_MAX: usize = 4096;

/// By which address of this machine each peer has come.
#[derive(Debug, Default)]
struct Locals(std::collections::HashMap<std::net::SocketAddr, std::net::IpAddr>);

impl Locals {
    fn endpoint(&mut self, from: link::Address) -> Endpoint {
        let address = match from {
            link::Address::Ethernet(Mac(octets)) => Address::Ethernet(octets),
            link::Address::Ip { remote, local } => {
                if let Some(local) = local
                    && (self.0.len() < LOCALS_MAX || self.0.contains_key(&remote))
                {
                    self.0.insert(remote, local);
                }
                Address::Ip(remote)
            }
        };
        Endpoint { link: LinkId::default(), address }
    }

    fn address(&self, to: Endpoint) -> link::Address {
        match to.address {
            Address::Ethernet(octets) => link::Address::Ethernet(Mac(octets)),
            Address::Ip(remote) => {
                link::Address::Ip { remote, local: self.0.get(&remote).copied() }
            }
        }
    }
}
