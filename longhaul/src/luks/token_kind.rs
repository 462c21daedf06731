//! How the tokens that this program puts into a header are told from others.

/// The type of the token of a writer.
pub(super) const KIND: &str = "longhaul-writer";

/// The type of the token of a journal.
pub(super) const JOURNAL: &str = "longhaul-journal";

/// Whether a token of the header is of this type.
pub(super) fn is_of(token: &serde_json::Value, kind: &str) -> bool {
    token.get("type").and_then(serde_json::Value::as_str) == Some(kind)
}

/// Whether a token of the header is that of a writer.
pub(super) fn is_one(token: &serde_json::Value) -> bool {
    is_of(token, KIND)
}

/// Whether it opens nothing, so that it outlives the key slots.
pub(super) fn is_note(token: &serde_json::Value) -> bool {
    is_one(token) || is_of(token, JOURNAL)
}
