//! What REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS return (SPC-4,
//! 6.35 and 6.36).

use super::Sense;
use super::cdb::{Entry, commands};

/// A question about supported operation codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// RCTD.
    pub timeouts: bool,
    /// REPORTING OPTIONS.
    pub options: u8,
    /// REQUESTED OPERATION CODE.
    pub opcode: u8,
    /// REQUESTED SERVICE ACTION.
    pub action: u16,
}

/// A command timeouts descriptor that reports none (SPC-4, 6.35.4): how long a command takes depends on
/// what the volume stands on.
const TIMEOUTS: [u8; 12] = [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// CTDP, in the flags of either form.
const CTDP_ALL: u8 = 0x02;
const CTDP_ONE: u8 = 0x80;
const SERVACTV: u8 = 0x01;

/// SUPPORT of the one-command form.
const NOT_SUPPORTED: u8 = 0x01;
const SUPPORTED: u8 = 0x03;

/// The answer of a unit that offers these commands.
pub fn opcodes(query: Query, offers: impl Fn(&Entry) -> bool) -> Result<Vec<u8>, Sense> {
    let offered = || commands().filter(|entry| offers(entry));
    let exact = |entry: &&Entry| {
        entry.opcode == query.opcode
            && (entry.action.is_none() || entry.action.map(u16::from) == Some(query.action))
    };
    let has_actions =
        commands().any(|entry| entry.opcode == query.opcode && entry.action.is_some());
    match query.options {
        0 => Ok(all(offered(), query.timeouts)),
        // An operation code with service actions must be asked for with one, and one without must not.
        1 if has_actions => Err(Sense::invalid_cdb(2, Some(2))),
        2 if !has_actions && offered().any(|entry| entry.opcode == query.opcode) => {
            Err(Sense::invalid_cdb(2, Some(2)))
        }
        1..=3 => {
            // Option 3 takes either kind, but no service action where there is none.
            let action_without = query.options == 3 && !has_actions && query.action != 0;
            let entry = offered().find(exact).filter(|_| !action_without);
            Ok(one(entry, query.timeouts))
        }
        _ => Err(Sense::invalid_cdb(2, Some(2))),
    }
}

fn all<'a>(entries: impl Iterator<Item = &'a Entry>, timeouts: bool) -> Vec<u8> {
    let mut list = Vec::new();
    for entry in entries {
        let flags =
            if timeouts { CTDP_ALL } else { 0 } | if entry.action.is_some() { SERVACTV } else { 0 };
        list.extend([entry.opcode, 0, 0, entry.action.unwrap_or(0), 0, flags]);
        list.extend((entry.usage().len() as u16).to_be_bytes());
        if timeouts {
            list.extend(TIMEOUTS);
        }
    }
    let mut bytes = (list.len() as u32).to_be_bytes().to_vec();
    bytes.extend(list);
    bytes
}

fn one(entry: Option<&Entry>, timeouts: bool) -> Vec<u8> {
    let Some(entry) = entry else { return vec![0, NOT_SUPPORTED, 0, 0] };
    let timeouts_follow = if timeouts { CTDP_ONE } else { 0 };
    let mut bytes = vec![0, SUPPORTED | timeouts_follow];
    bytes.extend((entry.usage().len() as u16).to_be_bytes());
    bytes.extend(entry.usage());
    if timeouts {
        bytes.extend(TIMEOUTS);
    }
    bytes
}

/// The task management functions the unit supports: ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL
/// UNIT RESET and TARGET RESET.
#[must_use]
pub fn task_management(extended: bool) -> Vec<u8> {
    const ATS: u8 = 0x80;
    const ATSS: u8 = 0x40;
    const CTSS: u8 = 0x10;
    const LURS: u8 = 0x08;
    const TRS: u8 = 0x02;
    let functions = ATS | ATSS | CTSS | LURS | TRS;
    if extended {
        const LENGTH: usize = 16;
        let mut bytes = vec![functions, 0, 0, (LENGTH - 4) as u8];
        bytes.resize(LENGTH, 0); // TMFTMOV zero: no timeouts are reported.
        bytes
    } else {
        vec![functions, 0, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::super::cdb::Requires;
    use super::*;

    const fn all_of_them(_: &Entry) -> bool {
        true
    }

    fn nothing(entry: &Entry) -> bool {
        entry.requires == Requires::Nothing
    }

    const fn query(options: u8, opcode: u8, action: u16) -> Query {
        Query { timeouts: false, options, opcode, action }
    }

    #[test]
    fn every_command_listed_can_be_asked_for() {
        for timeouts in [false, true] {
            let list = opcodes(Query { timeouts, ..query(0, 0, 0) }, all_of_them).unwrap();
            let each = if timeouts { 20 } else { 8 };
            assert_eq!(list.len(), 4 + each * commands().count());
            assert_eq!(list[..4], (list.len() as u32 - 4).to_be_bytes());
            for descriptor in list[4..].chunks(each) {
                let action = u16::from_be_bytes([descriptor[2], descriptor[3]]);
                let with_action = descriptor[5] & SERVACTV != 0;
                let right = if with_action { 2 } else { 1 };
                let asked = Query { timeouts, ..query(right, descriptor[0], action) };
                let answer = opcodes(asked, all_of_them).unwrap();
                assert_eq!(answer[1] & 0x07, SUPPORTED);
                assert_eq!(answer[4], descriptor[0]);
                let length = usize::from(u16::from_be_bytes([answer[2], answer[3]]));
                assert_eq!(answer.len(), 4 + length + if timeouts { 12 } else { 0 });
                assert_eq!(answer[2..4], descriptor[6..8]);
                assert!(opcodes(Query { options: 3 - right, ..asked }, all_of_them).is_err());
                assert_eq!(opcodes(Query { options: 3, ..asked }, all_of_them), Ok(answer));
            }
        }
    }

    #[test]
    fn command_that_is_not_offered_is_not_supported() {
        let unsupported = Ok(vec![0, NOT_SUPPORTED, 0, 0]);
        assert_eq!(opcodes(query(1, 0x42, 0), nothing), unsupported);
        assert_eq!(opcodes(query(1, 0xC0, 0), all_of_them), unsupported);
        assert_eq!(opcodes(query(2, 0x9E, 0x1F), all_of_them), unsupported);
        assert_eq!(opcodes(query(3, 0x28, 1), all_of_them), unsupported);
        assert_eq!(opcodes(query(4, 0, 0), all_of_them), Err(Sense::invalid_cdb(2, Some(2))));
    }
}
