//! No import cycles.
//!
//! The modules of one parent, each with all beneath it, form a graph: an edge goes from the module that names a path to
//! the one that the path leads to. At every level, from the root of a crate down, this graph must have no cycle.
//!
//! - A module and its children are one thing to those outside. So a child may name items of its parents, and a parent
//!   those of its children: such an edge is none.
//! - A path that leads through `use` declarations of a parent (`super::Error`, where the parent has
//!   `pub use error::Error`) leads to the module that they name, so that a detour by the parent hides nothing.
//! - Tests may name whatever they test: what stands behind `#[cfg(test)]` does not count.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, files};

type Segments = Vec<String>;

/// The modules of a crate, and what each names.
struct Crate {
    modules: BTreeMap<Segments, Names>,
}

/// What a module names.
#[derive(Default)]
struct Names {
    paths: Vec<Segments>,
    /// The names that `use` declarations make, and the paths they stand for.
    aliases: BTreeMap<String, Segments>,
}

impl Crate {
    fn read(room: &str) -> Self {
        let sources = files(&format!("{room}/src"), ".rs");
        let modules = sources.iter().filter_map(|source| {
            let within = source.path.strip_prefix(&format!("{room}/src/"))?.strip_suffix(".rs")?;
            let mut path: Segments = within.split('/').map(str::to_owned).collect();
            // The tests of a module, and their parts.
            if path.iter().any(|segment| segment == "tests") {
                return None;
            }
            match path.last()?.as_str() {
                // Another crate.
                "main" => return None,
                "mod" | "lib" => drop(path.pop()),
                _ => {}
            }
            (path.first().map(String::as_str) != Some("bin"))
                .then(|| (path, Names::of(&without_tests(source))))
        });
        Self { modules: modules.collect() }
    }

    /// The module that a path leads to from `module`; none if it leaves the crate.
    fn leads_to(&self, module: &[String], path: &[String]) -> Option<Segments> {
        let (mut at, mut rest) = (module.to_vec(), path);
        match rest.first()?.as_str() {
            "crate" => at.clear(),
            "self" | "super" => {}
            first => {
                let child = [module, &[first.to_owned()]].concat();
                return self
                    .modules
                    .contains_key(&child)
                    .then(|| self.descend(child, &rest[1..], 0));
            }
        }
        while let Some((first, behind)) = rest.split_first() {
            match first.as_str() {
                "crate" | "self" => {}
                "super" => drop(at.pop()),
                _ => break,
            }
            rest = behind;
        }
        Some(self.descend(at, rest, 0))
    }

    /// Follows a path downwards, through what modules have declared with `use`.
    fn descend(&self, mut at: Segments, path: &[String], depth: usize) -> Segments {
        /// Longer than any chain of re-exports.
        const DEPTH_MAX: usize = 16;
        for (index, segment) in path.iter().enumerate() {
            let child = [&at[..], std::slice::from_ref(segment)].concat();
            if self.modules.contains_key(&child) {
                at = child;
                continue;
            }
            let alias = self.modules.get(&at).and_then(|names| names.aliases.get(segment));
            let Some(alias) = alias.filter(|_| depth < DEPTH_MAX) else { break };
            let whole = [alias, &path[index + 1..]].concat();
            return self.follow(&at, &whole, depth + 1).unwrap_or(at);
        }
        at
    }

    fn follow(&self, module: &[String], path: &[String], depth: usize) -> Option<Segments> {
        let mut at = module.to_vec();
        let mut rest = path;
        while let Some((first, behind)) = rest.split_first() {
            match first.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ => break,
            }
            rest = behind;
        }
        let is_ours =
            rest.len() < path.len() || self.modules.contains_key(&[&at[..], &rest[..1]].concat());
        is_ours.then(|| self.descend(at, rest, depth))
    }

    /// For each parent, which of its children names which, with one of the places.
    fn edges(&self) -> BTreeMap<Segments, BTreeMap<(String, String), String>> {
        let mut edges = BTreeMap::<_, BTreeMap<_, _>>::new();
        for (module, names) in &self.modules {
            for path in &names.paths {
                let Some(target) = self.leads_to(module, path) else { continue };
                let shared = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
                let (Some(from), Some(to)) = (module.get(shared), target.get(shared)) else {
                    continue;
                };
                let place = format!("{} names {}", module.join("::"), path.join("::"));
                let level = edges.entry(module[..shared].to_vec()).or_default();
                level.entry((from.clone(), to.clone())).or_insert(place);
            }
        }
        edges
    }
}

impl Names {
    fn of(code: &str) -> Self {
        let mut names = Self::default();
        let mut rest = String::new();
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            let declared = line.trim_start();
            let behind = declared.split_once("use ").filter(|(before, _)| {
                before.is_empty() || (before.starts_with("pub") && before.ends_with([' ', ')']))
            });
            let Some((_, tree)) = behind else {
                rest.push_str(line);
                rest.push('\n');
                continue;
            };
            let mut tree = tree.to_owned();
            while !tree.contains(';')
                && let Some(more) = lines.next()
            {
                tree.push_str(more);
            }
            expand(tree.split(';').next().unwrap_or_default(), &[], &mut names);
        }
        names.paths.extend(named(&rest));
        names
    }

    fn declare(&mut self, mut path: Segments, alias: Option<&str>) {
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        if let Some(name) = alias.map(str::to_owned).or_else(|| path.last().cloned()) {
            self.aliases.insert(name, path.clone());
        }
        self.paths.push(path);
    }
}

/// Takes the tree of a `use` declaration apart.
fn expand(tree: &str, before: &[String], names: &mut Names) {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        let (path, alias) = match tree.split_once(" as ") {
            Some((path, alias)) => (path, Some(alias.trim())),
            None => (tree, None),
        };
        return names.declare([before, &segments(path)].concat(), alias);
    };
    let before = [before, &segments(prefix)].concat();
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let (mut depth, mut from) = (0, 0);
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if let Some(item) = group.get(from..at).filter(|item| !item.trim().is_empty()) {
                    expand(item, &before, names);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

fn segments(path: &str) -> Segments {
    path.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The paths of at least two names in code that declares nothing.
fn named(code: &str) -> Vec<Segments> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c| !is_path(c)).filter(|word| word.contains("::"));
    let paths = words.map(|word| segments(word.trim_matches(':')));
    paths.filter(|path| path.len() > 1).collect()
}

/// The code of a file without comments and without what is behind `#[cfg(test)]`.
fn without_tests(source: &Source) -> String {
    let mut code = String::new();
    let mut lines = source.code().map(|(_, line)| line);
    while let Some(line) = lines.next() {
        if !line.starts_with("#[cfg(test)]") && !line.starts_with("#[cfg(any(test") {
            code.push_str(line.split(" // ").next().unwrap_or_default());
            code.push('\n');
            continue;
        }
        let first = lines.find(|line| !line.starts_with('#')).unwrap_or_default();
        if !first.ends_with(';') {
            // Until the end of the item.
            let _ = lines.find(|line| *line == "}");
        }
    }
    code
}

/// The modules that lead back to themselves, in groups.
fn cycles<'e>(edges: impl Iterator<Item = &'e (String, String)> + Clone) -> Vec<BTreeSet<String>> {
    let reached = |from: &str| {
        let mut found = BTreeSet::new();
        let mut next = vec![from.to_owned()];
        while let Some(at) = next.pop() {
            let beyond = edges.clone().filter(|(a, _)| *a == at).map(|(_, b)| b.clone());
            next.extend(beyond.filter(|b| found.insert(b.clone())));
        }
        found
    };
    let modules: BTreeSet<_> = edges.clone().map(|(a, _)| a.clone()).collect();
    let reach: BTreeMap<_, _> = modules.iter().map(|a| (a, reached(a))).collect();
    let mut groups = BTreeSet::new();
    for (a, found) in &reach {
        let together = found.iter().filter(|b| reach.get(b).is_some_and(|back| back.contains(*a)));
        let group: BTreeSet<_> = together.cloned().collect();
        if group.contains(*a) {
            groups.insert(group);
        }
    }
    groups.into_iter().collect()
}

#[test]
fn no_modules_import_one_another() {
    let mut found = Vec::new();
    for room in ["proto", "volume", "host", "longhaul", "testing", "lab"] {
        for (parent, edges) in Crate::read(room).edges() {
            for cycle in cycles(edges.keys()) {
                let parent = parent.join("::");
                let within = |(a, b): &(String, String)| cycle.contains(a) && cycle.contains(b);
                let places = edges.iter().filter(|(edge, _)| within(edge)).map(|(_, place)| place);
                let places: Vec<_> = places.map(String::as_str).collect();
                found.push(format!("{room} {parent} {cycle:?}:\n  {}", places.join("\n  ")));
            }
        }
    }
    assert!(found.is_empty(), "modules that import one another:\n{}", found.join("\n"));
}

#[test]
fn detour_by_the_parent_hides_no_cycle() {
    let names = |code: &str| Names::of(code);
    let module = |path: &str| segments(path);
    let modules = BTreeMap::from([
        (vec![], names("mod room;")),
        (module("room"), names("mod a;\nmod b;\npub use a::{Early as First, deep::{self, Deep}};")),
        (module("room::a"), names("use super::b::Later;\nfn f() -> super::Own {}")),
        (module("room::a::deep"), names("use super::super::Own;")),
        (module("room::b"), names("fn g(_: super::First) {}")),
    ]);
    let all = Crate { modules };
    assert_eq!(
        all.leads_to(&module("room::b"), &module("super::Deep")),
        Some(module("room::a::deep"))
    );
    let edges = all.edges();
    let level = &edges[&module("room")];
    assert_eq!(cycles(level.keys()), [BTreeSet::from(["a".to_owned(), "b".to_owned()])]);
    // What the parent itself has is no edge.
    assert_eq!(level.len(), 2, "{level:?}");
    assert!(cycles([("a".to_owned(), "b".to_owned())].iter()).is_empty());
}
