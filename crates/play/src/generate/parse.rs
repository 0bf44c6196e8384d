//! Reasoning and tool calls of one choice, taken out of its text as the server's parsers do.

use std::{mem, sync::Arc};

use serde_json::Value;

use crate::{generate::output::ChoiceStep, load::model::Parsers};
use api::{AnswerMessage, ChatPrompt, GenerationInput, GenerationRequest, MessageCall, StopReason};
use text::parsers::{
    self, CallIds, Delta, Formats, Function, Parsing, ReasoningFormat, ReasoningMarks, StreamParser, ToolChoice,
    count_reasoning_tokens, counts_by_text, reads_calls, whole,
};

/// The finish reason of an answer that calls tools.
const TOOL_CALLS: &str = "tool_calls";

/// Finish reason of the last step: the API's word, and its details.
type StepFinish = (&'static str, StopReason);

/// Parsers of one request's choices.
#[derive(Debug, Clone)]
pub(crate) struct ParsedBy {
    parsers: Arc<Parsers>,
    parsing: Parsing,
    only_first: bool,
    /// True where reasoning is sent.
    sends_reasoning: bool,
    /// True for a request for a stream, as its runs are counted.
    streams: bool,
    /// True where an answer is read step by step.
    steps: bool,
    is_response: bool,
}

impl ParsedBy {
    /// The parsing that a request asks for; `None` on a server without parsers.
    pub(crate) fn of(parsers: &Arc<Parsers>, request: &GenerationRequest) -> Option<Self> {
        let formats = parsers.formats;
        if !parsers.parses() {
            return None;
        }
        let chat = match &request.prompts {
            GenerationInput::Completion(_) => return None,
            GenerationInput::Chat(chat) => chat,
            GenerationInput::Batch(chats) => chats.first()?,
        };
        let parsing = Parsing {
            formats,
            thinks: thinks(formats, chat),
            choice: request.tools.choice.clone(),
            functions: functions(chat),
        };
        Some(Self {
            parsers: Arc::clone(parsers),
            parsing,
            only_first: request.tools.only_first,
            sends_reasoning: request.include_reasoning,
            streams: request.stream,
            steps: request.stream,
            is_response: request.is_response(),
        })
    }

    /// Checks whether the parsers need the text of special tokens.
    pub(crate) fn shows_special_tokens(&self) -> bool {
        self.parsing.shows_special_tokens()
    }

    /// Makes a stop that a called tool is the reason of into one; a function that the request named is none.
    fn call(&self, finish: &mut Option<StepFinish>) {
        if let Some((reason, _)) = finish.as_mut().filter(|(reason, _)| *reason == "stop" && !self.is_named()) {
            *reason = TOOL_CALLS;
        }
    }

    /// Checks whether a prompt leaves the reasoning closed; `None` on a server that parses none.
    pub(crate) fn is_reasoning_closed(&self, prompt: &[u32]) -> Option<bool> {
        parsers::is_reasoning_closed(&self.parsing, &self.parsers.vocabulary, prompt)
    }

    /// Marks around the reasoning of an answer to this prompt; `None` where nothing of it is reasoning.
    pub(crate) fn reasoning_marks(&self, prompt: &[u32]) -> Option<ReasoningMarks> {
        parsers::reasoning_marks(&self.parsing, &self.parsers.vocabulary, prompt, self.steps)
    }

    /// The same, which reads an answer step by step also where it is whole: one of which the beginning was delivered.
    pub(crate) fn stepwise(&self) -> Self {
        Self { steps: true, ..self.clone() }
    }

    /// Counts that calls were looked for in a delta or a whole choice.
    fn count(&self, found_calls: bool) {
        self.parsers.tool_calls.count(self.streams, found_calls, self.is_response);
    }

    /// The parser of a stream. `seed` makes the ids of its calls.
    pub(crate) fn stream(&self, prompt: &[u32], seed: u64) -> StreamParser {
        StreamParser::new(self.parsing.clone(), &self.parsers.vocabulary, prompt, self.ids(seed))
    }

    fn ids(&self, seed: u64) -> CallIds {
        let ids = CallIds::new(seed);
        self.parsing.formats.tools.map_or(ids, |format| ids.of(format))
    }

    pub(crate) fn parts(&self, text: &str) -> parsers::ParsedMessage {
        let parts = whole(&self.parsing, &self.parsers.vocabulary, text);
        parsers::ParsedMessage { reasoning: parts.reasoning.filter(|_| self.sends_reasoning), ..parts }
    }

    /// A stream's delta as the request asks for it; `None` where nothing of it is left.
    pub(crate) fn visible(&self, delta: Delta) -> Option<Delta> {
        if self.sends_reasoning {
            return Some(delta);
        }
        let has_content = delta.content.as_ref().is_some_and(|text| !text.is_empty());
        (has_content || !delta.calls.is_empty()).then_some(Delta { reasoning: None, ..delta })
    }

    /// The delta's calls that the request asks for.
    pub(crate) fn limited(&self, delta: &mut Delta) {
        if self.only_first {
            delta.calls.retain(|call| call.index == 0);
        }
    }

    /// Checks whether reasoning is sent, and everything that would reveal it.
    pub(crate) fn sends_reasoning(&self) -> bool {
        self.sends_reasoning
    }

    /// Checks whether the request names the function to call.
    pub(crate) fn is_named(&self) -> bool {
        matches!(self.parsing.choice, ToolChoice::Named(_))
    }

    /// Checks whether the request forces a call.
    pub(crate) fn is_forced(&self) -> bool {
        self.is_named() || self.parsing.choice == ToolChoice::Required
    }

    /// The parser of one choice. `seed` makes the ids of its calls.
    pub(crate) fn start(&self, prompt: &[u32], seed: u64) -> SequenceParser {
        let mode = if self.steps {
            let stream = Box::new(self.stream(prompt, seed));
            ParseMode::Stream { stream, has_called: false, kept: AnswerMessage::default() }
        } else {
            let counts_by_text = counts_by_text(&self.parsing, &self.parsers.vocabulary);
            let counter = counts_by_text.then(|| Box::new(self.stream(prompt, seed)));
            ParseMode::Whole { output: Vec::new(), reasoning: 0, counter, ids: self.ids(seed) }
        };
        SequenceParser { by: self.clone(), mode }
    }
}

/// Checks whether the model thinks, as the request asks, or else as its format has it.
pub(crate) fn thinks(formats: Formats, chat: &ChatPrompt) -> bool {
    let has_two = matches!(formats.reasoning, Some(ReasoningFormat::DeepseekV3 | ReasoningFormat::Holo2));
    let names: &[&str] = if has_two { &["enable_thinking", "thinking"] } else { &["enable_thinking"] };
    let switches: Vec<bool> = names.iter().filter_map(|name| chat.is_set(name)).collect();
    if switches.is_empty() {
        return formats.reasoning.is_none_or(ReasoningFormat::thinks_by_default);
    }
    switches.contains(&true)
}

/// The functions that the request offers.
fn functions(chat: &ChatPrompt) -> Arc<[Function]> {
    let function = |tool: &Value| {
        let function = tool.get("function")?;
        let parameters = function.get("parameters").cloned().unwrap_or_default();
        Some(Function { name: function.get("name")?.as_str()?.to_owned(), parameters })
    };
    chat.tools.iter().flatten().filter_map(function).collect()
}

#[derive(Debug)]
pub(crate) struct SequenceParser {
    by: ParsedBy,
    mode: ParseMode,
}

#[derive(Debug)]
enum ParseMode {
    Stream {
        stream: Box<StreamParser>,
        has_called: bool,
        /// The parts of a whole answer that is read step by step.
        kept: AnswerMessage,
    },
    Whole {
        output: Vec<u32>,
        reasoning: usize,
        /// What counts the reasoning by its text.
        counter: Option<Box<StreamParser>>,
        ids: CallIds,
    },
}

impl SequenceParser {
    /// Checks whether token ids and log probabilities are left out, since they would reveal the reasoning.
    pub(crate) fn hides_tokens(&self) -> bool {
        !self.by.sends_reasoning
    }

    /// Tokens of reasoning up to here; `None` on a server that parses none.
    pub(crate) fn reasoning_tokens(&self) -> Option<u32> {
        self.by.parsing.formats.reasoning?;
        let tokens = match &self.mode {
            ParseMode::Stream { stream, .. } => stream.reasoning_tokens(),
            ParseMode::Whole { reasoning, .. } => *reasoning,
        };
        Some(u32::try_from(tokens).unwrap_or(u32::MAX))
    }

    /// The delta of a step of a stream, where it has one; the step's finish reason is made the API's.
    pub(crate) fn event(&mut self, step: &mut ChoiceStep) -> Option<Delta> {
        let ParseMode::Stream { stream, has_called, .. } = &mut self.mode else { return None };
        let mut delta = stream.push(&step.text, &step.ids, step.finish.is_some());
        *has_called |= delta.as_ref().is_some_and(|delta| !delta.calls.is_empty());
        if self.by.streams {
            stream.found_calls().into_iter().for_each(|found| self.by.count(found));
        }
        if self.by.streams && *has_called {
            self.by.call(&mut step.finish);
        }
        delta.iter_mut().for_each(|delta| self.by.limited(delta));
        let mut delta = self.by.visible(delta?)?;
        // The key of reasoning that the engine took away is still there.
        delta.is_reasoning_null |= !self.by.sends_reasoning;
        Some(delta)
    }

    /// Keeps a step of a whole answer.
    pub(crate) fn keep(&mut self, step: &mut ChoiceStep) {
        let delta = self.event(step);
        match &mut self.mode {
            ParseMode::Whole { counter: Some(counter), .. } => {
                counter.push(&step.text, &step.ids, step.finish.is_some());
            }
            ParseMode::Whole { output, .. } => output.extend_from_slice(&step.ids),
            ParseMode::Stream { kept, .. } => delta.into_iter().for_each(|delta| add(kept, delta)),
        }
    }

    /// The parts of a whole answer's text; its finish reason is made the API's.
    pub(crate) fn message(&mut self, text: &str, finish: &mut Option<StepFinish>) -> Option<AnswerMessage> {
        let (parsing, vocabulary) = (&self.by.parsing, &self.by.parsers.vocabulary);
        let mut message = match &mut self.mode {
            ParseMode::Stream { kept, .. } => mem::take(kept),
            ParseMode::Whole { output, reasoning, counter, ids } => {
                let by_ids = || count_reasoning_tokens(parsing, vocabulary, output);
                *reasoning = counter.as_ref().map_or_else(by_ids, |counter| counter.reasoning_tokens());
                let parts = whole(parsing, vocabulary, text);
                let call = |parsers::ParsedCall { name, arguments }| MessageCall { id: ids.make(), name, arguments };
                AnswerMessage {
                    content: parts.content,
                    reasoning: parts.reasoning.filter(|_| self.by.sends_reasoning),
                    calls: parts.calls.into_iter().map(call).collect(),
                }
            }
        };
        if !self.by.streams && reads_calls(parsing) {
            self.by.count(!message.calls.is_empty());
        }
        // Calls of a message that offers no tools: they are taken out of the text, and nobody gets them.
        let is_offered = parsing.choice != ToolChoice::Auto || !parsing.functions.is_empty();
        match &parsing.choice {
            ToolChoice::Auto if is_offered && !message.calls.is_empty() => called(finish),
            ToolChoice::Required => self.by.call(finish),
            ToolChoice::Auto | ToolChoice::Named(_) | ToolChoice::None => {}
        }
        let most = if !is_offered {
            0
        } else if self.by.only_first {
            1
        } else {
            usize::MAX
        };
        message.calls.truncate(most);
        Some(message)
    }
}

/// Makes a whole answer end with its calls. The engine has this reason for those that were cut off by the length, too.
fn called(finish: &mut Option<StepFinish>) {
    *finish = finish.take().map(|(_, stop_reason)| (TOOL_CALLS, stop_reason));
}

/// Adds a step to the parts of an answer.
fn add(message: &mut AnswerMessage, delta: Delta) {
    let text = |into: &mut Option<String>, text: &str| into.get_or_insert_default().push_str(text);
    delta.content.iter().for_each(|content| text(&mut message.content, content));
    delta.reasoning.iter().for_each(|reasoning| text(&mut message.reasoning, reasoning));
    for call in delta.calls {
        if let Some(name) = call.name {
            message.calls.push(MessageCall { id: call.id.unwrap_or_default(), name, arguments: String::new() });
        }
        let last = message.calls.last_mut().zip(call.arguments);
        last.into_iter().for_each(|(last, arguments)| last.arguments.push_str(&arguments));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::{parsers::ToolFormat, prompt::Tokenizer};

    #[test]
    fn a_message_that_offers_no_tools_has_no_calls_however_it_is_read() {
        let formats = Formats { reasoning: None, tools: Some(ToolFormat::Hermes) };
        let parsers = Arc::new(Parsers::new(formats, &Tokenizer::ids_only(100).unwrap()));
        let parsing = Parsing { formats, choice: ToolChoice::Auto, ..Parsing::default() };
        let whole = ParsedBy {
            parsers,
            parsing,
            only_first: false,
            sends_reasoning: true,
            streams: false,
            steps: false,
            is_response: false,
        };
        let text = "Hi.<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>";
        let stop = || Some(("stop", StopReason::Unnamed));
        for by in [whole.stepwise(), whole] {
            let mut parser = by.start(&[], 1);
            let mut step = ChoiceStep { text: text.to_owned(), ids: vec![1], finish: stop() };
            parser.keep(&mut step);
            let message = parser.message(text, &mut step.finish).unwrap();
            assert_eq!((message.content.as_deref(), message.calls.len()), (Some("Hi."), 0));
            assert_eq!(step.finish, stop());
        }
    }
}
