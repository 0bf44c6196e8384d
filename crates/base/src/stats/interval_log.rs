//! Distributions as a log of HdrHistogram, version 1.3 with V2 histograms, which its tools and those of other languages read. Values are microseconds.

use std::{
    io::{self, Write},
    time::{Duration, SystemTime},
};

use hdrhistogram::serialization::{
    V2DeflateSerializer,
    interval_log::{IntervalLogWriterBuilder, IntervalLogWriterError, Tag},
};

use super::Durations;

/// Writes one line for each distribution, under its name as tag, of the time that began at `begin`. The largest value in each line is in milliseconds.
///
/// # Errors
/// When it cannot be written, or a name cannot be a tag: one with a comma, a space or a line end.
pub fn write(
    out: &mut impl Write,
    begin: SystemTime,
    took: Duration,
    distributions: &[(&str, &Durations)],
) -> io::Result<()> {
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("[Histogram log format version 1.3]")
        .with_start_time(begin)
        .with_base_time(begin)
        .with_max_value_divisor(1000.0)
        .begin_log_with(out, &mut serializer)?;
    for (name, durations) in distributions {
        let tag = Tag::new(name).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a name of a tag"))?;
        log.write_histogram(&durations.0.histogram, Duration::ZERO, took, Some(tag)).map_err(|error| match error {
            IntervalLogWriterError::IoError(error) => error,
            error @ IntervalLogWriterError::SerializeError(_) => io::Error::other(error),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hdrhistogram::{
        Histogram,
        serialization::{
            Deserializer,
            interval_log::{IntervalLogIterator, LogEntry},
        },
    };

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let mut durations = Durations::default();
        (1..=1000).for_each(|micros| durations.record(Duration::from_micros(micros * 10)));
        let (mut log, begin) = (Vec::new(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        write(&mut log, begin, Duration::from_secs(90), &[("ttft", &durations), ("e2e", &Durations::default())])
            .unwrap();
        let entries: Vec<LogEntry<'_>> = IntervalLogIterator::new(&log).map(Result::unwrap).collect();
        let mut read = Vec::new();
        for entry in &entries {
            if let LogEntry::Interval(line) = entry {
                let packed = base64(line.encoded_histogram());
                let histogram: Histogram<u64> = Deserializer::new().deserialize(&mut packed.as_slice()).unwrap();
                assert_eq!((line.start_timestamp(), line.duration()), (Duration::ZERO, Duration::from_secs(90)));
                read.push((line.tag().unwrap().as_str().to_owned(), histogram));
            }
        }
        assert_eq!(read.iter().map(|(tag, _)| &**tag).collect::<Vec<_>>(), ["ttft", "e2e"]);
        assert_eq!(read[0].1, durations.0.histogram);
        assert_eq!(read[1].1.len(), 0);
        assert!(entries.contains(&LogEntry::BaseTime(Duration::from_secs(1_700_000_000))));
        assert!(write(&mut Vec::new(), begin, Duration::ZERO, &[("a b", &durations)]).is_err());
    }

    /// Decodes base64 with padding.
    fn base64(text: &str) -> Vec<u8> {
        const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let bits = text.bytes().filter(|byte| *byte != b'=').flat_map(|byte| {
            let value = ALPHABET.bytes().position(|known| known == byte).unwrap();
            (0..6).rev().map(move |bit| u8::try_from((value >> bit) & 1).unwrap())
        });
        let bits: Vec<u8> = bits.collect();
        bits.chunks_exact(8).map(|eight| eight.iter().fold(0, |byte, bit| byte << 1 | bit)).collect()
    }
}
