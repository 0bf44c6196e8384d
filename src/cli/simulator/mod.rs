//! llm-d-inference-sim's command line, as one of `play`.
//!
//! Under the name `llm-d-inference-sim` (a link, or the entry point of an image) the program takes that simulator's arguments, variables and
//! YAML files and serves what it serves. `play` takes the same arguments: one flag that only the simulator has, and those of both have the
//! simulator's meaning and defaults. What each flag becomes is data, `table.tsv`; `given` reads arguments as the simulator does, `meaning`
//! makes flags of `play` of them. Flags without an effect are named, and none of the simulator's is refused. What its table does not have is left to `play`.
//!
//! See docs/decisions/0140-another-simulators-command-line.md.

mod given;
mod meaning;

use std::{any::TypeId, ffi::OsString, path::Path, sync::LazyLock};

use clap::{
    Command,
    error::{ContextKind, ContextValue},
};

use crate::cli::{
    failure::Failure,
    output::shell_word,
    values::Secret,
    vllm_flags::{self, ValueCount},
};
use given::{GivenFlags, is_true, with_yaml};
use meaning::Meaning;

/// The name under which the program is that simulator.
const NAME: &str = "llm-d-inference-sim";

/// What a flag without an effect becomes.
const NO_EFFECT: &str = "none";

/// Columns of a screen.
const COLUMNS: usize = 100;

const TABLE: &str = include_str!("table.tsv");

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SimulatorFlag {
    name: &'static str,
    values: ValueCount,
    /// A flag of `play`, or a word.
    becomes: &'static str,
    note: &'static str,
}

/// A command line for `play`, and notes about it.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::cli) struct Translated {
    pub(in crate::cli) arguments: Vec<OsString>,
    pub(in crate::cli) notes: Vec<String>,
    /// True where it is another one than what was typed.
    pub(in crate::cli) is_other: bool,
}

/// Makes a command line for `play` of one for the simulator; any other stays as it is.
/// Errors: a YAML file that cannot be read, and a value that the simulator refuses too.
pub(in crate::cli) fn translate(
    command: &Command,
    arguments: &[OsString],
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Translated, Failure> {
    let unchanged = || Translated { arguments: arguments.to_vec(), notes: Vec::new(), is_other: false };
    let Some((program, typed)) = arguments.split_first() else { return Ok(unchanged()) };
    let has_name = Path::new(program).file_name().is_some_and(|name| name == NAME);
    if has_name && let Some(words) = asks(typed) {
        let arguments = std::iter::once(program.clone()).chain(words.iter().map(OsString::from)).collect();
        return Ok(Translated { arguments, notes: Vec::new(), is_other: false });
    }
    let is_play = |at: &usize| typed.get(*at).is_some_and(|word| word == "play");
    let (before, typed) = match vllm_flags::command_at(command, typed).filter(is_play) {
        _ if has_name => (vec![program.clone(), "play".into()], typed),
        Some(at) => (arguments.iter().take(at + 2).cloned().collect(), typed.get(at + 1..).unwrap_or_default()),
        None => return Ok(unchanged()),
    };
    let end = typed.iter().position(|argument| argument == "--").unwrap_or(typed.len());
    let (typed, after) = typed.split_at(end);
    let all = with_yaml(typed)?;
    let given = GivenFlags::read(&all, has_name)?;
    if !has_name && !given.flags.iter().any(|(name, values)| is_only_the_simulators(command, name, values)) {
        let mut notes = Vec::new();
        let more = enables_adapters(&given, &mut notes);
        let words = without_empty_words(command, all);
        let arguments = before.into_iter().chain(words).chain(more).chain(after.iter().cloned()).collect();
        return Ok(Translated { arguments, notes, is_other: false });
    }
    let Meaning { flags, mut notes } = meaning::of(&given, has_name, variable)?;
    notes.extend(given.notes);
    let flags: Vec<OsString> = flags.into_iter().map(OsString::from).chain(given.others).collect();
    notes.push(shown(command, &flags));
    let arguments = before.into_iter().chain(flags).chain(after.iter().cloned()).collect();
    Ok(Translated { arguments, notes, is_other: true })
}

/// The page that `-h` and `--help` show under the simulator's name; `None` where they are not typed there.
pub(in crate::cli) fn help(arguments: &[OsString]) -> Option<String> {
    let (program, typed) = arguments.split_first()?;
    let has_name = Path::new(program).file_name().is_some_and(|name| name == NAME);
    let is_asked = typed.last().is_some_and(|word| word == "-h" || word == "--help");
    if !has_name || !is_asked || typed.iter().any(|word| word == "play") {
        return None;
    }
    let mut lines = vec![" ".to_owned()];
    for flag in rows().iter().filter(|row| row.becomes != NO_EFFECT).map(|row| format!(" --{}", row.name)) {
        match lines.last_mut().filter(|line| line.len() + flag.len() <= COLUMNS) {
            Some(line) => line.push_str(&flag),
            None => lines.push(format!(" {flag}")),
        }
    }
    let others = rows().iter().filter(|row| row.becomes == NO_EFFECT).count();
    Some(format!(
        "vllm-vcr under the name of {NAME}: it takes that simulator's arguments, variables and\nYAML files, and serves what it \
         serves.\n\nUsage: {NAME} --model MODEL [FLAGS]\n\nFlags:\n{}\n\n{others} more flags of the simulator are taken, have no effect here, \
         and are named where they are used.\n\nMore: `{NAME} --help-all` explains the flags of `vllm-vcr play`, which are taken too.\n",
        lines.join("\n")
    ))
}

/// What the program is asked about itself: its version, or the help of `play`, which has the flags of both.
fn asks(typed: &[OsString]) -> Option<&'static [&'static str]> {
    let [word] = typed else { return None };
    match word.to_str()? {
        "--version" | "-V" => Some(&["--version"]),
        "--help-all" => Some(&["play", "--help", "all"]),
        _ => None,
    }
}

/// Leaves out of an error what is about `play`'s command line, which nobody typed.
pub(in crate::cli) fn without_usage(error: &mut clap::Error) {
    error.remove(ContextKind::Usage);
    let tip = format!("`{NAME} --help-all` lists the flags");
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
}

/// The command line as one for `play`, which may be typed instead, but for its secrets.
fn shown(command: &Command, flags: &[OsString]) -> String {
    let mut hides = false;
    let words = flags.iter().map(|word| {
        let text = word.to_string_lossy();
        let (flag, value) = text.split_once('=').map_or((&*text, None), |(flag, value)| (flag, Some(value)));
        if !flag.starts_with('-') {
            return if hides { "…".to_owned() } else { shell_word(&text) };
        }
        hides = is_secret(command, flag);
        if hides && value.is_some() { format!("{flag}=…") } else { shell_word(&text) }
    });
    let words: Vec<String> = words.collect();
    format!("{NAME}'s arguments translated to `play`: vllm-vcr play {}", words.join(" "))
}

/// Checks whether the values of a flag of `play` are never printed.
fn is_secret(command: &Command, flag: &str) -> bool {
    let name = flag.trim_start_matches("--").replace('_', "-");
    vllm_flags::own_flag(command, &name).is_some_and(|flag| flag.get_value_parser().type_id() == TypeId::of::<Secret>())
}

/// Arguments without the empty words of templates, which would be models; those that are a flag's value stay.
fn without_empty_words(command: &Command, arguments: Vec<OsString>) -> Vec<OsString> {
    let mut is_value = false;
    let kept = arguments.into_iter().filter(|word| {
        let flag = word.to_str().filter(|text| text.starts_with('-') && !text.contains('='));
        let takes_next = flag.is_some_and(|flag| vllm_flags::takes_value(command, flag));
        let is_kept = !word.is_empty() || is_value;
        is_value = takes_next;
        is_kept
    });
    kept.collect()
}

/// Adapters that are named are served: the simulator has no flag that enables them.
fn enables_adapters(given: &GivenFlags, notes: &mut Vec<String>) -> Option<OsString> {
    let is_enabled = given.has("enable-lora") || given.has("no-enable-lora");
    if !given.flags.contains_key("lora-modules") || is_enabled {
        return None;
    }
    notes.push("--lora-modules enables LoRA adapters; vLLM needs --enable-lora beside it".to_owned());
    Some("--enable-lora".into())
}

/// Checks whether neither `play` nor vLLM has a flag of this name; `--mode`, which `play` has too, is distinguished by its value.
fn is_only_the_simulators(command: &Command, name: &str, values: &[String]) -> bool {
    let is_mode = || name == "mode" && values.iter().all(|value| matches!(value.as_str(), "echo" | "random"));
    name != "config" && (is_mode() || !vllm_flags::is_known(command, name))
}

fn rows() -> &'static [SimulatorFlag] {
    static ROWS: LazyLock<Vec<SimulatorFlag>> = LazyLock::new(|| {
        let row = |[name, values, becomes, note]: [&'static str; 4]| SimulatorFlag {
            name,
            values: ValueCount::read(values),
            becomes,
            note,
        };
        vllm_flags::columns(TABLE).map(row).collect()
    });
    &ROWS
}

fn row_of(name: &str) -> Option<&'static SimulatorFlag> {
    rows().iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str, variables: &[(&str, &str)]) -> Result<(String, Vec<String>), String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let Translated { arguments, notes, .. } =
            translate(&crate::cli::command(), &words, &variable).map_err(|failure| failure.text())?;
        let words: Vec<String> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Ok((words.join(" "), notes))
    }

    #[test]
    fn what_only_the_simulator_has_makes_all_of_it_the_simulators() {
        let (line, notes) = translated("v play --mode echo --time-to-first-token=0 --port 1", &[]).unwrap();
        for part in ["--engine", "--synthetic echo", "--time-to-first-token 0", "--port 1", "--max-num-seqs 5"] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(!line.contains("--host") && !line.contains("--simulator-endpoints"), "{line}");
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert_eq!(translated("llm-d-inference-sim --version", &[]).unwrap().0, "llm-d-inference-sim --version");
        let (help_all, notes) = translated("llm-d-inference-sim --help-all", &[]).unwrap();
        assert_eq!((help_all.as_str(), notes.len()), ("llm-d-inference-sim play --help all", 0));
        let empty = ["v", "play", "--root-path", "", "--port=1", ""].map(OsString::from);
        let Translated { arguments, .. } = translate(&crate::cli::command(), &empty, &|_| None).unwrap();
        assert_eq!(arguments, empty.get(..5).unwrap());
        for switch in ["--mm-encoder-only", "--enforce-eager", "--enable_prefix_caching", "-v", "--no-async-scheduling"]
        {
            let words = ["v", "play", "--model=x", switch, ""].map(OsString::from);
            let Translated { arguments, .. } = translate(&crate::cli::command(), &words, &|_| None).unwrap();
            assert_eq!(arguments, words.get(..4).unwrap());
        }
        for same in [
            "v play --port 1 --max-num-seqs 2",
            "v play --mode once",
            "v tap --mode once",
            "v tap --trace-out play --mode echo",
            "v --config play tap --mode echo",
            "v play -- x --mode echo",
            "v",
            "",
        ] {
            assert_eq!(translated(same, &[]), Ok((same.to_owned(), Vec::new())));
        }
    }

    #[test]
    fn keys_are_not_printed() {
        let words = "v play --mode echo --api-key sk-1 sk-2 --port 1 --api_key=sk-3 --admin-token sk-4";
        let (line, notes) = translated(words, &[]).unwrap();
        assert!((1..5).all(|number| line.contains(&format!("sk-{number}"))), "{line}");
        let note = notes.last().unwrap();
        assert!(!note.contains("sk-") && note.contains("--api-key … …") && note.contains("--api_key=…"), "{note}");
    }

    #[test]
    fn a_file_stands_after_what_was_typed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("y.yaml");
        let line = |file: &str, more: &str| {
            std::fs::write(&path, file).unwrap();
            translated(&format!("v play MODEL --config {} {more}", path.display()), &[]).unwrap()
        };
        let (plain, _) = line("max_loras: 3\nserved-model-name: [a]\n", "");
        assert_eq!(plain, "v play MODEL --max-loras=3 --served-model-name a");
        let (simulated, notes) = line("log_dir: /l\nmax-loras: 3\n", "--max_loras 2 --mode echo");
        assert!(!simulated.contains("--max-loras") && !simulated.contains("log"), "{simulated}");
        assert!(notes.iter().any(|note| note.starts_with("--log_dir has no effect")), "{notes:?}");
    }

    #[test]
    fn under_its_name_the_program_is_the_simulator() {
        let (line, notes) = translated(
            "/app/llm-d-inference-sim --v=5 --seed -1 --render-url http://r:1 --strict",
            &[("SIM_MODEL", "m"), ("POD_IP", "10.0.0.7")],
        )
        .unwrap();
        for part in [
            "play -v -v",
            "--host 0.0.0.0",
            "--simulator-endpoints",
            "--seed 18446744073709551615",
            "--model m",
            "--strict",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(notes.first().unwrap().starts_with("--render-url has no effect"), "{notes:?}");
        assert!(notes.last().unwrap().contains("vllm-vcr play -v"), "{notes:?}");
    }

    #[test]
    fn latencies_are_those_of_the_calculator() {
        let of = |more: &str| translated(&format!("v play --mode random {more}"), &[]).unwrap().0;
        let both = "--time-to-first-token 1s --prefill-overhead 1ms --kv-cache-transfer-latency 2ms --kv-cache-transfer-time-per-token 1us";
        for (calculator, is_constant) in [("", true), ("constant", true), ("per-token", false)] {
            let line = of(&format!("--latency-calculator={calculator} {both}"));
            assert_eq!(line.contains("--prefill-overhead"), !is_constant, "{line}");
            assert_eq!(line.contains("--time-to-first-token 1s"), is_constant, "{line}");
            assert_eq!(line.contains("--kv-cache-transfer-time-per-token"), !is_constant, "{line}");
        }
        assert!(of("--prefill-time-per-token 1ms").contains("--prefill-time-per-token 1ms"));
        let error = translated("v play --mode echo --latency-calculator quick", &[]).unwrap_err();
        assert!(error.contains("constant"), "{error}");
    }

    #[test]
    fn a_cache_holds_the_longest_request() {
        let (line, notes) =
            translated("v play --mode echo --enable-kvcache=true --kv-cache-size=8 --block-size=8", &[]).unwrap();
        assert!(line.contains("--num-gpu-blocks-override 129"), "{line}");
        assert!(notes.iter().any(|note| note.contains("129 blocks")), "{notes:?}");
        assert!(line.contains("--kv-events-encoding array") && line.contains("tcp://127.0.0.1:5557"), "{line}");
        assert!(line.contains("--enable-prompt-tokens-details") && line.contains("@{model}\""), "{line}");
        for (flags, variables) in [("--model m", &[][..]), ("", &[("SIM_MODEL", "m")])] {
            let words = format!("llm-d-inference-sim --enable-kvcache --no-omni --served-model-name alias {flags}");
            let (line, notes) = translated(&words, variables).unwrap();
            assert!(line.contains("kv@{ip}:{port}@m\"") && notes.len() == 1, "{line} {notes:?}");
        }
        let (line, _) = translated("v play --mode echo --enable-kvcache=false --kv-cache-size 200", &[]).unwrap();
        assert!(line.contains("--num-gpu-blocks-override 200") && !line.contains("--kv-events-config"), "{line}");
    }

    #[test]
    fn adapters_that_are_named_are_served() {
        let (line, notes) = translated("v play --lora-modules a=/a", &[]).unwrap();
        assert!(line.ends_with("--enable-lora") && notes.len() == 1, "{line}");
        assert_eq!(translated("v play --enable-lora --lora-modules a=/a", &[]).unwrap().1, Vec::<String>::new());
    }

    #[test]
    fn words_that_the_simulator_passes_over_are_no_model() {
        let (line, notes) = translated("llm-d-inference-sim --model m --enable-kvcache true", &[]).unwrap();
        assert!(!line.split(' ').any(|word| word == "true"), "{line}");
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(translated("v play --enable-kvcache=maybe", &[]).unwrap_err().contains("--enable-kvcache"));
        assert!(translated("v play --mode", &[]).unwrap_err().contains("--mode"));
    }

    #[test]
    fn every_row_is_one_of_the_words_or_a_flag() {
        let command = crate::cli::command();
        let lines = TABLE.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!((rows().len(), lines > 90), (lines, true));
        for SimulatorFlag { name, becomes, note, .. } in rows() {
            match *becomes {
                "none" | "some" | "default" => assert!(!note.is_empty(), "{name}"),
                "=" => assert!(vllm_flags::is_known(&command, name), "{name}"),
                flag => assert!(vllm_flags::is_known(&command, flag.strip_prefix("--").unwrap()), "{name}"),
            }
        }
    }
}
