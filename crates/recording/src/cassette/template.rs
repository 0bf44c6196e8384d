//! Values of a request in a hand-written answer (`{{ model }}`), and conditions on a request (`when`): Jinja, as chat templates are
//! written in.
//!
//! A value that the request does not have is an error, not an empty text. A template runs so many instructions and makes so much text
//! at most.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    sync::Arc,
};

use minijinja::{
    Environment, Error, UndefinedBehavior,
    syntax::SyntaxConfig,
    value::{Object, Serde, Value as Jinja, merge_maps},
};
use serde_json::{Map, Value};

use base::causes::causes;

/// Instructions that a template may run.
const FUEL: u64 = 1_000_000;

/// Bytes that the templates of an answer may make together.
pub const LONGEST: usize = 16 << 20;

/// Values for templates.
#[derive(Debug, Clone)]
pub struct Variables(Jinja);

impl Variables {
    /// Takes the values by their names.
    #[must_use]
    pub fn new(values: &Map<String, Value>) -> Self {
        Self(Jinja::from(Serde(values.clone())))
    }

    /// Adds the groups of a match as `match`: by number, the whole match being 0, and those with names by these too.
    #[must_use]
    pub fn with_match(self, groups: &[(Option<String>, String)]) -> Self {
        let groups = Jinja::from_object(MatchGroups(groups.to_vec()));
        Self(merge_maps([self.0, Jinja::from_object(BTreeMap::from([("match", groups)]))]))
    }
}

#[derive(Debug)]
struct MatchGroups(Vec<(Option<String>, String)>);

impl Object for MatchGroups {
    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        let found = match key.as_str() {
            Some(name) => self.0.iter().find(|(own, _)| own.as_deref() == Some(name)),
            None => self.0.get(key.as_usize()?),
        };
        found.map(|(_, text)| Jinja::from(text.as_str()))
    }
}

/// Text that a template makes, up to a length.
struct TemplateOutput {
    text: Vec<u8>,
    left: usize,
}

impl io::Write for TemplateOutput {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        match self.left.checked_sub(more.len()) {
            Some(left) => self.left = left,
            None => return Err(io::Error::other("the answer would be longer than 16 MiB")),
        }
        self.text.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn environment<'a>() -> Environment<'a> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    if let Ok(syntax) = SyntaxConfig::builder().keep_trailing_newline(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_fuel(Some(FUEL));
    environment
}

/// Returns whether a text is a template: it has values or blocks in braces.
#[must_use]
pub fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%")
}

/// Checks the spelling of a template.
///
/// # Errors
/// What is wrong with it.
pub fn check(text: &str) -> Result<(), String> {
    environment().template_from_str(text).map(drop).map_err(|error| reason(&error))
}

/// Checks the spelling of an expression.
pub(crate) fn check_expression(text: &str) -> Result<(), String> {
    environment().compile_expression(text).map(drop).map_err(|error| reason(&error))
}

/// Fills the values into a text; `left` is the room for texts, which becomes less.
///
/// # Errors
/// A value that is not there, or a text that is too long.
pub fn filled(text: &str, values: &Variables, left: &mut usize) -> Result<String, String> {
    if !is_template(text) {
        return Ok(text.to_owned());
    }
    let environment = environment();
    let template = environment.template_from_str(text).map_err(|error| reason(&error))?;
    let mut out = TemplateOutput { text: Vec::new(), left: *left };
    let rendered = template.render_captured_to(values.0.clone(), &mut out);
    rendered.map_err(|error| with_names(reason(&error), template.undeclared_variables(false), values, &environment))?;
    *left = out.left;
    Ok(String::from_utf8_lossy(&out.text).into_owned())
}

/// Returns whether an expression is true.
///
/// # Errors
/// A value that is not there, or another error of the expression.
pub fn holds(expression: &str, values: &Variables) -> Result<bool, String> {
    let environment = environment();
    let expression = environment.compile_expression(expression).map_err(|error| reason(&error))?;
    let named = |why: String| with_names(why, expression.undeclared_variables(false), values, &environment);
    let value = expression.eval(values.0.clone()).map_err(|error| named(reason(&error)))?;
    if value.is_undefined() {
        return Err(named("it names a value that the request does not have".to_owned()));
    }
    Ok(value.is_true())
}

/// A reason that is a value which is not there, with the names of those that a template has and that are not.
fn with_names(why: String, names: HashSet<String>, values: &Variables, environment: &Environment<'_>) -> String {
    if !why.ends_with("value") && !why.ends_with("not have") {
        return why;
    }
    let is_missing = |name: &String| {
        let is_there = values.0.get_attr(name).is_ok_and(|value| !value.is_undefined());
        !is_there && environment.globals().all(|(global, _)| global != name)
    };
    let mut missing: Vec<String> = names.into_iter().filter(is_missing).collect();
    missing.sort_unstable();
    if missing.is_empty() { why } else { format!("{why}: {}", missing.join(", ")) }
}

/// The innermost reason of an error, in one line.
fn reason(error: &Error) -> String {
    let text = causes(error).last().map(ToString::to_string).unwrap_or_default();
    // It ends with the name that a template has here.
    text.split(" (in ").next().unwrap_or(&text).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn values() -> Variables {
        let body = json!({"model": "m", "messages": [{"content": "a"}, {"content": "b"}], "n": 3});
        Variables::new(body.as_object().unwrap())
    }

    #[test]
    fn values_are_filled_in_and_missing_ones_are_errors() {
        let filled = |text: &str| filled(text, &values(), &mut 100);
        assert_eq!(filled("{{ model }}: {{ messages[-1].content }} {{ n + 1 }}\n"), Ok("m: b 4\n".to_owned()));
        assert_eq!(filled("no } template {"), Ok("no } template {".to_owned()));
        assert_eq!(filled("{% raw %}{{ model }}{% endraw %}"), Ok("{{ model }}".to_owned()));
        for missing in ["{{ nothing }}", "{{ messages[7].content }}", "{{ messages[0].words }}"] {
            assert!(filled(missing).is_err(), "{missing}");
        }
        assert_eq!(filled("{{ range(2) }} {{ base_time }}"), Err("undefined value: base_time".to_owned()));
        assert!(holds("nothing", &values()).unwrap_err().ends_with(": nothing"));
        assert!(check("{{ model").is_err() && check("{{ model | upper }}").is_ok());
    }

    #[test]
    fn what_a_template_makes_is_bounded() {
        let mut left = 10;
        assert!(filled("{{ 'x' * 8 }}", &values(), &mut left).is_ok());
        assert_eq!(left, 2);
        assert!(filled("{{ 'x' * 3 }}", &values(), &mut left).is_err());
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        assert!(filled(endless, &values(), &mut 100).is_err());
    }

    #[test]
    fn expressions_are_true_or_not_or_wrong() {
        assert_eq!(holds("n > 2 and messages|length == 2", &values()), Ok(true));
        assert_eq!(holds("messages[-1].content == 'a'", &values()), Ok(false));
        assert!(holds("nothing", &values()).is_err() && holds("messages[9].content == 'a'", &values()).is_err());
        assert!(check_expression("n >").is_err());
    }
}
