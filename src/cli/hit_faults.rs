//! Faults that a server let happen on purpose, for people: of one that was scraped, and of this one at its end.

use crate::{base::one_line::counted, drive::scrape::HitFaults};

/// Maximum number of faults that are shown.
const MOST_SHOWN: usize = 20;

/// The lines of them; none where nothing happened.
pub(in crate::cli) fn lines(faults: &HitFaults) -> Vec<String> {
    match faults {
        HitFaults::Hits(hits) if hits.is_empty() => Vec::new(),
        HitFaults::Hits(hits) => {
            let shown = hits.iter().take(MOST_SHOWN).map(|line| format!("  --fault '{line}'"));
            let first = format!("{} happened; each of these flags repeats one:", counted(hits.len(), "fault"));
            let more = hits.len().checked_sub(MOST_SHOWN).filter(|more| *more > 0);
            [first].into_iter().chain(shown).chain(more.map(|more| format!("  and {more} more"))).collect()
        }
        HitFaults::Unknown(why) => vec![format!("faults unknown: {why}")],
    }
}
