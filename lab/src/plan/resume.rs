//! What of a plan is left to do where results have a part of it: a plan takes hours, and may be cut off.

use std::num::TryFromIntError;

use super::{Run, product};
use crate::measure::Task;
use crate::results::{Mode, Path, Row, TCP};

/// Results of the plan that are not yet taken for a part of it.
pub(super) struct EarlierResults(Vec<Row>);

impl EarlierResults {
    pub(super) fn new(plan: &str, mut rows: Vec<Row>) -> Self {
        rows.retain(|row| row.conditions.plan == plan);
        Self(rows)
    }

    /// What of `run` is left. Of peers that are started once for all their
    /// measurements that is everything until the last one is there: each comes after those before it.
    pub(super) fn rest(&mut self, run: Run) -> Result<Vec<Run>, TryFromIntError> {
        let path = run.path()?;
        if run.peer == TCP {
            let done = self.take(&run, path, Mode::Stream, run.bytes);
            return Ok(if done { vec![] } else { vec![run] });
        }
        let pairs = product(&run.tasks, &run.blocks).map(|(task, block)| (*task, *block));
        let left: Vec<_> =
            pairs.filter(|(task, block)| !self.take(&run, path, last_of(*task), *block)).collect();
        if !run.fresh {
            return Ok(if left.is_empty() { vec![] } else { vec![run] });
        }
        let alone = |(task, block)| Run { tasks: vec![task], blocks: vec![block], ..run.clone() };
        Ok(left.into_iter().map(alone).collect())
    }

    /// Whether there is one such result; each stands for one round.
    fn take(&mut self, run: &Run, path: Path, mode: Mode, block: u64) -> bool {
        let found = self.0.iter().position(|Row { conditions, measured, .. }| {
            let of_run = conditions.peer == run.peer
                && conditions.path == path
                && conditions.seed == run.link.seed
                && conditions.in_flight == run.in_flight;
            of_run && measured.mode == mode && measured.block == block
        });
        found.map(|at| self.0.remove(at)).is_some()
    }
}

/// What a task measures last: with it, all of the task is there.
const fn last_of(task: Task) -> Mode {
    match task {
        Task::Write => Mode::Write,
        Task::Read => Mode::Read,
        Task::RandomRead => Mode::RandomRead,
        Task::SyncWrite => Mode::SyncWrite,
        Task::Both => Mode::BothRead,
        Task::Filesystem | Task::Scp => Mode::Copy,
        Task::Stream => Mode::Stream,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkMaker;
    use crate::plan::Plan;
    use crate::results::example;

    const PLAN: &str = r#"
        name = "short"
        [[matrix]]
        rate = "1G"
        delays = ["8ms"]
        blocks = ["64K", "2M"]
        tasks = ["write", "read"]
        peers = ["tcp", "tgt"]
        bytes = "256M"
        rounds = 2
    "#;

    fn row(peer: &str, mode: Mode, block: u64) -> Row {
        let mut row = example(peer, 8000, block, 1e6);
        row.measured.mode = mode;
        row
    }

    /// What is left of the plan where there are `rows`: each run's peer, tasks and blocks.
    fn left(text: &str, rows: Vec<Row>) -> Vec<(String, Vec<Task>, Vec<u64>)> {
        let (name, runs) = Plan::parse(text).unwrap();
        let mut had = EarlierResults::new(&name, rows);
        let rest = runs.into_iter().flat_map(|run| had.rest(run).unwrap());
        rest.map(|run| (run.peer, run.tasks, run.blocks)).collect()
    }

    #[test]
    fn a_round_is_done_when_all_of_it_is_there() {
        assert_eq!(left(PLAN, vec![]).len(), 4);
        let mut rows = vec![row("tcp", Mode::Stream, 256 << 20)];
        for mode in [Mode::Write, Mode::Read] {
            rows.extend([65536, 2 << 20].map(|block| row("tgt", mode, block)));
        }
        let rest = left(PLAN, rows.clone());
        assert_eq!(rest.iter().map(|left| &left.0[..]).collect::<Vec<_>>(), ["tcp", "tgt"]);
        rows.pop();
        assert_eq!(left(PLAN, rows).len(), 3, "peers that are started once measure everything");
    }

    #[test]
    fn of_peers_that_are_started_each_time_only_what_is_missing_is_measured() {
        let text = PLAN.replace("rounds = 2", "fresh = true").replace("\"tcp\", ", "");
        let rest = left(&text, vec![row("tgt", Mode::Write, 2 << 20)]);
        let missing = [(Task::Write, 65536), (Task::Read, 65536), (Task::Read, 2 << 20)];
        assert_eq!(rest, missing.map(|(task, block)| ("tgt".into(), vec![task], vec![block])));
    }

    #[test]
    fn results_under_other_conditions_count_for_nothing() {
        let text = PLAN.replace("rounds = 2", "fresh = true").replace("\"tcp\", ", "");
        let mut others = [(); 5].map(|()| row("tgt", Mode::Write, 65536));
        others[0].conditions.plan = "long".into();
        others[1].conditions.peer = "longhaul".into();
        others[2].conditions.path.delay_us = 64_000;
        others[3].conditions.in_flight = "4".into();
        others[4].conditions.path.by = LinkMaker::Netem;
        assert_eq!(left(&text, others.to_vec()).len(), 4);
    }
}
