use serde_json::{Value, json};

use super::*;
use recording::canonical::{CanonicalRules, RequestParts, SharedBody};

fn identity(body: &Value) -> Identity {
    let body = &SharedBody::from(body.clone());
    CanonicalRules::default().identify(&RequestParts {
        method: "POST",
        path: "/v1/chat/completions",
        headers: &[],
        body,
    })
}

fn turns(texts: &[&str]) -> Value {
    let messages: Vec<Value> = texts.iter().map(|text| json!({"role": "user", "content": text})).collect();
    json!({"model": "m", "messages": messages})
}

fn index(recorded: &[&[&str]]) -> CassetteIndex {
    let mut index = CassetteIndex::default();
    recorded.iter().for_each(|texts| index.push(identity(&turns(texts)), true));
    index
}

fn policy(chain: &[RequestMatch]) -> MatchPolicy {
    MatchPolicy { chain: chain.to_vec(), ..MatchPolicy::default() }
}

fn ask(session: &mut RequestSession, index: &CassetteIndex, policy: &MatchPolicy, texts: &[&str]) -> Lookup {
    let identity = identity(&turns(texts));
    let request = LookupRequest { identity: &identity, request_id: None, is_retry: false, idempotency_key: None };
    session.select(index, policy, &request)
}

fn record(lookup: &Lookup) -> Option<usize> {
    match lookup {
        Lookup::Found(found) => Some(found.record),
        Lookup::Exhausted { .. } | Lookup::Nothing => None,
    }
}

#[test]
fn duplicates_come_in_order_and_then_are_exhausted() {
    let index = index(&[&["a"], &["b"], &["a"]]);
    let mut session = RequestSession::default();
    let policy = policy(&[RequestMatch::Canonical, RequestMatch::Ordered]);
    let found: Vec<_> = (0..2).map(|_| record(&ask(&mut session, &index, &policy, &["a"]))).collect();
    assert_eq!(found, [Some(0), Some(2)]);
    assert_eq!(
        ask(&mut session, &index, &policy, &["a"]),
        Lookup::Exhausted { records: vec![0, 2], served_to: vec![1, 2] },
        "a looser way does not take over"
    );
    let loose = MatchPolicy { loose_after_exhausted: true, ..policy.clone() };
    assert_eq!(record(&ask(&mut session, &index, &loose, &["a"])), Some(1));
    assert_eq!(session.loose.get("ordered"), Some(&1));
    for (on_exhausted, expected) in [(OnExhausted::Last, [0, 2, 2, 2, 2]), (OnExhausted::Cycle, [0, 2, 0, 2, 0])] {
        let policy = MatchPolicy { on_exhausted: Some(on_exhausted), ..policy.clone() };
        let mut session = RequestSession::default();
        let found = [(); 5].map(|()| record(&ask(&mut session, &index, &policy, &["a"])).unwrap());
        assert_eq!(found, expected, "{on_exhausted:?}");
    }
    let mut other = RequestSession::default();
    assert_eq!(record(&ask(&mut other, &index, &policy, &["a"])), Some(0), "sessions consume for themselves");
}

#[test]
fn a_record_has_to_share_enough_messages() {
    let index = index(&[&["s", "a", "b"], &["s", "x"]]);
    let found = |min_match: &str, texts: &[&str]| {
        let policy = MatchPolicy { min_match: min_match.parse().unwrap(), ..policy(&[RequestMatch::Prefix]) };
        record(&ask(&mut RequestSession::default(), &index, &policy, texts))
    };
    let shares_two: &[&str] = &["s", "a", "y", "z"];
    for (min_match, expected) in [("1", Some(0)), ("2", Some(0)), ("3", None), ("50%", Some(0)), ("51%", None)] {
        assert_eq!(found(min_match, shares_two), expected, "{min_match}");
    }
    assert_eq!((found("whole", shares_two), found("whole", &["s", "a"])), (None, Some(0)));
    assert_eq!(found("3", &["s", "x"]), Some(1), "all of a shorter conversation is enough");
}

#[test]
fn each_way_finds_its_own() {
    let index = index(&[&["s", "a"], &["s", "a", "b"], &["x"]]);
    let one = |by, texts: &[&str]| record(&ask(&mut RequestSession::default(), &index, &policy(&[by]), texts));
    assert_eq!(one(RequestMatch::Ordered, &["anything"]), Some(0));
    assert_eq!(one(RequestMatch::Canonical, &["anything"]), None);
    assert_eq!(one(RequestMatch::Prefix, &["s", "a", "b", "c"]), Some(1));
    assert_eq!(one(RequestMatch::Prefix, &["s", "z"]), Some(0));
    assert_eq!(one(RequestMatch::Prefix, &["z"]), None);
    assert_eq!(one(RequestMatch::Exact, &["x"]), Some(2));
    let streamed = |by| {
        let mut body = turns(&["x"]);
        body["stream"] = json!(true);
        let identity = identity(&body);
        let request =
            LookupRequest { identity: &identity, request_id: Some("run-1"), is_retry: false, idempotency_key: None };
        record(&RequestSession::default().select(&index, &policy(&[by]), &request))
    };
    assert_eq!((streamed(RequestMatch::Exact), streamed(RequestMatch::Canonical)), (None, Some(2)));
    assert_eq!(streamed(RequestMatch::Index), Some(1));
    let mut session = RequestSession::default();
    let prefix = policy(&[RequestMatch::Prefix]);
    let found = [(); 3].map(|()| record(&ask(&mut session, &index, &prefix, &["x"])));
    assert_eq!(found, [Some(2); 3], "the last one again");
}

#[test]
fn conversations_that_go_on_are_found_in_recorded_order() {
    let index = index(&[&["s", "b", "c"], &["s", "a"], &["s", "b"], &["s", "a", "x"], &["s"], &["s", "b", "c"]]);
    let mut session = RequestSession::default();
    let prefix = policy(&[RequestMatch::Prefix]);
    let mut found = |texts: &[&str]| record(&ask(&mut session, &index, &prefix, texts)).unwrap();
    assert_eq!([found(&["s", "b", "y"]), found(&["s", "b", "c", "d"]), found(&["s", "b"])], [0, 5, 2]);
    assert_eq!([found(&["s", "z"]), found(&["s"]), found(&["s"]), found(&["s"])], [1, 3, 4, 5]);
}

#[test]
fn another_try_gets_the_same_record() {
    let index = index(&[&["a"], &["a"], &["a"]]);
    let identity = identity(&turns(&["a"]));
    let mut session = RequestSession::default();
    let first = LookupRequest { identity: &identity, request_id: None, is_retry: false, idempotency_key: None };
    let keyed = LookupRequest { idempotency_key: Some("k"), ..first };
    let policy = policy(&[RequestMatch::Canonical]);
    let requested =
        [LookupRequest { is_retry: true, ..first }, LookupRequest { is_retry: true, ..first }, keyed, keyed, first];
    let found = requested.map(|request| record(&session.select(&index, &policy, &request)));
    assert_eq!(found, [Some(0), Some(0), Some(1), Some(1), Some(2)]);
    assert_eq!(session.again.get("retry"), Some(&2));
    let consume = MatchPolicy { retries: Retries::Consume, ..policy };
    let mut session = RequestSession::default();
    let found = requested.map(|request| record(&session.select(&index, &consume, &request)));
    assert_eq!(found, [Some(0), Some(1), Some(2), None, None]);
}

#[test]
fn the_closest_record_shares_the_most_messages() {
    let index = index(&[&["x", "y", "z"], &["s", "a", "b", "c"], &["s", "a", "b2", "c"], &["s"]]);
    let none = std::collections::HashSet::new();
    let closest = |texts: &[&str]| index.closest(&identity(&turns(texts)), &none, 3);
    assert_eq!(closest(&["s", "a", "b", "inserted", "c"])[0], 1);
    assert_eq!(closest(&["s", "a", "b3", "c"]), [1, 2, 3], "equally close ones in recorded order");
    assert_eq!(closest(&["x", "y", "w"])[0], 0);
    let nothing = SharedBody::from(json!({}));
    let other = CanonicalRules::default().identify(&RequestParts {
        method: "POST",
        path: "/v1/embeddings",
        headers: &[],
        body: &nothing,
    });
    assert!(index.closest(&other, &none, 3).is_empty());
}

#[test]
fn what_cannot_be_served_keeps_its_number() {
    let mut index = index(&[&["a"]]);
    index.push(identity(&turns(&["b"])), false);
    index.push(identity(&turns(&["b"])), true);
    let found = ask(&mut RequestSession::default(), &index, &policy(&[RequestMatch::Canonical]), &["b"]);
    assert_eq!(record(&found), Some(2));
    assert!(index.knows("llm:m") && !index.knows("llm:n") && index.has_route("POST", "/v1/chat/completions"));
}

#[test]
fn a_test_of_the_caller_finds_records_of_the_route() {
    let index = index(&[&["London?"], &["PARIS?"], &["paris?"]]);
    let last = |identity: &Identity| identity.body()["messages"][0]["content"].to_string().to_lowercase();
    let custom = Some(CustomMatch::new(move |recorded, received| last(recorded) == last(received)));
    let policy = MatchPolicy { custom, ..policy(&[RequestMatch::Canonical, RequestMatch::Custom]) };
    let mut session = RequestSession::default();
    let found: Vec<_> = (0..3).map(|_| record(&ask(&mut session, &index, &policy, &["Paris?"]))).collect();
    assert_eq!(found, [Some(1), Some(2), None], "each record once, in recorded order");
    assert_eq!(session.loose.get("custom"), Some(&2));
    assert_eq!(record(&ask(&mut session, &index, &policy, &["Rome?"])), None);
    let without = MatchPolicy { custom: None, ..policy };
    assert_eq!(record(&ask(&mut RequestSession::default(), &index, &without, &["Paris?"])), None);
}

#[test]
fn a_session_holds_no_more_after_a_hundred_thousand_requests() {
    let index = index(&[&["a"]]);
    let cycling = MatchPolicy { on_exhausted: Some(OnExhausted::Cycle), ..policy(&[RequestMatch::Canonical]) };
    let (mut session, identity) = (RequestSession::default(), identity(&turns(&["a"])));
    let first = LookupRequest { identity: &identity, request_id: None, is_retry: false, idempotency_key: None };
    for number in 0..100_000 {
        let key = format!("{number}{}", "k".repeat(1000));
        session.select(&index, &cycling, &LookupRequest { idempotency_key: Some(&key), ..first });
    }
    assert_eq!((session.times(0), session.served_to(0).len(), session.served_to(0)[99]), (100_000, 100, 100));
    assert!(session.retry_bytes() <= 4 << 20, "{} bytes", session.retry_bytes());
    assert_eq!(session.again.get("retry"), None);
    let last = format!("99999{}", "k".repeat(1000));
    session.select(&index, &cycling, &LookupRequest { idempotency_key: Some(&last), ..first });
    assert_eq!(session.again.get("retry"), Some(&1), "a recent key is known");
}
