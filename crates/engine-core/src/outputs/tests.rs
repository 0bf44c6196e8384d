use super::*;
use crate::layout::FAMILIES;

/// What `MsgpackEncoder` of vLLM 0.32.0 writes of outputs with log probabilities, events and figures of the prompt.
const RECORDED: &str = "990091dc0012a3612d3191099493a33c6934920102d703090000000400000093a33c6634920102d703000000bf000080bf93a33c69389101d7030100000000000000c09593a5696e743332920202d8030300000002000000020000000500000093a7666c6f61743332920202d803000000bf000080bf000000c0000080be93a5696e7436349102d80301000000000000000200000000000000c0c0c001c09282a47479706501a974696d657374616d70cb3ff800000000000082a47479706502a974696d657374616d70cb4004000000000000c0c0c086b16e756d5f70726f6d70745f746f6b656e7303b36e756d5f636f6d70757465645f746f6b656e7301b16e756d5f6361636865645f746f6b656e7302b76e756d5f6c6f63616c5f6361636865645f746f6b656e7302ba6e756d5f65787465726e616c5f6361636865645f746f6b656e7300b96e756d5f63616368655f6372656174696f6e5f746f6b656e7300c000c0c0c0c0c0cb400c000000000000c0c0c0c0c0";

fn outputs() -> WireOutputs {
    let new = LogprobsTensors { width: 2, token_ids: vec![9, 4], logprobs: vec![-0.5, -1.0], ranks: vec![1] };
    let prompt = LogprobsTensors {
        width: 2,
        token_ids: vec![3, 2, 2, 5],
        logprobs: vec![-0.5, -1.0, -2.0, -0.25],
        ranks: vec![1, 2],
    };
    let output = WireOutput {
        request_id: "a-1".to_owned(),
        new_token_ids: vec![9],
        new_logprobs: Some(new),
        new_prompt_logprobs: Some(prompt),
        finish_reason: Some(WireFinish::Length),
        events: vec![(1, 1.5), (2, 2.5)],
        prefill_stats: Some(PrefillStats { prompt_tokens: 3, cached: 2, external: 0, created: 0 }),
        ..WireOutput::default()
    };
    WireOutputs { outputs: vec![output], timestamp: 3.5, ..WireOutputs::default() }
}

fn recorded() -> Vec<u8> {
    (0..RECORDED.len()).step_by(2).map(|at| u8::from_str_radix(&RECORDED[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn outputs_of_the_real_encoder_are_read_and_written_byte_for_byte() {
    let family = VersionFamily::of_version("0.32.0").unwrap();
    assert_eq!(WireOutputs::read(&recorded(), &[], family), Ok(outputs()));
    assert_eq!(outputs().to_bytes(family), recorded());
}

#[test]
fn what_is_written_for_a_version_is_read_for_it() {
    for family in FAMILIES {
        let mut written = outputs();
        written.outputs[0].error = Some(RequestError::PAUSED);
        written.weight_version = Some("default".to_owned());
        let mut expected = written.clone();
        if family.last < (0, 33) {
            expected.outputs[0].error = None;
        }
        if family.last < (0, 32) {
            expected.weight_version = None;
        }
        if family.last < (0, 20) {
            expected.outputs[0].prefill_stats = None;
        }
        assert_eq!(WireOutputs::read(&written.to_bytes(family), &[], family), Ok(expected), "{family:?}");
    }
}

/// NamedTuples of Python and structs of Rust: what is too long is refused there.
#[test]
fn log_probabilities_have_the_fields_of_their_version() {
    let length = |version: &str| {
        let family = VersionFamily::of_version(version).unwrap();
        let bytes = outputs().to_bytes(family);
        let value = MsgpackValue::read(&bytes).unwrap();
        let output = value.as_array().unwrap()[1].as_array().unwrap()[0].as_array().unwrap().to_vec();
        [&output[2], &output[3]].map(|rows| rows.as_array().unwrap().len())
    };
    assert_eq!(["0.33.0", "0.29.0"].map(length), [[4, 5]; 2]);
    assert_eq!(["0.28.0", "0.16.0"].map(length), [[4, 4]; 2]);
    assert_eq!(["0.15.1", "0.11.2"].map(length), [[4, 3]; 2]);
    assert_eq!(length("0.10.2"), [3, 3]);
}

#[test]
fn tensors_may_be_in_frames_of_their_own_and_damaged_ones_are_none() {
    let value = outputs().outputs[0].new_logprobs.as_ref().unwrap().lists(FAMILIES[1]);
    let mut aside = value.clone();
    let (MsgpackValue::Array(fields), mut frames) = (&mut aside, Vec::new()) else { unreachable!() };
    for field in fields.iter_mut().take(3) {
        let MsgpackValue::Array(parts) = field else { unreachable!() };
        let MsgpackValue::Ext(_, bytes) = std::mem::replace(&mut parts[2], (frames.len() + 1).into()) else {
            unreachable!()
        };
        frames.push(bytes);
    }
    assert_eq!(LogprobsTensors::read(&aside, &frames), LogprobsTensors::read(&value, &[]));
    frames.pop();
    assert_eq!(LogprobsTensors::read(&aside, &frames), None);
    assert_eq!(LogprobsTensors::read(&MsgpackValue::Nil, &[]), None);
    // Lists of numbers, whose rows are equally long.
    let rows = |widths: [usize; 2]| MsgpackValue::Array(widths.map(|width| vec![1_u32; width].into()).to_vec());
    let plain = |widths| MsgpackValue::Array(vec![rows(widths), rows(widths), vec![1_u32; 2].into()]);
    assert!(LogprobsTensors::read(&plain([2, 2]), &[]).is_some());
    for uneven in [[1, 3], [2, 0], [2, 3], [0, 0]] {
        assert_eq!(LogprobsTensors::read(&plain(uneven), &[]), None, "{uneven:?}");
    }
    let narrow = MsgpackValue::Array(vec![rows([2, 2]), rows([1, 3]), vec![1_u32; 2].into()]);
    assert_eq!(LogprobsTensors::read(&narrow, &[]), None);
}

#[test]
fn no_prefix_and_no_changed_byte_of_outputs_panics() {
    let (family, whole) = (FAMILIES[1], recorded());
    for end in 0..whole.len() {
        assert!(WireOutputs::read(&whole[..end], &[], family).is_err());
    }
    for at in 0..whole.len() {
        for byte in [0x00, 0x7f, 0x93, 0xc0, 0xc1, 0xdd, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            let _either = WireOutputs::read(&damaged, &[], family);
        }
    }
}
