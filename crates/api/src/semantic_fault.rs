//! Responses that are valid on the wire and wrong in content.

/// A way in which a response is wrong although it is valid on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SemanticFault {
    /// The arguments of a call are no JSON.
    BadArguments,
    /// They are JSON that breaks the tool's schema.
    SchemaViolation,
    /// A call of a tool that was not offered.
    UnknownTool,
    /// Two calls with one id.
    DuplicateCall,
    /// The answer ends for its length within a call.
    CutCall,
    /// No text and no call.
    Empty,
    /// A refusal.
    Refusal,
    /// The answer ends because a filter took it.
    ContentFilter,
    /// Reasoning, and no answer after it.
    ReasoningOnly,
    /// The tags of reasoning in the text.
    ThinkTag,
    /// A call that is written into the text.
    CallInText,
    /// A text in another language than the request's.
    WrongLanguage,
    /// A phrase again and again until the length is reached.
    Repetition,
}

impl SemanticFault {
    /// All of them, by their names.
    pub const ALL: [(&'static str, Self); 13] = [
        ("bad-arguments", Self::BadArguments),
        ("schema-violation", Self::SchemaViolation),
        ("unknown-tool", Self::UnknownTool),
        ("duplicate-call", Self::DuplicateCall),
        ("cut-call", Self::CutCall),
        ("empty", Self::Empty),
        ("refusal", Self::Refusal),
        ("content-filter", Self::ContentFilter),
        ("reasoning-only", Self::ReasoningOnly),
        ("think-tag", Self::ThinkTag),
        ("call-in-text", Self::CallInText),
        ("wrong-language", Self::WrongLanguage),
        ("repetition", Self::Repetition),
    ];

    /// Finds one by its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, fault)| *fault)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, fault)| *fault == self).map_or("", |(name, _)| name)
    }
}
