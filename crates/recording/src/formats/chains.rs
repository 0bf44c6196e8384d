//! Requests of a conversation that were recorded in one list although several agents sent them.
//!
//! An agent's prompt goes on with its prompt before. So a request belongs to the chain whose last prompt shares the longest prefix with it, among the
//! chains whose last request had ended; where that is less than half of the last prompt and another request is still on its way, a sub-agent
//! has begun. Where nothing is on its way, the agent has begun a new context.

use std::time::Duration;

/// Chains that a request may belong to. Further ones are forgotten, the one that ended first.
const MOST_CHAINS: usize = 64;

/// A request, in the order of their starts.
pub(super) struct SessionLink<'a> {
    pub(super) start: Duration,
    /// When it ended; its start where that is not known.
    pub(super) end: Duration,
    pub(super) ids: &'a [u64],
}

struct Chain<'a> {
    number: usize,
    end: Duration,
    last: &'a [u64],
}

/// Numbers of the chains of requests; the first request begins chain 0.
pub(super) fn split(links: &[SessionLink]) -> Vec<usize> {
    let mut chains: Vec<Chain> = Vec::new();
    let mut begun = 0;
    let mut numbers = Vec::with_capacity(links.len());
    for link in links {
        let number = goes_on(&chains, link).unwrap_or_else(|| {
            begun += 1;
            begun - 1
        });
        chains.retain(|chain| chain.number != number);
        if chains.len() >= MOST_CHAINS
            && let Some((first, _)) = chains.iter().enumerate().min_by_key(|(_, chain)| chain.end)
        {
            chains.remove(first);
        }
        let at = chains.partition_point(|chain| chain.number < number);
        chains.insert(at, Chain { number, end: link.end, last: link.ids });
        numbers.push(number);
    }
    numbers
}

/// The chain that a request goes on with; of equals the one that began first.
fn goes_on(chains: &[Chain], link: &SessionLink) -> Option<usize> {
    let is_alone = chains.iter().all(|chain| chain.end <= link.start);
    let shared = |chain: &Chain| chain.last.iter().zip(link.ids).take_while(|(one, other)| one == other).count();
    let ended = chains.iter().rev().filter(|chain| chain.end <= link.start);
    let (shared, best) = ended.map(|chain| (shared(chain), chain)).max_by_key(|(shared, _)| *shared)?;
    (is_alone || (shared > 0 && 2 * shared >= best.last.len())).then_some(best.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(requests: &[(f64, f64, &'static [u64])]) -> Vec<usize> {
        let link = |(start, end, ids): &(f64, f64, &'static [u64])| SessionLink {
            start: Duration::from_secs_f64(*start),
            end: Duration::from_secs_f64(*end),
            ids,
        };
        let links: Vec<_> = requests.iter().map(link).collect();
        split(&links)
    }

    #[test]
    fn parallel_agents_are_told_apart_by_their_prefixes() {
        // A root, two sub-agents that overlap with each other, and the root again after both.
        let requests: [(f64, f64, &[u64]); 6] = [
            (0.0, 1.0, &[1, 2]),
            (2.0, 4.0, &[1, 2, 3]),
            (3.0, 5.0, &[20, 21]),
            (4.5, 6.0, &[1, 2, 3, 4]),
            (5.5, 7.0, &[20, 21, 22]),
            (8.0, 9.0, &[1, 2, 3, 4, 5]),
        ];
        assert_eq!(numbers(&requests), [0, 0, 1, 0, 1, 0]);
    }

    #[test]
    fn a_context_that_begins_anew_is_no_sub_agent() {
        assert_eq!(numbers(&[(0.0, 1.0, &[1, 2, 3, 4]), (2.0, 3.0, &[9])]), [0, 0]);
        assert_eq!(numbers(&[(0.0, 1.0, &[]), (0.5, 3.0, &[]), (4.0, 5.0, &[])]), [0, 1, 0]);
    }

    #[test]
    fn many_chains_cost_no_more_than_a_few() {
        let all = numbers(&vec![(0.0, 1.0, &[1][..]); 20_000]);
        assert_eq!(all.iter().max(), Some(&19_999));
    }
}
