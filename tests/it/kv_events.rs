//! KV events in MessagePack: byte for byte what vLLM published, and the forms that it did not.

use std::{path::Path, sync::Arc};

use rmpv::Value;
use vllm_vcr::engine::{
    kv_cache::{HashAlgorithm, KvCacheConfig, LoraRequest},
    kv_events::{EventEncoder, EventEncoding, EventHashes},
    scheduler::{PauseState, Request, Scheduler, SchedulerConfig},
};

use crate::support::tree;

const MAPS: EventEncoder =
    EventEncoder { encoding: EventEncoding::Map, hashes: EventHashes::Int, algorithm: HashAlgorithm::Sha256, rank: 0 };

fn scheduler(cache: KvCacheConfig) -> Scheduler {
    let cache = KvCacheConfig { enable_kv_cache_events: true, ..cache };
    Scheduler::new(SchedulerConfig::default(), cache).unwrap()
}

/// Runs a request to its end; the payload of each step with events.
fn payloads(
    scheduler: &mut Scheduler,
    request: Request,
    encoder: &EventEncoder,
    mut time: impl FnMut() -> f64,
) -> Vec<Vec<u8>> {
    scheduler.add_request(request).unwrap();
    let mut found = Vec::new();
    while scheduler.has_requests() {
        scheduler.step([], &[]);
        if scheduler.events().next().is_some() {
            found.extend(encoder.encode(time(), scheduler.events()));
        }
    }
    found
}

/// The events of payloads, as the encoder's form has them.
fn events(payloads: &[Vec<u8>]) -> Vec<Value> {
    let read = |payload: &Vec<u8>| rmpv::decode::read_value(&mut payload.as_slice()).unwrap();
    payloads.iter().flat_map(|payload| read(payload)[1].as_array().unwrap().clone()).collect()
}

fn request(id: u64, prompt: Vec<u32>, output: usize) -> Request {
    Request { id, prompt, output: vec![7; output], ..Request::default() }
}

/// `kv_events.json` is of three requests, with prompts of 50 and 64 ids, and of a run before it.
#[test]
fn payloads_are_byte_for_byte_those_that_an_engine_published() {
    let golden: serde_json::Value =
        serde_json::from_str(&tree::read(Path::new("tests/goldens/vllm-0.32.0/kv_events.json"))).unwrap();
    let golden = golden.as_array().unwrap();
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
    };
    let output = golden.iter().find_map(|frame| frame.get("token_ids")).map(ids).unwrap();
    let frames: Vec<_> = golden.iter().filter(|frame| frame.get("payload_hex").is_some()).collect();
    let mut requests =
        vec![Request { output, ..request(0, (100..150).collect(), 1) }, request(1, (100..164).collect(), 2)];
    for (frame, id) in frames.iter().skip(3).zip(2..) {
        // One token more, so that the last block of the prompt is full before the first output.
        let mut prompt = ids(&frame["decoded"][1][0]["token_ids"]);
        prompt.push(1);
        requests.push(request(id, prompt, 1));
    }
    let mut scheduler = scheduler(KvCacheConfig { block_size: 32, ..KvCacheConfig::default() });
    let mut times = frames.iter().map(|frame| frame["decoded"][0].as_f64().unwrap());
    let mut found = Vec::new();
    for request in requests {
        found.extend(payloads(&mut scheduler, request, &MAPS, || times.next().unwrap()));
    }
    let hex = |payload: &Vec<u8>| payload.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let found: Vec<String> = found.iter().map(hex).collect();
    let expected: Vec<&str> = frames.iter().map(|frame| frame["payload_hex"].as_str().unwrap()).collect();
    assert_eq!(found, expected);
    assert_eq!(found.len(), 6);
}

#[test]
fn arrays_have_the_values_in_the_order_of_the_fields() {
    let cache = || KvCacheConfig { num_gpu_blocks: 4, ..KvCacheConfig::default() };
    let arrays = EventEncoder { encoding: EventEncoding::Array, rank: 3, ..MAPS };
    let run = |encoder: &EventEncoder| {
        let mut scheduler = scheduler(cache());
        let lora = LoraRequest { lora_int_id: 2, lora_name: "sql".to_owned(), lora_path: "/sql".to_owned() };
        let keyed = Request {
            lora: Some(Arc::new(lora)),
            cache_salt: Some("pepper".to_owned()),
            ..request(1, (0..40).collect(), 1)
        };
        let mut found = payloads(&mut scheduler, keyed, encoder, || 1.5);
        found.extend(payloads(&mut scheduler, request(2, (50..90).collect(), 1), encoder, || 2.5));
        assert!(scheduler.reset_prefix_cache(false));
        found.extend(payloads(&mut scheduler, request(3, (50..60).collect(), 1), encoder, || 3.5));
        found
    };
    let (maps, lists) = (run(&MAPS), run(&arrays));
    let batch = rmpv::decode::read_value(&mut lists[0].as_slice()).unwrap();
    assert_eq!((&batch[0], &batch[2]), (&Value::from(1.5), &Value::from(3)));
    let (maps, lists) = (events(&maps), events(&lists));
    let names: Vec<&str> = lists.iter().map(|event| event[0].as_str().unwrap()).collect();
    assert_eq!(names, ["BlockStored", "BlockRemoved", "BlockRemoved", "BlockStored", "AllBlocksCleared"]);
    for (map, list) in maps.iter().zip(&lists) {
        let values: Vec<Value> = map.as_map().unwrap().iter().map(|(_, value)| value.clone()).collect();
        assert_eq!(list.as_array(), Some(&values));
    }
    let stored =
        |key: &str| maps[0].as_map().unwrap().iter().find(|(name, _)| name.as_str() == Some(key)).unwrap().1.clone();
    assert_eq!((stored("lora_id"), stored("lora_name")), (Value::from(2), Value::from("sql")));
    let keys = |keys: &[&str]| Value::Array(keys.iter().map(|key| Value::from(*key)).collect());
    assert_eq!(stored("extra_keys"), Value::Array(vec![keys(&["sql", "pepper"]), keys(&["sql"])]));
}

#[test]
fn whole_hashes_end_with_the_bytes_of_the_numbers() {
    for (algorithm, length) in [(HashAlgorithm::Sha256, 32), (HashAlgorithm::XxhashCbor, 16)] {
        let run = |hashes| {
            let cache = KvCacheConfig { prefix_caching_hash_algo: algorithm, ..KvCacheConfig::default() };
            let encoder = EventEncoder { encoding: EventEncoding::Array, hashes, algorithm, rank: 0 };
            events(&payloads(&mut scheduler(cache), request(1, (0..40).collect(), 1), &encoder, || 1.0))[0][1].clone()
        };
        let (numbers, whole) = (run(EventHashes::Int), run(EventHashes::Bytes));
        for (number, bytes) in numbers.as_array().unwrap().iter().zip(whole.as_array().unwrap()) {
            let bytes = bytes.as_slice().unwrap();
            let (_, last) = bytes.split_at(length - 8);
            assert_eq!(last, number.as_u64().unwrap().to_be_bytes());
        }
    }
}

#[test]
fn a_reset_is_the_first_event_of_the_next_step_and_refused_where_blocks_are_in_use() {
    let mut scheduler = scheduler(KvCacheConfig::default());
    let names = |scheduler: &Scheduler| {
        let payload = MAPS.encode(0.0, scheduler.events());
        let name = |event: &Value| event.as_map().unwrap()[0].1.as_str().unwrap().to_owned();
        events(payload.as_slice()).iter().map(name).collect::<Vec<_>>()
    };
    scheduler.step([request(1, (0..40).collect(), 9)], &[]);
    assert_eq!(names(&scheduler), ["BlockStored"]);
    assert!(!scheduler.reset_prefix_cache(false));
    assert!(scheduler.reset_prefix_cache(true), "its blocks are taken from it");
    let decisions = scheduler.step([], &[]);
    assert_eq!((decisions.preempted.as_slice(), decisions.scheduled[0].num_computed_tokens), ([1].as_slice(), 0));
    assert_eq!(names(&scheduler), ["AllBlocksCleared", "BlockStored"]);
    scheduler.abort(1);
    assert!(scheduler.reset_prefix_cache(false));
    scheduler.step([], &[]);
    assert_eq!(names(&scheduler), [""; 0], "nothing is there to be done");
    scheduler.step([request(2, (0..40).collect(), 1)], &[]);
    assert_eq!(names(&scheduler), ["AllBlocksCleared", "BlockStored"]);
}

#[test]
fn a_pause_schedules_nothing_new_or_nothing_at_all() {
    let mut scheduler = scheduler(KvCacheConfig::default());
    let ids = |scheduler: &Scheduler| {
        scheduler.decisions().scheduled.iter().map(|scheduled| scheduled.request_id).collect::<Vec<_>>()
    };
    scheduler.step([request(1, (0..40).collect(), 9)], &[]);
    scheduler.set_pause_state(PauseState::New);
    scheduler.step([request(2, (0..40).collect(), 9)], &[]);
    assert_eq!((ids(&scheduler), scheduler.has_work()), (vec![1], true));
    scheduler.set_pause_state(PauseState::All);
    scheduler.step([], &[]);
    assert_eq!((ids(&scheduler), scheduler.has_work()), (vec![], false));
    scheduler.set_pause_state(PauseState::None);
    scheduler.step([], &[]);
    assert_eq!(ids(&scheduler), [1, 2]);
    let mut aborted = scheduler.abort_all();
    aborted.sort_unstable();
    assert_eq!((aborted, scheduler.has_requests()), (vec![1, 2], false));
}
