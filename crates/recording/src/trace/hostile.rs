//! Tests: what the fast readers make of hostile files, compared with the plain one. The plain one reads line by line on one
//! thread, with serde only.

use std::{fmt::Write as _, fs, io::Write as _, path::Path, sync::Arc};

use flate2::{Compression, write::GzEncoder};
use proptest::{collection::vec, prelude::*, sample::select};

use super::{
    BadLines, CaptureEnd, Meta, Record, TraceError, Warning,
    error::Defect,
    gzip_members, load,
    packed::Packed,
    raw,
    record_reader::{FromLine, RecordReader},
    shared_prompt::SharedPrompt,
    source::NumberedLines,
};

/// A record as the plain way reads it.
struct Plain(Record);

impl FromLine for Plain {
    fn parse(line: &[u8]) -> Result<raw::RawRecord, Vec<Defect>> {
        raw::parse_at_length(line)
    }

    fn of_line(raw: raw::RawRecord) -> Result<Self, Vec<Defect>> {
        raw.into_record().map(Self)
    }

    type Prompt = SharedPrompt;

    fn key(&self) -> Option<(&str, u32)> {
        self.0.key()
    }

    fn prompt(&self) -> Option<Self::Prompt> {
        self.0.prompt()
    }

    fn set_prompt(&mut self, prompt: &Self::Prompt) {
        self.0.set_prompt(prompt);
    }
}

/// Everything that is read of a file.
type Whole = (Meta, Option<CaptureEnd>, Vec<Warning>, Vec<Record>, BadLines);
/// The same, or the message of what is wrong.
type Outcome = Result<Whole, String>;

fn plainly(path: &Path) -> Result<Whole, TraceError> {
    let lines = NumberedLines::of_bytes(&path.display().to_string(), fs::read(path).unwrap())?;
    let mut reader = RecordReader::<Plain>::start(lines)?;
    let (mut records, mut bad) = (Vec::new(), BadLines::default());
    while let Some((_, found)) = reader.next_sound(&mut bad)? {
        let Some(record) = found else { continue };
        records.push(kept(&record.0));
    }
    match bad.first.first() {
        Some(finding) if records.is_empty() => {
            Err(TraceError::Line { path: path.to_owned(), finding: finding.clone() })
        }
        _ => Ok((reader.meta, reader.end, reader.warnings, records, bad)),
    }
}

fn fast(path: &Path) -> Outcome {
    let store = load(path, &Arc::default()).map_err(|error| error.to_string())?;
    let records = store.iter().filter(|kept| !kept.is_lost()).map(|kept| kept.record()).collect();
    let file = store.files.into_iter().next().unwrap();
    Ok((store.meta, store.end, file.warnings, records, file.bad_lines))
}

/// Without what a store does not keep.
fn kept(record: &Record) -> Record {
    Record {
        chunks: record.chunks.iter().map(|chunk| super::Chunk { step: None, ..*chunk }).collect(),
        concurrency: None,
        mm_hashes: Arc::default(),
        request_id: None,
        endpoint: None,
        outcome: None,
        request_key: None,
        params: serde_json::Map::new(),
        session: None,
        request: None,
        text: None,
        events: None,
        extra: serde_json::Map::new(),
        ..record.clone()
    }
}

fn both_agree_on_file(name: &str, bytes: &[u8]) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    let plain = plainly(&path).map_err(|error| error.to_string());
    let fast = fast(&path);
    assert!(plain == fast, "{name}:\nplain {:?}\nfast {:?}", brief(&plain), brief(&fast));
    fast
}

fn brief(outcome: &Outcome) -> Result<(usize, &[Warning]), &str> {
    outcome.as_ref().map(|(_, _, warnings, records, _)| (records.len(), warnings.as_slice())).map_err(String::as_str)
}

fn both_agree_on_line(line: &[u8]) {
    let of = |raw: Result<raw::RawRecord, Vec<Defect>>| format!("{raw:?}");
    let line = line.trim_ascii();
    assert_eq!(of(raw::parse(line)), of(raw::parse_at_length(line)), "{}", String::from_utf8_lossy(line));
    let plain = Plain::parse(line).and_then(Plain::of_line).map(|record| Packed::from(record.0));
    assert_eq!(Packed::parse(line).and_then(Packed::of_line), plain, "{}", String::from_utf8_lossy(line));
}

fn number() -> impl Strategy<Value = String> {
    let odd = select(vec![
        "0",
        "-0",
        "1e999",
        "1e-400",
        "0.1e-5",
        "1E5",
        "01",
        "1.",
        ".5",
        "-1",
        "+1",
        "NaN",
        "null",
        "true",
        "\"1\"",
        "[1]",
        "0.000000000000000000001",
        "123456789012345678901234567890",
        "18446744073709551615",
        "18446744073709551616",
        "4294967295",
        "4294967296",
        "999999999999999.9",
        "9007199254740993",
        "4294.967295",
        "4294.967294",
        "9e15",
        " 7 ",
        "7\t",
        "1 2",
        "1.5e3",
        "0.00000049",
        "0.0000005",
        "1e",
        "--1",
        "1_0",
        "0x1",
        "",
    ]);
    prop_oneof![
        6 => (0_u64..20_000_000).prop_map(|micros| format!("{}.{:03}", micros / 1000, micros % 1000)),
        3 => any::<u32>().prop_map(|number| number.to_string()),
        1 => any::<f64>().prop_map(|number| serde_json::json!(number).to_string()),
        1 => odd.prop_map(str::to_owned),
    ]
}

fn numbers() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => vec(number(), 0..6).prop_map(|numbers| format!("[{}]", numbers.join(","))),
        1 => select(vec!["null", "[", "[]", "[ ]", "{}", "[1,]", "[,1]", "7", "[[1]]", "\"[1]\""]).prop_map(str::to_owned),
    ]
}

fn field() -> impl Strategy<Value = String> {
    let lists = select(vec!["itl_ms", "block_hashes", "output_token_ids", "itl_tokens", "itl\\u005fms", "itl_ms "]);
    let single =
        select(vec!["ttft_ms", "prompt_tokens", "arrival_ms", "e2e_ms", "prompt_hash", "cached_tokens", "status"]);
    let others = select(vec![
        r#""x":{"a":[1,{"b":"]}"}]}"#,
        r#""x":"\"\\""#,
        r#""x":1"#,
        r#""text":["a","\ud800"]"#,
        r#""y":"é\u0000""#,
        r#""finish_reason":"stop""#,
        r#""finish_reason":"no""#,
        r#""group":"g""#,
        r#""model":"m","choice":1"#,
        r#""itl_summary":{"mean_ms":1.5,"count":2}"#,
        r#""itl_ctx":{"num_running":[1],"prefill_tokens":[0]}"#,
        r#""":0"#,
        r#""meta":1"#,
        "7",
        r#""x""#,
        r#""x":"#,
        r#""x":[}"#,
    ]);
    prop_oneof![
        4 => (lists, numbers()).prop_map(|(key, numbers)| format!("\"{key}\":{numbers}")),
        3 => (single, number()).prop_map(|(key, number)| format!("\"{key}\" : {number}")),
        2 => others.prop_map(str::to_owned),
        1 => (1_usize..200).prop_map(|deep| format!("\"deep\":{}{}", "[".repeat(deep), "]".repeat(deep))),
    ]
}

/// A line that is nearly a record.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let sound = (vec(0_u32..9_000_000, 0..5), any::<[u64; 2]>(), any::<bool>()).prop_map(|(micros, hashes, ids)| {
        let mut text = format!(r#"{{"prompt_tokens":9,"output_tokens":{},"ttft_ms":1.5,"itl_ms":["#, micros.len() + 1);
        let gaps: Vec<String> = micros.iter().map(|micros| (f64::from(*micros) / 1e3).to_string()).collect();
        let _ = write!(text, "{}],\"block_hashes\":{hashes:?}", gaps.join(", "));
        if ids {
            let _ = write!(text, ",\"output_token_ids\":{:?}", vec![7; micros.len() + 1]);
        }
        text
    });
    (sound, vec(field(), 0..4), any::<bool>()).prop_map(|(sound, fields, first)| {
        let more = fields.join(",");
        match (fields.is_empty(), first) {
            (true, _) => format!("{sound}}}").into_bytes(),
            (_, true) => format!("{{{more},{}}}", sound.trim_start_matches('{')).into_bytes(),
            (_, false) => format!("{sound},{more}}}").into_bytes(),
        }
    })
}

/// A byte put in, put instead, or taken out.
fn damage(bytes: &mut Vec<u8>, (at, with, kind): (prop::sample::Index, u8, u8)) {
    if bytes.is_empty() {
        return;
    }
    let at = at.index(bytes.len());
    match kind % 3 {
        0 => bytes.insert(at, with),
        1 => bytes[at] = with,
        _ => {
            bytes.remove(at);
        }
    }
}

fn packed(plain: &[u8], member: usize) -> Vec<u8> {
    let pack = |part: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(part).unwrap();
        encoder.finish().unwrap()
    };
    plain.chunks(member.max(1)).flat_map(pack).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 400 } else { 20_000 }))]

    #[test]
    fn both_ways_agree_on_lines(mut line in line(), harm in prop::option::of(any::<(prop::sample::Index, u8, u8)>())) {
        if let Some(harm) = harm {
            damage(&mut line, harm);
        }
        line.retain(|byte| *byte != b'\n');
        both_agree_on_line(&line);
    }

    #[test]
    fn both_ways_agree_on_files(
        lines in vec(prop_oneof![9 => line(), 1 => select(vec![" ", "\r", "[]", "{}"]).prop_map(|text| text.into())], 0..6),
        has_meta in any::<bool>(),
        end in prop::option::of(0_u64..6),
        (newline, member) in (select(vec!["\n", "\r\n", "\n\n"]), prop::option::of(20_usize..2000)),
        harm in prop::option::of(any::<(prop::sample::Index, u8, u8)>()),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut all: Vec<Vec<u8>> = Vec::new();
        all.extend(has_meta.then(|| br#"{"meta":{"format":1,"model":"m"}}"#.to_vec()));
        all.extend(lines);
        all.extend(end.map(|records| format!(r#"{{"end":{{"records":{records}}}}}"#).into_bytes()));
        let plain = all.iter().flat_map(|line| [line, newline.as_bytes()].concat()).collect::<Vec<u8>>();
        let mut bytes = member.map_or(plain.clone(), |member| packed(&plain, member));
        if let Some(harm) = harm {
            damage(&mut bytes, harm);
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        let is_gzip = bytes.starts_with(&[0x1f, 0x8b]);
        let _outcome = both_agree_on_file(if is_gzip { "t.jsonl.gz" } else { "t.jsonl" }, &bytes);
    }
}

/// A file that is large enough to be unpacked on threads, and where its members start.
fn large() -> (Vec<u8>, Vec<usize>) {
    let mut state = 1_u64;
    let mut number = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        state >> 16
    };
    let (mut all, mut starts) = (Vec::new(), Vec::new());
    while all.len() as u64 <= gzip_members::WORTHWHILE {
        let mut text = String::new();
        while text.len() < 1_200_000 {
            let hashes: Vec<u64> = (0..200).map(|_| number()).collect();
            let _ =
                writeln!(text, r#"{{"prompt_tokens":9,"output_tokens":1,"ttft_ms":1.5,"block_hashes":{hashes:?}}}"#);
        }
        starts.push(all.len());
        all.extend(packed(text.as_bytes(), usize::MAX));
    }
    (all, starts)
}

type Harm<'a> = &'a dyn Fn(&mut Vec<u8>);

#[test]
fn both_ways_agree_on_large_files() {
    let (whole, starts) = large();
    assert!(both_agree_on_file("t.jsonl.gz", &whole).is_ok());
    let third = starts[3];
    let harms: [(&str, Harm<'_>); 7] = [
        ("cut short", &|bytes| bytes.truncate(bytes.len() - 4)),
        ("cut in a member", &|bytes| bytes.truncate(third + 100_000)),
        ("cut between members", &|bytes| bytes.truncate(third)),
        ("damaged header", &|bytes| bytes[third + 2] = 0),
        ("damaged data", &|bytes| bytes[third + 200_000] ^= 0x10),
        ("damaged checksum", &|bytes| bytes[third - 8] ^= 1),
        ("a member lost", &|bytes| drop(bytes.drain(third..starts[4]))),
    ];
    for (name, harm) in harms {
        let mut bytes = whole.clone();
        harm(&mut bytes);
        let outcome = both_agree_on_file("t.jsonl.gz", &bytes);
        let is_reported = outcome.as_ref().map_or(true, |(_, _, warnings, ..)| !warnings.is_empty());
        assert_eq!(is_reported, !["cut between members", "a member lost"].contains(&name), "{name}");
    }
}
