//! Samples of a page in Prometheus' text format, as a server sends it.
//!
//! Lines that are none are left out: pages come from servers that nobody here has checked. Format:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use super::histogram::number;

/// A sample of a page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scraped<'a> {
    /// Its name, with the suffix: `_total` of a counter, `_sum`, `_count` and `_bucket` of a histogram.
    pub name: &'a str,
    /// What stands between the braces.
    labels: &'a str,
    /// Its value, which may be infinite or no number.
    pub value: f64,
}

impl<'a> Scraped<'a> {
    /// Returns the value of a label, with its escapes.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (key, after) = rest.split_once('=')?;
            let after = after.trim_start().strip_prefix('"')?;
            let end = closing_quote(after)?;
            let value = after.get(..end)?;
            if key.trim_matches([',', ' ', '\t']) == name {
                return Some(value);
            }
            rest = after.get(end + 1..)?;
        }
    }
}

/// Reads the samples of a page, in its order.
pub fn samples(page: &str) -> impl Iterator<Item = Scraped<'_>> {
    page.lines().filter_map(sample)
}

/// Returns true if a family has a sample or a line of this name: its own, or one with a suffix.
#[must_use]
pub fn is_of_family(name: &str, family: &str) -> bool {
    let suffix = name.strip_prefix(family);
    suffix.is_some_and(|suffix| ["", "_total", "_created", "_bucket", "_count", "_sum"].contains(&suffix))
}

/// The page with other values where `other` has some, as this program writes numbers.
#[must_use]
pub fn with_values(page: &str, mut other: impl FnMut(&Scraped<'_>) -> Option<f64>) -> String {
    let mut text = String::with_capacity(page.len());
    for line in page.split_inclusive('\n') {
        let value = sample(line).and_then(|sample| other(&sample));
        match value.zip(line.trim_end().rsplit_once(' ')) {
            Some((value, (head, _))) => text.extend([head, " ", &number(value), "\n"]),
            None => text.push_str(line),
        }
    }
    text
}

/// The page without a family.
#[must_use]
pub fn without_family(page: &str, family: &str) -> String {
    let is_kept = |line: &&str| {
        let of_comment = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        let name = of_comment.map(|rest| rest.split(' ').next().unwrap_or_default().trim_end());
        let name = name.or_else(|| sample(line).map(|sample| sample.name));
        !name.is_some_and(|name| is_of_family(name, family))
    };
    page.split_inclusive('\n').filter(is_kept).collect()
}

/// Returns the sum of the samples of this name, whatever their labels; `None` where there are none with a finite value.
#[must_use]
pub fn sum(page: &str, name: &str) -> Option<f64> {
    let values = samples(page).filter(|sample| sample.name == name && sample.value.is_finite());
    values.map(|sample| sample.value).reduce(|one, other| one + other)
}

/// Returns their mean.
#[must_use]
pub fn mean(page: &str, name: &str) -> Option<f64> {
    let count = samples(page).filter(|sample| sample.name == name && sample.value.is_finite()).count();
    sum(page, name).map(|sum| sum / count as f64)
}

fn sample(line: &str) -> Option<Scraped<'_>> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at_checked(end)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => {
            let end = closing_brace(inside)?;
            (inside.get(..end)?, inside.get(end + 1..)?)
        }
        None => ("", rest),
    };
    // A timestamp may follow.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    (!name.is_empty()).then_some(Scraped { name, labels, value })
}

/// The place of the quote that ends a value.
fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !is_escaped => return Some(at),
            b'\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    None
}

/// The place of the brace that ends the labels; values may hold braces.
fn closing_brace(text: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let rest = text.get(from..)?;
        let at = rest.find(['}', '"'])?;
        if rest.get(at..)?.starts_with('}') {
            return Some(from + at);
        }
        from += at + 1;
        from += closing_quote(text.get(from..)?)? + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP a Queue.\n# TYPE a gauge\na{engine=\"0\",model=\"x } y \\\" z\"} 3.0\na{engine=\"1\"} 4 1700000000000\n\
                        b 1e3\nc_total NaN\nd +Inf\n  e{} 5\n{} 1\nbroken{x=\"1 2\nbroken\nbroken{} x\n";

    #[test]
    fn values_are_replaced_and_families_left_out() {
        let page =
            "# HELP a_total Of \"a\".\n# TYPE a_total counter\na_total{x=\"} 1\"} 1.0\n# TYPE ab gauge\nab 2.0\n";
        let other = with_values(page, |sample| (sample.name == "a_total").then_some(f64::NAN));
        assert_eq!(other, page.replace("} 1.0", "} NaN"));
        assert_eq!(with_values(page, |_| None), page);
        assert_eq!(without_family(page, "a"), "# TYPE ab gauge\nab 2.0\n");
        assert_eq!(without_family(page, "b"), page);
    }

    #[test]
    fn samples_are_read_with_their_labels_and_damaged_lines_are_left_out() {
        let names: Vec<_> = samples(PAGE).map(|sample| sample.name).collect();
        assert_eq!(names, ["a", "a", "b", "c_total", "d", "e"]);
        assert_eq!((sum(PAGE, "a"), mean(PAGE, "a")), (Some(7.0), Some(3.5)));
        assert_eq!(
            (sum(PAGE, "b"), sum(PAGE, "c_total"), sum(PAGE, "d"), sum(PAGE, "f")),
            (Some(1000.0), None, None, None)
        );
        let first = samples(PAGE).next().unwrap();
        assert_eq!((first.label("engine"), first.label("model")), (Some("0"), Some("x } y \\\" z")));
        assert_eq!((first.label("odel"), first.label("none")), (None, None));
    }

    #[test]
    fn no_page_panics() {
        for text in
            ["{", "a{", "a{\"", "a{b", "a{b=}", "a{b=\"}", "a{b=\"\\", "é{é=\"é\"} 1", "a{b=\"c\"", "=\"", "a{=\"\"} 1"]
        {
            for sample in samples(text) {
                assert_eq!(sample.label("zz"), None, "{text}");
            }
        }
    }
}
