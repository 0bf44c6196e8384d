//! Choices of one exchange, found by their index in constant time: an event is looked up once for each of its choices, and a response may
//! have a hundred thousand.

use std::{
    collections::{HashMap, HashSet},
    ops::Deref,
};

use super::observed_choice::ObservedChoice;

/// Maximum number of choices of a response that are observed; further ones pass and are counted.
pub(super) const MAX_CHOICES: usize = 1 << 16;

/// Observed choices in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct ObservedChoices {
    list: Vec<ObservedChoice>,
    /// Places of the choices that did not begin in the order of their indices.
    places: HashMap<u32, usize>,
    /// Indices of the choices over the limit.
    left_out: HashSet<u32>,
    /// Number of choices with token ids.
    named: usize,
    /// Number of choices that have begun without token ids.
    unnamed: usize,
    /// Number of token ids of all choices.
    ids: usize,
}

impl Deref for ObservedChoices {
    type Target = [ObservedChoice];

    fn deref(&self) -> &[ObservedChoice] {
        &self.list
    }
}

impl ObservedChoices {
    /// Observes something of the choice with this index; `awaits_echo` if it is its first. Does nothing over the limit.
    pub(super) fn observe(&mut self, index: u32, awaits_echo: bool, observe: impl FnOnce(&mut ObservedChoice)) {
        let Some(place) = self.place(index, awaits_echo) else { return };
        let Some(choice) = self.list.get_mut(place) else { return };
        let (ids, lacked) = (choice.ids.as_ref().map(Vec::len), choice.lacks_ids());
        observe(choice);
        let after = choice.ids.as_ref().map(Vec::len);
        self.named = self.named + usize::from(after.is_some()) - usize::from(ids.is_some());
        self.unnamed = self.unnamed + usize::from(choice.lacks_ids()) - usize::from(lacked);
        self.ids = self.ids + after.unwrap_or(0) - ids.unwrap_or(0);
    }

    fn place(&mut self, index: u32, awaits_echo: bool) -> Option<usize> {
        let own = usize::try_from(index).unwrap_or(usize::MAX);
        if self.list.get(own).is_some_and(|choice| choice.index == index) {
            return Some(own);
        }
        if let Some(known) = self.places.get(&index) {
            return Some(*known);
        }
        let place = self.list.len();
        if place >= MAX_CHOICES {
            self.left_out.insert(index);
            return None;
        }
        if place != own {
            self.places.insert(index, place);
        }
        self.list.push(ObservedChoice { index, awaits_echo, ..ObservedChoice::default() });
        Some(place)
    }

    /// Returns true if a choice has token ids.
    pub(super) fn any_has_ids(&self) -> bool {
        self.named > 0
    }

    /// Returns true if every choice has token ids, but for those of which no token came before the stream was cut.
    pub(super) fn all_have_ids(&self) -> bool {
        self.unnamed == 0 && (self.any_has_ids() || self.list.is_empty())
    }

    /// Returns the number of token ids of all choices.
    pub(super) fn id_count(&self) -> usize {
        self.ids
    }

    /// Returns the number of choices over the limit.
    pub(super) fn left_out(&self) -> usize {
        self.left_out.len()
    }

    /// Returns the bytes that they hold.
    pub(super) fn weight(&self) -> usize {
        let own = self.list.capacity() * size_of::<ObservedChoice>();
        let places = (self.places.capacity() + self.left_out.capacity()) * (size_of::<(u32, usize)>() + 1);
        own + places + self.list.iter().map(ObservedChoice::heap).sum::<usize>()
    }

    pub(super) fn take(&mut self) -> Vec<ObservedChoice> {
        let Self { list, .. } = std::mem::take(self);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(indices: impl IntoIterator<Item = u32>) -> ObservedChoices {
        let mut choices = ObservedChoices::default();
        for index in indices {
            choices.observe(index, false, |choice| choice.ids.get_or_insert_default().push(index));
        }
        choices
    }

    #[test]
    fn each_index_is_one_choice_in_any_order() {
        for order in [vec![0, 1, 2, 1, 0], vec![2, 0, 1, 2, 0], vec![7, 3, 7, u32::MAX, 0, 3, u32::MAX]] {
            let choices = observed(order.clone());
            let expected: HashSet<u32> = order.iter().copied().collect();
            assert_eq!(choices.iter().map(|choice| choice.index).collect::<HashSet<_>>(), expected);
            assert_eq!((choices.len(), choices.id_count()), (expected.len(), order.len()), "{order:?}");
            assert!(choices.all_have_ids() && choices.any_has_ids());
        }
    }

    #[test]
    fn choices_over_the_limit_are_counted_once_each() {
        let limit = u32::try_from(MAX_CHOICES).unwrap();
        let mut choices = observed((0..limit + 5).chain(0..limit + 5));
        assert_eq!((choices.len(), choices.left_out(), choices.id_count()), (MAX_CHOICES, 5, 2 * MAX_CHOICES));
        choices.observe(0, false, |choice| choice.ids = None);
        assert!(choices.all_have_ids(), "nothing came of it yet");
        choices.observe(0, false, |choice| choice.meter.chunk(std::time::Duration::ZERO, 1, 1));
        assert!(!choices.all_have_ids() && choices.any_has_ids());
        assert_eq!(choices.id_count(), 2 * MAX_CHOICES - 2);
    }
}
