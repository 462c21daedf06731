//! The iSCSI target: one task per session.
