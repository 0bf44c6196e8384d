//! Places under which everything is a secret.

use super::{
    super::field_path::{FieldPath, PathStep},
    scan,
};

/// Progress of matching the path of a value with places: for each, the segments that the steps so far fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PathProgress {
    /// A place and the number of its segments that fit.
    fits: Vec<(usize, usize)>,
    /// Whether the value lies at or below a place.
    pub(super) is_covered: bool,
}

impl PathProgress {
    /// The way to the whole document.
    pub(super) fn start(places: &[FieldPath]) -> Self {
        let mut start = Self::default();
        (0..places.len()).for_each(|place| start.put(places, place, 0));
        start
    }

    /// Whether no further step can matter.
    pub(super) fn is_settled(&self) -> bool {
        self.is_covered || self.fits.is_empty()
    }

    /// The way that goes on with a step.
    pub(super) fn after(&self, places: &[FieldPath], step: &scan::ValueStep<'_>) -> Self {
        if self.is_settled() {
            return self.clone();
        }
        let mut next = Self::default();
        for (place, fitting) in &self.fits {
            match places.get(*place).and_then(|place| place.steps.get(*fitting)) {
                Some(PathStep::Anywhere) => next.put(places, *place, *fitting),
                Some(wanted) if fits(wanted, step) => next.put(places, *place, fitting + 1),
                _ => {}
            }
        }
        next
    }

    /// Adds so many fitting segments of a place; any number of steps may be none.
    fn put(&mut self, places: &[FieldPath], place: usize, fitting: usize) {
        if self.fits.contains(&(place, fitting)) {
            return;
        }
        let Some(path) = places.get(place) else { return };
        match path.steps.get(fitting) {
            None => self.is_covered = true,
            Some(PathStep::Anywhere) => {
                self.fits.push((place, fitting));
                self.put(places, place, fitting + 1);
            }
            Some(_) => self.fits.push((place, fitting)),
        }
    }
}

/// Whether a step is one that a place names. `*` stands for fields and for items here.
fn fits(wanted: &PathStep, step: &scan::ValueStep<'_>) -> bool {
    match (wanted, step) {
        (PathStep::Key(name), scan::ValueStep::Key(key)) => key.as_deref() == Some(name),
        (PathStep::Item(wanted), scan::ValueStep::Index(index)) => wanted == index,
        (PathStep::AnyKey | PathStep::AnyItem, _) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::{
        super::scan::ValueStep::{self, Index},
        PathProgress,
    };

    fn key(name: &str) -> ValueStep<'_> {
        ValueStep::Key(Some(Cow::Borrowed(name)))
    }

    #[test]
    fn places_cover_what_lies_below_them() {
        for (place, steps, covered) in [
            ("$.a", vec![key("a")], true),
            ("$.a", vec![key("a"), key("b")], true),
            ("$.a.b", vec![key("a")], false),
            ("$.a[1]", vec![key("a"), Index(1)], true),
            ("$.a[1]", vec![key("a"), Index(0)], false),
            ("$['a.b'][*].c", vec![key("a.b"), Index(7), key("c")], true),
            ("**.user", vec![key("user")], true),
            ("$..user", vec![key("x"), Index(3), key("user")], true),
            ("$..user.name", vec![key("user"), key("id")], false),
            ("$..user.name", vec![key("user"), key("user"), key("name")], true),
            ("$..a..b", vec![key("a"), key("x"), key("b")], true),
            ("$..a..b", vec![key("b"), key("a")], false),
            ("$.*", vec![key("x")], true),
        ] {
            let places = [place.parse().unwrap()];
            let reached =
                steps.iter().fold(PathProgress::start(&places), |progress, step| progress.after(&places, step));
            assert_eq!(reached.is_covered, covered, "{place}");
        }
    }
}
