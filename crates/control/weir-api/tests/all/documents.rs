//! Tests that the generated documents are up to date: `docs/openapi.json`, `docs/errors.md`,
//! `docs/reference/api.md` and `docs/reference/properties.md`.
//!
//! The contents of these documents come from weir-api itself.
//!
//! Invariant: only `UPDATE=1 cargo test -p weir-api` writes these documents.

use std::fmt::Write;
use std::path::Path;

use weir_api::types::PROPERTIES;
use weir_api::wire::{advice, exit_code, http_status};
use weir_api::{Operation, openapi};
use weir_base::ErrorKind;

fn check(name: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/{name} is not what the code says; refresh it: UPDATE=1 cargo test -p weir-api"
    );
}

#[test]
fn openapi_is_checked_in() {
    let document = openapi();
    let text = document.to_pretty_json().unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["openapi"].as_str().map(|v| &v[..3]), Some("3.1"));
    check("openapi.json", &format!("{text}\n"));
}

// Regression: the linter Redocly found 222 errors in the document: no server, no security,
// responses without a description, and no response to an invalid request.
#[test]
fn document_passes_the_recommended_rules_of_its_linter() {
    let json = serde_json::to_value(openapi()).unwrap();
    let url = json["servers"][0]["url"].as_str().unwrap_or_default();
    assert!(url.starts_with("http"), "no-empty-servers");
    let schemes = json["components"]["securitySchemes"].as_object().unwrap();
    let securities = json["security"].as_array().unwrap();
    let named = securities.iter().flat_map(|one| one.as_object().unwrap().keys());
    let named: Vec<&String> = named.collect();
    assert!(!named.is_empty(), "security-defined");
    assert!(named.iter().all(|name| schemes.contains_key(*name)), "security-defined: {named:?}");
    for (path, methods) in json["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses.contains_key("4XX"), "operation-4xx-response: {method} {path}");
            for (status, response) in responses {
                let text = response["description"].as_str().unwrap_or_default();
                assert!(!text.is_empty(), "response description: {method} {path} {status}");
            }
            for text in ["summary", "operationId"] {
                assert!(operation[text].is_string(), "{text}: {method} {path}");
            }
        }
    }
}

#[test]
fn property_table_is_in_the_operating_document() {
    const BEGIN: &str = "<!-- properties: printed by `UPDATE=1 cargo test -p weir-api` -->\n";
    const END: &str = "<!-- end -->";
    let name = "operating/properties.md";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs").join(name);
    let document = std::fs::read_to_string(path).unwrap();
    let (before, rest) = document.split_once(BEGIN).expect("where the table begins");
    let (_, after) = rest.split_once(END).expect("where it ends");
    let mut table = String::from("| property | of | values | default | inherited | what it is |\n");
    table += "| --- | --- | --- | --- | --- | --- |\n";
    for spec in PROPERTIES {
        let of: Vec<_> = spec.of.iter().map(|of| format!("{of:?}").to_lowercase()).collect();
        let inherited = if spec.inherits { "yes" } else { "" };
        writeln!(
            table,
            "| `{}` | {} | {} | {} | {inherited} | {} |",
            spec.name,
            of.join(", "),
            spec.values.unwrap_or("only shown"),
            spec.default,
            spec.what
        )
        .unwrap();
    }
    check(name, &format!("{before}{BEGIN}{table}{END}{after}"));
}

#[test]
fn references_in_the_document_resolve() {
    let json = serde_json::to_value(openapi()).unwrap();
    let mut references = Vec::new();
    collect(&json, &mut references);
    assert!(references.len() > 20, "the document lost its types");
    for reference in references {
        let pointer = reference.strip_prefix('#').expect("inside the document");
        assert!(json.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}

fn collect(value: &serde_json::Value, to: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            if let Some(text) = map.get("$ref").and_then(|r| r.as_str()) {
                to.push(text.to_owned());
            }
            map.values().for_each(|inner| collect(inner, to));
        }
        serde_json::Value::Array(list) => list.iter().for_each(|inner| collect(inner, to)),
        _ => {}
    }
}

/// Returns the usual name of the errno that an NBD client gets.
fn nbd_errno(kind: ErrorKind) -> &'static str {
    match weir_nbd::errno(kind) as u32 {
        1 => "EPERM",
        5 => "EIO",
        22 => "EINVAL",
        28 => "ENOSPC",
        other => panic!("{kind:?} maps to {other}, which has no name here"),
    }
}

#[test]
fn errors_are_documented() {
    let mut text = String::from(
        "# Errors\n\n\
         Printed from the code: `UPDATE=1 cargo test -p weir-api`.\n\n\
         Every error has a kind, and the kind says what to do. Most errors carry a more exact \
         action, which `weir` prints after `try:`. An exit code of 0 is success; 2 is a command \
         line that cannot be read.\n\n\
         | kind | what to do | HTTP | exit code | NBD |\n| --- | --- | --- | --- | --- |\n",
    );
    for kind in ErrorKind::ALL {
        writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            kind.name(),
            advice(kind),
            http_status(kind).as_u16(),
            exit_code(kind),
            nbd_errno(kind)
        )
        .unwrap();
    }
    check("errors.md", &text);
}

#[test]
fn calls_are_documented() {
    let mut text = String::from(
        "# API\n\nPrinted from the code: `UPDATE=1 cargo test -p weir-api`.\n\n\
         The server answers JSON over HTTP, on a unix socket and, if configured, over TCP with a \
         token. [openapi.json](../openapi.json) has the schemas of all requests and answers; a \
         running server serves it at `/v1/openapi.json`. A call needs the role below or a higher \
         one, and a scope that covers its objects ([Security](../security.md)). Errors have one \
         form ([Errors](../errors.md)).\n\n\
         ```\ncurl --unix-socket /run/weir/api.sock http://localhost/v1/pools\n```\n",
    );
    let mut tag = "";
    let mut all: Vec<&Operation> = Operation::all().collect();
    all.sort_by_key(|operation| operation.tag);
    for operation in all {
        if operation.tag != tag {
            tag = operation.tag;
            write!(text, "\n## {tag}\n\n| call | request | role | purpose |\n").unwrap();
            text.push_str("| --- | --- | --- | --- |\n");
        }
        let summary = operation.summary.split_whitespace().collect::<Vec<_>>().join(" ");
        let (name, method, path) = (operation.name, &operation.method, operation.path);
        let path = path.replace(":pool/volume", "").replace(":pool", "");
        let role = operation.role.name();
        writeln!(text, "| {name} | `{method} {path}` | {role} | {summary} |").unwrap();
    }
    check("reference/api.md", &text);
}

#[test]
fn properties_are_documented() {
    let mut text = String::from(
        "# Properties\n\nPrinted from the code: `UPDATE=1 cargo test -p weir-api`.\n\n\
         `weir get all NAME` shows all properties of a pool, volume or snapshot with their \
         sources, `weir set PROPERTY=VALUE NAME` sets one \
         ([Sources and inheritance](../operating/properties.md)).\n",
    );
    for (title, is_settable) in
        [("Properties that can be set", true), ("Read-only properties", false)]
    {
        write!(text, "\n## {title}\n\n").unwrap();
        text.push_str("| property | of | meaning | values | default | inherited |\n");
        text.push_str("| --- | --- | --- | --- | --- | --- |\n");
        for spec in PROPERTIES.iter().filter(|spec| spec.values.is_some() == is_settable) {
            let of: Vec<String> =
                spec.of.iter().map(|of| format!("{of:?}").to_lowercase()).collect();
            let (values, default) = (spec.values.unwrap_or("-"), spec.default);
            let default = if default.is_empty() { "-" } else { default };
            let inherits = if spec.inherits { "yes" } else { "-" };
            let (name, of, what) = (spec.name, of.join(", "), spec.what);
            writeln!(text, "| {name} | {of} | {what} | {values} | {default} | {inherits} |")
                .unwrap();
        }
    }
    check("reference/properties.md", &text);
}

#[test]
fn exit_codes_are_unique_and_not_reserved() {
    let codes: std::collections::BTreeSet<u8> = ErrorKind::ALL.map(exit_code).into();
    assert_eq!(codes.len(), ErrorKind::ALL.len());
    assert!(codes.iter().all(|code| (3..100).contains(code)));
}
