//! Log probabilities in an engine's outputs: arrays of numbers with their type and shape, whose bytes stand in the message or in a frame of
//! their own.

use super::msgpack::MsgpackCursor;
use recording::trace::{PromptLogprobs, RankedLogprob, RankedLogprobs, SpelledToken, TokenLogprobs};

/// An array of numbers.
struct Tensor<'a> {
    kind: NumberKind,
    /// Number of columns of an array of two dimensions; 1 of one dimension.
    columns: usize,
    data: &'a [u8],
}

#[derive(Clone, Copy, PartialEq)]
enum NumberKind {
    Int32,
    Int64,
    Float32,
}

impl<'a> Tensor<'a> {
    /// Reads `[type, shape, data]`: data is bytes, or the number of a frame after the first one.
    fn read(cursor: &mut MsgpackCursor<'a>, further: &'a [Vec<u8>]) -> Option<Self> {
        (cursor.array()? == 3).then_some(())?;
        let kind = match cursor.text()? {
            "<i4" | "int32" => NumberKind::Int32,
            "<i8" | "int64" => NumberKind::Int64,
            "<f4" | "float32" => NumberKind::Float32,
            _ => return None,
        };
        let shape = cursor.ids()?;
        let data = match cursor.data() {
            Some(data) => data,
            None => further.get(usize::try_from(cursor.uint()?).ok()?.checked_sub(1)?)?,
        };
        let size = |count: u32| usize::try_from(count).ok();
        let (rows, columns) = match shape.as_slice() {
            [rows] => (size(*rows)?, 1),
            [rows, columns] => (size(*rows)?, size(*columns)?),
            _ => return None,
        };
        (rows.checked_mul(columns)?.checked_mul(kind.bytes())? == data.len()).then_some(())?;
        Some(Self { kind, columns, data })
    }

    /// Returns the rows, each with the bytes of its numbers.
    fn rows(&self) -> impl Iterator<Item = &'a [u8]> {
        self.data.chunks_exact((self.columns * self.kind.bytes()).max(1))
    }

    fn ids(&self, row: &[u8]) -> Option<Vec<u32>> {
        row.chunks_exact(self.kind.bytes()).map(|number| u32::try_from(self.kind.integer(number)?).ok()).collect()
    }
}

impl NumberKind {
    fn bytes(self) -> usize {
        if self == Self::Int64 { 8 } else { 4 }
    }

    fn integer(self, bytes: &[u8]) -> Option<i64> {
        match self {
            Self::Int32 => Some(i32::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::Int64 => Some(i64::from_le_bytes(bytes.try_into().ok()?)),
            Self::Float32 => None,
        }
    }
}

fn float(bytes: &[u8]) -> Option<f64> {
    Some(f32::from_le_bytes(bytes.try_into().ok()?).into())
}

/// The three arrays of log probabilities: ids and log probabilities, a row for each token, and the rank of each token.
fn arrays<'a>(cursor: &mut MsgpackCursor<'a>, further: &'a [Vec<u8>]) -> Option<[Tensor<'a>; 3]> {
    (cursor.array()? >= 3).then_some(())?;
    let [ids, values, ranks] = std::array::from_fn(|_| Tensor::read(cursor, further));
    let (ids, values, ranks) = (ids?, values?, ranks?);
    (values.kind == NumberKind::Float32 && ids.columns == values.columns && ids.columns > 0).then_some(())?;
    Some([ids, values, ranks])
}

/// Reads the log probabilities of output tokens: of each token first its own, then those of the candidates by their rank.
pub(super) fn logprobs<'a>(cursor: &mut MsgpackCursor<'a>, further: &'a [Vec<u8>]) -> Option<Vec<TokenLogprobs>> {
    let [ids, values, _ranks] = arrays(cursor, further)?;
    let mut tokens = Vec::new();
    for (own, row) in ids.rows().zip(values.rows()) {
        let (own, row) = (ids.ids(own)?, row.chunks_exact(4).map(float).collect::<Option<Vec<f64>>>()?);
        let mut candidates = own.iter().copied().zip(row);
        let (sampled, logprob) = candidates.next()?;
        let others = candidates.filter(|(id, _)| *id != sampled);
        tokens.push(TokenLogprobs {
            text: None,
            logprob: Some(logprob).filter(|logprob| logprob.is_finite()),
            others: others
                .filter(|(_, logprob)| logprob.is_finite())
                .map(|(id, logprob)| (SpelledToken::Id(id), logprob))
                .collect(),
        });
    }
    Some(tokens)
}

/// Reads the log probabilities of a prompt's tokens, of which the first has none.
pub(super) fn prompt_logprobs<'a>(cursor: &mut MsgpackCursor<'a>, further: &'a [Vec<u8>]) -> Option<PromptLogprobs> {
    let [ids, values, ranks] = arrays(cursor, further)?;
    let mut tokens = vec![RankedLogprobs::default()];
    for ((own, row), rank) in ids.rows().zip(values.rows()).zip(ranks.rows()) {
        let (own, rank) = (ids.ids(own)?, ranks.kind.integer(rank)?);
        let row = row.chunks_exact(4).map(float).collect::<Option<Vec<f64>>>()?;
        let sampled = own.first().copied();
        let places = std::iter::once(u32::try_from(rank).ok()?).chain(1..);
        let ranked = own.into_iter().zip(row).zip(places).enumerate();
        let kept = ranked.filter(|(at, ((id, logprob), _))| (*at == 0 || Some(*id) != sampled) && logprob.is_finite());
        tokens.push(RankedLogprobs(
            kept.map(|(_, ((id, logprob), rank))| RankedLogprob { id, logprob, rank, text: None }).collect(),
        ));
    }
    Some(PromptLogprobs { top: u32::try_from(ids.columns - 1).ok()?, tokens })
}
