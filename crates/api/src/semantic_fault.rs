//! Responses that are valid on the wire and wrong in content.

base::named! {
    /// A way in which a response is wrong although it is valid on the wire.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SemanticFault {
        /// The arguments of a call are no JSON.
        BadArguments = "bad-arguments",
        /// They are JSON that breaks the tool's schema.
        SchemaViolation = "schema-violation",
        /// A call of a tool that was not offered.
        UnknownTool = "unknown-tool",
        /// Two calls with one id.
        DuplicateCall = "duplicate-call",
        /// The answer ends for its length within a call.
        CutCall = "cut-call",
        /// No text and no call.
        Empty = "empty",
        /// A refusal.
        Refusal = "refusal",
        /// The answer ends because a filter took it.
        ContentFilter = "content-filter",
        /// Reasoning, and no answer after it.
        ReasoningOnly = "reasoning-only",
        /// The tags of reasoning in the text.
        ThinkTag = "think-tag",
        /// A call that is written into the text.
        CallInText = "call-in-text",
        /// A text in another language than the request's.
        WrongLanguage = "wrong-language",
        /// A phrase again and again until the length is reached.
        Repetition = "repetition",
    }
}
