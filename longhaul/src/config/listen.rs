//! The places to listen, as they are written.

use std::path::Path;

use super::access::{Access, Group};
use super::{Listen, ListenAt};
use crate::option_table::{
    ADDRESS, COUNT, DEMAND, Entry, Kind, Place, RawValue, Standard, ValueError, each, number,
    options, text,
};
use crate::sealing::Demand;

const ACCESS: Kind =
    Kind::text("ACCESS", "`optimized`, `non-optimized`, `standby` or `unavailable`");

options! {
    /// An entry of `listen` that is a table.
    pub(super) struct ListenOptions in pub(super) LISTEN {
        address: Option<ListenAt> = text => {
            kind: ADDRESS,
            default: Standard::Required,
            place: Place::File,
            help: "The address",
            manual: "",
        }
        protection: Option<Demand> = text => {
            kind: DEMAND,
            default: Standard::Words("that of the server"),
            place: Place::File,
            help: "Least protection of sessions that come in here",
            manual: "`none` lets clients with CHAP in where the server has an identity",
        }
        group: Option<Group> = number => {
            kind: COUNT,
            default: Standard::Value("1"),
            place: Place::File,
            help: "Number of its portal group, 1 to 255",
            manual: "",
        }
        access: Option<Access> = text => {
            kind: ACCESS,
            default: Standard::Words("optimized"),
            place: Place::File,
            help: "Access state of the group (ALUA)",
            manual: "",
        }
    }
}

/// Places to listen: of the command line one, of the file a list of addresses and tables.
pub(super) fn listens(given: &RawValue<'_>) -> Result<Vec<Listen>, ValueError> {
    match given {
        RawValue::File(item, _) => each(item, listen),
        RawValue::Word(_) => text(given).map(|at| vec![Listen::at(at)]),
    }
}

/// An address, or a table with one.
fn listen(entry: Entry<'_>) -> Option<Listen> {
    match entry {
        Entry::Text(at) => Some(Listen::at(at.parse()?)),
        Entry::Table(mut table) => {
            let said = table.read(LISTEN, Path::new(""));
            table.finish();
            let group = said.group.unwrap_or_default();
            let (protection, access) = (said.protection, said.access);
            Some(Listen { at: said.address?, protection, group, access })
        }
    }
}
