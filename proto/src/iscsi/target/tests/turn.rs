//! Order: by CmdSN, by task attribute, and within the window.

use super::*;

/// RFC 7143, 4.2.2.1.
#[test]
fn commands_are_delivered_in_order_and_ignored_outside_the_window() {
    let mut pair = Pair::new(parameters());
    let (first, second) = (pair.next_cmd_sn(), pair.next_cmd_sn());
    let command = |itt, cmd_sn| ScsiCommand { is_final: true, itt, cmd_sn, ..<_>::default() };
    pair.send(command(2, second), &[]);
    pair.send(command(9, first.wrapping_sub(1)), &[]);
    pair.send(command(9, first.wrapping_add(WINDOW)), &[]);
    assert!(pair.session.poll_event().is_none());
    pair.send(command(1, first), &[]);
    let (one, two) = (pair.command(), pair.command());
    for task in [one.task, two.task] {
        pair.session.want_data(task, 0);
        pair.reply(task, 0);
    }
    let itts: Vec<_> = headers::<ScsiResponse>(pair.received()).iter().map(|r| r.itt).collect();
    assert_eq!(itts, [1, 2]);
    assert!(pair.received().is_empty(), "what lies outside is not even rejected");
}

#[test]
fn the_window_closes_when_all_places_are_taken() {
    let mut pair = Pair::new(parameters());
    for itt in 0..WINDOW {
        pair.read(itt, 0);
        let task = pair.command().task;
        pair.session.want_data(task, 0);
    }
    pair.send(NopOut { immediate: true, itt: 0x800, ttt: NO_TAG, ..<_>::default() }, &[]);
    let nop: crate::iscsi::header::NopIn = pair.one();
    assert_eq!(nop.max_cmd_sn, nop.exp_cmd_sn.wrapping_sub(1));
    pair.read(WINDOW, 0);
    assert!(pair.session.poll_event().is_none());
}

#[test]
fn immediate_commands_are_bounded() {
    let mut pair = Pair::new(parameters());
    for itt in 0..=IMMEDIATE_MAX as u32 {
        let command = ScsiCommand {
            immediate: true,
            is_final: true,
            itt,
            cmd_sn: pair.cmd_sn,
            ..<_>::default()
        };
        pair.send(command, &[]);
    }
    assert_eq!(pair.reject_reason(), RejectReason::IMMEDIATE_COMMAND_REJECT);
}

#[test]
fn a_tag_in_use_is_rejected() {
    let mut pair = Pair::new(parameters());
    pair.read(1, 0);
    pair.read(1, 0);
    assert_eq!(pair.reject_reason(), RejectReason::TASK_IN_PROGRESS);
}

/// SAM-5, 8.6.
#[test]
fn an_ordered_command_is_a_barrier() {
    let mut pair = Pair::new(parameters());
    let mut itt = 0;
    let mut send = |pair: &mut Pair, attribute| {
        itt += 1;
        let cmd_sn = pair.next_cmd_sn();
        pair.send(ScsiCommand { is_final: true, itt, cmd_sn, attribute, ..<_>::default() }, &[]);
    };
    send(&mut pair, TaskAttribute::SIMPLE);
    send(&mut pair, TaskAttribute::ORDERED);
    send(&mut pair, TaskAttribute::SIMPLE);
    send(&mut pair, TaskAttribute::HEAD_OF_QUEUE);
    let (simple, head) = (pair.command(), pair.command());
    assert_eq!(head.attribute, TaskAttribute::HEAD_OF_QUEUE);
    assert!(pair.session.poll_event().is_none());
    for before in [simple, head] {
        pair.session.want_data(before.task, 0);
        pair.reply(before.task, 0);
    }
    let ordered = pair.command();
    assert_eq!(ordered.attribute, TaskAttribute::ORDERED);
    assert!(pair.session.poll_event().is_none());
    pair.manage(TaskFunction::ABORT_TASK, 2);
    assert_eq!(pair.command().attribute, TaskAttribute::SIMPLE, "the barrier is gone");
}

const WRITE_16: u8 = 0x8A;

/// A session that stops at a failure.
fn stopping() -> Pair {
    Pair::new(Parameters { stops_at_failure: true, ..parameters() })
}

/// A write that runs, a flush that waits for it, and a write behind both (docs/spec/ordered-writes.md).
fn two_groups(pair: &mut Pair) -> TaskId {
    const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    let commands = [
        (1, WRITE_16, TaskAttribute::SIMPLE),
        (2, SYNCHRONIZE_CACHE_16, TaskAttribute::ORDERED),
        (3, WRITE_16, TaskAttribute::SIMPLE),
    ];
    for (itt, operation, attribute) in commands {
        let (cmd_sn, mut cdb) = (pair.next_cmd_sn(), [0; 16]);
        cdb[0] = operation;
        let command = ScsiCommand { is_final: true, itt, cmd_sn, attribute, cdb, ..<_>::default() };
        pair.send(command, &[]);
    }
    let first = pair.command().task;
    pair.session.want_data(first, 0);
    assert!(pair.session.poll_event().is_none());
    first
}

fn fail(pair: &mut Pair, task: TaskId) {
    let (status, data, sense) =
        (Status::CheckCondition, Pieces::new(), Bytes::from_static(&[0x70]));
    pair.session.complete(task, Reply { status, data, sense, residual: Residual::None });
}

#[test]
fn nothing_begins_behind_a_failed_write_of_a_session_that_stops() {
    let mut pair = stopping();
    let first = two_groups(&mut pair);
    fail(&mut pair, first);
    assert!(matches!(pair.session.poll_event(), Some(Event::Close(Ending::Stopped))));
    let response: ScsiResponse = pair.one();
    assert_eq!(
        (response.itt, response.status),
        (1, Status::CheckCondition as u8),
        "it is told why"
    );
    let cmd_sn = pair.next_cmd_sn();
    pair.send(ScsiCommand { is_final: true, itt: 4, cmd_sn, ..<_>::default() }, &[]);
    assert!(pair.session.poll_event().is_none(), "what comes later is not taken");

    let mut pair = Pair::new(parameters());
    let first = two_groups(&mut pair);
    fail(&mut pair, first);
    assert_eq!(pair.command().attribute, TaskAttribute::ORDERED, "others go on");
}

#[test]
fn nothing_begins_behind_a_write_that_another_session_has_ended() {
    let mut pair = stopping();
    let first = two_groups(&mut pair);
    pair.session.clear(Some(0), 7);
    assert!(matches!(pair.session.poll_event(), Some(Event::Abort(task)) if task == first));
    assert!(pair.session.poll_event().is_none());
    pair.reply(first, 0);
    assert!(matches!(pair.session.poll_event(), Some(Event::Cleared { ticket: 7 })));
    assert!(matches!(pair.session.poll_event(), Some(Event::Close(Ending::Stopped))));
    assert!(pair.session.poll_event().is_none());
}

/// An ordered write, for whose data there is no room and more of which are to come, and a write behind it.
fn write_without_room_and_another() -> Pair {
    let parameters = Parameters { stops_at_failure: true, ..parameters() };
    let mut pair = Pair::within(parameters, false, Arc::new(Budget::new(0, 0)), WINDOW);
    let mut cdb = [0; 16];
    cdb[0] = WRITE_16;
    let (cmd_sn, expected_len, write) = (pair.next_cmd_sn(), 4096, true);
    let attribute = TaskAttribute::ORDERED;
    let command =
        ScsiCommand { write, itt: 1, expected_len, cmd_sn, attribute, cdb, ..<_>::default() };
    pair.send(command, &[7; 1000]);
    let cmd_sn = pair.next_cmd_sn();
    pair.send(ScsiCommand { is_final: true, itt: 2, cmd_sn, cdb, ..<_>::default() }, &[]);
    pair
}

/// It is answered only once the initiator has sent all of its data, which may take long; what is behind it comes by other
/// connections meanwhile.
#[test]
fn nothing_begins_behind_a_write_that_is_going_to_fail() {
    let mut pair = write_without_room_and_another();
    assert!(pair.session.poll_event().is_none(), "the one behind it waits");
    pair.data_out(1, NO_TAG, 0, 1000, &[7; 3096], true);
    assert!(matches!(pair.session.poll_event(), Some(Event::Close(Ending::Stopped))));
    let response: ScsiResponse = pair.one();
    assert_eq!((response.itt, response.status), (1, Status::TaskSetFull as u8));
}

/// Nothing would ever begin again.
#[test]
fn session_ends_with_the_abort_of_a_write_that_is_going_to_fail() {
    let mut pair = write_without_room_and_another();
    pair.manage(TaskFunction::ABORT_TASK, 1);
    assert!(matches!(pair.session.poll_event(), Some(Event::Close(Ending::Stopped))));
    assert!(pair.session.poll_event().is_none());
}

/// A failed read says nothing of what was written, and commands that only ask are refused every day.
#[test]
fn session_that_stops_goes_on_after_other_failures() {
    let mut pair = stopping();
    pair.read(1, 0);
    let task = pair.command().task;
    pair.session.want_data(task, 0);
    fail(&mut pair, task);
    assert!(pair.session.poll_event().is_none());
    pair.read(2, 0);
    pair.command();
}

fn read_16(pair: &mut Pair, itt: u32, attribute: TaskAttribute) {
    const READ_16: u8 = 0x88;
    let (cmd_sn, mut cdb) = (pair.next_cmd_sn(), [0; 16]);
    cdb[0] = READ_16;
    let (is_final, read) = (true, true);
    let command = ScsiCommand { is_final, read, itt, cmd_sn, attribute, cdb, ..<_>::default() };
    pair.send(command, &[]);
}

/// On a slow disk a read would wait for the flush of each group that came before it, and keep those behind it waiting.
#[test]
fn reads_of_a_session_that_stops_have_no_place_in_the_order() {
    let mut pair = stopping();
    let first = two_groups(&mut pair);
    read_16(&mut pair, 4, TaskAttribute::SIMPLE);
    let beside = pair.command().task;
    pair.session.want_data(beside, 0);
    pair.reply(first, 0);
    let flush = pair.command();
    assert_eq!(flush.attribute, TaskAttribute::ORDERED, "it does not wait for the read");
    read_16(&mut pair, 5, TaskAttribute::ORDERED);
    assert!(pair.session.poll_event().is_none(), "who asks for a place has one");
    pair.session.want_data(flush.task, 0);
    pair.reply(beside, 0);
    pair.reply(flush.task, 0);
    assert_eq!(pair.command().attribute, TaskAttribute::SIMPLE, "the write behind the flush");
    assert!(pair.session.poll_event().is_none(), "and not the read that waits for it");
}

/// A tape is read from where the command before has left the head.
#[test]
fn read_of_a_sequential_unit_has_a_place_in_every_session() {
    let mut pair = stopping();
    pair.session.set_sequential(BTreeMap::from([(0, Sequence::Ended)]));
    read_16(&mut pair, 1, TaskAttribute::SIMPLE);
    let first = pair.command().task;
    pair.session.want_data(first, 0);
    read_16(&mut pair, 2, TaskAttribute::SIMPLE);
    assert!(pair.session.poll_event().is_none(), "it has overtaken the first");
    pair.reply(first, 0);
    pair.command();
}

/// What comes before its turn is kept only while it is small: on one connection nothing does.
#[test]
fn large_data_before_their_turn_are_as_if_they_had_never_come() {
    let mut pair = Pair::new(parameters());
    let (first, second) = (pair.next_cmd_sn(), pair.next_cmd_sn());
    let nop = |itt, cmd_sn| NopOut { itt, ttt: NO_TAG, cmd_sn, ..<_>::default() };
    pair.send(nop(2, second), &vec![7; AHEAD_MAX + 1]);
    pair.send(nop(1, first), &vec![7; AHEAD_MAX + 1]);
    let echo: crate::iscsi::header::NopIn = pair.one();
    assert_eq!((echo.itt, echo.exp_cmd_sn), (1, second));
}

/// RFC 7143, 4.2.2.2: ExpStatSN tells which responses the initiator has seen.
#[test]
fn depth_counts_commands_without_a_response_and_responses_that_were_not_seen() {
    let mut pair = Pair::new(parameters());
    let command = |pair: &mut Pair, itt, exp_stat_sn| {
        let cmd_sn = pair.next_cmd_sn();
        pair.send(ScsiCommand { is_final: true, itt, cmd_sn, exp_stat_sn, ..<_>::default() }, &[]);
        pair.command().task
    };
    let tasks: Vec<_> = (0..3).map(|itt| command(&mut pair, itt, 100)).collect();
    assert_eq!(pair.session.depth(), 2);
    for task in tasks {
        pair.session.want_data(task, 0);
        pair.reply(task, 0);
    }
    command(&mut pair, 4, 101);
    assert_eq!(pair.session.depth(), 2, "two of three were not seen");
    command(&mut pair, 5, 103);
    assert_eq!(pair.session.depth(), 1);
}
