//! What comes to a session from elsewhere than its initiator.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::mpsc::UnboundedReceiver;

use super::joining::{Join, Joins};
use super::wake_flag::WakeFlag;
use crate::stop::Stop;
use crate::target::sessions::SessionMessage;

/// What a session is asked for.
pub(super) enum Call {
    /// The node stops.
    Stop,
    /// Another session, or the node, asks for something.
    Message(SessionMessage),
    /// A connection comes to join the session.
    Join(Box<Join>),
}

/// The rare calls; while there is none, asking for them costs a look at a flag.
pub(super) struct Mailbox {
    stop: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    joins: Joins,
    called: WakeFlag,
}

impl Mailbox {
    pub(super) fn new(mut stop: Stop, joins: Joins) -> Self {
        let stop = Some(Box::pin(async move { stop.called().await }) as _);
        Self { stop, joins, called: WakeFlag::new() }
    }

    /// The next call. `messages` are those to the session.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        messages: &mut UnboundedReceiver<SessionMessage>,
    ) -> Poll<Call> {
        let Self { stop, joins, called } = self;
        called.poll(cx, |cx| {
            if stop.as_mut().is_some_and(|stop| stop.as_mut().poll(cx).is_ready()) {
                *stop = None;
                return Poll::Ready(Call::Stop);
            }
            if let Poll::Ready(Some(message)) = messages.poll_recv(cx) {
                return Poll::Ready(Call::Message(message));
            }
            match joins.0.poll_recv(cx) {
                Poll::Ready(Some(join)) => Poll::Ready(Call::Join(Box::new(join))),
                _ => Poll::Pending,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::sync::mpsc;

    use super::*;
    use crate::stop::Stopper;

    #[tokio::test]
    async fn every_call_wakes_the_session_and_is_told_once() {
        let (stopper, stop) = Stopper::new();
        let (sender, mut messages) = mpsc::unbounded_channel();
        let (_joins, receiver) = mpsc::unbounded_channel();
        let mut mailbox = Mailbox::new(stop, Joins(receiver));
        let calls = tokio::spawn(async move {
            let mut told = Vec::new();
            while told.len() < 3 {
                told.push(match poll_fn(|cx| mailbox.poll(cx, &mut messages)).await {
                    Call::Stop => "stop",
                    Call::Message(SessionMessage::LogOut) => "log out",
                    Call::Message(_) | Call::Join(_) => "another",
                });
            }
            let rest = poll_fn(|cx| Poll::Ready(mailbox.poll(cx, &mut messages).is_ready())).await;
            assert!(!rest);
            told
        });
        tokio::task::yield_now().await;
        sender.send(SessionMessage::LogOut).unwrap();
        tokio::task::yield_now().await;
        stopper.call();
        tokio::task::yield_now().await;
        sender.send(SessionMessage::LogOut).unwrap();
        assert_eq!(calls.await.unwrap(), ["log out", "stop", "log out"]);
    }
}
