//! Nothing is in the tree that nothing needs: source files, documents, scripts, dependencies, and functions or files that
//! nobody can read in one piece.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{Source, files, root};

const CRATES: [&str; 6] = ["proto", "volume", "host", "longhaul", "testing", "lab"];

/// `a/../b` is `b`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
        plain
    })
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(root().join(path)).ok()
}

/// The files that cargo begins to compile with.
fn roots(all: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let bins = read(Path::new("fuzz/Cargo.toml")).unwrap();
    let bins = bins.lines().filter_map(|line| line.strip_prefix("path = \"")?.strip_suffix('"'));
    let mut roots: Vec<_> = bins.map(|bin| Path::new("fuzz").join(bin)).collect();
    roots.extend(
        all.iter()
            .filter(|path| {
                let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
                let parts: Vec<_> = parts.iter().map(AsRef::as_ref).collect();
                CRATES.contains(&parts[0])
                    && matches!(
                        parts[1..],
                        ["src", "lib.rs" | "main.rs"]
                            | ["build.rs"]
                            | ["tests" | "benches" | "examples", _]
                            | ["tests", _, "main.rs"]
                            | ["src", "bin", _]
                    )
            })
            .cloned(),
    );
    roots
}

/// The files of the modules that a file declares, whether or not they exist.
fn modules(path: &Path, is_root: bool) -> Vec<PathBuf> {
    let dir = path.parent().unwrap();
    let is_dir = is_root || path.ends_with("mod.rs");
    let own = if is_dir { dir.to_owned() } else { path.with_extension("") };
    let text = read(path).unwrap_or_default();
    let mut found = Vec::new();
    let mut placed = None;
    for line in text.lines().map(str::trim) {
        if let Some(at) = line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]"))
        {
            placed = Some(plain(&dir.join(at)));
        }
        let Some((before, name)) = line.strip_suffix(';').and_then(|line| line.split_once("mod "))
        else {
            continue;
        };
        if !before.is_empty() && !before.starts_with("pub") {
            continue;
        }
        match placed.take() {
            Some(at) => found.push(at),
            None => found.extend([own.join(format!("{name}.rs")), own.join(name).join("mod.rs")]),
        }
    }
    found
}

#[test]
fn every_rust_file_is_compiled() {
    let all: BTreeSet<_> =
        files(".", ".rs").into_iter().map(|source| plain(Path::new(&source.path))).collect();
    let mut next: Vec<_> = roots(&all).into_iter().map(|root| (root, true)).collect();
    let mut reached = BTreeSet::new();
    while let Some((path, is_root)) = next.pop() {
        if all.contains(&path) && reached.insert(path.clone()) {
            next.extend(modules(&path, is_root).into_iter().map(|path| (path, false)));
        }
    }
    let dead: Vec<_> = all.difference(&reached).collect();
    assert!(dead.is_empty(), "no module or target has them: {dead:?}");
}

/// Where the links of a page lead.
fn links(page: &Path) -> Vec<PathBuf> {
    let text = read(page).unwrap_or_default();
    let targets = text.split("](").skip(1).map(|rest| rest.split([')', '#']).next().unwrap());
    let targets = targets.filter(|target| !target.is_empty() && !target.contains("://"));
    targets.map(|target| plain(&page.parent().unwrap().join(target))).collect()
}

#[test]
fn every_document_is_reached_from_the_readme() {
    let mut next = vec![PathBuf::from("README.md")];
    let mut reached = BTreeSet::new();
    while let Some(page) = next.pop() {
        if page.extension().is_some_and(|kind| kind == "md") && reached.insert(page.clone()) {
            next.extend(links(&page));
        }
    }
    for page in files(".", ".md") {
        let page = plain(Path::new(&page.path));
        assert!(reached.contains(&page), "no link leads to {}", page.display());
    }
}

/// Whether a text names a file, by its name or that behind which it stands.
fn names(text: &str, name: &str) -> bool {
    let words = text.split(|c: char| !c.is_alphanumeric() && !"-_.".contains(c));
    words.into_iter().any(|word| word.trim_end_matches('.') == name)
}

#[test]
fn every_script_is_called() {
    let rooms = ["scripts", "interop", "lab/peers", "lab/guest", "packaging"];
    let scripts: Vec<_> = rooms.iter().flat_map(|room| files(room, "")).collect();
    let mut callers: Vec<Source> = ["", ".md", ".rs", ".toml"]
        .iter()
        .flat_map(|ending| {
            let room = if ending.is_empty() { "scripts" } else { "." };
            files(room, ending)
        })
        .collect();
    for name in ["Makefile", ".ci/run"] {
        let text = read(Path::new(name)).unwrap();
        callers.push(Source { path: name.to_owned(), text });
    }
    let all = || callers.iter().chain(&scripts);
    for script in &scripts {
        let name = Path::new(&script.path).file_name().unwrap().to_str().unwrap();
        // `interop/common` runs what stands beside a script within the guest.
        let behind = name.strip_suffix(".guest").unwrap_or(name);
        let is_called = all().any(|caller| caller.path != script.path && names(&caller.text, name))
            || behind != name
                && scripts.iter().any(|other| other.path.ends_with(&format!("/{behind}")));
        assert!(is_called, "nothing calls {}", script.path);
    }
}

#[test]
fn every_shared_dependency_has_a_crate_that_uses_it() {
    let manifest = read(Path::new("Cargo.toml")).unwrap();
    let shared = manifest.split("[workspace.dependencies]").nth(1).unwrap();
    let shared = shared.lines().take_while(|line| !line.starts_with('['));
    let manifests: Vec<_> =
        CRATES.iter().map(|room| read(&Path::new(room).join("Cargo.toml")).unwrap()).collect();
    for name in shared.filter_map(|line| Some(line.split_once(" =")?.0)) {
        let uses = |manifest: &String| {
            manifest.lines().any(|line| {
                line.starts_with(&format!("{name}.")) || line.starts_with(&format!("{name} ="))
            })
        };
        assert!(manifests.iter().any(uses), "no crate depends on {name}");
    }
}

/// The functions of a file: where each begins, its name and its lines.
fn functions(source: &Source) -> Vec<(usize, String, usize)> {
    let lines: Vec<_> = source.text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let words: Vec<_> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let name = words.iter().skip_while(|word| **word != "fn").nth(1);
        let is_code = !line.trim_start().starts_with("//");
        let Some(name) = name.filter(|name| is_code && !name.is_empty()) else { continue };
        let end = format!("{}}}", &line[..indent]);
        let is_short = line.ends_with(['}', ';']);
        let len = lines[at..].iter().take_while(|line| !is_short && **line != end).count() + 1;
        found.push((at + 1, (*name).to_owned(), len));
    }
    found
}

#[test]
fn functions_stay_readable() {
    /// The longest is a match with an arm for each command. Others do one thing in half of this.
    const LINES_MAX: usize = 85;
    let mut count = 0;
    for source in CRATES.iter().flat_map(|room| files(&format!("{room}/src"), ".rs")) {
        if source.path.ends_with("tests.rs") || source.path.contains("/tests/") {
            continue;
        }
        for (at, name, lines) in functions(&source) {
            assert!(lines <= LINES_MAX, "{}:{at}: {name} has {lines} lines", source.path);
            count += 1;
        }
    }
    assert!(count > 2000, "{count} functions were found");
}
