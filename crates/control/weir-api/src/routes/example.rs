//! Examples of the schemas in the OpenAPI document, generated from the schemas.
//!
//! `describe` generates the schemas.
//!
//! Invariants:
//! - a test deserializes each example with the type of its schema, and checks each request;
//! - the example of a response has all fields. The example of a request with required fields has
//!   only these, because optional fields of a request may exclude one another.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

/// Values of texts whose description gives none (after "such as"), by the name of the field.
const TEXTS: &[(&str, &str)] = &[
    ("action", "weir pool status tank"),
    ("address", "192.0.2.7"),
    ("after", "41"),
    ("allow", "10.0.0.0/24"),
    ("ca_file", "/etc/weir/backup.pem"),
    ("call", "list its snapshots"),
    ("caller", "alice"),
    ("chap_user", "esx1"),
    ("clones", "tank/test"),
    ("confirm", "tank"),
    ("created_by", "alice"),
    ("digests", "000102030405060708090a0b0c0d0e0f"),
    ("disk", "/dev/sdb"),
    ("error", "pool tank is suspended"),
    ("exports", "tank/vm1"),
    ("from_guid", "16190321424437127421"),
    ("guid", "16190321424437127421"),
    ("holds", "backup"),
    ("inherited_from", "tank"),
    ("initiator", "iqn.1998-01.com.vmware:esx1"),
    ("io_backend", "io_uring"),
    ("iscsi_portals", "192.0.2.10:3260,1"),
    ("isid", "00023d000001"),
    ("job", "7"),
    ("kind", "invalid"),
    ("last_used_from", "192.0.2.7"),
    ("medium", "solid-state disk nvme0n1, write-back cache"),
    ("message", "/dev/sdb of pool tank is missing"),
    ("mutual_user", "vms"),
    ("naa", "60014057a1b2c3d4e5f60718293a4b5c"),
    ("name", "tank/vm1"),
    ("names", "tank/vm1"),
    ("nbd_addresses", "unix:/var/lib/weir/nbd.sock"),
    ("nfs_addresses", "192.0.2.10:2049"),
    ("new", "/dev/sdc"),
    ("next", "42"),
    ("note", "missing"),
    ("origin", "tank/vm1@monday"),
    ("outcome", "created"),
    ("part", "segment table"),
    ("path", "/dev/sdb"),
    ("pool", "tank"),
    ("portals", "192.0.2.10:3260,1"),
    ("properties", "compression"),
    ("property", "compression"),
    ("receiving", "tuesday"),
    ("run", "5f3a9c0e"),
    ("scope", "tank"),
    ("search", "/dev/disk/by-id"),
    ("secret", "0123456789abcdef"),
    ("secret_file", "/etc/weir/peer-secret"),
    ("see", "weir pool status --help"),
    ("session", "7"),
    ("snapshot", "tank/vm1@monday"),
    ("snapshots", "monday"),
    ("status", "A disk is missing."),
    ("tag", "backup"),
    ("taken_by", "schedule"),
    ("target", "iqn.2026-01.org.weir:vms"),
    ("to", "https://host:7118/backup/vm1"),
    ("token", "0123456789abcdef"),
    ("user", "esx1"),
    ("value", "zstd-3"),
    ("vdev", "mirror-0"),
    ("version", "0.2.0"),
    ("volume", "tank/vm1"),
    ("warnings", "the pool uses only a part of /dev/sdc"),
    ("who", "alice"),
    ("why", "it stores 29 % of the written data"),
];

/// Optional fields that a request needs nevertheless: one of several must be given.
const ONE_OF: &[(&str, &str)] = &[
    ("ChapAccount", "secret_file"),
    ("ReplicationCreate", "ca_file"),
    ("ReplicationCreate", "secret_file"),
];

/// Generates examples from the schemas of a document.
pub(super) struct Examples(Map<String, Value>);

impl Examples {
    pub(super) fn new(schemas: &BTreeMap<String, RefOr<Schema>>) -> Self {
        let json = |(name, schema): (&String, &RefOr<Schema>)| {
            (name.clone(), serde_json::to_value(schema).unwrap_or_default())
        };
        Self(schemas.iter().map(json).collect())
    }

    /// Returns an example of a schema of the document.
    pub(super) fn of(&self, name: &str) -> Value {
        self.value("", &self.0[name], &mut vec![name.to_owned()])
    }

    /// Returns an example of a field. `inside` has the names of the schemas that contain it.
    fn value(&self, field: &str, schema: &Value, inside: &mut Vec<String>) -> Value {
        if let Some(reference) = schema["$ref"].as_str() {
            let name = reference.rsplit('/').next().unwrap_or_default().to_owned();
            if inside.contains(&name) {
                return Value::Null;
            }
            inside.push(name.clone());
            let value = self.value(field, &self.0[&name], inside);
            inside.pop();
            return value;
        }
        if let Some(options) = schema["oneOf"].as_array() {
            return self.value(field, &options[0], inside);
        }
        if let Some(parts) = schema["allOf"].as_array() {
            let mut all = Map::new();
            for part in parts {
                if let Value::Object(fields) = self.value(field, part, inside) {
                    all.extend(fields);
                }
            }
            return Value::Object(all);
        }
        if let Some(values) = schema["enum"].as_array() {
            return values[0].clone();
        }
        let kind = schema["type"].as_str().or(schema["type"][0].as_str());
        let owner = inside.last().map_or("", String::as_str).to_owned();
        let description = schema["description"].as_str().unwrap_or_default();
        match kind.unwrap_or_default() {
            "object" => self.object(schema, inside),
            "array" if schema["items"]["type"] == "string" => {
                json!([text(&owner, field, description)])
            }
            "array" => match self.value(field, &schema["items"], inside) {
                Value::Null => json!([]),
                item => json!([item]),
            },
            "integer" if ["block_bytes", "record_bytes"].contains(&field) => json!(4096),
            "integer" if field.ends_with("unix_ms") => json!(1_795_952_820_000_u64),
            "integer" if field.ends_with("bytes") || field == "size" => json!(1_u64 << 30),
            "integer" if field.ends_with("seconds") => json!(900),
            "integer" => json!(schema["minimum"].as_u64().unwrap_or(1).max(1)),
            "number" => json!(1.5),
            "boolean" => json!(true),
            _ => text(&owner, field, description),
        }
    }

    fn object(&self, schema: &Value, inside: &mut Vec<String>) -> Value {
        let is_request = schema["additionalProperties"] == json!(false);
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        let mut object = Map::new();
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let owner = inside.last().map_or("", String::as_str);
            let is_needed =
                required.contains(&json!(name)) || ONE_OF.contains(&(owner, name.as_str()));
            if !is_request || required.is_empty() || is_needed {
                object.insert(name.clone(), self.value(name, field, inside));
            }
        }
        if schema["additionalProperties"].is_object() {
            object.insert("compression".to_owned(), json!("zstd-3"));
        }
        Value::Object(object)
    }
}

/// Returns the value of a text from its description, or from the table of field names.
fn text(owner: &str, field: &str, description: &str) -> Value {
    let given = description.split_once("such as `").and_then(|(_, rest)| rest.split_once('`'));
    let known = || TEXTS.iter().find(|(name, _)| *name == field).map(|(_, value)| *value);
    match (given, owner) {
        (Some((value, _)), _) => json!(value),
        (None, "ListHistory" | "ShowPool") if field == "name" => json!("tank"),
        (None, _) if field == "name" && owner.contains("Pool") => json!("tank"),
        (None, _) if field == "name" && owner.starts_with("Token") => json!("alice"),
        _ => json!(known().unwrap_or("text")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::de::DeserializeOwned;
    use utoipa::ToSchema;

    use super::*;
    use crate::calls::call::Call;
    use crate::calls::shape::Shape;
    use crate::calls::table::{Visit, visit};
    use crate::types;
    use crate::wire::ErrorBody;

    /// Deserializes the example of each schema of a document.
    struct Check {
        schemas: BTreeMap<String, RefOr<Schema>>,
        checked: BTreeSet<String>,
        errors: Vec<String>,
    }

    impl Check {
        fn parse<T: DeserializeOwned + ToSchema>(&mut self) -> Option<T> {
            let mut schemas = self.schemas.clone();
            schemas.insert(T::name().into_owned(), T::schema());
            let value = Examples::new(&schemas).of(&T::name());
            self.checked.insert(T::name().into_owned());
            match serde_json::from_value(value.clone()) {
                Ok(parsed) => {
                    self.mark(&json!(schemas[&*T::name()]), &value);
                    Some(parsed)
                }
                Err(error) => {
                    self.errors.push(format!("{}: {error}: {value}", T::name()));
                    None
                }
            }
        }

        /// Records the schemas of all fields of an example.
        fn mark(&mut self, schema: &Value, value: &Value) {
            if let Some(reference) = schema["$ref"].as_str() {
                let name = reference.rsplit('/').next().unwrap();
                self.checked.insert(name.to_owned());
                self.mark(&json!(self.schemas[name]), value);
            }
            for part in schema["allOf"].as_array().into_iter().flatten() {
                self.mark(part, value);
            }
            if !value.is_null() && schema["oneOf"].is_array() {
                self.mark(&schema["oneOf"][0], value);
            }
            if let Some(item) = value.as_array().and_then(|items| items.first()) {
                self.mark(&schema["items"], item);
            }
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(value) = value.get(name) {
                    self.mark(field, value);
                }
            }
        }
    }

    impl Visit for Check {
        fn visit<C: Call>(&mut self) {
            self.parse::<C::Answer>();
            let Some(request) = self.parse::<C>() else { return };
            if let Err(error) = request.check() {
                self.errors.push(format!("{}: {error}", C::name()));
            }
            let body = format!("{}Body", C::name());
            if self.schemas.contains_key(&body) {
                let mut value = Examples::new(&self.schemas).of(&body);
                let whole = json!(request);
                for field in Shape::of::<C>().path.fields() {
                    value[field.name] = whole[field.name].clone();
                }
                self.mark(&json!(self.schemas[&body]), &value);
                if let Err(error) = serde_json::from_value::<C>(value) {
                    self.errors.push(format!("{body}: {error}"));
                }
                self.checked.insert(body);
            }
        }
    }

    #[test]
    fn each_schema_has_an_example_of_its_type() {
        let schemas = crate::openapi().components.unwrap().schemas;
        let mut check = Check {
            schemas: schemas.into_iter().collect(),
            checked: BTreeSet::new(),
            errors: Vec::new(),
        };
        visit(&mut check);
        check.parse::<ErrorBody>();
        check.parse::<types::ReceiveProgress>();
        check.parse::<types::ChapAccount>();
        for name in check.schemas.keys().filter(|name| !check.checked.contains(*name)) {
            check.errors.push(format!("{name}: the example is not checked"));
        }
        assert!(check.errors.is_empty(), "{}", check.errors.join("\n"));
    }
}
