//! The page of the docs that tells how every exchange came out.

use std::{fmt::Write, fs};

use super::Lookup;
use crate::support::tree;

const PAGE: &str = "docs/src/reference/wire-fidelity.md";

const HEAD: &str = "\
# Wire fidelity

Every exchange that was recorded with vLLM 0.32.0, sent to `play` and compared: status, headers, fields and their order, nulls, values, number and order of
events, error bodies. Ids, times, fingerprints, log probabilities and the tokens that they rank are not compared, nor on pages of metrics
the values, the machine's own families, and the series of HTTP handlers; one keep-alive comment more or less is let pass. This page is written by
the test that compares (`tests/it/differential`), which fails when it is stale or when an answer differs without a reason.

";

/// Fails when the page in the docs is not what came out; writes it under `UPDATE_REFERENCE`.
pub(super) fn check(rows: &[(&str, &Lookup)]) {
    let page = render(rows);
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(tree::root().join(PAGE), &page).unwrap();
    }
    let fresh = page == tree::read(PAGE);
    assert!(fresh, "{PAGE} is stale; run `UPDATE_REFERENCE=1 cargo test --test it differential` and commit it");
}

fn render(rows: &[(&str, &Lookup)]) -> String {
    let count = |wanted: fn(&Lookup) -> bool| rows.iter().filter(|(_, verdict)| wanted(verdict)).count();
    let same = count(|verdict| *verdict == Lookup::Same);
    let inapplicable = count(|verdict| matches!(verdict, Lookup::Inapplicable(_)));
    let applicable = rows.len() - inapplicable;
    let mut page = HEAD.to_owned();
    let share = same as f64 * 100.0 / applicable as f64;
    let _ = writeln!(page, "{same} of {applicable} are the same ({share:.1} %); {inapplicable} do not apply.\n");
    page.push_str("| case | result | why |\n|---|---|---|\n");
    for (name, verdict) in rows {
        let (result, why) = match verdict {
            Lookup::Same => ("same", ""),
            Lookup::Differs(why) => ("differs", why.as_str()),
            Lookup::Inapplicable(why) => ("not applicable", why.as_str()),
        };
        let _ = writeln!(page, "| `{name}` | {result} | {why} |");
    }
    page
}
