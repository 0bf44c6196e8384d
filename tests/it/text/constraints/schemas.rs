//! Schemas of every feature that text is made up for.

use serde_json::{Value, json};

/// All of them.
pub(super) fn all() -> Vec<Value> {
    [scalars(), strings(), arrays(), objects(), combined(), whole()].concat()
}

fn scalars() -> Vec<Value> {
    vec![
        json!({}),
        json!({"type": "null"}),
        json!({"type": "boolean"}),
        json!({"type": "integer"}),
        json!({"type": "number"}),
        json!({"type": "string"}),
        json!({"type": "array"}),
        json!({"type": "object"}),
        json!({"type": ["string", "null"]}),
        json!({"type": ["integer", "boolean", "array"]}),
        json!({"type": "integer", "minimum": 0}),
        json!({"type": "integer", "maximum": -3}),
        json!({"type": "integer", "minimum": 10, "maximum": 12}),
        json!({"type": "integer", "exclusiveMinimum": 99, "exclusiveMaximum": 1001}),
        json!({"type": "integer", "minimum": -1000, "maximum": 100_000}),
        json!({"type": "integer", "multipleOf": 3}),
        json!({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100}),
        json!({"type": "number", "minimum": 0, "maximum": 1}),
        json!({"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 0.75}),
        json!({"type": "number", "minimum": -2.5}),
        json!({"type": "number", "maximum": 1e6}),
        json!({"enum": ["red", "green", 3, null, {"a": [1]}, 2.5, true]}),
        json!({"const": "fixed \"text\" \\ \n"}),
        json!({"const": {"a": 1, "b": [true, null]}}),
        json!({"enum": ["only"]}),
    ]
}

fn strings() -> Vec<Value> {
    let mut schemas = vec![
        json!({"type": "string", "minLength": 10}),
        json!({"type": "string", "maxLength": 3}),
        json!({"type": "string", "minLength": 4, "maxLength": 4}),
        json!({"type": "string", "maxLength": 0}),
        json!({"type": "string", "minLength": 100, "maxLength": 120}),
        json!({"type": "string", "pattern": "^[a-z]{2,5}$"}),
        json!({"type": "string", "pattern": "^\\d{3}-\\d{2}$"}),
        json!({"type": "string", "pattern": "cat"}),
        json!({"type": "string", "pattern": "^(yes|no)$"}),
        json!({"type": "string", "pattern": "^a"}),
        json!({"type": "string", "pattern": "z$"}),
        json!({"type": "string", "pattern": "^[A-Z]+$", "maxLength": 5}),
        json!({"type": "string", "pattern": "^[A-Z]+$", "minLength": 5}),
        json!({"type": "string", "pattern": "^\"quoted\"\\\\$"}),
        json!({"type": "string", "pattern": "^[äöü]+$"}),
        json!({"type": "string", "title": "a", "description": "b", "default": "c", "examples": ["d"]}),
    ];
    for format in ["date", "time", "date-time", "duration", "ipv4", "ipv6", "email", "hostname", "uuid", "uri"] {
        schemas.push(json!({"type": "string", "format": format}));
    }
    schemas
}

fn arrays() -> Vec<Value> {
    vec![
        json!({"type": "array", "items": {"type": "integer"}}),
        json!({"type": "array", "items": {"type": "string"}, "minItems": 2}),
        json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}),
        json!({"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 3}),
        json!({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 8}),
        json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false}),
        json!({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}, "minItems": 3}),
        json!({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "minItems": 2, "items": {"type": "string"}}),
        json!({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
        json!({"type": "array", "items": {"type": "array", "items": {"type": "array"}, "minItems": 1}, "minItems": 1}),
        json!({"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}}),
        json!({"type": "array", "minItems": 5}),
        json!({"type": "array", "maxItems": 0}),
        json!({"type": "array", "items": {"type": ["integer", "null"]}, "minItems": 4}),
        json!({"type": "array", "items": {"type": "string", "maxLength": 2}, "minItems": 20, "maxItems": 25}),
        json!({"type": "array", "items": {}}),
    ]
}

fn objects() -> Vec<Value> {
    vec![
        json!({"type": "object", "properties": {"a": {"type": "string"}}}),
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}),
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": false}),
        json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["b"]}),
        json!({"type": "object", "required": ["x", "y"]}),
        json!({"type": "object", "additionalProperties": {"type": "integer"}}),
        json!({"type": "object", "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": true}, "required": ["a"]}),
        json!({"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": false}),
        json!({"type": "object", "patternProperties": {"^a": {"type": "boolean"}, "^b": {"type": "null"}}}),
        json!({"type": "object", "minProperties": 2, "additionalProperties": {"type": "boolean"}}),
        json!({"type": "object", "maxProperties": 1, "additionalProperties": {"type": "boolean"}}),
        json!({"type": "object", "minProperties": 1, "maxProperties": 3}),
        json!({"type": "object", "properties": {"nested": {"type": "object", "properties": {"deep": {"type": "object", "properties": {"er": {"type": "null"}}, "required": ["er"]}}, "required": ["deep"]}}, "required": ["nested"]}),
        json!({"type": "object", "properties": {"a b": {"type": "integer"}, "ä\"ö": {"type": "integer"}, "": {"type": "integer"}}, "required": ["a b", "ä\"ö", ""]}),
        json!({"properties": {"a": {"type": "integer"}}, "required": ["a"]}),
        json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2}, "c": {"enum": ["x", "y"]}}, "required": ["a", "b", "c"], "additionalProperties": false}),
    ]
}

fn combined() -> Vec<Value> {
    vec![
        json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        json!({"anyOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"type": "null"}]}),
        json!({"type": "string", "anyOf": [{"const": "a"}, {"const": "b"}]}),
        json!({"oneOf": [{"type": "integer"}, {"type": "string"}]}),
        json!({"oneOf": [{"const": 1}, {"const": 2}, {"const": "3"}]}),
        json!({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind"], "additionalProperties": false}, {"type": "object", "properties": {"kind": {"const": "b"}, "n": {"type": "integer"}}, "required": ["kind", "n"], "additionalProperties": false}]}),
        json!({"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}]}),
        json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]}),
        json!({"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 4}]}),
        json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer", "minimum": 5}}}),
        json!({"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1, "$defs": {"n": {"enum": [1, 2]}}}),
        json!({"$defs": {"tree": {"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "required": ["v", "kids"], "additionalProperties": false}}, "$ref": "#/$defs/tree"}),
        json!({"$defs": {"list": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"head": {"type": "string"}, "tail": {"$ref": "#/$defs/list"}}, "required": ["head", "tail"], "additionalProperties": false}]}}, "$ref": "#/$defs/list"}),
        json!({"definitions": {"p": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"]}}, "type": "object", "properties": {"from": {"$ref": "#/definitions/p"}, "to": {"$ref": "#/definitions/p"}}, "required": ["from", "to"]}),
        json!({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"], "additionalProperties": false}),
        json!({"anyOf": [{"type": "array", "items": {"type": "integer"}, "minItems": 1}, {"type": "object", "additionalProperties": {"type": "string"}}, {"type": "number", "minimum": 0}]}),
        json!({"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": {"const": "A"}, "b": {"const": "B"}}}),
    ]
}

/// As requests have them: made from classes, and calls of tools.
fn whole() -> Vec<Value> {
    let call = |name: &str, parameters: Value| json!({"properties": {"name": {"type": "string", "enum": [name]}, "parameters": parameters}, "required": ["name", "parameters"]});
    let weather = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["city", "unit"], "additionalProperties": false});
    vec![
        json!({"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": [call("get_weather", weather.clone()), call("now", json!({"type": "object", "properties": {}}))]}}),
        json!({"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "object", "anyOf": [call("get_weather", weather.clone())]}}),
        weather,
        json!({"title": "User", "type": "object", "properties": {"id": {"type": "integer", "title": "Id"}, "name": {"type": "string", "default": "x"}, "signup": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}], "default": null}, "friends": {"type": "array", "items": {"type": "integer"}, "default": []}}, "required": ["id", "name"]}),
        json!({"$defs": {"Step": {"properties": {"explanation": {"type": "string"}, "output": {"type": "string"}}, "required": ["explanation", "output"], "type": "object", "additionalProperties": false}}, "properties": {"steps": {"items": {"$ref": "#/$defs/Step"}, "type": "array"}, "final_answer": {"type": "string"}}, "required": ["steps", "final_answer"], "type": "object", "additionalProperties": false}),
        json!({"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 30}, "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "maxItems": 4}, "weight": {"type": "number", "exclusiveMinimum": 0}, "owner": {"type": ["object", "null"], "properties": {"name": {"type": "string", "minLength": 1}}, "required": ["name"]}}, "required": ["kind", "age", "tags", "weight", "owner"]}),
        json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/x", "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}),
        json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "string"}, "d": {"type": "string"}, "e": {"type": "string"}, "f": {"type": "string"}, "g": {"type": "string"}, "h": {"type": "string"}}, "required": ["a", "b", "c", "d", "e", "f", "g", "h"], "additionalProperties": false}),
    ]
}
