//! Tool calls as a chat request asks for them, and when the engine refuses that for want of a parser.

use serde_json::{Map, Value};

use super::{body::ValidBody, error::ApiError};
use text::parsers::ToolChoice;

/// Tool calls as a chat request asks for them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolUse {
    /// True where tools are called.
    pub choice: ToolChoice,
    /// True where no call but the first is sent (`parallel_tool_calls: false`).
    pub only_first: bool,
}

impl ToolUse {
    /// Reads a body that the rules have passed. Tools without a choice are called as the model likes; an explicit null is
    /// no choice.
    pub(super) fn read(body: &ValidBody<'_>) -> Self {
        let has_tools = body.get("tools").and_then(Value::as_array).is_some_and(|tools| !tools.is_empty());
        let choice = match body.0.get("tool_choice") {
            None if has_tools => ToolChoice::Auto,
            None | Some(Value::Null) => ToolChoice::None,
            Some(Value::Object(choice)) => named(choice),
            Some(word) if word == "auto" => ToolChoice::Auto,
            Some(word) if word == "required" => ToolChoice::Required,
            Some(_) => ToolChoice::None,
        };
        Self { choice, only_first: !body.flag("parallel_tool_calls", true) }
    }

    /// Checks that the server can do what the choice asks for: whether it takes tool calls out of the generated text
    /// (`--enable-auto-tool-choice` with a parser).
    /// Errors: 400 where that needs a parser that the server does not have.
    pub(super) fn check(&self, finds_calls: bool) -> Result<(), ApiError> {
        if finds_calls {
            return Ok(());
        }
        let requested = match &self.choice {
            ToolChoice::None => return Ok(()),
            ToolChoice::Auto => {
                return Err(ApiError::bad_request(
                    "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set",
                ));
            }
            ToolChoice::Required => "\"required\"".to_owned(),
            ToolChoice::Named(name) => format!("function \"{name}\""),
        };
        Err(ApiError::bad_request(format!("tool_choice={requested} requires --tool-call-parser to be set")))
    }
}

fn named(choice: &Map<String, Value>) -> ToolChoice {
    let name = choice.get("function").and_then(|function| function.get("name")).and_then(Value::as_str);
    ToolChoice::Named(name.unwrap_or_default().to_owned())
}
