//! What endpoint pickers read: families of `/metrics` with their types and labels, and counters that count.
//!
//! Source: the metrics of the model server protocol of the Gateway API inference extension, and vLLM's `vllm/v1/metrics/loggers.py`.

use serde_json::{Value, json};

use super::{ConformCheck, ConformClient, ConformError, shape::ShapeDifferences};
use crate::base::stats::scraped;

const TABLE: &str = include_str!("picker.tsv");

/// Checks `/metrics` before and after a request.
///
/// # Errors
/// A server that cannot be reached.
pub async fn check_metrics(client: &ConformClient, model: &str) -> Result<Vec<ConformCheck>, ConformError> {
    let models: Value = serde_json::from_slice(&client.models().await?.body).unwrap_or_default();
    let listed = models.get("data").and_then(Value::as_array).cloned().unwrap_or_default();
    let has_adapters = listed.iter().any(|model| model.get("parent").is_some_and(|parent| !parent.is_null()));
    let before = page(client).await?;
    let body = json!({"model": model, "prompt": "Rivers are", "max_tokens": 4});
    let completed = client.send("POST", "/v1/completions", Some(body.to_string())).await?;
    let after = page(client).await?;
    let mut checks = Vec::new();
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let [family, kind, labels, when, _] = line.split('\t').collect::<Vec<_>>()[..] else { continue };
        if when == "always" || has_adapters {
            checks.push(ConformCheck::new(family, "GET /metrics", of_family(&after, family, kind, labels)));
        }
    }
    let mut found = ShapeDifferences::default();
    if completed.status != 200 {
        found.add("status", format!("of a completion is {}; 200 was recorded", completed.status));
    }
    for name in ["vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"] {
        let grew = scraped::sum(&after, name).unwrap_or_default() > scraped::sum(&before, name).unwrap_or_default();
        if !grew {
            found.add(name, "does not count a completed request");
        }
    }
    checks.push(ConformCheck::new("counters count", "POST /v1/completions", found));
    Ok(checks)
}

async fn page(client: &ConformClient) -> Result<String, ConformError> {
    let answer = client.send("GET", "/metrics", None).await?;
    Ok(if answer.status == 200 { String::from_utf8_lossy(&answer.body).into_owned() } else { String::new() })
}

fn of_family(page: &str, family: &str, kind: &str, labels: &str) -> ShapeDifferences {
    let mut found = ShapeDifferences::default();
    let suffix = match kind {
        "counter" => "_total",
        "histogram" => "_bucket",
        _ => "",
    };
    let name = format!("{family}{suffix}");
    let is_typed = |name: &str| page.lines().any(|line| line == format!("# TYPE {name} {kind}"));
    let Some(sample) = scraped::samples(page).find(|sample| sample.name == name) else {
        // A gauge of adapters has no sample before one has run.
        let is_declared = is_typed(family);
        if kind != "gauge" || !is_declared {
            found.add(name, "is missing");
        }
        return found;
    };
    if !is_typed(family) && !is_typed(&name) {
        found.add(family, format!("is no {kind}"));
    }
    for label in labels.split(',').filter(|label| sample.label(label).is_none()) {
        found.add(&name, format!("has no label {label}"));
    }
    if kind == "histogram" && sample.label("le").is_none() {
        found.add(&name, "has no label le");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"m\"} 0.0\n\
                        # TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{model=\"m\"} 4.0\n\
                        # TYPE vllm:num_requests_running counter\nvllm:num_requests_running{model_name=\"m\"} 0.0\n";

    #[test]
    fn families_have_names_types_and_labels() {
        let whats = |family: &str, kind: &str| {
            let found = of_family(PAGE, family, kind, "model_name").differences;
            found.into_iter().map(|one| format!("{} {}", one.place, one.what)).collect::<Vec<_>>()
        };
        assert!(whats("vllm:num_requests_waiting", "gauge").is_empty());
        assert_eq!(whats("vllm:prompt_tokens", "counter"), ["vllm:prompt_tokens_total has no label model_name"]);
        assert_eq!(whats("vllm:num_requests_running", "gauge"), ["vllm:num_requests_running is no gauge"]);
        assert_eq!(whats("vllm:kv_cache_usage_perc", "gauge"), ["vllm:kv_cache_usage_perc is missing"]);
        assert!(TABLE.lines().filter(|line| !line.starts_with('#')).all(|line| line.split('\t').count() == 5));
    }
}
