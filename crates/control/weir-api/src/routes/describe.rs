//! The OpenAPI document: generated from the table of calls and the schemas of requests and
//! responses.
//!
//! `routes` serves the document.
//!
//! Invariants:
//! - each operation has its role, its request, its response and an error response;
//! - the document passes the rule set `recommended` of the linter Redocly (tests/all/documents.rs).

use std::collections::BTreeMap;

use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::path::{Operation as Described, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{
    AdditionalProperties, Array, KnownFormat, Object, Schema, SchemaFormat, SchemaType, Type,
};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, Content, HttpMethod, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder,
    Paths, Ref, RefOr, Required, ResponseBuilder, ServerBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use super::PART_TYPE;
use super::example::Examples;
use crate::calls::call::{Call, Operation};
use crate::calls::path::Path;
use crate::calls::shape::{Shape, parameter};
use crate::calls::table::{RECEIVE_PART, SEND_STREAM, Visit, visit};
use crate::place::API_PORT;
use crate::types::{Answer, ReceiveProgress};
use crate::wire::ErrorBody;

const JSON: &str = "application/json";

/// Name of the security scheme for tokens.
const BEARER: &str = "bearer";

/// Returns the OpenAPI 3.1 document of the interface.
pub fn openapi() -> OpenApi {
    let mut document = Document::default();
    document.add_type::<ErrorBody>();
    visit(&mut document);
    document.send_stream();
    document.receive_part();
    document.add_examples();
    let license = LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0"));
    let info = InfoBuilder::new()
        .title("Weir")
        .version("1")
        .description(Some(
            "Management of pools, volumes, snapshots, exports and targets. A changing call may be \
             repeated: `outcome` reports whether it changed anything. Changing calls need the \
             header `content-type: application/json`, or that of a part of a stream. Over TCP \
             every call carries a token, `authorization: Bearer TOKEN`; `x-weir-role` is the \
             lowest role that may make it.",
        ))
        .license(Some(license.build()));
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let components = ComponentsBuilder::new()
        .schemas_from_iter(document.schemas)
        .security_scheme(BEARER, SecurityScheme::Http(bearer));
    // An empty requirement: callers on the unix socket need no token.
    let none: [&str; 0] = [];
    let securities = [SecurityRequirement::new(BEARER, none), SecurityRequirement::default()];
    let server = ServerBuilder::new().url(format!("http://127.0.0.1:{API_PORT}")).build();
    OpenApiBuilder::new()
        .info(info.build())
        .servers(Some([server]))
        .paths(document.paths)
        .components(Some(components.build()))
        .security(Some(securities))
        .build()
}

/// Parts of the document that are already generated.
#[derive(Default)]
struct Document {
    paths: Paths,
    schemas: BTreeMap<String, RefOr<Schema>>,
}

impl Visit for Document {
    fn visit<C: Call>(&mut self) {
        let shape = Shape::of::<C>();
        let mut used = Vec::new();
        C::schemas(&mut used);
        self.schemas.extend(used);
        let mut call = described(C::OPERATION, &self.add_type::<C::Answer>());
        let mut parameters = parameters(&shape);
        if C::Answer::ENTRIES.is_some() {
            parameters.extend(page_parameters(&shape));
        }
        if !parameters.is_empty() {
            call.parameters = Some(parameters.into_iter().map(RefOr::T).collect());
        }
        call.request_body = self.body::<C>(&shape).map(RefOr::T);
        self.add(C::OPERATION, call);
    }
}

/// Parts of the description of a call's successful response.
struct Success {
    description: String,
    content_type: &'static str,
    content: Content,
}

impl Document {
    /// Adds a type and the types of its fields to the document.
    fn add_type<T: ToSchema>(&mut self) -> Success {
        let mut used = Vec::new();
        T::schemas(&mut used);
        self.schemas.extend(used);
        let (name, schema) = (T::name().into_owned(), T::schema());
        let description = match &schema {
            RefOr::T(Schema::Object(object)) => object.description.clone(),
            RefOr::T(Schema::AllOf(all)) => all.description.clone(),
            _ => None,
        };
        let reference = Ref::from_schema_name(&name);
        self.schemas.insert(name, schema);
        let description = description.expect("each answer has a doc comment");
        Success { description, content_type: JSON, content: reference_to(reference) }
    }

    /// Returns the description of a request's body, if the request has one.
    fn body<C: Call>(&mut self, shape: &Shape) -> Option<RequestBody> {
        if shape.uses_query() {
            return None;
        }
        if let Some(others) = &shape.others {
            return Some(json_body(others.clone()));
        }
        let names: Vec<&String> = shape.rest().map(|(name, _)| name).collect();
        if names.is_empty() {
            return None;
        }
        let mut name = C::name().into_owned();
        let mut schema = C::schema();
        if names.len() < shape.fields.len() {
            name += "Body";
            let mut object = Object::with_type(SchemaType::Type(Type::Object));
            object.description.clone_from(&shape.description);
            object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
            for (name, field) in shape.rest() {
                object.properties.insert(name.clone(), field.schema.clone());
                if field.is_required {
                    object.required.push(name.clone());
                }
            }
            schema = RefOr::T(Schema::Object(object));
        }
        let reference = Ref::from_schema_name(&name);
        self.schemas.insert(name, schema);
        Some(json_body(RefOr::Ref(reference)))
    }

    fn add(&mut self, row: &Operation, described: Described) {
        let method = match row.method.as_str() {
            "GET" => HttpMethod::Get,
            "PUT" => HttpMethod::Put,
            "POST" => HttpMethod::Post,
            "PATCH" => HttpMethod::Patch,
            "DELETE" => HttpMethod::Delete,
            other => panic!("{} is a {other}", row.name),
        };
        let route = Path::parse(row.path).route();
        let item = PathItem::new(method, described);
        match self.paths.paths.get_mut(&route) {
            Some(known) => known.merge_operations(item),
            None => drop(self.paths.paths.insert(route, item)),
        }
    }

    fn add_examples(&mut self) {
        let examples = Examples::new(&self.schemas);
        for (name, schema) in &mut self.schemas {
            match schema {
                RefOr::T(Schema::Object(object)) => object.examples = vec![examples.of(name)],
                RefOr::T(Schema::AllOf(all)) => all.examples = vec![examples.of(name)],
                _ => panic!("the schema {name} has no example"),
            }
        }
    }

    fn send_stream(&mut self) {
        let stream = Success {
            description: "The stream, sent while it is generated".to_owned(),
            content_type: PART_TYPE,
            content: Content::new(Some(bytes())),
        };
        let mut call = described(&SEND_STREAM, &stream);
        call.parameters = Some(vec![RefOr::T(session_parameter())]);
        self.add(&SEND_STREAM, call);
    }

    fn receive_part(&mut self) {
        let mut call = described(&RECEIVE_PART, &self.add_type::<ReceiveProgress>());
        let part = RequestBodyBuilder::new()
            .content(PART_TYPE, Content::new(Some(bytes())))
            .required(Some(Required::True));
        call.request_body = Some(RefOr::T(part.build()));
        call.parameters = Some(vec![RefOr::T(session_parameter())]);
        self.add(&RECEIVE_PART, call);
    }
}

/// Returns the description of an operation, with its responses.
fn described(row: &Operation, success: &Success) -> Described {
    let mut described = Described::new();
    let summary: Vec<&str> = row.summary.lines().map(str::trim).collect();
    described.tags = Some(vec![row.tag.to_owned()]);
    described.summary = Some(summary.join(" ").trim().to_owned());
    described.operation_id = Some(row.name.to_owned());
    let mut respond = |status: String, description: &str, content_type: &str, content: Content| {
        let response =
            ResponseBuilder::new().description(description).content(content_type, content);
        described.responses.responses.insert(status, RefOr::T(response.build()));
    };
    for status in row.statuses {
        let description = match (status, row.statuses.len()) {
            (201, _) => "Created",
            (_, 1) => &success.description,
            _ => "It already existed",
        };
        respond(status.to_string(), description, success.content_type, success.content.clone());
    }
    for status in ["4XX", "default"] {
        let description = "The call failed; `error.kind` says why";
        let error = reference_to(Ref::from_schema_name(ErrorBody::name()));
        respond(status.to_owned(), description, JSON, error);
    }
    let role = Extensions::builder().add("x-weir-role", row.role.name()).build();
    described.extensions = Some(role);
    described
}

type Parameter = utoipa::openapi::path::Parameter;

/// Returns the parameters of a request in its path and its query.
fn parameters(shape: &Shape) -> Vec<Parameter> {
    let mut parameters = Vec::new();
    for field in shape.path.fields() {
        let (schema, description) = parameter(&shape.fields[field.name].schema);
        for &name in &field.params {
            let description = match (name, field.params.len()) {
                ("pool", 2..) => Some("Name of the pool".to_owned()),
                ("volume", 2..) => Some("Name of the volume in the pool".to_owned()),
                _ => description.clone(),
            };
            parameters.push(
                ParameterBuilder::new()
                    .name(name)
                    .parameter_in(ParameterIn::Path)
                    .description(description)
                    .required(Required::True)
                    .schema(Some(schema.clone()))
                    .build(),
            );
        }
    }
    if shape.uses_query() {
        for (name, field) in shape.rest() {
            let (schema, description) = parameter(&field.schema);
            let required = if field.is_required { Required::True } else { Required::False };
            parameters.push(query(name, description, required, schema));
        }
    }
    parameters
}

/// Returns the query parameters of pages, except those that the request has as its own fields.
fn page_parameters(shape: &Shape) -> Vec<Parameter> {
    let text = Object::with_type(SchemaType::Type(Type::String));
    let mut number = Object::with_type(SchemaType::Type(Type::Integer));
    number.minimum = Some(0.into());
    let pages = [
        ("after", "`next` of the previous page.", text),
        ("limit", "At most this many entries, up to 1000.", number),
    ];
    let missing = pages.into_iter().filter(|(name, ..)| !shape.fields.contains_key(*name));
    let described = |(name, description, schema): (&str, &str, Object)| {
        let schema = RefOr::T(Schema::Object(schema));
        query(name, Some(description.to_owned()), Required::False, schema)
    };
    missing.map(described).collect()
}

fn query(
    name: &str,
    description: Option<String>,
    required: Required,
    schema: RefOr<Schema>,
) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Query)
        .description(description)
        .required(required)
        .schema(Some(schema))
        .build()
}

fn session_parameter() -> Parameter {
    ParameterBuilder::new()
        .name("session")
        .parameter_in(ParameterIn::Path)
        .description(Some("The session."))
        .required(Required::True)
        .schema(Some(String::schema()))
        .build()
}

/// Returns the schema of a body that is a part of a stream.
fn bytes() -> RefOr<Schema> {
    let mut byte = Object::with_type(SchemaType::Type(Type::Integer));
    byte.format = Some(SchemaFormat::KnownFormat(KnownFormat::Int32));
    byte.minimum = Some(0.into());
    RefOr::T(Schema::Array(Array::new(Schema::Object(byte))))
}

fn json_body(schema: RefOr<Schema>) -> RequestBody {
    RequestBodyBuilder::new()
        .content(JSON, Content::new(Some(schema)))
        .required(Some(Required::True))
        .build()
}

fn reference_to(schema: Ref) -> Content {
    Content::new(Some(RefOr::Ref::<Schema>(schema)))
}
