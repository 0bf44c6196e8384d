//! The values of flags that choose one variant of a type of the layers below, which do not see clap.
//!
//! See docs/decisions/0043-flag-values.md.

use std::{fmt, ops::RangeInclusive, str::FromStr, time::Duration};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;

use crate::{
    base::units::parse_duration,
    drive::{History, LoadClient},
    engine::{
        kv_cache::HashAlgorithm,
        kv_events::{EventEncoding, EventHashes},
        scheduler::SchedulingPolicy,
    },
    inspect::Answers,
    net::upstream::UpstreamUrl,
    play::{Synthetic, UnmatchedPace},
    prove::{CompareBy, ProveCheck},
    recording::{
        canonical::Normalisation,
        cassette::{Times, TokenIds},
        formats::TraceFormat,
    },
    replay::{
        matching::requests::{OnExhausted, Retries},
        mcp::{OnNovel, OnUsedUp},
        player::{Ids, MissDetail, OnMiss, RecordErrors},
    },
    sweep::CleanCompare,
    text::prompt::BlockHashAlgorithm,
};

/// A type whose variants are the values of a flag. It stands for clap's `ValueEnum`, which only the crate of the type could implement.
pub(in crate::cli) trait FlagValue: Clone + Send + Sync + 'static {
    /// The variants that a flag may choose, each with its value and help.
    const VALUES: &[(Self, &str, &str)];

    fn named(value: &str) -> Option<Self> {
        Self::VALUES.iter().find(|(_, own, _)| *own == value).map(|(variant, ..)| variant.clone())
    }
}

/// Reads the value of a flag that chooses a variant of `T`.
pub(in crate::cli) fn one_of<T: FlagValue>() -> impl TypedValueParser<Value = T> {
    one_of_those(|_: &T| true)
}

/// As [`one_of`]; help and completions show these values only, and any other one is refused by what takes it.
pub(in crate::cli) fn one_of_those<T: FlagValue>(are_shown: impl Fn(&T) -> bool) -> impl TypedValueParser<Value = T> {
    let value = |(variant, value, help): &(T, &'static str, &'static str)| {
        PossibleValue::new(*value).help(*help).hide(!are_shown(variant))
    };
    PossibleValuesParser::new(T::VALUES.iter().map(value))
        .try_map(|typed| T::named(&typed).ok_or("not one of the values"))
}

/// Implements [`FlagValue`]: each variant with its value and its help; those behind `-` have no value, and a variant without a line does not
/// compile.
macro_rules! values {
    ($($type:ty { $($variant:ident $value:literal $help:literal,)+ $(- $hidden:ident)? })+) => {$(
        impl FlagValue for $type {
            const VALUES: &[(Self, &str, &str)] = &[$((Self::$variant, $value, $help)),+];
        }

        const _: fn($type) = |variant| match variant {
            $(<$type>::$variant => {})+
            $(<$type>::$hidden => {})?
        };
    )+};
}

/// Reads a share from 0 to 1, or as percent; `needed` is the message for what is none.
pub(in crate::cli) fn share(needed: &'static str) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let number = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse().map(|percent: f64| percent / 100.0),
            None => text.parse(),
        };
        number.ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| needed.to_owned())
    }
}

/// Reads a number of this range; `needed` is the message for what is none.
pub(in crate::cli) fn within(
    range: RangeInclusive<f64>,
    needed: &'static str,
) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| needed.to_owned())
}

/// Reads JSON; `needed` goes on with the message of what is wrong.
pub(in crate::cli) fn json<T: DeserializeOwned>(needed: &'static str) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| serde_json::from_str(text).map_err(|error| format!("{error}{needed}"))
}

/// Reads a duration of a flag that is thought of in seconds, so that a bare number would be taken for these.
pub(in crate::cli) fn with_unit(text: &str) -> Result<Duration, String> {
    let bare = text.trim();
    if bare.parse().is_ok_and(|number: f64| number > 0.0) {
        return Err(format!("a number needs its unit: write {bare}s for seconds, {bare}ms for milliseconds"));
    }
    parse_duration(text).map_err(|error| error.to_string())
}

/// Reads such a duration that is not zero: nothing could ever be in time for that.
pub(in crate::cli) fn some_time(text: &str) -> Result<Duration, String> {
    let duration = with_unit(text)?;
    let refusal = "zero would end everything at once; leave the flag out for its default";
    (!duration.is_zero()).then_some(duration).ok_or_else(|| refusal.to_owned())
}

values! {
    CleanCompare {
        Content "content" "Texts, calls, reasons, log probabilities and token counts, in a valid response",
        Bytes "bytes" "Every byte",
    }
    CompareBy {
        Events "events" "Each event, as JSON",
        Content "content" "Texts, calls, reasons and log probabilities, for gateways that write their own events",
    }
    ProveCheck {
        Stream "stream" "The same events",
        Usage "usage" "The same token counts",
        Cost "cost" "The same cost",
        Isolation "isolation" "Nothing of another stream",
        Error "error" "An error stays an error",
    }
    LoadClient {
        Vllm "vllm" "`vllm bench serve`",
        Guidellm "guidellm" "guidellm",
        Aiperf "aiperf" "aiperf",
        GenaiBench "genai-bench" "genai-bench",
        InferencePerf "inference-perf" "inference-perf",
    }
    History {
        Recorded "recorded" "The recorded ones",
        Live "live" "Those of this run",
    }
    TraceFormat {
        Trace "trace" "A trace of this program",
        Mooncake "mooncake" "A row for each request: Mooncake, AIPerf's mooncake_trace, Dynamo's replay rows; times in milliseconds, blocks of 512 tokens",
        VllmTimedTrace "vllm-timed-trace" "The same rows for vllm bench serve; times in seconds, blocks of 16 tokens",
        Weka "weka" "An object for each conversation of an agent and its sub-agents: Weka, AgentX",
        Dynamo "dynamo" "Events of Dynamo's request trace",
        AiperfSingleTurn "aiperf-single-turn" "AIPerf's single_turn",
        AiperfMultiTurn "aiperf-multi-turn" "AIPerf's multi_turn",
        ShareGpt "sharegpt" "An object for each conversation with the texts of both sides",
    }
    SchedulingPolicy {
        Fcfs "fcfs" "First come, first served",
        Priority "priority" "The lowest `priority` first; the oldest of equal ones",
    }
    HashAlgorithm {
        Sha256 "sha256" "SHA-256 of pickled tokens",
        Sha256Cbor "sha256_cbor" "SHA-256 of tokens in CBOR",
        Xxhash "xxhash" "XXH3, 128 bits, of pickled tokens",
        XxhashCbor "xxhash_cbor" "XXH3, 128 bits, of tokens in CBOR",
    }
    EventEncoding {
        Map "map" "A map of its fields, as vLLM 0.32",
        Array "array" "An array of its values, as earlier versions",
    }
    EventHashes {
        Int "int" "A number, its last 8 bytes",
        Bytes "bytes" "All of its bytes",
    }
    BlockHashAlgorithm {
        Xxh3_64 "xxh3-64" "About ten times faster",
        Fnv1a64 "fnv1a-64" "The one that other readers of the format know",
        - SipHash24
    }
    Answers {
        Verbatim "verbatim" "The tokens that were sampled",
        Changed "changed" "Other tokens, for example because its text is tokenized again or a template drops reasoning",
    }
    Normalisation {
        Even "even" "In canonical form",
        Strict "strict" "Field by field",
    }
    Ids {
        Recorded "recorded" "As recorded",
        Fresh "fresh" "New ones",
    }
    MissDetail {
        Brief "brief" "The message and the first differences; both requests are at /vcr/misses/N",
        Full "full" "Both requests and all their differences",
        Summary "summary" "Only the message",
        None "none" "Only that it is a miss",
    }
    OnExhausted {
        Error "error" "An error",
        Last "last" "The last record again",
        Cycle "cycle" "All records again, from the first one on",
    }
    OnMiss {
        Error "error" "An error that names the closest record",
        Random "random" "Made-up tokens; only of play",
        Stub "stub" "A short text that names the request",
        Upstream "upstream" "The upstream's answer",
        Record "record" "The upstream's answer, which is added to the cassette",
    }
    OnNovel {
        Error "error" "An error that names the closest record",
        Stub "stub" "A short text that names the call; only for tools",
        Null "null" "A result that is null; only for tools",
        Closest "closest" "The answer to a similar call of the same tool",
        Upstream "upstream" "The real server's answer",
        Record "record" "The real server's answer, which is added to the cassette",
    }
    OnUsedUp {
        Error "error" "An error",
        Last "last" "The last one again",
    }
    RecordErrors {
        Lasting "lasting" "Failures that would be the same the next time",
        All "all" "All failures",
    }
    Retries {
        Reserve "reserve" "The same record again",
        Consume "consume" "The next record",
    }
    Synthetic {
        Random "random" "Seeded random tokens",
        Echo "echo" "The prompt's own tokens, once; repeatedly with ignore_eos",
    }
    Times {
        Sidecar "sidecar" "In the sidecar beside the cassette",
        Inline "inline" "In the records",
        None "none" "Nowhere",
    }
    TokenIds {
        Sidecar "sidecar" "In the sidecar, as the engine sent them",
        None "none" "Nowhere",
    }
    UnmatchedPace {
        Trace "trace" "The first after the trace's median TTFT, each further one after its median gap",
        Instant "instant" "At once",
    }
}

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::cli) struct Secret(pub(in crate::cli) String);

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret")
    }
}

impl FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

pub(in crate::cli) fn host_and_port(typed: &str) -> Result<String, String> {
    let is_address = typed.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if is_address { Ok(typed.to_owned()) } else { Err(format!("`{typed}` is not HOST:PORT, such as 127.0.0.1:8001")) }
}

/// A random id as a UUID, version 4.
pub(in crate::cli) fn uuid(random: u128) -> String {
    let bits = random & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| hex.get(part).unwrap_or_default());
    parts.join("-")
}

/// Advice about a server's URL that ends in the path of its API, which this program adds.
pub(in crate::cli) fn api_path_advice(url: &UpstreamUrl) -> Option<&'static str> {
    let is_of_api = url.to_string().trim_end_matches('/').ends_with("/v1");
    is_of_api.then_some("vLLM's URL has no /v1 at its end: leave it out")
}
