//! The parsers by vLLM's names, and what a request sets for them.

use std::sync::Arc;

base::named! {
    /// Format of reasoning.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ReasoningFormat {
        /// `<think>…</think>`, reasoning from the start on.
        DeepseekR1 = "deepseek_r1",
        /// As [`Self::DeepseekR1`] where the request asks for thinking; else nothing is reasoning.
        DeepseekV3 = "deepseek_v3",
        /// `Here is my thought process: … Here is my response: …`
        Granite = "granite",
        /// As [`Self::DeepseekV3`], but thinking unless the request turns it off.
        Holo2 = "holo2",
        /// As [`Self::Qwen3`].
        Mimo = "mimo",
        /// `[THINK]…[/THINK]`, anywhere; a tool call ends it too.
        Mistral = "mistral",
        /// `<think>…</think>`, reasoning from the start on; a tool call ends it too.
        Qwen3 = "qwen3",
        /// As [`Self::Qwen3`], in `<seed:think>…</seed:think>`.
        SeedOss = "seed_oss",
        /// As [`Self::Qwen3`], always thinking, and without white space at the reasoning's end.
        Step3p5 = "step3p5",
    }
}

/// Format of tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name":…,"arguments":…}</tool_call>`
    Hermes,
    /// `{"name":…,"parameters":…}; …`, perhaps behind `<|python_tag|>`.
    Llama3Json,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`
    Qwen3Coder,
    /// As [`Self::Qwen3Coder`], with values as they are, line breaks and all.
    Mimo,
    /// As [`Self::Qwen3Coder`].
    Step3p5,
    /// As [`Self::Qwen3Coder`], in `<seed:tool_call>`.
    SeedOss,
    /// `[TOOL_CALLS]name[ARGS]{…}`, as tokenizers from version 11 on have it.
    Mistral,
    /// A type, a name and a code block of JSON between tokens of their own.
    DeepseekV3,
    /// A name and JSON between the same tokens.
    DeepseekV31,
}

/// The parsers of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Formats {
    /// vLLM's `--reasoning-parser`.
    pub reasoning: Option<ReasoningFormat>,
    /// vLLM's `--tool-call-parser`, where `--enable-auto-tool-choice` is set.
    pub tools: Option<ToolFormat>,
}

impl Formats {
    /// Returns true if the table-driven engine parses all of a response.
    pub(super) fn is_engine(self) -> bool {
        self.reasoning.is_none_or(ReasoningFormat::is_engine) && self.tools.is_none_or(ToolFormat::is_engine)
    }
}

impl From<ReasoningFormat> for Formats {
    fn from(format: ReasoningFormat) -> Self {
        Self { reasoning: Some(format), tools: None }
    }
}

impl From<ToolFormat> for Formats {
    fn from(format: ToolFormat) -> Self {
        Self { reasoning: None, tools: Some(format) }
    }
}

/// Tool choice of the request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// Not at all: the text stays as it is.
    #[default]
    None,
    /// As the model likes.
    Auto,
    /// At least one. Most formats read it as [`Self::Auto`]: the engine makes the model write calls in their own way. For
    /// the others the text is a JSON array of calls.
    Required,
    /// This function. Most formats read it as [`Self::Auto`]; for the others all text is the function's arguments.
    Named(String),
}

/// A function that the request offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The JSON schema of its parameters; `null` without one.
    pub parameters: serde_json::Value,
}

base::with_defaults! {
    /// Settings for parsing one response.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Parsing {
        /// The server's parsers.
        pub formats: Formats,
        /// Whether there is reasoning (`enable_thinking`); if the request does not set it, [`ReasoningFormat::thinks_by_default`].
        pub thinks: bool = true,
        /// Tool choice of the request.
        pub choice: ToolChoice,
        /// The functions of the request: some formats take the types of arguments from them.
        pub functions: Arc<[Function]>,
    }
}

impl Parsing {
    /// Returns true if the parsers need the text of special tokens, whatever the request asks.
    #[must_use]
    pub fn shows_special_tokens(&self) -> bool {
        let reasons = self.formats.reasoning.is_some_and(ReasoningFormat::is_engine);
        let calls = match self.formats.tools {
            Some(ToolFormat::Hermes) => self.choice != ToolChoice::None,
            Some(format) if format.is_engine() => true,
            Some(_) | None => false,
        };
        reasons || calls
    }
}

impl ReasoningFormat {
    /// Returns whether there is reasoning if the request does not set it (`enable_thinking`, for DeepSeek also `thinking`).
    #[must_use]
    pub fn thinks_by_default(self) -> bool {
        self != Self::DeepseekV3
    }
}

/// A name that stands for no parser here: whether vLLM has one of that name, and the names that are known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}; there are: {1}")]
pub struct UnknownParser(String, String);

const TOOLS: [(&str, ToolFormat); 12] = [
    ("deepseek_v3", ToolFormat::DeepseekV3),
    ("deepseek_v31", ToolFormat::DeepseekV31),
    ("hermes", ToolFormat::Hermes),
    ("llama3_json", ToolFormat::Llama3Json),
    ("llama4_json", ToolFormat::Llama3Json),
    ("mimo", ToolFormat::Mimo),
    ("mistral", ToolFormat::Mistral),
    ("qwen3_coder", ToolFormat::Qwen3Coder),
    ("qwen3_json", ToolFormat::Hermes),
    ("qwen3_xml", ToolFormat::Qwen3Coder),
    ("seed_oss", ToolFormat::SeedOss),
    ("step3p5", ToolFormat::Step3p5),
];

/// vLLM 0.32's other reasoning parsers.
const OTHER_REASONING: &str = "cohere_command3 cohere_command4 deepseek_v4 deepseek_v41 ernie45 gemma4 glm45 glm47 \
    granite_thinking_parser hf hunyuan_a13b hy_v3 hy_v4 inkling k2_horizon kimi_k2 kimi_k3 ling3 \
    minicpmv minimax_m2 minimax_m2_append_think minimax_m3 muse_glimmer nemotron_v3 olmo3 openai_gptoss \
    plamo3 poolside_v1 step3";

/// vLLM 0.32's other tool-call parsers.
const OTHER_TOOLS: &str = "apertus cohere_command3 cohere_command4 deepseek_v32 deepseek_v4 deepseek_v41 dots ernie45 \
    functiongemma gemma4 gigachat3 glm45 glm47 granite granite-20b-fc granite4 hf hunyuan_a13b hy_v3 \
    hy_v4 inkling internlm jamba k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama4_pythonic longcat minicpm5 \
    minimax_m2 minimax_m3 muse_glimmer olmo3 openai phi4_mini_json plamo3 poolside_v1 pythonic step3 \
    xlam";

impl ReasoningFormat {
    /// Returns true if the table-driven engine parses it.
    pub(super) fn is_engine(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Mimo | Self::Step3p5 | Self::SeedOss | Self::Mistral)
    }
}

impl std::str::FromStr for ReasoningFormat {
    type Err = UnknownParser;

    fn from_str(name: &str) -> Result<Self, UnknownParser> {
        named(name, "reasoning", &Self::ALL.map(|format| (format.name(), format)), OTHER_REASONING)
    }
}

impl std::str::FromStr for ToolFormat {
    type Err = UnknownParser;

    fn from_str(name: &str) -> Result<Self, UnknownParser> {
        named(name, "tool-call", &TOOLS, OTHER_TOOLS)
    }
}

fn named<T: Copy>(name: &str, kind: &str, known: &[(&str, T)], others: &str) -> Result<T, UnknownParser> {
    if let Some((_, format)) = known.iter().find(|(known, _)| *known == name) {
        return Ok(*format);
    }
    let known = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let what = if others.split(' ').any(|other| other == name) {
        format!("vLLM's {kind} parser '{name}' is not supported")
    } else {
        format!("no {kind} parser is called '{name}'")
    };
    Err(UnknownParser(what, known))
}
