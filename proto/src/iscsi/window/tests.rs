use proptest::prelude::*;

use super::*;

fn window(expected: u32, room: u32) -> CommandWindow<u32> {
    let mut window = CommandWindow::new(Serial(expected));
    window.open(room);
    window
}

#[test]
fn order_wraps() {
    assert!(Serial(u32::MAX).is_before(Serial(0)));
    assert!(Serial(0).is_before(Serial(0x7fff_ffff)));
    assert!(!Serial(0).is_before(Serial(0x8000_0000)));
    assert!(!Serial(5).is_before(Serial(5)));
}

#[test]
fn a_closed_window_ignores_everything() {
    let mut window = window(10, 0);
    assert_eq!(window.last(), Serial(9));
    assert_eq!(window.admit(Serial(10), 0), Admission::Ignored);
    assert_eq!(window.expected(), Serial(10));
}

#[test]
fn outside_is_ignored_on_both_sides_and_across_the_wrap() {
    let mut window = window(u32::MAX, 3);
    assert_eq!(window.last(), Serial(1));
    assert_eq!(window.admit(Serial(u32::MAX - 1), 0), Admission::Ignored);
    assert_eq!(window.admit(Serial(2), 0), Admission::Ignored);
    assert_eq!(window.admit(Serial(1), 1), Admission::Held);
    assert_eq!(window.admit(Serial(u32::MAX), 2), Admission::Next(2));
    assert_eq!(window.pop_ready(), None);
    assert_eq!(window.admit(Serial(0), 3), Admission::Next(3));
    assert_eq!(window.pop_ready(), Some(1));
    assert_eq!((window.expected(), window.last()), (Serial(2), Serial(1)));
}

#[test]
fn skipped_command_does_not_stop_the_rest() {
    let mut window = window(0, 8);
    assert_eq!(window.admit(Serial(2), 2), Admission::Held);
    assert!(window.skip(Serial(1)));
    assert_eq!(window.admit(Serial(1), 1), Admission::Ignored);
    assert_eq!(window.admit(Serial(0), 0), Admission::Next(0));
    assert_eq!(window.pop_ready(), Some(2));
    assert!(!window.skip(Serial(20)));
}

#[test]
fn held_commands_can_be_dropped() {
    let mut window = window(0, 8);
    assert_eq!(window.admit(Serial(1), 1), Admission::Held);
    assert_eq!(window.admit(Serial(2), 2), Admission::Held);
    window.skip_held(|command| *command == 1);
    assert_eq!(window.admit(Serial(0), 0), Admission::Next(0));
    assert_eq!(window.pop_ready(), Some(2));
    assert_eq!(window.expected(), Serial(3));
}

proptest! {
    /// Whatever comes, in whatever order and however often: delivery is each number once, in order,
    /// never beyond what was allowed, and memory stays within the room.
    #[test]
    fn delivery_is_in_order_once(
        start: u32,
        steps in proptest::collection::vec((0u32..40, 0u32..4), 1..300),
    ) {
        let mut window = window(start, 0);
        let mut delivered = start;
        let mut last = window.last();
        for (offset, opened) in steps {
            window.open(opened * 8);
            prop_assert!(!window.last().is_before(last), "MaxCmdSN went back");
            last = window.last();
            let sn = Serial(start).plus(offset);
            if let Admission::Next(sn) = window.admit(sn, sn.0) {
                prop_assert_eq!(sn, delivered);
                delivered = delivered.wrapping_add(1);
                while let Some(sn) = window.pop_ready() {
                    prop_assert_eq!(sn, delivered);
                    delivered = delivered.wrapping_add(1);
                }
            }
            prop_assert_eq!(window.expected(), Serial(delivered));
            prop_assert!(window.waiting.len() <= window.room as usize);
        }
    }
}

#[test]
fn missing_commands_before_a_number_count_as_received() {
    let mut window = window(u32::MAX - 1, 8);
    assert_eq!(window.admit(Serial(0), 7), Admission::Held);
    assert!(window.awaits(Serial(1)) && !window.awaits(Serial(0)) && !window.awaits(Serial(6)));
    window.skip_before(Serial(2));
    assert_eq!(window.pop_ready(), Some(7));
    assert_eq!(window.pop_ready(), None);
    assert_eq!((window.expected(), window.last()), (Serial(2), Serial(5)));
    window.skip_before(Serial(1));
    window.skip_before(Serial(100));
    assert_eq!(window.pop_ready(), None);
    assert_eq!(window.expected(), Serial(6), "no further than the window");
}
