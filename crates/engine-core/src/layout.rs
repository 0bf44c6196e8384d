//! Fields of the structs that are sent by position, for each family of vLLM versions.
//!
//! No message says its version. A request's number of fields does, as both front ends send them whole; where families share it, the type of
//! a field decides (17: 0.15 and 0.17 to 0.19; 18: 0.16 and 0.20), or the caller (20: 0.21 to 0.25 and 0.26, 0.27; 21: 0.28 and 0.29, 0.30;
//! 22: 0.31, 0.32 and 0.33).
//!
//! `layout/fields.tsv` has the fields as each version's source lists them (`tests/goldens/record-core-fields`).

/// Fields of `EngineCoreRequest` in 0.31 to 0.33; earlier ones have the first of them, but for what stands in [`RequestLayout`].
const REQUEST: [&str; 22] = [
    "request_id",
    "prompt_token_ids",
    "mm_features",
    "sampling_params",
    "pooling_params",
    "arrival_time",
    "lora_request",
    "cache_salt",
    "data_parallel_rank",
    "prompt_embeds",
    "prompt_is_token_ids",
    "client_index",
    "current_wave",
    "priority",
    "trace_headers",
    "resumable",
    "external_req_id",
    "reasoning_ended",
    "reasoning_parser_kwargs",
    "abort_immediately",
    "session_id",
    "kv_hints",
];

/// Fields of `EngineCoreOutput` in 0.33; earlier ones have the first of them, but for what stands in [`OutputLayout`].
const OUTPUT: [&str; 19] = [
    "request_id",
    "new_token_ids",
    "new_logprobs",
    "new_prompt_logprobs_tensors",
    "pooling_output",
    "finish_reason",
    "stop_reason",
    "events",
    "kv_transfer_params",
    "ec_transfer_params",
    "trace_headers",
    "prefill_stats",
    "routed_experts",
    "num_nans_in_logits",
    "mm_cache_miss_hashes",
    "new_sampling_mask",
    "spec_decode_metrics",
    "prompt_token_id_logprobs",
    "error",
];

/// The versions of [`FAMILIES`], for messages.
pub const KNOWN_VERSIONS: &str = "0.10 to 0.33";

/// How `EngineCoreRequest` differs from that of 0.33.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RequestLayout {
    /// Number of fields.
    length: usize,
    /// Fields of 0.33 that do not exist yet.
    without: &'static [&'static str],
    /// Whether `eos_token_id` stands before `arrival_time`.
    has_eos: bool,
}

/// How `EngineCoreOutput` differs from that of 0.33.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OutputLayout {
    length: usize,
    without: &'static [&'static str],
    /// Fields in place of `prefill_stats`.
    cached: &'static [&'static str],
}

/// Versions whose structs have the same fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionFamily {
    /// First version, such as `(0, 32)`.
    pub first: (u32, u32),
    /// Last version.
    pub last: (u32, u32),
    request: RequestLayout,
    output: OutputLayout,
}

const fn request(length: usize, without: &'static [&'static str], has_eos: bool) -> RequestLayout {
    RequestLayout { length, without, has_eos }
}

const fn output(length: usize, without: &'static [&'static str], cached: &'static [&'static str]) -> OutputLayout {
    OutputLayout { length, without, cached }
}

const PREFILL: &[&str] = &["prefill_stats"];
const CACHED: &[&str] = &["num_cached_tokens"];
const CACHED_EXTERNAL: &[&str] = &["num_cached_tokens", "num_external_computed_tokens"];
const IS_TOKENS: &[&str] = &["prompt_is_token_ids"];
const NOT_RESUMABLE: &[&str] = &["prompt_is_token_ids", "resumable"];
const EC: &[&str] = &["ec_transfer_params"];
const EC_EXPERTS: &[&str] = &["ec_transfer_params", "routed_experts"];

/// Every family, the newest first.
pub const FAMILIES: [VersionFamily; 14] = [
    family((0, 33), (0, 33), request(22, &[], false), output(19, &[], PREFILL)),
    family((0, 32), (0, 32), request(22, &[], false), output(18, &[], PREFILL)),
    family((0, 31), (0, 31), request(22, &[], false), output(18, &[], PREFILL)),
    family((0, 29), (0, 30), request(21, &[], false), output(17, &[], PREFILL)),
    family((0, 28), (0, 28), request(21, &[], false), output(16, &[], PREFILL)),
    family((0, 26), (0, 27), request(20, &[], false), output(14, &[], PREFILL)),
    family((0, 21), (0, 25), request(20, &[], false), output(13, EC, PREFILL)),
    family((0, 20), (0, 20), request(18, IS_TOKENS, false), output(13, EC, PREFILL)),
    family((0, 17), (0, 19), request(17, IS_TOKENS, false), output(14, EC, CACHED_EXTERNAL)),
    family((0, 16), (0, 16), request(18, IS_TOKENS, true), output(14, EC, CACHED_EXTERNAL)),
    family((0, 15), (0, 15), request(17, IS_TOKENS, true), output(13, EC, CACHED)),
    family((0, 14), (0, 14), request(16, NOT_RESUMABLE, true), output(13, EC, CACHED)),
    family((0, 11), (0, 13), request(15, IS_TOKENS, true), output(12, EC_EXPERTS, CACHED)),
    family(
        (0, 10),
        (0, 10),
        request(14, &["prompt_embeds", "prompt_is_token_ids"], true),
        output(11, &["ec_transfer_params", "routed_experts", "num_nans_in_logits"], CACHED),
    ),
];

const fn family(first: (u32, u32), last: (u32, u32), request: RequestLayout, output: OutputLayout) -> VersionFamily {
    VersionFamily { first, last, request, output }
}

impl VersionFamily {
    /// The family of a version such as `0.32.0`; `None` where its fields are not known.
    #[must_use]
    pub fn of_version(version: &str) -> Option<Self> {
        let mut parts = version.split('.').map(str::parse::<u32>);
        let version = (parts.next()?.ok()?, parts.next()?.ok()?);
        FAMILIES.into_iter().find(|family| (family.first..=family.last).contains(&version))
    }

    /// The newest family whose requests have so many fields; `has_eos` where field 5 is no time, as in 0.16 and before.
    pub(crate) fn of_request(length: usize, has_eos: bool) -> Option<Self> {
        FAMILIES.into_iter().find(|family| family.request.length == length && family.request.has_eos == has_eos)
    }

    /// Checks whether requests of another family have the same fields.
    #[must_use]
    pub fn has_requests_of(&self, other: &Self) -> bool {
        self.request == other.request
    }

    /// Number of fields of a prompt's log probabilities, which are not passed over where there are more.
    pub(crate) fn prompt_logprobs_fields(&self) -> usize {
        match self.first {
            (0, 29..) => 5,
            (0, 16..) => 4,
            _ => 3,
        }
    }

    /// Checks whether log probabilities of outputs are lists of numbers, not tensors.
    pub(crate) fn has_plain_logprobs(&self) -> bool {
        self.first == (0, 10)
    }

    /// Checks whether messages of outputs name the weights.
    pub(crate) fn has_weight_version(&self) -> bool {
        self.first >= (0, 32)
    }

    /// The versions, such as `0.29 to 0.30`.
    #[must_use]
    pub fn versions(&self) -> String {
        let (first, last) = (self.first.1, self.last.1);
        if first == last { format!("0.{first}") } else { format!("0.{first} to 0.{last}") }
    }

    /// Names of the fields of a request, in their order.
    pub(crate) fn request_fields(&self) -> impl Iterator<Item = &'static str> {
        let RequestLayout { length, without, has_eos } = self.request;
        let (before, after) = REQUEST.split_at(5);
        let eos = has_eos.then_some("eos_token_id");
        let all = before.iter().copied().chain(eos).chain(after.iter().copied());
        all.filter(move |name| !without.contains(name)).take(length)
    }

    /// Names of the fields of an output, in their order.
    pub(crate) fn output_fields(&self) -> impl Iterator<Item = &'static str> {
        let OutputLayout { length, without, cached } = self.output;
        let all = OUTPUT
            .iter()
            .flat_map(move |name| if *name == "prefill_stats" { cached } else { std::slice::from_ref(name) });
        all.copied().filter(move |name| !without.contains(name)).take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_as_many_fields_as_it_says() {
        for family in FAMILIES {
            assert_eq!(family.request_fields().count(), family.request.length, "{family:?}");
            assert_eq!(family.output_fields().count(), family.output.length, "{family:?}");
        }
    }

    #[test]
    fn fields_are_those_of_the_source_of_every_version() {
        let mut versions = 0;
        for line in include_str!("layout/fields.tsv").lines().filter(|line| !line.starts_with('#')) {
            let columns: Vec<&str> = line.split('\t').collect();
            let [version, name, fields] = columns.as_slice() else { panic!("{line}") };
            let family = VersionFamily::of_version(version).unwrap();
            let expected: Vec<&str> = fields.split(' ').collect();
            match *name {
                "EngineCoreRequest" => assert_eq!(family.request_fields().collect::<Vec<_>>(), expected, "{version}"),
                "EngineCoreOutput" => assert_eq!(family.output_fields().collect::<Vec<_>>(), expected, "{version}"),
                "EngineCoreOutputs" => assert_eq!(family.has_weight_version(), expected.len() == 9, "{version}"),
                "LogprobsTensors" => assert_eq!(family.prompt_logprobs_fields(), expected.len(), "{version}"),
                other => panic!("{other}"),
            }
            versions += usize::from(*name == "EngineCoreRequest");
        }
        assert_eq!(versions, 24);
    }

    #[test]
    fn fields_stand_where_each_version_has_them() {
        let at = |version: &str, name: &str| {
            let family = VersionFamily::of_version(version).unwrap();
            (
                family.request_fields().position(|field| field == name),
                family.output_fields().position(|field| field == name),
            )
        };
        assert_eq!(at("0.32.0", "client_index").0, Some(11));
        assert_eq!(at("0.20.1", "client_index").0, Some(10));
        assert_eq!(at("0.16.0", "client_index").0, Some(11));
        assert_eq!(at("0.10.2", "client_index").0, Some(10));
        assert_eq!(at("0.32.0", "prefill_stats").1, Some(11));
        assert_eq!(at("0.25.0", "prefill_stats").1, Some(10));
        assert_eq!(at("0.16.0", "num_external_computed_tokens").1, Some(11));
        assert_eq!(at("0.10.2", "num_cached_tokens").1, Some(10));
        assert_eq!(VersionFamily::of_version("0.34.0"), None);
        assert_eq!(VersionFamily::of_request(18, true).unwrap().first, (0, 16));
        assert_eq!(VersionFamily::of_request(23, false), None);
    }
}
