//! Random changes to the files of `tests/fuzz/corpus`, and how long a run of them lasts.

use std::{
    fs,
    path::Path,
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

/// What is put in, besides what is there.
const WORDS: [&[u8]; 20] = [
    b"\r\n",
    b"\n\n",
    b"\r\n\r\n",
    b"data: ",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"{\"choices\":[",
    b"null",
    b"\"",
    b"\\u0000",
    b"HTTP/1.1 ",
    b"content-length: 5\r\n",
    b"content-length: 18446744073709551615\r\n",
    b"transfer-encoding: chunked\r\n",
    b"connection: close\r\n",
    b"expect: 100-continue\r\n",
    b"[",
    b"-1",
    b"\xff\xfe",
    b"\0",
];

/// The files of a folder of the corpus, in the order of their names.
pub(crate) fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

/// An input, or two of them, with some bytes changed.
pub(crate) fn changed(inputs: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
    let mut bytes = inputs[random.random_range(0..inputs.len())].clone();
    for _ in 0..random.random_range(0..6) {
        let at = random.random_range(0..=bytes.len());
        let end = (at + random.random_range(0..12)).min(bytes.len());
        match random.random_range(0..7) {
            0 => drop(bytes.drain(at..end)),
            1 => bytes.truncate(at),
            2 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.random()),
            3 => drop(bytes.splice(at..at, bytes[at..end].to_vec().repeat(3))),
            4 => {
                let other = &inputs[random.random_range(0..inputs.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[random.random_range(0..=other.len())..]);
            }
            _ => drop(bytes.splice(at..at, WORDS[random.random_range(0..WORDS.len())].iter().copied())),
        }
    }
    bytes
}

/// Panics outside of the tests since the program began.
pub(crate) fn panics() -> usize {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.location().is_some_and(|place| {
                place.file().starts_with("src/") || place.file().starts_with("crates/") || place.file().starts_with('/')
            }) {
                COUNT.fetch_add(1, Relaxed);
            }
            before(info);
        }));
    });
    COUNT.load(Relaxed)
}

/// Bytes cut at random, none of the pieces empty.
pub(crate) fn cut(bytes: &[u8], random: &mut StdRng) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(random.random_range(1..=rest.len().min(200)));
        pieces.push(piece.to_vec());
        rest = after;
    }
    pieces
}

/// How long a run is, and where its draws begin.
pub(crate) struct Run {
    until: Option<Instant>,
    rounds: usize,
    pub(crate) random: StdRng,
}

impl Run {
    pub(crate) fn short() -> Self {
        Self::short_of(12)
    }

    pub(crate) fn short_of(rounds: usize) -> Self {
        Self { until: None, rounds, random: StdRng::seed_from_u64(5) }
    }

    pub(crate) fn long() -> Self {
        let seconds = std::env::var("VCR_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
        let seed = std::env::var("VCR_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
        let until = Some(Instant::now() + Duration::from_secs(seconds));
        eprintln!("seed {seed}");
        Self { until, rounds: usize::MAX, random: StdRng::seed_from_u64(seed) }
    }

    pub(crate) fn goes_on(&mut self) -> bool {
        self.rounds = self.rounds.saturating_sub(1);
        self.rounds > 0 && self.until.is_none_or(|until| Instant::now() < until)
    }
}

/// What no input takes, in an optimised build and in another: a quadratic loop over [`MOST_BYTES`] takes far longer.
const LONGEST: Duration = Duration::from_secs(if cfg!(debug_assertions) { 120 } else { 20 });

/// What an input is no longer than, in a run for [`VCR_FUZZ_SECONDS`](Run::long) and in a short one.
const MOST_BYTES: (usize, usize) = (2 << 20, 16 << 10);

impl Run {
    /// An input of the corpus, changed; one in eight has a part of it repeated up to the limit of bytes.
    pub(crate) fn input(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let most = if self.until.is_some() { MOST_BYTES.0 } else { MOST_BYTES.1 };
        let mut bytes = changed(inputs, &mut self.random);
        if !bytes.is_empty() && self.random.random_range(0..8) == 0 {
            let at = self.random.random_range(0..bytes.len());
            let end = (at + self.random.random_range(1..400)).min(bytes.len());
            let times = self.random.random_range(1..=most / (end - at));
            let repeated = bytes[at..end].repeat(times);
            bytes.splice(at..end, repeated);
        }
        bytes.truncate(most);
        bytes
    }

    /// Calls a function with changed inputs of a folder of the corpus, each within its limit of time.
    pub(crate) fn each_input(mut self, folder: &str, mut check: impl FnMut(&[u8], &mut StdRng) + Send) {
        let inputs = corpus(folder);
        let mut cases = 0;
        while self.goes_on() {
            let input = self.input(&inputs);
            within_limit(&input, || check(&input, &mut self.random));
            cases += 1;
        }
        eprintln!("{cases} inputs of {folder}");
    }
}

/// Runs one case; ends the program where it takes too long, and leaves its input in a file.
pub(crate) fn within_limit<T: Send>(input: &[u8], case: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let (done, waits) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            if waits.recv_timeout(LONGEST) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let path = std::env::temp_dir().join(format!("vcr-slow-input-{}", std::process::id()));
                let written = fs::write(&path, input);
                eprintln!("an input of {} bytes takes more than {LONGEST:?}: {path:?} {written:?}", input.len());
                std::process::abort();
            }
        });
        let value = case();
        drop(done);
        value
    })
}
