//! What is exported.

use volume::Shape;

/// What is exported: one volume, as the default export.
#[derive(Clone, Debug)]
pub struct Export {
    /// Its shape.
    pub shape: Shape,
    /// It has a map of what is allocated.
    pub mapped: bool,
    /// For people.
    pub description: String,
}
