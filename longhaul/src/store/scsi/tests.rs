use std::fmt;
use std::future::pending;
use std::time::Duration;

use proto::scsi::transport::Transports;
use volume::layer::reconnect::Failure;

use super::announced::Announced;
use super::connect::Connector;
use super::error::OpenError;
use super::options::Options;
use super::session::{
    Address, Answer, Executed, Lost, ResetAnswer, Session, Task, TransferLimits, Transport,
};
use super::writers::Writers;
use crate::stop::Stop;

/// A transport whose target lets everybody in, and answers nothing after that.
#[derive(Debug)]
struct SilentTarget;

/// A session in which nothing is answered.
#[derive(Clone, Debug)]
pub(super) struct SilentSession;

impl Session for SilentSession {
    const TRANSPORTS: Transports = Transports(&[]);

    async fn execute(&self, _: Task) -> Result<Executed, Lost> {
        pending().await
    }

    async fn queue(&self, _: Task) -> Result<Answer, Lost> {
        pending().await
    }

    fn keeps_order(&self) -> bool {
        false
    }

    async fn reset_unit(&self, _: u64) -> Result<ResetAnswer, Lost> {
        pending().await
    }

    async fn abort_all(&self) -> Result<(), Lost> {
        pending().await
    }

    fn announced(&self) -> &Announced {
        unreachable!("nothing is answered")
    }

    fn has_several_connections(&self) -> bool {
        false
    }

    async fn settle(&self) -> Result<(), Lost> {
        Ok(())
    }

    async fn ended(&self) -> Lost {
        pending().await
    }

    async fn close(&self) {}

    fn abandon(&self) {}

    fn hurry(&self) {}

    fn limits(&self) -> TransferLimits {
        TransferLimits { unsolicited: 0, solicited: 0, data_in: u64::MAX }
    }
}

impl fmt::Display for SilentTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mute")
    }
}

impl Transport for SilentTarget {
    type Session = SilentSession;
    type Portal = &'static str;
    type Error = fmt::Error;

    fn address(&self) -> Address {
        Address { target: "disk".into(), lun: 0, portal: "192.0.2.1".into(), pin: None }
    }

    fn portals(&self) -> Vec<&'static str> {
        vec!["192.0.2.1"]
    }

    async fn log_in(
        &self,
        _: &&'static str,
        _: Option<&SilentSession>,
        _: Duration,
    ) -> Result<SilentSession, fmt::Error> {
        Ok(SilentSession)
    }

    fn opened(&self, _: &SilentSession, _: bool) {}

    fn is_out_of_reach(_: &fmt::Error) -> bool {
        false
    }

    fn is_silent(_: &fmt::Error) -> bool {
        false
    }

    fn failure(_: &fmt::Error) -> Failure {
        Failure::NoSession
    }

    fn is_secure(&self) -> bool {
        false
    }

    fn note_stall(&self, _: bool) {}
}

/// A target may answer pings all the time, and nothing else.
#[tokio::test]
async fn step_to_a_unit_that_does_not_end_is_given_up() {
    let options = Options {
        read_only: false,
        writers: Writers::One,
        state: None,
        replays: None,
        same_as: None,
        login_within: Duration::from_secs(30),
        reconnect_for: None,
        reconnect_every: Duration::from_secs(5),
        replay_log: None,
        stop: Stop::default(),
        unflushed_max: 0,
        idle: Duration::from_secs(10),
        stall: Duration::from_secs(60),
    };
    let mut connector = Connector::new(SilentTarget, options);
    connector.opened_within = Duration::from_millis(1);
    let opened = connector.open_first().await;
    assert!(matches!(opened, Err(OpenError::Slow(..))));
}
