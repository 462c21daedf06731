//! The conformance suite every store and layer runs.
