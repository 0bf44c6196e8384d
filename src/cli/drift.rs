//! `drift`: its flags, and what was found as text, JSON, Markdown or JUnit.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use serde_json::json;

use crate::{
    base::one_line::{counted, one_line},
    cli::{
        escape,
        failure::{Exit, Failure},
        gateway,
        junit::{self, JunitCase},
        output,
        player::files::{cassettes, once},
        redaction::{self, RedactionArgs},
        runtime,
        values::{Secret, some_time},
    },
    net::upstream::{Upstream, UpstreamUrl},
    recording::cassette::{self, Cassette},
    replay::player::{DriftCheck, DriftFinding, DriftVerdict, ServerEnvironment, secrets_of_top},
};

/// Check whether a live server still answers as your cassettes have it.
///
/// Sends the recorded requests again, one after the other, and compares the responses: structure, tool calls, finish reasons and prompt
/// tokens; texts only with --text. Requests that are not sent are listed with the reason. Exit code 1 if a response has drifted, 4 if one
/// could not be obtained.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Drift",
    after_long_help = "Examples:\n  vllm-vcr drift cassettes/ --live http://gpu-box:8000\n  \
                             vllm-vcr drift agent.yaml --live https://api.openai.com --markdown drift.md\n  \
                             vllm-vcr drift agent.yaml --live http://gpu-box:8000 --text --json > drift.json"
)]
pub(in crate::cli) struct DriftArgs {
    /// Cassettes, or folders of them.
    #[arg(value_name = "CASSETTE", required = true)]
    paths: Vec<PathBuf>,
    /// The server: http://HOST, https://HOST or h2c://HOST, with the path before /v1 if there is one.
    #[arg(long, value_name = "URL")]
    live: UpstreamUrl,
    /// Also compares texts, numbers and arguments.
    #[arg(long)]
    text: bool,
    /// Sends the records of this named upstream, instead of those without a name.
    #[arg(long, value_name = "NAME")]
    upstream: Option<String>,
    /// Sent as `Authorization: Bearer KEY`: cassettes hold no keys. Other users can see arguments: prefer VLLM_VCR_API_KEY.
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    api_key: Option<Secret>,
    /// Adds a header to every request.
    #[arg(long, value_name = "NAME: VALUE", hide_env_values = true)]
    header: Vec<Secret>,
    /// Values of placeholders in requests, one per line: email:1 = jane@example.org. Requests with other placeholders are not sent.
    #[arg(long, value_name = "FILE")]
    secrets: Option<PathBuf>,
    /// CA certificate of the server, or its own certificate, a PEM file. Default: the CAs that browsers trust.
    #[arg(long, value_name = "FILE")]
    live_ca: Option<PathBuf>,
    /// Time limit for a whole response.
    #[arg(long, value_name = "DURATION", value_parser = some_time, default_value = "120s")]
    timeout: Duration,
    /// Requests at once. If the server is busy (429, 503), each is tried four times, after the pause that it asks for.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Writes the results also in Markdown, for an issue for instance.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Writes the results also as JUnit XML, one case for each record that was sent.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

/// Sends the requests and prints what was found.
pub(in crate::cli) fn run(args: DriftArgs) -> Result<ExitCode, Failure> {
    let paths = cassettes(&args.paths)?;
    once(&paths)?;
    let cassettes = paths.iter().map(|path| cassette::load(path)).collect::<Result<Vec<Cassette>, _>>()?;
    let is_cassette = |path: &&PathBuf| paths.iter().any(|cassette| output::is_same_file(cassette, path));
    if let Some(path) = [&args.markdown, &args.junit].into_iter().flatten().find(is_cassette) {
        return Err(Failure::usage(format!("{}: this is one of the cassettes", path.display())));
    }
    runtime::run(|shutdown| async move {
        let drift = shutdown.unless_requested(found(&args, &cassettes), "everything was compared").await?;
        for (path, text) in [(&args.markdown, drift.markdown()), (&args.junit, drift.junit())] {
            path.as_ref().map_or(Ok(()), |path| output::save(path, &text))?;
        }
        if args.json { output::print_json(&drift.json(&args.live)) } else { output::print(&drift.text()) }?;
        drift.exit()
    })
}

async fn found(args: &DriftArgs, cassettes: &[Cassette]) -> Result<FoundDrift, Failure> {
    let headers = gateway::headers(&args.header, args.api_key.as_ref())?;
    let options = gateway::options(args.live_ca.as_deref())?;
    let check = DriftCheck {
        server: Upstream::new(args.live.clone(), &options),
        headers,
        upstream: args.upstream.clone(),
        supplied: redaction::supplied(args.secrets.as_deref(), &RedactionArgs::default())?,
        patience: args.timeout,
        concurrency: args.concurrency.into(),
    };
    check.supplied.unmatched(cassettes).iter().for_each(|warning| tracing::warn!("{warning}"));
    let now = ServerEnvironment::at(&args.live, &options).await;
    let (mut findings, mut notes) = (Vec::new(), Vec::new());
    for cassette in cassettes {
        notes.extend(cassette.warnings.iter().cloned());
        let name = cassette.path.display().to_string();
        notes.extend(now.changes(&name, &cassette.header).iter().map(ToString::to_string));
        let rules =
            secrets_of_top(&check.supplied.rules(redaction::rules(&RedactionArgs::default())?, cassette), cassette)?;
        findings.extend(check.findings(cassette, &rules).await);
    }
    Ok(FoundDrift::new(findings, notes, args.text))
}

/// Results of all records.
struct FoundDrift {
    findings: Vec<DriftFinding>,
    /// What is not as it was recorded of the server itself.
    notes: Vec<String>,
    counts_text: bool,
    same: usize,
    drifted: usize,
    other_texts: usize,
    failed: usize,
    not_sent: usize,
}

impl FoundDrift {
    /// Drops texts that do not count: they may be private.
    fn new(mut findings: Vec<DriftFinding>, notes: Vec<String>, counts_text: bool) -> Self {
        let (mut same, mut drifted, mut other_texts, mut failed, mut not_sent) = (0, 0, 0, 0, 0);
        for finding in &mut findings {
            match &mut finding.verdict {
                DriftVerdict::Compared { drift, text, differences } => {
                    *drift |= *text && counts_text;
                    other_texts += usize::from(*text);
                    *(if *drift { &mut drifted } else { &mut same }) += 1;
                    differences
                        .retain(|line| counts_text || line.starts_with("structure: ") || line.starts_with("usage: "));
                }
                DriftVerdict::Failed { .. } => failed += 1,
                DriftVerdict::NotSent { .. } => not_sent += 1,
            }
        }
        Self { findings, notes, counts_text, same, drifted, other_texts, failed, not_sent }
    }

    /// The result in a line.
    fn summary(&self) -> String {
        let verdict = match (self.drifted, self.same, self.failed) {
            (0, 0, _) => "nothing was compared",
            (0, _, 0) => "no drift",
            (0, ..) => "no drift in the responses received",
            _ => "drift",
        };
        let mut text = format!("{verdict}: {} of {} answers differ", self.drifted, self.drifted + self.same);
        if self.other_texts > 0 && !self.counts_text {
            text.push_str(&format!("; {} with other texts (--text shows and counts them)", self.other_texts));
        }
        let more = [(self.failed, "could not be compared"), (self.not_sent, "not sent")];
        more.iter()
            .filter(|(count, _)| *count > 0)
            .for_each(|(count, what)| text.push_str(&format!("; {count} {what}")));
        text
    }

    /// A line for each record that is not the same, with its differences below it.
    fn text(&self) -> String {
        let mut text: String = self.notes.iter().map(|note| format!("note: {}\n", one_line(note))).collect();
        for finding in &self.findings {
            let (word, lines) = outcome(finding);
            if word != "same" {
                let DriftFinding { cassette, record, line, request, .. } = finding;
                text.push_str(&format!(
                    "{word}: {}\n",
                    one_line(&format!("{cassette}:{line}: record {record}: {request}"))
                ));
                lines.iter().for_each(|line| text.push_str(&format!("  {}\n", one_line(line))));
            }
        }
        text + &self.summary() + "\n"
    }

    fn json(&self, live: &UpstreamUrl) -> serde_json::Value {
        json!({"live": live.to_string(), "drift": self.drifted > 0, "summary": self.summary(),
            "counts": {"same": self.same, "drift": self.drifted, "other_texts": self.other_texts, "failed": self.failed, "not_sent": self.not_sent},
            "notes": self.notes, "records": self.findings})
    }

    fn markdown(&self) -> String {
        let mut lines = vec![format!("**{}**", self.summary()), String::new()];
        lines.extend(self.notes.iter().map(|note| format!("- {}", one_line(note))));
        for finding in &self.findings {
            let (word, lines_of_record) = outcome(finding);
            if word != "same" {
                let DriftFinding { cassette, record, request, .. } = finding;
                let code = |text: &str| format!("`` {} ``", one_line(text).replace("``", "` `"));
                lines.push(format!("- **{word}** {}: {}", code(&format!("{cassette}#{record}")), code(request)));
                lines.extend(lines_of_record.iter().map(|line| format!("  - {}", code(line))));
            }
        }
        escape::text(&(lines.join("\n") + "\n")).into_owned()
    }

    fn junit(&self) -> String {
        let case = |finding: &DriftFinding| match outcome(finding) {
            ("not sent", _) => None,
            (word, lines) => Some(JunitCase {
                name: format!("{}#{} {}", finding.cassette, finding.record, finding.request),
                failure: (word != "same").then(|| format!("{word}: {}", lines.join("\n"))),
            }),
        };
        junit::junit("vllm-vcr drift", &self.findings.iter().filter_map(case).collect::<Vec<_>>())
    }

    /// The exit code: 1 for drift; an error where that is not known.
    fn exit(&self) -> Result<ExitCode, Failure> {
        match (self.drifted, self.same, self.failed) {
            (0, 0, 0) => Err(Failure::input("no record of these cassettes can be sent again; the reasons are above")),
            (0, _, 0) => Ok(ExitCode::SUCCESS),
            (0, _, failed) => {
                Err(Failure::environment(format!("{} without a response to compare", counted(failed, "request"))))
            }
            _ => Ok(Exit::No.into()),
        }
    }
}

/// The outcome of a record: a word, and the lines about it.
fn outcome(finding: &DriftFinding) -> (&'static str, &[String]) {
    match &finding.verdict {
        DriftVerdict::Compared { drift: true, differences, .. } => ("drift", differences),
        DriftVerdict::Compared { .. } => ("same", &[]),
        DriftVerdict::Failed { why } => ("failed", std::slice::from_ref(why)),
        DriftVerdict::NotSent { why } => ("not sent", std::slice::from_ref(why)),
    }
}
