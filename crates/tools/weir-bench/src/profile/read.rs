//! Strict parser for the text of a profile.
//!
//! `check` validates the values in combination.
//!
//! Invariant: every error contains a line number; the error for an unknown word also lists the
//! valid words and the most similar one.

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ProfileError, Source, nearest};
use super::format::Profile;

/// Version of the format of profiles.
const SCHEMA: u32 = 1;

/// Reads a profile, and applies a variant of the profile if the user named one.
pub(super) fn read(source: Source<'_>, variant: Option<&str>) -> Result<Profile, ProfileError> {
    let mut table = DeTable::parse(source.text).map_err(|error| explain(source, &error))?;
    // Deserialize the unchanged profile first, so that an invalid key is reported before a variant
    // can replace its value.
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
            format!("schema {} is not supported", profile.schema.get_ref()),
            format!(
                "this program supports schema {SCHEMA}; use the program version that the profile \
                 was written for"
            ),
        ));
    }
    Ok(profile)
}

/// Applies the values in the `set` table of a variant to the profile.
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

/// Replaces an existing value of the profile. A path such as `matrix.block` names the value.
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
                    format!(
                        "`{}` contains `{part}`, which is a {}",
                        path.get_ref(),
                        other.type_str()
                    ),
                    "name a key of a table",
                ));
            }
        };
    }
    Ok(())
}

/// Converts an error of the TOML library: adds the line number and, for an unknown word, the most
/// similar valid word.
fn explain(source: Source<'_>, error: &toml::de::Error) -> ProfileError {
    let place = error.span().unwrap_or_default();
    let (file, line) = (source.file.to_owned(), source.line(&place));
    let message = error.message();
    // serde lists the valid words only in its message, where each word is in backticks.
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
