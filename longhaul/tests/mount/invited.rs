//! From an invitation to a mounted file system.

use std::fs;

use crate::common::run;
use crate::stage::Stage;

#[test]
fn invitation_becomes_a_mounted_private_file_system() {
    let stage = Stage::new();
    let server = stage.serve("--invite laptop");
    let line = server.line().unwrap();
    let invitation = line.split_whitespace().last().unwrap();
    // What is wrong with the command line is told before the invitation is used.
    let (told, status) = run(&stage.command(&format!("mount {invitation} mnt --mkfs fat")));
    assert_eq!(status.code(), Some(2), "{told}");
    // And so is that there is nothing to mount at.
    let mount = format!("mount {invitation} there --identity laptop.identity");
    let (told, status) = run(&stage.command(&mount));
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(told.contains("`mkdir there` makes it"), "{told}");
    assert!(!stage.path("laptop.identity").exists());

    let there = stage.path("there");
    fs::create_dir(&there).unwrap();
    let told = stage.longhaul(&format!("{mount} --mkfs ext4 --passphrase-file secret"));
    assert!(told.contains("the server knows this machine as laptop"), "{told}");
    assert!(stage.longhaul("volumes").starts_with("disk: iscsi://127.0.0.1:"));
    fs::write(there.join("a note"), "plain words that nobody else may read").unwrap();
    let told = stage.longhaul("umount there");
    assert!(told.contains("all that was written is on it"), "{told}");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(fs::read(stage.path("disk.img")).unwrap().starts_with(b"LUKS"));

    assert!(server.stop().success());
    let server = stage.serve("");
    stage.longhaul("mount disk");
    let note = fs::read_to_string(there.join("a note")).unwrap();
    assert_eq!(note, "plain words that nobody else may read");
    stage.longhaul("umount disk");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(server.stop().success());
}

#[test]
fn invitation_is_mounted_in_one_command() {
    let stage = Stage::new();
    let server = stage.serve("--invite laptop");
    let line = server.line().unwrap();
    let invitation = line.split_whitespace().last().unwrap();
    let told = stage.longhaul(&format!(
        "mount {invitation} mnt --mkfs ext4 --passphrase-file secret --identity laptop.identity"
    ));
    assert!(told.contains("is mounted at"), "{told}");
    fs::write(stage.mnt().join("file"), vec![7; 1 << 20]).unwrap();
    stage.longhaul("umount mnt");
    stage.longhaul("mount disk");
    assert_eq!(fs::read(stage.mnt().join("file")).unwrap(), vec![7; 1 << 20]);
    stage.longhaul("umount disk");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(server.stop().success());
}
