//! The driver of one session: moves frames from its connections into the protocol machine, commands from the machine
//! to the units, answers back, and output out.
//!
//! One task polls all of it by hand rather than by a `select!`, as everything it waits for may be ready at once: all that
//! has arrived is taken in, all that is answered is answered, and then one write takes all output. That task owns all
//! connections of the session, so that their commands are put in order without a lock. When one is lost the session
//! ends, as error recovery level 0 has it (RFC 7143, 7.1.5).

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use proto::time::Time;

use super::end::End;
use super::login::LoggedIn;
use super::mailbox::Mailbox;
use super::node::Node;
use super::pdu_stream::{PduStream, StreamError};
use super::session::ServedSession;
use crate::net::busy_poll::BusyPoll;
use crate::stop::Stop;
use crate::task::unless_broken;

/// Polls a session and all that may have something for it.
pub(super) struct Driver {
    mailbox: Mailbox,
    busy_poll: BusyPoll,
    /// How long an initiator may take nothing of what is sent to it.
    stuck_max: Duration,
    session: ServedSession,
}

impl Driver {
    pub(super) fn new(
        node: &Node,
        portals: Arc<[(SocketAddr, u16)]>,
        stream: PduStream,
        LoggedIn { handle, arrivals, established, seals }: LoggedIn,
        stop: Stop,
    ) -> Result<Self, StreamError> {
        let limits = node.limits();
        let session = ServedSession::new(node, portals, stream, handle, (established, seals))?;
        Ok(Self {
            mailbox: Mailbox::new(stop, arrivals),
            busy_poll: BusyPoll::new(limits.awake),
            stuck_max: limits.ping_patience,
            session,
        })
    }

    /// Runs the session to its end, and until none of its commands runs any more, also if it breaks down: the session that
    /// replaces it begins only then.
    pub(super) async fn run(mut self) -> End {
        let end = unless_broken(std::future::poll_fn(|cx| self.poll(cx))).await;
        // A command that panics is taken out by that, so that the others can be waited for.
        while unless_broken(self.session.commands.drain()).await.is_none() {}
        end.unwrap_or(End::Broken)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.poll_calls(cx);
        loop {
            match self.poll_traffic(cx) {
                Err(error) => return Poll::Ready(error.into()),
                Ok(()) if self.session.machine.unsent() > 0 => return Poll::Pending,
                Ok(()) => {}
            }
            if let Some(end) = self.session.shutdown.finish() {
                return Poll::Ready(end);
            }
            if !self.busy_poll(cx) {
                return Poll::Pending;
            }
        }
    }

    /// What does not come from the initiator: other sessions, the end of the program, the clock.
    fn poll_calls(&mut self, cx: &mut Context<'_>) {
        let Self { mailbox, session, .. } = self;
        while let Poll::Ready(call) = mailbox.poll(cx, &mut session.handle.messages) {
            session.handle_call(call);
        }
        while session.clock.poll(cx) {
            session.handle_timeout();
        }
        session.handle_events(cx);
    }

    /// Nothing is left to do. The answers of units take their time; an initiator may be back at once, so the sockets are
    /// polled a few times. Whether something has arrived.
    fn busy_poll(&mut self, cx: &mut Context<'_>) -> bool {
        let ServedSession { commands, connections, clock, .. } = &mut self.session;
        commands.is_idle() && self.busy_poll.poll(cx, || clock.now(), || connections.busy_poll())
    }

    /// Answers, input and output, until all of them have to wait. Output that was sent counts as well: what was held back
    /// for it can go on, and nothing else would say so.
    fn poll_traffic(&mut self, cx: &mut Context<'_>) -> Result<(), StreamError> {
        loop {
            let answered = self.poll_answers(cx);
            let received = self.poll_input(cx)?;
            let ServedSession { commands, machine, handle, .. } = &mut self.session;
            commands.start_waiting(cx, machine, &handle.entry);
            self.session.handle_events(cx);
            let ServedSession { commands, machine, handle, clock, log_limiter, .. } =
                &mut self.session;
            commands.solicit(cx, machine);
            commands.count(|| clock.now(), &handle.entry, log_limiter);
            let sent = self.poll_output(cx)?;
            if !answered && !received && !sent {
                self.session.commands.give_back(&mut self.session.machine);
                return Ok(());
            }
        }
    }

    /// Whether any answer came.
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> bool {
        let managed = self.session.poll_task_management(cx);
        let ServedSession { commands, machine, handle, .. } = &mut self.session;
        let any = commands.poll_answers(cx, machine, &handle.entry) || managed;
        if any {
            self.session.handle_events(cx);
        }
        any
    }

    /// Whether anything was read.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamError> {
        let ServedSession { commands, machine, shutdown, .. } = &mut self.session;
        if shutdown.has_begun() || commands.is_overdrawn(machine) {
            return Ok(false);
        }
        let mut last = None;
        let mut at = 0;
        // What arrives may add connections, and does not take any away.
        while at < self.session.connections.len() {
            last = last.max(self.poll_connection(cx, at)?);
            at += 1;
        }
        if let Some(now) = last {
            self.session.connections.sample(now);
        }
        Ok(last.is_some())
    }

    /// When something was read by a connection, if anything was.
    fn poll_connection(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
    ) -> Result<Option<Time>, StreamError> {
        let session = &mut self.session;
        let Poll::Ready(read) = session.connections.poll_read(cx, at, &session.clock) else {
            return Ok(None);
        };
        let (cid, now) = read?;
        session.machine.heard(now, cid);
        // A sign of life is not enough: what it does not take is held for it.
        if session.connections.is_stuck(at, now, self.stuck_max) {
            session.finish(StreamError::Late.into());
            return Ok(Some(now));
        }
        session.commands.arrive(now);
        self.busy_poll.ends(now);
        while let Some(frame) = session.connections.decode(at)? {
            session.machine.handle(now, cid, frame);
            session.handle_events(cx);
        }
        self.busy_poll.expect(session.machine.depth());
        if session.connections.is_amid_a_pdu(at) {
            session.machine.receiving();
        }
        Ok(Some(now))
    }

    /// Whether anything was sent.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamError> {
        let ServedSession { connections, machine, clock, handle, .. } = &mut self.session;
        let (sent, removed) = connections.poll_write(cx, machine, clock)?;
        if removed {
            handle.entry.set_connections(connections.len());
        }
        Ok(sent)
    }
}
