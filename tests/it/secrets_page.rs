//! The page of secrets is made from the table of shapes.

use std::collections::BTreeSet;

use vllm_vcr::recording::redaction::{SecretShape, shapes};

const PAGE: &str = "docs/src/reference/secrets.md";

const HEAD: &str = "# Secrets

What is found by its shape in everything that is recorded, and what it becomes: the kind stands in the placeholder, `[REDACTED:kind:1]`, with a number for each value in a record.
Names of fields, headers and parameters are in [Privacy](../guides/privacy.md#redaction). This page is generated.

| kind | found by its shape | redacted with |
|---|---|---|
";

#[test]
fn the_page_of_secrets_is_current() {
    let rows = shapes().map(|SecretShape { kind, what, is_personal, .. }| {
        let flag = if *is_personal {
            format!("`--redact all` or `--redact {kind}`")
        } else {
            "`--redact secrets` (the default)".to_owned()
        };
        format!("| `{kind}` | {what} | {flag} |\n")
    });
    let text = HEAD.to_owned() + &rows.collect::<String>();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(PAGE, &text).unwrap();
    }
    let is_current = std::fs::read_to_string(PAGE).unwrap_or_default() == text;
    assert!(is_current, "{PAGE} is stale; run `UPDATE_REFERENCE=1 cargo test --test it secrets_page` and commit it");
}

#[test]
fn every_row_names_what_it_finds() {
    let rows: BTreeSet<&str> = shapes().map(|shape| shape.what).collect();
    assert_eq!(rows.len(), shapes().count());
    assert!(shapes().all(|shape| !shape.kind.is_empty() && !shape.what.contains('|')));
}
