//! The HyperSCSI 2 target (docs/spec/hyperscsi.md).

mod tasks;
