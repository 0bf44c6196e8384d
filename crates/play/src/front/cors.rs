//! CORS: which web pages of other origins may call, as the engine's framework decides and words it.

use std::{ops::ControlFlow, sync::Arc};

use axum::{extract::Request, response::Response};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use super::super::{http::text, middleware::Middleware};

/// Methods that `*` stands for.
const ALL_METHODS: &str = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY";

/// Headers that a page may always send.
const SAFE_HEADERS: [&str; 4] = ["Accept", "Accept-Language", "Content-Language", "Content-Type"];

/// `vary` of the answer to a preflight.
const PREFLIGHT_VARY: HeaderValue = HeaderValue::from_static(
    "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network",
);

const PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");

base::with_defaults! {
    /// The policy. `*` in a list stands for everything.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Cors {
        /// Origins that may call; none by default.
        pub origins: Vec<String>,
        /// Methods they may use; `*` by default.
        pub methods: Vec<String> = vec!["*".to_owned()],
        /// Headers they may send; `*` by default.
        pub headers: Vec<String> = vec!["*".to_owned()],
        /// True where they may send cookies and the like.
        pub credentials: bool,
    }
}

/// The middleware that answers preflights, and adds headers for browsers to other answers.
#[derive(Debug, Clone)]
pub(super) struct Share(pub(super) Arc<Cors>);

impl Middleware for Share {
    /// The policy and the origin of a request that has one; the answers to others stay as they are.
    type Kept = Option<(Arc<Cors>, HeaderValue)>;

    fn before(&self, request: &mut Request) -> ControlFlow<Response, Self::Kept> {
        let Self(cors) = self;
        let Some(origin) = request.headers().get(header::ORIGIN) else { return ControlFlow::Continue(None) };
        match cors.preflight(request, origin) {
            Some(preflight) => ControlFlow::Break(preflight),
            None => ControlFlow::Continue(Some((Arc::clone(cors), origin.clone()))),
        }
    }

    fn after(kept: Self::Kept, response: Response) -> Response {
        match kept {
            Some((cors, origin)) => cors.dress(response, &origin),
            None => response,
        }
    }
}

impl Cors {
    fn preflight(&self, request: &Request, origin: &HeaderValue) -> Option<Response> {
        let sent = request.headers();
        let method =
            sent.get(header::ACCESS_CONTROL_REQUEST_METHOD).filter(|_| *request.method() == Method::OPTIONS)?;
        let wanted = sent.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
        let mut headers = self.preflight_headers();
        let mut failures = Vec::new();
        if !self.allows_origin(origin) {
            failures.push("origin");
        } else if !self.allows_all_origins() || self.credentials {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        }
        if !self.method_list().split(", ").any(|allowed| allowed.as_bytes() == method.as_bytes()) {
            failures.push("method");
        }
        match wanted {
            Some(wanted) if self.allows_all_headers() => {
                headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
            }
            Some(wanted) if !self.allows_headers(wanted) => failures.push("headers"),
            _ => {}
        }
        if sent.contains_key(PRIVATE_NETWORK) {
            failures.push("private-network");
        }
        Some(if failures.is_empty() {
            text(StatusCode::OK, headers, "OK".to_owned())
        } else {
            text(StatusCode::BAD_REQUEST, headers, format!("Disallowed CORS {}", failures.join(", ")))
        })
    }

    /// The headers that do not depend on the origin.
    fn preflight_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::VARY, PREFLIGHT_VARY);
        if self.allows_all_origins() && !self.credentials {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        }
        insert_text(&mut headers, header::ACCESS_CONTROL_ALLOW_METHODS, &self.method_list());
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        if !self.allows_all_headers() {
            insert_text(&mut headers, header::ACCESS_CONTROL_ALLOW_HEADERS, &self.header_list().join(", "));
        }
        if self.credentials {
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        headers
    }

    /// Adds the browser's headers to an answer for a page of this origin, before its `vary`.
    fn dress(&self, mut response: Response, origin: &HeaderValue) -> Response {
        let mut added = HeaderMap::new();
        if self.allows_all_origins() {
            let allowed = if self.credentials { origin.clone() } else { HeaderValue::from_static("*") };
            added.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        }
        if self.credentials {
            added.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        if !self.allows_all_origins() && self.allows_origin(origin) {
            added.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        }
        let headers = std::mem::take(response.headers_mut());
        let mut dressed = HeaderMap::with_capacity(headers.len() + added.len());
        let mut last = None;
        for (name, value) in headers {
            // A further value of a name comes without it.
            last = name.or(last);
            let Some(name) = last.clone() else { continue };
            if name == header::VARY {
                dressed.extend(std::mem::take(&mut added));
            }
            dressed.append(name, value);
        }
        if !added.is_empty() {
            // A recorded response came without it.
            dressed.extend(added);
            dressed.insert(header::VARY, HeaderValue::from_static("Origin"));
        }
        *response.headers_mut() = dressed;
        response
    }

    fn allows_all_origins(&self) -> bool {
        self.origins.iter().any(|origin| origin == "*")
    }

    fn allows_origin(&self, origin: &HeaderValue) -> bool {
        self.allows_all_origins() || self.origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes())
    }

    fn allows_all_headers(&self) -> bool {
        self.headers.iter().any(|header| header == "*")
    }

    fn allows_headers(&self, wanted: &HeaderValue) -> bool {
        let allowed = self.header_list();
        let Ok(wanted) = wanted.to_str() else { return false };
        wanted.split(',').map(str::trim).all(|name| allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name)))
    }

    fn header_list(&self) -> Vec<&str> {
        let mut list: Vec<&str> = self.headers.iter().map(String::as_str).chain(SAFE_HEADERS).collect();
        list.sort_unstable();
        list.dedup();
        list
    }

    fn method_list(&self) -> String {
        if self.methods.iter().any(|method| method == "*") { ALL_METHODS.to_owned() } else { self.methods.join(", ") }
    }
}

/// A header of the operator's words; words that no header can carry are left out.
fn insert_text(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}
