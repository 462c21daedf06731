//! The links of a HyperSCSI machine, and its clock.

use std::future::Future as _;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use host::link::{self, AsyncLink, Batch, Losses, Mac};
use proto::hyperscsi::{Address, Config, Ecn, Endpoint, LinkId, Outbox, PATHS_MAX};
use proto::time::Time;
use tokio::time::{Instant, Sleep, sleep_until};

/// Packets that are sealed before those that are there are sent, and that wait at most for one link: twice what UDP sends in
/// one piece.
const BATCH: usize = 90;

/// What both ends agree on beyond what the protocol proposes: a command moves as much as a volume takes at a time, and
/// a peer may send so much ahead of what is executed.
pub fn with_limits(config: Config) -> Config {
    let (data_max, credit) = (volume::TRANSFER_MAX, 2 * u64::from(volume::TRANSFER_MAX));
    Config { data_max, credit, paths: PATHS_MAX, ..config }
}

/// How a peer is called where it is.
pub(crate) fn shown(from: Endpoint) -> String {
    match from.address {
        Address::Ethernet(octets) => Mac(octets).to_string(),
        Address::Ip(address) => address.to_string(),
    }
}

/// What the timer of the runtime does not tell apart: packets that are to leave earlier are waited for awake.
const TICK: Duration = Duration::from_millis(1);

/// While the link takes nothing the machine is asked for its timers as often.
const BLOCKED: Duration = Duration::from_millis(10);

/// A link, and what waits to be sent by it.
#[derive(Debug)]
struct OneLink {
    link: AsyncLink,
    batch: Batch,
    /// It takes nothing now.
    is_full: bool,
    /// It failed: nothing comes or goes by it any more.
    is_broken: bool,
}

impl OneLink {
    fn new(link: link::Link) -> io::Result<Self> {
        let (link, batch) = (AsyncLink::new(link)?, Batch::default());
        Ok(Self { link, batch, is_full: false, is_broken: false })
    }

    const fn has_room(&self) -> bool {
        !self.is_broken && self.batch.len() < BATCH
    }

    /// Sends what waits; whether anything was sent.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        if self.batch.is_empty() {
            return Ok(false);
        }
        match self.link.poll_send(cx, &mut self.batch) {
            Poll::Ready(sent) => {
                self.is_full = false;
                sent.map(|()| true)
            }
            Poll::Pending => {
                self.is_full = true;
                Ok(false)
            }
        }
    }
}

/// The clock of a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn now(self) -> Time {
        Time::from_origin(self.0.elapsed())
    }
}

/// The links that one task uses, and when that has to look again.
#[derive(Debug)]
pub(crate) struct Wire {
    links: Vec<OneLink>,
    clock: Clock,
    timer: Pin<Box<Sleep>>,
    locals: LocalAddresses,
    /// As many packets wait for every link as may.
    is_blocked: bool,
    /// When it was last told meanwhile that a deadline has come.
    told: Time,
}

impl Wire {
    /// Of these links, which the machine knows by their numbers in this order.
    pub(crate) fn new(links: impl IntoIterator<Item = link::Link>) -> io::Result<Self> {
        let links = links.into_iter().map(OneLink::new).collect::<io::Result<Vec<_>>>()?;
        let origin = Instant::now();
        let (clock, timer) = (Clock(origin), Box::pin(sleep_until(origin)));
        let locals = LocalAddresses::new(links.len());
        Ok(Self { links, clock, timer, locals, is_blocked: false, told: Time::ZERO })
    }

    /// The address of this end of each link.
    pub(crate) fn locals(&self) -> impl Iterator<Item = link::Address> {
        self.links.iter().map(|one| one.link.sender().local())
    }

    /// The longest packet that can leave by every link.
    pub(crate) fn mtu(&self) -> usize {
        self.links.iter().map(|one| one.link.sender().mtu()).min().unwrap_or_default()
    }

    /// Whether the links take nothing now.
    pub(crate) const fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// What was lost at this end of each link.
    pub(crate) fn losses(&mut self) -> impl Iterator<Item = (link::Address, Losses)> {
        self.links.iter_mut().map(|one| (one.link.sender().local(), one.link.losses()))
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(crate) const fn clock(&self) -> Clock {
        self.clock
    }

    /// A link failed: the others go on without it. The last one is the end.
    fn broken(links: &mut [OneLink], at: usize, why: io::Error) -> io::Result<()> {
        let one = &mut links[at];
        (one.is_broken, one.is_full, one.batch) = (true, false, Batch::default());
        if links.iter().all(|one| one.is_broken) {
            return Err(why);
        }
        let link = links[at].link.sender().local();
        tracing::error!(%link, %why, "the link broke: nothing goes by it any more");
        Ok(())
    }

    /// Hands over what has arrived; whether anything has.
    pub(crate) fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        mut each: impl FnMut(Time, Endpoint, Ecn, &mut [u8]),
    ) -> io::Result<bool> {
        let (now, locals) = (self.now(), &mut self.locals);
        let mut any = false;
        for at in 0..self.links.len() {
            if self.links[at].is_broken {
                continue;
            }
            let received = self.links[at].link.poll_recv(cx, &mut |from, ecn, packet| {
                each(now, locals.endpoint(at, from), received_ecn(ecn), packet);
            });
            match received {
                Poll::Ready(Ok(count)) => any |= count > 0,
                Poll::Ready(Err(why)) => Self::broken(&mut self.links, at, why)?,
                Poll::Pending => {}
            }
        }
        Ok(any)
    }

    /// Hands over what has arrived, asked of the links and not of the runtime; whether anything has. Errors are left to
    /// [`poll_recv`](Self::poll_recv).
    pub(crate) fn receive_now(
        &mut self,
        mut each: impl FnMut(Time, Endpoint, Ecn, &mut [u8]),
    ) -> bool {
        let (now, locals) = (self.now(), &mut self.locals);
        let mut any = false;
        for (at, one) in self.links.iter_mut().enumerate().filter(|(_, one)| !one.is_broken) {
            let count = one.link.receive_now(&mut |from, ecn, packet| {
                each(now, locals.endpoint(at, from), received_ecn(ecn), packet);
            });
            any |= count > 0;
        }
        any
    }

    /// Sends what `transmit` puts into its outbox, as far as the links take it; whether anything was sent.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        mut transmit: impl FnMut(Time, &mut dyn Outbox),
    ) -> io::Result<bool> {
        let mut any = false;
        loop {
            let is_more = self.fill(&mut transmit);
            let mut is_sent = false;
            for at in 0..self.links.len() {
                match self.links[at].poll_send(cx) {
                    Ok(sent) => is_sent |= sent,
                    Err(why) => Self::broken(&mut self.links, at, why)?,
                }
            }
            any |= is_sent;
            self.is_blocked = !self.links.iter().any(OneLink::has_room);
            if !is_more || !is_sent {
                return Ok(any);
            }
        }
    }

    /// Takes in packets as far as there is room; whether there may be more.
    fn fill(&mut self, transmit: &mut impl FnMut(Time, &mut dyn Outbox)) -> bool {
        let now = self.now();
        let mut batches = Batches { links: &mut self.links, locals: &self.locals, left: BATCH };
        transmit(now, &mut batches);
        !batches.has_room()
    }

    /// Wakes the task at the deadline; whether it has come. At `pace` packets are to leave.
    pub(crate) fn poll_deadline(
        &mut self,
        cx: &mut Context<'_>,
        deadline: Option<Time>,
        pace: Option<Time>,
    ) -> bool {
        let Some(deadline) = deadline else { return false };
        let now = self.now();
        if self.is_blocked {
            return self.poll_blocked(cx, now, deadline);
        }
        if deadline <= now {
            return true;
        }
        if pace.is_some_and(|pace| pace - now < TICK) {
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

    /// A timer that is set for earlier stays, as most deadlines move on before they come: to set it costs more than to look
    /// once in vain.
    fn poll_timer(&mut self, cx: &mut Context<'_>, at: Time) -> bool {
        let at = self.clock.0 + at.since_origin();
        if at < self.timer.deadline() {
            self.timer.as_mut().reset(at);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            if at <= Instant::now() {
                return true;
            }
            self.timer.as_mut().reset(at);
        }
        false
    }
}

/// The batches of all links. A link that takes nothing does not hold up the others: what it has no room for is lost, as on the
/// way. No data are, since the machine knows which links take them.
struct Batches<'a> {
    links: &'a mut [OneLink],
    locals: &'a LocalAddresses,
    /// How many packets are taken before those that are there are sent.
    left: usize,
}

impl Outbox for Batches<'_> {
    fn has_room(&self) -> bool {
        self.left > 0 && self.links.iter().any(OneLink::has_room)
    }

    fn takes(&self, link: LinkId) -> bool {
        let one = &self.links[self.locals.place(link).0];
        !one.is_full && one.has_room()
    }

    fn push(&mut self, to: Endpoint, ecn: Ecn, write: &mut dyn FnMut(&mut Vec<u8>)) {
        self.left -= 1;
        let (at, to) = self.locals.address(to);
        let one = &mut self.links[at];
        if one.has_room() {
            one.batch.push(to, sent_ecn(ecn), write);
        }
    }
}

const fn received_ecn(ecn: link::Ecn) -> Ecn {
    match ecn {
        link::Ecn::NotEct => Ecn::NotEct,
        link::Ecn::Ect1 => Ecn::Ect1,
        link::Ecn::Ect0 => Ecn::Ect0,
        link::Ecn::Ce => Ecn::Ce,
    }
}

const fn sent_ecn(ecn: Ecn) -> link::Ecn {
    match ecn {
        Ecn::NotEct => link::Ecn::NotEct,
        Ecn::Ect1 => link::Ecn::Ect1,
        Ecn::Ect0 => link::Ecn::Ect0,
        Ecn::Ce => link::Ecn::Ce,
    }
}

/// How many addresses of this machine are told apart; what comes to others is answered from the one that the system chooses.
const LOCAL_ADDRESSES_MAX: usize = 1024;

/// The addresses of this machine that peers use, for answers to come from there: each is a link of its own to the machine. It
/// does not depend on who sends. The first ones are the links, by which what is sent leaves from where the system chooses.
#[derive(Debug)]
struct LocalAddresses(Vec<(usize, Option<IpAddr>)>);

impl LocalAddresses {
    /// Of as many links.
    fn new(links: usize) -> Self {
        Self((0..links).map(|link| (link, None)).collect())
    }

    fn endpoint(&mut self, link: usize, from: link::Address) -> Endpoint {
        match from {
            link::Address::Ethernet(Mac(octets)) => {
                Endpoint { link: LinkId(link as u16), address: Address::Ethernet(octets) }
            }
            link::Address::Ip { remote, local } => {
                Endpoint { link: self.link((link, local)), address: Address::Ip(remote) }
            }
        }
    }

    fn link(&mut self, place: (usize, Option<IpAddr>)) -> LinkId {
        let at = self.0.iter().position(|one| *one == place).unwrap_or(self.0.len());
        if at == self.0.len() {
            if at >= LOCAL_ADDRESSES_MAX {
                return LinkId(place.0 as u16);
            }
            self.0.push(place);
        }
        LinkId(at as u16)
    }

    /// The link that a machine means, and the address that it sends from.
    fn place(&self, link: LinkId) -> (usize, Option<IpAddr>) {
        self.0.get(usize::from(link.0)).copied().unwrap_or_default()
    }

    fn address(&self, to: Endpoint) -> (usize, link::Address) {
        let (link, local) = self.place(to.link);
        let address = match to.address {
            Address::Ethernet(octets) => link::Address::Ethernet(Mac(octets)),
            Address::Ip(remote) => link::Address::Ip { remote, local },
        };
        (link, address)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures_util::task::noop_waker_ref;
    use host::link::Udp;

    use super::*;

    fn wire() -> Wire {
        let udp = || Udp::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        Wire::new([udp().into(), udp().into()]).unwrap()
    }

    /// The answer to whoever comes leaves from where he came to, whatever others have sent before.
    #[test]
    fn strangers_do_not_change_where_answers_leave_from() {
        let mut locals = LocalAddresses::new(2);
        let at = |remote: u32, local: u8| {
            let remote = SocketAddr::from((remote.to_be_bytes(), 5));
            link::Address::Ip { remote, local: Some([127, 0, 0, local].into()) }
        };
        for stranger in 0..100_000 {
            locals.endpoint(0, at(stranger, 1));
        }
        for (link, from) in
            [(0, at(1 << 31, 1)), (0, at(1 << 31, 2)), (0, at(7, 2)), (1, at(7, 2)), (1, at(7, 1))]
        {
            let endpoint = locals.endpoint(link, from);
            assert_eq!(locals.address(endpoint), (link, from));
        }
    }

    /// An interface whose transmitter hangs costs those who come by it, and nobody else.
    #[tokio::test]
    async fn link_that_takes_nothing_does_not_hold_up_another() {
        let mut wire = wire();
        wire.links[0].is_full = true;
        let address = Address::Ip(SocketAddr::from(([127, 0, 0, 1], 9)));
        // More answers to strangers than there is room for, each with one for the other link behind it.
        let mut numbers = 0..4 * BATCH as u16;
        let mut transmit = |_: Time, outbox: &mut dyn Outbox| {
            assert!(!outbox.takes(LinkId(0)), "it takes nothing");
            while outbox.has_room() {
                let Some(number) = numbers.next() else { return };
                let to = Endpoint { link: LinkId(number % 2), address };
                outbox.push(to, Ecn::NotEct, &mut |buffer| buffer.push(7));
            }
        };
        let mut taken = 0;
        while wire.fill(&mut transmit) {
            taken += wire.links[1].batch.len();
            wire.links[1].batch.clear();
        }
        taken += wire.links[1].batch.len();
        assert_eq!((taken, wire.links[0].batch.len()), (2 * BATCH, BATCH));
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
        assert!(
            wire.poll_deadline(cx, Some(Time::ZERO), None),
            "while the link takes all, at once"
        );
        assert!(wire.poll_deadline(cx, Some(Time::ZERO), None));
    }
}
