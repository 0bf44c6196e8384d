//! The page: one file with its style, its script and the JSON of its figures. It loads nothing, and runs no other script.

use std::fmt::Write;

use super::{
    TraceReport,
    figures::PageFigures,
    html::{escaped, policy_source, script_json},
    sections::{self, letter},
};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

type Section = fn(&PageFigures) -> String;

/// Sections: their ids, titles and contents.
const SECTIONS: [(&str, &str, Section); 6] = [
    ("overview", "Overview", sections::overview),
    ("latencies", "Latencies", sections::latencies),
    ("over-time", "Over time", sections::over_time),
    ("prefixes", "Shared prefixes", sections::prefixes),
    ("slowest", "Slowest responses", sections::slowest),
    ("errors", "Errors", sections::errors),
];

impl TraceReport {
    /// The report as an HTML page that needs no other file.
    pub(crate) fn html(&self) -> serde_json::Result<String> {
        let figures = PageFigures::of(self)?;
        let names: Vec<String> = self.runs.iter().map(|run| escaped(&run.name)).collect();
        let title = names.join(", ");
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{title} – vllm-vcr report</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
            policy_source(STYLE),
            policy_source(SCRIPT),
        );
        page.push_str("<header>\n<h1>Report</h1>\n<ul class=\"runs\" aria-label=\"Traces\">\n");
        for (run, name) in names.iter().enumerate() {
            let letter = if names.len() > 1 {
                format!("<span class=\"letter run{run}\">{}</span> ", letter(run))
            } else {
                String::new()
            };
            let _ = writeln!(page, "<li>{letter}<bdi data-figure=\"/runs/{run}/name\">{name}</bdi></li>");
        }
        page.push_str("</ul>\n</header>\n<nav aria-label=\"Sections\"><ul class=\"tabs\">\n");
        for (id, title, _) in SECTIONS {
            let _ = writeln!(page, "<li><a href=\"#{id}\" id=\"tab-{id}\">{title}</a></li>");
        }
        page.push_str("</ul></nav>\n<main>\n");
        for (id, title, section) in SECTIONS {
            let content = section(&figures);
            let _ = write!(
                page,
                "<section id=\"{id}\" aria-labelledby=\"heading-{id}\">\n<h2 id=\"heading-{id}\">{title}</h2>\n{content}</section>\n"
            );
        }
        let _ = write!(
            page,
            "</main>\n<footer>vllm-vcr {}. TTFT, ITL, TPOT and E2E are defined in the guide’s page on metrics. The figures are in this file as JSON, in the element <code>#figures</code>.</footer>\n\
             <script type=\"application/json\" id=\"figures\">{}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
            self.version,
            script_json(&figures.json()),
        );
        Ok(page)
    }
}
