//! A volume in a file.
