//! The command line.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::{ExitCode, exit};
use std::time::Duration;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::cipher_pool::fix_threads;
use crate::command::enrol::GivenInvitation;
use crate::command::{
    admin, attach, cat, cd, check, clients, cluster, config, copy, discover, doctor, get, help,
    identity, info, invite, journal, key, ls, man_pages, media, mirror, mount, named,
    outlast_stray_signals, reload, replay, revoke, serve, standard_output, status, tape, tune,
    umount, upgrade, volumes,
};
use crate::failure::{OrFail, Outcome, print_error};
use crate::log::{Log, log_failure};
use crate::luks;
use crate::mount_helper;
use crate::printable::OneLine;
use crate::reconnect_limit::ReconnectLimit;
use crate::secret;
use crate::size::Size;

/// Encrypted disks that live far away, over standard iSCSI.
#[derive(Debug, Parser)]
#[command(name = "longhaul", version, max_term_width = 100, after_help = EXAMPLES)]
#[command(disable_help_subcommand = true)]
struct Cli {
    /// Extra encryption threads [default: processors minus one]
    #[arg(long, global = true, help_heading = ENCRYPTION, value_name = "THREADS", value_parser = clap::value_parser!(u16).range(..=256))]
    cipher_threads: Option<u16>,
    /// The most memory that deriving the key of an encrypted volume may take; 1G, if not given
    #[arg(long, global = true, help_heading = ENCRYPTION, value_name = "SIZE")]
    key_memory: Option<Size>,
    /// How long deriving the key of an encrypted volume may take, by estimate, such as 2h or forever; 15m, if not given
    #[arg(long, global = true, help_heading = ENCRYPTION, value_name = "TIME")]
    key_time: Option<ReconnectLimit>,
    #[command(flatten)]
    log: Log,
    #[command(subcommand)]
    command: Command,
}

/// The heading of what encryption may take.
const ENCRYPTION: &str = "Encryption";

const EXAMPLES: &str = "\
Volumes are named by a URI:
  memory:64M    file:/srv/backup.img    device:/dev/sdb    iscsi://HOST[:PORT]/IQN/LUN

The twelve most usual commands: longhaul help quick

Exit codes: 0 done, 1 failed, 2 wrong usage.";

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Check(check::Args),
    Reload(reload::Args),
    Invite(invite::Args),
    Clients(clients::Args),
    Revoke(revoke::Args),
    Config(config::Args),
    Admin(admin::Args),
    Status(status::Args),
    Info(info::Args),
    Copy(copy::Args),
    Ls(ls::Args),
    Get(get::Args),
    Cat(cat::Args),
    Discover(discover::Args),
    Doctor(doctor::Args),
    Key(key::Args),
    Identity(identity::Args),
    Attach(attach::Args),
    Mount(mount::Args),
    Umount(umount::Args),
    Upgrade(upgrade::Args),
    Volumes(volumes::Args),
    Replay(replay::Args),
    Journal(journal::Args),
    Media(media::Args),
    Cluster(cluster::Args),
    Mirror(mirror::Args),
    Tape(tape::Args),
    Cd(cd::Args),
    Tune(tune::Args),
    Help(help::Args),
    Completions(man_pages::Completions),
    Man(man_pages::Man),
}

/// How long threads may take to end.
const THREADS_END: Duration = Duration::from_secs(2);

/// The command line. What is wrong with it is told of arguments on one line each: a name that a script hands over may hold
/// what looks like another one.
fn parse(arguments: &[OsString]) -> Cli {
    Cli::try_parse_from(arguments).unwrap_or_else(|wrong| {
        let shown = arguments.iter().map(|arg| match arg.to_string_lossy() {
            // It is worth as much as a key.
            invitation if invitation.starts_with("longhaul:") => "longhaul:...".to_owned(),
            arg => OneLine(arg).to_string(),
        });
        // The same mistake is found in them.
        show(&Cli::try_parse_from(shown).err().unwrap_or(wrong))
    })
}

/// Prints what is wrong, or the help or version that was asked for, and ends. Help that cannot be written was not given.
fn show(message: &clap::Error) -> ! {
    let is_open = if message.use_stderr() { Ok(()) } else { standard_output() };
    let written = is_open.and_then(|()| message.print()).and_then(|()| io::stdout().flush());
    match written {
        Err(why) if !message.use_stderr() && why.kind() != io::ErrorKind::BrokenPipe => {
            print_error(&format!("longhaul: cannot write to standard output: {why}"));
            exit(1)
        }
        _ => exit(message.exit_code()),
    }
}

/// Runs the program and says how it ended.
pub fn main() -> ExitCode {
    match begin() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_output_closed() {
                log_failure(&failure);
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// A volume that is called by a name is looked up first: what is remembered of it is as good as on the command line.
fn begin() -> Outcome {
    let mount = Cli::command().find_subcommand("mount").cloned().unwrap_or_default();
    let has_value = |name: &str| {
        let option = mount.get_arguments().find(|option| option.get_long() == Some(name))?;
        Some(option.get_action().takes_values())
    };
    let arguments = mount_helper::translated(std::env::args_os().collect(), has_value);
    let given = GivenInvitation::find(&arguments)?;
    if let Some(given) = given {
        let arguments = given.replaced(&arguments)?;
        let arguments = enrol(&parse(&arguments), &given, &arguments)?;
        return run(parse(&arguments), arguments);
    }
    let cli = parse(&arguments);
    if let Command::Mount(mount) = &cli.command
        && let Some(expanded) = mount.expanded(&arguments)?
    {
        let mut cli = parse(&expanded);
        if let Command::Mount(mount) = cli.command {
            cli.command = Command::Mount(mount.by_name());
        }
        return run(cli, expanded);
    }
    if let Some(expanded) = named::with_remembered_options(Cli::command, &arguments) {
        return run(parse(&expanded), expanded);
    }
    run(cli, arguments)
}

/// Uses an invitation, before there are other threads; the command line with the volume in its place.
fn enrol(cli: &Cli, given: &GivenInvitation, arguments: &[OsString]) -> Outcome<Vec<OsString>> {
    let _ = host::memory::hide();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.or_fail(|| "cannot start".to_owned())?;
    runtime.block_on(async {
        match &cli.command {
            Command::Mount(mount) => mount.enrol(given, arguments).await,
            Command::Attach(attach) => attach.enrol(given, arguments).await,
            _ => Ok(arguments.to_vec()),
        }
    })
}

fn run(cli: Cli, arguments: Vec<OsString>) -> Outcome {
    if matches!(&cli.command, Command::Mount(mount) if mount.serves()) {
        // Before there are threads, which take it over. A system that does not allow it is served all the same.
        let _ = host::memory::serve_kernel();
    }
    // Where the system does not allow it, the keys are used all the same.
    let _ = host::memory::hide();
    // Before anything is opened that could be taken for a socket.
    let handed = host::socket_activation::take();
    // The file of a server may say how it logs, so that is read first.
    if !matches!(cli.command, Command::Serve(_)) {
        cli.log.start("warn").map(drop)?;
    }
    if let Some(threads) = cli.cipher_threads {
        fix_threads(threads.into());
    }
    if let Some(Size(memory)) = cli.key_memory {
        luks::allow_memory(memory);
    }
    if let Some(ReconnectLimit(time)) = cli.key_time {
        luks::allow_time(time);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .or_fail(|| "cannot start".to_owned())?;
    let outcome = runtime.block_on(async {
        outlast_stray_signals()?;
        match cli.command {
            Command::Serve(args) => serve::run(args, cli.log, handed).await,
            Command::Check(args) => check::run(args).await,
            Command::Reload(args) => reload::run(args).await,
            Command::Invite(args) => invite::run(args).await,
            Command::Clients(args) => clients::run(args).await,
            Command::Config(args) => config::run(args).await,
            Command::Admin(args) => admin::run(args).await,
            Command::Revoke(args) => revoke::run(args).await,
            Command::Status(args) => status::run(args).await,
            Command::Info(args) => info::run(args).await,
            Command::Copy(args) => copy::run(args).await,
            Command::Ls(args) => ls::run(args).await,
            Command::Get(args) => get::run(args).await,
            Command::Cat(args) => cat::run(args).await,
            Command::Discover(args) => discover::run(args).await,
            Command::Doctor(args) => doctor::run(args).await,
            Command::Identity(args) => identity::run(&args),
            Command::Key(args) => key::run(args).await,
            Command::Attach(args) => attach::run(args).await,
            Command::Mount(args) => mount::run(args, arguments).await,
            Command::Umount(args) => umount::run(args).await,
            Command::Upgrade(args) => upgrade::run(args).await,
            Command::Volumes(args) => volumes::run(&args),
            Command::Replay(args) => replay::run(args).await,
            Command::Journal(args) => journal::run(args).await,
            Command::Media(args) => media::run(args).await,
            Command::Cluster(args) => cluster::run(args).await,
            Command::Mirror(args) => mirror::run(args).await,
            Command::Tape(args) => tape::run(args).await,
            Command::Cd(args) => cd::run(args).await,
            Command::Tune(args) => tune::run(args).await,
            Command::Help(args) => help::run(&args, Cli::command()),
            Command::Completions(args) => man_pages::completions(&args, Cli::command()),
            Command::Man(args) => man_pages::man(&args, Cli::command()),
        }
    });
    // Whatever had to be finished has been awaited; a thread that hangs must not keep the program. Others
    // are waited for: C libraries clean up when the process ends, and a thread that ends in the middle of
    // that would free what they free.
    secret::restore_terminal();
    runtime.shutdown_timeout(THREADS_END);
    outcome
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::option_document;

    fn command() -> clap::Command {
        let mut command = Cli::command();
        command.build();
        command
    }

    /// With LONGHAUL_WRITE_TABLES the file is written anew, as scripts/write-tables does.
    #[test]
    fn document_of_options_is_that_of_the_commands() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/options.md");
        let made = option_document::markdown(&command());
        if std::env::var_os("LONGHAUL_WRITE_TABLES").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let document = std::fs::read_to_string(path).unwrap();
        assert_eq!(document, made, "scripts/write-tables writes it anew");
    }

    #[test]
    fn every_argument_of_every_command_has_a_help_text() {
        fn check(command: &clap::Command) {
            let name = command.get_name();
            assert!(command.get_about().is_some(), "{name}");
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(!help.is_empty(), "{name}: {}", argument.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
    }

    #[test]
    fn headings_of_shared_options_hold_no_others() {
        fn check(command: &clap::Command) {
            let name = command.get_name();
            for argument in command.get_arguments() {
                let Some(heading) = argument.get_help_heading() else { continue };
                let id = argument.get_id();
                assert!(!argument.is_positional(), "{name}: {id} is under {heading}");
                let expected = match heading {
                    "Connection" => &["connections", "reconnect-for", "replay-log"][..],
                    "Other writers" => &["take-over", "shared"],
                    _ => continue,
                };
                let is_one = argument.get_long().is_some_and(|long| expected.contains(&long));
                assert!(is_one, "{name}: {id} is under {heading}");
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
    }
}
