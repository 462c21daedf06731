//! What fio asks of an NBD socket: many requests at a time, a flush after each, or two programs at once.

use std::process::Command;

use serde::Deserialize;

use super::{Costs, Task, Wanted, from_peer};
use crate::results::Mode;
use crate::{Failure, running};

/// Between a plan's seconds and fio's milliseconds.
const MILLISECONDS: f64 = 1e3;

/// What fio tells in JSON, of all that it tells.
#[derive(Debug, Deserialize)]
struct FioReport {
    jobs: Vec<Job>,
}

#[derive(Debug, Deserialize)]
struct Job {
    error: i32,
    read: Share,
    write: Share,
}

/// What a job did in one direction.
#[derive(Debug, Deserialize)]
struct Share {
    io_bytes: u64,
    /// In milliseconds.
    runtime: u64,
}

/// Runs fio and tells.
pub(super) fn measure(task: Task, wanted: Wanted, costs: &Costs) -> Result<(), Failure> {
    let uri = from_peer("LAB_NBD")?;
    let mut command = Command::new("fio");
    command.args(["--output-format=json", "--ioengine=nbd", "--thread", "--group_reporting=0"]);
    command.arg(format!("--uri={uri}")).args(options(task, wanted));
    let running = costs.begin()?;
    let printed = running::output(&mut command)?;
    let told: FioReport = serde_json::from_str(from_brace(&printed))?;
    for job in &told.jobs {
        if job.error != 0 {
            return Err(format!("fio: error {}", job.error).into());
        }
        for (share, mode) in [(&job.write, writing(task)), (&job.read, reading(task))] {
            if share.io_bytes > 0 {
                let seconds = share.runtime as f64 / MILLISECONDS;
                running.tell(mode, wanted, share.io_bytes, seconds)?;
            }
        }
    }
    Ok(())
}

/// fio says things before its JSON.
fn from_brace(printed: &str) -> &str {
    printed.find('{').and_then(|at| printed.get(at..)).unwrap_or_default()
}

const fn writing(task: Task) -> Mode {
    if matches!(task, Task::Both) { Mode::BothWrite } else { Mode::SyncWrite }
}

const fn reading(task: Task) -> Mode {
    if matches!(task, Task::Both) { Mode::BothRead } else { Mode::RandomRead }
}

/// fio's options for a task.
fn options(task: Task, Wanted { block, depth, bytes, time }: Wanted) -> Vec<String> {
    let mut options = vec![format!("--bs={block}"), format!("--size={bytes}")];
    if let Some(time) = time {
        let seconds = time.as_secs_f64().ceil();
        options.push(format!("--runtime={seconds}"));
        // Random places are drawn again once all were visited; what is in order ends with the volume.
        if task != Task::Both {
            options.push("--time_based".to_owned());
        }
    }
    let more: &[&str] = match task {
        Task::RandomRead => &["--name=reads", "--rw=randread"],
        Task::SyncWrite => &["--name=writes", "--rw=randwrite", "--fsync=1"],
        // A job of its own for each direction, on halves of the volume; a flush ends the writes.
        _ => &["--name=writes", "--rw=write", "--end_fsync=1", "--name=reads", "--rw=read"],
    };
    options.extend(more.iter().map(|option| (*option).to_owned()));
    match task {
        Task::Both => options.push(format!("--offset={bytes}")),
        Task::RandomRead => options.push(format!("--iodepth={depth}")),
        _ => {}
    }
    options
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WANTED: Wanted =
        Wanted { block: 4096, depth: 32, bytes: 1 << 20, time: Some(Duration::from_millis(2500)) };

    #[test]
    fn each_task_is_what_it_says() {
        let reads = options(Task::RandomRead, WANTED).join(" ");
        for part in ["--bs=4096", "--runtime=3", "--time_based", "--rw=randread", "--iodepth=32"] {
            assert!(reads.contains(part), "no {part} in {reads}");
        }
        assert!(options(Task::SyncWrite, WANTED).contains(&"--fsync=1".to_owned()));
        let both = options(Task::Both, WANTED).join(" ");
        assert!(both.contains("--rw=write") && both.contains("--rw=read --offset=1048576"));
        assert!(!both.contains("time_based"), "a second pass would find what the first brought");
    }

    #[test]
    fn fio_report_is_found_behind_its_messages() {
        let printed = "fio: a remark\n{\"jobs\": [{\"error\": 0, \"read\": {\"io_bytes\": 5, \
                       \"runtime\": 7, \"iops\": 1.0}, \"write\": {\"io_bytes\": 0, \"runtime\": 0}}]}";
        let told: FioReport = serde_json::from_str(from_brace(printed)).unwrap();
        assert_eq!((told.jobs[0].read.io_bytes, told.jobs[0].read.runtime), (5, 7));
    }
}
