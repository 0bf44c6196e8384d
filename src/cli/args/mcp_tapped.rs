//! Arguments of `tap` about MCP servers beside the model.

use clap::Args;

use super::{mcp::server_name, server::Secret};
use crate::{
    net::upstream::{EndpointUrl, UrlError},
    tap::McpCommand,
};

/// MCP servers beside the model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "MCP")]
pub(in crate::cli) struct McpTappedArgs {
    /// Records an MCP server over HTTP too, in the same cassette: it is at /mcp/NAME. Such as time=http://localhost:9000/mcp.
    #[arg(long, value_name = "NAME=URL", value_parser = named_url)]
    pub(in crate::cli) mcp: Vec<(String, EndpointUrl)>,
    /// Records an MCP server over stdio too: it is at /mcp/NAME, and the command is run for each session of a client. Such as
    /// 'files=npx -y @modelcontextprotocol/server-filesystem /tmp'; quotes and backslashes mean what they do in a shell.
    #[arg(long, value_name = "NAME=COMMAND", value_parser = named_command)]
    pub(in crate::cli) mcp_stdio: Vec<McpCommand>,
    /// A header of every request to the MCP servers, in place of the client's: 'Authorization: Bearer TOKEN'. With NAME= before it, to one
    /// of them. It is not recorded. Other users can read arguments: prefer VLLM_VCR_UPSTREAM_HEADER.
    #[arg(long, value_name = "HEADER", hide_default_value = true)]
    pub(in crate::cli) upstream_header: Vec<Secret>,
}

pub(super) fn named_url(typed: &str) -> Result<(String, EndpointUrl), String> {
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
}
