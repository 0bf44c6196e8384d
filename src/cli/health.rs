//! `health`: asks a server once whether it is well, for containers that have no other program.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use http::Request;

use crate::{
    cli::{
        failure::{Exit, Failure},
        gateway, output, runtime,
        values::some_time,
    },
    net::upstream::{OutgoingBody, Upstream, UpstreamOptions, UpstreamUrl},
};

/// Request a server's /health once: exit code 0 if it is healthy, 1 if it is not, 4 if it does not respond.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:\n  vllm-vcr health\n  vllm-vcr health http://127.0.0.1:8001 --timeout 1s\n  \
                             vllm-vcr health unix:/run/vllm.sock")]
pub(in crate::cli) struct HealthArgs {
    /// The server: http://HOST:PORT, https://HOST:PORT or unix:SOCKET.
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8000")]
    url: UpstreamUrl,
    /// Time limit for the connection and the response together.
    #[arg(long, value_name = "DURATION", value_parser = some_time, default_value = "3s")]
    timeout: Duration,
    /// CA certificate of the server, or its own certificate, a PEM file. Default: the CAs that browsers trust.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

pub(in crate::cli) fn run(HealthArgs { url, timeout, ca }: HealthArgs) -> Result<ExitCode, Failure> {
    runtime::run(async move |_| {
        let server = url.to_string();
        let options = UpstreamOptions { response_timeout: Some(timeout), ..gateway::options(ca.as_deref())? };
        let request =
            Request::get("/health").body(OutgoingBody::whole(Default::default())).map_err(Failure::environment)?;
        let response = Upstream::new(url, &options).send(request).await.map_err(Failure::environment)?;
        let status = response.status();
        output::print(&format!("{server}: {status}\n"))?;
        Ok(Exit::unless(status.is_success()))
    })
}
