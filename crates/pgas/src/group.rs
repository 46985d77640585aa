//! Sets of units: local values, always in ascending order.
//!
//! Source: groups of DART (Zhou et al., PGAS 2014, IV-B1): members ascend by absolute number, and a
//! union merges.

use crate::Unit;

/// A set of units in ascending order. Local: no other unit learns of it.
///
/// ```
/// use samite_pgas::{Group, Unit};
/// let all = Group::first(6);
/// let even: Group = all.into_iter().filter(|unit| unit.0 % 2 == 0).collect();
/// assert_eq!(even.members(), [Unit(0), Unit(2), Unit(4)]);
/// let odd = all.difference(&even);
/// let halves = all.split(2);
/// assert_eq!(halves[1].intersection(&odd).members(), [Unit(3), Unit(5)]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Group(Vec<Unit>);

impl Group {
    /// Creates an empty group.
    pub fn new() -> Group {
        Group::default()
    }

    /// Creates the group of units `0..count`.
    pub fn first(count: u32) -> Group {
        Group((0..count).map(Unit).collect())
    }

    /// Returns the number of members.
    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// Returns true if the group has no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the members in ascending order.
    pub fn members(&self) -> &[Unit] {
        &self.0
    }

    /// Returns true if a unit is a member. O(1) or O(log n), like [`Group::position`].
    pub fn contains(&self, unit: Unit) -> bool {
        self.position(unit).is_some()
    }

    /// Returns the position of a unit among the members. O(1) if they are consecutive, as those of
    /// a program are, else O(log n).
    #[inline]
    pub fn position(&self, unit: Unit) -> Option<u32> {
        let guess = unit.0.wrapping_sub(self.0.first()?.0);
        if self.0.get(guess as usize) == Some(&unit) {
            return Some(guess);
        }
        self.0.binary_search(&unit).ok().map(|at| at as u32)
    }

    /// Adds a unit. Returns true if it was new.
    pub fn add(&mut self, unit: Unit) -> bool {
        match self.0.binary_search(&unit) {
            Ok(_) => false,
            Err(at) => {
                self.0.insert(at, unit);
                true
            }
        }
    }

    /// Removes a unit. Returns true if it was a member.
    pub fn remove(&mut self, unit: Unit) -> bool {
        match self.0.binary_search(&unit) {
            Ok(at) => {
                self.0.remove(at);
                true
            }
            Err(_) => false,
        }
    }

    /// Returns the units that are in either group, by one merge.
    pub fn union(&self, other: &Group) -> Group {
        let mut merged = Vec::with_capacity(self.0.len() + other.0.len());
        let (mut left, mut right) = (self.0.as_slice(), other.0.as_slice());
        while let (Some(a), Some(b)) = (left.first(), right.first()) {
            merged.push(*a.min(b));
            left = &left[usize::from(a <= b)..];
            right = &right[usize::from(b <= a)..];
        }
        merged.extend_from_slice(left);
        merged.extend_from_slice(right);
        Group(merged)
    }

    /// Returns the units that are in both groups.
    pub fn intersection(&self, other: &Group) -> Group {
        let both = self.0.iter().filter(|unit| other.contains(**unit));
        Group(both.copied().collect())
    }

    /// Returns the units that are in this group only.
    pub fn difference(&self, other: &Group) -> Group {
        let only = self.0.iter().filter(|unit| !other.contains(**unit));
        Group(only.copied().collect())
    }

    /// Splits the group into `parts` groups of consecutive members. Their sizes differ by at most
    /// one; the larger ones come first. Some are empty if there are more parts than members; there
    /// are none for zero parts.
    pub fn split(&self, parts: u32) -> Vec<Group> {
        let (members, parts) = (self.0.len(), parts as usize);
        let start = |part: usize| part * (members / parts) + part.min(members % parts);
        let part = |part: usize| Group(self.0[start(part)..start(part + 1)].to_vec());
        (0..parts).map(part).collect()
    }

    /// Splits the group into groups of equal `key`, in the order of the keys. With the node of a
    /// unit as the key, this is the split by node ([`crate::Pgas::node_of`]).
    pub fn split_by<K: Ord>(&self, mut key: impl FnMut(Unit) -> K) -> Vec<Group> {
        let mut groups = std::collections::BTreeMap::<K, Group>::new();
        for unit in &self.0 {
            groups.entry(key(*unit)).or_default().0.push(*unit);
        }
        groups.into_values().collect()
    }
}

impl FromIterator<Unit> for Group {
    fn from_iter<I: IntoIterator<Item = Unit>>(units: I) -> Group {
        let mut members: Vec<Unit> = units.into_iter().collect();
        members.sort_unstable();
        members.dedup();
        Group(members)
    }
}

impl<'a> IntoIterator for &'a Group {
    type Item = Unit;
    type IntoIter = std::iter::Copied<std::slice::Iter<'a, Unit>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn sets() -> impl Strategy<Value = BTreeSet<u32>> {
        proptest::collection::btree_set(0u32..64, 0..40)
    }

    fn group(set: &BTreeSet<u32>) -> Group {
        set.iter().copied().map(Unit).collect()
    }

    proptest! {
        #[test]
        fn it_is_a_sorted_set(a in sets(), b in sets(), unit in 0u32..64) {
            let (x, y) = (group(&a), group(&b));
            prop_assert_eq!(x.union(&y), group(&a.union(&b).copied().collect()));
            prop_assert_eq!(x.intersection(&y), group(&a.intersection(&b).copied().collect()));
            prop_assert_eq!(x.difference(&y), group(&a.difference(&b).copied().collect()));
            prop_assert_eq!(x.contains(Unit(unit)), a.contains(&unit));
            let position = a.iter().position(|member| *member == unit);
            prop_assert_eq!(x.position(Unit(unit)), position.map(|at| at as u32));
            let (mut x, mut a) = (x, a);
            prop_assert_eq!(x.add(Unit(unit)), a.insert(unit));
            prop_assert_eq!(&x, &group(&a));
            prop_assert_eq!(x.remove(Unit(unit)), a.remove(&unit));
            prop_assert_eq!(&x, &group(&a));
            prop_assert!(!x.remove(Unit(unit)));
        }

        #[test]
        fn parts_are_nearly_equal_and_in_order(a in sets(), parts in 0u32..50) {
            let whole = group(&a);
            let split = whole.split(parts);
            prop_assert_eq!(split.len(), parts as usize);
            if parts > 0 {
                let together: Vec<Unit> = split.iter().flatten().collect();
                prop_assert_eq!(together, whole.members().to_vec());
                let sizes: Vec<u32> = split.iter().map(Group::len).collect();
                prop_assert!(sizes[0] - sizes[sizes.len() - 1] <= 1);
            }
        }
    }

    /// Consecutive members, from any unit on, are found where they are expected.
    #[test]
    fn positions_of_consecutive_units() {
        for first in [0, 1, 7, u32::MAX - 3] {
            let group: Group = (first..first + 3).map(Unit).collect();
            for at in 0..3 {
                assert_eq!(group.position(Unit(first + at)), Some(at));
            }
            for stranger in [first.wrapping_sub(1), first + 3, first ^ 1 << 31] {
                assert_eq!(group.position(Unit(stranger)), None, "{first}, {stranger}");
            }
        }
        assert_eq!(Group::new().position(Unit(0)), None);
    }

    #[test]
    fn a_split_by_key_keeps_the_order_of_keys() {
        let groups = Group::first(5).split_by(|unit| unit.0 % 2);
        let expected: [Group; 2] = [
            [Unit(0), Unit(2), Unit(4)].into_iter().collect(),
            [Unit(1), Unit(3)].into_iter().collect(),
        ];
        assert_eq!(groups, expected);
    }
}
