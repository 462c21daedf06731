//! Two gateways of one group of volumes: which of them may use the media, and what both must know.
//!
//! All of that is one record in a store that both reach, which is read whole and replaced only if it is as it was read.
//! [`Lease`] is what one gateway does with it: it watches, takes over when the holder gives no sign of life any more,
//! renews, and stops in time. `docs/spec/cluster.md` says what is promised, and what rests on a fence.

mod group;
mod lease;
mod peers;
mod preference;
mod record;
mod step;

pub use group::{GroupName, NotGroup};
pub use lease::Lease;
pub use peers::{Sign, Signs};
pub use record::{
    GATEWAY_MAX, GatewayName, Holder, NotGateway, RECORD_MAX, Record, RecordError, UNITS_MAX,
    is_address,
};
pub use step::{Outcome, PreviousHolder, Role, Settings, Step, Update, Written};
