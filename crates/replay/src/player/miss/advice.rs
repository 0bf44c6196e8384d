//! What helps against a miss of a cassette: each remedy leads to a run that `--strict` accepts.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{
    miss::{Advice, Comparison, edits, file_in_shell, in_shell, only_flags},
    player::{
        CassettePlayer, PlayerConfig, config::forwarding::ModeExceptions, incoming::IncomingRequest,
        miss::NoRecordReason,
    },
};

/// What the message of a miss begins with.
const HEADLINE: &str = "No recorded interaction";

/// Characters of a path in a command.
const LONGEST: usize = 200;

/// Bytes of a command, which stands after a few words in a line of advice.
const LONGEST_COMMAND: usize = 174;

/// Lists what helps against a miss.
pub(super) fn advice(
    player: &CassettePlayer,
    request: &IncomingRequest,
    reason: NoRecordReason,
    found: Option<&Comparison>,
) -> Advice {
    if reason == NoRecordReason::Exhausted {
        return Advice::exhausted(&record(player));
    }
    let mut advice = Advice::default();
    if reason == NoRecordReason::NoCassette {
        return advice;
    }
    if player.config.sessions_only.is_some() && player.config.session_folder.is_none() {
        let session = "Open a session with a cassette (POST /vcr/sessions) and name it in the URL (/vcr/s/NAME/v1): with --sessions-only \
                       nothing else is played";
        advice.add("session", session.to_owned());
        return advice;
    }
    if found.is_some_and(|found| found.is_canonical) {
        advice.add("match", "It is the same in canonical form: use --match canonical".to_owned());
    }
    let edits = found.filter(|_| request.raw.is_none()).map(|found| edits(&found.differences)).unwrap_or_default();
    let is_alike = found.is_some_and(|found| found.is_alike);
    if found.is_some_and(follows_a_miss) {
        advice.add(
            "earlier_miss",
            "It follows from the call of a tool that missed before: mend that one first".to_owned(),
        );
    }
    // Where flags are all that is needed, they come first.
    let only_flags = only_flags(&edits) && reason == NoRecordReason::NoMatch;
    if only_flags && is_alike {
        advice.by_flags(&edits);
    }
    found.filter(|_| is_alike).into_iter().for_each(|found| advice.by_secrets(found, &edits, |_| None));
    if found.is_none() && reason == NoRecordReason::NoMatch && player.has_fixture_for(request) {
        advice.add("fixture", "Add a record with a `match` that it fulfils, or `match: any`".to_owned());
    }
    advice.add("rerecord", format!("If intended, record it: {}", record(player)));
    if matches!(reason, NoRecordReason::NoRecords | NoRecordReason::Frozen) {
        advice.add("live", live(player, request));
    }
    if is_alike || reason == NoRecordReason::NoRecords {
        advice.by_flags(&edits);
    }
    // The cassette of a session is recorded whole.
    if !only_flags && player.config.session_folder.is_none() {
        advice.add("prune", "remove records that no run uses: vllm-vcr cassette prune".to_owned());
    }
    advice
}

/// Whether the request has the message of another miss where the record has something else.
fn follows_a_miss(found: &Comparison) -> bool {
    let has = |value: &Option<Value>| value.as_ref().is_some_and(|value| value.to_string().contains(HEADLINE));
    found.differences.iter().any(|difference| has(&difference.received) && !has(&difference.recorded))
}

/// The flag with which a request goes upstream.
fn live(player: &CassettePlayer, request: &IncomingRequest) -> String {
    let boundary = &request.identity.boundary;
    let selector = if boundary.starts_with("http:") { format!("path:{}", request.path()) } else { boundary.clone() };
    let live = format!("--live {}", in_shell(&selector));
    match &player.config.selection {
        ModeExceptions::Frozen(_) => format!("run it for real: {live} in place of --frozen"),
        ModeExceptions::Live(_) => format!("run it for real too: {live}"),
        ModeExceptions::Fork(_) => "leave the recording before it: --at N with a smaller N".to_owned(),
        ModeExceptions::None => format!("run it for real: {live} --upstream URL"),
    }
}

/// The command that records what is missing, and what to do before it. The path is in the line of the closest record.
fn record(player: &CassettePlayer) -> String {
    let config = &player.config;
    let path = match config.cassettes.as_slice() {
        [one] => Some(&one.path),
        _ => None,
    };
    recording(config, path.map(PathBuf::as_path), &player.mcp.names().collect::<Vec<_>>())
}

/// Formats the command that records what is missing in a cassette with these MCP servers.
pub(crate) fn recording(config: &PlayerConfig, path: Option<&Path>, servers: &[&str]) -> String {
    let short = |path: &Path, most: usize| Some(in_shell(&path.to_string_lossy())).filter(|name| name.len() <= most);
    if let Some(folder) = &config.session_folder {
        let file = path.and_then(|path| short(path.strip_prefix(folder).unwrap_or(path), LONGEST / 3));
        if let Some(command) = &config.record_with {
            return format!("delete {} and run {command}", file.as_deref().unwrap_or("its cassette"));
        }
        let (file, folder) = (file.unwrap_or_else(|| "its cassette".to_owned()), short(&folder.join(""), LONGEST / 5));
        let folder = folder.unwrap_or_else(|| "FOLDER/".to_owned());
        let command = format!("delete {file} and run vllm-vcr tap --cassette {folder} --upstream URL");
        return tapped(config, servers, &command, " -- COMMAND");
    }
    let name = file_in_shell(path);
    tapped(config, servers, &format!("vllm-vcr tap --mode new-episodes --upstream URL --cassette {name}"), "")
}

/// Adds the flags with which a tap is in front of MCP servers, and what to do where one is a program: records do not have that.
fn tapped(config: &PlayerConfig, servers: &[&str], command: &str, end: &str) -> String {
    let (mut flags, mut programs) = (String::new(), "");
    for server in servers {
        if config.mcp_started.iter().any(|started| started.name() == *server) {
            flags.push_str(&format!(" --mcp-stdio '{server}=COMMAND'"));
            continue;
        }
        flags.push_str(&format!(" --mcp {server}=URL"));
        if !config.mcp_upstreams.iter().any(|called| called.name == *server) {
            programs = " (a program: --mcp-stdio 'NAME=COMMAND')";
        }
    }
    let ways = [format!("{flags}{end}{programs}"), format!("{flags}{end}"), format!(" --mcp NAME=URL …{end}")];
    let fitting = ways.iter().find(|way| command.len() + way.len() <= LONGEST_COMMAND);
    format!("{command}{}", fitting.or(ways.last()).map(String::as_str).unwrap_or_default())
}
