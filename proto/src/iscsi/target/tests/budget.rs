//! What a session may hold.

use super::*;
use crate::scsi::Cdb;

/// The allowance bounds what one session can make the target hold.
#[test]
fn solicited_data_are_granted_in_turn() {
    let mut pair =
        Pair::new(Parameters { max_burst: (1 << 24) - 1, max_outstanding_r2t: 64, ..parameters() });
    let len = 20 << 20;
    for itt in 1..=2 {
        pair.write(itt, len, &[], true);
        let task = pair.command().task;
        assert_eq!(pair.session.want_data(task, len), None);
    }
    let r2ts: Vec<R2t> = headers(pair.received());
    assert!(r2ts.len() == 2 && r2ts.iter().all(|r2t| r2t.itt == 1));
    pair.manage(TaskFunction::ABORT_TASK, 1);
    let next: Vec<u32> = pair
        .received()
        .iter()
        .filter_map(|pdu| R2t::try_from(pdu.header).ok())
        .map(|r2t| r2t.itt)
        .collect();
    assert_eq!(next, [2, 2]);
}

/// A write of 16 KiB, the first 4 KiB of which come unsolicited: 1 KiB with the command.
fn bursting(pair: &mut Pair, itt: u32) {
    let cmd_sn = pair.next_cmd_sn();
    let header = ScsiCommand { write: true, itt, expected_len: 16 << 10, cmd_sn, ..<_>::default() };
    pair.send(header, &[7; 1024]);
}

/// What the budget has no room for is refused, after all of it has come, and what is refused holds nothing.
#[test]
fn unsolicited_data_beyond_the_budget_are_refused() {
    let budget = Arc::new(Budget::new(8 << 10, 0));
    let mut other = Pair::within(parameters(), false, Arc::clone(&budget), WINDOW);
    let mut pair = Pair::within(parameters(), false, budget, WINDOW);
    bursting(&mut other, 1);
    bursting(&mut pair, 1);
    bursting(&mut pair, 2);
    let task = pair.command().task;
    assert!(pair.session.poll_event().is_none(), "the second is not delivered");
    assert!(pair.received().is_empty(), "nor answered before its burst has ended");
    let rest = |itt| DataOut {
        is_final: true,
        itt,
        ttt: NO_TAG,
        buffer_offset: 1024,
        ..DataOut::default()
    };
    pair.send(rest(2), &[7; 3072]);
    let refused: ScsiResponse = pair.one();
    assert_eq!((refused.itt, refused.status), (2, Status::TaskSetFull as u8));
    // The first goes on, and when it is over there is room again.
    assert_eq!(pair.session.want_data(task, 4096), None);
    pair.send(rest(1), &[7; 3072]);
    assert!(matches!(pair.session.poll_event(), Some(Event::Execute { .. })));
    pair.reply(task, 0);
    let _: ScsiResponse = pair.one();
    bursting(&mut pair, 3);
    assert_eq!(pair.command().parsed.cdb, Ok(Cdb::TestUnitReady));
}

/// The window narrows as the budget is used up, down to what the session may hold anyway.
#[test]
fn the_window_follows_the_budget() {
    let budget = Arc::new(Budget::new(16 << 10, 8 << 10));
    let mut pair = Pair::within(parameters(), false, Arc::clone(&budget), 1);
    assert_eq!(pair.width_after_a_read(), 6);
    let mut greedy = Pair::within(parameters(), false, budget, WINDOW);
    (0..6).for_each(|itt| bursting(&mut greedy, itt));
    // What was allowed stays so (RFC 7143, 4.2.2.1), and is used up.
    let widths: Vec<_> = (0..6).map(|_| pair.width_after_a_read()).collect();
    assert_eq!(widths, [5, 4, 3, 2, 2, 2]);
    drop(greedy);
    assert_eq!(pair.width_after_a_read(), 6);
}

/// The front says how much solicited data there may be, and learns how much more is wanted.
#[test]
fn solicited_data_wait_until_they_are_allowed() {
    let mut pair = Pair::new(parameters());
    pair.session.allow_solicited(0);
    pair.write(1, 1000, &[], true);
    let task = pair.command().task;
    assert_eq!(pair.session.want_data(task, 1000), None);
    assert!(pair.received().is_empty());
    assert_eq!((pair.session.solicited(), pair.session.solicited_wanted()), (0, Some(1000)));
    pair.session.allow_solicited(1000);
    let r2t: R2t = pair.one();
    assert_eq!(r2t.desired_len, 1000);
    assert_eq!((pair.session.solicited(), pair.session.solicited_wanted()), (1000, None));
}
