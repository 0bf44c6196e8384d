use super::*;

/// What `MsgpackEncoder` of vLLM 0.32.0 writes of a request with an adapter, log probabilities and stop tokens.
const RECORDED: &str = "dc0016af636d706c2d312d6162636465663132940102cd012cce00011170c0de0009ab74656d7065726174757265cb3fe0000000000000a47365656401a473746f7090ae73746f705f746f6b656e5f696473920506aa6d61785f746f6b656e7307a86c6f6770726f627303b35f616c6c5f73746f705f746f6b656e5f696473920506a96261645f776f72647390b9736b69705f72656164696e675f7072656669785f6361636865c2c0cb41d954fc4020000096a2616402a22f61c0c2c2a173c0c0c00100fdc0c2a6636d706c2d31c0c0c2c0c0";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn a_request_of_the_real_encoder_is_read() {
    let request = EngineCoreRequest::read(&bytes(RECORDED)).unwrap();
    assert_eq!(request.family.last, (0, 33));
    assert_eq!(request.request_id, "cmpl-1-abcdef12");
    assert_eq!(request.prompt_token_ids, Some(vec![1, 2, 300, 70_000]));
    let adapter = LoraName { lora_name: "ad".to_owned(), lora_int_id: 2, lora_path: "/a".to_owned() };
    assert_eq!(request.lora_request, Some(adapter));
    assert_eq!((request.client_index, request.priority, request.is_pooling), (1, -3, false));
    assert_eq!((request.cache_salt.as_deref(), request.external_req_id.as_deref()), (Some("s"), Some("cmpl-1")));
    let sampling = request.sampling_params.unwrap();
    assert_eq!(
        (sampling.max_tokens(), sampling.logprobs("logprobs"), sampling.logprobs("prompt_logprobs")),
        (7, Some(3), None)
    );
    assert_eq!((sampling.ids("stop_token_ids"), sampling.eos_token_id()), (vec![5, 6], None));
}

/// Requests of `vllm-rs` of each version.
#[test]
fn requests_of_the_rust_front_ends_are_read() {
    let mut read = Vec::new();
    for line in include_str!("requests.tsv").lines().filter(|line| !line.starts_with('#')) {
        let (version, hex) = line.split_once('\t').unwrap();
        let request = EngineCoreRequest::read(&bytes(hex)).unwrap();
        let family = VersionFamily::of_version(version).unwrap();
        assert!(request.family.has_requests_of(&family), "{version}: {:?}", request.family);
        let sampling = request.sampling_params.unwrap();
        assert_eq!(
            (request.prompt_token_ids.as_deref(), sampling.max_tokens(), sampling.logprobs("logprobs")),
            (Some(&[6023][..]), 2, Some(2)),
            "{version}"
        );
        assert_eq!(request.external_req_id.as_deref(), Some("cmpl-replay-0"), "{version}");
        assert!(request.arrival_time > 1.7e9 && request.refused.is_none(), "{version}");
        read.push(version.to_owned());
    }
    assert_eq!(read, ["0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]);
}

/// Not byte for byte: `msgspec` writes a map that leaves defaults out with a longer head.
#[test]
fn what_the_real_encoder_writes_is_written_again_with_the_same_values() {
    let read = MsgpackValue::read(&bytes(RECORDED)).unwrap();
    assert_eq!(MsgpackValue::read(&read.to_bytes()), Ok(read.clone()));
    assert_eq!(read.to_bytes().len(), bytes(RECORDED).len() - 2);
}

#[test]
fn no_prefix_and_no_changed_byte_of_a_request_panics() {
    let whole = bytes(RECORDED);
    for end in 0..whole.len() {
        assert!(EngineCoreRequest::read(&whole[..end]).is_err());
    }
    for at in 0..whole.len() {
        for byte in [0x00, 0x7f, 0x93, 0xc0, 0xc1, 0xdd, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            let _either = EngineCoreRequest::read(&damaged);
        }
    }
}

#[test]
fn what_is_not_taken_is_refused_in_words() {
    let changed = |at: usize, value: MsgpackValue| {
        let Ok(MsgpackValue::Array(mut items)) = MsgpackValue::read(&bytes(RECORDED)) else { unreachable!() };
        items[at] = value;
        let read = EngineCoreRequest::read(&MsgpackValue::Array(items).to_bytes());
        read.map_or_else(|error| error, |request| request.refused.unwrap()).to_string()
    };
    assert!(changed(2, MsgpackValue::Ext(1, vec![0])).contains("mm_features: pickled values are not read"));
    assert!(changed(9, vec![1_u32].into()).contains("prompt_embeds"));
    assert_eq!(changed(0, 5_u32.into()), "EngineCoreRequest.request_id is not a text");
    assert_eq!(changed(1, vec!["x"].into()), "EngineCoreRequest.prompt_token_ids is not a list of token ids");
    let unknown = MsgpackValue::Array([vec!["id".into()], vec![MsgpackValue::Nil; 12]].concat()).to_bytes();
    let error = EngineCoreRequest::read(&unknown).unwrap_err();
    assert_eq!(error.to_string(), "EngineCoreRequest has 13 fields; known are those of vLLM 0.10 to 0.33");
    assert_eq!((id_of_unknown(&unknown).as_deref(), id_of_unknown(b"\x91\x01")), (Some("id"), None));
    assert!(aborted(b"\x91\x01").is_err());
    assert_eq!(aborted(b"\x92\xa1a\xa1b").unwrap(), ["a", "b"]);
}
