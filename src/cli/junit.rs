//! JUnit's XML of cases that passed or failed.

use crate::cli::escape;

/// A case; without a failure it passed.
pub(in crate::cli) struct JunitCase {
    pub(in crate::cli) name: String,
    pub(in crate::cli) failure: Option<String>,
}

impl JunitCase {
    /// The case of a run that was stopped, which has not passed whatever else has.
    pub(in crate::cli) fn stopped(is_stopped: bool) -> Option<Self> {
        let failure = Some("stopped before everything was checked".to_owned());
        is_stopped.then(|| Self { name: "stopped".to_owned(), failure })
    }
}

/// Writes a suite of cases. Control characters, most of which XML cannot have, are shown.
pub(in crate::cli) fn junit(suite: &str, cases: &[JunitCase]) -> String {
    let escaped = |text: &str| {
        let text = escape::text(text).replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
        text.replace('\n', "&#10;")
    };
    let written = |case: &JunitCase| {
        let failure = case.failure.as_ref().map(|failure| format!("<failure message=\"{}\"/>", escaped(failure)));
        let (name, failure) = (escaped(&case.name), failure.unwrap_or_default());
        format!("  <testcase classname=\"{suite}\" name=\"{name}\">{failure}</testcase>\n")
    };
    let failures = cases.iter().filter(|case| case.failure.is_some()).count();
    let (tests, cases) = (cases.len(), cases.iter().map(written).collect::<String>());
    format!("<testsuite name=\"{suite}\" tests=\"{tests}\" failures=\"{failures}\">\n{cases}</testsuite>\n")
}
