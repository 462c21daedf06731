//! `longhaul help`: the help of a command, or the quick reference.

use std::fmt::Write as _;

use super::say;
use crate::failure::{Failure, Outcome};
use crate::suggest::did_you_mean;

/// Print the help of a command, or the twelve commands of a life with a remote disk: `help quick`
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A command, and what belongs to it, such as `key init`; or `quick`
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

/// The quick reference: what one does, its command, and what to know of it. URI is that of the volume.
const QUICK: [[&str; 3]; 12] = [
    [
        "Serve a file as a disk, and invite a client",
        "longhaul serve --volume backup=file:/srv/backup.img,size=80G --listen 0.0.0.0 --invite laptop",
        "prints an invitation that is good once, for an hour",
    ],
    [
        "Make it an encrypted, mounted file system",
        "sudo longhaul mount INVITATION /mnt/backup --mkfs ext4",
        "asks for a pass-phrase; `--journal FILE` keeps flushed writes here until the server has them",
    ],
    [
        "Save the header: without it the data are lost",
        "longhaul key backup URI header.img",
        "keep it elsewhere",
    ],
    [
        "Print a page for emergencies",
        "longhaul key sheet URI --output sheet.svg",
        "it holds a key of its own, as words; `longhaul key test URI --recovery` tries it",
    ],
    ["Unmount", "sudo longhaul umount /mnt/backup", "says whether all is on the server"],
    [
        "Mount it again",
        "sudo longhaul mount backup",
        "by its name; `longhaul volumes` lists those that are known",
    ],
    [
        "See how it is",
        "longhaul status",
        "attachments and servers: state, rates, what is not yet sent",
    ],
    ["Measure the link", "longhaul tune URI", "what is possible beside what was measured"],
    ["Change the pass-phrase", "longhaul key change URI", "then save the header again"],
    [
        "Get at files without root, from any machine",
        "longhaul get URI /home/alice alice",
        "`ls` lists, `cat` prints; ext2, ext3 and ext4",
    ],
    [
        "Copy a volume, or an image to one",
        "longhaul copy disk.img URI --verify",
        "either side a file or a URI; holes are not sent",
    ],
    ["Shut a client out", "longhaul revoke laptop", "at the server; `longhaul clients` lists them"],
];

/// The quick reference as Markdown, which reads well on a terminal too.
fn quick() -> String {
    let mut page = String::from(
        "# Quick reference\n\nThe twelve commands of a life with a remote disk. URI is the volume's, such as\n\
         `iscsi://server/iqn.2026-11.dev.longhaul:backup`; `longhaul COMMAND --help` has the options.\n",
    );
    for (number, [what, command, note]) in QUICK.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(page, "\n{}. {what}: {note}.\n\n       {command}\n", number + 1);
    }
    page
}

/// Prints the help of `command`, or of what is within it.
pub(crate) fn run(args: &Args, mut command: clap::Command) -> Outcome {
    if args.command == ["quick"] {
        return say(quick().trim_end());
    }
    command.build();
    let mut found = &mut command;
    for word in &args.command {
        let known: Vec<_> = found.get_subcommands().map(|one| one.get_name().to_owned()).collect();
        let meant = did_you_mean(word, known.iter().map(String::as_str).chain(["quick"]));
        found = found.find_subcommand_mut(word).ok_or_else(|| {
            Failure::usage(format!("there is no command `{word}`{meant}"))
                .hint("`longhaul --help` lists the commands, `longhaul help quick` shows the most usual ones")
        })?;
    }
    say(found.render_long_help().to_string().trim_end())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// With LONGHAUL_WRITE_TABLES the file is written anew, as scripts/write-tables does.
    #[test]
    fn quick_reference_is_the_document() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/quick-reference.md");
        if std::env::var_os("LONGHAUL_WRITE_TABLES").is_some() {
            std::fs::write(&path, quick()).unwrap();
        }
        let document = std::fs::read_to_string(path).unwrap();
        assert_eq!(document, quick(), "scripts/write-tables writes it anew");
        assert!(document.split_whitespace().count() < 400, "it is one page");
    }
}
