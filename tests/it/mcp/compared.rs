//! Cassettes with MCP compared by `cassette diff`.

use super::{SERVER, Shelf, vcr};

fn diff(old: &Shelf, new: &Shelf, what: &str) -> (i32, String) {
    let output = vcr(&["cassette", "diff", old.name(), new.name(), "--type", what]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap(), text)
}

#[test]
fn what_does_not_count_in_a_request_is_no_difference() {
    let old = Shelf::with(SERVER);
    let new = SERVER
        .replace(
            "arguments: {what: tea, many: 2}, _meta: {progressToken: 1}",
            "_meta: {progressToken: 7, traceparent: x}, arguments: {many: 2.0, what: tea}",
        )
        .replace("clientInfo: {name: hand, version: '1'}", "clientInfo: {name: other, version: '2'}");
    let (code, text) = diff(&old, &Shelf::with(&new), "prompt");
    assert_eq!((code, text.as_str()), (0, ""));
    let other = SERVER.replace("arguments: {what: tea, many: 2}", "arguments: {what: tea, many: 3}");
    let (code, text) = diff(&old, &Shelf::with(&other), "prompt");
    assert!(code == 1 && text.contains("request $.params.arguments.many: 2 -> 3"), "{text}");
    assert_eq!(text.matches("->").count(), 2, "one record and one difference: {text}");
}

#[test]
fn calls_that_are_recorded_in_another_order_are_the_same() {
    let (start, records) = SERVER.split_once("records:\n").unwrap();
    let mut each: Vec<String> =
        records.split("- request:").skip(1).map(|record| format!("- request:{record}")).collect();
    let last = each.len() - 1;
    each.swap(last, last - 1);
    let text = format!("{start}records:\n{}", each.concat());
    let (code, found) = diff(&Shelf::with(SERVER), &Shelf::with(&text), "run");
    assert_eq!((code, found.as_str()), (0, ""), "{text}");
}

#[test]
fn tools_that_changed_are_listed_by_class() {
    let tools = |schema: &str| {
        let listed = format!(
            "{{tools: [{{name: buy, inputSchema: {{type: object, {schema}}}}}, {{name: old, inputSchema: {{type: object, properties: {{x: {{type: string}}}}}}}}]}}"
        );
        SERVER.replace("{tools: [{name: buy, inputSchema: {type: object}}]}", &listed)
    };
    let old = Shelf::with(&tools(
        "properties: {what: {type: string, description: a}, many: {type: integer}, note: {type: string}}, required: [what]",
    ));
    let new = tools("properties: {what: {type: string, description: b}, many: {type: string}, gift: {type: boolean}, note: {type: string}}, required: [what, note]")
        .replace("name: old", "name: new");
    let new = Shelf::with(&new);
    for what in ["run", "tools", "output"] {
        let (code, text) = diff(&old, &new, what);
        assert_eq!(code, 1);
        for expected in [
            "tool old: renamed: new",
            "tool buy: type changed: many from integer to string",
            "tool buy: added: gift",
            "tool buy: required added: note",
        ] {
            assert!(text.contains(expected), "{what} {expected}: {text}");
        }
    }
    let described = tools(
        "properties: {what: {type: string, description: b}, many: {type: integer}, note: {type: string}}, required: [what]",
    );
    let (_, text) = diff(&old, &Shelf::with(&described), "run");
    assert!(text.contains("tool buy: description only: inputSchema") && !text.contains("changed"), "{text}");
}
