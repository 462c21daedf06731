//! Task management reaches what a client may write to, and no further.

use super::*;

/// Mallory may use unit 1 and alice unit 0 of the same target.
#[test]
fn a_target_reset_does_not_reach_units_that_its_client_cannot_see() {
    for by in ALL {
        let fixture = Fixture::new(by);
        let mut alice = fixture.log_in("alice", NAME, 1);
        let mut bob = fixture.log_in("bob", "iqn.2001-04.com.example:bob", 1);
        let name = "iqn.2001-04.com.example:mallory";
        let mut mallory = fixture.log_in_by(by.over_iscsi(), "mallory", (name, 1));
        let warm = mallory.manage(TaskFunction::TARGET_WARM_RESET, 0);
        assert_eq!(warm, Some(TaskResponse::COMPLETE), "{by:?}");
        assert!(is_undisturbed(&mut alice, 0), "{by:?}");
        assert!(is_undisturbed(&mut bob, 0), "{by:?}: a unit that only bob sees of the two");
        assert_eq!(bob.says(1), Some(BUS_DEVICE_RESET), "{by:?}: the unit of both");
        let cold = mallory.manage(TaskFunction::TARGET_COLD_RESET, 0);
        assert_eq!(cold, Some(TaskResponse::COMPLETE), "{by:?}");
        assert!(is_undisturbed(&mut alice, 0), "{by:?}");
        assert!(is_undisturbed(&mut bob, 0), "{by:?}: its session has a unit that mallory has not");
        assert_eq!(bob.says(1), Some(BUS_DEVICE_RESET), "{by:?}");
        assert!(is_over(&mut mallory), "{by:?}: RFC 7143, 11.5.1");
        // Bob may use all that alice uses.
        let mut bob = fixture.log_in_by(by.over_iscsi(), "bob", ("iqn.2001-04.com.example:bob", 2));
        let cold = bob.manage(TaskFunction::TARGET_COLD_RESET, 0);
        assert_eq!(cold, Some(TaskResponse::COMPLETE), "{by:?}");
        assert!(is_over(&mut alice), "{by:?}");
        fixture.end();
    }
}

/// Bob may use all that alice uses of one target, and nothing of the other. By HyperSCSI she has one connection for
/// both.
#[test]
fn a_target_reset_does_not_reach_another_target() {
    for by in ALL {
        let fixture = Fixture::with(by, PRIVATE, &WITH_PRIVATE);
        let (mut alice, c) = fixture.log_in_to_private("alice", NAME, 1);
        assert_eq!(run(&mut alice, c, &[0x16, 0, 0, 0, 0, 0], vec![]), Some(GOOD), "{by:?}");
        let mut bob = fixture.log_in_by(by.over_iscsi(), "bob", (NAME, 1));
        for function in [TaskFunction::TARGET_WARM_RESET, TaskFunction::TARGET_COLD_RESET] {
            assert_eq!(bob.manage(function, 0), Some(TaskResponse::COMPLETE), "{by:?}");
            assert!(is_undisturbed(&mut alice, c), "{by:?} {function:?}");
        }
        fixture.end();
    }
}

/// What a client does not see it resets no better by its number.
#[test]
fn a_reset_of_a_unit_that_its_client_cannot_see_is_refused() {
    for by in ISCSI {
        let fixture = Fixture::new(by);
        let mut alice = fixture.log_in("alice", NAME, 1);
        let mut mallory = fixture.log_in("mallory", NAME, 1);
        for function in [
            TaskFunction::LOGICAL_UNIT_RESET,
            TaskFunction::CLEAR_TASK_SET,
            TaskFunction::ABORT_TASK_SET,
        ] {
            let answer = mallory.manage(function, 0);
            let absent = mallory.manage(function, 7);
            assert_eq!(answer, Some(TaskResponse::LUN_DOES_NOT_EXIST), "{by:?} {function:?}");
            assert_eq!(answer, absent, "{by:?} {function:?}: as of a unit that there is nowhere");
            assert!(is_undisturbed(&mut alice, 0), "{by:?} {function:?}");
        }
        fixture.end();
    }
}

#[test]
fn read_only_client_resets_nothing_and_ends_no_tasks_of_others() {
    for by in ALL {
        let fixture = Fixture::new(by);
        let mut alice = fixture.log_in("alice", NAME, 1);
        for who in ["reader", "mixed"] {
            let mut reader = fixture.log_in(who, "iqn.2001-04.com.example:reader", 1);
            for function in [TaskFunction::LOGICAL_UNIT_RESET, TaskFunction::CLEAR_TASK_SET] {
                let answer = reader.manage(function, 0);
                let refused = Some(TaskResponse::AUTHORIZATION_FAILED);
                assert_eq!(answer, refused, "{by:?} {who} {function:?}");
            }
            let own = reader.manage(TaskFunction::ABORT_TASK_SET, 0);
            assert_eq!(own, Some(TaskResponse::COMPLETE), "{by:?} {who}");
            for function in [TaskFunction::TARGET_WARM_RESET, TaskFunction::TARGET_COLD_RESET] {
                let name = "iqn.2001-04.com.example:reader";
                let mut reader = fixture.log_in_by(by.over_iscsi(), who, (name, 1));
                let answer = reader.manage(function, 0);
                let expected = match who {
                    "reader" => TaskResponse::AUTHORIZATION_FAILED,
                    _ => TaskResponse::COMPLETE,
                };
                assert_eq!(answer, Some(expected), "{by:?} {who} {function:?}");
                assert_eq!(
                    is_over(&mut reader),
                    answer == Some(TaskResponse::COMPLETE)
                        && function == TaskFunction::TARGET_COLD_RESET
                );
            }
            assert!(is_undisturbed(&mut alice, 0), "{by:?} {who}");
            assert_eq!(write(&mut alice, 0), Some(GOOD), "{by:?} {who}");
        }
        fixture.end();
    }
}

const BUS_DEVICE_RESET: proto::scsi::sense::Additional =
    proto::scsi::sense::Additional::BUS_DEVICE_RESET;
