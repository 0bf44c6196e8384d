//! Flags of `play` about speculative decoding of the simulated engine, and what they mean.

use clap::Args;
use serde_json::{Map, Value};

use crate::{
    cli::{
        failure::Failure,
        output,
        values::{json, share},
    },
    engine::scheduler::Speculation,
};

/// Speculative decoding.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Speculative decoding")]
pub(in crate::cli) struct SpeculativeArgs {
    /// Adds draft tokens to the engine's steps, with vLLM's fields in JSON: method, num_speculative_tokens, and with
    /// "rejection_sample_method": "synthetic" synthetic_acceptance_rates or synthetic_acceptance_length. Other fields have no effect.
    #[arg(long, group = "@vllm_engine", value_name = "JSON", value_parser = json::<Map<String, Value>>(NEEDED), conflicts_with = "latency_recorded")]
    pub(in crate::cli) speculative_config: Option<Map<String, Value>>,
    /// Share of draft tokens that are accepted if all before them were: one number, or one per position, separated by commas. Default: 0.7,
    /// unless --speculative-config has rates. Recorded answers keep their recorded bursts, if they have any.
    #[arg(long, group = "@engine", value_name = "SHARE", value_delimiter = ',', value_parser = share("a share from 0 to 1 is needed, such as 0.7"))]
    pub(in crate::cli) speculative_acceptance_rate: Vec<f64>,
}

/// An example for those who write something else.
const NEEDED: &str = "; an object is needed, such as {\"method\":\"ngram\",\"num_speculative_tokens\":3}";

/// Share of accepted draft tokens by default.
const USUAL_RATE: f64 = 0.7;

/// Maximum number of draft tokens of a step.
const MOST_TOKENS: u64 = 256;

/// The speculative decoding that the flags give the engine.
pub(in crate::cli) fn config(args: &SpeculativeArgs) -> Result<Option<Speculation>, Failure> {
    let Some(fields) = &args.speculative_config else {
        if args.speculative_acceptance_rate.is_empty() {
            return Ok(None);
        }
        let message = "--speculative-acceptance-rate has no effect without draft tokens";
        let hint = "add --speculative-config '{\"method\":\"ngram\",\"num_speculative_tokens\":3}', or leave it out";
        return Err(Failure::usage(message).hint(hint));
    };
    let drafted = fields.get("num_speculative_tokens").and_then(Value::as_u64);
    let Some(drafted) = drafted.filter(|drafted| (1..=MOST_TOKENS).contains(drafted)) else {
        let message = "--speculative-config: num_speculative_tokens is required, a number from 1 to 256";
        return Err(Failure::usage(message));
    };
    let drafted = usize::try_from(drafted).unwrap_or(usize::MAX);
    let method = method(fields);
    let Some(speculation) = Speculation::of_method(method, drafted) else {
        let known: Vec<&str> = Speculation::methods().collect();
        let message = format!("--speculative-config: {method} is not simulated");
        return Err(Failure::usage(message).hint(format!("\"method\" is one of {}", known.join(", "))));
    };
    let keeps = fields.get("disable_eagle_block_drop") == Some(&Value::Bool(true));
    let drops_cached_block = speculation.drops_cached_block && !keeps;
    let acceptance_rates = rates(fields, drafted, &args.speculative_acceptance_rate)?;
    Ok(Some(Speculation { drops_cached_block, acceptance_rates, ..speculation }))
}

/// The method; a model without one is a draft model, as in vLLM.
fn method(fields: &Map<String, Value>) -> &str {
    let unnamed = if fields.contains_key("model") { "draft_model" } else { "ngram" };
    fields.get("method").and_then(Value::as_str).unwrap_or(unnamed)
}

/// Rates of those draft tokens before which all were accepted.
fn rates(fields: &Map<String, Value>, drafted: usize, given: &[f64]) -> Result<Vec<f64>, Failure> {
    let refused = |reason: String| Err(Failure::usage(format!("--speculative-config: {reason}")));
    let synthetic = fields.get("synthetic_acceptance_rates").filter(|rates| !rates.is_null());
    let length = fields.get("synthetic_acceptance_length").filter(|length| !length.is_null());
    let is_synthetic = fields.get("rejection_sample_method").is_some_and(|method| method == "synthetic");
    let names = "synthetic_acceptance_rates and synthetic_acceptance_length";
    match (is_synthetic, synthetic, length) {
        (false, None, None) if given.is_empty() => Ok(vec![USUAL_RATE]),
        (false, None, None) => {
            if given.len() > drafted {
                output::note("--speculative-acceptance-rate has more rates than there are draft tokens\n");
            }
            Ok(given.to_vec())
        }
        (false, ..) => refused(format!("{names} are only valid with \"rejection_sample_method\": \"synthetic\"")),
        (true, Some(rates), None) => {
            let rates: Option<Vec<f64>> =
                rates.as_array().map(|rates| rates.iter().filter_map(Value::as_f64).collect());
            let fits = |rates: &Vec<f64>| {
                rates.len() == drafted
                    && rates.iter().all(|rate| (0.0..=1.0).contains(rate))
                    && rates.is_sorted_by(|a, b| a >= b)
            };
            match rates.filter(fits) {
                Some(rates) => Ok(conditional(&rates)),
                None => refused(format!(
                    "synthetic_acceptance_rates has {drafted} numbers from 0 to 1, none above the one before it"
                )),
            }
        }
        (true, None, Some(length)) => {
            let most = drafted as f64 + 1.0;
            match length.as_f64().filter(|length| (1.0..=most).contains(length)) {
                Some(length) => Ok(of_length(length - 1.0, drafted)),
                None => refused(format!("synthetic_acceptance_length is a number from 1 to {most}")),
            }
        }
        (true, Some(_), Some(_)) | (true, None, None) => refused(format!("\"synthetic\" needs exactly one of {names}")),
    }
}

/// From shares of steps in which all draft tokens up to a place are accepted.
fn conditional(rates: &[f64]) -> Vec<f64> {
    let before = std::iter::once(1.0).chain(rates.iter().copied());
    rates.iter().zip(before).map(|(rate, before)| if before > 0.0 { rate / before } else { 0.0 }).collect()
}

/// The rates with which so many draft tokens are accepted on average, as evenly as can be.
fn of_length(accepted: f64, drafted: usize) -> Vec<f64> {
    (0..drafted).map(|before| (accepted - before as f64).clamp(0.0, 1.0)).collect()
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Args, Command, FromArgMatches};

    use super::*;

    fn read(words: &[&str]) -> Result<Option<Speculation>, String> {
        // A flag of `play` that does not go with these.
        let other = Arg::new("latency_recorded").long("latency-recorded");
        let command = SpeculativeArgs::augment_args(Command::new("play").arg(other));
        let words = std::iter::once("play").chain(words.iter().copied());
        let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
        config(&SpeculativeArgs::from_arg_matches(&matches).unwrap()).map_err(|failure| failure.text())
    }

    #[test]
    fn methods_have_their_needs_and_rates_are_those_after_accepted_tokens() {
        let eagle = read(&["--speculative-config", r#"{"method":"eagle","num_speculative_tokens":3,"model":"m"}"#]);
        let eagle = eagle.unwrap().unwrap();
        assert_eq!((eagle.num_lookahead_tokens, eagle.drops_cached_block), (3, true));
        assert_eq!(eagle.acceptance_rates, [USUAL_RATE]);
        let synthetic = |more: &str| {
            let json = format!(r#"{{"num_speculative_tokens":3,"rejection_sample_method":"synthetic",{more}}}"#);
            read(&["--speculative-config", &json]).map(|found| found.unwrap().acceptance_rates)
        };
        assert_eq!(synthetic(r#""synthetic_acceptance_rates":[0.8,0.4,0.0]"#).unwrap(), [0.8, 0.5, 0.0]);
        assert_eq!(synthetic(r#""synthetic_acceptance_length":2.5"#).unwrap(), [1.0, 0.5, 0.0]);
        let given = read(&[
            "--speculative-config",
            r#"{"num_speculative_tokens":2}"#,
            "--speculative-acceptance-rate",
            "0.9,0.1",
        ]);
        assert_eq!(given.unwrap().unwrap().acceptance_rates, [0.9, 0.1]);
        assert_eq!(read(&[]).unwrap(), None);
        for more in [
            r#""synthetic_acceptance_rates":[0.4,0.8,0.0]"#,
            r#""synthetic_acceptance_rates":[0.8]"#,
            r#""synthetic_acceptance_length":9"#,
            r#""synthetic_acceptance_length":2,"synthetic_acceptance_rates":[0.8,0.4,0.0]"#,
            r#""method":"ngram""#,
        ] {
            assert!(synthetic(more).unwrap_err().contains("synthetic"), "{more}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (json, part) in [
            (r#"{"method":"ngram"}"#, "num_speculative_tokens is required"),
            (r#"{"method":"ngram","num_speculative_tokens":0}"#, "num_speculative_tokens is required"),
            (r#"{"method":"guess","num_speculative_tokens":3}"#, "guess is not simulated"),
            (r#"{"num_speculative_tokens":3,"synthetic_acceptance_length":2}"#, "only valid with"),
            ("3", "an object is needed"),
        ] {
            let refused = read(&["--speculative-config", json]).unwrap_err();
            assert!(refused.contains(part), "{json}: {refused}");
        }
        assert!(
            read(&["--speculative-acceptance-rate", "0.5"]).unwrap_err().contains("has no effect without draft tokens")
        );
        assert!(read(&["--speculative-acceptance-rate", "1.5"]).unwrap_err().contains("from 0 to 1"));
    }
}
