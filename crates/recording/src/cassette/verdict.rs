//! Verdicts of guard models: which model's words, and when they say that something is unsafe.

use serde_json::{Map, Value};

use super::{condition::names, error::Wrong};
use crate::{canonical::TextPattern, yaml::YamlEntry};

/// A verdict on what a request holds.
#[derive(Debug, Clone, PartialEq)]
pub struct GuardVerdict {
    /// Whose words it is in.
    pub kind: VerdictKind,
    /// When it is unsafe.
    pub when: UnsafeWhen,
    /// What is violated where it is unsafe; empty for the model's usual.
    pub categories: Vec<String>,
    /// Probability of the verdict, from 0 to 1.
    pub score: Option<f64>,
    /// Whether the answer of a model is judged, where the words differ by that, and not its request.
    pub of_response: bool,
    /// Numbers in an embedding.
    pub dimensions: Option<u32>,
}

/// Conditions of the verdict `unsafe`: always, or where one of these holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UnsafeWhen {
    /// In any case.
    pub always: bool,
    /// The text that is judged contains one of these.
    pub phrases: Vec<String>,
    /// It has a match of one of these.
    pub patterns: Vec<TextPattern>,
    /// For so many of all requests, from 0 to 1: which ones is decided by their content and the seed.
    pub rate: f64,
    /// Seed of the rate.
    pub seed: u64,
}

base::named! {
    /// The words of a verdict.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum VerdictKind {
        /// `safe`, or `unsafe` and a line of categories.
        LlamaGuard = "llama-guard",
        /// `Yes` for a violation, `No`.
        ShieldGemma = "shieldgemma",
        /// `<score> yes </score>` for a risk, `no`.
        GraniteGuardian = "granite-guardian",
        /// `Safety: Unsafe`, `Categories: …`.
        Qwen3Guard = "qwen3guard",
        /// JSON with `User Safety`, `Response Safety` and `Safety Categories`.
        NemoguardContentSafety = "nemoguard-content-safety",
        /// `on-topic`, `off-topic`.
        NemoguardTopicControl = "nemoguard-topic-control",
        /// NeMo Guardrails' self checks: `Yes` where it should be blocked, `No`.
        SelfCheck = "self-check",
        /// `POST /v1/moderations`.
        OpenaiModeration = "openai-moderation",
        /// `Yes`, `No`, with the probabilities of both.
        YesNo = "yes-no",
        /// `/classify`.
        Classify = "classify",
        /// `/score`.
        Score = "score",
        /// `/v1/embeddings`.
        Embedding = "embedding",
    }
}

/// OpenAI's categories.
static MODERATIONS: [&str; 13] = [
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
];

/// Those of Qwen3Guard-Gen's model card.
static QWEN3GUARD: [&str; 9] = [
    "Violent",
    "Non-violent Illegal Acts",
    "Sexual Content or Sexual Acts",
    "PII",
    "Suicide & Self-Harm",
    "Unethical Acts",
    "Politically Sensitive Topics",
    "Copyright Violation",
    "Jailbreak",
];

/// Keys of an answer that belong to its verdict.
const KEYS: [&str; 5] = ["unsafe", "categories", "score", "of", "dimensions"];

/// The most numbers in an embedding.
const MOST_DIMENSIONS: u64 = 65_536;

impl VerdictKind {
    /// The keys that it takes beside `unsafe`.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::LlamaGuard | Self::OpenaiModeration | Self::Classify => &["categories", "score"],
            Self::ShieldGemma | Self::GraniteGuardian | Self::SelfCheck | Self::YesNo | Self::Score => &["score"],
            Self::Qwen3Guard | Self::NemoguardContentSafety => &["categories", "of"],
            Self::NemoguardTopicControl => &[],
            Self::Embedding => &["dimensions"],
        }
    }

    /// The categories that it has; `None` where its user names them.
    #[must_use]
    pub fn categories(self) -> Option<&'static [&'static str]> {
        match self {
            Self::OpenaiModeration => Some(&MODERATIONS),
            Self::Qwen3Guard => Some(&QWEN3GUARD),
            _ => None,
        }
    }

    /// Describes the first of these categories that it does not have.
    fn why_unknown(self, categories: &[String]) -> Option<String> {
        let known = self.categories()?;
        let unknown = categories.iter().find(|name| !known.contains(&name.as_str()))?;
        Some(format!("`{unknown}` is no category of {}: {}", self.name(), known.join(", ")))
    }

    /// Paths that it is for; empty for those that generate text.
    pub(super) fn routes(self) -> &'static [&'static str] {
        match self {
            Self::OpenaiModeration => &["/v1/moderations"],
            Self::Classify => &["/classify", "/v1/classify"],
            Self::Score => &["/score", "/v1/score"],
            Self::Embedding => &["/v1/embeddings"],
            _ => &[],
        }
    }
}

impl GuardVerdict {
    /// Returns whether a key beside `verdict` belongs to it.
    pub(super) fn takes(key: &str) -> bool {
        KEYS.contains(&key)
    }

    /// Reads a verdict among the keys of an answer.
    pub(super) fn read(entries: &[YamlEntry], line: usize) -> Result<Self, Wrong> {
        let of = |key: &str| entries.iter().find(|entry| entry.key == key);
        let name = of("verdict").and_then(|entry| entry.value.text()).unwrap_or_default();
        let Some(kind) = VerdictKind::named(name) else {
            let names = VerdictKind::ALL.map(VerdictKind::name).join(", ");
            return Err(Wrong::at(line, format!("`answer.verdict` has to be {names}")));
        };
        let stray = entries.iter().find(|entry| {
            let key = entry.key.as_str();
            KEYS.contains(&key) && !kind.keys().contains(&key) && (key != "unsafe" || kind == VerdictKind::Embedding)
        });
        if let Some(entry) = stray {
            return Err(Wrong::at(entry.line, format!("`{}` has no effect on the verdict {name}", entry.key)));
        }
        let wrong = |entry: &YamlEntry, what: &str| Wrong::at(entry.line, format!("`{}` has to be {what}", entry.key));
        let list = |entry: &YamlEntry| {
            let value = entry.value.value();
            names(&value).ok_or_else(|| wrong(entry, "a text, or a list of texts"))
        };
        let share = |entry: &YamlEntry| share(&entry.value.value()).ok_or_else(|| wrong(entry, "a number from 0 to 1"));
        let of_response = match of("of").map(|entry| (entry, entry.value.text())) {
            None | Some((_, Some("request"))) => false,
            Some((_, Some("response"))) => true,
            Some((entry, _)) => return Err(wrong(entry, "request or response")),
        };
        let dimensions = |entry: &YamlEntry| {
            let count = entry.value.number().filter(|count| (1..=MOST_DIMENSIONS).contains(count));
            count.and_then(|count| u32::try_from(count).ok()).ok_or_else(|| wrong(entry, "a number from 1 to 65536"))
        };
        let categories = of("categories").map(list).transpose()?.unwrap_or_default();
        if let (Some(entry), Some(why)) = (of("categories"), kind.why_unknown(&categories)) {
            return Err(Wrong::at(entry.line, why));
        }
        Ok(Self {
            kind,
            when: of("unsafe").map(UnsafeWhen::read).transpose()?.unwrap_or_default(),
            categories,
            score: of("score").map(share).transpose()?,
            of_response,
            dimensions: of("dimensions").map(dimensions).transpose()?,
        })
    }

    /// Its keys as a file shows them.
    pub(super) fn shown(&self) -> Map<String, Value> {
        let Self { kind, when, categories, score, of_response, dimensions } = self;
        let mut shown = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            value.into_iter().for_each(|value| drop(shown.insert(key.to_owned(), value)));
        };
        put("verdict", Some(kind.name().into()));
        put("unsafe", when.shown());
        put("categories", (!categories.is_empty()).then(|| categories.iter().cloned().collect()));
        put("score", score.map(Value::from));
        put("of", of_response.then(|| "response".into()));
        put("dimensions", dimensions.map(Value::from));
        shown
    }
}

impl UnsafeWhen {
    fn read(entry: &YamlEntry) -> Result<Self, Wrong> {
        if let Value::Bool(always) = entry.value.value() {
            return Ok(Self { always, ..Self::default() });
        }
        let what = "`unsafe` has to be true, false, or a map such as {contains: [bomb], rate: 0.05, seed: 1}";
        let entries = entry.value.entries().filter(|entries| !entries.is_empty());
        let entries = entries.ok_or_else(|| Wrong::at(entry.line, what))?;
        let mut when = Self::default();
        for YamlEntry { key, line, value } in entries {
            let wrong = |what: &str| Wrong::at(*line, format!("`unsafe.{key}` has to be {what}"));
            let list = || names(&value.value()).ok_or_else(|| wrong("a text, or a list of texts"));
            match key.as_str() {
                "contains" => when.phrases = list()?,
                "regex" => {
                    let one = |text: &String| {
                        text.parse().map_err(|error| Wrong::at(*line, format!("`unsafe.regex`: {error}")))
                    };
                    when.patterns = list()?.iter().map(one).collect::<Result<_, _>>()?;
                }
                "rate" => when.rate = share(&value.value()).ok_or_else(|| wrong("a number from 0 to 1"))?,
                "seed" => when.seed = value.number().ok_or_else(|| wrong("a number"))?,
                _ => return Err(Wrong::at(*line, format!("`{key}` is none of contains, regex, rate, seed"))),
            }
        }
        Ok(when)
    }

    fn shown(&self) -> Option<Value> {
        let Self { always, phrases, patterns, rate, seed } = self;
        let mut map = Map::new();
        let list = |texts: Vec<String>| Value::from(texts);
        if !phrases.is_empty() {
            map.insert("contains".to_owned(), list(phrases.clone()));
        }
        if !patterns.is_empty() {
            map.insert("regex".to_owned(), list(patterns.iter().map(ToString::to_string).collect()));
        }
        if *rate > 0.0 {
            map.insert("rate".to_owned(), (*rate).into());
        }
        if *seed > 0 {
            map.insert("seed".to_owned(), (*seed).into());
        }
        match (always, map.is_empty()) {
            (true, _) => Some(true.into()),
            (false, true) => None,
            (false, false) => Some(map.into()),
        }
    }
}

fn share(value: &Value) -> Option<f64> {
    value.as_f64().filter(|share| (0.0..=1.0).contains(share))
}
