//! A hint at pass-phrases that are easily guessed. It counts how many guesses the simplest methods need, so that it
//! finds weak ones only; it does not know which strong-looking ones are in a list.

/// A pass-phrase of fewer bits is worth a hint: at the default cost of a guess, a second or two and 256 MiB, less
/// is in reach of whoever rents a few thousand machines for a year.
const BITS_MIN: f64 = 45.0;

/// What a word is worth: a list of eight thousand holds most that people think of.
const BITS_OF_A_WORD: f64 = 13.0;

/// Says that `secret` is weak, if it is. The secret itself is not shown.
pub(super) fn hint(secret: &[u8]) -> Option<&'static str> {
    (bits(secret) < BITS_MIN).then_some(
        "this pass-phrase is easily guessed: four words chosen at random, or sixteen random characters, are not",
    )
}

fn bits(secret: &[u8]) -> f64 {
    bits_by_characters(secret).min(bits_by_words(secret))
}

/// Each character that does not repeat or continue the one before, at what its kinds allow.
fn bits_by_characters(secret: &[u8]) -> f64 {
    type Kind = fn(&u8) -> bool;
    let kinds: [(Kind, f64); 4] = [
        (u8::is_ascii_lowercase, 26.0),
        (u8::is_ascii_uppercase, 26.0),
        (u8::is_ascii_digit, 10.0),
        (|byte| !byte.is_ascii_alphanumeric(), 33.0),
    ];
    let choices: f64 =
        kinds.iter().filter(|(kind, _)| secret.iter().any(kind)).map(|(_, count)| count).sum();
    let fresh = secret.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) > 1).count() + 1;
    fresh as f64 * choices.max(1.0).log2()
}

/// Runs of letters are words, whatever their length; all else counts by character.
fn bits_by_words(secret: &[u8]) -> f64 {
    let mut bits = 0.0;
    for run in secret.chunk_by(|a, b| a.is_ascii_lowercase() && b.is_ascii_lowercase()) {
        bits += match run {
            b" " | b"-" | b"_" | b"." | b"," => 1.0,
            run if run.len() > 2 => BITS_OF_A_WORD,
            run => bits_by_characters(run),
        };
    }
    // Letters without a gap may be random ones: words are told only where several stand apart.
    let apart = secret.iter().any(|byte| !byte.is_ascii_lowercase());
    if apart { bits } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_common_and_repeated_ones_are_weak() {
        for weak in [
            "x",
            "one",
            "secret",
            "hunter2",
            "12345678901234567890",
            "aaaaaaaaaaaaaaaaaaaa",
            "my cat tom",
        ] {
            assert!(hint(weak.as_bytes()).is_some(), "{weak}: {}", bits(weak.as_bytes()));
        }
    }

    #[test]
    fn long_ones_are_not() {
        for strong in [
            "correct horse battery staple",
            "dGh1cyBpcyBu0",
            "qzvkwpxmtbjrnd",
            "Tr0ub4dor&3-and-more",
        ] {
            assert!(hint(strong.as_bytes()).is_none(), "{strong}: {}", bits(strong.as_bytes()));
        }
    }
}
