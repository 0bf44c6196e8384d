//! Text comes id by id as the tokenizers library gives it, whatever the ids are.

use std::fs::File;

use tokenizers::{Tokenizer, tokenizer::step_decode_stream};
use vllm_vcr::{play::Player, text::prompt::SkipSpecial};
use xxhash_rust::xxh3::xxh3_64_with_seed;

#[derive(Default)]
struct Library {
    ids: Vec<u32>,
    prefix: String,
    prefix_index: usize,
}

impl Library {
    fn push(&mut self, tokenizer: &Tokenizer, id: u32, skip: bool) -> tokenizers::Result<Option<String>> {
        step_decode_stream(tokenizer, vec![id], skip, &mut self.ids, &mut self.prefix, &mut self.prefix_index)
    }
}

/// Random ids of the whole vocabulary, incomplete characters and special tokens included, one after a random prompt.
#[test]
fn text_comes_as_the_library_gives_it() {
    let packed = File::open("traces/smollm2-135m/tokenizer.json.gz").unwrap();
    let json = std::io::read_to_string(flate2::read::GzDecoder::new(packed)).unwrap();
    let library: Tokenizer = json.parse().unwrap();
    let tokenizer = Player::builtin_tokenizer().unwrap();
    let (mut told, mut broken) = (0, 0);
    for seed in 0_u64..400 {
        let mut drawn = 0_u64;
        let mut draw = |below: u32| {
            drawn += 1;
            u32::try_from(xxh3_64_with_seed(&drawn.to_le_bytes(), seed) % u64::from(below)).unwrap()
        };
        // The first ids are special tokens and single bytes; a third is drawn among them.
        let mut id = || if draw(3) == 0 { draw(300) } else { draw(tokenizer.vocab_size() + 5) };
        let prompt: Vec<u32> = (0..seed % 7).map(|_| id()).collect();
        let skips = seed % 2 == 0;
        let mut ours = tokenizer.detokenizer(&prompt, if skips { SkipSpecial::Skip } else { SkipSpecial::Keep });
        let mut theirs = Library { ids: prompt, ..Library::default() };
        for _ in 0..60 {
            let id = id();
            let expected = theirs.push(&library, id, skips).or_else(|_| {
                // Where the library loses its place, vLLM starts again.
                theirs = Library::default();
                theirs.push(&library, id, skips)
            });
            let expected = expected.unwrap().unwrap_or_default();
            assert_eq!(ours.push(id).unwrap(), expected, "seed {seed}, id {id}");
            told += usize::from(!expected.is_empty());
            broken += usize::from(expected.contains('\u{fffd}'));
        }
    }
    assert!(told > 1000 && broken > 100, "{told} texts, {broken} of them broken");
}
