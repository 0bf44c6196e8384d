//! Flags of a gateway between a server and a client of this program: `prove` and `sweep`.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tokio::net::TcpListener;

use crate::{
    cli::{
        failure::Failure,
        output,
        values::{Secret, host_and_port, some_time, with_unit},
    },
    net::{
        server,
        upstream::{Authorities, UpstreamOptions, UpstreamUrl},
    },
    prove::{GatewayError, StreamClient},
};

/// A gateway, the server behind it and the client in front of it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Gateway")]
pub(in crate::cli) struct GatewayArgs {
    /// The gateway: http://HOST, https://HOST or h2c://HOST, with a path before /v1 where it has one.
    #[arg(long, value_name = "URL")]
    pub(in crate::cli) via: UpstreamUrl,
    /// Where the known streams are served; the gateway needs this address as its upstream.
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port, conflicts_with = "upstream_port")]
    pub(in crate::cli) listen: Option<String>,
    /// The port on 127.0.0.1 where the known streams are served, without --listen.
    #[arg(long, value_name = "PORT", default_value = "8400")]
    pub(in crate::cli) upstream_port: u16,
    /// Sent to the gateway as `Authorization: Bearer KEY`.
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    pub(in crate::cli) api_key: Option<Secret>,
    /// Adds a header to every request to the gateway.
    #[arg(long, value_name = "NAME: VALUE", hide_env_values = true)]
    pub(in crate::cli) header: Vec<Secret>,
    /// CA certificate of the gateway, or its own certificate, a PEM file. Default: the CAs that browsers trust.
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) via_ca: Option<PathBuf>,
    /// Name of the model at the gateway.
    #[arg(long, value_name = "NAME", default_value = "prove")]
    pub(in crate::cli) model: String,
    /// Time without a byte after which a stream has failed, unless it is meant to stall.
    #[arg(long, value_name = "DURATION", value_parser = some_time, default_value = "20s")]
    pub(in crate::cli) timeout: Duration,
    /// Time limit for the gateway to answer a first request.
    #[arg(long, value_name = "DURATION", value_parser = with_unit, default_value = "20s")]
    pub(in crate::cli) wait: Duration,
}

/// Reads a header. Its value may be a key, which no error repeats.
pub(in crate::cli) fn header(Secret(typed): &Secret) -> Result<(HeaderName, HeaderValue), Failure> {
    let wrong = |what: &str| Failure::usage(format!("--header: {what}"));
    let (name, value) = typed.split_once(':').ok_or_else(|| wrong("write it as NAME: VALUE"))?;
    let name: HeaderName = name.trim().parse().map_err(|_| wrong("what stands before `:` is not a header name"))?;
    let not_allowed = |_| wrong(&format!("the value of {name} has characters that are not allowed in a header"));
    let value = value.trim().parse().map_err(not_allowed)?;
    Ok((name, value))
}

/// The headers that were typed, and `authorization` for a key.
pub(in crate::cli) fn headers(typed: &[Secret], key: Option<&Secret>) -> Result<HeaderMap, Failure> {
    let mut headers = typed.iter().map(header).collect::<Result<HeaderMap, _>>()?;
    if let Some(Secret(key)) = key {
        let wrong = |_| {
            Failure::usage("--api-key: the key has characters that are not allowed in a header, such as a line break")
        };
        let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(wrong)?;
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
    Ok(headers)
}

/// Options of a server whose certificate one of these authorities has signed.
pub(in crate::cli) fn options(authorities: Option<&Path>) -> Result<UpstreamOptions, Failure> {
    let authorities = authorities.map(Authorities::read).transpose().map_err(Failure::input)?;
    Ok(UpstreamOptions { authorities: authorities.map(Arc::new), ..UpstreamOptions::default() })
}

impl GatewayArgs {
    /// Binds the address of the server behind the gateway.
    pub(in crate::cli) async fn listener(&self) -> Result<TcpListener, Failure> {
        let listen = self.listen.clone().unwrap_or_else(|| format!("127.0.0.1:{}", self.upstream_port));
        Ok(server::bind(&listen).await?)
    }

    /// Prints where the gateway has to find its upstream, and what is served there.
    pub(in crate::cli) fn announce(&self, served: &str, address: SocketAddr) {
        let Self { model, via, .. } = self;
        output::note(&format!(
            "{served} on http://{address} for model {model}: set this address as the upstream of {via}\n"
        ));
    }

    pub(in crate::cli) fn client(&self) -> Result<StreamClient, Failure> {
        let headers = headers(&self.header, self.api_key.as_ref())?;
        Ok(StreamClient::new(self.via.clone(), &options(self.via_ca.as_deref())?, headers, self.timeout))
    }
}

impl From<GatewayError> for Failure {
    fn from(error: GatewayError) -> Self {
        let hint = match error.what.contains("certificate") {
            true => "--via-ca names the certificate of the gateway's CA, or its own",
            false => "start the gateway with that address as the upstream of the model that --model names",
        };
        Self::environment(error).hint(hint)
    }
}
