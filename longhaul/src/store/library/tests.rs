use super::*;

const LAYOUT: Layout = Layout { drives: 2, slots: 3, mail: 1 };

fn barcode(text: &str) -> Barcode {
    text.parse().unwrap()
}

fn element(text: &str) -> Element {
    text.parse().unwrap()
}

/// A directory with these files.
fn directory(names: &[&str]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    names.iter().for_each(|name| fs::write(directory.path().join(name), name).unwrap());
    directory
}

fn open(directory: &Path) -> Library {
    Library::open(directory, LAYOUT).unwrap()
}

fn refusal(directory: &Path, layout: Layout) -> String {
    let why = Library::open(directory, layout).unwrap_err();
    let source = std::error::Error::source(&why).map(ToString::to_string);
    format!("{why}: {}", source.unwrap_or_default())
}

/// What is where, in order.
fn places(library: &Library) -> Vec<String> {
    let inventory = library.inventory();
    inventory.full().map(|(element, it)| format!("{element} {}", it.barcode)).collect()
}

fn moved(library: &Library, from: &str, to: &str) {
    let after = library.inventory().moved(element(from), element(to)).unwrap();
    library.rearrange(after).unwrap();
}

#[test]
fn cartridges_are_where_they_were_after_each_movement() {
    let home = directory(&["A1", "B2.tape"]);
    // Neither a barcode nor a cartridge.
    fs::create_dir(home.path().join("lost+found")).unwrap();
    let library = open(home.path());
    assert_eq!(places(&library), ["slot:1 A1", "slot:2 B2"]);
    moved(&library, "slot:2", "drive:1");
    moved(&library, "slot:1", "mail:1");
    assert_eq!(library.in_drive(1), Some(home.path().join("B2.tape")));
    assert_eq!(library.in_drive(0), None);
    drop(library);
    let library = open(home.path());
    assert_eq!(places(&library), ["drive:1 B2", "mail:1 A1"]);
    let source = library.inventory().get(element("drive:1")).unwrap().source;
    assert_eq!(source, Some(1), "the slot that it was in is known");
    // A new one is in the first slot that is free.
    drop(library);
    fs::write(home.path().join("C3"), "").unwrap();
    assert_eq!(places(&open(home.path())), ["drive:1 B2", "mail:1 A1", "slot:1 C3"]);
    // One whose file is gone is gone.
    fs::remove_file(home.path().join("A1")).unwrap();
    assert_eq!(places(&open(home.path())), ["drive:1 B2", "slot:1 C3"]);
}

#[test]
fn exported_cartridge_stays_outside_until_it_is_imported() {
    let home = directory(&["A1", "B2"]);
    let library = open(home.path());
    moved(&library, "slot:1", "mail:1");
    assert_eq!(library.export(element("mail:1")).unwrap(), Some(barcode("A1")));
    assert_eq!(library.export(element("mail:1")).unwrap(), None);
    drop(library);
    let library = open(home.path());
    assert_eq!(places(&library), ["slot:2 B2"]);
    let import = |name: &str, size| {
        let found = library.find_or_make(&barcode(name), size)?;
        library.import(&barcode(name), found.path)
    };
    assert_eq!(import("A1", None).unwrap(), element("mail:1"));
    assert!(library.inventory().get(element("mail:1")).unwrap().imported);
    let inside = import("A1", None).unwrap_err().to_string();
    assert_eq!(inside, "cartridge A1 is in mail:1");
    let full = import("D4", Some(1 << 20)).unwrap_err();
    assert!(matches!(full, LibraryError::NoImportExport));
    moved(&library, "mail:1", "slot:1");
    let missing = import("D4", None).unwrap_err();
    assert!(matches!(missing, LibraryError::NoFile(_)));
    import("D4", Some(1 << 20)).unwrap();
    assert_eq!(fs::metadata(home.path().join("D4")).unwrap().len(), 1 << 20);
    let inside = library.import(&barcode("D4"), PathBuf::new()).unwrap_err();
    assert!(matches!(inside, LibraryError::Inside(..)));
    drop(library);
    assert_eq!(places(&open(home.path())), ["mail:1 D4", "slot:1 A1", "slot:2 B2"]);
}

#[test]
fn changer_with_fewer_elements_puts_what_was_there_into_slots() {
    let home = directory(&["A1", "B2", "C3"]);
    let library = open(home.path());
    moved(&library, "slot:3", "drive:1");
    moved(&library, "slot:1", "mail:1");
    drop(library);
    let smaller = Layout { drives: 1, slots: 3, mail: 0 };
    let library = Library::open(home.path(), smaller).unwrap();
    assert_eq!(places(&library), ["slot:1 A1", "slot:2 B2", "slot:3 C3"]);
    drop(library);
    let why = refusal(home.path(), Layout { slots: 2, ..smaller });
    assert!(why.contains("1 cartridges without a place, and 0 free slots"), "{why}");
}

#[test]
fn directory_that_cannot_be_one_is_refused_with_what_is_wrong() {
    for (names, why) in [
        (&["A1", "A1.tape"][..], "are two cartridges with the barcode A1"),
        (&["a1"], "the name of"),
        (&["A 1"], "is no barcode: a barcode has 1 to 32 capital letters"),
        (&["A1", "B2", "C3", "D4"], "4 cartridges without a place, and 3 free slots"),
    ] {
        let home = directory(names);
        let said = refusal(home.path(), LAYOUT);
        assert!(said.contains(why), "{names:?}: {said}");
        assert!(!home.path().join(PLACES).exists(), "{names:?}");
    }
    let home = directory(&["A1"]);
    fs::hard_link(home.path().join("A1"), home.path().join("B2")).unwrap();
    assert!(refusal(home.path(), LAYOUT).contains("are the same file"));
    let missing = home.path().join("missing");
    let said = refusal(&missing, LAYOUT);
    assert!(said.contains("/missing: No such file"), "{said}");
    let home = directory(&["A1"]);
    let _library = open(home.path());
    assert!(refusal(home.path(), LAYOUT).contains("another process uses"));
}

#[test]
fn damaged_note_of_the_places_is_refused() {
    let home = directory(&["A1", "B2"]);
    drop(open(home.path()));
    let path = home.path().join(PLACES);
    let text = fs::read_to_string(&path).unwrap();
    for (from, to, why) in [
        ("slot:2", "slot:1", "two cartridges in slot:1"),
        ("slot:2", "shelf:2", "no element"),
        ("\"version\": 1", "\"version\": 2", "it has version 2"),
        ("A1", "a1", "a barcode has"),
        ("}\n}", "", "it is damaged"),
    ] {
        fs::write(&path, text.replace(from, to)).unwrap();
        let said = refusal(home.path(), LAYOUT);
        assert!(said.contains(PLACES) && said.contains(why), "{from}: {said}");
    }
}

/// Nothing has moved for those who look at it, nor for the next process.
#[test]
fn movement_that_cannot_be_noted_has_not_happened() {
    let home = directory(&["A1"]);
    let library = open(home.path());
    let path = home.path().join(PLACES);
    let before = fs::read(&path).unwrap();
    // In the way of the new file.
    fs::create_dir(path.with_extension("new")).unwrap();
    let after = library.inventory().moved(element("slot:1"), element("drive:0")).unwrap();
    assert!(matches!(library.rearrange(after), Err(LibraryError::Unnoted(..))));
    assert_eq!(places(&library), ["slot:1 A1"]);
    assert_eq!(fs::read(&path).unwrap(), before);
}
