//! How many requests of a trace were there at once: for each record the most while it was answered.

use std::time::Duration;

use recording::trace::Store;
use replay::meter;

/// For each record the most requests at any moment between its arrival and its end, itself too; 1 where these are unknown. One that ends
/// as another begins was not there with it.
pub(crate) fn recorded(records: &Store) -> Vec<u32> {
    let interval = |record: usize| {
        let record = records.get(record)?.record();
        let arrival = record.arrival?;
        Some((arrival, arrival.saturating_add(meter::e2e(&record)?)))
    };
    let intervals: Vec<_> = (0..records.len()).map(interval).collect();
    most_at_once(&intervals)
}

fn most_at_once(intervals: &[Option<(Duration, Duration)>]) -> Vec<u32> {
    let known = intervals.iter().enumerate().filter_map(|(record, interval)| Some((record, (*interval)?)));
    let known = known.filter(|(_, (begin, end))| begin < end);
    // Ends come before beginnings at the same time.
    let mut moments: Vec<(Duration, bool, usize)> =
        known.flat_map(|(record, (begin, end))| [(begin, true, record), (end, false, record)]).collect();
    moments.sort_unstable();
    let (mut most, mut began) = (vec![1; intervals.len()], vec![0; intervals.len()]);
    // Numbers of moments with what was there from then on: the most first, and behind each what came later and was less.
    let (mut there, mut peaks): (u32, Vec<(usize, u32)>) = (0, Vec::new());
    for (number, (_, begins, record)) in moments.into_iter().enumerate() {
        let (Some(began), Some(most)) = (began.get_mut(record), most.get_mut(record)) else { continue };
        if begins {
            there += 1;
            *began = number;
            while peaks.pop_if(|(_, earlier)| *earlier <= there).is_some() {}
            peaks.push((number, there));
        } else {
            let since = peaks.partition_point(|(at, _)| at < began);
            *most = peaks.get(since).map_or(there, |(_, peak)| *peak);
            there -= 1;
            peaks.push((number, there));
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(intervals: &[(u64, u64)]) -> Vec<u32> {
        let seconds = Duration::from_secs;
        most_at_once(&intervals.iter().map(|(begin, end)| Some((seconds(*begin), seconds(*end)))).collect::<Vec<_>>())
    }

    #[test]
    fn each_record_has_the_most_that_were_there_with_it() {
        assert_eq!(most(&[(0, 10), (2, 4), (3, 5), (4, 6), (20, 21), (21, 22)]), [3, 3, 3, 3, 1, 1]);
        assert_eq!(most(&[(0, 2), (1, 3), (2, 9), (4, 5), (4, 5), (4, 5)]), [2, 2, 4, 4, 4, 4]);
        assert!(most(&[]).is_empty());
    }

    #[test]
    fn a_record_without_times_was_alone() {
        let second = Duration::from_secs(1);
        assert_eq!(most_at_once(&[None, Some((second, second * 3)), Some((second * 2, second * 4))]), [1, 2, 2]);
        assert_eq!(most_at_once(&[Some((second, second))]), [1]);
    }

    /// The same by looking at every moment.
    #[test]
    fn drawn_intervals_agree_with_counting_them() {
        let mut state = 7_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let count = draw(12);
            let mut interval = || {
                let at = draw(20);
                (at, at + 1 + draw(9))
            };
            let intervals: Vec<(u64, u64)> = (0..count).map(|_| interval()).collect();
            let at = |moment: u64| intervals.iter().filter(|(begin, end)| (*begin..*end).contains(&moment)).count();
            let counted = intervals.iter().map(|(begin, end)| (*begin..*end).map(at).max().unwrap());
            let counted: Vec<u32> = counted.map(|count| u32::try_from(count).unwrap()).collect();
            assert_eq!(most(&intervals), counted, "{intervals:?}");
        }
    }
}
