//! Families under the names that earlier versions of vLLM had for them.

/// Names of today and of before.
const RENAMED: [(&str, &str); 4] = [
    ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
    ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
];

/// Appends to a page its renamed families, with the values that they have there.
pub(in super::super) fn append_legacy(page: &mut String) {
    let renamed = RENAMED.iter().flat_map(|names| page.lines().filter_map(|line| rename(line, *names)));
    let renamed: Vec<String> = renamed.collect();
    renamed.iter().for_each(|line| {
        page.push_str(line);
        page.push('\n');
    });
}

/// A line of a family under its earlier name; `None` for a line of another family.
fn rename(line: &str, (name, earlier): (&str, &str)) -> Option<String> {
    let before = ["# HELP ", "# TYPE "].into_iter().find(|comment| line.starts_with(comment)).unwrap_or("");
    let rest = line.get(before.len()..)?.strip_prefix(name)?;
    rest.starts_with(['{', ' ', '_']).then(|| format!("{before}{earlier}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_their_earlier_names_behind_all_others() {
        let mut page = "# TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total{a=\"b\"} 3.0\n\
                        vllm:external_prefix_cache_hits_total 1.0\nvllm:kv_cache_usage_perc{} 0.5\n"
            .to_owned();
        append_legacy(&mut page);
        let added: Vec<&str> = page.lines().skip(4).collect();
        assert_eq!(
            added,
            [
                "vllm:gpu_cache_usage_perc{} 0.5",
                "# TYPE vllm:gpu_prefix_cache_hits_total counter",
                "vllm:gpu_prefix_cache_hits_total{a=\"b\"} 3.0"
            ]
        );
    }
}
