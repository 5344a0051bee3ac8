//! Rules that need the parsed file: about glob imports, unsafe code and names.
//!
//! Not here: types and name resolution; the rules see only one file at a time.
//!
//! Invariants:
//! - a name is checked where it is declared (items, fields, parameters, `let`), never where it is
//!   used, so a call of a library's `as_chunks` is not a finding;
//! - the methods in an implementation of a trait are not checked, because the trait chose their
//!   names.

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::attributes::is_test;
use super::glossary::Glossary;
use crate::tidy::finding::{Finding, Rule, Source};

/// Paths that may contain unsafe code: buffers, system calls and vector instructions.
const UNSAFE_HOMES: [&str; 5] = [
    "crates/base/weir-block/",
    "crates/base/weir-device/",
    "crates/base/weir-codec/src/parity/avx2.rs",
    "crates/tools/weir-bench/src/target/uring.rs",
    "bin/weir/tests/all/common/mapped.rs",
];

/// Glob imports that are usual and therefore allowed, in addition to `super::*` in tests.
const GLOBS: [&str; 1] = ["proptest::prelude"];

/// Returns the findings of one file.
pub(super) fn check(source: &Source, glossary: &Glossary) -> Vec<Finding> {
    let parsed = source
        .text
        .parse::<TokenStream>()
        .map_err(syn::Error::from)
        .and_then(|tokens| Ok((tokens.clone(), syn::parse2::<syn::File>(tokens)?)));
    let (tokens, file) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            let line = error.span().start().line;
            return vec![source.finding(Rule::Syntax, line, error.to_string())];
        }
    };
    let tests = usize::from(source.is_test());
    let mut visitor = Visitor { source, glossary, tests, findings: Vec::new() };
    if !UNSAFE_HOMES.iter().any(|home| source.path.starts_with(home)) {
        visitor.unsafe_code(tokens);
    }
    visitor.visit_file(&file);
    visitor.findings
}

struct Visitor<'a> {
    source: &'a Source,
    glossary: &'a Glossary,
    /// Number of modules around the current item that are test code.
    tests: usize,
    findings: Vec<Finding>,
}

impl Visitor<'_> {
    /// Checks the tokens of a macro call one by one, because they are not parsed as code.
    fn unsafe_code(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.unsafe_code(group.stream()),
                TokenTree::Ident(ident) if ident == "unsafe" => {
                    let line = ident.span().start().line;
                    let what = format!("unsafe code belongs in {}", UNSAFE_HOMES.join(" or "));
                    self.findings.push(self.source.finding(Rule::Unsafe, line, what));
                }
                _ => {}
            }
        }
    }

    fn name(&mut self, ident: &Ident) {
        if let Some((refused, instead)) = self.glossary.refuses(&ident.to_string()) {
            let what = format!("`{ident}` says {refused}; docs/GLOSSARY.md says {instead}");
            let line = ident.span().start().line;
            self.findings.push(self.source.finding(Rule::Glossary, line, what));
        }
    }

    /// Checks the names that the pattern of a `let` or of a parameter binds.
    fn bindings(&mut self, pattern: &syn::Pat) {
        struct Bindings<'a>(Vec<&'a Ident>);
        impl<'a> Visit<'a> for Bindings<'a> {
            fn visit_pat_ident(&mut self, pat: &'a syn::PatIdent) {
                self.0.push(&pat.ident);
                visit::visit_pat_ident(self, pat);
            }
        }
        let mut bindings = Bindings(Vec::new());
        bindings.visit_pat(pattern);
        for ident in bindings.0 {
            self.name(ident);
        }
    }

    fn globs(&mut self, tree: &syn::UseTree, path: &str) {
        match tree {
            syn::UseTree::Path(next) => {
                let path = format!("{path}::{}", next.ident);
                self.globs(&next.tree, path.trim_start_matches(':'));
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.globs(tree, path);
                }
            }
            syn::UseTree::Glob(glob) => {
                let custom = GLOBS.contains(&path) || (path == "super" && self.tests > 0);
                if !custom {
                    let what = format!("`{path}::*`: import by name");
                    let line = glob.star_token.spans[0].start().line;
                    self.findings.push(self.source.finding(Rule::Glob, line, what));
                }
            }
            syn::UseTree::Name(_) | syn::UseTree::Rename(_) => {}
        }
    }
}

/// True if a declaration re-exports all items of a child module: `pub use snapshot::*;`.
fn is_facade(item: &syn::ItemUse) -> bool {
    let syn::UseTree::Path(path) = &item.tree else { return false };
    let is_own = !["crate", "self", "super"].iter().any(|word| path.ident == word);
    is_own
        && matches!(item.vis, syn::Visibility::Public(_))
        && matches!(*path.tree, syn::UseTree::Glob(_))
}

/// Defines the visitor of a kind of item, which checks the item's name, then the item's contents.
macro_rules! named {
    ($($visit:ident($item:ty);)*) => {
        $(fn $visit(&mut self, item: &'ast $item) {
            self.name(&item.ident);
            visit::$visit(self, item);
        })*
    };
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    named! {
        visit_item_struct(syn::ItemStruct);
        visit_item_enum(syn::ItemEnum);
        visit_item_union(syn::ItemUnion);
        visit_item_trait(syn::ItemTrait);
        visit_item_type(syn::ItemType);
        visit_item_const(syn::ItemConst);
        visit_item_static(syn::ItemStatic);
        visit_variant(syn::Variant);
        visit_impl_item_const(syn::ImplItemConst);
        visit_trait_item_const(syn::TraitItemConst);
        visit_trait_item_type(syn::TraitItemType);
        visit_signature(syn::Signature);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let test = usize::from(is_test(&item.attrs));
        self.name(&item.ident);
        self.tests += test;
        visit::visit_item_mod(self, item);
        self.tests -= test;
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.trait_.is_none() {
            visit::visit_item_impl(self, item);
            return;
        }
        for inner in &item.items {
            if let syn::ImplItem::Fn(method) = inner {
                self.visit_block(&method.block);
            }
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(ident) = &field.ident {
            self.name(ident);
        }
        visit::visit_field(self, field);
    }

    fn visit_fn_arg(&mut self, arg: &'ast syn::FnArg) {
        if let syn::FnArg::Typed(typed) = arg {
            self.bindings(&typed.pat);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        self.bindings(&local.pat);
        visit::visit_local(self, local);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_facade(item) {
            self.globs(&item.tree, "");
        }
    }
}
