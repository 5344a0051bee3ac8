//! Import cycles: groups of files of a crate in which each file directly or indirectly imports all
//! others.
//!
//! Not here: the graph of the imports (imports.rs).
//!
//! Invariant: the list of exceptions limits the number of a crate's files that are in cycles, and
//! the limit may only fall.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::imports::{Edges, Graph};
use crate::tidy::finding::{Finding, Rule};

/// Import cycles of a crate.
pub(super) struct Cycles {
    /// Folder of the crate.
    pub(super) folder: String,
    modules: usize,
    imports: usize,
    /// Files of each strongly connected component, the largest component first.
    components: Vec<Vec<String>>,
    /// A shortest import cycle; its first file is repeated at the end.
    shortest: Vec<String>,
    /// Number of files in the largest component if method calls also count as imports.
    with_calls: usize,
}

impl Cycles {
    /// Finds the cycles in a crate's import graph.
    pub(super) fn of(folder: &str, graph: &Graph) -> Self {
        let count = graph.files.len();
        let found = components(count, &graph.imports);
        let all: Edges = graph.imports.union(&graph.calls).copied().collect();
        let name = |file: &usize| {
            let path = &graph.files[*file];
            path.strip_prefix(folder).unwrap_or(path).trim_start_matches("/src/").to_owned()
        };
        let shortest = found.iter().filter_map(|files| shortest(files, &graph.imports));
        let shortest = shortest.min_by_key(Vec::len).unwrap_or_default();
        Self {
            folder: folder.to_owned(),
            modules: count,
            imports: graph.imports.len(),
            shortest: shortest.iter().map(name).collect(),
            components: found.iter().map(|files| files.iter().map(name).collect()).collect(),
            with_calls: components(count, &all).first().map_or(0, Vec::len),
        }
    }

    /// Returns the number of files that are in cycles.
    fn files(&self) -> usize {
        self.components.iter().map(Vec::len).sum()
    }

    /// Returns the finding about the crate's cycles, if it has any; an exception may allow it.
    pub(super) fn finding(&self) -> Option<Finding> {
        let count = self.files();
        let sizes = self.sizes();
        let shortest = self.shortest.join(" -> ");
        let what = format!("{count} files in cycles ({sizes}), such as {shortest}");
        let (rule, path) = (Rule::Cycle, self.folder.clone());
        (count > 0).then_some(Finding { rule, path, line: 1, count, what })
    }

    fn sizes(&self) -> String {
        let sizes: Vec<String> = self.components.iter().map(|it| it.len().to_string()).collect();
        if sizes.is_empty() { "none".to_owned() } else { sizes.join(", ") }
    }
}

/// Prints a line for each crate, and the totals.
pub(super) fn print(all: &[Cycles]) {
    println!("| crate | modules | imports | files in cycles | with calls of methods |");
    println!("| --- | --- | --- | --- | --- |");
    for cycles in all {
        let Cycles { folder, modules, imports, with_calls, .. } = cycles;
        println!("| {folder} | {modules} | {imports} | {} | {with_calls} |", cycles.sizes());
    }
    let sum = |figure: fn(&Cycles) -> usize| all.iter().map(figure).sum::<usize>();
    let (modules, imports) = (sum(|it| it.modules), sum(|it| it.imports));
    let (components, files) = (sum(|it| it.components.len()), sum(Cycles::files));
    println!(
        "{modules} modules, {imports} imports, {components} components with {files} files in all"
    );
}

/// Returns the strongly connected components of two files or more, the largest first (Kosaraju).
fn components(count: usize, edges: &Edges) -> Vec<Vec<usize>> {
    let reversed: Edges = edges.iter().map(|(from, to)| (*to, *from)).collect();
    let mut order = Vec::new();
    let mut seen = vec![false; count];
    for file in 0..count {
        visit(file, edges, &mut seen, &mut order);
    }
    let mut found = Vec::new();
    seen.fill(false);
    for file in order.into_iter().rev() {
        let mut component = Vec::new();
        visit(file, &reversed, &mut seen, &mut component);
        component.sort_unstable();
        if component.len() > 1 {
            found.push(component);
        }
    }
    found.sort_by_key(|component| (usize::MAX - component.len(), component.clone()));
    found
}

/// Appends to `order` the file and all files that it imports directly or indirectly, except files
/// in `seen`. Each file comes after the files that it imports.
fn visit(file: usize, edges: &Edges, seen: &mut [bool], order: &mut Vec<usize>) {
    if std::mem::replace(&mut seen[file], true) {
        return;
    }
    for (_, to) in edges.range((file, 0)..=(file, usize::MAX)) {
        visit(*to, edges, seen, order);
    }
    order.push(file);
}

/// Returns a shortest cycle within a component; its first file is repeated at the end.
fn shortest(component: &[usize], edges: &Edges) -> Option<Vec<usize>> {
    let inside: BTreeSet<usize> = component.iter().copied().collect();
    component.iter().filter_map(|start| cycle_through(*start, &inside, edges)).min_by_key(Vec::len)
}

fn cycle_through(start: usize, inside: &BTreeSet<usize>, edges: &Edges) -> Option<Vec<usize>> {
    let mut before: BTreeMap<usize, usize> = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(file) = next.pop_front() {
        for (_, to) in edges.range((file, 0)..=(file, usize::MAX)) {
            if *to == start {
                let mut cycle = vec![start];
                let mut at = file;
                while at != start {
                    cycle.push(at);
                    at = before[&at];
                }
                cycle.push(start);
                cycle.reverse();
                return Some(cycle);
            }
            if inside.contains(to) && !before.contains_key(to) {
                before.insert(*to, file);
                next.push_back(*to);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::{Source, imports};
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Cycles {
        let source = |(path, text): &(&str, &str)| Source {
            path: format!("crates/x/src/{path}"),
            text: (*text).to_owned(),
        };
        let sources: Vec<Source> = files.iter().map(source).collect();
        let [(root, graph)] = &imports::all(&sources).unwrap()[..] else { panic!("one crate") };
        Cycles::of(imports::folder_of(root), graph)
    }

    #[test]
    fn files_that_need_each_other_are_a_component() {
        let found = cycles(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n"),
            ("a.rs", "pub struct A(crate::b::B);\n"),
            ("b.rs", "mod inner;\npub struct B;\npub(crate) use inner::help;\n"),
            ("b/inner.rs", "use super::super::c::C;\npub fn help(c: C) { c.f() }\n"),
            ("c.rs", "pub struct C;\nimpl C { pub fn f(self) { crate::A; } }\n"),
        ]);
        assert_eq!(found.components, [] as [Vec<String>; 0], "a leads to b and no further");
        let found = cycles(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n"),
            ("a.rs", "use crate::b::{self, B};\npub struct A(B);\nfn f() { b::help() }\n"),
            ("b.rs", "mod inner;\npub struct B;\npub(crate) use inner::help;\n"),
            ("b/inner.rs", "use super::super::c::C;\npub fn help(c: C) { c.f() }\n"),
            ("c.rs", "pub struct C;\nimpl C { pub fn f(self) { vec![crate::A]; } }\n"),
        ]);
        assert_eq!(found.components, [["a.rs", "b/inner.rs", "c.rs"]], "through the re-exports");
        assert_eq!(found.shortest, ["a.rs", "b/inner.rs", "c.rs", "a.rs"]);
        let finding = found.finding().unwrap();
        assert_eq!(
            (finding.rule, finding.path.as_str(), finding.count),
            (Rule::Cycle, "crates/x", 3)
        );
    }

    #[test]
    fn test_code_and_mod_lines_are_no_imports() {
        let found = cycles(&[
            ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod fixture;\nuse b::B;\n"),
            (
                "a.rs",
                "#[cfg(test)]\nuse crate::b::B;\npub struct A;\n\
                 impl A { pub fn only_a(&self) {} }\n\
                 #[cfg(test)]\nmod tests { use crate::b::B; }\n",
            ),
            ("b.rs", "use crate::a::A;\npub struct B;\nimpl B { fn only_b(&self) { } }\n"),
            ("fixture.rs", "use crate::b::B;\n"),
        ]);
        assert_eq!((found.files(), found.modules), (0, 3), "{:?}", found.components);
        let found = cycles(&[
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "pub struct A;\nimpl A { fn of(x: X) { x.only_b() } }\n"),
            ("b.rs", "use crate::a::A;\npub struct B;\nimpl B { pub fn only_b(&self) { } }\n"),
        ]);
        assert_eq!((found.files(), found.with_calls), (0, 2));
    }
}
