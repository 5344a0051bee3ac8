//! The text of a profile, read strictly.
//!
//! Not here: what its values mean together (check).
//!
//! Invariant: every error names a line; of an unknown word it says what is known in its place, and
//! what was probably meant.

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ProfileError, Source, nearest};
use super::format::Profile;

/// Version of the format.
const SCHEMA: u32 = 1;

/// Reads a profile, changed as one of its variants says.
pub(super) fn read(source: Source<'_>, variant: Option<&str>) -> Result<Profile, ProfileError> {
    let mut table = DeTable::parse(source.text).map_err(|error| explain(source, &error))?;
    // As it stands first: a wrong key is told as such, not as what a variant made of it.
    let plain = typed(source, table.clone())?;
    let Some(name) = variant else { return Ok(plain) };
    apply(source, table.get_mut(), name, &plain)?;
    typed(source, table)
}

fn typed(source: Source<'_>, table: Spanned<DeTable<'_>>) -> Result<Profile, ProfileError> {
    let read = Profile::deserialize(toml::Deserializer::from(table));
    let profile = read.map_err(|error| explain(source, &error))?;
    if *profile.schema.get_ref() != SCHEMA {
        return Err(source.contradiction(
            &profile.schema.span(),
            format!("schema {} is not known to this program", profile.schema.get_ref()),
            format!("it reads schema {SCHEMA}; use the program the profile was written for"),
        ));
    }
    Ok(profile)
}

/// Puts the values of a variant's `set` in their places.
fn apply<'a>(
    source: Source<'_>,
    root: &mut DeTable<'a>,
    name: &str,
    plain: &Profile,
) -> Result<(), ProfileError> {
    let variants = root.get("variant").map(Spanned::get_ref).and_then(DeValue::as_array);
    let named = |variant: &&Spanned<DeValue<'a>>| {
        let given = variant.get_ref().get("name").and_then(|name| name.get_ref().as_str());
        given == Some(name)
    };
    let Some(chosen) = variants.into_iter().flatten().find(named) else {
        let known: Vec<&str> = plain.variant.iter().map(|known| known.name.as_str()).collect();
        let known = match known.as_slice() {
            [] => "it has none".to_owned(),
            known => format!("it has {}", known.join(", ")),
        };
        let (file, name) = (source.file.to_owned(), name.to_owned());
        return Err(ProfileError::Variant { file, name, known });
    };
    let set = chosen.get_ref().get("set").and_then(|set| set.get_ref().as_table());
    for (path, value) in set.cloned().unwrap_or_default() {
        put(source, root, &path, value)?;
    }
    Ok(())
}

/// Puts a value in the place of another that is there: `matrix.block`.
fn put<'a>(
    source: Source<'_>,
    root: &mut DeTable<'a>,
    path: &Spanned<std::borrow::Cow<'a, str>>,
    value: Spanned<DeValue<'a>>,
) -> Result<(), ProfileError> {
    let mut table = root;
    let mut parts = path.get_ref().split('.').peekable();
    while let Some(part) = parts.next() {
        let known: Vec<String> = table.keys().map(|key| key.get_ref().to_string()).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let unknown = || source.unknown(&path.span(), part, &known);
        let place = table.get_mut(part).ok_or_else(unknown)?;
        if parts.peek().is_none() {
            *place = value;
            return Ok(());
        }
        table = match place.get_mut() {
            DeValue::Table(inner) => inner,
            other => {
                return Err(source.contradiction(
                    &path.span(),
                    format!("`{}` goes through `{part}`, a {}", path.get_ref(), other.type_str()),
                    "name a key of a table",
                ));
            }
        };
    }
    Ok(())
}

/// An error of the TOML library with its line, and with what was probably meant.
fn explain(source: Source<'_>, error: &toml::de::Error) -> ProfileError {
    let place = error.span().unwrap_or_default();
    let (file, line) = (source.file.to_owned(), source.line(&place));
    let message = error.message();
    // serde gives what it knows only in words, the names in backticks.
    let mut quoted = message.split('`').skip(1).step_by(2);
    let first = quoted.next().unwrap_or_default().to_owned();
    if message.starts_with("unknown field") || message.starts_with("unknown variant") {
        let known: Vec<&str> = quoted.collect();
        let nearest = nearest(&first, &known);
        return ProfileError::UnknownWord {
            file,
            line,
            word: first,
            nearest,
            known: known.join(", "),
        };
    }
    if message.starts_with("missing field") {
        return ProfileError::Missing { file, line, key: first };
    }
    ProfileError::Syntax { file, line, what: message.trim_end().replace('\n', "; ") }
}
