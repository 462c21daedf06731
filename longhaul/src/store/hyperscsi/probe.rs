//! What a HyperSCSI connection knows of its server.

use std::error::Error;
use std::time::{Duration, Instant};

use proto::scsi::command::Command;
use serde_json::{Map, Value};

use super::Session;
use crate::net::tcp_tuning;
use crate::store::abilities::{Described, TransportInfo};
use crate::store::scsi::{Session as _, Task};

impl Described for Session {
    const STORE: &'static str = "hyperscsi";

    /// Of a command that does nothing.
    async fn round_trip(&self) -> Result<Duration, Box<dyn Error + Send + Sync>> {
        let start = Instant::now();
        let command = Command::test_unit_ready();
        let task = Task { lun: 0, command, data: bytes::Bytes::new(), is_ordered: false };
        let _answer = self.execute(task).await?;
        Ok(start.elapsed())
    }

    fn transport(&self) -> TransportInfo {
        let mut values = Map::new();
        let level = self.level().name();
        let mut secure = vec![level.to_owned()];
        values.insert("secure".to_owned(), Value::from(level));
        if let Some(cipher) = self.cipher() {
            values.insert("cipher".to_owned(), Value::from(cipher));
            secure.push(cipher.to_owned());
        }
        TransportInfo { values, text: vec![("secure", secure)] }
    }

    fn silence(&self) -> Option<Duration> {
        self.silence()
    }

    async fn path(&self) -> Option<tcp_tuning::Info> {
        None
    }
}
