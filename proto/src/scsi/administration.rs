//! Requests to the server of a unit, by MANAGEMENT PROTOCOL OUT, and its answers, by MANAGEMENT PROTOCOL IN
//! (docs/spec/administration.md).

use super::Malformed;
use crate::reader::Reader;

/// MANAGEMENT PROTOCOL: the first that is vendor specific.
pub const PROTOCOL: u8 = 0xF0;

/// The longest request, in bytes.
pub const REQUEST_MAX: u32 = 16 << 10;

/// The longest answer, in bytes. A server of more sessions than that can tell of is asked at its own machine.
pub const ANSWER_MAX: usize = 8 << 20;

/// The bytes of an answer before its text.
pub const HEADER: u32 = 8;

const VERSION: u8 = 1;
const DONE: u8 = 0;
const REFUSED: u8 = 1;

/// What came in of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Whether the request was carried out.
    pub is_done: bool,
    /// How many bytes the whole text has.
    pub length: u32,
    /// The text, as far as there was room for it: what was asked for, or why it was refused.
    pub text: Vec<u8>,
}

/// An answer, before it is cut to the allocation length.
#[must_use]
pub fn emit(answer: &Result<String, String>) -> Vec<u8> {
    const TOO_LONG: &str = "the answer is too long for this way: ask at the machine of the server";
    let (outcome, text) = match answer {
        Ok(text) if text.len() > ANSWER_MAX => (REFUSED, TOO_LONG),
        Ok(text) => (DONE, text.as_str()),
        Err(why) => (REFUSED, why.get(..why.len().min(ANSWER_MAX)).unwrap_or(TOO_LONG)),
    };
    let mut bytes = vec![VERSION, outcome, 0, 0];
    bytes.extend((text.len() as u32).to_be_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

/// Reads an answer, as far as it came.
pub fn parse(bytes: &[u8]) -> Result<Received, Malformed> {
    let mut reader = Reader::new(bytes);
    let [version, outcome, _, _] = reader.array()?;
    let length = reader.u32()?;
    if version != VERSION || outcome > REFUSED || length as usize > ANSWER_MAX {
        return Err(Malformed::Field("header"));
    }
    let text = reader.up_to(length as usize).rest().to_vec();
    Ok(Received { is_done: outcome == DONE, length, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_comes_back_as_it_was_as_far_as_there_is_room() {
        for answer in [Ok("done".to_owned()), Err("no such client".to_owned()), Ok(String::new())] {
            let bytes = emit(&answer);
            for room in HEADER as usize..=bytes.len() {
                let received = parse(&bytes[..room]).unwrap();
                let text = answer.as_ref().unwrap_or_else(|why| why).as_bytes();
                assert_eq!(received.is_done, answer.is_ok());
                assert_eq!(received.length as usize, text.len());
                assert_eq!(received.text, text[..room - HEADER as usize]);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_answer_are_refused() {
        let too_long = [&[1, 0, 0, 0][..], &[0xFF; 4]].concat();
        for bytes in [
            &[][..],
            &[1, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 0, 0, 0, 0, 0],
            &[1, 2, 0, 0, 0, 0, 0, 0],
            &too_long,
        ] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn longest_answer_is_taken_and_a_longer_one_refused_in_words() {
        let text = "a".repeat(ANSWER_MAX);
        assert!(parse(&emit(&Ok(text.clone()))).unwrap().is_done);
        let refused = parse(&emit(&Ok(text + "a"))).unwrap();
        assert!(!refused.is_done && refused.text.starts_with(b"the answer is too long"));
    }
}
