//! Finds what the program is built from, for `--version` and for results: the commit, the lock file, the features, the target and the profile.
//!
//! It runs again when a source has changed, which builds the program anyway; a commit of other files does not. So the commit is the one that was checked
//! out when the sources were last changed: `-dirty` where they were not yet committed then, `unknown` without git.

#![allow(clippy::print_stdout, reason = "cargo reads it")]
#![allow(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::many_single_char_names,
    reason = "SHA-256 as its definition has it"
)]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What the program is made of.
const SOURCES: [&str; 5] = ["Cargo.toml", "Cargo.lock", "build.rs", "crates", "src"];

fn main() {
    for source in SOURCES.into_iter().filter(|source| Path::new(source).exists()) {
        println!("cargo::rerun-if-changed={source}");
    }
    let commit = packaged_commit().or_else(commit).unwrap_or_else(|| "unknown".to_owned());
    let lock = fs::read("Cargo.lock").map_or_else(|_| "unknown".to_owned(), |lock| format!("sha256:{}", sha256(&lock)));
    for (name, value) in [
        ("COMMIT", commit),
        ("LOCK", lock),
        ("FEATURES", features()),
        ("TARGET", env::var("TARGET").unwrap_or_default()),
        ("PROFILE", profile()),
    ] {
        println!("cargo::rustc-env=VLLM_VCR_{name}={value}");
    }
}

/// Features of the package that are on, separated by commas.
fn features() -> String {
    let names =
        env::vars().filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase().replace('_', "-")));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.join(",")
}

/// The profile by its own name: the folder of the target directory that this is built in. `PROFILE` knows debug and release only.
fn profile() -> String {
    let folder = env::var_os("OUT_DIR").map(PathBuf::from);
    let name = folder.as_deref().and_then(|folder| folder.ancestors().nth(3)?.file_name()?.to_str());
    name.map(str::to_owned).or_else(|| env::var("PROFILE").ok()).unwrap_or_default()
}

/// The commit that a package was made of, as `cargo package` notes it.
fn packaged_commit() -> Option<String> {
    let noted = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, after) = noted.split_once("\"sha1\"")?;
    let commit = after.split('"').nth(1).filter(|commit| is_commit(commit))?;
    Some(if noted.contains("\"dirty\": true") { format!("{commit}-dirty") } else { commit.to_owned() })
}

/// The commit that is checked out here; `None` if the package is not at the top of a repository of its own.
fn commit() -> Option<String> {
    let top = fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()?;
    if top != fs::canonicalize(env::var_os("CARGO_MANIFEST_DIR")?).ok()? {
        return None;
    }
    let commit = git(&["rev-parse", "HEAD"]).filter(|commit| is_commit(commit))?;
    let changes = git(&[&["status", "--porcelain", "--untracked-files=no", "--"], &SOURCES[..]].concat())?;
    Some(if changes.is_empty() { commit } else { format!("{commit}-dirty") })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim_end().to_owned())
}

fn is_commit(text: &str) -> bool {
    text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// SHA-256 in hexadecimal digits, as FIPS 180-4 defines it: a crate for it would be compiled before everything else.
fn sha256(message: &[u8]) -> String {
    let primes: Vec<u32> = (2..312).filter(|number| (2..*number).all(|divisor| number % divisor != 0)).collect();
    // The first 32 bits of the fractions of roots of primes.
    let fraction = |root: f64| (root.fract() * 4_294_967_296.0) as u32;
    let constants: Vec<u32> = primes.iter().map(|prime| fraction(f64::from(*prime).cbrt())).collect();
    let mut state: Vec<u32> = primes.iter().take(8).map(|prime| fraction(f64::from(*prime).sqrt())).collect();
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize((padded.len() + 8).div_ceil(64) * 64 - 8, 0);
    padded.extend((message.len() as u64 * 8).to_be_bytes());
    for block in padded.chunks_exact(64) {
        let mut words: Vec<u32> =
            block.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]])).collect();
        for at in 16..64 {
            let (near, far) = (words[at - 15], words[at - 2]);
            let near = near.rotate_right(7) ^ near.rotate_right(18) ^ (near >> 3);
            let far = far.rotate_right(17) ^ far.rotate_right(19) ^ (far >> 10);
            words.push(words[at - 16].wrapping_add(near).wrapping_add(words[at - 7]).wrapping_add(far));
        }
        let mut mixed = state.clone();
        for (word, constant) in words.iter().zip(&constants) {
            let [a, b, c, d, e, f, g, h] = mixed[..] else { break };
            let sum = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let first =
                h.wrapping_add(sum).wrapping_add((e & f) ^ (!e & g)).wrapping_add(*constant).wrapping_add(*word);
            let sum = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let second = sum.wrapping_add((a & b) ^ (a & c) ^ (b & c));
            mixed = vec![first.wrapping_add(second), a, b, c, d.wrapping_add(first), e, f, g];
        }
        state.iter_mut().zip(mixed).for_each(|(state, mixed)| *state = state.wrapping_add(mixed));
    }
    state.iter().map(|word| format!("{word:08x}")).collect()
}
