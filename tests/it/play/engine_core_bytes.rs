//! Messages of an engine core and of its front ends that are changed at random: they are refused, or read and written again; nothing panics
//! and nothing takes more memory than it has bytes for.

use rand::{RngExt, rngs::StdRng};
use vllm_vcr::engine_core::{
    handshake::EngineAddresses,
    layout::FAMILIES,
    msgpack::MsgpackValue,
    outputs::WireOutputs,
    request::{EngineCoreRequest, RequestType, aborted},
    utility::UtilityCall,
    zmtp::{FrameLimits, Frames},
    zmtp_reader::{ZmtpReader, ZmtpUnit},
};

use crate::support::drawn_bytes::{Run, cut};

/// Bytes of a message in these runs.
const LIMIT: u64 = 1 << 16;

/// The most bytes that a value takes as it is written here, for each that it had.
const GROWTH: usize = 9;

/// Every reader of one frame.
fn read(bytes: &[u8], frames: &[Vec<u8>]) {
    if let Ok(value) = MsgpackValue::read(bytes) {
        let written = value.to_bytes();
        assert!(written.len() <= bytes.len() * GROWTH, "{} bytes became {}", bytes.len(), written.len());
        assert_eq!(MsgpackValue::read(&written).map(|value| value.to_bytes()).as_ref(), Ok(&written));
    }
    let _either = (RequestType::read(bytes), aborted(bytes), EngineAddresses::read(bytes));
    if let Ok(request) = EngineCoreRequest::read(bytes) {
        let _any = request.sampling_params.map(|sampling| (sampling.max_tokens(), sampling.ids("stop_token_ids")));
    }
    if let Ok(call) = UtilityCall::read(bytes) {
        assert!(MsgpackValue::read(&call.output(Err("no".to_owned())).to_bytes()).is_ok());
    }
    for family in FAMILIES {
        if let Ok(outputs) = WireOutputs::read(bytes, frames, family) {
            let written = outputs.to_bytes(family);
            let again = WireOutputs::read(&written, &[], family).map(|outputs| outputs.to_bytes(family));
            assert_eq!(again.as_ref(), Ok(&written), "{family:?}");
        }
    }
}

/// What a connection's bytes contain, whatever pieces they come in.
fn units<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<ZmtpUnit> {
    let (mut reader, mut units) = (ZmtpReader::new(LIMIT, 8), Vec::new());
    pieces.into_iter().for_each(|piece| reader.push(piece, |unit| units.push(unit)));
    units
}

fn connection(bytes: &[u8], random: &mut StdRng) {
    let whole = units([bytes]);
    assert_eq!(units(cut(bytes, random).iter().map(Vec::as_slice)), whole);
    // Thousands of empty ones are a few bytes.
    for unit in whole.iter().take(200) {
        if let ZmtpUnit::Message(frames) = unit {
            frames.iter().for_each(|frame| read(frame, frames));
        }
    }
    let limits = FrameLimits { message: LIMIT, in_all: u64::MAX };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut frames = Frames::new(bytes, limits);
        if frames.greeting().await.is_ok() {
            while frames.message().await.is_ok() {}
        }
        assert!(frames.body.capacity() as u64 <= 2 * LIMIT);
    });
}

fn messages(run: Run) {
    run.each_input("engine-core", |input, random| match random.random_range(0..2) {
        0 => read(input, &cut(input, random)),
        _ => connection(input, random),
    });
}

#[test]
fn drawn_messages_are_refused_or_read_and_written_again() {
    messages(Run::short_of(400));
}

#[test]
#[ignore = "runs for VCR_FUZZ_SECONDS"]
fn engine_core_messages_for_long() {
    messages(Run::long());
}
