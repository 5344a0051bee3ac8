//! Paths of calls: which fields of a request become parts of the URL.
//!
//! `shape` reads the fields in the query and in the body of a request, `client` writes them.
//!
//! Invariant: a path that [`Path::fill`] fills matches the [`Path::route`] of the same template, so
//! the server finds the call.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};

/// Characters that are percent-encoded. Letters, digits, `-`, `.`, `_`, `~` (RFC 3986 section 2.3)
/// and `:` are not encoded.
const PART: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// Percent-encodes a text as one part of a path or query.
pub(crate) fn escape(text: &str) -> String {
    utf8_percent_encode(text, PART).to_string()
}

/// A path template of the table of calls, split into parts.
pub(crate) struct Path {
    parts: Vec<Part>,
}

enum Part {
    Text(&'static str),
    Field(PathField),
}

/// A field of the request, and the path parameters that contain its value.
pub(crate) struct PathField {
    pub(crate) name: &'static str,
    pub(crate) params: Vec<&'static str>,
}

impl Path {
    /// Splits a template into parts; [`calls!`](super::table) describes templates.
    ///
    /// # Panics
    /// If a brace is not closed, which is an error in the table.
    pub(crate) fn parse(template: &'static str) -> Self {
        let (mut parts, mut rest) = (Vec::new(), template);
        while let Some((text, after)) = rest.split_once('{') {
            let (field, after) = after.split_once('}').expect("a path closes its braces");
            let (name, params) = field.split_once(':').unwrap_or((field, field));
            parts.push(Part::Text(text));
            parts.push(Part::Field(PathField { name, params: params.split('/').collect() }));
            rest = after;
        }
        parts.push(Part::Text(rest));
        Self { parts }
    }

    /// Returns the path in the form of routers and OpenAPI: `/v1/volumes/{pool}/{volume}/size`.
    pub(crate) fn route(&self) -> String {
        let one = |part: &Part| match part {
            Part::Text(text) => (*text).to_owned(),
            Part::Field(field) => {
                let params: Vec<String> =
                    field.params.iter().map(|param| format!("{{{param}}}")).collect();
                params.join("/")
            }
        };
        self.parts.iter().map(one).collect()
    }

    /// Returns the fields of the request that are in the path.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &PathField> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Field(field) => Some(field),
        })
    }

    /// Removes from `request` the fields that belong in the path, and returns the path with their
    /// values.
    pub(crate) fn fill(&self, request: &mut Map<String, Value>) -> String {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled += text,
                Part::Field(field) => {
                    let value = request.remove(field.name).unwrap_or_default();
                    let text = text(&value);
                    let pieces = text.splitn(field.params.len(), '/');
                    filled += &pieces.map(escape).collect::<Vec<_>>().join("/");
                }
            }
        }
        filled
    }

    /// Returns the request fields that the path parameters contain: the reverse of [`Self::fill`].
    pub(crate) fn take(&self, params: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let value = |param: &&str| {
            let found = params.iter().find(|(name, _)| name == param);
            found.map_or("", |(_, value)| value)
        };
        let field = |field: &PathField| {
            let pieces: Vec<&str> = field.params.iter().map(value).collect();
            (field.name, pieces.join("/"))
        };
        self.fields().map(field).collect()
    }
}

/// Returns a value as text for a path or a query.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(template: &'static str, request: Value) -> (String, Value) {
        let Value::Object(mut fields) = request else { panic!("an object") };
        let path = Path::parse(template).fill(&mut fields);
        (path, Value::Object(fields))
    }

    #[test]
    fn fields_fill_the_path_and_come_back() {
        let template = "/v1/volumes/{name:pool/volume}/size";
        let (path, rest) = filled(template, json!({"name": "tank/a b", "size_bytes": 4096}));
        assert_eq!(path, "/v1/volumes/tank/a%20b/size");
        assert_eq!(rest, json!({"size_bytes": 4096}));
        let parsed = Path::parse(template);
        assert_eq!(parsed.route(), "/v1/volumes/{pool}/{volume}/size");
        let taken = parsed.take(&[("volume", "a b"), ("pool", "tank")]);
        assert_eq!(taken, [("name", "tank/a b".to_owned())]);
    }

    #[test]
    fn slash_of_a_name_stays_in_its_part() {
        let (path, rest) =
            filled("/v1/exports/{protocol}/{name}", json!({"name": "tank/a", "protocol": "nbd"}));
        assert_eq!((path.as_str(), rest), ("/v1/exports/nbd/tank%2Fa", json!({})));
        let (path, _) = filled("/v1/luns/{target}/{number}", json!({"target": "t", "number": 3}));
        assert_eq!(path, "/v1/luns/t/3");
        assert_eq!(Path::parse("/v1/pools/{name:pool}").route(), "/v1/pools/{pool}");
    }
}
