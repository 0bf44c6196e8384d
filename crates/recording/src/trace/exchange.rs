//! Content that a replay keeps of a record that is matched by its request, besides that of every record: one with a
//! response, or an error without it.

use std::sync::Arc;

use serde_json::Value;

use super::{Endpoint, Kept, Record, Response, raw::RawRecord, record::is_error};

/// A response, or nothing for an error, and what it is found by.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Exchange {
    response: Option<Arc<Response>>,
    endpoint: Option<Endpoint>,
    path: Option<Box<str>>,
    request_key: Option<Box<str>>,
    request_id: Option<Box<str>>,
}

impl Exchange {
    /// Taken out of a line; `None` where that has neither a response nor an error with a key.
    pub(super) fn of(raw: &mut RawRecord) -> Option<Box<Self>> {
        let is_found = is_error(raw.status, raw.outcome) && raw.request_key.is_some();
        let response = raw.response.take().map(Arc::new);
        if response.is_none() && !is_found {
            return None;
        }
        let path = raw.extra.get("path").and_then(Value::as_str).or_else(|| raw.endpoint?.path());
        Some(Box::new(Self {
            response,
            endpoint: raw.endpoint,
            path: path.map(Box::from),
            request_key: raw.request_key.take().map(String::into_boxed_str),
            request_id: raw.request_id.take().map(String::into_boxed_str),
        }))
    }

    /// That of a record; `None` where it has neither a response nor an error with a key.
    pub(super) fn of_record(record: &Record) -> Option<Box<Self>> {
        let is_found = record.is_error() && record.request_key.is_some();
        if record.response.is_none() && !is_found {
            return None;
        }
        Some(Box::new(Self {
            response: record.response.clone(),
            endpoint: record.endpoint,
            path: record.path().map(Box::from),
            request_key: record.request_key.as_deref().map(Box::from),
            request_id: record.request_id.as_deref().map(Box::from),
        }))
    }
}

impl<'a> Kept<'a> {
    /// The response as the client got it, where it was recorded.
    #[must_use]
    pub fn response(&self) -> Option<&'a Arc<Response>> {
        self.exchange()?.response.as_ref()
    }

    /// The path that was asked, where the record may be found by its request.
    #[must_use]
    pub fn path(&self) -> Option<&'a str> {
        self.exchange()?.path.as_deref()
    }

    /// The canonical key of the request, likewise.
    #[must_use]
    pub fn request_key(&self) -> Option<&'a str> {
        self.exchange()?.request_key.as_deref()
    }

    /// A record of nothing but the response and what it is found by.
    pub(super) fn of_exchange(&self) -> Record {
        let Some(exchange) = self.exchange() else { return Record::default() };
        Record {
            response: exchange.response.clone(),
            endpoint: exchange.endpoint,
            request_key: exchange.request_key.as_deref().map(str::to_owned),
            request_id: exchange.request_id.as_deref().map(str::to_owned),
            ..Record::default()
        }
    }
}
