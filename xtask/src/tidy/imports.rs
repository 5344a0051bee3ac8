//! The import graph of a crate: an edge from each file to the files whose items it names.
//!
//! Not here: cycles in the graph (cycles.rs).
//!
//! A module is a file. A path in a `use` declaration or in code is an edge to the file that defines
//! the named item. A re-export is not an edge: a path through it reaches the file that defines the
//! item. Test code, comments and `mod` lines make no edges. The graph knows no types: a method call
//! is an edge only if one file of the crate has an inherent method of that name (`Graph::calls`).
//!
//! Invariant: the same sources give the same graph.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::attributes::is_test;
use crate::tidy::finding::Source;

/// Maximum number of re-exports that the search for an item follows; without this limit, two
/// re-exports that name each other would make the search endless.
const STEPS_MAX: usize = 32;

/// Segments of a path.
type Segments = Vec<String>;

/// Edges between files: pairs of indexes of files.
pub(super) type Edges = BTreeSet<(usize, usize)>;

/// Import graph of a crate.
pub(super) struct Graph {
    /// Paths of the files, from the workspace root.
    pub(super) files: Vec<String>,
    /// Edges from each file to the files that define the items which it names.
    pub(super) imports: Edges,
    /// Edges from each file that calls a method to the file that defines the method, if only one
    /// other file defines an inherent method of this name.
    pub(super) calls: Edges,
}

/// A module: a file, or an inline module in a file.
#[derive(Default)]
struct Scope {
    file: usize,
    items: BTreeSet<String>,
    /// Full paths of the imported and re-exported names.
    uses: BTreeMap<String, Segments>,
    globs: Vec<Segments>,
    /// Paths in `use` declarations and in code.
    mentions: BTreeSet<Segments>,
}

#[derive(Default)]
struct Reader<'a> {
    sources: BTreeMap<&'a str, &'a str>,
    files: Vec<String>,
    scopes: BTreeMap<Segments, Scope>,
    /// Files that define an inherent method, by the name of the method.
    methods: BTreeMap<String, BTreeSet<usize>>,
    calls: BTreeSet<(usize, String)>,
}

/// Reads all crates of the workspace. Returns for each the path of `lib.rs` or `main.rs`, and its
/// graph.
///
/// # Errors
/// A file cannot be parsed, or a declared module has no file.
pub(super) fn all(sources: &[Source]) -> Result<Vec<(String, Graph)>> {
    let texts: BTreeMap<&str, &str> =
        sources.iter().map(|source| (source.path.as_str(), source.text.as_str())).collect();
    let is_root = |path: &&&str| path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
    let roots = texts.keys().filter(is_root);
    roots.map(|root| Ok(((*root).to_owned(), read(root, &texts)?))).collect()
}

/// Returns the folder of a crate, from the path of its `lib.rs` or `main.rs`.
pub(super) fn folder_of(root: &str) -> &str {
    root.rsplit_once("/src/").map_or(root, |(folder, _)| folder)
}

/// Reads the crate whose first file is `root`. `sources` has the texts of all files by path.
///
/// # Errors
/// A file cannot be parsed, or a declared module has no file.
pub(super) fn read(root: &str, sources: &BTreeMap<&str, &str>) -> Result<Graph> {
    let mut reader = Reader { sources: sources.clone(), ..Reader::default() };
    let folder = Path::new(root).parent().context("a crate has a folder")?;
    reader.file(root, folder, &Vec::new())?;
    let Reader { files, scopes, methods, calls, .. } = reader;
    let mut imports = Edges::new();
    for (place, scope) in &scopes {
        let found = scope.mentions.iter().filter_map(|path| resolve(&scopes, place, path, 0));
        imports.extend(found.filter(|file| *file != scope.file).map(|file| (scope.file, file)));
    }
    let defined = |(caller, name): &(usize, String)| {
        let [file] = methods.get(name)?.iter().copied().collect::<Vec<_>>()[..] else {
            return None;
        };
        (file != *caller).then_some((*caller, file))
    };
    let calls = calls.iter().filter_map(defined).collect();
    Ok(Graph { files, imports, calls })
}

/// Resolves `path` in the code of the module `place`: returns the file that defines the named item;
/// `None` if no file of the crate defines the item.
fn resolve(
    scopes: &BTreeMap<Segments, Scope>,
    place: &[String],
    path: &[String],
    steps: usize,
) -> Option<usize> {
    let mut place = place.to_vec();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => {
            place.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        _ => {}
    }
    while rest.first().is_some_and(|name| name == "super") {
        place.pop()?;
        rest = &rest[1..];
    }
    while let [name, behind @ ..] = rest {
        let scope = scopes.get(&place)?;
        if behind.is_empty() && scope.items.contains(name) {
            return Some(scope.file);
        }
        let child: Segments = place.iter().chain([name]).cloned().collect();
        if scopes.contains_key(&child) {
            (place, rest) = (child, behind);
            continue;
        }
        if scope.items.contains(name) {
            return Some(scope.file);
        }
        if steps >= STEPS_MAX {
            return None;
        }
        let further = |target: &Segments| {
            let path: Segments = target.iter().chain(behind).cloned().collect();
            // If a path starts with the same name twice, the first name is an external crate, so
            // stop.
            let is_new = path.first() != path.get(1) && path.as_slice() != rest;
            is_new.then(|| resolve(scopes, &place, &path, steps + 1)).flatten()
        };
        if let Some(target) = scope.uses.get(name) {
            return further(target);
        }
        let globs = scope.globs.iter();
        return globs
            .map(|glob| glob.iter().chain([name]).cloned().collect())
            .find_map(|target| further(&target));
    }
    None
}

impl Reader<'_> {
    /// Reads a file and the files of its modules. `folder` is the folder of the modules' files.
    fn file(&mut self, path: &str, folder: &Path, place: &Segments) -> Result<()> {
        let text = self.sources.get(path).with_context(|| format!("{path}: no such file"))?;
        let file = syn::parse_file(text).with_context(|| path.to_owned())?;
        let index = self.files.len();
        self.files.push(path.to_owned());
        self.scan(&file.items, index, folder, place)
    }

    fn scan(
        &mut self,
        items: &[syn::Item],
        file: usize,
        folder: &Path,
        place: &Segments,
    ) -> Result<()> {
        let mut found = Mentions::default();
        let mut names = BTreeSet::new();
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            if let syn::Item::Mod(module) = item {
                let name = module.ident.to_string();
                let child: Segments = place.iter().chain([&name]).cloned().collect();
                match &module.content {
                    Some((_, items)) => self.scan(items, file, &folder.join(&name), &child)?,
                    None => self.module(module, folder, &child)?,
                }
                continue;
            }
            names.extend(name_of(item));
            found.visit_item(item);
        }
        let Mentions { paths, uses, globs, methods, calls, .. } = found;
        for name in methods {
            self.methods.entry(name).or_default().insert(file);
        }
        self.calls.extend(calls.into_iter().map(|name| (file, name)));
        let scope = Scope { file, items: names, uses, globs, mentions: paths };
        self.scopes.insert(place.clone(), scope);
        Ok(())
    }

    /// Reads the file of the module in the declaration `mod name;`.
    fn module(&mut self, module: &syn::ItemMod, folder: &Path, child: &Segments) -> Result<()> {
        let name = module.ident.to_string();
        let below = folder.join(&name);
        let files: Vec<PathBuf> = match path_attribute(&module.attrs) {
            Some(path) => vec![folder.join(path)],
            None => vec![folder.join(format!("{name}.rs")), below.join("mod.rs")],
        };
        let known = |path: &PathBuf| self.sources.contains_key(&*path.to_string_lossy());
        let path = files.into_iter().find(known);
        let path = path.with_context(|| format!("{}: no file of it", below.display()))?;
        self.file(&path.to_string_lossy(), &below, child)
    }
}

/// Paths and methods that occur in the code of a module.
#[derive(Default)]
struct Mentions {
    paths: BTreeSet<Segments>,
    uses: BTreeMap<String, Segments>,
    globs: Vec<Segments>,
    methods: BTreeSet<String>,
    calls: BTreeSet<String>,
    /// True if the current `use` declaration is public, so that it is a re-export.
    is_reexport: bool,
}

impl Mentions {
    fn tree(&mut self, tree: &syn::UseTree, path: &Segments) {
        let with = |ident: &Ident| -> Segments {
            path.iter().cloned().chain([ident.to_string()]).collect()
        };
        match tree {
            syn::UseTree::Path(next) => self.tree(&next.tree, &with(&next.ident)),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.tree(tree, path));
            }
            syn::UseTree::Glob(_) => self.globs.push(path.clone()),
            // In `a::{self, ..}`, `self` imports the name `a` before the brace.
            syn::UseTree::Name(name) if name.ident == "self" => {
                let last = path.last().cloned().unwrap_or_default();
                self.imported(last, path.clone());
            }
            syn::UseTree::Name(name) => {
                self.imported(name.ident.to_string(), with(&name.ident));
            }
            syn::UseTree::Rename(rename) => {
                let is_self = rename.ident == "self";
                let target = if is_self { path.clone() } else { with(&rename.ident) };
                self.imported(rename.rename.to_string(), target);
            }
        }
    }

    fn imported(&mut self, name: String, target: Segments) {
        if !self.is_reexport {
            self.paths.insert(target.clone());
        }
        self.uses.insert(name, target);
    }

    /// Finds paths such as `a::b` in the arguments of a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Segments = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.mentioned(std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.mentioned(std::mem::take(&mut path));
                    self.tokens(group.stream());
                    colons = 0;
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.mentioned(std::mem::take(&mut path));
                    colons = 0;
                }
            }
        }
        self.mentioned(path);
    }

    fn mentioned(&mut self, path: Segments) {
        if path.len() > 1 {
            self.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Mentions {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.is_reexport = !matches!(item.vis, syn::Visibility::Inherited);
        self.tree(&item.tree, &Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.mentioned(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, found: &'ast syn::Macro) {
        visit::visit_macro(self, found);
        self.tokens(found.tokens.clone());
    }

    /// The path in `pub(in path)` names no item, so it is not visited.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.trait_.is_none() {
            let methods = item.items.iter().filter_map(|inner| match inner {
                syn::ImplItem::Fn(method) if !is_test(&method.attrs) => Some(&method.sig.ident),
                _ => None,
            });
            self.methods.extend(methods.map(ToString::to_string));
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_impl_item_fn(&mut self, method: &'ast syn::ImplItemFn) {
        if !is_test(&method.attrs) {
            visit::visit_impl_item_fn(self, method);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.calls.insert(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }
}

/// Returns the file name in the attribute `#[path = ".."]`.
fn path_attribute(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
        let syn::Expr::Lit(value) = &pair.value else { return None };
        let syn::Lit::Str(text) = &value.lit else { return None };
        attribute.path().is_ident("path").then(|| text.value())
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the name that an item adds to its module.
fn name_of(item: &syn::Item) -> Option<String> {
    let ident = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}
