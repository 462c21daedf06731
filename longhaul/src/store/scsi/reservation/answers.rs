//! What a unit answers to reservation commands, in words.

use proto::scsi::writer::{Answer, NotHeld};

use super::UnitError;

pub(super) fn describe(why: &NotHeld<UnitError>) -> String {
    match why {
        NotHeld::Answer(what, answer) | NotHeld::LeftRegistered(what, answer) => {
            format!("{what} {}", describe_answer(answer))
        }
        NotHeld::Registered(what, answer) => format!(
            "{what} {}, and the target does not remove the registration either",
            describe_answer(answer)
        ),
        NotHeld::Malformed(what) => format!("{what} cannot be read"),
        _ => "the unit has no persistent reservations any more".to_owned(),
    }
}

pub(super) fn describe_answer(answer: &Answer) -> String {
    match answer {
        Answer::Check(sense) => format!("is answered by {sense}"),
        Answer::Conflict => "meets a reservation conflict".to_owned(),
        Answer::Good(_) => "is answered by GOOD".to_owned(),
    }
}
