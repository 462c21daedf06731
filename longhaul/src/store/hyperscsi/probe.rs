//! A disk behind a HyperSCSI server as the store of a chain, and what is known of its server.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use proto::scsi::command::Command;
use proto::scsi::writer::Registrants;
use serde_json::{Map, Value};
use volume::Gate;

use super::Disk;
use crate::attachments::UnitAddress;
use crate::net::tcp_tuning;
use crate::replay_log::Header;
use crate::store::abilities::{Abilities, BoxFuture, Opened, Probe, TargetInfo, TransportInfo};
use crate::store::scsi::{Seen, Session as _, State, Task};

impl Disk {
    /// It as the store of a chain.
    #[must_use]
    pub fn opened(self) -> Opened {
        let disk = Arc::new(self);
        let abilities = Abilities {
            probe: Some(disk.clone()),
            close: Some(disk.clone()),
            writer: Some(disk.clone()),
            ..Abilities::default()
        };
        Opened { volume: Arc::new(Gate::new("hyperscsi", disk)), worker: None, abilities }
    }
}

impl Probe for Disk {
    /// It measures the round trip, of a command that does nothing.
    fn probe(&self) -> BoxFuture<'_, Result<TargetInfo, Box<dyn Error + Send + Sync>>> {
        Box::pin(async {
            let link = self.link();
            let (session, device) = (link.session(), link.device());
            let start = Instant::now();
            let command = Command::test_unit_ready();
            let task = Task { lun: 0, command, data: bytes::Bytes::new() };
            let _answer = session.execute(task).await?;
            let (round_trip, standard) = (start.elapsed(), &device.standard);
            Ok(TargetInfo {
                transport: transport(),
                unsolicited: session.limits().unsolicited,
                round_trip,
                vendor: standard.vendor.clone(),
                product: standard.product.clone(),
                revision: standard.revision.clone(),
                serial: device.serial.clone(),
                volume: device.volume.clone(),
                luks_uuid: self.luks_uuid(),
            })
        })
    }

    fn path(&self) -> BoxFuture<'_, Option<tcp_tuning::Info>> {
        Box::pin(async { None })
    }

    fn writer(&self) -> BoxFuture<'_, Option<Registrants>> {
        Box::pin(self.writer())
    }

    fn unsolicited(&self) -> u64 {
        self.unsolicited()
    }

    fn state(&self) -> State {
        self.state()
    }

    fn reason(&self) -> Option<String> {
        self.reason()
    }

    fn grown(&self) -> u64 {
        self.grown()
    }

    fn seen(&self) -> Seen {
        self.seen()
    }

    fn place(&self) -> UnitAddress {
        self.place()
    }

    fn state_dir(&self) -> Option<PathBuf> {
        self.state_dir()
    }

    fn expect_own_buffers(&self) {
        self.expect_own_buffers();
    }

    fn is_of(&self, header: &Header) -> bool {
        let UnitAddress { target, lun, .. } = self.place();
        self.is_of(header, &target, lun)
    }
}

fn transport() -> TransportInfo {
    let mut values = Map::new();
    values.insert("secure".to_owned(), Value::from("encrypt"));
    TransportInfo { values, text: vec![("secure", vec!["encrypt".to_owned()])] }
}
