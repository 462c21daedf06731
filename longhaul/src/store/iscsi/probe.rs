//! What an iSCSI session knows of its target.

use std::error::Error;
use std::time::Duration;

use super::Session;
use super::negotiated::Negotiated;
use crate::net::tcp_tuning;
use crate::store::abilities::{Described, TransportInfo};

impl Described for Session {
    const STORE: &'static str = "iscsi";

    async fn round_trip(&self) -> Result<Duration, Box<dyn Error + Send + Sync>> {
        Ok(self.ping().await?)
    }

    fn transport(&self) -> TransportInfo {
        Negotiated::of(self.established()).into()
    }

    async fn path(&self) -> Option<tcp_tuning::Info> {
        self.path().await.ok()
    }
}
