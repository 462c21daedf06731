//! Options as rows of a table: what the configuration file reads, the command line takes and the documents print.

mod table;

pub use table::Wrong;
pub(crate) use table::{Entry, Sheet, Table};
