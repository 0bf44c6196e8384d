//! What was typed, and tags of flags: what a flag needs so that it has an effect.
//!
//! A tag is a group of clap whose name begins with `@`; a struct of arguments, if no other is flattened into it, is a group of its own name. What a tag means is in the tables
//! of `play` ([`sources`](super::play::sources)) and of `tap` ([`tap`](super::tap)).

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, builder::PossibleValue, parser::ValueSource};

/// A command that was built, with its own defaults, and what was typed for it.
#[derive(Debug)]
pub(in crate::cli) struct Typed<'a> {
    pub(in crate::cli) command: Command,
    matches: &'a ArgMatches,
}

impl<'a> Typed<'a> {
    /// Takes the command `name` of the program; `None` if there is none.
    pub(in crate::cli) fn new(program: &Command, name: &str, matches: &'a ArgMatches) -> Option<Self> {
        let mut command = program.find_subcommand(name)?.clone();
        command.build();
        Some(Self { command, matches })
    }

    /// Lists the flags that have one of these tags, or are in one of these structs.
    pub(in crate::cli) fn tagged<'b>(&'b self, tags: &'b [&'b str]) -> impl Iterator<Item = &'b Arg> {
        self.command.get_arguments().filter(move |flag| tags_of(&self.command, flag).any(|tag| tags.contains(&tag)))
    }

    /// Returns true if the command line or the environment has a flag.
    pub(in crate::cli) fn is_typed(&self, id: &str) -> bool {
        is_typed(self.matches, id)
    }

    /// Returns true if a flag has another value than its default.
    pub(in crate::cli) fn is_changed(&self, flag: &Arg) -> bool {
        let id = flag.get_id().as_str();
        match flag.get_action() {
            ArgAction::SetTrue => self.matches.get_flag(id),
            _ => self.matches.contains_id(id) && !self.values(flag).iter().eq(flag.get_default_values()),
        }
    }

    /// Returns true if a flag was typed, or set by the environment or the configuration file, whose values are defaults of the command.
    pub(in crate::cli) fn is_given(&self, flag: &Arg) -> bool {
        let is_switch = matches!(flag.get_action(), ArgAction::SetTrue);
        (!is_switch && self.is_typed(flag.get_id().as_str())) || self.is_changed(flag)
    }

    /// A flag as a message names it: behind its variable where that has set it.
    pub(in crate::cli) fn shown(&self, flag: &Arg) -> String {
        let is_set = self.matches.value_source(flag.get_id().as_str()) == Some(ValueSource::EnvVariable);
        match flag.get_env().filter(|_| is_set) {
            Some(variable) => format!("{} (--{})", variable.to_string_lossy(), name_of(flag)),
            None => format!("--{}", name_of(flag)),
        }
    }

    /// The values of a flag as its help has them, not by another name.
    pub(in crate::cli) fn values(&self, flag: &Arg) -> Vec<String> {
        let raw = self.matches.try_get_raw(flag.get_id().as_str()).ok().flatten();
        let known = flag.get_possible_values();
        let named = |value: &str| {
            known.iter().find(|known| known.matches(value, false)).map_or(value, PossibleValue::get_name).to_owned()
        };
        raw.into_iter().flatten().map(|value| named(&value.to_string_lossy())).collect()
    }
}

/// Returns true if the command line or the environment has the value of a flag.
pub(in crate::cli) fn is_typed(matches: &ArgMatches, id: &str) -> bool {
    matches!(matches.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

/// Finds the name that was probably meant by a word.
pub(in crate::cli) fn likely<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let alike = names.map(|name| (strsim::jaro_winkler(word, name), name)).filter(|(likeness, _)| *likeness > 0.7);
    alike.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// The long name of a flag, or that of what stands alone.
pub(in crate::cli) fn name_of(flag: &Arg) -> &str {
    flag.get_long().unwrap_or_else(|| flag.get_id().as_str())
}

/// The tags of a flag, then the name of its struct; the command has to be built.
pub(in crate::cli) fn tags_of<'a>(command: &'a Command, flag: &'a Arg) -> impl Iterator<Item = &'a str> {
    let groups = command.get_groups().filter(|group| group.get_args().any(|id| id == flag.get_id()));
    groups.map(|group| group.get_id().as_str())
}

/// Declares tags, so that flags with the same one may be typed together.
pub(in crate::cli) fn with_tags(command: Command, tags: impl Iterator<Item = &'static str>) -> Command {
    command.groups(tags.filter(|tag| tag.starts_with('@')).map(|tag| ArgGroup::new(tag).multiple(true)))
}
