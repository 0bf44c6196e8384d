//! Prometheus' text format: a table has a row for each family, and one writer makes a page of them.
//!
//! A row has a family's name, its help and how its samples are read from the state that counts them. Labels are written in the order of their
//! names, as Python's client does.

use std::{
    borrow::Cow,
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::histogram::{Histogram, float, number};

/// Labels in the order of their names.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Values of samples by the value of a label.
pub type ByLabel<'s> = Vec<(Cow<'s, str>, f64)>;

/// A family: its name, help and labels, and how its samples are read from the state `S` that counts them.
#[derive(Debug)]
pub struct MetricFamily<S: 'static> {
    /// Without the suffixes of its samples, as `_total` of a counter.
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    read: ValueReader<S>,
    is_by_source: bool,
}

#[derive(Debug)]
enum ValueReader<S: 'static> {
    Value(fn(&S) -> f64),
    By(&'static str, fn(&S) -> ByLabel<'_>),
    Histogram(fn(&S) -> &Histogram),
}

/// Labels of a source, a further label and the value.
type LabelledValue<'s> = (Labels<'s>, Option<Label<'s>>, f64);
type Label<'s> = (&'static str, Cow<'s, str>);

const fn family<S>(
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    read: ValueReader<S>,
) -> MetricFamily<S> {
    MetricFamily { name, help, kind, read, is_by_source: false }
}

/// A row of a gauge.
#[must_use]
pub const fn gauge<S>(name: &'static str, help: &'static str, read: fn(&S) -> f64) -> MetricFamily<S> {
    family(name, help, "gauge", ValueReader::Value(read))
}

/// A row of a counter; its name is without `_total`.
#[must_use]
pub const fn counter<S>(name: &'static str, help: &'static str, read: fn(&S) -> f64) -> MetricFamily<S> {
    family(name, help, "counter", ValueReader::Value(read))
}

/// A row of gauges by the value of a label. Of several sources, those with one value stand together.
#[must_use]
pub const fn gauge_by<S>(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    read: fn(&S) -> ByLabel<'_>,
) -> MetricFamily<S> {
    family(name, help, "gauge", ValueReader::By(label, read))
}

/// A row of counters by the value of a label. Of several sources, those with one value stand together.
#[must_use]
pub const fn counter_by<S>(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    read: fn(&S) -> ByLabel<'_>,
) -> MetricFamily<S> {
    family(name, help, "counter", ValueReader::By(label, read))
}

/// A row of a distribution.
#[must_use]
pub const fn histogram<S>(name: &'static str, help: &'static str, read: fn(&S) -> &Histogram) -> MetricFamily<S> {
    family(name, help, "histogram", ValueReader::Histogram(read))
}

impl<S> MetricFamily<S> {
    /// The same family, with all samples of a source together.
    #[must_use]
    pub const fn by_source(self) -> Self {
        Self { is_by_source: true, ..self }
    }

    /// The same family under another name.
    #[must_use]
    pub const fn renamed(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// Reads the samples; of a histogram one for each source, without its value.
    fn samples<'s>(&self, sources: &[(Labels<'s>, &'s S)]) -> Vec<LabelledValue<'s>> {
        let one = |read: fn(&S) -> f64| sources.iter().map(|(labels, state)| (*labels, None, read(state))).collect();
        match self.read {
            ValueReader::Value(read) => one(read),
            ValueReader::Histogram(_) => one(|_| 0.0),
            ValueReader::By(label, read) => {
                let mut samples = Vec::new();
                for (labels, state) in sources {
                    let values = read(state).into_iter().enumerate();
                    samples.extend(values.map(|(at, (name, value))| (at, (*labels, Some((label, name)), value))));
                }
                if !self.is_by_source {
                    samples.sort_by_key(|(at, _)| *at);
                }
                samples.into_iter().map(|(_, sample)| sample).collect()
            }
        }
    }
}

/// Notation of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberFormat {
    /// As by Python's client: all of them are floats, and a distribution's count comes before its sum.
    Python,
    /// Gauges and counters are whole numbers, and a distribution's count comes behind its sum.
    Whole,
}

/// A page that is written.
#[derive(Debug)]
pub struct Exposition {
    text: String,
    numbers: NumberFormat,
}

impl Exposition {
    /// An empty page with room for so many bytes.
    #[must_use]
    pub fn new(numbers: NumberFormat, capacity: usize) -> Self {
        Self { text: String::with_capacity(capacity), numbers }
    }

    /// The text so far.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    /// Writes families with the samples of some sources, each distinguished by its labels; nothing where there is no source.
    /// `created` is when counting began, in seconds since 1970, where that is a family of its own behind each counter and histogram.
    pub fn families<S>(&mut self, families: &[MetricFamily<S>], sources: &[(Labels<'_>, &S)], created: Option<f64>) {
        let families = if sources.is_empty() { &[] } else { families };
        for family in families {
            let MetricFamily { name, help, kind, .. } = *family;
            let suffix = if kind == "counter" { "_total" } else { "" };
            self.family(&format!("{name}{suffix}"), kind, help);
            let samples = family.samples(sources);
            if let ValueReader::Histogram(read) = family.read {
                sources.iter().for_each(|(labels, state)| self.histogram(name, labels, read(state)));
            } else {
                samples.iter().for_each(|(labels, label, value)| {
                    self.line((name, suffix), labels, label.as_ref(), *value);
                });
            }
            if let Some(created) = created.filter(|_| kind != "gauge") {
                self.family(&format!("{name}_created"), "gauge", help);
                for (labels, label, _) in &samples {
                    self.line((name, "_created"), labels, label.as_ref(), created);
                }
            }
        }
    }

    /// Begins a family: its name, its type and its help.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes a sample.
    pub fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        self.line((name, ""), labels, None, value);
    }

    /// Writes the samples of a distribution.
    pub fn histogram(&mut self, name: &str, labels: Labels<'_>, histogram: &Histogram) {
        for (bound, count) in histogram.cumulated() {
            self.head((name, "_bucket"), labels, Some(&("le", bound.into())));
            let _ = writeln!(self.text, " {}", number(count));
        }
        let mut ends = [("_count", histogram.total()), ("_sum", histogram.sum())];
        if self.numbers == NumberFormat::Whole {
            ends.reverse();
        }
        for (suffix, value) in ends {
            self.head((name, suffix), labels, None);
            let _ = writeln!(self.text, " {}", number(value));
        }
    }

    fn line(&mut self, name: (&str, &str), labels: Labels<'_>, label: Option<&Label<'_>>, value: f64) {
        self.head(name, labels, label);
        let _ = match self.numbers {
            NumberFormat::Python => writeln!(self.text, " {}", number(value)),
            NumberFormat::Whole => writeln!(self.text, " {value}"),
        };
    }

    /// Writes a sample without its value; a further label has its place among the others.
    fn head(&mut self, (name, suffix): (&str, &str), labels: Labels<'_>, label: Option<&Label<'_>>) {
        self.text.push_str(name);
        self.text.push_str(suffix);
        let label = label.map(|(name, value)| (*name, value.as_ref()));
        let before = label.map_or(0, |(name, _)| labels.partition_point(|(other, _)| *other < name));
        let labels = labels.iter().take(before).copied().chain(label).chain(labels.iter().skip(before).copied());
        let mut open = '{';
        for (name, value) in labels {
            let _ = write!(self.text, "{open}{name}=\"");
            for character in value.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '\n' => self.text.push_str("\\n"),
                    '"' => self.text.push_str("\\\""),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
            open = ',';
        }
        if open == ',' {
            self.text.push('}');
        }
    }
}

/// Reads a counter.
#[must_use]
pub fn read(counter: &AtomicU64) -> f64 {
    float(counter.load(Relaxed))
}

/// Reads values by name.
#[must_use]
pub fn labelled<'s, N: Into<Cow<'s, str>>>(values: impl IntoIterator<Item = (N, f64)>) -> ByLabel<'s> {
    values.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct State {
        count: AtomicU64,
        times: Histogram,
    }

    const FAMILIES: [MetricFamily<State>; 3] = [
        counter("requests", "Requests.", |state| read(&state.count)),
        gauge_by("waiting", "Waiting.", "reason", |_| labelled([("a\"b\\c\n", 1.0), ("other", 0.0)])),
        histogram("time_seconds", "Times.", |state| &state.times),
    ];

    fn page(numbers: NumberFormat, sources: usize, created: Option<f64>) -> String {
        let state = State { count: AtomicU64::new(1_000_000), times: Histogram::seconds(&[0.5]) };
        state.times.time(Duration::from_millis(250));
        let mut page = Exposition::new(numbers, 0);
        let labels = ["0", "1"].map(|engine| [("engine", engine), ("zone", "z")]);
        let sources: Vec<_> = labels.iter().take(sources).map(|labels| (labels.as_slice(), &state)).collect();
        page.families(&FAMILIES, &sources, created);
        page.into_text()
    }

    #[test]
    fn a_page_as_pythons_client_writes_it() {
        let expected = r#"# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{engine="0",zone="z"} 1e+06
requests_total{engine="1",zone="z"} 1e+06
# HELP requests_created Requests.
# TYPE requests_created gauge
requests_created{engine="0",zone="z"} 2.5
requests_created{engine="1",zone="z"} 2.5
# HELP waiting Waiting.
# TYPE waiting gauge
waiting{engine="0",reason="a\"b\\c\n",zone="z"} 1.0
waiting{engine="1",reason="a\"b\\c\n",zone="z"} 1.0
waiting{engine="0",reason="other",zone="z"} 0.0
waiting{engine="1",reason="other",zone="z"} 0.0
"#;
        let page = page(NumberFormat::Python, 2, Some(2.5));
        assert_eq!(page.get(..expected.len()), Some(expected));
        let expected = r#"time_seconds_bucket{engine="1",le="0.5",zone="z"} 1.0
time_seconds_bucket{engine="1",le="+Inf",zone="z"} 1.0
time_seconds_count{engine="1",zone="z"} 1.0
time_seconds_sum{engine="1",zone="z"} 0.25
# HELP time_seconds_created Times.
# TYPE time_seconds_created gauge
time_seconds_created{engine="0",zone="z"} 2.5
time_seconds_created{engine="1",zone="z"} 2.5
"#;
        assert!(page.ends_with(expected), "{page}");
    }

    #[test]
    fn whole_numbers_have_no_point() {
        let page = page(NumberFormat::Whole, 1, None);
        assert!(page.contains("requests_total{engine=\"0\",zone=\"z\"} 1000000\n"), "{page}");
        let ends = "time_seconds_sum{engine=\"0\",zone=\"z\"} 0.25\ntime_seconds_count{engine=\"0\",zone=\"z\"} 1.0\n";
        assert!(page.ends_with(ends), "{page}");
    }

    #[test]
    fn without_a_source_there_is_nothing() {
        assert_eq!(page(NumberFormat::Python, 0, None), "");
    }
}
