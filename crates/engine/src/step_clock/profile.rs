//! Durations by the data sheets of a GPU and a model.
//!
//! A step reads the weights and the context from memory and computes its tokens; it takes the longer of the two, and a
//! constant for what surrounds it. What is reached of a data sheet's figures is an assumption: 80 % of the bandwidth, 50 % of the
//! operations, of both 85 % where several GPUs share a layer.
//!
//! Sources: NVIDIA's data sheets of H100 SXM (3.35 TB/s, 989 TFLOPS dense BF16), A100 80 GB SXM (2.039 TB/s, 312 TFLOPS) and L4
//! (300 GB/s, 121 TFLOPS dense); the model cards and `config.json` of Llama 3.1 8B (8.03 billion parameters, 32 layers, 8 heads of keys and values of 128)
//! and 70B (70.6 billion, 80 layers, the same heads), in BF16.

use std::str::FromStr;

use super::StepWork;

/// Share of the memory's bandwidth that is reached.
const OF_BANDWIDTH: f64 = 0.8;

/// Share of the operations that are reached.
const OF_OPERATIONS: f64 = 0.5;

/// Share of both that is left where several GPUs share a layer.
const TOGETHER: f64 = 0.85;

/// Seconds of a step around what the GPU computes.
const AROUND: f64 = 0.0015;

/// Bytes of a number in BF16.
const BYTES: f64 = 2.0;

/// A GPU, how many of them, and a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// Bytes per second of one GPU's memory.
    bandwidth: f64,
    /// Operations per second of one GPU.
    operations: f64,
    gpus: f64,
    parameters: f64,
    /// Bytes of keys and values of a token.
    kv_bytes: f64,
}

const fn profile(name: &'static str, gpu: (f64, f64), gpus: f64, model: (f64, f64)) -> Profile {
    let (bandwidth, operations) = gpu;
    let (parameters, layers) = model;
    Profile { name, bandwidth, operations, gpus, parameters, kv_bytes: 2.0 * layers * 8.0 * 128.0 * BYTES }
}

const H100: (f64, f64) = (3.35e12, 989e12);
const A100: (f64, f64) = (2.039e12, 312e12);
const L4: (f64, f64) = (0.3e12, 121e12);
const LLAMA_8B: (f64, f64) = (8.03e9, 32.0);
const LLAMA_70B: (f64, f64) = (70.6e9, 80.0);

/// The profiles that there are.
pub const PROFILES: [Profile; 6] = [
    profile("h100-8b", H100, 1.0, LLAMA_8B),
    profile("h100x4-70b", H100, 4.0, LLAMA_70B),
    profile("a100-8b", A100, 1.0, LLAMA_8B),
    profile("a100x4-70b", A100, 4.0, LLAMA_70B),
    profile("l4-8b", L4, 1.0, LLAMA_8B),
    profile("l4x8-70b", L4, 8.0, LLAMA_70B),
];

/// A name that no profile has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no latency profile: use {known}", known = PROFILES.map(|profile| profile.name).join(", "))]
pub struct UnknownProfile(String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        PROFILES.into_iter().find(|profile| profile.name == name).ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}

impl Profile {
    pub(super) fn seconds(&self, work: &StepWork) -> f64 {
        let reached = if self.gpus > 1.0 { TOGETHER } else { 1.0 } * self.gpus;
        let bytes = self.parameters * BYTES + work.context_tokens as f64 * self.kv_bytes;
        let reading = bytes / (self.bandwidth * OF_BANDWIDTH * reached);
        let computing = 2.0 * self.parameters * f64::from(work.tokens()) / (self.operations * OF_OPERATIONS * reached);
        AROUND + reading.max(computing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(name: &str, work: StepWork) -> f64 {
        name.parse::<Profile>().unwrap().seconds(&work) * 1e3
    }

    const ONE: StepWork = StepWork {
        decodes: 1,
        draft_tokens: 0,
        prefills: 0,
        prefill_tokens: 0,
        prefill_share: 0.0,
        context_tokens: 500,
    };

    #[test]
    fn a_decode_reads_the_weights_and_a_long_prefill_computes() {
        // 16.06 GB at 2.68 TB/s are 6.0 ms; 8192 tokens are 131.6 Tera operations at 494.5 per second: 266 ms.
        let decode = millis("h100-8b", ONE);
        assert!((decode - 7.5).abs() < 0.1, "{decode}");
        let prefill = StepWork { prefills: 1, prefill_tokens: 8192, prefill_share: 1.0, ..StepWork::default() };
        let prefill = millis("h100-8b", prefill);
        assert!((prefill - 267.6).abs() < 1.0, "{prefill}");
    }

    #[test]
    fn faster_gpus_and_smaller_models_take_less_time() {
        let times =
            ["h100-8b", "a100-8b", "h100x4-70b", "a100x4-70b", "l4-8b", "l4x8-70b"].map(|name| millis(name, ONE));
        assert!(times.is_sorted(), "{times:?}");
        let crowded = StepWork { decodes: 64, context_tokens: 64 * 4000, ..ONE };
        assert!(millis("h100-8b", crowded) > 2.0 * millis("h100-8b", ONE));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = "b200-8b".parse::<Profile>().unwrap_err().to_string();
        assert!(error.contains("`b200-8b`") && error.contains("l4x8-70b"), "{error}");
    }
}
