//! What is known of a target and its logical unit.

use std::sync::Arc;
use std::time::Duration;

use proto::iscsi::keys::Parameters;

use super::Disk;
use super::session::Loss;
use crate::net::tcp_tuning::Info;

/// What is known of a target and its logical unit.
#[derive(Clone, Debug)]
pub struct Probe {
    /// What the login agreed on.
    pub parameters: Parameters,
    /// The portal group we came in by.
    pub portal_group_tag: Option<u16>,
    /// What the target calls itself.
    pub target_alias: Option<String>,
    /// The way there and back.
    pub round_trip: Duration,
    /// VENDOR IDENTIFICATION.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION.
    pub product: String,
    /// PRODUCT REVISION LEVEL.
    pub revision: String,
    /// The serial number, if it has one.
    pub serial: Option<String>,
}

impl Disk {
    /// What is known of target and device; measures the round trip.
    pub async fn probe(&self) -> Result<Probe, Arc<Loss>> {
        let link = self.link();
        let (session, device) = (link.session(), link.device());
        let round_trip = session.ping().await?;
        let (established, standard) = (session.established(), &device.standard);
        Ok(Probe {
            parameters: established.parameters.clone(),
            portal_group_tag: established.portal_group_tag,
            target_alias: established.target_alias.clone(),
            round_trip,
            vendor: standard.vendor.clone(),
            product: standard.product.clone(),
            revision: standard.revision.clone(),
            serial: device.serial.clone(),
        })
    }

    /// What the kernel knows of the connections to the target, if there are any just now.
    pub async fn path(&self) -> Option<Info> {
        self.session().path().await.ok()
    }
}
