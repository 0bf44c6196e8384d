//! A script of replicas' lives: a YAML list of events with their times.
//!
//! An event has `at` (a duration from the start of the server), `replica` (a number from 0), and either `do` (`die` or `start`) or `slower` (how many
//! times longer its steps take from then on).

use std::time::Duration;

use ::faults::Fault;
use base::units::{duration_text, parse_duration};
use recording::yaml::{self, YamlError, YamlNode};

/// Largest factor of a slow replica.
const SLOWEST: f64 = 1000.0;

/// Events in the order of their times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FleetScript {
    pub(super) events: Vec<ScriptEvent>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ScriptEvent {
    /// From the start of the server.
    pub(super) at: Duration,
    pub(super) replica: usize,
    pub(super) change: ReplicaChange,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ReplicaChange {
    /// Connections are cut, and the port refuses new ones.
    Die,
    /// It is there again, with an empty cache.
    Start,
    /// Its steps take so many times as long.
    Slower(f64),
}

/// A script that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ScriptError {
    /// Where, from 1.
    pub line: usize,
    /// Problem, and what to do.
    pub message: String,
}

impl FleetScript {
    /// Reads a script for so many replicas.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn parse(text: &str, replicas: u32) -> Result<Self, ScriptError> {
        let root = yaml::parse(text).map_err(|YamlError { line, message }| ScriptError { line, message })?;
        let no_list = "a list of events is needed, such as `- {at: 30s, replica: 2, do: die}`";
        let items = root.items().filter(|items| !items.is_empty()).ok_or_else(|| wrong(&root, no_list))?;
        let mut events = Vec::with_capacity(items.len());
        for item in items {
            events.push((event(item, replicas)?, item.line));
        }
        events.sort_by_key(|(event, _)| event.at);
        let mut is_dead = vec![false; usize::try_from(replicas).unwrap_or(usize::MAX)];
        for (ScriptEvent { replica, change, .. }, line) in &events {
            let Some(is_dead) = is_dead.get_mut(*replica) else { continue };
            let message = match (change, *is_dead) {
                (ReplicaChange::Die, true) => format!("replica {replica} is dead by then"),
                (ReplicaChange::Start, false) => {
                    format!("replica {replica} runs then: it starts by itself, and again after `do: die`")
                }
                (ReplicaChange::Die, false) => {
                    *is_dead = true;
                    continue;
                }
                (ReplicaChange::Start, true) => {
                    *is_dead = false;
                    continue;
                }
                (ReplicaChange::Slower(_), _) => continue,
            };
            return Err(ScriptError { line: *line, message });
        }
        Ok(Self { events: events.into_iter().map(|(event, _)| event).collect() })
    }

    /// The same as faults of whole servers.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (place, ScriptEvent { at, replica, change }) in self.events.iter().enumerate() {
            let ends = |other: &&ScriptEvent| {
                let is_end = matches!(
                    (change, other.change),
                    (ReplicaChange::Die, ReplicaChange::Start) | (ReplicaChange::Slower(_), ReplicaChange::Slower(_))
                );
                is_end && other.replica == *replica
            };
            let until = self.events.iter().skip(place + 1).find(ends).map(|other| other.at);
            let what = match change {
                ReplicaChange::Die => "die".to_owned(),
                ReplicaChange::Slower(factor) => format!("slower:{factor}"),
                ReplicaChange::Start => continue,
            };
            let until = until.map(|until| format!(" until={}", duration_text(until))).unwrap_or_default();
            let line = format!("{what} where replica={replica} from={}{until}", duration_text(*at));
            faults.extend(line.parse::<Fault>());
        }
        faults
    }
}

fn event(item: &YamlNode, replicas: u32) -> Result<ScriptEvent, ScriptError> {
    let entries = item.entries().ok_or_else(|| wrong(item, "an event has `at`, `replica`, and `do` or `slower`"))?;
    if let Some(unknown) = entries.iter().find(|entry| !["at", "replica", "do", "slower"].contains(&entry.key.as_str()))
    {
        let message = format!("`{}` is no field of an event: use at, replica, do and slower", unknown.key);
        return Err(ScriptError { line: unknown.line, message });
    }
    let field = |name: &str| item.get(name).ok_or_else(|| wrong(item, &format!("the event has no `{name}`")));
    let (at, replica) = (field("at")?, field("replica")?);
    let written = at.text().map_or_else(|| at.value().to_string(), str::to_owned);
    let time = parse_duration(&written).map_err(|error| wrong(at, &format!("`at`: {error}")))?;
    let known = replica.number().filter(|number| *number < u64::from(replicas));
    let number = known.and_then(|number| usize::try_from(number).ok()).ok_or_else(|| {
        let last = replicas.saturating_sub(1);
        wrong(replica, &format!("`replica` is a number from 0 to {last} with --replicas {replicas}"))
    })?;
    Ok(ScriptEvent { at: time, replica: number, change: change(item)? })
}

fn change(item: &YamlNode) -> Result<ReplicaChange, ScriptError> {
    match (item.get("do"), item.get("slower")) {
        (Some(what), None) => match what.text() {
            Some("die") => Ok(ReplicaChange::Die),
            Some("start") => Ok(ReplicaChange::Start),
            _ => Err(wrong(what, "`do` is `die` or `start`")),
        },
        (None, Some(factor)) => {
            let value = factor.value().as_f64().filter(|factor| *factor > 0.0 && *factor <= SLOWEST);
            value
                .map(ReplicaChange::Slower)
                .ok_or_else(|| wrong(factor, "`slower` is a factor above 0 and up to 1000, such as 3; 1 ends it"))
        }
        _ => Err(wrong(item, "an event has either `do` or `slower`")),
    }
}

fn wrong(node: &YamlNode, message: &str) -> ScriptError {
    ScriptError { line: node.line, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: &str = "\
# what happens to them
- {at: 60s, replica: 2, do: start}
- at: 30s
  replica: 2
  do: die
- {at: 40000, replica: 1, slower: 3}
";

    #[test]
    fn events_are_in_the_order_of_their_times() {
        let script = FleetScript::parse(LIFE, 3).unwrap();
        let found: Vec<(u64, usize, ReplicaChange)> =
            script.events.iter().map(|event| (event.at.as_secs(), event.replica, event.change)).collect();
        assert_eq!(
            found,
            [(30, 2, ReplicaChange::Die), (40, 1, ReplicaChange::Slower(3.0)), (60, 2, ReplicaChange::Start)]
        );
    }

    #[test]
    fn events_are_faults_of_whole_servers() {
        let text = format!("{LIFE}- {{at: 50s, replica: 1, slower: 1}}\n- {{at: 70s, replica: 2, do: die}}\n");
        let faults = FleetScript::parse(&text, 3).unwrap().faults();
        let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let expected = [
            "die where replica=2 from=30s until=60s",
            "slower:3 where replica=1 from=40s until=50s",
            "slower:1 where replica=1 from=50s",
            "die where replica=2 from=70s",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn mistakes_are_named_with_their_lines() {
        for (text, line, part) in [
            ("", 1, "a list of events"),
            ("# nothing\n", 2, "a list of events"),
            ("[]", 1, "a list of events"),
            ("at: 30s", 1, "a list of events"),
            ("- 5", 1, "an event has"),
            ("\n- {at: 30s, replica: 2, do: die, now: 1}", 2, "`now` is no field"),
            ("- {replica: 2, do: die}", 1, "no `at`"),
            ("- at: 30s\n  replica: 0\n  do: dye", 3, "`die` or `start`"),
            ("- {at: soon, replica: 0, do: die}", 1, "`soon` is not a duration"),
            ("- {at: 1s, replica: 3, do: die}", 1, "from 0 to 2"),
            ("- {at: 1s, replica: 0, slower: 0}", 1, "`slower` is a factor"),
            ("- {at: 1s, replica: 0}", 1, "either `do` or `slower`"),
            ("- {at: 1s, replica: 0, do: start}", 1, "replica 0 runs then"),
            ("- {at: 1s, replica: 0, do: die}\n- {at: 2s, replica: 0, do: die}", 2, "is dead by then"),
            ("- {at: 1s", 2, "while parsing"),
        ] {
            let error = FleetScript::parse(text, 3).unwrap_err();
            assert_eq!((error.line, error.message.contains(part)), (line, true), "{text}: {error}");
        }
    }
}
