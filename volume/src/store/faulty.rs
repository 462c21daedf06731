//! A volume that fails on purpose.
