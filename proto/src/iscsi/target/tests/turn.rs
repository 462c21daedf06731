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
