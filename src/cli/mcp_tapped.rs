//! From arguments about MCP servers to servers.

use http::{HeaderName, HeaderValue};

use super::{
    args::{McpTappedArgs, ModeArg, RedactionArgs, Secret},
    failure::Failure,
};
use crate::{
    net::upstream::{EndpointUrl, NamedEndpoint},
    tap::McpRecorded,
};

/// Bytes of the shortest value of a header that is a secret: shorter ones are ordinary words.
const SHORTEST_SECRET: usize = 8;

/// A header for all servers, or for that of this name.
struct UpstreamHeader {
    server: Option<String>,
    name: HeaderName,
    value: HeaderValue,
}

/// Reads the servers.
///
/// # Errors
/// When a name occurs twice, or a header is none or for no server.
pub(super) fn servers(args: &McpTappedArgs) -> Result<Vec<NamedEndpoint>, Failure> {
    let servers = endpoints("--mcp", &args.mcp, &args.upstream_header)?;
    let names = args.mcp_stdio.iter().map(|server| &server.name);
    match names.enumerate().find(|(at, name)| is_named_before(args, *at, name)).map(|(_, name)| name) {
        Some(name) => Err(Failure::usage(format!("--mcp-stdio {name}: there is another server of this name"))),
        None => Ok(servers),
    }
}

/// Reads the servers that a flag names, and their headers.
///
/// # Errors
/// When a name occurs twice, or a header is none or for no server.
pub(super) fn endpoints(
    flag: &str,
    named: &[(String, EndpointUrl)],
    headers: &[Secret],
) -> Result<Vec<NamedEndpoint>, Failure> {
    let headers = headers.iter().map(header).collect::<Result<Vec<_>, _>>()?;
    let mut servers: Vec<NamedEndpoint> = Vec::new();
    for (name, url) in named {
        if servers.iter().any(|server| server.name == *name) {
            return Err(Failure::usage(format!("{flag} {name}: there is another server of this name")));
        }
        let own = headers.iter().filter(|header| header.server.as_ref().is_none_or(|of| of == name));
        let headers = own.map(|header| (header.name.clone(), header.value.clone())).collect();
        servers.push(NamedEndpoint { name: name.clone(), url: url.clone(), headers });
    }
    let is_known = |name: &String| servers.iter().any(|server| server.name == *name);
    match headers.iter().filter_map(|header| header.server.as_ref()).find(|name| !is_known(name)) {
        Some(name) => Err(Failure::usage(format!("--upstream-header {name}=…: no {flag} server has this name"))),
        None if servers.is_empty() && !headers.is_empty() => {
            Err(Failure::usage("--upstream-header is for MCP servers, and there is none")
                .hint(format!("name one: {flag} NAME=URL")))
        }
        None => Ok(servers),
    }
}

fn is_named_before(args: &McpTappedArgs, at: usize, name: &str) -> bool {
    args.mcp.iter().any(|(other, _)| other == name) || args.mcp_stdio.iter().take(at).any(|other| other.name == name)
}

/// Reads headers for one server.
///
/// # Errors
/// When one is none.
pub(super) fn headers(typed: &[Secret]) -> Result<Vec<(HeaderName, HeaderValue)>, Failure> {
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
pub(super) fn hide_headers(typed: &[Secret], redaction: &mut RedactionArgs) {
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

/// Refuses modes in which what servers answer is neither recorded nor passed on.
///
/// # Errors
/// When the mode plays only.
pub(super) fn refuse_mode(args: &McpTappedArgs, mode: Option<ModeArg>, is_there: bool) -> Result<(), Failure> {
    let plays = mode == Some(ModeArg::None) || (mode == Some(ModeArg::Once) && is_there);
    if (args.mcp.is_empty() && args.mcp_stdio.is_empty()) || !plays {
        return Ok(());
    }
    Err(Failure::usage("--mcp and --mcp-stdio record servers, and nothing is recorded in this mode").hint(
        "choose --mode all or new-episodes; what answers from a cassette and asks these servers for the rest is \
             vllm-vcr play --cassette FILE --mcp-on-miss upstream --mcp-upstream NAME=URL",
    ))
}

/// Formats what was not recorded of messages to MCP servers, and why; nothing where all of it was.
pub(super) fn missing(recorded: &McpRecorded) -> String {
    let text = missing_lines(recorded);
    if text.is_empty() { text } else { format!("of messages to MCP servers:\n{text}") }
}

/// Formats what was recorded, and what was not and why.
pub(super) fn text(recorded: &McpRecorded) -> String {
    format!("recorded {} messages of the client\n{}", recorded.records, missing_lines(recorded))
}

fn missing_lines(recorded: &McpRecorded) -> String {
    let McpRecorded { records: _, unsearched, gaps, refused, unrecorded } = recorded;
    let mut text = String::new();
    for (count, what) in [
        (*refused, "messages were refused by the server over HTTP, or did not reach it, and are not recorded"),
        (unrecorded.unreadable, "lines were no messages and are not recorded"),
        (unrecorded.unmatched, "responses had no request and are not recorded"),
        (unrecorded.early, "messages of the server came before the client's first and are not recorded"),
        (*gaps, "times the recorder could not keep up, or a message was too large: messages are missing"),
        (*unsearched, "exchanges not recorded: too much work to search them for secrets"),
    ] {
        if count > 0 {
            text.push_str(&format!("  {count} {what}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (&[], "x: hidden", "there is none"),
            (&["a", "a"], "x: hidden", "--mcp a"),
        ] {
            let error = servers(&args(names, &[header])).unwrap_err().text();
            assert!(error.contains(expected) && !error.contains("hidden"), "{error}");
        }
    }
}
