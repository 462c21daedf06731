//! A key that people can write down: 24 words that stand for 256 random bits and a checksum of 8 (BIP-39, with its English
//! list of 2048 words, no two of which begin with the same four letters).
//!
//! The pass-phrase of the key slot is the words in lower case with one space between, so that `cryptsetup` takes them as they
//! stand on the paper.

use bip39::{Language, Mnemonic};
use zeroize::Zeroizing;

use crate::failure::{Failure, OrFail as _, Outcome};
use crate::secret::Secret;
use crate::suggest::did_you_mean;

/// How many words there are, and how many random bytes they stand for.
pub(crate) const WORDS: usize = 24;
const ENTROPY: usize = 32;

/// The words of a recovery key, wiped when dropped.
pub(crate) struct RecoveryWords(Zeroizing<String>);

impl RecoveryWords {
    /// New ones.
    pub(crate) fn random() -> Outcome<Self> {
        let what = || "cannot make a recovery key".to_owned();
        let mut entropy = Zeroizing::new([0; ENTROPY]);
        getrandom::fill(&mut *entropy).or_fail(what)?;
        let words = Mnemonic::from_entropy_in(Language::English, &*entropy);
        Ok(Self(joined(&words.map_err(|why| Failure::new(what()).because(why.to_string()))?)))
    }

    /// Those that somebody has typed: in any case, with any space between, and no word needs more than its first four letters.
    pub(crate) fn parse(typed: &Secret) -> Outcome<Self> {
        let refused =
            |why: String| Failure::new("these are not the words of a recovery sheet").because(why);
        let text = std::str::from_utf8(typed.expose()).map_err(|why| refused(why.to_string()))?;
        let text = Zeroizing::new(text.to_lowercase());
        let given: Vec<&str> = text.split_whitespace().collect();
        if given.len() != WORDS {
            return Err(refused(format!("there are {}, not {WORDS}", given.len())));
        }
        let mut words = Zeroizing::new(String::new());
        for (place, word) in given.iter().enumerate() {
            let whole = whole_word(word).ok_or_else(|| refused(unknown(place + 1, word)))?;
            if place > 0 {
                words.push(' ');
            }
            words.push_str(whole);
        }
        match Mnemonic::parse_in_normalized(Language::English, &words) {
            Ok(words) => Ok(Self(joined(&words))),
            Err(_) => Err(refused("their checksum does not hold".into()).hint(
                "all are words of the list: one of them is another, or two have changed places",
            )),
        }
    }

    /// The pass-phrase that they are.
    pub(crate) fn secret(&self) -> Secret {
        Secret::new(self.0.as_bytes().to_vec())
    }

    /// They as a text with one space between.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

fn joined(words: &Mnemonic) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(9 * WORDS));
    for word in words.words() {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(word);
    }
    text
}

/// The word of the list that is meant.
fn whole_word(word: &str) -> Option<&'static str> {
    let all = Language::English.word_list();
    let exact = all.iter().find(|known| **known == word);
    let begun = || all.iter().find(|known| word.len() >= 4 && known.starts_with(word));
    exact.or_else(begun).copied()
}

/// A wrong word is shown: it is in no list, so that it is not of the key.
fn unknown(place: usize, word: &str) -> String {
    let meant = did_you_mean(word, Language::English.word_list().iter().copied());
    format!("word {place} is not in the list{meant}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, String> {
        let words = RecoveryWords::parse(&Secret::new(text.as_bytes().to_vec()));
        words.map(|words| words.as_str().to_owned()).map_err(|why| why.to_string())
    }

    #[test]
    fn random_words_are_different_and_read_back_as_people_type_them() {
        let (one, two) = (RecoveryWords::random().unwrap(), RecoveryWords::random().unwrap());
        assert_ne!(one.as_str(), two.as_str());
        let text = one.as_str().to_owned();
        assert_eq!(text.split(' ').count(), WORDS);
        assert_eq!(one.secret().expose(), text.as_bytes());
        assert_eq!(parse(&text).unwrap(), text);
        assert_eq!(
            parse(&format!("  {}\n", text.to_uppercase().replace(' ', " \n "))).unwrap(),
            text
        );
        let begun: Vec<&str> = text.split(' ').map(|word| &word[..word.len().min(4)]).collect();
        assert_eq!(parse(&begun.join(" ")).unwrap(), text);
    }

    /// BIP-39's own test vector of 32 zero bytes.
    #[test]
    fn wrong_words_are_named() {
        let zero = "abandon ".repeat(23) + "art";
        assert_eq!(parse(&zero).unwrap(), zero);
        for (wrong, why) in [
            ("abandon ".repeat(24), "checksum"),
            ("abandon ".repeat(22) + "art", "there are 23, not 24"),
            (
                "abandon ".repeat(22) + "abandn art",
                "word 23 is not in the list: did you mean `abandon`?",
            ),
            ("abandon ".repeat(22) + "art abandon", "checksum"),
        ] {
            let said = parse(&wrong).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
