//! Places under which everything is a secret.

use super::{
    super::field_path::{FieldPath, Step},
    scan,
};

impl FieldPath {
    /// Whether a value lies at or below this place. `*` stands for fields and for items here.
    pub(super) fn covers(&self, steps: &[scan::Step<'_>]) -> bool {
        covers(&self.steps, steps)
    }
}

fn covers(place: &[Step], steps: &[scan::Step<'_>]) -> bool {
    let Some((wanted, place)) = place.split_first() else { return true };
    if *wanted == Step::Anywhere {
        return (0..steps.len()).any(|skipped| covers(place, steps.get(skipped..).unwrap_or_default()));
    }
    let Some((step, steps)) = steps.split_first() else { return false };
    let fits = match (wanted, step) {
        (Step::Key(name), scan::Step::Key(key)) => key.as_deref() == Some(name),
        (Step::Item(wanted), scan::Step::Index(index)) => wanted == index,
        (Step::AnyKey | Step::AnyItem, _) => true,
        _ => false,
    };
    fits && covers(place, steps)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::{
        super::scan::Step::{self, Index},
        FieldPath,
    };

    fn key(name: &str) -> Step<'_> {
        Step::Key(Some(Cow::Borrowed(name)))
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
            ("$.*", vec![key("x")], true),
        ] {
            assert_eq!(place.parse::<FieldPath>().unwrap().covers(&steps), covered, "{place}");
        }
    }
}
