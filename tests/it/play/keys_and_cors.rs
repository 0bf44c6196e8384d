//! What stands before the routes. The expectations are the answers of vLLM 0.32.0's own server stack.

use serde_json::json;
use vllm_vcr::{
    play::{ApiKeys, Config, Cors, ServerOptions},
    replay::matching::MatchBy,
};

use crate::support::{
    client::{self, Answer, Request, get, post},
    play_server::{Server, config, start},
    running::Running,
};

async fn serve(server: ServerOptions) -> Server {
    start(Config { server, source: vllm_vcr::play::Source::BuiltIn, ..config(&[MatchBy::Next], Vec::new()) }).await
}

fn with<'a>(method: &'a str, path: &'a str, headers: &[(&'a str, &'a str)]) -> Request<'a> {
    Request { method, path, headers: headers.to_vec(), body: Vec::new() }
}

/// Names and values after `server`, without `connection`.
fn headers(answer: &Answer) -> Vec<(&str, &str)> {
    let pairs = answer.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    pairs.filter(|(name, _)| !["date", "server", "connection"].contains(name)).collect()
}

#[tokio::test]
async fn a_missing_key_is_refused_as_the_engine_refuses_it() {
    let keys = ApiKeys::new(vec!["sk-one".to_owned(), "sk-two".to_owned()]);
    let server = serve(ServerOptions { api_keys: keys, ..ServerOptions::default() }).await;
    for path in ["/v1/models", "/v1/nope", "/v1x", "/%761/models", "/inference/v1/generate"] {
        let answer = client::send(server.address, &get(path)).await;
        assert_eq!((answer.status, answer.text().as_str()), (401, r#"{"error":"Unauthorized"}"#), "{path}");
        assert_eq!(headers(&answer), [("content-length", "24"), ("content-type", "application/json")], "{path}");
    }
    for (path, status) in [("/health", 200), ("/version", 200), ("/nope", 404), ("/tokenize", 405)] {
        assert_eq!(client::send(server.address, &get(path)).await.status, status, "{path}");
    }
    let open = client::send(server.address, &post("/tokenize", &json!({"prompt": "x"}))).await;
    assert_eq!(open.status, 200);
    for (sent, status) in [("Bearer sk-two", 200), ("bearer sk-one", 200), ("sk-one", 401), ("Bearer  sk-one", 401)] {
        let answer = client::send(server.address, &with("GET", "/v1/models", &[("Authorization", sent)])).await;
        assert_eq!(answer.status, status, "{sent}");
    }
    let anthropic = with("GET", "/v1/models", &[("x-api-key", "sk-one")]);
    assert_eq!(client::send(server.address, &anthropic).await.status, 401);
    assert_eq!(client::send(server.address, &with("OPTIONS", "/v1/models", &[])).await.status, 405);
}

#[tokio::test]
async fn wrong_methods_and_slashes_are_answered_as_by_the_engine() {
    let server = serve(ServerOptions::default()).await;
    for (method, path, allow) in [
        ("HEAD", "/health", "GET"),
        ("HEAD", "/v1/models", "GET"),
        ("OPTIONS", "/v1/models", "GET"),
        ("PUT", "/health", "GET"),
        ("DELETE", "/ping", "GET"),
        ("QUERY", "/v1/models", "GET"),
        ("GET", "/v1/chat/completions", "POST"),
    ] {
        let answer = client::send(server.address, &with(method, path, &[])).await;
        let expected =
            [("allow", allow), ("content-length", "31"), ("content-type", "application/json"), ("vary", "Origin")];
        assert_eq!((answer.status, headers(&answer).as_slice()), (405, &expected[..]), "{method} {path}");
        let body = if method == "HEAD" { "" } else { r#"{"detail":"Method Not Allowed"}"# };
        assert_eq!(answer.text(), body);
    }
    let host = format!("http://{}", server.address);
    for (method, path, to) in [
        ("GET", "/v1/models/", "/v1/models"),
        ("GET", "/v1/chat/completions/", "/v1/chat/completions"),
        ("POST", "/v1/models/?a=b", "/v1/models?a=b"),
    ] {
        let answer = client::send(server.address, &with(method, path, &[])).await;
        let location = format!("{host}{to}");
        let expected = [("content-length", "0"), ("vary", "Origin"), ("location", location.as_str())];
        let mut found = headers(&answer);
        found.sort_unstable();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!((answer.status, found), (307, expected), "{path}");
    }
    for path in ["/", "/v1//models", "/nope/", "/v1/models//"] {
        assert_eq!(client::send(server.address, &get(path)).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn a_root_path_may_be_there_or_not() {
    let keys = ApiKeys::new(vec!["k".to_owned()]);
    let options = ServerOptions { api_keys: keys, root_path: "/api".to_owned(), ..ServerOptions::default() };
    let server = serve(options).await;
    for (path, status) in [
        ("/api/v1/models", 401),
        ("/v1/models", 401),
        ("/api/health", 200),
        ("/health", 200),
        ("/apiv1/models", 404),
        ("/api", 404),
        ("/api/v1/models/", 401),
        ("/api/nope", 404),
    ] {
        assert_eq!(client::send(server.address, &get(path)).await.status, status, "{path}");
    }
    let moved = client::send(server.address, &get("/api/health/")).await;
    let location = format!("http://{}/api/health", server.address);
    assert_eq!((moved.status, moved.header("location")), (307, Some(location.as_str())));
}

const VARY: (&str, &str) = (
    "vary",
    "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network",
);
const METHODS: (&str, &str) = ("access-control-allow-methods", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY");
const MAX_AGE: (&str, &str) = ("access-control-max-age", "600");
const TEXT: (&str, &str) = ("content-type", "text/plain; charset=utf-8");

async fn preflight(cors: &Cors, sent: &[(&str, &str)]) -> Answer {
    let server = serve(ServerOptions { cors: cors.clone(), ..ServerOptions::default() }).await;
    client::send(server.address, &with("OPTIONS", "/v1/chat/completions", sent)).await
}

fn list(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

#[tokio::test]
async fn a_preflight_is_refused_unless_the_origin_is_allowed() {
    let asked = [("Origin", "http://x"), ("Access-Control-Request-Method", "POST")];
    let refused = preflight(&Cors::default(), &asked).await;
    assert_eq!((refused.status, refused.text().as_str()), (400, "Disallowed CORS origin"));
    assert_eq!(headers(&refused), [VARY, METHODS, MAX_AGE, ("content-length", "22"), TEXT]);

    let open = Cors { origins: list(&["*"]), ..Cors::default() };
    let allowed = preflight(&open, &asked).await;
    let star = ("access-control-allow-origin", "*");
    assert_eq!((allowed.status, allowed.text().as_str()), (200, "OK"));
    assert_eq!(headers(&allowed), [VARY, star, METHODS, MAX_AGE, ("content-length", "2"), TEXT]);

    let private = [asked[0], asked[1], ("Access-Control-Request-Private-Network", "true")];
    assert_eq!(preflight(&open, &private).await.text(), "Disallowed CORS private-network");
}

#[tokio::test]
async fn a_narrow_policy_names_all_that_failed() {
    let cors = Cors {
        origins: list(&["http://a"]),
        methods: list(&["GET", "POST"]),
        headers: list(&["X-One"]),
        credentials: true,
    };
    let sent = |origin, method, headers| {
        [("Origin", origin), ("Access-Control-Request-Method", method), ("Access-Control-Request-Headers", headers)]
    };
    let good = preflight(&cors, &sent("http://a", "POST", "x-one, Content-type")).await;
    assert_eq!(good.status, 200);
    let expected = [
        VARY,
        ("access-control-allow-methods", "GET, POST"),
        MAX_AGE,
        ("access-control-allow-headers", "Accept, Accept-Language, Content-Language, Content-Type, X-One"),
        ("access-control-allow-credentials", "true"),
        ("access-control-allow-origin", "http://a"),
        ("content-length", "2"),
        TEXT,
    ];
    assert_eq!(headers(&good), expected);
    let bad = preflight(&cors, &sent("http://c", "PUT", "x-one, x-two")).await;
    assert_eq!((bad.status, bad.text().as_str()), (400, "Disallowed CORS origin, method, headers"));
}

#[tokio::test]
async fn a_recorded_answer_tells_the_browser_too() {
    let cassette = "vcr: 1\nrecords:\n- {request: POST /v1/chat/completions, body: {model: m}, answer: Hello}\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.yaml");
    std::fs::write(&path, cassette).unwrap();
    let running = Running::start(&[
        "play",
        "--cassette",
        path.to_str().unwrap(),
        "--port",
        "0",
        "--allowed-origins",
        r#"["http://a"]"#,
    ]);
    let mut request = post("/v1/chat/completions", &json!({"model": "m"}));
    request.headers.push(("Origin", "http://a"));
    let answer = client::send(running.address, &request).await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some("http://a")));
    assert_eq!(answer.header("vary"), Some("Origin"));
}

#[tokio::test]
async fn answers_tell_the_browser_before_their_vary() {
    let every = list(&["*"]);
    let cases = [
        (Cors::default(), "http://a", vec![]),
        (Cors { origins: every.clone(), ..Cors::default() }, "http://a", vec![("access-control-allow-origin", "*")]),
        (
            Cors { origins: every, credentials: true, ..Cors::default() },
            "http://c",
            vec![("access-control-allow-origin", "http://c"), ("access-control-allow-credentials", "true")],
        ),
        (
            Cors { origins: list(&["http://a"]), credentials: true, ..Cors::default() },
            "http://a",
            vec![("access-control-allow-credentials", "true"), ("access-control-allow-origin", "http://a")],
        ),
        (Cors { origins: list(&["http://a"]), ..Cors::default() }, "http://c", vec![]),
    ];
    for (cors, origin, told) in cases {
        let server = serve(ServerOptions { cors, ..ServerOptions::default() }).await;
        let answer = client::send(server.address, &with("GET", "/v1/nope", &[("Origin", origin)])).await;
        let mut expected = vec![("content-length", "22"), ("content-type", "application/json")];
        expected.extend(told);
        expected.push(("vary", "Origin"));
        assert_eq!(headers(&answer), expected);
        let same_site = client::send(server.address, &get("/v1/nope")).await;
        assert_eq!(same_site.header("access-control-allow-origin"), None);
    }
}
