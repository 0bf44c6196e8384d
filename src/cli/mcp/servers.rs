//! Flags of `tap` and `play` about MCP servers, and what they mean.

use std::{borrow::Cow, collections::HashSet, path::Path, time::Duration};

use clap::Args;
use http::{HeaderName, HeaderValue};

use crate::{
    base::one_line::counted,
    cli::{
        failure::Failure,
        output,
        player::{args::DEFAULT_FILE, conclude},
        redaction::RedactionArgs,
        values::{Secret, one_of, with_unit},
    },
    net::upstream::{EndpointUrl, NamedEndpoint, UrlError},
    recording::canonical::is_server_name,
    replay::{
        matching::requests::OnExhausted,
        mcp::{McpPolicy, OnNovel, OnUsedUp},
        player::{CassettePlayer, Mode, PlayerConfig},
    },
    tap::{McpCommand, McpRecorded},
};

/// MCP servers beside the model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "MCP")]
pub(in crate::cli) struct McpTappedArgs {
    /// Also records an MCP server over HTTP, in the same cassette; clients reach it at /mcp/NAME. Such as time=http://localhost:9000/mcp.
    #[arg(long, value_name = "NAME=URL", value_parser = named_url)]
    pub(in crate::cli) mcp: Vec<(String, EndpointUrl)>,
    /// Also records an MCP server over stdio; clients reach it at /mcp/NAME, and each session runs the command. Such as 'files=npx -y
    /// @modelcontextprotocol/server-filesystem /tmp'; quotes and backslashes as in a shell.
    #[arg(long, value_name = "NAME=COMMAND", value_parser = named_command)]
    pub(in crate::cli) mcp_stdio: Vec<McpCommand>,
    /// A header for every request to the MCP servers, in place of the client's: 'Authorization: Bearer TOKEN'; NAME=HEADER for one server
    /// only. It is not recorded. Other users can see arguments: prefer VLLM_VCR_UPSTREAM_HEADER.
    #[arg(long, value_name = "HEADER", hide_default_value = true)]
    pub(in crate::cli) upstream_header: Vec<Secret>,
}

pub(in crate::cli) fn named_url(typed: &str) -> Result<(String, EndpointUrl), String> {
    let (name, url) = typed.split_once('=').ok_or("write it as NAME=URL, such as time=http://localhost:9000/mcp")?;
    Ok((server_name(name)?, url.parse().map_err(|error: UrlError| error.to_string())?))
}

fn named_command(typed: &str) -> Result<McpCommand, String> {
    let form = "write it as 'NAME=COMMAND ARGUMENT…', such as 'time=uvx mcp-server-time'";
    let (name, command) = typed.split_once('=').ok_or(form)?;
    let command = words(command)?;
    if command.is_empty() {
        return Err(form.to_owned());
    }
    Ok(McpCommand { name: server_name(name)?, command: command.into_iter().map(Into::into).collect() })
}

/// Cuts a command into words as a shell does, without its variables and patterns.
fn words(command: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = command.chars();
    while let Some(letter) = letters.next() {
        let escapes = letter == '\\' && quote != Some('\'');
        match quote {
            Some(open) if letter == open => quote = None,
            None if letter == '"' || letter == '\'' => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            None if letter.is_whitespace() => words.extend(word.take()),
            _ if escapes => word.get_or_insert_default().extend(letters.next()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    match quote {
        Some(open) => Err(format!("a {open} is not closed")),
        None => {
            words.extend(word);
            Ok(words)
        }
    }
}

/// How the MCP servers of cassettes are played, at /mcp/NAME.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "MCP servers")]
pub(in crate::cli) struct McpServersArgs {
    /// Response to a request to an MCP server that was not recorded.
    #[arg(long, value_name = "WHAT", default_value = "error", value_parser = one_of::<OnNovel>())]
    pub(in crate::cli) mcp_on_miss: OnNovel,
    /// The real MCP server of this name, over streamable HTTP, for --mcp-on-miss upstream and record and for modes that forward. Such as
    /// time=http://localhost:9000/mcp.
    #[arg(long, value_name = "NAME=URL", value_parser = named_url)]
    pub(in crate::cli) mcp_upstream: Vec<(String, EndpointUrl)>,
    /// A header for every request to the real MCP servers, in place of the client's: 'Authorization: Bearer TOKEN'; NAME=HEADER for one
    /// server only. It is not recorded. Other users can see arguments: prefer VLLM_VCR_UPSTREAM_HEADER.
    #[arg(long, value_name = "HEADER", hide_default_value = true)]
    pub(in crate::cli) upstream_header: Vec<Secret>,
    /// Also compares entries of _meta, except those of the protocol, progress and tracing.
    #[arg(long)]
    pub(in crate::cli) mcp_match_meta: bool,
    /// How long to wait for the client's reply to a request of an MCP server.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = with_unit)]
    pub(in crate::cli) mcp_reply_within: Duration,
    /// A host name under which clients reach the MCP servers, or * for any. By default only addresses and names without a dot are accepted:
    /// others may belong to web pages.
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) mcp_host: Vec<String>,
}

impl McpServersArgs {
    /// Puts them into the configuration of a player; requests that are sent more often than recorded get what others get, and without
    /// a flag the last record again, or an error where it is strict, but for lists.
    pub(in crate::cli) fn configure(
        &self,
        config: &mut PlayerConfig,
        upstreams: Vec<NamedEndpoint>,
        (on_exhausted, is_strict): (Option<OnExhausted>, bool),
    ) {
        // A further request is a new one, where the real server can answer it.
        let policy = policy(self.mcp_on_miss, on_exhausted, is_strict || !self.mcp_upstream.is_empty());
        config.mcp = McpPolicy { reply_within: self.mcp_reply_within, ..policy };
        config.mcp_match_meta = self.mcp_match_meta;
        config.mcp_names = upstreams.iter().map(|upstream| upstream.name.clone()).collect();
        config.mcp_upstreams = upstreams;
    }
}

/// What requests over HTTP get that were not recorded, or less often; without a flag an error where that is usual, or the last record.
pub(in crate::cli) fn policy(on_novel: OnNovel, typed: Option<OnExhausted>, is_error: bool) -> McpPolicy {
    let on_used_up = match typed {
        Some(OnExhausted::Error) => OnUsedUp::Error,
        None if is_error => OnUsedUp::Error,
        Some(OnExhausted::Last | OnExhausted::Cycle) | None => OnUsedUp::Last,
    };
    let repeats_lists = typed != Some(OnExhausted::Error);
    McpPolicy { on_novel, on_used_up, repeats_lists, over_http: true, ..McpPolicy::default() }
}

/// Bytes of the shortest value of a header that is a secret: shorter ones are ordinary words.
const SHORTEST_SECRET: usize = 8;

/// A header for all servers, or for that of this name.
struct UpstreamHeader {
    server: Option<String>,
    name: HeaderName,
    value: HeaderValue,
}

pub(in crate::cli) fn servers(args: &McpTappedArgs) -> Result<Vec<NamedEndpoint>, Failure> {
    let servers = endpoints("--mcp", &args.mcp, &args.upstream_header)?;
    let mut known: HashSet<&str> = args.mcp.iter().map(|(name, _)| name.as_str()).collect();
    match args.mcp_stdio.iter().find(|server| !known.insert(&server.name)) {
        Some(McpCommand { name, .. }) => {
            Err(Failure::usage(format!("--mcp-stdio {name}: another server has this name")))
        }
        None => Ok(servers),
    }
}

pub(in crate::cli) fn endpoints(
    flag: &str,
    named: &[(String, EndpointUrl)],
    headers: &[Secret],
) -> Result<Vec<NamedEndpoint>, Failure> {
    let headers = headers.iter().map(header).collect::<Result<Vec<_>, _>>()?;
    let mut servers: Vec<NamedEndpoint> = Vec::new();
    for (name, url) in named {
        if servers.iter().any(|server| server.name == *name) {
            return Err(Failure::usage(format!("{flag} {name}: another server has this name")));
        }
        let own = headers.iter().filter(|header| header.server.as_ref().is_none_or(|of| of == name));
        let headers = own.map(|header| (header.name.clone(), header.value.clone())).collect();
        servers.push(NamedEndpoint { name: name.clone(), url: url.clone(), headers });
    }
    let is_known = |name: &String| servers.iter().any(|server| server.name == *name);
    match headers.iter().filter_map(|header| header.server.as_ref()).find(|name| !is_known(name)) {
        Some(name) => Err(Failure::usage(format!("--upstream-header {name}=…: no {flag} server has this name"))),
        None if servers.is_empty() && !headers.is_empty() => {
            Err(Failure::usage("--upstream-header is for MCP servers, and none is named")
                .hint(format!("name one: {flag} NAME=URL")))
        }
        None => Ok(servers),
    }
}

pub(in crate::cli) fn headers(typed: &[Secret]) -> Result<Vec<(HeaderName, HeaderValue)>, Failure> {
    let one = |typed| {
        let UpstreamHeader { server, name, value } = header(typed)?;
        match server {
            Some(_) => Err(wrong()),
            None => Ok((name, value)),
        }
    };
    typed.iter().map(one).collect()
}

fn wrong() -> Failure {
    Failure::usage("--upstream-header is not `Name: value`").hint("such as 'Authorization: Bearer TOKEN'")
}

/// Reads `Name: value` or `server=Name: value`. What is wrong is not shown, since it may be a secret.
fn header(typed: &Secret) -> Result<UpstreamHeader, Failure> {
    let (name, value) = typed.0.split_once(':').ok_or_else(wrong)?;
    let (server, name) = name.split_once('=').map_or((None, name), |(server, name)| (Some(server.to_owned()), name));
    let name = name.trim().parse().map_err(|_| wrong())?;
    let mut value: HeaderValue = value.trim().parse().map_err(|_| wrong())?;
    value.set_sensitive(true);
    Ok(UpstreamHeader { server, name, value })
}

/// Makes the values of headers secrets wherever they stand, such as in the result of a tool that shows its request.
pub(in crate::cli) fn hide_headers(typed: &[Secret], redaction: &mut RedactionArgs) {
    for header in typed {
        let Some((name, value)) = header.0.split_once(':') else { continue };
        let name = name.rsplit('=').next().unwrap_or_default().trim();
        // `Bearer TOKEN`: the token is the secret.
        let value = value.trim().rsplit(' ').next().unwrap_or_default();
        if value.len() >= SHORTEST_SECRET {
            redaction.literals.push((name.to_owned(), value.to_owned()));
        }
    }
}

/// Refuses a server that is neither in the cassette nor recorded nor called. A folder's sessions may record.
pub(in crate::cli) fn refuse_unrecorded(player: &CassettePlayer, file: &Path) -> Result<(), Failure> {
    let config = player.config();
    let plays = config.mode == Mode::Replay && !config.mcp.on_novel.forwards();
    let is_folder = config.sessions_only.is_some() || file.ends_with(DEFAULT_FILE);
    let unrecorded = player.mcp().counts().into_iter().find(|(_, records)| *records == 0);
    let Some((name, _)) = unrecorded.filter(|_| plays && !is_folder) else { return Ok(()) };
    Err(Failure::usage(format!("{} has no record of the MCP server {name}, and is only played", file.display())).hint(
        "choose --mode all or new-episodes; to answer from a cassette and forward the rest to these servers: \
             vllm-vcr play --cassette FILE --mcp-on-miss upstream --mcp-upstream NAME=URL",
    ))
}

/// Formats what was not recorded of messages to MCP servers, and why; nothing where all of it was.
pub(in crate::cli) fn missing(recorded: &McpRecorded) -> String {
    let text = missing_lines(recorded);
    if text.is_empty() { text } else { format!("messages to MCP servers:\n{text}") }
}

/// Formats what was recorded, and what was not and why.
pub(in crate::cli) fn text(recorded: &McpRecorded) -> String {
    let redacted = conclude::redacted_text(&recorded.redacted);
    format!("recorded {} of the client\n{}{redacted}", counted(recorded.records, "message"), missing_lines(recorded))
}

fn missing_lines(recorded: &McpRecorded) -> String {
    let McpRecorded { records: _, redacted: _, unsearched, gaps, refused, unrecorded } = recorded;
    output::counts(&[
        (*refused, "message", "not recorded: refused by the server over HTTP, or not delivered"),
        (unrecorded.unreadable, "line", "not recorded: not a message"),
        (unrecorded.unmatched, "response", "not recorded: without a request"),
        (unrecorded.early, "message", "of the server not recorded: before the client's first"),
        (*gaps, "gap", "in the recording: the recorder could not keep up, or a message was too large"),
        (*unsearched, "exchange", "not recorded: too much work to search for secrets"),
    ])
}

/// The server's name in a cassette: the one that was typed, else that of a file.
pub(in crate::cli) fn name(typed: Option<&str>, file: &Path) -> Result<String, Failure> {
    let of_file = || file.file_stem().unwrap_or_default().to_string_lossy();
    let name = typed.map_or_else(of_file, Cow::Borrowed);
    if is_server_name(&name) {
        return Ok(name.into_owned());
    }
    Err(Failure::usage(format!("`{}` cannot name a server", name.escape_debug())).hint("give it one: --name NAME"))
}

pub(in crate::cli) fn server_name(typed: &str) -> Result<String, String> {
    if is_server_name(typed) {
        Ok(typed.to_owned())
    } else {
        Err("a server's name is 1 to 100 letters, digits, - _ and .".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_cut_as_in_a_shell() {
        for (command, expected) in [
            ("uvx mcp-server-time", &["uvx", "mcp-server-time"][..]),
            (" a  'b c'\t\"d \\\" e\"f\\ g '' ", &["a", "b c", "d \" ef g", ""]),
            ("a='x\\y'", &["a=x\\y"]),
            ("", &[]),
        ] {
            assert_eq!(words(command).unwrap(), expected, "{command}");
        }
        assert!(words("a 'b").is_err() && named_command("x= ").is_err() && named_command("a/b=c").is_err());
    }

    fn args(servers: &[&str], headers: &[&str]) -> McpTappedArgs {
        let server = |name: &&str| ((*name).to_owned(), format!("http://h/{name}").parse().unwrap());
        McpTappedArgs {
            mcp: servers.iter().map(server).collect(),
            mcp_stdio: Vec::new(),
            upstream_header: headers.iter().map(|header| Secret((*header).to_owned())).collect(),
        }
    }

    #[test]
    fn headers_are_for_all_servers_or_for_one() {
        let servers = servers(&args(&["a", "b"], &["X-One: 1", "b=Authorization: Bearer t0ken:x"])).unwrap();
        let headers = |at: usize| {
            let list = &servers[at].headers;
            list.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(headers(0), ["x-one=1"]);
        assert_eq!(headers(1), ["x-one=1", "authorization=Bearer t0ken:x"]);
    }

    #[test]
    fn what_is_wrong_is_said_without_values() {
        for (names, header, expected) in [
            (&["a"][..], "hidden", "is not `Name: value`"),
            (&["a"], "b c: hidden", "is not `Name: value`"),
            (&["a"], "x: hid\u{7f}den", "is not `Name: value`"),
            (&["a"], "b=x: hidden", "--upstream-header b=…"),
            (&[], "x: hidden", "none is named"),
            (&["a", "a"], "x: hidden", "--mcp a"),
        ] {
            let error = servers(&args(names, &[header])).unwrap_err().text();
            assert!(error.contains(expected) && !error.contains("hidden"), "{error}");
        }
    }
}
