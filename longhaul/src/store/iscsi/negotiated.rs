//! What a login agreed on, as it is shown to people and scripts.

use proto::iscsi::login::initiator::Established;
use proto::iscsi::sealed::Protection;
use serde::Serialize;
use serde_json::Value;

use crate::store::abilities::TransportInfo;

/// Keys of the login (RFC 7143, 13), and what secures the session.
#[derive(Debug, Serialize)]
pub(super) struct Negotiated {
    /// What the target calls itself.
    alias: Option<String>,
    header_digest: bool,
    data_digest: bool,
    /// `integrity` or `encrypt`.
    secure: Option<&'static str>,
    initial_r2t: bool,
    immediate_data: bool,
    first_burst: u32,
    max_burst: u32,
    max_outstanding_r2t: u16,
    max_recv_data_segment: u32,
    max_send_data_segment: u32,
}

impl Negotiated {
    pub(super) fn of(established: &Established) -> Self {
        let agreed = &established.parameters;
        Self {
            alias: established.target_alias.clone(),
            header_digest: agreed.header_digest,
            data_digest: agreed.data_digest,
            secure: agreed.seal.map(Protection::name),
            initial_r2t: agreed.initial_r2t,
            immediate_data: agreed.immediate_data,
            first_burst: agreed.first_burst,
            max_burst: agreed.max_burst,
            max_outstanding_r2t: agreed.max_outstanding_r2t,
            max_recv_data_segment: agreed.max_recv_data_segment,
            max_send_data_segment: agreed.max_send_data_segment,
        }
    }

    /// As the keys of the login are written.
    fn keys(&self) -> Vec<String> {
        let yes = |yes| if yes { "Yes" } else { "No" };
        let digest = |on| if on { "CRC32C" } else { "None" };
        let (takes, sends) = (self.max_recv_data_segment, self.max_send_data_segment);
        vec![
            format!("HeaderDigest={}", digest(self.header_digest)),
            format!("DataDigest={}", digest(self.data_digest)),
            format!("InitialR2T={}", yes(self.initial_r2t)),
            format!("ImmediateData={}", yes(self.immediate_data)),
            format!("FirstBurstLength={}", self.first_burst),
            format!("MaxBurstLength={}", self.max_burst),
            format!("MaxOutstandingR2T={}", self.max_outstanding_r2t),
            format!("MaxRecvDataSegmentLength={takes} here, {sends} there"),
        ]
    }
}

impl From<Negotiated> for TransportInfo {
    fn from(negotiated: Negotiated) -> Self {
        let secure = vec![negotiated.secure.unwrap_or("no").to_owned()];
        let text = vec![("secure", secure), ("negotiated", negotiated.keys())];
        let Ok(Value::Object(values)) = serde_json::to_value(negotiated) else {
            return Self { text, ..Self::default() };
        };
        Self { values, text }
    }
}
