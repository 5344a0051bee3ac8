//! Shape of requests: which of their fields are in the path, in the query or in the body.
//!
//! The requests and the meaning of their fields are in `types`.
//!
//! The schema of a request shows which of its fields are numbers, booleans and lists. So the texts
//! in a path and a query can be converted to JSON, and one deserializer reads all requests.
//!
//! Invariants:
//! - a request has each field once: a field that is in the path and also in the body is refused as
//!   a duplicate;
//! - a query parameter that is not a field of the request is ignored.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::http::Method;
use serde_json::Value;
use utoipa::openapi::schema::{Object, Schema, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr};
use weir_base::ErrorKind;

use super::call::{Call, Operation};
use super::path::Path;
use crate::wire::ApiError;

/// A field of a request.
pub(crate) struct Field {
    pub(crate) schema: RefOr<Schema>,
    pub(crate) is_required: bool,
}

/// Type of the JSON value to which the text of a parameter is converted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Switch,
    List,
}

/// The fields of a request, and where they are in the HTTP request.
pub(crate) struct Shape {
    pub(crate) operation: &'static Operation,
    pub(crate) path: Path,
    /// The fields with fixed names.
    pub(crate) fields: BTreeMap<String, Field>,
    /// Schema of the fields that are not in `fields`; `None` if the request has only fields with
    /// fixed names.
    pub(crate) others: Option<RefOr<Schema>>,
    /// Description of the request.
    pub(crate) description: Option<String>,
}

impl Shape {
    /// Returns the shape of a call's request.
    pub(crate) fn of<C: Call>() -> Self {
        Self::new(C::OPERATION, C::schema())
    }

    /// # Panics
    /// If the schema is not an object, or has no field for a field of the path: an error in the
    /// table.
    fn new(operation: &'static Operation, schema: RefOr<Schema>) -> Self {
        let (object, others) = match schema {
            RefOr::T(Schema::Object(object)) => (object, None),
            RefOr::T(Schema::AllOf(all)) => {
                let (mut object, mut others) = (Object::default(), None);
                for item in all.items {
                    match item {
                        RefOr::T(Schema::Object(named)) if !named.properties.is_empty() => {
                            object = named;
                        }
                        open => others = Some(open),
                    }
                }
                (object, others)
            }
            _ => panic!("the request of {} is no object", operation.name),
        };
        let Object { properties, required, description, .. } = object;
        let field = |(name, schema): (String, RefOr<Schema>)| {
            let is_required = required.contains(&name);
            (name, Field { schema, is_required })
        };
        let fields: BTreeMap<String, Field> = properties.into_iter().map(field).collect();
        let path = Path::parse(operation.path);
        for field in path.fields() {
            let known = fields.contains_key(field.name);
            assert!(known, "{} has no field {}", operation.name, field.name);
        }
        Self { operation, path, fields, others, description }
    }

    /// Returns true if the fields outside the path are in the query, false if they are in the body.
    pub(crate) fn uses_query(&self) -> bool {
        uses_query(&self.operation.method)
    }

    /// True if a field of the request is in the path.
    pub(crate) fn is_in_path(&self, name: &str) -> bool {
        self.path.fields().any(|field| field.name == name)
    }

    /// Returns the fields that are not in the path.
    pub(crate) fn rest(&self) -> impl Iterator<Item = (&String, &Field)> {
        self.fields.iter().filter(|(name, _)| !self.is_in_path(name))
    }

    /// Returns the request as JSON text, from its path, its query and its body.
    ///
    /// # Errors
    /// `Invalid` for a parameter whose field is a number or boolean, but whose text is not.
    pub(crate) fn text<'a>(
        &self,
        params: &[(&str, &str)],
        query: &[(String, String)],
        body: &'a [u8],
    ) -> Result<Cow<'a, [u8]>, ApiError> {
        let mut named = Vec::new();
        for (name, text) in self.path.take(params) {
            named.push(self.json(name, &text)?);
        }
        if self.uses_query() {
            for (name, _) in self.rest() {
                if let Some((_, text)) = query.iter().find(|(known, _)| known == name) {
                    named.push(self.json(name, text)?);
                }
            }
            return Ok(Cow::Owned(format!("{{{}}}", named.join(",")).into_bytes()));
        }
        let body = body.trim_ascii();
        if named.is_empty() {
            return Ok(Cow::Borrowed(body));
        }
        // Clients of earlier versions send no body if all fields are in the path.
        let has_rest = self.others.is_some() || self.rest().next().is_some();
        let body = if body.is_empty() && !has_rest { b"{}" } else { body };
        let Some(inner) = body.strip_prefix(b"{").and_then(|body| body.strip_suffix(b"}")) else {
            // The body is not a JSON object; the deserializer returns the error for it.
            return Ok(Cow::Borrowed(body));
        };
        let comma = if inner.trim_ascii().is_empty() { "" } else { "," };
        let end = format!("{comma}{}}}", named.join(","));
        Ok(Cow::Owned([b"{", inner, end.as_bytes()].concat()))
    }

    /// Returns a field as JSON, `"name":value`, with the value that `text` represents.
    fn json(&self, name: &str, text: &str) -> Result<String, ApiError> {
        let wrong = |what: &str| {
            let message = format!("{name} is {text:?}; it must be {what}");
            ApiError::new(ErrorKind::Invalid, message)
        };
        let value = match kind(&self.fields[name].schema) {
            Kind::Text => Value::from(text),
            Kind::Number => Value::from(text.parse::<u64>().map_err(|_| wrong("a number"))?),
            Kind::Switch => match text {
                "true" => Value::from(true),
                "false" => Value::from(false),
                _ => return Err(wrong("true or false")),
            },
            Kind::List => text.split(',').filter(|entry| !entry.is_empty()).collect(),
        };
        Ok(format!("{}:{value}", Value::from(name)))
    }
}

/// True if requests with this method have fields in the query instead of the body.
pub(crate) fn uses_query(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::DELETE)
}

fn kind(schema: &RefOr<Schema>) -> Kind {
    let of_type = |kind: &Type| match kind {
        Type::Integer | Type::Number => Kind::Number,
        Type::Boolean => Kind::Switch,
        _ => Kind::Text,
    };
    match schema {
        RefOr::T(Schema::Array(_)) => Kind::List,
        RefOr::T(Schema::Object(object)) => match &object.schema_type {
            SchemaType::Type(one) => of_type(one),
            SchemaType::Array(several) => {
                let known = several.iter().find(|one| **one != Type::Null);
                known.map_or(Kind::Text, of_type)
            }
            SchemaType::AnyValue => Kind::Text,
        },
        _ => Kind::Text,
    }
}

/// Returns the schema and the description of the parameter that contains a field.
pub(crate) fn parameter(schema: &RefOr<Schema>) -> (RefOr<Schema>, Option<String>) {
    match schema {
        RefOr::Ref(reference) => {
            let description = Some(reference.description.clone());
            (RefOr::Ref(Ref::new(&reference.ref_location)), description)
        }
        // In a parameter, a list is a text with commas between its entries.
        RefOr::T(Schema::Array(array)) => {
            let text = Object::with_type(SchemaType::Type(Type::String));
            (RefOr::T(Schema::Object(text)), array.description.clone())
        }
        RefOr::T(Schema::Object(object)) => {
            let mut object = object.clone();
            let description = object.description.take();
            if let SchemaType::Array(several) = &object.schema_type {
                let known = several.iter().find(|one| **one != Type::Null).cloned();
                object.schema_type = SchemaType::Type(known.unwrap_or(Type::String));
            }
            (RefOr::T(Schema::Object(object)), description)
        }
        RefOr::T(other) => (RefOr::T(other.clone()), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{
        GetProperties, LunRemove, PoolScrub, ReceiveFinish, VolumeDestroy, VolumeResize, VolumeSet,
    };

    fn text<C: Call>(
        params: &[(&str, &str)],
        query: &[(&str, &str)],
        body: &str,
    ) -> Result<String, ApiError> {
        let query: Vec<_> =
            query.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let text = Shape::of::<C>().text(params, &query, body.as_bytes())?.into_owned();
        Ok(String::from_utf8(text).unwrap())
    }

    const NAME: &[(&str, &str)] = &[("pool", "tank"), ("volume", "a")];

    #[test]
    fn fields_come_from_path_query_and_body() {
        let resize = text::<VolumeResize>(NAME, &[], r#" {"size_bytes": 4096} "#).unwrap();
        assert_eq!(resize, r#"{"size_bytes": 4096,"name":"tank/a"}"#);
        let query = [("recursive", "true"), ("unknown", "1"), ("name", "tank/b")];
        let destroy = text::<VolumeDestroy>(NAME, &query, "").unwrap();
        assert_eq!(destroy, r#"{"name":"tank/a","recursive":true}"#);
        let lun = [("target", "iqn.2026-01.org.weir:\"a"), ("number", "3")];
        let remove = text::<LunRemove>(&lun, &[], "").unwrap();
        assert_eq!(remove, r#"{"target":"iqn.2026-01.org.weir:\"a","number":3}"#);
        let list = [("of", "tank/a,,tank/b")];
        let get = text::<GetProperties>(&[], &list, "").unwrap();
        assert_eq!(get, r#"{"of":["tank/a","tank/b"]}"#);
        let set = text::<VolumeSet>(NAME, &[], r#"{"compression":"lz4"}"#).unwrap();
        assert_eq!(set, r#"{"compression":"lz4","name":"tank/a"}"#);
        let finish = text::<ReceiveFinish>(&[("session", "7")], &[], "").unwrap();
        assert_eq!(finish, r#"{"session":"7"}"#);
    }

    #[test]
    fn wrong_parameters_are_refused_and_wrong_bodies_stay_wrong() {
        for number in ["", "-1", "x", "1e3", "18446744073709551616"] {
            let lun = [("target", "t"), ("number", number)];
            let error = text::<LunRemove>(&lun, &[], "").unwrap_err();
            assert!(error.message.contains("number"), "{error}");
        }
        text::<VolumeDestroy>(NAME, &[("recursive", "yes")], "").unwrap_err();
        let pool = [("pool", "tank")];
        for body in ["", "{", "}", "[]", "\"{}\"", "{}}", "{\"action\":\"stop\",\"name\":\"b\"}"] {
            let text = text::<PoolScrub>(&pool, &[], body).unwrap();
            serde_json::from_str::<PoolScrub>(&text).unwrap_err();
        }
    }
}
