//! Records of one request: the choices of each of its prompts.

use std::collections::HashMap;

use super::Keys;

/// Finds the siblings of a record.
#[derive(Debug, Default)]
pub(super) struct Families {
    families: ChoiceGroups,
    requests: ChoiceGroups,
}

#[derive(Debug, Default)]
struct ChoiceGroups {
    group_of: HashMap<u32, usize>,
    groups: Vec<Vec<Member>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Member {
    choice: Option<u32>,
    record: u32,
}

impl ChoiceGroups {
    fn new(groups: impl Iterator<Item = Vec<Member>>) -> Self {
        let mut found = Self::default();
        for mut members in groups.filter(|members| members.len() > 1) {
            members.sort_unstable();
            found.group_of.extend(members.iter().map(|member| (member.record, found.groups.len())));
            found.groups.push(members);
        }
        found
    }

    fn of(&self, record: u32) -> &[Member] {
        self.group_of.get(&record).and_then(|group| self.groups.get(*group)).map_or(&[], Vec::as_slice)
    }
}

impl Families {
    /// Of `servable` records, by their number. Siblings share a `group` and a prompt: a group may also come from a list
    /// of prompts. Prompts without hashes count as equal.
    pub(super) fn new<'a>(servable: impl Iterator<Item = (u32, Keys<'a>)>) -> Self {
        let mut families: HashMap<_, Vec<Member>> = HashMap::new();
        let mut requests: HashMap<_, Vec<Member>> = HashMap::new();
        for (record, keys) in servable {
            if let Some(group) = keys.group {
                let member = Member { choice: keys.choice, record };
                families.entry((group, keys.prompt_hash, keys.chain)).or_default().push(member);
                requests.entry(group).or_default().push(member);
            }
        }
        Self {
            families: ChoiceGroups::new(families.into_values()),
            requests: ChoiceGroups::new(requests.into_values()),
        }
    }

    /// A record and its siblings in order of `choice`; empty when it has none.
    pub(super) fn family(&self, record: u32) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.families.of(record).iter().map(|member| member.record)
    }

    /// The record of the same request that is so many choices after this one, as the first one of a later prompt; the record
    /// itself where there is none.
    pub(super) fn of_prompt(&self, record: u32, choices_before: u32) -> u32 {
        if choices_before == 0 {
            return record;
        }
        let request = self.requests.of(record);
        let own = request.iter().find(|member| member.record == record).and_then(|member| member.choice);
        let wanted = own.and_then(|own| own.checked_add(choices_before));
        let later = request.iter().find(|member| wanted.is_some() && member.choice == wanted);
        later.map_or(record, |member| member.record)
    }
}
