//! The model that a request asks for: one that is served, an adapter, or one of several that were recorded; and adapters that clients
//! load and unload.

use axum::{extract::State, response::Response};
use http::StatusCode;

use crate::{
    HandlerState, ServerState,
    http::{ErrorResponse, untyped},
    load::adapters::Adapter,
    request::extract::JsonBody,
};
use api::{
    ApiError,
    lora::{LoadAdapter, unloaded},
};

#[derive(Debug)]
pub(crate) struct RequestedModel<'a> {
    pub(crate) adapter: Option<Adapter>,
    name: Option<&'a str>,
    /// The name of the model whose records answer.
    pub(crate) recorded: Option<&'a str>,
}

impl<'a> RequestedModel<'a> {
    /// The model of this name. An adapter without records has those of its model.
    pub(crate) fn of(state: &'a ServerState, name: Option<&'a str>) -> Self {
        let adapter = name.and_then(|name| state.adapters.find(name));
        let model = &state.model;
        let recorded = match &adapter {
            Some(adapter) if !model.recorded.contains(&adapter.lora.lora_name) => {
                let base = adapter.base_model_name.as_ref();
                let served = base.and_then(|base| model.names.iter().find(|name| *name == base));
                Some(served.map_or_else(|| model.first_name(), String::as_str))
            }
            _ => name,
        };
        Self { adapter, name, recorded }
    }

    /// The name that answers show.
    pub(crate) fn shown(&self, state: &'a ServerState) -> &'a str {
        self.name.filter(|_| self.adapter.is_some()).unwrap_or_else(|| state.asked_model(self.name))
    }
}

impl ServerState {
    /// Checks the name of a model in a request: of the model or of an adapter. One without a name is right.
    /// Errors: 404 for one that is not served.
    pub(crate) fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        let models = &self.model.names;
        match name.filter(|name| !name.is_empty() && !models.iter().any(|served| served == name)) {
            Some(name) => self.adapters.check(name, models),
            None => Ok(()),
        }
    }

    /// The model that answers: the one that is asked where records of several models are served, else the first one.
    pub(crate) fn asked_model<'a>(&'a self, requested: Option<&'a str>) -> &'a str {
        let by_model = self.replay.as_ref().is_some_and(|replay| replay.matcher.rules().by_model);
        requested.filter(|name| by_model && !name.is_empty()).unwrap_or_else(|| self.model.first_name())
    }

    /// Checks whether a request names no model, and several were recorded.
    pub(crate) fn takes_any_model(&self, requested: Option<&str>) -> bool {
        requested.is_none_or(str::is_empty)
            && self.replay.as_ref().is_some_and(|replay| replay.matcher.rules().by_model)
    }
}

/// `/v1/load_lora_adapter`
pub(crate) async fn load_adapter(
    State(state): HandlerState,
    JsonBody { bytes, .. }: JsonBody,
) -> Result<Response, ErrorResponse> {
    let request = LoadAdapter::parse(&bytes)?;
    Ok(done(state.adapters.load(request, None, &state.model)?))
}

/// `/v1/unload_lora_adapter`
pub(crate) async fn unload_adapter(
    State(state): HandlerState,
    JsonBody { bytes, .. }: JsonBody,
) -> Result<Response, ErrorResponse> {
    Ok(done(state.adapters.unload(&unloaded(&bytes)?)?))
}

fn done(message: String) -> Response {
    untyped(StatusCode::OK, message)
}
