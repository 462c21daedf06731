//! How the token of a writer is told from others of the header.

/// The type of the token.
pub(super) const KIND: &str = "longhaul-writer";

/// Whether a token of the header is one of these.
pub(super) fn is_one(token: &serde_json::Value) -> bool {
    token.get("type").and_then(serde_json::Value::as_str) == Some(KIND)
}
