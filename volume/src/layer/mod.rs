//! What can be added to a volume on its way down.

pub mod seal;
