//! Detection of a chat template's form of message content: text or a list of parts.
//!
//! vLLM looks in the template's syntax tree for a loop over a message's content; this looks at the template's tags, which
//! comes to the same for loops over `message.content` and `message['content']` (with filters and slices), over the name
//! `content`, and over variables that `messages` was assigned to. Not followed: content that is passed on through a
//! macro's parameter of another name.

/// Form of a message's content in a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentFormat {
    /// As text: the text parts joined by newlines.
    String,
    /// As a list of parts, as OpenAI's API has it.
    Parts,
}

/// Detects the form that a template takes.
pub(super) fn detect(source: &str) -> ContentFormat {
    let tags: Vec<Tag> = tags(source).filter_map(|(text, in_macro)| Tag::parse(text, in_macro)).collect();
    let mut lists = vec!["messages"];
    let mut seen = 0;
    while let Some(&list) = lists.get(seen) {
        seen += 1;
        for tag in &tags {
            if let Tag::Set { name, value } = tag
                && base(value) == list
                && !lists.contains(name)
            {
                lists.push(name);
            }
        }
    }
    let items = tags.iter().filter_map(|tag| match tag {
        Tag::For { name, list, .. } if lists.contains(&base(list)) => Some(*name),
        _ => None,
    });
    let items: Vec<&str> = items.collect();
    let over_content = |list: &str, in_macro: bool| {
        let list = base(list);
        let of_item = |item: &&str| {
            list.strip_prefix(*item).is_some_and(|rest| matches!(rest, ".content" | "['content']" | "[\"content\"]"))
        };
        items.iter().any(of_item) || (list == "content" && !in_macro)
    };
    let parts = tags.iter().any(|tag| matches!(tag, Tag::For { list, in_macro, .. } if over_content(list, *in_macro)));
    if parts { ContentFormat::Parts } else { ContentFormat::String }
}

enum Tag<'a> {
    For { name: &'a str, list: &'a str, in_macro: bool },
    Set { name: &'a str, value: &'a str },
}

impl<'a> Tag<'a> {
    fn parse(text: &'a str, in_macro: bool) -> Option<Self> {
        if let Some(rest) = text.strip_prefix("for ") {
            let (name, list) = rest.split_once(" in ")?;
            let list = list.split(" if ").next().unwrap_or(list).trim();
            return Some(Self::For { name: name.trim(), list, in_macro });
        }
        let (name, value) = text.strip_prefix("set ")?.split_once('=')?;
        Some(Self::Set { name: name.trim(), value: value.trim() })
    }
}

/// The inside of every `{% … %}`, and whether it stands in a macro.
fn tags(source: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut in_macro = false;
    source.split("{%").skip(1).filter_map(move |tag| {
        let text = tag.split("%}").next()?.trim_matches(['-', '+']).trim();
        if text.starts_with("macro ") {
            in_macro = true;
        } else if text == "endmacro" {
            in_macro = false;
        }
        Some((text, in_macro))
    })
}

/// An expression without its filters, tests and slices: `message.content[1:] | list` is `message.content`.
fn base(expression: &str) -> &str {
    let expression = expression.split(['|']).next().unwrap_or(expression);
    let expression = expression.split(" is ").next().unwrap_or(expression).trim();
    match expression.rfind('[') {
        Some(at) if expression.get(at..).is_some_and(|index| index.contains(':')) => {
            expression.get(..at).unwrap_or(expression)
        }
        _ => expression,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_over_content_take_parts() {
        for source in [
            "{% for message in messages %}{% for part in message.content %}{% endfor %}{% endfor %}",
            "{%- for m in messages[1:] -%}{%- for part in m['content'] | list -%}{%- endfor -%}{%- endfor -%}",
            "{% set loop_messages = messages %}{% for m in loop_messages %}{% for c in m[\"content\"] %}{% endfor %}{% endfor %}",
            "{% for message in messages %}{% set content = message.content %}{% for c in content %}{% endfor %}{% endfor %}",
        ] {
            assert_eq!(detect(source), ContentFormat::Parts, "{source}");
        }
    }

    #[test]
    fn other_loops_take_text() {
        for source in [
            "{% for message in messages %}{{ message.content }}{% for c in message.tool_calls %}{% endfor %}{% endfor %}",
            "{% macro x(content) %}{% for c in content %}{% endfor %}{% endmacro %}",
            "",
        ] {
            assert_eq!(detect(source), ContentFormat::String, "{source}");
        }
    }
}
