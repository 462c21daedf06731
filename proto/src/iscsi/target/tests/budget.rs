//! What a session may hold.

use std::sync::{Arc, Weak};

use super::*;

const MIB: u32 = 1 << 20;

/// A session with R2Ts as long as Longhaul agrees on.
fn long(pair_most: u64) -> Pair {
    let parameters =
        Parameters { max_burst: (1 << 24) - 1, max_outstanding_r2t: 64, ..parameters() };
    let mut pair = Pair::new(parameters);
    pair.session.allow_solicited(pair_most);
    pair
}

fn begin_write(pair: &mut Pair, itt: u32, len: u32) -> TaskId {
    pair.write(itt, len, &[], true);
    let task = pair.command().task;
    assert_eq!(pair.session.want_data(task, len), None);
    task
}

/// Answers an R2T in PDUs of 1 MiB.
fn answer(pair: &mut Pair, r2t: &R2t) {
    for (at, data_sn) in (0..r2t.desired_len).step_by(MIB as usize).zip(0..) {
        let len = MIB.min(r2t.desired_len - at);
        let last = at + len == r2t.desired_len;
        let data = vec![7; len as usize];
        pair.data_out(r2t.itt, r2t.ttt, data_sn, r2t.buffer_offset + at, &data, last);
    }
}

/// Answers all R2Ts, round trip by round trip; how much was asked for in each.
fn round_trips(pair: &mut Pair) -> Vec<u32> {
    let mut rounds = Vec::new();
    loop {
        let r2ts: Vec<_> =
            pair.received().iter().filter_map(|pdu| R2t::try_from(pdu.header).ok()).collect();
        if r2ts.is_empty() {
            return rounds;
        }
        rounds.push(r2ts.iter().map(|r2t| r2t.desired_len).sum::<u32>() / MIB);
        r2ts.iter().for_each(|r2t| answer(pair, r2t));
    }
}

/// One that sends nothing holds 1 MiB, whatever it announces; one that sends is soon asked for all at once.
#[test]
fn solicited_data_are_reserved_ahead_of_what_has_come() {
    let mut pair = long(32 << 20);
    begin_write(&mut pair, 1, 32 * MIB);
    begin_write(&mut pair, 2, 32 * MIB);
    assert_eq!(pair.session.solicited(), u64::from(MIB));
    assert_eq!(pair.session.solicited_later(), u64::from(31 * MIB));
    // What it has sent, and as much again.
    assert_eq!(round_trips(&mut pair), [1, 2, 4, 8, 16, 1]);
    assert_eq!(pair.session.solicited_later(), 0);
    let Some(Event::Execute { command, data }) = pair.session.poll_event() else { panic!() };
    assert_eq!(data.iter().map(Bytes::len).sum::<usize>(), 32 << 20);
    pair.reply(command.task, 0);
    assert_eq!(round_trips(&mut pair), [32]);
}

/// The next task begins when the one before it has all it needs, so that a session holds a part for one at most.
#[test]
fn solicited_data_are_granted_in_turn() {
    let mut pair = long(4 << 20);
    begin_write(&mut pair, 1, 3 * MIB);
    begin_write(&mut pair, 2, MIB);
    begin_write(&mut pair, 3, MIB);
    let asked: Vec<R2t> = headers(pair.received());
    assert_eq!(asked.iter().map(|r2t| (r2t.itt, r2t.desired_len)).collect::<Vec<_>>(), [(1, MIB)]);
    answer(&mut pair, &asked[0]);
    let asked: Vec<R2t> = headers(pair.received());
    assert_eq!(
        asked.iter().map(|r2t| (r2t.itt, r2t.desired_len)).collect::<Vec<_>>(),
        [(1, 2 * MIB)]
    );
    answer(&mut pair, &asked[0]);
    // The first holds its data until it has run; there is room for one of the others.
    let asked: Vec<R2t> = headers(pair.received());
    assert_eq!(asked.iter().map(|r2t| r2t.itt).collect::<Vec<_>>(), [2]);
    assert_eq!(
        pair.session.solicited_wanted(),
        Some(Wanted { now: u64::from(MIB), later: 0 }),
        "the other waits for memory"
    );
}

/// Lets the time go on, answering pings, as long as the session lives; when it ended, and why.
fn until_it_ends(pair: &mut Pair, most: Duration) -> Option<(Duration, Ending)> {
    while pair.session.deadline() < Time::ZERO + most {
        pair.now = pair.session.deadline();
        pair.session.handle_timeout(pair.now);
        if let Some(Event::Close(ending)) = pair.session.poll_event() {
            return Some((pair.now.since_origin(), ending));
        }
        pair.received();
        let (ttt, cmd_sn) = (0, pair.cmd_sn);
        pair.send(NopOut { immediate: true, itt: NO_TAG, ttt, cmd_sn, ..<_>::default() }, &[]);
    }
    None
}

const HOUR: Duration = Duration::from_secs(3600);

/// An initiator that answers pings and not R2Ts holds memory that others need.
#[test]
fn session_that_answers_no_r2t_ends() {
    let mut pair = long(32 << 20);
    begin_write(&mut pair, 1, 32 * MIB);
    // The first look at the clock, and the patience from there.
    let ended = Some((Duration::from_secs(45), Ending::Stalled));
    assert_eq!(until_it_ends(&mut pair, HOUR), ended);
}

/// Whatever it asks for meanwhile.
#[test]
fn session_that_goes_on_asking_and_sends_no_data_ends() {
    let mut pair = long(32 << 20);
    begin_write(&mut pair, 1, 32 * MIB);
    let mut ended = None;
    for itt in 2..9 {
        ended = until_it_ends(&mut pair, Duration::from_secs(u64::from(itt) * 10));
        if ended.is_some() {
            break;
        }
        begin_write(&mut pair, itt, 512);
    }
    assert_eq!(ended.map(|(_, ending)| ending), Some(Ending::Stalled));
}

/// One whose data come slowly goes on, also if one PDU takes longer than the patience.
#[test]
fn session_whose_data_come_slowly_goes_on() {
    let mut pair = long(32 << 20);
    begin_write(&mut pair, 1, 2 * MIB);
    let r2t: R2t = pair.one();
    for at in 0..8 {
        let seconds = Duration::from_secs(u64::from(at) * 29);
        assert_eq!(until_it_ends(&mut pair, seconds), None, "part {at}");
        if at % 2 == 0 {
            pair.session.receiving();
        } else {
            let offset = (at / 2) * 1024;
            pair.data_out(1, r2t.ttt, at / 2, offset, &[7; 1024], false);
        }
    }
}

/// A session that waits for nothing but its turn for memory, or for the front, is not stalled.
#[test]
fn session_that_is_not_asked_for_data_is_not_stalled() {
    let mut pair = long(0);
    begin_write(&mut pair, 1, 32 * MIB);
    assert_eq!(until_it_ends(&mut pair, HOUR), None);
    let mut pair = long(32 << 20);
    begin_write(&mut pair, 1, MIB);
    let r2t: R2t = pair.one();
    answer(&mut pair, &r2t);
    assert!(matches!(pair.session.poll_event(), Some(Event::Execute { .. })));
    assert_eq!(until_it_ends(&mut pair, HOUR), None);
}

/// Data that were announced and do not come take from the others what is beyond the share of the session.
#[test]
fn session_that_does_not_send_what_it_announced_ends_if_it_holds_more_than_its_share() {
    for (bursts, ends) in [(2, false), (3, true)] {
        let budget = Arc::new(Budget::new(16 << 10, 8 << 10));
        let mut other = Pair::within(parameters(), false, Arc::clone(&budget), 1);
        let mut pair = Pair::within(parameters(), false, budget, WINDOW);
        (0..bursts).for_each(|itt| bursting(&mut pair, itt));
        while pair.session.poll_event().is_some() {}
        let ended = until_it_ends(&mut pair, HOUR).map(|(_, ending)| ending);
        assert_eq!(ended, ends.then_some(Ending::Stalled), "{bursts}");
        drop(pair);
        assert_eq!(other.width_after_a_read(), 6);
    }
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
    assert_eq!(pair.command().cdb[0], 0x00);
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
    let wanted = Some(Wanted { now: 1000, later: 0 });
    assert_eq!((pair.session.solicited(), pair.session.solicited_wanted()), (0, wanted));
    pair.session.allow_solicited(1000);
    let r2t: R2t = pair.one();
    assert_eq!(r2t.desired_len, 1000);
    assert_eq!((pair.session.solicited(), pair.session.solicited_wanted()), (1000, None));
}

/// Data beyond what the command block asks for are not kept by who keeps the rest.
#[test]
fn little_that_is_wanted_of_much_leaves_its_buffer() {
    for (wanted, stays) in [(512, false), (2047, false), (2048, true), (4096, true)] {
        let mut pair = Pair::new(parameters());
        let buffer = Bytes::from((0..4096).map(|at| at as u8).collect::<Vec<_>>());
        let cmd_sn = pair.next_cmd_sn();
        let (is_final, write, expected_len) = (true, true, 4096);
        let command =
            ScsiCommand { is_final, write, itt: 1, expected_len, cmd_sn, ..ScsiCommand::default() };
        let pdu = Pdu::with_data(command, buffer.clone());
        pair.session.handle(pair.now, CID, Frame::Pdu(pdu));
        let task = pair.command().task;
        let data = pair.session.want_data(task, wanted).expect("all of it is there");
        assert_eq!(data.concat(), buffer[..wanted as usize]);
        assert_eq!(data[0].as_ptr() == buffer.as_ptr(), stays, "{wanted}");
    }
}

/// A buffer of 1 MiB, and who shows that it is still there.
fn watched() -> (Bytes, Weak<Vec<u8>>) {
    struct Shared(Arc<Vec<u8>>);
    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let bytes = Arc::new(vec![7; MIB as usize]);
    let watch = Arc::downgrade(&bytes);
    (Bytes::from_owner(Shared(bytes)), watch)
}

/// What waits to be sent is counted by its length, so that it may not keep much more.
#[test]
fn ping_that_is_cut_leaves_its_buffer() {
    let mut pair = Pair::new(parameters());
    let (buffer, watch) = watched();
    let ping = NopOut { immediate: true, itt: 5, ttt: NO_TAG, ..<_>::default() };
    pair.session.handle(pair.now, CID, Frame::Pdu(Pdu::with_data(ping, buffer)));
    assert!(pair.session.unsent() > 8192, "it is echoed");
    assert!(watch.upgrade().is_none(), "1 MiB is kept for {} bytes", pair.session.unsent());
}

#[test]
fn answer_that_is_cut_leaves_its_buffer() {
    let mut pair = Pair::new(parameters());
    pair.read(1, 1028);
    let task = pair.command().task;
    let (buffer, watch) = watched();
    let mut data = Pieces::new();
    data.push(buffer);
    pair.session.complete(
        task,
        Reply { status: Status::Good, data, sense: Bytes::new(), residual: Residual::None },
    );
    assert!(pair.session.unsent() > 1028, "it is answered");
    assert!(watch.upgrade().is_none(), "1 MiB is kept for {} bytes", pair.session.unsent());
}
