//! `cargo xtask moved BASE`: checks that the changes since BASE only move items between files.
//!
//! Not here: files that are not Rust files.
//!
//! Both versions are parsed into items: types, functions, constants, and each method of an `impl`.
//! The comparison ignores everything that a move changes: `use`, `mod`, visibility, documentation,
//! and the path before a name. Items that only one of the two versions has are printed.
//!
//! Invariant: every change of code that is not a move is printed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use weir_command::command;

use crate::workspace;

/// Version to compare with.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Commit before the move
    #[arg(value_name = "BASE")]
    base: String,
}

/// Kind and name of an item, and its text as tokens.
type Item = (String, String);

/// All items of a version, each with the files that contain it.
type Items = BTreeMap<Item, Vec<String>>;

/// Runs the task.
pub(crate) fn main(args: &Args) -> Result<()> {
    let Args { base } = args;
    let show = |path: &str| command::git(&["show", &format!("{base}:{path}")]);
    let before = items(&files_of(base)?, show)?;
    let read = |path: &str| {
        fs::read_to_string(command::root().join(path)).with_context(|| path.to_owned())
    };
    let after = items(&workspace::files(&["*.rs"])?, read)?;
    let found = differences(&before, &after);
    for line in &found {
        println!("{line}");
    }
    if !found.is_empty() {
        bail!("{} items differ from {base}", found.len());
    }
    let count: usize = after.values().map(Vec::len).sum();
    println!("moved: {count} items, the same as in {base}");
    Ok(())
}

fn files_of(commit: &str) -> Result<Vec<String>> {
    let listed = command::git(&["ls-tree", "-r", "--name-only", commit])?;
    let is_rust = |path: &&str| Path::new(path).extension().is_some_and(|it| it == "rs");
    Ok(listed.lines().filter(is_rust).map(str::to_owned).collect())
}

fn items(paths: &[String], text: impl Fn(&str) -> Result<String>) -> Result<Items> {
    let mut found = Items::new();
    for path in paths {
        let file = syn::parse_file(&text(path)?).with_context(|| path.clone())?;
        for item in items_of(&file.items) {
            found.entry(item).or_default().push(path.clone());
        }
    }
    Ok(found)
}

/// Returns one line for each item that occurs more often in one version than in the other.
fn differences(before: &Items, after: &Items) -> Vec<String> {
    let mut lines = Vec::new();
    let mut compare = |sign: char, these: &Items, others: &Items| {
        for (item, files) in these {
            let known = others.get(item).map_or(0, Vec::len);
            if files.len() > known {
                lines.push(format!("{sign} {} ({})", item.0, files.join(", ")));
            }
        }
    };
    compare('-', before, after);
    compare('+', after, before);
    lines.sort_by_key(|line| (line[2..].to_owned(), line.clone()));
    lines
}

fn items_of(items: &[syn::Item]) -> Vec<Item> {
    let mut found = Vec::new();
    for item in items {
        match item {
            syn::Item::Use(_) => {}
            syn::Item::Mod(module) => {
                let inner = module.content.as_ref().map(|(_, items)| items_of(items));
                found.extend(inner.unwrap_or_default());
            }
            syn::Item::Impl(block) => {
                // Two `impl` blocks with the same header count as one.
                let mut header = block.clone();
                header.items.clear();
                let header = plain(header.to_token_stream());
                for inner in &block.items {
                    let name = match inner {
                        syn::ImplItem::Const(it) => it.ident.to_string(),
                        syn::ImplItem::Fn(it) => it.sig.ident.to_string(),
                        syn::ImplItem::Type(it) => it.ident.to_string(),
                        _ => String::new(),
                    };
                    found.push((format!("{header} {name}"), plain(inner.to_token_stream())));
                }
                if block.items.is_empty() {
                    found.push((header, String::new()));
                }
            }
            other => found.push((name_of(other), plain(other.to_token_stream()))),
        }
    }
    found
}

/// Returns the kind and the name of an item, as in the source.
fn name_of(item: &syn::Item) -> String {
    let words = plain(item.to_token_stream());
    let end = words.find(['{', '(', '=', ':', ';', '<']).unwrap_or(words.len());
    words[..end].trim().chars().take(80).collect()
}

/// Returns tokens as text, without visibility, documentation and `use` declarations, and with only
/// the last segment of each path.
fn plain(tokens: TokenStream) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(ident) if ident == "pub" => {
                if let Some(TokenTree::Group(group)) = tokens.peek()
                    && is_scope(&group.stream())
                {
                    tokens.next();
                }
            }
            TokenTree::Ident(ident) if ident == "use" && !is_punct(tokens.peek(), '<') => {
                for token in tokens.by_ref() {
                    if is_punct(Some(&token), ';') {
                        break;
                    }
                }
            }
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                if let Some(TokenTree::Group(group)) = tokens.peek()
                    && first_word(&group.stream()).is_some_and(|word| word == "doc")
                {
                    tokens.next();
                } else {
                    words.push("#".to_owned());
                }
            }
            TokenTree::Ident(ident) => {
                // Of a path `a::b`, keep only `b`.
                if let [.., before, one, two] = words.as_slice()
                    && one == ":"
                    && two == ":"
                    && before.starts_with(|c: char| c.is_alphabetic() || c == '_')
                {
                    words.truncate(words.len() - 3);
                }
                words.push(ident.to_string());
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    proc_macro2::Delimiter::Parenthesis => ("(", ")"),
                    proc_macro2::Delimiter::Brace => ("{", "}"),
                    proc_macro2::Delimiter::Bracket => ("[", "]"),
                    proc_macro2::Delimiter::None => ("", ""),
                };
                words.push(open.to_owned());
                words.push(plain(group.stream()));
                words.push(close.to_owned());
            }
            TokenTree::Punct(punct) => words.push(punct.as_char().to_string()),
            TokenTree::Literal(literal) => words.push(literal.to_string()),
        }
    }
    // Remove a trailing comma, because rustfmt adds and removes such commas.
    if words.last().is_some_and(|word| word == ",") {
        words.pop();
    }
    words.join(" ")
}

/// True for the tokens between the parentheses of `pub(..)`.
fn is_scope(tokens: &TokenStream) -> bool {
    first_word(tokens).is_some_and(|word| ["crate", "super", "self", "in"].contains(&&*word))
}

fn first_word(tokens: &TokenStream) -> Option<String> {
    match tokens.clone().into_iter().next() {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Items {
        let paths: Vec<String> = files.iter().map(|(path, _)| (*path).to_owned()).collect();
        let text = |path: &str| {
            let found = files.iter().find(|(known, _)| *known == path);
            Ok(found.expect("it is listed").1.to_owned())
        };
        items(&paths, text).expect("it parses")
    }

    #[test]
    fn move_of_items_is_no_difference() {
        let before = of(&[(
            "a.rs",
            "use crate::x::Y;\nmod b;\n/// One.\npub(crate) struct A { pub x: super::x::Y }\n\
             impl A { fn f(&self) -> Y { use std::fmt; self.x } pub fn g(&self) {} }\n",
        )]);
        let after = of(&[
            (
                "a.rs",
                "pub struct A { pub(super) x: crate::room::x::Y, }\nimpl A { fn g(&self) {} }",
            ),
            (
                "b.rs",
                "use crate::room::x;\nuse super::a::A;\n/// Two.\n\
                 impl A { pub fn f(&self) -> x::Y { self.x } }\n",
            ),
        ]);
        assert_eq!(differences(&before, &after), [] as [String; 0]);
    }

    #[test]
    fn other_changes_are_found() {
        let before = of(&[("a.rs", "fn f() -> u32 { 1 }\nconst C: u8 = 1;\nimpl A { fn g() {} }")]);
        let changes = [
            ("fn f() -> u32 { 2 }\nconst C: u8 = 1;\nimpl A { fn g() {} }", 2),
            ("fn f() -> u32 { 1 }\nimpl A { fn g() {} }", 1),
            ("fn f() -> u32 { 1 }\nconst C: u8 = 1;\nimpl B { fn g() {} }", 2),
            ("fn f() -> u32 { 1 }\nfn f() -> u32 { 1 }\nconst C: u8 = 1;\nimpl A { fn g() {} }", 1),
        ];
        for (text, count) in changes {
            let found = differences(&before, &of(&[("a.rs", text)]));
            assert_eq!(found.len(), count, "{text}: {found:?}");
        }
        let found =
            differences(&before, &of(&[("a.rs", "const C: u8 = 1;\nimpl A { fn g() {} }")]));
        assert_eq!(found, ["- fn f (a.rs)"]);
    }
}
