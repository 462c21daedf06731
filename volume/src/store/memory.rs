//! A volume in memory.
