//! The pipeline on virtual time: under faults, and over long links.

mod chaos;
mod faults;
mod history;
mod holes;
mod link;
mod sim;
mod throughput;
