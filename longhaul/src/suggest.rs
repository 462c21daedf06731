//! What somebody may have meant by a word that is unknown.

/// How alike two words are at least for one to be taken for the other: what clap asks for.
const ALIKE: f64 = 0.7;

/// `: did you mean ...?`, or nothing if no known word is close.
pub(crate) fn did_you_mean<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    let score =
        |known: &'k str| (strsim::jaro(&word.to_lowercase().replace('-', "_"), known), known);
    let closest = known.into_iter().map(score).max_by(|(one, _), (two, _)| one.total_cmp(two));
    match closest {
        Some((score, known)) if score > ALIKE => format!(": did you mean `{known}`?"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closest_word_is_named_and_no_other() {
        let known = ["size", "read_only", "serial"];
        for (word, meant) in [
            ("sise", ": did you mean `size`?"),
            ("READ-ONLY", ": did you mean `read_only`?"),
            ("readonly", ": did you mean `read_only`?"),
            ("xyz", ""),
            ("", ""),
        ] {
            assert_eq!(did_you_mean(word, known), meant, "{word}");
        }
    }
}
