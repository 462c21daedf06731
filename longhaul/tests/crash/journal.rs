//! An attachment with a journal, killed at random instants under load, its server as well: what an NBD flush or FUA has
//! acknowledged is found by the next attachment with the same journal, which sends it by itself.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::client::kill_under_load;
use crate::common::{LONGHAUL, Running};
use crate::pause;

fn attach(home: &Path, portal: SocketAddr, socket: &str) -> Running {
    let mut command = Command::new(LONGHAUL);
    let uri = format!("iscsi://{portal}/iqn.2026-11.dev.longhaul:disk/0");
    command.args(["attach", &uri, "--nbd", socket, "--journal", "journal,size=8M"]);
    let client = Running::start(command.current_dir(home));
    client.line().expect("the attachment is ready");
    client
}

#[test]
fn journal_keeps_flushed_writes_through_kills_of_the_client() {
    let home = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    kill_under_load(home.path(), attach, |mut round, client| {
        round.wait_for_answers();
        let with_server = round.kill % 4 == 3;
        if with_server {
            // The server goes first: flushes succeed while it is away, and reads of what only it has wait.
            round.kill_server();
            pause(round.random, Duration::from_millis(50));
        }
        client.kill();
        if with_server {
            round.start_server();
        }
    });
}
