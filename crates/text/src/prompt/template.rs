//! Chat templates: a conversation to the text that is encoded.
//!
//! Jinja as transformers runs it: blocks trimmed, loop controls, Python's methods on strings and maps, `raise_exception`,
//! `strftime_now` and transformers' own `tojson`; `{% generation %}` blocks render what is in them. Templates are compiled
//! once, at load.
//!
//! A template that a client sends ([`ChatTemplate::limited`]) has an end: it runs so many instructions, makes so much text,
//! and a number is not made wider than a page. What it keeps in variables is not counted: such templates are
//! taken only where the operator trusts them.
//!
//! Deviations: a `{% generation %}` block opens no scope of its own; integers beyond 128 bits are floats; `%s` of a map
//! or a list prints Rust's idea of it, not Python's.

use std::fmt;

use minijinja::value::{Serde, Value as Jinja};
use minijinja::{Environment, Error};
use serde_json::{Map, Value};

use super::PromptError;
use super::config::Templates;
use super::content_format::{ContentFormat, detect};
use super::conversation::{self, Conversation};
use super::jinja::{self, BoundedText};

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// Marks where a continued message ends; transformers uses the same words, so templates trim it the same way.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// The compiled chat template (or templates) of a tokenizer.
pub struct ChatTemplate {
    environment: Environment<'static>,
    default: Option<CompiledTemplate>,
    tool_use: Option<CompiledTemplate>,
    /// The variables that name them.
    pub(super) special_tokens: Map<String, Value>,
    /// Most bytes that are rendered.
    longest: usize,
}

#[derive(Debug)]
struct CompiledTemplate {
    name: &'static str,
    source: String,
    format: ContentFormat,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.debug_struct("ChatTemplate").field("default", &self.default).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles one template; `special_tokens` (`bos_token` …) are variables in it.
    pub(crate) fn new(source: &str, special_tokens: Map<String, Value>) -> Result<Self, PromptError> {
        let templates = Templates { default: Some(source.to_owned()), tool_use: None };
        Self::compile(&templates, special_tokens, "the command line")
    }

    /// The template's text, as it is rendered.
    #[must_use]
    pub fn source(&self) -> Option<&str> {
        self.default.as_ref().or(self.tool_use.as_ref()).map(|compiled| compiled.source.as_str())
    }

    /// Returns true if it renders a conversation to the same text at any time: it does not use the date.
    #[must_use]
    pub fn is_timeless(&self) -> bool {
        let compiled = [&self.default, &self.tool_use].into_iter().flatten();
        compiled.into_iter().all(|compiled| !compiled.source.contains("strftime_now"))
    }

    /// The template with the limits of one that a client sent.
    #[must_use]
    pub fn limited(mut self) -> Self {
        jinja::limit(&mut self.environment);
        self.longest = jinja::LONGEST;
        self
    }

    /// Compiles a tokenizer's templates.
    pub(super) fn compile(
        templates: &Templates,
        special_tokens: Map<String, Value>,
        origin: &str,
    ) -> Result<Self, PromptError> {
        let bad = |error: Error| PromptError::BadTemplate {
            origin: origin.to_owned(),
            line: error.line().unwrap_or(0),
            reason: error.to_string(),
        };
        let mut environment = jinja::environment().map_err(bad)?;
        let mut add = |name: &'static str, source: &Option<String>| -> Result<Option<CompiledTemplate>, Error> {
            let Some(source) = source else { return Ok(None) };
            let source = without_generation_tags(source);
            environment.add_template_owned(name, source.clone())?;
            Ok(Some(CompiledTemplate { name, format: detect(&source), source }))
        };
        let default = add(DEFAULT, &templates.default).map_err(bad)?;
        let tool_use = add(TOOL_USE, &templates.tool_use).map_err(bad)?;
        Ok(Self { environment, default, tool_use, special_tokens, longest: usize::MAX })
    }

    /// Renders a conversation to the text that is encoded with [`SpecialTokens::Skip`](super::SpecialTokens::Skip).
    ///
    /// # Errors
    /// [`PromptError::BadMessage`] where the messages are not what an engine accepts, [`PromptError::Rejected`] where the
    /// template refuses them.
    pub fn render(&self, conversation: &Conversation) -> Result<String, PromptError> {
        let compiled = self.choose(conversation.tools.is_some())?;
        let mut messages = conversation::normalise(conversation.messages, compiled.format, conversation.takes_media)?;
        if !compiled.source.contains("\"developer\"") && !compiled.source.contains("'developer'") {
            conversation::fold_developer_messages(&mut messages);
        }
        let continued = match conversation.continue_final_message {
            true => Some(mark_final(&mut messages, &compiled.source)?),
            false => None,
        };
        let variables = self.variables(conversation, messages);
        let rendered = self
            .environment
            .get_template(compiled.name)
            .and_then(|template| {
                let mut out = BoundedText { text: Vec::new(), longest: self.longest };
                template.render_captured_to(variables, &mut out)?;
                Ok(out.text)
            })
            .map_err(|error| jinja::rejected(&error))?;
        let rendered = String::from_utf8(rendered).unwrap_or_default();
        match continued {
            Some(message) => cut_at_tag(&rendered, &message),
            None => Ok(rendered),
        }
    }

    /// The content of the last message as the template sees it, a text or a list of parts; `None` where it has none.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn last_content(&self, conversation: &Conversation) -> Result<Option<Value>, PromptError> {
        let compiled = self.choose(conversation.tools.is_some())?;
        let last = conversation.messages.last().map(std::slice::from_ref).unwrap_or_default();
        let last = conversation::normalise(last, compiled.format, conversation.takes_media)?.pop();
        Ok(last.and_then(|message| message.get("content").cloned()))
    }

    /// Returns the variables of a template: special tokens, then the request's own, then those that no request can override.
    fn variables(&self, conversation: &Conversation, messages: Vec<Value>) -> Jinja {
        let tools = conversation.tools.map(|tools| tools.iter().map(conversation::normalise_tool).collect::<Value>());
        let mut variables = self.special_tokens.clone();
        variables.extend(conversation.kwargs.iter().map(|(name, value)| (name.clone(), value.clone())));
        for (name, value) in [
            ("messages", Value::Array(messages)),
            ("tools", tools.unwrap_or_default()),
            ("documents", conversation.documents.map(|list| Value::Array(list.to_vec())).unwrap_or_default()),
            ("add_generation_prompt", conversation.add_generation_prompt.into()),
        ] {
            variables.insert(name.to_owned(), value);
        }
        Jinja::from(Serde(variables))
    }

    fn choose(&self, with_tools: bool) -> Result<&CompiledTemplate, PromptError> {
        let tool_use = self.tool_use.as_ref().filter(|_| with_tools);
        let message = "this tokenizer has a chat template for tools only; pass a default one";
        tool_use.or(self.default.as_ref()).ok_or_else(|| PromptError::Rejected(message.to_owned()))
    }
}

/// Replaces `{% generation %}` tags, which mark the assistant's text for training, so that their content is rendered.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest.get(start..).and_then(|tag| tag.find("%}")) else { break };
        let (before, tag, after) = (&rest[..start], &rest[start..start + length + 2], &rest[start + length + 2..]);
        out.push_str(before);
        let inner = tag.trim_start_matches("{%").trim_end_matches("%}");
        match inner.trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Puts the tag at the end of the last message and returns its text.
fn mark_final(messages: &mut [Value], source: &str) -> Result<String, PromptError> {
    let reject = |reason: &str| PromptError::Rejected(reason.to_owned());
    if !source.contains("content") {
        return Err(reject(
            "continue_final_message is set to \"content\" but this is not an accepted field in the chat_template",
        ));
    }
    let content = messages.last_mut().and_then(|message| message.get_mut("content"));
    let text = match content {
        Some(Value::Array(parts)) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
        other => other,
    };
    match text {
        Some(Value::String(text)) => {
            let before = text.clone();
            text.push_str(CONTINUE_TAG);
            Ok(before)
        }
        _ => Err(reject(
            "continue_final_message is set but we could not find any text to continue in the final message!",
        )),
    }
}

fn cut_at_tag(rendered: &str, message: &str) -> Result<String, PromptError> {
    let tag = rendered.rfind(CONTINUE_TAG.trim_end()).filter(|_| rendered.contains(message.trim()));
    let Some(kept) = tag.and_then(|at| rendered.get(..at)) else {
        return Err(PromptError::Rejected(
            "continue_final_message is set but the final message does not appear in the chat after applying the \
                     chat template! This can happen if the chat template deletes portions of the final message. Please \
                     verify the chat template and final message in your chat to ensure they are compatible."
                .to_owned(),
        ));
    };
    let spaced = rendered.get(kept.len()..).is_some_and(|end| end.starts_with(CONTINUE_TAG));
    Ok(if spaced { kept } else { kept.trim_end() }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PLAIN: &str =
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}";

    fn conversation<'a>(messages: &'a Value, kwargs: &'a Map<String, Value>) -> Conversation<'a> {
        Conversation {
            messages: messages.as_array().unwrap(),
            tools: None,
            documents: None,
            add_generation_prompt: false,
            continue_final_message: false,
            takes_media: false,
            kwargs,
        }
    }

    fn render(template: &str, messages: &Value, change: impl Fn(&mut Conversation)) -> Result<String, PromptError> {
        let kwargs = Map::new();
        let mut conversation = conversation(messages, &kwargs);
        change(&mut conversation);
        let special = json!({"bos_token": "<s>"}).as_object().unwrap().clone();
        ChatTemplate::new(template, special).unwrap().render(&conversation)
    }

    #[test]
    fn parts_are_joined_or_listed_as_the_template_takes_them() {
        let messages =
            json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
        assert_eq!(render(PLAIN, &messages, |_| {}).unwrap(), "[user] a\nb\n");
        let listing =
            "{% for m in messages %}{% for p in m.content %}<{{ p.type }}:{{ p.text }}>{% endfor %}{% endfor %}";
        assert_eq!(render(listing, &messages, |_| {}).unwrap(), "<text:a><text:b>");
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
        assert!(matches!(render(PLAIN, &image, |_| {}), Err(PromptError::NotMultimodal(_))));
    }

    #[test]
    fn calls_have_objects_for_arguments_and_null_content_is_empty() {
        let template = "{% for m in messages %}{{ m.content == '' }} {% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
        let call = |arguments| json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
        let calls = [call("{\"b\": 1, \"a\": \"<\"}"), call("[]"), call("{broken")];
        let messages = json!([{"role": "assistant", "content": null, "tool_calls": calls}]);
        assert_eq!(render(template, &messages, |_| {}).unwrap().to_lowercase(), "true {\"b\": 1, \"a\": \"<\"}{}{}");
    }

    #[test]
    fn a_continued_message_is_left_open() {
        let messages = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "so far "}]);
        let open = |conversation: &mut Conversation| conversation.continue_final_message = true;
        assert_eq!(render(PLAIN, &messages, open).unwrap(), "[user] q\n[assistant] so far ");
        let trimming = PLAIN.replace("m.content", "m.content | trim");
        assert_eq!(render(&trimming, &messages, open).unwrap(), "[user] q\n[assistant] so far");
        let dropping = "{{ messages[0].content }}";
        assert!(matches!(render(dropping, &messages, open), Err(PromptError::Rejected(_))));
    }

    #[test]
    fn developer_messages_become_the_one_system_message() {
        let messages = json!([
            {"role": "system", "content": "a"}, {"role": "user", "content": "q"}, {"role": "developer", "content": "b"}
        ]);
        assert_eq!(render(PLAIN, &messages, |_| {}).unwrap(), "[system] a\n\nb\n[user] q\n");
        let knowing = format!("{PLAIN}{{# 'developer' #}}");
        assert!(render(&knowing, &messages, |_| {}).unwrap().contains("[developer] b"));
    }

    #[test]
    fn a_template_speaks_for_itself() {
        let messages = json!([{"role": "user", "content": "q"}]);
        match render("{{ raise_exception('roles must alternate') }}", &messages, |_| {}) {
            Err(PromptError::Rejected(reason)) => assert_eq!(reason, "roles must alternate"),
            other => panic!("{other:?}"),
        }
        let marked = "{{ bos_token }}{%- generation -%} {{ messages[0]['content'] }} {%- endgeneration %}";
        assert_eq!(render(marked, &messages, |_| {}).unwrap(), "<s>q");
        assert_eq!(
            render(
                "{{ true }} {{ none }} {{ 1e-7 }} {{ 2.0 }} {{ ['a', none, false] }} {{ {'k': 1} }} {{ x }}|",
                &messages,
                |_| {}
            )
            .unwrap(),
            "True None 1e-07 2.0 ['a', None, False] {'k': 1} |"
        );
        assert_eq!(render("{{ strftime_now('%Y')|length }}", &messages, |_| {}).unwrap(), "4");
        match ChatTemplate::new("\n{% if %}", Map::new()) {
            Err(PromptError::BadTemplate { line, .. }) => assert_eq!(line, 2),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_template_of_a_client_comes_to_an_end() {
        let messages = json!([{"role": "user", "content": "q"}]);
        let kwargs = Map::new();
        let conversation = conversation(&messages, &kwargs);
        let limited = |source: &str| ChatTemplate::new(source, Map::new()).unwrap().limited().render(&conversation);
        for (source, reason) in [
            ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "fuel"),
            ("{{ '%1000000000d'|format(1) }}", "width"),
            ("{{ '%.1000000000f'|format(1) }}", "width"),
            ("{{ '{:1000000000d}'.format(1) }}", "width"),
            ("{{ '%*d'|format(1000000000, 1) }}", "width"),
            ("{% set a = 'a' * 1000000 %}{% for n in range(1000) %}{{ a }}{% endfor %}", "text"),
        ] {
            match limited(source) {
                Err(PromptError::Rejected(given)) => assert!(given.contains(reason), "{source}: {given}"),
                other => panic!("{source}: {:?}", other.map(|text| text.len())),
            }
        }
        assert_eq!(limited("{{ '%03d %s'|format(7, messages[0].content) }}").unwrap(), "007 q");
    }

    #[test]
    fn a_tool_has_the_fields_of_vllms_type_in_its_order() {
        let tools =
            [json!({"function": {"parameters": {"z": 1, "a": 2}, "name": "f", "other": 1}, "type": "function"})];
        let kwargs = Map::new();
        let conversation = Conversation {
            messages: &[],
            tools: Some(&tools),
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            takes_media: false,
            kwargs: &kwargs,
        };
        let template = ChatTemplate::new("{{ tools[0] | tojson }}", Map::new()).unwrap();
        assert_eq!(
            template.render(&conversation).unwrap(),
            r#"{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": 1, "a": 2}}}"#
        );
    }
}
