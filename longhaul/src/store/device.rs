//! A volume on a block device.
