//! A volume behind an iSCSI target.
